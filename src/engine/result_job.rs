//! The jobs of operations with handles.
//!
//! The function is stored [next to](Cancellable) the oneshot that the handle waits for. The job takes that function
//! when the operation starts, and sets the oneshot when the operation is complete, unless the
//! [right](super::right::Right) to end an asynchronous operation does so.

use std::{mem::needs_drop, panic::Location, ptr::NonNull, sync::Arc};

use crate::{
    engine::{
        cancellable::{Cancellable, Place},
        frame::Call,
        spec::Spec,
        task::{Claimed, Cleanup, Job, Task, Work, flag},
    },
    error::op::{Cause, OpError},
    notify::{
        claim::{Cancel, Claim},
        oneshot::Oneshot,
    },
    values::Name,
};

/// Creates the state that an operation with these properties, pushed at `location`, shares with its handle. If the
/// operation is a [clean-up](crate::OpBuilder::cleanup), its claim is already started, so it cannot be cancelled.
pub(crate) fn shared<F, R>(
    spec: &Spec,
    location: &'static Location<'static>,
    f: F,
) -> Arc<Oneshot<R, Cancellable<Option<F>>>> {
    let claim = if spec.flags & flag::KEPT == 0 { Claim::default() } else { Claim::started() };
    Oneshot::with(Cancellable::new(claim, spec.name.clone(), location, f))
}

/// [`shared`] for an operation with no property except this name, which may be empty.
#[inline(always)]
pub(crate) fn shared_plainly<F, R>(
    name: &'static str,
    location: &'static Location<'static>,
    f: F,
) -> Arc<Oneshot<R, Cancellable<Option<F>>>> {
    Oneshot::with(Cancellable::new(Claim::default(), Name::from(name), location, f))
}

/// The operation's reference to the state that it shares with its handle.
pub(super) struct Shared<F, R>(pub(super) Option<Arc<Oneshot<R, Cancellable<Option<F>>>>>);

impl<F, R> Shared<F, R> {
    pub(super) fn claim(&self) -> Claimed {
        let Some(oneshot) = &self.0 else { return Claimed::Run };
        match oneshot.beside().claim().start() {
            Ok(()) => Claimed::Run,
            Err(Cancel::Loudly) => Claimed::Cancelled(oneshot.beside().failure()),
            Err(Cancel::Quietly) => Claimed::PassedOver,
        }
    }

    /// Takes the function if this thread has already won the claim or wins it now.
    pub(super) fn take_function(&self) -> Option<F> {
        let beside = self.0.as_ref()?.beside();
        beside.claim().start().ok()?;
        // SAFETY: this thread has won the claim: only the owner of the operation calls `start`, which has succeeded.
        unsafe { beside.take() }
    }

    /// Returns where waiters find the operation.
    pub(super) fn place(&self) -> Option<NonNull<Place>> {
        self.0.as_ref().map(|oneshot| NonNull::from(oneshot.beside().place()))
    }

    /// Returns the failure with which the operation fails if it is cancelled.
    pub(super) fn failure(&self) -> OpError {
        match &self.0 {
            Some(oneshot) => oneshot.beside().failure(),
            None => unreachable!("the result is set once"),
        }
    }

    /// Sets the result and returns the [`Cleanup`].
    pub(super) fn set(&mut self, result: Result<R, OpError>) -> Cleanup
    where
        F: Send + 'static,
        R: Send + 'static,
    {
        // An uncalled function is dropped in the epilogue. There is none if the function has returned a value.
        let f = if result.is_err() { self.take_function() } else { None };
        let Some(oneshot) = self.0.take() else { return Cleanup::default() };
        let mut cleanup = Cleanup::new(oneshot.set(result), oneshot);
        if let Some(f) = f {
            cleanup.and_drop(f);
        }
        cleanup
    }
}

/// The job of an operation with a handle to its result.
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
}

impl<F, R> Work for ResultJob<F, R>
where
    F: FnOnce(&Call<'_>) -> Result<R, Cause> + Send + 'static,
    R: Send + 'static,
{
    fn claim(&mut self, _: &Task) -> Claimed {
        self.shared.claim()
    }

    fn place(&mut self) -> Option<NonNull<Place>> {
        self.shared.place()
    }

    fn is_abandoned(&self) -> bool {
        self.shared.0.as_ref().is_some_and(|oneshot| oneshot.beside().claim().settle())
    }

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        if let (Some(f), Some(oneshot)) = (self.shared.take_function(), &self.shared.0) {
            self.value = Some(cx.frame().claimed_by(oneshot.beside().claim(), || f(cx))?);
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

/// The job of an asynchronous operation with a handle. If the function is called, the [right](super::right::Right) to
/// end the operation reports the end to the handle; otherwise, this job does.
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
}

impl<F> Work for AsyncResultJob<F>
where
    F: FnOnce(&Call<'_>) -> Result<(), Cause> + Send + 'static,
{
    fn claim(&mut self, _: &Task) -> Claimed {
        self.0.claim()
    }

    fn place_of_handle(&mut self) -> Option<NonNull<Place>> {
        self.0.place()
    }

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        let f = self.0.take_function();
        // From here on, only the right reports to the handle.
        let (Some(f), Some(oneshot)) = (f, self.0.0.take()) else { return Ok(()) };
        let handle = Arc::<Oneshot<_, _>>::clone(&oneshot);
        cx.with_right(|right| right.observers().handle = Some(handle));
        cx.frame().claimed_by(oneshot.beside().claim(), || f(cx))
    }

    fn discard(&mut self) {
        drop(self.0.take_function());
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        if self.0.0.is_none() {
            return Cleanup::default();
        }
        let failure = result.map_or_else(Clone::clone, |()| self.0.failure());
        self.0.set(Err(failure))
    }
}
