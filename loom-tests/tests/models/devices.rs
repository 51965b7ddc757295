//! GPU lanes: a lane publishes its stream's state and its device's failure while operations wait for the stream and
//! other lanes need its events. The models also cover the simulated device, which executes commands on any thread that
//! polls it.
//!
//! The models of whole lanes, with a simulated device, are in `shuttle.rs`: loom cannot model so many threads.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool as StdBool, Ordering::Relaxed},
    },
    time::Duration,
};

use raddle::{
    gpu::{GpuStream, ImportedStream, SimulatedGpu},
    internals::{DeviceUses, Fault, FaultLock, Flavour, Mode, RecordedPoint, Timeline},
};
use raddle_loom_tests::checker::{cell::UnsafeCell, thread};
use raddle_loom_tests::{COMPLETE, kills, model};

/// The data written by a device, or recorded by a lane about an operation.
struct Data(UnsafeCell<u64>);

impl Data {
    fn new() -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new(0)))
    }

    fn write(&self, value: u64) {
        // SAFETY: the model's lane writes before it publishes that the operation is complete; loom would report a race.
        self.0.with_mut(|data| unsafe { *data = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: the reader has seen that the operation is complete; loom would report a race.
        self.0.with(|data| unsafe { *data })
    }
}

// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Sync for Data {}
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Send for Data {}

/// A lane completes two operations one after the other. A thread that finds an operation complete sees its effects.
#[test]
fn a_thread_that_finds_an_operation_complete_sees_what_the_device_wrote() {
    model(COMPLETE, Flavour::Contract, || {
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
    });
}

/// One published number completes two operations. Two threads check one operation each; a thread that finds its
/// operation complete sees the effects of both.
#[test]
fn one_number_makes_all_earlier_operations_visible_to_every_thread() {
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

/// A lane records an event behind its operation, and the operation completes, while another lane checks for both. Once
/// the event is published, the other lane finds the event or the completion. So the other lane never asks for an event
/// behind a complete operation, and never waits for an event that no lane will record.
#[test]
fn an_event_is_available_until_its_operation_is_complete() {
    model(COMPLETE, Flavour::Contract, || {
        let (timeline, data) = (Arc::new(Timeline::default()), Data::new());
        // This type is from `std`: the value records what came first in an interleaving, and orders nothing.
        let published = Arc::new(StdBool::new(false));
        let (lane, done, told) = (Arc::clone(&timeline), Arc::clone(&data), Arc::clone(&published));
        let lane = thread::spawn(move || {
            lane.publish(RecordedPoint::point(1));
            told.store(true, Relaxed);
            done.write(7);
            lane.complete(1);
            assert!(lane.after(1).is_none(), "a lane needs an event behind a complete operation");
        });
        if !timeline.is_complete(1) {
            // Loaded only after a call to `is_complete`, since loom switches threads only where a thread uses one of
            // loom's objects.
            let before = published.load(Relaxed);
            if timeline.after(1).is_none() {
                let complete = timeline.is_complete(1);
                assert!(complete || !before, "the event is gone, but the operation is not complete");
                if complete {
                    assert_eq!(data.read(), 7);
                }
            }
        }
        lane.join().unwrap();
    });
}

/// Of the events that are still recorded, the first one behind an operation is the one to wait for, whatever is
/// published and completed meanwhile.
#[test]
fn a_lane_gets_the_first_event_that_covers_the_operation() {
    model(COMPLETE, Flavour::Contract, || {
        let timeline = Arc::new(Timeline::default());
        timeline.publish(RecordedPoint::point(2));
        timeline.publish(RecordedPoint::point(4));
        let other = Arc::clone(&timeline);
        let lane = thread::spawn(move || {
            other.publish(RecordedPoint::point(6));
            other.complete(2);
        });
        match timeline.after(1) {
            Some(recorded) => assert!([2, 4].contains(&recorded.seq)),
            None => panic!("two events are behind operation 1, and only one of them is complete"),
        }
        if let Some(recorded) = timeline.after(5) {
            assert_eq!(recorded.seq, 6);
        }
        lane.join().unwrap();
        for seq in [3, 4] {
            assert_eq!(timeline.after(seq).map(|recorded| recorded.seq), Some(4), "the first event behind {seq}");
        }
    });
}

/// Lanes record their operations concurrently, and the numbers never decrease.
#[test]
fn lanes_note_operations_at_the_same_time() {
    model(COMPLETE, Flavour::Contract, || {
        let uses = Arc::new(DeviceUses::new(2));
        let other = Arc::clone(&uses);
        let lane = thread::spawn(move || {
            other.note(1, 3, Mode::Read);
            other.note(1, 4, Mode::Read);
        });
        uses.note(0, 7, Mode::Write);
        let seen = [uses.last(1, Mode::Write), uses.last(1, Mode::Write)];
        assert!(seen.is_sorted() && seen.iter().all(|seq| [0, 3, 4].contains(seq)), "{seen:?}");
        assert_eq!(uses.last(1, Mode::Read), 0, "a reader does not wait for readers");
        lane.join().unwrap();
        assert_eq!([uses.last(0, Mode::Read), uses.last(0, Mode::Write), uses.last(1, Mode::Write)], [7, 7, 4]);
    });
}

// ------------------------------------------------------------------------------------------------------- faults ----

/// The state that a device's lanes share with dependent operations: the state of one variable, which the device is
/// writing, and the progress of two lanes.
#[derive(Default)]
struct Device {
    fault: Fault<u32>,
    fault_lock: FaultLock,
    looks: FaultLock,
    timelines: [Timeline; 2],
}

impl Device {
    /// Creates a device with one operation in flight on each of `lanes` lanes, in lane order; each operation writes the
    /// variable.
    fn with_lanes(lanes: usize) -> Arc<Self> {
        let device = Self::default();
        for lane in 0..lanes {
            // A lane does this before its operation releases the variable.
            device.fault.note_on_device(lanes, lane, 1, Mode::Write);
        }
        Arc::new(device)
    }

    /// Ends the operation in flight on a lane that finds the device lost with `error`. The operation fails with the
    /// variable's failure or, if there is none, with `error`, which then becomes the variable's failure. Returns the
    /// failure reported for the operation.
    fn ends(&self, lane: usize, error: u32) -> u32 {
        let failure = self.fault_lock.with(|| {
            // SAFETY: it is this lane's turn, so no other lane uses the failure.
            let known = unsafe { self.fault.failure() };
            known.unwrap_or_else(|| {
                // SAFETY: it is still this lane's turn.
                unsafe { self.fault.set_failure(Some(error), &self.looks) };
                error
            })
        });
        self.timelines[lane].complete(1);
        failure
    }

    /// Returns `None` if a CPU operation behind the device's operations must wait, and otherwise the failure that it
    /// finds, if any.
    fn verdict(&self, lanes: usize) -> Option<Option<u32>> {
        let is_complete = |lane: usize| self.timelines[lane].is_complete(self.fault.last_on_device(lane, Mode::Write));
        // SAFETY: the operation holds the variable, and the device's work on it is complete; loom would report a race.
        (0..lanes).all(is_complete).then(|| unsafe { self.fault.failure() })
    }
}

/// A thread without an operation looks at a variable while that fails. It sees all of the failure or nothing.
#[test]
fn a_look_at_a_variable_that_fails_meanwhile_races_with_nothing() {
    model(COMPLETE, Flavour::Contract, || {
        let device = Device::with_lanes(1);
        // SAFETY: the lane takes the lock; loom would report a race.
        let look = |device: &Device| unsafe { device.fault.look(&device.looks) };
        let looked_at = Arc::clone(&device);
        let thread = thread::spawn(move || look(&looked_at));
        assert_eq!(device.ends(0, 7), 7);
        assert!([None, Some(7)].contains(&thread.join().unwrap()));
        assert_eq!(look(&device), Some(7));
    });
}

#[test]
fn a_thread_that_finds_an_operation_of_a_lost_device_complete_finds_its_failure() {
    model(COMPLETE, Flavour::Contract, || {
        let device = Device::with_lanes(1);
        let lane = Arc::clone(&device);
        let lane = thread::spawn(move || lane.ends(0, 7));
        let waits = device.verdict(1).is_none_or(|found| {
            assert_eq!(found, Some(7), "an operation runs, but a lost device did not do the work before it");
            false
        });
        assert_eq!(lane.join().unwrap(), 7);
        if waits {
            assert_eq!(device.verdict(1), Some(Some(7)), "the lane has ended the operation in flight");
        }
    });
}

/// A wait may return immediately only if nothing is in flight and nothing has failed. Here, the operation either is in
/// flight or has failed, so the wait must not return immediately.
#[test]
fn a_wait_that_begins_while_a_device_is_lost_does_not_return_immediately() {
    model(COMPLETE, Flavour::Contract, || {
        let device = Device::with_lanes(1);
        let lane = Arc::clone(&device);
        let lane = thread::spawn(move || lane.ends(0, 7));
        let is_pending = || !device.timelines[0].is_complete(device.fault.last_on_device(0, Mode::Write));
        assert!(device.fault.needs_wait(is_pending), "a wait misses work that a lost device did not do");
        lane.join().unwrap();
    });
}

/// Two lanes find their device lost, each through its own error. Their operations, and an operation behind both, fail
/// for the same reason.
#[test]
fn lanes_that_find_their_device_lost_at_the_same_time_fail_a_variable_once() {
    model(COMPLETE, Flavour::Contract, || {
        let device = Device::with_lanes(2);
        let lanes = [(0, 7), (1, 8)].map(|(lane, error)| {
            let device = Arc::clone(&device);
            thread::spawn(move || device.ends(lane, error))
        });
        let early = device.verdict(2);
        let told = lanes.map(|lane| lane.join().unwrap());
        assert_eq!(told[0], told[1], "two operations on one variable fail for different reasons");
        assert!(early.is_none_or(|found| found == Some(told[0])), "{early:?} was found, and then {told:?}");
        assert_eq!(device.verdict(2), Some(Some(told[0])));
    });
}

/// A lane looks for a failure before issuing an operation. Meanwhile, the device's other lane, where the preceding
/// operation is in flight, finds the device lost. Whether or not the first lane finds a failure, its operation ends
/// with the preceding operation's failure.
#[test]
fn an_operation_issued_while_its_device_is_lost_fails_like_the_one_before_it() {
    model(COMPLETE, Flavour::Contract, || {
        let device = Device::with_lanes(1);
        let lane = Arc::clone(&device);
        let before = thread::spawn(move || lane.ends(0, 7));
        // SAFETY: it is this lane's turn, so no other lane uses the failure.
        let found = device.fault_lock.with(|| unsafe { device.fault.failure() });
        assert!(found.is_none_or(|failure| failure == 7));
        assert_eq!(before.join().unwrap(), 7);
        if found.is_none() {
            // The operation was issued on the lost device and ends like all operations in flight there.
            assert_eq!(device.ends(1, 8), 7);
        }
    });
}

// --------------------------------------------------------------------------------------------------- streams ----

/// Launches a kernel that expects `before` and writes the next number.
fn launch(stream: &mut GpuStream, data: &Arc<Data>, before: u64) {
    let data = Arc::clone(data);
    let kernel = move |()| {
        assert_eq!(data.read(), before);
        data.write(before + 1);
    };
    stream
        .simulated()
        .expect("the stream should be simulated")
        .launch(Duration::ZERO, (), kernel)
        .expect("the device should be sound");
}

/// Two threads, each with its own stream, poll a device; either may run any kernel. One of the threads launches three
/// kernels, the second of them on an included stream.
#[test]
fn work_on_an_included_stream_is_done_in_order_whichever_thread_polls() {
    model(5, Flavour::Contract, || {
        let (gpu, data) = (SimulatedGpu::new(), Data::new());
        let mut other = GpuStream::alone(&gpu);
        let other = thread::spawn(move || {
            launch(&mut other, &Data::new(), 0);
            other.end();
        });
        let (mut lane, mut own) =
            (GpuStream::alone(&gpu), ImportedStream::simulated(&gpu).expect("the device should be sound"));
        launch(&mut lane, &data, 0);
        lane.include(&mut own, |own| launch(own, &data, 1)).expect("the device should be sound");
        launch(&mut lane, &data, 2);
        lane.end();
        assert_eq!(data.read(), 3);
        other.join().unwrap();
    });
}

/// A kernel waits for an event of another device, which another thread polls.
#[test]
fn a_kernel_behind_an_event_of_another_device_sees_what_was_done_before_the_event() {
    model(COMPLETE, Flavour::Contract, || {
        let (gpus, data) = ([SimulatedGpu::new(), SimulatedGpu::new()], Data::new());
        let [mut first, mut second] = gpus.each_ref().map(GpuStream::alone);
        launch(&mut first, &data, 0);
        second.follow(&mut first);
        launch(&mut second, &data, 1);
        let thread = thread::spawn(move || first.end());
        second.end();
        assert_eq!(data.read(), 2);
        thread.join().unwrap();
    });
}

kills! {
    a_thread_that_finds_an_operation_complete_sees_what_the_device_wrote {
        "passed::COMPLETE": "Causality violation",
        "passed::SEEN": "Causality violation",
    }
    one_number_makes_all_earlier_operations_visible_to_every_thread {
        "passed::COMPLETE": "Causality violation",
    }
    a_thread_that_finds_an_operation_of_a_lost_device_complete_finds_its_failure {
        "passed::COMPLETE": "a lost device did not do",
    }
    a_look_at_a_variable_that_fails_meanwhile_races_with_nothing {
        only loom "step::LANES_TAKE_TURNS": "Causality violation",
    }
    lanes_that_find_their_device_lost_at_the_same_time_fail_a_variable_once {
        "step::LANES_TAKE_TURNS": "Causality violation",
    }
    work_on_an_included_stream_is_done_in_order_whichever_thread_polls {
        only loom "step::INCLUDED_COMES_AFTER": "a kernel panicked",
        only loom "step::INCLUDED_COMES_BEFORE": "a kernel panicked",
    }
    a_kernel_behind_an_event_of_another_device_sees_what_was_done_before_the_event {
        "event::REACHED": "Causality violation",
        "event::SEEN": "Causality violation",
    }
}
