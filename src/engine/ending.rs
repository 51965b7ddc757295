//! What a ready operation comes to, and what is left to do when it has ended.

use smallvec::SmallVec;

use crate::{
    engine::task::{Aftermath, Task, flag},
    error::op::OpError,
    notify::pending::Ticket,
    tracker::{Hold, OpRef},
};

/// What becomes of a ready operation.
pub(crate) enum Disposition {
    Run,
    Skip(OpError),
    /// What it comes after is not complete on that lane of a device.
    Forward(usize),
    /// Its push was refused; or this is a forked child, where the parent's operations are left alone.
    Discard,
}

/// What is left to do for an operation that is complete, once its successors have been placed.
#[must_use = "the operation is still to be counted out"]
pub(crate) enum Rest {
    /// The operation is not complete, or another thread ends it.
    Nothing,
    /// Nobody has to be told.
    Count(Ticket),
    /// Somebody has to be told, or something of the program's is to be dropped.
    Tell(Told),
}

/// What is left to do for several operations, in the order in which they have ended.
pub(crate) type Rests = SmallVec<[Rest; 2]>;

/// An operation that is complete, and of whose end somebody has to be told.
pub(crate) struct Told {
    pub(super) op: Hold<Task>,
    pub(super) result: Result<(), OpError>,
    /// Failures that it has ended, or that came to nothing, to be dropped.
    pub(super) ended: Vec<OpError>,
    /// Its function has not run, and has yet to be dropped.
    pub(super) unused: bool,
    pub(super) aftermath: Aftermath,
}

/// A ready operation that is not plain, and what its function has come to if it was called.
#[must_use = "the operation is not over"]
pub(crate) struct Unplain {
    pub(super) op: OpRef<Task>,
    pub(super) called: Option<Result<(), OpError>>,
}

impl Told {
    pub(super) fn new(op: Hold<Task>, result: Result<(), OpError>, ended: Vec<OpError>, unused: bool) -> Self {
        let mut aftermath = Aftermath::default();
        if op.task().has(flag::REPORTS) && !op.is_rejected() {
            // SAFETY: this thread ends the operation.
            aftermath = unsafe { op.report(result.as_ref().map(|&()| ())) };
        }
        Self { op, result, ended, unused, aftermath }
    }

    /// Whether code of the program's may run for it.
    pub(super) fn is_for_program(&self) -> bool {
        self.unused || self.result.is_err() || !self.ended.is_empty() || !self.aftermath.is_none()
    }
}
