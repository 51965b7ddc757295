//! An engine's threads: a logger may push and wait on them, and threads started for waits end when idle.

#![cfg(target_os = "linux")]
#![cfg_attr(miri, allow(unused))]

use raddle_testkit as common;
use raddle_testkit::logger;
use raddle_testkit::no_threads;

use std::{
    cell::{Cell, RefCell},
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use common::shapes::*;
use common::{
    AWHILE, DeferredPanics, Gate, Journal, Meeting, PATIENCE, THREADED, block_on, child, child_succeeds, eventually,
    is_child, on_kinds, thread_count, wait_for_thread_count, watched_for,
};
use crossbeam_epoch as epoch;
use logger::log_to;
use no_threads::NoThreads;
use raddle::{
    Device, Engine, EngineKind, PushError, Shutdown, Token, WaitError, WeakEngine, error::BuildError,
    gpu::SimulatedGpu, replay::Log,
};

// ----------------------------------------------------------------------------------------------------- loggers ----

/// Until `is_enough` returns true, makes the engine's threads panic outside operations, in functions that another crate
/// has deferred to crossbeam's collector.
fn panic_outside(engine: &Engine, is_enough: impl Fn() -> bool) {
    let panics = DeferredPanics::default();
    eventually("deferred functions of another crate have run on a worker", || {
        epoch::pin().defer(panics.function());
        epoch::pin().flush();
        for _ in 0..400 {
            engine.push_sync(|_| {}, [], []).expect("the engine should be open");
        }
        is_enough()
    });
}

/// Asserts that both workers run operations and that no operation is left pending.
fn assert_both_work(engine: &Engine) {
    let meeting = Meeting::new(2);
    let meet = || {
        let meeting = meeting.clone();
        engine.op("meet").submit((), move |()| meeting.join_within(common::SOON)).expect("the engine should be open")
    };
    for handle in [meet(), meet()] {
        assert!(handle.wait().expect("no operation should fail"), "a worker is lost");
    }
    engine.wait_for_all_timeout(common::SOON).expect("no operation should be lost");
}

/// The logger panics while a worker logs a caught panic. When the thread ends, the destructors of its thread-locals do
/// not use the worker, which the thread no longer has.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_panicking_logger_loses_neither_the_worker_nor_its_operations() {
    child_succeeds("in_a_child_the_logger_panics");
}

struct PushesWhenDropped(WeakEngine, Arc<AtomicUsize>);

impl Drop for PushesWhenDropped {
    fn drop(&mut self) {
        // The engine has ended: its shutdown is joining this thread.
        let pushed = self.0.push_sync(|_| {}, [], []);
        assert_eq!(pushed, Err(PushError::ShutDown));
        self.1.fetch_add(1, SeqCst);
    }
}

thread_local!(static LOCAL: RefCell<Option<PushesWhenDropped>> = const { RefCell::new(None) });

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_logger_panics() {
    if !is_child() {
        return;
    }
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let engine = common::engine(kind, 2);
            let (logged, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let count = Arc::clone(&logged);
            log_to(move |text| {
                if text.contains("panicked outside") {
                    count.fetch_add(1, SeqCst);
                    resume_unwind(Box::new("the logger panics"));
                }
            });
            let (uncounted, count) = (engine.clone(), Arc::clone(&dropped));
            let sets = move |cx: &raddle::OpContext<'_>| {
                let _ = &uncounted;
                LOCAL.set(Some(PushesWhenDropped(cx.engine(), Arc::clone(&count))));
            };
            engine.push_sync(sets, [], []).expect("the engine should be open");
            panic_outside(&engine, || logged.load(SeqCst) >= 3);
            assert_both_work(&engine);
            engine.shutdown(Shutdown::Drain, None).expect("the engine should end");
            assert_eq!(dropped.load(SeqCst), 1);
        });
    }
}

/// While a worker logs a caught panic, the logger waits for an operation, which another thread runs.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_logger_may_push_and_wait_while_a_worker_reports_a_panic() {
    child_succeeds("in_a_child_the_logger_waits");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_logger_waits() {
    if !is_child() {
        return;
    }
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let engine = common::engine(kind, 2);
            let (inner, waits) = (engine.clone(), Journal::new());
            let journal = waits.clone();
            log_to(move |text| {
                if text.contains("panicked outside") {
                    let pushed = inner.op("by the logger").submit((), |()| 7).expect("the engine should be open");
                    journal.add(pushed.wait().map_err(|error| error.to_string()));
                }
            });
            panic_outside(&engine, || waits.len() >= 3);
            assert_both_work(&engine);
            assert!(waits.take().iter().all(|result| *result == Ok(7)));
            log_to(|_| {});
        });
    }
}

/// No thread can be started to run the worker of a waiting operation. The waiting operation regains its worker before
/// the warning about this is logged, so a wait in the logger is also refused instead of hanging.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_wait_in_the_logger_is_refused_when_no_thread_can_be_started() {
    child_succeeds("in_a_child_a_wait_in_the_logger_is_refused");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_wait_in_the_logger_is_refused() {
    thread_local!(static INSIDE: Cell<bool> = const { Cell::new(false) });
    if !is_child() {
        return;
    }
    on_kinds(&THREADED, 1, |engine| {
        let (inner, waits) = (engine.clone(), Journal::new());
        let (journal, other) = (waits.clone(), engine.clone());
        log_to(move |text| {
            assert!(text.contains("because no thread could be started"), "{text}");
            if !INSIDE.replace(true) {
                let mut pushed = other.op("by the logger").submit((), |()| ()).expect("the engine should be open");
                // This wait has a time limit, since it could otherwise run the operation in place.
                journal.add(pushed.wait_timeout(PATIENCE).map_err(|error| error.to_string()));
                INSIDE.set(false);
            }
        });
        let waiting = engine.op("waits").submit((), move |()| {
            let pushed = inner.op("another").submit((), |()| 7).expect("the engine should be open");
            let refused = {
                let _none = NoThreads::new();
                // This wait has a time limit for the same reason.
                inner.wait_for_var_timeout(pending(&inner), PATIENCE).map_err(|error| error.to_string())
            };
            (refused, pushed.wait())
        });
        let (refused, waited) = waiting.expect("the engine should be open").wait().expect("no operation should fail");
        let refusal = Err(WaitError::TooManyWaiting.to_string());
        assert_eq!(refused, refusal);
        assert_eq!(waited.expect("threads should start again"), 7);
        assert_eq!(waits.take(), [refusal]);
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// A function inside `blocking` cannot learn that it blocks its worker, so a line says so, once.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_function_that_blocks_its_worker_is_named_once() {
    let (success, text) = child("in_a_child_no_thread_can_be_started_for_functions_that_block", &[]);
    assert!(success, "{text}");
    assert_eq!(text.matches("blocks its worker inside `blocking`").count(), THREADED.len(), "{text}");
    assert!(text.contains("operation `reads` pushed at "), "{text}");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_no_thread_can_be_started_for_functions_that_block() {
    if !is_child() {
        return;
    }
    on_kinds(&THREADED, 1, |engine| {
        let reads = engine.op("reads").submit((), move |()| {
            let _none = NoThreads::new();
            (0..3).map(|n| raddle::blocking(|| n)).sum::<u32>()
        });
        assert_eq!(reads.expect("the engine should be open").wait().expect("no operation should fail"), 3);
    });
}

/// If a thread cannot be started, its number is released. Otherwise, 2,048 failed attempts would exhaust the numbers.
#[test]
fn threads_that_could_not_be_started_do_not_count() {
    child_succeeds("in_a_child_no_thread_can_be_started_for_a_while");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_no_thread_can_be_started_for_a_while() {
    if !is_child() {
        return;
    }
    on_kinds(&THREADED, 1, |engine| {
        let inner = engine.clone();
        let waiting = engine.op("waits").submit((), move |()| {
            let token = pending(&inner);
            {
                let _none = NoThreads::new();
                for _ in 0..2100 {
                    let refused = inner.wait_for_var_timeout(&token, PATIENCE).map_err(|error| error.to_string());
                    assert_eq!(refused, Err(WaitError::TooManyWaiting.to_string()));
                }
            }
            inner.wait_for_var_timeout(&token, PATIENCE).map_err(|error| error.to_string())
        });
        let waited = waiting.expect("the engine should be open").wait().expect("no operation should fail");
        assert_eq!(waited, Ok(()), "a thread can be started again");
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// The end of a scope tries again and again to hand over the worker, but not all the time. In between, it runs the
/// operations of the scope that have become ready.
#[test]
fn a_scope_ends_although_no_thread_can_be_started() {
    child_succeeds("in_a_child_no_thread_can_be_started_at_the_end_of_a_scope");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_no_thread_can_be_started_at_the_end_of_a_scope() {
    /// The number of attempts after which the scope's operation becomes ready.
    const ATTEMPTS: usize = 50;
    if !is_child() {
        return;
    }
    on_kinds(&THREADED, 1, |engine| {
        let (token, attempts) = (engine.token(), AtomicUsize::new(0));
        let gate = common::hold(&engine, &token);
        log_to(move |text| {
            assert!(text.contains("because no thread could be started"), "{text}");
            if attempts.fetch_add(1, SeqCst) + 1 == ATTEMPTS {
                gate.open();
            }
        });
        let inner = engine.clone();
        let around = engine.op("around").submit((), move |()| {
            let (mut ran, start) = (false, Instant::now());
            let _none = NoThreads::new();
            let result = inner.scope(|s| {
                let ran = s.lend(&mut ran);
                s.op("inside").reads([&token]).push(ran.write(), |ran| *ran = true).expect("the scope should be open");
            });
            (result.map_err(|error| error.to_string()), ran, start.elapsed())
        });
        let (result, ran, took) = around.expect("the engine should be open").wait().expect("no operation should fail");
        assert_eq!((result, ran), (Ok(()), true));
        // An attempt takes place once per millisecond, with few exceptions.
        assert!(took >= Duration::from_millis(ATTEMPTS as u64 / 2), "{ATTEMPTS} attempts within {took:?}");
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// Little stack is left, and no thread can be started that would have another.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_deferred_operation_runs_although_there_is_no_other_stack() {
    child_succeeds("in_a_child_there_is_no_other_stack");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_there_is_no_other_stack() {
    if !is_child() {
        return;
    }
    common::watched(|| {
        let engine = common::engine(EngineKind::Naive, 1);
        common::at_the_first_deferred_push(&engine, |next| {
            let _none = NoThreads::new();
            next.wait().expect("no operation should fail");
        });
        // A panic in the function above is the failure of an operation.
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// The call pushes an operation whose turn comes when no thread is waiting for it any longer.
#[test]
fn a_call_of_with_that_cannot_wait_releases_its_variable() {
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(1);
        let mut before = block_on(engine.acquire(value.write())).expect("the variable should be idle");
        let (inner, same) = (engine.clone(), value.clone());
        let waiting = engine.op("waits").submit((), move |()| {
            let _none = NoThreads::new();
            inner.with(&same, |value| *value).map_err(|error| error.to_string())
        });
        let refused = waiting.expect("the engine should be open").wait().expect("no operation should fail");
        assert_eq!(refused, Err(WaitError::TooManyWaiting.to_string()));
        *before += 1;
        drop(before);
        engine.op("after").push(value.write(), |value| *value += 1).expect("the engine should be open");
        assert_eq!(engine.get_timeout(&value, PATIENCE).expect("the variable should be released"), 3);
        engine.wait_for_all().expect("no operation should fail");
    });
}

#[test]
fn a_replacement_that_cannot_wait_leaves_the_value_unchanged() {
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(String::from("precious"));
        let before = block_on(engine.acquire(value.write())).expect("the variable should be idle");
        let (inner, same) = (engine.clone(), value.clone());
        let waiting = engine.op("waits").submit((), move |()| {
            let _none = NoThreads::new();
            [inner.take(&same), inner.replace(&same, String::from("new"))].map(|result| result.map_err(|_| ()))
        });
        let refused = waiting.expect("the engine should be open").wait().expect("no operation should fail");
        assert_eq!(refused, [Err(()), Err(())]);
        drop(before);
        assert_eq!(engine.get(&value).expect("the variable should be released"), "precious");
        assert_eq!(value.version(), 1, "a refused call has mutated the variable");
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// Returns a variable with a pending operation that cannot run until this thread hands over its worker.
fn pending(engine: &Engine) -> Token {
    let token = engine.token();
    engine.push_sync(|_| {}, [], [&token]).expect("the engine should be open");
    token
}

/// The thread of the first worker can be started, but no further one.
#[test]
fn the_threads_of_an_engine_that_could_not_be_built_end() {
    child_succeeds("in_a_child_an_engine_cannot_be_built");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_an_engine_cannot_be_built() {
    if !is_child() {
        return;
    }
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let before = thread_count();
            thread::spawn(|| ()).join().expect("the thread should not panic");
            let log = Log::new();
            let builder = || Engine::builder().kind(kind).workers(2).pin(false).log(&log);
            let built = {
                let mut none = NoThreads::new();
                none.let_one_start();
                builder().build()
            };
            assert!(matches!(built, Err(BuildError::Thread(_))), "{built:?}");
            wait_for_thread_count(before);
            builder().build().expect("the threads and the log are free");
        });
    }
}

/// The workers that were laid aside receive threads at the next start.
#[test]
fn a_start_that_could_not_start_threads_can_be_repeated() {
    child_succeeds("in_a_child_a_stopped_engine_cannot_start");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_stopped_engine_cannot_start() {
    if !is_child() {
        return;
    }
    on_kinds(&THREADED, 2, |engine| {
        engine.stop(None).expect("the engine should stop");
        let started = {
            let _none = NoThreads::new();
            engine.start()
        };
        assert!(matches!(started, Err(BuildError::Thread(_))), "{started:?}");
        engine.start().expect("threads should start again");
        assert_both_work(&engine);
        engine.stop(Some(common::SOON)).expect("the engine should stop again");
    });
}

/// A lane without a thread does not delay stops.
#[test]
fn an_engine_stops_although_the_thread_of_a_device_lane_could_not_be_started() {
    child_succeeds("in_a_child_the_thread_of_a_device_lane_cannot_be_started");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_thread_of_a_device_lane_cannot_be_started() {
    if !is_child() {
        return;
    }
    on_kinds(&THREADED, 1, |plain| {
        let builder = Engine::builder().kind(plain.kind()).workers(1).pin(false).gpu(SimulatedGpu::new());
        let engine = builder.build().expect("an engine");
        let launch = || engine.op("launch").on(Device::Gpu(0)).launch_any((), |_, ()| ());
        {
            let _none = NoThreads::new();
            assert_eq!(launch(), Err(PushError::DeviceUnavailable(Device::Gpu(0))));
        }
        engine.stop(Some(common::SOON)).expect("the engine should stop");
        engine.start().expect("threads should start");
        launch().expect("the thread of the lane should start");
        engine.wait_for_all().expect("no operation should fail");
        engine.stop(Some(common::SOON)).expect("the engine should stop again");
    });
}

// ---------------------------------------------------------------------------------------------- spare threads ----

/// Nests `depth` waits, each in an operation that hands its worker to another thread.
fn nest(engine: &Engine, depth: usize) -> Result<usize, WaitError> {
    let inner = engine.clone();
    let next = engine.op("nest").submit_any((), move |()| if depth == 0 { Ok(0) } else { nest(&inner, depth - 1) });
    // This wait has a time limit, since it could otherwise run the operation in place.
    Ok(1 + next.expect("the engine should be open").wait_timeout(PATIENCE)?)
}

#[test]
#[cfg_attr(miri, ignore = "takes ten seconds")]
fn threads_started_for_waits_end_when_idle() {
    child_succeeds("in_a_child_threads_started_for_waits_end_when_idle");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_threads_started_for_waits_end_when_idle() {
    const DEPTH: usize = 50;
    if !is_child() {
        return;
    }
    common::watched(|| {
        let engines = THREADED.map(|kind| common::engine(kind, 1));
        let before = thread_count();
        for _ in 0..2 {
            let start = Instant::now();
            for engine in &engines {
                assert_eq!(nest(engine, DEPTH).expect("no operation should fail"), DEPTH + 1);
            }
            let after = thread_count();
            assert!(after > before + DEPTH - 10, "{after} threads after the waits, {before} before");
            // A wait that needs a thread reuses an idle one.
            if start.elapsed() < Duration::from_secs(5) {
                assert_eq!(nest(&engines[0], DEPTH / 2).expect("no operation should fail"), DEPTH / 2 + 1);
                assert!(thread_count() <= after, "a thread was started while others were idle");
            }
            wait_for_thread_count(before);
            assert!(start.elapsed() > Duration::from_secs(8), "the threads ended too soon: {:?}", start.elapsed());
        }
        // The engines still run operations.
        for engine in &engines {
            let value = engine.var(0);
            for _ in 0..1000 {
                engine.op("").push(value.write(), |value| *value += 1).expect("the engine should be open");
            }
            assert_eq!(engine.get(&value).expect("no operation should fail"), 1000);
        }
    });
}

/// A workload that needs only a few threads at a time keeps only that many; the others end although waits continue.
#[test]
#[cfg_attr(miri, ignore = "takes ten seconds")]
fn surplus_threads_end_while_a_smaller_load_continues() {
    child_succeeds("in_a_child_a_smaller_load_continues");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_smaller_load_continues() {
    if !is_child() {
        return;
    }
    common::watched(|| {
        let engine = common::engine(EngineKind::PerDevice, 1);
        let before = thread_count();
        assert_eq!(nest(&engine, 50).expect("no operation should fail"), 51);
        assert!(thread_count() > before + 40);
        eventually("most threads have ended", || {
            (0..10).for_each(|_| assert_eq!(nest(&engine, 1).expect("no operation should fail"), 2));
            thread_count() <= before + 5
        });
        let gate = Gate::new();
        gate.open();
    });
}

// ------------------------------------------------------------------------- functions for the start and end of threads ----

/// Threads call the functions first and last: workers, those of GPUs, and those that run operations while others wait.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn each_thread_calls_the_functions_for_its_start_and_end() {
    thread_local!(static STARTED: Cell<bool> = const { Cell::new(false) });
    let counts = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let [start, end] = [0, 1].map(|at| (Arc::clone(&counts), at));
    let engine = Engine::builder()
        .kind(EngineKind::PerDevice)
        .workers(1)
        .gpu(SimulatedGpu::new())
        .on_thread_start(move || {
            assert!(!STARTED.replace(true), "a thread starts twice");
            start.0[start.1].fetch_add(1, SeqCst);
        })
        .on_thread_end(move || {
            assert!(STARTED.get(), "a thread ends that has not started");
            end.0[end.1].fetch_add(1, SeqCst);
        })
        .build()
        .unwrap();
    let weak = engine.downgrade();
    // The only worker waits, so another thread runs `inner`.
    let outer = engine.op("outer").submit((), move |()| {
        let mut inner = weak.op("inner").submit((), |()| STARTED.get()).unwrap();
        inner.wait_timeout(PATIENCE).unwrap() && STARTED.get()
    });
    assert!(outer.unwrap().wait().unwrap());
    let on_gpu = engine.op("on a gpu").on(Device::Gpu(0)).submit(raddle::stream(), |_| STARTED.get());
    assert!(on_gpu.unwrap().wait().unwrap());
    engine.shutdown(Shutdown::Drain, None).unwrap();
    let [started, ended] = [0, 1].map(|at| counts[at].load(SeqCst));
    assert!(started >= 6 && started == ended, "{started} started, {ended} ended");
}

#[test]
fn a_function_for_the_start_of_threads_may_push_and_panic_but_not_wait() {
    let pushed = Arc::new(AtomicUsize::new(0));
    let (given, refused) = (Arc::new(std::sync::OnceLock::<WeakEngine>::new()), Arc::new(AtomicUsize::new(0)));
    let (in_start, counts, errors) = (Arc::clone(&given), Arc::clone(&pushed), Arc::clone(&refused));
    let engine = Engine::builder().kind(EngineKind::Pooled).workers(1).on_thread_start(move || {
        // Only spare threads start once the engine is known.
        let Some(engine) = in_start.get() else { return };
        let counts = Arc::clone(&counts);
        engine.op("pushed").push((), move |()| _ = counts.fetch_add(1, SeqCst)).unwrap();
        if let Err(WaitError::InObserver) = engine.wait_for_all() {
            errors.fetch_add(1, SeqCst);
        }
        resume_unwind(Box::new("for the log"));
    });
    let engine = engine.build().unwrap();
    given.set(engine.downgrade()).unwrap();
    let weak = engine.downgrade();
    let outer = engine.op("outer").submit((), move |()| {
        let mut inner = weak.op("inner").submit((), |()| {}).unwrap();
        inner.wait_timeout(PATIENCE)
    });
    outer.unwrap().wait().unwrap().unwrap();
    engine.wait_for_all().unwrap();
    assert!(pushed.load(SeqCst) > 0 && pushed.load(SeqCst) == refused.load(SeqCst));
}
