//! What a real GPU does where the engine relies on it and the driver's documentation is silent or vague. Each
//! experiment prints what it has measured and one line that begins with `verdict`, which says what follows.
//!
//! ```text
//! experiments [--list] [--quick] [NAME | NUMBER]...
//! ```
//!
//! Status 0: all that were chosen have run; 1: one has not; 77: there is no GPU.

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
