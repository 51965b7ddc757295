//! What does each of the two kinds of marks cost on the host and on the device?

use std::time::{Duration, Instant};

use raddle::gpu::cudarc::driver::sys::CUresult;
use raddle_benches::{
    machine,
    report::{Table, number},
    stats,
};

use super::{
    Experiment, Outcome,
    child::{self, figure, figures, leaving},
    hand::{self, Event, Kernels, Pinned, Stream, ns},
    whole,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "marks-cost",
    about: "cuStreamWriteValue64 compared with recording and querying an event: the host's time for a call, the gap on \
            the device between two kernels, and, while long kernels run, how long after the end of a copy the host \
            sees the mark behind it",
    run,
    part,
};

fn run() -> Outcome {
    let part = child::run("marks-cost", &[], &[], 20)?.well()?;
    let mut table = Table::new("host", "", "", &["the host's time", "ns"]);
    let rows = [
        ("cuStreamWriteValue64", "write"),
        ("cuEventRecord", "record"),
        ("cuEventQuery, not ready", "query.not"),
        ("cuEventQuery, ready", "query.ready"),
        ("a load of the counter", "load"),
        ("cuLaunchKernel, for comparison", "launch"),
    ];
    for (name, key) in rows {
        table.row(name, [number(part.get(key))]);
    }
    println!("{}", table.markdown());
    let mut table = Table::new("device", "", "", &["from a kernel to the next, with this between them", "ns"]);
    for (name, key) in [("nothing", "gap.none"), ("a write of a value", "gap.write"), ("an event", "gap.event")] {
        table.row(name, [number(part.get(key))]);
    }
    println!("{}", table.markdown());
    let mut table =
        Table::new("copies", "", "", &["from a copy's last byte to its mark, µs", "p50", "p99", "longest", "of"]);
    let mut times = vec![];
    for (means, key) in [("counter", "write"), ("event", "event")] {
        for (beside, key) in [("nothing else", format!("idle.{key}")), ("long kernels", format!("busy.{key}"))] {
            let found = ["p50", "p99", "max"].map(|quantile| part.get(&format!("{key}.{quantile}")) / 1e3);
            let count = whole(part.get(&format!("{key}.count")));
            table.row(format!("{means}, with {beside}"), found.map(number).into_iter().chain([count]));
            times.push(found);
        }
    }
    println!("{}", table.markdown());
    part.complete()?;
    let [write, record, query, gap, gap_write, gap_event] =
        ["write", "record", "query.not", "gap.none", "gap.write", "gap.event"].map(|name| part.get(name));
    let (write_gap, event_gap) = (gap_write - gap, gap_event - gap);
    let host = if write < record + query { "a counter costs the host less" } else { "AN EVENT COSTS THE HOST LESS" };
    let device = match event_gap - write_gap {
        difference if difference.abs() < gap / 10.0 => "there is no difference",
        difference if difference > 0.0 => "a counter costs it less",
        _ => "AN EVENT COSTS IT LESS",
    };
    let [idle_write, busy_write, idle_event, busy_event] = times[..] else {
        unreachable!("there should be four times")
    };
    // A mark that did not wait for a long kernel takes much less than the duration of one.
    let is_long = |time: f64| time > LONG.as_secs_f64() * 1e6 / 4.0;
    let held = |busy: [f64; 3]| match busy {
        [p50, ..] if p50.is_nan() => "WAS NEVER SEEN with",
        [p50, ..] if is_long(p50) => "IS HELD UP by",
        [_, p99, _] if is_long(p99) => "is held up at times by",
        _ => "is not held up by",
    };
    Ok(format!(
        "a write takes the host {write:.0} ns, a record and a query take {:.0}: {host}; on the device a write makes \
         the gap of {gap:.0} ns {write_gap:.0} longer, an event {event_gap:.0}: {device}; a counter behind a copy {} \
         long kernels (p99 {:.1} to {:.1} µs), an event {} them (p99 {:.1} to {:.1})",
        record + query,
        held(busy_write),
        idle_write[1],
        busy_write[1],
        held(busy_event),
        idle_event[1],
        busy_event[1],
    ))
}

/// The duration of kernels that fill the device during copies.
const LONG: Duration = Duration::from_millis(2);

/// The size of a copy in bytes.
const BYTES: usize = 1 << 20;

fn part(_: &[&str]) {
    let gpu = hand::open();
    let bed = Bed {
        kernels: hand::kernels(),
        stream: hand::stream(),
        busy: hand::stream(),
        event: hand::event(),
        counter: hand::pinned(4096),
        stamps: hand::pinned(8 * (STAMPS + 1)),
        blocks: hand::many_blocks(&gpu),
    };
    bed.host();
    bed.gaps();
    bed.copies();
    leaving();
}

/// The number of gaps between consecutive kernels that record the clock. With the commands in the gaps, these kernels
/// fit in the stream.
const STAMPS: usize = 200;

struct Bed {
    kernels: Kernels,
    stream: Stream,
    busy: Stream,
    event: Event,
    counter: Pinned,
    stamps: Pinned,
    blocks: u32,
}

impl Bed {
    /// Returns the median time of a call, in ns. The calls are made in batches that fit in the stream, which is
    /// synchronized after each batch.
    fn per_call(&self, call: impl Fn(u64) -> CUresult) -> f64 {
        const BATCH: u64 = 200;
        let batch = |_| {
            let start = Instant::now();
            for index in 0..BATCH {
                let result = call(index);
                let is_fine = matches!(result, CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_NOT_READY);
                assert!(is_fine, "{result:?}");
            }
            let time = ns(start.elapsed()) / BATCH as f64;
            hand::must("the end of the stream", self.stream.synchronize());
            time
        };
        let found: Vec<f64> = (0..machine::choose(50, 5)).map(batch).collect();
        stats::median(&found)
    }

    fn host(&self) {
        hand::must("a first launch", self.kernels.nothing(self.stream));
        hand::must("the end of the stream", self.stream.synchronize());
        figure("launch", self.per_call(|_| self.kernels.nothing(self.stream)));
        figure("write", self.per_call(|index| self.stream.write(&self.counter, 0, index)));
        figure("record", self.per_call(|_| self.event.record(self.stream)));
        figure("query.ready", self.per_call(|_| self.event.query()));
        hand::must("a long kernel", self.kernels.spin(self.busy, 1, Duration::from_millis(20)));
        hand::must("an event", self.event.record(self.busy));
        figure("query.not", self.per_call(|_| self.event.query()));
        let load = |_| {
            // Acquire: makes the earlier writes of the device visible, as in the engine.
            std::hint::black_box(self.counter.word(0).load(std::sync::atomic::Ordering::Acquire));
            CUresult::CUDA_SUCCESS
        };
        figure("load", self.per_call(load));
        hand::must("the end of the stream", self.busy.synchronize());
    }

    /// Measures the time from one kernel that records the clock to the next.
    fn gap(&self, between: &dyn Fn(u64) -> CUresult) -> f64 {
        let round = |_| {
            // A long kernel comes first, so all others are launched before the first of them runs.
            hand::must("a long kernel", self.kernels.spin(self.stream, 1, Duration::from_millis(5)));
            for number in 0..=STAMPS {
                let at = self.stamps.device + 8 * number as u64;
                // SAFETY: each kernel has its own word, which is loaded only after all of them have completed.
                hand::must("stamp", unsafe { self.kernels.stamp(self.stream, at, Duration::ZERO) });
                hand::must("between", between(number as u64));
            }
            hand::must("the end of the launches", self.stream.synchronize());
            // Acquire: makes the earlier writes of the device visible, as in the engine.
            let at = |number| self.stamps.word(number).load(std::sync::atomic::Ordering::Acquire) as f64;
            (at(STAMPS) - at(0)) / STAMPS as f64
        };
        let found: Vec<f64> = (0..machine::choose(15, 2)).map(round).collect();
        stats::median(&found)
    }

    fn gaps(&self) {
        figure("gap.none", self.gap(&|_| CUresult::CUDA_SUCCESS));
        figure("gap.write", self.gap(&|index| self.stream.write(&self.counter, 0, index)));
        figure("gap.event", self.gap(&|_| self.event.record(self.stream)));
    }

    fn copies(&self) {
        let (memory, target) = (hand::memory(BYTES), hand::pinned(BYTES));
        let mut value = 0;
        let mut sample = |by_counter| {
            value += 1;
            let words = BYTES as u64 / 4;
            // SAFETY: the memory holds `words` words, and only this stream uses it.
            hand::must("fill", unsafe { self.kernels.fill(self.stream, memory.0, words, value) });
            // While long kernels run, the fill may have to wait for one of them.
            hand::must("the end of the stream", self.stream.synchronize());
            // SAFETY: both pieces of memory have this size, only this stream uses the device memory, and the host only
            // loads whole words, atomically.
            hand::must("copy", unsafe { self.stream.copy_out(memory.0, &target, BYTES) });
            if by_counter {
                hand::must("write", self.stream.write(&self.counter, 1, u64::from(value)));
            } else {
                hand::must("record", self.event.record(self.stream));
            }
            let both = u64::from(value) << 32 | u64::from(value);
            let end = target.spin(BYTES / 8 - 1, both);
            let seen = if by_counter { self.counter.spin(1, u64::from(value)) } else { self.event.spin() };
            ns(seen.duration_since(end))
        };
        let count = machine::choose(1_000, 30);
        for (means, by_counter) in [("write", true), ("event", false)] {
            figures(&format!("idle.{means}"), (0..count).map(|_| sample(by_counter)).collect());
            let (mut found, start) = (vec![], Instant::now());
            let limit = machine::choose(Duration::from_secs(3), Duration::from_millis(200));
            while start.elapsed() < limit {
                // Enough long kernels for several samples.
                for _ in 0..4 {
                    hand::must("a long kernel", self.kernels.spin(self.busy, self.blocks, LONG));
                }
                while self.busy.query() == CUresult::CUDA_ERROR_NOT_READY {
                    let time = sample(by_counter);
                    if self.busy.query() == CUresult::CUDA_ERROR_NOT_READY {
                        found.push(time);
                    }
                }
            }
            figures(&format!("busy.{means}"), found);
        }
    }
}
