//! Statistics of what workers do. The counts order nothing, so they use `std`'s atomics even in models.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A count kept for one worker or lane.
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
    /// How often the worker has stolen from another worker in a search, not counting its visits to other workers'
    /// deques.
    pub(crate) steals: Count,
    /// How many operations waiters have run on the worker.
    pub(crate) helped: Count,
    /// How often the worker has parked. Successive timed parks without a search in between count once.
    pub(crate) parks: Count,
}
