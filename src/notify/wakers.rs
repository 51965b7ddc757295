//! The wakers of futures that wait for the same thing: at most one for each future, removed when the future is dropped.
//!
//! A waker is program code: its clone, its drop and its `wake` may do anything, including calls to this module. So none
//! of them runs under a lock: [`poll`] clones the waker without holding the lock, and a removed waker is dropped or
//! woken after the lock is released.

use std::{
    collections::BTreeMap,
    task::{Poll, Waker},
};

use crate::{
    sync::{Mutex, lock, process::ProcessMark},
    system::panics,
};

/// The key under which a future registers its waker.
#[derive(Debug, Default)]
pub struct WakerKey {
    /// The number for which the future waits, or 0 if it waits for something without a number. Waits for lower numbers
    /// end first.
    target: u64,
    /// The number that distinguishes the future from others with the same target, and the process in which the future
    /// registered a waker; `None` before it registers one.
    number: Option<(u64, ProcessMark)>,
}

impl WakerKey {
    /// Creates the key of a future that waits for `target`.
    pub fn new(target: u64) -> Self {
        Self { target, number: None }
    }

    /// Returns the number for which the future waits.
    pub fn target(&self) -> u64 {
        self.target
    }

    fn map_key(&self) -> Option<(u64, u64)> {
        self.number.map(|(number, _)| (self.target, number))
    }
}

/// The registered wakers, protected by the caller's lock. One word, since no future waits for most results.
#[derive(Debug, Default)]
pub struct Waiting(Option<Box<Registered>>);

/// The wakers of something for which a future has waited.
#[derive(Debug, Default)]
struct Registered {
    /// The wakers, by target and number.
    wakers: BTreeMap<(u64, u64), Waker>,
    /// The last number used.
    last: u64,
}

impl Waiting {
    /// Whether the future with `key` has registered a waker that wakes the same task as `waker`.
    fn has(&self, key: &WakerKey, waker: &Waker) -> bool {
        let known = key.map_key().zip(self.0.as_ref()).and_then(|(key, registered)| registered.wakers.get(&key));
        known.is_some_and(|known| known.will_wake(waker))
    }

    /// Registers `waker` for the future with `key`. Returns the waker that `waker` replaces, if there is one.
    #[must_use = "a replaced waker must be dropped after the lock is released"]
    fn insert(&mut self, key: &mut WakerKey, waker: Waker) -> Option<Waker> {
        let Registered { wakers, last } = &mut **self.0.get_or_insert_default();
        let (number, _) = *key.number.get_or_insert_with(|| {
            *last += 1;
            (*last, ProcessMark::current())
        });
        wakers.insert((key.target, number), waker)
    }

    /// Removes the waker registered under this target and number.
    fn remove(&mut self, map_key: (u64, u64)) -> Option<Waker> {
        self.0.as_mut()?.wakers.remove(&map_key)
    }

    /// Whether no future is waiting.
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|registered| registered.wakers.is_empty())
    }

    /// Takes the waker of the future with the lowest target and number.
    pub fn take_first(&mut self) -> Option<Wakers> {
        self.0.as_mut()?.wakers.pop_first().map(|(_, waker)| Wakers(Box::new(vec![waker])))
    }

    /// Takes the wakers of futures that wait for `target` or a lower number.
    #[inline]
    pub fn take_up_to(&mut self, target: u64) -> Option<Wakers> {
        self.0.as_mut()?.take_up_to(target)
    }
}

impl Registered {
    #[inline(never)]
    fn take_up_to(&mut self, target: u64) -> Option<Wakers> {
        let mut wakers = Vec::new();
        while let Some(first) = self.wakers.first_entry().filter(|first| first.key().0 <= target) {
            wakers.push(first.remove());
        }
        (!wakers.is_empty()).then(|| Wakers(Box::new(wakers)))
    }
}

/// Calls `check` under the lock, and returns the result that `check` finds. If there is none yet, registers the
/// future's waker with the [`Waiting`] that `check` returns instead. The waker is cloned without the lock, so `check`
/// is called again after that.
pub fn poll<S, R>(
    state: &Mutex<S>,
    key: &mut WakerKey,
    waker: &Waker,
    check: impl Fn(&mut S) -> Result<R, &mut Waiting>,
) -> Poll<R> {
    match check(&mut lock(state)) {
        Ok(found) => return Poll::Ready(found),
        Err(waiting) if waiting.has(key, waker) => return Poll::Pending,
        Err(_) => {}
    }
    let own = waker.clone();
    let mut state = lock(state);
    let (polled, unused) = match check(&mut state) {
        Ok(found) => (Poll::Ready(found), Some(own)),
        Err(waiting) => (Poll::Pending, waiting.insert(key, own)),
    };
    drop(state);
    drop(unused);
    polled
}

/// Removes the waker registered under `key`. Called when the future's wait ends, or when the future is dropped.
pub fn leave<S>(state: &Mutex<S>, key: &mut WakerKey, waiting: impl FnOnce(&mut S) -> Option<&mut Waiting>) {
    let Some(map_key) = key.map_key() else { return };
    if key.number.take().is_some_and(|(_, process)| process.is_foreign()) {
        // This is a forked child, in which a thread of the parent may hold the lock forever.
        return;
    }
    let waker = waiting(&mut lock(state)).and_then(|waiting| waiting.remove(map_key));
    drop(waker);
}

/// Wakers of futures whose waits are over, or which must poll again. The waking thread must not hold a lock or anything
/// else for which another thread may wait.
#[must_use = "futures wait to be woken"]
#[derive(Debug)]
#[expect(clippy::box_collection, reason = "one word, and null where no future waits")]
pub struct Wakers(Box<Vec<Waker>>);

impl Wakers {
    /// Combines two sets of wakers.
    pub fn join(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        match (first, second) {
            (Some(mut first), Some(second)) => {
                first.0.extend(*second.0);
                Some(first)
            }
            (first, second) => first.or(second),
        }
    }

    /// Wakes the futures. A panic in a waker is caught and logged.
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
