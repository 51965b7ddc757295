//! Tests of the numbers and the events of a recorder.

use super::*;
use crate::scheduler::DEFAULT_BAND;

/// Returns the numbers of the operations in the ring of this thread, with whether the event is a start.
fn starts(recorder: &Recorder) -> Vec<(OpId, bool)> {
    let mut found = Vec::new();
    let mut state = lock(&recorder.shared.state);
    state.take_arrivals(&recorder.shared);
    for ring in &mut state.rings {
        ring.read(usize::MAX, |event| found.push((event.op, matches!(event.what, What::Started(_)))));
    }
    found
}

fn push(recorder: &Recorder) -> OpId {
    let location = std::panic::Location::caller();
    let head = PushHead { location, priority: DEFAULT_BAND, engine: 0, lane: 0, internal: false };
    recorder.push(&head, &Name::EMPTY, std::iter::empty())
}

#[test]
fn the_start_of_a_function_precedes_what_the_function_pushes() {
    let recorder = Recorder::with_capacity(1 << 12);
    let parent = push(&recorder);
    recorder.start(parent, raddle_trace::Place::Thread(0).to_word());
    let child = push(&recorder);
    assert_eq!(starts(&recorder), [(parent, false), (parent, true), (child, false)]);
}

#[test]
fn operations_are_kept_until_the_last_profile_has_ended() {
    let recorder = Recorder::with_capacity(1 << 12);
    // Runs an operation, reads its events, and returns how many operations are kept after `then`.
    let kept_after = |then: fn(&Recorder)| {
        let op = push(&recorder);
        recorder.start(op, raddle_trace::Place::Thread(0).to_word());
        recorder.end(op, Outcome::Succeeded);
        recorder.stats();
        then(&recorder);
        recorder.export().0.trace.ops().len()
    };
    recorder.begin_export();
    recorder.begin_export();
    assert_eq!(kept_after(Recorder::end_export), 1);
    assert_eq!(kept_after(|_| {}), 1);
    assert_eq!(kept_after(Recorder::end_export), 0);
    assert_eq!(kept_after(|_| {}), 0);
}

/// The locks are held by this thread while others push for the first time, name variables and end.
#[test]
fn a_thread_waits_for_no_reader() {
    let recorder = Recorder::with_capacity(1 << 12);
    let pushes = || std::thread::scope(|scope| _ = scope.spawn(|| push(&recorder)));
    let variable = VarId::new(0, 1);
    let reading = lock(&recorder.shared.state);
    pushes();
    recorder.name_variable(variable, Name::from("named"));
    recorder.free_variable(variable);
    let idle = lock(&recorder.shared.idle);
    pushes();
    drop((idle, reading));
    pushes();
    assert_eq!(recorder.take().ops().len(), 3);
}

#[test]
fn a_thread_takes_over_the_ring_of_one_that_has_ended() {
    let recorder = Recorder::with_capacity(MIN_SLOTS * size_of::<RingSlot>());
    let pushes = |name: &str, count: usize| {
        let thread = std::thread::Builder::new().name(name.to_owned());
        std::thread::scope(|scope| {
            let pushing = || (0..count).for_each(|_| _ = push(&recorder));
            _ = thread.spawn_scoped(scope, pushing).expect("a thread").join();
        });
    };
    pushes("first", 3);
    pushes("second", 3);
    // With the arrival and the push of the third thread, the ring is full.
    pushes("third", 1);
    pushes("fourth", 2);
    let trace = recorder.take();
    assert_eq!(lock(&recorder.shared.state).rings.len(), 1);
    let by: Vec<&str> = trace.ops().iter().map(|op| trace.thread(op.pushed_by)).collect();
    assert_eq!(by, ["first", "first", "first", "second", "second", "second", "third"]);
    assert_eq!(trace.lost(), 2);
    pushes("fifth", 1);
    let trace = recorder.take();
    assert_eq!(trace.thread(trace.ops()[trace.ops().len() - 1].pushed_by), "fifth");
}

#[test]
fn operations_have_different_numbers_even_if_the_clock_stands_still() {
    let recorder = Recorder::with_capacity(1 << 12);
    let meet = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        // The other thread has the number 0.
        scope.spawn(|| {
            push(&recorder);
            meet.wait();
            meet.wait();
        });
        meet.wait();
        assert_eq!(recorder.thread(), 1);
        meet.wait();
    });
    let times = [1 << 20, 1 << 20, 1 << 20, 0];
    let expected = |thread: u16| {
        let first = first_op_at(1 << 20) + u64::from(thread);
        [first, first + (1 << THREAD_BITS), first + (2 << THREAD_BITS), first + (3 << THREAD_BITS)]
    };
    let numbers = recorder.write(|writer, _| times.map(|now| writer.next_op(&recorder.shared, now).0));
    assert_eq!(numbers, Some(expected(1)));
    // Threads without a number share one.
    let numbers = times.map(|now| recorder.shared.next_op(now).0);
    assert_eq!(numbers, expected(NO_NUMBER));
}
