//! Groups of operations that are waited for, counted and cancelled together.
//!
//! # States
//!
//! Groups form a tree. A group is open until it is cancelled, loudly or quietly; a cancellation is final. Except for
//! clean-ups, members of a cancelled group and of the groups inside it no longer start: when a member's turn comes, it
//! fails, or changes nothing if the group was cancelled quietly. Members that have started are asked to
//! [stop](crate::notify::stop_signal).
//!
//! A member is counted in its group and in those around it from before its push until its epilogue has run, or until
//! the end of its scope abandons it. The group of a parent's children, for which nothing waits, has no count.
//!
//! A member's failure is kept in its group and in those around it. The program may ignore a group's failures, for good:
//! they then count as reported, and the groups around it keep none of them.
//!
//! # Who may touch what
//!
//! * `state`: any thread.
//! * `stop`: under its lock, which whoever cancels the group takes after it has changed `state`.
//! * `failures`: under their lock. No failure is dropped under the lock, since the drop may run program code. A thread
//!   that goes outwards locks those of the next group before it unlocks those of the last one. So no call that
//!   [ignores](GroupCore::ignore_failures) failures overtakes a failure that is not yet kept in all groups around.
//! * `pending`: see [`PendingOps`].
//! * `bound`: any thread; set once.
//! * `resources`: under its lock.
//!
//! This module has no edges of its own: the count hands over what the members did.

use std::{
    collections::BTreeMap,
    iter, mem, ptr,
    sync::{Arc, OnceLock},
};

use smallvec::SmallVec;

use crate::{
    error::{op::OpError, wait::WaitError},
    notify::{
        claim::Cancel,
        pending::PendingOps,
        stop_signal::{StopSignal, StopSource},
        wakers::Wakers,
    },
    op::{
        limits::Tickets,
        units::{ResourceCore, Resources},
    },
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicU8, AtomicU64},
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
    /// The count of the members, unless they are children.
    count: Option<Box<PendingOps>>,
    /// The number of members pushed to the groups of this tree. Used only in the root group.
    pushed: AtomicU64,
    /// Asks started members to stop.
    stop: Mutex<StopSource>,
    /// `None` until a member fails or the program ignores failures.
    failures: Mutex<Option<Box<KeptFailures>>>,
    /// The bound on the members that run at a time, if there is one.
    bound: OnceLock<Arc<ResourceCore>>,
    /// The resources that members need. Of those that one member needs together, one is listed.
    resources: Resources,
}

impl std::fmt::Debug for GroupCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupCore")
            .field("pending", &self.count.as_ref().map(|count| count.count()))
            .finish_non_exhaustive()
    }
}

impl GroupCore {
    /// Creates a group, inside `parent` if there is one.
    pub(crate) fn new(parent: Option<Arc<Self>>) -> Arc<Self> {
        Self::with_count(parent, Some(Box::new(PendingOps::new(1))))
    }

    /// Creates the group of a parent's children. If the parent is in `group`, it is inside the innermost group there
    /// that has a count, so the way outwards does not grow with the depth at which children are nested.
    pub(crate) fn of_children(group: Option<&Arc<Self>>) -> Arc<Self> {
        let counted = group.and_then(|group| if group.count.is_some() { Some(group) } else { group.parent.as_ref() });
        Self::with_count(counted.cloned(), None)
    }

    fn with_count(parent: Option<Arc<Self>>, count: Option<Box<PendingOps>>) -> Arc<Self> {
        Arc::new(Self {
            parent,
            state: AtomicU8::new(OPEN),
            count,
            pushed: AtomicU64::new(0),
            stop: Mutex::default(),
            failures: Mutex::default(),
            bound: OnceLock::new(),
            resources: Resources::default(),
        })
    }

    /// Returns the bound on the members that run at a time, if there is one.
    pub(crate) fn bound(&self) -> Option<&Arc<ResourceCore>> {
        self.bound.get()
    }

    /// Sets the bound on the members that run at a time, unless there is one. Returns the bound.
    pub(crate) fn set_bound(&self, jobs: usize) -> &Arc<ResourceCore> {
        self.bound.get_or_init(|| Arc::new(ResourceCore::bound(jobs)))
    }

    pub(crate) fn resources(&self) -> &Resources {
        &self.resources
    }

    /// Returns this group and those around it, innermost first.
    pub(crate) fn path(&self) -> impl Iterator<Item = &Self> {
        iter::successors(Some(self), |group| group.parent.as_deref())
    }

    /// Returns the counts that include a member, innermost first.
    pub(crate) fn counts(&self) -> impl Iterator<Item = &PendingOps> {
        self.path().filter_map(|group| group.count.as_deref())
    }

    /// Returns the count of the members. The group must not be that of a parent's children.
    pub(crate) fn pending(&self) -> &PendingOps {
        let Some(count) = &self.count else { unreachable!("nothing waits for the group of a parent's children") };
        count
    }

    /// Whether this group is `other` or inside it.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.path().any(|group| ptr::eq(group, other))
    }

    /// Cancels the members that have not started, including those pushed later, and asks those that have started to
    /// stop, except clean-ups. Does nothing if the group was cancelled before. May run program code.
    pub(crate) fn cancel(&self, how: Cancel) {
        let state = if how == Cancel::Loudly { CANCELLED } else { PASSED_OVER };
        // Relaxed: a member that starts at the same time may run or be cancelled. If the exchange fails, an earlier
        // call has already cancelled the group.
        let _ = self.state.compare_exchange(OPEN, state, Relaxed, Relaxed);
        let signal = lock(&self.stop).made();
        signal.iter().for_each(|signal| signal.give());
    }

    /// Returns the signals that ask members to stop: those of this group and of the groups around it that may be
    /// cancelled.
    pub(crate) fn stop_signals(&self) -> impl Iterator<Item = Arc<StopSignal>> {
        // Relaxed: `cancel` has changed the state before it takes the lock.
        let is_cancelled = |group: &Self| group.state.load(Relaxed) != OPEN;
        let may_be_cancelled = self.path().filter(|group| group.count.is_some());
        may_be_cancelled.map(move |group| lock(&group.stop).signal(|| is_cancelled(group)))
    }

    /// Returns how this group or one around it was cancelled, if one was.
    pub(crate) fn cancelled(&self) -> Option<Cancel> {
        // Relaxed: a member that starts at the same time may run or be cancelled.
        self.path().find_map(|group| match group.state.load(Relaxed) {
            CANCELLED => Some(Cancel::Loudly),
            PASSED_OVER => Some(Cancel::Quietly),
            _ => None,
        })
    }

    /// Counts a member that is about to be pushed. Returns its tickets and the number of its push.
    pub(crate) fn enter(&self) -> (Tickets, u64) {
        let counts = self.counts().take(if removed(step::COUNT_IN_EVERY_GROUP) { 1 } else { usize::MAX });
        let tickets = counts.map(|count| (ptr::from_ref(count), count.enter())).collect();
        let root = self.path().last().unwrap_or(self);
        // Relaxed: each push by a thread has a higher number than that thread's previous push.
        (tickets, root.pushed.fetch_add(1, Relaxed))
    }

    /// Counts out a member with these tickets.
    pub(crate) fn leave(&self, tickets: &Tickets) {
        let left = self.counts().zip(tickets).filter_map(|(count, &(_, ticket))| count.leave(ticket));
        left.collect::<SmallVec<[Wakers; 1]>>().into_iter().for_each(Wakers::wake);
    }

    /// Keeps a member's failure in this group and in those around it, in each if it is among the [`MAX_KEPT`] earliest,
    /// up to the first group whose failures are ignored.
    pub(crate) fn keep(&self, number: u64, failure: &Kept) {
        let mut dropped = Vec::new();
        let mut around = self.path().skip(1);
        let mut failures = lock(&self.failures);
        let is_ignored = loop {
            let KeptFailures { kept, are_ignored } = &mut **failures.get_or_insert_default();
            dropped.extend(kept.insert(number, failure.clone()));
            if kept.len() > MAX_KEPT {
                dropped.extend(kept.pop_last().map(|(_, last)| last));
            }
            if *are_ignored {
                break true;
            }
            let Some(next) = around.next() else { break false };
            if removed(step::FAILURES_STAY_IN_TURN) {
                drop(failures);
            }
            failures = lock(&next.failures);
        };
        drop(failures);
        if is_ignored {
            failure.mark_reported();
        }
    }

    /// Ignores the failures of members: those since the last wait, and all later ones.
    pub(crate) fn ignore_failures(&self) {
        let mut failures = lock(&self.failures);
        let KeptFailures { kept, are_ignored } = &mut **failures.get_or_insert_default();
        *are_ignored = true;
        let ignored = kept.clone();
        let mut dropped = Vec::new();
        for next in self.path().skip(1) {
            failures = lock(&next.failures);
            if let Some(failures) = &mut *failures {
                dropped.extend(ignored.keys().filter_map(|number| failures.kept.remove(number)));
            }
        }
        drop(failures);
        ignored.values().for_each(Kept::mark_reported);
    }

    /// Returns the failure of the first member, in push order, that mutates nothing or whose failure satisfies
    /// `is_left`.
    pub(crate) fn first_failure(&self, is_left: impl Fn(&OpError) -> bool) -> Option<OpError> {
        let failures = lock(&self.failures);
        let is_first = |kept: &&Kept| !kept.failure.is_cleared() && (!kept.mutates || is_left(&kept.failure));
        let mut kept = failures.iter().flat_map(|failures| failures.kept.values());
        kept.find(is_first).map(|kept| kept.failure.clone())
    }

    /// Returns the failure of the first member, in push order, that has failed since the last call. That failure and
    /// those that originated in the group count as reported.
    pub(crate) fn take_failure(&self) -> Result<(), WaitError> {
        let take = |failures: &mut Box<KeptFailures>| mem::take(&mut failures.kept);
        let failures = lock(&self.failures).as_mut().map(take).unwrap_or_default();
        failures.values().for_each(Kept::mark_reported);
        failures.into_values().next().map_or(Ok(()), |first| Err(first.failure.into()))
    }
}

impl Drop for GroupCore {
    fn drop(&mut self) {
        // Without recursion, since groups may be nested to any depth.
        let mut parent = self.parent.take();
        while let Some(mut last) = parent.and_then(Arc::into_inner) {
            parent = last.parent.take();
        }
    }
}

/// The failures of members.
#[derive(Default)]
struct KeptFailures {
    /// Those since the last wait, keyed by push number.
    kept: BTreeMap<u64, Kept>,
    /// Whether the program ignores them, and those to come.
    are_ignored: bool,
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

impl Kept {
    /// Marks the failure as reported if it originated in the group.
    fn mark_reported(&self) {
        if self.is_own {
            self.failure.mark_reported();
        }
    }
}
