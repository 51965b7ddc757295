//! Stops and starts, in which worker threads end and are started again while pending operations are kept.
//!
//! For each CPU worker, a stop pushes an operation named *stop*, which [lays aside](crate::threads::aside) the worker
//! that runs it. The thread, left without a worker, ends. The workers of GPU lanes are
//! [recalled](crate::scheduler::Lane::recall) instead: such a lane's thread issues no more operations, and lays its
//! worker aside once the GPU has completed the issued work. While a function that has handed over its worker is
//! waiting, no worker is laid aside, and those already laid aside are taken up again, since the function may be waiting
//! for an operation of any lane. A stop is therefore over only once no function is running on the engine's threads.

use std::{io, sync::Arc, time::Instant};

use crate::{
    context::worker_thread,
    engine::{core::Core, shutdown, workers},
    error::build::{BuildError, ShutdownError},
    op::{frame, task::Task},
    scheduler::Lane,
    sync::thread,
    system::panics,
    threads::{
        aside::{Laid, Stopped},
        thread_pool::BoxedWorker,
    },
    values::kind::EngineKind,
    wait::regain::regain_worker,
};

impl Core {
    /// Records that a function on this thread has handed over its worker. Takes up the workers that were laid aside,
    /// since the function may wait for operations that they would run.
    pub(crate) fn function_waits(self: &Arc<Self>) {
        let workers = self.threads.aside().function_waits(|| self.gpus.resume());
        if workers.is_empty() {
            return;
        }
        let of_cpu = workers.iter().filter(|worker| self.gpus.lane_of(worker).is_none());
        let lanes: Vec<_> = of_cpu.map(|worker| self.threads.lane_of(worker) as u8).collect();
        // A worker whose thread cannot be started stays laid aside.
        let _ = take_up(self, workers);
        lanes.into_iter().for_each(|lane| push_stop(self, lane, i32::MIN));
    }

    /// Records that a function that had handed over its worker has returned or received a worker.
    pub(crate) fn function_has_returned(&self) {
        self.threads.aside().function_has_returned(|| self.gpus.recall());
    }
}

/// Ends the threads of all workers once no function is running. Operations that have not started remain pending.
pub(crate) fn stop(core: &Arc<Core>, deadline: Option<Instant>) -> Result<(), ShutdownError> {
    core.live()?;
    shutdown::make_way_outside(core).map_err(|error| match error {
        ShutdownError::InsideOperation => ShutdownError::StopInsideOperation,
        error => error,
    })?;
    let stopped = stop_from_outside(core, deadline);
    regain_worker(deadline);
    stopped
}

fn stop_from_outside(core: &Arc<Core>, deadline: Option<Instant>) -> Result<(), ShutdownError> {
    if core.kind == EngineKind::Naive || !core.is_open() {
        return Ok(());
    }
    let is_first = core.threads.aside().request(|| core.gpus.recall());
    // A shutdown that began before the request may not have seen it. The request's lock hands over the shutdown's
    // phase.
    if !core.is_open() {
        run_again(core);
        return Ok(());
    }
    if is_first {
        for (lane, workers) in core.threads.workers_by_lane() {
            (0..workers).for_each(|_| push_stop(core, lane, i32::MAX));
        }
    }
    match core.threads.aside().wait(deadline) {
        Stopped::All => core.threads.end_passing(deadline).map_err(ShutdownError::ThreadsLeft),
        Stopped::Cancelled => Ok(()),
        Stopped::TimedOut => {
            run_again(core);
            Err(ShutdownError::TimedOut)
        }
    }
}

/// Starts the threads of the workers again.
pub(crate) fn start(core: &Arc<Core>) -> Result<(), BuildError> {
    if core.is_forked() {
        return Ok(());
    }
    core.threads.cancel_stop(|| core.gpus.resume());
    take_up(core, core.threads.aside().take())
}

/// [Starts](start) an engine that may have been stopped and must not remain so.
pub(super) fn run_again(core: &Arc<Core>) {
    if let Err(error) = start(core) {
        frame::enter_after(core, || {
            panics::log!(Error, "raddle: no threads could be started for the workers of a stopped engine: {error}");
        });
    }
}

/// Starts threads for workers that were laid aside.
fn take_up(core: &Arc<Core>, mut workers: Vec<BoxedWorker<Task>>) -> Result<(), BuildError> {
    while let Some(worker) = workers.pop() {
        if let Err((error, worker)) = give_thread(core, worker) {
            workers.extend(worker);
            core.threads.aside().put_back(workers);
            return Err(BuildError::Thread(error));
        }
    }
    Ok(())
}

/// Starts a thread for a worker. Returns the worker if that fails.
fn give_thread(core: &Arc<Core>, worker: BoxedWorker<Task>) -> Result<(), (io::Error, Option<BoxedWorker<Task>>)> {
    match core.gpus.lane_of(&worker) {
        Some(lane) => (core.serve_lane)(core, lane, worker),
        None => workers::restart(core, worker),
    }
}

/// On the first use of a GPU lane, gives the lane's worker to a thread started by `serve_lane`. If the engine is
/// stopped and no function is waiting, the worker is laid aside instead, and receives a thread later. Returns the
/// worker if no thread can be started.
pub(crate) fn begin_lane(
    core: &Arc<Core>,
    worker: BoxedWorker<Task>,
) -> Result<(), (io::Error, Option<BoxedWorker<Task>>)> {
    let Some(worker) = core.threads.aside().enlist(worker) else { return Ok(()) };
    give_thread(core, worker).inspect_err(|_| core.threads.aside().discharge())
}

/// Lays the worker of a GPU lane aside. Returns the worker if the stop was cancelled, a function is waiting, an
/// operation has been [sent](super::on_device::send) to the lane, or the lane has ended.
pub(crate) fn lay_lane_aside(core: &Core, worker: BoxedWorker<Task>) -> Result<(), BoxedWorker<Task>> {
    let mut worker = Some(worker);
    // The sender looks for the worker after the send, so either this thread sees the operation or the sender finds
    // the worker.
    let may_leave = |lane: &Lane<Task>| !lane.has_first() && !lane.has_ended();
    let _ = core.threads.aside().lay(|| worker.take_if(|worker| may_leave(worker.lane())));
    worker.map_or(Ok(()), Err)
}

/// Pushes an operation that lays a worker of `lane` aside.
fn push_stop(core: &Arc<Core>, lane: u8, priority: i32) {
    core.push_call("stop", (lane, priority), move |core| lay_aside(core, lane));
}

/// Lays the worker of the calling thread aside, unless the stop was cancelled. Tries again later if a function is
/// waiting or the thread has no worker.
fn lay_aside(core: &Arc<Core>, lane: u8) {
    match core.threads.aside().lay(|| worker_thread::take_worker(core)) {
        // A sleeping worker may have been passed over when the other stop operations were pushed.
        Laid::Aside => core.threads.lane(lane).sleep().notify(),
        Laid::NotWanted => {}
        Laid::NotYet => {
            // The work needed by the waiting function takes precedence. The pause keeps these repeated pushes from
            // occupying a processor.
            #[cfg(not(any(raddle_loom, raddle_shuttle)))]
            std::thread::sleep(PAUSE);
            thread::yield_now();
            push_stop(core, lane, i32::MIN);
        }
    }
}

/// The length of a worker's pause when a waiting function keeps it from being laid aside. Not tuned: imperceptible to a
/// person, but long for a processor.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const PAUSE: std::time::Duration = std::time::Duration::from_micros(100);
