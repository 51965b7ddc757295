//! The failures of an engine that nobody knows of.

use std::{collections::BTreeMap, panic::Location};

use crate::{
    error::{Cause, OpError},
    name::Name,
    sync::{Mutex, lock},
};

/// The most failures that are kept; those beyond are only counted. Picked: a program that lets so many pass does not
/// look.
const MAX_KEPT: usize = 4096;

#[derive(Debug, Default)]
struct State {
    /// Those that are kept, by their sequence numbers.
    unknown: BTreeMap<u64, OpError>,
    /// How many more there were, which are only counted.
    more: u64,
    /// The log has told of one of them.
    warned: bool,
}

/// The failures of an engine that nobody knows of: no wait and no handle has given them to the program, and the program
/// has not cleared them on a variable.
///
/// What a failure has reached does not matter, nor whether that still exists: variables may be freed meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<State>);

impl Failures {
    /// Keeps `failure`, which nobody can know of yet, or counts it if too many are kept.
    pub(crate) fn add(&self, failure: &OpError) {
        let mut state = lock(&self.0);
        if state.unknown.len() < MAX_KEPT {
            state.unknown.insert(failure.sequence(), failure.clone());
        } else {
            state.more += 1;
        }
    }

    /// Keeps `failure` no longer, which has become known.
    pub(crate) fn forget(&self, failure: &OpError) {
        // The caller has another clone, so nothing of the program's is dropped under the lock.
        lock(&self.0).unknown.remove(&failure.sequence());
    }

    /// Takes the earliest, which is known from then on; after the last that is kept, one that says how many more there
    /// were.
    pub(crate) fn take(&self) -> Option<OpError> {
        // Dropped after the lock.
        let mut known = Vec::new();
        let mut state = lock(&self.0);
        while let Some((_, failure)) = state.unknown.pop_first() {
            if failure.take_as_known() {
                return Some(failure);
            }
            known.push(failure);
        }
        let more = std::mem::take(&mut state.more);
        drop(state);
        summary(more)
    }

    /// The earliest that is kept and that the program has not asked for itself, as it does by a shutdown that cancels;
    /// once.
    pub(crate) fn to_warn_of(&self) -> Option<OpError> {
        let mut state = lock(&self.0);
        let warned = std::mem::replace(&mut state.warned, true);
        state.unknown.values().find(|failure| !warned && !failure.is_cancellation()).cloned()
    }

    /// Takes all of them: the earliest, as by [`take`](Self::take), and how many there are.
    pub(crate) fn clear(&self) -> Option<(OpError, u64)> {
        let mut state = lock(&self.0);
        let unknown = std::mem::take(&mut state.unknown);
        let more = std::mem::take(&mut state.more);
        // Before the others are dropped, which are the program's.
        drop(state);
        let mut unknown = unknown.into_values().filter(OpError::take_as_known);
        let first = unknown.next();
        let count = u64::from(first.is_some()) + unknown.count() as u64 + more;
        Some((first.or_else(|| summary(more))?, count))
    }
}

/// Stands for `more` failures that were only counted.
fn summary(more: u64) -> Option<OpError> {
    (more > 0).then(|| {
        let what = format!("{more} operations failed beyond the {MAX_KEPT} whose failures are kept");
        OpError::new(&Name::EMPTY, Location::caller(), Cause::Error(what.into()), None)
    })
}
