//! Memory stays flat over half a million pushes on one variable and over many short-lived engines. The tests run in
//! processes of their own, whose memory they measure.
#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use common::shapes::*;
use common::{
    KINDS, child_succeeds, child_within, eventually, is_child, mapped_bytes, resident_bytes, thread_count, watched_for,
};
use raddle::{Device, Engine, EngineKind, gpu::SimulatedGpu, trace::Recorder};

const PUSHES: usize = 500_000;

/// The number of pushes between two waits, and so the maximum number of pending operations.
const BURST: usize = 2_500;

const MEBIBYTE: usize = 1 << 20;

/// The number of threads that rest after they have used an engine.
const RESTING: usize = 300;

/// The permitted growth, of which the pushes on one variable have a quarter, since a leak of ten bytes in each must
/// exceed it. If a thread is preempted at a bad moment, the epoch may hold back two bursts' records, 0.8 MB each, while
/// the records of a third burst are in use.
const LIMIT: usize = 16 * MEBIBYTE;

#[test]
#[cfg_attr(miri, ignore = "reads /proc")]
fn memory_stays_flat_over_many_pushes_and_many_engines() {
    let name = "in_a_child_there_are_many_pushes_and_many_engines";
    let (success, text) = child_within(Duration::from_secs(300), name, &[]);
    assert!(success, "{text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_there_are_many_pushes_and_many_engines() {
    assert!(is_child());
    watched_for(Duration::from_secs(300), || {
        for kind in [EngineKind::PerDevice, EngineKind::Naive] {
            let engine = Engine::builder().kind(kind).workers(2).pin(false).build().expect("an engine");
            let counter = engine.var(0usize);
            let push = |pushes: usize| {
                for i in 1..=pushes {
                    if i % 8 == 0 {
                        engine
                            .op("read")
                            .push(counter.read(), |counter| assert!(*counter > 0))
                            .expect("the engine should be open");
                    } else {
                        engine
                            .op("count")
                            .push(counter.write(), |counter| *counter += 1)
                            .expect("the engine should be open");
                    }
                    if i % BURST == 0 {
                        engine.wait_for_all().expect("no operation should fail");
                    }
                }
            };
            push(PUSHES / 10);
            let before = resident_bytes();
            push(PUSHES - PUSHES / 10);
            let grown = resident_bytes().saturating_sub(before);
            println!("{kind}: memory grew by {} KiB over {PUSHES} pushes", grown / 1024);
            assert!(grown < LIMIT / 4, "{kind}: memory grew by {grown} bytes");
            let counted = engine.get(&counter).expect("no operation should fail");
            assert_eq!(counted, PUSHES / 10 * 7 / 8 + (PUSHES - PUSHES / 10) * 7 / 8);
            assert_eq!(counter.version(), counted as u64);
        }

        // Memory also stays flat over the other calls that a program may repeat indefinitely.
        for kind in KINDS {
            let engine = Engine::builder().kind(kind).workers(2).pin(false).build().expect("an engine");
            let (token, value) = (engine.token(), engine.var(vec![0_u8; 100]));
            let operator = engine
                .op("operator")
                .operator(value.write(), |value| value.reverse())
                .expect("the engine should be open");
            let push_every_kind = |times: usize| {
                for i in 0..times {
                    let own = engine.var(vec![1_u8; 200]);
                    // So long that a leak of names exceeds the limit.
                    let name = format!("named {i:0>1000}");
                    engine.op(name).push((value.read(), own.write()), |(_, own)| own.push(2)).unwrap();
                    engine.push_async(|_, done| drop(done), [], [&token]).unwrap();
                    engine.push_sync(|_| {}, [&token], [own.token()]).unwrap();
                    drop(engine.wait_for_var_async(&own));
                    drop(engine.wait_for_all_async());
                    drop(engine.op("").submit(value.read(), |value| value.clone()).unwrap());
                    operator.push().unwrap();
                    engine.clear_error(&token).unwrap();
                    if i % 2 == 0 {
                        engine.delete_variable(&own, |_| {}).unwrap();
                    }
                    if i % 100 == 0 {
                        let _ = engine.wait_for_all();
                        engine.clear_errors();
                        engine.get(&value).expect("no operation on the variable should fail");
                    }
                }
            };
            push_every_kind(2_500);
            let before = resident_bytes();
            push_every_kind(10_000);
            let grown = resident_bytes().saturating_sub(before);
            println!("{kind}: memory grew by {} KiB over operations of every kind", grown / 1024);
            assert!(grown < LIMIT / 2, "{kind}: memory grew by {grown} bytes");
        }

        let build_and_drop = |times: usize| {
            for _ in 0..times {
                let engine = Engine::builder().workers(2).pin(false).build().expect("an engine");
                let text = engine.var(String::from("warp"));
                engine
                    .op("append")
                    .push(text.write(), |text| text.push_str(" and weft"))
                    .expect("the engine should be open");
            }
        };
        build_and_drop(50);
        let (bytes, threads) = (resident_bytes(), thread_count());
        build_and_drop(200);
        let grown = resident_bytes().saturating_sub(bytes);
        println!("200 engines: memory grew by {} KiB", grown / 1024);
        assert!(grown < 8 * MEBIBYTE, "200 engines: memory grew by {grown} bytes");
        eventually("no thread of a dropped engine is left", || thread_count() <= threads);
    });
}

/// The memory of a simulated device is memory of this process, and outlives the variables in the device's pool.
#[test]
#[cfg_attr(miri, ignore = "reads /proc")]
fn the_memory_of_simulated_devices_is_freed_with_the_devices() {
    child_succeeds("in_a_child_simulated_devices_come_and_go");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_simulated_devices_come_and_go() {
    assert!(is_child());
    let build_and_drop = |times: usize| {
        for _ in 0..times {
            let builder = Engine::builder().kind(EngineKind::Naive).gpu(SimulatedGpu::new());
            let (engine, gpu) = (builder.build().expect("an engine"), Device::Gpu(0));
            let device = engine.device_var::<u8>(gpu, MEBIBYTE).expect("there should be memory");
            let pinned = engine.pinned_var::<u8>(gpu, MEBIBYTE).expect("there should be memory");
            engine.op("copy").on(gpu).copy_to_device(&pinned, &device).expect("the engine should be open");
            engine.wait_for_all().expect("no operation should fail");
        }
    };
    // At first, memory grows by what the epoch and the allocator hold back.
    build_and_drop(50);
    let before = resident_bytes();
    build_and_drop(100);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < LIMIT, "memory grew by {grown} bytes over 100 devices with 2 MiB each");
}

/// A thread has a ring for each recorder, and names in a ring own memory until they are read.
#[test]
#[cfg_attr(miri, ignore = "reads /proc")]
fn the_memory_of_recorders_is_freed_with_them() {
    child_succeeds("in_a_child_recorders_come_and_go");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_recorders_come_and_go() {
    const RING: usize = 16 * MEBIBYTE;
    assert!(is_child());
    let build_and_drop = |times: usize| {
        for _ in 0..times {
            let recorder = Recorder::with_capacity(RING);
            let engine = Engine::builder().kind(EngineKind::Naive).recorder(&recorder).build().expect("an engine");
            for number in 0..1000 {
                engine.op(format!("{number:01000}")).push((), |()| {}).expect("the engine should be open");
            }
        }
    };
    build_and_drop(10);
    let before = (resident_bytes(), mapped_bytes());
    build_and_drop(50);
    let grown = (resident_bytes().saturating_sub(before.0), mapped_bytes().saturating_sub(before.1));
    assert!(grown.0 < LIMIT, "memory grew by {} bytes over 50 recorders with 1 MB of names each", grown.0);
    assert!(grown.1 < 10 * RING, "the address space grew by {} bytes over 50 recorders", grown.1);
}

/// Threads that have used variables, none of which a worker was needed for, rest. What they keep lies in many slabs.
#[test]
#[cfg_attr(any(miri, raddle_unpooled), ignore = "measures the memory of pooled records")]
fn memory_that_resting_threads_do_not_keep_returns_to_the_system() {
    child_succeeds("in_a_child_threads_rest");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_threads_rest() {
    const USES: usize = 1_200;
    let engine = Engine::builder().workers(2).pin(false).build().expect("an engine");
    let barrier = Barrier::new(RESTING + 1);
    thread::scope(|scope| {
        for _ in 0..RESTING {
            scope.spawn(|| {
                let own = engine.var(0_usize);
                let uses = |count| (0..count).for_each(|_| engine.with(&own, |_| ()).expect("no failure"));
                uses(1);
                barrier.wait();
                barrier.wait();
                uses(USES);
                barrier.wait();
                barrier.wait();
            });
        }
        barrier.wait();
        let before = resident_bytes();
        let grown = || resident_bytes().saturating_sub(before);
        barrier.wait();
        barrier.wait();
        println!("memory grew by {} KiB", grown() / 1024);
        let start = Instant::now();
        while grown() > LIMIT && start.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(100));
        }
        let kept = grown();
        println!("{} KiB of it are kept", kept / 1024);
        barrier.wait();
        assert!(kept <= LIMIT, "{RESTING} threads keep {kept} bytes");
    });
}
