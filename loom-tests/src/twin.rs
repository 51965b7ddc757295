//! Twins: models that must fail.

use std::process::Command;

use raddle::internals::{Step, remove};

/// Runs the model `f` with `step` removed from the library.
pub fn without(step: Step, f: impl FnOnce()) {
    remove(Some(step));
    f();
    remove(None);
}

/// Runs the ignored test `$twin` of the calling module in a separate process and asserts that it fails with `$needle`
/// in its output.
///
/// # Panics
/// If the test is not ignored, passes, or fails without `$needle`.
#[macro_export]
macro_rules! must_fail {
    ($twin:ident, $needle:expr) => {{
        let _: fn() = $twin;
        $crate::twin_must_fail(concat!(module_path!(), "::", stringify!($twin)), $needle)
    }};
}

/// See [`must_fail`]. The path `twin` begins with the name of its crate.
#[doc(hidden)]
pub fn twin_must_fail(twin: &str, needle: &str) {
    let twin = twin.split_once("::").map_or(twin, |(_, path)| path);
    let program = std::env::current_exe().expect("the path of this test program should be known");
    let output = Command::new(program)
        .args(["--exact", twin, "--ignored", "--nocapture", "--test-threads", "1"])
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("the process of the twin should start");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(text.contains("running 1 test"), "there is no ignored test `{twin}`:\n{text}");
    assert!(!output.status.success(), "the twin `{twin}` passed, so the model does not need the removed step:\n{text}");
    assert!(text.contains(needle), "the twin `{twin}` failed without `{needle}`:\n{text}");
}
