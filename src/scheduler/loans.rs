//! Loans: a function that has waited goes on without a worker, in the stead of a worker that is idle.
//!
//! A function that waits hands its worker over. When it goes on, it borrows the place of an idle worker, and gives it back
//! when it waits again or returns. A worker that finds work meanwhile stays idle, unless the others that are idle cover all
//! loans. So no more functions compute than the lane has workers.
//!
//! # States of a worker
//!
//! | state | counts as idle | next |
//! |---|---|---|
//! | searches or sleeps | yes | has found something |
//! | has found something | no | works, if no place is lent or the other idle workers cover the loans; else stays idle |
//! | stays idle | yes | has found something, when a place was given back or a time limit has passed |
//!
//! What a worker has found goes back where other workers find it before the worker stays idle.
//!
//! # Who may touch what
//!
//! * `lent`: any thread. It is changed by read-modify-writes only.
//! * `staying`: under the lock.
//! * Whether a worker is idle: the worker itself ([`Sleep::note_idle`]).
//!
//! # Edges
//!
//! There are none: nothing is handed over. The fences of [`borrow`](Loans::borrow) and of the worker that ends its search
//! ([`Sleep::stop_search`]) or its stay decide between a borrower and a worker: the borrower sees that the worker is not
//! idle, or the worker sees the loan. Two workers decide one after the other, under the lock.

use std::time::Instant;

use super::sleep::Sleep;
use crate::{
    sync::{
        Condvar, Mutex,
        Ordering::{Relaxed, SeqCst},
        atomic::{AtomicUsize, fence},
        lock, wait_until,
    },
    testing::weaken::{Step, removed},
};

/// What a worker that has found something has done because places were lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Nothing: the other idle workers cover the loans.
    None,
    /// It has stayed idle, until a place was given back.
    Over,
    /// It has stayed idle, until the time limit had passed.
    TimedOut,
}

/// The loans of a lane.
#[derive(Debug, Default)]
pub struct Loans {
    /// How many places are lent.
    lent: AtomicUsize,
    /// How many workers stay idle.
    staying: Mutex<usize>,
    given_back: Condvar,
}

impl Loans {
    /// Borrows the place of an idle worker. Returns `false` if there is none.
    #[must_use]
    pub fn borrow(&self, sleep: &Sleep) -> bool {
        // Relaxed: ordered by the fence.
        let lent = self.lent.fetch_add(1, Relaxed) + 1;
        if !removed(Step::BorrowFence) {
            // Pairs with the fence of a worker that has found something.
            fence(SeqCst);
        }
        let is_covered = sleep.count_idle() >= lent;
        if !is_covered {
            self.give_back();
        }
        is_covered
    }

    /// Gives the place of a worker back.
    pub fn give_back(&self) {
        // Under the lock, so that no worker that is about to stay idle misses it. Relaxed: handed over by the lock.
        let staying = lock(&self.staying);
        self.lent.fetch_sub(1, Relaxed);
        if *staying > 0 && !removed(Step::GiveBackNotifies) {
            self.given_back.notify_all();
        }
    }

    /// Whether a worker that has found something may have to [stay idle](Self::stay_idle). The caller has passed a fence
    /// since it has noted that it is not idle.
    #[inline]
    pub fn are_any(&self) -> bool {
        // Relaxed: ordered by the caller's fence.
        self.lent.load(Relaxed) > 0
    }

    /// Lets `worker`, which has found something, stay idle until the other idle workers cover the loans, or until `deadline`.
    /// Before that, it calls `put_back`. The worker counts as busy when this returns.
    pub fn stay_idle(&self, sleep: &Sleep, worker: usize, deadline: Option<Instant>, put_back: impl FnOnce()) -> Stay {
        let is_covered = || sleep.count_idle() >= self.lent.load(Relaxed);
        let mut staying = lock(&self.staying);
        if is_covered() {
            return Stay::None;
        }
        *staying += 1;
        sleep.note_idle(worker);
        drop(staying);
        // Not under the lock: it wakes other workers.
        put_back();
        let mut staying = lock(&self.staying);
        loop {
            sleep.note_busy(worker);
            // Pairs with the fence of `borrow`.
            fence(SeqCst);
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
