//! What limits an operation: its group, its deadline, the units that it needs, its family, and its children. Limits on
//! the number of *pending* operations are another matter, that of [`group::room`](crate::group::room).
//!
//! Only operations with [`flag::LIMITED`](super::task::flag::LIMITED) have a [`Limits`], which is boxed. Its memory is
//! retired with the task's, so any pinned thread that has found the operation may read the constant part.
//!
//! # States
//!
//! 1. *Counted* ([`Limits::join`]), before the push: the groups count the operation.
//! 2. *Claimed* ([`Limits::claim`]): the operation starts, or it was cancelled and is skipped.
//! 3. *Ended* ([`Limits::end`]): the operation is complete. Its groups keep its failure.
//! 4. *Left* ([`Limits::leave`]), once the rest of the epilogue has run: the operation was counted out, unless its
//!    scope has done so. Then, its share of the family ends. If the push is refused, this is done by the drop.
//!
//! # Who may touch what
//!
//! * `deadline`, `mutates`, `number`, `counts`, `parent`, `units` and `commutes`: constant once the operation is
//!   enqueued. The pointers are only compared. The [`Units`] and [`Commutes`] have states of their own.
//! * `own`: the thread that starts or skips the operation, up to the call of its function. Then, while the operation
//!   has not ended, the owners of shares of the right to end it may read the group and the families. Then, the thread
//!   that ends the operation.
//!
//! This module has no edges of its own: the queues of the tracker and of the scheduler hand over the limits with their
//! operation, and the group's count hands over what the members did.

use std::{
    any::Any,
    ptr::{self, NonNull},
    sync::Arc,
    time::Instant,
};

use smallvec::SmallVec;

use crate::{
    error::op::{Cause, OpError},
    notify::{
        claim::Cancel,
        pending::{PendingOps, Ticket},
    },
    op::{
        commuting::Commutes,
        group_core::{GroupCore, Kept},
        kin::{Kin, KinShare},
        units::Units,
    },
    sync::cell::UnsafeCell,
};

/// The tickets of a member in its group and in those around it, innermost first, each with the count that issued it. A
/// ticket is valid as long as the member is counted, and meaningless after that.
pub(crate) type Tickets = SmallVec<[(*const PendingOps, Ticket); 2]>;

/// What limits an operation.
pub(crate) struct Limits {
    deadline: Option<Instant>,
    /// Whether the operation mutates a variable. Exact only for children and a scope's operations; `true` for every
    /// other member.
    mutates: bool,
    /// The number of the operation's push in its groups.
    number: u64,
    counts: Tickets,
    /// The record of the operation's parent, if it is a child. It belongs to the parent as long as the operation is
    /// pending.
    parent: Option<NonNull<()>>,
    units: Option<Box<Units>>,
    commutes: Option<Box<Commutes>>,
    own: UnsafeCell<LimitsState>,
}

/// The part of the limits that changes.
#[derive(Default)]
struct LimitsState {
    group: Option<Arc<GroupCore>>,
    /// The operation's share of its family or scope, dropped after the operation has left its groups.
    kin: Option<KinShare>,
    /// What the operation's family is created from, if it may have children. Taken when it starts.
    plan: Option<Box<dyn Any + Send>>,
    /// The family that completes the operation, if it is asynchronous and may have children.
    parent_of: Option<Arc<dyn Kin>>,
    /// Whether the operation was claimed. If so, neither the group nor the deadline can cancel it.
    is_claimed: bool,
    /// Whether a failure of the operation is its own: it has started or was cancelled.
    fails_itself: bool,
    /// Whether the operation's scope has counted it out of its groups.
    is_abandoned: bool,
}

// SAFETY: the pointers are only compared, and the rest is `Send`.
unsafe impl Send for Limits {}
// SAFETY: the head of this module states which thread may use `own`. The pointers are only compared.
unsafe impl Sync for Limits {}

impl Limits {
    /// Creates the limits of an operation in no group. If the operation may have children, its
    /// family is created from `plan`.
    pub(crate) fn new(
        deadline: Option<Instant>,
        units: Option<Box<Units>>,
        plan: Option<Box<dyn Any + Send>>,
    ) -> Box<Self> {
        Box::new(Self {
            deadline,
            mutates: true,
            number: 0,
            counts: Tickets::new(),
            parent: None,
            units,
            commutes: None,
            own: UnsafeCell::new(LimitsState { plan, ..LimitsState::default() }),
        })
    }

    /// Returns the operation's deadline, if it has one.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Counts the operation in `group`.
    pub(crate) fn join(&mut self, group: &Arc<GroupCore>) {
        (self.counts, self.number) = group.enter();
        let group = Arc::clone(group);
        // SAFETY: the limits are borrowed exclusively.
        self.own.with_mut(|own| unsafe { &mut *own }.group = Some(group));
    }

    /// [`join`](Self::join) for a child or a scope's operation, in the group of its family or scope. The limits keep a
    /// share of `kin`. If `kin` is a family, the caller has already counted that share, and `parent` is the record of
    /// the parent, which does not complete before the operation. `mutates` says whether the operation mutates a
    /// variable.
    pub(crate) fn join_kin(
        &mut self,
        group: &Arc<GroupCore>,
        kin: Arc<dyn Kin>,
        parent: Option<NonNull<()>>,
        mutates: bool,
    ) {
        (self.parent, self.mutates) = (parent, mutates);
        // SAFETY: the limits are borrowed exclusively.
        self.own.with_mut(|own| unsafe { &mut *own }.kin = Some(KinShare::new(kin)));
        self.join(group);
    }

    /// Calls `f` with the part that changes.
    ///
    /// # Safety
    /// 1. The calling thread may use this part, as the head of this module states.
    unsafe fn with<R>(&self, f: impl FnOnce(&mut LimitsState) -> R) -> R {
        // SAFETY: (1).
        self.own.with_mut(|own| f(unsafe { &mut *own }))
    }

    /// Claims the operation unless its group or one around it was cancelled or its deadline has passed. Later calls
    /// then have the same result.
    ///
    /// # Errors
    /// Returns why the operation fails, or `None` if it changes nothing.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    pub(crate) unsafe fn claim(&self) -> Result<(), Option<Cause>> {
        let own = self.own();
        if !own.is_claimed {
            match own.group.as_ref().and_then(|group| group.cancelled()) {
                Some(Cancel::Loudly) => return Err(Some(Cause::Cancelled)),
                Some(Cancel::Quietly) => return Err(None),
                None if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    return Err(Some(Cause::DeadlinePassed));
                }
                None => {}
            }
        }
        // SAFETY: (1).
        unsafe { self.with(|own| own.is_claimed = true) };
        Ok(())
    }

    /// Records that any failure of the operation from now on is its own.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    pub(super) unsafe fn will_fail_itself(&self) {
        // SAFETY: (1).
        unsafe { self.with(|own| own.fails_itself = true) };
    }

    /// Takes the plan of an operation that is about to start, if it may have children.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    pub(crate) unsafe fn take_plan(&self) -> Option<Box<dyn Any + Send>> {
        // SAFETY: (1).
        unsafe { self.with(|own| own.plan.take()) }
    }

    /// Whether the group was cancelled or the deadline has passed. Called by the owner of the ready operation.
    pub(crate) fn are_over(&self) -> bool {
        let own = self.own();
        own.group.as_ref().is_some_and(|group| group.cancelled().is_some())
            || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Returns the units that the operation needs, if it needs any.
    pub(crate) fn units(&self) -> Option<&Units> {
        self.units.as_deref()
    }

    /// Sets the units, before the push.
    pub(crate) fn set_units(&mut self, units: Option<Box<Units>>) {
        self.units = units;
    }

    /// Returns what the operation needs because it commutes, if it does.
    pub(super) fn commutes(&self) -> Option<&Commutes> {
        self.commutes.as_deref()
    }

    /// Sets what the operation needs because it commutes, before the push.
    pub(super) fn set_commutes(&mut self, commutes: Commutes) {
        self.commutes = Some(Box::new(commutes));
    }

    fn own(&self) -> &LimitsState {
        // SAFETY: nothing changes while the callers may use the result. `group`, `kin` and `parent_of` say which
        // threads may call them, and `end` and `must_leave` are called by the thread that ends the operation.
        self.own.with(|own| unsafe { &*own })
    }

    /// Returns the operation's group. Called by the thread that owns or ends the operation, or by the owner of a share
    /// of the right to end it.
    pub(crate) fn group(&self) -> Option<&Arc<GroupCore>> {
        self.own().group.as_ref()
    }

    /// Returns the family or scope in which the operation is a child. Called by the same threads as
    /// [`group`](Self::group).
    pub(crate) fn kin(&self) -> Option<&Arc<dyn Kin>> {
        self.own().kin.as_ref().map(KinShare::kin)
    }

    /// Returns the family of the operation, if it is asynchronous and may have children. Called by the same threads as
    /// [`group`](Self::group).
    pub(crate) fn parent_of(&self) -> Option<&Arc<dyn Kin>> {
        self.own().parent_of.as_ref()
    }

    /// Sets or takes the family that completes the operation.
    ///
    /// # Safety
    /// 1. The operation is about to start, and this thread owns it; or this thread has the right to end it.
    pub(crate) unsafe fn set_parent_of(&self, family: Option<Arc<dyn Kin>>) {
        // SAFETY: (1).
        let before = unsafe { self.with(|own| std::mem::replace(&mut own.parent_of, family)) };
        drop(before);
    }

    /// Records the end of the operation with `result`. `is_abandoned` says whether its scope has counted it out.
    ///
    /// # Safety
    /// 1. This thread ends the operation.
    pub(crate) unsafe fn end(&self, is_abandoned: bool, result: Result<(), &OpError>) {
        // SAFETY: (1).
        unsafe { self.with(|own| own.is_abandoned = is_abandoned) };
        let own = self.own();
        if let (Some(group), Err(failure)) = (&own.group, result) {
            let kept = Kept { failure: failure.clone(), is_own: own.fails_itself, mutates: self.mutates };
            group.keep(self.number, &kept);
        }
    }

    /// Whether [`leave`](Self::leave) has anything to do: not if there is only a deadline. Called by the thread that
    /// ends the operation.
    pub(crate) fn must_leave(&self) -> bool {
        let own = self.own();
        own.group.is_some() || own.kin.is_some() || own.plan.is_some() || own.parent_of.is_some()
    }

    /// Counts the operation out of its groups, and ends its share of its family.
    ///
    /// # Safety
    /// 1. This thread has ended the operation, or its push was refused.
    pub(crate) unsafe fn leave(&self) {
        // SAFETY: (1).
        let own = unsafe { self.with(std::mem::take) };
        if let Some(group) = own.group.as_ref().filter(|_| !own.is_abandoned) {
            group.leave(&self.counts);
        }
    }

    /// Returns the operation's ticket in `pending`, if it has one.
    pub(crate) fn ticket_in(&self, pending: &PendingOps) -> Option<Ticket> {
        self.counts.iter().find_map(|&(count, ticket)| ptr::eq(count, pending).then_some(ticket))
    }

    /// Returns the counts that the operation has joined, innermost first. They may no longer exist, so the pointers may
    /// only be compared.
    pub(crate) fn counts(&self) -> impl Iterator<Item = *const PendingOps> {
        self.counts.iter().map(|&(count, _)| count)
    }

    /// Returns the record of the operation's parent, if it is a child.
    pub(crate) fn parent(&self) -> Option<NonNull<()>> {
        self.parent
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        // SAFETY: (1): if the operation was pushed, it has left its groups, and this does nothing.
        unsafe { self.leave() };
    }
}
