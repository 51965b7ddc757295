//! The handle to an engine, and its methods.

use std::{
    fmt,
    future::Future,
    ops::Deref,
    panic::Location,
    sync::Arc,
    time::{Duration, Instant},
};

use bytemuck::Pod;

use crate::{
    api::{handle::VarWait, op_context::OpContext, published::Published, token::Token, var::Var},
    device::{
        driver::Driver,
        memory::{DeviceVec, PinnedVec},
        stream::ImportedStream,
    },
    engine::{
        core::{Core, Live},
        keeps_open::KeepsOpen,
        shutdown, stop,
    },
    error::{
        build::{BuildError, ShutdownError},
        device_error::DeviceError,
        op::OpError,
        push_error::{FORKED, PushError},
        wait::WaitError,
    },
    observe::{record, snapshot},
    op::{
        frame,
        variable::{self, ValueMemory, VarCell},
        variables,
        waits::WaitFor,
    },
    system::Placement,
    trace::{dump::Dump, stats::Stats},
    values::{device::Device, kind::EngineKind},
    wait,
};

/// How an engine is shut down.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Engine, Shutdown, WaitError, error::Cause};
///
/// let engine = Engine::builder().workers(1).build()?;
/// let (sender, receiver) = std::sync::mpsc::channel::<()>();
/// engine.op("first").push((), move |()| _ = receiver.recv())?;
/// let second = engine.op("second").submit((), |()| {})?; // the only worker is busy
/// engine.notify_shutdown();
/// drop(sender);
/// engine.shutdown(Shutdown::Cancel, None)?;
/// let Err(WaitError::Failed(error)) = second.wait() else { panic!("`second` has not started") };
/// assert!(matches!(error.cause(), Cause::Cancelled));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Pending operations run and may push more operations. All other pushes are refused.
    Drain,
    /// Operations that have not started fail with [`Cause::Cancelled`](crate::error::Cause::Cancelled), and all pushes
    /// are refused. Deletions and [clean-ups](crate::OpBuilder::cleanup) still run. Operations that are
    /// [futures](crate::OpBuilder::submit_future) and have started are woken and fail at their next poll. The shutdown
    /// waits for all others that have started, which it [tells](crate::OpContext::cancelled).
    Cancel,
}

/// A dependency engine. A program pushes operations, each with the variables that it reads and mutates. Two operations
/// conflict if they name the same variable and at least one of them mutates it. Conflicting operations run in push
/// order; all others may run in parallel.
///
/// Any number of threads may push concurrently, even inside operations. Each push is atomic over all its variables: all
/// pushes have a single order, which every variable's queue follows and which is consistent with real time and with
/// each thread's own push order. A push waits for other operations only if a [limit](crate::EngineBuilder::max_pending)
/// holds it back. A push runs operations only in three cases: the engine is [`Naive`](EngineKind::Naive), the pushed
/// operation is [eager](crate::OpBuilder::eager) and ready, or a limit holds the push back.
///
/// Clones are handles to the same engine. Dropping the last handle, not counting [weak](WeakEngine) ones,
/// drains the engine: the drop waits for pending operations and ends the threads. Inside an operation of any engine,
/// and in other code called by an engine, the drop returns immediately and the engine ends in the background. A program
/// may keep variables after their engine has ended. As long as a handle to the engine exists, [`get`](Self::get) can
/// still read them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().build()?;
/// let weights = engine.var(vec![1.0f32; 4]);
/// let gradient = engine.var(vec![0.0f32; 4]);
///
/// engine.op("backward").push((weights.read(), gradient.write()), |(w, g)| {
///     g.copy_from_slice(w);
/// })?;
/// engine.op("step").push((gradient.read(), weights.write()), |(g, w)| {
///     w.iter_mut().zip(g).for_each(|(w, g)| *w -= 0.5 * g);
/// })?;
/// assert_eq!(engine.get(&weights)?, [0.5; 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Forked processes
///
/// A forked child has none of the threads of its parent's engines, so these engines cannot work there. On Linux, every
/// call on such an engine, or on its variables and handles, returns immediately in the child: a push with
/// [`PushError::Forked`], a wait with [`WaitError::Refused`], and a shutdown with [`ShutdownError::Forked`]. A future
/// resolves as soon as it is polled. In the child, pending operations do not run and drops have no effect: variables
/// and their values stay in memory. The parent is unaffected.
///
/// A child may build its own engines, and [`global`](Self::global) returns the child's own engine. It may do so in its
/// handlers of `pthread_atfork`, too. A handler registered before the parent's first engine was built runs before that
/// of this library, so it must build an engine before it touches those of the parent. A process may also fork inside an
/// operation. If an engine thread forks, the child's copy of that thread ends when the operation's function returns. So
/// does the copy of a thread on which a [`Naive`](EngineKind::Naive) engine runs an operation because the pushing
/// thread has [little stack left](crate::guide::on_your_machine#stacks): the pushing thread does not exist in the
/// child, so the push never returns there. A child cannot use its parent's GPUs: simulated GPUs are lost in the child,
/// and CUDA does not work in a child of a process that has used it.
///
/// The standard library takes a lock for a moment when a thread starts or ends. If another thread holds it at the fork,
/// no thread of the child ever starts, so engines that the child builds run nothing. A process whose children build
/// engines should fork when none of its threads is starting or ending, for instance while its engines are idle and
/// after those no longer needed have been [shut down](Self::shutdown).
///
/// Forks on other systems, and children created through the system call `clone` instead of the C library's `fork`, are
/// not detected. Such a child must not use its parent's engines.
#[derive(Clone)]
pub struct Engine(Reference);

#[derive(Clone)]
enum Reference {
    KeepsOpen(KeepsOpen<true>),
    /// Does not keep the engine open.
    Downgraded(Arc<Core>),
}

/// Whether both are handles to the same engine.
impl PartialEq for Engine {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.core(), other.core())
    }
}

impl Eq for Engine {}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("kind", &self.kind())
            .field("is_open", &self.core().is_open())
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self(Reference::KeepsOpen(KeepsOpen::new(&core)))
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &Arc<Core> {
        match &self.0 {
            Reference::KeepsOpen(reference) => reference.core(),
            Reference::Downgraded(reference) => reference,
        }
    }

    /// Returns a handle that can push and wait but does not keep the engine open; see [`WeakEngine`].
    #[must_use]
    pub fn downgrade(&self) -> WeakEngine {
        WeakEngine::new(self.core())
    }

    /// Returns a handle to the engine of the innermost operation running on this thread, or `None` outside operations.
    /// It does not keep the engine open.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::Engine;
    ///
    /// let engine = Engine::builder().workers(1).build()?;
    /// assert!(Engine::current().is_none());
    /// engine.op("outer").push((), |()| {
    ///     let engine = Engine::current().expect("this is an operation");
    ///     engine.op("inner").push((), |()| {}).expect("operations may push");
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn current() -> Option<WeakEngine> {
        frame::current_engine().map(|core| WeakEngine::new(&core))
    }

    /// Returns the kind of the engine.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, EngineKind};
    ///
    /// let engine = Engine::builder().kind(EngineKind::Pooled).workers(1).build()?;
    /// assert_eq!(engine.kind(), EngineKind::Pooled);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> EngineKind {
        self.core().kind()
    }

    /// Returns where each worker of the CPU lane was placed when the engine was built. Engines use different cores if
    /// there are enough; see [`EngineBuilder::pin`](crate::EngineBuilder::pin) for the rule.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(2).build()?;
    /// for (worker, placement) in engine.placements().iter().enumerate() {
    ///     println!("worker {worker}: {placement:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn placements(&self) -> &[Placement] {
        self.core().placements.get().map_or(&[], |placements| placements)
    }

    // -------------------------------------------------------------------------------------------------- variables ----

    /// Creates a variable with a value.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let total = engine.var(0u64);
    /// engine.op("add").push(total.write(), |total| *total += 2)?;
    /// assert_eq!(engine.get(&total)?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn var<T: Send + 'static>(&self, value: T) -> Var<T> {
        let (core, memory) = (self.core(), ValueMemory::of::<T>());
        // SAFETY: (1): the value is written below. (2): the value is valid forever.
        let cell = unsafe { VarCell::begin::<T>(core, core.tag(), memory) };
        // SAFETY: (1): the cell is made for a value of this type.
        let place = unsafe { variable::value_ptr::<T>(cell) };
        // SAFETY: the place is that of a `T`, and no other thread knows it yet.
        unsafe { place.write(value) };
        Var::new(Token::new(cell))
    }

    /// Creates a variable that publishes its value: any code can read the value of the last completed mutation, outside
    /// the order of pushes; see [`Published`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let progress = engine.published(0u32);
    /// engine.op("work").push(progress.write(), |progress| *progress += 1)?;
    /// engine.wait_for_all()?;
    /// assert_eq!(*progress.snapshot(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn published<T: Clone + Send + Sync + 'static>(&self, value: T) -> Published<T> {
        Published::new(self.core(), value)
    }

    /// Creates a variable for `len` values in device memory, with unspecified contents. The memory comes from a pool.
    /// If the pool has no suitable block, the calling thread allocates one from the device's driver.
    ///
    /// The memory of a variable returns to the pool in push order, when the operations on the variable are complete. So
    /// if there is not enough memory, this waits until the variables of this engine that were dropped or deleted before
    /// the call have returned theirs, except where [waits are forbidden](Self::wait_for_var) or would deadlock.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Device, Engine, gpu::SimulatedGpu};
    ///
    /// let gpu = Device::Gpu(0);
    /// let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).build()?;
    /// let (host, there) = (engine.pinned_var::<f32>(gpu, 256)?, engine.device_var::<f32>(gpu, 256)?);
    /// engine.op("load").on(gpu).copy_to_device(&host, &there)?;
    /// engine.wait_for_var(&there)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the engine has no such device, if the device is out of memory or lost, or in a forked child.
    pub fn device_var<T: Pod + Send + Sync>(&self, gpu: Device, len: usize) -> Result<Var<DeviceVec<T>>, DeviceError> {
        let memory = self.allocate(gpu, |driver| DeviceVec::<T>::new(driver, len))?;
        Ok(Var::new(Token::with_value(self.core(), memory, ValueMemory::Device)))
    }

    /// Creates a variable for `len` values in page-locked host memory, which devices can copy to and from directly. The
    /// memory is cacheable and filled with zeros. As with [`device_var`](Self::device_var), it is taken from a pool,
    /// and this may wait for it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Device, Engine, gpu::SimulatedGpu};
    ///
    /// let gpu = Device::Gpu(0);
    /// let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).build()?;
    /// let pinned = engine.pinned_var::<f32>(gpu, 256)?;
    /// engine.op("fill").push(pinned.write(), |pinned| pinned.fill(1.0))?;
    /// engine.wait_for_var(&pinned)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the engine has no such device, if the memory is exhausted, if the device is lost, or in a
    /// forked child.
    pub fn pinned_var<T: Pod + Send + Sync>(&self, gpu: Device, len: usize) -> Result<Var<PinnedVec<T>>, DeviceError> {
        let memory = self.allocate(gpu, |driver| PinnedVec::<T>::new(driver, len))?;
        Ok(Var::new(Token::with_value(self.core(), memory, ValueMemory::Pinned)))
    }

    /// Calls `allocate` until there is memory, or until no deletion is pending that was pushed before the call.
    fn allocate<V>(
        &self,
        gpu: Device,
        allocate: impl Fn(&Arc<dyn Driver>) -> Result<V, DeviceError>,
    ) -> Result<V, DeviceError> {
        let driver = self.driver(gpu)?;
        loop {
            // Counted first, since what a deletion returns from now on may suffice.
            let freeing = self.core().freeing().filter(|group| group.pending().count() > 0);
            match (allocate(&driver), freeing) {
                (Err(error), Some(group)) if error.is_out_of_memory() => {
                    // If a wait is impossible here, the memory is lacking for good.
                    wait::for_members(self.core(), group, None).map_err(|_| error)?;
                }
                (allocated, _) => return allocated,
            }
        }
    }

    /// Limits the pools of a device's memory and of pinned memory. Default: 256 MiB each.
    ///
    /// A pool keeps the memory of variables that are gone, so that new variables need not ask the device's driver,
    /// which may stall the whole device. It never keeps more than `bytes` of free memory, unless the program has used
    /// so much memory at once since it last used none: then it keeps up to that. What is too much returns to the driver
    /// when a variable ends. The engines that use a device share its pools.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Device, Engine, gpu::SimulatedGpu};
    ///
    /// let gpu = Device::Gpu(0);
    /// let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).build()?;
    /// engine.limit_pools(gpu, 1 << 20)?;
    /// drop(engine.pinned_var::<u8>(gpu, 4 << 20)?);
    /// engine.wait_for_all()?;
    /// assert_eq!(engine.trim_pools(gpu)?, 0, "nothing that large was kept");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the engine has no such device, or in a forked child.
    pub fn limit_pools(&self, gpu: Device, bytes: usize) -> Result<(), DeviceError> {
        self.driver(gpu)?.limit_pools(bytes);
        Ok(())
    }

    /// Returns the free memory in the [pools](Self::limit_pools) of a device to its driver, which may stall the whole
    /// device. Returns how many bytes these were.
    ///
    /// # Errors
    /// Returns an error if the engine has no such device, if the device is lost, or in a forked child.
    pub fn trim_pools(&self, gpu: Device) -> Result<usize, DeviceError> {
        self.driver(gpu)?.trim_pools()
    }

    /// Creates a variable for a stream imported by the program. Operations name the variable to issue work on the
    /// stream through [`GpuStream::include`](crate::gpu::GpuStream::include). An operation that mutates the variable
    /// has exclusive use of the stream. Operations on the stream's device that mutate the variable run in push order,
    /// without host waits between them.
    ///
    /// Declare the variable with [`overwrite`](crate::Var::overwrite), so that an operation can use the stream even if
    /// the previous operation on it failed. If the operation then succeeds, it clears the variable's error. To keep an
    /// error in effect, operations should therefore also mutate the variables that hold their data: these stay failed.
    pub fn stream_var(&self, stream: ImportedStream) -> Var<ImportedStream> {
        Var::new(Token::with_value(self.core(), stream, ValueMemory::Elsewhere))
    }

    fn driver(&self, device: Device) -> Result<Arc<dyn Driver>, DeviceError> {
        if self.core().is_forked() {
            return Err(DeviceError::refused(-1, FORKED));
        }
        match self.core().gpus().gpu(device) {
            Some(gpu) => Ok(Arc::clone(&gpu.driver)),
            None => Err(DeviceError::refused(-1, PushError::NoSuchDevice(device).to_string())),
        }
    }

    /// Creates a variable without a value, to represent something outside the engine.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let log_file = engine.token();
    /// for line in ["first", "second"] {
    ///     engine.op("log").writes([&log_file]).push((), move |()| println!("{line}"))?; // one at a time, in order
    /// }
    /// engine.wait_for_var(&log_file)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(&self) -> Token {
        Token::with_value(self.core(), (), ValueMemory::Elsewhere)
    }

    /// Deletes a variable: once every operation previously pushed on it is complete, its value is dropped, and then `f`
    /// runs. Later pushes on the variable are refused, and later waits for it return once it is deleted. If no
    /// operation is pending on the variable, the deletion normally runs on the calling thread. Otherwise, this does not
    /// block, even if the engine is full. A deletion runs even if the variable has failed or the engine is shut down.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let frame = engine.var(vec![0u8; 1024]);
    /// engine.op("draw").push(frame.write(), |frame| frame.fill(255))?;
    /// engine.delete_variable(&frame, |_| println!("the frame is gone"))?;
    /// assert!(engine.op("late").push(frame.read(), |_| {}).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`PushError::Variable`] if the variable was already deleted, belongs to another engine or was created
    /// for an operation's children, and [`PushError::Forked`] in a forked child. On error, `f` does not run.
    #[track_caller]
    pub fn delete_variable(
        &self,
        variable: impl AsRef<Token>,
        f: impl FnOnce(&OpContext<'_>) + Send + 'static,
    ) -> Result<(), PushError> {
        variables::delete_variable(self.core(), variable.as_ref().var(), Location::caller(), |call| {
            f(&OpContext::new(call));
        })
    }

    /// Clears the variable's error, in push order: the error still affects operations pushed on the variable before
    /// this call, but not those pushed afterwards. This does not block, even if the engine is full.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let reading = engine.var(0);
    /// engine.op("read").try_push(reading.write(), |_| Err("no sensor".into()))?;
    /// assert!(engine.get(&reading).is_err());
    ///
    /// engine.clear_error(&reading)?;
    /// assert_eq!(engine.get(&reading)?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`PushError::Variable`] or [`PushError::Forked`], as [`delete_variable`](Self::delete_variable) does.
    #[track_caller]
    pub fn clear_error(&self, variable: impl AsRef<Token>) -> Result<(), PushError> {
        variables::clear_error(self.core(), variable.as_ref().var(), Location::caller())
    }

    /// Takes all unreported errors, which [`wait_for_all`](Self::wait_for_all) would otherwise return one by one.
    /// Returns the earliest error and the number of errors, or `None` if there were none. Failed variables stay failed.
    /// Always returns `None` in a forked child.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// for number in 0..3 {
    ///     engine.op("fail").try_push((), move |()| Err(format!("number {number}").into()))?;
    /// }
    /// engine.op("last").run_always().push((), |()| {})?;
    /// _ = engine.wait_for_all(); // reports the earliest error
    /// let (next, count) = engine.clear_errors().expect("two are left");
    /// assert_eq!((next.name(), count), ("fail", 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear_errors(&self) -> Option<(OpError, u64)> {
        self.core().live().ok()?.failures().clear()
    }

    // ------------------------------------------------------------------------------------------------------ waits ----

    /// Waits for every operation pushed on the variable before the call.
    ///
    /// Any thread may wait, except where waits are forbidden (see below). Inside an operation, a wait without a time
    /// limit first runs ready operations on which it depends, while the stack has room. If the wait is not over then,
    /// another thread takes over the worker; see [`blocking`](crate::blocking).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let disk = engine.token();
    /// engine.op("flush").writes([&disk]).push((), |()| { /* something outside the engine */ })?;
    /// engine.wait_for_var(&disk)?; // flushed
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// * [`WaitError::Failed`]: the variable has failed.
    /// * [`WaitError::WouldDeadlock`]: the wait would never return, for example because the calling operation names the
    ///   variable.
    /// * [`WaitError::TooManyWaiting`]: no thread could take over the worker.
    /// * [`WaitError::Refused`]: the variable belongs to another engine or to an operation's children, or this is a
    ///   forked child.
    /// * [`WaitError::OnDevice`], [`WaitError::InDeletion`] and [`WaitError::InObserver`]: waits are forbidden here,
    ///   even if no operation is pending.
    #[track_caller]
    pub fn wait_for_var(&self, variable: impl AsRef<Token>) -> Result<(), WaitError> {
        self.wait(variable.as_ref(), WaitFor::All, None)
    }

    /// Like [`wait_for_var`](Self::wait_for_var), but waits for at most `timeout`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::WaitError;
    /// use std::time::Duration;
    ///
    /// let disk = engine.token();
    /// engine.op("flush").writes([&disk]).push((), |()| {})?;
    /// match engine.wait_for_var_timeout(&disk, Duration::from_millis(5)) {
    ///     Ok(()) => println!("flushed"),
    ///     Err(WaitError::TimedOut) => println!("still writing"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`wait_for_var`](Self::wait_for_var), and [`WaitError::TimedOut`]. After a timeout,
    /// pending operations continue.
    #[track_caller]
    pub fn wait_for_var_timeout(&self, variable: impl AsRef<Token>, timeout: Duration) -> Result<(), WaitError> {
        self.wait(variable.as_ref(), WaitFor::All, Some(timeout))
    }

    /// Like [`wait_for_var`](Self::wait_for_var), but returns a future, which covers the operations pushed before this
    /// call.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let disk = engine.token();
    /// engine.op("flush").writes([&disk]).push((), |()| {})?;
    /// let flushed = async {
    ///     engine.wait_for_var_async(&disk).await
    /// };
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(flushed)?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn wait_for_var_async(&self, variable: impl AsRef<Token>) -> VarWait {
        self.wait_async(variable.as_ref(), WaitFor::All)
    }

    /// Waits for every mutation of the variable pushed before the call, but not for readers.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let frame = engine.var(vec![0u8; 1024]);
    /// engine.op("draw").push(frame.write(), |frame| frame.fill(255))?;
    /// engine.op("encode").push(frame.read(), |frame| assert_eq!(frame[0], 255))?;
    /// engine.wait_to_read(&frame)?; // drawn, but perhaps not encoded yet
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`wait_for_var`](Self::wait_for_var).
    #[track_caller]
    pub fn wait_to_read(&self, variable: impl AsRef<Token>) -> Result<(), WaitError> {
        self.wait(variable.as_ref(), WaitFor::Writers, None)
    }

    /// Like [`wait_to_read`](Self::wait_to_read), but waits for at most `timeout`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use std::time::Duration;
    ///
    /// let frame = engine.var(vec![0u8; 1024]);
    /// engine.op("draw").push(frame.write(), |frame| frame.fill(255))?;
    /// let is_drawn = engine.wait_to_read_timeout(&frame, Duration::from_millis(16)).is_ok();
    /// println!("{}", if is_drawn { "in time" } else { "late" });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`wait_for_var_timeout`](Self::wait_for_var_timeout).
    #[track_caller]
    pub fn wait_to_read_timeout(&self, variable: impl AsRef<Token>, timeout: Duration) -> Result<(), WaitError> {
        self.wait(variable.as_ref(), WaitFor::Writers, Some(timeout))
    }

    /// Like [`wait_to_read`](Self::wait_to_read), but returns a future, which covers the mutations pushed before this
    /// call.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let frame = engine.var(vec![0u8; 1024]);
    /// engine.op("draw").push(frame.write(), |frame| frame.fill(255))?;
    /// let drawn = async {
    ///     engine.wait_to_read_async(&frame).await
    /// };
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(drawn)?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn wait_to_read_async(&self, variable: impl AsRef<Token>) -> VarWait {
        self.wait_async(variable.as_ref(), WaitFor::Writers)
    }

    #[track_caller]
    fn wait(&self, token: &Token, kind: WaitFor, timeout: Option<Duration>) -> Result<(), WaitError> {
        wait::for_var(self.core(), token.var(), kind, deadline(timeout), Location::caller())
    }

    #[track_caller]
    fn wait_async(&self, token: &Token, kind: WaitFor) -> VarWait {
        VarWait::new(wait::begin(self.core(), token.var(), kind, Location::caller()))
    }

    /// Waits for every operation pushed by any thread before the call. Later pushes do not prolong the wait.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let total = engine.var(0);
    /// for number in 1..=4 {
    ///     engine.op("add").push(total.write(), move |total| *total += number)?;
    /// }
    /// engine.wait_for_all()?;
    /// assert_eq!(total.version(), 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`WaitError::Failed`] with the earliest unreported error, which then counts as reported. An error also
    /// counts as reported once another wait or a handle has returned it, once [`clear_error`](Self::clear_error) or an
    /// overwriting operation has cleared it from a variable, once the handle that would return it was
    /// [ignored](crate::OpHandle::ignore), and once [`Group::wait`](crate::Group::wait) has returned an earlier error
    /// of a group in which it originated. Repeat the call for the next error, or call
    /// [`clear_errors`](Self::clear_errors) to discard the rest. The engine stores at most 4,096 errors and only counts
    /// the excess. After the stored errors, a final error gives the number of errors that were only counted.
    ///
    /// Returns [`WaitError::WouldDeadlock`] if the wait would never return, for example inside an operation of this
    /// engine, and [`WaitError::TooManyWaiting`] if no thread could take over the worker. Where waits are forbidden,
    /// returns [`WaitError::OnDevice`], [`WaitError::InDeletion`] or [`WaitError::InObserver`]. In a forked child,
    /// returns [`WaitError::Refused`].
    pub fn wait_for_all(&self) -> Result<(), WaitError> {
        wait::for_all(self.core(), None)
    }

    /// Like [`wait_for_all`](Self::wait_for_all), but waits for at most `timeout`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use std::time::Duration;
    ///
    /// engine.op("quick").push((), |()| {})?;
    /// engine.wait_for_all_timeout(Duration::from_secs(60))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`wait_for_all`](Self::wait_for_all), and [`WaitError::TimedOut`].
    pub fn wait_for_all_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        wait::for_all(self.core(), deadline(Some(timeout)))
    }

    /// Like [`wait_for_all`](Self::wait_for_all), but returns a future, which covers the operations pushed before this
    /// call.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// engine.op("work").push((), |()| {})?;
    /// let done = async {
    ///     engine.wait_for_all_async().await
    /// };
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(done)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_for_all_async(&self) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
        wait::for_all_async(self.core())
    }

    /// Waits until no operation is pending, not even one that was pushed during the call. Another thread that keeps
    /// pushing may therefore prolong the call without end; [`wait_for_all`](Self::wait_for_all) is prolonged by
    /// nothing. When it returns, others may have pushed again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::cx;
    ///
    /// let total = engine.var(0);
    /// let later = total.clone();
    /// engine.op("begin").try_push(cx(), move |cx| {
    ///     cx.engine().op("go on").push(later.write(), |total| *total += 1)?;
    ///     Ok(())
    /// })?;
    /// engine.wait_until_idle()?;
    /// assert_eq!((total.version(), engine.pending()), (1, 0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`wait_for_all`](Self::wait_for_all).
    pub fn wait_until_idle(&self) -> Result<(), WaitError> {
        wait::until_idle(self.core(), None)
    }

    /// Like [`wait_until_idle`](Self::wait_until_idle), but waits for at most `timeout`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use std::time::Duration;
    ///
    /// engine.op("quick").push((), |()| {})?;
    /// engine.wait_until_idle_timeout(Duration::from_secs(60))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`wait_for_all`](Self::wait_for_all), and [`WaitError::TimedOut`].
    pub fn wait_until_idle_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        wait::until_idle(self.core(), deadline(Some(timeout)))
    }

    /// Like [`wait_until_idle`](Self::wait_until_idle), but returns a future.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// engine.op("work").push((), |()| {})?;
    /// pollster::block_on(engine.wait_until_idle_async())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_until_idle_async(&self) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
        wait::until_idle_async(self.core())
    }

    /// Returns a snapshot of the engine: which operations are pending, what each waits for, which operations hold each
    /// variable, and which threads are waiting. The call does not interrupt the engine and may be made at any time on
    /// any thread, even inside an operation: it takes no lock that an operation's code could hold. A dump shows where
    /// operations run only with a [recorder](crate::EngineBuilder::recorder) or a
    /// [profile](crate::EngineBuilder::profile). It shows how old they are only with one of these, an
    /// [observer](crate::EngineBuilder::observer) or a [watchdog](crate::EngineBuilder::watchdog), or if the engine
    /// [shuffles](crate::EngineBuilder::shuffle).
    ///
    /// A function that waits for another operation may run that operation on its own stack. The dump then shows both
    /// operations as running, without the wait between them, unless the wait is the one at the end of a scope.
    ///
    /// The engine keeps running during the call. The dump is therefore exact for operations and threads that make no
    /// progress, as in a hang, but may combine different moments for others. The call takes 1 µs for each pending
    /// operation.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (sender, receiver) = std::sync::mpsc::channel::<()>();
    /// let image = engine.var(0).named("image");
    /// engine.op("load").push(image.write(), move |_| _ = receiver.recv())?;
    /// engine.op("show").push(image.read(), |_| {})?;
    ///
    /// let dump = engine.dump();
    /// println!("{dump}"); // `load` is running and holds up 1 other: …
    /// let show = dump.ops().iter().find(|op| op.label() == "show").unwrap();
    /// assert_eq!(dump.ops()[show.waits_for[0]].label(), "load");
    /// # drop(sender);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn dump(&self) -> Dump {
        snapshot::take(self.core())
    }

    /// Returns statistics about the engine: what its workers have done, and how long the operations of each name took.
    /// Times are available only with a [recorder](crate::EngineBuilder::recorder) or a
    /// [profile](crate::EngineBuilder::profile).
    ///
    /// The call looks at the record of every operation in the process, which takes 2 ms for 100,000 of them, and with a
    /// recorder or a profile reads what was recorded since it was read last, at 1 µs for each operation: 100 ms for
    /// 100,000. The engine keeps running meanwhile, and the counts are read one by one. In a forked child, the counts
    /// of pushed, ended, pending and ready operations are 0, and no times are available.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let recorder = raddle::trace::Recorder::new();
    /// let engine = raddle::Engine::builder().workers(2).recorder(&recorder).build()?;
    /// let x = engine.var(0);
    /// for _ in 0..100 {
    ///     engine.op("add").push(x.write(), |x| *x += 1)?;
    /// }
    /// engine.wait_for_all()?;
    /// let stats = engine.stats();
    /// assert_eq!((stats.operations[0].name.as_str(), stats.operations[0].count), ("add", 100));
    /// println!("{stats}"); // as tables
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        record::stats(self.core())
    }

    /// Returns the number of pending operations. An operation is pending from its push until it is complete and its
    /// wakers and drops have run. The engine's own operations, such as deletions, are included. Operations that other
    /// threads push or complete during the call may or may not be counted. Always returns 0 in a forked child.
    ///
    /// The call sums several counters under a lock. Use it for reports and occasional decisions, but not on every push.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (sender, receiver) = std::sync::mpsc::channel::<()>();
    /// engine.op("receive").push((), move |()| _ = receiver.recv())?;
    /// engine.op("next").push((), |()| {})?;
    /// assert!((1..=2).contains(&engine.pending()));
    /// drop(sender);
    /// engine.wait_for_all()?;
    /// assert_eq!(engine.pending(), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.core().live().map_or(0, Live::pending)
    }

    // --------------------------------------------------------------------------------------------------- shutdown ----

    /// Shuts the engine down: refuses further pushes (with [`Drain`](Shutdown::Drain), only those from outside the
    /// engine's operations), waits until no operation is pending, and ends the threads. With a `timeout`, the call
    /// returns after at most that time, however long the program's functions run. The call may be repeated on any
    /// handle; a call with [`Cancel`](Shutdown::Cancel) after one with `Drain` cancels operations that have not
    /// started.
    ///
    /// A shutdown does not report failures. Afterwards, [`wait_for_all`](Self::wait_for_all) still returns the
    /// unreported failures, one in each call, including those of cancelled operations. The earliest unreported failure
    /// that is not a cancellation is also logged as a warning.
    ///
    /// A thread has ended once its thread-local destructors have run. A shutdown with a `timeout` starts another thread
    /// to wait for these destructors. If that thread cannot be started, a shutdown on systems other than Linux does not
    /// wait for the destructors.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, PushError, Shutdown};
    /// use std::time::Duration;
    ///
    /// let engine = Engine::builder().workers(1).build()?;
    /// engine.op("last").push((), |()| println!("runs before the shutdown returns"))?;
    /// if engine.shutdown(Shutdown::Drain, Some(Duration::from_secs(60))).is_err() {
    ///     engine.shutdown(Shutdown::Cancel, None)?; // timed out: cancel what has not started
    /// }
    /// assert_eq!(engine.op("late").push((), |()| {}), Err(PushError::ShutDown));
    /// engine.wait_for_all()?; // returns any unreported failure
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// * [`ShutdownError::TimedOut`]: operations were still pending. The shutdown has begun, and another call waits
    ///   again.
    /// * [`ShutdownError::ThreadsLeft`]: no operation was pending, but the threads named in the error had not ended.
    ///   Another call waits again. With a `timeout` of zero, these are all threads.
    /// * [`ShutdownError::InsideOperation`]: the caller must not wait (for example, because the shutdown would wait for
    ///   the caller), or no thread could take over the caller's worker. The shutdown continues in the background.
    /// * [`ShutdownError::Forked`]: this is a forked child of the process that built the engine.
    /// * [`ShutdownError::Profile`]: the engine has ended, but its profile could not be written.
    /// * [`ShutdownError::Log`]: the engine has ended, but the file of its log could not be written.
    pub fn shutdown(&self, how: Shutdown, timeout: Option<Duration>) -> Result<(), ShutdownError> {
        shutdown::begin(self.core(), how == Shutdown::Cancel);
        shutdown::finish(self.core(), deadline(timeout))
    }

    /// Begins a shutdown and returns a future that resolves when no operation is pending and the threads have been
    /// notified to end. Neither the call nor a poll of the future blocks on operations, so both suit tasks on an
    /// asynchronous runtime. The threads end soon afterwards; dropping the last handle to the engine waits for them.
    ///
    /// Dropping the future does not stop the shutdown. To limit the wait, use one of the runtime's timers: when it
    /// expires, make a second call with [`Cancel`](Shutdown::Cancel) to cancel operations that have not started.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, Shutdown};
    ///
    /// let engine = Engine::builder().workers(1).build()?;
    /// let total = engine.var(0);
    /// engine.op("last").push(total.write(), |total| *total += 1)?;
    /// pollster::block_on(engine.shutdown_async(Shutdown::Drain))?;
    /// assert_eq!(engine.get(&total)?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The future resolves to [`ShutdownError::InsideOperation`] if the caller is an operation of this engine or other
    /// code that this engine calls, and to [`ShutdownError::Forked`] in a forked child. In the former case, the
    /// shutdown continues in the background.
    pub fn shutdown_async(&self, how: Shutdown) -> impl Future<Output = Result<(), ShutdownError>> + Send + use<> {
        shutdown::begin(self.core(), how == Shutdown::Cancel);
        shutdown::finish_async(self.core())
    }

    /// Stops the engine: ends its worker and device threads, keeping all pending operations. [`start`](Self::start)
    /// starts the threads again.
    ///
    /// Functions that have started run to completion, and the call waits for them; while such a function waits, the
    /// workers run what it may be waiting for. All other operations stay pending. Pushes are accepted unless a
    /// [limit](crate::EngineBuilder::max_pending) leaves no room. The pushed operations stay pending too, except for
    /// ready [eager](crate::OpBuilder::eager) operations, ready calls of [`delete_variable`](Self::delete_variable),
    /// and ready drops of variables whose values need no drop, which run on the calling thread. A wait for a pending
    /// operation returns only once the engine has been started again, or at the wait's time limit.
    ///
    /// Devices complete all issued work, and the call waits for it too. Nothing more is issued. The streams stay open,
    /// so objects that the program has bound to them remain valid. While the engine is stopped, no worker runs the
    /// wakers of device operations, so futures that await these operations, and waits for their groups, may be notified
    /// only after a start. The same holds for operations of a naive engine that became ready when one of this engine's
    /// device functions used a completion.
    ///
    /// If a function is still running, a device is still working or a worker has not yet been laid aside when `timeout`
    /// expires, the call returns an error and the engine keeps running. Each worker must wake up for this, also that of
    /// an idle engine, so a `timeout` of zero expires at once unless the engine is already stopped.
    ///
    /// Stopping a [`Naive`](EngineKind::Naive) engine has no effect: it has no threads, and its operations run inside
    /// their pushes as usual. A shutdown starts a stopped engine again, as does dropping its last handle. Several
    /// threads may stop and start an engine concurrently; a stop overtaken by a start returns `Ok`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(1).build()?;
    /// let total = engine.var(0);
    /// engine.stop(None)?;
    /// engine.op("add").push(total.write(), |total| *total += 1)?; // stays pending
    /// assert_eq!((engine.is_stopped(), total.version()), (true, 0));
    /// engine.start()?;
    /// assert_eq!(engine.get(&total)?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`ShutdownError::TimedOut`] if a function is still running, a device is still working or a worker has
    /// not been laid aside, [`ShutdownError::ThreadsLeft`] if the engine is stopped but threads have not ended yet,
    /// [`ShutdownError::StopInsideOperation`] where [`shutdown`](Self::shutdown) returns `InsideOperation`, and
    /// [`ShutdownError::Forked`] in a forked child.
    pub fn stop(&self, timeout: Option<Duration>) -> Result<(), ShutdownError> {
        stop::stop(self.core(), deadline(timeout))
    }

    /// Starts the threads of a [stopped](Self::stop) engine. On any other engine, does nothing.
    ///
    /// # Errors
    /// Returns [`BuildError::Thread`] if a thread could not be started. The workers that have threads run; another call
    /// tries to start the remaining threads.
    pub fn start(&self) -> Result<(), BuildError> {
        stop::start(self.core())
    }

    /// Returns whether the engine was [stopped](Self::stop) or is being stopped, and has not been started since.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.core().is_stopped()
    }

    /// Begins a shutdown with [`Shutdown::Cancel`] and returns immediately. From then on, pushes are refused, and
    /// operations that have not started fail with [`Cause::Cancelled`](crate::error::Cause::Cancelled), except
    /// deletions and [clean-ups](crate::OpBuilder::cleanup). The threads do not end before a call to
    /// [`shutdown`](Self::shutdown) or [`shutdown_async`](Self::shutdown_async), or the drop of the last handle.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, Shutdown};
    ///
    /// let engine = Engine::builder().workers(1).build()?;
    /// let stopper = engine.downgrade(); // for instance, for a signal-handling thread
    /// std::thread::spawn(move || stopper.notify_shutdown()).join().expect("the thread does not panic");
    /// engine.shutdown(Shutdown::Cancel, None)?; // waits for what has started
    /// # Ok(())
    /// # }
    /// ```
    pub fn notify_shutdown(&self) {
        shutdown::begin(self.core(), true);
    }
}

/// A handle that can push and wait but does not keep the engine open, returned by [`Engine::downgrade`],
/// [`OpContext::engine`] and [`Engine::current`]. It has all methods of [`Engine`], to which it dereferences.
///
/// When the last handle that keeps the engine open is dropped, the engine drains, and later pushes from outside its
/// operations are refused with [`PushError::ShutDown`]. While the engine drains, its operations may still push, and the
/// drain also waits for the operations that they push. An operation's function should therefore capture a handle of
/// this type. A clone of an [`Engine`] captured by the function keeps the engine open until the function is dropped, so
/// dropping `engine` in `main` would not wait.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let inner = engine.downgrade();
/// engine.op("outer").push((), move |()| {
///     inner.op("inner").push((), |()| println!("runs before `main` returns")).expect("operations may push");
/// })?;
/// drop(engine); // waits for both
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct WeakEngine(Engine);

impl WeakEngine {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Self(Engine(Reference::Downgraded(Arc::clone(core))))
    }

    /// Returns a handle that keeps the engine open, or `None` if the last such handle has been dropped.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(1).build()?;
    /// let weak = engine.downgrade();
    /// let kept = weak.upgrade().expect("`engine` exists");
    /// drop(engine); // returns at once
    /// kept.op("last").push((), |()| {})?;
    /// drop(kept);
    /// assert!(weak.upgrade().is_none());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn upgrade(&self) -> Option<Engine> {
        KeepsOpen::again(self.core()).map(|reference| Engine(Reference::KeepsOpen(reference)))
    }
}

impl Deref for WeakEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl fmt::Debug for WeakEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WeakEngine").field(&self.0).finish()
    }
}

/// Returns the instant `timeout` from now, or `None` if the wait is unlimited or the instant cannot be represented.
pub(super) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}
