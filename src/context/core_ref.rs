//! The references to an engine in handles to operations.
//!
//! Such a reference is created and dropped for each operation with a handle, so workers that push such operations would
//! contend for the engine's count of references. On the engine's own threads, the references are therefore counted for
//! each thread: they share a reference that belongs to the thread.

use std::{ops::Deref, sync::Arc};

use crate::{context::worker_thread, engine::core::Core};

/// Keeps an engine in memory.
pub(crate) enum CoreRef {
    /// Counted by the engine.
    Own(Arc<Core>),
    /// Counted for a thread of the engine.
    OfThread(Arc<OfThread>),
}

/// A reference to an engine that belongs to a thread of the engine.
pub(crate) struct OfThread(pub(crate) Arc<Core>);

impl CoreRef {
    #[inline]
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        match worker_thread::shared_core(core) {
            Some(shared) => Self::OfThread(shared),
            None => Self::Own(Arc::clone(core)),
        }
    }
}

impl Deref for CoreRef {
    type Target = Arc<Core>;

    fn deref(&self) -> &Arc<Core> {
        match self {
            Self::Own(core) => core,
            Self::OfThread(core) => &core.0,
        }
    }
}
