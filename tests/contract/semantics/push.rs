use super::*;

#[test]
fn a_push_returns_without_waiting() {
    on_kinds(&THREADED, 2, |engine| {
        let token = engine.token();
        let gate = occupy(&engine, 2);
        let held = Gate::new();
        let inner = held.clone();
        engine.push_sync(move |_| inner.pass(), [], [&token]).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..1000 {
            let ran = Arc::clone(&ran);
            engine.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], [&token]).unwrap();
        }
        // All pushes have returned, although no operation can run.
        assert_eq!(ran.load(SeqCst), 0);
        gate.open();
        held.open();
        engine.wait_for_all().unwrap();
        assert_eq!(ran.load(SeqCst), 1000);
    });
}

/// Even on the naive engine, a push does not wait, although an asynchronous operation holds the variable.
#[test]
fn a_push_on_a_held_variable_returns_without_waiting() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.token());
        for _ in 0..1000 {
            engine.op("").push(value.write(), |value| *value += 1).unwrap();
        }
        gate.open();
        assert_eq!(engine.get(&value).unwrap(), 1000);
    });
}

#[test]
fn operations_may_push_operations() {
    on_kinds(&KINDS, 2, |engine| {
        fn grow(engine: &Engine, count: &Arc<AtomicUsize>, depth: usize) {
            count.fetch_add(1, SeqCst);
            if depth == 0 {
                return;
            }
            for _ in 0..2 {
                let count = Arc::clone(count);
                engine.push_sync(move |cx| grow(&cx.engine(), &count, depth - 1), [], []).unwrap();
            }
        }
        let count = Arc::new(AtomicUsize::new(0));
        let inner = Arc::clone(&count);
        engine.push_sync(move |cx| grow(&cx.engine(), &inner, 9), [], []).unwrap();
        eventually("the whole tree has run", || count.load(SeqCst) == (1 << 10) - 1);
    });
}

#[test]
fn a_variable_read_and_mutated_counts_as_mutated() {
    on_kinds(&THREADED, 2, |engine| {
        let (token, gate, started) = (engine.token(), Gate::new(), Gate::new());
        let (inner_gate, inner_started) = (gate.clone(), started.clone());
        engine
            .push_sync(
                move |_| {
                    inner_started.open();
                    inner_gate.pass();
                },
                [&token],
                [],
            )
            .unwrap();
        started.pass();
        let ran = Gate::new();
        let inner = ran.clone();
        engine.op("").reads([&token]).writes([&token]).push_sync(move |_| inner.open()).unwrap();
        assert!(!ran.pass_within(MOMENT), "the operation ran while a reader was running");
        gate.open();
        engine.wait_for_var(&token).unwrap();
        assert!(ran.is_open());
        assert_eq!(token.version(), 1);
    });
}

#[test]
fn a_variable_named_twice_is_accessed_once() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| {}, [&token, &token], []).unwrap();
        engine.wait_for_var(&token).unwrap();
        assert_eq!(token.version(), 0);
        engine.push_sync(|_| {}, [], [&token, &token]).unwrap();
        engine.push_sync(|_| {}, [&token, &token], [&token, &token]).unwrap();
        engine.wait_for_var(&token).unwrap();
        assert_eq!(token.version(), 2);
    });
}

#[test]
fn a_refused_push_enqueues_nothing() {
    on_kinds(&KINDS, 1, |engine| {
        let (other, drops) = (common::engine(EngineKind::Naive, 1), Drops::new());
        let (own, deleted, foreign) = (engine.token(), engine.token(), other.token());
        engine.delete_variable(&deleted, |_| {}).unwrap();
        for invalid in [&foreign, &deleted] {
            let is_refused = |pushed: Result<(), PushError>| match pushed {
                Err(PushError::Variable(NoAccess::Foreign, _)) => assert!(invalid == &foreign),
                Err(PushError::Variable(NoAccess::Deleted, _)) => assert!(invalid == &deleted),
                pushed => panic!("{pushed:?}"),
            };
            let captured = drops.make();
            let pushed = engine.push_sync(move |_| captured.touch(), [invalid], [&own]);
            is_refused(pushed);
            let captured = drops.make();
            let pushed = engine.push_async(move |_, done| (captured.touch(), done.complete()).1, [&own], [invalid]);
            is_refused(pushed);
            let captured = drops.make();
            let operator = engine.op("").writes([&own]).reads([invalid]).operator_sync(move |_| captured.touch());
            is_refused(operator.map(drop));
        }
        // The functions have been dropped, and no operation is pending on the valid variable.
        drops.assert_all_gone();
        engine.wait_for_var(&own).unwrap();
        assert_eq!(own.version(), 0);
    });
}

#[test]
fn an_operation_on_a_device_that_the_engine_lacks_is_refused() {
    on_kinds(&KINDS, 1, |engine| {
        let pushed = engine.op("").on(Device::Gpu(3)).push_sync(|_| {});
        assert_eq!(pushed, Err(PushError::NoSuchDevice(Device::Gpu(3))));
        let shown = pushed.unwrap_err().to_string();
        assert!(shown.contains("no device gpu(3);"), "{shown}");
        engine.op("").on(Device::Cpu).push_sync(|_| {}).unwrap();
    });
}

/// Handles may come from the builder, from a clone or from a running operation.
#[test]
fn all_handles_of_an_engine_report_the_same_configuration() {
    on_kinds(&KINDS, 2, |engine| {
        let (sender, receiver) = mpsc::channel();
        engine.push_sync(move |cx| sender.send(cx.engine()).unwrap(), [], []).unwrap();
        let inner = receive(&receiver);
        assert_eq!(inner.kind(), engine.kind());
        assert_eq!(inner.placements(), engine.placements(), "the handle from an operation reports other placements");
        assert_eq!(engine.clone().placements(), engine.placements());
        let token = inner.token();
        engine.push_sync(|_| {}, [], [&token]).unwrap();
        inner.wait_for_var(&token).unwrap();
    });
}
