//! What the threads of a model under shuttle are about to do.

use raddle::internals::announced::{Announced, take_announced};

/// A thread's next step: what it does until it reaches another switch point.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The beginning of the thread.
    Begin,
    /// An access to an atomic or a cell.
    Access(Announced),
    /// Anything else, such as a lock or a park.
    Unknown,
}

impl Step {
    /// Returns whether the order of two threads' steps makes no difference. Locks and the like use no atomic or cell
    /// that is announced.
    pub(crate) fn commutes_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Begin, _) | (_, Self::Begin) => true,
            (Self::Access(one), Self::Access(other)) => one.address != other.address || !(one.writes || other.writes),
            _ => false,
        }
    }

    /// Returns whether the step uses a cell.
    pub(crate) fn is_of_cell(self) -> bool {
        matches!(self, Self::Access(access) if access.is_cell)
    }
}

/// The next step of each thread.
#[derive(Debug, Default)]
pub(crate) struct Steps(Vec<Step>);

impl Steps {
    /// Forgets all threads.
    pub(crate) fn begin(&mut self) {
        self.0.clear();
        take_announced();
    }

    /// Notes what the thread `current` has announced, and fails if two of the threads `runnable` could use a cell at
    /// the same time, at least one of them for writing.
    pub(crate) fn note(&mut self, current: Option<usize>, runnable: impl Iterator<Item = usize> + Clone) {
        let announced = take_announced();
        if let Some(current) = current {
            if self.0.len() <= current {
                self.0.resize(current + 1, Step::Begin);
            }
            self.0[current] = announced.map_or(Step::Unknown, Step::Access);
        }
        for one in runnable.clone().filter(|&one| self.of(one).is_of_cell()) {
            for other in runnable.clone().filter(|&other| other != one) {
                assert!(
                    self.of(one).commutes_with(self.of(other)) || !self.of(other).is_of_cell(),
                    "Causality violation: two threads can access a cell at the same time"
                );
            }
        }
    }

    pub(crate) fn of(&self, thread: usize) -> Step {
        self.0.get(thread).copied().unwrap_or(Step::Begin)
    }
}
