//! The event count of a lane: which workers sleep, and which one a notifier wakes. `README.md` beside this file
//! describes the protocol.
//!
//! # Edges
//!
//! [`thread`](crate::sync::edge::thread), [`sleep`](crate::sync::edge::sleep).
//!
//! `README.md` also explains what the fences do.

use std::{
    ptr::{NonNull, null_mut},
    time::Duration,
};

use crossbeam_utils::CachePadded;

use super::activity::Count;
use crate::{
    memory::epoch::{self, Stamp},
    sync::{
        Ordering::Relaxed,
        atomic::{AtomicPtr, AtomicU64, AtomicUsize},
        edge::{self, acquire, engine_step, full_fence, release, removed, step},
        thread::{self, Thread},
    },
    testing::pause::{self, Point},
};
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
use {
    crate::memory::{keeper::Keeper, pool},
    std::time::Instant,
};

/// What a worker without work does.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Engine, IdlePolicy};
/// use std::time::Duration;
///
/// let idle = IdlePolicy::SpinThenPark(Duration::from_millis(1));
/// let engine = Engine::builder().workers(1).idle(idle).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Keeps searching: latency is lowest, but the worker occupies a whole core.
    Spin,
    /// Keeps searching for at most this long, then sleeps. An engine that has been idle for longer uses no CPU time.
    SpinThenPark(Duration),
    /// Sleeps immediately.
    Park,
}

impl Default for IdlePolicy {
    /// Returns [`SpinThenPark`](Self::SpinThenPark) for 50 µs, which is about the cost of putting a thread to sleep and
    /// waking it.
    fn default() -> Self {
        Self::SpinThenPark(Duration::from_micros(50))
    }
}

/// Means *no worker*.
const NO_WORKER: usize = usize::MAX;

/// Means *no core*.
const NO_CORE: usize = usize::MAX;

/// The time limit of a timed park. Each wake-up costs the thread sharing the core some 15 µs. An operation pushed while
/// all other workers run long operations may have to wait until this park or the next one ends. Measured: see
/// "Constants of timed parks and searches" in `benches/README.md`, also for the following constants.
const TIMED_PARK: Duration = Duration::from_micros(400);

/// How long a worker sleeps before it gives back free records, if the process keeps some. Not tuned: a burst that
/// follows within this time finds them.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const UNTIL_SHRINKING: Duration = Duration::from_secs(1);

/// How long it then waits after a step in vain, for other threads to unpin.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const SHRINKING_PAUSE: Duration = Duration::from_millis(10);

/// The longest average time between calls to `find`, over all workers of the lane, at which a worker on a contended
/// core parks with a time limit, and parks once more.
const MAX_FIND_INTERVAL: Duration = Duration::from_micros(25);

/// How many searches the workers on a waiter's core skip for one wait. Measured: a wait that finds its operation
/// complete is not noted, and with 15, a thread that pushed and waited in turns still lost 3 µs a turn to searches.
const SKIPS_PER_WAIT: usize = 63;

/// The maximum number of consecutive timed parks without a report of contention after which a worker may park once
/// more: a thread whose pushed operations are mostly not yet ready seldom injects, and so seldom reports.
const MAX_UNREPORTED: u32 = 3;

/// How a worker searching for work appears to notifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchState {
    /// The worker is neither counted in `searchers` nor announced.
    Inactive,
    /// The worker is counted in `searchers`.
    Searching,
    /// The worker's bit in `sleepers` is set.
    Announced,
}

/// How an announced worker is going to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkKind {
    /// Until a notifier wakes it.
    Untimed,
    /// Until a notifier wakes it or a short time passes.
    Timed,
}

/// The state of 64 workers, each with one bit in every field.
#[derive(Debug, Default)]
struct Word {
    /// Set while the worker is asleep or about to sleep.
    sleepers: AtomicU64,
    /// Set while the worker is in a timed park or about to begin one. A timed park ends without a wake-up.
    timed_parkers: AtomicU64,
    /// Set when a thread that pushes work on the worker's core reports contention.
    contended: AtomicU64,
}

/// The thread that runs a worker.
#[derive(Debug)]
struct ThreadHandle {
    thread: Thread,
    stamp: Stamp,
}

/// The event count of one lane.
#[derive(Debug)]
pub struct Sleep {
    /// The number of workers searching for work.
    searchers: CachePadded<AtomicUsize>,
    words: Box<[CachePadded<Word>]>,
    /// The thread that runs each worker; null before the worker's first thread. A replaced handle is kept until the
    /// epoch has passed.
    threads: Box<[AtomicPtr<ThreadHandle>]>,
    /// The core that each worker is pinned to; `NO_CORE` if none.
    cores: Box<[AtomicUsize]>,
    /// The worker last pinned to each core, or `NO_WORKER`. Indexed by the core's number modulo the number of entries,
    /// which is a power of two.
    last_on_core: Box<[AtomicUsize]>,
    /// Twice the number of calls to `find` by each worker, plus one while the worker is idle ([`Sleep::note_idle`]).
    finds: Box<[CachePadded<AtomicUsize>]>,
    max_searchers: usize,
    /// The core on which a thread last began to wait for operations, and in the lowest byte how many searches the
    /// workers there skip; 0 if none.
    waiter: CachePadded<AtomicUsize>,
    /// The number of wake-ups of each worker.
    wakes: Box<[CachePadded<Count>]>,
}

impl Sleep {
    /// Creates an event count for `workers` workers. [`try_start_search`](Self::try_start_search) admits half of them
    /// at a time, but at least one, and all under [`IdlePolicy::Spin`]; a race may admit more.
    pub fn new(workers: usize, idle: IdlePolicy) -> Self {
        Self {
            searchers: CachePadded::new(AtomicUsize::new(0)),
            words: (0..workers.div_ceil(64)).map(|_| CachePadded::default()).collect(),
            threads: (0..workers).map(|_| AtomicPtr::new(null_mut())).collect(),
            cores: (0..workers).map(|_| AtomicUsize::new(NO_CORE)).collect(),
            finds: (0..workers).map(|_| CachePadded::new(AtomicUsize::new(0))).collect(),
            last_on_core: (0..workers.max(64).next_power_of_two()).map(|_| AtomicUsize::new(NO_WORKER)).collect(),
            max_searchers: if idle == IdlePolicy::Spin { workers } else { (workers / 2).max(1) },
            waiter: CachePadded::default(),
            wakes: (0..workers).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Records that a thread on `core` is about to wait for operations. It goes on there, and so would wait for a
    /// worker that searches there.
    pub fn note_waiter(&self, core: usize) {
        let waiter = core << u8::BITS | SKIPS_PER_WAIT;
        // Relaxed: a hint.
        if self.waiter.load(Relaxed) != waiter {
            self.waiter.store(waiter, Relaxed);
        }
    }

    /// Whether the last thread that began to wait did so on the calling worker's core, and the workers there have not
    /// yet skipped searches often.
    pub fn is_beside_waiter(&self) -> bool {
        // Relaxed: a hint.
        let waiter = self.waiter.load(Relaxed);
        waiter != 0 && thread::core() == Some(waiter >> u8::BITS)
    }

    /// [`is_beside_waiter`](Self::is_beside_waiter) for a worker that then skips a search.
    pub fn skips_search(&self) -> bool {
        let skips = self.is_beside_waiter();
        if skips {
            // Relaxed: a hint; another thread may change it meanwhile.
            let waiter = self.waiter.load(Relaxed);
            let is_last = waiter & usize::from(u8::MAX) <= 1;
            self.waiter.store(if is_last { 0 } else { waiter - 1 }, Relaxed);
        }
        skips
    }

    /// Returns the total number of wake-ups of all workers.
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.iter().map(|wakes| wakes.get()).sum()
    }

    /// Returns the number of wake-ups of `worker`.
    pub fn wakes_of(&self, worker: usize) -> u64 {
        self.wakes[worker].get()
    }

    /// Records that the calling thread runs `worker` from now on. No other thread may still run it.
    pub fn set_thread(&self, worker: usize) {
        let handle = Box::new(ThreadHandle { thread: thread::current(), stamp: Stamp::new() });
        // Relaxed: the thread that stored the old handle ran the worker before, and handed the worker over.
        let before = self.threads[worker].load(Relaxed);
        self.threads[worker].store(Box::into_raw(handle), release(edge::thread::SET));
        if let Some(before) = NonNull::new(before) {
            retire(before);
        }
    }

    /// Records that `worker` is pinned to `core`, or to no core, from now on.
    pub fn set_core(&self, worker: usize, core: Option<usize>) {
        // Relaxed: a hint.
        self.cores[worker].store(core.unwrap_or(NO_CORE), Relaxed);
        if let Some(core) = core {
            // Relaxed: a hint.
            self.last_on_core[core & (self.last_on_core.len() - 1)].store(worker, Relaxed);
        }
    }

    /// Counts a call to `find` by `worker`. Called on the thread that runs the worker.
    #[inline]
    pub fn count_find(&self, worker: usize) {
        if cfg!(raddle_loom) {
            // Under loom a timed park ends immediately, so the count is not needed.
            return;
        }
        let finds = &self.finds[worker];
        // Relaxed: only this thread stores the count, and other threads only compare counts.
        let count = finds.load(Relaxed).wrapping_add(2);
        finds.store(count, Relaxed);
    }

    /// Clears the record that `worker` is idle. Called on the thread that runs the worker.
    pub fn note_busy(&self, worker: usize) {
        if removed(engine_step::NOTE_BUSY) {
            return;
        }
        let finds = &self.finds[worker];
        // Relaxed: only this thread stores the count. For loans, the fence that this thread passes before it checks for
        // loans orders the store; all other readers need only a snapshot.
        let count = finds.load(Relaxed) & !1;
        finds.store(count, Relaxed);
    }

    /// Records that `worker` is idle: its last call to `find` found nothing, or it has put back what it found. Called
    /// on the thread that runs the worker.
    pub fn note_idle(&self, worker: usize) {
        let finds = &self.finds[worker];
        // Relaxed: only this thread stores the count, and a reader that misses the bit only considers the worker busy.
        let count = finds.load(Relaxed) | 1;
        finds.store(count, Relaxed);
    }

    /// Returns the number of workers that are [idle](Self::note_idle).
    pub fn count_idle(&self) -> usize {
        // Relaxed: ordered by the caller's fence.
        self.finds.iter().filter(|finds| finds.load(Relaxed) % 2 == 1).count()
    }

    /// Returns how often the workers have called `find`, in total.
    pub fn finds(&self) -> usize {
        // Relaxed: only compared with an earlier value.
        self.finds.iter().fold(0, |sum, finds| sum.wrapping_add(finds.load(Relaxed) / 2))
    }

    /// Returns whether `count` calls to `find` by all workers are many for `time`. If so, some worker probably finds
    /// newly pushed work soon.
    pub fn are_many(count: usize, time: Duration) -> bool {
        time <= MAX_FIND_INTERVAL.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Returns a value that changes with each call to `find` if all workers are [idle](Self::note_idle), and otherwise
    /// `None`.
    pub fn idle_since(&self) -> Option<usize> {
        self.finds.iter().try_fold(0usize, |sum, finds| {
            // Relaxed: a snapshot; see `Lane::idle_since`.
            let count = finds.load(Relaxed);
            (count % 2 == 1).then(|| sum.wrapping_add(count))
        })
    }

    /// Reports core contention: the calling thread is pushing work from outside the lane, and the worker pinned to the
    /// same core should leave the core to this thread.
    #[inline]
    pub fn report_contention(&self) {
        let Some(core) = thread::core() else { return };
        // Relaxed: a hint.
        let worker = self.last_on_core[core & (self.last_on_core.len() - 1)].load(Relaxed);
        // Relaxed: a hint.
        if self.cores.get(worker).is_some_and(|at| at.load(Relaxed) == core) {
            self.set_contended(worker);
        }
    }

    /// Returns the word and the bit of a worker.
    fn bit(&self, worker: usize) -> (&Word, u64) {
        (&self.words[worker / 64], 1 << (worker % 64))
    }

    /// Records that `worker` shares its core with a thread that pushes work, and should leave the core to that thread.
    pub fn set_contended(&self, worker: usize) {
        let (word, bit) = self.bit(worker);
        // Relaxed: a hint.
        if word.contended.load(Relaxed) & bit == 0 {
            word.contended.fetch_or(bit, Relaxed);
        }
    }

    /// Clears the report of contention before a timed park of `worker`. A thread that keeps pushing on the worker's
    /// core reports contention again.
    fn clear_contended(&self, worker: usize) {
        let (word, bit) = self.bit(worker);
        // Relaxed: a hint.
        word.contended.fetch_and(!bit, Relaxed);
    }

    /// Returns whether core contention has been reported for `worker` since the last such report was cleared.
    pub fn is_contended(&self, worker: usize) -> bool {
        let (word, bit) = self.bit(worker);
        // Relaxed: a hint.
        word.contended.load(Relaxed) & bit != 0
    }

    /// Makes the caller a searcher and returns `true`, unless too many workers already search.
    pub fn try_start_search(&self) -> bool {
        // Relaxed: a bound, not a handshake.
        let may = self.searchers.load(Relaxed) < self.max_searchers;
        if may {
            self.start_search();
        }
        may
    }

    /// Makes the caller a searcher.
    pub fn start_search(&self) {
        // Relaxed: a notifier that sees the increment leaves its work to the searchers. The last of them checks for
        // work after the fence in `stop_search`, or searches after the fence in `announce`.
        self.searchers.fetch_add(1, Relaxed);
    }

    /// Ends the caller's search. Returns `true` if the caller was the last searcher. If the last searcher has found
    /// something, it must then check whether there is more work, and if so notify another worker.
    #[must_use]
    pub fn stop_search(&self) -> bool {
        // A notifier whose fence comes after that of the searcher that stops last sees that this worker has retracted
        // its announcement.
        let last = self.searchers.fetch_sub(1, release(edge::sleep::SEARCH_OVER)) == 1;
        // SearchFence: pairs with NotifyFence.
        full_fence(edge::sleep::STOP_SEARCH);
        last
    }

    /// Announces that `worker`, which was in the state `before`, is about to sleep. The worker must search once more
    /// before it sleeps.
    pub fn announce(&self, worker: usize, before: SearchState, park: ParkKind) {
        let (word, bit) = self.bit(worker);
        if park == ParkKind::Timed {
            self.clear_contended(worker);
            // Relaxed: ordered by the SleepFence.
            word.timed_parkers.fetch_or(bit, Relaxed);
        }
        // Relaxed: ordered by the SleepFence.
        word.sleepers.fetch_or(bit, Relaxed);
        if before == SearchState::Searching {
            // Relaxed: if a notifier sees this decrement and yet not the bit, the notifier's fence comes before the
            // SleepFence, and so before the last search.
            self.searchers.fetch_sub(1, Relaxed);
        }
        // SleepFence: pairs with NotifyFence.
        full_fence(edge::sleep::ANNOUNCE);
    }

    /// Retracts the announcement of `worker`, which becomes a searcher and so passes a fence when its search ends,
    /// whatever it finds.
    pub fn retract(&self, worker: usize) {
        // The search starts before the bits are cleared, so few notifiers wake another worker in the meantime.
        // Correctness does not depend on this order.
        self.start_search();
        let (word, bit) = self.bit(worker);
        // Relaxed: only the worker itself changes its bit.
        if word.timed_parkers.load(Relaxed) & bit != 0 && !removed(step::RETRACT_TIMED_PARK) {
            // Relaxed: released by the decrement in `stop_search`, or ordered by the fence in `announce`, whichever
            // ends the search. The fence of a notifier that still sees the bit comes before the fence in that function
            // (`README.md`, "What the notifier read").
            word.timed_parkers.fetch_and(!bit, Relaxed);
        }
        // Relaxed: ordered like the store above. A notifier that still sees the bit may wake this worker in vain.
        word.sleepers.fetch_and(!bit, Relaxed);
    }

    /// Parks until woken; may wake spuriously. Afterwards, the worker is a searcher and no longer announced.
    ///
    /// If the process keeps free records, and the worker is not woken and few operations end for a while, the worker
    /// gives the records back, unless another one does. `wakes` is as in [`park_timed`](Self::park_timed).
    pub fn park(&self, worker: usize, wakes: u64) {
        #[cfg(not(any(raddle_loom, raddle_shuttle)))]
        loop {
            let is_asleep = || self.wakes_of(worker) == wakes;
            if let Some(keeper) = pool::may_shrink().then(Keeper::try_new).flatten() {
                let (start, retired) = (Instant::now(), pool::retired_batches());
                thread::park_timeout(UNTIL_SHRINKING);
                let has_rested = is_asleep() && start.elapsed() >= UNTIL_SHRINKING;
                if has_rested {
                    pool::shrink(&keeper, retired, is_asleep, || thread::park_timeout(SHRINKING_PAUSE));
                }
                if !is_asleep() {
                    break;
                }
                if !has_rested || pool::retired_batches() != retired {
                    continue;
                }
            }
            // While this thread sleeps, operations that need no worker may leave free records.
            Keeper::stand();
            thread::park();
            Keeper::stand_down();
            if !is_asleep() {
                break;
            }
        }
        #[cfg(any(raddle_loom, raddle_shuttle))]
        {
            let _ = wakes;
            thread::park();
        }
        self.end_park(worker);
    }

    fn end_park(&self, worker: usize) {
        pause::at(Point::SleepWoken);
        self.retract(worker);
    }

    /// Parks for a short time, or until woken. Parks again if the worker was not woken and the workers called `find`
    /// often in that time, unless several parks in a row have passed without a report of contention on the worker's
    /// core. Afterwards, the worker is a searcher and no longer announced.
    ///
    /// `wakes` is the [number of wake-ups](Self::wakes_of) of the worker before it announced itself. A notifier counts
    /// its wake-up before it unparks the thread, so the park that the wake-up ends is the last one.
    pub fn park_timed(&self, worker: usize, wakes: u64) {
        let mut unreported = 0;
        loop {
            let before = self.finds();
            if removed(step::TIMED_PARK_ENDS) {
                thread::park();
            } else {
                thread::park_timeout(TIMED_PARK);
            }
            if self.wakes_of(worker) != wakes {
                break;
            }
            unreported = if self.is_contended(worker) { 0 } else { unreported + 1 };
            if !Self::are_many(self.finds().wrapping_sub(before), TIMED_PARK) || unreported > MAX_UNREPORTED {
                break;
            }
            self.clear_contended(worker);
        }
        self.end_park(worker);
    }

    /// Ensures that the work that the caller has just made visible does not go unnoticed while a worker sleeps
    /// (`README.md`).
    #[inline]
    pub fn notify(&self) {
        pause::at(Point::WakeBeforeFence);
        // NotifyFence: pairs with SearchFence and SleepFence.
        full_fence(edge::sleep::NOTIFY);
        pause::at(Point::WakeFenced);
        // Relaxed: ordered by the NotifyFence.
        if self.searchers.load(Relaxed) > 0 {
            return;
        }
        // Relaxed: ordered by the NotifyFence.
        if self.words.iter().any(|word| word.sleepers.load(Relaxed) != 0) {
            self.wake_one();
        }
    }

    /// Wakes the lowest-numbered parked worker that is not pinned to the caller's core, or else one that is pinned to
    /// it. A timed parker is woken only if no worker is awake. The woken worker clears its own bit, so a caller stopped
    /// before the wake-up does not hide the worker from the next notifier.
    #[inline(never)]
    fn wake_one(&self) {
        let (mut here, mut beside, mut timed_parker, mut asleep) = (None, None, None, 0);
        for (index, word) in self.words.iter().enumerate() {
            // Relaxed: ordered by the caller's fence.
            let sleepers = word.sleepers.load(Relaxed);
            if sleepers == 0 {
                continue;
            }
            asleep += sleepers.count_ones() as usize;
            // Relaxed: ordered by the caller's fence.
            let timed_parkers = word.timed_parkers.load(Relaxed) & sleepers;
            let mut parked = sleepers & !timed_parkers;
            while parked != 0 {
                let worker = index * 64 + parked.trailing_zeros() as usize;
                // Relaxed: a hint.
                if *here.get_or_insert_with(thread::core) != Some(self.cores[worker].load(Relaxed)) {
                    self.wake(worker);
                    return;
                }
                beside = Some(worker);
                parked &= parked - 1;
            }
            if timed_parkers != 0 {
                timed_parker = Some(index * 64 + timed_parkers.trailing_zeros() as usize);
            }
        }
        if let Some(worker) = beside.or(timed_parker.filter(|_| asleep >= self.threads.len())) {
            self.wake(worker);
        }
    }

    /// Wakes the workers in timed parks, and clears the reports of contention on their cores. They may have yielded
    /// their cores to the calling thread, which is about to sleep.
    pub fn wake_yielded(&self) {
        for (index, word) in self.words.iter().enumerate() {
            // Relaxed: a hint; a timed park ends without a wake-up.
            let mut timed_parkers = word.timed_parkers.load(Relaxed);
            if timed_parkers != 0 {
                // Relaxed: a hint.
                word.contended.fetch_and(!timed_parkers, Relaxed);
            }
            while timed_parkers != 0 {
                self.wake(index * 64 + timed_parkers.trailing_zeros() as usize);
                timed_parkers &= timed_parkers - 1;
            }
        }
    }

    /// Wakes every worker, whether or not it is asleep.
    pub fn wake_all(&self) {
        // NotifyFence: a worker whose first thread is set too late to be woken here checks for the end, or a recall,
        // after its SleepFence.
        full_fence(edge::sleep::NOTIFY_ALL);
        (0..self.threads.len()).for_each(|worker| self.wake(worker));
    }

    fn wake(&self, worker: usize) {
        let Some(thread) = self.thread_of(worker) else { return };
        self.wakes[worker].add_one();
        pause::at(Point::WakeBeforeUnpark);
        // `thread_of` no longer pins the calling thread to the epoch, so a notifier stopped here does not delay
        // reclamation. The thread to be woken may have ended; its worker is then run by another thread, which searches
        // for work after taking the worker over.
        thread.unpark();
    }

    /// Returns the thread that runs `worker`.
    fn thread_of(&self, worker: usize) -> Option<Thread> {
        let _guard = epoch::pin();
        let handle = NonNull::new(self.threads[worker].load(acquire(edge::thread::NOTIFIED)))?;
        // SAFETY: `set_thread` allocated the handle, and a handle replaced while this thread is pinned is not
        // reclaimed.
        let handle = unsafe { handle.as_ref() };
        handle.stamp.check();
        Some(handle.thread.clone())
    }
}

/// Frees a replaced handle once no thread that may have loaded it is still pinned.
#[cold]
fn retire(handle: NonNull<ThreadHandle>) {
    // SAFETY: only the closure below frees the handle, and this closure has not been retired yet.
    let stamp = unsafe { &handle.as_ref().stamp };
    // SAFETY: `set_thread` allocated the handle as a box, and only this closure frees the handle.
    let free = stamp.killed_by(move || drop(unsafe { Box::from_raw(handle.as_ptr()) }));
    // SAFETY: a thread's handle may be dropped on any thread; the closure owns everything that it refers to.
    unsafe { epoch::pin().retire(free) };
}

impl Drop for Sleep {
    fn drop(&mut self) {
        for handle in &self.threads {
            // Relaxed: no other thread has access.
            let handle = handle.load(Relaxed);
            if !handle.is_null() {
                // SAFETY: `set_thread` allocated the handle as a box, and no other thread has access.
                drop(unsafe { Box::from_raw(handle) });
            }
        }
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;
