//! The program's own code wherever the engine runs it: it may wait for what comes after, push, take its time, panic, and drop
//! the last handle of the engine.
//!
//! Each test goes through all places of [`after_the_end`], where an operation has passed its variables on, or of
//! [`inside`], where it has not.

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
use common::{Gate, KINDS, MOMENT, PATIENCE, SOON, engine, eventually, hold, lock, on_kinds, watched};
use raddle::{Engine, EngineKind, OpContext, OpHandle, PushError, Shutdown, SimulatedGpu, Var, WaitError};

type Act = Box<dyn FnOnce() + Send>;

/// Code of the program's that runs once: when it is dropped, or when it is woken.
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

/// An error whose drop is foreign code. Errors are shared between threads.
#[derive(Debug)]
struct Failing(#[allow(dead_code, reason = "it is there to be dropped")] Mutex<Foreign>);

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

/// Polls `future` once, with a waker that is `foreign`, and keeps it.
fn left_with_a_waker<F: Future + Send + 'static>(mut future: Pin<Box<F>>, foreign: Foreign) -> Box<dyn Any + Send>
where
    F::Output: Send,
{
    let waker = Waker::from(Arc::new(OnWake(Mutex::new(foreign))));
    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "something is pending");
    // The waker that the future has left is the only one.
    drop(waker);
    Box::new(future)
}

/// A place where the engine runs code of the program's: pushes what leads there on a variable that is held, and gives what
/// has to be kept until then.
type Place = fn(&Engine, &Var<u32>, Foreign) -> Box<dyn Any + Send>;

/// Places where an operation has passed its variables on.
fn after_the_end() -> Vec<(&'static str, Place)> {
    vec![
        ("what a skipped function has captured", |engine, var, foreign| {
            engine.op("fails").push_any(var.write(), |_| Err("as planned")).unwrap();
            engine.op("skipped").push(var.write(), move |_| drop(foreign)).unwrap();
            Box::new(())
        }),
        ("what a skipped asynchronous function has captured", |engine, var, foreign| {
            engine.op("fails").push_any(var.write(), |_| Err("as planned")).unwrap();
            let skipped = engine.op("skipped").writes([var]);
            skipped.push_async_any(raddle::cx(), move |_, _done| drop(foreign)).unwrap();
            Box::new(())
        }),
        ("a result that nobody wants", |engine, var, foreign| {
            drop(engine.op("result").submit(var.write(), move |_| foreign).unwrap());
            Box::new(())
        }),
        ("an error that is overwritten", |engine, var, foreign| {
            engine.op("fails").push_any(var.write(), move |_| Err(failing(foreign))).unwrap();
            engine.op("overwrites").push(var.overwrite(), |_| ()).unwrap();
            Box::new(())
        }),
        ("an error that is cleared", |engine, var, foreign| {
            engine.op("fails").push_any(var.write(), move |_| Err(failing(foreign))).unwrap();
            engine.clear_error(var).unwrap();
            Box::new(())
        }),
        ("the error of a completion that is overwritten", |engine, var, foreign| {
            let fails = engine.op("fails").writes([var]);
            fails
                .push_async_any(raddle::cx(), move |_, done| _ = thread::spawn(move || done.fail(failing(foreign))))
                .unwrap();
            engine.op("overwrites").push(var.overwrite(), |_| ()).unwrap();
            Box::new(())
        }),
        ("the payload of a panic that is overwritten", |engine, var, foreign| {
            let fails = engine.op("fails").writes([var]);
            fails.push_sync(move |_| std::panic::resume_unwind(Box::new(foreign))).unwrap();
            engine.op("overwrites").push(var.overwrite(), |_| ()).unwrap();
            Box::new(())
        }),
        ("the waker of a handle", |engine, var, foreign| {
            left_with_a_waker(Box::pin(engine.op("told").submit(var.write(), |_| ()).unwrap()), foreign)
        }),
        ("the waker of a wait for a variable", |engine, var, foreign| {
            engine.op("before").push(var.write(), |_| ()).unwrap();
            left_with_a_waker(Box::pin(engine.wait_for_var_async(var)), foreign)
        }),
        ("the waker of a wait to read", |engine, var, foreign| {
            engine.op("before").push(var.write(), |_| ()).unwrap();
            left_with_a_waker(Box::pin(engine.wait_to_read_async(var)), foreign)
        }),
        ("the waker of a wait for all", |engine, var, foreign| {
            engine.op("before").push(var.write(), |_| ()).unwrap();
            left_with_a_waker(Box::pin(engine.wait_for_all_async()), foreign)
        }),
    ]
}

/// Goes to each place on each kind of engine; `act` gives the code that runs there, and `check` says what must come of it.
fn everywhere(
    act: impl Fn(&Engine, &Var<u32>) -> Act + Clone + Send + 'static,
    check: impl Fn(&str, &Engine, &Var<u32>) + Clone + Send + 'static,
) {
    for kind in KINDS {
        for (name, place) in after_the_end() {
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

/// [Everywhere](everywhere), with code that gives something. `check` is told what that is, if it comes within `limit`.
fn everywhere_gives<T: Send + 'static>(
    limit: Duration,
    act: impl Fn(&Engine, &Var<u32>) -> Box<dyn Fn() -> T + Send> + Clone + Send + 'static,
    check: impl Fn(&str, Result<T, mpsc::RecvTimeoutError>) + Clone + Send + 'static,
) {
    let (sender, receiver) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    everywhere(
        move |engine, var| {
            let (act, sender) = (act(engine, var), sender.clone());
            Box::new(move || sender.send(act()).unwrap())
        },
        move |name, _, _| check(name, lock(&receiver).recv_timeout(limit)),
    );
}

#[test]
fn it_may_wait_for_what_comes_after_the_operation() {
    everywhere_gives(
        SOON,
        |engine, var| {
            let (engine, var) = (engine.clone(), var.clone());
            Box::new(move || engine.wait_for_var(&var).map(|()| var.version()))
        },
        |name, told| match told {
            // Behind a failure the next operation has run as well, and the failure is what the wait says.
            Ok(Ok(_) | Err(WaitError::Failed(_))) => {}
            other => panic!("{name}: {other:?}"),
        },
    );
}

#[test]
fn it_may_wait_for_what_it_pushes() {
    everywhere_gives(
        SOON,
        |engine, _| {
            let engine = engine.clone();
            Box::new(move || engine.op("pushed").submit((), |()| 7).unwrap().wait())
        },
        |name, told| assert!(matches!(told, Ok(Ok(7))), "{name}: {told:?}"),
    );
}

/// By means that the engine does not know: with another worker idle, both have to run.
#[test]
fn what_comes_after_and_what_it_pushes_run_while_it_blocks() {
    everywhere_gives(
        3 * SOON,
        |engine, var| {
            let (engine, var, gates) = (engine.clone(), var.clone(), [Gate::new(), Gate::new()]);
            let naive = engine.kind() == EngineKind::Naive;
            Box::new(move || {
                let [after, pushed] = gates.clone();
                engine.op("pushed").push((), move |()| pushed.open()).unwrap();
                engine.op("behind").run_always().push(var.read(), move |_| after.open()).unwrap();
                // The naive engine runs what comes after on this very thread.
                gates[1].pass_within(SOON) && (naive || gates[0].pass_within(SOON))
            })
        },
        |name, told| assert_eq!(told, Ok(true), "{name}"),
    );
}

#[test]
fn its_panic_loses_nothing() {
    everywhere(
        |_, _| Box::new(|| std::panic::resume_unwind(Box::new("foreign"))),
        |name, engine, var| {
            // Once for the operation, once for the panic, if it has one to be reported by.
            while engine.wait_for_all_timeout(PATIENCE).is_err() {}
            assert!(var.version() >= 1, "{name}: the next operation has run");
            let more = engine.op("more").run_always().submit(var.write(), |_| ()).unwrap();
            more.wait().unwrap_or_else(|error| panic!("{name}: {error}"));
        },
    );
}

#[test]
fn it_may_drop_the_last_handle_of_the_engine() {
    for kind in KINDS {
        for (name, place) in after_the_end() {
            watched(move || {
                println!("{name}, on the {kind} engine");
                let own = engine(kind, 2);
                let observer = own.op("").submit((), |()| ()).map(|_| observer(&own)).unwrap();
                let var = own.var(0);
                let gate = hold(&own, var.token());
                let (last, kept) = (own.clone(), own);
                let kept = (place(&kept, &var, Foreign::new(move || drop(last))), kept);
                kept.1.op("next").run_always().push(var.write(), |value| *value += 1).unwrap();
                drop(kept.1);
                gate.open();
                eventually("the engine refuses pushes", || {
                    observer.push_sync(|_| {}, [], []) == Err(PushError::ShutDown)
                });
                observer.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(var.version(), if name.contains("overwritten") { 3 } else { var.version() });
            });
        }
    }
}

/// A handle that does not keep the engine open.
fn observer(engine: &Engine) -> Engine {
    let (sender, receiver) = mpsc::channel();
    engine.push_sync(move |cx| sender.send(cx.engine()).unwrap(), [], []).unwrap();
    receiver.recv_timeout(PATIENCE).expect("it runs")
}

// ------------------------------------------------------------------------------------------------- before the end ----

/// A way to have a deletion run code of the program's.
type Deletes = fn(&Engine, Foreign);

const DELETIONS: [(&str, Deletes); 4] = [
    ("the closure of a deletion", |engine, foreign| {
        engine.delete_variable(engine.token(), move |_| drop(foreign)).unwrap();
    }),
    ("the value of a deleted variable", |engine, foreign| {
        engine.delete_variable(engine.var(foreign), |_| ()).unwrap();
    }),
    ("the value of a variable whose last handle is dropped", |engine, foreign| drop(engine.var(foreign))),
    ("what an operator has captured", |engine, foreign| {
        let (var, foreign) = (engine.token(), Mutex::new(foreign));
        let f = move |_: &OpContext<'_>| drop(lock(&foreign));
        drop(engine.op("operator").reads([&var]).operator_sync(f).unwrap());
    }),
];

/// Waits there are refused, or are for what does not come after.
#[test]
fn deletions_may_push_and_panic_and_never_wait() {
    for (name, deletes) in DELETIONS {
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
            for refused in receiver.recv_timeout(PATIENCE).expect("it runs") {
                assert!(matches!(refused, Err(WaitError::InDeletion)), "{name}: {refused:?}");
            }
            ran.pass();
            assert!(engine.wait_for_all().is_err(), "{name}: the panic is reported");
            engine.wait_for_all().unwrap_or_else(|error| panic!("{name}: {error}"));
        });
    }
}

/// On a naive engine it runs inside the deletion.
#[test]
fn what_a_deletion_pushes_may_wait() {
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
            for waited in receiver.recv_timeout(PATIENCE).expect("it runs") {
                waited.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        });
    }
}

/// A value whose clone is foreign code.
struct OnClone(Arc<Mutex<Foreign>>);

impl Clone for OnClone {
    fn clone(&self) -> Self {
        lock(&self.0).run();
        Self(Arc::clone(&self.0))
    }
}

/// Nobody is there to run it.
#[test]
fn what_runs_after_a_shutdown_may_not_push() {
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
            let pushed = receiver.recv_timeout(PATIENCE).expect("it runs");
            assert!(matches!(pushed, Err(PushError::ShutDown)), "{name}: {pushed:?}");
            engine.shutdown(Shutdown::Drain, None).unwrap();
        });
    }
}

/// Also where nothing is pending, and in what the device calls.
#[test]
fn functions_of_devices_and_kernels_may_push_and_never_wait() {
    on_kinds(&KINDS, 2, |plain| {
        let engine = Engine::builder().kind(plain.kind()).workers(2).pin(false).gpu(SimulatedGpu::default()).build();
        let engine = engine.unwrap();
        let gpu = raddle::Device::Gpu(0);
        let memory = engine.device_var::<u32>(gpu, 1).unwrap();
        let (sender, receiver) = mpsc::channel();
        let idle = engine.var(5);
        let waits =
            move |engine: &Engine| [engine.wait_for_var(&idle), engine.wait_for_all(), engine.get(&idle).map(|_| ())];
        let (inside, told, function) = (engine.clone(), sender.clone(), waits.clone());
        let launch = move |stream: &mut raddle::GpuStream, memory: &mut _| {
            told.send(function(&inside)).unwrap();
            let kernel = move |_: &mut [u32]| sender.send(waits(&inside)).unwrap();
            stream.simulated().expect("it is simulated").launch(Duration::ZERO, memory, kernel)
        };
        engine.op("launch").on(gpu).launch_any(memory.write(), launch).unwrap();
        for place in ["the function", "the kernel"] {
            for refused in receiver.recv_timeout(PATIENCE).expect("it runs") {
                assert!(matches!(refused, Err(WaitError::OnDevice)), "{place}: {refused:?}");
            }
        }
        engine.wait_for_all().unwrap();
    });
}

/// Runs `f` in the function of an operation of a device, on the thread of that, for an engine of its own.
fn on_another_device(f: impl FnOnce() + Send + 'static) {
    let engine = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).gpu(SimulatedGpu::default());
    let engine = engine.build().unwrap();
    let memory = engine.device_var::<u32>(raddle::Device::Gpu(0), 1).unwrap();
    let launch = move |_: &mut raddle::GpuStream, _: &mut _| f();
    engine.op("launch").on(raddle::Device::Gpu(0)).launch_any(memory.write(), launch).unwrap();
    engine.wait_for_all().unwrap();
}

#[test]
fn what_ends_on_the_device_of_another_engine_is_told() {
    on_kinds(&KINDS, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let token = engine.token();
        engine
            .op("held")
            .writes([&token])
            .push_async_any(raddle::cx(), move |_, done| sender.send(done).unwrap())
            .unwrap();
        let done = receiver.recv_timeout(PATIENCE).expect("it runs");
        let told = [Gate::new(), Gate::new()];
        let opens = told.clone().map(|gate| Foreign::new(move || gate.open()));
        let [of_variable, of_all] = opens;
        let _kept = [
            left_with_a_waker(Box::pin(engine.wait_for_var_async(&token)), of_variable),
            left_with_a_waker(Box::pin(engine.wait_for_all_async()), of_all),
        ];
        on_another_device(move || done.fail("as planned"));
        told.iter().for_each(|told| assert!(told.pass_within(SOON), "nobody is told"));
        assert!(engine.wait_for_all().is_err(), "the failure is returned");
    });
}

/// A value that panics, and one that holds another, and so on, deeper than a stack.
struct Link(#[expect(dead_code, reason = "it is there to be dropped")] Option<Var<Link>>, Arc<AtomicUsize>);

impl Drop for Link {
    fn drop(&mut self) {
        self.1.fetch_add(1, SeqCst);
    }
}

#[test]
fn what_is_dropped_after_the_end_on_the_device_of_another_engine_is_gone() {
    const LINKS: usize = 20_000;
    on_kinds(&KINDS, 1, |engine| {
        let gone = Arc::new(AtomicUsize::new(0));
        let link = |chain, _| Some(engine.var(Link(chain, Arc::clone(&gone))));
        let chain = (0..LINKS).fold(None, link);
        let panics = engine.var(Foreign::new(|| std::panic::resume_unwind(Box::new("foreign"))));
        engine.shutdown(Shutdown::Drain, None).unwrap();
        on_another_device(move || drop((chain, panics)));
        assert_eq!(gone.load(SeqCst), LINKS);
        assert!(engine.wait_for_all().is_err(), "the panic is returned");
        engine.shutdown(Shutdown::Drain, None).unwrap();
    });
}

/// What it pushes there runs when it has returned, also if it asks for it.
#[test]
fn nothing_runs_inside_the_function_of_a_device() {
    watched(|| {
        let engine = Engine::builder().kind(EngineKind::Naive).gpu(SimulatedGpu::default()).build().unwrap();
        let memory = engine.device_var::<u32>(raddle::Device::Gpu(0), 1).unwrap();
        let (inside, runs, ran) = (engine.clone(), Gate::new(), Gate::new());
        let opens = ran.clone();
        let launch = move |_: &mut raddle::GpuStream, _: &mut _| {
            let begins = runs.clone();
            let pushed = inside.op("pushed").submit((), move |()| begins.open()).unwrap();
            assert!(!pushed.is_done() && !runs.is_open(), "it has run inside");
            opens.open();
        };
        engine.op("launch").on(raddle::Device::Gpu(0)).launch_any(memory.write(), launch).unwrap();
        engine.wait_for_all().unwrap();
        assert!(ran.is_open());
    });
}

/// Another thread does what is left to the first one.
#[test]
fn a_waker_that_waits_keeps_no_other_from_being_woken() {
    on_kinds(&KINDS, 1, |engine| {
        let (var, other) = (engine.var(0), engine.var(0));
        let (sender, receiver) = mpsc::channel();
        let held = engine.op("held").writes([&other]);
        held.push_async_any(raddle::cx(), move |_, done| sender.send(done).unwrap()).unwrap();
        let done = receiver.recv_timeout(PATIENCE).expect("it runs");
        let gate = hold(&engine, var.token());
        let (waited, has_waited) = mpsc::channel();
        let inside = engine.clone();
        let told = engine.op("told").submit(var.write(), |_| ()).unwrap();
        let waits = move || waited.send(inside.wait_for_var(&other)).unwrap();
        let _told = left_with_a_waker(Box::pin(told), Foreign::new(waits));
        let completes = move || done.complete();
        let _next = left_with_a_waker(Box::pin(engine.wait_for_var_async(&var)), Foreign::new(completes));
        gate.open();
        has_waited.recv_timeout(PATIENCE).expect("both are woken").unwrap();
    });
}

/// An engine, its GPU, and a kernel there that is done when the GPU's time is advanced.
fn with_a_kernel_pending() -> (Engine, SimulatedGpu, OpHandle<()>) {
    let gpu = SimulatedGpu::builder().clock(raddle::simulated::Clock::Manual).build();
    let engine = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).gpu(gpu.clone()).build();
    let engine = engine.unwrap();
    let memory = engine.device_var::<u32>(raddle::Device::Gpu(0), 1).unwrap();
    let (issued, is_issued) = mpsc::channel();
    let launch = move |stream: &mut raddle::GpuStream, memory: &mut _| {
        let launched = stream.simulated().expect("it is simulated").launch(MOMENT, memory, |_: &mut [u32]| ());
        issued.send(()).unwrap();
        launched
    };
    let kernel = engine.op("kernel").on(raddle::Device::Gpu(0)).submit_launch_any(memory.write(), launch).unwrap();
    is_issued.recv_timeout(PATIENCE).expect("it is issued");
    (engine, gpu, kernel)
}

/// What it drops there is freed by the device's own thread, or by a worker.
#[test]
fn a_waker_that_a_device_tells_may_drop_values_that_panic_while_the_engine_ends() {
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
        let _all = left_with_a_waker(Box::pin(engine.wait_for_all_async()), Foreign::new(drops));
        let ends = engine.clone();
        let end = thread::spawn(move || ends.shutdown(Shutdown::Drain, None));
        eventually("the engine refuses pushes", || engine.push_sync(|_| (), [], []).is_err());
        gpu.advance(PATIENCE);
        end.join().unwrap().unwrap();
        dropped.pass();
        engine.shutdown(Shutdown::Drain, None).unwrap();
    });
}

/// A worker does that for the device, as long as there is one.
#[test]
fn a_waker_that_a_device_tells_may_wait_while_the_engine_ends() {
    watched(|| {
        let (engine, gpu, told) = with_a_kernel_pending();
        let var = engine.var(0);
        let gate = hold(&engine, var.token());
        let (waited, has_waited) = mpsc::channel();
        let (inside, its_var) = (engine.clone(), var.clone());
        let wait = move || {
            gate.open();
            waited.send(inside.wait_for_var(&its_var)).unwrap();
        };
        let _told = left_with_a_waker(Box::pin(told), Foreign::new(wait));
        let ends = engine.clone();
        let end = thread::spawn(move || ends.shutdown(Shutdown::Drain, None));
        eventually("the engine refuses pushes", || engine.push_sync(|_| (), [], []).is_err());
        gpu.advance(PATIENCE);
        has_waited.recv_timeout(PATIENCE).expect("it is woken").expect("it may wait");
        end.join().unwrap().unwrap();
    });
}
