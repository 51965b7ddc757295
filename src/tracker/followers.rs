//! Finds the operations known to wait for one that is not complete.

use super::{
    access::{Access, Mode},
    op_record::Op,
};
use crate::{
    memory::epoch,
    sync::edge::{self, acquire},
};

/// The maximum number of accesses that [`followers`] visits behind each access of `op`. Not tuned: more readers are
/// rarely known this early.
pub(super) const MAX_FOLLOWERS: usize = 16;

/// Calls `look` with each operation known to wait for `op`, and with that operation's access. `op` must not be
/// complete. In each queue, these are the operations behind `op` [up to those](up_to_next) for which others wait,
/// except the readers if `op` reads the variable, and those of its run if it commutes there. Visits a limited number of
/// accesses, and only those already linked.
///
/// The thread is pinned during the call. None of these operations can run before `op` is complete, so their tasks have
/// not changed since they were pushed.
pub fn followers<T>(op: &Op<T>, mut look: impl FnMut(&Op<T>, &Access<T>)) {
    let _guard = epoch::pin();
    // SAFETY: (1): `op` is not complete, and this thread is pinned.
    for access in unsafe { behind(op, MAX_FOLLOWERS) } {
        if let Some(op) = access.op() {
            look(op, access);
        }
    }
}

/// Returns the accesses that [wait](waits_for) for `op`: in each queue, those [up to](up_to_next) the ones for which
/// others wait. Visits at most `max` accesses per queue, and only those already linked.
///
/// # Safety
/// 1. The caller has been pinned since before `op` was completed, and stays pinned while using the accesses.
unsafe fn behind<T>(op: &Op<T>, max: usize) -> impl Iterator<Item = &Access<T>> {
    op.accesses().flat_map(move |own| {
        // SAFETY: (1).
        unsafe { up_to_next(own) }.take(max).filter(|at| waits_for(at, own))
    })
}

/// Returns the accesses behind `own` that may wait for it directly: those that read or commute beside it, and behind
/// them up to and including the next exclusive one; or, if others read or commute there, these and the access behind
/// them. Visits only those already linked.
///
/// # Safety
/// 1. The caller has been pinned since before `own`'s operation was completed, and stays pinned while using the
///    accesses.
pub(super) unsafe fn up_to_next<T>(own: &Access<T>) -> impl Iterator<Item = &Access<T>> {
    let mut runs = 0;
    let mut next = move |at: &Access<T>| {
        if at.mode().is_exclusive() && !std::ptr::eq(at, own) || runs == 2 {
            // Accesses behind `at` wait for it.
            return None;
        }
        let word = at.word.load(acquire(edge::link::FOLLOWERS), epoch::unprotected());
        if word.is_null() {
            return None;
        }
        // SAFETY: (1): nothing behind the operation's access was spent before the pin, and an access unlinked before it
        // is not found.
        let next: &Access<T> = unsafe { word.deref() };
        next.check();
        runs += u32::from(!at.mode().shares_with(next.mode()));
        Some(next)
    };
    std::iter::successors(next(own), move |at| next(at))
}

/// Whether `at`, which is [among those](up_to_next) behind `own`, waits for `own`.
pub(super) fn waits_for<T>(at: &Access<T>, own: &Access<T>) -> bool {
    !own.mode().shares_with(at.mode()) || at.mode() == Mode::Await
}
