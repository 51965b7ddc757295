//! Guarded values: an operation may use only the guarded values that it has declared.

#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::{
    future::Future,
    mem,
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Wake, Waker},
    thread,
};

use common::{Gate, KINDS, PATIENCE, THREADED, on_kinds, yield_now};
use raddle::{
    Engine, Guarded, WaitError, completion, cx,
    error::{UseError, UseErrorKind},
};

fn guarded(engine: &Engine) -> Arc<Guarded<u32>> {
    Arc::new(Guarded::new(engine.token().named("bus"), 0))
}

/// Returns the error of an operation whose use of a value was refused.
#[track_caller]
fn refused<R: std::fmt::Debug>(result: Result<R, WaitError>) -> UseError {
    let Err(WaitError::Failed(error)) = result else { panic!("{result:?}") };
    error.downcast_ref::<UseError>().unwrap_or_else(|| panic!("{error}")).clone()
}

#[test]
fn operations_use_what_they_have_declared() {
    on_kinds(&KINDS, 2, |engine| {
        let bus = guarded(&engine);
        for _ in 0..100 {
            let value = Arc::clone(&bus);
            let add = move |()| {
                *value.write()? += 1;
                Ok(())
            };
            engine.op("add").writes([bus.token()]).try_push((), add).unwrap();
        }
        let values: Vec<_> = (0..4)
            .map(|_| {
                let value = Arc::clone(&bus);
                engine.op("read").reads([bus.token()]).try_submit((), move |()| Ok(*value.read()?)).unwrap()
            })
            .collect();
        values.into_iter().for_each(|value| assert_eq!(value.wait().unwrap(), 100));
        engine.wait_for_all().unwrap();
        let bus = Arc::into_inner(bus).expect("the operations should have dropped their clones");
        assert_eq!(bus.into_inner(), 100);
    });
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "detected only with debug assertions")]
fn an_undeclared_use_is_an_error_that_names_both_operations() {
    on_kinds(&KINDS, 2, |engine| {
        let bus = guarded(&engine);
        let value = Arc::clone(&bus);
        let fill = engine
            .op("fill")
            .writes([bus.token()])
            .try_submit((), move |()| {
                *value.write()? = 7;
                Ok(())
            })
            .unwrap();
        fill.wait().unwrap();
        let value = Arc::clone(&bus);
        let line = line!() + 1;
        let meter = engine.op("meter").try_submit((), move |()| Ok(*value.read()?)).unwrap();
        let error = refused(meter.wait());
        assert_eq!((error.kind(), error.variable()), (UseErrorKind::Undeclared, "bus"));
        assert_eq!(error.user().map(|(name, place)| (name, place.line())), Some(("meter", line)));
        assert_eq!(error.last_user().map(|(name, place)| (name, place.file())), Some(("fill", file!())));
        assert_eq!(error.location().line(), line);
        let text = error.to_string();
        for part in
            ["operation `meter` pushed at ", "variable `bus`", "operation `fill` pushed at ", "name the variable"]
        {
            assert!(text.contains(part), "{text}");
        }
    });
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "detected only with debug assertions")]
fn an_operation_that_reads_a_value_or_changes_it_is_the_last_to_use_it() {
    on_kinds(&KINDS, 1, |engine| {
        let bus = guarded(&engine);
        let last = || bus.read().unwrap_err().last_user().map(|(name, _)| name.to_owned());
        assert_eq!(last(), None);
        for (name, writes) in [("fill", true), ("look", false), ("fill again", true)] {
            let value = Arc::clone(&bus);
            let (reads, mutates) = if writes { (None, Some(bus.token())) } else { (Some(bus.token()), None) };
            let using = engine.op(name).reads(reads).writes(mutates).try_submit((), move |()| {
                let used = if writes { value.write().map(drop) } else { value.read().map(drop) };
                Ok(used?)
            });
            using.unwrap().wait().unwrap();
            assert_eq!(last().as_deref(), Some(name));
        }
    });
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "detected only with debug assertions")]
fn a_mutable_use_needs_a_declared_mutation() {
    on_kinds(&KINDS, 1, |engine| {
        let bus = guarded(&engine);
        let value = Arc::clone(&bus);
        let change = engine
            .op("change")
            .reads([bus.token()])
            .try_submit((), move |()| {
                *value.write()? = 7;
                Ok(())
            })
            .unwrap();
        assert_eq!(refused(change.wait()).kind(), UseErrorKind::OnlyRead);
        let value = Arc::clone(&bus);
        let replace = engine.op("replace").overwrites([bus.token()]).try_submit((), move |()| {
            *value.write()? = 7;
            Ok(())
        });
        replace.unwrap().wait().unwrap();
    });
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "detected only with debug assertions")]
fn code_outside_operations_has_declared_nothing() {
    on_kinds(&KINDS, 1, |engine| {
        let bus = guarded(&engine);
        let error = bus.read().unwrap_err();
        assert_eq!((error.kind(), error.user()), (UseErrorKind::Undeclared, None));
        let text = error.to_string();
        assert!(text.contains("code outside operations") && text.contains("nothing orders this use"), "{text}");
        assert_eq!(bus.write().unwrap_err().kind(), UseErrorKind::Undeclared);
    });
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "detected only with debug assertions")]
fn an_operation_that_runs_inside_another_does_not_inherit_its_declarations() {
    on_kinds(&KINDS, 1, |engine| {
        let bus = guarded(&engine);
        let value = Arc::clone(&bus);
        let push = move |cx: &raddle::OpContext<'_>| {
            let inner = Arc::clone(&value);
            let inside = cx.engine().op("inner").eager().try_submit((), move |()| Ok(*inner.read()?));
            (inside.unwrap(), value.read().map(|value| *value).map_err(|error| error.kind()))
        };
        let pushed = engine.op("outer").writes([bus.token()]).submit(cx(), push).unwrap().wait().unwrap();
        assert_eq!(pushed.1, Ok(0));
        let error = refused(pushed.0.wait());
        assert_eq!(error.user().map(|(name, _)| name), Some("inner"));
    });
}

#[test]
fn children_and_operations_of_scopes_use_what_outer_operations_have_declared() {
    on_kinds(&KINDS, 2, |engine| {
        let bus = guarded(&engine);
        let value = Arc::clone(&bus);
        let parent = engine.op("parent").writes([bus.token()]).with_children();
        let pushes = move |cx: &raddle::OpContext<'_>| {
            let inner = Arc::clone(&value);
            cx.child("child")
                .writes([value.token()])
                .try_push((), move |()| {
                    *inner.write()? += 1;
                    Ok(())
                })
                .unwrap();
        };
        parent.push(cx(), pushes).unwrap();
        let value = Arc::clone(&bus);
        let scoped = move |cx: &raddle::OpContext<'_>| {
            let opened = cx.engine().scope(|scope| {
                scope
                    .op("inside")
                    .try_push((), |()| {
                        *value.write()? += 1;
                        Ok(())
                    })
                    .unwrap();
            });
            Ok(opened?)
        };
        engine.op("around").writes([bus.token()]).try_push(cx(), move |cx| scoped(cx)).unwrap();
        engine.wait_for_all().unwrap();
        let value = Arc::clone(&bus);
        let read = engine.op("read").reads([bus.token()]).try_submit((), move |()| Ok(*value.read()?)).unwrap();
        assert_eq!(read.wait().unwrap(), 2);
    });
}

#[test]
fn a_completion_stands_for_its_operation() {
    on_kinds(&KINDS, 1, |engine| {
        let (bus, other) = (guarded(&engine), guarded(&engine));
        let (sender, receiver) = mpsc::channel();
        let (value, undeclared) = (Arc::clone(&bus), Arc::clone(&other));
        let start = move |done| {
            thread::spawn(move || {
                let changed = value.write_for(&done).map(|mut value| *value = 5);
                let read = value.read_for(&done).map(|value| *value);
                let refused = undeclared.read_for(&done).map(|value| *value);
                sender.send((changed, read, refused)).unwrap();
                done.complete();
            });
        };
        engine.op("load").writes([bus.token()]).push(completion(), start).unwrap();
        engine.wait_for_all().unwrap();
        let (changed, read, refused) = receiver.recv().unwrap();
        changed.unwrap();
        assert_eq!(read.unwrap(), 5);
        if cfg!(debug_assertions) {
            assert_eq!(refused.unwrap_err().user().map(|(name, _)| name), Some("load"));
        }
    });
}

#[test]
fn conflicting_uses_of_a_value_are_refused() {
    on_kinds(&THREADED, 2, |engine| {
        let bus = guarded(&engine);
        let (held, go_on) = (mpsc::channel(), mpsc::channel::<()>());
        let value = Arc::clone(&bus);
        // This guard outlives its operation, so the second operation may start, but its use of the value is refused.
        engine
            .op("keep")
            .writes([bus.token()])
            .push(completion(), move |done| {
                thread::spawn(move || {
                    let kept = value.write_for(&done).unwrap();
                    done.complete();
                    held.0.send(()).unwrap();
                    go_on.1.recv().unwrap();
                    drop(kept);
                });
            })
            .unwrap();
        held.1.recv().unwrap();
        let value = Arc::clone(&bus);
        let read = engine.op("read").reads([bus.token()]).try_submit((), move |()| Ok(*value.read()?)).unwrap();
        assert_eq!(refused(read.wait()).kind(), UseErrorKind::InUse);
        go_on.0.send(()).unwrap();
    });
}

#[test]
fn a_panic_leaves_the_value_usable() {
    on_kinds(&KINDS, 1, |engine| {
        let bus = guarded(&engine);
        let value = Arc::clone(&bus);
        let panics = engine.op("panic").writes([bus.token()]).submit((), move |()| {
            let mut value = value.write().unwrap();
            *value = 3;
            panic!("on purpose");
        });
        let _: Result<(), _> = panics.unwrap().wait();
        engine.clear_error(bus.token()).unwrap();
        let value = Arc::clone(&bus);
        let read = engine.op("read").reads([bus.token()]).try_submit((), move |()| Ok(*value.read()?)).unwrap();
        assert_eq!(read.wait().unwrap(), 3);
    });
}

// ------------------------------------------------------------------------------------------------ hostile programs
// ----

/// Asserts that a use was refused as undeclared. Without debug assertions, no such use is refused.
#[track_caller]
fn assert_undeclared(result: Result<(), UseError>) {
    let kind = result.err().map(|error| error.kind());
    assert_eq!(kind, cfg!(debug_assertions).then_some(UseErrorKind::Undeclared));
}

/// Uses the guarded value when woken or dropped, and sends the result.
struct Uses(Arc<Guarded<u32>>, mpsc::Sender<Result<(), UseError>>);

impl Drop for Uses {
    fn drop(&mut self) {
        let _ = self.1.send(self.0.write().map(drop));
    }
}

impl Wake for Uses {
    fn wake(self: Arc<Self>) {
        let _ = self.1.send(self.0.read().map(drop));
    }
}

#[test]
fn what_a_function_drops_belongs_to_its_operation() {
    on_kinds(&KINDS, 2, |engine| {
        let (bus, (sender, uses)) = (guarded(&engine), mpsc::channel());
        let captured = Uses(Arc::clone(&bus), sender);
        let op = engine.op("drop").writes([bus.token()]).submit((), move |()| drop(captured));
        op.unwrap().wait().unwrap();
        uses.recv().unwrap().unwrap();
    });
}

#[test]
fn the_destructor_of_a_variable_belongs_to_no_operation_that_has_declared_another() {
    on_kinds(&KINDS, 2, |engine| {
        let (bus, (sender, uses)) = (guarded(&engine), mpsc::channel());
        drop(engine.var(Uses(Arc::clone(&bus), sender)));
        engine.wait_for_all().unwrap();
        assert_undeclared(uses.recv().unwrap());
    });
}

#[test]
fn a_thread_that_a_function_starts_belongs_to_no_operation() {
    on_kinds(&KINDS, 2, |engine| {
        let bus = guarded(&engine);
        let value = Arc::clone(&bus);
        let op = engine
            .op("spawn")
            .writes([bus.token()])
            .submit((), move |()| thread::spawn(move || value.read().map(drop)).join().unwrap());
        assert_undeclared(op.unwrap().wait().unwrap());
    });
}

#[test]
fn a_waker_belongs_to_no_operation() {
    on_kinds(&THREADED, 2, |engine| {
        let (bus, (sender, uses), gate) = (guarded(&engine), mpsc::channel(), Gate::new());
        let closed = gate.clone();
        let mut op = engine.op("wake").writes([bus.token()]).submit((), move |()| closed.pass()).unwrap();
        let waker = Waker::from(Arc::new(Uses(Arc::clone(&bus), sender)));
        assert!(pin!(&mut op).poll(&mut Context::from_waker(&waker)).is_pending());
        gate.open();
        // The waker is called after the operation has released the token.
        assert_undeclared(uses.recv_timeout(PATIENCE).unwrap());
    });
}

#[test]
fn each_poll_of_a_future_belongs_to_its_operation() {
    on_kinds(&KINDS, 2, |engine| {
        let bus = guarded(&engine);
        let (declared, undeclared) = (Arc::clone(&bus), Arc::clone(&bus));
        let polls = |value: Arc<Guarded<u32>>| async move {
            let mut results = Vec::new();
            for _ in 0..3 {
                results.push(value.read().map(drop));
                yield_now().await;
            }
            results
        };
        let op = engine.op("declared").reads([bus.token()]).submit_future((), move |()| polls(declared)).unwrap();
        assert!(op.wait().unwrap().iter().all(Result::is_ok));
        let op = engine.op("undeclared").submit_future((), move |()| polls(undeclared)).unwrap();
        op.wait().unwrap().into_iter().for_each(assert_undeclared);
    });
}

#[test]
fn a_forgotten_reference_keeps_later_operations_out() {
    on_kinds(&KINDS, 2, |engine| {
        let bus = guarded(&engine);
        let value = Arc::clone(&bus);
        let forget =
            engine.op("forget").writes([bus.token()]).submit((), move |()| mem::forget(value.write().unwrap()));
        forget.unwrap().wait().unwrap();
        let value = Arc::clone(&bus);
        let late = engine.op("late").reads([bus.token()]).try_submit((), move |()| Ok(*value.read()?)).unwrap();
        let error = refused(late.wait());
        assert_eq!(error.kind(), UseErrorKind::InUse);
        if cfg!(debug_assertions) {
            assert_eq!(error.last_user().map(|(name, _)| name), Some("forget"));
        }
    });
}

#[test]
fn a_completion_of_another_operation_or_engine_gives_no_right() {
    on_kinds(&KINDS, 2, |engine| {
        let other = Engine::builder().kind(engine.kind()).workers(1).build().unwrap();
        let bus = guarded(&engine);
        for completing in [&engine, &other] {
            let (token, (sender, completions)) = (completing.token(), mpsc::channel());
            completing.op("other").writes([&token]).push(completion(), move |done| sender.send(done).unwrap()).unwrap();
            let done = completions.recv().unwrap();
            assert_undeclared(bus.read_for(&done).map(drop));
            assert_undeclared(bus.write_for(&done).map(drop));
            done.complete();
        }
    });
}
