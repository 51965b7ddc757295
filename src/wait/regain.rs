//! How an operation's function continues after handing over its worker for a wait.
//!
//! * The function continues in the place of a worker of the lane
//!   ([`Lane::borrow_place`](crate::scheduler::Lane::borrow_place)). If no worker is idle, its thread pushes an
//!   operation at the maximum priority, which makes the next worker stay idle until the place is given back.
//! * If all workers' places are lent, the thread joins the lane's queue for a worker and pushes an operation, usually
//!   at the maximum priority. The worker that runs this operation is given to the first thread in the queue, and the
//!   thread that ran the operation becomes a spare.
//!
//! Therefore, within the limits below, at most twice as many functions compute as there are workers, and no more than
//! the workers once each has ended an operation. Workers need not check anything between operations.
//!
//! # Limits
//!
//! A function continues without a place if it receives none within [`LONGEST_STAY`]: all workers may be blocked until
//! this function makes progress. It queues no longer than its wait's time limit, and does not queue while its engine is
//! being stopped. If a [held-back push](crate::group::room), whose thread has no worker, runs an operation that a
//! queued thread pushed, the first function in the queue also continues without a worker.

use std::{cell::Cell, sync::Arc, time::Instant};

use crate::{
    context::{ready_loop, worker_thread},
    engine::core::Core,
    scheduler::{LONGEST_STAY, LentPlace},
    sync::thread_static,
    system::panics,
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

/// If the calling thread has handed over its worker, borrows a worker's place or waits for a worker, for at most
/// [`LONGEST_STAY`] and until `deadline` at the latest. Does nothing inside [`without_regaining`].
#[track_caller]
pub(crate) fn regain_worker(deadline: Option<Instant>) {
    if BLOCKING.with(Cell::get) > 0 {
        return;
    }
    let Some((core, lane)) = worker_thread::without_worker() else { return };
    if core.is_forked() || !core.has_workers() || core.is_stopped() {
        return core.record_return_to_work();
    }
    if let Some(lent) = worker_thread::borrow_place() {
        if lent == LentPlace::Busy {
            ask_to_give_way(&core, lane);
        }
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
    core.push_call("return", (lane, priority), move |core| give_to_returning(core, lane));
    if let Some(worker) = core.threads().await_worker(lane, &place, Some(until)) {
        worker_thread::resume(worker);
    } else {
        core.record_return_to_work();
    }
}

/// Runs `f` on this thread's stack or, if the stack is short, on that of a thread started for `f` while this one waits.
pub(crate) fn on_enough_stack<R>(core: &Arc<Core>, f: impl FnOnce() -> R) -> R {
    if !ready_loop::is_stack_short(core) {
        return f();
    }
    let mut result = None;
    if let Err(run) = ready_loop::on_another_stack(core, || result = Some(f())) {
        panics::log!(Warn, "raddle: program code runs on little stack, since no thread could be started for it");
        run();
    }
    regain_worker(None);
    result.expect("the function has run")
}

/// Asks a worker of `lane` to give way, unless one was asked and has yet to do so.
fn ask_to_give_way(core: &Arc<Core>, lane: u8) {
    if core.threads().lane(lane).ask_to_give_way() {
        core.push_call("give way", (lane, i32::MAX), move |core| give_way(core, lane));
    }
}

/// Lets the calling thread's worker give way. If more must do so, asks the next one first. A thread without a worker,
/// which has taken the operation from the lane, does neither.
fn give_way(core: &Arc<Core>, lane: u8) {
    if core.threads().lane(lane).need_more_to_give_way() && worker_thread::lane_of(core).is_some() {
        ask_to_give_way(core, lane);
    }
    worker_thread::give_way(core);
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
