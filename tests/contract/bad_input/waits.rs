use super::*;

#[test]
fn a_timeout_may_be_zero_or_the_maximum() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        let gate = hold(&engine, value.token());
        let mut handle = engine.op("").submit(value.read(), |value| *value).unwrap();
        let start = Instant::now();
        assert!(matches!(engine.wait_for_var_timeout(&value, Duration::ZERO), Err(WaitError::TimedOut)));
        assert!(matches!(engine.wait_to_read_timeout(&value, Duration::ZERO), Err(WaitError::TimedOut)));
        assert!(matches!(engine.wait_for_var_timeout(&value, Duration::ZERO), Err(WaitError::TimedOut)));
        assert!(matches!(engine.wait_for_all_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
        assert!(matches!(handle.wait_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
        assert!(start.elapsed() < Duration::from_secs(5));
        let opener = thread::spawn(move || {
            thread::sleep(MOMENT);
            gate.open();
        });
        engine.wait_for_var_timeout(&value, Duration::MAX).unwrap();
        engine.wait_for_all_timeout(Duration::MAX).unwrap();
        assert_eq!(handle.wait_timeout(Duration::MAX).unwrap(), 1);
        engine.shutdown(Shutdown::Drain, Some(Duration::MAX)).unwrap();
        opener.join().unwrap();
        // A wait for completed operations succeeds even with a timeout of zero.
        engine.wait_for_var_timeout(&value, Duration::ZERO).unwrap();
        engine.wait_for_all_timeout(Duration::ZERO).unwrap();
    });
}

#[test]
fn a_handle_may_be_dropped_at_any_moment() {
    on_kinds(&KINDS, 2, |engine| {
        let (drops, value) = (Drops::new(), engine.var(0));
        for number in 0..3000 {
            let (result, captured) = (drops.make(), drops.make());
            let mut handle = engine
                .op("")
                .submit_any(value.write(), move |value| {
                    captured.touch();
                    *value += 1;
                    if number % 5 == 0 { Err("on purpose") } else { Ok(result) }
                })
                .unwrap();
            match number % 7 {
                0 => drop(handle),
                1 => drop(handle.wait_timeout(Duration::ZERO)),
                2 => drop(handle.wait_timeout(Duration::from_micros(20))),
                3 => drop(common::poll_once(&mut handle)),
                4 => drop(thread::spawn(move || drop(handle))),
                5 => drop(handle.wait()),
                _ => {
                    eventually("the operation is done", || handle.is_done());
                    drop(handle);
                }
            }
            if number % 10 == 0 {
                engine.clear_error(&value).unwrap();
            }
        }
        let _ = engine.wait_for_var(&value);
        drop(engine);
        eventually("the threads that drop handles have ended", || drops.dropped() == drops.made());
        drops.assert_all_gone();
    });
}

/// The waits are called after the engine has been shut down.
#[test]
fn a_wait_after_the_shutdown_returns() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(3);
        engine.op("").push_any(value.write(), |_| Err("no")).unwrap();
        engine.shutdown(Shutdown::Drain, None).unwrap();
        assert!(engine.wait_for_all().is_err());
        assert!(engine.wait_for_var(&value).is_err());
        assert!(engine.get(&value).is_err());
        common::block_on(engine.wait_for_all_async()).unwrap();
        engine.clear_error(&value).unwrap();
        assert_eq!(engine.get(&value).unwrap(), 3);
        engine.wait_for_all().unwrap();
        assert!(engine.clear_errors().is_none());
    });
}

/// Many waits for a pending operation, each with a timeout of zero, must not exhaust the resources of other waits.
#[test]
fn a_program_may_poll_with_timeouts_of_zero() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.token());
        for _ in 0..5000 {
            assert!(matches!(engine.wait_for_all_timeout(Duration::ZERO), Err(WaitError::TimedOut)));
            assert!(matches!(engine.wait_for_var_timeout(&value, Duration::ZERO), Err(WaitError::TimedOut)));
            engine.op("").push(value.write(), |value| *value += 1).unwrap();
        }
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!(engine.get(&value).unwrap(), 5000);
    });
}
