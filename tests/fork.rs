//! Forked processes: what the parent's engines do in the child, and that new ones work there.
//!
//! Each test runs in a process of its own, since what else runs beside it would be forked with it. What it forks says by its
//! status whether all was well, writes to the file of standard error without the lock of `std`, and is ended by an alarm
//! if it hangs.

#![cfg(target_os = "linux")]

use raddle_testkit as common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    future::Future,
    mem, panic,
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
use common::{KINDS, SOON, THREADED, child_succeeds, eventually, is_child, lock, poll_once, resident_bytes};
use raddle::{
    Completion, Device, DeviceVec, Engine, EngineKind, OpContext, OpHandle, Operator, PinnedVec, Property, PushError,
    Shutdown, ShutdownError, SimulatedGpu, Token, Var, VarWait, WaitError,
};

const GPU: Device = Device::Gpu(0);

// ----------------------------------------------------------------------------------------------------------- forks ----

/// Writes a line to standard error, without a lock.
fn say(text: &str) {
    let line = format!("{text}\n");
    // SAFETY: the bytes are there.
    let _ = unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// Begins a forked process, which ends if it hangs: sooner where that is expected.
fn begin_fork(patient: bool) {
    // SAFETY: the call has no conditions.
    unsafe { libc::alarm(if patient { 30 } else { 5 }) };
}

fn exit(status: i32) -> ! {
    // SAFETY: the process is a test's.
    unsafe { libc::_exit(status) }
}

/// Forks; `None` in the child.
fn fork() -> Option<libc::pid_t> {
    let patient = std::env::var_os("RADDLE_PATIENCE").is_none();
    // SAFETY: that what the child does works is what is tested.
    match unsafe { libc::fork() } {
        0 => {
            begin_fork(patient);
            None
        }
        -1 => panic!("no process: {}", std::io::Error::last_os_error()),
        child => Some(child),
    }
}

/// Waits for a forked process, and ends this one unless all was well there. Not by a panic: what would be dropped then may
/// wait for threads that stand still.
fn join(child: libc::pid_t, what: &str) {
    let mut status = 0;
    loop {
        // SAFETY: the status is there.
        match unsafe { libc::waitpid(child, &raw mut status, 0) } {
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            -1 => {
                say(&std::io::Error::last_os_error().to_string());
                exit(1);
            }
            _ => break,
        }
    }
    let hangs = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM;
    if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
        let hangs = if hangs { ", it hangs" } else { "" };
        say(&format!("in a forked process, {what}: status {status:#x}{hangs}"));
        exit(1);
    }
}

/// Runs `f` in a forked process.
fn forked(what: &str, f: impl FnOnce()) {
    match fork() {
        Some(child) => join(child, what),
        None => exit(i32::from(panic::catch_unwind(panic::AssertUnwindSafe(f)).is_err())),
    }
}

/// Runs the test `body` if this is its process.
fn in_own_process(body: impl FnOnce()) {
    if is_child() {
        // The ordinary hook takes the lock of standard error, which a thread that is gone may hold.
        panic::set_hook(Box::new(|info| say(&format!("process {}: {info}", process::id()))));
        body();
    }
}

// ------------------------------------------------------------------------------------------------ standing threads ----

/// An allocator in which a thread stands still where it is told to: inside a lock of the engine's, if it holds one.
struct Standing;

std::thread_local! {
    /// Where the thread stands still: at the allocation so far away, of those that are so large.
    static STOP: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

static STANDS: AtomicBool = AtomicBool::new(false);
static GO: AtomicBool = AtomicBool::new(false);

fn count_allocation(size: usize) {
    let stop = STOP.get();
    match stop {
        Some((left, least)) if size >= least => {
            STOP.set((left > 0).then(|| (left - 1, least)));
            if left == 0 {
                STANDS.store(true, SeqCst);
                while !GO.load(SeqCst) {
                    // SAFETY: the call has no conditions.
                    unsafe { libc::usleep(100) };
                }
            }
        }
        _ => {}
    }
}

// SAFETY: it does what `System` does.
unsafe impl GlobalAlloc for Standing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller says.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocation(size);
        // SAFETY: as the caller says.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Standing = Standing;

/// Forgets that a thread has stood still and was let go on.
fn nobody_stands() {
    STANDS.store(false, SeqCst);
    GO.store(false, SeqCst);
}

/// Has this thread stand still at the allocation that is `at` away, of those of `least` bytes.
fn stand_still(at: usize, least: usize) {
    STOP.set(Some((at, least)));
}

/// Runs `call` on a thread again and again, which stands still at the first allocation in it, at the second, and so on;
/// meanwhile `then` runs. `call` is to call its argument where its thread, or the one that it is about, begins. Gives how
/// often there was such an allocation.
fn at_each_allocation(call: impl Fn(&dyn Fn()) + Sync, mut then: impl FnMut(usize)) -> usize {
    for at in 0.. {
        nobody_stands();
        let done = AtomicBool::new(false);
        let stood = thread::scope(|scope| {
            scope.spawn(|| {
                call(&|| stand_still(at, 0));
                STOP.set(None);
                done.store(true, SeqCst);
            });
            eventually("a thread stands, or is done", || STANDS.load(SeqCst) || done.load(SeqCst));
            let stands = STANDS.load(SeqCst);
            if stands {
                then(at);
            }
            GO.store(true, SeqCst);
            stands
        });
        if !stood {
            return at;
        }
    }
    unreachable!("a call makes so many allocations")
}

// ----------------------------------------------------------------------------------------------------------- world ----

type All = Pin<Box<dyn Future<Output = Result<(), WaitError>> + Send>>;

/// An engine, and one of everything that it gives.
struct World {
    engine: Engine,
    idle: Var<u64>,
    busy: Var<u64>,
    failed: Var<u64>,
    token: Token,
    operator: Operator,
    loose_operator: Operator,
    pending: OpHandle<u64>,
    done: OpHandle<u64>,
    pending_wait: VarWait,
    over_wait: VarWait,
    all: Mutex<All>,
    completion: Completion,
    lost_completion: Completion,
    device: Var<DeviceVec<u64>>,
    pinned: Var<PinnedVec<u64>>,
}

fn engine(kind: EngineKind) -> Engine {
    let gpu = SimulatedGpu::default();
    Engine::builder().kind(kind).workers(1).pin(false).gpu(gpu).build().expect("the engine is built")
}

/// Begins an operation that mutates `token`; gives what ends it.
fn hold(engine: &Engine, token: &Token) -> Completion {
    let place = Arc::new(Mutex::new(None));
    let inside = Arc::clone(&place);
    engine
        .op("hold")
        .writes([token])
        .push_async_any(raddle::cx(), move |_, done| _ = lock(&inside).replace(done))
        .expect("it is open");
    eventually("the operation has started", || lock(&place).is_some());
    let completion = lock(&place).take();
    completion.expect("it has just been there")
}

impl World {
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
        let loose_operator = engine.op("loose").operator((), |()| ()).unwrap();
        operator.push().unwrap();
        let done = engine.op("done").submit(idle.read(), |idle| *idle).unwrap();
        eventually("the operation is done", || done.is_done());
        let over_wait = engine.wait_for_var_async(&idle);
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
            loose_operator,
            pending,
            done,
            pending_wait,
            over_wait,
            all: Mutex::new(all),
            completion,
            lost_completion,
            device,
            pinned,
        }
    }

    /// Everything goes on as if no process had been forked.
    fn end(self) {
        let Self { engine, idle, busy, failed, operator, pending, done, mut pending_wait, all, .. } = self;
        let mut all = all.into_inner().unwrap();
        assert!(poll_once(&mut pending_wait).is_pending());
        assert!(poll_once(&mut all).is_pending());
        self.completion.complete();
        self.lost_completion.complete();
        assert_eq!(pending.wait().unwrap(), 0);
        assert_eq!(done.wait().unwrap(), 1);
        common::block_on(pending_wait).unwrap();
        // Whether the failure was told before is not asked here.
        let _ = common::block_on(all);
        operator.push().unwrap();
        assert_eq!(engine.get(&idle).unwrap(), 2);
        assert_eq!(busy.version(), 1);
        engine.clear_error(&failed).unwrap();
        engine.wait_for_all().unwrap();
        drop((operator, idle, busy, failed));
        engine.shutdown(Shutdown::Drain, None).unwrap();
    }

    /// In a forked child: every call ends at once, with an error, and drops do nothing.
    fn assert_dead(self) {
        let start = Instant::now();
        dead_engine(&self.engine);
        self.variables_are_dead();
        self.rest_is_dead();
        assert!(start.elapsed() < SOON, "the calls took {:?}", start.elapsed());
    }

    fn variables_are_dead(&self) {
        let engine = &self.engine;
        for var in [&self.idle, &self.busy, &self.failed] {
            dead_wait(engine.get(var));
            dead_push(engine.op("").push(var.write(), |var| *var += 1));
            dead_push(engine.op("").submit(var.overwrite(), |var| *var += 1));
            dead_push(engine.op("").submit_any(var.read(), |_| Ok::<_, &str>(())));
            dead_push(engine.op("").operator(var.read(), |_| ()));
            let cloned = var.clone();
            drop(format!("{cloned:?}"));
        }
        for token in [self.idle.token(), self.busy.token(), self.failed.token(), &self.token] {
            dead_token(engine, token);
        }
        say("devices");
        dead_push(engine.op("").on(GPU).copy_to_device(&self.pinned, &self.device));
        dead_push(engine.op("").on(GPU).copy_from_device(&self.device, &self.pinned));
        dead_push(engine.op("").on(GPU).copy_peer(&self.device, &self.device));
        dead_push(engine.op("").on(GPU).launch_any(self.device.write(), |_, _| ()));
        dead_push(engine.op("").on(GPU).property(Property::GpuPrioritized).launch_any(self.device.write(), |_, _| ()));
        dead_push(engine.op("").on(GPU).submit_launch_any(self.device.write(), |_, _| Ok::<_, &str>(())));
        dead_push(engine.op("").on(GPU).launch_operator_any(self.device.write(), |_, _| ()));
    }

    fn rest_is_dead(self) {
        say("operators");
        for operator in [&self.operator, &self.loose_operator] {
            dead_push(operator.push());
            dead_push(operator.push_with_priority(1));
            drop(format!("{:?}", operator.clone()));
        }
        say("handles");
        let Self { engine, mut pending, mut done, mut pending_wait, mut over_wait, all, .. } = self;
        let mut all = all.into_inner().unwrap();
        for handle in [&mut pending, &mut done] {
            drop(format!("{handle:?}"));
            assert!(handle.is_done(), "a wait does not wait");
            dead_wait(handle.wait_timeout(Duration::from_secs(1000)));
            dead_poll(poll_once(handle));
        }
        dead_wait(pending.wait());
        drop(done);
        say("futures");
        drop(format!("{pending_wait:?}"));
        dead_poll(poll_once(&mut pending_wait));
        dead_poll(poll_once(&mut over_wait));
        dead_poll(all.as_mut().poll(&mut Task::from_waker(Waker::noop())));
        drop((pending_wait, over_wait, all));
        say("drops");
        drop(format!("{:?}", self.completion));
        self.completion.complete();
        drop(self.lost_completion);
        drop(self.operator);
        drop((self.loose_operator, self.idle, self.busy, self.failed, self.token, self.device, self.pinned));
        drop(engine);
    }
}

#[track_caller]
fn dead_push<T>(result: Result<T, PushError>) {
    let error = result.err().expect("a push in a forked child is refused");
    assert_eq!(error, PushError::Forked);
    assert!(error.to_string().contains("forked"));
}

#[track_caller]
fn dead_wait<T>(result: Result<T, WaitError>) {
    match result {
        Err(WaitError::Refused(PushError::Forked)) => {}
        Err(error) => panic!("the wait ended with another error: {error:?}"),
        Ok(_) => panic!("the wait succeeded"),
    }
}

#[track_caller]
fn dead_poll<T>(poll: Poll<Result<T, WaitError>>) {
    match poll {
        Poll::Ready(result) => dead_wait(result),
        Poll::Pending => panic!("the future is pending"),
    }
}

/// The calls that need nothing but an engine.
fn dead_engine(engine: &Engine) {
    say("engine");
    let another = engine.clone();
    drop(format!("{engine:?} {} {:?}", engine.kind(), engine.placements()));
    dead_push(engine.push_sync(|_| (), [], []));
    dead_push(engine.push_async(|_, done| done.complete(), [], []));
    dead_push(engine.op("").property(Property::CpuPrioritized).push_sync(|_| ()));
    dead_push(engine.op("").eager().priority(7).push_sync(|_| ()));
    dead_push(engine.op("").submit((), |()| ()));
    dead_push(engine.op("").operator_sync(|_| ()));
    dead_push(engine.op("").operator_async(raddle::cx(), |_, done| done.complete()));
    assert!(engine.device_var::<u64>(GPU, 4).is_err());
    assert!(engine.pinned_var::<u64>(GPU, 4).is_err());
    say("new variables");
    let (token, var) = (engine.token(), engine.var(vec![1]));
    dead_token(engine, &token);
    dead_token(engine, var.token());
    dead_wait(engine.get(&var));
    drop((token, var));
    say("waits for all");
    dead_wait(engine.wait_for_all());
    dead_wait(engine.wait_for_all_timeout(Duration::from_secs(1000)));
    dead_poll(poll_once(&mut Box::pin(engine.wait_for_all_async())));
    drop(engine.wait_for_all_async());
    assert!(engine.clear_errors().is_none());
    say("shutdown");
    engine.notify_shutdown();
    for how in [Shutdown::Drain, Shutdown::Cancel] {
        for limit in [None, Some(Duration::from_secs(1000))] {
            assert_eq!(another.shutdown(how, limit), Err(ShutdownError::Forked));
        }
    }
}

/// The calls that name a variable.
fn dead_token(engine: &Engine, token: &Token) {
    let limit = Duration::from_secs(1000);
    dead_wait(engine.wait_for_var(token));
    dead_wait(engine.wait_for_var_timeout(token, limit));
    dead_poll(poll_once(&mut engine.wait_for_var_async(token)));
    dead_wait(engine.wait_to_read(token));
    dead_wait(engine.wait_to_read_timeout(token, limit));
    dead_poll(poll_once(&mut engine.wait_to_read_async(token)));
    dead_wait(engine.wait_for_var(token));
    dead_wait(engine.wait_for_var_timeout(token, limit));
    dead_poll(poll_once(&mut engine.wait_for_var_async(token)));
    dead_push(engine.push_sync(|_| (), [], [token]));
    dead_push(engine.push_async(|_, done| done.complete(), [token], []));
    dead_push(engine.clear_error(token));
    dead_push(engine.delete_variable(token, |_| exit(3)));
    let (another, _) = (token.clone(), token.version());
    drop(format!("{another:?}"));
}

/// A new engine works, with all that it has.
fn a_new_engine_works(kind: EngineKind) {
    say("a new engine");
    let engine = engine(kind);
    let var = engine.var(0_u64);
    for _ in 0..100 {
        engine.op("").push(var.write(), |var| *var += 1).unwrap();
    }
    let inner = engine.clone();
    let waits = engine.op("waits").submit(var.read(), move |var| {
        // By another thread, where there are some.
        let other = inner.var(*var);
        inner.op("").push(other.write(), |other| *other += 1).unwrap();
        inner.get(&other).unwrap()
    });
    assert_eq!(waits.unwrap().wait().unwrap(), 101);
    let (device, pinned) = (engine.device_var(GPU, 4).unwrap(), engine.pinned_var::<u64>(GPU, 4).unwrap());
    engine.op("").on(GPU).copy_to_device(&pinned, &device).unwrap();
    engine.op("").on(GPU).copy_from_device(&device, &pinned).unwrap();
    engine.wait_for_all().unwrap();
    assert_eq!(engine.get(&var).unwrap(), 100);
    hold(&engine, var.token()).complete();
    drop(engine);
}

/// The global engine is a new one that works.
fn the_global_engine_works() {
    say("the global engine");
    let engine = Engine::global().unwrap();
    let var = engine.var(1);
    engine.op("").push(var.write(), |var| *var += 1).unwrap();
    assert_eq!(engine.get(&var).unwrap(), 2);
    assert!(std::ptr::eq(engine, Engine::global().unwrap()));
}

// ----------------------------------------------------------------------------------------------------------- tests ----

macro_rules! tests {
    ($($(#[doc = $doc:literal])* $name:ident in $child:ident $body:block)+) => {$(
        $(#[doc = $doc])*
        #[test]
        #[cfg_attr(miri, ignore = "starts processes")]
        fn $name() {
            child_succeeds(stringify!($child));
        }

        #[test]
        #[ignore = "run by another test in a process of its own"]
        fn $child() {
            in_own_process(|| $body);
        }
    )+};
}

tests! {
    every_call_in_a_forked_child_ends_with_an_error in in_a_child_every_call_ends {
        for kind in KINDS {
            let world = World::new(kind);
            match fork() {
                Some(child) => {
                    join(child, &format!("calls on a {kind} engine"));
                    world.end();
                }
                None => {
                    let calls = || {
                        world.assert_dead();
                        a_new_engine_works(kind);
                    };
                    exit(i32::from(panic::catch_unwind(panic::AssertUnwindSafe(calls)).is_err()));
                }
            }
        }
    }

    /// It had nothing to do, and its threads sleep.
    an_idle_engine_is_dropped_in_a_forked_child in in_a_child_an_idle_engine_is_dropped {
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

    the_global_engine_is_a_new_one_in_a_forked_child in in_a_child_the_global_engine_is_a_new_one {
        the_global_engine_works();
        let parents = Engine::global().unwrap();
        let var = parents.var(1);
        forked("the global engine of the parent", || {
            dead_engine(parents);
            dead_wait(parents.get(&var));
            the_global_engine_works();
            assert!(!std::ptr::eq(parents, Engine::global().unwrap()));
            // What the child has made is dead in its own child.
            let childs = Engine::global().unwrap();
            forked("the global engine of the child", || {
                dead_engine(parents);
                dead_engine(childs);
                the_global_engine_works();
                KINDS.into_iter().for_each(a_new_engine_works);
            });
            the_global_engine_works();
        });
        assert_eq!(parents.get(&var).unwrap(), 1);
    }

    /// Whatever lock another thread holds at the moment of the fork: there is an allocation under nearly each of them.
    the_child_takes_no_lock_of_the_parents in in_a_child_no_lock_is_taken {
        for kind in KINDS {
            let mut stops = 0;
            for (name, call) in CALLS {
                let world = World::new(kind);
                stops += at_each_allocation(
                    |begin| call(&world, begin),
                    |at| forked(&format!("{kind}, a thread in {name} at its allocation {at}"), || {
                        // SAFETY: this process does not go on with the parent's.
                        unsafe { std::ptr::read(&raw const world) }.assert_dead();
                        a_new_engine_works(kind);
                    }),
                );
                world.completion.complete();
                world.lost_completion.complete();
            }
            assert!(stops > 20, "{kind}: threads stood still {stops} times only");
        }
    }

    a_fork_may_catch_a_thread_that_makes_the_global_engine in in_a_child_the_global_engine_is_being_made {
        let stops = at_each_allocation(
            |begin| {
                begin();
                Engine::global().unwrap();
            },
            |at| forked(&format!("a thread makes the global engine, at its allocation {at}"), the_global_engine_works),
        );
        assert!(stops > 0);
    }

    /// The thread is pinned, in the midst of a push.
    memory_of_a_new_engine_stays_flat_beside_a_thread_that_is_gone in in_a_child_memory_stays_flat {
        let engine = engine(EngineKind::Naive);
        let (stop, var) = (AtomicBool::new(false), engine.var(0_u64));
        // This thread, too, has a place in the epoch.
        engine.op("").push(var.write(), |_| ()).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let push = || engine.op("").push(var.write(), |var| *var += 1).unwrap();
                (0..1000).for_each(|_| push());
                // What has been retired goes on to all threads, as one large piece, by a pinned one.
                stand_still(0, 2000);
                while !stop.load(SeqCst) {
                    push();
                }
            });
            eventually("the thread stands", || STANDS.load(SeqCst));
            forked("memory", || {
                for kind in KINDS {
                    memory_is_flat(kind);
                }
            });
            stop.store(true, SeqCst);
            GO.store(true, SeqCst);
        });
        assert!(engine.get(&var).unwrap() > 1000);
    }

    a_fork_while_threads_push_and_wait_disturbs_nobody in in_a_child_threads_push_and_wait {
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
                        dead_engine(&engine);
                        a_new_engine_works(kind);
                        the_global_engine_works();
                    });
                    eventually("the threads go on", || rounds.load(SeqCst) > before);
                }
                stop.store(true, SeqCst);
            });
            engine.wait_for_all().unwrap();
        }
    }

    a_worker_that_forks_in_an_operation_ends_in_the_child in in_a_child_a_worker_forks {
        for kind in THREADED {
            for (name, push) in FORKERS {
                let engine = engine(kind);
                let forker = Forker::new(kind);
                let var = engine.var(0_u64);
                let gate = common::hold(&engine, var.token());
                // Somebody waits for all, and so whoever leaves last takes the lock of the count.
                let mut all = Box::pin(engine.wait_for_all_async());
                assert!(poll_once(&mut all).is_pending());
                push(&engine, &var, forker.clone());
                let parent = process::id();
                for _ in 0..100 {
                    let only_here = move || if process::id() != parent { exit(99) };
                    // Behind it, and beside it.
                    engine.op("").push(var.read(), move |_| only_here()).unwrap();
                    engine.op("").push((), move |()| only_here()).unwrap();
                }
                gate.open();
                let _ = engine.wait_for_all();
                forker.join_only_child(&format!("{kind}: {name}"));
                drop(all);
            }
        }
    }

    /// Another thread waits for all, and holds the lock of the count at the moment of the fork. The operation that has forked
    /// is the last one that it waits for.
    whoever_leaves_last_in_a_child_takes_no_lock in in_a_child_the_count_is_locked {
        for kind in THREADED {
            let (engine, forker) = (engine(kind), Forker::new(kind));
            let (inner, forks_inside, started) = (engine.clone(), forker.clone(), common::Gate::new());
            let has_started = started.clone();
            let forks = move |()| {
                has_started.open();
                forks_inside.fork_beside_one_that_stands(&inner);
            };
            engine.op("").push((), forks).unwrap();
            started.pass();
            let what = format!("{kind}: the end of the operation that has forked");
            // What is under way is noted under the lock.
            forker.join_child_beside_one_that_stands(&what, || engine.wait_for_all().unwrap());
        }
    }

    /// Another thread leaves a waker with the handle of the operation that forks, and has the lock of the result.
    whoever_sets_a_result_in_a_child_takes_no_lock in in_a_child_the_result_is_locked {
        for kind in THREADED {
            let (engine, forker) = (engine(kind), Forker::new(kind));
            let (inner, forks_inside) = (engine.clone(), forker.clone());
            let forks = move |()| forks_inside.fork_beside_one_that_stands(&inner);
            let mut handle = engine.op("").submit((), forks).unwrap();
            let what = format!("{kind}: the end of an operation that has a handle and has forked");
            // The waker is kept under the lock.
            forker.join_child_beside_one_that_stands(&what, || assert!(poll_once(&mut handle).is_pending()));
            handle.wait().unwrap();
        }
    }

    a_push_that_runs_what_forks_returns_in_the_child in in_a_child_a_push_forks {
        for (name, push) in FORKERS {
            let engine = engine(EngineKind::Naive);
            let var = engine.var(0_u64);
            let (parent, forker) = (process::id(), Forker::new(EngineKind::Naive));
            let behind = engine.clone();
            let also = var.clone();
            push(&engine, &var, forker.clone());
            if process::id() != parent {
                // Not by a panic, which nobody would see.
                let calls = || {
                    dead_engine(&behind);
                    dead_wait(behind.get(&also));
                };
                exit(i32::from(panic::catch_unwind(panic::AssertUnwindSafe(calls)).is_err()));
            }
            let _ = engine.wait_for_all();
            forker.join_only_child(name);
        }
    }
}

type Call = fn(&World, &dyn Fn());

/// Calls that take locks, each of which calls its argument on the thread that does so.
const CALLS: &[(&str, Call)] = &[
    ("wait_for_all_timeout", |world, begin| {
        begin();
        let _ = world.engine.wait_for_all_timeout(Duration::from_millis(1));
    }),
    ("many waits for all", |world, begin| {
        begin();
        // More than the count has room for without an allocation, under its lock.
        for _ in 0..12 {
            world.engine.op("").push(world.busy.read(), |_| ()).unwrap();
            drop(world.engine.wait_for_all_async());
        }
    }),
    ("wait_for_all_async", |world, begin| {
        begin();
        let _ = poll_once(&mut Box::pin(world.engine.wait_for_all_async()));
    }),
    ("a poll of a handle", |world, begin| {
        let mut handle = world.engine.op("").submit(world.busy.read(), |busy| *busy).unwrap();
        begin();
        let _ = poll_once(&mut handle);
    }),
    ("a failure", |world, begin| {
        let var = world.engine.var(0);
        let begin = Begin::from(begin);
        let handle = world.engine.op("fail").submit(var.write(), move |_| {
            begin.call();
            Err::<(), _>("on purpose")
        });
        drop(handle);
        let failing = world.engine.op("fail").push_any(var.write(), move |_| {
            begin.call();
            Err("on purpose")
        });
        failing.unwrap();
        let _ = world.engine.wait_for_var_timeout(&var, SOON);
        end_on_worker(world);
    }),
    ("clear_errors", |world, begin| {
        begin();
        let _ = world.engine.clear_errors();
    }),
    ("a wait inside an operation", |world, begin| {
        let (engine, begin) = (world.engine.clone(), Begin::from(begin));
        let handle = world.engine.op("").submit((), move |()| {
            let other = engine.var(0);
            engine.op("").push(other.write(), |_| thread::sleep(Duration::from_millis(1))).unwrap();
            begin.call();
            let _ = engine.wait_for_var_timeout(&other, SOON);
            STOP.set(None);
        });
        let _ = handle.unwrap().wait_timeout(SOON);
    }),
    ("a push on a new lane of a device", |world, begin| {
        begin();
        world.engine.op("").on(GPU).property(Property::GpuPrioritized).launch_any((), |_, ()| ()).unwrap();
    }),
    ("device_var", |world, begin| {
        begin();
        drop(world.engine.device_var::<u64>(GPU, 1000).unwrap());
        drop(world.engine.pinned_var::<u64>(GPU, 1000).unwrap());
    }),
    ("another engine's life", |_, begin| {
        begin();
        drop(engine(EngineKind::PerDevice));
    }),
];

/// Where the argument of a call goes on a thread of the engine.
#[derive(Clone, Copy)]
struct Begin(&'static (dyn Fn() + 'static));

// SAFETY: what `at_each_allocation` gives captures a number.
unsafe impl Send for Begin {}

impl Begin {
    fn from(begin: &dyn Fn()) -> Self {
        // SAFETY: the operations are over when the call is.
        Self(unsafe { mem::transmute::<&dyn Fn(), &'static (dyn Fn() + 'static)>(begin) })
    }

    fn call(self) {
        (self.0)();
    }
}

/// Nobody stands still any more on the worker.
fn end_on_worker(world: &World) {
    let mut handle = world.engine.op("").run_always().submit((), |()| STOP.set(None)).unwrap();
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

/// Memory does not grow by a fraction of what the operations need.
fn memory_is_flat(kind: EngineKind) {
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
    assert!(grown < 8 << 20, "on the {kind} engine, 200,000 operations of some 300 bytes left {grown} bytes");
}

/// What an operation does that forks.
#[derive(Clone)]
struct Forker {
    kind: EngineKind,
    children: Arc<Mutex<Vec<libc::pid_t>>>,
}

impl Forker {
    fn new(kind: EngineKind) -> Self {
        Self { kind, children: Arc::default() }
    }

    /// Forks. The child looks whether everything is as it should be, and then goes on from here.
    fn fork(&self, engine: &Engine) {
        if let Some(child) = fork() {
            lock(&self.children).push(child);
            return;
        }
        let checks = || {
            dead_engine(engine);
            // Not the global one as well, whose threads would keep the process when this one ends.
            a_new_engine_works(self.kind);
        };
        if panic::catch_unwind(panic::AssertUnwindSafe(checks)).is_err() {
            exit(1);
        }
    }

    fn fork_in(&self, cx: &OpContext<'_>) {
        self.fork(&cx.engine());
    }

    /// Forks when a thread stands still.
    fn fork_beside_one_that_stands(&self, engine: &Engine) {
        eventually("the other thread stands", || STANDS.load(SeqCst));
        self.fork(engine);
    }

    /// Waits for the process that an operation has forked, which must be one.
    fn join_only_child(&self, what: &str) {
        let children = mem::take(&mut *lock(&self.children));
        assert_eq!(children.len(), 1, "{what}");
        children.into_iter().for_each(|child| join(child, what));
    }

    /// Makes `call` on a thread that stands still at its first allocation, until the process has ended that an operation
    /// forks meanwhile.
    fn join_child_beside_one_that_stands(&self, what: &str, call: impl FnOnce() + Send) {
        thread::scope(|scope| {
            scope.spawn(|| {
                stand_still(0, 0);
                call();
            });
            eventually("a process is forked", || !lock(&self.children).is_empty());
            let child = lock(&self.children).pop().unwrap();
            join(child, what);
            GO.store(true, SeqCst);
        });
        nobody_stands();
    }
}

/// Is told of the end of an operation in the parent only.
struct OnlyHere(u32);

impl Wake for OnlyHere {
    fn wake(self: Arc<Self>) {
        if process::id() != self.0 {
            exit(98);
        }
    }
}

type Push = fn(&Engine, &Var<u64>, Forker);

/// Operations in which a process is forked.
const FORKERS: &[(&str, Push)] = &[
    ("it returns", |engine, var, forker| {
        engine.op("").writes([var.token()]).push_sync(move |cx| forker.fork_in(cx)).unwrap();
    }),
    ("it returns an error", |engine, var, forker| {
        let f = move |cx: &OpContext<'_>| {
            forker.fork_in(cx);
            Err("on purpose")
        };
        engine.op("").writes([var.token()]).push_sync(f).unwrap();
    }),
    ("it panics", |engine, var, forker| {
        let f = move |cx: &OpContext<'_>| {
            forker.fork_in(cx);
            panic!("on purpose")
        };
        engine.op("").writes([var.token()]).push_sync(f).unwrap();
    }),
    ("somebody has its handle", |engine, var, forker| {
        let inner = engine.clone();
        let f = move |_: &mut u64| forker.fork(&inner);
        let mut handle = engine.op("").submit(var.write(), f).unwrap();
        let told = Waker::from(Arc::new(OnlyHere(process::id())));
        let _ = Pin::new(&mut handle).poll(&mut Task::from_waker(&told));
        mem::forget(handle);
    }),
    ("it has a priority", |engine, var, forker| {
        engine.op("").priority(9).writes([var.token()]).push_sync(move |cx| forker.fork_in(cx)).unwrap();
    }),
    ("it uses its completion", |engine, var, forker| {
        let f = move |cx: &OpContext<'_>, done: Completion| {
            forker.fork_in(cx);
            done.complete();
        };
        engine.op("").writes([var.token()]).push_async_any(raddle::cx(), f).unwrap();
    }),
    ("it drops its completion", |engine, var, forker| {
        let f = move |cx: &OpContext<'_>, done: Completion| {
            forker.fork_in(cx);
            drop(done);
        };
        engine.op("").writes([var.token()]).push_async_any(raddle::cx(), f).unwrap();
    }),
    ("it has used its completion and fails", |engine, var, forker| {
        let f = move |cx: &OpContext<'_>, done: Completion| {
            done.complete();
            forker.fork_in(cx);
            Err("on purpose")
        };
        engine.op("").writes([var.token()]).push_async_any(raddle::cx(), f).unwrap();
    }),
    ("it deletes a variable", |engine, var, forker| {
        let other = engine.token();
        engine.op("").reads([var.token()]).writes([&other]).push_sync(|_| ()).unwrap();
        engine.delete_variable(&other, move |cx| forker.fork_in(cx)).unwrap();
    }),
    ("it drops a value", |engine, var, forker| {
        struct Value(Engine, Forker);
        impl Drop for Value {
            fn drop(&mut self) {
                self.1.fork(&self.0);
            }
        }
        let other = engine.var(Value(engine.clone(), forker));
        engine.op("").reads([var.token()]).writes([other.token()]).push_sync(|_| ()).unwrap();
    }),
    ("it is for a device", |engine, var, forker| {
        let inner = engine.clone();
        let f = move |_: &mut raddle::GpuStream, _: &mut u64| forker.fork(&inner);
        engine.op("").on(GPU).launch_any(var.write(), f).unwrap();
    }),
];
