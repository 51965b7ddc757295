//! An engine's threads, the workers that they run, and the cores on which they run.
//!
//! A thread that waits for any worker, up to a time limit, is a *spare*.

use std::{
    cell::Cell,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{
    aside::Aside,
    spares::{SparePlace, SpareThreads},
    thread_list::{Lifetime, ThreadHooks, ThreadList},
};
use crate::{
    scheduler::{IdlePolicy, Lane, LaneOptions, Worker},
    sync::{Mutex, lock, thread, thread_static},
    system::{
        Placement,
        core_claims::CoreClaim,
        pin::{EngineCores, Pin},
        stack::StackSizes,
    },
    tracker::OpRef,
};

/// The maximum number of threads beyond one per worker. Each operation that waits inside its function may need one. Not
/// tuned: the value bounds the number of threads of a program in which thousands of operations wait at once.
const MAX_SPARES: usize = 2048;

/// The time after which a spare thread ends. Not tuned: the time is long compared with the pauses between waits in a
/// program that waits often. This crate's own tests shorten it to make many threads end.
const IDLE_TIMEOUT: Duration = if cfg!(test) { Duration::from_millis(1) } else { Duration::from_secs(10) };

/// A worker, which moves between threads.
pub(crate) type BoxedWorker<T> = Box<Worker<T>>;

/// Why a thread ended.
#[derive(PartialEq, Eq)]
pub(crate) enum Ended {
    /// The thread has no worker: it was a spare for too long, or its engine is being stopped.
    Idle,
    /// The thread's engine has ended.
    Over,
}

/// The description of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneSpec {
    pub(crate) name: &'static str,
    pub(crate) workers: usize,
    pub(crate) idle: IdlePolicy,
}

/// The numbers of the pool's threads.
#[derive(Default)]
struct Numbers {
    /// How many numbers have been assigned.
    given: usize,
    /// Numbers of threads that have ended or could not be started.
    unused: Vec<usize>,
}

/// An engine's CPU lanes, and its list of threads to join.
pub(crate) struct ThreadPool<T> {
    /// The engine's number, which no other engine in the process ever has.
    engine: u64,
    lanes: Box<[Arc<Lane<T>>]>,
    /// The cores that the engine's threads may use.
    cores: Arc<EngineCores>,
    max_threads: usize,
    numbers: Mutex<Numbers>,
    spares: SpareThreads<BoxedWorker<T>>,
    /// For each lane, the threads queued for a worker with which to continue functions that have waited.
    returning: Box<[SpareThreads<BoxedWorker<T>>]>,
    aside: Aside<BoxedWorker<T>>,
    list: Arc<ThreadList>,
    stacks: StackSizes,
    /// Whether a function has blocked its worker because no thread could be had.
    has_blocked: AtomicBool,
}

/// Returns a number for an engine, starting at 1.
fn next_engine() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only distinct numbers are needed.
    NEXT.fetch_add(1, Relaxed)
}

// The number of the engine for which this thread was started. Numbers start at 1; 0 means that no engine started the
// thread. The number stays set for the destructors of thread-locals, which run when the thread ends. The engine's
// address would not suffice, since another engine may have the same address by then.
thread_static!(static STARTED_FOR: Cell<u64> = Cell::new(0));

impl<T: Send + 'static> ThreadPool<T> {
    /// Creates the lanes and workers of an engine that may use `cores`. The first workers are pinned, each to one of
    /// the cores in `claims`. If they `give_way`, they leave their cores while others compute there.
    /// [`spawn`](Self::spawn) starts the workers' threads.
    pub(crate) fn new(
        specs: &[LaneSpec],
        cores: &[usize],
        (claims, give_way): (Vec<CoreClaim>, bool),
        stacks: StackSizes,
        hooks: ThreadHooks,
    ) -> (Self, Vec<BoxedWorker<T>>) {
        let max_threads = specs.iter().map(|spec| spec.workers).sum::<usize>() + MAX_SPARES;
        let mut workers: Vec<BoxedWorker<T>> = Vec::new();
        let lanes = specs
            .iter()
            .map(|spec| {
                let (lane, new) = Lane::new(LaneOptions { name: spec.name, workers: spec.workers, idle: spec.idle });
                workers.extend(new.into_iter().map(Box::new));
                lane
            })
            .collect();
        let cores = Arc::new(EngineCores::new(cores));
        let pins = claims.into_iter().map(|claim| Pin::new(claim, Arc::clone(&cores), give_way));
        workers.iter_mut().zip(pins).for_each(|(worker, pin)| worker.set_pin(pin));
        let pool = Self {
            engine: next_engine(),
            lanes,
            cores,
            max_threads,
            numbers: Mutex::new(Numbers::default()),
            spares: SpareThreads::default(),
            returning: specs.iter().map(|_| SpareThreads::default()).collect(),
            aside: Aside::new(specs.iter().map(|spec| spec.workers).sum()),
            list: Arc::new(ThreadList::new(stacks.size(), hooks)),
            stacks,
            has_blocked: AtomicBool::new(false),
        };
        (pool, workers)
    }

    /// Returns the sizes of the threads' stacks.
    #[inline]
    pub(crate) fn stacks(&self) -> StackSizes {
        self.stacks
    }

    /// Returns a number for a new thread, or `None` if the maximum number of threads exists.
    pub(crate) fn next_number(&self) -> Option<usize> {
        let mut numbers = lock(&self.numbers);
        if let Some(number) = numbers.unused.pop() {
            return Some(number);
        }
        if numbers.given == self.max_threads {
            return None;
        }
        numbers.given += 1;
        Some(numbers.given - 1)
    }

    /// Starts thread `number`, which runs `main` with `worker`. Returns the worker if that fails.
    pub(crate) fn spawn(
        &self,
        number: usize,
        worker: BoxedWorker<T>,
        main: impl FnOnce(BoxedWorker<T>) -> Ended + Send + 'static,
    ) -> Result<(), (io::Error, Option<BoxedWorker<T>>)> {
        let name = format!("raddle-{}-{number}", worker.lane().name());
        self.spawn_named(name, worker, main)
    }

    /// Starts a thread that runs `main` with `worker`. Returns the worker if that fails.
    pub(crate) fn spawn_named(
        &self,
        name: String,
        worker: BoxedWorker<T>,
        main: impl FnOnce(BoxedWorker<T>) -> Ended + Send + 'static,
    ) -> Result<(), (io::Error, Option<BoxedWorker<T>>)> {
        // The worker is passed through a slot, because the closure of a thread that cannot be started is dropped.
        let slot = Arc::new(Mutex::new(Some(worker)));
        let (for_thread, list) = (Arc::clone(&slot), Arc::clone(&self.list));
        let spawned = self.list.spawn(Lifetime::Passing, name, move |in_list| {
            let worker = lock(&for_thread).take();
            if worker.is_some_and(|worker| main(worker) == Ended::Idle) {
                list.leave(in_list);
            }
        });
        spawned.map_err(|error| (error, lock(&slot).take()))
    }

    /// Starts a thread that is joined with the others and may run for any length of time. A shutdown on that thread,
    /// including one in a thread-local destructor, does not wait for the thread.
    pub(crate) fn spawn_aside(&self, name: String, main: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let engine = self.engine;
        self.list.spawn(Lifetime::UntilTheEnd, name, move |_| {
            STARTED_FOR.with(|cell| cell.set(engine));
            main();
        })
    }

    /// Whether the threads were [told to end](Self::end).
    pub(crate) fn has_ended(&self) -> bool {
        self.spares.have_ended()
    }

    /// Finds a thread for `worker`, whose own thread is about to wait: a spare, or a new thread that runs `main` with
    /// its number and the worker. If neither is available, returns the worker, along with the error if the operating
    /// system refused to start a thread.
    pub(crate) fn give_away(
        &self,
        worker: BoxedWorker<T>,
        main: impl FnOnce(usize, BoxedWorker<T>) -> Ended + Send + 'static,
    ) -> Result<(), (BoxedWorker<T>, Option<io::Error>)> {
        let Err(worker) = self.spares.offer(worker) else {
            return Ok(());
        };
        let Some(number) = self.next_number() else {
            return Err((worker, None));
        };
        self.spawn(number, worker, move |worker| main(number, worker)).or_else(|(error, worker)| {
            self.return_number(number);
            worker.map_or(Ok(()), |worker| Err((worker, Some(error))))
        })
    }

    /// Notes that a function blocks its worker because no thread can be had. Returns whether it is the first.
    pub(crate) fn is_first_blocked(&self) -> bool {
        // Relaxed: only the number of returned `true`s matters.
        !self.has_blocked.swap(true, Relaxed)
    }

    /// Releases the number of a thread that has ended or could not be started.
    pub(crate) fn return_number(&self, number: usize) {
        lock(&self.numbers).unused.push(number);
    }

    /// Waits, as a spare, for a worker to run. Returns `None` if the engine has ended or is being stopped, or if the
    /// time limit has passed.
    pub(crate) fn await_offer(&self) -> Option<BoxedWorker<T>> {
        // Models have no clock, so the time limit would pass immediately.
        let until = if cfg!(any(raddle_loom, raddle_shuttle)) { None } else { Some(Instant::now() + IDLE_TIMEOUT) };
        self.spares.wait(until)
    }

    /// Puts the calling thread into the queue for a worker of `lane`. Returns `None` if the engine has ended.
    pub(crate) fn queue_for_worker(&self, lane: u8) -> Option<SparePlace<BoxedWorker<T>>> {
        self.returning[usize::from(lane)].enlist()
    }

    /// Waits, in the queue, for a worker of `lane`. Returns `None` if the wait was [dismissed](Self::dismiss), if the
    /// engine has ended or if the time limit has passed.
    pub(crate) fn await_worker(
        &self,
        lane: u8,
        place: &SparePlace<BoxedWorker<T>>,
        until: Option<Instant>,
    ) -> Option<BoxedWorker<T>> {
        // Models have no clock, so the time limit would pass immediately.
        let until = until.filter(|_| !cfg!(any(raddle_loom, raddle_shuttle)));
        self.returning[usize::from(lane)].wait_in(place, until)
    }

    /// Hands `worker` to the first thread in the queue of its lane. Returns the worker if the queue is empty.
    pub(crate) fn return_worker(&self, worker: BoxedWorker<T>) -> Result<(), BoxedWorker<T>> {
        self.returning[self.lane_of(&worker)].offer_in_turn(worker)
    }

    /// Lets the first thread in the queue for a worker of `lane` continue without one.
    pub(crate) fn dismiss(&self, lane: u8) {
        self.returning[usize::from(lane)].dismiss();
    }

    /// [Lets](Lane::begin_wait) the calling thread wait for operations of each lane.
    pub(crate) fn begin_wait(&self) {
        // A thread of an engine goes on where a worker's place is free.
        let core = if is_engine_thread() { None } else { thread::core() };
        self.lanes.iter().for_each(|lane| lane.begin_wait(core));
    }

    /// Tells the threads of the CPU lanes, and those waiting for a worker, to end. Must be called only when no
    /// operation is pending.
    pub(crate) fn end(&self) {
        for lane in &self.lanes {
            lane.end();
        }
        self.spares.end();
        self.returning.iter().for_each(SpareThreads::end);
    }

    /// Ends the threads that have run workers and those waiting for one, unless the stop is
    /// [cancelled](Self::cancel_stop) first. All workers must be aside. Returns the names of the threads not joined by
    /// the deadline.
    pub(crate) fn end_passing(&self, deadline: Option<Instant>) -> Result<(), Vec<String>> {
        self.aside.while_requested(|| self.spares.pause());
        self.list.join_passing(deadline, || self.aside.is_requested())
    }

    /// Cancels a stop and calls `resume` in the same step. The caller must give threads to the workers that are aside.
    pub(crate) fn cancel_stop(&self, resume: impl FnOnce()) {
        self.aside.cancel(|| {
            self.spares.resume();
            resume();
        });
        self.list.look_again();
    }

    /// Returns the state of the engine's stop, with the workers that are laid aside.
    pub(crate) fn aside(&self) -> &Aside<BoxedWorker<T>> {
        &self.aside
    }

    /// Returns each lane's number, along with its number of workers.
    pub(crate) fn workers_by_lane(&self) -> impl Iterator<Item = (u8, usize)> + '_ {
        self.lanes.iter().enumerate().map(|(number, lane)| (number as u8, lane.workers()))
    }

    /// Waits until all threads have ended, or until `deadline`. [`end`](Self::end) must have been called before, and
    /// the caller must not be one of these threads. Returns the names of those not joined by the deadline.
    pub(crate) fn join(&self, deadline: Option<Instant>) -> Result<(), Vec<String>> {
        match deadline {
            Some(deadline) => self.list.join_until(deadline),
            None => {
                self.list.join_all();
                Ok(())
            }
        }
    }

    /// Whether threads are still unjoined after a join that reached its deadline.
    pub(crate) fn has_left_behind(&self) -> bool {
        self.list.has_left_behind()
    }

    /// In a forked child, ends the worker that its only thread runs, if the worker is in one of these lanes.
    pub(crate) fn end_in_child(&self) {
        self.lanes.iter().for_each(|lane| lane.end_in_child());
    }

    pub(crate) fn lane_of(&self, worker: &Worker<T>) -> usize {
        self.lanes.iter().position(|lane| Arc::ptr_eq(lane, worker.lane())).unwrap_or(0)
    }

    /// Pins the calling thread to the core of `worker`, or else allows it to run on any of the engine's cores.
    pub(crate) fn pin_to_core(&self, worker: &Worker<T>) -> Placement {
        worker.pin().map_or_else(
            || {
                self.cores.widen();
                Placement::Unpinned
            },
            Pin::keep,
        )
    }

    /// Returns the lane with this number.
    #[inline]
    pub(crate) fn lane(&self, number: u8) -> &Arc<Lane<T>> {
        &self.lanes[usize::from(number)]
    }

    /// Returns the number of the engine.
    pub(crate) fn engine(&self) -> u64 {
        self.engine
    }

    /// Returns all lanes.
    pub(crate) fn lanes(&self) -> &[Arc<Lane<T>>] {
        &self.lanes
    }

    /// Whether a lane seems to have a ready operation.
    pub(crate) fn have_work(&self) -> bool {
        self.lanes.iter().any(|lane| lane.has_work())
    }

    /// Takes a ready operation from any lane, for a thread that runs no worker.
    pub(crate) fn take_ready(&self) -> Option<OpRef<T>> {
        self.lanes.iter().find_map(|lane| lane.take())
    }

    /// Returns the cores that the engine's threads may use.
    pub(crate) fn cores(&self) -> &EngineCores {
        &self.cores
    }

    /// Records that the calling thread was started for this engine.
    pub(crate) fn adopt_thread(&self) {
        STARTED_FOR.with(|cell| cell.set(self.engine));
    }

    /// Whether the calling thread was started for this engine.
    pub(crate) fn owns_thread(&self) -> bool {
        STARTED_FOR.with(Cell::get) == self.engine
    }
}

/// Whether the calling thread was started for an engine.
pub(crate) fn is_engine_thread() -> bool {
    STARTED_FOR.with(Cell::get) != 0
}

/// In a forked child, records that the calling thread does not belong to the engine for which it was started.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn disown_thread() {
    STARTED_FOR.with(|cell| cell.set(0));
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
pub(crate) use super::thread_list::MANY as MANY_ENDED;

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
impl<T> ThreadPool<T> {
    /// Returns how many threads were ever added to the list and how many are in it.
    pub(crate) fn count(&self) -> (u64, usize) {
        self.list.count()
    }

    /// Returns how many thread numbers were assigned.
    pub(crate) fn numbers_given(&self) -> usize {
        lock(&self.numbers).given
    }
}
