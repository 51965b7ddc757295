//! Support for the tests and the fuzz targets: engines of every kind, a watchdog, gates, values whose drops are
//! counted, programs of operations, and the functions run by the fuzz targets.

#![allow(missing_docs, missing_debug_implementations, reason = "a private crate for tests")]
#![allow(
    clippy::len_without_is_empty,
    clippy::new_without_default,
    clippy::should_implement_trait,
    reason = "the crate offers only what the tests use"
)]

pub mod harness;
#[cfg(target_os = "linux")]
pub mod limits;
pub mod logger;
#[cfg(target_os = "linux")]
pub mod no_threads;
pub mod program;
pub mod shapes;

use crate::shapes::*;
use std::{
    collections::HashMap,
    env,
    fmt::Debug,
    fs,
    future::{Future, poll_fn},
    panic::{self, Location},
    pin::pin,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use raddle::{Engine, EngineKind, IdlePolicy, OpError, OpHandle, Token, WaitError};

/// The time after which a test, or a wait inside one, counts as hanging, unless it has its own limit. Under Miri,
/// seconds of work take hours.
pub const PATIENCE: Duration = Duration::from_secs(if cfg!(miri) { 36_000 } else { 60 });

/// The time limit for a short test or step. Except under Miri, it is below [`PATIENCE`], so a hang is reported sooner.
pub const AWHILE: Duration = Duration::from_secs(if cfg!(miri) { 36_000 } else { 20 });

/// The time limit for a short step, for tests that report its delay before [`watched`] does: it is below the limit that
/// a test run may set with `RADDLE_PATIENCE`.
pub const SOON: Duration = Duration::from_secs(if cfg!(miri) { 18_000 } else { 5 });

/// The time for which a test waits to see that something does *not* happen.
pub const MOMENT: Duration = Duration::from_millis(50);

/// Names that break strings, HTML elements, lines or terminals if they are not escaped.
pub const HOSTILE: [&str; 9] = [
    "\"quoted\" and \\backslashed\\",
    "</script><script>document.title='broken'</script>",
    "<!--<script>",
    "<img src=x onerror=document.title='broken'>",
    "two\nlines\r\n and \0 and \u{1b}[31m red \u{7f}\u{9b}",
    "\\u000a \\n \\N \\G {a|b}",
    "\u{2028}\u{202e}\u{1f980}\u{feff}",
    "${name} `code` %s &amp; &#60;",
    "'",
];

pub const KINDS: [EngineKind; 3] = [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice];

pub const THREADED: [EngineKind; 2] = [EngineKind::Pooled, EngineKind::PerDevice];

/// Builds an engine of `kind` with `workers` workers. They are unpinned, because pinned workers of concurrent tests
/// could share a core while other cores are idle.
pub fn engine(kind: EngineKind, workers: usize) -> Engine {
    Engine::builder().kind(kind).workers(workers).pin(false).build().expect("an engine")
}

/// Builds engines of every kind, each with a name for messages. An engine has one, two or four workers; depending on
/// the engine, they spin before parking or park immediately, and are pinned or not.
pub fn all_engines() -> Vec<(String, Engine)> {
    let mut engines = vec![("Naive".to_owned(), engine(EngineKind::Naive, 1))];
    let policies = [
        (1, IdlePolicy::default(), false),
        (2, IdlePolicy::Park, false),
        (2, IdlePolicy::SpinThenPark(Duration::from_millis(1)), false),
        (2, IdlePolicy::default(), true),
        (4, IdlePolicy::default(), false),
    ];
    for kind in THREADED {
        for (workers, idle, pinned) in policies {
            let engine = Engine::builder().kind(kind).workers(workers).idle(idle).pin(pinned).build();
            let pins = if pinned { ", pinned" } else { "" };
            let name = format!("{kind} with {workers} workers, {idle:?}{pins}");
            engines.push((name, engine.expect("an engine")));
        }
    }
    engines
}

/// Keeps the other tests of this process that call this function from running beside the caller, until the result is
/// dropped: tests that need much of the processor, and those that such tests would disturb.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    lock(&ALONE)
}

/// Runs `f` on a separate thread. Panics if `f` panics or has not ended within [`PATIENCE`].
#[track_caller]
pub fn watched(f: impl FnOnce() + Send + 'static) {
    watch(PATIENCE, Box::new(f));
}

/// Like [`watched`], with the time limit `limit`.
#[track_caller]
pub fn watched_for(limit: Duration, f: impl FnOnce() + Send + 'static) {
    watch(limit, Box::new(f));
}

/// Does the work of [`watched_for`]. It is not generic, so the code that starts a thread is compiled once, and not for
/// each test.
#[track_caller]
fn watch(limit: Duration, f: Box<dyn FnOnce() + Send>) {
    // `RADDLE_PATIENCE`, in seconds, lowers the limit when a hang is expected, as with a planted bug.
    let patience = env::var("RADDLE_PATIENCE").ok().and_then(|seconds| seconds.parse().ok());
    let limit = patience.map_or(limit, |seconds| limit.min(Duration::from_secs(seconds)));
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let (sender, receiver) = mpsc::channel();
    let watched = thread::Builder::new()
        .name(name.clone())
        .spawn(move || {
            let result = panic::catch_unwind(panic::AssertUnwindSafe(f));
            // The receiver is dropped if the time limit has passed.
            let _ = sender.send(result);
        })
        .expect("a thread should start");
    match receiver.recv_timeout(limit) {
        Ok(Ok(())) => watched.join().expect("the thread should have caught its panics"),
        Ok(Err(payload)) => panic::resume_unwind(payload),
        Err(_) => panic!("{name} hangs: it has not ended within {limit:?}"),
    }
}

/// Runs `f` under [`watched`] once for each of `kinds`, on a new engine of that kind with `workers` workers.
#[track_caller]
pub fn on_kinds(kinds: &[EngineKind], workers: usize, f: impl Fn(Engine) + Send + Sync + 'static) {
    watch_kinds(kinds, workers, Arc::new(f));
}

#[track_caller]
fn watch_kinds(kinds: &[EngineKind], workers: usize, f: Arc<dyn Fn(Engine) + Send + Sync>) {
    for &kind in kinds {
        let f = Arc::clone(&f);
        watched(move || {
            // The output of a failing test shows this line.
            println!("on the {kind} engine with {workers} workers");
            f(engine(kind, workers));
        });
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A gate, initially closed. Clones refer to the same gate.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn open(&self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }

    pub fn is_open(&self) -> bool {
        *lock(&self.0.0)
    }

    /// Waits until the gate is open, and panics if that takes too long.
    #[track_caller]
    pub fn pass(&self) {
        assert!(self.pass_within(PATIENCE), "a gate stayed closed for {PATIENCE:?}");
    }

    /// Waits until the gate is open; returns `false` if `limit` expires first.
    pub fn pass_within(&self, limit: Duration) -> bool {
        let guard = lock(&self.0.0);
        let (guard, _) =
            self.0.1.wait_timeout_while(guard, limit, |open| !*open).unwrap_or_else(PoisonError::into_inner);
        *guard
    }
}

/// A barrier at which several threads wait for each other.
#[derive(Clone)]
pub struct Meeting(Arc<(Mutex<usize>, Condvar)>, usize);

impl Meeting {
    /// Creates a barrier for `count` threads.
    pub fn new(count: usize) -> Self {
        Self(Arc::default(), count)
    }

    /// Waits for all other threads; returns `false` if `limit` expires first.
    pub fn join_within(&self, limit: Duration) -> bool {
        let mut guard = lock(&self.0.0);
        *guard += 1;
        self.0.1.notify_all();
        let (guard, _) = self
            .0
            .1
            .wait_timeout_while(guard, limit, |present| *present < self.1)
            .unwrap_or_else(PoisonError::into_inner);
        *guard >= self.1
    }

    /// Waits for all other threads, and panics if they do not arrive in time.
    #[track_caller]
    pub fn join(&self) {
        assert!(self.join_within(PATIENCE), "the other threads did not arrive within {PATIENCE:?}");
    }
}

/// Waits until `condition` holds, and panics with `what` if that takes too long.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    poll_until(what, &mut condition);
}

#[track_caller]
fn poll_until(what: &str, condition: &mut dyn FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not true after {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Keeps an engine's ordinary workers, of which there are `workers`, busy until the returned gate is opened. All of
/// them are busy when this function returns.
pub fn occupy(engine: &Engine, workers: usize) -> Gate {
    let (gate, meeting) = (Gate::new(), Meeting::new(workers + 1));
    for _ in 0..workers {
        let (gate, meeting) = (gate.clone(), meeting.clone());
        engine
            .op("occupy")
            .push_sync(move |_| {
                meeting.join();
                gate.pass();
            })
            .expect("the engine should be open");
    }
    meeting.join();
    gate
}

/// Starts an asynchronous operation that mutates `token` and completes when the returned gate is opened. The operation
/// has started when this function returns, and occupies no worker while the gate is closed. This works on engines of
/// every kind.
pub fn hold(engine: &Engine, token: &Token) -> Gate {
    let (gate, started) = (Gate::new(), Gate::new());
    let (gate_inside, started_inside) = (gate.clone(), started.clone());
    engine
        .op("hold")
        .writes([token])
        .push_async_any(raddle::cx(), move |_, done| {
            started_inside.open();
            thread::spawn(move || {
                gate_inside.pass();
                done.complete();
            });
        })
        .expect("the engine should be open");
    started.pass();
    gate
}

/// Returns the failure in a wait's result.
#[track_caller]
pub fn failure<T: Debug>(result: Result<T, WaitError>) -> OpError {
    match result {
        Err(WaitError::Failed(error)) => error,
        other => panic!("expected a failed operation, got {other:?}"),
    }
}

/// Returns the CPU time of this process, in the kernel's ticks of 10 ms.
#[cfg(target_os = "linux")]
pub fn cpu_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("procfs");
    // The name of the process, in parentheses, may contain any characters.
    let fields = stat.rsplit(')').next().expect("a line of fields");
    let field = |index: usize| fields.split_whitespace().nth(index).and_then(|text| text.parse::<u64>().ok());
    field(11).expect("the user's time") + field(12).expect("the system's time")
}

/// Returns the share of one core that the process uses while this thread sleeps for one second.
#[cfg(target_os = "linux")]
pub fn share_of_a_core() -> f64 {
    let (start, before) = (Instant::now(), cpu_ticks());
    thread::sleep(Duration::from_secs(1));
    (cpu_ticks() - before) as f64 / 100.0 / start.elapsed().as_secs_f64()
}

// ------------------------------------------------------------------------------------------------------- futures ----

struct Unpark(thread::Thread, AtomicBool);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.store(true, SeqCst);
        self.0.unpark();
    }
}

/// The error for a future that did not complete in time.
#[derive(Debug)]
pub struct NotInTime;

/// Runs a future to completion on this thread, for at most `limit`.
pub fn block_on_within<F: Future>(future: F, limit: Duration) -> Result<F::Output, NotInTime> {
    let mut future = pin!(future);
    let unpark = Arc::new(Unpark(thread::current(), AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&unpark));
    let start = Instant::now();
    loop {
        // After its first poll, the future is polled only when woken, so a lost wake-up is noticed.
        if unpark.1.swap(false, SeqCst) {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Ok(output);
            }
        }
        if start.elapsed() >= limit {
            return Err(NotInTime);
        }
        thread::park_timeout(Duration::from_millis(100));
    }
}

/// Runs a future to completion on this thread, and panics if it has not completed within [`PATIENCE`].
#[track_caller]
pub fn block_on<F: Future>(future: F) -> F::Output {
    block_on_within(future, PATIENCE).unwrap_or_else(|NotInTime| panic!("a future did not complete in {PATIENCE:?}"))
}

/// Returns a future that wakes itself and is ready at its next poll.
pub fn yield_now() -> impl Future<Output = ()> + Send {
    let mut yielded = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Polls a future once.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

// --------------------------------------------------------------------------------------------------------- drops ----

/// Creates and counts values that must each be dropped exactly once.
#[derive(Clone, Default)]
pub struct Drops(Arc<Counts>);

#[derive(Default)]
struct Counts {
    made: AtomicUsize,
    dropped: AtomicUsize,
    twice: AtomicUsize,
}

/// A value that must be dropped exactly once.
pub struct Droppable {
    counts: Arc<Counts>,
    gone: AtomicBool,
}

impl Drops {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn make(&self) -> Droppable {
        self.0.made.fetch_add(1, SeqCst);
        Droppable { counts: Arc::clone(&self.0), gone: AtomicBool::new(false) }
    }

    pub fn made(&self) -> usize {
        self.0.made.load(SeqCst)
    }

    pub fn dropped(&self) -> usize {
        self.0.dropped.load(SeqCst)
    }

    /// Panics unless every value created was dropped exactly once.
    #[track_caller]
    pub fn assert_all_gone(&self) {
        self.check().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns an error unless every value created was dropped exactly once.
    pub fn check(&self) -> Result<(), String> {
        match (self.0.twice.load(SeqCst), self.made(), self.dropped()) {
            (0, made, dropped) if made == dropped => Ok(()),
            (0, made, dropped) => Err(format!("{made} values were created, but {dropped} were dropped")),
            (twice, ..) => Err(format!("{twice} values were dropped twice")),
        }
    }
}

impl Clone for Droppable {
    fn clone(&self) -> Self {
        Drops(Arc::clone(&self.counts)).make()
    }
}

impl Droppable {
    /// Uses the value, so that a closure captures it. Panics if the value has been dropped.
    pub fn touch(&self) {
        assert!(!self.gone.load(SeqCst), "a value was used after its drop");
    }
}

impl Drop for Droppable {
    fn drop(&mut self) {
        let before = self.gone.swap(true, SeqCst);
        let count = if before { &self.counts.twice } else { &self.counts.dropped };
        count.fetch_add(1, SeqCst);
    }
}

/// A value whose drop panics, unless the thread is already unwinding.
pub struct PanicsOnDrop(pub &'static str);

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic::panic_any(self.0);
        }
    }
}

// ----------------------------------------------------------------------------------------------- the process ----

/// Functions for a test to defer in crossbeam's default collector, which panic on the threads of engines.
///
/// Once this value has been dropped, the functions do nothing. A thread that ends may run them in the destructor of the
/// collector's thread-local, where a panic aborts the process.
#[derive(Default)]
pub struct DeferredPanics(Arc<(AtomicBool, AtomicUsize)>);

impl DeferredPanics {
    /// Returns a function that panics once if it runs on a thread of an engine.
    pub fn function(&self) -> impl FnOnce() + Send + 'static {
        let shared = Arc::clone(&self.0);
        move || {
            let (over, count) = &*shared;
            if !over.load(SeqCst) && thread::current().name().is_some_and(|name| name.starts_with("raddle-")) {
                count.fetch_add(1, SeqCst);
                panic::resume_unwind(Box::new("deferred by another crate"));
            }
        }
    }

    /// Returns the number of panics so far.
    pub fn count(&self) -> usize {
        self.0.1.load(SeqCst)
    }
}

impl Drop for DeferredPanics {
    fn drop(&mut self) {
        self.0.0.store(true, SeqCst);
    }
}

/// The environment variable set in processes started by [`child`].
pub const CHILD: &str = "RADDLE_TEST_CHILD";

/// Returns whether this process was started by [`child`].
pub fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Returns the name by which a test binary knows the test `name` of the caller's file: the file's path in the folder
/// `tests` consists of the name of the binary and the path of a module.
#[track_caller]
pub fn test_path(name: &str) -> String {
    let file = Location::caller().file();
    let modules = file.rsplit_once("tests/").map_or("", |(_, inside)| inside.trim_end_matches(".rs"));
    let modules = modules.split('/').skip(1).filter(|&part| part != "mod" && part != "main");
    modules.chain([name]).collect::<Vec<_>>().join("::")
}

/// Runs the ignored test `name` of the caller's file in a separate process, with additional environment variables.
/// Returns whether the test succeeded within [`PATIENCE`], and the process's output. Meant for tests that end, measure
/// or modify their process.
#[track_caller]
pub fn child(name: &str, variables: &[(&str, &str)]) -> (bool, String) {
    child_within(PATIENCE, name, variables)
}

/// Like [`child`], with the time limit `limit`.
#[track_caller]
pub fn child_within(limit: Duration, name: &str, variables: &[(&str, &str)]) -> (bool, String) {
    struct Kill(Child);
    impl Drop for Kill {
        fn drop(&mut self) {
            // Nothing can be done about an error in a destructor.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let exe = env::current_exe().expect("the test binary should have a path");
    let name = &test_path(name);
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, SeqCst);
    let output = env::temp_dir().join(format!("raddle-test-{}-{number}", std::process::id()));
    let file = fs::File::create(&output).expect("a file for the child's output");
    let child = Command::new(exe)
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .env_remove("RADDLE_ENGINE")
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a second handle to the file"))
        .stderr(file)
        .spawn()
        .expect("the test binary should start");
    let mut child = Kill(child);
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.0.try_wait().expect("waiting for the child should succeed") {
            break Some(status);
        }
        if start.elapsed() > limit {
            break None;
        }
        thread::sleep(Duration::from_millis(2));
    };
    drop(child);
    let text = String::from_utf8_lossy(&fs::read(&output).unwrap_or_default()).into_owned();
    let _ = fs::remove_file(&output);
    match status {
        Some(status) => {
            let ran = text.contains("test result: ok. 1 passed");
            (status.success() && ran, format!("{status}\n{text}"))
        }
        None => (false, format!("it did not end within {limit:?}\n{text}")),
    }
}

/// Runs the ignored test `name` with [`child`] and panics unless the test succeeds.
#[track_caller]
pub fn child_succeeds(name: &str) {
    let (success, text) = child(name, &[]);
    assert!(success, "{name} failed in its own process: {text}");
}

/// Runs the ignored test `name` with [`child`] once for each kind of engine, selected by `RADDLE_ENGINE`. Panics unless
/// every run succeeds.
#[track_caller]
pub fn child_succeeds_on_each_kind(name: &str) {
    for kind in KINDS {
        let (success, text) = child(name, &[("RADDLE_ENGINE", &kind.to_string())]);
        assert!(success, "{name} failed in its own process with {kind} engines: {text}");
    }
}

/// Returns the number of threads of this process.
#[cfg(target_os = "linux")]
pub fn thread_count() -> usize {
    fs::read_dir("/proc/self/task").expect("procfs").count()
}

/// Waits until this process has `count` threads. The kernel may still list a thread that has just been joined.
#[cfg(target_os = "linux")]
#[track_caller]
pub fn wait_for_thread_count(count: usize) {
    eventually("the threads have ended", || thread_count() == count);
}

/// Returns the resident memory of this process, in bytes.
#[cfg(target_os = "linux")]
pub fn resident_bytes() -> usize {
    status_bytes("VmRSS:")
}

/// Returns the size of this process's mapped address space, in bytes.
#[cfg(target_os = "linux")]
pub fn mapped_bytes() -> usize {
    status_bytes("VmSize:")
}

#[cfg(target_os = "linux")]
fn status_bytes(what: &str) -> usize {
    status("self", what).trim_end_matches("kB").trim().parse::<usize>().expect("a number of kB") * 1024
}

/// Returns what the kernel says after `what` in the status of this process (`self`) or of the calling thread
/// (`thread-self`).
#[cfg(target_os = "linux")]
fn status(of: &str, what: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{of}/status")).expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("the status should have this line");
    line.trim().to_owned()
}

/// Returns the cores available to the calling thread, as listed by the kernel.
#[cfg(target_os = "linux")]
pub fn allowed_cores() -> String {
    status("thread-self", "Cpus_allowed_list:")
}

/// Returns how often the calling thread has slept.
#[cfg(target_os = "linux")]
pub fn times_slept() -> u64 {
    status("thread-self", "voluntary_ctxt_switches:").parse().expect("a number")
}

/// Returns the timer slack of the calling thread, in ns.
#[cfg(target_os = "linux")]
pub fn timer_slack() -> u64 {
    // The kernel shows it in the folder of the thread's number, but not in that of the thread in its process.
    let this = fs::read_link("/proc/thread-self").expect("procfs");
    let number = this.file_name().expect("the name should be the thread's number").to_string_lossy();
    let slack = fs::read_to_string(format!("/proc/{number}/timerslack_ns"));
    slack.expect("the file should be this thread's own").trim().parse().expect("the slack should be a number")
}

/// Counts of events by name.
#[derive(Clone, Default)]
pub struct Tallies(Arc<Mutex<HashMap<String, usize>>>);

impl Tallies {
    pub fn add(&self, what: impl Into<String>) {
        *lock(&self.0).entry(what.into()).or_default() += 1;
    }

    pub fn of(&self, what: &str) -> usize {
        lock(&self.0).get(what).copied().unwrap_or(0)
    }
}

/// Nests operations of a naive engine until a push defers its operation, then calls `f` with the deferred operation's
/// handle, inside the operation that pushed it.
pub fn at_the_first_deferred_push(engine: &Engine, f: impl FnOnce(OpHandle<()>) + Send + 'static) {
    type Deep = Arc<Mutex<Option<Box<dyn FnOnce(OpHandle<()>) + Send>>>>;
    fn descend(engine: &Engine, f: &Deep) {
        let (inside, inner, ran) = (engine.clone(), Arc::clone(f), Gate::new());
        let opens = ran.clone();
        let function = move |()| {
            opens.open();
            if lock(&inner).is_some() {
                descend(&inside, &inner);
            }
        };
        let next = engine.op("deep").submit((), function).expect("the engine should be open");
        if !ran.is_open() {
            let f = lock(f).take();
            f.expect("only one push should be deferred")(next);
        }
    }
    let f: Deep = Arc::new(Mutex::new(Some(Box::new(f))));
    descend(engine, &f);
    assert!(lock(&f).is_none(), "no push was deferred");
}

/// A shared list to which operations append.
#[derive(Clone)]
pub struct Journal<T>(Arc<Mutex<Vec<T>>>);

impl<T> Default for Journal<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Journal<T> {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn add(&self, entry: T) {
        lock(&self.0).push(entry);
    }

    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }

    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut lock(&self.0))
    }
}
