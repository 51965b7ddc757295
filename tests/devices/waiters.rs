//! Tests of operations that wait at a GPU lane, and of operations pushed by a device operation's function.

use crate::common::shapes::*;
use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use raddle::{
    Device, Engine, EngineKind, OpContext, PushError, Var, WaitError,
    gpu::{DeviceVec, SimulatedGpu, simulated::Clock},
};

use super::{
    GPU, assert_sent_by_worker, builder, device, engine, hold_lane, issued, kernel, manual, ms, pinned, reading_kernel,
    send_thread_name, simulated,
};
use crate::common::{AWHILE, Gate, KINDS, SOON, THREADED, occupy, watched, watched_for};

/// A wait covers the operations pushed before it, however many readers follow.
#[test]
fn a_wait_returns_although_a_later_reader_is_always_in_flight() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            let reader = || reading_kernel(&engine, "reader", &var);
            let mut pushed = 2;
            reader();
            reader();
            issued(&gpu, pushed, 0);
            let (waiting, waited) = (engine.clone(), var.clone());
            let waiter = thread::spawn(move || waiting.wait_for_var(&waited));
            // In each round, one kernel ends while another is in flight.
            for _ in 0..2_000 {
                reader();
                pushed += 1;
                issued(&gpu, pushed, 0);
                gpu.advance(ms(1));
                if waiter.is_finished() {
                    break;
                }
                thread::yield_now();
            }
            assert!(waiter.is_finished(), "{kind}: the wait also covers readers that were pushed after it");
            waiter.join().unwrap().unwrap();
            gpu.advance(ms(pushed));
            engine.wait_for_all().unwrap();
        });
    }
}

/// Later readers of the operator's variables may run concurrently with its deletion, which waits for none of them. The
/// deletion is in the workers' injector when the device receives the reader, and must not enter the injector again when
/// the device is done.
#[test]
fn the_deletion_of_an_operator_does_not_wait_for_later_readers_on_a_device() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (var, deleted) = (device(&engine, 1), Gate::new());
            let opens = OpensOnDrop(deleted.clone());
            let operator = engine.op("operator").operator(var.read(), move |_| _ = &opens).unwrap();
            let busy = occupy(&engine, 2);
            drop(operator);
            reading_kernel(&engine, "reader", &var);
            issued(&gpu, 1, 0);
            busy.open();
            assert!(deleted.pass_within(SOON), "{kind}: the deletion waits for a later reader");
            gpu.advance(ms(1));
            engine.wait_for_all().unwrap();
        });
    }
}

/// Sends the name of the thread that calls the waker.
struct SendsName(mpsc::Sender<String>);

impl Wake for SendsName {
    fn wake(self: Arc<Self>) {
        send_thread_name(&self.0);
    }
}

/// Pushes a kernel, and returns a future that resolves when the kernel is complete.
type Begin = fn(&Engine, &Var<DeviceVec<u64>>) -> Pin<Box<dyn Future<Output = ()>>>;

/// The thread of a lane must not wait, but a waker may.
#[test]
fn wakers_that_a_device_triggers_are_called_by_workers() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            let (sender, names) = mpsc::channel();
            let waker = Waker::from(Arc::new(SendsName(sender)));
            let begin: [Begin; 4] = [
                |engine, var| {
                    let launch = engine.op("with a handle").on(GPU).submit_launch_any(var.write(), |stream, var| {
                        simulated(stream).launch(Duration::ZERO, var, |_| {})
                    });
                    Box::pin(async { launch.unwrap().await.unwrap() })
                },
                |engine, var| {
                    kernel(engine, "before the wait", var, |_| {});
                    let waits = engine.wait_for_var_async(var);
                    Box::pin(async { waits.await.unwrap() })
                },
                |engine, var| {
                    kernel(engine, "before the acquisition", var, |_| {});
                    let acquires = engine.acquire(var.read());
                    Box::pin(async { drop(acquires.await.unwrap()) })
                },
                |engine, var| {
                    kernel(engine, "the last one", var, |_| {});
                    let waits = engine.wait_for_all_async();
                    Box::pin(async { waits.await.unwrap() })
                },
            ];
            for (number, begin) in (0..).zip(begin) {
                let mut future = begin(&engine, &var);
                issued(&gpu, number + 1, 0);
                assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "{kind}, {number}");
                gpu.advance(ms(1));
                assert_sent_by_worker(&names, format_args!("{kind}, {number}"));
                assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready(), "{kind}, {number}");
                engine.wait_for_all().unwrap();
            }
        });
    }
}

struct OpensOnDrop(Gate);

impl Drop for OpensOnDrop {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Operations of higher priority that have not been issued do not delay a wait at the lane.
#[test]
fn a_wait_returns_although_operations_of_higher_priority_keep_the_lane_busy() {
    fn again(engine: &Engine, stop: &Arc<AtomicBool>) {
        let (inside, at_end) = (engine.clone(), Arc::clone(stop));
        let launch = engine.op("again").on(GPU).priority(1).launch_any((), move |_, ()| {
            if !at_end.load(SeqCst) {
                again(&inside, &at_end);
            }
        });
        launch.unwrap();
    }
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu = SimulatedGpu::builder().clock(Clock::Instantly).build();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            let stop = Arc::new(AtomicBool::new(false));
            for _ in 0..8 {
                again(&engine, &stop);
            }
            for _ in 0..20 {
                let launch = engine
                    .op("urgent")
                    .on(GPU)
                    .priority(2)
                    .launch_any(var.write(), |stream, var| simulated(stream).launch(Duration::ZERO, var, |_| {}));
                launch.unwrap();
                engine.wait_for_var(&var).unwrap();
            }
            stop.store(true, SeqCst);
            engine.wait_for_all().unwrap();
        });
    }
}

/// The kernels of a chunk are issued together. If the first kernels of all chunks were issued before the second ones,
/// the copy out of one chunk would wait for the copies in of others.
#[test]
fn chunks_with_two_kernels_each_are_copied_in_and_out_concurrently() {
    const CHUNKS: u64 = 40;
    watched_for(AWHILE, || {
        let gpu = manual();
        let engine = engine(EngineKind::PerDevice, &gpu);
        // Each buffer has 1,000 bytes, which take a millisecond to copy.
        let ring: Vec<_> = (0..4).map(|_| (pinned(&engine, 125), device(&engine, 125), pinned(&engine, 125))).collect();
        // The lane is held until several chunks are ready.
        let gate = hold_lane(&engine, Property::Normal);
        for chunk in 0..CHUNKS {
            let (host, device, back) = &ring[chunk as usize % 4];
            engine.op("in").on(GPU).copy_to_device(host, device).unwrap();
            for _ in 0..2 {
                let half = Duration::from_micros(500);
                let launch = engine
                    .op("half of the work")
                    .on(GPU)
                    .launch_any(device.write(), move |stream, device| simulated(stream).launch(half, device, |_| {}));
                launch.unwrap();
            }
            engine.op("out").on(GPU).copy_from_device(device, back).unwrap();
        }
        issued(&gpu, 0, ring.len() as u64);
        gate.open();
        issued(&gpu, 2 * CHUNKS, 2 * CHUNKS);
        // Issuing later chunks before their dependent operations are known may cost a little time.
        gpu.advance(ms(CHUNKS + 2 + 6));
        engine.wait_for_all().unwrap();
    });
}

/// The CPU operation is not ready when the device operation is issued.
#[test]
fn a_cpu_operation_does_not_wait_for_work_issued_behind_its_dependency() {
    for kind in THREADED {
        watched_for(AWHILE, move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (first, var, later) = (device(&engine, 1), device(&engine, 1), device(&engine, 1));
            let (token, gate) = (engine.token(), Gate::new());
            let inside = gate.clone();
            engine.op("held").writes([&token]).push_sync(move |_| inside.pass()).unwrap();
            // Each kernel takes a millisecond. All operations are pushed before the lane begins.
            let lane = hold_lane(&engine, Property::Normal);
            kernel(&engine, "under way", &first, |_| {});
            kernel(&engine, "awaited", &var, |_| {});
            let cpu =
                engine.op("cpu").reads([var.token(), &token]).push_async_any(raddle::cx(), |_, done| done.complete());
            cpu.unwrap();
            for _ in 0..10 {
                kernel(&engine, "later", &later, |_| {});
            }
            lane.open();
            issued(&gpu, 12, 0);
            gate.open();
            gpu.advance(ms(2));
            engine.wait_for_var(&var).unwrap();
            gpu.advance(ms(10));
            engine.wait_for_all().unwrap();
        });
    }
}

/// The function holds references to values that its device is about to use, so no other program code may run inside it.
#[test]
fn operations_pushed_in_a_device_function_do_not_run_inside_it() {
    for kind in KINDS {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let var = device(&engine, 1);
            let ran_on = engine.var(None);
            let (inside, seen) = (engine.clone(), ran_on.clone());
            let pushed = engine.op("outer").on(GPU).submit_launch_any(var.write(), move |_, _| {
                let over = Arc::new(AtomicBool::new(false));
                let at_end = Arc::clone(&over);
                inside.op("inner").eager().push(seen.write(), move |seen| {
                    *seen = Some((thread::current().id(), at_end.load(SeqCst)));
                })?;
                over.store(true, SeqCst);
                Ok::<_, PushError>(thread::current().id())
            });
            let outer = pushed.unwrap().wait().unwrap();
            let (inner, was_over) = engine.get(&ran_on).unwrap().expect("the inner operation should have run");
            assert!(inner != outer || was_over, "{kind}");
        });
    }
}

#[test]
fn a_device_function_can_neither_wait_nor_push_on_another_naive_engine() {
    for kind in KINDS {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let (var, other) = (device(&engine, 1), builder(EngineKind::Naive).build().unwrap());
            let (inside, token) = (engine.clone(), engine.token());
            let pushed = engine.op("outer").on(GPU).submit_launch_any(var.write(), move |_, _| {
                inside.op("inner").writes([&token]).push_async_any(raddle::cx(), |_, done| {
                    thread::spawn(move || done.complete());
                })?;
                let waited = inside.wait_for_var_timeout(&token, ms(1));
                let refused = other.op("elsewhere").push_sync(|_| {});
                Ok::<_, PushError>((waited, refused))
            });
            let (waited, refused) = pushed.unwrap().wait().unwrap();
            assert!(matches!(waited, Err(WaitError::OnDevice)), "{kind}: {waited:?}");
            assert_eq!(refused, Err(PushError::InDeviceFunction), "{kind}");
        });
    }
}

#[test]
fn a_kernel_can_neither_wait_nor_push_on_another_naive_engine() {
    for kind in KINDS {
        watched(move || {
            let engine = engine(kind, &SimulatedGpu::default());
            let (var, other) = (device(&engine, 1), builder(EngineKind::Naive).build().unwrap());
            let (inside, (sender, receiver)) = (other.clone(), mpsc::channel());
            kernel(&engine, "kernel", &var, move |_| {
                let refused = inside.op("elsewhere").push_sync(|_| {});
                sender.send((inside.wait_for_all(), refused)).unwrap();
            });
            engine.wait_for_all().unwrap();
            let (waited, refused) = receiver.recv().unwrap();
            assert!(matches!(waited, Err(WaitError::OnDevice)), "{kind}: {waited:?}");
            assert_eq!(refused, Err(PushError::InDeviceFunction), "{kind}");
        });
    }
}

/// The kernel is dropped on the program's own thread, which may otherwise wait.
#[test]
fn the_drop_of_a_kernel_cannot_wait() {
    struct Waits(Engine, mpsc::Sender<Result<(), WaitError>>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.1.send(self.0.wait_for_all()).unwrap();
        }
    }
    for kind in THREADED {
        watched(move || {
            let gpu = manual();
            let engine = engine(kind, &gpu);
            let (var, other) = (device(&engine, 1), builder(kind).build().unwrap());
            let (sender, receiver) = mpsc::channel();
            let waits = Waits(other.clone(), sender);
            kernel(&engine, "never runs", &var, move |_| drop(waits));
            issued(&gpu, 1, 0);
            gpu.lose();
            let waited = receiver.recv().unwrap();
            assert!(matches!(waited, Err(WaitError::OnDevice)), "{kind}: {waited:?}");
            other.wait_for_all().unwrap();
        });
    }
}

/// Completing an operation there makes others ready. A naive engine runs them on this thread, or leaves them to a
/// worker of the engine to which the function belongs.
#[test]
fn operations_made_ready_in_a_device_function_do_not_run_inside_it() {
    for kind in KINDS {
        for own in [true, false] {
            watched(move || {
                let gpu = SimulatedGpu::default();
                let engine = engine(kind, &gpu);
                let var = device(&engine, 1);
                let other = if own { engine.clone() } else { builder(EngineKind::Naive).build().unwrap() };
                let (token, ran_on) = (other.token(), other.var(None));
                let (sender, receiver) = mpsc::channel();
                let held = other.op("held").writes([&token]);
                held.push_async_any(raddle::cx(), move |_, done| sender.send(done).unwrap()).unwrap();
                let done = receiver.recv().unwrap();
                // The wait is an operation that runs immediately, even inside the function.
                let mut wait = pin!(other.wait_for_var_async(&token));
                assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                let over = Arc::new(AtomicBool::new(false));
                let at_end = Arc::clone(&over);
                let ready = other.op("ready").reads([&token]).push(ran_on.write(), move |ran_on| {
                    *ran_on = Some((thread::current().id(), at_end.load(SeqCst)));
                });
                ready.unwrap();
                let pushed = engine.op("outer").on(GPU).submit_launch_any(var.write(), move |_, _| {
                    done.complete();
                    over.store(true, SeqCst);
                    Ok::<_, PushError>(thread::current().id())
                });
                let outer = pushed.unwrap().wait().unwrap();
                other.wait_for_all().unwrap();
                let (inner, was_over) = other.get(&ran_on).unwrap().expect("the inner operation should have run");
                assert!(inner != outer || was_over, "{kind} {own}: an operation has run inside the function");
            });
        }
    }
}

/// A deletion runs inside the device operation's function if its engine is another one, is naive, and is not running
/// anything on the thread. What the deletion pushes would run there as well.
#[test]
fn a_deletion_in_a_device_function_can_neither_wait_nor_push_on_another_naive_engine() {
    for kind in KINDS {
        watched(move || {
            let gpu = SimulatedGpu::default();
            let engine = engine(kind, &gpu);
            let (var, other) = (device(&engine, 1), builder(EngineKind::Naive).build().unwrap());
            let (deleted, idle) = (other.token(), other.token());
            let pushed = engine.op("outer").on(GPU).submit_launch_any(var.write(), move |_, _| {
                let (sender, receiver) = mpsc::channel();
                let inside = other.clone();
                let deletes = move |_: &OpContext<'_>| {
                    let ran = sender.clone();
                    let refused = inside.op("elsewhere").push_sync(move |_| ran.send(None).unwrap());
                    sender.send(Some((inside.wait_for_var(&idle), refused))).unwrap();
                };
                other.delete_variable(deleted, deletes).unwrap();
                Ok::<_, PushError>(receiver.recv().unwrap())
            });
            let seen = pushed.unwrap().wait().unwrap();
            let (waited, refused) = seen.expect("an operation has run inside the device function");
            assert!(matches!(waited, Err(WaitError::OnDevice)), "{kind}: {waited:?}");
            assert_eq!(refused, Err(PushError::InDeviceFunction), "{kind}");
        });
    }
}

/// An operation that always runs, since it may release something, runs even on a lost device, whose stream refuses
/// every call.
#[test]
fn an_operation_that_always_runs_does_so_on_a_lost_device() {
    for kind in KINDS {
        for property in [Property::DeleteVar, Property::NoSkip] {
            watched(move || {
                let gpu = SimulatedGpu::default();
                let engine = engine(kind, &gpu);
                let var = device(&engine, 1);
                gpu.lose();
                kernel(&engine, "fails", &var, |_| {});
                assert!(engine.wait_for_var(&var).is_err());
                let ran = Arc::new(AtomicBool::new(false));
                let at_run = Arc::clone(&ran);
                let launch = engine.op("releases").on(Device::Gpu(0)).kind(property);
                launch.launch_any(var.write(), move |_, _| at_run.store(true, SeqCst)).unwrap();
                assert!(engine.wait_for_var(&var).is_err(), "the failure was cleared");
                assert!(ran.load(SeqCst), "{kind} {property:?}");
            });
        }
    }
}
