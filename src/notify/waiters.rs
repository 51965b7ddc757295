//! The operations that wait inside their functions, and what they wait for.
//!
//! # Who may touch what
//!
//! * The list: under the lock. No foreign code runs there.
//!
//! The pointers are those of operations. An entry is in the list while its thread waits, so its operations are not
//! complete as long as it is there. There are no edges.

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
}

// SAFETY: the list does not read through its pointers.
unsafe impl Send for Entry {}

/// A waiter, which is in the list until this is dropped.
#[derive(Debug)]
pub struct Waiter<'w> {
    waiters: &'w Waiters,
    number: u64,
}

impl Waiters {
    /// Adds a waiter that waits inside `ops` for `target`.
    pub fn enter(&self, ops: Ops, target: NonNull<()>) -> Waiter<'_> {
        let mut list = lock(&self.0);
        list.last += 1;
        let number = list.last;
        list.entries.push(Entry { number, ops, target });
        Waiter { waiters: self, number }
    }

    /// Calls `found` with the number of each waiter that waits for `target`, and with the operations that it waits inside.
    pub fn each_for(&self, target: NonNull<()>, mut found: impl FnMut(u64, &[NonNull<()>])) {
        let list = lock(&self.0);
        list.entries.iter().filter(|entry| entry.target == target).for_each(|entry| found(entry.number, &entry.ops));
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
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        lock(&self.waiters.0).entries.retain(|entry| entry.number != self.number);
    }
}
