//! After a wait, a function continues in the place of a worker, which then gives way. So at most twice as many
//! functions compute as there are workers, and no more than those once each worker has ended an operation.
//!
//! Each test runs `alone`: a function that queues for a worker goes on without one after a while.

use raddle_testkit as common;

use std::{
    collections::HashSet,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use common::{Gate, MOMENT, PATIENCE, THREADED, at_the_first_deferred_push, eventually, hold, on_kinds, watched};
use raddle::{Engine, EngineKind, OpHandle, Shutdown, Var, blocking, completion};

/// The number of computing functions, and the number of times there were too many.
#[derive(Default)]
struct Computing {
    now: AtomicUsize,
    too_many: AtomicUsize,
}

impl Computing {
    /// Computes for a while. Adds one to `too_many` if at least twice as many other functions as there are `workers`
    /// are already computing.
    fn compute(&self, workers: usize) {
        if self.now.fetch_add(1, Relaxed) >= 2 * workers {
            self.too_many.fetch_add(1, Relaxed);
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(100) {
            std::hint::spin_loop();
        }
        self.now.fetch_sub(1, Relaxed);
    }
}

/// Pushes operations that compute, call `wait` and compute again. Returns the number of times that too many were
/// computing.
fn overlaps(
    engine: &Engine,
    workers: usize,
    wait: impl Fn(&Engine, &Arc<Computing>) + Clone + Send + 'static,
) -> usize {
    let computing = Arc::new(Computing::default());
    for _ in 0..ROUNDS {
        let (inside, computing, wait) = (engine.downgrade(), Arc::clone(&computing), wait.clone());
        let f = move |()| {
            computing.compute(workers);
            wait(&inside, &computing);
            computing.compute(workers);
        };
        engine.op("outer").push((), f).unwrap();
    }
    engine.wait_for_all().unwrap();
    computing.too_many.load(Relaxed)
}

const ROUNDS: usize = 100;

/// The permitted number of overlaps. On a busy machine, a function may continue without a worker because no operation
/// has ended for a long time. If functions did not queue for workers, nearly all would overlap.
const FEW: usize = ROUNDS / 10;

#[test]
fn after_a_wait_at_most_twice_as_many_functions_compute_as_there_are_workers() {
    let _alone = common::alone();
    for workers in [1, 2] {
        on_kinds(&THREADED, workers, move |engine| {
            let overlaps = overlaps(&engine, workers, move |engine, computing| {
                let computing = Arc::clone(computing);
                let mut inner = engine.op("inner").submit((), move |()| computing.compute(workers)).unwrap();
                // This wait has a time limit, since it could otherwise run the operation in place.
                inner.wait_timeout(PATIENCE).unwrap();
            });
            assert!(overlaps <= FEW, "{overlaps} with {workers} workers");
        });
    }
}

/// A function that continues in place of an idle worker and then blocks delays operations only for a while. If the
/// worker is not yet idle when the wait ends, the function receives the worker and blocks it too, so there are several
/// attempts.
#[test]
fn an_idle_worker_ends_its_stay_if_the_function_in_its_place_blocks() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let attempt = || {
            let (go, gone) = mpsc::channel();
            let inside = engine.downgrade();
            let f = move |()| {
                blocking(|| gone.recv()).unwrap();
                let (sender, receiver) = mpsc::channel();
                inside.op("sends").push((), move |()| _ = sender.send(())).unwrap();
                receiver.recv_timeout(Duration::from_secs(1)).is_ok()
            };
            let outer = engine.op("outer").submit((), f).unwrap();
            // The worker becomes idle in the meantime.
            thread::sleep(MOMENT);
            go.send(()).unwrap();
            outer.wait().unwrap()
        };
        assert!((0..5).any(|_| attempt()), "the worker stays idle");
    });
}

/// When the wait ends, the worker is idle. It stays idle, whatever becomes ready, until the function returns or waits
/// again.
#[test]
fn an_idle_worker_does_not_compute_while_a_function_runs_in_its_place() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let (computing, start) = (Arc::new(Computing::default()), Instant::now());
        for _ in 0..ROUNDS {
            let (inside, computing) = (engine.downgrade(), Arc::clone(&computing));
            let f = move |()| {
                for _ in 0..2 {
                    let mut inner = inside.op("inner").submit((), |()| ()).unwrap();
                    inner.wait_timeout(PATIENCE).unwrap();
                    let same = Arc::clone(&computing);
                    inside.op("next").push((), move |()| same.compute(1)).unwrap();
                    computing.compute(1);
                }
            };
            engine.op("outer").submit((), f).unwrap().wait().unwrap();
        }
        engine.wait_for_all().unwrap();
        let overlaps = computing.too_many.load(Relaxed);
        assert!(overlaps <= FEW, "{overlaps}");
        // The worker must not stay idle once the function has returned or is waiting again.
        assert!(start.elapsed() < Duration::from_secs(5), "the worker stays idle: {:?}", start.elapsed());
    });
}

#[test]
fn after_a_blocking_call_at_most_twice_as_many_functions_compute_as_there_are_workers() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let overlaps = overlaps(&engine, 1, |_, _| blocking(|| thread::sleep(Duration::from_micros(50))));
        assert!(overlaps <= FEW, "{overlaps}");
    });
}

/// Runs `f` in an operation that has pushed two others, which block until `f` has returned, without `blocking`: one the
/// only worker, and one in the place of this worker. Passes a gate that opens when the worker is blocked, and the
/// handle of the operation that blocks it.
fn while_the_worker_blocks<R: Send + 'static>(
    engine: &Engine,
    f: impl FnOnce(&Engine, Gate, OpHandle<()>) -> R + Send + 'static,
) -> R {
    let (sender, receiver) = mpsc::channel();
    let (started, inside) = (Gate::new(), engine.downgrade());
    let begins = started.clone();
    let waits = engine.op("waits").submit((), move |()| {
        let (has_worker, end) = (Gate::new(), Gate::new());
        let (may_return, has_ended) = (has_worker.clone(), end.clone());
        let has_place = Gate::new();
        let takes_place = has_place.clone();
        let in_place = move |()| {
            blocking(|| may_return.pass());
            takes_place.open();
            has_ended.pass();
        };
        inside.op("in its place").push((), in_place).unwrap();
        let blocks = inside.op("blocks").submit((), move |()| {
            has_worker.open();
            has_place.pass();
            begins.open();
            receiver.recv_timeout(PATIENCE).unwrap();
        });
        let result = f(&inside, started, blocks.unwrap());
        end.open();
        sender.send(()).unwrap();
        result
    });
    waits.unwrap().wait().unwrap()
}

/// Returns the priorities of the operations by which functions queue for a worker.
fn queued(engine: &Engine) -> Vec<i32> {
    let dump = engine.dump();
    dump.ops().iter().filter(|op| op.internal && op.label() == "return").map(|op| op.priority).collect()
}

/// A function continues at once in the place of the only worker, which runs another operation. This worker gives way
/// before its next operation.
#[test]
fn the_next_worker_to_end_an_operation_gives_way() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let (continued, inside) = (Arc::new(AtomicUsize::new(0)), engine.downgrade());
        let waits = engine.op("waits").submit((), move |()| {
            let (gate, started) = (Gate::new(), Gate::new());
            let (opens, begins) = (gate.clone(), started.clone());
            let long = move |()| {
                begins.open();
                gate.pass();
            };
            inside.op("long").push((), long).unwrap();
            for _ in 0..20 {
                let continued = Arc::clone(&continued);
                inside.op("beside").push((), move |()| _ = continued.fetch_add(1, Relaxed)).unwrap();
            }
            let start = Instant::now();
            blocking(|| started.pass());
            let late = start.elapsed();
            // The worker still runs `long`.
            opens.open();
            busy(&Computing::default(), 1, MOMENT);
            (late, continued.load(Relaxed))
        });
        let (late, began) = waits.unwrap().wait().unwrap();
        assert!(late < Duration::from_millis(80), "the function has queued: {late:?}");
        assert_eq!(began, 0, "operations began beside the function");
    });
}

/// As many functions continue as there are workers, so all workers give way, not only the first that ends an operation.
#[test]
fn as_many_workers_give_way_as_functions_continue() {
    const WORKERS: usize = 3;
    let _alone = common::alone();
    on_kinds(&THREADED, WORKERS, |engine| {
        let (continued, began) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (blocks, started, ends) = (Gate::new(), Gate::new(), Gate::new());
        for _ in 0..WORKERS {
            let (gate, continued) = (blocks.clone(), Arc::clone(&continued));
            let waits = move |()| {
                blocking(|| gate.pass());
                continued.fetch_add(1, Relaxed);
                busy(&Computing::default(), 1, 2 * MOMENT);
                continued.fetch_sub(1, Relaxed);
            };
            engine.op("waits").push((), waits).unwrap();
        }
        let running = Arc::new(AtomicUsize::new(0));
        for _ in 0..WORKERS {
            let (gate, running) = (ends.clone(), Arc::clone(&running));
            let (all, started) = (WORKERS, started.clone());
            let long = move |()| {
                if running.fetch_add(1, Relaxed) + 1 == all {
                    started.open();
                }
                gate.pass();
            };
            engine.op("long").push((), long).unwrap();
        }
        started.pass();
        for _ in 0..200 {
            let (continued, began) = (Arc::clone(&continued), Arc::clone(&began));
            let beside = move |()| {
                if continued.load(Relaxed) == WORKERS {
                    began.fetch_add(1, Relaxed);
                    busy(&Computing::default(), 1, Duration::from_millis(1));
                }
            };
            engine.op("beside").push((), beside).unwrap();
        }
        blocks.open();
        eventually("the functions continue", || continued.load(Relaxed) == WORKERS);
        ends.open();
        engine.wait_for_all().unwrap();
        let began = began.load(Relaxed);
        assert!(began <= 2 * WORKERS, "{began} operations began beside the functions");
    });
}

/// The only worker blocks as well, so a function that queues for it stays in the queue.
#[test]
fn a_function_does_not_queue_for_a_worker_inside_a_blocking_call() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let queued = while_the_worker_blocks(&engine, |inside, blocked, _| {
            blocking(|| {
                blocked.pass();
                blocking(|| ());
                queued(inside)
            })
        });
        assert_eq!(queued, [0; 0]);
    });
}

/// Returns a variable held by an operation that ends on another thread, a little later.
fn held_elsewhere(engine: &Engine) -> Var<i32> {
    let value = engine.var(0);
    let held = engine.op("held").push((value.write(), completion()), |(_, done)| {
        common::harness::elsewhere(move || {
            thread::sleep(Duration::from_micros(50));
            done.complete();
        });
    });
    held.unwrap();
    value
}

/// A form of wait for an operation that computes, and that is ready unless the variable is held elsewhere. If the
/// operation is ready, the waiter runs it in place; otherwise, the waiter hands its worker over.
type Wait = fn(&Engine, &Var<i32>, Arc<Computing>, usize);

const WAITS: [(&str, Wait); 6] = [
    ("a wait for a handle", |engine, value, computing, most| {
        engine.op("inner").submit(value.read(), move |_| computing.compute(most)).unwrap().wait().unwrap();
    }),
    ("a wait for a variable", |engine, value, computing, most| {
        engine.op("inner").push(value.write(), move |_| computing.compute(most)).unwrap();
        engine.wait_for_var(value).unwrap();
    }),
    ("a read of a variable", |engine, value, computing, most| {
        engine.op("inner").push(value.write(), move |_| computing.compute(most)).unwrap();
        engine.get(value).unwrap();
    }),
    ("a wait for a group", |engine, value, computing, most| {
        let group = engine.group();
        for _ in 0..2 {
            let computing = Arc::clone(&computing);
            group.op("inner").push(value.read(), move |_| computing.compute(most)).unwrap();
        }
        group.wait().unwrap();
    }),
    ("a wait for a group with a time limit", |engine, value, computing, most| {
        let group = engine.group();
        group.op("inner").push(value.read(), move |_| computing.compute(most)).unwrap();
        group.wait_timeout(PATIENCE).unwrap();
    }),
    ("the end of a scope", |engine, value, computing, most| {
        let computing = &*computing;
        let scoped = engine.scope(|s| {
            for _ in 0..2 {
                s.op("inner").push(value.read(), |_| computing.compute(most)).unwrap();
            }
        });
        scoped.unwrap();
    }),
];

#[test]
fn after_waits_of_every_form_at_most_twice_as_many_functions_compute_as_there_are_workers() {
    let _alone = common::alone();
    for (what, wait) in WAITS {
        for is_ready in [true, false] {
            for workers in [1, 2] {
                on_kinds(&THREADED, workers, move |engine| {
                    let overlaps = overlaps(&engine, workers, move |engine, computing| {
                        let value = if is_ready { engine.var(0) } else { held_elsewhere(engine) };
                        wait(engine, &value, Arc::clone(computing), workers);
                    });
                    let ready = if is_ready { "an operation that is ready" } else { "an operation that is not ready" };
                    assert!(overlaps <= FEW, "{overlaps} with {workers} workers, after {what}, for {ready}");
                });
            }
        }
    }
}

#[test]
fn after_a_read_of_a_variable_at_most_twice_as_many_functions_compute_as_there_are_workers() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(0);
        let overlaps = overlaps(&engine, 1, move |engine, computing| {
            let computing = Arc::clone(computing);
            engine.op("inner").push(value.write(), move |_| computing.compute(1)).unwrap();
            // This wait has a time limit, since it could otherwise run the operation in place.
            engine.get_timeout(&value, PATIENCE).unwrap();
        });
        assert!(overlaps <= FEW, "{overlaps}");
    });
}

#[test]
fn after_another_engine_has_ended_at_most_twice_as_many_functions_compute_as_there_are_workers() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let overlaps = overlaps(&engine, 1, |engine, computing| {
            let other = common::engine(engine.kind(), 1);
            let (inside, same) = (engine.clone(), Arc::clone(computing));
            // The other engine ends only after this operation, which needs the first engine's worker.
            let f = move |()| {
                let inner = inside.op("inner").submit((), move |()| same.compute(1)).unwrap();
                inner.wait().unwrap();
            };
            other.op("waits").push((), f).unwrap();
            other.shutdown(Shutdown::Drain, None).unwrap();
        });
        assert!(overlaps <= FEW, "{overlaps} overlaps after the end");
    });
}

#[test]
fn after_another_engine_was_stopped_at_most_twice_as_many_functions_compute_as_there_are_workers() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let other = common::engine(engine.kind(), 1);
        let overlaps = overlaps(&engine, 1, move |engine, computing| {
            let (inside, same) = (engine.clone(), Arc::clone(computing));
            let f = move |()| {
                let inner = inside.op("inner").submit((), move |()| same.compute(1)).unwrap();
                inner.wait().unwrap();
            };
            let waits = other.op("waits").submit((), f).unwrap();
            other.stop(None).unwrap();
            other.start().unwrap();
            waits.wait().unwrap();
        });
        assert!(overlaps <= FEW, "{overlaps} overlaps after the stop");
    });
}

/// The only worker blocks, without `blocking`, until the function resumes after its wait.
#[test]
fn a_function_continues_without_a_worker_if_none_becomes_free() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let (started, inside) = (Gate::new(), engine.downgrade());
        let begins = started.clone();
        let waits = engine.op("waits").submit((), move |()| {
            let blocks = inside.op("blocks").submit((), move |()| {
                begins.open();
                receiver.recv_timeout(PATIENCE)
            });
            blocking(|| started.pass());
            sender.send(7).unwrap();
            blocks.unwrap().wait().unwrap()
        });
        assert_eq!(waits.unwrap().wait().unwrap(), Ok(7));
        let mut next = engine.op("next").submit((), |()| 7).unwrap();
        assert_eq!(next.wait_timeout(PATIENCE).unwrap(), 7, "the engine has lost its worker");
    });
}

/// The only worker blocks, and its place is lent, so the function continues without one, but has queued for it after
/// each call.
#[test]
fn a_function_queues_for_a_worker_behind_ready_operations_now_and_then() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let queued = while_the_worker_blocks(&engine, |inside, blocked, _| {
            blocking(|| blocked.pass());
            (1..18).for_each(|_| blocking(|| ()));
            queued(inside)
        });
        assert_eq!((queued.len(), queued.iter().filter(|priority| **priority == 0).count()), (18, 1));
    });
}

/// The only worker blocks, so the function continues without one.
#[test]
fn a_poll_without_a_worker_does_not_queue_for_one() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let queued = while_the_worker_blocks(&engine, |inside, blocked, mut blocks| {
            blocking(|| blocked.pass());
            [(); 3].map(|()| {
                assert!(common::poll_once(&mut blocks).is_pending());
                queued(inside).len()
            })
        });
        assert_eq!(queued, [1; 3], "a poll has queued for a worker");
    });
}

/// The time limit of a wait includes the time spent in the queue for a worker.
#[test]
fn a_wait_that_times_out_does_not_queue_for_a_worker() {
    let _alone = common::alone();
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(0);
        let held = hold(&engine, value.as_ref());
        let took = while_the_worker_blocks(&engine, move |inside, blocked, _| {
            blocking(|| blocked.pass());
            let start = Instant::now();
            assert!(inside.wait_for_var_timeout(&value, MOMENT).is_err());
            start.elapsed()
        });
        held.open();
        assert!(took < MOMENT + Duration::from_millis(80), "{took:?}");
    });
}

/// A thread that has given up its worker takes the next worker that is given up.
#[test]
fn consecutive_waits_need_no_further_threads() {
    let _alone = common::alone();
    // On other systems, a thread that is pinned cannot run another worker.
    for pin in [false, cfg!(target_os = "linux")] {
        watched(move || {
            let engine = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(pin).build().unwrap();
            let inside = engine.downgrade();
            let threads = engine.op("waits").submit((), move |()| {
                let mut threads = HashSet::new();
                for _ in 0..200 {
                    let mut inner = inside.op("inner").submit((), |()| thread::current().id()).unwrap();
                    threads.insert(inner.wait_timeout(PATIENCE).unwrap());
                }
                threads.len()
            });
            // A thread that has just given up its worker may not be ready for another yet.
            let threads = threads.unwrap().wait().unwrap();
            assert!(threads <= 4, "{threads}, pinned: {pin}");
        });
    }
}

/// A function may be about to regain a worker after a wait when the engine is stopped, started or shut down.
#[test]
fn functions_that_wait_end_while_the_engine_is_stopped_and_started() {
    let _alone = common::alone();
    for kind in THREADED {
        watched(move || {
            for round in 0..30 {
                let engine = common::engine(kind, 1 + round % 2);
                for _ in 0..20 {
                    let inside = engine.downgrade();
                    let waits = move |()| {
                        let mut inner = inside.op("inner").submit((), |()| ()).unwrap();
                        inner.wait_timeout(PATIENCE).unwrap();
                    };
                    engine.op("waits").push((), waits).unwrap();
                }
                let _ = engine.stop(Some(MOMENT));
                engine.start().unwrap();
                engine.wait_for_all().unwrap();
                engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
            }
        });
    }
}

// ----------------------------------------------------------------------------------------------- program code ----

/// [Computes](Computing::compute) repeatedly for `time`.
fn busy(computing: &Computing, most: usize, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        computing.compute(most);
    }
}

/// The waker runs in the epilogue of `beside`, which leaves its worker to a blocked function.
#[test]
fn a_waker_does_not_compute_while_a_function_uses_its_worker() {
    let _alone = common::alone();
    struct Computes(Arc<Computing>, mpsc::Sender<()>);
    impl Wake for Computes {
        fn wake(self: Arc<Self>) {
            busy(&self.0, 1, MOMENT);
            let _ = self.1.send(());
        }
    }
    for kind in THREADED {
        watched(move || {
            let engine = Engine::builder().kind(kind).workers(1).pin(false).max_pending(3).build().unwrap();
            for _ in 0..5 {
                let computing = Arc::new(Computing::default());
                let (blocks, ends, started) = (Gate::new(), Gate::new(), Gate::new());
                let (gate, at) = (ends.clone(), started.clone());
                let beside = move |()| {
                    at.open();
                    gate.pass();
                };
                // One of them continues in the worker's place, and the other queues for the worker.
                for _ in 0..2 {
                    let (gate, own) = (blocks.clone(), Arc::clone(&computing));
                    let blocked = move |()| {
                        blocking(|| gate.pass());
                        busy(&own, 1, MOMENT);
                    };
                    engine.op("blocked").push((), blocked).unwrap();
                }
                engine.op("beside").push((), beside).unwrap();
                started.pass();
                let (sender, woken) = mpsc::channel();
                let waker = Waker::from(Arc::new(Computes(Arc::clone(&computing), sender)));
                let mut room = pin!(engine.op("later").when_room());
                assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                blocks.open();
                let queues = || engine.dump().ops().iter().any(|op| op.internal && op.label() == "return");
                eventually("a function queues for the worker", queues);
                ends.open();
                woken.recv_timeout(PATIENCE).unwrap();
                engine.wait_for_all().unwrap();
                assert_eq!(computing.too_many.load(Relaxed), 0);
            }
        });
    }
}

/// A poll runs the operations that its thread has deferred. Here, little stack is left, so another thread runs them,
/// and afterwards the function continues in the worker's place, which gives way.
#[test]
fn after_a_poll_the_worker_gives_way() {
    let _alone = common::alone();
    for kind in THREADED {
        watched(move || {
            let (engine, naive) = (common::engine(kind, 1), common::engine(EngineKind::Naive, 1));
            let computing = Arc::new(Computing::default());
            let (inside, own) = (engine.downgrade(), Arc::clone(&computing));
            let outer = engine.op("outer").submit((), move |()| {
                let f = move |mut next: OpHandle<()>| {
                    for _ in 0..3 {
                        let beside = Arc::clone(&own);
                        inside.op("beside").push((), move |()| busy(&beside, 1, MOMENT)).unwrap();
                    }
                    assert!(common::poll_once(&mut next).is_ready());
                    own.now.fetch_add(10, Relaxed);
                    thread::sleep(3 * MOMENT / 2);
                    own.now.fetch_sub(10, Relaxed);
                };
                at_the_first_deferred_push(&naive, f);
            });
            outer.unwrap().wait().unwrap();
            engine.wait_for_all().unwrap();
            // One operation may have begun before.
            let beside = computing.too_many.load(Relaxed);
            assert!(beside <= 600, "{beside} parts of operations beside the function");
        });
    }
}

/// A stop pushes its own operations, and waits for the wakers called when these end.
#[test]
fn no_waker_runs_after_a_stop() {
    let _alone = common::alone();
    struct Computes(AtomicUsize);
    impl Wake for Computes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
            thread::sleep(MOMENT);
            self.0.fetch_add(1, Relaxed);
        }
    }
    for kind in THREADED {
        watched(move || {
            let engine = Engine::builder().kind(kind).workers(2).pin(false).build().unwrap();
            for _ in 0..10 {
                let waker = Arc::new(Computes(AtomicUsize::new(0)));
                thread::scope(|threads| {
                    let stop = threads.spawn(|| engine.stop(None).unwrap());
                    let mut all = pin!(engine.wait_for_all_async());
                    let context = Waker::from(Arc::clone(&waker));
                    let _ = all.as_mut().poll(&mut Context::from_waker(&context));
                    stop.join().unwrap();
                    assert_ne!(waker.0.load(Relaxed), 1, "a waker runs although the engine is stopped");
                });
                engine.start().unwrap();
            }
        });
    }
}
