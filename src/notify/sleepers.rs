//! The threads that sleep in calls of an engine, and what they wait for: for dumps and watchdogs.
//!
//! # Who may touch what
//!
//! * The list: under the lock. No foreign code runs there.
//!
//! A thread that waits for an operation names it by a pointer that is compared and never read. It counts only while its wait is
//! not over, for the operation is not complete then. There are no edges.

use std::{
    fmt,
    mem::transmute,
    ptr::NonNull,
    thread::{self, Thread},
    time::{Duration, Instant},
};

use crate::{
    notify::waiters::{IsOver, Ops},
    sync::{Mutex, lock},
};

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// All operations of the engine.
    All,
    /// The operations of a group, by its number.
    Group(u32),
    /// The end of a scope, by the number of its group.
    Scope(u32),
    /// Room for an operation, in the engine or in a group.
    Room,
    /// An operation, by its task.
    Operation(NonNull<()>),
    /// Something else.
    Other,
}

/// A thread that sleeps.
#[derive(Debug)]
pub struct Sleeper {
    pub number: u64,
    pub thread: Thread,
    /// The operations that run on the thread.
    pub ops: Ops,
    pub awaits: Awaits,
    pub time: Duration,
}

/// The list of threads that sleep.
#[derive(Debug, Default)]
pub struct Sleepers(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    last: u64,
    entries: Vec<Entry>,
}

struct Entry {
    number: u64,
    thread: Thread,
    ops: Ops,
    awaits: Awaits,
    since: Instant,
    /// Borrowed by the call of `during` that has made the entry.
    is_over: NonNull<IsOver<'static>>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("number", &self.number).field("awaits", &self.awaits).finish_non_exhaustive()
    }
}

// SAFETY: the list does not read through the pointers to operations, and the function may be called on any thread.
unsafe impl Send for Entry {}

impl Sleepers {
    /// Calls `wait`, in which the calling thread waits inside `ops`, as it has done `since` then. `is_over` says whether its wait is over. It must not wait
    /// itself.
    pub fn during<R>(
        &self,
        ops: Ops,
        awaits: Awaits,
        since: Instant,
        is_over: &IsOver<'_>,
        wait: impl FnOnce() -> R,
    ) -> R {
        /// Takes the entry out of the list, also after a panic.
        struct Listed<'s>(&'s Sleepers, u64);
        impl Drop for Listed<'_> {
            fn drop(&mut self) {
                let mut list = lock(&self.0.0);
                if let Some(index) = list.entries.iter().rposition(|entry| entry.number == self.1) {
                    list.entries.swap_remove(index);
                }
            }
        }
        // SAFETY: only the lifetime changes, and the entry leaves the list before this call returns.
        let is_over = unsafe { transmute::<NonNull<IsOver<'_>>, NonNull<IsOver<'static>>>(NonNull::from(is_over)) };
        let thread = thread::current();
        let mut list = lock(&self.0);
        list.last += 1;
        let number = list.last;
        list.entries.push(Entry { number, thread, ops, awaits, since, is_over });
        drop(list);
        let _listed = Listed(self, number);
        wait()
    }

    /// Returns the threads whose waits are not over, those first that have waited for longest.
    pub fn list(&self) -> Vec<Sleeper> {
        let list = lock(&self.0);
        let waits = |entry: &&Entry| {
            // SAFETY: the entry is in the list, so the call of `during` that has borrowed the function has not returned.
            let is_over = unsafe { entry.is_over.as_ref() };
            !is_over()
        };
        let sleeper = |entry: &Entry| Sleeper {
            number: entry.number,
            thread: entry.thread.clone(),
            ops: entry.ops.clone(),
            awaits: entry.awaits,
            time: entry.since.elapsed(),
        };
        let mut sleepers: Vec<Sleeper> = list.entries.iter().filter(waits).map(sleeper).collect();
        drop(list);
        sleepers.sort_by_key(|sleeper| sleeper.number);
        sleepers
    }
}
