use super::*;

#[test]
fn a_deletion_runs_after_pending_operations_even_on_a_failed_variable() {
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
        // A wait for a deleted variable waits for its deletion.
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
        let is_refused = |pushed: Result<(), PushError>| {
            assert!(matches!(pushed, Err(PushError::Variable(NoAccess::Deleted, _))), "{pushed:?}");
        };
        is_refused(engine.op("").push(value.read(), |_| {}));
        is_refused(engine.op("").push(value.overwrite(), |_| {}));
        is_refused(engine.op("").submit(value.write(), |_| {}).map(drop));
        is_refused(engine.push_sync(|_| {}, [value.token()], []));
        is_refused(engine.op("").operator(value.read(), |_| {}).map(drop));
        is_refused(engine.delete_variable(&value, |_| {}));
        is_refused(engine.clear_error(&value));
        assert!(matches!(engine.get(&value), Err(WaitError::Refused(PushError::Variable(NoAccess::Deleted, _)))));
        engine.wait_for_var(&value).unwrap();
        engine.wait_to_read(&value).unwrap();
        block_on(engine.wait_for_var_async(&value)).unwrap();
    });
}

#[test]
fn dropping_the_last_handle_drops_the_value_on_a_worker() {
    struct ReportsThread(mpsc::Sender<String>);
    impl Drop for ReportsThread {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().name().unwrap_or_default().to_owned());
        }
    }
    on_kinds(&THREADED, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let value = engine.var(ReportsThread(sender));
        let clone = value.clone();
        let gate = hold(&engine, value.token());
        drop(value);
        drop(clone);
        assert!(receiver.recv_timeout(MOMENT).is_err(), "the value was dropped while an operation held it");
        gate.open();
        let thread = receive(&receiver);
        assert!(thread.starts_with("raddle-cpu-"), "the value was dropped on `{thread}`");
    });
}

#[test]
fn a_dropped_variable_lives_until_its_operations_complete() {
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
fn the_version_counts_successful_mutations() {
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
fn the_version_counts_no_failed_or_skipped_mutations() {
    on_kinds(&KINDS, 1, |engine| {
        let (failed, after) = (engine.token(), engine.token());
        engine.push_sync(|_| {}, [], [&failed, &after]).unwrap();
        // The version counts neither the failed mutation nor those skipped because of it.
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
fn several_engines_work_at_the_same_time() {
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
fn all_threads_share_one_global_engine() {
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
fn dropping_the_last_engine_handle_drains_the_engine() {
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
                engine.push_async(move |_, done| drop(thread::spawn(move || complete(done))), [], [&value]).unwrap();
            } else {
                engine.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], [&value]).unwrap();
            }
        }
        drop(engine);
        assert_eq!(ran.load(SeqCst), 500);
    });
}

#[test]
fn a_drain_runs_every_pushed_operation() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        for _ in 0..1000 {
            engine.op("").push(value.write(), |value| *value += 1).unwrap();
        }
        engine.shutdown(Shutdown::Drain, None).unwrap();
        assert_eq!(value.version(), 1000);
        // Values can still be read after the shutdown.
        assert_eq!(engine.get(&value).unwrap(), 1000);
        assert_eq!(engine.op("").push(value.write(), |_| {}), Err(PushError::ShutDown));
        assert_eq!(engine.push_sync(|_| {}, [], []), Err(PushError::ShutDown));
        engine.wait_for_var(&value).unwrap();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_drain_accepts_pushes_from_operations_only() {
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
fn a_drain_continues_after_its_deadline() {
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
fn a_cancel_fails_operations_that_have_not_started_and_ends_waits() {
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
            // Whether the wait for all still finds an unreported failure depends on timing.
            scope.spawn(move || engine.wait_for_all().map_err(|error| add(failure(Err::<(), _>(error)))));
            scope.spawn(move || add(failure(block_on(engine.wait_for_var_async(value)))));
            scope.spawn(move || handles.into_iter().for_each(|handle| add(failure(handle.wait()))));
            thread::sleep(MOMENT);
            // The running operation continues.
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
        assert_eq!(drops.dropped(), 20, "not every function was dropped, or the value was dropped too");
        // Only the mutation that had started counts.
        assert_eq!(value.version(), 1);
        drop(value);
        drops.assert_all_gone();
    });
}

#[test]
fn a_cancel_runs_deletions() {
    on_kinds(&KINDS, 1, |engine| {
        let (drops, journal) = (Drops::new(), Journal::new());
        let (deleted, dropped) = (engine.var(drops.make()), engine.var(drops.make()));
        let gates = [hold(&engine, deleted.token()), hold(&engine, dropped.token())];
        let inner = journal.clone();
        engine.op("").push(deleted.write(), move |_| inner.add("operation")).unwrap();
        let inner = journal.clone();
        engine.delete_variable(&deleted, move |_| inner.add("deletion")).unwrap();
        let inner = journal.clone();
        engine.op("").cleanup().reads([dropped.token()]).push_sync(move |_| inner.add("cleanup")).unwrap();
        drop(dropped);
        engine.notify_shutdown();
        assert_eq!(engine.push_sync(|_| {}, [], []), Err(PushError::ShutDown));
        gates.iter().for_each(Gate::open);
        engine.shutdown(Shutdown::Cancel, None).unwrap();
        let mut journal = journal.take();
        journal.sort_unstable();
        assert_eq!(journal, ["cleanup", "deletion"]);
        drops.assert_all_gone();
    });
}

#[test]
fn a_cancel_refuses_pushes_from_operations() {
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

/// Each operation pushes the next one, so the engine is never idle, although an inexact count may be zero for a moment.
#[test]
fn a_cancel_ends_an_endless_drain() {
    on_kinds(&THREADED, 1, |engine| {
        fn again(cx: &OpContext<'_>) {
            // The push is refused once the engine is cancelling.
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
fn endless_pushes_on_a_naive_engine_can_be_cancelled() {
    watched(|| {
        let engine = engine(EngineKind::Naive, 1);
        // The pushed operation mutates the same variable, so it runs after the operation that pushed it.
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
fn a_shutdown_inside_an_operation_continues_in_the_background() {
    on_kinds(&KINDS, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        engine.push_sync(move |cx| sender.send(cx.engine().shutdown(Shutdown::Drain, None)).unwrap(), [], []).unwrap();
        assert_eq!(receive(&receiver), Err(ShutdownError::InsideOperation));
        assert_eq!(engine.push_sync(|_| {}, [], []), Err(PushError::ShutDown));
        engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
    });
}

#[test]
fn pushes_of_operators_are_refused_after_a_shutdown() {
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
fn clones_of_the_handle_keep_the_engine_open() {
    on_kinds(&KINDS, 1, |engine| {
        let clone = engine.clone();
        drop(engine);
        assert_eq!(clone.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

/// Variables may outlive their engine and may be created after its shutdown.
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
