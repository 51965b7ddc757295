//! Acquired variables. An operation holds them while the acquiring thread uses them or while guards for them exist.
//!
//! # States
//!
//! 1. *Pushed*: the operation's record contains the oneshot ([`Delivery`]), and the operation's turn has not come.
//! 2. *Granted*: the operation's turn has come, and a [`Granted`] has been put into the oneshot for the waiting thread
//!    or future. The operation holds its variables.
//! 3. *Taken*: the future has taken the guards. A blocked thread uses the [`Granted`] itself.
//! 4. *Released*: the [`Granted`] or the last guard was dropped, and the operation is complete.
//!
//! If the operation is skipped instead, the oneshot receives the failure. If a waiting thread gives up, the operation
//! stays in the queues until its turn comes. The operation's job, by then the last owner of the oneshot, drops the
//! oneshot and the [`Granted`] in it, so no variable is held forever. If a future is dropped before the operation's
//! turn comes, it [cancels](Claim) the operation, which then changes nothing.
//!
//! The guards hold [shares](super::held) of the right to end the operation. An operation for a thread is silent: only
//! [`Granted::mutated`] counts mutations, so none are counted if the thread has given up.
//!
//! # Who may touch what
//!
//! * The job: the thread that starts or skips the operation. Ending a started operation does not touch the job, since
//!   another thread may end the operation while `start` is still running
//!   ([`FnState::MayRun`](crate::context::ready_loop::FnState::MayRun)).
//! * The values: the owner of the [`Granted`] or of a guard, as the accesses permit.
//!
//! This module has no edges of its own: the oneshot hands over the [`Granted`], along with everything that the queues
//! have handed over.

use std::{panic::Location, ptr::NonNull, sync::Arc, time::Instant};

use crate::{
    engine::{core::Core, keeps_open::KeepsOpen},
    error::{deadlock::Deadlock, op::OpError, wait::WaitError},
    future::held::Share,
    notify::{claim::Claim, oneshot::Oneshot},
    op::{
        frame::{self, Call, Holds},
        job::{FnJob, Sink},
        spec::{Entry, Spec},
        task::{Claimed, ErasedJob, Remainder, flag},
        variable::VarCell,
    },
    tracker::Mode,
    values::Name,
    wait::{self, cycles::Target},
};

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

    /// Calls `f`, program code that uses the variables.
    pub(crate) fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        frame::enter(self.share.core(), self.share.op(), Holds::AcquiredVariables, |_| f())
    }

    /// Counts one mutation of each variable that the operation mutates, and publishes the values of those that do so.
    pub(crate) fn mutated(&self) {
        for access in self.share.op().accesses().filter(|access| access.mode().is_write()) {
            if VarCell::of(access).is_published() {
                // SAFETY: the operation holds the variable for writing until `self` is dropped.
                self.enter(|| unsafe { VarCell::of(access).publish() });
            }
            // SAFETY: the operation holds the variable for writing until `self` is dropped.
            unsafe { VarCell::of(access).mutated() };
        }
    }
}

/// The right of a blocked thread to use the variables of an operation whose turn has come. Dropping it releases the
/// variables.
pub(crate) type Acquired = Granted<()>;

/// The oneshot that delivers guards to a future or a thread that acquires variables, with the claim through which a
/// future cancels the operation.
pub(crate) type Acquiring<G> = Oneshot<Granted<G>, Claim>;

/// Where an operation that acquires its variables delivers its guards: the oneshot, and the guards between the start of
/// the operation and the delivery.
struct Delivery<G> {
    granted: Option<Granted<G>>,
    acquiring: Option<Arc<Acquiring<G>>>,
}

impl<G: Send + 'static> Sink for Delivery<G> {
    fn claim(&self) -> Claimed {
        match self.acquiring.as_ref().map(|acquiring| acquiring.beside().start()) {
            Some(Err(_)) => Claimed::PassedOver,
            _ => Claimed::Run,
        }
    }

    /// Delivers the guards here rather than at the start, since the wakers must run after the operations that became
    /// ready have been dispatched.
    fn started(&mut self) -> Remainder {
        match (self.acquiring.take(), self.granted.take()) {
            (Some(acquiring), Some(granted)) => Remainder::new(acquiring.set(Ok(granted)), acquiring),
            _ => Remainder::default(),
        }
    }

    /// Reports why the operation was skipped.
    fn report(&mut self, result: Result<(), &OpError>) -> Remainder {
        match (self.acquiring.take(), result) {
            (Some(acquiring), Err(error)) => Remainder::new(acquiring.set(Err(error.clone())), acquiring),
            _ => Remainder::default(),
        }
    }
}

/// Creates the job of an operation that acquires its variables and makes guards for them with `make`, and the oneshot
/// that delivers these.
fn acquire_job<G: Send + 'static>(make: impl FnOnce(&Share) -> G + Send + 'static) -> (ErasedJob, Arc<Acquiring<G>>) {
    let acquiring = Oneshot::with(Claim::default());
    let start = |call: &Call<'_>, delivery: &mut Delivery<G>| {
        if let Some(right) = call.take_right() {
            let share = Share::new(right, call.core());
            delivery.granted = Some(Granted { guards: make(&share), share });
        }
        Ok(())
    };
    let delivery = Delivery { granted: None, acquiring: Some(Arc::clone(&acquiring)) };
    (ErasedJob::new(FnJob::with(delivery, start)), acquiring)
}

/// Pushes an operation with this entry and waits until the operation may run or `deadline` has passed. If the
/// operation may run, it holds the variable until the returned value is dropped.
pub(crate) fn acquire(
    core: &Arc<Core>,
    name: &'static str,
    location: &'static Location<'static>,
    entry: Entry,
    deadline: Option<Instant>,
) -> Result<Acquired, WaitError> {
    // Like the operation of a wait, this one needs no worker and takes no time on the thread that finds it ready.
    let spec = Spec::internal(name, 0, flag::INLINE | flag::ASYNC | flag::SILENT);
    // SAFETY: the caller has a handle to the variable.
    let cell = unsafe { entry.cell.as_ref() };
    core.check_variable(cell, &spec.name, location)?;
    let entries = [entry];
    let (job, acquiring) = acquire_job(|_: &Share| ());
    let op = core.create(&spec, 0, location, &entries, job)?;
    let task = NonNull::from(op.task()).cast();
    core.enqueue(op).map_err(|rejected| rejected.into_error(&spec.name, location, &entries))?;
    let target = Target { task, kept_out_by: None, describe: &|| cell.awaited() };
    wait::wait_by(core, &acquiring, Some(target), deadline, Oneshot::wait)
}

/// Pushes an operation with these entries. When its turn comes, the operation holds its variables for the guards
/// returned by `make`.
pub(crate) fn begin_acquire<G: Send + 'static>(
    core: &Arc<Core>,
    location: &'static Location<'static>,
    entries: &mut [Entry],
    make: impl FnOnce(&Share) -> G + Send + 'static,
) -> Result<Arc<Acquiring<G>>, WaitError> {
    core.live()?;
    if entries.iter().any(|entry| frame::holds(VarCell::queue_ptr(entry.cell))) {
        return Err(WaitError::WouldDeadlock(Deadlock::default()));
    }
    let mut spec = Spec::new(Name::from("acquire"));
    // The operation needs no worker and takes no time on the thread that makes it ready. Its push is never held
    // back, since the call must not block.
    spec.flags |= flag::INLINE | flag::ASYNC;
    // An inline operation does not wait for turns, so guards keep the order.
    let commuting = entries.iter_mut().filter(|entry| entry.mode == Mode::Commute);
    commuting.for_each(|entry| entry.mode = Mode::Write);
    spec.is_admitted = true;
    let (job, acquiring) = acquire_job(make);
    core.push(&spec, location, entries, job)?;
    Ok(acquiring)
}
