//! The place where an operation's result waits for whoever asks.

use std::{
    sync::Arc,
    task::{Poll, Waker},
    time::Instant,
};

use crate::{
    error::{OpError, WaitError},
    sync::{Condvar, Mutex, lock, wait_until},
    wakers::Wakers,
};

#[derive(Debug)]
enum State<R> {
    Pending(Vec<Waker>),
    Done(Result<R, OpError>),
    Taken,
}

/// A result that is set once and taken once.
#[derive(Debug)]
pub struct Outcome<R> {
    state: Mutex<State<R>>,
    done: Condvar,
}

impl<R> Outcome<R> {
    /// A place without a result.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::Pending(Vec::new())), done: Condvar::new() })
    }

    /// Sets the result and wakes who waits. Later calls change nothing.
    pub fn set(&self, result: Result<R, OpError>) -> Option<Wakers> {
        let mut state = lock(&self.state);
        let State::Pending(wakers) = &mut *state else {
            return None;
        };
        let wakers = std::mem::take(wakers);
        *state = State::Done(result);
        drop(state);
        self.done.notify_all();
        Wakers::of(wakers)
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

    fn take(state: &mut State<R>) -> Result<R, WaitError> {
        match std::mem::replace(state, State::Taken) {
            State::Done(result) => result.map_err(WaitError::from),
            State::Taken => Err(WaitError::ValueTaken),
            State::Pending(_) => unreachable!("only called when the result was set"),
        }
    }

    /// Takes the result, waiting for it at most until `deadline`.
    pub fn wait(&self, deadline: Option<Instant>) -> Result<R, WaitError> {
        let mut state = lock(&self.state);
        while matches!(*state, State::Pending(_)) {
            state = match wait_until(&self.done, state, deadline) {
                Ok(state) => state,
                Err(_) => return Err(WaitError::TimedOut),
            };
        }
        Self::take(&mut state)
    }

    /// Takes the result, or leaves a waker for it.
    pub fn poll(&self, waker: &Waker) -> Poll<Result<R, WaitError>> {
        let mut state = lock(&self.state);
        if let State::Pending(wakers) = &mut *state {
            if !wakers.iter().any(|known| known.will_wake(waker)) {
                wakers.push(waker.clone());
            }
            return Poll::Pending;
        }
        Poll::Ready(Self::take(&mut state))
    }
}
