//! Unlinks completed readers that are behind an access that is not done. Accesses that commute are unlinked in the same
//! way; what is said here of readers holds for them, too.
//!
//! A reader that is done while an earlier access of its variable is not is *stranded*: only the end of that earlier
//! access spends it. A long reader would thus keep the record of every reader that completes during its run. So some
//! completions unlink stranded readers: the access before a stranded reader is linked to the one behind it.
//!
//! # Who unlinks, and where
//!
//! [`is_sampled`] picks one in 128 completions at random, so no pattern in a program's operations leaves a variable
//! out. A picked completion pins the thread, and for each reader of its operation takes the variable's *front*, if no
//! other thread has it. The front is a reader that an earlier picked completion has left there. The thread unlinks what
//! is stranded behind the front. If that is little, readers do not complete in the order of their queue, and the thread
//! also unlinks what is stranded behind its own access. If that includes the front, or if there is none, its own access
//! becomes the front. So the front only moves forward when it is spent.
//!
//! A variable therefore keeps about as many stranded readers as complete between two picked completions, however many
//! have completed, plus one behind each access that is not done. From each of the two places, a picked completion
//! passes at most [`MAX_PASSED`] accesses that it does not unlink. So where readers complete in random order among many
//! that have not started, the number of stranded ones grows with the number of those.
//!
//! # Why an unlinked access may be retired
//!
//! Let `next` be linked behind `at`, and `then` behind `next`, and let both `at` and `next` be done but without
//! `WRITE_OK`. They are then readers, or both of one run, and have adopted the flags that were grantable to them when
//! they were linked.
//!
//! * Only the thread that has taken the front unlinks, so `next` does not become the `at` of another thread, and its
//!   word does not change.
//! * A completion that is about to set `WRITE_OK` in `next` has found it in the word of `at`, which it has spent. The
//!   exchange of that word fails if `at` is spent. Conversely, a completion that finds `then` in it passes `next` over.
//! * A completion that is the first to set `READ_OK` in a reader goes on to the access behind it, even if that one has
//!   `READ_OK` already and may be done. The completion counts the reader as satisfied only afterwards. Until then, the
//!   reader is not done. As `at` and `next` are done, no such completion is on its way to `next` or `then`.
//! * The tail is past `next` before it is unlinked, as for a spent access.
//! * A pinned thread that walks the queue may reach `next`, and from there `then`: what was behind `next` when it was
//!   unlinked is retired later, if at all.
//!
//! The word of `at` receives the `LINKED_…` flags of `next`, which say what was grantable to `then` when it was linked.

use std::{cell::Cell, ptr::NonNull, sync::atomic::AtomicU32};

use super::{
    access::{Access, DONE, LINKED, SPENT, WRITE_OK},
    op_record::{Hold, OpRef, ReadyList},
    propagate::{Spent, advance_tail, complete_access, complete_each},
};
use crate::{
    memory::epoch::{self, Guard, unprotected},
    sync::{
        Ordering::Relaxed,
        edge::{self, acquire, release, removed, step},
        thread_static,
    },
};

/// The maximum number of accesses that are passed from one place. Not tuned.
const MAX_PASSED: u32 = 256;

/// The maximum number of accesses that are unlinked from one place, which takes some tens of microseconds. Not tuned.
const MAX_UNLINKED: u32 = 512;

/// If fewer readers are unlinked from the front, others are looked for. Not tuned.
const FEW: u32 = 16;

// The number of completions before the next picked one, and the state of a generator of random numbers, which is 0
// until the first choice.
thread_static!(static UNPICKED: Cell<u32> = Cell::new(0));
thread_static!(static RANDOM: Cell<u32> = Cell::new(0));

/// Whether to [unlink](complete_unlinking) with this completion. Models say themselves when to.
#[inline(always)]
pub(super) fn is_sampled() -> bool {
    if cfg!(any(raddle_loom, raddle_shuttle)) {
        return false;
    }
    UNPICKED.with(|unpicked| {
        let (left, is_over) = unpicked.get().overflowing_sub(1);
        unpicked.set(left);
        is_over && choose_next(unpicked)
    })
}

/// Chooses the number of completions before the next picked one: from 64 to 191, and on a new thread from 0 to 127,
/// since it may end soon. Returns whether the current completion is picked.
#[cold]
fn choose_next(unpicked: &Cell<u32>) -> bool {
    static THREADS: AtomicU32 = AtomicU32::new(1);
    RANDOM.with(|state| {
        let is_first = state.get() == 0;
        // Relaxed: only distinct numbers are needed. The product is Knuth's multiplicative hash.
        let seed = || THREADS.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b1) | 1;
        let mut random = if is_first { seed() } else { state.get() };
        // Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8 (2003).
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        state.set(random);
        let left = random >> 25;
        unpicked.set(if is_first { left } else { 64 + left });
        !is_first
    })
}

/// Picks no completion of the calling thread.
#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
pub(super) fn pick_none() {
    UNPICKED.set(u32::MAX);
}

/// [Completes](super::complete()) `op`, and unlinks stranded readers of the variables that it reads.
#[cold]
#[inline(never)]
pub fn complete_unlinking<T>(op: OpRef<T>, ready: &mut ReadyList<T>) -> Hold<T> {
    let guard = epoch::pin();
    complete_each(op, |access| match access.mode().is_shared() {
        true => complete_shared(access, &guard, ready),
        false => complete_access(NonNull::from(access), ready),
    })
}

/// Completes a reader or an access that commutes, and unlinks stranded ones of its variable.
fn complete_shared<T>(access: &Access<T>, guard: &Guard, ready: &mut ReadyList<T>) -> Spent {
    // Relaxed: only a hint. If nothing is pending before the access, nothing before it strands readers.
    let is_first = access.word.load(Relaxed, guard).tag() & WRITE_OK != 0;
    // The queue is not freed before this thread is unpinned, since the access is not done yet.
    let front = &access.queue().front;
    if is_first || !front.take() {
        return complete_access(NonNull::from(access), ready);
    }
    let much = front.get(guard).is_some_and(|front| unlink_behind(front, guard) >= FEW);
    access.may_be_front();
    let spent = complete_access(NonNull::from(access), ready);
    if spent == Spent::NotYet {
        if !much {
            unlink_behind(access, guard);
        }
        if front.get(guard).is_none() {
            become_front(access);
        }
    }
    front.give_back();
    spent
}

/// Makes `access` the front, unless it is, or soon will be, spent. It has [noted](Access::may_be_front) that it may
/// become the front. The thread has taken the front, and was pinned before `access` was done.
fn become_front<T>(access: &Access<T>) {
    access.queue().front.set(access);
    // A thread that has changed the word before may have looked for the access at the front in vain. One that sets
    // `WRITE_OK` from now on finds it there.
    let word = access.word.fetch_or(0, release(edge::front::SET), unprotected());
    if word.tag() & WRITE_OK != 0 && !removed(step::FRONT_IS_CHECKED) {
        access.queue().front.remove(access);
    }
}

/// Unlinks stranded readers behind `from`, which was in its queue after this thread was pinned. Returns their number.
/// The thread has taken the front.
fn unlink_behind<T>(from: &Access<T>, guard: &Guard) -> u32 {
    let (mut at, mut passed, mut unlinked) = (from, 0, 0);
    while passed < MAX_PASSED && unlinked < MAX_UNLINKED {
        at.check();
        let word = at.word.load(acquire(edge::link::UNLINKING), guard);
        if word.is_null() || word.tag() & SPENT == SPENT || at.mode().is_exclusive() {
            // Nothing is linked behind `at`, or a completion is on its way from here, or nothing behind `at` is done.
            break;
        }
        // SAFETY: `at` was in the queue after this thread was pinned, and so was what is linked behind it.
        let next = unsafe { word.deref() };
        next.check();
        // Also acquires the writes published with the flags, which the exchange below hands over.
        let behind = next.word.load(acquire(edge::complete::UNLINKING), guard);
        let is_stranded = !behind.is_null() && behind.tag() & SPENT == DONE;
        if !is_stranded || word.tag() & DONE == 0 && !removed(step::UNLINK_BEHIND_DONE) {
            (at, passed) = (next, passed + 1);
            continue;
        }
        // SAFETY: as for `next`.
        let then = unsafe { behind.deref() };
        then.check();
        advance_tail(next, then, behind.tag());
        let new = behind.with_tag(word.tag() & !LINKED | behind.tag() & LINKED);
        if at.word.compare_exchange(word, new, release(edge::link::UNLINKED), Relaxed, guard).is_ok() {
            // SAFETY: the access is unlinked, which happens once, and the tail is past it.
            unsafe { next.share().end() };
            unlinked += 1;
        }
    }
    unlinked
}
