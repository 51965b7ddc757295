//! A list of arrivals: each value is taken once, in order, and as it was added.
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use raddle::internals::Arrivals;
use raddle_loom_tests::checker::{cell::UnsafeCell, thread};
use raddle_loom_tests::{COMPLETE, kills, model};

/// A value whose contents loom watches.
struct Value(u8, UnsafeCell<u8>);

impl Value {
    fn new(number: u8) -> Self {
        let value = Self(number, UnsafeCell::new(0));
        // SAFETY: no other thread has the value.
        value.1.with_mut(|contents| unsafe { *contents = number });
        value
    }
}

// SAFETY: the contents are accessed by the value's owner only; the model verifies this.
unsafe impl Sync for Value {}

/// Two threads add values while a third takes what is there.
#[test]
fn each_arrival_is_taken_once_in_order_and_as_it_was_added() {
    static EARLY: AtomicBool = AtomicBool::new(false);
    model(COMPLETE, raddle::internals::Flavour::Contract, || {
        let list = Arc::new(Arrivals::default());
        let adders = [[1, 2].as_slice(), &[3]].map(|numbers| {
            let list = Arc::clone(&list);
            thread::spawn(move || numbers.iter().for_each(|&number| list.add(Value::new(number))))
        });
        let mut taken = list.take();
        if !taken.is_empty() {
            EARLY.store(true, Relaxed);
        }
        let read = |values: &[Value]| {
            for Value(number, contents) in values {
                // SAFETY: the value was taken, so it is this thread's; the model verifies this.
                assert_eq!(contents.with(|contents| unsafe { *contents }), *number);
            }
        };
        read(&taken);
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        taken.extend(list.take());
        read(&taken);
        let numbers: Vec<_> = taken.iter().map(|value| value.0).collect();
        assert!([[1, 2, 3], [1, 3, 2], [3, 1, 2]].iter().any(|order| *order == *numbers), "{numbers:?}");
    });
    assert!(EARLY.load(Relaxed), "no value is taken while others are added, so the model shows nothing");
}

kills! {
    each_arrival_is_taken_once_in_order_and_as_it_was_added {
        "arrival::ADDED": "Causality violation",
        "arrival::TAKEN": "Causality violation",
    }
}
