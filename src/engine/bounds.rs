//! What an engine knows about limits of pending operations. [`room`](super::room) uses this.
//!
//! # Who may touch what
//!
//! * `ANY`: set once, with the first `in_use` of the process. It is never cleared, and is an atomic of `std` even in
//!   models.
//! * `in_use`: set once, before there is a limit; read by any thread.
//! * `running` and `waiting`: changed by the threads that they count.
//! * `pushing`: each shard is changed by the threads with its number.
//! * `held`: under its lock. No waker runs under that lock.
//!
//! This module has no edges of its own: all of these are hints, or are under a lock.

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

/// The number of shards of `pushing`. Not tuned: further threads share them.
const SHARDS: usize = 16;

/// What an engine knows about limits.
#[derive(Default)]
pub(crate) struct Bounds {
    /// Whether the engine, or a group of it, has a limit.
    in_use: AtomicBool,
    /// The number of threads that run operations without a worker.
    pub(super) running: AtomicUsize,
    /// The number of threads counted in `running` that wait.
    pub(super) waiting: AtomicUsize,
    /// The number of threads inside a push from outside.
    pushing: [CachePadded<AtomicUsize>; SHARDS],
    /// The futures that wait for room, in the engine or in a group, which a shutdown wakes.
    pub(super) held: Mutex<Waiting>,
}

/// Whether any engine of the process has had a limit.
static ANY: AtomicFlag = AtomicFlag::new(false);

/// Whether any engine of the process has had a limit. In a program that uses none, threads need not be counted.
pub(super) fn any_limits() -> bool {
    // Relaxed: a limit may be seen late.
    ANY.load(Relaxed)
}

impl Bounds {
    /// Returns the calling thread's shard of `pushing`.
    pub(super) fn pushing(&self) -> &AtomicUsize {
        &self.pushing[thread::number() % SHARDS]
    }

    /// Whether there may be a limit.
    pub(super) fn are_in_use(&self) -> bool {
        // Relaxed: a limit may be seen late.
        self.in_use.load(Relaxed)
    }

    pub(super) fn begin_use(&self) {
        // Relaxed: as in `are_in_use`.
        self.in_use.store(true, Relaxed);
        // Relaxed: as in `any_limits`.
        ANY.store(true, Relaxed);
    }

    /// Whether threads push, or run operations without a worker.
    pub(super) fn are_threads_at_work(&self) -> bool {
        // Relaxed: a snapshot.
        let is_at_work = |count: &AtomicUsize| count.load(Relaxed) > 0;
        self.pushing.iter().any(|count| is_at_work(count)) || is_at_work(&self.running)
    }
}
