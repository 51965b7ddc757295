//! The driver's functions by hand, as far as the experiments need them. Nothing is given back here: a part's process
//! ends soon.

use std::{
    ffi::{CString, c_void},
    ptr,
    sync::atomic::{AtomicU64, Ordering::Acquire},
    time::{Duration, Instant},
};

use raddle::{
    CudaGpu, DeviceVec, Engine, EngineKind, GpuStream, IdlePolicy,
    cudarc::driver::{
        DriverError, result,
        sys::{self, CUdeviceptr, CUresult},
    },
};

use super::child;

/// The figure that a part prints if the device has no marks of the sort that was asked for.
pub const REFUSED: &str = "refused";

/// Threads of a block. Picked.
const BLOCK: u32 = 256;

/// A stream, which lives as long as it is used here: one made by hand, or that of a lane inside an operation of its
/// own.
#[derive(Clone, Copy)]
pub struct Stream(pub sys::CUstream);

// SAFETY: the driver's functions take streams on any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// An event, which is never destroyed.
#[derive(Clone, Copy)]
pub struct Event(pub sys::CUevent);

// SAFETY: the driver's functions take events on any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// Memory on the device, which is never freed.
#[derive(Clone, Copy)]
pub struct Memory(pub CUdeviceptr);

/// Pinned memory of the host, which is never freed.
#[derive(Clone, Copy)]
pub struct Pinned {
    pub host: *mut u8,
    /// Where the device finds it.
    pub device: CUdeviceptr,
}

// SAFETY: it gives no access by itself.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// The word with this number, which the device writes as a whole. There must be as many.
    pub fn word(&self, number: usize) -> &AtomicU64 {
        let at = self.host.cast::<u64>().wrapping_add(number);
        // SAFETY: the memory is aligned, initialised, stays, and only the device and atomics use it.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Spins until a word has a value, and gives when it was seen.
    pub fn spin(&self, number: usize, value: u64) -> Instant {
        // Acquire: what the device has written before, as in the engine.
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
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// Whether the driver's library, which is loaded, has a function. cudarc panics at the call of one that is missing.
pub fn has(function: &str) -> bool {
    // SAFETY: the library is loaded already.
    let library = unsafe { sys::culib() };
    // SAFETY: the type is that of some function, and what is found is not called.
    unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) }.is_ok()
}

/// Fails the part unless the driver has done it.
#[track_caller]
pub fn must(what: &str, result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS, "{what}");
}

/// Opens the first GPU, whose context becomes the thread's current one.
pub fn open() -> CudaGpu {
    CudaGpu::open(0).unwrap_or_else(|error| panic!("the GPU cannot be opened: {error}"))
}

/// As [`open`], with the sort of marks that the environment asks for; nothing, which is told as the figure `refused`,
/// if the device or its driver has no such marks.
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

/// The GPU and its driver, in words, without a context.
pub fn describe() -> Result<String, DriverError> {
    let mut version = 0;
    if has("cuDriverGetVersion") {
        // SAFETY: the driver has a place to write to.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    }
    let name = result::device::get_name(result::device::get(0)?)?;
    Ok(format!("{name}; driver for CUDA {}.{}", version / 1000, version % 1000 / 10))
}

/// An engine with one lane for each purpose, and one worker.
pub fn engine(gpu: &CudaGpu, idle: IdlePolicy) -> Engine {
    let builder = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).idle(idle);
    builder.gpu(gpu.clone()).build().expect("an engine")
}

/// Makes the GPU's context this thread's.
pub fn bind(gpu: &CudaGpu) {
    gpu.context().bind_to_thread().expect("the context is there");
}

/// The source of the kernels, with the zero that the driver wants behind it.
pub fn source() -> CString {
    CString::new(include_str!("../kernels.ptx")).expect("it has no zeros")
}

/// Loads the kernels into the current context, and has each of them run but the one that does harm: the driver may put
/// off what there is to do until then.
pub fn kernels() -> Kernels {
    let (source, mut module) = (source(), ptr::null_mut());
    // SAFETY: the image is PTX with a zero behind it, and the driver has a place to write to.
    must("the kernels compile", unsafe { sys::cuModuleLoadData(&raw mut module, source.as_ptr().cast()) });
    let kernel = |name: &str| {
        let (name, mut kernel) = (CString::new(name).expect("it has no zeros"), ptr::null_mut());
        // SAFETY: the module is loaded, and the driver has a place to write to.
        must("it is one of the kernels", unsafe { sys::cuModuleGetFunction(&raw mut kernel, module, name.as_ptr()) });
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

/// Launches one block of a kernel, or more.
///
/// # Safety
/// 1. The arguments are the kernel's, and what it writes there is the device's to write, and nobody else's, until the
///    kernel has ended.
unsafe fn launch(
    kernel: sys::CUfunction,
    stream: Stream,
    (blocks, threads): (u32, u32),
    arguments: &mut [*mut c_void],
) -> CUresult {
    let arguments = arguments.as_mut_ptr();
    // SAFETY: the module is loaded, the stream is alive; and (1).
    unsafe { sys::cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream.0, arguments, ptr::null_mut()) }
}

impl Kernels {
    fn warm(&self) {
        let (stream, memory) = (stream(), memory(4096));
        must("a first launch", self.nothing(stream));
        must("a first launch", self.spin(stream, 1, Duration::ZERO));
        // SAFETY: there are as many words, which nobody else uses.
        must("a first launch", unsafe { self.sample(stream, memory.0, 2) });
        // SAFETY: as above.
        must("a first launch", unsafe { self.stamp(stream, memory.0, Duration::ZERO) });
        // SAFETY: as above.
        must("a first launch", unsafe { self.fill(stream, memory.0, 16, 0) });
        must("they end", stream.synchronize());
    }

    /// Launches a kernel that does nothing.
    pub fn nothing(&self, stream: Stream) -> CUresult {
        // SAFETY: it has no arguments, and writes nothing.
        unsafe { launch(self.nothing, stream, (1, 1), &mut []) }
    }

    /// Launches a kernel that takes its time, of so many blocks.
    pub fn spin(&self, stream: Stream, blocks: u32, time: Duration) -> CUresult {
        let mut nanos = time.as_nanos() as u64;
        let threads = if blocks == 1 { 1 } else { BLOCK };
        // SAFETY: this is its argument; it writes nothing.
        unsafe { launch(self.spin, stream, (blocks, threads), &mut [(&raw mut nanos).cast()]) }
    }

    /// Launches a kernel that writes readings of the clock.
    ///
    /// # Safety
    /// 1. There is place for `count` words of 64 bits, which nobody else uses until the kernel has ended.
    pub unsafe fn sample(&self, stream: Stream, mut at: CUdeviceptr, mut count: u32) -> CUresult {
        let mut arguments = [(&raw mut at).cast(), (&raw mut count).cast()];
        // SAFETY: these are its arguments, and (1).
        unsafe { launch(self.sample, stream, (1, 1), &mut arguments) }
    }

    /// Launches a kernel that takes its time, and writes a reading of the clock.
    ///
    /// # Safety
    /// 1. There is place for a word of 64 bits, which nobody but readers uses until the kernel has ended.
    pub unsafe fn stamp(&self, stream: Stream, mut at: CUdeviceptr, time: Duration) -> CUresult {
        let mut nanos = time.as_nanos() as u64;
        let mut arguments = [(&raw mut at).cast(), (&raw mut nanos).cast()];
        // SAFETY: these are its arguments, and (1).
        unsafe { launch(self.stamp, stream, (1, 1), &mut arguments) }
    }

    /// Launches a kernel that sets words.
    ///
    /// # Safety
    /// 1. There are `count` words of 32 bits, which nobody else uses until the kernel has ended.
    pub unsafe fn fill(&self, stream: Stream, mut at: CUdeviceptr, mut count: u64, mut value: u32) -> CUresult {
        let blocks = count.div_ceil(u64::from(BLOCK)).clamp(1, 2048) as u32;
        let mut arguments = [(&raw mut at).cast(), (&raw mut count).cast(), (&raw mut value).cast()];
        // SAFETY: these are its arguments, and (1).
        unsafe { launch(self.fill, stream, (blocks, BLOCK), &mut arguments) }
    }

    /// Sets all words of a vector, inside an operation that writes it.
    pub fn fill_vec(&self, stream: &mut GpuStream, words: &mut DeviceVec<u32>, value: u32) -> Result<(), DriverError> {
        let at = words.cuda_ptr().expect("it is there");
        // SAFETY: the operation holds the vector exclusively until the device has done what it issues.
        unsafe { self.fill(lane(stream), at, words.len() as u64, value) }.result()
    }

    /// Launches a kernel that writes where no memory is; the device notices.
    pub fn poison(&self, stream: Stream) -> CUresult {
        // SAFETY: it has no arguments; what it writes to is nobody's, and does not exist.
        unsafe { launch(self.poison, stream, (1, 1), &mut []) }
    }
}

/// The stream of a lane, inside an operation of its own.
pub fn lane(stream: &mut GpuStream) -> Stream {
    Stream(stream.cuda().expect("it is a CUDA device").cu_stream())
}

/// Makes a stream that does not wait for the default one.
pub fn stream() -> Stream {
    let mut stream = ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: the context is current, and the driver has a place to write to.
    must("a stream", unsafe { sys::cuStreamCreate(&raw mut stream, flags) });
    Stream(stream)
}

/// Makes an event without times.
pub fn event() -> Event {
    let mut event = ptr::null_mut();
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
    // SAFETY: as above.
    must("an event", unsafe { sys::cuEventCreate(&raw mut event, flags) });
    Event(event)
}

/// Allocates on the device.
pub fn memory(bytes: usize) -> Memory {
    let mut at = 0;
    // SAFETY: as above.
    must("memory", unsafe { sys::cuMemAlloc_v2(&raw mut at, bytes) });
    Memory(at)
}

/// Allocates pinned memory of zeros.
pub fn pinned(bytes: usize) -> Pinned {
    let (mut host, mut device) = (ptr::null_mut(), 0);
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: as above.
    must("pinned memory", unsafe { sys::cuMemHostAlloc(&raw mut host, bytes, flags) });
    let host = host.cast::<u8>();
    // SAFETY: it is as large, and nobody knows of it yet.
    unsafe { host.write_bytes(0, bytes) };
    // SAFETY: it is pinned and mapped; the driver has a place to write to.
    let found = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut device, host.cast(), 0) };
    must("the device's address", found);
    Pinned { host, device }
}

impl Stream {
    /// Waits for all that is on it.
    pub fn synchronize(self) -> CUresult {
        // SAFETY: it is alive.
        unsafe { sys::cuStreamSynchronize(self.0) }
    }

    /// Asks whether all that is on it is done.
    pub fn query(self) -> CUresult {
        // SAFETY: it is alive.
        unsafe { sys::cuStreamQuery(self.0) }
    }

    /// Has the device write a number to a word of pinned memory when all that came before is done.
    pub fn write(self, to: &Pinned, number: usize, value: u64) -> CUresult {
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the memory stays, and the host only loads the word.
        unsafe { sys::cuStreamWriteValue64_v2(self.0, to.device + 8 * number as u64, value, flags) }
    }

    /// Copies from the start of device memory to that of pinned memory.
    ///
    /// # Safety
    /// 1. Both are as large, and nobody else uses them until the device has done it.
    pub unsafe fn copy_out(self, from: CUdeviceptr, to: &Pinned, bytes: usize) -> CUresult {
        // SAFETY: (1).
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.host.cast(), from, bytes, self.0) }
    }
}

impl Event {
    pub fn record(self, stream: Stream) -> CUresult {
        // SAFETY: both are alive.
        unsafe { sys::cuEventRecord(self.0, stream.0) }
    }

    pub fn query(self) -> CUresult {
        // SAFETY: it is alive.
        unsafe { sys::cuEventQuery(self.0) }
    }

    /// Spins until it has happened, and gives when that was seen.
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

/// Blocks of a kernel that fills the device.
pub fn many_blocks(gpu: &CudaGpu) -> u32 {
    let units = gpu.context().attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    // 2,048 threads each.
    (units.unwrap_or(1) as u32).max(1) * (2048 / BLOCK)
}

/// ns as a figure.
pub fn ns(time: Duration) -> f64 {
    time.as_nanos() as f64
}
