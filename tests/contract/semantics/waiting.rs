use super::*;

#[test]
fn waits_for_a_new_variable_return_immediately() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.wait_for_var(&token).unwrap();
        engine.wait_to_read(&token).unwrap();
        engine.wait_for_var(&token).unwrap();
        engine.wait_for_var_timeout(&token, Duration::ZERO).unwrap();
        assert_eq!(poll_once(&mut engine.wait_for_var_async(&token)).map(|result| result.is_ok()), Poll::Ready(true));
        engine.wait_for_all().unwrap();
        assert_eq!((token.version(), engine.stats().pushed), (0, 0), "a wait has pushed an operation");
    });
}

/// Creates a variable and pushes a reader that runs until the returned gate is opened. The reader is running when this
/// returns.
fn start_reader(engine: &Engine) -> (Var<i32>, Gate) {
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
        let (value, gate) = start_reader(&engine);
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
fn wait_for_var_waits_for_readers_too() {
    on_kinds(&THREADED, 1, |engine| {
        let (value, gate) = start_reader(&engine);
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
fn later_pushes_do_not_delay_a_wait_for_a_variable() {
    on_kinds(&KINDS, 2, |engine| {
        let token = engine.token();
        let first = hold(&engine, &token);
        let waits = [engine.wait_for_var_async(&token), engine.wait_to_read_async(&token)];
        // This operation is pushed after the waits have begun and completes only after they return.
        let (second, started) = (Gate::new(), Gate::new());
        let (gate, has_started) = (second.clone(), started.clone());
        engine
            .push_async(
                move |_, done| {
                    has_started.open();
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
        started.pass();
        assert!(!second.is_open());
        second.open();
        engine.wait_for_var(&token).unwrap();
    });
}

#[test]
fn a_wait_does_not_change_the_version() {
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

/// Another reader is running during the call.
#[test]
fn get_does_not_wait_for_readers() {
    on_kinds(&THREADED, 1, |engine| {
        let (value, gate) = start_reader(&engine);
        assert_eq!(engine.get(&value).unwrap(), 1);
        gate.open();
    });
}

#[test]
fn wait_for_all_waits_for_every_earlier_operation() {
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

/// Pushes an operation that pushes the next one, `left` times.
fn push_chain(engine: &Engine, token: &Token, left: usize) {
    let next = token.clone();
    let go_on = move |cx: &OpContext<'_>| {
        if left > 0 {
            thread::sleep(Duration::from_millis(1));
            push_chain(&cx.engine(), &next, left - 1);
        }
    };
    engine.op("").writes([token]).push_sync(move |cx| go_on(cx)).unwrap();
}

#[test]
fn a_wait_until_idle_covers_what_is_pushed_meanwhile() {
    on_kinds(&KINDS, 2, |engine| {
        let token = engine.token();
        push_chain(&engine, &token, 20);
        engine.wait_until_idle().unwrap();
        assert_eq!((token.version(), engine.pending()), (21, 0));
        push_chain(&engine, &token, 20);
        block_on(engine.wait_until_idle_async()).unwrap();
        assert_eq!((token.version(), engine.pending()), (42, 0));
        let inner = engine.downgrade();
        let inside = engine.op("").submit((), move |()| {
            let polled = poll_once(&mut Box::pin(inner.wait_until_idle_async()));
            [
                inner.wait_until_idle(),
                match polled {
                    Poll::Ready(result) => result,
                    Poll::Pending => Ok(()),
                },
            ]
        });
        for result in inside.unwrap().wait().unwrap() {
            assert!(matches!(result, Err(WaitError::WouldDeadlock(_))), "{result:?}");
        }
        push_failing(&engine, "fails", &[], &[&token]);
        assert_eq!(failure(engine.wait_until_idle()).name(), "fails");
        engine.wait_until_idle_timeout(PATIENCE).unwrap();
    });
    on_kinds(&THREADED, 1, |engine| {
        let token = engine.token();
        let gate = hold(&engine, &token);
        assert!(matches!(engine.wait_until_idle_timeout(MOMENT), Err(WaitError::TimedOut)));
        gate.open();
        engine.wait_until_idle_timeout(PATIENCE).unwrap();
    });
}

#[test]
fn wait_for_all_covers_earlier_pushes_of_other_threads() {
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

/// Another thread keeps pushing, so some of its operations are always pending.
#[test]
fn later_pushes_do_not_delay_wait_for_all() {
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
            assert!(in_time, "a wait for all was delayed by later pushes");
        });
    });
}

#[test]
fn wait_for_all_does_not_cover_an_operation_pushed_after_it_began() {
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

/// Many waits for all are pending, each covering one more operation than the previous one.
#[test]
fn each_of_many_waits_for_all_covers_exactly_the_earlier_operations() {
    on_kinds(&KINDS, 2, |engine| {
        let others: Vec<_> = (0..40)
            .map(|_| {
                let gate = hold(&engine, &engine.token());
                (gate, engine.wait_for_all_async())
            })
            .collect();
        let (started, ended) = (Gate::new(), Gate::new());
        thread::scope(|scope| {
            let (engine, started, inner) = (&engine, &started, &ended);
            scope.spawn(move || {
                started.open();
                engine.wait_for_all().unwrap();
                inner.open();
            });
            started.pass();
            // The sleep gives the other thread time to enter its call.
            thread::sleep(4 * MOMENT);
            let last = hold(engine, &engine.token());
            let limit = Duration::from_secs(3);
            let (gates, waits): (Vec<_>, Vec<_>) = others.into_iter().unzip();
            gates.iter().for_each(Gate::open);
            let exact = waits.into_iter().all(|wait| common::block_on_within(wait, limit).is_ok());
            let in_time = ended.pass_within(limit);
            last.open();
            assert!(exact, "a future was delayed by an operation pushed after it was created");
            assert!(in_time, "a wait for all was delayed by an operation pushed after it began");
        });
    });
}

#[test]
fn many_threads_may_wait_for_all_concurrently() {
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
fn a_handle_may_be_waited_on_awaited_or_dropped() {
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

#[test]
fn a_wait_for_a_handle_returns_after_its_variables_are_released() {
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

/// A future polled by several tasks wakes the one that polled it last.
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

/// Only some of the futures have been polled.
#[test]
fn dropped_futures_have_no_effect() {
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
fn futures_are_send() {
    fn is_send(_: &(impl Future + Send)) {}
    let engine = engine(EngineKind::Naive, 1);
    let token = engine.token();
    is_send(&engine.wait_for_all_async());
    is_send(&engine.wait_for_var_async(&token));
    is_send(&engine.op("").submit((), |()| 1).unwrap());
}

#[test]
fn pending_counts_the_operations_that_are_not_complete() {
    on_kinds(&KINDS, 2, |engine| {
        assert_eq!(engine.pending(), 0);
        let token = engine.token();
        let gate = hold(&engine, &token);
        let before = engine.pending();
        for n in 1..=100 {
            engine.push_sync(|_| {}, [&token], []).unwrap();
            assert_eq!(engine.pending(), before + n);
            if n % 10 == 0 {
                // Each wait opens another generation.
                assert!(matches!(engine.wait_for_all_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
            }
        }
        gate.open();
        engine.wait_for_all().unwrap();
        eventually("the count is zero", || engine.pending() == 0);
    });
}
