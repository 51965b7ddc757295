//! Tests of workers that are all run by one thread: where each worker searches, in which order, and which workers it
//! wakes.

mod turns;

use std::time::{Duration, Instant};

use super::{
    super::{
        lane::LaneOptions,
        testing::{Known, Ready, assert_not_woken, assert_woken},
    },
    *,
};

const LOW: u8 = DEFAULT_BAND - 1;
const HIGH: u8 = DEFAULT_BAND + 1;
const HIGHER: u8 = DEFAULT_BAND + 2;

fn lane(workers: usize, idle: IdlePolicy) -> (Arc<Lane<usize>>, Vec<Worker<usize>>) {
    Lane::new(LaneOptions { name: "test", workers, idle })
}

/// Announces `worker` as a sleeper that the calling thread runs.
fn asleep(worker: &Worker<usize>) {
    worker.lane.sleep().set_thread(worker.index);
    worker.lane.sleep().announce(worker.index, SearchState::Inactive, ParkKind::Untimed);
}

fn find_ptr(worker: &Worker<usize>) -> Option<*mut crate::tracker::Op<usize>> {
    worker.find().map(|op| op.as_ptr())
}

fn in_slot(worker: &Worker<usize>) -> Option<*mut crate::tracker::Op<usize>> {
    let slot = worker.slot.take();
    let op = slot.as_ref().map(|op| op.as_ptr());
    worker.slot.set(slot);
    op
}

#[test]
fn a_lane_has_work_while_an_operation_can_be_taken() {
    let ((lane, workers), ops) = (lane(2, IdlePolicy::Park), Ready::new(3, DEFAULT_BAND));
    assert_eq!((lane.idle(), lane.name()), (IdlePolicy::Park, "test"));
    assert!(!lane.has_work());
    lane.inject(ops[0].right());
    assert!(lane.has_work());
    assert!(workers[0].find().is_some());
    assert!(!lane.has_work());
    workers[1].push_next(ops[1].right());
    assert!(!lane.has_work(), "a worker's slot counts as work of the lane");
    workers[1].share_slot();
    assert!(lane.has_work());
    assert_eq!(find_ptr(&workers[0]), Some(ops[1].as_ptr()));
    assert!(!lane.has_work());
}

#[test]
fn a_successor_goes_into_the_slot_unless_the_injector_has_a_more_urgent_operation() {
    let (lane, workers) = lane(1, IdlePolicy::Park);
    let worker = &workers[0];
    let ops = [LOW, DEFAULT_BAND, HIGH, HIGH, HIGHER].map(|band| Ready::new(1, band));
    let [low, normal, waits, high, higher] = ops.each_ref().map(|ops| ops[0]);
    lane.injector().push(waits.right());
    for kept in [high, higher] {
        worker.push_next(kept.right());
        assert_eq!(worker.slot.take().map(|op| op.as_ptr()), Some(kept.as_ptr()));
    }
    for passed_over in [low, normal] {
        worker.push_next(passed_over.right());
        assert_eq!(in_slot(worker), None);
    }
    let order = [waits, normal, low].map(|op| Some(op.as_ptr()));
    assert_eq!([(); 3].map(|()| find_ptr(worker)), order);
}

#[test]
fn the_slot_takes_one_successor_and_no_operation_pushed_inside_another() {
    let ((_, workers), ops) = (lane(1, IdlePolicy::Park), Ready::new(3, DEFAULT_BAND));
    let worker = &workers[0];
    worker.push_local(ops[0].right());
    assert_eq!(in_slot(worker), None);
    worker.push_next(ops[1].right());
    worker.push_next(ops[2].right());
    assert_eq!(in_slot(worker), Some(ops[1].as_ptr()));
    assert_eq!([(); 3].map(|()| find_ptr(worker)), [1, 0, 2].map(|number| Some(ops[number].as_ptr())));
}

#[test]
fn a_more_urgent_operation_runs_before_the_slot() {
    let ((lane, workers), ops, urgent) = (lane(1, IdlePolicy::Park), Ready::new(1, HIGH), Ready::new(2, HIGHER));
    let worker = &workers[0];
    worker.push_next(ops[0].right());
    urgent.iter().for_each(|op| lane.injector().push(op.right()));
    let order = [urgent[0], urgent[1], ops[0]].map(|op| Some(op.as_ptr()));
    assert_eq!([(); 3].map(|()| find_ptr(worker)), order);
}

#[test]
fn every_deque_of_the_lane_is_stolen_from_wherever_the_sweep_begins() {
    const WORKERS: usize = 5;
    let ((_, workers), ops) = (lane(WORKERS, IdlePolicy::Park), Ready::new(1, DEFAULT_BAND));
    for (stealer, victim, start) in
        (0..WORKERS.pow(3)).map(|n| (n % WORKERS, n / WORKERS % WORKERS, n / WORKERS.pow(2)))
    {
        if stealer != victim {
            workers[victim].deque.push(ops[0].right());
            workers[stealer].victim.set(start);
            assert_eq!(
                workers[stealer].steal().map(|op| op.as_ptr()),
                Some(ops[0].as_ptr()),
                "{stealer} {victim} {start}"
            );
            assert_eq!(workers[stealer].victim.get(), victim, "the next sweep does not begin at the last victim");
        }
    }
    for start in 0..WORKERS {
        workers[0].victim.set(start);
        assert!(workers[0].steal().is_none());
        assert_eq!(workers[0].victim.get(), (start + 1) % WORKERS, "the next sweep does not begin one worker later");
    }
}

#[test]
fn a_worker_that_takes_a_batch_wakes_another_for_the_rest() {
    let ((lane, workers), ops) = (lane(3, IdlePolicy::Park), Ready::new(3 * MAX_BATCH, DEFAULT_BAND));
    asleep(&workers[2]);
    let [first, second] = [&workers[0], &workers[1]];
    ops[..MAX_BATCH + 2].iter().for_each(|op| lane.injector().push(op.right()));
    // The first pop publishes the rest of the inbox and puts most of its batch into a deque; the second puts one
    // operation into a deque; the third finds nothing.
    assert!(first.pop_injector(DEFAULT_BAND, MAX_BATCH).is_some());
    assert_woken();
    assert!(second.pop_injector(DEFAULT_BAND, MAX_BATCH).is_some());
    assert_woken();
    assert!(second.deque.pop().is_some());
    assert!(first.pop_injector(DEFAULT_BAND, MAX_BATCH).is_none());
    assert_not_woken();
    lane.injector().push(ops[0].right());
    assert!(first.pop_injector(DEFAULT_BAND, MAX_BATCH).is_some());
    assert_not_woken(); // There is no rest.

    // The same holds for stealing.
    while first.deque.pop().is_some() {}
    ops[..4].iter().for_each(|op| first.deque.push(op.right()));
    assert!(second.steal().is_some());
    assert!(!second.deque.is_empty(), "one operation was stolen instead of a batch");
    assert_woken();
    while first.deque.pop().or_else(|| second.deque.pop()).is_some() {}
    first.deque.push(ops[0].right());
    assert!(second.steal().is_some());
    assert_not_woken(); // There is no rest.
}

#[test]
fn the_last_searcher_wakes_another_worker_if_there_is_more_work() {
    let ((lane, workers), ops) = (lane(4, IdlePolicy::Park), Ready::new(1, DEFAULT_BAND));
    asleep(&workers[3]);
    let (worker, sleep) = (&workers[0], lane.sleep());
    // There is no more work.
    sleep.start_search();
    assert!(worker.finish_search(ops[0].right()).is_some());
    assert_not_woken();
    lane.injector().push(ops[0].right());
    // There is more work, but another worker searches.
    sleep.start_search();
    sleep.start_search();
    assert!(worker.finish_search(ops[0].right()).is_some());
    assert_not_woken();
    // This was the last searcher.
    assert!(worker.finish_search(ops[0].right()).is_some());
    assert_woken();
    assert!(worker.find().is_some());
}

#[test]
fn a_search_finds_available_work_under_every_policy() {
    for idle in [IdlePolicy::Spin, IdlePolicy::SpinThenPark(Duration::ZERO), IdlePolicy::Park] {
        let ((lane, workers), ops) = (lane(1, idle), Ready::new(1, DEFAULT_BAND));
        lane.injector().push(ops[0].right());
        assert_eq!(workers[0].spin().map(|op| op.as_ptr()), Some(ops[0].as_ptr()), "{idle:?}");
    }
}

/// A thread on the same core may end a search early, but only after it has used the core for `CONTENDED`.
#[test]
fn a_search_lasts_as_long_as_the_policy_says_unless_its_core_is_contended() {
    let searches = |patience: Duration| {
        let (_, workers) = lane(1, IdlePolicy::SpinThenPark(patience));
        std::iter::from_fn(move || {
            let start = Instant::now();
            assert!(workers[0].spin().is_none());
            Some(start.elapsed())
        })
    };
    assert!(searches(CONTENDED).take(100).all(|search| search >= CONTENDED));
    let start = Instant::now();
    let is_short = |search: Duration| search < CONTENDED || start.elapsed() > Duration::from_secs(20);
    let shortest = searches(Duration::ZERO).find(|&search| is_short(search));
    assert!(shortest.is_some_and(|search| search < CONTENDED), "with a limit of zero, a search must be short");
}

#[test]
fn debug_output_names_the_lane_and_the_worker() {
    let (_, workers) = lane(2, IdlePolicy::Park);
    assert_eq!(format!("{:?}", workers[1]), "Worker { lane: \"test\", index: 1, .. }");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only debug builds assert this")]
#[should_panic(expected = "operations are left in worker 0 of lane test")]
fn a_worker_is_not_dropped_with_an_operation_in_its_slot() {
    let ((_, workers), ops) = (lane(1, IdlePolicy::Park), Ready::new(1, DEFAULT_BAND));
    workers[0].push_next(ops[0].right());
    drop(workers);
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "only debug builds assert this")]
#[should_panic(expected = "operations are left in worker 0 of lane test")]
fn a_worker_is_not_dropped_with_an_operation_in_its_deque() {
    let ((_, workers), ops) = (lane(1, IdlePolicy::Park), Ready::new(1, DEFAULT_BAND));
    workers[0].push_local(ops[0].right());
    drop(workers);
}

/// Each worker's search takes as long as looking into all the other deques, so a recall often falls between the
/// announcement of a worker and its last check.
#[test]
fn a_recalled_worker_is_not_recorded_as_idle() {
    const WORKERS: usize = 2000;
    let (lane, mut workers) = lane(WORKERS, IdlePolicy::Park);
    let mut worker = workers.swap_remove(0);
    for round in 0..20 {
        let before = lane.sleep().finds();
        let thread = std::thread::spawn(move || {
            worker.lane.sleep().set_thread(worker.index);
            assert!(worker.next().is_none());
            worker
        });
        // The third call to `find` comes after the announcement.
        while lane.sleep().finds() < before + 3 {
            hint::spin_loop();
        }
        lane.recall();
        worker = thread.join().unwrap();
        lane.resume();
        // The worker may now run an operation that it finds outside a search.
        assert_eq!(lane.sleep().count_idle(), 0, "round {round}");
    }
}
