//! Records the compiler that builds the benchmarks, to be named in their reports.

use std::{env, process::Command};

fn main() {
    let version = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .arg("--version")
        .output()
        .map_or_else(|_| "unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    println!("cargo::rustc-env=RADDLE_RUSTC={version}");
    println!("cargo::rerun-if-changed=build.rs");
}
