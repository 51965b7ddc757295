//! Completing an operation: updating the state of its variables and collecting the operations that become ready.

use crate::{
    engine::core::Core,
    error::{
        device_error::DeviceError,
        op::{Cause, OpError},
    },
    notify::pending::Ticket,
    observe::record,
    op::{
        ending::{Completed, Epilogue, FnState},
        task::{Task, flag},
        variable::VarCell,
    },
    testing::pause::{self, Point},
    trace::Outcome,
    tracker::{self, Access, Mode, Op, OpRef, ReadyList},
};

impl Core {
    /// Completes an operation with `result`. Adds to `ready` the operations that become ready.
    #[inline(never)]
    pub(crate) fn complete(
        &self,
        op: OpRef<Task>,
        mut result: Result<(), OpError>,
        function: FnState,
        ready: &mut ReadyList<Task>,
    ) -> Epilogue {
        if self.is_forked() {
            // In a forked child, the operation belongs to the parent process, which completes it.
            std::mem::forget(result);
            return Epilogue::Nothing;
        }
        record::end(self, &op, function.outcome(&result), function);
        let mut ended = Vec::new();
        if op.task().has(flag::SILENT | flag::DEVICE) {
            note_special(self, &op, &mut result, &mut ended);
        } else {
            match &result {
                Ok(()) => count_mutations(&op, &mut ended),
                Err(failure) => {
                    take_overwritten(self, &op, &mut ended);
                    fail_variables(self, &op, failure);
                }
            }
        }
        let has_succeeded = function != FnState::NotCalled && result.is_ok() && ended.is_empty();
        if !has_succeeded || op.task().has(flag::REPORTS) {
            // The epilogue of an inline operation is left to the loop, since others that became ready with it wait in
            // this thread's memory, and a waker that the count-out calls may wait for one of them.
            let is_short = !op.task().has(flag::ASYNC | flag::INLINE);
            let op = tracker::complete(op, ready);
            pause::at(Point::Completed);
            if has_succeeded && is_short {
                return Completed::succeeded(op);
            }
            return Epilogue::CleanUp(Completed::new(op, result, ended, function));
        }
        let ticket = op.task().ticket;
        tracker::end(op, ready);
        pause::at(Point::Completed);
        Epilogue::CountOut(ticket)
    }
}

/// Completes an operation that has succeeded on the CPU. The caller has checked that the operation is not silent,
/// that it reports no result, and that none of its variables had failed.
#[inline(always)]
pub(super) fn plainly(op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Ticket {
    let ticket = op.task().ticket;
    let count = |access: &Access<Task>| {
        if access.mode().is_write() {
            // SAFETY: the operation holds its variables until `end_with` has called this for each of them.
            unsafe { VarCell::of(access).mutated() };
        }
    };
    tracker::end_with(op, count, ready);
    pause::at(Point::Completed);
    ticket
}

/// Completes an operation that is skipped because of `failure`.
#[cold]
pub(crate) fn skip(core: &Core, op: OpRef<Task>, failure: OpError, ready: &mut ReadyList<Task>) -> Epilogue {
    core.complete(op, Err(failure), FnState::NotCalled, ready)
}

/// Completes an operation whose push returned an error or that was cancelled quietly. Its variables are left
/// unchanged.
#[cold]
pub(crate) fn pass_over(core: &Core, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Epilogue {
    if core.is_forked() {
        return Epilogue::Nothing;
    }
    record::end(core, &op, Outcome::Skipped, FnState::NotCalled);
    Epilogue::CleanUp(Completed::new(tracker::complete(op, ready), Ok(()), Vec::new(), FnState::NotCalled))
}

/// The part of [`complete`](Core::complete) that updates variables and failures, for a silent operation or a GPU
/// operation.
fn note_special(core: &Core, op: &Op<Task>, result: &mut Result<(), OpError>, ended: &mut Vec<OpError>) {
    match result {
        Ok(()) if op.task().has(flag::SILENT) => {}
        Err(failure) if op.task().has(flag::SILENT) => core.record_failure(failure),
        Ok(()) => {
            clear_overwritten(core, op, ended);
            count_on_device(op);
        }
        Err(failure) => {
            let own = failure.clone();
            take_overwritten(core, op, ended);
            *failure = fail_on_device(core, op, own.clone());
            ended.push(own);
        }
    }
}

/// Counts the mutations of a successful operation and clears the failures that it overwrites.
fn count_mutations(op: &Op<Task>, ended: &mut Vec<OpError>) {
    for access in op.accesses().iter().filter(|access| access.mode().is_write()) {
        let cell = VarCell::of(access);
        // SAFETY: the operation holds its variables until the tracker completes it.
        unsafe { cell.mutated() };
        if access.mode() == Mode::Overwrite && cell.fault().has_failed() {
            // SAFETY: the operation holds its variables until the tracker completes it. It issued no work on a
            // device, so it started only after GPUs had completed their work on these variables.
            let failure = unsafe { cell.fault().set_failure(None) };
            ended.extend(failure.inspect(OpError::mark_reported));
        }
    }
}

/// Clears the failures that a GPU operation overwrites. Called as soon as the operation has been issued, since
/// operations behind it on that GPU may then run.
pub(crate) fn clear_overwritten(core: &Core, op: &Op<Task>, ended: &mut Vec<OpError>) {
    let first = ended.len();
    take_overwritten(core, op, ended);
    ended[first..].iter().for_each(OpError::mark_reported);
}

/// Takes the failures of the variables that an operation overwrites. If the operation has failed, its own failure
/// replaces the taken ones, which remain to be reported.
pub(crate) fn take_overwritten(core: &Core, op: &Op<Task>, taken: &mut Vec<OpError>) {
    for access in op.accesses() {
        let cell = VarCell::of(access);
        if access.mode() == Mode::Overwrite && cell.fault().has_failed() {
            // SAFETY: the operation holds its variables until the tracker completes it, and the closure runs under
            // the fault lock.
            taken.extend(core.fault_lock.with(|| unsafe { cell.fault().set_failure(None) }));
        }
    }
}

/// Counts the mutations of an operation completed by a GPU.
pub(crate) fn count_on_device(op: &Op<Task>) {
    for access in op.accesses().iter().filter(|access| access.mode().is_write()) {
        VarCell::of(access).mutated_on_device();
    }
}

/// Runs [`fail_variables`] for a GPU operation. Operations behind it may already hold its
/// variables. Returns the failure with which the variables fail: `failure` or, if that is the loss of a GPU and one
/// of the variables has already failed because of a loss, the earlier failure.
pub(crate) fn fail_on_device(core: &Core, op: &Op<Task>, failure: OpError) -> OpError {
    core.fault_lock.with(|| {
        // SAFETY: this runs under the fault lock.
        let failure_of = |access| unsafe { VarCell::of(access).fault().failure() };
        let known = op.accesses().iter().filter_map(failure_of).find(|known| known.loss().is_some());
        let failure = known.filter(|_| failure.loss().is_some()).unwrap_or(failure);
        fail_variables(core, op, &failure);
        failure
    })
}

/// Fails an operation that was in flight on a GPU when the GPU was lost because of `error`, and returns the
/// failure.
pub(crate) fn lose_on_device(core: &Core, op: &Op<Task>, error: &DeviceError) -> OpError {
    fail_on_device(core, op, op.task().failed_by(Cause::Device(error.clone())))
}

/// Fails the variables that an operation mutates, except those that have already failed.
fn fail_variables(core: &Core, op: &Op<Task>, failure: &OpError) {
    // The failure must be recorded before another thread can see it on a variable.
    core.record_failure(failure);
    for access in op.accesses().iter().filter(|access| access.mode().is_write()) {
        let cell = VarCell::of(access);
        if !cell.fault().has_failed() {
            // SAFETY: the operation holds its variables until the tracker completes it; or the caller is a GPU lane
            // and holds the fault lock, and only other lanes read the failure before the caller's timeline reports
            // the operation complete.
            let none = unsafe { cell.fault().set_failure(Some(failure.clone())) };
            debug_assert!(none.is_none(), "the variable had not failed");
        }
    }
}
