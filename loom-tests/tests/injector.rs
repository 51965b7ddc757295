//! The injector: what is pushed is popped once, and no band forgets that it holds something.
#![cfg(raddle_loom)]

use std::sync::Arc;

use loom::thread;
use raddle::internals::{DEFAULT_BAND, Flavour, Injector, OpRef};
use raddle_loom_tests::model;

fn op(number: usize, band: u8) -> OpRef<usize> {
    // SAFETY: the operation names no variable.
    unsafe { OpRef::new(number, band, false, std::iter::empty()) }
}

fn pop(injector: &Injector<usize>, band: u8) -> Option<usize> {
    pop_several(injector, band, 1).pop()
}

fn pop_several(injector: &Injector<usize>, band: u8, max: usize) -> Vec<usize> {
    let Some((chain, _)) = injector.pop(band, max) else {
        return Vec::new();
    };
    let numbers: Vec<usize> = chain
        .map(|op| {
            // SAFETY: this thread has popped the operation, and nobody changes its task.
            let number = unsafe { *op.task_ptr() };
            op.release(0);
            number
        })
        .collect();
    assert!(numbers.len() <= max);
    numbers
}

/// `pushers` threads push one operation each while the main thread pops twice; then it takes what is left, and goes by
/// `highest` alone for bands that have a bit.
fn pushers_and_a_popper(pushers: usize, band: u8) -> impl Fn() + Send + Sync + 'static {
    move || {
        let injector = Arc::new(Injector::default());
        let threads: Vec<_> = (0..pushers)
            .map(|number| {
                let injector = Arc::clone(&injector);
                thread::spawn(move || injector.push(op(number, band)))
            })
            .collect();
        let mut popped: Vec<usize> = (0..2).filter_map(|_| pop(&injector, band)).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        while injector.highest() == Some(band) || band == DEFAULT_BAND && !injector.is_empty() {
            popped.extend(pop(&injector, band));
        }
        popped.sort_unstable();
        assert_eq!(popped, (0..pushers).collect::<Vec<_>>());
    }
}

#[test]
fn each_operation_of_the_default_band_is_popped_once() {
    model(3, Flavour::Contract, pushers_and_a_popper(2, DEFAULT_BAND));
}

#[test]
fn the_bit_of_a_band_is_set_whenever_it_holds_something() {
    model(3, Flavour::Contract, pushers_and_a_popper(2, DEFAULT_BAND + 3));
}

/// Two poppers that take more than one at a time, from what is installed and from what is not; nothing is lost or taken twice,
/// and nobody looks at an operation that is gone.
#[test]
fn two_poppers_of_several_share_what_three_pushes_left() {
    model(3, Flavour::Contract, || {
        let injector = Arc::new(Injector::default());
        (0..4).for_each(|number| injector.push(op(number, DEFAULT_BAND)));
        // The oldest is taken, the others are installed.
        assert_eq!(pop(&injector, DEFAULT_BAND), Some(0));
        let other = Arc::clone(&injector);
        let thread = thread::spawn(move || {
            other.push(op(4, DEFAULT_BAND));
            pop_several(&other, DEFAULT_BAND, 2)
        });
        let mut popped = pop_several(&injector, DEFAULT_BAND, 2);
        assert!(popped.is_sorted(), "the oldest come first");
        popped.extend(thread.join().unwrap());
        while !injector.is_empty() {
            popped.extend(pop_several(&injector, DEFAULT_BAND, 2));
        }
        popped.sort_unstable();
        assert_eq!(popped, [1, 2, 3, 4]);
    });
}

/// Two poppers take and install chains at the same time; nothing is lost or taken twice.
#[test]
fn two_poppers_share_what_two_pushes_left() {
    model(3, Flavour::Contract, || {
        let band = DEFAULT_BAND + 1;
        let injector = Arc::new(Injector::default());
        (0..3).for_each(|number| injector.push(op(number, band)));
        let other = Arc::clone(&injector);
        let thread = thread::spawn(move || {
            other.push(op(3, band));
            pop(&other, band)
        });
        let mut popped: Vec<usize> = pop(&injector, band).into_iter().collect();
        popped.extend(thread.join().unwrap());
        while injector.highest() == Some(band) {
            popped.extend(pop(&injector, band));
        }
        popped.sort_unstable();
        assert_eq!(popped, [0, 1, 2, 3]);
    });
}

/// A popper is late: what it has seen at the front is popped, given back, and another chain stands there.
#[test]
fn a_late_popper_finds_the_next_chain_and_nothing_that_is_gone() {
    model(3, Flavour::Contract, || {
        let band = DEFAULT_BAND;
        let injector = Arc::new(Injector::default());
        (0..2).for_each(|number| injector.push(op(number, band)));
        let mut popped: Vec<usize> = pop(&injector, band).into_iter().collect();
        let other = Arc::clone(&injector);
        let thread = thread::spawn(move || {
            let first = pop(&other, band);
            (2..4).for_each(|number| other.push(op(number, band)));
            [first, pop(&other, band)]
        });
        popped.extend(pop(&injector, band));
        popped.extend(thread.join().unwrap().into_iter().flatten());
        popped.extend(std::iter::from_fn(|| pop(&injector, band)));
        popped.sort_unstable();
        assert_eq!(popped, [0, 1, 2, 3]);
    });
}

/// Two poppers have a chain in hand, of which they take one operation, and only one of them can leave the rest in
/// front.
#[test]
fn two_poppers_leave_what_they_do_not_take() {
    model(3, Flavour::Contract, || {
        let band = DEFAULT_BAND;
        let injector = Arc::new(Injector::default());
        (0..2).for_each(|number| injector.push(op(number, band)));
        let other = Arc::clone(&injector);
        let thread = thread::spawn(move || {
            (2..4).for_each(|number| other.push(op(number, band)));
            pop(&other, band)
        });
        let mut popped: Vec<usize> = pop(&injector, band).into_iter().collect();
        popped.extend(thread.join().unwrap());
        popped.extend(std::iter::from_fn(|| pop(&injector, band)));
        popped.sort_unstable();
        assert_eq!(popped, [0, 1, 2, 3]);
    });
}
