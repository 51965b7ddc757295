//! The configuration of an engine.

use std::{
    cell::LazyCell,
    env,
    ffi::OsString,
    fmt,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use crate::{
    api::engine::Engine,
    context::worker_thread::cores_here,
    device::{
        driver::GpuDriver,
        gpus::{Gpus, MAX_GPUS},
    },
    engine::{
        at_exit,
        core::{Core, ServeLane},
        fork, shuffle, shutdown, workers,
    },
    error::build::BuildError,
    gpu,
    memory::pool,
    observe::{record, recording::Recording},
    op::{
        no_wait::{self, NoWait},
        units::ResourceCore,
    },
    scheduler::IdlePolicy,
    sync::process::PerProcess,
    system::{core_claims, stack::StackSizes, stderr, topology},
    threads::{
        shuffler::Shuffler,
        thread_list::ThreadHooks,
        thread_pool::{LaneSpec, ThreadPool},
    },
    trace::{log::Log, observer::Observer, recorder::Recorder, watchdog::Watchdog},
    values::kind::EngineKind,
};

/// The maximum number of workers in a lane.
const MAX_WORKERS: usize = 1024;

/// Makes a function for the start or end of each thread.
fn thread_hook(f: impl Fn() + Send + Sync + 'static) -> Arc<dyn Fn() + Send + Sync> {
    Arc::new(move || no_wait::contained(NoWait::Observer, "a function for the start or end of a thread", &f))
}

impl Engine {
    /// Returns a builder with default settings.
    ///
    /// ```
    /// # fn main() -> Result<(), raddle::error::BuildError> {
    /// let engine = raddle::Engine::builder().workers(2).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Returns the process-wide engine, which the first call builds with default settings. This engine is never
    /// dropped, so a program must call [`shutdown`](Self::shutdown) or wait before it exits; otherwise, pending
    /// operations may not run. In a forked child, the first call builds the child's own engine.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::global()?;
    /// engine.op("hello").push((), |()| println!("hello"))?;
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`EngineBuilder::build`]. If a call fails, the next call tries again.
    pub fn global() -> Result<&'static Self, BuildError> {
        static GLOBAL: PerProcess<Global> = PerProcess::new();
        fork::begin();
        GLOBAL.get(Global::default).engine()
    }
}

/// The process-wide engine.
#[derive(Default)]
struct Global {
    engine: OnceLock<Engine>,
    building: std::sync::Mutex<()>,
}

impl Global {
    fn engine(&self) -> Result<&Engine, BuildError> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let _building = self.building.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let engine = Engine::builder().build()?;
        Ok(self.engine.get_or_init(|| engine))
    }
}

/// A builder that configures and creates an [`Engine`], returned by [`Engine::builder`].
///
/// ```
/// use std::time::Duration;
/// # fn main() -> Result<(), raddle::error::BuildError> {
/// let engine = raddle::Engine::builder()
///     .workers(2)
///     .pin(false)
///     .idle(raddle::IdlePolicy::SpinThenPark(Duration::from_micros(20)))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `build`"]
pub struct EngineBuilder {
    kind: Option<EngineKind>,
    workers: Option<usize>,
    prioritized_workers: Option<usize>,
    pin: Option<bool>,
    quiet: bool,
    stack_size: Option<usize>,
    stack_reserve: Option<usize>,
    idle: IdlePolicy,
    max_pending: Option<usize>,
    jobs: Option<usize>,
    gpus: Vec<GpuDriver>,
    recorder: Option<Recorder>,
    log: Option<Log>,
    profile: Option<PathBuf>,
    watchdog: Option<Watchdog>,
    shuffle: Option<u64>,
    observers: Observers,
    hooks: ThreadHooks,
}

#[derive(Clone, Default)]
struct Observers(Vec<Arc<dyn Observer>>);

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}

impl EngineBuilder {
    /// Sets the kind of engine. Default: the value of the environment variable `RADDLE_ENGINE`, or
    /// [`PerDevice`](EngineKind::PerDevice) if that is unset or blank. A kind set here always takes precedence over the
    /// environment.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, EngineKind};
    ///
    /// let engine = Engine::builder().kind(EngineKind::Naive).build()?; // runs each operation inside its push
    /// assert_eq!(engine.kind(), EngineKind::Naive);
    /// # Ok(())
    /// # }
    /// ```
    pub fn kind(mut self, kind: EngineKind) -> Self {
        self.kind = Some(kind);
        self
    }

    /// Sets the number of workers for ordinary operations. Default: one per core that the engine may use (see
    /// [`pin`](Self::pin)), capped by the CPU quota of the process's control group. Workers beyond the number of cores
    /// are not pinned.
    ///
    /// No more ordinary operations compute at the same time than there are workers, apart from functions that have
    /// waited and [received no worker in time](crate::blocking), and operations that a thread outside the engine runs
    /// inside a push, either because the engine is [full](Self::max_pending) or because the operation is
    /// [eager](crate::OpBuilder::eager). Functions that are blocked do not count; [`jobs`](Self::jobs) bounds them too.
    /// The threads of [other lanes](crate::Property) compute beside the workers: those for copies, those of GPUs and,
    /// on a `PerDevice` engine, the workers for prioritised operations.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(2).build()?;
    /// assert_eq!(engine.placements().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Sets the number of workers for [`Property::CpuPrioritized`](crate::Property::CpuPrioritized) operations on
    /// [`PerDevice`](EngineKind::PerDevice) engines. Default: 1. These workers are not pinned, so the operating system
    /// can run them on the cores of busy workers.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, Property};
    ///
    /// let engine = Engine::builder().workers(1).prioritized_workers(2).build()?;
    /// engine.op("alarm").property(Property::CpuPrioritized).push((), |()| println!("does not wait for a worker"))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prioritized_workers(mut self, workers: usize) -> Self {
        self.prioritized_workers = Some(workers);
        self
    }

    /// Sets whether each worker for ordinary operations is pinned to its own core. Default: `true` if the engine has a
    /// worker for each core that it may use, the process's control group grants these cores whole, and no other engine,
    /// of this process or another, has pinned a worker to one of them; otherwise `false`, so that the system can move
    /// workers away from cores that others use. Even then, a worker leaves its core for a while if the core is
    /// contended and it [waits less](crate::guide::latency#pinning) elsewhere; with `true`, it stays. If the system
    /// refuses to pin a worker, it runs unpinned, [`Engine::placements`] reports this, and a warning is logged. With
    /// pinning, a GPU's threads run on those of the engine's cores that are nearest the GPU, if Linux reports them.
    ///
    /// An engine may use the cores available to the thread that builds it or, if that thread belongs to another engine,
    /// all of that engine's cores. All of its threads stay on these cores, unless [the process is
    /// moved](crate::guide::on_your_machine#cores) to others. The engine pins its workers to the cores
    /// with the fewest pinned workers of other engines, also of [other processes](crate::guide::latency#pinning). Among
    /// these, it uses one logical core of each physical core before the others, and the cores of one package before
    /// those of the next. A worker releases its core when the engine ends.
    ///
    /// A thread started by an operation inherits the worker's core. Operations should therefore start threads, such as
    /// those of a thread pool, inside [`unpinned`](crate::unpinned).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, system::Placement};
    ///
    /// let engine = Engine::builder().workers(2).pin(false).build()?;
    /// assert_eq!(engine.placements(), [Placement::Unpinned; 2]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = Some(pin);
        self
    }

    /// Sets whether this process writes to standard error what nothing else would tell the program, as long as logging
    /// is off, as it is without a logger: a failure that no wait has returned when its engine ends, a thread that could
    /// not be started, a waker that panicked, a profile that could not be written. Default: `true`. Once an engine is
    /// built with `false`, the process writes no such lines any more.
    ///
    /// With a logger for the crate [`log`], these lines go there, at the levels `Warn` and `Error`. Standard error
    /// receives at most 20 lines a second; further ones are counted.
    ///
    /// ```
    /// # fn main() -> Result<(), raddle::error::BuildError> {
    /// let engine = raddle::Engine::builder().workers(1).stderr(false).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn stderr(mut self, lines: bool) -> Self {
        self.quiet = !lines;
        self
    }

    /// Sets the size of the stack of each of the engine's threads, in bytes. Default: 4 MiB, or `RUST_MIN_STACK` if
    /// that is larger, or four times the [reserve](Self::stack_reserve) if that is larger still. Only the part that is
    /// used takes memory.
    ///
    /// ```
    /// # fn main() -> Result<(), raddle::error::BuildError> {
    /// let engine = raddle::Engine::builder().workers(2).stack_size(32 << 20).build()?; // each function may use 8 MiB
    /// # Ok(())
    /// # }
    /// ```
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Sets how many bytes of stack the function of each operation may use, wherever it runs. Default: a quarter of the
    /// [size](Self::stack_size), so 1 MiB.
    ///
    /// An operation may run on the stack of another function: inside a wait, inside a push if it is
    /// [eager](crate::OpBuilder::eager) or the engine is full, or on an engine of kind `Naive`. The same holds for
    /// wakers and drops that run because an operation has ended. All this happens only where as many bytes are left. On
    /// a shorter stack, such code is left to a worker: a wait hands its worker over, an eager operation is queued, and
    /// a push to a full engine only waits. Without workers, it runs once an outer function has returned, or on a thread
    /// of its own while the calling thread waits. So no recursion of operations overflows a stack, whatever its depth,
    /// if each function keeps to the reserve. Where the bounds of a stack are unknown (systems other than Linux, and
    /// fibres), at most three operations are nested.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(1).stack_reserve(3 << 20).build()?;
    /// engine.op("large frame").push((), |()| drop(std::hint::black_box([0u8; 2 << 20])))?;
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn stack_reserve(mut self, bytes: usize) -> Self {
        self.stack_reserve = Some(bytes);
        self
    }

    /// Sets how idle workers wait for work. Default: [`IdlePolicy::SpinThenPark`] for 50 µs.
    ///
    /// Unless it is [`IdlePolicy::Park`], a thread that waits outside operations also spins before it sleeps, for 10 µs at
    /// most, while waits end that soon.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, IdlePolicy};
    ///
    /// let engine = Engine::builder().workers(1).idle(IdlePolicy::Park).build()?; // no CPU time while idle
    /// # Ok(())
    /// # }
    /// ```
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = idle;
        self
    }

    /// Limits the number of pending operations, so a producer that outpaces the workers cannot exhaust memory. Default:
    /// no limit. A limit of 0 is treated as 1.
    ///
    /// **With a limit, a push may block and may run other operations.** If a push from outside operations finds the
    /// engine full, it
    ///
    /// 1. runs ready CPU operations on the pushing thread until there is room;
    /// 2. proceeds even though the engine is full, if no operation is ready or running: all pending operations are then
    ///    waiting for the program to act, perhaps on the pushing thread, for example by using a
    ///    [`Completion`](crate::Completion) or dropping a guard;
    /// 3. otherwise waits until there is room.
    ///
    /// A thread must therefore not push while it holds a lock that an operation takes, or a guard or completion that an
    /// operation's function waits for: that operation may run inside the push. [`OpBuilder::if_room`] never blocks or
    /// runs operations: if there is no room, it returns [`PushError::Full`]. [`OpBuilder::when_room`] is for
    /// asynchronous code. Both enforce the limit even in case 2. A shutdown ends every wait for room with
    /// [`PushError::ShutDown`]. While the engine is [stopped](Engine::stop), a push that finds it full returns
    /// [`PushError::Full`].
    ///
    /// Pushes from operations, from polls of their futures, and from other code called by an engine, such as wakers and
    /// destructors, count towards the limit but are never held back. [`Engine::acquire`] and waits are never held back
    /// either.
    ///
    /// The limit is approximate. Except in case 2, a single pushing thread does not exceed it. If several threads push,
    /// each may exceed it by up to 32 operations, or by fewer if the limit is small.
    ///
    /// Without a limit, pushes cost nothing extra. See [`Group::max_pending`](crate::Group::max_pending) for the
    /// operations of one group, and the [guide](crate::guide::bounding_work) for other ways to bound work.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(1).max_pending(100).build()?;
    /// let total = engine.var(0);
    /// for number in 0..10_000 {
    ///     engine.op("add").push(total.write(), move |total| *total += number)?;
    ///     assert!(engine.pending() <= 101); // about as many as the limit allows
    /// }
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`OpBuilder::if_room`]: crate::OpBuilder::if_room
    /// [`OpBuilder::when_room`]: crate::OpBuilder::when_room
    /// [`PushError::Full`]: crate::PushError::Full
    /// [`PushError::ShutDown`]: crate::PushError::ShutDown
    pub fn max_pending(mut self, limit: usize) -> Self {
        self.max_pending = Some(limit);
        self
    }

    /// Lets at most this many operations run at a time, like `-j` of build tools. Default: no bound besides the number
    /// of [workers](Self::workers). 0 is treated as 1. Unlike the number of workers, this bound also covers functions
    /// in [`blocking`](crate::blocking), asynchronous operations until their completions are used, and all lanes. It
    /// does not cover sleeping futures, acquired variables, deletions, reads of values, and other operations of the
    /// engine itself.
    ///
    /// [`Group::jobs`](crate::Group::jobs) says what waits do, and the [guide](crate::guide::resources) says more. With
    /// a bound, each operation costs about as much as one in a group.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(2).jobs(8).build()?;
    /// for command in 0..20 {
    ///     engine.op("run").push((), move |()| raddle::blocking(|| println!("command {command}")))?; // eight at a time
    /// }
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn jobs(mut self, jobs: usize) -> Self {
        self.jobs = Some(jobs);
        self
    }

    /// Records the engine's activity in `recorder`, from which the program [takes](Recorder::take) a
    /// [`Trace`](crate::trace::Trace). Several engines may share a recorder. Only the last call takes effect.
    ///
    /// A recorder adds 50 to 60 ns to each push and to each run, measured on a machine on which each clock reading
    /// takes 10 ns of that. An engine that has no recorder, [observer](Self::observer), [profile](Self::profile) or
    /// [watchdog](Self::watchdog) and does not [shuffle](Self::shuffle) performs only one additional test per push.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let recorder = raddle::trace::Recorder::new();
    /// let engine = raddle::Engine::builder().workers(1).recorder(&recorder).build()?;
    /// engine.op("hello").push((), |()| println!("hello"))?;
    /// engine.wait_for_all()?;
    /// assert_eq!(recorder.take().ops()[0].name.as_str(), "hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn recorder(mut self, recorder: &Recorder) -> Self {
        self.recorder = Some(recorder.clone());
        self
    }

    /// Writes a trace of all of the engine's activity to the file at `path` while the engine runs. If the file name
    /// ends with `.json`, the file is in Chrome's format; otherwise, as for `trace.pftrace`, it is in the native format
    /// of [Perfetto](https://ui.perfetto.dev). Perfetto displays both. If the file name ends with `.html`, the file is
    /// a [report](crate::trace::Trace::write_report) on the first 200,000 operations, which are kept in memory until
    /// the engine ends; then the report is written. The last part of the trace is written when the engine ends, so a
    /// program should drop its engine or shut it down before exiting. An [asynchronous](crate::Engine::shutdown_async)
    /// shutdown does not wait for the file; the drop of the last handle does.
    ///
    /// If an engine of this process has written a profile to the file, whatever its path, a number is added to the file
    /// name. If another process has, and is still there, the number of this process is added, and a warning says so
    /// once; so a child process that inherits `RADDLE_PROFILE` leaves its parent's profile alone. Another file at
    /// `path` is overwritten. A pipe must have a reader.
    ///
    /// Default: the value of the environment variable `RADDLE_PROFILE`, or no profile if that is unset or blank. With
    /// the variable, an existing file that is not a profile is not overwritten, and [`build`](Self::build) returns an
    /// error.
    ///
    /// If the file cannot be written later, for instance because the disk is full or the file has become as large as
    /// the process's limit (`RLIMIT_FSIZE`), the profile ends, an error is logged, and
    /// [`shutdown`](crate::Engine::shutdown) returns [`ShutdownError::Profile`]. No signal ends the process.
    ///
    /// [`ShutdownError::Profile`]: crate::error::ShutdownError::Profile
    ///
    /// A separate thread writes to the file every few milliseconds. It keeps up with some 100,000 operations a second,
    /// or with more if it has a core for itself ([figures](crate::guide::seeing#cost)). If there are more for so long
    /// that a thread pushes and runs about 40,000 operations that are not yet written, some are missing from the file,
    /// and a warning is logged. If the program has also set a [`recorder`](Self::recorder), the profile is read from
    /// the recorder's rings, whose size determines how many operations fit; the program can still take the recorder's
    /// own trace.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let path = std::env::temp_dir().join("hello.pftrace");
    /// let engine = raddle::Engine::builder().workers(1).profile(&path).build()?;
    /// engine.op("hello").push((), |()| println!("hello"))?;
    /// drop(engine);
    /// assert!(std::fs::metadata(&path)?.len() > 0);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn profile(mut self, path: impl Into<PathBuf>) -> Self {
        self.profile = Some(path.into());
        self
    }

    /// Logs the operations that the engine runs, with their places in the order of pushes, so that a
    /// [`Replay`](crate::replay::Replay) can push them again. See [`Log`] for an example, and the
    /// [guide](crate::guide::replay) for what is logged and what it costs. Only the last call takes effect.
    pub fn log(mut self, log: &Log) -> Self {
        self.log = Some(log.clone());
        self
    }

    /// Sets a watchdog, which watches the engine and reports what takes too long. See [`Watchdog`] for an example. A
    /// watched engine records a number and the push time of each operation, so a push reads the clock. Only the last
    /// call takes effect.
    pub fn watchdog(mut self, watchdog: Watchdog) -> Self {
        self.watchdog = Some(watchdog);
        self
    }

    /// Starts ready operations in a random order determined by `seed`, so that tests reveal whether the program relies
    /// on an undeclared order. Default: the number in the environment variable `RADDLE_SHUFFLE`, or no shuffling if
    /// that is unset or empty. A naive engine does not shuffle.
    ///
    /// Operations that conflict still run in push order. A shuffling engine starts all others regardless of push order
    /// and priorities, some of them after a delay. It does not shuffle [eager](crate::OpBuilder::eager) operations that
    /// are ready when pushed, nor most of its own operations. Shuffling is meant for tests: it costs several
    /// microseconds for each operation, and about 100 µs if a worker has to be woken up for it.
    ///
    /// **With one worker, the same seed gives the same order.** Operations start one after the other, and the seed
    /// decides which of the ready ones is next. This holds under two conditions: apart from operations, only one thread
    /// pushes, and that thread waits only in the engine's blocking waits, such as [`Engine::wait_for_all`]. While the
    /// thread waits for anything else, such as a channel or a future, the engine starts operations once nothing has
    /// been pushed for 50 ms. The order may still vary if other threads use completions or if operations wait inside
    /// their functions.
    ///
    /// With several workers, the order and overlap vary from run to run.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::{Arc, Mutex};
    ///
    /// /// Returns the order in which two operations without a common variable run.
    /// fn order(seed: u64) -> Result<String, Box<dyn std::error::Error>> {
    ///     let engine = raddle::Engine::builder().workers(1).shuffle(seed).build()?;
    ///     let order = Arc::new(Mutex::new(String::new()));
    ///     for step in ["warp ", "weft "] {
    ///         let order = Arc::clone(&order);
    ///         engine.op(step).push((), move |()| order.lock().expect("no operation panics").push_str(step))?;
    ///     }
    ///     engine.wait_for_all()?;
    ///     let order = order.lock().expect("no operation panics").clone();
    ///     Ok(order)
    /// }
    ///
    /// let reversed = (0..64).find(|&seed| order(seed).is_ok_and(|order| order == "weft warp "));
    /// assert!(reversed.is_some(), "some seed shows that nothing orders the two");
    /// # Ok(())
    /// # }
    /// ```
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.shuffle = Some(seed);
        self
    }

    /// Adds an observer, which the engine calls at each step of an operation, such as its push, start and completion.
    /// See [`Observer`] for an example.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.0.push(Arc::new(observer));
        self
    }

    /// Adds a function that each of the engine's threads calls first: workers, threads beside them, and those of GPUs,
    /// but not the engine's helpers that only join threads. For example, it may register the thread with another
    /// runtime.
    ///
    /// The function may push. A wait returns [`WaitError::InObserver`](crate::WaitError::InObserver), since operations
    /// may need the thread. A panic is logged. An engine may start threads at any time, for example when operations
    /// wait in their functions, and end idle ones.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::{Arc, atomic::{AtomicUsize, Ordering::Relaxed}};
    ///
    /// let threads = Arc::new(AtomicUsize::new(0));
    /// let (begin, end) = (Arc::clone(&threads), Arc::clone(&threads));
    /// let engine = raddle::Engine::builder()
    ///     .on_thread_start(move || _ = begin.fetch_add(1, Relaxed))
    ///     .on_thread_end(move || _ = end.fetch_sub(1, Relaxed))
    ///     .build()?;
    /// engine.shutdown(raddle::Shutdown::Drain, None)?;
    /// assert_eq!(threads.load(Relaxed), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_thread_start(mut self, f: impl Fn() + Send + Sync + 'static) -> Self {
        self.hooks.start.push(thread_hook(f));
        self
    }

    /// Adds a function that each of the engine's threads calls last, before its thread-locals are destroyed, under the
    /// same rules as [`on_thread_start`](Self::on_thread_start). A shutdown waits for it. It is not called in a forked
    /// child.
    pub fn on_thread_end(mut self, f: impl Fn() + Send + Sync + 'static) -> Self {
        self.hooks.end.push(thread_hook(f));
        self
    }

    /// Adds a GPU. Operations refer to it as [`Device::Gpu(n)`](crate::Device::Gpu), where `n` is the number of GPUs
    /// added before it. The thread of each of the GPU's lanes is started when the first operation for that lane is
    /// pushed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Device, Engine, gpu::SimulatedGpu};
    ///
    /// let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).gpu(SimulatedGpu::new()).build()?;
    /// let on_second = engine.device_var::<f32>(Device::Gpu(1), 64)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn gpu(mut self, gpu: impl Into<GpuDriver>) -> Self {
        self.gpus.push(gpu.into());
        self
    }

    /// Creates the engine and starts its threads.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, error::BuildError};
    ///
    /// assert!(matches!(Engine::builder().workers(0).build(), Err(BuildError::NoWorkers)));
    /// let engine = Engine::builder().build()?; // one worker per core
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if a number of workers is 0 or too high, if the sizes of stacks do not fit, if there are too
    /// many GPUs, if the value of `RADDLE_ENGINE` is not the name of an engine kind, if the value of `RADDLE_SHUFFLE`
    /// is not a number, if the recorder was made before this process was forked, if another engine has the log, if a
    /// profile cannot be written, or if a thread cannot be started. The file of the profile is opened last, so none is
    /// left after another error, and the log can then be given to another engine.
    pub fn build(self) -> Result<Engine, BuildError> {
        if !self.quiet {
            return self.build_with_log();
        }
        // No line is written during the build, either.
        stderr::turn_off();
        self.build_with_log().inspect_err(|_| stderr::turn_on())
    }

    fn build_with_log(self) -> Result<Engine, BuildError> {
        let Some(log) = self.log.clone() else { return self.build_engine() };
        if !log.claim() {
            return Err(BuildError::LogInUse);
        }
        self.build_engine().inspect_err(|_| log.release())
    }

    fn build_engine(self) -> Result<Engine, BuildError> {
        fork::begin();
        let kind = match (self.kind, variable("RADDLE_ENGINE")) {
            (Some(kind), _) => kind,
            (None, Some(name)) => name.to_string_lossy().parse()?,
            (None, None) => EngineKind::default(),
        };
        let cores = cores_here();
        // Found out only if it is needed, since that reads files.
        let parallelism = LazyCell::new(|| topology::parallelism(&cores));
        let workers = self.workers.unwrap_or_else(|| *parallelism);
        let prioritized = self.prioritized_workers.unwrap_or(1);
        if workers == 0 || prioritized == 0 {
            return Err(BuildError::NoWorkers);
        }
        if workers.max(prioritized) > MAX_WORKERS {
            return Err(BuildError::TooManyWorkers(MAX_WORKERS));
        }
        if self.gpus.len() > MAX_GPUS {
            return Err(BuildError::TooManyGpus(MAX_GPUS));
        }
        if self.recorder.as_ref().is_some_and(Recorder::is_foreign) {
            return Err(BuildError::ForkedRecorder);
        }
        let claims = match self.pin {
            _ if kind == EngineKind::Naive => Vec::new(),
            Some(true) => core_claims::claim(&cores, workers),
            None if workers >= cores.len() && *parallelism == cores.len() => core_claims::claim_if_free(&cores),
            _ => Vec::new(),
        };
        let pinned = self.pin.unwrap_or(!claims.is_empty());
        // `Route::of` knows the lanes by their positions.
        let lanes: &[LaneSpec] = &[
            LaneSpec { name: "cpu", workers, idle: self.idle },
            LaneSpec { name: "copy", workers: 1, idle: IdlePolicy::Park },
            LaneSpec { name: "copy-back", workers: 1, idle: IdlePolicy::Park },
            LaneSpec { name: "priority", workers: prioritized, idle: self.idle },
        ];
        let lanes = match kind {
            EngineKind::Naive => &lanes[..0],
            EngineKind::Pooled => &lanes[..2],
            EngineKind::PerDevice => lanes,
        };
        let stacks = StackSizes::new(self.stack_size, self.stack_reserve)
            .map_err(|(size, reserve)| BuildError::Stack { size, reserve })?;
        let (threads, boxed) = ThreadPool::new(lanes, &cores, (claims, self.pin.is_none()), stacks, self.hooks);
        let gpus = Gpus::new(self.gpus, kind, self.idle, pinned);
        let limit = self.max_pending.map(|limit| limit.max(1) as u64);
        let bound = self.jobs.map(|jobs| Arc::new(ResourceCore::bound(jobs)));
        let seed = match self.shuffle {
            None => seed_from_environment()?,
            seed => seed,
        };
        let shuffler =
            seed.filter(|_| kind != EngineKind::Naive).map(|seed| Arc::new(Shuffler::new(seed, workers == 1)));
        let is_asked_for = self.profile.is_some();
        let profile = self.profile.or_else(|| variable("RADDLE_PROFILE").map(PathBuf::from));
        let recording = Recording::new(
            self.recorder,
            self.observers.0,
            profile.is_some(),
            self.log.clone(),
            self.watchdog.is_some() || shuffler.is_some(),
            threads.engine(),
        );
        let (gpus, shards) = ((gpus, gpu::serve as ServeLane), (2 * workers + 2).min(64));
        let core = Arc::new(Core::new(kind, threads, gpus, shards, (limit, bound), recording, shuffler));
        pool::prepare();
        record::introduce(&core);
        fork::watch(&core);
        at_exit::watch(&core);
        match workers::start(&core, boxed) {
            Ok(placements) => {
                core.placements.get_or_init(|| placements.into());
                let engine = Engine::new(core);
                shuffle::begin(engine.core()).map_err(BuildError::Thread)?;
                self.watchdog
                    .map_or(Ok(()), |watchdog| record::watch(engine.core(), watchdog))
                    .map_err(BuildError::Thread)?;
                let core = engine.core();
                let spawn = |name, main| core.threads().spawn_aside(name, main);
                if let (Some(path), Some(recording)) = (profile, core.recording()) {
                    let begun = recording.begin_profile(&path, is_asked_for, spawn);
                    begun.map_err(|error| BuildError::Profile(path, error))?;
                }
                self.log.map_or(Ok(()), |log| log.begin(spawn)).map_err(BuildError::Thread)?;
                Ok(engine)
            }
            Err(error) => {
                shutdown::end_unstarted(&core);
                Err(error)
            }
        }
    }
}

/// Returns the value of an environment variable, unless it is unset or blank, which all of them take for the same.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.to_string_lossy().trim().is_empty())
}

/// Returns the value of `RADDLE_SHUFFLE` if it is set.
fn seed_from_environment() -> Result<Option<u64>, BuildError> {
    let Some(value) = variable("RADDLE_SHUFFLE") else { return Ok(None) };
    let value = value.to_string_lossy();
    value.trim().parse().map(Some).map_err(|_| BuildError::InvalidSeed(value.into_owned()))
}
