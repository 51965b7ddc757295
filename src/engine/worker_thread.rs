//! What a thread of an engine knows about itself: its engine, and the worker that it runs.

use std::{cell::Cell, ptr, sync::Arc};

use crate::{
    engine::{core::Core, frame, task::Task},
    error::wait::WaitError,
    scheduler::{Lane, Worker},
    sync::thread_static,
    system::{panics, topology},
    threads::pool::{BoxedWorker, Ended, disown_thread},
    tracker::OpRef,
};

/// The main function of a thread that runs workers, beginning with this one; the number is the thread's.
pub(super) type Main = fn(Arc<Core>, usize, BoxedWorker<Task>) -> Ended;

/// What a thread is for.
#[derive(Clone, Copy)]
pub(super) enum Duty {
    /// It runs workers. A thread that takes over does the same.
    Workers(Main),
    /// It serves a device's lane, and never has a worker.
    Device,
}

/// A thread of an engine.
pub(super) struct WorkerThread {
    pub(super) worker: Cell<Option<BoxedWorker<Task>>>,
    /// The number of the worker's lane.
    pub(super) lane: Cell<u8>,
    pub(super) core: Arc<Core>,
    duty: Duty,
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

thread_static!(static CURRENT: Cell<*const WorkerThread> = Cell::new(ptr::null()));

/// [`with_current`] finds a thread until this is dropped.
pub(super) struct Entered<'c>(&'c WorkerThread);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        CURRENT.with(|cell| cell.set(ptr::null()));
        // For what its thread-locals do now.
        let _ = topology::keep_to(self.0.core.threads().mask());
    }
}

/// Calls `f` with the calling thread, if it is an engine's.
#[inline]
fn with_current<R>(f: impl FnOnce(&WorkerThread) -> R) -> Option<R> {
    let current = CURRENT.with(Cell::get);
    // SAFETY: the `WorkerThread` lives on the stack of the thread's main function; `Entered` clears the pointer before it
    // goes, on every way out.
    unsafe { current.as_ref() }.map(f)
}

impl WorkerThread {
    pub(super) fn new(core: Arc<Core>, duty: Duty) -> Self {
        Self { worker: Cell::new(None), lane: Cell::new(0), core, duty, looking: Cell::new(false) }
    }

    /// Has [`with_current`] find this thread, which is the calling one.
    pub(super) fn enter(&self) -> Entered<'_> {
        CURRENT.with(|cell| cell.set(self));
        self.core.threads().adopt_thread();
        Entered(self)
    }

    /// The worker that the thread has now. The reference may not be kept across foreign code, which may give the worker
    /// away.
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

    /// Puts what only the thread's worker could take where others can.
    fn share_slot(&self) {
        if let Some(worker) = self.free_worker() {
            let _looking = self.look();
            worker.share();
        }
    }

    /// As [`schedule`], by this thread between two operations.
    #[inline]
    pub(super) fn schedule(&self, op: OpRef<Task>) {
        match self.free_worker() {
            Some(worker) if op.task().lane == self.lane.get() => {
                let _looking = self.look();
                worker.keep(op);
            }
            _ => schedule(&self.core, op),
        }
    }

    /// The next operation for the thread's worker; waits for one. `None`: the worker was given away, or its lane has ended.
    pub(super) fn next(&self) -> Option<OpRef<Task>> {
        let _looking = self.look();
        self.worker().and_then(Worker::next)
    }
}

/// Puts a ready operation where a worker of its lane takes it.
pub(super) fn schedule(core: &Core, op: OpRef<Task>) {
    let lane = core.threads().lane(op.task().lane);
    if serves(lane) { keep(op) } else { lane.inject_from_outside(op) }
}

/// Puts a ready operation where the calling thread's worker, which serves its lane, takes it.
#[inline(never)]
fn keep(op: OpRef<Task>) {
    with_current(|thread| {
        let between = !frame::in_program();
        let _looking = thread.look();
        match thread.worker() {
            Some(worker) if between => worker.keep(op),
            Some(worker) => worker.put(op),
            None => {}
        }
    });
}

/// Whether the calling thread has a worker of `lane` that can take something.
#[inline]
fn serves(lane: &Arc<Lane<Task>>) -> bool {
    let serves = |thread: &WorkerThread| thread.free_worker().is_some_and(|worker| Arc::ptr_eq(worker.lane(), lane));
    with_current(serves) == Some(true)
}

/// Takes the calling thread, which has just been forked, out of the engine that it belonged to.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(super) fn leave_engine() {
    // What the child starts is not to stay on a worker's core.
    with_current(|thread| _ = topology::keep_to(thread.core.threads().mask()));
    CURRENT.with(|cell| cell.set(ptr::null()));
    disown_thread();
}

/// The number of this thread's worker in its lane.
pub(crate) fn worker_index() -> Option<usize> {
    with_current(|thread| thread.worker().map(Worker::index)).flatten()
}

/// Puts what only this thread's worker could take where others can: something else is going to run here first.
pub(super) fn share_slot() {
    with_current(WorkerThread::share_slot);
}

/// Runs `f` as the main function of a thread that serves a lane of a device of `core`, and stays on those of the engine's
/// cores that are `near`, if there are any.
pub(crate) fn serve_device<R>(core: &Arc<Core>, near: &[usize], f: impl FnOnce() -> R) -> R {
    let thread = WorkerThread::new(Arc::clone(core), Duty::Device);
    let _entered = thread.enter();
    let mask = core.threads().mask();
    let near = topology::common(mask, near);
    let _ = topology::keep_to(if near.is_empty() { mask } else { &near });
    f()
}

/// Whether the calling thread serves a lane of a device.
pub(super) fn serves_device() -> bool {
    with_current(|thread| matches!(thread.duty, Duty::Device)) == Some(true)
}

/// The cores that an engine which the calling thread builds may use: the thread's, or if it belongs to an engine, and may
/// be pinned, that engine's.
pub(crate) fn cores_here() -> Box<[usize]> {
    with_current(|thread| thread.core.threads().mask().into()).unwrap_or_else(topology::allowed)
}

/// Runs `f` with the calling thread free to use all cores of its engine, also if it is pinned to one of them.
///
/// Threads inherit the cores of the thread that starts them. What an operation starts on a [pinned](crate::EngineBuilder::pin)
/// worker is therefore pinned to the worker's core as well: a thread pool that is first used there would have all of its
/// threads on one core. Begin to use it inside `unpinned`. Afterwards, also if `f` panics, the thread is where it was.
///
/// Nothing but `f` happens on a thread that is not an engine's, which has the cores that the program gave it, and where the
/// operating system is not Linux.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let started = engine.op("start").submit((), move |()| {
///     // What is started here may use all cores, and not only the worker's.
///     raddle::unpinned(|| std::thread::spawn(cores))
/// })?;
/// assert_eq!(started.wait()?.join().unwrap(), cores());
/// # Ok(())
/// # }
/// ```
pub fn unpinned<R>(f: impl FnOnce() -> R) -> R {
    let _back = with_current(|thread| {
        let before = topology::allowed();
        topology::keep_to(thread.core.threads().mask()).then(|| topology::Restore(before))
    });
    f()
}

/// Gives this thread's worker to a spare thread, if it has one: the calling operation is about to wait.
pub(super) fn yield_worker() -> Result<(), WaitError> {
    with_current(|thread| {
        let Duty::Workers(main) = thread.duty else {
            return Err(WaitError::OnDevice);
        };
        if thread.looking.get() {
            // This is code that another crate has left to crossbeam's collector.
            return Err(WaitError::WouldDeadlock);
        }
        thread.share_slot();
        let Some(worker) = thread.worker.take() else {
            return Ok(());
        };
        let core = Arc::clone(&thread.core);
        let given = thread.core.threads().give_away(worker, move |number, worker| main(core, number, worker));
        given.map_err(|(worker, error)| {
            // First, since the logger may wait as well.
            thread.worker.set(Some(worker));
            if let Some(error) = error {
                panics::log!(Warn, "raddle: an operation cannot wait, for want of a thread: {error}");
            }
            WaitError::TooManyWaiting
        })
    })
    .unwrap_or(Ok(()))
}
