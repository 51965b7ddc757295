//! The time that an operation waits before it starts.
//!
//! The loop is open: pushes are due at times fixed in advance, and each latency is counted from the time at which its
//! push was due, even if the pushing thread was late. So a stall shows in every operation that it delays. The pushing
//! thread is pinned to the last core and spins; the workers have the other cores, or share the last one if there is
//! only one.
//!
//! The same loop without an engine measures the machine's own stalls, and the futex call alone measures the wake-up
//! of a thread; no engine can be faster than these floors.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use raddle::{Engine, EngineKind, IdlePolicy, OpContext, Property, Token};
use raddle_benches::shapes::*;
use raddle_benches::{
    kernel::{Kernel, compute, serial_ns},
    machine,
    report::{Cell, Report, Table, grouped, number},
    stats::median,
    svg::{Axis, Scale, Series, lines},
};

const COLUMNS: [&str; 8] = ["what", "per second", "samples", "p50", "p90", "p99", "p99.9", "largest"];
/// The smallest number of samples for which the 99.9th percentile is reported.
const ENOUGH: u64 = 10_000;

/// One histogram per round, in ns.
type Rounds = Vec<Histogram<u64>>;

fn histogram(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that fit");
    for value in values {
        histogram.saturating_record(value);
    }
    histogram
}

fn percentile(rounds: &Rounds, quantile: f64) -> f64 {
    let rounds = rounds.iter().filter(|round| !round.is_empty());
    let figures: Vec<f64> = rounds.map(|round| round.value_at_quantile(quantile) as f64).collect();
    median(&figures)
}

/// Returns the median over the rounds for each percentile, and the largest value of all.
fn cells(rounds: &Rounds, rate: Option<u64>) -> Vec<Cell> {
    let samples: u64 = rounds.iter().map(Histogram::len).sum();
    let largest =
        rounds.iter().filter(|round| !round.is_empty()).map(|round| round.max() as f64).fold(f64::NAN, f64::max);
    let tail = if samples < ENOUGH { f64::NAN } else { percentile(rounds, 0.999) };
    let mut cells =
        vec![rate.map_or("".into(), |rate| grouped(rate as f64, 0).into()), grouped(samples as f64, 0).into()];
    cells.extend(
        [percentile(rounds, 0.5), percentile(rounds, 0.9), percentile(rounds, 0.99), tail, largest].map(number),
    );
    cells
}

/// A table whose rows are filled round by round.
struct Rows {
    names: Vec<(String, Option<u64>)>,
    rounds: Vec<Rounds>,
}

impl Rows {
    fn new(names: impl IntoIterator<Item = (String, Option<u64>)>) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        Self { rounds: vec![vec![]; names.len()], names }
    }

    fn table(&self, key: &'static str, title: &str, note: &str) -> Table {
        let mut table = Table::new(key, title, note, &COLUMNS);
        for ((name, rate), rounds) in self.names.iter().zip(&self.rounds) {
            table.row(name.as_str(), cells(rounds, *rate));
        }
        table
    }

    fn curves(&self) -> Vec<Series> {
        let curve = |((name, rate), rounds): (&(String, Option<u64>), &Rounds)| {
            let points = QUANTILES.iter().map(|&(q, _)| (1.0 / (1.0 - q), percentile(rounds, q))).collect();
            (rate.map_or(name.clone(), |rate| format!("{name}, {}/s", grouped(rate as f64, 0))), points)
        };
        self.names.iter().zip(&self.rounds).map(curve).collect()
    }
}

const QUANTILES: [(f64, &str); 5] = [(0.0, "least"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %")];

/// The schedule of the pushes.
#[derive(Clone, Copy)]
enum Arrivals {
    /// At equal intervals.
    Even,
    /// At random intervals, independent of each other (a Poisson process).
    Random,
}

/// Returns the times at which pushes are due, in ns from the beginning.
fn schedule(rate: u64, duration: Duration, arrivals: Arrivals) -> Vec<u64> {
    let count = (rate as f64 * duration.as_secs_f64()).max(10.0) as usize;
    let period = 1e9 / rate as f64;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            at += match arrivals {
                Arrivals::Even => period,
                Arrivals::Random => {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    -period * ((state >> 11) as f64 / (1u64 << 53) as f64).max(1e-12).ln()
                }
            };
            at as u64
        })
        .collect()
}

/// Calls `push` with the number of each push when it is due, or as soon as possible afterwards. Time is counted from
/// `start`.
fn open_loop(start: Instant, due: &[u64], mut push: impl FnMut(usize)) {
    for (i, &due) in due.iter().enumerate() {
        while (start.elapsed().as_nanos() as u64) < due {
            std::hint::spin_loop();
        }
        push(i);
    }
}

/// The latencies that the operations record: for each operation its latency plus one, or zero until it has started.
#[derive(Clone, Copy)]
struct Notes {
    start: Instant,
    slots: &'static [AtomicU64],
}

impl Notes {
    /// Creates the slots. They are never freed, so that operations can keep references to them; a process creates slots
    /// only about a hundred times.
    fn new(count: usize) -> Self {
        let start = Instant::now() + Duration::from_millis(2);
        Self { start, slots: Box::leak((0..count).map(|_| AtomicU64::new(0)).collect()) }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    #[inline]
    fn note(&self, i: usize, since: u64) {
        // Relaxed: the slots are read after a wait for all operations.
        self.slots[i].store(self.now().saturating_sub(since) + 1, Ordering::Relaxed);
    }

    fn histogram(&self) -> Histogram<u64> {
        // Relaxed: the slots are read after a wait for all operations.
        histogram(self.slots.iter().filter_map(|slot| slot.load(Ordering::Relaxed).checked_sub(1)))
    }
}

/// A kind of operation: its priority and its property.
#[derive(Clone, Copy)]
struct Kind {
    priority: i32,
    property: Property,
}

const PLAIN: Kind = Kind { priority: 0, property: Property::Normal };

/// Measures the latencies from the due time to the start of operations that then run `iterations` of the compute-bound
/// kernel. The operations mutate 64 variables in turn, one variable each.
fn push_to_start(engine: &Engine, due: &[u64], kind: Kind, iterations: u32) -> Histogram<u64> {
    let notes = Notes::new(due.len());
    let variables: Vec<Token> = (0..64).map(|_| engine.token()).collect();
    open_loop(notes.start, due, |i| {
        let since = due[i];
        let f = move |_: &OpContext<'_>| {
            notes.note(i, since);
            compute(iterations);
        };
        let op = engine.op("").priority(kind.priority).property(kind.property).writes([&variables[i % 64]]);
        op.push_sync(f).expect("push");
    });
    engine.wait_for_all().expect("wait");
    notes.histogram()
}

// ----------------------------------------------------------------------------------------------------- the floors ----

/// Runs the same loop without an engine, to measure how late this thread itself is.
fn hiccups(due: &[u64]) -> Histogram<u64> {
    let start = Instant::now() + Duration::from_millis(2);
    let mut late = Vec::with_capacity(due.len());
    open_loop(start, due, |i| late.push((start.elapsed().as_nanos() as u64).saturating_sub(due[i])));
    histogram(late)
}

/// A word on which a thread sleeps, using only the futex system call.
#[derive(Default)]
struct Futex(AtomicU32);

impl Futex {
    fn call(&self, operation: i32, value: u32) {
        // SAFETY: the address points to a live, aligned word, which the call only reads; there is no timeout.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, value, std::ptr::null::<()>()) };
    }

    fn wait_while(&self, value: u32) {
        // Acquire: pairs with the store in `wake`.
        while self.0.load(Ordering::Acquire) == value {
            self.call(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value);
        }
    }

    fn wake(&self, value: u32) {
        // Release: publishes the writes of the waker.
        self.0.store(value, Ordering::Release);
        self.call(libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

/// Measures the latencies of waking a thread that sleeps on another core.
fn futex_wake(due: &[u64], sleeper: isize) -> Histogram<u64> {
    let notes = Notes::new(due.len());
    let futex = Futex::default();
    std::thread::scope(|scope| {
        let (futex, count) = (&futex, due.len() as u32);
        scope.spawn(move || {
            machine::pinned(sleeper, || {
                let mut seen = 0;
                while seen < count {
                    futex.wait_while(seen);
                    let now = notes.now();
                    // Acquire: pairs with the store in `wake`. Several wake-ups may have been due while this thread was
                    // late.
                    let until = futex.0.load(Ordering::Acquire);
                    for (slot, due) in notes.slots.iter().zip(due).take(until as usize).skip(seen as usize) {
                        // Relaxed: the slots are read after this thread has ended.
                        slot.store(now.saturating_sub(*due) + 1, Ordering::Relaxed);
                    }
                    seen = until;
                }
            });
        });
        open_loop(notes.start, due, |i| futex.wake(i as u32 + 1));
    });
    notes.histogram()
}

// ----------------------------------------------------------------------------------------------------- successors ----

/// Pushes an operation that mutates `variable` and blocks until the returned sender is dropped, so that its successors
/// can be pushed before any of them starts.
fn gate(engine: &Engine, variable: &Token) -> mpsc::Sender<()> {
    let (open, opened) = mpsc::channel::<()>();
    let wait = move |_: &OpContext<'_>| {
        // Ends when the sender is dropped.
        _ = opened.recv();
    };
    engine.push_sync(wait, [], [variable]).expect("push");
    open
}

/// Measures the time from the end of an operation to the start of its successor in a chain, for each pair that ran on
/// the same worker.
fn chain(engine: &Engine, count: usize) -> Histogram<u64> {
    let notes = Notes::new(count);
    let ended: &'static (AtomicU64, AtomicU64) = Box::leak(Box::default());
    let variable = engine.token();
    let open = gate(engine, &variable);
    for i in 0..count {
        let f = move |cx: &OpContext<'_>| {
            let worker = cx.worker().unwrap_or(usize::MAX) as u64;
            // Relaxed, for all of these accesses: the engine orders the operations of the chain.
            let (since, by) = (ended.0.load(Ordering::Relaxed), ended.1.load(Ordering::Relaxed));
            if i > 0 && by == worker {
                notes.note(i, since);
            }
            ended.1.store(worker, Ordering::Relaxed); // Relaxed: the engine orders these accesses.
            ended.0.store(notes.now(), Ordering::Relaxed); // Relaxed: the engine orders these accesses.
        };
        engine.push_sync(f, [], [&variable]).expect("push");
    }
    // Times are counted from `start`, so wait for it.
    std::thread::sleep(notes.start.saturating_duration_since(Instant::now()));
    drop(open);
    engine.wait_for_all().expect("wait");
    notes.histogram()
}

/// Measures the time from the end of an operation to the start of each successor that another worker took. Each
/// operation has two successors, which compute for a while, so that one worker cannot run both.
fn fork(engine: &Engine, count: usize, iterations: u32) -> Histogram<u64> {
    let notes = Notes::new(count);
    let ended: &'static (AtomicU64, AtomicU64) = Box::leak(Box::default());
    let variable = engine.token();
    let open = gate(engine, &variable);
    for i in 0..count {
        let first = move |cx: &OpContext<'_>| {
            // Relaxed, for both stores: the engine orders the successors after this operation.
            ended.1.store(cx.worker().unwrap_or(usize::MAX) as u64, Ordering::Relaxed);
            ended.0.store(notes.now(), Ordering::Relaxed); // Relaxed: the engine orders these accesses.
        };
        let then = move |cx: &OpContext<'_>| {
            // Relaxed: the engine runs this operation before the next one that stores here.
            if ended.1.load(Ordering::Relaxed) != cx.worker().unwrap_or(usize::MAX) as u64 {
                notes.note(i, ended.0.load(Ordering::Relaxed)); // Relaxed: the engine orders these accesses.
            }
            compute(iterations);
        };
        engine.push_sync(first, [], [&variable]).expect("push");
        engine.push_sync(then, [&variable], []).expect("push");
        engine.push_sync(then, [&variable], []).expect("push");
    }
    std::thread::sleep(notes.start.saturating_duration_since(Instant::now()));
    drop(open);
    engine.wait_for_all().expect("wait");
    notes.histogram()
}

// ----------------------------------------------------------------------------------------------------- saturation ----

/// Measures the latencies of operations of a kind while every worker has a backlog: `fillers` operations that run
/// `iterations` each are pushed before the first measured operation is due.
fn saturated(engine: &Engine, due: &[u64], kind: Kind, fillers: usize, iterations: u32) -> Histogram<u64> {
    let notes = Notes::new(due.len());
    let full = Arc::new(AtomicBool::new(false));
    let variables: Vec<Token> = (0..256).map(|_| engine.token()).collect();
    for i in 0..fillers {
        engine.push_sync(move |_| compute(iterations), [], [&variables[i % 256]]).expect("push");
    }
    let last = Arc::clone(&full);
    // Relaxed, here and below: the flag only shows that the fillers have run out.
    engine.op("").priority(-1).reads(&variables).push_sync(move |_| last.store(true, Ordering::Relaxed)).expect("push");
    let probes: Vec<Token> = (0..64).map(|_| engine.token()).collect();
    let start = Instant::now();
    open_loop(start, due, |i| {
        // Relaxed: the flag only shows that the fillers have run out.
        if full.load(Ordering::Relaxed) {
            return;
        }
        let since = start + Duration::from_nanos(due[i]);
        let f = move |_: &OpContext<'_>| {
            // Relaxed: the slots are read after a wait for all operations.
            notes.slots[i].store(since.elapsed().as_nanos() as u64 + 1, Ordering::Relaxed);
        };
        let op = engine.op("").priority(kind.priority).property(kind.property).writes([&probes[i % 64]]);
        op.push_sync(f).expect("push");
    });
    engine.wait_for_all().expect("wait");
    notes.histogram()
}

fn engine(kind: EngineKind, workers: usize, idle: IdlePolicy) -> Engine {
    Engine::builder().kind(kind).workers(workers).idle(idle).build().expect("an engine")
}

fn main() {
    let cores = machine::cores();
    let rounds = machine::rounds(5);
    let second = machine::choose(Duration::from_secs(1), Duration::from_millis(5));
    let workers = (cores - 1).max(1);
    let per_iteration = serial_ns(Kernel::Compute, 1000) / 1000.0;
    let iterations = |ns: f64| (ns / per_iteration) as u32;
    let clock = {
        let start = Instant::now();
        (0..10_000).for_each(|_| _ = std::hint::black_box(Instant::now()));
        start.elapsed().as_nanos() as f64 / 10_000.0
    };

    let mut report = Report::new(
        "latency",
        "Latency",
        &format!(
            "In ns. Open loop: an operation is due at a time that was fixed beforehand, and its latency counts from \
             then, even if the pushing thread is late. That thread spins on the last core; {workers} worker(s) are \
             pinned to the others. Each percentile is the median of {rounds} rounds; the largest is that of all \
             rounds. There is no p99.9 for fewer than {ENOUGH} samples. Reading the clock takes {clock:.0} ns, and \
             each latency includes about one reading."
        ),
    );

    // The engines are built on this thread, because it may use all cores.
    let spinning = engine(EngineKind::Pooled, workers, IdlePolicy::Spin);
    let rates = machine::choose(vec![10_000u64, 100_000, 1_000_000], vec![10_000]);
    let slow = machine::choose(vec![1_000u64, 10_000], vec![1_000]);
    let name = |name: &str, rate| (name.to_owned(), Some(rate));

    let mut idle = Rows::new(
        rates
            .iter()
            .map(|&rate| name("push to start, worker spins", rate))
            .chain(slow.iter().map(|&rate| name("push to start, worker parked", rate)))
            .chain(slow.iter().map(|&rate| name("push to start, default policy", rate))),
    );
    let mut floor = Rows::new(
        rates
            .iter()
            .map(|&rate| name("hiccups, pushing core", rate))
            .chain([name("hiccups, first core", rates[0])])
            .chain(slow.iter().map(|&rate| name("raw futex wake", rate))),
    );
    let loads = [0.2, 0.5, 0.8];
    let busy = iterations(1_000.0);
    let load_rate = |load: f64| (load * 1e6) as u64;
    let mut loaded = Rows::new(loads.map(|load| {
        let rate = load_rate(load);
        name(&format!("push to start, {:.0} % load on one worker", load * 100.0), rate)
    }));
    let filler = iterations(10_000.0);
    let probes = machine::choose(2_000, 1_000);
    let kinds = [
        ("priority 7", Kind { priority: 7, ..PLAIN }),
        ("priority 0, like the backlog", PLAIN),
        (
            "`CpuPrioritized`, a worker of its own on a core that another one keeps busy",
            Kind { property: Property::CpuPrioritized, ..PLAIN },
        ),
    ];
    let mut full = Rows::new(kinds.iter().map(|(kind, _)| name(kind, probes)));

    for _ in 0..rounds {
        let mut at = 0..;
        for &rate in &rates {
            let due = schedule(rate, second, Arrivals::Even);
            let round = machine::pinned(-1, || hiccups(&due));
            floor.rounds[at.next().expect("endless")].push(round);
        }
        let due = schedule(rates[0], second, Arrivals::Even);
        floor.rounds[at.next().expect("endless")].push(machine::pinned(0, || hiccups(&due)));
        let mut row = 0..;
        for &rate in &rates {
            let due = schedule(rate, second, Arrivals::Even);
            let round = machine::pinned(-1, || push_to_start(&spinning, &due, PLAIN, 0));
            idle.rounds[row.next().expect("endless")].push(round);
        }
        for (&load, rounds) in loads.iter().zip(&mut loaded.rounds) {
            let due = schedule(load_rate(load), second / 4, Arrivals::Random);
            rounds.push(machine::pinned(-1, || push_to_start(&spinning, &due, PLAIN, busy)));
        }
    }
    // A spinning worker would take a core from the following measurements.
    drop(spinning);

    let parking = engine(EngineKind::PerDevice, workers, IdlePolicy::Park);
    let default = engine(EngineKind::PerDevice, workers, IdlePolicy::default());
    for _ in 0..rounds {
        let mut row = rates.len()..;
        let mut at = rates.len() + 1..;
        for &rate in &slow {
            let due = schedule(rate, second, Arrivals::Even);
            let round = machine::pinned(-1, || futex_wake(&due, 0));
            floor.rounds[at.next().expect("endless")].push(round);
            let round = machine::pinned(-1, || push_to_start(&parking, &due, PLAIN, 0));
            idle.rounds[row.next().expect("endless")].push(round);
        }
        for &rate in &slow {
            let due = schedule(rate, second, Arrivals::Even);
            let round = machine::pinned(-1, || push_to_start(&default, &due, PLAIN, 0));
            idle.rounds[row.next().expect("endless")].push(round);
        }
        for ((_, kind), rounds) in kinds.iter().zip(&mut full.rounds) {
            let due = schedule(probes, second / 4, Arrivals::Even);
            // Enough work to keep the workers busy for longer than the pushes of the probes take.
            let fillers = (second.as_nanos() as usize / 4 / 10_000 * workers) * 3 / 2;
            rounds.push(machine::pinned(-1, || saturated(&default, &due, *kind, fillers, filler)));
        }
    }
    drop((parking, default));

    let mut successors =
        Rows::new(["on the same worker", "on another worker, both spin"].map(|name| (name.to_owned(), None)));
    let both = engine(EngineKind::Pooled, cores.max(2), IdlePolicy::Spin);
    let count = machine::choose(20_000, 100);
    for _ in 0..rounds {
        successors.rounds[0].push(chain(&both, count));
        if cores > 1 {
            successors.rounds[1].push(fork(&both, count, iterations(2_000.0)));
        }
    }
    drop(both);

    let note = "The machine without an engine: the same loop without pushes, and a thread that sleeps on a futex on \
                the first core and is woken by the call alone. What delays these also delays every engine.";
    report.add(&floor.table("floor", "The machine's own floor", note));
    let note = "Nothing else runs. The spinning worker belongs to an engine with `IdlePolicy::Spin`, the parked one to \
                an engine with `IdlePolicy::Park`; under the default policy a worker spins for 50 µs before it parks.";
    report.add(&idle.table("idle", "Idle: from the due time to the start", note));
    let ratio = |row: usize, quantile| {
        let raddle = percentile(&idle.rounds[rates.len() + row], quantile);
        number(raddle / percentile(&floor.rounds[rates.len() + 1 + row], quantile))
    };
    let mut table = Table::new(
        "parked",
        "A parked worker compared with the raw futex wake",
        "Quotients of the percentiles above, at the same rate, in interleaved rounds.",
        &["per second", "p50", "p90", "p99"],
    );
    for (row, &rate) in slow.iter().enumerate() {
        table.row(grouped(rate as f64, 0), [0.5, 0.9, 0.99].map(|quantile| ratio(row, quantile)));
    }
    report.add(&table);
    let note = "From the end of an operation to the start of one that waited for it. Not an open loop: nothing is \
                pushed during the measurement. The workers spin.";
    report.add(&successors.table("successor", "Successors", note));
    let note = "Do not compare these with the idle rows: operations of 1 µs arrive at random, and most of the latency \
                at higher loads is spent in the queue that any single server has.";
    report.add(&loaded.table("loaded", "Loaded: from the due time to the start", note));
    let note = "Each worker has a backlog of operations of 10 µs with priority 0 throughout. The best possible wait \
                of an operation that interrupts nothing is between 0 and 10 µs.";
    report.add(&full.table("saturated", "Saturated: from the due time to the start", note));

    let title = "Latency by percentile, idle";
    let ticks = QUANTILES.iter().map(|&(q, label)| (1.0 / (1.0 - q), label.to_owned())).collect();
    let x = Axis { label: "percentile", scale: Scale::Log, ticks: Some(ticks) };
    let mut curves = idle.curves();
    curves.extend(floor.curves().into_iter().filter(|(name, _)| !name.contains("first core")));
    report.plot("idle", title, &lines(title, &x, &Axis::new("ns", Scale::Log), &curves));
    report.save();
}
