use super::*;

#[test]
fn payloads_of_every_kind() {
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
fn a_payload_whose_drop_panics() {
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

/// The second panic's payload panics when dropped, too.
#[test]
fn a_payload_whose_drop_panics_with_another_such_payload() {
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
fn a_function_whose_captures_panic_on_drop() {
    on_kinds(&KINDS, 1, |engine| {
        let (ran, skipped) = (engine.token(), engine.token());
        let capture = PanicsOnDrop("captured by one that runs");
        engine.op("runs").writes([&ran]).push_sync(move |_| _ = &capture).unwrap();
        let error = failure(engine.wait_for_var(&ran));
        assert!(panicked_with(&error, "captured by one that runs"));
        // One that is skipped, and whose captures panic then.
        let capture = PanicsOnDrop("captured by one that is skipped");
        engine.op("is skipped").reads([&ran]).writes([&skipped]).push_sync(move |_| _ = &capture).unwrap();
        assert!(failure(engine.wait_for_var(&skipped)).ptr_eq(&error));
        // It hides nowhere.
        engine.clear_error(&ran).unwrap();
        engine.clear_error(&skipped).unwrap();
        engine.wait_for_var(&skipped).unwrap();
        let error = failure(engine.wait_for_all());
        assert!(panicked_with(&error, "captured by one that is skipped"), "{error}");
        assert_eq!(error.name(), "is skipped");
    });
}

/// A push that is refused drops the function on the pushing thread: its panic is the pusher's.
#[test]
fn a_refused_function_whose_captures_panic_on_drop() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.delete_variable(&token, |_| {}).unwrap();
        let capture = PanicsOnDrop("refused");
        let pushed = catch_unwind(AssertUnwindSafe(|| engine.push_sync(move |_| _ = &capture, [], [&token])));
        match pushed {
            Ok(pushed) => assert!(matches!(pushed, Err(PushError::DeletedVariable(_))), "{pushed:?}"),
            Err(payload) => assert_eq!(payload.downcast_ref::<&str>(), Some(&"refused")),
        }
        engine.wait_for_all().unwrap();
        assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

#[test]
fn a_value_whose_drop_panics_takes_nothing_with_it() {
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

/// The deletion's function runs also if the drop of the value panics: it is somebody's clean-up.
#[test]
fn a_deletions_function_runs_although_the_values_drop_panics() {
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
fn a_result_whose_drop_panics() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.token());
        // Nobody wants it: it is dropped by the engine.
        drop(engine.op("result").submit(value.write(), |_| PanicsOnDrop("result")).unwrap());
        gate.open();
        assert_eq!(engine.get(&value).unwrap(), 0);
        let error = failure(engine.wait_for_all());
        assert!(panicked_with(&error, "result"));
        assert_eq!(error.name(), "result");
    });
}

#[test]
fn an_operators_function_whose_captures_panic_on_drop() {
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

#[test]
fn a_value_whose_clone_panics() {
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
        // The variable is none the worse for it.
        engine.op("").push(value.write(), |_| {}).unwrap();
        engine.wait_for_var(&value).unwrap();
    });
}

/// What the conversion of an error does wrong is the operation's failure.
#[test]
fn an_error_whose_conversion_panics() {
    struct Unconvertible;
    impl From<Unconvertible> for raddle::BoxError {
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
        // Here the conversion runs where the completion is used, and drops that.
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
fn a_waker_that_panics() {
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

/// The engine tells the log of failures that nobody saw, and so formats them at its end.
#[test]
fn an_error_whose_display_panics_does_not_disturb_the_shutdown() {
    // Every record is written out, into nothing.
    log_to(|_| {});
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| Err::<(), _>(Unspeakable), [], [&token]).unwrap();
        let shutdown = catch_unwind(AssertUnwindSafe(|| engine.shutdown(Shutdown::Drain, Some(PATIENCE))));
        assert!(matches!(shutdown, Ok(Ok(()))), "the shutdown panics");
        // All threads have ended.
        engine.shutdown(Shutdown::Drain, Some(Duration::ZERO)).unwrap();
    });
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| Err::<(), _>(Unspeakable), [], [&token]).unwrap();
        let dropped = catch_unwind(AssertUnwindSafe(move || drop(engine)));
        assert!(dropped.is_ok(), "the drop of the engine panics");
    });
}

#[test]
fn an_error_whose_display_panics_can_be_had() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| Err::<(), _>(Unspeakable), [], [&token]).unwrap();
        let error = failure(engine.wait_for_var(&token));
        assert!(matches!(error.cause(), Cause::Error(error) if error.is::<Unspeakable>()));
    });
}
