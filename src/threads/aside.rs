//! Workers that are laid aside while their engine is stopped, and the functions that prevent this.
//!
//! # States
//!
//! | state | workers | next |
//! |---|---|---|
//! | running | have threads | stopping, by [`request`](Aside::request) |
//! | stopping | are laid aside one by one, as long as no function waits | stopped, when all are aside; running, by [`cancel`](Aside::cancel) |
//! | stopped | are aside | running, by [`cancel`](Aside::cancel) |
//!
//! # Who may touch what
//!
//! * The state: under the lock. No foreign code runs there, and no thread is started. The lock of the list of threads
//!   is taken before this one, and the lock of the spare threads after it.
//! * A worker that was aside: the thread that has [taken](Aside::take) it.
//!
//! # Edges
//!
//! The lock hands over the workers, and everything that their threads did with them. It also decides between a worker
//! that is laid aside and a function that begins to wait: the worker sees the function, or the function finds the
//! worker.

use std::{mem, time::Instant};

use crate::{
    sync::{Condvar, Mutex, lock, wait_until},
    testing::weaken::{Step, removed},
};

/// Workers `W` without a thread.
pub struct Aside<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
}

struct State<W> {
    /// Whether a stop was requested, and not cancelled since.
    requested: bool,
    /// The number of functions that have given their worker away and have neither returned nor received one since, and
    /// of threads on which other program code runs without a worker.
    waiting: usize,
    workers: Vec<W>,
}

/// How a stop has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All workers are aside.
    All,
    /// The stop was cancelled.
    Cancelled,
    /// The deadline has passed.
    TimedOut,
}

/// What has become of a worker that was to be laid aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Laid {
    /// The worker is aside.
    Aside,
    /// The stop was cancelled.
    NotWanted,
    /// A function waits, or the calling thread has no worker.
    NotYet,
}

impl<W> Default for Aside<W> {
    fn default() -> Self {
        let state = State { requested: false, waiting: 0, workers: Vec::new() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<W> std::fmt::Debug for Aside<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aside").field("workers", &lock(&self.state).workers.len()).finish_non_exhaustive()
    }
}

impl<W> Aside<W> {
    /// Requests a stop. Returns whether no stop had been requested before.
    pub fn request(&self) -> bool {
        !mem::replace(&mut lock(&self.state).requested, true)
    }

    /// Cancels a stop, and calls `f`, which undoes what [`while_requested`](Self::while_requested) has done. The caller
    /// must give threads to the workers that it [takes](Self::take).
    pub fn cancel(&self, f: impl FnOnce()) {
        let mut state = lock(&self.state);
        state.requested = false;
        f();
        drop(state);
        self.changed.notify_all();
    }

    /// Calls `f` if a stop is requested. The stop is not cancelled before `f` returns.
    pub fn while_requested(&self, f: impl FnOnce()) {
        let state = lock(&self.state);
        if state.requested {
            f();
        }
    }

    /// Whether a stop was requested, and not cancelled since.
    pub fn is_requested(&self) -> bool {
        lock(&self.state).requested
    }

    /// Waits until `all` workers are aside.
    pub fn wait_for(&self, all: usize, deadline: Option<Instant>) -> Stopped {
        let mut state = lock(&self.state);
        while state.requested && state.workers.len() < all {
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
        if state.waiting > 0 {
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

    /// Lays aside workers that could not be given a thread.
    pub fn put_back(&self, workers: Vec<W>) {
        lock(&self.state).workers.extend(workers);
        self.changed.notify_all();
    }

    /// Notes that a function that has given its worker away waits. Takes and returns the workers that are aside: the
    /// function may wait for what they would run.
    pub fn function_waits(&self) -> Vec<W> {
        let mut state = lock(&self.state);
        state.waiting += 1;
        if removed(Step::WaitsTakeUp) { Vec::new() } else { mem::take(&mut state.workers) }
    }

    /// Notes that program code runs on a thread that has given its worker away. Notes nothing if a stop is requested,
    /// since the stop waits for the thread itself. Returns whether the code was noted.
    pub fn code_begins(&self) -> bool {
        let mut state = lock(&self.state);
        state.waiting += usize::from(!state.requested);
        !state.requested
    }

    /// Notes that a function that had given its worker away has returned, or has received a worker.
    pub fn function_has_returned(&self) {
        lock(&self.state).waiting -= 1;
    }
}
