//! Wakers of futures that wait for the same thing: at most one a future, and kept no longer than the future.
//!
//! A waker is the program's code: its clone, its drop and its `wake` may do anything, also come back here. So none of them
//! runs under a lock: [`poll`] clones before it takes the lock, and what a change takes out is given back, to be dropped
//! or woken afterwards.

use std::{
    collections::BTreeMap,
    task::{Poll, Waker},
};

use crate::{
    sync::{Mutex, fork::Birth, lock},
    system::panics,
};

/// A future's place among those that wait.
#[derive(Debug, Default)]
pub struct Place {
    /// What the future waits for, in the order in which that ends.
    mark: u64,
    /// What tells it from others with this mark, once it has left a waker, and where that was.
    number: Option<(u64, Birth)>,
}

impl Place {
    /// The place of a future that waits for `mark`.
    pub fn at(mark: u64) -> Self {
        Self { mark, number: None }
    }

    /// What the future waits for.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    fn key(&self) -> Option<(u64, u64)> {
        self.number.map(|(number, _)| (self.mark, number))
    }
}

/// The wakers of the futures that wait, to be kept under a lock.
#[derive(Debug, Default)]
pub struct Waiting {
    /// By mark and number.
    wakers: BTreeMap<(u64, u64), Waker>,
    /// The last number given.
    last: u64,
}

impl Waiting {
    /// Whether the future at `place` has left this very waker.
    fn has(&self, place: &Place, waker: &Waker) -> bool {
        place.key().and_then(|key| self.wakers.get(&key)).is_some_and(|known| known.will_wake(waker))
    }

    /// Leaves `waker` for the future at `place`; gives the one before.
    #[must_use = "it is to be dropped after the lock"]
    fn put(&mut self, place: &mut Place, waker: Waker) -> Option<Waker> {
        let (number, _) = *place.number.get_or_insert_with(|| {
            self.last += 1;
            (self.last, Birth::now())
        });
        self.wakers.insert((place.mark, number), waker)
    }

    /// Takes the wakers of those that wait for `mark`, or for less.
    pub fn take_up_to(&mut self, mark: u64) -> Option<Wakers> {
        let mut wakers = Vec::new();
        while let Some(first) = self.wakers.first_entry().filter(|first| first.key().0 <= mark) {
            wakers.push(first.remove());
        }
        (!wakers.is_empty()).then(|| Wakers(Box::new(wakers)))
    }
}

/// What `look` finds, or the future's waker is left with those that it gives.
pub fn poll<S, R>(
    state: &Mutex<S>,
    place: &mut Place,
    waker: &Waker,
    look: impl Fn(&mut S) -> Result<R, &mut Waiting>,
) -> Poll<R> {
    match look(&mut lock(state)) {
        Ok(found) => return Poll::Ready(found),
        Err(waiting) if waiting.has(place, waker) => return Poll::Pending,
        Err(_) => {}
    }
    let own = waker.clone();
    let mut state = lock(state);
    let (polled, unused) = match look(&mut state) {
        Ok(found) => (Poll::Ready(found), Some(own)),
        Err(waiting) => (Poll::Pending, waiting.put(place, own)),
    };
    drop(state);
    drop(unused);
    polled
}

/// Takes away what the future at `place`, which is dropped, has left with `waiting`.
pub fn leave<S>(state: &Mutex<S>, place: &mut Place, waiting: impl FnOnce(&mut S) -> Option<&mut Waiting>) {
    let Some(key) = place.key() else { return };
    if place.number.take().is_some_and(|(_, birth)| birth.is_foreign()) {
        // In a forked child the lock may be held for ever.
        return;
    }
    let waker = waiting(&mut lock(state)).and_then(|waiting| waiting.wakers.remove(&key));
    drop(waker);
}

/// Wakers of futures whose wait is over. They are to be woken by a thread that holds no lock, and nothing that somebody may
/// wait for.
#[must_use = "futures wait for it"]
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "one word, and null where nobody waits")]
pub struct Wakers(Box<Vec<Waker>>);

impl Wakers {
    /// Wakes the futures. What a waker panics with goes no further.
    #[cold]
    #[inline(never)]
    pub fn wake(self) {
        for waker in *self.0 {
            if let Err(payload) = panics::catch(|| waker.wake()) {
                panics::discard(payload);
                panics::log!(Error, "raddle: a waker panicked");
            }
        }
    }
}
