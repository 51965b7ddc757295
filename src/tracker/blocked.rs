//! Walks forward through the queues to find operations that cannot start or end before others are complete.

use std::{collections::HashSet, hash::BuildHasherDefault, ptr::NonNull};

use raddle_trace::recording::NumberHasher;

use super::{
    followers::{up_to_next, waits_for},
    op_record::Op,
};
use crate::memory::epoch;

/// Operations that a walk has yet to visit, each with a number identifying how the walk reached it.
pub type Ahead<T> = Vec<(NonNull<Op<T>>, usize)>;

/// A set of pointers.
type Pointers<T> = HashSet<NonNull<T>, BuildHasherDefault<NumberHasher>>;

/// Walks forward from each operation in `ahead` to the operations queued behind it that cannot start before it is
/// complete, and continues from these in the same way. Calls `look` once with each operation, including those in
/// `ahead`, and its number; an operation found behind another inherits that operation's number. `look` returns `true`
/// to end the walk, and may append operations that cannot end before its argument is complete. Returns whether `look`
/// ended the walk. Visits at most `max` operations.
///
/// The thread is pinned during the walk. Every operation visited was incomplete at some moment since the thread was
/// pinned, so nothing still behind that operation had been retired before the pin.
///
/// # Safety
/// 1. The operations in `ahead` are not complete when the walk begins, and those that `look` appends are not complete
///    when it appends them.
pub unsafe fn walk_blocked<T>(
    mut ahead: Ahead<T>,
    max: usize,
    mut look: impl FnMut(&Op<T>, usize, &mut Ahead<T>) -> bool,
) -> bool {
    let _guard = epoch::pin();
    let mut visited = Pointers::default();
    let mut looked_at: Ahead<T> = Vec::new();
    // The accesses, other than exclusive ones, from which queues have been walked. The same accesses wait for all
    // readers of a variable, so without this, the time would be quadratic in the number of readers.
    let mut walked = Pointers::default();
    loop {
        while let Some((op, from)) = ahead.pop() {
            if visited.len() < max && visited.insert(op) {
                // SAFETY: either (1) applies, or the operation was found behind another that was incomplete when this
                // thread was pinned, and cannot start before that one is complete. In both cases the operation was
                // incomplete as well, and its record had not been retired.
                if look(unsafe { op.as_ref() }, from, &mut ahead) {
                    return true;
                }
                looked_at.push((op, from));
            }
        }
        let Some((op, from)) = looked_at.pop() else { return false };
        // SAFETY: the operation was visited during this pin, so its record is not reclaimed before the pin ends.
        let op = unsafe { op.as_ref() };
        for own in op.accesses() {
            let is_shared = !own.mode().is_exclusive();
            if is_shared && !walked.insert(NonNull::from(own)) {
                continue;
            }
            // Whether only accesses of the mode of `own` have been found so far: others were not walked from.
            let mut beside = true;
            // SAFETY: (1): this thread has been pinned since before `op` was completed.
            for at in unsafe { up_to_next(own) } {
                if waits_for(at, own) {
                    ahead.extend(at.op_ptr().map(|next| (next, from)));
                }
                beside &= own.mode().shares_with(at.mode());
                if beside && !walked.insert(NonNull::from(at)) {
                    break;
                }
            }
        }
    }
}
