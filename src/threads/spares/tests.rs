use std::{
    sync::Barrier,
    thread::{self, Scope, ScopedJoinHandle},
    time::Duration,
};

use super::*;

/// Starts a thread that waits for a worker, and returns once `count` threads wait.
fn begin_wait<'s>(
    scope: &'s Scope<'s, '_>,
    spares: &'s SpareThreads<usize>,
    count: usize,
) -> ScopedJoinHandle<'s, Option<usize>> {
    let wait = scope.spawn(move || spares.wait(None));
    while lock(&spares.0).slots.len() < count && !wait.is_finished() {
        thread::yield_now();
    }
    wait
}

fn taken(wait: ScopedJoinHandle<'_, Option<usize>>) -> Option<usize> {
    wait.join().expect("the thread should not panic")
}

#[test]
fn two_workers_offered_concurrently_are_both_taken() {
    for _ in 0..1000 {
        let (spares, start) = (SpareThreads::default(), Barrier::new(3));
        let taken: usize = thread::scope(|scope| {
            let waits = [1, 2].map(|count| begin_wait(scope, &spares, count));
            for worker in [1, 2] {
                let (spares, start) = (&spares, &start);
                scope.spawn(move || {
                    start.wait();
                    spares.offer(worker).expect("two threads should wait");
                });
            }
            start.wait();
            waits.map(|wait| taken(wait).expect("a worker")).iter().sum()
        });
        assert_eq!(taken, 3);
    }
}

#[test]
fn a_worker_offered_to_a_thread_that_gives_up_is_taken_or_returned() {
    let mut taken = 0;
    for round in 0..2000 {
        let (spares, start) = (SpareThreads::default(), Barrier::new(2));
        thread::scope(|scope| {
            let wait = scope.spawn(|| {
                start.wait();
                spares.wait(Some(Instant::now() + Duration::from_micros(round % 50)))
            });
            start.wait();
            let offered = spares.offer(()).is_ok();
            assert_eq!(wait.join().expect("the thread should not panic").is_some(), offered);
            taken += u32::from(offered);
        });
        assert!(lock(&spares.0).slots.is_empty());
    }
    println!("{taken} of 2000 were taken");
}

/// This order lets unneeded threads reach their time limits.
#[test]
fn the_last_waiter_is_offered_a_worker_first() {
    let spares = SpareThreads::default();
    thread::scope(|scope| {
        let waits = [1, 2, 3].map(|count| begin_wait(scope, &spares, count));
        for worker in [3, 2, 1] {
            spares.offer(worker).expect("a thread should wait");
        }
        assert_eq!(waits.map(taken), [Some(1), Some(2), Some(3)]);
    });
}

#[test]
fn workers_offered_in_turn_go_to_the_waiters_in_their_order() {
    let spares = SpareThreads::default();
    thread::scope(|scope| {
        let waits = [1, 2, 3, 4].map(|count| begin_wait(scope, &spares, count));
        for worker in 1..=4 {
            spares.offer_in_turn(worker).expect("a thread should wait");
        }
        assert_eq!(spares.offer_in_turn(5), Err(5));
        assert_eq!(waits.map(taken), [Some(1), Some(2), Some(3), Some(4)]);
    });
}

#[test]
fn the_first_waiter_is_dismissed_first() {
    let spares = SpareThreads::default();
    thread::scope(|scope| {
        let waits = [1, 2, 3].map(|count| begin_wait(scope, &spares, count));
        (0..2).for_each(|_| spares.dismiss());
        spares.offer(1).expect("the third thread should wait");
        assert_eq!(spares.offer(2), Err(2), "another thread still waits");
        assert_eq!(waits.map(taken), [None, None, Some(1)]);
        // No thread waits any more.
        spares.dismiss();
    });
}

#[test]
fn a_pause_ends_current_and_later_waits_until_it_is_undone() {
    let spares = SpareThreads::default();
    thread::scope(|scope| {
        let wait = begin_wait(scope, &spares, 1);
        spares.pause();
        assert_eq!(taken(wait), None);
        assert_eq!(spares.wait(None), None);
        assert!(!spares.have_ended());
        spares.resume();
        let wait = begin_wait(scope, &spares, 1);
        spares.offer(1).expect("a thread should wait again");
        assert_eq!(taken(wait), Some(1));
    });
}

#[test]
fn the_end_reaches_current_and_later_waiters() {
    let spares = SpareThreads::default();
    thread::scope(|scope| {
        let wait = begin_wait(scope, &spares, 1);
        spares.end();
        assert!(taken(wait).is_none());
    });
    assert!(spares.wait(None).is_none());
    assert!(spares.have_ended());
    assert!(spares.offer(1).is_err());
}
