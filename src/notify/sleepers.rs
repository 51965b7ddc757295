//! The threads asleep in calls to an engine, what they wait for, and the open scopes that were opened inside
//! operations. Dumps and watchdogs read these lists.
//!
//! # Who may touch what
//!
//! * The lists: any thread, under the lock. No program code runs under the lock. The locks of results and of pending
//!   counts may be taken while this lock is held, but not the other way round.
//! * The data to which an entry refers: any thread, under the lock, while the entry is in the list. The sleeping thread
//!   keeps the data borrowed during that time.
//! * In a forked child: no thread, since a thread of the parent may have held the lock at the fork.
//!
//! This module does not dereference pointers to operations or to scopes' counts. An entry is ignored once its wait is
//! over: the awaited operations may then be complete, and their records reused. The module has no edges.

use std::{
    fmt,
    ptr::NonNull,
    thread::{self, Thread},
    time::{Duration, Instant},
};

use crate::{
    notify::{
        pending::PendingOps,
        waiters::{Goal, IsOver, IsOverRef, Ops},
    },
    sync::{Mutex, fork::ProcessMark, lock},
};

/// The kind of thing for which a thread is waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// All operations of the engine.
    All,
    /// The operations of a group.
    Group,
    /// The end of a scope.
    Scope,
    /// Room for an operation, in the engine or in a group.
    Room,
    /// An operation.
    Operation,
}

/// What a sleeping thread is waiting for.
#[derive(Clone, Copy)]
pub struct Sleeps<'g> {
    pub awaits: Awaits,
    /// The operations that the thread waits for, if they are known.
    pub goal: Option<Goal<'g>>,
}

/// A sleeping thread.
#[derive(Debug)]
pub struct Sleeper {
    pub number: u64,
    pub thread: Thread,
    /// The operations that run on the thread, each followed by those that enclose it.
    pub ops: Ops,
    pub awaits: Awaits,
    /// Whether it is known which operations the thread waits for.
    pub has_goal: bool,
    pub time: Duration,
}

/// The lists of sleeping threads and of open scopes.
#[derive(Debug)]
pub struct Sleepers {
    list: Mutex<List>,
    /// The process that created the lists.
    process: ProcessMark,
}

impl Default for Sleepers {
    fn default() -> Self {
        Self { list: Mutex::default(), process: ProcessMark::current() }
    }
}

#[derive(Debug, Default)]
struct List {
    last: u64,
    entries: Vec<Entry>,
    scopes: Vec<OpenScope>,
}

/// An open scope: it was opened inside operations and has not ended.
#[derive(Clone, Debug)]
pub struct OpenScope {
    /// The operations around the scope, innermost first.
    pub around: Ops,
    /// The count of the scope's operations.
    pub count: NonNull<PendingOps>,
}

struct Entry {
    number: u64,
    thread: Thread,
    ops: Ops,
    awaits: Awaits,
    /// Borrowed by the call to `during` that added the entry.
    goal: Option<Goal<'static>>,
    since: Instant,
    /// Borrowed by the call to `during` that added the entry.
    is_over: IsOverRef,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("number", &self.number).field("awaits", &self.awaits).finish_non_exhaustive()
    }
}

impl Entry {
    fn waits(&self) -> bool {
        !self.is_over.call()
    }
}

// SAFETY: pointers to operations are not dereferenced here, everything that a `Goal` refers to is `Sync`, and any
// thread may call `is_over`.
unsafe impl Send for Entry {}

// SAFETY: the pointers are not dereferenced here.
unsafe impl Send for OpenScope {}

impl Sleepers {
    /// Calls `wait`, and lists the calling thread as a sleeper until `wait` returns. `ops` are the operations that run
    /// on the thread and those around them. The thread has been waiting since `since`. `is_over` returns whether the
    /// wait is over; it is called under the lock, so it must neither wait nor use these lists. In a forked child, only
    /// calls `wait`.
    pub fn during<R>(
        &self,
        ops: Ops,
        sleeps: Sleeps<'_>,
        since: Instant,
        is_over: &IsOver<'_>,
        wait: impl FnOnce() -> R,
    ) -> R {
        /// Removes the entry from the list when dropped, even if `wait` panics.
        struct Listed<'s>(&'s Sleepers, u64);
        impl Drop for Listed<'_> {
            fn drop(&mut self) {
                if self.0.process.is_foreign() {
                    return;
                }
                let mut list = lock(&self.0.list);
                if let Some(index) = list.entries.iter().rposition(|entry| entry.number == self.1) {
                    list.entries.swap_remove(index);
                }
            }
        }
        if self.process.is_foreign() {
            return wait();
        }
        // SAFETY: (1): the entry leaves the list before this call returns.
        let is_over = unsafe { IsOverRef::new(is_over) };
        // SAFETY: (1): the entry leaves the list before this call returns.
        let goal = sleeps.goal.map(|goal| unsafe { goal.unbound() });
        let (thread, awaits) = (thread::current(), sleeps.awaits);
        let mut list = lock(&self.list);
        list.last += 1;
        let number = list.last;
        list.entries.push(Entry { number, thread, ops, awaits, goal, since, is_over });
        drop(list);
        let _listed = Listed(self, number);
        wait()
    }

    /// Adds a scope opened inside the operations `around`, innermost first. The scope's own operations are counted in
    /// `count`.
    pub fn open_scope(&self, around: Ops, count: NonNull<PendingOps>) {
        lock(&self.list).scopes.push(OpenScope { around, count });
    }

    /// Removes the scope with this count.
    pub fn close_scope(&self, count: NonNull<PendingOps>) {
        if self.process.is_foreign() {
            return;
        }
        let mut list = lock(&self.list);
        if let Some(index) = list.scopes.iter().rposition(|scope| scope.count == count) {
            list.scopes.swap_remove(index);
        }
    }

    /// Returns the scopes that have not ended.
    pub fn scopes(&self) -> Vec<OpenScope> {
        lock(&self.list).scopes.clone()
    }

    /// Returns the threads whose waits are not over, in the order in which they were listed.
    pub fn list(&self) -> Vec<Sleeper> {
        let list = lock(&self.list);
        let waits = |entry: &&Entry| entry.waits();
        let sleeper = |entry: &Entry| Sleeper {
            number: entry.number,
            thread: entry.thread.clone(),
            ops: entry.ops.clone(),
            awaits: entry.awaits,
            has_goal: entry.goal.is_some(),
            time: entry.since.elapsed(),
        };
        let mut sleepers: Vec<Sleeper> = list.entries.iter().filter(waits).map(sleeper).collect();
        drop(list);
        sleepers.sort_by_key(|sleeper| sleeper.number);
        sleepers
    }

    /// For each thread whose wait is not over and whose goal is known, calls `found` with the number of the thread's
    /// entry, with whether operations run on the thread, and with the goal.
    pub fn each_goal(&self, mut found: impl FnMut(u64, bool, &Goal<'_>)) {
        for entry in &lock(&self.list).entries {
            if let Some(goal) = entry.goal.as_ref().filter(|_| entry.waits()) {
                found(entry.number, !entry.ops.is_empty(), goal);
            }
        }
    }
}
