//! Spare threads, and the end of an engine in the background.
#![cfg(raddle_loom)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Wake, Waker},
    time::Instant,
};

use loom::thread;
use raddle::internals::{Flavour, PendingOps, SpareThreads, Step};
use raddle_loom_tests::{COMPLETE, leave, model, must_fail, without};

/// A worker is offered to a thread whose time limit has passed: the thread takes it, or the offer returns it.
fn offer_to_a_thread_that_gives_up() {
    let spares = Arc::new(SpareThreads::default());
    let other = Arc::clone(&spares);
    // In models the time limit passes immediately.
    let thread = thread::spawn(move || other.wait(Some(Instant::now())));
    let offered = spares.offer(7);
    let taken = thread.join().unwrap();
    match offered {
        Ok(()) => assert_eq!(taken, Some(7), "the worker is lost"),
        Err(worker) => assert_eq!((worker, taken), (7, None)),
    }
}

#[test]
fn a_worker_offered_to_a_thread_that_gives_up_is_not_lost() {
    model(COMPLETE, Flavour::Contract, offer_to_a_thread_that_gives_up);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn without_the_second_check() {
    without(Step::SparesCheckAgain, || {
        model(COMPLETE, Flavour::Contract, offer_to_a_thread_that_gives_up);
    });
}

#[test]
fn without_the_second_check_a_worker_offered_to_a_thread_that_gives_up_is_lost() {
    must_fail("without_the_second_check", "the worker is lost");
}

/// Two workers are offered concurrently, while two threads wait or are about to. Each accepted worker is taken once,
/// and the end reaches the threads that were offered none.
#[test]
fn two_workers_offered_concurrently_are_taken_once_each_and_the_end_reaches_the_others() {
    model(2, Flavour::Contract, || {
        let spares = Arc::new(SpareThreads::default());
        let threads = [(); 2].map(|()| {
            let other = Arc::clone(&spares);
            thread::spawn(move || other.wait(None))
        });
        let other = Arc::clone(&spares);
        let offers = thread::spawn(move || other.offer(1).is_ok());
        let mine = spares.offer(2).is_ok();
        let theirs = offers.join().unwrap();
        spares.end();
        let taken = threads.map(|thread| thread.join().unwrap());
        for (worker, offered) in [(1, theirs), (2, mine)] {
            let takers = taken.iter().filter(|&&taken| taken == Some(worker)).count();
            assert_eq!(takers, usize::from(offered), "worker {worker}");
        }
    });
}

/// An end in the background, which comes when it finds nothing pending.
struct Ends {
    pending: Arc<PendingOps>,
    /// The number of operations that are over.
    over: Arc<AtomicUsize>,
    ended: AtomicBool,
}

impl Wake for Ends {
    fn wake(self: Arc<Self>) {
        if self.pending.poll_idle(&Waker::from(Arc::clone(&self))).is_ready() {
            // Relaxed: the count hands over what the operations did, which is a part of the claim.
            assert_eq!(self.over.load(Relaxed), 3, "an operation is still pending");
            self.ended.store(true, Relaxed);
        }
    }
}

/// An operation pushes a second one, which pushes a third, while an end in the background begins. The end comes when
/// all are over.
fn end_behind_a_chain() {
    let (pending, over) = (Arc::new(PendingOps::new(2)), Arc::new(AtomicUsize::new(0)));
    let (first, other, count) = (pending.enter(), Arc::clone(&pending), Arc::clone(&over));
    let thread = thread::spawn(move || {
        let second = other.enter();
        count.fetch_add(1, Relaxed);
        leave(&other, first);
        let third = other.enter();
        count.fetch_add(1, Relaxed);
        leave(&other, second);
        count.fetch_add(1, Relaxed);
        leave(&other, third);
    });
    let ends = Arc::new(Ends { pending, over, ended: AtomicBool::new(false) });
    Arc::clone(&ends).wake();
    thread.join().unwrap();
    assert!(ends.ended.load(Relaxed), "it was not ended");
}

#[test]
fn a_background_end_waits_for_operations_pushed_by_operations() {
    model(2, Flavour::Contract, end_behind_a_chain);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn without_checking_again() {
    without(Step::EndChecksAgain, || {
        model(2, Flavour::Contract, end_behind_a_chain);
    });
}

#[test]
fn without_checking_again_a_background_end_is_too_early() {
    must_fail("without_checking_again", "an operation is still pending");
}
