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

#[test]
fn operations_have_different_numbers_even_if_the_clock_stands_still() {
    let recorder = Recorder::with_capacity(1 << 12);
    // The other thread has the number 0.
    std::thread::scope(|scope| _ = scope.spawn(|| push(&recorder)));
    assert_eq!(recorder.thread(), 1);
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
