//! The failures of an engine that nobody has cleared.

use std::collections::BTreeMap;

use crate::{
    error::OpError,
    sync::{Mutex, lock},
};

#[derive(Debug, Default)]
struct State {
    /// By variable id: the failures that sit on variables.
    variables: BTreeMap<u64, OpError>,
    /// The first failure that sits on no variable: its operation mutated none, or they are gone.
    loose: Option<OpError>,
    /// How many more of those there were, which are not kept.
    more: u64,
}

impl State {
    /// Gives the failure back if it is not kept.
    #[must_use = "it is to be dropped after the lock"]
    fn add_loose(&mut self, failure: OpError) -> Option<OpError> {
        if self.loose.is_some() {
            self.more += 1;
            return Some(failure);
        }
        self.loose = Some(failure);
        None
    }
}

/// The failures of an engine that nobody has cleared. Bounded by the number of variables.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<State>);

impl Failures {
    /// Notes that a variable has failed.
    pub(crate) fn add_variable(&self, id: u64, failure: OpError) {
        let replaced = lock(&self.0).variables.insert(id, failure);
        drop(replaced);
    }

    /// Notes that a variable was cleared.
    pub(crate) fn clear_variable(&self, id: u64) {
        // Dropped after the lock: it may hold the user's error, whose drop may come back here.
        let removed = lock(&self.0).variables.remove(&id);
        drop(removed);
    }

    /// Notes that a failed variable is gone. What nobody was told of stays.
    pub(crate) fn forget_variable(&self, id: u64, failure: OpError) {
        let mut state = lock(&self.0);
        let removed = state.variables.remove(&id);
        let not_kept = if failure.is_reported() { Some(failure) } else { state.add_loose(failure) };
        // As above.
        drop(state);
        drop((removed, not_kept));
    }

    /// Notes a failure that sits on no variable.
    pub(crate) fn add_loose(&self, failure: OpError) {
        let not_kept = lock(&self.0).add_loose(failure);
        drop(not_kept);
    }

    /// Forgets those that sit on no variable; gives the first and how many there were.
    pub(crate) fn clear_loose(&self) -> Option<(OpError, u64)> {
        let mut state = lock(&self.0);
        let more = std::mem::take(&mut state.more);
        state.loose.take().map(|failure| (failure, more + 1))
    }

    /// The earliest failure.
    pub(crate) fn first(&self) -> Option<OpError> {
        let state = lock(&self.0);
        state.variables.values().chain(&state.loose).min_by_key(|failure| failure.sequence()).cloned()
    }

    /// The earliest failure that nobody was told of.
    pub(crate) fn unreported(&self) -> Option<OpError> {
        let state = lock(&self.0);
        state
            .variables
            .values()
            .chain(&state.loose)
            .filter(|failure| !failure.is_reported())
            .min_by_key(|failure| failure.sequence())
            .cloned()
    }
}
