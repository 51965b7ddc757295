//! Workers laid aside while their engine is stopped, and the waiting functions that delay the stop.
//!
//! # States
//!
//! | state | workers | next |
//! |---|---|---|
//! | running | have threads | stopping, by [`request`](Aside::request) |
//! | stopping | are laid aside one by one while no function waits | stopped, when all are aside; running, by [`cancel`](Aside::cancel) |
//! | stopped | are aside | running, by [`cancel`](Aside::cancel); stopping, by [`take_one`](Aside::take_one) |
//!
//! # Who may touch what
//!
//! * The state: under the lock. No foreign code runs there, and no thread is started. The thread list's lock is taken
//!   before this one, and the spare threads' lock after it.
//! * A worker that was aside: the thread that has [taken](Aside::take) it.
//! * A worker that has never had a thread: the thread that [enlists](Aside::enlist) it.
//!
//! # Edges
//!
//! The lock hands over the workers and everything that their threads did with them. It also orders the laying aside of
//! a worker and the beginning of a function's wait: either the worker's thread sees that a function waits, or the
//! function finds the worker.

use std::{mem, time::Instant};

use crate::sync::{
    Condvar, Mutex,
    edge::{removed, step},
    lock, wait_until,
};

/// Workers `W` without a thread.
pub struct Aside<W> {
    state: Mutex<AsideState<W>>,
    changed: Condvar,
}

struct AsideState<W> {
    /// Whether a stop has been requested and not cancelled since.
    requested: bool,
    /// The number of functions that have given their worker away and have neither returned nor received a worker since,
    /// plus the number of threads running other program code without a worker.
    waiting: usize,
    /// The number of workers that a stop must lay aside.
    enlisted: usize,
    workers: Vec<W>,
}

/// How a stop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All workers are aside.
    All,
    /// The stop was cancelled.
    Cancelled,
    /// The deadline has passed.
    TimedOut,
}

/// The outcome of an attempt to lay a worker aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Laid {
    /// The worker is aside.
    Aside,
    /// The stop was cancelled.
    NotWanted,
    /// A function waits, or the closure passed to [`lay`](Aside::lay) returned no worker.
    NotYet,
}

impl<W> std::fmt::Debug for Aside<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aside").field("workers", &lock(&self.state).workers.len()).finish_non_exhaustive()
    }
}

impl<W> Aside<W> {
    /// Creates the state of a running engine in which `enlisted` workers have or will have threads.
    pub fn new(enlisted: usize) -> Self {
        let state = AsideState { requested: false, waiting: 0, enlisted, workers: Vec::new() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Enlists a worker that has never had a thread. Returns the worker, to which the caller must give a thread. If a
    /// stop is requested and no function waits, lays the worker aside instead.
    pub fn enlist(&self, worker: W) -> Option<W> {
        let mut state = lock(&self.state);
        state.enlisted += 1;
        if state.requested && state.waiting == 0 {
            state.workers.push(worker);
            drop(state);
            self.changed.notify_all();
            return None;
        }
        Some(worker)
    }

    /// Removes an enlisted worker for which no thread could be started.
    pub fn discharge(&self) {
        lock(&self.state).enlisted -= 1;
        self.changed.notify_all();
    }

    /// Requests a stop. Calls `recall` if no function waits. Returns `false` if a stop was already requested.
    pub fn request(&self, recall: impl FnOnce()) -> bool {
        let mut state = lock(&self.state);
        if state.waiting == 0 {
            recall();
        }
        !mem::replace(&mut state.requested, true)
    }

    /// Cancels a stop and calls `f`, which must undo the effects of [`while_requested`](Self::while_requested) and
    /// `recall`. The caller must give threads to the workers that it [takes](Self::take).
    pub fn cancel(&self, f: impl FnOnce()) {
        let mut state = lock(&self.state);
        state.requested = false;
        f();
        drop(state);
        if !removed(step::START_ENDS_STOP) {
            self.changed.notify_all();
        }
    }

    /// Calls `f` if a stop is requested. The stop cannot be cancelled until `f` has returned.
    pub fn while_requested(&self, f: impl FnOnce()) {
        let state = lock(&self.state);
        if state.requested {
            f();
        }
    }

    /// Whether a stop has been requested and not cancelled since.
    pub fn is_requested(&self) -> bool {
        lock(&self.state).requested
    }

    /// Waits until all workers are aside, the stop is cancelled or the deadline has passed.
    pub fn wait(&self, deadline: Option<Instant>) -> Stopped {
        let mut state = lock(&self.state);
        while state.requested && state.workers.len() < state.enlisted {
            match wait_until(&self.changed, state, deadline) {
                Ok(again) => state = again,
                Err(_) => return Stopped::TimedOut,
            }
        }
        if state.requested { Stopped::All } else { Stopped::Cancelled }
    }

    /// Lays aside the worker that `take` returns, if a stop is requested and no function waits.
    pub fn lay(&self, take: impl FnOnce() -> Option<W>) -> Laid {
        let mut state = lock(&self.state);
        if !state.requested {
            return Laid::NotWanted;
        }
        if state.waiting > 0 && !removed(step::WAITING_KEEPS_WORKERS) {
            return Laid::NotYet;
        }
        let Some(worker) = take() else { return Laid::NotYet };
        state.workers.push(worker);
        drop(state);
        self.changed.notify_all();
        Laid::Aside
    }

    /// Takes the workers that are aside.
    pub fn take(&self) -> Vec<W> {
        mem::take(&mut lock(&self.state).workers)
    }

    /// Takes one of the workers that are aside: one for which `wanted` returns `true`, if any.
    pub fn take_one(&self, wanted: impl Fn(&W) -> bool) -> Option<W> {
        let mut state = lock(&self.state);
        let index = state.workers.iter().position(wanted)?;
        Some(state.workers.swap_remove(index))
    }

    /// Lays aside again workers that have been taken but could not be given a thread.
    pub fn put_back(&self, workers: Vec<W>) {
        lock(&self.state).workers.extend(workers);
        self.changed.notify_all();
    }

    /// Records that a function is waiting, having given its worker away. Takes and returns the workers that are aside,
    /// since the function may be waiting for what they would run. If a stop could proceed until now, calls `resume`,
    /// which must undo what `recall` has done.
    pub fn function_waits(&self, resume: impl FnOnce()) -> Vec<W> {
        let mut state = lock(&self.state);
        if state.requested && state.waiting == 0 {
            resume();
        }
        state.waiting += 1;
        if removed(step::WAITS_TAKE_UP) { Vec::new() } else { mem::take(&mut state.workers) }
    }

    /// Records that program code is running on a thread that has given its worker away. Records nothing if a stop is
    /// requested, since the stop waits for the thread itself. Returns whether the code was recorded.
    pub fn code_begins(&self) -> bool {
        let mut state = lock(&self.state);
        state.waiting += usize::from(!state.requested);
        !state.requested
    }

    /// Records that a function, or other code, that ran without a worker has returned or received one. Calls `recall`
    /// if a stop can proceed now.
    pub fn function_has_returned(&self, recall: impl FnOnce()) {
        let mut state = lock(&self.state);
        state.waiting -= 1;
        if state.requested && state.waiting == 0 {
            recall();
        }
    }
}
