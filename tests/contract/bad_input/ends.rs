use super::*;

#[test]
fn a_push_after_the_shutdown_is_refused_and_drops_the_function() {
    on_kinds(&KINDS, 1, |engine| {
        let (drops, value) = (Drops::new(), engine.var(0));
        engine.shutdown(Shutdown::Drain, None).unwrap();
        let captured = drops.make();
        assert_eq!(engine.op("").push(value.write(), move |_| captured.touch()), Err(PushError::ShutDown));
        for property in [Property::Async, Property::DeleteVar, Property::NoSkip] {
            let pushed = engine.op("").kind(property).push((), |()| unreachable!("the push was refused"));
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

/// Threads push as fast as they can while the engine shuts down. Either a push is refused, or its operation runs or is
/// cancelled.
#[test]
fn a_push_from_outside_during_a_shutdown_runs_or_is_refused() {
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

/// While the engine shuts down, operations push further operations, which do the same.
#[test]
fn a_push_from_an_operation_during_a_shutdown_runs_or_is_refused() {
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
    /// Returns the number of operations in a tree of the given depth.
    fn size(depth: usize) -> usize {
        1 + depth * if depth == 0 { 0 } else { size(depth - 1) }
    }
    for how in [Shutdown::Drain, Shutdown::Cancel] {
        on_kinds(&KINDS, 2, move |engine| {
            let (drops, ran, refused) = (Drops::new(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let token = engine.token();
            let gate = hold(&engine, &token);
            let (inner_drops, inner_ran, inner_refused) = (drops.clone(), Arc::clone(&ran), Arc::clone(&refused));
            engine
                .push_sync(move |cx| spread(&cx.engine(), &inner_drops, &inner_ran, &inner_refused, 5), [], [&token])
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

/// Each operation of a chain pushes the next one to another lane, so only a few are pending at any time. A shutdown
/// must not miss any of them, however often it checks.
#[test]
fn a_drain_sees_a_single_pending_operation() {
    const LENGTH: usize = 2000;
    fn next(engine: &Engine, ran: &Arc<AtomicUsize>) {
        let number = ran.fetch_add(1, SeqCst);
        if number < LENGTH {
            let lanes = [Property::Normal, Property::CopyToGpu, Property::CpuPrioritized, Property::CopyFromGpu];
            let ran = Arc::clone(ran);
            let builder = engine.op("").kind(lanes[number % lanes.len()]);
            builder
                .push_sync(move |cx| next(&cx.engine(), &ran))
                .expect("operations should be allowed to push during a drain");
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
                // Several threads shut the engine down at once, interrupting each other's checks.
                for _ in 0..4 {
                    scope.spawn(|| {
                        let result = engine.shutdown(Shutdown::Drain, Some(Duration::from_secs(20)));
                        assert_eq!(result, Ok(()));
                        assert_eq!(ran.load(SeqCst), LENGTH + 1, "the shutdown missed a pending operation");
                    });
                }
            });
        }
    });
}

/// During a drain, an operation may wait for one that it has pushed.
#[test]
fn an_operation_may_wait_during_a_drain() {
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
fn an_engine_may_be_shut_down_twice_and_from_many_threads() {
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

/// Returns a handle that does not keep the engine open. Tests use it to detect that the engine has ended.
fn observer(engine: &Engine) -> WeakEngine {
    let (sender, receiver) = mpsc::channel();
    engine.push_sync(move |cx| sender.send(cx.engine()).unwrap(), [], []).unwrap();
    let observer = receive(&receiver);
    engine.wait_for_all().unwrap();
    observer
}

/// Asserts that an engine ends after its last handle has been dropped.
#[track_caller]
fn assert_ends(observer: &Engine) {
    eventually("the engine refuses pushes", || observer.push_sync(|_| {}, [], []) == Err(PushError::ShutDown));
    observer.shutdown(Shutdown::Drain, Some(Duration::from_secs(30))).expect("the engine should end");
}

/// The last handle is always dropped by a thread that runs the engine's operations.
#[test]
fn an_operation_may_drop_the_last_handle_to_the_engine() {
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
            ("the result without a handle", |engine, token, own| {
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

/// The function never runs. It is dropped either because a variable has failed or because the engine cancels its
/// operation.
#[test]
fn a_skipped_operation_may_own_the_last_handle_to_the_engine() {
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
fn an_engine_may_be_the_value_of_its_own_variable() {
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
fn a_handle_may_own_a_result_that_is_the_engine() {
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

/// A waker owns the last handle to the engine, so the engine decides when that handle is dropped.
#[test]
fn a_waker_may_own_the_last_handle_to_the_engine() {
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
fn a_completion_may_be_used_after_the_drop_of_the_engine() {
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

/// The completion is used after the shutdown has timed out.
#[test]
fn a_completion_may_be_used_after_a_shutdown_that_timed_out() {
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
