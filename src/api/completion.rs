//! The token that ends an asynchronous operation.

use std::{fmt, sync::Arc};

use crate::{
    engine::{
        core::Core,
        frame::{self, Call},
        task::{FnJob, Job, Task},
    },
    error::op::{BoxError, Cause},
    testing::weaken::{Step, removed},
    tracker::OpRef,
};

/// Ends an asynchronous operation: it is done when this token is used, from whatever thread.
///
/// A token dropped unused ends its operation at once, with [`Cause::LostCompletion`], so a forgotten completion is an error
/// and not a hang. That holds inside the operation's own function as well: an early return fails the operation with
/// `LostCompletion`, and what it returns is reported by [`Engine::wait_for_all`](crate::Engine::wait_for_all); pass the error to
/// [`fail`](Self::fail) instead. Only a panic that drops the token fails the operation by itself, when it has left the
/// function.
///
/// What the thread that uses the token wrote before is visible to the operations that come after.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let disk = engine.token();
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
    /// The operation and its engine, until the token is used.
    of: Option<(OpRef<Task>, Arc<Core>)>,
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.of.as_ref().map(|(op, _)| op.task().name());
        f.debug_struct("Completion").field("name", &name).finish_non_exhaustive()
    }
}

impl Completion {
    /// The token of `op`, whose function has been called.
    pub(crate) fn new(op: OpRef<Task>, core: Arc<Core>) -> Self {
        Self { of: Some((op, core)) }
    }

    /// Ends the operation successfully.
    pub fn complete(self) {
        self.end(Ok(()));
    }

    /// Ends the operation with an error.
    pub fn fail(self, error: impl Into<BoxError>) {
        self.end(Err(Cause::Error(error.into())));
    }

    fn end(mut self, result: Result<(), Cause>) {
        if let Some((op, core)) = self.of.take() {
            core.resolve(op, result);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let Some((op, core)) = self.of.take() else { return };
        if removed(Step::DropCompletes) {
            return;
        }
        // Where a panic of the operation's own function drops it, that is the error to tell.
        if let Some(op) = frame::leave_lost(op) {
            core.resolve(op, Err(Cause::LostCompletion));
        }
    }
}

/// The function of an asynchronous operation.
pub(crate) fn async_body<F>(f: F) -> impl Job
where
    F: FnOnce(&Call<'_>, Completion) -> Result<(), Cause> + Send + 'static,
{
    FnJob::new(move |cx: &Call<'_>| match cx.take_right() {
        Some(op) => f(cx, Completion::new(op, Arc::clone(cx.core()))),
        None => Ok(()),
    })
}
