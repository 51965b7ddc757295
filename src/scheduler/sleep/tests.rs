//! The event count on one thread, which carries every worker.

use std::thread;

use super::{
    super::testing::{assert_not_woken, assert_woken},
    *,
};

/// More workers than a word of `sleepers` has bits.
const WORKERS: usize = 130;

fn carried() -> Sleep {
    let sleep = Sleep::new(WORKERS, false);
    (0..WORKERS).for_each(|worker| sleep.carry(worker));
    sleep
}

/// The workers whose bits are set.
fn sleepers(sleep: &Sleep) -> Vec<usize> {
    let is_set = |&worker: &usize| {
        // Relaxed: there is one thread.
        let bits = sleep.words[worker / 64].sleepers.load(Relaxed);
        bits & (1 << (worker % 64)) != 0
    };
    (0..WORKERS).filter(is_set).collect()
}

#[test]
fn half_of_the_workers_search_at_once_and_one_in_any_case() {
    for (workers, unbounded, most) in [(1, false, 1), (2, false, 1), (3, false, 1), (6, false, 3), (3, true, 3)] {
        let sleep = Sleep::new(workers, unbounded);
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
        sleep.announce(worker, false, false);
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
    let sleep = Sleep::new(WORKERS, false);
    // Nobody carries the others.
    sleep.carry(129);
    sleep.announce(129, false, false);
    sleep.announce(100, false, false);
    sleep.notify();
    assert_not_woken();
    sleep.retract(100);
    let _ = sleep.stop_search();
    sleep.notify();
    assert_woken();
}

/// Threads that have ended are among them, each of which may have had the number of the next one.
#[test]
fn a_worker_is_woken_through_the_thread_that_carries_it_now_whoever_did_before() {
    let sleep = Sleep::new(1, false);
    for _ in 0..3 {
        thread::scope(|scope| {
            scope.spawn(|| sleep.carry(0));
        });
        sleep.carry(0);
        sleep.announce(0, false, false);
        sleep.notify();
        assert_woken();
        sleep.retract(0);
        assert!(sleep.stop_search());
    }
}

#[test]
fn nobody_is_woken_while_somebody_searches() {
    let sleep = carried();
    sleep.announce(1, false, false);
    assert!(sleep.try_start_search());
    sleep.notify();
    assert_not_woken();
    sleep.announce(0, true, false);
    sleep.notify();
    assert_woken(); // An announcement ends the search.
}

#[test]
fn all_are_woken_whatever_they_do() {
    let sleep = Sleep::new(3, false);
    sleep.carry(2);
    assert!(sleep.try_start_search());
    sleep.wake_all();
    assert_woken();
}

#[test]
fn who_wakes_is_a_searcher_and_is_not_announced_any_more() {
    let sleep = carried();
    sleep.announce(70, false, false);
    sleep.notify();
    sleep.park(70);
    assert_eq!(sleepers(&sleep), []);
    assert_not_woken();
    assert!(sleep.stop_search());
}

#[test]
fn who_naps_is_left_alone_while_somebody_is_awake() {
    let sleep = carried();
    (1..WORKERS).for_each(|worker| sleep.announce(worker, false, true));
    sleep.notify();
    assert_not_woken();
    sleep.announce(0, false, true);
    sleep.notify();
    assert_woken(); // There is nobody else.
}

#[test]
fn who_sleeps_is_woken_before_who_naps() {
    let sleep = Sleep::new(WORKERS, false);
    // Nobody carries the others.
    sleep.carry(129);
    (0..WORKERS).for_each(|worker| sleep.announce(worker, false, worker != 129));
    sleep.notify();
    assert_woken();
}

#[test]
fn who_has_napped_does_not_nap_any_more() {
    let sleep = carried();
    sleep.announce(70, false, true);
    sleep.nap(70);
    assert_eq!(sleepers(&sleep), []);
    assert!(sleep.stop_search(), "it had become a searcher");
    sleep.announce(70, false, false);
    sleep.notify();
    assert_woken();
}

#[test]
fn a_nap_is_for_a_reason_that_somebody_gives_anew() {
    let sleep = carried();
    sleep.crowd(70);
    assert!((0..WORKERS).all(|worker| sleep.is_crowded(worker) == (worker == 70)));
    sleep.announce(70, false, false);
    assert!(sleep.is_crowded(70), "it does not nap");
    sleep.announce(70, false, true);
    assert!(!sleep.is_crowded(70));
}

#[test]
fn who_naps_is_roused_and_nobody_else() {
    let sleep = carried();
    sleep.announce(1, false, false);
    sleep.rouse();
    assert_not_woken();
    sleep.announce(70, false, true);
    sleep.crowd(70);
    sleep.rouse();
    assert_woken();
    assert!(!sleep.is_crowded(70), "it would nap on");
}

#[test]
fn looks_are_counted_over_all_workers() {
    let sleep = carried();
    (0..WORKERS).for_each(|worker| (0..worker).for_each(|_| sleep.count_look(worker)));
    assert_eq!(sleep.looks(), WORKERS * (WORKERS - 1) / 2);
}

/// Keeps the calling thread on a core, where that is possible.
#[cfg(all(target_os = "linux", not(miri)))]
fn stay() -> Option<usize> {
    let core = core_affinity::get_core_ids()?.pop()?;
    core_affinity::set_for_current(core).then_some(core.id)
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn the_worker_on_the_core_of_who_makes_the_work_is_woken_last_and_told_of_it() {
    let Some(core) = stay() else { return };
    let sleep = Sleep::new(WORKERS, false);
    // Nobody carries the others.
    sleep.carry(129);
    sleep.place(0, Some(core));
    sleep.place(129, Some(core + 1));
    sleep.announce(0, false, false);
    sleep.announce(129, false, false);
    sleep.notify();
    assert_woken();
    sleep.carry(0);
    sleep.retract(129);
    let _ = sleep.stop_search();
    sleep.notify();
    assert_woken(); // There is nobody else.
    sleep.crowd_here();
    assert!((0..WORKERS).all(|worker| sleep.is_crowded(worker) == (worker == 0)));
    sleep.place(0, None);
    sleep.announce(0, false, true);
    sleep.crowd_here();
    assert!(!sleep.is_crowded(0), "it is on no core any more");
}
