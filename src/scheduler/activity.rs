//! Statistics of what workers do. The counts order nothing, so they use `std`'s atomics even in models.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A count that any thread may raise.
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

/// A count that only one thread at a time raises.
#[derive(Debug, Default)]
pub struct OwnCount(AtomicU64);

impl OwnCount {
    /// Raises the count. Calls on several threads must not overlap: a call may undo those that it overlaps.
    pub(crate) fn add_one(&self) {
        // Relaxed: only a count. Separate accesses, since an atomic addition would take some 20 cycles.
        self.0.store(self.0.load(Relaxed) + 1, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        // Relaxed: only a count.
        self.0.load(Relaxed)
    }
}

/// What a worker has done since its lane was created. The thread that has the worker raises the counts.
#[derive(Debug, Default)]
pub struct Activity {
    /// How often the worker has stolen from another worker in a search, not counting its visits to other workers'
    /// deques.
    pub(crate) steals: OwnCount,
    /// How many operations waiters have run on the worker.
    pub(crate) helped: OwnCount,
    /// How often the worker has parked. Successive timed parks without a search in between count once.
    pub(crate) parks: OwnCount,
}
