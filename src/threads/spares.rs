//! Lists of threads without a worker, each of which waits for one, usually up to a time limit: an engine's spare
//! threads, or a lane's queue of threads whose functions are to continue.
//!
//! # States of a slot
//!
//! | state | changed by | effect on its thread |
//! |---|---|---|
//! | in the list | its thread, which put it in | it waits |
//! | taken by `offer` or `offer_in_turn` | the thread giving a worker away | it runs that worker, even if its time limit passes before it receives the worker |
//! | taken by `end`, `pause` or `dismiss` | the thread that ends the wait | it continues without a worker |
//! | taken by its own thread | its thread, whose time limit has passed | it continues without a worker |
//!
//! Exactly one of these threads takes a slot out of the list, under the lock. A worker is therefore offered only to a
//! thread that will take it, and a thread that gives up was offered none. `offer` takes the slot added last: if few
//! threads suffice, the others reach their time limits.
//!
//! # Edges
//!
//! The slot's lock hands over the worker and everything that its previous thread did with it.
//!
//! # Progress
//!
//! The locks are held for a few steps each, and no foreign code runs under them.

use std::{mem, sync::Arc, time::Instant};

use crate::{
    sync::{Condvar, Mutex, lock, wait_until},
    testing::weaken::{Step, removed},
};

/// The offer to a waiting thread.
enum Offer<W> {
    None,
    Worker(W),
    /// The wait ends without a worker.
    End,
}

struct Slot<W> {
    offer: Mutex<Offer<W>>,
    changed: Condvar,
}

/// A thread's place in the list.
pub struct Place<W>(Arc<Slot<W>>);

impl<W> std::fmt::Debug for Place<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

struct State<W> {
    slots: Vec<Arc<Slot<W>>>,
    ended: bool,
    /// Whether waits return immediately.
    paused: bool,
}

/// Threads that wait for a worker `W`.
pub struct SpareThreads<W>(Mutex<State<W>>);

impl<W> std::fmt::Debug for SpareThreads<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpareThreads").field("slots", &lock(&self.0).slots.len()).finish_non_exhaustive()
    }
}

impl<W> Default for SpareThreads<W> {
    fn default() -> Self {
        Self(Mutex::new(State { slots: Vec::new(), ended: false, paused: false }))
    }
}

impl<W> SpareThreads<W> {
    /// Hands `worker` to the thread that began to wait last.
    ///
    /// # Errors
    /// Returns the worker if no thread waits.
    pub fn offer(&self, worker: W) -> Result<(), W> {
        let slot = lock(&self.0).slots.pop();
        match slot {
            Some(slot) => {
                slot.set(Offer::Worker(worker));
                Ok(())
            }
            None => Err(worker),
        }
    }

    /// Hands `worker` to the thread that has waited longest.
    ///
    /// # Errors
    /// Returns the worker if no thread waits.
    pub fn offer_in_turn(&self, worker: W) -> Result<(), W> {
        match self.take_first() {
            Some(slot) => {
                slot.set(Offer::Worker(worker));
                Ok(())
            }
            None => Err(worker),
        }
    }

    /// Ends the wait of the thread that has waited longest.
    pub fn dismiss(&self) {
        if let Some(slot) = self.take_first() {
            slot.set(Offer::End);
        }
    }

    fn take_first(&self) -> Option<Arc<Slot<W>>> {
        let mut state = lock(&self.0);
        if state.slots.is_empty() { None } else { Some(state.slots.remove(0)) }
    }

    /// Waits for a worker. Returns `None` if the wait was ended or the deadline has passed. In models, deadlines pass
    /// immediately.
    pub fn wait(&self, until: Option<Instant>) -> Option<W> {
        self.enlist().and_then(|place| self.wait_in(&place, until))
    }

    /// Adds the calling thread to the list before it [waits](Self::wait_in). Returns `None` if there will be no more
    /// workers, or if waits are [paused](Self::pause).
    pub fn enlist(&self) -> Option<Place<W>> {
        let slot = Arc::new(Slot { offer: Mutex::new(Offer::None), changed: Condvar::new() });
        let mut state = lock(&self.0);
        if state.ended || state.paused {
            return None;
        }
        state.slots.push(Arc::clone(&slot));
        Some(Place(slot))
    }

    /// [Waits](Self::wait) for a worker at the calling thread's place in the list.
    pub fn wait_in(&self, Place(slot): &Place<W>, until: Option<Instant>) -> Option<W> {
        match slot.wait(until) {
            Offer::Worker(worker) => return Some(worker),
            Offer::End => return None,
            Offer::None => {}
        }
        if self.leave(slot) {
            return None;
        }
        // Another thread has taken the slot and is about to make its offer.
        match slot.wait(None) {
            Offer::Worker(worker) => Some(worker),
            Offer::None | Offer::End => None,
        }
    }

    /// Removes the calling thread's `slot` from the list. Returns `false` if another thread has taken it.
    fn leave(&self, slot: &Arc<Slot<W>>) -> bool {
        let mut state = lock(&self.0);
        let index = state.slots.iter().position(|other| Arc::ptr_eq(other, slot));
        if let Some(index) = index {
            state.slots.remove(index);
        }
        index.is_some() || removed(Step::SparesCheckAgain)
    }

    /// Ends all current and later waits: there will be no more workers.
    pub fn end(&self) {
        self.end_waits(|state| state.ended = true);
    }

    /// Ends all current waits, and later ones until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.end_waits(|state| state.paused = true);
    }

    /// Undoes a [pause](Self::pause): threads can wait again.
    pub fn resume(&self) {
        lock(&self.0).paused = false;
    }

    fn end_waits(&self, why: impl FnOnce(&mut State<W>)) {
        let slots = {
            let mut state = lock(&self.0);
            why(&mut state);
            mem::take(&mut state.slots)
        };
        for slot in slots {
            slot.set(Offer::End);
        }
    }

    /// Whether [`end`](Self::end) was called.
    pub fn have_ended(&self) -> bool {
        lock(&self.0).ended
    }
}

impl<W> Slot<W> {
    fn set(&self, offer: Offer<W>) {
        *lock(&self.offer) = offer;
        self.changed.notify_one();
    }

    /// Waits for the offer and takes it. Returns [`Offer::None`] only if the deadline has passed.
    fn wait(&self, until: Option<Instant>) -> Offer<W> {
        let mut offer = lock(&self.offer);
        loop {
            match mem::replace(&mut *offer, Offer::None) {
                Offer::None => {}
                offer => return offer,
            }
            if cfg!(any(raddle_loom, raddle_shuttle)) && until.is_some() {
                return Offer::None;
            }
            match wait_until(&self.changed, offer, until) {
                Ok(again) => offer = again,
                Err(_) => return Offer::None,
            }
        }
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests {
    use std::{sync::Barrier, thread, time::Duration};

    use super::*;

    #[test]
    fn two_workers_offered_concurrently_are_both_taken() {
        for _ in 0..1000 {
            let (spares, start) = (SpareThreads::default(), Barrier::new(3));
            let taken: usize = thread::scope(|scope| {
                let waits = [(); 2].map(|()| scope.spawn(|| spares.wait(None).expect("a worker")));
                while lock(&spares.0).slots.len() < 2 {
                    thread::yield_now();
                }
                for worker in [1, 2] {
                    let (spares, start) = (&spares, &start);
                    scope.spawn(move || {
                        start.wait();
                        spares.offer(worker).expect("two threads should wait");
                    });
                }
                start.wait();
                waits.map(|wait| wait.join().expect("the thread should not panic")).iter().sum()
            });
            assert_eq!(taken, 3);
        }
    }

    #[test]
    fn a_worker_offered_to_a_thread_that_gives_up_is_taken_or_returned() {
        let mut taken = 0;
        for round in 0..2000 {
            let (spares, start) = (SpareThreads::default(), Barrier::new(2));
            thread::scope(|scope| {
                let wait = scope.spawn(|| {
                    start.wait();
                    spares.wait(Some(Instant::now() + Duration::from_micros(round % 50)))
                });
                start.wait();
                let offered = spares.offer(()).is_ok();
                assert_eq!(wait.join().expect("the thread should not panic").is_some(), offered);
                taken += u32::from(offered);
            });
            assert!(lock(&spares.0).slots.is_empty());
        }
        println!("{taken} of 2000 were taken");
    }

    /// This order lets unneeded threads reach their time limits.
    #[test]
    fn the_last_waiter_is_offered_a_worker_first() {
        let spares = SpareThreads::default();
        thread::scope(|scope| {
            let waits: Vec<_> = (1..=3)
                .map(|count| {
                    let wait = scope.spawn(|| spares.wait(None));
                    while lock(&spares.0).slots.len() < count {
                        thread::yield_now();
                    }
                    wait
                })
                .collect();
            for worker in [3, 2, 1] {
                spares.offer(worker).expect("a thread should wait");
            }
            let taken: Vec<_> =
                waits.into_iter().map(|wait| wait.join().expect("the thread should not panic")).collect();
            assert_eq!(taken, [Some(1), Some(2), Some(3)]);
        });
    }

    #[test]
    fn the_end_reaches_current_and_later_waiters() {
        let spares = SpareThreads::<()>::default();
        thread::scope(|scope| {
            let wait = scope.spawn(|| spares.wait(None));
            while lock(&spares.0).slots.is_empty() {
                thread::yield_now();
            }
            spares.end();
            assert!(wait.join().expect("the thread should not panic").is_none());
        });
        assert!(spares.wait(None).is_none());
        assert!(spares.have_ended());
        assert!(spares.offer(()).is_err());
    }
}
