//! Tests of the event count. In most of them, one thread runs every worker.

use std::{sync::atomic::AtomicBool, thread, time::Instant};

use super::{
    super::testing::{assert_not_woken, assert_woken},
    *,
};

/// The number of workers in most tests. It exceeds the number of bits in a word of `sleepers`.
const WORKERS: usize = 130;

fn with_threads() -> Sleep {
    let sleep = Sleep::new(WORKERS, IdlePolicy::Park);
    (0..WORKERS).for_each(|worker| sleep.set_thread(worker));
    sleep
}

/// Returns the workers whose bits are set.
fn sleepers(sleep: &Sleep) -> Vec<usize> {
    let is_set = |&worker: &usize| {
        // Relaxed: there is one thread.
        let bits = sleep.words[worker / 64].sleepers.load(Relaxed);
        bits & (1 << (worker % 64)) != 0
    };
    (0..WORKERS).filter(is_set).collect()
}

#[test]
fn half_of_the_workers_may_search_and_at_least_one() {
    let cases = [
        (1, IdlePolicy::Park, 1),
        (2, IdlePolicy::Park, 1),
        (3, IdlePolicy::Park, 1),
        (6, IdlePolicy::Park, 3),
        (3, IdlePolicy::Spin, 3),
    ];
    for (workers, idle, most) in cases {
        let sleep = Sleep::new(workers, idle);
        assert!((0..most).all(|_| sleep.try_start_search()), "fewer than {most} of {workers} workers may search");
        assert!(!sleep.try_start_search(), "more than {most} of {workers} workers may search");
        assert_eq!(sleep.stop_search(), most == 1);
        assert!(sleep.try_start_search(), "no worker may search although one has stopped");
    }
}

#[test]
fn each_worker_has_a_bit_of_its_own() {
    let sleep = with_threads();
    for worker in [0, 1, 63, 64, 70, 127, 128, 129] {
        sleep.announce(worker, SearchState::Inactive, ParkKind::Untimed);
        assert_eq!(sleepers(&sleep), [worker]);
        sleep.notify();
        assert_woken();
        assert_eq!(sleepers(&sleep), [worker], "the bit was cleared by a thread other than the sleeper");
        sleep.retract(worker);
        assert_eq!(sleepers(&sleep), []);
        assert!(sleep.stop_search(), "the worker must have become a searcher");
    }
}

#[test]
fn the_worker_with_the_lowest_number_is_woken() {
    let sleep = Sleep::new(WORKERS, IdlePolicy::Park);
    // The other workers have no threads.
    sleep.set_thread(129);
    sleep.announce(129, SearchState::Inactive, ParkKind::Untimed);
    sleep.announce(100, SearchState::Inactive, ParkKind::Untimed);
    sleep.notify();
    assert_not_woken();
    sleep.retract(100);
    let _ = sleep.stop_search();
    sleep.notify();
    assert_woken();
}

/// Each spawned thread has ended before the wake-up, and the next one may reuse its number.
#[test]
fn a_worker_is_woken_through_the_thread_that_runs_it_now() {
    let sleep = Sleep::new(1, IdlePolicy::Park);
    for _ in 0..3 {
        thread::scope(|scope| {
            scope.spawn(|| sleep.set_thread(0));
        });
        sleep.set_thread(0);
        sleep.announce(0, SearchState::Inactive, ParkKind::Untimed);
        sleep.notify();
        assert_woken();
        sleep.retract(0);
        assert!(sleep.stop_search());
    }
}

#[test]
fn no_worker_is_woken_while_another_searches() {
    let sleep = with_threads();
    sleep.announce(1, SearchState::Inactive, ParkKind::Untimed);
    assert!(sleep.try_start_search());
    sleep.notify();
    assert_not_woken();
    sleep.announce(0, SearchState::Searching, ParkKind::Untimed);
    sleep.notify();
    assert_woken(); // An announcement ends the search.
}

#[test]
fn wake_all_wakes_a_worker_that_is_not_announced() {
    let sleep = Sleep::new(3, IdlePolicy::Park);
    sleep.set_thread(2);
    assert!(sleep.try_start_search());
    sleep.wake_all();
    assert_woken();
}

#[test]
fn a_woken_worker_is_a_searcher_and_not_announced() {
    let sleep = with_threads();
    sleep.announce(70, SearchState::Inactive, ParkKind::Untimed);
    let wakes = sleep.wakes_of(70);
    sleep.notify();
    sleep.park(70, wakes);
    assert_eq!(sleepers(&sleep), []);
    assert_not_woken();
    assert!(sleep.stop_search());
}

#[test]
fn a_timed_parker_is_not_woken_while_a_worker_is_awake() {
    let sleep = with_threads();
    (1..WORKERS).for_each(|worker| sleep.announce(worker, SearchState::Inactive, ParkKind::Timed));
    sleep.notify();
    assert_not_woken();
    sleep.announce(0, SearchState::Inactive, ParkKind::Timed);
    sleep.notify();
    assert_woken(); // No worker is awake.
}

#[test]
fn a_parked_worker_is_woken_before_a_timed_parker() {
    let sleep = Sleep::new(WORKERS, IdlePolicy::Park);
    // The other workers have no threads.
    sleep.set_thread(129);
    (0..WORKERS).for_each(|worker| {
        sleep.announce(worker, SearchState::Inactive, if worker == 129 { ParkKind::Untimed } else { ParkKind::Timed });
    });
    sleep.notify();
    assert_woken();
}

#[test]
fn a_worker_can_park_untimed_after_a_timed_park() {
    let sleep = with_threads();
    sleep.announce(70, SearchState::Inactive, ParkKind::Timed);
    sleep.park_timed(70, sleep.wakes_of(70));
    assert_eq!(sleepers(&sleep), []);
    assert!(sleep.stop_search(), "the worker must have become a searcher");
    sleep.announce(70, SearchState::Inactive, ParkKind::Untimed);
    sleep.notify();
    assert_woken();
}

#[test]
fn announcing_a_timed_park_clears_the_report_of_contention() {
    let sleep = with_threads();
    sleep.set_contended(70);
    assert!((0..WORKERS).all(|worker| sleep.is_contended(worker) == (worker == 70)));
    sleep.announce(70, SearchState::Inactive, ParkKind::Untimed);
    assert!(sleep.is_contended(70), "an untimed park cleared the report");
    sleep.announce(70, SearchState::Inactive, ParkKind::Timed);
    assert!(!sleep.is_contended(70));
}

#[test]
fn wake_yielded_wakes_timed_parkers_only() {
    let sleep = with_threads();
    sleep.announce(1, SearchState::Inactive, ParkKind::Untimed);
    sleep.wake_yielded();
    assert_not_woken();
    sleep.announce(70, SearchState::Inactive, ParkKind::Timed);
    sleep.set_contended(70);
    sleep.wake_yielded();
    assert_woken();
    assert!(!sleep.is_contended(70), "waking the worker must clear the report");
}

/// Calls `f` while worker 0 runs short operations on another thread.
fn beside_short_operations<R>(sleep: &Sleep, f: impl FnOnce() -> R) -> R {
    let runs = AtomicBool::new(true);
    thread::scope(|scope| {
        // Relaxed: a flag.
        scope.spawn(|| {
            while runs.load(Relaxed) {
                sleep.count_find(0);
            }
        });
        let returned = f();
        // Relaxed: a flag.
        runs.store(false, Relaxed);
        returned
    })
}

/// The other workers run short operations and contention has been reported, so the worker would park again if it had
/// not been woken, and would clear the report first. There are many workers, so that counting all their operations
/// takes long enough for one of them to run several.
#[test]
fn a_worker_woken_from_a_timed_park_does_not_park_again() {
    const MANY: usize = 4096;
    const WORKER: usize = MANY - 64;
    let sleep = Sleep::new(MANY, IdlePolicy::Park);
    sleep.set_thread(WORKER);
    (0..MANY).filter(|&worker| worker != WORKER).for_each(|worker| {
        sleep.announce(worker, SearchState::Inactive, ParkKind::Timed);
    });
    let park = |round| {
        let wakes = sleep.wakes_of(WORKER);
        sleep.announce(WORKER, SearchState::Inactive, ParkKind::Timed);
        if round % 2 == 0 {
            sleep.notify();
        } else {
            sleep.wake_yielded();
        }
        sleep.set_contended(WORKER);
        sleep.park_timed(WORKER, wakes);
        let _ = sleep.stop_search();
        !sleep.is_contended(WORKER)
    };
    let parks_again = beside_short_operations(&sleep, || (0..100).any(park));
    assert!(!parks_again, "a woken worker has parked again");
}

#[test]
fn wake_ups_are_counted_for_each_worker() {
    let sleep = with_threads();
    sleep.announce(70, SearchState::Inactive, ParkKind::Untimed);
    sleep.notify();
    sleep.announce(1, SearchState::Inactive, ParkKind::Timed);
    sleep.wake_yielded();
    let counts = [0, 1, 69, 70].map(|worker| sleep.wakes_of(worker));
    assert_eq!((counts, sleep.wakes()), ([0, 1, 0, 1], 2));
}

#[test]
fn finds_are_counted_over_all_workers() {
    let sleep = with_threads();
    (0..WORKERS).for_each(|worker| (0..worker).for_each(|_| sleep.count_find(worker)));
    assert_eq!(sleep.finds(), WORKERS * (WORKERS - 1) / 2);
}

#[test]
fn a_worker_is_idle_until_it_is_recorded_as_busy() {
    let sleep = with_threads();
    assert_eq!(sleep.count_idle(), 0);
    [1, 70, 1, 70, 129].into_iter().for_each(|worker| sleep.note_idle(worker));
    assert_eq!(sleep.count_idle(), 3);
    sleep.count_find(70);
    [1, 2, 1].into_iter().for_each(|worker| sleep.note_busy(worker));
    assert_eq!((sleep.count_idle(), sleep.finds()), (2, 1));
}

#[test]
fn workers_that_call_find_often_are_busy() {
    let sleep = with_threads();
    sleep.count_find(70);
    let (before, moment) = (sleep.finds(), Duration::from_nanos(1));
    let are_many = |time| Sleep::are_many(sleep.finds() - before, time);
    assert!(are_many(Duration::ZERO));
    assert!(!are_many(moment));
    [0, 70, 70].into_iter().for_each(|worker| sleep.count_find(worker));
    assert!(are_many(3 * MAX_FIND_INTERVAL));
    assert!(!are_many(3 * MAX_FIND_INTERVAL + moment));
}

/// Parks `worker` with a time limit and returns whether it has parked more than once: before it parks again, it clears
/// the report of contention.
fn parks_again(sleep: &Sleep, worker: usize) -> bool {
    sleep.announce(worker, SearchState::Inactive, ParkKind::Timed);
    sleep.set_contended(worker);
    sleep.park_timed(worker, sleep.wakes_of(worker));
    assert!(sleep.stop_search(), "the worker must have become a searcher");
    !sleep.is_contended(worker)
}

#[test]
fn a_timed_park_is_not_repeated_while_the_other_workers_do_nothing() {
    assert!(!parks_again(&with_threads(), 70));
}

#[test]
fn a_timed_park_is_repeated_while_another_worker_runs_short_operations() {
    let (sleep, start) = (with_threads(), Instant::now());
    // The other thread may not get a core during a park.
    let parks_again = beside_short_operations(&sleep, || {
        loop {
            let parks_again = parks_again(&sleep, 70);
            if parks_again || start.elapsed() > Duration::from_secs(20) {
                break parks_again;
            }
        }
    });
    assert!(parks_again);
}

/// Pins the calling thread to a core and returns the core, where possible.
#[cfg(all(target_os = "linux", not(miri)))]
fn stay() -> Option<usize> {
    let core = core_affinity::get_core_ids()?.pop()?;
    core_affinity::set_for_current(core).then_some(core.id)
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn a_worker_on_the_core_of_a_waiter_skips_some_searches() {
    let Some(core) = stay() else { return };
    let sleep = Sleep::new(1, IdlePolicy::default());
    assert!(!sleep.skips_search(), "no thread has waited");
    for _ in 0..2 {
        sleep.note_waiter(core);
        assert!((0..SKIPS_PER_WAIT).all(|_| sleep.is_beside_waiter() && sleep.skips_search()));
        assert!(!sleep.is_beside_waiter() && !sleep.skips_search());
    }
    sleep.note_waiter(core + 1);
    assert!(!sleep.is_beside_waiter() && !sleep.skips_search());
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn the_worker_on_the_pushers_core_is_woken_last_and_marked_contended() {
    let Some(core) = stay() else { return };
    let sleep = Sleep::new(WORKERS, IdlePolicy::Park);
    // The other workers have no threads.
    sleep.set_thread(129);
    sleep.set_core(0, Some(core));
    sleep.set_core(129, Some(core + 1));
    // No two of these cores share an entry.
    sleep.set_core(1, Some(core ^ 2));
    sleep.announce(0, SearchState::Inactive, ParkKind::Untimed);
    sleep.announce(129, SearchState::Inactive, ParkKind::Untimed);
    sleep.notify();
    assert_woken();
    sleep.set_thread(0);
    sleep.retract(129);
    let _ = sleep.stop_search();
    sleep.notify();
    assert_woken(); // No other worker is announced.
    sleep.report_contention();
    assert!((0..WORKERS).all(|worker| sleep.is_contended(worker) == (worker == 0)));
    sleep.set_core(0, None);
    sleep.announce(0, SearchState::Inactive, ParkKind::Timed);
    sleep.report_contention();
    assert!(!sleep.is_contended(0), "contention was reported to a worker that is not pinned");
}
