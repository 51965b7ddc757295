//! Waits for a variable that join one that is pending.
#![cfg(raddle_loom)]

use std::{
    future::Future,
    pin::Pin,
    // Of `std`: they are used on one thread, or say what another has done before it was joined.
    sync::{Arc, Mutex as StdMutex},
    task::{Context, Poll, Waker},
};

use loom::{cell::UnsafeCell, thread};
use raddle::{
    Completion, Engine, EngineKind, Token, VarWait, WaitError,
    internals::{Flavour::Contract, Step},
};
use raddle_loom_tests::{model, must_fail, without};

struct Data(UnsafeCell<usize>);
// SAFETY: the cell is loom's, which reports a race instead of letting it happen.
unsafe impl Sync for Data {}
// SAFETY: as above.
unsafe impl Send for Data {}

/// Where the completion of an operation is once it has started.
type Place = Arc<StdMutex<Option<Completion>>>;

/// Pushes an asynchronous operation that writes `token`.
fn push_async(engine: &Engine, token: &Token) -> Place {
    let place = Place::default();
    let inner = Arc::clone(&place);
    engine.push_async(move |_, done| *inner.lock().unwrap() = Some(done), [], [token]).unwrap();
    place
}

/// A naive engine, a variable, and the completion of an asynchronous operation that writes it.
fn pending() -> (Engine, Token, Completion) {
    let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
    let token = engine.new_var();
    let done = push_async(&engine, &token).lock().unwrap().take().unwrap();
    (engine, token, done)
}

fn poll(wait: &mut VarWait) -> Poll<Result<(), WaitError>> {
    Pin::new(wait).poll(&mut Context::from_waker(Waker::noop()))
}

/// One thread waits in vain and then ends the first operation; the other pushes a second one and waits for that.
fn a_wait_behind_a_push() {
    let (engine, token, done) = pending();
    let data = Arc::new(Data(UnsafeCell::new(0)));
    let (other, its_token) = (engine.clone(), token.clone());
    let thread = thread::spawn(move || {
        drop(other.wait_for_var_async(&its_token));
        done.complete();
    });
    let inner = Arc::clone(&data);
    // SAFETY: whoever looks has waited for it, which is what the model checks.
    engine.push_sync(move |_| inner.0.with_mut(|data| unsafe { *data = 1 }), [], [&token]).unwrap();
    engine.wait_for_var(&token).unwrap();
    // SAFETY: as above.
    assert_eq!(data.0.with(|data| unsafe { *data }), 1, "the wait is over before what was pushed before it");
    thread.join().unwrap();
}

#[test]
fn a_wait_that_joins_another_covers_what_was_pushed_before_it() {
    model(2, Contract, a_wait_behind_a_push);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn without_the_look_behind_the_wait() {
    without(Step::JoinOnlyTheLast, || {
        model(2, Contract, a_wait_behind_a_push);
    });
}

#[test]
fn without_the_look_behind_the_wait_one_that_joins_it_is_over_too_soon() {
    must_fail("without_the_look_behind_the_wait", "before what was pushed before it");
}

/// One thread begins a wait; the other begins one as well, and then pushes what stays pending when that is over.
fn a_wait_in_front_of_a_push() {
    let (engine, token, done) = pending();
    let (other, its_token) = (engine.clone(), token.clone());
    let thread = thread::spawn(move || drop(other.wait_for_var_async(&its_token)));
    let mut wait = engine.wait_for_var_async(&token);
    let second = push_async(&engine, &token);
    done.complete();
    thread.join().unwrap();
    assert!(poll(&mut wait).is_ready(), "the wait holds for what was pushed after it");
    second.lock().unwrap().take().unwrap().complete();
}

#[test]
fn a_wait_that_joins_another_is_not_prolonged_by_what_is_pushed_after_it() {
    model(2, Contract, a_wait_in_front_of_a_push);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn without_the_look_whether_it_is_in() {
    without(Step::JoinWhatIsIn, || {
        model(2, Contract, a_wait_in_front_of_a_push);
    });
}

#[test]
fn without_the_look_whether_it_is_in_a_wait_is_prolonged() {
    must_fail("without_the_look_whether_it_is_in", "holds for what was pushed after it");
}

/// Waits of both kinds begin while the operation in front of them ends, and with it the wait that they may join. Each is told
/// of the failure, and the records that were held meanwhile are given back.
#[test]
fn waits_that_join_one_that_begins_are_told_of_the_failure() {
    model(2, Contract, || {
        let (engine, token, done) = pending();
        let first = engine.wait_for_var_async(&token);
        let (other, its_token) = (engine.clone(), token.clone());
        let thread = thread::spawn(move || {
            [other.wait_to_read_async(&its_token), other.wait_for_var_async(&its_token)]
        });
        done.fail("as planned");
        let others = thread.join().unwrap();
        for mut wait in others.into_iter().chain([first]) {
            assert!(matches!(poll(&mut wait), Poll::Ready(Err(WaitError::Failed(_)))), "it is not told");
        }
        drop(token);
        engine.wait_for_all().unwrap_err();
    });
}
