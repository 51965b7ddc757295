use super::*;

#[test]
fn a_foreign_variable_is_refused_everywhere() {
    on_kinds(&KINDS, 1, |here| {
        let there = engine(EngineKind::Naive, 1);
        let foreign = there.var(1);
        let is_refused = |pushed: Result<(), PushError>| {
            assert!(matches!(pushed, Err(PushError::Variable(NoAccess::Foreign, _))), "{pushed:?}");
        };
        is_refused(here.op("").push(foreign.read(), |_| {}));
        is_refused(here.op("").push((here.var(1).write(), foreign.write()), |_| {}));
        is_refused(here.op("").submit(foreign.read(), |_| {}).map(drop));
        is_refused(here.op("").submit_any(foreign.read(), |_| Ok::<_, String>(())).map(drop));
        is_refused(here.push_sync(|_| {}, [foreign.token()], []));
        is_refused(here.push_async(|_, done| done.complete(), [], [foreign.token()]));
        is_refused(here.op("").operator(foreign.write(), |_| {}).map(drop));
        is_refused(here.delete_variable(&foreign, |_| {}));
        is_refused(here.clear_error(&foreign));
        for result in [
            here.wait_for_var(&foreign),
            here.wait_to_read(&foreign),
            here.wait_for_var_timeout(&foreign, Duration::MAX),
            common::block_on(here.wait_for_var_async(&foreign)),
            here.get(&foreign).map(drop),
        ] {
            assert!(matches!(result, Err(WaitError::Refused(PushError::Variable(NoAccess::Foreign, _)))), "{result:?}");
        }
        // The variable still works on its own engine.
        assert_eq!(there.get(&foreign).unwrap(), 1);
    });
}

#[test]
fn a_variable_of_a_dropped_engine_is_foreign() {
    on_kinds(&KINDS, 1, |here| {
        for _ in 0..50 {
            let there = engine(EngineKind::Naive, 1);
            let foreign = there.token();
            drop(there);
            let other = engine(EngineKind::Naive, 1);
            assert!(matches!(other.push_sync(|_| {}, [], [&foreign]), Err(PushError::Variable(NoAccess::Foreign, _))));
            assert!(matches!(here.push_sync(|_| {}, [], [&foreign]), Err(PushError::Variable(NoAccess::Foreign, _))));
        }
    });
}

#[test]
fn an_operation_may_name_no_variable() {
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
fn an_untyped_variable_that_is_named_twice_counts_once() {
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
fn a_typed_variable_that_is_named_twice_and_mutated_is_refused() {
    on_kinds(&KINDS, 1, |engine| {
        let (a, b) = (engine.var(1), engine.var(2));
        let is_refused = |pushed: Result<(), PushError>| {
            assert!(matches!(pushed, Err(PushError::Variable(NoAccess::Aliased, _))), "{pushed:?}");
        };
        is_refused(engine.op("").push((a.write(), a.write()), |_| {}));
        is_refused(engine.op("").push((a.read(), a.write()), |_| {}));
        is_refused(engine.op("").push((a.write(), a.read()), |_| {}));
        is_refused(engine.op("").push((a.overwrite(), b.read(), a.read()), |_| {}));
        is_refused(engine.op("").push([a.write(), b.write(), a.write()], |_| {}));
        is_refused(engine.op("").push(vec![a.write(), b.write(), a.overwrite()], |_| {}));
        is_refused(engine.op("").push((vec![a.read()], (b.read(), [a.write()])), |_| {}));
        is_refused(engine.op("").submit((a.write(), a.clone().write()), |_| {}).map(drop));
        is_refused(engine.op("").operator((a.write(), a.write()), |_| {}).map(drop));
        // An additional untyped declaration of the variable makes no difference.
        is_refused(engine.op("").reads([a.token()]).push((a.write(), a.read()), |_| {}));
        is_refused(engine.op("").writes([a.token()]).push((a.read(), a.write()), |_| {}));
        engine.wait_for_all().unwrap();
        assert_eq!((a.version(), b.version()), (0, 0));
    });
}

/// Long lists of declarations are sorted by a different algorithm than short ones.
#[test]
fn an_alias_among_many_variables_is_found() {
    on_kinds(&KINDS, 1, |engine| {
        let variables: Vec<_> = (0..500).map(|n| engine.var(n)).collect();
        let mut declared: Vec<_> = variables.iter().map(Var::write).collect();
        declared.insert(250, variables[400].write());
        assert!(matches!(engine.op("").push(declared, |_| {}), Err(PushError::Variable(NoAccess::Aliased, _))));
    });
}

/// There are several ways to push, depending on the number of accesses.
#[test]
fn any_number_of_variables_may_be_named_in_any_order() {
    on_kinds(&KINDS, 1, |engine| {
        let variables: Vec<_> = (0..20).map(|_| engine.var(0)).collect();
        let mut expected = [0; 20];
        for count in 1..=20 {
            let chosen: Vec<_> = (0..count).map(|at| at * 7 % 20).collect();
            let again = &variables[chosen[count / 2]];
            let named = || chosen.iter().map(|&at| &variables[at]);
            let add = |values: Vec<&mut u64>| values.into_iter().for_each(|value| *value += 1);
            engine.op("").writes(named()).push((), |()| {}).unwrap();
            engine.op("").reads(named()).writes([again]).reads([again]).push((), |()| {}).unwrap();
            engine.op("").push(named().map(Var::write).collect::<Vec<_>>(), add).unwrap();
            let operator = engine.op("").operator(named().map(Var::write).collect::<Vec<_>>(), add).unwrap();
            operator.push().unwrap();
            let aliased: Vec<_> = named().chain([again]).map(Var::write).collect();
            assert!(matches!(engine.op("").push(aliased, add), Err(PushError::Variable(NoAccess::Aliased, _))));
            chosen.iter().for_each(|&at| expected[at] += 3);
            expected[chosen[count / 2]] += 1;
        }
        // The type determines the numbers of these.
        let write = |at: usize| variables[at].write();
        let nested = (write(9), [(write(2), variables[17].read()), (write(5), variables[1].read())], write(0));
        let f = |(a, [(b, _), (c, _)], d): (&mut u64, [(&mut u64, &u64); 2], &mut u64)| {
            [a, b, c, d].into_iter().for_each(|value| *value += 1);
        };
        engine.op("").push(nested, f).unwrap();
        [9, 2, 5, 0].into_iter().for_each(|at| expected[at] += 1);
        let array: [_; 16] = std::array::from_fn(|at| write(at * 3 % 20));
        engine.op("").push(array, |values| values.into_iter().for_each(|value| *value += 1)).unwrap();
        (0..16).for_each(|at| expected[at * 3 % 20] += 1);
        engine.wait_for_all().unwrap();
        assert_eq!(variables.iter().map(Var::version).collect::<Vec<_>>(), expected);
        let untyped = |at| (1..=20).filter(|count| (0..*count).any(|n| n * 7 % 20 == at)).count() as u64;
        let twice = |at| (1..=20).filter(|count| count / 2 * 7 % 20 == at).count() as u64;
        for (at, variable) in variables.iter().enumerate() {
            assert_eq!(engine.get(variable).unwrap(), expected[at] - untyped(at) - twice(at));
        }
    });
}

#[test]
fn a_typed_variable_may_be_read_twice() {
    on_kinds(&KINDS, 1, |engine| {
        let a = engine.var(21);
        let sum = engine.op("").submit((a.read(), [a.read(); 3], vec![a.read()]), |(x, [y, ..], z)| *x + *y + *z[0]);
        assert_eq!(sum.unwrap().wait().unwrap(), 63);
    });
}

/// Only typed accesses can alias: an untyped declaration creates no reference.
#[test]
fn a_variable_may_be_declared_untyped_and_typed() {
    on_kinds(&KINDS, 1, |engine| {
        let a = engine.var(1);
        engine.op("").writes([a.token()]).push(a.read(), |a| assert_eq!(*a, 1)).unwrap();
        engine.op("").reads([a.token()]).push(a.write(), |a| *a = 2).unwrap();
        engine.op("").overwrites([a.token()]).push(a.write(), |a| *a = 3).unwrap();
        // The untyped declaration states that the operation mutates something that the variable represents.
        engine.op("").writes([a.token()]).push((a.read(), a.read()), |(x, y)| assert_eq!((*x, *y), (3, 3))).unwrap();
        engine.op("").overwrites([a.token()]).push((a.read(), a.read(), a.read()), |_| {}).unwrap();
        assert_eq!(engine.get(&a).unwrap(), 3);
        assert_eq!(a.version(), 5);
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs ten thousand variables")]
fn a_typed_operation_may_name_ten_thousand_variables() {
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
fn an_untyped_operation_may_name_ten_thousand_variables() {
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

/// Several threads push at once, helping each other through two thousand queues.
#[test]
fn large_operations_of_several_threads_do_not_deadlock() {
    on_kinds(&KINDS, 2, |engine| {
        let tokens: Vec<Token> = (0..2_000).map(|_| engine.token()).collect();
        thread::scope(|scope| {
            for pusher in 0..4 {
                let (engine, tokens) = (&engine, &tokens);
                scope.spawn(move || {
                    for _ in 0..10 {
                        let builder = engine.op("");
                        let builder =
                            if pusher % 2 == 0 { builder.writes(tokens) } else { builder.writes(tokens.iter().rev()) };
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
fn a_second_deletion_is_refused() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let value = engine.var(drops.make());
        let gate = hold(&engine, value.token());
        let (sender, receiver) = mpsc::channel();
        let second = sender.clone();
        engine.delete_variable(&value, move |_| sender.send(1).unwrap()).unwrap();
        let refused = engine.delete_variable(&value, move |_| second.send(2).unwrap());
        assert!(matches!(refused, Err(PushError::Variable(NoAccess::Deleted, _))));
        gate.open();
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [1]);
        drops.assert_all_gone();
    });
}

#[test]
fn only_one_of_several_threads_deletes_a_variable() {
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
fn an_operation_may_drop_the_last_handle_to_its_variable() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let value = engine.var(drops.make());
        let last = value.clone();
        engine
            .op("")
            .push(value.write(), move |value| {
                value.touch();
                drop(last);
                // The value lives until the operation ends.
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
fn an_operation_may_delete_its_variable() {
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

/// A value owns the last handle to another variable, or a handle to its own variable.
#[test]
fn a_value_may_own_handles_to_variables() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let inner = engine.var(drops.make());
        let outer = engine.var(Some(inner));
        engine.op("").push(outer.read(), |_| {}).unwrap();
        drop(outer);
        eventually("both are gone", || drops.dropped() == 1);
        // An operation moves a handle to a variable into the value of that variable, which keeps the variable alive
        // until the handle is removed.
        struct Own {
            own: Option<Var<Own>>,
            _thing: common::Droppable,
        }
        let own = engine.var(Own { own: None, _thing: drops.make() });
        let clone = own.clone();
        engine.op("").push(own.write(), move |value| value.own = Some(clone)).unwrap();
        engine.op("").push(own.write(), |value| value.own = None).unwrap();
        drop(own);
        eventually("the value is gone", || drops.dropped() == 2);
        drops.assert_all_gone();
    });
}

/// The handles are dropped by the destructors of thread-locals when the thread ends.
#[test]
fn a_thread_local_may_own_a_variable_and_an_engine() {
    thread_local!(static KEPT: RefCell<Vec<Box<dyn std::any::Any>>> = const { RefCell::new(Vec::new()) });
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let (inner, inner_drops) = (engine.clone(), drops.clone());
        thread::spawn(move || {
            // The thread uses this thread-local before and after it uses the engine.
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
        // The same happens on a worker, whose thread ends with the engine.
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
