//! Memory and wake-ups of waits: a timed-out or dropped wait leaves no memory behind, later pushes do not delay a wait,
//! and wakers may call the engine.

use raddle_testkit as common;

use std::{
    alloc::Layout,
    future::Future,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicIsize, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc,
    },
    task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker},
    thread,
    time::Duration,
};

use common::shapes::*;
use common::{Gate, KINDS, THREADED, alone, block_on, engine, failure, hold, poll_once, program::fewer, watched};
use raddle::{
    Completion, Device, Engine, EngineKind, Group, OpHandle, Token, Var, VarWait, WaitError, completion,
    gpu::{DeviceVec, SimulatedGpu, simulated::Clock},
};

// ----------------------------------------------------------------------------------------------------- the memory ----

/// The number of allocated bytes.
pub static BYTES: AtomicIsize = AtomicIsize::new(0);

pub fn allocated(layout: Layout) {
    BYTES.fetch_add(layout.size() as isize, Relaxed);
}

pub fn freed(layout: Layout) {
    BYTES.fetch_sub(layout.size() as isize, Relaxed);
}

#[track_caller]
fn watched_alone(f: impl FnOnce() + Send + 'static) {
    let _alone = alone();
    watched(f);
}

#[track_caller]
fn alone_on(kinds: &[EngineKind], workers: usize, f: impl Fn(Engine) + Clone + Send + 'static) {
    for &kind in kinds {
        let f = f.clone();
        watched_alone(move || {
            println!("on the {kind} engine with {workers} workers");
            f(engine(kind, workers));
        });
    }
}

/// The permitted growth, in bytes, over [`MANY`] repetitions or three times as many. A leak of 53 bytes in each of
/// 5,000 repetitions exceeds it.
const LIMIT: isize = 1 << 18;

/// Runs `f` `times` times and asserts that memory stays flat.
#[track_caller]
fn assert_flat(what: &str, times: usize, mut f: impl FnMut(usize)) {
    // The first calls may make lasting allocations.
    (0..1000).for_each(&mut f);
    let before = BYTES.load(Relaxed);
    (0..times).for_each(&mut f);
    let grown = BYTES.load(Relaxed) - before;
    println!("{what}: memory grew by {grown} bytes over {times} repetitions");
    assert!(grown < LIMIT, "{what}: memory grew by {grown} bytes over {times} repetitions");
}

const MANY: usize = fewer(5_000);

/// A one-KiB waker that counts its wake-ups.
struct Heavy {
    woken: AtomicUsize,
    _weight: [u8; 1024],
}

impl Wake for Heavy {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, SeqCst);
    }
}

fn new_heavy() -> Arc<Heavy> {
    Arc::new(Heavy { woken: AtomicUsize::new(0), _weight: [1; 1024] })
}

/// Polls a future once with a new waker and asserts that it is pending.
#[track_caller]
fn poll_heavily<F: Future + Unpin>(future: &mut F) -> Arc<Heavy> {
    let heavy = new_heavy();
    assert!(poll_with(future, &Waker::from(Arc::clone(&heavy))).is_pending());
    heavy
}

fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(waker))
}

// --------------------------------------------------------------------------------------------- pending operations ----

/// Asynchronous operations completed by the test.
struct Pending(mpsc::Receiver<Completion>, mpsc::Sender<Completion>);

impl Pending {
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        Self(receiver, sender)
    }

    /// Starts an operation that writes `tokens`, and returns its completion.
    fn start<'t>(&self, engine: &'t Engine, tokens: impl IntoIterator<Item = &'t Token>) -> Completion {
        let sender = self.1.clone();
        engine
            .op("pending")
            .writes(tokens)
            .push_async_any(raddle::cx(), move |_, done| {
                sender.send(done).unwrap_or_else(|_| unreachable!("the test should keep the receiver"));
            })
            .expect("the engine should be open");
        self.0.recv().expect("the operation should start")
    }
}

fn no_tokens() -> [&'static Token; 0] {
    []
}

fn assert_timed_out(result: Result<(), WaitError>) {
    assert!(matches!(result, Err(WaitError::TimedOut)), "{result:?}");
}

// ------------------------------------------------------------------------------------------------- waits for all ----

#[test]
fn later_waits_do_not_delay_a_wait_for_all() {
    alone_on(&KINDS, 2, |engine| {
        let pending = Pending::new();
        let mut before = Vec::new();
        let mut waits = Vec::new();
        for _ in 0..200 {
            before.push(pending.start(&engine, no_tokens()));
            assert_timed_out(engine.wait_for_all_timeout(Duration::ZERO));
            waits.push(Box::pin(engine.wait_for_all_async()));
        }
        let after = pending.start(&engine, no_tokens());
        let mut last = Box::pin(engine.wait_for_all_async());
        assert!(poll_once(&mut last).is_pending());
        // Each wait ends only once the operations pushed before it have ended.
        for (done, mut wait) in before.into_iter().zip(waits) {
            assert!(poll_once(&mut wait).is_pending());
            done.complete();
            block_on(wait).expect("no operation should fail");
        }
        assert!(poll_once(&mut last).is_pending());
        after.complete();
        block_on(last).expect("no operation should fail");
        engine.wait_for_all().expect("no operation should fail");
    });
}

#[test]
fn overlapping_waits_for_all_end_when_the_operations_they_cover_complete() {
    alone_on(&KINDS, 2, |engine| {
        let pending = Pending::new();
        let mut rounds: Vec<_> = (0..130)
            .map(|_| (Some(pending.start(&engine, no_tokens())), Some(Box::pin(engine.wait_for_all_async()))))
            .collect();
        // The operations complete out of order: no wait ends while an earlier operation is pending.
        for at in (0..rounds.len()).map(|i| i * 37 % 130) {
            rounds[at].0.take().expect("each operation should complete once").complete();
            let done = rounds.iter().take_while(|round| round.0.is_none()).count();
            for (i, (_, wait)) in rounds.iter_mut().enumerate() {
                if i < done
                    && let Some(wait) = wait.take()
                {
                    block_on(wait).expect("no operation should fail");
                } else if let Some(wait) = wait {
                    assert!(poll_once(wait).is_pending(), "wait {i} ended while operation {done} was pending");
                }
            }
        }
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// A waiting thread wakes when the operations covered by its wait are complete, even while other generations drain.
#[test]
fn threads_in_a_wait_for_all_are_woken_while_many_generations_drain() {
    alone_on(&KINDS, 2, |engine| {
        let pending = Pending::new();
        let mut held = Vec::new();
        let mut threads = Vec::new();
        for _ in 0..5 {
            for _ in 0..20 {
                held.push(pending.start(&engine, no_tokens()));
                assert_timed_out(engine.wait_for_all_timeout(Duration::ZERO));
            }
            let engine = engine.clone();
            threads.push(thread::spawn(move || engine.wait_for_all()));
        }
        for done in held.into_iter().rev() {
            done.complete();
        }
        for thread in threads {
            thread.join().expect("the thread should not panic").expect("no operation should fail");
        }
    });
}

#[test]
fn dropped_waits_for_all_leave_no_memory_behind() {
    alone_on(&KINDS, 2, |engine| {
        let done = Pending::new().start(&engine, no_tokens());
        assert_flat("dropped waits for all", MANY, |_| {
            let mut wait = Box::pin(engine.wait_for_all_async());
            let waker = poll_heavily(&mut wait);
            drop(wait);
            assert_eq!(Arc::strong_count(&waker), 1, "the engine keeps the waker");
        });
        assert_flat("dropped waits for all during other work", MANY, |_| {
            let other = engine.op("other").submit((), |()| ()).expect("the engine should be open");
            poll_heavily(&mut Box::pin(engine.wait_for_all_async()));
            other.wait().expect("no operation should fail");
        });
        assert_flat("waits for all that time out", MANY, |_| {
            assert_timed_out(engine.wait_for_all_timeout(Duration::ZERO));
        });
        done.complete();
        engine.wait_for_all().expect("no operation should fail");
    });
}

#[test]
fn dropped_waits_for_a_group_leave_no_memory_behind() {
    alone_on(&KINDS, 2, |engine| {
        let (group, (sender, receiver)) = (engine.group(), mpsc::channel());
        let pending = move |done| sender.send(done).expect("the test should keep the receiver");
        group.op("pending").push(completion(), pending).expect("the engine should be open");
        let done: Completion = receiver.recv().expect("the operation should start");
        assert_flat("dropped waits for a group", MANY, |_| {
            let mut wait = Box::pin(group.wait_async());
            let waker = poll_heavily(&mut wait);
            drop(wait);
            assert_eq!(Arc::strong_count(&waker), 1, "the engine keeps the waker");
        });
        assert_flat("dropped waits for a group during other work", MANY, |_| {
            let other = group.op("other").submit((), |()| ()).expect("the engine should be open");
            poll_heavily(&mut Box::pin(group.wait_async()));
            other.wait().expect("no operation should fail");
        });
        assert_flat("waits for a group that time out", MANY, |_| {
            assert_timed_out(group.wait_timeout(Duration::ZERO));
        });
        done.complete();
        group.wait().expect("no operation should fail");
    });
}

/// In so many groups, the tickets of a member do not fit into its record. On a naive engine, no other thread delays the
/// reclamation of what the members have retired.
#[test]
fn members_of_many_nested_groups_leave_no_memory_behind() {
    alone_on(&[EngineKind::Naive], 1, |engine| {
        let group = (0..20).fold(engine.group(), |group, _| group.group());
        assert_flat("members of many nested groups", MANY, |_| {
            group.op("member").push((), |()| ()).expect("the engine should be open");
        });
        group.wait().expect("no operation should fail");
    });
}

#[test]
fn dropped_operators_leave_no_memory_behind() {
    alone_on(&[EngineKind::Naive], 1, |engine| {
        // As many as a list of accesses does not hold without an allocation.
        let vars: Vec<_> = (0..40).map(|n| engine.var(n)).collect();
        assert_flat("dropped operators", MANY, |_| {
            let accesses: Vec<_> = vars.iter().map(Var::write).collect();
            let _ = engine.op("").operator(accesses, |_| ()).expect("the engine should be open");
        });
    });
}

// ---------------------------------------------------------------------------------------------- waits for room ----

/// The futures are dropped while the engine or a group is full, and after they have been woken because it has room.
fn assert_dropped_waits_for_room_leave_memory_flat(engine: &Engine, group: Option<&Group>) {
    let op = || group.map_or_else(|| engine.op("waits"), |group| group.op("waits"));
    let fill = || {
        let (sender, receiver) = mpsc::channel();
        let pending = move |done| sender.send(done).expect("the test should keep the receiver");
        op().push(completion(), pending).expect("the engine should be open");
        let done: Completion = receiver.recv().expect("the operation should start");
        done
    };
    let done = fill();
    assert_flat("dropped waits for room", MANY, |_| {
        let mut room = Box::pin(op().when_room());
        let waker = poll_heavily(&mut room);
        drop(room);
        assert_eq!(Arc::strong_count(&waker), 1, "the engine keeps the waker");
    });
    done.complete();
    assert_flat("dropped waits for room that were woken", MANY / 5, |_| {
        let done = fill();
        let mut rooms = [(); 2].map(|()| Box::pin(op().when_room()));
        let wakers = rooms.each_mut().map(poll_heavily);
        done.complete();
        drop(rooms);
        for waker in wakers {
            assert_eq!(Arc::strong_count(&waker), 1, "the engine keeps the waker");
        }
    });
    engine.wait_for_all().expect("no operation should fail");
}

#[test]
fn dropped_waits_for_room_leave_no_memory_behind() {
    for kind in KINDS {
        watched_alone(move || {
            let engine = Engine::builder().kind(kind).workers(2).pin(false).max_pending(1).build();
            assert_dropped_waits_for_room_leave_memory_flat(&engine.expect("an engine"), None);
            let engine = common::engine(kind, 2);
            let group = engine.group().max_pending(1);
            assert_dropped_waits_for_room_leave_memory_flat(&engine, Some(&group));
        });
    }
}

// ------------------------------------------------------------------------------------------- waits for a variable ----

/// Waits for a variable with a pending operation, alternately by a call that times out and a dropped future.
fn abandon_wait(engine: &Engine, token: &Token, for_reading: bool, i: usize) {
    if i % 2 == 0 {
        assert_timed_out(if for_reading {
            engine.wait_to_read_timeout(token, Duration::ZERO)
        } else {
            engine.wait_for_var_timeout(token, Duration::ZERO)
        });
    } else {
        let mut wait = if for_reading { engine.wait_to_read_async(token) } else { engine.wait_for_var_async(token) };
        let waker = poll_heavily(&mut wait);
        drop(wait);
        assert_eq!(Arc::strong_count(&waker), 1, "the engine keeps the waker");
    }
}

fn assert_abandoned_waits_leave_memory_flat(engine: &Engine, token: &Token) {
    for (what, readers) in
        [("waits to read", [true; 2]), ("waits for every access", [false; 2]), ("both in turn", [true, false])]
    {
        assert_flat(what, 3 * MANY, |i| abandon_wait(engine, token, readers[i / 2 % 2], i));
    }
}

#[test]
fn abandoned_waits_for_a_variable_leave_no_memory_behind() {
    alone_on(&KINDS, 2, |engine| {
        let token = engine.token();
        let gate = hold(&engine, &token);
        assert_abandoned_waits_leave_memory_flat(&engine, &token);
        gate.open();
        engine.wait_for_var(&token).expect("no operation should fail");
    });
}

#[test]
fn abandoned_waits_behind_a_reader_leave_no_memory_behind() {
    alone_on(&THREADED, 2, |engine| {
        let (var, gate) = (engine.var(0), Gate::new());
        let inside = gate.clone();
        engine.op("read").push(var.read(), move |_| inside.pass()).expect("the engine should be open");
        assert_flat("waits for readers", 3 * MANY, |i| abandon_wait(&engine, var.token(), false, i));
        engine.wait_to_read(&var).expect("the wait should not cover readers");
        gate.open();
        engine.wait_for_var(&var).expect("no operation should fail");
    });
}

/// The device makes no progress: the operation has been issued, and the waits wait at its lane.
#[test]
fn abandoned_waits_for_a_device_leave_no_memory_behind() {
    for kind in THREADED {
        watched_alone(move || {
            let gpu = SimulatedGpu::builder().clock(Clock::Manual).build();
            let engine =
                Engine::builder().kind(kind).workers(2).pin(false).gpu(gpu.clone()).build().expect("an engine");
            let var: Var<DeviceVec<u8>> = engine.device_var(Device::Gpu(0), 4).expect("memory");
            let issued = Gate::new();
            let inside = issued.clone();
            engine
                .op("launch")
                .on(Device::Gpu(0))
                .launch_any(var.write(), move |stream, _| {
                    let mut stream = stream.simulated().expect("the device should be simulated");
                    stream.launch(Duration::from_secs(1), (), |()| {}).expect("the device should work");
                    inside.open();
                })
                .expect("the engine should be open");
            issued.pass();
            assert_abandoned_waits_leave_memory_flat(&engine, var.token());
            let wait = engine.wait_for_var_async(&var);
            let over = Arc::new(AtomicBool::new(false));
            let (device, is_over) = (gpu.clone(), Arc::clone(&over));
            let clock = thread::spawn(move || {
                while !is_over.load(SeqCst) {
                    device.advance(Duration::from_millis(1));
                    thread::yield_now();
                }
            });
            block_on(wait).expect("no operation should fail");
            over.store(true, SeqCst);
            clock.join().expect("the thread should not panic");
        });
    }
}

#[test]
fn a_wait_that_joins_another_returns_the_failure() {
    alone_on(&KINDS, 2, |engine| {
        let (token, pending) = (engine.token(), Pending::new());
        let done = pending.start(&engine, [&token]);
        drop(engine.wait_for_var_async(&token));
        assert_timed_out(engine.wait_to_read_timeout(&token, Duration::ZERO));
        let waits = [(); 4].map(|()| [engine.wait_for_var_async(&token), engine.wait_to_read_async(&token)]);
        let threads = [true, false].map(|for_reading| {
            let (engine, token) = (engine.clone(), token.clone());
            thread::spawn(move || if for_reading { engine.wait_to_read(&token) } else { engine.wait_for_var(&token) })
        });
        done.fail("as planned");
        let mut waits = waits.into_iter().flatten();
        let first = failure(block_on(waits.next().expect("there should be eight waits")));
        for wait in waits {
            assert!(failure(block_on(wait)).ptr_eq(&first));
        }
        for thread in threads {
            assert!(failure(thread.join().expect("the thread should not panic")).ptr_eq(&first));
        }
        // A later wait returns the same failure, until it is cleared.
        assert!(failure(engine.wait_for_var(&token)).ptr_eq(&first));
        engine.clear_error(&token).expect("the engine should be open");
        engine.wait_for_var(&token).expect("the failure should have been cleared");
    });
}

#[test]
fn a_wait_covers_earlier_pushes_and_no_later_ones() {
    alone_on(&KINDS, 2, |engine| {
        // `true` stands for a wait to read, `false` for a wait for every access.
        for kinds in [[true, true], [true, false], [false, true], [false, false]] {
            let (token, pending) = (engine.token(), Pending::new());
            let waits = || -> Vec<VarWait> {
                let start = |&for_reading: &bool| {
                    if for_reading { engine.wait_to_read_async(&token) } else { engine.wait_for_var_async(&token) }
                };
                [kinds, kinds].as_flattened().iter().map(start).collect()
            };
            let first = pending.start(&engine, [&token]);
            let before = waits();
            let (sender, second) = mpsc::channel();
            engine
                .op("second")
                .writes([&token])
                .push_async_any(raddle::cx(), move |_, done| {
                    sender.send(done).expect("the test should keep the receiver");
                })
                .expect("the engine should be open");
            let mut behind = waits();
            first.complete();
            for wait in before {
                block_on(wait).expect("no operation should fail");
            }
            let second = second.recv().expect("the operation should start");
            for wait in &mut behind {
                assert!(poll_once(wait).is_pending(), "the wait ended before the second operation");
            }
            second.complete();
            for wait in behind {
                block_on(wait).expect("no operation should fail");
            }
            assert_eq!(token.version(), 2);
        }
    });
}

/// A ready wait is queued on a thread blocked by a waker. A later wait must not join the blocked one.
#[test]
fn a_wait_does_not_join_a_ready_wait_that_is_blocked() {
    struct Block(Gate, Gate);
    impl Wake for Block {
        fn wake(self: Arc<Self>) {
            self.0.open();
            self.1.pass();
        }
    }
    alone_on(&KINDS, 2, |engine| {
        let (one, other) = (engine.token(), engine.token());
        let done = Pending::new().start(&engine, [&one, &other]);
        let (blocked, released) = (Gate::new(), Gate::new());
        let mut first = engine.wait_for_var_async(&one);
        let waker = Waker::from(Arc::new(Block(blocked.clone(), released.clone())));
        assert!(poll_with(&mut first, &waker).is_pending());
        drop(engine.wait_to_read_async(&other));
        let thread = thread::spawn(move || done.fail("as planned"));
        blocked.pass();
        let waited = engine.wait_to_read_timeout(&other, common::SOON);
        released.open();
        thread.join().expect("the thread should not panic");
        failure(waited);
    });
}

/// The variable is deleted by a call, and its last handle is dropped. Joined waits before and after the deletion end.
#[test]
fn joined_waits_end_when_the_variable_is_deleted() {
    alone_on(&KINDS, 2, |engine| {
        let token = engine.token();
        let done = Pending::new().start(&engine, [&token]);
        let before = [engine.wait_for_var_async(&token), engine.wait_for_var_async(&token)];
        let gone = Gate::new();
        let inside = gone.clone();
        engine.delete_variable(&token, move |_| inside.open()).expect("the variable should not be deleted");
        let behind = [engine.wait_for_var_async(&token), engine.wait_for_var_async(&token)];
        drop(token);
        done.complete();
        before.into_iter().for_each(|wait| block_on(wait).expect("no operation should fail"));
        behind.into_iter().for_each(|wait| block_on(wait).expect("no operation should fail"));
        assert!(gone.is_open(), "the waits pushed after the deletion ended before it");
        engine.wait_for_all().expect("no operation should fail");
    });
}

// -------------------------------------------------------------------------------------------------------- wakers ----

/// Returns one future of each kind. Each waits for the operation on `token` or for one queued behind it.
fn futures(engine: &Engine, token: &Token) -> [Box<dyn Future<Output = bool> + Unpin>; 4] {
    let handle: OpHandle<()> =
        engine.op("behind").reads([token]).submit((), |()| ()).expect("the engine should be open");
    let (var, read) = (engine.wait_for_var_async(token), engine.wait_to_read_async(token));
    let all = engine.wait_for_all_async();
    [
        Box::new(Box::pin(async { handle.await.is_ok() })),
        Box::new(Box::pin(async { var.await.is_ok() })),
        Box::new(Box::pin(async { read.await.is_ok() })),
        Box::new(Box::pin(async { all.await.is_ok() })),
    ]
}

#[test]
fn a_dropped_future_is_not_woken_and_a_moved_one_wakes_only_its_last_waker() {
    alone_on(&KINDS, 2, |engine| {
        let token = engine.token();
        let done = Pending::new().start(&engine, [&token]);
        let dropped: Vec<_> = futures(&engine, &token).iter_mut().map(poll_heavily).collect();
        let mut moved = futures(&engine, &token);
        let before: Vec<_> = moved.iter_mut().map(poll_heavily).collect();
        let after: Vec<_> = moved.iter_mut().map(poll_heavily).collect();
        for waker in dropped.iter().chain(&before) {
            assert_eq!(Arc::strong_count(waker), 1, "the engine keeps the waker");
        }
        done.complete();
        engine.wait_for_all().expect("no operation should fail");
        for waker in dropped.iter().chain(&before) {
            assert_eq!(waker.woken.load(SeqCst), 0, "the waker of a dropped or moved future was woken");
        }
        common::eventually("each live future is woken", || after.iter().all(|waker| waker.woken.load(SeqCst) == 1));
        for future in moved {
            assert!(block_on(future), "the future returned an error");
        }
    });
}

#[test]
fn a_future_that_is_polled_often_keeps_one_waker() {
    alone_on(&KINDS, 2, |engine| {
        let token = engine.token();
        let done = Pending::new().start(&engine, [&token]);
        for mut future in futures(&engine, &token) {
            assert_flat("polls of one future", MANY, |_| drop(poll_heavily(&mut future)));
        }
        done.complete();
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// A waker is called only when the operations awaited by its future are complete.
#[test]
fn a_future_is_woken_only_by_the_operations_it_waits_for() {
    alone_on(&KINDS, 2, |engine| {
        let pending = Pending::new();
        let first = pending.start(&engine, no_tokens());
        let mut one = Box::pin(engine.wait_for_all_async());
        let waker = poll_heavily(&mut one);
        let second = pending.start(&engine, no_tokens());
        let mut other = Box::pin(engine.wait_for_all_async());
        let others = poll_heavily(&mut other);
        second.complete();
        assert_timed_out(engine.wait_for_all_timeout(Duration::ZERO));
        assert_eq!(
            (waker.woken.load(SeqCst), others.woken.load(SeqCst)),
            (0, 0),
            "a future was woken while the first operation was pending"
        );
        first.complete();
        block_on(one).expect("no operation should fail");
        block_on(other).expect("no operation should fail");
        assert_eq!((waker.woken.load(SeqCst), others.woken.load(SeqCst)), (1, 1));
    });
}

/// A waker whose clone, wake and drop each push, wait with a zero timeout, and poll and drop futures.
struct Busy {
    engine: Engine,
    token: Token,
    used: AtomicUsize,
}

impl Busy {
    fn use_engine(&self) {
        self.used.fetch_add(1, SeqCst);
        self.engine.op("by a waker").push_sync(|_| {}).expect("the engine should be open");
        let _ = self.engine.wait_for_all_timeout(Duration::ZERO);
        let _ = self.engine.wait_for_var_timeout(&self.token, Duration::ZERO);
        drop(poll_once(&mut Box::pin(self.engine.wait_for_all_async())));
        drop(poll_once(&mut self.engine.wait_for_var_async(&self.token)));
    }

    fn waker(self: &Arc<Self>) -> Waker {
        // SAFETY: the functions of the table uphold the contract of wakers through the reference count of an `Arc`.
        unsafe { Waker::from_raw(Self::raw(Arc::clone(self))) }
    }

    fn raw(this: Arc<Self>) -> RawWaker {
        static TABLE: RawWakerVTable = RawWakerVTable::new(
            |data| {
                let this = Busy::borrow(data);
                this.use_engine();
                Busy::raw(Arc::clone(&this))
            },
            |data| {
                Busy::borrow(data).use_engine();
                Busy::release(data);
            },
            |data| Busy::borrow(data).use_engine(),
            |data| {
                Busy::borrow(data).use_engine();
                Busy::release(data);
            },
        );
        RawWaker::new(Arc::into_raw(this).cast(), &TABLE)
    }

    fn borrow(data: *const ()) -> std::mem::ManuallyDrop<Arc<Self>> {
        // SAFETY: `data` comes from `Arc::into_raw` in `raw`, and its count has not been released.
        std::mem::ManuallyDrop::new(unsafe { Arc::from_raw(data.cast()) })
    }

    fn release(data: *const ()) {
        drop(std::mem::ManuallyDrop::into_inner(Self::borrow(data)));
    }
}

#[test]
fn wakers_may_use_the_engine() {
    alone_on(&KINDS, 2, |engine| {
        let token = engine.token();
        let done = Pending::new().start(&engine, [&token]);
        let busy = [(); 2]
            .map(|()| Arc::new(Busy { engine: engine.clone(), token: token.clone(), used: AtomicUsize::new(0) }));
        let mut stay = futures(&engine, &token);
        for future in &mut stay {
            // The waker is cloned, replaced by another, and restored.
            for busy in [&busy[0], &busy[1], &busy[0]] {
                assert!(poll_with(future, &busy.waker()).is_pending());
            }
            // A waker that the future has already is not cloned again. The only call is the drop of the one made here.
            let before = busy[0].used.load(SeqCst);
            assert!(poll_with(future, &busy[0].waker()).is_pending());
            assert_eq!(busy[0].used.load(SeqCst), before + 1, "a known waker was used");
        }
        for mut future in futures(&engine, &token) {
            assert!(poll_with(&mut future, &busy[1].waker()).is_pending());
        }
        done.complete();
        engine.wait_for_all().expect("no operation should fail");
        for future in stay {
            assert!(block_on(future), "the future returned an error");
        }
        common::eventually("the engine keeps no waker", || busy.iter().all(|busy| Arc::strong_count(busy) == 1));
        assert!(busy.iter().all(|busy| busy.used.load(SeqCst) > 8));
    });
}
