//! Waits in place: a worker that waits for the handle of a ready operation runs that operation on its own stack.
//!
//! The operation is in a queue of its lane, whose entry owns it. A waiter takes the ownership away. The entry stays where
//! it is, with a share of the record, until a worker pops it and finds it stale ([`OpRef::take`]).
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
        ready_loop,
        task::{Task, flag},
        worker_thread,
    },
    tracker::{OpRef, ReadyList},
};

impl Core {
    /// Lets a waiter take a ready operation from the queue that it is about to enter, if it has a handle.
    pub(super) fn publish(op: &OpRef<Task>) {
        // A device's thread has no operation of its own that is counted as pending. If a waiter completed this one, the
        // engine could end before the entry is in its queue.
        if !op.task().has(flag::CLAIMS)
            || op.task().has(flag::ASYNC | flag::ON_DEVICE)
            || worker_thread::serves_device()
        {
            return;
        }
        // SAFETY: (1): this thread owns the ready operation.
        let place = unsafe { op.waiters_place() };
        op.publish(|| {
            // SAFETY: the place stays until the operation has started, and nobody can start it before this call has
            // stored the pointer.
            let place = place.map(|place| unsafe { place.as_ref() });
            place.map(|place| place.publish(NonNull::from(&**op).cast(), op.task().lane)).is_some()
        });
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
        let claim = || shared.claim_ready(lane).map(NonNull::cast);
        // SAFETY: (1): `claim_ready` claims the operation, and returns the pointer that its job has stored.
        unsafe { OpRef::take(claim) }
    }
}
