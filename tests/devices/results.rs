//! Tests of the results of device operations: values, versions, memory.

use crate::common::shapes::*;
use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use raddle::{
    Device, Engine, EngineKind, Var, chosen,
    gpu::{DeviceVec, GpuStream, PinnedVec, SimulatedGpu, simulated::Clock},
};

use super::{
    GPU, OTHER, builder, device, download, engine, hold_lane, issued, kernel, kernel_from, manual, ms, pinned, random,
    reading_kernel, simulated, upload,
};
use crate::common::{AWHILE, Drops, Journal, KINDS, MOMENT, THREADED, eventually, hold, watched, watched_for};
#[cfg(all(target_os = "linux", not(miri)))]
use crate::common::{timer_slack, times_slept};

#[test]
fn values_are_copied_to_a_device_and_back() {
    for kind in KINDS {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let (host, device) = (pinned(&engine, 1000), device(&engine, 1000));
            for round in 0..20 {
                engine.op("fill").push(host.write(), move |host| host.fill(round)).unwrap();
                engine.op("in").on(GPU).copy_to_device(&host, &device).unwrap();
                for _ in 0..3 {
                    kernel(&engine, "double", &device, |values| {
                        values.iter_mut().for_each(|value| *value = 2 * *value + 1);
                    });
                }
                engine.op("out").on(GPU).copy_from_device(&device, &host).unwrap();
                let sum = engine.op("sum").submit(host.read(), |host| host.iter().sum::<u64>()).unwrap();
                assert_eq!(sum.wait().unwrap(), 1000 * (8 * round + 7), "{kind} {round}");
            }
            engine.wait_for_all().unwrap();
            assert_eq!(device.version(), 80, "{kind}");
            assert_eq!(host.version(), 40, "{kind}");
        });
    }
}

#[test]
fn vectors_know_their_lengths_on_every_side() {
    for kind in KINDS {
        watched(move || {
            let engine = engine(kind, &SimulatedGpu::default());
            for len in [0, 1, 1000] {
                let (host, device) = (pinned(&engine, len), device(&engine, len));
                let lengths = engine.with(&host, |host| (host.len(), host.is_empty())).unwrap();
                assert_eq!(lengths, (len, len == 0), "{kind}");
                let lengths = engine.with(&device, |device| (device.len(), device.is_empty())).unwrap();
                assert_eq!(lengths, (len, len == 0), "{kind}");
            }
        });
    }
}

/// A version counts mutations completed by the device, not those merely issued.
#[test]
fn a_version_rises_when_the_device_completes_the_mutation() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            (0..3).for_each(|_| kernel(&engine, "write", &var, |_| {}));
            issued(&gpu, 3, 0);
            assert_eq!(var.version(), 0);
            gpu.advance(ms(3));
            engine.wait_for_var(&var).unwrap();
            assert_eq!(var.version(), 3);
            reading_kernel(&engine, "read", &var);
            issued(&gpu, 4, 0);
            gpu.advance(ms(1));
            engine.wait_for_all().unwrap();
            assert_eq!(var.version(), 3, "a read was counted");
        });
    }
}

/// Tokens also order kernels, such as kernels that share state on the device itself.
#[test]
fn tokens_and_values_on_the_host_order_device_operations() {
    for kind in KINDS {
        watched(move || {
            for seed in 0..10 {
                let gpu = random(seed);
                let engine = engine(kind, &gpu);
                let (journal, token, log) = (Journal::new(), engine.token(), engine.var(Vec::new()));
                let var = device(&engine, 1);
                for round in 0..30 {
                    let (by_cpu, by_kernel) = (journal.clone(), journal.clone());
                    let cpu = engine.op("cpu").writes([&token]);
                    cpu.push(log.write(), move |log| {
                        by_cpu.add(2 * round);
                        log.push(2 * round);
                    })
                    .unwrap();
                    // The function may use values on the host; the kernel runs later.
                    let on_gpu = engine.op("gpu").on(GPU).writes([&token]);
                    on_gpu
                        .launch_any((log.write(), var.read()), move |stream, (log, var)| {
                            log.push(2 * round + 1);
                            simulated(stream).launch(Duration::ZERO, var, move |_| by_kernel.add(2 * round + 1))
                        })
                        .unwrap();
                }
                engine.wait_for_all().unwrap();
                assert_eq!(journal.take(), (0..60).collect::<Vec<_>>(), "{kind}, seed {seed}");
                assert_eq!(engine.get(&log).unwrap(), (0..60).collect::<Vec<_>>(), "{kind}, seed {seed}");
            }
        });
    }
}

#[test]
fn values_are_copied_from_one_gpu_to_another_and_back() {
    for kind in KINDS {
        watched_for(AWHILE, move || {
            for seed in 0..10 {
                let engine = builder(kind).gpu(random(seed)).gpu(random(seed + 100)).build().unwrap();
                let one = device(&engine, 8);
                let other: Var<DeviceVec<u64>> = engine.device_var(OTHER, 8).unwrap();
                upload(&engine, &one, (0..8).collect());
                for _ in 0..10 {
                    engine.op("across").on(OTHER).copy_peer(&one, &other).unwrap();
                    // The copy above must not see these values.
                    kernel(&engine, "overwrite", &one, |values| values.fill(u64::MAX));
                    let add = engine.op("add").on(OTHER).launch_any(other.write(), |stream, other| {
                        simulated(stream).launch(Duration::ZERO, other, |values| {
                            values.iter_mut().for_each(|value| *value += 1);
                        })
                    });
                    add.unwrap();
                    engine.op("back").on(GPU).copy_peer(&other, &one).unwrap();
                    kernel(&engine, "add", &one, |values| values.iter_mut().for_each(|value| *value += 1));
                }
                assert_eq!(download(&engine, &one, 8), (20..28).collect::<Vec<_>>(), "{kind}, seed {seed}");
                engine.wait_for_all().unwrap();
                assert_eq!(other.version(), 20, "{kind}");
            }
        });
    }
}

/// A copy into the memory of the device that makes it is a copy in, wherever the values come from.
#[test]
fn a_copy_takes_the_engine_and_the_bandwidth_of_its_direction() {
    watched(|| {
        let gpu = || SimulatedGpu::builder().copy_in_bandwidth(1_000_000_000).copy_out_bandwidth(4_000_000_000).build();
        let (gpu, other) = (gpu(), gpu());
        let engine = builder(EngineKind::PerDevice).gpu(gpu.clone()).gpu(other).build().unwrap();
        let (from, to) = (pinned(&engine, 1000), pinned(&engine, 1000));
        let (here, also_here) = (device(&engine, 1000), device(&engine, 1000));
        let there = engine.device_var::<u64>(OTHER, 1000).unwrap();
        engine.op("fill").push(from.write(), |from| from.fill(7)).unwrap();
        let op = |name: &'static str| engine.op(name).on(GPU);
        let copies: [(_, &dyn Fn(_) -> _, _); 5] = [
            ("to the device", &|name| op(name).copy_to_device(&from, &here), [8, 0]),
            ("within the device", &|name| op(name).copy_peer(&here, &also_here), [8, 0]),
            ("to another device", &|name| op(name).copy_peer(&also_here, &there), [0, 2]),
            ("from another device", &|name| op(name).copy_peer(&there, &here), [8, 0]),
            ("from the device", &|name| op(name).copy_from_device(&here, &to), [0, 2]),
        ];
        let mut expected = [Duration::ZERO; 2];
        for (name, push, micros) in copies {
            push(name).unwrap();
            engine.wait_for_all().unwrap();
            expected.iter_mut().zip(micros).for_each(|(busy, micros)| *busy += Duration::from_micros(micros));
            let usage = gpu.usage();
            assert_eq!([usage.copy_in.busy, usage.copy_out.busy], expected, "a copy {name}");
        }
        assert_eq!(engine.op("look").submit(to.read(), |to| to.to_vec()).unwrap().wait().unwrap(), [7; 1000]);
    });
}

#[test]
fn an_operation_on_another_gpu_is_issued_when_its_dependency_is_complete() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let (gpu, other_gpu) = (manual(), random(14));
            let engine = builder(kind).gpu(gpu.clone()).gpu(other_gpu.clone()).build().unwrap();
            let var = device(&engine, 1);
            let other: Var<DeviceVec<u64>> = engine.device_var(OTHER, 1).unwrap();
            kernel(&engine, "kernel", &var, |values| values[0] = 5);
            engine.op("across").on(OTHER).copy_peer(&var, &other).unwrap();
            issued(&gpu, 1, 0);
            assert!(engine.wait_for_var_timeout(&other, MOMENT).is_err(), "{kind}: the kernel has not run");
            assert_eq!(other_gpu.counts().copies, 0, "{kind}");
            gpu.advance(ms(1));
            engine.wait_for_var(&other).unwrap();
            assert_eq!(other_gpu.counts().copies, 1, "{kind}");
        });
    }
}

/// The device refuses a kernel that uses memory of another device, and the operation fails.
#[test]
fn a_kernel_cannot_use_memory_of_another_gpu() {
    for kind in KINDS {
        watched(move || {
            let engine = builder(kind).gpu(SimulatedGpu::default()).gpu(SimulatedGpu::default()).build().unwrap();
            let other: Var<DeviceVec<u64>> = engine.device_var(OTHER, 8).unwrap();
            kernel(&engine, "abroad", &other, |values| values.fill(1));
            let failed = crate::common::failure(engine.wait_for_var(&other));
            assert!(failed.to_string().contains("another device's memory"), "{kind}: {failed}");
        });
    }
}

#[test]
fn an_empty_vector_is_in_the_memory_of_every_gpu() {
    for kind in KINDS {
        watched(move || {
            let engine = builder(kind).gpu(SimulatedGpu::default()).gpu(SimulatedGpu::default()).build().unwrap();
            for device in [GPU, OTHER] {
                let empty: Var<DeviceVec<u64>> = engine.device_var(device, 0).unwrap();
                kernel(&engine, "empty", &empty, |values| assert!(values.is_empty()));
                engine.wait_for_var(&empty).unwrap();
            }
        });
    }
}

#[test]
fn copies_work_in_both_directions_on_any_lane() {
    for kind in KINDS {
        watched(move || {
            let gpu = random(1);
            let engine = engine(kind, &gpu);
            let properties = [
                Property::Normal,
                Property::CopyToGpu,
                Property::CopyFromGpu,
                Property::GpuPrioritized,
                Property::NoSkip,
            ];
            for (round, &property) in properties.iter().cycle().take(20).enumerate() {
                let (host, var, back) = (pinned(&engine, 4), device(&engine, 4), pinned(&engine, 4));
                engine.op("fill").push(host.write(), move |host| host.fill(round as u64)).unwrap();
                engine.op("in").on(GPU).kind(property).copy_to_device(&host, &var).unwrap();
                engine.op("out").on(GPU).kind(property).copy_from_device(&var, &back).unwrap();
                let look = engine.op("look").submit(back.read(), |back| back.to_vec()).unwrap();
                assert_eq!(look.wait().unwrap(), [round as u64; 4], "{kind} {property:?}");
            }
        });
    }
}

#[test]
fn a_device_operator_may_be_pushed_again_while_it_is_pending() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            upload(&engine, &var, vec![0]);
            engine.wait_for_all().unwrap();
            gpu.stall();
            let add = engine.op("add").on(GPU).launch_operator_any(var.write(), |stream, var| {
                simulated(stream).launch(Duration::ZERO, var, |values| values[0] += 1)
            });
            let add = add.unwrap();
            (0..100).for_each(|number| add.push_with_priority(number % 3).unwrap());
            drop(add);
            issued(&gpu, 100, 1);
            gpu.resume();
            assert_eq!(download(&engine, &var, 1), [100], "{kind}");
        });
    }
}

#[test]
fn a_device_operator_receives_arguments_and_variables() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let vars = [device(&engine, 1), device(&engine, 1)];
            vars.iter().for_each(|var| upload(&engine, var, vec![0]));
            engine.wait_for_all().unwrap();
            gpu.stall();
            let add = engine.op("add").on(GPU).try_operator_on(
                chosen::write::<DeviceVec<u64>>(),
                raddle::stream(),
                |var, stream, by: u64| {
                    simulated(stream).launch(Duration::ZERO, var, move |values| values[0] += by)?;
                    Ok(())
                },
            );
            let add = add.unwrap();
            (0..100).for_each(|number| add.push_on(&vars[number % 2], number as u64).unwrap());
            // The operations are pending until the device resumes, and so is the drop of the function.
            drop(add);
            issued(&gpu, 100, 2);
            gpu.resume();
            assert_eq!(vars.each_ref().map(|var| download(&engine, var, 1)[0]), [2450, 2500], "{kind}");
        });
    }
}

#[test]
fn sixteen_threads_push_on_one_device() {
    const THREADS: u64 = 16;
    const EACH: u64 = 40;
    for kind in KINDS {
        watched(move || {
            let gpu = random(16);
            let engine = engine(kind, &gpu);
            let shared = device(&engine, 1);
            upload(&engine, &shared, vec![0]);
            let own: Vec<_> = (0..THREADS)
                .map(|_| {
                    let own = device(&engine, 1);
                    upload(&engine, &own, vec![0]);
                    own
                })
                .collect();
            thread::scope(|scope| {
                for own in &own {
                    let (engine, shared) = (&engine, &shared);
                    scope.spawn(move || {
                        for number in 0..EACH {
                            let property = if number % 3 == 0 { Property::GpuPrioritized } else { Property::Normal };
                            kernel_from(engine, "own to shared", property, own, shared, |own, shared| {
                                shared[0] += own[0];
                            });
                            kernel(engine, "own", own, |own| own[0] += 1);
                        }
                    });
                }
            });
            for own in &own {
                assert_eq!(download(&engine, own, 1), [EACH], "{kind}");
            }
            assert_eq!(download(&engine, &shared, 1), [THREADS * EACH * (EACH - 1) / 2], "{kind}");
            engine.wait_for_all().unwrap();
            assert_eq!(shared.version(), THREADS * EACH + 1, "{kind}");
            assert_eq!(gpu.counts().launches, 2 * THREADS * EACH);
        });
    }
}

// ------------------------------------------------------------------------------------------------------- memory ----

/// If a variable is dropped while work on it is in flight, its memory is freed only when the device has finished with
/// it.
#[test]
fn a_variable_dropped_in_flight_is_freed_when_the_device_is_done() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1000);
            gpu.stall();
            kernel(&engine, "last", &var, |values| values.fill(7));
            issued(&gpu, 1, 0);
            drop(var);
            // The deletion that the drop has pushed cannot be complete, because it follows the kernel.
            assert!(engine.wait_for_all_timeout(MOMENT).is_err());
            let before = gpu.counts();
            let second = device(&engine, 1000);
            assert_eq!(
                gpu.counts().allocations,
                before.allocations + 1,
                "{kind}: memory was reused while it was in use"
            );
            gpu.resume();
            engine.wait_for_all().unwrap();
            let third = device(&engine, 1000);
            assert_eq!(gpu.counts().allocations, before.allocations + 1, "{kind}: free memory was not reused");
            drop((second, third));
        });
    }
}

#[test]
fn a_variable_deleted_in_flight_ends_after_the_kernel() {
    for kind in KINDS {
        watched(move || {
            for seed in 0..20 {
                let gpu = random(seed);
                let (engine, journal) = (engine(kind, &gpu), Journal::new());
                let var = device(&engine, 4);
                let (first, second) = (journal.clone(), journal.clone());
                kernel(&engine, "kernel", &var, move |_| first.add("kernel"));
                engine.delete_variable(&var, move |_| second.add("deleted")).unwrap();
                let late = engine.op("late").on(GPU).launch_any(var.write(), |_, _| {});
                assert!(matches!(late, Err(raddle::PushError::Variable(raddle::error::NoAccess::Deleted, _))));
                engine.wait_for_all().unwrap();
                assert_eq!(journal.take(), ["kernel", "deleted"], "{kind}, seed {seed}");
            }
        });
    }
}

#[test]
fn after_warming_up_memory_comes_from_the_pool() {
    for kind in KINDS {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let mut after_first = 0;
            for round in 0..50 {
                let (host, var) = (pinned(&engine, 500), device(&engine, 500));
                engine.op("fill").push(host.write(), |host| host.fill(3)).unwrap();
                engine.op("in").on(GPU).copy_to_device(&host, &var).unwrap();
                drop((host, var));
                engine.wait_for_all().unwrap();
                let counts = gpu.counts();
                if round == 0 {
                    after_first = counts.allocations;
                }
                assert_eq!((counts.allocations, counts.reuses), (after_first, 2 * round), "{kind}, round {round}");
            }
        });
    }
}

#[test]
fn a_full_device_refuses_a_variable_and_stays_sound() {
    let gpu = SimulatedGpu::builder().memory(1 << 12).build();
    let engine = engine(EngineKind::PerDevice, &gpu);
    let small = device(&engine, 1);
    let refused = engine.device_var::<u64>(GPU, 1 << 12).unwrap_err();
    assert_eq!((refused.code(), refused.is_lost()), (2, false));
    upload(&engine, &small, vec![5]);
    assert_eq!(download(&engine, &small, 1), [5]);
    let nothing: Var<PinnedVec<u64>> = engine.pinned_var(GPU, 0).unwrap();
    let none = engine.device_var::<u64>(GPU, 0).unwrap();
    engine.op("nothing").on(GPU).copy_to_device(&nothing, &none).unwrap();
    engine.wait_for_all().unwrap();
}

/// Functions, kernels' captures and results are dropped once, whether the operations run, fail or are skipped.
#[test]
fn everything_captured_by_device_operations_is_dropped_once() {
    for kind in KINDS {
        watched(move || {
            let drops = Drops::new();
            for lose in [false, true] {
                let gpu = random(3);
                let engine = engine(kind, &gpu);
                let var = device(&engine, 2);
                for number in 0..40 {
                    if lose && number == 20 {
                        gpu.lose();
                    }
                    let (captured, inner) = (drops.make(), drops.make());
                    let handle = engine.op("drops").on(GPU).submit_launch_any(
                        var.write(),
                        move |stream: &mut GpuStream, var| {
                            captured.touch();
                            simulated(stream).launch(Duration::ZERO, var, move |_| inner.touch())?;
                            Ok::<_, raddle::error::DeviceError>(captured)
                        },
                    );
                    let handle = handle.unwrap();
                    match number % 3 {
                        0 => drop(handle.wait()),
                        1 => drop(handle),
                        _ => kernel(&engine, "another", &var, |_| {}),
                    }
                }
                drop(var);
                let _ = engine.wait_for_all();
                drop(engine);
            }
            eventually("everything is dropped", || drops.check().is_ok());
            drops.assert_all_gone();
        });
    }
}

/// An asynchronous device operation holds its variables until its completion is used or dropped.
#[test]
fn an_asynchronous_device_operation_ends_with_its_completion() {
    for kind in KINDS {
        watched_for(AWHILE, move || {
            let gpu = random(4);
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            upload(&engine, &var, vec![1]);
            let journal = Journal::new();
            let (first, second, third) = (journal.clone(), journal.clone(), journal.clone());
            let begin = engine.op("asynchronous").on(GPU).writes([var.token()]).push_async_any(
                raddle::cx(),
                move |cx, done| {
                    assert_eq!(cx.device(), GPU);
                    first.add("begun");
                    thread::spawn(move || {
                        second.add("done");
                        done.complete();
                    });
                },
            );
            begin.unwrap();
            kernel(&engine, "behind", &var, move |_| third.add("kernel"));
            engine.wait_for_var(&var).unwrap();
            assert_eq!(journal.take(), ["begun", "done", "kernel"], "{kind}");
            assert_eq!(var.version(), 3, "{kind}");
            let lost =
                engine.op("lost").on(GPU).writes([var.token()]).push_async_any(raddle::cx(), |_, done| drop(done));
            lost.unwrap();
            kernel(&engine, "skipped", &var, |_| {});
            let failed = crate::common::failure(engine.wait_for_var(&var));
            assert_eq!(failed.name(), "lost", "{kind}");
            assert!(matches!(failed.cause(), raddle::error::Cause::LostCompletion), "{kind}");
        });
    }
}

/// The engines' work on the shared device is unordered, and no engine disturbs another.
#[test]
fn several_engines_share_a_device() {
    watched(|| {
        let gpu = random(5);
        let engines: Vec<Engine> = KINDS.into_iter().map(|kind| engine(kind, &gpu)).collect();
        let vars: Vec<_> = engines.iter().map(|engine| device(engine, 1)).collect();
        for (engine, var) in engines.iter().zip(&vars) {
            upload(engine, var, vec![0]);
            (0..50).for_each(|_| kernel(engine, "add", var, |values| values[0] += 1));
        }
        for (engine, var) in engines.iter().zip(&vars) {
            assert_eq!(download(engine, var, 1), [50]);
        }
    });
}

/// A CPU operation that declares a kernel's variables runs after the kernel. A CPU operation that does not declare them
/// does not wait for the kernel.
#[test]
fn a_cpu_operation_waits_only_for_the_kernels_on_its_variables() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (var, free) = (device(&engine, 1), engine.var(0));
            let journal = Journal::new();
            let (first, second) = (journal.clone(), journal.clone());
            kernel(&engine, "kernel", &var, move |_| first.add("kernel"));
            let mut after = engine.op("after").submit(var.read(), move |_| second.add("cpu")).unwrap();
            engine.op("free").push(free.write(), |free| *free = 1).unwrap();
            issued(&gpu, 1, 0);
            assert_eq!(engine.get(&free).unwrap(), 1);
            assert!(after.wait_timeout(MOMENT).is_err(), "{kind}: the kernel has not run");
            gpu.advance(ms(1));
            after.wait().unwrap();
            assert_eq!(journal.take(), ["kernel", "cpu"], "{kind}");
        });
    }
}

/// Readers on the host and on the device share a variable, so a copy from pinned memory does not delay the readers of
/// that memory.
#[test]
fn readers_on_the_host_do_not_wait_for_readers_on_the_device() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (host, var) = (pinned(&engine, 10), device(&engine, 10));
            engine.op("fill").push(host.write(), |host| host.fill(2)).unwrap();
            engine.op("in").on(GPU).copy_to_device(&host, &var).unwrap();
            issued(&gpu, 0, 1);
            let sum = engine.op("sum").submit(host.read(), |host| host.iter().sum::<u64>()).unwrap();
            assert_eq!(sum.wait().unwrap(), 20, "{kind}");
            engine.wait_to_read(&host).unwrap();
            // A writer must wait for the copy.
            let mut write = engine.op("write").submit(host.write(), |host| host.fill(9)).unwrap();
            assert!(write.wait_timeout(MOMENT).is_err(), "{kind}");
            gpu.advance(ms(1));
            write.wait().unwrap();
            let back = pinned(&engine, 10);
            engine.op("out").on(GPU).copy_from_device(&var, &back).unwrap();
            issued(&gpu, 0, 2);
            gpu.advance(ms(1));
            let back = engine.op("look").submit(back.read(), |back| back.to_vec()).unwrap();
            assert_eq!(back.wait().unwrap(), [2; 10], "{kind}");
        });
    }
}

/// The function of a device operation may use a value on the host. If a kernel uses it too, stream order does not
/// suffice.
#[test]
fn a_device_operation_with_a_value_on_the_host_waits_for_the_kernels_before_it() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (var, free, host) = (device(&engine, 1), device(&engine, 1), engine.var(0));
            let journal = Journal::new();
            let (first, second) = (journal.clone(), journal.clone());
            let launch =
                engine.op("kernel").on(GPU).launch_any((host.write(), var.write()), move |stream, (_, var)| {
                    simulated(stream).launch(Duration::ZERO, var, move |_| first.add("kernel"))
                });
            launch.unwrap();
            engine.op("after").on(GPU).launch_any(host.write(), move |_, _| second.add("function")).unwrap();
            // The lane takes this operation last, and does not make it wait.
            kernel(&engine, "free", &free, |_| {});
            issued(&gpu, 2, 0);
            assert_eq!(journal.len(), 0, "{kind}: the kernel has not run");
            gpu.advance(ms(2));
            engine.wait_for_all().unwrap();
            assert_eq!(journal.take(), ["kernel", "function"], "{kind}");
        });
    }
}

/// The value belongs to a family.
#[test]
fn a_device_operation_with_a_value_of_a_family_waits_for_the_kernels_before_it() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (var, free, journal) = (device(&engine, 1), device(&engine, 1), Journal::new());
            let (inside, beside) = (var.clone(), free.clone());
            let (first, second) = (journal.clone(), journal.clone());
            let parent = engine.op("parent").with_children();
            let parent = parent.submit((raddle::cx(), var.write(), free.write()), move |(cx, ..)| {
                let value = cx.child_var(0).unwrap();
                let kernel = cx.child("kernel").on(GPU);
                let launch = kernel.launch_any((value.write(), inside.write()), move |stream, (_, var)| {
                    simulated(stream).launch(Duration::ZERO, var, move |_| first.add("kernel"))
                });
                launch.unwrap();
                cx.child("after").on(GPU).launch_any(value.write(), move |_, _| second.add("function")).unwrap();
                // The lane takes this operation last, and does not make it wait.
                let launch = cx.child("free").on(GPU).launch_any(beside.write(), |stream, var| {
                    simulated(stream).launch(Duration::ZERO, var, |_: &mut [u64]| {})
                });
                launch.unwrap();
            });
            issued(&gpu, 2, 0);
            assert_eq!(journal.len(), 0, "{kind}: the kernel has not run");
            gpu.advance(ms(2));
            parent.unwrap().wait().unwrap();
            assert_eq!(journal.take(), ["kernel", "function"], "{kind}");
        });
    }
}

/// A device operation starts when its dependencies on the CPU are complete.
#[test]
fn a_kernel_waits_for_the_cpu_operation_before_it() {
    for kind in THREADED {
        watched(move || {
            let gpu = random(6);
            let engine = engine(kind, &gpu);
            let (var, token) = (device(&engine, 1), engine.token());
            let gate = hold(&engine, &token);
            let launch = engine.op("behind").on(GPU).reads([&token]).submit_launch_any(var.write(), |stream, var| {
                simulated(stream).launch(Duration::ZERO, var, |values| values[0] = 1)
            });
            let mut handle = launch.unwrap();
            assert!(handle.wait_timeout(MOMENT).is_err());
            assert_eq!(gpu.counts().launches, 0, "{kind}: the kernel was launched too early");
            gate.open();
            handle.wait().unwrap();
            assert_eq!(download(&engine, &var, 1), [1], "{kind}");
        });
    }
}

#[test]
fn an_unknown_device_is_refused() {
    for kind in KINDS {
        let engine = engine(kind, &SimulatedGpu::default());
        let (var, host) = (device(&engine, 1), pinned(&engine, 1));
        let nowhere = Device::Gpu(1);
        let refused = Err(raddle::PushError::NoSuchDevice(nowhere));
        assert_eq!(engine.op("").on(nowhere).launch_any(var.write(), |_, _| {}), refused, "{kind}");
        assert_eq!(engine.op("").on(nowhere).copy_to_device(&host, &var), refused, "{kind}");
        assert_eq!(engine.op("").on(nowhere).push_sync(|_| {}), refused, "{kind}");
        assert!(engine.op("").on(nowhere).launch_operator_any(var.write(), |_, _| {}).is_err(), "{kind}");
        // The driver was not reached, so the number is negative.
        let refused = [
            engine.device_var::<u64>(nowhere, 1).map(drop).unwrap_err(),
            engine.pinned_var::<u64>(nowhere, 1).map(drop).unwrap_err(),
        ];
        assert!(refused.iter().all(|error| error.code() < 0 && !error.is_lost()), "{kind}: {refused:?}");
        let not_on_one = raddle::PushError::Unfit(raddle::error::Misfit::NotOnDevice);
        assert_eq!(engine.op("").launch_any(var.write(), |_, _| {}), Err(not_on_one.clone()), "{kind}");
        assert_eq!(engine.op("").copy_from_device(&var, &host), Err(not_on_one.clone()), "{kind}");
        assert_eq!(engine.op("").copy_peer(&var, &var), Err(not_on_one), "{kind}");
        let aliased = engine.op("").on(GPU).copy_peer(&var, &var);
        assert!(matches!(aliased, Err(raddle::PushError::Variable(raddle::error::NoAccess::Aliased, _))), "{kind}");
        engine.wait_for_all().unwrap();
        assert_eq!(var.version() + host.version(), 0);
    }
}

#[test]
fn properties_without_a_meaning_on_a_device_are_refused() {
    for kind in KINDS {
        let engine = engine(kind, &SimulatedGpu::default());
        let (var, host) = (device(&engine, 1), pinned(&engine, 1));
        for (property, refused) in [
            (
                Property::CpuPrioritized,
                raddle::PushError::Unfit(raddle::error::Misfit::NotOfDevice(raddle::Property::CpuPrioritized)),
            ),
            (Property::Async, raddle::PushError::Unfit(raddle::error::Misfit::EagerOnDevice)),
        ] {
            let refused = Err(refused);
            let op = || engine.op("").on(GPU).kind(property);
            assert_eq!(op().launch_any(var.write(), |_, _| {}), refused, "{kind}");
            assert_eq!(op().copy_to_device(&host, &var), refused, "{kind}");
            assert_eq!(op().push_sync(|_| {}), refused, "{kind}");
            assert!(op().launch_operator_any(var.write(), |_, _| {}).is_err(), "{kind}");
        }
        engine.wait_for_all().unwrap();
        assert_eq!(var.version() + host.version(), 0);
    }
}

/// A kernel's function may push operations.
#[test]
fn operations_that_a_kernel_pushes_run() {
    for kind in KINDS {
        watched(move || {
            let gpu = random(8);
            let engine = Arc::new(engine(kind, &gpu));
            let (var, count) = (device(&engine, 1), engine.var(0));
            let (inside, pushed) = (Arc::clone(&engine), count.clone());
            kernel(&engine, "pushes", &var, move |_| {
                inside.op("pushed").push(pushed.write(), |count| *count += 1).expect("the engine should be open");
            });
            engine.wait_for_var(&var).unwrap();
            engine.wait_for_all().unwrap();
            assert_eq!(engine.get(&count).unwrap(), 1, "{kind}");
        });
    }
}

/// Each push takes a stream, and returns it however the operation ends.
#[test]
fn a_naive_engine_uses_the_same_stream_again() {
    watched(|| {
        let gpu = SimulatedGpu::default();
        let engine = engine(EngineKind::Naive, &gpu);
        let var = device(&engine, 1);
        for _ in 0..3 {
            kernel(&engine, "runs", &var, |_| {});
            engine.op("fails").on(GPU).launch_any(var.write(), |_, _| Err::<(), _>("on purpose")).unwrap();
            kernel(&engine, "is skipped", &var, |_| panic!("the kernel must not run"));
            engine.clear_error(&var).unwrap();
        }
        assert_eq!((gpu.counts().launches, gpu.counts().streams), (3, 1));
    });
}

/// A poll may not notice that a real device has failed, so a push that waits for its device also checks the stream.
#[test]
fn a_naive_engine_checks_the_stream_now_and_then_while_it_waits() {
    watched(|| {
        let gpu = manual();
        let engine = engine(EngineKind::Naive, &gpu);
        let pushing = thread::spawn(move || kernel(&engine, "slow", &device(&engine, 1), |_| {}));
        eventually("the stream is checked several times", || gpu.counts().probes >= 3);
        let counts = gpu.counts();
        gpu.advance(ms(1));
        pushing.join().unwrap();
        assert!(counts.probes * 1000 <= counts.polls, "{counts:?}");
    });
}

/// The thread of a lane sleeps between the polls of a stream that makes no progress. From time to time, it also checks
/// whether the stream is sound. Both would only delay a stream that makes progress.
#[test]
fn a_stream_that_makes_no_progress_is_polled_seldom_and_checked_now_and_then() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu = SimulatedGpu::builder().clock(Clock::Instantly).build();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            gpu.stall();
            kernel(&engine, "stalled", &var, |_| {});
            // The thread sleeps after the second check, if not earlier.
            eventually("the stream is checked several times", || gpu.counts().probes >= 3);
            let (start, before) = (Instant::now(), gpu.counts());
            eventually("the stream is checked again", || gpu.counts().probes >= before.probes + 5);
            let (after, elapsed) = (gpu.counts(), start.elapsed());
            let (polls, probes) = (after.polls - before.polls, after.probes - before.probes);
            // Between two polls, the thread sleeps for 50 µs.
            assert!(Duration::from_micros(50 * (polls - 1)) <= elapsed, "{kind}: {polls} polls in {elapsed:?}");
            // A millisecond passes between two checks; the first may have been decided before the start.
            assert!(ms(probes - 2) <= elapsed, "{kind}: {probes} checks in {elapsed:?}");
            gpu.resume();
            engine.wait_for_all().unwrap();
            // From now on, every poll finds progress.
            let probes = gpu.counts().probes;
            for _ in 0..5 {
                // Longer than the time between two checks.
                thread::sleep(ms(2));
                kernel(&engine, "immediate", &var, |_| {});
                engine.wait_for_all().unwrap();
            }
            assert_eq!(gpu.counts().probes, probes, "{kind}: a stream that makes progress was checked");
        });
    }
}

/// A call that finds the device's queue full blocks. The lane's thread must not block in this way, since it also polls
/// the stream.
#[test]
fn completions_are_noticed_however_many_operations_are_pushed() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu = SimulatedGpu::builder()
                .launch_latency(Duration::ZERO)
                .kernel_time(ms(1))
                .depth(395)
                .clock(Clock::Manual)
                .build();
            let engine = engine(kind, &gpu);
            let (var, later) = (device(&engine, 1), device(&engine, 1));
            let launch = |stream: &mut GpuStream, var: &mut DeviceVec<u64>| {
                simulated(stream).launch(Duration::ZERO, var, |_| {})
            };
            // All operations are ready when the lane starts.
            let gate = hold_lane(&engine, Property::Normal);
            let first = engine.op("first").on(GPU).submit_launch_any(var.write(), launch).unwrap();
            for _ in 0..2000 {
                kernel(&engine, "later", &later, |_| {});
            }
            gate.open();
            eventually("as many as allowed are issued", || gpu.counts().launches >= 128);
            // Any further operations would be issued during this time.
            thread::sleep(MOMENT);
            gpu.advance(ms(1));
            first.wait().unwrap();
            gpu.advance(ms(2000));
            while engine.wait_for_all_timeout(ms(1)).is_err() {
                gpu.advance(ms(2000));
            }
        });
    }
}

/// If the stream ran empty, the device would be idle until the lane polls the stream again.
#[test]
fn a_full_stream_receives_further_operations_before_it_is_empty() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu =
                SimulatedGpu::builder().launch_latency(Duration::ZERO).kernel_time(ms(1)).clock(Clock::Manual).build();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            // The second time, operations have higher numbers.
            for _ in 0..2 {
                let before = gpu.counts();
                let launches = || gpu.counts().launches - before.launches;
                let gate = hold_lane(&engine, Property::Normal);
                for _ in 0..500 {
                    kernel(&engine, "one of many", &var, |_| {});
                }
                gate.open();
                eventually("the stream is full", || launches() >= 128);
                thread::sleep(MOMENT);
                let (full, marks) = (launches(), gpu.counts().marks - before.marks);
                assert!(marks <= 4, "{marks} marks for {full} operations");
                // Three quarters of the commands are done now.
                gpu.advance(ms(full * 3 / 4));
                eventually("more is issued", || launches() >= full + full / 2);
                while engine.wait_for_all_timeout(ms(1)).is_err() {
                    gpu.advance(ms(2000));
                }
            }
        });
    }
}

/// A lane's thread sleeps briefly between polls of its stream, with less timer slack than the default. What a function
/// starts would inherit this slack, so the function has the default.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn the_thread_of_a_lane_has_little_slack_only_while_it_sleeps() {
    let gpu = manual();
    let engine = engine(EngineKind::PerDevice, &gpu);
    let var = device(&engine, 1);
    let before = timer_slack();
    let look = || engine.op("look").on(GPU).submit((), |()| (timer_slack(), fs::read_link("/proc/thread-self")));
    let (slack, thread) = look().unwrap().wait().unwrap();
    assert_eq!(slack, before);
    // The clock stands still, so the thread polls the stream.
    kernel(&engine, "pending", &var, |_| {});
    let number = thread.expect("procfs").file_name().expect("a number").to_string_lossy().into_owned();
    // Only a privileged process may look at another thread.
    let others = || fs::read_to_string(format!("/proc/{number}/timerslack_ns")).ok();
    if others().is_some() {
        eventually("the thread sleeps with little slack", || others().is_some_and(|slack| slack.trim() == "1"));
    }
    let (slack, _) = look().unwrap().wait().unwrap();
    gpu.advance(ms(2000));
    engine.wait_for_all().unwrap();
    assert_eq!(slack, before, "the slack of a sleep has stayed");
    assert_eq!(timer_slack(), before, "the slack of a thread of the program has changed");
}

/// The kernels run on the lane's thread, a few at each poll. Between the first polls, the thread only pauses.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn the_thread_of_a_lane_does_not_sleep_between_the_first_polls() {
    let gpu = random(3);
    let engine = engine(EngineKind::PerDevice, &gpu);
    let var = device(&engine, 1);
    kernel(&engine, "first", &var, |_| {});
    engine.wait_for_all().unwrap();
    // Now, the thread is older than a stream is polled without sleeping.
    thread::sleep(ms(2));
    let (polls, (sender, counts)) = (gpu.counts().polls, std::sync::mpsc::channel());
    let launch = engine.op("many").on(GPU).launch_any((), move |stream, ()| {
        let mut stream = simulated(stream);
        for _ in 0..100 {
            let sender = sender.clone();
            stream.launch(Duration::ZERO, (), move |()| {
                let _ = sender.send(times_slept());
            })?;
        }
        Ok::<_, raddle::error::DeviceError>(())
    });
    launch.unwrap();
    engine.wait_for_all().unwrap();
    let (polls, counts) = (gpu.counts().polls - polls, counts.iter().collect::<Vec<_>>());
    let slept = counts[counts.len() - 1] - counts[0];
    assert!(counts.len() == 100 && slept <= polls / 4, "the thread slept {slept} times between {polls} polls");
}

#[test]
fn marks_that_are_refused_from_time_to_time_do_not_lose_the_device() {
    for kind in THREADED {
        watched(move || {
            let gpu = random(13);
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            upload(&engine, &var, vec![0]);
            engine.wait_for_var(&var).unwrap();
            for _ in 0..8 {
                // The first call launches the kernel, and the second creates the mark behind it.
                gpu.refuse_at(2);
                let launch = engine.op("kernel").on(GPU).submit_launch_any(var.write(), |stream, var| {
                    simulated(stream).launch(Duration::ZERO, var, |values| values[0] += 1)
                });
                launch.unwrap().wait().expect("only a mark is refused");
            }
            assert_eq!(download(&engine, &var, 1), [8], "{kind}");
        });
    }
}

/// Two copies read what a kernel on another lane is about to write, and one of the calls that issue the first copy is
/// refused. If it is the call that orders the copy after the kernel, the second copy repeats that call.
#[test]
fn a_refused_call_does_not_take_the_order_from_later_operations() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let mut failed = 0;
            for round in 1..=8 {
                let refused = 1 + round % 4;
                let (var, copies) = (device(&engine, 1), [1, 1].map(|len| pinned(&engine, len)));
                let launches = gpu.counts().launches;
                let kernel = engine.op("kernel").on(GPU).launch_any(var.write(), move |stream, var| {
                    simulated(stream).launch(MOMENT, var, move |values| values[0] = round)
                });
                kernel.unwrap();
                eventually("the kernel is issued", || gpu.counts().launches > launches);
                // The calls behind the launch have been made as well.
                thread::sleep(MOMENT / 5);
                gpu.refuse_at(refused);
                for copy in &copies {
                    engine.op("out").on(GPU).copy_from_device(&var, copy).unwrap();
                }
                for copy in &copies {
                    match engine.with(copy, |copy| copy[0]) {
                        Ok(value) => assert_eq!(value, round, "{kind}, call {refused}"),
                        Err(_) => failed += 1,
                    }
                }
                gpu.refuse_at(0);
                let _ = engine.wait_for_all();
            }
            assert!(failed > 0, "{kind}: no copy failed");
        });
    }
}
