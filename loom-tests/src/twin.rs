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

/// Like [`must_fail`], for a twin that fails only under loom: the removed step orders accesses, which shuttle takes for
/// ordered, or the failure is a race on one of the library's own cells, which shuttle does not see. Under shuttle, does
/// nothing.
#[macro_export]
macro_rules! must_fail_under_loom {
    ($twin:ident, $needle:expr) => {{
        if cfg!(raddle_loom) {
            $crate::must_fail!($twin, $needle);
        }
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
    // shuttle may find another consequence of the removed step first.
    let needle = if cfg!(raddle_shuttle) && twin_is_of_loom(twin) { "panicked at" } else { needle };
    assert!(text.contains(needle), "the twin `{twin}` failed without `{needle}`:\n{text}");
}

/// Returns whether a twin is one of the models for loom, which are the only ones in modules.
fn twin_is_of_loom(twin: &str) -> bool {
    twin.contains("::")
}
