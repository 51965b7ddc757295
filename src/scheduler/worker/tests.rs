//! Tests of workers that are all run by one thread: where each worker searches, in which order, and which workers it
//! wakes.

mod turns;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    super::{
        lane::LaneOptions,
        loans::LentPlace,
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

/// Runs `worker` on another thread for one call of `next`, which returns whether the worker has found an operation.
fn next_elsewhere(worker: Worker<usize>) -> JoinHandle<(bool, Worker<usize>)> {
    thread::spawn(move || {
        worker.lane.sleep().set_thread(worker.index);
        (worker.next().is_some(), worker)
    })
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

/// Stale entries are those of operations that waiters have taken.
#[test]
fn a_full_deque_does_not_grow_but_is_rid_of_stale_entries_if_there_may_be_many() {
    let many = MANY_STALE as usize;
    for (noted, stale) in [(0, 0), (many - 1, many - 1), (many, many), (many + 1, many + 1), (many, 0)] {
        let ((lane, workers), ops) = (lane(1, IdlePolicy::Park), Ready::new(DEQUE_CAPACITY + 1, DEFAULT_BAND));
        let (worker, (last, queued)) = (&workers[0], ops.split_last().expect("there are operations"));
        for (number, op) in queued.iter().enumerate() {
            let entry = op.right();
            if number < stale {
                entry.publish(|| true);
            }
            worker.push_local(entry);
        }
        for op in &queued[..stale] {
            // SAFETY: the operation was published, and has not started.
            let taken = unsafe { OpRef::take(|| Some(op.right().into_ptr())) };
            assert!(taken.is_some());
        }
        (0..noted).for_each(|_| worker.note_stale());
        worker.push_local(last.right());
        let has_room = noted >= many && stale > 0;
        let len = if has_room { DEQUE_CAPACITY + 1 - stale } else { DEQUE_CAPACITY };
        let found = (worker.deque.len(), lane.injector().is_default_empty());
        assert_eq!(found, (len, has_room), "{noted} were noted, {stale} are stale");
        while let Some(entry) = worker.find() {
            let _ = entry.pop_entry();
        }
    }
}

#[test]
fn a_thread_without_a_worker_takes_the_most_urgent_operation() {
    let (lane, workers) = lane(2, IdlePolicy::Park);
    let ops = [HIGHER, HIGH, DEFAULT_BAND, DEFAULT_BAND, LOW, LOW - 1].map(|band| Ready::new(1, band));
    let [higher, high, outside, in_deque, low, lower] = ops.each_ref().map(|ops| ops[0]);
    [lower, low, outside, high, higher].into_iter().for_each(|op| lane.inject(op.right()));
    workers[1].push_local(in_deque.right());
    let order = [higher, high, outside, in_deque, low, lower].map(|op| Some(op.as_ptr()));
    assert_eq!([(); 6].map(|()| lane.take().map(|op| op.as_ptr())), order);
    assert!(lane.take().is_none());
}

#[test]
fn a_thread_without_a_worker_wakes_one_for_the_rest_of_an_inbox() {
    let ((lane, workers), ops) = (lane(1, IdlePolicy::Park), Ready::new(3, DEFAULT_BAND));
    asleep(&workers[0]);
    ops.iter().for_each(|op| lane.injector().push(op.right()));
    // The first operation is taken together with the rest, which is put back; the others are taken alone.
    for number in 0..3 {
        assert!(lane.take().is_some());
        assert_eq!(lane.sleep().wakes(), 1, "after operation {number}");
    }
}

#[test]
fn a_lane_knows_whether_operations_wait_in_its_highest_band() {
    let ((lane, workers), ops) = (lane(1, IdlePolicy::Park), Ready::new(2, HIGHER));
    lane.inject(ops[0].right());
    assert!(!lane.has_first());
    lane.inject_first(ops[1].right());
    assert!(lane.has_first());
    assert_eq!(workers[0].take_first().map(|op| op.as_ptr()), Some(ops[1].as_ptr()));
    assert!(workers[0].take_first().is_none());
    assert!(!lane.has_first());
    assert_eq!(find_ptr(&workers[0]), Some(ops[0].as_ptr()));
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
fn no_more_places_are_lent_than_there_are_workers_and_those_of_idle_ones_first() {
    let (lane, workers) = lane(3, IdlePolicy::Park);
    workers[1..].iter().for_each(|worker| lane.sleep().note_idle(worker.index));
    assert_eq!(
        [(); 4].map(|()| lane.borrow_place()),
        [Some(LentPlace::Idle), Some(LentPlace::Idle), Some(LentPlace::Busy), None]
    );
    lane.give_place_back();
    assert!(lane.loans().are_any());
    assert_eq!(lane.borrow_place(), Some(LentPlace::Busy));
    (0..3).for_each(|_| lane.give_place_back());
    assert!(!lane.loans().are_any(), "all places were given back");
}

#[test]
fn a_worker_gives_way_until_the_place_of_a_busy_one_is_given_back() {
    let (lane, mut workers) = lane(1, IdlePolicy::Park);
    let worker = workers.swap_remove(0);
    // No place is lent.
    assert!(!lane.need_more_to_give_way());
    worker.give_way();
    assert_eq!(lane.borrow_place(), Some(LentPlace::Busy));
    assert!(lane.ask_to_give_way() && !lane.ask_to_give_way(), "one worker is asked for all functions");
    let start = Instant::now();
    assert!(!lane.need_more_to_give_way(), "one worker suffices for one function");
    let gives_way = thread::spawn(move || worker.give_way());
    while lane.sleep().count_idle() == 0 {
        thread::yield_now();
    }
    assert_eq!(lane.borrow_place(), None);
    lane.give_place_back();
    gives_way.join().unwrap();
    assert!(start.elapsed() < LONGEST_STAY);
    assert!(lane.ask_to_give_way(), "the worker has given way");
}

#[test]
fn a_worker_whose_place_is_lent_stays_idle_before_each_operation_unless_another_is_idle() {
    let ((lane, workers), ops) = (lane(2, IdlePolicy::Park), Ready::new(1, DEFAULT_BAND));
    let (worker, sleep) = (&workers[0], lane.sleep());
    (0..2).for_each(|worker| sleep.note_idle(worker));
    assert_eq!(lane.borrow_place(), Some(LentPlace::Idle));
    let finds_the_operation = || {
        sleep.start_search();
        sleep.note_busy(worker.index);
        worker.finish_search(ops[0].right()).is_some()
    };
    assert!(finds_the_operation(), "the other worker is idle");
    sleep.note_busy(1);
    for _ in 0..2 {
        let start = Instant::now();
        assert!(!finds_the_operation(), "more functions compute than there are workers");
        assert!(start.elapsed() >= LONGEST_STAY);
        assert_eq!(find_ptr(worker), Some(ops[0].as_ptr()), "the operation was not put back");
        assert!(finds_the_operation(), "the worker has just stayed idle");
    }
    lane.give_place_back();
}

#[test]
fn a_lane_is_busy_if_its_workers_have_searched_often_since_the_last_check() {
    let (lane, workers) = lane(2, IdlePolicy::Park);
    let (worker, finds) = (&workers[0], lane.sleep().finds());
    // As if the workers had called `find` a million times since then.
    worker.sample.set((Instant::now(), finds.wrapping_sub(1_000_000)));
    assert!(worker.is_lane_busy());
    assert_eq!(worker.sample.get().1, finds);
    worker.sample.set((a_second_ago(), finds));
    assert!(!worker.is_lane_busy());
}

fn a_second_ago() -> Instant {
    Instant::now().checked_sub(Duration::from_secs(1)).expect("the machine has run for a second")
}

/// The announcement of a park with a time limit clears the report of contention.
#[test]
fn a_worker_on_a_contended_core_parks_with_a_time_limit_if_the_lane_is_busy() {
    for is_busy in [true, false] {
        let ((lane, mut workers), ops) = (lane(2, IdlePolicy::Park), Ready::new(1, DEFAULT_BAND));
        let (worker, finds) = (workers.swap_remove(0), lane.sleep().finds());
        worker.sample.set(if is_busy {
            (Instant::now(), finds.wrapping_sub(1_000_000))
        } else {
            (a_second_ago(), finds)
        });
        lane.sleep().set_contended(0);
        let next = next_elsewhere(worker);
        // The worker has made its announcement before it counts the park.
        while lane.activity(0).parks.get() == 0 {
            thread::yield_now();
        }
        lane.inject(ops[0].right());
        assert!(next.join().unwrap().0);
        assert_eq!(lane.sleep().is_contended(0), !is_busy);
    }
}

#[test]
fn a_worker_that_always_searches_does_not_park_on_a_contended_core() {
    let ((lane, mut workers), ops) = (lane(1, IdlePolicy::Spin), Ready::new(1, DEFAULT_BAND));
    lane.sleep().set_contended(0);
    let next = next_elsewhere(workers.swap_remove(0));
    while lane.sleep().count_idle() == 0 {
        thread::yield_now();
    }
    // In this time, a worker that parks does so.
    thread::sleep(Duration::from_millis(50));
    lane.inject(ops[0].right());
    assert!(next.join().unwrap().0);
    assert_eq!(lane.activity(0).parks.get(), 0);
}

#[test]
fn a_search_that_unwinds_is_over() {
    let (lane, workers) = lane(1, IdlePolicy::Park);
    let sleep = lane.sleep();
    for state in [SearchState::Inactive, SearchState::Searching, SearchState::Announced] {
        match state {
            SearchState::Inactive => {}
            SearchState::Searching => sleep.start_search(),
            SearchState::Announced => asleep(&workers[0]),
        }
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _guard = SearchGuard { sleep, worker: 0, state: Cell::new(state) };
            panic!("a deferred function panics");
        }));
        assert!(unwound.is_err());
        sleep.notify();
        assert_eq!(sleep.wakes(), 0, "{state:?}: the worker is still announced");
        assert!(sleep.try_start_search(), "{state:?}: the worker still counts as a searcher");
        assert!(sleep.stop_search());
    }
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
        let next = next_elsewhere(worker);
        // The third call to `find` comes after the announcement.
        while lane.sleep().finds() < before + 3 {
            hint::spin_loop();
        }
        lane.recall();
        let found;
        (found, worker) = next.join().unwrap();
        assert!(!found);
        lane.resume();
        // The worker may now run an operation that it finds outside a search.
        assert_eq!(lane.sleep().count_idle(), 0, "round {round}");
    }
}

/// If others search, the recalled worker does not count as a searcher in the first place.
#[test]
fn a_recalled_worker_does_not_count_as_a_searcher() {
    for others in [0, 1] {
        let (lane, workers) = lane(2, IdlePolicy::Park);
        (0..others).for_each(|_| lane.sleep().start_search());
        lane.recall();
        assert!(workers[0].next().is_none());
        assert_eq!(lane.sleep().try_start_search(), others == 0, "one of two workers may search");
        assert!(lane.sleep().stop_search(), "with {others} others");
    }
}

#[test]
fn a_worker_visits_another_in_one_of_eight_rounds() {
    let (_, workers) = lane(3, IdlePolicy::Park);
    let visits = |&round: &u32| {
        workers[0].rounds.set(round);
        workers[0].visit_target().is_some()
    };
    assert_eq!((0..5 * ROUNDS_PER_VISIT).filter(visits).count(), 5);
}

/// When a round ends, its turns are skipped, and the next one is shorter by the operations since the deque was served.
#[test]
fn at_most_a_run_comes_between_two_operations_of_a_deque_although_turns_are_skipped() {
    for before in 0..MAX_RUN as usize {
        let ((_, workers), ops) = (lane(1, IdlePolicy::Park), Ready::new(before + 2, DEFAULT_BAND));
        let (worker, chain, waits, served) = (&workers[0], ops[0], ops[1], &ops[2..]);
        served.iter().chain([&chain]).for_each(|op| worker.push_local(op.right()));
        assert!(served.iter().chain([&chain]).all(|op| find_ptr(worker) == Some(op.as_ptr())));
        // From here on, the chain is in the slot.
        worker.push_local(waits.right());
        let mut own = 0;
        let next = loop {
            worker.push_next(chain.right());
            let op = find_ptr(worker);
            if op != Some(chain.as_ptr()) {
                break op;
            }
            own += 1;
        };
        assert_eq!((own, next), (MAX_RUN, Some(waits.as_ptr())), "after {before} operations of the deque");
        assert_eq!(find_ptr(worker), Some(chain.as_ptr()));
    }
}
