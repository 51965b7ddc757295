#!/usr/bin/env python3
"""Checks, with third-party readers, the files that tests/observing/files.rs writes. Usage: read_files FOLDER [TRACE...]

Each TRACE, such as one written by a profile, is checked on its own.
"""

import html
import itertools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections import Counter, defaultdict

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema


NOTHING = "Nothing has run."


def perfetto(path, is_profile=False):
    """Returns the numbers of rectangles, of arrows and of each name in a trace in Perfetto's format.

    In a profile, an arrow to an operation that was skipped has no end.
    """
    trace = schema.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    tracks, events, flows = {}, defaultdict(list), Counter()
    names = []
    for number, packet in enumerate(trace.packet):
        assert not packet.HasField("track_event") or packet.HasField("timestamp")
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        elif packet.HasField("track_event"):
            event = packet.track_event
            assert event.track_uuid in tracks, "an event comes before the description of its track"
            begins = event.type == schema.TrackEvent.TYPE_SLICE_BEGIN
            assert begins or event.type == schema.TrackEvent.TYPE_SLICE_END
            events[event.track_uuid].append((packet.timestamp, number, begins))
            if begins:
                names.append(event.name)
                assert list(event.categories) and event.debug_annotations
                assert all(note.name and note.HasField("string_value") for note in event.debug_annotations)
            for flow in event.flow_ids:
                flows[flow, "out"] += 1
            for flow in event.terminating_flow_ids:
                flows[flow, "in"] += 1
        else:
            raise AssertionError(f"an unknown packet: {packet}")
    for uuid, descriptor in tracks.items():
        if descriptor.HasField("thread"):
            parent = tracks[descriptor.parent_uuid]
            assert parent.process.pid == descriptor.thread.pid and descriptor.thread.thread_name
        else:
            assert descriptor.process.process_name
        depth = 0
        for _, _, begins in sorted(events[uuid]):
            depth += 1 if begins else -1
            assert depth >= 0, f"a rectangle ends before it begins, on {descriptor}"
        assert depth == 0, f"a rectangle has no end, on {descriptor}"
    pairs = {flow for flow, _ in flows}
    assert all(flows[flow, "out"] == 1 and flows[flow, "in"] <= 1 for flow in pairs), "an arrow has too many ends"
    whole = sum(flows[flow, "in"] for flow in pairs)
    assert is_profile or whole == len(pairs), "an arrow does not have two ends"
    return len(names), whole, Counter(names)


def chrome(path, is_profile=False):
    """Returns the numbers of rectangles, of arrows and of each name in a trace in Chrome's format.

    In a profile, an arrow to an operation that was skipped has no end.
    """
    with open(path, encoding="utf-8") as file:
        events = json.load(file)
    slices = [event for event in events if event["ph"] == "X"]
    threads = {(event["pid"], event["tid"]) for event in events if event.get("name") == "thread_name"}
    assert all(event["dur"] >= 0 and (event["pid"], event["tid"]) in threads for event in slices)
    inside = defaultdict(list)
    for event in slices:
        inside[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    starts = Counter(event["id"] for event in events if event["ph"] == "s")
    ends = Counter(event["id"] for event in events if event["ph"] == "f")
    assert ends <= starts and set(starts.values()) <= {1}, "an arrow has too many ends"
    assert is_profile or starts == ends, "an arrow does not have two ends"
    for event in events:
        if event["ph"] in "sf":
            lies = (begin - 0.002 <= event["ts"] <= end + 0.002 for begin, end in inside[event["pid"], event["tid"]])
            assert any(lies), f"the end of an arrow is not in a rectangle: {event}"
    return len(slices), len(ends), Counter(event["name"] for event in slices)


SECONDS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
TIME = r"[0-9.]+ (?:ns|µs|ms|s)"


def seconds(text):
    """Returns a time that a page or a note of a trace contains, in seconds."""
    number, unit = re.fullmatch(r"([0-9.]+) ?(ns|µs|ms|s)", text).groups()
    return float(number) * SECONDS[unit]


def same(text, expected):
    """Returns whether a page's time, which has three digits, is the expected one."""
    return abs(seconds(text) - expected) <= max(0.006 * expected, 1.1e-9)


def plain(markup):
    """Returns the text of a part of a page, without the numbers of names."""
    markup = re.sub(r'<i class="name"[^>]*>.*?</i>', "", markup, flags=re.S)
    markup = re.sub(r"<(title|style)>.*?</\1>", "", markup, flags=re.S)
    return html.unescape(re.sub(r"<[^>]*>", "", markup.replace("<br>", " ")))


def element(dom, name, kind):
    """Returns the contents of an element that does not contain others of its kind."""
    found = re.search(rf'<{kind} [^>]*id="{name}"[^>]*>(.*?)</{kind}>', dom, re.S)
    assert found, f"the page has no {kind} {name}"
    return found.group(1)


def visible(dom):
    """Returns a page without its script, which contains all of the texts that the page may show."""
    return dom.split("<script")[0]


IDLE = " worker idle"


def rows(dom, table, marks=False):
    """Returns the rows of a table of a page: for each, its cells by the heads of their columns.

    Without `marks`, times lack the mark that a worker was idle.
    """
    body = re.search(rf'<table id="{table}">(.*?)</table>', dom, re.S).group(1)
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", body, re.S)
    heads = [plain(cell) for cell in re.findall(r"<th[^>]*>(.*?)</th>", found[0], re.S)]
    cells = [[plain(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)] for row in found[1:]]
    assert all(len(row) in (0, len(heads)) for row in cells), (heads, cells)
    cells = [[cell if marks else cell.removesuffix(IDLE) for cell in row] for row in cells]
    return [dict(zip(heads, row)) for row in cells if row]


def check_tables(dom, path):
    """Checks the tables of a page on the operations that a trace in Chrome's format has."""
    with open(path.replace(".html", ".json"), encoding="utf-8") as file:
        events = json.load(file)
    threads = {event["tid"]: event["args"]["name"] for event in events if event.get("name") == "thread_name"}
    own = [event for event in events if event["ph"] == "X" and event["cat"] == "operation"]
    # The page has no rows for streams.
    tracks = {threads[event["tid"]].removesuffix(": stream") for event in own}
    busy = rows(dom, "tracks")
    assert sorted(row["thread"] for row in busy) == sorted(tracks), (busy, tracks)
    assert all(0 <= int(row["share"].removeprefix("<").removesuffix(" %")) <= 100 for row in busy), busy
    names, stages, path_rows = rows(dom, "names"), rows(dom, "stages"), rows(dom, "critical")
    latencies = rows(dom, "latency")
    ended = {row["operation"] for row in names if row["latency"] != "–"}
    assert ended and {row["operation"] for row in latencies} == ended, (names, latencies)
    ends = ("min", "median", "99 %", "max")
    assert all(re.fullmatch(TIME, row[column]) for row in latencies for column in ends), latencies

    # Latencies and priorities, as in the trace. A long trace has operations that the page does not draw.
    took, priorities = defaultdict(list), defaultdict(set)
    for event in own:
        if not event["name"].endswith(" (continued)"):
            took[event["name"]].append(seconds(event["args"]["from push to end"]))
            priorities[event["name"]].add(int(event["args"].get("priority", "0")))
    if "later operations are not drawn" not in visible(dom):
        known = [row for row in names if row["operation"] in took]
        assert known, (names, list(took))
        for row in known:
            times, levels = took[row["operation"]], priorities[row["operation"]]
            assert same(row["latency"], sum(times) / len(times)), (row, times)
            parts = ("waited for operations", "waited for a worker", "ran")
            assert abs(sum(seconds(row[part]) for part in parts) - seconds(row["latency"])) <= 0.02 * max(times), row
            if any(levels != {0} for levels in priorities.values()):
                shown = " to ".join(str(level).replace("-", "−") for level in sorted({min(levels), max(levels)}))
                assert row["priority"] == shown, (row, levels)
    listed = {row["operation"] for row in names}
    slowest = rows(dom, "slowest")
    assert {row["operation"] for row in slowest} == ended, (names, slowest)
    for row in slowest:
        parts = ("waited for operations", "waited for a worker", "ran")
        # Each number is rounded to three digits.
        assert abs(sum(seconds(row[part]) for part in parts) - seconds(row["latency"])) <= 0.01 * seconds(row["latency"]), row
        behind = row.get("of this, behind priorities")
        assert behind is None or seconds(behind) <= 1.01 * seconds(row["waited for a worker"]), row
    assert stages[-1]["operation"] == "whole latency" and path_rows[-1]["operation"] == "whole path", (stages, path_rows)
    if "other names took less" not in visible(dom):
        assert {row["operation"] for row in stages[:-1]} <= listed | {"other waits"}, (stages, listed)
    # Each table's parts add up to the whole.
    for table in (stages, path_rows):
        whole = seconds(table[-1]["time"])
        for column in ("time", "waited for a worker", "ran"):
            parts = [seconds(row[column]) for row in table[:-1] if row[column]]
            assert abs(sum(parts) - seconds(table[-1][column])) <= 0.02 * whole, (column, table)
    assert path_rows[-2]["operation"] == "not pushed yet", path_rows

    # The histograms have an axis with times, which covers all latencies.
    axes = re.findall(r'<svg class="times".*?</svg>', dom, re.S)
    assert axes, "the latencies have no axis"
    ticks = re.findall(r"<text[^>]*>(.*?)</text>", axes[0])
    assert len(ticks) > 1 and all(re.fullmatch(r"[0-9.]+ (ns|µs|ms|s)", tick) for tick in ticks), ticks


def check_words(dom):
    """Checks that a page defines the words that it uses."""
    words = plain(re.search(r'<div class="terms".*?</dl>', dom, re.S).group(0))
    for word in ("waited for operations", "waited for a worker", "ran", "Operation:", "Name:", "Worker:", "Latency:",
                 "Push:", "Ready:", "Start, end:", "Critical path:", "Not pushed yet:", "Times:", "Thread time:",
                 "Numbers in colour:", "Tooltips:"):
        word = word.removesuffix(":")
        assert word in words, f"the page does not define {word}"
    # A definition of what a page does not use would only lengthen it.
    assert ("Priority" in words) == ("<th>priority</th>" in visible(dom)), words
    text = plain(visible(dom).split("<body>")[1])
    for word in ("first push to the end", "times 1", " round"):
        assert word not in text, f"the page uses {word} without a definition"


def check_headline(dom, path):
    """Checks the head of a page against what a test has computed from the trace."""
    with open(path.replace(".html", ".headline"), encoding="utf-8") as file:
        expected = json.load(file)
    of_time, of_latency = (element(dom, name, "p") for name in ("headline-time", "headline-latency"))
    rule = plain(element(dom, "headline-rule", "p"))

    def stage(markup, stage):
        """Checks what a part of the head says about the operations that take most of a time."""
        assert plain(re.findall(r"<b>(.*?)</b>", markup)[-1]) == stage["name"], (markup, stage)
        whole = stage["queued"] + stage["ran"]
        for key, words in (("queued", "waited for a worker for"), ("ran", "ran for")):
            found = re.search(rf"{words} ({TIME})", markup)
            assert found or stage[key] < 0.06 * whole, (markup, stage)
            assert not found or same(found.group(1), stage[key] * 1e-9), (markup, stage)

    stage(of_time, expected["path"])
    unpushed = re.search(rf"For ({TIME}) of this, the program had not pushed the next operation", of_time)
    assert unpushed and same(unpushed.group(1), expected["unpushed"] * 1e-9), (of_time, expected)
    assert plain(re.findall(r"<b>(.*?)</b>", of_latency)[1]) == expected["result"], (of_latency, expected)
    took = re.search(rf"takes ({TIME}) on average", of_latency).group(1)
    assert same(took, expected["latency"] * 1e-9), (of_latency, expected)
    stage(of_latency, expected["slowest"])
    assert f"is that of {expected['result']}" in rule and "highest priority" in rule, rule
    pushed_late = [row for row in rows(dom, "critical") if row["operation"] == "not pushed yet"]
    assert same(pushed_late[0]["time"], expected["unpushed"] * 1e-9), (pushed_late, expected)
    # The tables begin with what the head names.
    assert rows(dom, "critical")[0]["operation"] == expected["path"]["name"], rows(dom, "critical")
    assert rows(dom, "stages")[0]["operation"] == expected["slowest"]["name"], rows(dom, "stages")


def example(is_paced):
    """Returns the data of a page on two frames, and for each name the numbers of operations that its own came after.

    A worker is idle while `camera` waits for one. Without `is_paced`, both frames are pushed at once.
    """
    ms = 1_000_000
    names = ["camera", "luma", "corners", "detail", "statistics"]
    # Name, ready, started, ended, whether it is critical, idle, the operations of the frame that it depends on, worker.
    frame = [(0, 0, 4, 6, 1, 4, [], 0), (1, 6, 6, 10, 1, 0, [0], 0), (2, 10, 10, 12, 0, 0, [1], 1),
             (3, 10, 10, 11, 0, 0, [1], 0), (3, 10, 11, 12, 0, 0, [1], 0), (3, 10, 12, 19, 1, 0, [1], 0),
             (4, 19, 19, 20, 1, 0, [1, 3, 4, 5], 0)]
    ops, critical, busy, last = [], [], [0, 0], 0
    for at in (0, 100 if is_paced else 20):
        base, pushed = len(ops), at * is_paced
        for name, ready, started, ended, is_critical, idle, before, worker in frame:
            ready, started, ended = ((at + time) * ms for time in (ready, started, ended))
            busy[worker] += ended - started
            ops.append([name, pushed * ms, ready, started, ended, is_critical, idle * ms,
                        [base + index for index in before], [[worker, started, ended]]])
            if is_critical:
                critical.append([name, max(0, pushed * ms - last), started - ready, ended - started, idle * ms])
                last = ended
    data = {"title": "example", "end": last, "lost": 0, "names": names, "tracks": ["cpu 0", "cpu 1"], "busy": busy,
            "priorities": [1, 3, 4, -1, -1] if is_paced else [0] * 5, "sites": [[f"{name}.rs:7"] for name in names],
            "result": 4, "results": 2, "tied": 1, "undrawn": 0, "ops": ops, "before": 0, "critical": critical,
            # How many, latency, waits for operations, behind priorities and for a worker, time of running, and for what.
            "slowest": [[1, 6 * ms, 0, 0, 4 * ms, 2 * ms, None], [1, 10 * ms, 6 * ms, 0, 0, 4 * ms, 0],
                        [1, 12 * ms, 10 * ms, 0, 0, 2 * ms, 1], [1, 19 * ms, 10 * ms, 2 * ms * is_paced, 2 * ms * (not is_paced), 7 * ms, 1],
                        [1, 20 * ms, 19 * ms, 0, 0, ms, 3]]}
    return data, {"camera": {}, "luma": {"camera": 2}, "corners": {"luma": 2}, "detail": {"luma": 6},
                  "statistics": {"luma": 2, "detail": 6}}


def nodes(dom):
    """Returns, for each box in the graph of names, the numbers in it by the name that they stand for.

    A reader finds this name by its coloured number, not by the arrow that is nearest.
    """
    graph = re.search(r'<div class="scroll" id="graph">(.*?)</div>', dom, re.S).group(1)
    arrows, *boxes = graph.split('<g class="node">')
    assert boxes and "<text" not in arrows, "the graph has texts that no box contains"
    numbers, found = {}, {}
    for box in boxes:
        of = plain(re.search(r'<text class="of"[^>]*>(.*?)</text>', box).group(1))
        numbers[re.search(r'<text[^>]*text-anchor="middle"[^>]*>(\d+)</text>', box).group(1)] = of
        x, y, wide, high = (float(re.search(rf'<rect class="box"[^>]* {key}="([0-9.]+)"', box).group(1))
                            for key in ("x", "y", "width", "height"))
        places = re.findall(r'<text[^>]* x="([0-9.]+)" y="([0-9.]+)"', box)
        assert all(x < float(left) < x + wide and y < float(top) < y + high for left, top in places), box
        found[of] = re.findall(r'<g class="after">.*?<text[^>]*>(\d+)</text><text[^>]*>(\d+)</text></g>', box)
    return {of: {numbers[number]: int(count) for number, count in pairs} for of, pairs in found.items()}


def check_example(dom, is_paced, after):
    """Checks what a page says about the frames of `example`."""
    assert nodes(dom) == after, nodes(dom)
    head, note = plain(element(dom, "headline-time", "p")), plain(element(dom, "path-note", "span"))
    for table in ("critical", "stages", "names"):
        marked = [row["operation"] for row in rows(dom, table, marks=True) if row["waited for a worker"].endswith(IDLE)]
        assert marked == ["camera"], (table, marked)
    assert re.search(r'<div id="idle-term"><dt>Worker idle</dt><dd>[^<]* woke up', dom), "the mark is not explained"
    assert "mostly while a worker was idle" not in head, head
    behind = "operations that ran already or had a higher or equal priority" if is_paced else "other operations"
    assert "detail takes the most" in head and f"behind {behind}," in head and "not the highest" not in head, head
    assert ("faster operations would not make the run shorter" in head) == is_paced, head
    slowest = plain(element(dom, "headline-slowest", "p"))
    assert slowest == "The slowest of them takes 20.0 ms: 19.0 ms waiting for operations, mostly detail.", slowest
    # What helps comes first.
    assert ("headline-paced" in dom.split("<script>")[0]) == is_paced
    assert (dom.index('id="headline-latency"') < dom.index('id="headline-time"')) == is_paced
    detail = next(row for row in rows(dom, "slowest") if row["operation"] == "detail")
    assert detail["mostly for"] == "luma" and detail["waited for a worker"] == "2.00 ms", detail
    assert detail.get("of this, behind priorities") == ("2.00 ms" if is_paced else None), detail
    if is_paced:
        assert "faster operations would not make the run shorter" in note and "waits for results" in note, note
        assert "only if one of these times" not in note and "33 %" in note, note
    else:
        assert note == "The whole run can become shorter only if one of these times does.", note
    detail = next(row for row in rows(dom, "names") if row["operation"] == "detail")
    assert detail["ran"] == "3.00 ms" and detail["median of ran"] == "1.00 ms", detail
    assert 'title="pushed at detail.rs:7"' in visible(dom)


def linear(color):
    """Returns the linear red, green and blue of a colour such as `#fff` or `#ffffff`."""
    digits = color.removeprefix("#")
    pairs = [2 * digit for digit in digits] if len(digits) == 3 else [digits[at:at + 2] for at in (0, 2, 4)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in (int(pair, 16) / 255 for pair in pairs)]


def weighted(weights, values):
    return sum(weight * value for weight, value in zip(weights, values))


def contrast(one, other):
    """Returns the contrast of two colours, as WCAG 2 defines it."""
    light, dark = sorted((weighted((0.2126, 0.7152, 0.0722), linear(color)) for color in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# Colours as seen without one kind of cone (Machado, Oliveira and Fernandes 2009), in linear red, green and blue.
VISIONS = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def lab(color, vision):
    """Returns a colour in CIE L*a*b*, as seen with a kind of vision."""
    seen = [min(1, max(0, weighted(row, linear(color)))) for row in vision]
    rows = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0178, 0.1095, 0.8727))
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (weighted(row, seen) for row in rows))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def check_colors(dom):
    """Checks that a page's colours can be told from each other and from the background, in both themes."""
    themes = [dict(re.findall(r"--(\w+): (#\w+);", block)) for block in re.findall(r":root \{(.*?)\}", dom, re.S)]
    names, inks = (re.findall(r"#\w+", re.search(rf"const {what} = \[(.*?)\]", dom).group(1)) for what in ("COLORS", "INKS"))
    assert len(themes) == 2 and len(names) == len(inks) == 8, (themes, names, inks)
    for theme in themes:
        for text in ("text", "soft"):
            assert min(contrast(theme[text], theme[ground]) for ground in ("back", "card")) >= 4.5, (text, theme)
        # Outlines and arrows, parts of bars, and the colours of names.
        for mark in (theme["edge"], theme["queue"], theme["run"], theme["wait"]):
            assert contrast(mark, theme["card"]) >= 3, (mark, theme)
        assert min(contrast(name, theme["card"]) for name in names) >= 1.8, theme
        assert contrast(theme["run"], theme["wait"]) >= 1.8, theme
    assert "gradient" in re.search(r"\.late \{(.*?)\}", dom).group(1), "two parts of bars differ only by a grey"
    for name, ink in zip(names, inks):
        assert contrast(name, ink) >= 4.5, (name, ink)
    for kind, vision in VISIONS.items():
        seen = [lab(name, vision) for name in names]
        near = min(sum((a - b) ** 2 for a, b in zip(*pair)) ** 0.5 for pair in itertools.combinations(seen, 2))
        assert near >= 15, f"with {kind}, two of the colours of names are only {near:.0f} apart"


def first_pixel(path):
    """Returns the red, green and blue of the upper left corner of a PNG file with 8 bits per channel."""
    with open(path, "rb") as file:
        png = file.read()
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        data += png[at + 8:at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    # A filter predicts 0 here, since the pixel has no neighbours before it.
    return tuple(zlib.decompress(data)[1:4])


def page(path, folder, shown, dark=False, check=None):
    """Opens a page in a browser, and checks that its script has run to the end.

    If `check` is given, it replaces the comparison with the trace.
    """
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not browser:
        print("no browser: pages were not opened")
        return
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/browser",
               "--virtual-time-budget=20000", "--window-size=1200,1600"] + ["--force-dark-mode"] * dark

    def browse(path, *more):
        done = subprocess.run([browser, *options, *more, path], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    dom = browse(path, "--dump-dom")
    assert "<canvas" in dom, dom[:2000]
    title = re.search(r"<title>(.*?)</title>", dom, re.S).group(1)
    assert title != "broken" and "<img" not in dom, "a name was executed"
    assert dom.count("<script") == 1, "a name has become an element"
    assert "NaN" not in visible(dom) and "Infinity" not in visible(dom), "a number is not finite"
    # The script draws this last.
    assert re.search(r'id="graph"[^>]*><svg', dom), f"the script of {path} has not run to the end"
    for text in shown:
        assert text in visible(dom), f"{text} is not on the page {path}"
    check_words(dom)
    check_colors(dom)
    if check:
        check(dom)
    elif shown[0] != NOTHING:
        check_tables(dom, path)
    if os.path.exists(path.replace(".html", ".headline")):
        check_headline(dom, path)
    picture = os.path.join(folder, "page.png")
    browse(path, f"--screenshot={picture}", "--hide-scrollbars")
    assert (sum(first_pixel(picture)) < 3 * 64) == dark, f"{path} is not {'dark' if dark else 'light'}"
    # On a small screen, only the tables and the graph scroll sideways.
    narrow = os.path.join(folder, "narrow.html")
    with open(narrow, "w", encoding="utf-8") as file:
        file.write(f"""<iframe src="{os.path.basename(path)}" style="width: 400px; height: 800px; border: 0"></iframe><p></p><script>
            document.querySelector("iframe").onload = event => document.querySelector("p").textContent =
                "width " + event.target.contentDocument.documentElement.scrollWidth;</script>""")
    width = re.search(r"<p>width (\d+)</p>", browse(narrow, "--dump-dom", "--allow-file-access-from-files"))
    assert width and int(width.group(1)) <= 400, f"{path} is too wide for a small screen: {width and width.group(0)}"
    print(f"{path}: opened by {browser}{', dark' * dark}")


def main():
    folder, *profiles = sys.argv[1:]
    for name in ("empty", "hostile", "paced", "many"):
        path = os.path.join(folder, name)
        with open(path + ".expected", encoding="ascii") as file:
            expected = tuple(map(int, file.read().split()))
        by_perfetto, by_chrome = perfetto(path + ".pftrace"), chrome(path + ".json")
        assert by_perfetto == by_chrome, f"the formats of {name} differ"
        assert by_perfetto[:2] == expected, f"{name}: {by_perfetto[:2]} instead of {expected}"
        print(f"{name}: {expected[0]} rectangles and {expected[1]} arrows")
    for profile in profiles:
        slices, arrows, _ = (chrome if profile.endswith("json") else perfetto)(profile, is_profile=True)
        assert slices > 0 and arrows > 0, profile
        print(f"{profile}: {slices} rectangles and {arrows} arrows")
    with open(os.path.join(folder, "dump.dump-json"), encoding="utf-8") as file:
        dump = json.load(file)
    assert len(dump["operations"]) == 10 and len(dump["variables"]) == 1 and dump["unlisted"] == 0
    assert dump["variables"][0]["held_by"] and len(dump["variables"][0]["awaited_by"]) == 9
    if shutil.which("dot"):
        dot = os.path.join(folder, "dump.dot")
        svg = subprocess.run(["dot", "-Tsvg", dot], capture_output=True, check=True)
        assert not svg.stderr, svg.stderr
        import xml.etree.ElementTree as tree
        nodes = [node for node in tree.fromstring(svg.stdout).iter() if node.get("class") == "node"]
        assert len(nodes) == 10, f"{len(nodes)} nodes"
        print("dump: drawn by Graphviz")
    else:
        print("no Graphviz: the dump was not drawn")
    page(os.path.join(folder, "empty.html"), folder, [NOTHING])
    for dark in (False, True):
        page(os.path.join(folder, "hostile.html"), folder, ["waits inside", "&lt;!--&lt;script&gt;"], dark)
        page(os.path.join(folder, "paced.html"), folder, ["deliver"], dark)
    with open(os.path.join(folder, "paced.html"), encoding="utf-8") as file:
        paced = file.read()
    for is_paced in (True, False):
        data, after = example(is_paced)
        path = os.path.join(folder, "example.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(re.sub(r"(?m)^const data = .*$", lambda _: f"const data = {json.dumps(data)};", paced))
        page(path, folder, ["statistics"], check=lambda dom: check_example(dom, is_paced, after))
    page(os.path.join(folder, "many.html"), folder, ["other names took less thread time", "later operations are not drawn"])


main()
