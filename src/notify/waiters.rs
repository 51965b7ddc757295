//! The threads asleep in calls to an engine, what each waits for, and the open scopes that were opened inside
//! operations. One list serves all engines of the process, since a thread inside an operation of one engine may wait
//! for another. Searches for cycles of waits, dumps, watchdogs and shuffling read the list.
//!
//! # States
//!
//! An entry is in the list until its thread's call to [`Waiters::during`] returns. It is *watched* if its thread is
//! inside operations or epilogues and its goal is known; only watched entries can be part of a cycle. It is *suspended*
//! while the thread runs program code during the wait. It is *asked* from the time when another thread finds that this
//! wait must end a cycle until its own thread has seen that.
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
//! * The list of a parent process, in a forked child: no thread, since a thread of the parent may have held the lock at
//!   the fork. The child has a list of its own ([`waiters`]).
//!
//! While an entry is in the list, its thread is inside the operations in `inside`. Therefore the records of the
//! operations that run on the thread exist for that long. The record of an operation around them exists at least until
//! the operation inside it is complete (see [`Nested::depth`]). This module does not dereference pointers to operations
//! or to scopes' counts. There are no edges.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    fmt,
    mem::transmute,
    ptr::NonNull,
    thread::{self, Thread},
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use crate::{
    notify::pending::{PendingOps, PendingWait, Ticket},
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::AtomicPtr,
        lock,
        process::{PerProcess, ProcessMark},
    },
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
        kept_out_by: Option<&'g AtomicPtr<()>>,
    },
    /// The operations that are in this count and that the given wait covers; if no wait is given, all operations in the
    /// count.
    Counted(&'g PendingOps, Option<&'g PendingWait>),
}

impl Goal<'_> {
    /// Returns the goal's task if the goal is a single operation that nothing keeps from entering a queue.
    fn only_task(&self) -> Option<NonNull<()>> {
        match self {
            // Relaxed: set before the wait, and never changed except to null. An outdated pointer merely leaves the
            // entry among those that every walk considers.
            Self::Op { task, kept_out_by } => kept_out_by.is_none_or(|by| by.load(Relaxed).is_null()).then_some(*task),
            Self::Counted(..) => None,
        }
    }

    /// Whether the goal is a single operation that `task` identifies, or that the operation identified by `task` keeps
    /// from entering a queue.
    pub fn depends_on(&self, task: NonNull<()>) -> bool {
        match self {
            // Relaxed: see `WaitersPlace::is_kept_out_by`. The caller has found the operation of `task` to be
            // incomplete.
            Self::Op { task: own, kept_out_by } => {
                *own == task || kept_out_by.is_some_and(|by| by.load(Relaxed) == task.as_ptr())
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
pub enum WaiterKind {
    /// Until the wait is over, or is refused.
    Refusable,
    /// Until the wait is over, is refused or reaches its time limit, so other waits cannot depend on it forever.
    Timed,
    /// Until the wait is over. It cannot be refused, because it ends a scope.
    Closing,
}

/// The kind of thing for which a thread waits.
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

/// A function, callable from any thread, that returns whether a wait is over. It is called under the list's lock, so it
/// must neither wait nor use the list.
pub type IsOver<'o> = dyn Fn() -> bool + Sync + 'o;

/// A wait of the calling thread.
#[derive(Clone, Copy)]
pub struct BlockingWait<'w> {
    /// The engine for which the thread waits. The pointer is only compared.
    pub engine: NonNull<()>,
    /// What the thread is inside of.
    pub inside: &'w Inside,
    /// Whether the thread runs no program code for any engine.
    pub is_outside: bool,
    pub kind: WaiterKind,
    pub awaits: Awaits,
    /// The operations that the thread waits for, if they are known.
    pub goal: Option<Goal<'w>>,
    /// The time since which the thread has been waiting.
    pub since: Instant,
    pub is_over: &'w IsOver<'w>,
}

impl BlockingWait<'_> {
    /// Returns the wait with its lifetime erased.
    ///
    /// # Safety
    /// 1. The result is not used after the lifetime of `self`.
    unsafe fn unbound(self) -> BlockingWait<'static> {
        // SAFETY: (1), and only the lifetime changes.
        unsafe { transmute::<BlockingWait<'_>, BlockingWait<'static>>(self) }
    }

    /// Whether the wait can be part of a cycle that a walk finds.
    fn is_watched(&self) -> bool {
        self.goal.is_some() && !self.inside.is_empty()
    }
}

/// The threads that wait, and the open scopes.
#[derive(Debug)]
pub struct Waiters {
    list: Mutex<WaiterList>,
    /// The process that created the list.
    process: ProcessMark,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { list: Mutex::default(), process: ProcessMark::current() }
    }
}

/// Returns the waiters of this process.
pub fn waiters() -> &'static Waiters {
    static WAITERS: PerProcess<Waiters> = PerProcess::new();
    WAITERS.get(Waiters::default)
}

#[derive(Debug, Default)]
struct WaiterList {
    /// The last number given to an entry.
    last: u64,
    /// The watched entries, by number.
    watched: BTreeMap<u64, WaiterEntry>,
    /// The other entries, by number.
    unwatched: BTreeMap<u64, WaiterEntry>,
    /// The numbers of the watched entries that await a single operation which nothing keeps from entering a queue, by
    /// that operation's task. If nothing keeps an operation from entering a queue when a wait for it begins, nothing
    /// does so later.
    by_task: BTreeMap<NonNull<()>, SmallVec<[u64; 2]>>,
    /// The numbers of the other watched entries.
    not_by_task: BTreeSet<u64>,
    scopes: Vec<OpenScope>,
}

// SAFETY: the keys of `by_task` are pointers that are only compared.
unsafe impl Send for WaiterList {}

impl WaiterList {
    fn add(&mut self, waiting: BlockingWait<'static>) -> u64 {
        self.last += 1;
        let number = self.last;
        let entry = WaiterEntry { number, waiting, thread: thread::current(), is_suspended: false, is_asked: false };
        if !waiting.is_watched() {
            self.unwatched.insert(number, entry);
            return number;
        }
        match waiting.goal.as_ref().and_then(Goal::only_task) {
            Some(task) => self.by_task.entry(task).or_default().push(number),
            None => _ = self.not_by_task.insert(number),
        }
        self.watched.insert(number, entry);
        number
    }

    fn remove(&mut self, number: u64) {
        let Some(entry) = self.watched.remove(&number) else {
            self.unwatched.remove(&number);
            return;
        };
        if self.not_by_task.remove(&number) {
            return;
        }
        let Some(Goal::Op { task, .. }) = entry.waiting.goal else { return };
        if let btree_map::Entry::Occupied(mut numbers) = self.by_task.entry(task) {
            numbers.get_mut().retain(|other| *other != number);
            if numbers.get().is_empty() {
                numbers.remove();
            }
        }
    }

    /// Returns the entries of an engine whose waits are not over, including suspended ones.
    fn of_engine(&self, engine: NonNull<()>) -> impl Iterator<Item = &WaiterEntry> {
        let entries = self.watched.values().chain(self.unwatched.values());
        entries.filter(move |entry| entry.waiting.engine == engine && !(entry.waiting.is_over)())
    }
}

struct WaiterEntry {
    number: u64,
    /// Borrowed by the call to `during` that added the entry.
    waiting: BlockingWait<'static>,
    thread: Thread,
    is_suspended: bool,
    is_asked: bool,
}

impl fmt::Debug for WaiterEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, awaits) = (&self.number, &self.waiting.awaits);
        f.debug_struct("WaiterEntry").field("number", number).field("awaits", awaits).finish_non_exhaustive()
    }
}

impl WaiterEntry {
    fn waits(&self) -> bool {
        !self.is_suspended && !(self.waiting.is_over)()
    }
}

// SAFETY: the pointers to operations and to the engine are not dereferenced here, everything that a `Goal` refers to is
// `Sync`, and any thread may call `is_over`.
unsafe impl Send for WaiterEntry {}

/// An open scope: it was opened inside an operation and has not ended.
#[derive(Clone, Copy, Debug)]
pub struct OpenScope {
    /// The engine of the scope. The pointer is only compared.
    pub engine: NonNull<()>,
    /// The innermost operation of this engine around the scope.
    pub op: NonNull<()>,
    /// The count of the scope's operations.
    pub count: NonNull<PendingOps>,
}

// SAFETY: the pointers are not dereferenced here.
unsafe impl Send for OpenScope {}

/// What a dump shows of a waiting thread.
#[derive(Debug)]
pub struct WaitingThread {
    pub number: u64,
    pub thread: Thread,
    /// The operations that run on the thread, each followed by those that enclose it.
    pub ops: Ops,
    pub awaits: Awaits,
    /// Whether it is known which operations the thread waits for.
    pub has_goal: bool,
    pub time: Duration,
}

/// The waits for an engine of the threads that run no program code for any engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutsideWaits {
    /// There are none.
    None,
    /// None of them is over.
    Wait,
    /// At least one is over. Its thread has yet to run.
    SomeOver,
}

/// What a waiter's thread needs to know in order to decide whether to look for a cycle.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// The number of watched waiters.
    pub waiters: u32,
    /// Whether no other watched waiter began to wait later.
    pub is_last: bool,
    /// Whether another thread has found that this wait must end a cycle.
    pub is_asked: bool,
}

/// A waiter, listed until the call to [`Waiters::during`] returns.
pub struct ListedWaiter<'w> {
    waiters: &'w Waiters,
    number: u64,
    waiting: BlockingWait<'w>,
}

impl fmt::Debug for ListedWaiter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListedWaiter").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Waiters {
    /// Calls `wait`, and lists the calling thread as a waiter until `wait` returns.
    pub fn during<R>(&self, waiting: BlockingWait<'_>, wait: impl FnOnce(&ListedWaiter<'_>) -> R) -> R {
        // SAFETY: (1): the entry leaves the list before this call returns.
        let listed = unsafe { waiting.unbound() };
        let number = lock(&self.list).add(listed);
        wait(&ListedWaiter { waiters: self, number, waiting })
    }

    /// Calls `found` for each watched waiter that is still waiting and has a goal for which `reached` returns `true`.
    /// `found` receives the waiter's number, its kind, and what its thread is inside of. A waiter for a single
    /// operation counts only if that operation is `task`, or if another operation kept it from entering a queue when
    /// the wait began.
    pub fn each_for(
        &self,
        task: Option<NonNull<()>>,
        mut reached: impl FnMut(&Goal<'_>) -> bool,
        mut found: impl FnMut(u64, WaiterKind, &Inside),
    ) {
        let list = lock(&self.list);
        let for_task = task.and_then(|task| list.by_task.get(&task)).into_iter().flatten();
        for entry in for_task.chain(&list.not_by_task).filter_map(|number| list.watched.get(number)) {
            if entry.waiting.goal.as_ref().is_some_and(&mut reached) && entry.waits() {
                found(entry.number, entry.waiting.kind, entry.waiting.inside);
            }
        }
    }

    /// Calls `found` for each watched waiter that is still waiting, with the waiter's number, its kind, and what its
    /// thread is inside of.
    pub fn each(&self, mut found: impl FnMut(u64, WaiterKind, &Inside)) {
        for entry in lock(&self.list).watched.values().filter(|entry| entry.waits()) {
            found(entry.number, entry.waiting.kind, entry.waiting.inside);
        }
    }

    /// Asks these waiters to look for a cycle soon.
    pub fn ask(&self, numbers: impl IntoIterator<Item = u64>) {
        let mut list = lock(&self.list);
        for number in numbers {
            list.watched.get_mut(&number).into_iter().for_each(|entry| entry.is_asked = true);
        }
    }

    /// Whether every watched waiter for `engine` must still wait. A thread whose wait is over stays in the list until
    /// it runs again.
    pub fn all_wait_still(&self, engine: NonNull<()>) -> bool {
        lock(&self.list).watched.values().filter(|entry| entry.waiting.engine == engine).all(WaiterEntry::waits)
    }

    /// Whether all of these watched waiters are still waiting.
    pub fn all_wait(&self, numbers: impl IntoIterator<Item = u64>) -> bool {
        let list = lock(&self.list);
        numbers.into_iter().all(|number| list.watched.get(&number).is_some_and(WaiterEntry::waits))
    }

    /// Returns how the threads outside wait for `engine`.
    pub fn outside(&self, engine: NonNull<()>) -> OutsideWaits {
        let list = lock(&self.list);
        let is_outside = |entry: &&WaiterEntry| entry.waiting.engine == engine && entry.waiting.is_outside;
        list.unwatched.values().filter(is_outside).fold(OutsideWaits::None, |all, entry| {
            if all == OutsideWaits::SomeOver || !entry.waits() { OutsideWaits::SomeOver } else { OutsideWaits::Wait }
        })
    }

    /// Returns the threads whose waits for `engine` are not over, in the order in which they were listed.
    pub fn of_engine(&self, engine: NonNull<()>) -> Vec<WaitingThread> {
        let waiting_thread = |entry: &WaiterEntry| WaitingThread {
            number: entry.number,
            thread: entry.thread.clone(),
            ops: entry.waiting.inside.ops.clone(),
            awaits: entry.waiting.awaits,
            has_goal: entry.waiting.goal.is_some(),
            time: entry.waiting.since.elapsed(),
        };
        let mut threads: Vec<_> = lock(&self.list).of_engine(engine).map(waiting_thread).collect();
        threads.sort_by_key(|thread| thread.number);
        threads
    }

    /// For each thread whose wait for `engine` is not over and whose goal is known, calls `found` with the number of
    /// the thread's entry, with whether operations run on the thread, and with the goal.
    pub fn each_goal(&self, engine: NonNull<()>, mut found: impl FnMut(u64, bool, &Goal<'_>)) {
        for entry in lock(&self.list).of_engine(engine) {
            if let Some(goal) = &entry.waiting.goal {
                found(entry.number, !entry.waiting.inside.ops.is_empty(), goal);
            }
        }
    }

    /// Adds a scope.
    pub fn open_scope(&self, scope: OpenScope) {
        lock(&self.list).scopes.push(scope);
    }

    /// Removes the scope with this count, if it was added in this process.
    pub fn close_scope(&self, count: NonNull<PendingOps>) {
        let mut list = lock(&self.list);
        if let Some(index) = list.scopes.iter().rposition(|scope| scope.count == count) {
            list.scopes.swap_remove(index);
        }
    }

    /// Returns the open scopes of `engine`.
    pub fn scopes(&self, engine: NonNull<()>) -> Vec<OpenScope> {
        lock(&self.list).scopes.iter().filter(|scope| scope.engine == engine).copied().collect()
    }
}

impl<'w> ListedWaiter<'w> {
    /// Returns the waiter's number. Later waiters have higher numbers.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns how the thread waits.
    pub fn kind(&self) -> WaiterKind {
        self.waiting.kind
    }

    /// Returns what the thread is inside of.
    pub fn inside(&self) -> &'w Inside {
        self.waiting.inside
    }

    /// Whether the wait can be part of a cycle that a walk finds.
    pub fn is_watched(&self) -> bool {
        self.waiting.is_watched()
    }

    /// Whether the wait is over.
    pub fn is_over(&self) -> bool {
        (self.waiting.is_over)()
    }

    /// Returns what the waiter's thread needs to know in order to decide whether to look for a cycle. The waiter is no
    /// longer asked.
    pub fn situation(&self) -> Situation {
        if self.waiters.process.is_foreign() {
            return Situation { waiters: 1, is_last: false, is_asked: false };
        }
        let mut list = lock(&self.waiters.list);
        let waiters = u32::try_from(list.watched.len()).unwrap_or(u32::MAX);
        let is_last = list.watched.last_key_value().is_none_or(|(last, _)| *last == self.number);
        let own = list.watched.get_mut(&self.number);
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
        list.watched.get_mut(&self.number).into_iter().for_each(|own| own.is_suspended = is_suspended);
    }
}

impl Drop for ListedWaiter<'_> {
    fn drop(&mut self) {
        if !self.waiters.process.is_foreign() {
            lock(&self.waiters.list).remove(self.number);
        }
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;
