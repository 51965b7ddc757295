//! Operations with children.

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
    Droppable, Drops, Gate, KINDS, MOMENT, PATIENCE, THREADED, block_on, failure, hold, lock, on_kinds, poll_once,
    yield_now,
};
use raddle::{
    Device, Engine, OpContext, OpHandle, PushError, Shutdown, Var, WaitError, completion, cx,
    error::{Cause, Misfit, NoAccess},
    gpu::SimulatedGpu,
    stream,
};

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
fn children_are_ordered_although_their_parent_names_a_variable_twice() {
    on_kinds(&THREADED, 2, |engine| {
        let (value, gate) = (engine.var(0), Arc::new(Gate::new()));
        let (sender, receiver) = mpsc::channel();
        let (inside, passes) = (value.clone(), Arc::clone(&gate));
        let parent =
            engine.op("parent").with_children().reads([value.token()]).push((cx(), value.write()), move |(cx, _)| {
                let write = cx.child("write").push(inside.write(), move |value| {
                    passes.pass();
                    *value = 1;
                });
                write.unwrap();
                cx.child("read").push(inside.read(), move |value| sender.send(*value).unwrap()).unwrap();
            });
        parent.unwrap();
        assert!(receiver.recv_timeout(MOMENT).is_err(), "the reader does not wait");
        gate.open();
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(1));
        engine.wait_for_all().unwrap();
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
    /// Sorts a range of parts through children: one child sorts a single part, and two children with children sort the
    /// halves of a longer range.
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
            assert_eq!(part.version(), 1, "the parent does not count as one mutation");
        }
    });
}

#[test]
fn a_parent_that_pushes_no_children_ends_with_its_function() {
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
fn a_parent_increments_each_version_once() {
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
            Err(PushError::Variable(NoAccess::NotHeld, access)) => {
                (access.operation().to_owned(), access.variable().to_owned())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(names(&refused[0]), ("strange".into(), "other".into()));
        assert_eq!(names(&refused[1]), ("too much".into(), "read".into()));
        assert_eq!(names(&refused[2]), ("untyped".into(), "other".into()));
        assert!(matches!(refused[3], Err(PushError::Variable(NoAccess::Aliased, _))));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_operation_without_children_refuses_them() {
    on_kinds(&KINDS, 1, |engine| {
        let refused = engine.op("childless").submit(cx(), |cx| cx.child("").push((), |()| unreachable!()));
        assert!(matches!(refused.unwrap().wait().unwrap(), Err(PushError::Unfit(Misfit::NotAParent))));
        // Likewise, a child cannot have children unless it was pushed with `with_children`.
        let refused = engine.op("parent").with_children().submit(cx(), |cx| {
            cx.child("child").submit(raddle::cx(), |cx| cx.child("").push((), |()| unreachable!())).unwrap()
        });
        assert!(matches!(refused.unwrap().wait().unwrap().wait().unwrap(), Err(PushError::Unfit(Misfit::NotAParent))));
    });
}

#[test]
fn device_operations_cannot_have_children_and_operators_cannot_be_children() {
    on_kinds(&KINDS, 1, |plain| {
        let engine = Engine::builder().kind(plain.kind()).workers(1).pin(false).gpu(SimulatedGpu::new());
        let engine = engine.build().unwrap();
        let parent = || engine.op("parent").with_children();
        let refused = [
            parent().on(Device::Gpu(0)).push(stream(), |_| unreachable!()),
            parent().on(Device::Gpu(0)).push((), |()| unreachable!()),
            parent().on(Device::Gpu(0)).push(completion(), |_| unreachable!()),
            parent().on(Device::Gpu(0)).operator((), |()| unreachable!()).map(drop),
            parent().on(Device::Gpu(0)).operator(stream(), |_| unreachable!()).map(drop),
        ];
        for refused in refused {
            assert_eq!(refused, Err(PushError::Unfit(Misfit::Family)));
        }
        let refused = parent().submit(cx(), |cx| cx.child("").operator((), |()| ()).map(drop)).unwrap();
        assert_eq!(refused.wait().unwrap(), Err(PushError::Unfit(Misfit::Family)));
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

/// Returns the handle of a child that its parent, which runs until `gate` opens, holds back.
fn held_back(engine: &Engine, gate: &Gate) -> OpHandle<i32> {
    let ((sender, children), returns) = (mpsc::channel(), gate.clone());
    let parent = engine.op("other").with_children().push(cx(), move |cx| {
        sender.send(cx.child("child").submit((), |()| 7).unwrap()).unwrap();
        returns.pass();
    });
    parent.unwrap();
    children.recv().unwrap()
}

/// Waits for a child that is held back until `gate` opens, first with a time limit. Returns the results of both waits.
fn wait_before_and_after(mut child: OpHandle<i32>, gate: &Gate) -> (Result<i32, WaitError>, Result<i32, WaitError>) {
    let early = child.wait_timeout(MOMENT);
    gate.open();
    (early, child.wait())
}

/// Each of the parents is a function that runs, and only its own children wait for its end.
#[test]
fn a_parent_may_wait_for_a_child_that_another_parent_holds_back() {
    on_kinds(&THREADED, 2, |engine| {
        let gate = Gate::new();
        let child = held_back(&engine, &gate);
        let waits = engine.op("parent").with_children().submit((), move |()| wait_before_and_after(child, &gate));
        let (early, late) = waits.unwrap().wait().unwrap();
        assert!(matches!(early, Err(WaitError::TimedOut)), "{early:?}");
        assert_eq!(late.unwrap(), 7);
    });
}

/// A parent lets go of all children before the first one runs, whichever was pushed first.
#[test]
fn a_child_may_wait_for_another_child_of_its_parent() {
    on_kinds(&THREADED, 2, |engine| {
        for waits_for_earlier in [false, true] {
            let gate = Gate::new();
            let ((sender, handles), (waits, results)) = (mpsc::channel(), mpsc::channel());
            let parent = engine.op("parent").with_children().push(cx(), move |cx| {
                let passes = gate.clone();
                let push_awaited = || {
                    let awaited = cx.child("awaited").submit((), move |()| {
                        passes.pass();
                        7
                    });
                    sender.send(awaited.unwrap()).unwrap();
                };
                let push_waiting = || {
                    let wait = move |()| waits.send(wait_before_and_after(handles.recv().unwrap(), &gate)).unwrap();
                    cx.child("waits").push((), wait).unwrap();
                };
                if waits_for_earlier {
                    push_awaited();
                    push_waiting();
                } else {
                    push_waiting();
                    push_awaited();
                }
            });
            parent.unwrap();
            engine.wait_for_all().unwrap();
            let (early, late) = results.recv().unwrap();
            assert!(matches!(early, Err(WaitError::TimedOut)), "earlier: {waits_for_earlier}, {early:?}");
            assert_eq!(late.unwrap(), 7, "earlier: {waits_for_earlier}");
        }
    });
}

/// The scope is not inside the parent.
#[test]
fn an_operation_of_a_scope_may_wait_for_a_child_that_a_parent_holds_back() {
    on_kinds(&THREADED, 2, |engine| {
        let gate = Gate::new();
        let child = held_back(&engine, &gate);
        let waited = engine.scope(|s| {
            let waits = s.op("waits").submit((), move |()| wait_before_and_after(child, &gate));
            waits.unwrap().wait().unwrap()
        });
        let (early, late) = waited.unwrap();
        assert!(matches!(early, Err(WaitError::TimedOut)), "{early:?}");
        assert_eq!(late.unwrap(), 7);
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
        assert!(matches!(refused, Err(PushError::Variable(NoAccess::HeldAroundScope, _))), "{refused:?}");
    });
}

#[test]
fn a_scope_in_a_grandchild_cannot_name_what_the_grandparent_holds() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, inner) = (engine.var(0), engine.downgrade());
        let (inside, (sender, results)) = (value.clone(), mpsc::channel());
        let parent = engine.op("parent").with_children().submit((cx(), value.write()), move |(cx, _)| {
            let child = cx.child("child").with_children();
            child
                .push(raddle::cx(), move |cx| {
                    let scope = move |()| {
                        let refused = inner.scope(|s| s.op("").push(inside.read(), |_| unreachable!()));
                        sender.send(refused.unwrap()).unwrap();
                    };
                    cx.child("grandchild").push((), scope).unwrap();
                })
                .unwrap();
        });
        parent.unwrap().wait().unwrap();
        let refused = results.recv().unwrap();
        assert!(matches!(refused, Err(PushError::Variable(NoAccess::HeldAroundScope, _))), "{refused:?}");
    });
}

// ---------------------------------------------------------------------------------------- variables of a family ----

#[test]
fn children_share_the_variables_of_their_family() {
    on_kinds(&KINDS, 2, |engine| {
        for round in 0..20_u32 {
            let total = engine.var(0);
            let inside = total.clone();
            engine
                .op("parent")
                .with_children()
                .try_push((cx(), total.write()), move |(cx, _)| {
                    let (parts, order) = (cx.child_var(Vec::new())?.named("parts"), cx.child_token()?);
                    for part in 0..10 {
                        cx.child("add").writes([&order]).push(parts.write(), move |parts| parts.push(part + round))?;
                    }
                    cx.child("sum").reads([&order]).push((parts.read(), inside.write()), |(parts, total)| {
                        *total = parts.iter().sum();
                    })?;
                    Ok(())
                })
                .unwrap();
            assert_eq!(engine.get(&total).unwrap(), 45 + 10 * round);
        }
    });
}

#[test]
fn the_value_of_a_variable_of_a_family_is_dropped_before_a_wait_for_the_parent_returns() {
    /// A value whose drop takes some time.
    struct Slow(Option<Droppable>);
    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(MOMENT / 4);
            self.0 = None;
        }
    }
    on_kinds(&KINDS, 2, |engine| {
        for fails in [false, true] {
            let (drops, kept) = (Drops::new(), Arc::new(Mutex::new(None)));
            let (value, out) = (Slow(Some(drops.make())), Arc::clone(&kept));
            let parent = engine.op("parent").with_children().try_submit(cx(), move |cx| {
                let var = cx.child_var(value)?;
                let unused = cx.child_var(Vec::<u8>::with_capacity(100))?;
                cx.child("use").push((var.write(), unused.read()), |(value, _)| {
                    value.0.as_ref().unwrap().touch();
                })?;
                *lock(&out) = Some(var);
                if fails { Err("planned".into()) } else { Ok(()) }
            });
            assert_eq!(parent.unwrap().wait().is_err(), fails);
            drops.assert_all_gone();
            // The handle still exists, but calls refuse it.
            let var = lock(&kept).take().unwrap();
            assert!(matches!(
                engine.wait_for_var(&var),
                Err(WaitError::Refused(PushError::Variable(NoAccess::OfFamily, _)))
            ));
            let pushed = engine.op("late").push(var.write(), |_| unreachable!());
            assert!(matches!(pushed, Err(PushError::Variable(NoAccess::OfFamily, _))), "{pushed:?}");
            drop(var);
            let _ = engine.wait_for_all();
        }
    });
}

#[test]
fn other_operations_cannot_name_a_variable_of_a_family() {
    on_kinds(&KINDS, 2, |engine| {
        let (inner, other) = (engine.downgrade(), common::engine(engine.kind(), 1));
        let refused = engine
            .op("parent")
            .with_children()
            .submit(cx(), move |cx| {
                let var = cx.child_var(1).unwrap().named("inside");
                let mut refused = vec![
                    inner.op("outside").push(var.read(), |_| unreachable!()),
                    inner.op("outside").writes([&var]).push((), |()| unreachable!()),
                    inner.op("outside").operator(var.read(), |_| unreachable!()).map(drop),
                    inner.delete_variable(&var, |_| unreachable!()),
                    inner.clear_error(&var),
                    inner.set(&var, 2),
                    inner.group().op("outside").push(var.read(), |_| unreachable!()),
                    inner.scope(|s| s.op("outside").push(var.read(), |_| unreachable!())).unwrap(),
                ];
                let waits = [
                    inner.wait_for_var(&var),
                    inner.wait_to_read(&var),
                    inner.get(&var).map(drop),
                    inner.with(&var, |_| ()),
                    inner.take(&var).map(drop),
                    block_on(inner.acquire(var.write())).map(drop),
                    block_on(var.ready()),
                ];
                refused.extend(waits.map(|wait| match wait {
                    Err(WaitError::Refused(error)) => Err(error),
                    other => panic!("{other:?}"),
                }));
                let foreign = other.op("foreign").push(var.read(), |_| unreachable!());
                assert!(matches!(foreign, Err(PushError::Variable(NoAccess::Foreign, _))), "{foreign:?}");
                refused
            })
            .unwrap();
        for refused in refused.wait().unwrap() {
            let Err(error @ PushError::Variable(NoAccess::OfFamily, _)) = refused else { panic!("{refused:?}") };
            assert!(error.to_string().contains("`inside`, which belongs to the children of another"), "{error}");
        }
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn children_of_children_name_a_variable_of_the_family_if_their_parent_does() {
    on_kinds(&KINDS, 2, |engine| {
        let seen = engine.var(0);
        let s = seen.clone();
        let parent = engine
            .op("parent")
            .with_children()
            .submit((cx(), seen.write()), move |(cx, _)| {
                let (var, hidden) = (cx.child_var(1).unwrap(), cx.child_var(1).unwrap());
                let inside = var.clone();
                let middle = cx
                    .child("middle")
                    .with_children()
                    .submit((raddle::cx(), var.write()), move |(cx, var)| {
                        *var += 1;
                        let own = cx.child_var(10).unwrap();
                        cx.child("inner").push((inside.write(), own.write()), |(var, own)| *var += *own).unwrap();
                        let refused = cx.child("inner").push(hidden.read(), |_| unreachable!());
                        (refused, own)
                    })
                    .unwrap();
                cx.child("show").push((var.read(), s.write()), |(var, seen)| *seen = *var).unwrap();
                cx.child("takes").submit((), move |()| middle.wait().unwrap()).unwrap()
            })
            .unwrap();
        let (refused, own) = parent.wait().unwrap().wait().unwrap();
        assert!(matches!(refused, Err(PushError::Variable(NoAccess::NotHeld, _))), "{refused:?}");
        assert_eq!(engine.get(&seen).unwrap(), 12);
        // Nor can another parent's children declare this variable.
        let refused = engine.op("parent").with_children().submit(cx(), move |cx| cx.child("").push(own.read(), |_| ()));
        assert!(matches!(refused.unwrap().wait().unwrap(), Err(PushError::Variable(NoAccess::OfFamily, _))));
    });
}

#[test]
fn an_operation_without_children_cannot_create_variables_for_them() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let value = drops.make();
        let refused =
            engine.op("childless").submit(cx(), |cx| (cx.child_var(value).map(drop), cx.child_token().map(drop)));
        assert_eq!(
            refused.unwrap().wait().unwrap(),
            (Err(PushError::Unfit(Misfit::NotAParent)), Err(PushError::Unfit(Misfit::NotAParent)))
        );
        drops.assert_all_gone();
    });
}

#[test]
fn a_failure_on_a_variable_of_a_family_fails_the_parent_unless_a_later_child_clears_it() {
    on_kinds(&KINDS, 2, |engine| {
        for clears in [false, true] {
            let value = engine.var(0);
            let parent = engine
                .op("parent")
                .with_children()
                .try_submit((cx(), value.write()), move |(cx, _)| {
                    let var = cx.child_var(0)?;
                    cx.child("fails").try_push(var.write(), |_| Err("no".into()))?;
                    cx.child("skipped").push(var.write(), |_| unreachable!())?;
                    if clears {
                        cx.child("clears").push(var.overwrite(), |var| *var = 3)?;
                        cx.child("sees").push(var.read(), |var| assert_eq!(*var, 3))?;
                    }
                    Ok(())
                })
                .unwrap();
            let (result, seen) = (parent.wait(), engine.wait_for_var(&value));
            if clears {
                result.unwrap();
                seen.unwrap();
                assert_eq!(value.version(), 1);
            } else {
                assert_eq!((failure(result).name(), failure(seen).name()), ("fails", "fails"));
            }
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn the_variables_of_a_family_fail_with_the_function_of_the_parent() {
    on_kinds(&KINDS, 2, |engine| {
        let skipped = engine
            .op("parent")
            .with_children()
            .try_submit(cx(), move |cx| -> Result<(), _> {
                let var = cx.child_var(0)?;
                cx.child("skipped").push(var.read(), |_| unreachable!())?;
                Err("planned".into())
            })
            .unwrap();
        assert_eq!(failure(skipped.wait()).name(), "parent");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_panic_in_the_drop_of_a_value_of_a_family_is_reported_and_the_parent_ends() {
    on_kinds(&KINDS, 2, |engine| {
        let parent = engine.op("parent").with_children().submit(cx(), move |cx| {
            let var = cx.child_var(common::PanicsOnDrop("a value of a family")).unwrap();
            cx.child("use").push(var.write(), |_| ()).unwrap();
        });
        parent.unwrap().wait().unwrap();
        let error = failure(engine.wait_for_all());
        assert!(error.to_string().contains("a value of a family"), "{error}");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn devices_use_the_variables_of_a_family() {
    for kind in KINDS {
        let engine = Engine::builder().kind(kind).workers(2).gpu(SimulatedGpu::new()).build().unwrap();
        let (gpu, drops) = (Device::Gpu(0), Drops::new());
        let (there, value) = (engine.device_var::<u32>(gpu, 4).unwrap(), drops.make());
        let t = there.clone();
        let parent = engine.op("parent").with_children().try_submit((cx(), there.write()), move |(cx, _)| {
            let order = cx.child_var(value)?;
            cx.child("launch").on(gpu).writes([&order]).try_push((t.write(), stream()), |(device, stream)| {
                let mut gpu = stream.simulated().ok_or("the device is not simulated")?;
                gpu.launch(Duration::from_millis(5), device, |all| all.fill(2))?;
                Ok(())
            })?;
            cx.child("look").on(gpu).push(order.read(), |value| value.touch())?;
            Ok(())
        });
        parent.unwrap().wait().unwrap();
        drops.assert_all_gone();
        engine.wait_for_all().unwrap();
    }
}

// ------------------------------------------------------------------------------------------- asynchronous parents ----

#[test]
fn an_asynchronous_parent_ends_with_its_completion_and_its_children() {
    on_kinds(&KINDS, 2, |engine| {
        for finish in ["inside", "before", "after", "by a child"] {
            let (value, token) = (engine.var(0), engine.token());
            let (inside, t) = (value.clone(), token.clone());
            let (returned, used) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let (before, seen, at_end) = (Arc::clone(&used), Arc::clone(&returned), Arc::clone(&used));
            engine
                .op("parent")
                .writes([&token, value.token()])
                .with_children()
                .push((cx(), completion()), move |(cx, done)| {
                    let family = cx.child_var(5).unwrap();
                    let late = finish == "after";
                    let use_it = move || {
                        if late {
                            thread::sleep(MOMENT / 2);
                        }
                        before.store(true, Relaxed);
                        done.complete();
                    };
                    let mut of_child: Option<Box<dyn FnOnce() + Send>> = None;
                    match finish {
                        "inside" => use_it(),
                        "before" => thread::spawn(use_it).join().unwrap(),
                        "after" => drop(thread::spawn(use_it)),
                        _ => of_child = Some(Box::new(use_it)),
                    }
                    let after = Arc::clone(&seen);
                    cx.child("first")
                        .push(inside.write(), move |value| {
                            assert!(after.load(Relaxed), "a child runs before the function has returned");
                            *value += 1;
                        })
                        .unwrap();
                    cx.child("second")
                        .writes([&t])
                        .push((inside.write(), family.read()), move |(value, family)| {
                            thread::sleep(MOMENT / 10);
                            *value += family;
                            of_child.into_iter().for_each(|complete| complete());
                        })
                        .unwrap();
                    thread::sleep(MOMENT / 10);
                    seen.store(true, Relaxed);
                })
                .unwrap();
            let behind = engine.op("behind").reads([&token]);
            let behind = behind.submit(value.read(), move |value| (*value, at_end.load(Relaxed))).unwrap();
            assert_eq!(behind.wait().unwrap(), (6, true), "{finish}");
            assert_eq!((value.version(), token.version()), (1, 1));
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn an_asynchronous_parent_fails_with_its_function_or_its_completion_before_its_children() {
    on_kinds(&KINDS, 2, |engine| {
        // Each case lists how the function ends, how the completion is used, the parent's failure, and the number of
        // the child's runs.
        let cases = [
            ("well", "complete", "by a child", 1),
            ("well", "fail", "by the completion", 1),
            ("well", "drop", "completion was dropped", 1),
            ("err", "complete", "by the function", 0),
            ("err", "fail", "by the function", 0),
            ("panic", "complete", "by the function", 0),
            ("panic", "lost", "by the function", 0),
        ];
        for (function, completion, expected, runs) in cases {
            let (token, ran) = (engine.token(), Arc::new(AtomicUsize::new(0)));
            let (t, inside) = (token.clone(), Arc::clone(&ran));
            engine
                .op("parent")
                .writes([&token])
                .with_children()
                .try_push((cx(), raddle::completion()), move |(cx, done)| {
                    let var = cx.child_var(1)?;
                    let fails = move || {
                        inside.fetch_add(1, Relaxed);
                        Err("by a child".into())
                    };
                    cx.child("child").writes([&t]).try_push(var.read(), move |_| fails())?;
                    match completion {
                        "complete" => done.complete(),
                        "fail" => done.fail("by the completion"),
                        "lost" => panic!("by the function"),
                        _ => drop(done),
                    }
                    match function {
                        "err" => Err("by the function".into()),
                        "panic" => panic!("by the function"),
                        _ => Ok(()),
                    }
                })
                .unwrap();
            let failed = failure(engine.wait_for_var(&token)).to_string();
            assert!(failed.contains(expected), "{function}, {completion}: {failed}");
            assert_eq!((ran.load(Relaxed), token.version()), (runs, 0), "{function}, {completion}");
            // Neither the child's failure nor the parent's second failure is lost.
            let left = engine.wait_for_all();
            let another = match (function, completion) {
                ("well", "complete") => None,
                ("well", _) => Some("by a child"),
                (_, "fail") => Some("by the completion"),
                _ => None,
            };
            match another {
                Some(another) => assert!(failure(left).to_string().contains(another), "{function}, {completion}"),
                None => left.unwrap_or_else(|error| panic!("{function}, {completion}: {error}")),
            }
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn children_of_a_future_start_when_it_has_ended_and_its_guards_are_gone() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, other) = (engine.var(vec![0]), engine.var(0));
        let (v, o, kept) = (value.clone(), other.clone(), Arc::new(Mutex::new(None)));
        let out = Arc::clone(&kept);
        let parent = engine
            .op("parent")
            .with_children()
            .try_submit_future((cx(), value.write(), other.write()), move |(cx, mut value, other)| async move {
                yield_now().await;
                let family = cx.child_var(3)?;
                cx.child("first").push((v.write(), family.read()), |(value, family)| value.push(*family))?;
                yield_now().await;
                value.push(1);
                cx.child("second").push(v.write(), |value| value.push(4))?;
                cx.child("third").push_future(o.write(), |mut other| async move {
                    yield_now().await;
                    *other += 1;
                })?;
                // The test's thread takes this guard and holds it for a while.
                *lock(&out) = Some((cx.clone(), other));
                Ok("the value")
            })
            .unwrap();
        let (cx, guard) = loop {
            if let Some(kept) = lock(&kept).take() {
                break kept;
            }
            thread::yield_now();
        };
        // While the guard is alive, the parent's own work has not ended, so more children may be pushed.
        thread::sleep(MOMENT / 10);
        assert!(!parent.is_done());
        let more = value.clone();
        cx.child("fourth").push(more.write(), |value| value.push(5)).unwrap();
        assert!(!parent.is_done());
        drop(guard);
        assert_eq!(parent.wait().unwrap(), "the value");
        assert_eq!(engine.get(&value).unwrap(), [0, 1, 3, 4, 5]);
        assert_eq!((engine.get(&other).unwrap(), other.version(), value.version()), (1, 1, 1));
        let late = cx.child("late").push(more.write(), |_| unreachable!());
        assert_eq!(late, Err(PushError::ParentEnded));
        assert_eq!(cx.child_var(String::from("late")).map(drop), Err(PushError::ParentEnded));
        assert_eq!(cx.child_token().map(drop), Err(PushError::ParentEnded));
        drop((cx, more));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_future_fails_if_its_child_fails_and_its_child_is_skipped_if_it_fails() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        for case in ["child", "future", "panic"] {
            let v = value.clone();
            let parent = engine
                .op("parent")
                .with_children()
                .try_submit_future((cx(), value.overwrite()), move |(cx, mut guard)| async move {
                    *guard += 1;
                    cx.child("child").try_push(v.write(), move |_| {
                        assert_eq!(case, "child", "the child was not skipped");
                        Err("planned".into())
                    })?;
                    yield_now().await;
                    match case {
                        "child" => Ok(()),
                        "future" => Err("planned".into()),
                        _ => panic!("planned"),
                    }
                })
                .unwrap();
            let failed = failure(parent.wait());
            assert_eq!(failed.name(), if case == "child" { "child" } else { "parent" }, "{case}");
            assert!(failed.ptr_eq(&failure(engine.wait_for_var(&value))), "{case}");
            engine.wait_for_all().unwrap();
        }
        assert_eq!(value.version(), 0);
    });
}

#[test]
fn a_wait_of_a_future_for_its_child_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        let parent = engine.op("parent").with_children().submit_future(cx(), |cx| async move {
            let (first, second) = (cx.child("child").submit((), |()| 7).unwrap(), cx.child("child").submit((), |()| 7));
            let third = cx.child("child").submit_future((), |()| async { 7 }).unwrap();
            let fourth = cx.child("child").submit_future((), |()| async { 7 }).unwrap();
            yield_now().await;
            [first.await, second.unwrap().wait(), third.await, fourth.wait()]
        });
        for waited in parent.unwrap().wait().unwrap() {
            assert!(matches!(waited, Err(WaitError::WouldDeadlock(_))), "{waited:?}");
        }
    });
}

#[test]
fn a_wait_for_a_child_that_is_a_future_is_refused_in_the_function_of_its_parent() {
    on_kinds(&KINDS, 2, |engine| {
        let waited = engine.op("parent").with_children().submit(cx(), |cx| {
            let child = cx.child("child").submit_future((), |()| async { 7 }).unwrap();
            let polled = block_on(cx.child("child").submit((), |()| 7).unwrap());
            (child.wait(), polled)
        });
        let (waited, polled) = waited.unwrap().wait().unwrap();
        assert!(matches!(waited, Err(WaitError::WouldDeadlock(_))), "{waited:?}");
        assert!(matches!(polled, Err(WaitError::WouldDeadlock(_))), "{polled:?}");
    });
}

#[test]
fn each_run_of_an_operator_has_its_own_children() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, group) = (engine.var(1), engine.group());
        let (v, w) = (value.clone(), value.clone());
        let double = group
            .op("double")
            .with_children()
            .operator((cx(), value.write()), move |(cx, value)| {
                let old = cx.child_var(*value).unwrap();
                cx.child("add").push((v.write(), old.read()), |(value, old)| *value += old).unwrap();
            })
            .unwrap();
        let fails = Arc::new(AtomicBool::new(false));
        let f = Arc::clone(&fails);
        let slow = engine
            .op("slow")
            .writes([&value])
            .with_children()
            .operator((cx(), completion()), move |(cx, done)| {
                let fails = f.load(Relaxed);
                cx.child("add")
                    .try_push(w.write(), move |value| {
                        *value += 1;
                        if fails { Err("planned".into()) } else { Ok(()) }
                    })
                    .unwrap();
                thread::spawn(move || done.complete());
            })
            .unwrap();
        for _ in 0..5 {
            double.push().unwrap();
            slow.push_with_priority(3).unwrap();
        }
        double.submit().unwrap().wait().unwrap();
        slow.submit().unwrap().wait().unwrap();
        group.wait().unwrap();
        // The value starts at 1. Each of the five rounds turns n into 2n + 1, and so do the two submitted runs after
        // them.
        assert_eq!((engine.get(&value).unwrap(), value.version()), (63 * 2 + 1, 12));
        fails.store(true, Relaxed);
        assert_eq!(failure(slow.submit().unwrap().wait()).name(), "add");
        assert_eq!(failure(double.submit().unwrap().wait()).name(), "add", "the run was not skipped");
        drop((double, slow));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_asynchronous_parent_holds_its_variables_until_its_children_are_complete() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, inner) = (engine.var(0), engine.downgrade());
        let (inside, outcome) = (value.clone(), Arc::new(Mutex::new(None)));
        let out = Arc::clone(&outcome);
        engine
            .op("parent")
            .writes([&value])
            .with_children()
            .push(completion(), move |done| {
                done.complete();
                *lock(&out) =
                    Some((inner.get(&inside), inner.scope(|s| s.op("").push(inside.read(), |_| unreachable!()))));
            })
            .unwrap();
        engine.wait_for_var(&value).unwrap();
        let (got, refused) = lock(&outcome).take().unwrap();
        assert!(matches!(got, Err(WaitError::WouldDeadlock(_))), "{got:?}");
        assert!(matches!(refused.unwrap(), Err(PushError::Variable(NoAccess::HeldAroundScope, _))));
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
        // Only this wait reports the second child's failure.
        assert_eq!(failure(engine.wait_for_all()).name(), "late");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_failure_that_a_later_child_clears_does_not_fail_the_parent() {
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
fn a_failure_of_a_grandchild_that_a_later_child_clears_does_not_fail_the_parent() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        let inside = value.clone();
        let parent = engine.op("parent").with_children().submit((cx(), value.write()), move |(cx, _)| {
            let child = cx.child("child").with_children().push((raddle::cx(), inside.write()), |(cx, _)| {
                cx.child("fails").try_push((), |()| Err("no".into())).unwrap();
            });
            child.unwrap();
            cx.child("clears").push(inside.overwrite(), |value| *value = 3).unwrap();
        });
        parent.unwrap().wait().unwrap();
        assert_eq!((engine.get(&value).unwrap(), value.version()), (3, 1));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_failure_of_a_child_that_mutates_nothing_fails_the_parent() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        let parent = engine.op("parent").with_children().submit((cx(), value.write()), move |(cx, _)| {
            cx.child("fails").push((), |()| panic!("no")).unwrap();
        });
        assert_eq!(failure(parent.unwrap().wait()).name(), "fails");
        assert_eq!(failure(engine.wait_for_var(&value)).name(), "fails");
        engine.wait_for_all().expect("no failure should be left");
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
        engine.wait_for_all().expect("no failure should be left");
    });
}

#[test]
fn an_overwrite_by_a_parent_clears_a_failure_only_if_all_children_succeed() {
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
fn a_skipped_parent_pushes_no_children() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        engine.op("fails").try_push(value.write(), |_| Err("no".into())).unwrap();
        let parent = engine.op("parent").with_children().submit((cx(), value.write()), |_| unreachable!()).unwrap();
        let _: &OpHandle<()> = &parent;
        assert_eq!(failure(parent.wait()).name(), "fails");
    });
}

#[test]
fn a_panic_in_the_drop_of_what_a_skipped_parent_has_captured_is_reported() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, captured) = (engine.var(0), common::PanicsOnDrop("captured by the parent"));
        engine.op("fails").try_push(value.write(), |_| Err("no".into())).unwrap();
        engine.op("parent").with_children().push((cx(), value.write()), move |_| drop(captured)).unwrap();
        assert_eq!(failure(engine.wait_for_all()).name(), "fails");
        let error = failure(engine.wait_for_all());
        assert!(error.to_string().contains("captured by the parent"), "{error}");
        engine.wait_for_all().unwrap();
    });
}

// -------------------------------------------------------------------------------- children and other features ----

#[test]
fn a_variable_that_is_deleted_behind_a_parent_still_exists_for_its_children() {
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
fn children_may_be_operations_of_every_kind() {
    on_kinds(&KINDS, 2, |plain| {
        let engine = Engine::builder().kind(plain.kind()).workers(2).pin(false).gpu(SimulatedGpu::new());
        let engine = engine.build().unwrap();
        let gpu = Device::Gpu(0);
        let (value, there) = (engine.var(0), engine.device_var::<u32>(gpu, 4).unwrap());
        let host = engine.pinned_var::<u32>(gpu, 4).unwrap();
        let (v, t, h) = (value.clone(), there.clone(), host.clone());
        let parent = engine
            .op("parent")
            .with_children()
            .try_submit((cx(), value.write(), there.write(), host.write()), move |(cx, _, _, host)| {
                host.fill(5);
                cx.child("async").push((v.write(), completion()), |(value, done)| {
                    *value += 1;
                    thread::spawn(move || {
                        thread::sleep(Duration::from_millis(2));
                        done.complete();
                    });
                })?;
                cx.child("future").push_future(v.write(), |mut value| async move { *value *= 10 })?;
                cx.child("up").on(gpu).copy_to_device(&h, &t)?;
                cx.child("double").on(gpu).try_push((t.write(), stream()), |(device, stream)| {
                    let mut gpu = stream.simulated().ok_or("the device is not simulated")?;
                    gpu.launch(Duration::from_millis(1), device, |all| all.iter_mut().for_each(|x| *x *= 2))?;
                    Ok(())
                })?;
                cx.child("down").on(gpu).copy_from_device(&t, &h)?;
                Ok(cx.child("sum").submit((v.read(), h.read()), |(value, host)| value + host.iter().sum::<u32>())?)
            })
            .unwrap();
        let sum = engine.op("after").submit((value.read(), host.read()), |(value, host)| value + host[0]).unwrap();
        assert_eq!(parent.wait().unwrap().wait().unwrap(), 50);
        assert_eq!(sum.wait().unwrap(), 20);
    });
}

#[test]
fn children_inherit_group_and_deadline() {
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
                children.map(|child: OpHandle<()>| child)
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

/// Returns the priority of each pending operation with the given name.
fn priorities(dump: &raddle::trace::Dump, name: &str) -> Vec<i32> {
    dump.ops().iter().filter(|op| op.name.as_str() == name).map(|op| op.priority).collect()
}

/// A function that blocks its worker. The first gate opens when it runs; the second one lets it return.
fn blocks() -> (Gate, Gate, impl Fn(()) + Clone + Send + Sync) {
    let (started, gate) = (Gate::new(), Gate::new());
    let (at, closed) = (started.clone(), gate.clone());
    let blocks = move |()| {
        at.open();
        closed.pass();
    };
    (started, gate, blocks)
}

#[test]
fn a_child_without_a_priority_has_that_of_its_parent() {
    on_kinds(&THREADED, 1, |engine| {
        let (started, gate, blocks) = blocks();
        let parent = engine.op("parent").priority(5).with_children().submit(cx(), move |cx| {
            cx.child("running").priority(9).push((), blocks).unwrap();
            cx.child("like its parent").push((), |()| ()).unwrap();
            cx.child("other").priority(-3).push((), |()| ()).unwrap();
        });
        started.pass();
        let dump = engine.dump();
        gate.open();
        assert_eq!(["like its parent", "other"].map(|name| priorities(&dump, name)), [[5], [-3]], "{dump}");
        parent.unwrap().wait().unwrap();
    });
}

#[test]
fn a_child_of_an_operator_has_the_priority_of_the_run() {
    on_kinds(&THREADED, 1, |engine| {
        let (started, gate, blocks) = blocks();
        let parent = engine.op("parent").priority(5).with_children().operator(cx(), move |cx| {
            cx.child("running").priority(60).push((), blocks.clone()).unwrap();
            cx.child("like the run").push((), |()| ()).unwrap();
        });
        parent.unwrap().push_with_priority(7).unwrap();
        started.pass();
        let dump = engine.dump();
        assert_eq!(priorities(&dump, "like the run"), [7], "{dump}");
        gate.open();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_operation_may_wait_for_a_parent_that_it_pushed_on_a_single_worker() {
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
fn values_captured_by_parents_and_children_are_dropped_once() {
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
fn what_has_held_back_a_parent_does_not_hold_back_its_child_again() {
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

// --------------------------------------------------------------------------------------------------------- stress ----

#[test]
fn children_nest_a_thousand_deep() {
    fn nest(cx: &OpContext<'_>, var: &Var<usize>, depth: usize) {
        if depth == 0 {
            cx.child("innermost").push(var.write(), |value| *value += 1).unwrap();
            return;
        }
        let inside = var.clone();
        let child = cx.child("nested").with_children();
        child.push((raddle::cx(), var.write()), move |(cx, _)| nest(cx, &inside, depth - 1)).unwrap();
    }
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        let inside = value.clone();
        let parent = engine.op("parent").with_children();
        parent.push((cx(), value.write()), move |(cx, _)| nest(cx, &inside, 1000)).unwrap();
        assert_eq!((engine.get(&value).unwrap(), value.version()), (1, 1));
    });
}

#[test]
fn children_that_are_pushed_by_many_threads_while_a_future_ends_run_or_are_refused() {
    on_kinds(&KINDS, 2, |engine| {
        for round in 0..16 {
            let (value, kept) = (engine.var(0), Arc::new(Mutex::new(None::<raddle::FutureContext>)));
            let out = Arc::clone(&kept);
            let ready = Arc::new(Barrier::new(4));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let (kept, value, ready) = (Arc::clone(&kept), value.clone(), Arc::clone(&ready));
                    thread::spawn(move || {
                        ready.wait();
                        let cx = lock(&kept).clone().unwrap();
                        let mut pushed = 0;
                        loop {
                            let family = match cx.child_var(vec![1]) {
                                Ok(family) => family,
                                Err(error) => {
                                    assert_eq!(error, PushError::ParentEnded);
                                    return pushed;
                                }
                            };
                            let child = cx.child("child");
                            match child.push((value.write(), family.read()), |(value, family)| *value += family[0]) {
                                Ok(()) => pushed += 1,
                                Err(error) => assert!(
                                    matches!(
                                        error,
                                        PushError::ParentEnded | PushError::Variable(NoAccess::OfFamily, _)
                                    ),
                                    "{error}"
                                ),
                            }
                        }
                    })
                })
                .collect();
            let (sender, receiver) = mpsc::channel();
            let parent = engine
                .op("parent")
                .with_children()
                .submit_future((cx(), value.write()), move |(cx, guard)| async move {
                    *lock(&out) = Some(cx);
                    sender.send(guard).unwrap();
                })
                .unwrap();
            let guard = receiver.recv().unwrap();
            ready.wait();
            thread::sleep(Duration::from_micros(round * 50));
            drop(guard);
            let pushed: i32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            parent.wait().unwrap();
            assert_eq!((engine.get(&value).unwrap(), value.version()), (pushed, 1));
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn the_drop_of_a_value_of_a_family_may_push_but_neither_wait_nor_name_the_family() {
    struct Pushes {
        cx: raddle::FutureContext,
        own: Option<Var<i32>>,
        log: Var<Vec<String>>,
    }
    impl Drop for Pushes {
        fn drop(&mut self) {
            let child = self.cx.child("late").push((), |()| unreachable!());
            let own = self.cx.op("own").push(self.own.take().unwrap().read(), |_| unreachable!());
            let waited = self.cx.wait_for_var(&self.log);
            let seen =
                format!("{child:?} {} {waited:?}", matches!(own, Err(PushError::Variable(NoAccess::OfFamily, _))));
            self.cx.op("log").push(self.log.write(), move |log| log.push(seen)).unwrap();
        }
    }
    on_kinds(&KINDS, 2, |engine| {
        let log = engine.var(Vec::new());
        let l = log.clone();
        let parent = engine.op("parent").with_children().try_submit_future(cx(), move |cx| async move {
            let own = cx.child_var(1)?;
            // The family owns a value that refers to the family.
            let value = cx.child_var(Pushes { cx: cx.clone(), own: Some(own.clone()), log: l })?;
            cx.child("child").push((value.read(), own.write()), |(_, own)| *own += 1)?;
            Ok(())
        });
        parent.unwrap().wait().unwrap();
        let log = engine.get(&log).unwrap();
        assert_eq!(log, ["Err(ParentEnded) true Err(InDeletion)"]);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn children_may_be_pushed_on_any_thread_while_the_engine_drains() {
    on_kinds(&THREADED, 1, |engine| {
        let engine = common::engine(engine.kind(), 1);
        let (value, (sender, receiver)) = (engine.var(0), mpsc::channel());
        let inside = value.clone();
        let parent = engine.op("parent").with_children().submit_future((cx(), value.write()), move |(cx, guard)| {
            sender.send((cx, guard)).unwrap();
            std::future::ready(())
        });
        let (cx, guard) = receiver.recv().unwrap();
        let other = engine.clone();
        let shutdown = thread::spawn(move || other.shutdown(Shutdown::Drain, None));
        while engine.op("").push((), |()| ()).is_ok() {
            thread::yield_now();
        }
        let run = Arc::new(AtomicUsize::new(0));
        let ran = Arc::clone(&run);
        cx.child("child").push(inside.write(), move |_| _ = ran.fetch_add(1, Relaxed)).unwrap();
        drop(guard);
        shutdown.join().unwrap().unwrap();
        parent.unwrap().wait().unwrap();
        assert_eq!((run.load(Relaxed), value.version()), (1, 1));
    });
}

#[test]
fn handles_and_contexts_of_a_family_may_outlive_the_engine() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let kept = {
            let engine = common::engine(engine.kind(), 1);
            let (value, kept) = (drops.make(), Arc::new(Mutex::new(None)));
            let out = Arc::clone(&kept);
            let parent = engine.op("parent").with_children().try_submit_future(cx(), move |cx| async move {
                let var = cx.child_var(value)?;
                let captured = var.clone();
                cx.child("child").push((), move |()| drop(captured))?;
                *lock(&out) = Some((cx, var));
                Ok(())
            });
            parent.unwrap().wait().unwrap();
            engine.shutdown(Shutdown::Drain, None).unwrap();
            kept
        };
        let (cx, var) = lock(&kept).take().unwrap();
        drops.assert_all_gone();
        assert_eq!(cx.child("late").push(var.read(), |_| unreachable!()), Err(PushError::ParentEnded));
        assert!(matches!(
            cx.op("late").push(var.read(), |_| unreachable!()),
            Err(PushError::Variable(NoAccess::OfFamily, _))
        ));
    });
}
