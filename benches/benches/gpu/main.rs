//! The engine's overhead on a GPU: per operation, for a change of streams, and from the device back to the CPU; the
//! overlap of copies and kernels; how soon a lost device is reported.
//!
//! The simulated device is always measured. Its times are artificial, so the figures measure only the engine and the
//! simulated driver. With the feature `cuda`, a real GPU, if present, is measured in the same way, next to cudarc and a
//! program without an engine.

use std::{
    collections::BTreeMap,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use raddle::{
    Device, Engine, EngineKind, IdlePolicy, Property, Var,
    gpu::{DeviceVec, GpuDriver, GpuStream, PinnedVec, SimulatedGpu, simulated::Clock},
};
use raddle_benches::shapes::*;
use raddle_benches::{
    machine,
    report::{Cell, Report, Table, grouped, number, spread},
    rounds::{self, Row},
    state::{Samples, State, by_state},
    stats,
};

#[cfg(feature = "cuda")]
mod cuda;

const GPU: Device = Device::Gpu(0);

/// The number of threads that push or wait at the same time.
const THREADS: usize = 16;

/// The duration of kernels awaited by a thread.
const KERNEL: Duration = Duration::from_micros(20);

/// The duration of a chain's small kernels.
const SMALL: Duration = Duration::from_micros(5);

/// The time between a launch on the simulated device and the start of its kernel.
const LATENCY: Duration = Duration::from_micros(4);

/// The simulated device's copy rate in each direction, in bytes per second, when commands take time. The rate is low,
/// so that the CPU, which performs the copies, is not the bottleneck.
const BANDWIDTH: u64 = 3_000_000_000;

type DeviceWords = DeviceVec<u32>;

/// A function that launches a kernel of the given duration, or one that is as short as possible if the duration is
/// zero.
type Launch = Arc<dyn Fn(&mut GpuStream, &mut DeviceWords, Duration) + Send + Sync>;

/// The timing of the simulated device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Commands take no time.
    Instantly,
    /// Commands take their configured times.
    Timed,
}

/// A device to be measured.
struct Bed {
    /// The name of the report.
    key: &'static str,
    title: &'static str,
    /// The description of the device.
    note: String,
    driver: Box<dyn Fn(Pace) -> GpuDriver>,
    launch: Launch,
    /// The time between a launch and the start of its kernel, or zero if it is unknown.
    latency: Duration,
    /// The same measurements without an engine.
    peers: Peers,
    /// Loses a device for which threads are waiting, and returns the time until all of them have received the error.
    fault: Box<dyn Fn() -> f64>,
}

/// Measurements without an engine, by name. Each takes a number of kernels and returns ns per kernel.
#[derive(Default)]
struct Peers {
    same_stream: Vec<Peer>,
    cross_stream: Vec<Peer>,
    threads: Vec<Peer>,
    chain: Vec<Peer>,
    /// The time from a launch until its completion is known, less the kernel's time.
    end: Vec<Peer>,
}

type Peer = (&'static str, Box<dyn Fn(usize) -> f64>);

impl Bed {
    /// Returns an engine with default settings.
    fn usual(&self, pace: Pace) -> Engine {
        Engine::builder().kind(EngineKind::PerDevice).gpu((self.driver)(pace)).build().expect("an engine")
    }

    /// Returns an engine with one worker and one thread for the device, or a naive engine, which has no threads.
    fn small(&self, kind: EngineKind, idle: IdlePolicy) -> Engine {
        let gpu = (self.driver)(Pace::Timed);
        Engine::builder().kind(kind).workers(1).pin(false).idle(idle).gpu(gpu).build().expect("an engine")
    }
}

/// Pushes an operation that launches a kernel.
fn push(launch: &Launch, engine: &Engine, var: &Var<DeviceWords>, property: Property, time: Duration) {
    let launch = Arc::clone(launch);
    let op = engine.op("kernel").on(GPU).property(property);
    op.launch_any(var.write(), move |stream, words| launch(stream, words, time)).expect("push");
}

fn word(engine: &Engine) -> Var<DeviceWords> {
    engine.device_var(GPU, 1).expect("memory")
}

fn wait(engine: &Engine) {
    engine.wait_for_all().expect("nothing should fail");
}

/// Returns ns per item.
fn per(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e9 / count as f64
}

/// Measures the figures in turn for several rounds, discarding the first. Returns the figures by state.
fn in_turns(rounds: usize, figures: &[&dyn Fn() -> f64]) -> Vec<(State, Vec<Vec<f64>>)> {
    let mut rows: Vec<Row<'_>> = figures.iter().map(|figure| Row::new("", figure)).collect();
    by_state(&rounds::measure(&mut rows, rounds, |_| {}))
}

// ---------------------------------------------------------------------------------------------------- same stream ----

fn same_stream(bed: &Bed, report: &mut Report) {
    let count = machine::choose(20_000, 200);
    let engine = bed.usual(Pace::Instantly);
    let var = word(&engine);

    let whole = || {
        let start = Instant::now();
        (0..count).for_each(|_| push(&bed.launch, &engine, &var, Property::Normal, Duration::ZERO));
        wait(&engine);
        per(start.elapsed(), count)
    };
    let launch = Arc::clone(&bed.launch);
    let again = engine.op("again").on(GPU);
    let operator = again.launch_operator_any(var.write(), move |stream, words| launch(stream, words, Duration::ZERO));
    let operator = operator.expect("an operator");
    let prebuilt = || {
        let start = Instant::now();
        (0..count).for_each(|_| operator.push().expect("push"));
        wait(&engine);
        per(start.elapsed(), count)
    };
    // The lane's thread is blocked in an operation during the pushes; afterwards the pusher only waits.
    let apart = || {
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let hold = engine.op("hold").on(GPU).launch_any(var.write(), move |_, _| _ = gone.recv());
        hold.expect("push");
        let start = Instant::now();
        (0..count).for_each(|_| push(&bed.launch, &engine, &var, Property::Normal, Duration::ZERO));
        let pushed = start.elapsed();
        let start = Instant::now();
        drop(go);
        wait(&engine);
        (per(pushed, count), per(start.elapsed(), count))
    };
    let at_once = || {
        let launch = Arc::clone(&bed.launch);
        let start = Instant::now();
        let all = engine.op("all").on(GPU).submit_launch_any(var.write(), move |stream, words| {
            let start = Instant::now();
            (0..count).for_each(|_| launch(stream, words, Duration::ZERO));
            Ok::<_, raddle::error::BoxError>(start.elapsed())
        });
        let launched = all.expect("push").wait().expect("the launches should succeed");
        (per(launched, count), per(start.elapsed(), count))
    };
    let rounds = machine::rounds();
    let mut figures: Vec<&dyn Fn() -> f64> = vec![];
    let (push, lane) = (|| apart().0, || apart().1);
    let (calls, done) = (|| at_once().0, || at_once().1);
    figures.extend([&whole as &dyn Fn() -> f64, &prebuilt, &push, &lane, &calls, &done]);
    let peers: Vec<_> = bed.peers.same_stream.iter().map(|(_, peer)| move || peer(count)).collect();
    figures.extend(peers.iter().map(|peer| peer as &dyn Fn() -> f64));
    let found = in_turns(rounds, &figures);

    let note = format!(
        "{count} kernels that do next to nothing, one after the other on one variable: ns per kernel, median \
         (quartiles) of up to {rounds} rounds."
    );
    for (state, found) in found {
        let mut table =
            Table::of_state("same_stream", state, "Operations of one stream", &note, &["", "ns per kernel"]);
        let names = [
            "an operation for each, from the first push to the end of all",
            "a prebuilt operator, from the first push to the end of all",
            "the pushes alone, while the lane's thread is blocked",
            "the lane's thread alone, from the last push to the end of all",
            "all launched by one operation: only the calls",
            "all launched by one operation: until the end of all",
        ];
        let names = names.into_iter().chain(bed.peers.same_stream.iter().map(|peer| peer.0));
        for (name, figures) in names.zip(&found) {
            table.row(name, [spread(figures)]);
        }
        let cost = stats::median(&found[3]) - stats::median(&found[5]);
        table.row("**the engine's cost on the lane's thread**: the fourth row minus the sixth", [number(cost)]);
        report.add(&table);
    }
}

// --------------------------------------------------------------------------------------------------- cross stream ----

fn cross_stream(bed: &Bed, report: &mut Report) {
    let count = machine::choose(10_000, 100);
    let engine = bed.usual(Pace::Instantly);
    let var = word(&engine);
    let hops = |properties: [Property; 2]| {
        let (engine, var) = (&engine, &var);
        move || {
            let start = Instant::now();
            (0..count).for_each(|i| push(&bed.launch, engine, var, properties[i % 2], Duration::ZERO));
            wait(engine);
            per(start.elapsed(), count)
        }
    };
    let (stay, hop) = (hops([Property::Normal; 2]), hops([Property::Normal, Property::GpuPrioritized]));
    let rounds = machine::rounds();
    let mut figures: Vec<&dyn Fn() -> f64> = vec![&stay, &hop];
    let peers: Vec<_> = bed.peers.cross_stream.iter().map(|(_, peer)| move || peer(count)).collect();
    figures.extend(peers.iter().map(|peer| peer as &dyn Fn() -> f64));
    let found = in_turns(rounds, &figures);
    let note = format!(
        "{count} kernels as above, on one stream or alternating between two: ns per kernel, medians of up \
         to {rounds} rounds."
    );
    for (state, found) in found {
        let mut table = Table::of_state("cross_stream", state, "From stream to stream", &note, &["", "ns per kernel"]);
        let names = ["all on one stream", "alternately on two streams"].into_iter();
        for (name, figures) in names.chain(bed.peers.cross_stream.iter().map(|peer| peer.0)).zip(&found) {
            table.row(name, [spread(figures)]);
        }
        table.row("**a change of streams**", [number(stats::median(&found[1]) - stats::median(&found[0]))]);
        report.add(&table);
    }
}

// ------------------------------------------------------------------------------------------- from the device back ----

/// Measures the times from a kernel's launch to the start of a dependent CPU operation, less the kernel's time and, if
/// known, the launch's, in ns.
fn ends(bed: &Bed, engine: &Engine, count: usize) -> Vec<f64> {
    let var = word(engine);
    let sample = |_| {
        let launch = Arc::clone(&bed.launch);
        let kernel = engine.op("kernel").on(GPU).submit_launch_any(var.write(), move |stream, words| {
            let before = Instant::now();
            launch(stream, words, KERNEL);
            Ok::<_, raddle::error::BoxError>(before)
        });
        let started = engine.op("next").submit(var.read(), |_| Instant::now()).expect("push");
        let started = started.wait().expect("the operation should run");
        let launched = kernel.expect("push").wait().expect("the operation should run");
        started.duration_since(launched).as_nanos() as f64 - (KERNEL + bed.latency).as_nanos() as f64
    };
    // The first samples are discarded.
    (0..count + count / 10).map(sample).skip(count / 10).collect()
}

fn from_device(bed: &Bed, report: &mut Report) {
    let count = machine::choose(3_000, 30);
    let note = format!(
        "A kernel of {KERNEL:?} and a CPU operation that depends on it, on an otherwise idle engine with one worker \
         and one thread for the device. From the call that launches the kernel to the start of the operation, less \
         the kernel's time{}, in ns, of {count} samples. The time of the launch itself is included unless it is known.",
        if bed.latency.is_zero() { "" } else { " and the launch's" },
    );
    // Samples are taken in slices, of which only those across a flip are repeated.
    let slices = machine::choose(10, 1);
    let mut names = vec![];
    let mut samples: Vec<Samples> = vec![];
    let mut row = |name: &'static str, slice: &dyn Fn() -> Vec<f64>| {
        let mut row = Samples::new();
        for (state, figures) in (0..slices).filter_map(|_| machine::timed(slice)) {
            figures.into_iter().for_each(|figure| row.push(state, figure));
        }
        names.push(name);
        samples.push(row);
    };
    for (name, idle) in [
        ("both threads spin", IdlePolicy::Spin),
        ("both spin for 50 µs, then sleep", IdlePolicy::default()),
        ("both sleep immediately", IdlePolicy::Park),
    ] {
        let engine = bed.small(EngineKind::Pooled, idle);
        row(name, &|| ends(bed, &engine, count / slices));
    }
    let naive = bed.small(EngineKind::Naive, IdlePolicy::default());
    row("without threads: `Naive`, which spins on the device", &|| ends(bed, &naive, count / slices));
    for (name, peer) in &bed.peers.end {
        row(name, &|| (0..count / slices).map(|_| peer(1)).collect());
    }
    for (state, found) in by_state(&samples) {
        let columns = ["", "p50", "p99", "p99.9"];
        let title = "From the end of a kernel to the CPU";
        let mut table = Table::of_state("from_device", state, title, &note, &columns);
        for (name, figures) in names.iter().zip(&found) {
            table.row(*name, [0.5, 0.99, 0.999].map(|q| number(stats::quantile(figures, q))));
        }
        report.add(&table);
    }
}

// --------------------------------------------------------------------------------------------------- many pushers ----

fn pushers(bed: &Bed, report: &mut Report) {
    let count = machine::choose(64_000, 640);
    let engine = bed.usual(Pace::Instantly);
    let vars: Vec<_> = (0..THREADS).map(|_| word(&engine)).collect();
    let rate = |threads: usize| {
        let (engine, vars, launch) = (&engine, &vars, &bed.launch);
        move || {
            let barrier = Barrier::new(threads + 1);
            let start = thread::scope(|scope| {
                for var in &vars[..threads] {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        for _ in 0..count / threads {
                            push(launch, engine, var, Property::Normal, Duration::ZERO);
                        }
                    });
                }
                barrier.wait();
                Instant::now()
            });
            wait(engine);
            count as f64 / start.elapsed().as_secs_f64()
        }
    };
    let (one, many) = (rate(1), rate(THREADS));
    let rounds = machine::rounds();
    let mut figures: Vec<&dyn Fn() -> f64> = vec![&one, &many];
    let peers: Vec<_> = bed.peers.threads.iter().map(|(_, peer)| move || 1e9 / peer(count)).collect();
    figures.extend(peers.iter().map(|peer| peer as &dyn Fn() -> f64));
    let found = in_turns(rounds, &figures);
    let note =
        format!("{count} kernels that do next to nothing, until all are done: medians of up to {rounds} rounds.");
    for (state, found) in found {
        let mut table =
            Table::of_state("pushers", state, "Launches from many threads", &note, &["", "launches per second"]);
        let names = ["raddle, 1 pusher", "raddle, 16 pushers, a variable each"].into_iter();
        for (name, figures) in names.chain(bed.peers.threads.iter().map(|peer| peer.0)).zip(&found) {
            table.row(name, [spread(figures)]);
        }
        report.add(&table);
    }
}

// -------------------------------------------------------------------------------------------------------- overlap ----

/// The buffers in a pipeline of copies and kernels.
struct Buffers {
    host: Var<PinnedVec<u32>>,
    device: Var<DeviceWords>,
    /// Used in turn: a copy to host memory waits until the host knows that the last copy to the same buffer is
    /// complete, a wait that must not be measured.
    back: [Var<PinnedVec<u32>>; 8],
}

fn overlap(bed: &Bed, report: &mut Report) {
    let rounds = machine::rounds();
    let note = format!(
        "Chunks are copied in, processed by two kernels, and copied out; four buffers on the device. Each part alone, \
         then all parts together; ms, medians of up to {rounds} rounds. *overlap*: the longest part's time in % of the \
         time of all parts together."
    );
    let columns = ["chunk", "copies in", "kernels", "copies out", "all", "the parts' sum", "overlap"];
    let mut tables = BTreeMap::new();
    for (name, bytes) in [("256 KiB", 256 << 10), ("1 MiB", 1 << 20)] {
        let chunks = machine::choose((256 << 20) / bytes, 6);
        let engine = bed.usual(Pace::Timed);
        let buffer = |_| Buffers {
            host: engine.pinned_var(GPU, bytes / 4).expect("memory"),
            device: engine.device_var(GPU, bytes / 4).expect("memory"),
            back: std::array::from_fn(|_| engine.pinned_var(GPU, bytes / 4).expect("memory")),
        };
        let ring: Vec<Buffers> = (0..4).map(buffer).collect();
        let copy_in = |at: &Buffers, _| engine.op("in").on(GPU).copy_to_device(&at.host, &at.device).expect("push");
        let copy_out = |at: &Buffers, round: usize| {
            let back = &at.back[round % at.back.len()];
            engine.op("out").on(GPU).copy_from_device(&at.device, back).expect("push");
        };
        let timed = |push: &dyn Fn(&Buffers, usize)| {
            let start = Instant::now();
            (0..chunks).for_each(|chunk| push(&ring[chunk % ring.len()], chunk / ring.len()));
            wait(&engine);
            start.elapsed()
        };
        let milliseconds = |push: &dyn Fn(&Buffers, usize)| timed(push).as_secs_f64() * 1e3;
        // A chunk's two kernels together take as long as copying the chunk in.
        _ = timed(&copy_in);
        let kernel = timed(&copy_in) / (2 * chunks as u32);
        let kernels =
            |at: &Buffers, _| (0..2).for_each(|_| push(&bed.launch, &engine, &at.device, Property::Normal, kernel));
        let all = |at: &Buffers, round| {
            copy_in(at, round);
            kernels(at, round);
            copy_out(at, round);
        };
        let parts: [&dyn Fn() -> f64; 4] =
            [&|| milliseconds(&copy_in), &|| milliseconds(&kernels), &|| milliseconds(&copy_out), &|| {
                milliseconds(&all)
            }];
        for (state, found) in in_turns(rounds, &parts) {
            let medians: Vec<f64> = found.iter().map(|figures| stats::median(figures)).collect();
            let longest = medians[..3].iter().fold(0.0, |a: f64, &b| a.max(b));
            let mut cells: Vec<Cell> = found.iter().map(|figures| spread(figures)).collect();
            cells.push(number(medians[..3].iter().sum()));
            cells.push(percent(longest / medians[3]));
            let table = tables.entry(state).or_insert_with(|| {
                Table::of_state("overlap", state, "Copies and kernels side by side", &note, &columns)
            });
            table.row(name, cells);
        }
    }
    tables.values().for_each(|table| report.add(table));
}

fn percent(part: f64) -> Cell {
    // Computed here, so that the CSV file, too, contains a percentage.
    number((part * 1000.0).round() / 10.0)
}

// ---------------------------------------------------------------------------------------------------------- fault ----

/// Starts threads that wait for device variables, and calls `lose`, which returns the time of the loss. Returns the
/// time from the loss until the last thread has received the error, in ns.
fn until_reported(engine: &Engine, vars: &[Var<DeviceWords>], lose: impl FnOnce() -> Instant) -> f64 {
    let barrier = Barrier::new(vars.len() + 1);
    thread::scope(|scope| {
        let mut waiters = vec![];
        for var in vars {
            let barrier = &barrier;
            waiters.push(scope.spawn(move || {
                barrier.wait();
                engine.wait_for_var(var).expect_err("the device should be lost");
                Instant::now()
            }));
        }
        barrier.wait();
        // By now most of the threads are asleep.
        machine::settle();
        let lost = lose();
        let last = waiters
            .into_iter()
            .map(|waiter| waiter.join().expect("the waiter should not panic"))
            .max()
            .expect("there should be waiters");
        last.duration_since(lost).as_nanos() as f64
    })
}

fn fault(bed: &Bed, report: &mut Report) {
    let rounds = machine::rounds();
    let mut samples = Samples::new();
    for (state, ns) in (0..rounds).filter_map(|_| machine::timed(&bed.fault)) {
        samples.push(state, ns / 1000.0);
    }
    let note = format!(
        "{THREADS} threads wait for variables of a device that is lost; the time until the last of them receives \
         the error, in µs, over up to {rounds} rounds."
    );
    for (state, found) in by_state(&[samples]) {
        let title = "From a loss until all waiting threads know";
        let mut table = Table::of_state("fault", state, title, &note, &["", "p50", "longest"]);
        table.row("raddle", [0.5, 1.0].map(|q| number(stats::quantile(&found[0], q))));
        report.add(&table);
    }
}

// ---------------------------------------------------------------------------------------------------------- chain ----

fn chain(bed: &Bed, report: &mut Report) {
    const COUNT: usize = 1_000;
    let engine = bed.usual(Pace::Timed);
    let var = word(&engine);
    let each = || {
        let start = Instant::now();
        (0..COUNT).for_each(|_| push(&bed.launch, &engine, &var, Property::Normal, SMALL));
        wait(&engine);
        per(start.elapsed(), 1000)
    };
    let at_once = || {
        let launch = Arc::clone(&bed.launch);
        let start = Instant::now();
        let all = engine.op("all").on(GPU).launch_any(var.write(), move |stream, words| {
            (0..COUNT).for_each(|_| launch(stream, words, SMALL));
        });
        all.expect("push");
        wait(&engine);
        per(start.elapsed(), 1000)
    };
    let rounds = machine::rounds();
    let mut figures: Vec<&dyn Fn() -> f64> = vec![&each, &at_once];
    let peers: Vec<_> = bed.peers.chain.iter().map(|(_, peer)| move || peer(COUNT)).collect();
    figures.extend(peers.iter().map(|peer| peer as &dyn Fn() -> f64));
    let found = in_turns(rounds, &figures);
    let note = format!(
        "{COUNT} kernels of {SMALL:?} on one variable, until the host knows that all are done: µs in total, \
         medians of up to {rounds} rounds. *ratio*: the time with an operation for each kernel, divided by this row's."
    );
    for (state, found) in found {
        let mut table = Table::of_state("chain", state, "A chain of small kernels", &note, &["", "µs", "ratio"]);
        let names =
            ["an operation for each kernel", "by hand, on one stream: all launched by one operation"].into_iter();
        for (name, figures) in names.chain(bed.peers.chain.iter().map(|peer| peer.0)).zip(&found) {
            // For 1000 kernels, ns per kernel equals µs in total.
            let by = stats::median(&found[0]) / stats::median(figures);
            table.row(name, [spread(figures), grouped(by, 3).into()]);
        }
        report.add(&table);
    }
}

// ----------------------------------------------------------------------------------------------- simulated device ----

fn simulated() -> Bed {
    let driver = |pace| {
        let gpu = SimulatedGpu::builder();
        match pace {
            Pace::Instantly => {
                gpu.clock(Clock::Instantly).kernel_time(Duration::ZERO).launch_latency(Duration::ZERO).build().into()
            }
            Pace::Timed => {
                gpu.launch_latency(LATENCY).copy_in_bandwidth(BANDWIDTH).copy_out_bandwidth(BANDWIDTH).build().into()
            }
        }
    };
    let launch = |stream: &mut GpuStream, words: &mut DeviceWords, time| {
        let mut gpu = stream.simulated().expect("a stream of the simulated device");
        gpu.launch(time, words, |words| words[0] = words[0].wrapping_add(1)).expect("launch");
    };
    let lose = || {
        let gpu = SimulatedGpu::new();
        let engine = Engine::builder().gpu(gpu.clone()).build().expect("an engine");
        gpu.stall();
        let vars: Vec<_> = (0..THREADS).map(|_| word(&engine)).collect();
        for var in &vars {
            let op = engine.op("kernel").on(GPU).launch_any(var.write(), |stream, words: &mut DeviceWords| {
                let mut gpu = stream.simulated().expect("a stream of the simulated device");
                gpu.launch(Duration::ZERO, words, |_| {})
            });
            op.expect("push");
        }
        until_reported(&engine, &vars, || {
            let now = Instant::now();
            gpu.lose();
            now
        })
    };
    let mut note = "**Simulated: no GPU was used.** The device's times are invented".to_owned();
    note += &format!(
        ": launches take {LATENCY:?}, copies run at {} GB/s, and empty kernels take no time. The CPU executes the \
         device's commands, and their cost is part of all figures.",
        BANDWIDTH / 1_000_000_000,
    );
    Bed {
        key: "gpu-simulated",
        title: "GPU, simulated",
        note,
        driver: Box::new(driver),
        launch: Arc::new(launch),
        latency: LATENCY,
        peers: Peers::default(),
        fault: Box::new(lose),
    }
}

// ----------------------------------------------------------------------------------------------------------- main ----

#[cfg(feature = "cuda")]
fn cuda_bed() -> Result<Bed, String> {
    cuda::bed()
}

#[cfg(not(feature = "cuda"))]
fn cuda_bed() -> Result<Bed, String> {
    Err("the benchmark was built without the feature `cuda`".into())
}

fn measure(bed: &Bed) {
    type Part = fn(&Bed, &mut Report);
    let parts: [(&str, Part); 7] = [
        ("same stream", same_stream),
        ("cross stream", cross_stream),
        ("from device", from_device),
        ("pushers", pushers),
        ("overlap", overlap),
        ("fault", fault),
        ("chain", chain),
    ];
    let mut report = Report::new(bed.key, bed.title, &bed.note);
    for (name, part) in parts {
        if machine::wanted(name) {
            part(bed, &mut report);
        }
    }
    report.save();
}

fn main() {
    #[cfg(feature = "cuda")]
    if cuda::is_to_be_lost() {
        return cuda::lose_inside();
    }
    measure(&simulated());
    match cuda_bed() {
        Ok(bed) => measure(&bed),
        Err(reason) => println!("\nnothing was measured on a real GPU: {reason}"),
    }
}
