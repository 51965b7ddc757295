//! Tests of streams created by the program and used by operations.

use crate::common::shapes::*;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use raddle::{
    Device, Engine, EngineKind, Var, WaitError,
    error::{BoxError, Cause, DeviceError},
    gpu::{DeviceVec, GpuStream, ImportedStream, SimulatedGpu},
};

use super::{
    GPU, OTHER, builder, device, download, engine, hold_lane, issued, kernel, manual, ms, pinned, random, simulated,
    upload,
};
use crate::common::{KINDS, MOMENT, THREADED, eventually, failure, lock, program::fewer, watched};

fn own(gpu: &SimulatedGpu) -> ImportedStream {
    ImportedStream::simulated(gpu).expect("the device should be sound")
}

/// Launches a kernel that multiplies each value by seven and adds `term`, so that two such kernels with different terms
/// do not commute.
fn fold(stream: &mut GpuStream, values: &mut DeviceVec<u64>, term: u64) -> Result<(), DeviceError> {
    simulated(stream).launch(Duration::ZERO, values, move |values| {
        values.iter_mut().for_each(|value| *value = value.wrapping_mul(7).wrapping_add(term));
    })
}

/// Returns the result of folding the terms into 1.
fn folded(terms: impl IntoIterator<Item = u64>) -> u64 {
    terms.into_iter().fold(1, |value: u64, term| value.wrapping_mul(7).wrapping_add(term))
}

/// Pushes an operation that, on the stream `own`, folds `term` into the values.
#[track_caller]
fn fold_on(engine: &Engine, property: Property, values: &Var<DeviceVec<u64>>, own: &Var<ImportedStream>, term: u64) {
    let launch = move |stream: &mut GpuStream, (values, own): (&mut DeviceVec<u64>, &mut ImportedStream)| {
        stream.include(own, |own| fold(own, values, term))?
    };
    let pushed = engine.op("fold").on(GPU).kind(property).launch_any((values.write(), own.overwrite()), launch);
    pushed.expect("the engine should be open");
}

/// Commands on an imported stream run after those issued before them and before those issued after them, whichever
/// command the device picks first.
#[test]
fn work_on_an_imported_stream_is_ordered_with_all_operations() {
    for kind in KINDS {
        watched(move || {
            for seed in 0..fewer(60) as u64 {
                let gpu = random(seed);
                let engine = engine(kind, &gpu);
                let own = engine.stream_var(own(&gpu));
                let var = device(&engine, 1);
                upload(&engine, &var, vec![1]);
                fold_on(&engine, Property::Normal, &var, &own, 1);
                kernel(&engine, "on the lane", &var, |values| values[0] = values[0] * 7 + 2);
                // One operation uses the lane's stream, then the imported stream, and then the lane's stream again.
                let launch = |stream: &mut GpuStream, (values, own): (&mut DeviceVec<u64>, &mut ImportedStream)| {
                    fold(stream, values, 3)?;
                    stream.include(own, |own| fold(own, values, 4).and_then(|()| fold(own, values, 5)))??;
                    fold(stream, values, 6)
                };
                engine.op("both").on(GPU).launch_any((var.write(), own.overwrite()), launch).unwrap();
                fold_on(&engine, Property::GpuPrioritized, &var, &own, 7);
                fold_on(&engine, Property::Normal, &var, &own, 8);
                assert_eq!(download(&engine, &var, 1), [folded(1..=8)], "{kind}, seed {seed}");
            }
        });
    }
}

#[test]
fn imported_streams_can_be_nested() {
    for kind in KINDS {
        watched(move || {
            for seed in 0..fewer(20) as u64 {
                let gpu = random(seed);
                let engine = engine(kind, &gpu);
                let (outer, inner) = (engine.stream_var(own(&gpu)), engine.stream_var(own(&gpu)));
                let var = device(&engine, 1);
                upload(&engine, &var, vec![1]);
                let launch = engine.op("nest").on(GPU).submit_launch_any(
                    (var.write(), outer.overwrite(), inner.overwrite()),
                    |stream, (values, outer, inner)| {
                        assert_eq!(stream.device(), GPU);
                        fold(stream, values, 1)?;
                        stream.include(outer, |outer| {
                            assert_eq!(outer.device(), GPU);
                            fold(outer, values, 2)?;
                            outer.include(inner, |inner| fold(inner, values, 3))??;
                            fold(outer, values, 4)
                        })??;
                        fold(stream, values, 5)
                    },
                );
                launch.unwrap().wait().unwrap();
                assert_eq!(download(&engine, &var, 1), [folded(1..=5)], "{kind}, seed {seed}");
            }
        });
    }
}

/// The host never waits: on a stalled device, all operations of two lanes on one imported stream are issued. Each
/// operation costs two events and two waits. A dependency between lanes costs no more than without imported streams; a
/// dependency within a lane costs nothing.
#[test]
fn an_imported_stream_costs_two_events_and_two_waits() {
    watched(|| {
        let gpu = manual();
        let engine = engine(EngineKind::PerDevice, &gpu);
        let own = engine.stream_var(own(&gpu));
        let [a, b] = [(); 2].map(|()| device(&engine, 1));
        gpu.stall();
        // The event and the wait after a kernel are issued later than the kernel.
        let cost = |expected: u64| {
            eventually("the events and waits are issued", || {
                let counts = gpu.counts();
                assert!(counts.records <= expected && counts.waits <= expected, "{counts:?}");
                (counts.records, counts.waits) == (expected, expected)
            });
        };
        (0..50).for_each(|_| kernel(&engine, "on the lane", &a, |_| {}));
        issued(&gpu, 50, 0);
        cost(0);
        (0..50).for_each(|term| fold_on(&engine, Property::Normal, &a, &own, term));
        issued(&gpu, 100, 0);
        cost(100);
        // The other lane waits for an event behind the last operation, as it would after any operation.
        fold_on(&engine, Property::GpuPrioritized, &b, &own, 1);
        issued(&gpu, 101, 0);
        cost(103);
        gpu.resume();
        gpu.advance(ms(1000));
        engine.wait_for_all().unwrap();
        cost(103);
    });
}

#[test]
fn an_operation_is_complete_when_its_work_on_an_imported_stream_is_done() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let mut own = own(&gpu);
            let var = device(&engine, 1);
            let mut handle = engine
                .op("kernel")
                .on(GPU)
                .submit_launch_any(var.write(), move |stream, values| {
                    stream.include(&mut own, |own| fold(own, values, 3))?
                })
                .unwrap();
            issued(&gpu, 1, 0);
            assert!(matches!(handle.wait_timeout(MOMENT), Err(WaitError::TimedOut)), "{kind}");
            assert!(engine.wait_for_var_timeout(&var, MOMENT).is_err(), "{kind}");
            gpu.advance(ms(1));
            handle.wait().unwrap();
            engine.wait_for_var(&var).unwrap();
        });
    }
}

#[test]
fn a_stream_of_another_device_is_refused_before_the_function() {
    for kind in KINDS {
        watched(move || {
            let gpus = [SimulatedGpu::default(), SimulatedGpu::default()];
            let engine = builder(kind).gpu(gpus[0].clone()).gpu(gpus[1].clone()).build().unwrap();
            let abroad = engine.stream_var(own(&gpus[1]));
            let try_on = |context: Device| {
                let var: Var<DeviceVec<u64>> = engine.device_var(context, 1).unwrap();
                let called = Arc::new(Mutex::new(false));
                let calls = Arc::clone(&called);
                let launch = engine
                    .op("try")
                    .on(context)
                    .submit_launch_any((var.write(), abroad.overwrite()), move |stream, (_, abroad)| {
                        stream.include(abroad, |_| *lock(&calls) = true)
                    });
                let result = launch.unwrap().wait();
                (result, *lock(&called))
            };
            let (refused, called) = try_on(GPU);
            let refused = failure(refused);
            assert!(refused.to_string().contains("belongs to a device other than"), "{kind}");
            let cause = refused.downcast_ref::<DeviceError>().expect("the cause should be the device's error");
            assert_eq!((cause.code(), cause.is_lost(), called), (-1, false, false), "{kind}");
            let (done, called) = try_on(OTHER);
            assert!(done.is_ok() && called, "{kind}: {done:?}");
        });
    }
}

/// The work is part of the operation even if the function panics or returns an error, so a later operation that
/// overwrites the variable waits for it.
#[test]
fn work_issued_before_a_panic_or_an_error_is_ordered() {
    for kind in KINDS {
        for panics in [false, true] {
            watched(move || {
                for seed in 0..fewer(20) as u64 {
                    let gpu = random(seed);
                    let engine = engine(kind, &gpu);
                    let own = engine.stream_var(own(&gpu));
                    let var = device(&engine, 1);
                    let launch = engine.op("fail").on(GPU).submit_launch_any(
                        (var.write(), own.overwrite()),
                        move |stream, (values, own)| {
                            stream.include(own, |own| {
                                fold(own, values, 3)?;
                                if panics {
                                    std::panic::resume_unwind(Box::new("as planned"));
                                }
                                Err::<(), BoxError>("as planned".into())
                            })?
                        },
                    );
                    failure(launch.unwrap().wait());
                    upload(&engine, &var, vec![1]);
                    // This operation does not fail: `upload` has overwritten the variable, and the operation overwrites
                    // the stream.
                    fold_on(&engine, Property::Normal, &var, &own, 1);
                    assert_eq!(download(&engine, &var, 1), [folded([1])], "{kind}, seed {seed}");
                }
            });
        }
    }
}

/// A driver call that is refused before or in the included function fails the operation. One that is refused after the
/// function has run is repeated. Either way, the device remains usable.
#[test]
fn a_refused_call_on_an_imported_stream_fails_one_operation_or_is_repeated() {
    for kind in KINDS {
        watched(move || {
            let mut outcomes = Vec::new();
            for refused in 1..=5 {
                let gpu = random(refused);
                let engine = engine(kind, &gpu);
                let own = engine.stream_var(own(&gpu));
                let var = device(&engine, 1);
                upload(&engine, &var, vec![1]);
                engine.wait_for_all().unwrap();
                let refusing = gpu.clone();
                let launch = engine.op("try").on(GPU).submit_launch_any(
                    (var.write(), own.overwrite()),
                    move |stream, (values, own)| {
                        refusing.refuse_at(refused);
                        stream.include(own, |own| fold(own, values, 1))?
                    },
                );
                let done = launch.unwrap().wait().is_ok();
                if done {
                    assert_eq!(download(&engine, &var, 1), [folded([1])], "{kind}, call {refused}");
                } else {
                    assert!(!failure(engine.wait_for_var(&var)).to_string().contains("lost"), "{kind}, call {refused}");
                }
                outcomes.push(done);
                gpu.refuse_at(0);
                upload(&engine, &var, vec![1]);
                fold_on(&engine, Property::Normal, &var, &own, 2);
                assert_eq!(download(&engine, &var, 1), [folded([2])], "{kind}, call {refused}");
            }
            // In order: the event and the wait before the function, its kernel, and the event and the wait after it.
            assert_eq!(outcomes, [false, false, false, true, true], "{kind}");
        });
    }
}

#[test]
fn a_loss_while_a_stream_is_included_fails_this_and_later_operations() {
    for kind in KINDS {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let own = engine.stream_var(own(&gpu));
            let (var, host) = (device(&engine, 1), pinned(&engine, 1));
            let pulled = gpu.clone();
            let launch = engine.op("lose").on(GPU).submit_launch_any(
                (var.write(), own.overwrite()),
                move |stream, (values, own)| {
                    // The operation fails although its function ignores this error.
                    let _ = stream.include(own, |own| {
                        pulled.lose();
                        fold(own, values, 1)
                    });
                    Ok::<(), BoxError>(())
                },
            );
            let lost = failure(launch.unwrap().wait());
            assert!(lost.to_string().contains("was removed"), "{kind}: {lost}");
            fold_on(&engine, Property::Normal, &var, &own, 1);
            engine.op("out").on(GPU).copy_from_device(&var, &host).unwrap();
            failure(engine.wait_for_var(&host));
            assert!(ImportedStream::simulated(&gpu).expect_err("the device should be lost").is_lost());
        });
    }
}

/// If a device refuses every attempt to make the lane's stream wait for the imported one, the engine gives up the
/// device: all the device's operations report its loss, and no later kernel runs.
#[test]
fn a_device_that_refuses_to_order_an_imported_stream_is_given_up() {
    for kind in KINDS {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let own = engine.stream_var(own(&gpu));
            let vars: Vec<_> = (0..32).map(|_| device(&engine, 1)).collect();
            let cpu = engine.var(0);
            let refusing = gpu.clone();
            let gate = (kind != EngineKind::Naive).then(|| hold_lane(&engine, Property::Normal));
            let launch = engine.op("try").on(GPU).submit_launch_any(
                (vars[0].write(), own.overwrite()),
                move |stream, (values, own)| {
                    // The device is given up although the function ignores this error.
                    let _ = stream.include(own, |own| {
                        fold(own, values, 1).expect("the device should be sound");
                        refusing.refuse_from(1);
                    });
                    refusing.refuse_at(0);
                    assert!(stream.simulated().is_none(), "the stream still works");
                    Ok::<(), BoxError>(())
                },
            );
            vars.iter().for_each(|var| kernel(&engine, "next", var, |_| panic!("the kernel must not run")));
            engine.op("cpu").push(cpu.write(), |cpu| *cpu += 1).unwrap();
            if let Some(gate) = gate {
                gate.open();
            }
            let check = |error: raddle::OpError| {
                let Cause::Device(cause) = error.cause() else { panic!("{kind}: {error}") };
                assert!(cause.is_lost() && cause.code() == 801, "{kind}: {error}");
            };
            check(failure(launch.unwrap().wait()));
            vars.iter().for_each(|var| check(failure(engine.wait_for_var(var))));
            assert_eq!(engine.get(&cpu).unwrap(), 1);
            engine.device_var::<u64>(GPU, 1).expect_err("the device should be given up");
        });
    }
}

/// The stream is not a variable's value: the function owns it and drops it on the lane's thread.
#[test]
fn the_drop_of_a_stream_leaves_its_work_in_flight() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            upload(&engine, &var, vec![1]);
            issued(&gpu, 0, 1);
            gpu.advance(ms(1000));
            engine.wait_for_var(&var).unwrap();
            let gate = hold_lane(&engine, Property::Normal);
            let mut own = own(&gpu);
            let launch = engine
                .op("kernel")
                .on(GPU)
                .launch_any(var.write(), move |stream, values| stream.include(&mut own, |own| fold(own, values, 1))?);
            launch.unwrap();
            gate.open();
            issued(&gpu, 1, 1);
            gpu.advance(ms(1000));
            engine.wait_for_var(&var).unwrap();
            let host = pinned(&engine, 1);
            engine.op("out").on(GPU).copy_from_device(&var, &host).unwrap();
            issued(&gpu, 1, 2);
            gpu.advance(ms(1000));
            assert_eq!(engine.op("look").submit(host.read(), |host| host[0]).unwrap().wait().unwrap(), folded([1]));
        });
    }
}
