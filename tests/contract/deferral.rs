//! Operations that may defer their ends.

use raddle_testkit as common;

use std::{sync::mpsc, thread, time::Duration};

use common::{KINDS, on_kinds};
use raddle::{Completion, OpBuilder, cx, deferral, error::Cause};

/// An operation ends with its function unless it is deferred, then with its completion.
#[test]
fn an_operation_ends_with_its_function_unless_that_is_deferred() {
    on_kinds(&common::THREADED, 2, |engine| {
        for defers in [false, true] {
            let (value, disk) = (engine.var(0), engine.token());
            let (sender, deferred) = mpsc::channel::<Completion>();
            let untyped = sender.clone();
            engine
                .op("typed")
                .push((value.write(), deferral()), move |(value, end)| {
                    *value += 1;
                    if defers {
                        sender.send(end.defer()).unwrap();
                    }
                })
                .unwrap();
            engine
                .op("untyped")
                .writes([&disk])
                .push(deferral(), move |end| {
                    if defers {
                        untyped.send(end.defer()).unwrap();
                    }
                })
                .unwrap();
            if defers {
                let both: Vec<_> = deferred.iter().take(2).collect();
                let limit = Duration::from_millis(20);
                assert!(engine.wait_for_var_timeout(&value, limit).is_err(), "the operation ended early");
                assert!(engine.wait_for_var_timeout(&disk, limit).is_err(), "the operation ended early");
                both.into_iter().for_each(Completion::complete);
            }
            assert_eq!(engine.get(&value).unwrap(), 1);
            engine.wait_for_var(&disk).unwrap();
            assert_eq!((value.version(), disk.version()), (1, 1));
        }
        engine.wait_for_all().unwrap();
    });
}

/// With references to a value, a deferred operation ends once its function has returned, though its completion was used.
#[test]
fn a_deferred_operation_keeps_its_values_until_its_function_returns() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(vec![0]);
        let first = move |(value, end): (&mut Vec<i32>, raddle::Deferral<'_>)| {
            let done = end.defer();
            thread::spawn(move || done.complete()).join().unwrap();
            thread::sleep(Duration::from_millis(10));
            value.push(1);
        };
        engine.op("first").push((value.write(), deferral()), first).unwrap();
        engine.op("second").push(value.write(), |value| value.push(2)).unwrap();
        assert_eq!(engine.get(&value).unwrap(), [0, 1, 2]);
    });
}

#[test]
fn a_function_that_fails_fails_its_operation_whether_or_not_it_defers() {
    on_kinds(&KINDS, 1, |engine| {
        for (defers, completes) in [(false, false), (true, false), (true, true)] {
            for panics in [false, true] {
                let value = engine.var(0);
                engine
                    .op("fails")
                    .try_push((value.write(), deferral()), move |(_, end)| {
                        let done = defers.then(|| end.defer());
                        if completes {
                            done.into_iter().for_each(Completion::complete);
                        }
                        if panics {
                            std::panic::resume_unwind(Box::new("on purpose"));
                        }
                        Err("on purpose".into())
                    })
                    .unwrap();
                let error = common::failure(engine.wait_for_var(&value));
                let is_right = match error.cause() {
                    Cause::Error(error) => !panics && error.to_string() == "on purpose",
                    cause => panics && matches!(cause, Cause::Panic(_)),
                };
                assert!(is_right, "{error}");
            }
        }
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_deferred_completion_that_is_dropped_is_lost() {
    on_kinds(&KINDS, 1, |engine| {
        let disk = engine.token();
        engine.op("loses").writes([&disk]).push(deferral(), |end| drop(end.defer())).unwrap();
        let error = common::failure(engine.wait_for_var(&disk));
        assert!(matches!(error.cause(), Cause::LostCompletion), "{error}");
    });
}

/// A wait in a function runs what its thread has deferred, among it the failures of lost completions.
#[test]
fn a_function_may_wait_and_then_end_its_operation() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, other) = (engine.var(0), engine.var(0));
        let (inner, its_other) = (engine.downgrade(), other.clone());
        engine
            .op("waits")
            .push((value.write(), deferral()), move |(value, _end)| {
                inner.op("other").push(its_other.write(), |other| *other += 1).unwrap();
                inner.wait_for_var(&its_other).unwrap();
                *value += 1;
            })
            .unwrap();
        assert_eq!(engine.get(&value).unwrap(), 1);
        assert_eq!(engine.get(&other).unwrap(), 1);
    });
}

#[test]
fn a_parent_may_defer_its_end() {
    on_kinds(&KINDS, 2, |engine| {
        for defers in [false, true] {
            let value = engine.var(0);
            let inside = value.clone();
            engine
                .op("parent")
                .with_children()
                .try_push((cx(), value.write(), deferral()), move |(cx, value, end)| {
                    *value += 1;
                    cx.child("child").push(inside.write(), |value| *value *= 10)?;
                    if defers {
                        let done = end.defer();
                        thread::spawn(move || done.complete());
                    }
                    Ok(())
                })
                .unwrap();
            assert_eq!(engine.get(&value).unwrap(), 10);
        }
    });
}

/// Handles and operators, also with properties of which each needs another way through the engine.
#[test]
fn deferral_goes_with_handles_operators_and_properties() {
    on_kinds(&KINDS, 2, |engine| {
        for property in 0..5 {
            let described = |name: &'static str| -> OpBuilder<'_> {
                let builder = engine.op(name);
                match property {
                    0 => builder,
                    1 => builder.priority(3),
                    2 => builder.run_always(),
                    3 => builder.eager(),
                    _ => builder.cleanup(),
                }
            };
            let value = engine.var(0);
            let sum = described("handle").submit((value.write(), deferral()), |(value, _end)| {
                *value += 1;
                *value
            });
            assert_eq!(sum.unwrap().wait().unwrap(), 1);
            let operator = described("operator").operator((value.write(), deferral()), |(value, end)| {
                *value += 1;
                if *value % 2 == 0 {
                    let done = end.defer();
                    thread::spawn(move || done.complete());
                }
            });
            let operator = operator.unwrap();
            for _ in 0..10 {
                operator.push().unwrap();
            }
            operator.submit().unwrap().wait().unwrap();
            assert_eq!(engine.get(&value).unwrap(), 12);
        }
    });
}
