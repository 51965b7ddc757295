//! The end of an engine: a shutdown meets its deadline even if the program's functions block, and dropping the last
//! handle, on whatever thread, ends the engine's threads.

#![cfg_attr(miri, allow(unused))]

use raddle_testkit as common;
use raddle_testkit::logger;
#[cfg(target_os = "linux")]
use raddle_testkit::no_threads;

use std::{
    cell::RefCell,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use common::shapes::*;
use common::{
    AWHILE, Gate, KINDS, MOMENT, Meeting, PATIENCE, SOON, THREADED, child_succeeds, eventually, is_child, on_kinds,
    watched,
};
use logger::log_to;
use raddle::{Engine, OpContext, Shutdown, error::ShutdownError};

/// Shuts the engine down repeatedly until only the threads in `names` remain. Each attempt that does not time out must
/// report all of these.
#[track_caller]
fn assert_leaves<const N: usize>(engine: &Engine, how: Shutdown, names: [&str; N]) {
    // The first attempts do not wait; later ones give the other threads time to end.
    for time in [Duration::ZERO, MOMENT] {
        eventually("the other threads have ended", || match engine.shutdown(how, Some(time)) {
            Err(ShutdownError::ThreadsLeft(left)) => {
                for name in names {
                    assert!(left.iter().any(|left| left == name), "{name} is not among the reported threads {left:?}");
                }
                time.is_zero() || left.len() == N
            }
            Err(ShutdownError::TimedOut) => false,
            other => panic!("expected `ThreadsLeft`, got {other:?}"),
        });
    }
}

/// A value whose drop blocks until the gate is opened.
struct Blocks(Gate);

impl Drop for Blocks {
    fn drop(&mut self) {
        self.0.pass();
    }
}

/// Makes the calling thread block when it ends, until the gate is opened.
fn block_at_the_end(gate: Gate) {
    thread_local!(static LOCAL: RefCell<Option<Blocks>> = const { RefCell::new(None) });
    LOCAL.set(Some(Blocks(gate)));
}

/// Pushes an asynchronous operation that completes while its function runs. The function returns only when the returned
/// gate is opened.
fn start_long_function(engine: &Engine) -> Gate {
    let gate = Gate::new();
    let inside = gate.clone();
    let function = move |_: &OpContext<'_>, done: raddle::Completion| {
        done.complete();
        inside.pass();
    };
    engine.op("long").push_async_any(raddle::cx(), function).expect("the engine should be open");
    engine.wait_for_all().expect("no operation should fail");
    gate
}

// These tests open the gate after the shutdown has returned, so a shutdown that waits for the function would hang.

#[test]
fn a_deadline_holds_while_an_asynchronous_function_runs_past_its_completion() {
    on_kinds(&THREADED, 1, |engine| {
        let gate = start_long_function(&engine);
        for how in [Shutdown::Drain, Shutdown::Cancel] {
            assert_leaves(&engine, how, ["raddle-cpu-0"]);
        }
        gate.open();
        // A later shutdown still waits for the function.
        engine.shutdown(Shutdown::Drain, Some(PATIENCE)).expect("the function should return");
        engine.shutdown(Shutdown::Drain, Some(Duration::ZERO)).expect("all threads should have ended");
    });
}

#[test]
fn a_deadline_holds_while_a_thread_local_destructor_blocks() {
    on_kinds(&THREADED, 1, |engine| {
        let gate = Gate::new();
        let inside = gate.clone();
        engine.push_sync(move |_| block_at_the_end(inside.clone()), [], []).expect("the engine should be open");
        assert_leaves(&engine, Shutdown::Drain, ["raddle-cpu-0"]);
        gate.open();
        engine.shutdown(Shutdown::Drain, None).expect("the destructor should return");
    });
}

#[test]
fn a_deadline_holds_while_two_thread_local_destructors_block_and_both_threads_are_named() {
    on_kinds(&THREADED, 2, |engine| {
        let (gate, meeting) = (Gate::new(), Meeting::new(2));
        for _ in 0..2 {
            let (gate, meeting) = (gate.clone(), meeting.clone());
            let blocks = move |_: &OpContext<'_>| {
                block_at_the_end(gate);
                meeting.join();
            };
            engine.op("blocks").push_sync(blocks).expect("the engine should be open");
        }
        assert_leaves(&engine, Shutdown::Drain, ["raddle-cpu-0", "raddle-cpu-1"]);
        gate.open();
        engine.shutdown(Shutdown::Drain, None).expect("the destructors should return");
    });
}

#[test]
fn a_deadline_holds_while_another_thread_is_inside_a_shutdown() {
    on_kinds(&THREADED, 1, |engine| {
        let gate = start_long_function(&engine);
        thread::scope(|scope| {
            let entered = Gate::new();
            let other = scope.spawn({
                let (engine, entered) = (engine.clone(), entered.clone());
                move || {
                    entered.open();
                    engine.shutdown(Shutdown::Drain, None)
                }
            });
            entered.pass();
            for _ in 0..10 {
                assert_leaves(&engine, Shutdown::Drain, ["raddle-cpu-0"]);
            }
            gate.open();
            other.join().expect("the thread should not panic").expect("the function should return");
        });
        engine.shutdown(Shutdown::Drain, Some(Duration::ZERO)).expect("all threads should have ended");
    });
}

/// A thread left behind keeps the engine alive, and only an explicit shutdown waits for that thread.
#[test]
fn threads_left_behind_keep_the_engine_alive_and_its_drop_does_not_wait_for_them() {
    on_kinds(&THREADED, 1, |engine| {
        let (gate, (sender, receiver)) = (Gate::new(), mpsc::channel());
        let (inside, value) = (gate.clone(), engine.var(7));
        let function = move |cx: &OpContext<'_>, done: raddle::Completion| {
            done.complete();
            inside.pass();
            sender
                .send(cx.engine().get(&value).expect("the variable should still be readable"))
                .expect("the test should keep the receiver");
        };
        engine.op("long").push_async_any(raddle::cx(), function).expect("the engine should be open");
        engine.wait_for_all().expect("no operation should fail");
        assert_leaves(&engine, Shutdown::Cancel, ["raddle-cpu-0"]);
        drop(engine);
        gate.open();
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(7));
    });
}

// ----------------------------------------------------------------------------------------------------- loggers ----

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_deadline_holds_while_the_logger_blocks() {
    child_succeeds("in_a_child_the_logger_blocks");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_logger_blocks() {
    if !is_child() {
        return;
    }
    on_kinds(&KINDS, 1, |engine| {
        let (gate, logged) = (Gate::new(), Arc::new(AtomicUsize::new(0)));
        let (inside, count) = (gate.clone(), Arc::clone(&logged));
        log_to(move |text| {
            assert!(text.contains("never reported"), "{text}");
            count.fetch_add(1, SeqCst);
            inside.pass();
        });
        engine.op("fails").push_sync(|_: &OpContext<'_>| panic!("on purpose")).expect("the engine should be open");
        assert_leaves(&engine, Shutdown::Drain, ["raddle-shutdown"]);
        gate.open();
        engine.shutdown(Shutdown::Drain, None).expect("the logger should return");
        assert_eq!(logged.load(SeqCst), 1);
    });
}

/// The logger's action on a handle to the engine that logs the warning.
type Act = fn(Engine, mpsc::Sender<Result<(), ShutdownError>>);

/// A value whose drop shuts the engine down.
struct ShutsDown(Engine, mpsc::Sender<Result<(), ShutdownError>>);

impl Drop for ShutsDown {
    fn drop(&mut self) {
        let _ = self.1.send(self.0.shutdown(Shutdown::Drain, None));
    }
}

thread_local!(static AT_THE_END: RefCell<Option<ShutsDown>> = const { RefCell::new(None) });

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_logger_that_shuts_down_the_warning_engine_does_not_wait_for_itself() {
    child_succeeds("in_a_child_the_logger_shuts_the_engine_down");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_logger_shuts_the_engine_down() {
    const ACTS: [(&str, Act); 4] = [
        ("shuts down", |engine, results| drop(ShutsDown(engine, results))),
        ("drops the last handle", |engine, _| drop(engine)),
        ("shuts down when its thread ends", |engine, results| AT_THE_END.set(Some(ShutsDown(engine, results)))),
        ("shuts down with a deadline", |engine, results| {
            let _ = results.send(engine.shutdown(Shutdown::Drain, Some(AWHILE)));
        }),
    ];
    if !is_child() {
        return;
    }
    for (what, act) in ACTS {
        for limit in [Some(AWHILE), None] {
            on_kinds(&KINDS, 1, move |engine| {
                println!("{what}, {limit:?}");
                let (sender, handles) = mpsc::channel();
                engine.push_sync(move |cx| _ = sender.send(cx.engine()), [], []).expect("the engine should be open");
                let uncounted = handles.recv_timeout(PATIENCE).expect("the operation should run");
                let (results, received) = mpsc::channel();
                let last = Mutex::new(Some((engine, results)));
                uncounted
                    .op("fails")
                    .push_sync(|_: &OpContext<'_>| panic!("on purpose"))
                    .expect("the engine should be open");
                log_to(move |text| {
                    assert!(text.contains("never reported"), "{text}");
                    let (engine, results) = common::lock(&last).take().expect("the engine should log one warning");
                    act(engine, results);
                });
                // This runs on a separate thread; when the thread ends, it drops the thread-local that the logger may
                // set.
                let ends = move || {
                    let first = uncounted.shutdown(Shutdown::Drain, limit);
                    (first, uncounted)
                };
                let (first, uncounted) = thread::spawn(ends).join().expect("the thread should not panic");
                assert_eq!(first, Ok(()), "{what}");
                // A shutdown inside the logger returns `InsideOperation` and continues in the background. One in a
                // thread-local's destructor, at the end of a program thread, waits and returns `Ok`.
                for result in received {
                    assert!(matches!(result, Ok(()) | Err(ShutdownError::InsideOperation)), "{what}: {result:?}");
                }
                assert_eq!(uncounted.shutdown(Shutdown::Drain, None), Ok(()), "{what}");
                assert_eq!(uncounted.shutdown(Shutdown::Drain, Some(Duration::ZERO)), Ok(()), "{what}");
            });
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn operations_cancelled_by_a_shutdown_cause_no_warning() {
    child_succeeds("in_a_child_operations_are_cancelled");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_operations_are_cancelled() {
    if !is_child() {
        return;
    }
    on_kinds(&KINDS, 1, |engine| {
        for fails in [false, true] {
            let engine = common::engine(engine.kind(), 1);
            let logged = Arc::new(Mutex::new(Vec::new()));
            let log = Arc::clone(&logged);
            log_to(move |text| log.lock().expect("no thread should panic").push(text.to_owned()));
            let token = engine.token();
            if fails {
                engine
                    .op("fails")
                    .push_sync(|_: &OpContext<'_>| panic!("on purpose"))
                    .expect("the engine should be open");
            }
            let gate = common::hold(&engine, &token);
            engine.op("cancelled").writes([&token]).push_sync(|_| ()).expect("the engine should be open");
            engine.notify_shutdown();
            gate.open();
            engine.shutdown(Shutdown::Cancel, None).expect("the engine should end");
            let logged = std::mem::take(&mut *logged.lock().expect("no thread should panic"));
            assert_eq!(logged.len(), usize::from(fails), "{logged:?}");
            assert!(logged.iter().all(|text| text.contains("on purpose")), "{logged:?}");
        }
    });
}

// ----------------------------------------------------------------------- background ends, and no new threads ----

#[cfg(target_os = "linux")]
mod without_threads {
    use super::*;
    use common::{thread_count, wait_for_thread_count};
    use no_threads::NoThreads;

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn a_deadline_holds_when_no_joining_thread_can_be_started() {
        child_succeeds("without_threads::in_a_child_no_joining_thread_can_be_started");
    }

    #[test]
    #[ignore = "run by another test in a separate process"]
    fn in_a_child_no_joining_thread_can_be_started() {
        if !is_child() {
            return;
        }
        on_kinds(&THREADED, 1, |engine| {
            let gate = start_long_function(&engine);
            {
                let _none = NoThreads::new();
                assert_leaves(&engine, Shutdown::Drain, ["raddle-cpu-0"]);
                gate.open();
                engine.shutdown(Shutdown::Drain, Some(PATIENCE)).expect("the function should return");
            }
            engine.shutdown(Shutdown::Drain, None).expect("all threads should have ended");
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn a_thread_in_a_destructor_is_named_when_no_joining_thread_can_be_started() {
        child_succeeds("without_threads::in_a_child_a_thread_inside_a_destructor_cannot_be_joined");
    }

    #[test]
    #[ignore = "run by another test in a separate process"]
    fn in_a_child_a_thread_inside_a_destructor_cannot_be_joined() {
        if !is_child() {
            return;
        }
        on_kinds(&THREADED, 1, |engine| {
            let gate = Gate::new();
            let inside = gate.clone();
            engine.push_sync(move |_| block_at_the_end(inside.clone()), [], []).expect("the engine should be open");
            engine.wait_for_all().expect("no operation should fail");
            {
                let _none = NoThreads::new();
                assert_leaves(&engine, Shutdown::Drain, ["raddle-cpu-0"]);
                gate.open();
                engine.shutdown(Shutdown::Drain, Some(PATIENCE)).expect("the destructor should return");
            }
            engine.shutdown(Shutdown::Drain, Some(Duration::ZERO)).expect("all threads should have ended");
        });
    }

    /// An error whose drop shows that the engine holding the error is gone.
    #[derive(Debug)]
    struct Noted(Arc<AtomicBool>);

    impl fmt::Display for Noted {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("on purpose")
        }
    }

    impl std::error::Error for Noted {}

    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn dropping_the_last_handle_inside_an_operation_ends_the_workers_when_no_thread_can_be_started() {
        child_succeeds("without_threads::in_a_child_the_last_handle_is_dropped_inside");
    }

    #[test]
    #[ignore = "run by another test in a separate process"]
    fn in_a_child_the_last_handle_is_dropped_inside() {
        const CHAIN: usize = 200;
        /// Pushes a chain of `left` further operations, each from within the previous one.
        fn chain(cx: &OpContext<'_>, left: usize, ran: &Arc<AtomicUsize>) {
            ran.fetch_add(1, SeqCst);
            if left > 0 {
                let ran = Arc::clone(ran);
                let next = move |cx: &OpContext<'_>| chain(cx, left - 1, &ran);
                cx.engine()
                    .push_sync(next, [], [])
                    .expect("operations should be allowed to push while the engine drains");
            }
        }
        if !is_child() {
            return;
        }
        watched(|| {
            let before = thread_count();
            for kind in THREADED {
                let (ran, gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
                let (start, over) = (Gate::new(), Gate::new());
                {
                    let engine = common::engine(kind, 2);
                    let noted = Noted(Arc::clone(&gone));
                    engine.op("fails").push_any((), |()| Err::<(), _>(noted)).expect("the engine should be open");
                    let (last, ran) = (Mutex::new(Some(engine.clone())), Arc::clone(&ran));
                    let (started, over) = (start.clone(), over.clone());
                    let drops = move |cx: &OpContext<'_>| {
                        started.pass();
                        let none = NoThreads::new();
                        drop(common::lock(&last).take());
                        drop(none);
                        over.open();
                        chain(cx, CHAIN, &ran);
                    };
                    engine.op("drops").push_sync(drops).expect("the engine should be open");
                    // This handle is dropped first, without waiting.
                    drop(engine);
                    start.open();
                }
                over.pass();
                wait_for_thread_count(before);
                assert_eq!(ran.load(SeqCst), CHAIN + 1, "{kind}");
                assert!(gone.load(SeqCst), "the {kind} engine was not dropped");
            }
        });
    }

    /// The shutdown is called on a handle that does not keep the engine open.
    #[test]
    fn an_explicit_shutdown_joins_the_background_end_of_the_engine() {
        on_kinds(&THREADED, 2, |engine| {
            let (sender, receiver) = mpsc::channel();
            let last = Mutex::new(Some(engine.clone()));
            let drops = move |cx: &OpContext<'_>| {
                sender.send(cx.engine()).expect("the test should keep the receiver");
                drop(common::lock(&last).take());
            };
            engine.op("drops").push_sync(drops).expect("the engine should be open");
            let uncounted = receiver.recv_timeout(PATIENCE).expect("the operation should run");
            drop(engine);
            let start = Instant::now();
            uncounted.shutdown(Shutdown::Drain, Some(PATIENCE)).expect("the shutdown should end in time");
            assert!(start.elapsed() < PATIENCE);
        });
    }
}

/// The profile goes to a pipe that nobody reads, so its thread blocks.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn a_shutdown_that_must_not_block_does_not_wait_for_the_profile() {
    use std::{io::Read, os::unix::fs::OpenOptionsExt};

    for kind in KINDS {
        watched(move || {
            let path = std::env::temp_dir().join(format!("raddle-pipe-{}-{kind}.json", std::process::id()));
            let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            // SAFETY: the name is a string.
            assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
            let mut options = std::fs::OpenOptions::new();
            let mut pipe = options.read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
            let engine = Engine::builder().kind(kind).workers(1).pin(false).profile(&path).build().unwrap();
            let x = engine.var(0);
            for _ in 0..5_000 {
                engine.op("add").push(x.write(), |x| *x += 1).unwrap();
            }
            engine.wait_for_all().unwrap();
            drop(x);
            let (sender, receiver) = mpsc::channel();
            let thread = thread::spawn(move || {
                pollster::block_on(engine.shutdown_async(Shutdown::Drain)).unwrap();
                sender.send(()).unwrap();
                // Waits until the profile has been written.
                drop(engine);
            });
            let has_ended = receiver.recv_timeout(SOON).is_ok();
            let (mut text, mut part) = (Vec::new(), [0; 4096]);
            loop {
                let is_last = thread.is_finished();
                match pipe.read(&mut part) {
                    Ok(0) | Err(_) if is_last => break,
                    Ok(0) | Err(_) => thread::sleep(Duration::from_millis(1)),
                    Ok(count) => text.extend_from_slice(&part[..count]),
                }
            }
            std::fs::remove_file(&path).unwrap();
            assert!(has_ended, "{kind}: the shutdown waited for the profile");
            assert!(text.trim_ascii_end().ends_with(b"]"), "{kind}: the profile is not complete");
        });
    }
}
