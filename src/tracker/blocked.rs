//! Walking forward: which operations cannot start, or cannot end, before others are complete.

use std::{collections::HashSet, ptr::NonNull};

use super::{followers::behind, op::Op};
use crate::{
    memory::epoch,
    testing::weaken::{Step, removed},
};

/// Operations that a walk has yet to visit, each with a number that tells how the walk came there.
pub type Ahead<T> = Vec<(NonNull<Op<T>>, usize)>;

/// Walks forward from the operations in `ahead`: to those that stand behind one of them and cannot start before it is
/// complete, to those behind these, and so on. Calls `look` with each of them once, those in `ahead` included, and with the
/// number of the operation that the walk came from. It returns whether the walk may end, and may add operations that cannot
/// end before this one is complete. Returns whether `look` has ended the walk. Visits at most `max` operations.
///
/// The thread is pinned during the walk. Every operation that it visits was not complete at some moment since then, and so
/// nothing behind it had been retired before.
///
/// # Safety
/// 1. The operations in `ahead` are not complete when the walk begins, and those that `look` adds are not when it adds
///    them.
pub unsafe fn walk_blocked<T>(
    mut ahead: Ahead<T>,
    max: usize,
    mut look: impl FnMut(&Op<T>, usize, &mut Ahead<T>) -> bool,
) -> bool {
    let _guard = if removed(Step::WalkPins) { None } else { Some(epoch::pin()) };
    let mut visited = HashSet::new();
    let mut looked_at: Ahead<T> = Vec::new();
    loop {
        while let Some((op, from)) = ahead.pop() {
            if visited.len() < max && visited.insert(op) {
                // SAFETY: (1), or it was found behind an operation that was not complete when this thread was pinned, and
                // before which it cannot start. So neither was it, and its record was not retired.
                if look(unsafe { op.as_ref() }, from, &mut ahead) {
                    return true;
                }
                looked_at.push((op, from));
            }
        }
        let Some((op, from)) = looked_at.pop() else { return false };
        // SAFETY: as above.
        let op = unsafe { op.as_ref() };
        // SAFETY: (1): as for the operation.
        for access in unsafe { behind(op, usize::MAX) } {
            ahead.extend(access.op_ptr().map(|next| (next, from)));
        }
    }
}
