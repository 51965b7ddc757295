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
    engine::{complete, core::Core, disposition, epilogue, stop},
    error::op::{Cause, OpError},
    group::{family::Family, room},
    notify::{async_state::AsyncState, pending::Ticket},
    observe::record::{self, FullRecording, NoRecording, RunRecording},
    op::{
        ending::{Disposition, Epilogue, FnState, Unfinished},
        frame::{self, Call, Frame, Holds},
        kin::Kin,
        limits::Limits,
        no_wait::{self, NoWait},
        task::{Cleanup, Task, flag},
    },
    sync::edge::{engine_step, removed},
    system::panics,
    trace::Outcome,
    tracker::{self, Hold, Op, OpRef, ReadyList},
    values::device::Device,
};

impl Core {
    /// Runs a ready operation on this thread and adds to `ready` the operations that become ready. The caller must
    /// dispatch these and then [run](crate::engine::epilogue::finish) the epilogue.
    pub(crate) fn execute(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Epilogue {
        if op.task().has(flag::REPORTS) {
            return self.execute_otherwise(Unfinished { op, called: None }, ready);
        }
        match execute_plainly(self, op, ready) {
            Ok(ticket) => Epilogue::CountOut(ticket),
            Err(unfinished) => self.execute_otherwise(unfinished, ready),
        }
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
            || !disposition::is_sound(self, &op)
        {
            return Err(otherwise(Unfinished { op, called: None }, ready));
        }
        recording.start(&op);
        // `?` is not used: a value that might need to be dropped would cost instructions.
        match call::<false>(self, &op) {
            Ok(()) => {}
            failed => return Err(otherwise(Unfinished { op, called: Some(failed) }, ready)),
        }
        if op.task().has(flag::SILENT) {
            return Err(otherwise(Unfinished { op, called: Some(Ok(())) }, ready));
        }
        recording.end(&op);
        Ok(complete::plainly(op, ready))
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
        match disposition::at(self, &op, Device::Cpu) {
            Disposition::Run if op.task().has(flag::DEVICE) => run_on_device(self, op, ready),
            Disposition::Run => {
                record::start(self, &op);
                if op.task().has(flag::ASYNC) {
                    return start_async(self, op, ready);
                }
                if op.task().has(flag::PARENT) {
                    start_parent(self, op);
                    return Epilogue::Nothing;
                }
                let result = call::<true>(self, &op);
                self.complete(op, result, FnState::Called, ready)
            }
            Disposition::Skip(failure) => complete::skip(self, op, failure, ready),
            Disposition::Forward(lane) => {
                stop::send(self, lane, op);
                Epilogue::Nothing
            }
            Disposition::Discard => complete::pass_over(self, op, ready),
        }
    }

    /// Completes an asynchronous operation on behalf of its completion.
    pub(crate) fn resolve(self: &Arc<Self>, right: OpRef<Task>, result: Result<(), Cause>) {
        if self.is_forked() {
            return std::mem::forget((right, result));
        }
        let result = result.map_err(|cause| right.task().failed_by(cause));
        resolve_with(self, right, result);
    }
}

/// [`execute_inline`](Core::execute_inline), compiled once.
#[inline(never)]
pub(super) fn execute_plainly(
    core: &Arc<Core>,
    op: OpRef<Task>,
    ready: &mut ReadyList<Task>,
) -> Result<Ticket, Unfinished> {
    core.execute_inline(op, ready, &NoRecording, |unfinished, _| unfinished)
}

/// Calls the function of `op`. `LIMITED` says whether the operation may have limits.
#[inline]
fn call<const LIMITED: bool>(core: &Arc<Core>, op: &OpRef<Task>) -> Result<(), OpError> {
    op.mark(core.started_mark());
    let result = panics::catch(|| {
        frame::enter(core, op, Holds::Variables, |frame| {
            let call = Call::new(frame, None);
            // SAFETY: this thread owns the ready operation, and starts it only here.
            unsafe { if LIMITED { op.start_in_limits(&call) } else { op.start(&call) } }
        })
    });
    result_of(op, result)
}

/// Calls the function of the GPU operation `op` with `stream`.
pub(crate) fn call_on(core: &Arc<Core>, op: &OpRef<Task>, stream: &mut GpuStream) -> Result<(), OpError> {
    op.mark(core.started_mark());
    let result = panics::catch(|| {
        no_wait::without_waits(NoWait::DeviceFunction, || {
            frame::enter(core, op, Holds::Variables, |frame| {
                // SAFETY: this thread owns the ready operation, and starts it only here.
                unsafe { op.start_in_limits(&Call::new(frame, Some(stream))) }
            })
        })
    });
    let result = result_of(op, result);
    if core.is_forked() {
        return result;
    }
    let left = stream.function_ended(if result.is_ok() { FunctionEnd::Returned } else { FunctionEnd::Failed });
    result.and_then(|()| left.map_err(|error| op.task().failed_by(Cause::Device(error))))
}

/// Returns the result of a call, with an error or a panic converted into the operation's failure.
#[inline(always)]
fn result_of(op: &Op<Task>, result: Result<Result<(), Cause>, panics::Payload>) -> Result<(), OpError> {
    if matches!(result, Ok(Ok(()))) { Ok(()) } else { failure_of(op, result) }
}

/// The slow path of [`result_of`]. It is a separate function so that the fast path takes fewer
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
fn start_parent(core: &Arc<Core>, op: OpRef<Task>) {
    op.mark(core.started_mark());
    let hold = op.hold();
    // SAFETY: (1): this thread owns the ready operation, and the flag says that there is a plan.
    let family = unsafe { Family::of_sync(core, op) };
    let kin: Arc<dyn Kin> = Arc::<Family>::clone(&family);
    let result = panics::catch(|| {
        frame::enter(core, &hold, Holds::Variables, |frame| {
            // SAFETY: this thread owns the ready operation, which the family keeps, and starts it only here.
            frame.in_family(&kin, || unsafe { hold.start_in_limits(&Call::new(frame, None)) })
        })
    });
    let result = result_of(&hold, result);
    record::returned(core, &hold);
    drop((hold, kin));
    family.end_function(result);
}

// --------------------------------------------------------------------------------- asynchronous operations ----

/// Calls the function of an asynchronous operation. Normally, the operation completes when its completion is used,
/// not when the function returns.
fn start_async(core: &Arc<Core>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Epilogue {
    op.mark(core.started_mark());
    // The completion may end the operation while its function still runs.
    let hold = op.hold();
    // SAFETY: (1): this thread owns the ready operation, and the flag says that there is a plan.
    let family = op.task().has(flag::PARENT).then(|| unsafe { Family::of_async(core, &hold) });
    let kin = family.as_ref().map(|family| Arc::<Family>::clone(family) as Arc<dyn Kin>);
    if let (Some(limits), Some(kin)) = (op.task().limits(), &kin) {
        // SAFETY: (1): this thread owns the ready operation, which is about to start.
        unsafe { limits.set_parent_of(Some(Arc::clone(kin))) };
    }
    let mut lost = None;
    let result = panics::catch(|| {
        frame::enter_async(core, &hold, op, |frame| {
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
    if core.is_forked() {
        // The parent process completes the operation.
        std::mem::forget((hold, failure, family, kin));
        return Epilogue::Nothing;
    }
    // If the right was put back and there is no family, the operation ends here, and the record of its end includes
    // the return.
    if lost.is_none() || family.is_some() {
        record::returned(core, &hold);
    }
    if let Some(family) = family {
        return return_from_parent(&family, hold, lost, failure);
    }
    match (lost, failure) {
        (None, None) if hold.task().has(flag::REPORTS) => {
            // SAFETY: this thread has started the operation, whose end does not touch the body.
            let cleanup = unsafe { hold.started() };
            if cleanup.is_none() { Epilogue::Nothing } else { Epilogue::Started(hold, cleanup) }
        }
        (None, None) => Epilogue::Nothing,
        (None, Some(failure)) => {
            fail_late(core, &hold, failure);
            Epilogue::Nothing
        }
        // A panic dropped the completion, or a function with references to values failed after its completion had
        // been used or dropped. If the function caught the panic and succeeded, the loss of the completion is the
        // failure.
        (Some(right), failure) => {
            let failure = failure.unwrap_or_else(|| hold.task().failed_by(Cause::LostCompletion));
            let _ = hold.task().async_state().map(AsyncState::resolve);
            complete_by_right(core, right, Err(failure), FnState::Called, ready)
        }
    }
}

/// Ends the function's part of an asynchronous parent's work. If the right was put back, also drops the
/// completion's share of the family, and the parent fails.
fn return_from_parent(
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
fn fail_late(core: &Arc<Core>, op: &Op<Task>, failure: OpError) {
    let Some(state) = op.task().async_state() else { unreachable!("the operation is asynchronous") };
    // SAFETY: called once, by the thread that ran the function.
    if let Err(failure) = unsafe { state.fail(failure) } {
        // The operation has already completed. Its function's failure is recorded to avoid losing it.
        core.record_failure(&failure);
        epilogue::run_program_code(core, op, None, || drop(failure));
    }
}

/// [`complete`](Core::complete) for an asynchronous operation whose function was called. If the operation has a
/// family, the family completes it.
fn complete_by_right(
    core: &Core,
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
    core.complete(right, result, function, ready)
}

/// [`resolve`](Core::resolve) with a result whose error is already the operation's failure.
pub(crate) fn resolve_with(core: &Arc<Core>, right: OpRef<Task>, own: Result<(), OpError>) {
    let early = right.task().async_state().and_then(AsyncState::resolve);
    let (result, second) = match early {
        Some(failure) => (Err(failure), own.err()),
        None => (own, None),
    };
    // The operation's second failure is recorded to avoid losing it.
    second.iter().for_each(|failure| core.record_failure(failure));
    let _running = room::run_without_worker(core);
    let mut ready = ReadyList::default();
    let mut epilogue = complete_by_right(core, right, result, FnState::MayRun, &mut ready);
    if let Epilogue::CleanUp(completed) = &mut epilogue {
        completed.ended.extend(second);
    }
    let epilogue = core.defer_epilogue(epilogue);
    core.dispatch_ready(&mut ready, epilogue);
}

/// Completes an asynchronous operation whose guards were never taken. Its variables remain unchanged.
pub(crate) fn release(core: &Arc<Core>, op: OpRef<Task>) {
    if op.task().has(flag::LIMITED) {
        // A panic dropped the guards before the future existed.
        return resolve_with(core, op, Ok(()));
    }
    let _ = op.task().async_state().map(AsyncState::resolve);
    let ticket = op.task().ticket;
    let _running = room::run_without_worker(core);
    let mut ready = ReadyList::default();
    record::end(core, &op, Outcome::Succeeded, FnState::MayRun);
    tracker::end(op, &mut ready);
    core.dispatch_ready(&mut ready, Epilogue::CountOut(ticket));
}

// ----------------------------------------------------------------------------- GPUs of the naive engine ----

/// Runs a naive engine's GPU operation on this thread, and waits until the GPU has completed the operation.
#[cold]
fn run_on_device(core: &Arc<Core>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Epilogue {
    let device = core.gpus.device_of(op.task().lane);
    let Some(gpu) = core.gpus.gpu(device) else { unreachable!("routes lead to devices of the engine") };
    let mut stream = gpu.take_stream(device);
    let failure = match disposition::at(core, &op, device) {
        Disposition::Run => None,
        Disposition::Skip(failure) => Some(failure),
        Disposition::Forward(_) | Disposition::Discard => unreachable!("the operation was to run"),
    };
    if let Some(failure) = failure {
        gpu.return_stream(stream);
        return complete::skip(core, op, failure, ready);
    }
    record::start(core, &op);
    let mut result = call_on(core, &op, &mut stream);
    if core.is_forked() {
        // The stream is not dropped either: a thread of the parent process may have locked its device.
        std::mem::forget((stream, result));
        return Epilogue::Nothing;
    }
    // Code called by the device runs as part of the operation, as does the logger that reports the device's loss.
    let mut end = || stream.finish().map_err(|error| gpu.lose(&error));
    let ended = no_wait::without_waits(NoWait::DeviceFunction, || frame::enter(core, &op, Holds::Variables, |_| end()));
    if let Err(loss) = ended {
        let failure = op.task().failed_by(Cause::Device(loss));
        result = result.and(Err(failure));
    }
    gpu.return_stream(stream);
    core.complete(op, result, FnState::Called, ready)
}
