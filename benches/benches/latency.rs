//! Measures how long operations wait before they start.
//!
//! The loop is open: pushes are due at times fixed in advance, and each latency is measured from when its push was due,
//! even if the pushing thread was late. So a stall affects every operation it delays. The pushing thread is pinned to
//! the last core and spins; the workers use the other cores, or share the only core.
//!
//! The same loop without an engine measures the machine's own stalls, and a bare futex call measures the wake-up of a
//! thread. No engine can be faster than the loop, and none whose worker is parked can be faster than the wake-up.

use std::{
    collections::BTreeMap,
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
    report::{Cell, Report, Table, grouped, number, spread},
    state::{Samples, State, preferred, states},
    stats::median,
    svg::{Axis, Scale, Series, lines},
};

const COLUMNS: [&str; 7] = ["what", "samples", "p50", "p90", "p99", "p99.9", "largest"];
/// The minimum number of samples for reporting the 99.9th percentile.
const ENOUGH: u64 = 10_000;

type Latencies = Histogram<u64>;

/// One histogram per round, in ns.
type Rounds<'a> = &'a [Latencies];

fn histogram(values: impl IntoIterator<Item = u64>) -> Latencies {
    let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that fit");
    for value in values {
        histogram.saturating_record(value);
    }
    histogram
}

/// Returns a percentile of each round.
fn percentiles(rounds: Rounds<'_>, quantile: f64) -> Vec<f64> {
    let rounds = rounds.iter().filter(|round| !round.is_empty());
    rounds.map(|round| round.value_at_quantile(quantile) as f64).collect()
}

/// Returns the number of samples, each percentile with its quartiles over the rounds, and the overall maximum.
fn cells(rounds: Rounds<'_>) -> Vec<Cell> {
    let samples: u64 = rounds.iter().map(Histogram::len).sum();
    let largest =
        rounds.iter().filter(|round| !round.is_empty()).map(|round| round.max() as f64).fold(f64::NAN, f64::max);
    let mut cells: Vec<Cell> = vec![grouped(samples as f64, 0).into()];
    cells.extend([0.5, 0.9, 0.99].map(|quantile| spread(&percentiles(rounds, quantile))));
    cells.push(if samples < ENOUGH { number(f64::NAN) } else { spread(&percentiles(rounds, 0.999)) });
    cells.push(number(largest));
    cells
}

/// A table filled round by round.
struct Rows {
    names: Vec<String>,
    rounds: Vec<Samples<Latencies>>,
}

impl Rows {
    fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        Self { rounds: vec![Samples::new(); names.len()], names }
    }

    /// Adds a round to the row with this name.
    fn add(&mut self, name: &str, state: State, round: Latencies) {
        let row = self.names.iter().position(|other| other == name).expect("a row with this name");
        self.rounds[row].push(state, round);
    }

    /// Measures a round for the row with this name.
    fn measure(&mut self, name: &str, round: impl FnMut() -> Latencies) {
        if let Some((state, round)) = machine::timed(round) {
            self.add(name, state, round);
        }
    }

    fn of(&self, name: &str, state: State) -> Rounds<'_> {
        let row = self.names.iter().position(|other| other == name).expect("a row with this name");
        self.rounds[row].of(state)
    }

    fn report(&self, report: &mut Report, key: &str, title: &str, note: &str) {
        for state in states(&self.rounds) {
            let mut table = Table::of_state(key, state, title, note, &COLUMNS);
            for (name, rounds) in self.names.iter().zip(&self.rounds) {
                if !rounds.of(state).is_empty() {
                    table.row(name.as_str(), cells(rounds.of(state)));
                }
            }
            report.add(&table);
        }
    }

    fn curves(&self, state: State) -> Vec<Series> {
        let curve = |(name, rounds): (&String, &Samples<Latencies>)| {
            let percentile = |q| median(&percentiles(rounds.of(state), q));
            (name.clone(), QUANTILES.iter().map(|&(q, _)| (1.0 / (1.0 - q), percentile(q))).collect())
        };
        let rows = self.names.iter().zip(&self.rounds);
        rows.filter(|(_, rounds)| !rounds.of(state).is_empty()).map(curve).collect()
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

/// Calls `push` with each push's number when it is due, or as soon as possible afterwards. Time is measured from
/// `start`.
fn open_loop(start: Instant, due: &[u64], mut push: impl FnMut(usize)) {
    for (i, &due) in due.iter().enumerate() {
        while (start.elapsed().as_nanos() as u64) < due {
            std::hint::spin_loop();
        }
        push(i);
    }
}

/// The latencies recorded by the operations: for each operation, its latency plus one, or zero until it has started.
#[derive(Clone, Copy)]
struct Notes {
    start: Instant,
    slots: &'static [AtomicU64],
}

impl Notes {
    /// Creates the slots. They are never freed, so operations can keep references to them; a run uses about 100 MB.
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

    fn histogram(&self) -> Latencies {
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

/// Measures the latencies, from due time to start, of operations that then run `iterations` of the compute-bound
/// kernel. Each operation mutates one of 64 variables, in turn.
fn push_to_start(engine: &Engine, due: &[u64], kind: Kind, iterations: u32) -> Latencies {
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

/// Runs the same loop without an engine, to measure this thread's own lateness.
fn hiccups(due: &[u64]) -> Latencies {
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

/// Measures the latencies of waking a thread asleep on another core.
fn futex_wake(due: &[u64], sleeper: isize) -> Latencies {
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

/// Pushes an operation that mutates `variable` and blocks until the returned sender is dropped, so its successors can
/// be pushed before any of them starts.
fn gate(engine: &Engine, variable: &Token) -> mpsc::Sender<()> {
    let (open, opened) = mpsc::channel::<()>();
    let wait = move |_: &OpContext<'_>| {
        // Ends when the sender is dropped.
        _ = opened.recv();
    };
    engine.push_sync(wait, [], [variable]).expect("push");
    open
}

/// Measures the time from an operation's end to its successor's start in a chain, for each pair run by the same worker.
fn chain(engine: &Engine, count: usize) -> Latencies {
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
    // Times are measured from `notes.start`, so this thread sleeps until then.
    std::thread::sleep(notes.start.saturating_duration_since(Instant::now()));
    drop(open);
    engine.wait_for_all().expect("wait");
    notes.histogram()
}

/// Measures the time from an operation's end to the start of each successor taken by another worker. Each operation has
/// two successors, which compute for long enough that another worker takes one of them.
fn fork(engine: &Engine, count: usize, iterations: u32) -> Latencies {
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

/// Measures the latencies of operations of one kind while every worker has a backlog: before the first measured
/// operation is due, `fillers` operations of `iterations` each are pushed.
fn saturated(engine: &Engine, due: &[u64], kind: Kind, fillers: usize, iterations: u32) -> Latencies {
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
    Engine::builder().kind(kind).workers(workers).pin(true).idle(idle).build().expect("an engine")
}

/// The number of slices in a round that alternates between the empty loop and the engine.
const SLICES: u32 = 10;

/// Measures the empty loop and the engine in turn, in slices of a fraction of a second, so that both are exposed to the
/// same disturbances. Returns the latencies of both by state; a slice of the one and the next slice of the other are a
/// pair, which is kept or dropped as a whole.
fn paired(rate: u64, time: Duration, mut pushes: impl FnMut(&[u64]) -> Latencies + Send) -> Samples<[Latencies; 2]> {
    let slices = machine::choose(SLICES, 1);
    let due = schedule(rate, time / slices, Arrivals::Even);
    let mut by_state = BTreeMap::<State, [Latencies; 2]>::new();
    for _ in 0..slices {
        let pair = machine::timed(|| machine::pinned(-1, || [hiccups(&due), pushes(&due)]));
        if let Some((state, pair)) = pair {
            let sums = by_state.entry(state).or_insert_with(|| [histogram([]), histogram([])]);
            for (sum, slice) in sums.iter_mut().zip(pair) {
                sum.add(slice).expect("the bounds should be the same");
            }
        }
    }
    let mut samples = Samples::new();
    by_state.into_iter().for_each(|(state, pair)| samples.push(state, pair));
    samples
}

fn main() {
    let cores = machine::cores();
    let rounds = machine::rounds();
    let time = machine::choose(Duration::from_millis(500), Duration::from_millis(5));
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
             pinned to the others. Each percentile is the median of up to {rounds} rounds, with the quartiles in \
             brackets; the largest is that of all rounds. There is no p99.9 for fewer than {ENOUGH} samples. Reading \
             the clock takes {clock:.0} ns, and each latency includes about one reading."
        ),
    );

    // The engines are built on this thread, because it may use all cores.
    let spinning = engine(EngineKind::Pooled, workers, IdlePolicy::Spin);
    let rates = machine::choose(vec![10_000u64, 100_000, 1_000_000], vec![10_000]);
    let slow = machine::choose(vec![1_000u64, 10_000], vec![1_000]);
    let at = |name: &str, rate: u64| format!("{name}, {} a second", grouped(rate as f64, 0));

    let (spins, parks, waits) =
        ("push to start, worker spins", "push to start, worker parked", "push to start, default policy");
    let (empty, first, futex) = ("empty loop, pushing core", "empty loop, first core", "raw futex wake");
    let each = |rates: &[u64], name: &str| rates.iter().map(|&rate| at(name, rate)).collect::<Vec<_>>();
    let mut idle = Rows::new([each(&rates, spins), each(&slow, parks), each(&slow, waits)].concat());
    let mut floor = Rows::new([each(&rates, empty), each(&rates[..1], first), each(&slow, futex)].concat());
    let loads = [0.2, 0.5, 0.8];
    let busy = iterations(1_000.0);
    let load_rate = |load: f64| (load * 1e6) as u64;
    let load_name = |load: f64| format!("push to start, {:.0} % load on one worker", load * 100.0);
    let mut loaded = Rows::new(loads.map(load_name));
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
    let mut full = Rows::new(kinds.iter().map(|(kind, _)| (*kind).to_owned()));

    for _ in 0..rounds {
        for &rate in &rates {
            let pairs = paired(rate, time, |due| push_to_start(&spinning, due, PLAIN, 0));
            for state in State::ALL {
                for [without, with] in pairs.of(state) {
                    floor.add(&at(empty, rate), state, without.clone());
                    idle.add(&at(spins, rate), state, with.clone());
                }
            }
        }
        for load in loads {
            let due = schedule(load_rate(load), time / 4, Arrivals::Random);
            loaded.measure(&load_name(load), || machine::pinned(-1, || push_to_start(&spinning, &due, PLAIN, busy)));
        }
    }
    // A spinning worker would take a core from the following measurements.
    drop(spinning);

    // One engine at a time: the workers of a second one would be pinned to the core of the pushing thread.
    let parking = engine(EngineKind::PerDevice, workers, IdlePolicy::Park);
    for _ in 0..rounds {
        let due = schedule(rates[0], time, Arrivals::Even);
        floor.measure(&at(first, rates[0]), || machine::pinned(0, || hiccups(&due)));
        for &rate in &slow {
            let due = schedule(rate, time, Arrivals::Even);
            let pair = machine::timed(|| {
                machine::pinned(-1, || [futex_wake(&due, 0), push_to_start(&parking, &due, PLAIN, 0)])
            });
            if let Some((state, [raw, parked])) = pair {
                floor.add(&at(futex, rate), state, raw);
                idle.add(&at(parks, rate), state, parked);
            }
        }
    }
    drop(parking);

    let default = engine(EngineKind::PerDevice, workers, IdlePolicy::default());
    for _ in 0..rounds {
        for &rate in &slow {
            let due = schedule(rate, time, Arrivals::Even);
            idle.measure(&at(waits, rate), || machine::pinned(-1, || push_to_start(&default, &due, PLAIN, 0)));
        }
        for (name, kind) in kinds {
            let due = schedule(probes, time / 4, Arrivals::Even);
            // Enough work to keep the workers busy for longer than the pushes of the probes take.
            let fillers = (time.as_nanos() as usize / 4 / 10_000 * workers) * 3 / 2;
            full.measure(name, || machine::pinned(-1, || saturated(&default, &due, kind, fillers, filler)));
        }
    }
    drop(default);

    let (same, another) = ("on the same worker", "on another worker, both spin");
    let mut successors = Rows::new([same, another].map(str::to_owned));
    let both = engine(EngineKind::Pooled, cores.max(2), IdlePolicy::Spin);
    let count = machine::choose(20_000, 100);
    for _ in 0..rounds {
        successors.measure(same, || chain(&both, count));
        if cores > 1 {
            successors.measure(another, || fork(&both, count, iterations(2_000.0)));
        }
    }
    drop(both);

    let note = "The machine without an engine: the same loop without pushes, and a thread that sleeps on a futex on \
                the first core and is woken by the call alone. Whatever delays the loop also delays every engine; \
                whatever delays the wake-up also delays every engine whose worker is parked.";
    floor.report(&mut report, "floor", "The machine's own floor", note);
    let note = "Nothing else runs. The spinning worker belongs to an engine with `IdlePolicy::Spin`, the parked one to \
                an engine with `IdlePolicy::Park`; under the default policy a worker spins for 50 µs before it parks.";
    idle.report(&mut report, "idle", "Idle: from the due time to the start", note);

    let note = format!(
        "The empty loop on the pushing core and the pushes to a spinning worker take turns in {SLICES} slices of each \
         round, so both are exposed to the same disturbances. The two are compared within each round; below are the \
         medians over the rounds, with the quartiles. A p99 that equals the empty loop's is the machine's and not the \
         engine's."
    );
    let columns = [
        "what",
        "p50 less the empty loop's",
        "p50 by the empty loop's p99",
        "p99 less the empty loop's",
        "p99 by the empty loop's p99",
    ];
    for state in states(&idle.rounds) {
        let title = "Idle, compared with the empty loop";
        let mut table = Table::of_state("disturbance", state, title, &note, &columns);
        for &rate in &rates {
            let (without, with) = (floor.of(&at(empty, rate), state), idle.of(&at(spins, rate), state));
            // The p50 and the p99 of each round.
            let both = |latencies: &Latencies| [0.5, 0.99].map(|q| latencies.value_at_quantile(q).max(1) as f64);
            let compare = |of: &dyn Fn([f64; 2], [f64; 2]) -> f64| {
                let pairs = without.iter().zip(with);
                spread(&pairs.map(|(without, with)| of(both(without), both(with))).collect::<Vec<_>>())
            };
            if !with.is_empty() {
                let cells = [
                    compare(&|without, with| with[0] - without[0]),
                    compare(&|without, with| with[0] / without[1]),
                    compare(&|without, with| with[1] - without[1]),
                    compare(&|without, with| with[1] / without[1]),
                ];
                table.row(at(spins, rate), cells);
            }
        }
        report.add(&table);

        let note = "Quotients of the percentiles. Each round measures both, one right after the other; below are the \
                    medians over the rounds, with the quartiles.";
        let title = "A parked worker compared with the raw futex wake";
        let mut table = Table::of_state("parked", state, title, note, &["what", "p50", "p90", "p99"]);
        for &rate in &slow {
            let (raw, parked) = (floor.of(&at(futex, rate), state), idle.of(&at(parks, rate), state));
            if !parked.is_empty() {
                table.row(
                    at(parks, rate),
                    [0.5, 0.9, 0.99].map(|q| {
                        let pairs = percentiles(parked, q).into_iter().zip(percentiles(raw, q));
                        spread(&pairs.map(|(parked, raw)| parked / raw).collect::<Vec<_>>())
                    }),
                );
            }
        }
        report.add(&table);
    }

    let note = "From the end of an operation to the start of one that depends on it. Not an open loop: nothing is \
                pushed during the measurement. The workers spin.";
    successors.report(&mut report, "successor", "Successors", note);
    let note = "Do not compare these with the idle rows: operations of 1 µs arrive at random, and most of the latency \
                at higher loads is spent in the queue that any single server has.";
    loaded.report(&mut report, "loaded", "Loaded: from the due time to the start", note);
    let note = "Each worker has a backlog of operations of 10 µs with priority 0 throughout. The best possible wait \
                of an operation that interrupts nothing is between 0 and 10 µs.";
    full.report(&mut report, "saturated", "Saturated: from the due time to the start", note);

    if let Some(state) = preferred(&idle.rounds) {
        let title = format!("Latency by percentile, idle, {}", state.name());
        let ticks = QUANTILES.iter().map(|&(q, label)| (1.0 / (1.0 - q), label.to_owned())).collect();
        let x = Axis { label: "percentile", scale: Scale::Log, ticks: Some(ticks) };
        let mut curves = idle.curves(state);
        curves.extend(floor.curves(state).into_iter().filter(|(name, _)| !name.starts_with(first)));
        report.plot("idle", &title, &lines(&title, &x, &Axis::new("ns", Scale::Log), &curves));
    }
    report.save();
}
