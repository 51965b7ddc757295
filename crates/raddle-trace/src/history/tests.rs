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
    let over: Vec<u64> = history.ended.ops.iter().map(|op| op.id.0).collect();
    assert_eq!(over, [2], "operation 2 has ended, and only the return of its function was lost");
    assert!(history.ended.ops[0].is_over);
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
    assert_eq!(history.take(|_| true).lost(), 2);
    assert_eq!(history.take(|_| true).lost(), 0);
}

#[test]
fn operations_that_have_not_started_are_expected_to_wait_for_those_that_have_run() {
    let on_x = |mode| pushed_on(false, vec![(VarId::new(0, 1), mode)]);
    let (read, write) = (AccessMode::Read, AccessMode::Write);
    let mut history = history([]);
    history.begin_export();
    // The second operation is skipped, and no later one has started.
    let run = [(1, on_x(write)), (1, started()), (1, What::Ended(Outcome::Succeeded))];
    let others = [(2, on_x(write)), (3, on_x(read)), (4, on_x(read)), (5, on_x(write)), (6, on_x(write))];
    let skipped = [(2, What::Ended(Outcome::Skipped))];
    add(&mut history, run.into_iter().chain(others).chain(skipped));
    let exported = |history: &mut History| {
        let Export { trace, depends_on, .. } = history.export(|_| true);
        let plain = |op: &OpId| op.0;
        let depends_on: Vec<_> = depends_on.iter().map(|(op, on)| (op.0, on.iter().map(plain).collect())).collect();
        (trace.ops().iter().map(|op| op.id.0).collect::<Vec<_>>(), depends_on)
    };
    let expected: Vec<(u64, Vec<u64>)> = vec![(3, vec![1]), (4, vec![1]), (5, vec![])];
    assert_eq!(exported(&mut history), (vec![1, 2], expected));
    assert_eq!(exported(&mut history), (vec![], vec![]), "nothing has happened since");
    add(&mut history, [(3, started()), (3, What::Ended(Outcome::Succeeded)), (4, started())]);
    let expected = vec![(5, vec![3, 4]), (4, vec![1])];
    assert_eq!(exported(&mut history), (vec![3], expected));
}

/// Returns how many variables are known after this many were used once, each by an operation of its own.
fn used_once(history: &mut History, variables: std::ops::Range<u64>) -> usize {
    for number in variables {
        let pushed = pushed_on(false, vec![(VarId::new(0, number), AccessMode::Write)]);
        add(history, [pushed, started(), What::Ended(Outcome::Succeeded)].map(|what| (number, what)));
    }
    history.forget_variables(&[]);
    history.variables.len()
}

#[test]
fn variables_are_forgotten_unless_an_operation_that_is_kept_or_open_used_them() {
    let mut history = history([]);
    let count = 3 * MAX_UNUSED as u64;
    add(&mut history, [(1, pushed_on(false, vec![(VarId::new(0, 0), AccessMode::Write)])), (1, started())]);
    assert_eq!(used_once(&mut history, 2..count), count as usize - 1, "their operations are kept");
    history.take(|_| true);
    history.is_kept = false;
    assert_eq!(used_once(&mut history, count..4 * count), 1, "no trace can show their operations");
    assert!(history.variables.contains_key(&VarId::new(0, 0)), "its operation is open");
}

#[test]
fn operations_are_kept_until_they_take_too_many_bytes() {
    let mut kept = KeptOps { bytes: MAX_KEPT_BYTES - 4 * size_of::<TracedOp>(), ..KeptOps::default() };
    let mut history = history([(1, pushed())]);
    let op = history.take(|_| true).ops.remove(0);
    let long = TracedOp { accesses: vec![(VarId(1), AccessMode::Read); 1000], ..op.clone() };
    assert!(!kept.keep(long), "the accesses are counted");
    assert_eq!((0..10).filter(|_| kept.keep(op.clone())).count(), 4);
}

#[test]
fn names_of_freed_variables_are_kept_for_a_while() {
    let mut names = VarNames::default();
    let var = |number| VarId::new(0, number);
    let big = MAX_FREED_BYTES / 4;
    for number in 0..8 {
        names.add(var(number), Name::from(format!("{number}{}", "x".repeat(big))));
    }
    (0..7).for_each(|number| names.free(var(number)));
    names.free(var(100));
    let mut history = history([(1, pushed_on(false, (0..9).map(|number| (var(number), AccessMode::Read)).collect()))]);
    let mut trace = history.take(|_| true);
    names.complete(&mut trace);
    let known: Vec<u64> = (0..9).filter(|&number| !trace.variable(var(number)).starts_with('#')).collect();
    assert_eq!(known, [4, 5, 6, 7], "the last ones that were freed, and those that exist");
    assert!(names.freed_bytes <= MAX_FREED_BYTES && names.freed.len() == 3);
}

#[test]
fn engines_that_are_gone_are_forgotten_after_their_last_trace() {
    let engine = |number| EngineInfo { number, lanes: vec!["cpu"], gpu_lanes: Vec::new(), first_gpu_lane: 100 };
    let mut history = history([]);
    (1..4).for_each(|number| history.add_engine(engine(number), |_| true));
    let known = |trace: &Trace| (1..4).filter(|&number| trace.lane(number, 0) == "cpu").collect::<Vec<u16>>();
    assert_eq!(known(&history.take(|_| true)), [1, 2, 3]);
    assert_eq!(known(&history.take(|number| number == 2)), [1, 2, 3]);
    assert_eq!(known(&history.take(|number| number == 2)), [1, 2, 3], "events read in the meantime");
    assert_eq!(known(&history.take(|number| number == 2)), [2]);
    for number in 10..10 + 2 * MAX_ENGINES as u16 {
        history.add_engine(engine(number), |number| number == 2);
    }
    assert!(history.engines.len() <= MAX_ENGINES);
    assert_eq!(history.engines[0].number, 2);
}

#[test]
fn threads_that_follow_on_a_ring_have_numbers_and_names_of_their_own() {
    let mut history = history([(1, pushed())]);
    let arrive = |history: &mut History, name: &'static str| {
        let before = history.rings[0].number;
        let arrived = What::Arrived(Name::from(name));
        add(history, [(0, arrived), (2, pushed()), (2, started()), (2, What::Ended(Outcome::Succeeded))]);
        let number = history.rings[0].number;
        assert_ne!(number, before);
        assert_eq!(history.ended_threads.back(), Some(&before));
        number
    };
    for (name, shown) in [("second", "second"), ("", "thread 4097")] {
        let number = arrive(&mut history, name);
        let trace = history.take(|_| true);
        let op = &trace.ops[1.min(trace.ops.len() - 1)];
        assert_eq!((op.pushed_by, op.runs[0].place), (number, Place::Thread(number)));
        assert_eq!(trace.thread(number), shown);
    }
    // When no number is left, that of the thread that ended first is used again.
    let threads = Arc::make_mut(&mut history.threads);
    threads.resize_with(usize::from(u16::MAX), ThreadName::default);
    assert_eq!(arrive(&mut history, "again"), 0);
    assert_eq!((history.threads[0].before, history.thread_name(0)), (1, "again"));
}
