//! Waits inside operations for the handles of other operations: a ready one runs on the stack of the waiter.

#![cfg(not(any(raddle_loom, raddle_shuttle)))]

use raddle_testkit as common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use common::{
    Drops, KINDS, PATIENCE, THREADED, child_succeeds, engine, failure, hold, lock, on_kinds, thread_count, watched_for,
};
use raddle::{BoxError, Cause, Engine, EngineKind, OpHandle, Property, PushError, Shutdown, WaitError, blocking};

fn fib(engine: &Engine, n: u64) -> Result<OpHandle<u64>, PushError> {
    let inside = engine.downgrade();
    engine.op("fib").try_submit((), move |()| {
        if n < 2 {
            return Ok(n);
        }
        let (a, b) = (fib(&inside, n - 1)?, fib(&inside, n - 2)?);
        Ok(a.wait()? + b.wait()?)
    })
}

fn depth(engine: &Engine, n: u64) -> Result<OpHandle<u64>, PushError> {
    let inside = engine.downgrade();
    engine.op("depth").try_submit((), move |()| if n == 0 { Ok(0) } else { Ok(1 + depth(&inside, n - 1)?.wait()?) })
}

#[test]
fn a_recursion_by_waits_needs_few_threads() {
    child_succeeds("recursions_that_count_their_threads");
}

/// 8,361 operations at once, and half of them wait.
#[test]
#[ignore = "counts the threads of its process, so it is run alone, by the test above"]
fn recursions_that_count_their_threads() {
    for kind in THREADED {
        for workers in [1, 2] {
            let engine = engine(kind, workers);
            let before = thread_count();
            let root = fib(&engine, 18).unwrap();
            let mut most = before;
            while !root.is_done() {
                most = most.max(thread_count());
            }
            assert_eq!(root.wait().unwrap(), 2_584);
            assert!(most <= before + 8, "{most} threads instead of {before}, with {workers} workers");
            engine.wait_for_all().unwrap();
            assert_eq!(engine.pending(), 0);
        }
    }
}

/// Far deeper than a stack is, or than threads could be started for.
#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn ten_thousand_nested_waits_end() {
    watched_for(PATIENCE, || {
        for kind in THREADED {
            let engine = engine(kind, 2);
            assert_eq!(depth(&engine, 10_000).unwrap().wait().unwrap(), 10_000);
            engine.shutdown(Shutdown::Drain, None).unwrap();
        }
    });
}

#[test]
fn a_ready_operation_runs_on_the_thread_of_its_waiter() {
    on_kinds(&KINDS, 1, |engine| {
        let inside = engine.downgrade();
        let same = engine.op("outer").try_submit((), move |()| {
            let inner = inside.op("inner").submit((), |()| thread::current().id())?;
            Ok(inner.wait()? == thread::current().id())
        });
        assert!(same.unwrap().wait().unwrap());
    });
}

/// A lane has its own workers, which may be pinned, and a waiter of another lane takes nothing from it.
#[test]
fn an_operation_of_another_lane_runs_on_that_lane() {
    on_kinds(&THREADED, 1, |engine| {
        let inside = engine.downgrade();
        let same = engine.op("outer").try_submit((), move |()| {
            let here = thread::current().id();
            let inner = inside.op("copy").property(Property::CopyToGpu).submit((), |()| thread::current().id())?;
            Ok(inner.wait()? == here)
        });
        assert!(!same.unwrap().wait().unwrap());
    });
}

/// A wait with a limit must return in time, whatever the operation does.
#[test]
fn a_wait_with_a_time_limit_hands_the_worker_over() {
    on_kinds(&THREADED, 1, |engine| {
        let inside = engine.downgrade();
        let same = engine.op("outer").try_submit((), move |()| {
            let mut inner = inside.op("inner").submit((), |()| thread::current().id())?;
            Ok(inner.wait_timeout(PATIENCE)? == thread::current().id())
        });
        assert!(!same.unwrap().wait().unwrap());
    });
}

#[test]
fn an_operation_that_is_not_ready_runs_on_another_thread() {
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(1);
        let gate = hold(&engine, value.as_ref());
        let (inside, same) = (engine.downgrade(), value.clone());
        let outer = engine.op("outer").try_submit((), move |()| {
            let inner = inside.op("inner").submit(same.read(), |value| *value)?;
            inside.op("open").push((), move |()| gate.open())?;
            Ok(inner.wait()?)
        });
        assert_eq!(outer.unwrap().wait().unwrap(), 1);
    });
}

#[test]
fn an_operation_that_runs_in_place_holds_its_variables() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, seen) = (engine.var(0), engine.var(Vec::new()));
        for round in 0..200 {
            let (inside, value, seen) = (engine.downgrade(), value.clone(), seen.clone());
            let outer = engine.op("outer").try_submit((), move |()| {
                let inner = inside.op("inner").submit(value.write(), |value| {
                    *value += 1;
                    *value
                })?;
                inside.op("after").push((value.read(), seen.write()), |(value, seen)| seen.push(*value))?;
                Ok(inner.wait()?)
            });
            assert_eq!(outer.unwrap().wait().unwrap(), round + 1);
        }
        assert_eq!(engine.get(&seen).unwrap(), (1..=200).collect::<Vec<_>>());
        assert_eq!(value.version(), 200);
    });
}

#[test]
fn failures_of_operations_that_run_in_place_reach_the_waiter() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let (inside, same) = (engine.downgrade(), value.clone());
        let outer = engine.op("outer").try_submit((), move |()| {
            let failed = inside.op("fails").try_submit(same.write(), |_| Err::<(), _>("as planned".into()))?;
            assert_eq!(failure(failed.wait()).name(), "fails");
            let panicked = inside.op("").submit((), |()| panic!("as planned"))?;
            let _: &OpHandle<()> = &panicked;
            assert!(matches!(failure(panicked.wait()).cause(), Cause::Panic(_)));
            let skipped = inside.op("skipped").submit(same.read(), |_| unreachable!("it is skipped"))?;
            let _: &OpHandle<()> = &skipped;
            assert_eq!(failure(skipped.wait()).name(), "fails");
            let late = inside.op("").deadline(Instant::now()).submit((), |()| ())?;
            assert!(matches!(failure(late.wait()).cause(), Cause::DeadlinePassed));
            let cancelled = inside.op("").submit((), |()| ())?;
            let won = cancelled.cancel();
            assert_eq!(cancelled.wait().is_err(), won);
            let group = inside.group();
            group.cancel_quietly();
            assert!(matches!(failure(group.op("").submit((), |()| ())?.wait()).cause(), Cause::Cancelled));
            group.wait()?;
            Ok(())
        });
        outer.unwrap().wait().unwrap();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn runs_of_operators_and_members_of_groups_run_in_place() {
    on_kinds(&KINDS, 1, |engine| {
        let total = engine.var(0);
        let add = engine.op("add").operator(total.write(), |total| *total += 1).unwrap();
        let inside = engine.downgrade();
        let outer = engine.op("outer").try_submit((), move |()| {
            let group = inside.group();
            for _ in 0..50 {
                add.submit()?.wait()?;
                group.op("").submit((), |()| ())?.wait()?;
            }
            group.wait()?;
            Ok(group.pending())
        });
        assert_eq!(outer.unwrap().wait().unwrap(), 0);
        assert_eq!(engine.get(&total).unwrap(), 50);
        engine.wait_for_all().unwrap();
    });
}

/// The waiter holds a variable, so the operation that it waits for must not wait for that.
#[test]
fn an_operation_in_place_cannot_wait_for_what_its_waiter_holds() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let (inside, same) = (engine.downgrade(), value.clone());
        let outer = engine.op("outer").try_submit(value.write(), move |_| {
            let deeper = inside.clone();
            let inner = inside.op("inner").submit((), move |()| deeper.wait_for_var(&same))?;
            Ok(inner.wait()?)
        });
        assert!(matches!(outer.unwrap().wait().unwrap(), Err(WaitError::WouldDeadlock(_))));
    });
}

/// Each handle is waited for while the operation is in a queue, runs, or is complete, on one thread or another.
#[test]
fn each_operation_runs_once_whoever_waits_for_it() {
    on_kinds(&THREADED, 3, |engine| {
        let (ran, drops) = (Arc::new(AtomicUsize::new(0)), Drops::new());
        let shared: Arc<Mutex<Vec<OpHandle<usize>>>> = Arc::default();
        const OUTER: usize = 200;
        const INNER: usize = 20;
        let outer: Vec<_> = (0..OUTER)
            .map(|number| {
                let (inside, ran, shared) = (engine.downgrade(), Arc::clone(&ran), Arc::clone(&shared));
                let drops = drops.clone();
                engine.op("outer").try_submit((), move |()| {
                    for inner in 0..INNER {
                        let (ran, item) = (Arc::clone(&ran), drops.make());
                        let handle = inside.op("inner").submit((), move |()| {
                            item.touch();
                            ran.fetch_add(1, Relaxed);
                            number * INNER + inner
                        })?;
                        lock(&shared).push(handle);
                    }
                    let mut sum = 0;
                    for _ in 0..INNER {
                        let handle = {
                            let mut shared = lock(&shared);
                            let at = (number * 31 + sum) % shared.len().max(1);
                            if shared.is_empty() { break } else { shared.swap_remove(at) }
                        };
                        sum = sum.wrapping_add(handle.wait()?);
                    }
                    Ok::<_, BoxError>(sum)
                })
            })
            .collect();
        let mut sum: usize = outer.into_iter().map(|outer| outer.unwrap().wait().unwrap()).sum();
        for handle in std::mem::take(&mut *lock(&shared)) {
            sum += handle.wait().unwrap();
        }
        assert_eq!(sum, (0..OUTER * INNER).sum());
        engine.wait_for_all().unwrap();
        assert_eq!(ran.load(Relaxed), OUTER * INNER);
        drops.assert_all_gone();
    });
}

/// Entries whose operations were taken are left in the queues, also when the engine ends.
#[test]
fn an_engine_ends_with_stale_entries_in_its_queues() {
    watched_for(PATIENCE, || {
        for round in 0..200 {
            let engine = engine(EngineKind::PerDevice, 1 + round % 3);
            let inside = engine.downgrade();
            let outer = engine.op("outer").try_submit((), move |()| {
                let inner: Result<Vec<_>, _> = (0..100).map(|n| inside.op("").submit((), move |()| n)).collect();
                inner?.into_iter().rev().map(|inner| Ok(inner.wait()?)).sum::<Result<usize, BoxError>>()
            });
            assert_eq!(outer.unwrap().wait().unwrap(), 99 * 50);
            if round % 2 == 0 {
                engine.shutdown(Shutdown::Drain, Some(Duration::from_secs(60))).unwrap();
            }
        }
    });
}

#[test]
fn a_blocked_operation_does_not_hold_up_others() {
    on_kinds(&THREADED, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let received = engine.op("receive").submit((), move |()| blocking(|| receiver.recv_timeout(PATIENCE))).unwrap();
        engine.op("send").push((), move |()| sender.send(7).unwrap()).unwrap();
        assert_eq!(received.wait().unwrap(), Ok(7));
    });
}

/// It calls its function in any case, also where waits are refused and outside operations.
#[test]
fn blocking_is_allowed_everywhere() {
    assert_eq!(blocking(|| 7), 7);
    on_kinds(&KINDS, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let value = engine.var(0);
        engine.delete_variable(&value, move |_| sender.send(blocking(|| 7)).unwrap()).unwrap();
        assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), 7);
        assert_eq!(engine.op("").submit((), |()| blocking(|| blocking(|| 7))).unwrap().wait().unwrap(), 7);
        engine.wait_for_all().unwrap();
    });
}
