//! Who sleeps, and who wakes whom: an event count. The protocol is in `README.md` beside this file.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `carry` | store of `carry` | load of `handle` | the handle of the thread that carries a worker |
//!
//! What the fences do is in `README.md`.

use std::{
    ptr::{NonNull, null_mut},
    time::Duration,
};

use crossbeam_utils::CachePadded;

use crate::{
    memory::epoch::{self, Stamp},
    sync::{
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        atomic::{AtomicPtr, AtomicU64, AtomicUsize, fence},
        thread::{self, Thread},
    },
    testing::{
        pause::{self, Point},
        weaken::{Step, removed},
    },
};

/// What a worker without work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// It keeps looking: lowest latency, a whole core.
    Spin,
    /// It keeps looking for this long and then sleeps. An engine that has been idle longer uses no CPU.
    SpinThenPark(Duration),
    /// It sleeps at once.
    Park,
}

impl Default for IdlePolicy {
    /// [`SpinThenPark`](Self::SpinThenPark) for 50 µs, about what a sleep and a wake-up of a thread cost together.
    fn default() -> Self {
        Self::SpinThenPark(Duration::from_micros(50))
    }
}

/// In place of a worker's number.
const NO_WORKER: usize = usize::MAX;

/// In place of a core's number.
const NO_CORE: usize = usize::MAX;

/// How long a worker naps, at first and at most. Measured on two cores: an end of a nap costs whoever shares the core some
/// 15 µs. What is made while all others are in long operations may have to wait for it.
const TIMED_PARK: [Duration; 2] = [Duration::from_micros(100), Duration::from_micros(400)];

/// Looks of the other workers during a nap from which on their operations are short, and they do without one more. Picked.
const MIN_FINDS: usize = 32;

/// Naps in a row without a word of a thread on the same core. Picked: who pushes behind what is pending seldom pushes what
/// is ready, and so seldom speaks.
const MAX_UNREPORTED: u32 = 3;

/// How notifiers see a worker that looks for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchState {
    /// It is not counted.
    Inactive,
    /// It is counted in `searchers`.
    Searching,
    /// Its bit in `sleepers` is set.
    Announced,
}

/// How an announced worker is going to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkKind {
    /// Until it is woken.
    Untimed,
    /// Until it is woken or a short time has passed.
    Timed,
}

/// What is known of 64 workers, a bit for each.
#[derive(Debug, Default)]
struct Word {
    /// It sleeps or is about to.
    sleepers: AtomicU64,
    /// If it sleeps, it naps: it looks again by itself before long.
    timed_parkers: AtomicU64,
    /// A thread that makes work runs on its core.
    contended: AtomicU64,
}

/// The thread that carries a worker.
#[derive(Debug)]
struct ThreadHandle {
    thread: Thread,
    stamp: Stamp,
}

/// The event count of one lane.
#[derive(Debug)]
pub struct Sleep {
    /// Workers that look for work and have not found any.
    searchers: CachePadded<AtomicUsize>,
    words: Box<[CachePadded<Word>]>,
    /// Who carries each worker; null if nobody has yet. What is replaced stays until the epoch has passed.
    threads: Box<[AtomicPtr<ThreadHandle>]>,
    /// The core that each worker stays on; `NO_CORE` if on none.
    cores: Box<[AtomicUsize]>,
    /// The worker that was placed last on a core, by the core's number modulo the length, a power of two; `NO_WORKER` if none
    /// was.
    last_on_core: Box<[AtomicUsize]>,
    /// How often each worker has looked for an operation.
    finds: Box<[CachePadded<AtomicUsize>]>,
    max_searchers: usize,
}

impl Sleep {
    /// For `workers` workers, at most half of which search at once, one at least, unless `unbounded`.
    pub fn new(workers: usize, idle: IdlePolicy) -> Self {
        Self {
            searchers: CachePadded::new(AtomicUsize::new(0)),
            words: (0..workers.div_ceil(64)).map(|_| CachePadded::default()).collect(),
            threads: (0..workers).map(|_| AtomicPtr::new(null_mut())).collect(),
            cores: (0..workers).map(|_| AtomicUsize::new(NO_CORE)).collect(),
            finds: (0..workers).map(|_| CachePadded::new(AtomicUsize::new(0))).collect(),
            last_on_core: (0..workers.max(64).next_power_of_two()).map(|_| AtomicUsize::new(NO_WORKER)).collect(),
            max_searchers: if idle == IdlePolicy::Spin { workers } else { (workers / 2).max(1) },
        }
    }

    /// The calling thread carries `worker` from now on, which nobody else does any more.
    pub fn set_thread(&self, worker: usize) {
        let handle = Box::new(ThreadHandle { thread: thread::current(), stamp: Stamp::new() });
        // Relaxed: whoever stored it carried the worker before, and has handed that over.
        let before = self.threads[worker].load(Relaxed);
        // Release (edge `carry`): the thread's handle.
        self.threads[worker].store(Box::into_raw(handle), Release);
        if let Some(before) = NonNull::new(before) {
            retire(before);
        }
    }

    /// `worker` stays on `core` from now on.
    pub fn set_core(&self, worker: usize, core: Option<usize>) {
        // Relaxed: a hint.
        self.cores[worker].store(core.unwrap_or(NO_CORE), Relaxed);
        if let Some(core) = core {
            // Relaxed: as above.
            self.last_on_core[core & (self.last_on_core.len() - 1)].store(worker, Relaxed);
        }
    }

    /// Counts a look of `worker` for an operation, by its thread.
    #[inline]
    pub fn count_find(&self, worker: usize) {
        if cfg!(any(raddle_loom, raddle_shuttle)) {
            // In models a nap ends at once.
            return;
        }
        let finds = &self.finds[worker];
        // Relaxed: only this thread stores it, and others want to know whether it moves.
        let count = finds.load(Relaxed).wrapping_add(1);
        finds.store(count, Relaxed);
    }

    /// How often all workers have looked for an operation.
    pub fn finds(&self) -> usize {
        // Relaxed: as above.
        self.finds.iter().fold(0, |sum, finds| sum.wrapping_add(finds.load(Relaxed)))
    }

    /// Notes that the calling thread, which carries none of the workers, makes work: the worker that stays on its core had
    /// better not run now.
    #[inline]
    pub fn report_contention(&self) {
        let Some(core) = thread::core() else { return };
        // Relaxed: a hint.
        let worker = self.last_on_core[core & (self.last_on_core.len() - 1)].load(Relaxed);
        // Relaxed: as above.
        if self.cores.get(worker).is_some_and(|at| at.load(Relaxed) == core) {
            self.set_contended(worker);
        }
    }

    /// The word and the bit of a worker.
    fn bit(&self, worker: usize) -> (&Word, u64) {
        (&self.words[worker / 64], 1 << (worker % 64))
    }

    /// Notes that a thread that makes work runs on the core of `worker`, which had better not run now.
    pub fn set_contended(&self, worker: usize) {
        let (word, bit) = self.bit(worker);
        // Relaxed: a hint.
        if word.contended.load(Relaxed) & bit == 0 {
            word.contended.fetch_or(bit, Relaxed);
        }
    }

    /// The worker sleeps: whoever goes on making work on its core says so again.
    fn clear_contended(&self, worker: usize) {
        let (word, bit) = self.bit(worker);
        // Relaxed: a hint.
        word.contended.fetch_and(!bit, Relaxed);
    }

    /// Whether a thread that makes work has run on the core of `worker` since the worker last lay down for a nap.
    pub fn is_contended(&self, worker: usize) -> bool {
        let (word, bit) = self.bit(worker);
        // Relaxed: a hint.
        word.contended.load(Relaxed) & bit != 0
    }

    /// Becomes a searcher if not too many are.
    pub fn try_start_search(&self) -> bool {
        // Relaxed: a bound, not a handshake.
        let may = self.searchers.load(Relaxed) < self.max_searchers;
        if may {
            self.start_search();
        }
        may
    }

    /// Becomes a searcher.
    pub fn start_search(&self) {
        // Relaxed: a notifier that sees it leaves its operation to this worker, which looks after the fence in
        // `stop_search` or `announce` at the latest.
        self.searchers.fetch_add(1, Relaxed);
    }

    /// Is no searcher any more; `true` if it was the last one, so that the caller must look once more whether there is
    /// work to wake another for.
    #[must_use]
    pub fn stop_search(&self) -> bool {
        // Release: pairs with the decrement of whoever stops last, by the fence after it. A notifier that comes after
        // that fence sees that this worker is not announced.
        let last = self.searchers.fetch_sub(1, Release) == 1;
        // SearchFence: pairs with NotifyFence.
        fence(SeqCst);
        last
    }

    /// Says that `worker` is about to sleep, or to nap. It must look for work once more before it does.
    pub fn announce(&self, worker: usize, before: SearchState, park: ParkKind) {
        let (word, bit) = self.bit(worker);
        if park == ParkKind::Timed {
            self.clear_contended(worker);
            // Relaxed: ordered by the fence, as the next one.
            word.timed_parkers.fetch_or(bit, Relaxed);
        }
        // Relaxed: ordered by the fence.
        word.sleepers.fetch_or(bit, Relaxed);
        if before == SearchState::Searching {
            // Relaxed: a notifier that counts without this worker and takes it for announced all the same comes before
            // the fence, and so before the last look.
            self.searchers.fetch_sub(1, Relaxed);
        }
        // SleepFence: pairs with NotifyFence.
        fence(SeqCst);
    }

    /// Ends the announcement of `worker`, which becomes a searcher and so leaves by a fence, whatever it finds.
    pub fn retract(&self, worker: usize) {
        // First, so that few notifiers wake another worker meanwhile. Nothing hangs on it.
        self.start_search();
        let (word, bit) = self.bit(worker);
        // Relaxed: only the worker itself changes its bit.
        if word.timed_parkers.load(Relaxed) & bit != 0 && !removed(Step::RetractTimedPark) {
            // Relaxed: as for the next one. A notifier that still sees the bit relies on a look after that fence.
            word.timed_parkers.fetch_and(!bit, Relaxed);
        }
        // Relaxed: released by the decrement that ends the search. A notifier that still sees the bit wakes this worker
        // in vain, but comes before the fence after that decrement; README.md, where a worker was woken.
        word.sleepers.fetch_and(!bit, Relaxed);
    }

    /// Sleeps until woken, or for no reason. The worker becomes a searcher and is not announced any more.
    pub fn park(&self, worker: usize) {
        thread::park();
        pause::at(Point::SleepWoken);
        self.retract(worker);
    }

    /// Sleeps for a short time, or until woken; for another one if the others have looked for operations often meanwhile
    /// and a thread on the worker's core goes on making them. The worker becomes a searcher and is not announced any more.
    pub fn park_timed(&self, worker: usize) {
        let (mut time, mut unreported) = (TIMED_PARK[0], 0);
        loop {
            let before = self.finds();
            if removed(Step::TimedParkEnds) {
                thread::park();
            } else {
                thread::park_timeout(time);
            }
            unreported = if self.is_contended(worker) { 0 } else { unreported + 1 };
            if self.finds().wrapping_sub(before) < MIN_FINDS || unreported > MAX_UNREPORTED {
                break;
            }
            time = (2 * time).min(TIMED_PARK[1]);
            self.clear_contended(worker);
        }
        pause::at(Point::SleepWoken);
        self.retract(worker);
    }

    /// Sees to it that a worker looks for the work that the caller has just made visible.
    #[inline]
    pub fn notify(&self) {
        pause::at(Point::WakeBeforeFence);
        if !removed(Step::NotifyFence) {
            // NotifyFence: pairs with SearchFence and SleepFence.
            fence(SeqCst);
        }
        pause::at(Point::WakeFenced);
        // Relaxed: ordered by the fence.
        if self.searchers.load(Relaxed) > 0 {
            return;
        }
        // Relaxed: ordered by the fence.
        if self.words.iter().any(|word| word.sleepers.load(Relaxed) != 0) {
            self.wake_one();
        }
    }

    /// Wakes the sleeper with the lowest number that stays on another core than the caller's, or else the one that does
    /// not; one that naps only if no worker is awake. Its bit stays until it is awake, so a caller that stops before the
    /// wake-up hides nobody from the next one.
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
            // Relaxed: as above.
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

    /// Wakes the workers that nap: the caller, which may be what they make way for, is about to sleep.
    pub fn wake_yielded(&self) {
        for (index, word) in self.words.iter().enumerate() {
            // Relaxed: a hint; a nap ends by itself.
            let mut timed_parkers = word.timed_parkers.load(Relaxed);
            if timed_parkers != 0 {
                // Relaxed: as above.
                word.contended.fetch_and(!timed_parkers, Relaxed);
            }
            while timed_parkers != 0 {
                self.wake(index * 64 + timed_parkers.trailing_zeros() as usize);
                timed_parkers &= timed_parkers - 1;
            }
        }
    }

    /// Wakes every worker, asleep or not.
    pub fn wake_all(&self) {
        // NotifyFence: a worker that gets its first thread meanwhile looks for the end after its SleepFence.
        fence(SeqCst);
        (0..self.threads.len()).for_each(|worker| self.wake(worker));
    }

    fn wake(&self, worker: usize) {
        let Some(thread) = self.thread_of(worker) else { return };
        pause::at(Point::WakeBeforeUnpark);
        // Not pinned any more: a notifier that stands still here keeps nothing from being reclaimed. The thread may have
        // ended; then its worker has another one, which has looked for work since it was given it.
        thread.unpark();
    }

    /// The thread that carries `worker`.
    fn thread_of(&self, worker: usize) -> Option<Thread> {
        let _guard = epoch::pin();
        // Acquire (edge `carry`).
        let handle = NonNull::new(self.threads[worker].load(Acquire))?;
        // SAFETY: `carry` made it, and what it replaces while this thread is pinned is not reclaimed.
        let handle = unsafe { handle.as_ref() };
        handle.stamp.check();
        Some(handle.thread.clone())
    }
}

/// Gives a handle back that nobody can find any more, when those have gone who may have found it.
#[cold]
fn retire(handle: NonNull<ThreadHandle>) {
    // SAFETY: it is not reclaimed before this.
    let stamp = unsafe { &handle.as_ref().stamp };
    // SAFETY: `carry` made it of a box, and this is the only one that gives it back.
    let free = stamp.killed_by(move || drop(unsafe { Box::from_raw(handle.as_ptr()) }));
    // SAFETY: a thread's handle may be dropped on any thread; the closure owns all that it refers to.
    unsafe { epoch::pin().retire(free) };
}

impl Drop for Sleep {
    fn drop(&mut self) {
        for handle in &self.threads {
            // Relaxed: nobody else is there.
            let handle = handle.load(Relaxed);
            if !handle.is_null() {
                // SAFETY: `carry` made it of a box, and nobody finds it any more.
                drop(unsafe { Box::from_raw(handle) });
            }
        }
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;
