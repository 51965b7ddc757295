//! The engine behind its handles. What it does is in the modules below: a push, a run, a wait and a shutdown.

use std::{
    ptr,
    sync::{Arc, OnceLock},
};

use crossbeam_utils::CachePadded;

use crate::{
    device::gpus::Gpus,
    engine::{fault::FaultLock, task::Task},
    error::failures::Failures,
    notify::pending::PendingOps,
    sync::{
        Ordering::Relaxed,
        atomic::{AtomicU8, AtomicU64, AtomicUsize},
    },
    threads::pool::ThreadPool,
    values::kind::{EngineKind, Placement},
};

/// How far a shutdown is. Only rises.
pub(super) mod phase {
    /// Everybody may push.
    pub(crate) const OPEN: u8 = 0;
    /// Operations of this engine may push; so may the engine itself.
    pub(crate) const DRAINING: u8 = 1;
    /// Only the engine itself may push; what has not started is cancelled.
    pub(crate) const CANCELLING: u8 = 2;
    /// Only the engine itself may push. Nothing was pending in the phase before, and the threads may end.
    pub(crate) const CLOSED: u8 = 3;
    /// The engine is that of a process which has forked this one. Every call ends at once, before it takes a lock.
    pub(crate) const FORKED: u8 = 4;
}

/// The engine.
pub(crate) struct Core {
    pub(super) kind: EngineKind,
    pub(super) phase: CachePadded<AtomicU8>,
    next_id: AtomicU64,
    pub(super) pending: PendingOps,
    pub(super) failures: Arc<Failures>,
    pub(super) threads: ThreadPool<Task>,
    pub(super) gpus: Gpus<Task>,
    /// Taken by whoever reads or changes the failure of a variable that may be on its way through several streams.
    pub(super) fault_lock: FaultLock,
    /// Where the workers of the first lane were put.
    pub(crate) placements: OnceLock<Box<[Placement]>>,
    /// Engine handles that keep it open.
    pub(crate) handles: AtomicUsize,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("kind", &self.kind)
            // Relaxed: a snapshot to look at.
            .field("phase", &self.phase.load(Relaxed))
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(kind: EngineKind, threads: ThreadPool<Task>, gpus: Gpus<Task>, shards: usize) -> Self {
        Self {
            kind,
            phase: CachePadded::new(AtomicU8::new(phase::OPEN)),
            next_id: AtomicU64::new(0),
            pending: PendingOps::new(shards),
            failures: Arc::default(),
            threads,
            gpus,
            fault_lock: FaultLock::default(),
            placements: OnceLock::new(),
            handles: AtomicUsize::new(1),
        }
    }

    pub(crate) fn kind(&self) -> EngineKind {
        self.kind
    }

    /// Ends the engine in a forked child, by the only thread there: what is pending stays so, calls are refused, and a
    /// thread of the engine ends.
    #[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
    pub(crate) fn end_in_child(&self) {
        // Relaxed: there is no other thread.
        self.phase.store(phase::FORKED, Relaxed);
        self.threads.end_in_child();
        self.gpus.end_in_child();
    }

    /// Whether the engine is that of a process which has forked this one. Then nothing of it may be locked, since a thread
    /// that is gone may hold the lock.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        // Relaxed: it changes only where there is no other thread.
        self.phase.load(Relaxed) == phase::FORKED
    }

    pub(crate) fn threads(&self) -> &ThreadPool<Task> {
        &self.threads
    }

    pub(crate) fn gpus(&self) -> &Gpus<Task> {
        &self.gpus
    }

    pub(crate) fn failures(&self) -> &Arc<Failures> {
        &self.failures
    }

    /// What the variables of this engine are marked with: its address, which is its own while a variable keeps it.
    pub(crate) fn mark(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    pub(crate) fn next_id(&self) -> u64 {
        // Relaxed: only distinct numbers are needed; a thread's own rise.
        self.next_id.fetch_add(1, Relaxed)
    }
}
