//! The token that ends an asynchronous operation.

use std::{fmt, mem::ManuallyDrop, sync::Arc};

use crate::{
    context,
    core::Core,
    error::{BoxError, Cause},
    sync::weaken::{Step, removed},
    task::Task,
    tracker::OpRef,
};

/// Ends an asynchronous operation: it is done when this token is used, from whatever thread.
///
/// A token dropped unused ends its operation with [`Cause::LostCompletion`], so a forgotten completion is an error and not
/// a hang. What the thread that uses the token wrote before is visible to the operations that come after.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let disk = engine.new_var();
/// engine.push_async(
///     |_cx, done| {
///         std::thread::spawn(move || match std::fs::read("no such file") {
///             Ok(_) => done.complete(),
///             Err(error) => done.fail(error),
///         });
///     },
///     [],
///     [&disk],
/// )?;
/// assert!(engine.wait_for_var(&disk).is_err());
/// # Ok(())
/// # }
/// ```
#[must_use = "a completion dropped unused fails its operation"]
pub struct Completion {
    op: OpRef<Task>,
    core: ManuallyDrop<Arc<Core>>,
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("name", self.op.task().name()).finish_non_exhaustive()
    }
}

impl Completion {
    /// The token of `op`, which takes over one hold of it.
    pub(crate) fn new(op: OpRef<Task>, core: Arc<Core>) -> Self {
        Self { op, core: ManuallyDrop::new(core) }
    }

    /// Ends the operation successfully.
    pub fn complete(self) {
        self.end(Ok(()));
    }

    /// Ends the operation with an error.
    pub fn fail(self, error: impl Into<BoxError>) {
        self.end(Err(Cause::Error(error.into())));
    }

    fn end(self, result: Result<(), Cause>) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so the field is taken once.
        let core = unsafe { ManuallyDrop::take(&mut this.core) };
        core.resolve(this.op, result);
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        // SAFETY: the field is taken once, here.
        let core = unsafe { ManuallyDrop::take(&mut self.core) };
        if removed(Step::DropCompletes) {
            return;
        }
        // Where the operation's own function drops it, by an early return or a panic, that is the error to tell, if there is one.
        if !context::note_lost(self.op) {
            core.resolve(self.op, Err(Cause::LostCompletion));
        }
    }
}
