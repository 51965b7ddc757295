//! The right to end an asynchronous operation, and those who are told how it has ended.
//!
//! The function of an asynchronous operation may still run when the operation ends, so the end of the operation must not
//! touch its job. What a job would [report](crate::engine::task::Job::report) is therefore told by the right.
//!
//! One thread at a time has a right: the one that starts the operation, then the owner of the completion or of the
//! guards.

use std::sync::Arc;

use crate::{
    engine::{
        ending::Completed,
        group::Membership,
        result_job::Handled,
        task::{Cleanup, Task},
    },
    tracker::OpRef,
};

/// The right to end an asynchronous operation.
pub(crate) struct Right {
    op: OpRef<Task>,
    observers: Option<Box<Observers>>,
}

/// Those who are told how an asynchronous operation has ended.
#[derive(Default)]
pub(crate) struct Observers {
    handle: Option<Arc<Handled<()>>>,
    membership: Option<Membership>,
}

impl Right {
    pub(crate) fn new(op: OpRef<Task>) -> Self {
        Self { op, observers: None }
    }

    /// The operation.
    pub(crate) fn op(&self) -> &OpRef<Task> {
        &self.op
    }

    /// Sets the oneshot when the operation ends.
    pub(crate) fn set_handle(&mut self, handle: Arc<Handled<()>>) {
        self.observers.get_or_insert_default().handle = Some(handle);
    }

    /// Counts the operation out of its group when it ends.
    pub(super) fn set_membership(&mut self, membership: Membership) {
        self.observers.get_or_insert_default().membership = Some(membership);
    }

    pub(super) fn into_parts(self) -> (OpRef<Task>, Option<Box<Observers>>) {
        (self.op, self.observers)
    }
}

impl Observers {
    /// Reports the result of a complete operation.
    pub(super) fn report(self, completed: &mut Completed) {
        let result = completed.result.as_ref().map(|&()| ());
        if let Some(handle) = self.handle {
            completed.cleanup = Cleanup::waking(handle.set(result.map_err(Clone::clone)));
        }
        if let Some(membership) = self.membership {
            completed.cleanup.set_membership(membership, result);
        }
    }
}
