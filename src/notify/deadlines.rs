//! The deadlines of started operations that listen to them, and the thread that tells them.
//!
//! # States
//!
//! 1. *Idle*: nothing has listened, and there is no thread.
//! 2. *Begun* ([`Deadlines::begin`]): the thread sleeps until the earliest deadline, and tells the listeners whose
//!    deadlines have passed. It is notified of earlier deadlines only.
//! 3. *Ended* ([`Deadlines::end`]): no operation is pending, and the thread ends.
//!
//! # Who may touch what
//!
//! * Everything: under the lock, which is not held while a listener is told or dropped.

use std::{collections::BTreeMap, sync::Weak, time::Instant};

use crate::{
    notify::stop_signal::StopListener,
    sync::{Condvar, Mutex, lock, wait_until},
};

/// A listener's deadline, and the number that distinguishes it from others with the same deadline.
pub type DeadlineKey = (Instant, u64);

/// The deadlines of started operations.
#[derive(Debug, Default)]
pub struct Deadlines {
    state: Mutex<DeadlinesState>,
    /// Notified when the thread must look again.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct DeadlinesState {
    listeners: BTreeMap<DeadlineKey, Weak<dyn StopListener>>,
    /// The last number used.
    last: u64,
    has_begun: bool,
    has_ended: bool,
}

impl Deadlines {
    /// Returns whether the caller must start the thread, which calls [`run`](Self::run).
    pub fn begin(&self) -> bool {
        !std::mem::replace(&mut lock(&self.state).has_begun, true)
    }

    /// Registers a listener. Returns its key, or `None` if the deadline has passed.
    pub fn listen(&self, deadline: Instant, listener: Weak<dyn StopListener>) -> Option<DeadlineKey> {
        if Instant::now() >= deadline {
            return None;
        }
        let mut state = lock(&self.state);
        state.last += 1;
        let key = (deadline, state.last);
        state.listeners.insert(key, listener);
        let is_earliest = state.listeners.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(state);
        if is_earliest {
            self.changed.notify_one();
        }
        Some(key)
    }

    /// Ends the registration with this key.
    pub fn leave(&self, key: DeadlineKey) {
        let listener = lock(&self.state).listeners.remove(&key);
        drop(listener);
    }

    /// Tells listeners whose deadlines have passed, in calls to `tell`, until the end.
    pub fn run(&self, tell: impl Fn(&mut dyn FnMut())) {
        let mut state = lock(&self.state);
        while !state.has_ended {
            let next = state.listeners.first_key_value().map(|(&(deadline, _), _)| deadline);
            state = match wait_until(&self.changed, state, next) {
                Ok(state) => state,
                Err(_) => {
                    let mut state = lock(&self.state);
                    let later = state.listeners.split_off(&(Instant::now(), u64::MAX));
                    let passed = std::mem::replace(&mut state.listeners, later);
                    drop(state);
                    let mut passed = passed.into_values();
                    tell(&mut || {
                        passed.by_ref().filter_map(|listener| listener.upgrade()).for_each(StopListener::stop);
                    });
                    lock(&self.state)
                }
            };
        }
    }

    /// Ends the thread.
    pub fn end(&self) {
        lock(&self.state).has_ended = true;
        self.changed.notify_one();
    }
}
