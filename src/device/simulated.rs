//! A GPU in software: its memory is host memory, its streams are lists of commands, and its kernels are closures.
//!
//! Results are real; times are simulated. A copy takes as long as [`SimulatedGpuBuilder`] specifies, and a kernel as
//! long as its launch or the builder specifies, on one of the device's engines: one copies in, one copies out, and one
//! or more compute. A command takes effect at the end of its time. As on hardware, commands of one stream run one after
//! the other, streams wait for each other's events, and nothing else is ordered. With a
//! [seed](SimulatedGpuBuilder::seed), the device picks the next command at random from those that are ready, so that
//! missing waits show.
//!
//! The device has no thread. It does its work when one of its streams is polled or a command is issued on a full
//! stream; it then executes commands of all streams. A kernel may therefore run on any thread that polls or issues, and
//! must not wait for the device itself.
//!
//! The following errors have CUDA's numbers: 2 for an allocation without enough memory, 999 for a device lost by
//! [`lose`](SimulatedGpu::lose), 700 for a command [made to fail](SimulatedGpu::fail_at), 719 for a kernel that
//! panicked, and 801 for a [refused](SimulatedGpu::refuse_at) call.
//!
//! ```
//! use std::time::Duration;
//! use raddle::gpu::{SimulatedGpu, simulated::Clock};
//!
//! let gpu = SimulatedGpu::builder()
//!     .copy_in_bandwidth(12_000_000_000)
//!     .compute_engines(2)
//!     .clock(Clock::Manual)
//!     .build();
//! gpu.advance(Duration::from_millis(1));
//! assert_eq!(gpu.counts().launches, 0);
//! ```

use std::{
    alloc::{Layout, alloc, dealloc},
    any::Any,
    fmt, ptr,
    sync::Arc,
    time::Duration,
};

use super::{
    block_pool,
    driver::{ALIGNMENT, Address, Block, DeviceEvent, Driver, GpuDriver, MemoryKind, MemoryOwner, Stream, StreamRole},
};
use crate::{
    error::device_error::{DeviceError, OUT_OF_MEMORY},
    sync::{Condvar, Mutex, MutexGuard, lock, process::ProcessMark, thread},
    system::pages,
};

mod commands;
mod kernel;

use commands::{Command, DeviceCall, DeviceState, Moment, Work};
pub use kernel::{KernelArgs, SimulatedStream};

/// The most compute engines of a simulated device. Each step of the device looks at all of them.
const MAX_COMPUTE_ENGINES: usize = 1024;

/// The clock of a simulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// The clock of the machine.
    Real,
    /// A clock that only [`SimulatedGpu::advance`] moves.
    Manual,
    /// No time passes: a command that waits for nothing is done at the next poll or, if the device has a seed, at a
    /// later one.
    Instantly,
}

/// The options of a simulated GPU. The defaults are meant to resemble hardware, but are not measured.
///
/// ```
/// use raddle::gpu::SimulatedGpu;
/// use std::time::Duration;
///
/// let gpu = SimulatedGpu::builder()
///     .memory(1 << 20)
///     .kernel_time(Duration::from_micros(50))
///     .launch_latency(Duration::from_micros(8))
///     .seed(7)
///     .build();
/// let engine = raddle::Engine::builder().workers(1).gpu(gpu).build()?;
/// assert!(engine.device_var::<u8>(raddle::Device::Gpu(0), 2 << 20).is_err(), "the device has 1 MiB");
/// # Ok::<(), raddle::error::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SimulatedGpuBuilder {
    copy_in: u64,
    copy_out: u64,
    launch_latency: Duration,
    kernel_time: Duration,
    compute_engines: usize,
    memory: usize,
    depth: usize,
    clock: Clock,
    seed: Option<u64>,
}

impl SimulatedGpuBuilder {
    fn new() -> Self {
        Self {
            copy_in: 12_000_000_000,
            copy_out: 12_000_000_000,
            launch_latency: Duration::from_micros(4),
            kernel_time: Duration::from_micros(10),
            compute_engines: 1,
            memory: 1 << 30,
            depth: 1024,
            // Models have no clock.
            clock: if cfg!(any(raddle_loom, raddle_shuttle)) { Clock::Instantly } else { Clock::Real },
            seed: None,
        }
    }

    /// Sets the bandwidth, in bytes per second, of copies to the device, within it, and from another device. Default:
    /// 12 GB/s. A bandwidth of 0 is treated as 1.
    #[must_use]
    pub fn copy_in_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.copy_in = bytes_per_second.max(1);
        self
    }

    /// Sets the bandwidth, in bytes per second, of copies from the device. Default: 12 GB/s. A bandwidth of 0 is
    /// treated as 1.
    #[must_use]
    pub fn copy_out_bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.copy_out = bytes_per_second.max(1);
        self
    }

    /// Sets the minimum time between the call that issues a copy or a kernel and the start of that command. The command
    /// keeps no engine busy during this time. Default: 4 µs. With [`Duration::MAX`], no copy or kernel ever starts.
    #[must_use]
    pub fn launch_latency(mut self, latency: Duration) -> Self {
        self.launch_latency = latency;
        self
    }

    /// Sets the duration of kernels launched with a duration of zero. Default: 10 µs. With [`Duration::MAX`], such a
    /// kernel never ends.
    #[must_use]
    pub fn kernel_time(mut self, time: Duration) -> Self {
        self.kernel_time = time;
        self
    }

    /// Sets how many kernels can run at the same time. Default: 1. A count of 0 is treated as 1, and one above 1,024 as
    /// 1,024.
    #[must_use]
    pub fn compute_engines(mut self, count: usize) -> Self {
        self.compute_engines = count.clamp(1, MAX_COMPUTE_ENGINES);
        self
    }

    /// Sets the size of the device's memory, in bytes. Allocations beyond it are refused. Default: 1 GiB.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets how many commands a stream can hold. A call that issues a command on a full stream waits until the stream's
    /// oldest command has ended. Default: 1,024. A depth of 0 is treated as 1.
    #[must_use]
    pub fn depth(mut self, commands: usize) -> Self {
        self.depth = commands.max(1);
        self
    }

    /// Sets the clock. Default: [`Clock::Real`].
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the device pick each command at random from the possible ones, using this seed, and leave some for later
    /// polls. By default, the command that can start or end earliest comes first; among equally early commands, urgent
    /// commands come first, then those issued earlier.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Creates the GPU.
    #[must_use]
    pub fn build(self) -> SimulatedGpu {
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SimulatedGpu(Arc::new(SimulatedDevice {
            // Relaxed: only distinct numbers are needed.
            number: NEXT.fetch_add(1, Relaxed),
            state: Mutex::new(DeviceState::new(self.compute_engines, self.clock, self.seed)),
            idle: Condvar::new(),
            process: ProcessMark::current(),
            pool: block_pool::Pool::new(),
            options: self,
        }))
    }
}

/// Counts of the calls that a simulated GPU has accepted so far, and of what they have caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Streams opened.
    pub streams: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Copies issued.
    pub copies: u64,
    /// Bytes copied by completed copies.
    pub bytes_copied: u64,
    /// Events recorded.
    pub records: u64,
    /// Waits issued for events.
    pub waits: u64,
    /// Marks made for the host.
    pub marks: u64,
    /// Queries for the last mark passed.
    pub polls: u64,
    /// Calls that check whether a stream is sound.
    pub probes: u64,
    /// Pieces of memory allocated, on the device or pinned.
    pub allocations: u64,
    /// Pieces of memory reused.
    pub reuses: u64,
}

/// The work done so far by one engine of a simulated GPU. Times count from the creation of the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineUsage {
    /// The number of commands that are done.
    pub commands: u64,
    /// The total duration of the commands.
    pub busy: Duration,
    /// When the first command began.
    pub first_start: Option<Duration>,
    /// When the last command ended.
    pub last_end: Option<Duration>,
}

/// The work done so far by the engines of a simulated GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The engine that copies to the device, within it, and from another device.
    pub copy_in: EngineUsage,
    /// The engine that copies from the device.
    pub copy_out: EngineUsage,
    /// The engines that run kernels.
    pub compute: Vec<EngineUsage>,
}

/// A simulated GPU; see [`simulated`](self).
///
/// Clones are handles to the same device. Any thread may use them, even while engines use the device. In a forked child
/// the device is lost: an engine there needs a device created in the child.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Device, Engine, gpu::SimulatedGpu};
///
/// let gpu = SimulatedGpu::new();
/// let engine = Engine::builder().workers(1).gpu(gpu.clone()).build()?;
/// let values = engine.device_var::<u32>(Device::Gpu(0), 4)?;
/// gpu.lose(); // as if it had been pulled out
/// let upload = engine.pinned_var::<u32>(Device::Gpu(0), 4).map(drop);
/// assert!(upload.unwrap_err().is_lost());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SimulatedGpu(Arc<SimulatedDevice>);

struct SimulatedDevice {
    /// Distinct from the numbers of all other simulated devices.
    number: u64,
    options: SimulatedGpuBuilder,
    state: Mutex<DeviceState>,
    /// Notified whenever the effect of a command ends while the device is lost.
    idle: Condvar,
    pool: block_pool::Pool,
    /// Recognises a forked child, in which the locks may be held forever by threads of the parent.
    process: ProcessMark,
}

impl SimulatedGpu {
    /// Creates a GPU with the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder with default options.
    #[must_use]
    pub fn builder() -> SimulatedGpuBuilder {
        SimulatedGpuBuilder::new()
    }

    /// Advances a [manual clock](Clock::Manual). The next poll completes the commands that end by the new time, or, if
    /// the device has a seed, some of them. Other clocks are not affected. The clock stops at [`Duration::MAX`].
    pub fn advance(&self, by: Duration) {
        self.0.control(|state| state.advance_clock(by));
    }

    /// Loses the device, as if it had been pulled out. A copy or kernel that is being executed still finishes, but no
    /// other command is executed, and every later call of an engine to the device returns an error.
    pub fn lose(&self) {
        self.0.lose(DeviceError::lost(999, "the simulated device was removed"));
    }

    /// Makes the `n`-th copy or kernel issued after this call fail at the end of its time, as if it had accessed an
    /// illegal address; the device is then lost. With `n` = 1 the next copy or kernel fails; 0 withdraws the request.
    pub fn fail_at(&self, n: u64) {
        self.0.control(|state| state.fail_in = n);
    }

    /// Makes the `n`-th later call to the device fail with no effect; the device stays sound. Copies, launches, events,
    /// waits, marks and allocations count as calls. With `n` = 1 the next call fails; 0 withdraws the request.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Device, Engine, WaitError, error::DeviceError, gpu::SimulatedGpu};
    ///
    /// let (gpu, device) = (SimulatedGpu::new(), Device::Gpu(0));
    /// let engine = Engine::builder().workers(1).gpu(gpu.clone()).build()?;
    /// let (host, values) = (engine.pinned_var::<u32>(device, 4)?, engine.device_var::<u32>(device, 4)?);
    /// gpu.refuse_at(1);
    /// engine.op("upload").on(device).copy_to_device(&host, &values)?;
    /// let Err(WaitError::Failed(error)) = engine.wait_for_var(&values) else { panic!("the copy was refused") };
    /// let error = error.downcast_ref::<DeviceError>().expect("the cause is the device's error");
    /// assert_eq!((error.code(), error.is_lost()), (801, false));
    /// # Ok(())
    /// # }
    /// ```
    pub fn refuse_at(&self, n: u64) {
        self.0.control(|state| state.refuse(n, false));
    }

    /// Makes the `n`-th later call and all calls after it fail like a call selected by [`refuse_at`](Self::refuse_at),
    /// until either function is called again.
    pub fn refuse_from(&self, n: u64) {
        self.0.control(|state| state.refuse(n, true));
    }

    /// Stops the device: it accepts commands but executes none until [`resume`](Self::resume).
    pub fn stall(&self) {
        self.0.control(|state| state.stall());
    }

    /// Ends a [stall](Self::stall). Copies and kernels that had not started before the stall start no earlier than now.
    pub fn resume(&self) {
        self.0.control(|state| state.resume());
    }

    /// Returns the device's counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.control(|state| state.counts)
    }

    /// Returns the work that the device has done so far, with its times.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.0.control(|state| state.usage())
    }
}

impl Default for SimulatedGpu {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SimulatedGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedGpu").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl From<SimulatedGpu> for GpuDriver {
    fn from(gpu: SimulatedGpu) -> Self {
        Self(Arc::new(gpu))
    }
}

/// Returns the layout of a block of `bytes`.
fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGNMENT).expect("the pool never asks for more than can be addressed")
}

impl SimulatedDevice {
    /// Locks and returns the state. Returns an error in a process forked after the device was created.
    fn state(&self) -> Result<MutexGuard<'_, DeviceState>, DeviceError> {
        if self.process.is_foreign() {
            return Err(DeviceError::lost(-1, "the device belongs to the parent process, which forked this one"));
        }
        Ok(lock(&self.state))
    }

    /// Calls `f` with the state. Does nothing in a process forked after the device was created.
    fn control<R: Default>(&self, f: impl FnOnce(&mut DeviceState) -> R) -> R {
        self.state().map(|mut state| f(&mut state)).unwrap_or_default()
    }

    fn lose(&self, error: DeviceError) {
        let leftovers = self.control(|state| Some(state.lose(error)));
        // Kernels own program values, whose drops must not run under a lock.
        drop(leftovers);
    }

    /// Allocates a piece of memory and fills it with nonzero bytes.
    fn ask(&self, kind: MemoryKind, bytes: usize) -> Result<Address, DeviceError> {
        let mut state = lock(&self.state);
        // The system may promise more than the host has.
        let host = pages::physical().unwrap_or(usize::MAX).saturating_sub(state.allocated + state.pinned);
        let left = if kind == MemoryKind::Device { host.min(self.options.memory - state.allocated) } else { host };
        let reserved = if bytes <= left { bytes } else { 0 };
        *state.held(kind) += reserved;
        drop(state);
        // SAFETY: the layout is not empty, since the pool serves empty blocks itself.
        let ptr = if reserved > 0 { unsafe { alloc(layout(bytes)) } } else { ptr::null_mut() };
        let mut state = lock(&self.state);
        if ptr.is_null() {
            *state.held(kind) -= reserved;
            let whose = if kind == MemoryKind::Device { "simulated device" } else { "host" };
            let message = format!("the {whose} has {left} bytes of memory left, and {bytes} are needed");
            return Err(DeviceError::refused(OUT_OF_MEMORY, message));
        }
        state.counts.allocations += 1;
        drop(state);
        let owner = if kind == MemoryKind::Device { MemoryOwner::Simulated(self.number) } else { MemoryOwner::Host };
        // SAFETY: the memory has this size, and is newly allocated.
        unsafe { ptr.write_bytes(0xA5, bytes) };
        Ok(Address { kind, owner, ptr })
    }

    /// Frees a piece of memory.
    fn release(&self, address: Address, bytes: usize) {
        *lock(&self.state).held(address.kind) -= bytes;
        // SAFETY: `ask` allocated the memory with this layout, and no operation uses it: its owner returned it to the
        // pool.
        unsafe { dealloc(address.ptr(), layout(bytes)) };
    }
}

impl Drop for SimulatedDevice {
    fn drop(&mut self) {
        self.pool.release_all(|address, bytes| self.release(address, bytes));
    }
}

impl Driver for SimulatedGpu {
    fn name(&self) -> String {
        "simulated GPU".to_owned()
    }

    fn open(&self, role: StreamRole) -> Result<Box<dyn Stream>, DeviceError> {
        let index = self.0.state()?.open(role)?;
        Ok(Box::new(Simulated { device: Arc::clone(&self.0), index }))
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Block, DeviceError> {
        let device = &*self.0;
        device.state()?.call(DeviceCall::Allocate)?;
        let mut asked = bytes == 0;
        let ask = |bytes| {
            asked = true;
            device.ask(kind, bytes)
        };
        let block = device.pool.allocate(kind, bytes, ask, |address, bytes| device.release(address, bytes))?;
        if !asked {
            lock(&device.state).counts.reuses += 1;
        }
        Ok(block)
    }

    fn free(&self, block: Block) {
        let (device, kind) = (&*self.0, block.address.kind);
        if device.process.is_foreign() {
            return;
        }
        device.pool.free(block);
        device.pool.release_surplus(kind, 0, |address, bytes| device.release(address, bytes));
    }

    fn limit_pools(&self, bytes: usize) {
        self.0.pool.set_limit(bytes);
        for kind in MemoryKind::ALL {
            self.0.pool.release_surplus(kind, 0, |address, bytes| self.0.release(address, bytes));
        }
    }

    fn trim_pools(&self) -> Result<usize, DeviceError> {
        self.0.state()?.check()?;
        Ok(self.0.pool.release_all(|address, bytes| self.0.release(address, bytes)))
    }

    fn abandon(&self, error: &DeviceError) {
        self.0.lose(error.clone().into_loss());
        // Another thread may be copying or running a kernel, which uses memory until it has finished.
        drop(self.0.state().and_then(|state| commands::quiet(state, &self.0.idle)));
    }
}

/// Returns an event not recorded by any stream, for models.
#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn unrecorded() -> DeviceEvent {
    DeviceEvent::new(Arc::new(Moment::new()))
}

/// One stream of a simulated device.
struct Simulated {
    device: Arc<SimulatedDevice>,
    /// The index of the stream among the device's streams.
    index: usize,
}

impl Simulated {
    /// Waits until the stream has room for another command, or the device is lost.
    fn await_room(&self) -> Result<MutexGuard<'_, DeviceState>, DeviceError> {
        let has_room = |state: &DeviceState| state.depth(self.index) < self.device.options.depth;
        loop {
            let state = self.device.state()?;
            // A lost device refuses the call, which then needs no room.
            if has_room(&state) || state.is_lost() {
                return Ok(state);
            }
            // The device has no thread, so this thread does the device's work, as a poll does.
            drop(commands::work(&self.device.state, state, &self.device.idle)?);
            // A kernel may have forked this process, so the state is requested anew.
            thread::yield_now();
        }
    }

    /// Appends a command to the stream, or returns why it is refused.
    fn issue(&self, call: DeviceCall, command: Command) -> Result<(), DeviceError> {
        let mut state = self.await_room()?;
        if let Err(error) = state.call(call) {
            // A caller that learns of a loss may free memory, so this waits for effects still using it.
            drop(if error.is_lost() { commands::quiet(state, &self.device.idle).ok() } else { Some(state) });
            // The lock has been released by now: dropping the command may run program code.
            drop(command);
            return Err(error);
        }
        state.issue(self.index, command);
        Ok(())
    }

    fn launch(&self, duration: Duration, kernel: Box<dyn FnOnce() + Send>) -> Result<(), DeviceError> {
        let options = &self.device.options;
        let duration = if duration.is_zero() { options.kernel_time } else { duration };
        let work = Work::Kernel(commands::Kernel::new(kernel));
        self.issue(DeviceCall::Launch, Command::Timed { work, duration, latency: options.launch_latency })
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        self.device.control(|state| state.close(self.index));
    }
}

impl Stream for Simulated {
    fn driver(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.device).addr())
    }

    fn record(&mut self) -> Result<DeviceEvent, DeviceError> {
        let moment = Arc::new(Moment::new());
        self.issue(DeviceCall::Record, Command::Record(Arc::clone(&moment)))?;
        Ok(DeviceEvent::new(moment))
    }

    fn wait(&mut self, event: &DeviceEvent) -> Result<(), DeviceError> {
        match event.downcast::<Moment>() {
            Some(moment) => self.issue(DeviceCall::Wait, Command::Wait(moment)),
            None => Err(DeviceError::refused(-1, "a simulated device cannot wait for a CUDA event")),
        }
    }

    fn mark(&mut self, seq: u64) -> Result<(), DeviceError> {
        self.issue(DeviceCall::Mark, Command::Mark(seq))
    }

    fn passed(&mut self) -> Result<u64, DeviceError> {
        let mut state = self.device.state()?;
        state.counts.polls += 1;
        Ok(commands::work(&self.device.state, state, &self.device.idle)?.passed(self.index))
    }

    fn probe(&mut self) -> Result<(), DeviceError> {
        let mut state = self.device.state()?;
        state.counts.probes += 1;
        commands::work(&self.device.state, state, &self.device.idle).map(drop)
    }

    unsafe fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        let owner = MemoryOwner::Simulated(self.device.number);
        for address in [from, to] {
            // All simulated devices' memory is host memory, so copies between simulated devices need no special
            // treatment.
            if !matches!(address.owner, MemoryOwner::Host | MemoryOwner::Simulated(_)) {
                return Err(DeviceError::refused(
                    -1,
                    "a simulated device cannot copy from or to a real device's memory",
                ));
            }
        }
        let options = &self.device.options;
        let out = from.kind == MemoryKind::Device
            && (to.kind == MemoryKind::Pinned || from.owner == owner && to.owner != owner);
        let bandwidth = if out { options.copy_out } else { options.copy_in };
        let nanos = u128::from(bytes as u64) * 1_000_000_000 / u128::from(bandwidth);
        let duration = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let work = Work::Copy { from, to, bytes, out };
        self.issue(DeviceCall::Copy, Command::Timed { work, duration, latency: options.launch_latency })
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests;
