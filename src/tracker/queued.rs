//! Tracks whether an entry in a scheduler queue still owns its ready operation or whether a waiter has taken the
//! operation.
//!
//! # States
//!
//! The state is a byte in the operation's record.
//!
//! | state | meaning | next |
//! |---|---|---|
//! | `OUTSIDE` | no queue entry owns the operation | `QUEUED`, by the owner of the ready operation |
//! | `QUEUED` | a queue entry owns it and holds a share of the record | `POPPED`, by the thread that pops the entry; `TAKEN`, by a waiter; `OUTSIDE`, by the owner, if the pointer could not be published |
//! | `POPPED` | the thread that popped the entry owns it | `QUEUED`, by that thread, if it puts the entry back |
//! | `TAKEN` | a waiter owns it, and the entry is stale | – |
//!
//! A waiter claims the operation before taking it. If another thread has popped the entry in the meantime, that thread
//! runs the operation as if it had won the claim, and the waiter waits.
//!
//! # Who may touch what
//!
//! * The state: the owner of the ready operation until it has published the pointer to the record, then the thread that
//!   pops the entry, and a waiter that has won the [claim](crate::notify::claim).
//! * The pointer to the record: used by a waiter only if the waiter won the claim while pinned, and only until it is
//!   unpinned. When the claim was won, the operation had not started, so its record is not reclaimed before the
//!   unpinning.
//! * The entry's share of the record: ended by the thread that pops the entry and does not put it back.
//!
//! # Edges
//!
//! [`look`](crate::sync::edge::look), [`publish`](crate::sync::edge::publish).
//!
//! The queue hands the operation over to the thread that pops the entry.

use crate::sync::{
    Ordering::Relaxed,
    atomic::AtomicU8,
    edge::{self, acquire, release, removed, step},
};

const OUTSIDE: u8 = 0;
const QUEUED: u8 = 1;
const POPPED: u8 = 2;
const TAKEN: u8 = 3;
/// The state of a deletion, or of the engine's wait for one: closed variables accept the operation, and waiters do not
/// take it.
const PASSES_CLOSED: u8 = 4;

/// The state of one operation: whether a queue entry owns it.
#[derive(Debug)]
pub(super) struct Queued(AtomicU8);

/// What a thread receives when it pops an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Popped {
    /// The operation. The entry has no share of its record.
    Op,
    /// The operation and the entry's share.
    OpAndShare,
    /// Only the entry's share.
    Share,
}

impl Queued {
    pub(super) fn new(passes_closed: bool) -> Self {
        Self(AtomicU8::new(if passes_closed { PASSES_CLOSED } else { OUTSIDE }))
    }

    /// Returns whether closed variables accept the operation.
    pub(super) fn passes_closed(&self) -> bool {
        // Relaxed: the state of such an operation never changes.
        self.0.load(Relaxed) == PASSES_CLOSED
    }

    /// Records that an entry is about to own the operation. Returns `false` without changing anything if the operation
    /// has already had an entry or waiters do not take it. Called by the owner.
    pub(super) fn enter(&self) -> bool {
        // Relaxed: no other thread changes the state before the pointer is published.
        let is_first = self.0.load(Relaxed) == OUTSIDE;
        if is_first {
            // Relaxed: the pointer or the queue hands over the operation.
            self.0.store(QUEUED, Relaxed);
        }
        is_first
    }

    /// Undoes [`enter`](Self::enter) before the operation has entered the queue. Called by the owner.
    pub(super) fn leave(&self) {
        // Relaxed: no other thread uses the state, since the pointer was not published.
        self.0.store(OUTSIDE, Relaxed);
    }

    /// Undoes a [`pop`](Self::pop) that returned [`Popped::OpAndShare`], before the entry goes back into a queue.
    pub(super) fn put_back(&self) {
        self.0.store(QUEUED, release(edge::look::PUT_BACK));
    }

    /// Ends an entry, unless it is [put back](Self::put_back). Called by the thread that popped it.
    pub(super) fn pop(&self) -> Popped {
        // Relaxed: as for the CAS. No thread changes this state.
        if self.0.load(Relaxed) == TAKEN {
            return Popped::Share;
        }
        // Relaxed: the queue handed over the operation, and a waiter that took it first needs nothing from this thread.
        match self.0.compare_exchange(QUEUED, POPPED, Relaxed, Relaxed) {
            Ok(_) => Popped::OpAndShare,
            Err(TAKEN) => Popped::Share,
            Err(_) => Popped::Op,
        }
    }

    /// Takes the operation from its entry. Called by a waiter that has won the claim. Returns `false` if another thread
    /// popped the entry first.
    pub(super) fn take(&self) -> bool {
        // If no thread has put the entry back, the pointer has handed over the operation.
        let order = acquire(edge::look::TAKEN);
        self.0.compare_exchange(QUEUED, TAKEN, order, Relaxed).is_ok() || removed(step::TAKE_QUEUED)
    }
}
