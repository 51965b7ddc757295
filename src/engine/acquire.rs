//! Acquired variables: an operation that holds its variables while the thread that has acquired them uses them.
//!
//! # States
//!
//! 1. *Pushed*: an [`AcquireJob`] is in a record, behind the operations before it.
//! 2. *Acquired*: its turn has come, and an [`Acquired`] is in the oneshot, or has been taken from it. The operation
//!    holds its variables.
//! 3. *Released*: the [`Acquired`] was dropped, and the operation is complete.
//!
//! If the operation is skipped instead, the oneshot is set to the failure. If the waiting thread has given up, the job
//! is the last owner of the oneshot. The [`Acquired`] is then dropped with it, so no variable is held for ever. The
//! record stays in the queues until its turn comes.
//!
//! The operation is silent: only [`Acquired::mutated`] counts mutations, so an [`Acquired`] that was not used counts
//! none.
//!
//! # Who may touch what
//!
//! * The job: the thread that starts or skips the operation. The end of the operation does not touch it, since another
//!   thread may end it while the job still starts ([`FnState::MayRun`](super::ending::FnState::MayRun)).
//! * The values: the owner of the [`Acquired`], as the accesses say.
//!
//! There are no edges here: the oneshot hands the [`Acquired`] over, and with it everything that the queues have handed
//! over.

use std::{mem::ManuallyDrop, panic::Location, sync::Arc, time::Instant};

use crate::{
    engine::{
        core::Core,
        frame::{self, Call, Holds},
        right::Right,
        spec::{Entry, Spec},
        task::{Cleanup, Job, Task, flag},
        variable::VarCell,
    },
    error::{
        op::{Cause, OpError},
        wait::WaitError,
    },
    notify::oneshot::Oneshot,
};

/// The right to variables whose turn has come. Its drop releases them.
pub(crate) struct Acquired {
    right: ManuallyDrop<Right<Task>>,
    core: Arc<Core>,
}

impl Acquired {
    /// Calls `f`, program code that uses the variables.
    pub(crate) fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        frame::enter(&self.core, self.right.op(), Holds::AcquiredVariables, |_| f())
    }

    /// Counts a mutation of each variable that the operation mutates.
    pub(crate) fn mutated(&self) {
        for access in self.right.op().accesses().iter().filter(|access| access.mode().is_write()) {
            // SAFETY: the operation holds the variable for writing until `self` is dropped.
            unsafe { VarCell::of(access).mutated() };
        }
    }
}

impl Drop for Acquired {
    fn drop(&mut self) {
        // SAFETY: only this drop takes the field, and it runs once.
        let right = unsafe { ManuallyDrop::take(&mut self.right) };
        // In a forked child the operation belongs to the parent process.
        if !self.core.is_forked() {
            self.core.resolve(right, Ok(()));
        } else {
            std::mem::forget(right);
        }
    }
}

/// The job of an operation that acquires its variables for another thread.
struct AcquireJob(Option<Arc<Oneshot<Acquired>>>);

impl Job for AcquireJob {
    const REPORTS: bool = true;

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        if let (Some(oneshot), Some(right)) = (self.0.take(), cx.take_right()) {
            let acquired = Acquired { right: ManuallyDrop::new(right), core: Arc::clone(cx.core()) };
            let wakers = oneshot.set(Ok(acquired));
            debug_assert!(wakers.is_none(), "only threads wait");
        }
        Ok(())
    }

    fn discard(&mut self) {}

    /// Reports why the operation was skipped.
    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        match (self.0.take(), result) {
            (Some(oneshot), Err(error)) => Cleanup::new(oneshot.set(Err(error.clone())), oneshot),
            _ => Cleanup::default(),
        }
    }
}

impl Core {
    /// Pushes an operation with this entry, and waits until it may run, until `deadline` at most. Then the operation
    /// holds the variable until the returned value is dropped.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        name: &'static str,
        location: &'static Location<'static>,
        mut entry: Entry,
        deadline: Option<Instant>,
    ) -> Result<Acquired, WaitError> {
        // SAFETY: the caller has a handle of the variable.
        let queue = unsafe { entry.cell.as_ref() }.queue();
        if queue.owner() == self.tag() && !queue.is_idle(entry.mode) {
            // Before the push: a wait that is refused leaves nothing in the queue.
            self.make_way()?;
        }
        let oneshot = Oneshot::new();
        // Like a wait, it takes no time on the thread that finds it ready, and needs no worker.
        let spec = Spec::internal(name, 0, flag::INLINE | flag::ASYNC | flag::SILENT);
        self.push(&spec, location, std::slice::from_mut(&mut entry), AcquireJob(Some(Arc::clone(&oneshot))))?;
        self.wait_for_result(&oneshot, deadline)
    }
}
