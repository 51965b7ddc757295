//! Completes operations: marks their accesses done and propagates the flags down the queues.

use std::{cell::Cell, ptr::NonNull};

use super::{
    access::{Access, DONE, READ_OK, WRITE_OK, grantable_at_link, newly_grantable},
    op_record::{self, Hold, Op, OpRef, ReadyList},
    unlink::{self, complete_unlinking},
};
use crate::{
    memory::epoch::{self, Atomic, Shared},
    sync::{
        Ordering::Relaxed,
        edge::{self, acquire_release, release, removed, step},
        hint, thread_static,
    },
    testing::pause::{self, Point},
};

/// Whether a completion has spent an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Spent {
    /// The access is spent, the tail is past it, and the caller must end the access's share of the record.
    Yes,
    /// The access is not spent. If a later step spends it, that step ends the access's share.
    NotYet,
}

/// Marks every access of `op` done and appends the operations that this makes ready to the list `ready`. Returns a hold
/// on the record, with the owner's share and those of the accesses in the record that this call has spent.
///
/// Needs no guard: every access that it touches is kept from being spent, or from being [unlinked](super::unlink), by a
/// step that this thread has yet to take.
pub fn complete<T>(op: OpRef<T>, ready: &mut ReadyList<T>) -> Hold<T> {
    if unlink::is_sampled() {
        return complete_unlinking(op, ready);
    }
    complete_each(op, |access| complete_access(NonNull::from(access), ready))
}

/// Completes `op` with `complete`, which marks an access done and propagates the flags down its queue.
#[inline(always)]
pub(super) fn complete_each<T>(op: OpRef<T>, mut complete: impl FnMut(&Access<T>) -> Spent) -> Hold<T> {
    let Some(accesses) = op.accesses_in_record() else {
        complete_apart(&op, complete);
        return op.completed(0);
    };
    let mut spent = 0;
    for access in accesses {
        pause::at(Point::CompleteBeforeAccess);
        spent += u32::from(complete(access) == Spent::Yes);
    }
    op.completed(spent)
}

/// Completes accesses that are not in their operation's record, and ends the shares of those that this spends.
#[cold]
#[inline(never)]
fn complete_apart<T>(op: &Op<T>, mut complete: impl FnMut(&Access<T>) -> Spent) {
    for access in op.accesses() {
        pause::at(Point::CompleteBeforeAccess);
        if complete(access) == Spent::Yes {
            pause::at(Point::CompleteBeforeRetire);
            // SAFETY: the access is spent, the tail is past it, and this call ends the share.
            unsafe { access.share().end() };
        }
    }
}

/// [Completes](complete) `op` and ends the caller's share of its record, for a caller that no longer needs the record.
#[inline(always)]
pub fn end<T>(op: OpRef<T>, ready: &mut ReadyList<T>) {
    end_with(op, |_| (), ready);
}

/// Calls `look` with each access of `op`, and then [ends](end) the operation.
#[inline(always)]
pub fn end_with<T>(op: OpRef<T>, mut look: impl FnMut(&Access<T>), ready: &mut ReadyList<T>) {
    let Some(access) = op.sole_access() else {
        op.each_access(look);
        return end_several(op, ready);
    };
    look(access);
    if access.mode().is_shared() && unlink::is_sampled() {
        return drop_completed(complete_unlinking(op, ready));
    }
    let access = NonNull::from(access);
    // SAFETY: the record is in use until its accesses are spent, and none can be spent before the operation is done.
    let only = unsafe { access.as_ref() };
    // SAFETY: (1): this is the only access.
    match unsafe { op.leave_to_access(only) } {
        Ok(record) => {
            pause::at(Point::CompleteBeforeAccess);
            if complete_access(access, ready) == Spent::Yes {
                pause::at(Point::CompleteBeforeRetire);
                // SAFETY: the access has the only share of the record, and is spent.
                unsafe { op_record::retire_record(record) };
            }
        }
        Err(op) => end_several(op, ready),
    }
}

/// [Ends](end) an operation whose record cannot be left to a single access.
#[inline(never)]
fn end_several<T>(op: OpRef<T>, ready: &mut ReadyList<T>) {
    drop_completed(complete(op, ready));
}

/// Ends the shares of a completed operation.
#[inline(always)]
fn drop_completed<T>(hold: Hold<T>) {
    pause::at(Point::CompleteBeforeRetire);
    // The mark is removed now, since the operation's accesses may stay in their queues for a while.
    hold.mark(std::ptr::null_mut());
    drop(hold);
}

/// Marks `access` done and propagates the flags down its queue.
///
/// Here and in `propagate`, an access that may be reclaimed during the call is passed as a pointer: a reference would
/// have to stay valid until the call returns.
#[inline(always)]
pub(super) fn complete_access<T>(access: NonNull<Access<T>>, ready: &mut ReadyList<T>) -> Spent {
    // SAFETY: an access is not spent, and so has a share, before it is done, and this thread has yet to mark it done.
    let access = unsafe { access.as_ref() };
    let word = add_flags(&access.word, DONE);
    if word.tag() & WRITE_OK == 0 || word.is_null() {
        // Either earlier accesses are pending, and the completion that sets `WRITE_OK` continues from here; or nothing
        // is linked behind this access, and the push that links the next one continues.
        return Spent::NotYet;
    }
    // SAFETY: the next access cannot be spent before it has `WRITE_OK`, which this thread sets below.
    let next = unsafe { word.deref() };
    next.check();
    advance_tail(access, next, word.tag());
    propagate(NonNull::from(next), ready);
    Spent::Yes
}

/// Adds flags to an access's word on behalf of a completion, and returns the old word. If this is the thread's last
/// step for the access, the record may be reclaimed during the call.
#[inline]
fn add_flags<'g, T>(word: &Atomic<Access<T>>, flags: usize) -> Shared<'g, Access<T>> {
    let order = acquire_release(edge::link::FLAGGED, edge::complete::FLAGGED);
    pause::at(Point::CompleteBeforeFlags);
    let old = word.fetch_or(flags, order, epoch::unprotected());
    pause::at(Point::CompleteFlagged);
    old
}

/// Sets `READ_OK` and `WRITE_OK` in `at`, which was linked behind another access and has nothing pending before it, and
/// propagates the flags down the queue.
#[inline(always)]
fn propagate<T>(at: NonNull<Access<T>>, ready: &mut ReadyList<T>) {
    // SAFETY: the access cannot be spent before it has `WRITE_OK`, which this thread sets.
    let next = unsafe { at.as_ref() };
    if !next.mode().is_exclusive() {
        return propagate_from_shared(at, ready);
    }
    // Read before the flags are set, because the access may be reclaimed afterwards.
    // SAFETY: the access was linked behind another one.
    let (mode, op) = (next.mode(), unsafe { next.own_op_ptr() });
    // SAFETY: the access was linked behind another one.
    let later = unsafe { next.own_op() }.later();
    let old = add_flags(&next.word, READ_OK | WRITE_OK);
    look_ahead(later, !old.is_null());
    // A writer that was not satisfied is not done, so it grants nothing to the accesses behind it.
    if mode.is_granted_by((READ_OK | WRITE_OK) & !old.tag()) {
        pause::at(Point::CompleteBeforeSatisfy);
        // SAFETY: this thread has satisfied the access, and counts it once, here.
        unsafe { OpRef::satisfy(op, ready) };
    }
}

// How many accesses in a row had another one linked behind them when this thread granted them, up to `LONG`.
thread_static!(static STREAK: Cell<u8> = Cell::new(0));

/// The streak from which a thread prefetches. Not tuned.
const LONG: u8 = 16;

/// Prefetches the record at `later` if this thread has found a long streak of accesses with others linked behind them.
/// `has_next` is whether the access of the operation that `later` comes from is such an access.
///
/// The accesses of a queue form a list. Each record comes from the core of the pushing thread, and shows where the next
/// one is only when it has arrived. The addresses of records that are pushed later break this chain of misses: Roth and
/// Sohi, "Effective Jump-Pointer Prefetching for Linked Data Structures", ISCA 1999.
///
/// A prefetch too early takes a line away that the pushing thread is about to write. This delays the pushing thread, so
/// this thread soon catches up, finds an access without a next one, and prefetches nothing for the length of a streak.
/// Where several workers each run a queue of their own, a prefetched record may belong to another worker; this has not
/// been measured.
#[inline(always)]
fn look_ahead<T>(later: *const Op<T>, has_next: bool) {
    if cfg!(any(raddle_loom, raddle_shuttle)) {
        // Models have no caches.
        return;
    }
    STREAK.with(|streak| {
        let before = streak.get();
        if !has_next {
            streak.set(0);
        } else if before < LONG {
            streak.set(before + 1);
        } else {
            // The head with the first access, and the task of an operation with one access.
            hint::prefetch_write(later);
            hint::prefetch_write(later.wrapping_byte_add(64));
        }
    });
}

/// Does the same as [`propagate`], for an access that does not exclude all others.
#[inline(never)]
fn propagate_from_shared<T>(at: NonNull<Access<T>>, ready: &mut ReadyList<T>) {
    // SAFETY: the access cannot be spent before it has `WRITE_OK`, which this thread sets.
    let mut at = unsafe { at.as_ref() };
    let mut add = READ_OK | WRITE_OK;
    // The operation of an access before `at`, if this thread has satisfied that access but not yet counted it. The
    // decrement is postponed until `at` has its flags, because that operation, which cannot be done before the
    // decrement, may be what keeps `at` alive.
    let mut satisfied: Option<NonNull<Op<T>>> = None;
    loop {
        let mode = at.mode();
        // Read before the flags are set, because the access may be reclaimed afterwards.
        // SAFETY: the access was linked behind another one.
        let op = unsafe { at.own_op_ptr() };
        // SAFETY: the access was linked behind another one.
        let later = unsafe { at.own_op() }.later();
        let old = add_flags(&at.word, add);
        let new = add & !old.tag();
        let newly_satisfied = mode.is_granted_by(new);
        if newly_satisfied {
            look_ahead(later, !old.is_null());
        }
        // An exclusive access that was not satisfied is not done, so it grants nothing to the accesses behind it.
        let gained = if mode.is_exclusive() { 0 } else { newly_grantable(new, old.tag()) };
        let stop = gained == 0 || old.is_null() || (gained == READ_OK && removed(step::READERS_PASS_ON));
        if stop {
            if let Some(before) = satisfied {
                pause::at(Point::CompleteBeforeSatisfy);
                // SAFETY: this thread has satisfied the access, and counts it once, here.
                unsafe { OpRef::satisfy(before, ready) };
            }
            if newly_satisfied {
                pause::at(Point::CompleteBeforeSatisfy);
                // SAFETY: this thread has satisfied the access, and counts it once, here.
                unsafe { OpRef::satisfy(op, ready) };
            }
            return;
        }
        // A wait, which receives `READ_OK` but is not satisfied by it, does not keep the next access alive; the reader
        // before the wait still does.
        if newly_satisfied {
            let counted = if removed(step::SATISFIED_LATE) { Some(op) } else { satisfied.replace(op) };
            if let Some(before) = counted {
                pause::at(Point::CompleteBeforeSatisfy);
                // SAFETY: this thread has satisfied the access, and counts it once, here.
                unsafe { OpRef::satisfy(before, ready) };
            }
        }
        // SAFETY: the next access cannot be spent before it has `WRITE_OK`, which comes through `at`: either this
        // thread sets it in the next round, or `at` or a reader before it is not done, because the operation of that
        // access waits for the decrement postponed above.
        let next = unsafe { old.deref() };
        next.check();
        if gained & WRITE_OK != 0 {
            advance_tail(at, next, old.tag());
            pause::at(Point::CompleteBeforeRetire);
            // SAFETY: the access is spent, the tail is past it, and this thread has set the flag that spent it.
            unsafe { at.share().end() };
            add = READ_OK | WRITE_OK;
        } else if mode.passes_to(next.mode()) {
            add = READ_OK;
        } else {
            // `next` begins after the run of `at`, and waits for its end.
            if let Some(before) = satisfied {
                pause::at(Point::CompleteBeforeSatisfy);
                // SAFETY: this thread has satisfied the access, and counts it once, here.
                unsafe { OpRef::satisfy(before, ready) };
            }
            return;
        }
        at = next;
    }
}

/// Ensures that the tail is past `access`, whose share can then be ended. The word of `access` points to `next` and has
/// the tag `tag`.
#[inline]
pub(super) fn advance_tail<T>(access: &Access<T>, next: &Access<T>, tag: usize) {
    if removed(step::TAIL_PAST_RETIRED) {
        return;
    }
    // Once an operation is registered, the tails are past the predecessors of its accesses (edge `register`).
    // SAFETY: the access was linked behind another one.
    if unsafe { next.own_op() }.is_registered() {
        return;
    }
    // As in `swing`: a reader linked behind `next` relies on the deferred flags of `next`.
    if !removed(step::COMPLETION_DEFERS) {
        next.defer_flags(grantable_at_link(tag));
    }
    pause::at(Point::CompleteBeforePass);
    // Failure means that the tail is past `access`: the tail was at `access` when `next` was linked, and this thread
    // has acquired that link.
    let _ = access.queue().tail.compare_exchange(
        Shared::from(std::ptr::from_ref(access)),
        Shared::from(std::ptr::from_ref(next)),
        release(edge::swing::PASSED),
        Relaxed,
        epoch::unprotected(),
    );
}
