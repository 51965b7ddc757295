//! The claim on an operation: whether it starts or is cancelled.
//!
//! # States
//!
//! | state | meaning | next |
//! |---|---|---|
//! | `PENDING` | the operation has neither started nor been cancelled | `STARTED`, `CANCELLED`, `PASSED_OVER`, or `CANCELLED` with `ABANDONED` |
//! | `STARTED` | a thread has claimed the operation, to call or skip its function; or the operation cannot be cancelled | `STOPPING` |
//! | `STOPPING` | as `STARTED`, and the operation has been asked to stop | – |
//! | `CANCELLED` | the operation was cancelled, and fails when its turn comes | with `SETTLED` or `ABANDONED` |
//! | `PASSED_OVER` | the operation was cancelled, and changes nothing when its turn comes | with `SETTLED` or `ABANDONED` |
//! | with `SETTLED` | the turn of the operation has come: the thread that ends the operation counts it out of its groups | – |
//! | with `ABANDONED` | the operation's scope counts it out, and does not wait for its turn | – |
//!
//! The thread that ends the state `PENDING` has exclusive use of the function, and calls or drops it. There is one
//! exception: a waiter may end the state too late to take the operation from its queue. It then leaves the function to
//! the worker that popped the operation.
//!
//! # Who may touch what
//!
//! * [`start`](Claim::start): the owner of the ready operation, any number of times.
//! * [`start_first`](Claim::start_first): a waiter that tries to take the ready operation from its queue.
//! * [`settle`](Claim::settle): the thread that ends the operation.
//! * [`cancel`](Claim::cancel): any thread.
//! * [`abandon`](Claim::abandon): the thread that ends the operation's scope.
//! * [`awaits_turn`](Claim::awaits_turn) and [`is_stopping`](Claim::is_stopping): any thread.
//!
//! There are no edges: the owner of the operation receives the function through the queues, and a canceller receives it
//! through the handle. The failure of a cancelled operation is handed over by a lock.

use crate::sync::{
    Ordering::Relaxed,
    atomic::AtomicU8,
    edge::{removed, step},
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

/// The claim on an operation: whether it starts or is cancelled.
#[derive(Debug, Default)]
pub struct Claim(AtomicU8);

impl Claim {
    /// Creates the claim on an operation that cannot be cancelled.
    pub fn started() -> Self {
        Self(AtomicU8::new(STARTED))
    }

    /// Claims the operation for its owner. Repeated calls have the same result.
    ///
    /// # Errors
    /// Returns how the operation was cancelled, if it was cancelled.
    #[inline]
    pub fn start(&self) -> Result<(), Cancel> {
        // Relaxed: no thread leaves a state other than `PENDING` for one that has another result.
        let mut state = self.0.load(Relaxed);
        if state == PENDING {
            // Relaxed: only the choice of the winner matters.
            state = match self.0.compare_exchange(PENDING, STARTED, Relaxed, Relaxed) {
                Ok(_) => STARTED,
                Err(winner) => winner,
            };
        }
        match state {
            STARTED | STOPPING => Ok(()),
            _ if removed(step::CANCELLED_DOES_NOT_START) => Ok(()),
            state if state & STATE == CANCELLED => Err(Cancel::Loudly),
            _ => Err(Cancel::Quietly),
        }
    }

    /// Records that the operation's turn has come. Returns whether the operation's scope counts it out, in which case
    /// the caller must not. Repeated calls have the same result.
    pub fn settle(&self) -> bool {
        loop {
            // Relaxed: only the choice of the winner matters.
            match self.0.load(Relaxed) {
                PENDING => _ = self.start(),
                CANCELLED | PASSED_OVER if removed(step::SETTLE_ONCE) => return false,
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

    /// Lets the operation's scope count the operation out before its turn, where this is possible. Cancels the
    /// operation loudly if it has neither started nor been cancelled. If it was cancelled before, the scope may count
    /// it out only if its turn has not come and the function has been `dropped`. Returns whether this call cancelled
    /// the operation, or `None` if the scope must not count the operation out.
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

    /// Whether the operation was cancelled.
    pub fn is_cancelled(&self) -> bool {
        // Relaxed: an operation that enters a queue asks under a lock that the canceller takes afterwards.
        self.0.load(Relaxed) & STATE >= CANCELLED
    }

    /// Whether the operation was cancelled, still awaits its turn, and has not been abandoned by its scope.
    pub fn awaits_turn(&self) -> bool {
        // Relaxed: the answer is a hint, and hands over nothing.
        matches!(self.0.load(Relaxed), CANCELLED | PASSED_OVER)
    }

    /// Claims the operation if it has neither started nor been cancelled. Returns whether this call claimed it.
    pub fn start_first(&self) -> bool {
        // Relaxed: only the choice of the winner matters.
        self.0.compare_exchange(PENDING, STARTED, Relaxed, Relaxed).is_ok()
    }

    /// Cancels the operation if it has neither started nor been cancelled. If it has started, asks it to stop. Returns
    /// whether this call cancelled the operation.
    pub fn cancel(&self, how: Cancel) -> bool {
        let cancelled = if how == Cancel::Loudly { CANCELLED } else { PASSED_OVER };
        if removed(step::CLAIM_ONCE) {
            // Relaxed: this twin is meant to fail.
            self.0.store(cancelled, Relaxed);
            return true;
        }
        // Relaxed: only the choice of the winner matters.
        match self.0.compare_exchange(PENDING, cancelled, Relaxed, Relaxed) {
            Ok(_) => return true,
            // Relaxed: the operation learns only that it should stop. If this exchange fails, the operation has already
            // been asked to stop.
            Err(STARTED) => _ = self.0.compare_exchange(STARTED, STOPPING, Relaxed, Relaxed),
            Err(_) => {}
        }
        false
    }

    /// Whether the operation, which has started or cannot be cancelled, was asked to stop.
    pub fn is_stopping(&self) -> bool {
        // Relaxed: the answer is a hint, and hands over nothing.
        self.0.load(Relaxed) == STOPPING
    }
}
