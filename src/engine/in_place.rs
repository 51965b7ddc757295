//! Waits in place: a worker that waits for the handle of a ready operation runs that operation on its own stack.
//!
//! The operation is in a queue of its lane, whose entry owns it. A waiter takes the ownership away. The entry stays where
//! it is, with a share of the record, until a worker pops it and finds it stale ([`Queued`](super::queued::Queued)).
//!
//! # Who may touch what
//!
//! * The pointer to the record, beside the function: set by the owner of the operation before it enters a queue. A waiter
//!   uses it only while it is pinned, and only if it has then won the claim: the operation had not started, so its
//!   record is not reclaimed before the waiter is unpinned.
//! * The share of the entry: ended by the worker that pops the entry.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `publish` | store of the pointer in [`Cancellable::publish`] | load in [`Cancellable::claim_ready`] | the ready operation, and the writes before it |
//!
//! Popping hands over what the queue hands over.
//!
//! # Limits
//!
//! A waiter runs nothing but the operation that it waits for, so no wait is buried under an unrelated one. It does not if
//! its stack is short, if the operation belongs to another lane, or if the wait has a time limit: then it hands its
//! worker over.

use std::{ptr::NonNull, sync::Arc};

use crate::{
    engine::{
        cancellable::{Cancellable, Function, Handled},
        core::Core,
        ending::{Epilogues, Unfinished},
        queued::Popped,
        ready_loop,
        task::{Task, flag},
        worker_thread,
    },
    memory::epoch,
    tracker::{Hold, Op, OpRef, ReadyList},
};

impl Core {
    /// Lets a waiter take a ready operation from the queue that it is about to enter, if it has a handle.
    pub(super) fn publish(op: &OpRef<Task>) {
        if op.task().has(flag::ASYNC | flag::ON_DEVICE) {
            return;
        }
        let Some(queued) = op.task().queued() else { return };
        if !queued.enter() {
            return;
        }
        let share = op.hold();
        // SAFETY: this thread owns the ready operation.
        if unsafe { op.publish() } {
            // The entry has it from now on.
            std::mem::forget(share);
        } else {
            queued.leave();
        }
    }

    /// Returns the operation of an entry that this worker has popped, unless a waiter has taken it.
    pub(super) fn pop_entry(op: OpRef<Task>) -> Option<OpRef<Task>> {
        let Some(queued) = op.task().queued() else { return Some(op) };
        let popped = queued.pop();
        if matches!(popped, Popped::Op) {
            return Some(op);
        }
        // SAFETY: the entry had a share, which ends here.
        drop(unsafe { Hold::from_ptr(NonNull::from(&*op)) });
        // A stale entry owns nothing.
        matches!(popped, Popped::OpAndShare).then_some(op)
    }

    /// Runs the operation of `handled` on the calling thread, if that has a worker of the operation's lane and the
    /// operation is in a queue.
    pub(super) fn run_in_place<R>(self: &Arc<Self>, handled: &Handled<R>) {
        let Some(op) = self.take_ready(handled.beside()) else { return };
        worker_thread::share_slot();
        let mut ready = ReadyList::default();
        let epilogue = self.execute_otherwise(Unfinished { op, called: None }, &mut ready);
        let epilogue = self.defer_epilogue(epilogue);
        self.dispatch_ready(&mut ready, Epilogues::from_iter([epilogue]));
    }

    /// Takes the operation of a handle from its queue.
    fn take_ready(&self, shared: &Cancellable<dyn Function>) -> Option<OpRef<Task>> {
        let lane = worker_thread::lane_of(self)?;
        if ready_loop::is_stack_short() {
            return None;
        }
        let _pinned = epoch::pin();
        let op = shared.claim_ready(lane)?.cast::<Op<Task>>();
        // SAFETY: this thread has been pinned since the operation had not started, so its record is not reclaimed.
        let queued = unsafe { op.as_ref() }.task().queued()?;
        // SAFETY: the entry has lost the ownership to this thread.
        queued.take().then(|| unsafe { OpRef::from_ptr(op) })
    }
}
