//! Edge cases of the public interface: the context as a parameter, handles that do not keep an engine open, and typed
//! asynchronous operations.

use raddle_testkit as common;

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use common::{KINDS, MOMENT, all_engines, block_on, child, engine, hold, is_child, on_kinds, program::Random, watched};
use raddle::{
    Completion, Device, Engine, EngineKind, PushError, Var, WaitError, WeakEngine, completion, cx,
    error::{Cause, Misfit, NoAccess},
    gpu::SimulatedGpu,
    stream,
};

#[test]
fn the_context_stands_anywhere_among_the_accesses() {
    on_kinds(&KINDS, 1, |engine| {
        let (a, b) = (engine.var(1), engine.var(2));
        let nested =
            engine.op("nested").submit((a.read(), [(cx(), b.read())], (cx(), ())), |(a, [(inner, b)], (cx, ()))| {
                (*a + *b, inner.name().to_owned(), cx.device())
            });
        assert_eq!(nested.unwrap().wait().unwrap(), (3, "nested".to_owned(), Device::Cpu));
        let operator = engine.op("operator").operator((cx(), a.write()), |(cx, a)| *a += cx.name().len()).unwrap();
        operator.push().unwrap();
        engine
            .op("asynchronous")
            .push((cx(), a.write(), completion()), |(cx, a, done)| {
                *a += cx.name().len();
                done.complete();
            })
            .unwrap();
        assert_eq!(engine.get(&a).unwrap(), 1 + "operator".len() + "asynchronous".len());
    });
}

/// The same program on engines of each kind, of which the naive one says what is right.
#[test]
fn an_optional_access_names_its_variable_only_if_it_is_there() {
    fn run(engine: &Engine) -> Vec<(u64, u64)> {
        let mut random = Random::new(7);
        let cells: Vec<_> = (1..=6u64).map(|n| engine.var(n)).collect();
        for _ in 0..300 {
            let mut below = |limit| (random.next() % limit) as usize;
            let (at, how) = (below(6), below(4));
            let neighbour = (below(3) > 0).then(|| cells[(at + 1) % 6].read());
            let accesses = (neighbour, [(below(4) > 0).then(|| cells[at].write())]);
            let add = |cell: Option<&mut u64>, neighbour: Option<&u64>| {
                cell.into_iter().for_each(|cell| *cell = cell.wrapping_mul(31).wrapping_add(*neighbour.unwrap_or(&7)));
            };
            let op = engine.op("add");
            match how {
                0 => op.push(accesses, move |(neighbour, [cell])| add(cell, neighbour)),
                1 => op.push_future(accesses, async move |(neighbour, [mut cell])| {
                    add(cell.as_deref_mut(), neighbour.as_deref());
                }),
                2 => op.operator(accesses, move |(neighbour, [cell])| add(cell, neighbour)).and_then(|op| op.push()),
                _ => {
                    let added = engine.try_scope(|s| {
                        s.op("add").push(accesses, |(neighbour, [cell])| add(cell, neighbour)).map_err(WaitError::from)
                    });
                    added.unwrap();
                    Ok(())
                }
            }
            .unwrap();
        }
        cells.iter().map(|cell| (engine.get(cell).unwrap(), cell.version())).collect()
    }
    watched(|| {
        let expected = run(&engine(EngineKind::Naive, 1));
        for (name, engine) in all_engines() {
            assert_eq!(run(&engine), expected, "{name}");
        }
    });
}

#[test]
fn an_access_that_is_not_there_waits_for_nothing_and_one_that_is_there_aliases() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        let gate = hold(&engine, value.as_ref());
        let absent = false.then(|| value.write());
        assert!(engine.op("absent").submit(absent, |value| value.is_none()).unwrap().wait().unwrap());
        assert!(block_on(engine.acquire(false.then(|| value.read()))).unwrap().is_none());
        let refused = engine.op("aliased").push((Some(value.read()), value.write()), |_| {});
        assert!(matches!(refused, Err(PushError::Variable(NoAccess::Aliased, _))), "{refused:?}");
        gate.open();
        assert_eq!(block_on(engine.acquire(Some(value.read()))).unwrap().as_deref(), Some(&1));
    });
}

/// Compiles only if the drop of a builder uses nothing that the builder has borrowed.
#[test]
fn a_token_may_be_dropped_before_a_builder_that_names_it() {
    on_kinds(&KINDS, 1, |engine| {
        let mut op = engine.op(format!("unused {}", engine.pending()));
        let token = engine.token();
        op = op.writes([&token]);
        if engine.pending() == 0 {
            return;
        }
        op.push((), |()| {}).unwrap();
    });
}

#[test]
fn the_current_engine_is_that_of_the_running_operation() {
    on_kinds(&KINDS, 1, |engine| {
        assert!(Engine::current().is_none());
        let var = engine.var(0);
        let inner = var.clone();
        let pushed = engine.op("outer").submit((), move |()| {
            let engine = Engine::current().expect("this should be an operation");
            engine.op("inner").push(inner.write(), |value| *value += 1)
        });
        pushed.unwrap().wait().unwrap().unwrap();
        assert_eq!(engine.get(&var).unwrap(), 1);
        assert!(Engine::current().is_none());
    });
}

#[test]
fn a_downgraded_handle_does_not_keep_the_engine_open() {
    for kind in KINDS {
        let engine = engine(kind, 1);
        let handle = engine.downgrade();
        handle.op("").push((), |()| {}).unwrap();
        assert_eq!([&*handle, &engine.clone(), &*engine.group().engine()], [&engine; 3]);
        assert_ne!(engine, self::engine(kind, 1));
        drop(engine);
        assert_eq!(handle.op("").push((), |()| {}), Err(PushError::ShutDown), "{kind}");
    }
}

/// The completion is used while the function still has its reference to the value. No other operation may use the value
/// until the function returns.
#[test]
fn a_typed_asynchronous_operation_holds_its_values_until_its_function_returns() {
    on_kinds(&common::THREADED, 2, |engine| {
        let (var, inside) = (engine.var(0), Arc::new(AtomicBool::new(true)));
        let (mark, (sender, returned)) = (Arc::clone(&inside), mpsc::channel());
        engine
            .op("asynchronous")
            .push((var.write(), completion()), move |(value, done)| {
                thread::spawn(move || done.complete()).join().unwrap();
                thread::sleep(MOMENT);
                *value += 1;
                mark.store(false, SeqCst);
                sender.send(()).unwrap();
            })
            .unwrap();
        let next = engine.op("next").submit(var.write(), move |value| {
            *value += 1;
            (*value, inside.load(SeqCst))
        });
        assert_eq!(next.unwrap().wait().unwrap(), (2, false));
        returned.recv_timeout(Duration::from_secs(10)).unwrap();
    });
}

#[test]
fn a_typed_asynchronous_function_that_fails_fails_its_operation() {
    on_kinds(&KINDS, 1, |engine| {
        for completes in [true, false] {
            let var = engine.var(0);
            engine
                .op("fails")
                .try_push((var.write(), completion()), move |(_, done)| {
                    if completes {
                        done.complete();
                    }
                    Err("on purpose".into())
                })
                .unwrap();
            let error = common::failure(engine.wait_for_var(&var));
            assert!(matches!(error.cause(), Cause::Error(error) if error.to_string() == "on purpose"), "{error}");
            let var = engine.var(0);
            engine
                .op("panics")
                .push((var.write(), completion()), move |(_, done)| {
                    if completes {
                        done.complete();
                    }
                    std::panic::resume_unwind(Box::new("on purpose"));
                })
                .unwrap();
            let error = common::failure(engine.wait_for_var(&var));
            assert!(matches!(error.cause(), Cause::Panic(_)), "{error}");
        }
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_eager_device_operation_is_refused() {
    for kind in KINDS {
        let engine = Engine::builder().kind(kind).workers(1).pin(false).gpu(SimulatedGpu::default()).build().unwrap();
        let pushed = engine.op("").on(Device::Gpu(0)).eager().push(stream(), |_| {});
        assert_eq!(pushed, Err(PushError::Unfit(Misfit::EagerOnDevice)));
    }
}

/// The process exits immediately after dropping the only handle.
#[test]
fn operations_pushed_through_the_context_run_before_the_process_exits() {
    for kind in KINDS {
        let (success, text) =
            child("in_a_child_operations_push_by_their_context", &[("RADDLE_ENGINE", &kind.to_string())]);
        // The process ends before the test's result can be printed.
        assert!(
            !success && text.starts_with("exit status: 0") && text.contains("the last of 100 has run"),
            "{kind}: {text}"
        );
    }
}

fn chain(engine: &Engine, left: u32) {
    let push = engine.op("link").push(cx(), move |cx| {
        thread::sleep(Duration::from_millis(1));
        if left > 0 {
            return chain(&cx.engine(), left - 1);
        }
        eprintln!("the last of 100 has run");
    });
    push.expect("operations should be allowed to push during a drain");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_operations_push_by_their_context() {
    if is_child() {
        let engine = Engine::builder().workers(1).build().unwrap();
        chain(&engine, 100);
        drop(engine);
        std::process::exit(0);
    }
}

/// A wait inside a function runs the operations that the thread has deferred, but must not complete the function's own
/// operation before the function has returned.
#[test]
fn a_completion_that_a_panic_drops_leaves_the_operation_to_its_function() {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Holds the function's reference to the value, and waits when dropped, possibly while the function unwinds.
    struct WaitOnDrop<'a>(&'a mut Vec<u8>, WeakEngine, Var<u8>, mpsc::Sender<usize>);
    impl Drop for WaitOnDrop<'_> {
        fn drop(&mut self) {
            let _ = self.1.wait_for_var(&self.2);
            thread::sleep(Duration::from_millis(20));
            let _ = self.3.send(self.0.len());
        }
    }

    for catches in [true, false] {
        let engine = Engine::builder().workers(2).pin(false).build().unwrap();
        let (value, other) = (engine.var(vec![0u8; 4]), engine.var(0u8));
        let (release, held) = mpsc::channel::<()>();
        let (sender, lengths) = mpsc::channel();
        engine.op("other").push(other.write(), move |_| _ = held.recv()).unwrap();
        let (inner, its_other) = (engine.downgrade(), other.clone());
        let first = move |(value, done): (&mut Vec<u8>, Completion)| {
            let waiting = WaitOnDrop(value, inner, its_other, sender);
            if catches {
                let dropped = catch_unwind(AssertUnwindSafe(move || {
                    let _done = done;
                    std::panic::resume_unwind(Box::new("caught"));
                }));
                assert!(dropped.is_err());
            } else {
                let _done = done;
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            drop(waiting);
        };
        engine.op("first").push((value.write(), completion()), first).unwrap();
        engine.op("second").run_always().push(value.write(), |value| *value = vec![1; 100]).unwrap();
        thread::sleep(Duration::from_millis(20));
        drop(release);
        assert_eq!(lengths.recv_timeout(Duration::from_secs(60)), Ok(4), "the next operation ran during the function");
        let error = match engine.wait_for_var(&value) {
            Err(WaitError::Failed(error)) => error,
            other => panic!("{other:?}"),
        };
        let is_lost = matches!(error.cause(), Cause::LostCompletion);
        assert_eq!(is_lost, catches, "{error}");
        engine.clear_errors();
    }
}
