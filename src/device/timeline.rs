//! The progress of a device's streams, and the operations in flight that use a variable.
//!
//! A device operation releases its variables when it is *issued*, before the device has completed it. Dependent
//! operations of the same device can then be issued, since streams and events order their commands. If their functions
//! may use values in host memory, however, they must wait until the device operation is *complete*, like all other
//! dependent operations. So each lane numbers the operations it issues and publishes the number of its last complete
//! operation (in its [`Timeline`]), and each variable records, for each lane, the numbers of the last operations to use
//! it (in its [`DeviceUses`]).
//!
//! # Who may touch what
//!
//! * `DeviceUses`: written by an operation's lane while the operation holds the variable. Each lane has its own part.
//!   Any thread may read it.
//! * `Timeline::completed`: written by its lane, read by any thread.
//! * `Timeline::asked`: set by the device's other lanes, cleared by its lane.
//! * `Timeline::recorded`: under its lock. Changed by its lane, read by any lane of the device.
//!
//! # Edges
//!
//! [`passed`](crate::sync::edge::passed).
//!
//! `DeviceUses` need no edge of their own. The lane writes them before the operation releases the variable, and the
//! variable's queue hands them over.

use std::collections::VecDeque;

use crossbeam_utils::CachePadded;

use crate::{
    device::driver::DeviceEvent,
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicBool, AtomicU64},
        edge::{self, acquire, release},
        lock,
    },
    tracker::Mode,
};

/// The maximum number of lanes of one GPU.
pub const LANES_PER_GPU: usize = 4;

/// A point in one GPU's work: for each lane, the number of the last operation before the point.
pub type VectorClock = [u64; LANES_PER_GPU];

/// For each lane, the numbers of the last operations to read and to mutate a variable.
#[derive(Debug)]
pub struct DeviceUses(Box<[LaneUses]>);

#[derive(Debug, Default)]
struct LaneUses {
    read: AtomicU64,
    written: AtomicU64,
}

impl DeviceUses {
    /// Creates the uses of a variable that no operation has used yet, in an engine with `lanes` GPU lanes.
    pub fn new(lanes: usize) -> Self {
        Self((0..lanes).map(|_| LaneUses::default()).collect())
    }

    /// Records that `lane` issues its operation number `seq`, which accesses the variable in `mode`.
    pub fn note(&self, lane: usize, seq: u64, mode: Mode) {
        let uses = &self.0[lane];
        // Relaxed: the number is released with the variable. Only this lane stores here, so the number never decreases.
        if mode.is_write() { &uses.written } else { &uses.read }.store(seq, Relaxed);
    }

    /// Returns the number of the last operation of `lane` that an access in `mode` must follow: a read follows only
    /// writes.
    pub fn last(&self, lane: usize, mode: Mode) -> u64 {
        let uses = &self.0[lane];
        // Relaxed: the number is acquired with the variable. A caller that does not hold the variable only checks
        // whether it would have to wait.
        let written = uses.written.load(Relaxed);
        // Relaxed: as for `written`.
        if mode == Mode::Read { written } else { written.max(uses.read.load(Relaxed)) }
    }
}

/// A point in a stream that other streams of the device can wait for.
#[derive(Clone, Debug)]
pub struct RecordedPoint {
    /// The number of the last operation issued before the event.
    pub seq: u64,
    /// The event to wait for.
    pub event: DeviceEvent,
    /// What the stream had waited for when the event was recorded.
    pub clock: VectorClock,
}

#[cfg(any(raddle_loom, raddle_shuttle))]
impl RecordedPoint {
    /// Returns a point for models, in which no stream waits for the event.
    pub fn point(seq: u64) -> Self {
        Self { seq, event: crate::device::simulated::unrecorded(), clock: VectorClock::default() }
    }
}

/// The progress of a lane's stream.
#[derive(Debug, Default)]
pub struct Timeline {
    completed: CachePadded<AtomicU64>,
    /// The points behind incomplete operations, in stream order.
    recorded: Mutex<VecDeque<RecordedPoint>>,
    /// Whether another stream has waited for a recorded point since the lane last checked.
    asked: AtomicBool,
}

impl Timeline {
    /// Returns whether all operations up to `seq` are complete. If so, their effects are visible to the caller.
    pub fn is_complete(&self, seq: u64) -> bool {
        self.completed.load(acquire(edge::passed::SEEN)) >= seq
    }

    /// Returns the number of the last complete operation. Only the lane calls this.
    pub fn completed(&self) -> u64 {
        // Relaxed: the lane's threads store it, and each passes the lane on to the next under a lock.
        self.completed.load(Relaxed)
    }

    /// Publishes that all operations up to `seq` are complete, and removes the points that are no longer needed.
    pub fn complete(&self, seq: u64) {
        self.completed.store(seq, release(edge::passed::COMPLETE));
        let mut recorded = lock(&self.recorded);
        while recorded.front().is_some_and(|recorded| recorded.seq <= seq) {
            recorded.pop_front();
        }
    }

    /// Publishes `recorded`, which must be behind all earlier points, to the other lanes.
    pub fn publish(&self, recorded: RecordedPoint) {
        lock(&self.recorded).push_back(recorded);
    }

    /// Records that another stream waits for a recorded point.
    pub fn ask(&self) {
        // Relaxed: a hint.
        self.asked.store(true, Relaxed);
    }

    /// Returns whether another stream has waited for a recorded point since the last call. Only the lane calls this.
    pub fn was_asked(&self) -> bool {
        // Relaxed: a hint.
        self.asked.swap(false, Relaxed)
    }

    /// Returns the first recorded point behind operation `seq`, if any.
    pub fn after(&self, seq: u64) -> Option<RecordedPoint> {
        let recorded = lock(&self.recorded);
        recorded.get(recorded.partition_point(|recorded| recorded.seq < seq)).cloned()
    }
}
