//! `stop` and `start`, and engines in unusual places in a program.

use raddle_testkit as common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use common::{
    Gate, KINDS, MOMENT, PATIENCE, SOON, THREADED, child_succeeds, child_succeeds_on_each_kind, eventually, hold,
    is_child, on_kinds, watched,
};
use raddle::{Engine, EngineKind, Property, Shutdown, error::ShutdownError};

/// Pushes thirty operations that each add one to `count`.
fn push_some(engine: &Engine, count: &Arc<AtomicUsize>) {
    for property in [Property::Normal, Property::CpuPrioritized, Property::CopyToGpu] {
        for _ in 0..10 {
            let count = Arc::clone(count);
            let op = engine.op("count").property(property);
            op.push((), move |()| _ = count.fetch_add(1, Relaxed)).unwrap();
        }
    }
}

// ----------------------------------------------------------------------------------------------- stop and start ----

#[test]
fn operations_that_are_pushed_while_an_engine_is_stopped_run_after_the_start() {
    on_kinds(&THREADED, 2, |engine| {
        for _ in 0..20 {
            let count = Arc::default();
            engine.stop(None).unwrap();
            assert!(engine.is_stopped());
            push_some(&engine, &count);
            assert_eq!((count.load(Relaxed), engine.pending()), (0, 30));
            engine.start().unwrap();
            assert!(!engine.is_stopped());
            engine.wait_for_all().unwrap();
            assert_eq!(count.load(Relaxed), 30);
        }
    });
}

#[test]
fn an_engine_that_stops_while_others_push_loses_nothing() {
    on_kinds(&THREADED, 2, |engine| {
        let (count, total) = (Arc::new(AtomicUsize::new(0)), engine.var(0));
        thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    for _ in 0..200 {
                        push_some(&engine, &count);
                        engine.op("chain").push(total.write(), |total| *total += 1).unwrap();
                    }
                });
            }
            threads.spawn(|| {
                for _ in 0..20 {
                    engine.stop(None).unwrap();
                    let before = count.load(Relaxed);
                    thread::sleep(Duration::from_millis(1));
                    assert_eq!(count.load(Relaxed), before, "a function ran");
                    engine.start().unwrap();
                }
            });
        });
        engine.wait_for_all().unwrap();
        assert_eq!((count.load(Relaxed), engine.get(&total).unwrap()), (12_000, 400));
    });
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_threads_end_and_start() {
    assert!(is_child());
    let before = common::thread_count();
    for kind in THREADED {
        let engine = common::engine(kind, 4);
        let with = common::thread_count();
        assert!(with >= before + 4, "{before} {with}");
        let count = Arc::default();
        for _ in 0..5 {
            let start = Instant::now();
            engine.stop(None).unwrap();
            common::wait_for_thread_count(before);
            assert!(start.elapsed() < SOON, "the threads have not ended in time");
            push_some(&engine, &count);
            engine.start().unwrap();
            engine.wait_for_all().unwrap();
            assert_eq!(common::thread_count(), with);
        }
        assert_eq!(count.load(Relaxed), 5 * 30);
        drop(engine);
        common::wait_for_thread_count(before);
    }
}

#[test]
fn threads_end_and_start() {
    child_succeeds("in_a_child_threads_end_and_start");
}

#[test]
fn a_stop_waits_for_running_functions_and_keeps_the_operations_behind_them() {
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(0);
        let (started, (sender, receiver)) = (Gate::new(), mpsc::channel::<()>());
        let at = started.clone();
        engine
            .op("runs")
            .push(value.write(), move |value| {
                at.open();
                let _ = receiver.recv_timeout(PATIENCE);
                *value = 1;
            })
            .unwrap();
        engine.op("behind").push(value.write(), |value| *value += 1).unwrap();
        started.pass();
        thread::scope(|threads| {
            let stop = threads.spawn(|| engine.stop(None));
            thread::sleep(MOMENT);
            assert!(!stop.is_finished(), "the stop ended while a function runs");
            drop(sender);
            stop.join().unwrap().unwrap();
        });
        assert_eq!(value.version(), 1);
        engine.start().unwrap();
        assert_eq!(engine.get(&value).unwrap(), 2);
    });
}

#[test]
fn a_stop_runs_what_functions_wait_for() {
    on_kinds(&THREADED, 1, |engine| {
        for property in [Property::Normal, Property::CpuPrioritized, Property::CopyToGpu] {
            let (started, gate) = (Gate::new(), Gate::new());
            let (at, inside, inner) = (started.clone(), gate.clone(), engine.downgrade());
            let waits = engine
                .op("waits")
                .submit((), move |()| {
                    at.open();
                    inside.pass();
                    let (a, b) = (inner.var(1), inner.var(0));
                    // Another lane's worker may have been laid aside by now, and this function's own worker moves to
                    // another thread.
                    inner.op("first").property(property).push(a.write(), |a| *a += 1).unwrap();
                    inner.op("second").push((a.read(), b.write()), |(a, b)| *b = *a).unwrap();
                    inner.get(&b)
                })
                .unwrap();
            started.pass();
            thread::scope(|threads| {
                let stop = threads.spawn(|| engine.stop(None));
                thread::sleep(MOMENT);
                gate.open();
                stop.join().unwrap().unwrap();
            });
            let count = Arc::default();
            push_some(&engine, &count);
            assert_eq!(waits.wait().unwrap().unwrap(), 2);
            assert_eq!(count.load(Relaxed), 0);
            engine.start().unwrap();
            engine.wait_for_all().unwrap();
            assert_eq!(count.load(Relaxed), 30);
        }
    });
}

#[test]
fn a_stop_that_times_out_leaves_the_engine_running() {
    on_kinds(&THREADED, 2, |engine| {
        let (started, (sender, receiver)) = (Gate::new(), mpsc::channel::<()>());
        let at = started.clone();
        let blocks = engine.op("blocks").submit((), move |()| {
            at.open();
            let _ = receiver.recv_timeout(PATIENCE);
        });
        let blocks = blocks.unwrap();
        started.pass();
        assert_eq!(engine.stop(Some(MOMENT)), Err(ShutdownError::TimedOut));
        assert!(!engine.is_stopped());
        assert_eq!(engine.op("runs").submit((), |()| 3).unwrap().wait().unwrap(), 3);
        drop(sender);
        blocks.wait().unwrap();
        engine.stop(Some(PATIENCE)).unwrap();
        engine.start().unwrap();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn stops_and_starts_may_be_repeated_and_race() {
    on_kinds(&KINDS, 2, |engine| {
        engine.start().unwrap();
        engine.stop(None).unwrap();
        engine.stop(None).unwrap();
        engine.start().unwrap();
        engine.start().unwrap();
        thread::scope(|threads| {
            for n in 0..3 {
                let engine = &engine;
                threads.spawn(move || {
                    for _ in 0..30 {
                        if n == 0 {
                            engine.start().unwrap();
                        } else {
                            engine.stop(Some(Duration::from_micros(300))).or_else(timed_out).unwrap();
                        }
                    }
                });
            }
        });
        engine.start().unwrap();
        assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

/// The threads that `start` gives to workers do not end, so a pending stop must not wait for them.
#[test]
fn a_start_ends_stops_without_a_time_limit() {
    on_kinds(&KINDS, 2, |engine| {
        let over = AtomicBool::new(false);
        thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !over.load(Relaxed) {
                        engine.stop(None).unwrap();
                    }
                });
            }
            for _ in 0..100 {
                thread::sleep(Duration::from_micros(200));
                engine.start().unwrap();
            }
            over.store(true, Relaxed);
        });
        engine.start().unwrap();
        assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

fn timed_out(error: ShutdownError) -> Result<(), ShutdownError> {
    if matches!(error, ShutdownError::TimedOut | ShutdownError::ThreadsLeft(_)) { Ok(()) } else { Err(error) }
}

#[test]
fn a_stop_inside_an_operation_is_refused() {
    on_kinds(&KINDS, 1, |engine| {
        let inner = engine.downgrade();
        let refused = engine.op("").submit((), move |()| inner.stop(None)).unwrap();
        let error = refused.wait().unwrap().unwrap_err();
        assert_eq!(error, ShutdownError::StopInsideOperation);
        let text = error.to_string();
        assert!(text.contains("stop") && !text.contains("shutdown"), "{text}");
        assert!(!engine.is_stopped());
    });
}

#[test]
fn operations_that_become_ready_while_an_engine_is_stopped_run_after_the_start() {
    on_kinds(&THREADED, 1, |engine| {
        let token = engine.token();
        let gate = hold(&engine, &token);
        let behind = engine.op("behind").writes([&token]).submit((), |()| ()).unwrap();
        engine.stop(None).unwrap();
        gate.open();
        eventually("the completion is used", || engine.pending() == 1);
        thread::sleep(Duration::from_millis(5));
        assert!(!behind.is_done());
        engine.start().unwrap();
        behind.wait().unwrap();
    });
}

/// A value that needs no drop may also be one that was dropped before, by a deletion.
#[test]
fn a_stopped_engine_deletes_variables_and_drops_values_that_need_no_drop_on_the_calling_thread() {
    on_kinds(&THREADED, 1, |engine| {
        let (plain, deleted, boxed) = (engine.var(0), engine.var(Box::new(0)), engine.var(Box::new(0)));
        engine.stop(None).unwrap();
        drop(plain);
        assert_eq!(engine.pending(), 0, "the drop of a number waits for a worker");
        let (sender, receiver) = mpsc::channel();
        engine.delete_variable(&deleted, move |_| sender.send(thread::current().id()).unwrap()).unwrap();
        assert_eq!(receiver.try_recv(), Ok(thread::current().id()));
        drop(deleted);
        assert_eq!(engine.pending(), 0, "the drop of a deleted variable waits for a worker");
        drop(boxed);
        assert_eq!(engine.pending(), 1, "the drop of a value that needs one does not wait for a worker");
        engine.start().unwrap();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_shutdown_starts_a_stopped_engine() {
    on_kinds(&THREADED, 2, |engine| {
        let ends: [(fn(Engine), usize); 4] = [
            (|engine| engine.shutdown(Shutdown::Drain, None).unwrap(), 30),
            (|engine| engine.shutdown(Shutdown::Cancel, None).unwrap(), 0),
            (|engine| common::block_on(engine.shutdown_async(Shutdown::Drain)).unwrap(), 30),
            (drop, 30),
        ];
        for (end, runs) in ends {
            let (engine, count) = (common::engine(engine.kind(), 2), Arc::default());
            engine.stop(None).unwrap();
            push_some(&engine, &count);
            end(engine);
            assert_eq!(count.load(Relaxed), runs);
        }
    });
}

#[test]
fn a_stop_after_a_shutdown_does_nothing() {
    on_kinds(&KINDS, 1, |engine| {
        engine.shutdown(Shutdown::Drain, None).unwrap();
        engine.stop(None).unwrap();
        engine.start().unwrap();
    });
}

// --------------------------------------------------------------------------------------------- unusual places ----

#[test]
fn many_engines_work_at_the_same_time() {
    watched(|| {
        let engines: Vec<_> = (0..60).map(|n| common::engine(KINDS[n % 3], 1 + n % 2)).collect();
        let variables: Vec<_> = engines.iter().map(|engine| engine.var(0)).collect();
        for round in 0..20 {
            for (engine, variable) in engines.iter().zip(&variables) {
                engine.op("add").push(variable.write(), move |variable| *variable += round).unwrap();
            }
        }
        for (engine, variable) in engines.iter().zip(&variables) {
            assert_eq!(engine.get(variable).unwrap(), 190);
        }
    });
}

#[test]
fn operations_of_one_engine_wait_for_those_of_another() {
    on_kinds(&KINDS, 1, |engine| {
        let other = common::engine(engine.kind(), 1);
        let (there, here) = (other.downgrade(), engine.downgrade());
        let result = engine.op("here").submit((), move |()| {
            let back =
                there.op("there").submit((), move |()| here.op("back").submit((), |()| 7).unwrap().wait().unwrap());
            back.unwrap().wait().unwrap()
        });
        assert_eq!(result.unwrap().wait().unwrap(), 7);
    });
}

#[test]
fn an_engine_in_a_thread_local_is_drained_when_its_thread_ends() {
    thread_local!(static ENGINE: std::cell::RefCell<Option<Engine>> = const { std::cell::RefCell::new(None) });
    watched(|| {
        for kind in KINDS {
            let count = Arc::default();
            let inside = Arc::clone(&count);
            thread::spawn(move || {
                let engine = common::engine(kind, 2);
                push_some(&engine, &inside);
                ENGINE.with(|cell| *cell.borrow_mut() = Some(engine));
            })
            .join()
            .unwrap();
            assert_eq!(count.load(Relaxed), 30, "{kind}");
        }
    });
}

#[test]
fn an_operation_may_drop_the_last_handle_of_its_engine_and_of_others() {
    on_kinds(&KINDS, 1, |engine| {
        let (other, count) = (common::engine(engine.kind(), 1), Arc::default());
        push_some(&other, &count);
        let (sender, receiver) = mpsc::channel();
        let own = engine.clone();
        engine
            .op("drops")
            .push((), move |()| {
                drop((own, other));
                sender.send(()).unwrap();
            })
            .unwrap();
        drop(engine);
        receiver.recv_timeout(PATIENCE).unwrap();
        eventually("the other engine is drained", || count.load(Relaxed) == 30);
    });
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_main_ends_while_the_global_engine_works() {
    assert!(is_child());
    let engine = Engine::global().unwrap();
    assert_eq!(engine.kind().to_string(), std::env::var("RADDLE_ENGINE").unwrap());
    let started = Gate::new();
    let starts = started.clone();
    // On a naive engine, the new thread runs the operations.
    thread::spawn(move || {
        for _ in 0..1000 {
            let starts = starts.clone();
            let works = move |()| {
                starts.open();
                thread::sleep(MOMENT);
            };
            engine.op("works").push((), works).unwrap();
        }
    });
    started.pass();
    assert!(engine.pending() > 0);
    // The process ends with the test, without dropping statics.
}

#[test]
fn a_process_may_end_while_the_global_engine_works() {
    child_succeeds_on_each_kind("in_a_child_main_ends_while_the_global_engine_works");
}

#[test]
fn a_stopped_naive_engine_still_runs_operations() {
    watched(|| {
        let engine = common::engine(EngineKind::Naive, 1);
        engine.stop(None).unwrap();
        assert!(!engine.is_stopped());
        assert_eq!(
            engine.op("").submit((), |()| 1).unwrap().wait().unwrap(),
            1,
            "the stopped engine did not run the operation"
        );
        engine.start().unwrap();
    });
}
