//! Waits that would never return: an operation waits for one that stands behind it, directly or through others.
//!
//! A thread that waits inside an operation is in the list of [waiters](crate::notify::waiters). From time to time it walks
//! forward, from the operations that run on it: to those that stand behind them, and from one that another waiter waits
//! for to the operations that run on that waiter's thread. If it comes to the operation that it waits for itself, none of
//! them can go on.
//!
//! Each step of such a cycle lasts as long as the step before: an operation in a queue cannot start before the one ahead is
//! complete, and that cannot complete while its thread waits. So the cycle is real if the waits of all its waiters are not over after the
//! walk, and the awaited operation is not complete: then none of the operations that they wait for was, and each record is
//! known to be its own still. The youngest waiter
//! ends it: it finds the others in the list. A walk may see a push that is not over, so it is repeated.
//!
//! Tasks of other executors, waits for groups, and waits with a time limit are not followed.

use std::{
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    engine::{cancellable::Place, core::Core, frame, task::Task},
    error::{
        deadlock::{Awaited, Deadlock},
        wait::WaitError,
    },
    memory::epoch,
    notify::{
        oneshot::Oneshot,
        waiters::{Ops, Waiter},
    },
    tracker::{Ahead, Op, OpRef, walk_blocked},
};

/// The first walk comes after this time, and each further one after twice the time before it, up to `LAST_PAUSE`. Picked:
/// most waits are shorter than the first pause, and a person hardly notices the last one.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(80);

/// The most operations that a walk in search of a deadlock visits. Picked: so many take some milliseconds.
const MAX_VISITED: usize = 100_000;

/// The most operations that a walk in search of what a wait depends on visits. Picked: so many take some microseconds, less
/// than to hand a worker over.
const MAX_NEAR: usize = 256;

/// What a wait waits for.
pub(super) struct Target<'a> {
    /// The task of the operation. It identifies the operation until that is complete, and is never read.
    pub(super) task: NonNull<()>,
    /// Where the operation of a handle notes which other one it waits for before it enters a queue.
    pub(super) place: Option<&'a Place>,
    pub(super) describe: &'a dyn Fn() -> Awaited,
}

impl Target<'_> {
    /// The task of the operation that holds the awaited one back, if there is one, or else of the awaited one.
    fn now(&self) -> NonNull<()> {
        self.place.and_then(Place::held_back_by).unwrap_or(self.task)
    }
}

/// A reference that other threads may use, although the compiler cannot know that.
#[derive(Clone, Copy)]
struct AnyThread<'a, T: ?Sized>(&'a T);

// SAFETY: whoever has made it has guaranteed that.
unsafe impl<T: ?Sized> Sync for AnyThread<'_, T> {}

impl<'a, T: ?Sized> AnyThread<'a, T> {
    /// # Safety
    /// 1. Any thread may do with `value` what the caller lets it do.
    unsafe fn new(value: &'a T) -> Self {
        Self(value)
    }

    fn get(&self) -> &'a T {
        self.0
    }
}

/// What identifies an operation to waiters. It is never read.
fn identity(op: &Op<Task>) -> Option<NonNull<()>> {
    NonNull::new(op.shared_task_ptr().cast_mut().cast())
}

/// Those of `ops` that are not complete. A function may go on when its asynchronous operation is complete already.
///
/// # Safety
/// 1. Their records exist: their functions have not returned, or they are not complete.
unsafe fn incomplete(ops: &[NonNull<()>]) -> impl Iterator<Item = NonNull<Op<Task>>> {
    let is_over = |op: &NonNull<Op<Task>>| {
        // SAFETY: (1).
        unsafe { op.as_ref() }.task().is_over()
    };
    ops.iter().map(|op| op.cast()).filter(move |op| !is_over(op))
}

/// Returns a function that tells any thread whether the result of a oneshot is set.
pub(super) fn is_done<Q, T: ?Sized>(oneshot: &Oneshot<Q, T>) -> impl Fn() -> bool + Sync {
    // SAFETY: the thread that sets the result shares the oneshot already, and whether it is set is found under its lock.
    let oneshot = unsafe { AnyThread::new(oneshot) };
    move || oneshot.get().is_done()
}

impl Core {
    /// Calls `wait`, which blocks until a time limit, until it returns something other than [`WaitError::TimedOut`], or
    /// until `deadline`. Returns [`WaitError::WouldDeadlock`] if the operations on this thread would wait for ever.
    pub(super) fn wait_watching<R, Q, T: ?Sized>(
        self: &Arc<Self>,
        oneshot: &Oneshot<Q, T>,
        target: &Target<'_>,
        deadline: Option<Instant>,
        wait: impl Fn(&Oneshot<Q, T>, Option<Instant>) -> Result<R, WaitError>,
    ) -> Result<R, WaitError> {
        let ops = frame::running_ops(self);
        if ops.is_empty() || cfg!(any(raddle_loom, raddle_shuttle)) {
            // Models have no clock.
            return wait(oneshot, deadline);
        }
        let is_over = is_done(oneshot);
        // SAFETY: any thread may read a place, and compare what identifies a task.
        let shared = unsafe { AnyThread::new(target) };
        let awaited = move || shared.get().now();
        self.waiters.during(ops.clone(), &awaited, deadline.is_some(), &is_over, |waiter| {
            let mut pause = FIRST_PAUSE;
            loop {
                let look_at = Instant::now() + pause;
                let until = deadline.map_or(look_at, |deadline| deadline.min(look_at));
                match wait(oneshot, Some(until)) {
                    Err(WaitError::TimedOut) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
                    result => return result,
                }
                if self.is_forked() {
                    return wait(oneshot, deadline);
                }
                if self.is_cycle(&ops, waiter, target.now()) && !oneshot.is_done() {
                    return Err(WaitError::WouldDeadlock(Deadlock::new(frame::running_op(self), (target.describe)())));
                }
                pause = LAST_PAUSE.min(2 * pause);
            }
        })
    }

    /// Whether `target` cannot complete before the operations `ops`, which run on this thread, and this thread is to end that:
    /// it is the youngest of the waiters in between, or its wait has a time limit.
    fn is_cycle(&self, ops: &[NonNull<()>], waiter: &Waiter<'_>, target: NonNull<()>) -> bool {
        // Before operations are found to be incomplete.
        let _pinned = epoch::pin();
        // SAFETY: (1): they run on this thread.
        let ahead = unsafe { incomplete(ops) }.map(|op| (op, 0)).collect();
        // The number of each waiter that the walk passes, and the step before it; step 0 is this thread.
        let mut steps = vec![(waiter.number(), 0)];
        let mut cycle = Vec::new();
        let look = |op: &Op<Task>, from: usize, ahead: &mut Ahead<Task>| {
            let Some(task) = identity(op) else { return false };
            if task == target {
                let mut step = from;
                while step != 0 {
                    cycle.push(steps[step].0);
                    step = steps[step].1;
                }
                return true;
            }
            self.waiters.each_for(task, |number, ops| {
                // SAFETY: (1): `ops` run on the thread of a waiter that is in the list, so their functions have not returned.
                ahead.extend(unsafe { incomplete(ops) }.map(|op| (op, steps.len())));
                steps.push((number, from));
            });
            false
        };
        // SAFETY: (1): all of them were found to be incomplete since this thread was pinned.
        let found = unsafe { walk_blocked(ahead, MAX_VISITED, look) };
        // Others do not follow a wait with a time limit, so it ends the cycle itself.
        let ends_it = waiter.is_timed() || cycle.iter().all(|&number| number < waiter.number());
        found && ends_it && self.waiters.all_wait(&cycle)
    }

    /// Whether `target` cannot complete before the ready operation `op`, which this thread owns, as far as a short walk finds.
    pub(super) fn leads_to(&self, op: &OpRef<Task>, target: NonNull<()>) -> bool {
        // Before operations are found to be incomplete.
        let _pinned = epoch::pin();
        let mut ops = Ops::from_iter([NonNull::from(&**op).cast()]);
        // SAFETY: (1): this thread owns the operation.
        unsafe {
            op.with_membership(|membership| {
                let kin = membership.and_then(|membership| membership.family.as_ref());
                kin.into_iter().for_each(|share| share.kin().each_parent(&mut |parent| ops.push(parent)));
            });
        }
        // SAFETY: (1): this thread owns the operation, and its parents, or the functions around its scope, end after it.
        let ahead = unsafe { incomplete(&ops) }.map(|op| (op, 0)).collect();
        let look = |op: &Op<Task>, _: usize, ahead: &mut Ahead<Task>| {
            let Some(task) = identity(op) else { return false };
            // SAFETY: (1): `ops` run on the thread of a waiter that is in the list, so their functions have not returned.
            self.waiters.each_for(task, |_, ops| ahead.extend(unsafe { incomplete(ops) }.map(|op| (op, 0))));
            task == target
        };
        // SAFETY: (1): all of them were found to be incomplete since this thread was pinned.
        unsafe { walk_blocked(ahead, MAX_NEAR, look) }
    }
}
