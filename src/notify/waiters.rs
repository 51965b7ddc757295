//! The operations that wait inside their functions, and what they wait for.
//!
//! # Who may touch what
//!
//! * The list: under the lock. No foreign code runs there.
//!
//! The pointers are those of operations. An entry is in the list while its thread waits inside them, so their records exist
//! as long as it is there. There are no edges.

use std::ptr::NonNull;

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

#[derive(Debug)]
struct Entry {
    number: u64,
    /// The operations that run on the thread.
    ops: Ops,
    /// What identifies the operation that the thread waits for. Never read.
    target: NonNull<()>,
    /// The wait has a time limit.
    is_timed: bool,
}

// SAFETY: the list does not read through its pointers.
unsafe impl Send for Entry {}

/// A waiter, which is in the list until this is dropped.
#[derive(Debug)]
pub struct Waiter<'w> {
    waiters: &'w Waiters,
    number: u64,
    is_timed: bool,
}

impl Waiters {
    /// Adds a waiter that waits inside `ops` for `target`. `is_timed` says whether its wait has a time limit.
    pub fn enter(&self, ops: Ops, target: NonNull<()>, is_timed: bool) -> Waiter<'_> {
        let mut list = lock(&self.0);
        list.last += 1;
        let number = list.last;
        list.entries.push(Entry { number, ops, target, is_timed });
        Waiter { waiters: self, number, is_timed }
    }

    /// Calls `found` with the number of each waiter that waits for `target` without a time limit, and with the operations that
    /// it waits inside.
    pub fn each_for(&self, target: NonNull<()>, mut found: impl FnMut(u64, &[NonNull<()>])) {
        let list = lock(&self.0);
        let waiters = list.entries.iter().filter(|entry| entry.target == target && !entry.is_timed);
        waiters.for_each(|entry| found(entry.number, &entry.ops));
    }

    /// Calls `found` with each waiter: the operations that it waits inside, and what it waits for.
    pub fn each(&self, mut found: impl FnMut(&[NonNull<()>], NonNull<()>)) {
        lock(&self.0).entries.iter().for_each(|entry| found(&entry.ops, entry.target));
    }

    /// Whether all of these waiters still wait.
    pub fn all_wait(&self, numbers: &[u64]) -> bool {
        let list = lock(&self.0);
        numbers.iter().all(|number| list.entries.iter().any(|entry| entry.number == *number))
    }
}

impl Waiter<'_> {
    /// The number of the waiter: later ones have higher numbers.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether its wait has a time limit.
    pub fn is_timed(&self) -> bool {
        self.is_timed
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        lock(&self.waiters.0).entries.retain(|entry| entry.number != self.number);
    }
}
