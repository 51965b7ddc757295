//! What a program does wrong, or at the worst moment, has a defined result: nothing is lost and nothing hangs.

#![forbid(unsafe_code)]

mod common;
#[path = "common/logger.rs"]
mod logger;

use std::{
    cell::RefCell,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use common::shapes::*;
use common::{
    Drops, Gate, KINDS, MOMENT, PATIENCE, PanicsOnDrop, THREADED, engine, eventually, failure, hold, lock, on_kinds,
    watched,
};
use logger::log_to;
use raddle::{
    BuildError, Cause, Completion, Engine, EngineKind, IdlePolicy, OpError, PushError, Shutdown, ShutdownError, Token,
    Var, WaitError,
};

/// Waits for an answer of an operation.
#[track_caller]
fn receive<T>(receiver: &mpsc::Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).expect("an operation answers in time")
}

/// A panic without the report of it.
fn quiet_panic(message: &'static str) -> ! {
    resume_unwind(Box::new(message))
}

fn panicked_with(error: &OpError, message: &str) -> bool {
    matches!(error.cause(), Cause::Panic(Some(own)) if own == message)
}

// ================================================================================== variables that are not ====

mod variables {
    use super::*;

    #[test]
    fn a_foreign_variable_is_refused_everywhere() {
        on_kinds(&KINDS, 1, |here| {
            let there = engine(EngineKind::Naive, 1);
            let foreign = there.var(1);
            let error = PushError::ForeignVariable;
            assert_eq!(here.op("").push(foreign.read(), |_| {}), Err(error.clone()));
            assert_eq!(here.op("").push((here.var(1).write(), foreign.write()), |_| {}), Err(error.clone()));
            assert_eq!(here.op("").submit(foreign.read(), |_| {}).map(drop), Err(error.clone()));
            assert_eq!(here.op("").submit_any(foreign.read(), |_| Ok::<_, String>(())).map(drop), Err(error.clone()));
            assert_eq!(here.push_sync(|_| {}, [foreign.token()], []), Err(error.clone()));
            assert_eq!(here.push_async(|_, done| done.complete(), [], [foreign.token()]), Err(error.clone()));
            assert_eq!(here.op("").operator(foreign.write(), |_| {}).map(drop), Err(error.clone()));
            assert_eq!(here.delete_variable(&foreign, |_| {}), Err(error.clone()));
            assert_eq!(here.clear_error(&foreign), Err(error.clone()));
            for result in [
                here.wait_for_var(&foreign),
                here.wait_to_read(&foreign),
                here.wait_for_var_timeout(&foreign, Duration::MAX),
                common::block_on(here.wait_for_var_async(&foreign)),
                here.get(&foreign).map(drop),
            ] {
                assert!(matches!(result, Err(WaitError::Refused(PushError::ForeignVariable))), "{result:?}");
            }
            // It is as good as ever where it belongs.
            assert_eq!(there.get(&foreign).unwrap(), 1);
        });
    }

    #[test]
    fn a_variable_of_an_engine_that_is_gone_is_foreign() {
        on_kinds(&KINDS, 1, |here| {
            for _ in 0..50 {
                let there = engine(EngineKind::Naive, 1);
                let foreign = there.token();
                drop(there);
                let other = engine(EngineKind::Naive, 1);
                assert_eq!(other.push_sync(|_| {}, [], [&foreign]), Err(PushError::ForeignVariable));
                assert_eq!(here.push_sync(|_| {}, [], [&foreign]), Err(PushError::ForeignVariable));
            }
        });
    }

    #[test]
    fn an_empty_access_list_is_fine() {
        on_kinds(&KINDS, 1, |engine| {
            let none: [&Token; 0] = [];
            engine.op("").reads(none).writes(none).overwrites(none).push_sync(|_| {}).unwrap();
            engine.op("").push((), |()| {}).unwrap();
            engine.op("").push(Vec::<raddle::Read<'_, u8>>::new(), |list| assert!(list.is_empty())).unwrap();
            let operator = engine.op("").operator((), |()| {}).unwrap();
            operator.push().unwrap();
            engine.push_async(|_, done| done.complete(), [], []).unwrap();
            engine.wait_for_all().unwrap();
        });
    }

    #[test]
    fn naming_a_variable_twice_untyped_collapses() {
        on_kinds(&KINDS, 1, |engine| {
            let (a, b) = (engine.token(), engine.token());
            engine
                .op("")
                .reads([&a, &b, &a, &a])
                .writes([&b, &b])
                .overwrites([&b, &a])
                .reads([&b])
                .push_sync(|_| {})
                .unwrap();
            engine.wait_for_var(&a).unwrap();
            assert_eq!((a.version(), b.version()), (1, 1));
        });
    }

    #[test]
    fn naming_a_variable_twice_typed_is_an_alias_if_it_is_mutated() {
        on_kinds(&KINDS, 1, |engine| {
            let (a, b) = (engine.var(1), engine.var(2));
            let aliased = Err(PushError::AliasedVariable);
            assert_eq!(engine.op("").push((a.write(), a.write()), |_| {}), aliased);
            assert_eq!(engine.op("").push((a.read(), a.write()), |_| {}), aliased);
            assert_eq!(engine.op("").push((a.write(), a.read()), |_| {}), aliased);
            assert_eq!(engine.op("").push((a.overwrite(), b.read(), a.read()), |_| {}), aliased);
            assert_eq!(engine.op("").push([a.write(), b.write(), a.write()], |_| {}), aliased);
            assert_eq!(engine.op("").push(vec![a.write(), b.write(), a.overwrite()], |_| {}), aliased);
            assert_eq!(engine.op("").push((vec![a.read()], (b.read(), [a.write()])), |_| {}), aliased);
            assert_eq!(engine.op("").submit((a.write(), a.clone().write()), |_| {}).map(drop), aliased);
            assert_eq!(engine.op("").operator((a.write(), a.write()), |_| {}).map(drop), aliased);
            // Any declaration between them changes nothing.
            assert_eq!(engine.op("").reads([a.token()]).push((a.write(), a.read()), |_| {}), aliased);
            assert_eq!(engine.op("").writes([a.token()]).push((a.read(), a.write()), |_| {}), aliased);
            engine.wait_for_all().unwrap();
            assert_eq!((a.version(), b.version()), (0, 0));
        });
    }

    /// With many variables the declarations are sorted by another algorithm.
    #[test]
    fn an_alias_among_many_variables_is_found() {
        on_kinds(&KINDS, 1, |engine| {
            let variables: Vec<_> = (0..500).map(|n| engine.var(n)).collect();
            let mut declared: Vec<_> = variables.iter().map(Var::write).collect();
            declared.insert(250, variables[400].write());
            assert_eq!(engine.op("").push(declared, |_| {}), Err(PushError::AliasedVariable));
        });
    }

    #[test]
    fn naming_a_variable_twice_typed_is_fine_if_it_is_only_read() {
        on_kinds(&KINDS, 1, |engine| {
            let a = engine.var(21);
            let sum =
                engine.op("").submit((a.read(), [a.read(); 3], vec![a.read()]), |(x, [y, ..], z)| *x + *y + *z[0]);
            assert_eq!(sum.unwrap().wait().unwrap(), 63);
        });
    }

    /// Only typed accesses alias; an untyped declaration gives no reference.
    #[test]
    fn an_untyped_declaration_beside_typed_ones_is_no_alias() {
        on_kinds(&KINDS, 1, |engine| {
            let a = engine.var(1);
            engine.op("").writes([a.token()]).push(a.read(), |a| assert_eq!(*a, 1)).unwrap();
            engine.op("").reads([a.token()]).push(a.write(), |a| *a = 2).unwrap();
            engine.op("").overwrites([a.token()]).push(a.write(), |a| *a = 3).unwrap();
            // Two shared references and a declaration that the operation mutates what lies behind.
            engine
                .op("")
                .writes([a.token()])
                .push((a.read(), a.read()), |(x, y)| assert_eq!((*x, *y), (3, 3)))
                .unwrap();
            engine.op("").overwrites([a.token()]).push((a.read(), a.read(), a.read()), |_| {}).unwrap();
            assert_eq!(engine.get(&a).unwrap(), 3);
            assert_eq!(a.version(), 5);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs ten thousand variables")]
    fn a_typed_operation_of_ten_thousand_variables() {
        on_kinds(&KINDS, 2, |engine| {
            let variables: Vec<Var<usize>> = (0..10_000).map(|n| engine.var(n)).collect();
            for _ in 0..5 {
                let writes: Vec<_> = variables.iter().rev().map(Var::write).collect();
                engine.op("").push(writes, |values| values.into_iter().for_each(|value| *value += 1)).unwrap();
            }
            let reads: Vec<_> = variables.iter().map(Var::read).collect();
            let sum = engine.op("").submit(&reads[..], |values| values.into_iter().sum::<usize>()).unwrap();
            assert_eq!(sum.wait().unwrap(), (0..10_000).sum::<usize>() + 50_000);
            assert!(variables.iter().all(|variable| variable.version() == 5));
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs ten thousand variables")]
    fn an_untyped_operation_of_ten_thousand_variables() {
        on_kinds(&KINDS, 2, |engine| {
            let tokens: Vec<Token> = (0..10_000).map(|_| engine.token()).collect();
            for number in 0..6 {
                let builder = engine.op("").reads(tokens.iter().step_by(2)).writes(tokens.iter().skip(1).step_by(2));
                let builder = if number % 2 == 0 { builder.reads(&tokens) } else { builder.writes(&tokens) };
                builder.push_sync(|_| {}).unwrap();
            }
            let operator = engine.op("").writes(&tokens).operator_sync(|_| {}).unwrap();
            operator.push().unwrap();
            operator.push().unwrap();
            engine.wait_for_all().unwrap();
            assert_eq!((tokens[0].version(), tokens[1].version()), (5, 8));
        });
    }

    /// Pushed from several threads at once, so that they help each other through ten thousand queues.
    #[test]
    fn huge_operations_of_several_threads_cross() {
        on_kinds(&KINDS, 2, |engine| {
            let tokens: Vec<Token> = (0..2_000).map(|_| engine.token()).collect();
            thread::scope(|scope| {
                for pusher in 0..4 {
                    let (engine, tokens) = (&engine, &tokens);
                    scope.spawn(move || {
                        for _ in 0..10 {
                            let builder = engine.op("");
                            let builder = if pusher % 2 == 0 {
                                builder.writes(tokens)
                            } else {
                                builder.writes(tokens.iter().rev())
                            };
                            builder.push_sync(|_| {}).unwrap();
                        }
                    });
                }
            });
            engine.wait_for_all().unwrap();
            assert!(tokens.iter().all(|token| token.version() == 40));
        });
    }

    #[test]
    fn deleting_twice_is_refused_and_the_first_deletion_stands() {
        on_kinds(&KINDS, 1, |engine| {
            let drops = Drops::new();
            let value = engine.var(drops.make());
            let gate = hold(&engine, value.token());
            let (sender, receiver) = mpsc::channel();
            let second = sender.clone();
            engine.delete_variable(&value, move |_| sender.send(1).unwrap()).unwrap();
            let refused = engine.delete_variable(&value, move |_| second.send(2).unwrap());
            assert_eq!(refused, Err(PushError::DeletedVariable));
            gate.open();
            assert_eq!(receiver.iter().collect::<Vec<_>>(), [1]);
            drops.assert_all_gone();
        });
    }

    #[test]
    fn of_many_threads_that_delete_a_variable_one_does() {
        on_kinds(&KINDS, 2, |engine| {
            for _ in 0..50 {
                let (drops, ran) = (Drops::new(), AtomicUsize::new(0));
                let value = engine.var(drops.make());
                let deleted = Arc::new(AtomicUsize::new(0));
                thread::scope(|scope| {
                    for _ in 0..4 {
                        let (engine, value, ran, deleted) = (&engine, value.clone(), &ran, Arc::clone(&deleted));
                        scope.spawn(move || {
                            while engine.op("").push(value.write(), |value| value.touch()).is_ok() {
                                let deleted = Arc::clone(&deleted);
                                if engine.delete_variable(&value, move |_| _ = deleted.fetch_add(1, SeqCst)).is_ok() {
                                    ran.fetch_add(1, SeqCst);
                                }
                            }
                        });
                    }
                });
                engine.wait_for_var(&value).unwrap();
                assert_eq!((ran.load(SeqCst), deleted.load(SeqCst)), (1, 1));
                drops.assert_all_gone();
            }
        });
    }

    #[test]
    fn a_variable_dropped_inside_its_own_operation() {
        on_kinds(&KINDS, 1, |engine| {
            let drops = Drops::new();
            let value = engine.var(drops.make());
            let last = value.clone();
            engine
                .op("")
                .push(value.write(), move |value| {
                    value.touch();
                    drop(last);
                    // The value is there until the operation ends.
                    value.touch();
                })
                .unwrap();
            drop(value);
            engine.wait_for_all().unwrap();
            engine.wait_for_all().unwrap();
            drops.assert_all_gone();
        });
    }

    #[test]
    fn a_variable_deleted_inside_its_own_operation() {
        on_kinds(&KINDS, 1, |engine| {
            let drops = Drops::new();
            let value = engine.var(drops.make());
            let (own, inner, after) = (value.clone(), engine.clone(), drops.clone());
            let handle = engine.op("").submit(value.write(), move |value| {
                inner.delete_variable(&own, |_| {}).unwrap();
                value.touch();
                after.dropped()
            });
            assert_eq!(handle.unwrap().wait().unwrap(), 0);
            engine.wait_for_var(&value).unwrap();
            drops.assert_all_gone();
        });
    }

    /// A variable whose value is the last handle of another one, and of itself.
    #[test]
    fn variables_inside_variables() {
        on_kinds(&KINDS, 1, |engine| {
            let drops = Drops::new();
            let inner = engine.var(drops.make());
            let outer = engine.var(Some(inner));
            engine.op("").push(outer.read(), |_| {}).unwrap();
            drop(outer);
            eventually("both are gone", || drops.dropped() == 1);
            // An operation moves a handle of a variable into that variable. It keeps itself, until somebody clears it.
            struct Own {
                own: Option<Var<Own>>,
                _thing: common::Droppable,
            }
            let own = engine.var(Own { own: None, _thing: drops.make() });
            let clone = own.clone();
            engine.op("").push(own.write(), move |value| value.own = Some(clone)).unwrap();
            engine.op("").push(own.write(), |value| value.own = None).unwrap();
            drop(own);
            eventually("it is gone", || drops.dropped() == 2);
            drops.assert_all_gone();
        });
    }

    /// Handles end with the thread that they belong to, at its very end.
    #[test]
    fn a_variable_and_an_engine_in_a_thread_local() {
        thread_local!(static KEPT: RefCell<Vec<Box<dyn std::any::Any>>> = const { RefCell::new(Vec::new()) });
        on_kinds(&KINDS, 1, |engine| {
            let drops = Drops::new();
            let (inner, inner_drops) = (engine.clone(), drops.clone());
            thread::spawn(move || {
                // Touched before the engine is used, and once more after.
                KEPT.with_borrow_mut(Vec::clear);
                let value = inner.var(inner_drops.make());
                inner.op("").push(value.write(), |value| value.touch()).unwrap();
                let own = common::engine(inner.kind(), 1);
                let last = own.var(inner_drops.make());
                own.op("").push(last.write(), |value| value.touch()).unwrap();
                KEPT.with_borrow_mut(|kept| {
                    kept.extend([Box::new(value) as Box<dyn std::any::Any>, Box::new(last), Box::new(own)]);
                });
            })
            .join()
            .unwrap();
            // The same on a worker, whose thread ends with the engine.
            let value = engine.var(drops.make());
            engine.op("").push((), move |()| KEPT.with_borrow_mut(|kept| kept.push(Box::new(value)))).unwrap();
            engine.shutdown(Shutdown::Drain, None).unwrap();
            if engine.kind() == EngineKind::Naive {
                KEPT.with_borrow_mut(Vec::clear);
            }
            drop(engine);
            drops.assert_all_gone();
        });
    }
}

// ============================================================================================ builders ====

mod building {
    use super::*;

    #[test]
    fn no_workers_are_refused() {
        watched(|| {
            for kind in KINDS {
                let built = Engine::builder().kind(kind).workers(0).build();
                assert!(matches!(built, Err(BuildError::NoWorkers)), "{built:?}");
                let built = Engine::builder().kind(kind).prioritized_workers(0).build();
                assert!(matches!(built, Err(BuildError::NoWorkers)), "{built:?}");
            }
        });
    }

    #[test]
    fn more_workers_than_cores_work() {
        watched(|| {
            let cores = thread::available_parallelism().unwrap().get();
            for kind in THREADED {
                let engine =
                    Engine::builder().kind(kind).workers(10 * cores + 7).prioritized_workers(9).build().unwrap();
                let value = engine.var(0);
                for _ in 0..1000 {
                    engine.op("").push(value.write(), |value| *value += 1).unwrap();
                    engine.op("").kind(Property::CpuPrioritized).push((), |()| {}).unwrap();
                }
                assert_eq!(engine.get(&value).unwrap(), 1000);
            }
        });
    }

    #[test]
    fn absurdly_many_workers_are_refused() {
        watched(|| {
            for count in [1025, 100_000, usize::MAX] {
                let built = Engine::builder().kind(EngineKind::Pooled).workers(count).build();
                assert!(matches!(built, Err(BuildError::TooManyWorkers(1024))), "{built:?}");
                let built = Engine::builder().kind(EngineKind::PerDevice).prioritized_workers(count).build();
                assert!(matches!(built, Err(BuildError::TooManyWorkers(1024))), "{built:?}");
            }
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts 1,024 threads")]
    fn the_most_workers_that_are_allowed_work() {
        watched(|| {
            let engine =
                Engine::builder().kind(EngineKind::Pooled).workers(1024).idle(IdlePolicy::Park).build().unwrap();
            let count = Arc::new(AtomicUsize::new(0));
            for _ in 0..5000 {
                let count = Arc::clone(&count);
                engine.push_sync(move |_| _ = count.fetch_add(1, SeqCst), [], []).unwrap();
            }
            drop(engine);
            assert_eq!(count.load(SeqCst), 5000);
        });
    }

    #[test]
    fn a_spin_time_beyond_all_measure_is_spinning() {
        watched(|| {
            for idle in
                [IdlePolicy::Spin, IdlePolicy::SpinThenPark(Duration::MAX), IdlePolicy::SpinThenPark(Duration::ZERO)]
            {
                let engine =
                    Engine::builder().kind(EngineKind::Pooled).workers(1).idle(idle).pin(false).build().unwrap();
                assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
                engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
            }
        });
    }

    #[test]
    fn every_build_error_has_words() {
        for error in [BuildError::NoWorkers, BuildError::TooManyWorkers(3), BuildError::UnknownEngine("x".to_owned())] {
            assert!(!error.to_string().is_empty());
        }
        assert!("x".parse::<EngineKind>().unwrap_err().to_string().contains("`x`"));
    }
}

// ============================================================================================== panics ====

mod panics {
    use super::*;

    #[test]
    fn payloads_of_every_kind() {
        on_kinds(&KINDS, 1, |engine| {
            let (a, b, c) = (engine.token(), engine.token(), engine.token());
            engine.push_sync(|_| resume_unwind(Box::new(vec![1, 2, 3])), [], [&a]).unwrap();
            engine.push_sync(|_| resume_unwind(Box::new(String::from("owned"))), [], [&b]).unwrap();
            engine.push_sync(|_| resume_unwind(Box::new("static")), [], [&c]).unwrap();
            assert!(matches!(failure(engine.wait_for_var(&a)).cause(), Cause::Panic(None)));
            assert!(panicked_with(&failure(engine.wait_for_var(&b)), "owned"));
            assert!(panicked_with(&failure(engine.wait_for_var(&c)), "static"));
        });
    }

    #[test]
    fn a_payload_whose_drop_panics() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            for _ in 0..10 {
                engine.op("").overwrites([&token]).push_sync(|_| panic_any(PanicsOnDrop("payload"))).unwrap();
                engine
                    .op("")
                    .overwrites([&token])
                    .push_async_any(raddle::cx(), |_, _done| panic_any(PanicsOnDrop("payload")))
                    .unwrap();
            }
            assert!(matches!(failure(engine.wait_for_var(&token)).cause(), Cause::Panic(None)));
            assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
        });
    }

    /// The second panic's payload panics when dropped, too.
    #[test]
    fn a_payload_whose_drop_panics_with_another_such_payload() {
        struct Nested(u32);
        impl Drop for Nested {
            fn drop(&mut self) {
                if self.0 > 0 {
                    resume_unwind(Box::new(Nested(self.0 - 1)));
                }
            }
        }
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.push_sync(|_| resume_unwind(Box::new(Nested(5))), [], [&token]).unwrap();
            assert!(matches!(failure(engine.wait_for_var(&token)).cause(), Cause::Panic(None)));
            assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
        });
    }

    #[test]
    fn a_function_whose_captures_panic_on_drop() {
        on_kinds(&KINDS, 1, |engine| {
            let (ran, skipped) = (engine.token(), engine.token());
            let capture = PanicsOnDrop("captured by one that runs");
            engine.op("runs").writes([&ran]).push_sync(move |_| _ = &capture).unwrap();
            let error = failure(engine.wait_for_var(&ran));
            assert!(panicked_with(&error, "captured by one that runs"));
            // One that is skipped, and whose captures panic then.
            let capture = PanicsOnDrop("captured by one that is skipped");
            engine.op("is skipped").reads([&ran]).writes([&skipped]).push_sync(move |_| _ = &capture).unwrap();
            assert!(failure(engine.wait_for_var(&skipped)).ptr_eq(&error));
            // It hides nowhere.
            engine.clear_error(&ran).unwrap();
            engine.clear_error(&skipped).unwrap();
            engine.wait_for_var(&skipped).unwrap();
            let error = failure(engine.wait_for_all());
            assert!(panicked_with(&error, "captured by one that is skipped"), "{error}");
            assert_eq!(error.name(), "is skipped");
        });
    }

    /// A push that is refused drops the function on the pushing thread: its panic is the pusher's.
    #[test]
    fn a_refused_function_whose_captures_panic_on_drop() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.delete_variable(&token, |_| {}).unwrap();
            let capture = PanicsOnDrop("refused");
            let pushed = catch_unwind(AssertUnwindSafe(|| engine.push_sync(move |_| _ = &capture, [], [&token])));
            match pushed {
                Ok(pushed) => assert_eq!(pushed, Err(PushError::DeletedVariable)),
                Err(payload) => assert_eq!(payload.downcast_ref::<&str>(), Some(&"refused")),
            }
            engine.wait_for_all().unwrap();
            assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
        });
    }

    #[test]
    fn a_value_whose_drop_panics_takes_nothing_with_it() {
        on_kinds(&KINDS, 1, |engine| {
            for _ in 0..20 {
                let value = engine.var(PanicsOnDrop("value"));
                engine.op("").push(value.write(), |_| {}).unwrap();
                drop(value);
                let value = engine.var(PanicsOnDrop("value"));
                let ran = Gate::new();
                let inner = ran.clone();
                engine.delete_variable(&value, move |_| inner.open()).unwrap();
                let _ = engine.wait_for_var(&value);
                drop(value);
            }
            engine.op("").submit((), |()| 1).unwrap().wait().unwrap();
            let _ = engine.wait_for_all();
            engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
        });
    }

    /// The deletion's function runs also if the drop of the value panics: it is somebody's clean-up.
    #[test]
    fn a_deletions_function_runs_although_the_values_drop_panics() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(PanicsOnDrop("value"));
            let (ran, drops) = (Gate::new(), Drops::new());
            let (inner, captured) = (ran.clone(), drops.make());
            engine
                .delete_variable(&value, move |_| {
                    captured.touch();
                    inner.open();
                })
                .unwrap();
            let _ = engine.wait_for_var(&value);
            drops.assert_all_gone();
            assert!(ran.is_open(), "the deletion's function did not run");
        });
    }

    #[test]
    fn a_result_whose_drop_panics() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let gate = hold(&engine, value.token());
            // Nobody wants it: it is dropped by the engine.
            drop(engine.op("result").submit(value.write(), |_| PanicsOnDrop("result")).unwrap());
            gate.open();
            assert_eq!(engine.get(&value).unwrap(), 0);
            let error = failure(engine.wait_for_all());
            assert!(panicked_with(&error, "result"));
            assert_eq!(error.name(), "result");
        });
    }

    #[test]
    fn an_operators_function_whose_captures_panic_on_drop() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let capture = PanicsOnDrop("operator");
            let gate = hold(&engine, value.token());
            let operator = engine
                .op("operator")
                .operator(value.write(), move |value| {
                    let _ = &capture;
                    *value += 1;
                })
                .unwrap();
            operator.push().unwrap();
            drop(operator);
            gate.open();
            let _ = engine.wait_for_var(&value);
            let error = failure(engine.wait_for_all());
            assert!(panicked_with(&error, "operator"), "{error}");
            assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
        });
    }

    #[test]
    fn a_value_whose_clone_panics() {
        struct Unclonable;
        impl Clone for Unclonable {
            fn clone(&self) -> Self {
                quiet_panic("clone")
            }
        }
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(Unclonable);
            let error = match engine.get(&value) {
                Err(WaitError::Failed(error)) => error,
                other => panic!("{:?}", other.map(drop)),
            };
            assert!(panicked_with(&error, "clone"));
            // The variable is none the worse for it.
            engine.op("").push(value.write(), |_| {}).unwrap();
            engine.wait_for_var(&value).unwrap();
        });
    }

    /// What the conversion of an error does wrong is the operation's failure.
    #[test]
    fn an_error_whose_conversion_panics() {
        struct Unconvertible;
        impl From<Unconvertible> for raddle::BoxError {
            fn from(_: Unconvertible) -> Self {
                quiet_panic("conversion")
            }
        }
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.push_sync(|_| Err::<(), _>(Unconvertible), [], [&token]).unwrap();
            assert!(panicked_with(&failure(engine.wait_for_var(&token)), "conversion"));
            let handle = engine.op("").submit_any((), |()| Err::<(), _>(Unconvertible)).unwrap();
            assert!(panicked_with(&failure(handle.wait()), "conversion"));
            // Here the conversion runs where the completion is used, and drops that.
            let token = engine.token();
            let fail = |_: &raddle::OpContext<'_>, done: Completion| {
                drop(thread::spawn(move || _ = catch_unwind(AssertUnwindSafe(|| done.fail(Unconvertible)))));
            };
            engine.push_async(fail, [], [&token]).unwrap();
            let error = failure(engine.wait_for_var(&token));
            assert!(matches!(error.cause(), Cause::LostCompletion | Cause::Panic(_)), "{error}");
        });
    }

    struct BadWaker;
    impl Wake for BadWaker {
        fn wake(self: Arc<Self>) {
            quiet_panic("waker")
        }
    }

    #[test]
    fn a_waker_that_panics() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let gate = hold(&engine, value.token());
            let waker = Waker::from(Arc::new(BadWaker));
            let mut handle = engine.op("").submit(value.read(), |_| 1).unwrap();
            let mut wait = engine.wait_for_var_async(&value);
            let mut all = Box::pin(engine.wait_for_all_async());
            let mut cx = Context::from_waker(&waker);
            assert!(std::pin::pin!(&mut handle).poll(&mut cx).is_pending());
            assert!(std::pin::pin!(&mut wait).poll(&mut cx).is_pending());
            assert!(all.as_mut().poll(&mut cx).is_pending());
            gate.open();
            assert_eq!(handle.wait().unwrap(), 1);
            engine.wait_for_all().unwrap();
            assert!(matches!(std::pin::pin!(&mut wait).poll(&mut cx), Poll::Ready(Ok(()))));
            assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
        });
    }

    #[derive(Debug)]
    struct Unspeakable;
    impl fmt::Display for Unspeakable {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            quiet_panic("display")
        }
    }
    impl std::error::Error for Unspeakable {}

    /// The engine tells the log of failures that nobody saw, and so formats them at its end.
    #[test]
    fn an_error_whose_display_panics_does_not_disturb_the_shutdown() {
        // Every record is written out, into nothing.
        log_to(|_| {});
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.push_sync(|_| Err::<(), _>(Unspeakable), [], [&token]).unwrap();
            let shutdown = catch_unwind(AssertUnwindSafe(|| engine.shutdown(Shutdown::Drain, Some(PATIENCE))));
            assert!(matches!(shutdown, Ok(Ok(()))), "the shutdown panics");
            // All threads have ended.
            engine.shutdown(Shutdown::Drain, Some(Duration::ZERO)).unwrap();
        });
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.push_sync(|_| Err::<(), _>(Unspeakable), [], [&token]).unwrap();
            let dropped = catch_unwind(AssertUnwindSafe(move || drop(engine)));
            assert!(dropped.is_ok(), "the drop of the engine panics");
        });
    }

    #[test]
    fn an_error_whose_display_panics_can_be_had() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            engine.push_sync(|_| Err::<(), _>(Unspeakable), [], [&token]).unwrap();
            let error = failure(engine.wait_for_var(&token));
            assert!(matches!(error.cause(), Cause::Error(error) if error.is::<Unspeakable>()));
        });
    }
}

// ================================================================================= the end of an engine ====

mod ends {
    use super::*;

    #[test]
    fn pushing_after_the_shutdown_is_refused_and_drops_the_function() {
        on_kinds(&KINDS, 1, |engine| {
            let (drops, value) = (Drops::new(), engine.var(0));
            engine.shutdown(Shutdown::Drain, None).unwrap();
            let captured = drops.make();
            assert_eq!(engine.op("").push(value.write(), move |_| captured.touch()), Err(PushError::ShutDown));
            for property in [Property::Async, Property::DeleteVar, Property::NoSkip] {
                let pushed = engine.op("").kind(property).push((), |()| unreachable!("it was refused"));
                assert_eq!(pushed, Err(PushError::ShutDown), "{property:?}");
            }
            let captured = drops.make();
            let submitted = engine.op("").submit((), move |()| captured.touch());
            assert_eq!(submitted.map(drop), Err(PushError::ShutDown));
            let captured = drops.make();
            let pushed = engine.push_async(
                move |_, done| {
                    captured.touch();
                    done.complete();
                },
                [],
                [value.token()],
            );
            assert_eq!(pushed, Err(PushError::ShutDown));
            let captured = drops.make();
            let pushed = engine.op("").run_always().push_sync(move |_| captured.touch());
            assert_eq!(pushed, Err(PushError::ShutDown));
            drops.assert_all_gone();
        });
    }

    /// Threads push as fast as they can while the engine shuts down: each push runs or is refused, and none is both.
    #[test]
    fn pushing_from_outside_during_a_shutdown() {
        for how in [Shutdown::Drain, Shutdown::Cancel] {
            on_kinds(&KINDS, 2, move |engine| {
                for _ in 0..30 {
                    let engine = common::engine(engine.kind(), 2);
                    let (drops, accepted, ran) = (Drops::new(), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
                    let tokens = [engine.token(), engine.token()];
                    thread::scope(|scope| {
                        for pusher in 0..3 {
                            let (engine, drops, accepted, ran, tokens) = (&engine, &drops, &accepted, &ran, &tokens);
                            scope.spawn(move || {
                                loop {
                                    let (captured, ran) = (drops.make(), Arc::clone(ran));
                                    let f = move |_: &raddle::OpContext<'_>| {
                                        captured.touch();
                                        ran.fetch_add(1, SeqCst);
                                    };
                                    match engine.push_sync(f, [&tokens[pusher % 2]], [&tokens[(pusher + 1) % 2]]) {
                                        Ok(()) => accepted.fetch_add(1, SeqCst),
                                        Err(error) => {
                                            assert_eq!(error, PushError::ShutDown);
                                            return;
                                        }
                                    };
                                }
                            });
                        }
                        let engine = &engine;
                        scope.spawn(move || {
                            thread::sleep(Duration::from_micros(500));
                            engine.shutdown(how, Some(PATIENCE)).unwrap();
                        });
                    });
                    engine.shutdown(how, Some(PATIENCE)).unwrap();
                    let (accepted, ran) = (accepted.load(SeqCst), ran.load(SeqCst));
                    match how {
                        Shutdown::Drain => assert_eq!(accepted, ran),
                        Shutdown::Cancel => assert!(ran <= accepted),
                    }
                    drops.assert_all_gone();
                }
            });
        }
    }

    /// Operations that push operations that push operations, while the engine shuts down.
    #[test]
    fn pushing_from_inside_operations_during_a_shutdown() {
        fn spread(engine: &Engine, drops: &Drops, ran: &Arc<AtomicUsize>, refused: &Arc<AtomicUsize>, depth: usize) {
            ran.fetch_add(1, SeqCst);
            for _ in 0..depth {
                let (drops, ran, inner_refused) = (drops.clone(), Arc::clone(ran), Arc::clone(refused));
                let captured = drops.make();
                let f = move |cx: &raddle::OpContext<'_>| {
                    captured.touch();
                    spread(&cx.engine(), &drops, &ran, &inner_refused, depth - 1);
                };
                match engine.push_sync(f, [], []) {
                    Ok(()) => {}
                    Err(PushError::ShutDown) => _ = refused.fetch_add(1, SeqCst),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        /// Operations of a tree of the given depth.
        fn size(depth: usize) -> usize {
            1 + depth * if depth == 0 { 0 } else { size(depth - 1) }
        }
        for how in [Shutdown::Drain, Shutdown::Cancel] {
            on_kinds(&KINDS, 2, move |engine| {
                let (drops, ran, refused) =
                    (Drops::new(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
                let token = engine.token();
                let gate = hold(&engine, &token);
                let (inner_drops, inner_ran, inner_refused) = (drops.clone(), Arc::clone(&ran), Arc::clone(&refused));
                engine
                    .push_sync(
                        move |cx| spread(&cx.engine(), &inner_drops, &inner_ran, &inner_refused, 5),
                        [],
                        [&token],
                    )
                    .unwrap();
                assert_eq!(engine.shutdown(Shutdown::Drain, Some(Duration::ZERO)), Err(ShutdownError::TimedOut));
                gate.open();
                if how == Shutdown::Cancel {
                    eventually("some have run", || ran.load(SeqCst) > 0);
                }
                engine.shutdown(how, Some(PATIENCE)).unwrap();
                if how == Shutdown::Drain {
                    assert_eq!(refused.load(SeqCst), 0);
                    assert_eq!(ran.load(SeqCst), size(5));
                }
                drops.assert_all_gone();
            });
        }
    }

    /// A chain of operations, each of which pushes the next one in another lane, and is never more than one operation long.
    /// However often a shutdown looks, it may not believe that nothing is pending.
    #[test]
    fn a_drain_does_not_miss_the_one_operation_that_is_pending() {
        const LENGTH: usize = 2000;
        fn next(engine: &Engine, ran: &Arc<AtomicUsize>) {
            let number = ran.fetch_add(1, SeqCst);
            if number < LENGTH {
                let lanes = [Property::Normal, Property::CopyToGpu, Property::CpuPrioritized, Property::CopyFromGpu];
                let ran = Arc::clone(ran);
                let builder = engine.op("").kind(lanes[number % lanes.len()]);
                builder.push_sync(move |cx| next(&cx.engine(), &ran)).expect("operations may push during a drain");
            }
        }
        on_kinds(&THREADED, 1, |engine| {
            let kind = engine.kind();
            for _ in 0..10 {
                let engine = common::engine(kind, 1);
                let ran = Arc::new(AtomicUsize::new(0));
                let inner = Arc::clone(&ran);
                engine.push_sync(move |cx| next(&cx.engine(), &inner), [], []).unwrap();
                thread::scope(|scope| {
                    // Several, so that they look often, and interrupt each other.
                    for _ in 0..4 {
                        scope.spawn(|| {
                            let result = engine.shutdown(Shutdown::Drain, Some(Duration::from_secs(20)));
                            assert_eq!(result, Ok(()));
                            assert_eq!(ran.load(SeqCst), LENGTH + 1, "the shutdown has missed what was pending");
                        });
                    }
                });
            }
        });
    }

    /// During a drain an operation may wait for what it pushed.
    #[test]
    fn waiting_inside_an_operation_during_a_drain() {
        on_kinds(&KINDS, 1, |engine| {
            let token = engine.token();
            let gate = hold(&engine, &token);
            let inner = engine.clone();
            let handle = engine
                .op("")
                .reads([&token])
                .submit((), move |()| {
                    let value = inner.var(1);
                    inner.op("").push(value.write(), |value| *value += 1).unwrap();
                    let submitted = inner.op("").submit(value.read(), |value| *value).unwrap();
                    (submitted.wait().unwrap(), inner.get(&value).unwrap())
                })
                .unwrap();
            assert_eq!(engine.shutdown(Shutdown::Drain, Some(Duration::ZERO)), Err(ShutdownError::TimedOut));
            gate.open();
            assert_eq!(handle.wait().unwrap(), (2, 2));
            engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
        });
    }

    #[test]
    fn shutting_down_twice_and_from_many_threads() {
        on_kinds(&KINDS, 2, |engine| {
            let ran = Arc::new(AtomicUsize::new(0));
            let token = engine.token();
            let gate = hold(&engine, &token);
            for _ in 0..100 {
                let ran = Arc::clone(&ran);
                engine.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], [&token]).unwrap();
            }
            thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap());
                }
                thread::sleep(MOMENT);
                gate.open();
            });
            assert_eq!(ran.load(SeqCst), 100);
            engine.shutdown(Shutdown::Drain, Some(Duration::ZERO)).unwrap();
            engine.shutdown(Shutdown::Cancel, None).unwrap();
            engine.notify_shutdown();
            engine.shutdown(Shutdown::Drain, None).unwrap();
        });
    }

    /// An engine handle that does not keep the engine open, to see from outside when that has ended.
    fn observer(engine: &Engine) -> Engine {
        let (sender, receiver) = mpsc::channel();
        engine.push_sync(move |cx| sender.send(cx.engine()).unwrap(), [], []).unwrap();
        let observer = receive(&receiver);
        engine.wait_for_all().unwrap();
        observer
    }

    /// That an engine, whose last handle was dropped somewhere, comes to its end.
    #[track_caller]
    fn assert_ends(observer: &Engine) {
        eventually("the engine refuses pushes", || observer.push_sync(|_| {}, [], []) == Err(PushError::ShutDown));
        observer.shutdown(Shutdown::Drain, Some(Duration::from_secs(30))).expect("the engine ends");
    }

    /// Each closure is the last to hold the engine, and is dropped on a thread of the engine, in a different way.
    #[test]
    fn dropping_the_engine_inside_an_operation() {
        on_kinds(&KINDS, 1, |engine| {
            let kind = engine.kind();
            type Push = fn(&Engine, &Token, Engine);
            let ways: [(&str, Push); 7] = [
                ("moved into the function", |engine, token, own| {
                    engine.op("").reads([token]).push((), move |()| drop(own)).unwrap();
                }),
                ("captured by the function", |engine, token, own| {
                    engine.op("").reads([token]).push((), move |()| _ = own.kind()).unwrap();
                }),
                ("captured by an asynchronous function", |engine, token, own| {
                    let f = move |_: &raddle::OpContext<'_>, done: Completion| {
                        let _ = own.kind();
                        done.complete();
                    };
                    engine.push_async(f, [token], []).unwrap();
                }),
                ("captured by a function that panics", |engine, token, own| {
                    let f = move |_: &raddle::OpContext<'_>| {
                        let _ = own.kind();
                        quiet_panic("with the engine");
                    };
                    engine.push_sync(f, [token], []).unwrap();
                }),
                ("the result that nobody takes", |engine, token, own| {
                    drop(engine.op("").reads([token]).submit((), move |()| own).unwrap());
                }),
                ("captured by an operator", |engine, token, own| {
                    let operator = engine.op("").reads([token]).operator_sync(move |_| _ = own.kind()).unwrap();
                    operator.push().unwrap();
                }),
                ("the function of a deletion", |engine, token, own| {
                    engine.delete_variable(token, move |_| drop(own)).unwrap();
                }),
            ];
            for (name, push) in ways {
                println!("{name}");
                let engine = common::engine(kind, 1);
                let observer = observer(&engine);
                let token = engine.token();
                let gate = hold(&engine, &token);
                push(&engine, &token, engine.clone());
                drop(engine);
                gate.open();
                assert_ends(&observer);
                drop(token);
            }
        });
    }

    /// The closure never runs: it is dropped because a variable has failed, or because the engine cancels.
    #[test]
    fn dropping_the_engine_with_a_skipped_operation() {
        on_kinds(&KINDS, 1, |engine| {
            let kind = engine.kind();
            for cancelled in [false, true] {
                let engine = common::engine(kind, 1);
                let observer = observer(&engine);
                let (token, gate) = (engine.token(), Gate::new());
                let inner = gate.clone();
                engine
                    .push_async(
                        move |_, done| {
                            drop(thread::spawn(move || {
                                inner.pass();
                                done.fail("on purpose");
                            }));
                        },
                        [],
                        [&token],
                    )
                    .unwrap();
                let own = engine.clone();
                engine.op("").reads([&token]).push((), move |()| drop(own)).unwrap();
                if cancelled {
                    engine.notify_shutdown();
                }
                drop(engine);
                gate.open();
                assert_ends(&observer);
            }
        });
    }

    #[test]
    fn the_engine_as_the_value_of_its_own_variable() {
        on_kinds(&KINDS, 1, |engine| {
            let kind = engine.kind();
            for deleted in [false, true] {
                let engine = common::engine(kind, 1);
                let observer = observer(&engine);
                let value = engine.var(engine.clone());
                engine.op("").push(value.read(), |_| {}).unwrap();
                if deleted {
                    engine.delete_variable(&value, |_| {}).unwrap();
                }
                drop(engine);
                drop(value);
                assert_ends(&observer);
            }
        });
    }

    #[test]
    fn the_engine_in_a_handle_that_is_dropped_later() {
        on_kinds(&KINDS, 1, |engine| {
            let observer = observer(&engine);
            let own = engine.clone();
            let handle = engine.op("").submit((), move |()| own).unwrap();
            eventually("the operation is done", || handle.is_done());
            drop(engine);
            drop(handle);
            assert_ends(&observer);
        });
    }

    /// The last handle goes with a waker, which the engine drops at a time of its own choosing.
    #[test]
    fn the_engine_in_a_waker() {
        struct Keeps(Mutex<Option<Engine>>);
        impl Wake for Keeps {
            fn wake(self: Arc<Self>) {
                drop(lock(&self.0).take());
            }
        }
        on_kinds(&KINDS, 1, |engine| {
            let kind = engine.kind();
            for all in [false, true] {
                let engine = common::engine(kind, 1);
                let observer = observer(&engine);
                let token = engine.token();
                let gate = hold(&engine, &token);
                let waker = Waker::from(Arc::new(Keeps(Mutex::new(Some(engine.clone())))));
                let mut cx = Context::from_waker(&waker);
                let mut wait = engine.wait_for_var_async(&token);
                let mut wait_all = Box::pin(engine.wait_for_all_async());
                if all {
                    assert!(wait_all.as_mut().poll(&mut cx).is_pending());
                } else {
                    assert!(std::pin::pin!(&mut wait).poll(&mut cx).is_pending());
                }
                drop(engine);
                gate.open();
                assert_ends(&observer);
            }
        });
    }

    #[test]
    fn a_completion_used_after_the_engine_handle_is_gone() {
        on_kinds(&KINDS, 1, |engine| {
            let kind = engine.kind();
            for use_it in [Completion::complete, |done: Completion| done.fail("late"), drop] {
                let engine = common::engine(kind, 1);
                let (sender, receiver) = mpsc::channel();
                let (drops, ran) = (Drops::new(), Arc::new(AtomicBool::new(false)));
                let value = engine.var(drops.make());
                engine
                    .op("")
                    .writes([value.token()])
                    .push_async_any(raddle::cx(), move |_, done| sender.send(done).unwrap())
                    .unwrap();
                let (captured, inner) = (drops.make(), Arc::clone(&ran));
                engine
                    .op("")
                    .run_always()
                    .push(value.write(), move |_| {
                        captured.touch();
                        inner.store(true, SeqCst);
                    })
                    .unwrap();
                let done = receive(&receiver);
                drop(value);
                // Dropping the engine waits for the completion.
                let ended = Gate::new();
                let inner = ended.clone();
                let dropper = thread::spawn(move || {
                    drop(engine);
                    inner.open();
                });
                assert!(!ended.pass_within(MOMENT), "the engine ended while an operation was pending");
                use_it(done);
                dropper.join().unwrap();
                assert!(ran.load(SeqCst));
                drops.assert_all_gone();
            }
        });
    }

    /// The shutdown has given up waiting; the completion comes later still.
    #[test]
    fn a_completion_used_after_a_shutdown_that_timed_out() {
        on_kinds(&KINDS, 1, |engine| {
            let (sender, receiver) = mpsc::channel();
            let token = engine.token();
            engine.push_async(move |_, done| sender.send(done).unwrap(), [], [&token]).unwrap();
            let done = receive(&receiver);
            assert_eq!(engine.shutdown(Shutdown::Cancel, Some(Duration::ZERO)), Err(ShutdownError::TimedOut));
            done.complete();
            engine.shutdown(Shutdown::Cancel, Some(PATIENCE)).unwrap();
            assert_eq!(token.version(), 1);
        });
    }
}

// =============================================================================================== waits ====

mod waits {
    use super::*;

    #[test]
    fn timeouts_of_no_time_and_of_all_time() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(1);
            let gate = hold(&engine, value.token());
            let mut handle = engine.op("").submit(value.read(), |value| *value).unwrap();
            let start = Instant::now();
            assert!(matches!(engine.wait_for_var_timeout(&value, Duration::ZERO), Err(WaitError::TimedOut)));
            assert!(matches!(engine.wait_to_read_timeout(&value, Duration::ZERO), Err(WaitError::TimedOut)));
            assert!(matches!(engine.wait_for_var_timeout(&value, Duration::ZERO), Err(WaitError::TimedOut)));
            assert!(matches!(engine.wait_for_all_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
            assert!(matches!(handle.wait_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
            assert!(start.elapsed() < Duration::from_secs(5));
            let opener = thread::spawn(move || {
                thread::sleep(MOMENT);
                gate.open();
            });
            engine.wait_for_var_timeout(&value, Duration::MAX).unwrap();
            engine.wait_for_all_timeout(Duration::MAX).unwrap();
            assert_eq!(handle.wait_timeout(Duration::MAX).unwrap(), 1);
            engine.shutdown(Shutdown::Drain, Some(Duration::MAX)).unwrap();
            opener.join().unwrap();
            // What is done needs no time.
            engine.wait_for_var_timeout(&value, Duration::ZERO).unwrap();
            engine.wait_for_all_timeout(Duration::ZERO).unwrap();
        });
    }

    #[test]
    fn handles_dropped_at_all_moments() {
        on_kinds(&KINDS, 2, |engine| {
            let (drops, value) = (Drops::new(), engine.var(0));
            for number in 0..3000 {
                let (result, captured) = (drops.make(), drops.make());
                let mut handle = engine
                    .op("")
                    .submit_any(value.write(), move |value| {
                        captured.touch();
                        *value += 1;
                        if number % 5 == 0 { Err("on purpose") } else { Ok(result) }
                    })
                    .unwrap();
                match number % 7 {
                    0 => drop(handle),
                    1 => drop(handle.wait_timeout(Duration::ZERO)),
                    2 => drop(handle.wait_timeout(Duration::from_micros(20))),
                    3 => drop(common::poll_once(&mut handle)),
                    4 => drop(thread::spawn(move || drop(handle))),
                    5 => drop(handle.wait()),
                    _ => {
                        eventually("it is done", || handle.is_done());
                        drop(handle);
                    }
                }
                if number % 10 == 0 {
                    engine.clear_error(&value).unwrap();
                }
            }
            let _ = engine.wait_for_var(&value);
            drop(engine);
            eventually("the threads that drop handles have ended", || drops.dropped() == drops.made());
            drops.assert_all_gone();
        });
    }

    /// A thread that waits although everything it could wait for was refused.
    #[test]
    fn waits_after_the_shutdown_return() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(3);
            engine.op("").push_any(value.write(), |_| Err("no")).unwrap();
            engine.shutdown(Shutdown::Drain, None).unwrap();
            assert!(engine.wait_for_all().is_err());
            assert!(engine.wait_for_var(&value).is_err());
            assert!(engine.get(&value).is_err());
            common::block_on(engine.wait_for_all_async()).unwrap();
            engine.clear_error(&value).unwrap();
            assert_eq!(engine.get(&value).unwrap(), 3);
            engine.wait_for_all().unwrap();
            assert!(engine.clear_errors().is_none());
        });
    }

    /// Many waits with no time that find something pending must not use up what real waits need.
    #[test]
    fn a_program_that_polls_with_waits_of_no_time() {
        on_kinds(&KINDS, 1, |engine| {
            let value = engine.var(0);
            let gate = hold(&engine, value.token());
            for _ in 0..5000 {
                assert!(matches!(engine.wait_for_all_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
                assert!(matches!(engine.wait_for_var_timeout(&value, Duration::ZERO), Err(WaitError::TimedOut)));
                engine.op("").push(value.write(), |value| *value += 1).unwrap();
            }
            gate.open();
            engine.wait_for_all().unwrap();
            assert_eq!(engine.get(&value).unwrap(), 5000);
        });
    }
}
