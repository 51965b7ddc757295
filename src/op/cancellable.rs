//! The state through which a handle can cancel its operation: the claim and the function.
//!
//! # States
//!
//! 1. *Pushed*: the function is present, and the [`Claim`] is pending.
//! 2. *Claimed*: the owner of the ready operation takes the function, and calls or drops it. The thread that ends the
//!    operation sets the oneshot once the operation is complete.
//! 3. *Cancelled* instead: the canceller closes the value of a conflating operator's run, sets the oneshot immediately
//!    and drops the function. The operation stays in the queues until its turn comes, and then fails with the same
//!    failure or, if it was cancelled quietly, changes nothing.
//!
//! A canceller that comes after the claim asks the operation to stop: it records this in the [`Claim`] and gives the
//! operation's [signal](crate::notify::stop_signal), if anything listens to it.
//!
//! # Who may touch what
//!
//! * The function: the thread that wins the claim. If that is a waiter that comes too late to take the operation from
//!   its queue, it leaves the function to the worker that popped the operation.
//! * The failure: created under its lock by the first thread that needs it. A canceller creates it before trying to
//!   claim the operation.
//!
//! # Edges
//!
//! [`publish`](crate::sync::edge::publish), [`cleared`](crate::sync::edge::cleared).

use std::{panic::Location, ptr::NonNull, sync::Arc};

use crate::{
    error::{
        deadlock::Pushed,
        failures::Failures,
        op::{Cause, OpError},
    },
    notify::{
        claim::{Cancel, Claim},
        oneshot::Oneshot,
        stop_signal::{StopSignal, StopSource},
    },
    op::conflation::Closer,
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicBool, AtomicPtr, AtomicU8},
        cell::UnsafeCell,
        edge::{self, acquire, release, removed, step},
        lock,
    },
    trace::observer::ObservedAccess,
    values::Name,
};

/// The function of a cancellable operation. The head of this module states which thread may call it, at most once, or
/// drop it uncalled.
pub struct Cancellable<F: ?Sized> {
    claim: Claim,
    /// What most operations do not need, once it has been created.
    rare: Mutex<Option<Box<Rare>>>,
    name: Name,
    location: &'static Location<'static>,
    place: WaitersPlace,
    /// Whether the canceller has dropped the function.
    is_cleared: AtomicBool,
    f: UnsafeCell<F>,
}

/// What a [`Cancellable`] has if a failure or a signal was needed.
#[derive(Default)]
struct Rare {
    /// The failure with which the operation fails if it is cancelled.
    failure: Option<OpError>,
    /// Asks the started operation to stop.
    stop: StopSource,
    /// Called when the operation is cancelled, once its function has been dropped.
    withdraw: Option<Box<dyn FnOnce() + Send>>,
    /// What closes the value of a conflating operator's run.
    closer: Option<Closer>,
    /// The operation's accesses with their places, once it has started on an engine with a log.
    places: Vec<ObservedAccess>,
}

/// The place where waiters find a queued operation. It contains only atomics, since a waiter may free it as soon as
/// `op` is stored.
#[derive(Debug, Default)]
pub struct WaitersPlace {
    /// The operation's record, once the operation enters a queue.
    op: AtomicPtr<()>,
    /// The lane of that queue.
    lane: AtomicU8,
    /// The task of the operation, or null. The pointer is only compared.
    task: AtomicPtr<()>,
    /// The task of the operation that keeps this one from entering a queue, or null. The pointer is only compared.
    kept_out_by: AtomicPtr<()>,
}

impl WaitersPlace {
    /// Records that the operation at `op` is entering a queue of `lane`.
    pub fn publish(&self, op: NonNull<()>, lane: u8) {
        // Relaxed: published with the pointer.
        self.lane.store(lane, Relaxed);
        self.op.store(op.as_ptr(), release(edge::publish::PUBLISHED));
    }

    /// Records the operation's task.
    pub(super) fn set_task(&self, task: NonNull<()>) {
        // Relaxed: set before the push returns the handle, and passing the handle to another thread orders the store.
        self.task.store(task.as_ptr(), Relaxed);
    }

    /// Returns the pointer to the operation's task, which identifies the operation until completion.
    pub(crate) fn task(&self) -> Option<NonNull<()>> {
        // Relaxed: set before the push returned the handle.
        NonNull::new(self.task.load(Relaxed))
    }

    /// Records that the operation with the task `by` keeps this one from entering a queue.
    pub(crate) fn keep_out(&self, by: NonNull<()>) {
        // Relaxed: set before the push returns the handle, and passing the handle to another thread orders the store.
        self.kept_out_by.store(by.as_ptr(), Relaxed);
    }

    /// Records that no operation keeps this one from entering a queue any longer.
    pub(crate) fn let_go(&self) {
        // Relaxed: see `is_kept_out_by`.
        self.kept_out_by.store(std::ptr::null_mut(), Relaxed);
    }

    /// Returns the atomic that contains a pointer to the task of the operation that keeps this one from entering a
    /// queue, or null if there is none. The pointer in it may only be compared.
    pub(crate) fn kept_out_by(&self) -> &AtomicPtr<()> {
        &self.kept_out_by
    }

    /// Whether an operation keeps this one from entering a queue.
    pub(super) fn is_kept_out(&self) -> bool {
        // Relaxed: see `is_kept_out_by`.
        !self.kept_out_by.load(Relaxed).is_null()
    }

    /// Whether the operation with the task `by` keeps this one from entering a queue.
    pub(crate) fn is_kept_out_by(&self, by: NonNull<()>) -> bool {
        // Relaxed: the value is exact inside the work that holds the operation back. It is also exact inside operations
        // released together with this one, since they enter their queues only after `let_go` has been called for all of
        // them. Other threads may read an earlier value, but they do not run inside the operation that this value
        // identifies.
        self.kept_out_by.load(Relaxed) == by.as_ptr()
    }
}

// SAFETY: only the thread that has won the claim uses `f`, and the other fields are `Sync`.
unsafe impl<F: Send + ?Sized> Sync for Cancellable<F> {}

impl<F: ?Sized> std::fmt::Debug for Cancellable<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cancellable").field("name", &self.name).field("claim", &self.claim).finish_non_exhaustive()
    }
}

impl<F> Cancellable<Option<F>> {
    /// Creates the state that the operation `name`, pushed at `location`, shares with its handle.
    pub fn new(claim: Claim, name: Name, location: &'static Location<'static>, f: F) -> Self {
        Self {
            claim,
            rare: Mutex::new(None),
            name,
            location,
            place: WaitersPlace::default(),
            is_cleared: AtomicBool::new(false),
            f: UnsafeCell::new(Some(f)),
        }
    }

    /// Takes the function.
    ///
    /// # Safety
    /// 1. The calling thread has won the claim.
    pub(crate) unsafe fn take(&self) -> Option<F> {
        // SAFETY: (1) makes this thread the only user of the field.
        self.f.with_mut(|f| unsafe { &mut *f }.take())
    }
}

/// The type-erased function of an operation with a handle.
pub trait Function: Send {
    /// Drops the function.
    fn clear(&mut self);
}

impl<F: Send> Function for Option<F> {
    fn clear(&mut self) {
        *self = None;
    }
}

/// The state that an operation shares with its handle.
pub(crate) type Handled<R> = Oneshot<R, Cancellable<dyn Function>>;

impl<F: ?Sized> Cancellable<F> {
    /// Returns the claim on the operation.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Returns the operation's name and where it was pushed.
    pub(crate) fn pushed(&self) -> Pushed {
        (self.name.clone(), self.location)
    }

    /// Sets the operation's accesses with their places, as it starts on an engine with a log.
    pub(crate) fn set_places(&self, places: Vec<ObservedAccess>) {
        lock(&self.rare).get_or_insert_default().places = places;
    }

    /// Returns what [`set_places`](Self::set_places) has set, if it has.
    pub(crate) fn places(&self) -> Option<Vec<ObservedAccess>> {
        lock(&self.rare).as_ref().map(|rare| rare.places.clone()).filter(|places| !places.is_empty())
    }

    /// Sets what [`forgo`](Self::forgo) closes. Called before the push.
    pub fn set_closer(&self, closer: Closer) {
        lock(&self.rare).get_or_insert_default().closer = Some(closer);
    }

    /// Closes the value of the operation, which will not start, if it is a conflating operator's run. Called before
    /// anyone can see this.
    pub(super) fn forgo(&self) {
        if removed(step::FORGO_BEFORE_TELLING) {
            return;
        }
        lock(&self.rare).iter().filter_map(|rare| rare.closer.as_ref()).for_each(Closer::close);
    }

    /// Returns the failure with which the operation fails if it is cancelled.
    pub(crate) fn failure(&self) -> OpError {
        let new = || OpError::new(&self.name, self.location, Cause::Cancelled, None);
        lock(&self.rare).get_or_insert_default().failure.get_or_insert_with(new).clone()
    }
}

impl<F: ?Sized> Cancellable<F> {
    /// Returns where waiters find the operation.
    pub fn place(&self) -> &WaitersPlace {
        &self.place
    }

    /// Claims the operation, if it is in a queue of `lane`, or about to enter one, and has neither started nor been
    /// cancelled. Returns the operation's record, which only a caller that was pinned before the call may use.
    pub fn claim_ready(&self, lane: u8) -> Option<NonNull<()>> {
        let op = NonNull::new(self.place.op.load(acquire(edge::publish::CLAIMED)))?;
        // Relaxed: published with the pointer.
        let serves_it = self.place.lane.load(Relaxed) == lane;
        (serves_it && (removed(step::TAKE_CLAIMS) || self.claim.start_first())).then_some(op)
    }
}

impl Cancellable<dyn Function> {
    /// Returns the signal by which the started operation is asked to stop.
    pub fn stop_signal(&self) -> Arc<StopSignal> {
        lock(&self.rare).get_or_insert_default().stop.signal(|| self.claim.is_stopping())
    }

    /// Registers `withdraw` to be called when the operation is cancelled. An earlier cancellation does not cause it to
    /// be called; only [`Claim::is_cancelled`] reports it.
    pub(crate) fn when_cancelled(&self, withdraw: impl FnOnce() + Send + 'static) {
        lock(&self.rare).get_or_insert_default().withdraw = Some(Box::new(withdraw));
    }

    /// Withdraws the cancelled operation from the queue in which it waits for units, if it does.
    fn withdraw(&self) {
        let withdraw = lock(&self.rare).as_mut().and_then(|rare| rare.withdraw.take());
        withdraw.into_iter().for_each(|withdraw| withdraw());
    }

    /// Cancels the operation if it has neither started nor been cancelled: calls `tell` with the failure and then drops
    /// the function. If the operation has started, asks it to stop. Returns whether this call cancelled the operation.
    pub fn cancel(&self, how: Cancel, failures: &Arc<Failures>, tell: impl FnOnce(OpError)) -> bool {
        let failure = self.failure();
        if !self.claim.cancel(how) {
            if self.claim.is_cancelled() {
                // The earlier canceller may not have done so yet.
                self.forgo();
            }
            let signal = lock(&self.rare).as_ref().and_then(|rare| rare.stop.made());
            signal.iter().for_each(|signal| signal.give());
            return false;
        }
        // SAFETY: (1): this thread has won the claim.
        unsafe { self.end_cancelled(failure, (how == Cancel::Loudly).then_some(failures), tell) };
        true
    }

    /// Tells of the cancellation of the operation, whose failure is recorded in `failures`, and drops its function.
    ///
    /// # Safety
    /// 1. This thread has won the claim.
    unsafe fn end_cancelled(&self, failure: OpError, failures: Option<&Arc<Failures>>, tell: impl FnOnce(OpError)) {
        self.forgo();
        failures.into_iter().for_each(|failures| failure.record(failures));
        tell(failure);
        // SAFETY: (1).
        self.f.with_mut(|f| unsafe { &mut *f }.clear());
        self.is_cleared.store(true, release(edge::cleared::CLEARED));
        self.withdraw();
    }

    /// Cancels the operation loudly if it has neither started nor been cancelled: calls `tell` with the failure and
    /// then drops the function. Returns whether the caller must count the operation out of its scope: either this call
    /// cancelled the operation, or its turn has not come and an earlier call has cancelled it and dropped the function.
    pub fn abandon(&self, failures: &Arc<Failures>, tell: impl FnOnce(OpError)) -> bool {
        let failure = self.failure();
        let is_cleared = self.is_cleared.load(acquire(edge::cleared::ABANDONED)) || removed(step::DROP_BEFORE_END);
        match self.claim.abandon(is_cleared) {
            None => false,
            Some(false) => true,
            Some(true) => {
                // SAFETY: (1): this thread has won the claim.
                unsafe { self.end_cancelled(failure, Some(failures), tell) };
                true
            }
        }
    }
}
