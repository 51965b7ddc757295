//! What a recorder keeps of threads, engines and variables that are gone, and what observers of an idle engine cost.

#![cfg(target_os = "linux")]

use raddle_testkit as common;

use std::{collections::HashMap, process::Command, thread, time::Duration};

use common::watched;
use raddle::{
    Engine, EngineKind,
    trace::{Recorder, Watchdog},
};

const MIB: usize = 1 << 20;

/// Returns by how many bytes the memory of this process grows while `f` runs, after `f` has run once.
fn growth(mut f: impl FnMut()) -> usize {
    f();
    let before = common::resident_bytes();
    f();
    common::resident_bytes().saturating_sub(before)
}

/// Runs `f` on a thread of its own, to its end.
fn on_a_thread(name: Option<String>, f: impl FnOnce() + Send + 'static) {
    let builder = name.into_iter().fold(thread::Builder::new(), |builder, name| builder.name(name));
    builder.spawn(f).unwrap().join().unwrap();
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_threads_come_and_go() {
    if !common::is_child() {
        return;
    }
    let recorder = Recorder::new();
    let engine = Engine::builder().kind(EngineKind::Naive).recorder(&recorder).build().unwrap();
    let grown = growth(|| {
        for _ in 0..100 {
            let engine = engine.clone();
            on_a_thread(None, move || (0..10_000).for_each(|_| engine.op("run").push((), |()| {}).unwrap()));
        }
    });
    // Each thread fills a quarter of a ring of 2 MiB, and no trace is taken.
    assert!(grown < 20 * MIB, "{grown} bytes");
    assert!(recorder.take().lost() > 0);
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_engines_come_and_go() {
    if !common::is_child() {
        return;
    }
    let recorder = Recorder::new();
    let grown = growth(|| {
        for round in 0..4_000 {
            let engine = Engine::builder().kind(EngineKind::Naive).recorder(&recorder).build().unwrap();
            engine.op("run").push((), |()| {}).unwrap();
            if round % 500 == 0 {
                assert!(recorder.take().ops().len() <= 500);
            }
        }
    });
    assert!(grown < 5 * MIB, "{grown} bytes");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_named_variables_come_and_go() {
    if !common::is_child() {
        return;
    }
    // The smallest ring loses the events of almost all deletions.
    for recorder in [Recorder::with_capacity(0), Recorder::new()] {
        let engine = Engine::builder().workers(1).pin(false).recorder(&recorder).build().unwrap();
        let grown = growth(|| {
            for number in 0..50_000 {
                let x = engine.var(0).named(format!("{number:0>400}"));
                engine.op("run").push(x.write(), |x| *x += 1).unwrap();
                if number % 2_000 == 0 {
                    engine.wait_for_all().unwrap();
                    drop(recorder.take());
                }
            }
        });
        assert!(grown < 10 * MIB, "{grown} bytes");
        let x = engine.var(0).named("the last one");
        drop(recorder.take());
        engine.op("run").push(x.write(), |_| {}).unwrap();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        let op = trace.ops().iter().rfind(|op| op.name.as_str() == "run").unwrap();
        assert_eq!(trace.variable(op.accesses[0].0), "the last one");
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn what_is_gone_takes_no_memory() {
    for name in
        ["in_a_child_threads_come_and_go", "in_a_child_engines_come_and_go", "in_a_child_named_variables_come_and_go"]
    {
        common::child_succeeds(name);
    }
}

/// Returns the processor time that the threads of this process have used.
fn processor_time() -> Duration {
    let of = |task: &std::path::Path| -> Option<u64> {
        std::fs::read_to_string(task.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    Duration::from_nanos(tasks.filter_map(|task| of(&task.unwrap().path())).sum())
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_many_operations_are_pending() {
    if !common::is_child() {
        return;
    }
    let path = std::env::temp_dir().join(format!("raddle-idle-{}.pftrace", std::process::id()));
    let builder = || Engine::builder().workers(1).pin(false);
    for profiled in [true, false] {
        let watchdog = Watchdog::new().budget("none", Duration::from_millis(400));
        let builder = if profiled { builder().profile(&path) } else { builder().watchdog(watchdog) };
        let engine = builder.build().unwrap();
        let x = engine.var(0u64);
        let gate = common::hold(&engine, x.token());
        for _ in 0..20_000 {
            engine.op("waits").push(x.write(), |x| *x += 1).unwrap();
        }
        // The first times include what it takes to see the pushes.
        let mut times = (0..6).map(|_| {
            let before = processor_time();
            thread::sleep(Duration::from_secs(2));
            processor_time() - before
        });
        assert!(times.any(|used| used < Duration::from_millis(100)), "with a profile: {profiled}");
        gate.open();
        engine.wait_for_all().unwrap();
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn what_is_pending_costs_a_profile_and_a_watchdog_nothing() {
    common::child_succeeds("in_a_child_many_operations_are_pending");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_address_space_is_scarce() {
    if !common::is_child() {
        return;
    }
    let recorder = Recorder::with_capacity(usize::MAX);
    let engine = Engine::builder().workers(1).pin(false).recorder(&recorder).build().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let threads: Vec<_> = (0..20)
        .map(|_| {
            let (engine, sender) = (engine.clone(), sender.clone());
            thread::Builder::new().stack_size(1 << 18).spawn(move || {
                (0..20).for_each(|_| engine.op("run").push((), |()| {}).unwrap());
                sender.send(()).unwrap();
                thread::park();
            })
        })
        .collect();
    threads.iter().flatten().for_each(|_| receiver.recv().unwrap());
    engine.wait_for_all().unwrap();
    let trace = recorder.take();
    assert!(trace.ops().iter().any(|op| op.name.as_str() == "run"));
    threads.into_iter().flatten().for_each(|thread| {
        thread.thread().unpark();
        thread.join().unwrap();
    });
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_recorder_takes_no_more_address_space_than_there_is() {
    let name = common::test_path("in_a_child_address_space_is_scarce");
    let output = Command::new("sh")
        .args(["-c", r#"ulimit -v 1500000 && exec "$@""#, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture"])
        .env("RADDLE_TEST_CHILD", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_capacity_beyond_the_maximum_is_the_maximum() {
    let recorder = Recorder::with_capacity(usize::MAX);
    let engine = Engine::builder().kind(EngineKind::Naive).recorder(&recorder).build().unwrap();
    engine.op("run").push((), |()| {}).unwrap();
    assert_eq!((recorder.take().ops().len(), recorder.take().lost()), (1, 0));
}

#[test]
#[cfg_attr(miri, ignore = "thousands of threads take too long")]
fn each_of_many_threads_has_a_row_of_its_own() {
    watched(|| {
        let path = std::env::temp_dir().join(format!("raddle-rows-{}.json", std::process::id()));
        let engine = Engine::builder().kind(EngineKind::Naive).profile(&path).build().unwrap();
        for number in 0..4_500 {
            let (name, pushing) = (format!("t{number}"), engine.clone());
            let op = name.clone();
            on_a_thread(Some(name), move || pushing.op(op).push((), |()| {}).unwrap());
        }
        engine.shutdown(raddle::Shutdown::Drain, None).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let part = |line: &str, from: &str, to: char| {
            Some(line.split_once(from)?.1.split(to).next().unwrap_or_default().to_owned())
        };
        let row = |line: &str| part(line, r#""tid":"#, ',');
        let of = |kind: &'static str| text.lines().filter(move |line| line.contains(kind));
        let rows: HashMap<String, String> = of(r#""thread_name""#)
            .map(|line| (row(line).unwrap(), part(line, r#""args":{"name":""#, '"').unwrap()))
            .collect();
        let mut slices = 0;
        for line in of(r#""ph":"X""#) {
            assert_eq!(part(line, r#""name":""#, '"').as_ref(), rows.get(&row(line).unwrap()), "{line}");
            slices += 1;
        }
        assert_eq!(slices, 4_500);
    });
}
