//! The count of pending operations, without a contended counter. A wait covers exactly the operations counted in before
//! it.
//!
//! # States
//!
//! Operations are counted by *generation*. Exactly one generation is *current*: the one that pushes enter. A wait for
//! all operations makes a free generation the current one and then *closes* the previous one. A closed generation
//! drains, and is then free again. If no generation is free, a new one is created. Each generation has three words per
//! shard, of which `rest` is used in the first shard only, and threads are spread over the shards. The words of the
//! first [`INLINE`] generations are together, those of further generations in chunks, each as large as all generations
//! before it.
//!
//! | word | meaning | bit 0 | bit 1 |
//! |---|---|---|---|
//! | `entered` | operations that entered through this shard, times four; increased by CAS | closed: an operation must enter the current generation instead | unused |
//! | `left` | operations that left through this shard, times four | armed: a leaving operation also subtracts one from `rest` | watched: a leaving operation also looks for waiters for room |
//! | `rest` | see below | | |
//!
//! Closing sets bit 0 of every word with one read-modify-write per word, which returns the word's exact count at that
//! moment. The number of operations that have entered but not left is then added to the generation's `rest`, which
//! counts from [`ZERO`]. So exactly one change leaves `rest` at `ZERO`: this addition, if all operations have left by
//! then, or else the decrement of the last operation to leave. The thread that makes this change frees the generation.
//! In the second case, it also notifies the waiters whose waits are over.
//!
//! Each closing has a number, one higher than the number of the closing before. A wait depends on the number of its own
//! closing: it is over when every generation closed with this number or a lower one has drained. So it covers exactly
//! the operations that entered before it, however many generations drain.
//!
//! # Room
//!
//! A count may have a limit. Under the lock, a thread or future that waits for room *watches* (sets bit 1 of `left` in
//! every shard of every generation that is not free), then counts, and is registered if there is no room. A leaving
//! operation either comes before the watching `fetch_or` of its word, in which case the count no longer includes it, or
//! finds the bit, takes the lock, counts, and notifies the waiters if there is room. So no wake-up is lost, and
//! operations incur no cost while nothing waits for room. The bits are cleared when an operation leaves, or the limit
//! changes, and no waiter is registered.
//!
//! Threads are notified only once there is more room than [`slack`], which suffices because they wait with time limits.
//! The first future is notified as soon as there is any room. When the wait of that future ends, the next future is
//! notified if there is still room ([`tell_next`](PendingOps::tell_next)), whether or not the first has used any.
//!
//! # Edges
//!
//! [`leave`](crate::sync::edge::leave), [`open`](crate::sync::edge::open), [`close`](crate::sync::edge::close).
//!
//! The closing thread holds the lock, which the last operation to leave takes afterwards. What was acquired by arming
//! is therefore handed over with the lock, and closing releases nothing into `left` or `rest`.
//!
//! # Progress
//!
//! `enter` is lock-free. So is `leave`, except that it takes the lock if the operation was the last of a closed
//! generation, or if the word is watched. `enter` repeats an attempt only if a wait has closed the generation since the
//! thread loaded `current`, or if another thread has changed the shard's word first. A wait closes the current
//! generation immediately, even if others are still draining.
//!
//! This module wakes no wakers: a call that ends the waits of futures returns their wakers. The caller must wake them
//! once it holds nothing for which another thread may be waiting.

use std::{
    collections::BTreeSet,
    task::{Poll, Waker},
    time::Instant,
};

use crossbeam_utils::CachePadded;

use crate::{
    notify::wakers::{self, Waiting, WakerKey, Wakers},
    sync::{
        Condvar, Mutex, MutexGuard, OnceLock,
        Ordering::Relaxed,
        atomic::{AtomicU64, AtomicUsize},
        edge::{self, acquire, acquire_release, release, removed, step},
        lock,
        process::ProcessMark,
        thread, wait_until,
    },
    testing::pause::{self, Point},
};

/// The number of generations outside chunks. More are in use only while as many waits overlap. With four, the words of
/// a shard take two cache lines, and a group, which has one shard, stays small. Fewer in models, so that they need
/// chunks.
const INLINE: usize = if cfg!(any(raddle_loom, raddle_shuttle)) { 2 } else { 4 };

/// The bit that means *closed* in `entered`, and *armed* in `left`.
const FLAG: u64 = 1;
/// The bit that means *watched* in `left`.
const WATCH: u64 = 2;
const ONE: u64 = 4;

/// The value that means *no limit*.
pub const UNLIMITED: u64 = u64::MAX;

/// Returns a number of operations: threads that wait for room are notified when the count is below the limit by more
/// than this. The distance keeps a fast-pushing thread from sleeping and waking for each operation. Not tuned.
pub fn slack(limit: u64) -> u64 {
    (limit / 8).min(32)
}

/// The value from which `rest` counts. It is not 0, since operations that leave during a closing may decrement `rest`
/// before the number of pending operations is added.
const ZERO: u64 = 1 << 63;

/// One shard's words, for the first generations or for those in a chunk.
#[derive(Debug)]
#[repr(C)]
struct Shard<W> {
    entered: W,
    leaving: LeavingWords<W>,
}

/// The words that leaving operations change. They are not in the cache line of `entered`, since other threads push.
#[derive(Debug)]
#[repr(align(64))]
struct LeavingWords<W> {
    left: W,
    rest: W,
}

/// Further generations.
#[derive(Debug)]
struct Chunk {
    shards: Box<[Shard<Box<[AtomicU64]>>]>,
    more: OnceLock<Box<Chunk>>,
}

impl Chunk {
    fn new(shards: usize, generations: usize) -> Self {
        let words = |word: u64| (0..generations).map(|_| AtomicU64::new(word)).collect::<Box<[_]>>();
        // Free generations are closed.
        let leaving = || LeavingWords { left: words(FLAG), rest: words(ZERO) };
        let shard = |_| Shard { entered: words(FLAG), leaving: leaving() };
        Self { shards: (0..shards).map(shard).collect(), more: OnceLock::new() }
    }
}

/// The state that the lock protects.
#[derive(Debug)]
struct PendingState {
    /// Generations that may be opened. The lowest is taken first, so generations in chunks are used only while needed.
    free: BTreeSet<usize>,
    /// For each generation that was ever used, the number of the last closing after which it had to drain, or 0.
    numbers: Vec<u64>,
    /// The closing numbers of the generations that are draining.
    draining: BTreeSet<u64>,
    /// The number of the last closing.
    last: u64,
    /// The waiting futures, by the numbers on which their waits depend.
    waiting: Waiting,
    /// The number of threads that wait for room.
    threads_for_room: usize,
    /// The futures that wait for room.
    for_room: Waiting,
    /// Whether the generations are watched.
    watched: bool,
    /// The number of operations that left generations before those generations were last opened.
    left: u64,
}

impl PendingState {
    /// Returns the highest closing number for which the waits that depend on it, or on a lower number, are over.
    fn over(&self) -> u64 {
        self.draining.first().map_or(self.last, |&first| first - 1)
    }

    /// Returns the generations that are not free.
    fn used(&self) -> impl Iterator<Item = usize> {
        (0..self.numbers.len()).filter(|generation| !self.free.contains(generation))
    }
}

/// A wait: the number on which it depends, and the key of its waker if it is polled. A polled wait must be passed to
/// `end` when it ends.
#[derive(Debug)]
pub struct PendingWait(WakerKey);

/// The result of closing a generation.
struct Closed {
    /// The number of this closing.
    number: u64,
    /// Whether operations had entered the next generation by the end of the closing.
    entered_since: bool,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The operations that entered before the wait have left, and at some moment during the call no operation was
    /// pending.
    Idle,
    /// The operations that entered before the wait have left. Others may be pending.
    Over,
    /// The deadline passed while operations that had entered before the wait were pending.
    TimedOut,
}

/// The count of pending operations. Its first cache line has what pushes read.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PendingOps {
    current: AtomicUsize,
    shards: Box<[CachePadded<Shard<[AtomicU64; INLINE]>>]>,
    /// The number of pending operations at which no room is left.
    limit: AtomicU64,
    /// The process that created the count. In a forked child, the lock may be held forever by a thread of the parent.
    process: ProcessMark,
    more: OnceLock<Box<Chunk>>,
    drained: Condvar,
    room: Condvar,
    state: Mutex<PendingState>,
}

/// An operation's ticket: the generation that it entered and must leave.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(u32);

impl PendingOps {
    /// Creates a count with at least `shards` shards. Their number is a power of two.
    pub fn new(shards: usize) -> Self {
        // Every generation but the current one is closed.
        let words = |current: u64, other: u64| {
            std::array::from_fn(|generation| AtomicU64::new(if generation == 0 { current } else { other }))
        };
        let leaving = || LeavingWords { left: words(0, FLAG), rest: words(ZERO, ZERO) };
        let shard = |_| CachePadded::new(Shard { entered: words(0, FLAG), leaving: leaving() });
        Self {
            current: AtomicUsize::new(0),
            shards: (0..shards.next_power_of_two()).map(shard).collect(),
            limit: AtomicU64::new(UNLIMITED),
            process: ProcessMark::current(),
            more: OnceLock::new(),
            drained: Condvar::new(),
            room: Condvar::new(),
            state: Mutex::new(PendingState {
                free: BTreeSet::new(),
                numbers: vec![0],
                draining: BTreeSet::new(),
                last: 0,
                waiting: Waiting::default(),
                threads_for_room: 0,
                for_room: Waiting::default(),
                watched: false,
                left: 0,
            }),
        }
    }

    /// Returns the index of the calling thread's shard.
    #[inline]
    fn shard(&self) -> usize {
        // The length is a power of two, so no division is needed.
        thread::number() & (self.shards.len() - 1)
    }

    /// Returns the word `entered` of a generation in a shard.
    fn entered(&self, shard: usize, generation: usize) -> &AtomicU64 {
        self.shards[shard].entered.get(generation).unwrap_or_else(|| {
            let (chunk, index) = self.chunk(generation);
            &chunk.shards[shard].entered[index]
        })
    }

    /// Returns the word `left` of a generation in a shard.
    fn left(&self, shard: usize, generation: usize) -> &AtomicU64 {
        self.shards[shard].leaving.left.get(generation).unwrap_or_else(|| {
            let (chunk, index) = self.chunk(generation);
            &chunk.shards[shard].leaving.left[index]
        })
    }

    /// Returns the word `rest` of a generation.
    fn rest(&self, generation: usize) -> &AtomicU64 {
        self.shards[0].leaving.rest.get(generation).unwrap_or_else(|| {
            let (chunk, index) = self.chunk(generation);
            &chunk.shards[0].leaving.rest[index]
        })
    }

    /// Returns the chunk of a generation, and the generation's index in the chunk.
    #[cold]
    fn chunk(&self, generation: usize) -> (&Chunk, usize) {
        let (mut more, mut before) = (&self.more, INLINE);
        loop {
            // The chunk was created before the generation was opened for the first time (edge `open`).
            let Some(chunk) = more.get() else { unreachable!("the generation was never opened") };
            if generation < 2 * before {
                return (chunk, generation - before);
            }
            (more, before) = (&chunk.more, 2 * before);
        }
    }

    /// Counts an operation in and returns its ticket. Afterwards, everything that happened before the operation's
    /// generation was opened is visible.
    #[inline(always)]
    pub fn enter(&self) -> Ticket {
        let shard = &self.shards[self.shard()];
        loop {
            let generation = self.current.load(acquire(edge::open::ENTER));
            let Some(word) = shard.entered.get(generation) else { return self.enter_chunk() };
            if Self::enter_by(word) {
                return Ticket(generation as u32);
            }
        }
    }

    /// Counts an operation in, like [`enter`](Self::enter), if the current generation is in a chunk.
    #[cold]
    #[inline(never)]
    fn enter_chunk(&self) -> Ticket {
        let shard = self.shard();
        loop {
            let generation = self.current.load(acquire(edge::open::ENTER_CHUNK));
            if Self::enter_by(self.entered(shard, generation)) {
                return Ticket(generation as u32);
            }
        }
    }

    /// Counts an operation in through the `word` of a generation. Returns `false` if the word is closed or another
    /// thread has changed it first.
    #[inline(always)]
    fn enter_by(word: &AtomicU64) -> bool {
        // If the flag is set, the next load of `current` sees the generation that took this one's place, or a later
        // one.
        let count = word.load(acquire(edge::close::FOUND));
        pause::at(Point::PendingBeforeEnter);
        // A CAS rather than an addition, so that a refused entry leaves no trace: the generation could be opened and
        // closed again before an addition was undone. Since the load, the word may have been closed, opened, and
        // counted up to the same value. The CAS releases nothing: `leave` hands over everything that came before.
        let order = acquire(edge::open::COUNTED);
        let is_open = count & FLAG == 0 || removed(step::CLOSED_REFUSES);
        if is_open && word.compare_exchange(count, count + ONE, order, Relaxed).is_ok() {
            pause::at(Point::PendingEntered);
            return true;
        }
        false
    }

    /// Returns the number of pending operations. An operation that enters or leaves during the call may or may not be
    /// counted.
    pub fn count(&self) -> u64 {
        // The lock keeps generations from being opened or freed during the count.
        self.count_in(&lock(&self.state))
    }

    /// Returns how many operations have left so far, and how many are pending.
    pub fn totals(&self) -> (u64, u64) {
        let state = lock(&self.state);
        let left = (0..state.numbers.len()).map(|generation| self.left_in(generation)).sum::<u64>();
        (state.left + left, self.count_in(&state))
    }

    /// Returns how many operations have left a generation since it was last opened.
    fn left_in(&self, generation: usize) -> u64 {
        // Relaxed: a snapshot, unless the generation is free; in that case, it stays free under the lock.
        (0..self.shards.len()).map(|shard| self.left(shard, generation).load(Relaxed) / ONE).sum()
    }

    /// Does the same as [`count`](Self::count), for a caller that holds the lock.
    fn count_in(&self, state: &PendingState) -> u64 {
        let shards = 0..self.shards.len();
        let pending = |generation: usize| {
            // The entries of the operations that have left are loaded below.
            let order = acquire(edge::leave::COUNTED);
            let left = shards.clone().map(|shard| self.left(shard, generation).load(order) / ONE).sum::<u64>();
            // Relaxed: the loads above have acquired the entries that must count. Later entries may count too.
            let entered = shards.clone().map(|shard| self.entered(shard, generation).load(Relaxed) / ONE).sum::<u64>();
            entered.saturating_sub(left)
        };
        state.used().map(pending).sum()
    }

    /// Counts an operation out. The operation's effects are visible to every thread that sees the count without it.
    /// Returns the wakers of futures whose waits are over, or for which there is room now.
    #[inline]
    #[must_use = "futures wait to be woken"]
    pub fn leave(&self, ticket: Ticket) -> Option<Wakers> {
        let generation = ticket.0 as usize;
        let (shard, first) = (&self.shards[self.shard()], &self.shards[0]);
        let (Some(left), Some(rest)) = (shard.leaving.left.get(generation), first.leaving.rest.get(generation)) else {
            return self.leave_chunk(generation);
        };
        self.leave_by(left, rest, generation)
    }

    /// Counts an operation out, like [`leave`](Self::leave), if the generation is in a chunk.
    #[cold]
    #[inline(never)]
    fn leave_chunk(&self, generation: usize) -> Option<Wakers> {
        self.leave_by(self.left(self.shard(), generation), self.rest(generation), generation)
    }

    /// Counts an operation out through the words of its generation, of which `left` is in the calling thread's shard.
    #[inline(always)]
    fn leave_by(&self, left: &AtomicU64, rest: &AtomicU64, generation: usize) -> Option<Wakers> {
        pause::at(Point::PendingBeforeLeave);
        // Nothing is acquired from the thread that armed the word or watches it.
        let before = left.fetch_add(ONE, release(edge::leave::LEFT));
        pause::at(Point::PendingLeft);
        if before & (FLAG | WATCH) == 0 {
            return None;
        }
        if before & WATCH != 0 {
            return self.leave_watched(generation, before & FLAG != 0);
        }
        let order = acquire_release(edge::leave::LAST, edge::leave::REST);
        if rest.fetch_sub(1, order) == ZERO + 1 { self.finish(generation) } else { None }
    }

    /// The slow path of [`leave`](Self::leave), for a word that was watched and possibly also armed.
    #[cold]
    #[inline(never)]
    fn leave_watched(&self, generation: usize, armed: bool) -> Option<Wakers> {
        let order = acquire_release(edge::leave::LAST_WATCHED, edge::leave::REST_WATCHED);
        let is_last = armed && self.rest(generation).fetch_sub(1, order) == ZERO + 1;
        let drained = if is_last { self.finish(generation) } else { None };
        Wakers::join(drained, self.tell_of_room())
    }

    /// Frees a drained generation. Notifies the threads whose waits are over, and returns the wakers of such futures.
    #[cold]
    #[inline(never)]
    fn finish(&self, generation: usize) -> Option<Wakers> {
        if self.process.is_foreign() {
            return None;
        }
        let mut state = lock(&self.state);
        let before = state.over();
        let number = state.numbers[generation];
        let was_draining = state.draining.remove(&number);
        debug_assert!(was_draining, "a closed generation drains once");
        state.free.insert(generation);
        let over = state.over();
        let wakers = state.waiting.take_up_to(over);
        drop(state);
        if removed(step::LEAVE_NOTIFIES) {
            return None;
        }
        // If `over` is unchanged, an earlier generation is still draining, and no further wait is over.
        if over != before {
            self.drained.notify_all();
        }
        wakers
    }

    // -------------------------------------------------------------------------------------------------- room ----

    /// Sets the limit. If there is room now, returns the waker of the first future that waits for it.
    #[must_use = "futures wait to be woken"]
    pub fn set_limit(&self, limit: u64) -> Option<Wakers> {
        // Relaxed: a limit may be seen late. Waiters read the limit under the lock, which `tell_of_room` takes after
        // the store. It notifies those that read the old limit, if there is room; later waiters read the new limit.
        self.limit.store(limit, Relaxed);
        self.tell_of_room()
    }

    /// Returns the number of pending operations at which no room is left.
    #[inline]
    pub fn limit(&self) -> u64 {
        // Relaxed: as in `set_limit`.
        self.limit.load(Relaxed)
    }

    /// Whether there is room for one operation and `slack` others.
    pub fn has_room(&self, slack: u64) -> bool {
        let limit = self.limit();
        limit == UNLIMITED || self.count().saturating_add(slack) < limit
    }

    /// Waits until there is more room than [`slack`], until a shutdown interrupts the wait, or until `deadline`. May
    /// return earlier.
    pub fn wait_for_room(&self, deadline: Option<Instant>) {
        let mut state = lock(&self.state);
        let limit = self.limit();
        state.threads_for_room += 1;
        self.watch(&mut state);
        if self.count_in(&state).saturating_add(slack(limit)) >= limit {
            // The wait is not repeated, since the caller checks again in any case.
            state = match wait_until(&self.room, state, deadline) {
                Ok(state) => state,
                Err(_) => lock(&self.state),
            };
        }
        state.threads_for_room -= 1;
    }

    /// Wakes the threads that wait for room, since a shutdown has begun.
    pub fn interrupt_waits_for_room(&self) {
        let state = lock(&self.state);
        if state.threads_for_room > 0 {
            self.room.notify_all();
        }
    }

    /// Polls whether there is room. If there is none, registers `waker`. Registered futures are notified of room one at
    /// a time.
    pub fn poll_room(&self, key: &mut WakerKey, waker: &Waker) -> Poll<()> {
        // A future registers only if there is no room after the watch begins: an operation that left before the watch
        // notifies no waiter. The watch then lasts as long as a waiter is registered.
        wakers::poll(&self.state, key, waker, |state| {
            if self.count_in(state) < self.limit() {
                return Ok(());
            }
            let was_watched = state.watched;
            self.watch(state);
            if !was_watched && !removed(step::WATCH_LOOKS_AGAIN) && self.count_in(state) < self.limit() {
                return Ok(());
            }
            Err(&mut state.for_room)
        })
    }

    /// Ends a polled wait for room. If there is room, returns the waker of the next future: the wait that ends here may
    /// have received the only notification.
    #[must_use = "futures wait to be woken"]
    pub fn end_room(&self, key: &mut WakerKey) -> Option<Wakers> {
        wakers::leave(&self.state, key, |state| Some(&mut state.for_room));
        if removed(step::PASS_ROOM_ON) {
            return None;
        }
        self.tell_next()
    }

    /// If there is room, returns the waker of the first future waiting for it.
    #[must_use = "futures wait to be woken"]
    pub fn tell_next(&self) -> Option<Wakers> {
        if self.process.is_foreign() {
            return None;
        }
        let mut state = lock(&self.state);
        if !state.for_room.is_empty() && self.count_in(&state) < self.limit() {
            state.for_room.take_first()
        } else {
            None
        }
    }

    /// Begins the watch: from now on, an operation that leaves [notifies](Self::tell_of_room) the waiters for room, if
    /// there is room.
    fn watch(&self, state: &mut PendingState) {
        if state.watched || removed(step::WATCH_FOR_ROOM) {
            return;
        }
        state.watched = true;
        for generation in state.used() {
            for shard in 0..self.shards.len() {
                // Relaxed: nothing is handed over. The count that follows loads this word again, and so no longer
                // includes the operations that left before this `fetch_or`. Those that leave later find the bit.
                self.left(shard, generation).fetch_or(WATCH, Relaxed);
            }
        }
    }

    /// Notifies the threads that wait for room if there is more room than [`slack`], and returns the waker of the first
    /// future that waits for room if there is any room. If there are no waiters, ends the watch.
    #[cold]
    #[inline(never)]
    fn tell_of_room(&self) -> Option<Wakers> {
        if self.process.is_foreign() {
            return None;
        }
        let mut state = lock(&self.state);
        if state.threads_for_room == 0 && state.for_room.is_empty() {
            if state.watched {
                state.watched = false;
                for generation in state.used() {
                    for shard in 0..self.shards.len() {
                        // Relaxed: a later watch sets the bit again, under the lock.
                        self.left(shard, generation).fetch_and(!WATCH, Relaxed);
                    }
                }
            }
            return None;
        }
        let (count, limit) = (self.count_in(&state), self.limit());
        if state.threads_for_room > 0 && count.saturating_add(slack(limit)) < limit {
            self.room.notify_all();
        }
        if count < limit { state.for_room.take_first() } else { None }
    }

    // ------------------------------------------------------------------------------------------------- waits ----

    /// Waits until every operation that entered before the call has left, or until `deadline`.
    pub fn wait(&self, deadline: Option<Instant>) -> WaitEnd {
        let mut state = lock(&self.state);
        let Closed { number, entered_since } = self.close(&mut state);
        if !entered_since && state.over() >= number {
            return WaitEnd::Idle;
        }
        self.wait_in(state, number, deadline)
    }

    /// Waits until the generations closed with `number` or a lower number have drained, or until `deadline`.
    fn wait_in(&self, mut state: MutexGuard<'_, PendingState>, number: u64, deadline: Option<Instant>) -> WaitEnd {
        while state.over() < number {
            state = match wait_until(&self.drained, state, deadline) {
                Ok(state) => state,
                Err(_) => return WaitEnd::TimedOut,
            };
        }
        WaitEnd::Over
    }

    /// Waits until the operations that `wait` covers have left, or until `deadline`.
    pub fn wait_for(&self, wait: &PendingWait, deadline: Option<Instant>) -> WaitEnd {
        self.wait_in(lock(&self.state), wait.0.target(), deadline)
    }

    /// Whether `wait` covers the operation with this ticket, which must not have left.
    pub fn covers(&self, wait: &PendingWait, Ticket(generation): Ticket) -> bool {
        let (state, generation) = (lock(&self.state), generation as usize);
        // Relaxed: `current` changes only under the lock.
        generation != self.current.load(Relaxed) && state.numbers[generation] <= wait.0.target()
    }

    /// Whether the operations that `wait` covers have left.
    pub fn is_over(&self, wait: &PendingWait) -> bool {
        lock(&self.state).over() >= wait.0.target()
    }

    /// Waits until no operation is pending, not even one that entered during the wait. Before each time that it blocks,
    /// calls `before`, which may return a time at which to stop blocking and call `before` again. In a forked child,
    /// does not continue to wait.
    pub fn wait_until_idle(&self, mut before: impl FnMut() -> Option<Instant>) {
        // The first round does not block and so does not call `before`, since usually nothing is pending.
        let mut waited = self.wait(Some(Instant::now()));
        let is_over = |waited| waited == WaitEnd::Idle || removed(step::IDLE_WAITS_AGAIN) && waited == WaitEnd::Over;
        while !is_over(waited) && !self.process.is_foreign() {
            waited = self.wait(before());
        }
    }

    /// Begins a wait that covers the operations that entered before this call. Does not block.
    pub fn begin(&self) -> PendingWait {
        let Closed { number, .. } = self.close(&mut lock(&self.state));
        PendingWait(WakerKey::new(number))
    }

    /// Polls whether the operations that `wait` covers have left. If some have not, `waker` is woken when all have.
    pub fn poll(&self, wait: &mut PendingWait, waker: &Waker) -> Poll<()> {
        let number = wait.0.target();
        wakers::poll(&self.state, &mut wait.0, waker, |state| {
            if state.over() >= number { Ok(()) } else { Err(&mut state.waiting) }
        })
    }

    /// Ends a polled wait, whether or not it is over, and removes its waker.
    pub fn end(&self, wait: &mut PendingWait) {
        wakers::leave(&self.state, &mut wait.0, |state| Some(&mut state.waiting));
    }

    /// Polls whether there was a moment during the call at which no operation was pending. If there was none, `waker`
    /// is woken when another poll may succeed.
    pub fn poll_idle(&self, waker: &Waker) -> Poll<()> {
        loop {
            let mut state = lock(&self.state);
            let Closed { number, entered_since } = self.close(&mut state);
            if !entered_since && state.over() >= number {
                return Poll::Ready(());
            }
            drop(state);
            if self.poll(&mut PendingWait(WakerKey::new(number)), waker).is_pending() {
                return Poll::Pending;
            }
            if removed(step::END_CHECKS_AGAIN) {
                return Poll::Ready(());
            }
        }
    }

    /// Opens another generation and closes the current one.
    fn close(&self, state: &mut PendingState) -> Closed {
        let next = state.free.pop_first().unwrap_or_else(|| self.make(state));
        state.last += 1;
        Closed { number: state.last, entered_since: self.rotate(state, next) }
    }

    /// Creates an additional generation.
    #[cold]
    fn make(&self, state: &mut PendingState) -> usize {
        let generation = state.numbers.len();
        assert!(u32::try_from(generation).is_ok(), "there are more generations than tickets");
        if generation >= INLINE && generation.is_power_of_two() {
            let mut last = &self.more;
            while let Some(chunk) = last.get() {
                last = &chunk.more;
            }
            let made = last.set(Box::new(Chunk::new(self.shards.len(), generation)));
            debug_assert!(made.is_ok(), "each chunk is made once, under the lock");
        }
        state.numbers.push(0);
        generation
    }

    /// Makes `next`, which is free, the current generation, and closes the previous one. Returns whether operations had
    /// entered `next` by the time the previous one was closed.
    fn rotate(&self, state: &mut PendingState, next: usize) -> bool {
        let shards = 0..self.shards.len();
        // Relaxed: `current` changes only under the lock.
        let old = self.current.load(Relaxed);
        if !cfg!(any(raddle_loom, raddle_shuttle)) {
            // Models have no statistics.
            state.left += self.left_in(next);
        }
        // Relaxed: no operation leaves a free generation, and the stores below publish the word.
        self.rest(next).store(ZERO, Relaxed);
        for shard in shards.clone() {
            // Relaxed: no operation leaves a free generation, and the stores below publish the word.
            let is_watched = state.watched && !removed(step::NEXT_WATCHED);
            self.left(shard, next).store(if is_watched { WATCH } else { 0 }, Relaxed);
        }
        // Stored after every `left`: from here on, a thread that loaded `current` when `next` was last the current
        // generation may enter, and may leave through any shard.
        for shard in shards.clone() {
            self.entered(shard, next).store(0, release(edge::open::ENTERED));
        }
        self.current.store(next, release(edge::open::CURRENT));

        // `left` is armed first: every operation that leaves through an armed shard subtracts one from `rest`, so it
        // does not matter how many more enter or leave before the closing is over. What is acquired includes the
        // entries of the operations that left, which the sum below therefore counts.
        let arm = |shard: usize| self.left(shard, old).fetch_or(FLAG, acquire(edge::leave::ARMED)) / ONE;
        let left: u64 = shards.clone().map(arm).sum();
        // An entry that comes before this change in the word's modification order is counted; the CAS of a later one
        // fails.
        let close = |shard: usize| self.entered(shard, old).fetch_or(FLAG, release(edge::close::CLOSED)) / ONE;
        let entered: u64 = shards.clone().map(close).sum();
        let pending = entered - left;
        // The last operation to leave sees `ZERO + 1` only if it comes after this addition. Its thread then takes the
        // lock after this thread.
        if self.rest(old).fetch_add(pending, acquire(edge::leave::COMPUTED)).wrapping_add(pending) == ZERO {
            state.free.insert(old);
        } else {
            state.numbers[old] = state.last;
            state.draining.insert(state.last);
        }
        // Relaxed: suppose that an operation left `old`, that its departure was counted above, and that another
        // operation had entered `next` before. The read-modify-writes above have acquired the departure (edge `leave`),
        // and with it the other operation's entry, which is therefore visible here.
        shards.map(|shard| self.entered(shard, next)).any(|word| word.load(Relaxed) != 0)
    }
}
