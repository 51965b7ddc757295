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
    fn add_loose(&mut self, failure: OpError) {
        match &self.loose {
            None => self.loose = Some(failure),
            Some(_) => self.more += 1,
        }
    }
}

/// The failures of an engine that nobody has cleared. Bounded by the number of variables.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<State>);

impl Failures {
    /// Notes that a variable has failed.
    pub(crate) fn add_variable(&self, id: u64, failure: OpError) {
        lock(&self.0).variables.insert(id, failure);
    }

    /// Notes that a variable was cleared.
    pub(crate) fn clear_variable(&self, id: u64) {
        lock(&self.0).variables.remove(&id);
    }

    /// Notes that a failed variable is gone. What nobody was told of stays.
    pub(crate) fn forget_variable(&self, id: u64, failure: OpError) {
        let mut state = lock(&self.0);
        state.variables.remove(&id);
        if !failure.is_reported() {
            state.add_loose(failure);
        }
    }

    /// Notes a failure that sits on no variable.
    pub(crate) fn add_loose(&self, failure: OpError) {
        lock(&self.0).add_loose(failure);
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
