//! Direct calls to driver functions needed by the experiments. No resource is released here, since a part's process
//! ends soon.

use std::{
    ffi::{CString, c_void},
    ptr,
    sync::atomic::{AtomicU64, Ordering::Acquire},
    time::{Duration, Instant},
};

use raddle::{
    Engine, EngineKind, IdlePolicy,
    gpu::{
        CudaGpu, DeviceVec, GpuStream,
        cudarc::driver::{
            DriverError, result,
            sys::{self, CUdeviceptr, CUresult},
        },
    },
};

use super::child;

/// The figure printed by a part if the device does not support the requested kind of marks.
pub const REFUSED: &str = "refused";

/// Threads per block. Not tuned.
const BLOCK: u32 = 256;

/// A stream that outlives its uses here: created directly, or a lane's stream inside an operation.
#[derive(Clone, Copy)]
pub struct Stream(pub sys::CUstream);

// SAFETY: the driver's functions take streams on any thread.
unsafe impl Send for Stream {}
// SAFETY: the driver's functions take streams on any thread.
unsafe impl Sync for Stream {}

/// An event, which this module never destroys.
#[derive(Clone, Copy)]
pub struct Event(pub sys::CUevent);

// SAFETY: the driver's functions take events on any thread.
unsafe impl Send for Event {}
// SAFETY: the driver's functions take events on any thread.
unsafe impl Sync for Event {}

/// Memory on the device, which this module never frees.
#[derive(Clone, Copy)]
pub struct Memory(pub CUdeviceptr);

/// Pinned host memory, which this module never frees.
#[derive(Clone, Copy)]
pub struct Pinned {
    pub host: *mut u8,
    /// The device's address of the memory.
    pub device: CUdeviceptr,
}

// SAFETY: holding the pointers is harmless; code that dereferences them must justify the access.
unsafe impl Send for Pinned {}
// SAFETY: holding the pointers is harmless; code that dereferences them must justify the access.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Returns the word `number`, which must exist. The device writes words atomically.
    pub fn word(&self, number: usize) -> &AtomicU64 {
        let at = self.host.cast::<u64>().wrapping_add(number);
        // SAFETY: the memory is aligned, initialised and alive (an experiment that frees pinned memory uses none of its
        // words), and only the device and atomics use it.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Spins until a word has the given value, and returns the time at which it was seen.
    pub fn spin(&self, number: usize, value: u64) -> Instant {
        // Acquire: makes the earlier writes of the device visible, as in the engine.
        while self.word(number).load(Acquire) != value {
            std::hint::spin_loop();
        }
        Instant::now()
    }
}

/// The kernels of `kernels.ptx`.
#[derive(Clone, Copy)]
pub struct Kernels {
    pub module: sys::CUmodule,
    nothing: sys::CUfunction,
    spin: sys::CUfunction,
    sample: sys::CUfunction,
    stamp: sys::CUfunction,
    fill: sys::CUfunction,
    poison: sys::CUfunction,
}

// SAFETY: the driver's functions take kernels on any thread.
unsafe impl Send for Kernels {}
// SAFETY: the driver's functions take kernels on any thread.
unsafe impl Sync for Kernels {}

/// Returns whether the driver's library has a function. cudarc panics when a missing function is called.
pub fn has(function: &str) -> bool {
    // SAFETY: the library is already loaded.
    let library = unsafe { sys::culib() };
    // SAFETY: the type is a function type, and the function is not called.
    unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) }.is_ok()
}

/// Panics unless a call to the driver has succeeded.
#[track_caller]
pub fn must(what: &str, result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS, "{what}");
}

/// Opens the first GPU and makes its context current on this thread.
pub fn open() -> CudaGpu {
    CudaGpu::open(0).unwrap_or_else(|error| panic!("the GPU cannot be opened: {error}"))
}

/// Opens the GPU as [`open`] does, with the kind of marks requested by the environment. If the device or its driver
/// does not support them, prints the figure `refused` and returns `None`.
pub fn open_with_marks() -> Option<CudaGpu> {
    match CudaGpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) if error.code() == -1 => {
            println!("{error}");
            child::figure(REFUSED, 1.0);
            None
        }
        Err(error) => panic!("the GPU cannot be opened: {error}"),
    }
}

/// Describes the GPU and its driver, without creating a context.
pub fn describe() -> Result<String, DriverError> {
    let mut version = 0;
    if has("cuDriverGetVersion") {
        // SAFETY: the pointer is valid for the driver's write.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    }
    let name = result::device::get_name(result::device::get(0)?)?;
    Ok(format!("{name}; driver for CUDA {}.{}", version / 1000, version % 1000 / 10))
}

/// Returns an engine with one lane for each purpose, and one worker.
pub fn engine(gpu: &CudaGpu, idle: IdlePolicy) -> Engine {
    let builder = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).idle(idle);
    builder.gpu(gpu.clone()).build().expect("an engine")
}

/// Makes the GPU's context current on this thread.
pub fn bind(gpu: &CudaGpu) {
    gpu.context().bind_to_thread().expect("the context should be alive");
}

/// Returns the source of the kernels, with the terminating zero that the driver requires.
pub fn source() -> CString {
    CString::new(include_str!("../kernels.ptx")).expect("the source should contain no NUL")
}

/// Loads the kernels into the current context and runs each except `poison` once: the driver may defer work until the
/// first launch.
pub fn kernels() -> Kernels {
    let (source, mut module) = (source(), ptr::null_mut());
    // SAFETY: the image is NUL-terminated PTX, and the driver may write through the pointer.
    must("the compilation of the kernels", unsafe { sys::cuModuleLoadData(&raw mut module, source.as_ptr().cast()) });
    let kernel = |name: &str| {
        let (name, mut kernel) = (CString::new(name).expect("the name should contain no NUL"), ptr::null_mut());
        // SAFETY: the module is loaded, and the pointer is valid for the driver's write.
        must("the kernel in the module", unsafe { sys::cuModuleGetFunction(&raw mut kernel, module, name.as_ptr()) });
        kernel
    };
    let kernels = Kernels {
        module,
        nothing: kernel("nothing"),
        spin: kernel("spin"),
        sample: kernel("sample"),
        stamp: kernel("stamp"),
        fill: kernel("fill"),
        poison: kernel("poison"),
    };
    kernels.warm();
    kernels
}

/// Launches a kernel with the given numbers of blocks and threads.
///
/// # Safety
/// 1. The arguments match the kernel's parameters. While the kernel runs, no other code writes to the memory that it
///    writes, and other code reads this memory only by atomic loads of whole words.
unsafe fn launch(
    kernel: sys::CUfunction,
    stream: Stream,
    (blocks, threads): (u32, u32),
    arguments: &mut [*mut c_void],
) -> CUresult {
    let arguments = arguments.as_mut_ptr();
    // SAFETY: the module is loaded, and the stream is alive; (1) covers the rest.
    unsafe { sys::cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream.0, arguments, ptr::null_mut()) }
}

impl Kernels {
    fn warm(&self) {
        let (stream, memory) = (stream(), memory(4096));
        must("a first launch", self.nothing(stream));
        must("a first launch", self.spin(stream, 1, Duration::ZERO));
        // SAFETY: the memory has this many words, which no other code uses.
        must("a first launch", unsafe { self.sample(stream, memory.0, 2) });
        // SAFETY: the memory has a word, which no other code uses.
        must("a first launch", unsafe { self.stamp(stream, memory.0, Duration::ZERO) });
        // SAFETY: the memory has this many words, which no other code uses.
        must("a first launch", unsafe { self.fill(stream, memory.0, 16, 0) });
        must("the end of the first launches", stream.synchronize());
    }

    /// Launches a kernel that does nothing.
    pub fn nothing(&self, stream: Stream) -> CUresult {
        // SAFETY: the kernel has no parameters and writes nothing.
        unsafe { launch(self.nothing, stream, (1, 1), &mut []) }
    }

    /// Launches a kernel of `blocks` blocks that runs for `time`.
    pub fn spin(&self, stream: Stream, blocks: u32, time: Duration) -> CUresult {
        let mut nanos = time.as_nanos() as u64;
        let threads = if blocks == 1 { 1 } else { BLOCK };
        // SAFETY: the argument matches the kernel's parameter; the kernel writes nothing.
        unsafe { launch(self.spin, stream, (blocks, threads), &mut [(&raw mut nanos).cast()]) }
    }

    /// Launches a kernel that writes readings of the clock.
    ///
    /// # Safety
    /// 1. There is room at `at` for `count` words of 64 bits, which no other code uses while the kernel runs.
    pub unsafe fn sample(&self, stream: Stream, mut at: CUdeviceptr, mut count: u32) -> CUresult {
        let mut arguments = [(&raw mut at).cast(), (&raw mut count).cast()];
        // SAFETY: the arguments match the kernel's parameters, and by this function's (1), no other code uses the
        // memory while the kernel runs.
        unsafe { launch(self.sample, stream, (1, 1), &mut arguments) }
    }

    /// Launches a kernel that runs for `time` and writes a reading of the clock.
    ///
    /// # Safety
    /// 1. There is room at `at` for a word of 64 bits. While the kernel runs, other code uses this word only by atomic
    ///    loads.
    pub unsafe fn stamp(&self, stream: Stream, mut at: CUdeviceptr, time: Duration) -> CUresult {
        let mut nanos = time.as_nanos() as u64;
        let mut arguments = [(&raw mut at).cast(), (&raw mut nanos).cast()];
        // SAFETY: the arguments match the kernel's parameters, and by this function's (1), other code uses the word
        // only by atomic loads while the kernel runs.
        unsafe { launch(self.stamp, stream, (1, 1), &mut arguments) }
    }

    /// Launches a kernel that sets `count` words to `value`.
    ///
    /// # Safety
    /// 1. There are `count` words of 32 bits at `at`, which no other code uses while the kernel runs.
    pub unsafe fn fill(&self, stream: Stream, mut at: CUdeviceptr, mut count: u64, mut value: u32) -> CUresult {
        let blocks = count.div_ceil(u64::from(BLOCK)).clamp(1, 2048) as u32;
        let mut arguments = [(&raw mut at).cast(), (&raw mut count).cast(), (&raw mut value).cast()];
        // SAFETY: the arguments match the kernel's parameters, and by this function's (1), no other code uses the
        // memory while the kernel runs.
        unsafe { launch(self.fill, stream, (blocks, BLOCK), &mut arguments) }
    }

    /// Launches a kernel that sets all words of a vector to `value`, inside an operation that writes the vector.
    pub fn fill_vec(&self, stream: &mut GpuStream, words: &mut DeviceVec<u32>, value: u32) -> Result<(), DriverError> {
        let at = words.cuda_ptr().expect("memory of a CUDA device");
        // SAFETY: the operation has exclusive access to the vector until the device has completed the work that it
        // issues.
        unsafe { self.fill(lane(stream), at, words.len() as u64, value) }.result()
    }

    /// Launches a kernel that writes to an unmapped address, which the device reports as a fault.
    pub fn poison(&self, stream: Stream) -> CUresult {
        // SAFETY: the kernel has no parameters; no memory is mapped at the address that it writes to.
        unsafe { launch(self.poison, stream, (1, 1), &mut []) }
    }
}

/// Returns a lane's stream, inside an operation on the lane.
pub fn lane(stream: &mut GpuStream) -> Stream {
    Stream(stream.cuda().expect("a stream of a CUDA device").cu_stream())
}

/// Creates a stream that does not synchronize with the default one.
pub fn stream() -> Stream {
    let mut stream = ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: the context is current, and the pointer is valid for the driver's write.
    must("a stream", unsafe { sys::cuStreamCreate(&raw mut stream, flags) });
    Stream(stream)
}

/// Creates an event without timing.
pub fn event() -> Event {
    let mut event = ptr::null_mut();
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
    // SAFETY: the context is current, and the pointer is valid for the driver's write.
    must("an event", unsafe { sys::cuEventCreate(&raw mut event, flags) });
    Event(event)
}

/// Allocates memory on the device.
pub fn memory(bytes: usize) -> Memory {
    let mut at = 0;
    // SAFETY: the context is current, and the pointer is valid for the driver's write.
    must("memory", unsafe { sys::cuMemAlloc_v2(&raw mut at, bytes) });
    Memory(at)
}

/// Allocates pinned memory and fills it with zeros.
pub fn pinned(bytes: usize) -> Pinned {
    let (mut host, mut device) = (ptr::null_mut(), 0);
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: the context is current, and the pointer is valid for the driver's write.
    must("pinned memory", unsafe { sys::cuMemHostAlloc(&raw mut host, bytes, flags) });
    let host = host.cast::<u8>();
    // SAFETY: the allocation has this size, and no other code uses it yet.
    unsafe { host.write_bytes(0, bytes) };
    // SAFETY: the memory is pinned and mapped; the pointer is valid for the driver's write.
    let found = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut device, host.cast(), 0) };
    must("the device's address", found);
    Pinned { host, device }
}

impl Stream {
    /// Waits for all work on the stream.
    pub fn synchronize(self) -> CUresult {
        // SAFETY: the handle is alive.
        unsafe { sys::cuStreamSynchronize(self.0) }
    }

    /// Queries whether all work on the stream is complete.
    pub fn query(self) -> CUresult {
        // SAFETY: the handle is alive.
        unsafe { sys::cuStreamQuery(self.0) }
    }

    /// Makes the device write `value` to the word `number` of pinned memory, after all earlier work on the stream.
    pub fn write(self, to: &Pinned, number: usize, value: u64) -> CUresult {
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the memory is alive, and the host only loads the word, atomically.
        unsafe { sys::cuStreamWriteValue64_v2(self.0, to.device + 8 * number as u64, value, flags) }
    }

    /// Copies `bytes` bytes from device memory to the start of pinned memory.
    ///
    /// # Safety
    /// 1. Both have at least `bytes` bytes. During the copy, no other code uses the device memory, and other code uses
    ///    the pinned memory only by atomic loads of whole words.
    pub unsafe fn copy_out(self, from: CUdeviceptr, to: &Pinned, bytes: usize) -> CUresult {
        // SAFETY: (1).
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.host.cast(), from, bytes, self.0) }
    }
}

impl Event {
    pub fn record(self, stream: Stream) -> CUresult {
        // SAFETY: the event and the stream are alive.
        unsafe { sys::cuEventRecord(self.0, stream.0) }
    }

    pub fn query(self) -> CUresult {
        // SAFETY: the handle is alive.
        unsafe { sys::cuEventQuery(self.0) }
    }

    /// Spins until the event is complete, and returns the time at which this was seen.
    pub fn spin(self) -> Instant {
        loop {
            match self.query() {
                CUresult::CUDA_ERROR_NOT_READY => std::hint::spin_loop(),
                result => {
                    must("an event's query", result);
                    return Instant::now();
                }
            }
        }
    }
}

/// Returns the number of blocks with which a kernel fills the device.
pub fn many_blocks(gpu: &CudaGpu) -> u32 {
    let units = gpu.context().attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    // 2,048 threads on each multiprocessor.
    (units.unwrap_or(1) as u32).max(1) * (2048 / BLOCK)
}

/// Returns a duration in nanoseconds.
pub fn ns(time: Duration) -> f64 {
    time.as_nanos() as f64
}
