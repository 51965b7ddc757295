//! From a ready operation to its end: a worker takes it, calls its function or skips it, completes it, has what became
//! ready dispatched, and runs its epilogue.
//!
//! Most operations are *plain*: nothing keeps them from running on the CPU, they complete when their function returns,
//! they have neither a failure nor a result to report, and they change their variables' versions.
//! [`execute_plainly_with`] runs plain operations on a fast path, and [`execute_otherwise`] runs all others. What only
//! GPU operations need is in [`on_device`], and what only operations need that complete after their function has
//! returned in [`run_async`].
//!
//! # States of an ending operation
//!
//! 1. Its function was called, or it was skipped, cancelled or rejected. An operation that is not plain is kept in an
//!    [`Unfinished`] until the slow path completes it.
//! 2. It is [complete](Core::complete): its variables have been released. Only its [`Epilogue`] remains.
//! 3. After the operations that became ready have been dispatched, the epilogue [runs](finish): the program code that
//!    is left. Then the operation is counted out.
//!
//! Each of these values belongs to one thread at a time: the thread that ends the operation, or the thread running the
//! ready loop or internal operation to which the epilogue was handed.

use std::{mem, ptr, sync::Arc};

use crate::{
    context::{
        ready_loop::{self, Completed, Epilogue, FnState},
        worker_thread::{self, WorkerThread},
    },
    engine::{
        admission,
        core::{Core, phase},
        on_device, run_async, shuffle,
    },
    error::op::{Cause, OpError},
    notify::{pending::Ticket, wakers::Wakers},
    observe::record::{self, FullRecording, NoRecording, RunRecording},
    op::{
        frame::{self, Call, Frame, Holds},
        group_core::GroupCore,
        limits::Limits,
        task::{Claimed, Remainder, Task, flag},
        variable::{VarCell, failure_before},
    },
    sync::{
        Ordering::Relaxed,
        edge::{engine_step, removed},
    },
    system::panics,
    testing::pause::{self, Point},
    tracker::{self, Access, Hold, Mode, Op, OpRef, ReadyList},
    values::device::Device,
    wait::{self, regain::regain_worker},
};

// ------------------------------------------------------------------------------------------- a worker's main loop ----

/// Runs operations while the thread has a worker and its lane has not ended. `ready` holds newly ready operations until
/// they are dispatched.
///
/// This is a separate function so that the loop does not share registers with code that runs only once.
#[inline(never)]
pub(super) fn run_operations(thread: &WorkerThread, ready: &mut ReadyList<Task>, recording: &impl RunRecording) {
    while let Some(op) = thread.next() {
        let otherwise = |unfinished, ready: &mut _| run_otherwise(thread, unfinished, ready);
        match execute_plainly_with(&thread.core, op, ready, recording, otherwise) {
            Ok(ticket) if ready.is_empty() => thread.core.count_out(ticket),
            Ok(ticket) => {
                // A naive engine has no such thread.
                let here = if thread.core.is_closed() {
                    mem::take(ready)
                } else {
                    thread.core.schedule_ready(ready, recording, |op| thread.schedule(op))
                };
                if here.is_empty() {
                    thread.core.count_out(ticket);
                } else {
                    thread.core.run_here_after(here, ticket);
                }
            }
            Err(()) => {}
        }
    }
}

/// Runs an operation that is not plain unless recordings are taken into account, or completes it.
#[inline(never)]
fn run_otherwise(thread: &WorkerThread, unfinished: Unfinished, ready: &mut ReadyList<Task>) {
    let Unfinished { op, called } = unfinished;
    let is_plain = matches!(called, Some(Ok(()))) && !op.task().has(flag::SILENT | flag::RECORDED);
    // In a forked child, the turns and their locks belong to the parent process.
    if is_plain && !thread.core.is_closed() {
        return end_commuting(thread, op, ready);
    }
    finish_otherwise(&thread.core, Unfinished { op, called }, ready);
    shuffle::draw_next(&thread.core);
}

/// Completes an operation that would be plain if it did not commute, and whose function has succeeded.
#[inline(always)]
fn end_commuting(thread: &WorkerThread, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
    let (core, ticket) = (&thread.core, op.task().ticket);
    // Before another operation has a turn.
    op.each_access(|access| {
        if access.mode().is_write() {
            // SAFETY: the operation holds its variables, and has its turns.
            unsafe { VarCell::of(access).mutated() };
        }
    });
    let mut with_turns = ReadyList::default();
    admission::leave_turns(&op, &mut with_turns);
    tracker::end(op, ready);
    pause::at(Point::Completed);
    while let Some(op) = with_turns.pop() {
        if op.task().has(flag::INLINE | flag::REPORTS | flag::RECORDED) || core.is_closed() {
            ready.push(op);
        } else {
            core.schedule_with(op, |op| thread.schedule(op));
        }
    }
    if ready.is_empty() {
        core.count_out(ticket);
    } else {
        core.dispatch_ready(ready, Epilogue::CountOut(ticket));
    }
}

#[inline(always)]
fn finish_otherwise(core: &Arc<Core>, unfinished: Unfinished, ready: &mut ReadyList<Task>) {
    let Unfinished { mut op, mut called } = unfinished;
    if called.is_none() && op.task().has(flag::RECORDED) {
        match execute_plainly_with(core, op, ready, &FullRecording(core), |unfinished, _| unfinished) {
            Ok(ticket) if ready.is_empty() => return core.count_out(ticket),
            Ok(ticket) => return core.dispatch_ready(ready, Epilogue::CountOut(ticket)),
            Err(unfinished) => Unfinished { op, called } = unfinished,
        }
    }
    let op = if called.is_none() && op.task().has(flag::REPORTS) { op.pop_entry() } else { Some(op) };
    let Some(op) = op else { return };
    let epilogue = execute_otherwise(core, Unfinished { op, called }, ready);
    let epilogue = core.defer_epilogue(epilogue);
    core.dispatch_ready(ready, epilogue);
}

// ----------------------------------------------------------------------------------------------- running or not ----

/// The decision on a ready operation.
pub(crate) enum Disposition {
    Run,
    Skip(OpError),
    /// The GPU lane with this number has yet to complete a dependency.
    Forward(usize),
    /// The operation was rejected or cancelled quietly, or this is a forked child, in which the parent process's
    /// operations are left alone.
    Discard,
}

/// A ready operation that is not plain, with the result of its function if it was called.
#[must_use = "the operation must still be completed"]
pub(super) struct Unfinished {
    op: OpRef<Task>,
    called: Option<Result<(), OpError>>,
}

impl Core {
    /// Runs a ready operation on this thread and adds to `ready` the operations that become ready. The caller must
    /// dispatch these and then [run](finish) the epilogue.
    pub(crate) fn execute(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Epilogue {
        match execute_plainly(self, op, ready) {
            Ok(ticket) => Epilogue::CountOut(ticket),
            Err(unfinished) => execute_otherwise(self, unfinished, ready),
        }
    }
}

/// [`execute_plainly_with`], compiled once. Records nothing, and leaves an operation that is not plain to the caller.
#[inline(never)]
pub(super) fn execute_plainly(
    core: &Arc<Core>,
    op: OpRef<Task>,
    ready: &mut ReadyList<Task>,
) -> Result<Ticket, Unfinished> {
    execute_plainly_with(core, op, ready, &NoRecording, |unfinished, _| unfinished)
}

/// Runs an operation if it is plain, in which case the caller must count it out. Otherwise, passes the operation
/// unfinished to `otherwise`, and returns the result as the error. Unless `recording` records it, a recorded operation
/// is not plain. This is part of a worker's main loop.
#[inline(always)]
fn execute_plainly_with<R>(
    core: &Arc<Core>,
    op: OpRef<Task>,
    ready: &mut ReadyList<Task>,
    recording: &impl RunRecording,
    otherwise: impl Fn(Unfinished, &mut ReadyList<Task>) -> R,
) -> Result<Ticket, R> {
    if op.task().has(flag::GPU_LANE | flag::ASYNC | flag::REPORTS | recording.unrecorded())
        || removed(engine_step::SCHEDULE_THEN_NOTIFY)
        || !is_sound(core, &op)
    {
        return Err(otherwise(Unfinished { op, called: None }, ready));
    }
    recording.start(&op);
    // `?` is not used: a value that might need to be dropped would cost instructions.
    match call::<false>(core, &op) {
        Ok(()) => {}
        failed => return Err(otherwise(Unfinished { op, called: Some(failed) }, ready)),
    }
    if op.task().has(flag::SILENT | flag::COMMUTES) {
        return Err(otherwise(Unfinished { op, called: Some(Ok(())) }, ready));
    }
    recording.end(&op);
    Ok(complete_plainly(op, ready))
}

/// Runs or completes an operation that is not plain.
#[inline(never)]
pub(super) fn execute_otherwise(core: &Arc<Core>, unfinished: Unfinished, ready: &mut ReadyList<Task>) -> Epilogue {
    let Unfinished { op, called } = unfinished;
    if let Some(result) = called {
        return core.complete(op, result, FnState::Called, ready);
    }
    match decide(core, &op, Device::Cpu) {
        Disposition::Run if op.task().has(flag::STREAM) => on_device::run(core, op, ready),
        Disposition::Run => {
            record::start(core, &op);
            if op.task().has(flag::ASYNC) {
                return run_async::start(core, op, ready);
            }
            if op.task().has(flag::PARENT) {
                run_async::start_parent(core, op);
                return Epilogue::Nothing;
            }
            let result = call::<true>(core, &op);
            core.complete(op, result, FnState::Called, ready)
        }
        Disposition::Skip(failure) => core.complete(op, Err(failure), FnState::NotCalled, ready),
        Disposition::Forward(lane) => {
            on_device::send(core, lane, op);
            Epilogue::Nothing
        }
        Disposition::Discard => pass_over(core, op, ready),
    }
}

/// Whether a ready operation may run without further checks: its accesses are in its record, none of its variables has
/// failed or may be in use by a GPU, the operation was not rejected, and the engine is open or draining.
#[inline]
fn is_sound(core: &Core, op: &Op<Task>) -> bool {
    if op.is_apart() {
        return false;
    }
    let mut sound = true;
    op.each_access(|access| {
        access.prefetch_next();
        sound &= !VarCell::of(access).fault().needs_check();
    });
    // Relaxed: an operation that starts while the cancellation begins may run or be cancelled.
    sound && !op.is_rejected() && core.phase.load(Relaxed) < phase::CANCELLING
}

/// Decides what happens to a ready operation that is about to be issued to the GPU `at` or, if `at` is the CPU, to run
/// there. Does not determine the events that a stream must wait for.
#[cold]
pub(crate) fn decide(core: &Core, op: &Op<Task>, at: Device) -> Disposition {
    let task = op.task();
    if core.is_forked() {
        return Disposition::Discard;
    }
    op.accesses()
        .filter(|access| access.mode() != Mode::Commute)
        .for_each(|access| VarCell::of(access).fault().end_run());
    if op.is_rejected() {
        return Disposition::Discard;
    }
    let has_gpus = !core.gpus.is_empty();
    // GPU lanes are checked before the failures are read: lanes may change a failure until their work is complete.
    if has_gpus {
        if let Some(lane) = on_device::pending(core, op, at) {
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
    // SAFETY: (1): the operation is ready, so it holds its variables. Either GPU writes to them are complete, or the
    // caller holds the fault lock.
    let failure = unsafe { failure_before(op) };
    failure.map_or(Disposition::Run, |failure| Disposition::Skip(op.task().skipped_by(failure)))
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

/// Returns the result of a call, with an error or a panic converted into the operation's failure.
#[inline(always)]
pub(super) fn result_of(op: &Op<Task>, result: Result<Result<(), Cause>, panics::Payload>) -> Result<(), OpError> {
    if matches!(result, Ok(Ok(()))) { Ok(()) } else { failure_of(op, result) }
}

/// The slow path of [`result_of`]. It is a separate function so that the fast path takes fewer instructions.
#[cold]
#[inline(never)]
fn failure_of(op: &Op<Task>, result: Result<Result<(), Cause>, panics::Payload>) -> Result<(), OpError> {
    match result {
        Ok(result) => result.map_err(|cause| op.task().failed_by(cause)),
        Err(payload) => Err(op.task().failed_by_panic(payload)),
    }
}

// ------------------------------------------------------------------------------------------------- completing ----

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
            mem::forget(result);
            return Epilogue::Nothing;
        }
        if function == FnState::NotCalled {
            // SAFETY: (1): this thread ends the operation.
            unsafe { op.forgo() };
        } else if result.is_ok() {
            result = publish(&op);
        }
        record::end(self, &op, function.outcome(&result), function);
        let mut ended = Vec::new();
        if op.task().has(flag::SILENT) {
            result.as_ref().err().into_iter().for_each(|failure| self.record_failure(failure));
        } else if op.task().has(flag::STREAM) {
            on_device::note_result(self, &op, &mut result, &mut ended);
        } else {
            match &result {
                Ok(()) => count_mutations(&op, &mut ended),
                Err(failure) => {
                    take_overwritten(self, &op, &mut ended);
                    fail_variables(self, &op, failure, &mut ended);
                }
            }
        }
        let has_succeeded = function != FnState::NotCalled && result.is_ok() && ended.is_empty();
        admission::leave_turns(&op, ready);
        if !has_succeeded || op.task().has(flag::REPORTS) {
            // The epilogue of an inline operation is left to the loop, since others that became ready with it wait in
            // this thread's memory, and a waker that the count-out calls may wait for one of them.
            let is_short = !op.task().has(flag::ASYNC | flag::INLINE);
            let op = tracker::complete(op, ready);
            pause::at(Point::Completed);
            if has_succeeded && is_short {
                return Completed::succeeded(op);
            }
            return Epilogue::Completed(Completed::new(op, result, ended, function));
        }
        let ticket = op.task().ticket;
        tracker::end(op, ready);
        pause::at(Point::Completed);
        Epilogue::CountOut(ticket)
    }
}

/// Whether an asynchronous operation that has succeeded may [complete plainly](complete_plainly).
#[inline]
pub(super) fn ends_plainly(core: &Core, op: &Op<Task>) -> bool {
    let special =
        flag::INLINE | flag::REPORTS | flag::SILENT | flag::COMMUTES | flag::GPU_LANE | flag::RECORDED | flag::PARENT;
    !op.task().has(special) && !removed(engine_step::SCHEDULE_THEN_NOTIFY) && is_sound(core, op)
}

/// Completes an operation that has succeeded on the CPU. The caller has checked that the operation is not silent,
/// that it reports no result, and that none of its variables had failed.
#[inline(always)]
pub(super) fn complete_plainly(op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Ticket {
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

/// Completes an operation that was rejected or cancelled quietly. Its variables are left unchanged.
#[cold]
pub(crate) fn pass_over(core: &Core, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Epilogue {
    if core.is_forked() {
        return Epilogue::Nothing;
    }
    // SAFETY: (1): this thread ends the operation.
    unsafe { op.forgo() };
    record::pass_over(core, &op);
    admission::leave_turns(&op, ready);
    Epilogue::Completed(Completed::new(tracker::complete(op, ready), Ok(()), Vec::new(), FnState::NotCalled))
}

/// Publishes the values that a successful operation has mutated. Returns a failure if that panics.
fn publish(op: &Op<Task>) -> Result<(), OpError> {
    if op.task().has(flag::SILENT | flag::STREAM) {
        return Ok(());
    }
    let is_published = |access: &&Access<Task>| access.mode().is_write() && VarCell::of(access).is_published();
    let mut published = op.accesses().filter(is_published).peekable();
    let Some(access) = published.peek() else { return Ok(()) };
    let core = VarCell::of(access).core();
    let result = panics::catch(|| {
        frame::enter(core, op, Holds::Variables, |_| {
            // SAFETY: the operation holds its variables until the tracker completes it. Only operations that are silent
            // drop values.
            published.for_each(|access| unsafe { VarCell::of(access).publish() });
            Ok(())
        })
    });
    result_of(op, result)
}

/// Counts the mutations of a successful operation, and takes the failures that it overwrites or that were cleared
/// everywhere.
fn count_mutations(op: &Op<Task>, ended: &mut Vec<OpError>) {
    for access in op.accesses().filter(|access| access.mode().is_write()) {
        let cell = VarCell::of(access);
        // SAFETY: the operation holds its variables until the tracker completes it.
        unsafe { cell.mutated() };
        // SAFETY: the operation holds its variables until the tracker completes it. It issued no work on a device, so
        // it started only after GPUs had completed their work on these variables.
        let is_over = || access.mode() == Mode::Overwrite || unsafe { cell.failure() }.is_none();
        if cell.fault().has_failed() && is_over() {
            // SAFETY: as above.
            let failure = unsafe { cell.set_failure(None) };
            ended.extend(failure.inspect(OpError::mark_reported));
        }
    }
}

/// Takes the failures of the variables that an operation overwrites. If the operation has failed, its own failure
/// replaces the taken ones, which remain to be reported.
pub(crate) fn take_overwritten(core: &Core, op: &Op<Task>, taken: &mut Vec<OpError>) {
    for access in op.accesses() {
        let cell = VarCell::of(access);
        if access.mode() == Mode::Overwrite && cell.fault().has_failed() {
            // SAFETY: the operation holds its variables until the tracker completes it, and the closure runs under
            // the fault lock.
            taken.extend(core.fault_lock.with(|| unsafe { cell.set_failure(None) }));
        }
    }
}

/// Fails the variables that an operation mutates, except those that have already failed. Of operations that commute
/// without others in between, it is the failure of the one pushed first that counts. Adds to `ended` the failures,
/// cleared everywhere or of operations that were pushed later, that `failure` replaces.
pub(super) fn fail_variables(core: &Core, op: &Op<Task>, failure: &OpError, ended: &mut Vec<OpError>) {
    // The failure must be recorded before another thread can see it on a variable.
    core.record_failure(failure);
    for access in op.accesses().filter(|access| access.mode().is_write()) {
        let cell = VarCell::of(access);
        // SAFETY: the operation holds its variables until the tracker completes it; or the caller is a GPU lane and
        // holds the fault lock, and only other lanes read the failure before the caller's timeline reports the
        // operation complete.
        let has_failed = unsafe { cell.failure() }.is_some();
        let commutes = op.task().commutes().filter(|_| access.mode() == Mode::Commute);
        let commutes = commutes.map(|commutes| (cell.commuting(), commutes.number()));
        let is_first =
            commutes.is_some_and(|(commuting, number)| cell.fault().is_of_run() && commuting.is_before_failed(number));
        if !has_failed || is_first {
            // SAFETY: as above.
            ended.extend(unsafe { cell.set_failure(Some(failure.failed().clone())) });
            if let Some((commuting, number)) = commutes {
                cell.fault().note_run();
                commuting.note_failed(number);
            }
        }
    }
}

// ----------------------------------------------------------------------------------------------- the epilogue ----

impl Completed {
    /// Reports the result of a complete operation to its handle or wait. A rejected operation's result is not reported.
    pub(crate) fn new(op: Hold<Task>, result: Result<(), OpError>, ended: Vec<OpError>, function: FnState) -> Self {
        let mut remainder = Remainder::default();
        if op.task().has(flag::REPORTS) {
            remainder = Self::report(&op, result.as_ref().map(|&()| ()), function);
        }
        Self { op, result, ended, function, remainder }
    }

    /// Reports the success of a complete operation that is not asynchronous, and ends the hold on its record if no
    /// program code remains to be run. Returns the epilogue.
    #[inline]
    fn succeeded(op: Hold<Task>) -> Epilogue {
        let remainder = Self::report(&op, Ok(()), FnState::Called);
        let may_forget = |limits: &Limits| !limits.must_leave() && limits.units().is_none();
        if remainder.is_none() && op.task().limits().is_none_or(may_forget) {
            // Its drop would do nothing, but cost instructions.
            mem::forget(remainder);
            return Epilogue::CountOut(Self::release(op));
        }
        Epilogue::Completed(Self { op, result: Ok(()), ended: Vec::new(), function: FnState::Called, remainder })
    }

    /// Ends the hold on the record of a complete operation, of which no program code remains to be run. Returns the
    /// operation's ticket.
    #[inline]
    fn release(op: Hold<Task>) -> Ticket {
        pause::at(Point::CompleteBeforeRetire);
        let ticket = op.task().ticket;
        // The mark is removed because the record may remain in queues for a while.
        op.mark(ptr::null_mut());
        drop(op);
        ticket
    }

    /// Reports the result of a complete operation, unless the operation was rejected.
    #[inline]
    fn report(op: &Op<Task>, result: Result<(), &OpError>, function: FnState) -> Remainder {
        if op.is_rejected() {
            return Remainder::default();
        }
        // SAFETY: (1): this thread ends the operation.
        unsafe { op.report(result, function == FnState::MayRun) }
    }

    /// Whether program code may run in the epilogue.
    fn runs_program_code(&self) -> bool {
        self.function == FnState::NotCalled
            || self.result.is_err()
            || !self.ended.is_empty()
            || !self.remainder.is_none()
            || must_leave(&self.op)
    }
}

/// Whether an operation that has ended must still leave its group or family.
#[inline]
fn must_leave(op: &Op<Task>) -> bool {
    op.task().limits().is_some_and(Limits::must_leave)
}

impl Core {
    /// Returns the epilogue, which must run after the operations that became ready have been dispatched. In a model of
    /// the wrong order, runs it immediately.
    pub(crate) fn defer_epilogue(self: &Arc<Self>, epilogue: Epilogue) -> Epilogue {
        if !removed(engine_step::SCHEDULE_THEN_NOTIFY) {
            return epilogue;
        }
        finish(self, epilogue);
        Epilogue::Nothing
    }

    /// Counts an operation out and wakes the futures whose waits, for all operations or for room, are over.
    #[inline(always)]
    pub(crate) fn count_out(self: &Arc<Self>, ticket: Ticket) {
        if let Some(wakers) = self.pending.leave(ticket) {
            self.wake(wakers);
        }
    }

    /// Wakes futures that wait for all operations or for room.
    #[cold]
    pub(crate) fn wake(self: &Arc<Self>, wakers: Wakers) {
        // A GPU lane's thread, or one with little stack, leaves the wakers to a worker, unless the workers may have
        // ended. In that case, the operation pushed for the wakers would run here. The waker that ends the engine would
        // find that operation pending and register again. Counting the operation out would then wake that waker in
        // another such operation, and so on, endlessly.
        if is_left_to_workers(self) || removed(engine_step::WAKE_HERE_ONCE_CLOSED) && worker_thread::serves_device() {
            return self.hand_over(|_| wakers.wake());
        }
        // This thread may have given up its worker, either to a function that had waited or to a stop.
        if worker_thread::begin_code() {
            regain_worker(None);
        }
        worker_thread::share_slot();
        wait::on_enough_stack(self, || frame::enter_after(self, || wakers.wake()));
    }
}

/// Runs the epilogue of an operation. Called after the operations that it made ready have been dispatched.
pub(crate) fn finish(core: &Arc<Core>, epilogue: Epilogue) {
    match epilogue {
        Epilogue::Nothing => {}
        Epilogue::CountOut(ticket) => core.count_out(ticket),
        Epilogue::Completed(completed) => {
            admission::give_back(core, &completed.op);
            if completed.runs_program_code() {
                run_where_fit(core, |core| finish_completed(core, completed));
            } else {
                finish_completed(core, completed);
            }
        }
        Epilogue::Started(op, remainder) => {
            run_where_fit(core, move |core| run_program_code(core, &op, None, || remainder.run()));
        }
        Epilogue::Other(run) => run(),
    }
}

/// Whether program code may run in an epilogue, apart from wakers of those who wait for all operations.
pub(super) fn runs_program_code(epilogue: &Epilogue) -> bool {
    match epilogue {
        Epilogue::Nothing | Epilogue::CountOut(_) => false,
        Epilogue::Completed(completed) => completed.runs_program_code(),
        Epilogue::Started(..) | Epilogue::Other(_) => true,
    }
}

/// Runs program code here, or where it may wait and has enough stack.
fn run_where_fit(core: &Arc<Core>, f: impl FnOnce(&Arc<Core>) + Send + 'static) {
    if is_left_to_workers(core) {
        core.hand_over(f);
    } else {
        wait::on_enough_stack(core, || f(core));
    }
}

/// Whether program code must be left to a worker: the engine has workers, and the calling thread serves a GPU lane, so
/// it must not block, or has too little stack. The workers of a stopped engine run nothing.
fn is_left_to_workers(core: &Core) -> bool {
    core.has_workers() && (worker_thread::serves_device() || ready_loop::is_stack_short(core) && !core.is_stopped())
}

/// Runs the program code of an epilogue and counts the operation out.
fn finish_completed(core: &Arc<Core>, completed: Completed) {
    let Completed { op, result, ended, function, remainder } = completed;
    let limits = op.task().limits();
    let run = |f: &mut dyn FnMut()| run_program_code(core, &op, limits.and_then(Limits::group), f);
    if function == FnState::NotCalled {
        // SAFETY: (1): this thread ends the operation.
        run(&mut || unsafe { op.discard() });
    }
    if !remainder.is_none() {
        let mut remainder = Some(remainder);
        run(&mut || remainder.take().into_iter().for_each(Remainder::run));
    }
    if result.is_err() || !ended.is_empty() {
        let mut rest = Some((result, ended));
        run(&mut || drop(rest.take()));
    }
    if let Some(limits) = limits.filter(|limits| limits.must_leave()) {
        // SAFETY: (1): this thread has ended the operation.
        run_program_code(core, &op, None, || unsafe { limits.leave() });
    }
    core.count_out(Completed::release(op));
}

/// Runs `f`, program code from an operation's epilogue. If `group` is `Some`, the operation is still counted there. A
/// panic becomes a failure that `wait_for_all` returns.
pub(crate) fn run_program_code(core: &Arc<Core>, op: &Op<Task>, group: Option<&Arc<GroupCore>>, f: impl FnOnce()) {
    // The code may take a long time, so other workers must be able to steal the operation in the slot.
    worker_thread::share_slot();
    let run = |frame: &Frame| frame.in_group(group, None, f);
    let panicked = panics::catch(|| frame::enter(core, op, Holds::Nothing, run)).err();
    if let Some(payload) = panicked.filter(|_| !core.is_forked()) {
        core.record_failure(&op.task().failed_by_panic(payload));
    }
}
