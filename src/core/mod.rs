//! The engine behind its handles. What it does is in the modules below: a push, a run, a wait and a shutdown.

use std::{
    ptr,
    sync::{Arc, OnceLock},
};

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use crate::{
    failures::Failures,
    fork,
    gpu::Gpus,
    kind::{EngineKind, Placement},
    name::Name,
    sync::{
        Ordering::Relaxed,
        atomic::{AtomicU8, AtomicU64, AtomicUsize},
    },
    tally::Tally,
    task::{Entry, flag},
    threads::Crew,
    tracker::INLINE_ACCESSES,
};

mod push;
mod run;
mod shutdown;
mod variables;
mod wait;

pub(crate) use run::{Rest, Rests, Unplain, Verdict};

/// How far a shutdown is. Only rises.
mod phase {
    /// Everybody may push.
    pub(super) const OPEN: u8 = 0;
    /// Operations of this engine may push; so may the engine itself.
    pub(super) const DRAINING: u8 = 1;
    /// Only the engine itself may push; what has not started is cancelled.
    pub(super) const CANCELLING: u8 = 2;
    /// Only the engine itself may push. Nothing was pending in the phase before, and the threads may end.
    pub(super) const CLOSED: u8 = 3;
    /// The engine is that of a process which has forked this one. Every call ends at once, before it takes a lock.
    pub(super) const FORKED: u8 = 4;
}

/// The variables an operation names, in the making.
pub(crate) type Entries = SmallVec<[Entry; INLINE_ACCESSES]>;

/// What an operation is made with, beside its variables, its function, and where it is pushed. Its flags say whether it has
/// a name, and whether that owns memory.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: Name,
    pub(crate) priority: i32,
    pub(crate) flags: u16,
    pub(crate) lane: u8,
}

impl Spec {
    /// In the first lane.
    #[inline]
    pub(crate) fn new(name: Name) -> Self {
        let flags = if name.is_empty() { 0 } else { flag::NAMED };
        let flags = if name.is_shared() { flags | flag::OWNS_NAME } else { flags };
        Self { name, priority: 0, flags, lane: 0 }
    }

    /// Of an operation of the engine's own.
    pub(crate) fn internal(name: &'static str, priority: i32, flags: u16) -> Self {
        let spec = Self::new(Name::from(name));
        Self { priority, flags: spec.flags | flags | flag::INTERNAL, ..spec }
    }
}

/// The engine.
pub(crate) struct Core {
    kind: EngineKind,
    phase: CachePadded<AtomicU8>,
    next_id: AtomicU64,
    tally: Tally,
    failures: Arc<Failures>,
    crew: Crew,
    gpus: Gpus,
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

impl Drop for Core {
    fn drop(&mut self) {
        fork::forget(self);
    }
}

impl Core {
    pub(crate) fn new(kind: EngineKind, crew: Crew, gpus: Gpus, shards: usize) -> Self {
        Self {
            kind,
            phase: CachePadded::new(AtomicU8::new(phase::OPEN)),
            next_id: AtomicU64::new(0),
            tally: Tally::new(shards),
            failures: Arc::default(),
            crew,
            gpus,
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
        self.crew.end_in_child();
        self.gpus.end_in_child();
    }

    /// Whether the engine is that of a process which has forked this one. Then nothing of it may be locked, since a thread
    /// that is gone may hold the lock.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        // Relaxed: it changes only where there is no other thread.
        self.phase.load(Relaxed) == phase::FORKED
    }

    pub(crate) fn crew(&self) -> &Crew {
        &self.crew
    }

    pub(crate) fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    pub(crate) fn failures(&self) -> &Failures {
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
