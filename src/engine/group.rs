//! Groups of operations that are waited for, counted and cancelled together.
//!
//! # States
//!
//! Groups form a tree. A group is open, and then, for good, cancelled or cancelled quietly. The members of a group that
//! was cancelled, and those of the groups inside it, do not start any more: each fails, or changes nothing, in its
//! turn.
//!
//! A member is counted in its group, and in those around it, from before its push until its epilogue has run.
//!
//! # Who may touch what
//!
//! * `state`: any thread.
//! * `failures`: under the lock. No failure is dropped there, since that runs program code.
//! * `pending`: see [`PendingOps`].
//!
//! There are no edges here: the count hands over what the members did.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
    ptr::NonNull,
    sync::{Arc, Mutex as PlainMutex, PoisonError, atomic::AtomicU32},
};

use smallvec::SmallVec;

use crate::{
    engine::kin::Kin,
    error::{op::OpError, wait::WaitError},
    notify::{
        claim::Cancel,
        pending::{PendingOps, Ticket},
        wakers::Wakers,
    },
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicBool, AtomicU8, AtomicU64},
        fork::PerProcess,
        lock,
    },
};

/// What dumps need to know of a group.
#[derive(Clone, Copy, Default)]
struct Surroundings {
    /// The number of the group around it, or 0.
    outer: u32,
    /// The operation that cannot complete before the members, by the address of its record.
    waiter: Option<(usize, Bond)>,
}

/// Why an operation cannot complete before the members of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bond {
    /// They are its children.
    Children,
    /// Its function has opened the scope to which they belong.
    Scope,
}

/// The number of locks. Picked: groups inside others are rarely created by many threads at once.
const SHARDS: usize = 16;

/// Groups that lie inside others or belong to an operation, by their numbers. It outlives the runs of a model, so its locks are
/// `std`'s in models as well.
static SURROUNDINGS: PerProcess<[PlainMutex<HashMap<u32, Surroundings>>; SHARDS]> = PerProcess::new();

/// Calls `f` with the groups among which this one is.
fn with_surroundings<R>(number: u32, f: impl FnOnce(&mut HashMap<u32, Surroundings>) -> R) -> R {
    let shard = &SURROUNDINGS.get(Default::default)[number as usize % SHARDS];
    f(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the groups around an operation of the group with this number: that group first. Each comes with the record of the
/// operation that cannot complete before its members, if there is one.
pub(super) fn groups_around(number: u32) -> impl Iterator<Item = (u32, Option<(NonNull<()>, Bond)>)> {
    let mut next = number;
    iter::from_fn(move || {
        let number = std::mem::take(&mut next);
        let look = || with_surroundings(number, |known| known.get(&number).copied().unwrap_or_default());
        let known = (number != 0).then(look)?;
        next = known.outer;
        let record = |address| NonNull::new(std::ptr::without_provenance_mut(address));
        Some((number, known.waiter.and_then(|(address, bond)| Some((record(address)?, bond)))))
    })
}

const OPEN: u8 = 0;
const CANCELLED: u8 = 1;
const PASSED_OVER: u8 = 2;

/// The number of failures that a group keeps to mark them as reported with the first one. Picked.
const MAX_KEPT: usize = 1024;

/// A group of operations.
pub(crate) struct Group {
    /// By which dumps know the group. Not zero.
    number: u32,
    /// The group is among those whose surroundings are known.
    is_noted: AtomicBool,
    /// The group around this one.
    parent: Option<Arc<Group>>,
    state: AtomicU8,
    pub(crate) pending: PendingOps,
    /// The number of members that were pushed, in this group and all around and inside it. Used in the root only.
    pushed: AtomicU64,
    /// The failures of members since the last wait, by the number of the push.
    failures: Mutex<BTreeMap<u64, Kept>>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("pending", &self.pending.count()).finish_non_exhaustive()
    }
}

impl Group {
    /// Creates a group, inside `parent` if there is one.
    pub(crate) fn new(parent: Option<Arc<Self>>) -> Arc<Self> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        // Relaxed: the numbers must only be distinct, among the groups that exist.
        let number = LAST.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        if let Some(parent) = &parent {
            let around = Surroundings { outer: parent.number, waiter: None };
            with_surroundings(number, |known| known.insert(number, around));
        }
        Arc::new(Self {
            number,
            is_noted: AtomicBool::new(parent.is_some()),
            parent,
            state: AtomicU8::new(OPEN),
            pending: PendingOps::new(1),
            pushed: AtomicU64::new(0),
            failures: Mutex::default(),
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Notes that the operation with this record cannot complete before the members.
    pub(super) fn belongs_to(&self, record: NonNull<()>, bond: Bond) {
        let waiter = Some((record.as_ptr().addr(), bond));
        with_surroundings(self.number, |known| known.entry(self.number).or_default().waiter = waiter);
        // Relaxed: whoever drops the group has got it from this thread.
        self.is_noted.store(true, Relaxed);
    }

    /// This group and those around it, from the inside to the outside.
    pub(super) fn path(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        iter::successors(Some(self), |group| group.parent.as_ref())
    }

    /// Whether this is `other`, or inside it.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || self.parent.as_ref().is_some_and(|parent| parent.is_within(other))
    }

    /// Cancels the members that have not started, unless the group was cancelled before.
    pub(crate) fn cancel(&self, how: Cancel) {
        let state = if how == Cancel::Loudly { CANCELLED } else { PASSED_OVER };
        // Relaxed: a member that starts meanwhile may do either. If it fails, the first call has decided.
        let _ = self.state.compare_exchange(OPEN, state, Relaxed, Relaxed);
    }

    /// How this group, or one around it, was cancelled.
    pub(crate) fn cancelled(&self) -> Option<Cancel> {
        // Relaxed: a member that starts meanwhile may do either.
        match self.state.load(Relaxed) {
            CANCELLED => Some(Cancel::Loudly),
            PASSED_OVER => Some(Cancel::Quietly),
            _ => self.parent.as_ref().and_then(|parent| parent.cancelled()),
        }
    }

    /// Counts a member in that is about to be pushed.
    pub(crate) fn enter(self: &Arc<Self>) -> Membership {
        let tickets = self.path().map(|group| group.pending.enter()).collect();
        let root = self.path().last().unwrap_or(self);
        // Relaxed: each push of a thread has a higher number than the one before.
        let number = root.pushed.fetch_add(1, Relaxed);
        Membership { group: Arc::clone(self), tickets, number, fails_itself: false, mutates: true, family: None }
    }

    /// Keeps the failure of a member, if it is one of the earliest.
    fn keep(&self, number: u64, failure: Kept) {
        let mut failures = lock(&self.failures);
        let before = failures.insert(number, failure);
        let last = if failures.len() > MAX_KEPT { failures.pop_last() } else { None };
        drop(failures);
        drop((before, last));
    }

    /// Returns the failure of the member that was pushed first, among those that have mutated nothing, and those whose
    /// failure `is_left` somewhere.
    pub(super) fn first_failure(&self, is_left: impl Fn(&OpError) -> bool) -> Option<OpError> {
        let failures = lock(&self.failures);
        failures.values().find(|kept| !kept.mutates || is_left(&kept.failure)).map(|kept| kept.failure.clone())
    }

    /// Returns the failure of the member that was pushed first, among those that have failed since the last call. That
    /// failure, and those that began in the group, count as reported.
    pub(super) fn take_failure(&self) -> Result<(), WaitError> {
        let failures = std::mem::take(&mut *lock(&self.failures));
        failures.values().filter(|kept| kept.is_own).for_each(|kept| kept.failure.mark_reported());
        failures.into_values().next().map_or(Ok(()), |first| Err(first.failure.into()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Relaxed: see `belongs_to`.
        if self.is_noted.load(Relaxed) {
            with_surroundings(self.number, |known| known.remove(&self.number));
        }
    }
}

/// The failure of a member.
#[derive(Clone)]
struct Kept {
    failure: OpError,
    /// The member has failed itself. Otherwise it was skipped for the failure of an operation before it.
    is_own: bool,
    /// The member names a variable that has failed with it.
    mutates: bool,
}

/// A member of a group, which is counted in it until this is dropped.
pub(crate) struct Membership {
    group: Arc<Group>,
    /// The member's tickets in the group and in those around it.
    tickets: SmallVec<[Ticket; 2]>,
    /// The number of the member's push.
    number: u64,
    /// If the member fails, it does so itself: it has started, or was cancelled.
    pub(super) fails_itself: bool,
    /// The member mutates a variable.
    pub(super) mutates: bool,
    /// The family of a child. Its share ends when the child has been counted out of the group.
    pub(super) family: Option<Arc<dyn Kin>>,
}

impl Membership {
    pub(super) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The member's ticket in `group`, if it belongs to that or to a group inside it.
    pub(super) fn ticket_in(&self, group: &Group) -> Option<Ticket> {
        let mut tickets = self.group.path().zip(&self.tickets);
        tickets.find_map(|(at, &ticket)| std::ptr::eq(&raw const **at, group).then_some(ticket))
    }

    /// Keeps the failure of the member in its group and in those around it.
    pub(super) fn fail(&self, failure: &OpError) {
        let kept = || Kept { failure: failure.clone(), is_own: self.fails_itself, mutates: self.mutates };
        self.group.path().for_each(|group| group.keep(self.number, kept()));
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let left = self.group.path().zip(&self.tickets).filter_map(|(group, &ticket)| group.pending.leave(ticket));
        left.collect::<SmallVec<[Wakers; 1]>>().into_iter().for_each(Wakers::wake);
    }
}
