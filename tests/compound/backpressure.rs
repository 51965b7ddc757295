//! Limits on pending operations: `max_pending` of engines and groups.

use raddle_testkit as common;

use std::{
    cell::Cell,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use common::{
    Droppable, Drops, Gate, KINDS, MOMENT, NotInTime, PATIENCE, SOON, THREADED, block_on, block_on_within,
    child_succeeds, eventually, hold, lock, occupy, on_kinds, program::fewer, resident_bytes, watched, watched_for,
};
use raddle::{
    Completion, Device, Engine, EngineKind, IdlePolicy, OpBuilder, Operator, PushError, Shutdown, Var, WeakEngine,
    chosen, completion, cx,
    error::NoAccess,
    gpu::SimulatedGpu,
    stream,
    trace::{ObservedOp, Observer},
};

/// The number of operations by which one thread may exceed a limit: the documented 32, and a margin of one.
const EXCESS: u64 = 33;

fn limited(kind: EngineKind, workers: usize, limit: usize) -> Engine {
    Engine::builder().kind(kind).workers(workers).pin(false).max_pending(limit).build().expect("an engine")
}

/// Runs `f` under the watchdog once for each of `kinds`, on an engine with `workers` workers and the limit `limit`.
#[track_caller]
fn on_limited(kinds: &[EngineKind], workers: usize, limit: usize, f: impl Fn(Engine) + Clone + Send + 'static) {
    for &kind in kinds {
        let f = f.clone();
        watched(move || {
            println!("on the {kind} engine, with {workers} workers and a limit of {limit}");
            f(limited(kind, workers, limit));
        });
    }
}

/// Two waits become ready at the same time. The first one makes room when it ends. This wakes a future, whose waker
/// waits for the second.
#[test]
fn a_waker_told_of_room_may_wait_for_what_became_ready_with_it() {
    struct WaitsFor(Engine, Var<u64>, mpsc::Sender<()>);
    impl Wake for WaitsFor {
        fn wake(self: Arc<Self>) {
            self.0.wait_for_var(&self.1).unwrap();
            let _ = self.2.send(());
        }
    }
    on_limited(&THREADED, 1, 3, |engine| {
        let (x, y) = (engine.var(0_u64), engine.var(0));
        let (engine, gate) = (&engine, Gate::new());
        let closed = gate.clone();
        engine.op("before both").push((x.write(), y.write()), move |_| closed.pass()).unwrap();
        thread::scope(|scope| {
            for (var, pending) in [(&x, 2), (&y, 3)] {
                scope.spawn(move || engine.wait_for_var(var).unwrap());
                eventually("the wait is pending", || engine.pending() == pending);
            }
            let (sender, woken) = mpsc::channel();
            let waker = Waker::from(Arc::new(WaitsFor(engine.clone(), y.clone(), sender)));
            let mut room = pin!(engine.op("later").when_room());
            assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            gate.open();
            assert!(woken.recv_timeout(SOON).is_ok(), "the waker waits for a wait on its own stack");
        });
    });
}

/// A waker that counts its wake-ups.
#[derive(Default)]
struct CountWakes(AtomicUsize);

impl CountWakes {
    fn count(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Pushes an asynchronous operation. Returns its completion once the operation has started.
fn open_ended(engine: &Engine) -> Completion {
    let (sender, receiver) = mpsc::channel();
    engine.op("open-ended").push(completion(), move |done| sender.send(done).unwrap()).unwrap();
    receiver.recv_timeout(PATIENCE).expect("the operation should start")
}

/// Fills an engine with operations that wait for the returned completion. Once the first operation's function has
/// returned, none of them is ready or running.
fn fill(engine: &Engine, limit: usize) -> (Completion, raddle::Token) {
    let token = engine.token();
    let (sender, receiver) = mpsc::channel();
    engine.op("first").writes([&token]).push(completion(), move |done| sender.send(done).unwrap()).unwrap();
    let done = receiver.recv_timeout(PATIENCE).expect("the operation should start");
    for _ in 1..limit {
        engine.op("behind").writes([&token]).push((), |()| {}).unwrap();
    }
    (done, token)
}

fn is_full<T>(result: Result<T, PushError>) -> bool {
    matches!(result.map(drop), Err(PushError::Full))
}

// --------------------------------------------------------------------------------------------- a push that waits ----

#[test]
fn a_producer_that_is_faster_than_the_workers_keeps_to_the_limit() {
    for limit in [1, 2, 7, 100] {
        on_limited(&THREADED, 1, limit, move |engine| {
            let total = engine.var(0);
            let (mut most, count) = (0, fewer(1_500));
            for _ in 0..count {
                engine
                    .op("add")
                    .push(total.write(), |total| {
                        *total += 1;
                        let start = Instant::now();
                        while start.elapsed() < Duration::from_micros(50) {
                            std::hint::spin_loop();
                        }
                    })
                    .unwrap();
                most = most.max(engine.pending());
            }
            assert!(most <= limit as u64 + 1, "{most} were pending, with a limit of {limit}");
            assert!(limit < 100 || most >= 50, "only {most} were pending");
            assert_eq!(engine.get(&total).unwrap(), count);
        });
    }
}

#[test]
fn several_producers_exceed_the_limit_by_at_most_what_is_documented() {
    const PRODUCERS: u64 = 4;
    for limit in [1u64, 50, 400] {
        on_limited(&THREADED, 2, limit as usize, move |engine| {
            let vars: Vec<_> = (0..8).map(|_| engine.var(0u64)).collect();
            // `Engine::pending` may overestimate if the calling thread is preempted while it sums the counts, so the
            // test keeps a count of its own.
            let (most, pending) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
            thread::scope(|scope| {
                for producer in 0..PRODUCERS as usize {
                    let (engine, vars, most, pending) = (&engine, &vars, &most, Arc::clone(&pending));
                    scope.spawn(move || {
                        for n in 0..fewer(4_000) {
                            // The operation is counted before its push, so the count includes held-back pushes.
                            most.fetch_max(pending.fetch_add(1, Relaxed) + 1, Relaxed);
                            let pending = Arc::clone(&pending);
                            let add = move |value: &mut u64| {
                                *value += 1;
                                pending.fetch_sub(1, Relaxed);
                            };
                            engine.op("add").push(vars[(n + producer) % 8].write(), add).unwrap();
                        }
                    });
                }
            });
            engine.wait_for_all().unwrap();
            let most = most.into_inner();
            let excess = if limit < 4 { 2 } else { EXCESS };
            assert!(most <= limit + PRODUCERS * (excess + 1), "{most} were pending, with a limit of {limit}");
            let sum: u64 = vars.iter().map(|var| engine.get(var).unwrap()).sum();
            assert_eq!(sum, PRODUCERS * fewer(4_000) as u64);
        });
    }
}

#[test]
fn a_push_that_is_held_back_runs_ready_operations() {
    on_limited(&THREADED, 1, 4, |engine| {
        let gate = occupy(&engine, 1);
        let ran = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..20 {
            let ran = Arc::clone(&ran);
            engine.op("quick").push((), move |()| lock(&ran).push(thread::current().id())).unwrap();
        }
        let here = lock(&ran).clone();
        assert!(here.len() >= 16 && here.iter().all(|id| *id == thread::current().id()), "{here:?}");
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!(lock(&ran).len(), 20);
    });
}

#[test]
fn operations_with_handles_priorities_and_properties_run_in_a_push_that_is_held_back() {
    on_limited(&THREADED, 1, 3, |engine| {
        let gate = occupy(&engine, 1);
        let handles: Vec<_> = (0..30)
            .map(|n| {
                let op = engine
                    .op("n")
                    .priority([0, 5, -5][n % 3])
                    .property([raddle::Property::Normal, raddle::Property::CopyToGpu][n % 2]);
                op.submit((), move |()| n).unwrap()
            })
            .collect();
        gate.open();
        for (n, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.wait().unwrap(), n);
        }
    });
}

#[test]
fn a_push_waits_while_something_runs_and_nothing_is_ready() {
    on_limited(&THREADED, 1, 2, |engine| {
        let token = engine.token();
        let (gate, started) = (Gate::new(), Gate::new());
        let (inside, begins) = (gate.clone(), started.clone());
        engine
            .op("runs")
            .writes([&token])
            .push((), move |()| {
                begins.open();
                inside.pass();
            })
            .unwrap();
        started.pass();
        engine.op("behind").writes([&token]).push((), |()| {}).unwrap();
        let pushed = Gate::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                engine.op("held back").push((), |()| {}).unwrap();
                pushed.open();
            });
            assert!(!pushed.pass_within(MOMENT), "the push was not held back");
            gate.open();
            pushed.pass();
        });
        engine.wait_for_all().unwrap();
    });
}

/// Returns the time for which processors have run the calling thread.
#[cfg(target_os = "linux")]
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to `time`, which is alive.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "measures the processor's time")]
fn a_push_that_is_held_back_sleeps() {
    on_limited(&THREADED, 1, 1, |engine| {
        let gate = occupy(&engine, 1);
        thread::scope(|scope| {
            let pusher = scope.spawn(|| {
                let (start, before) = (Instant::now(), processor_time());
                engine.op("held back").push((), |()| {}).unwrap();
                (processor_time() - before, start.elapsed())
            });
            thread::sleep(6 * MOMENT);
            gate.open();
            let (busy, took) = pusher.join().unwrap();
            assert!(busy < took / 10, "the thread was busy for {busy:?} of {took:?}");
        });
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_push_passes_if_everything_waits_for_a_completion() {
    for limit in [1, 10, 100] {
        on_limited(&KINDS, 1, limit, move |engine| {
            let (done, token) = fill(&engine, limit);
            let start = Instant::now();
            for _ in 0..3 * limit {
                engine.op("more").writes([&token]).push((), |()| {}).unwrap();
            }
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            assert_eq!(engine.pending(), 4 * limit as u64);
            done.complete();
            engine.wait_for_all().unwrap();
        });
    }
}

type RefusedPush<'a> = &'a (dyn Fn() -> Result<(), PushError> + Sync);

/// A thread whose push was refused does not count as pushing.
#[test]
fn a_push_passes_after_the_refused_push_of_an_idle_thread() {
    on_limited(&KINDS, 1, 1, |engine| {
        let (group, other) = (engine.group(), common::engine(EngineKind::Naive, 1));
        let foreign = other.token();
        let refused: [(&str, RefusedPush<'_>); 4] = [
            ("of an engine", &|| engine.op("").reads([&foreign]).push((), |()| {})),
            ("with a handle", &|| engine.op("").reads([&foreign]).submit((), |()| {}).map(drop)),
            ("of a group", &|| group.op("").reads([&foreign]).push((), |()| {})),
            ("of a scope", &|| engine.scope(|s| s.op("").reads([&foreign]).push((), |()| {})).unwrap()),
        ];
        for (name, push) in refused {
            let (is_refused, ends, passed) = (Gate::new(), Gate::new(), Gate::new());
            thread::scope(|scope| {
                scope.spawn(|| {
                    push().expect_err(name);
                    is_refused.open();
                    ends.pass();
                });
                is_refused.pass();
                let (done, token) = fill(&engine, 1);
                let (engine, passed) = (&engine, &passed);
                scope.spawn(move || {
                    engine.op("behind").writes([&token]).push((), |()| {}).unwrap();
                    passed.open();
                });
                let has_passed = passed.pass_within(SOON);
                done.complete();
                ends.open();
                assert!(has_passed, "a push was held back after the refused push {name}");
            });
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn a_push_passes_if_everything_waits_for_a_guard_of_this_thread() {
    on_limited(&KINDS, 2, 2, |engine| {
        let value = engine.var(1);
        let mut guard = block_on(engine.acquire(value.write())).unwrap();
        for _ in 0..10 {
            engine.op("behind").push(value.write(), |value| *value += 1).unwrap();
        }
        *guard = 7;
        drop(guard);
        assert_eq!(engine.get(&value).unwrap(), 17);
    });
}

#[test]
fn a_push_passes_on_an_engine_that_always_searches() {
    watched(|| {
        let engine = Engine::builder().workers(2).pin(false).idle(IdlePolicy::Spin).max_pending(3).build().unwrap();
        let (done, token) = fill(&engine, 3);
        for _ in 0..20 {
            engine.op("more").writes([&token]).push((), |()| {}).unwrap();
        }
        done.complete();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_push_passes_if_the_running_operation_waits_for_the_pushing_thread() {
    on_limited(&THREADED, 1, 3, |engine| {
        let (done, token) = fill(&engine, 1);
        let (inner, waited) = (engine.downgrade(), token.clone());
        let started = Gate::new();
        let begins = started.clone();
        // While the operation's function waits, it occupies no worker.
        engine
            .op("waits")
            .push((), move |()| {
                begins.open();
                inner.wait_for_var(&waited).unwrap();
            })
            .unwrap();
        started.pass();
        for _ in 0..10 {
            engine.op("more").writes([&token]).push((), |()| {}).unwrap();
        }
        done.complete();
        engine.wait_for_all().unwrap();
    });
}

/// The operation runs on the thread that pushes it, which has no worker.
#[test]
fn an_operation_in_a_push_counts_as_running_except_while_it_waits() {
    on_limited(&KINDS, 1, 3, |engine| {
        let (awaited, other) = (engine.token(), engine.token());
        let before = hold(&engine, &awaited);
        let (started, waited, gate, pushed) = (Gate::new(), Gate::new(), Gate::new(), Gate::new());
        let waits = {
            let (inner, awaited) = (engine.downgrade(), awaited.clone());
            let (started, waited, gate) = (started.clone(), waited.clone(), gate.clone());
            move |()| {
                started.open();
                inner.wait_for_var(&awaited).unwrap();
                waited.open();
                gate.pass();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| engine.op("waits").eager().push((), waits).unwrap());
            started.pass();
            // These pushes pass, since everything waits for the first operation.
            for _ in 0..3 {
                engine.op("passes").writes([&awaited]).push((), |()| {}).unwrap();
            }
            before.open();
            waited.pass();
            eventually("only the operation that has waited is left", || engine.pending() == 1);
            let before = hold(&engine, &other);
            engine.op("behind").writes([&other]).push((), |()| {}).unwrap();
            scope.spawn(|| {
                engine.op("held back").writes([&other]).push((), |()| {}).unwrap();
                pushed.open();
            });
            let has_passed = pushed.pass_within(MOMENT);
            gate.open();
            pushed.pass();
            before.open();
            assert!(!has_passed, "the push was not held back");
        });
        engine.wait_for_all().unwrap();
    });
}

/// An observer is called in the middle of a push.
#[test]
fn a_push_waits_while_another_thread_is_inside_a_push() {
    struct Blocks(Gate, Gate);
    impl Observer for Blocks {
        fn pushed(&self, op: &ObservedOp<'_>) {
            if op.name == "first" {
                self.0.open();
                self.1.pass();
            }
        }
    }
    for kind in KINDS {
        watched(move || {
            let (inside, gate, pushed) = (Gate::new(), Gate::new(), Gate::new());
            let builder = Engine::builder().kind(kind).workers(1).pin(false).max_pending(1);
            let engine = builder.observer(Blocks(inside.clone(), gate.clone())).build().unwrap();
            thread::scope(|scope| {
                scope.spawn(|| engine.op("first").push((), |()| {}).unwrap());
                inside.pass();
                scope.spawn(|| {
                    engine.op("held back").push((), |()| {}).unwrap();
                    pushed.open();
                });
                let has_passed = pushed.pass_within(MOMENT);
                gate.open();
                pushed.pass();
                assert!(!has_passed, "{kind}: the push was not held back");
            });
            engine.wait_for_all().unwrap();
        });
    }
}

#[test]
fn operations_that_block_count_as_running() {
    on_limited(&THREADED, 1, 3, |engine| {
        let token = engine.token();
        let (gate, started) = (Gate::new(), Gate::new());
        let (inside, begins) = (gate.clone(), started.clone());
        engine
            .op("blocks")
            .writes([&token])
            .push((), move |()| {
                raddle::blocking(|| {
                    begins.open();
                    inside.pass();
                });
            })
            .unwrap();
        started.pass();
        for _ in 0..2 {
            engine.op("behind").writes([&token]).push((), |()| {}).unwrap();
        }
        let pushed = Gate::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                engine.op("held back").writes([&token]).push((), |()| {}).unwrap();
                pushed.open();
            });
            assert!(!pushed.pass_within(MOMENT), "the push was not held back");
            gate.open();
            pushed.pass();
        });
        engine.wait_for_all().unwrap();
        // The operation that was blocked has ended and no longer counts as running.
        let (done, token) = fill(&engine, 3);
        engine.op("passes").writes([&token]).push((), |()| {}).unwrap();
        done.complete();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn gpu_work_in_flight_counts_as_running() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = Engine::builder().kind(kind).workers(1).pin(false).max_pending(2).gpu(gpu).build().unwrap();
            let device = engine.device_var::<f32>(Device::Gpu(0), 4).unwrap();
            let slow = || {
                engine.op("slow").on(Device::Gpu(0)).try_push((device.write(), stream()), |(device, stream)| {
                    let mut gpu = stream.simulated().ok_or("simulated")?;
                    gpu.launch(Duration::from_millis(20), device, |_| {})?;
                    Ok(())
                })
            };
            let mut most = 0;
            for _ in 0..6 {
                slow().unwrap();
                most = most.max(engine.pending());
            }
            assert!(most <= 3, "{most} were pending");
            engine.wait_for_all().unwrap();
        });
    }
}

#[test]
fn a_naive_engine_holds_a_second_thread_back() {
    on_limited(&[EngineKind::Naive], 1, 2, |engine| {
        let token = engine.token();
        let (gate, started) = (Gate::new(), Gate::new());
        thread::scope(|scope| {
            let (inside, begins) = (gate.clone(), started.clone());
            let (engine, token) = (&engine, &token);
            scope.spawn(move || {
                let run = move |()| {
                    begins.open();
                    inside.pass();
                };
                engine.op("runs here").writes([token]).push((), run).unwrap();
            });
            started.pass();
            engine.op("behind").writes([token]).push((), |()| {}).unwrap();
            let pushed = Gate::new();
            let other = pushed.clone();
            scope.spawn(move || {
                engine.op("held back").writes([token]).push((), |()| {}).unwrap();
                other.open();
            });
            assert!(!pushed.pass_within(MOMENT), "the push was not held back");
            gate.open();
            pushed.pass();
        });
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_operation_that_runs_in_a_push_may_wait_push_and_panic() {
    on_limited(&THREADED, 1, 3, |engine| {
        let value = engine.var(0);
        let gate = occupy(&engine, 1);
        for n in 0..20 {
            let (inner, its) = (engine.downgrade(), value.clone());
            engine
                .op("nests")
                .push((), move |()| {
                    assert_ne!(n, 7, "as planned");
                    let added = inner.op("add").submit(its.write(), |value| *value += 1).unwrap();
                    // This drop does not wait for `add`: the worker that would run it may be busy until the gate opens.
                    drop(added);
                })
                .unwrap();
        }
        gate.open();
        let failure = common::failure(engine.wait_for_all());
        assert_eq!(failure.name(), "nests");
        assert_eq!(engine.get(&value).unwrap(), 19);
    });
    on_limited(&THREADED, 2, 2, |engine| {
        let value = engine.var(0);
        for _ in 0..100 {
            let (inner, its) = (engine.downgrade(), value.clone());
            engine
                .op("waits")
                .push((), move |()| {
                    inner.op("add").submit(its.write(), |value| *value += 1).unwrap().wait().unwrap();
                })
                .unwrap();
        }
        engine.wait_for_all().unwrap();
        assert_eq!(engine.get(&value).unwrap(), 100);
    });
}

// ------------------------------------------------------------------------------------------- who is held back ----

#[test]
fn pushes_inside_operations_are_never_held_back() {
    on_limited(&KINDS, 1, 2, |engine| {
        let (done, token) = fill(&engine, 2);
        let (inner, behind) = (engine.downgrade(), token.clone());
        let group = engine.group().max_pending(2);
        let pushes = engine.op("pushes").submit((), move |()| {
            for _ in 0..50 {
                inner.op("inner").writes([&behind]).push((), |()| {}).unwrap();
                group.op("inner").writes([&behind]).push((), |()| {}).unwrap();
                inner.op("inner").writes([&behind]).if_room().unwrap().push((), |()| {}).unwrap();
                block_on_within(inner.op("inner").writes([&behind]).when_room(), SOON)
                    .expect("there should always be room inside an operation")
                    .unwrap()
                    .push((), |()| {})
                    .unwrap();
            }
        });
        pushes.unwrap().wait().unwrap();
        eventually("the outer operation is counted out", || engine.pending() == 202);
        done.complete();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn pushes_in_futures_wakers_and_destructors_are_never_held_back() {
    struct PushesOnDrop(WeakEngine, Arc<AtomicUsize>);
    impl Drop for PushesOnDrop {
        fn drop(&mut self) {
            self.0.op("in a drop").push((), |()| {}).unwrap();
            self.1.fetch_add(1, SeqCst);
        }
    }
    struct PushesOnWake(WeakEngine, Arc<AtomicUsize>);
    impl Wake for PushesOnWake {
        fn wake(self: Arc<Self>) {
            self.0.op("in a waker").push((), |()| {}).unwrap();
            self.1.fetch_add(1, SeqCst);
        }
    }
    on_limited(&KINDS, 1, 2, |engine| {
        let (done, token) = fill(&engine, 2);
        let count = Arc::new(AtomicUsize::new(0));
        let inner = engine.downgrade();
        let future = engine
            .op("future")
            .submit_future((), move |()| async move {
                for _ in 0..10 {
                    inner.op("in a poll").push((), |()| {}).unwrap();
                    inner.op("in a poll").when_room().await.unwrap().push((), |()| {}).unwrap();
                }
            })
            .unwrap();
        future.wait().unwrap();
        let dropped = PushesOnDrop(engine.downgrade(), Arc::clone(&count));
        engine.op("captures").push((), move |()| _ = &dropped).unwrap();
        let behind = engine.op("behind").writes([&token]).submit((), |()| {}).unwrap();
        let mut behind = pin!(behind.into_future());
        let waker = Waker::from(Arc::new(PushesOnWake(engine.downgrade(), Arc::clone(&count))));
        assert!(behind.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        eventually("the drop has pushed", || count.load(SeqCst) == 1);
        done.complete();
        eventually("the waker has pushed", || count.load(SeqCst) == 2);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn reads_waits_and_acquisitions_are_not_held_back() {
    on_limited(&THREADED, 1, 2, |engine| {
        let gate = occupy(&engine, 1);
        let value = engine.var(3);
        engine.op("queued").push((), |()| {}).unwrap();
        assert_eq!(engine.get(&value).unwrap(), 3);
        assert_eq!(engine.with(&value, |value| *value).unwrap(), 3);
        let guard = block_on(engine.acquire(value.read())).unwrap();
        drop(guard);
        engine.wait_for_var(&value).unwrap();
        drop(value);
        assert!(engine.pending() >= 2, "the ready operation has run on this thread");
        gate.open();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn two_engines_with_limits_do_not_hold_each_other_up() {
    watched(|| {
        let (a, b) = (limited(EngineKind::Pooled, 1, 1), limited(EngineKind::PerDevice, 1, 1));
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..200 {
            for (from, to) in [(&a, &b), (&b, &a)] {
                let (to, count) = (to.downgrade(), Arc::clone(&count));
                from.op("outer")
                    .push((), move |()| {
                        let count = Arc::clone(&count);
                        to.op("inner").push((), move |()| _ = count.fetch_add(1, SeqCst)).unwrap();
                    })
                    .unwrap();
            }
        }
        a.wait_for_all().unwrap();
        b.wait_for_all().unwrap();
        a.wait_for_all().unwrap();
        assert_eq!(count.load(SeqCst), 400);
    });
}

#[test]
fn room_in_one_engine_is_no_room_in_another() {
    watched(|| {
        let (roomy, full) = (limited(EngineKind::Pooled, 1, 1000), limited(EngineKind::Pooled, 1, 1));
        let (started, gate) = (Gate::new(), Gate::new());
        let (at, closed) = (started.clone(), gate.clone());
        let running = move |()| {
            at.open();
            closed.pass();
        };
        full.op("running").push((), running).unwrap();
        started.pass();
        let pushed = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // The first push gives this thread credit for a few more pushes, but only on the first engine.
                roomy.op("first").push((), |()| ()).unwrap();
                full.op("held back").push((), |()| ()).unwrap();
                pushed.store(true, SeqCst);
            });
            thread::sleep(MOMENT);
            assert!(!pushed.load(SeqCst), "a push on a full engine was not held back");
            gate.open();
        });
        assert!(pushed.load(SeqCst));
    });
}

// -------------------------------------------------------------------------------------- pushes that never block ----

#[test]
fn if_room_returns_full_and_loses_nothing() {
    for limit in [1, 5] {
        on_limited(&KINDS, 1, limit, move |engine| {
            let (done, token) = fill(&engine, limit);
            let drops = Drops::new();
            let mut captured = Some(drops.make());
            for _ in 0..3 {
                assert!(is_full(engine.op("late").if_room()));
            }
            assert_eq!(engine.pending(), limit as u64, "a refused call enqueued an operation");
            assert_eq!(drops.dropped(), 0, "the caller's value was dropped");
            done.complete();
            engine.wait_for_var(&token).unwrap();
            engine.wait_for_all().unwrap();
            let op = engine.op("late").if_room().expect("there should be room");
            let value = captured.take();
            op.push((), move |()| drop(value)).unwrap();
            engine.wait_for_all().unwrap();
            assert_eq!(drops.dropped(), 1);
        });
    }
}

#[test]
fn if_room_is_exact_for_a_single_thread() {
    on_limited(&KINDS, 1, 10, |engine| {
        let (done, token) = fill(&engine, 1);
        let mut pushed = 1;
        while let Ok(op) = engine.op("n").writes([&token]).if_room() {
            op.push((), |()| {}).unwrap();
            pushed += 1;
        }
        assert_eq!(pushed, 10);
        done.complete();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn all_calls_that_push_are_held_back_and_can_be_admitted() {
    type Push = fn(OpBuilder<'_>) -> Result<(), PushError>;
    let pushes: [(&str, Push); 7] = [
        ("push", |op| op.push((), |()| {})),
        ("try_push", |op| op.try_push((), |()| Ok(()))),
        ("submit", |op| op.submit((), |()| {}).map(drop)),
        ("push_async", |op| op.push(completion(), |done| done.complete())),
        ("push_future", |op| op.push_future((), |()| async {})),
        ("submit_future", |op| op.submit_future((), |()| async {}).map(drop)),
        ("operator", |op| op.operator((), |()| {})?.push()),
    ];
    for (name, push) in pushes {
        on_limited(&THREADED, 1, 2, move |engine| {
            let token = engine.token();
            let behind = hold(&engine, &token);
            let gate = occupy(&engine, 1);
            assert!(is_full(engine.op("full").if_room()));
            let pushed = Gate::new();
            thread::scope(|scope| {
                scope.spawn(|| {
                    push(engine.op(name)).unwrap();
                    pushed.open();
                });
                assert!(!pushed.pass_within(MOMENT / 5), "{name} was not held back");
                behind.open();
                pushed.pass();
            });
            gate.open();
            engine.wait_for_all().unwrap();
            push(engine.op(name).if_room().unwrap()).unwrap();
            push(block_on(engine.op(name).when_room()).unwrap()).unwrap();
            engine.wait_for_all().unwrap();
        });
    }
}

#[test]
fn operators_have_the_same_three_ways_to_push() {
    on_limited(&KINDS, 1, 3, |engine| {
        let (done, token) = fill(&engine, 3);
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let tick: Operator =
            engine.op("tick").writes([&token]).operator((), move |()| _ = counted.fetch_add(1, SeqCst)).unwrap();
        assert!(is_full(tick.if_room()));
        tick.push().unwrap(); // not held back: no operation is running
        assert!(matches!(block_on_within(tick.when_room(), MOMENT), Err(NotInTime)));
        done.complete();
        engine.wait_for_all().unwrap();
        let admitted = tick.if_room().unwrap();
        let (done, _token) = fill(&engine, 3);
        admitted.push().unwrap();
        done.complete();
        block_on(tick.when_room()).unwrap().submit().unwrap().wait().unwrap();
        block_on(tick.when_room()).unwrap().push_with_priority(3).unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!(count.load(SeqCst), 4);
    });
}

/// The argument is given away only once there is room.
#[test]
fn operators_that_take_arguments_and_variables_have_the_same_three_ways_to_push() {
    on_limited(&KINDS, 1, 3, |engine| {
        let (sum, drops) = (engine.var(0), Drops::new());
        let add = |sum: &mut u64, (by, it): (u64, Droppable)| {
            it.touch();
            *sum += by;
        };
        let with = engine.op("with").operator_with(sum.write(), add).unwrap();
        let f = move |sum: &mut u64, (), argument: (u64, Droppable)| add(sum, argument);
        let on = engine.op("on").operator_on(chosen::write(), (), f).unwrap();
        let (done, _token) = fill(&engine, 3);
        assert!(is_full(with.if_room()) && is_full(on.if_room()));
        assert!(matches!(block_on_within(on.when_room(), MOMENT), Err(NotInTime)));
        done.complete();
        engine.wait_for_all().unwrap();
        with.if_room().unwrap().push((1, drops.make())).unwrap();
        on.if_room().unwrap().push_on(&sum, (10, drops.make())).unwrap();
        block_on(with.when_room()).unwrap().submit((100, drops.make())).unwrap().wait().unwrap();
        block_on(on.when_room()).unwrap().submit_on(&sum, (1_000, drops.make())).unwrap().wait().unwrap();
        block_on(with.when_room()).unwrap().push_with_priority((10_000, drops.make()), 3).unwrap();
        block_on(on.when_room()).unwrap().push_on_with_priority(&sum, (100_000, drops.make()), 3).unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!(engine.get(&sum).unwrap(), 111_111);
        drops.assert_all_gone();
    });
}

/// The room was that of the description, not of later pushes.
#[test]
fn an_operator_described_while_there_was_room_is_held_back() {
    on_limited(&THREADED, 1, 1, |engine| {
        let operator = engine.op("operator").if_room().unwrap().operator((), |()| {}).unwrap();
        let gate = occupy(&engine, 1);
        let pushed = Gate::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                operator.push().unwrap();
                pushed.open();
            });
            assert!(!pushed.pass_within(MOMENT / 5), "the operator was not held back");
            gate.open();
            pushed.pass();
        });
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_admitted_push_proceeds_even_if_the_engine_is_full_again() {
    on_limited(&THREADED, 1, 2, |engine| {
        let op = engine.op("admitted").if_room().unwrap();
        let gate = occupy(&engine, 1);
        engine.op("queued").push((), |()| {}).unwrap();
        // This push neither waits nor runs ready operations.
        op.push((), |()| {}).unwrap();
        assert_eq!(engine.pending(), 3);
        gate.open();
        engine.wait_for_all().unwrap();
    });
}

/// This is so for an operator that may be pushed in a shorter way, for one without variables, and for one with a
/// deadline.
#[test]
fn an_admitted_run_proceeds_even_if_the_engine_is_full_again() {
    on_limited(&THREADED, 1, 2, |engine| {
        let token = engine.token();
        let deadline = Instant::now() + 2 * PATIENCE;
        let operators = [
            engine.op("short").reads([&token]).operator((), |()| {}).unwrap(),
            engine.op("no variables").operator((), |()| {}).unwrap(),
            engine.op("deadline").deadline(deadline).operator((), |()| {}).unwrap(),
        ];
        let admitted = [(); 2].map(|()| operators.each_ref().map(|operator| operator.if_room().unwrap()));
        let gate = occupy(&engine, 1);
        engine.op("queued").push((), |()| {}).unwrap();
        let [pushed, submitted] = admitted;
        // These pushes neither wait nor run ready operations.
        for (admitted, pending) in pushed.into_iter().zip(3..) {
            admitted.push().unwrap();
            assert_eq!(engine.pending(), pending);
        }
        let mut handles = Vec::new();
        for (admitted, pending) in submitted.into_iter().zip(6..) {
            handles.push(admitted.submit().unwrap());
            assert_eq!(engine.pending(), pending);
        }
        gate.open();
        handles.into_iter().for_each(|handle| handle.wait().unwrap());
        engine.wait_for_all().unwrap();
    });
}

/// A push that is held back runs a ready operation and so makes room for its own.
#[test]
fn a_run_with_a_deadline_is_held_back_as_others_are() {
    on_limited(&THREADED, 1, 2, |engine| {
        let operator = engine.op("run").deadline(Instant::now() + 2 * PATIENCE).operator((), |()| {}).unwrap();
        let gate = occupy(&engine, 1);
        for _ in 0..3 {
            operator.push().unwrap();
            assert_eq!(engine.pending(), 2);
        }
        gate.open();
        engine.wait_for_all().unwrap();
    });
}

// ---------------------------------------------------------------------------------------------------- when_room ----

#[test]
fn when_room_waits_even_if_nothing_runs_and_is_woken() {
    for limit in [1, 64] {
        on_limited(&KINDS, 1, limit, move |engine| {
            let (done, token) = fill(&engine, limit);
            let mut room = pin!(engine.op("waits").writes([&token]).when_room());
            assert!(matches!(block_on_within(room.as_mut(), MOMENT), Err(NotInTime)));
            done.complete();
            block_on(room).unwrap().push((), |()| {}).unwrap();
            engine.wait_for_all().unwrap();
        });
    }
}

#[test]
fn when_room_resolves_at_the_first_room() {
    on_limited(&KINDS, 1, 64, |engine| {
        let (done, _token) = fill(&engine, 63);
        let single = open_ended(&engine);
        let mut room = pin!(engine.op("waits").when_room());
        let woken = Arc::new(CountWakes::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(woken.count(), 0);
        single.complete();
        eventually("the future is woken", || woken.count() == 1);
        assert!(matches!(room.poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(_))));
        done.complete();
        engine.wait_for_all().unwrap();
    });
}

/// One operation ends both what the one future waits for and what the other does.
#[test]
fn a_future_that_waits_for_room_and_one_that_waits_for_all_are_woken_together() {
    on_limited(&KINDS, 1, 1, |engine| {
        let done = open_ended(&engine);
        thread::scope(|scope| {
            let all = scope.spawn(|| block_on_within(engine.wait_for_all_async(), PATIENCE));
            let room = scope.spawn(|| block_on_within(engine.op("waits").when_room(), PATIENCE).map(drop));
            thread::sleep(MOMENT);
            done.complete();
            assert!(all.join().unwrap().is_ok(), "the wait for all was not woken");
            assert!(room.join().unwrap().is_ok(), "the wait for room was not woken");
        });
    });
}

#[test]
fn a_woken_future_that_is_dropped_wakes_the_next_one() {
    on_limited(&KINDS, 1, 2, |engine| {
        let (done, token) = fill(&engine, 1);
        let single = open_ended(&engine);
        let wakes: Vec<_> = (0..3).map(|_| Arc::new(CountWakes::default())).collect();
        let mut rooms: Vec<_> = (0..3).map(|_| Box::pin(engine.op("waits").writes([&token]).when_room())).collect();
        for (room, wakes) in rooms.iter_mut().zip(&wakes) {
            let waker = Waker::from(Arc::clone(wakes));
            assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        // A future that is dropped while there is no room wakes no other.
        let mut other = Box::pin(engine.op("waits").writes([&token]).when_room());
        assert!(other.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(other);
        assert!(wakes.iter().all(|wakes| wakes.count() == 0), "a future was woken without room");
        single.complete();
        eventually("the first future is woken", || wakes[0].count() == 1);
        assert_eq!((wakes[1].count(), wakes[2].count()), (0, 0));
        drop(rooms.remove(0));
        eventually("the second future is woken", || wakes[1].count() == 1);
        // The second future finds room, but no push uses it.
        let waker = Waker::from(Arc::clone(&wakes[1]));
        assert!(matches!(rooms[0].as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(_))));
        eventually("the third future is woken", || wakes[2].count() == 1);
        drop(rooms);
        done.complete();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn thousands_of_tasks_wait_for_room() {
    on_limited(&KINDS, 2, 8, |engine| {
        let tasks = fewer(2_000);
        let count = engine.var(0);
        let task = || {
            let (engine, count) = (engine.clone(), count.clone());
            async move {
                let op = engine.op("add").when_room().await.unwrap();
                op.push(count.write(), move |count| *count += 1).unwrap();
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let handles: Vec<_> = (0..tasks / 2).map(|_| tokio::spawn(task())).collect();
            for handle in handles {
                handle.await.unwrap();
            }
        });
        let executor = smol::Executor::new();
        smol::block_on(executor.run(async {
            let handles: Vec<_> = (0..tasks / 2).map(|_| executor.spawn(task())).collect();
            for handle in handles {
                handle.await;
            }
        }));
        pollster::block_on(task());
        assert_eq!(engine.get(&count).unwrap(), 2 * (tasks / 2) + 1);
    });
}

#[test]
fn tasks_on_several_threads_keep_to_the_limit() {
    on_limited(&THREADED, 2, 16, |engine| {
        const THREADS: u64 = 4;
        let (count, most) = (engine.var(0u64), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    block_on(async {
                        for _ in 0..fewer(1_000) {
                            let op = engine.op("add").when_room().await.unwrap();
                            op.push(count.write(), |count| *count += 1).unwrap();
                            most.fetch_max(engine.pending(), Relaxed);
                        }
                    });
                });
            }
        });
        assert!(most.load(Relaxed) <= 16 + THREADS + 1, "{most:?} were pending");
        assert_eq!(engine.get(&count).unwrap(), THREADS * fewer(1_000) as u64);
    });
}

#[test]
fn tasks_find_room_while_a_thread_pushes_without_pause() {
    on_limited(&THREADED, 1, 16, |engine| {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let value = engine.var(0u64);
                while !stop.load(Relaxed) {
                    engine.op("busy").push(value.write(), |value| *value += 1).unwrap();
                }
            });
            for _ in 0..50 {
                block_on(engine.op("task").when_room()).unwrap().push((), |()| {}).unwrap();
            }
            stop.store(true, Relaxed);
        });
    });
}

#[test]
fn futures_that_are_dropped_at_any_time_lose_no_room() {
    for limit in [1, 3] {
        on_limited(&KINDS, 2, limit, |engine| {
            let group = engine.group().max_pending(2);
            thread::scope(|scope| {
                for seed in 1..=6u64 {
                    let (engine, group) = (&engine, &group);
                    scope.spawn(move || {
                        let mut random = seed * 77;
                        for n in 0..fewer(400) {
                            random ^= random << 13;
                            random ^= random >> 7;
                            random ^= random << 17;
                            let op = if n % 2 == 0 { engine.op("of the engine") } else { group.op("of the group") };
                            let mut room = Box::pin(op.when_room());
                            match random % 3 {
                                0 => _ = room.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready(),
                                1 => _ = block_on_within(room, Duration::from_micros(random % 200)).is_ok(),
                                // Waits for room, and hangs if a wake-up is lost.
                                _ => block_on(room).unwrap().push((), |()| {}).unwrap(),
                            }
                        }
                    });
                }
            });
            engine.wait_for_all().unwrap();
        });
    }
}

// ------------------------------------------------------------------------------------------------- many threads ----

#[test]
fn many_threads_with_all_kinds_of_operations_share_room_for_one() {
    const THREADS: usize = 32;
    on_limited(&KINDS, 2, 1, |engine| {
        let group = engine.group().max_pending(1);
        let total = engine.var(0usize);
        let tick = group.op("tick").operator(total.write(), |total| *total += 1).unwrap();
        let rounds = fewer(40);
        let one = |n: usize| match n % 8 {
            0 => engine.op("eager").eager().push(total.write(), |total| *total += 1).unwrap(),
            1 => tick.push().unwrap(),
            2 => tick.submit().unwrap().wait().unwrap(),
            // The guard is dropped before this thread pushes again: a held-back push may run an operation here, and one
            // that waits for the guard would never end.
            3 => *block_on(engine.acquire(total.write())).unwrap() += 1,
            4 => block_on(tick.when_room()).unwrap().push().unwrap(),
            5 => {
                let (inner, total) = (engine.downgrade(), total.clone());
                let waits =
                    move |()| inner.op("inner").submit(total.write(), |total| *total += 1).unwrap().wait().unwrap();
                engine.op("waits").submit((), waits).unwrap().wait().unwrap();
            }
            6 => {
                let (inner, total) = (engine.downgrade(), total.clone());
                let add = move |()| async move { *inner.acquire(total.write()).await.unwrap() += 1 };
                engine.op("future").submit_future((), add).unwrap().wait().unwrap();
            }
            _ => {
                let op = group.op("member").if_room().unwrap_or_else(|_| group.op("member"));
                op.push(total.write(), |total| *total += 1).unwrap();
            }
        };
        thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || (0..rounds).for_each(|n| one(n + thread)));
            }
        });
        engine.wait_for_all().unwrap();
        assert_eq!(engine.get(&total).unwrap(), THREADS * rounds);
    });
}

thread_local!(static DEPTH: Cell<usize> = const { Cell::new(0) });

#[test]
fn operations_that_run_in_a_push_do_not_nest() {
    on_limited(&THREADED, 1, 2, |engine| {
        let gate = occupy(&engine, 1);
        let deepest = Arc::new(AtomicUsize::new(0));
        for n in 0..fewer(300) {
            let (inner, deepest) = (engine.downgrade(), Arc::clone(&deepest));
            engine
                .op("outer")
                .push(cx(), move |cx| {
                    DEPTH.set(DEPTH.get() + 1);
                    deepest.fetch_max(DEPTH.get(), SeqCst);
                    assert!(cx.name() == "outer" && cx.worker() != Some(1) && Engine::current().is_some());
                    raddle::blocking(thread::yield_now);
                    (0..3).for_each(|_| inner.op("inner").push((), |()| {}).unwrap());
                    DEPTH.set(DEPTH.get() - 1);
                    assert_ne!(n % 10, 5, "as planned");
                })
                .unwrap();
        }
        assert!(Engine::current().is_none());
        gate.open();
        while engine.wait_for_all().is_err() {}
        assert_eq!(deepest.load(SeqCst), 1);
    });
}

struct PushesOnExit(Cell<Option<WeakEngine>>);

impl Drop for PushesOnExit {
    fn drop(&mut self) {
        let Some(engine) = self.0.take() else { return };
        for _ in 0..20 {
            engine.op("on exit").push((), |()| {}).unwrap();
            let _ = engine.op("on exit").if_room().map(|op| op.push((), |()| {}));
            let _ = pin!(engine.op("on exit").when_room()).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        }
    }
}

thread_local!(static EXIT: PushesOnExit = const { PushesOnExit(Cell::new(None)) });

#[test]
fn destructors_of_thread_locals_push() {
    on_limited(&KINDS, 1, 2, |engine| {
        let outside = engine.clone();
        let pushes = move || {
            EXIT.with(|exit| exit.0.set(Some(outside.downgrade())));
            (0..10).for_each(|_| outside.op("before").push((), |()| {}).unwrap());
        };
        thread::spawn(pushes).join().unwrap();
        engine.wait_for_all().unwrap();
        // On a worker, the destructor's pushes are not held back, although the other engine is full and busy.
        let other = limited(engine.kind(), 1, 1);
        let gate = (engine.kind() != EngineKind::Naive).then(|| occupy(&other, 1));
        let inner = other.downgrade();
        engine.op("enters").push((), move |()| EXIT.with(|exit| exit.0.set(Some(inner)))).unwrap();
        engine.shutdown(Shutdown::Drain, None).unwrap();
        EXIT.with(|exit| exit.0.take());
        gate.iter().for_each(Gate::open);
        other.wait_for_all().unwrap();
    });
}

// ------------------------------------------------------------------------------------------------------- groups ----

#[test]
fn groups_have_limits_of_their_own() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group().max_pending(3);
        let token = engine.token();
        let gate = hold(&engine, &token);
        for _ in 0..3 {
            group.op("member").writes([&token]).if_room().unwrap().push((), |()| {}).unwrap();
        }
        assert!(is_full(group.op("late").if_room()));
        engine.op("other").if_room().expect("the engine should have no limit").push((), |()| {}).unwrap();
        // No operation is running, so the push is not held back.
        group.op("passes").writes([&token]).push((), |()| {}).unwrap();
        assert_eq!(group.pending(), 4);
        assert!(matches!(block_on_within(group.op("waits").when_room(), MOMENT), Err(NotInTime)));
        gate.open();
        block_on(group.op("waits").when_room()).unwrap().push((), |()| {}).unwrap();
        group.wait().unwrap();
        engine.wait_for_all().unwrap();
    });
}

/// Once its push is over, the thread no longer counts as one that pushes, so nothing is running.
#[test]
fn an_operator_of_a_full_group_passes_if_everything_waits_for_a_completion() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group().max_pending(1);
        let (sender, receiver) = mpsc::channel();
        let start = move |done| sender.send(done).unwrap();
        let operator = group.op("open-ended").operator(completion(), start).unwrap();
        for _ in 0..3 {
            operator.push().unwrap();
        }
        for _ in 0..3 {
            receiver.recv_timeout(PATIENCE).expect("the operation should start").complete();
        }
        group.wait().unwrap();
    });
}

#[test]
fn a_producer_keeps_to_the_limit_of_its_group() {
    on_kinds(&THREADED, 1, |engine| {
        let group = engine.group().max_pending(5);
        let value = engine.var(0);
        let mut most = 0;
        for _ in 0..fewer(3_000) {
            group.op("add").push(value.write(), |value| *value += 1).unwrap();
            most = most.max(group.pending());
        }
        assert!(most <= 5, "{most} were pending");
        assert_eq!(engine.get(&value).unwrap(), fewer(3_000));
    });
}

#[test]
fn operations_of_a_group_inside_a_full_one_are_held_back() {
    on_limited(&KINDS, 1, 100, |engine| {
        let outer = engine.group().max_pending(2);
        let inner = outer.group().max_pending(50);
        let innermost = inner.group();
        let token = engine.token();
        let gate = hold(&engine, &token);
        let tick = innermost.op("tick").writes([&token]).operator((), |()| {}).unwrap();
        tick.if_room().unwrap().push().unwrap();
        outer.op("n").writes([&token]).if_room().unwrap().push((), |()| {}).unwrap();
        assert!(is_full(tick.if_room()) && is_full(inner.op("n").if_room()) && is_full(outer.op("n").if_room()));
        let mut room = pin!(tick.when_room());
        assert!(matches!(block_on_within(room.as_mut(), MOMENT), Err(NotInTime)));
        gate.open();
        block_on(room).unwrap().push().unwrap();
        outer.wait().unwrap();
    });
}

#[test]
fn a_limit_that_is_raised_makes_room() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group().max_pending(1);
        let token = engine.token();
        let gate = hold(&engine, &token);
        group.op("n").writes([&token]).push((), |()| {}).unwrap();
        let mut rooms: Vec<_> = (0..2).map(|_| Box::pin(group.op("n").writes([&token]).when_room())).collect();
        for room in &mut rooms {
            assert!(matches!(block_on_within(room, MOMENT / 10), Err(NotInTime)));
        }
        let group = group.clone().max_pending(3);
        for room in rooms {
            block_on(room).unwrap().push((), |()| {}).unwrap();
        }
        assert!(is_full(group.op("n").if_room()));
        gate.open();
        group.wait().unwrap();
    });
}

#[test]
fn a_limit_that_is_raised_wakes_one_future_after_another() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group().max_pending(1);
        let inside = group.group();
        let done = open_ended_in(&group);
        let wakes: Vec<_> = (0..3).map(|_| Arc::new(CountWakes::default())).collect();
        // The last future waits for the limit around its group.
        let mut rooms = [&group, &group, &inside].map(|group| Box::pin(group.op("n").when_room()));
        let mut is_admitted = |n: usize| {
            let waker = Waker::from(Arc::clone(&wakes[n]));
            rooms[n].as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        };
        let counts = || wakes.iter().map(|wakes| wakes.count()).collect::<Vec<_>>();
        assert!((0..3).all(|n| !is_admitted(n)));
        let _ = group.clone().max_pending(1);
        assert_eq!(counts(), [0, 0, 0], "a future was woken without room");
        let _ = group.clone().max_pending(2);
        eventually("the first future is woken", || wakes[0].count() == 1);
        assert_eq!(counts(), [1, 0, 0], "room for one woke several futures");
        assert!(is_admitted(0));
        eventually("the second future is woken", || wakes[1].count() == 1);
        // The second future finds the limit lowered again, and keeps its place.
        let _ = group.clone().max_pending(1);
        assert!(!is_admitted(1));
        let _ = group.clone().max_pending(100);
        eventually("the second future is woken again", || wakes[1].count() == 2);
        assert_eq!(counts(), [1, 2, 0], "two futures were woken at once");
        assert!(is_admitted(1));
        eventually("the third future is woken", || wakes[2].count() == 1);
        assert!(is_admitted(2));
        done.complete();
        group.wait().unwrap();
    });
}

#[test]
fn a_future_that_waits_for_two_limits_passes_on_the_room_of_one() {
    on_limited(&KINDS, 1, 2, |engine| {
        let group = engine.group().max_pending(1);
        let (engine_full, in_group) = (open_ended(&engine), open_ended_in(&group));
        // Both futures wait for the group. The engine is full as well.
        let wakes: Vec<_> = (0..2).map(|_| Arc::new(CountWakes::default())).collect();
        let mut rooms: Vec<_> = (0..2).map(|_| Box::pin(group.op("n").when_room())).collect();
        for (room, wakes) in rooms.iter_mut().zip(&wakes) {
            assert!(room.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(wakes)))).is_pending());
        }
        let again = fill_without_room(&engine);
        in_group.complete();
        // The first future is woken, finds the engine full, and lets the second one check the group.
        eventually("the first future is woken", || wakes[0].count() >= 1);
        assert!(rooms[0].as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&wakes[0])))).is_pending());
        eventually("the second future is woken", || wakes[1].count() >= 1);
        again.complete();
        engine_full.complete();
        for room in rooms {
            block_on(room).unwrap().push((), |()| {}).unwrap();
        }
        engine.wait_for_all().unwrap();
    });
}

fn open_ended_in(group: &raddle::Group) -> Completion {
    let (sender, receiver) = mpsc::channel();
    group.op("open-ended").push(completion(), move |done| sender.send(done).unwrap()).unwrap();
    receiver.recv_timeout(PATIENCE).expect("the operation should start")
}

/// Pushes an open-ended operation from inside another one, so that the push is not held back.
fn fill_without_room(engine: &Engine) -> Completion {
    let (sender, receiver) = mpsc::channel();
    let inner = engine.downgrade();
    engine
        .op("outer")
        .push(cx(), move |_| {
            inner.op("open-ended").push(completion(), move |done| sender.send(done).unwrap()).unwrap();
        })
        .unwrap();
    receiver.recv_timeout(PATIENCE).expect("the operation should start")
}

// ------------------------------------------------------------------------------------------------------ shutdown ----

#[test]
fn a_shutdown_ends_pushes_that_are_held_back() {
    for how in [Shutdown::Drain, Shutdown::Cancel] {
        on_limited(&THREADED, 1, 1, move |engine| {
            let gate = occupy(&engine, 1);
            let group = engine.group().max_pending(1);
            let drops = Drops::new();
            let captured = drops.make();
            let mut room = pin!(engine.op("waits").when_room());
            let mut group_room = pin!(group.op("waits").when_room());
            assert!(matches!(block_on_within(room.as_mut(), MOMENT), Err(NotInTime)));
            assert!(matches!(block_on_within(group_room.as_mut(), MOMENT), Err(NotInTime)));
            thread::scope(|scope| {
                let pusher =
                    scope.spawn(|| engine.op("held back").push((), move |()| drop(captured)).expect_err("a refusal"));
                let operator = engine.op("tick").operator((), |()| {}).unwrap();
                let other = scope.spawn(move || operator.push());
                let member = scope.spawn(|| group.op("member").push((), |()| {}));
                thread::sleep(MOMENT);
                assert!(!pusher.is_finished() && !other.is_finished() && !member.is_finished());
                let begun = Instant::now();
                assert!(
                    engine.shutdown(how, Some(Duration::from_millis(1))).is_err(),
                    "the shutdown succeeded although an operation was running"
                );
                assert_eq!(pusher.join().unwrap(), PushError::ShutDown);
                assert_eq!(other.join().unwrap(), Err(PushError::ShutDown));
                assert_eq!(member.join().unwrap(), Err(PushError::ShutDown));
                assert!(begun.elapsed() < SOON);
            });
            assert_eq!(block_on(room).map(drop), Err(PushError::ShutDown));
            assert_eq!(block_on(group_room).map(drop), Err(PushError::ShutDown));
            assert_eq!(drops.dropped(), 1, "the function was not dropped");
            assert_eq!(engine.op("late").if_room().map(drop), Err(PushError::ShutDown));
            gate.open();
            engine.shutdown(how, None).unwrap();
        });
    }
}

/// The futures are not polled after the shutdown has begun, unless they are woken.
#[test]
fn a_shutdown_wakes_futures_that_wait_for_room() {
    on_limited(&KINDS, 1, 1, |engine| {
        let group = engine.group().max_pending(1);
        let done = open_ended_in(&group);
        let wakes: Vec<_> = (0..2).map(|_| Arc::new(CountWakes::default())).collect();
        let mut rooms = [engine.op("waits"), group.op("waits")].map(|op| Box::pin(op.when_room()));
        for (room, wakes) in rooms.iter_mut().zip(&wakes) {
            let waker = Waker::from(Arc::clone(wakes));
            assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        engine.notify_shutdown();
        eventually("both futures are woken", || wakes.iter().all(|wakes| wakes.count() > 0));
        for room in rooms {
            assert_eq!(block_on(room).map(drop), Err(PushError::ShutDown));
        }
        done.complete();
    });
}

#[test]
fn a_push_that_is_held_back_does_not_prolong_a_wait_for_all() {
    on_limited(&THREADED, 1, 1, |engine| {
        let gate = occupy(&engine, 1);
        thread::scope(|scope| {
            let pusher = scope.spawn(|| engine.op("held back").push((), |()| {}).unwrap());
            thread::sleep(MOMENT);
            assert_eq!(engine.pending(), 1, "a held-back push is counted");
            gate.open();
            engine.wait_for_all().unwrap();
            pusher.join().unwrap();
        });
    });
}

#[test]
fn an_operation_that_runs_in_a_push_may_end_the_engine() {
    on_limited(&THREADED, 1, 1, |engine| {
        let gate = occupy(&engine, 1);
        let inner = engine.downgrade();
        // This push is not held back, since it is made inside a call to the engine. Thus, one operation is ready while
        // another is running.
        let pushed = engine.with(&engine.var(1), |_| {
            let stops = inner.clone();
            inner.op("stops").push((), move |()| stops.notify_shutdown())
        });
        pushed.unwrap().unwrap();
        assert_eq!(engine.op("held back").push((), |()| {}), Err(PushError::ShutDown));
        gate.open();
        engine.shutdown(Shutdown::Cancel, None).unwrap();
    });
}

/// The variable exists when the push begins. While the push is held back, it runs the operation that deletes the
/// variable.
#[test]
fn the_function_of_a_push_whose_variable_is_deleted_while_it_is_held_back_is_dropped() {
    type Push = fn(&Engine, &Var<u64>, Droppable) -> Result<(), PushError>;
    let pushes: [(&str, Push); 3] = [
        ("push", |engine, var, captured| engine.op("late").push(var.write(), move |_| captured.touch())),
        ("submit", |engine, var, captured| engine.op("late").submit(var.write(), move |_| captured.touch()).map(drop)),
        ("an asynchronous run", |engine, var, captured| {
            let function = move |(_, done): (&mut u64, Completion)| {
                captured.touch();
                done.complete();
            };
            engine.op("late").operator((var.write(), completion()), function)?.submit().map(drop)
        }),
    ];
    for (name, push) in pushes {
        on_limited(&THREADED, 1, 2, move |engine| {
            let gate = occupy(&engine, 1);
            let (drops, var) = (Drops::new(), engine.var(0u64));
            let (inner, deleted) = (engine.downgrade(), var.clone());
            // This push is not held back, since it is made inside a call to the engine. Thus, one operation is ready
            // while another is running.
            let pushed = engine.with(&engine.var(1), |_| {
                let deletes = inner.clone();
                inner.op("deletes").push((), move |()| deletes.delete_variable(&deleted, |_| {}).unwrap())
            });
            pushed.unwrap().unwrap();
            let refused = push(&engine, &var, drops.make());
            assert!(matches!(refused, Err(PushError::Variable(NoAccess::Deleted, _))), "{name}: {refused:?}");
            gate.open();
            engine.wait_for_all().unwrap();
            // The drop of an operator's function is an operation of its own.
            eventually("the function is dropped", || drops.dropped() == drops.made());
            drops.assert_all_gone();
        });
    }
}

// --------------------------------------------------------------------------------------------------------- stops ----

#[test]
fn a_full_engine_that_is_stopped_refuses_pushes() {
    type Push = fn(OpBuilder<'_>) -> Result<(), PushError>;
    let pushes: [(&str, Push); 4] = [
        ("push", |op| op.push((), |()| {})),
        ("submit", |op| op.submit((), |()| {}).map(drop)),
        ("push_future", |op| op.push_future((), |()| async {})),
        ("operator", |op| op.operator((), |()| {})?.push()),
    ];
    for (of_group, limit) in [(false, 1), (false, 7), (true, 1), (true, 7)] {
        on_limited(&THREADED, 1, if of_group { 1_000 } else { limit }, move |engine| {
            let group = of_group.then(|| engine.group().max_pending(limit));
            let op = |name: &'static str| group.as_ref().map_or_else(|| engine.op(name), |group| group.op(name));
            for _ in 0..3 {
                let ran = Arc::new(AtomicUsize::new(0));
                engine.stop(None).unwrap();
                for _ in 0..limit {
                    let ran = Arc::clone(&ran);
                    op("kept").push((), move |()| _ = ran.fetch_add(1, SeqCst)).unwrap();
                }
                let drops = Drops::new();
                let captured = drops.make();
                let refused = op("late").push((), move |()| drop(captured));
                assert_eq!(refused, Err(PushError::Full), "a push to a full engine that is stopped");
                assert_eq!(drops.dropped(), 1, "the function was not dropped");
                for (name, push) in pushes {
                    assert_eq!(push(op(name)), Err(PushError::Full), "{name}");
                }
                assert!(is_full(op("late").if_room()));
                let mut room = pin!(op("waits").when_room());
                assert!(matches!(block_on_within(room.as_mut(), MOMENT / 5), Err(NotInTime)));
                assert_eq!((engine.pending(), ran.load(SeqCst)), (limit as u64, 0), "an operation was pushed or ran");
                engine.start().unwrap();
                block_on(room).unwrap().push((), |()| {}).unwrap();
                op("later").push((), |()| {}).unwrap();
                engine.wait_for_all().unwrap();
                assert_eq!(ran.load(SeqCst), limit);
            }
        });
    }
}

#[test]
fn a_stop_ends_pushes_that_are_held_back() {
    on_limited(&THREADED, 1, 2, |engine| {
        let token = engine.token();
        let behind = hold(&engine, &token);
        // Pushes inside an operation are not held back, so the engine is still full when this operation has ended.
        let (gate, started) = (Gate::new(), Gate::new());
        let (inside, begins, inner, same) = (gate.clone(), started.clone(), engine.downgrade(), token.clone());
        engine
            .op("runs")
            .push((), move |()| {
                for _ in 0..3 {
                    inner.op("behind").writes([&same]).push((), |()| {}).unwrap();
                }
                begins.open();
                inside.pass();
            })
            .unwrap();
        started.pass();
        let mut room = pin!(engine.op("waits").when_room());
        thread::scope(|scope| {
            let pusher = scope.spawn(|| engine.op("held back").push((), |()| {}));
            thread::sleep(MOMENT);
            assert!(!pusher.is_finished(), "the push was not held back");
            assert!(matches!(block_on_within(room.as_mut(), MOMENT / 5), Err(NotInTime)));
            let stop = scope.spawn(|| engine.stop(None));
            let start = Instant::now();
            assert_eq!(pusher.join().unwrap(), Err(PushError::Full));
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            gate.open();
            stop.join().unwrap().unwrap();
        });
        assert!(matches!(block_on_within(room.as_mut(), MOMENT / 5), Err(NotInTime)));
        assert_eq!(engine.pending(), 4, "the held-back push left something behind");
        engine.start().unwrap();
        behind.open();
        block_on(room).unwrap().push((), |()| {}).unwrap();
        engine.wait_for_all().unwrap();
    });
}

/// Threads push, each in another way, while a limited engine is stopped and started. Every accepted operation runs.
#[test]
fn stops_and_starts_of_a_limited_engine_lose_no_operation() {
    on_limited(&THREADED, 2, 4, |engine| {
        let (ran, accepted) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let pushers: Vec<_> = (0..3)
                .map(|way| {
                    let (engine, ran, accepted) = (&engine, &ran, &accepted);
                    scope.spawn(move || {
                        for _ in 0..fewer(2_000) {
                            let ran = Arc::clone(ran);
                            let count = move |()| _ = ran.fetch_add(1, SeqCst);
                            let op = match way {
                                0 => Ok(engine.op("push")),
                                1 => engine.op("if room").if_room(),
                                _ => block_on(engine.op("when room").when_room()),
                            };
                            match op.and_then(|op| op.push((), count)) {
                                Ok(()) => _ = accepted.fetch_add(1, SeqCst),
                                Err(PushError::Full) if way < 2 => thread::yield_now(),
                                Err(error) => panic!("{error}"),
                            }
                        }
                    })
                })
                .collect();
            let (engine, is_over) = (&engine, &is_over);
            scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    engine.stop(None).unwrap();
                    thread::sleep(Duration::from_micros(200));
                    engine.start().unwrap();
                    thread::sleep(Duration::from_micros(200));
                }
            });
            let pushed: Vec<_> = pushers.into_iter().map(|pusher| pusher.join()).collect();
            is_over.store(true, SeqCst);
            pushed.into_iter().for_each(|pushed| pushed.unwrap());
        });
        engine.wait_for_all().unwrap();
        assert_eq!(ran.load(SeqCst), accepted.load(SeqCst));
    });
}

// ------------------------------------------------------------------------------------------------------- memory ----

/// Pushes an operation that owns 32 KiB of memory and keeps its worker for 4 ms, without using a core that the producer
/// needs.
fn push_work(op: OpBuilder<'_>, sum: &Var<usize>) {
    let data = vec![1u8; 32 << 10];
    op.push(sum.write(), move |sum| {
        thread::sleep(Duration::from_millis(4));
        *sum += data.len();
    })
    .unwrap();
}

/// Returns the rate, in operations per second, at which a thread pushes when its pushes are not held back. The workers
/// are as busy as they are with a limit.
fn unlimited_rate(kind: EngineKind) -> f64 {
    let rate = |_| {
        let engine = common::engine(kind, 2);
        let sums = [(); 4].map(|()| engine.var(0));
        let start = Instant::now();
        (0..500).for_each(|n| push_work(engine.op("consume"), &sums[n % 4]));
        let rate = 500.0 / start.elapsed().as_secs_f64();
        engine.shutdown(Shutdown::Cancel, None).unwrap();
        rate
    };
    // Takes the best of three, since this thread may be preempted.
    (0..3).map(rate).fold(0.0, f64::max)
}

/// Pushes work for `time` from a thread that could push over ten times as fast as the work is processed. Naive engines
/// are left out: they run each operation inside its push, so no producer outruns them.
fn overload(kind: EngineKind, is_group_limited: bool, time: Duration) {
    const LIMIT: usize = 200;
    let possible = unlimited_rate(kind);
    let engine = if is_group_limited { common::engine(kind, 2) } else { limited(kind, 2, LIMIT) };
    let group = is_group_limited.then(|| engine.group().max_pending(LIMIT));
    let sums = [(); 4].map(|()| engine.var(0));
    let (start, mut after, mut pushed) = (Instant::now(), 0, 0);
    while start.elapsed() < time {
        for _ in 0..100 {
            let op = group.as_ref().map_or_else(|| engine.op("consume"), |group| group.op("consume"));
            push_work(op, &sums[pushed % 4]);
            pushed += 1;
        }
        assert!(engine.pending() <= LIMIT as u64 + EXCESS);
        if after == 0 && start.elapsed() > time / 4 {
            after = resident_bytes();
        }
    }
    let consumed = (pushed as u64 - engine.pending()) as f64 / start.elapsed().as_secs_f64();
    let end = resident_bytes();
    engine.wait_for_all().unwrap();
    let limit = if is_group_limited { "a group's limit" } else { "a limit" };
    println!("the {kind} engine with {limit}: {possible:.0} pushes/s possible, {consumed:.0}/s done");
    assert!(possible > 10.0 * consumed, "the producer is too slow: {possible:.0}/s, {consumed:.0}/s done");
    assert!(end < after + (8 << 20), "memory grew from {after} to {end} bytes");
}

fn overload_all(time: Duration) {
    for kind in THREADED {
        for is_group_limited in [false, true] {
            watched_for(time + PATIENCE, move || overload(kind, is_group_limited, time));
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "starts a process")]
fn memory_stays_flat_under_overload() {
    child_succeeds("in_a_child_memory_stays_flat_under_overload");
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "measures the memory of its process; run by another test in a separate process"]
fn in_a_child_memory_stays_flat_under_overload() {
    overload_all(Duration::from_millis(1_500));
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "takes a minute for each of four engines, and must run alone"]
fn memory_stays_flat_under_overload_for_a_minute() {
    overload_all(Duration::from_secs(60));
}
