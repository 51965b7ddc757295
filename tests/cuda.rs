//! Tests of operations on a real GPU: the properties checked by `tests/devices` on the simulated GPU, as far as
//! hardware allows.
//!
//! Without a GPU, most of these tests print that they were skipped; with `RADDLE_REQUIRE_GPU` set, they fail instead.
//! The library built from `stand_in/cuda.c` can stand in for a GPU.

use raddle_testkit as common;

use std::{
    env,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use common::shapes::*;
use common::{KINDS, THREADED, child, child_succeeds, failure, is_child, watched};
use raddle::{
    Device, Engine, EngineKind, Property, Var,
    error::Cause,
    gpu::{
        CudaGpu, DeviceVec, GpuStream, ImportedStream,
        cudarc::{
            driver::{
                CudaFunction, CudaGraph, CudaStream, DriverError, LaunchConfig, PushKernelArg,
                sys::{
                    CUcomputemode, CUdevice_attribute, CUgraphInstantiate_flags,
                    CUstreamCaptureMode::{self, CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
                },
            },
            nvrtc::Ptx,
        },
    },
};

const GPU: Device = Device::Gpu(0);

/// The number of threads per block; it is not tuned.
const BLOCK: u32 = 256;

/// The duration of a slow kernel.
const AWHILE: Duration = Duration::from_micros(200);

/// Opens the first GPU. Returns `None` if it cannot be opened and the tests may be skipped.
fn gpu() -> Option<CudaGpu> {
    match CudaGpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) if env::var_os("RADDLE_REQUIRE_GPU").is_none() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("RADDLE_REQUIRE_GPU is set, but no GPU could be opened: {error}"),
    }
}

/// Returns whether a child process can use the GPU while this process has it open.
fn has_gpu_for_a_child() -> bool {
    let Some(gpu) = gpu() else { return false };
    let mode = gpu
        .context()
        .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)
        .expect("a GPU should have a compute mode");
    let shared = mode == CUcomputemode::CU_COMPUTEMODE_DEFAULT as i32;
    if !shared {
        println!("skipped: the GPU admits one process at a time; `nvidia-smi -c 0` lifts the restriction");
    }
    shared
}

fn engine(kind: EngineKind, gpu: &CudaGpu) -> Engine {
    Engine::builder().kind(kind).workers(2).pin(false).gpu(gpu.clone()).build().expect("an engine")
}

/// The kernels of `cuda.ptx`.
struct Kernels {
    affine: CudaFunction,
    late: CudaFunction,
    poison: CudaFunction,
}

impl Kernels {
    fn load(gpu: &CudaGpu) -> Arc<Self> {
        let module =
            gpu.context().load_module(Ptx::from_src(include_str!("cuda.ptx"))).expect("the kernels should compile");
        let kernel = |name| module.load_function(name).expect("the module should have this kernel");
        Arc::new(Self { affine: kernel("affine"), late: kernel("late"), poison: kernel("poison") })
    }

    /// Multiplies each value by `factor` and adds `term`.
    fn affine(
        &self,
        stream: &mut GpuStream,
        values: &mut DeviceVec<u32>,
        factor: u32,
        term: u32,
    ) -> Result<(), DriverError> {
        let stream = stream.cuda().expect("a stream of a CUDA device");
        let (at, count) = (values.cuda_ptr().expect("memory of a CUDA device"), values.len() as u32);
        let mut arguments = stream.launch_builder(&self.affine);
        arguments.arg(&at).arg(&count).arg(&factor).arg(&term);
        let (grid_dim, block_dim) = ((count.div_ceil(BLOCK), 1, 1), (BLOCK, 1, 1));
        // SAFETY: the arguments match the kernel's parameters. The kernel uses `count` values, all inside the vector.
        // The operation that launches it has exclusive access to the vector until the device has completed the kernel.
        unsafe { arguments.launch(LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 }) }.map(drop)
    }

    /// Applies `factor` and `term` like [`affine`](Self::affine), but to the first value only and after [`AWHILE`].
    fn late(
        &self,
        stream: &mut GpuStream,
        values: &mut DeviceVec<u32>,
        factor: u32,
        term: u32,
    ) -> Result<(), DriverError> {
        self.late_by(AWHILE, stream, values, factor, term)
    }

    fn late_by(
        &self,
        time: Duration,
        stream: &mut GpuStream,
        values: &mut DeviceVec<u32>,
        factor: u32,
        term: u32,
    ) -> Result<(), DriverError> {
        let stream = stream.cuda().expect("a stream of a CUDA device");
        let (at, nanos) = (values.cuda_ptr().expect("memory of a CUDA device"), time.as_nanos() as u64);
        assert!(!values.is_empty(), "there is no first value for the kernel");
        let mut arguments = stream.launch_builder(&self.late);
        arguments.arg(&at).arg(&nanos).arg(&factor).arg(&term);
        // SAFETY: the arguments match the kernel's parameters. The kernel uses only the first value, which exists. The
        // operation that launches it has exclusive access to that value until the device has completed the kernel.
        unsafe { arguments.launch(one_thread()) }.map(drop)
    }

    /// Launches a kernel whose invalid write makes the device unusable for this process.
    fn poison(&self, stream: &mut GpuStream) -> Result<(), DriverError> {
        let stream = stream.cuda().expect("a stream of a CUDA device");
        // SAFETY: the kernel has no parameters. It writes to an unmapped address, so the device reports a fault and no
        // memory changes.
        unsafe { stream.launch_builder(&self.poison).launch(one_thread()) }.map(drop)
    }
}

/// Returns a launch configuration with a single thread.
fn one_thread() -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 }
}

/// Creates a device vector and pushes an operation that copies `len` zeros to it from pinned memory.
fn zeros(engine: &Engine, len: usize) -> Var<DeviceVec<u32>> {
    let host = engine.pinned_var::<u32>(GPU, len).expect("pinned memory");
    let device = engine.device_var::<u32>(GPU, len).expect("device memory");
    engine.op("in").on(GPU).copy_to_device(&host, &device).expect("a push");
    device
}

/// Pushes an operation that copies the device's values to the host, and returns the values.
fn values(engine: &Engine, device: &Var<DeviceVec<u32>>, len: usize) -> Vec<u32> {
    let host = engine.pinned_var::<u32>(GPU, len).expect("pinned memory");
    engine.op("out").on(GPU).copy_from_device(device, &host).expect("a push");
    engine
        .op("values")
        .submit(host.read(), |host| host.to_vec())
        .expect("a push")
        .wait()
        .expect("the values should have been copied")
}

#[test]
fn opening_returns_a_gpu_or_an_error_that_says_what_to_do() {
    match (CudaGpu::open(0), CudaGpu::count()) {
        (Ok(_), count) => assert!(count.expect("the driver should be loaded") > 0),
        (Err(error), Ok(count)) => assert!(count == 0 || error.code() > 0, "{error}"),
        (Err(error), Err(of_count)) => {
            assert_eq!(error.message(), of_count.message());
            assert!(error.message().contains("install") || error.code() > 0, "{error}");
            assert!(!error.is_lost() || error.code() > 0, "{error}");
        }
    }
    assert!(CudaGpu::open(usize::MAX).is_err());
}

#[test]
fn values_are_computed_on_the_gpu_and_copied_back_on_every_engine() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let kernels = Kernels::load(&gpu);
        for kind in KINDS {
            let engine = engine(kind, &gpu);
            let host = engine.pinned_var::<u32>(GPU, 1000).unwrap();
            let device = engine.device_var::<u32>(GPU, 1000).unwrap();
            for round in 0..20 {
                engine.op("fill").push(host.write(), move |host| host.fill(round)).unwrap();
                engine.op("in").on(GPU).copy_to_device(&host, &device).unwrap();
                for _ in 0..3 {
                    let kernels = Arc::clone(&kernels);
                    let double = move |stream: &mut GpuStream, values: &mut _| kernels.affine(stream, values, 2, 1);
                    engine.op("double").on(GPU).launch_any(device.write(), double).unwrap();
                }
                engine.op("out").on(GPU).copy_from_device(&device, &host).unwrap();
                let sum = engine.op("sum").submit(host.read(), |host| host.iter().sum::<u32>()).unwrap();
                assert_eq!(sum.wait().unwrap(), 1000 * (8 * round + 7), "{kind} {round}");
            }
        }
    });
}

#[test]
fn copies_of_every_size_preserve_the_bytes() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let engine = engine(EngineKind::PerDevice, &gpu);
        for len in [0, 1, 3, 255, 256, 257, 4097, 1 << 20] {
            let (from, to) = (engine.pinned_var::<u8>(GPU, len).unwrap(), engine.pinned_var::<u8>(GPU, len).unwrap());
            let (there, back) = (engine.device_var(GPU, len).unwrap(), engine.device_var(GPU, len).unwrap());
            let fill = |from: &mut raddle::gpu::PinnedVec<u8>| {
                from.iter_mut().zip(0u32..).for_each(|(byte, i)| *byte = (i.wrapping_mul(2_654_435_761) >> 24) as u8);
            };
            engine.op("fill").push(from.overwrite(), fill).unwrap();
            engine.op("in").on(GPU).copy_to_device(&from, &there).unwrap();
            engine.op("across").on(GPU).copy_peer(&there, &back).unwrap();
            engine.op("out").on(GPU).copy_from_device(&back, &to).unwrap();
            let same = engine.op("compare").submit((from.read(), to.read()), |(from, to)| **from == **to).unwrap();
            assert!(same.wait().unwrap(), "{len} bytes");
        }
    });
}

/// Pushes random operations to the lanes for ordinary kernels, urgent kernels and copies, and compares the values with
/// those of a serial run in push order. Some of the kernels are slow.
#[test]
fn operations_of_several_streams_take_effect_in_push_order() {
    const VARS: usize = 4;
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let kernels = Kernels::load(&gpu);
        for (kind, seed) in THREADED.into_iter().flat_map(|kind| (1..4u32).map(move |seed| (kind, seed))) {
            let engine = engine(kind, &gpu);
            let mut state = seed;
            let mut random = move |below: u32| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) % below
            };
            let vars: Vec<_> = (0..VARS).map(|_| engine.device_var::<u32>(GPU, 1).unwrap()).collect();
            let zero = engine.pinned_var::<u32>(GPU, 1).unwrap();
            let mut expected = [0u32; VARS];
            for var in &vars {
                engine.op("zero").on(GPU).copy_to_device(&zero, var).unwrap();
            }
            for step in 0..400 {
                let (to, from) = (random(VARS as u32) as usize, random(VARS as u32) as usize);
                let (factor, term, late) = (random(100) | 1, random(1000), random(8) == 0);
                let property = if random(2) == 0 { Property::GpuPrioritized } else { Property::Normal };
                if random(4) == 0 && to != from {
                    let lane = if random(2) == 0 { Property::CopyToGpu } else { property };
                    engine.op("move").on(GPU).property(lane).copy_peer(&vars[from], &vars[to]).unwrap();
                    expected[to] = expected[from];
                    continue;
                }
                let kernels = Arc::clone(&kernels);
                let op = engine.op("change").on(GPU).property(property);
                op.launch_any(vars[to].write(), move |stream, values| {
                    let kernel = if late { Kernels::late } else { Kernels::affine };
                    kernel(&kernels, stream, values, factor, term)
                })
                .unwrap();
                expected[to] = expected[to].wrapping_mul(factor).wrapping_add(term);
                if step % 100 == 99 {
                    // Mid-run, the host waits for the device and checks a value.
                    assert_eq!(values(&engine, &vars[to], 1), [expected[to]], "{kind}, seed {seed}, step {step}");
                }
            }
            for (var, expected) in vars.iter().zip(expected) {
                assert_eq!(values(&engine, var, 1), [expected], "{kind}, seed {seed}");
            }
        }
    });
}

#[test]
fn a_result_is_ready_when_its_kernel_has_completed_and_not_when_it_was_launched() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let kernels = Kernels::load(&gpu);
        let engine = engine(EngineKind::PerDevice, &gpu);
        let device = zeros(&engine, 1);
        engine.wait_for_all().unwrap();
        for round in 1..=50 {
            let kernels = Arc::clone(&kernels);
            let launch = move |stream: &mut GpuStream, values: &mut DeviceVec<u32>| {
                let begin = std::time::Instant::now();
                kernels.late(stream, values, 1, 1).map(|()| begin)
            };
            let begin = engine.op("late").on(GPU).submit_launch_any(device.write(), launch).unwrap().wait().unwrap();
            // Only half of the time is required, since the resolution of the device's clock is not documented.
            assert!(begin.elapsed() >= AWHILE / 2, "round {round}: {:?}", begin.elapsed());
        }
        assert_eq!(values(&engine, &device, 1), [50]);
    });
}

#[test]
fn an_allocation_beyond_the_memory_is_refused_and_the_gpu_remains_usable() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let engine = engine(EngineKind::PerDevice, &gpu);
        let error = engine.device_var::<u8>(GPU, 1 << 46).expect_err("no GPU should have 64 TiB");
        assert!(!error.is_lost(), "{error}");
        let host = engine.pinned_var::<u32>(GPU, 8).unwrap();
        let device = engine.device_var::<u32>(GPU, 8).unwrap();
        engine.op("fill").push(host.write(), |host| host.fill(7)).unwrap();
        engine.op("in").on(GPU).copy_to_device(&host, &device).unwrap();
        assert_eq!(values(&engine, &device, 8), [7; 8]);
    });
}

/// Takes more than half of the GPU's memory in each round.
#[test]
fn memory_of_a_dropped_variable_is_awaited_and_pools_return_what_is_free() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let kernels = Kernels::load(&gpu);
        for kind in KINDS {
            let engine = engine(kind, &gpu);
            engine.limit_pools(GPU, 0).unwrap();
            engine.trim_pools(GPU).unwrap();
            let (free, all) = gpu.context().mem_get_info().expect("the memory's size");
            let len = all.min(free) / 16 * 9;
            for _ in 0..4 {
                let var = engine.device_var::<u8>(GPU, len).expect("the last variable was dropped");
                let small = zeros(&engine, 1);
                let late = Arc::clone(&kernels);
                let launch = move |stream: &mut GpuStream, (_, small): (&mut _, &mut DeviceVec<u32>)| {
                    late.late(stream, small, 3, 1)
                };
                engine.op("late").on(GPU).launch_any((var.overwrite(), small.write()), launch).unwrap();
            }
            engine.wait_for_all().unwrap();
            assert_eq!(engine.trim_pools(GPU).unwrap(), 0, "{kind}: nothing is in use");
            engine.limit_pools(GPU, 256 << 20).unwrap();
        }
    });
}

/// Slow kernels on the program's own stream alternate with fast kernels on the lanes' streams.
#[test]
fn work_on_an_imported_stream_is_ordered_with_all_operations() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let kernels = Kernels::load(&gpu);
        for kind in KINDS {
            let engine = engine(kind, &gpu);
            let stream = gpu.context().new_stream().expect("a stream");
            let own = engine.stream_var(ImportedStream::cuda(&gpu, stream).expect("a stream of the same context"));
            let var = zeros(&engine, 1);
            let mut expected = 0u32;
            for round in 0..50 {
                let property = if round % 3 == 0 { Property::GpuPrioritized } else { Property::Normal };
                let (first, second) = (Arc::clone(&kernels), Arc::clone(&kernels));
                let include = move |stream: &mut GpuStream, (values, own): (&mut _, &mut ImportedStream)| {
                    let included = stream.include(own, |own| first.late(own, values, 3, round));
                    included.and_then(|launched| launched.map_err(Into::into))
                };
                let include =
                    engine.op("own").on(GPU).property(property).launch_any((var.write(), own.overwrite()), include);
                include.unwrap();
                let step = move |stream: &mut GpuStream, values: &mut _| second.affine(stream, values, 5, 1);
                engine.op("lane").on(GPU).launch_any(var.write(), step).unwrap();
                expected = expected.wrapping_mul(3).wrapping_add(round).wrapping_mul(5).wrapping_add(1);
            }
            assert_eq!(values(&engine, &var, 1), [expected], "{kind}");
        }
    });
}

/// The driver's own functions, and libraries that call them, use the calling thread's current context.
#[test]
fn functions_find_the_context_of_their_device_and_the_same_stream_after_a_stop_and_on_every_thread() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        for kind in KINDS {
            let engine = engine(kind, &gpu);
            let var = zeros(&engine, 1);
            let mut streams = Vec::new();
            for _ in 0..3 {
                let look = || {
                    let look = engine.op("look").on(GPU).submit_launch_any(var.write(), |stream, _| {
                        let (free, _) = cudarc::driver::result::mem_get_info()?;
                        assert!(free > 0);
                        Ok::<_, DriverError>(stream.cuda().expect("a CUDA stream").cu_stream().addr())
                    });
                    look.expect("a push").wait().expect("the context should be current")
                };
                // The naive engine runs the function on the new thread, which has not used the device before.
                streams.push(thread::scope(|threads| threads.spawn(look).join().expect("the thread should not panic")));
                engine.stop(None).expect("the engine should stop");
                engine.start().expect("the engine should start");
            }
            assert!(kind == EngineKind::Naive || streams.iter().all(|stream| *stream == streams[0]), "{kind}");
            assert_eq!(values(&engine, &var, 1), [0], "{kind}");
        }
    });
}

#[test]
fn two_engines_use_one_gpu_side_by_side() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let kernels = Kernels::load(&gpu);
        thread::scope(|scope| {
            for factor in [3, 5] {
                let (gpu, kernels) = (&gpu, &kernels);
                scope.spawn(move || {
                    let engine = engine(EngineKind::PerDevice, gpu);
                    let device = zeros(&engine, 100);
                    let mut expected = 0u32;
                    for term in 0..200 {
                        let kernels = Arc::clone(kernels);
                        let step =
                            move |stream: &mut GpuStream, values: &mut _| kernels.affine(stream, values, factor, term);
                        engine.op("step").on(GPU).launch_any(device.write(), step).unwrap();
                        expected = expected.wrapping_mul(factor).wrapping_add(term);
                    }
                    assert_eq!(values(&engine, &device, 100), vec![expected; 100]);
                });
            }
        });
    });
}

/// Captures the work that `f` issues on a stream into a graph, without launching the graph. The capture has ended by
/// the time this returns.
fn recorded(
    stream: &Arc<CudaStream>,
    mode: CUstreamCaptureMode,
    f: impl FnOnce() -> Result<(), DriverError>,
) -> Result<CudaGraph, DriverError> {
    stream.begin_capture(mode)?;
    let issued = f();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    issued?;
    Ok(graph?.expect("the graph should have nodes"))
}

/// Captures a graph that applies `factor` and `term` to the first value three times, calls `during` midway through the
/// capture, and launches the graph twice.
fn six_by_graph(
    kernels: &Kernels,
    mode: CUstreamCaptureMode,
    stream: &mut GpuStream,
    values: &mut DeviceVec<u32>,
    (factor, term): (u32, u32),
    during: impl FnOnce(),
) -> Result<(), DriverError> {
    let lane = stream.cuda().expect("a stream of a CUDA device");
    let graph = recorded(&lane, mode, || {
        kernels.late(stream, values, factor, term)?;
        during();
        kernels.affine(stream, values, factor, term)?;
        kernels.affine(stream, values, factor, term)
    })?;
    // A graph destroyed while it runs is freed once it has completed.
    graph.launch()?;
    graph.launch()
}

fn affine(value: u32, factor: u32, term: u32) -> u32 {
    value.wrapping_mul(factor).wrapping_add(term)
}

#[test]
fn graphs_that_operations_record_take_effect_in_push_order() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let kernels = Kernels::load(&gpu);
        for kind in KINDS {
            let engine = engine(kind, &gpu);
            let var = zeros(&engine, 1);
            let mut expected = 0u32;
            for round in 0..30 {
                let (by_graph, by_launch) = (Arc::clone(&kernels), Arc::clone(&kernels));
                let graph = move |stream: &mut GpuStream, values: &mut _| {
                    six_by_graph(&by_graph, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, stream, values, (3, round), || {})
                };
                engine.op("graph").on(GPU).launch_any(var.write(), graph).unwrap();
                let step = move |stream: &mut GpuStream, values: &mut _| by_launch.affine(stream, values, 5, 1);
                let property = if round % 2 == 0 { Property::GpuPrioritized } else { Property::Normal };
                engine.op("step").on(GPU).property(property).launch_any(var.write(), step).unwrap();
                expected = (0..6).fold(expected, |value, _| affine(value, 3, round));
                expected = affine(expected, 5, 1);
            }
            assert_eq!(values(&engine, &var, 1), [expected], "{kind}");
        }
    });
}

/// Makes an engine call the driver in many ways during another thread's capture: it allocates device and pinned memory,
/// opens lanes, copies, launches kernels that the host waits for, and queries busy streams.
fn make_every_kind_of_driver_call(engine: &Engine, kernels: &Arc<Kernels>, len: usize) {
    let var = zeros(engine, len);
    let mut expected = 0;
    for round in 0..10 {
        let kernels = Arc::clone(kernels);
        let late = move |stream: &mut GpuStream, values: &mut _| kernels.late_by(10 * AWHILE, stream, values, 7, round);
        engine.op("late").on(GPU).property(Property::GpuPrioritized).launch_any(var.write(), late).unwrap();
        expected = affine(expected, 7, round);
        assert_eq!(values(engine, &var, len)[0], expected, "round {round}");
    }
}

/// The test runs in a child process, since a capture in the global mode forbids driver calls that other tests would
/// make in the same process. The capture lasts until the other lanes have completed their work.
#[test]
fn a_graph_recorded_in_the_global_mode_on_a_lane_neither_disturbs_the_other_lanes_nor_is_disturbed() {
    if has_gpu_for_a_child() {
        child_succeeds(
            "in_a_child_a_graph_recorded_in_the_global_mode_on_a_lane_neither_disturbs_the_other_lanes_nor_is_disturbed",
        );
    }
}

#[test]
#[ignore = "captures in the global mode; run by another test in a separate process"]
fn in_a_child_a_graph_recorded_in_the_global_mode_on_a_lane_neither_disturbs_the_other_lanes_nor_is_disturbed() {
    if !is_child() {
        return;
    }
    watched(|| {
        let gpu = gpu().expect("the parent process should have found a GPU");
        let kernels = Kernels::load(&gpu);
        // In the other kinds of engine, all kernels and copies share one lane.
        let engine = engine(EngineKind::PerDevice, &gpu);
        let var = zeros(&engine, 1);
        let (begun, has_begun) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        let by_graph = Arc::clone(&kernels);
        let graph = move |stream: &mut GpuStream, values: &mut _| {
            six_by_graph(&by_graph, CU_STREAM_CAPTURE_MODE_GLOBAL, stream, values, (3, 1), || {
                begun.send(()).expect("the test thread should wait");
                // An error means that the other thread has failed, which also ends the capture.
                let _ = is_done.recv();
            })
        };
        engine.op("graph").on(GPU).launch_any(var.write(), graph).unwrap();
        has_begun.recv().expect("the recording should begin");
        let done = done;
        make_every_kind_of_driver_call(&engine, &kernels, 70_000);
        drop(done);
        let expected = (0..6).fold(0, |value, _| affine(value, 3, 1));
        assert_eq!(values(&engine, &var, 1), [expected]);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_program_that_records_in_the_global_mode_and_an_engine_do_not_disturb_each_other() {
    if has_gpu_for_a_child() {
        child_succeeds("in_a_child_a_program_that_records_in_the_global_mode_and_an_engine_do_not_disturb_each_other");
    }
}

#[test]
#[ignore = "captures in the global mode; run by another test in a separate process"]
fn in_a_child_a_program_that_records_in_the_global_mode_and_an_engine_do_not_disturb_each_other() {
    if !is_child() {
        return;
    }
    watched(|| {
        let gpu = gpu().expect("the parent process should have found a GPU");
        let kernels = Kernels::load(&gpu);
        for (kind, len) in KINDS.into_iter().zip([300_000, 600_000, 1_200_000]) {
            let (begun, has_begun) = mpsc::channel();
            let (done, is_done) = mpsc::channel::<()>();
            thread::scope(|scope| {
                let (gpu, kernels) = (&gpu, &kernels);
                scope.spawn(move || {
                    let stream = gpu.context().new_stream().expect("a stream");
                    let mut value = stream.clone_htod(&[1u32]).expect("memory");
                    stream.synchronize().expect("the value should have been copied");
                    let graph = recorded(&stream, CU_STREAM_CAPTURE_MODE_GLOBAL, || {
                        begun.send(()).expect("the test thread should wait");
                        // An error means that the other thread has failed, which also ends the capture.
                        let _ = is_done.recv();
                        let (count, factor, term) = (1u32, 3u32, 1u32);
                        let mut arguments = stream.launch_builder(&kernels.affine);
                        arguments.arg(&mut value).arg(&count).arg(&factor).arg(&term);
                        // SAFETY: the arguments match the kernel's parameters. The kernel writes this one value, which
                        // no other code uses.
                        unsafe { arguments.launch(one_thread()) }.map(drop)
                    });
                    graph.expect("the recording should not have been disturbed").launch().expect("a launch");
                    assert_eq!(stream.clone_dtoh(&value).expect("a copy"), [4], "{kind}");
                });
                has_begun.recv().expect("the recording should begin");
                let done = done;
                // This engine's streams are created and destroyed during the other thread's capture.
                let engine = engine(kind, gpu);
                make_every_kind_of_driver_call(&engine, kernels, len);
                drop(engine);
                drop(done);
            });
        }
    });
}

#[test]
fn an_operation_whose_recording_is_refused_fails_alone() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let kernels = Kernels::load(&gpu);
        for kind in KINDS {
            let engine = engine(kind, &gpu);
            let var = zeros(&engine, 1);
            let refused = engine.device_var::<u32>(GPU, 1).unwrap();
            let waits_in_between = |stream: &mut GpuStream, _: &mut DeviceVec<u32>| {
                let lane = stream.cuda().expect("a stream of a CUDA device");
                recorded(&lane, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, || lane.synchronize()).map(drop)
            };
            let wait = engine.op("refused").on(GPU).submit_launch_any(refused.write(), waits_in_between).unwrap();
            let error = failure(wait.wait());
            let Cause::Device(cause) = error.cause() else { panic!("{kind}: {error:?}") };
            assert!(!cause.is_lost(), "{kind}: {error:?}");
            let step = Arc::clone(&kernels);
            let step = move |stream: &mut GpuStream, values: &mut _| step.affine(stream, values, 5, 1);
            engine.op("step").on(GPU).launch_any(var.write(), step).unwrap();
            assert_eq!(values(&engine, &var, 1), [1], "{kind}");
        }
    });
}

/// A stream's queue in the driver holds about a thousand commands; a launch blocks while the queue is full.
#[test]
fn more_kernels_than_a_queue_holds_take_effect_in_order_and_no_push_blocks() {
    const EACH: u32 = 8;
    const OPS: u32 = 400;
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let kernels = Kernels::load(&gpu);
        for kind in THREADED {
            let engine = engine(kind, &gpu);
            let var = zeros(&engine, 1);
            let slow = Arc::clone(&kernels);
            let slow = move |stream: &mut GpuStream, values: &mut _| {
                slow.late_by(Duration::from_millis(300), stream, values, 1, 1)
            };
            let slow = engine.op("slow").on(GPU).submit_launch_any(var.write(), slow).unwrap();
            let mut expected = 1;
            for round in 0..OPS {
                let kernels = Arc::clone(&kernels);
                let steps = move |stream: &mut GpuStream, values: &mut _| {
                    (0..EACH).try_for_each(|_| kernels.affine(stream, values, 3, round))
                };
                engine.op("steps").on(GPU).launch_any(var.write(), steps).unwrap();
                expected = (0..EACH).fold(expected, |value, _| affine(value, 3, round));
            }
            assert!(!slow.is_done(), "{kind}: a push waited for the device");
            slow.wait().unwrap();
            assert_eq!(values(&engine, &var, 1), [expected], "{kind}");
        }
    });
}

/// Kernels run on the two GPUs in turn, with copies between them.
#[test]
fn values_are_copied_from_one_gpu_to_another_and_back() {
    const TURNS: u32 = 30;
    watched(|| {
        let Some(first) = gpu() else { return };
        let Ok(second) = CudaGpu::open(1) else {
            println!("skipped: there is only one GPU");
            return;
        };
        let kernels = [Kernels::load(&first), Kernels::load(&second)];
        for kind in KINDS {
            let engine = Engine::builder().kind(kind).workers(2).pin(false);
            let engine = engine.gpu(first.clone()).gpu(second.clone()).build().expect("an engine");
            let places = [Device::Gpu(0), Device::Gpu(1)];
            let host = engine.pinned_var::<u32>(GPU, 1).unwrap();
            let vars = places.map(|place| engine.device_var::<u32>(place, 1).unwrap());
            engine.op("in").on(GPU).copy_to_device(&host, &vars[0]).unwrap();
            let mut expected = 0;
            for turn in 0..TURNS {
                for (here, there) in [(0, 1), (1, 0)] {
                    let kernels = Arc::clone(&kernels[here]);
                    let late = move |stream: &mut GpuStream, values: &mut _| kernels.late(stream, values, 3, turn);
                    engine.op("late").on(places[here]).launch_any(vars[here].write(), late).unwrap();
                    expected = affine(expected, 3, turn);
                    // Either of the two GPUs may make the copy.
                    let copies = places[if turn % 2 == 0 { here } else { there }];
                    engine.op("across").on(copies).copy_peer(&vars[here], &vars[there]).unwrap();
                }
            }
            assert_eq!(values(&engine, &vars[0], 1), [expected], "{kind}");
        }
    });
}

#[test]
fn a_kernel_that_writes_to_an_invalid_address_fails_the_operations_on_its_gpu_and_no_others() {
    if !has_gpu_for_a_child() {
        return;
    }
    for kind in ["naive", "pooled", "perdevice"] {
        // The kernel runs in a child process, since its fault makes the GPU unusable for the process.
        let (success, text) = child("in_a_child_a_kernel_writes_to_an_invalid_address", &[("RADDLE_ENGINE", kind)]);
        assert!(success, "{kind}: {text}");
    }
}

#[test]
#[ignore = "makes the GPU unusable for its process; run by another test in a separate process"]
fn in_a_child_a_kernel_writes_to_an_invalid_address() {
    if !is_child() {
        return;
    }
    watched(|| {
        let gpu = gpu().expect("the parent process should have found a GPU");
        let kernels = Kernels::load(&gpu);
        let engine = Engine::builder().workers(2).pin(false).gpu(gpu).build().unwrap();
        let vars: Vec<_> = (0..8).map(|_| engine.device_var::<u32>(GPU, 16).unwrap()).collect();
        let untouched = [(); 2].map(|()| engine.device_var::<u32>(GPU, 16).unwrap());
        let cpu = engine.var(0);
        let fatal = Arc::clone(&kernels);
        let poison = move |stream: &mut GpuStream, _: &mut DeviceVec<u32>| fatal.poison(stream);
        engine.op("poison").on(GPU).launch_any(vars[0].write(), poison).unwrap();
        for var in &vars {
            let kernels = Arc::clone(&kernels);
            let step = move |stream: &mut GpuStream, values: &mut _| kernels.affine(stream, values, 3, 1);
            engine.op("step").on(GPU).launch_any(var.write(), step).unwrap();
        }
        engine.op("cpu").push(cpu.write(), |cpu| *cpu += 1).unwrap();
        thread::scope(|scope| {
            for var in &vars {
                let engine = &engine;
                scope.spawn(move || {
                    // An operation on each variable was pushed after the faulting kernel, so each variable has failed.
                    let error = failure(engine.wait_for_var(var));
                    let Cause::Device(cause) = error.cause() else {
                        // The driver refused the launch.
                        assert!(matches!(error.cause(), Cause::Error(_)), "{error:?}");
                        return;
                    };
                    assert!(cause.is_lost(), "{error:?}");
                });
            }
        });
        assert_eq!(engine.get(&cpu).unwrap(), 1);
        // Later operations also fail, instead of hanging.
        for var in &untouched {
            let again = Arc::clone(&kernels);
            let step = move |stream: &mut GpuStream, values: &mut _| again.affine(stream, values, 3, 1);
            engine.op("again").on(GPU).launch_any(var.write(), step).unwrap();
        }
        failure(engine.wait_for_var(&untouched[0]));
        // No wait has yet returned the other variable's failure.
        failure(engine.wait_for_all());
    });
}
