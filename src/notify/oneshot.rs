//! A oneshot, which holds the result of an operation until the result is taken.

use std::{
    sync::{Arc, PoisonError},
    task::{Poll, Waker},
    time::Instant,
};

use crate::{
    error::{op::OpError, wait::WaitError},
    notify::wakers::{self, Waiting, WakerKey, Wakers},
    sync::{
        Condvar, Mutex,
        edge::{removed, step},
        lock, wait_until,
    },
};

#[derive(Debug)]
enum OneshotState<R> {
    /// There is no result yet, and no thread has begun to wait for it. The field holds the waiting futures.
    Pending(Waiting),
    /// As `Pending`, but threads may be waiting. A state of its own, since a notification costs a system call even if
    /// no thread is waiting, and a field would make many states larger.
    Awaited(Waiting),
    /// There is no result yet, and nobody will take it. The field says whether a failure set later counts as reported.
    Unwanted(bool),
    Done(Result<R, OpError>),
    Taken,
}

impl<R> OneshotState<R> {
    fn is_pending(&self) -> bool {
        matches!(self, Self::Pending(_) | Self::Awaited(_))
    }

    /// Records that a thread is about to wait.
    fn expect_sleepers(&mut self) {
        if let Self::Pending(waiting) = self {
            *self = Self::Awaited(std::mem::take(waiting));
        }
    }

    /// Applies `get` to the state, or returns the waiting futures if the state is pending.
    fn ready(&mut self, get: Get<R>) -> Result<Result<R, NoValue>, &mut Waiting> {
        match self {
            Self::Pending(waiting) | Self::Awaited(waiting) => Err(waiting),
            done => Ok(get(done)),
        }
    }

    fn take(&mut self) -> Result<R, NoValue> {
        match std::mem::replace(self, Self::Taken) {
            Self::Done(result) => result.map_err(NoValue::Failed),
            Self::Taken | Self::Unwanted(_) => Err(NoValue::Taken),
            Self::Pending(_) | Self::Awaited(_) => unreachable!("called only when there is a result"),
        }
    }
}

impl OneshotState<()> {
    fn share(&mut self) -> Result<(), NoValue> {
        match self {
            Self::Done(result) => result.clone().map_err(NoValue::Failed),
            Self::Taken | Self::Unwanted(_) => Err(NoValue::Taken),
            Self::Pending(_) | Self::Awaited(_) => unreachable!("called only when there is a result"),
        }
    }
}

/// A function that takes or copies the result from a state that is not pending.
type Get<R> = fn(&mut OneshotState<R>) -> Result<R, NoValue>;

/// Why there is no value. The reason becomes a `WaitError` only after the lock is released: the conversion marks the
/// failure as reported, which may drop other failures and so run program code.
enum NoValue {
    Failed(OpError),
    Taken,
}

impl From<NoValue> for WaitError {
    fn from(reason: NoValue) -> Self {
        match reason {
            NoValue::Failed(failure) => failure.into(),
            NoValue::Taken => Self::ValueTaken,
        }
    }
}

/// What [`Oneshot::set`] returns: the wakers of the waiting futures, or the result, if nobody will take it.
pub type Set<R> = Result<Option<Wakers>, Result<R, OpError>>;

/// A result that is set once, and either taken once or [shared](Oneshot::wait_shared) by all waiters. A `T` is stored
/// beside it in the same allocation.
#[derive(Debug)]
pub struct Oneshot<R, T: ?Sized = ()> {
    state: Mutex<OneshotState<R>>,
    done: Condvar,
    beside: T,
}

impl<R> Oneshot<R> {
    /// Creates a oneshot without a result.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with(())
    }
}

impl<R, T> Oneshot<R, T> {
    /// Creates a oneshot without a result, with `beside` in the same allocation.
    #[must_use]
    pub fn with(beside: T) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(OneshotState::Pending(Waiting::default())), done: Condvar::new(), beside })
    }

    /// Returns the result if it has been set and not taken.
    pub fn into_result(self) -> Option<Result<R, OpError>> {
        match self.state.into_inner().unwrap_or_else(PoisonError::into_inner) {
            OneshotState::Done(result) => Some(result),
            _ => None,
        }
    }
}

impl<R, T: ?Sized> Oneshot<R, T> {
    /// Returns the `T` beside the result.
    pub fn beside(&self) -> &T {
        &self.beside
    }

    /// Sets the result, wakes the waiting threads, and returns the wakers of the waiting futures.
    ///
    /// # Errors
    /// Returns `result`, which the caller must drop, if a result was set before or nobody [wants](Self::give_up) one.
    pub fn set(&self, result: Result<R, OpError>) -> Set<R> {
        let mut state = lock(&self.state);
        let is_awaited = matches!(*state, OneshotState::Awaited(_));
        let wakers = match &mut *state {
            OneshotState::Pending(waiting) | OneshotState::Awaited(waiting) => waiting.take_up_to(u64::MAX),
            unwanted => {
                let is_ignored = matches!(unwanted, OneshotState::Unwanted(true));
                if !matches!(unwanted, OneshotState::Done(_)) {
                    *unwanted = OneshotState::Taken;
                }
                drop(state);
                if let (true, Err(failure)) = (is_ignored, &result) {
                    failure.mark_reported();
                }
                return Err(result);
            }
        };
        *state = OneshotState::Done(result);
        drop(state);
        if is_awaited && !removed(step::RESULT_WAKES_THREADS) {
            self.done.notify_all();
        }
        Ok(wakers)
    }

    /// Records that nobody will take the result. If `is_ignored`, a failure set later counts as reported. Returns the
    /// result if it was set before and has not been taken.
    pub fn give_up(&self, is_ignored: bool) -> Option<Result<R, OpError>> {
        let mut state = lock(&self.state);
        let after = match &*state {
            OneshotState::Done(_) | OneshotState::Taken => OneshotState::Taken,
            OneshotState::Unwanted(true) => return None,
            _ => OneshotState::Unwanted(is_ignored),
        };
        let before = std::mem::replace(&mut *state, after);
        // The lock is released before the wakers in the old state are dropped, since their drops may run program code.
        drop(state);
        if let OneshotState::Done(result) = before { Some(result) } else { None }
    }

    /// Whether the result was set, even if it has since been taken.
    pub fn is_done(&self) -> bool {
        matches!(*lock(&self.state), OneshotState::Done(_) | OneshotState::Taken)
    }

    /// Takes the result if it has been set, or returns that it was taken or is no longer wanted. Returns `None` if the
    /// result has yet to be set.
    pub fn take(&self) -> Option<Result<R, WaitError>> {
        let mut state = lock(&self.state);
        if state.is_pending() {
            return None;
        }
        let result = state.take();
        drop(state);
        Some(result.map_err(WaitError::from))
    }

    /// [Takes](Self::take) the result, without the lock if there is no other reference to the oneshot. Models always
    /// lock, since they do not see what the count of references orders.
    pub fn take_from(this: &mut Arc<Self>) -> Option<Result<R, WaitError>> {
        match Arc::get_mut(this) {
            Some(oneshot) if !cfg!(any(raddle_loom, raddle_shuttle)) => {
                let state = oneshot.state.get_mut().unwrap_or_else(PoisonError::into_inner);
                (!state.is_pending()).then(|| state.take().map_err(WaitError::from))
            }
            _ => this.take(),
        }
    }

    /// Takes the result, waiting for it until `deadline` at the latest.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<R, WaitError> {
        self.wait_for(deadline, OneshotState::take)
    }

    fn wait_for(&self, deadline: Option<Instant>, get: Get<R>) -> Result<R, WaitError> {
        let mut state = lock(&self.state);
        while state.is_pending() {
            state.expect_sleepers();
            state = match wait_until(&self.done, state, deadline) {
                Ok(state) => state,
                Err(_) => return Err(WaitError::TimedOut),
            };
        }
        let result = get(&mut state);
        drop(state);
        result.map_err(WaitError::from)
    }
}

impl<T: ?Sized> Oneshot<(), T> {
    /// Waits like [`wait`](Self::wait), but leaves the result for other waiters.
    pub fn wait_shared(&self, deadline: Option<Instant>) -> Result<(), WaitError> {
        self.wait_for(deadline, OneshotState::share)
    }
}

/// A future's wait for a oneshot. Dropping the wait removes its registered waker.
#[derive(Debug)]
pub struct Waiter<R, T: ?Sized = ()> {
    oneshot: Arc<Oneshot<R, T>>,
    key: WakerKey,
}

impl<R, T: ?Sized> Waiter<R, T> {
    /// Creates a waiter for `oneshot`.
    pub fn new(oneshot: Arc<Oneshot<R, T>>) -> Self {
        Self { oneshot, key: WakerKey::default() }
    }

    /// Returns the oneshot.
    pub fn oneshot(&self) -> &Arc<Oneshot<R, T>> {
        &self.oneshot
    }

    /// Returns the oneshot.
    pub fn oneshot_mut(&mut self) -> &mut Arc<Oneshot<R, T>> {
        &mut self.oneshot
    }

    /// Takes the result, or registers the waker.
    pub fn poll(&mut self, waker: &Waker) -> Poll<Result<R, WaitError>> {
        self.poll_for(waker, OneshotState::take)
    }

    fn poll_for(&mut self, waker: &Waker, get: Get<R>) -> Poll<Result<R, WaitError>> {
        let polled = wakers::poll(&self.oneshot.state, &mut self.key, waker, |state| state.ready(get));
        polled.map_err(WaitError::from)
    }
}

impl<T: ?Sized> Waiter<(), T> {
    /// Polls like [`poll`](Self::poll), but leaves the result for other waiters.
    pub fn poll_shared(&mut self, waker: &Waker) -> Poll<Result<(), WaitError>> {
        self.poll_for(waker, OneshotState::share)
    }
}

impl<R, T: ?Sized> Drop for Waiter<R, T> {
    fn drop(&mut self) {
        wakers::leave(&self.oneshot.state, &mut self.key, |state| match state {
            OneshotState::Pending(waiting) | OneshotState::Awaited(waiting) => Some(waiting),
            OneshotState::Unwanted(_) | OneshotState::Done(_) | OneshotState::Taken => None,
        });
    }
}
