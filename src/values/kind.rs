//! The kinds of engine, and where workers are.

use std::fmt;

/// What an engine runs operations with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineKind {
    /// No threads: an operation runs inside its push, on the pushing thread, in order. For debugging, and as the measure
    /// of the others. An operation that cannot run yet, because it conflicts with one that is running (an asynchronous
    /// one, one of another pushing thread, or the one that pushes it), runs as soon as that one ends, on the thread that
    /// ends it; so does one that is pushed by the function of a device operation.
    ///
    /// Operations that push operations run inside each other while the thread's stack has room. A push that is deeper
    /// returns at once; its operation runs when the one that pushed it ends, waits, or asks
    /// [`OpHandle::is_done`](crate::OpHandle::is_done). For a wait or such a question it may run on another thread's stack,
    /// while the pushing thread stands still: there it finds other thread-locals, must not expect locks that are bound to
    /// a thread, and [`unpinned`](crate::unpinned) is without effect. A wait with a time limit runs it first, and may so
    /// return later than its limit.
    Naive,
    /// All contexts share one set of workers, plus one thread for copies.
    Pooled,
    /// Each device its own workers: one per core for the CPU, workers for prioritised operations, and a thread for copies
    /// each way.
    #[default]
    PerDevice,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Where a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// On this core alone.
    Pinned(usize),
    /// Wherever the operating system puts it: pinning was not asked for, or there are more workers than cores.
    Unpinned,
    /// Wherever the operating system puts it, because it refused this core.
    Refused(usize),
}
