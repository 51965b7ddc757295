//! Calls that read and replace values: `get_timeout`, `with`, `set`, `replace`, `take`.

use raddle_testkit as common;

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::mpsc,
    thread,
    time::Duration,
};

use common::{Drops, Gate, KINDS, MOMENT, PATIENCE, PanicsOnDrop, THREADED, eventually, failure, hold, on_kinds};
use raddle::{Engine, PushError, Shutdown, Var, WaitError, completion, error::NoAccess};

/// A value that cannot be cloned.
#[derive(Debug, Default, PartialEq)]
struct Unclonable(u32);

#[test]
fn with_sees_the_mutations_before_it_without_a_clone() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(Unclonable(1));
        for n in 2..=100 {
            engine.op("").push(value.write(), move |value| value.0 = n).unwrap();
        }
        let here = thread::current().id();
        let seen = engine.with(&value, |value| (value.0, thread::current().id())).unwrap();
        assert_eq!(seen, (100, here));
        assert_eq!(value.version(), 99, "a call to `with` counts as a mutation");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn readers_run_during_with_and_mutations_wait() {
    on_kinds(&THREADED, 2, |engine| {
        let value = engine.var(7);
        let mut write = None;
        engine
            .with(&value, |seen| {
                write = Some(engine.op("write").submit(value.write(), |value| *value = 8).unwrap());
                assert!(write.as_mut().unwrap().wait_timeout(MOMENT).is_err(), "the mutation has run during `with`");
                assert_eq!(*seen, 7);
            })
            .unwrap();
        write.unwrap().wait().unwrap();
        let read = engine.with(&value, |seen| {
            let beside = engine.op("read").submit(value.read(), |value| *value).unwrap();
            assert_eq!(beside.wait().unwrap(), *seen);
            *seen
        });
        assert_eq!(read.unwrap(), 8);
    });
}

/// On the naive engine, operations pushed by the function run inside their pushes or once the function has returned.
#[test]
fn the_function_of_with_may_push_and_wait_for_other_variables() {
    on_kinds(&KINDS, 1, |engine| {
        let (outer, inner) = (engine.var(1), engine.var(2));
        let seen = engine.with(&outer, |outer_value| {
            engine.op("").push(inner.write(), |inner| *inner += 1).unwrap();
            engine.op("").push(outer.write(), |outer| *outer += 1).unwrap();
            let nested = engine.with(&inner, |inner| *inner).unwrap();
            (*outer_value, nested, engine.get(&inner).unwrap())
        });
        assert_eq!(seen.unwrap(), (1, 3, 3));
        assert_eq!(engine.get(&outer).unwrap(), 2);
    });
}

#[test]
fn the_function_of_with_cannot_wait_for_its_variable_or_for_all() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        let deadlocks =
            |result: Result<(), WaitError>| assert!(matches!(result, Err(WaitError::WouldDeadlock(_))), "{result:?}");
        engine
            .with(&value, |_| {
                deadlocks(engine.with(&value, |_| ()));
                deadlocks(engine.get(&value).map(drop));
                deadlocks(engine.get_timeout(&value, MOMENT).map(drop));
                deadlocks(engine.replace(&value, 2).map(drop));
                deadlocks(engine.take(&value).map(drop));
                deadlocks(engine.wait_for_var(&value));
                deadlocks(engine.wait_for_all());
            })
            .unwrap();
        let (same, inside) = (value.clone(), engine.downgrade());
        let nested = engine.op("").submit(value.write(), move |_| inside.with(&same, |_| ()));
        deadlocks(nested.unwrap().wait().unwrap());
        assert_eq!(engine.get(&value).unwrap(), 1, "the value was replaced");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn with_works_inside_operations() {
    on_kinds(&KINDS, 1, |engine| {
        let (table, total) = (engine.var(vec![1, 2, 3]), engine.var(0));
        let inside = engine.downgrade();
        let sum = table.clone();
        engine
            .op("")
            .try_push(total.write(), move |total| {
                *total = inside.with(&sum, |table| table.iter().sum())?;
                Ok(())
            })
            .unwrap();
        assert_eq!(engine.get(&total).unwrap(), 6);
    });
}

#[test]
fn a_panic_in_with_releases_the_variable_and_does_not_fail_it() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        let looked =
            catch_unwind(AssertUnwindSafe(|| engine.with(&value, |_| -> () { resume_unwind(Box::new("on purpose")) })));
        assert_eq!(looked.unwrap_err().downcast_ref(), Some(&"on purpose"));
        engine.op("").push(value.write(), |value| *value += 1).unwrap();
        assert_eq!(engine.get(&value).unwrap(), 2);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn calls_on_failed_deleted_and_foreign_variables_return_the_reason() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let other = common::engine(raddle::EngineKind::Naive, 1);
        let foreign: Var<Unclonable> = other.var(Unclonable(0));
        assert!(matches!(
            engine.with(&foreign, |_| ()),
            Err(WaitError::Refused(PushError::Variable(NoAccess::Foreign, _)))
        ));
        assert!(matches!(engine.take(&foreign), Err(WaitError::Refused(PushError::Variable(NoAccess::Foreign, _)))));
        assert!(matches!(engine.set(&foreign, Unclonable(1)), Err(PushError::Variable(NoAccess::Foreign, _))));

        let failed = engine.var(drops.make());
        engine.op("fails").try_push(failed.write(), |_| Err("no".into())).unwrap();
        assert_eq!(failure(engine.with(&failed, |_| ())).name(), "fails");
        assert_eq!(failure(engine.replace(&failed, drops.make()).map(drop)).name(), "fails");
        engine.set(&failed, drops.make()).unwrap();
        engine.with(&failed, |_| ()).unwrap();
        drop(failed);

        let deleted = engine.var(Unclonable(0));
        engine.delete_variable(&deleted, |_| {}).unwrap();
        assert!(matches!(
            engine.with(&deleted, |_| ()),
            Err(WaitError::Refused(PushError::Variable(NoAccess::Deleted, _)))
        ));
        assert!(matches!(engine.replace(&deleted, Unclonable(1)), Err(WaitError::Refused(_))));
        engine.wait_for_all().unwrap();
        drops.assert_all_gone();
    });
}

#[test]
fn values_are_set_replaced_and_taken_in_push_order() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(Unclonable(1));
        engine.set(&value, Unclonable(2)).unwrap();
        engine.op("").push(value.write(), |value| value.0 *= 10).unwrap();
        assert_eq!(engine.replace(&value, Unclonable(3)).unwrap(), Unclonable(20));
        engine.op("").push(value.write(), |value| value.0 += 1).unwrap();
        assert_eq!(engine.take(&value).unwrap(), Unclonable(4));
        assert_eq!(engine.with(&value, |value| value.0).unwrap(), 0);
        assert_eq!(value.version(), 5);
    });
}

/// A value whose default cannot be made.
#[derive(Debug, PartialEq)]
struct NoDefault(u32);

impl Default for NoDefault {
    fn default() -> Self {
        resume_unwind(Box::new("on purpose"))
    }
}

#[test]
fn a_take_that_panics_changes_nothing_and_is_not_counted() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(NoDefault(1));
        let taken = catch_unwind(AssertUnwindSafe(|| engine.take(&value)));
        assert_eq!(taken.unwrap_err().downcast_ref(), Some(&"on purpose"));
        assert_eq!(value.version(), 0, "a mutation that did not run to completion was counted");
        // The variable was released and has not failed.
        assert_eq!(engine.replace(&value, NoDefault(2)).unwrap(), NoDefault(1));
        engine.op("").push(value.write(), |value| value.0 += 1).unwrap();
        assert_eq!(engine.with(&value, |value| value.0).unwrap(), 3);
        assert_eq!(value.version(), 2);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_set_fails_and_is_not_counted_if_the_drop_of_the_old_value_panics() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(Some(PanicsOnDrop("on purpose")));
        engine.set(&value, None).unwrap();
        assert_eq!(failure(engine.wait_for_var(&value)).name(), "set");
        assert_eq!(value.version(), 0, "a mutation that did not run to completion was counted");
        engine.set(&value, None).unwrap();
        engine.wait_for_var(&value).unwrap();
        assert_eq!(value.version(), 1);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn set_returns_while_operations_before_it_are_pending() {
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(1);
        let gate = hold(&engine, value.token());
        engine.set(&value, 5).unwrap();
        let timed_out = engine.get_timeout(&value, MOMENT);
        assert!(matches!(timed_out, Err(WaitError::TimedOut)), "{timed_out:?}");
        gate.open();
        assert_eq!(engine.get_timeout(&value, PATIENCE).unwrap(), 5);
    });
}

/// A timed-out wait leaves no operation behind that would clone the value later.
#[test]
fn a_get_that_timed_out_makes_no_clone_later() {
    on_kinds(&THREADED, 1, |engine| {
        #[derive(Debug)]
        struct Counted(mpsc::Sender<()>);
        impl Clone for Counted {
            fn clone(&self) -> Self {
                self.0.send(()).unwrap();
                Self(self.0.clone())
            }
        }
        let (sender, clones) = mpsc::channel();
        let value = engine.var(Counted(sender));
        let gate = hold(&engine, value.token());
        for _ in 0..100 {
            assert!(matches!(engine.get_timeout(&value, Duration::ZERO), Err(WaitError::TimedOut)));
        }
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!(clones.try_iter().count(), 0);
        engine.get_timeout(&value, PATIENCE).unwrap();
        assert_eq!(clones.try_iter().count(), 1);
    });
}

/// The function of `with` is not an operation, so it must not prolong the drain by pushing.
#[test]
fn a_draining_shutdown_waits_for_with_but_refuses_its_pushes() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, begun) = (engine.var(1), Gate::new());
        thread::scope(|scope| {
            let looks = scope.spawn(|| {
                engine.with(&value, |value| {
                    begun.open();
                    eventually("the engine refuses pushes", || {
                        engine.op("").push((), |()| {}) == Err(PushError::ShutDown)
                    });
                    thread::sleep(MOMENT);
                    *value
                })
            });
            begun.pass();
            engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
            assert!(looks.is_finished() || looks.join().unwrap().unwrap() == 1);
        });
        // `with` can still read the value after the shutdown.
        assert_eq!(engine.with(&value, |value| *value).unwrap(), 1);
    });
}

/// The mutation before the call is asynchronous and completes outside a worker thread.
#[test]
fn with_needs_no_worker() {
    on_kinds(&THREADED, 1, |engine| {
        let (value, token) = (engine.var(1), engine.token());
        let (sender, receiver) = mpsc::channel();
        engine.op("").writes([value.token()]).push(completion(), move |done| sender.send(done).unwrap()).unwrap();
        let done = receiver.recv_timeout(PATIENCE).unwrap();
        let gate = common::occupy(&engine, 1);
        engine.op("").reads([value.token()]).writes([&token]).push((), |()| {}).unwrap();
        thread::scope(|scope| {
            let looks = scope.spawn(|| engine.with(&value, |value| *value));
            thread::sleep(MOMENT);
            done.complete();
            eventually("the call to `with` returns", || looks.is_finished());
            assert_eq!(looks.join().unwrap().unwrap(), 1);
        });
        gate.open();
    });
}

#[test]
fn get_timeout_returns_the_value_that_the_mutations_before_it_leave() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        assert_eq!(
            engine.get_timeout(&value, Duration::ZERO).unwrap(),
            1,
            "the value is wrong although nothing is pending"
        );
        let gate = hold(&engine, value.token());
        engine.set(&value, 5).unwrap();
        engine.op("double").push(value.write(), |value| *value *= 2).unwrap();
        thread::scope(|scope| {
            let gets = scope.spawn(|| engine.get_timeout(&value, PATIENCE));
            thread::sleep(MOMENT);
            assert!(!gets.is_finished(), "the call returned while the first mutation was pending");
            gate.open();
            assert_eq!(gets.join().unwrap().unwrap(), 10);
        });
        let (inside, same) = (engine.downgrade(), value.clone());
        let gets = engine.op("gets").submit((), move |()| {
            inside.op("double").push(same.write(), |value| *value *= 2).unwrap();
            inside.get_timeout(&same, PATIENCE)
        });
        assert_eq!(gets.unwrap().wait().unwrap().unwrap(), 20);
        assert_eq!(value.version(), 4, "a read counts as a mutation");
        engine.wait_for_all().unwrap();
    });
}

/// The second mutation is pushed after the call and must not delay it.
#[test]
fn get_timeout_takes_its_place_when_it_is_called() {
    on_kinds(&THREADED, 2, |engine| {
        let value = engine.var(0);
        let (begun, called, blocks) = (Gate::new(), Gate::new(), Gate::new());
        let (starts, waits, blocked) = (begun.clone(), called.clone(), blocks.clone());
        let (inside, same) = (engine.downgrade(), value.clone());
        engine
            .op("first")
            .push(value.write(), move |value| {
                starts.open();
                waits.pass();
                *value = 1;
                inside
                    .op("second")
                    .push(same.write(), move |value| {
                        blocked.pass();
                        *value = 2;
                    })
                    .unwrap();
            })
            .unwrap();
        begun.pass();
        thread::scope(|scope| {
            let gets = scope.spawn(|| engine.get_timeout(&value, PATIENCE));
            thread::sleep(MOMENT);
            called.open();
            eventually("the call returns", || gets.is_finished());
            assert_eq!(gets.join().unwrap().unwrap(), 1);
        });
        blocks.open();
        assert_eq!(engine.get(&value).unwrap(), 2);
    });
}

#[test]
fn the_function_of_with_may_drop_the_last_handle_to_the_engine() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        let observer = engine.downgrade();
        let mut last = Some(engine);
        observer.with(&value, |_| drop(last.take())).unwrap();
        observer.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
        assert_eq!(observer.with(&value, |value| *value).unwrap(), 1);
    });
}

#[test]
fn many_threads_read_and_replace() {
    on_kinds(&KINDS, 2, |engine: Engine| {
        let value = engine.var((0u64, 0u64));
        thread::scope(|scope| {
            for number in 1..=4 {
                let (engine, value) = (&engine, &value);
                scope.spawn(move || {
                    for round in 0..200 {
                        match round % 3 {
                            0 => engine.set(value, (number, number)).unwrap(),
                            1 => {
                                let old = engine.replace(value, (round, round)).unwrap();
                                assert_eq!(old.0, old.1);
                            }
                            _ => engine.with(value, |pair| assert_eq!(pair.0, pair.1)).unwrap(),
                        }
                    }
                });
            }
        });
        assert_eq!(value.version(), 4 * (67 + 67));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn values_have_the_alignment_that_they_need() {
    #[repr(align(128))]
    struct OfALine(u8);
    #[repr(align(4096))]
    struct OfAPage(u8);
    on_kinds(&KINDS, 1, |engine| {
        // Kept, so that the allocations differ.
        let vars = (0..40).map(|n| (engine.var([n; 3]), engine.var(OfALine(n)), engine.var(OfAPage(n))));
        for (n, (small, line, page)) in vars.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(engine.with(&small, |value| value.map(usize::from)).unwrap(), [n; 3]);
            let at = engine.with(&line, |line| (usize::from(line.0), (&raw const *line).addr() % 128)).unwrap();
            assert_eq!(at, (n, 0));
            let at = engine.with(&page, |page| (usize::from(page.0), (&raw const *page).addr() % 4096)).unwrap();
            assert_eq!(at, (n, 0));
        }
    });
}
