//! Who sleeps, and who wakes whom: an event count. The protocol is in `README.md` beside this file.

use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::sync::{
    OnceLock,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    atomic::{AtomicU64, AtomicUsize, fence},
    pause::{self, Point},
    thread::{self, Thread},
    weaken::{Step, removed},
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

/// In place of a thread's number.
const NOBODY: usize = usize::MAX;

/// The event count of one lane.
#[derive(Debug)]
pub struct Sleep {
    /// Workers that look for work and have not found any.
    searchers: CachePadded<AtomicUsize>,
    /// A bit per worker that sleeps or is about to.
    sleepers: Box<[AtomicU64]>,
    /// Which of `threads` carries each worker; `NOBODY` if none has yet.
    carriers: Box<[AtomicUsize]>,
    threads: Box<[OnceLock<Thread>]>,
    max_searchers: usize,
}

impl Sleep {
    /// For `workers` workers carried by at most `threads` threads. At most half of the workers search at once, one at
    /// least, unless `unbounded`.
    pub fn new(workers: usize, threads: usize, unbounded: bool) -> Self {
        Self {
            searchers: CachePadded::new(AtomicUsize::new(0)),
            sleepers: (0..workers.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            carriers: (0..workers).map(|_| AtomicUsize::new(NOBODY)).collect(),
            threads: (0..threads).map(|_| OnceLock::new()).collect(),
            max_searchers: if unbounded { workers } else { (workers / 2).max(1) },
        }
    }

    /// The calling thread, number `thread`, carries `worker` from now on.
    pub fn carry(&self, worker: usize, thread: usize) {
        // It is set already if the thread has carried a worker before.
        let _ = self.threads[thread].set(thread::current());
        // Release: the thread's handle; pairs with the load in `wake`.
        self.carriers[worker].store(thread, Release);
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

    /// Says that `worker` is about to sleep. It must look for work once more before it does.
    pub fn announce(&self, worker: usize, searching: bool) {
        // Relaxed: ordered by the fence.
        self.sleepers[worker / 64].fetch_or(1 << (worker % 64), Relaxed);
        if searching {
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
        // Relaxed: released by the decrement that ends the search. A notifier that still sees the bit wakes this worker
        // in vain, but comes before the fence after that decrement; README.md, case 2.
        self.sleepers[worker / 64].fetch_and(!(1 << (worker % 64)), Relaxed);
    }

    /// Sleeps until woken, or for no reason. The worker becomes a searcher and is not announced any more.
    pub fn park(&self, worker: usize) {
        thread::park();
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
        self.wake_one();
    }

    /// Wakes the sleeper with the lowest number. Its bit stays until it is awake, so a caller that stops before the
    /// wake-up hides nobody from the next one.
    fn wake_one(&self) {
        for (index, word) in self.sleepers.iter().enumerate() {
            // Relaxed: ordered by the caller's fence.
            let bits = word.load(Relaxed);
            if bits != 0 {
                self.wake(index * 64 + bits.trailing_zeros() as usize);
                return;
            }
        }
    }

    /// Wakes every worker, asleep or not.
    pub fn wake_all(&self) {
        // NotifyFence: a worker that gets its first thread meanwhile looks for the end after its SleepFence.
        fence(SeqCst);
        (0..self.carriers.len()).for_each(|worker| self.wake(worker));
    }

    fn wake(&self, worker: usize) {
        // Acquire: pairs with `carry`.
        let thread = self.carriers[worker].load(Acquire);
        if let Some(thread) = self.threads.get(thread).and_then(OnceLock::get) {
            pause::at(Point::WakeBeforeUnpark);
            thread.unpark();
        }
    }
}
