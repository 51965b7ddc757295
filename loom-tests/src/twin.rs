//! Models that must fail.

use std::process::Command;

use raddle::internals::{Step, remove};

/// Runs `f`, a model, with `step` taken out of the library.
pub fn without(step: Step, f: impl FnOnce()) {
    remove(Some(step));
    f();
    remove(None);
}

/// Runs the ignored test `twin` in a process of its own, and shows that it fails with `needle` in its last words.
///
/// # Panics
/// If it does not.
pub fn must_fail(twin: &str, needle: &str) {
    let program = std::env::current_exe().expect("a running test has a path");
    let output = Command::new(program)
        .args(["--exact", twin, "--ignored", "--nocapture", "--test-threads", "1"])
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("a test can be started");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(said.contains("running 1 test"), "there is no twin `{twin}`:\n{said}");
    assert!(!output.status.success(), "the planted bug was not found:\n{said}");
    assert!(said.contains(needle), "it failed for another reason than `{needle}`:\n{said}");
}
