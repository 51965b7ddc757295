//! Operations with children.

#![cfg(not(any(raddle_loom, raddle_shuttle)))]

use raddle_testkit as common;

use std::{
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use common::{
    Drops, Gate, KINDS, MOMENT, PATIENCE, THREADED, block_on, failure, hold, lock, on_kinds, poll_once, yield_now,
};
use raddle::{Cause, Device, Engine, EngineKind, OpContext, PushError, Shutdown, SimulatedGpu, Var, WaitError, cx};

// --------------------------------------------------------------------------------------------------- the order ----

#[test]
fn an_operation_behind_a_parent_runs_after_all_children() {
    on_kinds(&KINDS, 2, |engine| {
        let total = engine.var(1);
        for round in 1..=20 {
            let inside = total.clone();
            engine
                .op("parent")
                .with_children()
                .push((cx(), total.write()), move |(cx, total)| {
                    *total *= 2;
                    for _ in 0..10 {
                        cx.child("add").push(inside.write(), |total| *total += 1).unwrap();
                    }
                })
                .unwrap();
            let seen = engine.op("behind").submit(total.read(), |total| *total).unwrap();
            engine.op("reset").push(total.write(), |total| *total = 1).unwrap();
            assert_eq!(seen.wait().unwrap(), 12, "round {round}");
        }
    });
}

#[test]
fn children_start_after_the_function_of_their_parent_has_returned() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, returned) = (engine.var(0), Arc::new(AtomicBool::new(false)));
        let (inside, before) = (value.clone(), Arc::clone(&returned));
        let child = engine
            .op("parent")
            .with_children()
            .submit((cx(), value.write()), move |(cx, value)| {
                let after = Arc::clone(&before);
                let child =
                    cx.child("child").submit(inside.read(), move |value| (*value, after.load(Relaxed))).unwrap();
                thread::sleep(MOMENT);
                *value = 7;
                before.store(true, Relaxed);
                child
            })
            .unwrap();
        assert_eq!(child.wait().unwrap().wait().unwrap(), (7, true));
    });
}

#[test]
fn children_on_different_variables_run_at_the_same_time() {
    on_kinds(&THREADED, 2, |engine| {
        let (left, right) = (engine.var(0), engine.var(0));
        let (l, r) = (left.clone(), right.clone());
        engine
            .op("parent")
            .with_children()
            .push((cx(), left.write(), right.write()), move |(cx, ..)| {
                let meeting = Arc::new(Barrier::new(2));
                for var in [&l, &r] {
                    let meeting = Arc::clone(&meeting);
                    cx.child("child")
                        .push(var.write(), move |value| *value = usize::from(meeting.wait().is_leader()))
                        .unwrap();
                }
            })
            .unwrap();
        assert_eq!(engine.get(&left).unwrap() + engine.get(&right).unwrap(), 1);
    });
}

#[test]
fn children_are_ordered_among_themselves_as_operations_are() {
    on_kinds(&KINDS, 2, |engine| {
        let (log, input) = (engine.var(Vec::new()), engine.var(5));
        let (l, i) = (log.clone(), input.clone());
        engine
            .op("parent")
            .with_children()
            .push((cx(), log.write(), input.write()), move |(cx, ..)| {
                for n in 0..50 {
                    if n % 10 == 0 {
                        cx.child("change").push(i.write(), |input| *input += 1).unwrap();
                    }
                    cx.child("note").push((l.write(), i.read()), move |(log, input)| log.push((n, *input))).unwrap();
                }
            })
            .unwrap();
        let expected: Vec<_> = (0..50).map(|n| (n, 6 + n / 10)).collect();
        assert_eq!(engine.get(&log).unwrap(), expected);
    });
}

#[test]
fn children_have_children() {
    /// Sorts a part of the numbers. The children of an operation sort the two halves of its part.
    fn sort(cx: &OpContext<'_>, parts: Arc<[Var<Vec<u32>>]>, from: usize, to: usize) {
        if to - from == 1 {
            cx.child("sort").push(parts[from].write(), |part| part.sort_unstable()).unwrap();
            return;
        }
        let middle = from.midpoint(to);
        for (from, to) in [(from, middle), (middle, to)] {
            let inside = Arc::clone(&parts);
            let writes: Vec<_> = parts[from..to].iter().map(|part| part.write()).collect();
            cx.child("halve").with_children().push((cx_(), writes), move |(cx, _)| sort(cx, inside, from, to)).unwrap();
        }
    }
    use raddle::cx as cx_;
    on_kinds(&KINDS, 2, |engine| {
        let parts: Arc<[_]> = (0..16).map(|n| engine.var((0..20).map(|i| (i * 7919 + n) % 101).collect())).collect();
        let inside = Arc::clone(&parts);
        let writes: Vec<_> = parts.iter().map(|part| part.write()).collect();
        let parent = engine.op("sort all").with_children();
        parent.push((cx(), writes), move |(cx, _)| sort(cx, inside, 0, 16)).unwrap();
        for part in &*parts {
            assert!(engine.get(part).unwrap().is_sorted());
            assert_eq!(part.version(), 1, "the parent has mutated the variable once");
        }
    });
}

#[test]
fn a_parent_without_children_ends_with_its_function() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        let parent = engine.op("parent").with_children().submit(value.write(), |value| {
            *value += 1;
            *value
        });
        assert_eq!(parent.unwrap().wait().unwrap(), 2);
        assert_eq!((engine.get(&value).unwrap(), value.version()), (2, 1));
        engine.op("parent").with_children().push((), |()| ()).unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!(engine.pending(), 0);
    });
}

#[test]
fn the_handle_of_a_parent_returns_after_its_children() {
    on_kinds(&KINDS, 2, |engine| {
        let done = Arc::new(AtomicUsize::new(0));
        let inside = Arc::clone(&done);
        let parent = engine.op("parent").with_children().submit(cx(), move |cx| {
            for _ in 0..8 {
                let done = Arc::clone(&inside);
                cx.child("child")
                    .push((), move |()| {
                        thread::sleep(Duration::from_millis(1));
                        done.fetch_add(1, Relaxed);
                    })
                    .unwrap();
            }
            "the result"
        });
        assert_eq!(parent.unwrap().wait().unwrap(), "the result");
        assert_eq!(done.load(Relaxed), 8);
    });
}

#[test]
fn versions_rise_once_for_the_parent() {
    on_kinds(&KINDS, 2, |engine| {
        let (mutated, read) = (engine.var(0), engine.var(0));
        let (m, r) = (mutated.clone(), read.clone());
        engine
            .op("parent")
            .with_children()
            .push((cx(), mutated.write(), read.read()), move |(cx, ..)| {
                for _ in 0..5 {
                    cx.child("child").push((m.write(), r.read()), |(m, _)| *m += 1).unwrap();
                }
            })
            .unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!((mutated.version(), read.version()), (1, 0));
    });
}

// ----------------------------------------------------------------------------------------------- what is refused ----

#[test]
fn children_name_only_what_their_parent_holds() {
    on_kinds(&KINDS, 1, |engine| {
        let (held, read, other) = (engine.var(0), engine.var(0).named("read"), engine.var(0).named("other"));
        let (h, r, o) = (held.clone(), read.clone(), other.clone());
        let refused = engine
            .op("parent")
            .with_children()
            .submit((cx(), held.write(), read.read()), move |(cx, ..)| {
                cx.child("reads").push((h.read(), r.read()), |_| ()).unwrap();
                cx.child("overwrites").push(h.overwrite(), |_| ()).unwrap();
                [
                    cx.child("strange").push((h.write(), o.read()), |_| unreachable!()),
                    cx.child("too much").push(r.write(), |_| unreachable!()),
                    cx.child("untyped").writes([&o]).push((), |()| unreachable!()),
                    cx.child("twice").push((h.write(), h.read()), |_| unreachable!()),
                ]
            })
            .unwrap();
        let refused = refused.wait().unwrap();
        let names = |refused: &Result<(), PushError>| match refused {
            Err(PushError::NotHeld(access)) => (access.operation().to_owned(), access.variable().to_owned()),
            other => panic!("{other:?}"),
        };
        assert_eq!(names(&refused[0]), ("strange".into(), "other".into()));
        assert_eq!(names(&refused[1]), ("too much".into(), "read".into()));
        assert_eq!(names(&refused[2]), ("untyped".into(), "other".into()));
        assert!(matches!(refused[3], Err(PushError::AliasedVariable(_))));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_operation_without_children_refuses_them() {
    on_kinds(&KINDS, 1, |engine| {
        let refused = engine.op("childless").submit(cx(), |cx| cx.child("").push((), |()| unreachable!()));
        assert!(matches!(refused.unwrap().wait().unwrap(), Err(PushError::NotAParent)));
        // A child cannot have children either, unless it was pushed with `with_children`.
        let refused = engine.op("parent").with_children().submit(cx(), |cx| {
            cx.child("child").submit(raddle::cx(), |cx| cx.child("").push((), |()| unreachable!())).unwrap()
        });
        assert!(matches!(refused.unwrap().wait().unwrap().wait().unwrap(), Err(PushError::NotAParent)));
    });
}

#[test]
fn only_operations_that_end_with_their_function_have_children() {
    on_kinds(&[EngineKind::PerDevice], 1, |_| {
        let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).build().unwrap();
        let parent = || engine.op("parent").with_children();
        let refused = [
            parent().push_async((), |(), _| unreachable!()),
            parent().push_future((), |()| async { unreachable!() }),
            parent().on(Device::Gpu(0)).launch((), |_, ()| unreachable!()),
            parent().on(Device::Gpu(0)).push((), |()| unreachable!()),
            parent().operator((), |()| unreachable!()).map(drop),
        ];
        for refused in refused {
            assert_eq!(refused, Err(PushError::UnfitForFamily));
        }
        let refused = parent().submit(cx(), |cx| cx.child("").operator((), |()| ()).map(drop)).unwrap();
        assert_eq!(refused.wait().unwrap(), Err(PushError::UnfitForFamily));
    });
}

#[test]
fn a_wait_for_what_the_parent_holds_is_refused_in_a_child() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, inner) = (engine.var(0), engine.downgrade());
        let inside = value.clone();
        let waits = engine
            .op("parent")
            .with_children()
            .submit((cx(), value.write()), move |(cx, _)| {
                cx.child("middle")
                    .with_children()
                    .submit(raddle::cx(), move |cx| {
                        cx.child("child")
                            .submit((), move |()| (inner.get(&inside), inner.wait_for_var(&inside)))
                            .unwrap()
                    })
                    .unwrap()
            })
            .unwrap();
        let (got, waited) = waits.wait().unwrap().wait().unwrap().wait().unwrap();
        assert!(matches!(got, Err(WaitError::WouldDeadlock(_))), "{got:?}");
        assert!(matches!(waited, Err(WaitError::WouldDeadlock(_))), "{waited:?}");
    });
}

#[test]
fn a_wait_for_a_child_is_refused_in_the_function_of_its_parent() {
    on_kinds(&KINDS, 2, |engine| {
        let waited = engine.op("parent").with_children().submit(cx(), |cx| {
            let child = cx.child("child").submit((), |()| 7).unwrap();
            child.wait()
        });
        let waited = waited.unwrap().wait().unwrap();
        assert!(matches!(waited, Err(WaitError::WouldDeadlock(_))), "{waited:?}");
    });
}

#[test]
fn a_scope_in_a_child_cannot_name_what_the_parent_holds() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, inner) = (engine.var(0), engine.downgrade());
        let inside = value.clone();
        let refused = engine
            .op("parent")
            .with_children()
            .submit((cx(), value.write()), move |(cx, _)| {
                cx.child("child")
                    .submit((), move |()| inner.scope(|s| s.op("").push(inside.read(), |_| unreachable!())).unwrap())
                    .unwrap()
            })
            .unwrap();
        let refused = refused.wait().unwrap().wait().unwrap();
        assert!(matches!(refused, Err(PushError::HeldAroundScope(_))), "{refused:?}");
    });
}

// ----------------------------------------------------------------------------------------------------- failures ----

#[test]
fn a_parent_fails_with_the_child_that_was_pushed_first_among_those_that_failed() {
    on_kinds(&KINDS, 2, |engine| {
        let (left, right) = (engine.var(0), engine.var(0));
        let (l, r) = (left.clone(), right.clone());
        let parent = engine
            .op("parent")
            .with_children()
            .submit((cx(), left.write(), right.write()), move |(cx, ..)| {
                cx.child("early")
                    .try_push(l.write(), |_| {
                        thread::sleep(MOMENT);
                        Err("early".into())
                    })
                    .unwrap();
                cx.child("late").try_push(r.write(), |_| Err("late".into())).unwrap();
                cx.child("skipped").push(r.write(), |_| unreachable!()).unwrap();
            })
            .unwrap();
        assert_eq!(failure(parent.wait()).name(), "early");
        for var in [&left, &right] {
            assert_eq!(failure(engine.wait_for_var(var)).name(), "early");
            assert_eq!(var.version(), 0);
        }
        // Nothing else has reported the failure of the second child.
        assert_eq!(failure(engine.wait_for_all()).name(), "late");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_failure_that_a_later_child_clears_is_not_the_parents() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        let inside = value.clone();
        let parent = engine
            .op("parent")
            .with_children()
            .submit((cx(), value.write()), move |(cx, _)| {
                cx.child("fails").try_push(inside.write(), |_| Err("no".into())).unwrap();
                cx.child("clears").push(inside.overwrite(), |value| *value = 3).unwrap();
            })
            .unwrap();
        parent.wait().unwrap();
        assert_eq!((engine.get(&value).unwrap(), value.version()), (3, 1));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_failure_of_a_child_that_mutates_nothing_is_the_parents() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        let parent = engine.op("parent").with_children().submit((cx(), value.write()), move |(cx, _)| {
            cx.child("fails").push((), |()| panic!("no")).unwrap();
        });
        assert_eq!(failure(parent.unwrap().wait()).name(), "fails");
        assert_eq!(failure(engine.wait_for_var(&value)).name(), "fails");
        engine.wait_for_all().expect("it was reported");
    });
}

#[test]
fn children_of_a_function_that_fails_are_skipped_where_they_name_what_it_mutates() {
    on_kinds(&KINDS, 2, |engine| {
        let (mutated, read, ran) = (engine.var(0), engine.var(0), Arc::new(Mutex::new(Vec::new())));
        let (m, r, inside) = (mutated.clone(), read.clone(), Arc::clone(&ran));
        let parent = engine
            .op("parent")
            .with_children()
            .try_submit((cx(), mutated.write(), read.read()), move |(cx, ..)| -> Result<(), _> {
                let note = |what| {
                    let ran = Arc::clone(&inside);
                    move || lock(&ran).push(what)
                };
                let note_read = note("read");
                cx.child("reads").push(r.read(), move |_| note_read())?;
                cx.child("reads").push(m.read(), |_| unreachable!())?;
                cx.child("writes").push(m.write(), |_| unreachable!())?;
                let note_always = note("always");
                cx.child("always").run_always().push(m.read(), move |_| note_always())?;
                Err("the function".into())
            })
            .unwrap();
        let failed = failure(parent.wait());
        assert_eq!((failed.name(), failed.to_string().contains("the function")), ("parent", true));
        let mut ran = lock(&ran).clone();
        ran.sort_unstable();
        assert_eq!(ran, ["always", "read"]);
        assert_eq!(failure(engine.wait_for_var(&mutated)).name(), "parent");
        engine.wait_for_var(&read).unwrap();
        engine.wait_for_all().expect("the failure was reported");
    });
}

#[test]
fn an_overwrite_of_a_parent_clears_a_failure_only_if_all_children_succeed() {
    on_kinds(&KINDS, 2, |engine| {
        for succeeds in [true, false] {
            let value = engine.var(0);
            engine.op("before").try_push(value.write(), |_| Err("before".into())).unwrap();
            let inside = value.clone();
            engine
                .op("parent")
                .with_children()
                .push((cx(), value.overwrite()), move |(cx, value)| {
                    *value = 1;
                    cx.child("adds").push(inside.write(), |value| *value += 1).unwrap();
                    let child = move |_: &mut i32| if succeeds { Ok(()) } else { Err("child".into()) };
                    cx.child("child").try_push(inside.write(), child).unwrap();
                })
                .unwrap();
            let result = engine.wait_for_var(&value);
            if succeeds {
                result.unwrap();
                assert_eq!(engine.get(&value).unwrap(), 2);
            } else {
                assert_eq!(failure(result).name(), "child");
            }
            let _ = engine.wait_for_all();
        }
    });
}

#[test]
fn a_parent_that_is_skipped_pushes_no_children() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        engine.op("fails").try_push(value.write(), |_| Err("no".into())).unwrap();
        let parent = engine.op("parent").with_children().submit((cx(), value.write()), |_| unreachable!()).unwrap();
        let _: &raddle::OpHandle<()> = &parent;
        assert_eq!(failure(parent.wait()).name(), "fails");
    });
}

// ------------------------------------------------------------------------------------------ with all the rest ----

#[test]
fn a_variable_that_is_deleted_behind_a_parent_is_there_for_its_children() {
    on_kinds(&THREADED, 1, |engine| {
        let (value, (sender, receiver)) = (engine.var(1), mpsc::channel::<()>());
        let inside = value.clone();
        let parent = engine.op("parent").with_children().submit((cx(), value.write()), move |(cx, _)| {
            let _ = receiver.recv_timeout(PATIENCE);
            cx.child("child").submit(inside.write(), |value| *value + 1).unwrap()
        });
        engine.delete_variable(&value, |_| ()).unwrap();
        drop(sender);
        assert_eq!(parent.unwrap().wait().unwrap().wait().unwrap(), 2);
    });
}

#[test]
fn a_wait_for_what_the_parent_holds_is_refused_in_each_poll_of_a_future() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, inner) = (engine.var(0), engine.downgrade());
        let inside = value.clone();
        let waited = engine.op("parent").with_children().submit((cx(), value.write()), move |(cx, _)| {
            let child = cx.child("child").submit_future((), |()| async move {
                let first = inner.get(&inside);
                yield_now().await;
                (first, inner.get(&inside))
            });
            child.unwrap()
        });
        let (first, second) = waited.unwrap().wait().unwrap().wait().unwrap();
        assert!(matches!(first, Err(WaitError::WouldDeadlock(_))), "{first:?}");
        assert!(matches!(second, Err(WaitError::WouldDeadlock(_))), "{second:?}");
    });
}

#[test]
fn children_may_be_of_every_kind() {
    on_kinds(&KINDS, 2, |_| {
        for kind in KINDS {
            let engine = Engine::builder().kind(kind).workers(2).gpu(SimulatedGpu::new()).build().unwrap();
            let gpu = Device::Gpu(0);
            let (value, there) = (engine.var(0), engine.device_var::<u32>(gpu, 4).unwrap());
            let host = engine.pinned_var::<u32>(gpu, 4).unwrap();
            let (v, t, h) = (value.clone(), there.clone(), host.clone());
            let parent = engine
                .op("parent")
                .with_children()
                .try_submit((cx(), value.write(), there.write(), host.write()), move |(cx, _, _, host)| {
                    host.fill(5);
                    cx.child("async").push_async(v.write(), |value, done| {
                        *value += 1;
                        thread::spawn(move || {
                            thread::sleep(Duration::from_millis(2));
                            done.complete();
                        });
                    })?;
                    cx.child("future").push_future(v.write(), |mut value| async move { *value *= 10 })?;
                    cx.child("up").on(gpu).copy_to_device(&h, &t)?;
                    cx.child("double").on(gpu).try_launch(t.write(), |stream, device| {
                        let mut gpu = stream.simulated().ok_or("it is simulated")?;
                        gpu.launch(Duration::from_millis(1), device, |all| all.iter_mut().for_each(|x| *x *= 2))?;
                        Ok(())
                    })?;
                    cx.child("down").on(gpu).copy_from_device(&t, &h)?;
                    Ok(cx
                        .child("sum")
                        .submit((v.read(), h.read()), |(value, host)| value + host.iter().sum::<u32>())?)
                })
                .unwrap();
            let sum = engine.op("after").submit((value.read(), host.read()), |(value, host)| value + host[0]).unwrap();
            assert_eq!(parent.wait().unwrap().wait().unwrap(), 50);
            assert_eq!(sum.wait().unwrap(), 20);
        }
    });
}

#[test]
fn children_inherit_priority_deadline_and_group() {
    on_kinds(&THREADED, 1, |engine| {
        let group = engine.group();
        let (gate, passed) = (Gate::new(), Gate::new());
        let (inside, at) = (gate.clone(), passed.clone());
        let parent = group
            .op("parent")
            .with_children()
            .submit(cx(), move |cx| {
                let children = [(); 3].map(|()| cx.child("child").submit((), |()| unreachable!()).unwrap());
                at.open();
                inside.pass();
                children.map(|child: raddle::OpHandle<()>| child)
            })
            .unwrap();
        passed.pass();
        group.cancel();
        gate.open();
        let failed = failure(parent.wait().map(drop));
        assert!(matches!(failed.cause(), Cause::Cancelled) && failed.name() == "child", "{failed}");
        assert!(group.wait().is_err());

        let late = engine.op("parent").deadline(Instant::now() + MOMENT).with_children().submit(cx(), |cx| {
            thread::sleep(2 * MOMENT);
            cx.child("child").push((), |()| unreachable!()).unwrap();
        });
        assert!(matches!(failure(late.unwrap().wait()).cause(), Cause::DeadlinePassed));
    });
}

#[test]
fn a_parent_may_be_waited_for_in_place_and_in_a_scope() {
    on_kinds(&KINDS, 1, |engine| {
        let inner = engine.downgrade();
        let nested = engine.op("around").submit((), move |()| {
            let count = Arc::new(AtomicUsize::new(0));
            let inside = Arc::clone(&count);
            let parent = inner.op("parent").with_children().submit(cx(), move |cx| {
                for _ in 0..3 {
                    let count = Arc::clone(&inside);
                    cx.child("child").push((), move |()| _ = count.fetch_add(1, Relaxed)).unwrap();
                }
            });
            parent.unwrap().wait().unwrap();
            count.load(Relaxed)
        });
        assert_eq!(nested.unwrap().wait().unwrap(), 3);
    });
}

#[test]
fn a_shutdown_that_drains_waits_for_children_and_one_that_cancels_fails_their_parent() {
    on_kinds(&THREADED, 1, |engine| {
        for (how, expected) in [(Shutdown::Drain, 3), (Shutdown::Cancel, 0)] {
            let engine = common::engine(engine.kind(), 1);
            let (count, (sender, receiver)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel::<()>());
            let (inside, started) = (Arc::clone(&count), Gate::new());
            let at = started.clone();
            let parent = engine
                .op("parent")
                .with_children()
                .submit(cx(), move |cx| {
                    at.open();
                    let push = || {
                        let count = Arc::clone(&inside);
                        cx.child("child").push((), move |()| _ = count.fetch_add(1, Relaxed))
                    };
                    (0..3).for_each(|_| push().unwrap());
                    let _ = receiver.recv_timeout(PATIENCE);
                })
                .unwrap();
            started.pass();
            let other = engine.clone();
            let shutdown = thread::spawn(move || other.shutdown(how, None));
            while engine.op("").push((), |()| ()).is_ok() {
                thread::yield_now();
            }
            drop(sender);
            shutdown.join().unwrap().unwrap();
            assert_eq!(count.load(Relaxed), expected);
            assert_eq!(parent.wait().is_ok(), expected == 3);
        }
    });
}

#[test]
fn the_children_of_a_clean_up_are_not_cancelled() {
    on_kinds(&THREADED, 1, |engine| {
        let (count, started, gate) = (Arc::new(AtomicUsize::new(0)), Gate::new(), Gate::new());
        let (inside, at, pass) = (Arc::clone(&count), started.clone(), gate.clone());
        engine
            .op("clean up")
            .cleanup()
            .with_children()
            .push(cx(), move |cx| {
                let count = Arc::clone(&inside);
                cx.child("child").push((), move |()| _ = count.fetch_add(1, Relaxed)).unwrap();
                at.open();
                pass.pass();
            })
            .unwrap();
        started.pass();
        engine.notify_shutdown();
        gate.open();
        engine.shutdown(Shutdown::Cancel, None).unwrap();
        assert_eq!(count.load(Relaxed), 1);
    });
}

#[test]
fn what_parents_and_children_capture_is_dropped_once() {
    on_kinds(&KINDS, 2, |engine| {
        let drops = Drops::new();
        for fails in [false, true] {
            let value = engine.var(drops.make());
            let (inside, captured, in_child, refused) = (value.clone(), drops.make(), drops.make(), drops.make());
            let other = engine.var(0);
            engine
                .op("parent")
                .with_children()
                .try_push((cx(), value.write()), move |(cx, value)| {
                    captured.touch();
                    value.touch();
                    cx.child("child").push(inside.write(), move |value| {
                        in_child.touch();
                        value.touch();
                    })?;
                    let pushed = cx.child("refused").push(other.write(), move |_| refused.touch());
                    assert!(pushed.is_err());
                    if fails { Err("planned".into()) } else { Ok(()) }
                })
                .unwrap();
            drop(value);
        }
        let _ = engine.wait_for_all();
        engine.shutdown(Shutdown::Drain, None).unwrap();
        drops.assert_all_gone();
    });
}

#[test]
fn a_child_waits_for_what_holds_back_its_parent_only_once() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        let gate = hold(&engine, &token);
        let t = token.clone();
        let mut parent = engine
            .op("parent")
            .writes([&token])
            .with_children()
            .submit(cx(), move |cx| cx.child("child").writes([&t]).submit((), |()| 5).unwrap())
            .unwrap();
        assert!(poll_once(&mut parent).is_pending());
        gate.open();
        let child = block_on(parent).unwrap();
        assert_eq!(block_on(child).unwrap(), 5);
        assert_eq!(token.version(), 2);
    });
}
