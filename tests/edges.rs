//! Checks that `.ci/planted.txt` has an entry for each place in `src` where one thread hands data to another: each
//! acquire, release and fence, and each row of a table of edges.

use std::{collections::BTreeSet, fs, path::Path};

/// Places without an entry, each with its reason. Each must exist and have no entry, so an obsolete exception fails the
/// test.
const WITHOUT_ENTRY: [(&str, &str, &str); 26] = [
    ("src/memory/epoch.rs", "last(&epoch().retired, Acquire);", MODEL),
    ("src/memory/epoch.rs", "epoch().retired.fetch_add(0, Release);", MODEL),
    ("src/memory/epoch.rs", "epoch().unpinned.fetch_add(0, Release);", MODEL),
    ("src/memory/epoch.rs", "last(&epoch().unpinned, Acquire);", MODEL),
    ("src/sync/deque.rs", "self.len.load(Acquire) == 0", MODEL),
    ("src/sync/deque.rs", "let len = self.len.load(Acquire);", MODEL),
    ("src/sync/deque.rs", "if self.len.compare_exchange(len, len - 1 - more, AcqRel, Acquire).is_err() {", MODEL),
    ("src/sync/deque.rs", "self.0.len.fetch_add(1, Release);", MODEL),
    ("src/sync/deque.rs", "self.0.len.load(Acquire)", MODEL),
    (
        "src/tracker/push.rs",
        "let _ = last.queue().tail.compare_exchange(tail, access, Release, Relaxed, &self.guard);",
        MODEL,
    ),
    ("src/notify/poll_state.rs", "self.0.swap(0, Release);", MODEL),
    ("src/sync/mod.rs", "atomic::fence(Ordering::Acquire);", CALLS),
    ("src/sync/mod.rs", "counter.load(Ordering::Acquire);", CALLS),
    ("src/scheduler/lane.rs", "fence(SeqCst);", GUESS),
    ("src/sync/fork.rs", "let made = self.0.load(Acquire);", PROCESS),
    ("src/sync/fork.rs", "let now = match self.0.compare_exchange(before, new, AcqRel, Acquire) {", PROCESS),
    ("src/engine/fork.rs", "if REGISTERED.load(Acquire) {", PROCESS),
    ("src/engine/fork.rs", "REGISTERED.store(true, Release);", PROCESS),
    ("src/engine/keeps_open.rs", "if self.0.open_handles.fetch_sub(1, AcqRel) == 1 {", HANDLES),
    ("src/trace/writers.rs", "self.check.store(Self::check(op.0, from, place), Release);", TRACE),
    ("src/trace/writers.rs", "self.check.store(0, Release);", TRACE),
    ("src/trace/writers.rs", "let check = self.running.check.load(Acquire);", TRACE),
    ("src/trace/writers.rs", "self.shared.is_over.store(true, Release);", TRACE),
    ("src/trace/writers.rs", "self.is_over.load(Acquire)", TRACE),
    ("src/device/cuda.rs", "if counter.word().load(Acquire) == counter.made {", DEVICE),
    ("src/device/cuda.rs", "Marks::Counter(counter) => Ok(counter.word().load(Acquire)),", DEVICE),
];

const MODEL: &str = "code of models and twins, which no other build contains";
const CALLS: &str = "each call to `sync::acquire` has an entry";
const GUESS: &str = "a snapshot for limits: pops release nothing, so a model finds that the snapshot may miss an \
                     operation even with the fence, and on x86-64 an acquire would suffice; a push that misses an \
                     operation exceeds its limit";
const PROCESS: &str = "statics of the process: the atomics of models cannot be in statics; tests on x86-64 cannot show \
                       the need";
const HANDLES: &str = "without the ordering, a push through another handle could load the phase of a later shutdown; \
                       models explore no loads of stores from the future";
const TRACE: &str = "no model has a recorder; tests on x86-64 cannot show the need";
const DEVICE: &str = "the other side is a device, which models do not have; tests on x86-64 cannot show the need";

/// Edges that no entry covers, each with its reason.
const UNNAMED: [(&str, &str, &str); 2] =
    [("src/device/cuda.rs", "mark", DEVICE), ("src/device/mod.rs", "mark", DEVICE)];

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the files in `src`, except those that contain only tests.
fn sources() -> Vec<String> {
    fn visit(root: &Path, folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("the folder should be readable").flatten() {
            let path = entry.path();
            let name = path
                .strip_prefix(root)
                .expect("files should be below the root")
                .to_str()
                .expect("names should be UTF-8");
            if path.is_dir() && !name.ends_with("/tests") {
                visit(root, &path, found);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                found.push(name.to_owned());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    visit(root, &root.join("src"), &mut found);
    found.sort();
    found
}

/// A place: a file and the number of a line, counted from 1.
type Place = (String, usize);

/// Returns the places where bugs are planted, and the names of all bugs.
fn planted() -> (BTreeSet<Place>, Vec<String>) {
    let (mut places, mut names) = (BTreeSet::new(), Vec::new());
    let (mut file, mut lines, mut after) = (String::new(), Vec::<String>::new(), 0);
    let mut at = None;
    for line in read(".ci/planted.txt").lines() {
        let find = |text: &str, after: usize| {
            let found = lines.iter().skip(after).position(|line| line == text);
            after + 1 + found.unwrap_or_else(|| panic!("{file} has no line `{text}` where a bug is to be planted"))
        };
        if let Some(name) = line.strip_prefix("== ") {
            names.push(name.to_owned());
        } else if let Some(text) = line.strip_prefix("after ") {
            after = find(text, 0);
        } else if let Some(text) = line.strip_prefix("at ") {
            at = Some((file.clone(), find(text, after)));
            after = 0;
        } else if line.starts_with("   ") && line.contains(" => ") {
            places.insert(at.clone().expect("a place should come first"));
        } else if let Some(name) = line.strip_prefix("in ") {
            (file, after) = (name.to_owned(), 0);
            lines = read(name).lines().map(|line| line.trim().to_owned()).collect();
        }
    }
    (places, names)
}

/// Returns whether a line of code contains an ordering that hands data over.
fn has_ordering(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or(line);
    ["Acquire", "Release", "AcqRel", "SeqCst"].iter().any(|ordering| {
        code.match_indices(ordering).any(|(start, _)| {
            let (before, after) = (&code[..start], &code[start + ordering.len()..]);
            let begins = before.is_empty() || before.ends_with(['(', ' ', ':']);
            begins && (after.starts_with([',', ')', ';']) || after.starts_with(" }"))
        })
    })
}

/// Returns the lines of a file that contain such an ordering, except those in `use` declarations and unit tests.
fn orderings(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut in_use) = (Vec::new(), false);
    let mut lines = (1..).zip(text.lines().map(str::trim)).peekable();
    while let Some((number, line)) = lines.next() {
        if line.starts_with("#[cfg(") && line.contains("test") {
            let is_module = lines.peek().is_some_and(|(_, next)| next.starts_with("mod ") && next.ends_with('{'));
            if is_module {
                break;
            }
        }
        let is_use = ["use ", "pub use ", "pub(crate) use "].iter().any(|prefix| line.starts_with(prefix));
        in_use |= is_use;
        let acquires = line.contains(" acquire(&") && !line.contains("fn acquire");
        if !in_use && !line.starts_with("//") && (has_ordering(line) || acquires || line.starts_with("acquire(&")) {
            found.push((number, line));
        }
        in_use &= !line.ends_with(';');
    }
    found
}

#[test]
fn each_ordering_has_a_planted_bug() {
    let (places, _) = planted();
    let mut unused: BTreeSet<_> =
        WITHOUT_ENTRY.iter().map(|&(file, line, _)| (file.to_owned(), line.to_owned())).collect();
    let (mut all, mut missing) = (0, Vec::new());
    for file in sources() {
        let text = read(&file);
        for (number, line) in orderings(&text) {
            all += 1;
            // The bug may be planted in the condition above, which lets a model's twin skip the step.
            let condition = (number.saturating_sub(3)..number)
                .rev()
                .find(|&above| text.lines().nth(above - 1).is_some_and(|line| line.trim().starts_with("if !removed(")));
            let has = [Some(number), condition].iter().flatten().any(|&line| places.contains(&(file.clone(), line)));
            let is_exception =
                WITHOUT_ENTRY.iter().any(|&(its_file, its_line, _)| (its_file, its_line) == (&file, line));
            if !has && is_exception {
                unused.remove(&(file.clone(), line.to_owned()));
            } else if !has {
                missing.push(format!("{file}:{number}: {line}"));
            }
        }
    }
    assert!(all > 80, "found only {all} orderings in the sources");
    assert!(missing.is_empty(), ".ci/planted.txt has no entry for:\n{}", missing.join("\n"));
    assert!(unused.is_empty(), "these exceptions have an entry or do not exist: {unused:?}");
}

/// Returns the names of the edges in the tables of a file.
fn edges(text: &str) -> Vec<String> {
    let (mut found, mut in_table) = (Vec::new(), false);
    for line in text.lines() {
        let Some(row) = line.trim().strip_prefix("//! |") else {
            in_table = false;
            continue;
        };
        let first = row.split('|').next().unwrap_or(row).trim();
        if first == "edge" {
            in_table = true;
        } else if in_table && first.starts_with('`') {
            found.extend(first.split(',').map(|name| name.trim().trim_matches('`').to_owned()));
        }
    }
    found
}

#[test]
fn each_edge_has_a_planted_bug() {
    let (_, names) = planted();
    let named: BTreeSet<_> =
        names.iter().filter_map(|name| name.split_once(": ")).flat_map(|(edges, _)| edges.split(", ")).collect();
    let mut unused: BTreeSet<_> = UNNAMED.iter().map(|&(file, edge, _)| (file.to_owned(), edge.to_owned())).collect();
    let (mut all, mut missing) = (0, Vec::new());
    for file in sources() {
        for edge in edges(&read(&file)) {
            all += 1;
            if named.contains(&*edge) {
                continue;
            }
            if !unused.remove(&(file.clone(), edge.clone())) {
                missing.push(format!("{file}: {edge}"));
            }
        }
    }
    assert!(all > 25, "found only {all} edges in the tables");
    assert!(missing.is_empty(), "no entry of .ci/planted.txt covers:\n{}", missing.join("\n"));
    assert!(unused.is_empty(), "these edges have an entry or do not exist: {unused:?}");
}
