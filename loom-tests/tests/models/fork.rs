//! The list of living engines, in which a forked child finds the engines that it must end. The models do not show that
//! a child sees the writes made before the fork, since in the models a thread of the same process stands for the child.
use std::{ptr::NonNull, sync::Arc};

use raddle::internals::{Flavour, Slots};
use raddle_loom_tests::checker::{cell::UnsafeCell, thread};
use raddle_loom_tests::{COMPLETE, kills, model};

struct Engine(UnsafeCell<u32>);

/// A pointer to an engine that lives until the model ends.
#[derive(Clone, Copy)]
struct Name(NonNull<Engine>);

// SAFETY: loom reports racing uses of an engine.
unsafe impl Send for Name {}

impl Name {
    /// Creates an engine and writes to it.
    fn new(number: u32) -> Self {
        let engine = Box::new(Engine(UnsafeCell::new(0)));
        // SAFETY: no other thread has access to the engine yet.
        engine.0.with_mut(|value| unsafe { *value = number });
        Self(NonNull::from(Box::leak(engine)))
    }

    fn number(self) -> u32 {
        // SAFETY: only `end` frees the engine, after all other uses.
        let engine = unsafe { self.0.as_ref() };
        // SAFETY: loom reports a concurrent write.
        engine.0.with(|value| unsafe { *value })
    }

    fn end(self) {
        // SAFETY: `new` leaked the engine, and only the model's main thread calls `end`, once for each engine, after it
        // has joined the other thread.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

fn numbers(slots: &Slots<Engine>) -> Vec<u32> {
    let mut numbers = Vec::new();
    slots.each(|engine| numbers.push(Name(engine).number()));
    numbers.sort_unstable();
    numbers
}

/// One slot is free, and both threads may find it.
#[test]
fn each_engine_has_a_slot_of_its_own() {
    model(COMPLETE, Flavour::Contract, || {
        let slots = Arc::new(Slots::default());
        let [first, second, third] = [1, 2, 3].map(Name::new);
        slots.add(first.0);
        slots.remove(first.0);
        let its_slots = Arc::clone(&slots);
        let thread = thread::spawn(move || {
            let second = second;
            its_slots.add(second.0);
        });
        slots.add(third.0);
        thread.join().unwrap();
        assert_eq!(numbers(&slots), [2, 3], "an engine is missing");
        slots.remove(second.0);
        assert_eq!(numbers(&slots), [3], "an engine is missing");
        [first, second, third].into_iter().for_each(Name::end);
    });
}

#[test]
fn the_engine_in_a_new_slot_is_visible() {
    model(COMPLETE, Flavour::Contract, || {
        let slots = Arc::new(Slots::default());
        let its_slots = Arc::clone(&slots);
        let thread = thread::spawn(move || assert!(matches!(*numbers(&its_slots), [] | [1])));
        let engine = Name::new(1);
        slots.add(engine.0);
        thread.join().unwrap();
        engine.end();
    });
}

#[test]
fn the_engine_in_a_reused_slot_is_visible() {
    model(COMPLETE, Flavour::Contract, || {
        let slots = Arc::new(Slots::default());
        let first = Name::new(1);
        slots.add(first.0);
        slots.remove(first.0);
        let its_slots = Arc::clone(&slots);
        let thread = thread::spawn(move || assert!(matches!(*numbers(&its_slots), [] | [2])));
        let second = Name::new(2);
        slots.add(second.0);
        thread.join().unwrap();
        [first, second].into_iter().for_each(Name::end);
    });
}

kills! {
    the_engine_in_a_new_slot_is_visible {
        "slot::NEW": "Causality violation",
        "slot::LIST": "Causality violation",
    }
    the_engine_in_a_reused_slot_is_visible {
        "slot::REUSED": "Causality violation",
        "slot::EACH": "Causality violation",
    }
}
