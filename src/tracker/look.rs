//! Looking at pending operations from outside, while other threads go on.

use super::{
    access::{Access, DONE, Mode},
    op::Op,
};
use crate::{
    memory::epoch::{Guard, unprotected},
    sync::Ordering::{Acquire, Relaxed},
};

/// What an access has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It waits for others before it.
    Waits,
    /// Its operation holds the variable.
    Holds,
    /// Its operation is done with the variable.
    Done,
}

impl<T> Access<T> {
    /// Returns what the access has come to. It may be further as soon as this returns.
    pub fn standing(&self) -> Standing {
        // Relaxed: a snapshot.
        match self.word.load(Relaxed, unprotected()).tag() {
            flags if flags & DONE != 0 => Standing::Done,
            flags if self.mode().is_satisfied_by(flags) => Standing::Holds,
            _ => Standing::Waits,
        }
    }
}

/// Calls `f` with each operation that is known to wait for `access` directly: the readers behind it and the next operation that
/// does not read, or only that one if `access` reads. Visits at most `max`. It need not be known whether `access` is done.
pub fn each_waiting<T>(access: &Access<T>, _pinned: &Guard, max: usize, mut f: impl FnMut(&Op<T>)) {
    let is_done = |access: &Access<T>| access.standing() == Standing::Done;
    let mut at = access;
    // If the access was not done when the thread was pinned already, nothing behind it has been retired since.
    if is_done(access) {
        return;
    }
    for _ in 0..max {
        // Acquire (edge `link`): the next access and its operation.
        let word = at.word.load(Acquire, unprotected());
        if word.is_null() {
            return;
        }
        // SAFETY: `access` was not done after this thread was pinned, so nothing that stands behind it was retired before.
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
