//! The machine's state during a timing: how near the first and the last core are to each other.
//!
//! Two virtual cores may be two threads of one core, two cores that share a cache, or two distant cores, and the host
//! may move them from one second to the next. The time of a word's round trip between them shows which of these they
//! are, and every hand-over of work between threads depends on this time. So a timing begins only if the round trip
//! directly before it is in a band, and counts only if the one directly after it is in the same band. Otherwise, the
//! timing is *dropped* and repeated.

use std::collections::BTreeMap;

/// How near the first and the last core are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Two cores that share a cache.
    Near,
    /// Two distant cores.
    Far,
    /// Two threads of one core.
    SameCore,
    /// Not checked: the run is quick, or there is only one core.
    Unchecked,
}

impl State {
    /// All states, in table order.
    pub const ALL: [Self; 4] = [Self::Near, Self::Far, Self::SameCore, Self::Unchecked];

    /// The bands of round trips, in ns. On the machine of the results (AMD EPYC, two virtual cores), a word took 27 to
    /// 32 ns between two threads of one core, 60 to 90 between near cores, and 310 to 350 between far ones; on another
    /// EPYC, 456 to 463 between far ones. The bands are wider, since other machines differ. A round trip between two
    /// bands indicates a flip or a machine busy with something else.
    pub const BANDS: [(Self, f64, f64); 3] =
        [(Self::SameCore, 10.0, 45.0), (Self::Near, 50.0, 150.0), (Self::Far, 250.0, 600.0)];

    /// Returns the state with this round trip, or `None` if it is in no band.
    #[must_use]
    pub fn of(trip: f64) -> Option<Self> {
        let within = |&&(_, low, high): &&(Self, f64, f64)| (low..=high).contains(&trip);
        Self::BANDS.iter().find(within).map(|band| band.0)
    }

    /// Returns the name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::SameCore => "same core",
            Self::Unchecked => "unchecked",
        }
    }

    /// Returns the suffix of a table's name in CSV files.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::SameCore => "same_core",
            _ => self.name(),
        }
    }

    /// Returns the state with this key.
    #[must_use]
    pub fn from_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.key() == key)
    }

    /// Returns the state to show first: near if it has samples, otherwise the state with the most samples. Returns
    /// `None` if there are no samples.
    #[must_use]
    pub fn preferred(samples: impl Fn(Self) -> usize) -> Option<Self> {
        if samples(Self::Near) > 0 {
            return Some(Self::Near);
        }
        // On a tie, the first state.
        Self::ALL.into_iter().filter(|&state| samples(state) > 0).rev().max_by_key(|&state| samples(state))
    }
}

/// The machine has changed state, or is in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flipped;

/// A function that measures a round trip, in ns.
pub type Trip<'a> = &'a mut dyn FnMut() -> f64;

/// The state in which a timing began. A long timing can check whether it still holds.
#[allow(missing_debug_implementations)]
pub struct Watch<'a> {
    state: State,
    /// `None` if the state is not checked.
    trip: Option<Trip<'a>>,
}

impl<'a> Watch<'a> {
    /// Measures a round trip to determine the state. Without `trip`, the state is `Unchecked` and always holds.
    ///
    /// # Errors
    /// If the round trip is in no band.
    pub fn begin(mut trip: Option<Trip<'a>>) -> Result<Self, Flipped> {
        let state = match &mut trip {
            None => State::Unchecked,
            Some(trip) => State::of(trip()).ok_or(Flipped)?,
        };
        Ok(Self { state, trip })
    }

    /// Returns the state in which the timing began.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Measures another round trip, unless the state is unchecked.
    ///
    /// # Errors
    /// If the state is not the one in which the timing began.
    pub fn check(&mut self) -> Result<(), Flipped> {
        let Some(trip) = &mut self.trip else { return Ok(()) };
        if State::of(trip()) == Some(self.state) { Ok(()) } else { Err(Flipped) }
    }
}

/// The outcome of a timing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken<T> {
    /// The timing and its state, or `None` if no attempt lay between two round trips in the same state.
    pub kept: Option<(State, T)>,
    /// The number of timings dropped.
    pub dropped: usize,
}

/// Takes a timing between two round trips, and repeats it if it lies across a flip. There are at most `attempts`
/// attempts, each after a call to `settle`. An attempt ends without a timing if the machine is in no state at its
/// start.
pub fn take<T>(
    attempts: usize,
    mut settle: impl FnMut(),
    mut trip: Option<Trip<'_>>,
    mut timing: impl FnMut(&mut Watch<'_>) -> Result<T, Flipped>,
) -> Taken<T> {
    let mut dropped = 0;
    for _ in 0..attempts {
        settle();
        // Reborrowed for this attempt.
        let trip = trip.as_mut().map(|trip| &mut **trip as Trip<'_>);
        let Ok(mut watch) = Watch::begin(trip) else { continue };
        match timing(&mut watch).and_then(|value| watch.check().map(|()| value)) {
            Ok(value) => return Taken { kept: Some((watch.state, value)), dropped },
            Err(Flipped) => dropped += 1,
        }
    }
    Taken { kept: None, dropped }
}

/// A row's figures, by state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples<T = f64>(BTreeMap<State, Vec<T>>);

impl<T> Samples<T> {
    /// Creates an empty row.
    #[must_use]
    pub fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a figure.
    pub fn push(&mut self, state: State, figure: T) {
        self.0.entry(state).or_default().push(figure);
    }

    /// Returns the figures for a state.
    #[must_use]
    pub fn of(&self, state: State) -> &[T] {
        self.0.get(&state).map_or(&[], Vec::as_slice)
    }
}

/// Returns the states in which at least one row has figures, in table order.
#[must_use]
pub fn states<T>(rows: &[Samples<T>]) -> Vec<State> {
    State::ALL.into_iter().filter(|&state| rows.iter().any(|row| !row.of(state).is_empty())).collect()
}

/// Returns the state to show first, by [`State::preferred`].
#[must_use]
pub fn preferred<T>(rows: &[Samples<T>]) -> Option<State> {
    State::preferred(|state| rows.iter().map(|row| row.of(state).len()).sum())
}

/// Returns all rows' figures for each state in which at least one row has figures.
#[must_use]
pub fn by_state<T: Clone>(rows: &[Samples<T>]) -> Vec<(State, Vec<Vec<T>>)> {
    let of = |state| (state, rows.iter().map(|row| row.of(state).to_vec()).collect());
    states(rows).into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: f64 = 70.0;
    const FAR: f64 = 330.0;
    const BETWEEN: f64 = 200.0;

    /// Takes a timing with made-up round trips. Returns its outcome, along with the number of timings.
    fn taken(attempts: usize, trips: &[f64]) -> (Taken<usize>, usize) {
        let mut trips = trips.iter().copied();
        let mut timings = 0;
        let taken = take(
            attempts,
            || {},
            Some(&mut || trips.next().expect("another round trip")),
            |_| {
                timings += 1;
                Ok(timings)
            },
        );
        (taken, timings)
    }

    #[test]
    fn the_measured_clusters_are_in_their_bands() {
        for (trips, state) in [
            ([27.0, 30.0, 32.0], Some(State::SameCore)),
            ([60.0, 75.0, 90.0], Some(State::Near)),
            ([310.0, 330.0, 350.0], Some(State::Far)),
            ([0.0, 200.0, 25_717.0], None),
            ([47.0, 151.0, 601.0], None),
        ] {
            assert_eq!(trips.map(State::of), [state; 3], "{trips:?}");
        }
        assert_eq!(State::of(f64::NAN), None);
    }

    #[test]
    fn a_timing_within_one_state_is_kept_with_its_state() {
        assert_eq!(taken(3, &[NEAR, 88.0]), (Taken { kept: Some((State::Near, 1)), dropped: 0 }, 1));
        assert_eq!(taken(3, &[FAR, 345.0]), (Taken { kept: Some((State::Far, 1)), dropped: 0 }, 1));
    }

    #[test]
    fn a_timing_across_a_flip_is_dropped_and_taken_again() {
        let trips = [NEAR, FAR, FAR, NEAR, FAR, FAR];
        assert_eq!(taken(3, &trips), (Taken { kept: Some((State::Far, 3)), dropped: 2 }, 3));
    }

    #[test]
    fn a_timing_that_ends_between_the_bands_is_dropped() {
        let trips = [NEAR, BETWEEN, NEAR, NEAR];
        assert_eq!(taken(3, &trips), (Taken { kept: Some((State::Near, 2)), dropped: 1 }, 2));
    }

    #[test]
    fn no_timing_begins_between_the_bands() {
        let trips = [BETWEEN, NEAR, NEAR];
        assert_eq!(taken(3, &trips), (Taken { kept: Some((State::Near, 1)), dropped: 0 }, 1));
    }

    #[test]
    fn the_attempts_are_bounded() {
        assert_eq!(taken(2, &[NEAR, FAR, FAR, NEAR]), (Taken { kept: None, dropped: 2 }, 2));
        assert_eq!(taken(2, &[BETWEEN, BETWEEN]), (Taken { kept: None, dropped: 0 }, 0));
    }

    #[test]
    fn a_flip_that_a_long_timing_notices_ends_the_attempt() {
        let mut trips = [NEAR, FAR, NEAR, NEAR, NEAR].into_iter();
        let mut steps = 0;
        let taken = take(
            2,
            || {},
            Some(&mut || trips.next().expect("another round trip")),
            |watch| {
                steps += 1;
                watch.check()?;
                steps += 1;
                Ok(())
            },
        );
        assert_eq!((taken, steps), (Taken { kept: Some((State::Near, ())), dropped: 1 }, 3));
    }

    #[test]
    fn without_round_trips_everything_is_kept_unchecked() {
        let taken = take(1, || {}, None, |watch| watch.check());
        assert_eq!(taken, Taken { kept: Some((State::Unchecked, ())), dropped: 0 });
    }

    #[test]
    fn near_is_preferred_and_otherwise_the_state_with_the_most_samples() {
        let mut rows = [Samples::new(), Samples::new()];
        assert_eq!(preferred(&rows), None);
        rows[0].push(State::SameCore, 1.0);
        rows[1].push(State::Far, 1.0);
        assert_eq!(preferred(&rows), Some(State::Far));
        rows[1].push(State::SameCore, 1.0);
        assert_eq!(preferred(&rows), Some(State::SameCore));
        rows[0].push(State::Near, 1.0);
        assert_eq!(preferred(&rows), Some(State::Near));
        assert_eq!(states(&rows), [State::Near, State::Far, State::SameCore]);
    }

    #[test]
    fn the_states_of_rows_are_not_mixed() {
        let mut rows = [Samples::new(), Samples::new()];
        rows[0].push(State::Near, 1.0);
        rows[0].push(State::Far, 4.0);
        rows[1].push(State::Far, 5.0);
        let expected = [(State::Near, vec![vec![1.0], vec![]]), (State::Far, vec![vec![4.0], vec![5.0]])];
        assert_eq!(by_state(&rows), expected);
    }
}
