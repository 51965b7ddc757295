//! The decision on a ready operation, and the work left after the operation has ended.
//!
//! An ending operation passes through these states:
//!
//! 1. Its function was called, or it was skipped, cancelled or rejected. An operation that is not plain is kept in an
//!    [`Unfinished`] until the slow path completes it.
//! 2. It is complete: its variables have been released. Only its [`Epilogue`] remains.
//! 3. After the operations that became ready have been dispatched, the epilogue runs and the operation is counted out.
//!
//! Each value here belongs to one thread at a time: the thread that ends the operation, or the thread running the ready
//! loop or internal operation to which the epilogue was handed.

use std::{mem, ptr};

use smallvec::SmallVec;

use crate::{
    error::op::OpError,
    notify::pending::Ticket,
    op::{
        limits::Limits,
        task::{Cleanup, Task, flag},
    },
    testing::pause::{self, Point},
    trace::Outcome,
    tracker::{Hold, Op, OpRef},
};

/// The decision on a ready operation.
pub(crate) enum Disposition {
    Run,
    Skip(OpError),
    /// The GPU lane with this number has yet to complete a dependency.
    Forward(usize),
    /// The push was refused, the operation was cancelled quietly, or this is a forked child, in which the parent
    /// process's operations are left alone.
    Discard,
}

/// The work left for a complete operation after its successors have been dispatched.
#[must_use = "the operation must still be counted out"]
pub(crate) enum Epilogue {
    /// The operation is not complete, or it is ended elsewhere.
    Nothing,
    /// The operation only has to be counted out.
    CountOut(Ticket),
    /// Program code must run before the operation is counted out: the function's drop, wakers, the drops of values. The
    /// result has been set.
    CleanUp(Completed),
    /// The operation is asynchronous and has started. Program code remains to be run here; the operation ends and is
    /// counted out elsewhere.
    Started(Hold<Task>, Cleanup),
    /// Not an epilogue: runs another engine's ready operation, which must not run inside the function of a device
    /// operation and is left to a loop outside that function.
    Other(Box<dyn FnOnce() + Send>),
}

/// The epilogues of several operations, in order of completion.
pub(crate) type Epilogues = SmallVec<[Epilogue; 2]>;

/// Whether the function of an operation was called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FnState {
    Called,
    /// The operation is asynchronous: its function was called and may still be running, so ending the operation must
    /// not touch the function.
    MayRun,
    /// The function was not called and must be dropped in the epilogue.
    NotCalled,
}

impl FnState {
    /// Returns the outcome of an operation with this result.
    pub(crate) fn outcome(self, result: &Result<(), OpError>) -> Outcome {
        match result {
            Ok(()) => Outcome::Succeeded,
            Err(_) if self == Self::NotCalled => Outcome::Skipped,
            Err(_) => Outcome::Failed,
        }
    }
}

/// A complete operation whose result has been set, with the program code that must still run.
pub(crate) struct Completed {
    pub(crate) op: Hold<Task>,
    pub(crate) result: Result<(), OpError>,
    /// Failures that the operation has cleared or that other failures have replaced. They are dropped in the epilogue.
    pub(crate) ended: Vec<OpError>,
    pub(crate) function: FnState,
    pub(crate) cleanup: Cleanup,
}

/// A ready operation that is not plain, with the result of its function if it was called.
#[must_use = "the operation must still be completed"]
pub(crate) struct Unfinished {
    pub(crate) op: OpRef<Task>,
    pub(crate) called: Option<Result<(), OpError>>,
}

impl Completed {
    /// Reports the result of a complete operation to its handle or wait. A rejected operation's result is not reported.
    pub(crate) fn new(op: Hold<Task>, result: Result<(), OpError>, ended: Vec<OpError>, function: FnState) -> Self {
        let mut cleanup = Cleanup::default();
        if op.task().has(flag::REPORTS) {
            cleanup = Self::report(&op, result.as_ref().map(|&()| ()), function);
        }
        Self { op, result, ended, function, cleanup }
    }

    /// Reports the success of a complete operation that is not asynchronous, and ends the hold on its record if no
    /// program code remains to be run. Returns the epilogue.
    #[inline]
    pub(crate) fn succeeded(op: Hold<Task>) -> Epilogue {
        let cleanup = Self::report(&op, Ok(()), FnState::Called);
        if cleanup.is_none() && !must_leave(&op) {
            // Its drop would do nothing, but cost instructions.
            mem::forget(cleanup);
            return Epilogue::CountOut(Self::release(op));
        }
        Epilogue::CleanUp(Self { op, result: Ok(()), ended: Vec::new(), function: FnState::Called, cleanup })
    }

    /// Ends the hold on the record of a complete operation, of which no program code remains to be run. Returns the
    /// operation's ticket.
    #[inline]
    pub(crate) fn release(op: Hold<Task>) -> Ticket {
        pause::at(Point::CompleteBeforeRetire);
        let ticket = op.task().ticket;
        // The mark is removed because the record may remain in queues for a while.
        op.mark(ptr::null_mut());
        drop(op);
        ticket
    }

    /// Reports the result of a complete operation, unless the operation was rejected.
    #[inline]
    fn report(op: &Op<Task>, result: Result<(), &OpError>, function: FnState) -> Cleanup {
        if op.is_rejected() {
            return Cleanup::default();
        }
        // SAFETY: (1): this thread ends the operation.
        unsafe { op.report(result, function == FnState::MayRun) }
    }

    /// Whether program code may run in the epilogue.
    pub(crate) fn runs_program_code(&self) -> bool {
        self.function == FnState::NotCalled
            || self.result.is_err()
            || !self.ended.is_empty()
            || !self.cleanup.is_none()
            || must_leave(&self.op)
    }
}

/// Whether an operation that has ended must still leave its group or family.
#[inline]
fn must_leave(op: &Op<Task>) -> bool {
    op.task().limits().is_some_and(Limits::must_leave)
}
