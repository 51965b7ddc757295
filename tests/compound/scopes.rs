//! Scopes: operations that borrow from the code around the scope.

use raddle_testkit as common;

use std::{
    collections::HashSet,
    mem,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use common::{
    Drops, KINDS, MOMENT, PATIENCE, PanicsOnDrop, THREADED, child_succeeds, eventually, failure, hold, lock, on_kinds,
    program::fewer,
};
use raddle::{
    Device, Engine, EngineKind, PushError, Scope, ScopedVar, Shutdown, WaitError, completion, cx, each,
    error::{Cause, NoAccess},
    gpu::SimulatedGpu,
    stream,
};

type Anything = Result<(), Box<dyn std::error::Error + Send + Sync>>;

// ------------------------------------------------------------------------------------------------- what is lent ----

#[test]
fn operations_borrow_what_lives_longer_than_the_scope() {
    on_kinds(&KINDS, 2, |engine| {
        let input: Vec<u64> = (0..1000).collect();
        let mut sums = [0; 4];
        engine
            .scope(|s| {
                for (part, sum) in input.chunks(250).zip(&mut sums) {
                    s.op("sum").push((), move |()| *sum = part.iter().sum()).unwrap();
                }
            })
            .unwrap();
        assert_eq!(sums.iter().sum::<u64>(), input.iter().sum());
    });
}

#[test]
fn a_lent_value_is_mutated_in_push_order_and_returns_to_the_caller_after_the_scope() {
    on_kinds(&KINDS, 2, |engine| {
        let (mut log, words) = (Vec::new(), ["a", "b", "c", "d"].map(String::from));
        engine
            .scope(|s| {
                let log = s.lend(&mut log);
                for word in &words {
                    s.op("note").push(log.write(), move |log| log.push(word.as_str())).unwrap();
                }
            })
            .unwrap();
        log.push("e");
        assert_eq!(log, ["a", "b", "c", "d", "e"]);
    });
}

#[test]
fn a_slice_is_lent_in_parts() {
    on_kinds(&KINDS, 2, |engine| {
        let mut cells = vec![1u32; 64];
        engine
            .scope(|s| {
                let parts: Vec<_> = cells.chunks_mut(16).map(|part| s.lend(part)).collect();
                for _ in 0..10 {
                    for part in &parts {
                        s.op("double")
                            .push(part.write(), |part| part.iter_mut().for_each(|c| *c = *c * 2 % 1001))
                            .unwrap();
                    }
                    let all = each(parts.iter().map(|part| part.write()));
                    s.op("rotate").push(all, |parts| parts.into_iter().for_each(|part| part.rotate_left(1))).unwrap();
                }
            })
            .unwrap();
        assert!(cells.iter().all(|&cell| cell == 1024 % 1001), "{cells:?}");
    });
}

#[test]
fn variables_of_the_engine_and_of_the_scope_order_an_operation_together() {
    on_kinds(&KINDS, 2, |engine| {
        let total = engine.var(0).named("total");
        let mut seen = Vec::new();
        for round in 0..20 {
            engine.op("before").push(total.write(), |total| *total += 1).unwrap();
            engine
                .scope(|s| {
                    let seen = s.lend(&mut seen);
                    s.op("see").push((total.read(), seen.write()), |(total, seen)| seen.push(*total)).unwrap();
                    s.op("add").push((seen.read(), total.write()), |(seen, total)| *total += seen.len()).unwrap();
                })
                .unwrap();
            assert_eq!(seen.len(), round + 1);
        }
        assert_eq!(engine.get(&total).unwrap(), 20 + (1..=20).sum::<usize>());
        assert_eq!(&seen[..3], [1, 3, 6]);
    });
}

#[test]
fn readers_of_a_variable_of_a_scope_run_at_the_same_time() {
    on_kinds(&THREADED, 2, |engine| {
        let barrier = std::sync::Barrier::new(2);
        engine
            .scope(|s| {
                let value = s.var(7);
                for _ in 0..2 {
                    s.op("meet")
                        .push(value.read(), |value| {
                            barrier.wait();
                            assert_eq!(*value, 7);
                        })
                        .unwrap();
                }
            })
            .unwrap();
    });
}

#[test]
fn untyped_variables_of_the_engine_order_operations_of_a_scope() {
    on_kinds(&KINDS, 2, |engine| {
        let (disk, log) = (engine.token(), Mutex::new(Vec::new()));
        engine
            .scope(|s| {
                for n in 0..10 {
                    let log = &log;
                    s.op("note").writes([&disk]).push((), move |()| lock(log).push(n)).unwrap();
                }
                s.op("read").reads([&disk]).push((), |()| lock(&log).push(10)).unwrap();
                s.op("overwrite").overwrites([&disk]).push((), |()| lock(&log).push(11)).unwrap();
            })
            .unwrap();
        assert_eq!(log.into_inner().unwrap(), (0..12).collect::<Vec<_>>());
        assert_eq!(disk.version(), 11);
    });
}

// ------------------------------------------------------------------------------------------ how a scope ends ----

#[test]
fn a_scope_ends_after_operations_that_its_operations_push() {
    on_kinds(&KINDS, 2, |engine| {
        let count = AtomicUsize::new(0);
        fn spread<'scope>(s: &'scope Scope<'scope, '_>, depth: usize, count: &'scope AtomicUsize) {
            s.op("spread")
                .push((), move |()| {
                    count.fetch_add(1, Relaxed);
                    if depth > 0 {
                        thread::sleep(Duration::from_micros(200));
                        (0..3).for_each(|_| spread(s, depth - 1, count));
                    }
                })
                .unwrap();
        }
        engine.scope(|s| spread(s, 4, &count)).unwrap();
        assert_eq!(count.into_inner(), 1 + 3 + 9 + 27 + 81);
    });
}

#[test]
fn captures_and_values_are_dropped_before_the_scope_ends() {
    struct OnDrop<'f>(&'f AtomicUsize);
    impl Drop for OnDrop<'_> {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(1));
            self.0.fetch_add(1, Relaxed);
        }
    }
    on_kinds(&KINDS, 2, |engine| {
        let dropped = AtomicUsize::new(0);
        let made = || OnDrop(&dropped);
        let failed = engine.scope(|s| {
            let (value, broken) = (s.var(made()), s.var(0));
            let captured = made();
            s.op("keeps").push(value.write(), move |_| _ = &captured).unwrap();
            s.op("breaks").try_push(broken.write(), |_| Err("broken".into())).unwrap();
            let captured = made();
            s.op("is skipped").push(broken.write(), move |_| _ = &captured).unwrap();
            let made = &made;
            // One result's handle is dropped, and the other result is taken.
            drop(s.op("returns").submit((), move |()| made()).unwrap());
            let handle = s.op("returns").submit((), move |()| made()).unwrap();
            drop(handle.wait().unwrap());
            let captured = made();
            let handle = s.op("is cancelled").submit(value.write(), move |_| _ = &captured).unwrap();
            handle.cancel();
        });
        assert!(failed.is_err());
        assert_eq!(dropped.load(Relaxed), 6);
    });
}

#[test]
fn drops_of_values_may_push_to_the_scope_which_waits_for_these_operations() {
    /// A value whose drop tries to push on variables whose values have been dropped, pushes to its scope, and creates
    /// another such value.
    struct Pushes<'scope, 'env> {
        s: &'scope Scope<'scope, 'env>,
        borrowed: &'scope AtomicUsize,
        others: Vec<ScopedVar<'scope, Vec<usize>>>,
        depth: usize,
    }
    impl Drop for Pushes<'_, '_> {
        fn drop(&mut self) {
            let (s, borrowed, depth) = (self.s, self.borrowed, self.depth);
            for other in &self.others {
                let refused = s.op("late").push(other.write(), |_| unreachable!("the variable's value is gone"));
                assert!(matches!(refused, Err(PushError::Variable(NoAccess::Deleted, _))), "{refused:?}");
            }
            let slow = move |()| {
                thread::sleep(Duration::from_millis(2));
                borrowed.fetch_add(1, Relaxed);
            };
            s.op("slow").push((), slow).unwrap();
            if depth > 0 {
                s.var(Pushes { s, borrowed, others: Vec::new(), depth: depth - 1 });
            }
        }
    }
    on_kinds(&KINDS, 2, |engine| {
        let borrowed = AtomicUsize::new(0);
        engine
            .scope(|s| {
                let before = s.var(vec![1]);
                let after = s.var(vec![2]);
                s.var(Pushes { s, borrowed: &borrowed, others: vec![before, after], depth: 3 });
            })
            .unwrap();
        assert_eq!(borrowed.load(Relaxed), 4);
    });
}

#[test]
fn a_forgotten_handle_keeps_nothing_alive_but_its_result() {
    on_kinds(&KINDS, 2, |engine| {
        let drops = Drops::new();
        let text = String::from("weft");
        engine
            .scope(|s| {
                let (captured, text) = (drops.make(), text.as_str());
                let result = s.op("borrow").submit((), move |()| {
                    captured.touch();
                    text
                });
                mem::forget(result.unwrap());
            })
            .unwrap();
        drop(text);
        drops.assert_all_gone();
    });
}

#[test]
fn a_panic_in_the_function_is_resumed_when_the_operations_have_ended() {
    on_kinds(&KINDS, 2, |engine| {
        let done = AtomicBool::new(false);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            engine.scope(|s| {
                s.op("slow")
                    .push((), |()| {
                        thread::sleep(MOMENT);
                        done.store(true, Relaxed);
                    })
                    .unwrap();
                if true {
                    panic!("the function");
                }
            })
        }));
        assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "the function");
        assert!(done.into_inner());
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_panic_in_the_drop_of_a_value_is_resumed_after_the_other_drops() {
    on_kinds(&KINDS, 2, |engine| {
        let drops = Drops::new();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            engine.scope(|s| {
                s.var(drops.make());
                s.var(PanicsOnDrop("the value"));
                s.var(drops.make());
            })
        }));
        assert!(panicked.is_err());
        drops.assert_all_gone();
        engine.wait_for_all().unwrap();
    });
}

/// The drop of one value creates another value. Its drop panics as well, as does that of a value that already exists.
#[test]
fn the_panic_of_the_value_that_was_dropped_first_is_resumed() {
    struct Panics<'scope, 'env>(&'scope Scope<'scope, 'env>);
    impl Drop for Panics<'_, '_> {
        fn drop(&mut self) {
            self.0.var(PanicsOnDrop("the second value"));
            panic_any("the first value");
        }
    }
    on_kinds(&KINDS, 2, |engine| {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            engine.scope(|s| {
                s.var(Panics(s));
                s.var(PanicsOnDrop("the last value"));
            })
        }));
        assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "the first value");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_scope_returns_the_failure_that_comes_first_in_push_order() {
    on_kinds(&KINDS, 2, |engine| {
        let result = engine.scope(|s| {
            s.op("late").try_push((), |()| {
                thread::sleep(MOMENT);
                Err("late".into())
            })?;
            s.op("early").push((), |()| panic!("early"))
        });
        assert_eq!(failure(result).name(), "late");
        engine.wait_for_all().expect("no failure should be left");
        assert_eq!(engine.scope(|_| 7).unwrap(), 7);
    });
}

#[test]
fn a_wait_for_the_group_of_a_scope_reports_its_failure_once() {
    on_kinds(&KINDS, 2, |engine| {
        let result = engine.scope(|s| {
            s.op("fails").try_push((), |()| Err("no".into())).unwrap();
            failure(s.group().wait());
            assert_eq!(s.group().pending(), 0);
            "the rest"
        });
        assert_eq!(result.unwrap(), "the rest");
    });
}

#[test]
fn cancelling_the_group_of_a_scope_drops_what_has_not_started() {
    on_kinds(&THREADED, 1, |engine| {
        let (ran, (sender, receiver)) = (AtomicUsize::new(0), mpsc::channel::<()>());
        engine
            .scope(|s| {
                let order = s.var(());
                s.op("first").push(order.write(), move |_| _ = receiver.recv()).unwrap();
                for _ in 0..100 {
                    s.op("next").push(order.write(), |_| _ = ran.fetch_add(1, Relaxed)).unwrap();
                }
                s.group().cancel_quietly();
                drop(sender);
            })
            .unwrap();
        assert_eq!(ran.into_inner(), 0);
    });
}

#[test]
fn a_deadline_that_has_passed_fails_an_operation_of_a_scope() {
    on_kinds(&KINDS, 1, |engine| {
        let result = engine.scope(|s| s.op("late").deadline(Instant::now()).push((), |()| unreachable!()));
        assert!(matches!(failure(result).cause(), Cause::DeadlinePassed));
    });
}

// ----------------------------------------------------------------------------------------------------- nesting ----

/// Nests scopes, each in an operation of the enclosing scope, and records the operations' threads.
fn nest(engine: &Engine, depth: usize, threads: &Mutex<HashSet<ThreadId>>) -> usize {
    let mut inner = 0;
    let pushed = engine.scope(|s| {
        let inner = s.lend(&mut inner);
        s.op("nest").push(inner.write(), move |inner| {
            lock(threads).insert(thread::current().id());
            *inner = if depth == 0 { 0 } else { nest(engine, depth - 1, threads) };
        })
    });
    pushed.unwrap().unwrap();
    1 + inner
}

#[test]
fn scopes_nest_to_depth_64_on_one_worker() {
    on_kinds(&KINDS, 1, |engine| {
        let threads = Mutex::default();
        assert_eq!(nest(&engine, 64, &threads), 65);
        assert_eq!(lock(&threads).len(), 1, "the operations run in place");
    });
}

#[test]
fn scopes_nest_where_they_cannot_run_in_place() {
    // With a single worker, the gate would block the operation that opens it.
    on_kinds(&THREADED, 2, |engine| {
        fn nest(engine: &Engine, depth: usize) -> usize {
            if depth == 0 {
                return 0;
            }
            let mut inner = 0;
            let (sender, receiver) = mpsc::channel();
            engine
                .scope(|s| {
                    let gate = s.var(());
                    let inner = s.lend(&mut inner);
                    // The gate keeps `nest` from being ready when the scope closes.
                    s.op("gate").push(gate.write(), move |_| _ = receiver.recv_timeout(PATIENCE)).unwrap();
                    s.op("nest")
                        .push((gate.read(), inner.write()), move |(_, inner)| *inner = nest(engine, depth - 1))
                        .unwrap();
                    s.op("open").priority(1).push((), move |()| sender.send(()).unwrap()).unwrap();
                })
                .unwrap();
            1 + inner
        }
        assert_eq!(nest(&engine, 16), 16);
    });
}

#[test]
#[cfg_attr(any(raddle_unpooled, raddle_tsan), ignore = "sanitizers keep freed memory")]
fn a_long_scope_on_a_worker_keeps_no_list_of_complete_operations() {
    child_succeeds("in_a_child_memory_stays_flat_in_a_long_scope");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_memory_stays_flat_in_a_long_scope() {
    assert!(common::is_child());
    on_kinds(&THREADED, 2, |engine| {
        let inner = engine.downgrade();
        let grown = engine.op("around").submit((), move |()| {
            let (count, mut before) = (AtomicUsize::new(0), 0);
            inner
                .scope(|s| {
                    for n in 0..200_000 {
                        s.op("short").push((), |()| _ = count.fetch_add(1, Relaxed)).unwrap();
                        while n + 1 - count.load(Relaxed) > 100 {
                            thread::yield_now();
                        }
                        if n == 50_000 {
                            before = common::resident_bytes();
                        }
                    }
                    common::resident_bytes().saturating_sub(before)
                })
                .unwrap()
        });
        let grown = grown.unwrap().wait().unwrap();
        assert!(grown < 8 << 20, "memory grew by {grown} bytes");
    });
}

/// The scope's list of these operations is searched for complete ones only now and then.
#[test]
fn a_scope_in_an_operation_may_have_a_hundred_thousand_pending_operations() {
    on_kinds(&[EngineKind::Pooled], 2, |engine| {
        let (token, inner) = (engine.token(), engine.downgrade());
        let gate = hold(&engine, &token);
        let around = engine.op("around").submit((), move |()| {
            let ran = AtomicUsize::new(0);
            inner
                .scope(|s| {
                    for _ in 0..fewer(100_000) {
                        s.op("waits").reads([&token]).push((), |()| _ = ran.fetch_add(1, Relaxed)).unwrap();
                    }
                    gate.open();
                })
                .unwrap();
            ran.into_inner()
        });
        assert_eq!(around.unwrap().wait().unwrap(), fewer(100_000));
    });
}

/// Sums the numbers in `from..to` in nested scopes.
fn sum(engine: &Engine, from: u64, to: u64) -> u64 {
    if to - from < 8 {
        return (from..to).sum();
    }
    let middle = from.midpoint(to);
    let (mut left, mut right) = (0, 0);
    engine
        .scope(|s| {
            let (left, right) = (&mut left, &mut right);
            s.op("left").push((), move |()| *left = sum(engine, from, middle)).unwrap();
            s.op("right").push((), move |()| *right = sum(engine, middle, to)).unwrap();
        })
        .unwrap();
    left + right
}

#[test]
fn fork_join_with_scopes_computes_the_same_sum_on_all_engines() {
    on_kinds(&KINDS, 2, |engine| {
        for _ in 0..10 {
            assert_eq!(sum(&engine, 0, 4000), (0..4000).sum());
        }
    });
}

#[test]
fn an_operation_of_an_inner_scope_uses_variables_of_the_outer_one() {
    on_kinds(&KINDS, 2, |engine| {
        let mut total = 0;
        engine
            .scope(|outer| {
                let total = outer.lend(&mut total);
                for n in 1..=10 {
                    let engine = &engine;
                    outer
                        .op("outer")
                        .push((), move |()| {
                            engine
                                .scope(|inner| inner.op("add").push(total.write(), |total| *total += n))
                                .unwrap()
                                .unwrap();
                        })
                        .unwrap();
                }
            })
            .unwrap();
        assert_eq!(total, 55);
    });
}

#[test]
fn scopes_of_many_threads_do_not_interfere() {
    on_kinds(&KINDS, 2, |engine| {
        thread::scope(|threads| {
            for t in 0..4 {
                let engine = &engine;
                threads.spawn(move || {
                    for n in 0..50u64 {
                        assert_eq!(sum(engine, t * n, t * n + 100), (t * n..t * n + 100).sum());
                    }
                });
            }
        });
    });
}

// ----------------------------------------------------------------------------------------------- what is refused ----

#[test]
fn an_operation_of_a_scope_cannot_name_what_the_operation_around_it_holds() {
    on_kinds(&KINDS, 2, |engine| {
        let frame = engine.var(vec![1]).named("frame");
        let (inner, again) = (engine.downgrade(), frame.clone());
        let refused = engine
            .op("around")
            .submit(frame.write(), move |values| {
                inner.scope(|s| {
                    let refused = s.op("inside").push(again.read(), |_| unreachable!());
                    // The restriction also applies to operations pushed by the scope's operations.
                    let again = &again;
                    let nested =
                        s.op("pushes").submit((), move |()| s.op("nested").push(again.write(), |_| unreachable!()));
                    let nested = nested.unwrap().wait().unwrap();
                    let lent = s.lend(values);
                    s.op("lent").push(lent.write(), |values| values.push(2)).unwrap();
                    (refused, nested)
                })
            })
            .unwrap();
        let (refused, nested) = refused.wait().unwrap().unwrap();
        let Err(PushError::Variable(NoAccess::HeldAroundScope, access)) = refused else { panic!("{refused:?}") };
        assert_eq!((access.operation(), access.variable()), ("inside", "frame"));
        assert!(matches!(nested, Err(PushError::Variable(NoAccess::HeldAroundScope, _))), "{nested:?}");
        assert_eq!(engine.get(&frame).unwrap(), [1, 2]);
    });
}

#[test]
fn a_scope_in_an_asynchronous_operation_names_its_variables_once_its_completion_was_used() {
    on_kinds(&KINDS, 2, |engine| {
        let (token, inner) = (engine.token(), engine.downgrade());
        let inside = token.clone();
        let (tell, told) = mpsc::channel();
        engine
            .op("asynchronous")
            .writes([&token])
            .push(completion(), move |done| {
                let (inner, token) = (&inner, &inside);
                let seen = inner.scope(|s| {
                    let early = s.op("early").writes([token]).push((), |()| unreachable!());
                    let (waits, proceed) = mpsc::channel();
                    // This operation of the scope starts before the completion is used. After the use, operations of a
                    // scope inside it may declare the token, and its function may wait for the token.
                    if inner.kind() != EngineKind::Naive {
                        s.op("inner")
                            .push((), move |()| {
                                waits.send(()).unwrap();
                                let nested = inner.scope(|s| {
                                    let early = s.op("early").writes([token]).push((), |()| unreachable!());
                                    while token.version() == 0 {
                                        thread::yield_now();
                                    }
                                    assert!(
                                        matches!(early, Err(PushError::Variable(NoAccess::HeldAroundScope, _))),
                                        "{early:?}"
                                    );
                                    s.op("late").writes([token]).push((), |()| ())
                                });
                                nested.unwrap().unwrap();
                                inner.wait_for_var(token).unwrap();
                            })
                            .unwrap();
                        proceed.recv_timeout(PATIENCE).unwrap();
                        thread::sleep(MOMENT / 5);
                    }
                    done.complete();
                    let late =
                        s.op("late").writes([token]).submit((), move |()| assert!(token.version() >= 1)).unwrap();
                    let waited = inner.wait_for_var(token);
                    (early, late.wait(), waited)
                });
                tell.send(seen).unwrap();
            })
            .unwrap();
        let (early, late, waited) = told.recv_timeout(PATIENCE).unwrap().unwrap();
        assert!(matches!(early, Err(PushError::Variable(NoAccess::HeldAroundScope, _))), "{early:?}");
        late.unwrap();
        waited.unwrap();
        engine.wait_for_all().unwrap();
        assert!(token.version() >= 2);
    });
}

#[test]
fn a_scope_is_refused_where_waits_are() {
    on_kinds(&KINDS, 1, |plain| {
        let engine = Engine::builder().kind(plain.kind()).workers(1).pin(false).gpu(SimulatedGpu::new());
        let engine = engine.build().unwrap();
        let inner = engine.downgrade();
        let on_device = engine.op("").on(Device::Gpu(0)).submit(stream(), move |_| inner.scope(|_| unreachable!()));
        let refused: Result<(), _> = on_device.unwrap().wait().unwrap();
        assert!(matches!(refused, Err(WaitError::OnDevice)), "{refused:?}");

        let (inner, (sender, receiver)) = (engine.downgrade(), mpsc::channel());
        engine
            .delete_variable(engine.token(), move |_| {
                let refused: Result<(), _> = inner.scope(|_| unreachable!());
                sender.send(refused).unwrap();
            })
            .unwrap();
        let refused = receiver.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(refused, Err(WaitError::InDeletion)), "{refused:?}");
    });
}

#[test]
fn foreign_deleted_and_aliased_variables_are_refused() {
    on_kinds(&KINDS, 1, |engine| {
        let other = Engine::builder().workers(1).build().unwrap();
        let (foreign, deleted) = (other.var(0), engine.var(0));
        engine.delete_variable(&deleted, |_| ()).unwrap();
        engine
            .scope(|s| {
                let twice = s.var(0);
                let refused = s.op("").push(foreign.write(), |_| unreachable!());
                assert!(matches!(refused, Err(PushError::Variable(NoAccess::Foreign, _))), "{refused:?}");
                let refused = s.op("").push(deleted.write(), |_| unreachable!());
                assert!(matches!(refused, Err(PushError::Variable(NoAccess::Deleted, _))), "{refused:?}");
                let refused = s.op("").push((twice.read(), twice.write()), |_| unreachable!());
                assert!(matches!(refused, Err(PushError::Variable(NoAccess::Aliased, _))), "{refused:?}");
            })
            .unwrap();
    });
}

#[test]
fn a_scope_of_an_engine_that_is_shut_down_refuses_pushes_and_ends() {
    on_kinds(&KINDS, 1, |engine| {
        let mut value = 1;
        engine.shutdown(Shutdown::Drain, None).unwrap();
        let inner = engine.downgrade();
        let refused = inner.scope(|s| {
            let value = s.lend(&mut value);
            s.op("late").push(value.write(), |value| *value = 2)
        });
        assert!(matches!(refused, Ok(Err(PushError::ShutDown))), "{refused:?}");
        assert_eq!(value, 1);
    });
}

#[test]
fn a_shutdown_that_cancels_ends_a_scope() {
    on_kinds(&THREADED, 1, |engine| {
        let (sender, receiver) = mpsc::channel::<()>();
        let (other, value) = (engine.clone(), Mutex::new(0));
        let result = engine.scope(|s| {
            let order = s.var(());
            s.op("runs").push(order.write(), move |_| _ = receiver.recv_timeout(PATIENCE)).unwrap();
            for _ in 0..10 {
                s.op("waits").push(order.write(), |_| *lock(&value) += 1).unwrap();
            }
            thread::spawn(move || other.shutdown(Shutdown::Cancel, None));
            while engine.op("").push((), |()| ()).is_ok() {
                thread::yield_now();
            }
            drop(sender);
        });
        assert!(matches!(failure(result).cause(), Cause::Cancelled));
        assert_eq!(*lock(&value), 0);
    });
}

// ------------------------------------------------------------------------------------------------------ results ----

#[test]
fn results_may_borrow_and_are_taken_once() -> Anything {
    let engine = Engine::builder().workers(1).build()?;
    let text = String::from("warp weft");
    let words: Vec<&str> = engine.scope(|s| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
        let mut handle = s.op("words").submit((), |()| text.split(' ').collect::<Vec<_>>())?;
        let words = handle.wait_timeout(PATIENCE)?;
        assert!(handle.is_done() && !handle.cancel() && !handle.cancel_quietly());
        let again = handle.wait();
        assert!(matches!(again, Err(WaitError::ValueTaken)), "{again:?}");
        Ok(words)
    })??;
    assert_eq!(words, ["warp", "weft"]);
    Ok(())
}

#[test]
fn a_handle_of_a_scope_returns_the_failure_of_its_operation() {
    on_kinds(&KINDS, 1, |engine| {
        let text = String::from("12x");
        let result = engine.scope(|s| {
            let parsed = s.op("parse").try_submit((), |()| Ok(text.parse::<i32>()?)).unwrap();
            failure(parsed.wait()).name().to_owned()
        });
        assert_eq!(failure(result).name(), "parse", "the scope does not return the failure");
    });
}

#[test]
fn a_handle_of_a_scope_cancels_an_operation_that_has_not_started() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        let gate = hold(&engine, &token);
        let ended = engine.scope(|s| {
            let late = || s.op("late").reads([&token]).submit((), |()| unreachable!("it was cancelled")).unwrap();
            let (quiet, loud) = (late(), late());
            assert!(!quiet.is_done() && !loud.is_done());
            assert!(quiet.cancel_quietly() && loud.cancel());
            assert!(!quiet.cancel() && !loud.cancel_quietly());
            gate.open();
            eventually("the operations have ended", || quiet.is_done() && loud.is_done());
        });
        assert!(matches!(failure(ended).cause(), Cause::Cancelled));
        engine.wait_for_var(&token).unwrap();
    });
}

/// A cancelled operation still waits for its turn. Here it waits for an operation that waits for the one around the
/// scope.
#[test]
fn a_cancelled_operation_of_a_scope_whose_turn_cannot_come_is_abandoned() {
    on_kinds(&KINDS, 1, |engine| {
        let ([x, y], inside) = ([engine.token(), engine.token()], engine.downgrade());
        let (held, free) = (x.clone(), y.clone());
        let around = engine.op("around").writes([&x]).submit((), move |()| {
            inside.op("between").writes([&held, &free]).push((), |()| {}).unwrap();
            inside.scope(|s| {
                let handle = s.op("inside").writes([&free]).submit((), |()| unreachable!("it was cancelled")).unwrap();
                assert!(handle.cancel());
            })
        });
        assert!(around.unwrap().wait().unwrap().is_err());
        let _ = engine.wait_for_all();
    });
}

#[test]
fn an_operation_of_a_scope_has_a_context() {
    on_kinds(&KINDS, 1, |engine| {
        let prefix = String::from("op-");
        let name =
            engine.scope(|s| s.op("named").submit(cx(), |cx| prefix.clone() + cx.name()).unwrap().wait()).unwrap();
        assert_eq!(name.unwrap(), "op-named");
    });
}
