//! Stops and starts, in which worker threads end and are started again while pending operations are kept.
//!
//! For each CPU worker, a stop pushes an operation named *stop*, which [lays aside](crate::threads::aside) the worker
//! that runs it. The thread, left without a worker, ends. The workers of GPU lanes are
//! [recalled](crate::scheduler::Lane::recall) instead: such a lane's thread issues no more operations, and lays its
//! worker aside once the GPU has completed the issued work. While a function that has handed over its worker is
//! waiting, no worker is laid aside, and those already laid aside are taken up again, since the function may be waiting
//! for an operation of any lane. A stop is therefore over only once no function is running on the engine's threads.

use std::{io, panic::Location, sync::Arc, time::Instant};

use crate::{
    engine::{
        core::Core,
        frame::{self, Call},
        job::plain,
        regain::regain_worker,
        spec::Spec,
        task::{ErasedJob, Task, flag},
        worker_thread, workers,
    },
    error::build::{BuildError, ShutdownError},
    scheduler::Lane,
    sync::thread,
    system::panics,
    threads::{
        aside::{Laid, Stopped},
        thread_pool::BoxedWorker,
    },
    tracker::OpRef,
    values::kind::EngineKind,
};

impl Core {
    /// Ends the threads of all workers once no function is running. Operations that have not started remain pending.
    pub(crate) fn stop(self: &Arc<Self>, deadline: Option<Instant>) -> Result<(), ShutdownError> {
        self.live()?;
        self.make_way_outside()?;
        let stopped = self.stop_from_outside(deadline);
        regain_worker(deadline);
        stopped
    }

    fn stop_from_outside(self: &Arc<Self>, deadline: Option<Instant>) -> Result<(), ShutdownError> {
        if self.kind == EngineKind::Naive || !self.is_open() {
            return Ok(());
        }
        let is_first = self.threads.aside().request(|| self.gpus.recall());
        // A shutdown that began before the request may not have seen it. The request's lock hands over the shutdown's
        // phase.
        if !self.is_open() {
            self.run_again();
            return Ok(());
        }
        if is_first {
            for (lane, workers) in self.threads.workers_by_lane() {
                (0..workers).for_each(|_| self.push_stop(lane, i32::MAX));
            }
        }
        match self.threads.aside().wait(deadline) {
            Stopped::All => self.threads.end_passing(deadline).map_err(ShutdownError::ThreadsLeft),
            Stopped::Cancelled => Ok(()),
            Stopped::TimedOut => {
                self.run_again();
                Err(ShutdownError::TimedOut)
            }
        }
    }

    /// Starts the threads of the workers again.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), BuildError> {
        if self.is_forked() {
            return Ok(());
        }
        self.threads.cancel_stop(|| self.gpus.resume());
        self.take_up(self.threads.aside().take())
    }

    /// Whether a stop was requested and the engine has not been started since.
    pub(crate) fn is_stopped(&self) -> bool {
        !self.is_forked() && self.threads.aside().is_requested()
    }

    /// [Starts](Self::start) an engine that may have been stopped and must not remain so.
    pub(super) fn run_again(self: &Arc<Self>) {
        if let Err(error) = self.start() {
            frame::enter_after(self, || {
                panics::log!(Error, "raddle: no threads could be started for the workers of a stopped engine: {error}");
            });
        }
    }

    /// Starts threads for workers that were laid aside.
    fn take_up(self: &Arc<Self>, mut workers: Vec<BoxedWorker<Task>>) -> Result<(), BuildError> {
        while let Some(worker) = workers.pop() {
            if let Err((error, worker)) = self.give_thread(worker) {
                workers.extend(worker);
                self.threads.aside().put_back(workers);
                return Err(BuildError::Thread(error));
            }
        }
        Ok(())
    }

    /// Starts a thread for a worker. Returns the worker if that fails.
    fn give_thread(self: &Arc<Self>, worker: BoxedWorker<Task>) -> Result<(), (io::Error, Option<BoxedWorker<Task>>)> {
        match self.gpus.lane_of(&worker) {
            Some(lane) => (self.serve_lane)(self, lane, worker),
            None => workers::restart(self, worker),
        }
    }

    /// Records that a function on this thread has handed over its worker. Takes up the workers that were laid aside,
    /// since the function may wait for operations that they would run.
    pub(super) fn function_waits(self: &Arc<Self>) {
        let workers = self.threads.aside().function_waits(|| self.gpus.resume());
        if workers.is_empty() {
            return;
        }
        let of_cpu = workers.iter().filter(|worker| self.gpus.lane_of(worker).is_none());
        let lanes: Vec<_> = of_cpu.map(|worker| self.threads.lane_of(worker) as u8).collect();
        // A worker whose thread cannot be started stays laid aside.
        let _ = self.take_up(workers);
        lanes.into_iter().for_each(|lane| self.push_stop(lane, i32::MIN));
    }

    /// Records that a function that had handed over its worker has returned or received a worker.
    pub(super) fn function_has_returned(&self) {
        self.threads.aside().function_has_returned(|| self.gpus.recall());
    }

    /// On the first use of a GPU lane, gives the lane's worker to a thread started by `serve_lane`. If the engine is
    /// stopped and no function is waiting, the worker is laid aside instead, and receives a thread later. Returns the
    /// worker if no thread can be started.
    pub(crate) fn begin_lane(
        self: &Arc<Self>,
        worker: BoxedWorker<Task>,
    ) -> Result<(), (io::Error, Option<BoxedWorker<Task>>)> {
        let Some(worker) = self.threads.aside().enlist(worker) else { return Ok(()) };
        self.give_thread(worker).inspect_err(|_| self.threads.aside().discharge())
    }

    /// Lays the worker of a GPU lane aside. Returns the worker if the stop was cancelled, a function is waiting, an
    /// operation has been [sent](Self::send) to the lane, or the lane has ended.
    pub(crate) fn lay_lane_aside(&self, worker: BoxedWorker<Task>) -> Result<(), BoxedWorker<Task>> {
        let mut worker = Some(worker);
        // The sender looks for the worker after the send, so either this thread sees the operation or the sender finds
        // the worker.
        let may_leave = |lane: &Lane<Task>| !lane.has_first() && !lane.has_ended();
        let _ = self.threads.aside().lay(|| worker.take_if(|worker| may_leave(worker.lane())));
        worker.map_or(Ok(()), Err)
    }

    /// Sends `op` to device lane `number`, which has issued operations that `op` waits for.
    pub(crate) fn send(self: &Arc<Self>, number: usize, op: OpRef<Task>) {
        self.gpus.send(number, op);
        // Before the send, these operations may have completed and the lane's worker may have been laid aside. If so,
        // the lane is given a thread that only sends `op` on.
        let lane = &self.gpus.lanes()[number].lane;
        if let Some(worker) = self.threads.aside().take_one(|worker| Arc::ptr_eq(worker.lane(), lane)) {
            // A worker whose thread cannot be started stays laid aside.
            let _ = self.take_up(vec![worker]);
        }
    }

    /// Pushes an operation that lays a worker of `lane` aside.
    fn push_stop(self: &Arc<Self>, lane: u8, priority: i32) {
        let spec = Spec { lane, ..Spec::internal("stop", priority, flag::NO_SKIP | flag::SILENT) };
        let lay_aside = move |cx: &Call<'_>| {
            cx.core().lay_aside(lane);
            Ok(())
        };
        let pushed = self.push(&spec, Location::caller(), &mut [], ErasedJob::new(plain(lay_aside)));
        debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
    }

    /// Lays the worker of the calling thread aside, unless the stop was cancelled. Tries again later if a function is
    /// waiting or the thread has no worker.
    fn lay_aside(self: &Arc<Self>, lane: u8) {
        match self.threads.aside().lay(|| worker_thread::take_worker(self)) {
            // A sleeping worker may have been passed over when the other stop operations were pushed.
            Laid::Aside => self.threads.lane(lane).sleep().notify(),
            Laid::NotWanted => {}
            Laid::NotYet => {
                // The work needed by the waiting function takes precedence. The pause keeps these repeated pushes from
                // occupying a processor.
                #[cfg(not(any(raddle_loom, raddle_shuttle)))]
                std::thread::sleep(PAUSE);
                thread::yield_now();
                self.push_stop(lane, i32::MIN);
            }
        }
    }
}

/// The length of a worker's pause when a waiting function keeps it from being laid aside. Not tuned: imperceptible to a
/// person, but long for a processor.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const PAUSE: std::time::Duration = std::time::Duration::from_micros(100);
