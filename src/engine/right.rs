//! The right to end an asynchronous operation, and the recipients of the operation's result.
//!
//! An asynchronous operation may end while its function is still running, so ending it must not touch its job.
//! Therefore the right, rather than the job, reports the result.
//!
//! The right is held first by the thread that starts the operation, then by the owner of the completion. Guards and
//! futures [share](super::held) the right instead.

use std::{
    any::Any,
    sync::{Arc, Mutex},
};

use crate::{
    engine::{
        cancellable::Handled,
        group::{Group, Membership},
        kin::{Kin, KinShare},
    },
    error::op::OpError,
    notify::wakers::Wakers,
    tracker::OpRef,
};

/// The right to end an asynchronous operation.
pub(crate) struct Right<T> {
    op: OpRef<T>,
    observers: Option<Box<Observers>>,
}

/// The recipients of the result of an asynchronous operation.
#[derive(Default)]
pub(super) struct Observers {
    pub(super) handle: Option<Arc<Handled<()>>>,
    pub(super) membership: Option<Membership>,
    /// The family that completes the operation, if the operation has children.
    pub(super) parent_of: Option<Arc<dyn Kin>>,
    /// Delivers the value of a future to the handle of its operation. The mutex is needed because the value need not be
    /// `Sync`.
    pub(super) deliver: Option<Mutex<Box<dyn Deliver>>>,
}

/// The value of a future, and its recipient.
pub(super) trait Deliver: Send {
    /// Sets the operation's result. Runs no program code, but returns the code that remains to be run.
    fn deliver(self: Box<Self>, result: Result<(), OpError>) -> Delivered;
}

/// The program code that remains to be run after a delivery.
pub(super) struct Delivered {
    pub(super) wakers: Option<Wakers>,
    pub(super) unwanted: Box<dyn Any + Send>,
}

impl<T> Right<T> {
    pub(super) fn new(op: OpRef<T>) -> Self {
        Self { op, observers: None }
    }

    /// Returns the operation.
    pub(crate) fn op(&self) -> &OpRef<T> {
        &self.op
    }

    /// Returns the recipients of the operation's result.
    pub(super) fn observers(&mut self) -> &mut Observers {
        self.observers.get_or_insert_default()
    }

    /// Returns the operation's group.
    pub(super) fn group(&self) -> Option<&Arc<Group>> {
        self.observers.as_ref()?.membership.as_ref().map(Membership::group)
    }

    /// Returns the family in which the operation is a child, if there is one.
    pub(super) fn family(&self) -> Option<&Arc<dyn Kin>> {
        self.observers.as_ref()?.membership.as_ref()?.family.as_ref().map(KinShare::kin)
    }

    /// Returns the operation's own family, if it has children.
    pub(super) fn parent_of(&self) -> Option<&Arc<dyn Kin>> {
        self.observers.as_ref()?.parent_of.as_ref()
    }

    pub(super) fn into_parts(self) -> (OpRef<T>, Option<Box<Observers>>) {
        (self.op, self.observers)
    }
}
