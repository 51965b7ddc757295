use super::*;

/// Returns the name of the thread that runs an operation with `property`.
fn thread_of(engine: &Engine, property: Property) -> String {
    let (sender, receiver) = mpsc::channel();
    engine
        .op("")
        .kind(property)
        .push_sync(move |_| {
            sender.send(thread::current().name().unwrap_or_default().to_owned()).unwrap();
        })
        .unwrap();
    receive(&receiver)
}

#[test]
fn each_property_has_its_lane() {
    watched(|| {
        use Property::*;
        for (kind, lanes) in [
            (
                EngineKind::PerDevice,
                [
                    (Normal, "raddle-cpu-"),
                    (NoSkip, "raddle-cpu-"),
                    (DeleteVar, "raddle-cpu-"),
                    (CopyToGpu, "raddle-copy-"),
                    (CopyFromGpu, "raddle-copy-back-"),
                    (CpuPrioritized, "raddle-priority-"),
                    (GpuPrioritized, "raddle-priority-"),
                ],
            ),
            (
                EngineKind::Pooled,
                [
                    (Normal, "raddle-cpu-"),
                    (NoSkip, "raddle-cpu-"),
                    (DeleteVar, "raddle-cpu-"),
                    (CopyToGpu, "raddle-copy-"),
                    (CopyFromGpu, "raddle-copy-"),
                    (CpuPrioritized, "raddle-cpu-"),
                    (GpuPrioritized, "raddle-cpu-"),
                ],
            ),
        ] {
            let engine = engine(kind, 2);
            for (property, lane) in lanes {
                let thread = thread_of(&engine, property);
                let number = thread.strip_prefix(lane).map(str::parse::<usize>);
                assert!(matches!(number, Some(Ok(_))), "{kind}: {property:?} ran on `{thread}`, not `{lane}N`");
            }
        }
    });
}

#[test]
fn an_operation_that_becomes_ready_in_another_lane_runs_in_its_own() {
    on_kinds(&THREADED, 1, |engine| {
        let threads = engine.var(Vec::new());
        let gate = hold(&engine, threads.token());
        for number in 0..40 {
            let property = if number % 2 == 0 { Property::Normal } else { Property::CopyToGpu };
            let name = || thread::current().name().unwrap_or_default().to_owned();
            engine.op("").kind(property).push(threads.write(), move |threads| threads.push(name())).unwrap();
        }
        gate.open();
        for (number, thread) in engine.get(&threads).unwrap().into_iter().enumerate() {
            let lane = if number % 2 == 0 { "raddle-cpu-" } else { "raddle-copy-" };
            assert!(thread.starts_with(lane), "operation {number} ran on `{thread}`");
        }
    });
}

#[test]
fn a_naive_engine_runs_every_property_on_the_pushing_thread() {
    watched(|| {
        let engine = engine(EngineKind::Naive, 1);
        let own = thread::current().name().unwrap_or_default().to_owned();
        for property in [Property::Normal, Property::CopyToGpu, Property::CpuPrioritized, Property::Async] {
            assert_eq!(thread_of(&engine, property), own);
        }
    });
}

#[test]
fn prioritised_operations_start_while_all_workers_are_busy() {
    on_kinds(&[EngineKind::PerDevice], 2, |engine| {
        let gate = occupy(&engine, 2);
        for property in [Property::CpuPrioritized, Property::GpuPrioritized] {
            thread_of(&engine, property);
        }
        gate.open();
    });
}

#[test]
fn copies_start_while_all_workers_are_busy() {
    on_kinds(&THREADED, 2, |engine| {
        let gate = occupy(&engine, 2);
        for property in [Property::CopyToGpu, Property::CopyFromGpu] {
            thread_of(&engine, property);
        }
        gate.open();
    });
}

#[test]
fn copies_of_both_directions_overlap() {
    on_kinds(&[EngineKind::PerDevice], 1, |engine| {
        let meeting = Meeting::new(3);
        let handles = [Property::CopyToGpu, Property::CopyFromGpu, Property::Normal].map(|property| {
            let meeting = meeting.clone();
            engine.op("").kind(property).submit((), move |()| meeting.join_within(PATIENCE)).unwrap()
        });
        handles.into_iter().for_each(|handle| assert!(handle.wait().unwrap()));
    });
}

/// Dependencies between operations on different lanes are obeyed like all others.
#[test]
fn operations_of_all_lanes_are_ordered_by_their_variables() {
    on_kinds(&KINDS, 2, |engine| {
        use Property::*;
        let journal = engine.var(Vec::new());
        let properties = [Normal, CopyToGpu, CopyFromGpu, CpuPrioritized, GpuPrioritized, Async, DeleteVar, NoSkip];
        for number in 0..800 {
            let builder = engine.op("").kind(properties[number % 8]).priority(number as i32 % 7 - 3);
            builder.push(journal.write(), move |journal| journal.push(number)).unwrap();
        }
        assert!(engine.get(&journal).unwrap().into_iter().eq(0..800));
    });
}

#[test]
fn a_pooled_engine_runs_prioritised_operations_first() {
    on_kinds(&[EngineKind::Pooled], 1, |engine| {
        let gate = occupy(&engine, 1);
        let journal = Journal::new();
        let push = |property, priority, name: &'static str| {
            let journal = journal.clone();
            engine.op("").kind(property).priority(priority).push_sync(move |_| journal.add(name)).unwrap();
        };
        push(Property::Normal, 0, "normal");
        push(Property::Normal, 1000, "urgent");
        push(Property::CpuPrioritized, -5, "prioritised");
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!(journal.take(), ["prioritised", "urgent", "normal"]);
    });
}

#[test]
fn a_ready_eager_operation_runs_on_the_pushing_thread() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        let id = Arc::new(Mutex::new(None));
        let inner = Arc::clone(&id);
        let note = move |_: &OpContext<'_>| *lock(&inner) = Some(thread::current().id());
        engine.op("").eager().writes([&token]).push_sync(note).unwrap();
        // The operation has run by the time the push returns.
        assert_eq!(*lock(&id), Some(thread::current().id()));
        assert_eq!(token.version(), 1);
    });
}

/// Whether an eager operation pushed by another one has run, on the same thread, when its push returns.
fn runs_inside_another(engine: &Engine) -> bool {
    let inside = engine.downgrade();
    let outer = engine.op("outer").eager().submit((), move |()| {
        let ran_on = Arc::new(Mutex::new(None));
        let note = Arc::clone(&ran_on);
        inside.op("inner").eager().push((), move |()| *lock(&note) = Some(thread::current().id())).unwrap();
        let ran_on = *lock(&ran_on);
        ran_on == Some(thread::current().id())
    });
    outer.unwrap().wait().unwrap()
}

#[test]
fn an_eager_operation_inside_another_runs_on_the_pushing_thread() {
    on_kinds(&KINDS, 1, |engine| {
        assert!(runs_inside_another(&engine), "on a thread of the program");
        let inside = engine.downgrade();
        let on_worker = engine.op("waits").submit((), move |()| {
            // Operations that run during a wait do not count towards the depth once they have ended.
            for _ in 0..100 {
                inside.op("in place").submit((), |()| ()).unwrap().wait().unwrap();
            }
            runs_inside_another(&inside)
        });
        assert!(on_worker.unwrap().wait().unwrap(), "on a worker, after waits");
    });
}

#[test]
fn an_eager_operation_that_is_not_ready_runs_on_a_worker() {
    on_kinds(&THREADED, 1, |engine| {
        let token = engine.token();
        let gate = hold(&engine, &token);
        let (sender, receiver) = mpsc::channel();
        engine.op("").eager().writes([&token]).push_sync(move |cx| sender.send(cx.worker()).unwrap()).unwrap();
        gate.open();
        assert_eq!(receive(&receiver), Some(0));
    });
}

#[test]
fn delete_var_runs_before_all_other_properties() {
    on_kinds(&THREADED, 1, |engine| {
        let gate = occupy(&engine, 1);
        let journal = Journal::new();
        for (property, priority, name) in [
            (Property::Normal, 0, "normal"),
            (Property::Normal, 1 << 25, "urgent"),
            (Property::DeleteVar, -1, "deletion"),
        ] {
            let journal = journal.clone();
            engine.op("").kind(property).priority(priority).push_sync(move |_| journal.add(name)).unwrap();
        }
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!(journal.take(), ["deletion", "urgent", "normal"]);
    });
}

#[test]
fn delete_var_and_no_skip_run_on_failed_variables() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        push_failing(&engine, "first", &[], &[&token]);
        for property in [Property::DeleteVar, Property::NoSkip] {
            let ran = Gate::new();
            let inner = ran.clone();
            engine.op("").kind(property).writes([&token]).push_sync(move |_| inner.open()).unwrap();
            assert_eq!(failure(engine.wait_for_var(&token)).name(), "first");
            assert!(ran.is_open(), "{property:?} was skipped");
        }
    });
}

/// Each push of an operator sets the priority of its run.
#[test]
fn the_priority_of_a_run_does_not_override_its_property() {
    on_kinds(&[EngineKind::Pooled], 1, |engine| {
        let gate = occupy(&engine, 1);
        let journal = Journal::new();
        for (property, priority, name) in [
            (Property::Normal, 100, "urgent"),
            (Property::DeleteVar, 0, "deletion"),
            (Property::CpuPrioritized, 0, "prioritised"),
        ] {
            let journal = journal.clone();
            let operator = engine.op("").kind(property).operator_sync(move |_| journal.add(name)).unwrap();
            operator.push_with_priority(priority).unwrap();
        }
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!(journal.take().last(), Some(&"urgent"));
    });
}
