//! The key where an operation's result waits for whoever asks.

use std::{
    sync::Arc,
    task::{Poll, Waker},
    time::Instant,
};

use crate::{
    error::{op::OpError, wait::WaitError},
    notify::wakers::{self, Waiting, WakerKey, Wakers},
    sync::{Condvar, Mutex, lock, wait_until},
};

#[derive(Debug)]
enum State<R> {
    Pending(Waiting),
    Done(Result<R, OpError>),
    Taken,
}

impl<R> State<R> {
    /// What `get` makes of the result, or those that wait for it.
    fn look(&mut self, get: Get<R>) -> Result<Result<R, Untold>, &mut Waiting> {
        match self {
            Self::Pending(waiting) => Err(waiting),
            done => Ok(get(done)),
        }
    }

    fn take(&mut self) -> Result<R, Untold> {
        match std::mem::replace(self, Self::Taken) {
            Self::Done(result) => result.map_err(Untold::Failed),
            Self::Taken => Err(Untold::Taken),
            Self::Pending(_) => unreachable!("only called when the result was set"),
        }
    }
}

impl State<()> {
    fn share(&mut self) -> Result<(), Untold> {
        match self {
            Self::Done(result) => result.clone().map_err(Untold::Failed),
            Self::Taken => Err(Untold::Taken),
            Self::Pending(_) => unreachable!("only called when the result was set"),
        }
    }
}

/// What is made of a result that is there.
type Get<R> = fn(&mut State<R>) -> Result<R, Untold>;

/// Why there is no value. It is told when the lock was given up: that ends what the engine keeps of the failure, and so may
/// drop others, which are the program's.
enum Untold {
    Failed(OpError),
    Taken,
}

impl From<Untold> for WaitError {
    fn from(untold: Untold) -> Self {
        match untold {
            Untold::Failed(failure) => failure.into(),
            Untold::Taken => Self::ValueTaken,
        }
    }
}

/// A result that is set once. It is taken once, or [shared](Oneshot::wait_shared) by all who ask.
#[derive(Debug)]
pub struct Oneshot<R> {
    state: Mutex<State<R>>,
    done: Condvar,
}

impl<R> Oneshot<R> {
    /// A key without a result.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::Pending(Waiting::default())), done: Condvar::new() })
    }

    /// Sets the result and wakes the threads that wait; gives the wakers of the futures that do. Later calls change nothing.
    #[must_use = "futures wait for it"]
    pub fn set(&self, result: Result<R, OpError>) -> Option<Wakers> {
        let mut state = lock(&self.state);
        let State::Pending(waiting) = &mut *state else { return None };
        let wakers = waiting.take_up_to(u64::MAX);
        *state = State::Done(result);
        drop(state);
        self.done.notify_all();
        wakers
    }

    /// The result, if it was set and nobody has taken it.
    pub fn into_result(self) -> Option<Result<R, OpError>> {
        match self.state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            State::Done(result) => Some(result),
            State::Pending(_) | State::Taken => None,
        }
    }

    /// Whether the result is there, or was.
    pub fn is_done(&self) -> bool {
        !matches!(*lock(&self.state), State::Pending(_))
    }

    /// Takes the result, waiting for it at most until `deadline`.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<R, WaitError> {
        self.wait_for(deadline, State::take)
    }

    fn wait_for(&self, deadline: Option<Instant>, get: Get<R>) -> Result<R, WaitError> {
        let mut state = lock(&self.state);
        while matches!(*state, State::Pending(_)) {
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

impl Oneshot<()> {
    /// As [`wait`](Self::wait), but leaves the result to others who ask.
    pub fn wait_shared(&self, deadline: Option<Instant>) -> Result<(), WaitError> {
        self.wait_for(deadline, State::share)
    }
}

/// Somebody who waits for an oneshot and may poll it. The last waker is left there, and goes with this.
#[derive(Debug)]
pub struct Waiter<R> {
    oneshot: Arc<Oneshot<R>>,
    key: WakerKey,
}

impl<R> Waiter<R> {
    /// Of a result that is to be asked for.
    pub fn new(oneshot: Arc<Oneshot<R>>) -> Self {
        Self { oneshot, key: WakerKey::default() }
    }

    /// The key of the result.
    pub fn oneshot(&self) -> &Arc<Oneshot<R>> {
        &self.oneshot
    }

    /// Takes the result, or leaves a waker for it.
    pub fn poll(&mut self, waker: &Waker) -> Poll<Result<R, WaitError>> {
        self.poll_for(waker, State::take)
    }

    fn poll_for(&mut self, waker: &Waker, get: Get<R>) -> Poll<Result<R, WaitError>> {
        let polled = wakers::poll(&self.oneshot.state, &mut self.key, waker, |state| state.look(get));
        polled.map_err(WaitError::from)
    }
}

impl Waiter<()> {
    /// As [`poll`](Self::poll), but leaves the result to others who ask.
    pub fn poll_shared(&mut self, waker: &Waker) -> Poll<Result<(), WaitError>> {
        self.poll_for(waker, State::share)
    }
}

impl<R> Drop for Waiter<R> {
    fn drop(&mut self) {
        wakers::leave(&self.oneshot.state, &mut self.key, |state| match state {
            State::Pending(waiting) => Some(waiting),
            State::Done(_) | State::Taken => None,
        });
    }
}
