//! Cancellation by handles, deadlines, groups, and shutdowns.

use raddle_testkit as common;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use common::{
    Drops, Gate, KINDS, MOMENT, PATIENCE, PanicsOnDrop, THREADED, block_on, block_on_within, eventually, failure, hold,
    lock, occupy, on_kinds, poll_once, watched,
};
use raddle::{
    Cancelled, Completion, Device, Engine, EngineKind, Group, OpContext, OpError, OpHandle, Shutdown, WaitError,
    completion, cx, error::Cause, gpu::SimulatedGpu, stream,
};

fn is_cancelled(error: &OpError) -> bool {
    matches!(error.cause(), Cause::Cancelled)
}

// -------------------------------------------------------------------------------------------------- by a handle ----

#[test]
fn an_operation_cancelled_before_its_turn_never_runs_and_in_its_turn_fails_what_it_mutates() {
    on_kinds(&KINDS, 1, |engine| {
        let (input, output) = (engine.var(1), engine.var(0));
        let gate = hold(&engine, input.as_ref());
        let drops = Drops::new();
        let captured = drops.make();
        let handle = engine
            .op("double")
            .submit((input.read(), output.write()), move |(_, _)| {
                let _captured = &captured;
                unreachable!("the operation was cancelled")
            })
            .unwrap();
        let _: &OpHandle<()> = &handle;
        let earlier = engine.op("").submit(output.read(), |output| *output);
        assert!(handle.cancel());
        assert_eq!(drops.dropped(), 1, "the call did not drop the function");
        assert!(!handle.cancel() && !handle.cancel_quietly(), "the operation was cancelled twice");
        assert!(handle.is_done());
        assert!(is_cancelled(&failure(handle.wait())), "the handle does not return the cancellation");
        assert_eq!(engine.pending(), 3, "the operation has lost its place");
        gate.open();
        assert!(is_cancelled(&failure(engine.wait_for_var(&output))));
        assert!(is_cancelled(&failure(earlier.unwrap().wait())), "a later operation was not skipped");
        engine.wait_for_var(&input).unwrap();
        assert_eq!((input.version(), output.version()), (1, 0));
        engine.wait_for_all().expect("no failure should be left");
    });
}

#[test]
fn operations_before_a_cancelled_one_are_untouched() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.as_ref());
        engine.op("first").push(value.write(), |value| *value = 1).unwrap();
        let before = engine.op("").submit(value.read(), |value| *value).unwrap();
        let cancelled = engine.op("second").submit(value.write(), |value| *value = 2).unwrap();
        let after = engine.op("").overwrites([&value]).submit((), |()| ()).unwrap();
        assert!(cancelled.cancel());
        gate.open();
        assert_eq!(before.wait().unwrap(), 1);
        after.wait().unwrap();
        assert_eq!(engine.get(&value).unwrap(), 1);
        cancelled.ignore();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_quietly_cancelled_operation_changes_nothing() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.as_ref());
        let cancelled = engine.op("").submit(value.write(), |value| *value = 2).unwrap();
        let after = engine.op("").submit(value.read(), |value| *value).unwrap();
        assert!(cancelled.cancel_quietly());
        gate.open();
        assert_eq!(after.wait().unwrap(), 0);
        assert!(is_cancelled(&failure(cancelled.wait())));
        assert_eq!(value.version(), 1, "a cancelled operation has mutated");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_quietly_cancelled_overwrite_clears_nothing() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.as_ref());
        engine.op("fail").try_push(value.write(), |_| Err("as planned".into())).unwrap();
        let cancelled = engine.op("").submit(value.overwrite(), |value| *value = 2).unwrap();
        assert!(cancelled.cancel_quietly());
        gate.open();
        assert_eq!(failure(engine.wait_for_var(&value)).name(), "fail");
        engine.wait_for_all().unwrap();
    });
}

/// A failure that the handle returns before the operation's turn comes is not reported again.
#[test]
fn a_wait_for_all_reports_only_a_loud_cancellation_that_no_wait_has_returned() {
    on_kinds(&THREADED, 1, |engine| {
        let gate = occupy(&engine, 1);
        let [loud, quiet, waited_for] = [(); 3].map(|()| engine.op("cancelled").submit((), |()| ()).unwrap());
        assert!(loud.cancel() && quiet.cancel_quietly() && waited_for.cancel());
        drop((loud, quiet));
        assert!(is_cancelled(&failure(waited_for.wait())));
        gate.open();
        assert!(is_cancelled(&failure(engine.wait_for_all())));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_running_operation_is_not_cancelled_but_can_ask_whether_it_should_be() {
    let test = |engine: Engine| {
        let value = engine.var(0);
        // On a naive engine, the operation runs on the thread that completes the holding operation, and another thread
        // cancels it.
        let gate = hold(&engine, value.as_ref());
        let (sender, receiver) = mpsc::channel();
        let handle = engine
            .op("")
            .submit((cx(), value.write()), move |(cx, value)| {
                *value = 1;
                (asks_until_cancelled(cx, &sender), thread::current().id())
            })
            .unwrap();
        gate.open();
        receiver.recv_timeout(PATIENCE).unwrap();
        assert!(!handle.cancel() && !handle.cancel());
        let (is_cancelled, thread) = handle.wait().unwrap();
        assert!(is_cancelled && thread != thread::current().id());
        assert_eq!(engine.get(&value).unwrap(), 1);
        engine.wait_for_all().unwrap();
    };
    on_kinds(&KINDS, 1, test);
    on_kinds(&KINDS, 2, test);
}

/// Reports that the operation is running, then waits until its cancellation was requested or [`PATIENCE`] has passed.
/// Returns whether the cancellation was requested.
fn asks_until_cancelled(cx: &OpContext<'_>, runs: &mpsc::Sender<()>) -> bool {
    assert!(!cx.is_cancelled());
    runs.send(()).unwrap();
    let limit = Instant::now() + PATIENCE;
    while !cx.is_cancelled() && Instant::now() < limit {
        thread::yield_now();
    }
    cx.is_cancelled()
}

#[test]
fn an_operation_that_is_complete_cannot_be_cancelled() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let mut handle = engine.op("").submit(value.write(), |value| *value = 1).unwrap();
        engine.wait_for_all().unwrap();
        assert!(!handle.cancel() && !handle.cancel_quietly());
        handle.wait_timeout(PATIENCE).unwrap();
        assert!(!handle.cancel());
        assert_eq!(engine.get(&value).unwrap(), 1);
    });
}

#[test]
fn a_clean_up_cannot_be_cancelled() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.as_ref());
        let handle = engine.op("").cleanup().submit(value.write(), |value| *value = 1).unwrap();
        let group = engine.group();
        group.cancel();
        let member = group.op("").cleanup().submit(value.write(), |value| *value += 1).unwrap();
        assert!(!handle.cancel());
        gate.open();
        handle.wait().unwrap();
        member.wait().unwrap();
        assert_eq!(engine.get(&value).unwrap(), 2);
    });
}

/// Whichever of the two wins, the function is dropped once, and the handle returns the matching result.
#[test]
fn either_a_cancellation_or_the_start_of_the_operation_wins() {
    on_kinds(&THREADED, 2, |engine| {
        let (ran, mut cancelled) = (Arc::new(AtomicUsize::new(0)), 0);
        let drops = Drops::new();
        const ROUNDS: usize = 2_000;
        for _ in 0..ROUNDS {
            let (ran, item) = (Arc::clone(&ran), drops.make());
            let handle = engine.op("").submit((), move |()| {
                let _item = &item;
                ran.fetch_add(1, Relaxed);
            });
            let handle = handle.unwrap();
            let won = handle.cancel();
            cancelled += usize::from(won);
            assert_eq!(handle.wait().is_err(), won);
        }
        engine.wait_for_all().unwrap();
        assert_eq!(ran.load(Relaxed) + cancelled, ROUNDS);
        assert_eq!(drops.dropped(), ROUNDS);
    });
}

#[test]
fn a_cancelled_handle_wakes_its_waiters() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.as_ref());
        let handle = engine.op("").submit(value.write(), |_| ()).unwrap();
        thread::scope(|scope| {
            let handle = &handle;
            scope.spawn(move || {
                thread::sleep(MOMENT);
                assert!(handle.cancel());
            });
            eventually("the handle is done", || handle.is_done());
        });
        assert!(is_cancelled(&failure(block_on(handle))));
        gate.open();
        engine.wait_for_all().unwrap();
    });
}

/// Dropping the function may use the engine. If the drop panics, `cancel` first completes its work and then panics.
#[test]
fn the_drop_of_a_cancelled_function_is_program_code() {
    struct Uses(Engine);
    impl Drop for Uses {
        fn drop(&mut self) {
            self.0.op("pushed by a drop").submit((), |()| ()).unwrap().wait().unwrap();
            panic!("as planned");
        }
    }
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.as_ref());
        let uses = Uses(engine.clone());
        let handle = engine
            .op("")
            .submit(value.write(), move |_| {
                let _uses = &uses;
            })
            .unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| handle.cancel())).is_err());
        assert!(is_cancelled(&failure(handle.wait())));
        gate.open();
        assert!(is_cancelled(&failure(engine.wait_for_var(&value))));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_refused_push_drops_a_function_that_could_be_cancelled() {
    on_kinds(&KINDS, 1, |engine| {
        let drops = Drops::new();
        let value = engine.var(0);
        engine.delete_variable(&value, |_| ()).unwrap();
        let item = drops.make();
        let refused = engine.op("").submit(value.write(), move |_| {
            let _item = &item;
        });
        assert!(refused.is_err());
        assert_eq!(drops.dropped(), 1);
        engine.wait_for_all().unwrap();
    });
}

// ---------------------------------------------------------------------------------------------------- operators ----

#[test]
fn each_run_of_an_operator_has_its_own_handle() {
    on_kinds(&KINDS, 2, |engine| {
        let level = engine.var(2u32);
        let drain = engine
            .op("drain")
            .try_operator(level.overwrite(), |level| {
                *level = level.checked_sub(1).ok_or("empty")?;
                Ok(())
            })
            .unwrap();
        let runs: Vec<_> = (0..4).map(|_| drain.submit().unwrap()).collect();
        let results: Vec<_> = runs.into_iter().map(|run| run.wait().is_ok()).collect();
        assert_eq!(results, [true, true, false, false]);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn one_run_of_an_operator_is_cancelled() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let gate = hold(&engine, value.as_ref());
        let add = engine.op("add").operator(value.write(), |value| *value += 1).unwrap();
        let runs: Vec<_> = (0..3).map(|_| add.submit().unwrap()).collect();
        drop(add);
        assert!(runs[1].cancel_quietly());
        gate.open();
        let results: Vec<_> = runs.into_iter().map(|run| run.wait().is_ok()).collect();
        assert_eq!(results, [true, false, true]);
        assert_eq!(engine.get(&value).unwrap(), 2);
    });
}

#[test]
fn the_handle_of_an_asynchronous_run_waits_for_its_completion() {
    on_kinds(&KINDS, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let disk = engine.token();
        let flush = engine.op("flush").writes([&disk]).operator(completion(), move |done| sender.send(done).unwrap());
        let flush = flush.unwrap();
        let mut runs: Vec<_> = (0..3).map(|_| flush.submit().unwrap()).collect();
        let next = || receiver.recv_timeout(PATIENCE).unwrap();
        let first = next();
        assert!(matches!(runs[0].wait_timeout(MOMENT), Err(WaitError::TimedOut)));
        first.complete();
        runs[0].wait_timeout(PATIENCE).unwrap();
        next().fail("the disk is full");
        assert!(failure(runs[1].wait_timeout(PATIENCE)).to_string().ends_with("the disk is full"));
        let skipped = failure(runs[2].wait_timeout(PATIENCE));
        assert!(skipped.to_string().ends_with("the disk is full"), "the third run was not skipped");
        engine.clear_error(&disk).unwrap();
        let lost = flush.submit().unwrap();
        drop(next());
        assert!(matches!(failure(lost.wait()).cause(), Cause::LostCompletion));
        engine.wait_for_all().unwrap();
    });
}

/// The run is complete although its function has not returned.
#[test]
fn the_function_of_an_asynchronous_run_may_wait_for_its_own_handle_after_its_completion() {
    on_kinds(&THREADED, 1, |engine| {
        let (give, own) = mpsc::channel::<OpHandle<()>>();
        let (own, (sender, result)) = (Mutex::new(own), mpsc::channel());
        let run = engine.op("own").operator(completion(), move |done| {
            done.complete();
            let own = lock(&own).recv_timeout(PATIENCE).unwrap();
            sender.send(own.wait()).unwrap();
        });
        give.send(run.unwrap().submit().unwrap()).unwrap();
        result.recv_timeout(PATIENCE).unwrap().expect("the run is complete");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn the_handle_of_an_asynchronous_run_returns_the_panic_in_its_function() {
    on_kinds(&KINDS, 1, |engine| {
        let run = engine.op("").operator(completion(), |_done| panic!("as planned")).unwrap().submit().unwrap();
        assert!(matches!(failure(run.wait()).cause(), Cause::Panic(_)));
        engine.wait_for_all().unwrap();
    });
}

/// The handle is awaited while the function runs.
#[test]
fn the_handle_of_an_asynchronous_run_that_panics_wakes_its_task() {
    on_kinds(&THREADED, 1, |engine| {
        for refers in [false, true] {
            let (gate, value) = (Gate::new(), engine.var(0));
            let inside = gate.clone();
            let run = if refers {
                engine.op("").operator((value.overwrite(), completion()), move |(_, done)| {
                    inside.pass();
                    drop(done);
                    panic!("as planned");
                })
            } else {
                engine.op("").operator(completion(), move |_done| {
                    inside.pass();
                    panic!("as planned");
                })
            };
            let mut run = run.unwrap().submit().unwrap();
            assert!(poll_once(&mut run).is_pending());
            let opener = thread::spawn(move || {
                thread::sleep(MOMENT);
                gate.open();
            });
            let waited = block_on_within(run, PATIENCE).expect("the task should be woken");
            assert!(matches!(failure(waited).cause(), Cause::Panic(_)));
            opener.join().unwrap();
        }
        engine.wait_for_all().unwrap();
    });
}

// ---------------------------------------------------------------------------------------------------- deadlines ----

#[test]
fn an_operation_whose_deadline_has_passed_fails_in_its_turn() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let now = Instant::now();
        let late =
            engine.op("late").deadline(now).submit(value.write(), |_| unreachable!("the deadline has passed")).unwrap();
        let _: &OpHandle<()> = &late;
        assert!(matches!(failure(late.wait()).cause(), Cause::DeadlinePassed));
        assert!(matches!(failure(engine.wait_for_var(&value)).cause(), Cause::DeadlinePassed));
        engine.clear_error(&value).unwrap();
        let in_time = engine.op("in time").deadline(now + PATIENCE);
        in_time.push(value.write(), |value| *value = 1).unwrap();
        assert_eq!(engine.get(&value).unwrap(), 1);
        engine.op("clean-up").deadline(now).cleanup().push(value.write(), |value| *value = 2).unwrap();
        assert_eq!(engine.get(&value).unwrap(), 2);
        engine.wait_for_all().unwrap();
    });
}

/// The deadline passes after the push. Operations of every kind compare it when their turn comes.
#[test]
fn a_deadline_that_passes_while_an_operation_waits_for_its_turn_cancels_the_operation() {
    on_kinds(&KINDS, 1, |engine| {
        let held = engine.var(0);
        let outputs: Vec<_> = (0..6).map(|_| engine.var(0)).collect();
        let gate = hold(&engine, held.token());
        let (soon, group) = (Instant::now() + MOMENT, engine.group());
        let accesses = |n: usize| (held.read(), outputs[n].write());
        let late = |name: &'static str| engine.op(name).deadline(soon);
        let submitted = late("submitted").submit(accesses(0), |_| unreachable!("the deadline has passed")).unwrap();
        let _: &OpHandle<()> = &submitted;
        let operator = late("operator").operator(accesses(1), |_| unreachable!("the deadline has passed")).unwrap();
        let run = operator.submit().unwrap();
        let future = late("future").submit_future(accesses(2), |_| async { unreachable!("the deadline has passed") });
        let future = future.unwrap();
        let _: &OpHandle<()> = &future;
        late("asynchronous")
            .push((accesses(3), completion()), |(_, _)| unreachable!("the deadline has passed"))
            .unwrap();
        let member = group.op("member").deadline(soon);
        member.push(accesses(4), |_| unreachable!("the deadline has passed")).unwrap();
        let in_time = engine.op("in time").deadline(soon + PATIENCE);
        in_time.push(accesses(5), |(_, output)| *output = 1).unwrap();
        thread::sleep(2 * MOMENT);
        assert!(!submitted.is_done(), "a deadline shortened the wait for the turn");
        gate.open();
        let passed = |error: &OpError, name: &str| {
            assert!(matches!(error.cause(), Cause::DeadlinePassed) && error.name() == name, "{error}");
        };
        passed(&failure(submitted.wait()), "submitted");
        passed(&failure(run.wait()), "operator");
        passed(&failure(block_on(future)), "future");
        passed(&failure(group.wait()), "member");
        for (output, name) in outputs.iter().zip(["submitted", "operator", "future", "asynchronous", "member"]) {
            passed(&failure(engine.wait_for_var(output)), name);
            assert_eq!(output.version(), 0, "{name} has mutated its variable");
        }
        assert_eq!(engine.get(&outputs[5]).unwrap(), 1);
        engine.wait_for_all().unwrap();
    });
}

/// The parent starts in time. Its child, which inherits the deadline, was pushed in time but starts too late.
#[test]
fn a_child_is_cancelled_by_a_deadline_of_its_parent_that_passes_after_the_push() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let deadline = Instant::now() + 4 * MOMENT;
        let parent = engine.op("parent").deadline(deadline).with_children().submit((value.write(), cx()), {
            let value = value.clone();
            move |(_, cx)| {
                cx.child("child").push(value.write(), |_| unreachable!("the deadline has passed")).unwrap();
                let in_time = Instant::now() < deadline;
                thread::sleep(deadline.saturating_duration_since(Instant::now()) + MOMENT);
                assert!(in_time, "the child was pushed too late, which tests nothing");
            }
        });
        let failed = failure(parent.unwrap().wait());
        assert!(matches!(failed.cause(), Cause::DeadlinePassed) && failed.name() == "child", "{failed}");
        assert!(matches!(failure(engine.wait_for_var(&value)).cause(), Cause::DeadlinePassed));
        engine.wait_for_all().unwrap();
    });
}

// ------------------------------------------------------------------------------------------------------- groups ----

#[test]
fn a_wait_for_a_group_covers_its_operations_and_no_others() {
    on_kinds(&KINDS, 2, |engine| {
        let (gate, other) = (engine.token(), engine.token());
        let held = hold(&engine, &gate);
        let group = engine.group();
        let inner = group.group();
        let count = Arc::new(AtomicUsize::new(0));
        for group in [&group, &inner] {
            for _ in 0..10 {
                let count = Arc::clone(&count);
                group.op("").writes([&other]).push((), move |()| _ = count.fetch_add(1, Relaxed)).unwrap();
            }
        }
        group.wait().unwrap();
        assert_eq!(count.load(Relaxed), 20);
        assert_eq!((group.pending(), inner.pending()), (0, 0));
        inner.op("").reads([&gate]).push((), |()| ()).unwrap();
        assert_eq!((group.pending(), inner.pending()), (1, 1));
        group.op("").reads([&gate]).push((), |()| ()).unwrap();
        assert!(matches!(group.wait_timeout(MOMENT), Err(WaitError::TimedOut)));
        let waits = [group.wait_async(), inner.wait_async()];
        held.open();
        block_on(async {
            for wait in waits {
                wait.await.unwrap();
            }
        });
        assert_eq!(group.pending(), 0);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_group_reports_the_failure_of_the_member_that_was_pushed_first_and_none_from_outside() {
    on_kinds(&KINDS, 2, |engine| {
        let (first, second, outside) = (engine.var(0), engine.var(0), engine.var(0));
        engine.op("outside").try_push(outside.write(), |_| Err("not the group's".into())).unwrap();
        let held = hold(&engine, first.as_ref());
        let group = engine.group();
        group.op("first").try_push(first.write(), |_| Err("1".into())).unwrap();
        group.op("second").try_push(second.write(), |_| Err("2".into())).unwrap();
        assert!(matches!(failure(engine.wait_for_var(&second)), error if error.name() == "second"));
        held.open();
        assert_eq!(failure(group.wait()).name(), "first");
        group.wait().expect("each failure should be reported once");
        assert_eq!(failure(engine.wait_for_all()).name(), "outside");
        engine.wait_for_all().expect("no failure should be left");
        // A skipped operation fails with the failure that caused the skip.
        group.op("skipped").push(outside.read(), |_| unreachable!("`skipped` should be skipped")).unwrap();
        assert_eq!(failure(group.wait()).name(), "outside");
    });
}

#[test]
fn a_group_keeps_the_earliest_of_thousands_of_failures() {
    on_kinds(&KINDS, 2, |engine| {
        let group = engine.group();
        for number in 0..2500 {
            group.op(format!("operation {number}")).try_push((), |()| Err("on purpose".into())).unwrap();
        }
        assert_eq!(failure(group.wait()).name(), "operation 0");
        // The group has kept the failures of the first 1,024 operations, which all count as reported now.
        assert_eq!(engine.clear_errors().map(|(_, left)| left), Some(2500 - 1024));
    });
}

/// A failure from outside the group counts as reported only once the group has returned it.
#[test]
fn a_failure_from_outside_that_a_group_has_not_returned_is_not_lost() {
    on_kinds(&KINDS, 1, |engine| {
        let outside = engine.var(0);
        let group = engine.group();
        group.op("first").try_push((), |()| Err("1".into())).unwrap();
        engine.op("outside").try_push(outside.write(), |_| Err("2".into())).unwrap();
        group.op("skipped").push(outside.read(), |_| ()).unwrap();
        assert_eq!(failure(group.wait()).name(), "first");
        assert_eq!(failure(engine.wait_for_all()).name(), "outside");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_inner_group_reports_to_the_group_around_it() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group();
        let inner = group.group();
        inner.op("inner").try_push((), |()| Err("1".into())).unwrap();
        group.op("outer").try_push((), |()| Err("2".into())).unwrap();
        assert_eq!(failure(group.wait()).name(), "inner");
        assert_eq!(failure(inner.wait()).name(), "inner");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn failures_of_a_group_without_a_wait_are_reported_by_a_wait_for_all() {
    on_kinds(&KINDS, 1, |engine| {
        engine.group().op("fails").try_push((), |()| Err("1".into())).unwrap();
        assert_eq!(failure(engine.wait_for_all()).name(), "fails");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn cancelling_a_group_cancels_inner_groups_and_later_members() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(0);
        let group = engine.group();
        let (inner, beside) = (group.group(), engine.group());
        let held = hold(&engine, value.as_ref());
        let members = [&group, &inner].map(|group| group.op("").submit(value.overwrite(), |_| ()).unwrap());
        let other = beside.op("").submit(value.overwrite(), |value| *value = 1).unwrap();
        group.cancel();
        assert!(group.is_cancelled() && inner.is_cancelled() && group.group().is_cancelled());
        assert!(!beside.is_cancelled());
        let later = inner.op("").submit((), |()| ()).unwrap();
        held.open();
        for member in members {
            assert!(is_cancelled(&failure(member.wait())));
        }
        assert!(is_cancelled(&failure(later.wait())));
        other.wait().unwrap();
        assert!(is_cancelled(&failure(group.wait())));
        assert_eq!(engine.get(&value).unwrap(), 1);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn members_of_a_quietly_cancelled_group_change_nothing_and_their_handles_return() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.var(5);
        let group = engine.group();
        group.cancel_quietly();
        group.cancel();
        let member = group.op("").submit(value.write(), |value| *value = 1).unwrap();
        assert!(is_cancelled(&failure(member.wait())));
        group.op("").push(value.write(), |value| *value = 2).unwrap();
        let operator = group.op("").operator(value.write(), |value| *value = 3).unwrap();
        operator.push().unwrap();
        assert!(is_cancelled(&failure(operator.submit().unwrap().wait())));
        group.wait().unwrap();
        assert_eq!((engine.get(&value).unwrap(), value.version()), (5, 0));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn the_drop_of_its_guard_ends_a_group_of_which_no_failure_is_left() {
    on_kinds(&KINDS, 2, |engine| {
        let (held, value, service) = (engine.var(0), engine.var(0), engine.group());
        let gate = hold(&engine, held.as_ref());
        let request = service.group().cancel_on_drop();
        let (drops, (sender, receiver)) = (Drops::new(), mpsc::channel());
        let [in_future, in_function] = [drops.make(), drops.make()];
        request.op("early").try_push((), |()| Err("1".into())).unwrap();
        request.group().op("nested").try_push((), |()| Err("2".into())).unwrap();
        request.op("running").push(completion(), move |done| sender.send(done).unwrap()).unwrap();
        let (answer, answered) = tokio::sync::oneshot::channel::<()>();
        let (falls_asleep, fell_asleep) = mpsc::channel();
        let asleep = move |value| async move {
            let _owned = (value, in_future);
            falls_asleep.send(()).unwrap();
            _ = answered.await;
        };
        request.op("asleep").push_future(value.write(), asleep).unwrap();
        request.op("queued").push(held.write(), move |_| drop(in_function)).unwrap();
        let done = receiver.recv_timeout(PATIENCE).unwrap();
        fell_asleep.recv_timeout(PATIENCE).unwrap();
        let group = request.clone();
        drop(request);
        group.op("late").push(held.write(), |_| unreachable!("the group was cancelled")).unwrap();
        done.fail("3");
        gate.open();
        service.wait().expect("the group around it has no failure");
        assert_eq!((group.pending(), drops.dropped(), answer.is_closed()), (0, 2, true));
        engine.wait_for_all().expect("no failure should be left");
        assert_eq!((engine.get(&held).unwrap(), held.version()), (0, 1), "an operation was not cancelled quietly");
        assert!(is_cancelled(&failure(engine.wait_for_var(&value))), "the started future has failed its variable");
        assert_eq!(failure(group.wait()).name(), "early", "the group itself returns its failures");
    });
}

#[test]
fn a_guard_ignores_only_failures_that_originate_in_its_group() {
    on_kinds(&KINDS, 1, |engine| {
        let (outside, service) = (engine.var(0), engine.group());
        let request = service.group().cancel_on_drop();
        engine.op("outside").try_push(outside.write(), |_| Err("1".into())).unwrap();
        request.op("skipped").push(outside.read(), |_| ()).unwrap();
        service.op("beside").try_push((), |()| Err("2".into())).unwrap();
        eventually("the operations end", || engine.pending() == 0);
        drop(request);
        assert_eq!(failure(service.wait()).name(), "beside");
        assert_eq!(failure(engine.wait_for_all()).name(), "outside");
        engine.wait_for_all().unwrap();
        let scope = engine.try_scope(|s| {
            let _cancelled = s.group().cancel_on_drop();
            s.op("in a scope").try_push((), |()| Err("3".into()))?;
            s.group().wait()
        });
        assert_eq!(failure(scope).name(), "in a scope");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_running_member_can_ask_whether_its_group_was_cancelled() {
    let test = |engine: Engine| {
        for is_outer_cancelled in [false, true] {
            let outer = engine.group();
            let group = outer.group();
            let cancelled = if is_outer_cancelled { &outer } else { &group };
            let (sender, receiver) = mpsc::channel();
            thread::scope(|scope| {
                // On a naive engine, the member runs inside its push.
                let member = scope.spawn(|| {
                    let member = group.op("").submit(cx(), move |cx| asks_until_cancelled(cx, &sender));
                    member.unwrap().wait().unwrap()
                });
                receiver.recv_timeout(PATIENCE).unwrap();
                cancelled.cancel();
                assert!(member.join().unwrap());
            });
            group.wait().unwrap();
        }
    };
    on_kinds(&KINDS, 1, test);
    on_kinds(&KINDS, 2, test);
}

#[test]
fn a_member_that_waits_for_its_group_is_refused() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group();
        let inner = group.group();
        let (own, around, inside) = (inner.clone(), group.clone(), inner.group());
        let waits = inner.op("").submit((), move |()| {
            let refused = |wait: Result<(), WaitError>| matches!(wait, Err(WaitError::WouldDeadlock(_)));
            inside.op("").push((), |()| ()).unwrap();
            inside.wait().unwrap();
            (refused(own.wait()), refused(around.wait()), refused(around.wait_timeout(MOMENT)))
        });
        assert_eq!(waits.unwrap().wait().unwrap(), (true, true, true));
        group.wait().unwrap();
        let (sender, receiver) = mpsc::channel();
        let own = group.clone();
        group
            .op("")
            .push(completion(), move |done| {
                sender.send(own.wait_timeout(MOMENT).is_err()).unwrap();
                done.complete();
            })
            .unwrap();
        assert!(receiver.recv_timeout(PATIENCE).unwrap());
        group.wait().unwrap();
    });
}

#[test]
fn asynchronous_members_are_counted_until_their_completion() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group();
        let (sender, receiver) = mpsc::channel();
        let disk = engine.token();
        for _ in 0..3 {
            let sender = sender.clone();
            let member = group.op("flush").overwrites([&disk]);
            member.push(completion(), move |done| sender.send(done).unwrap()).unwrap();
        }
        let next = || receiver.recv_timeout(PATIENCE).unwrap();
        next().complete();
        next().fail("the disk is full");
        let last = next();
        assert!(matches!(group.wait_timeout(MOMENT), Err(WaitError::TimedOut)));
        assert_eq!(group.pending(), 1);
        drop(last);
        let error = failure(group.wait());
        assert!(error.to_string().ends_with("the disk is full"), "{error}");
        group.op("").push(completion(), |_done| panic!("as planned")).unwrap();
        assert!(matches!(failure(group.wait()).cause(), Cause::Panic(_)));
        engine.wait_for_all().unwrap();
    });
}

/// A wait for a group returns only once the captures of its operations, and the results that no handle can return, have
/// been dropped.
#[test]
fn a_member_is_counted_until_its_result_was_dropped() {
    on_kinds(&KINDS, 2, |engine| {
        let group = engine.group();
        let drops = Drops::new();
        for round in 1..=100 {
            let item = drops.make();
            drop(group.op("").submit((), move |()| item).unwrap());
            group.wait().unwrap();
            assert_eq!(drops.dropped(), round);
        }
    });
}

#[test]
fn a_refused_push_leaves_the_group() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group();
        let value = engine.var(0);
        engine.delete_variable(&value, |_| ()).unwrap();
        assert!(group.op("").push(value.write(), |_| ()).is_err());
        assert_eq!(group.pending(), 0);
        engine.shutdown(Shutdown::Drain, None).unwrap();
        assert!(group.op("").push((), |()| ()).is_err());
        assert!(group.op("").submit((), |()| ()).is_err());
        assert_eq!(group.pending(), 0);
        group.wait().unwrap();
    });
}

/// The push may be refused after the operation has entered a queue.
#[test]
fn a_member_that_is_refused_late_leaves_its_group_even_if_the_drop_of_its_function_panics() {
    on_kinds(&THREADED, 2, |engine| {
        for _ in 0..300 {
            let (group, kept, deleted) = (engine.group(), engine.var(0), engine.var(0));
            let (other, same) = (engine.downgrade(), deleted.clone());
            let deleter = thread::spawn(move || other.delete_variable(&same, |_| ()).unwrap());
            let bomb = PanicsOnDrop("as planned");
            let pushed = catch_unwind(AssertUnwindSafe(|| {
                group.op("").push((kept.write(), deleted.write()), move |_| std::mem::forget(bomb))
            }));
            deleter.join().unwrap();
            let _: Result<_, _> = pushed;
            group.wait_timeout(PATIENCE).map_or_else(|error| assert!(!matches!(error, WaitError::TimedOut)), |()| ());
        }
        while engine.wait_for_all().is_err() {}
    });
}

/// The naive engine checks twice whether a device operation may run.
#[test]
fn a_device_operation_whose_group_is_cancelled_while_it_starts_has_one_result() {
    for kind in KINDS {
        watched(move || {
            let engine = Engine::builder().kind(kind).workers(1).pin(false).gpu(SimulatedGpu::default());
            let engine = engine.build().unwrap();
            let memory = engine.device_var::<u32>(Device::Gpu(0), 1).unwrap();
            for round in 0..500 {
                let group = engine.group();
                let other = group.clone();
                let canceller = thread::spawn(move || {
                    (0..round % 64).for_each(|_| std::hint::spin_loop());
                    other.cancel_quietly();
                });
                for _ in 0..4 {
                    group.op("").on(Device::Gpu(0)).push((memory.write(), stream()), |(_, _)| ()).unwrap();
                }
                canceller.join().unwrap();
                group.wait().unwrap();
            }
            engine.wait_for_all().unwrap();
        });
    }
}

/// The naive engine claims the operation before it opens a stream, and checks again afterwards. Here, no stream can be
/// opened. The logger cancels the group when that is logged.
#[test]
fn a_device_operation_whose_group_is_cancelled_after_its_claim_is_not_cancelled() {
    watched(|| {
        let gpu = SimulatedGpu::default();
        let engine = Engine::builder().kind(EngineKind::Naive).gpu(gpu.clone()).build().unwrap();
        let group = engine.group();
        // A naive engine logs on the pushing thread; other threads are those of other tests.
        let (cancelled, this) = (group.clone(), thread::current().id());
        common::logger::log_to(move |text| {
            if text.contains("is lost") && thread::current().id() == this {
                cancelled.cancel_quietly();
            }
        });
        gpu.lose();
        group.op("claimed").on(Device::Gpu(0)).push(stream(), |_| ()).unwrap();
        let failed = failure(group.wait());
        assert!(matches!(failed.cause(), Cause::Device(_)), "{failed:?}");
        assert!(group.is_cancelled(), "the loss was not logged");
        common::logger::log_to(|_| {});
    });
}

#[test]
fn any_number_of_threads_may_push_to_a_group_and_wait_for_it() {
    on_kinds(&KINDS, 2, |engine| {
        let group = engine.group();
        let total = engine.var(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        group.op("").push(total.write(), |total| *total += 1).unwrap();
                    }
                    group.wait().unwrap();
                });
            }
        });
        assert_eq!(group.pending(), 0);
        assert_eq!(engine.get(&total).unwrap(), 400);
    });
}

#[test]
fn a_group_does_not_keep_the_engine_open() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group();
        group.op("").push((), |()| ()).unwrap();
        drop(engine);
        assert!(group.op("").push((), |()| ()).is_err());
        group.wait().unwrap();
    });
}

#[test]
fn a_shutdown_cancels_members() {
    on_kinds(&THREADED, 1, |engine| {
        let group = engine.group();
        let value = engine.var(0);
        let held = hold(&engine, value.as_ref());
        group.op("").push(value.write(), |_| ()).unwrap();
        engine.notify_shutdown();
        held.open();
        assert!(is_cancelled(&failure(group.wait())));
        engine.shutdown(Shutdown::Cancel, Some(Duration::from_secs(60))).unwrap();
    });
}

// ---------------------------------------------------------------------------------------- told by an event ----

/// Cancels a running member of a group inside another group.
type CancelMember = fn(&Engine, &Group, &Group, &OpHandle<()>);

const CANCELS: [(&str, CancelMember); 4] = [
    ("handle", |_, _, _, handle| _ = handle.cancel()),
    ("group", |_, _, group, _| group.cancel()),
    ("outer group", |_, outer, _, _| outer.cancel_quietly()),
    ("shutdown", |engine, _, _, _| engine.notify_shutdown()),
];

/// Runs an operation that passes its `Cancelled` to this thread, cancels it, and then lets it end.
fn cancelled_by(engine: &Engine, cancel: CancelMember, look: impl FnOnce(Cancelled, &dyn Fn()) + Send) {
    let outer = engine.group();
    let group = outer.group();
    let (sender, receiver) = mpsc::channel();
    let handle = group.op("told").submit((cx(), completion()), move |(cx, done): (&OpContext<'_>, Completion)| {
        sender.send((cx.cancelled(), done)).unwrap();
    });
    let handle = handle.unwrap();
    let (cancelled, done) = receiver.recv_timeout(PATIENCE).unwrap();
    look(cancelled, &|| cancel(engine, &outer, &group, &handle));
    done.complete();
    outer.wait().unwrap();
}

#[test]
fn a_running_operation_is_told_that_it_was_cancelled() {
    for (what, cancel) in CANCELS {
        on_kinds(&KINDS, 1, move |engine| {
            cancelled_by(&engine, cancel, |mut cancelled, cancel| {
                assert!(poll_once(&mut cancelled).is_pending(), "{what}");
                thread::scope(|scope| {
                    let told = scope.spawn(move || block_on(cancelled));
                    thread::sleep(MOMENT / 10);
                    assert!(!told.is_finished(), "{what}");
                    cancel();
                });
            });
        });
    }
}

#[test]
fn an_operation_is_told_although_it_asks_after_the_cancellation() {
    for (what, cancel) in CANCELS {
        on_kinds(&THREADED, 1, move |engine| {
            let outer = engine.group();
            let group = outer.group();
            let (begins, goes_on) = (Gate::new(), Gate::new());
            let (begun, waits) = (begins.clone(), goes_on.clone());
            let handle = group.op("asks").submit(cx(), move |cx: &OpContext<'_>| {
                begun.open();
                waits.pass();
                block_on(cx.cancelled());
                let (sender, receiver) = mpsc::channel();
                let _called = cx.cancelled().call(move || sender.send(()).unwrap());
                receiver.recv().expect("the function was called");
            });
            let handle = handle.unwrap();
            begins.pass();
            cancel(&engine, &outer, &group, &handle);
            goes_on.open();
            block_on_within(handle, PATIENCE).expect(what).unwrap();
        });
    }
}

#[test]
fn a_running_operation_is_told_that_its_deadline_has_passed() {
    on_kinds(&KINDS, 1, |engine| {
        for time in [MOMENT, Duration::ZERO] {
            let (sender, receiver) = mpsc::channel();
            let builder = engine.op("late").deadline(Instant::now() + MOMENT);
            let late = builder.submit((cx(), completion()), move |(cx, done): (&OpContext<'_>, Completion)| {
                assert!(!cx.is_cancelled());
                thread::sleep(MOMENT - time);
                sender.send((cx.cancelled(), done)).unwrap();
                while !cx.is_cancelled() {
                    thread::yield_now();
                }
            });
            let (cancelled, done) = receiver.recv_timeout(PATIENCE).unwrap();
            block_on_within(cancelled, PATIENCE).expect("the operation should be told");
            done.complete();
            late.unwrap().wait().unwrap();
        }
    });
}

#[test]
fn a_function_is_called_on_the_thread_that_cancels_unless_its_guard_was_dropped() {
    for (what, cancel) in CANCELS {
        on_kinds(&KINDS, 1, move |engine| {
            cancelled_by(&engine, cancel, |cancelled, cancel| {
                let (calls, called) = mpsc::channel();
                let _called = cancelled.call(move || calls.send(thread::current().id()).unwrap());
                cancel();
                assert_eq!(called.try_recv().expect(what), thread::current().id(), "{what}");
                cancel();
                assert!(called.try_recv().is_err(), "{what}: the function was called twice");
            });
            let engine = raddle_testkit::engine(engine.kind(), 1);
            cancelled_by(&engine, cancel, |cancelled, cancel| {
                let drops = Drops::new();
                let captured = drops.make();
                let call = move || {
                    let _captured = &captured;
                    unreachable!("the guard was dropped");
                };
                drop(cancelled.call(call));
                assert_eq!(drops.dropped(), 1, "{what}");
                cancel();
            });
        });
    }
}

#[test]
fn a_function_that_panics_when_it_is_called_does_not_keep_others_from_being_called() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group();
        let (sender, receiver) = mpsc::channel();
        for _ in 0..2 {
            let sender = sender.clone();
            let asks = move |(cx, done): (&OpContext<'_>, Completion)| {
                sender.send((cx.cancelled(), cx.cancelled(), done)).unwrap();
            };
            group.op("told").push((cx(), completion()), asks).unwrap();
        }
        let called = Arc::new(AtomicUsize::new(0));
        let guards = receiver.iter().take(2).map(|(first, second, done)| {
            let called = Arc::clone(&called);
            let panics = first.call(|| std::panic::resume_unwind(Box::new("on purpose")));
            (panics, second.call(move || _ = called.fetch_add(1, Relaxed)), done)
        });
        let guards: Vec<_> = guards.collect();
        group.cancel();
        assert_eq!(called.load(Relaxed), 2);
        guards.into_iter().for_each(|(.., done)| done.complete());
        group.wait().unwrap();
    });
}

#[test]
fn clean_ups_are_never_told_and_others_cost_nothing_once_they_have_ended() {
    on_kinds(&KINDS, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let group = engine.group();
        let asks = move |(cx, done): (&OpContext<'_>, Completion)| sender.send((cx.cancelled(), done)).unwrap();
        group.op("").cleanup().push((cx(), completion()), asks.clone()).unwrap();
        let (mut of_clean_up, done) = receiver.recv_timeout(PATIENCE).unwrap();
        group.cancel();
        assert!(poll_once(&mut of_clean_up).is_pending());
        done.complete();
        engine.op("").push((cx(), completion()), asks).unwrap();
        let (mut ended, done) = receiver.recv_timeout(PATIENCE).unwrap();
        done.complete();
        engine.wait_for_all().unwrap();
        assert!(poll_once(&mut ended).is_pending(), "the end of an operation is no cancellation");
        engine.shutdown(Shutdown::Cancel, Some(PATIENCE)).unwrap();
        assert!(poll_once(&mut of_clean_up).is_pending());
        drop(engine);
        drop((of_clean_up, ended));
    });
}

#[test]
fn what_works_for_a_future_is_told_that_it_was_cancelled() {
    for (what, cancel) in CANCELS {
        on_kinds(&KINDS, 1, move |engine| {
            let outer = engine.group();
            let group = outer.group();
            let (sender, receiver) = mpsc::channel();
            let handle = group.op("asleep").submit_future(cx(), move |cx| {
                std::future::poll_fn(move |context| {
                    sender.send((cx.clone(), context.waker().clone())).unwrap();
                    Poll::Pending
                })
            });
            let handle = handle.unwrap();
            let (cx, _waker) = receiver.recv_timeout(PATIENCE).unwrap();
            let (first, mut second) = (cx.cancelled(), cx.cancelled());
            assert!(poll_once(&mut second).is_pending(), "{what}");
            cancel(&engine, &outer, &group, &handle);
            block_on_within(first, PATIENCE).expect(what);
            block_on_within(second, PATIENCE).expect(what);
            handle.wait().unwrap_err();
            // The operation has ended.
            assert!(poll_once(&mut cx.cancelled()).is_pending(), "{what}");
            let _ = outer.wait();
        });
    }
}

// --------------------------------------------------------------------------------------------------- by shutdown ----

/// On a naive engine, the pushing threads run the functions.
#[test]
fn a_running_operation_can_ask_whether_its_engine_cancels() {
    on_kinds(&KINDS, 5, |engine| {
        let (runs, running) = mpsc::channel();
        let (group, ends) = (engine.group(), Gate::new());
        thread::scope(|scope| {
            let (engine, group) = (&engine, &group);
            let asks = || {
                let runs = runs.clone();
                move |cx: &OpContext<'_>| asks_until_cancelled(cx, &runs)
            };
            let (plain, member, parent) = (asks(), asks(), asks());
            let functions = [
                scope.spawn(move || engine.op("plain").submit(cx(), plain).unwrap().wait()),
                scope.spawn(move || group.op("member").submit(cx(), member).unwrap().wait()),
                scope.spawn(move || engine.op("parent").with_children().submit(cx(), parent).unwrap().wait()),
            ];
            let (ask, result) = (asks(), mpsc::channel());
            scope.spawn(move || {
                let asynchronous = move |(cx, done): (&OpContext<'_>, Completion)| {
                    result.0.send(ask(cx)).unwrap();
                    done.complete();
                };
                engine.op("asynchronous").push((cx(), completion()), asynchronous).unwrap();
            });
            let (begins, waits) = (runs.clone(), ends.clone());
            let clean_up = scope.spawn(move || {
                let clean_up = engine.op("clean-up").cleanup().submit(cx(), move |cx: &OpContext<'_>| {
                    begins.send(()).unwrap();
                    waits.pass();
                    cx.is_cancelled()
                });
                clean_up.unwrap().wait()
            });
            for _ in 0..5 {
                running.recv_timeout(PATIENCE).expect("all functions should run");
            }
            // A shutdown that drains asks no function to stop.
            engine.shutdown(Shutdown::Drain, Some(MOMENT)).expect_err("the functions should still run");
            assert!(
                functions.iter().all(|function| !function.is_finished()),
                "a function stopped before it was asked to"
            );
            engine.shutdown(Shutdown::Cancel, Some(MOMENT)).expect_err("the clean-up should still run");
            for function in functions {
                assert!(function.join().unwrap().unwrap(), "a function was not asked to stop");
            }
            assert!(result.1.recv_timeout(PATIENCE).unwrap(), "the asynchronous function was not asked to stop");
            ends.open();
            assert!(!clean_up.join().unwrap().unwrap(), "the clean-up was asked to stop");
        });
        engine.shutdown(Shutdown::Cancel, Some(PATIENCE)).unwrap();
    });
}

/// Dropping the last handle starts a drain, which must not undo the cancellation.
#[test]
fn a_cancelling_shutdown_goes_on_cancelling_when_the_last_handle_is_dropped() {
    for kind in THREADED {
        watched(move || {
            let engine = Engine::builder().kind(kind).workers(1).pin(false).build().unwrap();
            let value = engine.var(0);
            let gate = hold(&engine, value.as_ref());
            let drops = Drops::new();
            let captured = drops.make();
            let run = move |_: &mut i32| {
                let _captured = &captured;
                unreachable!("{kind}: the operation was cancelled");
            };
            let handle = engine.op("late").submit(value.write(), run).unwrap();
            let _: &OpHandle<()> = &handle;
            assert!(
                engine.shutdown(Shutdown::Cancel, Some(Duration::ZERO)).is_err(),
                "{kind}: the shutdown succeeded although an operation was running"
            );
            let ending = thread::spawn(move || drop(engine));
            // The drop starts a drain and waits for the running operation.
            thread::sleep(MOMENT);
            gate.open();
            assert!(is_cancelled(&failure(handle.wait())), "{kind}");
            drop(value);
            ending.join().unwrap();
            assert_eq!(drops.dropped(), 1, "{kind}");
        });
    }
}
