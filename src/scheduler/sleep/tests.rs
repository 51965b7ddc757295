//! The event count on one thread, which carries every worker.

use super::{
    super::testing::{assert_not_woken, assert_woken},
    *,
};

/// More workers than a word of `sleepers` has bits.
const WORKERS: usize = 130;

fn carried() -> Sleep {
    let sleep = Sleep::new(WORKERS, 2, false);
    (0..WORKERS).for_each(|worker| sleep.carry(worker, 0));
    sleep
}

/// The workers whose bits are set.
fn sleepers(sleep: &Sleep) -> Vec<usize> {
    let is_set = |&worker: &usize| {
        // Relaxed: there is one thread.
        let bits = sleep.sleepers[worker / 64].load(Relaxed);
        bits & (1 << (worker % 64)) != 0
    };
    (0..WORKERS).filter(is_set).collect()
}

#[test]
fn half_of_the_workers_search_at_once_and_one_in_any_case() {
    for (workers, unbounded, most) in [(1, false, 1), (2, false, 1), (3, false, 1), (6, false, 3), (3, true, 3)] {
        let sleep = Sleep::new(workers, workers, unbounded);
        assert!((0..most).all(|_| sleep.try_start_search()), "{most} of {workers} may");
        assert!(!sleep.try_start_search(), "only {most} of {workers} may");
        assert_eq!(sleep.stop_search(), most == 1);
        assert!(sleep.try_start_search(), "another one in its place");
    }
}

#[test]
fn each_worker_has_a_bit_of_its_own() {
    let sleep = carried();
    for worker in [0, 1, 63, 64, 70, 127, 128, 129] {
        sleep.announce(worker, false);
        assert_eq!(sleepers(&sleep), [worker]);
        sleep.notify();
        assert_woken();
        assert_eq!(sleepers(&sleep), [worker], "the bit is the sleeper's to clear");
        sleep.retract(worker);
        assert_eq!(sleepers(&sleep), []);
        assert!(sleep.stop_search(), "it had become a searcher");
    }
}

#[test]
fn the_worker_with_the_lowest_number_is_woken() {
    let sleep = Sleep::new(WORKERS, 2, false);
    // The other thread is not there.
    sleep.carry(129, 0);
    // Relaxed: there is one thread.
    sleep.carriers.iter().take(129).for_each(|carrier| carrier.store(1, Relaxed));
    sleep.announce(129, false);
    sleep.announce(100, false);
    sleep.notify();
    assert_not_woken();
    sleep.retract(100);
    let _ = sleep.stop_search();
    sleep.notify();
    assert_woken();
}

#[test]
fn nobody_is_woken_while_somebody_searches() {
    let sleep = carried();
    sleep.announce(1, false);
    assert!(sleep.try_start_search());
    sleep.notify();
    assert_not_woken();
    sleep.announce(0, true);
    sleep.notify();
    assert_woken(); // An announcement ends the search.
}

#[test]
fn all_are_woken_whatever_they_do() {
    let sleep = Sleep::new(3, 3, false);
    sleep.carry(2, 2);
    assert!(sleep.try_start_search());
    sleep.wake_all();
    assert_woken();
}

#[test]
fn who_wakes_is_a_searcher_and_is_not_announced_any_more() {
    let sleep = carried();
    sleep.announce(70, false);
    sleep.notify();
    sleep.park(70);
    assert_eq!(sleepers(&sleep), []);
    assert_not_woken();
    assert!(sleep.stop_search());
}
