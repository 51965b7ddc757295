//! What an operation that commutes needs, beside its accesses.
//!
//! # Who may touch what
//!
//! * The number is constant.
//! * `given_way`: the owner of the ready operation.

use crate::sync::{Ordering::Relaxed, atomic::AtomicU8};

/// What an operation that commutes needs.
#[derive(Debug)]
pub(crate) struct Commutes {
    /// The lower part of the number of the push.
    low: u32,
    /// The higher part.
    high: u16,
    given_way: AtomicU8,
}

impl Commutes {
    /// `number` increases with the order of the pushes. Pushes at the same time may have theirs in either order.
    pub(crate) fn new(number: u64) -> Self {
        Self { low: number as u32, high: (number >> 32) as u16, given_way: AtomicU8::new(0) }
    }

    /// Returns how often the operation has [given way](crate::notify::turn).
    pub(crate) fn given_way(&self) -> u8 {
        // Relaxed, like the store: used only by the owner.
        self.given_way.load(Relaxed)
    }

    /// Changes how often the operation has given way.
    pub(crate) fn set_given_way(&self, times: u8) {
        // Relaxed: see above.
        self.given_way.store(times, Relaxed);
    }

    /// Returns the number of the push.
    pub(crate) fn number(&self) -> u64 {
        u64::from(self.low) | u64::from(self.high) << 32
    }
}
