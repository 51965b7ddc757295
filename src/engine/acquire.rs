//! Acquired variables. An operation holds them while the acquiring thread uses them or while guards for them exist.
//!
//! # States
//!
//! 1. *Pushed*: the operation's record contains the oneshot ([`ForThread`]), and the operation's turn has not come.
//! 2. *Acquired*: the operation's turn has come, and an [`Acquired`] has been put into the oneshot for the waiting
//!    thread. The operation holds its variables.
//! 3. *Released*: the [`Acquired`] was dropped, and the operation is complete.
//!
//! If the operation is skipped instead, the oneshot receives the failure. If the waiting thread gives up, the operation
//! stays in the queues until its turn comes. The operation's job, by then the last owner of the oneshot, drops the
//! oneshot and the [`Acquired`] in it, so no variable is held forever.
//!
//! The operation is silent: only [`Acquired::mutated`] counts mutations, so none are counted for an unused
//! [`Acquired`].
//!
//! For a future, guards are put into the oneshot instead ([`ForFuture`]). The guards hold [shares](super::held) of the
//! right to end the operation. Dropping the future before the operation's turn comes [cancels](Claim) the operation,
//! which then changes nothing.
//!
//! # Who may touch what
//!
//! * The job: the thread that starts or skips the operation. Ending a started operation does not touch the job, since
//!   another thread may end the operation while `start` is still running
//!   ([`FnState::MayRun`](super::ending::FnState::MayRun)).
//! * The values: the owner of the [`Acquired`] or of a guard, as the accesses permit.
//!
//! This module has no edges of its own: the oneshot hands over the [`Acquired`] or the guards, along with everything
//! that the queues have handed over.

use std::{mem::ManuallyDrop, panic::Location, ptr::NonNull, sync::Arc, time::Instant};

use crate::{
    engine::{
        core::Core,
        deadlock::Target,
        frame::{self, Call, Holds},
        held::Share,
        job::{FnJob, Sink},
        keeps_open::KeepsOpen,
        spec::{Entry, Spec},
        task::{Claimed, Cleanup, ErasedJob, Task, flag},
        variable::VarCell,
    },
    error::{deadlock::Deadlock, op::OpError, push::PushError, wait::WaitError},
    notify::{claim::Claim, oneshot::Oneshot},
    tracker::OpRef,
    values::name::Name,
};

/// The right to use the variables of an operation whose turn has come. Dropping it releases the variables.
pub(crate) struct Acquired {
    right: ManuallyDrop<OpRef<Task>>,
    core: Arc<Core>,
}

impl Acquired {
    /// Calls `f`, program code that uses the variables.
    pub(crate) fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        frame::enter(&self.core, &self.right, Holds::AcquiredVariables, |_| f())
    }

    /// Counts one mutation of each variable that the operation mutates.
    pub(crate) fn mutated(&self) {
        for access in self.right.accesses().iter().filter(|access| access.mode().is_write()) {
            // SAFETY: the operation holds the variable for writing until `self` is dropped.
            unsafe { VarCell::of(access).mutated() };
        }
    }
}

impl Drop for Acquired {
    fn drop(&mut self) {
        // SAFETY: only this drop takes the field, and it runs once.
        let right = unsafe { ManuallyDrop::take(&mut self.right) };
        // In a forked child, the operation belongs to the parent process.
        if !self.core.is_forked() {
            self.core.resolve(right, Ok(()));
        } else {
            std::mem::forget(right);
        }
    }
}

/// The oneshot that delivers an [`Acquired`] to a waiting thread, until the operation starts.
struct ForThread(Option<Arc<Oneshot<Acquired>>>);

impl Sink for ForThread {
    /// Reports why the operation was skipped.
    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        match (self.0.take(), result) {
            (Some(oneshot), Err(error)) => Cleanup::new(oneshot.set(Err(error.clone())), oneshot),
            _ => Cleanup::default(),
        }
    }
}

impl Core {
    /// Pushes an operation with this entry and waits until the operation may run or `deadline` has passed. If the
    /// operation may run, it holds the variable until the returned value is dropped.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        name: &'static str,
        location: &'static Location<'static>,
        entry: Entry,
        deadline: Option<Instant>,
    ) -> Result<Acquired, WaitError> {
        let oneshot = Oneshot::new();
        // Like the operation of a wait, this one needs no worker and takes no time on the thread that finds it ready.
        let spec = Spec::internal(name, 0, flag::INLINE | flag::ASYNC | flag::SILENT);
        // SAFETY: the caller has a handle to the variable.
        let cell = unsafe { entry.cell.as_ref() };
        self.check_variable(cell, &spec.name, location)?;
        let entries = [entry];
        let start = |cx: &Call<'_>, sink: &mut ForThread| {
            if let (Some(oneshot), Some(right)) = (sink.0.take(), cx.take_right()) {
                let acquired = Acquired { right: ManuallyDrop::new(right), core: Arc::clone(cx.core()) };
                let wakers = oneshot.set(Ok(acquired));
                debug_assert!(wakers.is_none(), "no future waits for this oneshot");
            }
            Ok(())
        };
        let job = FnJob::with(ForThread(Some(Arc::clone(&oneshot))), start);
        let op = self.create(&spec, 0, location, &entries, ErasedJob::new(job))?;
        let task = NonNull::from(op.task()).cast();
        self.enqueue(op).map_err(|rejected| rejected.into_error(&spec.name, location, &entries))?;
        let target = Target { task, held_back_by: None, describe: &|| cell.awaited() };
        self.wait_by(&oneshot, Some(target), deadline, Oneshot::wait)
    }
}

/// Guards for the variables of an operation whose turn has come. If they are dropped without being [taken](Self::take),
/// the variables are unchanged.
pub(crate) struct Granted<G> {
    guards: G,
    share: Share,
}

impl<G> Granted<G> {
    /// Takes the guards, which keep the engine open from then on.
    pub(crate) fn take(self, keeps_open: KeepsOpen<false>) -> G {
        self.share.take(keeps_open);
        self.guards
    }
}

/// The oneshot that delivers guards to a future that acquires variables, with the claim through which the future
/// cancels the operation.
pub(crate) type Acquiring<G> = Oneshot<Granted<G>, Claim>;

/// The oneshot that delivers guards to a future, and the guards between the start of the operation and the delivery.
struct ForFuture<G> {
    granted: Option<Granted<G>>,
    acquiring: Option<Arc<Acquiring<G>>>,
}

impl<G: Send + 'static> Sink for ForFuture<G> {
    fn claim(&self) -> Claimed {
        match self.acquiring.as_ref().map(|acquiring| acquiring.beside().start()) {
            Some(Err(_)) => Claimed::PassedOver,
            _ => Claimed::Run,
        }
    }

    /// Delivers the guards here rather than at the start, since the wakers must run after the operations that became
    /// ready have been dispatched.
    fn started(&mut self) -> Cleanup {
        match (self.acquiring.take(), self.granted.take()) {
            (Some(acquiring), Some(granted)) => Cleanup::new(acquiring.set(Ok(granted)), acquiring),
            _ => Cleanup::default(),
        }
    }

    /// Reports why the operation was skipped.
    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        match (self.acquiring.take(), result) {
            (Some(acquiring), Err(error)) => Cleanup::new(acquiring.set(Err(error.clone())), acquiring),
            _ => Cleanup::default(),
        }
    }
}

impl Core {
    /// Pushes an operation with these entries. When its turn comes, the operation holds its variables for the guards
    /// returned by `make`.
    pub(crate) fn begin_acquire<G: Send + 'static>(
        self: &Arc<Self>,
        location: &'static Location<'static>,
        entries: &mut [Entry],
        make: impl FnOnce(&Share) -> G + Send + 'static,
    ) -> Result<Arc<Acquiring<G>>, WaitError> {
        if self.is_forked() {
            return Err(PushError::Forked.into());
        }
        if entries.iter().any(|entry| frame::holds(VarCell::queue_ptr(entry.cell))) {
            return Err(WaitError::WouldDeadlock(Deadlock::default()));
        }
        let acquiring = Oneshot::with(Claim::default());
        let mut spec = Spec::new(Name::from("acquire"));
        // The operation needs no worker and takes no time on the thread that makes it ready. Its push is never held
        // back, since the call must not block.
        spec.flags |= flag::INLINE | flag::ASYNC;
        spec.is_admitted = true;
        let start = |cx: &Call<'_>, sink: &mut ForFuture<G>| {
            if let Some(right) = cx.take_right() {
                let share = Share::new(right, cx.core());
                sink.granted = Some(Granted { guards: make(&share), share });
            }
            Ok(())
        };
        let sink = ForFuture { granted: None, acquiring: Some(Arc::clone(&acquiring)) };
        self.push(&spec, location, entries, ErasedJob::new(FnJob::with(sink, start)))?;
        Ok(acquiring)
    }
}
