//! Spare threads, the end of an engine in the background, and workers laid aside by a stop.
use std::{
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Wake, Waker},
    time::Instant,
};

use raddle::internals::{Aside, Flavour, Laid, PendingOps, SpareThreads, Stopped};
use raddle_loom_tests::checker::{
    sync::{Mutex, atomic::AtomicBool},
    thread,
};
use raddle_loom_tests::{COMPLETE, kills, leave, model};

/// A worker is offered to a thread whose time limit has passed: the thread takes it, or the offer returns it.
#[test]
fn a_worker_offered_to_a_thread_that_gives_up_is_not_lost() {
    model(COMPLETE, Flavour::Contract, || {
        let spares = Arc::new(SpareThreads::default());
        let other = Arc::clone(&spares);
        // In models, a time limit passes immediately.
        let thread = thread::spawn(move || other.wait(Some(Instant::now())));
        let offered = spares.offer(7);
        let taken = thread.join().unwrap();
        match offered {
            Ok(()) => assert_eq!(taken, Some(7), "the worker is lost"),
            Err(worker) => assert_eq!((worker, taken), (7, None)),
        }
    });
}

/// Two workers are offered concurrently while two threads wait or are about to wait. Each accepted worker is taken
/// once, and the threads that are offered no worker observe the end.
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

/// An engine that ends in the background as soon as nothing is pending.
struct Ends {
    pending: Arc<PendingOps>,
    /// The number of complete operations.
    over: Arc<AtomicUsize>,
    ended: AtomicBool,
}

impl Wake for Ends {
    fn wake(self: Arc<Self>) {
        if self.pending.poll_idle(&Waker::from(Arc::clone(&self))).is_ready() {
            // Relaxed: the pending count hands over the operations' effects; the model verifies this too.
            assert_eq!(self.over.load(Relaxed), 3, "an operation is still pending");
            self.ended.store(true, Relaxed);
        }
    }
}

/// An operation pushes a second one, which pushes a third, while the engine begins to end in the background. The engine
/// ends when all three are complete.
#[test]
fn a_background_end_waits_for_operations_pushed_by_operations() {
    model(2, Flavour::Contract, || {
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
        assert!(ends.ended.load(Relaxed), "the engine did not end");
    });
}

/// The engine stops while a function begins to wait for an operation that only another worker can run. Either that
/// worker is not laid aside, or the function takes it up again.
#[test]
fn a_worker_that_a_function_may_wait_for_is_not_left_aside() {
    model(3, Flavour::Contract, || {
        let (aside, runs) = (Arc::new(Aside::new(1)), Arc::new(AtomicUsize::new(0)));
        assert!(aside.request(|| ()));
        let (other, ran) = (Arc::clone(&aside), Arc::clone(&runs));
        let worker = thread::spawn(move || {
            if other.lay(|| Some("the worker")) == Laid::NotYet {
                ran.fetch_add(1, Relaxed);
            }
        });
        let taken = aside.function_waits(|| ());
        runs.fetch_add(taken.len(), Relaxed);
        worker.join().unwrap();
        assert_eq!(runs.load(Relaxed), 1, "no thread runs what the function waits for");
        aside.function_has_returned(|| ());
        assert_eq!(aside.lay(|| taken.into_iter().next().or(Some("the worker"))), Laid::Aside);
        assert_eq!(aside.wait(None), Stopped::All);
    });
}

/// A stop and a start race: the start takes the worker back, or the worker is never laid aside.
#[test]
fn a_start_overtakes_a_stop_and_no_worker_is_lost() {
    model(3, Flavour::Contract, || {
        let aside = Arc::new(Aside::new(1));
        assert!(aside.request(|| ()));
        let other = Arc::clone(&aside);
        let worker = thread::spawn(move || other.lay(|| Some(())));
        let other = Arc::clone(&aside);
        let stop = thread::spawn(move || other.wait(None));
        aside.cancel(|| ());
        let taken = aside.take().len();
        let laid = worker.join().unwrap();
        let left = aside.take().len();
        assert!(stop.join().unwrap() != Stopped::TimedOut);
        assert_eq!(taken + left, usize::from(laid == Laid::Aside));
        assert_eq!(left, 0, "a worker is left aside after the start");
    });
}

/// A GPU lane is used for the first time while the engine stops. Either the stop waits until the lane's worker is laid
/// aside, or the lane gets no thread.
#[test]
fn a_lane_that_is_first_used_during_a_stop_has_no_thread_afterwards() {
    model(3, Flavour::Contract, || {
        let aside = Arc::new(Aside::new(0));
        let served = Arc::new(Mutex::new(None));
        let (recalled, stopped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (other, serving, recall, over) =
            (Arc::clone(&aside), Arc::clone(&served), Arc::clone(&recalled), Arc::clone(&stopped));
        let pusher = thread::spawn(move || {
            let was_stopped = over.load(SeqCst);
            let worker = other.enlist("the lane's worker");
            assert!(!(was_stopped && worker.is_some()), "a thread starts in a stopped engine");
            *serving.lock().unwrap() = worker;
            if recall.load(SeqCst) {
                let _ = other.lay(|| serving.lock().unwrap().take());
            }
        });
        assert!(aside.request(|| recalled.store(true, SeqCst)));
        let (other, serving) = (Arc::clone(&aside), Arc::clone(&served));
        // The lane's thread, if any; the recall wakes it.
        let lane = thread::spawn(move || {
            let _ = other.lay(|| serving.lock().unwrap().take());
        });
        assert_eq!(aside.wait(None), Stopped::All);
        stopped.store(true, SeqCst);
        assert_eq!(*served.lock().unwrap(), None, "a thread serves a lane of a stopped engine");
        pusher.join().unwrap();
        lane.join().unwrap();
        assert_eq!(aside.take().len(), 1, "the worker gets no thread at the start");
    });
}

/// An operation is sent to a GPU lane whose worker is being laid aside: the lane's thread sees the operation, or the
/// sender finds the worker.
#[test]
fn an_operation_sent_to_a_lane_that_is_laid_aside_finds_a_thread() {
    model(3, Flavour::Contract, || {
        let aside = Arc::new(Aside::new(1));
        assert!(aside.request(|| ()));
        let sent = Arc::new(AtomicBool::new(false));
        let (other, arrived) = (Arc::clone(&aside), Arc::clone(&sent));
        let lane = thread::spawn(move || other.lay(|| (!arrived.load(Relaxed)).then_some("the lane's worker")));
        sent.store(true, Relaxed);
        let found = aside.take_one(|_| true);
        assert_eq!(lane.join().unwrap() == Laid::NotYet, found.is_none(), "no thread sends the operation on");
    });
}

kills! {
    a_worker_offered_to_a_thread_that_gives_up_is_not_lost {
        "step::SPARES_CHECK_AGAIN": "the worker is lost",
    }
    a_background_end_waits_for_operations_pushed_by_operations {
        "step::END_CHECKS_AGAIN": "an operation is still pending",
    }
    a_worker_that_a_function_may_wait_for_is_not_left_aside {
        "step::WAITING_KEEPS_WORKERS": "no thread runs what the function waits for",
        "step::WAITS_TAKE_UP": "no thread runs what the function waits for",
    }
    a_start_overtakes_a_stop_and_no_worker_is_lost {
        "step::START_ENDS_STOP": "deadlock",
    }
}
