//! Workers go to sleep while operations are pushed: no wake-up is lost, whatever the order of announcing, searching,
//! pushing and notifying.
//!
//! A lost wake-up leaves a worker parked forever, which loom reports as a deadlock. The workers use a model of the
//! deque, so these models check the stealing code but not the real deque. Workers do not spin here: spinning would only
//! add a search before the same announcement.
use std::sync::Arc;

use raddle::IdlePolicy;
use raddle::internals::{DEFAULT_BAND, Flavour, Lane, LaneOptions, OpRef, ParkKind, SearchState, Sleep, Worker};
use raddle_loom_tests::checker::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};
use raddle_loom_tests::{end_alone, kills, model};

type Number = usize;

type Made = (Arc<Lane<Number>>, Vec<Worker<Number>>);

fn lane(workers: usize) -> Made {
    Lane::new(LaneOptions { name: "model", workers, idle: IdlePolicy::Park })
}

/// Creates a lane whose workers park once with a time limit before parking without one.
fn contended_lane(workers: usize) -> Made {
    let made = lane(workers);
    (0..workers).for_each(|worker| made.0.sleep().set_contended(worker));
    made
}

fn op(number: Number, band: u8) -> OpRef<Number> {
    // SAFETY: the operation uses no variable.
    unsafe { OpRef::new(number, band, false, std::iter::empty()) }
}

fn take(worker: &Worker<Number>) -> Option<Number> {
    worker.next().map(end_numbered)
}

/// Ends an operation and returns its number.
fn end_numbered(op: OpRef<Number>) -> Number {
    // SAFETY: this thread has taken the operation, and no other thread changes its task.
    let number = unsafe { *op.task_ptr() };
    end_alone(op);
    number
}

/// Starts a thread for each worker and calls `f` with the worker on that thread.
fn spawn_workers<R: 'static>(workers: Vec<Worker<Number>>, f: fn(Worker<Number>) -> R) -> Vec<thread::JoinHandle<R>> {
    let spawn = |worker: Worker<Number>| {
        thread::spawn(move || {
            worker.lane().sleep().set_thread(worker.index());
            f(worker)
        })
    };
    workers.into_iter().map(spawn).collect()
}

/// Takes exactly one operation. Other workers may steal further ones from the worker's deque.
fn take_one(worker: Worker<Number>) -> (Number, Worker<Number>) {
    (take(&worker).unwrap(), worker)
}

/// Asserts that each operation numbered below `count` was [taken](take_one) once.
fn assert_taken_once(threads: Vec<thread::JoinHandle<(Number, Worker<Number>)>>, count: Number) {
    let mut taken: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    taken.sort_unstable_by_key(|&(number, _)| number);
    assert!(taken.iter().map(|&(number, _)| number).eq(0..count));
}

/// Returns a model of one worker that waits for as many operations as `bands` has elements, and of a pusher that
/// injects one operation into each of these bands.
fn one_worker(bands: &'static [u8]) -> impl Fn() + Send + Sync + 'static {
    one_worker_of(lane, bands)
}

fn one_worker_of(lane: fn(usize) -> Made, bands: &'static [u8]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let (lane, mut workers) = lane(1);
        let worker = workers.pop().unwrap();
        let thread = thread::spawn(move || {
            worker.lane().sleep().set_thread(0);
            let mut taken: Vec<_> = bands.iter().map(|_| take(&worker).unwrap()).collect();
            taken.sort_unstable();
            assert_eq!(taken, (0..bands.len()).collect::<Vec<_>>());
        });
        for (number, &band) in bands.iter().enumerate() {
            lane.inject(op(number, band));
        }
        thread.join().unwrap();
    }
}

#[test]
fn a_push_and_a_worker_that_parks_cannot_miss_each_other() {
    model(3, Flavour::Contract, one_worker(&[DEFAULT_BAND]));
}

#[test]
fn a_push_with_a_priority_and_a_worker_that_parks_cannot_miss_each_other() {
    model(3, Flavour::Contract, one_worker(&[DEFAULT_BAND + 1]));
}

#[test]
fn a_push_and_a_worker_in_a_timed_park_cannot_miss_each_other() {
    model(3, Flavour::Contract, one_worker_of(contended_lane, &[DEFAULT_BAND]));
}

#[test]
fn two_pushes_reach_one_worker() {
    model(2, Flavour::Contract, one_worker(&[DEFAULT_BAND, DEFAULT_BAND - 1]));
}

/// A push may rely on a searching worker to find its operation. Each of two operations is taken or left in the
/// injector, and both workers observe the end of the lane.
#[test]
fn two_pushes_are_taken_once_each_and_the_end_reaches_both_workers() {
    model(1, Flavour::Contract, || {
        let (lane, workers) = lane(2);
        let threads = spawn_workers(workers, |worker| std::iter::from_fn(|| take(&worker)).collect::<Vec<_>>());
        lane.inject(op(0, DEFAULT_BAND));
        lane.inject(op(1, DEFAULT_BAND));
        lane.end();
        let mut taken: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        // A real lane ends when nothing is pending; this one may end while the injector still holds operations.
        while let Some((chain, _)) = lane.injector_for_models().pop(DEFAULT_BAND, 1) {
            taken.extend(chain.map(end_numbered));
        }
        taken.sort_unstable();
        assert_eq!(taken, [0, 1], "an operation was lost or taken twice");
    });
}

/// Two workers take exactly one operation each, so each of two pushes must reach a worker that has not taken one yet,
/// whether it searches or sleeps, even if the other worker's deque receives both operations.
#[test]
fn two_pushes_reach_two_workers_that_take_one_operation_each() {
    model(2, Flavour::Contract, two_workers(lane));
}

/// A notifier need not wake a worker in a timed park, even if the worker then parks without a time limit. The lane has
/// two workers, since a notifier leaves work to others only while another worker is awake.
#[test]
fn two_pushes_reach_two_workers_with_timed_parks() {
    model(2, Flavour::Contract, two_workers(contended_lane));
}

fn two_workers(lane: fn(usize) -> Made) -> impl Fn() + Send + Sync + 'static {
    move || {
        let (lane, workers) = lane(2);
        let threads = spawn_workers(workers, take_one);
        (0..2).for_each(|number| lane.inject(op(number, DEFAULT_BAND)));
        assert_taken_once(threads, 2);
    }
}

/// Worker 0, which was announced, and a searcher each find an operation. Then the searcher or another thread publishes
/// work. Of worker 0 and the searcher, only the last to stop searching checks for work again. So the publishing thread
/// must wake worker 1, which sleeps. If that thread instead mistakes worker 0 for a sleeper, worker 0 or the searcher
/// must wake worker 1.
fn two_find_something_and_one_sleeps(made_by_another: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let (lane, _workers) = lane(2);
        let work = Arc::new(AtomicBool::new(false));
        // Does what `Worker::finish_search` does.
        let found = |lane: &Lane<Number>, work: &AtomicBool| {
            // Relaxed: the fences order this access, as they do accesses to the injector's words.
            if lane.sleep().stop_search() && work.load(Relaxed) {
                lane.sleep().notify();
            }
        };
        // The sleeper announces both workers and then starts the other threads.
        let sleeper = thread::spawn(move || {
            lane.sleep().set_thread(1);
            (0..2).for_each(|worker| lane.sleep().announce(worker, SearchState::Inactive, ParkKind::Untimed));
            lane.sleep().start_search();
            let (its_lane, its_work) = (Arc::clone(&lane), Arc::clone(&work));
            let sleeper = thread::spawn(move || {
                its_lane.sleep().retract(0);
                found(&its_lane, &its_work);
            });
            let its_lane = Arc::clone(&lane);
            let make = |lane: &Lane<Number>, work: &AtomicBool| {
                // Relaxed: the fences order this access, as they do accesses to the injector's words.
                work.store(true, Relaxed);
                lane.sleep().notify();
            };
            let its_work = Arc::clone(&work);
            let searcher = thread::spawn(move || {
                found(&its_lane, &its_work);
                if !made_by_another {
                    make(&its_lane, &its_work);
                }
            });
            let its_lane = Arc::clone(&lane);
            let maker = made_by_another.then(|| thread::spawn(move || make(&its_lane, &work)));
            lane.sleep().park(1, lane.sleep().wakes_of(1));
            [Some(sleeper), Some(searcher), maker]
        });
        // The sleeper does not join these threads itself: they may unpark it again, and in loom a thread that can be
        // unparked must block only on `park`.
        sleeper.join().unwrap().into_iter().flatten().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_worker_that_stopped_searching_is_not_taken_for_a_sleeper() {
    model(3, Flavour::Contract, two_find_something_and_one_sleeps(false));
}

#[test]
fn a_worker_that_stopped_searching_is_not_taken_for_a_sleeper_by_another_thread() {
    model(2, Flavour::Contract, two_find_something_and_one_sleeps(true));
}

/// Another thread has run the worker before.
#[test]
fn a_push_reaches_a_worker_that_has_moved_to_another_thread() {
    model(3, Flavour::Contract, || {
        let options = LaneOptions { name: "model", workers: 1, idle: IdlePolicy::Park };
        let (lane, mut workers) = Lane::new(options);
        let worker = workers.pop().unwrap();
        lane.sleep().set_thread(0);
        let thread = thread::spawn(move || {
            worker.lane().sleep().set_thread(0);
            assert_eq!(take(&worker), Some(0));
        });
        lane.inject(op(0, DEFAULT_BAND));
        thread.join().unwrap();
    });
}

/// A thread stores its handle twice, as two threads running the worker in turn would, and ends. Meanwhile, a notifier
/// wakes the worker through the old or the new handle, if one is stored by then. The handle must be complete and not
/// freed.
#[test]
fn a_notifier_reads_a_complete_thread_handle_that_is_not_freed() {
    model(3, Flavour::Contract, || {
        let sleep = Arc::new(Sleep::new(1, IdlePolicy::Park));
        let (carried, notified) = (Arc::clone(&sleep), Arc::clone(&sleep));
        let carriers = thread::spawn(move || (0..2).for_each(|_| carried.set_thread(0)));
        let notifier = thread::spawn(move || notified.wake_all());
        carriers.join().unwrap();
        notifier.join().unwrap();
        // Frees the last handle, which this thread sees, on a thread that comes after both.
        drop(sleep);
    });
}

/// Three workers take one operation each; all three operations are in one worker's deque. A stealer may take one
/// operation and move another into its own deque; during the move, no other worker can find the moved operation.
#[test]
fn the_rest_of_a_stolen_batch_reaches_a_worker_that_has_searched_in_vain() {
    model(1, Flavour::Contract, || {
        let (_, workers) = lane(3);
        (0..3).for_each(|number| workers[0].push_local(op(number, DEFAULT_BAND)));
        assert_taken_once(spawn_workers(workers, take_one), 3);
    });
}

/// Two operations become ready on a worker, which takes one of them and does not search again, as if that operation
/// never ended.
#[test]
fn the_second_successor_of_an_operation_reaches_a_worker_that_parks() {
    model(3, Flavour::Contract, || {
        let (_, workers) = lane(2);
        let push_two_and_take_one = |worker: Worker<Number>| {
            if worker.index() == 0 {
                (0..2).for_each(|number| worker.push_next(op(number, DEFAULT_BAND)));
            }
            take_one(worker)
        };
        assert_taken_once(spawn_workers(workers, push_two_and_take_one), 2);
    });
}

/// Two operations become ready on a worker, which shares both and takes none.
#[test]
fn shared_successors_reach_a_worker_that_parks() {
    model(3, Flavour::Contract, || {
        let (_, workers) = lane(2);
        let push_two_and_share = |worker: Worker<Number>| {
            if worker.index() == 0 {
                (0..2).for_each(|number| worker.push_next(op(number, DEFAULT_BAND)));
                worker.share_slot();
                return (vec![], worker);
            }
            (vec![take(&worker), take(&worker)], worker)
        };
        let ends: Vec<_> =
            spawn_workers(workers, push_two_and_share).into_iter().map(|thread| thread.join().unwrap()).collect();
        let mut taken: Vec<_> = ends.iter().flat_map(|(taken, _)| taken).flatten().collect();
        taken.sort_unstable();
        assert_eq!(taken, [&0, &1]);
    });
}

struct Data(UnsafeCell<usize>);
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Sync for Data {}
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Send for Data {}

#[test]
fn workers_see_earlier_writes_when_their_lane_ends() {
    model(3, Flavour::Contract, || {
        let (lane, mut workers) = lane(1);
        // This represents a second worker that is searching. The model's own worker therefore does not become a
        // searcher, and so executes no fence when it finds the lane ended.
        lane.sleep().start_search();
        let (worker, data) = (workers.pop().unwrap(), Arc::new(Data(UnsafeCell::new(0))));
        let other = Arc::clone(&data);
        let thread = thread::spawn(move || {
            worker.lane().sleep().set_thread(0);
            assert!(take(&worker).is_none());
            // SAFETY: the lane has ended, and no thread writes afterwards; the model verifies this.
            assert_eq!(other.0.with(|data| unsafe { *data }), 1);
        });
        // SAFETY: the worker reads only after the lane has ended; the model verifies this.
        data.0.with_mut(|data| unsafe { *data = 1 });
        lane.end();
        thread.join().unwrap();
    });
}

/// A worker takes the operations out of its deque to look for the one that it awaits, then puts them back. Meanwhile,
/// the other worker may have found the deque empty.
#[test]
fn an_operation_that_a_waiter_puts_back_reaches_the_other_worker() {
    model(2, Flavour::Contract, || {
        let (_lane, mut workers) = lane(2);
        let (second, first) = (workers.pop().unwrap(), workers.pop().unwrap());
        first.lane().sleep().set_thread(0);
        first.push_next(op(0, DEFAULT_BAND));
        first.share_slot();
        let threads = spawn_workers(vec![second], take_one);
        assert!(first.take(|_| false).is_none(), "an unwanted operation was taken");
        // This thread waits, so the other worker must run the operation.
        assert_taken_once(threads, 1);
    });
}

kills! {
    a_push_and_a_worker_that_parks_cannot_miss_each_other {
        "sleep::NOTIFY": "deadlock",
        "sleep::ANNOUNCE": "deadlock",
        "step::SEARCH_AGAIN_BEFORE_PARK": "deadlock",
    }
    a_push_with_a_priority_and_a_worker_that_parks_cannot_miss_each_other {
        "sleep::NOTIFY": "deadlock",
    }
    a_push_and_a_worker_in_a_timed_park_cannot_miss_each_other {
        "sleep::NOTIFY": "deadlock",
    }
    two_pushes_reach_one_worker {
        "sleep::NOTIFY": "deadlock",
    }
    two_pushes_are_taken_once_each_and_the_end_reaches_both_workers {
        "sleep::NOTIFY_ALL": "deadlock",
        only loom "step::END_CHECKED_AGAIN": "deadlock",
    }
    two_pushes_reach_two_workers_that_take_one_operation_each {
        "sleep::STOP_SEARCH": "deadlock",
        only loom "step::LAST_SEARCHER_CHECKS": "deadlock",
    }
    two_pushes_reach_two_workers_with_timed_parks {
        "step::TIMED_PARK_ENDS": "deadlock",
        "step::RETRACT_TIMED_PARK": "deadlock",
    }
    a_worker_that_stopped_searching_is_not_taken_for_a_sleeper {
        "sleep::SEARCH_OVER": "deadlock",
    }
    a_worker_that_stopped_searching_is_not_taken_for_a_sleeper_by_another_thread {
        "sleep::NOTIFY": "deadlock",
    }
    a_push_reaches_a_worker_that_has_moved_to_another_thread {
        only loom "step::RETIRE": "use after reclamation",
    }
    a_notifier_reads_a_complete_thread_handle_that_is_not_freed {
        "thread::SET": "Causality violation",
        "thread::NOTIFIED": "Causality violation",
        "step::PIN": "use after reclamation",
    }
    the_rest_of_a_stolen_batch_reaches_a_worker_that_has_searched_in_vain {
        only loom "step::STEAL_NOTIFIES": "deadlock",
    }
    the_second_successor_of_an_operation_reaches_a_worker_that_parks {
        "step::SUCCESSORS_NOTIFY": "deadlock",
    }
    shared_successors_reach_a_worker_that_parks {
        "step::SHARED_SLOT_NOTIFIES": "deadlock",
    }
    workers_see_earlier_writes_when_their_lane_ends {
        "ended::END": "Causality violation",
        "ended::SEEN": "Causality violation",
    }
    an_operation_that_a_waiter_puts_back_reaches_the_other_worker {
        "step::PUT_BACK_NOTIFIES": "deadlock",
    }
}
