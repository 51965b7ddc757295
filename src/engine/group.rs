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
//! * [`Joined`]: constant, in the record of the member. Any pinned thread may read it until the record is reused.
//!
//! This module has no edges of its own: the count hands over what the members did.

use std::{
    collections::BTreeMap,
    iter,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    sync::Arc,
};

use smallvec::SmallVec;

use crate::{
    engine::kin::KinShare,
    error::{op::OpError, wait::WaitError},
    memory::epoch,
    notify::{
        claim::Cancel,
        pending::{PendingOps, Ticket},
        wakers::Wakers,
    },
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
pub(crate) struct Group {
    /// The group around this one.
    parent: Option<Arc<Group>>,
    state: AtomicU8,
    pub(crate) pending: PendingOps,
    /// The number of members pushed to the groups of this tree. Used only in the root group.
    pushed: AtomicU64,
    /// The record of the members' parent, or null if they are not children.
    belongs_to: AtomicPtr<()>,
    /// The failures of members since the last wait, keyed by push number.
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
    pub(super) fn set_parent(&self, record: NonNull<()>) {
        // Relaxed: only dumps use this pointer, through the records of members, which are pushed later.
        self.belongs_to.store(record.as_ptr(), Relaxed);
    }

    /// Returns this group and those around it, innermost first.
    pub(super) fn path(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
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

    /// Counts a member that is about to be pushed.
    pub(crate) fn enter(self: &Arc<Self>) -> Membership {
        let is_counted = |group: &&Arc<Self>| Arc::ptr_eq(group, self) || !removed(step::COUNT_IN_EVERY_GROUP);
        let tickets = self.path().filter(is_counted).map(|group| group.pending.enter()).collect();
        let root = self.path().last().unwrap_or(self);
        // Relaxed: each push by a thread has a higher number than that thread's previous push.
        let number = root.pushed.fetch_add(1, Relaxed);
        Membership { group: Arc::clone(self), tickets, number, fails_itself: false, mutates: true, family: None }
    }

    /// Keeps a member's failure if it is among the [`MAX_KEPT`] earliest.
    fn keep(&self, number: u64, failure: Kept) {
        let mut failures = lock(&self.failures);
        let before = failures.insert(number, failure);
        let last = if failures.len() > MAX_KEPT { failures.pop_last() } else { None };
        drop(failures);
        drop((before, last));
    }

    /// Returns the failure of the first member, in push order, that mutates nothing or whose failure satisfies
    /// `is_left`.
    pub(super) fn first_failure(&self, is_left: impl Fn(&OpError) -> bool) -> Option<OpError> {
        let failures = lock(&self.failures);
        failures.values().find(|kept| !kept.mutates || is_left(&kept.failure)).map(|kept| kept.failure.clone())
    }

    /// Returns the failure of the first member, in push order, that has failed since the last call. That failure and
    /// those that originated in the group count as reported.
    pub(super) fn take_failure(&self) -> Result<(), WaitError> {
        let failures = std::mem::take(&mut *lock(&self.failures));
        failures.values().filter(|kept| kept.is_own).for_each(|kept| kept.failure.mark_reported());
        failures.into_values().next().map_or(Ok(()), |first| Err(first.failure.into()))
    }
}

/// The failure of a member.
#[derive(Clone)]
struct Kept {
    failure: OpError,
    /// Whether the member itself has failed. Otherwise, it was skipped because an earlier operation had failed.
    is_own: bool,
    /// Whether the member mutates a variable, which therefore failed with it. Exact only for children and a scope's
    /// operations; `true` for every other member.
    mutates: bool,
}

/// An operation's membership in a group. The group counts the operation until this value is dropped.
pub(crate) struct Membership {
    group: Arc<Group>,
    /// The member's tickets in the group and in those around it.
    tickets: SmallVec<[Ticket; 2]>,
    /// The number of the member's push.
    number: u64,
    /// Whether a failure of the member is its own: the member has started or was cancelled.
    pub(super) fails_itself: bool,
    /// Whether the member mutates a variable. Exact only for children and a scope's operations; `true` for every other
    /// member.
    pub(super) mutates: bool,
    /// The member's share of its family or scope, dropped after the member has been counted out of the group.
    pub(super) family: Option<KinShare>,
}

impl Membership {
    pub(super) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Records that the end of a scope has counted the member out of its groups.
    pub(super) fn abandon(&mut self) {
        self.tickets.clear();
    }

    /// Returns the membership's tickets, for threads that know only the member's record.
    pub(super) fn joined(&self) -> Joined {
        let counts = self.group.path().map(|group| ptr::from_ref(&group.pending));
        // Relaxed: see `set_parent`. If a push misses the store, dumps merely do not show the member as a child of its
        // parent.
        Joined::new(self.group.belongs_to.load(Relaxed), counts.zip(self.tickets.iter().copied()))
    }

    /// Keeps the member's failure in its group and in those around it.
    pub(super) fn fail(&self, failure: &OpError) {
        let kept = || Kept { failure: failure.clone(), is_own: self.fails_itself, mutates: self.mutates };
        self.group.path().for_each(|group| group.keep(self.number, kept()));
    }
}

/// The number of nested groups whose tickets fit into a member's record. If there are more groups, all tickets are
/// boxed.
const LEVELS: usize = 5;

/// The tickets of a member in its group and in those around it, for threads that know only its record. They are valid
/// as long as the member is counted, and meaningless after that.
pub(crate) struct Joined {
    /// The counts. The pointers are only compared.
    counts: [MaybeUninit<*const PendingOps>; LEVELS],
    tickets: [MaybeUninit<Ticket>; LEVELS],
    /// The record of the member's parent, or null. The pointer is only compared. The record belongs to the parent as
    /// long as the member is pending.
    parent: *mut (),
    /// The number of tickets, or [`BOXED`].
    levels: u32,
}

/// The value of [`Joined::levels`] if the first pointer points to a boxed [`Tickets`] instead.
const BOXED: u32 = u32::MAX;

type Tickets = Vec<(*const PendingOps, Ticket)>;

impl Joined {
    /// Returns the `Joined` of an operation without a group.
    pub(crate) fn nothing() -> Self {
        Self {
            counts: [MaybeUninit::uninit(); LEVELS],
            tickets: [MaybeUninit::uninit(); LEVELS],
            parent: ptr::null_mut(),
            levels: 0,
        }
    }

    fn new(parent: *mut (), mut tickets: impl Iterator<Item = (*const PendingOps, Ticket)>) -> Self {
        let mut joined = Self { parent, ..Self::nothing() };
        for ((count, ticket), (own_count, own_ticket)) in
            tickets.by_ref().take(LEVELS).zip(joined.counts.iter_mut().zip(&mut joined.tickets))
        {
            own_count.write(count);
            own_ticket.write(ticket);
            joined.levels += 1;
        }
        let Some(next) = tickets.next() else { return joined };
        let all: Tickets = joined.inline().chain([next]).chain(tickets).collect();
        joined.levels = BOXED;
        joined.counts[0].write(Box::into_raw(Box::new(all)).cast_const().cast());
        joined
    }

    fn inline(&self) -> impl Iterator<Item = (*const PendingOps, Ticket)> {
        let levels = if self.levels == BOXED { 0 } else { self.levels as usize };
        self.counts.iter().zip(&self.tickets).take(levels).map(|(count, ticket)| {
            // SAFETY: `new` has initialised this many of both.
            let count = unsafe { count.assume_init() };
            // SAFETY: `new` has initialised this many of both.
            (count, unsafe { ticket.assume_init() })
        })
    }

    fn boxed(&self) -> Option<*mut Tickets> {
        // SAFETY: with this number of levels, `new` has initialised the first pointer.
        (self.levels == BOXED).then(|| unsafe { self.counts[0].assume_init() }.cast::<Tickets>().cast_mut())
    }

    fn tickets(&self) -> impl Iterator<Item = (*const PendingOps, Ticket)> {
        // SAFETY: dropping `self` only retires the box, so it is not freed while a thread that may read it is pinned.
        let boxed = self.boxed().map(|tickets| unsafe { &*tickets }.iter().copied());
        self.inline().chain(boxed.into_iter().flatten())
    }

    /// Returns the operation's ticket in `pending`, if it has one.
    pub(super) fn ticket_in(&self, pending: &PendingOps) -> Option<Ticket> {
        self.tickets().find_map(|(count, ticket)| ptr::eq(count, pending).then_some(ticket))
    }

    /// Returns the counts that the operation has joined, innermost first. They may no longer exist, so the pointers may
    /// only be compared.
    pub(super) fn counts(&self) -> impl Iterator<Item = *const PendingOps> {
        self.tickets().map(|(count, _)| count)
    }

    /// Returns the record of the operation's parent, if it is a child.
    pub(super) fn parent(&self) -> Option<NonNull<()>> {
        NonNull::new(self.parent)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(tickets) = self.boxed() {
            // SAFETY: the pointer is from a box, and this is its only drop.
            let tickets = unsafe { Box::from_raw(tickets) };
            // The tickets are retired, since a pinned thread that has found the operation may still read them.
            // SAFETY: the tickets are plain memory.
            unsafe { epoch::pin().retire(move || drop(tickets)) };
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let left = self.group.path().zip(&self.tickets).filter_map(|(group, &ticket)| group.pending.leave(ticket));
        left.collect::<SmallVec<[Wakers; 1]>>().into_iter().for_each(Wakers::wake);
    }
}
