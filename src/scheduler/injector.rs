//! The global priority injector: where operations enter from outside, ordered by band.
//!
//! # States
//!
//! Each band is two stacks of operations, linked through their records: `inbox`, where they are pushed, and `ready`, from
//! where they are popped. When `ready` is empty, a popper takes the whole inbox, turns it round and puts what it does not
//! keep there, in front of what others may have put there meanwhile. A bit per band other than the default one says that
//! the band may hold something.
//!
//! # Order
//!
//! A band is first in, first out, but for what is in the hands of a popper between the two stacks. What others take
//! meanwhile goes before it; and of poppers that hold a chain each, who installs last is in front. An operation
//! is in somebody's hands once, and a chain is taken only by who has found `ready` empty. So once an operation is in `ready`,
//! nothing goes before it but what was in front of it there, and one chain per popper that had found `ready` empty before.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `inject` | CAS of `inbox`, CAS that puts a chain into `ready` | swap of `inbox`, load and failed CAS of `ready` | the operation |
//! | `mask` | `fetch_or` after a push | `fetch_and` before the second look | that the band is not empty |
//!
//! All changes of a word after its first are read-modify-writes. So each carries on what the ones before it release,
//! and the ones that release nothing of their own are relaxed.
//!
//! # Progress
//!
//! A push is lock-free and depends on no popper; a pop is lock-free and depends on no pusher. A popper that stands still
//! between taking an inbox and installing it holds what it took; it is a worker, never a pusher.
//!
//! # Why the stacks have no ABA problem
//!
//! The compare-and-swap of [`Band::pop`] takes the head for what it was when it was loaded, with the same links behind it.
//! It is right in that, because a head that was popped never comes back:
//!
//! * **An operation enters an injector with several poppers once.** Then what is popped is run, or goes on in the workers'
//!   deques, and from there nothing comes back either (`Worker`). Nor does a popper put what it holds
//!   into `ready` twice. The rule is a demand on whoever calls [`Lane::inject`](super::lane::Lane::inject): an operation
//!   that a worker of such a lane was given is not given to that lane again, also not after another lane has had it. The engine sees to it before
//!   it first gives an operation to a lane, and models assert it there.
//! * **The record of an operation that was popped is not used for another one** while a popper that may have loaded it
//!   as a head is pinned.
//!
//! A head may be covered by a chain that is put before it, and come to the top again. It has been in `ready` all the time,
//! and what is behind it is the same.
//!
//! The lane of a device has one popper, its thread, so that nobody pops between its load and its exchange. That is why an
//! operation of another lane may come to it as a guest ([`Lane::inject_first`](super::lane::Lane::inject_first)), go on to
//! a second device and come back.
//!
//! From `inbox` operations are only removed all at once, by a swap, which does not care who the head is. A push onto either
//! stack does not either: it links to whatever the head is.

use crossbeam_utils::CachePadded;

use super::priority::{BANDS, DEFAULT_BAND};
use crate::{
    memory::epoch,
    sync::{
        Ordering::{Acquire, Relaxed, Release},
        atomic::{AtomicPtr, AtomicU64},
    },
    testing::pause::{self, Point},
    tracker::{Op, OpRef},
};
use std::ptr::{NonNull, null_mut};

struct Band<T> {
    inbox: CachePadded<AtomicPtr<Op<T>>>,
    ready: CachePadded<AtomicPtr<Op<T>>>,
}

impl<T> Band<T> {
    fn new() -> Self {
        Self {
            inbox: CachePadded::new(AtomicPtr::new(null_mut())),
            ready: CachePadded::new(AtomicPtr::new(null_mut())),
        }
    }

    fn is_empty(&self) -> bool {
        // Relaxed: whoever must not miss a push has a fence before (`Sleep`), or the edge `mask`.
        self.ready.load(Relaxed).is_null() && self.inbox.load(Relaxed).is_null()
    }

    /// Puts an operation into the inbox.
    fn push(&self, op: OpRef<T>) {
        let op = op.into_ptr();
        // SAFETY: the caller has given up the right to it, which nobody else gets before the CAS.
        let link = unsafe { Op::link_of(op) };
        // Relaxed: a guess for the CAS.
        let mut head = self.inbox.load(Relaxed);
        loop {
            // Relaxed: published by the CAS.
            link.store(head, Relaxed);
            // Release (edge `inject`).
            match self.inbox.compare_exchange_weak(head, op.as_ptr(), Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Puts a chain from `first` to `last`, which was never there, in front of what is ready.
    ///
    /// # Safety
    /// 1. The caller has the right to each operation of the chain, and gives it up.
    unsafe fn prepend(&self, first: NonNull<Op<T>>, last: NonNull<Op<T>>) {
        // SAFETY: (1).
        let link = unsafe { Op::link_of(last) };
        // A guess: most often it is still as empty as it was found.
        let mut head = null_mut();
        loop {
            // Relaxed: published by the CAS.
            link.store(head, Relaxed);
            // Release (edge `inject`).
            match self.ready.compare_exchange_weak(head, first.as_ptr(), Release, Relaxed) {
                Ok(_) => return,
                // Another popper has put a chain there, or taken of it.
                Err(now) => head = now,
            }
        }
    }

    /// Pops at most `max` operations. The rest of an inbox is published in `ready`.
    fn pop(&self, max: usize) -> Option<(Chain<T>, Rest)> {
        let _guard = epoch::pin();
        // Acquire (edge `inject`).
        let mut head = self.ready.load(Acquire);
        while let Some(first) = NonNull::new(head) {
            // SAFETY: what was in `ready` while this thread is pinned is not reclaimed. If some of it was popped meanwhile,
            // links may have come to lead elsewhere, but to operations that were alive then; and the CAS fails, since the
            // head does not come back.
            let (len, rest) = unsafe { measure(first, max) };
            // Relaxed: the head came to `ready` once, so whoever put it there was acquired with it. Acquire (edge `inject`)
            // on failure: it is the next head.
            match self.ready.compare_exchange_weak(head, rest, Relaxed, Acquire) {
                Ok(_) => return Some((Chain { next: first, len }, Rest::Unchanged)),
                Err(now) => head = now,
            }
        }
        // Acquire (edge `inject`).
        let newest = NonNull::new(self.inbox.swap(null_mut(), Acquire))?;
        // SAFETY: the swap made this thread the owner of the whole chain.
        let oldest = unsafe { reverse(newest) };
        // SAFETY: as above.
        let (len, rest) = unsafe { measure(oldest, max) };
        let chain = Chain { next: oldest, len };
        let Some(rest) = NonNull::new(rest) else {
            return Some((chain, Rest::Unchanged));
        };
        // SAFETY: as above. What was the newest is the last one now.
        unsafe { self.prepend(rest, newest) };
        Some((chain, Rest::Published))
    }
}

/// What a pop did to the operations of the band that it did not take.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// None became visible by the pop.
    Unchanged,
    /// Operations that were hidden while the pop held them are visible again: another worker should be woken for them.
    Published,
}

/// Operations that were taken together, oldest first. They are given out before anything is done with them, since that
/// may change how they are linked.
#[derive(Debug)]
pub struct Chain<T> {
    /// The chain has the rights to `len` operations from here on.
    next: NonNull<Op<T>>,
    len: usize,
}

impl<T> Chain<T> {
    /// Whether there is another one.
    pub fn has_more(&self) -> bool {
        self.len > 0
    }
}

impl<T> Iterator for Chain<T> {
    type Item = OpRef<T>;

    fn next(&mut self) -> Option<OpRef<T>> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: whoever popped the chain has its operations; this one is given out here, and so not again.
        let op = unsafe { OpRef::from_ptr(self.next) };
        if self.len > 0
            // Relaxed: the chain is this thread's.
            && let Some(next) = NonNull::new(op.link.load(Relaxed))
        {
            self.next = next;
        }
        Some(op)
    }
}

/// How many operations there are from `first` on, at most `max`, and what comes after them.
///
/// # Safety
/// 1. `first` and what is linked to it are not reclaimed meanwhile.
unsafe fn measure<T>(first: NonNull<Op<T>>, max: usize) -> (usize, *mut Op<T>) {
    let (mut last, mut len) = (first, 1);
    loop {
        // SAFETY: (1).
        let link = unsafe { Op::link_of(last) };
        // Relaxed: acquired with the head of the chain, or this thread's.
        let next = link.load(Relaxed);
        match NonNull::new(next) {
            Some(next) if len < max => last = next,
            _ => return (len, next),
        }
        len += 1;
    }
}

/// Turns a chain round; gives its new first. The new last is `first`.
///
/// # Safety
/// 1. The caller has the right to each operation of the chain.
unsafe fn reverse<T>(first: NonNull<Op<T>>) -> NonNull<Op<T>> {
    let (mut before, mut at) = (null_mut(), first);
    loop {
        // SAFETY: (1).
        let link = unsafe { Op::link_of(at) };
        // Relaxed: the chain is this thread's.
        let next = link.load(Relaxed);
        link.store(before, Relaxed);
        let Some(next) = NonNull::new(next) else {
            return at;
        };
        before = at.as_ptr();
        at = next;
    }
}

/// The global priority injector of one lane.
pub struct Injector<T> {
    bands: Box<[Band<T>; BANDS]>,
    /// A bit per band other than the default: it may hold something.
    mask: CachePadded<AtomicU64>,
}

impl<T> std::fmt::Debug for Injector<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Injector").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

impl<T> Default for Injector<T> {
    fn default() -> Self {
        let bands: Box<[_]> = (0..BANDS).map(|_| Band::new()).collect();
        let Ok(bands) = bands.try_into() else { unreachable!("there are so many") };
        Self { bands, mask: CachePadded::new(AtomicU64::new(0)) }
    }
}

impl<T> Injector<T> {
    fn band(&self, band: u8) -> &Band<T> {
        &self.bands[usize::from(band) % BANDS]
    }

    /// Puts a ready operation in, by its band.
    #[inline]
    pub fn push(&self, op: OpRef<T>) {
        let band = op.band;
        self.push_to(op, band);
    }

    /// Puts a ready operation into the highest band.
    pub fn push_first(&self, op: OpRef<T>) {
        self.push_to(op, BANDS as u8 - 1);
    }

    #[inline]
    fn push_to(&self, op: OpRef<T>, band: u8) {
        pause::at(Point::InjectBeforeLink);
        self.band(band).push(op);
        pause::at(Point::InjectBeforeMark);
        self.mark(band);
    }

    fn mark(&self, band: u8) {
        if band != DEFAULT_BAND {
            // Release (edge `mask`): after the push. It must be a read-modify-write: a popper that clears the bit later
            // reads this one's and so sees the push; one that cleared it earlier has its bit set again.
            self.mask.fetch_or(1 << band, Release);
        }
    }

    /// The highest band other than the default that may hold something.
    #[inline]
    pub fn highest(&self) -> Option<u8> {
        // Relaxed: a hint; what is pushed at the same time may be seen at the next look.
        self.mask.load(Relaxed).checked_ilog2().map(|band| band as u8)
    }

    /// Whether a band above the default one may hold something.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        // Relaxed: as in `highest`.
        self.mask.load(Relaxed) >> (DEFAULT_BAND + 1) != 0
    }

    /// Whether a worker has taken what was pushed into the default band, at a glance.
    #[inline]
    pub fn is_inbox_empty(&self) -> bool {
        // Relaxed: at a glance.
        self.band(DEFAULT_BAND).inbox.load(Relaxed).is_null()
    }

    /// Whether nothing was found in the default band at a glance.
    pub fn is_default_empty(&self) -> bool {
        self.band(DEFAULT_BAND).is_empty()
    }

    /// Takes operations of `band`, at most `max` and one at least; the flag says that more have become visible by it, so that
    /// somebody should be woken.
    pub fn pop(&self, band: u8, max: usize) -> Option<(Chain<T>, Rest)> {
        let queue = self.band(band);
        let popped = queue.pop(max);
        match popped {
            // The rest was out of sight while others may have cleared the bit.
            Some((_, Rest::Published)) => self.mark(band),
            None if band != DEFAULT_BAND => {
                // Acquire (edge `mask`): a push whose bit this clears is seen by the second look.
                self.mask.fetch_and(!(1 << band), Acquire);
                if !queue.is_empty() {
                    self.mark(band);
                }
            }
            _ => {}
        }
        popped
    }

    /// Whether nothing was found at a glance.
    pub fn is_empty(&self) -> bool {
        self.highest().is_none() && self.is_default_empty()
    }
}

impl<T> Drop for Injector<T> {
    fn drop(&mut self) {
        // Not by the mask: a bit may stay behind when its operation was popped before it was set.
        debug_assert!(self.bands.iter().all(Band::is_empty), "operations are left in an injector");
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;
