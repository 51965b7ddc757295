//! Operations cancelled through their handles and groups, while they start and while threads wait for them.
use std::{
    panic::Location,
    sync::{
        Arc,
        // This type is from `std`, so it adds no interleavings. The counts are read only after the threads have been
        // joined.
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use raddle::{
    Engine, EngineKind, Name, WaitError, completion,
    error::Cause,
    internals::{Cancel, Cancellable, Claim, Conflation, Failures, Flavour, Function, Offered, StopListener},
};
use raddle_loom_tests::checker::{
    alloc::Track,
    cell::UnsafeCell,
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
    thread,
};
use raddle_loom_tests::{COMPLETE, Place, kills, listen_beside_cancellation, model, pending};

/// A value whose cell reports races.
struct Data(UnsafeCell<usize>);
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Sync for Data {}
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Send for Data {}

impl Data {
    fn get(&self) -> usize {
        // SAFETY: the claim or the engine orders the accesses; the models verify this.
        self.0.with(|data| unsafe { *data })
    }

    fn add(&self) {
        // SAFETY: the claim or the engine orders the accesses; the models verify this.
        self.0.with_mut(|data| unsafe { *data += 1 });
    }
}

/// A captured value that counts how often it is dropped.
struct Captured(Arc<AtomicUsize>);

impl Drop for Captured {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// One thread starts the operation while two others try to cancel it.
#[test]
fn an_operation_is_claimed_once() {
    model(COMPLETE, Flavour::Contract, || {
        let claim = Arc::new(Claim::default());
        let data = Arc::new(Data(UnsafeCell::new(0)));
        let cancels = [Cancel::Loudly, Cancel::Quietly].map(|how| {
            let (claim, data) = (Arc::clone(&claim), Arc::clone(&data));
            thread::spawn(move || {
                let won = claim.cancel(how);
                if won {
                    data.add();
                }
                won.then_some(how)
            })
        });
        let started = claim.start();
        if started.is_ok() {
            data.add();
        }
        let cancels = cancels.map(|cancel| cancel.join().unwrap());
        let winners = cancels.iter().flatten().collect::<Vec<_>>();
        match started {
            Ok(()) => assert!(winners.is_empty() && claim.is_stopping()),
            Err(how) => assert_eq!(winners, [&how]),
        }
        assert_eq!(claim.start(), started, "a repeated call has a different result");
        assert_eq!(data.get(), 1);
    });
}

/// When a scope ends, it may abandon an operation that it cancels or that was cancelled earlier. Meanwhile, the
/// operation's turn comes on another thread. Exactly one of the two threads counts the operation out.
#[test]
fn an_abandoned_operation_is_counted_out_once() {
    for is_cancelled in [false, true] {
        model(COMPLETE, Flavour::Contract, move || {
            let (claim, left) = (Arc::new(Claim::default()), Arc::new(AtomicUsize::new(0)));
            if is_cancelled {
                assert!(claim.cancel(Cancel::Quietly));
            }
            let (scope, scope_left) = (Arc::clone(&claim), Arc::clone(&left));
            let scope = thread::spawn(move || {
                let abandoned = scope.abandon(true);
                if abandoned.is_some() {
                    scope_left.fetch_add(1, Relaxed);
                }
                abandoned
            });
            let started = claim.start();
            let is_abandoned = claim.settle();
            if !is_abandoned {
                left.fetch_add(1, Relaxed);
            }
            let abandoned = scope.join().unwrap();
            assert_eq!(left.load(Relaxed), 1, "the operation is counted out once");
            assert_eq!((is_abandoned, claim.settle()), (abandoned.is_some(), is_abandoned));
            match started {
                Ok(()) => assert!(abandoned.is_none() && !is_cancelled),
                Err(Cancel::Loudly) => assert_eq!(abandoned, Some(true)),
                Err(Cancel::Quietly) => assert_ne!(abandoned, Some(true)),
            }
        });
    }
}

/// A function that, when dropped, uses what it has borrowed from the frame of its scope.
struct Borrows(Arc<Data>);

impl Drop for Borrows {
    fn drop(&mut self) {
        self.0.add();
    }
}

/// A scope ends while another thread cancels the only operation. If the scope's end counts the operation out, the
/// scope's frame may end immediately, so the function, which has borrowed from the frame, must have been dropped by
/// then.
#[test]
fn a_scope_that_counts_out_a_cancelled_operation_ends_after_the_drop_of_the_function() {
    for how in [Cancel::Loudly, Cancel::Quietly] {
        model(COMPLETE, Flavour::Contract, move || {
            let borrowed = Arc::new(Data(UnsafeCell::new(0)));
            let f = Borrows(Arc::clone(&borrowed));
            let shared: Arc<Cancellable<dyn Function>> =
                Arc::new(Cancellable::new(Claim::default(), Name::from("op"), Location::caller(), f));
            let (other, failures) = (Arc::clone(&shared), Arc::<Failures>::default());
            let its_failures = Arc::clone(&failures);
            let canceller = thread::spawn(move || other.cancel(how, &its_failures, drop));
            let is_counted_out = shared.abandon(&failures, drop);
            if is_counted_out {
                assert_eq!(borrowed.get(), 1, "the function is alive");
            }
            let is_cancelled = canceller.join().unwrap();
            assert!(is_cancelled || is_counted_out);
            assert_eq!(borrowed.get(), 1, "the function was not dropped exactly once");
        });
    }
}

/// A push that comes after a cancellation, of which the canceller has told, does not put its value into the cancelled
/// run.
#[test]
fn a_push_that_learns_of_a_cancellation_does_not_replace_the_value_of_the_cancelled_run() {
    static OUTCOMES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    model(COMPLETE, Flavour::Contract, || {
        let conflation = Arc::new(Conflation::new(1));
        let Offered::Enters(entering, value) = conflation.offer(Track::new(1)) else { panic!("no run is listed") };
        let closer = value.closer();
        entering.landed();
        let run = Arc::new(Cancellable::new(Claim::default(), Name::from("run"), Location::caller(), value));
        run.set_closer(closer);
        let run: Arc<Cancellable<dyn Function>> = run;
        let told = Arc::new(AtomicBool::new(false));
        let (its_run, tells) = (Arc::clone(&run), Arc::clone(&told));
        let canceller = thread::spawn(move || {
            its_run.cancel(Cancel::Quietly, &Arc::default(), |_| tells.store(true, Release));
        });
        let is_cancelled = told.load(Acquire);
        let offered = conflation.offer(Track::new(2));
        let replaces = matches!(offered, Offered::Replaced(_));
        if let Offered::Enters(entering, _value) = offered {
            entering.landed();
        }
        assert!(!(is_cancelled && replaces), "a value is lost in a cancelled run");
        OUTCOMES[usize::from(is_cancelled)].fetch_add(1, Relaxed);
        canceller.join().unwrap();
    });
    assert!(OUTCOMES.iter().all(|outcome| outcome.load(Relaxed) > 0), "the push always comes at the same time");
}

#[derive(Default)]
struct Told(AtomicUsize);

impl StopListener for Told {
    fn stop(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A started operation is cancelled while it begins to listen. The signal may be made before the cancellation, and the
/// listener registered after it, or both before or after.
#[test]
fn a_listener_that_comes_while_its_operation_is_cancelled_is_told() {
    model(COMPLETE, Flavour::Contract, || {
        let told = Arc::<Told>::default();
        let (listening, canceller) = listen_beside_cancellation(&told);
        assert!(!canceller.join().unwrap());
        let times = told.0.load(Relaxed);
        assert_eq!(times, usize::from(listening.is_some()), "the listener was not told once");
    });
}

#[test]
#[cfg_attr(
    raddle_shuttle,
    ignore = "blocks in a `OnceLock` of `std`, while shuttle's thread that initialises it waits"
)]
fn a_function_is_called_or_dropped_by_its_canceller() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let value = engine.var(Arc::new(Data(UnsafeCell::new(0))));
        let dropped = Arc::new(AtomicUsize::new(0));
        let captured = Captured(Arc::clone(&dropped));
        let handle = engine.op("").reads([&token]).submit(value.write(), move |data| {
            let _captured = &captured;
            data.add();
        });
        let handle = handle.unwrap();
        let thread = thread::spawn(move || done.complete());
        let won = handle.cancel();
        thread.join().unwrap();
        assert_eq!(dropped.load(Relaxed), 1);
        let failure = |result| match result {
            Ok(()) => None,
            Err(WaitError::Failed(failure)) => Some(failure),
            Err(other) => panic!("{other}"),
        };
        let (of_handle, of_value) = (failure(handle.wait()), failure(engine.wait_for_var(&value)));
        match (of_handle, of_value) {
            (None, None) => assert!(!won && engine.with(&value, |data| data.get()).unwrap() == 1),
            (Some(one), Some(other)) => {
                assert!(won && one.ptr_eq(&other), "the variable fails with the failure of the handle");
                assert!(matches!(one.cause(), Cause::Cancelled));
                engine.clear_error(&value).unwrap();
                assert_eq!(engine.with(&value, |data| data.get()).unwrap(), 0);
            }
            other => panic!("the handle and the variable disagree: {other:?}"),
        }
        engine.wait_for_all().expect("no failure should be left");
    });
}

#[test]
fn a_wait_for_a_group_sees_what_its_operations_did() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let data = Arc::new(Data(UnsafeCell::new(0)));
        let (group, written) = (engine.group(), Arc::clone(&data));
        let inner = group.group();
        inner.op("").reads([&token]).push((), move |()| written.add()).unwrap();
        let thread = thread::spawn(move || done.complete());
        group.wait().unwrap();
        assert_eq!(data.get(), 1);
        thread.join().unwrap();
        assert_eq!(inner.pending(), 0);
    });
}

/// A member of the inner group fails while the failures of that group begin to be ignored.
#[test]
#[cfg_attr(
    raddle_shuttle,
    ignore = "blocks in a `OnceLock` of `std`, while shuttle's thread that initialises it waits"
)]
fn an_ignored_failure_is_left_neither_in_a_group_around_nor_in_the_engine() {
    model(2, Flavour::Contract, || {
        let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
        let group = engine.group();
        let inner = group.group().cancel_on_drop();
        let place = Place::default();
        let its_place = Arc::clone(&place);
        let keep = move |done| *its_place.lock().unwrap() = Some(done);
        inner.op("").push(completion(), keep).unwrap();
        let done = place.lock().unwrap().take().unwrap();
        let thread = thread::spawn(move || done.fail("as planned"));
        drop(inner);
        thread.join().unwrap();
        group.wait().expect("the group around has an ignored failure");
        engine.wait_for_all().expect("an ignored failure is left");
    });
}

#[test]
#[cfg_attr(
    raddle_shuttle,
    ignore = "blocks in a `OnceLock` of `std`, while shuttle's thread that initialises it waits"
)]
fn an_operation_that_is_cancelled_twice_while_it_starts_has_one_result() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let value = engine.var(0);
        let group = engine.group();
        let inner = group.group();
        let handle = inner.op("").reads([&token]).submit(value.write(), |value| *value = 1).unwrap();
        let thread = thread::spawn(move || done.complete());
        group.cancel_quietly();
        let won = handle.cancel();
        thread.join().unwrap();
        let ran = handle.wait().is_ok();
        assert!(!(won && ran));
        group.wait().ok();
        let seen = if won { engine.wait_for_var(&value).map(|()| 0) } else { engine.get(&value) };
        assert_eq!(seen.is_err(), won, "a quiet cancellation failed the variable, or a loud one did not");
        assert_eq!(seen.unwrap_or(0), i32::from(ran));
    });
}

kills! {
    an_operation_is_claimed_once {
        "step::CLAIM_ONCE": "Causality violation",
        "step::CANCELLED_DOES_NOT_START": "Causality violation",
    }
    an_abandoned_operation_is_counted_out_once {
        "step::SETTLE_ONCE": "the operation is counted out once",
    }
    a_scope_that_counts_out_a_cancelled_operation_ends_after_the_drop_of_the_function {
        "cleared::CLEARED": "Causality violation",
        "cleared::ABANDONED": "Causality violation",
        "step::DROP_BEFORE_END": "Causality violation" | "the function is alive",
    }
    a_push_that_learns_of_a_cancellation_does_not_replace_the_value_of_the_cancelled_run {
        "step::FORGO_BEFORE_TELLING": "a value is lost in a cancelled run",
    }
    a_listener_that_comes_while_its_operation_is_cancelled_is_told {
        "step::SIGNAL_STAYS_GIVEN": "the listener was not told once",
        "step::LATE_SIGNAL_IS_GIVEN": "the listener was not told once",
    }
    a_function_is_called_or_dropped_by_its_canceller {
        only loom "step::CLAIM_ONCE": "assertion failed",
    }
    a_wait_for_a_group_sees_what_its_operations_did {
        "step::COUNT_IN_EVERY_GROUP": "left: 0",
    }
    an_ignored_failure_is_left_neither_in_a_group_around_nor_in_the_engine {
        only loom "step::FAILURES_STAY_IN_TURN": "the group around has an ignored failure",
    }
    an_operation_that_is_cancelled_twice_while_it_starts_has_one_result {
        only loom "step::CANCELLED_DOES_NOT_START": "Causality violation",
    }
}
