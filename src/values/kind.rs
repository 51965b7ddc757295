//! Engine kinds.

use std::fmt;

/// How an engine runs operations.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Engine, EngineKind};
///
/// for kind in [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice] {
///     let engine = Engine::builder().kind(kind).workers(2).build()?;
///     let total = engine.var(0);
///     engine.op("add").push(total.write(), |total| *total += 1)?;
///     assert_eq!(engine.get(&total)?, 1, "all kinds compute the same");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineKind {
    /// An engine without threads: as a rule, each operation runs inside its push, on the pushing thread. This kind is
    /// for debugging and serves as a baseline for the others. An operation that conflicts with a running operation (one
    /// that is asynchronous, was pushed by another thread, or is itself pushing) runs as soon as the running operation
    /// completes, on the thread that completes it. An operation pushed by the function of a device operation runs as
    /// soon as the device operation completes.
    ///
    /// Operations pushed by other operations run nested while the thread's stack has room. A push nested too deeply
    /// returns immediately; its operation runs when the pushing operation ends, waits, or calls
    /// [`OpHandle::is_done`](crate::OpHandle::is_done). During a wait or such a call, it may run on another thread's
    /// stack while the pushing thread is blocked: it then sees different thread-locals, [`unpinned`](crate::unpinned)
    /// has no effect, and it must not rely on thread-bound locks. A wait with a time limit runs the operation first and
    /// may therefore exceed the limit.
    Naive,
    /// One set of workers for CPU operations, one thread for copies, and one thread per GPU.
    Pooled,
    /// For the CPU, one worker per core by default, workers for prioritised operations, and one thread for copies in
    /// each direction. For each GPU, one thread for computations, one for urgent work, and one for copies in each
    /// direction.
    #[default]
    PerDevice,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
