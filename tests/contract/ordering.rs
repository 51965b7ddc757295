//! Random programs on every kind of engine, checked against the rule that conflicting operations run in push order.
//!
//! With one pushing thread, the results must equal those of a serial run. With several, they must equal those of *some*
//! serial run consistent with every variable, every thread and the clock; see `common::program` for the check.

#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use common::{
    KINDS, THREADED, all_engines, engine,
    program::{Finish, How, Program, Random, Shape, Step, Watch, check_serial, check_some_order, explain, fewer, run},
    watched,
};
use raddle::{Engine, EngineBuilder, EngineKind, Shutdown, trace::Recorder};

fn serial(engine: &Engine, label: &str, shape: &Shape, seed: u64, watch: Watch) {
    let program = Arc::new(Program::generate(shape, &mut Random::new(seed)));
    let history = run(&program, engine, watch);
    check_serial(&program, &history).unwrap_or_else(|error| panic!("{label}, seed {seed}: {error}"));
    if watch.logs {
        check_order(&program, &history, label, seed);
    }
}

/// Runs a program on an engine that records a trace, and checks the results and the order of the recorded runs.
fn check_recorded(shape: &Shape, seed: u64, plan: EngineBuilder) {
    let recorder = Recorder::with_capacity(64 << 20);
    let engine = plan.pin(false).recorder(&recorder).build().expect("an engine");
    let label = format!("{}, shape {shape:?}", engine.kind());
    let program = Arc::new(Program::generate(shape, &mut Random::new(seed)));
    let history = run(&program, &engine, Watch::EVERYTHING);
    check_order(&program, &history, &label, seed);
    engine.shutdown(Shutdown::Drain, None).expect("nothing should fail");
    let report = recorder.take().check_order().unwrap_or_else(|error| panic!("{label}, seed {seed}: {error}"));
    assert!(report.operations >= shape.operations && report.conflicts > 0, "{report:?}");
}

#[test]
fn recorded_runs_are_in_the_order_of_the_pushes() {
    watched(|| {
        for seed in 0..fewer(24) as u64 {
            let kind = KINDS[seed as usize % 3];
            let (threads, variables) = ([1, 1, 4][seed as usize / 3 % 3], [3, 12, 60][seed as usize / 2 % 3]);
            let shape =
                Shape { variables, operations: fewer(1000), threads, children: threads > 1, ..Shape::default() };
            check_recorded(&shape, seed, Engine::builder().kind(kind).workers(1 + seed as usize % 3));
        }
    });
}

/// Two dropped acquisitions end one after the other before the operation held back by the first one is recorded as
/// ready.
#[test]
fn a_reader_behind_a_dropped_acquisition_is_not_late() {
    for kind in THREADED {
        watched(move || {
            let recorder = Recorder::new();
            let engine = Engine::builder().kind(kind).workers(1).recorder(&recorder).build().unwrap();
            let (x, y) = (engine.var(0), engine.var(0));
            let (go, gone) = mpsc::channel::<()>();
            engine.op("write").push((x.write(), y.write()), move |_| _ = gone.recv()).unwrap();
            let acquisitions = (engine.acquire(x.write()), engine.acquire(y.read()));
            engine.op("read").push((x.read(), y.read()), |_| {}).unwrap();
            drop(acquisitions);
            // Readiness within a microsecond of the push is not checked.
            thread::sleep(Duration::from_millis(1));
            drop(go);
            engine.wait_for_all().unwrap();
            recorder.take().check_order().unwrap();
        });
    }
}

#[test]
fn shuffled_runs_are_in_the_order_of_the_pushes() {
    watched(|| {
        for seed in 0..fewer(16) as u64 {
            let kind = [EngineKind::Pooled, EngineKind::PerDevice][seed as usize % 2];
            let (threads, variables) = ([1, 3][seed as usize / 2 % 2], [3, 12, 60][seed as usize % 3]);
            let shape = Shape { variables, operations: fewer(150), threads, children: threads > 1, ..Shape::default() };
            check_recorded(&shape, seed, Engine::builder().kind(kind).workers(1 + seed as usize % 3).shuffle(seed));
        }
    });
}

fn check_order(program: &Program, history: &common::program::History, label: &str, seed: u64) {
    check_some_order(program, history).unwrap_or_else(|error| panic!("{label}, seed {seed}: {error}"));
}

/// The program has the size of the one with which `MXNet` compares its engine with a serial run: 10,000 operations on
/// 100 variables.
#[test]
fn ten_thousand_operations_over_a_hundred_variables_equal_the_serial_run() {
    watched(|| {
        for (number, (label, engine)) in all_engines().into_iter().enumerate() {
            serial(&engine, &label, &Shape::default(), 1000 + number as u64, Watch::NOTHING);
        }
    });
}

#[test]
fn many_seeds_equal_the_serial_run() {
    watched(|| {
        let engines = all_engines();
        for seed in 0..fewer(120) as u64 {
            let (label, engine) = &engines[seed as usize % engines.len()];
            // The number of variables varies from 2, where most operations conflict, to 100.
            let variables = [2, 3, 5, 10, 30, 100][seed as usize % 6];
            let shape = Shape { variables, operations: fewer(600), ..Shape::default() };
            serial(engine, label, &shape, seed, if seed % 2 == 0 { Watch::NOTHING } else { Watch::EVERYTHING });
        }
    });
}

#[test]
fn programs_that_fail_equal_the_serial_run() {
    watched(|| {
        for seed in 0..fewer(60) as u64 {
            // Each seed gets new engines, since an engine would report failures left over from an earlier seed.
            let engines = all_engines();
            let (label, engine) = &engines[seed as usize % engines.len()];
            let shape = Shape {
                variables: [4, 20, 100][seed as usize % 3],
                operations: fewer(500),
                failures: true,
                ..Shape::default()
            };
            serial(engine, label, &shape, 7000 + seed, Watch::NOTHING);
        }
    });
}

/// The naive engine serves as a second oracle.
#[test]
fn all_kinds_agree_with_the_naive_engine() {
    watched(|| {
        for seed in 50..54 {
            let shape = Shape { operations: fewer(3000), ..Shape::default() };
            let program = Arc::new(Program::generate(&shape, &mut Random::new(seed)));
            let ends = KINDS.map(|kind| run(&program, &engine(kind, 2), Watch::NOTHING).end());
            assert_eq!(ends[0], ends[1], "Naive and Pooled differ with seed {seed}");
            assert_eq!(ends[0], ends[2], "Naive and PerDevice differ with seed {seed}");
        }
    });
}

fn check_concurrent_programs(threads: usize, watch: Watch, seeds: std::ops::Range<u64>) {
    watched(move || {
        for (number, (label, engine)) in all_engines().into_iter().enumerate() {
            for seed in seeds.clone() {
                let variables = [4, 12, 100][(seed as usize + number) % 3];
                let (operations, waits) = (fewer(1500), !watch.backlog);
                let shape = Shape { variables, operations, threads, children: true, waits, ..Shape::default() };
                let mut program = Program::generate(&shape, &mut Random::new(seed * 31 + threads as u64));
                // Operations commute in every second program.
                if seed % 2 == 1 {
                    program.commuting();
                }
                let program = Arc::new(program);
                let history = run(&program, &engine, watch);
                check_order(&program, &history, &format!("{label}, {threads} pushers"), seed);
            }
        }
    });
}

#[test]
fn one_pusher_with_children_is_explained_by_some_order() {
    check_concurrent_programs(1, Watch::EVERYTHING, 0..2);
}

#[test]
fn two_pushers_are_explained_by_some_order() {
    check_concurrent_programs(2, Watch::EVERYTHING, 0..2);
}

#[test]
fn four_pushers_are_explained_by_some_order() {
    check_concurrent_programs(4, Watch::ORDER, 0..2);
}

#[test]
fn four_pushers_are_explained_by_an_order_that_respects_real_time() {
    check_concurrent_programs(4, Watch::EVERYTHING, 10..12);
}

#[test]
fn a_backlog_of_four_pushers_is_explained_by_some_order() {
    check_concurrent_programs(4, Watch { backlog: true, ..Watch::EVERYTHING }, 20..22);
}

#[test]
fn eight_pushers_are_explained_by_some_order() {
    check_concurrent_programs(8, Watch::ORDER, 0..2);
}

/// Eight threads push 10,000 operations on 100 variables to each kind of engine.
#[test]
fn a_large_program_of_eight_pushers_is_explained_by_some_order() {
    watched(|| {
        for kind in KINDS {
            let shape = Shape { threads: 8, ..Shape::default() };
            let program = Arc::new(Program::generate(&shape, &mut Random::new(77)));
            let history = run(&program, &engine(kind, 2), Watch::EVERYTHING);
            check_order(&program, &history, &kind.to_string(), 77);
        }
    });
}

/// Operations on up to 60 variables, most of whose accesses are not in their records, mixed with small ones.
#[test]
fn operations_on_many_variables_are_explained_by_some_order() {
    watched(|| {
        for (seed, kind) in KINDS.into_iter().enumerate() {
            let shape = Shape { accesses: 60, operations: fewer(2000), ..Shape::default() };
            serial(&engine(kind, 2), &kind.to_string(), &shape, seed as u64, Watch::EVERYTHING);
            let shape = Shape { variables: 70, threads: 4, children: true, ..shape };
            let program = Arc::new(Program::generate(&shape, &mut Random::new(seed as u64)));
            let history = run(&program, &engine(kind, 2), Watch::EVERYTHING);
            check_order(&program, &history, &kind.to_string(), seed as u64);
        }
    });
}

/// All operations access the same few variables, so nearly every push conflicts with concurrent ones.
#[test]
fn pushes_that_always_conflict_are_explained_by_some_order() {
    watched(|| {
        for kind in KINDS {
            let shape = Shape { variables: 4, accesses: 4, threads: 8, operations: fewer(6000), ..Shape::default() };
            let program = Arc::new(Program::generate(&shape, &mut Random::new(5)));
            let history = run(&program, &engine(kind, 2), Watch::ORDER);
            check_order(&program, &history, &kind.to_string(), 5);
        }
    });
}

// ------------------------------------------------------------------------------------------ tests of the checks ----

/// Generated operations are pushed in every way, have every property, and access one to eight variables. Some have
/// children, and each thread also waits for all operations.
#[test]
fn generated_programs_cover_every_kind_of_operation() {
    let shape = Shape { operations: 10_000, threads: 2, children: true, ..Shape::default() };
    let program = Program::generate(&shape, &mut Random::new(3));
    assert!(program.operations.len() >= 10_000);
    for count in 1..=8 {
        assert!(
            program.operations.iter().any(|operation| operation.accesses.len() == count),
            "no operation has {count} variables"
        );
    }
    let hows = [
        How::Sync,
        How::Typed,
        How::Submit,
        How::Async(Finish::Inside),
        How::Async(Finish::Elsewhere),
        How::Operator(0),
        How::Operator(7),
    ];
    for how in hows {
        assert!(program.operations.iter().any(|operation| operation.how == how), "no operation is pushed as {how:?}");
    }
    let properties = program.operations.iter().map(|operation| format!("{:?}", operation.property));
    assert_eq!(properties.collect::<std::collections::BTreeSet<_>>().len(), 8);
    assert!(program.operations.iter().any(|operation| !operation.children.is_empty()));
    for thread in &program.threads {
        assert!(thread.iter().any(|step| matches!(step, Step::WaitForAll)));
    }
}

/// Without this test, a checker that accepted every history would go unnoticed.
#[test]
fn the_checker_rejects_tampered_histories() {
    let shape = Shape { variables: 6, operations: 300, threads: 2, waits: false, ..Shape::default() };
    let program = Arc::new(Program::generate(&shape, &mut Random::new(9)));
    let history = run(&program, &engine(EngineKind::Pooled, 2), Watch::EVERYTHING);
    check_some_order(&program, &history).expect("the history should be valid");
    explain(&program, &history).expect("the history should have an order");

    for (what, tampered) in history.tampered() {
        assert!(check_some_order(&program, &tampered).is_err(), "the checker missed {what}");
    }
}

/// Two pushes reach two variables in different orders, as they would in an engine whose push is not atomic.
#[test]
fn the_checker_rejects_a_cyclic_order() {
    let shape = Shape { variables: 2, accesses: 2, operations: 600, threads: 2, waits: false, ..Shape::default() };
    let program = Arc::new(Program::generate(&shape, &mut Random::new(1)));
    let history = run(&program, &engine(EngineKind::Naive, 1), Watch::ORDER);
    let round = history.with_a_cycle(&program).expect("two operations in a row should conflict on both variables");
    let error = explain(&program, &round).expect_err("the order should be cyclic");
    assert!(error.contains("no order explains"), "{error}");
}
