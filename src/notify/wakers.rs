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
    sync::{Mutex, fork::ProcessMark, lock},
    system::panics,
};

/// A future's key among those that wait.
#[derive(Debug, Default)]
pub struct WakerKey {
    /// What the future waits for, in the order in which that ends.
    target: u64,
    /// What tells it from others with this target, once it has left a waker, and where that was.
    number: Option<(u64, ProcessMark)>,
}

impl WakerKey {
    /// The key of a future that waits for `target`.
    pub fn new(target: u64) -> Self {
        Self { target, number: None }
    }

    /// What the future waits for.
    pub fn target(&self) -> u64 {
        self.target
    }

    fn map_key(&self) -> Option<(u64, u64)> {
        self.number.map(|(number, _)| (self.target, number))
    }
}

/// The wakers of the futures that wait, to be kept under a lock.
#[derive(Debug, Default)]
pub struct Waiting {
    /// By target and number.
    wakers: BTreeMap<(u64, u64), Waker>,
    /// The last number given.
    last: u64,
}

impl Waiting {
    /// Whether the future at `key` has left this very waker.
    fn has(&self, key: &WakerKey, waker: &Waker) -> bool {
        key.map_key().and_then(|key| self.wakers.get(&key)).is_some_and(|known| known.will_wake(waker))
    }

    /// Leaves `waker` for the future at `key`; gives the one before.
    #[must_use = "it is to be dropped after the lock"]
    fn put(&mut self, key: &mut WakerKey, waker: Waker) -> Option<Waker> {
        let (number, _) = *key.number.get_or_insert_with(|| {
            self.last += 1;
            (self.last, ProcessMark::current())
        });
        self.wakers.insert((key.target, number), waker)
    }

    /// Takes the wakers of those that wait for `target`, or for less.
    pub fn take_up_to(&mut self, target: u64) -> Option<Wakers> {
        let mut wakers = Vec::new();
        while let Some(first) = self.wakers.first_entry().filter(|first| first.key().0 <= target) {
            wakers.push(first.remove());
        }
        (!wakers.is_empty()).then(|| Wakers(Box::new(wakers)))
    }
}

/// What `look` finds, or the future's waker is left with those that it gives.
pub fn poll<S, R>(
    state: &Mutex<S>,
    key: &mut WakerKey,
    waker: &Waker,
    look: impl Fn(&mut S) -> Result<R, &mut Waiting>,
) -> Poll<R> {
    match look(&mut lock(state)) {
        Ok(found) => return Poll::Ready(found),
        Err(waiting) if waiting.has(key, waker) => return Poll::Pending,
        Err(_) => {}
    }
    let own = waker.clone();
    let mut state = lock(state);
    let (polled, unused) = match look(&mut state) {
        Ok(found) => (Poll::Ready(found), Some(own)),
        Err(waiting) => (Poll::Pending, waiting.put(key, own)),
    };
    drop(state);
    drop(unused);
    polled
}

/// Takes away what the future at `key`, which is dropped, has left with `waiting`.
pub fn leave<S>(state: &Mutex<S>, key: &mut WakerKey, waiting: impl FnOnce(&mut S) -> Option<&mut Waiting>) {
    let Some(map_key) = key.map_key() else { return };
    if key.number.take().is_some_and(|(_, process)| process.is_foreign()) {
        // In a forked child the lock may be held for ever.
        return;
    }
    let waker = waiting(&mut lock(state)).and_then(|waiting| waiting.wakers.remove(&map_key));
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
