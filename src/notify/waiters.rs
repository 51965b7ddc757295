//! The operations that wait inside their functions, and what they wait for.
//!
//! # Who may touch what
//!
//! * The list: under the lock. No foreign code runs there.
//!
//! The pointers are to the records of operations. An entry is in the list while its thread waits inside its operations,
//! so their records exist as long as the entry is in the list. There are no edges.
//!
//! A thread may still be in the list when its wait is over, since it has yet to run. The operation that it waited for
//! is then complete, and its record may be that of another operation, so such an entry does not count any more.

use std::{fmt, mem::transmute, ptr::NonNull};

use smallvec::SmallVec;

use crate::sync::{Mutex, lock};

/// Operations, by their records.
pub type Ops = SmallVec<[NonNull<()>; 2]>;

/// The list of waiters.
#[derive(Debug, Default)]
pub struct Waiters(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    /// The number of the last entry.
    last: u64,
    entries: Vec<Entry>,
}

struct Entry {
    number: u64,
    /// The operations that run on the thread.
    ops: Ops,
    /// A pointer that identifies what the thread waits for. Never read through.
    target: NonNull<()>,
    /// Whether the wait has a time limit.
    is_timed: bool,
    /// The function that says whether the wait is over, borrowed by the call of `during` that has made the entry.
    is_over: NonNull<IsOver<'static>>,
}

/// A function that returns whether a wait is over, and that any thread may call.
pub type IsOver<'o> = dyn Fn() -> bool + Sync + 'o;

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("number", &self.number).field("target", &self.target).finish_non_exhaustive()
    }
}

impl Entry {
    fn waits(&self) -> bool {
        // SAFETY: the entry is in the list, so the call of `during` that has borrowed the function has not returned.
        let is_over = unsafe { self.is_over.as_ref() };
        !is_over()
    }
}

// SAFETY: the list does not read through the pointers to operations, and the function may be called on any thread.
unsafe impl Send for Entry {}

/// A waiter, which is in the list until the call of [`Waiters::during`] returns.
#[derive(Debug)]
pub struct Waiter<'w> {
    waiters: &'w Waiters,
    number: u64,
    is_timed: bool,
}

impl Waiters {
    /// Calls `wait`, which waits inside `ops` for `target`, with a waiter. `is_timed` says whether the wait has a time
    /// limit, and `is_over` returns whether it is over. `is_over` must not wait itself.
    pub fn during<R>(
        &self,
        ops: Ops,
        target: NonNull<()>,
        is_timed: bool,
        is_over: &IsOver<'_>,
        wait: impl FnOnce(&Waiter<'_>) -> R,
    ) -> R {
        // SAFETY: only the lifetime changes, and the entry leaves the list before this call returns.
        let is_over = unsafe { transmute::<NonNull<IsOver<'_>>, NonNull<IsOver<'static>>>(NonNull::from(is_over)) };
        let mut list = lock(&self.0);
        list.last += 1;
        let number = list.last;
        list.entries.push(Entry { number, ops, target, is_timed, is_over });
        drop(list);
        wait(&Waiter { waiters: self, number, is_timed })
    }

    /// Calls `found` with the number of each waiter that waits for `target` without a time limit, and with the
    /// operations that it waits inside.
    pub fn each_for(&self, target: NonNull<()>, mut found: impl FnMut(u64, &[NonNull<()>])) {
        let list = lock(&self.0);
        let waiters = list.entries.iter().filter(|entry| entry.target == target && !entry.is_timed && entry.waits());
        waiters.for_each(|entry| found(entry.number, &entry.ops));
    }

    /// Calls `found` with each waiter: the operations that it waits inside, and what it waits for.
    pub fn each(&self, mut found: impl FnMut(&[NonNull<()>], NonNull<()>)) {
        lock(&self.0).entries.iter().filter(|entry| entry.waits()).for_each(|entry| found(&entry.ops, entry.target));
    }

    /// Whether no wait in the list is over.
    pub fn all_wait_still(&self) -> bool {
        lock(&self.0).entries.iter().all(Entry::waits)
    }

    /// Whether the waiters with these numbers still wait.
    pub fn all_wait(&self, numbers: &[u64]) -> bool {
        let list = lock(&self.0);
        numbers.iter().all(|number| list.entries.iter().any(|entry| entry.number == *number && entry.waits()))
    }
}

impl Waiter<'_> {
    /// Returns the number of the waiter: later ones have higher numbers.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the wait has a time limit.
    pub fn is_timed(&self) -> bool {
        self.is_timed
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        lock(&self.waiters.0).entries.retain(|entry| entry.number != self.number);
    }
}
