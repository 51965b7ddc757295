//! A lane: workers that share one injector.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::{
    activity::Activity,
    injector::{Injector, Rest},
    loans::{LentPlace, Loans},
    priority::{DEFAULT_BAND, HIGHEST_BAND},
    sleep::{IdlePolicy, Sleep},
    worker::Worker,
};
#[cfg(any(raddle_loom, raddle_shuttle))]
use crate::sync::edge::{removed, step};
use crate::{
    sync::{
        Ordering::Relaxed,
        atomic::AtomicBool,
        deque::{Deque, Steal, Stealer},
        edge::{self, acquire, full_fence, release},
        hint,
    },
    testing::pause::{self, Point},
    tracker::OpRef,
};

/// The options of a lane.
#[derive(Clone, Debug)]
pub struct LaneOptions {
    /// The lane's name, used for its threads.
    pub name: &'static str,
    /// The number of workers, at least one.
    pub workers: usize,
    /// What a worker without work does.
    pub idle: IdlePolicy,
}

/// Workers that share one injector.
#[derive(Debug)]
pub struct Lane<T> {
    options: LaneOptions,
    injector: Injector<T>,
    stealers: Box<[Stealer<OpRef<T>>]>,
    sleep: Sleep,
    loans: Loans,
    activities: Box<[CachePadded<Activity>]>,
    ended: AtomicBool,
    recalled: AtomicBool,
}

impl<T> Lane<T> {
    /// Creates a lane and its workers. Each worker still needs a thread to run it.
    pub fn new(options: LaneOptions) -> (Arc<Self>, Vec<Worker<T>>) {
        let deques: Vec<_> = (0..options.workers).map(|_| Deque::new_fifo()).collect();
        let sleep = Sleep::new(options.workers, options.idle);
        let lane = Arc::new(Self {
            injector: Injector::default(),
            stealers: deques.iter().map(Deque::stealer).collect(),
            sleep,
            loans: Loans::default(),
            activities: deques.iter().map(|_| CachePadded::default()).collect(),
            ended: AtomicBool::new(false),
            recalled: AtomicBool::new(false),
            options,
        });
        let workers =
            deques.into_iter().enumerate().map(|(index, deque)| Worker::new(Arc::clone(&lane), index, deque)).collect();
        (lane, workers)
    }

    /// Returns what each worker has done.
    pub(crate) fn activities(&self) -> impl Iterator<Item = &Activity> {
        self.activities.iter().map(|activity| &**activity)
    }

    pub(super) fn activity(&self, worker: usize) -> &Activity {
        &self.activities[worker]
    }

    /// Returns the number of operations in the deque of each worker, as other threads see it.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    pub(crate) fn queued(&self) -> impl Iterator<Item = usize> {
        self.stealers.iter().map(Stealer::len)
    }

    /// Returns zeros, since the stealers of models do not report the length of a deque.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub(crate) fn queued(&self) -> impl Iterator<Item = usize> {
        self.stealers.iter().map(|_| 0)
    }

    /// Returns the number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.options.workers
    }

    /// Returns the lane's name.
    pub fn name(&self) -> &'static str {
        self.options.name
    }

    /// Returns what a worker without work does.
    pub fn idle(&self) -> IdlePolicy {
        self.options.idle
    }

    pub(super) fn injector(&self) -> &Injector<T> {
        &self.injector
    }

    /// Returns the injector, for models.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub fn injector_for_models(&self) -> &Injector<T> {
        &self.injector
    }

    pub(super) fn stealers(&self) -> &[Stealer<OpRef<T>>] {
        &self.stealers
    }

    /// Returns the lane's event count.
    pub fn sleep(&self) -> &Sleep {
        &self.sleep
    }

    pub(super) fn loans(&self) -> &Loans {
        &self.loans
    }

    /// Borrows a worker's place for the calling function, which has no worker. Returns `None` if all places are lent.
    #[must_use]
    pub fn borrow_place(&self) -> Option<LentPlace> {
        self.loans.borrow(&self.sleep, self.options.workers)
    }

    /// Notes that a worker is asked to give way. Returns `false` if one has been asked and has yet to do so.
    pub fn ask_to_give_way(&self) -> bool {
        self.loans.ask()
    }

    /// Notes that a worker is about to give way for lent places. Returns whether others must, too.
    pub fn need_more_to_give_way(&self) -> bool {
        self.loans.answer(&self.sleep)
    }

    /// Gives a [borrowed](Self::borrow_place) place back.
    pub fn give_place_back(&self) {
        self.loans.give_back();
    }

    /// Injects a ready operation and notifies the workers. A worker also calls this if its deque cannot take the
    /// operation. An operation must enter an injector with several poppers at most once: otherwise, a popper could
    /// mistake the operation's second stay there for the first (head of `injector`).
    #[inline]
    pub fn inject(&self, op: OpRef<T>) {
        #[cfg(any(raddle_loom, raddle_shuttle))]
        if self.options.workers > 1 && !removed(step::ENTERS_ONCE) {
            op.enter_once();
        }
        self.injector.push(op);
        pause::at(Point::InjectBeforeNotify);
        self.sleep.notify();
    }

    /// Injects a ready operation into the highest band and notifies the worker. Only for lanes with one worker and no
    /// other popper; an operation may enter such a lane again.
    pub fn inject_first(&self, op: OpRef<T>) {
        debug_assert_eq!(self.options.workers, 1);
        self.injector.push_first(op);
        pause::at(Point::InjectBeforeNotify);
        self.sleep.notify();
    }

    /// Injects a ready operation from a thread that runs none of the lane's workers, or whose worker cannot take the
    /// operation now.
    #[inline(never)]
    pub fn inject_from_outside(&self, op: OpRef<T>) {
        // The inbox is seldom empty while operations queue up, and almost always empty while the workers keep up.
        if self.injector.is_inbox_empty() {
            self.sleep.report_contention();
        }
        self.inject(op);
    }

    /// Lets the calling thread wait for the lane's operations; `core` is the one on which it goes on, if that is known.
    /// If the lane has work, wakes its workers in timed parks, which may have yielded their cores to this thread.
    pub fn begin_wait(&self, core: Option<usize>) {
        core.into_iter().for_each(|core| self.sleep.note_waiter(core));
        if self.has_work() {
            self.sleep.wake_yielded();
        }
    }

    /// Takes a ready operation, for a thread that is not running any of the lane's workers. The operation must not
    /// enter the lane again.
    pub fn take(&self) -> Option<OpRef<T>> {
        let highest = || self.injector.highest().filter(|&band| band > DEFAULT_BAND);
        while let Some(band) = highest() {
            if let Some(op) = self.pop(band) {
                return Some(op);
            }
        }
        if let Some(op) = self.pop(DEFAULT_BAND).or_else(|| self.stealers.iter().find_map(steal)) {
            return Some(op);
        }
        while let Some(band) = self.injector.highest() {
            if let Some(op) = self.pop(band) {
                return Some(op);
            }
        }
        None
    }

    /// Pops one operation from a band of the injector.
    fn pop(&self, band: u8) -> Option<OpRef<T>> {
        let (mut chain, rest) = self.injector.pop(band, 1)?;
        if rest == Rest::Published {
            // The pop had hidden the rest from workers that were about to sleep.
            self.sleep.notify();
        }
        chain.next()
    }

    /// Returns a value if the lane seems to have nothing to run and no worker seems to be running anything. If a second
    /// call returns the same value, the lane had nothing to run and no worker was running anything at some moment
    /// between the two calls.
    pub fn idle_since(&self) -> Option<usize> {
        // The queues are checked first, since a worker counts its `find` before it takes an operation away.
        if self.has_work() {
            return None;
        }
        // A snapshot: an operation may be missed on a machine that delays the store of a count until after the
        // operation is taken.
        full_fence(edge::idle::SNAPSHOT);
        self.sleep.idle_since()
    }

    /// Whether an operation appears to be available.
    pub(crate) fn has_work(&self) -> bool {
        !self.injector.is_empty() || self.stealers.iter().any(|stealer| !stealer.is_empty())
    }

    /// Recalls the lane's workers: a search that finds nothing then ends without an operation.
    pub(crate) fn recall(&self) {
        // Relaxed: the wake-up makes a parked worker check again. The lock of `Aside` decides whether a worker leaves.
        self.recalled.store(true, Relaxed);
        self.sleep.wake_all();
    }

    /// Undoes a [recall](Self::recall).
    pub(crate) fn resume(&self) {
        // Relaxed: as for `recall`.
        self.recalled.store(false, Relaxed);
    }

    /// Whether the workers are recalled.
    pub(crate) fn is_recalled(&self) -> bool {
        // Relaxed: as for `recall`.
        self.recalled.load(Relaxed)
    }

    /// Whether a search that finds nothing must end, because the lane has ended or the workers are recalled.
    pub(super) fn ends_searches(&self) -> bool {
        self.has_ended() || self.is_recalled()
    }

    /// Whether operations wait in the highest band.
    pub(crate) fn has_first(&self) -> bool {
        self.injector.highest() == Some(HIGHEST_BAND)
    }

    /// Ends the lane, and with it the searches of its workers. May be called only when no operation is left.
    pub fn end(&self) {
        self.ended.store(true, release(edge::ended::END));
        self.sleep.wake_all();
    }

    /// Ends the lane in a forked child, whose only thread needs no wake-up.
    pub fn end_in_child(&self) {
        // Relaxed: there is no other thread.
        self.ended.store(true, Relaxed);
    }

    /// Whether the lane has [ended](Self::end).
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(acquire(edge::ended::SEEN))
    }
}

/// Steals one operation from a deque.
fn steal<T>(stealer: &Stealer<OpRef<T>>) -> Option<OpRef<T>> {
    loop {
        match stealer.steal() {
            Steal::Success(op) => return Some(op),
            Steal::Empty => return None,
            Steal::Retry => hint::spin_loop(),
        }
    }
}
