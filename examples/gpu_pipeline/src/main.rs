//! Chunks of a sensor's data pass through two kernels on a GPU, by default with two buffers for each step: copies in
//! both directions and kernels can run in parallel, although the program does not ask for it.
//!
//! ```text
//! cargo run --release -p gpu_pipeline --features cuda
//! cargo run --release -p gpu_pipeline -- --gpu simulated --chunks 100
//! ```
//!
//! Read `pipeline.rs` first: it contains all of the pipeline's operations. `kernels.rs` contains the computation, and
//! `kernels.ptx` the same computation for CUDA. This file contains the options, timing and report.
//!
//! The program first runs each lane's work alone: copies in, kernels, copies out, and the CPU's captures and
//! comparisons. Then it runs all lanes together; at best, this takes as long as the slowest lane alone. Each chunk's
//! result must equal the CPU's byte for byte; otherwise, the example fails.
//!
//! Without an NVIDIA GPU or without the feature `cuda`, the example by default uses the simulated GPU, whose results
//! are real but whose times are invented.

#![deny(unsafe_code)]

mod kernels;
mod pipeline;

use std::{
    collections::VecDeque,
    error::Error,
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum, value_parser};
use hdrhistogram::Histogram;
use raddle::{
    Engine, PushError,
    gpu::{GpuDriver, SimulatedGpu},
};

use kernels::WIDTH;
use pipeline::{Kernels, Pending, Pipeline, Scene};

/// A photograph of a pavilion, by danielbuechele (CC BY 2.0); see `examples/frames/assets/LICENSES.md`.
const PHOTO: &[u8] = include_bytes!("../../frames/assets/pagoda.jpg");

/// The number of different chunks.
const SCENES: usize = 8;

/// The simulated device's bandwidth in each direction, in bytes per second. It is low, so that the CPU, which does the
/// device's work, is not the bottleneck.
const SIMULATED_BANDWIDTH: u64 = 500_000_000;

/// Sends chunks of data through a GPU and reports how much of the work ran in parallel.
#[derive(Clone, Debug, Parser)]
#[command(name = "gpu_pipeline")]
struct Options {
    /// Device to use
    #[arg(long, value_enum, default_value_t = Gpu::Auto)]
    gpu: Gpu,

    /// Number of chunks
    #[arg(long, default_value_t = 300, value_parser = value_parser!(u32).range(1..=1_000_000))]
    chunks: u32,

    /// Size of a chunk in KiB
    #[arg(long, default_value_t = 1024, value_parser = value_parser!(u32).range(1..=262_144))]
    chunk_kib: u32,

    /// Number of buffers for each step
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u8).range(1..=64))]
    buffers: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Gpu {
    /// The first NVIDIA GPU if there is one, else a simulated one
    Auto,
    /// The first NVIDIA GPU
    Cuda,
    /// A GPU simulated in software
    Simulated,
}

/// A device and its name in the report.
struct Device {
    driver: GpuDriver,
    name: String,
    /// A second handle to the device if it is simulated, for its counters.
    simulated: Option<SimulatedGpu>,
}

fn main() -> ExitCode {
    match run(&Options::parse(), &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_pipeline: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the example and writes the report to `out`. A write may fail, for example on a closed pipe.
fn run(options: &Options, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let device = choose(options.gpu)?;
    let chunks = options.chunks as usize;
    let bytes = options.chunk_kib as usize * 1024;
    writeln!(out, "device: {}", device.name)?;
    writeln!(out, "{chunks} chunks of {} KiB, buffers for each step: {}\n", options.chunk_kib, options.buffers)?;

    let engine = Engine::builder().gpu(device.driver).build()?;
    let kernels = load(&engine, device.simulated.is_some(), bytes)?;
    let scenes: Arc<[Scene]> = scenes(bytes)?.into();
    let pipeline = Pipeline::new(&engine, kernels, scenes, options.buffers.into())?;

    // The first round is not timed, because the first launches and the first uses of memory take longer.
    through(&pipeline, chunks.min(2 * usize::from(options.buffers)), options.buffers.into())?;

    let gigabytes = (chunks * bytes) as f64 / 1e9;
    let mut alone = Vec::new();
    let mut lane = |name: &'static str, push: &dyn Fn(usize) -> Result<(), PushError>| -> Result<(), Box<dyn Error>> {
        let time = alone_of(&engine, chunks, push)?;
        report_lane(out, name, time, gigabytes)?;
        alone.push(time);
        Ok(())
    };
    lane("copies in, alone", &|chunk| pipeline.copy_in(chunk))?;
    lane("kernels, alone", &|chunk| pipeline.compute(chunk))?;
    lane("copies out, alone", &|chunk| pipeline.copy_out(chunk))?;
    lane("capture and compare, alone", &|chunk| pipeline.capture(chunk).and(pipeline.deliver(chunk)).map(drop))?;

    let before = device.simulated.as_ref().map(|gpu| (gpu.counts(), gpu.usage()));
    let outcome = through(&pipeline, chunks, options.buffers.into())?;
    report_lane(out, "all together", outcome.time, gigabytes)?;

    let (sum, longest) =
        (alone.iter().sum::<Duration>(), alone.iter().max().expect("four lanes should have been timed"));
    let part = |time: Duration| 100.0 * time.as_secs_f64() / outcome.time.as_secs_f64();
    writeln!(
        out,
        "\noverlap: relative to all together, the busiest lane alone takes {:.0} % of the time, all in turn {:.0} %",
        part(*longest),
        part(sum),
    )?;
    let quantile = |q| outcome.latency.value_at_quantile(q) as f64 / 1e6;
    writeln!(
        out,
        "from capture to delivery, in ms: p50 {:.2}, p99 {:.2}, longest {:.2}",
        quantile(0.5),
        quantile(0.99),
        quantile(1.0),
    )?;
    if let (Some(gpu), Some((counts, usage))) = (&device.simulated, before) {
        let (now, used) = (gpu.counts(), gpu.usage());
        writeln!(
            out,
            "calls to the device: {} kernels, {} copies, {} events, {} waits for events, {} marks for the host",
            now.launches - counts.launches,
            now.copies - counts.copies,
            now.records - counts.records,
            now.waits - counts.waits,
            now.marks - counts.marks,
        )?;
        let busy = |now: Duration, before: Duration| part(now - before);
        writeln!(
            out,
            "the device was busy for {:.0} % of the time with copies in, {:.0} % with kernels, {:.0} % with copies out",
            busy(used.copy_in.busy, usage.copy_in.busy),
            busy(used.compute[0].busy, usage.compute[0].busy),
            busy(used.copy_out.busy, usage.copy_out.busy),
        )?;
    }
    writeln!(out, "each of {chunks} chunks came out as the CPU computes it, byte for byte")?;
    Ok(())
}

fn report_lane(out: &mut dyn Write, name: &str, time: Duration, gigabytes: f64) -> io::Result<()> {
    let seconds = time.as_secs_f64();
    writeln!(out, "{name:28} {seconds:8.3} s {:8.2} GB/s", gigabytes / seconds)
}

/// Returns the device requested by the options.
fn choose(gpu: Gpu) -> Result<Device, String> {
    match gpu {
        Gpu::Simulated => Ok(simulated("a simulated GPU, as requested; its times are invented".into())),
        Gpu::Cuda => cuda(),
        Gpu::Auto => Ok(cuda().unwrap_or_else(|reason| {
            simulated(format!("a simulated GPU, whose times are invented, since no other GPU is available: {reason}"))
        })),
    }
}

fn simulated(name: String) -> Device {
    let gpu = SimulatedGpu::builder()
        .copy_in_bandwidth(SIMULATED_BANDWIDTH)
        .copy_out_bandwidth(SIMULATED_BANDWIDTH)
        .memory(usize::MAX)
        .build();
    Device { driver: gpu.clone().into(), name, simulated: Some(gpu) }
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<Device, String> {
    let gpu = raddle::gpu::CudaGpu::open(0).map_err(|error| error.to_string())?;
    let name = gpu.context().name().map_err(|error| error.to_string())?;
    Ok(Device { driver: gpu.into(), name, simulated: None })
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Device, String> {
    Err("the example was built without the feature `cuda`".into())
}

/// Returns the kernels for the engine's device.
fn load(engine: &Engine, simulated: bool, bytes: usize) -> Result<Kernels, Box<dyn Error>> {
    if simulated {
        // On the simulated device, both kernels together take as long as a copy.
        let copy = Duration::from_nanos(bytes as u64 * 1_000_000_000 / SIMULATED_BANDWIDTH);
        return Ok(Kernels::Simulated(copy / 2));
    }
    #[cfg(feature = "cuda")]
    {
        let kernels = engine.op("load").on(pipeline::GPU).try_submit(raddle::stream(), |stream| {
            // The lane's stream provides the device's context.
            Ok(kernels::cuda::Kernels::load(stream)?)
        })?;
        Ok(Kernels::Cuda(kernels.wait()?))
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = engine;
        unreachable!("the simulated device is the only one")
    }
}

/// Returns the sensor's data with the expected results. The data are the photograph's brightness, shifted by a
/// different amount for each chunk, plus noise.
fn scenes(bytes: usize) -> Result<Vec<Scene>, Box<dyn Error>> {
    let photo = image::load_from_memory(PHOTO)?.to_luma8();
    let (width, height) = (photo.width() as usize, photo.height() as usize);
    let photo = photo.into_raw();
    let scene = |n: usize| {
        let mut state = n as u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 28) as u8
        };
        let mut pixel = |i: usize| {
            let (x, y) = (i % WIDTH + 13 * n, i / WIDTH + 7 * n);
            photo[y % height * width + x % width].saturating_add(noise())
        };
        let raw: Vec<u8> = (0..bytes).map(&mut pixel).collect();
        Scene { expected: kernels::reference(&raw), raw }
    };
    Ok((0..SCENES).map(scene).collect())
}

/// Runs one lane's work alone for all chunks and returns the time taken.
fn alone_of(
    engine: &Engine,
    chunks: usize,
    push: &dyn Fn(usize) -> Result<(), PushError>,
) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    for chunk in 0..chunks {
        push(chunk)?;
    }
    engine.wait_for_all()?;
    Ok(start.elapsed())
}

struct Outcome {
    time: Duration,
    latency: Histogram<u64>,
}

/// Sends chunks through the whole pipeline and waits for them. At most `3 * buffers` chunks are under way at a time,
/// which is enough to fill the buffers of each step.
fn through(pipeline: &Pipeline<'_>, chunks: usize, buffers: usize) -> Result<Outcome, Box<dyn Error>> {
    let mut latency = Histogram::new(3)?;
    let mut under_way: VecDeque<(usize, Pending)> = VecDeque::new();
    let mut finish = |(chunk, pending): (usize, Pending)| -> Result<(), Box<dyn Error>> {
        let captured = pending.captured.wait()?;
        let delivery = pending.delivery.wait()?;
        if !delivery.correct {
            return Err(format!("the result of chunk {chunk} differs from the CPU's").into());
        }
        let nanos = delivery.at.duration_since(captured).as_nanos();
        latency.record(u64::try_from(nanos)?)?;
        Ok(())
    };
    let start = Instant::now();
    for chunk in 0..chunks {
        if under_way.len() == 3 * buffers
            && let Some(oldest) = under_way.pop_front()
        {
            finish(oldest)?;
        }
        under_way.push_back((chunk, pipeline.push(chunk)?));
    }
    under_way.into_iter().try_for_each(&mut finish)?;
    Ok(Outcome { time: start.elapsed(), latency })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn wrong_options_are_refused() {
        for wrong in
            [["--chunks", "0"], ["--chunk-kib", "0"], ["--buffers", "0"], ["--buffers", "65"], ["--gpu", "abacus"]]
        {
            let arguments = ["gpu_pipeline"].into_iter().chain(wrong);
            assert!(Options::try_parse_from(arguments).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_whole_example_runs_with_any_number_of_buffers() {
        for buffers in [1, 2, 5] {
            let options = Options { gpu: Gpu::Simulated, chunks: 7, chunk_kib: 3, buffers };
            let mut report = Vec::new();
            run(&options, &mut report).unwrap_or_else(|error| panic!("{buffers} buffers: {error}"));
            let report = String::from_utf8(report).unwrap();
            assert!(report.contains("14 kernels, 14 copies"), "{report}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn without_the_feature_auto_reports_why_it_simulates_and_cuda_is_refused() {
        let device = choose(Gpu::Auto).unwrap();
        assert!(device.simulated.is_some());
        assert!(device.name.contains("without the feature `cuda`"), "{}", device.name);
        assert!(choose(Gpu::Cuda).is_err());
    }

    #[test]
    fn scenes_differ_and_have_the_requested_size() {
        let scenes = scenes(4 * WIDTH).unwrap();
        assert!(scenes.iter().all(|scene| scene.raw.len() == 4 * WIDTH && scene.expected.len() == 4 * WIDTH));
        assert!(scenes.windows(2).all(|pair| pair[0].raw != pair[1].raw && pair[0].expected != pair[1].expected));
    }
}
