//! The right to end an asynchronous operation, and those who are told how it has ended.
//!
//! The function of an asynchronous operation may still run when the operation ends, so the end of the operation must not
//! touch its job. What a job would report is therefore told by the right.
//!
//! One thread at a time has a right: the one that starts the operation, then the owner of the completion or of the
//! guards.

use std::sync::Arc;

use crate::{
    engine::{cancellable::Handled, group::Membership},
    tracker::OpRef,
};

/// The right to end an asynchronous operation.
pub(crate) struct Right<T> {
    op: OpRef<T>,
    observers: Option<Box<Observers>>,
}

/// Those who are told how an asynchronous operation has ended.
#[derive(Default)]
pub(super) struct Observers {
    pub(super) handle: Option<Arc<Handled<()>>>,
    pub(super) membership: Option<Membership>,
}

impl<T> Right<T> {
    pub(super) fn new(op: OpRef<T>) -> Self {
        Self { op, observers: None }
    }

    /// The operation.
    pub(crate) fn op(&self) -> &OpRef<T> {
        &self.op
    }

    /// Those who are told how the operation has ended.
    pub(super) fn observers(&mut self) -> &mut Observers {
        self.observers.get_or_insert_default()
    }

    pub(super) fn into_parts(self) -> (OpRef<T>, Option<Box<Observers>>) {
        (self.op, self.observers)
    }
}
