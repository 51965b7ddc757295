//! Tests of how device operations end: waits, failures, losses, shutdowns.

use crate::common::shapes::*;
use std::{
    error::Error,
    fmt,
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use raddle::{
    Completion, EngineKind, OpContext, Shutdown, WaitError,
    error::{BoxError, Cause, DeviceError, ShutdownError},
    gpu::{GpuStream, SimulatedGpu},
};

use super::{
    GPU, OTHER, assert_sent_by_worker, builder, device, download, engine, hold_lane, issued, kernel, kernel_from,
    manual, ms, pinned, random, send_thread_name, simulated, upload,
};
use crate::common::{
    AWHILE, Gate, Journal, KINDS, MOMENT, PATIENCE, SOON, THREADED, block_on, eventually, failure, hold, lock,
    logger::log_to, occupy, poll_once, watched, watched_for,
};

// -------------------------------------------------------------------------------------------------------- waits ----

#[test]
fn a_handle_is_done_when_the_device_has_done_the_work() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            let launch = || {
                let launch = engine.op("kernel").on(GPU).submit_launch_any(var.write(), |stream, var| {
                    simulated(stream).launch(Duration::ZERO, var, |values| values[0] = 1).map(|()| "issued")
                });
                launch.unwrap()
            };
            let (mut first, second) = (launch(), launch());
            issued(&gpu, 2, 0);
            gpu.advance(ms(1) - Duration::from_nanos(1));
            assert!(matches!(first.wait_timeout(MOMENT), Err(WaitError::TimedOut)), "{kind}");
            gpu.advance(Duration::from_nanos(1));
            assert_eq!(first.wait().unwrap(), "issued");
            assert!(!second.is_done());
            gpu.advance(ms(1));
            assert_eq!(block_on(second).unwrap(), "issued");
        });
    }
}

/// An operation with nothing left to do after its end needs no worker for it, even if it has a deadline.
#[test]
fn an_operation_on_a_device_is_counted_out_while_all_workers_are_busy() {
    for kind in THREADED {
        watched(move || {
            for deadline in [None, Some(Instant::now() + 2 * PATIENCE)] {
                // Each engine serves one wait: workers call its waker, for which a second wait would wait, too.
                let engine = engine(kind, &SimulatedGpu::default());
                let token = engine.token();
                let gate = hold(&engine, &token);
                let op = engine.op("on the device").on(GPU).writes([&token]);
                let op = if let Some(deadline) = deadline { op.deadline(deadline) } else { op };
                op.push_sync(|_| ()).unwrap();
                let mut all = engine.wait_for_all_async();
                assert!(poll_once(&mut all).is_pending());
                let busy = occupy(&engine, 2);
                gate.open();
                eventually("the operation is counted out", || poll_once(&mut all).is_ready());
                busy.open();
            }
        });
    }
}

/// All waits time out while the device is stalled, and return after it resumes.
#[test]
fn waits_for_a_stalled_device_time_out_and_can_be_repeated() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let (var, host) = (device(&engine, 1), pinned(&engine, 1));
            gpu.stall();
            kernel(&engine, "kernel", &var, |values| values[0] = 3);
            engine.op("out").on(GPU).copy_from_device(&var, &host).unwrap();
            issued(&gpu, 1, 1);
            let out_of_time = |result| assert!(matches!(result, Err(WaitError::TimedOut)), "{kind}: {result:?}");
            out_of_time(engine.wait_for_var_timeout(&var, MOMENT));
            out_of_time(engine.wait_to_read_timeout(&host, MOMENT));
            out_of_time(engine.wait_for_var_timeout(&var, MOMENT));
            out_of_time(engine.wait_for_all_timeout(MOMENT));
            let mut look = engine.op("look").submit(host.read(), |host| host[0]).unwrap();
            out_of_time(look.wait_timeout(MOMENT).map(drop));
            let waits = [engine.wait_for_var_async(&var), engine.wait_to_read_async(&host)];
            let all = engine.wait_for_all_async();
            gpu.resume();
            for wait in waits {
                block_on(wait).unwrap();
            }
            block_on(all).unwrap();
            engine.wait_for_var(&var).unwrap();
            engine.wait_for_var(&host).unwrap();
            engine.wait_for_all().unwrap();
            assert_eq!(look.wait().unwrap(), 3, "{kind}");
        });
    }
}

/// The device has completed both kernels, but the lane of the first one, which could still find that the device is
/// lost, does not know yet.
#[test]
fn an_operation_does_not_end_before_those_of_other_lanes_on_which_it_depends() {
    watched_for(AWHILE, || {
        let gpu = manual();
        let engine = engine(EngineKind::PerDevice, &gpu);
        let (var, out, ran) = (device(&engine, 1), device(&engine, 1), Gate::new());
        let at_run = ran.clone();
        let gate = hold_lane(&engine, Property::CopyToGpu);
        let first = engine.op("first").on(GPU).kind(Property::CopyToGpu);
        first.launch_any(var.write(), |stream, var| simulated(stream).launch(Duration::ZERO, var, |_| {})).unwrap();
        let second = engine.op("second").on(GPU).submit_launch_any((var.read(), out.write()), |stream, (var, out)| {
            simulated(stream).launch(Duration::ZERO, (var, out), move |_| at_run.open())
        });
        let second = second.unwrap();
        gate.open();
        // The lane is held again once it has issued the first kernel.
        let gate = hold_lane(&engine, Property::CopyToGpu);
        issued(&gpu, 2, 0);
        gpu.advance(ms(2));
        ran.pass();
        let polls = gpu.counts().polls;
        eventually("the other lane has polled its stream", || second.is_done() || gpu.counts().polls > polls + 100);
        assert!(!second.is_done(), "the second operation has ended before the first");
        gate.open();
        second.wait().unwrap();
        assert_eq!((var.version(), out.version()), (1, 1));
    });
}

#[test]
fn a_wait_to_read_does_not_wait_for_kernels_that_read() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (a, b) = (device(&engine, 1), device(&engine, 1));
            kernel_from(&engine, "reads a", Property::Normal, &a, &b, |_, _| {});
            issued(&gpu, 1, 0);
            engine.wait_to_read(&a).unwrap();
            assert!(engine.wait_for_var_timeout(&a, MOMENT).is_err(), "{kind}");
            assert!(engine.wait_to_read_timeout(&b, MOMENT).is_err(), "{kind}");
            gpu.advance(ms(1));
            engine.wait_for_var(&a).unwrap();
        });
    }
}

/// A device operation's function runs on the thread that the lane's other operations need.
#[test]
fn the_function_of_a_device_operation_cannot_wait() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let (token, own) = (engine.token(), device(&engine, 1));
            let gate = hold(&engine, &token);
            let behind = engine.op("behind").reads([&token]).submit((), |()| ()).unwrap();
            let (inside, other, behind) = (engine.clone(), token.clone(), Mutex::new(Some(behind)));
            let launch = engine.op("waits").on(GPU).submit_launch_any(own.write(), move |_, _| {
                let handle = lock(&behind).take().expect("the function should run once");
                let waits = [
                    inside.wait_for_var(&other),
                    inside.wait_for_var_timeout(&other, MOMENT),
                    handle.wait(),
                    inside.wait_for_all(),
                ];
                Ok::<_, BoxError>(waits)
            });
            let [var, limited, handle, all] = launch.unwrap().wait().unwrap();
            for refused in [var, limited, handle, all] {
                assert!(matches!(refused, Err(WaitError::OnDevice)), "{kind}: {refused:?}");
            }
            // An asynchronous operation has no stream, but its function runs on the lane's thread as well. The wait is
            // refused although nothing is pending on the variable.
            let (inside, idle, (sender, receiver)) = (engine.clone(), engine.token(), mpsc::channel());
            let waits = move |_: &OpContext<'_>, done: Completion| {
                sender.send(inside.wait_for_var(&idle)).unwrap();
                done.complete();
            };
            engine.op("waits as well").on(GPU).push_async_any(raddle::cx(), waits).unwrap();
            let refused = receiver.recv_timeout(AWHILE).unwrap();
            assert!(matches!(refused, Err(WaitError::OnDevice)), "{kind}: {refused:?}");
            gate.open();
            engine.wait_for_all().unwrap();
        });
    }
}

// ----------------------------------------------------------------------------------------------------- failures ----

#[test]
fn copies_of_different_lengths_fail_and_copy_nothing() {
    for kind in KINDS {
        watched(move || {
            let engine = engine(kind, &SimulatedGpu::default());
            let (short, long) = (device(&engine, 2), device(&engine, 3));
            let host = pinned(&engine, 3);
            engine.op("in").on(GPU).copy_to_device(&host, &short).unwrap();
            let failed = failure(engine.wait_for_var(&short));
            assert!(failed.to_string().contains("a copy from 3 elements to 2"), "{kind}: {failed}");
            engine.op("across").on(GPU).copy_peer(&long, &short).unwrap();
            assert_eq!(failure(engine.wait_for_var(&short)).name(), "across", "{kind}");
            engine.clear_error(&short).unwrap();
            engine.op("out").on(GPU).copy_from_device(&short, &host).unwrap();
            assert_eq!(failure(engine.wait_for_var(&host)).name(), "out");
            upload(&engine, &short, vec![1, 2]);
            assert_eq!(download(&engine, &short, 2), [1, 2], "{kind}");
        });
    }
}

/// If an operation's function fails after it has issued work, the operation's variables fail, dependent operations are
/// skipped, and overwriting a variable clears its failure.
#[test]
fn a_failed_function_fails_its_variables_until_they_are_overwritten() {
    for kind in KINDS {
        for panics in [false, true] {
            watched(move || {
                let gpu = random(9);
                let engine = engine(kind, &gpu);
                let (a, b, free) = (device(&engine, 1), device(&engine, 1), device(&engine, 1));
                let skipped = Journal::new();
                for var in [&a, &b, &free] {
                    upload(&engine, var, vec![1]);
                }
                let launch = engine.op("fails").on(GPU).launch_any(a.write(), move |stream, a| {
                    simulated(stream).launch(Duration::ZERO, a, |values| values[0] = 2)?;
                    if panics {
                        std::panic::resume_unwind(Box::new("on purpose"));
                    }
                    Err(BoxError::from("on purpose"))
                });
                launch.unwrap();
                let journal = skipped.clone();
                kernel_from(&engine, "skipped", Property::GpuPrioritized, &a, &b, move |_, _| journal.add("skipped"));
                let cpu = engine.op("skipped too").submit(b.read(), |_| ()).unwrap();
                kernel(&engine, "free", &free, |values| values[0] += 1);
                let failed = failure(engine.wait_for_var(&a));
                assert_eq!(failed.name(), "fails");
                assert!(failed.to_string().contains("on purpose"), "{failed}");
                assert_eq!(panics, matches!(failed.cause(), Cause::Panic(_)));
                assert!(failure(engine.wait_for_var(&b)).ptr_eq(&failed), "{kind}");
                assert!(failure(cpu.wait()).ptr_eq(&failed), "{kind}");
                assert_eq!((a.version(), b.version()), (1, 1), "{kind}");
                upload(&engine, &a, vec![5]);
                kernel_from(&engine, "runs", Property::Normal, &free, &a, |free, a| a[0] += free[0]);
                assert_eq!(download(&engine, &a, 1), [7], "{kind}");
                assert!(failure(engine.wait_for_var(&b)).ptr_eq(&failed), "{kind}: b was not overwritten");
                engine.clear_error(&b).unwrap();
                engine.wait_for_all().unwrap();
                assert_eq!(skipped.len(), 0, "{kind}");
            });
        }
    }
}

/// An error whose drop sends the name of the thread.
#[derive(Debug)]
struct SendsName(mpsc::Sender<String>);

impl Drop for SendsName {
    fn drop(&mut self) {
        send_thread_name(&self.0);
    }
}

impl fmt::Display for SendsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("on purpose")
    }
}

impl Error for SendsName {}

/// The drop of an error is program code, which may take long, so the thread of a lane leaves it to a worker.
#[test]
fn errors_of_device_operations_are_dropped_by_workers() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            let (sender, names) = mpsc::channel();
            // Once the failure was ignored, only the operation in flight has the error.
            let error = SendsName(sender.clone());
            let launch = engine.op("fails").on(GPU).launch_any(var.read(), move |stream, var| {
                simulated(stream).launch(Duration::ZERO, var, |_| {})?;
                Err(BoxError::from(error))
            });
            launch.unwrap();
            eventually("the function has failed", || engine.clear_errors().is_some());
            gpu.advance(ms(1));
            assert_sent_by_worker(&names, format_args!("{kind}, an ignored error"));
            engine.wait_for_all().unwrap();
            // A kernel overwrites the failed variable.
            let error = SendsName(sender);
            engine
                .op("fails")
                .on(GPU)
                .launch_any(var.write(), move |_, _| Err::<(), _>(BoxError::from(error)))
                .unwrap();
            let overwrite =
                |stream: &mut GpuStream, var: &mut _| simulated(stream).launch(Duration::ZERO, var, |_: &mut [u64]| {});
            engine.op("overwrites").on(GPU).launch_any(var.overwrite(), overwrite).unwrap();
            issued(&gpu, 2, 0);
            gpu.advance(ms(1));
            assert_sent_by_worker(&names, format_args!("{kind}, an overwritten error"));
            engine.wait_for_all().unwrap();
        });
    }
}

/// A failure propagates from the CPU to the device and back.
#[test]
fn a_failure_passes_through_device_and_cpu_operations() {
    for kind in KINDS {
        watched(move || {
            let gpu = random(10);
            let engine = engine(kind, &gpu);
            let (host, var, back) = (pinned(&engine, 1), device(&engine, 1), pinned(&engine, 1));
            engine.op("fails").push_any(host.write(), |_| Err::<(), _>("on purpose")).unwrap();
            engine.op("in").on(GPU).copy_to_device(&host, &var).unwrap();
            let seen = Journal::new();
            let (first, second) = (seen.clone(), seen.clone());
            let keeps_on = engine.op("keeps on").on(GPU).run_always().launch_any(var.read(), move |_, _| first.add(1));
            keeps_on.unwrap();
            let by_property = engine.op("keeps on").on(GPU).run_always();
            by_property.launch_any(var.read(), move |_, _| second.add(2)).unwrap();
            engine.op("out").on(GPU).copy_from_device(&var, &back).unwrap();
            let failed = failure(engine.op("look").submit(back.read(), |_| ()).unwrap().wait());
            assert_eq!(failed.name(), "fails", "{kind}");
            assert!(failure(engine.wait_for_var(&var)).ptr_eq(&failed), "{kind}");
            engine.wait_for_all().expect("a reported failure should not be reported again");
            let mut seen = seen.take();
            seen.sort_unstable();
            assert_eq!((seen, gpu.counts().copies), (vec![1, 2], 0), "{kind}");
        });
    }
}

// ------------------------------------------------------------------------------------------------------- losses ----

#[test]
fn a_lost_device_fails_later_operations_on_it_and_no_others() {
    for kind in KINDS {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let (var, cpu) = (device(&engine, 1), engine.var(0));
            gpu.lose();
            kernel(&engine, "launch", &var, |values| values[0] += 1);
            engine.op("cpu").push(cpu.write(), |cpu| *cpu += 1).unwrap();
            let failed = failure(engine.wait_for_var(&var));
            assert_eq!(failed.name(), "launch");
            assert!(failure(engine.wait_for_var(&var)).ptr_eq(&failed), "a later wait returned another failure");
            assert!(matches!(failed.cause(), Cause::Device(_) | Cause::Error(_)), "{kind}: {failed:?}");
            assert_eq!(engine.get(&cpu).unwrap(), 1);
            assert!(engine.device_var::<u64>(GPU, 1).unwrap_err().is_lost());
            // A CPU operation that overwrites the token clears its failure.
            let token = engine.token();
            let push = engine.op("token").on(GPU).writes([&token]).push_sync(|_| {});
            push.unwrap();
            assert!(engine.wait_for_var(&token).is_err(), "{kind}");
            engine.op("by the cpu").overwrites([&token]).push_sync(|_| {}).unwrap();
            engine.wait_for_var(&token).unwrap();
        });
    }
}

#[test]
fn the_loss_of_a_device_is_logged_once_with_its_name_and_the_cause() {
    let logged = Journal::new();
    let journal = logged.clone();
    // Other tests of this process may log losses of their own.
    log_to(move |text| {
        if text.contains("to be logged") {
            journal.add(text.to_owned());
        }
    });
    for kind in KINDS {
        watched(move || {
            let engine = engine(kind, &SimulatedGpu::default());
            let (var, back) = (device(&engine, 1), pinned(&engine, 1));
            for _ in 0..5 {
                // The copies are issued on another stream, for which this one records events.
                kernel(&engine, "before", &var, |_| {});
                engine.op("out").on(GPU).copy_from_device(&var, &back).unwrap();
            }
            kernel(&engine, "panics", &var, |_| panic!("to be logged"));
            failure(engine.wait_for_var(&var));
            for _ in 0..20 {
                // A clean-up is not skipped.
                engine.op("on the lost device").on(GPU).cleanup().launch_any(var.write(), |_, _| {}).unwrap();
                engine.op("out").on(GPU).copy_from_device(&var, &back).unwrap();
            }
            failure(engine.wait_for_var(&var));
            engine.clear_errors();
        });
        let message = "raddle: simulated GPU is lost: a kernel panicked: to be logged (error 719, the device is lost)";
        assert_eq!(logged.take(), [message], "{kind}");
    }
}

#[test]
fn operations_in_flight_on_a_lost_device_fail_and_the_other_gpu_continues() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let (gpu, other) = (manual(), random(11));
            let engine = builder(kind).gpu(gpu.clone()).gpu(other).build().unwrap();
            let (var, back) = (device(&engine, 1), pinned(&engine, 1));
            let elsewhere = engine.device_var::<u64>(OTHER, 1).unwrap();
            let launch = engine.op("under way").on(GPU).submit_launch_any(var.write(), |stream, var| {
                simulated(stream).launch(Duration::ZERO, var, |values| values[0] = 1)
            });
            let handle = launch.unwrap();
            engine.op("out").on(GPU).copy_from_device(&var, &back).unwrap();
            let cpu = engine.op("cpu").submit(back.read(), |back| back[0]).unwrap();
            let across = engine.op("across").on(OTHER).copy_peer(&var, &elsewhere);
            across.unwrap();
            issued(&gpu, 1, 1);
            gpu.lose();
            let failed = failure(handle.wait());
            assert_eq!(failed.name(), "under way");
            assert!(
                matches!(failed.cause(), Cause::Device(error) if error.is_lost() && error.code() == 999),
                "{failed:?}"
            );
            assert!(failure(engine.wait_for_var(&var)).ptr_eq(&failed));
            // Either operation's failure is reported, depending on which lane found the loss first.
            let reported = failure(cpu.wait());
            assert!(["under way", "out"].contains(&reported.name()), "{reported}");
            assert!(
                failure(engine.wait_for_var(&elsewhere)).ptr_eq(&failed),
                "`elsewhere` did not fail with the kernel"
            );
            let fill = engine.op("goes on").on(OTHER).overwrites([elsewhere.token()]).push_sync(|_| {});
            fill.unwrap();
            engine.wait_for_var(&elsewhere).unwrap();
            assert_eq!(var.version(), 0);
            drop((var, back));
            engine.shutdown(Shutdown::Drain, None).unwrap();
        });
    }
}

/// Both operations are in flight on one lane.
#[test]
fn an_operation_behind_another_on_a_lost_device_fails_with_the_same_failure() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (first, second) = (device(&engine, 1), device(&engine, 1));
            kernel(&engine, "first", &first, |_| {});
            kernel_from(&engine, "second", Property::Normal, &first, &second, |_, _| {});
            issued(&gpu, 2, 0);
            gpu.lose();
            let failed = failure(engine.wait_for_var(&first));
            assert_eq!(failed.name(), "first", "{kind}");
            assert!(failed.downcast_ref::<DeviceError>().is_some_and(DeviceError::is_lost), "{kind}: {failed:?}");
            assert!(failure(engine.wait_for_var(&second)).ptr_eq(&failed), "{kind}: each has a failure of its own");
        });
    }
}

/// Memory is returned to the host only when no command uses it any longer. A kernel running when the device is lost
/// must finish first, whichever thread runs it and whichever lane finds the loss.
#[test]
fn a_loss_is_reported_after_the_running_kernel_has_ended() {
    watched_for(AWHILE, || {
        let gpu = manual();
        let engine = engine(EngineKind::PerDevice, &gpu);
        let (slow, busy, third) = (device(&engine, 1), device(&engine, 1), device(&engine, 1));
        let (running, go_on) = (Gate::new(), Gate::new());
        let (inside, leave) = (running.clone(), go_on.clone());
        let launch = engine.op("slow").on(GPU).submit_launch_any(slow.write(), move |stream, slow| {
            simulated(stream).launch(Duration::ZERO, slow, move |_| {
                inside.open();
                leave.pass();
            })
        });
        let mut handle = launch.unwrap();
        issued(&gpu, 1, 0);
        // The first kernel starts only when the device is polled. Without a poll, the kernel below could start first.
        let polls = gpu.counts().polls;
        eventually("the kernel is started", || gpu.counts().polls > polls);
        // The lane of the kernel is busy, so the thread of another lane runs the kernel.
        let lane = hold_lane(&engine, Property::Normal);
        kernel_from(&engine, "polls", Property::GpuPrioritized, &third, &busy, |_, _| {});
        issued(&gpu, 2, 0);
        gpu.advance(ms(1));
        running.pass();
        gpu.lose();
        // A third lane learns of the loss from its own call to the driver: it puts a mark behind the operation's
        // function even though the function has issued no work.
        let token = engine.token();
        let reported = engine.op("reported").on(GPU).kind(Property::CopyToGpu).writes([&token]);
        let mut reported = reported.submit_launch_any((), |_: &mut GpuStream, ()| Ok::<_, DeviceError>(())).unwrap();
        let third_is_told = reported.wait_timeout(MOMENT);
        lane.open();
        let slow_is_over = handle.wait_timeout(MOMENT);
        go_on.open();
        assert!(matches!(third_is_told, Err(WaitError::TimedOut)), "a kernel runs: {third_is_told:?}");
        assert!(
            matches!(slow_is_over, Err(WaitError::TimedOut)),
            "the operation ended before its kernel: {slow_is_over:?}"
        );
        assert_eq!(failure(handle.wait()).name(), "slow");
        assert!(reported.wait().is_err());
    });
}

/// On the naive engine, an operation completes only after its work on the device has ended, even if the device refuses
/// a call.
#[test]
fn in_the_naive_engine_nothing_is_in_flight_when_a_push_returns() {
    // The refused call is the launch or the one after it.
    for n in 1..=2 {
        watched(move || {
            let gpu = SimulatedGpu::builder().kernel_time(ms(20)).build();
            let engine = engine(EngineKind::Naive, &gpu);
            let (var, ended) = (device(&engine, 1), Gate::new());
            gpu.refuse_at(n);
            let at_end = ended.clone();
            let launch = engine.op("kernel").on(GPU).submit_launch_any(var.write(), move |stream, var| {
                simulated(stream).launch(Duration::ZERO, var, move |_| at_end.open())
            });
            let (handle, ran) = (launch.unwrap(), ended.is_open());
            let result = handle.wait();
            assert_eq!(result.is_ok(), ran, "call {n}: {result:?}");
            gpu.refuse_at(0);
            // The device completes all earlier kernels before this one, since kernels run one at a time.
            let other = device(&engine, 1);
            kernel(&engine, "another", &other, |_| {});
            let _ = engine.wait_for_all();
            assert_eq!(ended.is_open(), ran, "call {n}: the kernel ran after its operation");
        });
    }
}

// ---------------------------------------------------------------------------------------------------- shutdowns ----

#[test]
fn a_draining_shutdown_waits_for_the_device() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let (var, journal) = (device(&engine, 1), Journal::new());
            gpu.stall();
            for number in 0..10 {
                let journal = journal.clone();
                kernel(&engine, "kernel", &var, move |_| journal.add(number));
            }
            issued(&gpu, 10, 0);
            assert_eq!(engine.shutdown(Shutdown::Drain, Some(MOMENT)), Err(ShutdownError::TimedOut));
            let late = engine.op("late").on(GPU).launch_any(var.write(), |_, _| {});
            assert_eq!(late, Err(raddle::PushError::ShutDown));
            gpu.resume();
            engine.shutdown(Shutdown::Drain, None).unwrap();
            assert_eq!(journal.take(), (0..10).collect::<Vec<_>>(), "{kind}");
            assert_eq!(var.version(), 10);
        });
    }
}

/// The push would be the first on its lane.
#[test]
fn a_push_after_a_shutdown_starts_no_thread_for_a_lane() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            engine.shutdown(Shutdown::Drain, None).unwrap();
            let late = engine.op("late").on(GPU).launch_any(var.write(), |_, _| {});
            assert_eq!(late, Err(raddle::PushError::ShutDown));
            // A second shutdown joins the threads that were started in the meantime. A lane's thread opens a stream.
            engine.shutdown(Shutdown::Drain, None).unwrap();
            assert_eq!(gpu.counts().streams, 0, "{kind}");
        });
    }
}

#[test]
fn a_cancelling_shutdown_cancels_only_what_was_not_issued() {
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (var, token, journal) = (device(&engine, 1), engine.token(), Journal::new());
            let gate = hold(&engine, &token);
            let first = journal.clone();
            kernel(&engine, "under way", &var, move |_| first.add("under way"));
            let launch = engine
                .op("behind the cpu")
                .on(GPU)
                .reads([&token])
                .submit_launch_any(var.write(), |_, _| Ok::<_, BoxError>(()));
            let cancelled = launch.unwrap();
            issued(&gpu, 1, 0);
            assert_eq!(engine.shutdown(Shutdown::Cancel, Some(MOMENT)), Err(ShutdownError::TimedOut));
            gate.open();
            gpu.advance(ms(1));
            engine.shutdown(Shutdown::Cancel, None).unwrap();
            let failed = failure(cancelled.wait());
            assert!(matches!(failed.cause(), Cause::Cancelled), "{kind}: {failed:?}");
            assert_eq!(journal.take(), ["under way"], "{kind}");
            assert_eq!(var.version(), 1);
        });
    }
}

#[test]
fn the_drop_of_an_engine_waits_for_work_in_flight() {
    for kind in KINDS {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let (engine, journal) = (engine(kind, &gpu), Journal::new());
            let (host, var) = (pinned(&engine, 8), device(&engine, 8));
            for number in 0..50 {
                let journal = journal.clone();
                engine.op("in").on(GPU).copy_to_device(&host, &var).unwrap();
                kernel(&engine, "kernel", &var, move |_| journal.add(number));
            }
            drop(engine);
            assert_eq!(journal.take(), (0..50).collect::<Vec<_>>(), "{kind}");
            // Variables may outlive the engine.
            drop((host, var));
        });
    }
}

/// The function of a device operation drops a handle to the engine, which may be the last one.
#[test]
fn the_last_handle_to_an_engine_may_be_dropped_on_a_device_thread() {
    for kind in THREADED {
        watched(move || {
            let gpu = random(12);
            let (engine, ended) = (engine(kind, &gpu), Gate::new());
            let (var, own, at_end) = (device(&engine, 1), engine.clone(), ended.clone());
            let launch = engine.op("keeps the engine").on(GPU).launch_any(var.write(), move |_, _| {
                drop(own);
                at_end.open();
            });
            launch.unwrap();
            drop((engine, var));
            ended.pass();
        });
    }
}

/// The operation has no stream, so it completes when its completion is used.
#[test]
fn a_shutdown_does_not_wait_for_a_stalled_device_with_an_asynchronous_operation() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let token = engine.token();
            gpu.stall();
            engine
                .op("asynchronous")
                .on(GPU)
                .writes([&token])
                .push_async_any(raddle::cx(), |_, done| done.complete())
                .unwrap();
            eventually("the operation is complete", || token.version() == 1);
            let (inside, over) = (engine.clone(), Gate::new());
            let at_end = over.clone();
            let thread = thread::spawn(move || {
                let result = inside.shutdown(Shutdown::Drain, Some(MOMENT));
                at_end.open();
                result
            });
            let in_time = over.pass_within(SOON);
            gpu.resume();
            assert!(in_time, "{kind}: a shutdown with a limit of {MOMENT:?} waited for the device");
            assert_eq!(thread.join().unwrap(), Ok(()), "{kind}");
        });
    }
}
