//! What the fuzz targets do with an input, apart from the fuzzer: an ordinary test runs the same functions over the
//! corpus, see `tests/corpus.rs`.
//!
//! Each target turns bytes into a program, runs it and panics if anything is not as it must be; the message shows the
//! program. Every input runs under a watchdog that ends the process with a description of where the program stood. The
//! panics that programs make on purpose are not reported; all others are, wherever they happen.

pub mod concurrent_push;
pub mod lifecycle;
pub mod serial;
pub mod shapes;

use std::{
    any::Any,
    panic,
    sync::{
        Mutex, Once,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use arbitrary::Unstructured;
use raddle::{Engine, EngineBuilder, EngineKind, IdlePolicy};

use crate::{PanicsOnDrop, lock, program::Source};

/// A target: what is done with an input.
pub type Target = fn(&[u8]);

/// The targets, by the names of their corpora.
pub const TARGETS: [(&str, Target); 4] = [
    ("push", serial::push),
    ("concurrent_push", concurrent_push::concurrent_push),
    ("typed", serial::typed),
    ("lifecycle", lifecycle::lifecycle),
];

// -------------------------------------------------------------------------------------------------- choices ----

/// Choices from a fuzzer's bytes; all zero when these have come to their end.
pub struct Bytes<'a>(Unstructured<'a>);

impl<'a> Bytes<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
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

/// The description of an engine with one to four workers, of one of `kinds`.
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

// ------------------------------------------------------------------------------------------- planned panics ----

/// The payload of a panic that a program makes on purpose, where it is no string.
pub struct Planned;

/// What strings begin with that are payloads of such panics.
pub const PLANNED: &str = "as planned: ";

fn is_planned(payload: &dyn Any) -> bool {
    payload.is::<Planned>()
        || payload.is::<PanicsOnDrop>()
        || payload.downcast_ref::<&str>().is_some_and(|message| message.starts_with(PLANNED))
        || payload.downcast_ref::<String>().is_some_and(|message| message.starts_with(PLANNED))
}

/// Keeps planned panics from being reported; a fuzzer would even take them for crashes.
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

/// How long an input may take, in looks of the watchdog. They are counted instead of the time, so that a machine that
/// has no time for the process does not make a hang of it.
const LOOKS: u32 = 300;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

type Describe = Box<dyn Fn() -> String + Send>;

struct Watched {
    number: u64,
    target: &'static str,
    input: Vec<u8>,
    looks: u32,
    describe: Option<Describe>,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// An input under the watchdog.
pub struct Watch(u64);

impl Watch {
    /// Sets what is printed if the input hangs.
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

/// Runs `f` under the watchdog and panics with what it finds wrong.
pub fn watched(target: &'static str, input: &[u8], f: impl FnOnce(&Watch) -> Result<(), String>) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    static ONCE: Once = Once::new();
    quieten();
    ONCE.call_once(|| drop(thread::Builder::new().name("watchdog".to_owned()).spawn(look)));
    // Relaxed: only distinct numbers are needed.
    let watch = Watch(NUMBER.fetch_add(1, Relaxed));
    let new = Watched { number: watch.0, target, input: input.to_vec(), looks: 0, describe: None };
    lock(&WATCHED).push(new);
    let result = f(&watch);
    drop(watch);
    if let Err(error) = result {
        panic!("{target}: {error}\nthe input was {input:?}");
    }
}

/// Looks until `check` finds nothing wrong, for what goes on in the background; `Err` if it still does after 5,000 looks.
/// These are counted and not the time, as by the watchdog.
pub fn in_the_end(mut check: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    for _ in 0..5_000 {
        if check().is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    check()
}

fn look() {
    loop {
        thread::sleep(BETWEEN_LOOKS);
        for watched in &mut *lock(&WATCHED) {
            watched.looks += 1;
            if watched.looks > LOOKS {
                let position = watched.describe.as_ref().map_or_else(String::new, |describe| describe());
                eprintln!("{}: the input hangs\n{position}\nthe input was {:?}", watched.target, watched.input);
                std::process::abort();
            }
        }
    }
}

// ------------------------------------------------------------------------------------------- other threads ----

type Job = Box<dyn FnOnce() + Send>;

/// Has `job` done by one of two threads that live as long as the process.
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
            thread::Builder::new().name(format!("elsewhere {number}")).spawn(work).expect("a thread starts");
        }
        sender
    });
    sender.send(Box::new(job)).expect("the threads live as long as the process");
}
