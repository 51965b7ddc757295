//! The priority injector: the queue through which operations enter a lane from outside, ordered by band.
//!
//! # States
//!
//! Each band has two stacks of operations, linked through their records: pushes add to `inbox`, pops take from `ready`.
//! A popper that finds `ready` empty takes the whole inbox, reverses it, keeps what it pops, and prepends the rest to
//! whatever other poppers have put into `ready` in the meantime. Each band other than the default has a bit in `mask`:
//! threads that make operations of the band visible set the bit, and a popper that finds the band empty clears it.
//!
//! # Order
//!
//! A band is first in, first out, except for operations that a popper holds between the two stacks. Operations that
//! other poppers take in the meantime overtake the held ones; and if several poppers each hold a chain of operations,
//! the chain that is put into `ready` last is in front. An operation is held in this way only once, and only a popper
//! that has found `ready` empty takes a chain. So once an operation is in `ready`, only two kinds of operations go
//! before it: those already in front of it there, and those of one chain for each popper that has already found `ready`
//! empty.
//!
//! # Edges
//!
//! [`inject`](crate::sync::edge::inject), [`mask`](crate::sync::edge::mask).
//!
//! These words are changed only by read-modify-writes, so each change continues the release sequences of earlier ones,
//! and a change that releases nothing of its own needs no release ordering.
//!
//! # Progress
//!
//! A push is lock-free and depends on no popper; a pop is lock-free and depends on no pusher. A popper stopped between
//! taking an inbox and putting the rest into `ready` withholds what it took. Poppers are workers, and threads whose
//! push a limit holds back ([`Lane::take`](super::lane::Lane::take)).
//!
//! # Why the stacks have no ABA problem
//!
//! The compare-and-swap of [`Band::pop`] assumes that a head that compares equal is still the operation that was
//! loaded, followed by the same links. The assumption holds because a popped head never comes back:
//!
//! * **An operation enters an injector with several poppers only once.** After the pop it is run or goes to a worker's
//!   deque, from which nothing returns to the injector (`Worker`). Nor does a popper put an operation into `ready`
//!   twice. Callers must uphold this rule when they call [`Lane::inject`](super::lane::Lane::inject): an operation that
//!   has been popped from such an injector must not enter that injector again, even after passing through another lane.
//!   The engine ensures this before an operation first enters a lane, and models assert it in `Lane::inject`.
//! * **The record of a popped operation is not reused** while a popper that may have loaded it as a head is pinned.
//!
//! A prepended chain may cover a head, which later comes to the top again. Such a head has been in `ready` all along,
//! followed by the same operations.
//!
//! A GPU lane has one popper, its thread, so no other pop happens between the load and the exchange of a pop. An
//! operation of another lane may therefore enter the GPU lane as a cross-lane waiter
//! ([`Lane::inject_first`](super::lane::Lane::inject_first)), move on to a second device and come back.
//!
//! `inbox` is only ever emptied as a whole, by a swap, which works with any head. A push onto either stack works with
//! any head as well, since it links to the current one.

use crossbeam_utils::CachePadded;

use super::priority::{BANDS, DEFAULT_BAND, HIGHEST_BAND};
use crate::{
    memory::epoch,
    sync::{
        Ordering::Relaxed,
        atomic::{AtomicPtr, AtomicU64},
        edge::{self, acquire, release, removed, step},
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
        // Relaxed: callers that must not miss a push have passed a fence before (`Sleep`), or rely on the edge `mask`.
        self.ready.load(Relaxed).is_null() && self.inbox.load(Relaxed).is_null()
    }

    /// Pushes an operation into the inbox.
    fn push(&self, op: OpRef<T>) {
        let op = op.into_ptr();
        // SAFETY: the caller has given up its ownership of the operation, and no other thread owns it before the CAS.
        let link = unsafe { Op::link_of(op) };
        // Relaxed: a guess for the CAS.
        let mut head = self.inbox.load(Relaxed);
        loop {
            // Relaxed: published by the CAS.
            link.store(head, Relaxed);
            match self.inbox.compare_exchange_weak(head, op.as_ptr(), release(edge::inject::INBOX), Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Prepends the chain `first..=last` to `ready`. In an injector with several poppers, none of these operations may
    /// have been in `ready` before.
    ///
    /// # Safety
    /// 1. The caller owns each operation of the chain, and gives up this ownership.
    unsafe fn prepend(&self, first: NonNull<Op<T>>, last: NonNull<Op<T>>) {
        // SAFETY: by (1) the caller owns the operation, so the record is not reclaimed.
        let link = unsafe { Op::link_of(last) };
        // A guess: `ready` was found empty, and usually still is.
        let mut head = null_mut();
        loop {
            // Relaxed: published by the CAS.
            link.store(head, Relaxed);
            match self.ready.compare_exchange_weak(head, first.as_ptr(), release(edge::inject::CHAIN), Relaxed) {
                Ok(_) => return,
                // Another popper has put a chain there, or popped from it.
                Err(now) => head = now,
            }
        }
    }

    /// Pops at most `max` operations. The rest of an inbox is published in `ready`.
    fn pop(&self, max: usize) -> Option<(Chain<T>, Rest)> {
        let _guard = epoch::pin();
        let mut head = self.ready.load(acquire(edge::inject::FIRST));
        while let Some(first) = NonNull::new(head) {
            // SAFETY: operations that were in `ready` while this thread is pinned are not reclaimed. If some were
            // popped in the meantime, their links may lead elsewhere, but only to operations that were still alive
            // after this thread was pinned; and the CAS fails, since a popped head does not come back.
            let (len, rest) = unsafe { measure(first, max) };
            // Relaxed: the head came to `ready` once, so this thread has acquired the CAS that put it there.
            match self.ready.compare_exchange_weak(head, rest, Relaxed, acquire(edge::inject::RETRY)) {
                Ok(_) => return Some((Chain { next: first, len }, Rest::Unchanged)),
                Err(now) => head = now,
            }
        }
        let newest = NonNull::new(self.inbox.swap(null_mut(), acquire(edge::inject::TAKEN)))?;
        // SAFETY: the swap made this thread the owner of the whole chain.
        let oldest = unsafe { reverse(newest) };
        // SAFETY: this thread has owned the whole chain since the swap.
        let (len, rest) = unsafe { measure(oldest, max) };
        let chain = Chain { next: oldest, len };
        let Some(rest) = NonNull::new(rest) else {
            return Some((chain, Rest::Unchanged));
        };
        // SAFETY: this thread has owned the whole chain since the swap. The newest operation is now the last one.
        unsafe { self.prepend(rest, newest) };
        Some((chain, Rest::Published))
    }
}

/// What a pop did with the operations that it left in the band.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The pop made no operations visible.
    Unchanged,
    /// Operations hidden by the pop are visible again, and another worker should be woken for them.
    Published,
}

/// Operations popped together, oldest first. The iterator reads an operation's link before yielding the operation,
/// since running it may change the link.
#[derive(Debug)]
pub struct Chain<T> {
    /// The first of the chain's `len` operations, all of which the chain owns.
    next: NonNull<Op<T>>,
    len: usize,
}

impl<T> Chain<T> {
    /// Whether another operation is left.
    pub fn has_more(&self) -> bool {
        self.len > 0
    }
}

impl<T> Iterator for Chain<T> {
    type Item = OpRef<T>;

    fn next(&mut self) -> Option<OpRef<T>> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the popper passed ownership of its operations to the chain, which hands out each of them only once,
        // here.
        let op = unsafe { OpRef::from_ptr(self.next) };
        if self.len > 0 {
            // Relaxed: the chain belongs to this thread.
            if let Some(next) = NonNull::new(op.link.load(Relaxed)) {
                self.next = next;
            }
        }
        Some(op)
    }
}

/// Returns the number of operations from `first` on, at most `max`, and the operation after them, which may be null.
///
/// # Safety
/// 1. `first` and the operations linked to it are not reclaimed during the call.
unsafe fn measure<T>(first: NonNull<Op<T>>, max: usize) -> (usize, *mut Op<T>) {
    let (mut last, mut len) = (first, 1);
    loop {
        // SAFETY: by (1) the operation is not reclaimed.
        let link = unsafe { Op::link_of(last) };
        // Relaxed: acquired with the head of the chain, or written by this thread.
        let next = link.load(Relaxed);
        match NonNull::new(next) {
            Some(next) if len < max => last = next,
            _ => return (len, next),
        }
        len += 1;
    }
}

/// Reverses a chain and returns its new first operation; `first` becomes the last.
///
/// # Safety
/// 1. The caller owns each operation of the chain.
unsafe fn reverse<T>(first: NonNull<Op<T>>) -> NonNull<Op<T>> {
    let (mut before, mut at) = (null_mut(), first);
    loop {
        // SAFETY: by (1) the caller owns the operation, so the record is not reclaimed.
        let link = unsafe { Op::link_of(at) };
        // Relaxed: the chain belongs to this thread.
        let next = link.load(Relaxed);
        link.store(before, Relaxed);
        let Some(next) = NonNull::new(next) else {
            return at;
        };
        before = at.as_ptr();
        at = next;
    }
}

/// The priority injector of one lane.
pub struct Injector<T> {
    bands: Box<[Band<T>; BANDS]>,
    /// One bit for each band other than the default. While the bit is clear, the band is empty, or some thread has yet
    /// to set the bit.
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
        let Ok(bands) = bands.try_into() else { unreachable!("there are `BANDS` bands") };
        Self { bands, mask: CachePadded::new(AtomicU64::new(0)) }
    }
}

impl<T> Injector<T> {
    fn band(&self, band: u8) -> &Band<T> {
        &self.bands[usize::from(band) % BANDS]
    }

    /// Pushes a ready operation into its band.
    #[inline]
    pub fn push(&self, op: OpRef<T>) {
        let band = op.band;
        self.push_to(op, band);
    }

    /// Pushes a ready operation into the highest band.
    pub fn push_first(&self, op: OpRef<T>) {
        self.push_to(op, HIGHEST_BAND);
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
            // It must be a read-modify-write: a popper that clears the bit afterwards reads the value written here and
            // so sees the push before it; if a popper cleared the bit before, this sets it again.
            self.mask.fetch_or(1 << band, release(edge::mask::SET));
        }
    }

    /// Returns the highest band, other than the default, that may hold operations.
    #[inline]
    pub fn highest(&self) -> Option<u8> {
        // Relaxed: a hint; a concurrent push may be missed.
        self.mask.load(Relaxed).checked_ilog2().map(|band| band as u8)
    }

    /// Whether any band above the default may hold operations.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        // Relaxed: as in `highest`.
        self.mask.load(Relaxed) >> (DEFAULT_BAND + 1) != 0
    }

    /// Whether the default band's inbox looks empty. A concurrent push may be missed.
    #[inline]
    pub fn is_inbox_empty(&self) -> bool {
        // Relaxed: a hint.
        self.band(DEFAULT_BAND).inbox.load(Relaxed).is_null()
    }

    /// Whether the default band looks empty. A concurrent push may be missed.
    pub fn is_default_empty(&self) -> bool {
        self.band(DEFAULT_BAND).is_empty()
    }

    /// Pops between one and `max` operations of `band`, or returns `None` if it finds none.
    pub fn pop(&self, band: u8, max: usize) -> Option<(Chain<T>, Rest)> {
        let queue = self.band(band);
        let popped = queue.pop(max);
        match popped {
            // The pop had hidden the rest, and another popper may have cleared the bit in the meantime.
            Some((_, Rest::Published)) if !removed(step::REST_MARKED) => self.mark(band),
            None if band != DEFAULT_BAND => {
                // If this clears a bit that a push has set, the second check sees that push.
                self.mask.fetch_and(!(1 << band), acquire(edge::mask::CLEARED));
                if !queue.is_empty() && !removed(step::BAND_CHECKED_AGAIN) {
                    self.mark(band);
                }
            }
            _ => {}
        }
        popped
    }

    /// Whether the injector looks empty. A concurrent push may be missed.
    pub fn is_empty(&self) -> bool {
        self.highest().is_none() && self.is_default_empty()
    }
}

impl<T> Drop for Injector<T> {
    fn drop(&mut self) {
        // The mask does not show this: a bit stays set if an operation was popped before its pusher set the bit.
        debug_assert!(self.bands.iter().all(Band::is_empty), "operations are left in an injector");
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;
