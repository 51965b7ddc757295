//! The operations that wait inside their functions, and what they wait for.
//!
//! # Who may touch what
//!
//! * The list: under the lock. No foreign code runs there.
//!
//! The pointers are those of operations. An entry is in the list while its thread waits inside them, so their records exist
//! as long as it is there. There are no edges.
//!
//! A thread may still be in the list when its wait is over, since it has yet to run. The operation that it waited for is then
//! complete, and its record may be that of another one, so such an entry counts no more.

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
    /// Borrowed by the call of `during` that has made the entry.
    target: NonNull<Target<'static>>,
    /// The wait has a time limit.
    is_timed: bool,
    /// Borrowed by the call of `during` that has made the entry.
    is_over: NonNull<IsOver<'static>>,
}

/// Tells whether a wait is over, on any thread.
pub type IsOver<'o> = dyn Fn() -> bool + Sync + 'o;

/// Returns, on any thread, what identifies the operation that a thread waits for: the one of a handle, or one that holds it
/// back. Never read.
pub type Target<'o> = dyn Fn() -> NonNull<()> + Sync + 'o;

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Entry {
    fn waits(&self) -> bool {
        // SAFETY: the entry is in the list, so the call of `during` that has borrowed the function has not returned.
        let is_over = unsafe { self.is_over.as_ref() };
        !is_over()
    }

    fn target(&self) -> NonNull<()> {
        // SAFETY: as in `waits`.
        let target = unsafe { self.target.as_ref() };
        target()
    }
}

// SAFETY: the list does not read through the pointers to operations, and the functions may be called on any thread.
unsafe impl Send for Entry {}

/// A waiter, which is in the list until the call of [`Waiters::during`] returns.
#[derive(Debug)]
pub struct Waiter<'w> {
    waiters: &'w Waiters,
    number: u64,
    is_timed: bool,
}

impl Waiters {
    /// Calls `wait`, which waits inside `ops` for `target`, with a waiter. `is_timed` says whether the wait has a time limit, and
    /// `is_over` whether it is over. Neither function may wait itself.
    pub fn during<R>(
        &self,
        ops: Ops,
        target: &Target<'_>,
        is_timed: bool,
        is_over: &IsOver<'_>,
        wait: impl FnOnce(&Waiter<'_>) -> R,
    ) -> R {
        // SAFETY: only the lifetime changes, and the entry leaves the list before this call returns.
        let is_over = unsafe { transmute::<NonNull<IsOver<'_>>, NonNull<IsOver<'static>>>(NonNull::from(is_over)) };
        // SAFETY: as for `is_over`.
        let target = unsafe { transmute::<NonNull<Target<'_>>, NonNull<Target<'static>>>(NonNull::from(target)) };
        let mut list = lock(&self.0);
        list.last += 1;
        let number = list.last;
        list.entries.push(Entry { number, ops, target, is_timed, is_over });
        drop(list);
        wait(&Waiter { waiters: self, number, is_timed })
    }

    /// Calls `found` with the number of each waiter that waits for `target` without a time limit, and with the operations that
    /// it waits inside.
    pub fn each_for(&self, target: NonNull<()>, mut found: impl FnMut(u64, &[NonNull<()>])) {
        let list = lock(&self.0);
        let waits_for = |entry: &&Entry| !entry.is_timed && entry.waits() && entry.target() == target;
        list.entries.iter().filter(waits_for).for_each(|entry| found(entry.number, &entry.ops));
    }

    /// Calls `found` with each waiter: the operations that it waits inside, and what it waits for.
    pub fn each(&self, mut found: impl FnMut(&[NonNull<()>], NonNull<()>)) {
        lock(&self.0).entries.iter().filter(|entry| entry.waits()).for_each(|entry| found(&entry.ops, entry.target()));
    }

    /// Whether no wait is over whose thread has yet to run.
    pub fn all_wait_still(&self) -> bool {
        lock(&self.0).entries.iter().all(Entry::waits)
    }

    /// Whether all of these waiters still wait.
    pub fn all_wait(&self, numbers: &[u64]) -> bool {
        let list = lock(&self.0);
        numbers.iter().all(|number| list.entries.iter().any(|entry| entry.number == *number && entry.waits()))
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
