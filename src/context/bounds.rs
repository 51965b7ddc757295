//! The state with which [`room`](crate::group::room) enforces limits on pending operations.
//!
//! # Who may touch what
//!
//! * `ANY`: set after each store to `in_use` and never cleared. It is an atomic of `std` even in models.
//! * `in_use`: set before there is a limit and never cleared; read by any thread.
//! * `running` and `waiting`: changed by the threads that they count.
//! * `pushing`: each shard is changed by the threads that [`Bounds::pushing`] assigns to it.
//! * `held`: under its lock, which also hands over the phase of a shutdown. No waker runs under that lock.
//!
//! This module has no edges of its own: each field is either a hint or protected by a lock.

use std::sync::atomic::AtomicBool as AtomicFlag;

use crossbeam_utils::CachePadded;

use crate::{
    notify::wakers::Waiting,
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicBool, AtomicUsize},
        thread,
    },
};

/// The number of shards of `pushing`. Not tuned: if there are more threads than shards, some threads share one.
const SHARDS: usize = 16;

/// The state with which an engine enforces limits.
#[derive(Default)]
pub(crate) struct Bounds {
    /// Whether the engine or one of its groups may have a limit. Also true if the engine shuffles, since shuffling uses
    /// the counts below.
    in_use: AtomicBool,
    /// The number of threads that run operations without a worker or complete them from outside.
    pub(crate) running: AtomicUsize,
    /// The number of threads counted here instead of in `running` while they sleep in a wait for an engine.
    pub(crate) waiting: AtomicUsize,
    /// The number of threads inside a push from outside.
    pushing: [CachePadded<AtomicUsize>; SHARDS],
    /// The futures that wait for room in the engine or in a group. A shutdown wakes them.
    pub(crate) held: Mutex<Waiting>,
}

/// Whether any engine of the process has ever set `in_use`.
static ANY: AtomicFlag = AtomicFlag::new(false);

/// Whether any engine of the process has ever set `in_use`. If none has, threads need not be counted.
pub(crate) fn any_limits() -> bool {
    // Relaxed: a limit may be seen late.
    ANY.load(Relaxed)
}

impl Bounds {
    /// Returns the calling thread's shard of `pushing`.
    pub(crate) fn pushing(&self) -> &AtomicUsize {
        &self.pushing[thread::number() % SHARDS]
    }

    /// Whether there may be a limit or the engine shuffles.
    pub(crate) fn are_in_use(&self) -> bool {
        // Relaxed: a limit may be seen late.
        self.in_use.load(Relaxed)
    }

    pub(crate) fn begin_use(&self) {
        // Relaxed: as in `are_in_use`.
        self.in_use.store(true, Relaxed);
        // Relaxed: as in `any_limits`.
        ANY.store(true, Relaxed);
    }

    /// Whether any thread is counted in `pushing` or in `running`.
    pub(crate) fn are_threads_at_work(&self) -> bool {
        // Relaxed: a snapshot.
        let is_at_work = |count: &AtomicUsize| count.load(Relaxed) > 0;
        self.pushing.iter().any(|count| is_at_work(count)) || is_at_work(&self.running)
    }
}
