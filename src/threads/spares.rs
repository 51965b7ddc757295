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

use crate::sync::{
    Condvar, Mutex,
    edge::{removed, step},
    lock, wait_until,
};

/// The offer to a waiting thread.
enum Offer<W> {
    None,
    Worker(W),
    /// The wait ends without a worker.
    End,
}

struct OfferSlot<W> {
    offer: Mutex<Offer<W>>,
    changed: Condvar,
}

/// A thread's place in the list.
pub struct SparePlace<W>(Arc<OfferSlot<W>>);

impl<W> std::fmt::Debug for SparePlace<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SparePlace").finish_non_exhaustive()
    }
}

struct SparesState<W> {
    slots: Vec<Arc<OfferSlot<W>>>,
    ended: bool,
    /// Whether waits return immediately.
    paused: bool,
}

/// Threads that wait for a worker `W`.
pub struct SpareThreads<W>(Mutex<SparesState<W>>);

impl<W> std::fmt::Debug for SpareThreads<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpareThreads").field("slots", &lock(&self.0).slots.len()).finish_non_exhaustive()
    }
}

impl<W> Default for SpareThreads<W> {
    fn default() -> Self {
        Self(Mutex::new(SparesState { slots: Vec::new(), ended: false, paused: false }))
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

    fn take_first(&self) -> Option<Arc<OfferSlot<W>>> {
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
    pub fn enlist(&self) -> Option<SparePlace<W>> {
        let slot = Arc::new(OfferSlot { offer: Mutex::new(Offer::None), changed: Condvar::new() });
        let mut state = lock(&self.0);
        if state.ended || state.paused {
            return None;
        }
        state.slots.push(Arc::clone(&slot));
        Some(SparePlace(slot))
    }

    /// [Waits](Self::wait) for a worker at the calling thread's place in the list.
    pub fn wait_in(&self, SparePlace(slot): &SparePlace<W>, until: Option<Instant>) -> Option<W> {
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
    fn leave(&self, slot: &Arc<OfferSlot<W>>) -> bool {
        let mut state = lock(&self.0);
        let index = state.slots.iter().position(|other| Arc::ptr_eq(other, slot));
        if let Some(index) = index {
            state.slots.remove(index);
        }
        index.is_some() || removed(step::SPARES_CHECK_AGAIN)
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

    fn end_waits(&self, why: impl FnOnce(&mut SparesState<W>)) {
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

impl<W> OfferSlot<W> {
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
mod tests;
