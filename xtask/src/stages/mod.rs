//! The stages, one a file.

mod bench;
mod clippy;
mod counts;
mod cuda;
mod doc;
mod examples;
mod files;
mod fmt;
mod fuzz;
mod models;
mod mpi;
mod msrv;
mod mxnet;
mod package;
mod quick;
mod sanitizers;
mod test;

use crate::tools::Result;

/// A set of checks that can be run by its name.
pub struct Stage {
    pub name: &'static str,
    pub about: &'static str,
    pub run: fn() -> Result,
}

const fn stage(name: &'static str, about: &'static str, run: fn() -> Result) -> Stage {
    Stage { name, about, run }
}

/// All stages, cheapest first. `quick` is only for runs by name.
pub const STAGES: &[Stage] = &[
    stage("quick", "some of the checks, for work in progress, in under three minutes", quick::run),
    stage("fmt", "the format of the sources", fmt::run),
    stage("package", "the lock files, what the package contains, and the layers of the sources", package::run),
    stage("clippy", "lints as errors, in every build of the library", clippy::run),
    stage("doc", "the documentation without warnings; whether the names in ARCHITECTURE.md exist", doc::run),
    stage("test", "unit, integration and documentation tests, and those of the examples", test::run),
    stage("msrv", "the library with Rust 1.85, its lowest supported version", msrv::run),
    stage("cuda", "tests with the feature `cuda`, on a stand-in for the driver", cuda::run),
    stage("faults", "whether a thread paused inside a protocol delays only what it may", test::faults),
    stage("soak", "random work of every kind on short-lived engines, for 20 seconds", test::soak),
    stage("bench", "whether each benchmark runs, briefly, and whether the README has the last results", bench::run),
    stage("counts", "whether an operation takes over 5 % more instructions than benches/counts.txt", counts::run),
    stage("examples", "the examples, briefly; the training of `examples/train`", examples::run),
    stage("files", "traces, dumps and pages, read by Perfetto's schema, Graphviz and a browser", files::run),
    stage("mpi", "the training of `examples/train` by four processes", mpi::run),
    stage("mxnet", "MXNet 1.9.1 on raddle: trainings and tests with the results of its own engine", mxnet::run),
    stage("algorithm", "every execution of a model of the tracker's algorithm", models::algorithm),
    stage(
        "shuttle",
        "models of whole engines, in random schedules; the models for loom, exhaustively",
        models::shuttle,
    ),
    stage("loom", "the models of loom-tests, and whether each fails without each of its edges", models::loom),
    stage("sanitizers", "AddressSanitizer, LeakSanitizer, ThreadSanitizer, MemorySanitizer", sanitizers::run),
    stage("fuzz", "the fuzz targets, on their corpora and, with a nightly toolchain, on new inputs", fuzz::run),
];

/// Builds what later stages run, while a stage waits more than it computes. A stage repeats a build that has failed,
/// and waits for cargo's lock on one that has not ended.
pub fn build_ahead() -> Result {
    // Errors are those of the stages.
    let _ = models::build();
    let _ = sanitizers::build();
    let _ = fuzz::build();
    Ok(())
}
