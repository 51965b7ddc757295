//! Trains a convolutional net on handwritten digits with the tensor library of this package.
//!
//! ```text
//! cargo run --release -p raddle-train
//! cargo run --release -p raddle-train -- --help
//! ```
//!
//! Read the table in `lib.rs` first, then `task.rs`, which shows how an operation on arrays becomes an operation of the
//! engine.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};
use std::{collections::HashMap, path::PathBuf, process::ExitCode, sync::Arc};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use raddle::{EngineKind, trace::Recorder};
use raddle_train::training::{self, Options, Trainer};
use raddle_train::{Error, data::Images, report};

/// Trains a net on handwritten digits, and shows what it has learned
#[derive(Parser)]
#[command(name = "raddle-train")]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Number of worker threads [default: one for each core that the program may use]
    #[arg(long)]
    workers: Option<usize>,

    /// Kind of engine: `Naive`, `Pooled` or `PerDevice`
    #[arg(long, default_value_t = EngineKind::PerDevice)]
    engine: EngineKind,

    /// Device on which the net is trained: the processor, or a simulated GPU whose kernels take no time
    #[arg(long, value_parser = ["cpu", "gpu"], default_value = "cpu")]
    device: String,

    /// Packed file of images
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.bin"))]
    data: PathBuf,

    /// Where to write a picture of the misclassified digits
    #[arg(long, value_name = "FILE", default_value = "out/mistakes.png")]
    picture: PathBuf,

    /// Where to write a trace of the last epoch, for ui.perfetto.dev
    #[arg(long, value_name = "FILE", default_value = "out/train.pftrace")]
    trace: PathBuf,

    /// Percentage of correct answers below which the program fails
    #[arg(long, default_value_t = 97.5)]
    require: f32,

    /// Maximum number of seconds for the training: if it takes longer, the program fails at the end
    #[arg(long, value_name = "SECONDS")]
    within: Option<f32>,

    /// Skip the comparison with other engines
    #[arg(long)]
    no_compare: bool,
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

fn run(arguments: &Arguments) -> Result<(), Error> {
    let (options, epochs) = (arguments.options, arguments.options.epochs);
    let images = Arc::new(Images::open(&arguments.data)?);
    let recorder = Recorder::with_capacity(16 << 20);
    let on_gpu = arguments.device == "gpu";
    let (engine, device) = training::engine(arguments.engine, arguments.workers, on_gpu, Some(&recorder))?;
    let mut trainer = Trainer::new(&engine, device, &images, options)?;
    println!("{} steps per epoch, on {device} with the {} engine", trainer.steps(), engine.kind());
    println!("memory of each shard: {}", trainer.memory());

    let start = Instant::now();
    let style = ProgressStyle::with_template("epoch {prefix} {bar:30} {pos}/{len}, loss {msg}, {eta} left");
    let progress = ProgressBar::new(epochs.saturating_mul(trainer.steps()) as u64);
    progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let (mut first_loss, mut answers, mut trace) = (None, trainer.test()?, None);
    for epoch in 0..epochs {
        // The trace contains only the last epoch.
        drop(recorder.take());
        progress.set_prefix((epoch + 1).to_string());
        let loss = trainer.epoch(epoch, |_, loss| {
            progress.set_message(format!("{loss:.4}"));
            progress.inc(1);
        })?;
        if epoch + 1 == epochs {
            trace = Some(recorder.take());
        }
        answers = trainer.test()?;
        let bar = report::bar(loss, *first_loss.get_or_insert(loss));
        let (epoch, accuracy) = (epoch + 1, 100.0 * report::accuracy(&answers));
        progress.suspend(|| println!("epoch {epoch:>2}  loss {loss:.4} {bar:<30}  test {accuracy:.2} %"));
    }
    progress.finish_and_clear();
    // The bits are read here because the comparison of steps changes the parameters.
    let bits = trainer.bits()?;
    let (seconds, accuracy) = (start.elapsed().as_secs_f32(), 100.0 * report::accuracy(&answers));
    println!("\n{}\n", report::confusion(&answers, images.classes));
    println!("{accuracy:.2} % correct on {} unseen images, after {seconds:.1} s", answers.len());
    let wrong: Vec<_> = answers.iter().filter(|(_, truth, found)| truth != found).copied().collect();
    report::picture(&arguments.picture, &images, &wrong)?;
    let (count, path) = (wrong.len(), arguments.picture.display());
    println!("the {count} wrong answers, each with the true and the predicted class: {path}");
    if let Some(trace) = trace {
        let overlap = report::write_trace(&trace, &arguments.trace, |name| name.starts_with("update "))?;
        println!("{}", overlap.sentence("updates of the last epoch ran during the backward pass of another layer"));
        println!("the trace of the last epoch, for ui.perfetto.dev: {}", arguments.trace.display());
    }
    let mut runtimes = trainer.runtimes().to_vec();
    runtimes.dedup_by_key(|runtime| runtime.device());
    for runtime in runtimes {
        println!("memory of {}: {}", runtime.device(), runtime.statistics());
    }
    let [bound, imperative] = trainer.compare(20)?.map(|seconds| 1e3 * seconds);
    println!("a step takes {bound:.2} ms with executors, and {imperative:.2} ms with arrays and a tape");
    if !arguments.no_compare {
        compare_engines(&images, options, bits)?;
    }
    if let Some(limit) = arguments.within.filter(|&limit| seconds > limit) {
        return Err(Error::Use(format!("training took {seconds:.3} s, longer than the limit of {limit} s")));
    }
    if accuracy < arguments.require {
        return Err(Error::Use(format!("{accuracy:.2} % correct is less than the required {} %", arguments.require)));
    }
    Ok(())
}

/// Trains for two epochs on a naive engine, on engines with 1, 2 and 4 workers, and on the simulated GPU, and for all
/// epochs on a naive engine. Compares the parameters' bits: those of all short trainings with each other, and those of
/// the long training with `trained`.
fn compare_engines(images: &Arc<Images>, options: Options, trained: Vec<u32>) -> Result<(), Error> {
    let short = Options { epochs: 2, ..options };
    let places = [
        ("naive", EngineKind::Naive, 1, false, options),
        ("naive", EngineKind::Naive, 1, false, short),
        ("1 worker", EngineKind::PerDevice, 1, false, short),
        ("2 workers", EngineKind::PerDevice, 2, false, short),
        ("4 workers", EngineKind::PerDevice, 4, false, short),
        ("simulated GPU", EngineKind::PerDevice, 2, true, short),
    ];
    let mut expected = HashMap::from([(options.epochs, trained)]);
    for (name, kind, workers, on_gpu, options) in places {
        let (engine, device) = training::engine(kind, Some(workers), on_gpu, None)?;
        let (start, epochs) = (Instant::now(), options.epochs);
        let bits = Trainer::new(&engine, device, images, options)?.train()?;
        let time = Duration::from_millis(start.elapsed().as_millis() as u64);
        if *expected.entry(epochs).or_insert_with(|| bits.clone()) != bits {
            return Err(Error::Use(format!("{name}: {epochs} epochs in {time:?}, DIFFERENT bits")));
        }
        println!("{name:>14}: {epochs} epochs in {time:?}, the same bits");
    }
    Ok(())
}
