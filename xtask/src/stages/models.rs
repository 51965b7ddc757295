//! The models: of the algorithm, under shuttle and under loom.

use crate::tools::{Cmd, Result, cargo, has, require, skip};

pub const LOOM: &str = "--cfg raddle_loom --cfg crossbeam_loom";
pub const SHUTTLE: &str = "--cfg raddle_shuttle";

/// Starts `cargo test` on the models under loom.
pub fn loom_test(line: &str) -> Cmd {
    let test = cargo("test --package raddle-loom-tests --profile loom").args(line.split_whitespace());
    test.env("RADDLE_LOOM", "1").flags("loom", LOOM)
}

/// Starts `cargo test` on the models under shuttle.
pub fn shuttle_test(line: &str) -> Cmd {
    let test = cargo("test --package raddle-loom-tests --profile shuttle").args(line.split_whitespace());
    test.flags("shuttle", SHUTTLE)
}

pub fn build() -> Result {
    shuttle_test("--no-run").run()?;
    loom_test("--no-run").run()
}

pub fn algorithm() -> Result {
    // One model after the other: each uses two threads, and the largest needs two gigabytes.
    cargo("test --release --package raddle-algorithm -- --test-threads=1 --nocapture").run()
}

pub fn shuttle() -> Result {
    // Without the flag, the files would contain no tests, and the stage would pass.
    let list = shuttle_test("--test shuttle -- --list").output()?;
    let is_there = list.contains("three_workers_take_each_operation_once_and_all_end: test");
    require(is_there, "the models were built without shuttle")?;
    shuttle_test("--test shuttle --test schedule").run()?;
    let text = shuttle_test("--test models -- --nocapture").output()?;
    println!("{text}");
    // Each model prints the number of its schedules, and whether these are all that can differ.
    let counts = text.lines().filter_map(|line| {
        let (before, after) = line.split_once(" schedules of ")?;
        Some((before.rsplit(' ').next()?.parse::<u64>().ok()?, after.contains(": all; ")))
    });
    let counts: Vec<_> = counts.collect();
    let (all, exhausted) = (counts.len(), counts.iter().filter(|(_, exhausted)| *exhausted).count());
    println!("{all} models: {} schedules; {exhausted} exhausted", counts.iter().map(|(count, _)| count).sum::<u64>());
    Ok(())
}

pub fn loom() -> Result {
    if has("nextest") {
        let run = cargo("nextest run --package raddle-loom-tests --cargo-profile loom");
        return run.env("RADDLE_LOOM", "1").flags("loom", LOOM).run();
    }
    // A model that aborts also ends the other models of its file; the stage fails in that case, too.
    skip("cargo-nextest is not installed: the models of a file share a process");
    loom_test("-- --test-threads=1").run()
}
