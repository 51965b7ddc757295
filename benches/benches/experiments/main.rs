//! Experiments on a real GPU, for behaviour on which the engine relies and which the driver's documentation leaves
//! open. Each experiment prints its measurements, and a line that begins with `verdict` and states the conclusion.
//!
//! ```text
//! experiments [--list] [--quick] [NAME | NUMBER]...
//! ```
//!
//! Exit status 0: all selected experiments ran; 1: one could not run, or is unknown; 77: there is no GPU.

#[cfg(feature = "cuda")]
mod cuda;

#[cfg(feature = "cuda")]
fn main() -> std::process::ExitCode {
    cuda::main()
}

#[cfg(not(feature = "cuda"))]
fn main() {
    println!(
        "the experiments need the feature `cuda`: cargo bench -p raddle-benches --features cuda --bench experiments"
    );
}
