//! How do recording a graph on one thread and calls from other threads affect each other?

use std::{
    ptr,
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use raddle::{
    Engine, IdlePolicy, WaitError,
    error::{Cause, DeviceError},
    gpu::{
        CudaGpu, GpuStream, PinnedVec,
        cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode as Mode},
    },
};
use raddle_benches::shapes::*;
use raddle_benches::{machine, report::Table};

use super::{
    Experiment, GPU, Outcome,
    child::{self, End, figure, leaving},
    hand::{self, Event, Kernels, Pinned, Stream, lane},
    whole,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "capture",
    about: "while one thread records a graph in the mode GLOBAL and a kernel of 50 ms runs: what calls from \
            another thread return, in the modes GLOBAL and RELAXED, and whether the recording survives; the same \
            with an engine at work",
    run,
    part,
};

/// No call, only the recording.
const NONE: &str = "none";

const CALLS: [&str; 13] = [
    NONE,
    "cuEventQuery",
    "cuStreamQuery",
    "cuEventRecord",
    "cuStreamWriteValue64",
    "cuLaunchKernel",
    "cuEventCreate",
    "cuStreamCreate",
    "cuMemAlloc",
    "cuMemHostAlloc",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuModuleLoadData",
];

/// The results of a call and of the recording.
#[derive(Clone, Copy)]
struct Pair {
    code: f64,
    end: f64,
}

impl Pair {
    /// Returns whether the call was refused because of a recording.
    fn is_refused(self) -> bool {
        (900.0..=908.0).contains(&self.code)
    }

    fn breaks(self) -> bool {
        self.end != 0.0
    }

    /// Describes the harm in words, if there is any.
    fn harm(self) -> Option<String> {
        match (self.is_refused(), self.breaks()) {
            (true, true) => Some(format!("returned {} and broke the recording ({})", self.code, self.end)),
            (true, false) => Some(format!("returned {}", self.code)),
            (false, true) => Some(format!("broke the recording ({})", self.end)),
            (false, false) => None,
        }
    }
}

fn run() -> Outcome {
    let hand = child::run("capture", &["hand"], &[], 20)?;
    let mut table = Table::new(
        "capture",
        "",
        "",
        &["call", "GLOBAL", "the recording ends with", "RELAXED", "the recording ends with"],
    );
    let (mut mended, mut hopeless, mut harmless) = (vec![], vec![], vec![]);
    for call in CALLS {
        let pair = |mode| Pair {
            code: hand.get(&format!("{mode}.{call}.code")),
            end: hand.get(&format!("{mode}.{call}.end")),
        };
        let (global, relaxed) = (pair("global"), pair("relaxed"));
        table.row(call, [global.code, global.end, relaxed.code, relaxed.end].map(whole));
        match (global.harm(), relaxed.harm()) {
            (Some(harm), None) => mended.push(format!("{call} {harm}")),
            (_, Some(harm)) => hopeless.push(format!("{call} {harm} even in RELAXED")),
            (None, None) if call != NONE => harmless.push(call),
            (None, None) => {}
        }
    }
    println!("{}", table.markdown());
    hand.complete()?;
    let mut table = Table::new("engine", "", "", &["the engine's marks", "recordings", "broken", "errors", "lost"]);
    let mut engines = vec![];
    for mode in ["counter", "events"] {
        let part = child::run("capture", &["engine"], &[("RADDLE_CUDA_MARKS", mode)], 15)?;
        if part.has(hand::REFUSED) {
            continue;
        }
        let [recordings, broken, errors, lost] = ["recordings", "broken", "errors", "lost"].map(|name| part.get(name));
        table.row(mode, [recordings, broken, errors, lost].map(whole));
        part.complete()?;
        engines.push(match (broken, errors, lost) {
            (0.0, 0.0, 0.0) if part.end == End::Well => format!("{mode}: no harm during {recordings} recordings"),
            _ => format!(
                "{mode}: HARM: {broken} of {recordings} recordings broken, {errors} errors of the engine, device {}, \
                 {}",
                if lost == 0.0 { "kept" } else { "LOST" },
                part.how()
            ),
        });
    }
    println!("{}", table.markdown());
    let list = |items: &[String]| if items.is_empty() { "nothing".to_owned() } else { items.join("; ") };
    let follows =
        if mended.is_empty() { "the thread's mode makes no difference" } else { "these must be called in RELAXED" };
    Ok(format!(
        "during another thread's GLOBAL recording: {} – {follows}; must not be called at all then: {}; harmless: {}; \
         the engine at work: {}",
        list(&mended),
        list(&hopeless),
        harmless.join(", "),
        engines.join("; "),
    ))
}

fn part(arguments: &[&str]) {
    match arguments {
        ["hand"] => by_hand(),
        _ => engine(),
    }
    leaving();
}

/// Starts a recording in the mode GLOBAL.
fn begin(stream: Stream) {
    // SAFETY: the stream is alive, and no other thread uses it during the call.
    let begun = unsafe { sys::cuStreamBeginCapture_v2(stream.0, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
    hand::must("the start of a recording", begun);
}

/// Ends the recording. Returns the driver's code; unless it is 0, the recording was invalidated.
fn end(stream: Stream) -> u32 {
    let mut graph = ptr::null_mut();
    // SAFETY: this thread has started the recording; the pointer is valid for the driver's write.
    let result = unsafe { sys::cuStreamEndCapture(stream.0, &raw mut graph) };
    if !graph.is_null() {
        // SAFETY: the graph was just created, and no other code has it.
        hand::must("the destruction of the graph", unsafe { sys::cuGraphDestroy(graph) });
    }
    result as u32
}

/// Sets the capture mode of this thread. Returns the previous mode.
fn exchange(mut mode: Mode) -> Mode {
    // SAFETY: the pointer is valid for the driver's read and write.
    hand::must("the mode", unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) });
    mode
}

/// The resources used by the calls.
struct Bed {
    gpu: CudaGpu,
    kernels: Kernels,
    recorded: Stream,
    busy: Stream,
    event: Event,
    other: Event,
    words: Pinned,
}

impl Bed {
    fn call(&self, name: &str) -> CUresult {
        let (mut at, mut place) = (0, ptr::null_mut());
        let (mut stream, mut event, mut module) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        match name {
            NONE => CUresult::CUDA_SUCCESS,
            "cuEventQuery" => self.event.query(),
            "cuStreamQuery" => self.busy.query(),
            "cuEventRecord" => self.other.record(self.busy),
            "cuStreamWriteValue64" => self.busy.write(&self.words, 0, 1),
            "cuLaunchKernel" => self.kernels.nothing(self.busy),
            // SAFETY: the context is current, and the pointer is valid for the driver's write.
            "cuEventCreate" => unsafe { sys::cuEventCreate(&raw mut event, 2) },
            // SAFETY: the context is current, and the pointer is valid for the driver's write.
            "cuStreamCreate" => unsafe { sys::cuStreamCreate(&raw mut stream, 1) },
            // The driver has no cached memory of this size. SAFETY: the context is current, and the pointer is valid
            // for the driver's write.
            "cuMemAlloc" => unsafe { sys::cuMemAlloc_v2(&raw mut at, 16 << 20) },
            // SAFETY: the context is current, and the pointer is valid for the driver's write.
            "cuMemHostAlloc" => unsafe { sys::cuMemHostAlloc(&raw mut place, 1 << 20, 0) },
            "cuStreamSynchronize" => self.busy.synchronize(),
            // SAFETY: any thread may make this call.
            "cuCtxSynchronize" => unsafe { sys::cuCtxSynchronize() },
            "cuModuleLoadData" => {
                let image = hand::source();
                // SAFETY: the image is PTX terminated by a zero.
                unsafe { sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) }
            }
            _ => unreachable!("every name in the list should have a call"),
        }
    }

    /// Makes a call while another thread records and a kernel runs. Returns the codes of the call and of the recording.
    fn case(&self, name: &str, mode: Mode) -> (u32, u32) {
        hand::must("a long kernel", self.kernels.spin(self.busy, 1, Duration::from_millis(50)));
        hand::must("an event", self.event.record(self.busy));
        let (begun, has_begun) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let found = thread::scope(|scope| {
            let recorder = scope.spawn(move || {
                hand::bind(&self.gpu);
                begin(self.recorded);
                hand::must("a recorded launch", self.kernels.nothing(self.recorded));
                begun.send(()).expect("the other thread should wait");
                let _ = gone.recv();
                end(self.recorded)
            });
            has_begun.recv().expect("the recording should begin");
            let before = exchange(mode);
            let code = self.call(name);
            exchange(before);
            drop(go);
            (code as u32, recorder.join().expect("the thread should not panic"))
        });
        hand::must("the end of the kernel", self.busy.synchronize());
        found
    }
}

fn by_hand() {
    let gpu = hand::open();
    let bed = Bed {
        gpu,
        kernels: hand::kernels(),
        recorded: hand::stream(),
        busy: hand::stream(),
        event: hand::event(),
        other: hand::event(),
        words: hand::pinned(4096),
    };
    hand::must("a first launch", bed.kernels.nothing(bed.busy));
    hand::must("the end of the stream", bed.busy.synchronize());
    let modes = [("global", Mode::CU_STREAM_CAPTURE_MODE_GLOBAL), ("relaxed", Mode::CU_STREAM_CAPTURE_MODE_RELAXED)];
    for (mode_name, mode) in modes {
        for call in CALLS {
            let (code, end) = bed.case(call, mode);
            figure(&format!("{mode_name}.{call}.code"), f64::from(code));
            figure(&format!("{mode_name}.{call}.end"), f64::from(end));
        }
    }
}

/// Keeps an engine busy, with allocations, while another thread makes one recording after another.
fn engine() {
    let Some(gpu) = hand::open_with_marks() else { return };
    let kernels = hand::kernels();
    let engine = hand::engine(&gpu, IdlePolicy::default());
    let limit = machine::choose(Duration::from_secs(3), Duration::from_millis(300));
    let is_over = AtomicBool::new(false);
    let (mut errors, mut lost) = (0, false);
    let (recordings, broken) = thread::scope(|scope| {
        let recorder = scope.spawn(|| {
            hand::bind(&gpu);
            let (stream, mut recordings, mut broken) = (hand::stream(), 0, 0);
            // Relaxed, here and below: the flag publishes no other data.
            while !is_over.load(Relaxed) {
                begin(stream);
                let launched = (0..5).all(|_| {
                    thread::sleep(Duration::from_millis(1));
                    kernels.nothing(stream) == CUresult::CUDA_SUCCESS
                });
                let code = end(stream);
                recordings += 1;
                broken += u32::from(!launched || code != 0);
            }
            (recordings, broken)
        });
        let start = Instant::now();
        let mut round = 1;
        while start.elapsed() < limit && !lost {
            if let Err((error, is_lost)) = work(&engine, kernels, round) {
                if errors == 0 {
                    println!("the engine's first error: {error}");
                }
                errors += 1;
                lost |= is_lost;
                let _ = engine.clear_errors();
            }
            round += 1;
        }
        is_over.store(true, Relaxed);
        recorder.join().expect("the thread should not panic")
    });
    figure("recordings", f64::from(recordings));
    figure("broken", f64::from(broken));
    figure("errors", f64::from(errors));
    figure("lost", f64::from(u8::from(lost)));
}

/// Runs a slow kernel, a fill and a copy back, in newly allocated memory, and checks the copied values. An error is
/// returned with a flag that indicates whether the device is lost.
fn work(engine: &Engine, kernels: Kernels, round: u32) -> Result<(), (String, bool)> {
    let device = |error: DeviceError| (error.to_string(), error.is_lost());
    let plain = |error: &dyn std::fmt::Display| (error.to_string(), false);
    // The sizes grow, so the pool must allocate from the driver from time to time.
    let len = 1000 * (1 + round as usize % 256);
    let words = engine.device_var::<u32>(GPU, len).map_err(device)?;
    let back = engine.pinned_var::<u32>(GPU, len).map_err(device)?;
    let step = move |stream: &mut GpuStream, words: &mut _| {
        kernels.spin(lane(stream), 1, Duration::from_micros(200)).result()?;
        kernels.fill_vec(stream, words, round)
    };
    engine.op("step").on(GPU).launch_any(words.write(), step).map_err(|error| plain(&error))?;
    engine.op("out").on(GPU).copy_from_device(&words, &back).map_err(|error| plain(&error))?;
    let right = move |back: &PinnedVec<u32>| back.iter().all(|&word| word == round);
    let right = engine.op("look").submit(back.read(), right).map_err(|error| plain(&error))?;
    match right.wait() {
        Ok(true) => Ok(()),
        Ok(false) => Err(("wrong values".to_owned(), false)),
        Err(error) => Err((error.to_string(), is_loss(&error))),
    }
}

fn is_loss(error: &WaitError) -> bool {
    let WaitError::Failed(error) = error else { return false };
    matches!(error.cause(), Cause::Device(error) if error.is_lost())
}
