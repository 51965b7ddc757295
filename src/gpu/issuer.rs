//! The thread of a GPU lane, which issues operations on its stream, polls the stream, and forwards *cross-lane
//! waiters*, the operations of other lanes that wait for this lane.
//!
//! A ready device operation is scheduled on its lane. The lane's thread calls the operation's function with the stream,
//! and then immediately releases the operation's variables. The operations in flight are recorded in the variables
//! ([`timeline`](crate::device::timeline)). An operation that runs on the CPU or on another device, or whose function
//! may use a value in host memory, must wait until the operations in flight on its variables are complete. It is *sent*
//! to the lane for which it waits. That lane watches its stream, and sends the operation on once the operations for
//! which it waits are complete.
//!
//! # States of an operation here
//!
//! In this file, an operation is *complete* once the device has completed it, unless the tracker is named.
//!
//! | state | meaning | next |
//! |---|---|---|
//! | sent | in the lane's injector: to be issued here, or a cross-lane waiter | issued, skipped, discarded, watched, or sent on |
//! | issued | its function has been called and its variables are released, so it is complete for the tracker; in `in_flight` | ended |
//! | ended | the device has completed it, or never will: its mutations are counted, or its variables have failed; it is reported and counted out | – |
//! | watched | an operation, usually a cross-lane waiter, with a dependency in flight here; in `watched` | sent on |
//!
//! # Marks and events
//!
//! A *mark*, reported by `passed`, follows each operation for which the host waits because a CPU operation or a handle
//! depends on it. Any other operation is followed by a mark only if no mark is in flight, or if 64 operations have been
//! issued without one. So a chain of operations that stays on the GPU costs few marks.
//!
//! A recorded *event* follows each operation that, when issued, is known to have a follower on another of the GPU's
//! streams. If the follower is pushed later, the event is recorded when the follower arrives here as a waiter. The
//! event then also covers operations issued in between, for which the waiter need not wait. So once such a waiter has
//! arrived, an event follows every operation without a follower on its own stream, as long as other streams keep
//! waiting for events.

use std::{collections::VecDeque, sync::Arc};

use super::backoff::Backoff;
use crate::{
    context::{
        ready_loop::{Completed, Epilogue, FnState},
        worker_thread,
    },
    device::{
        gpus::{self, Gpu, GpuLane},
        stream::{FunctionEnd, GpuStream, MARK_TRIES},
        timeline::{RecordedPoint, VectorClock},
    },
    engine::{
        core::Core,
        on_device,
        run::{self, Disposition},
        stop,
    },
    error::{
        device_error::DeviceError,
        op::{Cause, OpError},
    },
    observe::record,
    op::{
        frame,
        task::{Task, flag},
        variable::VarCell,
    },
    scheduler::Worker,
    sync::lock,
    system::panics,
    threads::thread_pool::{BoxedWorker, Ended},
    tracker::{self, Hold, Op, OpRef, ReadyList},
    values::device::Device,
};

/// The maximum number of operations taken between two polls of the stream.
const BATCH: usize = 16;

/// The maximum number of operations in flight on a stream. CUDA's queue for a stream holds about a thousand commands.
/// When the queue is full, a call blocks, and the thread cannot poll the stream in the meantime. Besides the commands
/// of its function, an operation needs up to three waits, an event and a mark. If each function issues two commands,
/// this many operations need fewer than a thousand commands. Functions that issue more may still fill the queue.
const MAX_IN_FLIGHT: usize = 128;

/// The maximum number of operations without a mark. Low enough to leave room for new operations before the GPU has
/// completed all earlier ones.
const MAX_UNMARKED: u64 = MAX_IN_FLIGHT as u64 / 2;

/// The number of operations for which events are recorded in advance, as the head of this file describes, after another
/// stream has asked for an event too late. Not tuned: large enough that late requests are rare, and small enough that
/// the events cost little if no stream asks again.
const FORESIGHT: u32 = 64;

/// An operation that the GPU has not completed.
struct InFlight {
    seq: u64,
    op: Hold<Task>,
    result: Result<(), OpError>,
    /// The failures that the operation has cleared or replaced.
    ended: Vec<OpError>,
    /// The points of other streams for which this stream had waited when the operation was issued.
    clock: VectorClock,
}

/// The known followers of an operation, by kind.
struct Followers {
    /// Whether the operation has followers on other streams of the GPU.
    streams: bool,
    /// Whether the operation has a handle, or followers that wait for the host.
    host: bool,
    /// Whether the operation has followers on the same stream.
    own: bool,
}

/// The driver refused to record an event. The refusal has been logged.
struct NotRecorded;

struct Issuer<'c> {
    core: &'c Arc<Core>,
    /// The lane's number among the engine's GPU lanes.
    gpu_lane: usize,
    /// The lane's number among the lanes of its GPU.
    local: usize,
    device: Device,
    worker: &'c Worker<Task>,
    stream: GpuStream,
    /// The numbers of three operations: the last issued, the last with a mark behind it, and the last complete.
    issued: u64,
    marked: u64,
    passed: u64,
    mark_tries: u32,
    /// Whether it has been said that an event could not be recorded, and none has been since.
    said_unrecorded: bool,
    /// The number of further operations for which events are recorded in advance; see [`FORESIGHT`].
    foresight: u32,
    /// The points of other streams for which this stream has waited.
    seen: VectorClock,
    in_flight: VecDeque<InFlight>,
    /// The watched operations, each with the number of this lane's operation for which it waits.
    watched: VecDeque<(u64, OpRef<Task>)>,
    /// Operations of this lane taken while the worker was recalled, to be issued next.
    held: VecDeque<OpRef<Task>>,
    ready: ReadyList<Task>,
    backoff: Backoff,
}

/// The main function of a thread that serves GPU lane `gpu_lane` until the lane ends or its worker is laid aside.
pub(super) fn serve(core: &Arc<Core>, gpu_lane: usize, worker: BoxedWorker<Task>) -> Ended {
    // The thread may use all cores near the GPU, since each of them may have a worker pinned to it.
    let near = |gpu: &Gpu| if core.gpus().pins { gpu.driver.cores_near() } else { Vec::new() };
    let near = near(&core.gpus().gpus[core.gpus().lanes()[gpu_lane].gpu]);
    worker_thread::serve_device(core, &near, || {
        worker.lane().sleep().set_thread(worker.index());
        let mut worker = worker;
        loop {
            let left = serve_lane(core, gpu_lane, &worker);
            if core.is_forked() {
                // This is a forked child, and the worker belongs to the parent process.
                std::mem::forget(worker);
                return Ended::Over;
            }
            if left == Left::Ended {
                return Ended::Over;
            }
            match stop::lay_lane_aside(core, worker) {
                Ok(()) => return Ended::Idle,
                Err(same) => worker = same,
            }
        }
    })
}

/// Why a lane's service ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// The lane has ended, or the process is a forked child.
    Ended,
    /// The worker was recalled, and nothing is in flight.
    Recalled,
}

/// Serves a lane until it ends, or until its worker can be laid aside.
fn serve_lane(core: &Arc<Core>, gpu_lane: usize, worker: &Worker<Task>) -> Left {
    let lane = &core.gpus().lanes()[gpu_lane];
    let (device, gpu) = (Device::Gpu(lane.gpu as u32), &core.gpus().gpus[lane.gpu]);
    // The lane keeps its stream across a stop, since the program may have bound other libraries' objects to it.
    let kept = lock(&lane.kept).take();
    let prepare = || match kept {
        Some((stream, held)) => (gpu.adopt(stream), held),
        None => (gpu.open(lane.role, device), VecDeque::new()),
    };
    let (stream, held) = panics::catch(prepare).unwrap_or_else(|payload| {
        panics::discard(payload);
        let error = DeviceError::lost(-1, "the driver panicked while opening a stream");
        (GpuStream::dead(gpu.lose(&error), device), VecDeque::new())
    });
    // All operations issued by earlier threads are complete.
    let completed = lane.timeline.completed();
    let mut issuer = Issuer {
        core,
        gpu_lane,
        local: gpu_lane % core.gpus().lanes_each,
        device,
        worker,
        stream,
        issued: completed,
        marked: completed,
        passed: completed,
        mark_tries: 0,
        said_unrecorded: false,
        foresight: 0,
        seen: VectorClock::default(),
        in_flight: VecDeque::new(),
        watched: VecDeque::new(),
        held,
        ready: ReadyList::default(),
        backoff: Backoff::new(),
    };
    let mut left = None;
    while left.is_none() {
        // Panics in the program's functions are caught elsewhere. The catch here ensures that a bug in the engine does
        // not end the lane.
        let run = panics::catch(|| {
            left = Some(issuer.run());
        });
        if let Err(payload) = run {
            // Before program code runs, other threads must be able to find the operations left here.
            let placed = panics::catch(|| issuer.place_ready(Epilogue::Nothing));
            frame::enter_after(core, || {
                for payload in [Some(payload), placed.err()].into_iter().flatten() {
                    panics::discard(payload);
                }
                panics::log!(Error, "raddle: a device's thread panicked outside an operation's function");
            });
        }
    }
    if core.is_forked() {
        // This is a forked child: everything here belongs to the parent process, and the device may be locked.
        std::mem::forget(issuer);
        return Left::Ended;
    }
    if left == Some(Left::Recalled) {
        *lock(&lane.kept) = Some((issuer.stream, issuer.held));
    }
    left.unwrap_or(Left::Ended)
}

impl Issuer<'_> {
    fn lane(&self) -> &GpuLane<Task> {
        &self.core.gpus().lanes()[self.gpu_lane]
    }

    /// Serves the lane until it ends, or until the worker is recalled and nothing is in flight.
    fn run(&mut self) -> Left {
        self.place_ready(Epilogue::Nothing);
        // Operations left unreported by a panic are reported now.
        self.conclude();
        while !self.core.is_forked() {
            let is_recalled = self.worker.lane().is_recalled();
            for _ in 0..BATCH {
                if self.in_flight.len() >= MAX_IN_FLIGHT {
                    break;
                }
                let op = if is_recalled { self.take_waiter() } else { self.try_next() };
                let Some(op) = op else { break };
                self.take(op);
                if self.core.is_forked() {
                    return Left::Ended;
                }
            }
            if !self.in_flight.is_empty() || !self.watched.is_empty() {
                self.poll();
            } else if is_recalled && !self.worker.lane().has_ended() {
                return Left::Recalled;
            } else if let Some(op) = self.held.pop_front().or_else(|| self.worker.next()) {
                self.take(op);
            } else if self.worker.lane().has_ended() {
                return Left::Ended;
            }
        }
        Left::Ended
    }

    fn try_next(&mut self) -> Option<OpRef<Task>> {
        self.held.pop_front().or_else(|| self.worker.try_next())
    }

    /// Takes a cross-lane waiter while the worker is recalled. Such waiters are in the highest band. The lane's own
    /// operations found there are held, and issued after a start.
    fn take_waiter(&mut self) -> Option<OpRef<Task>> {
        while let Some(op) = self.worker.take_first() {
            if !self.is_own(&op) {
                return Some(op);
            }
            self.held.push_back(op);
        }
        None
    }

    fn take(&mut self, op: OpRef<Task>) {
        self.backoff.renew();
        let epilogue = if !self.is_own(&op) {
            self.receive(op);
            Epilogue::Nothing
        } else if op.task().has(flag::STREAM) {
            self.begin(op)
        } else {
            // The operation's function receives no stream. Like a CPU operation, it waits until its dependencies are
            // complete.
            match on_device::pending(self.core, &op, Device::Cpu) {
                Some(gpu_lane) => {
                    self.send(gpu_lane, op);
                    Epilogue::Nothing
                }
                None => self.core.execute(op, &mut self.ready),
            }
        };
        self.place_ready(epilogue);
    }

    /// Dispatches the operations that became ready. Those of this lane come before arrivals from elsewhere, so a chain
    /// is issued as a whole, and streams that wait for its end do not wait for the beginnings of other chains.
    fn place_ready(&mut self, epilogue: Epilogue) {
        let mut others = ReadyList::default();
        while let Some(op) = self.ready.pop() {
            let Some(op) = self.core.admit(op) else { continue };
            if self.is_own(&op) {
                self.worker.push_next(op);
            } else {
                others.push(op);
            }
        }
        self.core.dispatch_ready(&mut others, epilogue);
    }

    /// Returns whether `op` is an operation of this lane rather than a cross-lane waiter.
    fn is_own(&self, op: &Op<Task>) -> bool {
        gpus::gpu_lane(op.task().lane) == Some(self.gpu_lane)
    }

    // ----------------------------------------------------------------------------------------- cross-lane waiters ----

    /// Ensures that `op`, which waits for this lane, will be sent on: once a mark behind the operations on which it
    /// depends has passed, or, if an event suffices, as soon as the event is recorded.
    fn receive(&mut self, op: OpRef<Task>) {
        let own = self.is_own(&op);
        let (mut watch, mut event) = (0, 0);
        for access in op.accesses() {
            let cell = VarCell::of(access);
            let last = cell.fault().last_on_device(self.gpu_lane, access.mode());
            if on_device::follows(self.core, &op, cell, self.device) {
                event = if own { 0 } else { last.max(event) };
            } else {
                watch = last.max(watch);
            }
        }
        if event > self.passed {
            self.foresight = FORESIGHT;
            if self.lane().timeline.after(event).is_none() && self.record().is_err() {
                // The host waits instead of the GPU.
                watch = event.max(watch);
            }
        }
        self.watch(op, watch);
    }

    /// Sends an operation of this lane to the lane on which it depends.
    fn send(&mut self, gpu_lane: usize, op: OpRef<Task>) {
        if gpu_lane == self.gpu_lane {
            self.receive(op);
        } else {
            on_device::send(self.core, gpu_lane, op);
        }
    }

    /// Sends `op` on once operation `seq` is complete.
    fn watch(&mut self, op: OpRef<Task>, seq: u64) {
        if seq <= self.passed {
            self.ready.push(op);
            return;
        }
        if self.marked < seq {
            self.mark();
        }
        self.watched.push_back((seq, op));
    }

    // ------------------------------------------------------------------------------------------------------ issue ----

    /// Issues an operation of this lane, or skips, forwards or discards it.
    fn begin(&mut self, op: OpRef<Task>) -> Epilogue {
        match run::decide(self.core, &op, self.device) {
            Disposition::Run => match self.order(&op) {
                Ok(None) => self.issue(op),
                Ok(Some(other)) => on_device::send(self.core, other, op),
                Err(error) => {
                    let failure = op.task().failed_by(Cause::Device(error));
                    return self.core.complete(op, Err(failure), FnState::NotCalled, &mut self.ready);
                }
            },
            Disposition::Forward(gpu_lane) => self.send(gpu_lane, op),
            Disposition::Skip(failure) => {
                return self.core.complete(op, Err(failure), FnState::NotCalled, &mut self.ready);
            }
            Disposition::Discard => return run::pass_over(self.core, op, &mut self.ready),
        }
        Epilogue::Nothing
    }

    /// Makes the stream wait for the dependencies of `op` on the GPU's other streams. Returns a lane that must record
    /// an event first, if any.
    fn order(&mut self, op: &Op<Task>) -> Result<Option<usize>, DeviceError> {
        let (gpus, first) = (self.core.gpus(), self.gpu_lane - self.local);
        let mut wanted = VectorClock::default();
        for access in op.accesses() {
            let cell = VarCell::of(access);
            for local in (0..gpus.lanes_each).filter(|&local| local != self.local) {
                let last = cell.fault().last_on_device(first + local, access.mode());
                wanted[local] = last.max(wanted[local]);
            }
        }
        for (local, &seq) in wanted.iter().enumerate().take(gpus.lanes_each) {
            let timeline = &gpus.lanes()[first + local].timeline;
            if seq <= self.seen[local] || timeline.is_complete(seq) {
                continue;
            }
            let Some(recorded) = timeline.after(seq) else {
                // The operation may have completed between the two calls.
                if timeline.is_complete(seq) {
                    continue;
                }
                return Ok(Some(first + local));
            };
            self.stream.inner().wait(&recorded.event)?;
            timeline.ask();
            for (seen, known) in self.seen.iter_mut().zip(recorded.clock) {
                *seen = known.max(*seen);
            }
            self.seen[local] = recorded.seq.max(self.seen[local]);
        }
        Ok(None)
    }

    fn issue(&mut self, op: OpRef<Task>) {
        self.issued += 1;
        let seq = self.issued;
        let lanes = self.core.gpus().lanes().len();
        for access in op.accesses() {
            VarCell::of(access).fault().note_on_device(lanes, self.gpu_lane, seq, access.mode());
        }
        record::start(self.core, &op);
        let mut result = on_device::call(self.core, &op, &mut self.stream);
        if self.core.is_forked() {
            return;
        }
        if let Some(error) = self.stream.given_up().or_else(|| result.as_ref().err()?.loss()) {
            // The loss is recorded immediately, so that later operations fail with this error rather than that of a
            // dead stream.
            self.core.gpus().gpus[self.lane().gpu].lose(error);
        }
        let Followers { streams, host, own } = self.followers(&op);
        if self.foresight > 0 {
            self.foresight -= 1;
            if self.lane().timeline.was_asked() {
                self.foresight = FORESIGHT;
            }
        }
        if streams || self.foresight > 0 && !own {
            // Without the event, the host waits instead of the other streams.
            let _ = self.record();
        }
        let mut ended = Vec::new();
        match &mut result {
            Ok(()) => on_device::clear_overwritten(self.core, &op, &mut ended),
            Err(failure) => {
                run::take_overwritten(self.core, &op, &mut ended);
                *failure = on_device::fail_variables(self.core, &op, failure.clone(), &mut ended);
            }
        }
        record::returned(self.core, &op);
        let op = tracker::complete(op, &mut self.ready);
        self.in_flight.push_back(InFlight { seq, op, result, ended, clock: self.seen });
        if host || self.marked == self.passed || self.issued - self.marked >= MAX_UNMARKED {
            self.mark();
        }
    }

    /// Returns the known followers of `op`.
    fn followers(&self, op: &Op<Task>) -> Followers {
        // The host reports the result to a handle.
        let mut found = Followers { streams: false, host: op.task().has(flag::REPORTS), own: false };
        tracker::followers(op, |next, access| {
            if !on_device::follows(self.core, next, VarCell::of(access), self.device) {
                found.host = true;
            } else if next.task().lane != op.task().lane {
                found.streams = true;
            } else {
                found.own = true;
            }
        });
        found
    }

    // ----------------------------------------------------------------------------------------------------- stream ----

    /// Records an event behind all issued operations, for which other streams can wait.
    fn record(&mut self) -> Result<(), NotRecorded> {
        match self.stream.inner().record() {
            Ok(event) => {
                self.said_unrecorded = false;
                self.lane().timeline.publish(RecordedPoint { seq: self.issued, event, clock: self.seen });
                Ok(())
            }
            Err(error) => {
                // A loss is said where it is found.
                if !error.is_lost() && !std::mem::replace(&mut self.said_unrecorded, true) {
                    frame::enter_after(self.core, || {
                        panics::log!(
                            Warn,
                            "raddle: an event could not be recorded, so the host waits instead: {error}"
                        );
                    });
                }
                Err(NotRecorded)
            }
        }
    }

    /// Puts a mark behind all issued operations, so the stream reports when they are complete.
    fn mark(&mut self) {
        if self.marked == self.issued || self.core.is_forked() {
            return;
        }
        let seq = self.issued;
        match self.stream.inner().mark(seq) {
            Ok(()) => {
                self.marked = seq;
                self.mark_tries = 0;
            }
            Err(error) => {
                // The next poll tries to mark again.
                self.mark_tries += 1;
                if error.is_lost() || self.mark_tries == MARK_TRIES {
                    self.core.gpus().gpus[self.lane().gpu].lose(&error);
                }
            }
        }
    }

    /// Polls the stream.
    fn poll(&mut self) {
        let looked = match self.core.gpus().lost(self.device) {
            Some(error) => Err(error.clone()),
            None if self.backoff.wants_probe() => {
                self.stream.inner().probe().and_then(|()| self.stream.inner().passed())
            }
            None => self.stream.inner().passed(),
        };
        match looked {
            Ok(passed) => match (self.covered(passed.min(self.marked)), self.core.gpus().lost(self.device)) {
                (seq, None) if seq > self.passed => {
                    self.backoff.renew();
                    self.advance(seq, None);
                }
                // A dependency on another lane may count as complete only because that lane found the loss.
                (seq, Some(error)) if seq > self.passed => self.fail(&error.clone()),
                _ => self.backoff.wait(),
            },
            Err(error) => self.fail(&error),
        }
        if self.marked == self.passed && self.issued > self.passed {
            self.mark();
        }
    }

    /// Fails every operation in flight because of `error`.
    fn fail(&mut self, error: &DeviceError) {
        // Ends any open capture, since a captured stream cannot be waited for.
        let _ = self.stream.function_ended(FunctionEnd::Failed);
        let loss = self.core.gpus().gpus[self.lane().gpu].lose(error);
        self.marked = self.issued;
        self.advance(self.issued, Some(&loss));
    }

    /// Returns the last operation up to `seq` that can end: its dependencies on other lanes, and those of all earlier
    /// operations, are complete. Operations end in order: none is reported while one of its dependencies may still
    /// fail.
    fn covered(&self, seq: u64) -> u64 {
        let first = self.gpu_lane - self.local;
        let lanes = &self.core.gpus().lanes()[first..first + self.core.gpus().lanes_each];
        let is_covered = |flight: &&InFlight| {
            let others = lanes.iter().zip(flight.clock).enumerate().filter(|&(local, _)| local != self.local);
            flight.seq <= seq && others.into_iter().all(|(_, (lane, before))| lane.timeline.is_complete(before))
        };
        self.in_flight.iter().take_while(is_covered).last().map_or(self.passed, |flight| flight.seq)
    }

    /// Completes every operation up to `seq`, or fails it with `fault` if the GPU is lost.
    fn advance(&mut self, seq: u64, fault: Option<&DeviceError>) {
        // The order matters: first the state that other threads read after the timeline, then the timeline, then the
        // waiters here, and finally the reports.
        for flight in self.in_flight.iter_mut().take_while(|flight| flight.seq <= seq) {
            match (&flight.result, fault) {
                (Ok(()), None) => on_device::count_mutations(&flight.op),
                (Ok(()), Some(error)) => {
                    flight.result = Err(on_device::lose(self.core, &flight.op, error, &mut flight.ended));
                }
                (Err(_), _) => {}
            }
            record::end(self.core, &flight.op, FnState::Called.outcome(&flight.result), FnState::Called);
        }
        self.passed = seq;
        self.lane().timeline.complete(seq);
        // Visits each waiter once, in order, without another buffer.
        for _ in 0..self.watched.len() {
            let Some((wanted, op)) = self.watched.pop_front() else { break };
            if wanted <= seq {
                self.ready.push(op);
            } else {
                self.watched.push_back((wanted, op));
            }
        }
        self.place_ready(Epilogue::Nothing);
        self.conclude();
    }

    /// Reports completed operations and counts them out.
    fn conclude(&mut self) {
        let passed = self.passed;
        while self.in_flight.front().is_some_and(|flight| flight.seq <= passed) {
            let Some(InFlight { op, result, ended, .. }) = self.in_flight.pop_front() else { break };
            // Workers run the program code, so no operation waits for another's program code.
            let completed = Completed::new(op, result, ended, FnState::Called);
            run::finish(self.core, Epilogue::Completed(completed));
        }
    }
}
