//! The job of an operation that belongs to a group, has a deadline or has children. It contains the job that does the
//! operation's work.
//!
//! # Who may touch what
//!
//! * The membership: first the thread that starts or skips the operation, then the thread that ends it. When an
//!   asynchronous operation starts, its membership moves into the [`Right`](super::right::Right).
//! * The plan: the thread that starts or skips the operation.
//!
//! This module has no edges of its own: the queues of the tracker and of the scheduler hand over the job with its
//! operation.

use std::{ptr::NonNull, sync::Arc, time::Instant};

use crate::{
    engine::{
        cancellable::Place,
        family::Plan,
        frame::Call,
        group::{Group, Joined, Membership},
        kin::{Kin, KinShare},
        task::{Claimed, Cleanup, Job, Task, Work, flag},
    },
    error::op::{Cause, OpError},
    notify::claim::Cancel,
};

/// The job of an operation that belongs to a group, has a deadline or has children. Except for [`boxed`](Self::boxed),
/// its code is compiled once, not for each type of work.
///
/// The work is the last field, since its type may be unsized. So if the push is refused, the operation leaves its group
/// before what its function captures is dropped.
pub(crate) struct LimitedJob<W: ?Sized = dyn Work> {
    deadline: Option<Instant>,
    group: Option<Arc<Group>>,
    /// Whether the operation was claimed. If so, neither the group nor the deadline can cancel it.
    is_claimed: bool,
    /// Taken by `report` or `discard`. If the operation is asynchronous, `start` moves the membership into the
    /// [`Right`](super::right::Right) instead.
    membership: Option<Membership>,
    /// What the operation's children are created from, if it has any. Taken by `start` or `discard`.
    plan: Option<Box<Plan>>,
    work: W,
}

impl<W: Work> LimitedJob<W> {
    /// Creates the job of an operation that does not have any limits or children yet.
    pub(crate) fn boxed(work: W) -> Box<LimitedJob> {
        Box::new(Self { deadline: None, group: None, is_claimed: false, membership: None, plan: None, work })
    }
}

impl LimitedJob {
    /// Counts the operation in its group, if it has one, and sets its deadline.
    pub(crate) fn limit(&mut self, group: Option<&Arc<Group>>, deadline: Option<Instant>) {
        self.deadline = deadline;
        self.group = group.cloned();
        self.membership = group.map(Group::enter);
    }

    /// [`limit`](Self::limit) for a child or a scope's operation, in the group of its family or scope. The operation's
    /// membership keeps a share of `kin`. If `kin` is a family, the caller has already counted that share. `mutates`
    /// says whether the operation mutates a variable.
    pub(crate) fn limit_with_kin(
        &mut self,
        group: &Arc<Group>,
        kin: Arc<dyn Kin>,
        deadline: Option<Instant>,
        mutates: bool,
    ) {
        self.limit(Some(group), deadline);
        if let Some(membership) = &mut self.membership {
            membership.mutates = mutates;
            membership.family = Some(KinShare::new(kin));
        }
    }

    /// Sets the plan from which the operation's children are created.
    pub(crate) fn set_plan(&mut self, plan: Box<Plan>) {
        self.plan = Some(plan);
    }

    /// Returns how an operation that is about to start is cancelled, if its group or one around it was cancelled or its
    /// deadline has passed. Otherwise, returns [`Claimed::Run`].
    fn check_limits(&self, task: &Task) -> Claimed {
        match self.group.as_ref().and_then(|group| group.cancelled()) {
            Some(Cancel::Loudly) => Claimed::Cancelled(task.failed_by(Cause::Cancelled)),
            Some(Cancel::Quietly) => Claimed::PassedOver,
            None if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                Claimed::Cancelled(task.failed_by(Cause::DeadlinePassed))
            }
            None => Claimed::Run,
        }
    }

    /// Records that any failure of the operation from now on is its own.
    fn will_fail_itself(&mut self) {
        self.membership.iter_mut().for_each(|membership| membership.fails_itself = true);
    }

    /// Takes the membership of an ending operation. An operation already counted out by its scope is not counted out
    /// again.
    fn take_membership(&mut self) -> Option<Membership> {
        let mut membership = self.membership.take()?;
        if self.work.is_abandoned() {
            membership.abandon();
        }
        Some(membership)
    }
}

impl Job for LimitedJob {
    const REPORTS: bool = true;
    const CLAIMS: bool = true;
    const JOINS: bool = true;
}

impl Work for LimitedJob {
    fn joined(&self) -> Joined {
        self.membership.as_ref().map_or_else(Joined::nothing, Membership::joined)
    }

    fn claim(&mut self, task: &Task) -> Claimed {
        let claimed = match self.work.claim(task) {
            Claimed::Run if !task.has(flag::KEPT) && !self.is_claimed => self.check_limits(task),
            claimed => claimed,
        };
        self.is_claimed |= matches!(claimed, Claimed::Run);
        if matches!(claimed, Claimed::Cancelled(_)) {
            self.will_fail_itself();
        }
        claimed
    }

    fn place(&mut self) -> Option<NonNull<Place>> {
        self.work.place()
    }

    fn place_of_handle(&mut self) -> Option<NonNull<Place>> {
        self.work.place_of_handle()
    }

    fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        self.will_fail_itself();
        let family = self.membership.as_ref().and_then(|membership| membership.family.as_ref());
        let family = family.map(|share| Arc::clone(share.kin()));
        if cx.op().task().has(flag::ASYNC) {
            if let Some(membership) = self.membership.take() {
                cx.with_right(|right| right.observers().membership = Some(membership));
            }
        }
        cx.frame().in_group(self.group.as_ref(), family.as_ref(), || {
            if let Some(plan) = self.plan.take() {
                plan.begin(cx);
            }
            self.work.start(cx)
        })
    }

    fn started(&mut self) -> Cleanup {
        self.work.started()
    }

    fn discard(&mut self) {
        // The membership, the group and the plan are dropped after the call below, even if program code panics in that
        // call. They must not be left in the record, which may be dropped where program code must not run.
        let _group = (self.take_membership(), self.group.take(), self.plan.take());
        self.work.discard();
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        let membership = self.take_membership();
        let mut cleanup = self.work.report(result);
        if let Some(membership) = membership {
            cleanup.set_membership(membership, result);
            // This reference to the group is not the last one, since the membership holds another.
            self.group = None;
        }
        cleanup
    }
}
