//! Runs every benchmark: `cargo bench`. Words after `--` choose some of them: `cargo bench -- push_run latency`.
//!
//! They are in a package of their own, with what they compare raddle with, so that nothing else has to build that.

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
        .expect("cargo can be started");
    exit(status.code().unwrap_or(1));
}
