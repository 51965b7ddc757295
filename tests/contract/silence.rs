//! What a program without a logger would not learn is written to standard error.

#![cfg(target_os = "linux")]

use raddle_testkit as common;

use std::{fmt, process, sync::Arc};

use common::{KINDS, child, engine, is_child};
use raddle::{Engine, EngineKind};

/// Runs the ignored test `name` on each kind of engine, and returns what each run wrote.
#[track_caller]
fn written(name: &str) -> Vec<String> {
    let run = |kind: EngineKind| {
        let (success, text) = child(name, &[("RADDLE_ENGINE", &kind.to_string())]);
        assert!(success, "{kind}: {text}");
        text
    };
    KINDS.map(run).into()
}

fn fail(engine: &Engine) {
    engine.op("load").try_push((), |()| Err("no such file".into())).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn an_engine_that_ends_says_which_failure_was_never_reported() {
    for text in written("in_a_child_an_engine_ends_with_a_failure") {
        assert_eq!(text.matches("never reported").count(), 1, "{text}");
        assert!(text.contains("no such file") && text.contains("`load`"), "{text}");
    }
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_an_engine_ends_with_a_failure() {
    if is_child() {
        fail(&Engine::builder().workers(1).pin(false).build().unwrap());
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_process_that_ends_says_which_failure_was_never_reported() {
    for text in written("in_a_child_the_process_ends_with_a_failure") {
        assert_eq!(text.matches("never reported").count(), 1, "{text}");
        assert!(text.contains("no such file") && !text.contains("delivered"), "{text}");
    }
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_process_ends_with_a_failure() {
    if is_child() {
        let engine = Engine::global().unwrap();
        let token = engine.token();
        engine.op("delivered").try_push((), |()| Err("delivered".into())).unwrap();
        engine.wait_for_all().unwrap_err();
        fail(engine);
        // It ends behind the one that fails, since there is one worker at least, or all of them.
        while engine.pending() > 0 {
            engine.wait_for_var(&token).unwrap();
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_lines_can_be_turned_off() {
    for text in written("in_a_child_a_quiet_engine_fails") {
        assert!(!text.contains("never reported"), "{text}");
    }
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_quiet_engine_fails() {
    if is_child() {
        fail(&Engine::builder().workers(1).pin(false).stderr(false).build().unwrap());
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_line_that_cannot_be_written_does_not_end_the_process() {
    written("in_a_child_nothing_more_can_be_written");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_nothing_more_can_be_written() {
    if is_child() {
        // Standard error is a file. A write beyond the limit sends a signal that ends the process by default.
        let limit = |most| {
            let most = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the call reads the limit.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const most) }, 0);
        };
        limit(0);
        fail(&Engine::builder().workers(1).pin(false).build().unwrap());
        limit(libc::RLIM_INFINITY);
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_flood_of_lines_is_cut_and_counted() {
    let (success, text) = child("in_a_child_many_engines_fail", &[]);
    assert!(success, "{text}");
    let lines = text.matches("never reported").count();
    assert!((2..=42).contains(&lines), "{lines} lines of 1,000");
    assert!(text.contains("lines before this one were left out"), "{text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_many_engines_fail() {
    if !is_child() {
        return;
    }
    for _ in 0..1000 {
        fail(&engine(EngineKind::Naive, 1));
    }
    std::thread::sleep(std::time::Duration::from_millis(1100));
    fail(&engine(EngineKind::Naive, 1));
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_status_of_the_process_is_the_programs_own() {
    let (success, text) = child("in_a_child_the_program_exits", &[]);
    assert!(!success && text.starts_with("exit status: 7"), "{text}");
    assert!(text.contains("the process ends with a failure"), "{text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_program_exits() {
    if is_child() {
        let kept = Arc::new(engine(EngineKind::Naive, 1));
        fail(&kept);
        process::exit(7);
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn operations_that_the_end_of_the_process_loses_are_said() {
    let (_, text) = child("in_a_child_the_program_ends_before_its_operations", &[]);
    assert!(text.starts_with("exit status: 0"), "{text}");
    let lines: Vec<_> = text.lines().filter(|line| line.contains("the process ends before")).collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines.iter().all(|line| line.contains("before 2 of its operations, one of them `s")), "{text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_program_ends_before_its_operations() {
    if is_child() {
        for kind in KINDS {
            let kept = Arc::new(engine(kind, 1));
            let disk = kept.var(0);
            kept.op("send").writes([disk.token()]).push(raddle::completion(), std::mem::forget).unwrap();
            kept.op("save").push(disk.write(), |_| ()).unwrap();
            // What has completed is not counted.
            kept.op("done").submit((), |()| ()).unwrap().wait().unwrap();
            std::mem::forget((kept, disk));
        }
        process::exit(0);
    }
}

/// The text of a failure is program code. It may call `exit` again, which the standard library punishes with an abort.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_text_that_calls_exit_does_not_abort_the_end_of_the_process() {
    let (success, text) = child("in_a_child_a_text_calls_exit", &[]);
    assert!(!success && text.starts_with("exit status: 7"), "{text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_text_calls_exit() {
    #[derive(Debug)]
    struct Exits;
    impl fmt::Display for Exits {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            process::exit(3)
        }
    }
    impl std::error::Error for Exits {}
    if is_child() {
        let kept = Arc::new(engine(EngineKind::Naive, 1));
        kept.op("load").try_push((), |()| Err(Exits.into())).unwrap();
        process::exit(7);
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_build_that_fails_does_not_turn_the_lines_off() {
    for text in written("in_a_child_a_quiet_engine_cannot_be_built") {
        assert_eq!(text.matches("never reported").count(), 1, "{text}");
    }
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_quiet_engine_cannot_be_built() {
    if is_child() {
        Engine::builder().workers(0).stderr(false).build().unwrap_err();
        fail(&Engine::builder().workers(1).pin(false).build().unwrap());
    }
}
