use super::*;

#[test]
fn the_context_of_an_operation_describes_its_run() {
    on_kinds(&KINDS, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let report = move |cx: &OpContext<'_>| {
            sender.send((cx.name().to_owned(), cx.device(), cx.worker(), cx.engine().kind())).unwrap();
        };
        engine.op(format!("named {}", 7)).push_sync(report).unwrap();
        let worker = (engine.kind() != EngineKind::Naive).then_some(0);
        assert_eq!(receive(&receiver), ("named 7".to_owned(), Device::Cpu, worker, engine.kind()));
    });
}

#[test]
fn a_function_may_return_unit_a_result_or_never() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| {}, [], [&token]).unwrap();
        engine.push_sync(|_| Ok::<(), String>(()), [], [&token]).unwrap();
        engine.push_sync(|_| Err::<(), _>("as a str"), [], [&token]).unwrap();
        assert!(matches!(failure(engine.wait_for_var(&token)).cause(), Cause::Error(e) if e.to_string() == "as a str"));
        engine.clear_error(&token).unwrap();
        engine.push_sync(|_| panic!("never"), [], [&token]).unwrap();
        assert!(matches!(failure(engine.wait_for_var(&token)).cause(), Cause::Panic(Some(m)) if m == "never"));
    });
}

#[test]
fn an_async_operation_completes_from_any_thread() {
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
fn a_pending_async_operation_holds_its_variables_but_no_worker() {
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
fn a_completion_used_inside_the_function_releases_the_variables() {
    on_kinds(&THREADED, 2, |engine| {
        let (token, next) = (engine.token(), Gate::new());
        let (sender, receiver) = mpsc::channel();
        let inner = next.clone();
        engine
            .push_async(
                move |_, done| {
                    done.complete();
                    // The operation has completed, although its function is still running.
                    sender.send(inner.pass_within(PATIENCE)).unwrap();
                },
                [],
                [&token],
            )
            .unwrap();
        engine.push_sync(move |_| next.open(), [], [&token]).unwrap();
        assert!(receive(&receiver), "the next operation did not run while the function was running");
    });
}

#[test]
fn a_dropped_completion_fails_the_operation() {
    on_kinds(&KINDS, 1, |engine| {
        let tokens = [(); 3].map(|()| engine.token());
        engine.op("inside").writes([&tokens[0]]).push_async_any(raddle::cx(), |_, done| drop(done)).unwrap();
        engine
            .op("elsewhere")
            .writes([&tokens[1]])
            .push_async_any(raddle::cx(), |_, done| drop(thread::spawn(|| drop(done))))
            .unwrap();
        engine
            .op("unwinding elsewhere")
            .writes([&tokens[2]])
            .push_async_any(raddle::cx(), |_, done| {
                drop(thread::spawn(move || {
                    let _done = done;
                    std::panic::resume_unwind(Box::new("the thread unwinds"));
                }));
            })
            .unwrap();
        for (token, name) in tokens.iter().zip(["inside", "elsewhere", "unwinding elsewhere"]) {
            let error = failure(engine.wait_for_var(token));
            assert!(matches!(error.cause(), Cause::LostCompletion), "{error}");
            assert_eq!(error.name(), name);
        }
    });
}

#[test]
fn a_failed_completion_fails_the_operation() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_async(|_, done| drop(thread::spawn(|| done.fail("no disk"))), [], [&token]).unwrap();
        let error = failure(engine.wait_for_var(&token));
        assert!(matches!(error.cause(), Cause::Error(error) if error.to_string() == "no disk"), "{error}");
    });
}

#[test]
fn an_async_function_that_panics_with_its_completion_fails_the_operation_with_the_panic() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_async(|_, _done| panic!("in the function"), [], [&token]).unwrap();
        let error = failure(engine.wait_for_var(&token));
        assert!(matches!(error.cause(), Cause::Panic(Some(message)) if message == "in the function"), "{error}");
    });
}

/// In an asynchronous function without references to values, an early return by `?` drops the completion, which fails
/// the operation immediately. The function returns the error only afterwards, but the error is still reported.
#[test]
fn an_async_function_that_returns_early_loses_its_completion() {
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
        let mut reported = None;
        eventually("the error is reported", || {
            reported = engine.wait_for_all().err();
            reported.is_some()
        });
        let error = failure(Err::<(), _>(reported.unwrap()));
        assert!(matches!(error.cause(), Cause::Error(error) if error.is::<std::num::ParseIntError>()), "{error}");
    });
}

/// Once the completion is dropped, the function may wait for an operation that depends on the function's own operation.
#[test]
fn an_async_operation_completes_when_its_function_drops_the_completion() {
    on_kinds(&KINDS, 2, |engine| {
        let token = engine.token();
        let (sender, receiver) = mpsc::channel();
        let (next, inside) = (Gate::new(), engine.clone());
        let (opens, variable) = (next.clone(), token.clone());
        engine
            .push_async(
                move |_, done| {
                    inside.op("next").run_always().writes([&variable]).push_sync(move |_| opens.open()).unwrap();
                    drop(done);
                    sender.send(next.pass_within(common::SOON)).unwrap();
                },
                [],
                [&token],
            )
            .unwrap();
        assert!(receive(&receiver), "the operation did not complete before its function returned");
    });
}

/// A value that no handle can return is dropped before its operation is counted out, even if the operation is
/// asynchronous, and ends while its function is still on a stack.
#[test]
fn a_value_without_a_handle_is_dropped_before_a_wait_for_all_is_over() {
    /// Looks at the value when the wait is over.
    struct Look {
        value: Arc<()>,
        is_dropped: Mutex<Option<bool>>,
    }
    impl Wake for Look {
        fn wake(self: Arc<Self>) {
            *lock(&self.is_dropped) = Some(Arc::strong_count(&self.value) == 1);
        }
    }
    type Submit = fn(&Engine, Token, Arc<()>) -> Result<(), PushError>;
    let submits: [Submit; 3] = [
        |engine, token, value| engine.op("sync").writes([&token]).submit((), move |()| value).map(drop),
        |engine, token, value| {
            let completes = move |done: Completion| {
                done.complete();
                value
            };
            engine.op("completion").writes([&token]).submit(completion(), completes).map(drop)
        },
        |engine, token, value| {
            engine.op("future").writes([&token]).submit_future((), move |()| async move { value }).map(drop)
        },
    ];
    on_kinds(&KINDS, 1, move |engine| {
        for submit in submits {
            let (token, value) = (engine.token(), Arc::new(()));
            let gate = hold(&engine, &token);
            submit(&engine, token, Arc::clone(&value)).unwrap();
            let look = Arc::new(Look { value, is_dropped: Mutex::default() });
            let mut all = engine.wait_for_all_async();
            assert!(Pin::new(&mut all).poll(&mut Context::from_waker(&Waker::from(Arc::clone(&look)))).is_pending());
            gate.open();
            eventually("the wait is over", || lock(&look.is_dropped).is_some());
            assert_eq!(*lock(&look.is_dropped), Some(true), "the value was not dropped yet");
        }
    });
}

#[test]
fn an_early_failure_of_an_async_function_takes_effect_at_its_completion() {
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
            // The thread that owns the completion may still use the variable.
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
fn wait_for_all_reports_an_async_function_that_fails_after_its_completion() {
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
        let mut reported = None;
        eventually("the failure is reported", || {
            reported = engine.wait_for_all().err();
            reported.is_some()
        });
        let error = failure(Err::<(), _>(reported.unwrap()));
        assert!(matches!(error.cause(), Cause::Error(error) if error.to_string() == "too late"));
    });
}

/// The function catches the panic that dropped the completion and returns normally.
#[test]
fn a_completion_lost_in_a_caught_panic_fails_the_operation() {
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

/// The completion is stored in a variable's value, and the variable's deletion drops it.
#[test]
fn a_completion_dropped_with_the_value_of_a_variable_fails_the_operation() {
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
fn an_operator_can_be_pushed_again_while_it_is_pending() {
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
fn typed_sync_and_async_operators_run() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(Vec::new());
        let typed = engine.op("typed").operator(value.write(), |value| value.push('t')).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let inner = Arc::clone(&ran);
        let sync =
            engine.op("sync").writes([value.token()]).operator_sync(move |_| _ = inner.fetch_add(1, SeqCst)).unwrap();
        let inner = Arc::clone(&ran);
        let asynchronous = engine
            .op("async")
            .writes([value.token()])
            .operator((raddle::cx(), completion()), move |(_, done)| {
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
fn a_dropped_operator_lives_until_its_runs_complete() {
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
        assert_eq!(drops.dropped(), 0, "the operator's function was dropped while its runs were pending");
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!(ran.load(SeqCst), 10);
        drops.assert_all_gone();
    });
}

#[test]
fn an_operator_keeps_its_variables_alive() {
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
fn a_push_of_an_operator_with_a_deleted_variable_is_refused() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        let operator = engine.op("").operator(value.write(), |_| {}).unwrap();
        operator.push().unwrap();
        engine.delete_variable(&value, |_| {}).unwrap();
        assert!(matches!(operator.push(), Err(PushError::Variable(NoAccess::Deleted, _))));
    });
}

/// Otherwise, the refused run would be pending until its turn in the queues of the other variables.
#[test]
fn a_push_of_an_operator_with_a_deleted_variable_leaves_nothing_pending() {
    on_kinds(&KINDS, 1, |engine| {
        let (held, deleted) = (engine.token(), engine.var(1));
        let operator = engine.op("").reads([&held]).operator(deleted.write(), |_| {}).unwrap();
        engine.delete_variable(&deleted, |_| {}).unwrap();
        engine.wait_for_all().unwrap();
        let gate = hold(&engine, &held);
        assert!(matches!(operator.submit(), Err(PushError::Variable(NoAccess::Deleted, _))));
        assert!(matches!(operator.push_with_priority(1), Err(PushError::Variable(NoAccess::Deleted, _))));
        assert_eq!(engine.pending(), 1);
        gate.open();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_operator_works_after_a_failed_run() {
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
fn the_failure_of_an_operator_names_the_line_of_its_push() {
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
fn typed_functions_receive_references_in_the_declared_shape() {
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
fn an_operation_may_be_pushed_with_an_iterator_of_accesses() {
    on_kinds(&KINDS, 2, |engine| {
        let values: Vec<Var<usize>> = (0..100).map(|n| engine.var(n)).collect();
        // Each of the two operations below queues behind one of these gates.
        let gates: Vec<_> = [6, 7].map(|n| hold(&engine, values[n].token())).into();
        let even = each(values.iter().step_by(2).map(|value| value.write()));
        let write = engine.op("write").submit(even, |even| {
            let count = even.len();
            even.into_iter().for_each(|value| *value += 1_000);
            count
        });
        let odd = each(values.iter().skip(1).step_by(2).map(|value| value.read()));
        let read = engine.op("read").submit(odd, |odd| odd.into_iter().copied().collect::<Vec<_>>());
        let (write, read) = (write.unwrap(), read.unwrap());
        thread::sleep(MOMENT);
        assert!(!write.is_done() && !read.is_done());
        gates.iter().for_each(Gate::open);
        assert_eq!(write.wait().unwrap(), 50);
        assert_eq!(read.wait().unwrap(), (1..100).step_by(2).collect::<Vec<_>>(), "not in the iterator's order");
        let all = each(values.iter().map(|value| value.read()));
        let sum = engine.op("sum").submit(all, |all| all.into_iter().sum::<usize>()).unwrap();
        assert_eq!(sum.wait().unwrap(), 99 * 50 + 50 * 1_000);
        for (n, value) in values.iter().enumerate() {
            let mutations = usize::from(n % 2 == 0) + usize::from([6, 7].contains(&n));
            assert_eq!(value.version(), mutations as u64, "variable {n}");
        }
        // Without accesses, the operation is ready when pushed.
        let no_reads = each(values[..0].iter().map(|value| value.read()));
        assert_eq!(engine.op("none").submit(no_reads, |none| none.len()).unwrap().wait().unwrap(), 0);
        let no_writes = each(values[..0].iter().map(|value| value.write()));
        assert_eq!(engine.op("none").submit(no_writes, |none| none.len()).unwrap().wait().unwrap(), 0);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_operation_may_use_both_variables_and_tokens() {
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
fn a_value_that_is_not_sync_can_be_written() {
    on_kinds(&KINDS, 1, |engine| {
        // A `Cell` is not `Sync`.
        let cell = engine.var(std::cell::Cell::new(1));
        engine.op("").push(cell.write(), |cell| cell.set(cell.get() + 1)).unwrap();
        let handle = engine.op("").submit(cell.write(), |cell| cell.get()).unwrap();
        assert_eq!(handle.wait().unwrap(), 2);
    });
}

#[test]
fn a_typed_operation_returns_a_value_through_its_handle() {
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
fn submit_treats_an_error_as_a_value() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let handle = engine.op("").submit(value.write(), |_| Err::<(), _>("mine")).unwrap();
        assert_eq!(handle.wait().unwrap(), Err("mine"));
        engine.wait_for_var(&value).unwrap();
    });
}

#[test]
fn names_convert_from_every_string_type() {
    on_kinds(&KINDS, 1, |engine| {
        let names = [
            (Name::from("a"), "a"),
            (Name::from("a".to_owned()), "a"),
            (Name::from(Arc::<str>::from("a")), "a"),
            (Name::default(), ""),
        ];
        for (name, expected) in names {
            assert_eq!(name.as_str(), expected);
            let token = engine.token();
            engine.op(name).writes([&token]).push_sync(|_| Err::<(), _>("no")).unwrap();
            let error = failure(engine.wait_for_var(&token));
            assert_eq!(error.name(), expected);
            assert_eq!(error.to_string().contains("operation `a`"), expected == "a");
        }
    });
}

#[test]
fn handles_are_equal_if_they_are_to_one_variable() {
    fn hash(value: impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        hasher.finish()
    }
    let engine = engine(KINDS[0], 1);
    let (var, token) = (engine.var(1), engine.token());
    assert!(token == token.clone() && &token != var.token());
    assert!(var == var.clone() && var != engine.var(1));
    assert_eq!((hash(&token), hash(&var)), (hash(token.clone()), hash(var.clone())));
    assert!(hash(&token) != hash(&var) && hash(&var) != hash(engine.var(1)));
    let set: HashSet<_> = [var.token().clone(), token.clone(), token.clone()].into_iter().collect();
    assert_eq!(set.len(), 2);
    let vars = vec![var.clone(), engine.var(2)];
    engine.op("").reads(&vars).writes([&token]).push((), |()| {}).unwrap();
    engine.wait_for_var(&token).unwrap();
    assert!(matches!(engine.wait_for_var_timeout(token, Duration::from_secs(10)), Ok(()) | Err(WaitError::TimedOut)));
}

#[test]
fn handles_may_be_sent_and_shared() {
    fn both<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    both::<Engine>();
    both::<Token>();
    // The handle does not share the value, so it is `Sync` even if the value is not.
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
