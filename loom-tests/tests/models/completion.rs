//! Asynchronous operations: completions that are used while their functions run or while threads wait, completions that
//! are dropped, and the oneshot that holds a result.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Poll, Waker},
};

use raddle::{
    Completion, Engine, EngineKind, OpContext, WaitError,
    error::Cause,
    internals::{AsyncState, Flavour, Oneshot, Waiter},
};
use raddle_loom_tests::checker::{cell::UnsafeCell, thread};
use raddle_loom_tests::shapes::*;
use raddle_loom_tests::{COMPLETE, Count, kills, model, pending};

/// If a function fails while its completion is used, exactly one side gets the error: the completion, which then
/// completes the operation with that error, or, if the operation is already complete, the function.
#[test]
fn the_error_of_a_function_reaches_exactly_one_side() {
    model(COMPLETE, Flavour::Contract, || {
        let state = Arc::new(AsyncState::default());
        let other = Arc::clone(&state);
        let function = thread::spawn(move || {
            // SAFETY: called once, by the thread that represents the function.
            unsafe { other.fail(Box::new(7)) }
        });
        let by_completion = state.resolve();
        let by_function = function.join().unwrap().err();
        assert!(state.is_resolved());
        let got = [by_completion, by_function].into_iter().flatten().map(|error| *error).collect::<Vec<i32>>();
        assert_eq!(got, [7]);
    });
}

/// The function can learn in two ways that the completion was used; either way, it sees the completing thread's earlier
/// writes.
#[test]
fn a_thread_that_sees_a_resolution_sees_the_writes_before_it() {
    for by_failing in [false, true] {
        model(COMPLETE, Flavour::Contract, move || {
            let (state, data) = (Arc::new(AsyncState::default()), Arc::new(Data(UnsafeCell::new(0))));
            let (other, written) = (Arc::clone(&state), Arc::clone(&data));
            let completion = thread::spawn(move || {
                // SAFETY: the other thread reads only after it has seen the resolution; the model verifies this.
                written.0.with_mut(|data| unsafe { *data = 1 });
                let _ = other.resolve();
            });
            // SAFETY: called once, by the thread that represents the function.
            let resolved = if by_failing { unsafe { state.fail(()) }.is_err() } else { state.is_resolved() };
            if resolved {
                // SAFETY: the resolution comes after the write; the model verifies this.
                assert_eq!(data.0.with(|data| unsafe { *data }), 1);
            }
            completion.join().unwrap();
        });
    }
}

struct Data(UnsafeCell<usize>);
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Sync for Data {}
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Send for Data {}

#[test]
fn a_wait_ends_after_the_completion_and_sees_the_writes_before_it() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let data = Arc::new(Data(UnsafeCell::new(0)));
        let other = Arc::clone(&data);
        let thread = thread::spawn(move || {
            // SAFETY: the wait ends after this write; the model verifies this.
            other.0.with_mut(|data| unsafe { *data = 1 });
            done.complete();
        });
        engine.wait_for_var(&token).unwrap();
        // SAFETY: the operation is complete.
        assert_eq!(data.0.with(|data| unsafe { *data }), 1);
        assert_eq!(token.version(), 1);
        thread.join().unwrap();
    });
}

/// An operation behind an asynchronous one runs once, after the completion, on the completing or the pushing thread.
#[test]
fn an_operation_pushed_behind_runs_once_after_the_completion() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let data = Arc::new(Data(UnsafeCell::new(0)));
        let (first, second) = (Arc::clone(&data), Arc::clone(&data));
        let thread = thread::spawn(move || {
            // SAFETY: the next operation runs after this write; the model verifies this.
            first.0.with_mut(|data| unsafe { *data += 1 });
            done.complete();
        });
        // SAFETY: the operation runs after the completion; the model verifies this.
        engine.push_sync(move |_| second.0.with_mut(|data| unsafe { *data *= 10 }), [], [&token]).unwrap();
        engine.wait_for_all().unwrap();
        // SAFETY: both operations are complete.
        assert_eq!(data.0.with(|data| unsafe { *data }), 10);
        thread.join().unwrap();
    });
}

/// Asserts that a wait returns the error of a lost completion.
fn assert_lost(waited: Result<(), WaitError>) {
    match waited {
        Err(WaitError::Failed(error)) => assert!(matches!(error.cause(), Cause::LostCompletion)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wait_returns_an_error_for_a_dropped_completion() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let thread = thread::spawn(move || drop(done));
        assert_lost(engine.wait_for_var(&token));
        thread.join().unwrap();
    });
}

/// An asynchronous operation's function drops its completion and runs until a wait for the operation is over.
#[test]
fn a_completion_dropped_in_its_own_function_completes_the_operation_immediately() {
    model(2, Flavour::Contract, || {
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
    });
}

/// Sets the result and wakes the waiting futures.
fn set(oneshot: &Oneshot<i32>) {
    if let Some(wakers) = oneshot.set(Ok(5)).expect("the result is wanted") {
        wakers.wake();
    }
}

#[test]
fn a_result_reaches_a_waiting_thread() {
    model(COMPLETE, Flavour::Contract, || {
        let oneshot = Oneshot::new();
        let other = Arc::clone(&oneshot);
        let thread = thread::spawn(move || set(&other));
        assert_eq!(oneshot.wait(None).unwrap(), 5);
        assert!(oneshot.is_done());
        thread.join().unwrap();
    });
}

#[test]
fn a_result_wakes_a_future_that_was_pending() {
    model(COMPLETE, Flavour::Contract, || {
        let oneshot = Oneshot::new();
        let other = Arc::clone(&oneshot);
        let thread = thread::spawn(move || set(&other));
        let (count, mut waiter) = (Arc::new(Count::default()), Waiter::new(oneshot));
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

/// A future is dropped while the result is being set: it may be woken before the drop, but its waker is dropped with
/// it. A future polled with another waker keeps only the new one.
#[test]
fn a_dropped_future_leaves_no_waker_with_the_result() {
    model(COMPLETE, Flavour::Contract, || {
        let (oneshot, dropped) = (Oneshot::new(), Arc::new(AtomicBool::new(false)));
        let (other, is_dropped) = (Arc::clone(&oneshot), Arc::clone(&dropped));
        let thread = thread::spawn(move || {
            let was_dropped = is_dropped.load(Relaxed);
            set(&other);
            was_dropped
        });
        let counts = [(); 2].map(|()| Arc::new(Count::default()));
        let mut waiter = Waiter::new(Arc::clone(&oneshot));
        for count in &counts {
            if waiter.poll(&Waker::from(Arc::clone(count))).is_ready() {
                break;
            }
        }
        drop(waiter);
        dropped.store(true, Relaxed);
        let woken = |count: &Arc<Count>| count.get();
        if thread.join().unwrap() {
            assert_eq!(counts.iter().map(woken).sum::<usize>(), 0, "a future was woken after it was dropped");
        }
        assert!(counts.iter().map(woken).sum::<usize>() < 2, "a future was woken twice");
        for count in &counts {
            assert_eq!(Arc::strong_count(count), 1, "the waker is kept");
        }
    });
}

kills! {
    the_error_of_a_function_reaches_exactly_one_side {
        "resolve::FAILED": "Causality violation",
        "resolve::FAILURE": "Causality violation",
    }
    a_thread_that_sees_a_resolution_sees_the_writes_before_it {
        "resolve::RESOLVED": "Causality violation",
        "resolve::RESOLUTION": "Causality violation",
        "resolve::SEEN": "Causality violation",
    }
    a_wait_ends_after_the_completion_and_sees_the_writes_before_it {
        "step::RESULT_WAKES_THREADS": "deadlock",
    }
    a_wait_returns_an_error_for_a_dropped_completion {
        "step::DROP_COMPLETES": "deadlock",
    }
    a_completion_dropped_in_its_own_function_completes_the_operation_immediately {
        "step::DROP_ENDS_AT_ONCE": "deadlock",
    }
    a_result_reaches_a_waiting_thread {
        "step::RESULT_WAKES_THREADS": "deadlock",
    }
}
