use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::*;

/// Identifies the operation for which threads wait.
const OP: NonNull<()> = NonNull::dangling();

/// The engine for which threads wait.
const ENGINE: NonNull<()> = NonNull::dangling();

/// Lists the calling thread as one that waits for `OP` inside `inside` while `f` runs.
fn waiting_in<R>(
    waiters: &Waiters,
    inside: &Inside,
    is_over: &IsOver<'_>,
    f: impl FnOnce(&ListedWaiter<'_>) -> R,
) -> R {
    let goal = Some(Goal::Op { task: OP, kept_out_by: None });
    let (is_outside, since) = (inside.is_empty(), Instant::now());
    let (kind, awaits) = (WaiterKind::Refusable, Awaits::Operation);
    waiters.during(BlockingWait { engine: ENGINE, inside, is_outside, kind, awaits, goal, since, is_over }, f)
}

/// Lists the calling thread as one that waits for `OP` inside another operation while `f` runs.
fn waiting<R>(waiters: &Waiters, is_over: &IsOver<'_>, f: impl FnOnce(&ListedWaiter<'_>) -> R) -> R {
    let ops = Ops::from_iter([Nested { op: NonNull::dangling(), depth: 0 }]);
    let inside = Inside { ops, ..Inside::default() };
    waiting_in(waiters, &inside, is_over, f)
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
            let (any, all) = (waiters.all_wait_still(ENGINE), waiters.all_wait([waiter.number()]));
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
    let situation = |waiter: &ListedWaiter<'_>| {
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

#[test]
fn threads_outside_wait_unless_one_of_them_is_in_a_wait_that_is_over() {
    let (waiters, is_over, outside) = (Waiters::default(), AtomicBool::new(false), Inside::default());
    let other = NonNull::from(&is_over).cast();
    assert_eq!(waiters.outside(ENGINE), OutsideWaits::None);
    // Relaxed, like the store below: the test has one thread.
    waiting_in(&waiters, &outside, &|| is_over.load(Relaxed), |waiter| {
        assert!(!waiter.is_watched());
        assert_eq!(waiters.outside(ENGINE), OutsideWaits::Wait);
        assert_eq!(waiters.outside(other), OutsideWaits::None);
        // Another thread must still wait.
        waiting_in(&waiters, &outside, &|| false, |_| {
            is_over.store(true, Relaxed);
            assert_eq!(waiters.outside(ENGINE), OutsideWaits::SomeOver);
        });
    });
    waiting(&waiters, &|| false, |_| assert_eq!(waiters.outside(ENGINE), OutsideWaits::None));
}

#[test]
fn threads_outside_are_listed_but_not_watched() {
    let (waiters, outside) = (Waiters::default(), Inside::default());
    waiting_in(&waiters, &outside, &|| false, |first| {
        waiting(&waiters, &|| false, |second| {
            assert_eq!(second.situation().waiters, 1);
            assert!(!waiters.all_wait([first.number()]));
            let listed: Vec<u64> = waiters.of_engine(ENGINE).iter().map(|thread| thread.number).collect();
            assert_eq!(listed, [first.number(), second.number()]);
        });
    });
    assert!(waiters.of_engine(ENGINE).is_empty());
}
