//! Shuffling, in which an engine starts its ready operations in random order.
//!
//! Such an engine puts ready operations into its [`Shuffler`] instead of their lanes. A thread draws them one at a
//! time.
//!
//! * With several workers, it draws after a random delay, and only if no operation seems to be waiting in a lane. A
//!   worker that has ended an operation mostly draws the next one itself, since a hand-over to the thread costs far
//!   more than most operations. Operations therefore overlap where their accesses permit, and start in an unusual order
//!   and sometimes at unusual times.
//! * With one worker, the order of the draws normally depends only on the seed and the program. The thread draws when
//!   nothing is running and the program seems to have pushed everything that it can, since the set of ready operations
//!   then does not depend on which thread was faster.
//!
//! The engine's own operations, except polls of futures, are not shuffled, nor are eager operations that run on the
//! pushing thread.
//!
//! A function may wait for another operation by means unknown to the engine. The thread therefore also draws if the
//! right moment has not come within [`LONGEST_WAIT`].

use std::{
    io,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use crate::{
    engine::core::Core,
    group::room,
    notify::waiters::waiters,
    op::{
        frame,
        spec::POLL,
        task::{Task, flag},
    },
    threads::shuffler::Shuffler,
    tracker::OpRef,
    wait::{cycles, in_place},
};

/// The maximum delay of a draw if there are several workers. Not tuned: about as long as a few hundred pushes take.
const LONGEST_DELAY: Duration = Duration::from_micros(100);

/// One in this many draws is left to the thread when a worker has ended an operation. Not tuned: such a draw takes
/// about 100 µs, so an operation takes a few microseconds more on average.
const LEFT: u64 = 32;

/// The maximum time for which the thread waits for the right moment. Not tuned: longer than most functions take, but
/// hardly noticeable to a person.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// The number of checks of the engine between which the thread only yields. Not tuned: they take about as long as
/// waking a thread.
const QUICK_CHECKS: u32 = 50;

/// The time between two later checks. Not tuned: about as long as waking a thread takes.
const PAUSE: Duration = Duration::from_micros(20);

impl Core {
    /// Returns the number of draws so far, or `None` if a ready operation has yet to be drawn or to enter its lane. If
    /// two calls return the same number, no operation was waiting to be drawn between them.
    pub(crate) fn draws_if_none_is_due(&self) -> Option<u64> {
        self.shuffler().map_or(Some(0), |shuffler| shuffler.draws_if_empty())
    }

    /// Records, if the engine shuffles, that the calling thread, which runs no program code for an engine, is pushing
    /// or has ended a wait.
    pub(crate) fn note_outside_activity(&self) {
        if let Some(shuffler) = self.shuffler() {
            shuffler.note_active();
        }
    }
}

/// Starts the drawing thread if this engine shuffles.
pub(crate) fn begin(core: &Arc<Core>) -> io::Result<()> {
    let Some(shuffler) = core.shuffler() else { return Ok(()) };
    let (weak, shuffler) = (Arc::downgrade(core), Arc::clone(shuffler));
    let run = move || run(&weak, &shuffler);
    core.threads().spawn_aside("raddle-shuffle".to_owned(), run)
}

/// Ends the drawing thread. Called when no program operation is left, before the lanes end.
pub(crate) fn end(core: &Core) {
    for entry in core.shuffler().into_iter().flat_map(|shuffler| shuffler.end()) {
        let op = entry.pop_entry();
        debug_assert!(op.is_none(), "an operation was not drawn");
    }
}

/// Records that the calling thread is pushing, if the engine shuffles and the thread is not running program code
/// for an engine.
#[inline]
pub(super) fn note_push(core: &Core) {
    if let Some(shuffler) = core.shuffler().filter(|_| !frame::in_program()) {
        shuffler.note_active();
    }
}

/// Adds a ready operation to those to be drawn. Returns the operation if it must not be shuffled.
#[inline]
pub(crate) fn draw(core: &Core, op: OpRef<Task>) -> Option<OpRef<Task>> {
    if core.shuffles() { draw_slowly(core, op) } else { Some(op) }
}

/// [`draw`] on an engine with a shuffler.
#[cold]
fn draw_slowly(core: &Core, op: OpRef<Task>) -> Option<OpRef<Task>> {
    let (Some(shuffler), Some(id)) = (core.shuffler(), op.task().op_id()) else { return Some(op) };
    if op.task().has(flag::INTERNAL) && op.task().name().as_str() != POLL {
        return Some(op);
    }
    if core.gpus.is_empty() {
        in_place::publish(&op);
    }
    shuffler.put(id.0, op);
    None
}

/// Draws an operation after a worker has ended one, if the engine shuffles and has several workers.
#[inline]
pub(super) fn draw_next(core: &Arc<Core>) {
    if core.shuffles() {
        draw_next_slowly(core);
    }
}

/// [`draw_next`] on an engine with a shuffler.
#[cold]
fn draw_next_slowly(core: &Arc<Core>) {
    let may_draw = |shuffler: &&Arc<Shuffler<Task>>| !shuffler.has_one_worker() && !shuffler.is_one_in(LEFT);
    if let Some(shuffler) = core.shuffler().filter(may_draw) {
        shuffler.draw(|op| core.schedule_drawn(op));
    }
}

/// Draws an engine's operations until the engine ends.
fn run(core: &Weak<Core>, shuffler: &Shuffler<Task>) {
    // The time at which the thread first found an operation to draw after the last draw.
    let mut since = None;
    let (mut was_still, mut checks) = (false, 0);
    while shuffler.wait() {
        if !shuffler.has_one_worker() {
            thread::sleep(shuffler.delay(LONGEST_DELAY));
        }
        let waiting_since = *since.get_or_insert_with(Instant::now);
        let Some(core) = core.upgrade() else { return };
        let may_draw = if shuffler.has_one_worker() {
            let is_still =
                shuffler.is_program_still(waiters().outside(cycles::engine(&core))) && room::is_still(&core, was_still);
            // A second check finds operations that became ready just after the first check.
            std::mem::replace(&mut was_still, is_still) && is_still
        } else {
            !core.threads().have_work()
        };
        if may_draw || waiting_since.elapsed() >= LONGEST_WAIT {
            (since, was_still, checks) = (None, false, 0);
            shuffler.draw(|op| core.schedule_drawn(op));
        } else {
            drop(core);
            checks += 1;
            if checks <= QUICK_CHECKS { thread::yield_now() } else { thread::sleep(PAUSE) }
        }
    }
}
