//! Looking ahead: the operations that are known to wait for one that is still running.

use super::{
    access::{Access, Mode},
    op::Op,
};
use crate::{memory::epoch, sync::Ordering::Acquire};

/// The maximum number of accesses that [`followers`] visits behind each access of `op`. Picked; more readers are
/// rarely known this early.
pub(super) const MAX_FOLLOWERS: usize = 16;

/// Calls `look` with each operation, and its access, that is known to wait for `op`, which has not been completed. In
/// each queue these are the readers behind it and the next writer, or only that writer if `op` reads. Visits a limited
/// number of accesses, and only those that are linked now.
///
/// None of these operations can run before `op` is complete, so their tasks are as they were pushed.
pub fn followers<T>(op: &Op<T>, mut look: impl FnMut(&Op<T>, &Access<T>)) {
    for own in op.accesses() {
        let mut at = own;
        for _ in 0..MAX_FOLLOWERS {
            // Acquire (edge `link`): the next access and its operation.
            let word = at.word.load(Acquire, epoch::unprotected());
            if word.is_null() {
                break;
            }
            // SAFETY: `op` is incomplete, so no access behind one of its accesses is spent, and none is retired.
            at = unsafe { word.deref() };
            at.check();
            if own.mode().is_write() || at.mode() != Mode::Read {
                if let Some(op) = at.op() {
                    look(op, at);
                }
            }
            if at.mode().is_write() {
                break;
            }
        }
    }
}
