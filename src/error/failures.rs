//! An engine's unreported failures.

use std::{collections::BTreeMap, panic::Location};

use crate::{
    error::op::{Cause, OpError},
    sync::{Mutex, lock},
    values::Name,
};

/// The maximum number of failures kept; further failures are only counted. The value is not tuned, since a program that
/// ignores this many failures does not check for them.
const MAX_KEPT: usize = 4096;

#[derive(Debug, Default)]
struct FailuresState {
    /// The kept failures, keyed by sequence number.
    unknown: BTreeMap<u64, OpError>,
    /// The number of further failures, which are only counted.
    more: u64,
    /// The number of times that `more` has been taken and reset.
    round: u64,
    /// Whether [`Failures::to_warn_of`] has been called.
    warned: bool,
}

impl FailuresState {
    /// Takes the number of failures that were only counted. If one of these becomes known later, the new count is not
    /// reduced.
    fn take_more(&mut self) -> u64 {
        self.round += 1;
        std::mem::take(&mut self.more)
    }
}

/// How a failure was recorded when it was [added](Failures::add).
#[derive(Clone, Copy, Debug)]
pub(crate) enum FailurePlace {
    /// The failure is kept until it is known.
    Kept,
    /// The failure is counted, in this round, until it is known.
    Counted(u64),
}

/// An engine's failures that are unknown to the program: no wait or handle has returned them, and the program has
/// neither cleared nor overwritten them on a variable.
///
/// A failure stays here until it is known, even if all variables that it has reached are freed before that.
///
/// A failure becomes known and ceases to be kept or counted in a single step under the lock. So a failure that the
/// program already knows is never returned from here.
#[derive(Debug, Default)]
pub struct Failures(Mutex<FailuresState>);

impl Failures {
    /// Keeps `failure`, which is still unknown to the program, or only counts it if too many are kept.
    pub(crate) fn add(&self, failure: &OpError) -> FailurePlace {
        let mut state = lock(&self.0);
        if state.unknown.len() < MAX_KEPT {
            state.unknown.insert(failure.sequence(), failure.clone());
            FailurePlace::Kept
        } else {
            state.more += 1;
            FailurePlace::Counted(state.round)
        }
    }

    /// Marks `failure`, which has been added, as known, and stops keeping or counting it.
    pub(crate) fn mark_reported(&self, failure: &OpError, place: FailurePlace) {
        let mut state = lock(&self.0);
        if failure.note_known() {
            match place {
                // The caller has another clone, so none of the program's values is dropped under the lock.
                FailurePlace::Kept => drop(state.unknown.remove(&failure.sequence())),
                FailurePlace::Counted(round) if round == state.round => state.more -= 1,
                // The failure was already reported in a summary.
                FailurePlace::Counted(_) => {}
            }
        }
    }

    /// Takes the earliest kept failure and marks it as known. If none is kept, returns a summary of the failures that
    /// were only counted, if there are any.
    pub(crate) fn take(&self) -> Option<OpError> {
        let mut state = lock(&self.0);
        if let Some((_, failure)) = state.unknown.pop_first() {
            failure.note_known();
            return Some(failure);
        }
        let more = state.take_more();
        drop(state);
        summary(more)
    }

    /// On the first call, returns the earliest kept failure that is not a cancellation. Later calls return `None`.
    pub(crate) fn to_warn_of(&self) -> Option<OpError> {
        let mut state = lock(&self.0);
        let warned = std::mem::replace(&mut state.warned, true);
        state.unknown.values().find(|failure| !warned && !failure.is_cancellation()).cloned()
    }

    /// Takes all failures. Returns the one that [`take`](Self::take) would return, and the number of failures.
    pub(crate) fn clear(&self) -> Option<(OpError, u64)> {
        let mut state = lock(&self.0);
        let unknown = std::mem::take(&mut state.unknown);
        for failure in unknown.values() {
            failure.note_known();
        }
        let more = state.take_more();
        // The lock is released before the other failures are dropped, since dropping them may run program code.
        drop(state);
        let count = unknown.len() as u64 + more;
        let first = unknown.into_values().next().or_else(|| summary(more))?;
        Some((first, count))
    }
}

/// Returns an error summarising `more` failures that were only counted.
fn summary(more: u64) -> Option<OpError> {
    (more > 0).then(|| {
        let what = format!("{more} operations failed beyond the {MAX_KEPT} whose failures are kept");
        OpError::new(&Name::EMPTY, Location::caller(), Cause::Error(what.into()), None)
    })
}
