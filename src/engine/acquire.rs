//! Acquired variables: an operation that holds its variables while the thread that has acquired them uses them.
//!
//! # States
//!
//! 1. *Pushed*: an [`AcquireJob`] is in a record, behind the operations before it.
//! 2. *Acquired*: its turn has come, and an [`Acquired`] is in the oneshot, or has been taken from it. The operation
//!    holds its variables.
//! 3. *Released*: the [`Acquired`] was dropped, and the operation is complete.
//!
//! If the operation is skipped instead, the oneshot gets the failure. If no thread waits any more, the oneshot is closed,
//! and an [`Acquired`] that is put into it is dropped immediately.
//!
//! # Who may touch what
//!
//! * The job: the thread that starts or skips the operation. The end of the operation does not touch it, since another
//!   thread may end it while the job still starts ([`FnState::MayRun`](super::ending::FnState::MayRun)).
//! * The values: the owner of the [`Acquired`], as the accesses say.
//!
//! There are no edges here: the oneshot hands the [`Acquired`] over, and with it what the queues have handed over.

use std::{
    mem::{ManuallyDrop, forget},
    panic::Location,
    sync::Arc,
};

use crate::{
    engine::{
        core::Core,
        frame::{self, Call, Holds},
        spec::{Entry, Spec},
        task::{Cleanup, Job, Task, flag},
    },
    error::{
        op::{Cause, OpError},
        wait::WaitError,
    },
    notify::oneshot::Oneshot,
    tracker::OpRef,
};

/// The right to variables whose turn has come. Its drop releases them.
pub(crate) struct Acquired {
    op: ManuallyDrop<OpRef<Task>>,
    core: Arc<Core>,
}

impl Acquired {
    /// Calls `f` as a part of the operation that holds the variables.
    pub(crate) fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        frame::enter(&self.core, &self.op, Holds::Variables, |_| f())
    }
}

impl Drop for Acquired {
    fn drop(&mut self) {
        // SAFETY: the field is taken once, here.
        let op = unsafe { ManuallyDrop::take(&mut self.op) };
        if self.core.is_forked() {
            // The operation belongs to the parent process.
            return forget(op);
        }
        self.core.resolve(op, Ok(()));
    }
}

/// The job of an operation that acquires its variables for another thread.
struct AcquireJob(Option<Arc<Oneshot<Acquired>>>);

impl Job for AcquireJob {
    const REPORTS: bool = true;

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        if let (Some(oneshot), Some(op)) = (self.0.take(), cx.take_right()) {
            let acquired = Acquired { op: ManuallyDrop::new(op), core: Arc::clone(cx.core()) };
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
    /// Pushes an operation with these entries, and waits until it may run. Then it holds its variables until the
    /// returned value is dropped.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        name: &'static str,
        location: &'static Location<'static>,
        entries: &mut [Entry],
    ) -> Result<Acquired, WaitError> {
        let oneshot = Oneshot::new();
        let spec = Spec::internal(name, 0, flag::EAGER | flag::ASYNC);
        self.push(&spec, location, entries, AcquireJob(Some(Arc::clone(&oneshot))))?;
        // After an error no thread waits: the operation must release its variables when its turn comes.
        self.wait_for_result(&oneshot, None).inspect_err(|_| drop(oneshot.close()))
    }
}
