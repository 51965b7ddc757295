//! How waiters take ready operations from the scheduler's queues. [`queued`](super::queued) describes the protocol.

use std::ptr::NonNull;

use super::{
    op_record::{Hold, Op, OpRef, alive},
    queued::{Popped, Queued},
};
use crate::{
    memory::epoch,
    sync::edge::{removed, step},
};

impl<T> OpRef<T> {
    /// Allows waiters to take this ready operation from the queue that it is about to enter. `publish` stores the
    /// pointer to the operation's record, and returns `false` if there is no room for it. Does nothing if the operation
    /// has already been in a queue or closed variables accept it.
    ///
    /// The thread that removes the operation from the queue must call [`pop_entry`](Self::pop_entry), or
    /// [`look_at_entry`](Self::look_at_entry) if it puts the operation back.
    pub fn publish(&self, publish: impl FnOnce() -> bool) {
        if !self.queued.enter() {
            return;
        }
        let share = self.hold();
        if publish() {
            // The share belongs to the entry from now on.
            std::mem::forget(share);
        } else {
            self.queued.leave();
        }
    }

    /// Returns the operation of an entry removed from its queue, unless a waiter has taken the operation.
    pub fn pop_entry(self) -> Option<Self> {
        let popped = self.queued.pop();
        if popped == Popped::Op {
            return Some(self);
        }
        // SAFETY: the share was counted for the entry, which ends here.
        drop(unsafe { Hold::from_ptr(self.0) });
        (popped == Popped::OpAndShare).then_some(self)
    }

    /// Calls `look` with the operation of an entry that was removed from its queue and is to be put back. No waiter can
    /// take the operation during the call. Returns the entry and the result. If a waiter has already taken the
    /// operation, ends the entry and returns `None`.
    pub fn look_at_entry<R>(self, look: impl FnOnce(&Self) -> R) -> Option<(Self, R)> {
        let popped = if removed(step::LOOK_POPS) { Popped::Op } else { self.queued.pop() };
        if popped == Popped::Share {
            // SAFETY: the share was counted for the entry, which ends here.
            drop(unsafe { Hold::from_ptr(self.0) });
            return None;
        }
        let result = look(&self);
        if popped == Popped::OpAndShare {
            self.queued.put_back();
        }
        Some((self, result))
    }

    /// Claims an operation with `claim`, then takes it from its entry. Returns `None` if nothing was claimed, or if
    /// another thread has popped the entry; that thread then runs the operation, although the claim was won here.
    ///
    /// # Safety
    /// 1. `claim` returns only a pointer stored by [`publish`](Self::publish), and only if the operation had not
    ///    started.
    pub unsafe fn take(claim: impl FnOnce() -> Option<NonNull<Op<T>>>) -> Option<Self> {
        let _pinned = epoch::pin();
        let op = claim()?;
        // SAFETY: (1): this thread has been pinned since before the operation started, so its record is not reclaimed.
        let queued: &Queued = unsafe { &alive(op).queued };
        // SAFETY: this thread has taken ownership from the entry.
        queued.take().then(|| unsafe { Self::from_ptr(op) })
    }
}
