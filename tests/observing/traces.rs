//! Traces and observers.

use raddle_testkit as common;

use std::{
    collections::{HashMap, HashSet},
    panic::Location,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use common::{Gate, KINDS, MOMENT, PATIENCE, THREADED, eventually, on_kinds, watched, watched_for};
use raddle::{
    Device, Engine, EngineKind, IdlePolicy, Property, PushError, Var, WaitError, WeakEngine, completion, cx,
    gpu::{DeviceVec, SimulatedGpu},
    stream,
    trace::{AccessMode, LaneStats, ObservedOp, Observer, Outcome, Place, Recorder, Trace, TracedOp, VarId},
};

/// Calls `f` with an engine of each kind and the engine's recorder.
fn recorded(kinds: &[EngineKind], f: impl Fn(&Engine, &Recorder) + Clone + Send + 'static) {
    for &kind in kinds {
        let f = f.clone();
        watched(move || {
            let recorder = Recorder::new();
            let engine = Engine::builder().kind(kind).workers(2).recorder(&recorder).build().unwrap();
            f(&engine, &recorder);
        });
    }
}

fn named<'t>(trace: &'t Trace, name: &str) -> &'t TracedOp {
    let mut found = trace.ops().iter().filter(|op| op.name.as_str() == name);
    let op = found.next().unwrap_or_else(|| panic!("`{name}` is not in the trace"));
    assert!(found.next().is_none(), "`{name}` is in the trace twice");
    op
}

// ------------------------------------------------------------------------------------------------------- histories
// ----

#[test]
fn each_operation_has_its_times_in_order() {
    recorded(&KINDS, |engine, recorder| {
        let vars: Vec<_> = (0..4).map(|number| engine.var(0u64).named(format!("var {number}"))).collect();
        for number in 0..1000 {
            let (from, to) = (&vars[number % 4], &vars[(number * 7 + 1) % 4]);
            if number % 4 == (number * 7 + 1) % 4 {
                engine.op("mutate").push(to.write(), |to| *to += 1).unwrap();
            } else {
                engine.op("copy").push((from.read(), to.write()), |(from, to)| *to += from).unwrap();
            }
        }
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        assert_eq!(trace.lost(), 0);
        let ops: Vec<_> = trace.ops().iter().filter(|op| !op.internal).collect();
        assert_eq!(ops.len(), 1000);
        assert!(ops.windows(2).all(|pair| pair[0].pushed <= pair[1].pushed));
        let ids: HashSet<String> = ops.iter().map(|op| op.id.to_string()).collect();
        assert_eq!(ids.len(), 1000, "two operations have the same number");
        let (first, last) = (trace.ops()[0].pushed, ops.iter().filter_map(|op| op.ended).max().unwrap());
        let (from, to) = trace.range();
        assert!(from == first && from < last && last <= to, "{from:?} to {to:?}");
        for op in ops {
            let (started, ended) = (op.started.unwrap(), op.ended.unwrap());
            assert!(op.pushed <= started && started <= ended, "{op:?}");
            assert!(op.pushed <= op.ready.unwrap() && op.ready.unwrap() <= started, "{op:?}");
            assert_eq!(op.waited(), Some(started - op.pushed));
            assert_eq!(op.outcome, Some(Outcome::Succeeded));
            assert_eq!(op.runs.len(), 1);
            assert_eq!((op.runs[0].from, op.runs[0].to), (started, ended));
            assert_eq!(op.accesses.iter().filter(|(_, mode)| *mode == AccessMode::Write).count(), 1);
            assert!(op.accesses.iter().all(|&(variable, _)| trace.variable(variable).starts_with("var ")));
            assert_eq!(op.location.file(), Location::caller().file());
        }
        assert!(recorder.take().ops().iter().all(|op| op.internal), "an ended operation is in two traces");
    });
}

#[test]
fn an_operation_depends_on_those_that_it_waited_for() {
    recorded(&KINDS, |engine, recorder| {
        let (x, y) = (engine.var(0), engine.var(0));
        engine.op("write x").push(x.write(), |x| *x += 1).unwrap();
        engine.op("read x").push(x.read(), |_| {}).unwrap();
        engine.op("read x, write y").push((x.read(), y.write()), |(x, y)| *y = *x).unwrap();
        engine.op("write both").push((x.write(), y.write()), |(x, y)| *x = *y).unwrap();
        engine.op("neither").push((), |()| {}).unwrap();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        let id = |name| named(&trace, name).id;
        let expected = [
            ("write x", vec![]),
            ("read x", vec![id("write x")]),
            ("read x, write y", vec![id("write x")]),
            ("write both", vec![id("read x"), id("read x, write y")]),
            ("neither", vec![]),
        ];
        for (name, mut before) in expected {
            before.sort_unstable();
            assert_eq!(named(&trace, name).depends_on, before, "{name}");
        }
    });
}

#[test]
fn an_operation_depends_on_none_of_an_earlier_trace() {
    recorded(&KINDS, |engine, recorder| {
        let x = engine.var(0);
        engine.op("earlier").push(x.write(), |x| *x += 1).unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!(named(&recorder.take(), "earlier").depends_on, []);
        engine.op("first").push(x.write(), |x| *x += 1).unwrap();
        engine.op("second").push(x.read(), |_| {}).unwrap();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        assert_eq!(named(&trace, "first").depends_on, [], "the operation before is in an earlier trace");
        assert_eq!(named(&trace, "second").depends_on, [named(&trace, "first").id]);
    });
}

/// An engine without workers runs the readers in push order.
#[test]
fn of_many_readers_in_a_row_the_last_ones_are_listed() {
    recorded(&[EngineKind::Naive], |engine, recorder| {
        let x = engine.var(0);
        for _ in 0..1030 {
            engine.op("read").push(x.read(), |_| {}).unwrap();
        }
        engine.op("write").push(x.write(), |_| {}).unwrap();
        let trace = recorder.take();
        let readers: Vec<_> = trace.ops().iter().filter(|op| op.name.as_str() == "read").map(|op| op.id).collect();
        let mut before = readers[readers.len() - 1024..].to_vec();
        before.sort_unstable();
        assert_eq!(named(&trace, "write").depends_on, before, "the readers before the last 1024 are listed");
    });
}

#[test]
fn failures_and_skips_are_distinguished() {
    recorded(&KINDS, |engine, recorder| {
        let x = engine.var(0);
        engine.op("fail").try_push(x.write(), |_| Err("broken".into())).unwrap();
        engine.op("skipped").push(x.write(), |x| *x += 1).unwrap();
        engine.op("panic").push((), |()| panic!("a part of this test")).unwrap();
        let cancelled = engine.group();
        cancelled.cancel();
        let refused = cancelled.op("cancelled").push((), |()| {});
        let _ = engine.wait_for_all();
        let trace = recorder.take();
        let outcome = |name| named(&trace, name).outcome;
        assert_eq!(outcome("fail"), Some(Outcome::Failed));
        assert_eq!(outcome("skipped"), Some(Outcome::Skipped));
        assert_eq!(outcome("panic"), Some(Outcome::Failed));
        if refused.is_ok() {
            assert_eq!(outcome("cancelled"), Some(Outcome::Skipped));
        }
        assert!(named(&trace, "skipped").runs.is_empty());
        let _ = engine.clear_error(&x);
        while engine.wait_for_all().is_err() {}
    });
}

#[test]
fn an_asynchronous_operation_returns_before_it_ends() {
    recorded(&KINDS, |engine, recorder| {
        let (sender, receiver) = mpsc::channel();
        engine.op("ask").push(completion(), move |completion| sender.send(completion).unwrap()).unwrap();
        let completion = receiver.recv().unwrap();
        thread::sleep(MOMENT);
        completion.complete();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        let op = named(&trace, "ask");
        let (returned, ended) = (op.returned.unwrap(), op.ended.unwrap());
        assert!(op.ran() < op.took().unwrap());
        assert!(returned + MOMENT / 2 < ended, "{op:?}");
    });
}

#[test]
fn an_asynchronous_operation_may_end_before_it_returns() {
    recorded(&KINDS, |engine, recorder| {
        for (round, ends_elsewhere) in [true, false].into_iter().enumerate() {
            let f = move |completion: raddle::Completion| {
                if ends_elsewhere {
                    thread::spawn(move || completion.complete()).join().unwrap();
                } else {
                    completion.complete();
                }
                thread::sleep(MOMENT);
            };
            engine.op("ask").push(completion(), f).unwrap();
            engine.wait_for_all().unwrap();
            // The history of an operation stays open until its function returns.
            eventually("the function has returned", || {
                engine.stats().operations.iter().any(|stats| stats.count == round as u64 + 1)
            });
            let trace = recorder.take();
            let op = named(&trace, "ask");
            assert_eq!((trace.lost(), op.runs.len()), (0, 1), "{op:?}");
            assert!(op.ended.unwrap() + MOMENT / 2 < op.returned.unwrap(), "{op:?}");
            assert!(op.ran() >= MOMENT && op.ran() < Duration::from_secs(60), "{op:?}");
            trace.check_order().unwrap();
        }
    });
}

#[test]
fn an_operation_that_has_ended_is_over_when_its_function_returns() {
    for (kind, name) in THREADED.into_iter().flat_map(|kind| [(kind, "early.json"), (kind, "early.pftrace")]) {
        watched(move || {
            let folder = Folder::new(&format!("early-{kind}"));
            let (recorder, path) = (Recorder::new(), folder.0.join(name));
            let engine = Engine::builder().kind(kind).workers(2).recorder(&recorder).profile(&path).build().unwrap();
            let (sender, receiver) = mpsc::channel::<()>();
            let function = move |completion: raddle::Completion| {
                completion.complete();
                receiver.recv().unwrap();
            };
            engine.op("ends early").push(completion(), function).unwrap();
            engine.wait_for_all().unwrap();
            for _ in 0..5 {
                // The profile is written in the meantime.
                thread::sleep(MOMENT);
                let trace = recorder.take();
                let op = named(&trace, "ends early");
                assert!(op.ended.is_some() && op.returned.is_none() && !op.is_over(), "{op:?}");
            }
            sender.send(()).unwrap();
            let mut over = 0;
            eventually("the function has returned", || {
                over += recorder.take().ops().iter().filter(|op| op.is_over()).count();
                over > 0
            });
            assert!(recorder.take().ops().is_empty(), "an operation that is over is in a second trace");
            engine.shutdown(raddle::Shutdown::Drain, None).unwrap();
            let file = std::fs::read(&path).unwrap();
            assert_eq!(file.windows(10).filter(|window| window == b"ends early").count(), 1, "{name}");
        });
    }
}

#[test]
fn the_history_of_a_parent_that_loses_its_completion_is_closed() {
    recorded(&KINDS, |engine, recorder| {
        let lose = |completion: raddle::Completion| drop(completion);
        engine.op("parent").with_children().push(completion(), lose).unwrap();
        engine.wait_for_all().unwrap_err();
        engine.op("parent").with_children().push(completion(), |_| panic!("planned")).unwrap();
        engine.wait_for_all().unwrap_err();
        eventually("both functions have returned", || {
            engine.stats().operations.iter().any(|stats| stats.name == "parent" && stats.count == 2)
        });
        let trace = recorder.take();
        assert!(trace.ops().iter().all(|op| op.ended.is_some() && op.returned.is_some()), "{:?}", trace.ops());
        assert!(recorder.take().ops().is_empty(), "an operation is over, but its history is open");
    });
}

#[test]
fn a_parent_ends_after_its_children() {
    recorded(&KINDS, |engine, recorder| {
        let value = engine.var(0);
        let inside = value.clone();
        engine
            .op("parent")
            .with_children()
            .push((cx(), value.write()), move |(cx, _)| {
                cx.child("child").push(inside.write(), |value| *value += 1).unwrap();
            })
            .unwrap();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        let (parent, child) = (named(&trace, "parent"), named(&trace, "child"));
        assert!(parent.returned.unwrap() <= child.started.unwrap());
        assert!(child.ended.unwrap() <= parent.ended.unwrap());
    });
}

#[test]
fn a_function_that_waits_has_several_runs() {
    recorded(&THREADED, |engine, recorder| {
        let inner = engine.downgrade();
        let gate = engine.var(());
        let opened = gate.clone();
        let (sender, receiver) = mpsc::channel();
        let waiter = engine
            .op("waiter")
            .submit((), move |()| {
                let mut hold = inner.op("hold").submit((), move |()| receiver.recv().unwrap()).unwrap();
                // This wait has a time limit, so the thread hands over its worker instead of running `hold` in place.
                hold.wait_timeout(Duration::from_secs(60)).unwrap();
                inner.get(&opened).unwrap();
            })
            .unwrap();
        thread::sleep(MOMENT);
        sender.send(()).unwrap();
        waiter.wait().unwrap();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        let (waiter, hold) = (named(&trace, "waiter"), named(&trace, "hold"));
        assert!(waiter.runs.len() >= 2, "{waiter:?}");
        assert!(waiter.runs.windows(2).all(|pair| pair[0].to <= pair[1].from), "{waiter:?}");
        assert!(
            waiter.runs[0].to <= hold.ended.unwrap() && hold.ended.unwrap() <= waiter.runs[1].from,
            "{waiter:?}\n{hold:?}"
        );
        assert_eq!(hold.parent, Some(waiter.id));
        for pair in trace.ops().windows(2) {
            assert!(pair[0].id != pair[1].id);
        }
    });
}

/// `outer` runs `inner` in place, and `inner` waits with a time limit, so their thread hands over its worker.
#[test]
fn a_function_around_one_that_waits_has_several_runs() {
    for kind in THREADED {
        watched(move || {
            let recorder = Recorder::new();
            let engine = Engine::builder().kind(kind).workers(1).recorder(&recorder).build().unwrap();
            let inside = engine.downgrade();
            let outer = engine.op("outer").submit((), move |()| {
                let around = thread::current().id();
                let innermost = inside.clone();
                let inner = inside.op("inner").submit((), move |()| {
                    let mut waited = innermost.op("waited").submit((), |()| thread::current().id()).unwrap();
                    assert_ne!(waited.wait_timeout(PATIENCE).unwrap(), around);
                    thread::current().id()
                });
                assert_eq!(inner.unwrap().wait().unwrap(), around);
            });
            outer.unwrap().wait().unwrap();
            engine.wait_for_all().unwrap();
            let trace = recorder.take();
            let (outer, inner) = (named(&trace, "outer"), named(&trace, "inner"));
            assert!(inner.runs.len() >= 2, "{inner:?}");
            // The wait ends a run of both functions, and the return from the wait begins another.
            let bounds = |op: &TracedOp| {
                let ends: Vec<_> = op.runs.iter().map(|run| run.to).collect();
                let starts: Vec<_> = op.runs.iter().map(|run| run.from).collect();
                (starts[1..].to_vec(), ends[..ends.len() - 1].to_vec())
            };
            assert_eq!(bounds(outer), bounds(inner), "{outer:?}\n{inner:?}");
            for op in [outer, inner] {
                let (first, last) = (op.runs[0], op.runs[op.runs.len() - 1]);
                assert_eq!((Some(first.from), Some(last.to)), (op.started, op.returned), "{op:?}");
                assert!(op.runs.windows(2).all(|pair| pair[0].to <= pair[1].from), "{op:?}");
                let waited: Duration = op.runs.windows(2).map(|pair| pair[1].from - pair[0].to).sum();
                assert_eq!(op.ran() + waited, last.to - first.from, "{op:?}");
            }
            // What they waited for ended meanwhile.
            let ended = named(&trace, "waited").ended.unwrap();
            assert!(outer.runs.windows(2).any(|pair| pair[0].to <= ended && ended <= pair[1].from), "{outer:?}");
        });
    }
}

#[test]
fn no_worker_runs_two_functions_at_once_in_a_trace() {
    recorded(&THREADED, |engine, recorder| {
        for _ in 0..50 {
            let inner = engine.downgrade();
            engine
                .op("outer")
                .push((), move |()| {
                    let mut inside = inner.op("inside").submit((), |()| std::hint::black_box(1)).unwrap();
                    inside.wait_timeout(Duration::from_secs(60)).unwrap();
                })
                .unwrap();
        }
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        let on_workers =
            |op: &TracedOp| op.runs.clone().into_iter().filter(|run| matches!(run.place, Place::Worker { .. }));
        let mut runs: Vec<_> = trace.ops().iter().flat_map(on_workers).collect();
        runs.sort_by_key(|run| (trace.place(run.place), run.from));
        for pair in runs.windows(2).filter(|pair| pair[0].place == pair[1].place) {
            let nested = pair[1].to <= pair[0].to;
            assert!(pair[0].to <= pair[1].from || nested, "{pair:?}");
        }
    });
}

#[test]
fn operations_of_a_gpu_are_issued_and_end_later() {
    for kind in KINDS {
        watched(move || {
            let recorder = Recorder::new();
            let gpu = SimulatedGpu::new();
            let engine = Engine::builder().kind(kind).workers(1).gpu(gpu).recorder(&recorder).build().unwrap();
            let value = engine.device_var::<u64>(Device::Gpu(0), 4).unwrap();
            for name in ["first", "second"] {
                engine
                    .op(name)
                    .on(Device::Gpu(0))
                    .try_push((value.write(), stream()), |(value, stream)| {
                        Ok(stream
                            .simulated()
                            .unwrap()
                            .launch(Duration::from_millis(2), value, |value| value.fill(1))?)
                    })
                    .unwrap();
            }
            engine.wait_for_all().unwrap();
            let trace = recorder.take();
            let (first, second) = (named(&trace, "first"), named(&trace, "second"));
            for op in [first, second] {
                assert!(op.ended.unwrap() >= op.started.unwrap() + Duration::from_millis(2), "{op:?}");
                if kind != EngineKind::Naive {
                    assert!(op.returned.unwrap() < op.ended.unwrap(), "{op:?}");
                    assert!(matches!(op.runs[0].place, Place::Gpu { .. }));
                    assert!(trace.place(op.runs[0].place).starts_with("gpu(0)"), "{}", trace.place(op.runs[0].place));
                }
            }
            assert_eq!(second.depends_on, [first.id]);
            assert!(first.ended.unwrap() <= second.ended.unwrap());
            // Of the rectangles of an operation, only that on the stream has arrows.
            let mut file = Vec::new();
            trace.write_perfetto(&mut file).unwrap();
            let expected: usize = trace.ops().iter().map(|op| op.depends_on.len()).sum();
            assert_eq!(arrows(&file).map(|ends| ends.len()), [expected; 2], "{kind}");
        });
    }
}

/// Pushes an operation that launches a kernel on the simulated GPU.
fn launch_fill(engine: &Engine, name: &'static str, value: &Var<DeviceVec<u64>>) {
    let launch = engine.op(name).on(Device::Gpu(0)).try_push((value.write(), stream()), |(value, stream)| {
        Ok(stream.simulated().unwrap().launch(Duration::ZERO, value, |value| value.fill(1))?)
    });
    launch.unwrap();
}

#[test]
fn an_operation_of_a_gpu_may_start_once_those_before_it_are_issued() {
    for kind in THREADED {
        watched(move || {
            let (recorder, gpu) = (Recorder::new(), SimulatedGpu::new());
            let engine = Engine::builder().kind(kind).workers(1).gpu(gpu.clone()).recorder(&recorder).build().unwrap();
            let value = engine.device_var::<u64>(Device::Gpu(0), 4).unwrap();
            gpu.stall();
            launch_fill(&engine, "first", &value);
            launch_fill(&engine, "second", &value);
            eventually("both operations are issued", || gpu.counts().launches == 2);
            gpu.resume();
            engine.wait_for_all().unwrap();
            let trace = recorder.take();
            assert!(named(&trace, "second").started < named(&trace, "first").ended, "{:?}", trace.ops());
            trace.check_order().unwrap();
        });
    }
}

/// The engine's own operation for the wait does not belong to the lane, so it is not shown on the lane's stream.
#[test]
fn a_wait_that_a_gpu_ends_runs_on_the_thread_of_the_lane() {
    for kind in THREADED {
        watched(move || {
            let (recorder, gpu) = (Recorder::new(), SimulatedGpu::new());
            let engine = Engine::builder().kind(kind).workers(1).gpu(gpu.clone()).recorder(&recorder).build().unwrap();
            let value = engine.device_var::<u64>(Device::Gpu(0), 4).unwrap();
            gpu.stall();
            launch_fill(&engine, "kernel", &value);
            eventually("the kernel is issued", || gpu.counts().launches == 1);
            let waits = engine.wait_for_var_async(&value);
            gpu.resume();
            common::block_on(waits).unwrap();
            engine.wait_for_all().unwrap();
            let trace = recorder.take();
            let place = named(&trace, "wait").runs[0].place;
            assert!(matches!(place, Place::Thread(_)), "{place:?}");
            assert!(trace.place(place).starts_with("raddle-gpu0-"), "{}", trace.place(place));
        });
    }
}

#[test]
fn an_operation_of_a_lost_gpu_is_skipped_without_a_run() {
    for kind in KINDS {
        watched(move || {
            let (recorder, gpu, counts) = (Recorder::new(), SimulatedGpu::new(), Arc::new(Counts::default()));
            let observer = Counting(Arc::clone(&counts));
            let builder = Engine::builder().kind(kind).workers(1).gpu(gpu.clone()).observer(observer);
            let engine = builder.recorder(&recorder).build().unwrap();
            let value = engine.device_var::<u64>(Device::Gpu(0), 4).unwrap();
            gpu.lose();
            for _ in 0..2 {
                engine
                    .op("observed")
                    .on(Device::Gpu(0))
                    .try_push((value.write(), stream()), |(_, _)| panic!("the GPU is lost"))
                    .unwrap();
            }
            while engine.wait_for_all().is_err() {}
            for op in recorder.take().ops().iter().filter(|op| !op.internal) {
                assert_eq!(
                    (op.outcome, op.started, op.runs.len()),
                    (Some(Outcome::Skipped), None, 0),
                    "{kind}: {op:?}"
                );
            }
            assert_eq!(counts.0[2].load(Relaxed), 0, "{kind}: an operation was reported to have started");
        });
    }
}

#[test]
fn events_that_do_not_fit_are_counted() {
    watched(|| {
        let recorder = Recorder::with_capacity(4096);
        let engine = Engine::builder().workers(1).recorder(&recorder).build().unwrap();
        let x = engine.var(0);
        for _ in 0..1000 {
            engine.op("add").push(x.write(), |x| *x += 1).unwrap();
        }
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        let kept = trace.ops().iter().filter(|op| op.name.as_str() == "add").count();
        assert!(kept > 0 && kept < 1000, "{kept}");
        assert!(trace.lost() > 0);
        assert!(trace.ops().iter().all(|op| op.started.is_none_or(|started| started >= op.pushed)));
        // The ring has room again.
        engine.op("later").push(x.write(), |x| *x += 1).unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!(named(&recorder.take(), "later").outcome, Some(Outcome::Succeeded));
    });
}

#[test]
fn all_events_that_do_not_fit_are_counted() {
    watched(|| {
        // 128 slots, all for one thread.
        let recorder = Recorder::with_capacity(4096);
        let engine = Engine::builder().kind(EngineKind::Naive).recorder(&recorder).build().unwrap();
        let x = engine.var(0);
        for _ in 0..1000 {
            engine.op("add").push(x.write(), |x| *x += 1).unwrap();
        }
        // A push takes two slots, and a run one. The start and the end of the operation in the last two slots are lost.
        let trace = recorder.take();
        assert_eq!((trace.ops().len(), trace.lost()), (43, 2 + 3 * (1000 - 43)));
        assert_eq!(trace.ops().iter().filter(|op| op.is_over()).count(), 42);
        assert_eq!(engine.stats().lost, trace.lost());
    });
}

/// On Linux, the destructors of thread-locals run in the reverse order of the first uses, so the thread has no ring any
/// more when this one runs.
#[cfg(target_os = "linux")]
#[test]
fn events_of_a_thread_that_is_ending_are_counted() {
    use std::cell::Cell;

    struct PushesAtExit(Engine);
    impl Drop for PushesAtExit {
        fn drop(&mut self) {
            (0..20).for_each(|_| self.0.op("at exit").push((), |()| {}).unwrap());
        }
    }
    thread_local!(static AT_EXIT: Cell<Option<PushesAtExit>> = const { Cell::new(None) });
    recorded(&KINDS, |engine, recorder| {
        let inside = engine.clone();
        let pushes = move || {
            AT_EXIT.set(Some(PushesAtExit(inside.clone())));
            inside.op("before").push((), |()| {}).unwrap();
        };
        thread::spawn(pushes).join().unwrap();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        assert_eq!(named(&trace, "before").outcome, Some(Outcome::Succeeded));
        assert!(!trace.ops().iter().any(|op| op.name.as_str() == "at exit"), "{:?}", trace.ops());
        // The push, the start and the end of each.
        assert!(trace.lost() >= 3 * 20, "{} events", trace.lost());
        assert_eq!(engine.stats().ended, 21);
    });
}

#[test]
fn an_operation_that_has_not_ended_is_in_both_traces() {
    recorded(&THREADED, |engine, recorder| {
        let (started, has_started) = mpsc::channel();
        let (sender, receiver) = mpsc::channel::<()>();
        engine
            .op("long")
            .push((), move |()| {
                started.send(()).unwrap();
                receiver.recv().unwrap();
            })
            .unwrap();
        has_started.recv().unwrap();
        let trace = recorder.take();
        let before = named(&trace, "long").clone();
        assert!(before.started.is_some() && before.ended.is_none());
        assert!(before.runs[0].to < Duration::MAX);
        sender.send(()).unwrap();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        let after = named(&trace, "long");
        assert_eq!((after.id, after.pushed, after.started), (before.id, before.pushed, before.started));
        assert!(after.ended.is_some());
    });
}

#[test]
fn an_engine_without_workers_runs_operations_on_the_threads_that_push_them() {
    recorded(&[EngineKind::Naive], |engine, recorder| {
        for number in 0..3 {
            let push = || engine.op(format!("by thread {number}")).push((), |()| {}).unwrap();
            thread::scope(|scope| {
                thread::Builder::new().name(format!("pushes {number}")).spawn_scoped(scope, push).unwrap();
            });
        }
        let trace = recorder.take();
        for number in 0..3 {
            let op = named(&trace, &format!("by thread {number}"));
            assert_eq!(op.runs[0].place, Place::Thread(op.pushed_by), "{op:?}");
            assert_eq!(trace.place(op.runs[0].place), format!("pushes {number}"));
        }
        // The thread may be a worker of another engine.
        let (other, inside) = (common::engine(EngineKind::PerDevice, 1), engine.downgrade());
        let push = move |()| inside.op("by a worker").push((), |()| {}).unwrap();
        other.op("pushes").submit((), push).unwrap().wait().unwrap();
        let trace = recorder.take();
        let op = named(&trace, "by a worker");
        assert_eq!(op.runs[0].place, Place::Thread(op.pushed_by), "{op:?}");
    });
}

#[test]
fn a_thread_that_changes_between_recorders_keeps_its_number_in_each() {
    watched(|| {
        let recorders = [(); 2].map(|()| Recorder::new());
        let build = |recorder| Engine::builder().kind(EngineKind::Naive).recorder(recorder).build().unwrap();
        let engines = recorders.each_ref().map(build);
        for _ in 0..3 {
            engines.iter().for_each(|engine| engine.op("").push((), |()| {}).unwrap());
        }
        for recorder in &recorders {
            let trace = recorder.take();
            let threads: Vec<u16> = trace.ops().iter().map(|op| op.pushed_by).collect();
            assert_eq!(threads, [threads[0]; 3]);
        }
    });
}

#[test]
fn engines_share_a_recorder() {
    watched(|| {
        let recorder = Recorder::new();
        let engines = [(); 2].map(|()| Engine::builder().workers(1).recorder(&recorder).build().unwrap());
        for engine in &engines {
            let x = engine.var(0).named("x");
            engine.op("add").push(x.write(), |x| *x += 1).unwrap();
            engine.wait_for_all().unwrap();
        }
        let trace = recorder.take();
        let ops: Vec<_> = trace.ops().iter().filter(|op| op.name.as_str() == "add").collect();
        assert_eq!(ops.len(), 2);
        assert!(ops[0].engine != ops[1].engine && ops[0].accesses[0].0 != ops[1].accesses[0].0);
        assert!(ops.iter().all(|op| op.depends_on.is_empty()));
        assert!(trace.place(ops[0].runs[0].place) != trace.place(ops[1].runs[0].place));
    });
}

#[test]
fn a_variable_without_a_name_has_the_same_number_in_dumps_and_traces() {
    recorded(&KINDS, |engine, recorder| {
        let x = engine.token();
        let gate = common::hold(engine, &x);
        let dump = engine.dump();
        gate.open();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        let number = trace.variable(named(&trace, "hold").accesses[0].0);
        assert!(number.strip_prefix('#').is_some_and(|digits| digits.parse::<u64>().is_ok()), "{number}");
        assert_eq!(dump.variables()[0].name, number);
    });
}

/// Returns the number of the program's operations that have ended. Asserts that each of them has run once and that no
/// event was lost.
fn ended(trace: &Trace) -> usize {
    assert_eq!(trace.lost(), 0);
    let ended: Vec<_> = trace.ops().iter().filter(|op| !op.internal && op.ended.is_some()).collect();
    assert!(ended.iter().all(|op| op.is_over() && op.runs.len() == 1 && op.started == Some(op.runs[0].from)));
    ended.len()
}

#[test]
fn no_operation_of_many_threads_is_lost_between_traces() {
    watched_for(Duration::from_secs(60), || {
        let recorder = Recorder::new();
        let engine = Engine::builder().workers(2).recorder(&recorder).build().unwrap();
        let x = engine.var(0u64);
        let mut seen = 0;
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..2000 {
                        // A push without a name takes less room in the ring.
                        let name = if number % 2 == 0 { format!("made at run time {number}") } else { String::new() };
                        engine.op(name).push(x.write(), |x| *x += 1).unwrap();
                    }
                });
            }
            for _ in 0..20 {
                seen += ended(&recorder.take());
                thread::sleep(Duration::from_millis(1));
            }
        });
        engine.wait_for_all().unwrap();
        seen += ended(&recorder.take());
        assert_eq!((seen, engine.get(&x).unwrap()), (8000, 8000));
    });
}

#[test]
fn the_trace_of_a_random_program_is_in_order() {
    recorded(&KINDS, |engine, recorder| {
        let vars: Vec<_> = (0..8).map(|_| engine.var(0u64)).collect();
        thread::scope(|scope| {
            for seed in 1..=4u64 {
                let vars = &vars;
                scope.spawn(move || {
                    let mut source = common::program::Random::new(seed);
                    for _ in 0..300 {
                        let mut pick = || vars[source.next() as usize % 8].token();
                        let (a, b, c) = (pick(), pick(), pick());
                        engine.op("mix").reads([a, b]).writes([c]).push((), |()| {}).unwrap();
                    }
                });
            }
        });
        engine.wait_for_all().unwrap();
        let report = recorder.take().check_order().unwrap();
        assert!(report.operations >= 1200 && report.conflicts > 1200, "{report:?}");
    });
}

#[test]
fn statistics_are_grouped_by_name() {
    recorded(&KINDS, |engine, _| {
        let (x, y) = (engine.var(0), engine.var(0));
        for number in 0..200 {
            engine.op("quick").push(x.write(), |x| *x += 1).unwrap();
            if number % 20 == 0 {
                engine.op("slow").push(x.write(), |_| thread::sleep(Duration::from_millis(1))).unwrap();
            }
        }
        engine.op("fail").try_push((), |()| Err("a part of this test".into())).unwrap();
        // Only the first of these runs.
        for number in 0..3 {
            let sometimes = move |x: &mut i32| {
                *x += 1;
                thread::sleep(Duration::from_millis(1));
                if number == 0 { Err("a part of this test".into()) } else { Ok(()) }
            };
            engine.op("sometimes").try_push(y.write(), sometimes).unwrap();
        }
        let line = line!();
        engine.op("").push((), |()| {}).unwrap();
        for _ in 0..3 {
            engine.op("").push((), |()| {}).unwrap();
        }
        let _ = engine.wait_for_all();
        let stats = engine.stats();
        let of = |name: &str| stats.operations.iter().find(|op| op.name.starts_with(name)).unwrap();
        assert_eq!(stats.operations[0].name, "slow", "the longest does not come first");
        let (quick, slow) = (of("quick"), of("slow"));
        assert_eq!((quick.count, slow.count, of("fail").failed), (200, 10, 1));
        let sometimes = of("sometimes");
        assert_eq!((sometimes.count, sometimes.failed, sometimes.skipped), (3, 1, 2));
        assert!(sometimes.ran.min() >= Duration::from_millis(1), "{stats}");
        let pushed_at = |line: u32| {
            let label = format!("{}:{line}", file!());
            stats.operations.iter().find(|op| op.name == label).map_or(0, |op| op.count)
        };
        assert_eq!((pushed_at(line + 1), pushed_at(line + 3)), (1, 3), "{stats}");
        assert!(slow.ran.min() >= Duration::from_millis(1) && slow.ran.percentile(50.0) >= slow.ran.min());
        assert!(slow.ran.percentile(100.0) <= slow.ran.max() && slow.ran.total() >= Duration::from_millis(10));
        assert!(quick.ran.mean() < slow.ran.mean());
        let table = stats.to_string();
        assert!(["quick", "failed", "skipped", "99 %"].iter().all(|word| table.contains(word)), "{table}");
        assert!(!table.contains("events were lost"), "{table}");
        assert_eq!(stats.lanes.is_empty(), engine.kind() == EngineKind::Naive);
    });
}

// ----------------------------------------------------------------------------------------------------------- files
// ----

/// Returns the numbers that follow `key` in a JSON file.
fn numbers(file: &str, key: &str) -> Vec<f64> {
    let key = format!("\"{key}\":");
    let after = file.split(&key).skip(1);
    after.map(|rest| rest.split([',', '}']).next().unwrap().trim_matches('"').parse().unwrap()).collect()
}

#[test]
fn a_chrome_trace_has_a_slice_for_each_run_and_an_arrow_for_each_dependency() {
    recorded(&KINDS, |engine, recorder| {
        let x = engine.var(0).named("a \"quoted\" name");
        for _ in 0..10 {
            engine.op("add").push(x.write(), |x| *x += 1).unwrap();
        }
        engine.op("urgent").priority(3).push((), |()| {}).unwrap();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        let mut file = Vec::new();
        trace.write_chrome(&mut file).unwrap();
        let file = String::from_utf8(file).unwrap();
        assert_eq!(file.matches(r#""ph":"X","name":"add""#).count(), 10);
        assert_eq!([r#""priority":"#, r#""priority":"3""#].map(|note| file.matches(note).count()), [1, 1], "{file}");
        assert_eq!(file.matches(r#""ph":"s""#).count(), 9);
        assert_eq!(file.matches(r#""ph":"f""#).count(), 9);
        assert!(file.contains(r#""mutates":"a \"quoted\" name""#), "{file}");
        let (times, lengths) = (numbers(&file, "ts"), numbers(&file, "dur"));
        assert!(times.iter().chain(&lengths).all(|&time| (0.0..60e6).contains(&time)));
        assert!(file.starts_with('[') && file.trim_end().ends_with(']'));
        assert_eq!(file.matches('{').count(), file.matches('}').count());
    });
}

/// Reads the fields of a message in the Protocol Buffers wire format. Returns each field's number and its value, which
/// is a number (`Ok`) or bytes (`Err`).
fn fields(mut bytes: &[u8]) -> Vec<(u64, Result<u64, &[u8]>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (&byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
        }
        unreachable!()
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Ok(varint(&mut bytes)),
            1 => {
                let (number, rest) = bytes.split_first_chunk::<8>().unwrap();
                bytes = rest;
                Ok(u64::from_le_bytes(*number))
            }
            2 => {
                let len = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(len);
                bytes = rest;
                Err(value)
            }
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn message(fields: &[(u64, Result<u64, &[u8]>)], number: u64) -> Option<Vec<u8>> {
    fields.iter().find(|field| field.0 == number).and_then(|field| field.1.err()).map(<[u8]>::to_vec)
}

/// Returns the tracks in a Perfetto trace, each with the name of its process. Asserts that tracks, and the threads that
/// they show, differ in their numbers, which are above zero, as viewers require.
fn perfetto_tracks(file: &[u8]) -> Vec<(String, String)> {
    let number = |fields: &[(u64, Result<u64, &[u8]>)], wanted: u64| {
        let field = fields.iter().find(|field| field.0 == wanted);
        field.and_then(|field| field.1.ok()).filter(|&number| number > 0).expect("a number above zero")
    };
    let name = |fields: &[(u64, Result<u64, &[u8]>)], wanted: u64| {
        String::from_utf8(message(fields, wanted).unwrap()).unwrap()
    };
    let (mut ids, mut threads, mut tracks) = (HashSet::new(), HashSet::new(), Vec::new());
    // The number and the name of each process, keyed by its own track.
    let mut processes: HashMap<u64, (u64, String)> = HashMap::new();
    for descriptor in fields(file).into_iter().filter_map(|(_, packet)| message(&fields(packet.unwrap_err()), 60)) {
        let descriptor = fields(&descriptor);
        let id = number(&descriptor, 1);
        assert!(ids.insert(id), "two tracks have the number {id}");
        if let Some(process) = message(&descriptor, 3) {
            let process = fields(&process);
            processes.insert(id, (number(&process, 1), name(&process, 6)));
            continue;
        }
        let (process, process_name) = &processes[&number(&descriptor, 5)];
        let thread = message(&descriptor, 4).expect("a track is that of a process or of a thread");
        let thread = fields(&thread);
        assert_eq!(number(&thread, 1), *process, "a thread belongs to two processes");
        assert!(threads.insert((*process, number(&thread, 2))), "two threads have the same number");
        tracks.push((process_name.clone(), name(&thread, 5)));
    }
    tracks
}

/// A folder for files, removed when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Self(std::env::temp_dir().join(format!("raddle-{name}-{}", std::process::id())));
        std::fs::create_dir_all(&folder.0).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the numbers of the arrows in a trace in either format: at their starts, and at their ends.
fn arrows(file: &[u8]) -> [Vec<u64>; 2] {
    if file.starts_with(b"[") {
        let text = String::from_utf8_lossy(file);
        let of = |phase: &str| {
            let events = text.lines().filter(|line| line.contains(&format!(r#""ph":"{phase}""#)));
            events.flat_map(|line| numbers(line, "id")).map(|id| id as u64).collect()
        };
        return ["s", "f"].map(of);
    }
    let mut arrows = [Vec::new(), Vec::new()];
    for event in fields(file).into_iter().filter_map(|(_, packet)| message(&fields(packet.unwrap_err()), 11)) {
        for (field, value) in fields(&event) {
            match field {
                47 => arrows[0].push(value.unwrap()),
                48 => arrows[1].push(value.unwrap()),
                _ => {}
            }
        }
    }
    arrows
}

#[test]
fn operations_that_wait_long_for_a_worker_have_arrows_in_a_profile() {
    for (kind, name) in THREADED.into_iter().flat_map(|kind| [(kind, "late.json"), (kind, "late.pftrace")]) {
        watched(move || {
            let folder = Folder::new(&format!("late-{kind}"));
            let path = folder.0.join(name);
            let engine = Engine::builder().kind(kind).workers(1).profile(&path).build().unwrap();
            let x = engine.var(0);
            let (sender, receiver) = mpsc::channel();
            engine
                .op("first")
                .push((x.write(), completion()), move |(_, completion)| sender.send(completion).unwrap())
                .unwrap();
            let completion = receiver.recv().unwrap();
            let gate = common::occupy(&engine, 1);
            for _ in 0..3 {
                engine.op("reads").push(x.read(), |_| {}).unwrap();
            }
            engine.op("writes").push(x.write(), |_| {}).unwrap();
            completion.complete();
            // Many times as long as the profile keeps an operation that has ended.
            thread::sleep(Duration::from_millis(50));
            gate.open();
            engine.shutdown(raddle::Shutdown::Drain, None).unwrap();
            let [mut starts, mut ends] = arrows(&std::fs::read(&path).unwrap());
            starts.sort_unstable();
            ends.sort_unstable();
            assert_eq!((ends.len(), &starts), (6, &ends), "{kind} {name}");
            assert!(starts.windows(2).all(|pair| pair[0] < pair[1]), "two arrows have the same number: {starts:?}");
        });
    }
}

#[test]
fn the_tracks_of_a_trace_are_its_places_and_streams() {
    for kind in KINDS {
        watched(move || {
            let recorder = Recorder::new();
            let engine =
                Engine::builder().kind(kind).workers(2).gpu(SimulatedGpu::new()).recorder(&recorder).build().unwrap();
            let both = Arc::new(std::sync::Barrier::new(if kind == EngineKind::Naive { 1 } else { 2 }));
            for _ in 0..2 {
                for _ in 0..2 {
                    let both = Arc::clone(&both);
                    engine.op("cpu").push((), move |()| _ = both.wait()).unwrap();
                }
                engine.wait_for_all().unwrap();
            }
            engine.op("copy").property(Property::CopyToGpu).push((), |()| {}).unwrap();
            let value = engine.device_var::<u64>(Device::Gpu(0), 4).unwrap();
            engine
                .op("gpu")
                .on(Device::Gpu(0))
                .try_push((value.write(), stream()), |(value, stream)| {
                    Ok(stream.simulated().unwrap().launch(Duration::ZERO, value, |value| value.fill(1))?)
                })
                .unwrap();
            engine.wait_for_all().unwrap();
            let trace = recorder.take();
            let process = |place: Place| match place {
                Place::Worker { engine, .. } | Place::Gpu { engine, .. } => format!("engine {engine}"),
                Place::Thread(_) => "other threads".to_owned(),
            };
            let runs = trace.ops().iter().flat_map(|op| &op.runs);
            let mut places: Vec<(String, String)> =
                runs.map(|run| (process(run.place), trace.place(run.place))).collect();
            let lane = match kind {
                EngineKind::Naive => None,
                EngineKind::Pooled => Some("gpu(0) gpu"),
                _ => Some("gpu(0) compute"),
            };
            if let Some(lane) = lane {
                for expected in ["cpu 0", "cpu 1", "copy 0", lane] {
                    assert!(places.iter().any(|(_, place)| place == expected), "{expected} is not in {places:?}");
                }
                places.push((format!("engine {}", trace.ops()[0].engine), format!("{lane}: stream")));
                // The rows of a report are in the order of the lanes and their workers.
                assert_eq!(data_list(&report_data(&trace), "tracks"), ["cpu 0", "cpu 1", "copy 0", lane]);
            }
            places.sort_unstable();
            places.dedup();
            let mut file = Vec::new();
            trace.write_chrome(&mut file).unwrap();
            let text = String::from_utf8(file).unwrap();
            let lines = |what: &'static str| text.lines().filter(move |line| line.contains(what));
            let number = |line: &str| numbers(line, "pid")[0] as u64;
            let name =
                |line: &str| line.split(r#""args":{"name":""#).nth(1).unwrap().split('"').next().unwrap().to_owned();
            let processes: HashMap<u64, String> =
                lines(r#""name":"process_name""#).map(|line| (number(line), name(line))).collect();
            let mut tracks: Vec<(String, String)> =
                lines(r#""name":"thread_name""#).map(|line| (processes[&number(line)].clone(), name(line))).collect();
            tracks.sort_unstable();
            assert_eq!(tracks, places, "{kind}");
            let mut file = Vec::new();
            trace.write_perfetto(&mut file).unwrap();
            let mut tracks = perfetto_tracks(&file);
            tracks.sort_unstable();
            assert_eq!(tracks, places, "{kind}");
        });
    }
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_engine_is_profiled() {
    if !common::is_child() {
        return;
    }
    let engine = Engine::builder().workers(1).build().unwrap();
    let x = engine.var(0);
    for _ in 0..10 {
        engine.op("profiled").push(x.write(), |x| *x += 1).unwrap();
    }
    engine.shutdown(raddle::Shutdown::Drain, None).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_environment_sets_a_profile() {
    let folder = Folder::new("environment");
    for name in ["environment.json", "environment.pftrace"] {
        let path = folder.0.join(name);
        let variables = [("RADDLE_ENGINE", "Pooled"), ("RADDLE_PROFILE", path.to_str().unwrap())];
        let (success, text) = common::child("in_a_child_the_engine_is_profiled", &variables);
        assert!(success, "{text}");
        let file = std::fs::read(&path).unwrap();
        assert_eq!(file.windows(8).filter(|window| window == b"profiled").count(), 10, "{name}");
        assert_eq!(arrows(&file)[1].len(), 9, "{name}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_environment_sets_a_report() {
    let folder = Folder::new("report");
    let path = folder.0.join("report.html");
    // The second run overwrites the report of the first, whose process is gone.
    for _ in 0..2 {
        let variables = [("RADDLE_ENGINE", "Pooled"), ("RADDLE_PROFILE", path.to_str().unwrap())];
        let (success, text) = common::child("in_a_child_the_engine_is_profiled", &variables);
        assert!(success, "{text}");
        let page = std::fs::read_to_string(&path).unwrap();
        let data = page.lines().find_map(|line| line.strip_prefix("const data = ")).expect("a line has the data");
        assert_eq!(data_list(data, "names"), ["profiled"]);
        assert!(data.starts_with("{\"title\":\"observing-"), "{data}");
        assert!(page.starts_with("<!-- raddle process ") && page.contains("<!DOCTYPE html>"), "{page}");
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
    }
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_profiles_have_losses_or_none() {
    if !common::is_child() {
        return;
    }
    watched(|| {
        let (folder, logged) = (Folder::new("losses"), common::Journal::new());
        let journal = logged.clone();
        common::logger::log_to(move |message| journal.add(message.to_owned()));
        for variables in [0, 100] {
            // The smallest ring has no room for the push of an operation on 100 variables.
            let (recorder, path) = (Recorder::with_capacity(0), folder.0.join("losses.json"));
            let builder = Engine::builder().kind(EngineKind::Naive).recorder(&recorder).profile(path);
            let engine = builder.build().unwrap();
            let tokens: Vec<_> = (0..variables).map(|_| engine.token()).collect();
            for _ in 0..2 {
                engine.op("reads").reads(&tokens).push((), |()| {}).unwrap();
            }
            let lost = engine.stats().lost;
            assert_eq!(lost > 0, variables > 0, "{lost} events");
            engine.shutdown(raddle::Shutdown::Drain, None).unwrap();
            let message = format!("{lost} events came too fast to be written and are missing from the profile");
            let expected = if lost > 0 { vec![format!("raddle: {message}")] } else { Vec::new() };
            assert_eq!(logged.take(), expected);
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_profile_reports_how_many_events_are_missing() {
    common::child_succeeds("in_a_child_profiles_have_losses_or_none");
}

#[test]
fn a_perfetto_trace_can_be_read_back() {
    recorded(&KINDS, |engine, recorder| {
        let x = engine.var(0).named("x");
        for _ in 0..10 {
            engine.op("add").push(x.write(), |x| *x += 1).unwrap();
        }
        engine.wait_for_all().unwrap();
        let mut file = Vec::new();
        let trace = recorder.take();
        trace.write_perfetto(&mut file).unwrap();
        let (mut tracks, mut begun, mut ended, mut out, mut back) = (Vec::new(), Vec::new(), 0, Vec::new(), Vec::new());
        for (number, packet) in fields(&file) {
            assert_eq!(number, 1, "a field of the file is not a packet");
            let packet = fields(packet.unwrap_err());
            if let Some(descriptor) = message(&packet, 60) {
                let id = fields(&descriptor).iter().find(|field| field.0 == 1).unwrap().1.unwrap();
                assert!(!tracks.contains(&id), "a track is described twice");
                tracks.push(id);
            } else {
                let event = message(&packet, 11).unwrap();
                let event = fields(&event);
                let number = |wanted| event.iter().find(|field| field.0 == wanted).and_then(|field| field.1.ok());
                assert!(tracks.contains(&number(11).unwrap()), "a track is used before it is described");
                assert!(packet.iter().any(|field| field.0 == 8), "an event has no time");
                match number(9) {
                    Some(1) => begun.push(String::from_utf8(message(&event, 23).unwrap()).unwrap()),
                    Some(2) => ended += 1,
                    other => panic!("type {other:?}"),
                }
                out.extend(event.iter().filter(|field| field.0 == 47).map(|field| field.1.unwrap()));
                back.extend(event.iter().filter(|field| field.0 == 48).map(|field| field.1.unwrap()));
            }
        }
        assert_eq!(begun.len(), ended);
        assert_eq!(begun.iter().filter(|name| *name == "add").count(), 10);
        out.sort_unstable();
        back.sort_unstable();
        assert_eq!((out.len(), &out), (trace.ops().iter().map(|op| op.depends_on.len()).sum(), &back));
    });
}

#[test]
fn a_report_is_one_page_with_all_data_and_a_critical_path() {
    recorded(&KINDS, |engine, recorder| {
        let (x, y) = (engine.var(0), engine.var(0));
        // The first operation ends after `aside`, except on a naive engine, where it ends inside its push.
        let (aside, waits) = (y.token().clone(), engine.kind() != EngineKind::Naive);
        let first = move |_: &mut i32| {
            eventually("the operation aside is over", || !waits || aside.version() == 1);
            thread::sleep(Duration::from_millis(5));
        };
        engine.op("first </script> & \"others\"").push(x.write(), first).unwrap();
        engine.op("aside").push(y.write(), |_| {}).unwrap();
        engine.op("second").push((x.read(), y.read()), |_| thread::sleep(Duration::from_millis(5))).unwrap();
        let inner = engine.downgrade();
        engine
            .op("last")
            .push(x.write(), move |_| {
                thread::sleep(Duration::from_millis(5));
                inner.op("pushed inside").push((), |()| thread::sleep(Duration::from_millis(5))).unwrap();
            })
            .unwrap();
        eventually("nothing is pending", || engine.pending() == 0);
        let trace = recorder.take();
        let path = trace.critical_path();
        let label = |id| trace.ops().iter().find(|op| op.id == id).unwrap().label();
        let names: Vec<_> = path.iter().map(|step| label(step.op)).collect();
        if engine.kind() == EngineKind::Naive {
            // Each operation is pushed after the previous one has ended.
            assert_eq!(names.last().unwrap(), "last");
        } else {
            assert_eq!(names, ["first </script> & \"others\"", "second", "last", "pushed inside"]);
            assert!(path.iter().all(|step| step.ran >= Duration::from_millis(4)), "{path:?}");
        }
        let mut page = Vec::new();
        trace.write_report("a \"title\" </script>", &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
        assert_eq!(page.matches("</script>").count(), 1, "the data end the script");
        assert!(page.contains(r#"first \u003c/script> & \"others\""#), "the data begin no element");
        assert!(page.contains(r#""undrawn":0"#));
        for loaded in ["http:", "https:", "src=", "import("] {
            assert!(!page.contains(loaded), "the page may load something: it has {loaded}");
        }
    });
}

#[test]
fn the_critical_path_goes_through_what_an_operation_waited_for_or_what_pushed_it() {
    recorded(&THREADED, |engine, recorder| {
        let path = |trace: &Trace| -> Vec<(String, Duration)> {
            let label = |id| trace.ops().iter().find(|op| op.id == id).unwrap().label();
            trace.critical_path().iter().map(|step| (label(step.op), step.ran)).collect()
        };
        let (x, is_over) = (engine.var(0), || eventually("nothing is pending", || engine.pending() == 0));

        // The last operation waits for one that ends after the push.
        let (gate, inside, read) = (Gate::new(), engine.downgrade(), x.clone());
        let opened = gate.clone();
        engine.op("slow").push(x.write(), move |_| opened.pass()).unwrap();
        let pushes = move |()| inside.op("waits").push(read.read(), |_| {}).unwrap();
        engine.op("pushes").submit((), pushes).unwrap().wait().unwrap();
        gate.open();
        is_over();
        let trace = recorder.take();
        let [slow, pushes, waits] = ["slow", "pushes", "waits"].map(|name| named(&trace, name));
        assert_eq!((waits.parent, &*waits.depends_on), (Some(pushes.id), &[slow.id][..]));
        assert_eq!(path(&trace), [("slow".to_owned(), slow.ran()), ("waits".to_owned(), waits.ran())]);

        // What the last operation depends on has ended before the push. Of the operation that pushes it, only the time
        // up to the push counts.
        engine.op("earlier").push(x.write(), |x| *x += 1).unwrap();
        is_over();
        let (gate, inside, read) = (Gate::new(), engine.downgrade(), x.clone());
        let opened = gate.clone();
        let pushes = move |()| inside.op("pushed").push(read.read(), move |_| opened.pass()).unwrap();
        engine.op("pushes").submit((), pushes).unwrap().wait().unwrap();
        gate.open();
        is_over();
        let trace = recorder.take();
        let [earlier, pushes, pushed] = ["earlier", "pushes", "pushed"].map(|name| named(&trace, name));
        assert_eq!((pushed.parent, &*pushed.depends_on), (Some(pushes.id), &[earlier.id][..]));
        let until_push = pushed.pushed - pushes.started.unwrap();
        assert_eq!(path(&trace), [("pushes".to_owned(), until_push), ("pushed".to_owned(), pushed.ran())]);
    });
}

#[test]
fn a_skipped_operation_is_not_on_the_critical_path() {
    recorded(&KINDS, |engine, recorder| {
        let x = engine.var(0);
        engine.op("fails").try_push(x.write(), |_| Err("a part of this test".into())).unwrap();
        engine.op("skipped").push(x.write(), |_| {}).unwrap();
        engine.wait_for_all().unwrap_err();
        let trace = recorder.take();
        assert_eq!(named(&trace, "skipped").outcome, Some(Outcome::Skipped));
        let path: Vec<_> = trace.critical_path().iter().map(|step| step.op).collect();
        assert_eq!(path, [named(&trace, "fails").id]);
    });
}

/// Returns the data in the report on a trace.
fn report_data(trace: &Trace) -> String {
    let mut page = Vec::new();
    trace.write_report("title", &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    let data = page.lines().find_map(|line| line.strip_prefix("const data = ")).expect("a line has the data");
    data.to_owned()
}

/// Returns the elements of a list of the data without commas in them.
fn data_list<'d>(data: &'d str, key: &str) -> Vec<&'d str> {
    let rest = data.split_once(&format!("\"{key}\":[")).unwrap().1;
    rest.split_once(']').unwrap().0.split(',').map(|element| element.trim_matches('"')).collect()
}

/// Returns the name whose latency is at the head of the report, the number of names whose results no other name uses,
/// and the number of names from which the longest latency has chosen.
fn followed(data: &str) -> (&str, f64, f64) {
    let [result, results, tied] = ["result", "results", "tied"].map(|key| numbers(data, key)[0]);
    (data_list(data, "names")[result as usize], results, tied)
}

#[test]
fn a_report_follows_the_most_urgent_result() {
    recorded(&KINDS, |engine, recorder| {
        // Pushes the operations of two rounds: `produce` overwrites what `show` and `check` of the first round have
        // used, and each `count` uses what the previous one has counted.
        let push = |urgent: i32| {
            let (raw, sum) = (engine.var(0), engine.var(0));
            for _ in 0..2 {
                engine.op("produce").priority(5).push(raw.overwrite(), |raw| *raw = 1).unwrap();
                engine.op("show").priority(urgent).push(raw.read(), |_| {}).unwrap();
                engine.op("check").push(raw.read(), |_| thread::sleep(Duration::from_millis(2))).unwrap();
                engine.op("count").push((raw.read(), sum.write()), |(raw, sum)| *sum += raw).unwrap();
            }
            eventually("nothing is pending", || engine.pending() == 0);
            recorder.take()
        };
        let data = report_data(&push(2));
        assert_eq!(followed(&data), ("show", 3.0, 1.0));
        assert_eq!(data_list(&data, "names"), ["produce", "show", "check", "count"]);
        assert_eq!(data_list(&data, "priorities"), ["5", "2", "0", "0"]);

        // Of several, the one with the longest latency.
        let trace = push(0);
        let latency = |name: &str| {
            let named = trace.ops().iter().filter(|op| op.name.as_str() == name);
            named.map(|op| op.took().unwrap()).sum::<Duration>()
        };
        let longest = ["show", "check", "count"].into_iter().max_by_key(|name| latency(name)).unwrap();
        assert_eq!(followed(&report_data(&trace)), (longest, 3.0, 3.0));

        // Every name's results are used.
        let state = engine.var(0);
        for round in 0..2 {
            engine.op("forward").priority(round).push(state.write(), |state| *state += 1).unwrap();
            engine.op("backward").priority(-1).push(state.write(), |state| *state += 1).unwrap();
        }
        eventually("nothing is pending", || engine.pending() == 0);
        let data = report_data(&recorder.take());
        assert_eq!(followed(&data), ("forward", 0.0, 1.0));
        assert!(data.contains(r#""priorities":[[0,1],-1],"#), "{data}");
        // Only operations of a name with several priorities have their own.
        assert!(data.contains("]],0],[") && data.contains("]],1],["), "{data}");
        assert!(!data.contains("]],-1]"), "{data}");
    });
    let data = report_data(&Recorder::new().take());
    assert!(data.contains(r#""result":null,"results":0,"tied":0,"#), "{data}");
}

#[test]
fn a_report_compares_average_latencies() {
    recorded(&KINDS, |engine, recorder| {
        let run = |name: &'static str, time: Duration| {
            engine.op(name).push((), move |()| thread::sleep(time)).unwrap();
            eventually("nothing is pending", || engine.pending() == 0);
        };
        // The sum of these latencies may be longer than the one below.
        (0..500).for_each(|_| run("often", Duration::ZERO));
        run("once", MOMENT);
        let trace = recorder.take();
        let average = |name: &&str| {
            let named = trace.ops().iter().filter(|op| op.name.as_str() == *name);
            named.clone().map(|op| op.took().unwrap()).sum::<Duration>() / named.count() as u32
        };
        let longest = ["often", "once"].into_iter().max_by_key(average).unwrap();
        assert_eq!(followed(&report_data(&trace)), (longest, 2.0, 2.0));
    });
}

#[test]
fn a_report_names_at_most_four_places_for_each_name() {
    recorded(&[EngineKind::Naive], |engine, recorder| {
        engine.op("named").push((), |()| {}).unwrap();
        engine.op("named").push((), |()| {}).unwrap();
        engine.op("named").push((), |()| {}).unwrap();
        let trace = recorder.take();
        assert_eq!(data_list(&report_data(&trace), "sites").len(), 3);
        engine.op("named").push((), |()| {}).unwrap();
        engine.op("named").push((), |()| {}).unwrap();
        engine.op("named").push((), |()| {}).unwrap();
        engine.op("named").push((), |()| {}).unwrap();
        engine.op("named").push((), |()| {}).unwrap();
        let trace = recorder.take();
        assert_eq!(data_list(&report_data(&trace), "sites").len(), 4);
    });
}

#[test]
fn a_report_says_for_how_long_a_worker_was_idle_while_an_operation_waited() {
    watched(|| {
        let recorder = Recorder::new();
        let engine = Engine::builder().workers(1).recorder(&recorder).build().unwrap();
        engine.op("alone").push((), |()| {}).unwrap();
        engine.wait_for_all().unwrap();
        // One function has run inside the other, which still runs.
        let (inner, started, leave) = (engine.downgrade(), Gate::new(), Gate::new());
        let (starts, leaves) = (started.clone(), leave.clone());
        let around = move |()| {
            inner.op("inside").submit((), |()| {}).unwrap().wait().unwrap();
            starts.open();
            leaves.pass();
        };
        engine.op("around").push((), around).unwrap();
        started.pass();
        engine.op("behind both").push((), |()| {}).unwrap();
        leave.open();
        engine.wait_for_all().unwrap();
        // The worker is idle between two functions.
        engine.op("again").push((), |()| {}).unwrap();
        engine.wait_for_all().unwrap();
        // The reader becomes ready at the very time at which the function before it ends.
        let (x, leave) = (engine.var(0), Gate::new());
        let leaves = leave.clone();
        engine.op("writes").push(x.write(), move |_| leaves.pass()).unwrap();
        engine.op("reads").push(x.read(), |_| {}).unwrap();
        leave.open();
        engine.wait_for_all().unwrap();
        let (started, has_started) = mpsc::channel();
        let (sender, receiver) = mpsc::channel::<()>();
        let hold = move |()| {
            started.send(()).unwrap();
            receiver.recv().unwrap();
        };
        engine.op("holds").push((), hold).unwrap();
        has_started.recv().unwrap();
        let line = line!() + 1;
        engine.op("behind").push((), |()| {}).unwrap();
        thread::sleep(MOMENT);
        sender.send(()).unwrap();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        let data = report_data(&trace);
        let rows = data.split_once(r#""ops":[["#).unwrap().1;
        let idle = |name: &str| {
            let index = data_list(&data, "names").iter().position(|other| *other == name).unwrap();
            let row = rows.split("],[").find(|row| row.starts_with(&format!("{index},"))).expect("a row per name");
            row.split(',').nth(6).unwrap().parse::<u128>().unwrap()
        };
        // The worker had nothing else to do, or ran a function for the whole time.
        for name in ["alone", "again", "reads"] {
            assert_eq!(idle(name), named(&trace, name).queued().unwrap().as_nanos(), "{name}");
            assert!(idle(name) > 0, "{name}");
        }
        assert_eq!(named(&trace, "reads").ready, named(&trace, "writes").ended);
        assert!(named(&trace, "behind").queued().unwrap() >= MOMENT);
        assert_eq!((idle("behind both"), idle("behind")), (0, 0));
        // The last step of the critical path is `behind`, and the page names the place of each push.
        assert!(data.ends_with(",0]]};"), "{data}");
        assert!(data.contains(&format!(r#"["{}:{line}"]"#, file!().replace('\\', "\\\\"))), "{data}");
    });
}

#[test]
fn a_report_on_many_operations_includes_them_all_in_the_times_of_rows() {
    watched_for(Duration::from_secs(60), || {
        let recorder = Recorder::with_capacity(16 << 20);
        let engine = Engine::builder().workers(1).recorder(&recorder).build().unwrap();
        for _ in 0..60 {
            for _ in 0..1000 {
                engine.op("one of many").push((), |()| {}).unwrap();
            }
            engine.wait_for_all().unwrap();
        }
        let inner = engine.downgrade();
        // Both run on the same worker, inside the function that waits.
        let run = move |name| inner.op(name).submit((), |()| thread::sleep(MOMENT)).unwrap().wait().unwrap();
        let wait = move |()| ["first", "second"].map(&run);
        engine.op("outer").submit((), wait).unwrap().wait().unwrap();
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        assert_eq!(trace.lost(), 0);
        let [outer, inner @ ..] = ["outer", "first", "second"].map(|name| named(&trace, name));
        for inner in inner {
            assert!(
                outer.runs[0].from <= inner.runs[0].from && inner.runs[0].to <= outer.runs[0].to,
                "{outer:?} {inner:?}"
            );
        }
        let mut page = Vec::new();
        trace.write_report("many", &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains(r#""undrawn":10003,"#) && page.contains(r#""tracks":["cpu 0"],"#));
        let ops = trace.ops().iter().filter(|op| !op.internal && inner.iter().all(|inner| op.id != inner.id));
        let busy = ops.map(|op| op.ran().as_nanos()).sum::<u128>();
        assert!(page.contains(&format!(r#""busy":[{busy}],"#)), "{busy} ns");
    });
}

#[test]
fn a_profile_is_written_while_the_engine_runs() {
    for (kind, name) in KINDS.into_iter().zip(["trace.json", "other.json", "trace.pftrace"]) {
        watched(move || {
            let folder = Folder::new(&format!("profile-{kind}"));
            let path = folder.0.join(name);
            let recorder = Recorder::new();
            let build = || Engine::builder().kind(kind).workers(2).profile(&path);
            let engine = build().recorder(&recorder).build().unwrap();
            let x = engine.var(0);
            let run = |engine: &Engine| {
                for _ in 0..500 {
                    engine.op("sum").push(x.write(), |x| *x += 1).unwrap();
                }
                engine.wait_for_all().unwrap();
            };
            run(&engine);
            eventually("the file is written", || {
                std::fs::read(&path).unwrap().windows(3).filter(|window| window == b"sum").count() >= 100
            });
            run(&engine);
            let trace = recorder.take();
            assert_eq!(trace.ops().iter().filter(|op| !op.internal).count(), 1000, "the program's trace");
            engine.shutdown(raddle::Shutdown::Drain, None).unwrap();
            let file = std::fs::read(&path).unwrap();
            assert_eq!(file.windows(3).filter(|window| window == b"sum").count(), 1000);
            let place = trace.place(trace.ops()[0].runs[0].place);
            assert!(file.windows(place.len()).any(|window| window == place.as_bytes()), "{place} has no track");
            if name.ends_with("json") {
                let text = String::from_utf8(file).unwrap();
                assert!(text.trim_end().ends_with(']'));
                assert_eq!(text.matches(r#""ph":"s""#).count(), text.matches(r#""ph":"f""#).count());
                assert!(text.matches(r#""ph":"s""#).count() > 900);
            }
            drop(build().build().unwrap());
            let second = path.with_file_name(name.replace('.', "-2."));
            assert!(second.exists(), "the other engine has no file of its own");
            drop(folder);
            let refused = build().build().unwrap_err();
            assert!(matches!(refused, raddle::error::BuildError::Profile(..)), "{refused}");
        });
    }
}

// ------------------------------------------------------------------------------------------------------- observers
// ----

#[derive(Default)]
struct Counts([AtomicUsize; 5]);

struct Counting(Arc<Counts>);

impl Counting {
    fn count(&self, index: usize, op: &ObservedOp<'_>) {
        if !op.internal {
            assert_eq!(op.name, "observed");
            self.0.0[index].fetch_add(1, Relaxed);
        }
    }
}

impl Observer for Counting {
    fn pushed(&self, op: &ObservedOp<'_>) {
        self.count(0, op);
    }
    fn ready(&self, op: &ObservedOp<'_>) {
        self.count(1, op);
    }
    fn started(&self, op: &ObservedOp<'_>) {
        self.count(2, op);
    }
    fn returned(&self, op: &ObservedOp<'_>) {
        self.count(3, op);
    }
    fn ended(&self, op: &ObservedOp<'_>, outcome: Outcome) {
        assert!(op.internal || outcome == Outcome::Succeeded);
        self.count(4, op);
    }
}

#[test]
fn an_observer_is_called_for_each_step() {
    for kind in KINDS {
        watched(move || {
            let counts = Arc::new(Counts::default());
            let engine =
                Engine::builder().kind(kind).workers(2).observer(Counting(Arc::clone(&counts))).build().unwrap();
            let x = engine.var(0);
            for _ in 0..100 {
                engine.op("observed").push(x.write(), |x| *x += 1).unwrap();
            }
            engine.op("observed").push(completion(), |completion| completion.complete()).unwrap();
            engine.shutdown(raddle::Shutdown::Drain, None).unwrap();
            let counts = counts.0.each_ref().map(|count| count.load(Relaxed));
            let ready = if kind == EngineKind::Naive { 0 } else { 101 };
            assert_eq!(counts, [101, ready, 101, 1, 101]);
        });
    }
}

/// An observer's view of an operation at one step.
#[derive(Debug)]
struct Seen {
    step: &'static str,
    name: String,
    age: Duration,
    lane: String,
    place: Place,
    place_name: String,
    priority: i32,
    device: Device,
    accesses: Vec<(String, AccessMode)>,
    variables: Vec<VarId>,
}

struct Noting(mpsc::Sender<Seen>);

impl Noting {
    fn note(&self, step: &'static str, op: &ObservedOp<'_>) {
        if op.internal {
            return;
        }
        let accesses = op.accesses();
        let seen = Seen {
            step,
            name: op.name.to_owned(),
            age: op.age(),
            lane: op.lane(),
            place: op.place(),
            place_name: op.place_name(),
            priority: op.priority,
            device: op.device,
            accesses: accesses.iter().map(|access| (access.name.as_str().to_owned(), access.mode)).collect(),
            variables: accesses.iter().map(|access| access.variable).collect(),
        };
        self.0.send(seen).unwrap();
    }
}

impl Observer for Noting {
    fn pushed(&self, op: &ObservedOp<'_>) {
        self.note("pushed", op);
    }
    fn ready(&self, op: &ObservedOp<'_>) {
        self.note("ready", op);
    }
    fn started(&self, op: &ObservedOp<'_>) {
        self.note("started", op);
    }
    fn returned(&self, op: &ObservedOp<'_>) {
        self.note("returned", op);
    }
    fn ended(&self, op: &ObservedOp<'_>, _: Outcome) {
        self.note("ended", op);
    }
}

#[test]
fn an_observer_sees_what_the_recorder_records() {
    for kind in KINDS {
        watched(move || {
            let ((sender, seen), recorder) = (mpsc::channel(), Recorder::new());
            let builder = Engine::builder().kind(kind).workers(2).gpu(SimulatedGpu::new()).recorder(&recorder);
            let engine = builder.observer(Noting(sender)).build().unwrap();
            let (from, to) = (engine.var(1).named("from"), engine.var(0).named("to"));
            let on_gpu = engine.device_var::<u64>(Device::Gpu(0), 4).unwrap().named("on gpu");
            engine.op("copy").priority(100).push((from.read(), to.write()), |(from, to)| *to = *from).unwrap();
            engine
                .op("fill")
                .on(Device::Gpu(0))
                .try_push((on_gpu.write(), stream()), |(value, stream)| {
                    Ok(stream.simulated().unwrap().launch(Duration::ZERO, value, |value| value.fill(1))?)
                })
                .unwrap();
            engine.op("ask").push((to.overwrite(), completion()), |(_, completion)| completion.complete()).unwrap();
            engine.shutdown(raddle::Shutdown::Drain, None).unwrap();
            let trace = recorder.take();
            let seen: Vec<Seen> = seen.try_iter().collect();
            for (name, device, accesses) in [
                ("copy", Device::Cpu, vec![("from", AccessMode::Read), ("to", AccessMode::Write)]),
                ("fill", Device::Gpu(0), vec![("on gpu", AccessMode::Write)]),
                ("ask", Device::Cpu, vec![("to", AccessMode::Overwrite)]),
            ] {
                let op = named(&trace, name);
                let seen: Vec<&Seen> = seen.iter().filter(|seen| seen.name == name).collect();
                assert!(["pushed", "started", "ended"].iter().all(|step| seen.iter().any(|seen| seen.step == *step)));
                let run = op.runs[0].place;
                for seen in &seen {
                    assert_eq!((seen.priority, seen.device), (op.priority, device), "{kind} {seen:?}");
                    // The naive engine has no lanes.
                    let lane = if kind == EngineKind::Naive { "none" } else { trace.lane(op.engine, op.lane) };
                    assert_eq!(seen.lane, lane, "{kind} {seen:?}");
                    // The end is recorded before the observer is called.
                    let youngest = if seen.step == "ended" { op.took().unwrap() } else { Duration::ZERO };
                    assert!((youngest..PATIENCE).contains(&seen.age), "{kind} {seen:?}");
                    if seen.step == "started" {
                        assert_eq!(seen.place, run, "{kind} {seen:?}");
                        if !matches!(run, Place::Thread(_)) {
                            assert_eq!(seen.place_name, trace.place(run), "{kind} {seen:?}");
                        }
                    }
                    // A GPU operation has released its variables when it ends; an asynchronous operation may already
                    // have done so when its function returns.
                    let has_released = seen.step == "returned" || seen.step == "ended" && device != Device::Cpu;
                    if !has_released || !seen.accesses.is_empty() {
                        let found: Vec<_> = seen.accesses.iter().map(|(name, mode)| (&**name, *mode)).collect();
                        assert_eq!(found, accesses, "{kind} {seen:?}");
                        assert_eq!(seen.variables, op.accesses.iter().map(|access| access.0).collect::<Vec<_>>());
                    }
                }
            }
            assert_eq!(named(&trace, "copy").priority, 64, "the priority is not the one closest to 0 in its band");
            let on_worker = |seen: &&Seen| seen.step == "started" && matches!(seen.place, Place::Worker { .. });
            assert_eq!(seen.iter().any(|seen| on_worker(&seen)), kind != EngineKind::Naive);
        });
    }
}

#[test]
fn an_observer_can_neither_push_to_an_observed_engine_nor_wait_and_may_panic() {
    type Results = ([Result<(), PushError>; 4], Result<(), WaitError>);
    struct Meddling(mpsc::Sender<Results>, [Engine; 4]);
    impl Observer for Meddling {
        fn started(&self, op: &ObservedOp<'_>) {
            if op.name == "observed" {
                let pushed = self.1.each_ref().map(|engine| engine.op("observed").push((), |()| {}));
                self.0.send((pushed, self.1[0].wait_for_all())).unwrap();
            }
        }
        fn ended(&self, op: &ObservedOp<'_>, _: Outcome) {
            assert!(op.name != "observed", "a part of this test");
        }
    }
    for kind in KINDS {
        watched(move || {
            let (sender, receiver) = mpsc::channel();
            let builder = || Engine::builder().kind(kind).workers(1);
            let observed = builder().observer(Counting(Arc::default())).build().unwrap();
            let unobserved = [builder(), builder().max_pending(10), builder().recorder(&Recorder::new())];
            let unobserved = unobserved.map(|builder| builder.build().unwrap());
            let [plain, limited, recorded] = unobserved.clone();
            let meddling = Meddling(sender, [observed, plain, limited, recorded]);
            let engine = builder().observer(meddling).build().unwrap();
            let x = engine.var(0);
            engine.op("observed").push(x.write(), |x| *x += 1).unwrap();
            engine.op("other").push(x.write(), |x| *x += 1).unwrap();
            assert_eq!(engine.get(&x).unwrap(), 2);
            let (pushed, waited) = receiver.recv().unwrap();
            assert!(matches!(pushed, [Err(PushError::InObserver), Ok(()), Ok(()), Ok(())]), "{pushed:?}");
            assert!(matches!(waited, Err(WaitError::InObserver)), "{waited:?}");
            engine.wait_for_all().unwrap();
            for unobserved in unobserved {
                unobserved.wait_for_all().unwrap();
                assert_eq!(unobserved.stats().ended, 1);
            }
        });
    }
}

#[test]
fn limits_and_shutdowns_work_on_a_recorded_engine() {
    on_kinds(&KINDS, 2, |engine| {
        let recorder = Recorder::new();
        let engine =
            Engine::builder().kind(engine.kind()).workers(2).max_pending(10).recorder(&recorder).build().unwrap();
        let x = engine.var(0);
        for _ in 0..1000 {
            engine.op("add").push(x.write(), |x| *x += 1).unwrap();
            assert!(engine.pending() <= 11);
        }
        let last = engine.op("last").submit(x.read(), |x| *x).unwrap();
        engine.shutdown(raddle::Shutdown::Drain, None).unwrap();
        assert_eq!(last.wait().unwrap(), 1000);
        let trace = recorder.take();
        assert_eq!(named(&trace, "last").outcome, Some(Outcome::Succeeded));
        assert!(trace.ops().iter().all(|op| op.ended.is_some()), "an operation has not ended");
        let refused = engine.op("late").push((), |()| {}).unwrap_err();
        assert!(matches!(refused, PushError::ShutDown), "{refused:?}");
    });
}

#[test]
fn an_observer_can_inspect_the_engine_but_not_push_wait_or_shut_down() {
    struct Curious(mpsc::Sender<Vec<bool>>, std::sync::OnceLock<WeakEngine>, Recorder);
    impl Observer for Curious {
        fn ended(&self, op: &ObservedOp<'_>, _: Outcome) {
            if op.name != "observed" {
                return;
            }
            let engine = self.1.get().unwrap();
            let looked = [engine.dump().ops().is_empty(), engine.stats().pending == 0, engine.pending() == 0];
            drop(self.2.take());
            // The drop pushes the variable's deletion, which is allowed even here, since a drop cannot fail.
            drop(engine.var(0));
            raddle::blocking(|| {});
            let refused = [
                engine.shutdown(raddle::Shutdown::Drain, None).is_err(),
                engine.stop(None).is_err(),
                engine.wait_for_all_timeout(Duration::from_secs(1)).is_err(),
                engine.scope(|_| ()).is_err(),
                engine.group().wait().is_err(),
                engine.op("handled").submit((), |()| ()).is_err(),
                engine.op("future").push_future((), |()| async {}).is_err(),
            ];
            let _ = self.0.send([&looked.map(|looked| !looked)[..], &refused].concat());
        }
    }
    for kind in THREADED {
        watched(move || {
            let (sender, receiver) = mpsc::channel();
            let recorder = Recorder::new();
            let observer = Arc::new(Curious(sender, std::sync::OnceLock::new(), recorder.clone()));
            struct Shared(Arc<Curious>);
            impl Observer for Shared {
                fn ended(&self, op: &ObservedOp<'_>, outcome: Outcome) {
                    self.0.ended(op, outcome);
                }
            }
            let builder = Engine::builder().kind(kind).workers(1).recorder(&recorder);
            let engine = builder.observer(Shared(Arc::clone(&observer))).build().unwrap();
            observer.1.set(engine.downgrade()).ok().unwrap();
            engine.op("observed").push((), |()| {}).unwrap();
            let results = receiver.recv().unwrap();
            assert!(results.iter().all(|&is_right| is_right), "{results:?}");
            engine.wait_for_all().unwrap();
        });
    }
}

#[test]
fn operations_whose_ends_were_lost_do_not_pile_up() {
    watched(|| {
        let recorder = Recorder::with_capacity(4096);
        let engine = Engine::builder().workers(1).recorder(&recorder).build().unwrap();
        let x = engine.var(0);
        let mut open = Vec::new();
        for _ in 0..30 {
            // A push takes one slot of the pushing thread. The operation becomes ready and runs on the worker, whose
            // ring therefore has no room for the ends of many whose pushes are kept.
            let gate = Gate::new();
            let closed = gate.clone();
            engine.op("hold").push(x.write(), move |_| closed.pass()).unwrap();
            for _ in 0..1000 {
                engine.op("").push(x.write(), |x| *x += 1).unwrap();
            }
            gate.open();
            engine.wait_for_all().unwrap();
            let trace = recorder.take();
            assert!(trace.lost() > 0);
            open.push(trace.ops().iter().filter(|op| op.ended.is_none()).count());
        }
        assert!(open[0] > 50, "few ends were lost: {open:?}");
        assert!(open[29] <= 3 * open[..3].iter().max().unwrap(), "ended operations pile up: {open:?}");
        // Pending operations are not forgotten.
        let (sender, receiver) = mpsc::channel::<()>();
        engine.op("pending").push((), move |()| _ = receiver.recv()).unwrap();
        for _ in 0..10 {
            let trace = recorder.take();
            let pending = trace.ops().iter().find(|op| op.name.as_str() == "pending");
            assert!(pending.is_some_and(|op| op.ended.is_none()), "what is pending was forgotten");
        }
        drop(sender);
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        assert!(trace.ops().iter().all(|op| op.ended.is_some()), "an operation that has ended is still open");
        assert_eq!(engine.dump().ops().len(), 0);
        assert!(engine.stats().lost > 0 && engine.stats().to_string().contains("events were lost"));
    });
}

#[test]
#[cfg_attr(miri, ignore = "thousands of threads take too long")]
fn numbers_of_threads_that_have_ended_are_reused() {
    watched(|| {
        let recorder = Recorder::with_capacity(1 << 16);
        let engine = Engine::builder().workers(1).recorder(&recorder).build().unwrap();
        let x = engine.var(0);
        let (mut pushed, mut ids) = (0, HashSet::new());
        for round in 0..50 {
            for _ in 0..100 {
                thread::scope(|scope| {
                    scope.spawn(|| engine.op("add").push(x.write(), |x| *x += 1).unwrap()).join().unwrap();
                });
            }
            engine.wait_for_all().unwrap();
            let trace = recorder.take();
            assert_eq!(trace.lost(), 0, "in round {round}");
            pushed += trace.ops().iter().filter(|op| !op.internal).count();
            ids.extend(trace.ops().iter().map(|op| op.id));
            trace.check_order().unwrap();
        }
        assert_eq!(pushed, 5000);
        assert!(ids.len() >= 5000, "two operations have the same number");
    });
}

#[test]
fn statistics_count_what_was_pushed_and_ended() {
    on_kinds(&KINDS, 2, |engine| {
        let x = engine.token();
        let gate = common::hold(&engine, &x);
        for _ in 0..500 {
            for _ in 0..4 {
                engine.op("add").writes([&x]).push((), |()| {}).unwrap();
            }
        }
        let stats = engine.stats();
        assert_eq!((stats.pushed, stats.ended, stats.pending), (2001, 0, 2001));
        assert!(stats.lanes.iter().all(|lane| lane.ready == 0), "{stats}");
        gate.open();
        engine.wait_for_all().unwrap();
        for _ in 0..100 {
            // Each wait closes a generation.
            engine.op("one").push((), |()| {}).unwrap();
            engine.wait_for_all().unwrap();
        }
        let stats = engine.stats();
        assert_eq!((stats.pushed, stats.ended, stats.pending), (2101, 2101, 0), "{stats}");
        assert!(
            stats.to_string().contains("2101 operations were pushed, 2101 have ended, and 0 are pending"),
            "{stats}"
        );
        if engine.kind() != EngineKind::Naive {
            let gate = common::occupy(&engine, 2);
            (0..7).for_each(|_| engine.op("ready").push((), |()| {}).unwrap());
            assert_eq!(engine.stats().lanes[0].ready, 7, "{}", engine.stats());
            gate.open();
            engine.wait_for_all().unwrap();
            let engine = Engine::builder().kind(engine.kind()).workers(1).build().unwrap();
            let inner = engine.downgrade();
            let wait = move |()| inner.op("inner").submit((), |()| {}).unwrap().wait().unwrap();
            engine.op("outer").submit((), wait).unwrap().wait().unwrap();
            assert_eq!(engine.stats().helped, 1, "{}", engine.stats());
            // A wait for a variable takes the operation from the worker's deque.
            let (inner, x) = (engine.downgrade(), engine.var(0));
            let wait = move |()| {
                inner.op("inner").push(x.write(), |_| {}).unwrap();
                inner.wait_for_var(&x).unwrap();
            };
            engine.op("outer").submit((), wait).unwrap().wait().unwrap();
            assert_eq!(engine.stats().helped, 2, "{}", engine.stats());
        }
    });
}

#[test]
fn statistics_count_queues_steals_parks_and_wake_ups() {
    for kind in THREADED {
        watched(move || {
            let engine = Engine::builder().kind(kind).workers(2).idle(IdlePolicy::Park).build().unwrap();
            let lane = || engine.stats().lanes.swap_remove(0);
            let parks = |lane: &LaneStats| lane.workers.iter().map(|worker| worker.parks).sum::<u64>();
            eventually("both workers have parked", || lane().workers.iter().all(|worker| worker.parks > 0));
            let before = lane();
            assert!(before.workers.iter().all(|worker| (worker.queued, worker.steals) == (0, 0)), "{before:?}");

            // One worker makes ten operations ready, and the first of them occupies it. The others stay in its deque
            // until the second worker is free.
            let x = engine.token();
            let second = common::occupy(&engine, 1);
            let (written, run) = (Gate::new(), Gate::new());
            let passes = written.clone();
            engine.op("writes").writes([&x]).push((), move |()| passes.pass()).unwrap();
            for _ in 0..10 {
                let run = run.clone();
                engine.op("reads").reads([&x]).push((), move |()| run.pass()).unwrap();
            }
            written.open();
            eventually("readers are in a deque", || lane().workers.iter().any(|worker| worker.queued > 5));
            assert!(lane().workers.iter().all(|worker| worker.steals == 0));
            second.open();
            eventually("the second worker steals", || lane().workers.iter().any(|worker| worker.steals > 0));
            assert!(lane().wakes > before.wakes, "{before:?}");
            run.open();
            engine.wait_for_all().unwrap();
            eventually("the workers have parked again", || parks(&lane()) > parks(&before));
            let text = engine.stats().to_string();
            assert!(["queued", "steals", "parks"].iter().all(|word| text.contains(word)), "{text}");
        });
    }
}

#[test]
fn a_profile_is_completed_after_the_last_handle_is_dropped() {
    for kind in KINDS {
        for drop_inside in [false, true] {
            watched(move || {
                let name = format!("raddle-dropped-{}-{kind}-{drop_inside}.json", std::process::id());
                let path = std::env::temp_dir().join(name);
                let engine = Engine::builder().kind(kind).workers(2).profile(&path).build().unwrap();
                let x = engine.var(0);
                for _ in 0..20_000 {
                    engine.op("add").push(x.write(), |x| *x += 1).unwrap();
                }
                if drop_inside {
                    let (sender, receiver) = mpsc::channel::<Engine>();
                    engine.op("last").push((), move |()| drop(receiver.try_recv())).unwrap();
                    let (inside, given) = (engine.clone(), sender.send(engine.clone()));
                    let _ = given;
                    inside.op("drops").push((), move |()| drop(engine)).unwrap();
                    drop(inside);
                } else {
                    drop(engine);
                }
                eventually("the file is complete", || {
                    std::fs::read_to_string(&path).is_ok_and(|text| text.trim_end().ends_with(']'))
                });
                let text = std::fs::read_to_string(&path).unwrap();
                // More than is read from a ring at a time.
                assert_eq!(text.matches(r#""name":"add","cat""#).count(), 20_000);
                std::fs::remove_file(&path).unwrap();
            });
        }
    }
}
