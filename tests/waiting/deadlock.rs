//! Neither crossing pushes nor waits inside operations deadlock: a wait that could never return is refused.

#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use crossbeam_epoch as epoch;

use common::shapes::*;
use common::{
    AWHILE, DeferredPanics, Drops, Gate, KINDS, Meeting, PATIENCE, SOON, THREADED, at_the_first_deferred_push,
    block_on, child_succeeds, engine, eventually, hold, is_child, lock, on_kinds, program::fewer, watched, watched_for,
};
use raddle::{
    Engine, EngineKind, OpContext, OpHandle, PushError, Shutdown, Token, WaitError, completion, error::NoAccess,
};

// ---------------------------------------------------------------------------------------- pushes that cross ----

/// Pushes `pushes` operations in total from eight threads. `pick` returns the variables that each operation reads and
/// mutates. Asserts that every operation has run and that the versions count every mutation.
fn cross(
    engine: &Engine,
    variables: usize,
    pushes: usize,
    pick: impl Fn(usize, usize) -> (Vec<usize>, Vec<usize>) + Sync,
) {
    const PUSHERS: usize = 8;
    let tokens: Vec<Token> = (0..variables).map(|_| engine.token()).collect();
    let (ran, mutations) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let barrier = Barrier::new(PUSHERS);
    thread::scope(|scope| {
        for pusher in 0..PUSHERS {
            let (tokens, pick, ran, barrier, mutations) = (&tokens, &pick, &ran, &barrier, &mutations);
            scope.spawn(move || {
                barrier.wait();
                for number in 0..pushes / PUSHERS {
                    let (reads, writes) = pick(pusher, number);
                    mutations.fetch_add(writes.len(), SeqCst);
                    let ran = Arc::clone(ran);
                    engine
                        .op("cross")
                        .reads(reads.iter().map(|&variable| &tokens[variable]))
                        .writes(writes.iter().map(|&variable| &tokens[variable]))
                        .push_sync(move |_| {
                            ran.fetch_add(1, SeqCst);
                        })
                        .expect("the engine should be open");
                }
            });
        }
    });
    engine.wait_for_all().expect("no operation should fail");
    assert_eq!(ran.load(SeqCst), pushes / PUSHERS * PUSHERS);
    let versions: u64 = tokens.iter().map(|token| token.version()).sum();
    assert_eq!(versions, mutations.load(SeqCst) as u64);
}

const PUSHES: usize = fewer(100_000);

/// Half of the threads push on `{a, b}`, the other half on `{b, a}`.
#[test]
fn pushes_on_two_variables_in_opposite_orders_do_not_deadlock() {
    on_kinds(&KINDS, 2, |engine| {
        cross(&engine, 2, PUSHES, |pusher, _| (vec![], if pusher % 2 == 0 { vec![0, 1] } else { vec![1, 0] }));
    });
}

/// `R(b) W(a)` against `R(a) W(b)`: an engine that locked the variables one after another would deadlock.
#[test]
fn a_read_and_a_mutation_in_opposite_orders_do_not_deadlock() {
    on_kinds(&KINDS, 2, |engine| {
        cross(&engine, 2, PUSHES, |pusher, _| if pusher % 2 == 0 { (vec![1], vec![0]) } else { (vec![0], vec![1]) });
    });
}

/// The threads push on `{a, b}`, `{b, c}` and `{c, a}`, and in longer cycles.
#[test]
fn pushes_in_cycles_of_three_to_six_variables_do_not_deadlock() {
    on_kinds(&KINDS, 2, |engine| {
        for length in 3..=6 {
            cross(&engine, length, PUSHES / 4, |pusher, number| {
                let first = (pusher + number) % length;
                let next = (first + 1) % length;
                match number % 3 {
                    0 => (vec![], vec![first, next]),
                    1 => (vec![first], vec![next]),
                    _ => (vec![next], vec![first]),
                }
            });
        }
    });
}

/// The threads push on five variables in every permutation, mutating them all.
#[test]
fn pushes_on_five_variables_in_every_order_do_not_deadlock() {
    on_kinds(&KINDS, 2, |engine| {
        cross(&engine, 5, PUSHES / 2, |pusher, number| {
            let mut variables: Vec<usize> = (0..5).collect();
            let mut state = pusher * 7919 + number;
            for last in (1..5).rev() {
                variables.swap(last, state % (last + 1));
                state /= last + 1;
            }
            (vec![], variables)
        });
    });
}

/// Each operation pushes others, on variables some of which it holds itself.
#[test]
fn operations_may_push_on_variables_that_they_hold() {
    on_kinds(&KINDS, 2, |engine| {
        let tokens: Arc<Vec<Token>> = Arc::new((0..3).map(|_| engine.token()).collect());
        let ran = Arc::new(AtomicUsize::new(0));
        for number in 0..2000 {
            let (inner_tokens, inner_ran) = (Arc::clone(&tokens), Arc::clone(&ran));
            let (a, b) = (number % 3, (number + 1) % 3);
            engine
                .push_sync(
                    move |cx| {
                        for (x, y) in [(a, b), (b, a), ((b + 1) % 3, a)] {
                            let ran = Arc::clone(&inner_ran);
                            let count = move |_: &OpContext<'_>| {
                                ran.fetch_add(1, SeqCst);
                            };
                            cx.engine()
                                .push_sync(count, [], [&inner_tokens[x], &inner_tokens[y]])
                                .expect("the engine should be open");
                        }
                    },
                    [],
                    [&tokens[a], &tokens[b]],
                )
                .expect("the engine should be open");
        }
        eventually("all operations have run", || ran.load(SeqCst) == 6000);
        engine.wait_for_all().expect("no operation should fail");
        assert_eq!(tokens.iter().map(|token| token.version()).sum::<u64>(), 2 * 8000);
    });
}

/// The threads also drop variables that have pending operations, and push on deleted variables.
#[test]
fn variables_may_be_created_and_deleted_while_pushes_cross() {
    on_kinds(&KINDS, 2, |engine| {
        let drops = Drops::new();
        let shared = engine.var(drops.make());
        thread::scope(|scope| {
            for pusher in 0..8 {
                let (engine, drops, shared) = (&engine, &drops, &shared);
                scope.spawn(move || {
                    for number in 0..500 {
                        let own = engine.var(drops.make());
                        let captured = drops.make();
                        let touch = move |a: &mut common::Droppable, b: &mut common::Droppable| {
                            a.touch();
                            b.touch();
                            captured.touch();
                        };
                        if (pusher + number) % 2 == 0 {
                            engine.op("").push((shared.write(), own.write()), move |(a, b)| touch(a, b)).unwrap();
                        } else {
                            engine.op("").push((own.write(), shared.write()), move |(a, b)| touch(a, b)).unwrap();
                        }
                        if number % 5 == 0 {
                            engine.delete_variable(&own, |_| {}).unwrap();
                            let refused = engine.op("").push((shared.write(), own.write()), |_| {});
                            assert!(matches!(refused, Err(PushError::Variable(NoAccess::Deleted, _))));
                        }
                    }
                });
            }
        });
        drop(shared);
        drop(engine);
        assert_eq!(drops.made(), 2 * 8 * 500 + 1);
        drops.assert_all_gone();
    });
}

// --------------------------------------------------------------------------------- waits inside operations ----

#[test]
fn an_operation_may_wait_for_one_that_it_pushed_on_a_single_worker() {
    on_kinds(&KINDS, 1, |engine| {
        let outer = engine
            .op("outer")
            .submit((), {
                let engine = engine.clone();
                move |()| {
                    let inner = engine.op("inner").submit((), |()| 7).expect("the engine should be open");
                    inner.wait().expect("no operation should fail")
                }
            })
            .expect("the engine should be open");
        assert_eq!(outer.wait().expect("no operation should fail"), 7);
    });
}

/// Pushes an operation that pushes another operation and waits for it, and so on, `depth` levels deep.
fn descend(engine: &Engine, depth: usize) -> OpHandle<usize> {
    let inner = engine.clone();
    engine
        .op("descend")
        .submit((), move |()| {
            if depth == 0 { 0 } else { 1 + descend(&inner, depth - 1).wait().expect("no operation should fail") }
        })
        .expect("the engine should be open")
}

#[test]
fn waits_may_nest_a_hundred_deep_on_a_single_worker() {
    on_kinds(&KINDS, 1, |engine| {
        assert_eq!(descend(&engine, 100).wait().expect("no operation should fail"), 100);
    });
}

#[test]
fn waits_may_nest_three_hundred_deep_on_a_single_worker() {
    on_kinds(&KINDS, 1, |engine| {
        // The naive engine nests the functions, which need more stack than a test's thread has.
        let deep = thread::Builder::new().stack_size(64 << 20).spawn(move || {
            assert_eq!(descend(&engine, 300).wait().expect("no operation should fail"), 300);
        });
        deep.expect("a thread should start").join().expect("nothing should panic");
    });
}

/// Each operation waits for a variable mutated by the next operation, which waits in the same way.
#[test]
fn waits_for_variables_may_nest_on_a_single_worker() {
    fn descend(engine: &Engine, depth: usize) -> usize {
        if depth == 0 {
            return 0;
        }
        let value = engine.var(0);
        let inner = engine.clone();
        engine
            .op("")
            .push(value.write(), move |value| *value = 1 + descend(&inner, depth - 1))
            .expect("the engine should be open");
        match depth % 3 {
            0 => engine.wait_for_var(&value).expect("no operation should fail"),
            1 => engine.wait_to_read(&value).expect("no operation should fail"),
            _ => {}
        }
        engine.get(&value).expect("no operation should fail")
    }
    on_kinds(&KINDS, 1, |engine| {
        let deep = thread::Builder::new().stack_size(64 << 20).spawn(move || assert_eq!(descend(&engine, 200), 200));
        deep.expect("a thread should start").join().expect("nothing should panic");
    });
}

/// With one worker, an awaited operation can run only if the waiting one runs it or gives up the worker.
#[test]
fn every_form_of_wait_works_inside_an_operation() {
    on_kinds(&KINDS, 1, |engine| {
        let inner = engine.clone();
        let outer = engine
            .op("outer")
            .submit((), move |()| {
                let variable = inner.var(0);
                let add =
                    || inner.op("add").push(variable.write(), |value| *value += 1).expect("the engine should be open");
                add();
                inner.wait_for_var(&variable).expect("no operation should fail");
                add();
                inner.wait_to_read(&variable).expect("no operation should fail");
                add();
                inner.wait_for_var(&variable).expect("no operation should fail");
                add();
                inner.wait_for_var_timeout(&variable, Duration::MAX).expect("no operation should fail");
                add();
                let value = inner.get(&variable).expect("no operation should fail");
                let mut handle =
                    inner.op("read").submit(variable.read(), |value| *value).expect("the engine should be open");
                (value, handle.wait_timeout(Duration::MAX).expect("no operation should fail"))
            })
            .expect("the engine should be open");
        assert_eq!(outer.wait().expect("no operation should fail"), (5, 5));
    });
}

/// Fifty operations wait concurrently while the only worker runs another.
#[test]
fn fifty_operations_may_wait_concurrently_on_a_single_worker() {
    on_kinds(&THREADED, 1, |engine| {
        let (signal, waiting) = (engine.token(), Arc::new(AtomicUsize::new(0)));
        let gate = hold(&engine, &signal);
        let waiters: Vec<_> = (0..50)
            .map(|_| {
                let (engine, signal, waiting) = (engine.clone(), signal.clone(), Arc::clone(&waiting));
                let wait = move |()| {
                    waiting.fetch_add(1, SeqCst);
                    engine.wait_for_var(&signal)
                };
                (wait, ())
            })
            .map(|(wait, ())| engine.op("wait").submit((), wait).expect("the engine should be open"))
            .collect();
        eventually("all fifty operations wait", || waiting.load(SeqCst) == 50);
        // The worker is free to run another operation.
        assert_eq!(
            engine
                .op("beside")
                .submit((), |()| 1)
                .expect("the engine should be open")
                .wait()
                .expect("no operation should fail"),
            1
        );
        gate.open();
        for waiter in waiters {
            waiter.wait().expect("the operation should not fail").expect("the wait should not fail");
        }
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// Each operation waits for one that it pushes to the other engine.
#[test]
fn operations_of_two_engines_may_wait_for_each_other() {
    for kinds in [[EngineKind::Pooled, EngineKind::PerDevice], [EngineKind::PerDevice, EngineKind::Naive]] {
        watched(move || {
            fn bounce(here: Engine, there: Engine, depth: usize) -> usize {
                if depth == 0 {
                    return 0;
                }
                let (next_here, next_there) = (there.clone(), here);
                let handle = there.op("bounce").submit((), move |()| bounce(next_here, next_there, depth - 1));
                1 + handle.expect("the engines should be open").wait().expect("no operation should fail")
            }
            let engines = kinds.map(|kind| engine(kind, 1));
            assert_eq!(bounce(engines[0].clone(), engines[1].clone(), 40), 40);
        });
    }
}

/// More operations wait than there can be spare threads. Each wait either succeeds or immediately returns an error.
#[test]
#[cfg_attr(miri, ignore = "starts 2,048 threads")]
fn too_many_concurrent_waits_return_an_error() {
    watched(|| {
        let engine = engine(EngineKind::Pooled, 1);
        let signal = engine.token();
        let gate = hold(&engine, &signal);
        let (sender, receiver) = mpsc::channel();
        for _ in 0..2100 {
            let (waiting, signal, sender) = (engine.clone(), signal.clone(), sender.clone());
            engine
                .op("wait")
                .push((), move |()| {
                    let result = waiting.wait_for_var(&signal);
                    sender.send(result).expect("the test should receive the result");
                })
                .expect("the engine should be open");
        }
        drop(sender);
        let early = receiver.recv_timeout(PATIENCE).expect("one operation should get no spare thread for its wait");
        assert!(matches!(early, Err(WaitError::TooManyWaiting)), "{early:?}");
        gate.open();
        let others: Vec<_> = receiver.iter().collect();
        assert_eq!(others.len(), 2099);
        assert!(others.iter().all(|result| matches!(result, Ok(()) | Err(WaitError::TooManyWaiting))));
        assert!(others.iter().filter(|result| result.is_ok()).count() >= 2000);
        engine.wait_for_all().expect("no operation should fail");
    });
}

// ----------------------------------------------------------------------------------- waits that would deadlock ----

/// Asserts that a wait has returned `WouldDeadlock`.
#[track_caller]
fn assert_would_deadlock<T: std::fmt::Debug>(result: Result<T, WaitError>) {
    assert!(matches!(result, Err(WaitError::WouldDeadlock(_))), "{result:?}");
}

#[test]
fn waiting_for_a_variable_that_the_operation_mutates_would_deadlock() {
    on_kinds(&KINDS, 1, |engine| {
        let variable = engine.var(0);
        let (inner, own) = (engine.clone(), variable.clone());
        let outer = engine.op("outer").submit(variable.write(), move |_| {
            let start = Instant::now();
            assert_would_deadlock(inner.wait_for_var(&own));
            assert_would_deadlock(inner.wait_for_var_timeout(&own, Duration::MAX));
            assert_would_deadlock(inner.wait_to_read(&own));
            assert_would_deadlock(inner.wait_for_var(&own));
            assert_would_deadlock(inner.get(&own));
            assert_would_deadlock(block_on(inner.wait_for_var_async(&own)));
            assert_would_deadlock(block_on(inner.wait_to_read_async(&own)));
            assert!(start.elapsed() < Duration::from_secs(5));
        });
        outer.expect("the engine should be open").wait().expect("no operation should fail");
    });
}

#[test]
fn waiting_for_a_variable_that_the_operation_reads_would_deadlock() {
    on_kinds(&KINDS, 1, |engine| {
        let variable = engine.var(0);
        let (inner, own) = (engine.clone(), variable.clone());
        let outer = engine.op("outer").submit(variable.read(), move |_| {
            assert_would_deadlock(inner.wait_for_var(&own));
            assert_would_deadlock(inner.wait_for_var(&own));
            assert_would_deadlock(inner.wait_to_read(&own));
        });
        outer.expect("the engine should be open").wait().expect("no operation should fail");
    });
}

/// A reader may get the value that it reads, unless a mutation has been pushed behind it; then the value is unavailable
/// until the reader completes.
#[test]
fn get_of_a_variable_that_the_operation_reads_does_not_hang() {
    on_kinds(&KINDS, 1, |engine| {
        let variable = engine.var(5);
        let (inner, own, pushed) = (engine.clone(), variable.clone(), Gate::new());
        let reader = engine
            .op("reader")
            .property(raddle::Property::CopyToGpu)
            .submit(variable.read(), {
                let pushed = pushed.clone();
                move |_| {
                    if inner.kind() == EngineKind::Naive {
                        // The naive engine runs the reader inside its push, so the reader itself pushes the mutation.
                        inner.op("mutation").push(own.write(), |value| *value += 1).expect("the engine should be open");
                    } else {
                        pushed.pass();
                    }
                    inner.get(&own)
                }
            })
            .expect("the engine should be open");
        if engine.kind() != EngineKind::Naive {
            engine.op("mutation").push(variable.write(), |value| *value += 1).expect("the engine should be open");
            pushed.open();
        }
        let result = reader.wait().expect("the operation should not fail");
        assert!(matches!(result, Ok(5) | Err(WaitError::WouldDeadlock(_))), "{result:?}");
        assert_eq!(engine.get(&variable).expect("no operation should fail"), 6);
    });
}

#[test]
fn waiting_for_its_own_handle_would_deadlock_an_operation() {
    on_kinds(&THREADED, 1, |engine| {
        let slot: Arc<Mutex<Option<OpHandle<()>>>> = Arc::default();
        let (stored, inner_slot, inner_stored) = (Gate::new(), Arc::clone(&slot), Gate::new());
        let answer = Arc::new(Mutex::new(None));
        let (passed, inner_answer) = (stored.clone(), Arc::clone(&answer));
        let handle = engine
            .op("own")
            .submit((), move |()| {
                passed.pass();
                let mut own: OpHandle<()> = lock(&inner_slot).take().expect("the handle should have been stored");
                // A wait without time to search for a cycle is refused as well.
                assert_would_deadlock(own.wait_timeout(Duration::ZERO));
                *lock(&inner_answer) = Some(own.wait());
                inner_stored.open();
            })
            .expect("the engine should be open");
        *lock(&slot) = Some(handle);
        stored.open();
        engine.wait_for_all().expect("no operation should fail");
        let answer = lock(&answer).take().expect("the operation should have run");
        assert_would_deadlock(answer);
    });
}

/// The waiting operation runs inside a push by the operation that holds the variable.
#[test]
fn waiting_for_a_variable_of_an_outer_operation_would_deadlock() {
    on_kinds(&KINDS, 1, |engine| {
        let variable = engine.token();
        let (sender, receiver) = mpsc::channel();
        let own = variable.clone();
        engine
            .push_sync(
                move |cx| {
                    let (inner, own) = (cx.engine(), own.clone());
                    // The operation starts on this thread, inside the one that pushes it.
                    cx.engine()
                        .op("nested")
                        .eager()
                        .push_sync(move |_| {
                            // A wait without time to search for a cycle is refused as well.
                            let at_once = inner.wait_for_var_timeout(&own, Duration::ZERO);
                            sender
                                .send([at_once, inner.wait_for_var(&own)])
                                .expect("the test should receive the result");
                        })
                        .expect("the engine should be open");
                },
                [],
                [&variable],
            )
            .expect("the engine should be open");
        receiver.recv_timeout(PATIENCE).expect("the wait should end").into_iter().for_each(assert_would_deadlock);
        engine.wait_for_all().expect("no operation should fail");
    });
}

#[test]
fn waiting_for_all_inside_an_operation_would_deadlock() {
    on_kinds(&KINDS, 1, |engine| {
        let inner = engine.clone();
        let outer = engine.op("outer").submit((), move |()| {
            assert_would_deadlock(inner.wait_for_all());
            assert_would_deadlock(inner.wait_for_all_timeout(Duration::MAX));
            assert_would_deadlock(block_on(inner.wait_for_all_async()));
        });
        outer.expect("the engine should be open").wait().expect("no operation should fail");
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// Another engine's operations do not include the waiting one.
#[test]
fn an_operation_may_wait_for_all_operations_of_another_engine() {
    on_kinds(&KINDS, 1, |here| {
        let there = engine(EngineKind::PerDevice, 1);
        let count = Arc::new(AtomicUsize::new(0));
        let (inner, inner_count) = (there.clone(), Arc::clone(&count));
        let outer = here.op("outer").submit((), move |()| {
            for _ in 0..100 {
                let count = Arc::clone(&inner_count);
                inner.op("").push((), move |()| _ = count.fetch_add(1, SeqCst)).expect("the engine should be open");
            }
            inner.wait_for_all().expect("no operation should fail");
            inner_count.load(SeqCst)
        });
        assert_eq!(outer.expect("the engine should be open").wait().expect("no operation should fail"), 100);
    });
}

/// While an operation shuts down another engine, the operation's worker must run other operations, since the other
/// engine's operations may wait for them.
#[test]
fn an_operation_that_shuts_down_another_engine_frees_its_worker() {
    watched(|| {
        let (here, there) = (engine(EngineKind::Pooled, 1), engine(EngineKind::Pooled, 1));
        let (queued, shutdown_started) = (Gate::new(), Gate::new());
        // An operation of `there` needs one of `here`, queued behind the operation that shuts `there` down.
        let (inner_queued, inner_here) = (queued.clone(), here.clone());
        there
            .op("needs")
            .push((), move |()| {
                inner_queued.pass();
                inner_here
                    .op("needed")
                    .submit((), |()| 1)
                    .expect("the engine should be open")
                    .wait()
                    .expect("no operation should fail");
            })
            .expect("the engine should be open");
        let (passed, inner_there) = (shutdown_started.clone(), there.clone());
        let shutdown = here
            .op("shut down")
            .submit((), move |()| {
                passed.open();
                inner_there.shutdown(Shutdown::Drain, Some(Duration::from_secs(20)))
            })
            .expect("the engine should be open");
        shutdown_started.pass();
        queued.open();
        assert_eq!(shutdown.wait().expect("no operation should fail"), Ok(()));
    });
}

/// Four threads push and wait on the same three variables.
#[test]
fn pushes_and_waits_of_every_form_do_not_deadlock() {
    on_kinds(&KINDS, 2, |engine| {
        let variables: Vec<_> = (0..3).map(|_| engine.var(0_u64)).collect();
        thread::scope(|scope| {
            for pusher in 0..4 {
                let (engine, variables) = (&engine, &variables);
                scope.spawn(move || {
                    for number in 0..300 {
                        let (a, b) = (&variables[(pusher + number) % 3], &variables[(pusher + 2 * number + 1) % 3]);
                        if (pusher + number) % 3 == (pusher + 2 * number + 1) % 3 {
                            engine.op("").push(a.write(), |a| *a += 1).unwrap();
                        } else {
                            engine.op("").push((a.write(), b.read()), |(a, _)| *a += 1).unwrap();
                        }
                        match number % 6 {
                            0 => engine.wait_for_var(a).unwrap(),
                            1 => engine.wait_to_read(b).unwrap(),
                            2 => engine.wait_for_all().unwrap(),
                            3 => block_on(engine.wait_for_var_async(b)).unwrap(),
                            4 => block_on(engine.wait_for_all_async()).unwrap(),
                            _ => drop(engine.get(a).unwrap()),
                        }
                    }
                });
            }
        });
        let total: u64 = variables.iter().map(|variable| engine.get(variable).unwrap()).sum();
        assert_eq!(total, 1200);
    });
}

/// While two operations wait, two others can meet only if spare threads run both workers.
#[test]
fn workers_whose_operations_wait_are_replaced() {
    on_kinds(&THREADED, 2, |engine| {
        let (signal, meeting) = (engine.token(), Meeting::new(2));
        let gate = hold(&engine, &signal);
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let (engine, signal) = (engine.clone(), signal.clone());
                (engine.clone(), move |()| engine.wait_for_var(&signal))
            })
            .map(|(engine, wait)| engine.op("wait").submit((), wait).expect("the engine should be open"))
            .collect();
        let meet: Vec<_> = (0..2)
            .map(|_| {
                let meeting = meeting.clone();
                engine
                    .op("meet")
                    .submit((), move |()| meeting.join_within(PATIENCE))
                    .expect("the engine should be open")
            })
            .collect();
        for handle in meet {
            assert!(
                handle.wait().expect("no operation should fail"),
                "no spare thread runs the worker of a waiting operation"
            );
        }
        gate.open();
        for waiter in waiters {
            waiter.wait().expect("no operation should fail").expect("the wait should not fail");
        }
    });
}

/// A waker runs on the worker that completes the operation. A blocking waker blocks that worker, but another worker
/// runs the newly ready operations.
#[test]
fn a_blocked_waker_does_not_delay_ready_operations() {
    struct Blocks {
        reached: Gate,
        released: Gate,
    }
    impl Wake for Blocks {
        fn wake(self: Arc<Self>) {
            self.reached.open();
            self.released.pass();
        }
    }
    on_kinds(&THREADED, 2, |engine| {
        let (one, other) = (engine.token(), engine.token());
        let (gate, blocks) = (Gate::new(), Blocks { reached: Gate::new(), released: Gate::new() });
        let (inside, released, reached) = (gate.clone(), blocks.released.clone(), blocks.reached.clone());
        engine.op("first").writes([&one, &other]).push_sync(move |_| inside.pass()).expect("the engine should be open");
        let mut wait = pin!(engine.wait_for_var_async(&one));
        let waker = Waker::from(Arc::new(blocks));
        assert!(
            wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(),
            "the wait ended while the first operation held the variable"
        );
        // The operation that releases the waker becomes ready together with the wait.
        let next = engine.op("next").writes([&other]).push_sync(move |_| {
            reached.pass();
            released.open();
        });
        next.expect("the engine should be open");
        gate.open();
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// The engine cannot see that the operation blocks, so another worker must take the operation that the blocked one
/// pushed.
#[test]
fn a_pushed_operation_runs_while_its_pusher_blocks() {
    on_kinds(&THREADED, 2, |engine| {
        let inside = engine.clone();
        let handle = engine.op("pushes").submit((), move |()| {
            let gate = Gate::new();
            let open = gate.clone();
            inside.push_sync(move |_| open.open(), [], []).expect("the engine should be open");
            gate.pass_within(SOON)
        });
        assert!(
            handle.expect("the engine should be open").wait().expect("no operation should fail"),
            "the pushed operation did not run while its pusher blocked"
        );
    });
}

// ------------------------------------------------------------------------- functions deferred by other crates ----

/// Functions that other crates defer in crossbeam's default collector may run on any thread that pins it, even while a
/// worker steals from another worker's deque. Here, they push and wait.
#[test]
fn functions_deferred_by_other_crates_may_push_and_wait_on_any_thread() {
    /// The number of deferred functions that the collector passes on together.
    const BAG: usize = 64;
    watched_for(AWHILE, || {
        let engine = engine(EngineKind::PerDevice, 2);
        let [deferred, called, pushed, ran] = [(); 4].map(|()| Arc::new(AtomicUsize::new(0)));
        let end = Instant::now() + Duration::from_millis(1500);
        while Instant::now() < end {
            // This thread rarely pins, so workers call most of the deferred functions.
            let guard = epoch::pin();
            for waits in [false, true] {
                deferred.fetch_add(1, SeqCst);
                let (engine, called) = (engine.clone(), Arc::clone(&called));
                let (pushed, ran) = (Arc::clone(&pushed), Arc::clone(&ran));
                guard.defer(move || {
                    let token = engine.token();
                    let op = engine.op("deferred").writes([&token]);
                    op.push_sync(move |_| _ = ran.fetch_add(1, SeqCst)).expect("the engine should be open");
                    pushed.fetch_add(1, SeqCst);
                    // The wait has a time limit, since it might otherwise run the operation in place.
                    match waits.then(|| engine.wait_for_var_timeout(&token, PATIENCE)) {
                        None | Some(Ok(()) | Err(WaitError::WouldDeadlock(_))) => {}
                        other => panic!("{other:?}"),
                    }
                    drop((token, engine));
                    called.fetch_add(1, SeqCst);
                });
            }
            (2..BAG).for_each(|_| guard.defer(|| ()));
            drop(guard);
            // Workers steal these operations, find nothing once all have run, and park.
            for _ in 0..4 {
                engine.push_sync(|_| std::hint::spin_loop(), [], []).expect("the engine should be open");
            }
            thread::sleep(Duration::from_micros(100));
            // Each round checks this, because the pushes of a later round would wake a worker that had overlooked an
            // operation.
            eventually("all pushed operations have run", || ran.load(SeqCst) == pushed.load(SeqCst));
        }
        assert!(called.load(SeqCst) > 0, "no deferred function was called");
        eventually("all deferred functions have been called", || {
            epoch::pin().flush();
            called.load(SeqCst) == deferred.load(SeqCst)
        });
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// The deferred function can run inside a push by an operation, while the worker's deque grows.
#[test]
fn functions_deferred_by_other_crates_may_push_while_a_deque_grows() {
    const PUSHES: usize = 600;
    let check = |engine: Engine| {
        let (ran, deferred) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (inside, ran_inside, deferred_inside) = (engine.clone(), Arc::clone(&ran), Arc::clone(&deferred));
        let pushes = move |_: &OpContext<'_>| {
            let (outside, deferred) = (inside.clone(), Arc::clone(&deferred_inside));
            let guard = epoch::pin();
            guard.defer(move || {
                let pushed = outside.push_sync(move |_| _ = deferred.fetch_add(1, SeqCst), [], []);
                pushed.expect("the engine should be open");
            });
            guard.flush();
            drop(guard);
            for _ in 0..PUSHES {
                let ran = Arc::clone(&ran_inside);
                inside.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], []).expect("the engine should be open");
            }
        };
        engine.push_sync(pushes, [], []).expect("the engine should be open");
        eventually("all pushed operations have run", || ran.load(SeqCst) == PUSHES);
        // Any thread may run the deferred function, but if no other thread does, this thread must.
        eventually("the deferred function has run", || {
            epoch::pin().flush();
            deferred.load(SeqCst) == 1
        });
        engine.wait_for_all().expect("no operation should fail");
    };
    for kind in THREADED {
        watched_for(AWHILE, move || check(engine(kind, 1)));
    }
}

/// A wait times out, and its variable's failure is cleared. The wait's operation then drops the last clone of the
/// error, whose drop is program code that now runs inside an operation.
#[test]
fn the_drop_of_an_error_in_the_operation_of_a_wait_cannot_wait_for_all() {
    #[derive(Debug)]
    struct Waits(Engine, mpsc::Sender<Result<(), WaitError>>);
    impl std::fmt::Display for Waits {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("waits in its drop")
        }
    }
    impl std::error::Error for Waits {}
    impl Drop for Waits {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.wait_for_all());
        }
    }
    on_kinds(&THREADED, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let (variable, gate, inside) = (engine.token(), Gate::new(), engine.clone());
        let opened = gate.clone();
        let fails = move |_: &OpContext<'_>| {
            opened.pass();
            Err::<(), _>(Waits(inside, sender))
        };
        engine.push_sync(fails, [], [&variable]).expect("the engine should be open");
        let waited = engine.wait_for_var_timeout(&variable, Duration::from_millis(1));
        assert!(matches!(waited, Err(WaitError::TimedOut)), "{waited:?}");
        engine.clear_error(&variable).expect("the engine should be open");
        gate.open();
        let result = receiver.recv_timeout(SOON).expect("the error should be dropped, and its drop should return");
        assert!(matches!(result, Err(WaitError::WouldDeadlock(_))), "{result:?}");
        engine.wait_for_all().expect("the failure should be cleared");
    });
}

thread_local!(static KEPT: RefCell<Option<Engine>> = const { RefCell::new(None) });

/// The last handle that keeps the engine open is dropped at the end of a worker's thread, for which the shutdown waits.
#[test]
fn a_handle_in_a_thread_local_of_a_worker_does_not_block_a_shutdown() {
    on_kinds(&THREADED, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let own = engine.clone();
        let keep = move |cx: &OpContext<'_>| {
            KEPT.set(Some(own));
            sender.send(cx.engine()).expect("the test should receive the handle");
        };
        engine.push_sync(keep, [], []).expect("the engine should be open");
        let uncounted = receiver.recv().expect("the operation should run");
        engine.wait_for_all().expect("no operation should fail");
        drop(engine);
        uncounted.shutdown(Shutdown::Drain, None).expect("the shutdown should end");
    });
}

/// An operation pushes thousands of operations while deferred functions panic on workers. No operation is lost.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn functions_deferred_by_other_crates_may_panic_while_an_operation_pushes() {
    child_succeeds("in_a_child_deferred_functions_panic_while_an_operation_pushes");
}

#[test]
#[ignore = "run by another test in a separate process, since its panics would also occur on the workers of other tests"]
fn in_a_child_deferred_functions_panic_while_an_operation_pushes() {
    const PUSHES: usize = 3_000;
    if !is_child() {
        return;
    }
    let check = |engine: Engine| {
        let ran = Arc::new(AtomicUsize::new(0));
        let (inside, ran_inside, panics) = (engine.clone(), Arc::clone(&ran), DeferredPanics::default());
        let functions: Vec<_> = (0..200).map(|_| panics.function()).collect();
        let pushes = move |_: &OpContext<'_>| {
            // These functions are deferred during one pin, while none of them can run. Later pins on any thread run
            // them.
            let guard = epoch::pin();
            functions.into_iter().for_each(|function| guard.defer(function));
            drop(guard);
            for _ in 0..PUSHES {
                let ran = Arc::clone(&ran_inside);
                inside.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], []).expect("the engine should be open");
            }
        };
        engine.push_sync(pushes, [], []).expect("the engine should be open");
        eventually("all pushed operations have run", || ran.load(SeqCst) == PUSHES);
        engine.wait_for_all().expect("no operation should fail");
    };
    for kind in THREADED {
        watched_for(AWHILE, move || check(engine(kind, 1)));
    }
}

/// A deferred function panics while a worker searches. Neither the worker nor its wake-ups are lost.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn functions_deferred_by_other_crates_may_panic_on_any_thread() {
    child_succeeds("in_a_child_deferred_functions_panic");
}

#[test]
#[ignore = "run by another test in a separate process, since its panics would also occur on the workers of other tests"]
fn in_a_child_deferred_functions_panic() {
    const PANICS: usize = 20;
    if !is_child() {
        return;
    }
    on_kinds(&THREADED, 2, |engine| {
        let (panics, ran) = (DeferredPanics::default(), Arc::new(AtomicUsize::new(0)));
        let mut pushed = 0;
        let end = Instant::now() + Duration::from_secs(20);
        while panics.count() < PANICS && Instant::now() < end {
            // The function may run on any thread that pins but panics only on a worker, so the loop defers many such
            // functions.
            epoch::pin().defer(panics.function());
            epoch::pin().flush();
            for _ in 0..400 {
                let ran = Arc::clone(&ran);
                engine.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], []).expect("the engine should be open");
                pushed += 1;
            }
            // The sleep lets workers park occasionally.
            thread::sleep(Duration::from_micros(200));
        }
        println!("{} panics", panics.count());
        for _ in 0..50 {
            let token = engine.token();
            engine.op("after").writes([&token]).push_sync(|_| {}).expect("the engine should be open");
            engine.wait_for_var_timeout(&token, Duration::from_secs(10)).expect("a worker should run the operation");
        }
        engine.wait_for_all().expect("no operation should fail");
        assert_eq!(ran.load(SeqCst), pushed);
    });
}

// ------------------------------------------------------------------------- operations that a thread has deferred ----

#[test]
#[cfg_attr(miri, ignore = "uses much of the stack")]
fn a_deferred_operation_runs_when_its_future_is_polled() {
    watched(|| {
        let engine = engine(EngineKind::Naive, 1);
        at_the_first_deferred_push(&engine, |next| block_on(next).unwrap());
        let (inside, var) = (engine.clone(), engine.token());
        at_the_first_deferred_push(&engine, move |next| {
            inside.op("after").writes([&var]).push_sync(|_| ()).unwrap();
            block_on(inside.wait_for_var_async(&var)).unwrap();
            next.wait().unwrap();
        });
    });
}

#[test]
#[cfg_attr(miri, ignore = "uses much of the stack")]
fn a_deferred_operation_runs_when_the_shutdown_of_another_engine_waits_for_it() {
    for drops in [false, true] {
        watched(move || {
            at_the_first_deferred_push(&engine(EngineKind::Naive, 1), move |next| {
                let other = engine(EngineKind::PerDevice, 1);
                other.op("waits").push((), move |()| next.wait().unwrap()).unwrap();
                if !drops {
                    other.shutdown(Shutdown::Drain, None).unwrap();
                }
            });
        });
    }
}

/// Dropping the last handle inside an operation returns without waiting, so neither operation waits for the other.
#[test]
fn operations_of_two_engines_may_drop_the_last_handles_of_each_other() {
    on_kinds(&THREADED, 1, |one| {
        let other = engine(one.kind(), 1);
        let (sender, observers) = mpsc::channel();
        let meeting = Arc::new(Barrier::new(2));
        let (drops, pushes) = (Mutex::new(Some(other.clone())), [one.clone(), other]);
        let drops = [drops, Mutex::new(Some(one))];
        for (engine, last) in pushes.into_iter().zip(drops) {
            let (meeting, sender) = (Arc::clone(&meeting), sender.clone());
            let f = move |cx: &OpContext<'_>| {
                sender.send(cx.engine()).unwrap();
                meeting.wait();
                // The sleep gives the program time to drop its own handles.
                thread::sleep(common::MOMENT);
                drop(lock(&last).take());
            };
            engine.push_sync(f, [], []).unwrap();
        }
        for observer in observers.iter().take(2) {
            eventually("the engine ends", || observer.shutdown(Shutdown::Drain, Some(SOON)).is_ok());
        }
    });
}

/// Loses a completion to a panic.
fn lose(done: raddle::Completion) {
    let lost = catch_unwind(AssertUnwindSafe(|| {
        let _done = done;
        resume_unwind(Box::new("lost"));
    }));
    assert!(lost.is_err());
}

/// A panic drops the completion. The function catches the panic, then waits through another engine for its own
/// operation.
#[test]
fn a_lost_completion_ends_waits_through_another_engine() {
    type Wait = fn(&Engine, OpHandle<()>);
    let waits: [Wait; 3] = [
        |_, waits| waits.wait().unwrap(),
        |other, _| other.wait_for_all().unwrap(),
        |other, _| other.shutdown(Shutdown::Drain, None).unwrap(),
    ];
    for wait in waits {
        on_kinds(&KINDS, 1, move |own| {
            let (other, token, inside) = (engine(EngineKind::PerDevice, 1), own.token(), own.clone());
            let var = token.clone();
            let (sender, receiver) = mpsc::channel();
            let loses = move |_: &OpContext<'_>, done| {
                lose(done);
                let (own, own_var) = (inside.clone(), var.clone());
                let waits = other.op("waits").submit((), move |()| assert!(own.wait_for_var(&own_var).is_err()));
                wait(&other, waits.unwrap());
                sender.send(()).unwrap();
            };
            own.op("loses").writes([&token]).push_async_any(raddle::cx(), loses).unwrap();
            receiver.recv_timeout(SOON).expect("the wait should end");
        });
    }
}

/// The function that has lost the completion waits for an operation behind its own.
#[test]
fn a_lost_completion_ends_the_wait_for_an_operation_behind_it() {
    on_kinds(&KINDS, 1, |engine| {
        let (token, inside) = (engine.token(), engine.downgrade());
        let (var, (sender, receiver)) = (token.clone(), mpsc::channel());
        let loses = move |_: &OpContext<'_>, done| {
            lose(done);
            let behind = inside.op("behind").reads([&var]).submit((), |()| ()).unwrap();
            sender.send(behind.wait()).unwrap();
        };
        engine.op("loses").writes([&token]).push_async_any(raddle::cx(), loses).unwrap();
        let waited = receiver.recv_timeout(SOON).expect("the wait should end");
        assert!(matches!(waited, Err(WaitError::Failed(_))), "{waited:?}");
    });
}

// ------------------------------------------------------------------------------ waits that would never return ----

/// The time within which a wait that would otherwise never return must fail with an error.
const FOUND: Duration = Duration::from_secs(if cfg!(raddle_tsan) { 20 } else { 5 });

/// Returns the names of the waiting and the awaited operation, taken from the error of a wait that would never return.
#[track_caller]
fn deadlock<T: std::fmt::Debug>(result: Result<T, WaitError>) -> (String, String) {
    match result {
        Err(WaitError::WouldDeadlock(deadlock)) => {
            let text = deadlock.to_string();
            // A variable was not pushed.
            let pushes = if text.contains("wait for variable") { 1 } else { 2 };
            assert_eq!(text.matches(concat!("pushed at ", file!(), ":")).count(), pushes, "{text}");
            (deadlock.waiting().unwrap().to_owned(), deadlock.awaited().unwrap().to_owned())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wait_for_an_operation_behind_the_waiting_one_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, inner) = (engine.var(0), engine.downgrade());
        for writes in [false, true] {
            let again = value.clone();
            let inner = inner.clone();
            let outer = engine.op("outer").submit(value.write(), move |_| {
                let start = Instant::now();
                let behind = if writes {
                    inner.op("behind").submit(again.write(), |value| *value)
                } else {
                    inner.op("behind").submit(again.read(), |value| *value)
                };
                (behind.unwrap().wait(), start.elapsed())
            });
            let (waited, took) = outer.unwrap().wait().unwrap();
            assert_eq!(deadlock(waited), ("outer".into(), "behind".into()));
            assert!(took < FOUND, "{took:?}");
        }
        // A reader holds back only mutations.
        let again = value.clone();
        let outer = engine.op("outer").submit(value.read(), move |_| {
            let beside = inner.op("beside").submit(again.read(), |value| *value).unwrap().wait();
            let behind = inner.op("behind").submit(again.write(), |value| *value).unwrap().wait();
            (beside.unwrap(), behind)
        });
        let (beside, behind) = outer.unwrap().wait().unwrap();
        assert_eq!((beside, deadlock(behind)), (0, ("outer".into(), "behind".into())));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_wait_for_an_operation_behind_the_waiting_one_through_a_chain_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        for length in [2, 3, 50] {
            let variables: Vec<_> = (0..length).map(|_| engine.var(0)).collect();
            let (inner, inside) = (engine.downgrade(), variables.clone());
            let outer = engine.op("outer").submit(variables[0].write(), move |_| {
                let mut last = None;
                for pair in inside.windows(2) {
                    last = Some(inner.op("link").submit((pair[0].read(), pair[1].write()), |_| ()).unwrap());
                }
                let by_handle = last.unwrap().wait();
                let by_variable = inner.wait_for_var(&inside[length - 1]);
                let by_value = inner.get(&inside[length - 1]);
                let in_time = inner.get_timeout(&inside[length - 1], PATIENCE);
                (by_handle, by_variable, by_value.map(drop), in_time.map(drop))
            });
            let (by_handle, by_variable, by_value, in_time) = outer.unwrap().wait().unwrap();
            assert_eq!(deadlock(by_handle), ("outer".into(), "link".into()));
            assert_eq!(deadlock(by_variable).0, "outer");
            assert_eq!(deadlock(by_value).0, "outer");
            assert_eq!(deadlock(in_time).0, "outer");
        }
        engine.wait_for_all().unwrap();
    });
}

/// The awaited operation reads a variable behind a writer and behind another reader. Both of these wait for the
/// waiting operation, each because of another variable, and the search may reach either first.
#[test]
fn a_wait_for_one_of_several_readers_behind_a_writer_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        for swapped in [false, true] {
            let (x, y, read) = (engine.var(0), engine.var(0), engine.var(0));
            let inner = engine.downgrade();
            let (held, between) = ((x.clone(), y.clone()), if swapped { (y, x) } else { (x, y) });
            let outer = engine.op("outer").submit((held.0.write(), held.1.write()), move |_| {
                inner.op("writer").push((between.0.write(), read.write()), |_| ())?;
                inner.op("reader").push((between.1.read(), read.read()), |_| ())?;
                let behind = ["first", "second"].map(|name| inner.op(name).submit(read.read(), |_| ()));
                Ok::<_, PushError>(behind.map(|handle| handle.unwrap().wait_timeout(FOUND)))
            });
            let [first, second] = outer.unwrap().wait().unwrap().unwrap();
            assert_eq!(deadlock(first), ("outer".into(), "first".into()));
            assert_eq!(deadlock(second), ("outer".into(), "second".into()));
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn the_last_of_the_operations_that_wait_for_each_other_is_refused() {
    on_kinds(&THREADED, 2, |engine| {
        for _ in 0..5 {
            let (a, b) = (engine.var(0), engine.var(0));
            let meeting = Meeting::new(2);
            // Each of the two holds a variable and waits for an operation queued behind the holder of the other
            // variable.
            let crossing = |name: &'static str, own: &raddle::Var<i32>, other: &raddle::Var<i32>, pause: u64| {
                let (inner, other, meeting) = (engine.downgrade(), other.clone(), meeting.clone());
                engine.op(name).submit(own.write(), move |_| {
                    meeting.join();
                    thread::sleep(Duration::from_millis(pause));
                    inner.op("behind").submit(other.write(), |value| *value += 1).unwrap().wait()
                })
            };
            let (first, second) = (crossing("first", &a, &b, 0).unwrap(), crossing("second", &b, &a, 30).unwrap());
            let second = second.wait().unwrap();
            assert_eq!(deadlock(second), ("second".into(), "behind".into()));
            first.wait().unwrap().expect("the older wait should return");
            engine.wait_for_all().unwrap();
        }
    });
}

/// Each of the two operations has started. One waits for the other, which waits for a variable that the first reads.
#[test]
fn a_wait_for_a_variable_whose_reader_waits_for_the_waiting_operation_is_refused() {
    on_kinds(&THREADED, 2, |engine| {
        for pauses in [[0, 30], [30, 0]].map(|pauses| pauses.map(Duration::from_millis)) {
            let (value, meeting) = (engine.var(0), Meeting::new(2));
            let (inner, met, awaited) = (engine.downgrade(), meeting.clone(), value.token().clone());
            let waits = engine.op("waits").submit((), move |()| {
                met.join();
                thread::sleep(pauses[0]);
                inner.wait_for_var(&awaited)
            });
            let reader = engine.op("reader").submit(value.read(), move |_| {
                meeting.join();
                thread::sleep(pauses[1]);
                waits.unwrap().wait()
            });
            // Either wait may be refused.
            assert_would_deadlock(reader.unwrap().wait().unwrap().and_then(|inner| inner));
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn a_wait_inside_with_for_an_operation_behind_it_is_refused() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        let waited = engine.with(&value, |_| engine.op("behind").submit(value.write(), |value| *value).unwrap().wait());
        assert!(matches!(waited.unwrap(), Err(WaitError::WouldDeadlock(_))));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_child_that_waits_for_what_stands_behind_its_parent_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, inner) = (engine.var(0), engine.downgrade());
        let again = value.clone();
        let parent = engine.op("parent").with_children().submit((raddle::cx(), value.write()), move |(cx, _)| {
            let wait = move |()| inner.op("behind").submit(again.read(), |value| *value).unwrap().wait();
            cx.child("child").submit((), wait).unwrap()
        });
        let waited = parent.unwrap().wait().unwrap().wait().unwrap();
        assert_eq!(deadlock(waited), ("child".into(), "behind".into()));
    });
}

#[test]
fn a_parent_that_waits_for_its_child_through_another_operation_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        // In the first round, the parent runs `between` in place. In the other rounds, another worker has begun it, and
        // either `between` or the parent waits first.
        for (before_parent, before_between) in [(0, 0), (60, 0), (60, 120)] {
            let inner = engine.downgrade();
            let parent = engine.op("parent").with_children().submit(raddle::cx(), move |cx| {
                let (child, start) = (cx.child("child").submit((), |()| 7).unwrap(), Instant::now());
                let between = inner.op("between").submit((), move |()| {
                    thread::sleep(Duration::from_millis(before_between));
                    child.wait()
                });
                thread::sleep(Duration::from_millis(before_parent));
                (between.unwrap().wait(), start.elapsed())
            });
            let (between, took) = parent.unwrap().wait().unwrap();
            assert!(took < FOUND, "{took:?}");
            match between {
                Ok(child) => assert_eq!(deadlock(child).1, "child"),
                // The parent was the last to begin waiting.
                refused => assert_eq!(deadlock(refused.map(drop)), ("parent".into(), "between".into())),
            }
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn a_child_may_wait_for_an_operation_that_waits_for_another_child() {
    on_kinds(&THREADED, 2, |engine| {
        for _ in 0..5 {
            let inner = engine.downgrade();
            let parent = engine.op("parent").with_children().submit(raddle::cx(), move |cx| {
                let (sender, receiver) = mpsc::channel::<OpHandle<i32>>();
                let waits = cx.child("waits").submit((), move |()| receiver.recv().unwrap().wait()).unwrap();
                let late = cx.child("late").submit((), |()| {
                    thread::sleep(Duration::from_millis(150));
                    7
                });
                // `between` waits for a child before the children start.
                let late = late.unwrap();
                sender.send(inner.op("between").submit((), move |()| late.wait().unwrap()).unwrap()).unwrap();
                thread::sleep(Duration::from_millis(30));
                waits
            });
            assert_eq!(parent.unwrap().wait().unwrap().wait().unwrap().unwrap(), 7);
        }
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_child_that_waits_for_its_parent_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        let parents = |inner: &Engine, kind: u8, child: Waits| {
            let parent = inner.op("parent").with_children();
            match kind {
                0 => parent.submit(raddle::cx(), |cx| cx.child("child").push((), child).unwrap()),
                1 => {
                    let function =
                        |cx: raddle::FutureContext| async move { cx.child("child").push((), child).unwrap() };
                    parent.submit_future(raddle::cx(), function)
                }
                _ => {
                    let child = Mutex::new(Some(child));
                    let run = move |(cx, done): (&OpContext<'_>, raddle::Completion)| {
                        let child = lock(&child).take().unwrap();
                        cx.child("child").push((), child).unwrap();
                        thread::spawn(move || done.complete());
                    };
                    parent.operator((raddle::cx(), completion()), run).unwrap().submit()
                }
            }
        };
        type Waits = Box<dyn FnOnce(()) + Send>;
        for kind in 0..3 {
            let (sender, receiver) = mpsc::channel::<OpHandle<()>>();
            let (tell, waited) = mpsc::channel();
            // The parent's handle is sent after its push has returned, so the child may run before the handle arrives.
            let child: Waits = Box::new(move |()| {
                let waited = receiver.try_recv().map(OpHandle::wait);
                tell.send(waited.ok()).unwrap();
            });
            let gate = engine.token();
            let held = hold(&engine, &gate);
            let inner = engine.downgrade();
            let around = engine.op("around").reads([&gate]).submit((), move |()| {
                let parent = parents(&inner, kind, child).unwrap();
                _ = sender.send(parent);
            });
            held.open();
            around.unwrap().wait().unwrap();
            // `None` means that the child ran before the handle was sent.
            if let Some(waited) = waited.recv_timeout(PATIENCE).unwrap() {
                assert_eq!(deadlock(waited), ("child".into(), "parent".into()));
            }
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn a_wait_for_an_asynchronous_operation_behind_the_waiting_one_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, inner) = (engine.var(0), engine.downgrade());
        let again = value.clone();
        let outer = engine.op("outer").submit(value.write(), move |_| {
            let future = inner.op("future").submit_future(again.read(), |value| async move { *value }).unwrap().wait();
            let operator =
                inner.op("operator").operator((again.write(), completion()), |(_, done)| done.complete()).unwrap();
            (future, operator.submit().unwrap().wait())
        });
        let (future, operator) = outer.unwrap().wait().unwrap();
        assert_eq!(deadlock(future), ("outer".into(), "future".into()));
        assert_eq!(deadlock(operator), ("outer".into(), "operator".into()));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_operation_of_a_scope_that_waits_for_what_the_operation_around_it_holds_back_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, inner) = (engine.var(0), engine.downgrade());
        let again = value.clone();
        let around = engine.op("around").submit(value.write(), move |_| {
            let inner = &inner;
            let again = &again;
            // The wait at the end of the scope blocks this thread, or runs the operation in place.
            inner.scope(|s| {
                let waits = s.op("inside").submit((), move |()| {
                    let behind = inner.op("behind").submit(again.read(), |value| *value).unwrap();
                    (behind.wait(), inner.get(again))
                });
                waits.unwrap().wait()
            })
        });
        match around.unwrap().wait().unwrap().unwrap() {
            Ok((behind, held)) => {
                assert_eq!(deadlock(behind), ("inside".into(), "behind".into()));
                assert_eq!(deadlock(held).0, "inside");
            }
            // The wait at the end of the scope was the last to begin.
            refused => assert_eq!(deadlock(refused.map(drop)), ("around".into(), "inside".into())),
        }
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn long_waits_that_end_are_not_refused() {
    on_kinds(&THREADED, 2, |engine| {
        let (a, b) = (engine.var(0), engine.var(0));
        let inner = engine.downgrade();
        let (a2, b2) = (a.clone(), b.clone());
        // The awaited operations are queued behind slow ones, but not behind the waiting one.
        let outer = engine.op("outer").submit(a.read(), move |_| {
            inner.op("slow").push(b2.write(), |b| {
                thread::sleep(Duration::from_millis(250));
                *b += 1;
            })?;
            let mut reader = inner.op("reader beside").submit((a2.read(), b2.read()), |(_, b)| *b)?;
            inner.op("writer behind").push(a2.write(), |a| *a += 1)?;
            let mut beside = inner.op("after slow").submit(b2.read(), |b| *b)?;
            Ok::<_, PushError>((reader.wait_timeout(PATIENCE), beside.wait_timeout(PATIENCE)))
        });
        let (reader, beside) = outer.unwrap().wait().unwrap().unwrap();
        assert_eq!((reader.unwrap(), beside.unwrap()), (1, 1));
        engine.wait_for_all().unwrap();
    });
}

/// Random operations wait for operations pushed before them, so none can wait forever.
#[test]
fn waits_for_earlier_operations_are_never_refused() {
    on_kinds(&THREADED, 2, |engine| {
        let variables: Vec<_> = (0..6).map(|_| engine.var(0u64)).collect();
        let mut seed = 1u64;
        let mut below = move |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            let mut handles: Vec<OpHandle<()>> = Vec::new();
            for _ in 0..30 {
                let (x, y) = (below(6), below(6));
                let earlier = if handles.is_empty() || below(2) == 0 {
                    None
                } else {
                    Some(handles.swap_remove(below(handles.len())))
                };
                let pause = if below(8) == 0 { 12 } else { 0 };
                let body = move || {
                    thread::sleep(Duration::from_millis(pause));
                    if let Some(earlier) = earlier {
                        earlier.wait().expect("the operation should be queued ahead of the waiter");
                    }
                };
                let pushed = if x == y {
                    engine.op("one").submit(variables[x].write(), move |_| body())
                } else {
                    engine.op("two").submit((variables[x].read(), variables[y].write()), move |_| body())
                };
                handles.push(pushed.unwrap());
            }
            handles.into_iter().for_each(|handle| handle.wait().unwrap());
        }
    });
}
