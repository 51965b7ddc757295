//! The counts of an operation with children: the parts of its work and the shares of its family.
//!
//! # States
//!
//! 1. *Working*: `parts` is not zero. The parent's function is a part of its work, as are a future with its guards,
//!    each push of a child, and each creation of a variable of the family. Children wait.
//! 2. *Released*: the last part has ended. The thread that ended it releases the children into their queues, and holds
//!    a share of the family until it has done so.
//! 3. *Over*: the last share has been dropped. The thread that dropped it completes the parent.
//!
//! # Who may touch what
//!
//! * `parts`: incremented by any thread while it is not zero ([`begin_part`](FamilyCount::begin_part)); decremented by
//!   the owner of a part.
//! * `open`: incremented by the owner of a part or share; decremented by the owner of a share. There is one share each
//!   for the parent's work, the right to complete the parent if it is asynchronous, each child, and the drop of the
//!   value of each of the family's variables.
//!
//! # Edges
//!
//! [`part`](crate::sync::edge::part), [`child`](crate::sync::edge::child).
//!
//! # Progress
//!
//! Every function is wait-free except `begin_part`, which is lock-free: apart from spurious failures of its CAS, it
//! repeats the CAS only if another thread has begun or ended a part.

use crate::sync::{
    Ordering::Relaxed,
    atomic::AtomicU64,
    edge::{self, acquire_all, release, removed, step},
};

/// The counts of a family.
#[derive(Debug)]
pub struct FamilyCount {
    parts: AtomicU64,
    open: AtomicU64,
}

impl Default for FamilyCount {
    fn default() -> Self {
        Self::new()
    }
}

impl FamilyCount {
    /// Creates the counts of a parent whose function is about to be called.
    #[must_use]
    pub fn new() -> Self {
        let work = u64::from(!removed(step::WORK_HAS_A_SHARE));
        Self { parts: AtomicU64::new(1), open: AtomicU64::new(work) }
    }

    /// Begins another part of the parent's work, unless the work is over. Returns whether a part has begun.
    #[must_use = "the part must be ended"]
    pub fn begin_part(&self) -> bool {
        // Relaxed: zero is final, and any other value is only a guess for the exchange.
        let mut parts = self.parts.load(Relaxed);
        while parts != 0 || removed(step::ADMIT_WHILE_WORKING) {
            // Relaxed: the caller reads nothing written in other parts. The part that begins here keeps the count above
            // zero, and the end of that part releases.
            match self.parts.compare_exchange_weak(parts, parts + 1, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => parts = now,
            }
        }
        false
    }

    /// Ends a part of the parent's work. Returns whether that part was the last one; if so, the caller must release the
    /// children into their queues and then [leave](Self::leave).
    #[must_use = "the children must be released"]
    pub fn end_part(&self) -> bool {
        let last = self.parts.fetch_sub(1, release(edge::part::ENDED)) == 1;
        if last {
            acquire_all(edge::part::LAST, &self.parts);
        }
        last || removed(step::EVERY_PART_COUNTS)
    }

    /// Adds a share. The caller must own a part or a share.
    pub fn enter(&self) {
        // Relaxed: the caller's part or share keeps the count above zero.
        self.open.fetch_add(1, Relaxed);
    }

    /// Drops a share. Returns whether that share was the last one; if so, the caller must complete the parent.
    #[must_use = "the parent must be completed"]
    pub fn leave(&self) -> bool {
        if removed(step::WORK_HAS_A_SHARE) && self.is_over() {
            return true;
        }
        let last = self.open.fetch_sub(1, release(edge::child::ENDED)) == 1;
        if last {
            acquire_all(edge::child::LAST, &self.open);
        }
        last
    }

    /// Whether every share has been dropped. The answer is exact for the owner of a share, and a hint for other
    /// threads.
    pub fn is_over(&self) -> bool {
        // Relaxed: nothing written by the children is read.
        self.open.load(Relaxed) == 0
    }
}
