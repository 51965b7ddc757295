//! Running a ready operation: calling its function or skipping the operation, and then completing it.
//!
//! Most operations are *plain*: nothing keeps them from running on the CPU, they complete when their function returns,
//! they have neither a failure nor a result to report, and they change their variables' versions.
//! [`execute_inline`](Core::execute_inline) runs plain operations on a fast path,
//! [`execute_recorded`](Core::execute_recorded) does so while recording them, and
//! [`execute_otherwise`](Core::execute_otherwise) runs all others.

use std::sync::Arc;

use crate::{
    device::stream::{FunctionEnd, GpuStream},
    engine::{
        core::Core,
        ending::{Disposition, Epilogue, FnState, Unfinished},
        family::Family,
        frame::{self, Call, Frame, Holds},
        kin::Kin,
        limits::Limits,
        no_wait::{self, NoWait},
        record::{FullRecording, NoRecording, RunRecording},
        task::{Cleanup, Task, flag},
    },
    error::op::{Cause, OpError},
    notify::{async_state::AsyncState, pending::Ticket},
    sync::edge::{engine_step, removed},
    system::panics,
    trace::Outcome,
    tracker::{self, Hold, Op, OpRef, ReadyList},
    values::device::Device,
};

impl Core {
    /// Runs a ready operation on this thread and adds to `ready` the operations that become ready. The caller must
    /// dispatch these and then [run](Self::finish) the epilogue.
    pub(crate) fn execute(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Epilogue {
        if op.task().has(flag::REPORTS) {
            return self.execute_otherwise(Unfinished { op, called: None }, ready);
        }
        match self.execute_plainly(op, ready) {
            Ok(ticket) => Epilogue::CountOut(ticket),
            Err(unfinished) => self.execute_otherwise(unfinished, ready),
        }
    }

    /// [`execute_inline`](Self::execute_inline), compiled once.
    #[inline(never)]
    pub(super) fn execute_plainly(
        self: &Arc<Self>,
        op: OpRef<Task>,
        ready: &mut ReadyList<Task>,
    ) -> Result<Ticket, Unfinished> {
        self.execute_inline(op, ready, &NoRecording, |unfinished, _| unfinished)
    }

    /// Runs an operation if it is plain, in which case the caller must count it out. Otherwise, passes the operation
    /// unfinished to `otherwise`, and returns the result as the error. Unless `recording` records it, a recorded
    /// operation is not plain. This is part of a worker's main loop.
    #[inline(always)]
    pub(super) fn execute_inline<R>(
        self: &Arc<Self>,
        op: OpRef<Task>,
        ready: &mut ReadyList<Task>,
        recording: &impl RunRecording,
        otherwise: impl Fn(Unfinished, &mut ReadyList<Task>) -> R,
    ) -> Result<Ticket, R> {
        if op.task().has(flag::ON_DEVICE | flag::ASYNC | flag::REPORTS | recording.unrecorded())
            || removed(engine_step::SCHEDULE_THEN_NOTIFY)
            || !self.is_sound(&op)
        {
            return Err(otherwise(Unfinished { op, called: None }, ready));
        }
        recording.start(&op);
        // `?` is not used: a value that might need to be dropped would cost instructions.
        match self.call::<false>(&op) {
            Ok(()) => {}
            failed => return Err(otherwise(Unfinished { op, called: Some(failed) }, ready)),
        }
        if op.task().has(flag::SILENT) {
            return Err(otherwise(Unfinished { op, called: Some(Ok(())) }, ready));
        }
        recording.end(&op);
        Ok(self.complete_plainly(op, ready))
    }

    /// [`execute_inline`](Self::execute_inline) for a recorded operation that may otherwise be plain.
    #[inline(never)]
    pub(super) fn execute_recorded(
        self: &Arc<Self>,
        op: OpRef<Task>,
        ready: &mut ReadyList<Task>,
    ) -> Result<Ticket, Unfinished> {
        self.execute_inline(op, ready, &FullRecording(self), |unfinished, _| unfinished)
    }

    /// Runs or completes an operation that is not plain.
    #[inline(never)]
    pub(super) fn execute_otherwise(self: &Arc<Self>, unfinished: Unfinished, ready: &mut ReadyList<Task>) -> Epilogue {
        let Unfinished { op, called } = unfinished;
        if let Some(result) = called {
            return self.complete(op, result, FnState::Called, ready);
        }
        match self.disposition_at(&op, Device::Cpu) {
            Disposition::Run if op.task().has(flag::DEVICE) => self.run_on_device(op, ready),
            Disposition::Run => {
                self.record_start(&op);
                if op.task().has(flag::ASYNC) {
                    return self.start_async(op, ready);
                }
                if op.task().has(flag::PARENT) {
                    self.start_parent(op);
                    return Epilogue::Nothing;
                }
                let result = self.call::<true>(&op);
                self.complete(op, result, FnState::Called, ready)
            }
            Disposition::Skip(failure) => self.skip(op, failure, ready),
            Disposition::Forward(lane) => {
                self.send(lane, op);
                Epilogue::Nothing
            }
            Disposition::Discard => self.pass_over(op, ready),
        }
    }

    /// Calls the function of `op`. `LIMITED` says whether the operation may have limits.
    #[inline]
    fn call<const LIMITED: bool>(self: &Arc<Self>, op: &OpRef<Task>) -> Result<(), OpError> {
        op.mark(self.started_mark());
        let result = panics::catch(|| {
            frame::enter(self, op, Holds::Variables, |frame| {
                let call = Call::new(frame, None);
                // SAFETY: this thread owns the ready operation, and starts it only here.
                unsafe { if LIMITED { op.start_in_limits(&call) } else { op.start(&call) } }
            })
        });
        self.result_of(op, result)
    }

    /// Calls the function of the GPU operation `op` with `stream`.
    pub(crate) fn call_on(self: &Arc<Self>, op: &OpRef<Task>, stream: &mut GpuStream) -> Result<(), OpError> {
        op.mark(self.started_mark());
        let result = panics::catch(|| {
            no_wait::without_waits(NoWait::DeviceFunction, || {
                frame::enter(self, op, Holds::Variables, |frame| {
                    // SAFETY: this thread owns the ready operation, and starts it only here.
                    unsafe { op.start_in_limits(&Call::new(frame, Some(stream))) }
                })
            })
        });
        let result = self.result_of(op, result);
        if self.is_forked() {
            return result;
        }
        let left = stream.function_ended(if result.is_ok() { FunctionEnd::Returned } else { FunctionEnd::Failed });
        result.and_then(|()| left.map_err(|error| op.task().failed_by(Cause::Device(error))))
    }

    /// Returns the result of a call, with an error or a panic converted into the operation's failure.
    #[inline(always)]
    fn result_of(&self, op: &Op<Task>, result: Result<Result<(), Cause>, panics::Payload>) -> Result<(), OpError> {
        if matches!(result, Ok(Ok(()))) { Ok(()) } else { Self::failure_of(op, result) }
    }

    /// The slow path of [`result_of`](Self::result_of). It is a separate function so that the fast path takes fewer
    /// instructions.
    #[cold]
    #[inline(never)]
    fn failure_of(op: &Op<Task>, result: Result<Result<(), Cause>, panics::Payload>) -> Result<(), OpError> {
        match result {
            Ok(result) => result.map_err(|cause| op.task().failed_by(cause)),
            Err(payload) => Err(op.task().failed_by_panic(payload)),
        }
    }

    /// Calls the function of an operation with children and then lets the children enter their queues. The operation
    /// completes once all its children are complete.
    fn start_parent(self: &Arc<Self>, op: OpRef<Task>) {
        op.mark(self.started_mark());
        let hold = op.hold();
        // SAFETY: (1): this thread owns the ready operation, and the flag says that there is a plan.
        let family = unsafe { Family::of_sync(self, op) };
        let kin: Arc<dyn Kin> = Arc::<Family>::clone(&family);
        let result = panics::catch(|| {
            frame::enter(self, &hold, Holds::Variables, |frame| {
                // SAFETY: this thread owns the ready operation, which the family keeps, and starts it only here.
                frame.in_family(&kin, || unsafe { hold.start_in_limits(&Call::new(frame, None)) })
            })
        });
        let result = self.result_of(&hold, result);
        self.record_return(&hold);
        drop((hold, kin));
        family.end_function(result);
    }

    // --------------------------------------------------------------------------------- asynchronous operations ----

    /// Calls the function of an asynchronous operation. Normally, the operation completes when its completion is used,
    /// not when the function returns.
    fn start_async(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Epilogue {
        op.mark(self.started_mark());
        // The completion may end the operation while its function still runs.
        let hold = op.hold();
        // SAFETY: (1): this thread owns the ready operation, and the flag says that there is a plan.
        let family = op.task().has(flag::PARENT).then(|| unsafe { Family::of_async(self, &hold) });
        let kin = family.as_ref().map(|family| Arc::<Family>::clone(family) as Arc<dyn Kin>);
        if let (Some(limits), Some(kin)) = (op.task().limits(), &kin) {
            // SAFETY: (1): this thread owns the ready operation, which is about to start.
            unsafe { limits.set_parent_of(Some(Arc::clone(kin))) };
        }
        let mut lost = None;
        let result = panics::catch(|| {
            frame::enter_async(self, &hold, op, |frame| {
                struct TakeRight<'a>(&'a Frame, &'a mut Option<OpRef<Task>>);
                impl Drop for TakeRight<'_> {
                    fn drop(&mut self) {
                        *self.1 = self.0.take_right();
                    }
                }
                let _take = TakeRight(frame, &mut lost);
                // SAFETY: this thread owns the ready operation, and starts it only here.
                let start = || unsafe { hold.start_in_limits(&Call::new(frame, None)) };
                match &kin {
                    Some(kin) => frame.in_family(kin, start),
                    None => start(),
                }
            })
        });
        let failure = match result {
            Ok(Ok(())) => None,
            Ok(Err(cause)) => Some(hold.task().failed_by(cause)),
            Err(payload) => Some(hold.task().failed_by_panic(payload)),
        };
        if self.is_forked() {
            // The parent process completes the operation.
            std::mem::forget((hold, failure, family, kin));
            return Epilogue::Nothing;
        }
        // If the right was put back and there is no family, the operation ends here, and the record of its end includes
        // the return.
        if lost.is_none() || family.is_some() {
            self.record_return(&hold);
        }
        if let Some(family) = family {
            return self.return_from_parent(&family, hold, lost, failure);
        }
        match (lost, failure) {
            (None, None) if hold.task().has(flag::REPORTS) => {
                // SAFETY: this thread has started the operation, whose end does not touch the body.
                let cleanup = unsafe { hold.started() };
                if cleanup.is_none() { Epilogue::Nothing } else { Epilogue::Started(hold, cleanup) }
            }
            (None, None) => Epilogue::Nothing,
            (None, Some(failure)) => {
                self.fail_late(&hold, failure);
                Epilogue::Nothing
            }
            // A panic dropped the completion, or a function with references to values failed after its completion had
            // been used or dropped. If the function caught the panic and succeeded, the loss of the completion is the
            // failure.
            (Some(right), failure) => {
                let failure = failure.unwrap_or_else(|| hold.task().failed_by(Cause::LostCompletion));
                let _ = hold.task().async_state().map(AsyncState::resolve);
                self.complete_by_right(right, Err(failure), FnState::Called, ready)
            }
        }
    }

    /// Ends the function's part of an asynchronous parent's work. If the right was put back, also drops the
    /// completion's share of the family, and the parent fails.
    fn return_from_parent(
        self: &Arc<Self>,
        family: &Family,
        op: Hold<Task>,
        lost: Option<OpRef<Task>>,
        failure: Option<OpError>,
    ) -> Epilogue {
        let mut cleanup = Cleanup::default();
        let result = match (lost, failure) {
            (None, None) => {
                if op.task().has(flag::REPORTS) {
                    // SAFETY: this thread has started the operation, whose end does not touch the body.
                    cleanup = unsafe { op.started() };
                }
                Ok(())
            }
            (None, Some(failure)) => Err(failure),
            (Some(right), failure) => {
                let failure = failure.unwrap_or_else(|| op.task().failed_by(Cause::LostCompletion));
                family.end_completion(right, Ok(()));
                Err(failure)
            }
        };
        family.end_function(result);
        if cleanup.is_none() { Epilogue::Nothing } else { Epilogue::Started(op, cleanup) }
    }

    /// Keeps the failure of an asynchronous function for its completion, or records the failure if the completion has
    /// already been used.
    #[cold]
    fn fail_late(self: &Arc<Self>, op: &Op<Task>, failure: OpError) {
        let Some(state) = op.task().async_state() else { unreachable!("the operation is asynchronous") };
        // SAFETY: called once, by the thread that ran the function.
        if let Err(failure) = unsafe { state.fail(failure) } {
            // The operation has already completed. Its function's failure is recorded to avoid losing it.
            self.record_failure(&failure);
            self.run_program_code(op, None, || drop(failure));
        }
    }

    /// [`complete`](Self::complete) for an asynchronous operation whose function was called. If the operation has a
    /// family, the family completes it.
    fn complete_by_right(
        &self,
        right: OpRef<Task>,
        result: Result<(), OpError>,
        function: FnState,
        ready: &mut ReadyList<Task>,
    ) -> Epilogue {
        let kin = right.task().limits().and_then(Limits::parent_of);
        if let Some(family) = kin.and_then(Family::from_kin) {
            family.end_completion(right, result);
            return Epilogue::Nothing;
        }
        self.complete(right, result, function, ready)
    }

    /// Completes an asynchronous operation on behalf of its completion.
    pub(crate) fn resolve(self: &Arc<Self>, right: OpRef<Task>, result: Result<(), Cause>) {
        if self.is_forked() {
            return std::mem::forget((right, result));
        }
        let result = result.map_err(|cause| right.task().failed_by(cause));
        self.resolve_with(right, result);
    }

    /// [`resolve`](Self::resolve) with a result whose error is already the operation's failure.
    pub(super) fn resolve_with(self: &Arc<Self>, right: OpRef<Task>, own: Result<(), OpError>) {
        let early = right.task().async_state().and_then(AsyncState::resolve);
        let (result, second) = match early {
            Some(failure) => (Err(failure), own.err()),
            None => (own, None),
        };
        // The operation's second failure is recorded to avoid losing it.
        second.iter().for_each(|failure| self.record_failure(failure));
        let _running = self.run_without_worker();
        let mut ready = ReadyList::default();
        let mut epilogue = self.complete_by_right(right, result, FnState::MayRun, &mut ready);
        if let Epilogue::CleanUp(completed) = &mut epilogue {
            completed.ended.extend(second);
        }
        let epilogue = self.defer_epilogue(epilogue);
        self.dispatch_ready(&mut ready, epilogue);
    }

    /// Completes an asynchronous operation whose guards were never taken. Its variables remain unchanged.
    pub(super) fn release(self: &Arc<Self>, op: OpRef<Task>) {
        if op.task().has(flag::LIMITED) {
            // A panic dropped the guards before the future existed.
            return self.resolve_with(op, Ok(()));
        }
        let _ = op.task().async_state().map(AsyncState::resolve);
        let ticket = op.task().ticket;
        let _running = self.run_without_worker();
        let mut ready = ReadyList::default();
        self.record_end(&op, Outcome::Succeeded, FnState::MayRun);
        tracker::end(op, &mut ready);
        self.dispatch_ready(&mut ready, Epilogue::CountOut(ticket));
    }

    // ----------------------------------------------------------------------------- GPUs of the naive engine ----

    /// Runs a naive engine's GPU operation on this thread, and waits until the GPU has completed the operation.
    #[cold]
    fn run_on_device(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Epilogue {
        let device = self.gpus.device_of(op.task().lane);
        let Some(gpu) = self.gpus.gpu(device) else { unreachable!("routes lead to devices of the engine") };
        let mut stream = gpu.take_stream(device);
        let failure = match self.disposition_at(&op, device) {
            Disposition::Run => None,
            Disposition::Skip(failure) => Some(failure),
            Disposition::Forward(_) | Disposition::Discard => unreachable!("the operation was to run"),
        };
        if let Some(failure) = failure {
            gpu.return_stream(stream);
            return self.skip(op, failure, ready);
        }
        self.record_start(&op);
        let mut result = self.call_on(&op, &mut stream);
        if self.is_forked() {
            // The stream is not dropped either: a thread of the parent process may have locked its device.
            std::mem::forget((stream, result));
            return Epilogue::Nothing;
        }
        // Code called by the device runs as part of the operation, as does the logger that reports the device's loss.
        let mut end = || stream.finish().map_err(|error| gpu.lose(&error));
        let ended =
            no_wait::without_waits(NoWait::DeviceFunction, || frame::enter(self, &op, Holds::Variables, |_| end()));
        if let Err(loss) = ended {
            let failure = op.task().failed_by(Cause::Device(loss));
            result = result.and(Err(failure));
        }
        gpu.return_stream(stream);
        self.complete(op, result, FnState::Called, ready)
    }
}
