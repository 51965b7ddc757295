//! Forked processes: in the child, calls on the parent's engines return errors, and new engines work.
//!
//! Each test runs in a separate process, since a fork would also copy the state of concurrent tests. A forked process
//! reports through its exit status whether its checks passed, writes to the descriptor of standard error without taking
//! the lock of `std`, and is killed by an alarm if it hangs.

#![cfg(target_os = "linux")]

use raddle_testkit as common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs,
    future::Future,
    mem,
    ops::RangeInclusive,
    panic,
    pin::Pin,
    process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context as Task, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use common::shapes::*;
use common::{KINDS, MOMENT, SOON, THREADED, child_succeeds, eventually, is_child, lock, poll_once, resident_bytes};
use raddle::{
    Completion, Device, Engine, EngineKind, OpContext, OpHandle, Operator, Property, PushError, Shutdown, Token, Var,
    VarWait, WaitError,
    chosen::{self, On},
    completion,
    error::{BuildError, ShutdownError},
    gpu::{DeviceVec, ImportedStream, PinnedVec, SimulatedGpu, simulated::Counts},
    trace::Recorder,
};

const GPU: Device = Device::Gpu(0);

// ---------------------------------------------------------------------------------------------------------- forks ----

/// Writes a line to standard error without locking.
fn print(text: &str) {
    let line = format!("{text}\n");
    // SAFETY: the pointer and the length describe `line`, which is alive.
    let _ = unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// Kills this process after `seconds`, unless it ends earlier.
fn set_alarm(seconds: libc::c_uint) {
    // SAFETY: `alarm` has no preconditions.
    unsafe { libc::alarm(seconds) };
}

/// Ends this process without running destructors.
fn exit(status: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(status) }
}

/// Forks. Returns the child's id in the parent, and `None` in the child.
fn fork() -> Option<libc::pid_t> {
    // `RADDLE_PATIENCE` is set where a hang is expected.
    let seconds = if std::env::var_os("RADDLE_PATIENCE").is_none() { 20 } else { 5 };
    // SAFETY: `fork` itself has no preconditions. These tests check what the child may call afterwards.
    match unsafe { libc::fork() } {
        0 => {
            set_alarm(seconds);
            None
        }
        -1 => panic!("cannot fork: {}", std::io::Error::last_os_error()),
        child => Some(child),
    }
}

/// Waits for a forked process, and ends this process if the forked one has failed. Exiting, unlike panicking, runs no
/// drops, which might wait for a paused thread.
fn join(child: libc::pid_t, what: &str) {
    if hangs(child, what) {
        print(&format!("in a forked process, {what}: it hangs"));
        exit(1);
    }
}

/// Waits for a forked process, and returns whether it was killed because it hung. Ends this process if the forked one
/// has failed otherwise.
fn hangs(child: libc::pid_t, what: &str) -> bool {
    let mut status = 0;
    loop {
        // SAFETY: the pointer is to `status`, which is alive.
        match unsafe { libc::waitpid(child, &raw mut status, 0) } {
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            -1 => {
                print(&std::io::Error::last_os_error().to_string());
                exit(1);
            }
            _ => break,
        }
    }
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM {
        return true;
    }
    if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
        print(&format!("in a forked process, {what}: status {status:#x}"));
        exit(1);
    }
    false
}

/// Runs `f` in a forked process and waits for the process, as described for [`retry_a_hang`].
fn forked(what: &str, f: impl Fn()) {
    retry_a_hang(what, || match fork() {
        Some(child) => hangs(child, what),
        None => exit(i32::from(panic::catch_unwind(panic::AssertUnwindSafe(&f)).is_err())),
    });
}

/// Calls `run`, which returns whether a forked process hung. A hang counts only if it occurs in a second call as well;
/// it then ends this process.
///
/// At the moment of the fork, a thread that is not paused may hold a lock outside the engine, which stays locked in the
/// child: one of the C library, or the one that `std` takes for a moment when a thread starts or ends. The locks of a
/// paused thread are still held at the second fork.
fn retry_a_hang(what: &str, mut run: impl FnMut() -> bool) {
    for _ in 0..2 {
        if !run() {
            return;
        }
        print(&format!("in a forked process, {what}: it hangs"));
    }
    exit(1);
}

/// Runs the test `body` if this process was started for it.
fn in_own_process(body: impl FnOnce()) {
    if is_child() {
        // The default hook locks standard error, and a thread missing from the child may hold that lock.
        panic::set_hook(Box::new(|info| print(&format!("process {}: {info}", process::id()))));
        body();
    }
}

// ------------------------------------------------------------------------------------------------- paused threads ----

/// An allocator that pauses a thread at a given allocation, even if the thread holds a lock.
struct PausingAllocator;

std::thread_local! {
    /// The allocation at which this thread pauses: the number of allocations to skip, and the minimum and maximum size,
    /// in bytes, of the allocations counted.
    static PAUSE_AT: Cell<Option<(usize, usize, usize)>> = const { Cell::new(None) };
}

static PAUSED: AtomicBool = AtomicBool::new(false);
static RESUME: AtomicBool = AtomicBool::new(false);

fn count_allocation(size: usize) {
    match PAUSE_AT.get() {
        Some((skip, least, greatest)) if (least..=greatest).contains(&size) => {
            PAUSE_AT.set((skip > 0).then(|| (skip - 1, least, greatest)));
            if skip == 0 {
                PAUSED.store(true, SeqCst);
                while !RESUME.load(SeqCst) {
                    // SAFETY: `usleep` has no preconditions.
                    unsafe { libc::usleep(100) };
                }
            }
        }
        _ => {}
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator, which fulfils the contract.
unsafe impl GlobalAlloc for PausingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        // SAFETY: the caller fulfils the contract of this function, which is that of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the contract of `dealloc`, and `memory` is from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocation(size);
        // SAFETY: the caller fulfils the contract of `realloc`, and `memory` is from the system's allocator.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: PausingAllocator = PausingAllocator;

/// Resets the flags after a pause.
fn reset_pause() {
    PAUSED.store(false, SeqCst);
    RESUME.store(false, SeqCst);
}

/// Makes this thread pause at an allocation whose size in bytes is in `sizes`, after `skip` other such allocations.
fn pause_after(skip: usize, sizes: RangeInclusive<usize>) {
    PAUSE_AT.set(Some((skip, *sizes.start(), *sizes.end())));
}

/// Runs `call` repeatedly: the first run pauses at its first allocation, the second run at its second, and so on, until
/// a run ends without a pause. `then` runs during each pause. `call` must call its argument on the thread that should
/// pause, before the first allocation of interest. Returns the number of pauses.
fn at_each_allocation(call: impl Fn(&dyn Fn()) + Sync, mut then: impl FnMut(usize)) -> usize {
    for number in 0.. {
        reset_pause();
        let done = AtomicBool::new(false);
        let has_paused = thread::scope(|scope| {
            scope.spawn(|| {
                call(&|| pause_after(number, 0..=usize::MAX));
                PAUSE_AT.set(None);
                done.store(true, SeqCst);
            });
            eventually("a thread pauses, or the call returns", || PAUSED.load(SeqCst) || done.load(SeqCst));
            let paused = PAUSED.load(SeqCst);
            if paused {
                then(number);
            }
            RESUME.store(true, SeqCst);
            paused
        });
        if !has_paused {
            return number;
        }
    }
    unreachable!("a call should make a finite number of allocations")
}

// -------------------------------------------------------------------------------------------------------- fixture ----

type All = Pin<Box<dyn Future<Output = Result<(), WaitError>> + Send>>;

/// An engine and handles of every kind.
struct Fixture {
    engine: Engine,
    idle: Var<u64>,
    busy: Var<u64>,
    failed: Var<u64>,
    token: Token,
    operator: Operator,
    bare_operator: Operator,
    choosing_operator: Operator<On<chosen::ChosenWrite<u64>, String>>,
    pending: OpHandle<u64>,
    done: OpHandle<u64>,
    pending_wait: VarWait,
    complete_wait: VarWait,
    all: Mutex<All>,
    completion: Completion,
    lost_completion: Completion,
    device: Var<DeviceVec<u64>>,
    pinned: Var<PinnedVec<u64>>,
}

fn engine(kind: EngineKind) -> Engine {
    engine_with(kind, SimulatedGpu::default())
}

fn engine_with(kind: EngineKind, gpu: SimulatedGpu) -> Engine {
    Engine::builder().kind(kind).workers(1).pin(false).gpu(gpu).build().expect("an engine")
}

/// Starts an operation that mutates `token`, and returns its completion.
fn hold(engine: &Engine, token: &Token) -> Completion {
    let slot = Arc::new(Mutex::new(None));
    let inside = Arc::clone(&slot);
    engine
        .op("hold")
        .writes([token])
        .push_async_any(raddle::cx(), move |_, done| _ = lock(&inside).replace(done))
        .expect("the engine should be open");
    eventually("the operation has started", || lock(&slot).is_some());
    let completion = lock(&slot).take();
    completion.expect("the completion should be stored")
}

impl Fixture {
    fn new(kind: EngineKind) -> Self {
        let engine = engine(kind);
        let [idle, busy, failed] = [0_u64; 3].map(|value| engine.var(value));
        let (token, lost) = (engine.token(), engine.token());
        let (device, pinned) = (engine.device_var(GPU, 4).unwrap(), engine.pinned_var(GPU, 4).unwrap());
        engine.op("copy").on(GPU).copy_to_device(&pinned, &device).unwrap();
        engine.wait_for_all().unwrap();
        engine.op("fail").push_any(failed.write(), |_| Err("on purpose")).unwrap();
        assert!(engine.wait_for_var(&failed).is_err());
        let operator = engine.op("operator").operator(idle.write(), |idle| *idle += 1).unwrap();
        let bare_operator = engine.op("bare operator").operator((), |()| ()).unwrap();
        let add = |to: &mut u64, (), text: String| *to += text.len() as u64;
        let choosing_operator = engine.op("choosing operator").operator_on(chosen::write(), (), add).unwrap();
        operator.push().unwrap();
        let done = engine.op("done").submit(idle.read(), |idle| *idle).unwrap();
        eventually("the operation is done", || done.is_done());
        let complete_wait = engine.wait_for_var_async(&idle);
        let (completion, lost_completion) = (hold(&engine, busy.token()), hold(&engine, &lost));
        let mut pending = engine.op("pending").submit(busy.read(), |busy| *busy).unwrap();
        let mut pending_wait = engine.wait_for_var_async(&busy);
        let mut all: All = Box::pin(engine.wait_for_all_async());
        assert!(poll_once(&mut pending).is_pending());
        assert!(poll_once(&mut pending_wait).is_pending());
        assert!(poll_once(&mut all).is_pending());
        Self {
            engine,
            idle,
            busy,
            failed,
            token,
            operator,
            bare_operator,
            choosing_operator,
            pending,
            done,
            pending_wait,
            complete_wait,
            all: Mutex::new(all),
            completion,
            lost_completion,
            device,
            pinned,
        }
    }

    /// Calls `in_child` in a forked process, which must end well, and then checks that the parent is unaffected.
    fn fork(self, what: &str, in_child: impl FnOnce(Self)) {
        match fork() {
            Some(child) => {
                join(child, what);
                self.assert_unaffected();
            }
            None => exit(i32::from(panic::catch_unwind(panic::AssertUnwindSafe(|| in_child(self))).is_err())),
        }
    }

    /// Asserts in the parent that the fork has changed nothing, and shuts the engine down.
    fn assert_unaffected(self) {
        let Self { engine, idle, busy, failed, operator, pending, done, mut pending_wait, all, .. } = self;
        let mut all = all.into_inner().unwrap();
        assert!(poll_once(&mut pending_wait).is_pending());
        assert!(poll_once(&mut all).is_pending());
        self.completion.complete();
        self.lost_completion.complete();
        assert_eq!(pending.wait().unwrap(), 0);
        assert_eq!(done.wait().unwrap(), 1);
        common::block_on(pending_wait).unwrap();
        // The result depends on whether another wait has reported the failure.
        let _ = common::block_on(all);
        operator.push().unwrap();
        assert_eq!(engine.get(&idle).unwrap(), 2);
        assert_eq!(busy.version(), 1);
        engine.clear_error(&failed).unwrap();
        engine.wait_for_all().unwrap();
        drop((operator, idle, busy, failed));
        engine.shutdown(Shutdown::Drain, None).unwrap();
    }

    /// Asserts in a forked child that every call returns an error immediately and that drops do not wait.
    fn assert_refuses(self) {
        let start = Instant::now();
        assert_engine_refuses(&self.engine);
        self.assert_variables_refused();
        self.assert_handles_refused();
        assert!(start.elapsed() < SOON, "the calls took {:?}", start.elapsed());
    }

    fn assert_variables_refused(&self) {
        let engine = &self.engine;
        for var in [&self.idle, &self.busy, &self.failed] {
            assert_wait_refused(engine.get(var));
            assert_push_refused(engine.op("").push(var.write(), |var| *var += 1));
            assert_push_refused(engine.op("").submit(var.overwrite(), |var| *var += 1));
            assert_push_refused(engine.op("").submit_any(var.read(), |_| Ok::<_, &str>(())));
            assert_push_refused(engine.op("").operator(var.read(), |_| ()));
            let cloned = var.clone();
            drop(format!("{cloned:?}"));
        }
        for token in [self.idle.token(), self.busy.token(), self.failed.token(), &self.token] {
            assert_token_refused(engine, token);
        }
        print("devices");
        assert_push_refused(engine.op("").on(GPU).copy_to_device(&self.pinned, &self.device));
        assert_push_refused(engine.op("").on(GPU).copy_from_device(&self.device, &self.pinned));
        assert_push_refused(engine.op("").on(GPU).copy_peer(&self.device, &self.device));
        assert_push_refused(engine.op("").on(GPU).launch_any(self.device.write(), |_, _| ()));
        assert_push_refused(
            engine.op("").on(GPU).property(Property::GpuPrioritized).launch_any(self.device.write(), |_, _| ()),
        );
        assert_push_refused(engine.op("").on(GPU).submit_launch_any(self.device.write(), |_, _| Ok::<_, &str>(())));
        assert_push_refused(engine.op("").on(GPU).launch_operator_any(self.device.write(), |_, _| ()));
    }

    fn assert_handles_refused(self) {
        print("operators");
        for operator in [&self.operator, &self.bare_operator] {
            assert_push_refused(operator.push());
            assert_push_refused(operator.push_with_priority(1));
            drop(format!("{:?}", operator.clone()));
        }
        for var in [&self.idle, &self.busy] {
            assert_push_refused(self.choosing_operator.push_on(var, "refused".to_owned()));
            assert_push_refused(self.choosing_operator.push_on_with_priority(var, "refused".to_owned(), 1));
        }
        print("handles");
        let Self { engine, mut pending, mut done, mut pending_wait, mut complete_wait, all, .. } = self;
        let mut all = all.into_inner().unwrap();
        for handle in [&mut pending, &mut done] {
            drop(format!("{handle:?}"));
            assert!(handle.is_done(), "a wait for the handle would not return immediately");
            assert_wait_refused(handle.wait_timeout(Duration::from_secs(1000)));
            assert_poll_refused(poll_once(handle));
        }
        assert_wait_refused(pending.wait());
        drop(done);
        print("futures");
        drop(format!("{pending_wait:?}"));
        assert_poll_refused(poll_once(&mut pending_wait));
        assert_poll_refused(poll_once(&mut complete_wait));
        assert_poll_refused(all.as_mut().poll(&mut Task::from_waker(Waker::noop())));
        drop((pending_wait, complete_wait, all));
        print("drops");
        drop(format!("{:?}", self.completion));
        self.completion.complete();
        drop(self.lost_completion);
        drop(self.operator);
        drop(self.choosing_operator);
        drop((self.bare_operator, self.idle, self.busy, self.failed, self.token, self.device, self.pinned));
        drop(engine);
    }
}

#[track_caller]
fn assert_push_refused<T>(result: Result<T, PushError>) {
    let error = result.err().expect("the push should be refused");
    assert_eq!(error, PushError::Forked);
    assert!(error.to_string().contains("forked"));
}

#[track_caller]
fn assert_wait_refused<T>(result: Result<T, WaitError>) {
    match result {
        Err(WaitError::Refused(PushError::Forked)) => {}
        Err(error) => panic!("the wait ended with another error: {error:?}"),
        Ok(_) => panic!("the wait succeeded"),
    }
}

#[track_caller]
fn assert_poll_refused<T>(poll: Poll<Result<T, WaitError>>) {
    match poll {
        Poll::Ready(result) => assert_wait_refused(result),
        Poll::Pending => panic!("the future is pending"),
    }
}

/// Asserts that calls requiring only an engine are refused.
fn assert_engine_refuses(engine: &Engine) {
    print("engine");
    let another = engine.clone();
    drop(format!("{engine:?} {} {:?}", engine.kind(), engine.placements()));
    assert_push_refused(engine.push_sync(|_| (), [], []));
    assert_push_refused(engine.push_async(|_, done| done.complete(), [], []));
    assert_push_refused(engine.op("").property(Property::CpuPrioritized).push_sync(|_| ()));
    assert_push_refused(engine.op("").eager().priority(7).push_sync(|_| ()));
    assert_push_refused(engine.op("").submit((), |()| ()));
    assert_push_refused(engine.op("").operator_sync(|_| ()));
    assert_push_refused(engine.op("").operator((raddle::cx(), completion()), |(_, done)| done.complete()));
    assert!(engine.device_var::<u64>(GPU, 4).is_err_and(|error| error.code() < 0));
    assert!(engine.pinned_var::<u64>(GPU, 4).is_err_and(|error| error.code() < 0));
    print("new variables");
    let (token, var) = (engine.token(), engine.var(vec![1]));
    assert_token_refused(engine, &token);
    assert_token_refused(engine, var.token());
    assert_wait_refused(engine.get(&var));
    drop((token, var));
    print("waits for all");
    assert_wait_refused(engine.wait_for_all());
    assert_wait_refused(engine.wait_for_all_timeout(Duration::from_secs(1000)));
    assert_poll_refused(poll_once(&mut Box::pin(engine.wait_for_all_async())));
    drop(engine.wait_for_all_async());
    assert!(engine.clear_errors().is_none());
    assert_no_statistics(engine);
    print("shutdown");
    engine.notify_shutdown();
    for how in [Shutdown::Drain, Shutdown::Cancel] {
        for limit in [None, Some(Duration::from_secs(1000))] {
            assert_eq!(another.shutdown(how, limit), Err(ShutdownError::Forked));
        }
    }
}

/// Asserts that the engine reports no operations.
fn assert_no_statistics(engine: &Engine) {
    print("statistics");
    assert!(engine.dump().ops().is_empty());
    assert_eq!(engine.pending(), 0);
    let stats = engine.stats();
    assert_eq!((stats.pushed, stats.ended, stats.pending, stats.lost), (0, 0, 0, 0), "{stats}");
    assert!(stats.operations.is_empty() && stats.lanes.iter().all(|lane| lane.ready == 0), "{stats}");
}

/// Asserts that calls on a variable are refused.
fn assert_token_refused(engine: &Engine, token: &Token) {
    let limit = Duration::from_secs(1000);
    assert_wait_refused(engine.wait_for_var(token));
    assert_wait_refused(engine.wait_for_var_timeout(token, limit));
    assert_poll_refused(poll_once(&mut engine.wait_for_var_async(token)));
    assert_wait_refused(engine.wait_to_read(token));
    assert_wait_refused(engine.wait_to_read_timeout(token, limit));
    assert_poll_refused(poll_once(&mut engine.wait_to_read_async(token)));
    assert_wait_refused(engine.wait_for_var(token));
    assert_wait_refused(engine.wait_for_var_timeout(token, limit));
    assert_poll_refused(poll_once(&mut engine.wait_for_var_async(token)));
    assert_push_refused(engine.push_sync(|_| (), [], [token]));
    assert_push_refused(engine.push_async(|_, done| done.complete(), [token], []));
    assert_push_refused(engine.clear_error(token));
    assert_push_refused(engine.delete_variable(token, |_| exit(3)));
    let (another, _) = (token.clone(), token.version());
    drop(format!("{another:?}"));
}

/// Asserts that a new engine runs operations, nested waits, copies and asynchronous operations.
fn assert_new_engine_works(kind: EngineKind) {
    print("a new engine");
    let engine = engine(kind);
    let var = engine.var(0_u64);
    for _ in 0..100 {
        engine.op("").push(var.write(), |var| *var += 1).unwrap();
    }
    let inner = engine.clone();
    let waits = engine.op("waits").submit(var.read(), move |var| {
        // On a threaded engine, the wait runs this operation in place, or another thread runs it.
        let other = inner.var(*var);
        inner.op("").push(other.write(), |other| *other += 1).unwrap();
        inner.get(&other).unwrap()
    });
    assert_eq!(waits.unwrap().wait().unwrap(), 101);
    let (inner, same) = (engine.clone(), var.clone());
    let waits_for_itself = engine.op("").submit(var.write(), move |_| inner.wait_for_var(&same));
    let refused = waits_for_itself.unwrap().wait().unwrap();
    assert!(matches!(refused, Err(WaitError::WouldDeadlock(_))), "{refused:?}");
    let (device, pinned) = (engine.device_var(GPU, 4).unwrap(), engine.pinned_var::<u64>(GPU, 4).unwrap());
    engine.op("").on(GPU).copy_to_device(&pinned, &device).unwrap();
    engine.op("").on(GPU).copy_from_device(&device, &pinned).unwrap();
    engine.wait_for_all().unwrap();
    assert_eq!(engine.get(&var).unwrap(), 100);
    let completion = hold(&engine, var.token());
    // This process does not reuse its parent's records, whose addresses it does not know. All records in use are in
    // its own registry, so the dump lists every pending operation.
    let dump = engine.dump();
    assert_eq!((dump.ops().len(), dump.unlisted()), (1, 0), "{dump}");
    completion.complete();
    drop(engine);
}

/// Asserts that the global engine works and that later calls return the same engine.
fn assert_global_engine_works() {
    print("the global engine");
    let engine = Engine::global().unwrap();
    let var = engine.var(1);
    engine.op("").push(var.write(), |var| *var += 1).unwrap();
    assert_eq!(engine.get(&var).unwrap(), 2);
    assert!(std::ptr::eq(engine, Engine::global().unwrap()));
}

// ---------------------------------------------------------------------------------------------------------- tests ----

macro_rules! tests {
    ($($(#[doc = $doc:literal])* $name:ident in $child:ident $body:block)+) => {$(
        $(#[doc = $doc])*
        #[test]
        #[cfg_attr(miri, ignore = "starts processes")]
        fn $name() {
            child_succeeds(stringify!($child));
        }

        #[test]
        #[ignore = "run by another test in a separate process"]
        fn $child() {
            in_own_process(|| $body);
        }
    )+};
}

tests! {
    every_call_on_an_engine_of_the_parent_returns_an_error_in_a_child in in_a_child_every_call_ends {
        for kind in KINDS {
            Fixture::new(kind).fork(&format!("calls on a {kind} engine"), |parent| {
                parent.assert_refuses();
                assert_new_engine_works(kind);
            });
        }
    }

    /// A library that stops its engine before forks and starts it afterwards has registered its handlers before it
    /// built the first engine, so they run before raddle's in a child.
    an_engine_built_by_an_earlier_fork_handler_works in in_a_child_an_earlier_handler_builds_an_engine {
        static BUILT: Mutex<Option<(Engine, Var<u64>)>> = Mutex::new(None);
        static KIND: Mutex<EngineKind> = Mutex::new(EngineKind::PerDevice);

        extern "C" fn build() {
            let engine = engine(*lock(&KIND));
            let var = engine.var(1);
            engine.op("").push(var.write(), |var| *var += 1).unwrap();
            *lock(&BUILT) = Some((engine, var));
        }

        let built = |what: &str| {
            print(what);
            let (engine, var) = lock(&BUILT).take().expect("the handler has run");
            engine.op("").push(var.write(), |var| *var += 1).unwrap();
            assert_eq!(engine.get(&var).unwrap(), 3);
            (engine, var)
        };
        // SAFETY: the handler exists as long as the process does. The thread that forks holds no lock that it takes.
        assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(build)) }, 0);
        for kind in KINDS {
            *lock(&KIND) = kind;
            Fixture::new(kind).fork(&format!("an engine that a handler has built: {kind}"), |parent| {
                parent.assert_refuses();
                let (child, var) = built("in a child");
                forked("the engine that a handler has built in a grandchild", || {
                    assert_engine_refuses(&child);
                    assert_token_refused(&child, var.token());
                    let _ = built("in a grandchild");
                    assert_new_engine_works(kind);
                });
                assert_eq!(child.get(&var).unwrap(), 3);
            });
        }
    }

    /// No operation is pending, and the engine's threads are idle.
    an_idle_engine_can_be_dropped_in_a_forked_child in in_a_child_an_idle_engine_is_dropped {
        for kind in KINDS {
            let engine = engine(kind);
            let var = engine.var(0);
            engine.op("").push(var.write(), |var| *var += 1).unwrap();
            engine.wait_for_all().unwrap();
            match fork() {
                Some(child) => join(child, &format!("the drop of an idle {kind} engine")),
                None => exit(i32::from(panic::catch_unwind(panic::AssertUnwindSafe(|| drop((engine, var)))).is_err())),
            }
        }
    }

    /// Otherwise, the parent's cores would stay claimed when the parent ends.
    a_child_does_not_keep_the_cores_of_its_parent in in_a_child_the_cores_of_the_parent_are_not_kept {
        let claims = || {
            let files = fs::read_dir("/proc/self/fd").unwrap().map(|file| fs::read_link(file.unwrap().path()));
            files.filter(|file| file.as_ref().is_ok_and(|file| file.as_os_str() == "/dev/full")).count()
        };
        let most = usize::from(fs::File::options().write(true).open("/dev/full").is_ok());
        let build = || Engine::builder().workers(1).pin(true).build().unwrap();
        let engine = build();
        assert_eq!(claims(), most);
        forked("the claims of the parent", || {
            assert_eq!(claims(), 0);
            let engine = build();
            assert_eq!(claims(), most);
            drop(engine);
            assert_eq!(claims(), 0);
        });
        drop(engine);
        assert_eq!(claims(), 0, "no worker is pinned");
    }

    /// The thread that forks has kept records of the parent for reuse.
    operations_pushed_in_a_child_are_listed_in_its_dumps in in_a_child_operations_are_listed {
        let engine = engine(EngineKind::Naive);
        (0..10_000).for_each(|_| engine.op("").push((), |()| ()).unwrap());
        forked("a dump", || {
            let new = engine_with(EngineKind::Pooled, SimulatedGpu::default());
            let token = new.token();
            let completion = hold(&new, &token);
            (0..100).for_each(|_| new.op("behind").writes([&token]).push((), |()| ()).unwrap());
            let dump = new.dump();
            assert_eq!((dump.ops().len(), dump.unlisted()), (101, 0), "{dump}");
            completion.complete();
            new.wait_for_all().unwrap();
        });
    }

    /// Each engine prepares for forks, and warns if it cannot.
    engines_that_are_prepared_for_forks_log_nothing in in_a_child_nothing_is_logged {
        let messages = Arc::new(Mutex::new(Vec::new()));
        let logged = Arc::clone(&messages);
        common::logger::log_to(move |message| lock(&logged).push(message.to_owned()));
        KINDS.into_iter().for_each(|kind| drop(engine(kind)));
        assert_eq!(*lock(&messages), Vec::<String>::new());
    }

    a_device_of_the_parent_is_lost_in_a_child in in_a_child_a_device_of_the_parent_is_used {
        let gpu = SimulatedGpu::default();
        for kind in KINDS {
            let gpu = &gpu;
            let parents = engine_with(kind, gpu.clone());
            parents.op("").on(GPU).launch_any((), |_, ()| ()).unwrap();
            parents.wait_for_all().unwrap();
            assert_ne!(gpu.counts(), Counts::default());
            forked(&format!("a device of the parent, {kind}"), || {
                let error = ImportedStream::simulated(gpu).expect_err("the device should be lost");
                assert!(error.is_lost() && error.code() == -1, "{error:?}");
                assert_eq!(gpu.counts(), Counts::default());
                let engine = engine_with(kind, gpu.clone());
                assert!(engine.device_var::<u64>(GPU, 4).expect_err("the device should be lost").is_lost());
                let launch = engine.op("").on(GPU).submit_launch_any((), |_, ()| Ok::<_, &str>(()));
                let Err(WaitError::Failed(error)) = launch.unwrap().wait() else { panic!("the device is lost") };
                assert!(error.to_string().contains("belongs to the parent process"), "{error}");
            });
        }
    }

    a_forked_child_gets_a_new_global_engine in in_a_child_the_global_engine_is_new {
        assert_global_engine_works();
        let parents = Engine::global().unwrap();
        let var = parents.var(1);
        forked("the global engine of the parent", || {
            assert_engine_refuses(parents);
            assert_wait_refused(parents.get(&var));
            assert_global_engine_works();
            assert!(!std::ptr::eq(parents, Engine::global().unwrap()));
            // In a grandchild, the child's global engine refuses all calls too.
            let childs = Engine::global().unwrap();
            forked("the global engine of the child", || {
                assert_engine_refuses(parents);
                assert_engine_refuses(childs);
                assert_global_engine_works();
                KINDS.into_iter().for_each(assert_new_engine_works);
            });
            assert_global_engine_works();
        });
        assert_eq!(parents.get(&var).unwrap(), 1);
    }

    /// At the moment of the fork, another thread is paused and may hold a lock. Nearly every lock is held during some
    /// allocation, so pausing at each allocation covers nearly all of them.
    a_forked_child_takes_no_lock_of_its_parent in in_a_child_no_lock_is_taken {
        for kind in KINDS {
            let mut pauses = 0;
            for (name, call) in CALLS {
                let fixture = Fixture::new(kind);
                pauses += at_each_allocation(
                    |arm| call(&fixture, arm),
                    |at| forked(&format!("{kind}, a thread in {name}, at its allocation {at}"), || {
                        // SAFETY: the child exits without using or dropping the original, so the value has only one
                        // user there.
                        unsafe { std::ptr::read(&raw const fixture) }.assert_refuses();
                        assert_new_engine_works(kind);
                    }),
                );
                fixture.completion.complete();
                fixture.lost_completion.complete();
            }
            assert!(pauses > 20, "{kind}: threads paused only {pauses} times");
        }
    }

    /// At the moment of the fork, another thread holds the lock of the pending count or of the recorder.
    statistics_in_a_child_take_no_lock in in_a_child_statistics_are_taken {
        for kind in KINDS {
            let recorder = Recorder::new();
            let builder = Engine::builder().kind(kind).workers(1).pin(false).recorder(&recorder);
            let engine = builder.build().expect("an engine");
            let token = engine.token();
            let completion = hold(&engine, &token);
            // Each of these calls makes its first allocation under one of the locks.
            let wait = || _ = engine.wait_for_all_timeout(Duration::from_millis(1));
            let take = || drop(recorder.take());
            let calls: [(&str, &(dyn Fn() + Sync)); 2] = [("wait_for_all_timeout", &wait), ("Recorder::take", &take)];
            for (name, call) in calls {
                thread::scope(|scope| {
                    scope.spawn(move || {
                        pause_after(0, 0..=usize::MAX);
                        call();
                    });
                    eventually("the thread pauses", || PAUSED.load(SeqCst));
                    let stats = scope.spawn(|| engine.stats());
                    thread::sleep(MOMENT);
                    let is_held = !stats.is_finished();
                    forked(&format!("{kind}, statistics beside {name}"), || {
                        assert_no_statistics(&engine);
                        assert!(recorder.take().ops().is_empty(), "the child takes its parent's trace");
                        let built = Engine::builder().recorder(&recorder).build();
                        assert!(matches!(built, Err(BuildError::ForkedRecorder)), "{built:?}");
                    });
                    RESUME.store(true, SeqCst);
                    assert!(is_held, "{kind}: no lock is held in {name}");
                    assert!(stats.join().expect("the thread should not panic").pending > 0);
                });
                reset_pause();
            }
            completion.complete();
            engine.wait_for_all().unwrap();
        }
    }

    /// A function that uses units forks while another thread is paused, perhaps under the lock of a resource's queues.
    /// In the child, the function waits for a new engine.
    units_are_left_to_the_parent_of_a_child in in_a_child_units_are_left {
        for kind in [EngineKind::Naive, EngineKind::Pooled] {
            let engine = Engine::builder().kind(kind).workers(1).jobs(1).pin(false).build().unwrap();
            let (one, inside) = (engine.resource(1), engine.clone());
            let same = one.clone();
            let function = move |()| {
                // Operations that need other units wait in a queue of their own.
                let push = || {
                    let other = inside.resource(1);
                    inside.op("next").uses(&same, 1).uses(&other, 1).push((), |()| ()).unwrap();
                };
                let create = || drop((inside.resource(1), inside.group().jobs(1)));
                let in_child = || {
                    let new = common::engine(kind, 1);
                    let token = new.token();
                    let completion = hold(&new, &token);
                    assert!(matches!(new.wait_for_var_timeout(&token, MOMENT), Err(WaitError::TimedOut)));
                    completion.complete();
                    new.wait_for_var(&token).unwrap();
                    assert_push_refused(inside.op("").uses(&same, 1).push((), |()| ()));
                    create();
                };
                let calls: [(&str, &(dyn Fn() + Sync)); 2] = [("push", &push), ("create", &create)];
                for (name, call) in calls {
                    let call = |arm: &dyn Fn()| {
                        arm();
                        call();
                    };
                    let then = |at| forked(&format!("`{name}` on a {kind} engine, at allocation {at}"), in_child);
                    assert!(at_each_allocation(call, then) > 0, "`{name}` allocates nothing");
                }
            };
            let handle = engine.op("forks").uses(&one, 1).submit((), function).unwrap();
            handle.wait().unwrap();
            engine.wait_for_all().unwrap();
        }
    }

    a_process_may_fork_while_a_thread_builds_the_global_engine in in_a_child_the_global_engine_is_being_built {
        let pauses = at_each_allocation(
            |arm| {
                arm();
                Engine::global().unwrap();
            },
            |at| forked(&format!("the global engine is built, at allocation {at}"), assert_global_engine_works),
        );
        assert!(pauses > 0, "building the global engine allocates nothing");
    }

    /// Another thread is paused during a push, while it pins the epoch.
    memory_stays_flat_in_a_child_forked_while_a_thread_is_pinned in in_a_child_memory_stays_flat {
        let engine = engine(EngineKind::Naive);
        let (stop, var) = (AtomicBool::new(false), engine.var(0_u64));
        // This thread also participates in the epoch.
        engine.op("").push(var.write(), |_| ()).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let push = || engine.op("").push(var.write(), |var| *var += 1).unwrap();
                (0..1000).for_each(|_| push());
                // A pinned thread passes retired objects to the collector in one allocation: 64 functions of 32 bytes
                // and a header.
                pause_after(0, 2048..=2112);
                while !stop.load(SeqCst) {
                    push();
                }
            });
            eventually("the thread pauses", || PAUSED.load(SeqCst));
            forked("memory", || {
                for kind in KINDS {
                    assert_memory_stays_flat(kind);
                }
            });
            stop.store(true, SeqCst);
            RESUME.store(true, SeqCst);
        });
        assert!(engine.get(&var).unwrap() > 1000);
    }

    a_fork_does_not_disturb_threads_that_push_and_wait in in_a_child_threads_push_and_wait {
        for kind in KINDS {
            let engine = Engine::builder().kind(kind).workers(2).pin(false).build().unwrap();
            let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while !stop.load(SeqCst) {
                            push_and_wait(&engine);
                            rounds.fetch_add(1, SeqCst);
                        }
                    });
                }
                for number in 0..20 {
                    let before = rounds.load(SeqCst);
                    forked(&format!("{kind}, fork {number} beside threads that push and wait"), || {
                        assert_engine_refuses(&engine);
                        assert_new_engine_works(kind);
                        assert_global_engine_works();
                    });
                    eventually("the threads continue", || rounds.load(SeqCst) > before);
                }
                stop.store(true, SeqCst);
            });
            engine.wait_for_all().unwrap();
        }
    }

    a_worker_that_forks_in_an_operation_ends_in_the_child in in_a_child_a_worker_forks {
        for kind in THREADED {
            for (name, push) in FORKERS {
                let what = format!("{kind}: {name}");
                retry_a_hang(&what, || {
                    let engine = engine(kind);
                    let forker = Forker::new(kind);
                    let var = engine.var(0_u64);
                    let gate = common::hold(&engine, var.token());
                    // A wait for all is pending, so ending the last operation takes the lock of the pending count.
                    let mut all = Box::pin(engine.wait_for_all_async());
                    assert!(poll_once(&mut all).is_pending());
                    push(&engine, &var, forker.clone());
                    let parent = process::id();
                    for _ in 0..100 {
                        let assert_parent = move || if process::id() != parent { exit(99) };
                        // One operation is queued behind the forking one, and another is independent of it.
                        engine.op("").push(var.read(), move |_| assert_parent()).unwrap();
                        engine.op("").push((), move |()| assert_parent()).unwrap();
                    }
                    gate.open();
                    let _ = engine.wait_for_all();
                    forker.only_child_hangs(&what)
                });
            }
        }
    }

    /// In the child, the thread of the forking operation is outside all engines, so limits apply to its pushes.
    a_limit_applies_to_a_worker_that_has_forked in in_a_child_a_worker_pushes_to_a_full_engine {
        for kind in KINDS {
            let engine = engine(kind);
            let forks = move |()| {
                forked(&format!("{kind}: a full engine"), || {
                    let full = Engine::builder().kind(kind).workers(1).pin(false).max_pending(1).build().unwrap();
                    let token = full.token();
                    let completion = hold(&full, &token);
                    assert_eq!(full.op("late").if_room().map(drop), Err(PushError::Full));
                    completion.complete();
                });
            };
            engine.op("forks").submit((), forks).unwrap().wait().unwrap();
        }
    }

    /// At the moment of the fork, another thread is inside a wait for all and holds the lock of the pending count. The
    /// forking operation is the last one covered by the wait.
    completing_the_last_pending_operation_in_a_child_takes_no_lock in in_a_child_the_count_is_locked {
        for kind in THREADED {
            let (engine, forker) = (engine(kind), Forker::new(kind));
            let (inner, forker_inside, started) = (engine.clone(), forker.clone(), common::Gate::new());
            let has_started = started.clone();
            let forks = move |()| {
                has_started.open();
                forker_inside.fork_beside_paused_thread(&inner);
            };
            engine.op("").push((), forks).unwrap();
            started.pass();
            let what = format!("{kind}: the end of the forking operation");
            // The wait registers under the lock.
            forker.join_child_beside_paused_thread(&what, || engine.wait_for_all().unwrap());
        }
    }

    /// At the moment of the fork, another thread is storing a waker for the handle, under the lock of the result.
    setting_a_result_in_a_child_takes_no_lock in in_a_child_the_result_is_locked {
        for kind in THREADED {
            let (engine, forker) = (engine(kind), Forker::new(kind));
            let (inner, forker_inside) = (engine.clone(), forker.clone());
            let forks = move |()| forker_inside.fork_beside_paused_thread(&inner);
            let mut handle = engine.op("").submit((), forks).unwrap();
            let what = format!("{kind}: the end of a forking operation with a handle");
            // The waker is stored under the lock.
            forker.join_child_beside_paused_thread(&what, || assert!(poll_once(&mut handle).is_pending()));
            handle.wait().unwrap();
        }
    }

    /// The process forks in the first of two wakers that the end of an operation calls on one thread.
    a_wait_in_a_child_calls_no_waker_of_the_parent in in_a_child_a_waker_forks {
        struct Forks(u32, AtomicUsize);
        impl Wake for Forks {
            fn wake(self: Arc<Self>) {
                if process::id() != self.0 {
                    exit(98);
                }
                if self.1.fetch_add(1, SeqCst) == 0 {
                    forked("a waker", || engine(EngineKind::Naive).wait_for_all().unwrap());
                }
            }
        }
        let engine = engine(EngineKind::Naive);
        let token = engine.token();
        let completion = hold(&engine, &token);
        let forks = Arc::new(Forks(process::id(), AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&forks));
        let mut waits = [engine.wait_for_var_async(&token), engine.wait_to_read_async(&token)];
        for wait in &mut waits {
            assert!(Pin::new(wait).poll(&mut Task::from_waker(&waker)).is_pending());
        }
        completion.complete();
        assert_eq!(forks.1.load(SeqCst), 2);
    }

    a_push_whose_operation_forks_returns_in_the_child in in_a_child_a_push_forks {
        for (name, push) in FORKERS {
            retry_a_hang(name, || {
                let engine = engine(EngineKind::Naive);
                let var = engine.var(0_u64);
                let (parent, forker) = (process::id(), Forker::new(EngineKind::Naive));
                let behind = engine.clone();
                let also = var.clone();
                push(&engine, &var, forker.clone());
                if process::id() != parent {
                    // Failures are reported through the exit status, since a panic in the child would not be reported.
                    let calls = || {
                        assert_engine_refuses(&behind);
                        assert_wait_refused(behind.get(&also));
                    };
                    exit(i32::from(panic::catch_unwind(panic::AssertUnwindSafe(calls)).is_err()));
                }
                let _ = engine.wait_for_all();
                forker.only_child_hangs(name)
            });
        }
    }
}

type Call = fn(&Fixture, &dyn Fn());

/// Calls that take locks. Each of them invokes its second argument on the locking thread, which then pauses at one of
/// its next allocations.
const CALLS: &[(&str, Call)] = &[
    ("wait_for_all_timeout", |fixture, arm| {
        arm();
        let _ = fixture.engine.wait_for_all_timeout(Duration::from_millis(1));
    }),
    ("many waits for all", |fixture, arm| {
        arm();
        // Registers so many waits that the pending count must allocate under its lock.
        for _ in 0..12 {
            fixture.engine.op("").push(fixture.busy.read(), |_| ()).unwrap();
            drop(fixture.engine.wait_for_all_async());
        }
    }),
    ("wait_for_all_async", |fixture, arm| {
        arm();
        let _ = poll_once(&mut Box::pin(fixture.engine.wait_for_all_async()));
    }),
    ("a poll of a handle", |fixture, arm| {
        let mut handle = fixture.engine.op("").submit(fixture.busy.read(), |busy| *busy).unwrap();
        arm();
        let _ = poll_once(&mut handle);
    }),
    ("a failure", |fixture, arm| {
        let var = fixture.engine.var(0);
        let arm = Arm::from(arm);
        let handle = fixture.engine.op("fail").submit(var.write(), move |_| {
            arm.call();
            Err::<(), _>("on purpose")
        });
        drop(handle);
        let failing = fixture.engine.op("fail").push_any(var.write(), move |_| {
            arm.call();
            Err("on purpose")
        });
        failing.unwrap();
        let _ = fixture.engine.wait_for_var_timeout(&var, SOON);
        cancel_pause_on_worker(fixture);
    }),
    ("clear_errors", |fixture, arm| {
        arm();
        let _ = fixture.engine.clear_errors();
    }),
    ("a wait inside an operation", |fixture, arm| {
        let (engine, arm) = (fixture.engine.clone(), Arm::from(arm));
        let handle = fixture.engine.op("").submit((), move |()| {
            let other = engine.var(0);
            engine.op("").push(other.write(), |_| thread::sleep(Duration::from_millis(1))).unwrap();
            arm.call();
            let _ = engine.wait_for_var_timeout(&other, SOON);
            PAUSE_AT.set(None);
        });
        let _ = handle.unwrap().wait_timeout(SOON);
    }),
    ("a push on a new lane of a device", |fixture, arm| {
        arm();
        fixture.engine.op("").on(GPU).property(Property::GpuPrioritized).launch_any((), |_, ()| ()).unwrap();
    }),
    ("device_var", |fixture, arm| {
        arm();
        drop(fixture.engine.device_var::<u64>(GPU, 1000).unwrap());
        drop(fixture.engine.pinned_var::<u64>(GPU, 1000).unwrap());
    }),
    ("the construction and drop of another engine", |_, arm| {
        arm();
        drop(engine(EngineKind::PerDevice));
    }),
];

/// The second argument of a call, which arms the pause, in a form that the engine's threads can use.
#[derive(Clone, Copy)]
struct Arm(&'static (dyn Fn() + 'static));

// SAFETY: the closure that `at_each_allocation` passes to a call captures only a reference to a number, which any
// thread may read.
unsafe impl Send for Arm {}

impl Arm {
    fn from(arm: &dyn Fn()) -> Self {
        // SAFETY: `at_each_allocation` keeps the closure alive until the call returns. Every operation that uses the
        // reference has completed by then.
        Self(unsafe { mem::transmute::<&dyn Fn(), &'static (dyn Fn() + 'static)>(arm) })
    }

    fn call(self) {
        (self.0)();
    }
}

/// Cancels the armed pause of the worker's thread.
fn cancel_pause_on_worker(fixture: &Fixture) {
    let mut handle = fixture.engine.op("").run_always().submit((), |()| PAUSE_AT.set(None)).unwrap();
    handle.wait_timeout(common::PATIENCE).unwrap();
}

fn push_and_wait(engine: &Engine) {
    let var = engine.var(0_u64);
    for _ in 0..50 {
        engine.op("").push(var.write(), |var| *var += 1).unwrap();
    }
    let handle = engine.op("").submit(var.read(), |var| *var).unwrap();
    let _ = poll_once(&mut engine.wait_for_var_async(&var));
    engine.wait_for_var(&var).unwrap();
    engine.wait_for_all().unwrap();
    assert_eq!(handle.wait().unwrap(), 50);
}

/// Asserts that memory grows by far less than the operations use in total.
fn assert_memory_stays_flat(kind: EngineKind) {
    let engine = engine(kind);
    let var = engine.var(0_u64);
    let round = || {
        for _ in 0..1000 {
            engine.op("").push(var.write(), |var| *var += 1).unwrap();
        }
        engine.wait_for_var(&var).unwrap();
    };
    (0..20).for_each(|_| round());
    let before = resident_bytes();
    (0..200).for_each(|_| round());
    let grown = resident_bytes().saturating_sub(before);
    assert!(
        grown < 8 << 20,
        "on the {kind} engine, memory grew by {grown} bytes over 200,000 operations of some 300 bytes each"
    );
}

/// Forks processes inside operations, and collects their ids.
#[derive(Clone)]
struct Forker {
    kind: EngineKind,
    children: Arc<Mutex<Vec<libc::pid_t>>>,
}

impl Forker {
    fn new(kind: EngineKind) -> Self {
        Self { kind, children: Arc::default() }
    }

    /// Forks. Both processes return from this function, the child after checking the engines.
    fn fork(&self, engine: &Engine) {
        if let Some(child) = fork() {
            lock(&self.children).push(child);
            return;
        }
        let checks = || {
            assert_engine_refuses(engine);
            // The global engine is not checked: its threads would keep the process alive after this thread has ended.
            assert_new_engine_works(self.kind);
        };
        if panic::catch_unwind(panic::AssertUnwindSafe(checks)).is_err() {
            exit(1);
        }
    }

    fn fork_in(&self, cx: &OpContext<'_>) {
        self.fork(&cx.engine());
    }

    /// Forks once another thread is paused.
    fn fork_beside_paused_thread(&self, engine: &Engine) {
        eventually("the other thread pauses", || PAUSED.load(SeqCst));
        self.fork(engine);
    }

    /// Waits for the process forked by an operation, and returns whether it hung. Asserts that it is the only one.
    fn only_child_hangs(&self, what: &str) -> bool {
        let children = mem::take(&mut *lock(&self.children));
        assert_eq!(children.len(), 1, "{what}: the number of children");
        hangs(children[0], what)
    }

    /// Runs `call` on a thread that pauses at its first allocation. An operation forks a process during the pause,
    /// which lasts until that process has ended.
    fn join_child_beside_paused_thread(&self, what: &str, call: impl FnOnce() + Send) {
        thread::scope(|scope| {
            scope.spawn(|| {
                pause_after(0, 0..=usize::MAX);
                call();
            });
            eventually("a process is forked", || !lock(&self.children).is_empty());
            let child = lock(&self.children).pop().unwrap();
            join(child, what);
            RESUME.store(true, SeqCst);
        });
        reset_pause();
    }
}

/// A waker that may be woken only in the parent.
struct OnlyInParent(u32);

impl Wake for OnlyInParent {
    fn wake(self: Arc<Self>) {
        if process::id() != self.0 {
            exit(98);
        }
    }
}

type Push = fn(&Engine, &Var<u64>, Forker);

/// Operations that fork a process.
const FORKERS: &[(&str, Push)] = &[
    ("an operation that returns", |engine, var, forker| {
        engine.op("").writes([var.token()]).push_sync(move |cx| forker.fork_in(cx)).unwrap();
    }),
    ("an operation that returns an error", |engine, var, forker| {
        let f = move |cx: &OpContext<'_>| {
            forker.fork_in(cx);
            Err("on purpose")
        };
        engine.op("").writes([var.token()]).push_sync(f).unwrap();
    }),
    ("an operation that panics", |engine, var, forker| {
        let f = move |cx: &OpContext<'_>| {
            forker.fork_in(cx);
            panic!("on purpose")
        };
        engine.op("").writes([var.token()]).push_sync(f).unwrap();
    }),
    ("an operation with a handle", |engine, var, forker| {
        let inner = engine.clone();
        let f = move |_: &mut u64| forker.fork(&inner);
        let mut handle = engine.op("").submit(var.write(), f).unwrap();
        let waker = Waker::from(Arc::new(OnlyInParent(process::id())));
        let _ = Pin::new(&mut handle).poll(&mut Task::from_waker(&waker));
        mem::forget(handle);
    }),
    ("an operation with a priority", |engine, var, forker| {
        engine.op("").priority(9).writes([var.token()]).push_sync(move |cx| forker.fork_in(cx)).unwrap();
    }),
    ("an asynchronous operation that completes", |engine, var, forker| {
        let f = move |cx: &OpContext<'_>, done: Completion| {
            forker.fork_in(cx);
            done.complete();
        };
        engine.op("").writes([var.token()]).push_async_any(raddle::cx(), f).unwrap();
    }),
    ("an asynchronous operation that drops its completion", |engine, var, forker| {
        let f = move |cx: &OpContext<'_>, done: Completion| {
            forker.fork_in(cx);
            drop(done);
        };
        engine.op("").writes([var.token()]).push_async_any(raddle::cx(), f).unwrap();
    }),
    ("an asynchronous operation that fails after its completion", |engine, var, forker| {
        let f = move |cx: &OpContext<'_>, done: Completion| {
            done.complete();
            forker.fork_in(cx);
            Err("on purpose")
        };
        engine.op("").writes([var.token()]).push_async_any(raddle::cx(), f).unwrap();
    }),
    ("the deletion of a variable", |engine, var, forker| {
        let other = engine.token();
        engine.op("").reads([var.token()]).writes([&other]).push_sync(|_| ()).unwrap();
        engine.delete_variable(&other, move |cx| forker.fork_in(cx)).unwrap();
    }),
    ("the drop of a value", |engine, var, forker| {
        struct Value(Engine, Forker);
        impl Drop for Value {
            fn drop(&mut self) {
                self.1.fork(&self.0);
            }
        }
        let other = engine.var(Value(engine.clone(), forker));
        engine.op("").reads([var.token()]).writes([other.token()]).push_sync(|_| ()).unwrap();
    }),
    ("an operation on a device", |engine, var, forker| {
        let inner = engine.clone();
        let f = move |_: &mut raddle::gpu::GpuStream, _: &mut u64| forker.fork(&inner);
        engine.op("").on(GPU).launch_any(var.write(), f).unwrap();
    }),
    ("a kernel", |engine, var, forker| {
        let inner = engine.clone();
        let f = move |stream: &mut raddle::gpu::GpuStream, _: &mut u64| {
            let mut stream = stream.simulated().expect("the device should be simulated");
            stream.launch(Duration::ZERO, (), move |()| forker.fork(&inner))
        };
        engine.op("").on(GPU).launch_any(var.write(), f).unwrap();
    }),
];
