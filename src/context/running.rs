//! The threads that run operations of an engine with limits without a worker of its own, or wait inside them.
//!
//! # Who may touch what
//!
//! * `RUNS`: only the thread that owns it. A thread that runs on behalf of another takes over its list.
//! * `Bounds::running` and `Bounds::waiting`: changed by the threads that they count.
//!
//! This module has no edges of its own: the counts are hints, and `room::stillness` says how they are read.

use std::{cell::RefCell, sync::Arc};

use crate::{
    context::bounds::any_limits,
    engine::core::Core,
    sync::{Ordering::Relaxed, thread_static},
};

// The engines that count this thread in `running`.
thread_static!(static RUNS: RefCell<Vec<Arc<Core>>> = RefCell::new(Vec::new()));

/// Counts the calling thread in `running`. Returns `false` if the thread is ending and its list of engines no
/// longer exists.
pub(crate) fn begin_running(core: &Arc<Core>) -> bool {
    let noted = with_runs(|runs| runs.push(Arc::clone(core))).is_some();
    if noted {
        // Relaxed: see `room::stillness`.
        core.bounds.running.fetch_add(1, Relaxed);
    }
    noted
}

/// Takes the calling thread out of `running` if [`begin_running`] counted it there.
pub(super) fn end_running(core: &Arc<Core>) {
    if !any_limits() {
        return;
    }
    let take = |runs: &mut Vec<Arc<Core>>| {
        let last = runs.iter().rposition(|counted| Arc::ptr_eq(counted, core))?;
        Some(runs.remove(last))
    };
    if with_runs(take).flatten().is_some() {
        // Relaxed: see `room::stillness`.
        core.bounds.running.fetch_sub(1, Relaxed);
    }
}

/// Counts a thread in `running` until dropped.
pub(crate) struct Running<'c>(pub(crate) &'c Arc<Core>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        end_running(self.0);
    }
}

/// Calls `f` with the engines that count this thread in `running`. Returns `None` if the thread is ending and the list
/// no longer exists.
pub(crate) fn with_runs<R>(f: impl FnOnce(&mut Vec<Arc<Core>>) -> R) -> Option<R> {
    RUNS.try_with(|runs| f(&mut runs.borrow_mut())).ok()
}

/// Takes the list of engines that count this thread in `running`, for another thread that runs on its behalf.
pub(super) fn take_runs() -> Vec<Arc<Core>> {
    with_runs(std::mem::take).unwrap_or_default()
}

/// Adds a list returned by [`take_runs`] to this thread's list.
pub(super) fn put_runs(mut list: Vec<Arc<Core>>) {
    let _ = with_runs(|runs| runs.append(&mut list));
}

/// Counts the calling thread in `waiting` instead of `running` until the returned value is dropped.
pub(crate) fn stop_running() -> CountedAsWaiting {
    let runs = if any_limits() { take_runs() } else { Vec::new() };
    for core in &runs {
        // Relaxed: see `room::stillness`.
        core.bounds.waiting.fetch_add(1, Relaxed);
        core.bounds.running.fetch_sub(1, Relaxed);
    }
    CountedAsWaiting(runs)
}

/// Counts a thread in `waiting` instead of `running` until dropped.
#[must_use]
pub(crate) struct CountedAsWaiting(Vec<Arc<Core>>);

impl Drop for CountedAsWaiting {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        for core in &self.0 {
            // Relaxed: see `room::stillness`.
            core.bounds.running.fetch_add(1, Relaxed);
            core.bounds.waiting.fetch_sub(1, Relaxed);
        }
        let _ = with_runs(|runs| runs.append(&mut self.0));
    }
}
