//! Waits that would never return: an operation waits, directly or through others, for one queued behind it.
//!
//! A thread waiting inside operations is listed among the [waiters](crate::notify::waiters), which all engines share.
//! From time to time, the thread walks forward from what it is [inside of](Inside):
//!
//! | from | to | because |
//! |---|---|---|
//! | an operation | the operations queued behind it that depend on it | they cannot start before it is complete |
//! | an operation | a waiter for it, for one of its groups, or for all operations of its engine | the wait cannot end before the operation has ended |
//! | an operation that has the turn of a variable on which it commutes | the operations that wait for the turn | they cannot have it before |
//! | an operation that holds units | an operation that waits for units of the same resource, if those that such operations do not hold are too few | it cannot have its units before |
//! | an operation whose epilogue runs | a waiter for one of its groups, or for all operations of its engine | the operation is counted out after the epilogue |
//! | a parent | a waiter for a child that is not in a queue yet | the child enters its queues when the parent's own work has ended |
//! | a waiter | what its thread is inside of | the thread cannot continue before the wait is over |
//!
//! If the walk reaches the thread's own wait, nothing along the path can continue.
//!
//! A single operation that waits seldom holds all units of a resource. So a walk that visits one which holds some of
//! them assumes that the waits of all threads whose operations hold others are not over either. If the walk finds a
//! cycle but does not reach all these waits, it is repeated without those that it has not reached. A wait is asked to
//! end the cycle only if there is none without it: otherwise, its own walk may find none.
//!
//! A queued operation does not start before the operation ahead of it is complete, and an operation that is not
//! asynchronous does not complete while its function waits. Until the completion of an asynchronous operation has been
//! used, walks treat that operation like the others. So the cycle is real if none of its waits is over after the walk:
//! no awaited operation can then have been complete during the walk, and each record still belonged to its operation. A
//! walk may encounter an unfinished push, so walks are repeated.
//!
//! # Who ends a cycle
//!
//! | the waiters in the cycle | who ends it | how |
//! |---|---|---|
//! | one has a time limit | the walking thread, if the wait with the limit is its own | its wait returns [`WaitError::WouldDeadlock`]; other walks do not follow waits with time limits |
//! | some can be refused | the refusable one that began to wait last | its wait returns `WouldDeadlock` |
//! | all are at the end of a scope | the one that began to wait last | it abandons operations that cannot start; see [`engine::scope`](crate::group::scoped) |
//!
//! A walk finds only one of the cycles through its own wait. One is enough. Among all refusable waits in cycles that
//! share waits, consider the one that began last: it is also the last refusable wait in whichever cycle its walk finds,
//! and therefore ends that cycle.
//!
//! # When threads walk
//!
//! With few exceptions, a wait that begins is what closes a cycle. The wait that began last of all therefore walks
//! [`FIRST_PAUSE`] after its beginning, and repeatedly during its first [`EARLY`]. Other waits walk rarely: each pause
//! grows with the duration of the walk before it and with the number of waiters, so that all of them together use a
//! small part of a core. If a walk finds a cycle that another wait must end, including a wait with a time limit, it
//! [asks](crate::notify::waiters::Waiters::ask) that wait to walk. A thread checks every [`CHECK`] whether its wait has
//! been asked, and less often if there are many waiters.
//!
//! A push can close a cycle too: it may be unfinished while a wait walks, or may enter a scope or an engine whose end
//! others await. Such a cycle is found by the next walk of one of its waits.
//!
//! # Not followed
//!
//! Walks do not follow tasks of other executors, futures of waits, guards, completions, or the shutdowns of other
//! engines. In a forked child, they find nothing.

use std::{
    collections::{HashMap, HashSet},
    mem::{self, offset_of},
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    engine::core::Core,
    error::{
        deadlock::{Awaited, Deadlock, Pushed},
        wait::WaitError,
    },
    memory::epoch,
    notify::{
        oneshot::Oneshot,
        pending::{PendingOps, Ticket},
        stock::Need,
        turn::TakesTurns,
        waiters::{Awaits, Goal, Inside, IsOver, ListedWaiter, Nested, Ops, Situation, WaiterKind, waiters},
    },
    op::{
        frame,
        limits::Limits,
        task::Task,
        units::{ResourceCore, UnitsWaiter},
    },
    sync::atomic::AtomicPtr,
    tracker::{Ahead, Op, OpRef, walk_blocked},
    wait,
};

/// The pause before the first walk. Each later pause is twice as long as the previous one, up to `LAST_PAUSE`. Not
/// tuned: most waits are shorter than the first pause, and a person hardly notices the last.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(80);

/// Until pauses reach `LONGEST_PAUSE`, all waiters together spend at most about `1 / SHARE` of a core's time on walks:
/// each pause grows with the duration of the walk before it and with the number of waiters. Not tuned.
const SHARE: u32 = 16;
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The time after the beginning of a wait during which the wait's pauses do not grow with the duration of its walks, as
/// long as no other wait begins. The promise that cycles are found within 100 ms determines it.
const EARLY: Duration = Duration::from_millis(100);

/// The pause between two checks of a thread whether its wait has been asked to walk, while at most `FEW` threads wait.
/// With more waiters, the pause is longer in proportion, so that all of them together check no more than 3,200 times
/// per second. Not tuned: a check takes a few microseconds.
const CHECK: Duration = Duration::from_millis(20);
const FEW: u32 = 64;

/// The maximum number of operations that a search for a deadlock visits. Not tuned: visiting this many takes a few
/// milliseconds.
const MAX_VISITED: usize = 100_000;

/// The maximum number of operations visited to determine whether a wait depends on a ready operation. Not tuned:
/// visiting this many takes a few microseconds, less than handing over a worker.
const MAX_NEAR: usize = 256;

/// The operation awaited by a wait for a single operation.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    /// The task of the operation. The pointer identifies the operation until completion and is never dereferenced.
    pub(crate) task: NonNull<()>,
    /// Holds a pointer to the task of the operation that keeps this one from entering a queue, or null while none does.
    /// `None` if this one has no handle.
    pub(crate) kept_out_by: Option<&'a AtomicPtr<()>>,
    pub(crate) describe: &'a dyn Fn() -> Awaited,
}

impl<'a> Target<'a> {
    pub(crate) fn goal(&self) -> Goal<'a> {
        Goal::Op { task: self.task, kept_out_by: self.kept_out_by }
    }
}

/// A reference that other threads may use even if `T` is not `Sync`.
#[derive(Clone, Copy)]
struct AnyThread<'a, T: ?Sized>(&'a T);

// SAFETY: the caller of `new` has guaranteed that other threads may use the reference.
unsafe impl<T: ?Sized> Sync for AnyThread<'_, T> {}

impl<'a, T: ?Sized> AnyThread<'a, T> {
    /// # Safety
    /// 1. Any thread may use `value` in every way in which the caller uses the result.
    unsafe fn new(value: &'a T) -> Self {
        Self(value)
    }

    fn get(&self) -> &'a T {
        self.0
    }
}

/// Returns the pointer that identifies an operation to waiters. It is never dereferenced.
fn identity(op: &Op<Task>) -> Option<NonNull<()>> {
    NonNull::new(op.shared_task_ptr().cast_mut().cast())
}

/// Returns the operations among `ops` that are not complete. Leaves out the operations around a complete one, since
/// they may be complete as well. An asynchronous operation may be complete while its function still runs.
///
/// # Safety
/// 1. The calling thread is pinned.
/// 2. The record of each operation with depth 0 exists: the operation's function has not returned, or the operation is
///    not complete. An operation around another one is completed, and its record reused, only after that one is
///    complete.
unsafe fn incomplete(ops: &[Nested]) -> impl Iterator<Item = NonNull<Op<Task>>> {
    // The depth of the last operation examined, if it is complete. Deeper ones that follow are around it and may be
    // complete as well.
    let mut over = None;
    ops.iter().filter_map(move |&Nested { op, depth }| {
        if over.is_some_and(|over| depth > over) {
            return None;
        }
        let op: NonNull<Op<Task>> = op.cast();
        // SAFETY: (2): the operation has depth 0, or the one inside it was found to be incomplete. (1): since then, the
        // record cannot be reused.
        let is_over = unsafe { op.as_ref() }.task().is_over();
        over = is_over.then_some(depth);
        (!is_over).then_some(op)
    })
}

/// Removes from `ops` the operations that are complete, or may be.
///
/// # Safety
/// 1. and 2. as for [`incomplete`].
pub(crate) unsafe fn keep_incomplete(ops: &mut Ops) {
    // SAFETY: (1) and (2).
    let kept = unsafe { incomplete(ops) }.map(|op| Nested { op: op.cast(), depth: 0 }).collect();
    *ops = kept;
}

/// Returns `op`'s ticket in `pending`, if `pending` is the count of one of its groups.
///
/// # Safety
/// 1. The operation was pending at some moment since the calling thread was pinned.
unsafe fn ticket_in_group(op: &Op<Task>, pending: &PendingOps) -> Option<Ticket> {
    // SAFETY: (1): the record is not reused before this thread is unpinned.
    op.task().limits()?.ticket_in(pending)
}

/// Returns `op`'s ticket in `pending`, if `pending` is the count of one of its groups or of its engine.
///
/// # Safety
/// 1. The operation was pending at some moment since the calling thread was pinned.
pub(crate) unsafe fn ticket_in(op: &Op<Task>, pending: &PendingOps) -> Option<Ticket> {
    // A pending operation's mark is its engine's address, or that address plus one.
    let engine = op.marked_by().addr() & !1;
    if engine == std::ptr::from_ref(pending).addr().wrapping_sub(offset_of!(Core, pending)) {
        return Some(op.task().ticket);
    }
    // SAFETY: (1).
    unsafe { ticket_in_group(op, pending) }
}

/// Returns a function that any thread may call to check whether a oneshot's result is set.
pub(crate) fn is_done<Q, T: ?Sized>(oneshot: &Oneshot<Q, T>) -> impl Fn() -> bool + Sync {
    // SAFETY: the oneshot is already shared with the thread that sets its result, and `is_done` takes the oneshot's
    // lock.
    let oneshot = unsafe { AnyThread::new(oneshot) };
    move || oneshot.get().is_done()
}

/// Adds to `ahead` operations that wait for turns that `op` has, up to `max` for each of these.
fn follow_turns(op: &Op<Task>, from: usize, max: usize, ahead: &mut Ahead<Task>) {
    if op.task().commutes().is_some() {
        for turn in op.accesses().filter_map(Task::turn) {
            turn.each_waiting_for(op, max, |op| ahead.push((NonNull::from(op), from)));
        }
    }
}

/// The times at which a thread looks for a cycle of waits.
pub(crate) struct Looks {
    since: Instant,
    /// The time of the next walk, unless the wait is asked to walk earlier.
    walks: Instant,
    /// The time of the next check whether to walk.
    checks: Instant,
    pause: Duration,
}

impl Looks {
    pub(crate) fn new() -> Self {
        let since = Instant::now();
        let first = since + FIRST_PAUSE;
        Self { since, walks: first, checks: first, pause: FIRST_PAUSE }
    }

    /// Returns the time of the thread's next look.
    pub(crate) fn next(&self) -> Instant {
        self.checks
    }

    /// Makes the next look due.
    pub(crate) fn look_now(&mut self) {
        self.walks = Instant::now();
        self.checks = self.walks;
    }

    /// If a look is due and the thread should walk, calls `walk`, which searches for a cycle.
    pub(crate) fn look(&mut self, waiter: &ListedWaiter<'_>, walk: impl FnOnce() -> Option<Cycle>) -> Option<Cycle> {
        let begun = Instant::now();
        if begun < self.checks {
            return None;
        }
        let Situation { waiters, is_last, is_asked } = waiter.situation();
        let is_due = is_asked || begun >= self.walks;
        let cycle = if is_due { walk() } else { None };
        let end = Instant::now();
        if is_due {
            self.pause = LAST_PAUSE.min(2 * self.pause);
            let is_early = is_last && end < self.since + EARLY;
            let share = (end - begun).saturating_mul(SHARE.saturating_mul(waiters)).min(LONGEST_PAUSE);
            self.walks = end + if is_early { self.pause } else { self.pause.max(share) };
        }
        self.checks = self.walks.min(end + CHECK.saturating_mul(waiters.div_ceil(FEW)).min(LONGEST_PAUSE));
        cycle
    }
}

/// A step of a walk: a waiter and the index of the step that led to it. The first step is the walking thread's own
/// waiter.
struct WalkStep {
    number: u64,
    kind: WaiterKind,
    from: usize,
}

/// A wait with a time limit that a walk has reached.
struct Timed {
    step: WalkStep,
    /// The incomplete operations of the wait's thread.
    ops: Vec<NonNull<Op<Task>>>,
    inside: Inside,
}

/// A search for a cycle of waits.
struct Walk {
    own: u64,
    /// Whether the walk follows only waits at the ends of scopes.
    only_closing: bool,
    /// The numbers of the other waits that the walk has reached.
    seen: HashSet<u64>,
    steps: Vec<WalkStep>,
    /// Other waits with time limits that the walk has reached. The walk does not follow them yet.
    timed: Vec<Timed>,
    /// The step from which the walk returned to the walking thread's wait, and the awaited operation through which it
    /// did so.
    found: Option<(usize, NonNull<Op<Task>>)>,
    /// The operations to visit, each with the index of its step.
    ahead: Ahead<Task>,
    /// The units of each resource that blocked operations hold, and these operations.
    held: HashMap<*const ResourceCore, u64>,
    holders: HashSet<NonNull<Op<Task>>>,
    /// The numbers of other waits that the walk assumes not to be over, since operations on their threads hold units.
    assumed: HashSet<u64>,
    /// The numbers of those about which it assumes nothing.
    not_assumed: HashSet<u64>,
}

impl Walk {
    /// Begins a walk from what the calling thread is `inside` of.
    fn from(waiter: &ListedWaiter<'_>, only_closing: bool, not_assumed: HashSet<u64>) -> Self {
        let inside = waiter.inside();
        let own = WalkStep { number: waiter.number(), kind: waiter.kind(), from: 0 };
        let mut walk = Self {
            own: waiter.number(),
            only_closing,
            seen: HashSet::new(),
            steps: vec![own],
            timed: Vec::new(),
            found: None,
            ahead: Vec::new(),
            held: HashMap::new(),
            holders: HashSet::new(),
            assumed: HashSet::new(),
            not_assumed,
        };
        // SAFETY: (1): the caller is pinned. (2): each operation with depth 0 runs on this thread, so its function has
        // not returned.
        walk.ahead.extend(unsafe { incomplete(&inside.ops) }.map(|op| (op, 0)));
        walk.enter(inside, 0);
        walk
    }

    /// Continues from the operations whose epilogues run on a waiter's thread. The caller has already added the
    /// thread's incomplete operations to `ahead`.
    fn enter(&mut self, inside: &Inside, step: usize) {
        let mut todo = vec![(inside.clone(), step)];
        while let Some((inside, step)) = todo.pop() {
            for &(op, in_group) in &inside.ended {
                let op: NonNull<Op<Task>> = op.cast();
                // SAFETY: the epilogue's frame keeps the record alive. The frame's thread is this one, or was in the
                // list of waiters after this thread was pinned.
                let known = unsafe { op.as_ref() };
                let reaches = |goal: &Goal<'_>| {
                    goal.covers(|pending| {
                        // SAFETY: (1): the operation's epilogue runs.
                        let in_any = unsafe { ticket_in(known, pending) };
                        // SAFETY: (1): the operation's epilogue runs.
                        in_any.filter(|_| in_group || unsafe { ticket_in_group(known, pending) }.is_none())
                    })
                };
                self.reach(op, None, step, reaches, &mut todo);
            }
        }
    }

    /// Continues from `op` to the waiters whose goals satisfy `reaches`. If one of them may wait for `op` alone, `task`
    /// identifies `op`.
    fn reach(
        &mut self,
        op: NonNull<Op<Task>>,
        task: Option<NonNull<()>>,
        from: usize,
        reaches: impl FnMut(&Goal<'_>) -> bool,
        todo: &mut Vec<(Inside, usize)>,
    ) {
        let Self { own, only_closing, seen, steps, timed, found, ahead, .. } = self;
        waiters().each_for(task, reaches, |number, kind, inside| {
            if number == *own {
                found.get_or_insert((from, op));
                return;
            }
            // A wait may be reached from each of the operations that it covers.
            if *only_closing && kind != WaiterKind::Closing || !seen.insert(number) {
                return;
            }
            // SAFETY: (1): the caller is pinned. (2): each operation with depth 0 runs on the thread of a listed
            // waiter, so its function has not returned.
            let ops = unsafe { incomplete(&inside.ops) };
            if kind == WaiterKind::Timed {
                let step = WalkStep { number, kind, from };
                timed.push(Timed { step, ops: ops.collect(), inside: inside.clone() });
                return;
            }
            let step = steps.len();
            steps.push(WalkStep { number, kind, from });
            ahead.extend(ops.map(|op| (op, step)));
            todo.push((inside.clone(), step));
        });
    }

    /// Visits an incomplete operation.
    fn visit(&mut self, op: &Op<Task>, from: usize) {
        let Some(task) = identity(op) else { return };
        let mut todo = Vec::new();
        // SAFETY: (1): `op` was not complete at some moment since this thread was pinned.
        let reaches =
            |goal: &Goal<'_>| goal.depends_on(task) || goal.covers(|pending| unsafe { ticket_in(op, pending) });
        self.reach(NonNull::from(op), Some(task), from, reaches, &mut todo);
        todo.into_iter().for_each(|(inside, step)| self.enter(&inside, step));
        follow_turns(op, from, MAX_VISITED, &mut self.ahead);
        if op.task().units().is_some() {
            self.follow_units(NonNull::from(op), from);
        }
    }

    /// Continues from `op`, which may hold units, to operations that cannot have theirs before it gives them back.
    fn follow_units(&mut self, op: NonNull<Op<Task>>, from: usize) {
        let mut holders = vec![op];
        while let Some(holder) = holders.pop() {
            // SAFETY: the operation was not complete at some moment since this thread was pinned.
            let task = unsafe { holder.as_ref() }.task();
            let Some(units) = task.units().filter(|units| units.are_held()) else { continue };
            if !self.holders.insert(holder) {
                continue;
            }
            // The units of bounds are lent.
            for Need { resource, units } in units.needs().iter().filter(|need| !need.resource.is_bound()) {
                let held = self.held.entry(Arc::as_ptr(resource)).or_default();
                let (before, left) = (resource.units() - *held, resource.units().saturating_sub(*held + units));
                let is_first = *held == 0;
                *held = resource.units() - left;
                let are_wanted = resource.each_waiter(left + 1..=before, |waiter| {
                    if let UnitsWaiter::Op(op) = waiter {
                        self.ahead.push((op.cast(), from));
                    }
                });
                if is_first && are_wanted && !self.only_closing {
                    self.assume_waits(resource, from, &mut holders);
                }
            }
        }
    }

    /// Assumes that the waits of threads whose operations hold units of `resource` are not over. Adds these operations
    /// to `holders`.
    fn assume_waits(&mut self, resource: &Arc<ResourceCore>, from: usize, holders: &mut Vec<NonNull<Op<Task>>>) {
        let Self { own, ahead, holders: known, assumed, not_assumed, .. } = self;
        waiters().each(|number, kind, inside| {
            if number == *own || kind == WaiterKind::Timed || not_assumed.contains(&number) {
                return;
            }
            // SAFETY: (1): the caller is pinned. (2): each operation with depth 0 runs on the thread of a listed
            // waiter, so its function has not returned.
            for op in unsafe { incomplete(&inside.ops) } {
                // SAFETY: the operation was not complete at some moment since this thread was pinned.
                let units = unsafe { op.as_ref() }.task().units();
                let holds = |need: &Need<_>| Arc::ptr_eq(&need.resource, resource);
                if !known.contains(&op)
                    && units.is_some_and(|units| units.are_held() && units.needs().iter().any(holds))
                {
                    assumed.insert(number);
                    holders.push(op);
                    ahead.push((op, from));
                }
            }
        });
    }

    /// Walks from what the calling thread is inside of, and assumes nothing about waits that it does not reach if it
    /// finds a cycle, nor about those in `not_assumed`.
    fn assuming_what_it_reaches(waiter: &ListedWaiter<'_>, mut not_assumed: HashSet<u64>) -> Self {
        loop {
            let mut walk = Self::from(waiter, false, not_assumed);
            walk.run();
            if walk.found.is_none() || walk.assumed.is_subset(&walk.seen) {
                return walk;
            }
            not_assumed = mem::take(&mut walk.not_assumed);
            not_assumed.extend(walk.assumed.difference(&walk.seen));
        }
    }

    /// Walks until the walk returns to its own wait, or finds nothing new.
    fn run(&mut self) {
        let ahead = mem::take(&mut self.ahead);
        if self.found.is_some() {
            return;
        }
        let look = |op: &Op<Task>, from: usize, ahead: &mut Ahead<Task>| {
            self.visit(op, from);
            ahead.append(&mut self.ahead);
            self.found.is_some() && self.assumed.is_empty()
        };
        // SAFETY: (1): all operations in `ahead` were found to be incomplete after this thread was pinned.
        unsafe { walk_blocked(ahead, MAX_VISITED, look) };
    }

    /// Continues the walk from the waits with time limits that it has reached.
    fn follow_timed(&mut self) {
        for Timed { step, ops, inside } in mem::take(&mut self.timed) {
            let at = self.steps.len();
            self.steps.push(step);
            self.ahead.extend(ops.into_iter().map(|op| (op, at)));
            self.enter(&inside, at);
        }
        self.run();
    }

    /// Returns the other waiters of the cycle through `step`: those on the path to it, and those that hold units.
    fn cycle(&self, step: usize) -> impl Iterator<Item = &WalkStep> {
        self.way_to(step).chain(self.steps.iter().filter(|step| self.assumed.contains(&step.number)))
    }

    /// Returns the waiters on the path to `step`, except the walk's own.
    fn way_to(&self, mut step: usize) -> impl Iterator<Item = &WalkStep> {
        std::iter::from_fn(move || {
            let at = &self.steps[step];
            (step != 0).then(|| {
                step = at.from;
                at
            })
        })
    }
}

/// A cycle of waits that the calling thread must end.
pub(crate) struct Cycle {
    /// The operation through which the cycle returns to the calling thread's wait, if that wait is for several
    /// operations.
    pub(crate) through: Option<Pushed>,
}

/// Looks for a cycle that contains the calling thread's wait and that this thread must end. `is_single` says whether
/// the thread waits for a single operation.
pub(crate) fn find_cycle(waiter: &ListedWaiter<'_>, is_single: bool) -> Option<Cycle> {
    // Pinned before any operation is found to be incomplete.
    let _pinned = epoch::pin();
    let mut walk = Walk::assuming_what_it_reaches(waiter, HashSet::new());
    if walk.found.is_none() && waiter.kind() != WaiterKind::Timed {
        // A wait with a time limit must end the cycle.
        walk.follow_timed();
        if let Some((from, _)) = walk.found {
            let is_timed = |step: &&WalkStep| step.kind == WaiterKind::Timed;
            waiters().ask(walk.way_to(from).filter(is_timed).map(|step| step.number));
        }
        return None;
    }
    let (mut from, mut op) = walk.found?;
    let is_refusable = |step: &&WalkStep| step.kind == WaiterKind::Refusable;
    let is_last = |step: &WalkStep| step.number < waiter.number();
    loop {
        let ends_it = match waiter.kind() {
            // Other walks do not follow a wait with a time limit, so this thread must end the cycle.
            WaiterKind::Timed => true,
            WaiterKind::Refusable => walk.cycle(from).filter(is_refusable).all(is_last),
            WaiterKind::Closing => walk.cycle(from).all(|step| step.kind == WaiterKind::Closing && is_last(step)),
        };
        if ends_it {
            break;
        }
        let last = |of: &dyn Fn(&&WalkStep) -> bool| walk.cycle(from).filter(of).map(|step| step.number).max();
        let last = last(&is_refusable).or_else(|| last(&|_| true))?;
        if walk.assumed.contains(&last) {
            let not_assumed = walk.not_assumed.iter().copied().chain([last]).collect();
            let without = Walk::assuming_what_it_reaches(waiter, not_assumed);
            if let Some(found) = without.found {
                (walk, (from, op)) = (without, found);
                continue;
            }
        }
        waiters().ask([last]);
        return None;
    }
    if !waiters().all_wait(walk.cycle(from).map(|step| step.number)) {
        return None;
    }
    // SAFETY: if the goal is not a single operation, `visit` or `enter` has found this operation after this thread was
    // pinned.
    let pushed = |op: NonNull<Op<Task>>| unsafe { op.as_ref() }.task().pushed();
    Some(Cycle { through: (!is_single).then(|| pushed(op)) })
}

/// Returns the operations counted in `pending` that cannot start or cannot end before the calling thread continues,
/// each with its identifying pointer and its ticket. The thread waits at the end of a scope; the walk follows only such
/// waits.
pub(crate) fn blocked_members(waiter: &ListedWaiter<'_>, pending: &PendingOps) -> Vec<(NonNull<()>, Ticket)> {
    // Pinned before any operation is found to be incomplete.
    let _pinned = epoch::pin();
    let mut walk = Walk::from(waiter, true, HashSet::new());
    let ahead = mem::take(&mut walk.ahead);
    let mut blocked = Vec::new();
    let look = |op: &Op<Task>, from: usize, ahead: &mut Ahead<Task>| {
        // SAFETY: (1): `op` was not complete at some moment since this thread was pinned.
        if let (Some(task), Some(ticket)) = (identity(op), unsafe { ticket_in_group(op, pending) }) {
            blocked.push((task, ticket));
        }
        walk.visit(op, from);
        ahead.append(&mut walk.ahead);
        false
    };
    // SAFETY: (1): all operations in `ahead` were found to be incomplete after this thread was pinned.
    unsafe { walk_blocked(ahead, MAX_VISITED, look) };
    blocked
}

/// Calls `wait`, which blocks at most until the time given to it. For a wait that could be part of a cycle, which is
/// listed as `waiter`, repeats the call as long as `wait` returns [`WaitError::TimedOut`] and `deadline` has not
/// passed. Between calls, walks if a walk is due. Returns [`WaitError::WouldDeadlock`] if a walk finds a cycle that
/// this thread must end. If the goal is a single operation, `describe` describes it.
pub(super) fn watching<R>(
    core: &Core,
    waiter: Option<&ListedWaiter<'_>>,
    describe: Option<&dyn Fn() -> Awaited>,
    deadline: Option<Instant>,
    wait: impl Fn(Option<Instant>) -> Result<R, WaitError>,
) -> Result<R, WaitError> {
    let Some(waiter) = waiter else { return wait(deadline) };
    let mut looks = Looks::new();
    loop {
        let until = deadline.map_or(looks.next(), |deadline| deadline.min(looks.next()));
        match wait(Some(until)) {
            Err(WaitError::TimedOut) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
            result => return result,
        }
        if core.is_forked() {
            return wait(deadline);
        }
        let walk = || find_cycle(waiter, describe.is_some());
        let Some(cycle) = looks.look(waiter, walk) else { continue };
        if waiter.is_over() {
            continue;
        }
        return Err(refusal(describe, cycle));
    }
}

/// Returns [`WaitError::WouldDeadlock`] if a single walk finds that the calling thread would wait for `goal`
/// forever. Called by a thread that is about to run other operations on top of its own.
pub(super) fn refuse_cycle(
    core: &Core,
    goal: Goal<'_>,
    describe: Option<&dyn Fn() -> Awaited>,
    is_over: &IsOver<'_>,
) -> Result<(), WaitError> {
    if frame::inside().is_empty() {
        // Nothing can stand behind a thread outside all operations.
        return Ok(());
    }
    let awaits = if describe.is_some() { Awaits::Operation } else { Awaits::Group };
    let kind = WaiterKind::Refusable;
    wait::sleep_listed(core, kind, awaits, Some(goal), Instant::now(), is_over, |waiter| {
        match waiter.and_then(|waiter| find_cycle(waiter, describe.is_some())) {
            Some(cycle) if !is_over() => Err(refusal(describe, cycle)),
            _ => Ok(()),
        }
    })
}

/// Returns the error of a wait that must end a cycle.
fn refusal(describe: Option<&dyn Fn() -> Awaited>, cycle: Cycle) -> WaitError {
    let awaited = match (describe, cycle.through) {
        (Some(describe), _) => describe(),
        (None, Some(member)) => Awaited::Member(member),
        (None, None) => Awaited::All,
    };
    WaitError::WouldDeadlock(Deadlock::new(frame::running_op(), awaited))
}

/// Returns the pointer that identifies this engine to waiters.
pub(crate) fn engine(core: &Core) -> NonNull<()> {
    NonNull::from(core).cast()
}

/// Whether every thread waiting for this engine inside an operation must still wait. A wait may end before its
/// thread runs again.
pub(crate) fn all_wait_still(core: &Core) -> bool {
    waiters().all_wait_still(engine(core))
}

/// Whether a short walk finds that a wait for `goal` cannot end before `op` is complete. `op` is ready and owned by
/// this thread.
pub(super) fn leads_to(op: &OpRef<Task>, goal: &Goal<'_>) -> bool {
    // Pinned before any operation is found to be incomplete.
    let _pinned = epoch::pin();
    let mut ops = Ops::from_iter([Nested { op: NonNull::from(&**op).cast(), depth: 0 }]);
    if let Some(kin) = op.task().limits().and_then(Limits::kin) {
        kin.each_parent(&mut |around| ops.push(around));
    }
    // SAFETY: (1): this thread is pinned. (2): this thread owns the operation.
    let ahead = unsafe { incomplete(&ops) }.map(|op| (op, 0)).collect();
    let look = |op: &Op<Task>, _: usize, ahead: &mut Ahead<Task>| {
        let Some(task) = identity(op) else { return false };
        // SAFETY: (1): `op` was not complete at some moment since this thread was pinned.
        let reaches =
            |goal: &Goal<'_>| goal.depends_on(task) || goal.covers(|pending| unsafe { ticket_in(op, pending) });
        if reaches(goal) {
            return true;
        }
        follow_turns(op, 0, MAX_NEAR, ahead);
        waiters().each_for(Some(task), reaches, |_, kind, inside| {
            if kind == WaiterKind::Timed {
                return;
            }
            // SAFETY: (1): this thread is pinned. (2): each operation with depth 0 runs on the thread of a listed
            // waiter, so its function has not returned.
            ahead.extend(unsafe { incomplete(&inside.ops) }.map(|op| (op, 0)));
        });
        false
    };
    // SAFETY: (1): all operations in `ahead` were found to be incomplete after this thread was pinned.
    unsafe { walk_blocked(ahead, MAX_NEAR, look) }
}
