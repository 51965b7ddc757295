use super::*;

#[test]
fn a_panic_may_have_any_payload() {
    on_kinds(&KINDS, 1, |engine| {
        let (a, b, c) = (engine.token(), engine.token(), engine.token());
        engine.push_sync(|_| resume_unwind(Box::new(vec![1, 2, 3])), [], [&a]).unwrap();
        engine.push_sync(|_| resume_unwind(Box::new(String::from("owned"))), [], [&b]).unwrap();
        engine.push_sync(|_| resume_unwind(Box::new("static")), [], [&c]).unwrap();
        assert!(matches!(failure(engine.wait_for_var(&a)).cause(), Cause::Panic(None)));
        assert!(panicked_with(&failure(engine.wait_for_var(&b)), "owned"));
        assert!(panicked_with(&failure(engine.wait_for_var(&c)), "static"));
    });
}

#[test]
fn the_drop_of_a_payload_may_panic() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        for _ in 0..10 {
            engine.op("").overwrites([&token]).push_sync(|_| panic_any(PanicsOnDrop("payload"))).unwrap();
            engine
                .op("")
                .overwrites([&token])
                .push_async_any(raddle::cx(), |_, _done| panic_any(PanicsOnDrop("payload")))
                .unwrap();
        }
        assert!(matches!(failure(engine.wait_for_var(&token)).cause(), Cause::Panic(None)));
        assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

/// The payload of the second panic also panics when it is dropped.
#[test]
fn the_drop_of_a_payload_may_panic_with_another_such_payload() {
    struct Nested(u32);
    impl Drop for Nested {
        fn drop(&mut self) {
            if self.0 > 0 {
                resume_unwind(Box::new(Nested(self.0 - 1)));
            }
        }
    }
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| resume_unwind(Box::new(Nested(5))), [], [&token]).unwrap();
        assert!(matches!(failure(engine.wait_for_var(&token)).cause(), Cause::Panic(None)));
        assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

#[test]
fn the_drop_of_captures_may_panic() {
    on_kinds(&KINDS, 1, |engine| {
        let (ran, skipped) = (engine.token(), engine.token());
        let capture = PanicsOnDrop("captured by an operation that runs");
        engine.op("runs").writes([&ran]).push_sync(move |_| _ = &capture).unwrap();
        let error = failure(engine.wait_for_var(&ran));
        assert!(panicked_with(&error, "captured by an operation that runs"));
        // A skipped operation's function is dropped, and dropping its captures panics.
        let capture = PanicsOnDrop("captured by a skipped operation");
        engine.op("is skipped").reads([&ran]).writes([&skipped]).push_sync(move |_| _ = &capture).unwrap();
        assert!(failure(engine.wait_for_var(&skipped)).ptr_eq(&error));
        // A later wait returns the drop's failure.
        engine.clear_error(&ran).unwrap();
        engine.clear_error(&skipped).unwrap();
        engine.wait_for_var(&skipped).unwrap();
        let error = failure(engine.wait_for_all());
        assert!(panicked_with(&error, "captured by a skipped operation"), "{error}");
        assert_eq!(error.name(), "is skipped");
    });
}

/// Makes a refused call with a function that captures the given value.
type Call = fn(&Engine, &Token, PanicsOnDrop) -> Result<(), PushError>;

/// A refused push drops the function on the pushing thread, so a panic in the drop may reach the caller.
#[test]
fn the_drop_of_a_refused_function_may_panic() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.delete_variable(&token, |_| {}).unwrap();
        let calls: [Call; 3] = [
            |engine, token, capture| engine.push_sync(move |_| _ = &capture, [], [token]),
            |engine, token, capture| engine.op("").writes([token]).operator_sync(move |_| _ = &capture).map(drop),
            |engine, token, capture| engine.delete_variable(token, move |_| _ = &capture),
        ];
        for call in calls {
            match catch_unwind(AssertUnwindSafe(|| call(&engine, &token, PanicsOnDrop("refused")))) {
                Ok(pushed) => assert!(matches!(pushed, Err(PushError::Variable(NoAccess::Deleted, _))), "{pushed:?}"),
                Err(payload) => assert_eq!(payload.downcast_ref::<&str>(), Some(&"refused")),
            }
        }
        engine.wait_for_all().unwrap();
        assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

#[test]
fn the_drop_of_a_value_may_panic() {
    on_kinds(&KINDS, 1, |engine| {
        for _ in 0..20 {
            let value = engine.var(PanicsOnDrop("value"));
            engine.op("").push(value.write(), |_| {}).unwrap();
            drop(value);
            let value = engine.var(PanicsOnDrop("value"));
            let ran = Gate::new();
            let inner = ran.clone();
            engine.delete_variable(&value, move |_| inner.open()).unwrap();
            let _ = engine.wait_for_var(&value);
            drop(value);
        }
        engine.op("").submit((), |()| 1).unwrap().wait().unwrap();
        let _ = engine.wait_for_all();
        engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
    });
}

/// A deletion's function may release something, so it runs even if dropping the value panics.
#[test]
fn the_function_of_a_deletion_runs_even_if_the_drop_of_the_value_panics() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(PanicsOnDrop("value"));
        let (ran, drops) = (Gate::new(), Drops::new());
        let (inner, captured) = (ran.clone(), drops.make());
        engine
            .delete_variable(&value, move |_| {
                captured.touch();
                inner.open();
            })
            .unwrap();
        let _ = engine.wait_for_var(&value);
        drops.assert_all_gone();
        assert!(ran.is_open(), "the deletion's function did not run");
    });
}

#[test]
fn the_drop_of_a_result_may_panic() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.token());
        // The handle is dropped, so the engine drops the result.
        drop(engine.op("result").submit(value.write(), |_| PanicsOnDrop("result")).unwrap());
        gate.open();
        assert_eq!(engine.get(&value).unwrap(), 0);
        let error = failure(engine.wait_for_all());
        assert!(panicked_with(&error, "result"));
        assert_eq!(error.name(), "result");
    });
}

#[test]
fn the_drop_of_the_captures_of_an_operator_may_panic() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let capture = PanicsOnDrop("operator");
        let gate = hold(&engine, value.token());
        let operator = engine
            .op("operator")
            .operator(value.write(), move |value| {
                let _ = &capture;
                *value += 1;
            })
            .unwrap();
        operator.push().unwrap();
        drop(operator);
        gate.open();
        let _ = engine.wait_for_var(&value);
        let error = failure(engine.wait_for_all());
        assert!(panicked_with(&error, "operator"), "{error}");
        assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

/// The same for an operator whose function is dropped once nothing is pending.
#[test]
fn the_drop_of_the_captures_of_an_operator_that_chooses_its_variables_may_panic() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let capture = PanicsOnDrop("operator");
        let gate = hold(&engine, value.token());
        let f = move |value: &mut i32, (), by: i32| {
            let _ = &capture;
            *value += by;
        };
        let operator = engine.op("operator").operator_on(chosen::write(), (), f).unwrap();
        operator.push_on(&value, 1).unwrap();
        drop(operator);
        gate.open();
        let error = failure(engine.wait_for_all());
        assert!(panicked_with(&error, "operator"), "{error}");
        assert_eq!(engine.get(&value).unwrap(), 1);
    });
}

/// A refused push drops its argument, and so does the run of a cancelled or skipped one.
#[test]
fn the_drop_of_an_argument_may_panic() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let keep = engine.op("keep").operator_with(value.write(), |_, it: PanicsOnDrop| std::mem::forget(it)).unwrap();
        let on =
            engine.op("on").operator_on(chosen::write::<i32>(), (), |_, (), it: PanicsOnDrop| std::mem::forget(it));
        let on = on.unwrap();
        let fail = engine.op("fail").operator_with(value.write(), |_, it: PanicsOnDrop| drop(it)).unwrap();
        keep.push(PanicsOnDrop("unused")).unwrap();
        fail.push(PanicsOnDrop("argument")).unwrap();
        assert!(panicked_with(&failure(engine.wait_for_var(&value)), "argument"));
        keep.push(PanicsOnDrop("skipped")).unwrap();
        on.push_on(&value, PanicsOnDrop("skipped")).unwrap();
        let _ = engine.wait_for_all();
        engine.delete_variable(&value, |_| {}).unwrap();
        let _ = engine.wait_for_all();
        for push in [&(|| keep.push(PanicsOnDrop("refused"))) as &dyn Fn() -> _, &|| {
            on.push_on(&value, PanicsOnDrop("refused"))
        }] {
            assert!(catch_unwind(AssertUnwindSafe(push)).is_err());
        }
        assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

#[test]
fn the_clone_of_a_value_may_panic() {
    struct Unclonable;
    impl Clone for Unclonable {
        fn clone(&self) -> Self {
            quiet_panic("clone")
        }
    }
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(Unclonable);
        let error = match engine.get(&value) {
            Err(WaitError::Failed(error)) => error,
            other => panic!("{:?}", other.map(drop)),
        };
        assert!(panicked_with(&error, "clone"));
        // The variable still works.
        engine.op("").push(value.write(), |_| {}).unwrap();
        engine.wait_for_var(&value).unwrap();
    });
}

/// A panic in the conversion of an error fails the operation.
#[test]
fn the_conversion_of_an_error_may_panic() {
    struct Unconvertible;
    impl From<Unconvertible> for raddle::error::BoxError {
        fn from(_: Unconvertible) -> Self {
            quiet_panic("conversion")
        }
    }
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| Err::<(), _>(Unconvertible), [], [&token]).unwrap();
        assert!(panicked_with(&failure(engine.wait_for_var(&token)), "conversion"));
        let handle = engine.op("").submit_any((), |()| Err::<(), _>(Unconvertible)).unwrap();
        assert!(panicked_with(&failure(handle.wait()), "conversion"));
        // The conversion runs on the thread that uses the completion, and a panic in it drops the completion.
        let token = engine.token();
        let fail = |_: &raddle::OpContext<'_>, done: Completion| {
            drop(thread::spawn(move || _ = catch_unwind(AssertUnwindSafe(|| done.fail(Unconvertible)))));
        };
        engine.push_async(fail, [], [&token]).unwrap();
        let error = failure(engine.wait_for_var(&token));
        assert!(matches!(error.cause(), Cause::LostCompletion | Cause::Panic(_)), "{error}");
    });
}

struct BadWaker;
impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        quiet_panic("waker")
    }
}

#[test]
fn a_waker_may_panic() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.token());
        let waker = Waker::from(Arc::new(BadWaker));
        let mut handle = engine.op("").submit(value.read(), |_| 1).unwrap();
        let mut wait = engine.wait_for_var_async(&value);
        let mut all = Box::pin(engine.wait_for_all_async());
        let mut cx = Context::from_waker(&waker);
        assert!(std::pin::pin!(&mut handle).poll(&mut cx).is_pending());
        assert!(std::pin::pin!(&mut wait).poll(&mut cx).is_pending());
        assert!(all.as_mut().poll(&mut cx).is_pending());
        gate.open();
        assert_eq!(handle.wait().unwrap(), 1);
        engine.wait_for_all().unwrap();
        assert!(matches!(std::pin::pin!(&mut wait).poll(&mut cx), Poll::Ready(Ok(()))));
        assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

#[derive(Debug)]
struct Unspeakable;
impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        quiet_panic("display")
    }
}
impl std::error::Error for Unspeakable {}

/// When an engine ends, it formats and logs the failures that were never reported.
#[test]
fn the_display_of_an_error_may_panic_during_the_shutdown() {
    // The logger formats every record and discards it.
    log_to(|_| {});
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| Err::<(), _>(Unspeakable), [], [&token]).unwrap();
        let shutdown = catch_unwind(AssertUnwindSafe(|| engine.shutdown(Shutdown::Drain, Some(PATIENCE))));
        assert!(matches!(shutdown, Ok(Ok(()))), "the shutdown panicked");
        // All threads have ended.
        engine.shutdown(Shutdown::Drain, Some(Duration::ZERO)).unwrap();
    });
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| Err::<(), _>(Unspeakable), [], [&token]).unwrap();
        let dropped = catch_unwind(AssertUnwindSafe(move || drop(engine)));
        assert!(dropped.is_ok(), "the drop of the engine panicked");
    });
}

#[test]
fn a_wait_returns_an_error_whose_display_panics() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| Err::<(), _>(Unspeakable), [], [&token]).unwrap();
        let error = failure(engine.wait_for_var(&token));
        assert!(matches!(error.cause(), Cause::Error(error) if error.is::<Unspeakable>()));
    });
}
