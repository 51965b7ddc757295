//! Whether an entry of a queue owns a ready operation that a waiter may take.
//!
//! # States
//!
//! The state is a byte in the record of an operation with a handle.
//!
//! | state | meaning | next |
//! |---|---|---|
//! | `OUTSIDE` | no entry of a queue owns the operation | `QUEUED` by the owner of the ready operation |
//! | `QUEUED` | an entry of a queue owns it, and has a share of the record | `POPPED` by the worker that pops the entry, `TAKEN` by a waiter |
//! | `POPPED` | the worker that popped the entry owns it | – |
//! | `TAKEN` | a waiter owns it, and the entry is stale | – |
//!
//! A waiter claims the operation before it takes it. If a worker has popped the entry meanwhile, that worker runs the
//! operation as one that it has claimed itself, and the waiter waits.
//!
//! # Who may touch what
//!
//! * [`enter`](Queued::enter), [`leave`](Queued::leave): the owner of the ready operation.
//! * [`pop`](Queued::pop): the worker that has popped the entry.
//! * [`take`](Queued::take): a waiter that has won the claim of the operation.
//!
//! There are no edges here: the queue hands over the operation to the worker, and the pointer that the owner publishes
//! hands it over to the waiter ([`in_place`](super::in_place)).

use crate::{
    sync::{Ordering::Relaxed, atomic::AtomicU8},
    testing::weaken::{Step, removed},
};

const OUTSIDE: u8 = 0;
const QUEUED: u8 = 1;
const POPPED: u8 = 2;
const TAKEN: u8 = 3;

/// Whether an entry of a queue owns an operation.
#[derive(Debug, Default)]
pub(crate) struct Queued(AtomicU8);

/// What the worker has that pops an entry.
pub(super) enum Popped {
    /// The operation. The entry has no share of its record.
    Op,
    /// The operation, and the share of the entry.
    OpAndShare,
    /// Only the share of the entry.
    Share,
}

impl Queued {
    /// Notes that an entry is about to own the operation, if it is the first one. Called by the owner. Returns whether it
    /// is.
    pub(super) fn enter(&self) -> bool {
        // Relaxed: only the owner and the holders of the pointer change the state, and there is no pointer yet.
        let is_first = self.0.load(Relaxed) == OUTSIDE;
        if is_first {
            // Relaxed: the pointer or the queue hands over the operation.
            self.0.store(QUEUED, Relaxed);
        }
        is_first
    }

    /// Takes back [`enter`](Self::enter), before the operation has entered the queue.
    pub(super) fn leave(&self) {
        // Relaxed: no other thread knows the operation.
        self.0.store(OUTSIDE, Relaxed);
    }

    pub(super) fn pop(&self) -> Popped {
        // Relaxed: the queue has handed over the operation. A waiter that was faster needs nothing of this thread.
        match self.0.compare_exchange(QUEUED, POPPED, Relaxed, Relaxed) {
            Ok(_) => Popped::OpAndShare,
            Err(TAKEN) => Popped::Share,
            Err(_) => Popped::Op,
        }
    }

    /// Takes the operation from its entry. Returns whether no worker has popped that.
    pub(super) fn take(&self) -> bool {
        if removed(Step::TakeQueued) {
            return true;
        }
        // Relaxed: the pointer has handed over the operation.
        self.0.compare_exchange(QUEUED, TAKEN, Relaxed, Relaxed).is_ok()
    }
}
