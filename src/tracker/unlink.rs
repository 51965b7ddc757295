//! Unlinks completed readers that are behind an access that is not done.
//!
//! A reader that is done while an earlier access of its variable is not is *stranded*: only the end of that earlier
//! access spends it. A long reader would thus keep the record of every reader that completes during its run. So some
//! completions unlink stranded readers: the access before a stranded reader is linked to the one behind it.
//!
//! # Who unlinks, and where
//!
//! [`is_sampled`] picks one in 128 completions at random, so no pattern in a program's operations leaves a variable out.
//! A picked completion pins the thread, and for each reader of its operation takes the variable's *front*, if no other
//! thread has it. The front is a reader that an earlier picked completion has left there. The thread unlinks what is
//! stranded behind the front. If that is little, readers do not complete in the order of their queue, and the thread
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
//! `WRITE_OK`. They are then readers, and have adopted the flags that were grantable to them when they were linked.
//!
//! * Only the thread that has taken the front unlinks, so `next` does not become the `at` of another thread, and its
//!   word does not change.
//! * A completion that is about to set flags in `next` has found it in the word of `at`. Flags of `next` that are still
//!   to be set are `WRITE_OK` alone, for which the completion has first spent `at`. The exchange of the word of `at`
//!   fails if `at` is spent. Conversely, a completion that finds `then` in that word passes `next` over.
//! * A completion that is the first to set `READ_OK` in a reader goes on to the access behind it, even if that one has
//!   `READ_OK` already and may be done. The completion counts the reader as satisfied only afterwards. Until then, the
//!   reader is not done. As `at` and `next` are done, no such completion is on its way to `next` or `then`.
//! * The tail is past `next` before it is unlinked, as for a spent access.
//! * A pinned thread that walks the queue may reach `next`, and from there `then`: what was behind `next` when it was
//!   unlinked is retired later, if at all.
//!
//! The word of `at` receives the `LINKED_…` flags of `next`, which say what was grantable to `then` when it was linked.

use std::{cell::Cell, ptr::NonNull};

use super::{
    access::{Access, DONE, LINKED, Mode, SPENT, WRITE_OK},
    op_record::{Hold, OpRef, ReadyList},
    propagate::{Spent, advance_tail, complete_access},
};
use crate::{
    memory::epoch::{self, Guard},
    sync::{
        Ordering::Relaxed,
        edge::{self, acquire, release},
        thread_static,
    },
};

/// The maximum number of accesses that are passed from one place. Not tuned.
const MAX_PASSED: u32 = 256;

/// The maximum number of accesses that are unlinked from one place, which takes some tens of microseconds. Not tuned.
const MAX_UNLINKED: u32 = 512;

/// If fewer readers are unlinked from the front, others are looked for. Not tuned.
const FEW: u32 = 16;

// The number of completions before the next picked one.
thread_static!(static UNPICKED: Cell<u32> = Cell::new(128));
// The state of a generator of random numbers.
thread_static!(static RANDOM: Cell<u32> = Cell::new(0x9e37_79b9));

/// Whether to [unlink](complete_unlinking) with this completion. Models say themselves when to.
#[inline(always)]
pub(super) fn is_sampled() -> bool {
    if cfg!(any(raddle_loom, raddle_shuttle)) {
        return false;
    }
    // Two instructions.
    let is_picked = UNPICKED.with(|unpicked| {
        let (left, is_picked) = unpicked.get().overflowing_sub(1);
        unpicked.set(left);
        is_picked
    });
    if is_picked {
        pick_next();
    }
    is_picked
}

/// Chooses the number of completions before the next picked one, from 64 to 191.
#[cold]
fn pick_next() {
    // Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8 (2003).
    let random = RANDOM.with(|state| {
        let mut random = state.get();
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        state.set(random);
        random
    });
    UNPICKED.with(|unpicked| unpicked.set(64 + random % 128));
}

/// [Completes](super::complete()) `op`, and unlinks stranded readers of the variables that it reads.
#[cold]
#[inline(never)]
pub fn complete_unlinking<T>(op: OpRef<T>, ready: &mut ReadyList<T>) -> Hold<T> {
    let guard = epoch::pin();
    let mut spent = 0;
    for access in op.accesses() {
        let completed = match access.mode() {
            Mode::Read => complete_reader(access, &guard, ready),
            _ => complete_access(NonNull::from(access), ready),
        };
        spent += u32::from(completed == Spent::Yes);
    }
    op.completed(spent)
}

/// Completes a reader, and unlinks stranded readers of its variable.
fn complete_reader<T>(access: &Access<T>, guard: &Guard, ready: &mut ReadyList<T>) -> Spent {
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
            front.set(access);
        }
    }
    front.give_back();
    spent
}

/// Unlinks stranded readers behind `from`, which was in its queue after this thread was pinned. Returns their number. The
/// thread has taken the front.
fn unlink_behind<T>(from: &Access<T>, guard: &Guard) -> u32 {
    let (mut at, mut passed, mut unlinked) = (from, 0, 0);
    while passed < MAX_PASSED && unlinked < MAX_UNLINKED {
        at.check();
        let word = at.word.load(acquire(edge::link::UNLINKING), guard);
        if word.is_null() || word.tag() & SPENT == SPENT || at.mode().is_write() {
            // Nothing is linked behind `at`, or a completion is on its way from here, or nothing behind `at` is done.
            break;
        }
        // SAFETY: `at` was in the queue after this thread was pinned, and so was what is linked behind it.
        let next = unsafe { word.deref() };
        next.check();
        // Also acquires the writes published with the flags, which the exchange below hands over.
        let behind = next.word.load(acquire(edge::complete::UNLINKING), guard);
        if behind.is_null() || behind.tag() & SPENT != DONE || word.tag() & DONE == 0 {
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
