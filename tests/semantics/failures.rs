use super::*;

fn is_panic(error: &OpError, message: Option<&str>) -> bool {
    matches!(error.cause(), Cause::Panic(own) if own.as_deref() == message)
}

#[test]
fn a_panic_fails_the_operation_and_the_process_goes_on() {
    on_kinds(&KINDS, 1, |engine| {
        let number = 7;
        let (a, b, c) = (engine.var(0), engine.var(0), engine.var(0));
        engine.op("a").push(a.write(), |_| panic!("literal")).unwrap();
        engine.op("b").push(b.write(), move |_| panic!("formatted {number}")).unwrap();
        engine.op("c").push(c.write(), |_| panic_any(7_u64)).unwrap();
        assert!(is_panic(&failure(engine.get(&a)), Some("literal")));
        assert!(is_panic(&failure(engine.get(&b)), Some("formatted 7")));
        assert!(is_panic(&failure(engine.get(&c)), None));
        // The only worker is still there.
        assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
    });
}

#[test]
fn a_failure_tells_the_name_the_location_and_the_cause() {
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

/// The location is that of the program's own line for every way to push.
#[test]
fn every_way_to_push_tells_its_location() {
    on_kinds(&KINDS, 1, |engine| {
        let check = |line: u32, error: OpError| {
            assert_eq!((error.location().file(), error.location().line()), (file!(), line));
        };
        let value = engine.var(0);
        let fresh = || engine.clear_error(&value).unwrap();
        engine.push_sync(|_| Err::<(), _>("no"), [], [value.token()]).unwrap();
        check(line!() - 1, failure(engine.wait_for_var(&value)));
        fresh();
        engine.push_async(|_, done| done.fail("no"), [], [value.token()]).unwrap();
        check(line!() - 1, failure(engine.wait_for_var(&value)));
        fresh();
        let handle = engine.op("").submit(value.write(), |_| panic!("no")).unwrap();
        check(line!() - 1, failure(handle.wait()));
        fresh();
        let handle = engine.op("").submit_any(value.write(), |_| Err::<(), _>("no")).unwrap();
        check(line!() - 1, failure(handle.wait()));
        fresh();
        engine.op("").writes([value.token()]).push_sync(|_| Err::<(), _>("no")).unwrap();
        check(line!() - 1, failure(engine.wait_for_var(&value)));
        fresh();
        engine.op("").writes([value.token()]).push_async_any(raddle::cx(), |_, done| done.fail("no")).unwrap();
        check(line!() - 1, failure(engine.wait_for_var(&value)));
    });
}

#[test]
fn an_operation_that_names_a_failed_variable_is_skipped_and_passes_the_same_error_on() {
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
        // What a function has captured that did not run is dropped after the variables were passed on.
        engine.wait_for_all().expect("the failure was told");
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
fn a_skipped_reader_tells_through_its_handle() {
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
fn a_failing_reader_leaves_what_it_reads_alone() {
    on_kinds(&KINDS, 1, |engine| {
        let (read, written) = (engine.var(1), engine.var(2));
        engine.op("reader").push_any((read.read(), written.write()), |_| Err("no")).unwrap();
        assert_eq!(engine.get(&read).unwrap(), 1);
        assert_eq!(failure(engine.get(&written)).name(), "reader");
    });
}

#[test]
fn every_waiter_sees_the_same_error() {
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
        // It stays, and those who come later get it too.
        let first = failure(engine.wait_for_var(&value));
        let errors = lock(&errors).drain(..).collect::<Vec<_>>();
        assert_eq!(errors.len(), 12);
        assert!(errors.iter().all(|error| error.ptr_eq(&first) && error.name() == "fails"));
        assert!(failure(engine.wait_for_var_timeout(&value, Duration::ZERO)).ptr_eq(&first));
        engine.wait_for_all().expect("what was told is not reported again");
        block_on(engine.wait_for_all_async()).expect("nor here");
    });
}

#[test]
fn clear_error_ends_the_failure_in_push_order() {
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
fn clear_error_heals_one_variable_only() {
    on_kinds(&KINDS, 1, |engine| {
        let (a, b) = (engine.token(), engine.token());
        push_failing(&engine, "both", &[], &[&a, &b]);
        engine.clear_error(&a).unwrap();
        engine.wait_for_var(&a).unwrap();
        engine.wait_for_all().expect("a failure that was cleared somewhere is known");
        assert_eq!(failure(engine.wait_for_var(&b)).name(), "both");
        engine.clear_error(&b).unwrap();
        engine.wait_for_var(&b).unwrap();
    });
}

#[test]
fn overwrite_heals() {
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
fn an_operation_that_overwrites_is_skipped_for_what_it_reads() {
    on_kinds(&KINDS, 1, |engine| {
        let (source, target) = (engine.var(0), engine.var(0));
        push_failing(&engine, "source", &[], &[source.token()]);
        engine.op("").push((source.read(), target.overwrite()), |_| {}).unwrap();
        assert_eq!(failure(engine.get(&target)).name(), "source");
    });
}

#[test]
fn what_is_also_read_or_written_is_not_overwritten() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        push_failing(&engine, "fails", &[], &[&token]);
        engine.op("").overwrites([&token]).reads([&token]).push_sync(|_| {}).unwrap();
        engine.op("").overwrites([&token]).writes([&token]).push_sync(|_| {}).unwrap();
        assert_eq!(failure(engine.wait_for_var(&token)).name(), "fails");
        assert_eq!(token.version(), 0);
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

/// The operation that should have healed the variable fails, too. Somebody must be told of that.
#[test]
fn a_failed_overwrite_of_a_failed_variable_does_not_hide() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        engine.op("first").push_any(value.write(), |_| Err("no")).unwrap();
        engine.op("second").push_any(value.overwrite(), |_| Err("no")).unwrap();
        assert_told_of_second(&engine, value.token());
    });
}

#[test]
fn a_failed_no_skip_operation_on_a_failed_variable_does_not_hide() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        engine.op("first").push_any(value.write(), |_| Err("no")).unwrap();
        engine.op("second").run_always().push_any(value.write(), |_| Err("no")).unwrap();
        assert_told_of_second(&engine, value.token());
    });
}

/// A wait, and an operation that is skipped, must not return the failure of somebody else's operation.
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
        // The first failure was neither returned nor cleared.
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

/// That one of the places that tell of failures tells of `second`, before or after `first` was cleared.
fn assert_told_of_second(engine: &Engine, variable: &Token) {
    let mut told = vec![failure(engine.wait_for_var(variable)), failure(engine.wait_for_all())];
    engine.clear_error(variable).unwrap();
    engine.wait_for_var(variable).unwrap();
    if let Err(WaitError::Failed(error)) = engine.wait_for_all() {
        told.push(error);
    }
    told.extend(engine.clear_errors().map(|(error, _)| error));
    let names: Vec<_> = told.iter().map(OpError::name).collect();
    assert!(names.contains(&"second"), "nobody was told of the second failure, only of {names:?}");
}

#[test]
fn no_skip_runs() {
    on_kinds(&KINDS, 1, |engine| {
        let (failed, sound) = (engine.var(0), engine.var(0));
        push_failing(&engine, "fails", &[], &[failed.token()]);
        let ran = engine.op("").run_always().submit((failed.write(), sound.write()), |(a, b)| {
            *a += 1;
            *b += 1;
        });
        ran.unwrap().wait().unwrap();
        // Such a run neither ends the failure nor passes it on.
        assert_eq!(failure(engine.get(&failed)).name(), "fails");
        assert_eq!(engine.get(&sound).unwrap(), 1);
        assert_eq!((failed.version(), sound.version()), (1, 1));
        engine.clear_error(&failed).unwrap();
        assert_eq!(engine.get(&failed).unwrap(), 1);
    });
}

#[test]
fn a_failure_without_mutated_variables_is_reported_once_by_its_handle_or_by_wait_for_all() {
    on_kinds(&KINDS, 1, |engine| {
        let read = engine.var(0);
        let handle = engine.op("lonely").submit_any(read.read(), |_| Err::<(), _>("no")).unwrap();
        assert_eq!(failure(handle.wait()).name(), "lonely");
        engine.wait_for_all().expect("the handle has told of it");
        drop(engine.op("alone").submit_any(read.read(), |_| Err::<(), _>("no")).unwrap());
        engine.op("second").push((), |()| panic!("no")).unwrap();
        assert_eq!(failure(engine.wait_for_all()).name(), "alone");
        assert_eq!(failure(engine.wait_for_all()).name(), "second");
        engine.wait_for_all().expect("each was reported once");
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

/// How many failures an engine keeps; it counts those beyond.
const KEPT: usize = 4096;
const BEYOND: usize = 904;

/// Has `count` operations fail that mutate nothing; they have failed when this returns.
fn fail_many(engine: &Engine, count: usize) -> Vec<OpHandle<()>> {
    let submit = |_| engine.op("lonely").submit_any((), |()| Err::<(), _>("no")).unwrap();
    let handles: Vec<_> = (0..count).map(submit).collect();
    eventually("all operations have failed", || handles.iter().all(OpHandle::is_done));
    handles
}

fn tell(handles: impl IntoIterator<Item = OpHandle<()>>) {
    handles.into_iter().for_each(|handle| assert_eq!(failure(handle.wait()).name(), "lonely"));
}

#[test]
#[cfg_attr(miri, ignore = "needs 5,000 operations")]
fn clear_errors_counts_what_is_beyond_the_kept_failures() {
    on_kinds(&KINDS, 1, |engine| {
        drop(fail_many(&engine, KEPT + BEYOND));
        let (first, count) = engine.clear_errors().unwrap();
        assert_eq!((first.name(), count), ("lonely", 5000));
        assert!(engine.clear_errors().is_none());
        engine.wait_for_all().unwrap();
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs 5,000 operations")]
fn clear_errors_finds_what_is_beyond_kept_failures_that_handles_have_told_of() {
    on_kinds(&KINDS, 1, |engine| {
        let kept = fail_many(&engine, KEPT);
        drop(fail_many(&engine, BEYOND));
        tell(kept);
        let (first, count) = engine.clear_errors().expect("904 failures were not told");
        assert_eq!(count, 904);
        assert!(first.to_string().contains(": 904 operations failed"), "{first}");
        assert!(engine.clear_errors().is_none());
        engine.wait_for_all().unwrap();
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs 5,000 operations")]
fn what_handles_have_told_of_is_not_reported_again_however_much_it_is() {
    on_kinds(&KINDS, 1, |engine| {
        tell(fail_many(&engine, KEPT + BEYOND));
        engine.wait_for_all().expect("the handles have told of all");
        assert!(engine.clear_errors().is_none());
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs 5,000 operations")]
fn what_handles_have_told_of_beyond_the_kept_failures_is_not_counted() {
    on_kinds(&KINDS, 1, |engine| {
        let kept = fail_many(&engine, KEPT);
        let mut beyond = fail_many(&engine, BEYOND);
        // A failure that is told of twice is taken off once.
        for error in beyond.drain(..900).map(|handle| failure(handle.wait())) {
            drop(WaitError::from(error));
        }
        for handle in kept.into_iter().skip(1) {
            drop(failure(handle.wait()));
        }
        assert_eq!(failure(engine.wait_for_all()).name(), "lonely");
        let error = failure(engine.wait_for_all());
        assert!(error.to_string().contains(": 4 operations failed"), "{error}");
        engine.wait_for_all().expect("each was reported once");
        tell(beyond);
        engine.wait_for_all().expect("each was reported once");
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs 10,000 operations")]
fn a_handle_that_tells_late_takes_nothing_from_later_failures() {
    on_kinds(&KINDS, 1, |engine| {
        let kept = fail_many(&engine, KEPT);
        let beyond = fail_many(&engine, BEYOND);
        assert_eq!(engine.clear_errors().unwrap().1, 5000);
        drop(fail_many(&engine, KEPT + BEYOND));
        tell(kept);
        tell(beyond);
        assert_eq!(engine.clear_errors().unwrap().1, 5000);
        engine.wait_for_all().unwrap();
    });
}

/// None hides and none is taken twice, when handles tell of failures while others are cleared.
#[test]
#[cfg_attr(miri, ignore = "needs 60,000 operations")]
fn failures_are_cleared_once_while_handles_tell_of_others() {
    on_kinds(&THREADED, 2, |engine| {
        for round in 0..10 {
            let mut handles = fail_many(&engine, 6000).into_iter();
            let tellers: [Vec<_>; 2] = [(); 2].map(|()| handles.by_ref().take(3000).step_by(2).collect());
            let start = Meeting::new(3);
            let cleared: u64 = thread::scope(|scope| {
                for handles in tellers {
                    let start = &start;
                    scope.spawn(move || {
                        start.join();
                        tell(handles);
                    });
                }
                start.join();
                // More or less of them are told by then.
                (0..round * 100).for_each(|_| thread::yield_now());
                engine.clear_errors().map_or(0, |(_, count)| count)
            });
            assert!((3000..=6000).contains(&cleared), "{cleared} of 6,000 were cleared, and 3,000 were told");
            engine.wait_for_all().expect("all were told or cleared");
        }
    });
}

#[test]
fn wait_for_all_reports_the_earliest_failure() {
    on_kinds(&KINDS, 1, |engine| {
        let tokens: Vec<Token> = (0..3).map(|_| engine.token()).collect();
        for (name, token) in ["a", "b", "c"].into_iter().zip(tokens.iter().rev()) {
            // With one worker they fail in this order.
            push_failing(&engine, name, &[], &[token]);
        }
        for name in ["a", "b", "c"] {
            assert_eq!(failure(engine.wait_for_all()).name(), name);
        }
        engine.wait_for_all().expect("each was reported once");
        for token in &tokens {
            assert!(engine.wait_for_var(token).is_err(), "a failed variable goes on telling");
        }
    });
}

/// A failed variable that is gone, and of whose failure nobody was told, is still reported.
#[test]
fn the_failure_of_a_dropped_variable_does_not_hide() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        push_failing(&engine, "unseen", &[], &[&token]);
        drop(token);
        assert_eq!(failure(engine.wait_for_all()).name(), "unseen");
    });
}

#[test]
fn the_reported_failure_of_a_dropped_variable_is_over() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        push_failing(&engine, "seen", &[], &[&token]);
        assert!(engine.wait_for_var(&token).is_err());
        drop(token);
        engine.wait_for_all().unwrap();
    });
}

/// What the failure reached on its way does not matter, nor when that is freed.
#[test]
fn a_failure_that_was_told_and_cleared_is_not_reported_again() {
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

/// A failure never hides, also when it is the deletion that fails.
#[test]
fn a_deletion_that_panics_is_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let token = engine.token();
        engine.delete_variable(&token, |_| panic!("in the deletion")).unwrap();
        let told = [engine.wait_for_var(&token), engine.wait_for_all()];
        let told = told.into_iter().find_map(Result::err).expect("nobody is told of the panic");
        assert!(is_panic(&failure(Err::<(), _>(told)), Some("in the deletion")));
    });
}

#[test]
fn a_value_whose_drop_panics_is_reported() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(common::PanicsOnDrop("in the drop"));
        drop(value);
        assert!(is_panic(&failure(engine.wait_for_all()), Some("in the drop")));
    });
}

#[test]
fn a_skipped_async_operation_never_starts() {
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
        engine.wait_for_all().expect("the failure was told");
        drops.assert_all_gone();
    });
}

#[test]
fn an_error_of_a_deeper_cause_is_reached_through_source() {
    on_kinds(&[EngineKind::Naive], 1, |engine| {
        let token = engine.token();
        engine.push_sync(|_| Err::<(), _>(std::io::Error::other("disk")), [], [&token]).unwrap();
        let error = failure(engine.wait_for_var(&token));
        assert!(error.downcast_ref::<std::io::Error>().is_some_and(|error| error.to_string() == "disk"));
        // The message of each error is in that of the one before it, and is not repeated by the chain.
        let (mut chain, mut at) = (error.to_string(), error.source());
        while let Some(error) = at {
            chain += &format!(": {error}");
            at = error.source();
        }
        assert_eq!(chain.matches("disk").count(), 1, "{chain}");
    });
}

fn shown<T: Debug + ToString>(error: T) {
    assert!(!error.to_string().is_empty());
    assert!(!format!("{error:?}").is_empty());
}

#[test]
fn every_error_has_words() {
    shown(PushError::ShutDown);
    shown(PushError::NoSuchDevice(Device::Gpu(1)));
    [WaitError::TimedOut, WaitError::WouldDeadlock, WaitError::TooManyWaiting, WaitError::ValueTaken]
        .into_iter()
        .for_each(shown);
    shown(WaitError::Refused(PushError::ShutDown));
    [ShutdownError::TimedOut, ShutdownError::InsideOperation].into_iter().for_each(shown);
}
