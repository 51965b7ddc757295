//! The injector: each pushed operation is popped once. When no push or pop is under way, the mask shows every band that
//! holds operations, except the default band.
use std::sync::Arc;

use raddle::{
    IdlePolicy,
    internals::{DEFAULT_BAND, Flavour, Injector, Lane, LaneOptions, OpRef},
};
use raddle_loom_tests::checker::thread;
use raddle_loom_tests::{end_alone, kills, model, must_fail};

fn op(number: usize, band: u8) -> OpRef<usize> {
    // SAFETY: the operation uses no variable.
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
            // SAFETY: this thread has popped the operation, and no other thread changes its task.
            let number = unsafe { *op.task_ptr() };
            end_alone(op);
            number
        })
        .collect();
    assert!(numbers.len() <= max);
    numbers
}

/// Returns a model in which `pushers` threads push one operation each while the main thread pops twice. Then the main
/// thread takes the rest, relying on `highest` alone for a band that has a bit.
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
fn the_bit_of_a_band_is_set_while_it_holds_operations() {
    model(3, Flavour::Contract, pushers_and_a_popper(2, DEFAULT_BAND + 3));
}

/// Two poppers take up to two operations each, from `ready` or from the inbox; no operation is lost or taken twice, and
/// no freed operation is accessed.
#[test]
fn two_poppers_that_take_several_share_all_pushed_operations() {
    model(3, Flavour::Contract, || {
        let injector = Arc::new(Injector::default());
        (0..4).for_each(|number| injector.push(op(number, DEFAULT_BAND)));
        // Takes the oldest operation and puts the rest into `ready`.
        assert_eq!(pop(&injector, DEFAULT_BAND), Some(0));
        let other = Arc::clone(&injector);
        let thread = thread::spawn(move || {
            other.push(op(4, DEFAULT_BAND));
            pop_several(&other, DEFAULT_BAND, 2)
        });
        let mut popped = pop_several(&injector, DEFAULT_BAND, 2);
        assert!(popped.is_sorted(), "the oldest do not come first");
        popped.extend(thread.join().unwrap());
        while !injector.is_empty() {
            popped.extend(pop_several(&injector, DEFAULT_BAND, 2));
        }
        popped.sort_unstable();
        assert_eq!(popped, [1, 2, 3, 4]);
    });
}

/// Two poppers concurrently take chains and put what is left of them into `ready`; no operation is lost or taken twice.
#[test]
fn two_poppers_share_the_operations_of_two_pushes() {
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

/// After a slow popper has loaded a head, that head may be popped and freed, and another chain put into `ready`.
#[test]
fn a_slow_popper_finds_the_next_chain_and_no_freed_operation() {
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

/// Two poppers may each hold a chain, from which each takes one operation. Only one of them can leave the rest of its
/// chain at the front of `ready`.
#[test]
fn two_poppers_leave_the_rest_of_their_chains() {
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

/// D and X are in `ready`. One popper may have loaded D as the head, with X behind it, when the other pops both, ends
/// X, and pushes two operations. If D `comes_back`, it is the second of these and may become the head again. The first
/// popper must not mistake it for the head that it has loaded.
fn an_operation_could_come_back(comes_back: bool) -> impl Fn() + Send + Sync + 'static {
    const D: usize = 1;
    move || {
        let lane = lane();
        let pop = |lane: &Lane<usize>| pop(lane.injector_for_models(), DEFAULT_BAND);
        let mut pushed = vec![0, D, 2];
        pushed.iter().for_each(|&number| lane.inject(op(number, DEFAULT_BAND)));
        // This pop takes the inbox and leaves D and X in `ready`.
        let mut popped: Vec<usize> = pop(&lane).into_iter().collect();
        let other = Arc::clone(&lane);
        let thread = thread::spawn(move || pop(&other));
        if let Some((mut chain, _)) = lane.injector_for_models().pop(DEFAULT_BAND, 1) {
            let first = chain.next().unwrap();
            // SAFETY: this thread has popped the operation, and no other thread changes its task.
            let number = unsafe { *first.task_ptr() };
            popped.push(number);
            popped.extend(pop(&lane));
            lane.inject(op(3, DEFAULT_BAND));
            if comes_back && number == D {
                pushed.extend([3, D]);
                lane.inject(first);
            } else {
                pushed.extend([3, 4]);
                end_alone(first);
                lane.inject(op(4, DEFAULT_BAND));
            }
            popped.extend(pop(&lane));
        }
        popped.extend(thread.join().unwrap());
        popped.extend(std::iter::from_fn(|| pop(&lane)));
        pushed.sort_unstable();
        popped.sort_unstable();
        assert_eq!(popped, pushed, "an operation is not popped once per push");
    }
}

/// Creates a lane of two workers; the models' threads act as the workers.
fn lane() -> Arc<Lane<usize>> {
    Lane::new(LaneOptions { name: "model", workers: 2, idle: IdlePolicy::Park }).0
}

#[test]
fn an_operation_that_enters_once_is_popped_once_and_no_freed_one_is_reached() {
    model(3, Flavour::Contract, an_operation_could_come_back(false));
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn with_a_second_entry() {
    model(3, Flavour::Contract, an_operation_could_come_back(true));
}

#[test]
fn a_second_entry_is_refused() {
    must_fail!(with_a_second_entry, "an operation enters a lane of several workers a second time");
}

kills! {
    each_operation_of_the_default_band_is_popped_once {
        "inject::INBOX": "Causality violation",
        "inject::TAKEN": "Causality violation",
    }
    the_bit_of_a_band_is_set_while_it_holds_operations {
        "mask::SET": "operations are left in an injector",
        "mask::CLEARED": "operations are left in an injector",
        "step::BAND_CHECKED_AGAIN": "operations are left in an injector",
    }
    two_poppers_that_take_several_share_all_pushed_operations {
        "step::PIN": "use after reclamation",
    }
    two_poppers_share_the_operations_of_two_pushes {
        "inject::CHAIN": "operations are left in an injector",
        "inject::FIRST": "operations are left in an injector",
        "step::REST_MARKED": "operations are left in an injector",
    }
    a_slow_popper_finds_the_next_chain_and_no_freed_operation {
        "inject::RETRY": "Causality violation",
        "step::PIN": "use after reclamation",
    }
    an_operation_that_enters_once_is_popped_once_and_no_freed_one_is_reached {
        "inject::INBOX": "Causality violation",
    }
    with_a_second_entry {
        "step::ENTERS_ONCE": "use after reclamation",
    }
}
