//! Operations that complete after their function has returned: asynchronous ones, and those with children.

use std::sync::Arc;

use crate::{
    context::ready_loop::{Epilogue, FnState},
    engine::{admission, core::Core, run},
    error::op::{Cause, OpError},
    group::{family::Family, room},
    notify::async_state::AsyncState,
    observe::record,
    op::{
        frame::{self, Call, Frame, Holds},
        kin::Kin,
        limits::Limits,
        task::{Remainder, Task, flag},
    },
    system::panics,
    trace::Outcome,
    tracker::{self, Hold, Op, OpRef, ReadyList},
};

impl Core {
    /// Completes an asynchronous operation on behalf of its completion.
    pub(crate) fn resolve(self: &Arc<Self>, right: OpRef<Task>, result: Result<(), Cause>) {
        if self.is_forked() {
            return std::mem::forget((right, result));
        }
        let result = result.map_err(|cause| right.task().failed_by(cause));
        resolve_with(self, right, result);
    }
}

/// Calls the function of an operation with children and then lets the children enter their queues. The operation
/// completes once all its children are complete.
pub(super) fn start_parent(core: &Arc<Core>, op: OpRef<Task>) {
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
    let result = run::result_of(&hold, result);
    record::returned(core, &hold);
    drop((hold, kin));
    family.end_function(result);
}

/// Calls the function of an asynchronous operation. Normally, the operation completes when its completion is used,
/// not when the function returns.
pub(super) fn start(core: &Arc<Core>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Epilogue {
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
            let remainder = unsafe { hold.started() };
            if remainder.is_none() { Epilogue::Nothing } else { Epilogue::Started(hold, remainder) }
        }
        (None, None) => Epilogue::Nothing,
        (None, Some(failure)) => {
            fail_late(core, &hold, failure);
            Epilogue::Nothing
        }
        // A panic dropped the completion, or the completion of a function with references to values had been used or
        // dropped when the function returned. If it had been used and the function succeeded, the operation is
        // resolved. If the function caught the panic and succeeded, the loss of the completion is the failure.
        (Some(right), failure) => {
            let result = match failure {
                None if right.task().async_state().is_some_and(AsyncState::is_resolved) => Ok(()),
                None => Err(hold.task().failed_by(Cause::LostCompletion)),
                Some(failure) => Err(failure),
            };
            if result.is_err() {
                let _ = hold.task().async_state().map(AsyncState::resolve);
            }
            complete_by_right(core, right, result, FnState::Called, ready)
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
    let mut remainder = Remainder::default();
    let result = match (lost, failure) {
        (None, None) => {
            if op.task().has(flag::REPORTS) {
                // SAFETY: this thread has started the operation, whose end does not touch the body.
                remainder = unsafe { op.started() };
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
    if remainder.is_none() { Epilogue::Nothing } else { Epilogue::Started(op, remainder) }
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
        run::run_program_code(core, op, None, || drop(failure));
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
    if result.is_ok() && run::ends_plainly(core, &right) {
        return Epilogue::CountOut(run::complete_plainly(right, ready));
    }
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
    if let Epilogue::Completed(completed) = &mut epilogue {
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
    admission::leave_turns(&op, &mut ready);
    tracker::end(op, &mut ready);
    core.dispatch_ready(&mut ready, Epilogue::CountOut(ticket));
}
