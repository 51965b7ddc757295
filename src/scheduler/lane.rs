//! A lane: workers that share one injector.

use std::sync::Arc;

use super::{
    injector::Injector,
    sleep::{IdlePolicy, Sleep},
    worker::Worker,
};
#[cfg(any(raddle_loom, raddle_shuttle))]
use crate::testing::weaken::{Step, removed};
use crate::{
    sync::{
        Ordering::{Acquire, Relaxed, Release},
        atomic::AtomicBool,
        deque::{self, Stealer},
    },
    testing::pause::{self, Point},
    tracker::OpRef,
};

/// How a lane is made.
#[derive(Clone, Debug)]
pub struct LaneOptions {
    /// The lane's name, for its threads.
    pub name: &'static str,
    /// Workers, at least one.
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
    ended: AtomicBool,
}

impl<T> Lane<T> {
    /// A lane and its workers, which threads still have to carry.
    pub fn new(options: LaneOptions) -> (Arc<Self>, Vec<Worker<T>>) {
        let deques: Vec<_> = (0..options.workers).map(|_| deque::Worker::new_fifo()).collect();
        let sleep = Sleep::new(options.workers, options.idle);
        let lane = Arc::new(Self {
            injector: Injector::default(),
            stealers: deques.iter().map(deque::Worker::stealer).collect(),
            sleep,
            ended: AtomicBool::new(false),
            options,
        });
        let workers =
            deques.into_iter().enumerate().map(|(index, deque)| Worker::new(Arc::clone(&lane), index, deque)).collect();
        (lane, workers)
    }

    /// The lane's name.
    pub fn name(&self) -> &'static str {
        self.options.name
    }

    /// What a worker without work does.
    pub fn idle(&self) -> IdlePolicy {
        self.options.idle
    }

    pub(super) fn injector(&self) -> &Injector<T> {
        &self.injector
    }

    /// The injector, for models.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub fn injector_for_models(&self) -> &Injector<T> {
        &self.injector
    }

    pub(super) fn stealers(&self) -> &[Stealer<OpRef<T>>] {
        &self.stealers
    }

    /// Who sleeps.
    pub fn sleep(&self) -> &Sleep {
        &self.sleep
    }

    /// Puts a ready operation in from outside and sees to it that a worker takes it. An operation enters a lane of several
    /// workers once, or their poppers would take it for what it was (`Injector`).
    #[inline]
    pub fn inject(&self, op: OpRef<T>) {
        #[cfg(any(raddle_loom, raddle_shuttle))]
        if self.options.workers > 1 && !removed(Step::EntersOnce) {
            op.enter_once();
        }
        self.injector.push(op);
        pause::at(Point::InjectBeforeNotify);
        self.sleep.notify();
    }

    /// As [`inject`](Self::inject), before all that is there. For lanes of one worker, to which an operation may come again.
    pub fn inject_first(&self, op: OpRef<T>) {
        debug_assert_eq!(self.options.workers, 1);
        self.injector.push_first(op);
        pause::at(Point::InjectBeforeNotify);
        self.sleep.notify();
    }

    /// As [`inject`](Self::inject), by a thread that carries none of the lane's workers.
    #[inline(never)]
    pub fn inject_from_outside(&self, op: OpRef<T>) {
        // Only now and then, and always if the workers are quick.
        if self.injector.is_inbox_empty() {
            self.sleep.report_contention();
        }
        self.inject(op);
    }

    /// The caller, which makes work, is about to sleep: who has made way for it is to look for work.
    pub fn wake_yielded(&self) {
        if self.has_work() {
            self.sleep.wake_yielded();
        }
    }

    /// Whether there seems to be something to take.
    pub(super) fn has_work(&self) -> bool {
        !self.injector.is_empty() || self.stealers.iter().any(|stealer| !stealer.is_empty())
    }

    /// Lets every worker end. To be called when no operation is left.
    pub fn end(&self) {
        // Release: what was done before is over for the workers; pairs with `has_ended`.
        self.ended.store(true, Release);
        self.sleep.wake_all();
    }

    /// Lets the worker end that has forked, in the child, where there is no other.
    pub fn end_in_child(&self) {
        // Relaxed: there is no other thread.
        self.ended.store(true, Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        // Acquire: pairs with `end`.
        self.ended.load(Acquire)
    }
}
