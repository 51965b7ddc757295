//! How far streams are, and what of a variable is still on its way through them.
//!
//! A device operation passes its variables on when it is *issued*, not when the device has done it: operations of the same
//! device that come after it need no more, since their streams are put in order on the device. Everybody else must wait
//! until it is *complete*. So each lane numbers what it issues, a variable notes the numbers (its [`Marks`]), and the lane
//! says how far it is (its [`Timeline`]).
//!
//! # Who may touch what
//!
//! * `Marks`: an operation's lane, while the operation holds the variable. Each lane has places of its own. Anybody reads.
//! * `Timeline::completed`: stored by its lane, read by everybody.
//! * `Timeline::recorded`: put in by its lane, read by the other lanes of the device.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `passed` | store in [`Timeline::complete`] | load in [`Timeline::is_complete`] | what the device wrote, and what the lane noted of the operations: versions and failures |
//!
//! Marks need no edge of their own: they are written before the operation passes the variable on, and read by those that
//! it was passed on to.

use std::collections::VecDeque;

use crossbeam_utils::CachePadded;

use crate::{
    device::driver::Event,
    sync::{
        Mutex,
        Ordering::{Acquire, Relaxed, Release},
        atomic::{AtomicBool, AtomicU64},
        lock,
    },
    testing::weaken::{Step, removed},
};

/// The most lanes of one GPU.
pub const LANES_PER_GPU: usize = 4;

/// The last operation of each lane of one GPU that something comes after.
pub type Clock = [u64; LANES_PER_GPU];

/// The last operations on a variable, by lane.
#[derive(Debug)]
pub struct Marks(Box<[Mark]>);

#[derive(Debug, Default)]
struct Mark {
    read: AtomicU64,
    written: AtomicU64,
}

impl Marks {
    /// For as many lanes as the engine has for devices. Nothing has been issued.
    pub fn new(lanes: usize) -> Self {
        Self((0..lanes).map(|_| Mark::default()).collect())
    }

    /// Notes that `lane` issues its operation number `seq`, which holds the variable.
    pub fn note(&self, lane: usize, seq: u64, writes: bool) {
        let mark = &self.0[lane];
        // Relaxed: released when the operation passes the variable on. Only this lane stores here, so that it rises.
        if writes { &mark.written } else { &mark.read }.store(seq, Relaxed);
    }

    /// The last operation of `lane` that one must come after: for a reader only writers count.
    pub fn last(&self, lane: usize, for_reading: bool) -> u64 {
        let mark = &self.0[lane];
        // Relaxed: acquired with the variable; others only look whether there is something to wait for.
        let written = mark.written.load(Relaxed);
        // Relaxed: as above.
        if for_reading { written } else { written.max(mark.read.load(Relaxed)) }
    }
}

/// A point of a stream that other streams of the device can wait for.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The last operation issued before it.
    pub seq: u64,
    /// What to wait for.
    pub event: Event,
    /// What the stream had waited for by then.
    pub clock: Clock,
}

#[cfg(raddle_loom)]
impl Recorded {
    /// A point for models, where nobody waits for the event.
    pub fn point(seq: u64) -> Self {
        Self { seq, event: crate::device::simulated::unrecorded(), clock: Clock::default() }
    }
}

/// How far a lane's stream is.
#[derive(Debug, Default)]
pub struct Timeline {
    completed: CachePadded<AtomicU64>,
    /// In their order; only what is not complete.
    recorded: Mutex<VecDeque<Recorded>>,
    /// Another stream has waited for a recorded point since the lane looked.
    asked: AtomicBool,
}

impl Timeline {
    /// Whether everything up to `seq` is complete. What it did is visible to the caller then.
    pub fn is_complete(&self, seq: u64) -> bool {
        // Acquire (edge `passed`).
        self.completed.load(Acquire) >= seq
    }

    /// Says that everything up to `seq` is complete.
    pub fn complete(&self, seq: u64) {
        let order = if removed(Step::CompletionOfMarks) { Relaxed } else { Release };
        // Release (edge `passed`).
        self.completed.store(seq, order);
        let mut recorded = lock(&self.recorded);
        while recorded.front().is_some_and(|recorded| recorded.seq <= seq) {
            recorded.pop_front();
        }
    }

    /// Lets other lanes know of a point behind all others.
    pub fn publish(&self, recorded: Recorded) {
        lock(&self.recorded).push_back(recorded);
    }

    /// Notes that another stream waits for a recorded point.
    pub fn ask(&self) {
        // Relaxed: a hint.
        self.asked.store(true, Relaxed);
    }

    /// Whether that has happened since the last call, which is the lane's.
    pub fn was_asked(&self) -> bool {
        // Relaxed: as above.
        self.asked.swap(false, Relaxed)
    }

    /// The first known point behind operation `seq`.
    pub fn after(&self, seq: u64) -> Option<Recorded> {
        let recorded = lock(&self.recorded);
        recorded.get(recorded.partition_point(|recorded| recorded.seq < seq)).cloned()
    }
}
