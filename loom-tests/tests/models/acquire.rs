//! Variables held by a thread that uses their values (`Engine::with`), and handles that ignore the failure of their
//! operation (`OpHandle::ignore`).
use std::sync::Arc;

use raddle::{Engine, EngineKind, WaitError, internals::Flavour};
use raddle_loom_tests::checker::{cell::UnsafeCell, thread};
use raddle_loom_tests::{model, pending};

/// A value whose cell reports races.
struct Data(UnsafeCell<usize>);
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Sync for Data {}
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Send for Data {}

impl Data {
    fn get(&self) -> usize {
        // SAFETY: the engine orders the accesses; the models verify this.
        self.0.with(|data| unsafe { *data })
    }

    fn add(&self) {
        // SAFETY: the engine orders the accesses; the models verify this.
        self.0.with_mut(|data| unsafe { *data += 1 });
    }
}

fn engine() -> Engine {
    Engine::builder().kind(EngineKind::Naive).build().unwrap()
}

/// On the naive engine, the mutation runs on the thread that finds it ready: the thread that pushes it or the thread
/// that calls `with`.
#[test]
fn a_read_by_with_and_a_mutation_exclude_each_other() {
    model(2, Flavour::Contract, || {
        let engine = engine();
        let value = engine.var(Arc::new(Data(UnsafeCell::new(0))));
        let (other, same) = (engine.clone(), value.clone());
        let thread = thread::spawn(move || other.op("").push(same.write(), |data| data.add()).unwrap());
        let seen = engine.with(&value, |data| data.get()).unwrap();
        assert!(seen <= 1);
        thread.join().unwrap();
        assert_eq!(engine.with(&value, |data| data.get()).unwrap(), 1);
    });
}

/// `with` can read the value only once another thread has completed an operation.
#[test]
fn a_read_by_with_sees_what_was_written_before_a_completion() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let data = Arc::new(Data(UnsafeCell::new(0)));
        let value = engine.var(Arc::clone(&data));
        engine.op("").reads([&token]).push(value.overwrite(), |_| {}).unwrap();
        let thread = thread::spawn(move || {
            data.add();
            done.complete();
        });
        assert_eq!(engine.with(&value, |data| data.get()).unwrap(), 1);
        thread.join().unwrap();
    });
}

#[test]
fn a_failure_that_races_with_ignore_counts_as_reported() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let handle = engine.op("").reads([&token]).submit((), |()| ()).unwrap();
        let thread = thread::spawn(move || done.fail("as planned"));
        handle.ignore();
        thread.join().unwrap();
        engine.wait_for_all().expect("the failure was reported");
        assert!(matches!(engine.wait_for_var(&token), Err(WaitError::Failed(_))));
    });
}
