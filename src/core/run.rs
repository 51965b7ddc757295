//! What a run and its end do: whether the function is called, what becomes of its result, and whom it is told.

use std::sync::Arc;

use super::{Core, phase};
use crate::{
    context::{self, RunContext},
    error::{Cause, OpError},
    kind::EngineKind,
    panics,
    sync::{
        Ordering::Relaxed,
        pause::{self, Point},
    },
    task::{Task, flag},
    tracker::{self, Mode, OpRef, ReadyList},
    variable::VarCell,
};

impl Core {
    /// Runs a ready operation on this thread and adds what becomes ready by it to `ready`.
    pub(crate) fn execute(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        match self.verdict(op) {
            Verdict::Run if op.task().has(flag::ASYNC) => self.start_async(op, ready),
            Verdict::Run => {
                let result = self.call(op);
                self.settle(op, result, ready);
            }
            Verdict::Skip(failure) => {
                self.discard(op);
                self.settle(op, Err(failure), ready);
            }
            Verdict::Nothing => {
                self.discard(op);
                let ticket = op.task().ticket;
                tracker::end(op, ready);
                self.tally.leave(ticket);
            }
        }
    }

    /// Whether a ready operation may run.
    #[inline]
    fn verdict(&self, op: OpRef<Task>) -> Verdict {
        let mut failed = false;
        for access in op.op().accesses() {
            access.prefetch_next();
            failed |= VarCell::of(access).has_failed();
        }
        // Relaxed: an operation that starts while the cancellation begins may do either.
        if failed || op.op().is_rejected() || self.phase.load(Relaxed) == phase::CANCELLING {
            self.doubtful_verdict(op)
        } else {
            Verdict::Run
        }
    }

    #[cold]
    fn doubtful_verdict(&self, op: OpRef<Task>) -> Verdict {
        let task = op.task();
        if op.op().is_rejected() {
            return Verdict::Nothing;
        }
        // Relaxed: an operation that starts while the cancellation begins may do either.
        if self.phase.load(Relaxed) == phase::CANCELLING && !task.has(flag::INTERNAL | flag::KEPT) {
            return Verdict::Skip(OpError::new(&task.name, task.location, Cause::Cancelled));
        }
        if !task.has(flag::NO_SKIP) {
            for access in op.op().accesses() {
                let cell = VarCell::of(access);
                if cell.has_failed() && access.mode() != Mode::Overwrite {
                    // SAFETY: the operation is ready, so it holds its variables.
                    if let Some(failure) = unsafe { cell.failure() } {
                        return Verdict::Skip(failure);
                    }
                }
            }
        }
        Verdict::Run
    }

    /// Calls the function of `op`.
    fn call(self: &Arc<Self>, op: OpRef<Task>) -> Result<(), OpError> {
        let result = panics::catch(|| {
            context::enter(self, op, true, |frame| {
                // SAFETY: the operation is ready, was handed to this thread alone, and is started here only.
                unsafe { op.start(&RunContext::new(frame, self)) }
            })
        });
        let cause = match result {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(cause)) => cause,
            Err(payload) => Cause::panic(payload),
        };
        Err(OpError::new(&op.task().name, op.task().location, cause))
    }

    /// Calls the function of an asynchronous operation, which ends when its completion is used.
    fn start_async(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        // The completion may end the operation while its function goes on.
        op.hold();
        let mut lost = false;
        let result = panics::catch(|| {
            context::enter(self, op, true, |frame| {
                struct Note<'a>(&'a std::cell::Cell<bool>, &'a mut bool);
                impl Drop for Note<'_> {
                    fn drop(&mut self) {
                        *self.1 = self.0.get();
                    }
                }
                let _note = Note(&frame.lost, &mut lost);
                // SAFETY: the operation is ready, was handed to this thread alone, and is started here only.
                unsafe { op.start(&RunContext::new(frame, self)) }
            })
        });
        let cause = match result {
            Ok(Ok(())) => lost.then_some(Cause::LostCompletion),
            Ok(Err(cause)) => Some(cause),
            Err(payload) => Some(Cause::panic(payload)),
        };
        if let Some(cause) = cause {
            let failure = OpError::new(&op.task().name, op.task().location, cause);
            if lost {
                // The completion went down with the function; what is left to do for it is done here.
                let _ = op.task().progress.resolve();
                self.settle(op, Err(failure), ready);
            } else {
                // SAFETY: once, by the thread that ran the function.
                if let Err(failure) = unsafe { op.task().progress.fail(failure) } {
                    // The operation has already ended; its function's failure must not hide.
                    self.failures.add_loose(failure);
                }
            }
        }
        op.release(0);
    }

    /// Ends an operation with `result` and adds what becomes ready by it to `ready`.
    pub(crate) fn settle(self: &Arc<Self>, op: OpRef<Task>, result: Result<(), OpError>, ready: &mut ReadyList<Task>) {
        match &result {
            Ok(()) if op.task().has(flag::SILENT) => {}
            Ok(()) => self.count_mutations(op),
            Err(failure) if op.task().has(flag::SILENT) => self.failures.add_loose(failure.clone()),
            Err(failure) => self.fail_variables(op, failure),
        }
        let ticket = op.task().ticket;
        if op.task().has(flag::REPORTS) {
            let spent = tracker::complete(op, ready);
            pause::at(Point::Completed);
            // Who is told may wait for what comes after.
            if self.kind == EngineKind::Naive {
                context::leave_to_drain(self, ready);
            } else {
                self.place_all(ready);
            }
            // SAFETY: this thread ends the operation.
            self.guarded(op, false, || unsafe { op.report(result.as_ref().map(|&()| ())) });
            pause::at(Point::CompleteBeforeRetire);
            op.release(spent);
        } else {
            tracker::end(op, ready);
            pause::at(Point::Completed);
        }
        self.tally.leave(ticket);
    }

    /// Drops the function of `op` if it has not run.
    fn discard(&self, op: OpRef<Task>) {
        // SAFETY: this thread ends the operation.
        self.guarded(op, true, || unsafe { op.discard() });
    }

    /// Runs `f`, which may drop the user's values, as a part of `op`; a panic there becomes a failure that `wait_for_all`
    /// reports.
    fn guarded(&self, op: OpRef<Task>, holding: bool, f: impl FnOnce()) {
        if let Err(payload) = panics::catch(|| context::enter(self, op, holding, |_| f())) {
            let task = op.task();
            let failure = OpError::new(&task.name, task.location, Cause::panic(payload));
            self.failures.add_loose(failure);
        }
    }

    fn count_mutations(&self, op: OpRef<Task>) {
        for access in op.op().accesses() {
            if !access.mode().is_write() {
                continue;
            }
            let cell = VarCell::of(access);
            // SAFETY: the operation is not passed on yet, so it holds its variables.
            unsafe { cell.mutated() };
            if access.mode() == Mode::Overwrite && cell.has_failed() {
                // SAFETY: as above.
                unsafe { cell.set_failure(None) };
                self.failures.clear_variable(cell.queue().id());
            }
        }
    }

    fn fail_variables(&self, op: OpRef<Task>, failure: &OpError) {
        let mut carried = false;
        for access in op.op().accesses() {
            let cell = VarCell::of(access);
            // SAFETY: the operation is not passed on yet, so it holds its variables.
            match unsafe { cell.failure() } {
                // Where the failure came from, or one that was there before and stays.
                Some(other) => carried |= other.is_same(failure),
                None if access.mode().is_write() => {
                    carried = true;
                    // SAFETY: as above.
                    unsafe { cell.set_failure(Some(failure.clone())) };
                    self.failures.add_variable(cell.queue().id(), failure.clone());
                }
                None => {}
            }
        }
        // A failure that no variable carries must not hide.
        if !carried {
            self.failures.add_loose(failure.clone());
        }
    }

    /// Ends an asynchronous operation, by its completion.
    pub(crate) fn resolve(self: &Arc<Self>, op: OpRef<Task>, result: Result<(), Cause>) {
        let result = match op.task().progress.resolve() {
            Some(failure) => Err(failure),
            None => result.map_err(|cause| OpError::new(&op.task().name, op.task().location, cause)),
        };
        let mut ready = ReadyList::default();
        self.settle(op, result, &mut ready);
        self.place_all(&mut ready);
    }
}

enum Verdict {
    Run,
    Skip(OpError),
    Nothing,
}
