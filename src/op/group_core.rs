//! Groups of operations that are waited for, counted and cancelled together.
//!
//! # States
//!
//! Groups form a tree. A group is open until it is cancelled, loudly or quietly; a cancellation is final. Except for
//! clean-ups, members of a cancelled group and of the groups inside it no longer start: when a member's turn comes, it
//! fails, or changes nothing if the group was cancelled quietly.
//!
//! A member is counted in its group and in those around it from before its push until its epilogue has run, or until
//! the end of its scope abandons it.
//!
//! # Who may touch what
//!
//! * `state`: any thread.
//! * `belongs_to`: set before the first push, by the thread that starts the parent. The pointer is only compared.
//! * `failures`: under their lock. No failure is dropped under the lock, since the drop may run program code.
//! * `pending`: see [`PendingOps`].
//!
//! This module has no edges of its own: the count hands over what the members did.

use std::{
    collections::BTreeMap,
    iter,
    ptr::{self, NonNull},
    sync::Arc,
};

use smallvec::SmallVec;

use crate::{
    error::{op::OpError, wait::WaitError},
    notify::{claim::Cancel, pending::PendingOps, wakers::Wakers},
    op::limits::Tickets,
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicPtr, AtomicU8, AtomicU64},
        edge::{removed, step},
        lock,
    },
};

const OPEN: u8 = 0;
const CANCELLED: u8 = 1;
const PASSED_OVER: u8 = 2;

/// The maximum number of failures that a group keeps. When the group returns the first, those that originated in the
/// group also count as reported. Not tuned.
const MAX_KEPT: usize = 1024;

/// A group of operations.
pub(crate) struct GroupCore {
    /// The group around this one.
    parent: Option<Arc<GroupCore>>,
    state: AtomicU8,
    pub(crate) pending: PendingOps,
    /// The number of members pushed to the groups of this tree. Used only in the root group.
    pushed: AtomicU64,
    /// The record of the members' parent, or null if they are not children.
    belongs_to: AtomicPtr<()>,
    /// The failures of members since the last wait, keyed by push number.
    failures: Mutex<BTreeMap<u64, Kept>>,
}

impl std::fmt::Debug for GroupCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupCore").field("pending", &self.pending.count()).finish_non_exhaustive()
    }
}

impl GroupCore {
    /// Creates a group, inside `parent` if there is one.
    pub(crate) fn new(parent: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self {
            parent,
            state: AtomicU8::new(OPEN),
            pending: PendingOps::new(1),
            pushed: AtomicU64::new(0),
            belongs_to: AtomicPtr::new(ptr::null_mut()),
            failures: Mutex::default(),
        })
    }

    /// Records that the members are children of the operation with this record. That operation does not complete before
    /// they do.
    pub(crate) fn set_parent(&self, record: NonNull<()>) {
        // Relaxed: only dumps use this pointer, through the records of members, which are pushed later.
        self.belongs_to.store(record.as_ptr(), Relaxed);
    }

    /// Returns this group and those around it, innermost first.
    pub(crate) fn path(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        iter::successors(Some(self), |group| group.parent.as_ref())
    }

    /// Whether this group is `other` or inside it.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        ptr::eq(self, other) || self.parent.as_ref().is_some_and(|parent| parent.is_within(other))
    }

    /// Cancels the members that have not started, including those pushed later, except clean-ups. Does nothing if the
    /// group was cancelled before.
    pub(crate) fn cancel(&self, how: Cancel) {
        let state = if how == Cancel::Loudly { CANCELLED } else { PASSED_OVER };
        // Relaxed: a member that starts at the same time may run or be cancelled. If the exchange fails, an earlier
        // call has already cancelled the group.
        let _ = self.state.compare_exchange(OPEN, state, Relaxed, Relaxed);
    }

    /// Returns how this group or one around it was cancelled, if one was.
    pub(crate) fn cancelled(&self) -> Option<Cancel> {
        // Relaxed: a member that starts at the same time may run or be cancelled.
        match self.state.load(Relaxed) {
            CANCELLED => Some(Cancel::Loudly),
            PASSED_OVER => Some(Cancel::Quietly),
            _ => self.parent.as_ref().and_then(|parent| parent.cancelled()),
        }
    }

    /// Returns the record of the members' parent, or null if they are not children.
    pub(super) fn parent_record(&self) -> *const () {
        // Relaxed: see `set_parent`. If a push misses the store, dumps merely do not show the member as a child of its
        // parent.
        self.belongs_to.load(Relaxed)
    }

    /// Counts a member that is about to be pushed. Returns its tickets and the number of its push.
    pub(crate) fn enter(self: &Arc<Self>) -> (Tickets, u64) {
        let is_counted = |group: &&Arc<Self>| Arc::ptr_eq(group, self) || !removed(step::COUNT_IN_EVERY_GROUP);
        let enter = |group: &Arc<Self>| (ptr::from_ref(&group.pending), group.pending.enter());
        let tickets = self.path().filter(is_counted).map(enter).collect();
        let root = self.path().last().unwrap_or(self);
        // Relaxed: each push by a thread has a higher number than that thread's previous push.
        (tickets, root.pushed.fetch_add(1, Relaxed))
    }

    /// Counts out a member with these tickets.
    pub(crate) fn leave(self: &Arc<Self>, tickets: &Tickets) {
        let left = self.path().zip(tickets).filter_map(|(group, &(_, ticket))| group.pending.leave(ticket));
        left.collect::<SmallVec<[Wakers; 1]>>().into_iter().for_each(Wakers::wake);
    }

    /// Keeps a member's failure if it is among the [`MAX_KEPT`] earliest.
    pub(crate) fn keep(&self, number: u64, failure: Kept) {
        let mut failures = lock(&self.failures);
        let before = failures.insert(number, failure);
        let last = if failures.len() > MAX_KEPT { failures.pop_last() } else { None };
        drop(failures);
        drop((before, last));
    }

    /// Returns the failure of the first member, in push order, that mutates nothing or whose failure satisfies
    /// `is_left`.
    pub(crate) fn first_failure(&self, is_left: impl Fn(&OpError) -> bool) -> Option<OpError> {
        let failures = lock(&self.failures);
        failures.values().find(|kept| !kept.mutates || is_left(&kept.failure)).map(|kept| kept.failure.clone())
    }

    /// Returns the failure of the first member, in push order, that has failed since the last call. That failure and
    /// those that originated in the group count as reported.
    pub(crate) fn take_failure(&self) -> Result<(), WaitError> {
        let failures = std::mem::take(&mut *lock(&self.failures));
        failures.values().filter(|kept| kept.is_own).for_each(|kept| kept.failure.mark_reported());
        failures.into_values().next().map_or(Ok(()), |first| Err(first.failure.into()))
    }
}

/// The failure of a member.
#[derive(Clone)]
pub(crate) struct Kept {
    pub(crate) failure: OpError,
    /// Whether the member itself has failed. Otherwise, it was skipped because an earlier operation had failed.
    pub(crate) is_own: bool,
    /// Whether the member mutates a variable, which therefore failed with it. Exact only for children and a scope's
    /// operations; `true` for every other member.
    pub(crate) mutates: bool,
}
