//! The measurements on a CUDA device. For comparison, the same work is also done without an engine: with cudarc, with
//! cudarc's event tracking disabled, and by several threads that call the driver.

use std::{
    env,
    process::Command,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use raddle::{
    Engine,
    gpu::{
        CudaGpu, GpuStream,
        cudarc::{
            driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg},
            nvrtc::Ptx,
        },
    },
};
use raddle_benches::shapes::*;

use super::{Bed, DeviceWords, GPU, KERNEL, Peer, Peers, SMALL, THREADS, until_reported, word};

/// The environment variable set in the child process that loses its device.
const INSIDE: &str = "RADDLE_GPU_BENCH_INSIDE";

const ONE: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

/// The kernels of `tests/cuda.ptx`.
#[derive(Clone)]
struct Kernels {
    affine: CudaFunction,
    late: CudaFunction,
    poison: CudaFunction,
}

impl Kernels {
    fn load(context: &Arc<CudaContext>) -> Self {
        let ptx = Ptx::from_src(include_str!("../../../tests/cuda.ptx"));
        let module = context.load_module(ptx).expect("the kernels should compile");
        let kernel = |name| module.load_function(name).expect("the module should have this kernel");
        Self { affine: kernel("affine"), late: kernel("late"), poison: kernel("poison") }
    }

    /// Launches a kernel that changes the word at `at`, after `time` has passed.
    ///
    /// # Safety
    /// 1. `at` is the address of a word in memory of this device, and no other code uses the word until the kernel has
    ///    completed.
    unsafe fn at(&self, stream: &CudaStream, at: u64, time: Duration) {
        let (nanos, count, one) = (time.as_nanos() as u64, 1u32, 1u32);
        let mut arguments = stream.launch_builder(if time.is_zero() { &self.affine } else { &self.late });
        arguments.arg(&at);
        if time.is_zero() {
            arguments.arg(&count);
        } else {
            arguments.arg(&nanos);
        }
        arguments.arg(&one).arg(&one);
        // SAFETY: the arguments match the kernel's parameters. The kernel writes only this word, which (1) permits.
        unsafe { arguments.launch(ONE) }.expect("launch");
    }

    fn in_operation(&self, stream: &mut GpuStream, words: &mut DeviceWords, time: Duration) {
        let stream = stream.cuda().expect("a stream of a CUDA device");
        let at = words.cuda_ptr().expect("memory of a CUDA device");
        // SAFETY: the vector has a word, to which the operation has exclusive access until the device has completed the
        // kernel.
        unsafe { self.at(&stream, at, time) }
    }
}

/// A program without an engine: a cudarc context and words, each with a stream.
struct ByHand {
    kernels: Kernels,
    context: Arc<CudaContext>,
    streams: Vec<Arc<CudaStream>>,
    words: Vec<CudaSlice<u32>>,
}

impl ByHand {
    fn new(tracking: bool, streams: usize) -> Self {
        let context = CudaContext::new(0).expect("the GPU should have been opened before");
        if !tracking {
            // SAFETY: all uses of a word are on one stream, or events order them.
            unsafe { context.disable_event_tracking() };
        }
        let streams: Vec<_> = (0..streams).map(|_| context.new_stream().expect("a stream")).collect();
        let words = streams.iter().map(|stream| stream.alloc_zeros::<u32>(1).expect("memory")).collect();
        let kernels = Kernels::load(&context);
        streams.iter().for_each(|stream| stream.synchronize().expect("the stream should complete its work"));
        Self { kernels, context, streams, words }
    }

    /// Launches a kernel on a stream and a word, in cudarc's usual way.
    fn launch(&mut self, stream: usize, word: usize, time: Duration) {
        let (nanos, count, one) = (time.as_nanos() as u64, 1u32, 1u32);
        let kernel = if time.is_zero() { &self.kernels.affine } else { &self.kernels.late };
        let mut arguments = self.streams[stream].launch_builder(kernel);
        arguments.arg(&mut self.words[word]);
        if time.is_zero() {
            arguments.arg(&count);
        } else {
            arguments.arg(&nanos);
        }
        arguments.arg(&one).arg(&one);
        // SAFETY: the arguments match the kernel's parameters. The kernel writes this word, whose other uses are
        // ordered with this one: by cudarc, or by the caller that has disabled cudarc's tracking.
        unsafe { arguments.launch(ONE) }.expect("launch");
    }

    fn wait(&self, stream: usize) {
        self.streams[stream].synchronize().expect("nothing should fail");
    }

    /// Measures ns per kernel in a chain on one stream.
    fn chain(tracking: bool, time: Duration) -> Peer {
        let name = if tracking { "cudarc, which tracks with events" } else { "cudarc, one stream, nothing tracked" };
        let measure = move |count: usize| {
            // With only one stream, cudarc would track nothing.
            let mut hand = Self::new(tracking, 2);
            let start = Instant::now();
            (0..count).for_each(|_| hand.launch(0, 0, time));
            hand.wait(0);
            super::per(start.elapsed(), count)
        };
        (name, Box::new(measure))
    }
}

fn hops(count: usize) -> f64 {
    let mut hand = ByHand::new(false, 2);
    // A wait refers to the last record issued before it, so two events suffice.
    let events = [(); 2].map(|()| hand.context.new_event(None).expect("an event"));
    let start = Instant::now();
    for i in 0..count {
        hand.launch(i % 2, 0, Duration::ZERO);
        events[i % 2].record(&hand.streams[i % 2]).expect("record");
        hand.streams[(i + 1) % 2].wait(&events[i % 2]).expect("wait");
    }
    hand.wait((count + 1) % 2);
    super::per(start.elapsed(), count)
}

fn tracked_hops(count: usize) -> f64 {
    let mut hand = ByHand::new(true, 2);
    let start = Instant::now();
    (0..count).for_each(|i| hand.launch(i % 2, 0, Duration::ZERO));
    hand.wait((count + 1) % 2);
    super::per(start.elapsed(), count)
}

/// Measures ns per kernel for threads that launch directly, each with its own word. Each has its own stream, or all
/// share one.
fn threads(one_stream: bool, count: usize) -> f64 {
    let hand = ByHand::new(false, THREADS);
    let barrier = Barrier::new(THREADS + 1);
    let mut start = Instant::now();
    thread::scope(|scope| {
        for (word, own) in hand.words.iter().zip(&hand.streams) {
            let stream = if one_stream { &hand.streams[0] } else { own };
            let at = address(word, stream);
            let (barrier, kernels, context) = (&barrier, &hand.kernels, &hand.context);
            scope.spawn(move || {
                context.bind_to_thread().expect("the context should be alive");
                barrier.wait();
                for _ in 0..count / THREADS {
                    // SAFETY: only this thread uses the word, on one stream. `hand` outlives the thread, and its
                    // streams are synchronized below.
                    unsafe { kernels.at(stream, at, Duration::ZERO) };
                }
            });
        }
        barrier.wait();
        start = Instant::now();
    });
    (0..THREADS).for_each(|stream| hand.wait(stream));
    super::per(start.elapsed(), count)
}

fn address(word: &CudaSlice<u32>, stream: &Arc<CudaStream>) -> u64 {
    use raddle::gpu::cudarc::driver::DevicePtr;
    word.device_ptr(stream).0
}

/// Measures the time from a launch to the end of a wait for it, less the kernel's time.
fn end(poll: bool) -> Box<dyn Fn(usize) -> f64> {
    let hand = std::cell::RefCell::new(ByHand::new(false, 1));
    let event = hand.borrow().context.new_event(None).expect("an event");
    Box::new(move |_| {
        let mut hand = hand.borrow_mut();
        let start = Instant::now();
        hand.launch(0, 0, KERNEL);
        if poll {
            event.record(&hand.streams[0]).expect("record");
            while !event.try_is_complete().expect("nothing should fail") {
                std::hint::spin_loop();
            }
        } else {
            hand.wait(0);
        }
        start.elapsed().as_nanos() as f64 - KERNEL.as_nanos() as f64
    })
}

/// Returns whether this is the child process that loses its device.
pub fn is_to_be_lost() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Loses the device and prints the time until all waiters have received the error.
pub fn lose_inside() {
    let gpu = CudaGpu::open(0).expect("the other process should have opened it");
    let kernels = Kernels::load(gpu.context());
    let engine = Engine::builder().gpu(gpu).build().expect("an engine");
    let vars: Vec<_> = (0..THREADS).map(|_| word(&engine)).collect();
    // The operations below are issued after this one, whose function continues once the threads are waiting.
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let poison = kernels.poison.clone();
    let first = engine.op("poison").on(GPU).submit_launch_any(vars[0].write(), move |stream, _| {
        _ = gone.recv();
        let stream = stream.cuda().expect("the device should be a CUDA device");
        let now = Instant::now();
        // SAFETY: the kernel has no parameters. It writes to an unmapped address, which the device reports as a
        // fault; no memory changes.
        unsafe { stream.launch_builder(&poison).launch(ONE) }.map(|_| TIME.set(now))
    });
    drop(first.expect("push"));
    for var in &vars {
        let kernels = kernels.clone();
        let step = move |stream: &mut GpuStream, words: &mut DeviceWords| {
            kernels.in_operation(stream, words, Duration::ZERO);
        };
        engine.op("step").on(GPU).launch_any(var.write(), step).expect("push");
    }
    let nanos = until_reported(&engine, &vars, || {
        drop(go);
        *TIME.wait()
    });
    println!("{nanos}");
}

/// The time at which the faulting kernel was launched.
static TIME: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

fn fault() -> f64 {
    let this = env::current_exe().expect("the program should have a path");
    let output = Command::new(this).env(INSIDE, "1").output().expect("the child process should start");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| {
        panic!("the process that loses its device printed no time: {text}{}", String::from_utf8_lossy(&output.stderr))
    })
}

/// Opens the first GPU, to be measured.
pub fn bed() -> Result<Bed, String> {
    let gpu = CudaGpu::open(0).map_err(|error| error.to_string())?;
    let context = gpu.context();
    let describe = || {
        let (major, minor) = context.compute_capability()?;
        Ok::<_, raddle::gpu::cudarc::driver::DriverError>(format!(
            "{}, compute capability {major}.{minor}, CUDA device 0",
            context.name()?
        ))
    };
    let mut note = describe().map_err(|error| error.to_string())?;
    note += &format!(". {gpu:?}. The time of a launch itself is unknown, and is part of what is measured.");
    let kernels = Kernels::load(context);
    let launch = move |stream: &mut GpuStream, words: &mut DeviceWords, time| kernels.in_operation(stream, words, time);
    let zero = Duration::ZERO;
    Ok(Bed {
        key: "gpu-cuda",
        title: "GPU",
        note,
        driver: Box::new(move |_| gpu.clone().into()),
        launch: Arc::new(launch),
        latency: zero,
        peers: Peers {
            same_stream: vec![ByHand::chain(false, zero), ByHand::chain(true, zero)],
            cross_stream: vec![
                ("cudarc, with an event for each change, by hand", Box::new(hops)),
                ("cudarc, which tracks with events", Box::new(tracked_hops)),
            ],
            threads: vec![
                ("16 threads that launch, a stream each", Box::new(|count| threads(false, count))),
                ("16 threads that launch, on one stream", Box::new(|count| threads(true, count))),
            ],
            chain: vec![ByHand::chain(false, SMALL), ByHand::chain(true, SMALL)],
            end: vec![("by hand: `cuStreamSynchronize`", end(false)), ("by hand: `cuEventQuery` in a loop", end(true))],
        },
        fault: Box::new(fault),
    })
}
