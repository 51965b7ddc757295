use super::*;

fn is_panic(error: &OpError, message: Option<&str>) -> bool {
    matches!(error.cause(), Cause::Panic(actual) if actual.as_deref() == message)
}

#[test]
fn a_panic_fails_the_operation_and_the_worker_survives() {
    on_kinds(&KINDS, 1, |engine| {
        let number = 7;
        let (a, b, c) = (engine.var(0), engine.var(0), engine.var(0));
        engine.op("a").push(a.write(), |_| panic!("literal")).unwrap();
        engine.op("b").push(b.write(), move |_| panic!("formatted {number}")).unwrap();
        engine.op("c").push(c.write(), |_| panic_any(7_u64)).unwrap();
        assert!(is_panic(&failure(engine.get(&a)), Some("literal")));
        assert!(is_panic(&failure(engine.get(&b)), Some("formatted 7")));
        assert!(is_panic(&failure(engine.get(&c)), None));
        // The engine still runs operations.
        assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

#[test]
fn the_error_of_a_skipped_operation_says_so_and_names_what_failed() {
    on_kinds(&KINDS, 1, |engine| {
        let (group, x, y) = (engine.group(), engine.var(0), engine.var(0));
        engine.op("decode").try_push(x.write(), |_| Err("bad header".into())).unwrap();
        let first = group.op("draw").submit((x.read(), y.write()), |_| ()).unwrap();
        let second = engine.op("").submit(y.write(), |_| ()).unwrap();
        let [of_x, of_y] = [&x, &y].map(|variable| failure(engine.wait_for_var(variable)));
        let (drawn, unnamed, of_group) = (failure(first.wait()), failure(second.wait()), failure(group.wait()));
        assert!(!of_x.is_skipped() && !of_y.is_skipped() && of_x.ptr_eq(&of_y));
        for error in [&drawn, &unnamed, &of_group] {
            assert!(error.is_skipped() && error.ptr_eq(&of_x) && error.root().ptr_eq(&of_x));
            assert!(!error.root().is_skipped() && error.name() == "decode" && error.location() == of_x.location());
            assert_eq!(error.cause().to_string(), "bad header");
            assert!(error.to_string().ends_with(&format!(" was skipped: {of_x}")), "{error}");
            assert!(format!("{error:?}").contains("skipped"), "{error:?}");
        }
        assert!(drawn.to_string().starts_with("operation `draw` pushed at "), "{drawn}");
        assert!(unnamed.to_string().starts_with("the operation pushed at "), "{unnamed}");
        let acquired = block_on(engine.acquire(x.read())).map(drop);
        assert!(failure(acquired).is_skipped());
        let read = engine.get(&x).map(drop);
        assert!(!failure(read).is_skipped());
        engine.wait_for_all().unwrap();

        // The error of an operation that waits for a skipped one has the same root.
        let again = engine.op("again").submit(x.read(), |_| ()).unwrap();
        let asks = engine.op("asks").try_submit((), move |()| Ok(again.wait()?)).unwrap();
        let asked = failure(asks.wait());
        assert!(!asked.is_skipped() && asked.name() == "asks" && asked.root().ptr_eq(&of_x));
        let text = asked.to_string();
        let order = ["`asks`", "failed: operation `again`", "was skipped: operation `decode`", "failed: bad header"];
        let places = order.map(|part| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}")));
        assert!(places.is_sorted(), "{text}");
        drop(of_y);
    });
}

#[test]
fn a_cancelled_operation_is_not_skipped_but_those_behind_it_are() {
    on_kinds(&THREADED, 1, |engine| {
        let x = engine.var(0);
        let gate = hold(&engine, x.as_ref());
        let past = Instant::now();
        let late = engine.op("late").deadline(past).submit(x.write(), |_| ()).unwrap();
        let behind = engine.op("behind").submit(x.read(), |_| ()).unwrap();
        let cancelled = engine.op("cancelled").submit(x.write(), |_| ()).unwrap();
        cancelled.cancel();
        gate.open();
        let [late, behind, cancelled] = [late, behind, cancelled].map(|handle| failure(handle.wait()));
        assert_eq!([&late, &behind, &cancelled].map(OpError::is_skipped), [false, true, false]);
        assert!(behind.root().ptr_eq(&late) && matches!(behind.cause(), Cause::DeadlinePassed));
        engine.wait_for_all().unwrap();
    });
}

/// A parent whose child was skipped has failed, with what made the child be skipped.
#[test]
fn a_parent_of_a_skipped_child_is_not_skipped() {
    on_kinds(&KINDS, 1, |engine| {
        let x = engine.var(0);
        let inside = x.clone();
        let parent = engine.op("parent").with_children().try_submit((raddle::cx(), x.write()), move |(cx, _)| {
            let own = cx.child_var(0)?;
            cx.child("fails").try_push(own.write(), |_| Err("on purpose".into()))?;
            cx.child("skipped").push((own.read(), inside.write()), |_| {})?;
            Ok(())
        });
        let failed = failure(parent.unwrap().wait());
        assert!(!failed.is_skipped() && failed.name() == "fails", "{failed}");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_failure_is_named_even_if_its_message_cannot_be_formatted() {
    #[derive(Debug)]
    struct Unprintable(bool);
    impl std::fmt::Display for Unprintable {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            assert!(!self.0, "the message panics on purpose");
            Err(std::fmt::Error)
        }
    }
    impl Error for Unprintable {}
    on_kinds(&KINDS, 1, |engine| {
        for panics in [false, true] {
            let value = engine.var(0);
            engine.op("parse").try_push(value.write(), move |_| Err(Unprintable(panics).into())).unwrap();
            let text = failure(engine.wait_for_var(&value)).to_string();
            assert!(text.starts_with("operation `parse` pushed at "), "{text}");
            assert!(text.ends_with(" failed: (the message could not be formatted)"), "{text}");
        }
    });
}

#[test]
fn a_failure_reports_the_name_the_location_and_the_cause() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let line = line!() + 1;
        engine.op("parse").push_any(value.write(), |value| "x".parse::<i32>().map(|n| *value = n)).unwrap();
        let error = failure(engine.wait_for_var(&value));
        assert_eq!(error.name(), "parse");
        assert_eq!((error.location().file(), error.location().line()), (file!(), line));
        assert!(matches!(error.cause(), Cause::Error(error) if error.is::<std::num::ParseIntError>()));
        assert!(error.is::<std::num::ParseIntError>() && error.source().is_none());
        let text = error.to_string();
        for part in ["`parse`", file!(), &line.to_string(), "invalid digit"] {
            assert!(text.contains(part), "`{text}` does not contain `{part}`");
        }
        assert!(format!("{error:?}").contains("parse"));
        let waited = WaitError::Failed(error.clone());
        assert_eq!(waited.to_string(), text);
        assert!(waited.source().is_none());
    });
}

/// The location is the line of the program's push.
#[test]
fn every_form_of_push_records_its_location() {
    on_kinds(&KINDS, 1, |engine| {
        let check = |line: u32, error: OpError| {
            assert_eq!((error.location().file(), error.location().line()), (file!(), line));
        };
        let value = engine.var(0);
        let clear = || engine.clear_error(&value).unwrap();
        engine.push_sync(|_| Err::<(), _>("no"), [], [value.token()]).unwrap();
        check(line!() - 1, failure(engine.wait_for_var(&value)));
        clear();
        engine.push_async(|_, done| done.fail("no"), [], [value.token()]).unwrap();
        check(line!() - 1, failure(engine.wait_for_var(&value)));
        clear();
        let handle = engine.op("").submit(value.write(), |_| panic!("no")).unwrap();
        check(line!() - 1, failure(handle.wait()));
        clear();
        let handle = engine.op("").submit_any(value.write(), |_| Err::<(), _>("no")).unwrap();
        check(line!() - 1, failure(handle.wait()));
        clear();
        engine.op("").writes([value.token()]).push_sync(|_| Err::<(), _>("no")).unwrap();
        check(line!() - 1, failure(engine.wait_for_var(&value)));
        clear();
        engine.op("").writes([value.token()]).push_async_any(raddle::cx(), |_, done| done.fail("no")).unwrap();
        check(line!() - 1, failure(engine.wait_for_var(&value)));
    });
}

#[test]
fn an_operation_on_a_failed_variable_is_skipped_and_propagates_the_same_error() {
    on_kinds(&KINDS, 2, |engine| {
        let tokens: Vec<Token> = (0..20).map(|_| engine.token()).collect();
        let (drops, ran) = (Drops::new(), Arc::new(AtomicUsize::new(0)));
        push_failing(&engine, "first", &[], &[&tokens[0]]);
        for pair in tokens.windows(2) {
            let (captured, ran) = (drops.make(), Arc::clone(&ran));
            engine
                .push_sync(
                    move |_| {
                        captured.touch();
                        ran.fetch_add(1, SeqCst);
                    },
                    [&pair[0]],
                    [&pair[1]],
                )
                .unwrap();
        }
        let first = failure(engine.wait_for_var(&tokens[0]));
        for token in &tokens {
            assert!(failure(engine.wait_for_var(token)).ptr_eq(&first));
            assert_eq!(token.version(), 0);
        }
        assert_eq!(ran.load(SeqCst), 0);
        // A skipped function's captures are dropped after its variables are released.
        engine.wait_for_all().expect("no failure should be left");
        drops.assert_all_gone();
    });
}

#[test]
fn a_mutation_of_a_failed_variable_is_skipped() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        engine
            .op("first")
            .push_any(value.write(), |value| {
                *value = 2;
                Err("half done")
            })
            .unwrap();
        engine.op("second").push(value.write(), |value| *value = 3).unwrap();
        assert_eq!(failure(engine.get(&value)).name(), "first");
        engine.clear_error(&value).unwrap();
        assert_eq!(engine.get(&value).unwrap(), 2);
    });
}

#[test]
fn the_handle_of_a_skipped_reader_returns_the_failure() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(1);
        engine.op("first").push_any(value.write(), |_| Err("no")).unwrap();
        let first = failure(engine.wait_for_var(&value));
        let submitted = engine.op("").submit(value.read(), |value| *value).unwrap();
        assert!(failure(submitted.wait()).ptr_eq(&first));
        let awaited = engine.op("").submit(value.read(), |value| *value).unwrap();
        assert!(failure(block_on(awaited)).ptr_eq(&first));
    });
}

#[test]
fn a_failing_reader_does_not_fail_the_variables_that_it_reads() {
    on_kinds(&KINDS, 1, |engine| {
        let (read, written) = (engine.var(1), engine.var(2));
        engine.op("reader").push_any((read.read(), written.write()), |_| Err("no")).unwrap();
        assert_eq!(engine.get(&read).unwrap(), 1);
        assert_eq!(failure(engine.get(&written)).name(), "reader");
    });
}

#[test]
fn every_wait_returns_the_same_error() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.token());
        engine.op("fails").push_any(value.write(), |_| Err("no")).unwrap();
        let errors = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for number in 0..12 {
                let (engine, value, errors) = (&engine, &value, &errors);
                scope.spawn(move || {
                    let error = match number % 6 {
                        0 => failure(engine.wait_for_var(value)),
                        1 => failure(engine.wait_to_read(value)),
                        2 => failure(engine.wait_for_var(value)),
                        3 => failure(engine.get(value)),
                        4 => failure(engine.wait_for_var_timeout(value, Duration::MAX)),
                        _ => failure(block_on(engine.wait_for_var_async(value))),
                    };
                    lock(errors).push(error);
                });
            }
            thread::sleep(MOMENT);
            gate.open();
        });
        // The failure stays, so later waits return it too.
        let first = failure(engine.wait_for_var(&value));
        let errors = lock(&errors).drain(..).collect::<Vec<_>>();
        assert_eq!(errors.len(), 12);
        assert!(errors.iter().all(|error| error.ptr_eq(&first) && error.name() == "fails"));
        assert!(failure(engine.wait_for_var_timeout(&value, Duration::ZERO)).ptr_eq(&first));
        engine.wait_for_all().expect("a returned failure should not be reported again");
        block_on(engine.wait_for_all_async()).expect("the failure should not be reported to a future either");
        let other = engine.token();
        push_failing(&engine, "fails", &[], &[&other]);
        assert!(!failure(engine.wait_for_var(&other)).ptr_eq(&first), "two failures are the same");
    });
}

#[test]
fn clear_error_clears_the_failure_in_push_order() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.token());
        engine.op("fails").push_any(value.write(), |_| Err("no")).unwrap();
        let before = engine.op("").submit(value.write(), |value| *value += 1).unwrap();
        engine.clear_error(&value).unwrap();
        let after = engine.op("").submit(value.write(), |value| *value += 10).unwrap();
        gate.open();
        assert_eq!(failure(before.wait()).name(), "fails");
        after.wait().unwrap();
        assert_eq!(engine.get(&value).unwrap(), 10);
        engine.wait_for_all().unwrap();
        assert_eq!(value.version(), 2);
    });
}

#[test]
fn clear_error_of_a_sound_variable_does_nothing() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(3);
        engine.clear_error(&value).unwrap();
        assert_eq!(engine.get(&value).unwrap(), 3);
        assert_eq!(value.version(), 0);
    });
}

#[test]
fn clear_error_clears_one_variable_only() {
    on_kinds(&KINDS, 1, |engine| {
        let (a, b) = (engine.token(), engine.token());
        push_failing(&engine, "both", &[], &[&a, &b]);
        engine.clear_error(&a).unwrap();
        engine.wait_for_var(&a).unwrap();
        engine.wait_for_all().expect("a failure cleared on one variable should not be reported");
        assert_eq!(failure(engine.wait_for_var(&b)).name(), "both");
        engine.clear_error(&b).unwrap();
        engine.wait_for_var(&b).unwrap();
    });
}

#[test]
fn a_failure_cleared_everywhere_is_cleared_wherever_it_has_spread() {
    on_kinds(&KINDS, 2, |engine| {
        let vars = [(); 3].map(|()| engine.var(0));
        let [first, second, other] = &vars;
        push_failing(&engine, "fails", &[], &[first.token()]);
        let skipped = engine.op("").submit((first.read(), second.write()), |(first, second)| *second = *first).unwrap();
        push_failing(&engine, "other", &[], &[other.token()]);
        let error = failure(engine.wait_for_var(second));
        error.clear_everywhere();
        assert!(first.failure().is_none() && second.failure().is_none());
        engine.wait_for_var(first).unwrap();
        engine.op("").push((first.write(), second.write()), |(first, second)| (*first, *second) = (1, 2)).unwrap();
        assert_eq!((engine.get(first).unwrap(), engine.get(second).unwrap()), (1, 2));
        assert!(failure(skipped.wait()).ptr_eq(&error), "the handle returns what has happened");
        assert_eq!(failure(engine.wait_for_all()).name(), "other");
        assert_eq!(failure(engine.get(other)).name(), "other");
        engine.wait_for_all().expect("the failure that was cleared is not reported");
        // The variables may fail again.
        push_failing(&engine, "again", &[], &[first.token()]);
        assert_eq!(failure(engine.get(first)).name(), "again");
        assert_eq!(engine.get(second).unwrap(), 2);
    });
}

#[test]
fn a_variable_that_has_a_cleared_failure_fails_with_the_next_one() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.token();
        push_failing(&engine, "first", &[], &[&value]);
        failure(engine.wait_for_var(&value)).clear_everywhere();
        push_failing(&engine, "second", &[], &[&value]);
        assert_eq!(failure(engine.wait_for_var(&value)).name(), "second");
        assert_eq!(value.failure().unwrap().name(), "second");
    });
}

#[test]
fn a_cleared_failure_is_dropped_with_the_next_mutation() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, drops) = (engine.token(), Drops::new());
        let payload = drops.make();
        engine.op("").writes([&value]).push((), move |()| panic_any(payload)).unwrap();
        failure(engine.wait_for_var(&value)).clear_everywhere();
        assert_eq!(drops.dropped(), 0);
        engine.op("").writes([&value]).push_sync(|_| {}).unwrap();
        engine.wait_for_all().unwrap();
        drops.assert_all_gone();
    });
}

#[test]
fn a_look_at_a_failure_neither_waits_nor_reports() {
    on_kinds(&THREADED, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.token());
        push_failing(&engine, "fails", &[], &[value.token()]);
        assert!(value.failure().is_none());
        gate.open();
        let error = engine.wait_for_var_timeout(&value, PATIENCE).map(|()| value.failure());
        assert!(matches!(error, Err(WaitError::Failed(_))));
        push_failing(&engine, "again", &[], &[value.token()]);
        engine.clear_error(&value).unwrap();
        push_failing(&engine, "unreported", &[], &[value.token()]);
        let has_failed = || value.failure().is_some_and(|error| error.name() == "unreported");
        eventually("the variable has failed", has_failed);
        assert_eq!(failure(engine.wait_for_all()).name(), "unreported");
        assert!(value.failure().is_some());
    });
}

#[test]
fn an_overwrite_clears_the_failure() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, token) = (engine.var(0), engine.token());
        push_failing(&engine, "fails", &[], &[value.token(), &token]);
        engine.op("").push(value.overwrite(), |value| *value = 9).unwrap();
        engine.op("").overwrites([&token]).push_sync(|_| {}).unwrap();
        assert_eq!(engine.get(&value).unwrap(), 9);
        engine.wait_for_var(&token).unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!((value.version(), token.version()), (1, 1));
    });
}

#[test]
fn an_overwrite_is_skipped_if_it_reads_a_failed_variable() {
    on_kinds(&KINDS, 1, |engine| {
        let (source, target) = (engine.var(0), engine.var(0));
        push_failing(&engine, "source", &[], &[source.token()]);
        engine.op("").push((source.read(), target.overwrite()), |_| {}).unwrap();
        assert_eq!(failure(engine.get(&target)).name(), "source");
    });
}

#[test]
fn an_overwrite_of_a_variable_that_is_also_read_or_written_counts_as_a_write() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        push_failing(&engine, "fails", &[], &[&token]);
        engine.op("").overwrites([&token]).reads([&token]).push_sync(|_| {}).unwrap();
        engine.op("").overwrites([&token]).writes([&token]).push_sync(|_| {}).unwrap();
        assert_eq!(failure(engine.wait_for_var(&token)).name(), "fails");
        assert_eq!(token.version(), 0);
    });
}

/// If the function has references, the operation ends after it, with its failure. Otherwise it ends when its completion
/// is used.
#[test]
fn an_asynchronous_operation_that_fails_twice_reports_both_failures() {
    on_kinds(&KINDS, 2, |engine| {
        for (refers, panics, used) in (0..12).map(|n| (n % 2 == 1, n % 4 > 1, ["complete", "fail", "drop"][n / 4])) {
            let case = format!("refers: {refers}, panics: {panics}, {used}");
            let value = engine.var(0);
            let run = move |done: Completion| -> Result<(), raddle::error::BoxError> {
                match used {
                    "complete" => done.complete(),
                    "fail" => done.fail("by the completion"),
                    _ => drop(done),
                }
                if panics { panic!("by the function") } else { Err("by the function".into()) }
            };
            if refers {
                engine.op("fails").try_push((value.write(), completion()), move |(_, done)| run(done)).unwrap();
            } else {
                engine.op("fails").writes([value.token()]).try_push(completion(), run).unwrap();
            }
            let first = match (refers, used) {
                (true, _) => Some("by the function"),
                (false, "complete") => None,
                (false, "fail") => Some("by the completion"),
                (false, _) => Some("completion was dropped"),
            };
            let found = engine.wait_for_var(&value).map_err(|error| error.to_string());
            match first {
                Some(first) => assert!(found.as_ref().is_err_and(|text| text.contains(first)), "{case}: {found:?}"),
                None => assert_eq!(found, Ok(()), "{case}"),
            }
            let second = match (refers, used) {
                (true, "fail") => Some("by the completion"),
                (true, _) => None,
                (false, _) => Some("by the function"),
            };
            let mut left = engine.wait_for_all();
            if let Some(second) = second {
                // Without references, the function may return after its operation has ended.
                eventually("the second failure is reported", || {
                    if left.is_ok() && !refers {
                        left = engine.wait_for_all();
                    }
                    refers || left.is_err()
                });
                let text = failure(left).to_string();
                assert!(text.contains(second), "{case}: {text}");
                left = engine.wait_for_all();
            }
            left.expect(&case);
            assert_eq!(value.version(), u64::from(first.is_none()), "{case}");
        }
    });
}

/// Each operation returns the failure of the one for which it waits.
#[test]
fn the_error_behind_a_chain_of_failures_is_found() {
    on_kinds(&KINDS, 2, |engine| {
        let parse = |text: &'static str| move || Ok(text.parse::<i32>()?);
        let mut last = engine.op("parse").try_submit((), move |()| parse("12x")()).unwrap();
        for _ in 0..3 {
            last = engine.op("wait").try_submit((), move |()| Ok(last.wait()?)).unwrap();
        }
        let failed = failure(last.wait());
        assert_eq!((failed.name(), failed.root().name()), ("wait", "parse"));
        assert!(failed.is::<std::num::ParseIntError>(), "the error of the root was not found");
        // The error that the function itself returned is found as well.
        assert!(failed.is::<WaitError>() && !failed.is::<std::num::ParseFloatError>());
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_failed_overwrite_leaves_the_variable_failed() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        engine.op("overwrite").push_any(value.overwrite(), |_| Err("no")).unwrap();
        assert_eq!(failure(engine.get(&value)).name(), "overwrite");
        assert_eq!(value.version(), 0);
    });
}

/// The operation that would have cleared the failure fails as well, and its own failure must be reported too.
#[test]
fn a_failed_overwrite_of_a_failed_variable_is_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        engine.op("first").push_any(value.write(), |_| Err("no")).unwrap();
        engine.op("second").push_any(value.overwrite(), |_| Err("no")).unwrap();
        assert_second_is_reported(&engine, value.token());
    });
}

#[test]
fn a_failed_run_always_operation_on_a_failed_variable_is_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        engine.op("first").push_any(value.write(), |_| Err("no")).unwrap();
        engine.op("second").run_always().push_any(value.write(), |_| Err("no")).unwrap();
        assert_second_is_reported(&engine, value.token());
    });
}

/// Neither a wait for a variable nor a skipped operation returns the replaced failure.
#[test]
fn a_failed_overwrite_replaces_the_failure_of_the_variable() {
    on_kinds(&KINDS, 1, |engine| {
        let (value, token) = (engine.var(0), engine.token());
        engine.op("first").writes([&token]).try_push(value.write(), |_| Err("no".into())).unwrap();
        engine.op("second").overwrites([&token]).try_push(value.overwrite(), |_| Err("no".into())).unwrap();
        let skipped = engine.op("skipped").submit(value.read(), |_| {}).unwrap();
        assert_eq!(failure(skipped.wait()).name(), "second");
        assert_eq!(failure(engine.get(&value)).name(), "second");
        assert_eq!(failure(engine.wait_for_var(&token)).name(), "second");
        // So far, the first failure was neither returned nor cleared.
        assert_eq!(failure(engine.wait_for_all()).name(), "first");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_overwrite_that_is_skipped_replaces_the_failure_of_the_variable() {
    on_kinds(&KINDS, 1, |engine| {
        let (source, target) = (engine.var(0), engine.var(0));
        engine.op("target").try_push(target.write(), |_| Err("no".into())).unwrap();
        engine.op("source").try_push(source.write(), |_| Err("no".into())).unwrap();
        engine.op("copy").push((source.read(), target.overwrite()), |_| {}).unwrap();
        assert_eq!(failure(engine.get(&target)).name(), "source");
    });
}

/// `ignore` may be called before or after the operation has failed.
#[test]
fn an_ignored_failure_is_not_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        for is_pending in [true, false] {
            let gate = is_pending.then(|| hold(&engine, value.token()));
            let mut ignored = engine.op("fails").try_submit(value.write(), |_| -> Result<(), _> { Err("no".into()) });
            if !is_pending {
                eventually("the operation has failed", || ignored.as_ref().is_ok_and(OpHandle::is_done));
            }
            if is_pending {
                // A registered waker is dropped with the handle.
                assert!(poll_once(ignored.as_mut().unwrap()).is_pending());
            }
            ignored.unwrap().ignore();
            let dropped = engine.op("skipped").submit(value.read(), |_| ()).unwrap();
            gate.iter().for_each(Gate::open);
            dropped.ignore();
            engine.wait_for_all().unwrap();
            assert_eq!(failure(engine.wait_for_var(&value)).name(), "fails", "the variable is no longer failed");
            engine.clear_error(&value).unwrap();
        }
        // Merely dropping a handle leaves the failure unreported.
        drop(engine.op("dropped").try_submit(value.read(), |_| -> Result<(), _> { Err("no".into()) }).unwrap());
        assert_eq!(failure(engine.wait_for_all()).name(), "dropped");
    });
}

#[test]
fn an_ignored_result_is_dropped_once() {
    on_kinds(&KINDS, 1, |engine| {
        let (drops, value) = (Drops::new(), engine.var(0));
        for is_pending in [true, false] {
            let gate = is_pending.then(|| hold(&engine, value.token()));
            let made = drops.make();
            let handle = engine.op("").submit(value.write(), move |_| made).unwrap();
            if !is_pending {
                eventually("the operation is done", || handle.is_done());
            }
            handle.ignore();
            gate.iter().for_each(Gate::open);
            engine.wait_for_all().unwrap();
        }
        drops.assert_all_gone();
    });
}

/// Asserts that some call reports the failure of `second`, before or after the failure of `first` is cleared.
fn assert_second_is_reported(engine: &Engine, variable: &Token) {
    let mut reported = vec![failure(engine.wait_for_var(variable)), failure(engine.wait_for_all())];
    engine.clear_error(variable).unwrap();
    engine.wait_for_var(variable).unwrap();
    if let Err(WaitError::Failed(error)) = engine.wait_for_all() {
        reported.push(error);
    }
    reported.extend(engine.clear_errors().map(|(error, _)| error));
    let names: Vec<_> = reported.iter().map(OpError::name).collect();
    assert!(names.contains(&"second"), "the second failure is not reported, only {names:?}");
}

#[test]
fn a_run_always_operation_runs_on_a_failed_variable() {
    on_kinds(&KINDS, 1, |engine| {
        let (failed, sound) = (engine.var(0), engine.var(0));
        push_failing(&engine, "fails", &[], &[failed.token()]);
        let ran = engine.op("").run_always().submit((failed.write(), sound.write()), |(a, b)| {
            *a += 1;
            *b += 1;
        });
        ran.unwrap().wait().unwrap();
        // The run neither clears nor propagates the failure.
        assert_eq!(failure(engine.get(&failed)).name(), "fails");
        assert_eq!(engine.get(&sound).unwrap(), 1);
        assert_eq!((failed.version(), sound.version()), (1, 1));
        engine.clear_error(&failed).unwrap();
        assert_eq!(engine.get(&failed).unwrap(), 1);
    });
}

#[test]
fn a_failure_without_mutated_variables_is_reported_once() {
    on_kinds(&KINDS, 1, |engine| {
        let read = engine.var(0);
        let handle = engine.op("lonely").submit_any(read.read(), |_| Err::<(), _>("no")).unwrap();
        assert_eq!(failure(handle.wait()).name(), "lonely");
        engine.wait_for_all().expect("the handle should have reported the failure");
        drop(engine.op("alone").submit_any(read.read(), |_| Err::<(), _>("no")).unwrap());
        engine.op("second").push((), |()| panic!("no")).unwrap();
        assert_eq!(failure(engine.wait_for_all()).name(), "alone");
        assert_eq!(failure(engine.wait_for_all()).name(), "second");
        engine.wait_for_all().expect("each failure should be reported once");
        for name in ["third", "fourth", "fifth"] {
            engine.op(name).push_any((), |()| Err("no")).unwrap();
        }
        assert_eq!(failure(engine.wait_for_all()).name(), "third");
        let (first, count) = engine.clear_errors().unwrap();
        assert_eq!((first.name(), count), ("fourth", 2));
        engine.wait_for_all().unwrap();
        assert!(engine.clear_errors().is_none());
        assert_eq!(engine.get(&read).unwrap(), 0);
    });
}

/// The number of failures that an engine stores. Further failures are only counted.
const STORED: usize = 4096;
const BEYOND: usize = 904;

#[test]
fn futures_of_waits_for_a_group_and_for_all_return_the_failure_once() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group();
        group.op("member").try_push((), |()| Err("no".into())).unwrap();
        assert_eq!(failure(block_on(group.wait_async())).name(), "member");
        block_on(group.wait_async()).unwrap();
        push_failing(&engine, "alone", &[], &[]);
        assert_eq!(failure(block_on(engine.wait_for_all_async())).name(), "alone");
        block_on(engine.wait_for_all_async()).unwrap();
    });
}

/// Pushes `count` failing operations that mutate no variable. All have failed when this function returns.
fn fail_many(engine: &Engine, count: usize) -> Vec<OpHandle<()>> {
    let submit = |_| engine.op("lonely").submit_any((), |()| Err::<(), _>("no")).unwrap();
    let handles: Vec<_> = (0..count).map(submit).collect();
    eventually("all operations have failed", || handles.iter().all(OpHandle::is_done));
    handles
}

fn assert_failed(handles: impl IntoIterator<Item = OpHandle<()>>) {
    handles.into_iter().for_each(|handle| assert_eq!(failure(handle.wait()).name(), "lonely"));
}

#[test]
#[cfg_attr(miri, ignore = "needs 5,000 operations")]
fn clear_errors_counts_failures_beyond_the_stored_ones() {
    on_kinds(&KINDS, 1, |engine| {
        drop(fail_many(&engine, STORED + BEYOND));
        let (first, count) = engine.clear_errors().unwrap();
        assert_eq!((first.name(), count), ("lonely", 5000));
        assert!(engine.clear_errors().is_none());
        engine.wait_for_all().unwrap();
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs 5,000 operations")]
fn clear_errors_finds_failures_beyond_stored_ones_that_handles_have_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let stored = fail_many(&engine, STORED);
        drop(fail_many(&engine, BEYOND));
        assert_failed(stored);
        let (first, count) = engine.clear_errors().expect("904 failures should be unreported");
        assert_eq!(count, 904);
        assert!(first.to_string().contains(": 904 operations failed"), "{first}");
        assert!(engine.clear_errors().is_none());
        engine.wait_for_all().unwrap();
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs 5,000 operations")]
fn any_number_of_failures_that_handles_have_reported_are_not_reported_again() {
    on_kinds(&KINDS, 1, |engine| {
        assert_failed(fail_many(&engine, STORED + BEYOND));
        engine.wait_for_all().expect("the handles should have reported all failures");
        assert!(engine.clear_errors().is_none());
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs 5,000 operations")]
fn failures_that_handles_have_reported_are_not_counted_beyond_the_stored_ones() {
    on_kinds(&KINDS, 1, |engine| {
        let stored = fail_many(&engine, STORED);
        let mut beyond = fail_many(&engine, BEYOND);
        // A failure reported twice is subtracted from the count only once.
        for error in beyond.drain(..900).map(|handle| failure(handle.wait())) {
            drop(WaitError::from(error));
        }
        for handle in stored.into_iter().skip(1) {
            drop(failure(handle.wait()));
        }
        assert_eq!(failure(engine.wait_for_all()).name(), "lonely");
        let error = failure(engine.wait_for_all());
        assert!(error.to_string().contains(": 4 operations failed"), "{error}");
        engine.wait_for_all().expect("each failure should be reported once");
        assert_failed(beyond);
        engine.wait_for_all().expect("each failure should be reported once");
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs 10,000 operations")]
fn a_handle_that_reports_late_does_not_hide_later_failures() {
    on_kinds(&KINDS, 1, |engine| {
        let stored = fail_many(&engine, STORED);
        let beyond = fail_many(&engine, BEYOND);
        assert_eq!(engine.clear_errors().unwrap().1, 5000);
        drop(fail_many(&engine, STORED + BEYOND));
        assert_failed(stored);
        assert_failed(beyond);
        assert_eq!(engine.clear_errors().unwrap().1, 5000);
        engine.wait_for_all().unwrap();
    });
}

/// Each failure is reported or cleared exactly once, while handles report some and another thread clears the others.
#[test]
#[cfg_attr(miri, ignore = "needs 60,000 operations")]
fn failures_are_cleared_once_while_handles_report_others() {
    on_kinds(&THREADED, 2, |engine| {
        for round in 0..10 {
            let mut handles = fail_many(&engine, 6000).into_iter();
            let reporters: [Vec<_>; 2] = [(); 2].map(|()| handles.by_ref().take(3000).step_by(2).collect());
            let start = Meeting::new(3);
            let cleared: u64 = thread::scope(|scope| {
                for handles in reporters {
                    let start = &start;
                    scope.spawn(move || {
                        start.join();
                        assert_failed(handles);
                    });
                }
                start.join();
                // The number of failures reported before `clear_errors` is called varies from round to round.
                (0..round * 100).for_each(|_| thread::yield_now());
                engine.clear_errors().map_or(0, |(_, count)| count)
            });
            assert!(
                (3000..=6000).contains(&cleared),
                "{cleared} of 6,000 failures were cleared, although handles reported only 3,000"
            );
            engine.wait_for_all().expect("no failure should be left");
        }
    });
}

#[test]
fn wait_for_all_reports_the_earliest_failure_first() {
    on_kinds(&KINDS, 1, |engine| {
        let tokens: Vec<Token> = (0..3).map(|_| engine.token()).collect();
        for (name, token) in ["a", "b", "c"].into_iter().zip(tokens.iter().rev()) {
            // With one worker, the operations fail in this order.
            push_failing(&engine, name, &[], &[token]);
        }
        for name in ["a", "b", "c"] {
            assert_eq!(failure(engine.wait_for_all()).name(), name);
        }
        engine.wait_for_all().expect("each failure should be reported once");
        for token in &tokens {
            assert!(engine.wait_for_var(token).is_err(), "a wait for a failed variable succeeded");
        }
    });
}

/// The variable is dropped before any call reports its failure.
#[test]
fn the_failure_of_a_dropped_variable_is_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        push_failing(&engine, "unseen", &[], &[&token]);
        drop(token);
        assert_eq!(failure(engine.wait_for_all()).name(), "unseen");
    });
}

#[test]
fn the_failure_of_a_deleted_variable_is_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        push_failing(&engine, "unseen", &[], &[&token]);
        engine.delete_variable(&token, |_| {}).unwrap();
        assert_eq!(failure(engine.wait_for_all()).name(), "unseen");
        assert_eq!(token.version(), 0, "the deletion counts as a mutation");
    });
}

#[test]
fn a_failure_that_was_reported_before_its_variable_was_dropped_is_not_reported_again() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        push_failing(&engine, "seen", &[], &[&token]);
        assert!(engine.wait_for_var(&token).is_err());
        drop(token);
        engine.wait_for_all().unwrap();
    });
}

/// Two variables share a failure, which is reported or cleared through one of them. It is not reported again for the
/// other, whenever that variable is freed.
#[test]
fn a_reported_and_cleared_failure_is_not_reported_again() {
    on_kinds(&KINDS, 2, |engine| {
        let kept = engine.var(0);
        for round in 0..2000 {
            {
                let temporary = engine.var(0);
                engine.op("fails").push_any(temporary.write(), |_| Err("no")).unwrap();
                engine.op("").push((temporary.read(), kept.write()), |(from, to)| *to = *from).unwrap();
            }
            if round % 2 == 0 {
                assert_eq!(failure(engine.get(&kept)).name(), "fails");
            }
            engine.clear_error(&kept).unwrap();
            engine.wait_for_all().unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    });
}

#[test]
fn deletions_run_on_failed_variables() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let value = engine.var(drops.make());
        push_failing(&engine, "fails", &[], &[value.token()]);
        let ran = Gate::new();
        let inner = ran.clone();
        engine.delete_variable(&value, move |_| inner.open()).unwrap();
        ran.pass();
        drops.assert_all_gone();
        let dropped = engine.var(drops.make());
        push_failing(&engine, "fails", &[], &[dropped.token()]);
        drop(dropped);
        eventually("the value is dropped", || drops.dropped() == 2);
    });
}

/// The panic is reported by the wait for the deleted variable or by the wait for all.
#[test]
fn a_deletion_that_panics_is_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.delete_variable(&token, |_| panic!("in the deletion")).unwrap();
        let results = [engine.wait_for_var(&token), engine.wait_for_all()];
        let error = results.into_iter().find_map(Result::err).expect("a wait should report the panic");
        assert!(is_panic(&failure(Err::<(), _>(error)), Some("in the deletion")));
    });
}

#[test]
fn both_panics_of_a_deletion_are_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(common::PanicsOnDrop("in the drop"));
        engine.delete_variable(&value, |_| panic!("in the function")).unwrap();
        let mut texts = Vec::new();
        for result in [engine.wait_for_var(&value), engine.wait_for_all(), engine.wait_for_all()] {
            texts.extend(result.err().map(|error| error.to_string()));
        }
        for panic in ["in the drop", "in the function"] {
            assert!(texts.iter().any(|text| text.contains(panic)), "the panic {panic} is lost: {texts:?}");
        }
    });
}

#[test]
fn a_panic_in_the_drop_of_a_value_is_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(common::PanicsOnDrop("in the drop"));
        drop(value);
        assert!(is_panic(&failure(engine.wait_for_all()), Some("in the drop")));
    });
}

#[test]
fn a_skipped_async_operation_does_not_start() {
    on_kinds(&KINDS, 1, |engine| {
        let (token, drops) = (engine.token(), Drops::new());
        push_failing(&engine, "fails", &[], &[&token]);
        let captured = drops.make();
        engine
            .push_async(
                move |_, done| {
                    captured.touch();
                    done.complete();
                },
                [&token],
                [],
            )
            .unwrap();
        assert_eq!(failure(engine.wait_for_var(&token)).name(), "fails");
        engine.wait_for_all().expect("no failure should be left");
        drops.assert_all_gone();
    });
}

#[test]
fn an_error_does_not_repeat_the_message_of_its_source() {
    on_kinds(&[EngineKind::Naive], 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| Err::<(), _>(std::io::Error::other("disk")), [], [&token]).unwrap();
        let error = failure(engine.wait_for_var(&token));
        assert!(error.downcast_ref::<std::io::Error>().is_some_and(|error| error.to_string() == "disk"));
        // The message of an error contains the messages of its causes, so the chain must not repeat them.
        let (mut chain, mut source) = (error.to_string(), error.source());
        while let Some(error) = source {
            chain += &format!(": {error}");
            source = error.source();
        }
        assert_eq!(chain.matches("disk").count(), 1, "{chain}");
    });
}

/// The messages of these errors contain that of the error inside, so their sources are its sources.
#[test]
fn the_source_of_an_error_is_that_of_the_error_inside() {
    #[derive(Debug)]
    struct Outer(std::num::ParseIntError);
    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer")
        }
    }
    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }
    fn outer() -> Outer {
        Outer("12x".parse::<i32>().expect_err("this is not a number"))
    }
    #[track_caller]
    fn assert_has_source(error: &dyn Error) {
        assert!(error.source().is_some_and(|source| source.is::<std::num::ParseIntError>()), "{error}");
    }
    let engine = engine(EngineKind::Naive, 1);
    let failed = engine.op("").try_submit((), |()| -> Result<(), _> { Err(outer().into()) }).unwrap().wait();
    let failed = failure(failed);
    assert_has_source(&failed);
    assert_has_source(&WaitError::Failed(failed));
    assert_has_source(&raddle::error::BuildError::Thread(std::io::Error::other(outer())));
    assert_has_source(&raddle::error::BuildError::Profile("a path".into(), std::io::Error::other(outer())));
}

/// Each operation's function returns the failure of the operation before, as a wait's error or as it is.
#[test]
fn chains_of_failures_of_any_length_can_be_shown_and_dropped() {
    const LENGTH: usize = if cfg!(miri) { 100 } else { 100_000 };
    let engine = engine(EngineKind::Naive, 1);
    let mut error =
        failure(engine.op("root").try_submit((), |()| -> Result<(), _> { Err("bad".into()) }).unwrap().wait());
    for number in 1..LENGTH {
        let before: raddle::error::BoxError =
            if number % 2 == 0 { WaitError::Failed(error).into() } else { error.into() };
        let handle = engine.op("next").try_submit((), move |()| -> Result<(), _> { Err(before) }).unwrap();
        error = failure(handle.wait());
    }
    let message = error.to_string();
    assert_eq!(message.matches("operation `next` pushed at ").count(), LENGTH - 1);
    assert!(message.ends_with(" failed: bad"), "the root is missing");
    assert_eq!(error.cause().to_string().len() + message.split_once("failed: ").unwrap().0.len() + 8, message.len());
    let debug = format!("{error:?}");
    assert!(debug.contains("next") && debug.contains("root") && debug.contains("bad"), "{debug}");
    assert!(format!("{:?}", error.cause()).contains("bad"));
    assert!(error.source().is_none());
    drop(error);
}

/// Failures may also be linked by the program's own errors and by payloads of panics.
#[test]
fn chains_of_failures_in_other_errors_and_payloads_can_be_dropped() {
    #[derive(Debug)]
    struct Wrapped(#[expect(dead_code)] OpError);
    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("wrapped")
        }
    }
    impl Error for Wrapped {}
    const LENGTH: usize = if cfg!(miri) { 100 } else { 50_000 };
    let engine = engine(EngineKind::Naive, 1);
    let drops = Drops::new();
    let first = drops.make();
    let mut error = failure(engine.op("root").submit((), move |()| panic_any(first)).unwrap().wait());
    for number in 1..LENGTH {
        let is_payload = number % 100 == 0;
        let handle = engine.op("next").try_submit((), move |()| -> Result<(), _> {
            if is_payload { panic_any(error) } else { Err(Wrapped(error).into()) }
        });
        error = failure(handle.unwrap().wait());
    }
    assert_eq!(drops.dropped(), 0);
    drop(error);
    drops.assert_all_gone();
}

/// Only the last clone of a failure drops its cause.
#[test]
fn a_failure_returned_by_another_operation_drops_the_payload_once() {
    let drops = Drops::new();
    let payload = drops.make();
    let engine = engine(EngineKind::Naive, 1);
    let first =
        failure(engine.op("first").try_submit((), move |()| -> Result<(), _> { panic_any(payload) }).unwrap().wait());
    let inner = first.clone();
    let second =
        failure(engine.op("second").try_submit((), move |()| -> Result<(), _> { Err(inner.into()) }).unwrap().wait());
    drop(first);
    assert_eq!((drops.dropped(), second.root().name()), (0, "first"));
    let shared = second.root().clone();
    drop(second);
    assert_eq!(drops.dropped(), 0);
    drop(shared);
    assert_eq!(drops.dropped(), 1);
}

fn assert_has_a_message<T: Debug + ToString>(error: T) {
    assert!(!error.to_string().is_empty());
    assert!(!format!("{error:?}").is_empty());
}

#[test]
fn every_error_has_a_message() {
    assert_has_a_message(PushError::ShutDown);
    assert_has_a_message(PushError::NoSuchDevice(Device::Gpu(1)));
    [
        WaitError::TimedOut,
        WaitError::WouldDeadlock(Default::default()),
        WaitError::TooManyWaiting,
        WaitError::ValueTaken,
    ]
    .into_iter()
    .for_each(assert_has_a_message);
    assert_has_a_message(WaitError::Refused(PushError::ShutDown));
    [ShutdownError::TimedOut, ShutdownError::InsideOperation, ShutdownError::StopInsideOperation]
        .into_iter()
        .for_each(assert_has_a_message);
}
