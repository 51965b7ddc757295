//! Stopping and starting engines with devices.

use std::{sync::mpsc, thread, time::Duration};

use common::{
    MOMENT, PATIENCE, THREADED, block_on, child_succeeds, is_child, thread_count, wait_for_thread_count, watched,
};
use raddle::{EngineKind, IdlePolicy, OpHandle, PushError, Shutdown, WaitError, blocking, error::ShutdownError};

use super::*;

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_threads_of_lanes_end_and_start() {
    assert!(is_child());
    let before = thread_count();
    for kind in THREADED {
        let engine = builder(kind).gpu(random(5)).gpu(random(6)).build().unwrap();
        let var = device(&engine, 2);
        upload(&engine, &var, vec![0, 0]);
        kernel(&engine, "kernel", &var, |values| values[0] += 1);
        assert_eq!(download(&engine, &var, 2), [1, 0]);
        let with = thread_count();
        for round in 2..7 {
            engine.stop(None).unwrap();
            wait_for_thread_count(before);
            kernel(&engine, "stays", &var, |values| values[0] += 1);
            assert_eq!(thread_count(), before, "a push to a lane has started a thread");
            engine.start().unwrap();
            assert_eq!(thread_count(), with, "a lane that was used has no thread");
            assert_eq!(download(&engine, &var, 2), [round, 0]);
        }
        engine.stop(None).unwrap();
        let other = engine.device_var::<u64>(OTHER, 2).unwrap();
        engine.op("first use").on(OTHER).copy_peer(&var, &other).unwrap();
        wait_for_thread_count(before);
        engine.start().unwrap();
        let back = engine.pinned_var::<u64>(OTHER, 2).unwrap();
        engine.op("out").on(OTHER).copy_from_device(&other, &back).unwrap();
        assert_eq!(engine.op("look").submit(back.read(), |back| back.to_vec()).unwrap().wait().unwrap(), [6, 0]);
        engine.stop(None).unwrap();
        drop(engine);
        wait_for_thread_count(before);
    }
}

#[test]
fn threads_of_lanes_end_and_start() {
    child_succeeds("in_a_child_threads_of_lanes_end_and_start");
}

#[test]
fn a_stop_waits_for_what_is_in_flight_and_issues_nothing_more() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            upload(&engine, &var, vec![1]);
            issued(&gpu, 0, 1);
            gpu.advance(ms(1));
            let launch = engine.op("in flight").on(GPU).submit_launch_any(var.write(), |stream, var| {
                simulated(stream).launch(Duration::ZERO, var, |values| values[0] += 1)
            });
            let mut in_flight = launch.unwrap();
            issued(&gpu, 1, 1);
            assert_eq!(engine.stop(Some(MOMENT)), Err(ShutdownError::TimedOut));
            assert!(!engine.is_stopped() && !in_flight.is_done());
            thread::scope(|threads| {
                let stop = threads.spawn(|| engine.stop(None));
                thread::sleep(MOMENT);
                assert!(!stop.is_finished(), "a kernel is in flight");
                // `stays` is not issued, so the lane's thread has nothing left to do once `in flight` is complete.
                kernel(&engine, "stays", &var, |values| values[0] *= 10);
                gpu.advance(ms(1));
                stop.join().unwrap().unwrap();
            });
            let is_left = engine.dump().ops().iter().any(|op| op.internal && op.label() == "tell");
            assert!(!is_left, "{kind}: the end of `in flight`, which runs no code of the program, is left to a worker");
            in_flight.wait_timeout(PATIENCE).unwrap();
            let launches = gpu.counts().launches;
            gpu.advance(ms(1));
            thread::sleep(MOMENT);
            assert_eq!((gpu.counts().launches, var.version()), (launches, 2), "a stopped engine did something");
            engine.start().unwrap();
            issued(&gpu, 2, 1);
            gpu.advance(ms(1));
            let host = pinned(&engine, 1);
            let out = engine.op("out").on(GPU).copy_from_device(&var, &host);
            out.unwrap();
            issued(&gpu, 2, 2);
            gpu.advance(ms(1));
            assert_eq!(engine.op("look").submit(host.read(), |host| host[0]).unwrap().wait().unwrap(), 20, "{kind}");
        });
    }
}

#[test]
fn a_stop_serves_lanes_that_functions_wait_for() {
    for kind in THREADED {
        for used in [false, true] {
            watched(move || {
                let engine = builder(kind).workers(1).gpu(random(7)).build().unwrap();
                let var = device(&engine, 1);
                if used {
                    upload(&engine, &var, vec![0]);
                    kernel(&engine, "before", &var, |values| values[0] = 1);
                    assert_eq!(download(&engine, &var, 1), [1]);
                }
                let (started, gate) = (Gate::new(), Gate::new());
                let (at, inside, inner, inner_var) = (started.clone(), gate.clone(), engine.downgrade(), var.clone());
                let waits = engine.op("waits").submit((), move |()| {
                    at.open();
                    inside.pass();
                    upload(&inner, &inner_var, vec![3]);
                    kernel(&inner, "inside", &inner_var, |values| values[0] += 1);
                    download(&inner, &inner_var, 1)
                });
                let waits = waits.unwrap();
                started.pass();
                thread::scope(|threads| {
                    let stop = threads.spawn(|| engine.stop(None));
                    // Meanwhile, the workers of the lanes that have threads are laid aside.
                    thread::sleep(MOMENT);
                    gate.open();
                    stop.join().unwrap().unwrap();
                });
                assert_eq!(block_on(waits).unwrap(), [4]);
                let version = var.version();
                kernel(&engine, "stays", &var, |values| values[0] += 1);
                thread::sleep(MOMENT);
                assert_eq!(var.version(), version, "a stopped engine did something");
                engine.start().unwrap();
                assert_eq!(download(&engine, &var, 1), [5], "{kind} {used}");
            });
        }
    }
}

/// A stop is requested while a function waits. If the lane's worker were laid aside, nothing would take it up again.
#[test]
fn a_lane_is_served_if_it_is_first_used_while_a_function_waits() {
    for kind in THREADED {
        watched(move || {
            let engine = builder(kind).workers(1).gpu(random(13)).build().unwrap();
            let var = device(&engine, 1);
            let (waiting, (sender, receiver)) = (Gate::new(), mpsc::channel::<OpHandle<()>>());
            let at = waiting.clone();
            let waits = engine.op("waits").submit((), move |()| {
                let first_use = blocking(|| {
                    at.open();
                    receiver.recv_timeout(PATIENCE).unwrap()
                });
                first_use.wait()
            });
            waiting.pass();
            thread::scope(|threads| {
                let stop = threads.spawn(|| engine.stop(None));
                eventually("the stop is requested", || engine.is_stopped());
                let first_use = engine.op("first use").on(GPU).submit_launch_any(var.write(), |stream, var| {
                    simulated(stream).launch(Duration::ZERO, var, |values| values[0] = 7)
                });
                sender.send(first_use.unwrap()).unwrap();
                stop.join().unwrap().unwrap();
            });
            waits.unwrap().wait().unwrap().unwrap();
            engine.start().unwrap();
            assert_eq!(download(&engine, &var, 1), [7], "{kind}");
        });
    }
}

#[test]
fn a_wait_for_what_is_in_flight_returns_without_a_start() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (first, second) = (device(&engine, 1), device(&engine, 1));
            for round in 0..10 {
                kernel(&engine, "first", &first, |values| values[0] = 1);
                kernel(&engine, "second", &second, |values| values[0] = 1);
                issued(&gpu, 2 * round + 2, 0);
                thread::scope(|threads| {
                    let stop = threads.spawn(|| engine.stop(None));
                    eventually("the stop is requested", || engine.is_stopped());
                    // In odd rounds, the wait may begin before or after the lane notices the stop.
                    thread::sleep(MOMENT * u32::from(round % 2 == 0));
                    let wait = threads.spawn(|| engine.wait_for_var(&first));
                    thread::sleep(MOMENT * u32::from(round % 2 == 0));
                    gpu.advance(ms(1));
                    wait.join().unwrap().unwrap();
                    gpu.advance(ms(1));
                    stop.join().unwrap().unwrap();
                });
                assert_eq!((first.version(), second.version()), (round + 1, round + 1), "{kind}");
                engine.start().unwrap();
            }
        });
    }
}

/// Two operations are in flight on the same lane. A function waits for one of them; the other completes only after the
/// wait.
#[test]
fn a_lane_that_is_to_stop_serves_a_function_that_begins_to_wait() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (first, second) = (device(&engine, 1), device(&engine, 1));
            kernel(&engine, "first", &first, |values| values[0] = 1);
            kernel(&engine, "second", &second, |values| values[0] = 1);
            issued(&gpu, 2, 0);
            let (started, gate) = (Gate::new(), Gate::new());
            let (at, inside, inner, inner_gpu, inner_first) =
                (started.clone(), gate.clone(), engine.downgrade(), gpu.clone(), first.clone());
            let waits = engine.op("waits").submit((), move |()| {
                at.open();
                inside.pass();
                inner.wait_for_var(&inner_first)?;
                inner_gpu.advance(ms(1));
                kernel(&inner, "third", &inner_first, |values| values[0] = 2);
                issued(&inner_gpu, 3, 0);
                inner_gpu.advance(ms(1));
                inner.wait_for_var(&inner_first)
            });
            let waits = waits.unwrap();
            started.pass();
            thread::scope(|threads| {
                let stop = threads.spawn(|| engine.stop(None));
                thread::sleep(MOMENT);
                gate.open();
                thread::sleep(MOMENT);
                gpu.advance(ms(1));
                stop.join().unwrap().unwrap();
            });
            waits.wait().unwrap().unwrap();
            assert_eq!((first.version(), second.version()), (2, 1), "{kind}");
        });
    }
}

#[test]
fn an_engine_serves_waits_after_a_stop_that_timed_out() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (first, second) = (device(&engine, 1), device(&engine, 1));
            kernel(&engine, "first", &first, |values| values[0] = 1);
            kernel(&engine, "second", &second, |values| values[0] = 1);
            issued(&gpu, 2, 0);
            for _ in 0..10 {
                assert_eq!(engine.stop(Some(ms(1))), Err(ShutdownError::TimedOut));
            }
            gpu.advance(ms(1));
            engine.wait_for_var(&first).unwrap();
            assert_eq!(second.version(), 0);
            kernel(&engine, "third", &first, |values| values[0] = 2);
            issued(&gpu, 3, 0);
            gpu.advance(ms(2));
            engine.wait_for_all().unwrap();
            engine.stop(None).unwrap();
            assert_eq!(engine.pending(), 0, "{kind}");
        });
    }
}

#[test]
fn urgent_operations_of_a_stopped_engine_run_after_the_start() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            (0..3).for_each(|_| kernel(&engine, "in flight", &var, |values| values[0] += 1));
            issued(&gpu, 3, 0);
            let push = |name| {
                let urgent = engine.op(name).on(GPU).priority(i32::MAX);
                let add = |stream: &mut GpuStream, var: &mut DeviceVec<u64>| {
                    simulated(stream).launch(Duration::ZERO, var, |values| values[0] += 1)
                };
                urgent.launch_any(var.write(), add).unwrap();
            };
            thread::scope(|threads| {
                let stop = threads.spawn(|| engine.stop(None));
                eventually("the stop is requested", || engine.is_stopped());
                // The lane may still issue operations that arrive before it notices the stop.
                thread::sleep(MOMENT);
                push("while it stops");
                thread::sleep(MOMENT);
                gpu.advance(ms(3));
                stop.join().unwrap().unwrap();
            });
            push("while it is stopped");
            thread::sleep(MOMENT);
            assert_eq!((gpu.counts().launches, engine.pending()), (3, 2));
            engine.start().unwrap();
            issued(&gpu, 5, 0);
            let mut behind = engine.op("behind").submit(var.read(), |_| ()).unwrap();
            assert!(matches!(behind.wait_timeout(MOMENT), Err(WaitError::TimedOut)), "a kernel is in flight");
            gpu.advance(ms(2));
            behind.wait().unwrap();
            assert_eq!(var.version(), 5, "{kind}");
        });
    }
}

#[test]
fn a_shutdown_cancels_all_urgent_operations_of_a_stopped_engine() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let busy = device(&engine, 1);
            // This is more than a lane takes in one round.
            let vars: Vec<_> = (0..40).map(|_| device(&engine, 1)).collect();
            kernel(&engine, "in flight", &busy, |_| ());
            issued(&gpu, 1, 0);
            thread::scope(|threads| {
                let stop = threads.spawn(|| engine.stop(None));
                eventually("the stop is requested", || engine.is_stopped());
                // The lane may still issue operations that arrive before it notices the stop.
                thread::sleep(MOMENT);
                for var in &vars {
                    let launch = |stream: &mut GpuStream, var: &mut DeviceVec<u64>| {
                        simulated(stream).launch(Duration::ZERO, var, |_| ())
                    };
                    engine.op("urgent").on(GPU).priority(i32::MAX).launch_any(var.write(), launch).unwrap();
                }
                thread::sleep(MOMENT);
                gpu.advance(ms(1));
                stop.join().unwrap().unwrap();
            });
            assert_eq!(engine.pending(), 40);
            assert_eq!(
                engine.shutdown(Shutdown::Cancel, Some(PATIENCE / 2)),
                Ok(()),
                "the lane has not taken all of them"
            );
        });
    }
}

#[test]
fn a_lane_survives_stops_that_are_cancelled_at_once() {
    for kind in THREADED {
        watched(move || {
            let engine = builder(kind).workers(1).idle(IdlePolicy::Park).gpu(random(21)).build().unwrap();
            let var = device(&engine, 1);
            for _ in 0..3_000 {
                kernel(&engine, "add", &var, |_| ());
                engine.wait_for_var_timeout(&var, PATIENCE / 2).expect("the lane should have a thread");
                // The lane's thread is recalled while it looks for work, and the recall is undone a few microseconds
                // later.
                let _ = engine.stop(Some(Duration::ZERO));
                if engine.is_stopped() {
                    engine.start().unwrap();
                }
            }
        });
    }
}

#[test]
fn an_engine_that_stops_while_devices_work_loses_nothing() {
    for kind in THREADED {
        watched(move || {
            let engine = builder(kind).gpu(random(8)).gpu(random(9)).build().unwrap();
            let (var, copy, total) = (device(&engine, 1), device(&engine, 1), engine.var(0));
            let (across, host) = (engine.device_var::<u64>(OTHER, 1).unwrap(), pinned(&engine, 1));
            upload(&engine, &var, vec![0]);
            let (done, over) = mpsc::channel();
            let rounds = 300;
            thread::scope(|threads| {
                threads.spawn(|| {
                    for _ in 0..rounds {
                        kernel(&engine, "add", &var, |values| values[0] += 1);
                        engine.op("across").on(OTHER).copy_peer(&var, &across).unwrap();
                        engine.op("back").on(GPU).copy_peer(&across, &copy).unwrap();
                        kernel_from(&engine, "urgent", Property::GpuPrioritized, &copy, &var, |from, to| {
                            to[0] = from[0] + 1;
                        });
                        engine.op("out").on(GPU).copy_from_device(&var, &host).unwrap();
                        engine.op("sum").push((host.read(), total.write()), |(host, total)| *total += host[0]).unwrap();
                    }
                    done.send(()).unwrap();
                });
                while over.try_recv().is_err() {
                    engine.stop(None).unwrap();
                    let (version, launched) = (total.version(), var.version());
                    thread::sleep(Duration::from_micros(500));
                    assert_eq!((total.version(), var.version()), (version, launched), "a stopped engine did something");
                    engine.start().unwrap();
                }
            });
            assert_eq!(download(&engine, &var, 1), [2 * rounds], "{kind}");
            // After round n, the value is 2n.
            assert_eq!(engine.get(&total).unwrap(), rounds * (rounds + 1), "{kind}");
        });
    }
}

#[test]
fn the_stream_of_a_lane_is_the_same_after_a_start() {
    for kind in THREADED {
        watched(move || {
            let gpu = random(12);
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            upload(&engine, &var, vec![0]);
            for round in 0..5 {
                kernel(&engine, "add", &var, |values| values[0] += 1);
                assert_eq!(download(&engine, &var, 1), [round + 1]);
                let streams = gpu.counts().streams;
                engine.stop(None).unwrap();
                engine.start().unwrap();
                kernel(&engine, "again", &var, |_| ());
                assert_eq!(download(&engine, &var, 1), [round + 1]);
                assert_eq!(gpu.counts().streams, streams, "the lane has opened another stream");
            }
        });
    }
}

#[test]
fn a_lost_device_of_a_stopped_engine_fails_its_operations_after_the_start() {
    for kind in THREADED {
        watched(move || {
            let gpu = random(10);
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            upload(&engine, &var, vec![0]);
            assert_eq!(download(&engine, &var, 1), [0]);
            engine.stop(None).unwrap();
            kernel(&engine, "lost", &var, |values| values[0] = 1);
            gpu.lose();
            engine.start().unwrap();
            let failed = common::failure(engine.wait_for_var(&var));
            assert_eq!(failed.name(), "lost");
        });
    }
}

#[test]
fn a_push_to_an_engine_that_has_ended_opens_no_stream() {
    for kind in THREADED {
        watched(move || {
            let gpu = random(14);
            let engine = engine(kind, &gpu);
            engine.shutdown(Shutdown::Drain, None).unwrap();
            let streams = gpu.counts().streams;
            assert_eq!(engine.op("late").on(GPU).launch_any((), |_, ()| ()), Err(PushError::ShutDown));
            // A second shutdown joins the lane's thread if the push has started one.
            engine.shutdown(Shutdown::Drain, None).unwrap();
            assert_eq!(gpu.counts().streams, streams, "{kind}");
        });
    }
}

#[test]
fn an_engine_with_devices_may_be_stopped_and_started_on_any_kind() {
    for kind in common::KINDS {
        watched(move || {
            let engine = engine(kind, &random(11));
            engine.stop(Some(PATIENCE)).unwrap();
            let var = device(&engine, 1);
            let stays = engine.op("kernel").on(GPU).submit_launch_any(var.write(), |stream, var| {
                simulated(stream).launch(Duration::ZERO, var, |values| values[0] = 1)
            });
            let stays = stays.unwrap();
            assert_eq!(stays.is_done(), kind == EngineKind::Naive);
            engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
            assert!(stays.is_done(), "the shutdown did not start the engine");
        });
    }
}
