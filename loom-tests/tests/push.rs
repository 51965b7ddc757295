//! A push is atomic: operations that share variables are in one order everywhere, whatever their pushers do to each other,
//! and a pusher that stands still delays nothing but what comes after its own operation.
//!
//! An operation's accesses are sorted by variable, so no thread can insert them in another order; what is left, and what
//! these models explore, is that every access may be inserted by its own pusher or by any other thread that it is in the
//! way of. Threads push only, and what is ready runs when they are joined, except where a model says otherwise: then
//! every interleaving is one of pushes, and more of them fit into a bound.

#![cfg(raddle_loom)]

use std::sync::Arc;

use loom::thread;
use raddle::internals::{
    Flavour::{self, Contract, Crossbeam},
    Mode::{self, Read, Write},
    OpRef, Step,
};
use raddle_loom_tests::{StalledPush, Task, World, model, must_fail, without};

/// Pushes lists of operations, each on a thread of its own and the last one on this, then runs everything.
fn push_all(world: &Arc<World>, stalled: Option<StalledPush>, mut lists: Vec<Vec<OpRef<Task>>>) {
    let push = |world: &World, ops: Vec<_>| ops.into_iter().filter_map(|op| world.push(op).ready).collect();
    let mine = lists.pop().expect("somebody pushes");
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

#[test]
#[ignore = "fails by design; run by the test below"]
fn appending_without_help() {
    without(Step::HelpBeforeAppend, || _ = model(2, Contract, two_on_the_same_two_variables));
}

#[test]
fn without_help_two_pushes_deadlock() {
    must_fail("appending_without_help", "never became ready");
}

/// As above, and each thread runs what it finds ready at once.
fn two_run_at_once(flavour: Flavour, bound: usize, modes: [Mode; 2]) {
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
    two_run_at_once(Contract, 2, [Write, Write]);
}

#[test]
fn a_reader_and_a_writer_exclude_each_other_while_they_are_pushed() {
    two_run_at_once(Contract, 2, [Read, Write]);
}

/// One thread pushes two operations, the other gets in their way: a helper that is slow to insert an access must notice
/// that it was inserted meanwhile, also when another operation stands behind it.
fn a_slow_helper() {
    let world = World::new(2);
    let lists = vec![vec![world.op(&[A, B]), world.op(&[B])], vec![world.op(&[A])]];
    push_all(&world, None, lists);
}

#[test]
fn an_access_is_never_inserted_twice() {
    model(3, Contract, a_slow_helper);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn inserting_without_a_second_look_at_registered() {
    without(Step::RereadRegistered, || _ = model(3, Contract, a_slow_helper));
}

#[test]
fn without_a_second_look_at_registered_an_access_is_inserted_twice() {
    must_fail("inserting_without_a_second_look_at_registered", "use after reclamation");
}

#[test]
fn one_of_two_variables_and_one_of_each_never_deadlock() {
    model(1, Contract, || {
        let world = World::new(2);
        let lists = vec![vec![world.op(&[A, B])], vec![world.op(&[A])], vec![world.op(&[B])]];
        push_all(&world, None, lists);
    });
}

#[test]
fn a_half_done_push_between_two_singles_never_deadlocks() {
    model(1, Contract, || {
        let world = World::new(2);
        let stalled = world.stall(world.op(&[A, B]));
        let lists = vec![vec![world.op(&[A])], vec![world.op(&[B])]];
        push_all(&world, Some(stalled), lists);
    });
}

#[test]
fn a_pusher_that_stands_still_holds_up_nobody() {
    model(2, Contract, || {
        let world = World::new(3);
        let stalled = world.stall(world.op(&[A, B]));
        let (behind, beside) = (world.op(&[A, B]), world.op(&[B, C]));
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push_and_run(beside));
        assert!(world.push(behind).ready.is_none(), "an operation passed another that stands still before it");
        thread.join().unwrap();
        // All pushes but one are over, and what is ready ran, which is none that comes after that one.
        assert_eq!(world.runs(STALLED), 0);
        world.finish_push(stalled).into_iter().for_each(|op| world.run(op));
        world.end();
    });
}

/// The number of the operation that a world made first.
const STALLED: usize = 0;

/// Two threads help the same operation past the same access at once, and it must not be taken for one access further
/// than it is.
#[test]
fn an_access_that_two_threads_help_with_is_counted_once() {
    model(1, Contract, || {
        let world = World::new(2);
        let stalled = world.stall(world.op(&[A, B]));
        let [one, two] = [(); 2].map(|()| world.op(&[A]));
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || assert!(other.push(one).ready.is_none(), "an operation passed another"));
        assert!(world.push(two).ready.is_none(), "an operation passed another");
        thread.join().unwrap();
        world.finish_push(stalled).into_iter().for_each(|op| world.run(op));
        world.end();
    });
}

/// Whoever moves the tail to an access that somebody else has linked hands over the access: a thread that finds it
/// there may look at it.
#[test]
fn who_finds_an_access_at_the_tail_may_look_at_it() {
    model(2, Contract, || {
        let world = World::new(1);
        let push = |world: &World| world.push(world.op(&[(0, Read)])).ready.expect("nothing is pending but readers");
        let (pusher, looker) = (Arc::clone(&world), Arc::clone(&world));
        let pusher = thread::spawn(move || push(&pusher));
        let looker = thread::spawn(move || _ = looker.queue(0).is_idle(false));
        let mine = push(&world);
        looker.join().unwrap();
        for op in [mine, pusher.join().unwrap()] {
            world.run(op);
        }
        world.end();
    });
}

/// Three pushes over three variables, each two of which share one. The first stands still half-way.
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

/// As above, by three threads. The first two start half-way.
#[test]
fn a_ring_of_three_pushes_by_three_threads_never_deadlocks() {
    model(0, Contract, || {
        let world = World::new(3);
        let half_way = [world.op(&[A, B]), world.op(&[B, C])].map(|op| world.stall(op));
        let threads = half_way.map(|stalled| {
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

/// As above, from the start. Even without a preemption there are many interleavings, because each load of what another
/// thread has stored may still find what was there before.
#[test]
fn a_ring_of_three_pushes_never_deadlocks() {
    model(0, Contract, || {
        let world = World::new(3);
        let lists = vec![vec![world.op(&[A, B])], vec![world.op(&[B, C])], vec![world.op(&[A, C])]];
        push_all(&world, None, lists);
    });
}
