//! Variables in asynchronous code: `Engine::acquire` and its guards, and operations that are futures.

use raddle_testkit as common;

use std::{
    future::{Future, pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use common::{
    Drops, Gate, Journal, KINDS, MOMENT, Meeting, PATIENCE, PanicsOnDrop, SOON, THREADED, block_on, block_on_within,
    eventually, failure, hold, lock, occupy, on_kinds, poll_once, watched, yield_now,
};
use raddle::{
    Acquire, Device, Engine, EngineKind, Group, OpHandle, Property, PushError, ReadGuard, Shutdown, Var, WaitError,
    WeakEngine, WriteGuard, completion, cx,
    error::{Cause, Misfit, NoAccess},
    gpu::SimulatedGpu,
};

fn panics() -> ! {
    resume_unwind(Box::new("on purpose"))
}

fn assert_panicked(error: &raddle::OpError, message: &str) {
    assert!(matches!(error.cause(), Cause::Panic(Some(found)) if found == message), "{error}");
}

/// A future that becomes ready, and is woken, when `set` is called.
#[derive(Clone, Default)]
struct Signal(Arc<Mutex<(bool, Option<Waker>)>>);

impl Signal {
    fn set(&self) {
        let waker = {
            let mut state = lock(&self.0);
            state.0 = true;
            state.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn is_awaited(&self) -> bool {
        lock(&self.0).1.is_some()
    }
}

impl Future for Signal {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.0 {
            return Poll::Ready(());
        }
        let before = state.1.replace(cx.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }
}

// -------------------------------------------------------------------------------------------------------- guards ----

#[test]
fn guards_have_the_shape_of_their_accesses() {
    on_kinds(&KINDS, 2, |engine| {
        let (a, b) = (engine.var(1), engine.var(String::from("b")));
        let many: Vec<_> = (0..3).map(|n| engine.var(n)).collect();
        let array = [engine.var(7u8), engine.var(8)];
        let reads: Vec<_> = many.iter().map(|var| var.read()).collect();
        let accesses = (a.read(), (b.write(), cx()), reads, array.each_ref().map(|var| var.write()), ());
        let guards = block_on(engine.acquire(accesses)).unwrap();
        let (a_guard, (mut b_guard, inner), reads, mut array_guards, ()) = guards;
        assert_eq!((*a_guard, reads.iter().map(|n| **n).sum::<i32>()), (1, 3));
        b_guard.push('!');
        *array_guards[1] += 1;
        inner.op("").push(a.read(), |_| {}).unwrap();
        let slice: &[_] = &[a.read()];
        assert_eq!(*block_on(engine.acquire(slice)).unwrap()[0], 1, "the other reader found another value");
        assert_eq!((format!("{a_guard:?}"), format!("{b_guard:?}")), ("1".to_owned(), "\"b!\"".to_owned()));
        drop((a_guard, b_guard, reads, array_guards));
        assert_eq!((engine.get(&b).unwrap(), engine.get(&array[1]).unwrap()), ("b!".to_owned(), 9));
        assert_eq!((a.version(), b.version(), array[0].version(), array[1].version()), (0, 1, 1, 1));
        block_on(engine.acquire(())).unwrap();
        engine.wait_for_all().unwrap();
    });
}

/// Guards are `Send` and `Sync` under the same conditions as references.
#[test]
fn guards_are_send_and_sync_as_references_are() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<ReadGuard<u8>>();
    sync::<ReadGuard<u8>>();
    sync::<WriteGuard<u8>>();
    send::<WriteGuard<std::cell::Cell<u8>>>();
    send::<Acquire<WriteGuard<std::cell::Cell<u8>>>>();
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(vec![1]);
        let mut guard = block_on(engine.acquire(value.write())).unwrap();
        thread::spawn(move || guard.push(2)).join().unwrap();
        assert_eq!(engine.get(&value).unwrap(), [1, 2]);
        assert_eq!(value.version(), 1);
    });
}

#[test]
fn guards_are_displayed_as_their_values_are() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(7.25);
        let guard = block_on(engine.acquire(value.read())).unwrap();
        assert_eq!((guard.to_string(), format!("{guard:+.3}")), ("7.25".to_owned(), "+7.250".to_owned()));
        drop(guard);
        let guard = block_on(engine.acquire(value.write())).unwrap();
        assert_eq!((guard.to_string(), format!("{guard:+.3}")), ("7.25".to_owned(), "+7.250".to_owned()));
    });
}

#[test]
fn acquire_takes_its_place_when_it_is_called() {
    on_kinds(&THREADED, 2, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.token());
        let mut acquire = engine.acquire(value.write());
        engine.op("").push(value.write(), |value| *value *= 10).unwrap();
        assert!(poll_once(&mut acquire).is_pending());
        gate.open();
        let mut guard = block_on(acquire).unwrap();
        *guard += 1;
        thread::sleep(MOMENT);
        assert_eq!(*guard, 1, "a later operation ran while the guard existed");
        drop(guard);
        assert_eq!(engine.get(&value).unwrap(), 10);
    });
}

/// The first poll returns the guards if no earlier operation holds the variables.
#[test]
fn variables_that_are_free_are_acquired_at_once() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(5);
        let Poll::Ready(guard) = poll_once(&mut engine.acquire(value.read())) else { panic!("still pending") };
        assert_eq!(*guard.unwrap(), 5);
    });
}

#[test]
fn an_acquisition_needs_no_worker() {
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(1);
        let gate = occupy(&engine, 1);
        assert_eq!(*block_on(engine.acquire(value.write())).unwrap(), 1);
        gate.open();
    });
}

/// The completions are used on threads of the program.
#[test]
fn completions_need_no_worker() {
    on_kinds(&THREADED, 1, |engine| {
        let (value, token, of_parent) = (engine.var(1), engine.token(), engine.token());
        let (value_held, token_held) = (hold(&engine, value.token()), hold(&engine, &token));
        let (sender, completions) = mpsc::channel();
        let parent = engine.op("parent").writes([&of_parent]).with_children();
        parent.push(completion(), move |done| sender.send(done).unwrap()).unwrap();
        let done = completions.recv().unwrap();
        // The worker is free for this once the function of the parent has returned.
        let busy = occupy(&engine, 1);
        let (mut acquired, mut waited) = (engine.acquire(value.write()), engine.wait_for_var_async(&token));
        assert!(poll_once(&mut acquired).is_pending() && poll_once(&mut waited).is_pending());
        done.complete();
        let parent = engine.wait_for_var_timeout(&of_parent, SOON);
        value_held.open();
        let acquired = block_on_within(acquired, SOON);
        token_held.open();
        let waited = block_on_within(waited, SOON);
        busy.open();
        parent.expect("the parent ends");
        assert_eq!(*acquired.expect("the variable is acquired").unwrap(), 1);
        waited.expect("the wait ends").unwrap();
    });
}

#[test]
fn readers_hold_a_variable_together_and_a_writer_waits_for_all_of_them() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(1);
        let readers: Vec<_> = (0..4).map(|_| block_on(engine.acquire(value.read())).unwrap()).collect();
        let mut write = engine.acquire(value.write());
        for reader in readers {
            assert!(poll_once(&mut write).is_pending());
            assert_eq!(*reader, 1);
            drop(reader);
        }
        *block_on(write).unwrap() += 1;
        assert_eq!(engine.get(&value).unwrap(), 2);
    });
}

#[test]
fn an_operation_ends_with_its_last_guard() {
    on_kinds(&KINDS, 2, |engine| {
        let (a, b) = (engine.var(1), engine.var(2));
        let (first, second) = block_on(engine.acquire((a.write(), b.write()))).unwrap();
        let mut next = engine.acquire(a.read());
        drop(first);
        assert!(poll_once(&mut next).is_pending());
        assert_eq!(a.version(), 0);
        drop(second);
        drop(block_on(next).unwrap());
        assert_eq!((a.version(), b.version()), (1, 1));
    });
}

/// Three acquisitions are dropped: one that was never polled, one that waits with a waker, and one whose guard exists
/// but has not been taken.
#[test]
fn a_dropped_acquisition_changes_nothing() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let (value, failed) = (engine.var(drops.make()), engine.var(0));
        engine.op("").try_push(failed.write(), |_| Err("no".into())).unwrap();
        let guard = block_on(engine.acquire(value.read())).unwrap();
        drop(engine.acquire(value.write()));
        let mut polled = engine.acquire((value.overwrite(), failed.read()));
        assert!(poll_once(&mut polled).is_pending());
        assert!(block_on_within(&mut polled, MOMENT).is_err());
        drop(polled);
        let granted = engine.acquire(value.write());
        drop(guard);
        drop(granted);
        engine.wait_for_var(&value).unwrap();
        assert_eq!(value.version(), 0);
        assert!(engine.wait_for_var(&failed).is_err());
        engine.wait_for_all().unwrap();
        drop(value);
        engine.wait_for_all().unwrap();
        drops.assert_all_gone();
    });
}

#[test]
fn a_panic_that_drops_a_guard_fails_what_its_operation_mutates() {
    on_kinds(&KINDS, 1, |engine| {
        let (read, written) = (engine.var(1), engine.var(2));
        let (read_guard, write_guard) = block_on(engine.acquire((read.read(), written.write()))).unwrap();
        _ = catch_unwind(AssertUnwindSafe(move || {
            let _guard = read_guard;
            panics()
        }));
        drop(write_guard);
        assert_panicked(&failure(engine.wait_for_var(&written)), "a guard was dropped by a panic");
        engine.wait_for_var(&read).unwrap();
        assert_eq!(written.version(), 0);
        // Readers change nothing, so they cannot leave a value half modified.
        let guard = block_on(engine.acquire(read.read())).unwrap();
        _ = catch_unwind(AssertUnwindSafe(move || {
            let _guard = guard;
            panics()
        }));
        engine.wait_for_all().unwrap();
        // A destructor may acquire and drop guards during a panic.
        struct Acquires(WeakEngine, Var<i32>);
        impl Drop for Acquires {
            fn drop(&mut self) {
                *block_on(self.0.acquire(self.1.write())).unwrap() += 1;
            }
        }
        let acquires = Acquires(engine.downgrade(), read.clone());
        _ = catch_unwind(AssertUnwindSafe(move || {
            let _acquires = acquires;
            panics()
        }));
        assert_eq!(engine.get(&read).unwrap(), 2);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn acquisitions_of_failed_variables_fail_unless_they_overwrite() {
    on_kinds(&KINDS, 1, |engine| {
        let (failed, other) = (engine.var(1), engine.var(2));
        engine.op("fails").try_push(failed.write(), |_| Err("no".into())).unwrap();
        assert_eq!(failure(block_on(engine.acquire((failed.read(), other.write())))).name(), "fails");
        assert_eq!(failure(engine.wait_for_var(&other)).name(), "fails");
        *block_on(engine.acquire(failed.overwrite())).unwrap() = 3;
        assert_eq!(engine.get(&failed).unwrap(), 3);
        engine.clear_error(&other).unwrap();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn acquisitions_that_can_never_succeed_are_refused() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        let other = common::engine(EngineKind::Naive, 1);
        let foreign = block_on(other.acquire(value.read()));
        assert!(matches!(foreign, Err(WaitError::Refused(PushError::Variable(NoAccess::Foreign, _)))), "{foreign:?}");
        let aliased = block_on(engine.acquire((value.read(), value.write())));
        assert!(matches!(aliased, Err(WaitError::Refused(PushError::Variable(NoAccess::Aliased, _)))), "{aliased:?}");
        let (inside, same) = (engine.downgrade(), value.clone());
        let held = engine.op("").submit(value.read(), move |_| block_on(inside.acquire(same.read())).map(drop));
        assert!(matches!(held.unwrap().wait().unwrap(), Err(WaitError::WouldDeadlock(_))));
        let (inside, same) = (engine.downgrade(), value.clone());
        let held = engine.op("").submit_future(value.write(), move |_guard| async move {
            yield_now().await;
            inside.acquire(same.read()).await.map(drop)
        });
        assert!(matches!(block_on(held.unwrap()).unwrap(), Err(WaitError::WouldDeadlock(_))));
        let mut twice = engine.acquire(value.read());
        drop(block_on(&mut twice).unwrap());
        assert!(matches!(block_on(&mut twice), Err(WaitError::ValueTaken)));
        engine.delete_variable(&value, |_| {}).unwrap();
        let deleted = block_on(engine.acquire(value.read()));
        assert!(matches!(deleted, Err(WaitError::Refused(PushError::Variable(NoAccess::Deleted, _)))), "{deleted:?}");
        engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
        let value = engine.var(1);
        assert!(matches!(block_on(engine.acquire(value.read())), Err(WaitError::Refused(PushError::ShutDown))));
    });
}

#[test]
fn guards_may_outlive_all_handles_of_the_engine_and_of_the_variable() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let value = engine.var(drops.make());
        let observer = engine.downgrade();
        let guard = block_on(engine.acquire(value.read())).unwrap();
        let pending = engine.acquire(value.write());
        drop((engine, value));
        guard.touch();
        drop(guard);
        let guard = block_on(pending).unwrap();
        guard.touch();
        assert_eq!(drops.dropped(), 0);
        drop(guard); // the engine ends in the background
        observer.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
        drops.assert_all_gone();
    });
}

#[test]
fn a_pending_acquisition_keeps_the_engine_open_until_it_is_dropped() {
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(1);
        let gate = hold(&engine, value.token());
        let observer = engine.downgrade();
        let acquire = engine.acquire(value.write());
        drop(engine);
        observer.op("").push((), |()| {}).unwrap();
        drop(acquire);
        eventually("the engine refuses pushes", || observer.op("").push((), |()| {}) == Err(PushError::ShutDown));
        gate.open();
        observer.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
        assert_eq!(value.version(), 1, "a dropped acquisition has mutated the variable");
    });
}

#[test]
fn a_forgotten_guard_holds_its_variable_and_a_shutdown_times_out() {
    for kind in KINDS {
        watched(move || {
            let engine = common::engine(kind, 1);
            let value = engine.var(vec![1]);
            std::mem::forget(block_on(engine.acquire(value.read())).unwrap());
            assert_eq!(engine.get(&value).unwrap(), [1]);
            let mut write = engine.acquire(value.write());
            assert!(poll_once(&mut write).is_pending());
            let ended = engine.shutdown(Shutdown::Drain, Some(MOMENT));
            assert!(matches!(ended, Err(raddle::error::ShutdownError::TimedOut)), "{ended:?}");
            let ended = engine.shutdown(Shutdown::Cancel, Some(MOMENT));
            assert!(matches!(ended, Err(raddle::error::ShutdownError::TimedOut)), "{ended:?}");
            // Dropping the last handle would wait forever.
            std::mem::forget((engine, write));
        });
    }
}

#[test]
fn a_cancelling_shutdown_fails_acquisitions_that_wait() {
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(1);
        let gate = hold(&engine, value.token());
        let acquire = engine.acquire(value.write());
        engine.notify_shutdown();
        gate.open();
        assert!(matches!(failure(block_on(acquire)).cause(), Cause::Cancelled));
        engine.shutdown(Shutdown::Cancel, Some(PATIENCE)).unwrap();
    });
}

#[test]
fn tasks_of_several_runtimes_share_variables() {
    on_kinds(&KINDS, 2, |engine| {
        const TASKS: usize = 8;
        const ROUNDS: usize = if cfg!(miri) { 2 } else { 50 };
        let (total, log) = (engine.var(0usize), engine.var(Vec::new()));
        let task = |name: &'static str| {
            let (engine, total, log) = (engine.clone(), total.clone(), log.clone());
            async move {
                for _ in 0..ROUNDS {
                    let (mut total, mut log) = engine.acquire((total.write(), log.write())).await.unwrap();
                    let before = *total;
                    yield_now().await;
                    *total = before + 1;
                    log.push(name);
                }
            }
        };
        let tokio: Vec<_> = (0..TASKS).map(|_| task("tokio")).collect();
        let threaded: Vec<_> = (0..TASKS).map(|_| task("tokio with two threads")).collect();
        let smol: Vec<_> = (0..TASKS).map(|_| task("smol")).collect();
        let pollster = task("pollster");
        let threads = [
            thread::spawn(move || {
                tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async move {
                    let tasks: Vec<_> = tokio.into_iter().map(tokio::spawn).collect();
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            }),
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
                let tasks: Vec<_> = threaded.into_iter().map(|task| runtime.spawn(task)).collect();
                runtime.block_on(async {
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            }),
            thread::spawn(move || {
                let executor = smol::Executor::new();
                let tasks: Vec<_> = smol.into_iter().map(|task| executor.spawn(task)).collect();
                smol::block_on(executor.run(async {
                    for task in tasks {
                        task.await;
                    }
                }));
            }),
            thread::spawn(move || pollster::block_on(pollster)),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        let expected = (3 * TASKS + 1) * ROUNDS;
        assert_eq!(engine.get(&total).unwrap(), expected);
        assert_eq!(engine.with(&log, Vec::len).unwrap(), expected);
        assert_eq!(total.version(), expected as u64);
    });
}

/// The waker is called when the acquisition's turn comes. The waker may take the guard and drop it.
#[test]
fn a_waker_may_use_and_release_the_guards() {
    struct TakesGuard(Mutex<Option<Acquire<WriteGuard<i32>>>>, Gate);
    impl Wake for TakesGuard {
        fn wake(self: Arc<Self>) {
            let mut acquire = lock(&self.0).take().unwrap();
            let Poll::Ready(guard) = poll_once(&mut acquire) else {
                panic!("the acquisition is still pending although it was woken")
            };
            *guard.unwrap() += 1;
            self.1.open();
        }
    }
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        let first = block_on(engine.acquire(value.write())).unwrap();
        let (takes, done) = (Arc::new(TakesGuard(Mutex::default(), Gate::new())), Gate::new());
        *lock(&takes.0) = Some(engine.acquire(value.write()));
        let waker = Waker::from(Arc::clone(&takes));
        let mut acquire = lock(&takes.0).take().unwrap();
        assert!(pin!(&mut acquire).poll(&mut Context::from_waker(&waker)).is_pending());
        *lock(&takes.0) = Some(acquire);
        drop(first);
        takes.1.pass();
        assert_eq!(engine.get(&value).unwrap(), 2);
        done.open();
        engine.wait_for_all().unwrap();
    });
}

// ------------------------------------------------------------------------------------------------------- futures ----

#[test]
fn futures_run_in_push_order_with_other_operations() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        for n in 0..50 {
            engine
                .op("")
                .push_future(value.write(), move |mut value| async move {
                    assert_eq!(*value, 2 * n);
                    yield_now().await;
                    *value += 1;
                })
                .unwrap();
            engine.op("").push(value.write(), |value| *value += 1).unwrap();
        }
        assert_eq!(engine.get(&value).unwrap(), 100);
        assert_eq!(value.version(), 100);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_future_is_polled_when_it_is_woken_and_occupies_no_worker() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, signals) = (engine.var(0), [(); 10].map(|()| Signal::default()));
        let futures: Vec<_> = signals
            .iter()
            .map(|signal| {
                let signal = signal.clone();
                engine.op("").submit_future(value.read(), |value| async move {
                    signal.await;
                    *value
                })
            })
            .collect();
        eventually("all futures wait", || signals.iter().all(Signal::is_awaited));
        engine.op("").submit((), |()| ()).unwrap().wait().unwrap();
        assert!(futures.iter().all(|future| !future.as_ref().unwrap().is_done()));
        thread::scope(|scope| {
            for signal in &signals {
                scope.spawn(|| signal.set());
            }
        });
        for future in futures {
            assert_eq!(future.unwrap().wait().unwrap(), 0);
        }
    });
}

#[test]
fn a_future_with_a_property_is_polled_in_its_lane_after_each_wake() {
    on_kinds(&[EngineKind::PerDevice], 1, |engine| {
        let thread_name = || thread::current().name().unwrap_or_default().to_owned();
        let urgent = engine.op("").property(Property::CpuPrioritized).submit((), move |()| thread_name());
        let urgent = urgent.unwrap();
        // The test calls `is_done` before it waits, since a wait might run the operation on this thread.
        eventually("the operation has run", || urgent.is_done());
        let urgent = urgent.wait().unwrap();
        let signal = Signal::default();
        let awaited = signal.clone();
        let future = engine.op("").property(Property::CpuPrioritized).submit_future((), move |()| async move {
            let before = thread_name();
            awaited.await;
            [before, thread_name()]
        });
        let future = future.unwrap();
        eventually("the future waits", || signal.is_awaited());
        signal.set();
        eventually("the future has ended", || future.is_done());
        let names = future.wait().unwrap();
        assert_ne!(urgent, engine.op("").submit((), move |()| thread_name()).unwrap().wait().unwrap());
        assert_eq!(names, [urgent.clone(), urgent]);
    });
}

#[test]
fn a_future_is_polled_with_its_priority_after_each_wake() {
    on_kinds(&THREADED, 1, |engine| {
        const ROUNDS: usize = 3;
        let journal = Journal::new();
        let mut signals = Vec::new();
        for priority in [-5, 2, 6] {
            for has_handle in [false, true] {
                let (waits, journal): ([Signal; ROUNDS], _) = (Default::default(), journal.clone());
                signals.push(waits.clone());
                let future = async move {
                    for signal in waits {
                        signal.await;
                        journal.add(priority);
                    }
                };
                let op = engine.op("").priority(priority);
                if has_handle {
                    op.submit_future((), |()| future).unwrap().ignore();
                } else {
                    op.push_future((), |()| future).unwrap();
                }
            }
        }
        let orders: Vec<_> = (0..ROUNDS)
            .map(|round| {
                eventually("the futures wait", || signals.iter().all(|signals| signals[round].is_awaited()));
                let gate = occupy(&engine, 1);
                for priority in [0, 7, -7, 4] {
                    let journal = journal.clone();
                    engine.op("").priority(priority).push((), move |()| journal.add(priority)).unwrap();
                }
                signals.iter().for_each(|signals| signals[round].set());
                gate.open();
                eventually("all have run", || journal.len() == 10);
                journal.take()
            })
            .collect();
        engine.wait_for_all().unwrap();
        assert_eq!(orders, [[7, 6, 6, 4, 2, 2, 0, -5, -5, -7]; ROUNDS], "the polls ran in another order");
    });
}

/// Every wake is followed by a poll that sees all effects preceding the wake, and polls never overlap.
#[test]
fn no_wake_is_lost_in_a_storm_of_wakes_and_polls_do_not_overlap() {
    on_kinds(&KINDS, 2, |engine| {
        const WAKES: usize = if cfg!(miri) { 50 } else { 5_000 };
        let (count, polling, polls) = (Arc::new(AtomicUsize::new(0)), AtomicBool::new(false), Journal::new());
        let waker = Arc::new(Mutex::new(None::<Waker>));
        let (its_count, its_waker, its_polls) = (Arc::clone(&count), Arc::clone(&waker), polls.clone());
        let future = poll_fn(move |cx| {
            assert!(!polling.swap(true, SeqCst), "two threads poll");
            *lock(&its_waker) = Some(cx.waker().clone());
            let seen = its_count.load(SeqCst);
            its_polls.add(seen);
            polling.store(false, SeqCst);
            if seen == 4 * WAKES { Poll::Ready(()) } else { Poll::Pending }
        });
        let done = engine.op("").submit_future((), |()| future).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..WAKES {
                        count.fetch_add(1, SeqCst);
                        let waker = lock(&waker).clone();
                        waker.into_iter().for_each(Waker::wake);
                    }
                });
            }
        });
        // The last wake may have preceded the first poll, which then sees the whole count.
        block_on(done).unwrap();
        assert!(polls.take().is_sorted());
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_future_that_wakes_itself_lets_others_run() {
    on_kinds(&THREADED, 1, |engine| {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let spins = engine.op("").submit_future((), |()| async move {
            while !stopped.load(SeqCst) {
                yield_now().await;
            }
        });
        engine.op("").submit((), |()| ()).unwrap().wait().unwrap();
        stop.store(true, SeqCst);
        spins.unwrap().wait().unwrap();
    });
    on_kinds(&[EngineKind::Naive], 1, |engine| {
        let yields = engine.op("").submit_future((), |()| async {
            for _ in 0..100_000 {
                yield_now().await;
            }
        });
        yields.unwrap().wait().unwrap();
    });
}

#[test]
fn a_waker_that_outlives_its_operation_does_nothing() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let (kept, captured) = (Arc::new(Mutex::new(None)), drops.make());
        let keeps = Arc::clone(&kept);
        let future = engine.op("").submit_future((), move |()| async move {
            captured.touch();
            let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
            *lock(&keeps) = Some(waker);
        });
        future.unwrap().wait().unwrap();
        eventually("the future is dropped", || drops.dropped() == 1);
        let waker = lock(&kept).take().unwrap();
        waker.wake_by_ref();
        engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
        waker.wake_by_ref();
        drop(engine);
        waker.wake();
    });
}

#[test]
fn panics_and_errors_of_a_future_fail_what_it_mutates() {
    on_kinds(&KINDS, 1, |engine| {
        let values = [(); 5].map(|()| engine.var(0));
        let first = |n: usize| values[n].write();
        engine.op("").push_future(first(0), |_guard| -> std::future::Ready<()> { panics() }).unwrap();
        engine
            .op("")
            .push_future(first(1), |_guard| async {
                yield_now().await;
                panics()
            })
            .unwrap();
        engine
            .op("")
            .try_push_future(first(2), |_guard| async {
                yield_now().await;
                Err("no".into())
            })
            .unwrap();
        // The future holds a value whose drop panics when the future has ended.
        engine
            .op("")
            .push_future(first(3), |_guard| {
                let dropped = PanicsOnDrop("the drop");
                poll_fn(move |_| {
                    let _ = &dropped;
                    Poll::Ready(())
                })
            })
            .unwrap();
        let handle = engine.op("named").try_submit_future(first(4), |_guard| async { Err::<(), _>("no value".into()) });
        assert_panicked(&failure(engine.wait_for_var(&values[0])), "on purpose");
        assert_panicked(&failure(engine.wait_for_var(&values[1])), "on purpose");
        assert_eq!(failure(engine.wait_for_var(&values[2])).to_string().split("failed: ").nth(1), Some("no"));
        assert_panicked(&failure(engine.wait_for_var(&values[3])), "the drop");
        let error = failure(block_on(handle.unwrap()));
        assert!(error.name() == "named" && error.ptr_eq(&failure(engine.wait_for_var(&values[4]))));
        assert!(values.iter().all(|value| value.version() == 0));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_operation_ends_when_its_future_and_all_its_guards_are_gone() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let given = Arc::new(Mutex::new(None));
        let gives = Arc::clone(&given);
        let mut handle = engine
            .op("")
            .submit_future(value.write(), |guard| async move {
                *lock(&gives) = Some(guard);
                7
            })
            .unwrap();
        eventually("the guard is given away", || lock(&given).is_some());
        assert!(matches!(handle.wait_timeout(MOMENT), Err(WaitError::TimedOut)));
        let mut guard = lock(&given).take().unwrap();
        *guard = 5;
        assert_eq!(value.version(), 0);
        thread::spawn(move || drop(guard)).join().unwrap();
        assert_eq!(handle.wait().unwrap(), 7);
        assert_eq!((engine.get(&value).unwrap(), value.version()), (5, 1));
        // A panic outside the future drops the guard. This fails the operation, although the future has returned a
        // value.
        let (gives, drops) = (Arc::clone(&given), Drops::new());
        let result = drops.make();
        let handle = engine.op("").submit_future(value.write(), |guard| async move {
            *lock(&gives) = Some(guard);
            result
        });
        eventually("the guard is given away", || lock(&given).is_some());
        let guard = lock(&given).take();
        _ = catch_unwind(AssertUnwindSafe(move || {
            let _guard = guard;
            panics()
        }));
        assert_panicked(&failure(handle.unwrap().wait().map(drop)), "a guard was dropped by a panic");
        eventually("the value is dropped", || drops.check().is_ok());
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_future_that_nothing_can_wake_fails() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let (value, captured) = (engine.var(0), drops.make());
        engine
            .op("")
            .push_future(value.write(), |guard| async move {
                let _held = (guard, captured);
                pending::<()>().await;
            })
            .unwrap();
        assert!(matches!(failure(engine.wait_for_var(&value)).cause(), Cause::LostFuture));
        drops.assert_all_gone();
        // The future's waker is dropped later, under a lock that the future's drop also takes. On a naive engine, which
        // drops the future on this thread, the waker is dropped without the lock.
        struct Leaves(Signal);
        impl Drop for Leaves {
            fn drop(&mut self) {
                lock(&self.0.0).0 = true;
            }
        }
        let signal = Signal::default();
        let leaves = Leaves(signal.clone());
        let future = engine
            .op("")
            .submit_future((), |()| async move {
                leaves.0.clone().await;
            })
            .unwrap();
        eventually("the future waits", || signal.is_awaited());
        if engine.kind() == EngineKind::Naive {
            let waker = lock(&signal.0).1.take();
            drop(waker);
        } else {
            lock(&signal.0).1 = None;
        }
        assert!(matches!(failure(future.wait()).cause(), Cause::LostFuture));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn futures_may_push_while_the_engine_drains() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, signal) = (engine.var(0), Signal::default());
        let (inner, its_signal) = (value.clone(), signal.clone());
        engine
            .op("")
            .push_future(cx(), |engine| async move {
                its_signal.await;
                engine.op("").push(inner.write(), |value| *value += 1).unwrap();
                *engine.acquire(inner.write()).await.unwrap() += 1;
                yield_now().await;
                engine.op("").push(inner.write(), |value| *value += 1).unwrap();
            })
            .unwrap();
        eventually("the future waits", || signal.is_awaited());
        let observer = engine.downgrade();
        let ends = thread::spawn(move || drop(engine));
        eventually("the engine drains", || observer.op("").push((), |()| {}) == Err(PushError::ShutDown));
        signal.set();
        ends.join().unwrap();
        assert_eq!(value.version(), 3);
    });
}

#[test]
fn a_cancelling_shutdown_cancels_futures_whether_they_have_started_or_not() {
    on_kinds(&THREADED, 1, |engine| {
        let (value, signal, drops) = (engine.var(0), Signal::default(), Drops::new());
        let (its_signal, captured, its_own) = (signal.clone(), drops.make(), drops.make());
        let started = engine.op("").submit_future(value.write(), |guard| async move {
            its_signal.await;
            its_own.touch();
            drop(guard);
        });
        let waits = engine.op("").submit_future(value.write(), |_guard| async move { captured.touch() });
        eventually("the first one waits", || signal.is_awaited());
        engine.notify_shutdown();
        assert!(matches!(failure(started.unwrap().wait()).cause(), Cause::Cancelled));
        assert!(matches!(failure(waits.unwrap().wait()).cause(), Cause::Cancelled));
        engine.shutdown(Shutdown::Cancel, Some(PATIENCE)).unwrap();
        drops.assert_all_gone();
    });
}

#[test]
fn the_handle_of_a_future_cancels_it_before_it_starts() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, drops) = (engine.var(0), Drops::new());
        let guard = block_on(engine.acquire(value.write())).unwrap();
        let captured = drops.make();
        let quiet = engine.op("").submit_future(value.write(), |_guard| async move { captured.touch() }).unwrap();
        let captured = drops.make();
        let loud = engine.op("").submit_future(value.write(), |_guard| async move { captured.touch() }).unwrap();
        assert!(quiet.cancel_quietly());
        assert!(loud.cancel());
        drops.assert_all_gone();
        drop(guard);
        assert!(matches!(failure(block_on(loud)).cause(), Cause::Cancelled));
        assert!(matches!(failure(engine.wait_for_var(&value)).cause(), Cause::Cancelled));
        engine.clear_error(&value).unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!(value.version(), 1);
    });
}

#[test]
fn a_poll_cannot_wait_for_its_own_operation() {
    on_kinds(&KINDS, 1, |engine| {
        type Place = Arc<Mutex<Option<OpHandle<()>>>>;
        let (place, signal) = (Place::default(), Signal::default());
        let (its_place, its_signal) = (Arc::clone(&place), signal.clone());
        let handle = engine.op("").submit_future((), |()| async move {
            its_signal.await;
            let own = lock(&its_place).take().unwrap();
            assert!(matches!(own.wait(), Err(WaitError::WouldDeadlock(_))));
        });
        *lock(&place) = Some(handle.unwrap());
        signal.set();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn futures_on_a_device_are_refused() {
    let gpu = Device::Gpu(0);
    let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).build().unwrap();
    let refused = engine.op("").on(gpu).push_future((), |()| async {});
    assert_eq!(refused, Err(PushError::Unfit(Misfit::FutureOnDevice)));
    assert_eq!(
        engine.op("").on(gpu).submit_future((), |()| async {}).err(),
        Some(PushError::Unfit(Misfit::FutureOnDevice))
    );
    // Guards may depend on a device's work, and wakers need not run on the thread of its lane.
    let there = engine.device_var::<f32>(gpu, 16).unwrap();
    let host = engine.pinned_var::<f32>(gpu, 16).unwrap();
    engine.op("load").on(gpu).copy_to_device(&host, &there).unwrap();
    let read = engine.op("").submit_future((host.read(), there.read()), |(host, there)| async move {
        yield_now().await;
        (host.len(), there.len())
    });
    assert_eq!(block_on(read.unwrap()).unwrap(), (16, 16));
    assert_eq!(block_on(engine.acquire(there.write())).unwrap().len(), 16);
}

/// Four threads push futures on the same three variables.
#[test]
fn many_futures_on_few_variables_lose_no_update() {
    on_kinds(&KINDS, 3, |engine| {
        const ROUNDS: usize = if cfg!(miri) { 3 } else { 150 };
        let (values, meeting) = ([(); 3].map(|()| engine.var(0u64)), Meeting::new(4));
        thread::scope(|scope| {
            for thread in 0..4usize {
                let (engine, values, meeting) = (&engine, &values, meeting.clone());
                scope.spawn(move || {
                    meeting.join();
                    for round in 0..ROUNDS {
                        let (one, other) = (&values[(thread + round) % 3], &values[(thread + round + 1) % 3]);
                        let accesses = (one.write(), other.read(), cx());
                        let extra = values[(thread + round + 2) % 3].clone();
                        engine
                            .op("")
                            .push_future(accesses, move |(mut one, other, engine)| async move {
                                let (before, seen) = (*one, *other);
                                yield_now().await;
                                assert_eq!((*one, *other), (before, seen));
                                *one += 1;
                                drop((one, other));
                                engine.op("").push(extra.write(), |extra| *extra += 1).unwrap();
                            })
                            .unwrap();
                        if round % 3 == 0 {
                            *block_on(engine.acquire(other.write())).unwrap() += 1;
                        }
                    }
                });
            }
        });
        engine.wait_for_all().unwrap();
        let total: u64 = values.iter().map(|value| engine.get(value).unwrap()).sum();
        assert_eq!(total, (4 * (2 * ROUNDS + ROUNDS.div_ceil(3))) as u64);
        assert_eq!(values.iter().map(Var::version).sum::<u64>(), total);
    });
}

#[test]
fn acquisitions_that_time_out_are_dropped_and_change_nothing() {
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.token());
        for _ in 0..20 {
            assert!(block_on_within(engine.acquire(value.write()), Duration::ZERO).is_err());
        }
        gate.open();
        assert_eq!(*block_on(engine.acquire(value.write())).unwrap(), 0);
        assert_eq!(engine.with(&value, |value| *value).unwrap(), 0);
        assert_eq!(value.version(), 2);
    });
}

// --------------------------------------------------------------------------------------- other asynchronous calls ----

type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs a future on an executor, or with a waker of the testkit. tokio and smol run it as a task.
type Executor = fn(BoxedFuture<i32>) -> i32;

const EXECUTORS: [(&str, Executor); 5] = [
    ("tokio", |future| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { tokio::spawn(future).await.unwrap() })
    }),
    ("tokio with two threads", |future| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(async { tokio::spawn(future).await.unwrap() })
    }),
    ("smol", |future| smol::block_on(smol::spawn(future))),
    ("pollster", |future| pollster::block_on(future)),
    ("a bare waker", |future| block_on(future)),
];

/// Polls a future once and returns it, still pending. The waker of the next poll, by an executor, must replace this
/// poll's waker.
fn polled<T>(future: impl Future<Output = T> + Send + 'static) -> BoxedFuture<T> {
    let mut future: BoxedFuture<T> = Box::pin(future);
    assert!(poll_once(&mut future).is_pending());
    future
}

#[test]
fn get_async_takes_its_place_when_it_is_called() {
    on_kinds(&KINDS, 2, |engine| {
        for (executor, run) in EXECUTORS {
            println!("in {executor}");
            let value = engine.var(1);
            assert_eq!(run(Box::pin(async_get(&engine, &value))), 1, "the value is wrong although nothing is pending");
            let gate = hold(&engine, value.token());
            let gets = async_get(&engine, &value);
            engine.op("").push(value.write(), |value| *value = 2).unwrap();
            let gets = polled(gets);
            let opener = opens_soon(gate);
            assert_eq!(run(gets), 1);
            opener.join().unwrap();
            assert_eq!((engine.get(&value).unwrap(), value.version()), (2, 2));
        }
        engine.wait_for_all().unwrap();
    });
}

fn async_get(engine: &Engine, value: &Var<i32>) -> impl Future<Output = i32> + Send + use<> {
    let gets = engine.get_async(value);
    async { gets.await.unwrap() }
}

/// Opens a gate once an executor has probably polled the future that waits for the gate.
fn opens_soon(gate: Gate) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        thread::sleep(MOMENT);
        gate.open();
    })
}

#[test]
fn ready_waits_for_the_mutations_before_the_call() {
    on_kinds(&KINDS, 2, |engine| {
        for (executor, run) in EXECUTORS {
            println!("in {executor}");
            let value = engine.var(1);
            let all_ready = |value: &Var<i32>| {
                let (of_variable, of_token) = (value.ready(), value.token().ready());
                let value = value.clone();
                async move {
                    of_variable.await.unwrap();
                    of_token.await.unwrap();
                    value.version() as i32
                }
            };
            assert_eq!(run(Box::pin(all_ready(&value))), 0, "the version is wrong although nothing is pending");
            let gate = hold(&engine, value.token());
            engine.op("").push(value.write(), |value| *value = 2).unwrap();
            let ready = all_ready(&value);
            // A later mutation does not prolong the wait.
            let never = Gate::new();
            let blocks = never.clone();
            engine
                .op("")
                .push((value.write(), completion()), move |(_, done)| {
                    thread::spawn(move || {
                        blocks.pass();
                        done.complete();
                    });
                })
                .unwrap();
            let ready = polled(ready);
            let opener = opens_soon(gate);
            assert_eq!(run(ready), 2);
            opener.join().unwrap();
            never.open();
            assert_eq!((engine.get(&value).unwrap(), value.version()), (2, 3));
        }
        engine.wait_for_all().unwrap();
    });
}

/// The future holds no clone of the value, its waker is dropped with it, and nothing of it remains once its turn has
/// come.
#[test]
fn a_pending_get_async_that_is_dropped_leaks_nothing() {
    on_kinds(&KINDS, 1, |engine| {
        struct Unused;
        impl Wake for Unused {
            fn wake(self: Arc<Self>) {
                panic!("a dropped future is woken");
            }
        }
        let (drops, waker) = (Drops::new(), Arc::new(Unused));
        let value = engine.var(drops.make());
        let gate = hold(&engine, value.token());
        for round in 0..100 {
            let mut gets = Box::pin(engine.get_async(&value));
            if round % 4 != 0 {
                let polled = gets.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&waker))));
                assert!(polled.is_pending());
            }
            drop(gets);
            assert_eq!(Arc::strong_count(&waker), 1, "the waker outlives the dropped future");
        }
        // The turn of this future comes before it is dropped.
        let gets = polled(engine.get_async(&value));
        gate.open();
        eventually("only the last future is pending", || engine.pending() == 1);
        drop(gets);
        engine.wait_for_all().unwrap();
        assert_eq!((drops.made(), value.version()), (1, 1), "a clone was made, or a read has mutated");
        drop(value);
        engine.wait_for_all().unwrap();
        drops.assert_all_gone();
        engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
    });
}

#[test]
fn an_asynchronous_shutdown_drains_and_resolves() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, signal) = (engine.var(0), Signal::default());
        let awaited = signal.clone();
        engine
            .op("")
            .push_future(value.write(), |mut value| async move {
                awaited.await;
                *value += 1;
            })
            .unwrap();
        eventually("the future waits", || signal.is_awaited());
        let mut ends = pin!(engine.shutdown_async(Shutdown::Drain));
        assert!(block_on_within(ends.as_mut(), MOMENT).is_err());
        assert_eq!(engine.op("").push((), |()| {}), Err(PushError::ShutDown));
        signal.set();
        block_on(ends).unwrap();
        block_on(engine.shutdown_async(Shutdown::Cancel)).unwrap();
        engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
        assert_eq!(engine.get(&value).unwrap(), 1);
    });
    on_kinds(&KINDS, 1, |engine| {
        let inside = engine.downgrade();
        let ended = engine.op("").submit_future((), move |()| inside.shutdown_async(Shutdown::Drain));
        assert!(matches!(block_on(ended.unwrap()).unwrap(), Err(raddle::error::ShutdownError::InsideOperation)));
        drop(engine.shutdown_async(Shutdown::Drain)); // the shutdown continues
        engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
    });
}

// --------------------------------------------------------------------------------------------------------- polls ----

/// Pushes an operation of `group` on another thread. The operation mutates `value` and runs until the returned gate is
/// opened. On a naive engine, the pushing thread runs it. Returns once the operation is running.
fn run_until_opened(group: &Group, value: &Var<i32>) -> (Gate, thread::JoinHandle<()>) {
    let (started, gate) = (Gate::new(), Gate::new());
    let (starts, passes, group, value) = (started.clone(), gate.clone(), group.clone(), value.clone());
    let pusher = thread::spawn(move || {
        let runs = group.op("runs").submit(value.write(), move |value| {
            starts.open();
            passes.pass();
            *value += 1;
        });
        runs.unwrap().wait().unwrap();
    });
    started.pass();
    (gate, pusher)
}

/// A call whose future must wait for a running operation, which belongs to the engine and the group and mutates the
/// variable.
type AsyncCall = fn(Engine, Var<i32>, Group) -> BoxedFuture<()>;

/// Calls for all futures available to programs, except those that wait for room.
const CALLS: [(&str, AsyncCall); 16] = [
    ("a handle", |engine, value, _| {
        let handle = engine.op("").submit(value.write(), |_| ()).unwrap();
        Box::pin(async { handle.await.unwrap() })
    }),
    ("the handle of a run of an operator", |engine, value, _| {
        let handle = engine.op("").operator(value.write(), |_| ()).unwrap().submit().unwrap();
        Box::pin(async { handle.await.unwrap() })
    }),
    ("the handle of a parent", |engine, value, _| {
        let handle = engine.op("").with_children().submit(value.write(), |_| ()).unwrap();
        Box::pin(async { handle.await.unwrap() })
    }),
    ("the handle of a member of a group", |_, value, group| {
        let handle = group.op("").submit(value.read(), |_| ()).unwrap();
        Box::pin(async { handle.await.unwrap() })
    }),
    ("the handle of a future", |engine, value, _| {
        let handle = engine.op("").submit_future(value.write(), |_| yield_now()).unwrap();
        Box::pin(async { handle.await.unwrap() })
    }),
    ("the handle of a future that acquires", |engine, value, _| {
        let handle = engine.op("").submit_future(cx(), |cx| async move { drop(cx.acquire(value.write()).await) });
        Box::pin(async { handle.unwrap().await.unwrap() })
    }),
    ("acquire, to read", |engine, value, _| Box::pin(async move { drop(engine.acquire(value.read()).await.unwrap()) })),
    ("acquire, to write", |engine, value, _| {
        Box::pin(async move { drop(engine.acquire((value.write(), cx())).await.unwrap()) })
    }),
    ("get_async", |engine, value, _| Box::pin(async move { _ = engine.get_async(&value).await.unwrap() })),
    ("Var::ready", |_, value, _| Box::pin(async move { value.ready().await.unwrap() })),
    ("Token::ready", |_, value, _| Box::pin(async move { value.token().ready().await.unwrap() })),
    ("wait_for_var_async", |engine, value, _| {
        Box::pin(async move { engine.wait_for_var_async(&value).await.unwrap() })
    }),
    ("wait_to_read_async", |engine, value, _| {
        Box::pin(async move { engine.wait_to_read_async(&value).await.unwrap() })
    }),
    ("wait_for_all_async", |engine, _, _| Box::pin(async move { engine.wait_for_all_async().await.unwrap() })),
    ("Group::wait_async", |_, _, group| Box::pin(async move { group.wait_async().await.unwrap() })),
    ("shutdown_async", |engine, _, _| Box::pin(async move { engine.shutdown_async(Shutdown::Drain).await.unwrap() })),
];

/// Calls whose futures wait until the engine has room again.
const CALLS_FOR_ROOM: [(&str, AsyncCall); 2] = [
    ("OpBuilder::when_room", |engine, _, _| {
        Box::pin(async move { engine.op("").when_room().await.unwrap().push((), |()| ()).unwrap() })
    }),
    ("Operator::when_room", |engine, _, _| {
        let operator = engine.op("").operator((), |()| ()).unwrap();
        Box::pin(async move { operator.when_room().await.unwrap().push().unwrap() })
    }),
];

/// Calls whose futures wait until the engine and the group have room again.
const CALLS_FOR_ROOM_IN_A_GROUP: [(&str, AsyncCall); 2] = [
    ("OpBuilder::when_room in a group", |_, _, group| {
        Box::pin(async move { group.op("").when_room().await.unwrap().push((), |()| ()).unwrap() })
    }),
    ("Operator::when_room in a group", |_, _, group| {
        let operator = group.op("").operator((), |()| ()).unwrap();
        Box::pin(async move { operator.when_room().await.unwrap().push().unwrap() })
    }),
];

/// Each future is created and polled on a thread that must not block, while the operation awaited by the future is
/// running.
#[test]
fn polls_never_block() {
    fn assert_polls_return(engine: Engine, group: Group, what: &str, call: AsyncCall) {
        println!("{what} on the {} engine", engine.kind());
        let value = engine.var(0);
        let (gate, pusher) = run_until_opened(&group, &value);
        let (sender, receiver) = mpsc::channel();
        let (there, same) = (engine.clone(), value.clone());
        let poller = thread::spawn(move || {
            let mut future = call(there, same, group);
            let polls = [(); 2].map(|()| poll_once(&mut future).is_pending());
            sender.send((polls, future)).unwrap();
        });
        let polled = receiver.recv_timeout(SOON);
        let (polls, future) = polled.unwrap_or_else(|_| panic!("a poll of {what} has not returned within {SOON:?}"));
        assert_eq!(polls, [true; 2], "{what} is ready while the operation before it runs");
        poller.join().unwrap();
        gate.open();
        block_on(future);
        pusher.join().unwrap();
        assert!(value.version() >= 1, "{what} was ready early");
        engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
    }
    for kind in KINDS {
        watched(move || each_call(kind, assert_polls_return));
    }
}

/// Calls `f` once for each future available to programs, with an engine and a group, each time new, and the call.
fn each_call(kind: EngineKind, f: impl Fn(Engine, Group, &'static str, AsyncCall)) {
    for (what, call) in CALLS {
        let engine = common::engine(kind, 2);
        let group = engine.group();
        f(engine, group, what, call);
    }
    for (what, call) in CALLS_FOR_ROOM.into_iter().chain(CALLS_FOR_ROOM_IN_A_GROUP) {
        let engine = Engine::builder().kind(kind).workers(2).pin(false).max_pending(1).build().unwrap();
        let group = engine.group();
        f(engine, group, what, call);
    }
    for (what, call) in CALLS_FOR_ROOM_IN_A_GROUP {
        let engine = common::engine(kind, 2);
        let group = engine.group().max_pending(1);
        f(engine, group, what, call);
    }
}

/// Each executor polls each future while the operation awaited by the future is running, and is woken when that
/// operation has ended.
#[test]
fn every_future_resolves_on_every_executor() {
    for kind in KINDS {
        for (executor, run) in EXECUTORS {
            watched(move || {
                each_call(kind, |engine, group, what, call| {
                    println!("{what} on the {kind} engine, in {executor}");
                    let value = engine.var(0);
                    let (gate, pusher) = run_until_opened(&group, &value);
                    let future = call(engine.clone(), value.clone(), group);
                    let (polled, polls) = (AtomicBool::new(false), Gate::new());
                    let (first_poll, of_value) = (polls.clone(), value.clone());
                    let task = async move {
                        let mut future = future;
                        poll_fn(|cx| {
                            let poll = future.as_mut().poll(cx);
                            if !polled.swap(true, SeqCst) {
                                assert!(poll.is_pending(), "{what} is ready while the operation before it runs");
                                first_poll.open();
                            }
                            poll
                        })
                        .await;
                        of_value.version() as i32
                    };
                    let opener = thread::spawn(move || {
                        polls.pass();
                        gate.open();
                    });
                    assert!(run(Box::pin(task)) >= 1, "{what} was ready early");
                    opener.join().unwrap();
                    pusher.join().unwrap();
                    engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
                });
            });
        }
    }
}

#[test]
fn a_handle_that_is_dropped_after_a_poll_cancels_nothing() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        let group = engine.group();
        let (gate, pusher) = run_until_opened(&group, &value);
        let add = engine.op("add").operator(value.write(), |value| *value += 10).unwrap();
        let handles = [
            engine.op("add").submit(value.write(), |value| *value += 100).unwrap(),
            group.op("add").submit(value.write(), |value| *value += 1_000).unwrap(),
            add.submit().unwrap(),
            engine.op("add").submit_future(value.write(), |mut value| async move { *value += 10_000 }).unwrap(),
            engine.op("add").with_children().submit(value.write(), |value| *value += 100_000).unwrap(),
        ];
        let count = handles.len() as u64;
        for mut handle in handles {
            assert!(poll_once(&mut handle).is_pending());
            drop(handle);
        }
        gate.open();
        pusher.join().unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!((engine.get(&value).unwrap(), value.version()), (111_111, 1 + count));
    });
}

// -------------------------------------------------------------------------------------------------- cancellation ----

/// The cancelled future stops at the `await` at which it waits, although nothing else wakes it.
#[test]
fn a_started_future_that_is_cancelled_stops_and_fails_what_it_mutates() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, drops, signal) = (engine.var(0), Drops::new(), Signal::default());
        let (item, awaited) = (drops.make(), signal.clone());
        let handle = engine.op("endless").submit_future(value.write(), move |mut value| async move {
            *value = 1;
            item.touch();
            awaited.await;
            *value = 2;
        });
        let handle = handle.unwrap();
        eventually("the future waits", || signal.is_awaited());
        assert!(!handle.cancel() && !handle.cancel_quietly(), "a cancellation won although the future had started");
        assert!(matches!(failure(handle.wait()).cause(), Cause::Cancelled));
        assert!(matches!(failure(engine.wait_for_var(&value)).cause(), Cause::Cancelled));
        drops.assert_all_gone();
        signal.set();
        engine.clear_error(&value).unwrap();
        assert_eq!((engine.get(&value).unwrap(), value.version()), (1, 0));
        engine.wait_for_all().unwrap();
    });
}

/// The variable fails with the cancellation. The panic, which no variable and no handle has, is reported as well.
#[test]
fn a_panic_in_the_drop_of_a_cancelled_future_is_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, signal) = (engine.var(0), Signal::default());
        let awaited = signal.clone();
        let handle = engine.op("endless").submit_future(value.write(), move |_value| async move {
            let _dropped = PanicsOnDrop("the drop");
            awaited.await;
        });
        let handle = handle.unwrap();
        eventually("the future waits", || signal.is_awaited());
        assert!(!handle.cancel(), "the cancellation won although the future had started");
        assert!(matches!(failure(handle.wait()).cause(), Cause::Cancelled));
        assert!(matches!(failure(engine.wait_for_var(&value)).cause(), Cause::Cancelled));
        let panic = failure(engine.wait_for_all());
        assert_panicked(&panic, "the drop");
        assert_eq!(panic.name(), "endless");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_future_that_is_cancelled_during_its_first_poll_stops() {
    on_kinds(&THREADED, 1, |engine| {
        let (polled, cancelled) = (Gate::new(), Gate::new());
        let (begins, goes_on) = (polled.clone(), cancelled.clone());
        let endless = move |()| {
            poll_fn(move |_| {
                begins.open();
                goes_on.pass();
                Poll::<()>::Pending
            })
        };
        let handle = engine.op("endless").submit_future((), endless).unwrap();
        polled.pass();
        assert!(!handle.cancel(), "the cancellation won although the future had started");
        cancelled.open();
        assert!(matches!(failure(handle.wait()).cause(), Cause::Cancelled));
        engine.wait_for_all().unwrap();
    });
}

/// A future in which nothing but a cancellation ends the wait.
fn sleeps(group: &Group, value: &Var<i32>) -> (OpHandle<()>, Signal) {
    let signal = Signal::default();
    let awaited = signal.clone();
    let asleep = move |value: WriteGuard<i32>| async move {
        let _value = value;
        awaited.await;
    };
    let handle = group.op("asleep").submit_future(value.write(), asleep).unwrap();
    eventually("the future sleeps", || signal.is_awaited());
    (handle, signal)
}

#[test]
fn every_cancellation_wakes_a_sleeping_future_which_then_fails() {
    type CancelSleeper = fn(&Engine, &Group, &OpHandle<()>);
    let cancels: [(&str, CancelSleeper); 6] = [
        ("handle", |_, _, handle| assert!(!handle.cancel(), "the future has started")),
        ("quietly", |_, _, handle| assert!(!handle.cancel_quietly(), "the future has started")),
        ("group", |_, group, _| group.cancel()),
        ("group, quietly", |_, group, _| group.cancel_quietly()),
        ("shutdown", |engine, _, _| engine.shutdown(Shutdown::Cancel, Some(PATIENCE)).unwrap()),
        ("notified shutdown", |engine, _, _| engine.notify_shutdown()),
    ];
    for (what, cancel) in cancels {
        on_kinds(&KINDS, 1, move |engine| {
            let (value, outer) = (engine.var(0), engine.group());
            let (handle, signal) = sleeps(&outer.group().group(), &value);
            cancel(&engine, &outer, &handle);
            assert!(matches!(failure(handle.wait()).cause(), Cause::Cancelled), "{what}");
            assert!(matches!(failure(engine.wait_for_var(&value)).cause(), Cause::Cancelled), "{what}");
            // The waker does nothing any more.
            signal.set();
            outer.wait().unwrap_err();
            engine.wait_for_all().unwrap();
            assert_eq!(value.version(), 0, "{what}");
        });
    }
}

/// The second future has the earlier deadline.
#[test]
fn deadlines_wake_sleeping_futures_which_then_fail() {
    on_kinds(&KINDS, 1, |engine| {
        let now = Instant::now();
        let times = [MOMENT * 3, MOMENT, MOMENT * 2, PATIENCE * 100];
        let sleeping = times.map(|time| {
            let (value, signal) = (engine.var(0), Signal::default());
            let awaited = signal.clone();
            let asleep = |_value: WriteGuard<i32>| awaited;
            let handle = engine.op("asleep").deadline(now + time).submit_future(value.write(), asleep).unwrap();
            (handle, signal, value)
        });
        for ((handle, signal, value), time) in sleeping.into_iter().zip(times) {
            if time > PATIENCE {
                eventually("the future sleeps", || signal.is_awaited());
                signal.set();
                handle.wait().unwrap();
                assert_eq!(value.version(), 1);
                continue;
            }
            assert!(matches!(failure(handle.wait()).cause(), Cause::DeadlinePassed));
            assert!(now.elapsed() >= time, "{:?} {time:?}", now.elapsed());
            assert!(matches!(failure(engine.wait_for_var(&value)).cause(), Cause::DeadlinePassed));
        }
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn cancelling_a_group_leaves_other_futures_asleep_and_clean_ups_running() {
    on_kinds(&KINDS, 1, |engine| {
        let (group, value, kept) = (engine.group(), engine.var(0), engine.var(0));
        let inner = group.group();
        let (asleep, signal) = sleeps(&group, &value);
        let clean = Signal::default();
        let awaited = clean.clone();
        let clean_up = inner.op("").cleanup().submit_future(kept.write(), move |mut kept| async move {
            awaited.await;
            *kept = 7;
        });
        inner.cancel();
        assert_eq!((asleep.is_done(), clean_up.as_ref().unwrap().is_done()), (false, false));
        clean.set();
        clean_up.unwrap().wait().unwrap();
        signal.set();
        asleep.wait().unwrap();
        assert_eq!((engine.get(&kept).unwrap(), value.version()), (7, 1));
        let late = inner.op("").submit_future((), |()| async {}).unwrap();
        assert!(matches!(failure(late.wait()).cause(), Cause::Cancelled));
        engine.wait_for_all().unwrap();
    });
}

/// The futures begin, sleep, wake one another and end while the group is cancelled.
#[test]
fn no_future_sleeps_on_if_its_group_is_cancelled_meanwhile() {
    on_kinds(&THREADED, 2, |engine| {
        for round in 0..if cfg!(miri) { 3 } else { 200 } {
            // The signals keep the wakers, without which the futures would be lost.
            let (group, signals) = (engine.group(), [(); 10].map(|()| Signal::default()));
            thread::scope(|scope| {
                scope.spawn(|| {
                    for signal in &signals {
                        let awaited = signal.clone();
                        group.op("").push_future((), |()| awaited).unwrap();
                    }
                });
                scope.spawn(|| {
                    (0..round % 20).for_each(|_| thread::yield_now());
                    group.cancel();
                });
            });
            assert!(matches!(failure(group.wait_timeout(PATIENCE)).cause(), Cause::Cancelled), "{round}");
        }
    });
}
