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
fn a_reader_sees_the_mutations_before_it_and_none_after_it() {
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

/// A wait is not a mutation, so readers before and after it are consecutive.
#[test]
fn a_wait_does_not_separate_readers() {
    type Wait = fn(&Engine, &Token);
    let waits: [(&str, Wait); 4] = [
        ("wait_for_var_timeout", |engine, token| {
            let result = engine.wait_for_var_timeout(token, Duration::ZERO);
            assert!(matches!(result, Err(WaitError::TimedOut)), "{result:?}");
        }),
        ("wait_for_var_timeout, again", |engine, token| {
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
                assert!(reader.unwrap().wait().unwrap(), "the readers before and after {name} did not meet");
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
        assert!(!wrote.pass_within(MOMENT), "the mutation did not wait for the readers");
        gate.open();
        wrote.pass();
    });
}

/// A reader is running, a mutation waits for it, and another reader is pushed behind the mutation.
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

/// The store and the load are relaxed, so only the engine orders them.
#[test]
fn writes_of_an_operation_are_visible_after_a_wait() {
    on_kinds(&KINDS, 2, |engine| {
        let token = engine.token();
        for number in 0..2000_usize {
            let cell = Arc::new(AtomicUsize::new(0));
            let inner = Arc::clone(&cell);
            engine.push_sync(move |_| inner.store(number, std::sync::atomic::Ordering::Relaxed), [], [&token]).unwrap();
            engine.wait_to_read(&token).unwrap();
            assert_eq!(cell.load(std::sync::atomic::Ordering::Relaxed), number);
        }
    });
}
