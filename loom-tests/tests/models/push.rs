//! A push is atomic: operations that share variables are in the same order in every queue, however their pushers
//! interleave, and a stalled pusher delays only its own operation and those behind it.
//!
//! An operation's accesses are sorted by variable, so no thread can insert them in a different order. In these models,
//! an access may be inserted by its operation's pusher or by any thread that finds the operation in the way. Unless a
//! model says otherwise, threads only push, and ready operations run after the threads are joined. The interleavings
//! then differ only in the order of the pushes' steps, so a bound covers more of these orders.

use std::sync::Arc;

use raddle::internals::{
    Flavour::{self, Contract, Crossbeam},
    Mode::{self, Read, Write},
    OpRef,
};
use raddle_loom_tests::checker::thread;
use raddle_loom_tests::{StalledPush, Task, World, kills, model};

/// Pushes lists of operations, the last list on this thread and each other list on a separate thread. Another thread
/// finishes the `stalled` push, if any. Once these threads have been joined, runs all operations and checks their
/// history.
fn push_all(world: &Arc<World>, stalled: Option<StalledPush>, mut lists: Vec<Vec<OpRef<Task>>>) {
    let push = |world: &World, ops: Vec<_>| ops.into_iter().filter_map(|op| world.push(op).ready).collect();
    let mine = lists.pop().expect("there should be a list for this thread");
    let mut threads = Vec::<thread::JoinHandle<Vec<_>>>::new();
    if let Some(stalled) = stalled {
        let world = Arc::clone(world);
        threads.push(thread::spawn(move || world.finish_push(stalled).into_iter().collect()));
    }
    for ops in lists {
        let world = Arc::clone(world);
        threads.push(thread::spawn(move || push(&world, ops)));
    }
    let mut ready: Vec<_> = push(world, mine);
    for thread in threads {
        ready.extend(thread.join().unwrap());
    }
    ready.into_iter().for_each(|op| world.run(op));
    world.end();
}

const A: (usize, Mode) = (0, Write);
const B: (usize, Mode) = (1, Write);
const C: (usize, Mode) = (2, Write);

fn two_on_the_same_two_variables() {
    let world = World::new(2);
    let lists = vec![vec![world.op(&[A, B])], vec![world.op(&[A, B])]];
    push_all(&world, None, lists);
}

#[test]
fn two_pushes_of_the_same_variables_never_deadlock() {
    model(3, Contract, two_on_the_same_two_variables);
}

#[test]
fn two_pushes_of_the_same_variables_never_deadlock_on_crossbeam_epoch() {
    model(1, Crossbeam, two_on_the_same_two_variables);
}

/// Two threads push over the same variables and run ready operations immediately.
fn two_that_run_immediately(flavour: Flavour, bound: usize, modes: [Mode; 2]) {
    model(bound, flavour, move || {
        let world = World::new(2);
        let [one, two] = modes.map(|mode| world.op(&[(0, mode), B]));
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push_and_run(one));
        world.push_and_run(two);
        thread.join().unwrap();
        world.end();
    });
}

#[test]
fn two_writers_exclude_each_other_while_they_are_pushed() {
    two_that_run_immediately(Contract, 2, [Write, Write]);
}

#[test]
fn a_reader_and_a_writer_exclude_each_other_while_they_are_pushed() {
    two_that_run_immediately(Contract, 2, [Read, Write]);
}

/// One thread pushes two operations while another pushes a third, for which it may have to help the first. A slow
/// helper must notice that the access that it is about to insert is already in its queue, even if another operation is
/// queued behind that access.
#[test]
fn an_access_is_never_inserted_twice() {
    model(3, Contract, || {
        let world = World::new(2);
        let lists = vec![vec![world.op(&[A, B]), world.op(&[B])], vec![world.op(&[A])]];
        push_all(&world, None, lists);
    });
}

#[test]
fn a_half_done_push_between_two_pushes_of_one_variable_never_deadlocks() {
    model(1, Contract, || {
        let world = World::new(2);
        let stalled = world.stall(world.op(&[A, B]));
        let lists = vec![vec![world.op(&[A])], vec![world.op(&[B])]];
        push_all(&world, Some(stalled), lists);
    });
}

#[test]
fn a_stalled_pusher_delays_no_other_operation() {
    model(2, Contract, || {
        let world = World::new(3);
        let stalled = world.stall(world.op(&[A, B]));
        let (behind, beside) = (world.op(&[A, B]), world.op(&[B, C]));
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push_and_run(beside));
        assert!(world.push(behind).ready.is_none(), "an operation is ready before the stalled one in front of it");
        thread.join().unwrap();
        // All other pushes are over, and all ready operations have run.
        assert_eq!(world.runs(STALLED), 0);
        world.finish_push(stalled).into_iter().for_each(|op| world.run(op));
        world.end();
    });
}

/// A helper has linked only the second of three accesses when the operation's pusher goes on, and links the third.
#[test]
fn an_operation_that_was_helped_in_its_middle_becomes_ready() {
    model(2, Contract, || {
        let world = World::new(3);
        let stalled = world.stall(world.op(&[A, B, C]));
        push_all(&world, Some(stalled), vec![vec![world.op(&[A])]]);
    });
}

/// The number of the first operation created by a world.
const STALLED: usize = 0;

/// Two threads concurrently help the same operation with the same access, which must be counted once.
#[test]
fn an_access_inserted_by_two_helpers_is_counted_once() {
    model(1, Contract, || {
        let world = World::new(2);
        let stalled = world.stall(world.op(&[A, B]));
        let [one, two] = [(); 2].map(|()| world.op(&[A]));
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            assert!(other.push(one).ready.is_none(), "an operation is ready before the stalled one in front of it");
        });
        assert!(world.push(two).ready.is_none(), "an operation is ready before the stalled one in front of it");
        thread.join().unwrap();
        world.finish_push(stalled).into_iter().for_each(|op| world.run(op));
        world.end();
    });
}

/// A thread that moves the tail to an access linked by another thread hands over that access: any thread that finds the
/// access at the tail may use it.
#[test]
fn the_tail_hands_over_the_access_it_points_to() {
    model(2, Contract, || {
        let world = World::new(1);
        let push = |world: &World| world.push(world.op(&[(0, Read)])).ready.expect("only readers should be pending");
        let (pusher, looker) = (Arc::clone(&world), Arc::clone(&world));
        let pusher = thread::spawn(move || push(&pusher));
        let looker = thread::spawn(move || _ = looker.queue(0).is_idle(Write));
        let mine = push(&world);
        looker.join().unwrap();
        for op in [mine, pusher.join().unwrap()] {
            world.run(op);
        }
        world.end();
    });
}

/// Three pushes use two of three variables each, so any two of them share one variable. The first push is stalled
/// halfway.
#[test]
fn a_ring_of_three_pushes_by_two_threads_never_deadlocks() {
    model(1, Contract, || {
        let world = World::new(3);
        let stalled = world.stall(world.op(&[A, B]));
        let (second, third) = (world.op(&[B, C]), world.op(&[A, C]));
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push(second).ready);
        let mut ready = vec![world.push(third).ready, world.finish_push(stalled)];
        ready.push(thread.join().unwrap());
        ready.into_iter().flatten().for_each(|op| world.run(op));
        world.end();
    });
}

/// The ring of three pushes by three threads; the first two start halfway. If all three started at the beginning,
/// a push without help would deadlock only with a bound that allows too many interleavings; `loom-tests/algorithm` has
/// that model.
#[test]
fn a_ring_of_three_pushes_by_three_threads_never_deadlocks() {
    model(0, Contract, || {
        let world = World::new(3);
        let halfway = [world.op(&[A, B]), world.op(&[B, C])].map(|op| world.stall(op));
        let threads = halfway.map(|stalled| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.finish_push(stalled))
        });
        let third = world.op(&[A, C]);
        let mut ready = vec![world.push(third).ready];
        ready.extend(threads.map(|thread| thread.join().unwrap()));
        ready.into_iter().flatten().for_each(|op| world.run(op));
        world.end();
    });
}

kills! {
    two_pushes_of_the_same_variables_never_deadlock {
        "step::HELP_BEFORE_APPEND": "never became ready",
    }
    an_access_is_never_inserted_twice {
        "swing::INSERTED": "use after reclamation",
        "swing::TAIL": "use after reclamation",
        "step::REREAD_REGISTERED": "use after reclamation",
    }
    a_half_done_push_between_two_pushes_of_one_variable_never_deadlocks {
        "step::REGISTERED_AT_TAIL": "exceeded maximum number of branches",
    }
    a_stalled_pusher_delays_no_other_operation {
        "step::HELPS": "exceeded maximum number of branches",
    }
    an_operation_that_was_helped_in_its_middle_becomes_ready {
        "step::HELPER_DEFERS": "never became ready",
        "step::DEFERRED_ADOPTED": "never became ready",
    }
    the_tail_hands_over_the_access_it_points_to {
        "link::TAIL": "Causality violation",
        "swing::HELPED": "Causality violation",
        "swing::IDLE": "Causality violation",
    }
    a_ring_of_three_pushes_by_two_threads_never_deadlocks {
        "step::HELP_BEFORE_APPEND": "never became ready",
    }
    a_ring_of_three_pushes_by_three_threads_never_deadlocks {
        "step::HELP_BEFORE_APPEND": "never became ready",
    }
}
