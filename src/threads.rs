//! The threads of an engine: who carries which worker, and where.
//!
//! An operation that waits inside its function gives its worker to a spare thread, which goes on with it, and sleeps; it
//! ends without a worker, and its thread becomes a spare. So a wait never keeps a worker, nor can one wait bury another
//! under it on a stack, as running operations on the waiting thread's stack would.

use std::{
    cell::Cell,
    io, ptr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{
    context,
    core::{Core, Rests, Unplain},
    error::{BuildError, WaitError},
    kind::Placement,
    panics,
    roll::Roll,
    scheduler::{IdlePolicy, Lane, LaneOptions, Worker},
    spares::Spares,
    sync::{Mutex, lock, mpsc, thread_static},
    task::Task,
    topology::{self, Claim},
    tracker::{OpRef, ReadyList},
};

/// Threads beyond the workers, each for an operation that waits inside its function. Picked; it bounds what a program that
/// waits in thousands of operations at once can take from the machine.
const MAX_SPARES: usize = 1024;

/// A thread without a worker ends after this time. Picked: long against the waits of a program that goes on waiting. Short
/// in this crate's own tests, so that they see many ends.
const PATIENCE: Duration = if cfg!(test) { Duration::from_millis(1) } else { Duration::from_secs(10) };

type BoxedWorker = Box<Worker<Task>>;

/// One lane to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneSpec {
    pub(crate) name: &'static str,
    pub(crate) workers: usize,
    pub(crate) idle: IdlePolicy,
    /// Whether each worker has a core of its own, as far as there are cores.
    pub(crate) pinned: bool,
}

/// Numbers of threads.
#[derive(Default)]
struct Numbers {
    /// How many were given out.
    given: usize,
    /// Those of threads that have ended, or could not be started.
    unused: Vec<usize>,
}

/// The lanes of an engine and its threads.
pub(crate) struct Crew {
    /// No other engine of the process has it, now or later.
    engine: u64,
    lanes: Box<[Arc<Lane<Task>>]>,
    /// The cores that the engine's threads may use.
    mask: Box<[usize]>,
    /// The core of each worker of each lane.
    cores: Box<[Box<[Option<Claim>]>]>,
    max_threads: usize,
    numbers: Mutex<Numbers>,
    spares: Spares<BoxedWorker>,
    roll: Arc<Roll>,
}

/// A number for an engine, from 1.
fn next_engine() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only distinct numbers are needed.
    NEXT.fetch_add(1, Relaxed)
}

/// What a thread of an engine carries.
struct Carrier {
    worker: Cell<Option<BoxedWorker>>,
    /// The number of the worker's lane.
    lane: Cell<u8>,
    core: Arc<Core>,
    /// The thread's number in the engine; of a thread that carries workers.
    number: usize,
    /// The thread serves a device's lane, and never carries a worker.
    on_device: bool,
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

// The number of the engine that the thread was started for, from 1. It stays when the thread ends, for what its
// thread-locals do then. An address would not do: another engine may have it by then.
thread_static!(static STARTED_FOR: Cell<u64> = Cell::new(0));

/// The calling thread's carrier can be found, until this is dropped.
struct Carrying<'c>(&'c Carrier);

impl Drop for Carrying<'_> {
    fn drop(&mut self) {
        CARRIER.with(|cell| cell.set(ptr::null()));
        // For what its thread-locals do now.
        let _ = topology::keep_to(&self.0.core.crew().mask);
    }
}

#[inline]
fn with_carrier<R>(f: impl FnOnce(&Carrier) -> R) -> Option<R> {
    let carrier = CARRIER.with(Cell::get);
    // SAFETY: the carrier lives on the stack of the thread's main function; `Carrying` clears the pointer before it goes, on
    // every way out.
    unsafe { carrier.as_ref() }.map(f)
}

impl Carrier {
    fn new(core: Arc<Core>, number: usize, on_device: bool) -> Self {
        Self { worker: Cell::new(None), lane: Cell::new(0), core, number, on_device, looking: Cell::new(false) }
    }

    /// Has the calling thread find this carrier.
    fn enter(&self) -> Carrying<'_> {
        CARRIER.with(|cell| cell.set(self));
        STARTED_FOR.with(|cell| cell.set(self.core.crew().engine));
        Carrying(self)
    }

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

    /// Puts what only the thread's worker could take where others can.
    fn share_slot(&self) {
        if let Some(worker) = self.free_worker() {
            let _looking = self.look();
            worker.share();
        }
    }

    /// As [`Crew::schedule`], by this thread between two operations.
    #[inline]
    fn schedule(&self, op: OpRef<Task>) {
        match self.free_worker() {
            Some(worker) if op.task().lane == self.lane.get() => {
                let _looking = self.look();
                worker.keep(op);
            }
            _ => self.core.crew().schedule(op),
        }
    }

    /// Runs an operation that is not as plain as most.
    #[inline(never)]
    fn execute_otherwise(&self, unplain: Unplain, ready: &mut ReadyList<Task>) {
        let rest = self.core.execute_otherwise(unplain, ready);
        let rest = self.core.to_tell(rest);
        self.core.place_all(ready, Rests::from_iter([rest]));
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
    // What the child starts is not to stay on a worker's core.
    with_carrier(|carrier| _ = topology::keep_to(&carrier.core.crew().mask));
    CARRIER.with(|cell| cell.set(ptr::null()));
    STARTED_FOR.with(|cell| cell.set(0));
}

/// Whether this thread belongs to `core`.
pub(crate) fn belongs_to(core: &Core) -> bool {
    STARTED_FOR.with(Cell::get) == core.crew().engine
}

/// The number of this thread's worker in its lane.
pub(crate) fn worker_index() -> Option<usize> {
    with_carrier(|carrier| carrier.worker().map(Worker::index)).flatten()
}

/// Puts what only this thread's worker could take where others can: something else is going to run here first.
pub(crate) fn share_slot() {
    with_carrier(Carrier::share_slot);
}

/// Runs `f` as the main function of a thread that serves a lane of a device of `core`, and stays on those of the engine's
/// cores that are `near`, if there are any.
pub(crate) fn serve_device<R>(core: &Arc<Core>, near: &[usize], f: impl FnOnce() -> R) -> R {
    let carrier = Carrier::new(Arc::clone(core), 0, true);
    let _carrying = carrier.enter();
    let mask = &core.crew().mask;
    let near = topology::common(mask, near);
    let _ = topology::keep_to(if near.is_empty() { mask } else { &near });
    f()
}

/// Whether the calling thread serves a lane of a device.
pub(crate) fn serves_device() -> bool {
    with_carrier(|carrier| carrier.on_device) == Some(true)
}

/// The cores that an engine which the calling thread builds may use: the thread's, or if it belongs to an engine, and may
/// be pinned, that engine's.
pub(crate) fn cores_here() -> Box<[usize]> {
    with_carrier(|carrier| carrier.core.crew().mask.clone()).unwrap_or_else(topology::allowed)
}

/// Runs `f` with the calling thread free to use all cores of its engine, also if it is pinned to one of them.
///
/// Threads inherit the cores of the thread that starts them. What an operation starts on a [pinned](crate::Builder::pin)
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
    let _back = with_carrier(|carrier| {
        let before = topology::allowed();
        topology::keep_to(&carrier.core.crew().mask).then(|| topology::Restore(before))
    });
    f()
}

/// Gives this thread's worker to a spare thread, if it has one: the calling operation is about to wait.
pub(crate) fn yield_worker() -> Result<(), WaitError> {
    with_carrier(|carrier| {
        if carrier.on_device {
            return Err(WaitError::OnDevice);
        }
        if carrier.looking.get() {
            // This is code that another crate has left to crossbeam's collector.
            return Err(WaitError::WouldDeadlock);
        }
        carrier.share_slot();
        let Some(worker) = carrier.worker.take() else {
            return Ok(());
        };
        carrier.core.crew().give_away(&carrier.core, worker).map_err(|(worker, error)| {
            // First, since the logger may wait as well.
            carrier.worker.set(Some(worker));
            if let Some(error) = error {
                panics::log!(Warn, "raddle: an operation cannot wait, for want of a thread: {error}");
            }
            WaitError::TooManyWaiting
        })
    })
    .unwrap_or(Ok(()))
}

impl Crew {
    /// The lanes of an engine that may use the cores `mask`, and their workers, whose threads are still to be
    /// [started](Self::start).
    pub(crate) fn new(specs: &[LaneSpec], mask: Box<[usize]>) -> (Self, Vec<BoxedWorker>) {
        let max_threads = specs.iter().map(|spec| spec.workers).sum::<usize>() + MAX_SPARES;
        let mut workers = Vec::new();
        let lanes = specs
            .iter()
            .map(|spec| {
                let (lane, new) = Lane::new(LaneOptions { name: spec.name, workers: spec.workers, idle: spec.idle });
                workers.extend(new.into_iter().map(Box::new));
                lane
            })
            .collect();
        let cores_of = |spec: &LaneSpec| {
            let mut claims = topology::claim(&mask, if spec.pinned { spec.workers } else { 0 }).into_iter();
            (0..spec.workers).map(|_| claims.next()).collect()
        };
        let crew = Self {
            engine: next_engine(),
            lanes,
            cores: specs.iter().map(cores_of).collect(),
            mask,
            max_threads,
            numbers: Mutex::new(Numbers::default()),
            spares: Spares::default(),
            roll: Arc::default(),
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

    /// Starts thread `number` with `worker`; gives the worker back if that fails.
    fn spawn(
        &self,
        core: &Arc<Core>,
        number: usize,
        worker: BoxedWorker,
        started: Option<mpsc::Sender<(usize, usize, Placement)>>,
    ) -> Result<(), (io::Error, Option<BoxedWorker>)> {
        let name = format!("raddle-{}-{number}", worker.lane().name());
        let (core, roll) = (Arc::clone(core), Arc::clone(&self.roll));
        self.spawn_with(name, worker, move |worker, in_roll| {
            if carry(core, number, worker, started) == Ended::Idle {
                roll.leave(in_roll);
            }
        })
    }

    /// Starts a thread, to be joined with the others, that does `main` with a worker and its number among these; gives the
    /// worker back if that fails.
    pub(crate) fn spawn_with(
        &self,
        name: String,
        worker: BoxedWorker,
        main: impl FnOnce(BoxedWorker, u64) + Send + 'static,
    ) -> Result<(), (io::Error, Option<BoxedWorker>)> {
        // Through a slot, because a thread that cannot be started drops its closure.
        let slot = Arc::new(Mutex::new(Some(worker)));
        let for_thread = Arc::clone(&slot);
        let spawned = self.roll.spawn(name, move |in_roll| {
            let worker = lock(&for_thread).take();
            if let Some(worker) = worker {
                main(worker, in_roll);
            }
        });
        spawned.map_err(|error| (error, lock(&slot).take()))
    }

    /// Starts a thread, to be joined with the others, for something that may take as long as it likes. A shutdown
    /// there, also one in a destructor of a thread-local, does not wait for it.
    pub(crate) fn spawn_aside(&self, name: String, main: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let engine = self.engine;
        self.roll.spawn(name, move |_| {
            STARTED_FOR.with(|cell| cell.set(engine));
            main();
        })
    }

    /// Whether the threads have been ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.spares.have_ended()
    }

    /// Finds a thread for `worker`, whose thread is about to sleep; gives it back if there is none, with the reason if that
    /// is the operating system's.
    fn give_away(&self, core: &Arc<Core>, worker: BoxedWorker) -> Result<(), (BoxedWorker, Option<io::Error>)> {
        let Err(worker) = self.spares.offer(worker) else {
            return Ok(());
        };
        let Some(number) = self.next_number() else {
            return Err((worker, None));
        };
        self.spawn(core, number, worker, None).or_else(|(error, worker)| {
            lock(&self.numbers).unused.push(number);
            worker.map_or(Ok(()), |worker| Err((worker, Some(error))))
        })
    }

    /// Waits, as a spare, for a worker to carry; `None` if the engine has ended, or none has come for long.
    fn await_offer(&self) -> Option<BoxedWorker> {
        // Models have no clock: there the time would be up at once.
        let until = if cfg!(any(raddle_loom, raddle_shuttle)) { None } else { Some(Instant::now() + PATIENCE) };
        self.spares.wait(until)
    }

    /// The lane of an operation.
    #[inline]
    fn lane(&self, op: &OpRef<Task>) -> &Arc<Lane<Task>> {
        &self.lanes[usize::from(op.task().lane)]
    }

    /// Puts a ready operation where a worker of its lane takes it.
    pub(crate) fn schedule(&self, op: OpRef<Task>) {
        let lane = self.lane(&op);
        if Self::serves(lane) { Self::keep(op) } else { lane.inject_from_outside(op) }
    }

    /// Puts a ready operation where the calling thread's worker, which serves its lane, takes it.
    #[inline(never)]
    fn keep(op: OpRef<Task>) {
        with_carrier(|carrier| {
            let between = !context::in_program();
            let _looking = carrier.look();
            match carrier.worker() {
                Some(worker) if between => worker.keep(op),
                Some(worker) => worker.put(op),
                None => {}
            }
        });
    }

    /// Whether the calling thread carries a worker of `lane` that can take something.
    #[inline]
    fn serves(lane: &Arc<Lane<Task>>) -> bool {
        let serves = |carrier: &Carrier| carrier.free_worker().is_some_and(|worker| Arc::ptr_eq(worker.lane(), lane));
        with_carrier(serves) == Some(true)
    }

    /// The calling thread is about to wait: the workers that have made way for it take over.
    pub(crate) fn rouse(&self) {
        self.lanes.iter().for_each(|lane| lane.rouse());
    }

    /// Lets all threads end. To be called when nothing is pending.
    pub(crate) fn end(&self) {
        for lane in &self.lanes {
            lane.end();
        }
        self.spares.end();
    }

    /// Waits until all threads have ended, which they must have been [told](Self::end); not to be called by one of them.
    /// Gives the names of those that have not been joined by the deadline.
    pub(crate) fn join(&self, deadline: Option<Instant>) -> Result<(), Vec<String>> {
        match deadline {
            Some(deadline) => self.roll.join_until(deadline),
            None => {
                self.roll.join_all();
                Ok(())
            }
        }
    }

    /// Whether somebody was told of threads that have not ended yet.
    pub(crate) fn has_left_behind(&self) -> bool {
        self.roll.has_left_behind()
    }

    /// Lets a worker's thread end that has forked, in the child.
    pub(crate) fn end_in_child(&self) {
        self.lanes.iter().for_each(|lane| lane.end_in_child());
    }

    fn lane_of(&self, worker: &Worker<Task>) -> usize {
        self.lanes.iter().position(|lane| Arc::ptr_eq(lane, worker.lane())).unwrap_or(0)
    }

    /// The core of `worker`, if it has one.
    fn core_of(&self, worker: &Worker<Task>) -> Option<&Claim> {
        self.cores[self.lane_of(worker)][worker.index()].as_ref()
    }

    /// Puts the calling thread on the core of `worker`, or on all of the engine's.
    fn place(&self, worker: &Worker<Task>) -> Placement {
        match self.core_of(worker) {
            Some(claim) if topology::keep_to_one(claim.core) => Placement::Pinned(claim.core),
            claim => {
                let _ = topology::keep_to(&self.mask);
                claim.map_or(Placement::Unpinned, |claim| Placement::Refused(claim.core))
            }
        }
    }
}

/// Why a thread has ended.
#[derive(PartialEq, Eq)]
enum Ended {
    /// Nobody has needed it for long.
    Idle,
    /// Its engine has ended.
    Over,
}

/// The main function of an engine's thread that carries workers.
fn carry(
    core: Arc<Core>,
    number: usize,
    worker: BoxedWorker,
    mut started: Option<mpsc::Sender<(usize, usize, Placement)>>,
) -> Ended {
    let carrier = Carrier::new(core, number, false);
    let crew = carrier.core.crew();
    let _carrying = carrier.enter();
    let mut next = Some(worker);
    while let Some(worker) = next {
        worker.lane().sleep().carry(worker.index());
        let (lane, index, placement) = (crew.lane_of(&worker), worker.index(), crew.place(&worker));
        let core = if let Placement::Pinned(core) = placement { Some(core) } else { None };
        worker.lane().sleep().place(index, core);
        if let Some(started) = started.take() {
            // Nobody listens if the build has failed meanwhile.
            let _ = started.send((lane, index, placement));
        }
        carrier.lane.set(lane as u8);
        carrier.worker.set(Some(worker));
        if let Placement::Refused(core) = placement {
            let lane = crew.lanes[lane].name();
            context::enter_after(&carrier.core, || {
                panics::log!(
                    Warn,
                    "raddle: worker {index} of lane {lane} could not be pinned to core {core}; it runs unpinned"
                );
            });
        }
        run(&carrier);
        // Either the lane has ended, or the worker was given away.
        let worker = carrier.worker.take();
        if carrier.core.is_forked() {
            // This thread has forked, and what it carried was the parent's.
            std::mem::forget(worker);
            return Ended::Over;
        }
        if let Some(worker) = worker
            && let Some(claim) = crew.core_of(&worker)
        {
            claim.give_back();
        }
        // Elsewhere than on Linux a thread that was pinned cannot carry a worker that is not.
        next = if core.is_none() || topology::CAN_WIDEN { crew.await_offer() } else { None };
    }
    if crew.has_ended() {
        return Ended::Over;
    }
    lock(&crew.numbers).unused.push(number);
    Ended::Idle
}

/// Runs operations until the thread's worker is given away or its lane ends.
fn run(carrier: &Carrier) {
    let mut ready = ReadyList::default();
    loop {
        // The user's code has its own barriers; this one keeps a defect of the engine, or what other crates have left to
        // crossbeam's collector, from losing the worker and what is queued here.
        let result = panics::catch(|| {
            carrier.core.place_all(&mut ready, Rests::new());
            run_operations(carrier, &mut ready);
        });
        let Err(payload) = result else { return };
        // What the panic has left goes where others find it, since the payload's drop and the logger may wait for that.
        let placed = panics::catch(|| {
            carrier.core.place_all(&mut ready, Rests::new());
            share_slot();
        });
        context::enter_after(&carrier.core, || {
            for payload in [Some(payload), placed.err()].into_iter().flatten() {
                panics::discard(payload);
            }
            panics::log!(Error, "raddle: thread {} panicked outside an operation's function", carrier.number);
        });
    }
}

/// Runs operations while there are any and the thread has a worker; what became ready goes into `ready` until it is
/// placed.
///
/// It stands by itself so that the loop of every operation shares its registers with nothing that happens once.
#[inline(never)]
fn run_operations(carrier: &Carrier, ready: &mut ReadyList<Task>) {
    while let Some(op) = carrier.next() {
        match carrier.core.execute_here(op, ready) {
            Ok(ticket) if ready.is_empty() => carrier.core.count_out(ticket),
            Ok(ticket) => {
                let here = carrier.core.place_by(ready, |op| carrier.schedule(op));
                if here.is_empty() {
                    carrier.core.count_out(ticket);
                } else {
                    carrier.core.run_here_after(here, ticket);
                }
            }
            Err(unplain) => carrier.execute_otherwise(unplain, ready),
        }
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests {
    use super::*;
    use crate::{Engine, EngineKind};

    /// Waits inside each other, each in an operation that gives its worker to another thread.
    fn nest(engine: &Engine, depth: usize) -> usize {
        let inner = engine.clone();
        let next = engine.op("nest").submit((), move |()| if depth == 0 { 0 } else { nest(&inner, depth - 1) });
        1 + next.expect("the engine is open").wait().expect("nothing fails")
    }

    /// In these tests a thread without a worker ends after a millisecond.
    #[test]
    #[cfg_attr(miri, ignore = "starts a thousand threads")]
    fn threads_that_come_and_go_leave_nothing() {
        const DEPTH: usize = 40;
        let engine = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).build().expect("it is built");
        let crew = engine.core().crew();
        let (lives, known) = (|| crew.roll.count().0, || crew.roll.count().1);
        let before = known();
        while lives() < 10_000 {
            assert_eq!(nest(&engine, DEPTH), DEPTH + 1);
            let start = Instant::now();
            // All but some, which are joined when there are more.
            while known() > before + crate::roll::MANY {
                assert!(start.elapsed() < Duration::from_secs(20), "{} threads, {before} before", known());
                std::thread::yield_now();
            }
            assert!(lock(&crew.numbers).given < 3 * DEPTH, "numbers do not come back");
        }
    }

    #[test]
    fn no_two_engines_have_a_number() {
        let numbers = [(); 2].map(|()| {
            let engine = Engine::builder().kind(EngineKind::Naive).build().expect("it is built");
            engine.core().crew().engine
        });
        assert!(numbers[0] != numbers[1] && !numbers.contains(&0));
    }
}
