//! The failures of an engine that nobody knows of.

use std::{collections::BTreeMap, panic::Location};

use crate::{
    error::op::{Cause, OpError},
    sync::{Mutex, lock},
    values::name::Name,
};

/// The most failures that are kept; those beyond are only counted. Picked: a program that lets so many pass does not
/// look.
const MAX_KEPT: usize = 4096;

#[derive(Debug, Default)]
struct State {
    /// Those that are kept, by their sequence numbers.
    unknown: BTreeMap<u64, OpError>,
    /// How many more there are, which are only counted.
    more: u64,
    /// How often `more` has been taken, and counting has begun anew.
    round: u64,
    /// The log has told of one of them.
    warned: bool,
}

impl State {
    /// Takes how many are only counted. Those that become known later are not taken off what is counted from now on.
    fn take_more(&mut self) -> u64 {
        self.round += 1;
        std::mem::take(&mut self.more)
    }
}

/// What has become of a failure that nobody knew of when it was [added](Failures::add).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// It is kept until it is known.
    Kept,
    /// It is counted until it is known, in this round.
    Counted(u64),
}

/// The failures of an engine that nobody knows of: no wait and no handle has given them to the program, and the program
/// has not cleared them on a variable.
///
/// What a failure has reached does not matter, nor whether that still exists: variables may be freed meanwhile.
///
/// A failure becomes known under the lock, together with its removal from what is kept or counted. So it is either
/// reported from here or known from elsewhere, whichever thread is faster.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<State>);

impl Failures {
    /// Keeps `failure`, which nobody can know of yet, or counts it if too many are kept.
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

    /// Notes that `failure`, which has been added, is known, and neither keeps nor counts it any more.
    pub(crate) fn mark_reported(&self, failure: &OpError, place: Place) {
        let mut state = lock(&self.0);
        if failure.note_known() {
            match place {
                // The caller has another clone, so nothing of the program's is dropped under the lock.
                Place::Kept => drop(state.unknown.remove(&failure.sequence())),
                Place::Counted(round) if round == state.round => state.more -= 1,
                // It has been reported, as one of many.
                Place::Counted(_) => {}
            }
        }
    }

    /// Takes the earliest, which is known from then on; after the last that is kept, one that says how many more there
    /// are.
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
        for failure in unknown.values() {
            failure.note_known();
        }
        let more = state.take_more();
        // Before the others are dropped, which are the program's.
        drop(state);
        let count = unknown.len() as u64 + more;
        let first = unknown.into_values().next().or_else(|| summary(more))?;
        Some((first, count))
    }
}

/// Stands for `more` failures that were only counted.
fn summary(more: u64) -> Option<OpError> {
    (more > 0).then(|| {
        let what = format!("{more} operations failed beyond the {MAX_KEPT} whose failures are kept");
        OpError::new(&Name::EMPTY, Location::caller(), Cause::Error(what.into()), None)
    })
}
