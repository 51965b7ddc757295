//! Every function, captured value, variable's value and result is dropped exactly once: after success, failure, skips,
//! refusals and cancellation, however the engine ends.
#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::{any::Any, sync::Arc, thread, time::Duration};

use common::shapes::*;
use common::{Droppable, Drops, Gate, KINDS, block_on, on_kinds, program::fewer, watched};
use raddle::{Engine, EngineKind, Shutdown, cx, error::BoxError, trace::Observer};

/// How a test ends its engine after the workload.
#[derive(Clone, Copy, Debug)]
enum End {
    Wait,
    Drop,
    Drain,
    Cancel,
}

/// Pushes operations of many kinds, some of them failing, with values that count their drops.
fn workload(engine: &Engine, drops: &Drops, rounds: usize) {
    let vars: Vec<_> = (0..6).map(|_| engine.var(vec![drops.make()])).collect();
    let token = engine.token();
    let kept = drops.make();
    let operator = engine
        .op("operator")
        .operator(vars[0].write(), move |value| {
            kept.touch();
            value.truncate(1);
        })
        .expect("the engine should be open");
    for round in 0..rounds {
        let (a, b) = (&vars[round % 6], &vars[(round + 1) % 6]);
        let mine = drops.make();
        let result = engine.op("typed").push_any((a.read(), b.write()), move |(a, b)| {
            mine.touch();
            *b = a.clone();
            if round % 11 == 3 { Err("on purpose") } else { Ok(()) }
        });
        let mine = drops.make();
        let handle = engine.op("value").submit(a.read(), move |a| {
            mine.touch();
            a.clone()
        });
        // Some handles are waited for; the others are dropped immediately.
        if let (Ok(handle), 0) = (handle, round % 5) {
            drop(handle.wait());
        }
        let large = [(); 20].map(|()| drops.make());
        let _ = engine.op("large").push((), move |()| large.iter().for_each(|thing| thing.touch()));
        let mine = drops.make();
        let _ = engine.push_async(
            move |_, done| {
                let inner = mine.clone();
                thread::spawn(move || {
                    inner.touch();
                    // This clone is dropped before the completion is used, since this thread may outlive the engine.
                    drop(inner);
                    match round % 4 {
                        0 => drop(done),
                        1 => done.fail("on purpose"),
                        _ => done.complete(),
                    }
                });
            },
            [],
            [&token],
        );
        let mine = drops.make();
        let _ = engine.op("skipped now and then").reads([&token]).push_sync(move |_| mine.touch());
        let mine = drops.make();
        let _ = engine.op("panics").writes([&token]).push_sync(move |_| -> Result<(), BoxError> {
            mine.touch();
            if round % 7 == 0 { panic!("on purpose") } else { Ok(()) }
        });
        let _ = operator.push();
        let mine = drops.make();
        let _ = engine.op("clean up").cleanup().push((), move |()| mine.touch());
        if round % 3 == 0 {
            let _ = engine.clear_error(&token);
            let _ = engine.clear_error(b);
        }
        let gone = engine.var(drops.make());
        let mine = drops.make();
        engine.op("last").push(gone.write(), move |gone| (gone.touch(), mine.touch()).0).ok();
        if round % 2 == 0 {
            let mine = drops.make();
            let _ = engine.delete_variable(&gone, move |_| mine.touch());
            // A refused operation never runs, and its function is dropped.
            let mine = drops.make();
            assert!(engine.op("late").push(gone.write(), move |_| mine.touch()).is_err());
        }
        result.ok();
    }
}

fn every_value_is_dropped(end: End) {
    on_kinds(&KINDS, 2, move |engine| {
        let drops = Drops::new();
        let inner = drops.clone();
        match end {
            End::Wait => {
                workload(&engine, &inner, fewer(200));
                let _ = engine.wait_for_all();
                // A worker drops a value after the last handle to the value's variable has been dropped. This second
                // wait covers these drops.
                let _ = engine.wait_for_all();
                common::eventually("every value is dropped", || drops.dropped() == drops.made());
                drop(engine);
            }
            End::Drop => {
                workload(&engine, &inner, fewer(200));
                drop(engine);
            }
            End::Drain => {
                workload(&engine, &inner, fewer(200));
                engine
                    .shutdown(Shutdown::Drain, Some(Duration::from_secs(50)))
                    .expect("the shutdown should end in time");
            }
            End::Cancel => {
                let gate = Gate::new();
                let held = gate.clone();
                let waits = engine.kind() != EngineKind::Naive;
                if waits {
                    engine.op("gate").push((), move |()| held.pass()).expect("the engine should be open");
                }
                // The workload's waits need the remaining worker.
                workload(&engine, &inner, 50);
                engine.notify_shutdown();
                gate.open();
                engine
                    .shutdown(Shutdown::Cancel, Some(Duration::from_secs(50)))
                    .expect("the shutdown should end in time");
            }
        }
        // The completion of an asynchronous operation may be used before its function has returned.
        common::eventually("every value is dropped", || drops.dropped() == drops.made());
        drops.assert_all_gone();
    });
}

#[test]
fn every_value_is_dropped_after_a_wait_for_all() {
    every_value_is_dropped(End::Wait);
}

#[test]
fn every_value_is_dropped_after_the_engine_is_dropped() {
    every_value_is_dropped(End::Drop);
}

#[test]
fn every_value_is_dropped_after_a_drain() {
    every_value_is_dropped(End::Drain);
}

#[test]
fn every_value_is_dropped_after_a_cancellation() {
    every_value_is_dropped(End::Cancel);
}

#[test]
fn a_variable_may_outlive_its_engine() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let variable = engine.var(Arc::new(drops.make()));
        let seen = engine.get(&variable).expect("no operation should fail");
        drop(engine);
        let other = variable.clone();
        drop(variable);
        assert_eq!(drops.dropped(), 0);
        drop(seen);
        drop(other);
        drops.assert_all_gone();
    });
}

/// An observer whose drop is counted. The engine drops it when the engine itself is freed.
struct Silent {
    _drop: Droppable,
}

impl Observer for Silent {}

/// An engine is freed exactly once, whichever handle, guard or handle to an operation is dropped last.
#[test]
fn an_engine_is_freed_with_the_last_reference_to_it() {
    let on = |kind, last: usize| {
        let drops = Drops::new();
        let observer = Silent { _drop: drops.make() };
        let engine = Engine::builder().kind(kind).workers(2).pin(false).observer(observer).build().expect("an engine");
        let variable = engine.var(0);
        let inner = variable.clone();
        let parent = engine.op("parent").with_children().push((cx(), variable.write()), move |(cx, _)| {
            cx.child("child").push(inner.write(), |value| *value += 1).expect("the parent should hold the variable");
        });
        parent.expect("the engine should be open");
        let guard = block_on(engine.acquire(variable.read())).expect("nothing has failed");
        let (clone, downgraded) = (engine.clone(), engine.downgrade());
        let inner = downgraded.clone();
        let push = move || inner.op("inner").submit((), |()| {}).expect("operations may push");
        let inner = engine.op("outer").submit((), move |()| push()).expect("the engine should be open").wait();
        // The future of an acquisition keeps an engine open until it is dropped.
        drop(clone.acquire(variable.read()));
        drop(guard);
        drop(clone);
        drop(engine);
        // The future raises the count of what keeps the engine open again.
        drop(downgraded.acquire(variable.read()));
        drop(variable);
        let mut rest: Vec<Box<dyn Any>> = vec![Box::new(downgraded), Box::new(inner.expect("nothing should fail"))];
        let last = rest.remove(last);
        drop(rest);
        assert_eq!(drops.dropped(), 0, "the {kind} engine was freed although a reference is left");
        drop(last);
        assert_eq!(drops.check(), Ok(()), "the {kind} engine was not freed");
    };
    KINDS.into_iter().for_each(|kind| (0..2).for_each(|last| on(kind, last)));
}

#[test]
fn an_engine_dropped_inside_its_last_operation_drops_every_value() {
    watched(|| {
        for kind in KINDS {
            let drops = Drops::new();
            let (engine, done) = (common::engine(kind, 1), Gate::new());
            let (inner, opened, mine) = (engine.clone(), done.clone(), drops.make());
            engine
                .op("last")
                .push((), move |()| {
                    mine.touch();
                    drop(inner);
                    opened.open();
                })
                .expect("the engine should be open");
            drop(engine);
            done.pass();
            common::eventually("the operation's function is dropped", || drops.dropped() == drops.made());
        }
    });
}
