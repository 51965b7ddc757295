//! The keeper: the worker that gives an idle process's free records back to the system. At most one thread of the
//! process has this role.
//!
//! # Who may touch what
//!
//! * The role: the worker that has its lock.
//! * The candidates, workers that sleep without a time limit: any thread, under their lock. A worker adds itself before
//!   it sleeps, and removes itself when it is woken. A thread on which many operations end wakes a candidate if there
//!   is no keeper: otherwise, the free records of operations that need no worker would be kept while all workers sleep.
//!
//! No thread ever waits for one of the locks. If a thread does not get one, free records are kept for longer.

use std::thread::{self, Thread};

use crate::sync::{Mutex, MutexGuard, process::PerProcess, try_lock};

/// The maximum number of candidates.
const MOST_CANDIDATES: usize = 64;

static KEEPER: PerProcess<Mutex<()>> = PerProcess::new();
static CANDIDATES: PerProcess<Mutex<Vec<Thread>>> = PerProcess::new();

/// The role of the calling thread.
pub(crate) struct Keeper(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Keeper {
    /// Makes the calling thread the keeper, unless another thread is.
    pub(crate) fn try_new() -> Option<Self> {
        try_lock(KEEPER.get(Default::default)).map(Self)
    }

    /// Wakes a candidate, unless a thread is the keeper.
    pub(super) fn wake() {
        if Self::try_new().is_some() {
            let candidate = try_lock(CANDIDATES.get(Default::default)).and_then(|mut threads| threads.pop());
            candidate.inspect(Thread::unpark);
        }
    }

    /// Makes the calling thread, which is about to sleep, a candidate.
    pub(crate) fn stand() {
        let own = thread::current();
        if let Some(mut threads) = try_lock(CANDIDATES.get(Default::default)) {
            if threads.len() < MOST_CANDIDATES && threads.iter().all(|other| other.id() != own.id()) {
                threads.push(own);
            }
        }
    }

    /// Ends what [`stand`](Self::stand) has begun.
    pub(crate) fn stand_down() {
        let own = thread::current().id();
        if let Some(mut threads) = try_lock(CANDIDATES.get(Default::default)) {
            threads.retain(|other| other.id() != own);
        }
    }
}
