//! NVIDIA GPUs, through the CUDA driver.
//!
//! The driver's library is loaded when the first [`CudaGpu`] is opened or the GPUs are counted. A missing or outdated
//! library causes an error, not a panic: every function that this module calls is looked up before the first call.
//!
//! # What has been tested
//!
//! None of this code has run on hardware. The tests run it against two stand-ins for the driver's library.
//! `cuda/fake.c` executes commands immediately; the tests with it check which calls are made, with which arguments, and
//! how errors are handled. `tests/stand_in/cuda.c` is for whole programs: its streams are threads, its queues fill, its
//! captures can be invalidated, and its devices can be lost. Both follow the driver's manual. The behaviour and timing
//! of hardware are not known.
//!
//! # Marks
//!
//! | `RADDLE_CUDA_MARKS` | a mark is | the host reads |
//! |---|---|---|
//! | `counter`, the default if the device and its driver support it | `cuStreamWriteValue64`: the device writes the number after the commands before the mark are done and their writes are visible (`CU_STREAM_WRITE_VALUE_DEFAULT`) | a word in pinned memory |
//! | `events` | an event from the device's list | the state of each pending event, oldest first (`cuEventQuery`) |
//!
//! A failed device no longer writes counters, and the host, which only reads a word, does not detect the failure. A
//! later call to the driver reports it, at the latest the call in [`Stream::probe`].
//!
//! # Edges
//!
//! [`mark`](crate::sync::edge::mark).
//!
//! # Progress
//!
//! A call that issues a command puts it into one of the driver's queues, and waits for the device only if this queue,
//! which holds about a thousand commands, is full. A lane limits how many operations it has in flight on its stream.
//! Memory is allocated when the pool has no suitable block, and freed when no more can be allocated, the pool has too
//! much, or the last handle to the device is dropped. Either step may make the driver wait for the whole device.
//!
//! # Captures
//!
//! While a thread captures work into a graph, the driver refuses calls from other threads that could disturb the
//! capture, and such calls may invalidate it. This module makes the calls known to be of this kind in the calling
//! thread's relaxed mode (`Relaxed`).
//!
//! A function must end every capture on the stream of its lane before it returns. An open capture is detected as
//! follows:
//!
//! | detected by | when | consequence |
//! |---|---|---|
//! | the check after a function | the function has failed, or this is a build with debug assertions; and always after `include` | the capture is ended, and its graph is not used; the operation fails |
//! | the same check, if earlier functions were not checked | as in the first row | the same, and the device is given up, since those functions' work may be in the graph |
//! | the check before the engine's next command or probe on the stream | otherwise | the same as in the second row, except that the operation fails only if it is still in flight |
//!
//! # Limits
//!
//! * An error number newer than CUDA 13.0 is outside the enumeration that the calls return; only cudarc can extend it.
//! * A capture that was begun by another thread, or on another stream, cannot be ended, so a stream in this capture
//!   cannot be waited for when the device is given up. This is logged.
//! * A capture that the program begins through a raw handle that it has kept may remain undetected.
//! * A lost device may still write to pinned memory. This memory is therefore not reused, and the driver is asked to
//!   free the memory only when the last handle to the device is dropped.

use std::{
    any::Any,
    collections::VecDeque,
    ffi::{CStr, c_void},
    fmt, ptr,
    sync::{Arc, OnceLock, Weak, atomic::AtomicU64},
};

use cudarc::driver::{
    CudaContext, CudaStream,
    sys::{self, CUresult},
};

use super::{
    block_pool,
    driver::{
        Address, Block, CaptureCheck, DeviceEvent, Driver, GpuDriver, LeftBehind, MemoryKind, MemoryOwner, Stream,
        StreamRole,
    },
};
use crate::{
    error::device_error::{CAPTURING, DeviceError},
    sync::{
        Mutex,
        edge::{self, acquire},
        lock,
        process::ProcessMark,
    },
    system::{panics, topology},
};

/// The functions that this module always needs, and those that cudarc calls to open a context. They are looked up
/// before the first call, since cudarc panics if one is missing.
const FUNCTIONS: [&str; 34] = [
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuCtxEnablePeerAccess",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuStreamEndCapture",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostGetDevicePointer_v2",
    "cuMemcpyAsync",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyPeerAsync",
];

/// The function needed only for counters.
const WRITE_VALUE: &str = "cuStreamWriteValue64_v2";

/// The handle `CU_STREAM_PER_THREAD`, which denotes a different stream on each thread that uses it.
const PER_THREAD: usize = 2;

/// Returns whether the driver's library has a function. The library must be loaded.
fn has(function: &str) -> bool {
    // SAFETY: the caller has loaded the library, so this only returns it. Loading would run the library's own
    // initialisation code.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbol is a function of the driver, and the pointer is not called.
    unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) }.is_ok()
}

/// Loads and initialises the driver's library, unless this has already been done.
fn load() -> Result<(), DeviceError> {
    static LOADED: OnceLock<()> = OnceLock::new();
    if LOADED.get().is_some() {
        return Ok(());
    }
    // SAFETY: loading the driver runs its initialisation code, as in every program that uses it.
    if !unsafe { sys::is_culib_present() } {
        let message = "the CUDA driver's library (libcuda.so.1, nvcuda.dll) was not found: install NVIDIA's driver, or \
                       put the library's folder on the search path (LD_LIBRARY_PATH, PATH)";
        return Err(DeviceError::refused(-1, message));
    }
    if let Some(missing) = FUNCTIONS.iter().find(|function| !has(function)) {
        let message = format!("the CUDA driver's library has no {missing}: install a newer NVIDIA driver");
        return Err(DeviceError::refused(-1, message));
    }
    // SAFETY: any thread may make this call, any number of times; the flags are 0, as the manual requires.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    let _ = LOADED.set(());
    Ok(())
}

/// Returns whether an error number indicates that the whole context is unusable.
fn is_loss(code: u32) -> bool {
    match code {
        // The driver is shutting down; the context was destroyed; the service through which processes share the device
        // cannot be reached (806) or has dropped this process (810). Not 46: another process has exclusive use of the
        // device, so it could not be opened.
        4 | 709 | 806 | 810 => true,
        // Uncorrectable errors of memory or links; an error that was contained.
        214 | 220 | 226 => true,
        // Kernels: illegal address, time-out, assertion, stack, instruction, alignment, address space, program counter,
        // launch failure, leak of tensor memory.
        700 | 702 | 710 | 714..=719 | 721 => true,
        // Unknown.
        999 => true,
        _ => false,
    }
}

/// A guard: until it is dropped, the calling thread is in the relaxed capture mode, unless the driver has refused the
/// switch. In this mode the driver does not check the thread's calls against graphs being captured by other threads: it
/// neither refuses the calls nor invalidates the captures. Each thread has its own mode
/// (`cuThreadExchangeStreamCaptureMode`).
struct Relaxed(Option<sys::CUstreamCaptureMode>);

impl Relaxed {
    /// Switches the calling thread to `mode`, and returns the previous mode. If the driver refuses, leaves the mode as
    /// it is and returns `None`.
    fn exchange(mut mode: sys::CUstreamCaptureMode) -> Option<sys::CUstreamCaptureMode> {
        // SAFETY: the pointer is to a local variable, which the driver reads and then writes.
        let result = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        (result == CUresult::CUDA_SUCCESS).then_some(mode)
    }

    /// Switches the calling thread to the relaxed mode until the guard is dropped. If the driver refuses, for instance
    /// because the thread has no current context, the mode is unchanged.
    fn begin() -> Self {
        Self(Self::exchange(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        self.0.map(Self::exchange);
    }
}

/// Returns advice about an error, or an empty string.
fn advice(result: CUresult) -> &'static str {
    match result {
        CUresult::CUDA_ERROR_NO_DEVICE => ": no GPU is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES",
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => ": the device is out of memory, or no more memory can be pinned",
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            ": the driver's kernel module and its library have different versions; restart the machine after an update"
        }
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            ": this is the stub library for linking, not the driver's; remove it from the search path"
        }
        _ => "",
    }
}

/// Converts `result`, returned by `function`, to a `Result`.
fn check(function: &str, result: CUresult) -> Result<(), DeviceError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let (code, message) = (result as u32, format!("{function} returned {result:?}{}", advice(result)));
    let number = i32::try_from(code).unwrap_or(i32::MAX);
    Err(if is_loss(code) { DeviceError::lost(number, message) } else { DeviceError::refused(number, message) })
}

impl From<cudarc::driver::DriverError> for DeviceError {
    fn from(error: cudarc::driver::DriverError) -> Self {
        match check("the driver", error.0) {
            Err(error) => error,
            Ok(()) => Self::refused(0, "the driver reported success as an error"),
        }
    }
}

/// How the host learns that marks have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkKind {
    Counter,
    Events,
}

impl MarkKind {
    /// Returns the kind selected by `RADDLE_CUDA_MARKS`, or else the better kind of those that the device supports.
    fn choose(counters: bool) -> Result<Self, DeviceError> {
        match std::env::var("RADDLE_CUDA_MARKS").as_deref() {
            Ok("events") => Ok(Self::Events),
            Ok("counter") if counters => Ok(Self::Counter),
            Ok("counter") => Err(DeviceError::refused(
                -1,
                "RADDLE_CUDA_MARKS is `counter`, but this device or its driver cannot write 64 bits from a stream",
            )),
            Ok("") | Err(_) => Ok(if counters { Self::Counter } else { Self::Events }),
            Ok(other) => Err(DeviceError::refused(
                -1,
                format!("RADDLE_CUDA_MARKS is {other:?}, which is neither `events` nor `counter`"),
            )),
        }
    }
}

/// An NVIDIA GPU.
///
/// Clones are handles to the same device. The device's memory and streams belong to its primary context, which other
/// CUDA libraries in the process use as well. The first copy that this GPU makes from or to another GPU enables access
/// to the other's memory (`cuCtxEnablePeerAccess`), where the machine supports it. A program that enables the same
/// access afterwards gets error 704: the access is already enabled.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// println!("{} GPUs", raddle::gpu::CudaGpu::count()?);
/// let gpu = raddle::gpu::CudaGpu::open(0)?;
/// println!("{gpu:?}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CudaGpu(Arc<CudaDevice>);

struct CudaDevice {
    name: String,
    /// The lowest and the highest priority of streams.
    priorities: (i32, i32),
    marks: MarkKind,
    pool: block_pool::Pool,
    /// Events that can be reused. Their last recordings may still be pending.
    events: Mutex<Vec<RawEvent>>,
    /// Words for streams' counters.
    words: Mutex<Words>,
    /// The streams that engines use.
    streams: Mutex<Vec<Weak<CudaStream>>>,
    /// The contexts to whose memory access need not be requested again: it was granted, or refused for good.
    peers: Mutex<Vec<usize>>,
    /// The first loss.
    lost: OnceLock<DeviceError>,
    /// Held by each thread that gives up the device, during its wait for the device's work.
    giving_up: Mutex<()>,
    /// Recognises a forked child, in which the driver's state belongs to the parent.
    process: ProcessMark,
    /// Must be dropped last: the other fields need it.
    context: Arc<CudaContext>,
}

/// The driver's handle to an event.
#[derive(Clone, Copy, Debug)]
struct RawEvent(sys::CUevent);

// SAFETY: an event is a handle, which the driver's functions accept on any thread.
unsafe impl Send for RawEvent {}
// SAFETY: as for `Send`.
unsafe impl Sync for RawEvent {}

/// A recorded event. Dropping it returns the event to the device's list.
#[derive(Debug)]
pub(super) struct CudaEvent {
    gpu: CudaGpu,
    raw: RawEvent,
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // The event may be recorded again immediately: a stream that already waits for it waits for the earlier
        // recording.
        lock(&self.gpu.0.events).push(self.raw);
    }
}

impl CudaGpu {
    /// Returns the number of GPUs, or 0 if the driver reports none.
    ///
    /// # Errors
    /// The driver's library is missing or too old, or cannot be initialised.
    pub fn count() -> Result<usize, DeviceError> {
        let counted = load().and_then(|()| {
            let mut count = 0;
            // SAFETY: the driver is initialised, and the pointer is to a local variable of the type that it writes.
            check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
            Ok(usize::try_from(count).unwrap_or(0))
        });
        match counted {
            Err(error) if error.code() == CUresult::CUDA_ERROR_NO_DEVICE as i32 => Ok(0),
            counted => counted,
        }
    }

    /// Opens the GPU with this number; numbers start at 0. The GPU's primary context becomes the calling thread's
    /// current context.
    ///
    /// # Errors
    /// The errors of [`count`](Self::count); there is no such GPU; the driver is out of memory for the GPU's context or
    /// for a page of pinned memory; or the environment variable `RADDLE_CUDA_MARKS` is neither `events` nor `counter`,
    /// or is `counter` although the device or its driver does not support counters.
    pub fn open(ordinal: usize) -> Result<Self, DeviceError> {
        load()?;
        let count = Self::count()?;
        if ordinal >= count {
            let code = CUresult::CUDA_ERROR_INVALID_DEVICE as i32;
            let message = format!("there is no GPU {ordinal}: the CUDA driver sees {count}, numbered from 0");
            return Err(DeviceError::refused(code, message));
        }
        let relaxed = Relaxed::begin();
        // `CudaContext::new` panics if a function that it calls is missing. None should be, since `load` has looked
        // them up.
        let context = panics::catch(|| CudaContext::new(ordinal)).map_err(|payload| {
            panics::discard(payload);
            DeviceError::refused(-1, "the CUDA driver's library is damaged: reinstall NVIDIA's driver")
        })?;
        drop(relaxed);
        let context =
            context.map_err(|error| check("opening the device's context", error.0).expect_err("the call failed"))?;
        // SAFETY: without the tracking, uses of memory from this context must be ordered by other means. The engine
        // orders uses of its own memory, and the documentation warns programs that allocate through the context.
        unsafe { context.disable_event_tracking() };
        let driver =
            |error: cudarc::driver::DriverError| check("asking for a property", error.0).expect_err("the call failed");
        let name = context.name().map_err(driver)?;
        let priorities = cudarc::driver::result::stream::get_priority_range().map_err(driver)?;
        let wide = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
        // Older drivers do not know the attribute.
        let wide = context.attribute(wide).unwrap_or(0) != 0;
        let marks = MarkKind::choose(wide && has(WRITE_VALUE))?;
        let shared = CudaDevice {
            name: format!("{name} (CUDA device {ordinal})"),
            priorities,
            marks,
            pool: block_pool::Pool::new(),
            events: Mutex::new(Vec::new()),
            words: Mutex::default(),
            streams: Mutex::new(Vec::new()),
            peers: Mutex::new(Vec::new()),
            lost: OnceLock::new(),
            giving_up: Mutex::new(()),
            process: ProcessMark::current(),
            context,
        };
        if marks == MarkKind::Counter {
            // Allocated in advance, since the driver may stall the whole device to allocate it.
            let word = shared.word()?;
            lock(&shared.words).free.push(word);
        }
        Ok(Self(Arc::new(shared)))
    }

    /// Returns the device's context, for what cudarc offers besides streams, such as loading kernels. cudarc does not
    /// track uses of memory allocated through this context (`CudaContext::disable_event_tracking`).
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }

    /// Wraps one of the program's own streams. The engine makes no marks on it; events order its work.
    pub(crate) fn import(&self, stream: Arc<CudaStream>) -> Result<Box<dyn Stream>, DeviceError> {
        self.0.sound()?;
        if stream.context().cu_ctx() != self.0.context.cu_ctx() {
            let code = CUresult::CUDA_ERROR_INVALID_CONTEXT as i32;
            let message = format!("the stream is not in the primary context of {}; create it there", self.0.name);
            return Err(DeviceError::refused(code, message));
        }
        if stream.cu_stream().addr() == PER_THREAD {
            let code = CUresult::CUDA_ERROR_INVALID_HANDLE as i32;
            let message = "the per-thread default stream is another stream on a lane's thread; create a stream instead";
            return Err(DeviceError::refused(code, message));
        }
        let marks = Marks::Events { pending: VecDeque::new(), passed: 0 };
        Ok(Box::new(self.0.stream(self, stream, marks, true)))
    }
}

impl fmt::Debug for CudaGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaGpu").field("name", &self.0.name).field("marks", &self.0.marks).finish_non_exhaustive()
    }
}

impl From<CudaGpu> for GpuDriver {
    fn from(gpu: CudaGpu) -> Self {
        Self(Arc::new(gpu))
    }
}

impl CudaDevice {
    /// Returns the context's address.
    fn home_context(&self) -> usize {
        self.context.cu_ctx().expose_provenance()
    }

    fn owner(&self) -> MemoryOwner {
        MemoryOwner::Cuda(self.home_context())
    }

    /// Converts `result`, returned by `function`, to a `Result`, and records the error if it is a loss.
    fn check(&self, function: &str, result: CUresult) -> Result<(), DeviceError> {
        check(function, result).inspect_err(|error| {
            if error.is_lost() {
                let _ = self.lost.set(error.clone());
            }
        })
    }

    /// Returns the device's PCI address, in Linux's format. The function number may be other than 0 if a GPU is shared
    /// between virtual machines.
    fn pci_address(&self) -> Option<String> {
        self.own().ok()?;
        // The length stated in the manual.
        let mut address = [0u8; 13];
        // SAFETY: the pointer is to a local array, whose length is passed to the driver.
        let result = unsafe {
            sys::cuDeviceGetPCIBusId(address.as_mut_ptr().cast(), address.len() as i32, self.context.cu_device())
        };
        check("cuDeviceGetPCIBusId", result).ok()?;
        CStr::from_bytes_until_nul(&address).ok()?.to_str().ok().map(str::to_ascii_lowercase)
    }

    /// Returns an error if an earlier drop in cudarc failed: cudarc keeps the error for the next call.
    fn left_behind(&self) -> Result<(), DeviceError> {
        self.context.check_err().or_else(|error| self.check("a drop in cudarc", error.0))
    }

    /// Returns an error in a process forked after the device was opened.
    fn own(&self) -> Result<(), DeviceError> {
        if self.process.is_foreign() {
            return Err(DeviceError::lost(-1, "the device belongs to the parent process, which forked this one"));
        }
        Ok(())
    }

    /// Returns the loss as an error if the device is lost.
    fn sound(&self) -> Result<(), DeviceError> {
        self.own()?;
        self.lost.get().cloned().map_or(Ok(()), Err)
    }

    /// Makes the device's context current on this thread, and returns the previous context.
    fn bind(&self) -> Result<sys::CUcontext, DeviceError> {
        let mut before = ptr::null_mut();
        // SAFETY: the driver is initialised, and the pointer is to a local variable of the type that it writes.
        self.check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&raw mut before) })?;
        if before != self.context.cu_ctx() {
            // SAFETY: `self` keeps the context alive.
            self.check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context.cu_ctx()) })?;
        }
        Ok(before)
    }

    /// Calls `f` in the relaxed capture mode with the device's context current. Then restores the thread's previous
    /// context.
    fn bound<R>(&self, f: impl FnOnce() -> Result<R, DeviceError>) -> Result<R, DeviceError> {
        let before = self.bind()?;
        let relaxed = Relaxed::begin();
        let result = f();
        drop(relaxed);
        if before != self.context.cu_ctx() {
            // SAFETY: the context was current before `f` was called. If it has been destroyed since, the driver returns
            // an error.
            let _ = unsafe { sys::cuCtxSetCurrent(before) };
        }
        result
    }

    /// Allocates memory from the driver.
    fn ask(&self, kind: MemoryKind, bytes: usize) -> Result<Address, DeviceError> {
        self.bound(|| match kind {
            MemoryKind::Device => {
                let mut at = 0;
                // SAFETY: the context is current, and the pointer is to a local variable of the type that the driver
                // writes.
                self.check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut at, bytes) })?;
                let ptr =
                    ptr::without_provenance_mut(usize::try_from(at).expect("addresses are as wide as the host's"));
                Ok(Address { kind, owner: self.owner(), ptr })
            }
            MemoryKind::Pinned => {
                let mut at: *mut c_void = ptr::null_mut();
                // Not write-combined: the host also reads the memory. Portable: any device copies to and from it
                // directly.
                let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
                // SAFETY: the context is current, and the pointer is to a local variable of the type that the driver
                // writes.
                self.check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&raw mut at, bytes, flags) })?;
                Ok(Address { kind, owner: MemoryOwner::Host, ptr: at.cast() })
            }
        })
    }

    /// Returns an unused word in pinned memory, from a new page if necessary.
    fn word(&self) -> Result<Address, DeviceError> {
        if let Some(word) = lock(&self.words).free.pop() {
            return Ok(word);
        }
        let page = self.ask(MemoryKind::Pinned, Words::PAGE)?;
        let mut words = lock(&self.words);
        words.pages.push(page);
        let step = |at: usize| Address { ptr: page.ptr.wrapping_add(at), ..page };
        words.free.extend((Words::STEP..Words::PAGE).step_by(Words::STEP).map(step));
        Ok(page)
    }

    /// Returns memory to the driver. If the driver refuses, as for a lost device, the memory stays allocated until the
    /// process ends.
    fn release(&self, address: Address) {
        let released = match address.kind {
            MemoryKind::Device => {
                // SAFETY: the address is from `cuMemAlloc`, and no command uses it: its owner returned it to the pool.
                check("cuMemFree", unsafe { sys::cuMemFree_v2(address.ptr().addr() as sys::CUdeviceptr) })
            }
            // SAFETY: the address is from `cuMemHostAlloc`, and nothing uses it: its owner returned it to the pool.
            MemoryKind::Pinned => check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(address.ptr().cast()) }),
        };
        if let Err(error) = released {
            panics::log!(Warn, "raddle: memory of {} could not be freed: {error}", self.name);
        }
    }

    /// [Returns memory](Self::release) to the driver with the device's context current.
    fn release_bound(&self, address: Address) {
        // If the context cannot be made current, the memory stays allocated.
        let _ = self.bound(|| {
            self.release(address);
            Ok(())
        });
    }

    /// Wraps a stream for an engine, and adds it to the streams to wait for when the device is given up.
    fn stream(&self, gpu: &CudaGpu, stream: Arc<CudaStream>, marks: Marks, imported: bool) -> LaneStream {
        let mut streams = lock(&self.streams);
        // One of the program's own streams may have been imported before, and need not be in the list twice.
        streams.retain(|other| other.strong_count() > 0 && !ptr::eq(other.as_ptr(), Arc::as_ptr(&stream)));
        streams.push(Arc::downgrade(&stream));
        drop(streams);
        LaneStream { gpu: gpu.clone(), stream, marks, imported, shown: false, unseen: false, unfit: false }
    }

    /// Waits until the device has done all work on the engines' streams, or is lost. Waits for each stream separately:
    /// while one stream of a context is being captured, a wait for the whole context would be refused and would
    /// invalidate the capture.
    fn synchronize(&self) -> Result<(), DeviceError> {
        let streams: Vec<_> = lock(&self.streams).iter().filter_map(Weak::upgrade).collect();
        // The closure takes the streams, so that they too are dropped in the relaxed mode with the context current.
        self.bound(move || {
            let mut all = Ok(());
            for stream in &streams {
                let waited = self.is_capturing(stream).and_then(|capturing| {
                    if capturing {
                        return Err(DeviceError::refused(CAPTURING, "a stream is being captured into a graph"));
                    }
                    // SAFETY: the `Arc` keeps the stream alive.
                    check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream.cu_stream()) })
                });
                match waited {
                    Err(error) if !error.is_lost() => all = all.and(Err(error)),
                    _ => {}
                }
            }
            all
        })
        // A lost device cannot be waited for.
        .or_else(|error| if error.is_lost() { Ok(()) } else { Err(error) })
    }

    /// Returns whether commands on a stream are captured into a graph instead of executed.
    fn is_capturing(&self, stream: &CudaStream) -> Result<bool, DeviceError> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: `stream` keeps the stream alive, and the pointer is to a local variable of the type that the driver
        // writes.
        self.check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(stream.cu_stream(), &raw mut status) })?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// If the machine supports this, allows copies between this device and `peer`, another device's context, to bypass
    /// host memory. This device's context must be current.
    ///
    /// If a new context has the address of an old one, it is mistaken for the old one, and copies from or to its memory
    /// may take longer.
    fn reach(&self, peer: usize) {
        let mut peers = lock(&self.peers);
        if peers.contains(&peer) {
            return;
        }
        let _relaxed = Relaxed::begin();
        // SAFETY: the context is alive: the owner of the copied memory keeps the context's device alive.
        let result = unsafe { sys::cuCtxEnablePeerAccess(ptr::with_exposed_provenance_mut(peer), 0) };
        // A refusal only makes copies slower. An error not listed here may be temporary, so the next copy asks again.
        if let CUresult::CUDA_SUCCESS
        | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
        | CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
        | CUresult::CUDA_ERROR_TOO_MANY_PEERS = result
        {
            peers.push(peer);
        }
    }

    /// Returns an event that can be recorded.
    fn event(&self) -> Result<RawEvent, DeviceError> {
        if let Some(event) = lock(&self.events).pop() {
            return Ok(event);
        }
        let _relaxed = Relaxed::begin();
        let mut event = ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the caller has made this context current, and the pointer is to a local variable of the type that the
        // driver writes.
        self.check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, flags) })?;
        Ok(RawEvent(event))
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if self.own().is_err() {
            return;
        }
        let freed = self.bound(|| {
            self.pool.release_all(|address, _| self.release(address));
            let Words { free, pages } = std::mem::take(&mut *lock(&self.words));
            // A page is never freed while the device may still write to one of its words.
            for page in pages.into_iter().filter(|page| Words::of(&free, page) == Words::PAGE / Words::STEP) {
                self.release(page);
            }
            for event in lock(&self.events).drain(..) {
                // SAFETY: the event is alive, and the list was its only owner. Its last recording may still be pending:
                // the driver permits destruction even then, and releases the event once the device has reached it. If
                // the call fails, the event leaks.
                let _ = unsafe { sys::cuEventDestroy_v2(event.0) };
            }
            Ok(())
        });
        if let Err(error) = freed {
            panics::log!(Warn, "raddle: the resources of {} could not be freed: {error}", self.name);
        }
    }
}

impl Driver for CudaGpu {
    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn cores_near(&self) -> Vec<usize> {
        self.0.pci_address().map(|address| topology::cores_near(&address)).unwrap_or_default()
    }

    fn open(&self, role: StreamRole) -> Result<Box<dyn Stream>, DeviceError> {
        let gpu = &*self.0;
        gpu.sound()?;
        gpu.bind()?;
        let _relaxed = Relaxed::begin();
        let priority = if role == StreamRole::Urgent { gpu.priorities.1 } else { gpu.priorities.0 };
        let stream = gpu.context.new_stream_with_priority(priority);
        let stream = stream.map_err(|error| gpu.check("creating a stream", error.0).expect_err("the call failed"))?;
        let marks = match gpu.marks {
            MarkKind::Counter => Marks::Counter(Counter::new(gpu)?),
            MarkKind::Events => Marks::Events { pending: VecDeque::new(), passed: 0 },
        };
        Ok(Box::new(gpu.stream(self, stream, marks, false)))
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Block, DeviceError> {
        let gpu = &*self.0;
        gpu.sound()?;
        let release = |address, _| gpu.release_bound(address);
        let block = gpu.pool.allocate(kind, bytes, |bytes| gpu.ask(kind, bytes), release)?;
        // The device may have been lost during the allocation, and memory returned after a loss is not reused.
        if let Err(error) = gpu.sound() {
            self.free(block);
            return Err(error);
        }
        Ok(block)
    }

    fn free(&self, block: Block) {
        let (gpu, kind) = (&*self.0, block.address.kind);
        if gpu.own().is_err() {
            return;
        }
        gpu.pool.free(block);
        // The memory of a lost device is kept.
        if gpu.sound().is_ok() {
            gpu.pool.release_surplus(kind, 0, |address, _| gpu.release_bound(address));
        }
    }

    fn limit_pools(&self, bytes: usize) {
        let gpu = &*self.0;
        gpu.pool.set_limit(bytes);
        for kind in MemoryKind::ALL.into_iter().filter(|_| gpu.sound().is_ok()) {
            gpu.pool.release_surplus(kind, 0, |address, _| gpu.release_bound(address));
        }
    }

    fn trim_pools(&self) -> Result<usize, DeviceError> {
        let gpu = &*self.0;
        gpu.sound()?;
        Ok(gpu.pool.release_all(|address, _| gpu.release_bound(address)))
    }

    fn abandon(&self, error: &DeviceError) {
        let gpu = &*self.0;
        if gpu.own().is_err() {
            // In a forked child, the lock may be held forever, and the streams are the parent's.
            return;
        }
        let waited = {
            let _turn = lock(&gpu.giving_up);
            // Once the loss is set, the pool allocates nothing and streams accept no commands.
            let _ = gpu.lost.set(error.clone().into_loss());
            // Waits even if another thread has already waited here: this thread may have checked for a loss before it
            // was set, and issued a command since. The host may reuse pinned memory only once a working device has
            // finished all commands. A lost device reports the loss immediately.
            gpu.synchronize()
        };
        if let Err(error) = waited {
            panics::log!(Error, "raddle: {} was given up and may still write to memory: {error}", gpu.name);
        }
    }
}

/// Words to which the device writes marks. They are allocated by the page, since allocating pinned memory may stall the
/// whole device.
#[derive(Debug, Default)]
struct Words {
    free: Vec<Address>,
    pages: Vec<Address>,
}

impl Words {
    /// The size of a page, in bytes.
    const PAGE: usize = 4096;
    /// The distance between two words, in bytes. Each word has its own cache line.
    const STEP: usize = 128;

    /// Returns how many of `words` are in `page`.
    fn of(words: &[Address], page: &Address) -> usize {
        let page = page.ptr.addr()..page.ptr.addr() + Self::PAGE;
        words.iter().filter(|word| page.contains(&word.ptr.addr())).count()
    }
}

/// A word to which the device writes marks.
struct Counter {
    word: Address,
    /// The address of the word on the device.
    device: sys::CUdeviceptr,
    /// The last mark made.
    made: u64,
}

impl Counter {
    fn new(gpu: &CudaDevice) -> Result<Self, DeviceError> {
        let word = gpu.word()?;
        // SAFETY: the word is pinned host memory, large enough, aligned and unused: either the device does not know it
        // yet, or the device has already written its last mark there.
        unsafe { word.ptr.cast::<u64>().write(0) };
        let mut counter = Self { word, device: 0, made: 0 };
        // SAFETY: the address is that of pinned and mapped memory; the context is current.
        let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut counter.device, word.ptr.cast(), 0) };
        if let Err(error) = gpu.check("cuMemHostGetDevicePointer", result) {
            lock(&gpu.words).free.push(word);
            return Err(error);
        }
        Ok(counter)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the word is pinned host memory, aligned and initialised, and belongs to the counter alone. Once `new`
        // has initialised it, the host accesses it only atomically, and the device writes it as a whole.
        unsafe { AtomicU64::from_ptr(self.word.ptr.cast()) }
    }
}

enum Marks {
    Counter(Counter),
    Events { pending: VecDeque<(u64, RawEvent)>, passed: u64 },
}

/// One stream of a CUDA device.
struct LaneStream {
    gpu: CudaGpu,
    stream: Arc<CudaStream>,
    marks: Marks,
    /// Whether the stream is one of the program's own.
    imported: bool,
    /// Whether the running function has asked for the stream.
    shown: bool,
    /// Whether an earlier function had access to the stream, and the stream has not been checked for a capture since.
    unseen: bool,
    /// Whether a capture that was ended may also have contained other functions' work, which the device has then not
    /// done.
    unfit: bool,
}

/// Returns cudarc's handle to `stream`, or `None` if the stream is not on a CUDA device.
pub(crate) fn stream_of(stream: &mut dyn Stream) -> Option<Arc<CudaStream>> {
    let lane = stream.as_any().downcast_mut::<LaneStream>()?;
    // An error left behind by a drop would make cudarc's next, unrelated call fail.
    if !std::mem::replace(&mut lane.shown, true)
        && let Err(error) = lane.gpu.0.left_behind()
    {
        panics::log!(Error, "raddle: a drop in cudarc failed on {}: {error}", lane.gpu.0.name);
    }
    Some(Arc::clone(&lane.stream))
}

impl LaneStream {
    /// Returns the device if it is sound, and makes its context current on this thread, since the program may have
    /// changed the current context.
    fn ready(&self) -> Result<&CudaDevice, DeviceError> {
        let gpu = &*self.gpu.0;
        gpu.sound()?;
        gpu.bind()?;
        Ok(gpu)
    }

    /// Calls [`ready`](Self::ready) before a command of the engine, and checks that the command will not become part of
    /// a graph: a mark in a graph never passes, or passes whenever the graph is launched.
    fn ready_to_issue(&mut self) -> Result<(), DeviceError> {
        if self.imported {
            // While no operation includes an imported stream, the program may capture it freely.
            if self.ready()?.is_capturing(&self.stream)? {
                let message = "the imported stream is being captured; end the capture before an operation includes it";
                return Err(DeviceError::refused(CAPTURING, message));
            }
            return Ok(());
        }
        self.unseen |= self.may_be_captured();
        let _ = self.look()?;
        if self.unfit {
            let message = "a function left a capture of its lane's stream open; end it on every exit path";
            return Err(DeviceError::refused(CAPTURING, message));
        }
        self.ready().map(drop)
    }

    /// Returns whether the program has a handle to the stream, or has had one since the last function ended.
    fn may_be_captured(&self) -> bool {
        self.shown || Arc::strong_count(&self.stream) > 1
    }

    /// If there may be a capture of the stream, looks for one and ends it. Returns what was found.
    fn look(&mut self) -> Result<LeftBehind, DeviceError> {
        if !self.unseen && !self.may_be_captured() {
            return Ok(LeftBehind::Nothing);
        }
        let found = self.end_capture().inspect_err(|_| self.unseen = true)?;
        self.unfit |= found == LeftBehind::Capture && self.unseen;
        // `shown` stays set, since the running function may still begin a capture.
        self.unseen = false;
        Ok(found)
    }

    /// Ends a capture of the stream, like [`look`](Self::look), but always asks the driver whether there is one. Also
    /// works on a device that was given up, whose work must still be waited for.
    fn end_capture(&self) -> Result<LeftBehind, DeviceError> {
        let gpu = &*self.gpu.0;
        gpu.own()?;
        gpu.bind()?;
        if !gpu.is_capturing(&self.stream)? {
            return Ok(LeftBehind::Nothing);
        }
        // The graph is not destroyed, since the program may have supplied it for the capture.
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is alive, and the pointer is to a local variable of the type that the driver writes. The
        // capture may be over even if the call returns an error.
        let result = unsafe { sys::cuStreamEndCapture(self.stream.cu_stream(), &raw mut graph) };
        if gpu.is_capturing(&self.stream)? {
            // For instance, another stream drew this one into its capture, or another thread began the capture.
            gpu.check("cuStreamEndCapture", result)?;
        }
        Ok(LeftBehind::Capture)
    }

    /// Records an event from the list, or a new one.
    fn record_raw(&self, gpu: &CudaDevice) -> Result<RawEvent, DeviceError> {
        let event = gpu.event()?;
        // SAFETY: the event and the stream belong to this context and are alive.
        let recorded = gpu.check("cuEventRecord", unsafe { sys::cuEventRecord(event.0, self.stream.cu_stream()) });
        if recorded.is_err() {
            lock(&gpu.events).push(event);
        }
        recorded.map(|()| event)
    }
}

impl Drop for LaneStream {
    fn drop(&mut self) {
        match &mut self.marks {
            Marks::Counter(counter) => {
                // After the stream's last mark, the device does not write the word again. If the last mark has not
                // passed, the word is not reused.
                if counter.word().load(acquire(edge::mark::LAST)) == counter.made {
                    lock(&self.gpu.0.words).free.push(counter.word);
                }
            }
            Marks::Events { pending, .. } => {
                lock(&self.gpu.0.events).extend(pending.drain(..).map(|(_, event)| event));
            }
        }
    }
}

impl Stream for LaneStream {
    fn driver(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.gpu.0).addr())
    }

    fn adopt(&mut self) -> Result<(), DeviceError> {
        self.ready().map(drop)
    }

    fn record(&mut self) -> Result<DeviceEvent, DeviceError> {
        self.ready_to_issue()?;
        let raw = self.record_raw(&self.gpu.0)?;
        Ok(DeviceEvent::new(Arc::new(CudaEvent { gpu: self.gpu.clone(), raw })))
    }

    fn wait(&mut self, event: &DeviceEvent) -> Result<(), DeviceError> {
        self.ready_to_issue()?;
        let gpu = &self.gpu.0;
        let Some(event) = event.downcast::<CudaEvent>() else {
            return Err(DeviceError::refused(-1, "a CUDA device cannot wait for an event of a simulated device"));
        };
        // SAFETY: the event and the stream are alive. The event may belong to another context.
        gpu.check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.stream.cu_stream(), event.raw.0, 0) })
    }

    fn mark(&mut self, seq: u64) -> Result<(), DeviceError> {
        self.ready_to_issue()?;
        let gpu = &*self.gpu.0;
        let event = match &self.marks {
            Marks::Counter(counter) => {
                let (stream, flags) =
                    (self.stream.cu_stream(), sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT);
                // SAFETY: the word belongs to the counter, and stays allocated until the device has written the
                // counter's last mark.
                let result = unsafe { sys::cuStreamWriteValue64_v2(stream, counter.device, seq, flags as u32) };
                gpu.check("cuStreamWriteValue64", result)?;
                None
            }
            Marks::Events { .. } => Some(self.record_raw(gpu)?),
        };
        match &mut self.marks {
            Marks::Counter(counter) => counter.made = seq,
            Marks::Events { pending, .. } => pending.extend(event.map(|event| (seq, event))),
        }
        Ok(())
    }

    fn passed(&mut self) -> Result<u64, DeviceError> {
        let gpu = &*self.gpu.0;
        gpu.sound()?;
        match &mut self.marks {
            Marks::Counter(counter) => Ok(counter.word().load(acquire(edge::mark::PASSED))),
            Marks::Events { pending, passed } => {
                if pending.is_empty() {
                    return Ok(*passed);
                }
                gpu.bind()?;
                let _relaxed = Relaxed::begin();
                while let Some(&(seq, event)) = pending.front() {
                    // SAFETY: the event is alive, and a query needs no current context.
                    match unsafe { sys::cuEventQuery(event.0) } {
                        CUresult::CUDA_ERROR_NOT_READY => break,
                        result => gpu.check("cuEventQuery", result)?,
                    }
                    pending.pop_front();
                    lock(&gpu.events).push(event);
                    *passed = seq;
                }
                Ok(*passed)
            }
        }
    }

    fn probe(&mut self) -> Result<(), DeviceError> {
        // A query would invalidate a capture, after which the stream could not be waited for, so an open capture is
        // ended first.
        self.ready_to_issue()?;
        let gpu = &*self.gpu.0;
        let _relaxed = Relaxed::begin();
        // SAFETY: `self.stream` keeps the stream alive.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(()),
            result => gpu.check("cuStreamQuery", result),
        }
    }

    fn function_ended(&mut self, check: CaptureCheck) -> Result<LeftBehind, DeviceError> {
        let left = if self.shown { self.gpu.0.left_behind() } else { Ok(()) };
        if check == CaptureCheck::Now || left.is_err() {
            let found = self.look();
            self.shown = false;
            return left.and(found);
        }
        self.unseen |= self.may_be_captured();
        self.shown = false;
        Ok(LeftBehind::Nothing)
    }

    fn is_captured(&mut self) -> Result<bool, DeviceError> {
        if !self.may_be_captured() {
            return Ok(false);
        }
        self.ready()?.is_capturing(&self.stream)
    }

    unsafe fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        self.ready_to_issue()?;
        let gpu = &*self.gpu.0;
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.stream.cu_stream();
        let (source, target) = (from.ptr().addr() as sys::CUdeviceptr, to.ptr().addr() as sys::CUdeviceptr);
        match (from.owner, to.owner) {
            (MemoryOwner::Host, MemoryOwner::Cuda(_)) => {
                // SAFETY: obligations (1) and (2) are the driver's conditions for this copy.
                let result = unsafe { sys::cuMemcpyHtoDAsync_v2(target, from.ptr().cast(), bytes, stream) };
                gpu.check("cuMemcpyHtoDAsync", result)
            }
            (MemoryOwner::Cuda(_), MemoryOwner::Host) => {
                // SAFETY: obligations (1) and (2) are the driver's conditions for this copy.
                let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to.ptr().cast(), source, bytes, stream) };
                gpu.check("cuMemcpyDtoHAsync", result)
            }
            (MemoryOwner::Cuda(source_context), MemoryOwner::Cuda(target_context))
                if source_context != target_context =>
            {
                gpu.reach(if source_context == gpu.home_context() { target_context } else { source_context });
                let [target_context, source_context] =
                    [target_context, source_context].map(ptr::with_exposed_provenance_mut);
                // SAFETY: obligations (1) and (2) are the driver's conditions for this copy. The owner of memory in a
                // context keeps its device, and so the context, alive.
                let result =
                    unsafe { sys::cuMemcpyPeerAsync(target, target_context, source, source_context, bytes, stream) };
                gpu.check("cuMemcpyPeerAsync", result)
            }
            (MemoryOwner::Cuda(_), MemoryOwner::Cuda(_)) => {
                // SAFETY: obligations (1) and (2) are the driver's conditions for this copy.
                let result = unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes, stream) };
                gpu.check("cuMemcpyDtoDAsync", result)
            }
            (MemoryOwner::Host, MemoryOwner::Host) => {
                // SAFETY: obligations (1) and (2) are the driver's conditions for this copy. The driver itself finds
                // the owner of each address.
                let result = unsafe { sys::cuMemcpyAsync(target, source, bytes, stream) };
                gpu.check("cuMemcpyAsync", result)
            }
            (MemoryOwner::Simulated(_), _) | (_, MemoryOwner::Simulated(_)) => {
                Err(DeviceError::refused(-1, "a CUDA device cannot copy from or to a simulated device's memory"))
            }
        }
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(all(test, target_os = "linux", not(any(raddle_loom, raddle_shuttle))))]
mod tests;
