use super::*;

#[test]
fn ready_operations_run_in_the_order_of_their_priorities() {
    on_kinds(&THREADED, 1, |engine| {
        let gate = occupy(&engine, 1);
        let journal = Journal::new();
        // These are all priorities with their own band and some that share a band. A step coprime to their number
        // shuffles them.
        let mut priorities: Vec<i32> = (-7..=7).flat_map(|priority| [priority; 3]).collect();
        priorities.extend([8, 16, 32, 64, 1000, 1 << 20, i32::MAX, -8, -16, -1000, i32::MIN]);
        let count = priorities.len();
        for index in 0..count {
            let (priority, journal) = (priorities[index * 17 % count], journal.clone());
            engine.op("").priority(priority).push_sync(move |_| journal.add(priority)).unwrap();
        }
        gate.open();
        engine.wait_for_all().unwrap();
        let order = journal.take();
        assert_eq!(order.len(), count);
        assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
    });
}

#[test]
fn the_prioritised_lane_orders_operations_by_priority_too() {
    on_kinds(&[EngineKind::PerDevice], 1, |engine| {
        let (gate, started, journal) = (Gate::new(), Gate::new(), Journal::new());
        let (inner_gate, inner_started) = (gate.clone(), started.clone());
        let lane = |priority| engine.op("").kind(Property::CpuPrioritized).priority(priority);
        lane(0)
            .push_sync(move |_| {
                inner_started.open();
                inner_gate.pass();
            })
            .unwrap();
        started.pass();
        for priority in [0, 3, -2, 7, 100, -1] {
            let journal = journal.clone();
            lane(priority).push_sync(move |_| journal.add(priority)).unwrap();
        }
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!(journal.take(), [100, 7, 3, 0, -1, -2]);
    });
}

#[test]
fn a_priority_given_to_the_push_of_an_operator_replaces_its_own() {
    on_kinds(&THREADED, 1, |engine| {
        let gate = occupy(&engine, 1);
        let journal = Journal::new();
        let operator = |priority| {
            let journal = journal.clone();
            engine.op("").priority(priority).operator_sync(move |_| journal.add(priority)).unwrap()
        };
        let (low, high) = (operator(-1), operator(5));
        low.push().unwrap();
        high.push().unwrap();
        low.push_with_priority(7).unwrap();
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!(journal.take(), [-1, 5, -1]);
    });
}

/// Runs that need nothing but a few variables are pushed in a shorter way, which knows no priorities.
#[test]
fn a_run_of_an_operator_without_properties_has_the_priority_given_to_its_push() {
    on_kinds(&THREADED, 1, |engine| {
        let gate = occupy(&engine, 1);
        let (journal, token) = (Journal::new(), engine.token());
        let operator = |name| {
            let journal = journal.clone();
            engine.op("").reads([&token]).operator_sync(move |_| journal.add(name)).unwrap()
        };
        let (usual, other) = (operator("usual"), operator("other"));
        usual.push().unwrap();
        other.push_with_priority(5).unwrap();
        usual.push_with_priority(-1).unwrap();
        other.push().unwrap();
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!(journal.take(), ["other", "usual", "other", "usual"]);
    });
}

/// One completion readies several operations, which the worker may queue in different places.
#[test]
fn successors_are_ordered_by_priority() {
    on_kinds(&THREADED, 1, |engine| {
        let tokens: Vec<Token> = (0..6).map(|_| engine.token()).collect();
        let (gate, started, journal) = (Gate::new(), Gate::new(), Journal::new());
        let (inner_gate, inner_started) = (gate.clone(), started.clone());
        engine
            .op("")
            .writes(&tokens)
            .push_sync(move |_| {
                inner_started.open();
                inner_gate.pass();
            })
            .unwrap();
        started.pass();
        for (token, priority) in tokens.iter().zip([-3, 2, 0, 6, -1, 4]) {
            let journal = journal.clone();
            engine.op("").priority(priority).writes([token]).push_sync(move |_| journal.add(priority)).unwrap();
        }
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!(journal.take(), [6, 4, 2, 0, -1, -3]);
    });
}

/// Between the operations of a long chain, a worker looks for more urgent operations.
#[test]
fn an_urgent_operation_waits_for_a_bounded_number_of_successors() {
    on_kinds(&THREADED, 1, |engine| {
        let chain = engine.token();
        let (journal, gate) = (Journal::new(), Gate::new());
        let (inner_gate, started) = (gate.clone(), Gate::new());
        let inner_started = started.clone();
        let inner_journal = journal.clone();
        engine
            .push_sync(
                move |cx| {
                    inner_started.open();
                    inner_gate.pass();
                    let journal = inner_journal.clone();
                    cx.engine().op("").priority(1).push_sync(move |_| journal.add("urgent")).unwrap();
                },
                [],
                [&chain],
            )
            .unwrap();
        started.pass();
        for _ in 0..1000 {
            let journal = journal.clone();
            engine.push_sync(move |_| journal.add("chain"), [], [&chain]).unwrap();
        }
        gate.open();
        engine.wait_for_all().unwrap();
        let order = journal.take();
        let at = order.iter().position(|name| *name == "urgent").unwrap();
        assert!(at <= 33, "the urgent operation ran after {at} others");
    });
}

/// Three operations each push themselves again while others of the same priority are pushed from outside.
#[test]
fn self_renewing_operations_do_not_starve_others_of_the_same_priority() {
    on_kinds(&THREADED, 1, |engine| {
        fn again(engine: &Engine, stop: &Arc<AtomicBool>) {
            if !stop.load(SeqCst) {
                let stop = Arc::clone(stop);
                engine.push_sync(move |cx| again(&cx.engine(), &stop), [], []).unwrap();
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..3 {
            again(&engine, &stop);
        }
        for _ in 0..20 {
            let ran = Gate::new();
            let inner = ran.clone();
            engine.push_sync(move |_| inner.open(), [], []).unwrap();
            let in_time = ran.pass_within(Duration::from_secs(20));
            if !in_time {
                stop.store(true, SeqCst);
            }
            assert!(in_time, "an operation starves behind others of the same priority");
        }
        stop.store(true, SeqCst);
    });
}

/// The chain consists of 20,000 mutations of one variable.
#[test]
#[cfg_attr(miri, ignore = "needs 20,000 operations")]
fn a_chain_of_successors_does_not_starve_an_operation_of_the_same_priority() {
    on_kinds(&THREADED, 1, |engine| {
        let (chain, journal, gate, started) = (engine.token(), Journal::new(), Gate::new(), Gate::new());
        let (inner_gate, inner_started) = (gate.clone(), started.clone());
        engine
            .push_sync(
                move |_| {
                    inner_started.open();
                    inner_gate.pass();
                },
                [],
                [&chain],
            )
            .unwrap();
        started.pass();
        for _ in 0..20_000 {
            let journal = journal.clone();
            engine.push_sync(move |_| journal.add("chain"), [], [&chain]).unwrap();
        }
        let inner = journal.clone();
        engine.push_sync(move |_| inner.add("outside"), [], []).unwrap();
        gate.open();
        engine.wait_for_all().unwrap();
        let at = journal.take().iter().position(|name| *name == "outside").unwrap();
        assert!(at < 5000, "the operation ran after {at} of the chain's 20,000");
    });
}

#[test]
fn an_operation_of_the_lowest_priority_runs_when_nothing_else_is_ready() {
    on_kinds(&KINDS, 1, |engine| {
        let handle = engine.op("").priority(i32::MIN).submit((), |()| 1).unwrap();
        assert_eq!(handle.wait().unwrap(), 1);
    });
}
