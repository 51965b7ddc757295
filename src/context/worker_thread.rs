//! The state of an engine's thread: the engine, the thread's duty, and its worker.
//!
//! A thread finds its own state through a thread-local. Code from other crates may run inside calls to the worker's
//! deque, since crossbeam-deque pins crossbeam's default collector, which runs closures that other crates have
//! deferred. The thread therefore marks the deque as in use during these calls, and operations made ready by such code
//! go to the injector instead of the deque.

use std::{cell::Cell, ptr, sync::Arc};

use crate::{
    context::{core_ref::OfThread, running},
    engine::core::Core,
    error::{deadlock::Deadlock, wait::WaitError},
    op::{frame, task::Task},
    scheduler::{Lane, LentPlace, Worker},
    sync::thread_static,
    system::{Placement, core_set::CoreSet, panics, topology},
    threads::thread_pool::{BoxedWorker, Ended, disown_thread},
    trace::Place,
    tracker::OpRef,
};

/// The main function of a thread that runs workers. Its arguments are the engine, the number of the thread, and its
/// first worker.
pub(super) type Main = fn(Arc<Core>, usize, BoxedWorker<Task>) -> Ended;

/// The duty of an engine's thread.
#[derive(Clone, Copy)]
pub(crate) enum Duty {
    /// The thread runs workers. Another thread that takes over this one's worker runs this main function.
    Workers(Main),
    /// The thread serves a GPU lane. The lane's worker stays outside [`WorkerThread::worker`], so that nothing here
    /// schedules on it or hands it over.
    Device,
}

/// A thread of an engine.
pub(crate) struct WorkerThread {
    pub(crate) worker: Cell<Option<BoxedWorker<Task>>>,
    /// The number of the worker's lane.
    lane: Cell<u8>,
    pub(crate) core: Arc<Core>,
    /// The reference shared by [handles](super::core_ref) created on this thread.
    shared_core: Arc<OfThread>,
    duty: Duty,
    /// Whether a function on this thread has handed over the worker and has since neither ended nor received another
    /// one, or counts as having done so.
    gave_away: Cell<bool>,
    /// The number of times that functions on this thread have queued for a worker, modulo 2³².
    returns: Cell<u32>,
    /// Whether a function that has handed over its worker continues in place of an idle worker.
    borrows: Cell<bool>,
    /// Whether the thread may use all cores of the engine, regardless of its worker.
    is_unpinned: Cell<bool>,
    /// Whether the worker's deque is in use: the worker is looking for work, or operations are being pushed onto the
    /// deque or taken from it.
    deque_in_use: Cell<bool>,
}

/// Marks the deque of a thread's worker as in use until dropped.
struct DequeInUse<'c>(&'c Cell<bool>);

impl Drop for DequeInUse<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

thread_static!(static CURRENT: Cell<*const WorkerThread> = Cell::new(ptr::null()));

/// Lets [`with_current`] find the calling thread's state until dropped.
pub(crate) struct Entered<'c>(&'c WorkerThread);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        CURRENT.with(|cell| cell.set(ptr::null()));
        // Unpins the thread for the destructors of its thread-locals.
        self.0.core.threads().cores().widen();
    }
}

/// Calls `f` with the state of the calling thread, if an engine owns the thread.
#[inline]
fn with_current<R>(f: impl FnOnce(&WorkerThread) -> R) -> Option<R> {
    let current = CURRENT.with(Cell::get);
    // SAFETY: the `WorkerThread` lives on the stack of the thread's main function. `Entered` clears the pointer before
    // the `WorkerThread` is dropped, even if the main function unwinds.
    unsafe { current.as_ref() }.map(f)
}

impl WorkerThread {
    pub(crate) fn new(core: Arc<Core>, duty: Duty) -> Self {
        Self {
            worker: Cell::new(None),
            lane: Cell::new(0),
            shared_core: Arc::new(OfThread(Arc::clone(&core))),
            core,
            duty,
            gave_away: Cell::new(false),
            returns: Cell::new(0),
            borrows: Cell::new(false),
            is_unpinned: Cell::new(false),
            deque_in_use: Cell::new(false),
        }
    }

    /// Installs `self` as the state that [`with_current`] finds on the calling thread.
    pub(crate) fn enter(&self) -> Entered<'_> {
        CURRENT.with(|cell| cell.set(self));
        self.core.threads().adopt_thread();
        Entered(self)
    }

    /// Gives the thread a worker. Returns the number of the worker's lane and where the thread now runs.
    pub(crate) fn take_up(&self, worker: BoxedWorker<Task>) -> (usize, Placement) {
        let threads = self.core.threads();
        worker.lane().sleep().set_thread(worker.index());
        let (lane, placement) = (threads.lane_of(&worker), threads.pin_to_core(&worker));
        worker.lane().sleep().set_core(worker.index(), placement.core());
        if self.is_unpinned.get() {
            threads.cores().widen();
        }
        self.lane.set(lane as u8);
        self.worker.set(Some(worker));
        self.end_without_worker();
        (lane, placement)
    }

    /// Borrows a worker's place for the function on this thread, unless it has one. Returns `None` if there is no place
    /// left.
    fn borrow_place(&self) -> Option<LentPlace> {
        if self.borrows.get() {
            return Some(LentPlace::Idle);
        }
        let lent = self.core.threads().lane(self.lane.get()).borrow_place();
        self.borrows.set(lent.is_some());
        lent
    }

    /// Gives the borrowed place back, if there is one.
    fn give_place_back(&self) {
        if self.borrows.replace(false) {
            self.core.threads().lane(self.lane.get()).give_place_back();
        }
    }

    /// Records that the function on this thread no longer runs without a worker, because it has ended or received one.
    pub(crate) fn end_without_worker(&self) {
        if self.core.is_forked() {
            return;
        }
        self.give_place_back();
        if self.gave_away.replace(false) {
            self.core.function_has_returned();
            running::end_running(&self.core);
        }
    }

    /// Returns the worker that the thread is running. The reference must not be kept across calls to code of the
    /// program or of other crates, since such code may give the worker away.
    #[inline]
    fn worker(&self) -> Option<&Worker<Task>> {
        // SAFETY: only this thread uses the cell, and its content is not replaced while the reference is used.
        unsafe { &*self.worker.as_ptr() }.as_deref()
    }

    /// Returns the place of the thread's worker in the traces of the engine with this number. The thread must have a
    /// worker.
    #[inline]
    pub(crate) fn place(&self, engine: u16) -> Place {
        let worker = self.worker().map_or(0, |worker| worker.index() as u16);
        Place::Worker { engine, lane: self.lane.get(), worker }
    }

    /// Prevents code running inside a call to the worker's deque from using the worker.
    #[inline]
    fn use_deque(&self) -> DequeInUse<'_> {
        self.deque_in_use.set(true);
        DequeInUse(&self.deque_in_use)
    }

    /// Returns the worker, unless its deque is in use.
    #[inline]
    fn free_worker(&self) -> Option<&Worker<Task>> {
        if self.deque_in_use.get() { None } else { self.worker() }
    }

    /// Makes the operation in the worker's slot stealable.
    fn share_slot(&self) {
        if let Some(worker) = self.free_worker() {
            let _in_use = self.use_deque();
            worker.share_slot();
        }
    }

    /// [`schedule`] for a thread that is between two operations.
    #[inline(always)]
    pub(crate) fn schedule(&self, op: OpRef<Task>) {
        match self.free_worker() {
            Some(worker) if op.task().lane == self.lane.get() => {
                if let Err(op) = worker.put_in_slot(op) {
                    let _in_use = self.use_deque();
                    worker.enqueue(op);
                }
            }
            _ => schedule(&self.core, op),
        }
    }

    /// Waits for the next operation of the worker. Returns `None` if the worker has been given away or its lane has
    /// ended.
    #[inline]
    pub(crate) fn next(&self) -> Option<OpRef<Task>> {
        let worker = self.worker()?;
        match worker.next_in_slot() {
            Ok(op) => Some(op),
            Err(slot) => {
                let _in_use = self.use_deque();
                worker.next_queued(slot)
            }
        }
    }
}

/// Schedules a ready operation on the workers of its lane.
pub(crate) fn schedule(core: &Core, op: OpRef<Task>) {
    let lane = core.threads().lane(op.task().lane);
    if serves(lane) { schedule_here(op) } else { lane.inject_from_outside(op) }
}

/// Schedules a ready operation on the worker of the calling thread, which serves the operation's lane: in the slot
/// between two operations, and in the deque inside one.
#[inline(never)]
fn schedule_here(op: OpRef<Task>) {
    with_current(|thread| {
        let between = !frame::in_program();
        let _in_use = thread.use_deque();
        match thread.worker() {
            Some(worker) if between => worker.push_next(op),
            Some(worker) => worker.push_local(op),
            None => {}
        }
    });
}

/// Whether the calling thread has a worker of `lane` whose deque is not in use.
#[inline]
fn serves(lane: &Arc<Lane<Task>>) -> bool {
    let serves = |thread: &WorkerThread| thread.free_worker().is_some_and(|worker| Arc::ptr_eq(worker.lane(), lane));
    with_current(serves) == Some(true)
}

/// Removes the calling thread, the only one in a forked child, from the parent process's engine.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn leave_engine() {
    // The thread is unpinned, since otherwise every thread started by the child would inherit the worker's core.
    with_current(|thread| _ = thread.core.threads().cores().widen());
    CURRENT.with(|cell| cell.set(ptr::null()));
    disown_thread();
}

/// Returns the number of this thread's worker in its lane.
pub(crate) fn worker_index() -> Option<usize> {
    with_current(|thread| thread.worker().map(Worker::index)).flatten()
}

/// The worker, lane or program that runs the functions on a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Runner {
    /// A worker: its lane, and its number there.
    Worker(u8, usize),
    /// A GPU lane.
    Device,
    /// The program, or a thread that has handed over its worker.
    Other,
}

/// Returns what runs the functions of `core` on the calling thread.
#[inline]
pub(crate) fn runner_of(core: &Core) -> Runner {
    let runner = |thread: &WorkerThread| match (thread.worker(), thread.duty) {
        _ if !ptr::eq(Arc::as_ptr(&thread.core), core) => Runner::Other,
        (Some(worker), _) => Runner::Worker(thread.lane.get(), worker.index()),
        (None, Duty::Device) => Runner::Device,
        (None, Duty::Workers(_)) => Runner::Other,
    };
    with_current(runner).unwrap_or(Runner::Other)
}

/// Returns the lane of this thread's worker, if the worker belongs to `core` and its deque is not in use. If a function
/// continues in a worker's place, returns that worker's lane.
#[inline]
pub(crate) fn lane_of(core: &Core) -> Option<u8> {
    let is_own = |thread: &WorkerThread| {
        ptr::eq(Arc::as_ptr(&thread.core), core) && (thread.free_worker().is_some() || thread.borrows.get())
    };
    with_current(|thread| is_own(thread).then(|| thread.lane.get())).flatten()
}

/// Whether the calling thread is inside a call to its worker's deque. During such a call, the thread cannot give the
/// worker away.
pub(crate) fn uses_deque() -> bool {
    with_current(|thread| thread.deque_in_use.get()) == Some(true)
}

/// Makes the operation in the slot of this thread's worker stealable, because other code is about to run here.
pub(crate) fn share_slot() {
    with_current(WorkerThread::share_slot);
}

/// Runs `f` as the main function of a thread that serves a GPU lane. The thread stays on the engine's cores that are
/// `near` the GPU, if there are any.
pub(crate) fn serve_device<R>(core: &Arc<Core>, near: &[usize], f: impl FnOnce() -> R) -> R {
    let thread = WorkerThread::new(Arc::clone(core), Duty::Device);
    let _entered = thread.enter();
    let cores = core.threads().cores();
    let _ = CoreSet::new(near).common(&cores.get()).keep_thread() || cores.widen();
    f()
}

/// Whether the calling thread serves a GPU lane.
#[inline]
pub(crate) fn serves_device() -> bool {
    with_current(|thread| matches!(thread.duty, Duty::Device)) == Some(true)
}

/// Returns the engine for which the calling thread serves a GPU lane, if it serves one.
pub(crate) fn served_engine() -> Option<Arc<Core>> {
    with_current(|thread| matches!(thread.duty, Duty::Device).then(|| Arc::clone(&thread.core))).flatten()
}

/// Returns the cores that an engine built by the calling thread may use. If an engine owns the thread, these are that
/// engine's cores, since the thread may be pinned; otherwise, they are the cores on which the thread may run.
pub(crate) fn cores_here() -> Box<[usize]> {
    with_current(|thread| thread.core.threads().cores().get().list()).unwrap_or_else(topology::allowed)
}

/// Runs `f` while the calling thread may use all cores of its engine, even if it is pinned to one of them.
///
/// A thread inherits the cores of the thread that starts it. A thread started by an operation on a
/// [pinned](crate::EngineBuilder::pin) worker is therefore also pinned to the worker's core, and a thread pool first
/// used in such an operation runs all its threads on one core. Start such threads inside `unpinned`. When `f` returns
/// or panics, the thread is pinned again.
///
/// Outside an engine's threads, and on systems other than Linux, `unpinned` simply calls `f`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let started = engine.op("start").submit((), move |()| {
///     // A thread started here may use all cores, not only the worker's.
///     raddle::unpinned(|| std::thread::spawn(cores))
/// })?;
/// assert_eq!(started.wait()?.join().unwrap(), cores());
/// # Ok(())
/// # }
/// ```
pub fn unpinned<R>(f: impl FnOnce() -> R) -> R {
    /// Pins the thread again when dropped: to its worker's core if it has a worker by then, and otherwise to its
    /// previous cores.
    struct PinAgain(CoreSet);
    impl Drop for PinAgain {
        fn drop(&mut self) {
            with_current(|thread| {
                thread.is_unpinned.set(false);
                match thread.worker() {
                    Some(worker) => _ = thread.core.threads().pin_to_core(worker),
                    None => _ = self.0.keep_thread(),
                }
            });
        }
    }
    let _again = with_current(|thread| {
        let before = CoreSet::new(&topology::allowed());
        let unpins = !thread.is_unpinned.get() && thread.core.threads().cores().widen();
        unpins.then(|| {
            thread.is_unpinned.set(true);
            PinAgain(before)
        })
    });
    f()
}

/// Takes the worker away from this thread if the worker belongs to `core` and its deque is not in use. The operations
/// in the deque can be stolen.
pub(crate) fn take_worker(core: &Core) -> Option<BoxedWorker<Task>> {
    with_current(|thread| {
        let takes = ptr::eq(Arc::as_ptr(&thread.core), core) && thread.free_worker().is_some();
        takes.then(|| {
            thread.share_slot();
            core.record_wait();
        });
        if takes { thread.worker.take() } else { None }
    })
    .flatten()
}

/// Takes the first operation that is `wanted` from the deque of the calling thread's worker, if the worker belongs to
/// `core` and its deque is not in use.
pub(crate) fn take_queued(core: &Core, wanted: impl FnMut(&OpRef<Task>) -> bool) -> Option<OpRef<Task>> {
    with_current(|thread| {
        let worker = thread.free_worker().filter(|_| ptr::eq(Arc::as_ptr(&thread.core), core))?;
        let _in_use = thread.use_deque();
        worker.share_slot();
        worker.take(wanted)
    })
    .flatten()
}

/// Returns the reference to `core` shared by handles created on the calling thread, if the thread belongs to `core`.
#[inline]
pub(super) fn shared_core(core: &Arc<Core>) -> Option<Arc<OfThread>> {
    with_current(|thread| Arc::ptr_eq(&thread.core, core).then(|| Arc::clone(&thread.shared_core))).flatten()
}

/// Counts an operation run by a waiter on this thread.
pub(crate) fn note_helped() {
    with_current(|thread| thread.worker().map(Worker::note_helped));
}

/// Counts an operation that a waiter on this thread has taken from its entry in a queue, leaving the entry stale, and
/// is about to run. Makes the operation in the slot of the thread's worker stealable.
pub(crate) fn note_taken() {
    with_current(|thread| {
        if let Some(worker) = thread.worker() {
            worker.note_stale();
            worker.note_helped();
        }
        thread.share_slot();
    });
}

/// Returns the calling thread's engine, and the lane of the worker that the thread has handed over or
/// [counts](begin_code) as having handed over. Returns `None` if there is no such worker or the thread has received one
/// since.
pub(crate) fn without_worker() -> Option<(Arc<Core>, u8)> {
    with_current(|thread| thread.gave_away.get().then(|| (Arc::clone(&thread.core), thread.lane.get()))).flatten()
}

/// Records that a function on the calling thread is queueing for a worker. Returns how often this has happened before.
pub(crate) fn count_return() -> u32 {
    with_current(|thread| thread.returns.replace(thread.returns.get().wrapping_add(1))).unwrap_or(0)
}

/// Borrows a worker's place for the function on the calling thread, which has no worker. Returns `None` if there is no
/// place left.
pub(crate) fn borrow_place() -> Option<LentPlace> {
    with_current(WorkerThread::borrow_place).flatten()
}

/// Lets the calling thread's worker, if it belongs to `core`, stay idle while functions continue in workers' places.
pub(crate) fn give_way(core: &Core) {
    with_current(|thread| {
        if ptr::eq(Arc::as_ptr(&thread.core), core) {
            thread.share_slot();
            thread.free_worker().into_iter().for_each(Worker::give_way);
        }
    });
}

/// Gives a worker to the calling thread, which has handed over its own.
pub(crate) fn resume(worker: BoxedWorker<Task>) {
    let mut worker = Some(worker);
    with_current(|thread| {
        worker.take().map(|worker| thread.take_up(worker));
        thread.core.record_return_to_work();
    });
    debug_assert!(worker.is_none(), "only threads of an engine hand workers over");
}

/// Whether a function on the calling thread has handed over the worker, or [counts](begin_code) as having done so, and
/// the thread has not received one since.
pub(crate) fn is_without_worker() -> bool {
    with_current(|thread| thread.gave_away.get()) == Some(true)
}

/// Records that program code is about to run on the calling thread, which may have given its worker away at the end of
/// an operation. Returns whether the thread now counts as having handed over its worker. If so, the code may [regain a
/// worker](crate::wait::regain), as a function does after waiting.
pub(crate) fn begin_code() -> bool {
    let begin = |thread: &WorkerThread| {
        let lacks_worker =
            matches!(thread.duty, Duty::Workers(_)) && thread.worker().is_none() && !thread.gave_away.get();
        let begins = lacks_worker && thread.core.has_workers() && thread.core.threads().aside().code_begins();
        if begins {
            if thread.core.bounds.are_in_use() {
                running::begin_running(&thread.core);
            }
            thread.gave_away.set(true);
        }
        begins
    };
    with_current(begin) == Some(true)
}

/// Gives a worker back to the calling thread, from which it was [taken](take_worker).
pub(crate) fn put_back(worker: BoxedWorker<Task>) {
    with_current(|thread| {
        thread.worker.set(Some(worker));
        thread.core.record_return_to_work();
    });
}

/// Hands over this thread's worker, if it has one, to a spare or new thread, since the calling operation is about to
/// wait.
pub(crate) fn yield_worker() -> Result<(), WaitError> {
    with_current(|thread| {
        let Duty::Workers(main) = thread.duty else {
            return Err(WaitError::OnDevice);
        };
        if thread.deque_in_use.get() {
            // The caller is code that another crate has deferred in crossbeam's default collector.
            return Err(WaitError::WouldDeadlock(Deadlock::default()));
        }
        thread.share_slot();
        let Some(worker) = thread.worker.take() else {
            thread.give_place_back();
            return Ok(());
        };
        let core = Arc::clone(&thread.core);
        // A thread that is started inherits nothing from which it could tell that the process was moved.
        core.threads().cores().follow();
        // The thread is counted in `running` before other threads can see the worker idle, and stays counted until the
        // operation ends or the thread has a worker again.
        let counted = core.bounds.are_in_use() && running::begin_running(&core);
        // Recorded before another thread receives the worker.
        thread.core.record_wait();
        let given = thread.core.threads().give_away(worker, move |number, worker| main(core, number, worker));
        if given.is_ok() {
            thread.gave_away.set(true);
            thread.core.function_waits();
        } else if counted {
            running::end_running(&thread.core);
        }
        given.map_err(|(worker, error)| {
            // The worker is put back before the logger is called, since the logger may wait as well.
            thread.worker.set(Some(worker));
            thread.core.record_return_to_work();
            if let Some(error) = error {
                panics::log!(
                    Warn,
                    "raddle: an operation cannot wait because no thread could be started to run its worker: {error}"
                );
            }
            WaitError::TooManyWaiting
        })
    })
    .unwrap_or(Ok(()))
}
