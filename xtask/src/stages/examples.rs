//! The examples, each of which checks its own result.

use std::fs;

use crate::tools::{Cmd, Result, cargo, empty_folder, require, require_files};

/// Starts a program in the profile in which the stage `test` has built it.
fn example(line: &str) -> Cmd {
    cargo("run --quiet --profile test").args(line.split_whitespace())
}

pub fn run() -> Result {
    let mut names: Vec<_> = fs::read_dir("examples")
        .map_err(|error| error.to_string())?
        .flatten()
        .filter_map(|file| file.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned))
        .collect();
    names.sort();
    for name in names {
        example(&format!("--example {name}")).run()?;
        example(&format!("--example {name}")).env("RADDLE_ENGINE", "Naive").run()?;
    }
    let folder = empty_folder("examples")?;
    let frames = example("--package frames -- --frames 24 --size 160x120 --lose-every 7 --output");
    frames.arg(folder.join("frames.png")).arg("--report").arg(folder.join("report.html")).run()?;
    require_files(&folder, ["frames.png", "report.html", "report.pftrace"])?;
    example("--package gpu_pipeline -- --gpu simulated --chunks 60 --chunk-kib 64").run()?;

    // The training must reach its accuracy within a minute, bitwise identically on all engines, and its updates must
    // overlap with the backward pass.
    let train = cargo("run --release --package raddle-train -- --within 60 --picture").arg(folder.join("mistakes.png"));
    let text = train.arg("--trace").arg(folder.join("train.pftrace")).output()?;
    println!("{text}");
    require_files(&folder, ["mistakes.png", "train.pftrace"])?;
    let overlaps = |line: &str| line.contains(" updates of the last epoch ran during the backward pass");
    let overlap = text.lines().find(|line| overlaps(line) && !line.starts_with("0 "));
    require(overlap.is_some(), "no update ran during the backward pass")
}
