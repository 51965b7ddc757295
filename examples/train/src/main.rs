//! Trains a convolutional net on handwritten digits with the tensor library of this package.
//!
//! ```text
//! cargo run --release -p raddle-train
//! cargo run --release -p raddle-train -- --help
//! ```
//!
//! Read the table in `lib.rs` first, then `task.rs`, which shows how an operation on arrays becomes one of the engine.

#![forbid(unsafe_code)]

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use raddle::{Device, Engine, EngineKind, Recorder, SimulatedGpu, simulated::Clock};
use raddle_train::{
    Error,
    data::Images,
    report,
    training::{Options, Trainer},
};

/// Trains a net on handwritten digits, and shows what it has learned
#[derive(Parser)]
#[command(name = "raddle-train")]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Number of worker threads [default: one for each processor]
    #[arg(long)]
    workers: Option<usize>,

    /// Kind of engine
    #[arg(long, value_enum, default_value_t = Kind::PerDevice)]
    engine: Kind,

    /// Device on which the net is trained
    #[arg(long, value_enum, default_value_t = Place::Cpu)]
    device: Place,

    /// Packed file of images
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.bin"))]
    data: PathBuf,

    /// Where to write a picture of the misclassified digits
    #[arg(long, value_name = "FILE", default_value = "out/mistakes.png")]
    picture: PathBuf,

    /// Where to write a trace of the last epoch, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Percentage of correct answers below which the program fails
    #[arg(long, default_value_t = 97.5)]
    require: f32,

    /// Skip the comparison with other engines
    #[arg(long)]
    no_compare: bool,
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
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Naive => Self::Naive,
            Kind::Pooled => Self::Pooled,
            Kind::PerDevice => Self::PerDevice,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Place {
    /// The processor
    Cpu,
    /// A simulated GPU whose kernels take no time
    Gpu,
}

fn main() -> ExitCode {
    raddle::install_panic_hook();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("raddle-train: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns an engine and the device for the net.
fn engine(
    kind: EngineKind,
    workers: Option<usize>,
    place: Place,
    recorder: Option<&Recorder>,
) -> Result<(Engine, Device), Error> {
    let mut builder = Engine::builder().kind(kind);
    if let Some(workers) = workers {
        builder = builder.workers(workers);
    }
    if let Some(recorder) = recorder {
        builder = builder.recorder(recorder);
    }
    if place == Place::Gpu {
        builder = builder.gpu(SimulatedGpu::builder().clock(Clock::Instantly).build());
    }
    Ok((builder.build()?, if place == Place::Gpu { Device::Gpu(0) } else { Device::Cpu }))
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    let (options, epochs) = (arguments.options, arguments.options.epochs);
    let images = Arc::new(Images::open(&arguments.data)?);
    let recorder = arguments.trace.as_ref().map(|_| Recorder::with_capacity(16 << 20));
    let (engine, device) = engine(arguments.engine.into(), arguments.workers, arguments.device, recorder.as_ref())?;
    let mut trainer = Trainer::new(&engine, device, &images, options)?;
    println!("{} steps per epoch, on {device} with the {} engine", trainer.steps(), engine.kind());
    println!("memory of each shard: {}", trainer.memory());

    let start = Instant::now();
    let style = ProgressStyle::with_template("epoch {prefix} {bar:30} {pos}/{len}, loss {msg}, {eta} left");
    let progress = ProgressBar::new((epochs * trainer.steps()) as u64);
    progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let (mut first_loss, mut answers) = (f32::NAN, trainer.test()?);
    for epoch in 0..epochs {
        if let (Some(recorder), true) = (&recorder, epoch + 1 == epochs) {
            drop(recorder.take());
        }
        progress.set_prefix((epoch + 1).to_string());
        let loss = trainer.epoch(epoch, |_, loss| {
            progress.set_message(format!("{loss:.4}"));
            progress.inc(1);
        })?;
        if let (Some(recorder), Some(path), true) = (&recorder, &arguments.trace, epoch + 1 == epochs) {
            let overlap = report::write_trace(&recorder.take(), path, |name| name.starts_with("update "))?;
            println!("{}", overlap.sentence("updates ran during the backward pass of another layer"));
        }
        answers = trainer.test()?;
        first_loss = if epoch == 0 { loss } else { first_loss };
        let accuracy = 100.0 * report::accuracy(&answers);
        progress.suspend(|| {
            println!(
                "epoch {:>2}  loss {loss:.4} {:<30}  test {accuracy:.2} %",
                epoch + 1,
                report::bar(loss, first_loss)
            );
        });
    }
    progress.finish_and_clear();
    let (seconds, accuracy) = (start.elapsed().as_secs_f32(), 100.0 * report::accuracy(&answers));
    println!("\n{}\n", report::confusion(&answers, images.classes));
    println!("{accuracy:.2} % correct on {} unseen images, after {seconds:.1} s", answers.len());
    let wrong: Vec<_> = answers.iter().filter(|(_, truth, found)| truth != found).copied().collect();
    report::picture(&arguments.picture, &images, &wrong)?;
    println!(
        "the {} wrong answers, each with the true and the predicted class: {}",
        wrong.len(),
        arguments.picture.display()
    );
    for (runtime, what) in trainer.runtimes().into_iter().zip(["parameters", "batches"]) {
        println!("memory for {what}: {:?}", runtime.statistics());
    }
    let [bound, imperative] = trainer.compare(20)?.map(|seconds| 1e3 * seconds);
    println!("a step takes {bound:.2} ms with executors, and {imperative:.2} ms with arrays and a tape");
    if !arguments.no_compare {
        compare_engines(&images, Options { epochs: 1, ..options })?;
    }
    if accuracy < arguments.require {
        return Err(Error::Use(format!("{accuracy:.2} % correct is less than the required {} %", arguments.require)));
    }
    Ok(())
}

/// Trains for one epoch on each kind of engine and on the simulated GPU, and compares the parameters' bits.
fn compare_engines(images: &Arc<Images>, options: Options) -> Result<(), Error> {
    let places = [
        ("naive", EngineKind::Naive, 1, Place::Cpu),
        ("1 worker", EngineKind::PerDevice, 1, Place::Cpu),
        ("2 workers", EngineKind::PerDevice, 2, Place::Cpu),
        ("4 workers", EngineKind::PerDevice, 4, Place::Cpu),
        ("simulated GPU", EngineKind::PerDevice, 2, Place::Gpu),
    ];
    let mut first = None;
    for (name, kind, workers, place) in places {
        let (engine, device) = engine(kind, Some(workers), place, None)?;
        let start = Instant::now();
        let mut trainer = Trainer::new(&engine, device, images, options)?;
        trainer.epoch(0, |_, _| {})?;
        let bits = trainer.bits()?;
        let time = Duration::from_millis(start.elapsed().as_millis() as u64);
        let is_same = *first.get_or_insert_with(|| bits.clone()) == bits;
        println!("{name:>14}: one epoch in {time:?}, {} bits", if is_same { "the same" } else { "DIFFERENT" });
        if !is_same {
            return Err(Error::Use(format!("the parameters depend on the engine: {name}")));
        }
    }
    Ok(())
}
