//! The reports of watchdogs, and their timing.

use raddle_testkit as common;

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use common::{Gate, KINDS, Meeting, THREADED, logger::log_to, watched};
use raddle::{
    Device, Engine, EngineBuilder, EngineKind, Shutdown, Var, completion,
    gpu::{DeviceVec, SimulatedGpu},
    stream,
    trace::{Problem, Watchdog, WatchdogReport},
};

const LIMIT: Duration = Duration::from_millis(40);

/// Returns an engine of `kind` with a watchdog, and a receiver of the watchdog's reports.
fn engine(builder: EngineBuilder, kind: EngineKind, watchdog: Watchdog) -> (Engine, Receiver<WatchdogReport>) {
    let (sender, receiver) = mpsc::channel();
    let watchdog = watchdog.report_to(move |report| _ = sender.send(report.clone()));
    (builder.kind(kind).workers(2).watchdog(watchdog).build().unwrap(), receiver)
}

/// Calls `f` with an engine of each kind, and a receiver of its watchdog's reports.
fn each(
    kinds: &[EngineKind],
    watchdog: &Watchdog,
    f: impl Fn(&Engine, &Receiver<WatchdogReport>) + Clone + Send + 'static,
) {
    for &kind in kinds {
        let (f, watchdog) = (f.clone(), watchdog.clone());
        watched(move || {
            let (engine, reports) = engine(Engine::builder(), kind, watchdog);
            f(&engine, &reports);
        });
    }
}

/// Returns an engine with a simulated GPU and a watchdog, a receiver of the watchdog's reports, and a variable of the
/// GPU.
fn engine_with_gpu(watchdog: Watchdog) -> (Engine, Receiver<WatchdogReport>, Var<DeviceVec<u64>>) {
    let (engine, reports) = engine(Engine::builder().gpu(SimulatedGpu::new()), EngineKind::PerDevice, watchdog);
    let value = engine.device_var(Device::Gpu(0), 4).unwrap();
    (engine, reports, value)
}

/// Launches a kernel on the first GPU that mutates `value` and takes `time`.
fn launch(engine: &Engine, name: &'static str, value: &Var<DeviceVec<u64>>, time: Duration) {
    engine
        .op(name)
        .on(Device::Gpu(0))
        .try_push((value.write(), stream()), move |(value, stream)| {
            let mut stream = stream.simulated().expect("the device should be simulated");
            Ok(stream.launch(time, value, |value| value.fill(1))?)
        })
        .unwrap();
}

#[test]
fn a_limit_of_zero_is_a_millisecond() {
    each(&THREADED, &Watchdog::new().stalled(Duration::ZERO), |engine, reports| {
        let (sender, receiver) = mpsc::channel::<()>();
        engine.op("stuck").push((), move |()| _ = receiver.recv()).unwrap();
        let report = reports.recv().unwrap();
        let Problem::Stalled { time } = report.problem else { panic!("{report}") };
        assert!(time >= Duration::from_millis(1), "{report}");
        drop(sender);
    });
}

#[test]
fn an_operation_that_runs_for_too_long_is_reported_once() {
    each(&THREADED, &Watchdog::new().running(LIMIT), |engine, reports| {
        let (sender, receiver) = mpsc::channel::<()>();
        let x = engine.var(0);
        engine.op("stuck").push(x.write(), move |_| _ = receiver.recv()).unwrap();
        engine.op("behind").push(x.read(), |_| {}).unwrap();
        let report = reports.recv().unwrap();
        let Problem::Running { op, time, .. } = report.problem else { panic!("{report}") };
        assert!(report.dump.ops()[op].label() == "stuck" && time >= LIMIT, "{report}");
        let text = report.to_string();
        assert!(
            text.contains("`stuck` pushed at tests/observing/watchdog.rs:") && text.contains("holds up 1 other"),
            "{text}"
        );
        assert!(reports.recv_timeout(3 * LIMIT).is_err(), "the operation is reported once");
        drop(sender);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn reports_are_logged_if_no_function_receives_them() {
    let (sender, reports) = mpsc::channel();
    log_to(move |message| {
        if message.contains("`logged` pushed at tests/observing/watchdog.rs:") {
            let _ = sender.send(message.to_owned());
        }
    });
    let reports = Arc::new(Mutex::new(reports));
    for kind in THREADED {
        let reports = Arc::clone(&reports);
        watched(move || {
            let watchdog = Watchdog::new().running(LIMIT);
            let engine = Engine::builder().kind(kind).workers(2).watchdog(watchdog).build().unwrap();
            let (leave, left) = mpsc::channel::<()>();
            engine.op("logged").push((), move |()| _ = left.recv()).unwrap();
            let report = common::lock(&reports).recv().unwrap();
            assert!(report.contains("has been running for"), "{report}");
            drop(leave);
        });
    }
}

#[test]
fn an_operation_that_waits_for_too_long_is_reported_with_its_chain() {
    each(&KINDS, &Watchdog::new().waiting(LIMIT), |engine, reports| {
        let (sender, receiver) = mpsc::channel();
        let x = engine.token();
        engine.op("ask").writes([&x]).push(completion(), move |completion| sender.send(completion).unwrap()).unwrap();
        let completion = receiver.recv().unwrap();
        engine.op("answer").reads([&x]).push((), |()| {}).unwrap();
        let report = reports.recv().unwrap();
        assert!(matches!(report.problem, Problem::Waiting { .. }), "{report}");
        let text = report.to_string();
        assert!(text.contains("`answer`") && text.contains("which waits for `ask`"), "{text}");
        completion.complete();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn what_waits_for_the_same_or_runs_under_the_same_name_is_reported_once() {
    each(&THREADED, &Watchdog::new().waiting(LIMIT).running(LIMIT), |engine, reports| {
        let x = engine.token();
        let gate = common::hold(engine, &x);
        let (sender, receiver) = mpsc::channel();
        for _ in 0..500 {
            engine.op("reads").reads([&x]).push((), |()| {}).unwrap();
            engine.op("writes").writes([&x]).push((), |()| {}).unwrap();
            let sender = sender.clone();
            engine.op("request").push(completion(), move |done| sender.send(done).unwrap()).unwrap();
        }
        let requests: Vec<_> = receiver.iter().take(500).collect();
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let engine = engine.clone();
                thread::spawn(move || engine.wait_for_all())
            })
            .collect();
        let (mut found, mut counts) = (0, [0; 3]);
        while let Ok(report) = reports.recv_timeout(10 * LIMIT) {
            found += 1;
            assert!(report.to_string().len() < 4000, "{report}");
            match report.problem {
                Problem::Waiting { others, .. } => counts[0] += 1 + others,
                Problem::Running { others, .. } => counts[1] += 1 + others,
                Problem::Wait { others, .. } => counts[2] += 1 + others,
                _ => panic!("{report}"),
            }
        }
        // What is found waiting later, when the cause was reported, is not counted.
        assert!(found < 30 && counts[0] > 0 && counts[1] == 501 && counts[2] > 0, "{found} reports of {counts:?}");
        requests.into_iter().for_each(raddle::Completion::complete);
        gate.open();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
    });
}

/// While the program receives a report, what the next one would be about ends, or the engine does.
#[test]
fn what_is_over_is_not_reported() {
    for shuts_down in [false, true] {
        watched(move || {
            let (told, tell) = (mpsc::channel(), Gate::new());
            let sender = told.0;
            let inside = tell.clone();
            let watchdog = Watchdog::new().running(LIMIT).report_to(move |report| {
                sender.send(report.to_string()).unwrap();
                inside.pass();
            });
            let engine = Engine::builder().workers(2).watchdog(watchdog).build().unwrap();
            let ops = ["first", "second"].map(|name| {
                let gate = Gate::new();
                let closed = gate.clone();
                engine.op(name).push((), move |()| closed.pass()).unwrap();
                gate
            });
            let first = told.1.recv().unwrap();
            ops.into_iter().for_each(|gate| gate.open());
            engine.wait_for_all().unwrap();
            if shuts_down {
                engine.shutdown(Shutdown::Drain, None).unwrap();
                tell.open();
                // The watchdog's thread holds the sender, and ends.
                assert_eq!(told.1.iter().count(), 0, "after {first}");
            } else {
                tell.open();
                assert!(told.1.recv_timeout(3 * LIMIT).is_err(), "after {first}");
            }
        });
    }
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_process_is_stopped_for_a_while() {
    if !common::is_child() {
        return;
    }
    let limit = Duration::from_millis(600);
    let watchdog = Watchdog::new().running(limit).waiting(limit).stalled(limit);
    let (engine, reports) = engine(Engine::builder(), EngineKind::PerDevice, watchdog);
    let stop = format!("sleep 0.2; kill -STOP {0}; sleep 1; kill -CONT {0}", std::process::id());
    let mut stopper = std::process::Command::new("sh").args(["-c", &stop]).spawn().unwrap();
    // In the middle of this operation, the process is stopped. The other one waits for it.
    let x = engine.token();
    engine.op("runs").writes([&x]).push((), move |()| thread::sleep(limit / 2)).unwrap();
    engine.op("waits").reads([&x]).push((), |()| {}).unwrap();
    let start = Instant::now();
    engine.wait_for_all().unwrap();
    stopper.wait().unwrap();
    assert!(start.elapsed() > limit, "the process was not stopped");
    assert!(reports.recv_timeout(limit / 2).is_err());
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "stops a process by a signal")]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_time_for_which_the_process_was_stopped_does_not_count() {
    common::child_succeeds("in_a_child_the_process_is_stopped_for_a_while");
}

#[test]
fn a_stalled_engine_is_reported_and_reported_again_after_progress() {
    each(&KINDS, &Watchdog::new().stalled(LIMIT), |engine, reports| {
        let x = engine.token();
        for round in 0..2 {
            let (sender, receiver) = mpsc::channel();
            engine
                .op("ask")
                .writes([&x])
                .push(completion(), move |completion| sender.send(completion).unwrap())
                .unwrap();
            let completion = receiver.recv().unwrap();
            let report = reports.recv().unwrap();
            assert!(matches!(report.problem, Problem::Stalled { time } if time >= LIMIT), "round {round}: {report}");
            assert!(report.to_string().contains("`ask`"), "{report}");
            assert!(reports.recv_timeout(3 * LIMIT).is_err(), "round {round}: the engine is reported twice");
            completion.complete();
            engine.wait_for_all().unwrap();
        }
    });
}

/// The time before the push, in which nothing was pending, does not count.
#[test]
fn an_idle_engine_is_not_stalled() {
    each(&KINDS, &Watchdog::new().stalled(LIMIT), |engine, reports| {
        thread::sleep(5 * LIMIT);
        let (x, start) = (engine.token(), Instant::now());
        let gate = common::hold(engine, &x);
        let report = reports.recv().unwrap();
        assert!(matches!(report.problem, Problem::Stalled { time } if time <= start.elapsed()), "{report}");
        gate.open();
        engine.wait_for_all().unwrap();
    });
}

/// No operation ends, but one leaves its worker to another, which starts.
#[test]
fn a_start_is_progress_of_a_stalled_engine() {
    each(&THREADED, &Watchdog::new().stalled(5 * LIMIT), |engine, reports| {
        let (leave, end, meeting) = (Gate::new(), Gate::new(), Meeting::new(3));
        for leaves in [true, false] {
            let (leave, end, meeting) = (leave.clone(), end.clone(), meeting.clone());
            let runs = move |()| {
                meeting.join();
                if leaves {
                    leave.pass();
                    raddle::blocking(|| end.pass());
                } else {
                    end.pass();
                }
            };
            engine.op("runs").push((), runs).unwrap();
        }
        meeting.join();
        let ends = end.clone();
        engine.op("starts").push((), move |()| ends.pass()).unwrap();
        for round in 0..2 {
            let report = reports.recv().unwrap();
            let is_stalled = matches!(report.problem, Problem::Stalled { time } if time >= 5 * LIMIT);
            assert!(is_stalled, "round {round}: {report}");
            leave.open();
        }
        end.open();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn the_time_before_the_start_of_an_operation_does_not_count_as_running() {
    each(&THREADED, &Watchdog::new().running(LIMIT), |engine, reports| {
        let x = engine.token();
        let gate = common::hold(engine, &x);
        let (sender, receiver) = mpsc::channel::<()>();
        engine.op("stuck").writes([&x]).push((), move |()| _ = receiver.recv()).unwrap();
        let running = |report: &WatchdogReport| {
            let Problem::Running { op, time, .. } = report.problem else { panic!("{report}") };
            (report.dump.ops()[op].label(), time)
        };
        // An asynchronous operation runs until its completion is used.
        assert_eq!(running(&reports.recv().unwrap()).0, "hold");
        thread::sleep(3 * LIMIT);
        let start = Instant::now();
        gate.open();
        let report = reports.recv().unwrap();
        let (name, time) = running(&report);
        assert!(name == "stuck" && time <= start.elapsed(), "{report}");
        drop(sender);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn pushes_are_no_progress_of_a_stalled_engine() {
    each(&KINDS, &Watchdog::new().stalled(LIMIT), |engine, reports| {
        let x = engine.token();
        let (sender, receiver) = mpsc::channel();
        engine.op("stuck").writes([&x]).push(completion(), move |done| sender.send(done).unwrap()).unwrap();
        let completion = receiver.recv().unwrap();
        let report = loop {
            engine.op("behind").writes([&x]).push((), |()| {}).unwrap();
            if let Ok(report) = reports.recv_timeout(LIMIT / 8) {
                break report;
            }
        };
        assert!(matches!(report.problem, Problem::Stalled { .. }), "{report}");
        completion.complete();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_cycle_of_waits_is_reported() {
    each(&THREADED, &Watchdog::new().stalled(Duration::from_millis(200)), |engine, reports| {
        let (x, y) = (engine.var(0), engine.var(0));
        let (go, gone) = (mpsc::channel(), mpsc::channel());
        let waits = |name: &'static str, own: &Var<i32>, handle: Receiver<raddle::OpHandle<()>>| {
            engine
                .op(name)
                .push(own.write(), move |_| {
                    let mut handle = handle.recv().unwrap();
                    // Both waits have time limits. No search for a deadlock follows such a wait of another operation,
                    // so neither is refused.
                    let _ = handle.wait_timeout(Duration::from_secs(1));
                })
                .unwrap();
        };
        waits("first", &x, go.1);
        waits("second", &y, gone.1);
        go.0.send(engine.op("behind second").submit(y.write(), |_| {}).unwrap()).unwrap();
        gone.0.send(engine.op("behind first").submit(x.write(), |_| {}).unwrap()).unwrap();
        let report = reports.iter().find(|report| matches!(report.problem, Problem::Cycle { .. })).unwrap();
        let text = report.to_string();
        assert!(text.contains("wait for each other") && text.contains("`behind first`"), "{text}");
        let _ = engine.wait_for_all();
        let is_cycle = |report: WatchdogReport| matches!(report.problem, Problem::Cycle { .. });
        assert!(!reports.try_iter().any(is_cycle), "the cycle is reported twice");
    });
}

#[test]
fn a_gpu_operation_that_runs_for_too_long_is_reported() {
    watched(|| {
        let (engine, reports, value) = engine_with_gpu(Watchdog::new().running(LIMIT));
        // A watchdog whose thread does not run meanwhile misses a kernel, but not each one.
        let report = loop {
            let time = Duration::from_millis(300);
            launch(&engine, "kernel", &value, time);
            if let Ok(report) = reports.recv_timeout(2 * time) {
                break report;
            }
        };
        assert!(report.to_string().contains("`kernel`"), "{report}");
        let Problem::Running { op, .. } = report.problem else { panic!("{report}") };
        assert_eq!(report.dump.ops()[op].device, Device::Gpu(0));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_engine_that_works_is_not_reported_and_a_watchdog_ends_with_its_engine() {
    let watchdog = Watchdog::new().running(25 * LIMIT).waiting(25 * LIMIT).stalled(25 * LIMIT);
    each(&KINDS, &watchdog, |engine, reports| {
        let x = engine.var(0);
        for _ in 0..250 {
            engine.op("work").push(x.write(), |_| thread::sleep(Duration::from_millis(5))).unwrap();
            engine.op("read").push(x.read(), |_| {}).unwrap();
            engine.wait_for_var(&x).unwrap();
        }
        engine.shutdown(Shutdown::Drain, None).unwrap();
        // The watchdog's thread holds the sender.
        assert!(reports.recv().is_err(), "something was reported");
    });
}

#[test]
fn the_receiver_of_reports_may_panic_and_may_shut_the_engine_down() {
    watched(|| {
        let (sender, receiver) = mpsc::channel();
        let (engine_sender, engine_receiver) = mpsc::channel::<Engine>();
        let engine_receiver = Mutex::new(engine_receiver);
        let watchdog = Watchdog::new().running(LIMIT).report_to(move |_| {
            let engine = engine_receiver.lock().unwrap().recv().unwrap();
            sender.send(engine.shutdown(Shutdown::Cancel, Some(Duration::from_millis(10)))).unwrap();
            panic!("a part of this test");
        });
        let engine = Engine::builder().workers(1).watchdog(watchdog).build().unwrap();
        let (go, wait) = mpsc::channel::<()>();
        engine.op("stuck").push((), move |()| _ = wait.recv()).unwrap();
        engine_sender.send(engine.clone()).unwrap();
        assert!(receiver.recv().unwrap().is_err(), "the shutdown succeeded although an operation was running");
        drop(go);
        drop(engine);
    });
}

#[test]
fn a_thread_that_waits_for_too_long_is_reported_once_with_its_chain() {
    each(&THREADED, &Watchdog::new().waiting(LIMIT), |engine, reports| {
        let (sender, receiver) = mpsc::channel::<()>();
        let group = engine.group();
        group.op("hold").push((), move |()| _ = receiver.recv()).unwrap();
        let waits: [fn(&Engine, &raddle::Group); 2] =
            [|engine, _| engine.wait_for_all().unwrap(), |_, group| group.wait().unwrap()];
        let mut texts = Vec::new();
        let threads: Vec<_> = waits
            .into_iter()
            .map(|wait| {
                let (engine, group) = (engine.clone(), group.clone());
                let waiter = thread::Builder::new().name("waiter".to_owned());
                let thread = waiter.spawn(move || wait(&engine, &group)).unwrap();
                let report = reports.recv().unwrap();
                let Problem::Wait { wait, time, .. } = report.problem else { panic!("{report}") };
                assert!(report.dump.waits()[wait].thread == "waiter" && time >= LIMIT, "{report}");
                texts.push(report.to_string());
                thread
            })
            .collect();
        assert!(texts[0].contains("thread `waiter` has been waiting for all operations for"), "{texts:?}");
        assert!(texts[1].contains("a group for") && texts[1].contains("waits for `hold` pushed at"), "{texts:?}");
        assert!(reports.recv_timeout(3 * LIMIT).is_err(), "a wait is reported twice");
        drop(sender);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// The wait is an internal operation, too.
#[test]
fn a_thread_that_waits_for_a_variable_for_too_long_is_reported_once() {
    each(&THREADED, &Watchdog::new().waiting(5 * LIMIT), |engine, reports| {
        let x = engine.token();
        let gate = common::hold(engine, &x);
        let (inside, awaited) = (engine.clone(), x.clone());
        let waiter = thread::spawn(move || inside.wait_for_var(&awaited));
        let report = reports.recv().unwrap();
        assert!(matches!(report.problem, Problem::Wait { .. }), "{report}");
        assert!(reports.recv_timeout(10 * LIMIT).is_err(), "the wait is reported twice");
        gate.open();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn a_task_that_awaits_a_variable_for_too_long_is_reported() {
    each(&THREADED, &Watchdog::new().waiting(LIMIT), |engine, reports| {
        let x = engine.token();
        let gate = common::hold(engine, &x);
        let mut ready = Box::pin(x.ready());
        assert!(common::poll_once(&mut ready).is_pending());
        let report = reports.recv().unwrap();
        let Problem::Waiting { op, .. } = report.problem else { panic!("{report}") };
        assert_eq!(report.dump.ops()[op].location.file(), file!(), "{report}");
        assert!(report.to_string().contains("which waits for `hold`"), "{report}");
        gate.open();
        common::block_on(ready).unwrap();
    });
}

#[test]
fn a_budget_applies_to_operations_with_its_name() {
    let watchdog = Watchdog::new().running(100 * LIMIT).budget("tight", LIMIT).budget("loose", 1000 * LIMIT);
    each(&THREADED, &watchdog, |engine, reports| {
        let (sender, receiver) = mpsc::channel::<()>();
        let (other_sender, other_receiver) = mpsc::channel::<()>();
        engine.op("loose").push((), move |()| _ = receiver.recv()).unwrap();
        engine.op("tight").push((), move |()| _ = other_receiver.recv()).unwrap();
        let report = reports.recv().unwrap();
        let Problem::Running { op, time, .. } = report.problem else { panic!("{report}") };
        assert!(report.dump.ops()[op].label() == "tight" && time >= LIMIT, "{report}");
        drop((sender, other_sender));
        engine.wait_for_all().unwrap();
        assert!(reports.try_recv().is_err());
    });
}

/// The engine is observed often enough for the budget, which is far shorter than the limit for all operations.
#[test]
fn a_budget_far_below_the_other_limits_is_kept() {
    let watchdog = Watchdog::new().running(1000 * LIMIT).budget("tight", LIMIT);
    each(&THREADED, &watchdog, |engine, reports| {
        engine.op("tight").push((), |()| thread::sleep(15 * LIMIT)).unwrap();
        engine.wait_for_all().unwrap();
        let report = reports.try_recv().expect("the operation should have been reported");
        assert!(matches!(report.problem, Problem::Running { .. }), "{report}");
    });
}

#[test]
fn operations_issued_to_a_lane_of_a_gpu_that_completes_nothing_are_no_progress() {
    watched(|| {
        let (engine, reports, value) = engine_with_gpu(Watchdog::new().device(2 * LIMIT));
        let (start, stall) = (Instant::now(), 20 * LIMIT);
        launch(&engine, "kernel", &value, stall);
        let report = loop {
            launch(&engine, "behind", &value, Duration::ZERO);
            match reports.recv_timeout(LIMIT / 4) {
                Ok(report) => break report,
                Err(_) => assert!(start.elapsed() < stall, "the lane is not reported"),
            }
        };
        let Problem::Device { op, .. } = report.problem else { panic!("{report}") };
        assert_eq!(report.dump.ops()[op].device, Device::Gpu(0), "{report}");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_lane_of_a_gpu_that_completes_nothing_is_reported() {
    watched(|| {
        let (engine, reports, value) = engine_with_gpu(Watchdog::new().device(5 * LIMIT));
        let launch = |name: &'static str, time: Duration| launch(&engine, name, &value, time);
        // A lane that completes operations is not reported, even if it always has operations in flight. The engine may
        // learn of several completions at once, so the operations are not all issued together.
        for _ in 0..100 {
            launch("short", Duration::from_millis(6));
            thread::sleep(Duration::from_millis(5));
        }
        engine.wait_for_all().unwrap();
        if let Ok(report) = reports.try_recv() {
            panic!("{report}: {}", report.dump);
        }
        launch("kernel", 20 * LIMIT);
        let report = reports.recv().unwrap();
        let Problem::Device { op, time } = report.problem else { panic!("{report}") };
        assert!(report.dump.ops()[op].label() == "kernel" && time >= 5 * LIMIT, "{report}");
        assert!(report.to_string().contains("gpu(0) compute has completed nothing for"), "{report}");
        engine.wait_for_all().unwrap();
        assert!(reports.try_recv().is_err(), "the lane is reported twice");
        // The workers are no lane of a device.
        let (sender, receiver) = mpsc::channel::<()>();
        engine.op("on the CPU").push((), move |()| _ = receiver.recv()).unwrap();
        assert!(reports.recv_timeout(10 * LIMIT).is_err(), "an operation on the CPU is reported");
        drop(sender);
        engine.wait_for_all().unwrap();
    });
}
