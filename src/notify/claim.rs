//! The claim of a cancellable operation, which decides whether the operation starts or is cancelled.
//!
//! # States
//!
//! | state | meaning | next |
//! |---|---|---|
//! | `PENDING` | the operation has neither started nor been cancelled | `STARTED`, `CANCELLED`, `PASSED_OVER` |
//! | `STARTED` | its thread has claimed it, to call or skip its function | `STOPPING` |
//! | `STOPPING` | it was started, and has since been asked to stop | – |
//! | `CANCELLED` | it was cancelled, and fails when its turn comes | with `SETTLED` or `ABANDONED` |
//! | `PASSED_OVER` | it was cancelled, and changes nothing when its turn comes | with `SETTLED` or `ABANDONED` |
//! | with `SETTLED` | its turn has come: its thread counts it out of its groups | – |
//! | with `ABANDONED` | its scope has already counted it out, and does not wait for its turn | – |
//!
//! The thread that ends the state `PENDING` has exclusive use of the function, and calls or drops it. A waiter,
//! however, may be too late to take the operation from its queue. It then leaves the function to the worker that popped
//! the operation.
//!
//! # Who may touch what
//!
//! * [`start`](Claim::start): the owner of the ready operation, any number of times.
//! * [`start_first`](Claim::start_first): a waiter that tries to take the ready operation from its queue.
//! * [`settle`](Claim::settle): the thread that ends the operation.
//! * [`cancel`](Claim::cancel): any thread.
//! * [`abandon`](Claim::abandon): the thread that ends the scope of the operation.
//!
//! There are no edges: the owner of the operation receives the function through the queues, a canceller through the
//! handle, and a lock hands over the failure of a cancelled operation.

use crate::{
    sync::{Ordering::Relaxed, atomic::AtomicU8},
    testing::weaken::{Step, removed},
};

const PENDING: u8 = 0;
const STARTED: u8 = 1;
const STOPPING: u8 = 2;
const CANCELLED: u8 = 3;
const PASSED_OVER: u8 = 4;

/// The bits that hold the states above, without the two flags below.
const STATE: u8 = 7;
const SETTLED: u8 = 8;
const ABANDONED: u8 = 16;

/// What a cancelled operation does when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// Fails the variables that it mutates.
    Loudly,
    /// Changes nothing.
    Quietly,
}

/// The claim of an operation.
#[derive(Debug, Default)]
pub struct Claim(AtomicU8);

impl Claim {
    /// Creates the claim of an operation that cannot be cancelled.
    pub fn started() -> Self {
        Self(AtomicU8::new(STARTED))
    }

    /// Claims the operation for its thread. Repeated calls have the same result.
    ///
    /// # Errors
    /// Returns how the operation was cancelled, if it was cancelled.
    #[inline]
    pub fn start(&self) -> Result<(), Cancel> {
        // Relaxed: only the choice of the winner matters.
        match self.0.compare_exchange(PENDING, STARTED, Relaxed, Relaxed) {
            Ok(_) | Err(STARTED | STOPPING) => Ok(()),
            Err(state) if state & STATE == CANCELLED => Err(Cancel::Loudly),
            Err(_) => Err(Cancel::Quietly),
        }
    }

    /// Records that the operation's turn has come. Returns whether its scope has already counted it out. Repeated calls
    /// have the same result.
    pub fn settle(&self) -> bool {
        loop {
            // Relaxed: only the choice of the winner matters.
            match self.0.load(Relaxed) {
                PENDING => _ = self.start(),
                CANCELLED | PASSED_OVER if removed(Step::SettleOnce) => return false,
                state @ (CANCELLED | PASSED_OVER) => {
                    // Relaxed: only the choice of the winner matters.
                    if self.0.compare_exchange(state, state | SETTLED, Relaxed, Relaxed).is_ok() {
                        return false;
                    }
                }
                state => return state & ABANDONED != 0,
            }
        }
    }

    /// Allows the operation's scope to count it out, cancelling the operation if it has neither started nor been
    /// cancelled. If it was cancelled before, the scope may count it out only if its function has since been `dropped`.
    /// Returns whether this call cancelled the operation, or `None` if the scope must not count it out.
    pub fn abandon(&self, dropped: bool) -> Option<bool> {
        // Relaxed: only the choice of the winner matters.
        match self.0.compare_exchange(PENDING, CANCELLED | ABANDONED, Relaxed, Relaxed) {
            Ok(_) => Some(true),
            Err(state @ (CANCELLED | PASSED_OVER)) if dropped => {
                // Relaxed: only the choice of the winner matters.
                self.0.compare_exchange(state, state | ABANDONED, Relaxed, Relaxed).ok().map(|_| false)
            }
            Err(_) => None,
        }
    }

    /// Whether the operation has started or was cancelled. Always true inside the operation.
    pub fn is_claimed(&self) -> bool {
        // Relaxed: the answer is exact on the thread that has started the operation, and otherwise a hint.
        self.0.load(Relaxed) != PENDING
    }

    /// Whether the operation was cancelled and still awaits its turn.
    pub fn awaits_turn(&self) -> bool {
        // Relaxed: the answer is a hint, and hands over nothing.
        matches!(self.0.load(Relaxed), CANCELLED | PASSED_OVER)
    }

    /// Claims the operation if it has neither started nor been cancelled. Returns whether this call claimed it.
    pub fn start_first(&self) -> bool {
        // Relaxed: only the choice of the winner matters.
        self.0.compare_exchange(PENDING, STARTED, Relaxed, Relaxed).is_ok()
    }

    /// Cancels the operation if it has not started, and otherwise asks it to stop. Returns whether this call cancelled
    /// it.
    pub fn cancel(&self, how: Cancel) -> bool {
        let cancelled = if how == Cancel::Loudly { CANCELLED } else { PASSED_OVER };
        if removed(Step::ClaimOnce) {
            // Relaxed: this twin is meant to fail.
            self.0.store(cancelled, Relaxed);
            return true;
        }
        // Relaxed: only the choice of the winner matters.
        match self.0.compare_exchange(PENDING, cancelled, Relaxed, Relaxed) {
            Ok(_) => return true,
            // Relaxed: the operation learns only that it should stop. If this fails, it has already been asked to stop.
            Err(STARTED) => _ = self.0.compare_exchange(STARTED, STOPPING, Relaxed, Relaxed),
            Err(_) => {}
        }
        false
    }

    /// Whether a started operation was asked to stop.
    pub fn is_stopping(&self) -> bool {
        // Relaxed: the answer is a hint, and hands over nothing.
        self.0.load(Relaxed) == STOPPING
    }
}
