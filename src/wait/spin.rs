//! How a thread outside operations waits at first: it checks again and again whether its wait is over. To sleep and to
//! be woken takes longer than a short operation.
//!
//! If the thread shares its core with the worker that it waits for, or operations are long, such a check never
//! succeeds. So an engine gives up checking after [`MAX_MISSES`] waits in which it was in vain, and from then on tries
//! it in one wait of [`WAITS_PER_TRY`].
//!
//! Any thread may change the count of misses, which is a hint.

use std::time::{Duration, Instant};

use crate::{
    scheduler::IdlePolicy,
    sync::{Ordering::Relaxed, atomic::AtomicU32, hint},
};

/// How long a wait is checked, at most: about as long as it takes to put a thread to sleep.
const LIMIT: Duration = Duration::from_micros(10);

/// The number of consecutive checks in vain after which most waits sleep at once. Not tuned.
const MAX_MISSES: u32 = 4;

/// Of how many waits one is checked while checks are in vain. Not tuned.
const WAITS_PER_TRY: u32 = 256;

/// The number of pauses between two checks. A check may take the lock that the thread which ends the wait needs.
const PAUSES: u32 = 4;

/// The number of checks between two readings of the clock.
const CHECKS_PER_CLOCK: u32 = 4;

/// The waits of an engine whose checks were in vain.
#[derive(Debug, Default)]
pub(crate) struct Spins {
    /// The number of consecutive waits that have been in vain, or that have not been tried since.
    misses: AtomicU32,
}

impl Spins {
    /// Checks whether a wait is over until it is, or for a short time. The engine's workers are idle as `idle` says.
    pub(crate) fn spin(&self, idle: IdlePolicy, deadline: Option<Instant>, is_over: impl Fn() -> bool) {
        // Models have no clock.
        if idle == IdlePolicy::Park || cfg!(any(raddle_loom, raddle_shuttle)) {
            return;
        }
        // Relaxed, like the stores: a hint.
        let misses = self.misses.load(Relaxed);
        if (MAX_MISSES..MAX_MISSES + WAITS_PER_TRY).contains(&misses) {
            return self.misses.store(misses + 1, Relaxed);
        }
        let start = Instant::now();
        let limit = deadline.map_or(LIMIT, |deadline| LIMIT.min(deadline.saturating_duration_since(start)));
        let finds = || {
            (0..PAUSES).for_each(|_| hint::spin_loop());
            is_over()
        };
        if limit.is_zero() {
            return;
        }
        // Checked at least once, even if the thread does not run meanwhile.
        let has_found = loop {
            let has_found = (0..CHECKS_PER_CLOCK).any(|_| finds());
            if has_found || start.elapsed() >= limit {
                break has_found;
            }
        };
        let after = if has_found { 0 } else { MAX_MISSES.min(misses + 1) };
        // Not stored again if it stays, so that waiting threads share the cache line.
        if after != misses {
            self.misses.store(after, Relaxed);
        }
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests {
    use std::{cell::Cell, iter};

    use super::*;

    /// Whether a wait that ends after `checks` checks is checked at all.
    fn is_checked(spins: &Spins, idle: IdlePolicy, checks: u32) -> bool {
        let count = Cell::new(0);
        spins.spin(idle, None, || {
            count.set(count.get() + 1);
            count.get() > checks
        });
        count.get() > 0
    }

    #[test]
    fn waits_that_end_soon_are_checked_and_others_only_now_and_then() {
        let (spins, idle) = (Spins::default(), IdlePolicy::default());
        assert!((0..1_000).all(|_| is_checked(&spins, idle, 3)), "the waits end soon");
        let checked = iter::repeat_with(|| is_checked(&spins, idle, u32::MAX)).take(1_000).filter(|&checked| checked);
        let checked = checked.count() as u32;
        assert_eq!(checked, MAX_MISSES + (1_000 - MAX_MISSES) / (WAITS_PER_TRY + 1));
        // The next try finds that waits end soon again.
        let tried = (0..=WAITS_PER_TRY).find(|_| is_checked(&spins, idle, 0));
        assert!(tried.is_some() && (0..1_000).all(|_| is_checked(&spins, idle, 0)));
    }

    #[test]
    fn a_wait_is_not_checked_for_long_nor_where_workers_park() {
        let spins = Spins::default();
        assert!(!is_checked(&spins, IdlePolicy::Park, 0));
        let start = Instant::now();
        spins.spin(IdlePolicy::Spin, Some(start), || unreachable!("the deadline has passed"));
        spins.spin(IdlePolicy::Spin, None, || false);
        assert!(start.elapsed() >= LIMIT);
    }
}
