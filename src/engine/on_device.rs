//! What the engine does with operations beside and on GPUs: which lane an operation must wait for, the call of its
//! function with a stream, and the marks that it leaves on its variables.
//!
//! A GPU operation is complete for the tracker once it was issued. Operations behind it may then hold its variables
//! while the GPU has yet to execute it, so the failures of variables that GPUs use are read and changed under the fault
//! lock.

use std::sync::Arc;

use crate::{
    context::ready_loop::{Epilogue, FnState},
    device::{
        gpus::lane_number,
        stream::{FunctionEnd, GpuStream},
    },
    engine::{
        core::Core,
        run::{self, Disposition},
    },
    error::{
        device_error::DeviceError,
        op::{Cause, OpError},
    },
    observe::record,
    op::{
        frame::{self, Call, Holds},
        no_wait::{self, NoWait},
        task::{Task, flag},
        variable::VarCell,
    },
    sync::Ordering::Relaxed,
    system::panics,
    tracker::{Mode, Op, OpRef, ReadyList},
    values::device::Device,
};

impl Core {
    /// Returns the first GPU lane that `counts` accepts and that has not completed every operation on `cell` which an
    /// access of `mode` must follow.
    pub(crate) fn lane_before(&self, cell: &VarCell, mode: Mode, counts: impl Fn(usize) -> bool) -> Option<usize> {
        let is_pending = |&lane: &usize| {
            let last = cell.fault().last_on_device(lane, mode);
            last != 0 && !self.gpus.lanes()[lane].timeline.is_complete(last)
        };
        (0..self.gpus.lanes().len()).filter(|&lane| counts(lane)).find(is_pending)
    }
}

// ------------------------------------------------------------------------------------------------- before the run ----

/// Returns a GPU lane that must complete a dependency of `op` before `op` may run on the device `at`, if there is
/// one. The caller sends the operation to that lane, which later sends it back. Each lane is returned at most once
/// per operation: commands that the lane receives later are not dependencies. For example, readers pushed later may
/// run alongside an operation with a [`Mode::Await`] access.
pub(crate) fn pending(core: &Core, op: &Op<Task>, at: Device) -> Option<usize> {
    let waited = &op.task().waited;
    // Relaxed: only the owner of a ready operation uses this field.
    let from = usize::from(waited.load(Relaxed));
    let mut pending = None;
    for access in op.accesses() {
        let cell = VarCell::of(access);
        if !cell.fault().needs_check() {
            continue;
        }
        // On the operation's own GPU, stream order suffices, unless the host reads or writes the value.
        let on_stream = follows(core, op, cell, at);
        let counts = |lane: usize| lane >= from && !(on_stream && core.gpus.device_of(lane_number(lane)) == at);
        let lane = core.lane_before(cell, access.mode(), counts);
        if lane.is_none() && !on_stream && access.mode().is_write() {
            // SAFETY: the operation is ready and mutates the variable, so it holds the variable for writing. This
            // call or an earlier one found that every lane had completed its operations on the variable.
            unsafe { cell.fault().leave_device() };
        }
        pending = pending.into_iter().chain(lane).min();
    }
    if let Some(lane) = pending {
        // Relaxed: only the owner of a ready operation uses this field. The number fits into a byte, since
        // `MAX_GPUS` limits the number of lanes.
        waited.store(lane as u8 + 1, Relaxed);
    }
    pending
}

/// Whether stream order suffices to place `op` behind the commands that use `cell` in the lanes of the GPU `at`.
pub(crate) fn follows(core: &Core, op: &Op<Task>, cell: &VarCell, at: Device) -> bool {
    let task = op.task();
    let host_uses_value = cell.is_host_value() && !task.has(flag::COPY);
    task.has(flag::STREAM) && core.gpus.device_of(task.lane) == at && !host_uses_value
}

/// Sends `op` to GPU lane `gpu_lane`, which has issued operations that `op` waits for.
pub(crate) fn send(core: &Arc<Core>, gpu_lane: usize, op: OpRef<Task>) {
    core.gpus.send(gpu_lane, op);
    // Before the send, these operations may have completed and a [stop](super::stop) may have laid the lane's worker
    // aside. If so, the lane is given a thread that only sends `op` on.
    let (lane, aside) = (&core.gpus.lanes()[gpu_lane].lane, core.threads.aside());
    if let Some(worker) = aside.take_one(|worker| Arc::ptr_eq(worker.lane(), lane)) {
        // A worker whose thread cannot be started stays laid aside.
        if let Err((_, worker)) = (core.serve_lane)(core, lane_number(gpu_lane), worker) {
            aside.put_back(Vec::from_iter(worker));
        }
    }
}

// -------------------------------------------------------------------------------------------------------- the run ----

/// Calls the function of the GPU operation `op` with `stream`.
pub(crate) fn call(core: &Arc<Core>, op: &OpRef<Task>, stream: &mut GpuStream) -> Result<(), OpError> {
    op.mark(core.started_mark());
    let result = panics::catch(|| {
        no_wait::without_waits(NoWait::DeviceFunction, || {
            frame::enter(core, op, Holds::Variables, |frame| {
                // SAFETY: this thread owns the ready operation, and starts it only here.
                unsafe { op.start_in_limits(&Call::new(frame, Some(stream))) }
            })
        })
    });
    let result = run::result_of(op, result);
    if core.is_forked() {
        return result;
    }
    let left = stream.function_ended(if result.is_ok() { FunctionEnd::Returned } else { FunctionEnd::Failed });
    result.and_then(|()| left.map_err(|error| op.task().failed_by(Cause::Device(error))))
}

/// Runs a naive engine's GPU operation on this thread, and waits until the GPU has completed the operation.
#[cold]
pub(super) fn run(core: &Arc<Core>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Epilogue {
    let device = core.gpus.device_of(op.task().lane);
    let Some(gpu) = core.gpus.gpu(device) else { unreachable!("routes lead to devices of the engine") };
    let mut stream = gpu.take_stream(device);
    let failure = match run::decide(core, &op, device) {
        Disposition::Run => None,
        Disposition::Skip(failure) => Some(failure),
        Disposition::Forward(_) | Disposition::Discard => unreachable!("the operation was to run"),
    };
    if let Some(failure) = failure {
        gpu.return_stream(stream);
        return core.complete(op, Err(failure), FnState::NotCalled, ready);
    }
    record::start(core, &op);
    let mut result = call(core, &op, &mut stream);
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

// ------------------------------------------------------------------------------------------------- after the run ----

/// The part of [`complete`](Core::complete) that updates variables and failures, for a GPU operation that is skipped or
/// belongs to a naive engine.
pub(super) fn note_result(core: &Core, op: &Op<Task>, result: &mut Result<(), OpError>, ended: &mut Vec<OpError>) {
    match result {
        Ok(()) => {
            clear_overwritten(core, op, ended);
            count_mutations(op);
        }
        Err(failure) => {
            let own = failure.clone();
            run::take_overwritten(core, op, ended);
            *failure = fail_variables(core, op, own.clone(), ended);
            ended.push(own);
        }
    }
}

/// Clears the failures that a GPU operation overwrites. Called as soon as the operation has been issued, since
/// operations behind it on that GPU may then run.
pub(crate) fn clear_overwritten(core: &Core, op: &Op<Task>, ended: &mut Vec<OpError>) {
    let first = ended.len();
    run::take_overwritten(core, op, ended);
    ended[first..].iter().for_each(OpError::mark_reported);
}

/// Counts the mutations of an operation completed by a GPU.
pub(crate) fn count_mutations(op: &Op<Task>) {
    for access in op.accesses().filter(|access| access.mode().is_write()) {
        VarCell::of(access).mutated_on_device();
    }
}

/// Runs [`run::fail_variables`] for a GPU operation. Operations behind it may already hold its variables. Returns the
/// failure with which the variables fail: `failure` or, if that is the loss of a GPU and one of the variables has
/// already failed because of a loss, the earlier failure.
pub(crate) fn fail_variables(core: &Core, op: &Op<Task>, failure: OpError, ended: &mut Vec<OpError>) -> OpError {
    core.fault_lock.with(|| {
        // SAFETY: this runs under the fault lock.
        let failure_of = |access| unsafe { VarCell::of(access).failure() };
        let known = op.accesses().filter_map(failure_of).find(|known| known.loss().is_some());
        let failure = known.filter(|_| failure.loss().is_some()).unwrap_or(failure);
        run::fail_variables(core, op, &failure, ended);
        failure
    })
}

/// Fails an operation that was in flight on a GPU when the GPU was lost because of `error`, and returns the failure.
pub(crate) fn lose(core: &Core, op: &Op<Task>, error: &DeviceError, ended: &mut Vec<OpError>) -> OpError {
    fail_variables(core, op, op.task().failed_by(Cause::Device(error.clone())), ended)
}
