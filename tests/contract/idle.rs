//! An idle engine uses no CPU after its spin time.

#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

use raddle_testkit as common;

use std::{
    thread,
    time::{Duration, Instant},
};

use common::shapes::*;
use common::{child_succeeds, cpu_ticks, hold, is_child, share_of_a_core};
use raddle::{Device, Engine, EngineKind, IdlePolicy, Property, gpu::SimulatedGpu};

fn work(engine: &Engine) {
    let value = engine.var(0);
    for _ in 0..1000 {
        engine.op("").push(value.write(), |value| *value += 1).unwrap();
        for property in [Property::CopyToGpu, Property::CopyFromGpu, Property::CpuPrioritized] {
            engine.op("").property(property).push((), |()| {}).unwrap();
        }
    }
    assert_eq!(engine.get(&value).unwrap(), 1000);
    engine.wait_for_all().unwrap();
}

/// Pushes an operation to each lane of a GPU. The first one starts the lane's thread.
fn work_on_gpu(engine: &Engine) {
    for property in [Property::CopyToGpu, Property::CopyFromGpu, Property::Normal, Property::GpuPrioritized] {
        engine.op("").on(Device::Gpu(0)).property(property).push((), |()| {}).unwrap();
    }
    engine.wait_for_all().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_worker_does_not_search_on_the_core_of_a_thread_that_waits() {
    child_succeeds("in_a_child_a_worker_does_not_search_on_the_core_of_a_thread_that_waits");
}

#[test]
#[ignore = "confines its process to one core; run by another test in a separate process"]
fn in_a_child_a_worker_does_not_search_on_the_core_of_a_thread_that_waits() {
    assert!(is_child());
    let core = core_affinity::get_core_ids().expect("the cores")[0];
    assert!(core_affinity::set_for_current(core));
    // Returns the CPU time of turns in which a thread computes for some microseconds, pushes, and waits.
    let turns = |idle| {
        let engine = Engine::builder().workers(1).pin(false).idle(idle).build().unwrap();
        let (value, before) = (engine.var(0), cpu_ticks());
        for _ in 0..2_000 {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(6) {}
            engine.op("").push(value.write(), |value| *value += 1).unwrap();
            engine.wait_for_var(&value).unwrap();
        }
        cpu_ticks() - before
    };
    // Alternately, so that load from other processes raises both.
    let (mut searches, mut parks) = (0, 0);
    for _ in 0..10 {
        searches += turns(IdlePolicy::default());
        parks += turns(IdlePolicy::Park);
    }
    assert!(searches < 2 * parks, "{searches} ticks, and {parks} without searches");
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn an_idle_engine_uses_no_cpu() {
    child_succeeds("in_a_child_an_idle_engine_uses_no_cpu");
}

#[test]
#[ignore = "measures the CPU time of its process; run by another test in a separate process"]
fn in_a_child_an_idle_engine_uses_no_cpu() {
    assert!(is_child());
    let mut engines = Vec::new();
    for kind in [EngineKind::Pooled, EngineKind::PerDevice] {
        for idle in [IdlePolicy::Park, IdlePolicy::default(), IdlePolicy::SpinThenPark(Duration::from_millis(20))] {
            engines.push(Engine::builder().kind(kind).workers(4).idle(idle).build().unwrap());
        }
    }
    let with_gpu = Engine::builder().kind(EngineKind::PerDevice).workers(4).gpu(SimulatedGpu::new()).build().unwrap();
    // First, the engines are new and unused.
    thread::sleep(Duration::from_millis(100));
    let share = share_of_a_core();
    assert!(share < 0.04, "seven unused engines use {share} of a core");
    // Next, the engines are idle again after work.
    engines.iter().for_each(work);
    work_on_gpu(&with_gpu);
    thread::sleep(Duration::from_millis(100));
    let share = share_of_a_core();
    assert!(share < 0.04, "seven idle engines use {share} of a core");
    // The workers have given back free records.
    thread::sleep(Duration::from_secs(1));
    // An operation is pending and three threads wait for it, one of them inside an operation, but no operation is
    // ready to run.
    let engine = &engines[1];
    let token = engine.token();
    let gate = hold(engine, &token);
    engine.push_sync(|_| {}, [], [&token]).unwrap();
    let (inner, held) = (engine.clone(), token.clone());
    let inside = engine.op("").submit((), move |()| inner.wait_for_var(&held)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| engine.wait_for_all().unwrap());
        scope.spawn(|| engine.wait_for_var(&token).unwrap());
        thread::sleep(Duration::from_millis(100));
        let share = share_of_a_core();
        gate.open();
        // The search for cycles of waits takes at most a sixteenth of a core, and a search after a long sleep is slow.
        assert!(share < 0.1, "waiting threads use {share} of a core");
    });
    inside.wait().unwrap().unwrap();
    // A spinning engine does use a core, so the measurement works.
    let spinning = Engine::builder().kind(EngineKind::Pooled).workers(1).idle(IdlePolicy::Spin).build().unwrap();
    let share = share_of_a_core();
    assert!(share > 0.2, "a spinning engine uses only {share} of a core");
    drop(spinning);
}
