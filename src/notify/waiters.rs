//! Lists of waiting threads and of what each waits for: the threads waiting inside operations of any engine or, for an
//! engine that shuffles, the threads waiting outside it.
//!
//! # States
//!
//! An entry is in the list until its thread's call to [`Waiters::during`] returns. It is *suspended* while the thread
//! runs program code during the wait. It is *asked* from the time when another thread finds that this wait must end a
//! cycle until its own thread has seen that.
//!
//! A suspended entry does not count as waiting, nor does an entry whose wait is over. The thread of the latter may have
//! yet to run, but the awaited operations may already be complete and their records reused.
//!
//! # Who may touch what
//!
//! * The list: any thread, under the lock. No program code runs under the lock. The locks of results and of pending
//!   counts may be taken while this lock is held, but not the other way round.
//! * The data to which an entry refers: any thread, under the lock, while the entry is in the list. The entry's thread
//!   keeps the data borrowed during that time.
//! * The lists of a parent process, in a forked child: no thread, since a thread of the parent may have held the lock
//!   at the fork.
//!
//! While an entry is in the list, its thread is inside the operations in `inside`. Therefore the records of the
//! operations that run on the thread exist for that long. The record of an operation around them exists at least until
//! the operation inside it is complete (see [`Nested::depth`]). There are no edges.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    fmt,
    mem::transmute,
    ptr::NonNull,
};

use smallvec::SmallVec;

use crate::{
    notify::pending::{PendingOps, PendingWait, Ticket},
    sync::{Mutex, Ordering::Relaxed, atomic::AtomicPtr, fork::ProcessMark, lock},
};

/// An operation, identified by its record, and its depth in a list of nested operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nested {
    pub op: NonNull<()>,
    /// The number of levels from an innermost operation, which has depth 0, up to this one. The nearest operation
    /// before this one in the list with a smaller depth is a descendant of this one, or belongs to a scope opened
    /// inside this one. Once that operation is complete, this one may complete as well, and the record of this one may
    /// be reused.
    pub depth: usize,
}

/// Operations, each followed by those that enclose it.
pub type Ops = SmallVec<[Nested; 2]>;

/// The operations and epilogues inside which a thread is running. The operations do not end before the thread's wait
/// does, except for asynchronous operations and the operations around them.
#[derive(Clone, Debug, Default)]
pub struct Inside {
    /// The operations running on the thread that were not complete when its wait began, and those that cannot complete
    /// before them.
    pub ops: Ops,
    /// The operations whose epilogues run on the thread: they are complete, but not counted out. The flag beside an
    /// operation says whether that operation is still counted in its groups.
    pub ended: SmallVec<[(NonNull<()>, bool); 1]>,
}

impl Inside {
    /// Whether the thread is inside no operation and no epilogue.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.ended.is_empty()
    }
}

/// What a thread waits for.
#[derive(Clone, Copy)]
pub enum Goal<'g> {
    /// One operation.
    Op {
        /// The pointer that identifies the operation. It is never dereferenced.
        task: NonNull<()>,
        /// Holds the pointer that identifies the operation that keeps this one from entering a queue, or null while
        /// none does. That pointer is never dereferenced either. `None` if no operation can ever keep this one from
        /// entering a queue.
        held_back_by: Option<&'g AtomicPtr<()>>,
    },
    /// The operations that are in this count and that the given wait covers; if no wait is given, all operations in the
    /// count.
    Counted(&'g PendingOps, Option<&'g PendingWait>),
}

impl<'g> Goal<'g> {
    /// Returns the goal with its lifetime erased.
    ///
    /// # Safety
    /// 1. The result is not used after `'g`.
    pub(super) unsafe fn unbound(self) -> Goal<'static> {
        // SAFETY: (1), and only the lifetime changes.
        unsafe { transmute::<Goal<'g>, Goal<'static>>(self) }
    }

    /// Returns the goal's task if the goal is a single operation that nothing keeps from entering a queue.
    fn only_task(&self) -> Option<NonNull<()>> {
        match self {
            // Relaxed: set before the wait, and never changed except to null. An outdated pointer merely leaves the
            // entry among those that every walk considers.
            Self::Op { task, held_back_by } => {
                held_back_by.is_none_or(|by| by.load(Relaxed).is_null()).then_some(*task)
            }
            Self::Counted(..) => None,
        }
    }

    /// Whether the goal is a single operation that `task` identifies, or that the operation identified by `task` keeps
    /// from entering a queue.
    pub fn depends_on(&self, task: NonNull<()>) -> bool {
        match self {
            // Relaxed: see `Place::is_held_back_by`. The caller has found the operation of `task` to be incomplete.
            Self::Op { task: own, held_back_by } => {
                *own == task || held_back_by.is_some_and(|by| by.load(Relaxed) == task.as_ptr())
            }
            Self::Counted(..) => false,
        }
    }

    /// Whether the goal is a count and covers a certain operation, which must not have left that count. `ticket_in`
    /// returns the operation's ticket in a count, or `None` if the operation has not entered that count.
    pub fn covers(&self, ticket_in: impl FnOnce(&PendingOps) -> Option<Ticket>) -> bool {
        match self {
            Self::Op { .. } => false,
            Self::Counted(pending, wait) => {
                let covers = |ticket| wait.is_none_or(|wait| pending.covers(wait, ticket));
                ticket_in(pending).is_some_and(covers)
            }
        }
    }
}

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Until the wait is over, or is refused.
    Refusable,
    /// Until the wait is over, is refused or reaches its time limit, so other waits cannot depend on it forever.
    Timed,
    /// Until the wait is over. It cannot be refused, because it ends a scope.
    Closing,
}

/// The list of waiters.
#[derive(Debug)]
pub struct Waiters {
    list: Mutex<List>,
    /// The process that created the list.
    process: ProcessMark,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { list: Mutex::default(), process: ProcessMark::current() }
    }
}

#[derive(Debug, Default)]
struct List {
    /// The last number given to an entry.
    last: u64,
    /// The entries, by number.
    entries: BTreeMap<u64, Entry>,
    /// The numbers of the entries that await a single operation which nothing keeps from entering a queue, by that
    /// operation's task. If nothing keeps an operation from entering a queue when a wait for it begins, nothing does so
    /// later.
    by_task: BTreeMap<NonNull<()>, SmallVec<[u64; 2]>>,
    /// The numbers of the other entries.
    others: BTreeSet<u64>,
}

// SAFETY: the keys of `by_task` are pointers that are only compared.
unsafe impl Send for List {}

impl List {
    fn remove(&mut self, number: u64) {
        let entry = self.entries.remove(&number);
        if self.others.remove(&number) {
            return;
        }
        let Some(Goal::Op { task, .. }) = entry.map(|entry| entry.goal) else { return };
        if let btree_map::Entry::Occupied(mut numbers) = self.by_task.entry(task) {
            numbers.get_mut().retain(|other| *other != number);
            if numbers.get().is_empty() {
                numbers.remove();
            }
        }
    }
}

struct Entry {
    number: u64,
    /// The engine for which the thread waits. The pointer is only compared.
    engine: NonNull<()>,
    inside: Inside,
    /// Borrowed by the call to `during` that added the entry.
    goal: Goal<'static>,
    kind: Kind,
    /// Borrowed by the call to `during` that added the entry.
    is_over: IsOverRef,
    is_suspended: bool,
    is_asked: bool,
}

/// A function, callable from any thread, that returns whether a wait is over.
pub type IsOver<'o> = dyn Fn() -> bool + Sync + 'o;

/// A reference to an [`IsOver`], stored in a list without the reference's lifetime.
pub(super) struct IsOverRef(NonNull<IsOver<'static>>);

impl IsOverRef {
    /// # Safety
    /// 1. [`call`](Self::call) is not called after the lifetime of `is_over`.
    pub(super) unsafe fn new(is_over: &IsOver<'_>) -> Self {
        // SAFETY: only the lifetime changes.
        Self(unsafe { transmute::<NonNull<IsOver<'_>>, NonNull<IsOver<'static>>>(NonNull::from(is_over)) })
    }

    /// Whether the wait is over.
    pub(super) fn call(&self) -> bool {
        // SAFETY: the caller of `new` guaranteed that the function still exists.
        let is_over = unsafe { self.0.as_ref() };
        is_over()
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("number", &self.number).field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Entry {
    fn waits(&self) -> bool {
        !self.is_suspended && !self.is_over.call()
    }
}

// SAFETY: the pointers to operations and to the engine are not dereferenced here, everything that a `Goal` refers to is
// `Sync`, and any thread may call `is_over`.
unsafe impl Send for Entry {}

/// What a waiter's thread needs to know in order to decide whether to look for a cycle.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// The number of waiters.
    pub waiters: u32,
    /// Whether no other waiter began to wait later.
    pub is_last: bool,
    /// Whether another thread has found that this wait must end a cycle.
    pub is_asked: bool,
}

/// A waiter, listed until the call to [`Waiters::during`] returns.
#[derive(Debug)]
pub struct Waiter<'w> {
    waiters: &'w Waiters,
    number: u64,
    kind: Kind,
}

impl Waiters {
    /// Calls `wait`, and lists the calling thread as a waiter until `wait` returns. The thread is inside the operations
    /// in `inside`, and `wait` waits for `goal`, which belongs to `engine`. `is_over` returns whether the wait is over;
    /// it is called under the lock, so it must neither wait nor use this list.
    pub fn during<R>(
        &self,
        engine: NonNull<()>,
        inside: Inside,
        goal: Goal<'_>,
        kind: Kind,
        is_over: &IsOver<'_>,
        wait: impl FnOnce(&Waiter<'_>) -> R,
    ) -> R {
        // SAFETY: (1): the entry leaves the list before this call returns.
        let is_over = unsafe { IsOverRef::new(is_over) };
        // SAFETY: (1): the entry leaves the list before this call returns.
        let goal = unsafe { goal.unbound() };
        let mut list = lock(&self.list);
        list.last += 1;
        let number = list.last;
        match goal.only_task() {
            Some(task) => list.by_task.entry(task).or_default().push(number),
            None => _ = list.others.insert(number),
        }
        let entry = Entry { number, engine, inside, goal, kind, is_over, is_suspended: false, is_asked: false };
        list.entries.insert(number, entry);
        drop(list);
        wait(&Waiter { waiters: self, number, kind })
    }

    /// Calls `found` for each waiter that is still waiting and has a goal for which `reached` returns `true`. `found`
    /// receives the waiter's number, its kind, and what its thread is inside of. A waiter for a single operation counts
    /// only if that operation is `task`, or if another operation kept it from entering a queue when the wait began.
    pub fn each_for(
        &self,
        task: Option<NonNull<()>>,
        mut reached: impl FnMut(&Goal<'_>) -> bool,
        mut found: impl FnMut(u64, Kind, &Inside),
    ) {
        let list = lock(&self.list);
        let for_task = task.and_then(|task| list.by_task.get(&task)).into_iter().flatten();
        for entry in for_task.chain(&list.others).filter_map(|number| list.entries.get(number)) {
            if reached(&entry.goal) && entry.waits() {
                found(entry.number, entry.kind, &entry.inside);
            }
        }
    }

    /// Whether any waiter is still waiting.
    pub fn any_waits(&self) -> bool {
        lock(&self.list).entries.values().any(Entry::waits)
    }

    /// Asks these waiters to look for a cycle soon.
    pub fn ask(&self, numbers: impl IntoIterator<Item = u64>) {
        let mut list = lock(&self.list);
        for number in numbers {
            list.entries.get_mut(&number).into_iter().for_each(|entry| entry.is_asked = true);
        }
    }

    /// Whether every listed thread that waits for `engine` must still wait. A thread whose wait is over stays in the
    /// list until it runs again.
    pub fn all_wait_still(&self, engine: NonNull<()>) -> bool {
        lock(&self.list).entries.values().filter(|entry| entry.engine == engine).all(Entry::waits)
    }

    /// Whether all of these waiters are still waiting.
    pub fn all_wait(&self, numbers: impl IntoIterator<Item = u64>) -> bool {
        let list = lock(&self.list);
        numbers.into_iter().all(|number| list.entries.get(&number).is_some_and(Entry::waits))
    }
}

impl Waiter<'_> {
    /// Returns the waiter's number. Later waiters have higher numbers.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns how the thread waits.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns what the waiter's thread needs to know in order to decide whether to look for a cycle. The waiter is no
    /// longer asked.
    pub fn situation(&self) -> Situation {
        if self.waiters.process.is_foreign() {
            return Situation { waiters: 1, is_last: false, is_asked: false };
        }
        let mut list = lock(&self.waiters.list);
        let waiters = u32::try_from(list.entries.len()).unwrap_or(u32::MAX);
        let is_last = list.entries.last_key_value().is_none_or(|(last, _)| *last == self.number);
        let own = list.entries.get_mut(&self.number);
        let is_asked = own.is_some_and(|own| std::mem::take(&mut own.is_asked));
        Situation { waiters, is_last, is_asked }
    }

    /// Calls `f`. The waiter does not count as waiting during the call.
    pub fn suspend<R>(&self, f: impl FnOnce() -> R) -> R {
        self.set_suspended(true);
        let result = f();
        self.set_suspended(false);
        result
    }

    fn set_suspended(&self, is_suspended: bool) {
        if self.waiters.process.is_foreign() {
            return;
        }
        let mut list = lock(&self.waiters.list);
        list.entries.get_mut(&self.number).into_iter().for_each(|own| own.is_suspended = is_suspended);
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if !self.waiters.process.is_foreign() {
            lock(&self.waiters.list).remove(self.number);
        }
    }
}
