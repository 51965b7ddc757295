//! The disposition of a ready operation: whether it runs, is skipped, is discarded, or must first wait for a GPU.

use crate::{
    device::gpus::FIRST_LANE,
    engine::core::{Core, phase},
    error::op::Cause,
    op::{
        ending::Disposition,
        task::{Claimed, Task, flag},
        variable::VarCell,
    },
    sync::Ordering::Relaxed,
    tracker::{Mode, Op},
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

/// Whether a ready operation may run without further checks: none of its variables has failed or may be in use by a
/// GPU, the operation was not rejected, and the engine is open or draining.
#[inline]
pub(crate) fn is_sound(core: &Core, op: &Op<Task>) -> bool {
    let mut sound = true;
    op.each_access(|access| {
        access.prefetch_next();
        sound &= !VarCell::of(access).fault().needs_check();
    });
    // Relaxed: an operation that starts while the cancellation begins may run or be cancelled.
    sound && !op.is_rejected() && core.phase.load(Relaxed) < phase::CANCELLING
}

/// Decides the disposition of a ready operation that is about to be issued to the GPU `at` or, if `at` is the CPU,
/// to run there. Does not determine the events that a stream must wait for.
#[cold]
pub(crate) fn at(core: &Core, op: &Op<Task>, at: Device) -> Disposition {
    let task = op.task();
    if core.is_forked() || op.is_rejected() {
        return Disposition::Discard;
    }
    let has_gpus = !core.gpus.is_empty();
    // GPU lanes are checked before the failures are read: lanes may change a failure until their work is complete.
    if has_gpus {
        if let Some(lane) = pending_on_device(core, op, at) {
            return Disposition::Forward(lane);
        }
    }
    if task.has(flag::REPORTS) {
        // SAFETY: the caller owns the ready operation.
        match unsafe { op.claim() } {
            Claimed::Run => {}
            Claimed::Cancelled(failure) => return Disposition::Skip(failure),
            Claimed::PassedOver => return Disposition::Discard,
        }
    }
    // Relaxed: an operation that starts while the cancellation begins may run or be cancelled.
    if core.phase.load(Relaxed) == phase::CANCELLING && !task.has(flag::INTERNAL | flag::KEPT) {
        return Disposition::Skip(task.failed_by(Cause::Cancelled));
    }
    if !has_gpus {
        return failure_disposition(op);
    }
    let disposition =
        if at == Device::Cpu { failure_disposition(op) } else { core.fault_lock.with(|| failure_disposition(op)) };
    match (disposition, core.gpus.lost(core.gpus.device_of(task.lane))) {
        // On a lost GPU, an operation that must always run receives a stream that refuses every call.
        (Disposition::Run, Some(error)) if !task.has(flag::NO_SKIP | flag::KEPT) => {
            Disposition::Skip(task.failed_by(Cause::Device(error.clone())))
        }
        (disposition, _) => disposition,
    }
}

/// Decides whether an operation is skipped because a variable that it does not overwrite has failed.
fn failure_disposition(op: &Op<Task>) -> Disposition {
    if !op.task().has(flag::NO_SKIP) {
        for access in op.accesses() {
            let cell = VarCell::of(access);
            if cell.fault().has_failed() && access.mode() != Mode::Overwrite {
                // SAFETY: the operation is ready, so it holds its variables. Either GPU writes to them are
                // complete, or the caller holds the fault lock.
                if let Some(failure) = unsafe { cell.fault().failure() } {
                    return Disposition::Skip(failure);
                }
            }
        }
    }
    Disposition::Run
}

/// Returns a GPU lane that must complete a dependency of `op` before `op` may run on the device `at`, if there is
/// one. The caller sends the operation to that lane, which later sends it back. Each lane is returned at most once
/// per operation: commands that the lane receives later are not dependencies. For example, readers pushed later may
/// run alongside an operation with a [`Mode::Await`] access.
pub(crate) fn pending_on_device(core: &Core, op: &Op<Task>, at: Device) -> Option<usize> {
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
        let on_stream = follows_on_device(core, op, cell, at);
        let counts = |lane: usize| lane >= from && !(on_stream && core.gpus.device_of(FIRST_LANE + lane as u8) == at);
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
pub(crate) fn follows_on_device(core: &Core, op: &Op<Task>, cell: &VarCell, at: Device) -> bool {
    let task = op.task();
    let host_uses_value = cell.is_host_value() && !task.has(flag::COPY);
    task.has(flag::DEVICE) && core.gpus.device_of(task.lane) == at && !host_uses_value
}
