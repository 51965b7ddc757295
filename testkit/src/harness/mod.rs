//! The functions of the fuzz targets, without the fuzzer. Ordinary tests also run them, by [`replay`].
//!
//! Each target turns bytes into a program and runs it. If a check fails, the target panics with a message that contains
//! the input. Every input runs under a watchdog, which prints the program's position and ends the process if the input
//! hangs. Planned panics are not reported; all other panics are reported, on every thread.

pub mod concurrent_push;
pub mod lifecycle;
pub mod serial;
pub mod shapes;
pub mod waits;

use std::{
    any::Any,
    fs, panic,
    path::Path,
    sync::{
        Mutex, Once,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use arbitrary::Unstructured;
use raddle::{Engine, EngineBuilder, EngineKind, IdlePolicy, trace::Recorder};

use crate::{
    lock,
    program::{Random, Source},
};

/// A target: a function that runs one input.
pub type Target = fn(&[u8]);

/// The targets, each with the name of its corpus.
pub const TARGETS: [(&str, Target); 5] = [
    ("push", serial::push),
    ("concurrent_push", concurrent_push::concurrent_push),
    ("typed", serial::typed),
    ("lifecycle", lifecycle::lifecycle),
    ("waits", waits::waits),
];

/// Runs a target on its committed corpus, which the published package omits, and on inputs from seeds.
pub fn replay(target: &str) {
    let (_, run) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("the target should exist");
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let mut inputs = 0;
    for entry in fs::read_dir(fuzz.join("corpus").join(target)).expect("each target should have a corpus") {
        run(&fs::read(entry.expect("the folder should be readable").path()).expect("the input should be readable"));
        inputs += 1;
    }
    assert!(inputs > 10, "the corpus of {target} has only {inputs} inputs");
    for seed in 0..if cfg!(raddle_sanitized) { 5 } else { 80 } {
        let mut random = Random::new(seed);
        let input: Vec<u8> = (0..1 + random.below(600)).map(|_| random.below(256) as u8).collect();
        run(&input);
    }
}

// -------------------------------------------------------------------------------------------------- choices ----

/// Choices from a fuzzer's bytes. Once the bytes are exhausted, all choices are zero.
pub struct Bytes<'a>(Unstructured<'a>);

impl<'a> Bytes<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    /// Returns one of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns a number below `bound` for three quarters of the byte values, and one of the next `more` numbers for the
    /// rest. `bound` is the number of choices before more were added. At every such choice, the older inputs in the
    /// corpora contain a byte below `bound`, so these inputs keep their meaning.
    pub fn below_or(&mut self, bound: usize, more: usize) -> usize {
        match self.below(256) {
            byte @ 0..192 => byte % bound,
            byte => bound + (byte - 192) % more,
        }
    }
}

impl Source for Bytes<'_> {
    fn below(&mut self, bound: usize) -> usize {
        self.0.int_in_range(0..=bound - 1).unwrap_or(0)
    }

    fn is_exhausted(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns a builder of an engine of one of `kinds`, with one to four workers.
pub fn engine_plan(bytes: &mut Bytes<'_>, kinds: &[EngineKind]) -> EngineBuilder {
    let idle = match bytes.below(8) {
        0..=2 => IdlePolicy::default(),
        3..=4 => IdlePolicy::Park,
        5..=6 => IdlePolicy::SpinThenPark(Duration::from_micros(5)),
        _ => IdlePolicy::Spin,
    };
    Engine::builder()
        .kind(bytes.pick(kinds))
        .workers(1 + bytes.below(4))
        .prioritized_workers(1 + bytes.below(2))
        .pin(false)
        .idle(idle)
}

/// For some inputs, makes the engine shuffle its operations, record them, or both. The input's length decides, so that
/// older inputs keep their meaning.
pub fn observe(plan: EngineBuilder, data: &[u8]) -> (EngineBuilder, Option<Recorder>) {
    let plan = if data.len() % 9 == 4 { plan.shuffle(data.len() as u64) } else { plan };
    if data.len() % 4 != 1 {
        return (plan, None);
    }
    // The capacity exceeds the longest program's needs. Only the part in use takes up memory.
    let recorder = Recorder::with_capacity(8 << 20);
    (plan.recorder(&recorder), Some(recorder))
}

/// Checks the recorded order, if there is a recorder. Called once the engine has ended.
pub fn check_recorded(recorder: Option<&Recorder>) -> Result<(), String> {
    let Some(trace) = recorder.map(Recorder::take) else { return Ok(()) };
    trace.check_order().map(drop).map_err(|violation| violation.to_string())
}

// ------------------------------------------------------------------------------------------- planned panics ----

/// A payload of planned panics; the others are strings and [`PlannedTwice`].
pub struct Planned;

/// A payload whose drop panics as well. The engine forgets both payloads, which leaks nothing, since they are empty.
pub struct PlannedTwice;

impl Drop for PlannedTwice {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic::panic_any(Planned);
        }
    }
}

/// The prefix of a planned panic's message.
pub const PLANNED: &str = "as planned: ";

fn is_planned(payload: &dyn Any) -> bool {
    payload.is::<Planned>()
        || payload.is::<PlannedTwice>()
        || payload.downcast_ref::<&str>().is_some_and(|message| message.starts_with(PLANNED))
        || payload.downcast_ref::<String>().is_some_and(|message| message.starts_with(PLANNED))
}

/// Suppresses reports of planned panics, which a fuzzer would mistake for crashes.
fn quieten() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !is_planned(info.payload()) {
                before(info);
            }
        }));
    });
}

// ------------------------------------------------------------------------------------------------- watchdog ----

/// The time limit of an input, in rounds of the watchdog. Counting rounds instead of time keeps a slow run on an
/// overloaded machine from looking like a hang.
const ROUNDS: u32 = if cfg!(raddle_sanitized) { 3_000 } else { 300 };
const ROUND: Duration = Duration::from_millis(100);

type Describe = Box<dyn Fn() -> String + Send>;

struct Watched {
    number: u64,
    target: &'static str,
    input: Vec<u8>,
    rounds: u32,
    describe: Option<Describe>,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// An input running under the watchdog.
pub struct Watch(u64);

impl Watch {
    /// Sets the function whose result is printed if the input hangs.
    pub fn explain(&self, describe: impl Fn() -> String + Send + 'static) {
        let old = lock(&WATCHED)
            .iter_mut()
            .find(|watched| watched.number == self.0)
            .and_then(|watched| watched.describe.replace(Box::new(describe)));
        drop(old);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut all = lock(&WATCHED);
        let gone = all.iter().position(|watched| watched.number == self.0).map(|at| all.swap_remove(at));
        drop(all);
        drop(gone);
    }
}

/// Runs `f` under the watchdog and panics if `f` returns an error.
pub fn watched(target: &'static str, input: &[u8], f: impl FnOnce(&Watch) -> Result<(), String>) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    static ONCE: Once = Once::new();
    quieten();
    ONCE.call_once(|| drop(thread::Builder::new().name("watchdog".to_owned()).spawn(watch_inputs)));
    // Relaxed: only distinct numbers are needed.
    let watch = Watch(NUMBER.fetch_add(1, Relaxed));
    let new = Watched { number: watch.0, target, input: input.to_vec(), rounds: 0, describe: None };
    lock(&WATCHED).push(new);
    let result = f(&watch);
    drop(watch);
    if let Err(error) = result {
        panic!("{target}: {error}\nthe input was {input:?}");
    }
}

/// Repeats `check`, whose condition may become true in the background, until it succeeds. After 5,000 rounds, returns
/// its error. Counting rounds instead of time keeps a slow run on an overloaded machine from looking like a hang.
pub fn eventually_ok(mut check: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    for _ in 0..5_000 {
        if check().is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    check()
}

fn watch_inputs() {
    loop {
        thread::sleep(ROUND);
        for watched in &mut *lock(&WATCHED) {
            watched.rounds += 1;
            if watched.rounds > ROUNDS {
                let position = watched.describe.as_ref().map_or_else(String::new, |describe| describe());
                eprintln!("{}: the input hangs\n{position}\nthe input was {:?}", watched.target, watched.input);
                std::process::abort();
            }
        }
    }
}

// ------------------------------------------------------------------------------------------- other threads ----

type Job = Box<dyn FnOnce() + Send>;

/// Runs `job` on one of two threads that live as long as the process.
pub fn elsewhere(job: impl FnOnce() + Send + 'static) {
    static SENDER: Mutex<Option<mpsc::Sender<Job>>> = Mutex::new(None);
    let mut sender = lock(&SENDER);
    let sender = sender.get_or_insert_with(|| {
        let (sender, receiver) = mpsc::channel::<Job>();
        let receiver = std::sync::Arc::new(Mutex::new(receiver));
        for number in 0..2 {
            let receiver = std::sync::Arc::clone(&receiver);
            let work = move || {
                loop {
                    let job = lock(&receiver).recv();
                    match job {
                        Ok(job) => job(),
                        Err(_) => return,
                    }
                }
            };
            thread::Builder::new().name(format!("elsewhere {number}")).spawn(work).expect("a thread should start");
        }
        sender
    });
    sender.send(Box::new(job)).expect("the threads should live as long as the process");
}
