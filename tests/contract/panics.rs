//! The output of a panic inside an operation: the operation's name, printed by the panic hook, and a backtrace. Each
//! case runs in a separate process.

#![forbid(unsafe_code)]

use raddle_testkit as common;

use common::{child, is_child};
use raddle::{Engine, EngineKind};

/// The environment variable that tells the child whether to install the hook.
const HOOK: &str = "RADDLE_TEST_HOOK";

#[inline(never)]
fn function_of_the_program() {
    panic!("out of thread");
}

#[inline(never)]
fn pushes_of_the_program(engine: &Engine) {
    engine.op("weave").push((), |()| function_of_the_program()).unwrap();
    // The naive engine has run the operation inside the push.
    engine.wait_for_all().unwrap_err();
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_an_operation_panics() {
    if !is_child() {
        return;
    }
    if let Some(hook) = std::env::var_os(HOOK) {
        if hook != "over the default one" {
            std::panic::set_hook(Box::new(|info| eprintln!("the earlier hook: {info}")));
        }
        raddle::install_panic_hook();
        raddle::install_panic_hook();
    }
    let engine = Engine::builder().workers(1).pin(false).build().unwrap();
    pushes_of_the_program(&engine);
    let outside = std::panic::catch_unwind(|| panic!("outside operations"));
    assert!(outside.is_err());
}

fn printed(variables: &[(&str, &str)]) -> String {
    let (success, text) = child("in_a_child_an_operation_panics", variables);
    assert!(success, "{text}");
    text
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_hook_names_the_operation() {
    for kind in ["Naive", "Pooled", "PerDevice"] {
        let text = printed(&[("RADDLE_ENGINE", kind), (HOOK, "1")]);
        let line = format!("operation `weave` pushed at {}:", file!());
        assert_eq!(text.matches(&line).count(), 1, "{text}");
        let named =
            text.lines().position(|line| line.contains("operation `weave` pushed at") && line.ends_with(" panics:"));
        let after = text.lines().nth(named.unwrap_or_else(|| panic!("{text}")) + 1).unwrap();
        assert!(after.contains("the earlier hook: panicked at"), "{text}");
        assert!(text.contains("the earlier hook") && text.contains("outside operations"), "{text}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_hook_names_the_seed_of_an_engine_that_shuffles() {
    let text = printed(&[("RADDLE_ENGINE", "Pooled"), ("RADDLE_SHUFFLE", "42"), (HOOK, "1")]);
    assert!(text.contains("shuffles with seed 42, panics:"), "{text}");
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_hook_does_not_panic_if_standard_error_cannot_be_written() {
    let name = common::test_path("in_a_child_an_operation_panics");
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"])
        .env(common::CHILD, "1")
        .env(HOOK, "over the default one")
        .stdout(std::process::Stdio::null())
        .stderr(std::fs::File::options().write(true).open("/dev/full").unwrap())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

/// Returns the lines of a backtrace that lie in the engine's code for running operations. They are matched by source
/// file or, in builds without line tables, by the path of the function, which other builds do not print.
fn places_that_run_operations(text: &str) -> Vec<&str> {
    let modules = ["run", "frame", "ready_loop", "in_place", "workers"];
    let places = modules.map(|name| [format!("/src/engine/{name}.rs:"), format!("raddle::engine::{name}::")]);
    text.lines().filter(|line| places.iter().flatten().any(|place| line.contains(place))).collect()
}

#[test]
#[cfg_attr(any(miri, windows), ignore = "starts a process and reads its backtrace")]
fn a_short_backtrace_leaves_out_what_runs_operations() {
    for kind in [EngineKind::Naive, EngineKind::Pooled] {
        let name = kind.to_string();
        let text = printed(&[("RADDLE_ENGINE", name.as_str()), ("RUST_BACKTRACE", "1")]);
        assert!(text.contains("function_of_the_program"), "{text}");
        assert_eq!(places_that_run_operations(&text), [""; 0], "{text}");
        // On a naive engine, the backtrace goes on with the program's frames that called the push.
        let shows_the_push = text.lines().any(|line| line.ends_with("pushes_of_the_program"));
        assert_eq!(shows_the_push, kind == EngineKind::Naive, "{text}");
        let text = printed(&[("RADDLE_ENGINE", name.as_str()), ("RUST_BACKTRACE", "full")]);
        assert!(!places_that_run_operations(&text).is_empty(), "{text}");
    }
}
