//! Tests of histories.

use super::*;

/// Returns a history of one thread with these events.
fn history(events: impl IntoIterator<Item = (u64, What)>) -> History {
    let mut history = History { is_kept: true, ..History::default() };
    history.add_thread(0, None);
    add(&mut history, events);
    history
}

/// Adds events of the thread, each a microsecond after the one before.
fn add(history: &mut History, events: impl IntoIterator<Item = (u64, What)>) {
    for (op, what) in events {
        let time = history.last + Duration::from_micros(1);
        history.add(0, time, Event { ticks: 0, op: OpId(op), what });
    }
}

fn pushed() -> What {
    pushed_on(false, Vec::new())
}

fn pushed_on(internal: bool, accesses: Vec<(VarId, AccessMode)>) -> What {
    What::Pushed(Box::new(PushEvent {
        name: Name::EMPTY,
        location: Location::caller(),
        priority: 0,
        engine: 0,
        lane: 0,
        internal,
        accesses,
    }))
}

fn started() -> What {
    What::Started(Place::Thread(0))
}

#[test]
fn an_operation_missing_from_two_searches_is_forgotten_or_has_ended() {
    let mut history = history([
        (1, pushed()),
        (2, pushed()),
        (2, started()),
        (2, What::EndedEarly(Outcome::Succeeded)),
        (3, pushed()),
        (4, pushed()),
    ]);
    // The searches do not find operations 1, 2 and 4, but 4 was pushed after the first of them had begun.
    let (found, searched) = (HashSet::from([OpId(3)]), Duration::from_micros(6));
    history.forget_others(&found, searched);
    assert_eq!((history.open.len(), history.has_losses), (4, true));
    history.forget_others(&found, searched);
    let open: HashSet<u64> = history.open.keys().map(|op| op.0).collect();
    assert_eq!(open, HashSet::from([3, 4]));
    let over: Vec<u64> = history.ended.iter().map(|op| op.id.0).collect();
    assert_eq!(over, [2], "operation 2 has ended, and only the return of its function was lost");
    assert!(history.ended[0].is_over);
    assert_eq!(history.stats.sorted().iter().map(|stats| stats.count).sum::<u64>(), 1);
    history.forget_others(&found, searched);
    assert!(!history.has_losses, "no operation is missing any longer");
}

#[test]
fn an_operation_found_again_is_not_forgotten() {
    let mut history = history([(1, pushed())]);
    let later = Duration::from_micros(2);
    for found in [HashSet::new(), HashSet::from([OpId(1)]), HashSet::new(), HashSet::from([OpId(1)])] {
        history.forget_others(&found, later);
        assert_eq!(history.open.len(), 1);
    }
}

#[test]
fn events_of_unknown_operations_are_lost_unless_they_were_found_running() {
    let mut history =
        history([(1, started()), (2, What::Runs(Place::Thread(0))), (3, What::Ended(Outcome::Succeeded))]);
    assert_eq!((history.all_lost, history.has_losses), (2, true));
    assert_eq!(history.take().lost(), 2);
    assert_eq!(history.take().lost(), 0);
}

#[test]
fn operations_that_have_not_started_are_expected_to_wait_for_those_that_have_run() {
    let on_x = || pushed_on(false, vec![(VarId::new(0, 1), AccessMode::Write)]);
    let mut history = history([]);
    history.begin_export();
    // The second operation is skipped, and the third has not started.
    let run = [(1, on_x()), (1, started()), (1, What::Ended(Outcome::Succeeded))];
    let others = [(2, on_x()), (3, on_x()), (2, What::Ended(Outcome::Skipped))];
    add(&mut history, run.into_iter().chain(others));
    let trace = history.export();
    let depends_on: Vec<_> = trace.ops().iter().map(|op| (op.id.0, op.depends_on.clone())).collect();
    assert_eq!(depends_on, [(1, vec![]), (2, vec![]), (3, vec![OpId(1)])]);
}

#[test]
fn a_deleted_variable_is_forgotten_and_keeps_its_name_for_a_while() {
    let mut history = history([]);
    let variables = [(1, "first"), (2, "second"), (3, "third")].map(|(number, name)| {
        history.name_variable(VarId::new(0, number), Name::from(name));
        VarId::new(0, number)
    });
    let delete = |history: &mut History, variable| {
        let pushed = pushed_on(true, vec![(variable, AccessMode::Overwrite)]);
        add(history, [pushed, started(), What::Ended(Outcome::Succeeded)].map(|what| (1, what)));
        assert!(history.variables.is_empty());
        let trace = history.take();
        variables.map(|variable| trace.variable(variable))
    };
    assert_eq!(delete(&mut history, variables[0]), ["first", "second", "third"]);
    // When the second variable is deleted, no further name can be kept.
    history.freed.extend((4..).map(|number| VarId::new(0, number)).take(MAX_FREED - 2));
    assert_eq!(delete(&mut history, variables[1]), ["first", "second", "third"]);
    assert_eq!(delete(&mut history, variables[2]), ["#1", "second", "third"]);
}
