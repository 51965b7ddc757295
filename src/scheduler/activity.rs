//! Counts of what workers do, for people to read. They order nothing, so they are `std`'s atomics in models as well.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A count of one worker, or of a lane.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub(crate) fn add_one(&self) {
        // Relaxed: only a count.
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        // Relaxed: only a count.
        self.0.load(Relaxed)
    }
}

/// What a worker has done since its lane was created.
#[derive(Debug, Default)]
pub struct Activity {
    /// How often it has stolen from another worker.
    pub(crate) steals: Count,
    /// How many operations waiters on it have run.
    pub(crate) helped: Count,
    /// How often it has parked.
    pub(crate) parks: Count,
}
