//! The unreported failures of an engine.

use std::{collections::BTreeMap, panic::Location};

use crate::{
    error::op::{Cause, OpError},
    sync::{Mutex, lock},
    values::name::Name,
};

/// The maximum number of failures that are kept; further ones are only counted. The value is not tuned: a program that
/// ignores this many failures does not check for them.
const MAX_KEPT: usize = 4096;

#[derive(Debug, Default)]
struct State {
    /// The failures that are kept, keyed by their sequence numbers.
    unknown: BTreeMap<u64, OpError>,
    /// The number of further failures, which are only counted.
    more: u64,
    /// The number of times that `more` was taken and reset.
    round: u64,
    /// Whether a warning was logged for one of the failures.
    warned: bool,
}

impl State {
    /// Takes the number of failures that are only counted. If one of them becomes known later, the new count is not
    /// reduced.
    fn take_more(&mut self) -> u64 {
        self.round += 1;
        std::mem::take(&mut self.more)
    }
}

/// Where a failure was recorded when it was [added](Failures::add).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// The failure is kept until it is known.
    Kept,
    /// The failure is counted until it is known, in this round.
    Counted(u64),
}

/// The failures of an engine that are not known to the program: no wait and no handle has returned them, and the
/// program has not cleared them on a variable.
///
/// It does not matter which variables a failure has reached, or whether they still exist: they may be freed before the
/// failure is known.
///
/// A failure becomes known, and ceases to be kept or counted, in one step under the lock. So it is reported either from
/// here or elsewhere, by whichever thread is faster.
#[derive(Debug, Default)]
pub struct Failures(Mutex<State>);

impl Failures {
    /// Keeps `failure`, which is not known to the program yet, or counts it if too many are kept.
    pub(crate) fn add(&self, failure: &OpError) -> Place {
        let mut state = lock(&self.0);
        if state.unknown.len() < MAX_KEPT {
            state.unknown.insert(failure.sequence(), failure.clone());
            Place::Kept
        } else {
            state.more += 1;
            Place::Counted(state.round)
        }
    }

    /// Marks `failure`, which has been added, as known. It is neither kept nor counted any more.
    pub(crate) fn mark_reported(&self, failure: &OpError, place: Place) {
        let mut state = lock(&self.0);
        if failure.note_known() {
            match place {
                // The caller has another clone, so this runs no drop of the program's values under the lock.
                Place::Kept => drop(state.unknown.remove(&failure.sequence())),
                Place::Counted(round) if round == state.round => state.more -= 1,
                // The failure was reported in a summary of several.
                Place::Counted(_) => {}
            }
        }
    }

    /// Takes the earliest failure, which is then known. After the last kept one, returns a summary of those that were
    /// only counted.
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

    /// Returns the earliest kept failure that is not a cancellation. Later calls return `None`.
    pub(crate) fn to_warn_of(&self) -> Option<OpError> {
        let mut state = lock(&self.0);
        let warned = std::mem::replace(&mut state.warned, true);
        state.unknown.values().find(|failure| !warned && !failure.is_cancellation()).cloned()
    }

    /// Takes all failures. Returns the earliest, as [`take`](Self::take) does, and their number.
    pub(crate) fn clear(&self) -> Option<(OpError, u64)> {
        let mut state = lock(&self.0);
        let unknown = std::mem::take(&mut state.unknown);
        for failure in unknown.values() {
            failure.note_known();
        }
        let more = state.take_more();
        // The lock is released before the others are dropped, since dropping them may run the program's code.
        drop(state);
        let count = unknown.len() as u64 + more;
        let first = unknown.into_values().next().or_else(|| summary(more))?;
        Some((first, count))
    }
}

/// Returns an error that summarises `more` failures that were only counted.
fn summary(more: u64) -> Option<OpError> {
    (more > 0).then(|| {
        let what = format!("{more} operations failed beyond the {MAX_KEPT} whose failures are kept");
        OpError::new(&Name::EMPTY, Location::caller(), Cause::Error(what.into()), None)
    })
}
