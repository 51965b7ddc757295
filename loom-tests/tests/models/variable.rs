//! The happens-before edges that a variable adds, through its version and through its count of handles.
use std::sync::Arc;

use raddle::{Device, Engine, EngineKind, Token, gpu::SimulatedGpu, internals::Flavour::Contract, stream};
use raddle_loom_tests::checker::{
    cell::UnsafeCell,
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
    thread,
};
use raddle_loom_tests::shapes::*;
use raddle_loom_tests::{kills, model};

struct Data(UnsafeCell<usize>);
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Sync for Data {}
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Send for Data {}

/// A value whose drop writes to the data.
struct Value(Arc<Data>);

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: no handle is left, so no other thread uses the data; the model verifies this.
        self.0.0.with_mut(|data| unsafe { *data += 1 });
    }
}

#[test]
fn uses_through_any_handle_come_before_the_drop_of_the_value() {
    model(2, Contract, || {
        let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
        let data = Arc::new(Data(UnsafeCell::new(0)));
        let var = engine.var(Value(Arc::clone(&data)));
        let (other, handle) = (Arc::clone(&data), var.clone());
        let thread = thread::spawn(move || {
            // SAFETY: the value is dropped only after this handle; the model verifies this.
            other.0.with_mut(|data| unsafe { *data += 1 });
            drop(handle);
        });
        drop(var);
        thread.join().unwrap();
        // SAFETY: the thread is joined, and the value is dropped.
        assert_eq!(data.0.with(|data| unsafe { *data }), 2);
    });
}

/// Models a thread that sees version 1 of a variable: it must see the effects of the mutation that `push` pushes on
/// `engine`.
fn a_version_is_seen_with_its_mutation(engine: &Engine, push: impl FnOnce(&Token, Box<dyn FnOnce() + Send>)) {
    let (token, data) = (engine.token(), Arc::new(Data(UnsafeCell::new(0))));
    // This thread runs the mutation, which loads the version and then stores the next one. If the spawned thread ran
    // the mutation, the mutation's load would hide the reader's load from loom, which would then not explore the order
    // in which the reader's load follows the store.
    let (its_token, its_data) = (token.clone(), Arc::clone(&data));
    let thread = thread::spawn(move || {
        if its_token.version() == 1 {
            // SAFETY: the mutation has been counted, so it is over; the model verifies this.
            assert_eq!(its_data.0.with(|data| unsafe { *data }), 1);
        }
    });
    // SAFETY: the other thread reads only after the mutation is over; the model verifies this.
    push(&token, Box::new(move || data.0.with_mut(|data| unsafe { *data += 1 })));
    thread.join().unwrap();
    assert_eq!(token.version(), 1);
}

#[test]
fn a_thread_that_sees_a_version_sees_the_mutations_it_counts() {
    model(2, Contract, || {
        let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
        a_version_is_seen_with_its_mutation(&engine, |token, mutate| {
            engine.push_sync(move |_| mutate(), [], [token]).unwrap();
        });
    });
}

/// Like the model above, but with a GPU operation, whose mutation is counted by a read-modify-write, since several
/// lanes may count mutations of a variable concurrently.
#[test]
fn a_thread_that_sees_a_version_sees_the_mutations_of_a_device_that_it_counts() {
    model(2, Contract, || {
        let engine = Engine::builder().kind(EngineKind::Naive).gpu(SimulatedGpu::new()).build().unwrap();
        a_version_is_seen_with_its_mutation(&engine, |token, mutate| {
            engine.op("").on(Device::Gpu(0)).writes([token]).push(stream(), move |_| mutate()).unwrap();
        });
    });
}

/// A mutation is counted before its operation is complete: a thread that knows that the operation has begun, and then
/// waits for the variable, finds the mutation counted.
#[test]
fn a_thread_that_has_waited_for_a_mutation_sees_it_in_the_version() {
    model(2, Contract, || {
        let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
        let (token, began) = (engine.token(), Arc::new(AtomicBool::new(false)));
        let (its_engine, its_token, has_begun) = (engine.clone(), token.clone(), Arc::clone(&began));
        let thread = thread::spawn(move || {
            if has_begun.load(Acquire) {
                its_engine.wait_for_var(&its_token).unwrap();
                assert_eq!(its_token.version(), 1, "a mutation that is over is not counted");
            }
        });
        engine.push_sync(move |_| began.store(true, Release), [], [&token]).unwrap();
        thread.join().unwrap();
    });
}

kills! {
    uses_through_any_handle_come_before_the_drop_of_the_value {
        "handles::DROPPED": "Causality violation",
        "handles::LAST": "Causality violation",
    }
    a_thread_that_sees_a_version_sees_the_mutations_it_counts {
        "version::MUTATED": "Causality violation",
        "version::READ": "Causality violation",
    }
    a_thread_that_sees_a_version_sees_the_mutations_of_a_device_that_it_counts {
        "version::ON_DEVICE": "Causality violation",
    }
}
