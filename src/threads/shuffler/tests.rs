use std::{
    iter,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use super::*;
use crate::{
    notify::waiters::{Situation, Waiter},
    tracker::{ReadyList, end},
};

#[test]
fn delays_are_random_and_shorter_than_the_limit() {
    let delays = |seed| {
        let shuffler = Shuffler::<()>::new(seed);
        (0..1000).map(|_| shuffler.delay(Duration::from_micros(100)).as_nanos()).collect::<Vec<_>>()
    };
    let delays = [1, 1, 2].map(delays);
    assert!(delays[0] == delays[1] && delays[0] != delays[2]);
    for delays in delays {
        let tenth = |which: u128| delays.iter().filter(|&&delay| delay / 10_000 == which).count();
        assert!((0..10).all(|which| (50..150).contains(&tenth(which))), "{delays:?}");
        assert!(delays.iter().all(|&delay| delay < 100_000));
    }
}

/// The first numbers of the published generator for the seed 0.
#[test]
fn random_numbers_are_those_of_split_mix_64() {
    let mut random = Random(0);
    let numbers = [(); 3].map(|()| random.next());
    assert_eq!(numbers, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
}

#[test]
fn draws_are_counted_once_the_operation_is_in_its_lane() {
    let shuffler = Shuffler::<usize>::new(1);
    for draws in 0..3 {
        assert_eq!(shuffler.draws_if_empty(), Some(draws));
        // SAFETY: `new_with` passes a pointer to room for a task.
        let init = |place: *mut usize| unsafe { place.write(7) };
        // SAFETY: the iterator yields no variables, and `init` initialises the task.
        shuffler.put(draws, unsafe { OpRef::new_with(init, 0, false, iter::empty()) });
        assert_eq!(shuffler.draws_if_empty(), None, "an operation is ready");
        shuffler.draw(|op| {
            assert_eq!(shuffler.draws_if_empty(), None, "an operation is not in its lane");
            end(op, &mut ReadyList::default());
        });
    }
}

#[test]
fn a_program_is_not_still_while_the_thread_of_a_wait_that_is_over_has_yet_to_run() {
    let (shuffler, is_over) = (Shuffler::<()>::new(1), AtomicBool::new(false));
    // Relaxed, like the store below: the test has one thread.
    shuffler.during(&|| is_over.load(Relaxed), || {
        assert!(shuffler.is_program_still(), "all threads wait");
        // Another thread must still wait.
        shuffler.during(&|| false, || {
            is_over.store(true, Relaxed);
            assert!(!shuffler.is_program_still());
        });
    });
}

// ---------------------------------------------------------------------------------------------------- waiters ----

/// Identifies the operation for which threads wait.
const OP: NonNull<()> = NonNull::dangling();

/// Lists the calling thread as one that waits for `OP` while `f` runs.
fn waiting<R>(waiters: &Waiters, is_over: &IsOver<'_>, f: impl FnOnce(&Waiter<'_>) -> R) -> R {
    let goal = Goal::Op { task: OP, held_back_by: None };
    waiters.during(NonNull::dangling(), Inside::default(), goal, Kind::Refusable, is_over, f)
}

#[test]
fn a_waiter_is_found_after_another_for_the_same_operation_has_left() {
    let waiters = Waiters::default();
    let found = || {
        let mut numbers = Vec::new();
        waiters.each_for(Some(OP), |_| true, |number, _, _| numbers.push(number));
        numbers
    };
    waiting(&waiters, &|| false, |first| {
        waiting(&waiters, &|| false, |second| assert_eq!(found(), [first.number(), second.number()]));
        assert_eq!(found(), [first.number()]);
    });
    assert!(found().is_empty());
}

#[test]
fn a_waiter_waits_unless_it_is_suspended_or_its_wait_is_over() {
    let (waiters, is_over) = (Waiters::default(), AtomicBool::new(false));
    // Relaxed, like the store below: the test has one thread.
    waiting(&waiters, &|| is_over.load(Relaxed), |waiter| {
        let waits = || {
            let (any, all) = (waiters.any_waits(), waiters.all_wait([waiter.number()]));
            assert_eq!(any, all);
            all
        };
        assert!(waits());
        waiter.suspend(|| assert!(!waits(), "a suspended waiter waits"));
        assert!(waits());
        assert!(!waiters.all_wait([waiter.number(), waiter.number() + 1]), "an unknown waiter waits");
        is_over.store(true, Relaxed);
        assert!(!waits(), "a waiter whose wait is over waits");
    });
}

#[test]
fn a_waiter_knows_whether_it_is_the_last_and_whether_it_was_asked() {
    let waiters = Waiters::default();
    let situation = |waiter: &Waiter<'_>| {
        let Situation { waiters, is_last, is_asked } = waiter.situation();
        (waiters, is_last, is_asked)
    };
    waiting(&waiters, &|| false, |first| {
        assert_eq!(situation(first), (1, true, false));
        waiting(&waiters, &|| false, |second| {
            waiters.ask([first.number()]);
            assert_eq!(situation(second), (2, true, false));
            assert_eq!(situation(first), (2, false, true));
            assert_eq!(situation(first), (2, false, false), "a waiter is asked once");
        });
        assert_eq!(situation(first), (1, true, false));
    });
}
