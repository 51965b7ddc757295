//! Inspects pending operations from outside while other threads continue.

use super::{
    access::{Access, DONE, Mode},
    op::Op,
};
use crate::{
    memory::epoch::{Guard, unprotected},
    sync::Ordering::{Acquire, Relaxed},
};

/// The state of an access as seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The access waits for accesses before it.
    Waits,
    /// The access's operation holds the variable.
    Holds,
    /// The access's operation is done with the variable.
    Done,
}

impl<T> Access<T> {
    /// Returns the state of the access, which may change as soon as this returns.
    pub fn standing(&self) -> Standing {
        // Relaxed: a snapshot.
        match self.word.load(Relaxed, unprotected()).tag() {
            flags if flags & DONE != 0 => Standing::Done,
            flags if self.mode().is_satisfied_by(flags) => Standing::Holds,
            _ => Standing::Waits,
        }
    }
}

/// Calls `f` with each operation known to wait directly for `access`: those behind it up to and including the next
/// writer, except the readers if `access` does not mutate. Visits at most `max` accesses. If `access` is already done,
/// does nothing.
pub fn each_waiting<T>(access: &Access<T>, _pinned: &Guard, max: usize, mut f: impl FnMut(&Op<T>)) {
    let is_done = |access: &Access<T>| access.standing() == Standing::Done;
    let mut at = access;
    // If the access is not done now, nothing behind it had been retired when this thread was pinned.
    if is_done(access) {
        return;
    }
    for _ in 0..max {
        // Acquire (edge `link`): the next access and its operation.
        let word = at.word.load(Acquire, unprotected());
        if word.is_null() {
            return;
        }
        // SAFETY: `access` was not done after this thread was pinned, so nothing behind it had been retired before the
        // pin.
        at = unsafe { word.deref() };
        at.check();
        let reads = at.mode() == Mode::Read;
        if access.mode().is_write() || !reads {
            at.op().into_iter().for_each(&mut f);
        }
        if at.mode().is_write() {
            return;
        }
    }
}
