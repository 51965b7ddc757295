//! How do many pending kernels affect other launches?

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use raddle::{Engine, IdlePolicy, Property, Var, gpu::GpuStream};
use raddle_benches::shapes::*;
use raddle_benches::{
    machine,
    report::{Table, number},
};

use super::{
    Experiment, GPU, Outcome,
    child::{self, figure, figures, leaving},
    hand::{self, lane, ns},
    whole,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "depth",
    about: "5,000 kernels of 50 µs on the normal lane: how long urgent operations and copies take meanwhile; by hand: \
            at which launch the driver blocks, and whether it then also blocks the launches of other threads",
    run,
    part,
};

/// The duration of each of the many kernels.
const KERNEL: Duration = Duration::from_micros(50);

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The number of consecutive launches whose total time shows whether the stream is full.
const RUN: u32 = 128;

fn run() -> Outcome {
    let engine = child::run("depth", &["engine"], &[], 15)?.well()?;
    let mut table = Table::new("depth", "", "", &["through the engine, µs", "p50", "p99", "longest", "of"]);
    let row = |table: &mut Table, part: &child::Part, name: &'static str, key: &str| {
        let found = ["p50", "p99", "max"].map(|quantile| part.get(&format!("{key}.{quantile}")) / 1e3);
        let cells = found.map(number).into_iter().chain([whole(part.get(&format!("{key}.count")))]);
        table.row(name, cells);
        found
    };
    let idle = row(&mut table, &engine, "an urgent operation, nothing else", "idle.urgent");
    let idle_copy = row(&mut table, &engine, "a copy, nothing else", "idle.copy");
    let urgent = row(&mut table, &engine, "an urgent operation, with many pending", "busy.urgent");
    let copy = row(&mut table, &engine, "a copy, with many pending", "busy.copy");
    println!("{}", table.markdown());
    let hand = child::run("depth", &["hand"], &[], 15)?.well()?;
    let mut table = Table::new("launches", "", "", &["by hand, launches, µs", "p50", "p99", "longest", "of"]);
    row(&mut table, &hand, "of the many, before one blocks", "free");
    let full = row(&mut table, &hand, "of the many, from then on", "full");
    let before = row(&mut table, &hand, "of another thread, before", "other.free");
    let during = row(&mut table, &hand, "of another thread, from then on", "other.full");
    println!("{}", table.markdown());
    let blocks = hand.get("blocks");
    engine.complete()?;
    hand.complete()?;

    // An operation counts as held up if it waits for more than four kernels. Behind a full stream it would wait for
    // hundreds.
    let held = |idle: [f64; 3], busy: [f64; 3], quantile: usize| busy[quantile] - idle[quantile] > 4.0 * micros(KERNEL);
    let behind = if held(idle, urgent, 0) || held(idle_copy, copy, 0) {
        "THE QUEUE HOLDS THEM UP: fewer operations must be in flight"
    } else if held(idle, urgent, 1) || held(idle_copy, copy, 1) {
        "the queue of the normal lane does not hold them up as a rule, but something does at times"
    } else {
        "the queue of the normal lane does not hold them up"
    };
    let blocking = if blocks < 0.0 {
        "none of the launches blocked".to_owned()
    } else {
        let others = if hand.get("other.full.count") == 0.0 {
            "other threads made no launch in that time: THEY ARE BLOCKED".to_owned()
        } else if during[0] > 4.0 * before[0] + 2.0 || during[1] > micros(KERNEL) + 4.0 * before[1] {
            format!(
                "other threads' launches SUFFER (p50 {:.1} to {:.1} µs, p99 {:.1} to {:.1})",
                before[0], during[0], before[1], during[1]
            )
        } else {
            format!("other threads' launches do not suffer (p50 {:.1} to {:.1} µs)", before[0], during[0])
        };
        format!(
            "launches block from number {blocks} on ({:.1} µs each), so the limit on operations in flight must be well \
             below that; {others}",
            full[0]
        )
    };
    Ok(format!(
        "with many pending, an urgent operation takes {:.0} µs (p99 {:.0}; {:.0} with nothing else), a copy {:.0} \
         (p99 {:.0}): {behind}; {blocking}",
        urgent[0], urgent[1], idle[0], copy[0], copy[1],
    ))
}

fn part(arguments: &[&str]) {
    match arguments {
        ["engine"] => engine(),
        _ => by_hand(),
    }
    leaving();
}

/// Returns the number of kernels pushed together.
fn many() -> usize {
    machine::choose(5_000, 500)
}

/// An engine on which operations are timed individually.
struct Probe {
    engine: Engine,
    kernels: hand::Kernels,
    word: Var<raddle::gpu::DeviceVec<u32>>,
    host: Var<raddle::gpu::PinnedVec<u32>>,
    target: Var<raddle::gpu::DeviceVec<u32>>,
}

impl Probe {
    /// Measures the time from the push of an urgent operation until its completion is known.
    fn urgent(&self) -> f64 {
        let (kernels, start) = (self.kernels, Instant::now());
        let op = self.engine.op("urgent").on(GPU).property(Property::GpuPrioritized);
        let launched = op.submit_launch_any(self.word.write(), move |stream, _| kernels.nothing(lane(stream)).result());
        launched.expect("a push").wait().expect("the operation should succeed");
        ns(start.elapsed())
    }

    /// Measures the time from the push of a copy until its completion is known.
    fn copy(&self) -> f64 {
        let start = Instant::now();
        self.engine.op("copy").on(GPU).copy_to_device(&self.host, &self.target).expect("a push");
        self.engine.wait_for_var(&self.target).expect("the copy should succeed");
        ns(start.elapsed())
    }
}

fn engine() {
    let gpu = hand::open();
    let kernels = hand::kernels();
    let engine = hand::engine(&gpu, IdlePolicy::default());
    let words = || engine.device_var::<u32>(GPU, 1024).expect("memory");
    let (word, target, many_of) = (words(), words(), words());
    let host = engine.pinned_var::<u32>(GPU, 1024).expect("memory");
    let probe = Probe { engine, kernels, word, host, target };
    let warm = machine::choose(500, 30);
    // The first operations are slower, so they are not measured.
    for _ in 0..5 {
        probe.urgent();
        probe.copy();
    }
    figures("idle.urgent", (0..warm).map(|_| probe.urgent()).collect());
    figures("idle.copy", (0..warm).map(|_| probe.copy()).collect());
    let (mut urgent, mut copies) = (vec![], vec![]);
    for _ in 0..machine::choose(8, 1) {
        let is_done = Arc::new(AtomicBool::new(false));
        for _ in 0..many() {
            let step = move |stream: &mut GpuStream, _: &mut _| kernels.spin(lane(stream), 1, KERNEL).result();
            probe.engine.op("many").on(GPU).launch_any(many_of.write(), step).expect("a push");
        }
        let behind = Arc::clone(&is_done);
        // Relaxed, here and below: the flag publishes no other data.
        probe.engine.op("done").push(many_of.read(), move |_| behind.store(true, Relaxed)).expect("a push");
        while !is_done.load(Relaxed) {
            urgent.push(probe.urgent());
            copies.push(probe.copy());
        }
    }
    probe.engine.wait_for_all().expect("no operation should fail");
    figures("busy.urgent", urgent);
    figures("busy.copy", copies);
}

/// The start and the duration of a launch.
type Launch = (Instant, Duration);

fn timed(launch: impl FnOnce() -> raddle::gpu::cudarc::driver::sys::CUresult) -> Launch {
    let start = Instant::now();
    hand::must("launch", launch());
    (start, start.elapsed())
}

fn by_hand() {
    let gpu = hand::open();
    let kernels = hand::kernels();
    let (stream, other) = (hand::stream(), hand::stream());
    for stream in [stream, other] {
        hand::must("a first launch", kernels.nothing(stream));
        hand::must("the end of the stream", stream.synchronize());
    }
    let is_over = AtomicBool::new(false);
    let (launches, others) = thread::scope(|scope| {
        let beside = scope.spawn(|| {
            hand::bind(&gpu);
            let mut found: Vec<Launch> = vec![];
            // Relaxed, here and below: the flag publishes no other data.
            while !is_over.load(Relaxed) {
                found.extend((0..64).map(|_| timed(|| kernels.nothing(other))));
                // Keeps the queue of `other` from filling up, which would distort the times.
                hand::must("the end of the stream", other.synchronize());
            }
            found
        });
        // During this sleep, the other thread launches while `stream` is idle.
        thread::sleep(Duration::from_millis(20));
        let launches: Vec<Launch> =
            (0..machine::choose(5_000, 1_500)).map(|_| timed(|| kernels.spin(stream, 1, KERNEL))).collect();
        is_over.store(true, Relaxed);
        (launches, beside.join().expect("the thread should not panic"))
    });
    hand::must("the end of all launches", stream.synchronize());
    // The driver may make room for one launch at a time or for many, so a few launches may account for all of the time.
    let is_slow = |launches: &[Launch]| {
        let all: Duration = launches.iter().map(|launch| launch.1).sum();
        launches[0].1 > KERNEL / 4 && all / RUN > KERNEL / 4
    };
    let blocks = launches.windows(RUN as usize).position(is_slow);
    figure("blocks", blocks.map_or(-1.0, |index| index as f64));
    let (first, last) = (launches[0].0, launches[launches.len() - 1].0);
    let full = blocks.map_or(last, |index| launches[index].0);
    let taken = |launches: &[Launch], from: Instant, to: Instant| {
        launches.iter().filter(|launch| (from..to).contains(&launch.0)).map(|launch| ns(launch.1)).collect()
    };
    figures("free", taken(&launches, first, full));
    figures("full", taken(&launches, full, last));
    figures("other.free", taken(&others, others[0].0, full));
    figures("other.full", taken(&others, full, last));
}
