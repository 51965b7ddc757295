//! How an operation's function continues after handing over its worker for a wait.
//!
//! * If a worker of the lane is idle, the function continues in its place
//!   ([`Lane::borrow_place`](crate::scheduler::Lane::borrow_place)).
//! * Otherwise, the function's thread joins the lane's queue for a worker and pushes an operation, usually at the
//!   maximum priority. The worker that runs this operation is given to the first thread in the queue, and the thread
//!   that ran the operation becomes a spare.
//!
//! Therefore, within the limits below, no more functions compute than there are workers, and workers need not check the
//! queue between operations.
//!
//! # Limits
//!
//! A function continues without a worker if it receives none within [`LONGEST_STAY`]: all workers may be blocked until
//! this function makes progress. It queues no longer than its wait's time limit, and does not queue while its engine is
//! being stopped. If a [held-back push](crate::group::room), whose thread has no worker, runs an operation that a
//! queued thread pushed, the first function in the queue also continues without a worker.

use std::{cell::Cell, panic::Location, time::Instant};

use crate::{
    context::worker_thread,
    engine::core::Core,
    op::{
        frame::Call,
        job::without_sink,
        spec::Spec,
        task::{ErasedJob, flag},
    },
    scheduler::LONGEST_STAY,
    sync::thread_static,
};

/// The number of times that a thread returns ahead of ready operations before returning behind them once. If it always
/// returned ahead, a function polling for an operation's effect could starve that operation. Not tuned.
const RETURNS_AHEAD: u32 = 16;

// The number of calls to `without_regaining` on this thread's stack.
thread_static!(static BLOCKING: Cell<usize> = Cell::new(0));

/// Calls `f`, which blocks the calling thread. A function that has handed over its worker [waits for
/// another](regain_worker) when the outermost such call returns or panics, but not after waits inside such calls.
pub(super) fn without_regaining<R>(f: impl FnOnce() -> R) -> R {
    struct StopBlocking;
    impl Drop for StopBlocking {
        fn drop(&mut self) {
            BLOCKING.with(|depth| depth.set(depth.get() - 1));
            regain_worker(None);
        }
    }
    BLOCKING.with(|depth| depth.set(depth.get() + 1));
    let _leave = StopBlocking;
    f()
}

/// If the calling thread has handed over its worker, borrows an idle worker's place or waits for a worker, for at most
/// [`LONGEST_STAY`] and until `deadline` at the latest. Does nothing inside [`without_regaining`].
#[track_caller]
pub(crate) fn regain_worker(deadline: Option<Instant>) {
    if BLOCKING.with(Cell::get) > 0 {
        return;
    }
    let Some((core, lane)) = worker_thread::without_worker() else { return };
    if core.is_forked() || !core.has_workers() || core.is_stopped() || worker_thread::borrow_place() {
        return core.record_return_to_work();
    }
    let now = Instant::now();
    let until = deadline.map_or(now + LONGEST_STAY, |deadline| deadline.min(now + LONGEST_STAY));
    if until <= now {
        return core.record_return_to_work();
    }
    let Some(place) = core.threads().queue_for_worker(lane) else { return core.record_return_to_work() };
    let is_behind = worker_thread::count_return() % (RETURNS_AHEAD + 1) == RETURNS_AHEAD;
    let priority = if is_behind { 0 } else { i32::MAX };
    let spec = Spec { lane, ..Spec::internal("return", priority, flag::NO_SKIP | flag::SILENT) };
    let give = move |call: &Call<'_>| {
        give_to_returning(call.core(), lane);
        Ok(())
    };
    let pushed = core.push(&spec, Location::caller(), &mut [], ErasedJob::new(without_sink(give)));
    debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
    if let Some(worker) = core.threads().await_worker(lane, &place, Some(until)) {
        worker_thread::resume(worker);
    } else {
        core.record_return_to_work();
    }
}

/// Gives the calling thread's worker to the first thread queued for a worker of `lane`. If no thread is queued, the
/// calling thread keeps its worker. If the calling thread has no worker, lets the first queued thread continue
/// without one.
fn give_to_returning(core: &Core, lane: u8) {
    match worker_thread::take_worker(core) {
        Some(worker) => {
            if let Err(worker) = core.threads.return_worker(worker) {
                worker_thread::put_back(worker);
            }
        }
        None => core.threads.dismiss(lane),
    }
}
