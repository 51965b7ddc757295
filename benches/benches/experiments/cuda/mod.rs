//! The list of experiments, and the command line.
//!
//! The main process opens no GPU. An experiment has *parts*, each run in a separate process with a time limit
//! (`child`), so a part may lose its device or hang without ending the run. Parts print figures from which the
//! experiment draws its conclusion.

use std::{env, process::ExitCode, time::Instant};

use raddle::{Device, gpu::CudaGpu};
use raddle_benches::{
    machine,
    report::{Cell, grouped},
};

mod address;
mod capture;
mod child;
mod clock;
mod connections;
mod depth;
mod hand;
mod launch;
mod marks;
mod marks_cost;
mod memory;
mod order;
mod poison;

/// An engine's first GPU.
const GPU: Device = Device::Gpu(0);

/// A verdict, or the reason why an experiment could not run.
type Outcome = Result<String, String>;

struct Experiment {
    name: &'static str,
    /// A description of the experiment.
    about: &'static str,
    run: fn() -> Outcome,
    /// Runs a part of the experiment, in a separate process.
    part: fn(&[&str]),
}

const EXPERIMENTS: [Experiment; 11] = [
    marks::EXPERIMENT,
    poison::EXPERIMENT,
    capture::EXPERIMENT,
    depth::EXPERIMENT,
    marks_cost::EXPERIMENT,
    launch::EXPERIMENT,
    order::EXPERIMENT,
    memory::EXPERIMENT,
    clock::EXPERIMENT,
    connections::EXPERIMENT,
    address::EXPERIMENT,
];

/// Returns a count or a code as a cell, or a dash if the value is NaN.
fn whole(value: f64) -> Cell {
    if value.is_nan() { "–".into() } else { grouped(value, 0).into() }
}

/// Returns whether a command-line argument selects an experiment.
fn chooses(word: &str, number: usize, experiment: &Experiment) -> bool {
    word == experiment.name || word.parse() == Ok(number)
}

fn numbered() -> impl Iterator<Item = (usize, &'static Experiment)> {
    EXPERIMENTS.iter().enumerate().map(|(index, experiment)| (index + 1, experiment))
}

/// Returns the reason why there is no GPU, or `None` if there is one.
fn absence() -> Option<String> {
    match CudaGpu::count() {
        Ok(0) => Some("the driver sees none".to_owned()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

pub fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let [child::PART, name, rest @ ..] = &arguments[..] {
        let (_, experiment) = numbered().find(|(_, experiment)| experiment.name == *name).expect("an experiment");
        (experiment.part)(rest);
        return ExitCode::SUCCESS;
    }
    if arguments.contains(&"--list") {
        for (number, Experiment { name, about, .. }) in numbered() {
            println!("{number:2} {name:12} {about}");
        }
        return ExitCode::SUCCESS;
    }
    // The filter drops options, such as the one that `cargo bench` adds.
    let words: Vec<&str> = arguments.iter().copied().filter(|word| !word.starts_with("--")).collect();
    let unknown = words.iter().find(|word| !numbered().any(|(number, experiment)| chooses(word, number, experiment)));
    if let Some(word) = unknown {
        eprintln!("there is no experiment {word:?}; --list shows the names");
        return ExitCode::FAILURE;
    }
    let is_wanted = |number, experiment| words.is_empty() || words.iter().any(|word| chooses(word, number, experiment));
    let wanted = numbered().filter(|&(number, experiment)| is_wanted(number, experiment));
    if let Some(reason) = absence() {
        println!("there is no GPU: {reason}. With a GPU:");
        for (_, Experiment { name, about, .. }) in wanted {
            println!("verdict: {name}: not run; it would measure: {about}");
        }
        return ExitCode::from(77);
    }
    let gpu = hand::describe().unwrap_or_else(|error| error.to_string());
    println!("{gpu}; {}", machine::provenance());
    child::be_quick(arguments.contains(&"--quick") || machine::quick());
    let mut status = ExitCode::SUCCESS;
    for (number, Experiment { name, about, run, .. }) in wanted {
        println!("\n# {number} {name}\n\n{about}\n");
        let start = Instant::now();
        match run() {
            Ok(verdict) => println!("\nverdict: {name}: {verdict}"),
            Err(reason) => {
                println!("\nverdict: {name}: COULD NOT BE RUN: {reason}");
                status = ExitCode::FAILURE;
            }
        }
        println!("({name} took {:.1} s)", start.elapsed().as_secs_f64());
    }
    status
}
