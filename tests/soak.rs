//! A soak test with random operations that succeed, fail, panic or lose their completions. It covers timed-out waits,
//! priorities, properties, deletions, and short-lived engines with several pushing threads. No operation may be lost or
//! hang, and memory must stay bounded.
//!
//! `RADDLE_SOAK_SECONDS` sets the duration (2 by default) and `RADDLE_SOAK_SEED` the seed; `cargo xtask ci soak` runs
//! the test for 20 seconds. After [`PATIENCE`] without progress, the process prints the last step of each thread and
//! the pending operations, then exits.
#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    env,
    fmt::Write as _,
    io::Write as _,
    panic,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use common::shapes::*;
use common::{PATIENCE, lock, resident_bytes};
use raddle::{
    Completion, Engine, EngineKind, IdlePolicy, PushError, Shutdown, Token, Var, WaitError,
    error::{BoxError, NoAccess, ShutdownError},
};

/// The maximum number of threads pushing on one engine.
const PUSHERS: usize = 4;
/// The number of an engine's typed variables, which is also the number of its tokens.
const VARIABLES: usize = 6;
/// The number of concurrent engines.
const DRIVERS: usize = 2;
/// The number of engines built by each driver between two memory measurements.
const ROUNDS: usize = 4;
/// The maximum growth from the first third of the run to the last: about 35 MB of records kept for reuse, and a margin
/// for the allocator.
const GROWTH: usize = 40 << 20;

// ------------------------------------------------------------------------------------------------------- ledger ----

/// The state of all threads and operations, for checks and for hang reports.
#[derive(Default)]
struct Ledger {
    /// The total number of steps of all threads.
    steps: AtomicU64,
    next_life: AtomicU64,
    lives: [Mutex<HashMap<u64, Pending>>; 16],
    threads: Mutex<Vec<(String, Weak<Mutex<Last>>)>>,
    /// The longest run time of an engine, with the engine's description.
    slowest: Mutex<(Duration, String)>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    complaints: Mutex<Vec<String>>,
}

/// The record of a [`Life`], a value that must be dropped once. An operation that owns such a value must run at most
/// once.
struct Pending {
    what: &'static str,
    by: String,
    began: Option<String>,
    since: Instant,
}

struct Last {
    what: &'static str,
    at: Instant,
}

thread_local! {
    static LAST: RefCell<Option<Arc<Mutex<Last>>>> = const { RefCell::new(None) };
}

fn thread_name() -> String {
    thread::current().name().unwrap_or("?").to_owned()
}

impl Ledger {
    /// Records the current step of the calling thread.
    fn note(&self, what: &'static str) {
        self.steps.fetch_add(1, SeqCst);
        let last = Last { what, at: Instant::now() };
        LAST.with_borrow_mut(|slot| match slot {
            Some(slot) => *lock(slot) = last,
            None => {
                let new = Arc::new(Mutex::new(last));
                let mut threads = lock(&self.threads);
                threads.retain(|(_, slot)| slot.strong_count() > 0);
                threads.push((thread_name(), Arc::downgrade(&new)));
                *slot = Some(new);
            }
        });
    }

    fn count(&self, what: &'static str) {
        *lock(&self.counts).entry(what).or_default() += 1;
    }

    fn counted(&self, what: &str) -> u64 {
        lock(&self.counts).get(what).copied().unwrap_or(0)
    }

    fn complain(&self, what: String) {
        lock(&self.complaints).push(what);
    }

    fn shard(&self, id: u64) -> &Mutex<HashMap<u64, Pending>> {
        &self.lives[id as usize % self.lives.len()]
    }

    fn alive(&self) -> usize {
        self.lives.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Creates a value that must be dropped once.
    fn life(self: &Arc<Self>, what: &'static str) -> Life {
        let id = self.next_life.fetch_add(1, SeqCst);
        let pending = Pending { what, by: thread_name(), began: None, since: Instant::now() };
        lock(self.shard(id)).insert(id, pending);
        Life { id, ledger: Arc::clone(self), began: AtomicBool::new(false) }
    }

    /// Describes each thread's last step and the pending operations.
    fn last_words(&self) -> String {
        let mut words = String::from("threads, by what they did last:\n");
        for (name, slot) in lock(&self.threads).iter() {
            if let Some(slot) = slot.upgrade() {
                let last = lock(&slot);
                let _ = writeln!(words, "  {name}: {}, {:.1} s ago", last.what, last.at.elapsed().as_secs_f64());
            }
        }
        let _ = writeln!(words, "alive, {} in all, the oldest first:", self.alive());
        let mut alive = Vec::new();
        for shard in &self.lives {
            for (&id, pending) in lock(shard).iter() {
                let Pending { what, by, began, since } = pending;
                let state = began.as_ref().map_or("not begun".to_owned(), |thread| format!("begun on {thread}"));
                let seconds = since.elapsed().as_secs_f64();
                alive.push((id, format!("  {id}: {what}, made by {by} {seconds:.1} s ago, {state}\n")));
            }
        }
        alive.sort();
        alive.iter().take(100).for_each(|(_, line)| words.push_str(line));
        words
    }
}

struct Life {
    id: u64,
    ledger: Arc<Ledger>,
    began: AtomicBool,
}

impl Life {
    /// Records that the operation has begun.
    fn begin(&self) {
        if self.began.swap(true, SeqCst) {
            self.ledger.complain(format!("operation {} ran twice", self.id));
        }
        let mut what = "an operation";
        match lock(self.ledger.shard(self.id)).get_mut(&self.id) {
            Some(pending) => {
                pending.began = Some(thread_name());
                what = pending.what;
            }
            None => self.ledger.complain(format!("operation {} ran after its drop", self.id)),
        }
        self.ledger.note(what);
        self.ledger.count("operations run");
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.ledger.steps.fetch_add(1, SeqCst);
        if lock(self.ledger.shard(self.id)).remove(&self.id).is_none() {
            self.ledger.complain(format!("{} was dropped twice", self.id));
        }
    }
}

// -------------------------------------------------------------------------------------------------- one engine ----

/// A typed variable's value.
struct Value {
    /// The number of successful mutations, also counted by the variable's version.
    mutations: u64,
    /// The number of each pushing thread's last operation. These numbers only rise.
    last: [u64; PUSHERS],
    _life: Life,
}

/// How an operation ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Well,
    Error,
    Panic,
}

impl End {
    fn result(self, ledger: &Ledger) -> Result<(), BoxError> {
        match self {
            Self::Well => Ok(()),
            Self::Error => {
                ledger.count("operations with an error");
                Err("on purpose".into())
            }
            Self::Panic => {
                ledger.count("operations that panic");
                // `panic!` would call the panic hook, which prints.
                panic::resume_unwind(Box::new("on purpose"))
            }
        }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn end(&mut self) -> End {
        match self.below(40) {
            0 => End::Error,
            1 => End::Panic,
            _ => End::Well,
        }
    }

    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.next() % 500)
    }
}

/// The state shared by one engine's pushing threads.
struct Round {
    engine: Engine,
    ledger: Arc<Ledger>,
    values: [Mutex<Arc<Var<Value>>>; VARIABLES],
    tokens: [Mutex<Arc<Token>>; VARIABLES],
    completions: mpsc::Sender<(Completion, Life, usize)>,
}

/// A pushing thread.
struct Pusher<'r> {
    round: &'r Round,
    number: usize,
    operations: u64,
    random: Random,
}

impl Round {
    fn value(ledger: &Arc<Ledger>, engine: &Engine) -> Arc<Var<Value>> {
        let value = Value { mutations: 0, last: [0; PUSHERS], _life: ledger.life("a variable's value") };
        Arc::new(engine.var(value))
    }
}

impl Pusher<'_> {
    /// Takes random steps until their number reaches `operations` or a push is refused because the engine shuts down.
    fn run(&mut self, operations: u64) {
        while self.operations < operations {
            self.operations += 1;
            match self.step() {
                Ok(()) => {}
                Err(PushError::ShutDown) => {
                    self.round.ledger.count("pushes refused by a shutdown");
                    return;
                }
                Err(PushError::Variable(NoAccess::Deleted, _)) => {
                    self.round.ledger.count("pushes refused by a deletion");
                }
                Err(error) => self.round.ledger.complain(format!("a push fails: {error}")),
            }
        }
    }

    fn any_value(&mut self) -> Arc<Var<Value>> {
        Arc::clone(&lock(&self.round.values[self.random.below(VARIABLES)]))
    }

    fn any_token(&mut self) -> Arc<Token> {
        Arc::clone(&lock(&self.round.tokens[self.random.below(VARIABLES)]))
    }

    fn any_priority(&mut self) -> i32 {
        if self.random.one_in(4) { self.random.below(200) as i32 - 100 } else { 0 }
    }

    fn any_property(&mut self) -> Property {
        use Property::{Async, CopyFromGpu, CopyToGpu, CpuPrioritized, DeleteVar, GpuPrioritized, NoSkip, Normal};
        let all = [CopyFromGpu, CopyToGpu, CpuPrioritized, GpuPrioritized, Async, DeleteVar, NoSkip];
        if self.random.one_in(4) { all[self.random.below(all.len())] } else { Normal }
    }

    /// Returns a function that checks and counts a mutation by this thread's current operation.
    fn mutation(&self) -> impl Fn(&mut Value) + Send + Sync + 'static + use<> {
        let (thread, number, ledger) = (self.number, self.operations, Arc::clone(&self.round.ledger));
        move |value| {
            if value.last[thread] >= number {
                ledger.complain(format!("operation {number} of pusher {thread} came after {}", value.last[thread]));
            }
            value.last[thread] = number;
            value.mutations += 1;
        }
    }

    fn step(&mut self) -> Result<(), PushError> {
        let (engine, ledger) = (&self.round.engine, &self.round.ledger);
        match self.random.below(100) {
            0..30 => {
                ledger.note("pushes on two values");
                let (a, b) = (self.any_value(), self.any_value());
                let (end, priority, property) = (self.random.end(), self.any_priority(), self.any_property());
                let (mutate, life) = (self.mutation(), ledger.life("read and write"));
                let pushed = engine.op("read and write").priority(priority).kind(property).push_any(
                    (a.read(), b.write()),
                    move |(_, b)| {
                        life.begin();
                        end.result(&life.ledger)?;
                        mutate(b);
                        Ok::<(), BoxError>(())
                    },
                );
                // The push is refused if `a` and `b` are the same variable.
                if matches!(pushed, Err(PushError::Variable(NoAccess::Aliased, _))) { Ok(()) } else { pushed }
            }
            30..45 => {
                ledger.note("submits and waits for the result");
                let a = self.any_value();
                let (end, life, mutate) = (self.random.end(), ledger.life("submitted"), self.mutation());
                let result = ledger.life("a result");
                let mut handle = engine.op("submitted").submit_any(a.write(), move |a| {
                    life.begin();
                    end.result(&life.ledger)?;
                    mutate(a);
                    Ok::<_, BoxError>(result)
                })?;
                match self.random.below(4) {
                    0 => drop(handle),
                    1 => match handle.wait_timeout(self.random.moment()) {
                        Err(WaitError::TimedOut) => ledger.count("waits that ran out of time"),
                        other => drop(other),
                    },
                    _ => drop(handle.wait()),
                }
                Ok(())
            }
            45..60 => {
                ledger.note("pushes on tokens");
                let (a, b, c) = (self.any_token(), self.any_token(), self.any_token());
                let (end, priority, property) = (self.random.end(), self.any_priority(), self.any_property());
                let life = ledger.life("on tokens");
                let operation = engine.op(format!("on tokens {}", self.operations)).priority(priority).kind(property);
                let operation = operation.reads([&*a]).writes([&*b]);
                let operation = if self.random.one_in(3) { operation.overwrites([&*c]) } else { operation };
                operation.push_sync(move |_| {
                    life.begin();
                    end.result(&life.ledger)
                })
            }
            60..70 => {
                ledger.note("pushes an asynchronous operation");
                let (a, how) = (self.any_token(), self.random.below(8));
                let (life, outside) = (ledger.life("asynchronous"), ledger.life("a completion"));
                let (sender, end) = (self.round.completions.clone(), self.random.end());
                engine.op("asynchronous").writes([&*a]).push_async_any(raddle::cx(), move |_, done| {
                    life.begin();
                    if how == 7 {
                        drop((done, outside));
                        life.ledger.count("completions lost");
                    } else if let Err(mpsc::SendError((done, ..))) = sender.send((done, outside, how)) {
                        done.complete();
                    }
                    end.result(&life.ledger)
                })
            }
            70..76 => {
                ledger.note("pushes an operation that pushes and waits");
                let (a, b) = (self.any_token(), self.any_value());
                let (life, inner_life, waits) = (ledger.life("outer"), ledger.life("inner"), self.random.one_in(3));
                engine.op("outer").writes([&*a]).push_sync(move |cx| {
                    life.begin();
                    let engine = cx.engine();
                    let inner = engine.op("inner").submit((), move |()| inner_life.begin());
                    if let (Ok(inner), true) = (inner, waits) {
                        life.ledger.count("waits inside operations");
                        let _ = inner.wait();
                        let _ = engine.wait_to_read_timeout(&*b, Duration::from_micros(100));
                    }
                })
            }
            76..80 => {
                ledger.note("waits for a variable");
                let (a, limit) = (self.any_value(), self.random.moment());
                let waited = match self.random.below(4) {
                    0 => engine.wait_for_var_timeout(&*a, limit),
                    1 => engine.wait_to_read_timeout(&*a, limit),
                    2 => engine.wait_for_var_timeout(&*a, limit),
                    _ => {
                        drop((engine.wait_for_var_async(&*a), engine.wait_for_all_async()));
                        engine.wait_for_var(&*a)
                    }
                };
                if matches!(waited, Err(WaitError::TimedOut)) {
                    ledger.count("waits that ran out of time");
                }
                Ok(())
            }
            80..83 => {
                ledger.note("waits for all");
                match engine.wait_for_all_timeout(self.random.moment() * 4) {
                    Err(WaitError::TimedOut) => ledger.count("waits that ran out of time"),
                    _ => ledger.count("waits for all that ended"),
                }
                drop(engine.clear_errors());
                Ok(())
            }
            83..92 => {
                ledger.note("clears a failure");
                engine.clear_error(&*self.any_value())?;
                engine.clear_error(self.any_token())
            }
            92..95 => {
                ledger.note("deletes a variable");
                let index = self.random.below(VARIABLES);
                let new = Round::value(ledger, engine);
                let old = std::mem::replace(&mut *lock(&self.round.values[index]), new);
                ledger.count("variables deleted");
                if self.random.one_in(2) {
                    let life = ledger.life("after a deletion");
                    engine.delete_variable(&*old, move |_| life.begin())?;
                }
                Ok(())
            }
            95..97 => {
                ledger.note("replaces a token");
                let new = Arc::new(engine.token());
                let index = self.random.below(VARIABLES);
                drop(std::mem::replace(&mut *lock(&self.round.tokens[index]), new));
                Ok(())
            }
            _ => {
                ledger.note("pushes an operator");
                let (a, life) = (self.any_token(), ledger.life("an operator"));
                let operator = engine.op("operator").writes([&*a]).operator_sync(move |_| {
                    life.ledger.note("an operator");
                })?;
                (0..3).try_for_each(|_| operator.push_with_priority(self.any_priority()))
            }
        }
    }
}

/// Builds an engine, pushes on it from several threads, and ends it in a random way. When this returns, nothing of the
/// engine remains, unless an operation drops the last handle: then the engine ends in the background.
fn round(ledger: &Arc<Ledger>, seed: u64) {
    let (mut random, start) = (Random(seed), Instant::now());
    let kind =
        [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice, EngineKind::Pooled, EngineKind::PerDevice]
            [random.below(5)];
    let idle = match random.below(8) {
        0 => IdlePolicy::Spin,
        1..4 => IdlePolicy::Park,
        _ => IdlePolicy::default(),
    };
    ledger.note("builds an engine");
    let builder = Engine::builder().kind(kind).workers(1 + random.below(3)).pin(random.one_in(4)).idle(idle);
    let engine = builder.build().expect("an engine");
    ledger.count("engines");
    let (sender, receiver) = mpsc::channel::<(Completion, Life, usize)>();
    let round = Round {
        ledger: Arc::clone(ledger),
        values: std::array::from_fn(|_| Mutex::new(Round::value(ledger, &engine))),
        tokens: std::array::from_fn(|_| Mutex::new(Arc::new(engine.token()))),
        completions: sender,
        engine,
    };
    // Ends asynchronous operations until the last sender of completions is dropped.
    let completer = thread::Builder::new().name("completer".to_owned()).spawn({
        let ledger = Arc::clone(ledger);
        move || {
            for (done, life, how) in receiver {
                ledger.note("ends an asynchronous operation");
                // `life` is dropped first, because as soon as the completion is used, a thread waiting for the
                // operation may check what remains.
                drop(life);
                match how {
                    0 => done.fail("on purpose"),
                    1 => {
                        ledger.count("completions lost");
                        drop(done);
                    }
                    _ => done.complete(),
                }
            }
        }
    });
    let completer = completer.expect("a thread should start");
    let pushers = 1 + random.below(PUSHERS);
    let end = random.below(6);
    let operations = 50 + random.next() % 1500;
    thread::scope(|scope| {
        for number in 0..pushers {
            let mut pusher = Pusher { round: &round, number, operations: 0, random: Random(random.next()) };
            let pusher = thread::Builder::new()
                .name(format!("pusher {number} of {kind}"))
                .spawn_scoped(scope, move || pusher.run(operations));
            pusher.expect("a thread should start");
        }
        // In two of six cases, the engine is shut down while threads push.
        match end {
            0 => {
                ledger.note("cancels");
                ledger.count("engines cancelled");
                round.engine.notify_shutdown();
            }
            1 => {
                ledger.note("drains with a time limit");
                // Half of the drains cannot end in time: an asynchronous operation is pending until they time out.
                let held = random.one_in(2).then(|| {
                    let (sender, receiver) = mpsc::channel();
                    let pushed = round.engine.op("held").push_async_any(raddle::cx(), move |_, done| {
                        let _ = sender.send(done);
                    });
                    pushed.expect("the engine should be open");
                    receiver.recv().expect("the operation should run")
                });
                match round.engine.shutdown(Shutdown::Drain, Some(random.moment() * 10)) {
                    Ok(()) if held.is_some() => ledger.complain("a drain ends before an operation".to_owned()),
                    Ok(()) => {}
                    Err(ShutdownError::TimedOut | ShutdownError::ThreadsLeft(_)) => {
                        ledger.count("shutdowns that ran out of time");
                    }
                    Err(error) => ledger.complain(format!("a shutdown fails: {error}")),
                }
                if let Some(done) = held {
                    done.complete();
                }
            }
            _ => {}
        }
    });
    if (2..5).contains(&end) {
        ledger.note("waits for everything");
        let _ = round.engine.wait_for_all();
        for value in &round.values {
            let value = lock(value);
            round.engine.clear_error(&**value).expect("the engine should be open");
            let counted =
                round.engine.op("").submit(value.read(), |value| value.mutations).expect("the engine should be open");
            let (counted, version) = (counted.wait().expect("the failure should be cleared"), value.version());
            if counted != version {
                ledger.complain(format!("{counted} mutations, but version {version}"));
            }
        }
    }
    if end == 2 {
        ledger.note("cancels at the end");
        round.engine.shutdown(Shutdown::Cancel, Some(PATIENCE)).expect("nothing should hang");
    }
    ledger.note("drops everything");
    drop(round);
    completer.join().expect("the completer should not panic");
    let mut slowest = lock(&ledger.slowest);
    if start.elapsed() > slowest.0 {
        *slowest =
            (start.elapsed(), format!("{kind}, {idle:?}, {pushers} pushers, {operations} pushes each, end {end}"));
    }
}

// ---------------------------------------------------------------------------------------------------- watchdog ----

/// Starts a thread that, after [`PATIENCE`] without progress, reports a hang and exits the process. The thread ends
/// when the returned sender is dropped.
fn watch(ledger: &Arc<Ledger>) -> mpsc::Sender<()> {
    let (sender, receiver) = mpsc::channel();
    let ledger = Arc::clone(ledger);
    let watchdog = thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
        let (mut steps, mut since) = (0, Instant::now());
        while receiver.recv_timeout(Duration::from_millis(200)) == Err(mpsc::RecvTimeoutError::Timeout) {
            let now = ledger.steps.load(SeqCst);
            if now != steps {
                (steps, since) = (now, Instant::now());
            } else if since.elapsed() >= PATIENCE {
                let words = ledger.last_words();
                // `eprintln!` would be captured by the test harness.
                let _ = writeln!(std::io::stderr(), "the soak hangs: no progress for {PATIENCE:?}\n{words}");
                std::process::exit(101);
            }
        }
    });
    watchdog.expect("a thread should start");
    sender
}

fn from_environment(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

#[test]
fn random_work_on_short_lived_engines_loses_nothing_never_hangs_and_keeps_memory_bounded() {
    let seconds = from_environment("RADDLE_SOAK_SECONDS").unwrap_or(2);
    let seed = from_environment("RADDLE_SOAK_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}, {seconds} s");
    let (ledger, start) = (Arc::new(Ledger::default()), Instant::now());
    let watchdog = watch(&ledger);
    let mut random = Random(seed);
    let mut memory = Vec::new();
    while start.elapsed() < Duration::from_secs(seconds) || memory.len() < 3 {
        thread::scope(|scope| {
            for _ in 0..DRIVERS {
                let (ledger, seeds) = (&ledger, [(); ROUNDS].map(|()| random.next()));
                scope.spawn(move || seeds.into_iter().for_each(|seed| round(ledger, seed)));
            }
        });
        assert!(lock(&ledger.complaints).is_empty(), "{:?}", lock(&ledger.complaints));
        // An engine ends in the background if its last handle is dropped inside an operation.
        common::eventually("nothing is left of the engines", || ledger.alive() == 0);
        memory.push(resident_bytes());
    }
    drop(watchdog);

    for (what, count) in lock(&ledger.counts).iter() {
        println!("{count:>12} {what}");
    }
    println!("{:>12} things made and dropped", ledger.next_life.load(SeqCst));
    let middle = |part: &[usize]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part[part.len() / 2]
    };
    let third = memory.len().div_ceil(3);
    let (first, last) = (middle(&memory[..third]), middle(&memory[memory.len() - third..]));
    println!("{:>12} KiB in memory in the first third, {} in the last", first >> 10, last >> 10);
    let (time, engine) = lock(&ledger.slowest).clone();
    println!("{:>12.1} s for the slowest engine: {engine}", time.as_secs_f64());
    println!("{:>12.1} s", start.elapsed().as_secs_f64());
    // Sanitizers keep freed memory.
    assert!(cfg!(raddle_sanitized) || last < first + GROWTH, "memory grows from {first} to {last} bytes");
    // A run of 20 s or more must contain every kind of event.
    if seconds >= 20 {
        for what in [
            "completions lost",
            "engines cancelled",
            "operations that panic",
            "operations with an error",
            "pushes refused by a deletion",
            "pushes refused by a shutdown",
            "shutdowns that ran out of time",
            "variables deleted",
            "waits for all that ended",
            "waits inside operations",
            "waits that ran out of time",
        ] {
            assert!(ledger.counted(what) > 0, "there were no {what}");
        }
    }
}
