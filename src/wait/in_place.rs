//! Waits in place: a waiting thread runs, on its own stack, ready operations that must complete before the wait can
//! end.
//!
//! * A ready operation with a handle is owned by its entry in a queue of its lane. A waiter for that handle, or the end
//!   of the operation's scope, may take ownership from the entry, which stays in the queue with a share of the record
//!   until a worker pops the entry and finds it stale ([`OpRef::take`]).
//! * An operation that the wait is known to depend on ([`leads_to`](crate::wait::cycles::leads_to)) is taken from the
//!   deque of the waiter's own worker or, on an engine without workers, from the ready loops of the waiter's thread.
//!
//! # Limits
//!
//! A waiter runs no other operations in place, so no wait is delayed by an unrelated operation: a wait depends on
//! everything that runs above it on the stack. A waiter hands over its worker if it finds no such operation, if its
//! stack is short, or if the wait has a time limit.

use std::{iter, mem, ptr::NonNull, sync::Arc};

use crate::{
    context::{
        ready_loop::{self, Epilogue},
        worker_thread,
    },
    engine::core::{Core, Forked},
    notify::waiters::Goal,
    op::{
        cancellable::{Cancellable, Function, Handled},
        task::{Task, flag},
    },
    system::panics,
    tracker::{OpRef, ReadyList},
    wait::cycles,
};

/// Lets a waiter take a ready operation out of the queue that the operation is about to enter. Does nothing if
/// waiters cannot take the operation.
pub(crate) fn publish(op: &OpRef<Task>) {
    // A device's thread has no pending operation of its own. If a waiter completed this operation, the engine could
    // end before the entry was in its queue.
    if !op.task().has(flag::REPORTS) || op.task().has(flag::ASYNC | flag::GPU_LANE) || worker_thread::serves_device() {
        return;
    }
    // SAFETY: (1): this thread owns the ready operation.
    let place = unsafe { op.waiters_place() };
    op.publish(|| {
        // SAFETY: the place is valid until the operation has started, and no thread can start it before this call
        // has stored the pointer.
        let place = place.map(|place| unsafe { place.as_ref() });
        // The pointer refers to the whole record, since the thread that takes the operation may retire the record.
        let record = NonNull::new(op.as_ptr().cast());
        place.zip(record).map(|(place, record)| place.publish(record, op.task().lane)).is_some()
    });
}

/// Runs the operation of `handled` on the calling thread, if the operation is in a queue of the lane that the
/// thread's worker serves, and the stack is not short. A borrowed place counts as a worker. Returns whether the
/// operation was run.
pub(crate) fn run_handled<R>(core: &Arc<Core>, handled: &Handled<R>) -> bool {
    let Some(op) = take_ready(core, handled.beside()) else { return false };
    worker_thread::note_taken();
    run_on_this_stack(core, op);
    true
}

/// Runs those operations in the deque of the calling thread's worker that [lead to](crate::wait::cycles::leads_to)
/// `goal`, until none is left, the wait for `goal` is over, or the stack is short. Without workers, runs such
/// operations from this thread's ready loops. Returns an error if one of them has forked the process.
pub(crate) fn run_leading(core: &Arc<Core>, is_over: impl Fn() -> bool, goal: &Goal<'_>) -> Result<(), Forked> {
    while !is_over() && !ready_loop::is_stack_short(core) {
        // The wait is checked last: if it is not over, nothing that it awaits has ended since the search began.
        let wanted = |op: &OpRef<Task>| cycles::leads_to(op, goal) && !is_over();
        let taken = match core.has_workers() {
            true => worker_thread::take_queued(core, wanted),
            false => ready_loop::take_deferred_if(core, wanted),
        };
        let Some(op) = taken else { break };
        let op = if op.task().has(flag::REPORTS) { op.pop_entry() } else { Some(op) };
        if let Some(op) = op {
            worker_thread::note_helped();
            run_on_this_stack(core, op);
            core.live()?;
        }
    }
    Ok(())
}

fn run_on_this_stack(core: &Arc<Core>, op: OpRef<Task>) {
    ready_loop::in_place(|| {
        let mut ready = ReadyList::default();
        let epilogue = panics::__rust_end_short_backtrace(|| core.execute(op, &mut ready));
        match epilogue {
            Epilogue::CountOut(ticket) if ready.is_empty() => {
                // Its drop would do nothing, but cost instructions.
                mem::forget(epilogue);
                core.count_out(ticket);
            }
            epilogue => end_on_this_stack(core, ready, epilogue),
        }
    });
}

/// Continues [`run_on_this_stack`] after an operation that has made others ready, or that
/// does not only have to be counted out.
#[inline(never)]
fn end_on_this_stack(core: &Arc<Core>, mut ready: ReadyList<Task>, epilogue: Epilogue) {
    let epilogue = core.defer_epilogue(epilogue);
    // Without workers, operations that are now ready are left to the loop around the wait. From that loop, the wait
    // takes the operations on which it depends.
    if !core.has_workers() {
        ready_loop::with_loop(core, |ready_loop| core.leave(ready_loop, &mut ready, &mut iter::empty()));
    }
    core.dispatch_ready(&mut ready, epilogue);
}

/// Takes a handle's operation from its queue, if the calling thread can run it in place.
fn take_ready(core: &Core, shared: &Cancellable<dyn Function>) -> Option<OpRef<Task>> {
    let lane = worker_thread::lane_of(core)?;
    if ready_loop::is_stack_short(core) {
        return None;
    }
    let claim = || shared.claim_ready(lane).map(NonNull::cast);
    // SAFETY: (1): `claim_ready` claims the operation, and returns the pointer that `publish` has stored.
    unsafe { OpRef::take(claim) }
}
