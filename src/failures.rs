//! The failures of an engine that nobody knows of.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::{
    error::OpError,
    sync::{Mutex, lock},
};

/// Failures that are kept at most; more are only counted. Picked: whoever lets so many pass does not look.
const MAX_KEPT: usize = 4096;

#[derive(Debug, Default)]
struct State {
    /// By their sequence numbers.
    unknown: BTreeMap<u64, OpError>,
    /// How many more there were, which are not kept.
    more: u64,
    /// Of one of them the log has told.
    warned: bool,
}

/// The failures of an engine that nobody knows of: no wait and no handle has given them to the program, and it has not cleared
/// them on a variable.
///
/// What a failure reached does not matter, nor whether that still exists. So it does not matter either when a variable is freed.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<State>);

impl Failures {
    /// Keeps `failure` unless it is known, or kept already.
    pub(crate) fn add(&self, failure: &OpError) {
        let mut state = lock(&self.0);
        let full = state.unknown.len() >= MAX_KEPT;
        if failure.is_settled() {
            return;
        }
        // The caller's clone outlives the lock, so nothing of the program's is dropped under it.
        match state.unknown.entry(failure.sequence()) {
            Entry::Occupied(_) => {}
            Entry::Vacant(_) if full => state.more += 1,
            Entry::Vacant(entry) => _ = entry.insert(failure.clone()),
        }
    }

    /// Does not keep `failure` any more, which has become known.
    pub(crate) fn forget(&self, failure: &OpError) {
        // The caller has another clone.
        lock(&self.0).unknown.remove(&failure.sequence());
    }

    /// The earliest.
    pub(crate) fn first(&self) -> Option<OpError> {
        lock(&self.0).unknown.values().next().cloned()
    }

    /// The earliest that the program has not asked for itself, as it does by a shutdown that cancels; once.
    pub(crate) fn to_warn_of(&self) -> Option<OpError> {
        let mut state = lock(&self.0);
        let warned = std::mem::replace(&mut state.warned, true);
        state.unknown.values().find(|failure| !warned && !failure.is_cancellation()).cloned()
    }

    /// Gives the earliest, and how many there are; all of them are known then.
    pub(crate) fn clear(&self) -> Option<(OpError, u64)> {
        let (unknown, more) = {
            let mut state = lock(&self.0);
            (std::mem::take(&mut state.unknown), std::mem::take(&mut state.more))
        };
        unknown.values().for_each(OpError::settle);
        let count = unknown.len() as u64 + more;
        unknown.into_values().next().map(|first| (first, count))
    }
}
