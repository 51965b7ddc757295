//! Lanes of devices: what a lane says of its stream, against operations that wait for it and lanes that ask for its
//! events.
//!
//! Whole lanes, with a simulated device, are in `shuttle.rs`: they have too many threads for loom.
#![cfg(raddle_loom)]

use std::sync::{
    Arc,
    atomic::{AtomicBool as StdBool, Ordering::Relaxed},
};

use loom::{cell::UnsafeCell, thread};
use raddle::internals::{Flavour, Marks, Recorded, Step, Timeline};
use raddle_loom_tests::{COMPLETE, model, must_fail, without};

/// What a device writes, or a lane notes of an operation.
struct Data(UnsafeCell<u64>);

impl Data {
    fn new() -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new(0)))
    }

    fn write(&self, value: u64) {
        // SAFETY: the model's lane writes before it says that the operation is complete; loom reports a race.
        self.0.with_mut(|data| unsafe { *data = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: whoever reads has seen that the operation is complete; loom reports a race.
        self.0.with(|data| unsafe { *data })
    }
}

// SAFETY: the cell is loom's, which reports a race instead of letting it happen.
unsafe impl Sync for Data {}
// SAFETY: as above.
unsafe impl Send for Data {}

/// A lane completes two operations one after the other. Whoever finds one complete sees what it did.
fn a_lane_and_who_asks_whether_it_is_so_far() {
    let (timeline, data) = (Arc::new(Timeline::default()), [Data::new(), Data::new()]);
    let (lane, done) = (Arc::clone(&timeline), data.clone());
    let lane = thread::spawn(move || {
        for (seq, data) in (1..).zip(&done) {
            data.write(seq);
            lane.complete(seq);
        }
    });
    for (seq, data) in (1..).zip(&data) {
        if timeline.is_complete(seq) {
            assert_eq!(data.read(), seq);
        }
    }
    lane.join().unwrap();
    assert!(timeline.is_complete(2) && !timeline.is_complete(3));
}

#[test]
fn who_finds_an_operation_complete_sees_what_the_device_wrote() {
    model(COMPLETE, Flavour::Contract, a_lane_and_who_asks_whether_it_is_so_far);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn without_the_release_of_the_number() {
    without(Step::CompletionOfMarks, || {
        model(COMPLETE, Flavour::Contract, a_lane_and_who_asks_whether_it_is_so_far);
    });
}

#[test]
fn without_the_release_of_the_number_a_complete_operation_is_not_seen() {
    must_fail("without_the_release_of_the_number", "Causality violation");
}

/// Two operations are complete by one number, and seen by two threads, one of which goes by the later only.
#[test]
fn one_number_makes_all_before_it_visible_to_everybody() {
    model(COMPLETE, Flavour::Contract, || {
        let (timeline, data) = (Arc::new(Timeline::default()), [Data::new(), Data::new()]);
        let readers: Vec<_> = (1..3)
            .map(|seq| {
                let (timeline, data) = (Arc::clone(&timeline), data.clone());
                thread::spawn(move || {
                    if timeline.is_complete(seq) {
                        assert_eq!([data[0].read(), data[1].read()], [1, 2]);
                    }
                })
            })
            .collect();
        data[0].write(1);
        data[1].write(2);
        timeline.complete(2);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// A lane records an event behind its operation, and the operation becomes complete, while another lane asks for
/// either. It finds one or the other once the event was published: it never asks for an event of what is complete, and
/// never waits for one that nobody records any more.
fn a_lane_publishes_and_completes_while_another_asks() {
    let (timeline, data) = (Arc::new(Timeline::default()), Data::new());
    // Of `std`: it tells what came first in an interleaving, and orders nothing.
    let published = Arc::new(StdBool::new(false));
    let (lane, done, told) = (Arc::clone(&timeline), Arc::clone(&data), Arc::clone(&published));
    let lane = thread::spawn(move || {
        lane.publish(Recorded::point(1));
        told.store(true, Relaxed);
        done.write(7);
        lane.complete(1);
        assert!(lane.after(1).is_none(), "nobody needs an event of what is complete");
    });
    if !timeline.is_complete(1) {
        // After a look, since loom lets the other thread go first only where this one touches something of loom's.
        let before = published.load(Relaxed);
        if timeline.after(1).is_none() {
            let complete = timeline.is_complete(1);
            assert!(complete || !before, "the event is gone, and the operation is not complete");
            if complete {
                assert_eq!(data.read(), 7);
            }
        }
    }
    lane.join().unwrap();
}

#[test]
fn an_event_is_there_until_its_operation_is_complete() {
    model(COMPLETE, Flavour::Contract, a_lane_publishes_and_completes_while_another_asks);
}

/// The first event behind an operation is the one to wait for, whatever is published and completed meanwhile.
#[test]
fn who_asks_for_an_event_gets_the_first_that_covers_the_operation() {
    model(COMPLETE, Flavour::Contract, || {
        let timeline = Arc::new(Timeline::default());
        timeline.publish(Recorded::point(2));
        timeline.publish(Recorded::point(4));
        let other = Arc::clone(&timeline);
        let lane = thread::spawn(move || {
            other.publish(Recorded::point(6));
            other.complete(2);
        });
        match timeline.after(1) {
            Some(recorded) => assert!([2, 4].contains(&recorded.seq)),
            None => panic!("two events are behind operation 1, and only one is complete"),
        }
        if let Some(recorded) = timeline.after(5) {
            assert_eq!(recorded.seq, 6);
        }
        lane.join().unwrap();
        assert_eq!(timeline.after(3).map(|recorded| recorded.seq), Some(4));
    });
}

/// Lanes note their operations beside each other, and numbers only rise.
#[test]
fn lanes_note_what_they_issue_without_disturbing_each_other() {
    model(COMPLETE, Flavour::Contract, || {
        let marks = Arc::new(Marks::new(2));
        let other = Arc::clone(&marks);
        let lane = thread::spawn(move || {
            other.note(1, 3, false);
            other.note(1, 4, false);
        });
        marks.note(0, 7, true);
        let seen = [marks.last(1, false), marks.last(1, false)];
        assert!(seen.is_sorted() && seen.iter().all(|seq| [0, 3, 4].contains(seq)), "{seen:?}");
        assert_eq!(marks.last(1, true), 0, "who reads does not wait for readers");
        lane.join().unwrap();
        assert_eq!([marks.last(0, true), marks.last(0, false), marks.last(1, false)], [7, 7, 4]);
    });
}
