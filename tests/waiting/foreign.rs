//! Program code run by the engine: once the operation has released its variables, the code may wait for dependent
//! operations, push, block, panic, and drop the last handle to the engine.
//!
//! The first tests visit every place in [`places_after_release`], where an operation has released its variables. The
//! tests of deletions visit every entry in [`DELETIONS`], where an operation still holds them. The remaining tests are
//! about devices and wakers.

use raddle_testkit as common;

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use common::shapes::*;
use common::{Gate, KINDS, MOMENT, PATIENCE, SOON, THREADED, engine, eventually, hold, lock, on_kinds, watched};
use raddle::{
    Engine, EngineKind, OpContext, OpHandle, PushError, Shutdown, Var, WaitError, WeakEngine, chosen, gpu::SimulatedGpu,
};

type Act = Box<dyn FnOnce() + Send>;

/// Program code that runs once, when dropped or woken.
struct Foreign(Option<Act>);

impl Foreign {
    fn new(act: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(act)))
    }

    fn run(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.run();
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("foreign")
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("foreign")
    }
}

/// An error whose drop runs program code. The mutex makes it `Sync`, since errors are shared between threads.
#[derive(Debug)]
struct Failing(#[allow(dead_code, reason = "held only to be dropped")] Mutex<Foreign>);

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as planned")
    }
}

impl std::error::Error for Failing {}

fn failing(foreign: Foreign) -> Failing {
    Failing(Mutex::new(foreign))
}

struct OnWake(Mutex<Foreign>);

impl Wake for OnWake {
    fn wake(self: Arc<Self>) {
        let act = lock(&self.0).0.take();
        act.into_iter().for_each(|act| act());
    }
}

/// Polls `future` once, with a waker that runs `foreign`. Returns the future, which keeps the waker.
fn poll_with_waker<F: Future + Send + 'static>(mut future: Pin<Box<F>>, foreign: Foreign) -> Box<dyn Any + Send>
where
    F::Output: Send,
{
    let waker = Waker::from(Arc::new(OnWake(Mutex::new(foreign))));
    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "the future must be pending");
    // The future now holds the only clone of the waker.
    drop(waker);
    Box::new(future)
}

/// A function that makes the engine run program code at one place: it pushes the operations that lead there, on a held
/// variable, and returns a value that must outlive the run of the code.
type Place = fn(&Engine, &Var<u32>, Foreign) -> Box<dyn Any + Send>;

/// Returns the places where an operation has released its variables, by name.
fn places_after_release() -> Vec<(&'static str, Place)> {
    vec![
        ("a value captured by a skipped function", |engine, var, foreign| {
            engine.op("fails").push_any(var.write(), |_| Err("as planned")).unwrap();
            engine.op("skipped").push(var.write(), move |_| drop(foreign)).unwrap();
            Box::new(())
        }),
        ("a value captured by a skipped function with a handle", |engine, var, foreign| {
            engine.op("fails").push_any(var.write(), |_| Err("as planned")).unwrap();
            drop(engine.op("skipped").submit(var.write(), move |_| drop(foreign)).unwrap());
            Box::new(())
        }),
        ("a value captured by a skipped asynchronous function", |engine, var, foreign| {
            engine.op("fails").push_any(var.write(), |_| Err("as planned")).unwrap();
            let skipped = engine.op("skipped").writes([var]);
            skipped.push_async_any(raddle::cx(), move |_, _done| drop(foreign)).unwrap();
            Box::new(())
        }),
        ("a result whose handle is dropped", |engine, var, foreign| {
            drop(engine.op("result").submit(var.write(), move |_| foreign).unwrap());
            Box::new(())
        }),
        ("an overwritten error", |engine, var, foreign| {
            engine.op("fails").push_any(var.write(), move |_| Err(failing(foreign))).unwrap();
            engine.op("overwrites").push(var.overwrite(), |_| ()).unwrap();
            Box::new(())
        }),
        ("a cleared error", |engine, var, foreign| {
            engine.op("fails").push_any(var.write(), move |_| Err(failing(foreign))).unwrap();
            engine.clear_error(var).unwrap();
            Box::new(())
        }),
        ("the overwritten error of a completion", |engine, var, foreign| {
            let fails = engine.op("fails").writes([var]);
            fails
                .push_async_any(raddle::cx(), move |_, done| _ = thread::spawn(move || done.fail(failing(foreign))))
                .unwrap();
            engine.op("overwrites").push(var.overwrite(), |_| ()).unwrap();
            Box::new(())
        }),
        ("the overwritten payload of a panic", |engine, var, foreign| {
            let fails = engine.op("fails").writes([var]);
            fails.push_sync(move |_| std::panic::resume_unwind(Box::new(foreign))).unwrap();
            engine.op("overwrites").push(var.overwrite(), |_| ()).unwrap();
            Box::new(())
        }),
        ("the waker of a handle", |engine, var, foreign| {
            poll_with_waker(Box::pin(engine.op("awaited").submit(var.write(), |_| ()).unwrap()), foreign)
        }),
        ("the waker of a wait for a variable", |engine, var, foreign| {
            engine.op("before").push(var.write(), |_| ()).unwrap();
            poll_with_waker(Box::pin(engine.wait_for_var_async(var)), foreign)
        }),
        ("the waker of a wait to read", |engine, var, foreign| {
            engine.op("before").push(var.write(), |_| ()).unwrap();
            poll_with_waker(Box::pin(engine.wait_to_read_async(var)), foreign)
        }),
        ("the waker of a wait for all", |engine, var, foreign| {
            engine.op("before").push(var.write(), |_| ()).unwrap();
            poll_with_waker(Box::pin(engine.wait_for_all_async()), foreign)
        }),
        ("the waker of a wait for all that ends with a handle's operation", |engine, var, foreign| {
            let handle = engine.op("before").submit(var.write(), |_| ()).unwrap();
            Box::new((handle, poll_with_waker(Box::pin(engine.wait_for_all_async()), foreign)))
        }),
    ]
}

/// Visits each place on each kind of engine. `act` returns the code that runs there, and `check` asserts its effects.
fn at_every_place(
    act: impl Fn(&Engine, &Var<u32>) -> Act + Clone + Send + 'static,
    check: impl Fn(&str, &Engine, &Var<u32>) + Clone + Send + 'static,
) {
    for kind in KINDS {
        for (name, place) in places_after_release() {
            let (act, check) = (act.clone(), check.clone());
            watched(move || {
                println!("{name}, on the {kind} engine");
                let engine = engine(kind, 2);
                let var = engine.var(0);
                let gate = hold(&engine, var.token());
                let _kept = place(&engine, &var, Foreign::new(act(&engine, &var)));
                engine.op("next").run_always().push(var.write(), |value| *value += 1).unwrap();
                gate.open();
                check(name, &engine, &var);
            });
        }
    }
}

/// Like [`at_every_place`], but the code returns a value. `check` receives the value, or an error if the code does not
/// return within `limit`.
fn results_at_every_place<T: Send + 'static>(
    limit: Duration,
    act: impl Fn(&Engine, &Var<u32>) -> Box<dyn Fn() -> T + Send> + Clone + Send + 'static,
    check: impl Fn(&str, Result<T, mpsc::RecvTimeoutError>) + Clone + Send + 'static,
) {
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    at_every_place(
        move |engine, var| {
            let (act, sender) = (act(engine, var), sender.clone());
            Box::new(move || sender.send(act()).unwrap())
        },
        move |name, _, _| check(name, lock(&receiver).recv_timeout(limit)),
    );
}

#[test]
fn program_code_may_wait_for_dependent_operations() {
    results_at_every_place(
        SOON,
        |engine, var| {
            let (engine, var) = (engine.clone(), var.clone());
            Box::new(move || engine.wait_for_var(&var).map(|()| var.version()))
        },
        |name, received| match received {
            // If the place involves a failure, the wait returns it; even then, the next operation has ended.
            Ok(Ok(_) | Err(WaitError::Failed(_))) => {}
            other => panic!("{name}: {other:?}"),
        },
    );
}

#[test]
fn program_code_may_wait_for_an_operation_it_pushes() {
    results_at_every_place(
        SOON,
        |engine, _| {
            let engine = engine.clone();
            Box::new(move || engine.op("pushed").submit((), |()| 7).unwrap().wait())
        },
        |name, received| assert!(matches!(received, Ok(Ok(7))), "{name}: {received:?}"),
    );
}

/// The operation has released its variables, so a scope may name them.
#[test]
fn program_code_may_open_a_scope_that_names_what_its_operation_has_declared() {
    results_at_every_place(
        SOON,
        |engine, var| {
            let (engine, var) = (engine.clone(), var.clone());
            Box::new(move || engine.scope(|s| s.op("inside").run_always().push(var.read(), |_| ())))
        },
        |name, received| assert!(matches!(received, Ok(Ok(Ok(())))), "{name}: {received:?}"),
    );
}

/// The engine cannot see that the code blocks. The other worker is idle and must run both operations.
#[test]
fn dependent_and_pushed_operations_run_while_program_code_blocks() {
    results_at_every_place(
        3 * SOON,
        |engine, var| {
            let (engine, var, gates) = (engine.clone(), var.clone(), [Gate::new(), Gate::new()]);
            let naive = engine.kind() == EngineKind::Naive;
            Box::new(move || {
                let [dependent, pushed] = gates.clone();
                engine.op("pushed").push((), move |()| pushed.open()).unwrap();
                engine.op("dependent").run_always().push(var.read(), move |_| dependent.open()).unwrap();
                // The naive engine runs the dependent operation on this thread, after the code returns.
                gates[1].pass_within(SOON) && (naive || gates[0].pass_within(SOON))
            })
        },
        |name, received| assert_eq!(received, Ok(true), "{name}: an operation has not run"),
    );
}

#[test]
fn a_panic_in_program_code_loses_no_operation() {
    at_every_place(
        |_, _| Box::new(|| std::panic::resume_unwind(Box::new("foreign"))),
        |name, engine, var| {
            // One error is the operation's failure. Another is the panic, if an operation can report it.
            while engine.wait_for_all_timeout(PATIENCE).is_err() {}
            assert!(var.version() >= 1, "{name}: the next operation has not run");
            let more = engine.op("more").run_always().submit(var.write(), |_| ()).unwrap();
            more.wait().unwrap_or_else(|error| panic!("{name}: {error}"));
        },
    );
}

#[test]
fn program_code_may_drop_the_last_handle_of_the_engine() {
    for kind in KINDS {
        for (name, place) in places_after_release() {
            watched(move || {
                println!("{name}, on the {kind} engine");
                let own = engine(kind, 2);
                let observer = own.op("").submit((), |()| ()).map(|_| observer(&own)).unwrap();
                let var = own.var(0);
                let gate = hold(&own, var.token());
                let (last, kept) = (own.clone(), own);
                let kept = (place(&kept, &var, Foreign::new(move || drop(last))), kept);
                let ran = Gate::new();
                let opens = ran.clone();
                kept.1.op("next").run_always().push(var.write(), move |_| opens.open()).unwrap();
                drop(kept.1);
                gate.open();
                eventually("the engine refuses pushes", || {
                    observer.push_sync(|_| {}, [], []) == Err(PushError::ShutDown)
                });
                observer.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(ran.is_open(), "{name}: the next operation has not run");
            });
        }
    }
}

/// Returns a handle that does not keep the engine open.
fn observer(engine: &Engine) -> WeakEngine {
    let (sender, receiver) = mpsc::channel();
    engine.push_sync(move |cx| sender.send(cx.engine()).unwrap(), [], []).unwrap();
    receiver.recv_timeout(PATIENCE).expect("the operation should run")
}

// --------------------------------------------------------------------------------------------- before the release ----

/// A function that makes a deletion run program code.
type Deletes = fn(&Engine, Foreign);

const DELETIONS: [(&str, Deletes); 5] = [
    ("the function of a deletion", |engine, foreign| {
        engine.delete_variable(engine.token(), move |_| drop(foreign)).unwrap();
    }),
    ("the value of a deleted variable", |engine, foreign| {
        engine.delete_variable(engine.var(foreign), |_| ()).unwrap();
    }),
    ("the value of a variable whose last handle is dropped", |engine, foreign| drop(engine.var(foreign))),
    ("a value captured by an operator", |engine, foreign| {
        let (var, foreign) = (engine.token(), Mutex::new(foreign));
        let f = move |_: &OpContext<'_>| drop(lock(&foreign));
        drop(engine.op("operator").reads([&var]).operator_sync(f).unwrap());
    }),
    ("a value captured by an operator whose variables are chosen at each push", |engine, foreign| {
        let foreign = Mutex::new(foreign);
        let f = move |(), (), ()| drop(lock(&foreign));
        drop(engine.op("operator").operator_on(chosen::writes(), (), f).unwrap());
    }),
];

/// As in [`DELETIONS`], but on an open engine only.
const OF_A_FAILED_VARIABLE: (&str, Deletes) =
    ("a value captured by an operator of a failed variable", |engine, foreign| {
        let (var, foreign) = (engine.token(), Mutex::new(foreign));
        engine.op("fails").writes([&var]).push_sync(|_| Err::<(), _>("no")).unwrap();
        assert!(engine.wait_for_var(&var).is_err());
        let f = move |_: &OpContext<'_>| drop(lock(&foreign));
        drop(engine.op("operator").reads([&var]).operator_sync(f).unwrap());
    });

/// Each wait inside a deletion is refused.
#[test]
fn deletions_may_push_and_panic_but_not_wait() {
    for (name, deletes) in DELETIONS.into_iter().chain([OF_A_FAILED_VARIABLE]) {
        on_kinds(&KINDS, 2, move |engine| {
            let (sender, receiver) = mpsc::channel();
            let (idle, inside, ran) = (engine.var(5), engine.clone(), Gate::new());
            let opens = ran.clone();
            deletes(
                &engine,
                Foreign::new(move || {
                    let handle = inside.op("pushed").submit((), move |()| opens.open()).unwrap();
                    let waits = [
                        inside.wait_for_var(&idle),
                        inside.wait_to_read_timeout(&idle, Duration::MAX),
                        inside.wait_for_all(),
                        inside.get(&idle).map(|_| ()),
                        handle.wait(),
                    ];
                    sender.send(waits).unwrap();
                    std::panic::resume_unwind(Box::new("foreign"));
                }),
            );
            for refused in receiver.recv_timeout(PATIENCE).expect("the deletion should run") {
                assert!(matches!(refused, Err(WaitError::InDeletion)), "{name}: {refused:?}");
            }
            ran.pass();
            assert!(engine.wait_for_all().is_err(), "{name}: the panic was not reported");
            engine.wait_for_all().unwrap_or_else(|error| panic!("{name}: {error}"));
        });
    }
}

/// On a naive engine, the pushed operation runs within the deletion.
#[test]
fn operations_pushed_by_a_deletion_may_wait() {
    for (name, deletes) in DELETIONS {
        on_kinds(&KINDS, 2, move |engine| {
            let (sender, receiver) = mpsc::channel();
            let (inside, idle) = (engine.clone(), engine.var(5));
            let pushes = move || {
                let waits = inside.clone();
                let pushed = inside.op("waits").push((), move |()| {
                    let waited = [waits.wait_for_var(&idle), waits.get(&idle).map(|_| ())];
                    sender.send(waited).unwrap();
                });
                pushed.unwrap();
            };
            deletes(&engine, Foreign::new(pushes));
            for waited in receiver.recv_timeout(PATIENCE).expect("the pushed operation should run") {
                waited.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        });
    }
}

/// A value whose clone runs program code.
struct OnClone(Arc<Mutex<Foreign>>);

impl Clone for OnClone {
    fn clone(&self) -> Self {
        lock(&self.0).run();
        Self(Arc::clone(&self.0))
    }
}

/// The push must be refused, since no thread is left to run the operation.
#[test]
fn program_code_run_after_a_shutdown_may_not_push() {
    let ways = DELETIONS.into_iter().chain([(
        "the clone of a value",
        (|engine, foreign| {
            engine.get(&engine.var(OnClone(Arc::new(Mutex::new(foreign))))).unwrap();
        }) as Deletes,
    )]);
    for (name, way) in ways {
        on_kinds(&KINDS, 2, move |engine| {
            engine.shutdown(Shutdown::Drain, None).unwrap();
            let (sender, receiver) = mpsc::channel();
            let inside = engine.clone();
            way(&engine, Foreign::new(move || sender.send(inside.push_sync(|_| (), [], [])).unwrap()));
            let pushed = receiver.recv_timeout(PATIENCE).expect("the program code should run");
            assert!(matches!(pushed, Err(PushError::ShutDown)), "{name}: {pushed:?}");
            engine.shutdown(Shutdown::Drain, None).unwrap();
        });
    }
}

/// Waits are refused even if nothing is pending, both in the operation's function and in the kernel on the device.
#[test]
fn device_functions_and_kernels_may_not_wait() {
    on_kinds(&KINDS, 2, |plain| {
        let engine = Engine::builder().kind(plain.kind()).workers(2).pin(false).gpu(SimulatedGpu::default()).build();
        let engine = engine.unwrap();
        let gpu = raddle::Device::Gpu(0);
        let memory = engine.device_var::<u32>(gpu, 1).unwrap();
        let (sender, receiver) = mpsc::channel();
        let idle = engine.var(5);
        let waits =
            move |engine: &Engine| [engine.wait_for_var(&idle), engine.wait_for_all(), engine.get(&idle).map(|_| ())];
        let (inside, from_function, waits_in_function) = (engine.clone(), sender.clone(), waits.clone());
        let launch = move |stream: &mut raddle::gpu::GpuStream, memory: &mut _| {
            from_function.send(waits_in_function(&inside)).unwrap();
            let kernel = move |_: &mut [u32]| sender.send(waits(&inside)).unwrap();
            stream.simulated().expect("the device should be simulated").launch(Duration::ZERO, memory, kernel)
        };
        engine.op("launch").on(gpu).launch_any(memory.write(), launch).unwrap();
        for place in ["the function", "the kernel"] {
            for refused in receiver.recv_timeout(PATIENCE).expect("the device function and the kernel should run") {
                assert!(matches!(refused, Err(WaitError::OnDevice)), "{place}: {refused:?}");
            }
        }
        engine.wait_for_all().unwrap();
    });
}

/// Runs `f` in a device operation's function on a new engine, on the thread of the GPU's lane.
fn on_another_device(f: impl FnOnce() + Send + 'static) {
    let engine = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).gpu(SimulatedGpu::default());
    let engine = engine.build().unwrap();
    let memory = engine.device_var::<u32>(raddle::Device::Gpu(0), 1).unwrap();
    let launch = move |_: &mut raddle::gpu::GpuStream, _: &mut _| f();
    engine.op("launch").on(raddle::Device::Gpu(0)).launch_any(memory.write(), launch).unwrap();
    engine.wait_for_all().unwrap();
}

#[test]
fn a_completion_on_the_device_of_another_engine_wakes_the_waiters() {
    on_kinds(&KINDS, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let token = engine.token();
        engine
            .op("held")
            .writes([&token])
            .push_async_any(raddle::cx(), move |_, done| sender.send(done).unwrap())
            .unwrap();
        let done = receiver.recv_timeout(PATIENCE).expect("the operation should start");
        let woken = [Gate::new(), Gate::new()];
        let opens = woken.clone().map(|gate| Foreign::new(move || gate.open()));
        let [of_variable, of_all] = opens;
        let _kept = [
            poll_with_waker(Box::pin(engine.wait_for_var_async(&token)), of_variable),
            poll_with_waker(Box::pin(engine.wait_for_all_async()), of_all),
        ];
        on_another_device(move || done.fail("as planned"));
        woken.iter().for_each(|woken| assert!(woken.pass_within(SOON), "a waiter was not woken"));
        assert!(engine.wait_for_all().is_err(), "the failure was not returned");
    });
}

/// A link in a chain of values, each owning the next. Nested drops would overflow the stack.
struct Link(#[expect(dead_code, reason = "held only to be dropped")] Option<Var<Link>>, Arc<AtomicUsize>);

impl Drop for Link {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
    }
}

#[test]
fn values_dropped_after_a_shutdown_on_the_device_of_another_engine_are_freed() {
    const LINKS: usize = 20_000;
    on_kinds(&KINDS, 1, |engine| {
        let gone = Arc::new(AtomicUsize::new(0));
        let link = |chain, _| Some(engine.var(Link(chain, Arc::clone(&gone))));
        let chain = (0..LINKS).fold(None, link);
        let panics = engine.var(Foreign::new(|| std::panic::resume_unwind(Box::new("foreign"))));
        engine.shutdown(Shutdown::Drain, None).unwrap();
        on_another_device(move || drop((chain, panics)));
        assert_eq!(gone.load(SeqCst), LINKS);
        assert!(engine.wait_for_all().is_err(), "the panic was not returned");
        engine.shutdown(Shutdown::Drain, None).unwrap();
    });
}

/// An operation pushed by the function runs after the function has returned, even if the function checks whether the
/// operation is done.
#[test]
fn no_operation_runs_inside_a_device_function() {
    watched(|| {
        let engine = Engine::builder().kind(EngineKind::Naive).gpu(SimulatedGpu::default()).build().unwrap();
        let memory = engine.device_var::<u32>(raddle::Device::Gpu(0), 1).unwrap();
        let (inside, runs, ran) = (engine.clone(), Gate::new(), Gate::new());
        let opens = ran.clone();
        let launch = move |_: &mut raddle::gpu::GpuStream, _: &mut _| {
            let begins = runs.clone();
            let pushed = inside.op("pushed").submit((), move |()| begins.open()).unwrap();
            assert!(!pushed.is_done() && !runs.is_open(), "the operation has run inside the device function");
            opens.open();
        };
        engine.op("launch").on(raddle::Device::Gpu(0)).launch_any(memory.write(), launch).unwrap();
        engine.wait_for_all().unwrap();
        assert!(ran.is_open());
    });
}

/// Returns the completion of an operation that has started and mutates `var`.
fn completion_of(engine: &Engine, var: &Var<i32>) -> raddle::Completion {
    let (sender, receiver) = mpsc::channel();
    let held = engine.op("held").writes([var]);
    held.push_async_any(raddle::cx(), move |_, done| sender.send(done).unwrap()).unwrap();
    receiver.recv_timeout(PATIENCE).expect("the operation should start")
}

/// On a threaded engine, another thread takes over the waiting thread's remaining wakers.
#[test]
fn a_waker_that_waits_does_not_keep_other_wakers_from_running() {
    on_kinds(&KINDS, 1, |engine| {
        let (var, other) = (engine.var(0), engine.var(0));
        let done = completion_of(&engine, &other);
        let gate = hold(&engine, var.token());
        let (waited, has_waited) = mpsc::channel();
        let inside = engine.clone();
        let handle = engine.op("awaited").submit(var.write(), |_| ()).unwrap();
        let waits = move || waited.send(inside.wait_for_var(&other)).unwrap();
        let _handle = poll_with_waker(Box::pin(handle), Foreign::new(waits));
        let completes = move || done.complete();
        let _next = poll_with_waker(Box::pin(engine.wait_for_var_async(&var)), Foreign::new(completes));
        gate.open();
        has_waited.recv_timeout(PATIENCE).expect("both wakers should run").unwrap();
    });
}

/// If the waiting thread ran the other waker, the lock would never be released.
#[test]
fn a_waker_that_waits_may_hold_a_lock_that_another_waker_takes() {
    on_kinds(&THREADED, 1, |engine| {
        let (var, other) = (engine.var(0), engine.var(0));
        let done = completion_of(&engine, &other);
        let gate = hold(&engine, var.token());
        let ((waited, has_waited), (begins, has_begun)) = (mpsc::channel(), mpsc::channel());
        let mutex = Arc::new(Mutex::new(()));
        let (first, second, inside) = (Arc::clone(&mutex), mutex, engine.clone());
        let handle = engine.op("awaited").submit(var.write(), |_| ()).unwrap();
        let waits = move || {
            let _guard = lock(&first);
            waited.send(inside.wait_for_var(&other)).unwrap();
        };
        let _handle = poll_with_waker(Box::pin(handle), Foreign::new(waits));
        let locks = move || {
            begins.send(()).unwrap();
            drop(lock(&second));
        };
        let _next = poll_with_waker(Box::pin(engine.wait_for_var_async(&var)), Foreign::new(locks));
        gate.open();
        has_begun.recv_timeout(PATIENCE).expect("the other waker should run");
        thread::sleep(MOMENT);
        done.complete();
        has_waited.recv_timeout(PATIENCE).expect("the first waker should continue").unwrap();
    });
}

/// Returns an engine, its GPU, and a handle to a kernel that completes once the GPU's clock is advanced.
fn with_a_kernel_pending() -> (Engine, SimulatedGpu, OpHandle<()>) {
    let gpu = SimulatedGpu::builder().clock(raddle::gpu::simulated::Clock::Manual).build();
    let engine = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).gpu(gpu.clone()).build();
    let engine = engine.unwrap();
    let memory = engine.device_var::<u32>(raddle::Device::Gpu(0), 1).unwrap();
    let (issued, is_issued) = mpsc::channel();
    let launch = move |stream: &mut raddle::gpu::GpuStream, memory: &mut _| {
        let launched =
            stream.simulated().expect("the device should be simulated").launch(MOMENT, memory, |_: &mut [u32]| ());
        issued.send(()).unwrap();
        launched
    };
    let kernel = engine.op("kernel").on(raddle::Device::Gpu(0)).submit_launch_any(memory.write(), launch).unwrap();
    is_issued.recv_timeout(PATIENCE).expect("the kernel should be issued");
    (engine, gpu, kernel)
}

/// The dropped value is freed by the thread of the GPU's lane or by a worker.
#[test]
fn a_waker_triggered_by_a_device_may_drop_panicking_values_during_a_shutdown() {
    watched(|| {
        let (engine, gpu, _kernel) = with_a_kernel_pending();
        let (value, dropped) =
            (engine.var(Foreign::new(|| std::panic::resume_unwind(Box::new("foreign")))), Gate::new());
        let opens = dropped.clone();
        let drops = move || {
            thread::sleep(MOMENT);
            drop(value);
            opens.open();
        };
        let _all = poll_with_waker(Box::pin(engine.wait_for_all_async()), Foreign::new(drops));
        let ends = engine.clone();
        let end = thread::spawn(move || ends.shutdown(Shutdown::Drain, None));
        eventually("the engine refuses pushes", || engine.push_sync(|_| (), [], []).is_err());
        gpu.advance(PATIENCE);
        end.join().unwrap().unwrap();
        dropped.pass();
        engine.shutdown(Shutdown::Drain, None).unwrap();
    });
}

/// As long as there is a worker, the waker is called by the worker and not by the thread of the GPU's lane.
#[test]
fn a_waker_triggered_by_a_device_may_wait_during_a_shutdown() {
    watched(|| {
        let (engine, gpu, kernel) = with_a_kernel_pending();
        let var = engine.var(0);
        let gate = hold(&engine, var.token());
        let (waited, has_waited) = mpsc::channel();
        let (inside, its_var) = (engine.clone(), var.clone());
        let wait = move || {
            gate.open();
            waited.send(inside.wait_for_var(&its_var)).unwrap();
        };
        let _kernel = poll_with_waker(Box::pin(kernel), Foreign::new(wait));
        let ends = engine.clone();
        let end = thread::spawn(move || ends.shutdown(Shutdown::Drain, None));
        eventually("the engine refuses pushes", || engine.push_sync(|_| (), [], []).is_err());
        gpu.advance(PATIENCE);
        has_waited.recv_timeout(PATIENCE).expect("the waker should run").expect("the waker should be allowed to wait");
        end.join().unwrap().unwrap();
    });
}
