//! Loans: after a wait, functions continue in workers' places.
use std::sync::{Arc, atomic::Ordering::Relaxed};

use raddle::{
    IdlePolicy,
    internals::{Flavour, LentPlace, Loans, Sleep, Stay},
};
use raddle_loom_tests::checker::{sync::atomic::AtomicUsize, thread};
use raddle_loom_tests::{COMPLETE, kills, model};

/// A lane with idle workers, and the number of functions computing in it.
struct Lane {
    sleep: Sleep,
    loans: Loans,
    computing: AtomicUsize,
    workers: usize,
}

impl Lane {
    fn new(workers: usize) -> Arc<Self> {
        let sleep = Sleep::new(workers, IdlePolicy::Park);
        (0..workers).for_each(|worker| sleep.note_idle(worker));
        Arc::new(Self { sleep, loans: Loans::default(), computing: AtomicUsize::new(0), workers })
    }

    fn compute(&self) {
        // Relaxed: the count publishes no other data.
        let others = self.computing.fetch_add(1, Relaxed);
        assert!(others < self.workers, "more functions compute than there are workers");
        self.computing.fetch_sub(1, Relaxed);
    }

    /// Lets an idle worker find work. Returns whether the worker had to stay idle first.
    fn work(&self, worker: usize) -> bool {
        self.sleep.start_search();
        self.sleep.note_busy(worker);
        let _ = self.sleep.stop_search();
        let stays = || self.loans.stay_idle(&self.sleep, worker, None, || {}) == Stay::Over;
        let has_stayed = self.loans.are_any() && stays();
        self.compute();
        has_stayed
    }

    /// Lets a function continue after a wait if it can borrow the place of an idle worker.
    fn go_on(&self) {
        if let Some(lent) = self.loans.borrow(&self.sleep, self.workers) {
            if lent == LentPlace::Idle {
                self.compute();
            }
            self.loans.give_back();
        }
    }
}

/// The only worker finds work while a function tries to continue in the worker's place.
#[test]
fn a_worker_stays_idle_while_a_function_continues_in_its_place() {
    model(COMPLETE, Flavour::Contract, || {
        let lane = Lane::new(1);
        let other = Arc::clone(&lane);
        let function = thread::spawn(move || other.go_on());
        lane.work(0);
        function.join().unwrap();
    });
}

/// A function continues after a wait, waits again and continues again. The worker in whose place it continues may stay
/// idle and see that the place has been given back. That worker must then also see the next loan.
#[test]
fn a_worker_that_has_stayed_idle_sees_the_next_loan() {
    model(3, Flavour::Contract, || {
        let lane = Lane::new(1);
        let other = Arc::clone(&lane);
        let function = thread::spawn(move || {
            other.go_on();
            other.go_on();
        });
        lane.work(0);
        function.join().unwrap();
    });
}

/// Two workers find work concurrently while a function continues in place of one of them. At most one stays idle.
#[test]
fn at_most_one_of_two_workers_stays_idle_for_a_function() {
    model(2, Flavour::Contract, || {
        let lane = Lane::new(2);
        let (other, third) = (Arc::clone(&lane), Arc::clone(&lane));
        let borrowed = lane.loans.borrow(&lane.sleep, 2);
        assert_eq!(borrowed, Some(LentPlace::Idle), "no worker was borrowed although both are idle");
        let workers = [thread::spawn(move || other.work(0)), thread::spawn(move || third.work(1))];
        lane.compute();
        lane.loans.give_back();
        let stayed = workers.map(|worker| worker.join().unwrap());
        assert_ne!(stayed, [true; 2], "both stay idle for one function");
    });
}

/// Two functions try to continue in place of one worker. At most one of them continues at any time.
#[test]
fn a_place_is_lent_to_one_function_at_a_time() {
    model(COMPLETE, Flavour::Contract, || {
        let lane = Lane::new(1);
        let other = Arc::clone(&lane);
        let function = thread::spawn(move || other.go_on());
        lane.go_on();
        function.join().unwrap();
    });
}

/// A function continues in the place of the only worker, which is busy, and asks it to give way. Once the worker has
/// given way, it computes only after the function.
#[test]
fn a_worker_that_has_given_way_does_not_compute_beside_the_function() {
    model(COMPLETE, Flavour::Contract, || {
        let lane = Lane::new(1);
        lane.sleep.note_busy(0);
        let borrowed = lane.loans.borrow(&lane.sleep, 1);
        assert_eq!(borrowed, Some(LentPlace::Busy), "the only worker is busy");
        assert!(lane.loans.ask() && !lane.loans.ask(), "a worker is asked once");
        let other = Arc::clone(&lane);
        // The worker runs the operation that asks it.
        let worker = thread::spawn(move || {
            assert!(!other.loans.answer(&other.sleep), "one worker suffices for one function");
            let stay = other.loans.give_way(&other.sleep, 0, None);
            other.compute();
            stay
        });
        lane.compute();
        assert!(lane.loans.borrow(&lane.sleep, 1).is_none(), "the only place is lent twice");
        lane.loans.give_back();
        assert_ne!(worker.join().unwrap(), Stay::TimedOut);
    });
}

kills! {
    a_worker_that_has_given_way_does_not_compute_beside_the_function {
        "step::GIVE_BACK_NOTIFIES": "deadlock",
    }
    a_worker_stays_idle_while_a_function_continues_in_its_place {
        "lent::BORROW": "more functions compute than there are workers",
        "step::GIVE_BACK_NOTIFIES": "deadlock",
    }
    a_worker_that_has_stayed_idle_sees_the_next_loan {
        "lent::STAY": "more functions compute than there are workers",
    }
    at_most_one_of_two_workers_stays_idle_for_a_function {
        "step::GIVE_BACK_NOTIFIES": "deadlock",
    }
}
