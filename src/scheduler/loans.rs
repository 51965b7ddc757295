//! Loans, which allow a function that has waited to continue without a worker, in a worker's place.
//!
//! When a function waits, it hands its worker over to another thread. When it continues, it borrows a worker's place,
//! and gives the place back when it waits again, returns or receives a worker. A lane lends one place for each worker.
//!
//! * If a worker is idle, its place is lent. A worker that finds work in the meantime stays idle, unless the other idle
//!   workers cover all loans. So such loans never let more functions compute than the lane has workers, unless a worker
//!   stays idle until its time limit.
//! * Otherwise, the place of a busy worker is lent. A worker [gives way](Loans::give_way) between two operations, and
//!   stays idle as above.
//!
//! # States of a worker
//!
//! | state | counts as idle | next |
//! |---|---|---|
//! | searches or sleeps | yes, except during a call to `find` | has found something |
//! | has found something | no | works, if the other idle workers cover the loans, or if it has just stayed idle until its time limit; otherwise stays idle |
//! | gives way | no | like one that has found something |
//! | stays idle | yes | continues, once the other idle workers cover the loans or its time limit has passed |
//!
//! Before staying idle, a worker puts what it found where other workers can find it.
//!
//! # Who may touch what
//!
//! * `lent`, `asked`: any thread. They are changed by read-modify-writes only.
//! * `staying`: under the lock.
//! * Whether a worker is idle: recorded by the thread that runs the worker ([`Sleep::note_idle`]).
//!
//! # Edges
//!
//! None: nothing is handed over. The fences of [`borrow`](Loans::borrow) and of the worker that ends its search
//! ([`Sleep::stop_search`]) or its stay decide between a borrower and a worker: the borrower sees that the worker is
//! not idle, or the worker sees the loan. Two workers decide one after the other, under the lock. A worker that gives
//! way may miss a loan, and then sees it between its next operations.

use std::time::Instant;

use super::sleep::Sleep;
use crate::sync::{
    Condvar, Mutex,
    Ordering::Relaxed,
    atomic::{AtomicBool, AtomicUsize},
    edge::{self, full_fence, removed, step},
    lock, wait_until,
};

/// Whose place is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LentPlace {
    /// That of an idle worker.
    Idle,
    /// That of a busy worker, so a worker should [give way](Loans::give_way).
    Busy,
}

/// How a worker that found something dealt with the loans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// The worker did not stay idle: the other idle workers cover the loans.
    None,
    /// The worker stayed idle until the other idle workers covered the loans.
    Over,
    /// The worker stayed idle until the time limit.
    TimedOut,
}

/// The loans of a lane.
#[derive(Debug, Default)]
pub struct Loans {
    /// The number of places on loan.
    lent: AtomicUsize,
    /// Whether a worker was asked to give way and has yet to do so.
    asked: AtomicBool,
    /// The number of workers staying idle because of loans.
    staying: Mutex<usize>,
    given_back: Condvar,
}

impl Loans {
    /// Borrows the place of one of the `workers`, idle ones first. Returns `None` if all places are lent.
    #[must_use]
    pub fn borrow(&self, sleep: &Sleep, workers: usize) -> Option<LentPlace> {
        // Relaxed: ordered by the fence, like the exchange.
        let mut before = self.lent.load(Relaxed);
        while before < workers {
            match self.lent.compare_exchange(before, before + 1, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        if before >= workers {
            return None;
        }
        // Pairs with the fence of a worker that has found something.
        full_fence(edge::lent::BORROW);
        Some(if sleep.count_idle() > before { LentPlace::Idle } else { LentPlace::Busy })
    }

    /// Notes that a worker is asked to give way. Returns `false` if one has been asked and has yet to do so.
    pub fn ask(&self) -> bool {
        // Relaxed: a worker that gives way too late or in vain does no harm.
        !self.asked.swap(true, Relaxed)
    }

    /// Notes that a worker answers, and is about to [give way](Self::give_way). Returns whether more must do so.
    pub fn answer(&self, sleep: &Sleep) -> bool {
        // Relaxed: as in `ask`.
        self.asked.swap(false, Relaxed);
        // Relaxed: as in `ask`.
        sleep.count_idle() + 1 < self.lent.load(Relaxed)
    }

    /// Keeps `worker`, which is between two operations, idle like one that [has found something](Self::stay_idle).
    pub fn give_way(&self, sleep: &Sleep, worker: usize, deadline: Option<Instant>) -> Stay {
        if self.are_any() { self.stay_idle(sleep, worker, deadline, || ()) } else { Stay::None }
    }

    /// Gives back a worker's place.
    pub fn give_back(&self) {
        // Changed under the lock, so a worker about to stay idle cannot miss the change. Relaxed: the lock hands the
        // change over.
        let staying = lock(&self.staying);
        self.lent.fetch_sub(1, Relaxed);
        if *staying > 0 && !removed(step::GIVE_BACK_NOTIFIES) {
            self.given_back.notify_all();
        }
    }

    /// Whether a worker that has found something may have to [stay idle](Self::stay_idle). The caller must have passed
    /// a fence since recording that it is not idle.
    #[inline]
    pub fn are_any(&self) -> bool {
        // Relaxed: ordered by the caller's fence.
        self.lent.load(Relaxed) > 0
    }

    /// Keeps `worker`, which has found something, idle until the other idle workers cover the loans or `deadline`
    /// passes. Calls `put_back` first, unless the loans are covered already. The worker counts as busy when this
    /// returns.
    pub fn stay_idle(&self, sleep: &Sleep, worker: usize, deadline: Option<Instant>, put_back: impl FnOnce()) -> Stay {
        // Relaxed: ordered by the fence before this call, and later by the one below.
        let is_covered = || sleep.count_idle() >= self.lent.load(Relaxed);
        let mut staying = lock(&self.staying);
        if is_covered() {
            return Stay::None;
        }
        *staying += 1;
        sleep.note_idle(worker);
        drop(staying);
        // Not under the lock: `put_back` wakes other workers.
        put_back();
        let mut staying = lock(&self.staying);
        loop {
            sleep.note_busy(worker);
            // Pairs with the fence of `borrow`.
            full_fence(edge::lent::STAY);
            if is_covered() {
                *staying -= 1;
                return Stay::Over;
            }
            sleep.note_idle(worker);
            match wait_until(&self.given_back, staying, deadline) {
                Ok(again) => staying = again,
                Err(_) => {
                    sleep.note_busy(worker);
                    *lock(&self.staying) -= 1;
                    return Stay::TimedOut;
                }
            }
        }
    }
}
