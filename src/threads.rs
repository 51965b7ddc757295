//! The threads of an engine: who carries which worker, and where.
//!
//! An operation that waits inside its function gives its worker to a spare thread, which goes on with it, and sleeps; it
//! ends without a worker, and its thread becomes a spare. So a wait never keeps a worker, nor can one wait bury another
//! under it on a stack, as running operations on the waiting thread's stack would.

use std::{cell::Cell, ptr, sync::Arc};

use core_affinity::CoreId;

use crate::{
    context,
    core::Core,
    error::{BuildError, WaitError},
    kind::Placement,
    panics,
    scheduler::{IdlePolicy, Lane, LaneOptions, Worker},
    sync::{
        Condvar, Mutex, lock, mpsc,
        thread::{self, JoinHandle},
        thread_static, wait_until,
    },
    task::Task,
    tracker::{OpRef, ReadyList},
};

/// Threads beyond the workers, each for an operation that waits inside its function. Picked; it bounds what a program that
/// waits in thousands of operations at once can take from the machine.
const MAX_SPARES: usize = 1024;

type BoxedWorker = Box<Worker<Task>>;

/// One lane to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneSpec {
    pub(crate) name: &'static str,
    pub(crate) workers: usize,
    pub(crate) idle: IdlePolicy,
    /// Whether worker `n` belongs on the `n`th core.
    pub(crate) pinned: bool,
}

#[derive(Default)]
struct Spares {
    /// Workers without a thread, by whether their lane is pinned.
    offered: [Vec<BoxedWorker>; 2],
    /// Threads without a worker that wait for one. A thread that was pinned once serves pinned lanes only, since nothing
    /// unpins it.
    idle: [usize; 2],
    /// Threads started so far, spares and others.
    threads: usize,
    /// Numbers of threads that could not be started.
    unused: Vec<usize>,
    ended: bool,
}

/// The lanes of an engine and its threads.
pub(crate) struct Crew {
    lanes: Box<[Arc<Lane<Task>>]>,
    /// The core of each worker of each lane.
    cores: Box<[Box<[Option<CoreId>]>]>,
    max_threads: usize,
    spares: Mutex<Spares>,
    offer: Condvar,
    handles: Mutex<Vec<JoinHandle<()>>>,
    /// Held by whoever ends the threads.
    ending: Mutex<()>,
}

/// What a thread of an engine carries.
struct Carrier {
    worker: Cell<Option<BoxedWorker>>,
    core: Arc<Core>,
    /// The thread's number in the engine.
    number: usize,
    /// The worker's deque is being used: it is looking for work, or something is put in. Foreign code may run then:
    /// crossbeam-deque pins crossbeam's own collector, which runs whatever other crates have retired there.
    looking: Cell<bool>,
}

/// The deque of a thread's worker is being used.
struct Looking<'c>(&'c Cell<bool>);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

thread_static!(static CARRIER: Cell<*const Carrier> = Cell::new(ptr::null()));

// The engine that the thread was started for. It stays when the thread ends, for what its thread-locals do then.
thread_static!(static STARTED_FOR: Cell<*const Core> = Cell::new(ptr::null()));

#[inline]
fn with_carrier<R>(f: impl FnOnce(&Carrier) -> R) -> Option<R> {
    let carrier = CARRIER.with(Cell::get);
    // SAFETY: the carrier lives on the stack of the thread's main function, which clears the pointer at its end.
    unsafe { carrier.as_ref() }.map(f)
}

impl Carrier {
    /// The worker that the thread carries now. The reference may not be kept across foreign code, which may give the
    /// worker away.
    fn worker(&self) -> Option<&Worker<Task>> {
        // SAFETY: only this thread uses the cell, and nobody replaces its content while the reference is used.
        unsafe { &*self.worker.as_ptr() }.as_deref()
    }

    /// Keeps the worker from being used by what runs inside its own deque.
    fn look(&self) -> Looking<'_> {
        self.looking.set(true);
        Looking(&self.looking)
    }

    /// The worker, unless its deque is being used.
    fn free_worker(&self) -> Option<&Worker<Task>> {
        if self.looking.get() { None } else { self.worker() }
    }

    /// As [`Crew::schedule`], by this thread between two operations.
    #[inline]
    fn schedule(&self, op: OpRef<Task>) {
        let crew = self.core.crew();
        match self.free_worker() {
            Some(worker) if Arc::ptr_eq(worker.lane(), crew.lane(op)) => {
                let _looking = self.look();
                worker.keep(op, true);
            }
            _ => crew.schedule(op),
        }
    }

    /// The next operation for the thread's worker; waits for one. `None`: the worker was given away, or its lane has ended.
    fn next(&self) -> Option<OpRef<Task>> {
        let _looking = self.look();
        self.worker().and_then(Worker::next)
    }
}

/// Takes the calling thread, which has just been forked, out of the engine that it belonged to.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn leave_engine() {
    CARRIER.with(|cell| cell.set(ptr::null()));
    STARTED_FOR.with(|cell| cell.set(ptr::null()));
    SERVES_DEVICE.with(|cell| cell.set(false));
}

/// Whether this thread belongs to `core`.
pub(crate) fn belongs_to(core: &Core) -> bool {
    ptr::eq(STARTED_FOR.with(Cell::get), core)
}

/// The number of this thread's worker in its lane.
pub(crate) fn worker_index() -> Option<usize> {
    with_carrier(|carrier| carrier.worker().map(Worker::index)).flatten()
}

/// Puts what only this thread's worker could take where others can: something else is going to run here first.
pub(crate) fn share_slot() {
    with_carrier(|carrier| {
        if let Some(worker) = carrier.free_worker() {
            let _looking = carrier.look();
            worker.share();
        }
    });
}

// The thread serves a device's lane.
thread_static!(static SERVES_DEVICE: Cell<bool> = Cell::new(false));

/// Says that the calling thread serves a lane of a device of `core`.
pub(crate) fn begin_device_thread(core: &Arc<Core>) {
    STARTED_FOR.with(|cell| cell.set(Arc::as_ptr(core)));
    SERVES_DEVICE.with(|cell| cell.set(true));
}

/// Whether the calling thread serves a lane of a device.
pub(crate) fn serves_device() -> bool {
    SERVES_DEVICE.with(Cell::get)
}

/// Gives this thread's worker to a spare thread, if it has one: the calling operation is about to wait.
pub(crate) fn yield_worker() -> Result<(), WaitError> {
    if serves_device() {
        return Err(WaitError::OnDevice);
    }
    with_carrier(|carrier| {
        if carrier.looking.get() {
            // This is code that another crate has left to crossbeam's collector.
            return Err(WaitError::WouldDeadlock);
        }
        share_slot();
        let Some(worker) = carrier.worker.take() else {
            return Ok(());
        };
        carrier.core.crew().give_away(&carrier.core, worker).map_err(|worker| {
            carrier.worker.set(Some(worker));
            WaitError::TooManyWaiting
        })
    })
    .unwrap_or(Ok(()))
}

impl Crew {
    /// The lanes of an engine, and their workers, whose threads are still to be [started](Self::start).
    pub(crate) fn new(specs: &[LaneSpec]) -> (Self, Vec<BoxedWorker>) {
        let max_threads = specs.iter().map(|spec| spec.workers).sum::<usize>() + MAX_SPARES;
        let cores = if specs.iter().any(|spec| spec.pinned) {
            core_affinity::get_core_ids().unwrap_or_default()
        } else {
            Vec::new()
        };
        let mut workers = Vec::new();
        let lanes = specs
            .iter()
            .map(|spec| {
                let (lane, new) = Lane::new(LaneOptions {
                    name: spec.name,
                    workers: spec.workers,
                    threads: max_threads,
                    idle: spec.idle,
                });
                workers.extend(new.into_iter().map(Box::new));
                lane
            })
            .collect();
        let crew = Self {
            lanes,
            cores: specs
                .iter()
                .map(|spec| (0..spec.workers).map(|index| cores.get(index).copied().filter(|_| spec.pinned)).collect())
                .collect(),
            max_threads,
            spares: Mutex::new(Spares::default()),
            offer: Condvar::new(),
            handles: Mutex::new(Vec::new()),
            ending: Mutex::new(()),
        };
        (crew, workers)
    }

    /// Starts a thread per worker and waits until they run; gives where the workers of the first lane are.
    pub(crate) fn start(&self, core: &Arc<Core>, workers: Vec<BoxedWorker>) -> Result<Vec<Placement>, BuildError> {
        let (sender, receiver) = mpsc::channel();
        for worker in workers {
            let number = self.next_number().expect("there are at least as many threads as workers");
            self.spawn(core, number, worker, Some(sender.clone())).map_err(|(error, _)| BuildError::Thread(error))?;
        }
        drop(sender);
        let mut placements = Vec::new();
        for (lane, index, placement) in receiver {
            if lane != 0 {
                continue;
            }
            if placements.len() <= index {
                placements.resize(index + 1, Placement::Unpinned);
            }
            placements[index] = placement;
        }
        Ok(placements)
    }

    /// A number for a thread that is to be started.
    fn next_number(&self) -> Option<usize> {
        let mut spares = lock(&self.spares);
        if let Some(number) = spares.unused.pop() {
            return Some(number);
        }
        if spares.threads == self.max_threads {
            return None;
        }
        spares.threads += 1;
        Some(spares.threads - 1)
    }

    /// Starts thread `number` with `worker`; gives the worker back if that fails.
    fn spawn(
        &self,
        core: &Arc<Core>,
        number: usize,
        worker: BoxedWorker,
        started: Option<mpsc::Sender<(usize, usize, Placement)>>,
    ) -> Result<(), (std::io::Error, Option<BoxedWorker>)> {
        let name = format!("raddle-{}-{number}", worker.lane().name());
        let core = Arc::clone(core);
        self.spawn_with(name, worker, move |worker| carry(core, number, worker, started))
    }

    /// Starts a thread, to be joined with the others, that does `main` with a worker; gives the worker back if that fails.
    pub(crate) fn spawn_with(
        &self,
        name: String,
        worker: BoxedWorker,
        main: impl FnOnce(BoxedWorker) + Send + 'static,
    ) -> Result<(), (std::io::Error, Option<BoxedWorker>)> {
        // Through a slot, because a thread that cannot be started drops its closure.
        let slot = Arc::new(Mutex::new(Some(worker)));
        let for_thread = Arc::clone(&slot);
        let spawned = thread::Builder::new().name(name).spawn(move || {
            let worker = lock(&for_thread).take();
            if let Some(worker) = worker {
                main(worker);
            }
        });
        match spawned {
            Ok(handle) => {
                lock(&self.handles).push(handle);
                Ok(())
            }
            Err(error) => Err((error, lock(&slot).take())),
        }
    }

    /// Whether the threads have been ended.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.spares).ended
    }

    /// Finds a thread for `worker`, whose thread is about to sleep; gives it back if there is none.
    fn give_away(&self, core: &Arc<Core>, worker: BoxedWorker) -> Result<(), BoxedWorker> {
        let pinned = usize::from(self.is_pinned(&worker));
        {
            let mut spares = lock(&self.spares);
            if spares.idle[pinned] > spares.offered[pinned].len() {
                spares.offered[pinned].push(worker);
                self.offer.notify_all();
                return Ok(());
            }
        }
        let Some(number) = self.next_number() else {
            return Err(worker);
        };
        self.spawn(core, number, worker, None).or_else(|(error, worker)| {
            log::warn!("raddle: an operation cannot wait, for want of a thread: {error}");
            lock(&self.spares).unused.push(number);
            worker.map_or(Ok(()), Err)
        })
    }

    /// Waits, as a spare, for a worker to carry; `None` when the engine has ended.
    fn await_offer(&self, pinned: bool) -> Option<BoxedWorker> {
        let pinned = usize::from(pinned);
        let mut spares = lock(&self.spares);
        spares.idle[pinned] += 1;
        let worker = loop {
            if let Some(worker) = spares.offered[pinned].pop() {
                break Some(worker);
            }
            if spares.ended {
                break None;
            }
            spares = match wait_until(&self.offer, spares, None) {
                Ok(spares) => spares,
                Err(_) => unreachable!("there is no deadline"),
            };
        };
        spares.idle[pinned] -= 1;
        worker
    }

    /// The lane of an operation.
    #[inline]
    fn lane(&self, op: OpRef<Task>) -> &Arc<Lane<Task>> {
        &self.lanes[usize::from(op.task().lane)]
    }

    /// Puts a ready operation where a worker of its lane takes it.
    pub(crate) fn schedule(&self, op: OpRef<Task>) {
        let lane = self.lane(op);
        let kept = with_carrier(|carrier| match carrier.free_worker() {
            Some(worker) if Arc::ptr_eq(worker.lane(), lane) => {
                let _looking = carrier.look();
                worker.keep(op, !context::in_operation());
                true
            }
            _ => false,
        });
        if kept != Some(true) {
            lane.inject_from_outside(op);
        }
    }

    /// Whether the calling thread will itself run what it schedules in `lane`, though that may have ended.
    pub(crate) fn is_served_here(&self, lane: u8) -> bool {
        let lane = &self.lanes[usize::from(lane)];
        with_carrier(|carrier| carrier.free_worker().is_some_and(|worker| Arc::ptr_eq(worker.lane(), lane)))
            .unwrap_or(false)
    }

    /// The calling thread is about to wait: the workers that have made way for it take over.
    pub(crate) fn rouse(&self) {
        self.lanes.iter().for_each(|lane| lane.rouse());
    }

    /// Ends all threads and waits for them. To be called when nothing is pending, not by one of them.
    pub(crate) fn end(&self) {
        // Whoever comes second waits as well.
        let _ending = lock(&self.ending);
        for lane in &self.lanes {
            lane.end();
        }
        lock(&self.spares).ended = true;
        self.offer.notify_all();
        let handles = std::mem::take(&mut *lock(&self.handles));
        for handle in handles {
            if handle.join().is_err() {
                log::error!("raddle: a worker thread panicked");
            }
        }
    }

    /// Lets a worker's thread end that has forked, in the child.
    pub(crate) fn end_in_child(&self) {
        self.lanes.iter().for_each(|lane| lane.end_in_child());
    }

    fn lane_of(&self, worker: &Worker<Task>) -> usize {
        self.lanes.iter().position(|lane| Arc::ptr_eq(lane, worker.lane())).unwrap_or(0)
    }

    /// Whether the lane of `worker` is pinned.
    fn is_pinned(&self, worker: &Worker<Task>) -> bool {
        self.cores[self.lane_of(worker)].iter().any(Option::is_some)
    }

    /// Puts the calling thread on the core of `worker`.
    fn pin(&self, worker: &Worker<Task>) -> (usize, Placement) {
        let lane = self.lane_of(worker);
        let placement = match self.cores[lane][worker.index()] {
            None => Placement::Unpinned,
            Some(core) if core_affinity::set_for_current(core) => Placement::Pinned(core.id),
            Some(core) => {
                log::warn!(
                    "raddle: worker {} of lane {} could not be pinned to core {}; it runs unpinned",
                    worker.index(),
                    worker.lane().name(),
                    core.id
                );
                Placement::Refused(core.id)
            }
        };
        (lane, placement)
    }
}

/// The main function of an engine's thread.
fn carry(
    core: Arc<Core>,
    number: usize,
    worker: BoxedWorker,
    mut started: Option<mpsc::Sender<(usize, usize, Placement)>>,
) {
    let carrier = Carrier { worker: Cell::new(None), core, number, looking: Cell::new(false) };
    let crew = carrier.core.crew();
    let pinned = crew.is_pinned(&worker);
    CARRIER.with(|cell| cell.set(&raw const carrier));
    STARTED_FOR.with(|cell| cell.set(Arc::as_ptr(&carrier.core)));
    let mut next = Some(worker);
    while let Some(worker) = next {
        worker.lane().sleep().carry(worker.index(), number);
        let (lane, placement) = crew.pin(&worker);
        let core = if let Placement::Pinned(core) = placement { Some(core) } else { None };
        worker.lane().sleep().place(worker.index(), core);
        if let Some(started) = started.take() {
            // Nobody listens if the build has failed meanwhile.
            let _ = started.send((lane, worker.index(), placement));
        }
        carrier.worker.set(Some(worker));
        run(&carrier);
        // Either the lane has ended, or the worker was given away.
        let worker = carrier.worker.take();
        if carrier.core.is_forked() {
            // This thread has forked, and what it carried was the parent's.
            std::mem::forget(worker);
            break;
        }
        drop(worker);
        next = crew.await_offer(pinned);
    }
    CARRIER.with(|cell| cell.set(ptr::null()));
}

/// Runs operations until the thread's worker is given away or its lane ends.
fn run(carrier: &Carrier) {
    // The user's code has its own barriers; this one keeps a defect of the engine, or what other crates have left to
    // crossbeam's collector, from losing the worker and what is queued here.
    let guarded = |f: &mut dyn FnMut()| {
        if let Err(payload) = panics::catch(f) {
            log::error!("raddle: thread {} panicked outside an operation's function", carrier.number);
            panics::discard(payload);
        }
    };
    let mut ready = ReadyList::default();
    let mut over = false;
    while !over {
        guarded(&mut || {
            // What a panic has left.
            carrier.core.place_all(&mut ready);
            while let Some(op) = carrier.next() {
                carrier.core.execute_here(op, &mut ready);
                carrier.core.place_by(&mut ready, |op| carrier.schedule(op));
            }
            over = true;
        });
    }
}
