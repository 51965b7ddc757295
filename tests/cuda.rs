//! Operations on a real GPU: what `tests/devices` checks on the simulated one, as far as hardware lets itself be checked.
//!
//! Without a GPU most of these are skipped, and say so; with `RADDLE_REQUIRE_GPU` set, they fail instead. The library that
//! `stand_in/cuda.c` becomes takes a GPU's place.

#![cfg(feature = "cuda")]

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
    Cause, CudaGpu, Device, DeviceVec, Engine, EngineKind, GpuStream, ImportedStream, Property, Var,
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
};

const GPU: Device = Device::Gpu(0);

/// Threads of a block. Picked.
const BLOCK: u32 = 256;

/// How long the kernels take that are there to be waited for.
const AWHILE: Duration = Duration::from_micros(200);

/// The first GPU, or nothing if there is none.
fn gpu() -> Option<CudaGpu> {
    match CudaGpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) if env::var_os("RADDLE_REQUIRE_GPU").is_none() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("RADDLE_REQUIRE_GPU is set, and there is none: {error}"),
    }
}

/// Whether there is a GPU for another process beside this one.
fn has_gpu_for_a_child() -> bool {
    let Some(gpu) = gpu() else { return false };
    let mode = gpu.context().attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE).expect("it is known");
    let shared = mode == CUcomputemode::CU_COMPUTEMODE_DEFAULT as i32;
    if !shared {
        println!("skipped: the GPU is for one process at a time; `nvidia-smi -c 0` lets others in");
    }
    shared
}

fn engine(kind: EngineKind, gpu: &CudaGpu) -> Engine {
    Engine::builder().kind(kind).workers(2).pin(false).gpu(gpu.clone()).build().expect("the engine is built")
}

/// The kernels of `cuda.ptx`.
struct Kernels {
    affine: CudaFunction,
    late: CudaFunction,
    poison: CudaFunction,
}

impl Kernels {
    fn load(gpu: &CudaGpu) -> Arc<Self> {
        let module = gpu.context().load_module(Ptx::from_src(include_str!("cuda.ptx"))).expect("the kernels compile");
        let kernel = |name| module.load_function(name).expect("it is one of the kernels");
        Arc::new(Self { affine: kernel("affine"), late: kernel("late"), poison: kernel("poison") })
    }

    /// Makes each value `factor` times what it was, plus `term`.
    fn affine(
        &self,
        stream: &mut GpuStream,
        values: &mut DeviceVec<u32>,
        factor: u32,
        term: u32,
    ) -> Result<(), DriverError> {
        let stream = stream.cuda().expect("it is a CUDA device");
        let (at, count) = (values.cuda_ptr().expect("it is there"), values.len() as u32);
        let mut arguments = stream.launch_builder(&self.affine);
        arguments.arg(&at).arg(&count).arg(&factor).arg(&term);
        let (grid_dim, block_dim) = ((count.div_ceil(BLOCK), 1, 1), (BLOCK, 1, 1));
        // SAFETY: these are the kernel's arguments. It changes `count` values, which the vector has and the operation that
        // launches it holds exclusively until the device has done it.
        unsafe { arguments.launch(LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 }) }.map(drop)
    }

    /// As [`affine`](Self::affine) for the first value, after a while.
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
        let stream = stream.cuda().expect("it is a CUDA device");
        let (at, nanos) = (values.cuda_ptr().expect("it is there"), time.as_nanos() as u64);
        assert!(!values.is_empty(), "it has a first value");
        let mut arguments = stream.launch_builder(&self.late);
        arguments.arg(&at).arg(&nanos).arg(&factor).arg(&term);
        // SAFETY: as for `affine`, for one value.
        unsafe { arguments.launch(one()) }.map(drop)
    }

    /// Loses the device.
    fn poison(&self, stream: &mut GpuStream) -> Result<(), DriverError> {
        let stream = stream.cuda().expect("it is a CUDA device");
        // SAFETY: it has no arguments. It writes where the device has no memory, which the device notices; nothing is
        // changed.
        unsafe { stream.launch_builder(&self.poison).launch(one()) }.map(drop)
    }
}

/// One thread.
fn one() -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 }
}

/// As many zeros on the device, which an operation of its own brings there.
fn zeros(engine: &Engine, len: usize) -> Var<DeviceVec<u32>> {
    let host = engine.pinned_var::<u32>(GPU, len).expect("pinned memory");
    let device = engine.device_var::<u32>(GPU, len).expect("device memory");
    engine.op("in").on(GPU).copy_to_device(&host, &device).expect("pushed");
    device
}

/// Has the device's values brought to the host, by an operation of its own.
fn values(engine: &Engine, device: &Var<DeviceVec<u32>>, len: usize) -> Vec<u32> {
    let host = engine.pinned_var::<u32>(GPU, len).expect("pinned memory");
    engine.op("out").on(GPU).copy_from_device(device, &host).expect("pushed");
    engine.op("values").submit(host.read(), |host| host.to_vec()).expect("pushed").wait().expect("it is there")
}

#[test]
fn opening_gives_a_gpu_or_an_error_that_says_what_to_do() {
    match (CudaGpu::open(0), CudaGpu::count()) {
        (Ok(_), count) => assert!(count.expect("there is a driver") > 0),
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
fn values_go_through_a_gpu_and_come_back_on_every_engine() {
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
fn copies_of_every_size_bring_back_what_was_there() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let engine = engine(EngineKind::PerDevice, &gpu);
        for len in [0, 1, 3, 255, 256, 257, 4097, 1 << 20] {
            let (from, to) = (engine.pinned_var::<u8>(GPU, len).unwrap(), engine.pinned_var::<u8>(GPU, len).unwrap());
            let (there, back) = (engine.device_var(GPU, len).unwrap(), engine.device_var(GPU, len).unwrap());
            let fill = |from: &mut raddle::PinnedVec<u8>| {
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

/// Random operations on the lanes for ordinary and for urgent kernels and on those for copies, some of which take a while,
/// against the same in the order of the pushes.
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
                    // One value on the way: the host waits for the device, and not the device for the host.
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
fn a_result_is_there_when_its_handle_says_so_and_not_when_its_kernel_was_launched() {
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
            // Half of it: how finely the device's clock goes is not told.
            assert!(begin.elapsed() >= AWHILE / 2, "round {round}: {:?}", begin.elapsed());
        }
        assert_eq!(values(&engine, &device, 1), [50]);
    });
}

#[test]
fn memory_that_is_not_there_is_refused_and_the_gpu_goes_on() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let engine = engine(EngineKind::PerDevice, &gpu);
        let error = engine.device_var::<u8>(GPU, 1 << 46).expect_err("no GPU has 64 TiB");
        assert!(!error.is_lost(), "{error}");
        let host = engine.pinned_var::<u32>(GPU, 8).unwrap();
        let device = engine.device_var::<u32>(GPU, 8).unwrap();
        engine.op("fill").push(host.write(), |host| host.fill(7)).unwrap();
        engine.op("in").on(GPU).copy_to_device(&host, &device).unwrap();
        assert_eq!(values(&engine, &device, 8), [7; 8]);
    });
}

/// Kernels that take a while on a stream of the program's own, between such as do not on the lanes' streams.
#[test]
fn work_on_an_imported_stream_is_in_order_with_all_operations() {
    watched(|| {
        let Some(gpu) = gpu() else { return };
        let kernels = Kernels::load(&gpu);
        for kind in KINDS {
            let engine = engine(kind, &gpu);
            let stream = gpu.context().new_stream().expect("a stream");
            let own = engine.stream_var(ImportedStream::cuda(&gpu, stream).expect("it is of the same context"));
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

/// Records what `f` puts on a stream, and launches nothing. The recording has ended when this returns.
fn recorded(
    stream: &Arc<CudaStream>,
    mode: CUstreamCaptureMode,
    f: impl FnOnce() -> Result<(), DriverError>,
) -> Result<CudaGraph, DriverError> {
    stream.begin_capture(mode)?;
    let issued = f();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    issued?;
    Ok(graph?.expect("there are kernels in it"))
}

/// Has `factor` and `term` applied to the values three times by a graph, which is recorded now and launched twice. `during`
/// is called in the middle of the recording.
fn six_by_graph(
    kernels: &Kernels,
    mode: CUstreamCaptureMode,
    stream: &mut GpuStream,
    values: &mut DeviceVec<u32>,
    (factor, term): (u32, u32),
    during: impl FnOnce(),
) -> Result<(), DriverError> {
    let lane = stream.cuda().expect("it is a CUDA device");
    let graph = recorded(&lane, mode, || {
        kernels.late(stream, values, factor, term)?;
        during();
        kernels.affine(stream, values, factor, term)?;
        kernels.affine(stream, values, factor, term)
    })?;
    // A graph that is destroyed while it runs is freed when it has ended.
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

/// What an engine asks of the driver while somebody records: new memory of both sorts, new lanes, copies, kernels that the
/// host waits for, and looks at streams that take a while.
fn work_of_every_sort(engine: &Engine, kernels: &Arc<Kernels>, len: usize) {
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

/// The recording forbids the threads of the whole process what could disturb it, which other tests do. It lasts until the
/// other lanes have done work.
#[test]
fn a_graph_recorded_in_the_global_mode_on_a_lane_neither_disturbs_the_other_lanes_nor_is_disturbed() {
    if has_gpu_for_a_child() {
        child_succeeds(
            "inside_a_graph_recorded_in_the_global_mode_on_a_lane_neither_disturbs_the_other_lanes_nor_is_disturbed",
        );
    }
}

#[test]
#[ignore = "records for the whole process; run by the test above"]
fn inside_a_graph_recorded_in_the_global_mode_on_a_lane_neither_disturbs_the_other_lanes_nor_is_disturbed() {
    if !is_child() {
        return;
    }
    watched(|| {
        let gpu = gpu().expect("the parent has seen it");
        let kernels = Kernels::load(&gpu);
        // Of the others, all kernels and copies are on one lane.
        let engine = engine(EngineKind::PerDevice, &gpu);
        let var = zeros(&engine, 1);
        let (begun, has_begun) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        let by_graph = Arc::clone(&kernels);
        let graph = move |stream: &mut GpuStream, values: &mut _| {
            six_by_graph(&by_graph, CU_STREAM_CAPTURE_MODE_GLOBAL, stream, values, (3, 1), || {
                begun.send(()).expect("somebody waits");
                // Also if the other thread has failed.
                let _ = is_done.recv();
            })
        };
        engine.op("graph").on(GPU).launch_any(var.write(), graph).unwrap();
        has_begun.recv().expect("it begins");
        let done = done;
        work_of_every_sort(&engine, &kernels, 70_000);
        drop(done);
        let expected = (0..6).fold(0, |value, _| affine(value, 3, 1));
        assert_eq!(values(&engine, &var, 1), [expected]);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_program_that_records_in_the_global_mode_and_an_engine_do_not_disturb_each_other() {
    if has_gpu_for_a_child() {
        child_succeeds("inside_a_program_that_records_in_the_global_mode_and_an_engine_do_not_disturb_each_other");
    }
}

#[test]
#[ignore = "records for the whole process; run by the test above"]
fn inside_a_program_that_records_in_the_global_mode_and_an_engine_do_not_disturb_each_other() {
    if !is_child() {
        return;
    }
    watched(|| {
        let gpu = gpu().expect("the parent has seen it");
        let kernels = Kernels::load(&gpu);
        for (kind, len) in KINDS.into_iter().zip([300_000, 600_000, 1_200_000]) {
            let (begun, has_begun) = mpsc::channel();
            let (done, is_done) = mpsc::channel::<()>();
            thread::scope(|scope| {
                let (gpu, kernels) = (&gpu, &kernels);
                scope.spawn(move || {
                    let stream = gpu.context().new_stream().expect("a stream");
                    let mut value = stream.clone_htod(&[1u32]).expect("memory");
                    stream.synchronize().expect("it is there");
                    let graph = recorded(&stream, CU_STREAM_CAPTURE_MODE_GLOBAL, || {
                        begun.send(()).expect("somebody waits");
                        // Also if the other thread has failed.
                        let _ = is_done.recv();
                        let (count, factor, term) = (1u32, 3u32, 1u32);
                        let mut arguments = stream.launch_builder(&kernels.affine);
                        arguments.arg(&mut value).arg(&count).arg(&factor).arg(&term);
                        // SAFETY: these are the kernel's arguments. It changes this value, which nobody else uses.
                        unsafe { arguments.launch(one()) }.map(drop)
                    });
                    graph.expect("nobody has broken it").launch().expect("launched");
                    assert_eq!(stream.clone_dtoh(&value).expect("copied"), [4], "{kind}");
                });
                has_begun.recv().expect("it begins");
                let done = done;
                // Its streams are made and given up while the other thread records.
                let engine = engine(kind, gpu);
                work_of_every_sort(&engine, kernels, len);
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
                let lane = stream.cuda().expect("it is a CUDA device");
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

/// The driver's queue for a stream holds about a thousand commands; a launch that finds it full waits.
#[test]
fn more_kernels_than_a_queue_holds_take_effect_in_order_and_no_push_waits_for_them() {
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
            assert!(!slow.is_done(), "{kind}: pushes have waited for the device");
            slow.wait().unwrap();
            assert_eq!(values(&engine, &var, 1), [expected], "{kind}");
        }
    });
}

/// Changed on one GPU and on the other by turns, with copies between them.
#[test]
fn values_are_copied_from_one_gpu_to_another_and_back() {
    const TURNS: u32 = 30;
    watched(|| {
        let Some(first) = gpu() else { return };
        let Ok(second) = CudaGpu::open(1) else {
            println!("skipped: there is one GPU");
            return;
        };
        let kernels = [Kernels::load(&first), Kernels::load(&second)];
        for kind in KINDS {
            let engine = Engine::builder().kind(kind).workers(2).pin(false);
            let engine = engine.gpu(first.clone()).gpu(second.clone()).build().expect("the engine is built");
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
                    // Whichever of the two does it.
                    let copies = places[if turn % 2 == 0 { here } else { there }];
                    engine.op("across").on(copies).copy_peer(&vars[here], &vars[there]).unwrap();
                }
            }
            assert_eq!(values(&engine, &vars[0], 1), [expected], "{kind}");
        }
    });
}

#[test]
fn a_kernel_that_touches_memory_not_its_own_fails_all_that_wait_for_the_gpu_and_nothing_else() {
    if !has_gpu_for_a_child() {
        return;
    }
    for kind in ["naive", "pooled", "perdevice"] {
        // The context of a process is lost with its GPU.
        let (success, text) = child("inside_a_kernel_touches_memory_not_its_own", &[("RADDLE_ENGINE", kind)]);
        assert!(success, "{kind}: {text}");
    }
}

#[test]
#[ignore = "loses the GPU for its process; run by the test above"]
fn inside_a_kernel_touches_memory_not_its_own() {
    if !is_child() {
        return;
    }
    watched(|| {
        let gpu = gpu().expect("the parent has seen it");
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
                    // Whichever operation of the device is the first to be told, this variable is behind it.
                    let error = failure(engine.wait_for_var(var));
                    let Cause::Device(cause) = error.cause() else {
                        // The driver had refused the launch.
                        assert!(matches!(error.cause(), Cause::Error(_)), "{error:?}");
                        return;
                    };
                    assert!(cause.is_lost(), "{error:?}");
                });
            }
        });
        assert_eq!(engine.get(&cpu).unwrap(), 1);
        // What comes later fails as well, and hangs as little.
        for var in &untouched {
            let again = Arc::clone(&kernels);
            let step = move |stream: &mut GpuStream, values: &mut _| again.affine(stream, values, 3, 1);
            engine.op("again").on(GPU).launch_any(var.write(), step).unwrap();
        }
        failure(engine.wait_for_var(&untouched[0]));
        // Nobody has been told of the other one.
        failure(engine.wait_for_all());
    });
}
