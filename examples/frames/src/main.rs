//! Camera frames pass through a graph of image filters, several frames at a time: a typical use of raddle.
//!
//! ```text
//! cargo run --release -p frames
//! cargo run --release -p frames -- --help
//! ```
//!
//! Read `graph.rs` first: it declares the variables and pushes the operations. `camera.rs` produces the frames and
//! `filters.rs` processes them. This file contains the options, timing and report.
//!
//! The same frames pass through the graph several times; options leave out some passes or add one:
//!
//! 1. as fast as possible, with the statistics: a frame is pushed as soon as its slot of the ring is free;
//! 2. at a fixed rate, without the statistics;
//! 3. at that rate with the statistics, which should not delay the frames;
//! 4. at that rate with the statistics but without priorities, to show the effect of priorities;
//! 5. as fast as possible on the naive engine, which runs every operation immediately on the pushing thread. This pass
//!    checks the others: each frame must have the same bytes in every pass.

#![forbid(unsafe_code)]

mod camera;
mod filters;
mod graph;

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum, value_parser};
use hdrhistogram::Histogram;
use image::{ImageFormat, ImageResult, RgbImage, imageops};
use indicatif::{ProgressBar, ProgressStyle};
use raddle::{Engine, EngineKind, OpHandle, WaitError, error::Cause, trace::Recorder};

use camera::{Camera, FrameLost, Size};
use filters::Statistics;
use graph::{Graph, Pending, Plan};

/// A photograph of a pavilion, by danielbuechele (CC BY 2.0); see `examples/frames/assets/LICENSES.md`.
const PHOTO: &[u8] = include_bytes!("../assets/pagoda.jpg");

/// The default fixed rate, as a fraction of the first pass's throughput.
const LOAD: f64 = 0.8;

/// Sends camera frames through a graph of filters and reports how long they take.
#[derive(Parser)]
#[command(name = "frames")]
struct Options {
    /// Number of frames in each pass
    #[arg(long, default_value_t = 200, value_parser = value_parser!(u64).range(1..=1_000_000))]
    frames: u64,

    /// Size of a frame
    #[arg(long, default_value = "320x240", value_name = "WIDTHxHEIGHT")]
    size: Size,

    /// Maximum number of frames in flight: the number of slots of the ring
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u16).range(1..=256))]
    in_flight: u16,

    /// Number of worker threads [default: one for each processor]
    #[arg(long, value_parser = value_parser!(u16).range(1..=256))]
    workers: Option<u16>,

    /// Rate of the passes with a fixed rate, in frames per second; 0 means 80 % of
    /// the throughput of the first pass
    #[arg(long, default_value_t = 0.0, value_parser = rate, allow_negative_numbers = true)]
    fps: f64,

    /// Engine to use
    #[arg(long, value_enum, default_value_t = Kind::PerDevice)]
    engine: Kind,

    /// Number of detail sizes that the statistics measure, each in its own operation; 0 omits the statistics
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u16).range(0..=64))]
    statistics: u16,

    /// Let the camera lose every N-th frame, to show that the others are delivered;
    /// 0 loses none
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = lose_every)]
    lose_every: u64,

    /// Photograph to pan over, a JPEG or PNG file [default: a built-in one]
    #[arg(long, value_name = "FILE")]
    photo: Option<PathBuf>,

    /// PNG or JPEG file for a picture that shows a frame as captured and, beside it, as annotated
    #[arg(long, default_value = "out/frames.png", value_name = "FILE")]
    output: PathBuf,

    /// Leave out the pass on the naive engine
    #[arg(long)]
    no_compare: bool,

    /// Record one more pass: write an HTML page about it to FILE, and a trace for Perfetto (`.pftrace`) beside it
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate == 0.0 || (0.1..=100_000.0).contains(&rate) => Ok(rate),
        Ok(_) => Err("expected 0 or a rate from 0.1 to 100000".into()),
        Err(_) => Err("expected a number".into()),
    }
}

fn lose_every(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(1) => Err("1 would lose every frame".into()),
        Ok(n) => Ok(n),
        Err(e) => Err(format!("{e}")),
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// No workers: an operation normally runs on the thread that pushes it
    Naive,
    /// One pool of workers
    Pooled,
    /// Separate workers for each device
    PerDevice,
}

impl From<Kind> for EngineKind {
    fn from(kind: Kind) -> EngineKind {
        match kind {
            Kind::Naive => EngineKind::Naive,
            Kind::Pooled => EngineKind::Pooled,
            Kind::PerDevice => EngineKind::PerDevice,
        }
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("frames: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let photo = load_photo(options.photo.as_deref())?;
    // Reports errors in the options before the first pass starts.
    Camera::new(photo.clone(), options.size, options.lose_every)?;
    prepare_output(&options.output).map_err(|e| format!("cannot write to {}: {e}", options.output.display()))?;

    let workers = match options.workers {
        Some(n) => usize::from(n),
        None => thread::available_parallelism().map_or(1, usize::from),
    };
    say(format_args!(
        "frames: {} of {} pixels, in flight: {}, workers: {workers}\n\n{:44} {:>7} {}",
        options.frames,
        options.size,
        options.in_flight,
        "",
        "fps",
        QUANTILES.map(|(name, _)| format!("{name:>7}")).join(" "),
    ))?;

    let setup = Setup { options, photo: &photo, workers, progress: progress_bar(), recorder: None };
    let kind = options.engine.into();
    let all = Plan { in_flight: options.in_flight.into(), scales: options.statistics.into(), priorities: true };

    let reference = setup.pass("as fast as possible", kind, None, all)?;
    let rate = match options.fps {
        0.0 => LOAD * reference.throughput(),
        rate => rate,
    };
    let mut paced = vec![("without statistics", Plan { scales: 0, ..all })];
    if all.scales > 0 {
        let equal = Plan { priorities: false, ..all };
        paced.push(("with statistics", all));
        paced.push(("with statistics, no priorities", equal));
    }
    let mut passes = 1;
    for (label, plan) in paced {
        let label = format!("at {rate:.1} fps {label}");
        reference.check(&setup.pass(&label, kind, Some(rate), plan)?)?;
        passes += 1;
    }
    let mut naive = None;
    if !options.no_compare {
        let label = "as fast as possible, naive engine";
        let outcome = setup.pass(label, EngineKind::Naive, None, all)?;
        reference.check(&outcome)?;
        passes += 1;
        naive = Some(outcome);
    }

    let mut page = None;
    if let Some(path) = &options.report {
        let trace_path = path.with_extension("pftrace");
        if trace_path == *path {
            return Err(format!("{} is the name of the trace; end the page's name in .html", path.display()).into());
        }
        // The files are created before the pass, so that no time is lost if one of them cannot be created.
        let create = |path: &Path| File::create(path).map_err(|e| format!("cannot write to {}: {e}", path.display()));
        let (file, trace_file) = (create(path)?, create(&trace_path)?);
        let recorder = Recorder::with_capacity(RECORDED_BYTES);
        let recorded = Setup { recorder: Some(recorder.clone()), ..setup };
        let label = format!("at {rate:.1} fps with statistics, recorded");
        reference.check(&recorded.pass(&label, kind, Some(rate), all)?)?;
        passes += 1;
        let trace = recorder.take();
        trace.write_report(&format!("frames {label}"), &mut BufWriter::new(file))?;
        trace.write_perfetto(&mut BufWriter::new(trace_file))?;
        page = Some((path, trace_path));
    }

    report(&reference, naive.as_ref(), passes)?;
    if let Some((path, trace_path)) = page {
        say(format_args!("What ran where, and what it waited for: {}", path.display()))?;
        say(format_args!("The same as a trace, for ui.perfetto.dev: {}", trace_path.display()))?;
    }
    if let Some((before, after)) = &reference.pictures {
        let path = options.output.display();
        save_beside(before, after, &options.output).map_err(|e| format!("cannot write {path}: {e}"))?;
        say(format_args!("A frame as captured and as annotated: {path}"))?;
    }
    Ok(())
}

/// Prints a summary after the last pass.
fn report(reference: &Outcome, naive: Option<&Outcome>, passes: u32) -> io::Result<()> {
    say(format_args!(
        "\nThe last columns are latencies in milliseconds, from the time when a frame was due\n\
         to its delivery. In the first pass, most of the latency is usually time in which the\n\
         workers process other frames.\n\
         Each frame had the same bytes in all {passes} passes."
    ))?;
    if let Some(naive) = naive {
        say(format_args!(
            "The throughput is {:.2} times that of the naive engine.",
            reference.throughput() / naive.throughput()
        ))?;
    }
    if let Some((lost, error)) = &reference.lost {
        say(format_args!("Frames lost in each pass: {lost}. The error of the first:\n  {error}"))?;
    }
    if let Some(last) = reference.statistics.iter().flatten().last() {
        let detail = [last.detail.first(), last.detail.last()].map(|d| *d.unwrap_or(&0.0));
        say(format_args!(
            "The statistics of the last delivered frame, in levels: changed by denoising {:.1},\n\
             brightness {} to {}, details of radius 1 {:.1}, details up to radius {} {:.1}.",
            last.denoised,
            last.range.0,
            last.range.1,
            detail[0],
            last.detail.len(),
            detail[1],
        ))?;
    }
    Ok(())
}

/// Writes two pictures of the same height side by side to a file.
fn save_beside(left: &RgbImage, right: &RgbImage, path: &Path) -> ImageResult<()> {
    let mut both = RgbImage::new(left.width() + right.width(), left.height());
    imageops::replace(&mut both, left, 0, 0);
    imageops::replace(&mut both, right, left.width().into(), 0);
    both.save(path)
}

fn load_photo(path: Option<&Path>) -> Result<RgbImage, String> {
    let image = match path {
        None => image::load_from_memory(PHOTO).map_err(|e| format!("built-in photograph: {e}")),
        Some(path) => image::open(path).map_err(|e| format!("cannot read {}: {e}", path.display())),
    };
    Ok(image?.to_rgb8())
}

/// Checks that the output file can be written. Creates the file and its folder if necessary, and leaves an existing
/// file unchanged.
fn prepare_output(path: &Path) -> Result<(), Box<dyn Error>> {
    if !matches!(ImageFormat::from_path(path), Ok(ImageFormat::Png | ImageFormat::Jpeg)) {
        return Err("its name must end in .png or .jpg".into());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    OpenOptions::new().append(true).create(true).open(path)?;
    Ok(())
}

/// Prints a line to standard output. Returns an error where `println!` would panic, for example on a closed pipe.
fn say(line: std::fmt::Arguments<'_>) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// The recorder's bytes per thread, enough for a recorded pass of a few thousand frames.
const RECORDED_BYTES: usize = 64 << 20;

/// Creates a progress bar, which indicatif hides unless it writes to a terminal.
fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:44} {bar:24} {pos}/{len}").expect("the template should be valid");
    ProgressBar::no_length().with_style(style)
}

const QUANTILES: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// The settings shared by all passes.
struct Setup<'a> {
    options: &'a Options,
    photo: &'a RgbImage,
    workers: usize,
    progress: ProgressBar,
    recorder: Option<Recorder>,
}

impl Setup<'_> {
    /// Sends all frames through the graph once and prints a line about the pass.
    ///
    /// With a rate, a frame is due at its scheduled time, even if its slot is still in use, and its latency counts from
    /// that time. Without a rate, a frame is due when its slot is free.
    fn pass(&self, label: &str, kind: EngineKind, rate: Option<f64>, plan: Plan) -> Result<Outcome, Box<dyn Error>> {
        let options = self.options;
        let builder = Engine::builder().workers(self.workers).kind(kind);
        let engine = match &self.recorder {
            Some(recorder) => builder.recorder(recorder).build()?,
            None => builder.build()?,
        };
        let camera = Camera::new(self.photo.clone(), options.size, options.lose_every)?;
        let graph = Graph::new(&engine, camera, plan);

        self.progress.reset();
        self.progress.set_length(options.frames);
        self.progress.set_message(label.to_owned());

        let mut outcome = Outcome::new(label)?;
        // For each slot of the ring, its frame and the frame's due time.
        let mut ring: Vec<Option<(Pending, Instant)>> = (0..plan.in_flight).map(|_| None).collect();
        let mut statistics = Vec::new();
        let start = Instant::now();
        for frame in 0..options.frames {
            let scheduled = rate.map(|rate| start + Duration::from_secs_f64(frame as f64 / rate));
            if let Some(time) = scheduled {
                thread::sleep(time.saturating_duration_since(Instant::now()));
            }
            // Waits until the previous frame in the slot has been delivered. The statistics may still read that frame's
            // images; the engine orders the next frame's operations after these reads.
            let slot = &mut ring[(frame % plan.in_flight as u64) as usize];
            if let Some((pending, due)) = slot.take() {
                statistics.push(self.finish(&graph, pending, due, &mut outcome)?);
            }
            let due = scheduled.unwrap_or_else(Instant::now);
            *slot = Some((graph.push_frame(frame)?, due));
        }
        let mut rest: Vec<_> = ring.into_iter().flatten().collect();
        rest.sort_by_key(|(pending, _)| pending.frame);
        for (pending, due) in rest {
            statistics.push(self.finish(&graph, pending, due, &mut outcome)?);
        }
        for handle in statistics {
            let result = handle.map(OpHandle::wait).transpose();
            outcome.statistics.push(unless_lost(result)?.ok().flatten());
        }
        outcome.elapsed = start.elapsed();

        self.progress.finish_and_clear();
        say(format_args!("{}", outcome.line()))?;
        Ok(outcome)
    }

    /// Waits for a frame and records its result. Returns the handle to the frame's statistics, for which the caller can
    /// wait later.
    fn finish(
        &self,
        graph: &Graph<'_>,
        pending: Pending,
        due: Instant,
        outcome: &mut Outcome,
    ) -> Result<Option<OpHandle<Statistics>>, Box<dyn Error>> {
        let delivery = unless_lost(pending.delivery.wait())?;
        match delivery {
            Ok(delivery) => {
                let latency = delivery.at.saturating_duration_since(due);
                let micros = u64::try_from(latency.as_micros())?;
                outcome.latency.record(micros)?;
                outcome.digests.push(Some(delivery.digest));
                // Keeps a frame for the picture: the first one delivered from the middle of the pass on.
                let middle = (self.options.frames - 1) / 2;
                if outcome.pictures.is_none() && pending.frame >= middle {
                    outcome.pictures = Some(graph.before_and_after(pending.frame)?);
                }
            }
            Err(error) => {
                outcome.digests.push(None);
                outcome.lost.get_or_insert((0, error)).0 += 1;
            }
        }
        self.progress.inc(1);
        Ok(pending.statistics)
    }
}

/// Separates the expected loss of a frame from all other failures, which end the program. The inner `Err` is the
/// message of the lost frame's failure.
///
/// If a frame is lost, a wait for its last operation returns its first operation's error, because the engine propagates
/// errors through the graph.
fn unless_lost<T>(result: Result<T, WaitError>) -> Result<Result<T, String>, WaitError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(WaitError::Failed(error)) => match error.cause() {
            Cause::Error(cause) if cause.is::<FrameLost>() => Ok(Err(error.to_string())),
            _ => Err(WaitError::Failed(error)),
        },
        Err(error) => Err(error),
    }
}

/// The results of a pass.
struct Outcome {
    label: String,
    elapsed: Duration,
    /// Latencies in microseconds.
    latency: Histogram<u64>,
    /// A hash of each frame's bytes, or `None` if the frame was lost.
    digests: Vec<Option<u64>>,
    /// Each frame's statistics, if any.
    statistics: Vec<Option<Statistics>>,
    /// The number of lost frames, and the error of the first lost frame.
    lost: Option<(u64, String)>,
    /// A frame as captured and as annotated.
    pictures: Option<(RgbImage, RgbImage)>,
}

impl Outcome {
    fn new(label: &str) -> Result<Outcome, Box<dyn Error>> {
        Ok(Outcome {
            label: label.to_owned(),
            elapsed: Duration::ZERO,
            latency: Histogram::new(3)?,
            digests: Vec::new(),
            statistics: Vec::new(),
            lost: None,
            pictures: None,
        })
    }

    /// Returns the frames per second, measured from the first frame to the end of all work.
    fn throughput(&self) -> f64 {
        self.digests.len() as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the report's line about this pass.
    fn line(&self) -> String {
        let quantile = |(_, q)| self.latency.value_at_quantile(q) as f64 / 1000.0;
        let columns = QUANTILES.map(|q| format!("{:7.2}", quantile(q)));
        let fps = self.throughput();
        format!("{:44} {fps:7.1} {}", self.label, columns.join(" "))
    }

    /// Checks that another pass delivered the same frames, byte for byte, and the same statistics, if any.
    fn check(&self, other: &Outcome) -> Result<(), String> {
        let differ = |what: &str, frame: usize| {
            let (a, b) = (&self.label, &other.label);
            format!("{what} of frame {frame} differ between the passes `{a}` and `{b}`")
        };
        for (frame, (ours, theirs)) in self.digests.iter().zip(&other.digests).enumerate() {
            if ours != theirs {
                return Err(differ("the bytes", frame));
            }
        }
        for (frame, (ours, theirs)) in self.statistics.iter().zip(&other.statistics).enumerate() {
            if theirs.is_some() && ours != theirs {
                return Err(differ("the statistics", frame));
            }
        }
        Ok(())
    }
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
        for wrong in [
            ["--frames", "0"],
            ["--in-flight", "0"],
            ["--workers", "0"],
            ["--fps", "-1"],
            ["--fps", "NaN"],
            ["--fps", "1e-300"],
            ["--size", "0x0"],
            ["--lose-every", "1"],
            ["--engine", "steam"],
        ] {
            let arguments = ["frames"].into_iter().chain(wrong);
            assert!(Options::try_parse_from(arguments).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_difference_between_passes_is_found() {
        let outcome = |digests: &[Option<u64>]| {
            let mut outcome = Outcome::new("pass").unwrap();
            outcome.digests = digests.to_vec();
            outcome
        };
        let reference = outcome(&[Some(1), None, Some(3)]);
        assert_eq!(reference.check(&outcome(&[Some(1), None, Some(3)])), Ok(()));
        for other in [[Some(1), None, Some(4)], [Some(1), Some(2), Some(3)]] {
            assert!(reference.check(&outcome(&other)).is_err(), "{other:?}");
        }
    }
}
