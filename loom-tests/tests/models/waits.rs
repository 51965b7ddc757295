//! Waits that join a pending wait for the same variable.
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use raddle::{VarWait, WaitError, internals::Flavour::Contract};
use raddle_loom_tests::checker::thread;
use raddle_loom_tests::{kills, model, pending, push_async};

fn poll(wait: &mut VarWait) -> Poll<Result<(), WaitError>> {
    Pin::new(wait).poll(&mut Context::from_waker(Waker::noop()))
}

/// One thread begins a wait; the other pushes an operation and then begins a wait as well.
#[test]
fn a_wait_that_joins_another_covers_earlier_pushes() {
    model(2, Contract, || {
        let (engine, token, done) = pending();
        let (other, its_token) = (engine.clone(), token.clone());
        let thread = thread::spawn(move || {
            let second = push_async(&other, &its_token);
            (other.wait_for_var_async(&its_token), second)
        });
        drop(engine.wait_for_var_async(&token));
        let (mut wait, second) = thread.join().unwrap();
        done.complete();
        assert!(poll(&mut wait).is_pending(), "the wait ended before an earlier push");
        second.lock().unwrap().take().unwrap().complete();
        assert!(poll(&mut wait).is_ready());
    });
}

/// One thread begins a wait; the other also begins a wait, then pushes an operation.
#[test]
fn a_wait_that_joins_another_does_not_cover_later_pushes() {
    model(2, Contract, || {
        let (engine, token, done) = pending();
        let (other, its_token) = (engine.clone(), token.clone());
        let thread = thread::spawn(move || {
            let wait = other.wait_for_var_async(&its_token);
            (wait, push_async(&other, &its_token))
        });
        drop(engine.wait_for_var_async(&token));
        let (mut wait, second) = thread.join().unwrap();
        done.complete();
        assert!(poll(&mut wait).is_ready(), "the wait covers a later push");
        second.lock().unwrap().take().unwrap().complete();
    });
}

/// Waits of both kinds, `wait_to_read_async` and `wait_for_var_async`, begin while the operation in front of them
/// fails. The wait that they may join ends when that operation does. Each wait returns the failure, and the waits'
/// records are freed.
#[test]
fn waits_that_join_a_wait_while_it_ends_return_the_failure() {
    model(2, Contract, || {
        let (engine, token, done) = pending();
        let first = engine.wait_for_var_async(&token);
        let (other, its_token) = (engine.clone(), token.clone());
        let thread =
            thread::spawn(move || [other.wait_to_read_async(&its_token), other.wait_for_var_async(&its_token)]);
        done.fail("as planned");
        let others = thread.join().unwrap();
        for mut wait in others.into_iter().chain([first]) {
            assert!(matches!(poll(&mut wait), Poll::Ready(Err(WaitError::Failed(_)))), "a wait lost the failure");
        }
        drop(token);
        // The result is not checked: the failure may have been reported above.
        let _ = engine.wait_for_all();
    });
}

kills! {
    a_wait_that_joins_another_covers_earlier_pushes {
        "step::JOIN_ONLY_THE_LAST": "before an earlier push",
    }
    a_wait_that_joins_another_does_not_cover_later_pushes {
        "step::JOIN_WHAT_IS_IN": "covers a later push",
    }
}
