//! Limits on pending operations: which pushes are held back when an engine or group is full, and what the pushing
//! threads do while waiting.
//!
//! An engine, and each group, may have a limit on its [`PendingOps`]. Only pushes from outside are held back. Pushes by
//! program code that an engine calls are never held back, since room may depend on the progress of that code. Such code
//! runs in a [`frame`], on a thread started by an engine, in a device operation's function or a kernel, or inside a
//! push that is itself held back.
//!
//! # A push that is held back
//!
//! [`hold_back`] repeatedly acts on the first of these cases that applies, until the push continues or is refused. The
//! documentation of [`EngineBuilder::max_pending`](crate::EngineBuilder::max_pending) numbers cases 3 to 5 from 1 to 3.
//!
//! 1. A shutdown has begun, or this is a forked child: the push is refused.
//! 2. There is room: the push continues. If there is no room and the engine is stopped, the push is refused.
//! 3. An operation in a lane of workers is ready, and the thread's stack has room for it: the thread runs it in a ready
//!    loop. The thread's stack has no frame, so no other operation is beneath this one. If the operation waits, it
//!    blocks the thread, as an eager operation does. It must therefore not wait for anything that this thread holds.
//! 4. No operation is ready or running: the push continues despite the lack of room, since the pending operations are
//!    waiting for something that only the program can do, perhaps on this thread.
//! 5. Otherwise, the thread sleeps until there is room ([`PendingOps::wait_for_room`]), or until a time limit expires.
//!    This time limit doubles with each sleep, up to a maximum. It is needed because no event reports that nothing is
//!    running.
//!
//! # What runs
//!
//! A thread that pushes from outside is counted in `pushing` until its operation is in the queues and, if ready, in a
//! lane. Without this count, if the thread were suspended during the push, operations behind the pushed one would
//! appear to wait for nothing. For the same reason, a thread that completes an operation from outside is counted in
//! `running`.
//!
//! A worker of a lane counts as running an operation unless its last search found nothing
//! ([`Lane::idle_since`](crate::scheduler::Lane::idle_since)). Threads that run operations without a worker are counted
//! in `running`: those that have handed over their worker, and program threads inside a ready loop. While such a thread
//! sleeps in a wait for an engine, it is counted in `waiting` instead, since only the work for which it waits matters
//! then. A thread whose wait has just ended may still be counted in `waiting`. Therefore, if any threads are waiting,
//! two checks separated by a pause must both find nothing running. A GPU lane's thread waits for operations only when
//! the lane has no work in flight, and only then records that a search found nothing. A lane with work in flight
//! therefore counts as running.
//!
//! # How far a limit is exceeded
//!
//! A count is a sum over shards, taken under a lock. To count less often, a thread that finds room in an engine takes a
//! [credit](CREDIT) of at most half of that room, up to [`MAX_CREDIT`] operations. The thread counts again when the
//! credit is used up. A single pushing thread therefore exceeds the limit only in case 4. Each of several threads may
//! add at most `MAX_CREDIT` operations to the excess, or one operation if it has no credit.
//!
//! # Who may touch what
//!
//! * `CREDIT`, `HOLDING`, `PUSHING`: only the thread that owns them.
//!
//! This module has no edges of its own: the state that threads share is in [`Bounds`](crate::context::bounds::Bounds).

use std::{
    cell::Cell,
    future::Future,
    iter,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use crate::{
    context::{
        ready_loop,
        running::{self, Running},
    },
    engine::core::Core,
    error::push_error::PushError,
    notify::{
        pending::{PendingOps, UNLIMITED, slack},
        waiters::{Awaits, WaiterKind},
        wakers::{self, WakerKey},
    },
    op::{frame, group_core::GroupCore, no_wait},
    sync::{
        Ordering::Relaxed,
        edge::{removed, step},
        lock, thread_static,
    },
    threads::thread_pool::is_engine_thread,
    wait::{self, cycles},
};

/// The maximum number of operations that a thread pushes without counting again. Measured: at 32, the cost per push of
/// summing the shards is less than that of the rest of the check.
const MAX_CREDIT: u64 = 32;

/// The first and the longest time limit for the sleep of a held-back push. The time limit doubles with each sleep. Not
/// tuned: the first is the default time for which workers search before sleeping; with the longest, wake-ups use no
/// measurable CPU time.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(10)];

// The engine in which this thread last found room, and the number of operations that it may push there before counting
// again.
thread_static!(static CREDIT: Cell<(usize, u64)> = Cell::new((0, 0)));

// Whether this thread is counted in `pushing` of an engine.
thread_static!(static PUSHING: Cell<bool> = Cell::new(false));

// Whether a push is held back on this thread.
thread_static!(static HOLDING: Cell<bool> = Cell::new(false));

/// Whether the calling thread's pushes may be held back: no engine has called the code that the thread is running.
fn is_outside() -> bool {
    !frame::in_program() && !is_engine_thread() && !no_wait::in_device_function() && !HOLDING.with(Cell::get)
}

/// Returns the counts that include an operation of `group`, from the innermost group to the engine.
fn counts<'a>(core: &'a Core, group: Option<&'a Arc<GroupCore>>) -> impl Iterator<Item = &'a PendingOps> {
    group.into_iter().flat_map(|group| group.counts()).chain(iter::once(&core.pending))
}

/// Returns the first count without room for one operation plus the number that `slack` returns for the count's limit,
/// along with the count's position in [`counts`].
fn first_full<'a>(
    core: &'a Core,
    group: Option<&'a Arc<GroupCore>>,
    slack: impl Fn(u64) -> u64,
) -> Option<(usize, &'a PendingOps)> {
    counts(core, group).enumerate().find(|(_, count)| !count.has_room(slack(count.limit())))
}

impl Core {
    /// Limits the number of the engine's pending operations. Called before the engine has a handle.
    pub(crate) fn limit(&self, limit: u64) {
        self.bounds.begin_use();
        // No thread waits yet.
        let _ = self.pending.set_limit(limit);
    }
}

/// Limits the number of a group's pending operations.
pub(crate) fn limit_group(core: &Arc<Core>, group: &GroupCore, limit: u64) {
    if core.is_forked() {
        return;
    }
    core.bounds.begin_use();
    if let Some(wakers) = group.pending().set_limit(limit) {
        core.wake(wakers);
    }
}

/// Returns whether a push whose operation was already counted may continue. If so and the calling thread is
/// outside, counts the thread in `pushing`.
pub(crate) fn may_push_counted(core: &Core) -> bool {
    if !is_outside() {
        return true;
    }
    begin_push(core);
    let (tag, credit) = CREDIT.with(Cell::get);
    if tag == core.tag() && credit > 0 {
        CREDIT.with(|cell| cell.set((tag, credit - 1)));
        return true;
    }
    // The operation itself was already counted.
    let (count, limit) = (core.pending.count().saturating_sub(1), core.pending.limit());
    if count >= limit {
        end_push(core);
        return false;
    }
    // Takes only half of the remaining room, since other threads also push.
    let credit = ((limit - count - 1) / 2).min(MAX_CREDIT);
    CREDIT.with(|cell| cell.set((core.tag(), credit)));
    true
}

/// Counts the calling thread in `pushing`, if it is outside.
pub(crate) fn begin_push(core: &Core) {
    if is_outside() && !PUSHING.with(|cell| cell.replace(true)) {
        // Relaxed: see `idle_since`.
        core.bounds.pushing().fetch_add(1, Relaxed);
    }
}

/// Takes the calling thread out of `pushing` if it is counted there, unless it is running program code called by an
/// engine.
#[cold]
#[inline(never)]
pub(crate) fn end_push(core: &Core) {
    if PUSHING.with(Cell::get) && !frame::in_program() {
        PUSHING.with(|cell| cell.set(false));
        // Relaxed: see `idle_since`.
        core.bounds.pushing().fetch_sub(1, Relaxed);
    }
}

/// If the calling thread is outside, [holds back](hold_back) an operation of `group` until the group, its
/// enclosing groups and the engine have room.
pub(crate) fn admit(core: &Arc<Core>, group: &Arc<GroupCore>) -> Result<(), PushError> {
    core.live()?;
    let is_limited = core.bounds.are_in_use() && counts(core, Some(group)).any(|count| count.limit() != UNLIMITED);
    if is_limited && is_outside() {
        hold_back(core, Some(group))?;
        begin_push(core);
    }
    Ok(())
}

/// Returns an error if the calling thread is outside and its push of an operation of `group` would be held back or
/// refused now. Also returns an error in a forked child.
pub(crate) fn check(core: &Core, group: Option<&Arc<GroupCore>>) -> Result<(), PushError> {
    core.live()?;
    if !is_outside() {
        // The push itself decides.
        return Ok(());
    }
    if !core.is_open() {
        return Err(PushError::ShutDown);
    }
    if first_full(core, group, |_| 0).is_some() { Err(PushError::Full) } else { Ok(()) }
}

/// Holds a push back until it can continue or is refused; see the head of this module.
pub(crate) fn hold_back(core: &Arc<Core>, group: Option<&Arc<GroupCore>>) -> Result<(), PushError> {
    struct Held;
    impl Drop for Held {
        fn drop(&mut self) {
            HOLDING.with(|cell| cell.set(false));
        }
    }
    HOLDING.with(|cell| cell.set(true));
    let _held = Held;
    let since = Instant::now();
    let (mut running, mut pause, mut was_still) = (None, PAUSES[0], false);
    // A thread that has run operations runs a few more than necessary, in order to count less often and leave room
    // for futures.
    let mut has_run = false;
    loop {
        // An operation run here may have forked the process.
        core.live()?;
        if !core.is_open() {
            return Err(PushError::ShutDown);
        }
        if first_full(core, group, |limit| if has_run { slack(limit) } else { 0 }).is_none() {
            return Ok(());
        }
        if core.is_stopped() {
            return Err(PushError::Full);
        }
        if core.threads().have_work() && !ready_loop::is_stack_short(core) {
            // Counted before the operation is taken, so that other threads see either the operation in a lane or
            // this thread in `running`.
            running.get_or_insert_with(|| run_without_worker(core));
            if let Some(op) = core.threads().take_ready() {
                core.helped.add_one();
                core.run_taken(op);
                (has_run, was_still, pause) = (true, false, PAUSES[0]);
            }
            continue;
        }
        running = None;
        let Some((_, full)) = first_full(core, group, |_| 0) else { return Ok(()) };
        let draws = core.draws_if_none_is_due();
        match stillness(core) {
            _ if draws.is_none() || draws != core.draws_if_none_is_due() => was_still = false,
            Stillness::Still => return Ok(()),
            Stillness::Perhaps if was_still => return Ok(()),
            stillness => was_still = stillness == Stillness::Perhaps,
        }
        core.threads().begin_wait();
        let has_room = || first_full(core, group, |_| 0).is_none();
        let wait = || full.wait_for_room(Some(Instant::now() + pause));
        wait::sleep_listed(core, WaiterKind::Refusable, Awaits::Room, None, since, &has_room, |_| wait());
        pause = (2 * pause).min(PAUSES[1]);
    }
}

/// Whether no lane has work and nothing is running. `again` says whether the previous check, some time ago,
/// returned `true`.
pub(crate) fn is_still(core: &Core, again: bool) -> bool {
    match stillness(core) {
        Stillness::Still => true,
        Stillness::Perhaps => again || cycles::all_wait_still(core),
        Stillness::Busy => false,
    }
}

/// Returns whether anything is ready or running.
fn stillness(core: &Core) -> Stillness {
    // Two equal results are needed: a single check may miss an operation that moves while the check runs, but two
    // checks that agree do not.
    match idle_since(core) {
        Some(idle) if idle_since(core) == Some(idle) => {}
        _ => return Stillness::Busy,
    }
    // Relaxed: a snapshot.
    if core.bounds.waiting.load(Relaxed) > 0 { Stillness::Perhaps } else { Stillness::Still }
}

/// Returns `None` if anything is ready or running, and otherwise a value that changes each time a worker searches
/// for work.
fn idle_since(core: &Core) -> Option<usize> {
    let workers = core.threads().lanes().iter().map(|lane| lane.idle_since());
    let on_devices = core.gpus().lanes().iter().map(|lane| {
        // Relaxed: a snapshot. No operation runs on a lane that no push has used.
        let starts = lane.lane.has_work() || lane.started.load(Relaxed);
        if starts { lane.lane.idle_since() } else { Some(0) }
    });
    let idle = workers.chain(on_devices).try_fold(0usize, |sum, idle| Some(sum.wrapping_add(idle?)))?;
    // Checked after the lanes: a thread is counted before it takes or creates an operation.
    (!core.bounds.are_threads_at_work()).then_some(idle)
}

/// Wakes the threads that wait for room in the engine, and all futures that wait for room, since a shutdown has
/// begun.
pub(crate) fn end_waits_for_room(core: &Arc<Core>) {
    // Threads that wait for room in a group time out and check again.
    core.pending.interrupt_waits_for_room();
    // The lock is taken even if no limit is known here, since a group may be given its limit concurrently: a future
    // that registers after this point finds the shutdown.
    let held = lock(&core.bounds.held).take_up_to(u64::MAX);
    if let Some(wakers) = held {
        core.wake(wakers);
    }
}

// -------------------------------------------------------------------------------------------- what runs ----

/// If limits may be in use, counts the calling thread in `running` until the returned value is dropped, unless it
/// is already counted there. Engine threads are not counted here, since their workers' state shows whether they are
/// running anything.
pub(crate) fn run_without_worker(core: &Arc<Core>) -> Option<Running<'_>> {
    let is_counted = || running::with_runs(|runs| runs.iter().any(|counted| Arc::ptr_eq(counted, core))) == Some(true);
    let counts = core.bounds.are_in_use() && !is_engine_thread() && !is_counted() && running::begin_running(core);
    // The thread does not count as pushing while it runs operations, since these may wait.
    end_push(core);
    counts.then(|| Running(core))
}

/// Whether anything is ready or running.
#[derive(PartialEq, Eq)]
enum Stillness {
    Busy,
    /// Nothing was found ready or running, but a thread may be about to continue after a wait.
    Perhaps,
    Still,
}

// -------------------------------------------------------------------------------------------------- futures ----

/// A future that resolves when there is room for one operation. A poll does not block until there is room.
pub(crate) struct WhenRoom {
    core: Arc<Core>,
    group: Option<Arc<GroupCore>>,
    /// The position in [`counts`] of the count in which the future waits for room, and the future's key there.
    at: Option<(usize, WakerKey)>,
    /// The future's key in `Bounds::held`.
    held: WakerKey,
}

impl WhenRoom {
    pub(crate) fn new(core: &Arc<Core>, group: Option<&Arc<GroupCore>>) -> Self {
        Self { core: Arc::clone(core), group: group.cloned(), at: None, held: WakerKey::default() }
    }

    /// Ends the wait for room in one count and lets the next future check that count.
    fn leave_count(&mut self) {
        let Some((at, mut key)) = self.at.take() else { return };
        let wakers = counts(&self.core, self.group.as_ref()).nth(at).and_then(|count| count.end_room(&mut key));
        if let Some(wakers) = wakers {
            self.core.wake(wakers);
        }
    }

    fn poll_counts(&mut self, waker: &Waker) -> Poll<Result<(), PushError>> {
        loop {
            if !is_outside() {
                return Poll::Ready(Ok(()));
            }
            if !self.core.is_open() {
                return Poll::Ready(Err(PushError::ShutDown));
            }
            let full = first_full(&self.core, self.group.as_ref(), |_| 0).map(|(at, _)| at);
            if self.at.as_ref().map(|(at, _)| *at) != full {
                self.leave_count();
            }
            let Some(full) = full else { return Poll::Ready(Ok(())) };
            let (_, key) = self.at.get_or_insert_with(|| (full, WakerKey::default()));
            let polled = counts(&self.core, self.group.as_ref()).nth(full).map(|count| count.poll_room(key, waker));
            if polled != Some(Poll::Pending) {
                continue;
            }
            let _: Poll<()> = wakers::poll(&self.core.bounds.held, &mut self.held, waker, |held| Err(held));
            // A shutdown that began before this future was registered may not have woken it. If so, the lock, which
            // that shutdown took before the registration, hands over the phase.
            return if self.core.is_open() || removed(step::ROOM_LOOKS_FOR_SHUTDOWN) {
                Poll::Pending
            } else {
                Poll::Ready(Err(PushError::ShutDown))
            };
        }
    }

    fn end(&mut self) {
        self.leave_count();
        wakers::leave(&self.core.bounds.held, &mut self.held, |held| Some(held));
    }
}

impl Future for WhenRoom {
    type Output = Result<(), PushError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        wait::catch_up_and_go_on();
        // Checked last, since a deferred operation run on this thread may have forked the process.
        self.core.live()?;
        let polled = self.poll_counts(cx.waker());
        if polled.is_ready() {
            self.end();
        }
        polled
    }
}

impl Drop for WhenRoom {
    fn drop(&mut self) {
        if !self.core.is_forked() {
            self.end();
        }
    }
}
