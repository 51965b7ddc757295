//! Units of resources that are given back, or whose waiters are cancelled, while a waiter enters.

use std::sync::{
    Arc,
    // This type is from `std`, so it adds no interleavings.
    atomic::{AtomicU64, Ordering::Relaxed},
};

use raddle::internals::{Admission, Cancel, Claim, Flavour, Need, Stock, join};
use raddle_loom_tests::checker::thread;
use raddle_loom_tests::{COMPLETE, kills, model};

type Shared = Arc<Stock<u32>>;

fn resource() -> Shared {
    Arc::new(Stock::new(0, 1, false))
}

fn needs<const N: usize>(resources: [&Shared; N]) -> Vec<Need<u32>> {
    // Not sorted by address, which depends on earlier interleavings.
    let needs: Vec<_> = resources.map(|resource| Need { resource: Arc::clone(resource), units: 1 }).into();
    join(&needs);
    needs
}

fn enter(needs: &[Need<u32>], waiter: u32) -> bool {
    match Stock::enter(0, needs, waiter, |_| true, |_| {}) {
        Admission::Admitted(_) => true,
        Admission::Waits => false,
        Admission::Unwanted(_) => unreachable!("every waiter is wanted"),
    }
}

/// Returns the waiters that are admitted.
fn give_back(needs: &[Need<u32>]) -> Vec<u32> {
    Stock::give_back(needs).into_iter().map(|left| left.waiter).collect()
}

#[test]
fn a_unit_that_is_given_back_reaches_who_enters_meanwhile() {
    model(COMPLETE, Flavour::Contract, || {
        let one = resource();
        assert!(enter(&needs([&one]), 0));
        let its = Arc::clone(&one);
        let thread = thread::spawn(move || give_back(&needs([&its])));
        let is_admitted = enter(&needs([&one]), 1);
        let admitted = thread.join().unwrap();
        assert_eq!(admitted.len() + usize::from(is_admitted), 1, "the unit was lost or given twice");
    });
}

/// One thread takes units of two resources, which share their queues from then on. Meanwhile, another gives back a unit
/// of one of them, for which a waiter waits.
#[test]
fn a_unit_that_is_given_back_is_found_in_queues_that_move() {
    model(3, Flavour::Contract, || {
        let (one, other) = (resource(), resource());
        assert!(enter(&needs([&one]), 0) && enter(&needs([&other]), 1));
        assert!(!enter(&needs([&one]), 2));
        let (its, its_other) = (Arc::clone(&one), Arc::clone(&other));
        let thread = thread::spawn(move || {
            let mut admitted = give_back(&needs([&its]));
            admitted.extend(give_back(&needs([&its_other])));
            admitted
        });
        let both = enter(&needs([&one, &other]), 3);
        let mut admitted = thread.join().unwrap();
        assert!(!both && admitted == [2], "the unit was lost or overtaken: {admitted:?}");
        admitted.extend(give_back(&needs([&one])));
        assert_eq!(admitted, [2, 3], "the waiter for both was lost");
    });
}

/// A waiter is cancelled while it enters: either it does not wait, or the canceller finds it.
#[test]
fn a_cancelled_waiter_does_not_wait() {
    model(COMPLETE, Flavour::Contract, || {
        let one = resource();
        assert!(enter(&needs([&one]), 0));
        let (claim, number) = (Arc::new(Claim::default()), Arc::new(AtomicU64::new(0)));
        let (its, its_claim, its_number) = (Arc::clone(&one), Arc::clone(&claim), Arc::clone(&number));
        let canceller = thread::spawn(move || {
            assert!(its_claim.cancel(Cancel::Loudly));
            Stock::withdraw(0, &needs([&its]), || its_number.load(Relaxed)).len()
        });
        let note = |given| number.store(given, Relaxed);
        let entered = Stock::enter(0, &needs([&one]), 1, |_| !claim.is_cancelled(), note);
        let withdrawn = canceller.join().unwrap();
        let is_unwanted = matches!(entered, Admission::Unwanted(_));
        assert_eq!(withdrawn + usize::from(is_unwanted), 1, "a cancelled operation waits for units");
        assert!(give_back(&needs([&one])).is_empty());
    });
}

kills! {
    a_unit_that_is_given_back_reaches_who_enters_meanwhile {
        "step::UNITS_LOOK_UNDER_LOCK": "the unit was lost or given twice",
    }
    a_cancelled_waiter_does_not_wait {
        "step::UNITS_LOOK_FOR_CANCEL": "a cancelled operation waits for units",
    }
}
