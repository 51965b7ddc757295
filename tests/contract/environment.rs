//! `RADDLE_ENGINE` selects the kind of engine, but does not override a kind set by the program. Each case runs in its
//! own process and environment.

#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::thread;

use common::shapes::*;
use common::{child, is_child};
use raddle::{Engine, EngineKind, error::BuildError};

/// The environment variable that tells the child which result to expect.
const EXPECT: &str = "RADDLE_TEST_EXPECT";

#[track_caller]
fn expect(value: Option<&str>, expected: &str) {
    let mut variables = vec![(EXPECT, expected)];
    variables.extend(value.map(|value| ("RADDLE_ENGINE", value)));
    let (success, text) = child("in_a_child_the_engine_is_as_expected", &variables);
    assert!(success, "RADDLE_ENGINE={value:?} did not result in {expected}: {text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_engine_is_as_expected() {
    if !is_child() {
        return;
    }
    let expected = std::env::var(EXPECT).expect("the parent should set the variable");
    match Engine::builder().build() {
        Ok(engine) => {
            assert_eq!(engine.kind().to_string(), expected);
            let value = engine.var(1);
            engine.op("").push(value.write(), |value| *value += 1).unwrap();
            assert_eq!(engine.get(&value).unwrap(), 2);
        }
        Err(BuildError::UnknownEngine(value)) => {
            assert_eq!(expected, "an error");
            assert_eq!(Some(value.as_str()), std::env::var("RADDLE_ENGINE").ok().as_deref());
            let text = BuildError::UnknownEngine(value).to_string();
            for name in ["RADDLE_ENGINE", "Naive", "Pooled", "PerDevice"] {
                assert!(text.contains(name), "`{text}` does not name {name}");
            }
            assert!(matches!(Engine::global(), Err(BuildError::UnknownEngine(_))));
            // A second request for the global engine returns the same error.
            assert!(matches!(Engine::global(), Err(BuildError::UnknownEngine(_))));
        }
        Err(error) => panic!("{error}"),
    }
    // A kind set by the program is never overridden, not even by an invalid value.
    for kind in [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice] {
        assert_eq!(
            Engine::builder().kind(kind).workers(1).build().expect("the kind that is set should be used").kind(),
            kind
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn each_kind_is_selected_by_its_name() {
    for kind in ["Naive", "Pooled", "PerDevice"] {
        expect(Some(kind), kind);
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_default_without_a_value_is_per_device() {
    expect(None, "PerDevice");
    expect(Some(""), "PerDevice");
    expect(Some(" "), "PerDevice");
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn names_are_case_insensitive() {
    expect(Some("naive"), "Naive");
    expect(Some("POOLED"), "Pooled");
    expect(Some(" perdevice "), "PerDevice");
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn an_unknown_engine_is_an_error() {
    for value in ["ThreadedEngine", "Naive,Pooled", "pooled2"] {
        expect(Some(value), "an error");
    }
}

/// Invalid Unicode in the value is an error, not a panic.
#[cfg(target_os = "linux")]
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_value_that_is_not_unicode_is_an_error() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt, process::Command};
    let name = common::test_path("in_a_child_a_value_that_is_not_unicode_is_an_error");
    let output = Command::new(std::env::current_exe().expect("the test binary should have a path"))
        .args(["--exact", &name, "--ignored", "--nocapture"])
        .env("RADDLE_TEST_CHILD", "1")
        .env("RADDLE_ENGINE", OsStr::from_bytes(b"Na\xffive"))
        .output()
        .expect("the test binary should start");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_value_that_is_not_unicode_is_an_error() {
    if is_child() {
        assert!(matches!(Engine::builder().build(), Err(BuildError::UnknownEngine(_))));
    }
}

/// In the first case, the program ends while the global engine, which is never dropped, has pending operations. In the
/// second, a thread unwinds while it owns an engine.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_program_may_end_with_a_busy_global_engine() {
    for name in ["in_a_child_the_program_ends_with_a_busy_engine", "in_a_child_a_thread_panics_with_an_engine"] {
        common::child_succeeds(name);
    }
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_program_ends_with_a_busy_engine() {
    if !is_child() {
        return;
    }
    let engine = Engine::global().expect("an engine");
    for _ in 0..1000 {
        engine.op("").push((), |()| thread::sleep(std::time::Duration::from_millis(50))).unwrap();
    }
    let token = engine.token();
    // The operation never completes because its completion is leaked.
    engine.push_async(|_, done| std::mem::forget(done), [], [&token]).unwrap();
    std::mem::forget(token);
}

/// A thread drops its engine while it unwinds. The drop waits and does not panic again.
#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_thread_panics_with_an_engine() {
    if !is_child() {
        return;
    }
    for kind in common::KINDS {
        let ran = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let inner = std::sync::Arc::clone(&ran);
        let result = thread::spawn(move || {
            let engine = common::engine(kind, 1);
            let value = engine.var(0);
            for _ in 0..100 {
                let inner = std::sync::Arc::clone(&inner);
                engine
                    .op("")
                    .push(value.write(), move |_| _ = inner.fetch_add(1, std::sync::atomic::Ordering::SeqCst))
                    .unwrap();
            }
            engine.op("").push_any(value.write(), |_| Err("never reported")).unwrap();
            std::panic::resume_unwind(Box::new("on purpose"));
        })
        .join();
        assert!(result.is_err());
        assert_eq!(ran.load(std::sync::atomic::Ordering::SeqCst), 100);
    }
}
