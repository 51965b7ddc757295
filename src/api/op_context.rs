//! What an operation's function can ask about its run.

use std::{fmt, sync::Arc};

use super::engine::Engine;
use crate::{
    engine::{core::Core, frame::Call, task::Task, worker_thread},
    tracker::Op,
    values::device::Device,
};

/// What an operation's function is told about its run.
pub struct OpContext<'a> {
    op: &'a Op<Task>,
    core: &'a Arc<Core>,
}

impl fmt::Debug for OpContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpContext")
            .field("name", &self.name())
            .field("context", &self.context())
            .field("worker", &self.worker())
            .finish_non_exhaustive()
    }
}

impl<'a> OpContext<'a> {
    #[inline]
    pub(crate) fn new(call: &Call<'a>) -> Self {
        Self { op: call.op(), core: call.core() }
    }

    /// The operation's name; empty if it was given none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.op.task().name().as_str()
    }

    /// The device the operation runs on.
    #[must_use]
    pub fn context(&self) -> Device {
        self.core.gpus().context_of(self.op.task().lane)
    }

    /// The number of the worker in its lane; `None` on a thread that is no worker, such as a pusher that runs the
    /// operation itself.
    #[must_use]
    pub fn worker(&self) -> Option<usize> {
        worker_thread::worker_index()
    }

    /// The engine, for pushing further operations. This handle does not keep the engine open: unlike those that the
    /// program holds, it may be the last one without a shutdown.
    #[must_use]
    pub fn engine(&self) -> Engine {
        Engine::uncounted(Arc::clone(self.core))
    }
}
