//! The contract, rule by rule: what a push, a property, a priority, a wait, a failure, a deletion and a shutdown mean.

#![forbid(unsafe_code)]

mod common;

use std::{
    collections::VecDeque,
    error::Error,
    fmt::Debug,
    future::Future,
    panic::panic_any,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use common::shapes::*;
use common::{
    Drops, Gate, Journal, KINDS, MOMENT, Meeting, PATIENCE, THREADED, block_on, child_succeeds, engine, eventually,
    failure, hold, is_child, lock, occupy, on_kinds, poll_once, watched,
};
use raddle::{
    Cause, Completion, Device, Engine, EngineKind, Name, OpContext, OpError, OpHandle, Operator, Placement, PushError,
    Shutdown, ShutdownError, Token, Var, VarWait, WaitError,
};

/// Pushes an operation over tokens that fails, and is named.
fn push_failing(engine: &Engine, name: &'static str, reads: &[&Token], writes: &[&Token]) {
    engine
        .op(name)
        .reads(reads.iter().copied())
        .writes(writes.iter().copied())
        .push_sync(move |_| Err::<(), _>(format!("{name} went wrong")))
        .expect("the engine is open");
}

/// Waits for an answer of an operation.
#[track_caller]
fn receive<T>(receiver: &mpsc::Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).expect("an operation answers in time")
}

// ==================================================================================== 1. the one rule ====

mod the_one_rule {
    use super::*;

    #[test]
    fn conflicting_operations_run_in_push_order() {
        on_kinds(&KINDS, 4, |engine| {
            let journal = engine.var(Vec::new());
            for number in 0..1000 {
                engine.op("write").push(journal.write(), move |journal| journal.push(number)).unwrap();
            }
            assert!(engine.get(&journal).unwrap().into_iter().eq(0..1000));
        });
    }

    #[test]
    fn a_reader_sees_the_mutation_pushed_before_it_and_not_the_one_after() {
        on_kinds(&KINDS, 4, |engine| {
            let value = engine.var(0);
            let handles: Vec<_> = (1..300)
                .map(|number| {
                    engine.op("write").push(value.write(), move |value| *value = number).unwrap();
                    [(); 3].map(|()| engine.op("read").submit(value.read(), |value| *value).unwrap())
                })
                .collect();
            for (number, readers) in (1..).zip(handles) {
                readers.into_iter().for_each(|reader| assert_eq!(reader.wait().unwrap(), number));
            }
        });
    }

    #[test]
    fn consecutive_readers_run_concurrently() {
        on_kinds(&THREADED, 2, |engine| {
            let (value, meeting) = (engine.var(1), Meeting::new(2));
            let readers = [(); 2].map(|()| {
                let meeting = meeting.clone();
                engine.op("read").submit(value.read(), move |_| meeting.join_within(PATIENCE)).unwrap()
            });
            readers.into_iter().for_each(|reader| assert!(reader.wait().unwrap(), "the readers did not meet"));
        });
    }

    #[test]
    fn consecutive_readers_after_a_mutation_run_concurrently() {
        on_kinds(&THREADED, 3, |engine| {
            let (value, meeting) = (engine.var(1), Meeting::new(3));
            let gate = hold(&engine, value.token());
            let readers = [(); 3].map(|()| {
                let meeting = meeting.clone();
                engine.op("read").submit(value.read(), move |_| meeting.join_within(PATIENCE)).unwrap()
            });
            gate.open();
            readers.into_iter().for_each(|reader| assert!(reader.wait().unwrap(), "the readers did not meet"));
        });
    }

    /// A wait is no mutation: readers on both sides of it are consecutive.
    #[test]
    fn a_wait_does_not_keep_readers_apart() {
        type Wait = fn(&Engine, &Token);
        let waits: [(&str, Wait); 4] = [
            ("wait_for_var_timeout", |engine, token| {
                let result = engine.wait_for_var_timeout(token, Duration::ZERO);
                assert!(matches!(result, Err(WaitError::TimedOut)), "{result:?}");
            }),
            ("wait_to_write_timeout", |engine, token| {
                let result = engine.wait_for_var_timeout(token, Duration::ZERO);
                assert!(matches!(result, Err(WaitError::TimedOut)), "{result:?}");
            }),
            ("wait_to_read", |engine, token| engine.wait_to_read(token).unwrap()),
            ("wait_for_var_async", |engine, token| drop(engine.wait_for_var_async(token))),
        ];
        for (name, wait) in waits {
            on_kinds(&THREADED, 2, move |engine| {
                let (value, meeting, started) = (engine.var(1), Meeting::new(2), Gate::new());
                let (first_meeting, first_started) = (meeting.clone(), started.clone());
                let first = engine.op("first").submit(value.read(), move |_| {
                    first_started.open();
                    first_meeting.join_within(Duration::from_secs(5))
                });
                started.pass();
                wait(&engine, value.token());
                let second = engine.op("second").submit(value.read(), move |_| meeting.join_within(PATIENCE));
                for reader in [first, second] {
                    assert!(reader.unwrap().wait().unwrap(), "{name} between two readers keeps them apart");
                }
            });
        }
    }

    #[test]
    fn operations_without_a_common_variable_run_concurrently() {
        on_kinds(&THREADED, 2, |engine| {
            let (variables, meeting) = ([engine.var(1), engine.var(2)], Meeting::new(2));
            let handles = variables.each_ref().map(|variable| {
                let meeting = meeting.clone();
                engine.op("").submit(variable.write(), move |_| meeting.join_within(PATIENCE)).unwrap()
            });
            handles.into_iter().for_each(|handle| assert!(handle.wait().unwrap()));
        });
    }

    #[test]
    fn a_mutation_waits_for_all_readers_before_it() {
        on_kinds(&THREADED, 4, |engine| {
            let (value, gate, started) = (engine.token(), Gate::new(), Meeting::new(3));
            for _ in 0..2 {
                let (gate, started) = (gate.clone(), started.clone());
                engine
                    .push_sync(
                        move |_| {
                            started.join();
                            gate.pass();
                        },
                        [&value],
                        [],
                    )
                    .unwrap();
            }
            started.join();
            let wrote = Gate::new();
            let write = wrote.clone();
            engine.push_sync(move |_| write.open(), [], [&value]).unwrap();
            assert!(!wrote.pass_within(MOMENT), "the mutation did not wait");
            gate.open();
            wrote.pass();
        });
    }

    /// A reader behind a waiting mutation does not overtake it.
    #[test]
    fn a_reader_does_not_overtake_a_waiting_mutation() {
        on_kinds(&THREADED, 3, |engine| {
            let (value, gate, started) = (engine.var(1), Gate::new(), Gate::new());
            let (first_gate, first_started) = (gate.clone(), started.clone());
            engine
                .op("first")
                .push(value.read(), move |_| {
                    first_started.open();
                    first_gate.pass();
                })
                .unwrap();
            started.pass();
            engine.op("write").push(value.write(), |value| *value = 2).unwrap();
            let mut last = engine.op("last").submit(value.read(), |value| *value).unwrap();
            assert!(matches!(last.wait_timeout(MOMENT), Err(WaitError::TimedOut)));
            gate.open();
            assert_eq!(last.wait().unwrap(), 2);
        });
    }

    #[test]
    fn an_operation_without_variables_runs() {
        on_kinds(&KINDS, 1, |engine| {
            assert_eq!(engine.op("").submit((), |()| 3).unwrap().wait().unwrap(), 3);
            let ran = Gate::new();
            let open = ran.clone();
            engine.push_sync(move |_| open.open(), [], []).unwrap();
            ran.pass();
        });
    }

    /// Plain memory written before a push is there for the operation, and what it wrote is there for whoever waited.
    #[test]
    fn what_an_operation_wrote_is_visible_to_whoever_waited() {
        on_kinds(&KINDS, 2, |engine| {
            let token = engine.token();
            for number in 0..2000_usize {
                let cell = Arc::new(AtomicUsize::new(0));
                let inner = Arc::clone(&cell);
                engine
                    .push_sync(move |_| inner.store(number, std::sync::atomic::Ordering::Relaxed), [], [&token])
                    .unwrap();
                engine.wait_to_read(&token).unwrap();
                assert_eq!(cell.load(std::sync::atomic::Ordering::Relaxed), number);
            }
        });
    }
}

// ============================================================================================= 2. push ====

mod push {
    use super::*;

    #[test]
    fn push_returns_without_waiting() {
        on_kinds(&THREADED, 2, |engine| {
            let token = engine.token();
            let gate = occupy(&engine, 2);
            let held = Gate::new();
            let inner = held.clone();
            engine.push_sync(move |_| inner.pass(), [], [&token]).unwrap();
            let ran = Arc::new(AtomicUsize::new(0));
            for _ in 0..1000 {
                let ran = Arc::clone(&ran);
                engine.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], [&token]).unwrap();
            }
            // All pushes have returned although nothing can run.
            assert_eq!(ran.load(SeqCst), 0);
            gate.open();
            held.open();
            engine.wait_for_all().unwrap();
            assert_eq!(ran.load(SeqCst), 1000);
        });
    }

    /// Also on the naive engine, where an asynchronous operation may still hold the variable.
    #[test]
    fn push_on_a_held_variable_returns_without_waiting() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let gate = hold(&engine, value.token());
            for _ in 0..1000 {
                engine.op("").push(value.write(), |value| *value += 1).unwrap();
            }
            gate.open();
            assert_eq!(engine.get(&value).unwrap(), 1000);
        });
    }

    #[test]
    fn operations_push_operations() {
        on_kinds(&KINDS, 2, |engine| {
            fn grow(engine: &Engine, count: &Arc<AtomicUsize>, depth: usize) {
                count.fetch_add(1, SeqCst);
                if depth == 0 {
                    return;
                }
                for _ in 0..2 {
                    let count = Arc::clone(count);
                    engine.push_sync(move |cx| grow(&cx.engine(), &count, depth - 1), [], []).unwrap();
                }
            }
            let count = Arc::new(AtomicUsize::new(0));
            let inner = Arc::clone(&count);
            engine.push_sync(move |cx| grow(&cx.engine(), &inner, 9), [], []).unwrap();
            eventually("the whole tree has run", || count.load(SeqCst) == (1 << 10) - 1);
        });
    }

    #[test]
    fn a_variable_read_and_mutated_counts_as_mutated() {
        on_kinds(&THREADED, 2, |engine| {
            let (token, gate, started) = (engine.token(), Gate::new(), Gate::new());
            let (inner_gate, inner_started) = (gate.clone(), started.clone());
            engine
                .push_sync(
                    move |_| {
                        inner_started.open();
                        inner_gate.pass();
                    },
                    [&token],
                    [],
                )
                .unwrap();
            started.pass();
            let ran = Gate::new();
            let inner = ran.clone();
            engine.op("").reads([&token]).writes([&token]).push_sync(move |_| inner.open()).unwrap();
            assert!(!ran.pass_within(MOMENT), "it ran beside a reader");
            gate.open();
            engine.wait_for_var(&token).unwrap();
            assert!(ran.is_open());
            assert_eq!(token.version(), 1);
        });
    }

    #[test]
    fn a_variable_named_twice_is_named_once() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.push_sync(|_| {}, [&token, &token], []).unwrap();
            engine.wait_for_var(&token).unwrap();
            assert_eq!(token.version(), 0);
            engine.push_sync(|_| {}, [], [&token, &token]).unwrap();
            engine.push_sync(|_| {}, [&token, &token], [&token, &token]).unwrap();
            engine.wait_for_var(&token).unwrap();
            assert_eq!(token.version(), 2);
        });
    }

    #[test]
    fn a_refused_push_enqueues_nothing() {
        on_kinds(&KINDS, 1, |engine| {
            let (other, drops) = (common::engine(EngineKind::Naive, 1), Drops::new());
            let (own, deleted, foreign) = (engine.token(), engine.token(), other.token());
            engine.delete_variable(&deleted, |_| {}).unwrap();
            for (bad, error) in [(&foreign, PushError::ForeignVariable), (&deleted, PushError::DeletedVariable)] {
                let captured = drops.make();
                let pushed = engine.push_sync(move |_| captured.touch(), [bad], [&own]);
                assert_eq!(pushed, Err(error.clone()));
                let captured = drops.make();
                let pushed = engine.push_async(move |_, done| (captured.touch(), done.complete()).1, [&own], [bad]);
                assert_eq!(pushed, Err(error.clone()));
                let captured = drops.make();
                let operator = engine.op("").writes([&own]).reads([bad]).operator_sync(move |_| captured.touch());
                assert_eq!(operator.map(drop), Err(error));
            }
            // The closures are gone already, and the good variable has nothing pending.
            drops.assert_all_gone();
            engine.wait_for_var(&own).unwrap();
            assert_eq!(own.version(), 0);
        });
    }

    #[test]
    fn a_context_without_a_device_is_refused() {
        on_kinds(&KINDS, 1, |engine| {
            let pushed = engine.op("").on(Device::Gpu(3)).push_sync(|_| {});
            assert_eq!(pushed, Err(PushError::NoSuchDevice(Device::Gpu(3))));
            engine.op("").on(Device::Cpu).push_sync(|_| {}).unwrap();
        });
    }

    /// The handles of the engine, from the builder, a clone, an operation or the global one, say the same.
    #[test]
    fn all_handles_of_an_engine_are_alike() {
        on_kinds(&KINDS, 2, |engine| {
            let (sender, receiver) = mpsc::channel();
            engine.push_sync(move |cx| sender.send(cx.engine()).unwrap(), [], []).unwrap();
            let inner = receive(&receiver);
            assert_eq!(inner.kind(), engine.kind());
            assert_eq!(inner.placements(), engine.placements(), "the handle of an operation knows no placements");
            assert_eq!(engine.clone().placements(), engine.placements());
            let token = inner.token();
            engine.push_sync(|_| {}, [], [&token]).unwrap();
            inner.wait_for_var(&token).unwrap();
        });
    }
}

// ============================================================================== 3. kinds of operation ====

mod kinds_of_operation {
    use super::*;

    #[test]
    fn what_an_operation_is_told_about_its_run() {
        on_kinds(&KINDS, 1, |engine| {
            let (sender, receiver) = mpsc::channel();
            let tell = move |cx: &OpContext<'_>| {
                sender.send((cx.name().to_owned(), cx.device(), cx.worker(), cx.engine().kind())).unwrap();
            };
            engine.op(format!("named {}", 7)).push_sync(tell).unwrap();
            let worker = (engine.kind() != EngineKind::Naive).then_some(0);
            assert_eq!(receive(&receiver), ("named 7".to_owned(), Device::Cpu, worker, engine.kind()));
        });
    }

    #[test]
    fn a_function_may_return_nothing_a_result_or_never() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.push_sync(|_| {}, [], [&token]).unwrap();
            engine.push_sync(|_| Ok::<(), String>(()), [], [&token]).unwrap();
            engine.push_sync(|_| Err::<(), _>("as a str"), [], [&token]).unwrap();
            assert!(
                matches!(failure(engine.wait_for_var(&token)).cause(), Cause::Error(e) if e.to_string() == "as a str")
            );
            engine.clear_error(&token).unwrap();
            engine.push_sync(|_| panic!("never"), [], [&token]).unwrap();
            assert!(matches!(failure(engine.wait_for_var(&token)).cause(), Cause::Panic(Some(m)) if m == "never"));
        });
    }

    #[test]
    fn async_completes_from_any_thread() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let slot = Arc::new(AtomicUsize::new(0));
            for number in 1..=50 {
                let inner = Arc::clone(&slot);
                engine
                    .op("async")
                    .writes([value.token()])
                    .push_async_any(raddle::cx(), move |_, done| {
                        thread::spawn(move || {
                            inner.store(number, SeqCst);
                            done.complete();
                        });
                    })
                    .unwrap();
                let inner = Arc::clone(&slot);
                engine.op("sync").push(value.write(), move |value| *value = inner.load(SeqCst)).unwrap();
                if number % 10 == 0 {
                    assert_eq!(engine.get(&value).unwrap(), number);
                }
            }
            assert_eq!(engine.get(&value).unwrap(), 50);
            assert_eq!(value.version(), 100);
        });
    }

    #[test]
    fn an_async_operation_keeps_its_variables_and_no_worker_until_completed() {
        on_kinds(&KINDS, 1, |engine| {
            let (token, other) = (engine.token(), engine.token());
            let gate = hold(&engine, &token);
            let ran = Gate::new();
            let inner = ran.clone();
            engine.push_sync(move |_| inner.open(), [&token], []).unwrap();
            // The only worker is free.
            engine.push_sync(|_| {}, [], [&other]).unwrap();
            engine.wait_for_var(&other).unwrap();
            assert!(!ran.is_open());
            assert!(matches!(engine.wait_for_var_timeout(&token, MOMENT), Err(WaitError::TimedOut)));
            gate.open();
            engine.wait_for_var(&token).unwrap();
            assert!(ran.is_open());
        });
    }

    #[test]
    fn a_completion_used_inside_the_function_passes_the_variables_on() {
        on_kinds(&THREADED, 2, |engine| {
            let (token, next) = (engine.token(), Gate::new());
            let (sender, receiver) = mpsc::channel();
            let inner = next.clone();
            engine
                .push_async(
                    move |_, done| {
                        done.complete();
                        // The function goes on, but the operation is done.
                        sender.send(inner.pass_within(PATIENCE)).unwrap();
                    },
                    [],
                    [&token],
                )
                .unwrap();
            engine.push_sync(move |_| next.open(), [], [&token]).unwrap();
            assert!(receive(&receiver), "the next operation did not run while the function went on");
        });
    }

    #[test]
    fn a_dropped_completion_is_an_error() {
        on_kinds(&KINDS, 1, |engine| {
            let tokens = [(); 3].map(|()| engine.token());
            engine.op("inside").writes([&tokens[0]]).push_async_any(raddle::cx(), |_, done| drop(done)).unwrap();
            engine
                .op("elsewhere")
                .writes([&tokens[1]])
                .push_async_any(raddle::cx(), |_, done| drop(thread::spawn(|| drop(done))))
                .unwrap();
            engine
                .op("by a panic elsewhere")
                .writes([&tokens[2]])
                .push_async_any(raddle::cx(), |_, done| {
                    drop(thread::spawn(move || {
                        let _done = done;
                        std::panic::resume_unwind(Box::new("a thread dies"));
                    }));
                })
                .unwrap();
            for (token, name) in tokens.iter().zip(["inside", "elsewhere", "by a panic elsewhere"]) {
                let error = failure(engine.wait_for_var(token));
                assert!(matches!(error.cause(), Cause::LostCompletion), "{error}");
                assert_eq!(error.name(), name);
            }
        });
    }

    #[test]
    fn a_failed_completion_is_the_operations_failure() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.push_async(|_, done| drop(thread::spawn(|| done.fail("no disk"))), [], [&token]).unwrap();
            let error = failure(engine.wait_for_var(&token));
            assert!(matches!(error.cause(), Cause::Error(error) if error.to_string() == "no disk"), "{error}");
        });
    }

    #[test]
    fn an_async_function_that_panics_with_its_completion_fails_with_the_panic() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.push_async(|_, _done| panic!("in the function"), [], [&token]).unwrap();
            let error = failure(engine.wait_for_var(&token));
            assert!(matches!(error.cause(), Cause::Panic(Some(message)) if message == "in the function"), "{error}");
        });
    }

    /// `?` in an asynchronous function drops the completion on its way out, which ends the operation at once. The error that
    /// comes later does not hide.
    #[test]
    fn an_async_function_that_returns_an_error_without_its_completion_has_lost_it() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine
                .push_async(
                    |_, done| {
                        let number: u32 = "no number".parse()?;
                        assert_eq!(number, 0);
                        done.complete();
                        Ok::<(), std::num::ParseIntError>(())
                    },
                    [],
                    [&token],
                )
                .unwrap();
            let error = failure(engine.wait_for_var(&token));
            assert!(matches!(error.cause(), Cause::LostCompletion), "{error}");
            let mut told = None;
            eventually("the error is reported", || {
                told = engine.wait_for_all().err();
                told.is_some()
            });
            let error = failure(Err::<(), _>(told.unwrap()));
            assert!(matches!(error.cause(), Cause::Error(error) if error.is::<std::num::ParseIntError>()), "{error}");
        });
    }

    /// What comes after the operation may be what its function waits for.
    #[test]
    fn a_completion_dropped_in_its_own_function_ends_the_operation_at_once() {
        on_kinds(&KINDS, 2, |engine| {
            let token = engine.token();
            let (sender, receiver) = mpsc::channel();
            let (next, told) = (Gate::new(), engine.clone());
            let (opens, variable) = (next.clone(), token.clone());
            engine
                .push_async(
                    move |_, done| {
                        told.op("next").run_always().writes([&variable]).push_sync(move |_| opens.open()).unwrap();
                        drop(done);
                        sender.send(next.pass_within(common::SOON)).unwrap();
                    },
                    [],
                    [&token],
                )
                .unwrap();
            assert!(receive(&receiver), "the function has to return before its operation ends");
        });
    }

    #[test]
    fn an_async_function_that_fails_while_its_completion_lives_fails_the_operation_at_the_completion() {
        on_kinds(&KINDS, 1, |engine| {
            for panics in [false, true] {
                let (token, gate) = (engine.token(), Gate::new());
                let inner = gate.clone();
                engine
                    .push_async(
                        move |_, done| {
                            thread::spawn(move || {
                                inner.pass();
                                done.complete();
                            });
                            assert!(!panics, "too early");
                            Err::<(), _>("too early")
                        },
                        [],
                        [&token],
                    )
                    .unwrap();
                // The completion's thread may still use the variable.
                assert!(matches!(engine.wait_for_var_timeout(&token, MOMENT), Err(WaitError::TimedOut)));
                gate.open();
                let error = failure(engine.wait_for_var(&token));
                match error.cause() {
                    Cause::Error(error) => assert!(!panics && error.to_string() == "too early"),
                    Cause::Panic(message) => assert!(panics && message.as_deref() == Some("too early")),
                    other => panic!("{other}"),
                }
            }
        });
    }

    #[test]
    fn an_async_function_that_fails_after_its_completion_was_used_is_reported_by_wait_for_all() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine
                .push_async(
                    |_, done| {
                        done.complete();
                        Err::<(), _>("too late")
                    },
                    [],
                    [&token],
                )
                .unwrap();
            engine.wait_for_var(&token).unwrap();
            assert_eq!(token.version(), 1);
            let mut told = None;
            eventually("the failure is there", || {
                told = engine.wait_for_all().err();
                told.is_some()
            });
            let error = failure(Err::<(), _>(told.unwrap()));
            assert!(matches!(error.cause(), Cause::Error(error) if error.to_string() == "too late"));
        });
    }

    /// The function catches the panic that took the completion, and returns as if nothing had been.
    #[test]
    fn a_completion_lost_in_a_caught_panic_is_an_error() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine
                .push_async(
                    |_, done| {
                        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                            let _done = done;
                            std::panic::resume_unwind(Box::new("caught"));
                        }));
                        assert!(result.is_err());
                    },
                    [],
                    [&token],
                )
                .unwrap();
            let result = engine.wait_for_var_timeout(&token, Duration::from_secs(10));
            let error = failure(result);
            assert!(matches!(error.cause(), Cause::LostCompletion), "{error}");
        });
    }

    /// A completion may come to rest anywhere: here in a variable's value, whose deletion drops it.
    #[test]
    fn a_completion_dropped_with_a_variables_value_is_an_error() {
        on_kinds(&KINDS, 1, |engine| {
            let (token, keeper) = (engine.token(), engine.var(None::<Completion>));
            let (sender, receiver) = mpsc::channel();
            engine.push_async(move |_, done| sender.send(done).unwrap(), [], [&token]).unwrap();
            let done = receive(&receiver);
            engine.op("keep").push(keeper.write(), move |keeper| *keeper = Some(done)).unwrap();
            assert!(matches!(engine.wait_for_var_timeout(&token, MOMENT), Err(WaitError::TimedOut)));
            drop(keeper);
            assert!(matches!(failure(engine.wait_for_var(&token)).cause(), Cause::LostCompletion));
        });
    }

    // ----------------------------------------------------------------------------------------- operators ----

    #[test]
    fn operator_pushed_again_while_pending() {
        on_kinds(&KINDS, 2, |engine| {
            let (value, step) = (engine.var(0), engine.var(1));
            let gate = hold(&engine, value.token());
            let add = engine.op("add").operator((step.read(), value.write()), |(step, value)| *value += step).unwrap();
            for _ in 0..100 {
                add.push().unwrap();
            }
            engine.op("step").push(step.write(), |step| *step = 10).unwrap();
            for _ in 0..100 {
                add.clone().push().unwrap();
            }
            gate.open();
            assert_eq!(engine.get(&value).unwrap(), 1100);
            assert_eq!(value.version(), 201);
        });
    }

    #[test]
    fn operators_of_all_three_kinds() {
        on_kinds(&KINDS, 2, |engine| {
            let value = engine.var(Vec::new());
            let typed = engine.op("typed").operator(value.write(), |value| value.push('t')).unwrap();
            let ran = Arc::new(AtomicUsize::new(0));
            let inner = Arc::clone(&ran);
            let sync = engine
                .op("sync")
                .writes([value.token()])
                .operator_sync(move |_| _ = inner.fetch_add(1, SeqCst))
                .unwrap();
            let inner = Arc::clone(&ran);
            let asynchronous = engine
                .op("async")
                .writes([value.token()])
                .operator_async(raddle::cx(), move |_, done| {
                    let ran = Arc::clone(&inner);
                    thread::spawn(move || {
                        ran.fetch_add(100, SeqCst);
                        done.complete();
                    });
                })
                .unwrap();
            for _ in 0..10 {
                typed.push().unwrap();
                sync.push().unwrap();
                asynchronous.push_with_priority(3).unwrap();
            }
            assert_eq!(engine.get(&value).unwrap().len(), 10);
            engine.wait_for_var(&value).unwrap();
            assert_eq!(ran.load(SeqCst), 1010);
            assert_eq!(value.version(), 30);
        });
    }

    /// Runs of an operator that only reads are consecutive readers.
    #[test]
    fn runs_of_a_reading_operator_are_concurrent() {
        on_kinds(&THREADED, 2, |engine| {
            let (value, meeting) = (engine.var(1), Meeting::new(2));
            let (sender, receiver) = mpsc::channel();
            let sender = Mutex::new(sender);
            let read = engine
                .op("read")
                .operator(value.read(), move |_| {
                    let met = meeting.join_within(PATIENCE);
                    lock(&sender).send(met).unwrap();
                })
                .unwrap();
            read.push().unwrap();
            read.push().unwrap();
            assert!(receive(&receiver) && receive(&receiver));
        });
    }

    #[test]
    fn a_deleted_operator_runs_what_was_pushed_and_is_dropped_after_that() {
        on_kinds(&KINDS, 1, |engine| {
            let (value, drops, ran) = (engine.token(), Drops::new(), Arc::new(AtomicUsize::new(0)));
            let gate = hold(&engine, &value);
            let (captured, inner) = (drops.make(), Arc::clone(&ran));
            let operator = engine
                .op("")
                .writes([&value])
                .operator_sync(move |_| {
                    captured.touch();
                    inner.fetch_add(1, SeqCst);
                })
                .unwrap();
            for _ in 0..10 {
                operator.push().unwrap();
            }
            drop(operator);
            assert_eq!(drops.dropped(), 0, "it is dropped while pending");
            gate.open();
            engine.wait_for_all().unwrap();
            assert_eq!(ran.load(SeqCst), 10);
            drops.assert_all_gone();
        });
    }

    #[test]
    fn an_operator_keeps_its_variables() {
        on_kinds(&KINDS, 1, |engine| {
            let drops = Drops::new();
            let value = engine.var(drops.make());
            let operator = engine.op("").operator(value.write(), |value| value.touch()).unwrap();
            drop(value);
            operator.push().unwrap();
            engine.wait_for_all().unwrap();
            assert_eq!(drops.dropped(), 0);
            drop(operator);
            engine.wait_for_all().unwrap();
            drops.assert_all_gone();
        });
    }

    #[test]
    fn an_operator_of_a_deleted_variable_is_refused() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(1);
            let operator = engine.op("").operator(value.write(), |_| {}).unwrap();
            operator.push().unwrap();
            engine.delete_variable(&value, |_| {}).unwrap();
            assert_eq!(operator.push(), Err(PushError::DeletedVariable));
        });
    }

    #[test]
    fn a_failed_run_of_an_operator_does_not_spoil_it() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let operator = engine
                .op("operator")
                .operator_any(value.write(), |value| {
                    *value += 1;
                    if *value == 2 { Err("two") } else { Ok(()) }
                })
                .unwrap();
            operator.push().unwrap();
            operator.push().unwrap();
            operator.push().unwrap();
            assert_eq!(failure(engine.get(&value)).name(), "operator");
            engine.clear_error(&value).unwrap();
            operator.push().unwrap();
            assert_eq!(engine.get(&value).unwrap(), 3);
            assert_eq!(value.version(), 2);
        });
    }

    #[test]
    fn an_operators_failure_tells_where_it_was_pushed() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.token();
            let operator = engine.op("operator").writes([&value]).operator_sync(|_| Err::<(), _>("no")).unwrap();
            let line = line!() + 1;
            operator.push().unwrap();
            let error = failure(engine.wait_for_var(&value));
            assert_eq!((error.location().file(), error.location().line()), (file!(), line));
        });
    }

    // -------------------------------------------------------------------------------------------- typed ----

    #[test]
    fn typed_operations_get_the_shape_they_declared() {
        on_kinds(&KINDS, 2, |engine| {
            let (a, b, c) = (engine.var(1), engine.var("two"), engine.var(vec![3]));
            let list: Vec<Var<i32>> = (0..5).map(|n| engine.var(n)).collect();
            let array = [engine.var(10), engine.var(20)];
            let reads: Vec<_> = list.iter().map(|variable| variable.read()).collect();
            let sum = engine
                .op("")
                .submit(
                    (a.read(), (b.read(), c.write()), &reads[..], [array[0].read(), array[1].read()], ()),
                    |(a, (b, c), list, [x, y], ())| {
                        c.push(4);
                        *a + b.len() as i32 + c.iter().sum::<i32>() + list.into_iter().sum::<i32>() + x + y
                    },
                )
                .unwrap();
            assert_eq!(sum.wait().unwrap(), 1 + 3 + 7 + 10 + 30);
            let twelve: [Var<u8>; 12] = [(); 12].map(|()| engine.var(1));
            let [a, b, c, d, e, f, g, h, i, j, k, l] = twelve.each_ref().map(Var::write);
            engine
                .op("")
                .push((a, b, c, d, e, f, g, h, i, j, k, l), |(a, b, c, d, e, f, g, h, i, j, k, l)| {
                    [a, b, c, d, e, f, g, h, i, j, k, l].into_iter().for_each(|value| *value += 1);
                })
                .unwrap();
            assert!(twelve.iter().all(|variable| engine.get(variable).unwrap() == 2));
        });
    }

    #[test]
    fn typed_and_untyped_variables_mix() {
        on_kinds(&KINDS, 2, |engine| {
            let (file, value) = (engine.token(), engine.var(0));
            let gate = hold(&engine, &file);
            engine.op("").reads([&file]).push(value.write(), |value| *value = 1).unwrap();
            assert!(matches!(engine.wait_for_var_timeout(&value, MOMENT), Err(WaitError::TimedOut)));
            gate.open();
            assert_eq!(engine.get(&value).unwrap(), 1);
        });
    }

    #[test]
    fn a_value_that_no_reader_may_share_can_be_written() {
        on_kinds(&KINDS, 1, |engine| {
            // A `Cell` is not `Sync`.
            let cell = engine.var(std::cell::Cell::new(1));
            engine.op("").push(cell.write(), |cell| cell.set(cell.get() + 1)).unwrap();
            let handle = engine.op("").submit(cell.write(), |cell| cell.get()).unwrap();
            assert_eq!(handle.wait().unwrap(), 2);
        });
    }

    #[test]
    fn a_typed_operation_returns_a_value_from_its_handle() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(String::from("warp"));
            let length = engine.op("").submit(value.read(), |value| value.len()).unwrap();
            assert_eq!(length.wait().unwrap(), 4);
            let good = engine.op("").submit_any(value.read(), |value| value.parse::<i32>().or(Ok::<_, String>(-1)));
            assert_eq!(good.unwrap().wait().unwrap(), -1);
            let bad = engine.op("bad").submit_any(value.write(), |value| value.parse::<i32>());
            assert_eq!(failure(bad.unwrap().wait()).name(), "bad");
            assert_eq!(failure(engine.get(&value)).name(), "bad");
        });
    }

    #[test]
    fn an_error_that_submit_returns_is_a_value() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let handle = engine.op("").submit(value.write(), |_| Err::<(), _>("mine")).unwrap();
            assert_eq!(handle.wait().unwrap(), Err("mine"));
            engine.wait_for_var(&value).unwrap();
        });
    }

    #[test]
    fn names_come_from_anything_textual() {
        on_kinds(&KINDS, 1, |engine| {
            for name in
                [Name::from("a"), Name::from("a".to_owned()), Name::from(Arc::<str>::from("a")), Name::default()]
            {
                let token = engine.token();
                let expected = name.as_str().to_owned();
                engine.op(name).writes([&token]).push_sync(|_| Err::<(), _>("no")).unwrap();
                let error = failure(engine.wait_for_var(&token));
                assert_eq!(error.name(), expected);
                assert_eq!(error.to_string().contains("operation `a`"), expected == "a");
            }
        });
    }

    /// What crosses threads does.
    #[test]
    fn handles_may_be_sent_and_shared() {
        fn both<T: Send + Sync>() {}
        fn sent<T: Send>() {}
        both::<Engine>();
        both::<Token>();
        // The handle shares no value, whatever the value may do.
        both::<Var<std::cell::Cell<u8>>>();
        both::<Operator>();
        both::<OpError>();
        both::<WaitError>();
        both::<PushError>();
        both::<OpHandle<Vec<u8>>>();
        both::<VarWait>();
        sent::<Completion>();
        sent::<OpHandle<std::cell::Cell<u8>>>();
    }
}

// ======================================================================================= 3. properties ====

mod properties {
    use super::*;

    /// The name of the thread that runs an operation with `property`.
    fn thread_of(engine: &Engine, property: Property) -> String {
        let (sender, receiver) = mpsc::channel();
        engine
            .op("")
            .kind(property)
            .push_sync(move |_| {
                sender.send(thread::current().name().unwrap_or_default().to_owned()).unwrap();
            })
            .unwrap();
        receive(&receiver)
    }

    #[test]
    fn each_property_has_its_lane() {
        watched(|| {
            use Property::*;
            for (kind, lanes) in [
                (
                    EngineKind::PerDevice,
                    [
                        (Normal, "raddle-cpu-"),
                        (NoSkip, "raddle-cpu-"),
                        (DeleteVar, "raddle-cpu-"),
                        (CopyToGpu, "raddle-copy-"),
                        (CopyFromGpu, "raddle-copy-back-"),
                        (CpuPrioritized, "raddle-priority-"),
                        (GpuPrioritized, "raddle-priority-"),
                    ],
                ),
                (
                    EngineKind::Pooled,
                    [
                        (Normal, "raddle-cpu-"),
                        (NoSkip, "raddle-cpu-"),
                        (DeleteVar, "raddle-cpu-"),
                        (CopyToGpu, "raddle-copy-"),
                        (CopyFromGpu, "raddle-copy-"),
                        (CpuPrioritized, "raddle-cpu-"),
                        (GpuPrioritized, "raddle-cpu-"),
                    ],
                ),
            ] {
                let engine = engine(kind, 2);
                for (property, lane) in lanes {
                    let thread = thread_of(&engine, property);
                    let number = thread.strip_prefix(lane).map(str::parse::<usize>);
                    assert!(matches!(number, Some(Ok(_))), "{kind}: {property:?} ran on `{thread}`, not `{lane}N`");
                }
            }
        });
    }

    #[test]
    fn on_the_naive_engine_every_property_runs_on_the_pushing_thread() {
        watched(|| {
            let engine = engine(EngineKind::Naive, 1);
            let own = thread::current().name().unwrap_or_default().to_owned();
            for property in [Property::Normal, Property::CopyToGpu, Property::CpuPrioritized, Property::Async] {
                assert_eq!(thread_of(&engine, property), own);
            }
        });
    }

    #[test]
    fn prioritised_operations_start_though_all_workers_are_busy() {
        on_kinds(&[EngineKind::PerDevice], 2, |engine| {
            let gate = occupy(&engine, 2);
            for property in [Property::CpuPrioritized, Property::GpuPrioritized] {
                thread_of(&engine, property);
            }
            gate.open();
        });
    }

    #[test]
    fn copies_start_though_all_workers_are_busy() {
        on_kinds(&THREADED, 2, |engine| {
            let gate = occupy(&engine, 2);
            for property in [Property::CopyToGpu, Property::CopyFromGpu] {
                thread_of(&engine, property);
            }
            gate.open();
        });
    }

    #[test]
    fn copies_of_both_directions_overlap() {
        on_kinds(&[EngineKind::PerDevice], 1, |engine| {
            let meeting = Meeting::new(3);
            let handles = [Property::CopyToGpu, Property::CopyFromGpu, Property::Normal].map(|property| {
                let meeting = meeting.clone();
                engine.op("").kind(property).submit((), move |()| meeting.join_within(PATIENCE)).unwrap()
            });
            handles.into_iter().for_each(|handle| assert!(handle.wait().unwrap()));
        });
    }

    /// A dependence between lanes is one like any other.
    #[test]
    fn operations_of_all_lanes_are_ordered_by_their_variables() {
        on_kinds(&KINDS, 2, |engine| {
            use Property::*;
            let journal = engine.var(Vec::new());
            let properties = [Normal, CopyToGpu, CopyFromGpu, CpuPrioritized, GpuPrioritized, Async, DeleteVar, NoSkip];
            for number in 0..800 {
                let builder = engine.op("").kind(properties[number % 8]).priority(number as i32 % 7 - 3);
                builder.push(journal.write(), move |journal| journal.push(number)).unwrap();
            }
            assert!(engine.get(&journal).unwrap().into_iter().eq(0..800));
        });
    }

    #[test]
    fn prioritised_operations_of_the_pooled_engine_go_first() {
        on_kinds(&[EngineKind::Pooled], 1, |engine| {
            let gate = occupy(&engine, 1);
            let journal = Journal::new();
            let push = |property, priority, name: &'static str| {
                let journal = journal.clone();
                engine.op("").kind(property).priority(priority).push_sync(move |_| journal.add(name)).unwrap();
            };
            push(Property::Normal, 0, "normal");
            push(Property::Normal, 1000, "urgent");
            push(Property::CpuPrioritized, -5, "prioritised");
            gate.open();
            engine.wait_for_all().unwrap();
            assert_eq!(journal.take(), ["prioritised", "urgent", "normal"]);
        });
    }

    #[test]
    fn an_async_property_starts_on_the_pushing_thread_when_ready() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            let id = Arc::new(Mutex::new(None));
            let inner = Arc::clone(&id);
            let note = move |_: &OpContext<'_>| *lock(&inner) = Some(thread::current().id());
            engine.op("").eager().writes([&token]).push_sync(note).unwrap();
            // It has run when the push returns.
            assert_eq!(*lock(&id), Some(thread::current().id()));
            assert_eq!(token.version(), 1);
        });
    }

    #[test]
    fn an_async_property_starts_on_a_worker_when_not_ready_at_once() {
        on_kinds(&THREADED, 1, |engine| {
            let token = engine.token();
            let gate = hold(&engine, &token);
            let (sender, receiver) = mpsc::channel();
            engine.op("").eager().writes([&token]).push_sync(move |cx| sender.send(cx.worker()).unwrap()).unwrap();
            gate.open();
            assert_eq!(receive(&receiver), Some(0));
        });
    }

    #[test]
    fn delete_var_goes_before_all_others() {
        on_kinds(&THREADED, 1, |engine| {
            let gate = occupy(&engine, 1);
            let journal = Journal::new();
            for (property, priority, name) in [
                (Property::Normal, 0, "normal"),
                (Property::Normal, 1 << 25, "urgent"),
                (Property::DeleteVar, -1, "deletion"),
            ] {
                let journal = journal.clone();
                engine.op("").kind(property).priority(priority).push_sync(move |_| journal.add(name)).unwrap();
            }
            gate.open();
            engine.wait_for_all().unwrap();
            assert_eq!(journal.take(), ["deletion", "urgent", "normal"]);
        });
    }

    #[test]
    fn delete_var_and_no_skip_run_on_failed_variables() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            push_failing(&engine, "first", &[], &[&token]);
            for property in [Property::DeleteVar, Property::NoSkip] {
                let ran = Gate::new();
                let inner = ran.clone();
                engine.op("").kind(property).writes([&token]).push_sync(move |_| inner.open()).unwrap();
                assert_eq!(failure(engine.wait_for_var(&token)).name(), "first");
                assert!(ran.is_open(), "{property:?} was skipped");
            }
        });
    }

    /// The priority of an operator's run does not undo what its property promises.
    #[test]
    fn a_runs_priority_does_not_undo_its_property() {
        on_kinds(&[EngineKind::Pooled], 1, |engine| {
            let gate = occupy(&engine, 1);
            let journal = Journal::new();
            for (property, priority, name) in [
                (Property::Normal, 100, "urgent"),
                (Property::DeleteVar, 0, "deletion"),
                (Property::CpuPrioritized, 0, "prioritised"),
            ] {
                let journal = journal.clone();
                let operator = engine.op("").kind(property).operator_sync(move |_| journal.add(name)).unwrap();
                operator.push_with_priority(priority).unwrap();
            }
            gate.open();
            engine.wait_for_all().unwrap();
            assert_eq!(journal.take().last(), Some(&"urgent"));
        });
    }
}

// ========================================================================================= 4. priority ====

mod priority {
    use super::*;

    #[test]
    fn higher_priority_first() {
        on_kinds(&THREADED, 1, |engine| {
            let gate = occupy(&engine, 1);
            let journal = Journal::new();
            // Every priority that has a band of its own, and some that share one; shuffled by a step coprime to their number.
            let mut priorities: Vec<i32> = (-7..=7).flat_map(|priority| [priority; 3]).collect();
            priorities.extend([8, 16, 32, 64, 1000, 1 << 20, i32::MAX, -8, -16, -1000, i32::MIN]);
            let count = priorities.len();
            for index in 0..count {
                let (priority, journal) = (priorities[index * 17 % count], journal.clone());
                engine.op("").priority(priority).push_sync(move |_| journal.add(priority)).unwrap();
            }
            gate.open();
            engine.wait_for_all().unwrap();
            let order = journal.take();
            assert_eq!(order.len(), count);
            assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
        });
    }

    #[test]
    fn the_prioritised_lane_orders_by_priority_too() {
        on_kinds(&[EngineKind::PerDevice], 1, |engine| {
            let (gate, started, journal) = (Gate::new(), Gate::new(), Journal::new());
            let (inner_gate, inner_started) = (gate.clone(), started.clone());
            let lane = |priority| engine.op("").kind(Property::CpuPrioritized).priority(priority);
            lane(0)
                .push_sync(move |_| {
                    inner_started.open();
                    inner_gate.pass();
                })
                .unwrap();
            started.pass();
            for priority in [0, 3, -2, 7, 100, -1] {
                let journal = journal.clone();
                lane(priority).push_sync(move |_| journal.add(priority)).unwrap();
            }
            gate.open();
            engine.wait_for_all().unwrap();
            assert_eq!(journal.take(), [100, 7, 3, 0, -1, -2]);
        });
    }

    #[test]
    fn operators_are_pushed_with_priorities() {
        on_kinds(&THREADED, 1, |engine| {
            let gate = occupy(&engine, 1);
            let journal = Journal::new();
            let operator = |priority| {
                let journal = journal.clone();
                engine.op("").priority(priority).operator_sync(move |_| journal.add(priority)).unwrap()
            };
            let (low, high) = (operator(-1), operator(5));
            low.push().unwrap();
            high.push().unwrap();
            low.push_with_priority(7).unwrap();
            gate.open();
            engine.wait_for_all().unwrap();
            assert_eq!(journal.take(), [-1, 5, -1]);
        });
    }

    /// What becomes ready by a completion is ordered as well, wherever it is queued.
    #[test]
    fn successors_are_ordered_by_priority() {
        on_kinds(&THREADED, 1, |engine| {
            let tokens: Vec<Token> = (0..6).map(|_| engine.token()).collect();
            let (gate, started, journal) = (Gate::new(), Gate::new(), Journal::new());
            let (inner_gate, inner_started) = (gate.clone(), started.clone());
            engine
                .op("")
                .writes(&tokens)
                .push_sync(move |_| {
                    inner_started.open();
                    inner_gate.pass();
                })
                .unwrap();
            started.pass();
            for (token, priority) in tokens.iter().zip([-3, 2, 0, 6, -1, 4]) {
                let journal = journal.clone();
                engine.op("").priority(priority).writes([token]).push_sync(move |_| journal.add(priority)).unwrap();
            }
            gate.open();
            engine.wait_for_all().unwrap();
            assert_eq!(journal.take(), [6, 4, 2, 0, -1, -3]);
        });
    }

    /// A worker that holds a long run of successors looks at more urgent ones in between.
    #[test]
    fn an_urgent_operation_waits_for_a_bounded_run_of_successors() {
        on_kinds(&THREADED, 1, |engine| {
            let chain = engine.token();
            let (journal, gate) = (Journal::new(), Gate::new());
            let (inner_gate, started) = (gate.clone(), Gate::new());
            let inner_started = started.clone();
            let inner_journal = journal.clone();
            engine
                .push_sync(
                    move |cx| {
                        inner_started.open();
                        inner_gate.pass();
                        let journal = inner_journal.clone();
                        cx.engine().op("").priority(1).push_sync(move |_| journal.add("urgent")).unwrap();
                    },
                    [],
                    [&chain],
                )
                .unwrap();
            started.pass();
            for _ in 0..1000 {
                let journal = journal.clone();
                engine.push_sync(move |_| journal.add("chain"), [], [&chain]).unwrap();
            }
            gate.open();
            engine.wait_for_all().unwrap();
            let order = journal.take();
            let at = order.iter().position(|name| *name == "urgent").unwrap();
            assert!(at <= 33, "the urgent operation ran after {at} others");
        });
    }

    /// Operations that always push the next one do not keep an equal from outside waiting for ever.
    #[test]
    fn equals_do_not_starve() {
        on_kinds(&THREADED, 1, |engine| {
            fn again(engine: &Engine, stop: &Arc<AtomicBool>) {
                if !stop.load(SeqCst) {
                    let stop = Arc::clone(stop);
                    engine.push_sync(move |cx| again(&cx.engine(), &stop), [], []).unwrap();
                }
            }
            let stop = Arc::new(AtomicBool::new(false));
            for _ in 0..3 {
                again(&engine, &stop);
            }
            for _ in 0..20 {
                let ran = Gate::new();
                let inner = ran.clone();
                engine.push_sync(move |_| inner.open(), [], []).unwrap();
                let in_time = ran.pass_within(Duration::from_secs(20));
                if !in_time {
                    stop.store(true, SeqCst);
                }
                assert!(in_time, "an operation starves behind its equals");
            }
            stop.store(true, SeqCst);
        });
    }

    /// The same, for a chain of successors of one variable.
    #[test]
    #[cfg_attr(miri, ignore = "needs 20,000 operations")]
    fn a_chain_of_successors_does_not_starve_an_equal() {
        on_kinds(&THREADED, 1, |engine| {
            let (chain, journal, gate, started) = (engine.token(), Journal::new(), Gate::new(), Gate::new());
            let (inner_gate, inner_started) = (gate.clone(), started.clone());
            engine
                .push_sync(
                    move |_| {
                        inner_started.open();
                        inner_gate.pass();
                    },
                    [],
                    [&chain],
                )
                .unwrap();
            started.pass();
            for _ in 0..20_000 {
                let journal = journal.clone();
                engine.push_sync(move |_| journal.add("chain"), [], [&chain]).unwrap();
            }
            let inner = journal.clone();
            engine.push_sync(move |_| inner.add("equal"), [], []).unwrap();
            gate.open();
            engine.wait_for_all().unwrap();
            let at = journal.take().iter().position(|name| *name == "equal").unwrap();
            assert!(at < 5000, "the equal ran after {at} of 20,000");
        });
    }

    #[test]
    fn a_low_priority_runs_when_nothing_else_is_ready() {
        on_kinds(&KINDS, 1, |engine| {
            let handle = engine.op("").priority(i32::MIN).submit((), |()| 1).unwrap();
            assert_eq!(handle.wait().unwrap(), 1);
        });
    }
}

// ========================================================================================== 5. waiting ====

mod waiting {
    use super::*;

    #[test]
    fn a_fresh_variable_needs_no_waiting() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.wait_for_var(&token).unwrap();
            engine.wait_to_read(&token).unwrap();
            engine.wait_for_var(&token).unwrap();
            engine.wait_for_var_timeout(&token, Duration::ZERO).unwrap();
            assert_eq!(
                poll_once(&mut engine.wait_for_var_async(&token)).map(|result| result.is_ok()),
                Poll::Ready(true)
            );
            engine.wait_for_all().unwrap();
            assert_eq!(token.version(), 0);
        });
    }

    /// Makes an engine with a reader of the variable that runs until the gate is opened.
    fn with_a_reader(engine: &Engine) -> (Var<i32>, Gate) {
        let (value, gate, started) = (engine.var(1), Gate::new(), Gate::new());
        let (inner_gate, inner_started) = (gate.clone(), started.clone());
        engine
            .op("reader")
            .push(value.read(), move |_| {
                inner_started.open();
                inner_gate.pass();
            })
            .unwrap();
        started.pass();
        (value, gate)
    }

    #[test]
    fn wait_to_read_waits_for_mutations_only() {
        on_kinds(&THREADED, 1, |engine| {
            let (value, gate) = with_a_reader(&engine);
            engine.wait_to_read(&value).unwrap();
            engine.wait_to_read_timeout(&value, Duration::ZERO).unwrap();
            block_on(engine.wait_to_read_async(&value)).unwrap();
            assert!(matches!(engine.wait_for_var_timeout(&value, MOMENT), Err(WaitError::TimedOut)));
            gate.open();
            engine.wait_for_var(&value).unwrap();
            engine.wait_for_var(&value).unwrap();
            engine.wait_for_var_timeout(&value, Duration::ZERO).unwrap();
        });
    }

    #[test]
    fn wait_for_var_and_wait_to_write_wait_for_readers_too() {
        on_kinds(&THREADED, 1, |engine| {
            let (value, gate) = with_a_reader(&engine);
            assert!(matches!(engine.wait_for_var_timeout(&value, MOMENT), Err(WaitError::TimedOut)));
            assert!(matches!(engine.wait_for_var_timeout(&value, Duration::ZERO), Err(WaitError::TimedOut)));
            let mut future = engine.wait_for_var_async(&value);
            assert!(poll_once(&mut future).is_pending());
            gate.open();
            block_on(future).unwrap();
            block_on(engine.wait_for_var_async(&value)).unwrap();
        });
    }

    #[test]
    fn wait_to_read_waits_for_a_pending_mutation() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            let gate = hold(&engine, &token);
            let mut future = engine.wait_to_read_async(&token);
            assert!(poll_once(&mut future).is_pending());
            assert!(matches!(engine.wait_to_read_timeout(&token, MOMENT), Err(WaitError::TimedOut)));
            gate.open();
            block_on(future).unwrap();
            assert_eq!(token.version(), 1);
        });
    }

    #[test]
    fn a_wait_for_a_variable_is_not_prolonged_by_later_pushes() {
        on_kinds(&KINDS, 2, |engine| {
            let token = engine.token();
            let first = hold(&engine, &token);
            let waits = [engine.wait_for_var_async(&token), engine.wait_to_read_async(&token)];
            // Behind the waits: an operation that does not end.
            let (second, inner) = (Gate::new(), Gate::new());
            let (gate, started) = (second.clone(), inner.clone());
            engine
                .push_async(
                    move |_, done| {
                        started.open();
                        thread::spawn(move || {
                            gate.pass();
                            done.complete();
                        });
                    },
                    [],
                    [&token],
                )
                .unwrap();
            first.open();
            waits.into_iter().for_each(|wait| block_on(wait).unwrap());
            inner.pass();
            assert!(!second.is_open());
            second.open();
            engine.wait_for_var(&token).unwrap();
        });
    }

    #[test]
    fn a_wait_leaves_the_version_alone() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let gate = hold(&engine, value.token());
            for _ in 0..10 {
                drop(engine.wait_for_var_async(&value));
                assert!(engine.wait_for_var_timeout(&value, Duration::ZERO).is_err());
            }
            gate.open();
            engine.wait_for_var(&value).unwrap();
            engine.get(&value).unwrap();
            assert_eq!(value.version(), 1);
        });
    }

    #[test]
    fn a_wait_that_timed_out_can_be_repeated() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            let gate = hold(&engine, &token);
            let start = Instant::now();
            assert!(matches!(engine.wait_for_var_timeout(&token, MOMENT), Err(WaitError::TimedOut)));
            assert!(matches!(engine.wait_for_all_timeout(MOMENT), Err(WaitError::TimedOut)));
            assert!(start.elapsed() >= 2 * MOMENT);
            gate.open();
            engine.wait_for_var_timeout(&token, PATIENCE).unwrap();
            engine.wait_for_all_timeout(PATIENCE).unwrap();
        });
    }

    #[test]
    fn get_clones_the_value_after_all_earlier_mutations() {
        on_kinds(&KINDS, 2, |engine| {
            let value = engine.var(0);
            for number in 1..=500 {
                engine.op("").push(value.write(), move |value| *value = number).unwrap();
                if number % 7 == 0 {
                    assert_eq!(engine.get(&value).unwrap(), number);
                }
            }
            assert_eq!(engine.get(&value).unwrap(), 500);
        });
    }

    /// Other readers go on beside it.
    #[test]
    fn get_does_not_wait_for_readers() {
        on_kinds(&THREADED, 1, |engine| {
            let (value, gate) = with_a_reader(&engine);
            assert_eq!(engine.get(&value).unwrap(), 1);
            gate.open();
        });
    }

    #[test]
    fn wait_for_all_waits_for_everything_pushed_before() {
        on_kinds(&KINDS, 2, |engine| {
            let ran = Arc::new(AtomicUsize::new(0));
            for round in 1..=20 {
                for number in 0..100 {
                    let ran = Arc::clone(&ran);
                    if number % 3 == 0 {
                        engine
                            .push_async(
                                move |_, done| {
                                    drop(thread::spawn(move || {
                                        ran.fetch_add(1, SeqCst);
                                        done.complete();
                                    }));
                                },
                                [],
                                [],
                            )
                            .unwrap();
                    } else {
                        engine.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], []).unwrap();
                    }
                }
                engine.wait_for_all().unwrap();
                assert_eq!(ran.load(SeqCst), round * 100);
            }
        });
    }

    #[test]
    fn wait_for_all_covers_pushes_of_other_threads_that_returned_before() {
        on_kinds(&KINDS, 2, |engine| {
            let ran = Arc::new(AtomicUsize::new(0));
            thread::scope(|scope| {
                for _ in 0..4 {
                    let (engine, ran) = (&engine, Arc::clone(&ran));
                    scope.spawn(move || {
                        for _ in 0..500 {
                            let ran = Arc::clone(&ran);
                            engine.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], []).unwrap();
                        }
                    });
                }
            });
            engine.wait_for_all().unwrap();
            assert_eq!(ran.load(SeqCst), 2000);
        });
    }

    /// Another thread keeps pushing, and always has some operations pending.
    #[test]
    fn wait_for_all_is_not_prolonged_by_later_pushes() {
        on_kinds(&KINDS, 2, |engine| {
            let stop = AtomicBool::new(false);
            let pushed = AtomicUsize::new(0);
            thread::scope(|scope| {
                let (engine, stop, pushed) = (&engine, &stop, &pushed);
                scope.spawn(move || {
                    let (sender, receiver) = mpsc::channel::<Completion>();
                    let mut pending = VecDeque::new();
                    while !stop.load(SeqCst) {
                        let sender = sender.clone();
                        engine.push_async(move |_, done| sender.send(done).unwrap(), [], []).unwrap();
                        pending.push_back(receive(&receiver));
                        if pending.len() > 8 {
                            pending.pop_front().unwrap().complete();
                        }
                        pushed.fetch_add(1, SeqCst);
                    }
                    pending.into_iter().for_each(Completion::complete);
                });
                eventually("the other thread pushes", || pushed.load(SeqCst) > 10);
                let in_time = (0..200).all(|_| engine.wait_for_all_timeout(Duration::from_secs(10)).is_ok());
                stop.store(true, SeqCst);
                assert!(in_time, "a wait for all was prolonged");
            });
        });
    }

    #[test]
    fn wait_for_all_does_not_wait_for_an_operation_pushed_after_it_began() {
        on_kinds(&KINDS, 2, |engine| {
            let (first, second) = (engine.token(), engine.token());
            let early = hold(&engine, &first);
            let future = engine.wait_for_all_async();
            let late = hold(&engine, &second);
            early.open();
            block_on(future).unwrap();
            assert!(matches!(engine.wait_for_all_timeout(MOMENT), Err(WaitError::TimedOut)));
            late.open();
            engine.wait_for_all().unwrap();
        });
    }

    /// The same while many other waits are under way, each of which has something else left to wait for.
    #[test]
    fn wait_for_all_is_exact_however_many_waits_there_are() {
        on_kinds(&KINDS, 2, |engine| {
            let others: Vec<_> = (0..40)
                .map(|_| {
                    let gate = hold(&engine, &engine.token());
                    (gate, engine.wait_for_all_async())
                })
                .collect();
            let (begun, ended) = (Gate::new(), Gate::new());
            thread::scope(|scope| {
                let (engine, begun, inner) = (&engine, &begun, &ended);
                scope.spawn(move || {
                    begun.open();
                    engine.wait_for_all().unwrap();
                    inner.open();
                });
                begun.pass();
                // The other thread is inside its call by now.
                thread::sleep(4 * MOMENT);
                let last = hold(engine, &engine.token());
                let limit = Duration::from_secs(3);
                let (gates, waits): (Vec<_>, Vec<_>) = others.into_iter().unzip();
                gates.iter().for_each(Gate::open);
                let exact = waits.into_iter().all(|wait| common::block_on_within(wait, limit).is_ok());
                let in_time = ended.pass_within(limit);
                last.open();
                assert!(exact, "a future was prolonged by an operation pushed after it was made");
                assert!(in_time, "a wait for all was prolonged by an operation pushed after it began");
            });
        });
    }

    #[test]
    fn many_threads_wait_for_all_at_once() {
        on_kinds(&KINDS, 2, |engine| {
            thread::scope(|scope| {
                for _ in 0..32 {
                    scope.spawn(|| {
                        for _ in 0..20 {
                            let ran = Gate::new();
                            let inner = ran.clone();
                            engine
                                .push_async(
                                    move |_, done| {
                                        drop(thread::spawn(move || {
                                            inner.open();
                                            done.complete();
                                        }));
                                    },
                                    [],
                                    [],
                                )
                                .unwrap();
                            engine.wait_for_all().unwrap();
                            assert!(ran.is_open());
                        }
                    });
                }
            });
        });
    }

    // ------------------------------------------------------------------------------------------- handles ----

    #[test]
    fn a_handle_is_waited_on_awaited_or_dropped() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let push = || {
                engine.op("").submit(value.write(), |value| {
                    *value += 1;
                    *value
                })
            };
            assert_eq!(push().unwrap().wait().unwrap(), 1);
            assert_eq!(block_on(push().unwrap()).unwrap(), 2);
            drop(push().unwrap());
            assert_eq!(push().unwrap().wait_timeout(PATIENCE).unwrap(), 4);
            let handle = push().unwrap();
            eventually("the operation is done", || handle.is_done());
            drop(handle);
            assert_eq!(engine.get(&value).unwrap(), 5);
        });
    }

    #[test]
    fn a_handle_whose_wait_timed_out_can_be_waited_on_again() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let gate = hold(&engine, value.token());
            let mut handle = engine.op("").submit(value.write(), |_| 8).unwrap();
            assert!(!handle.is_done());
            assert!(matches!(handle.wait_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
            assert!(matches!(handle.wait_timeout(MOMENT), Err(WaitError::TimedOut)));
            assert!(poll_once(&mut handle).is_pending());
            gate.open();
            assert_eq!(handle.wait_timeout(Duration::MAX).unwrap(), 8);
            assert!(handle.is_done());
            assert!(matches!(handle.wait_timeout(Duration::MAX), Err(WaitError::ValueTaken)));
            assert!(matches!(handle.wait(), Err(WaitError::ValueTaken)));
        });
    }

    /// When the wait for a handle has returned, the operation's variables have been passed on.
    #[test]
    fn a_handle_is_done_after_its_variables_are_passed_on() {
        on_kinds(&KINDS, 2, |engine| {
            let value = engine.var(0);
            for number in 1..500 {
                engine.op("").submit(value.write(), |value| *value += 1).unwrap().wait().unwrap();
                assert_eq!(value.version(), number);
                engine.wait_for_var_timeout(&value, Duration::ZERO).unwrap();
            }
        });
    }

    #[test]
    fn futures_are_woken_from_other_threads() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            for _ in 0..20 {
                let gate = hold(&engine, value.token());
                let handle = engine.op("").submit(value.write(), |value| *value).unwrap();
                let waits = [engine.wait_for_var_async(&value), engine.wait_for_var_async(&value)];
                let all = engine.wait_for_all_async();
                let opener = thread::spawn(move || {
                    thread::sleep(Duration::from_millis(2));
                    gate.open();
                });
                block_on(async {
                    handle.await.unwrap();
                    for wait in waits {
                        wait.await.unwrap();
                    }
                    all.await.unwrap();
                });
                opener.join().unwrap();
            }
        });
    }

    /// A future that was polled by one task and is awaited by another wakes the one that polled last.
    #[test]
    fn a_future_may_move_between_tasks() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let gate = hold(&engine, value.token());
            let mut handle = engine.op("").submit(value.read(), |_| 1).unwrap();
            let mut wait = engine.wait_for_var_async(&value);
            let mut all = Box::pin(engine.wait_for_all_async());
            assert!(poll_once(&mut handle).is_pending());
            assert!(poll_once(&mut wait).is_pending());
            assert!(poll_once(&mut all).is_pending());
            let other = thread::spawn(move || {
                block_on(async {
                    wait.await.unwrap();
                    all.await.unwrap();
                    handle.await.unwrap()
                })
            });
            thread::sleep(MOMENT);
            gate.open();
            assert_eq!(other.join().unwrap(), 1);
        });
    }

    /// A future that nobody awaits has no effect.
    #[test]
    fn dropped_futures_do_no_harm() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let gate = hold(&engine, value.token());
            for _ in 0..100 {
                drop(engine.wait_for_var_async(&value));
                drop(engine.wait_for_all_async());
                let mut polled = engine.wait_to_read_async(&value);
                assert!(poll_once(&mut polled).is_pending());
                let mut polled = Box::pin(engine.wait_for_all_async());
                assert!(poll_once(&mut polled).is_pending());
            }
            gate.open();
            engine.wait_for_all().unwrap();
        });
    }

    #[test]
    fn futures_may_be_sent() {
        fn sent(_: &(impl Future + Send)) {}
        let engine = engine(EngineKind::Naive, 1);
        let token = engine.token();
        sent(&engine.wait_for_all_async());
        sent(&engine.wait_for_var_async(&token));
        sent(&engine.op("").submit((), |()| 1).unwrap());
    }
}

// ========================================================================================== 6. failure ====

mod failures {
    use super::*;

    fn is_panic(error: &OpError, message: Option<&str>) -> bool {
        matches!(error.cause(), Cause::Panic(own) if own.as_deref() == message)
    }

    #[test]
    fn a_panic_fails_the_operation_and_the_process_goes_on() {
        on_kinds(&KINDS, 1, |engine| {
            let number = 7;
            let (a, b, c) = (engine.var(0), engine.var(0), engine.var(0));
            engine.op("a").push(a.write(), |_| panic!("literal")).unwrap();
            engine.op("b").push(b.write(), move |_| panic!("formatted {number}")).unwrap();
            engine.op("c").push(c.write(), |_| panic_any(7_u64)).unwrap();
            assert!(is_panic(&failure(engine.get(&a)), Some("literal")));
            assert!(is_panic(&failure(engine.get(&b)), Some("formatted 7")));
            assert!(is_panic(&failure(engine.get(&c)), None));
            // The only worker is still there.
            assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
        });
    }

    #[test]
    fn a_failure_tells_the_name_the_location_and_the_cause() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let line = line!() + 1;
            engine.op("parse").push_any(value.write(), |value| "x".parse::<i32>().map(|n| *value = n)).unwrap();
            let error = failure(engine.wait_for_var(&value));
            assert_eq!(error.name(), "parse");
            assert_eq!((error.location().file(), error.location().line()), (file!(), line));
            assert!(matches!(error.cause(), Cause::Error(error) if error.is::<std::num::ParseIntError>()));
            assert!(error.is::<std::num::ParseIntError>() && error.source().is_none());
            let text = error.to_string();
            for part in ["`parse`", file!(), &line.to_string(), "invalid digit"] {
                assert!(text.contains(part), "`{text}` does not contain `{part}`");
            }
            assert!(format!("{error:?}").contains("parse"));
            let waited = WaitError::Failed(error.clone());
            assert_eq!(waited.to_string(), text);
            assert!(waited.source().is_none());
        });
    }

    /// The location is that of the program's own line for every way to push.
    #[test]
    fn every_way_to_push_tells_its_location() {
        on_kinds(&KINDS, 1, |engine| {
            let check = |line: u32, error: OpError| {
                assert_eq!((error.location().file(), error.location().line()), (file!(), line));
            };
            let value = engine.var(0);
            let fresh = || engine.clear_error(&value).unwrap();
            engine.push_sync(|_| Err::<(), _>("no"), [], [value.token()]).unwrap();
            check(line!() - 1, failure(engine.wait_for_var(&value)));
            fresh();
            engine.push_async(|_, done| done.fail("no"), [], [value.token()]).unwrap();
            check(line!() - 1, failure(engine.wait_for_var(&value)));
            fresh();
            let handle = engine.op("").submit(value.write(), |_| panic!("no")).unwrap();
            check(line!() - 1, failure(handle.wait()));
            fresh();
            let handle = engine.op("").submit_any(value.write(), |_| Err::<(), _>("no")).unwrap();
            check(line!() - 1, failure(handle.wait()));
            fresh();
            engine.op("").writes([value.token()]).push_sync(|_| Err::<(), _>("no")).unwrap();
            check(line!() - 1, failure(engine.wait_for_var(&value)));
            fresh();
            engine.op("").writes([value.token()]).push_async_any(raddle::cx(), |_, done| done.fail("no")).unwrap();
            check(line!() - 1, failure(engine.wait_for_var(&value)));
        });
    }

    #[test]
    fn an_operation_that_names_a_failed_variable_is_skipped_and_passes_the_same_error_on() {
        on_kinds(&KINDS, 2, |engine| {
            let tokens: Vec<Token> = (0..20).map(|_| engine.token()).collect();
            let (drops, ran) = (Drops::new(), Arc::new(AtomicUsize::new(0)));
            push_failing(&engine, "first", &[], &[&tokens[0]]);
            for pair in tokens.windows(2) {
                let (captured, ran) = (drops.make(), Arc::clone(&ran));
                engine
                    .push_sync(
                        move |_| {
                            captured.touch();
                            ran.fetch_add(1, SeqCst);
                        },
                        [&pair[0]],
                        [&pair[1]],
                    )
                    .unwrap();
            }
            let first = failure(engine.wait_for_var(&tokens[0]));
            for token in &tokens {
                assert!(failure(engine.wait_for_var(token)).ptr_eq(&first));
                assert_eq!(token.version(), 0);
            }
            assert_eq!(ran.load(SeqCst), 0);
            // What a function has captured that did not run is dropped after the variables were passed on.
            engine.wait_for_all().expect("the failure was told");
            drops.assert_all_gone();
        });
    }

    #[test]
    fn a_mutation_of_a_failed_variable_is_skipped() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(1);
            engine
                .op("first")
                .push_any(value.write(), |value| {
                    *value = 2;
                    Err("half done")
                })
                .unwrap();
            engine.op("second").push(value.write(), |value| *value = 3).unwrap();
            assert_eq!(failure(engine.get(&value)).name(), "first");
            engine.clear_error(&value).unwrap();
            assert_eq!(engine.get(&value).unwrap(), 2);
        });
    }

    #[test]
    fn a_skipped_reader_tells_through_its_handle() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(1);
            engine.op("first").push_any(value.write(), |_| Err("no")).unwrap();
            let first = failure(engine.wait_for_var(&value));
            let submitted = engine.op("").submit(value.read(), |value| *value).unwrap();
            assert!(failure(submitted.wait()).ptr_eq(&first));
            let awaited = engine.op("").submit(value.read(), |value| *value).unwrap();
            assert!(failure(block_on(awaited)).ptr_eq(&first));
        });
    }

    #[test]
    fn a_failing_reader_leaves_what_it_reads_alone() {
        on_kinds(&KINDS, 1, |engine| {
            let (read, written) = (engine.var(1), engine.var(2));
            engine.op("reader").push_any((read.read(), written.write()), |_| Err("no")).unwrap();
            assert_eq!(engine.get(&read).unwrap(), 1);
            assert_eq!(failure(engine.get(&written)).name(), "reader");
        });
    }

    #[test]
    fn every_waiter_sees_the_same_error() {
        on_kinds(&KINDS, 2, |engine| {
            let value = engine.var(0);
            let gate = hold(&engine, value.token());
            engine.op("fails").push_any(value.write(), |_| Err("no")).unwrap();
            let errors = Mutex::new(Vec::new());
            thread::scope(|scope| {
                for number in 0..12 {
                    let (engine, value, errors) = (&engine, &value, &errors);
                    scope.spawn(move || {
                        let error = match number % 6 {
                            0 => failure(engine.wait_for_var(value)),
                            1 => failure(engine.wait_to_read(value)),
                            2 => failure(engine.wait_for_var(value)),
                            3 => failure(engine.get(value)),
                            4 => failure(engine.wait_for_var_timeout(value, Duration::MAX)),
                            _ => failure(block_on(engine.wait_for_var_async(value))),
                        };
                        lock(errors).push(error);
                    });
                }
                thread::sleep(MOMENT);
                gate.open();
            });
            // It stays, and those who come later get it too.
            let first = failure(engine.wait_for_var(&value));
            let errors = lock(&errors).drain(..).collect::<Vec<_>>();
            assert_eq!(errors.len(), 12);
            assert!(errors.iter().all(|error| error.ptr_eq(&first) && error.name() == "fails"));
            assert!(failure(engine.wait_for_var_timeout(&value, Duration::ZERO)).ptr_eq(&first));
            engine.wait_for_all().expect("what was told is not reported again");
            block_on(engine.wait_for_all_async()).expect("nor here");
        });
    }

    #[test]
    fn clear_error_ends_the_failure_in_push_order() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let gate = hold(&engine, value.token());
            engine.op("fails").push_any(value.write(), |_| Err("no")).unwrap();
            let before = engine.op("").submit(value.write(), |value| *value += 1).unwrap();
            engine.clear_error(&value).unwrap();
            let after = engine.op("").submit(value.write(), |value| *value += 10).unwrap();
            gate.open();
            assert_eq!(failure(before.wait()).name(), "fails");
            after.wait().unwrap();
            assert_eq!(engine.get(&value).unwrap(), 10);
            engine.wait_for_all().unwrap();
            assert_eq!(value.version(), 2);
        });
    }

    #[test]
    fn clear_error_of_a_sound_variable_does_nothing() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(3);
            engine.clear_error(&value).unwrap();
            assert_eq!(engine.get(&value).unwrap(), 3);
            assert_eq!(value.version(), 0);
        });
    }

    #[test]
    fn clear_error_heals_one_variable_only() {
        on_kinds(&KINDS, 1, |engine| {
            let (a, b) = (engine.token(), engine.token());
            push_failing(&engine, "both", &[], &[&a, &b]);
            engine.clear_error(&a).unwrap();
            engine.wait_for_var(&a).unwrap();
            engine.wait_for_all().expect("a failure that was cleared somewhere is known");
            assert_eq!(failure(engine.wait_for_var(&b)).name(), "both");
            engine.clear_error(&b).unwrap();
            engine.wait_for_var(&b).unwrap();
        });
    }

    #[test]
    fn overwrite_heals() {
        on_kinds(&KINDS, 1, |engine| {
            let (value, token) = (engine.var(0), engine.token());
            push_failing(&engine, "fails", &[], &[value.token(), &token]);
            engine.op("").push(value.overwrite(), |value| *value = 9).unwrap();
            engine.op("").overwrites([&token]).push_sync(|_| {}).unwrap();
            assert_eq!(engine.get(&value).unwrap(), 9);
            engine.wait_for_var(&token).unwrap();
            engine.wait_for_all().unwrap();
            assert_eq!((value.version(), token.version()), (1, 1));
        });
    }

    #[test]
    fn an_operation_that_overwrites_is_skipped_for_what_it_reads() {
        on_kinds(&KINDS, 1, |engine| {
            let (source, target) = (engine.var(0), engine.var(0));
            push_failing(&engine, "source", &[], &[source.token()]);
            engine.op("").push((source.read(), target.overwrite()), |_| {}).unwrap();
            assert_eq!(failure(engine.get(&target)).name(), "source");
        });
    }

    #[test]
    fn what_is_also_read_or_written_is_not_overwritten() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            push_failing(&engine, "fails", &[], &[&token]);
            engine.op("").overwrites([&token]).reads([&token]).push_sync(|_| {}).unwrap();
            engine.op("").overwrites([&token]).writes([&token]).push_sync(|_| {}).unwrap();
            assert_eq!(failure(engine.wait_for_var(&token)).name(), "fails");
            assert_eq!(token.version(), 0);
        });
    }

    #[test]
    fn a_failed_overwrite_leaves_the_variable_failed() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            engine.op("overwrite").push_any(value.overwrite(), |_| Err("no")).unwrap();
            assert_eq!(failure(engine.get(&value)).name(), "overwrite");
            assert_eq!(value.version(), 0);
        });
    }

    /// The operation that should have healed the variable fails, too. Somebody must be told of that.
    #[test]
    fn a_failed_overwrite_of_a_failed_variable_does_not_hide() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            engine.op("first").push_any(value.write(), |_| Err("no")).unwrap();
            engine.op("second").push_any(value.overwrite(), |_| Err("no")).unwrap();
            assert_told_of_second(&engine, value.token());
        });
    }

    #[test]
    fn a_failed_no_skip_operation_on_a_failed_variable_does_not_hide() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            engine.op("first").push_any(value.write(), |_| Err("no")).unwrap();
            engine.op("second").run_always().push_any(value.write(), |_| Err("no")).unwrap();
            assert_told_of_second(&engine, value.token());
        });
    }

    /// That one of the places that tell of failures tells of `second`, before or after `first` was cleared.
    fn assert_told_of_second(engine: &Engine, variable: &Token) {
        let mut told = vec![failure(engine.wait_for_var(variable)), failure(engine.wait_for_all())];
        engine.clear_error(variable).unwrap();
        engine.wait_for_var(variable).unwrap();
        if let Err(WaitError::Failed(error)) = engine.wait_for_all() {
            told.push(error);
        }
        told.extend(engine.clear_errors().map(|(error, _)| error));
        let names: Vec<_> = told.iter().map(OpError::name).collect();
        assert!(names.contains(&"second"), "nobody was told of the second failure, only of {names:?}");
    }

    #[test]
    fn no_skip_runs() {
        on_kinds(&KINDS, 1, |engine| {
            let (failed, sound) = (engine.var(0), engine.var(0));
            push_failing(&engine, "fails", &[], &[failed.token()]);
            let ran = engine.op("").run_always().submit((failed.write(), sound.write()), |(a, b)| {
                *a += 1;
                *b += 1;
            });
            ran.unwrap().wait().unwrap();
            // Such a run neither ends the failure nor passes it on.
            assert_eq!(failure(engine.get(&failed)).name(), "fails");
            assert_eq!(engine.get(&sound).unwrap(), 1);
            assert_eq!((failed.version(), sound.version()), (1, 1));
            engine.clear_error(&failed).unwrap();
            assert_eq!(engine.get(&failed).unwrap(), 1);
        });
    }

    #[test]
    fn a_failure_without_mutated_variables_is_reported_once_by_its_handle_or_by_wait_for_all() {
        on_kinds(&KINDS, 1, |engine| {
            let read = engine.var(0);
            let handle = engine.op("lonely").submit_any(read.read(), |_| Err::<(), _>("no")).unwrap();
            assert_eq!(failure(handle.wait()).name(), "lonely");
            engine.wait_for_all().expect("the handle has told of it");
            drop(engine.op("alone").submit_any(read.read(), |_| Err::<(), _>("no")).unwrap());
            engine.op("second").push((), |()| panic!("no")).unwrap();
            assert_eq!(failure(engine.wait_for_all()).name(), "alone");
            assert_eq!(failure(engine.wait_for_all()).name(), "second");
            engine.wait_for_all().expect("each was reported once");
            for name in ["third", "fourth", "fifth"] {
                engine.op(name).push_any((), |()| Err("no")).unwrap();
            }
            assert_eq!(failure(engine.wait_for_all()).name(), "third");
            let (first, count) = engine.clear_errors().unwrap();
            assert_eq!((first.name(), count), ("fourth", 2));
            engine.wait_for_all().unwrap();
            assert!(engine.clear_errors().is_none());
            assert_eq!(engine.get(&read).unwrap(), 0);
        });
    }

    /// How many failures an engine keeps; it counts those beyond.
    const KEPT: usize = 4096;
    const BEYOND: usize = 904;

    /// Has `count` operations fail that mutate nothing; they have failed when this returns.
    fn fail_many(engine: &Engine, count: usize) -> Vec<OpHandle<()>> {
        let submit = |_| engine.op("lonely").submit_any((), |()| Err::<(), _>("no")).unwrap();
        let handles: Vec<_> = (0..count).map(submit).collect();
        eventually("all operations have failed", || handles.iter().all(OpHandle::is_done));
        handles
    }

    fn tell(handles: impl IntoIterator<Item = OpHandle<()>>) {
        handles.into_iter().for_each(|handle| assert_eq!(failure(handle.wait()).name(), "lonely"));
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs 5,000 operations")]
    fn clear_errors_counts_what_is_beyond_the_kept_failures() {
        on_kinds(&KINDS, 1, |engine| {
            drop(fail_many(&engine, KEPT + BEYOND));
            let (first, count) = engine.clear_errors().unwrap();
            assert_eq!((first.name(), count), ("lonely", 5000));
            assert!(engine.clear_errors().is_none());
            engine.wait_for_all().unwrap();
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs 5,000 operations")]
    fn clear_errors_finds_what_is_beyond_kept_failures_that_handles_have_told_of() {
        on_kinds(&KINDS, 1, |engine| {
            let kept = fail_many(&engine, KEPT);
            drop(fail_many(&engine, BEYOND));
            tell(kept);
            let (first, count) = engine.clear_errors().expect("904 failures were not told");
            assert_eq!(count, 904);
            assert!(first.to_string().contains(": 904 operations failed"), "{first}");
            assert!(engine.clear_errors().is_none());
            engine.wait_for_all().unwrap();
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs 5,000 operations")]
    fn what_handles_have_told_of_is_not_reported_again_however_much_it_is() {
        on_kinds(&KINDS, 1, |engine| {
            tell(fail_many(&engine, KEPT + BEYOND));
            engine.wait_for_all().expect("the handles have told of all");
            assert!(engine.clear_errors().is_none());
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs 5,000 operations")]
    fn what_handles_have_told_of_beyond_the_kept_failures_is_not_counted() {
        on_kinds(&KINDS, 1, |engine| {
            let kept = fail_many(&engine, KEPT);
            let mut beyond = fail_many(&engine, BEYOND);
            // A failure that is told of twice is taken off once.
            for error in beyond.drain(..900).map(|handle| failure(handle.wait())) {
                drop(WaitError::from(error));
            }
            for handle in kept.into_iter().skip(1) {
                drop(failure(handle.wait()));
            }
            assert_eq!(failure(engine.wait_for_all()).name(), "lonely");
            let error = failure(engine.wait_for_all());
            assert!(error.to_string().contains(": 4 operations failed"), "{error}");
            engine.wait_for_all().expect("each was reported once");
            tell(beyond);
            engine.wait_for_all().expect("each was reported once");
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs 10,000 operations")]
    fn a_handle_that_tells_late_takes_nothing_from_later_failures() {
        on_kinds(&KINDS, 1, |engine| {
            let kept = fail_many(&engine, KEPT);
            let beyond = fail_many(&engine, BEYOND);
            assert_eq!(engine.clear_errors().unwrap().1, 5000);
            drop(fail_many(&engine, KEPT + BEYOND));
            tell(kept);
            tell(beyond);
            assert_eq!(engine.clear_errors().unwrap().1, 5000);
            engine.wait_for_all().unwrap();
        });
    }

    /// None hides and none is taken twice, when handles tell of failures while others are cleared.
    #[test]
    #[cfg_attr(miri, ignore = "needs 60,000 operations")]
    fn failures_are_cleared_once_while_handles_tell_of_others() {
        on_kinds(&THREADED, 2, |engine| {
            for round in 0..10 {
                let mut handles = fail_many(&engine, 6000).into_iter();
                let tellers: [Vec<_>; 2] = [(); 2].map(|()| handles.by_ref().take(3000).step_by(2).collect());
                let start = Meeting::new(3);
                let cleared: u64 = thread::scope(|scope| {
                    for handles in tellers {
                        let start = &start;
                        scope.spawn(move || {
                            start.join();
                            tell(handles);
                        });
                    }
                    start.join();
                    // More or less of them are told by then.
                    (0..round * 100).for_each(|_| thread::yield_now());
                    engine.clear_errors().map_or(0, |(_, count)| count)
                });
                assert!((3000..=6000).contains(&cleared), "{cleared} of 6,000 were cleared, and 3,000 were told");
                engine.wait_for_all().expect("all were told or cleared");
            }
        });
    }

    #[test]
    fn wait_for_all_reports_the_earliest_failure() {
        on_kinds(&KINDS, 1, |engine| {
            let tokens: Vec<Token> = (0..3).map(|_| engine.token()).collect();
            for (name, token) in ["a", "b", "c"].into_iter().zip(tokens.iter().rev()) {
                // With one worker they fail in this order.
                push_failing(&engine, name, &[], &[token]);
            }
            for name in ["a", "b", "c"] {
                assert_eq!(failure(engine.wait_for_all()).name(), name);
            }
            engine.wait_for_all().expect("each was reported once");
            for token in &tokens {
                assert!(engine.wait_for_var(token).is_err(), "a failed variable goes on telling");
            }
        });
    }

    /// A failed variable that is gone, and of whose failure nobody was told, is still reported.
    #[test]
    fn the_failure_of_a_dropped_variable_does_not_hide() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            push_failing(&engine, "unseen", &[], &[&token]);
            drop(token);
            assert_eq!(failure(engine.wait_for_all()).name(), "unseen");
        });
    }

    #[test]
    fn the_reported_failure_of_a_dropped_variable_is_over() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            push_failing(&engine, "seen", &[], &[&token]);
            assert!(engine.wait_for_var(&token).is_err());
            drop(token);
            engine.wait_for_all().unwrap();
        });
    }

    /// What the failure reached on its way does not matter, nor when that is freed.
    #[test]
    fn a_failure_that_was_told_and_cleared_is_not_reported_again() {
        on_kinds(&KINDS, 2, |engine| {
            let kept = engine.var(0);
            for round in 0..2000 {
                {
                    let temporary = engine.var(0);
                    engine.op("fails").push_any(temporary.write(), |_| Err("no")).unwrap();
                    engine.op("").push((temporary.read(), kept.write()), |(from, to)| *to = *from).unwrap();
                }
                if round % 2 == 0 {
                    assert_eq!(failure(engine.get(&kept)).name(), "fails");
                }
                engine.clear_error(&kept).unwrap();
                engine.wait_for_all().unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
        });
    }

    #[test]
    fn deletions_run_on_failed_variables() {
        on_kinds(&KINDS, 1, |engine| {
            let drops = Drops::new();
            let value = engine.var(drops.make());
            push_failing(&engine, "fails", &[], &[value.token()]);
            let ran = Gate::new();
            let inner = ran.clone();
            engine.delete_variable(&value, move |_| inner.open()).unwrap();
            ran.pass();
            drops.assert_all_gone();
            let dropped = engine.var(drops.make());
            push_failing(&engine, "fails", &[], &[dropped.token()]);
            drop(dropped);
            eventually("the value is dropped", || drops.dropped() == 2);
        });
    }

    /// A failure never hides, also when it is the deletion that fails.
    #[test]
    fn a_deletion_that_panics_is_reported() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.delete_variable(&token, |_| panic!("in the deletion")).unwrap();
            let told = [engine.wait_for_var(&token), engine.wait_for_all()];
            let told = told.into_iter().find_map(Result::err).expect("nobody is told of the panic");
            assert!(is_panic(&failure(Err::<(), _>(told)), Some("in the deletion")));
        });
    }

    #[test]
    fn a_value_whose_drop_panics_is_reported() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(common::PanicsOnDrop("in the drop"));
            drop(value);
            assert!(is_panic(&failure(engine.wait_for_all()), Some("in the drop")));
        });
    }

    #[test]
    fn a_skipped_async_operation_never_starts() {
        on_kinds(&KINDS, 1, |engine| {
            let (token, drops) = (engine.token(), Drops::new());
            push_failing(&engine, "fails", &[], &[&token]);
            let captured = drops.make();
            engine
                .push_async(
                    move |_, done| {
                        captured.touch();
                        done.complete();
                    },
                    [&token],
                    [],
                )
                .unwrap();
            assert_eq!(failure(engine.wait_for_var(&token)).name(), "fails");
            engine.wait_for_all().expect("the failure was told");
            drops.assert_all_gone();
        });
    }

    #[test]
    fn an_error_of_a_deeper_cause_is_reached_through_source() {
        on_kinds(&[EngineKind::Naive], 1, |engine| {
            let token = engine.token();
            engine.push_sync(|_| Err::<(), _>(std::io::Error::other("disk")), [], [&token]).unwrap();
            let error = failure(engine.wait_for_var(&token));
            assert!(error.downcast_ref::<std::io::Error>().is_some_and(|error| error.to_string() == "disk"));
            // The message of each error is in that of the one before it, and is not repeated by the chain.
            let (mut chain, mut at) = (error.to_string(), error.source());
            while let Some(error) = at {
                chain += &format!(": {error}");
                at = error.source();
            }
            assert_eq!(chain.matches("disk").count(), 1, "{chain}");
        });
    }

    fn shown<T: Debug + ToString>(error: T) {
        assert!(!error.to_string().is_empty());
        assert!(!format!("{error:?}").is_empty());
    }

    #[test]
    fn every_error_has_words() {
        [PushError::ForeignVariable, PushError::DeletedVariable, PushError::AliasedVariable, PushError::ShutDown]
            .into_iter()
            .for_each(shown);
        shown(PushError::NoSuchDevice(Device::Gpu(1)));
        [WaitError::TimedOut, WaitError::WouldDeadlock, WaitError::TooManyWaiting, WaitError::ValueTaken]
            .into_iter()
            .for_each(shown);
        shown(WaitError::Refused(PushError::ForeignVariable));
        [ShutdownError::TimedOut, ShutdownError::InsideOperation].into_iter().for_each(shown);
    }
}

// ========================================================================================= 7. lifetime ====

mod lifetime {
    use super::*;

    #[test]
    fn deletion_runs_after_pending_and_on_failed_variables() {
        on_kinds(&KINDS, 1, |engine| {
            let (value, journal) = (engine.var(0), Journal::new());
            let gate = hold(&engine, value.token());
            for number in 0..5 {
                let journal = journal.clone();
                engine.op("").push(value.read(), move |_| journal.add(number)).unwrap();
            }
            let inner = journal.clone();
            engine
                .op("")
                .push_any(value.write(), move |_| {
                    inner.add(100);
                    Err("no")
                })
                .unwrap();
            let inner = journal.clone();
            engine.delete_variable(&value, move |_| inner.add(1000)).unwrap();
            assert_eq!(journal.len(), 0);
            gate.open();
            // A wait for a deleted variable waits for the deletion.
            let _ = engine.wait_for_var(&value);
            let mut order = journal.take();
            order[..5].sort_unstable();
            assert_eq!(order, [0, 1, 2, 3, 4, 100, 1000]);
        });
    }

    #[test]
    fn a_deletion_drops_the_value_before_its_function_runs() {
        on_kinds(&KINDS, 1, |engine| {
            let drops = Drops::new();
            let value = engine.var(drops.make());
            let (sender, receiver) = mpsc::channel();
            let inner = drops.clone();
            engine.delete_variable(&value, move |_| sender.send(inner.dropped()).unwrap()).unwrap();
            assert_eq!(receive(&receiver), 1);
            drop(value);
            engine.wait_for_all().unwrap();
            drops.assert_all_gone();
        });
    }

    #[test]
    fn a_deleted_variable_refuses_everything_but_waits() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            engine.delete_variable(&value, |_| {}).unwrap();
            let deleted = PushError::DeletedVariable;
            assert_eq!(engine.op("").push(value.read(), |_| {}), Err(deleted.clone()));
            assert_eq!(engine.op("").push(value.overwrite(), |_| {}), Err(deleted.clone()));
            assert_eq!(engine.op("").submit(value.write(), |_| {}).map(drop), Err(deleted.clone()));
            assert_eq!(engine.push_sync(|_| {}, [value.token()], []), Err(deleted.clone()));
            assert_eq!(engine.op("").operator(value.read(), |_| {}).map(drop), Err(deleted.clone()));
            assert_eq!(engine.delete_variable(&value, |_| {}), Err(deleted.clone()));
            assert_eq!(engine.clear_error(&value), Err(deleted.clone()));
            assert!(matches!(engine.get(&value), Err(WaitError::Refused(error)) if error == deleted));
            engine.wait_for_var(&value).unwrap();
            engine.wait_to_read(&value).unwrap();
            block_on(engine.wait_for_var_async(&value)).unwrap();
        });
    }

    #[test]
    fn last_handle_dropped_drops_the_value_on_a_worker() {
        struct Tells(mpsc::Sender<String>);
        impl Drop for Tells {
            fn drop(&mut self) {
                let _ = self.0.send(thread::current().name().unwrap_or_default().to_owned());
            }
        }
        on_kinds(&THREADED, 1, |engine| {
            let (sender, receiver) = mpsc::channel();
            let value = engine.var(Tells(sender));
            let clone = value.clone();
            let gate = hold(&engine, value.token());
            drop(value);
            drop(clone);
            assert!(receiver.recv_timeout(MOMENT).is_err(), "the value is gone while an operation holds it");
            gate.open();
            let thread = receive(&receiver);
            assert!(thread.starts_with("raddle-cpu-"), "the value was dropped on `{thread}`");
        });
    }

    #[test]
    fn a_dropped_variable_stays_until_its_operations_are_done() {
        on_kinds(&KINDS, 2, |engine| {
            for _ in 0..200 {
                let drops = Drops::new();
                let value = engine.var(drops.make());
                for _ in 0..5 {
                    engine.op("").push(value.write(), |value| value.touch()).unwrap();
                    engine.op("").push(value.read(), |value| value.touch()).unwrap();
                }
                drop(value);
                engine.wait_for_all().unwrap();
                drops.assert_all_gone();
            }
        });
    }

    #[test]
    fn version_counts_mutations_that_ran_to_completion() {
        on_kinds(&KINDS, 2, |engine| {
            let value = engine.var(0);
            assert_eq!(value.version(), 0);
            for _ in 0..10 {
                engine.op("").push(value.read(), |_| {}).unwrap();
            }
            engine.wait_for_var(&value).unwrap();
            assert_eq!(value.version(), 0);
            for number in 1..=10 {
                engine.op("").push(value.write(), |_| {}).unwrap();
                engine.wait_to_read(&value).unwrap();
                assert_eq!(value.version(), number);
            }
            engine.op("").push(value.overwrite(), |_| {}).unwrap();
            engine.wait_to_read(&value).unwrap();
            assert_eq!(value.version(), 11);
        });
    }

    #[test]
    fn a_skipped_mutation_does_not_count_in_version() {
        on_kinds(&KINDS, 1, |engine| {
            let (failed, after) = (engine.token(), engine.token());
            engine.push_sync(|_| {}, [], [&failed, &after]).unwrap();
            // A failed one does not count, and nor does one that is skipped for it.
            push_failing(&engine, "fails", &[], &[&failed]);
            engine.push_sync(|_| {}, [], [&failed]).unwrap();
            engine.push_sync(|_| {}, [&failed], [&after]).unwrap();
            engine.push_async(|_, done| drop(done), [], [&after]).unwrap();
            engine.wait_for_all().unwrap_err();
            assert_eq!((failed.version(), after.version()), (1, 1));
            engine.clear_error(&failed).unwrap();
            engine.wait_for_var(&failed).unwrap();
            assert_eq!(failed.version(), 1);
        });
    }

    #[test]
    fn engines_are_values() {
        watched(|| {
            let engines: Vec<_> = (0..10).map(|number| engine(KINDS[number % 3], 1)).collect();
            let values: Vec<_> = engines.iter().map(|engine| engine.var(0)).collect();
            for _ in 0..100 {
                for (engine, value) in engines.iter().zip(&values) {
                    engine.op("").push(value.write(), |value| *value += 1).unwrap();
                }
            }
            for (engine, value) in engines.iter().zip(&values) {
                assert_eq!(engine.get(value).unwrap(), 100);
            }
        });
    }

    #[test]
    fn the_global_engine_is_one() {
        watched(|| {
            let threads: Vec<_> =
                (0..8).map(|_| thread::spawn(|| std::ptr::from_ref(Engine::global().unwrap()).addr())).collect();
            let addresses: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(addresses.iter().all(|address| *address == addresses[0]));
            let engine = Engine::global().unwrap();
            let value = engine.var(1);
            engine.op("").push(value.write(), |value| *value += 1).unwrap();
            assert_eq!(engine.get(&value).unwrap(), 2);
        });
    }

    #[test]
    fn dropping_the_engine_drains_it() {
        on_kinds(&KINDS, 2, |engine| {
            let ran = Arc::new(AtomicUsize::new(0));
            let value = engine.token();
            for number in 0..500 {
                let ran = Arc::clone(&ran);
                if number % 50 == 0 {
                    let complete = move |done: Completion| {
                        ran.fetch_add(1, SeqCst);
                        done.complete();
                    };
                    engine
                        .push_async(move |_, done| drop(thread::spawn(move || complete(done))), [], [&value])
                        .unwrap();
                } else {
                    engine.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], [&value]).unwrap();
                }
            }
            drop(engine);
            assert_eq!(ran.load(SeqCst), 500);
        });
    }

    #[test]
    fn drain_runs_everything_that_was_pushed() {
        on_kinds(&KINDS, 2, |engine| {
            let value = engine.var(0);
            for _ in 0..1000 {
                engine.op("").push(value.write(), |value| *value += 1).unwrap();
            }
            engine.shutdown(Shutdown::Drain, None).unwrap();
            assert_eq!(value.version(), 1000);
            // Values can still be read.
            assert_eq!(engine.get(&value).unwrap(), 1000);
            assert_eq!(engine.op("").push(value.write(), |_| {}), Err(PushError::ShutDown));
            assert_eq!(engine.push_sync(|_| {}, [], []), Err(PushError::ShutDown));
            engine.wait_for_var(&value).unwrap();
            engine.wait_for_all().unwrap();
        });
    }

    #[test]
    fn drain_lets_operations_push_and_refuses_others() {
        on_kinds(&KINDS, 2, |engine| {
            let (token, value) = (engine.token(), engine.var(0));
            let gate = hold(&engine, &token);
            let inner_value = value.clone();
            engine
                .push_sync(
                    move |cx| {
                        let engine = cx.engine();
                        let deeper = inner_value.clone();
                        engine
                            .push_sync(
                                move |cx| cx.engine().op("").push(deeper.write(), |value| *value += 1).unwrap(),
                                [],
                                [],
                            )
                            .unwrap();
                    },
                    [&token],
                    [],
                )
                .unwrap();
            assert_eq!(engine.shutdown(Shutdown::Drain, Some(MOMENT)), Err(ShutdownError::TimedOut));
            assert_eq!(engine.push_sync(|_| {}, [], []), Err(PushError::ShutDown));
            gate.open();
            engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
            assert_eq!(engine.get(&value).unwrap(), 1);
        });
    }

    #[test]
    fn drain_with_a_deadline_gives_up_waiting_and_goes_on() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let gate = hold(&engine, value.token());
            engine.op("").push(value.write(), |value| *value = 1).unwrap();
            assert_eq!(engine.shutdown(Shutdown::Drain, Some(Duration::ZERO)), Err(ShutdownError::TimedOut));
            assert_eq!(engine.shutdown(Shutdown::Drain, Some(MOMENT)), Err(ShutdownError::TimedOut));
            gate.open();
            engine.shutdown(Shutdown::Drain, None).unwrap();
            assert_eq!(engine.get(&value).unwrap(), 1);
            engine.shutdown(Shutdown::Drain, Some(Duration::ZERO)).unwrap();
        });
    }

    #[test]
    fn cancel_fails_what_has_not_started_and_waiters_return() {
        on_kinds(&KINDS, 1, |engine| {
            let (drops, ran) = (Drops::new(), Arc::new(AtomicUsize::new(0)));
            let value = engine.var(drops.make());
            let gate = hold(&engine, value.token());
            let handles: Vec<_> = (0..20)
                .map(|_| {
                    let (captured, ran) = (drops.make(), Arc::clone(&ran));
                    let f = move |_: &mut common::Droppable| {
                        captured.touch();
                        ran.fetch_add(1, SeqCst);
                    };
                    engine.op("cancelled").submit(value.write(), f).unwrap()
                })
                .collect();
            let errors = Mutex::new(Vec::new());
            thread::scope(|scope| {
                let (engine, value, errors) = (&engine, &value, &errors);
                // The list is not locked while a thread waits.
                let add = |error: OpError| lock(errors).push(error);
                scope.spawn(move || add(failure(engine.wait_for_var(value))));
                scope.spawn(move || add(failure(engine.wait_to_read(value))));
                // Who is told of the last one is up to the threads.
                scope.spawn(move || engine.wait_for_all().map_err(|error| add(failure(Err::<(), _>(error)))));
                scope.spawn(move || add(failure(block_on(engine.wait_for_var_async(value)))));
                scope.spawn(move || handles.into_iter().for_each(|handle| add(failure(handle.wait()))));
                thread::sleep(MOMENT);
                // The one that has started goes on.
                assert_eq!(engine.shutdown(Shutdown::Cancel, Some(MOMENT)), Err(ShutdownError::TimedOut));
                assert!(lock(errors).is_empty());
                gate.open();
                engine.shutdown(Shutdown::Cancel, Some(PATIENCE)).unwrap();
            });
            let errors = lock(&errors);
            assert!((23..=24).contains(&errors.len()), "{}", errors.len());
            for error in errors.iter() {
                assert!(matches!(error.cause(), Cause::Cancelled), "{error}");
                assert_eq!(error.name(), "cancelled");
            }
            assert_eq!(ran.load(SeqCst), 0);
            assert_eq!(drops.dropped(), 20, "the closures are not all gone, or the value is");
            // Only the one that had started counts.
            assert_eq!(value.version(), 1);
            drop(value);
            drops.assert_all_gone();
        });
    }

    #[test]
    fn cancel_lets_deletions_run() {
        on_kinds(&KINDS, 1, |engine| {
            let (drops, journal) = (Drops::new(), Journal::new());
            let (deleted, dropped) = (engine.var(drops.make()), engine.var(drops.make()));
            let gates = [hold(&engine, deleted.token()), hold(&engine, dropped.token())];
            let inner = journal.clone();
            engine.op("").push(deleted.write(), move |_| inner.add("operation")).unwrap();
            let inner = journal.clone();
            engine.delete_variable(&deleted, move |_| inner.add("deletion")).unwrap();
            let inner = journal.clone();
            engine.op("").cleanup().reads([dropped.token()]).push_sync(move |_| inner.add("property")).unwrap();
            drop(dropped);
            engine.notify_shutdown();
            assert_eq!(engine.push_sync(|_| {}, [], []), Err(PushError::ShutDown));
            gates.iter().for_each(Gate::open);
            engine.shutdown(Shutdown::Cancel, None).unwrap();
            let mut journal = journal.take();
            journal.sort_unstable();
            assert_eq!(journal, ["deletion", "property"]);
            drops.assert_all_gone();
        });
    }

    #[test]
    fn cancel_refuses_pushes_of_operations() {
        on_kinds(&THREADED, 1, |engine| {
            let (sender, receiver) = mpsc::channel();
            let (started, gate) = (Gate::new(), Gate::new());
            let (inner_started, inner_gate) = (started.clone(), gate.clone());
            engine
                .push_sync(
                    move |cx| {
                        inner_started.open();
                        inner_gate.pass();
                        sender.send(cx.engine().push_sync(|_| {}, [], [])).unwrap();
                    },
                    [],
                    [],
                )
                .unwrap();
            started.pass();
            engine.notify_shutdown();
            gate.open();
            assert_eq!(receive(&receiver), Err(PushError::ShutDown));
            engine.shutdown(Shutdown::Cancel, None).unwrap();
        });
    }

    /// Each operation pushes the next one, so that exactly one is pending at any time, and none when nobody looks closely.
    #[test]
    fn cancel_ends_a_drain_that_does_not_come_to_its_end() {
        on_kinds(&THREADED, 1, |engine| {
            fn again(cx: &OpContext<'_>) {
                // Refused once the engine cancels.
                let _ = cx.engine().push_sync(again, [], []);
            }
            let kind = engine.kind();
            for _ in 0..40 {
                let engine = common::engine(kind, 1);
                engine.push_sync(again, [], []).unwrap();
                let drained = engine.shutdown(Shutdown::Drain, Some(Duration::from_millis(5)));
                assert_eq!(drained, Err(ShutdownError::TimedOut));
                engine.shutdown(Shutdown::Cancel, Some(PATIENCE)).unwrap();
            }
        });
    }

    #[test]
    fn the_naive_engine_that_pushes_itself_for_ever_can_be_cancelled() {
        watched(|| {
            let engine = engine(EngineKind::Naive, 1);
            // An operation that pushes on the variable it holds runs again when it has ended.
            let token = engine.token();
            fn again(cx: &OpContext<'_>, token: Token) {
                let next = token.clone();
                let _ = cx.engine().push_sync(move |cx| again(cx, next), [], [&token]);
            }
            let pusher = {
                let (engine, token) = (engine.clone(), token.clone());
                thread::spawn(move || {
                    let next = token.clone();
                    engine.push_sync(move |cx| again(cx, next), [], [&token])
                })
            };
            thread::sleep(MOMENT);
            assert_eq!(engine.shutdown(Shutdown::Drain, Some(MOMENT)), Err(ShutdownError::TimedOut));
            engine.shutdown(Shutdown::Cancel, Some(PATIENCE)).unwrap();
            assert_eq!(pusher.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn cancelled_operations_without_mutated_variables_are_reported() {
        on_kinds(&THREADED, 1, |engine| {
            let gate = occupy(&engine, 1);
            engine.op("cancelled").push((), |()| {}).unwrap();
            engine.notify_shutdown();
            gate.open();
            engine.shutdown(Shutdown::Cancel, None).unwrap();
            let error = failure(engine.wait_for_all());
            assert!(matches!(error.cause(), Cause::Cancelled));
            assert_eq!(error.name(), "cancelled");
        });
    }

    #[test]
    fn a_shutdown_inside_an_operation_goes_on_by_itself() {
        on_kinds(&KINDS, 1, |engine| {
            let (sender, receiver) = mpsc::channel();
            engine
                .push_sync(move |cx| sender.send(cx.engine().shutdown(Shutdown::Drain, None)).unwrap(), [], [])
                .unwrap();
            assert_eq!(receive(&receiver), Err(ShutdownError::InsideOperation));
            assert_eq!(engine.push_sync(|_| {}, [], []), Err(PushError::ShutDown));
            engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
        });
    }

    #[test]
    fn operators_are_refused_after_a_shutdown() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let operator = engine.op("").operator(value.write(), |value| *value += 1).unwrap();
            operator.push().unwrap();
            engine.shutdown(Shutdown::Drain, None).unwrap();
            assert_eq!(operator.push(), Err(PushError::ShutDown));
            assert_eq!(engine.get(&value).unwrap(), 1);
        });
    }

    #[test]
    fn clones_keep_the_engine_open() {
        on_kinds(&KINDS, 1, |engine| {
            let clone = engine.clone();
            drop(engine);
            assert_eq!(clone.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
        });
    }

    /// Variables may outlive their engine, and be made after its shutdown.
    #[test]
    fn variables_outlive_their_engine() {
        on_kinds(&KINDS, 1, |engine| {
            let drops = Drops::new();
            let value = engine.var(drops.make());
            let operator = engine.op("").operator(value.read(), |value| value.touch()).unwrap();
            engine.shutdown(Shutdown::Drain, None).unwrap();
            let late = engine.var(drops.make());
            engine.delete_variable(&late, |_| {}).unwrap();
            drop(engine);
            assert_eq!(drops.dropped(), 1);
            assert_eq!(operator.push(), Err(PushError::ShutDown));
            drop(operator);
            assert_eq!(drops.dropped(), 1);
            drop((value, late));
            drops.assert_all_gone();
        });
    }
}

// ========================================================================================== 9. engines ====

mod engines {
    use super::*;

    #[test]
    fn the_naive_engine_runs_each_operation_inside_its_push() {
        watched(|| {
            let engine = engine(EngineKind::Naive, 1);
            assert_eq!(engine.kind(), EngineKind::Naive);
            assert!(engine.placements().is_empty());
            let journal = Journal::new();
            let (a, b) = (engine.token(), engine.token());
            for number in 0..100 {
                let (inner, token) = (journal.clone(), if number % 2 == 0 { &a } else { &b });
                let f = move |cx: &OpContext<'_>| {
                    assert_eq!(cx.worker(), None);
                    inner.add((number, thread::current().id()));
                };
                engine.op("").priority(-number).writes([token]).push_sync(f).unwrap();
                assert_eq!(journal.len(), number as usize + 1, "the push has returned before the operation ran");
            }
            assert!(journal.take().into_iter().eq((0..100).map(|number| (number, thread::current().id()))));
        });
    }

    /// Not even with an operation that waits for another which conflicts with what runs is an order broken.
    #[test]
    fn the_naive_engine_puts_off_what_conflicts_with_what_runs() {
        watched(|| {
            let engine = engine(EngineKind::Naive, 1);
            let (token, journal) = (engine.token(), Journal::new());
            let (own, inner) = (token.clone(), journal.clone());
            engine
                .push_sync(
                    move |cx| {
                        let later = inner.clone();
                        cx.engine().push_sync(move |_| later.add("inner"), [], [&own]).unwrap();
                        inner.add("outer");
                    },
                    [],
                    [&token],
                )
                .unwrap();
            assert_eq!(journal.take(), ["outer", "inner"]);
        });
    }

    /// A queue behind one asynchronous operation must not become a recursion when that completes.
    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn a_long_queue_of_the_naive_engine_is_no_recursion() {
        child_succeeds("engines::in_a_child_a_long_queue_of_the_naive_engine");
    }

    #[test]
    #[ignore = "run by another test in a process of its own, because it may take that down"]
    fn in_a_child_a_long_queue_of_the_naive_engine() {
        if !is_child() {
            return;
        }
        let engine = engine(EngineKind::Naive, 1);
        let value = engine.var(0_usize);
        let gate = hold(&engine, value.token());
        for _ in 0..100_000 {
            engine.op("").push(value.write(), |value| *value += 1).unwrap();
        }
        gate.open();
        assert_eq!(engine.get(&value).unwrap(), 100_000);
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn a_long_queue_of_asynchronous_operations_of_the_naive_engine_is_no_recursion() {
        child_succeeds("engines::in_a_child_a_long_asynchronous_queue_of_the_naive_engine");
    }

    #[test]
    #[ignore = "run by another test in a process of its own, because it may take that down"]
    fn in_a_child_a_long_asynchronous_queue_of_the_naive_engine() {
        if !is_child() {
            return;
        }
        let engine = engine(EngineKind::Naive, 1);
        let token = engine.token();
        let gate = hold(&engine, &token);
        for _ in 0..100_000 {
            engine.push_async(|_, done| done.complete(), [], [&token]).unwrap();
        }
        gate.open();
        engine.wait_for_var(&token).unwrap();
        assert_eq!(token.version(), 100_001);
    }

    /// Operations that begin on the pushing thread, and push others that do: on the naive engine all, elsewhere those with
    /// [`Property::Async`].
    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn pushes_inside_pushes_are_no_recursion() {
        for kinds in ["Naive Naive", "Pooled Pooled", "PerDevice PerDevice", "Naive Pooled"] {
            let variables = [("RADDLE_TEST_KIND", kinds)];
            let (success, text) = common::child("engines::in_a_child_pushes_inside_pushes", &variables);
            assert!(success, "{kinds}: {text}");
        }
    }

    #[test]
    #[ignore = "run by another test in a process of its own, because it may take that down"]
    fn in_a_child_pushes_inside_pushes() {
        const DEPTH: usize = 100_000;
        fn descend(here: Engine, there: Engine, count: Arc<AtomicUsize>) {
            if count.fetch_add(1, SeqCst) + 1 < DEPTH {
                let (next_here, next_there) = (there.clone(), here);
                there.op("").eager().push((), move |()| descend(next_here, next_there, count)).unwrap();
            }
        }
        if !is_child() {
            return;
        }
        let kinds = std::env::var("RADDLE_TEST_KIND").unwrap();
        let mut kinds = kinds.split(' ').map(|kind| kind.parse().unwrap());
        let here = engine(kinds.next().unwrap(), 1);
        // On one engine, and on two in turns.
        for there in [here.clone(), engine(kinds.next().unwrap(), 1)] {
            let count = Arc::new(AtomicUsize::new(0));
            descend(here.clone(), there, Arc::clone(&count));
            eventually("the deepest has run", || count.load(SeqCst) == DEPTH);
        }
    }

    /// As deep as programs nest, what the naive engine is given has run when the push returns.
    #[test]
    fn a_naive_engine_runs_operations_inside_pushes_that_are_deep() {
        fn descend(engine: &Engine, depth: usize, ran: &Arc<AtomicUsize>) {
            let (inside, count) = (engine.clone(), Arc::clone(ran));
            let before = ran.load(SeqCst);
            let push = engine.op("").push((), move |()| {
                count.fetch_add(1, SeqCst);
                if depth > 0 {
                    descend(&inside, depth - 1, &count);
                }
            });
            push.unwrap();
            assert_eq!(ran.load(SeqCst), before + depth + 1, "a push returned before its operation ran");
        }
        watched(|| descend(&engine(EngineKind::Naive, 1), 200, &Arc::default()));
    }

    /// Deeper than the stack has room for, what was pushed can still be asked for, and waited for.
    #[test]
    #[cfg_attr(miri, ignore = "uses much of the stack")]
    fn a_naive_engine_runs_what_is_asked_for_at_any_depth() {
        fn descend(engine: &Engine, depth: usize, polls: bool) -> usize {
            let inside = engine.clone();
            let next =
                engine.op("").submit((), move |()| if depth == 0 { 0 } else { descend(&inside, depth - 1, polls) });
            let next = next.unwrap();
            while polls && !next.is_done() {
                thread::yield_now();
            }
            1 + next.wait().unwrap()
        }
        for polls in [false, true] {
            watched(move || assert_eq!(descend(&engine(EngineKind::Naive, 1), 20_000, polls), 20_001));
        }
    }

    /// Variables that hold variables, a long chain of them, are dropped without a recursion.
    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn a_long_chain_of_variables_is_dropped_without_recursion() {
        for kind in KINDS {
            let (success, text) = common::child(
                "engines::in_a_child_a_long_chain_of_variables",
                &[("RADDLE_TEST_KIND", &kind.to_string())],
            );
            assert!(success, "{kind}: {text}");
        }
    }

    #[test]
    #[ignore = "run by another test in a process of its own, because it may take that down"]
    fn in_a_child_a_long_chain_of_variables() {
        struct Link(#[expect(dead_code, reason = "it is there to be dropped")] Option<Var<Link>>);
        if !is_child() {
            return;
        }
        let kind = std::env::var("RADDLE_TEST_KIND").unwrap().parse().unwrap();
        for shut_down in [false, true] {
            let engine = engine(kind, 1);
            let mut head = None;
            for _ in 0..100_000 {
                head = Some(engine.var(Link(head)));
            }
            if shut_down {
                engine.shutdown(Shutdown::Drain, None).unwrap();
            }
            // Some threads have little of a stack. What sanitizers add to it is not the library's.
            let size = if cfg!(any(raddle_unpooled, raddle_tsan)) { 2 << 20 } else { 128 << 10 };
            let small = thread::Builder::new().stack_size(size).spawn(move || drop(head)).unwrap();
            small.join().unwrap();
            if !shut_down {
                engine.shutdown(Shutdown::Drain, None).unwrap();
            }
        }
    }

    #[test]
    fn kinds_have_names() {
        for kind in KINDS {
            assert_eq!(kind.to_string().parse::<EngineKind>().unwrap(), kind);
            assert_eq!(kind.to_string().to_lowercase().parse::<EngineKind>().unwrap(), kind);
        }
        assert!("ThreadedEngine".parse::<EngineKind>().is_err());
        assert_eq!(EngineKind::default(), EngineKind::PerDevice);
    }
}

// ======================================================================================= 10. scheduling ====

mod scheduling {
    use super::*;

    /// The first successor goes straight to the worker's next slot, where nobody can steal it.
    #[test]
    fn a_short_chain_stays_on_its_worker() {
        on_kinds(&THREADED, 4, |engine| {
            let (chain, journal, gate, started) = (engine.token(), Journal::new(), Gate::new(), Gate::new());
            let (inner_gate, inner_started, inner) = (gate.clone(), started.clone(), journal.clone());
            engine
                .push_sync(
                    move |_| {
                        inner_started.open();
                        inner_gate.pass();
                        inner.add(thread::current().id());
                    },
                    [],
                    [&chain],
                )
                .unwrap();
            started.pass();
            for _ in 0..20 {
                let journal = journal.clone();
                engine.push_sync(move |_| journal.add(thread::current().id()), [], [&chain]).unwrap();
            }
            gate.open();
            engine.wait_for_all().unwrap();
            let threads = journal.take();
            assert!(threads.iter().all(|id| *id == threads[0]), "a chain of 20 moved to another worker");
        });
    }

    #[test]
    fn operations_pushed_by_an_operation_are_taken_by_others() {
        on_kinds(&THREADED, 2, |engine| {
            let handle = engine
                .op("")
                .submit((), {
                    let engine = engine.clone();
                    move |()| {
                        let taken = Gate::new();
                        let inner = taken.clone();
                        engine.push_sync(move |_| inner.open(), [], []).unwrap();
                        // This worker is busy until another has taken it.
                        taken.pass_within(PATIENCE)
                    }
                })
                .unwrap();
            assert!(handle.wait().unwrap(), "nobody took it");
        });
    }

    #[test]
    fn every_worker_takes_part() {
        on_kinds(&THREADED, 4, |engine| {
            let meeting = Meeting::new(4);
            let handles = [(); 4].map(|()| {
                let meeting = meeting.clone();
                engine.op("").submit((), move |()| meeting.join_within(PATIENCE)).unwrap()
            });
            handles.into_iter().for_each(|handle| assert!(handle.wait().unwrap()));
            let (workers, meeting) = (Journal::new(), Meeting::new(4));
            for _ in 0..4 {
                let (workers, meeting) = (workers.clone(), meeting.clone());
                let f = move |cx: &OpContext<'_>| {
                    workers.add(cx.worker());
                    meeting.join();
                };
                engine.push_sync(f, [], []).unwrap();
            }
            engine.wait_for_all().unwrap();
            let mut workers = workers.take();
            workers.sort_unstable();
            assert_eq!(workers, [Some(0), Some(1), Some(2), Some(3)]);
        });
    }

    #[test]
    fn there_is_a_worker_per_core_that_the_process_may_use() {
        watched(|| {
            for kind in THREADED {
                let engine = Engine::builder().kind(kind).build().unwrap();
                assert_eq!(engine.placements().len(), thread::available_parallelism().unwrap().get());
            }
        });
    }

    #[cfg(target_os = "linux")]
    mod on_linux {
        use super::*;

        /// The cores that each of `count` workers may use, by number.
        fn cores_of_workers(engine: &Engine, count: usize) -> Vec<String> {
            let (meeting, found) = (Meeting::new(count + 1), Journal::new());
            for _ in 0..count {
                let (meeting, found) = (meeting.clone(), found.clone());
                let f = move |cx: &OpContext<'_>| {
                    found.add((cx.worker(), common::allowed_cores()));
                    meeting.join();
                };
                engine.push_sync(f, [], []).unwrap();
            }
            meeting.join();
            let mut found = found.take();
            found.sort();
            assert!(found.iter().map(|(worker, _)| *worker).eq((0..count).map(Some)));
            found.into_iter().map(|(_, cores)| cores).collect()
        }

        /// The numbers in a kernel's list of cores.
        fn list(cores: &str) -> Vec<usize> {
            cores
                .split(',')
                .flat_map(|part| {
                    let (first, last) = part.split_once('-').unwrap_or((part, part));
                    first.parse::<usize>().unwrap()..=last.parse().unwrap()
                })
                .collect()
        }

        #[test]
        #[cfg_attr(miri, ignore = "reads /proc, and pins threads")]
        fn each_worker_is_pinned_to_its_core() {
            watched(|| {
                let cores = list(&common::allowed_cores());
                for kind in THREADED {
                    let engine = Engine::builder().kind(kind).workers(cores.len()).build().unwrap();
                    let found = cores_of_workers(&engine, cores.len());
                    for (index, core) in cores.iter().enumerate() {
                        assert_eq!(engine.placements()[index], Placement::Pinned(*core));
                        assert_eq!(found[index], core.to_string(), "worker {index} of {kind}");
                    }
                }
            });
        }

        #[test]
        #[cfg_attr(miri, ignore = "reads /proc, and pins threads")]
        fn unpinned_workers_may_go_anywhere() {
            watched(|| {
                let all = common::allowed_cores();
                for kind in THREADED {
                    let engine = engine(kind, 2);
                    assert!(engine.placements().iter().all(|placement| *placement == Placement::Unpinned));
                    assert!(cores_of_workers(&engine, 2).iter().all(|cores| *cores == all));
                }
            });
        }

        #[test]
        #[cfg_attr(miri, ignore = "reads /proc, and pins threads")]
        fn workers_beyond_the_cores_are_not_pinned() {
            watched(|| {
                let (all, cores) = (common::allowed_cores(), list(&common::allowed_cores()));
                let count = cores.len() + 2;
                let engine = Engine::builder().kind(EngineKind::PerDevice).workers(count).build().unwrap();
                let found = cores_of_workers(&engine, count);
                for (index, found) in found.iter().enumerate() {
                    let pinned = cores.get(index);
                    let placement = pinned.map_or(Placement::Unpinned, |core| Placement::Pinned(*core));
                    assert_eq!(engine.placements()[index], placement);
                    assert_eq!(*found, pinned.map_or(all.clone(), ToString::to_string));
                }
            });
        }

        /// A worker keeps its core when another thread takes it over, because an operation waits.
        #[test]
        #[cfg_attr(miri, ignore = "reads /proc, and pins threads")]
        fn a_worker_taken_over_by_another_thread_keeps_its_core() {
            watched(|| {
                let engine = Engine::builder().kind(EngineKind::Pooled).workers(1).build().unwrap();
                let before = cores_of_workers(&engine, 1);
                let token = engine.token();
                let gate = hold(&engine, &token);
                let waiting = {
                    let (inner, token) = (engine.clone(), token.clone());
                    engine.op("").submit((), move |()| inner.wait_for_var(&token)).unwrap()
                };
                assert_eq!(cores_of_workers(&engine, 1), before);
                gate.open();
                waiting.wait().unwrap().unwrap();
                assert_eq!(cores_of_workers(&engine, 1), before);
            });
        }

        /// A worker that is not pinned stays so when a thread takes it over that carried a pinned one before.
        #[test]
        #[cfg_attr(miri, ignore = "reads /proc, and pins threads")]
        fn an_unpinned_worker_taken_over_by_another_thread_stays_unpinned() {
            watched(|| {
                let all = common::allowed_cores();
                let engine = Engine::builder().kind(EngineKind::PerDevice).workers(1).build().unwrap();
                let wait_in = |property, token: &Token| {
                    let (inner, token) = (engine.clone(), token.clone());
                    engine.op("").kind(property).submit((), move |()| inner.wait_for_var(&token)).unwrap()
                };
                let cores = || {
                    let handle = engine.op("").kind(Property::CpuPrioritized);
                    handle.submit((), |()| common::allowed_cores()).unwrap().wait().unwrap()
                };
                assert_eq!(cores(), all);
                // The pinned worker's thread becomes a spare one: it gives the worker away while it waits, and ends without.
                let token = engine.token();
                let gate = hold(&engine, &token);
                let waiting = wait_in(Property::Normal, &token);
                thread::sleep(MOMENT);
                gate.open();
                waiting.wait().unwrap().unwrap();
                thread::sleep(MOMENT);
                // A prioritised operation waits, and the spare thread takes its worker over.
                let gate = hold(&engine, &token);
                let waiting = wait_in(Property::CpuPrioritized, &token);
                let found = cores();
                gate.open();
                waiting.wait().unwrap().unwrap();
                assert_eq!(found, all, "a prioritised operation runs pinned");
            });
        }
    }
}
