//! Waits inside operations: ready operations on which the wait depends run on the waiter's stack.

use raddle_testkit as common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use common::{
    Drops, Gate, KINDS, MOMENT, PATIENCE, THREADED, child_succeeds, engine, failure, hold, lock, on_kinds,
    thread_count, wait_for_thread_count, watched_for,
};
use raddle::{
    Engine, EngineKind, Group, OpHandle, Property, PushError, Shutdown, Var, WaitError, blocking, cx,
    error::{BoxError, Cause},
};

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
fn a_recursion_that_waits_needs_few_threads() {
    child_succeeds("recursions_that_count_their_threads");
}

/// Runs 21,891 operations on each engine, or fewer under a sanitizer; nearly half of them push two more and wait for
/// both.
#[test]
#[ignore = "counts the threads of its process; run by another test in a separate process"]
fn recursions_that_count_their_threads() {
    // Child processes have a time limit, and sanitizers are slow.
    recursions(if cfg!(any(raddle_tsan, raddle_unpooled)) { 18 } else { 20 });
}

/// Runs 242,785 operations on each engine.
#[test]
#[ignore = "counts the threads of its process; without optimization, takes about a minute"]
fn long_recursions_that_count_their_threads() {
    recursions(25);
}

fn recursions(n: u64) {
    let expected = (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0;
    let before = thread_count();
    for kind in KINDS {
        for workers in [1, 2] {
            let engine = engine(kind, workers);
            let mut most = 0;
            thread::scope(|scope| {
                // On a naive engine, the push of the root runs the recursion.
                let recursion = scope.spawn(|| fib(&engine, n).unwrap().wait().unwrap());
                while !recursion.is_finished() {
                    most = most.max(thread_count());
                }
                assert_eq!(recursion.join().unwrap(), expected);
            });
            // The thread waiting for the recursion does not belong to the engine.
            let others = before + 1;
            println!("{most} threads at most, {others} without the {kind} engine with {workers} workers");
            assert!(most <= others + workers + 8, "{most} threads, {others} without the engine");
            engine.wait_for_all().unwrap();
            assert_eq!(engine.pending(), 0);
            drop(engine);
            wait_for_thread_count(before);
        }
    }
}

/// The depth far exceeds both the capacity of one stack and the number of threads that could be started.
#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn ten_thousand_nested_waits_end() {
    for kind in KINDS {
        for workers in [1, 2] {
            // A wait may hand over its worker, which takes a long time on a busy machine.
            watched_for(2 * PATIENCE, move || {
                println!("on the {kind} engine with {workers} workers");
                let engine = engine(kind, workers);
                assert_eq!(depth(&engine, 10_000).unwrap().wait().unwrap(), 10_000);
                engine.shutdown(Shutdown::Drain, None).unwrap();
            });
        }
    }
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

#[test]
fn the_function_of_a_parent_runs_on_the_thread_of_its_waiter() {
    on_kinds(&KINDS, 1, |engine| {
        // An operation with a priority is not in the worker's deque.
        for priority in [0, 1] {
            let same = inside(&engine, move |engine| {
                let parent = engine.op("parent").priority(priority).with_children();
                Ok(parent.submit((), |()| thread::current().id())?.wait()? == thread::current().id())
            });
            assert!(same.unwrap(), "with priority {priority}");
        }
    });
}

/// Calls a function inside an operation, with the engine as its argument, and returns the result.
fn inside<R: Send + 'static>(
    engine: &Engine,
    f: impl FnOnce(&Engine) -> Result<R, BoxError> + Send + 'static,
) -> Result<R, WaitError> {
    let inside = engine.downgrade();
    engine.op("outer").try_submit((), move |()| f(&inside)).expect("the engine should be open").wait()
}

/// Pushes operations that run one after another, recording their threads in a variable.
fn push_chain(engine: &Engine, length: usize) -> Result<Var<Vec<ThreadId>>, PushError> {
    let threads = engine.var(Vec::new());
    for _ in 0..length {
        engine.op("in turn").push(threads.write(), |threads| threads.push(thread::current().id()))?;
    }
    Ok(threads)
}

#[test]
fn what_a_wait_for_a_variable_waits_for_runs_on_the_thread_of_the_waiter() {
    on_kinds(&KINDS, 1, |engine| {
        let here = inside(&engine, |engine| {
            let threads = push_chain(engine, 100)?;
            engine.wait_for_var(&threads)?;
            let others = push_chain(engine, 100)?;
            assert_eq!(engine.get(&others)?, [thread::current().id(); 100]);
            Ok(engine.get(&threads)? == [thread::current().id(); 100])
        });
        assert!(here.unwrap());
    });
}

#[test]
fn what_with_waits_for_runs_on_the_thread_of_the_waiter() {
    on_kinds(&KINDS, 1, |engine| {
        let here = inside(&engine, |engine| {
            let looked_at = push_chain(engine, 3)?;
            let before = engine.with(&looked_at, Vec::clone)?;
            let taken = push_chain(engine, 3)?;
            Ok([before, engine.take(&taken)?] == [[thread::current().id(); 3]; 2])
        });
        assert!(here.unwrap());
    });
}

#[test]
fn what_stands_before_the_operation_of_a_handle_runs_on_the_thread_of_its_waiter() {
    on_kinds(&KINDS, 1, |engine| {
        let here = inside(&engine, |engine| {
            let (first, second) = (push_chain(engine, 3)?, push_chain(engine, 3)?);
            let both = engine.op("both").submit((first.read(), second.write()), |(first, second)| {
                second.extend_from_slice(first);
                second.clone()
            });
            Ok(both?.wait()? == [thread::current().id(); 6])
        });
        assert!(here.unwrap());
    });
}

#[test]
fn children_of_the_awaited_operation_run_on_the_thread_of_the_waiter() {
    on_kinds(&KINDS, 1, |engine| {
        let here = inside(&engine, |engine| {
            let threads = engine.var(Vec::new());
            let parent = engine.op("parent").with_children().submit((cx(), threads.write()), {
                let threads = threads.clone();
                move |(cx, _)| {
                    for _ in 0..3 {
                        let note = |threads: &mut Vec<_>| threads.push(thread::current().id());
                        cx.child("child").push(threads.write(), note).expect("the parent should hold the variable");
                    }
                }
            });
            parent?.wait()?;
            Ok(engine.get(&threads)? == [thread::current().id(); 3])
        });
        assert!(here.unwrap());
    });
}

#[test]
fn members_of_the_awaited_group_run_on_the_thread_of_the_waiter() {
    on_kinds(&KINDS, 1, |engine| {
        let here = inside(&engine, |engine| {
            let (group, threads) = (engine.group(), Arc::new(Mutex::new(Vec::new())));
            for group in [&group, &group.group()] {
                for _ in 0..3 {
                    let threads = Arc::clone(&threads);
                    group.op("member").push((), move |()| lock(&threads).push(thread::current().id()))?;
                }
            }
            group.wait()?;
            let threads = lock(&threads);
            Ok(*threads == [thread::current().id(); 6])
        });
        assert!(here.unwrap());
    });
}

/// Each member pushes another, so a wait that ran later members would never end.
#[test]
fn a_wait_for_a_group_runs_no_members_that_were_pushed_later() {
    on_kinds(&THREADED, 1, |engine| {
        inside(&engine, |engine| {
            fn again(group: &Arc<Group>, stop: &Arc<AtomicBool>) {
                let (same, stopped) = (Arc::clone(group), Arc::clone(stop));
                let next = move |()| {
                    if !stopped.load(Relaxed) {
                        again(&same, &stopped);
                    }
                };
                group.op("again").push((), next).expect("the engine should be open");
            }
            let (group, stop) = (Arc::new(engine.group()), Arc::new(AtomicBool::new(false)));
            again(&group, &stop);
            group.wait()?;
            stop.store(true, Relaxed);
            Ok(())
        })
        .unwrap();
        engine.wait_for_all().unwrap();
    });
}

/// The wait could otherwise be buried under the waits of unrelated operations.
#[test]
fn a_waiter_runs_nothing_that_it_does_not_wait_for() {
    on_kinds(&THREADED, 1, |engine| {
        let busy = Arc::new(AtomicBool::new(true));
        let seen = Arc::clone(&busy);
        let (unrelated, here) = inside(&engine, move |engine| {
            let other = engine.var(0);
            let push = |engine: &Engine| {
                let busy = Arc::clone(&seen);
                engine
                    .op("unrelated")
                    .submit((), move |()| assert!(!busy.load(Relaxed), "an unrelated operation runs during the wait"))
            };
            let mut unrelated: Vec<_> = (0..3).map(|_| push(engine)).collect::<Result<_, _>>()?;
            for _ in 0..3 {
                engine.op("behind").push(other.write(), |other| *other += 1)?;
            }
            let threads = push_chain(engine, 3)?;
            unrelated.push(push(engine)?);
            let here = engine.get(&threads)? == [thread::current().id(); 3];
            seen.store(false, Relaxed);
            Ok((unrelated, here))
        })
        .unwrap();
        assert!(here);
        unrelated.into_iter().for_each(|unrelated| unrelated.wait().unwrap());
    });
}

/// A lane has its own workers, which may be pinned, and another lane's waiter takes no operations from it.
#[test]
fn an_operation_of_another_lane_runs_on_that_lane() {
    on_kinds(&THREADED, 1, |engine| {
        let inside = engine.downgrade();
        // `busy` keeps the other lane's own worker from taking the operation first.
        let busy = engine.op("busy").property(Property::CopyToGpu);
        busy.push((), |()| thread::sleep(Duration::from_millis(50))).unwrap();
        let same = engine.op("outer").try_submit((), move |()| {
            let here = thread::current().id();
            let inner = inside.op("copy").property(Property::CopyToGpu).submit((), |()| thread::current().id())?;
            Ok(inner.wait()? == here)
        });
        assert!(!same.unwrap().wait().unwrap());
    });
}

/// A wait with a time limit must return in time, whatever the awaited operation does.
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
fn a_wait_for_a_group_with_a_time_limit_hands_the_worker_over() {
    on_kinds(&THREADED, 1, |engine| {
        let (group, gate) = (engine.group(), Gate::new());
        let outer = engine.op("outer").submit((), move |()| {
            let passed = gate.clone();
            // On the waiter's stack, this member would keep the wait from returning.
            group.op("member").push((), move |()| passed.pass()).unwrap();
            let timed_out = group.wait_timeout(MOMENT);
            gate.open();
            timed_out
        });
        assert!(matches!(outer.unwrap().wait().unwrap(), Err(WaitError::TimedOut)));
    });
}

#[test]
fn an_operation_may_wait_for_one_that_is_not_ready() {
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
            let skipped = inside.op("skipped").submit(same.read(), |_| unreachable!("`skipped` should be skipped"))?;
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

/// The waiter holds a variable, so the awaited operation must not wait for that variable.
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

/// Each handle is awaited while its operation is queued, running or complete, on any of the threads.
#[test]
fn each_operation_runs_once_whichever_thread_waits_for_it() {
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

/// Entries whose operations were taken remain in the queues, even when the engine ends.
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

/// `blocking` always calls its function, even outside operations and where waits are refused.
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

// ------------------------------------------------------------------------------------------ engines without workers
// ----

/// What `first` does in a test that calls [`beside`].
type First = fn(&Engine, &Var<i32>, OpHandle<i32>) -> Result<i32, WaitError>;

/// Pushes three operations that become ready together and, on a naive engine, run on one thread: `first` mutates a
/// variable and runs `f`, `second` waits for that variable, and `third` returns 3. Returns the result of `first`.
fn beside(engine: &Engine, f: First) -> Result<i32, WaitError> {
    let (gate, value) = (engine.token(), engine.var(0));
    let held = hold(engine, &gate);
    let (inside, again, kept) = (engine.downgrade(), value.clone(), Arc::new(Mutex::new(None)));
    let third = Arc::clone(&kept);
    let first = engine.op("first").reads([&gate]).submit(value.write(), move |_| {
        let third = lock(&third).take().expect("all should have been pushed before the first one started");
        f(&inside, &again, third)
    });
    let (inside, again) = (engine.downgrade(), value.clone());
    let second = engine.op("second").reads([&gate]).submit((), move |()| inside.wait_to_read(&again));
    *lock(&kept) = Some(engine.op("third").reads([&gate]).submit((), |()| 3).unwrap());
    held.open();
    let first = first.unwrap().wait().unwrap();
    // `second` waits for `first` and must not run on top of it.
    second.unwrap().wait().unwrap().unwrap();
    engine.wait_for_all().unwrap();
    first
}

#[test]
fn a_wait_for_a_handle_runs_no_other_ready_operation() {
    on_kinds(&KINDS, 1, |engine| {
        assert_eq!(beside(&engine, |_, _, third| third.wait()).unwrap(), 3);
    });
}

#[test]
fn a_wait_for_a_group_runs_no_other_ready_operation() {
    on_kinds(&KINDS, 1, |engine| {
        let waits = |engine: &Engine, _: &_, third: OpHandle<i32>| {
            let group = engine.group();
            group.op("member").push((), |()| ()).unwrap();
            group.wait()?;
            third.wait()
        };
        assert_eq!(beside(&engine, waits).unwrap(), 3);
    });
}

#[test]
fn the_end_of_a_scope_runs_no_other_ready_operation() {
    on_kinds(&KINDS, 1, |engine| {
        let opens = |engine: &Engine, _: &_, third: OpHandle<i32>| {
            let mut sum = 0;
            engine.scope(|s| {
                let sum = s.lend(&mut sum);
                s.op("add").push(sum.write(), |sum| *sum += 4).unwrap();
                s.op("wait").push(sum.write(), move |sum| *sum += third.wait().unwrap()).unwrap();
            })?;
            Ok(sum)
        };
        assert_eq!(beside(&engine, opens).unwrap(), 7);
    });
}

#[test]
fn a_wait_that_is_refused_runs_no_other_ready_operation() {
    on_kinds(&KINDS, 1, |engine| {
        let waits = |engine: &Engine, value: &Var<i32>, _| {
            engine.op("behind").submit(value.read(), |value| *value).unwrap().wait()
        };
        assert!(matches!(beside(&engine, waits), Err(WaitError::WouldDeadlock(_))));
        let waits = |engine: &Engine, value: &Var<i32>, _| {
            let group = engine.group();
            group.op("behind").push(value.read(), |_| ()).unwrap();
            group.wait().map(|()| 0)
        };
        assert!(matches!(beside(&engine, waits), Err(WaitError::WouldDeadlock(_))));
    });
}

#[test]
fn a_child_may_wait_for_a_later_child() {
    on_kinds(&KINDS, 2, |engine| {
        for is_eager in [false, true] {
            let parent = engine.op("parent").with_children().submit(cx(), move |cx| {
                let (sender, receiver) = mpsc::channel::<OpHandle<i32>>();
                let early = cx.child("early");
                let early = if is_eager { early.eager() } else { early };
                let early = early.submit((), move |()| receiver.recv().unwrap().wait()).unwrap();
                sender.send(cx.child("late").submit((), |()| 7).unwrap()).unwrap();
                early
            });
            assert_eq!(parent.unwrap().wait().unwrap().wait().unwrap().unwrap(), 7);
        }
    });
}

/// On a naive engine, the wait of the parent's child runs `ahead`, so `behind` becomes ready while the parent's
/// children are being started.
#[test]
fn an_operation_that_runs_between_children_may_wait_for_the_parent() {
    on_kinds(&KINDS, 1, |engine| {
        let (gate, held_by_parent, before) = (engine.token(), engine.var(0), engine.var(0));
        let held = hold(&engine, &gate);
        let kept = Arc::new(Mutex::new(None::<OpHandle<()>>));
        let awaited = Arc::clone(&kept);
        let parent = engine.op("parent").with_children().reads([&gate]).submit(
            (cx(), held_by_parent.write()),
            move |(cx, _)| {
                let awaited = lock(&awaited).take().expect("all should have been pushed before the first one started");
                cx.child("child").push((), move |()| awaited.wait().unwrap()).unwrap();
            },
        );
        *lock(&kept) = Some(engine.op("ahead").reads([&gate]).submit(before.write(), |_| ()).unwrap());
        let (inside, again) = (engine.downgrade(), held_by_parent.clone());
        let behind = engine.op("behind").submit(before.write(), move |_| inside.wait_to_read(&again)).unwrap();
        held.open();
        parent.unwrap().wait().unwrap();
        behind.wait().unwrap().unwrap();
    });
}
