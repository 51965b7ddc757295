//! Operators whose pushes pass an argument or variables.

use super::*;

use std::array;

use common::{Droppable, program::fewer};
use raddle::{chosen, cx};

// ---------------------------------------------------------------------------------------- arguments ----

#[test]
fn each_run_receives_the_argument_of_its_push() {
    on_kinds(&KINDS, 2, |engine| {
        let list = engine.var(Vec::new());
        let gate = hold(&engine, list.token());
        let add = engine.op("add").operator_with(list.write(), |list, number: u64| list.push(number)).unwrap();
        for number in 0..100 {
            match number % 4 {
                0 => add.push(number).unwrap(),
                1 => add.clone().push_with_priority(number, number as i32).unwrap(),
                2 => add.submit(number).unwrap().ignore(),
                _ => add.if_room().unwrap().push(number).unwrap(),
            }
        }
        gate.open();
        assert_eq!(engine.get(&list).unwrap(), (0..100).collect::<Vec<_>>());
    });
}

/// Arguments of all sizes and alignments, in each of the ways to push: inline, boxed in the record, and boxed before.
#[test]
fn arguments_may_be_of_any_size_and_alignment() {
    #[derive(Clone, Copy)]
    #[repr(align(64))]
    struct Aligned(u8);

    fn check<T: Clone + Send + 'static>(engine: &Engine, make: impl Fn(u8) -> T, number: fn(&T) -> u8) {
        let (list, own) = (engine.var(Vec::new()), [engine.var(0u8), engine.var(0)]);
        let with = engine.op("with").operator_with(list.write(), move |list, it: T| list.push(number(&it))).unwrap();
        let on = engine
            .op("on")
            .operator_on(chosen::write(), list.write(), move |own, list, it: T| {
                *own += 1;
                list.push(number(&it));
            })
            .unwrap();
        let only =
            engine.op("only").operator_on(chosen::write(), (), move |own, (), it: T| *own += number(&it)).unwrap();
        with.push(make(1)).unwrap();
        with.push_with_priority(make(2), 1).unwrap();
        with.submit(make(3)).unwrap().wait().unwrap();
        on.push_on(&own[0], make(4)).unwrap();
        on.push_on_with_priority(&own[0], make(5), 1).unwrap();
        on.submit_on(&own[0], make(6)).unwrap().wait().unwrap();
        only.push_on(&own[1], make(7)).unwrap();
        only.push_on_with_priority(&own[1], make(8), 1).unwrap();
        only.submit_on(&own[1], make(9)).unwrap().wait().unwrap();
        assert_eq!(engine.get(&list).unwrap(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(own.each_ref().map(|own| engine.get(own).unwrap()), [3, 24]);
    }

    on_kinds(&KINDS, 2, |engine| {
        check(&engine, |number| number, |number| *number);
        check(&engine, |number| [u64::from(number); 2], |numbers| numbers[1] as u8);
        check(&engine, |number| [u64::from(number); 9], |numbers| numbers[8] as u8);
        check(&engine, |number| [u64::from(number); 12], |numbers| numbers[11] as u8);
        check(&engine, Aligned, |aligned| {
            assert_eq!(std::ptr::from_ref(aligned).addr() % 64, 0);
            aligned.0
        });
        check(&engine, |number| [number; 100_000], |numbers| numbers[99_999]);
        check(&engine, Box::new, |number| **number);
    });
}

#[test]
fn the_argument_of_a_run_that_does_not_run_is_dropped_once() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let (value, other) = (engine.var(0), engine.var(0));
        let with =
            |value: &Var<i32>| engine.op("with").operator_with(value.write(), |_, it: Droppable| it.touch()).unwrap();
        let on = engine.op("on").operator_on(chosen::write::<i32>(), (), |_, (), it: Droppable| it.touch()).unwrap();
        let both = engine
            .op("both")
            .operator_on(chosen::write::<i32>(), other.read(), |_, _, it: Droppable| it.touch())
            .unwrap();
        let push_all = |value: &Var<i32>| {
            let with = with(value);
            vec![
                with.push(drops.make()),
                with.push_with_priority(drops.make(), 7),
                with.submit(drops.make()).map(OpHandle::ignore),
                on.push_on(value, drops.make()),
                on.push_on_with_priority(value, drops.make(), 7),
                on.submit_on(value, drops.make()).map(OpHandle::ignore),
                both.push_on(value, drops.make()),
                both.submit_on(value, drops.make()).map(OpHandle::ignore),
                both.if_room().unwrap().push_on(value, drops.make()),
            ]
        };
        // It runs.
        assert!(push_all(&value).into_iter().all(|pushed| pushed.is_ok()));
        engine.wait_for_all().unwrap();
        drops.assert_all_gone();
        // It is skipped.
        push_failing(&engine, "fails", &[], &[value.token()]);
        assert!(push_all(&value).into_iter().all(|pushed| pushed.is_ok()));
        // The failure may have been ignored with a handle.
        let _ = engine.wait_for_all();
        drops.assert_all_gone();
        engine.clear_error(&value).unwrap();
        // It is cancelled.
        let gate = hold(&engine, value.token());
        let handles = [with(&value).submit(drops.make()).unwrap(), on.submit_on(&value, drops.make()).unwrap()];
        assert!(handles.iter().all(|handle| handle.cancel_quietly()));
        drops.assert_all_gone();
        gate.open();
        engine.wait_for_all().unwrap();
        // It is refused.
        let deleted = with(&value);
        engine.delete_variable(&value, |_| {}).unwrap();
        for pushed in [
            deleted.push(drops.make()),
            deleted.push_with_priority(drops.make(), 7),
            deleted.submit(drops.make()).map(OpHandle::ignore),
            on.push_on(&value, drops.make()),
            on.push_on_with_priority(&value, drops.make(), 7),
            on.submit_on(&value, drops.make()).map(OpHandle::ignore),
            both.push_on(&value, drops.make()),
        ] {
            assert!(matches!(pushed, Err(PushError::Variable(NoAccess::Deleted, _))), "{pushed:?}");
        }
        drops.assert_all_gone();
        // The engine refuses it.
        let with = with(&other);
        engine.shutdown(Shutdown::Drain, None).unwrap();
        assert_eq!(with.push(drops.make()), Err(PushError::ShutDown));
        assert_eq!(on.push_on(&other, drops.make()), Err(PushError::ShutDown));
        drops.assert_all_gone();
    });
}

#[test]
fn a_cancelled_shutdown_drops_the_arguments_of_runs_that_have_not_started() {
    on_kinds(&THREADED, 1, |engine| {
        let (value, drops) = (engine.var(0), Drops::new());
        let with = engine.op("with").operator_with(value.write(), |_, it: Droppable| it.touch()).unwrap();
        let on = engine.op("on").operator_on(chosen::write(), (), |_: &mut i32, (), it: Droppable| it.touch()).unwrap();
        let gate = hold(&engine, value.token());
        for _ in 0..10 {
            with.push(drops.make()).unwrap();
            on.push_on(&value, drops.make()).unwrap();
        }
        let opens = gate.clone();
        thread::spawn(move || {
            thread::sleep(MOMENT);
            opens.open();
        });
        drop(on);
        let _ = engine.shutdown(Shutdown::Cancel, None);
        assert_eq!(drops.made(), 20);
        drops.assert_all_gone();
    });
}

#[test]
fn a_failed_or_panicking_run_has_dropped_its_argument() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, drops) = (engine.var(0), Drops::new());
        let fails = engine.op("fails").try_operator_with(value.overwrite(), |_, it: Droppable| {
            it.touch();
            Err("on purpose".into())
        });
        let panics = engine.op("panics").operator_on(chosen::overwrite::<i32>(), (), |_, (), it: Droppable| {
            it.touch();
            panic_any("on purpose");
        });
        let handle = fails.unwrap().submit(drops.make()).unwrap();
        assert!(matches!(failure(handle.wait()).cause(), Cause::Error(error) if error.to_string() == "on purpose"));
        let line = line!() + 1;
        panics.unwrap().push_on(&value, drops.make()).unwrap();
        let error = failure(engine.wait_for_var(&value));
        assert!(matches!(error.cause(), Cause::Panic(Some(message)) if message == "on purpose"));
        assert_eq!((error.name(), error.location().file(), error.location().line()), ("panics", file!(), line));
        drops.assert_all_gone();
    });
}

#[test]
fn properties_of_the_description_apply_to_each_run() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, group) = (engine.var(Vec::new()), engine.group());
        let add = group
            .op("add")
            .with_children()
            .cleanup()
            .try_operator_with((cx(), value.write()), {
                let value = value.clone();
                move |(op, list), number: u64| {
                    list.push(number);
                    op.child("child").push(value.write(), move |list| list.push(100 + number))?;
                    Ok(())
                }
            })
            .unwrap();
        let on = group.op("on").deadline(Instant::now() + PATIENCE).operator_on(
            chosen::write(),
            cx(),
            |list: &mut Vec<u64>, op, number| {
                assert_eq!(op.name(), "on");
                list.push(number);
            },
        );
        let on = on.unwrap();
        for number in 0..5 {
            add.push(2 * number).unwrap();
            on.push_on(&value, 2 * number + 1).unwrap();
        }
        group.wait().unwrap();
        let expected: Vec<u64> = (0..5).flat_map(|number| [2 * number, 100 + 2 * number, 2 * number + 1]).collect();
        assert_eq!(engine.get(&value).unwrap(), expected);
        assert_eq!(value.version(), 10);
    });
}

#[test]
fn asynchronous_operators_receive_arguments_and_variables() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, disks) = (engine.var(Vec::new()), [engine.token(), engine.token()]);
        let read = engine
            .op("read")
            .operator_on(chosen::writes(), (completion(), value.write()), |(), (done, list), number: usize| {
                list.push(number);
                thread::spawn(move || done.complete());
            })
            .unwrap();
        let fail = engine
            .op("fail")
            .writes([&disks[1]])
            .operator_with(completion(), |done, message: String| done.fail(message))
            .unwrap();
        for number in 0..10 {
            read.push_on(&disks[number % 2], number).unwrap();
        }
        fail.push("no such disk".to_owned()).unwrap();
        assert!(failure(engine.wait_for_var(&disks[1])).to_string().contains("no such disk"));
        assert_eq!(engine.get(&value).unwrap(), (0..10).collect::<Vec<_>>());
        assert_eq!(disks.each_ref().map(Token::version), [5, 5]);
    });
}

// ---------------------------------------------------------------------------------- chosen variables ----

#[test]
fn runs_are_ordered_by_the_variables_chosen_for_them() {
    on_kinds(&KINDS, 2, |engine| {
        let books: [_; 8] = array::from_fn(|_| engine.var(Vec::new()));
        let total = engine.var(0);
        let tick =
            engine.op("tick").operator_on(chosen::write(), (), |book: &mut Vec<usize>, (), tick| book.push(tick));
        let tick = tick.unwrap();
        let sum = engine
            .op("sum")
            .operator_on(chosen::read(), total.write(), |book: &Vec<usize>, total, factor: usize| {
                *total += book.len() * factor;
            })
            .unwrap();
        let mut expected = 0;
        for number in 0..800 {
            tick.push_on(&books[number * number % 8], number).unwrap();
            if number % 100 == 99 {
                let book = number / 100;
                sum.push_on(&books[book], number).unwrap();
                expected += (0..=number).filter(|number| number * number % 8 == book).count() * number;
            }
        }
        for (at, book) in books.iter().enumerate() {
            let ticks: Vec<usize> = (0..800).filter(|number| number * number % 8 == at).collect();
            assert_eq!(engine.get(book).unwrap(), ticks);
            assert_eq!(book.version(), ticks.len() as u64);
        }
        assert_eq!(engine.get(&total).unwrap(), expected);
    });
}

#[test]
fn runs_on_different_variables_are_concurrent() {
    on_kinds(&THREADED, 2, |engine| {
        let (values, meeting) = ([engine.var(0), engine.var(0)], Meeting::new(2));
        let meet = engine
            .op("meet")
            .operator_on(chosen::write(), (), move |value: &mut i32, (), to| {
                assert!(meeting.join_within(PATIENCE));
                *value = to;
            })
            .unwrap();
        meet.push_on(&values[0], 1).unwrap();
        meet.push_on(&values[1], 2).unwrap();
        assert_eq!(values.each_ref().map(|value| engine.get(value).unwrap()), [1, 2]);
    });
}

/// Numbers of accesses that are pushed in different ways, with and without accesses of the operator's own.
#[test]
fn any_number_of_variables_may_be_chosen() {
    fn check<const N: usize>(engine: &Engine) {
        let values: [_; N] = array::from_fn(|number| engine.var(number));
        let (own, token) = (engine.var(Vec::new()), engine.token());
        let choice = [chosen::write(); N];
        let plain = engine.op("plain").operator_on(choice, (), |values, (), by| {
            values.into_iter().for_each(|value| *value += by);
        });
        let sums = engine.op("sums").reads([&token]).operator_on(
            ([chosen::read(); N], chosen::reads()),
            own.write(),
            |(values, ()): ([&usize; N], ()), own, ()| own.push(values.into_iter().sum::<usize>()),
        );
        let (plain, sums) = (plain.unwrap(), sums.unwrap());
        let (forwards, mut backwards) = (values.each_ref(), values.each_ref());
        backwards.reverse();
        plain.push_on(forwards, 10).unwrap();
        plain.push_on_with_priority(backwards, 100, 3).unwrap();
        sums.push_on((backwards, &token), ()).unwrap();
        sums.push_on((forwards, &engine.token()), ()).unwrap();
        let sum = N * 110 + N * (N - 1) / 2;
        assert_eq!(engine.get(&own).unwrap(), [sum, sum], "{N} variables");
        assert!(values.iter().all(|value| value.version() == 2));
    }

    on_kinds(&KINDS, 1, |engine| {
        check::<1>(&engine);
        check::<2>(&engine);
        check::<3>(&engine);
        check::<4>(&engine);
        check::<5>(&engine);
        check::<14>(&engine);
        check::<16>(&engine);
        check::<17>(&engine);
        check::<40>(&engine);
    });
}

#[test]
fn chosen_variables_may_differ_in_type_and_mode() {
    on_kinds(&KINDS, 1, |engine| {
        let (names, counts) = (["a", "bc"].map(|name| engine.var(name)), [engine.var(0), engine.var(0)]);
        let (failed, disk) = (engine.var(1.5), engine.token());
        push_failing(&engine, "fails", &[], &[failed.token(), &disk]);
        let choice =
            (chosen::read::<&str>(), chosen::write::<usize>(), chosen::overwrite::<f64>(), chosen::overwrites());
        let all = engine.op("all").operator_on(choice, (), |(name, count, float, ()), (), by: usize| {
            *count += name.len() * by;
            *float = 2.5;
        });
        all.unwrap().push_on((&names[1], &counts[0], &failed, &disk), 7).unwrap();
        assert_eq!(engine.get(&counts[0]).unwrap(), 14);
        assert_eq!(engine.get(&failed).unwrap(), 2.5);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn wrongly_chosen_variables_are_refused_and_leave_nothing_pending() {
    on_kinds(&KINDS, 1, |engine| {
        let other = common::engine(engine.kind(), 1);
        let (a, b, foreign, deleted) = (engine.var(1), engine.var(2), other.var(3), engine.var(4));
        engine.delete_variable(&deleted, |_| {}).unwrap();
        engine.wait_for_all().unwrap();
        let one = engine.op("one").operator_on(chosen::write(), (), |_: &mut i32, (), ()| {}).unwrap();
        let pair = engine.op("pair").operator_on([chosen::write(); 2], (), |_: [&mut i32; 2], (), ()| {}).unwrap();
        let mixed = engine.op("mixed").operator_on(chosen::read(), a.write(), |_: &i32, _, ()| {}).unwrap();
        let is = |pushed: Result<(), PushError>, expected: NoAccess| {
            assert!(matches!(&pushed, Err(PushError::Variable(found, _)) if *found == expected), "{pushed:?}");
        };
        is(one.push_on(&foreign, ()), NoAccess::Foreign);
        is(one.push_on_with_priority(&foreign, (), 1), NoAccess::Foreign);
        is(one.submit_on(&foreign, ()).map(OpHandle::ignore), NoAccess::Foreign);
        is(one.push_on(&deleted, ()), NoAccess::Deleted);
        is(pair.push_on([&b, &foreign], ()), NoAccess::Foreign);
        is(pair.push_on([&deleted, &b], ()), NoAccess::Deleted);
        is(pair.push_on([&b, &b], ()), NoAccess::Aliased);
        is(pair.submit_on([&b, &b], ()).map(OpHandle::ignore), NoAccess::Aliased);
        is(mixed.push_on(&a, ()), NoAccess::Aliased);
        is(mixed.push_on_with_priority(&a, (), 1), NoAccess::Aliased);
        assert_eq!(engine.pending(), 0);
        let line = line!() + 1;
        let Err(PushError::Variable(_, access)) = pair.push_on([&a, &a], ()) else { panic!("an alias") };
        assert!(access.to_string().contains(&format!("{}:{line}", file!())), "{access}");
        pair.push_on([&a, &b], ()).unwrap();
        mixed.push_on(&b, ()).unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!((a.version(), b.version()), (2, 1));
    });
}

/// A token gives the function no reference, so it may be named more than once.
#[test]
fn a_token_chosen_twice_counts_once() {
    on_kinds(&KINDS, 1, |engine| {
        let (token, value) = (engine.token(), engine.var(0));
        let choice = (chosen::reads(), chosen::writes());
        let add = engine.op("add").reads([&token]).operator_on(choice, value.write(), |_, value, by: i32| *value += by);
        let add = add.unwrap();
        add.push_on((&token, &token), 1).unwrap();
        add.push_on((value.token(), value.token()), 2).unwrap();
        assert_eq!(engine.get(&value).unwrap(), 3);
        assert_eq!((token.version(), value.version()), (1, 2));
    });
}

// ------------------------------------------------------------------------------------------ lifetime ----

#[test]
fn a_dropped_operator_without_variables_of_its_own_lives_until_its_runs_complete() {
    on_kinds(&KINDS, 2, |engine| {
        let (values, drops, ran) = ([engine.token(), engine.token()], Drops::new(), Arc::new(AtomicUsize::new(0)));
        let gates = values.each_ref().map(|value| hold(&engine, value));
        let (captured, inner) = (drops.make(), Arc::clone(&ran));
        let operator = engine
            .op("")
            .operator_on(chosen::writes(), (), move |(), (), by| {
                captured.touch();
                inner.fetch_add(by, SeqCst);
            })
            .unwrap();
        for number in 0..10 {
            operator.push_on(&values[number % 2], 1).unwrap();
            operator.submit_on(&values[number % 2], 10).unwrap().ignore();
            operator.push_on_with_priority(&values[number % 2], 100, 1).unwrap();
        }
        drop(operator);
        gates[0].open();
        engine.wait_for_var(&values[0]).unwrap();
        assert_eq!(drops.dropped(), 0, "the operator's function was dropped while its runs were pending");
        gates[1].open();
        // Covers the drop of the function, which follows that of the operator.
        engine.wait_for_all().unwrap();
        assert_eq!(ran.load(SeqCst), 1110);
        drops.assert_all_gone();
    });
}

#[test]
fn an_operator_without_variables_of_its_own_may_be_dropped_inside_a_run_or_after_its_engine() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, drops, holder) = (engine.var(0), Drops::new(), Arc::new(Mutex::new(None)));
        let make = |on_run: Box<dyn Fn() + Send + Sync>| {
            let captured = drops.make();
            let f = move |value: &mut i32, (), by: i32| {
                captured.touch();
                *value += by;
                on_run();
                captured.touch();
            };
            engine.op("").operator_on(chosen::write(), (), f).unwrap()
        };
        let held = Arc::clone(&holder);
        let operator = make(Box::new(move || drop(lock(&held).take())));
        let clone = operator.clone();
        *lock(&holder) = Some(operator);
        clone.push_on(&value, 1).unwrap();
        drop(clone);
        engine.wait_for_all().unwrap();
        // If the run was the last to hold the operator, the wait may have ended before the run dropped it.
        eventually("the function is dropped", || drops.dropped() == 1);
        let operator = make(Box::new(|| {}));
        operator.push_on(&value, 1).unwrap();
        engine.shutdown(Shutdown::Drain, None).unwrap();
        assert_eq!(operator.push_on(&value, 1), Err(PushError::ShutDown));
        drop(operator);
        drop(engine);
        drops.assert_all_gone();
    });
}

/// The function must not be dropped before any of the runs, which use it without counting as its owners.
#[test]
fn operators_without_variables_of_their_own_may_be_dropped_by_any_thread() {
    on_kinds(&KINDS, 2, |engine| {
        let (values, drops): ([_; 4], _) = (array::from_fn(|_| engine.var(0)), Drops::new());
        let (sender, receiver) = mpsc::channel();
        let (values, drops) = (&values, &drops);
        thread::scope(|scope| {
            for thread in 0..3 {
                let (engine, sender) = (&engine, sender.clone());
                scope.spawn(move || {
                    for round in 0..fewer(200) {
                        let captured = drops.make();
                        let f = move |value: &mut i32, (), by: i32| {
                            captured.touch();
                            *value += by;
                            captured.touch();
                        };
                        let operator = engine.op("").operator_on(chosen::write(), (), f).unwrap();
                        for push in 0..round % 8 {
                            operator.push_on(&values[(thread + push) % 4], 1).unwrap();
                        }
                        // Dropped here, or by the thread below.
                        if round % 2 == 0 {
                            sender.send(operator).unwrap();
                        }
                    }
                });
            }
            drop(sender);
            scope.spawn(move || receiver.into_iter().for_each(drop));
        });
        engine.wait_for_all().unwrap();
        let sum: i32 = values.iter().map(|value| engine.get(value).unwrap()).sum();
        assert_eq!(sum, 3 * (0..fewer(200) as i32).map(|round| round % 8).sum::<i32>());
        drops.assert_all_gone();
    });
}

/// Nothing tells which of the pending operations are runs.
#[test]
fn the_function_of_an_operator_without_variables_of_its_own_outlives_operations_pending_at_its_drop() {
    on_kinds(&KINDS, 1, |engine| {
        let (unrelated, value, drops) = (engine.token(), engine.var(0), Drops::new());
        let gate = hold(&engine, &unrelated);
        let captured = drops.make();
        let f = move |value: &mut i32, (), by: i32| {
            captured.touch();
            *value += by;
        };
        let operator = engine.op("").operator_on(chosen::write(), (), f).unwrap();
        operator.push_on(&value, 1).unwrap();
        drop(operator);
        // It neither blocks the variable nor the program.
        assert_eq!(engine.get(&value).unwrap(), 1);
        assert_eq!(drops.dropped(), 0);
        gate.open();
        engine.wait_for_all().unwrap();
        drops.assert_all_gone();
    });
}

/// The operator keeps the variables of its description alive, but not those chosen for its runs.
#[test]
fn an_operator_does_not_keep_chosen_variables_alive() {
    on_kinds(&KINDS, 1, |engine| {
        let (drops, own) = (Drops::new(), Drops::new());
        let (value, of_its_own) = (engine.var(drops.make()), engine.var(own.make()));
        let choice = chosen::write::<Droppable>();
        let operator = engine.op("").operator_on(choice, of_its_own.read(), |value, own, ()| {
            value.touch();
            own.touch();
        });
        let operator = operator.unwrap();
        drop(of_its_own);
        operator.push_on(&value, ()).unwrap();
        drop(value);
        engine.wait_for_all().unwrap();
        drops.assert_all_gone();
        assert_eq!(own.dropped(), 0);
        drop(operator);
        engine.wait_for_all().unwrap();
        own.assert_all_gone();
    });
}
