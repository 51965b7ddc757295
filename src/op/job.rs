//! The two types of jobs: what an operation calls, and where its result goes.
//!
//! An [`FnJob`] has its function in the record, and a [`Sink`] for the result; a [`HandleJob`] has both in the state
//! that it shares with the operation's handle, since a cancellation drops the function. What counts or cancels the
//! operation besides its handle is in its [`Limits`](super::limits::Limits).

use std::{mem::needs_drop, panic::Location, ptr::NonNull, sync::Arc};

use crate::{
    error::op::{Cause, OpError},
    notify::{claim::Claim, oneshot::Oneshot},
    op::{
        cancellable::Cancellable,
        conflation::{Close, Closer},
        frame::Call,
        spec::Spec,
        task::{Beside, Claimed, Job, Remainder, flag},
    },
};

// ------------------------------------------------------------------------------------------------- a function ----

/// Where the result of a function in an operation's record goes.
pub(crate) trait Sink: Send + 'static {
    /// [`Job::REPORTS`].
    const REPORTS: bool = true;
    /// [`Job::FORGOES`].
    const FORGOES: bool = false;
    /// [`Job::forgo`].
    fn forgo(&self) {}
    /// [`Job::claim`].
    fn claim(&self) -> Claimed {
        Claimed::Run
    }
    /// [`Job::started`].
    fn started(&mut self) -> Remainder {
        Remainder::default()
    }
    /// [`Job::report`].
    fn report(&mut self, result: Result<(), &OpError>) -> Remainder;
}

impl Sink for () {
    const REPORTS: bool = false;
    fn report(&mut self, _result: Result<(), &OpError>) -> Remainder {
        Remainder::default()
    }
}

/// The sink of an operator's run, which closes the run's value if the run does not start.
pub(crate) struct Closes<C>(C);

impl<C: Close> Sink for Closes<C> {
    const REPORTS: bool = false;
    const FORGOES: bool = C::CLOSES;
    fn forgo(&self) {
        self.0.closer().into_iter().for_each(Closer::close);
    }
    fn report(&mut self, _result: Result<(), &OpError>) -> Remainder {
        Remainder::default()
    }
}

/// What the function leaves in this sink is dropped in the epilogue, since its drop may run program code.
impl<T: Send + 'static> Sink for Option<T> {
    fn report(&mut self, _result: Result<(), &OpError>) -> Remainder {
        let mut remainder = Remainder::default();
        self.take().into_iter().for_each(|left| remainder.and_drop(left));
        remainder
    }
}

/// The job of an operation without a handle.
pub(crate) struct FnJob<F, S = ()> {
    f: Option<F>,
    sink: S,
}

impl<F, S: Sink> FnJob<F, S>
where
    F: FnOnce(&Call<'_>, &mut S) -> Result<(), Cause> + Send + 'static,
{
    pub(crate) fn with(sink: S, f: F) -> Self {
        Self { f: Some(f), sink }
    }
}

/// Creates the job of an operation whose result goes nowhere but to its variables.
#[inline(always)]
pub(crate) fn without_sink(f: impl FnOnce(&Call<'_>) -> Result<(), Cause> + Send + 'static) -> impl Job {
    FnJob::with((), move |call: &Call<'_>, (): &mut ()| f(call))
}

/// [`without_sink`] for an operator's run.
#[inline(always)]
pub(crate) fn closing<C: Close>(
    closer: C,
    f: impl FnOnce(&Call<'_>) -> Result<(), Cause> + Send + 'static,
) -> impl Job {
    FnJob::with(Closes(closer), move |call: &Call<'_>, _: &mut Closes<C>| f(call))
}

impl<F, S: Sink> Job for FnJob<F, S>
where
    F: FnOnce(&Call<'_>, &mut S) -> Result<(), Cause> + Send + 'static,
{
    const REPORTS: bool = S::REPORTS;
    const FORGOES: bool = S::FORGOES;

    fn forgo(&self) {
        self.sink.forgo();
    }

    fn claim(&self) -> Claimed {
        self.sink.claim()
    }

    #[inline]
    unsafe fn start(this: *mut Self, call: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: (1): no other thread uses the job.
        let this = unsafe { &mut *this };
        match this.f.take() {
            Some(f) => f(call, &mut this.sink),
            None => Ok(()),
        }
    }

    fn started(&mut self) -> Remainder {
        self.sink.started()
    }

    fn discard(&mut self) {
        self.f = None;
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Remainder {
        self.sink.report(result)
    }
}

// ----------------------------------------------------------------------------------------------- a completion ----

/// The job of an operation that ends with its completion.
pub(crate) struct Asynchronous<J>(pub(crate) J);

impl<J: Job> Job for Asynchronous<J> {
    const ASYNC: bool = true;
    const REPORTS: bool = J::REPORTS;
    const ENDS_EARLY: bool = J::ENDS_EARLY;
    const FORGOES: bool = J::FORGOES;

    fn forgo(&self) {
        self.0.forgo();
    }

    fn claim(&self) -> Claimed {
        self.0.claim()
    }

    fn beside(&self) -> Option<&Beside> {
        self.0.beside()
    }

    #[inline]
    unsafe fn start(this: *mut Self, call: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: (1): only the address of the field is computed, and the conditions of its `start` are the same.
        unsafe { J::start(&raw mut (*this).0, call) }
    }

    fn started(&mut self) -> Remainder {
        self.0.started()
    }

    fn discard(&mut self) {
        self.0.discard();
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Remainder {
        self.0.report(result)
    }
}

// --------------------------------------------------------------------------------------------------- a handle ----

/// Where the function of an operation with a handle stores the result's value.
pub(crate) struct Out<R>(NonNull<Option<R>>);

// SAFETY: `Out` is the only way to the value while the operation has not ended.
unsafe impl<R: Send> Send for Out<R> {}

impl<R> Out<R> {
    /// Stores the value.
    ///
    /// # Safety
    /// 1. The operation has started and has not ended.
    #[inline(always)]
    pub(crate) unsafe fn set(&mut self, value: R) {
        // SAFETY: (1): the job is in the operation's record, and only this `Out` uses its value before the operation
        // ends.
        unsafe { *self.0.as_mut() = Some(value) };
    }
}

/// The state that an operation shares with its handle.
pub(crate) type Shared<F, R> = Arc<Oneshot<R, Cancellable<Option<F>>>>;

/// Creates the state that an operation with these properties, pushed at `location`, shares with its handle. If the
/// operation is a [clean-up](crate::OpBuilder::cleanup), its claim is already started, so it cannot be cancelled.
#[inline(always)]
pub(crate) fn shared<F, R>(spec: &Spec, location: &'static Location<'static>, f: F) -> Shared<F, R> {
    let claim = if spec.flags & flag::KEPT == 0 { Claim::default() } else { Claim::started() };
    Oneshot::with(Cancellable::new(claim, spec.name.clone(), location, f))
}

/// Returns the function of a [`HandleJob`] that stores what `f` returns.
#[inline(always)]
pub(crate) fn returning<R>(
    f: impl FnOnce(&Call<'_>) -> Result<R, Cause>,
) -> impl FnOnce(&Call<'_>, Out<R>) -> Result<(), Cause> {
    move |call, mut out| {
        let value = f(call)?;
        // SAFETY: (1): the operation ends when this function has returned.
        unsafe { out.set(value) };
        Ok(())
    }
}

/// Returns the function of a [`HandleJob`] whose operation ends with its completion.
pub(crate) fn completing(
    f: impl FnOnce(&Call<'_>) -> Result<(), Cause>,
) -> impl FnOnce(&Call<'_>, Out<()>) -> Result<(), Cause> {
    move |call, mut out| {
        // SAFETY: (1): `f` has not received the completion yet.
        unsafe { out.set(()) };
        f(call)
    }
}

/// The job of an operation with a handle to its result. The function is [beside](Cancellable) the oneshot for which the
/// handle waits. The job takes it when the operation starts, and sets the oneshot when the operation is complete.
pub(crate) struct HandleJob<F, R> {
    /// Used by the function's [`Out`], and then by the thread that ends the operation.
    value: Option<R>,
    /// Taken by `report`, so that a value without a handle is dropped in the epilogue.
    shared: Option<Shared<F, R>>,
}

impl<F, R> HandleJob<F, R> {
    pub(crate) fn new(shared: Shared<F, R>) -> Self {
        Self { value: None, shared: Some(shared) }
    }

    /// Takes the function if this thread has already won the claim or wins it now.
    fn take_function(shared: &Oneshot<R, Cancellable<Option<F>>>) -> Option<F> {
        shared.beside().claim().start().ok()?;
        // SAFETY: this thread has won the claim: only the owner of the operation calls `start`, which has succeeded.
        unsafe { shared.beside().take() }
    }
}

impl<F, R> Job for HandleJob<F, R>
where
    F: FnOnce(&Call<'_>, Out<R>) -> Result<(), Cause> + Send + 'static,
    R: Send + 'static,
{
    const REPORTS: bool = true;
    const ENDS_EARLY: bool = true;
    const FORGOES: bool = true;

    fn forgo(&self) {
        self.shared.iter().for_each(|shared| shared.beside().forgo());
    }

    fn beside(&self) -> Option<&Beside> {
        self.shared.as_ref().map(|shared| shared.beside() as &Beside)
    }

    unsafe fn start(this: *mut Self, call: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: (1): no thread has ended the operation yet.
        let Some(shared) = (unsafe { &(*this).shared }) else { return Ok(()) };
        // If another thread ends the operation during the call, it takes the job's reference.
        let _kept = call.op().task().has(flag::ASYNC).then(|| Arc::clone(shared));
        let shared = &**shared;
        let Some(f) = Self::take_function(shared) else { return Ok(()) };
        // SAFETY: (1): only the address of the field is computed.
        let value = unsafe { &raw mut (*this).value };
        // SAFETY: the address of a field is not null.
        let out = Out(unsafe { NonNull::new_unchecked(value) });
        call.frame().claimed_by(shared.beside(), || f(call, out))
    }

    fn discard(&mut self) {
        drop(self.shared.as_deref().and_then(Self::take_function));
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Remainder {
        let Some(shared) = self.shared.take() else { return Remainder::default() };
        let (result, unwanted) = match (result, self.value.take()) {
            (Ok(()), Some(value)) => (Ok(value), None),
            (Ok(()), None) => (Err(shared.beside().failure()), None),
            // A value exists if a device failed after the function had returned it, or if dropping a future or one of
            // its guards panicked.
            (Err(failure), value) => (Err(failure.clone()), value),
        };
        // An uncalled function is dropped in the epilogue. There is none if the function has returned a value.
        let f = if result.is_err() { Self::take_function(&shared) } else { None };
        let mut remainder = Remainder::new(shared.set(result), shared);
        if let Some(f) = f {
            remainder.and_drop(f);
        }
        if let Some(value) = unwanted.filter(|_| needs_drop::<R>()) {
            remainder.and_drop(value);
        }
        remainder
    }
}
