//! In what state is a process after one of its kernels has used an invalid address?

use std::{
    mem, ptr,
    sync::{Barrier, OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use raddle::{
    IdlePolicy, Var,
    gpu::{
        CudaGpu, DeviceVec, GpuStream,
        cudarc::driver::sys::{self, CUresult},
    },
};
use raddle_benches::report::{Table, number};
use raddle_benches::shapes::*;

use super::{
    Experiment, GPU, Outcome,
    child::{self, End, figure, leaving},
    hand::{self, lane, ns},
    whole,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "poison",
    about: "a kernel with an illegal address: how soon the waiters receive the error, with both kinds of marks; what \
            the driver's functions return afterwards; whether the process ends, and can open the GPU again",
    run,
    part,
};

/// By default, a kernel is loaded at its first launch, so the measurement would include the loading.
const EAGER: (&str, &str) = ("CUDA_MODULE_LOADING", "EAGER");

/// The number of threads that wait for operations behind the faulting kernel.
const WAITERS: usize = 16;

fn run() -> Outcome {
    let mut table =
        Table::new("poison", "", "", &["marks, then", "first error, µs", "last error, µs", "exit, ms", "end"]);
    let (mut slowest, mut hangs, mut reopened) = (0.0f64, vec![], vec![]);
    for (mode, then) in ["counter", "events"].iter().flat_map(|mode| ["drop", "leave"].map(|then| (mode, then))) {
        let part = child::run("poison", &["engine", then], &[("RADDLE_CUDA_MARKS", mode), EAGER], 10)?;
        if part.has(hand::REFUSED) {
            continue;
        }
        let exit = if part.has_left() && part.end != End::Never { part.exit.as_secs_f64() * 1e3 } else { f64::NAN };
        let [first, last] = ["first", "last"].map(|figure| part.get(figure) / 1e3);
        table.row(format!("{mode}, {then}"), [number(first), number(last), number(exit), part.how().into()]);
        part.complete()?;
        slowest = slowest.max(last);
        if part.end != End::Well {
            hangs.push(format!("{mode}, {then}: {}", part.how()));
        }
        if then == "drop" {
            let code = if part.has("reopen") { part.get("reopen") } else { f64::NAN };
            reopened.push((mode, code, part.has("works")));
        }
    }
    println!("{}", table.markdown());
    let calls = child::run("poison", &["calls"], &[EAGER], 10)?;
    let noticed = calls.get("noticed") / 1e3;
    calls.complete()?;
    let mut table = Table::new("calls", "", "", &["after the loss", "code"]);
    let mut sound = vec![];
    for name in CALLS.iter().filter(|name| calls.has(name)) {
        table.row(*name, [whole(calls.get(name))]);
        if calls.get(name) == 0.0 {
            sound.push(*name);
        }
    }
    println!("{}", table.markdown());
    let counter = match (calls.get("behind"), calls.get("counter")) {
        (0.0, _) => "could not be tried",
        (_, 0.0) => "was never written",
        _ => "WAS WRITTEN nevertheless",
    };
    let exits = if hangs.is_empty() { "the process ended each time".to_owned() } else { hangs.join("; ") };
    let calls_end = if calls.end == End::Well { String::new() } else { format!("; by hand {}", calls.how()) };
    let reopening = reopened.iter().map(|&(mode, code, works)| match (code, works) {
        (0.0, true) => format!("{mode}: yes, and kernels run again"),
        (0.0, false) => format!("{mode}: it opens, but kernels do not run"),
        (code, _) if code.is_nan() => format!("{mode}: not reached"),
        (code, _) => format!("{mode}: no, error {code}"),
    });
    let reopening: Vec<_> = reopening.collect();
    let soon = if slowest <= 5_000.0 { "within" } else { "LATER than" };
    Ok(format!(
        "all waiters had the error after {slowest:.0} µs, {soon} the engine's limit of 5 ms; the driver \
         itself noticed after {noticed:.0} µs; a counter behind the kernel {counter}; these still returned 0: {}; at \
         the end: {exits}{calls_end}; after everything is dropped, can the GPU be opened again? {}",
        if sound.is_empty() { "none".to_owned() } else { sound.join(", ") },
        reopening.join("; "),
    ))
}

fn part(arguments: &[&str]) {
    match arguments {
        ["engine", then] => engine(*then == "drop"),
        _ => calls(),
    }
}

/// The time at which the faulting kernel was launched.
static LAUNCHED: OnceLock<Instant> = OnceLock::new();

/// Loses an engine's device while threads wait, then drops everything and reopens the device, or exits immediately.
fn engine(drop_all: bool) {
    let Some(gpu) = hand::open_with_marks() else { return };
    let kernels = hand::kernels();
    let engine = hand::engine(&gpu, IdlePolicy::default());
    let vars: Vec<_> = (0..WAITERS).map(|_| engine.device_var::<u32>(GPU, 16).expect("memory")).collect();
    let (go, gone) = mpsc::channel::<()>();
    let poison = move |stream: &mut GpuStream, _: &mut DeviceVec<u32>| {
        let _ = gone.recv();
        LAUNCHED.set(Instant::now()).expect("a single launch");
        kernels.poison(lane(stream)).result()
    };
    engine.op("poison").on(GPU).launch_any(vars[0].write(), poison).expect("a push");
    for var in &vars {
        let step = move |stream: &mut GpuStream, words: &mut _| kernels.fill_vec(stream, words, 1);
        engine.op("step").on(GPU).launch_any(var.write(), step).expect("a push");
    }
    let barrier = Barrier::new(WAITERS + 1);
    let times: Vec<Instant> = thread::scope(|scope| {
        let wait = |var: &Var<DeviceVec<u32>>| {
            let (engine, barrier, var) = (&engine, &barrier, var.clone());
            scope.spawn(move || {
                barrier.wait();
                engine.wait_for_var(&var).expect_err("the device should be lost");
                Instant::now()
            })
        };
        let waiters: Vec<_> = vars.iter().map(wait).collect();
        barrier.wait();
        // By now most of the threads are asleep.
        thread::sleep(Duration::from_millis(20));
        drop(go);
        waiters.into_iter().map(|waiter| waiter.join().expect("the waiter should not panic")).collect()
    });
    let launched = *LAUNCHED.wait();
    let since = |time: Option<&Instant>| ns(time.expect("there should be times").duration_since(launched));
    figure("first", since(times.iter().min()));
    figure("last", since(times.iter().max()));
    if !drop_all {
        mem::forget((engine, vars, gpu));
        return leaving();
    }
    drop((vars, engine));
    // SAFETY: no kernel of the module runs, and no code uses the kernels from here on.
    let unloaded = unsafe { sys::cuModuleUnload(kernels.module) };
    println!("cuModuleUnload: {unloaded:?}");
    drop(gpu);
    match CudaGpu::open(0) {
        Ok(gpu) => {
            figure("reopen", 0.0);
            if let Err(reason) = works(&gpu) {
                println!("{reason}");
            } else {
                figure("works", 1.0);
            }
        }
        Err(error) => {
            println!("{error}");
            figure("reopen", f64::from(error.code()));
        }
    }
    leaving();
}

/// Runs a kernel on the GPU.
fn works(gpu: &CudaGpu) -> Result<(), String> {
    let kernels = hand::kernels();
    let engine = hand::engine(gpu, IdlePolicy::default());
    let var = engine.device_var::<u32>(GPU, 16).map_err(|error| error.to_string())?;
    let step = move |stream: &mut GpuStream, words: &mut _| kernels.fill_vec(stream, words, 1);
    engine.op("step").on(GPU).launch_any(var.write(), step).map_err(|error| error.to_string())?;
    engine.wait_for_var(&var).map_err(|error| error.to_string())
}

/// The calls after the loss, in order.
const CALLS: [&str; 24] = [
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuEventQuery, recorded before",
    "cuEventQuery, never recorded",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuStreamWriteValue64",
    "cuLaunchKernel",
    "cuMemcpyDtoHAsync",
    "cuMemGetInfo",
    "cuMemAlloc",
    "cuMemHostAlloc",
    "cuMemFree",
    "cuMemFreeHost",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuEventCreate",
    "cuEventDestroy",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuCtxSynchronize",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGetCount",
];

/// Loses the device without an engine, and prints the driver functions' results.
fn calls() {
    let gpu = hand::open();
    let kernels = hand::kernels();
    let (stream, other, event, fresh) = (hand::stream(), hand::stream(), hand::event(), hand::event());
    let (memory, to_free, words, to_free_host) =
        (hand::memory(4096), hand::memory(4096), hand::pinned(4096), hand::pinned(4096));
    hand::must("launch", kernels.nothing(stream));
    hand::must("synchronize", stream.synchronize());
    // A kernel that delays the fault until all work is on the stream.
    let before = Duration::from_millis(5);
    let start = Instant::now();
    hand::must("a kernel before", kernels.spin(stream, 1, before));
    hand::must("poison", kernels.poison(stream));
    let behind = [stream.write(&words, 0, 1), event.record(stream)];
    println!("a write and an event behind it: {behind:?}");
    figure("behind", f64::from(u8::from(behind[0] == CUresult::CUDA_SUCCESS)));
    while stream.query() == CUresult::CUDA_ERROR_NOT_READY {
        std::hint::spin_loop();
    }
    figure("noticed", ns(start.elapsed().saturating_sub(before)));
    thread::sleep(Duration::from_millis(100));
    let is_written = words.word(0).load(std::sync::atomic::Ordering::Acquire) != 0;
    figure("counter", f64::from(u8::from(is_written)));

    let (mut at, mut host, mut count, mut free) = (0, ptr::null_mut(), 0, (0, 0));
    let (mut new_stream, mut new_event) = (ptr::null_mut(), ptr::null_mut());
    let (mut module, mut current, image) = (ptr::null_mut(), ptr::null_mut(), hand::source());
    for name in CALLS {
        let result = match name {
            "cuStreamQuery" => stream.query(),
            "cuStreamSynchronize" => stream.synchronize(),
            "cuEventQuery, recorded before" => event.query(),
            "cuEventQuery, never recorded" => fresh.query(),
            "cuEventRecord" => fresh.record(other),
            // SAFETY: the stream and the event are alive.
            "cuStreamWaitEvent" => unsafe { sys::cuStreamWaitEvent(other.0, event.0, 0) },
            "cuStreamWriteValue64" => other.write(&words, 1, 1),
            "cuLaunchKernel" => kernels.nothing(other),
            // SAFETY: both pieces of memory have this size, and no other code uses them.
            "cuMemcpyDtoHAsync" => unsafe { other.copy_out(memory.0, &words, 4096) },
            // SAFETY: the pointers are valid for the driver's writes.
            "cuMemGetInfo" => unsafe { sys::cuMemGetInfo_v2(&raw mut free.0, &raw mut free.1) },
            // SAFETY: the pointer is valid for the driver's write.
            "cuMemAlloc" => unsafe { sys::cuMemAlloc_v2(&raw mut at, 4096) },
            // SAFETY: the pointer is valid for the driver's write.
            "cuMemHostAlloc" => unsafe { sys::cuMemHostAlloc(&raw mut host, 4096, 0) },
            // SAFETY: no other code uses the memory.
            "cuMemFree" => unsafe { sys::cuMemFree_v2(to_free.0) },
            // SAFETY: no other code uses the memory.
            "cuMemFreeHost" => unsafe { sys::cuMemFreeHost(to_free_host.host.cast()) },
            // SAFETY: the pointer is valid for the driver's write.
            "cuStreamCreate" => unsafe { sys::cuStreamCreate(&raw mut new_stream, 1) },
            // SAFETY: no code uses the handle from here on.
            "cuStreamDestroy" => unsafe { sys::cuStreamDestroy_v2(other.0) },
            // SAFETY: the pointer is valid for the driver's write.
            "cuEventCreate" => unsafe { sys::cuEventCreate(&raw mut new_event, 2) },
            // SAFETY: no code uses the handle from here on.
            "cuEventDestroy" => unsafe { sys::cuEventDestroy_v2(fresh.0) },
            // SAFETY: the image is PTX terminated by a zero.
            "cuModuleLoadData" => unsafe { sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) },
            // SAFETY: no code uses the module's kernels from here on.
            "cuModuleUnload" => unsafe { sys::cuModuleUnload(kernels.module) },
            // SAFETY: any thread may make this call.
            "cuCtxSynchronize" => unsafe { sys::cuCtxSynchronize() },
            // SAFETY: the pointer is valid for the driver's write.
            "cuCtxGetCurrent" => unsafe { sys::cuCtxGetCurrent(&raw mut current) },
            // SAFETY: the context is alive.
            "cuCtxSetCurrent" => unsafe { sys::cuCtxSetCurrent(gpu.context().cu_ctx()) },
            // SAFETY: the pointer is valid for the driver's write.
            "cuDeviceGetCount" => unsafe { sys::cuDeviceGetCount(&raw mut count) },
            _ => unreachable!("every name in the list should have a call"),
        };
        figure(name, f64::from(result as u32));
    }
    leaving();
}
