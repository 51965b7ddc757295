//! Models too large for loom: up to dozens of operations on several threads, in hundreds or thousands of schedules.
//!
//! Every atomic access counts as `SeqCst` here, so these models check the protocols' logic but not their orderings.
//! They run the library's own types; the last models run whole engines with their threads.
#![cfg(raddle_shuttle)]

use std::{
    future::Future,
    pin::Pin,
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{self, Wake},
    time::Duration,
};

use raddle::{
    Completion, Device, Engine, EngineKind, FutureContext, IdlePolicy, OpContext, OpHandle, Property, PushError,
    Shutdown, WaitError, WriteGuard,
    error::{BoxError, Cause, ShutdownError},
    gpu::{DeviceVec, GpuStream, SimulatedGpu, simulated::Clock},
    internals::{
        DEFAULT_BAND, Lane, LaneOptions, Mode, OpRef, PendingOps, ReadyList, VarQueue, WaitEnd, Worker, complete, push,
    },
};
use raddle_loom_tests::shapes::*;
use raddle_loom_tests::{check, end_alone, explore, kills};
use shuttle::{
    rand::{Rng, thread_rng},
    sync::mpsc,
    thread,
};

/// Returns a random number below `bound`. The schedule's seed determines the number.
fn below(bound: usize) -> usize {
    thread_rng().gen_range(0..bound)
}

// ------------------------------------------------------------------------------------------------------ tracker ----

const VARIABLES: usize = 4;

/// An operation's data: its number, and a count of drops to which its own drop is added.
struct Task {
    number: usize,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Relaxed);
    }
}

struct Made {
    accesses: Vec<(usize, Mode)>,
    thread: usize,
    /// The ticks at which the push began and ended, then those at which the operation began and ended.
    times: [Option<usize>; 4],
}

/// Variables and the operations on them. The bookkeeping uses `std`, whose types add no schedules.
struct World {
    queues: Box<[VarQueue<Task>]>,
    made: Mutex<Vec<Made>>,
    clock: AtomicUsize,
    dropped: Arc<AtomicUsize>,
}

impl World {
    fn new() -> Arc<Self> {
        let queues: Box<[_]> = (0..VARIABLES as u64).map(|id| VarQueue::with_owner(id, 0)).collect();
        for queue in &queues {
            // SAFETY: the box does not move until the world ends, and no other thread has access to it.
            unsafe { VarQueue::init(NonNull::from(queue)) };
        }
        Arc::new(Self { queues, made: Mutex::default(), clock: AtomicUsize::new(0), dropped: Arc::default() })
    }

    fn note(&self, number: usize, what: usize) {
        let tick = self.clock.fetch_add(1, Relaxed);
        let times = &mut self.made.lock().unwrap()[number].times;
        assert!(times[what].replace(tick).is_none(), "operation {number} was ready twice");
    }

    fn push_and_run(&self, thread: usize) {
        let mut accesses = Vec::new();
        for variable in 0..VARIABLES {
            match below(5) {
                0 => accesses.push((variable, Mode::Read)),
                1 => accesses.push((variable, Mode::Write)),
                2 if below(4) == 0 => accesses.push((variable, Mode::Await)),
                _ => {}
            }
        }
        let number = {
            let mut made = self.made.lock().unwrap();
            made.push(Made { accesses: accesses.clone(), thread, times: [None; 4] });
            made.len() - 1
        };
        let task = Task { number, dropped: Arc::clone(&self.dropped) };
        let accesses = accesses.into_iter().map(|(variable, mode)| (NonNull::from(&self.queues[variable]), mode));
        // SAFETY: the variables live as long as the world.
        let op = unsafe { OpRef::new(task, DEFAULT_BAND, false, accesses.collect::<Vec<_>>().into_iter()) };
        self.note(number, 0);
        let pushed = push(op);
        self.note(number, 1);
        let mut ready = ReadyList::default();
        pushed.ready.into_iter().for_each(|op| ready.push(op));
        while let Some(op) = ready.pop() {
            // SAFETY: the operation is ready and belongs to this thread; the number never changes.
            let number = unsafe { (*op.task_ptr()).number };
            self.note(number, 2);
            thread::yield_now();
            self.note(number, 3);
            drop(complete(op, &mut ready));
        }
    }

    /// Ends the world after all threads have been joined. Checks that every operation ran once, in an order allowed by
    /// the pushes.
    fn end(self: Arc<Self>) {
        let made = self.made.lock().unwrap();
        for (one, earlier) in made.iter().enumerate() {
            assert!(earlier.times[3].is_some(), "operation {one} never became ready");
            for (other, later) in made.iter().enumerate().filter(|&(_, later)| conflict(earlier, later)) {
                if one == other {
                    continue;
                }
                let one_first = earlier.times[3] < later.times[2];
                assert!(one_first || later.times[3] < earlier.times[2], "operations {one} and {other} overlap");
                let in_order = earlier.times[1] < later.times[0];
                assert!(!in_order || one_first, "operation {other} overtook operation {one}");
            }
        }
        for queue in &self.queues {
            let world = Arc::clone(&self);
            // SAFETY: all operations are done, no other is pushed, and the closure keeps the world alive until it runs.
            unsafe { VarQueue::dispose(NonNull::from(queue), move || drop(world)) };
        }
        assert_eq!(self.dropped.load(Relaxed), made.len(), "records dropped (left) and made (right)");
        assert!(made.iter().any(|made| made.thread > 0), "only one thread has pushed");
    }
}

// SAFETY: shuttle runs every thread of a model on one OS thread.
unsafe impl Send for World {}
// SAFETY: shuttle runs every thread of a model on one OS thread.
unsafe impl Sync for World {}

fn conflict(one: &Made, other: &Made) -> bool {
    one.accesses.iter().any(|&(variable, mode)| {
        other.accesses.iter().any(|&(also, its)| also == variable && (mode.is_write() || its.is_write()))
    })
}

fn pushes_over_several_variables() {
    let world = World::new();
    let threads: Vec<_> = (0..5)
        .map(|number| {
            let world = Arc::clone(&world);
            thread::spawn(move || (0..6).for_each(|_| world.push_and_run(number)))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    world.end();
}

#[test]
fn thirty_operations_pushed_by_five_threads_run_once_each_in_an_order_that_the_pushes_allow() {
    explore(6000, pushes_over_several_variables);
}

// -------------------------------------------------------------------------------------------------------- lanes ----

type Number = usize;

fn take(worker: &Worker<Number>) -> Option<Number> {
    let op = worker.next()?;
    // SAFETY: this thread has taken the operation, and no other thread changes its task.
    let number = unsafe { *op.task_ptr() };
    end_alone(op);
    Some(number)
}

fn op(number: Number) -> OpRef<Number> {
    let band = if below(3) == 0 { DEFAULT_BAND + below(3) as u8 - 1 } else { DEFAULT_BAND };
    // SAFETY: the operation uses no variable.
    unsafe { OpRef::new(number, band, false, std::iter::empty()) }
}

fn a_lane_with_three_workers() {
    const OPERATIONS: usize = 18;
    let options = LaneOptions { name: "model", workers: 3, idle: IdlePolicy::Park };
    let (lane, workers) = Lane::new(options);
    let left = Arc::new(AtomicUsize::new(OPERATIONS));
    let workers: Vec<_> = workers
        .into_iter()
        .map(|worker| {
            let (lane, left) = (Arc::clone(&lane), Arc::clone(&left));
            thread::spawn(move || {
                worker.lane().sleep().set_thread(worker.index());
                let mut taken = Vec::new();
                while let Some(number) = take(&worker) {
                    taken.push(number);
                    // Every third operation makes another operation ready, which goes to the slot or the deque.
                    if number % 3 == 0 {
                        if below(2) == 0 {
                            worker.push_next(op(number + 1));
                        } else {
                            worker.push_local(op(number + 1));
                        }
                    }
                    if left.fetch_sub(1, Relaxed) == 1 {
                        lane.end();
                    }
                }
                taken
            })
        })
        .collect();
    let pushers: Vec<_> = (0..2)
        .map(|pusher| {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                for number in (0..OPERATIONS).filter(|number| number % 3 != 1 && (number / 3) % 2 == pusher) {
                    lane.inject(op(number));
                }
            })
        })
        .collect();
    pushers.into_iter().for_each(|thread| thread.join().unwrap());
    let mut taken: Vec<_> = workers.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..OPERATIONS).collect::<Vec<_>>());
}

#[test]
fn three_workers_take_each_operation_once_and_all_end() {
    explore(4000, a_lane_with_three_workers);
}

/// Workers take exactly one operation each, so a worker that takes a batch or is the last to stop searching must wake
/// another if operations are left.
fn workers_that_take_one_operation_each() {
    const WORKERS: usize = 4;
    let (lane, workers) = Lane::new(LaneOptions { name: "model", workers: WORKERS, idle: IdlePolicy::Park });
    let threads: Vec<_> = workers
        .into_iter()
        .map(|worker| {
            thread::spawn(move || {
                worker.lane().sleep().set_thread(worker.index());
                // Other workers may steal further operations from the worker's deque.
                (take(&worker).unwrap(), worker)
            })
        })
        .collect();
    for number in 0..WORKERS {
        lane.inject(op(number));
    }
    let mut taken: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    taken.sort_unstable_by_key(|&(number, _)| number);
    assert!(taken.iter().map(|&(number, _)| number).eq(0..WORKERS));
}

#[test]
fn four_pushes_reach_four_workers_that_take_one_operation_each() {
    explore(6000, workers_that_take_one_operation_each);
}

/// A thread calls `idle_since` twice. If both calls return the same `Some`, the lane was idle between them: all
/// operations have run, since by the time of the calls only operations push.
fn two_looks_at_an_idle_lane() {
    const OPERATIONS: usize = 6;
    let (lane, workers) = Lane::new(LaneOptions { name: "model", workers: 2, idle: IdlePolicy::Park });
    let left = Arc::new(AtomicUsize::new(2 * OPERATIONS));
    let workers: Vec<_> = workers
        .into_iter()
        .map(|worker| {
            let left = Arc::clone(&left);
            thread::spawn(move || {
                worker.lane().sleep().set_thread(worker.index());
                while let Some(number) = take(&worker) {
                    if number < OPERATIONS {
                        worker.push_local(op(number + OPERATIONS));
                    }
                    left.fetch_sub(1, Relaxed);
                }
            })
        })
        .collect();
    for number in 0..OPERATIONS {
        lane.inject(op(number));
    }
    loop {
        let looks = [lane.idle_since(), lane.idle_since()];
        let all_have_run = left.load(Relaxed) == 0;
        assert!(looks[0].is_none() || looks[0] != looks[1] || all_have_run, "an operation runs in an idle lane");
        if all_have_run {
            break;
        }
        thread::yield_now();
    }
    lane.end();
    workers.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_lane_is_idle_if_two_checks_agree() {
    explore(4000, two_looks_at_an_idle_lane);
}

// -------------------------------------------------------------------------------------------------------- pending ----

/// Each thread's operations enter and leave one after another. So a wait covered all operations that had entered before
/// it if, for each thread, as many have left.
fn waits_for_all() {
    const THREADS: usize = 3;
    let pending = Arc::new(PendingOps::new(4));
    let counts = || Arc::new([const { AtomicUsize::new(0) }; THREADS]);
    let (entered, gone) = (counts(), counts());
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (pending, entered, gone) = (Arc::clone(&pending), Arc::clone(&entered), Arc::clone(&gone));
            thread::spawn(move || {
                for _ in 0..4 {
                    let ticket = pending.enter();
                    entered[number].fetch_add(1, Relaxed);
                    thread::yield_now();
                    gone[number].fetch_add(1, Relaxed);
                    drop(pending.leave(ticket));
                }
            })
        })
        .collect();
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let (pending, entered, gone) = (Arc::clone(&pending), Arc::clone(&entered), Arc::clone(&gone));
            thread::spawn(move || {
                for _ in 0..2 {
                    drop(pending.leave(pending.enter()));
                    let before = entered.each_ref().map(|count| count.load(Relaxed));
                    assert_ne!(pending.wait(None), WaitEnd::TimedOut);
                    let missed = gone.iter().zip(before).any(|(gone, before)| gone.load(Relaxed) < before);
                    assert!(!missed, "the wait missed an operation that had entered before");
                }
            })
        })
        .collect();
    threads.into_iter().chain(waiters).for_each(|thread| thread.join().unwrap());
    assert_eq!(pending.wait(None), WaitEnd::Idle);
}

#[test]
fn waits_for_all_end_while_others_enter_and_leave() {
    explore(6000, waits_for_all);
}

// ------------------------------------------------------------------------------------------------------- engine ----

/// Three threads push operations on an engine with two workers. Operations succeed, fail, panic or lose their
/// completions; threads wait outside and inside operations and clear errors; then the engine drains.
fn an_engine(kind: EngineKind) {
    let builder = Engine::builder().kind(kind).workers(2).pin(false).idle(IdlePolicy::Park);
    let engine = builder.build().unwrap();
    let logs: [_; 3] = std::array::from_fn(|_| engine.var(Vec::<usize>::new()));
    let token = engine.token();
    let (made, dropped) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let made = Arc::new(made);
    let threads: Vec<_> = (0..3)
        .map(|pusher| {
            let (engine, logs, token) = (engine.clone(), logs.clone(), token.clone());
            let (made, dropped) = (Arc::clone(&made), Arc::clone(&dropped));
            thread::spawn(move || {
                for number in 0..5 {
                    let number = pusher * 10 + number;
                    made.fetch_add(1, Relaxed);
                    let life = Task { number, dropped: Arc::clone(&dropped) };
                    let (a, b) = (below(3), below(3));
                    match below(8) {
                        0..=2 if a != b => {
                            let both = (logs[a].write(), logs[b].write());
                            let push = move |(a, b): (&mut Vec<usize>, &mut Vec<usize>)| {
                                thread::yield_now();
                                a.push(life.number);
                                b.push(life.number);
                            };
                            engine.op("both").push(both, push).unwrap();
                        }
                        0..=3 => {
                            let how = below(3);
                            let fail = move |a: &mut Vec<usize>| match how {
                                0 => Err(BoxError::from("on purpose")),
                                1 => std::panic::resume_unwind(Box::new("on purpose")),
                                _ => {
                                    a.push(life.number);
                                    Ok(())
                                }
                            };
                            engine.op("may fail").try_push(logs[a].write(), fail).unwrap();
                            if below(2) == 0 {
                                engine.clear_error(&logs[a]).unwrap();
                            }
                        }
                        4 => {
                            let handle =
                                engine.op("result").submit(logs[a].read(), move |a| (a.len(), life).0).unwrap();
                            match handle.wait() {
                                Ok(_) | Err(WaitError::Failed(_)) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                        5 => {
                            let lose = below(2) == 0;
                            let operation = engine.op("asynchronous").writes([&token]);
                            let begin = move |_: &OpContext<'_>, done: Completion| {
                                thread::spawn(move || {
                                    drop(life);
                                    if lose { drop(done) } else { done.complete() }
                                });
                            };
                            operation.push_async_any(raddle::cx(), begin).unwrap();
                        }
                        6 => {
                            let outer = engine.op("outer").writes([&token]).run_always();
                            let wait = move |cx: &OpContext<'_>| {
                                let inner = cx.engine().op("inner").submit((), move |()| life.number).unwrap();
                                inner.wait().unwrap();
                            };
                            outer.push_sync(wait).unwrap();
                        }
                        _ => {
                            drop(life);
                            match engine.wait_for_all() {
                                Ok(()) | Err(WaitError::Failed(_)) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for log in &logs {
        engine.clear_error(log).unwrap();
        let read = engine.op("read").submit(log.read(), Clone::clone).unwrap().wait().unwrap();
        assert_eq!(log.version(), read.len() as u64);
        for pusher in 0..3 {
            assert!(read.iter().filter(|&&number| number / 10 == pusher).is_sorted(), "{read:?} is not in push order");
        }
    }
    let _ = engine.wait_for_all();
    assert_eq!(dropped.load(Relaxed), made.load(Relaxed), "functions dropped (left) and made (right)");
    drop((logs, token));
    engine.shutdown(Shutdown::Drain, None).unwrap();
}

#[test]
fn a_pooled_engine_runs_the_operations_of_three_threads_and_ends() {
    explore(1200, || an_engine(EngineKind::Pooled));
}

#[test]
fn an_engine_per_device_runs_the_operations_of_three_threads_and_ends() {
    explore(800, || an_engine(EngineKind::PerDevice));
}

/// The engine is cancelled during pushes: accepted operations run or are cancelled, and nothing runs after the end.
fn a_cancelled_engine(workers: usize) {
    let builder = Engine::builder().kind(EngineKind::Pooled).workers(workers).pin(false).idle(IdlePolicy::Park);
    let engine = builder.build().unwrap();
    let log = engine.var(Vec::new());
    let threads: Vec<_> = (0..3)
        .map(|pusher| {
            let (engine, log) = (engine.clone(), log.clone());
            thread::spawn(move || {
                for number in 0..4 {
                    let pushed = engine.op("").submit(log.write(), move |log| log.push(pusher * 10 + number));
                    match pushed.map(OpHandle::wait) {
                        Ok(Ok(())) => {}
                        Ok(Err(WaitError::Failed(error))) => assert!(matches!(error.cause(), Cause::Cancelled)),
                        Err(PushError::ShutDown) => return,
                        other => panic!("{other:?}"),
                    }
                }
            })
        })
        .collect();
    (0..below(20)).for_each(|_| thread::yield_now());
    engine.shutdown(Shutdown::Cancel, None).unwrap();
    let version = log.version();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(log.version(), version, "an operation ran after the shutdown");
}

#[test]
fn a_cancelled_engine_lets_every_wait_end_and_runs_nothing_more() {
    explore(2000, || a_cancelled_engine(1));
    explore(2000, || a_cancelled_engine(2));
}

/// Threads push to an engine with workers while it shuts down: each push is refused, or its operation has run when the
/// shutdown returns. Operations with one access, with two, and with a priority
/// have push paths of their own.
fn pushes_to_a_pool_that_shuts_down() {
    let builder = Engine::builder().kind(EngineKind::Pooled).workers(1).pin(false).idle(IdlePolicy::Park);
    let engine = builder.build().unwrap();
    let (one, other) = (engine.var(()), engine.var(()));
    let threads = [0, 1, 2].map(|accesses| {
        let (engine, one, other) = (engine.clone(), one.clone(), other.clone());
        let ran = Arc::new(AtomicUsize::new(0));
        let runs = Arc::clone(&ran);
        let thread = thread::spawn(move || {
            let mut accepted = 0;
            for _ in 0..4 {
                let ran = Arc::clone(&runs);
                let run = move || _ = ran.fetch_add(1, Relaxed);
                let pushed = match accesses {
                    0 => engine.op("").priority(1).push((), move |()| run()),
                    1 => engine.op("").push(one.write(), move |_| run()),
                    _ => engine.op("").push((one.read(), other.write()), move |_| run()),
                };
                match pushed {
                    Ok(()) => accepted += 1,
                    Err(error) => assert_eq!(error, PushError::ShutDown),
                }
            }
            accepted
        });
        (accesses, ran, thread)
    });
    (0..below(20)).for_each(|_| thread::yield_now());
    engine.shutdown(Shutdown::Drain, None).unwrap();
    let counts = threads.map(|(accesses, ran, thread)| (accesses, ran.load(Relaxed), ran, thread));
    for (accesses, at_the_end, ran, thread) in counts {
        let accepted = thread.join().unwrap();
        assert_eq!(
            at_the_end, accepted,
            "accepted operations with {accesses} accesses had not run when the shutdown ended"
        );
        assert_eq!(ran.load(Relaxed), at_the_end, "operations with {accesses} accesses ran after the shutdown");
    }
}

#[test]
fn a_push_to_a_pool_that_shuts_down_is_refused_or_its_operation_runs() {
    explore(1200, pushes_to_a_pool_that_shuts_down);
}

/// An engine is stopped and started while threads push operations, some of which wait for others.
fn an_engine_that_stops(kind: EngineKind) {
    let builder = Engine::builder().kind(kind).workers(2).pin(false).idle(IdlePolicy::Park);
    let engine = builder.build().unwrap();
    let (log, running) = (engine.var(Vec::new()), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..2)
        .map(|pusher| {
            let (engine, log, running) = (engine.clone(), log.clone(), Arc::clone(&running));
            thread::spawn(move || {
                for number in 0..3 {
                    let running = Arc::clone(&running);
                    let waits = move |(cx, log): (&OpContext<'_>, &mut Vec<usize>)| {
                        running.fetch_add(1, Relaxed);
                        if below(2) == 0 {
                            let property = if below(2) == 0 { Property::CpuPrioritized } else { Property::Normal };
                            let inner = cx.engine().op("inner").property(property).submit((), |()| thread::yield_now());
                            inner.unwrap().wait().unwrap();
                        }
                        log.push(pusher * 10 + number);
                        running.fetch_sub(1, Relaxed);
                    };
                    engine.op("waits").push((raddle::cx(), log.write()), waits).unwrap();
                }
            })
        })
        .collect();
    for _ in 0..2 {
        (0..below(10)).for_each(|_| thread::yield_now());
        engine.stop(None).unwrap();
        let version = log.version();
        assert_eq!(running.load(Relaxed), 0, "a function runs in a stopped engine");
        (0..below(5)).for_each(|_| thread::yield_now());
        assert_eq!(log.version(), version, "an operation ran in a stopped engine");
        engine.start().unwrap();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    engine.wait_for_all().unwrap();
    assert_eq!(log.version(), 6);
    drop(log);
    engine.shutdown(Shutdown::Drain, None).unwrap();
}

#[test]
fn an_engine_that_is_stopped_and_started_loses_nothing() {
    explore(800, || an_engine_that_stops(EngineKind::Pooled));
    explore(400, || an_engine_that_stops(EngineKind::PerDevice));
}

/// Threads push parents with children and open scopes that use the same variables.
fn scopes_and_children() {
    let builder = Engine::builder().kind(EngineKind::Pooled).workers(2).pin(false).idle(IdlePolicy::Park);
    let engine = builder.build().unwrap();
    let (left, right) = (engine.var(0), engine.var(0));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (engine, left, right) = (engine.clone(), left.clone(), right.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let (l, r) = (left.clone(), right.clone());
                    let parent = engine.op("parent").with_children();
                    let push = move |(cx, left, _): (&OpContext<'_>, &mut usize, &mut usize)| {
                        *left += 1;
                        cx.child("left").push(l.write(), |left| *left += 1).unwrap();
                        cx.child("both").push((l.read(), r.write()), |(left, right)| *right = *left).unwrap();
                    };
                    parent.push((raddle::cx(), left.write(), right.write()), push).unwrap();
                    let mut sum = 0;
                    let right = &right;
                    let scope = engine.scope(|s| {
                        let sum = s.lend(&mut sum);
                        s.op("look").push((left.read(), sum.write()), |(left, sum)| *sum += left).unwrap();
                        s.op("spread")
                            .push((), move |()| {
                                s.op("look").push((right.read(), sum.write()), |(r, sum)| *sum += r).unwrap();
                            })
                            .unwrap();
                    });
                    scope.unwrap();
                    assert!(
                        sum >= 4,
                        "the scope has ended before its operations, or the parent before its children: {sum}"
                    );
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((engine.get(&left).unwrap(), engine.get(&right).unwrap()), (8, 8));
    assert_eq!((left.version(), right.version()), (4, 4));
    drop((left, right));
    engine.shutdown(Shutdown::Drain, None).unwrap();
}

#[test]
fn scopes_end_after_their_operations_and_parents_after_their_children() {
    explore(800, scopes_and_children);
}

/// Parents that are asynchronous operations or futures have children that use their families' variables, while other
/// threads use the parents' completions, keep the parents' guards, and push further children.
fn families() {
    let builder = Engine::builder().kind(EngineKind::Pooled).workers(2).pin(false).idle(IdlePolicy::Park);
    let engine = builder.build().unwrap();
    let (total, kept) = (engine.var(0_usize), engine.var(0_usize));
    let (sender, completions) = mpsc::channel::<Completion>();
    let completes = thread::spawn(move || {
        let mut count = 0;
        while let Ok(done) = completions.recv() {
            (0..below(4)).for_each(|_| thread::yield_now());
            done.complete();
            count += 1;
        }
        count
    });
    let (give, guards) = mpsc::channel::<(FutureContext, WriteGuard<usize>)>();
    let k = kept.clone();
    let pushes = thread::spawn(move || {
        let (mut pushed, mut all) = (0, Vec::new());
        while let Ok((cx, guard)) = guards.recv() {
            let late = cx.clone();
            let push = |cx: &FutureContext| cx.child("late").push(k.write(), |kept| *kept += 1);
            let first = push(&cx);
            drop(guard);
            // The parent's work may have ended by now.
            for result in [first, push(&late)] {
                match result {
                    Ok(()) => pushed += 1,
                    Err(error) => assert_eq!(error, PushError::ParentEnded),
                }
            }
            all.push(late);
        }
        pushed
    });
    for _ in 0..2 {
        let (t, sender) = (total.clone(), sender.clone());
        let parent = engine.op("asynchronous").writes([&total]).with_children();
        let function = move |cx: &OpContext<'_>, done: Completion| {
            let family = cx.child_var(Box::new(1)).unwrap();
            cx.child("first").push(family.write(), |family| **family += 1).unwrap();
            sender.send(done).unwrap();
            cx.child("second").push((family.read(), t.write()), |(family, total)| *total += **family).unwrap();
        };
        parent.push_async_any(raddle::cx(), function).unwrap();
        let (t, give) = (total.clone(), give.clone());
        let future = engine.op("future").with_children().push_future(
            (raddle::cx(), total.write(), kept.write()),
            move |(cx, mut total, kept)| async move {
                *total += 1;
                cx.child("child").push(t.write(), |total| *total += 1).unwrap();
                give.send((cx, kept)).unwrap();
            },
        );
        future.unwrap();
    }
    drop((sender, give));
    assert_eq!(engine.get(&total).unwrap(), 8, "a parent is complete before its children");
    let pushed = pushes.join().unwrap();
    assert_eq!(completes.join().unwrap(), 2);
    assert_eq!(engine.get(&kept).unwrap(), pushed);
    assert!(pushed >= 2, "pushes failed although the guard was alive");
    assert_eq!((total.version(), kept.version()), (4, 2));
    engine.wait_for_all().unwrap();
    drop((total, kept));
    engine.shutdown(Shutdown::Drain, None).unwrap();
}

#[test]
fn parents_of_every_kind_end_after_their_children() {
    explore(800, families);
}

/// A waker that waits for an operation when called.
struct WaitsFor {
    next: Mutex<Option<OpHandle<()>>>,
    is_over: Arc<AtomicUsize>,
}

impl Wake for WaitsFor {
    fn wake(self: Arc<Self>) {
        let next = self.next.lock().unwrap().take().expect("the waker should be called once");
        next.wait().unwrap();
        self.is_over.fetch_add(1, Relaxed);
    }
}

/// The future that an ending operation notifies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notifies {
    /// The future of its own handle.
    Handle,
    /// A future that waits for all operations; a worker notifies it.
    All,
    /// A future that waits for all operations; the thread that uses the operation's completion notifies it.
    AllByCompletion,
}

/// An operation notifies a future, whose waker waits for the operation's successor.
fn a_waker_that_waits_for_a_successor(workers: usize, notifies: Notifies) {
    let builder = Engine::builder().kind(EngineKind::Pooled).workers(workers).pin(false).idle(IdlePolicy::Park);
    let engine = builder.build().unwrap();
    let (token, over) = (engine.token(), Arc::new(AtomicUsize::new(0)));
    let (sender, receiver) = mpsc::channel();
    let begin = move |_: &OpContext<'_>, done| sender.send(done).unwrap();
    engine.op("asynchronous").writes([&token]).push_async_any(raddle::cx(), begin).unwrap();
    // All other operations are behind this one, which this thread completes.
    let done: Completion = receiver.recv().unwrap();
    let mut notified: Pin<Box<dyn Future<Output = Result<(), WaitError>>>> = match notifies {
        Notifies::Handle => Box::pin(engine.op("notifies").writes([&token]).submit((), |()| ()).unwrap()),
        Notifies::All => {
            engine.op("notifies").writes([&token]).push((), |()| ()).unwrap();
            Box::pin(engine.wait_for_all_async())
        }
        Notifies::AllByCompletion => Box::pin(engine.wait_for_all_async()),
    };
    let next = engine.op("next").writes([&token]).submit((), |()| ()).unwrap();
    let waker = Arc::new(WaitsFor { next: Mutex::new(Some(next)), is_over: Arc::clone(&over) });
    assert!(notified.as_mut().poll(&mut task::Context::from_waker(&waker.into())).is_pending());
    done.complete();
    if notifies == Notifies::AllByCompletion {
        assert_eq!(over.load(Relaxed), 1, "the completion has notified no future");
    }
    engine.wait_for_var(&token).unwrap();
    drop(token);
    engine.shutdown(Shutdown::Drain, None).unwrap();
    assert_eq!(over.load(Relaxed), 1, "no future was notified");
}

#[test]
fn ready_operations_are_scheduled_before_the_future_of_a_handle_is_woken() {
    explore(400, || a_waker_that_waits_for_a_successor(1, Notifies::Handle));
    explore(400, || a_waker_that_waits_for_a_successor(2, Notifies::Handle));
}

#[test]
fn ready_operations_are_scheduled_before_a_wait_for_all_is_woken_by_a_worker() {
    explore(400, || a_waker_that_waits_for_a_successor(2, Notifies::All));
    explore(400, || a_waker_that_waits_for_a_successor(1, Notifies::All));
}

#[test]
fn ready_operations_are_scheduled_before_a_wait_for_all_is_woken_by_a_completion() {
    explore(400, || a_waker_that_waits_for_a_successor(2, Notifies::AllByCompletion));
    explore(400, || a_waker_that_waits_for_a_successor(1, Notifies::AllByCompletion));
}

/// A deletion, which the engine always accepts, pushes an operation while another thread shuts the engine down. If the
/// push is accepted, the operation runs.
fn a_deletion_that_pushes_while_the_engine_ends() {
    let builder = Engine::builder().kind(EngineKind::Pooled).workers(1).pin(false).idle(IdlePolicy::Park);
    let engine = builder.build().unwrap();
    let token = engine.token();
    let ends = engine.clone();
    let end = thread::spawn(move || ends.shutdown(Shutdown::Drain, None).unwrap());
    let (ran, accepted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (inside, runs, accepts) = (engine.clone(), Arc::clone(&ran), Arc::clone(&accepted));
    let deletion = move |_: &OpContext<'_>| match inside.push_sync(move |_| _ = runs.fetch_add(1, Relaxed), [], []) {
        Ok(()) => _ = accepts.fetch_add(1, Relaxed),
        Err(refused) => assert_eq!(refused, PushError::ShutDown),
    };
    engine.delete_variable(&token, deletion).unwrap();
    end.join().unwrap();
    assert_eq!(ran.load(Relaxed), accepted.load(Relaxed), "operations that ran (left) and were accepted (right)");
}

#[test]
fn a_push_by_a_deletion_while_the_engine_ends_runs_or_is_refused() {
    explore(4000, a_deletion_that_pushes_while_the_engine_ends);
}

// ------------------------------------------------------------------------------------------------------ devices ----

/// The numbers of the operations whose kernels have used a device variable, kept in `std` types so that they add no
/// schedules.
type Done = Arc<Mutex<Vec<usize>>>;

/// Three threads push kernels, copies and CPU operations on an engine with a GPU. The GPU picks its next step at random
/// and, if `losable`, is lost during the run in some schedules. A thread that sees its operation succeed finds the
/// effects of that operation and of the thread's earlier ones; every wait ends.
fn an_engine_with_a_gpu(kind: EngineKind, losable: bool) {
    const GPU: Device = Device::Gpu(0);
    let gpu = SimulatedGpu::builder().seed(below(1 << 30) as u64).build();
    let builder = Engine::builder().kind(kind).workers(1).pin(false).idle(IdlePolicy::Park);
    let engine = builder.gpu(gpu.clone()).build().unwrap();
    let vars: [_; 2] = std::array::from_fn(|_| engine.device_var::<u64>(GPU, 1).unwrap());
    let host = engine.pinned_var::<u64>(GPU, 1).unwrap();
    let done: [Done; 2] = Default::default();
    let (made, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let loses = losable && below(2) == 0;
    let pushers: Vec<_> = (0..3)
        .map(|pusher| {
            let (engine, gpu, vars, host, done) =
                (engine.clone(), gpu.clone(), vars.clone(), host.clone(), done.clone());
            let (made, dropped) = (Arc::clone(&made), Arc::clone(&dropped));
            thread::spawn(move || {
                // This thread's kernels, by variable.
                let mut own = [Vec::new(), Vec::new()];
                for number in 0..4 {
                    let number = pusher * 10 + number;
                    if loses && pusher == 0 && number == 2 {
                        gpu.lose();
                    }
                    made.fetch_add(1, Relaxed);
                    let life = Task { number, dropped: Arc::clone(&dropped) };
                    let which = below(2);
                    let (var, other, log) = (&vars[which], &vars[1 - which], Arc::clone(&done[which]));
                    let properties = [Property::Normal, Property::GpuPrioritized, Property::CopyToGpu];
                    match below(6) {
                        0..=2 => {
                            let kernel =
                                move |stream: &mut GpuStream, (from, to): (&DeviceVec<u64>, &mut DeviceVec<u64>)| {
                                    let kernel = move |_: (&[u64], &mut [u64])| log.lock().unwrap().push(life.number);
                                    let mut stream = stream.simulated().unwrap();
                                    stream.launch(Duration::ZERO, (from, to), kernel)
                                };
                            let op = engine.op("kernel").on(GPU).property(properties[below(3)]);
                            let handle = op.submit_launch_any((other.read(), var.write()), kernel).unwrap();
                            own[which].push(number);
                            if below(2) == 0 {
                                match handle.wait() {
                                    Ok(()) => {
                                        assert!(
                                            done[which].lock().unwrap().contains(&number),
                                            "the wait ended before the kernel"
                                        );
                                        let counted = var.version() >= own[which].len() as u64;
                                        assert!(counted || loses, "a completed operation is not counted");
                                    }
                                    Err(error) => assert_is_loss(&error, loses),
                                }
                            }
                        }
                        3 => {
                            drop(life);
                            // Copies from one device variable to the other, through the host.
                            engine.op("out").on(GPU).copy_from_device(var, &host).unwrap();
                            engine.op("in").on(GPU).copy_to_device(&host, other).unwrap();
                        }
                        4 => {
                            let before = own[which].clone();
                            let check = move |_: &DeviceVec<u64>| {
                                let log = log.lock().unwrap();
                                let own: Vec<_> = log.iter().filter(|&&at| at / 10 == pusher).copied().collect();
                                (own.starts_with(&before), life).0
                            };
                            let handle = engine.op("cpu").submit(var.read(), check).unwrap();
                            match handle.wait() {
                                Ok(seen) => assert!(seen, "a CPU operation came before a kernel"),
                                Err(error) => assert_is_loss(&error, loses),
                            }
                        }
                        _ => {
                            drop(life);
                            let waited = if below(2) == 0 { engine.wait_for_all() } else { engine.wait_for_var(var) };
                            let counted = var.version() >= own[which].len() as u64;
                            assert!(counted || loses, "a completed operation is not counted");
                            waited.unwrap_or_else(|error| assert_is_loss(&error, loses));
                        }
                    }
                }
            })
        })
        .collect();
    pushers.into_iter().for_each(|thread| thread.join().unwrap());
    engine.wait_for_all().unwrap_or_else(|error| assert_is_loss(&error, loses));
    for (var, done) in vars.iter().zip(&done) {
        let done = done.lock().unwrap();
        assert!(var.version() <= 2 * 12 && (loses || var.version() >= done.len() as u64));
        for pusher in 0..3 {
            assert!(done.iter().filter(|&&number| number / 10 == pusher).is_sorted(), "{done:?} is not in push order");
        }
    }
    assert_eq!(dropped.load(Relaxed), made.load(Relaxed), "functions dropped (left) and made (right)");
    drop((vars, host));
    engine.shutdown(Shutdown::Drain, None).unwrap();
}

fn assert_is_loss(error: &WaitError, loses: bool) {
    let WaitError::Failed(error) = error else { panic!("{error}") };
    let of_device = matches!(error.cause(), Cause::Device(_) | Cause::Error(_));
    assert!(loses && of_device, "{error}");
}

/// A wait for a device's mutation ends after the mutation is counted in the variable's version, even if the wait begins
/// while the lane completes the operation.
fn waits_for_device_operations() {
    const GPU: Device = Device::Gpu(0);
    let gpu = SimulatedGpu::builder().build();
    let builder = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).idle(IdlePolicy::Park);
    let engine = builder.gpu(gpu).build().unwrap();
    let var = engine.device_var::<u64>(GPU, 1).unwrap();
    // This type is from `std`, so it adds no schedules.
    let pushed = Arc::new(AtomicUsize::new(0));
    let (its_engine, its_var, count) = (engine.clone(), var.clone(), Arc::clone(&pushed));
    let waiter = thread::spawn(move || {
        for _ in 0..8 {
            let before = count.load(Relaxed) as u64;
            its_engine.wait_for_var(&its_var).unwrap();
            assert!(its_var.version() >= before, "a completed operation is not counted");
        }
    });
    for number in 1..4 {
        let kernel = |stream: &mut GpuStream, var: &mut DeviceVec<u64>| {
            stream.simulated().unwrap().launch(Duration::ZERO, var, |_| {})
        };
        engine.op("kernel").on(GPU).launch_any(var.write(), kernel).unwrap();
        pushed.store(number, Relaxed);
    }
    waiter.join().unwrap();
    drop(var);
    engine.shutdown(Shutdown::Drain, None).unwrap();
}

#[test]
fn a_wait_for_a_device_operation_sees_it_in_the_version() {
    explore(8000, waits_for_device_operations);
}

/// A value that sends a message when it is dropped.
struct Life(mpsc::Sender<()>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.send(()).expect("the model should keep the receiver");
    }
}

/// An operator over a device variable is dropped; a reader may be running or have run on the device. Another reader is
/// launched behind the operator's deletion. That reader ends only once the model has advanced the clock. If the
/// deletion comes `first`, the model advances the clock only after the operator has been deleted.
fn a_deleted_operator(workers: usize, first: bool) {
    const GPU: Device = Device::Gpu(0);
    const LATER: Duration = Duration::from_millis(1);
    let at_once = SimulatedGpu::builder().launch_latency(Duration::ZERO).kernel_time(Duration::ZERO);
    let gpu = at_once.clock(Clock::Manual).build();
    let builder = Engine::builder().kind(EngineKind::PerDevice).workers(workers).pin(false).idle(IdlePolicy::Park);
    let engine = builder.gpu(gpu.clone()).build().unwrap();
    let var = engine.device_var::<u64>(GPU, 1).unwrap();
    let (issued, is_issued) = mpsc::channel();
    let read = |time| {
        let issued = issued.clone();
        let kernel = move |stream: &mut GpuStream, var: &DeviceVec<u64>| {
            let launched = stream.simulated().unwrap().launch(time, var, |_| {});
            issued.send(()).unwrap();
            launched
        };
        engine.op("reader").on(GPU).launch_any(var.read(), kernel).unwrap();
    };
    if below(2) == 0 {
        read(Duration::ZERO);
        is_issued.recv().unwrap();
        if below(2) == 0 {
            engine.wait_for_all().unwrap();
        }
    }
    let (deleted, is_deleted) = mpsc::channel();
    let life = Life(deleted);
    drop(engine.op("deleted").operator(var.read(), move |_| _ = &life).unwrap());
    read(LATER);
    if first {
        is_deleted.recv().unwrap();
    }
    is_issued.recv().unwrap();
    gpu.advance(LATER);
    if !first {
        is_deleted.recv().unwrap();
    }
    engine.wait_for_all().unwrap();
    assert!(is_deleted.recv().is_err(), "the operator is deleted twice");
    drop(var);
    engine.shutdown(Shutdown::Drain, None).unwrap();
}

#[test]
fn a_deleted_operator_over_a_variable_that_a_device_reads_enters_its_lane_once() {
    explore(600, || a_deleted_operator(2, false));
}

#[test]
fn a_deleted_operator_does_not_wait_for_a_later_reader_on_a_device() {
    explore(600, || a_deleted_operator(1, true));
    explore(600, || a_deleted_operator(2, true));
}

/// An operation shuts its engine down. The engine may then have to wait only for a device's last operation. The
/// engine's last handle is dropped outside operations.
fn an_engine_that_ends_while_a_device_works() {
    const GPU: Device = Device::Gpu(0);
    let gpu = SimulatedGpu::builder().seed(below(1 << 30) as u64).build();
    let builder = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).idle(IdlePolicy::Park);
    let engine = builder.gpu(gpu).build().unwrap();
    let var = engine.device_var::<u64>(GPU, 1).unwrap();
    let kernel = |stream: &mut GpuStream, var: &mut DeviceVec<u64>| {
        stream.simulated().unwrap().launch(Duration::ZERO, var, |_| {})
    };
    engine.op("kernel").on(GPU).launch_any(var.write(), kernel).unwrap();
    let inside = engine.clone();
    let how = [Shutdown::Drain, Shutdown::Cancel][below(2)];
    let end = move |_: &OpContext<'_>| {
        let ended = inside.shutdown(how, None);
        assert!(matches!(ended, Err(ShutdownError::InsideOperation)), "{ended:?}");
    };
    engine.push_sync(end, [], []).unwrap();
    drop((var, engine));
}

#[test]
fn an_engine_ended_by_its_operation_ends_with_the_last_device_operation() {
    explore(8000, an_engine_that_ends_while_a_device_works);
}

#[test]
fn a_pooled_engine_with_a_gpu_runs_the_operations_of_three_threads_and_ends() {
    explore(1000, || an_engine_with_a_gpu(EngineKind::Pooled, false));
}

#[test]
fn an_engine_with_a_gpu_runs_the_operations_of_three_threads_and_ends() {
    explore(800, || an_engine_with_a_gpu(EngineKind::PerDevice, false));
}

#[test]
fn an_engine_whose_gpu_is_lost_ends_every_wait_and_then_ends() {
    explore(800, || an_engine_with_a_gpu(EngineKind::PerDevice, true));
}

// ---------------------------------------------------------------------------------------------- what they need ----

#[test]
fn each_step_of_whole_engines_is_needed() {
    check(&[KILLS], |declared| declared.name.starts_with("engine_step::"));
}

kills! {
    thirty_operations_pushed_by_five_threads_run_once_each_in_an_order_that_the_pushes_allow {
        "step::HELP_BEFORE_APPEND": "overtook operation",
        "step::REREAD_REGISTERED": "max_steps",
        "step::RETIRE": "use after reclamation",
    }
    three_workers_take_each_operation_once_and_all_end {
        "step::SEARCH_AGAIN_BEFORE_PARK": "deadlock",
    }
    four_pushes_reach_four_workers_that_take_one_operation_each {
        "engine_step::BATCH_NOTIFIES": "deadlock",
    }
    a_lane_is_idle_if_two_checks_agree {
        "engine_step::NOTE_BUSY": "runs in an idle lane",
    }
    waits_for_all_end_while_others_enter_and_leave {
        "step::LEAVE_NOTIFIES": "deadlock",
    }
    a_pooled_engine_runs_the_operations_of_three_threads_and_ends {
        "step::DROP_COMPLETES": "deadlock",
    }
    a_cancelled_engine_lets_every_wait_end_and_runs_nothing_more {
        "step::SEARCH_AGAIN_BEFORE_PARK": "deadlock",
    }
    a_push_to_a_pool_that_shuts_down_is_refused_or_its_operation_runs {
        "step::PHASE_REFUSES": "accepted operations with",
    }
    parents_of_every_kind_end_after_their_children {
        "step::EVERY_PART_COUNTS": "panicked",
    }
    ready_operations_are_scheduled_before_the_future_of_a_handle_is_woken {
        "engine_step::SCHEDULE_THEN_NOTIFY": "deadlock",
    }
    ready_operations_are_scheduled_before_a_wait_for_all_is_woken_by_a_worker {
        "engine_step::SCHEDULE_THEN_NOTIFY": "deadlock",
    }
    ready_operations_are_scheduled_before_a_wait_for_all_is_woken_by_a_completion {
        "engine_step::SCHEDULE_THEN_NOTIFY": "deadlock",
    }
    a_push_by_a_deletion_while_the_engine_ends_runs_or_is_refused {
        "engine_step::CLOSE_AND_WAIT_AGAIN": "operations that ran",
    }
    a_deleted_operator_over_a_variable_that_a_device_reads_enters_its_lane_once {
        "engine_step::END_WAITING_FOR_DEVICES": "an operation enters a lane of several workers a second time",
    }
    a_deleted_operator_does_not_wait_for_a_later_reader_on_a_device {
        "engine_step::END_WAITING_FOR_DEVICES": "max_steps",
    }
    an_engine_ended_by_its_operation_ends_with_the_last_device_operation {
        "engine_step::WAKE_HERE_ONCE_CLOSED": "max_steps",
    }
}
