//! The job of an operation with a handle: its function, its result, and its cancellation.
//!
//! The function lies in a [`Cancellable`] beside the oneshot that the handle waits for, so that the handle can drop it.
//!
//! # States
//!
//! 1. *Pushed*: the function is there, and the [`Claim`] is pending.
//! 2. *Claimed*: the thread of the operation takes the function, calls it or drops it, and sets the oneshot when the
//!    operation is complete.
//! 3. *Cancelled*, instead: the canceller sets the oneshot immediately, and drops the function. The operation stays in
//!    the queues until its turn comes. Then it fails with the same failure, or changes nothing.
//!
//! # Who may touch what
//!
//! * The function: the thread that wins the claim.
//! * The failure: made under its lock, by a canceller before it tries to claim the operation.
//!
//! There are no edges here: see the [claim](crate::notify::claim).

use std::{mem::needs_drop, panic::Location, sync::Arc};

use crate::{
    engine::{
        frame::Call,
        spec::Spec,
        task::{Claimed, Cleanup, Job, Task, flag},
    },
    error::{
        failures::Failures,
        op::{Cause, OpError},
    },
    notify::{
        claim::{Cancel, Claim},
        oneshot::Oneshot,
    },
    sync::{Mutex, cell::UnsafeCell, lock},
    values::name::Name,
};

/// The function of an operation that can be cancelled. It is called once, dropped once, and only by the thread that
/// wins the claim.
pub(crate) struct Cancellable<F: ?Sized> {
    claim: Claim,
    /// With which the operation fails if it is cancelled.
    failure: Mutex<Option<OpError>>,
    name: Name,
    location: &'static Location<'static>,
    f: UnsafeCell<F>,
}

// SAFETY: only the thread that has won the claim uses `f`, and the other fields are `Sync`.
unsafe impl<F: Send + ?Sized> Sync for Cancellable<F> {}

impl<F> Cancellable<Option<F>> {
    pub(crate) fn new(claim: Claim, name: Name, location: &'static Location<'static>, f: F) -> Self {
        Self { claim, failure: Mutex::new(None), name, location, f: UnsafeCell::new(Some(f)) }
    }

    /// The function of a run of an operation with these properties, pushed at `location`. A clean-up cannot be
    /// cancelled.
    pub(crate) fn of(spec: &Spec, location: &'static Location<'static>, f: F) -> Self {
        let claim = if spec.flags & flag::KEPT == 0 { Claim::default() } else { Claim::started() };
        Self::new(claim, spec.name.clone(), location, f)
    }

    /// Takes the function.
    ///
    /// # Safety
    /// 1. The calling thread has won the claim.
    unsafe fn take(&self) -> Option<F> {
        // SAFETY: (1) makes this thread the only user of the field.
        self.f.with_mut(|f| unsafe { &mut *f }.take())
    }
}

/// The function of an operation with a handle, of any type.
pub(crate) trait Function: Send {
    /// Drops the function.
    fn clear(&mut self);
}

impl<F: Send> Function for Option<F> {
    fn clear(&mut self) {
        *self = None;
    }
}

/// What the handle of an operation shares with it.
pub(crate) type Handled<R> = Oneshot<R, Cancellable<dyn Function>>;

impl<F: ?Sized> Cancellable<F> {
    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Returns the failure of the operation if it is cancelled.
    fn failure(&self) -> OpError {
        let new = || OpError::new(&self.name, self.location, Cause::Cancelled, None);
        lock(&self.failure).get_or_insert_with(new).clone()
    }
}

impl Cancellable<dyn Function> {
    /// Cancels the operation if it has not started, and calls `tell` with its failure. Then drops the function. Returns
    /// whether the operation is cancelled by this call.
    pub(crate) fn cancel(&self, how: Cancel, failures: &Arc<Failures>, tell: impl FnOnce(OpError)) -> bool {
        let failure = self.failure();
        if !self.claim.cancel(how) {
            return false;
        }
        if how == Cancel::Loudly {
            failure.record(failures);
        }
        tell(failure);
        // SAFETY: this thread has won the claim.
        self.f.with_mut(|f| unsafe { &mut *f }.clear());
        true
    }
}

/// The part of an operation in what it shares with its handle.
struct Shared<F, R>(Option<Arc<Oneshot<R, Cancellable<Option<F>>>>>);

impl<F, R> Shared<F, R> {
    fn claim(&self) -> Claimed {
        let Some(oneshot) = &self.0 else { return Claimed::Run };
        match oneshot.beside().claim.start() {
            Ok(()) => Claimed::Run,
            Err(Cancel::Loudly) => Claimed::Cancelled(oneshot.beside().failure()),
            Err(Cancel::Quietly) => Claimed::PassedOver,
        }
    }

    /// Takes the function, if this thread has won the claim or wins it now.
    fn take_function(&self) -> Option<F> {
        let beside = self.0.as_ref()?.beside();
        beside.claim.start().ok()?;
        // SAFETY: the claim is this operation's, since only its owner calls `start`.
        unsafe { beside.take() }
    }

    /// The failure of the operation if it is cancelled.
    fn failure(&self) -> OpError {
        match &self.0 {
            Some(oneshot) => oneshot.beside().failure(),
            None => unreachable!("the result is set once"),
        }
    }

    /// Sets the result, and returns the clean-up.
    fn set(&mut self, result: Result<R, OpError>) -> Cleanup
    where
        F: Send + 'static,
        R: Send + 'static,
    {
        // A function that was not called is dropped in the epilogue.
        let f = self.take_function();
        let Some(oneshot) = self.0.take() else { return Cleanup::default() };
        let mut cleanup = Cleanup::new(oneshot.set(result), oneshot);
        if let Some(f) = f {
            cleanup.and_drop(f);
        }
        cleanup
    }
}

/// A function with a handle for its result.
pub(crate) struct ResultJob<F, R> {
    value: Option<R>,
    /// Taken by `report`, so that a value without a handle is dropped in the epilogue.
    shared: Shared<F, R>,
}

impl<F, R> ResultJob<F, R> {
    pub(crate) fn new(oneshot: Arc<Oneshot<R, Cancellable<Option<F>>>>) -> Self {
        Self { value: None, shared: Shared(Some(oneshot)) }
    }
}

impl<F, R> Job for ResultJob<F, R>
where
    F: FnOnce(&Call<'_>) -> Result<R, Cause> + Send + 'static,
    R: Send + 'static,
{
    const REPORTS: bool = true;
    const CLAIMS: bool = true;

    fn claim(&mut self, _: &Task) -> Claimed {
        self.shared.claim()
    }

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        if let Some(oneshot) = &self.shared.0 {
            cx.set_claim(&oneshot.beside().claim);
        }
        if let Some(f) = self.shared.take_function() {
            self.value = Some(f(cx)?);
        }
        Ok(())
    }

    fn discard(&mut self) {
        drop(self.shared.take_function());
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        let (result, unwanted) = match (result, self.value.take()) {
            (Ok(()), Some(value)) => (Ok(value), None),
            (Ok(()), None) => (Err(self.shared.failure()), None),
            // A device may fail after the function has returned a value.
            (Err(failure), value) => (Err(failure.clone()), value),
        };
        let mut cleanup = self.shared.set(result);
        if let Some(value) = unwanted.filter(|_| needs_drop::<R>()) {
            cleanup.and_drop(value);
        }
        cleanup
    }
}

/// The function of an asynchronous operation with a handle. The [right](super::right::Right) to the operation tells the
/// handle how it has ended; this job does if the function is not called.
pub(crate) struct AsyncResultJob<F>(Shared<F, ()>);

impl<F> AsyncResultJob<F> {
    pub(crate) fn new(oneshot: Arc<Oneshot<(), Cancellable<Option<F>>>>) -> Self {
        Self(Shared(Some(oneshot)))
    }
}

impl<F> Job for AsyncResultJob<F>
where
    F: FnOnce(&Call<'_>) -> Result<(), Cause> + Send + 'static,
{
    const REPORTS: bool = true;
    const CLAIMS: bool = true;

    fn claim(&mut self, _: &Task) -> Claimed {
        self.0.claim()
    }

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        if let Some(oneshot) = &self.0.0 {
            cx.set_claim(&oneshot.beside().claim);
            let handle = Arc::<Oneshot<_, _>>::clone(oneshot);
            cx.with_right(|right| right.set_handle(handle));
        }
        self.0.take_function().map_or(Ok(()), |f| f(cx))
    }

    fn discard(&mut self) {
        drop(self.0.take_function());
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        let failure = result.map_or_else(Clone::clone, |()| self.0.failure());
        self.0.set(Err(failure))
    }
}
