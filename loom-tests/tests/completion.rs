//! Asynchronous operations: the completion against its function, against waits, and against being dropped; and the place
//! where a result waits.
#![cfg(raddle_loom)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Poll, Waker},
};

use loom::{cell::UnsafeCell, thread};
use raddle::{
    Cause, Completion, Engine, EngineKind, OpContext, WaitError,
    internals::{AsyncState, Flavour, Oneshot, Step, Waiter},
};
use raddle_loom_tests::shapes::*;
use raddle_loom_tests::{COMPLETE, Count, model, must_fail, pending, without};

/// Exactly one side gets the error of a function that fails while its completion is used: the completion, which ends the
/// operation with it, or the function, if the operation has ended.
#[test]
fn the_error_of_a_function_reaches_exactly_one_side() {
    model(COMPLETE, Flavour::Contract, || {
        let progress = Arc::new(AsyncState::default());
        let other = Arc::clone(&progress);
        let function = thread::spawn(move || {
            // SAFETY: called once, by the thread that plays the function.
            unsafe { other.fail(Box::new(7)) }
        });
        let by_completion = progress.resolve();
        let by_function = function.join().unwrap().err();
        assert!(progress.is_resolved());
        let got = [by_completion, by_function].into_iter().flatten().map(|error| *error).collect::<Vec<i32>>();
        assert_eq!(got, [7]);
    });
}

/// Either way in which the function learns that the completion was used tells it what that thread did before.
#[test]
fn who_sees_a_resolution_sees_what_was_done_before_it() {
    for by_failing in [false, true] {
        model(COMPLETE, Flavour::Contract, move || {
            let (progress, data) = (Arc::new(AsyncState::default()), Arc::new(Data(UnsafeCell::new(0))));
            let (other, written) = (Arc::clone(&progress), Arc::clone(&data));
            let completion = thread::spawn(move || {
                // SAFETY: whoever reads has seen the resolution first, which is what the model checks.
                written.0.with_mut(|data| unsafe { *data = 1 });
                let _ = other.resolve();
            });
            // SAFETY: called once, by the thread that plays the function.
            let resolved = if by_failing { unsafe { progress.fail(()) }.is_err() } else { progress.is_resolved() };
            if resolved {
                // SAFETY: as above.
                assert_eq!(data.0.with(|data| unsafe { *data }), 1);
            }
            completion.join().unwrap();
        });
    }
}

struct Data(UnsafeCell<usize>);
// SAFETY: the cell is loom's, which reports a race instead of letting it happen.
unsafe impl Sync for Data {}
// SAFETY: as above.
unsafe impl Send for Data {}

#[test]
fn a_wait_ends_after_the_completion_and_sees_what_its_thread_did() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let data = Arc::new(Data(UnsafeCell::new(0)));
        let other = Arc::clone(&data);
        let thread = thread::spawn(move || {
            // SAFETY: the wait comes after, which is what the model checks.
            other.0.with_mut(|data| unsafe { *data = 1 });
            done.complete();
        });
        engine.wait_for_var(&token).unwrap();
        // SAFETY: the operation is over.
        assert_eq!(data.0.with(|data| unsafe { *data }), 1);
        assert_eq!(token.version(), 1);
        thread.join().unwrap();
    });
}

/// What waits behind the operation runs on the completing thread or on the pushing one, once, and after it.
#[test]
fn what_is_pushed_behind_runs_once_after_the_completion() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let data = Arc::new(Data(UnsafeCell::new(0)));
        let (first, second) = (Arc::clone(&data), Arc::clone(&data));
        let thread = thread::spawn(move || {
            // SAFETY: the next operation comes after, which is what the model checks.
            first.0.with_mut(|data| unsafe { *data += 1 });
            done.complete();
        });
        // SAFETY: as above.
        engine.push_sync(move |_| second.0.with_mut(|data| unsafe { *data *= 10 }), [], [&token]).unwrap();
        engine.wait_for_all().unwrap();
        // SAFETY: both operations are over.
        assert_eq!(data.0.with(|data| unsafe { *data }), 10);
        thread.join().unwrap();
    });
}

/// Asserts that what a wait is told is the loss of a completion.
fn assert_lost(waited: Result<(), WaitError>) {
    match waited {
        Err(WaitError::Failed(error)) => assert!(matches!(error.cause(), Cause::LostCompletion)),
        other => panic!("{other:?}"),
    }
}

fn a_completion_is_dropped() {
    let (engine, token, done) = pending();
    let thread = thread::spawn(move || drop(done));
    assert_lost(engine.wait_for_var(&token));
    thread.join().unwrap();
}

#[test]
fn a_dropped_completion_is_an_error_for_whoever_waits() {
    model(2, Flavour::Contract, a_completion_is_dropped);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn without_the_drop() {
    without(Step::DropCompletes, || {
        model(2, Flavour::Contract, a_completion_is_dropped);
    });
}

#[test]
fn without_the_drop_a_wait_never_ends() {
    must_fail("without_the_drop", "deadlock");
}

/// The function of an asynchronous operation drops its completion and goes on until a wait for the operation is over.
fn a_completion_is_dropped_in_its_own_function() {
    let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
    let token = engine.token();
    let (its_engine, its_token) = (engine.clone(), token.clone());
    let function = move |_: &OpContext<'_>, done: Completion| {
        let waiter = thread::spawn(move || assert_lost(its_engine.wait_for_var(&its_token)));
        drop(done);
        waiter.join().unwrap();
    };
    engine.push_async(function, [], [&token]).unwrap();
    assert!(engine.wait_for_var(&token).is_err());
}

#[test]
fn a_completion_dropped_in_its_own_function_ends_the_operation_at_once() {
    model(2, Flavour::Contract, a_completion_is_dropped_in_its_own_function);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn with_an_end_that_waits_for_the_function() {
    without(Step::DropEndsAtOnce, || {
        model(2, Flavour::Contract, a_completion_is_dropped_in_its_own_function);
    });
}

#[test]
fn with_an_end_that_waits_for_the_function_both_wait_for_ever() {
    must_fail("with_an_end_that_waits_for_the_function", "deadlock");
}

/// Sets the result and wakes the futures that wait.
fn set(outcome: &Oneshot<i32>) {
    if let Some(wakers) = outcome.set(Ok(5)) {
        wakers.wake();
    }
}

#[test]
fn a_result_reaches_a_thread_that_waits() {
    model(COMPLETE, Flavour::Contract, || {
        let outcome = Oneshot::new();
        let other = Arc::clone(&outcome);
        let thread = thread::spawn(move || set(&other));
        assert_eq!(outcome.wait(None).unwrap(), 5);
        assert!(outcome.is_done());
        thread.join().unwrap();
    });
}

#[test]
fn a_result_wakes_a_future_that_has_not_seen_it() {
    model(COMPLETE, Flavour::Contract, || {
        let outcome = Oneshot::new();
        let other = Arc::clone(&outcome);
        let thread = thread::spawn(move || set(&other));
        let (count, mut waiter) = (Arc::new(Count::default()), Waiter::new(outcome));
        let waker = Waker::from(Arc::clone(&count));
        let first = waiter.poll(&waker);
        thread.join().unwrap();
        match first {
            Poll::Ready(result) => assert_eq!(result.unwrap(), 5),
            Poll::Pending => {
                assert_eq!(count.get(), 1, "the future was not woken");
                assert!(matches!(waiter.poll(&waker), Poll::Ready(Ok(5))));
            }
        }
    });
}

/// A future that is dropped while the result is set: it may be woken before, and nothing is left of it after. One that is
/// polled with another waker has left only that.
#[test]
fn a_future_that_is_dropped_leaves_no_waker_with_the_result() {
    model(COMPLETE, Flavour::Contract, || {
        let (outcome, dropped) = (Oneshot::new(), Arc::new(AtomicBool::new(false)));
        let (other, is_dropped) = (Arc::clone(&outcome), Arc::clone(&dropped));
        let thread = thread::spawn(move || {
            let was_dropped = is_dropped.load(Relaxed);
            set(&other);
            was_dropped
        });
        let counts = [(); 2].map(|()| Arc::new(Count::default()));
        let mut waiter = Waiter::new(Arc::clone(&outcome));
        for count in &counts {
            if waiter.poll(&Waker::from(Arc::clone(count))).is_ready() {
                break;
            }
        }
        drop(waiter);
        dropped.store(true, Relaxed);
        let woken = |count: &Arc<Count>| count.get();
        if thread.join().unwrap() {
            assert_eq!(counts.iter().map(woken).sum::<usize>(), 0, "a future was woken that was dropped before");
        }
        assert!(counts.iter().map(woken).sum::<usize>() < 2, "a future was woken twice");
        for count in &counts {
            assert_eq!(Arc::strong_count(count), 1, "the waker is kept");
        }
    });
}
