//! Runs every benchmark: `cargo bench`. Words after `--` select some of them: `cargo bench -- push_run latency`.
//!
//! The benchmarks and the runtimes compared with raddle are in a separate package, so other builds do not need them.

use std::{
    env,
    process::{Command, exit},
};

fn main() {
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["bench", "--package", "raddle-benches", "--bench", "all", "--"])
        .args(env::args().skip(1).filter(|argument| argument != "--bench"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo should start");
    exit(status.code().unwrap_or(1));
}
