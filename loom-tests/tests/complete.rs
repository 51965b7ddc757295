//! A completion and a push never miss each other: whoever comes last says that the operation is ready, once; and what an
//! operation wrote is visible to those that it makes ready.
//!
//! The data of the variables are loom's cells, so an operation that runs before its turn, or without having been handed
//! what the others wrote, is a race that loom finds.

#![cfg(raddle_loom)]

use std::sync::Arc;

use loom::thread;
use raddle::internals::{
    Flavour::{self, Contract, Crossbeam},
    Mode::{self, Await, Overwrite, Read, Write},
    OpRef, ReadyList, Step,
};
use raddle_loom_tests::{COMPLETE, Task, World, model, must_fail, without};

/// An operation runs and ends on one thread while another thread makes and pushes the next one.
fn hand_over(before: Mode, after: Mode) {
    let world = World::new(1);
    let first = world.op(&[(0, before)]);
    let first = world.push(first).ready.expect("nothing is pending");
    let other = Arc::clone(&world);
    let thread = thread::spawn(move || other.run(first));
    world.push_and_run(world.op(&[(0, after)]));
    thread.join().unwrap();
    world.end();
}

/// Both reclamations, and the bounds that fit them.
fn hand_over_on_both(before: Mode, after: Mode) {
    for (bound, flavour) in [(COMPLETE, Contract), (Some(4), Crossbeam)] {
        model(bound, flavour, move || hand_over(before, after));
    }
}

#[test]
fn a_writer_hands_over_to_a_reader() {
    hand_over_on_both(Write, Read);
}

#[test]
fn a_writer_hands_over_to_a_writer() {
    hand_over_on_both(Write, Write);
}

#[test]
fn a_reader_hands_over_to_a_writer() {
    hand_over_on_both(Read, Overwrite);
}

#[test]
fn a_reader_hands_over_to_a_reader() {
    hand_over_on_both(Read, Read);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn completing_relaxed() {
    without(Step::CompletionReleases, || _ = model(4, Contract, || hand_over(Write, Read)));
}

#[test]
fn without_release_a_completion_hands_nothing_over() {
    must_fail("completing_relaxed", "Causality violation");
}

/// The successor takes its place by a helper: its pusher stands still behind its first access, a third thread helps it,
/// and meanwhile the predecessor on its second variable ends. The pusher finds what it is entitled to in hints or in
/// flags, and must count each access once.
fn meet_helped(bound: usize, before: Mode, after: Mode) {
    model(bound, Contract, move || {
        let world = World::new(2);
        let first = world.op(&[(1, before)]);
        let first = world.push(first).ready.expect("nothing is pending");
        let stalled = world.stall(world.op(&[(0, Write), (1, after)]));
        let behind = world.op(&[(0, Write)]);
        let (completer, helper) = (Arc::clone(&world), Arc::clone(&world));
        let threads = [thread::spawn(move || completer.run(first)), thread::spawn(move || helper.push_and_run(behind))];
        world.finish_push(stalled).into_iter().for_each(|op| world.run(op));
        for thread in threads {
            thread.join().unwrap();
        }
        world.end();
    });
}

#[test]
fn a_writer_hands_over_to_a_helped_reader() {
    meet_helped(2, Write, Read);
}

#[test]
fn a_reader_hands_over_to_a_helped_writer() {
    meet_helped(2, Read, Write);
}

/// The same by two threads: whoever ends the predecessor then helps the successor.
fn end_and_help(before: Mode, after: Mode) {
    model(2, Contract, move || {
        let world = World::new(2);
        let first = world.op(&[(1, before)]);
        let first = world.push(first).ready.expect("nothing is pending");
        let stalled = world.stall(world.op(&[(0, Write), (1, after)]));
        let behind = world.op(&[(0, Write)]);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            other.run(first);
            other.push_and_run(behind);
        });
        world.finish_push(stalled).into_iter().for_each(|op| world.run(op));
        thread.join().unwrap();
        world.end();
    });
}

#[test]
fn a_writer_hands_over_to_a_reader_that_its_thread_helps() {
    end_and_help(Write, Read);
}

#[test]
fn a_reader_hands_over_to_a_writer_that_its_thread_helps() {
    end_and_help(Read, Write);
}

/// Two predecessors on different variables end at once; one of them, and one only, makes the successor ready.
#[test]
fn the_last_of_two_predecessors_makes_the_successor_ready() {
    model(COMPLETE, Contract, || {
        let world = World::new(2);
        let firsts = [0, 1].map(|variable| world.op(&[(variable, Write)]));
        // Or their ends would pass the fences of the epoch, which might hide that something is not handed over.
        let holds = firsts.each_ref().map(OpRef::hold);
        let [one, two] = firsts.map(|op| world.push(op).ready.expect("nothing is pending"));
        assert!(world.push(world.op(&[(0, Write), (1, Read)])).ready.is_none(), "two predecessors are pending");
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.run(one));
        world.run(two);
        thread.join().unwrap();
        drop(holds);
        world.end();
    });
}

/// The same while the successor is pushed.
#[test]
fn two_predecessors_end_while_the_successor_is_pushed() {
    model(4, Contract, || {
        let world = World::new(2);
        let firsts = [0, 1].map(|variable| world.op(&[(variable, Write)]));
        // As above.
        let holds = firsts.each_ref().map(OpRef::hold);
        let firsts = firsts.map(|op| world.push(op).ready.expect("nothing is pending"));
        let successor = world.op(&[(0, Read), (1, Write)]);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || firsts.into_iter().for_each(|op| other.run(op)));
        world.push_and_run(successor);
        thread.join().unwrap();
        drop(holds);
        world.end();
    });
}

/// Readers between two writers, ended by one thread each, while the writer behind them is pushed. The readers are made
/// ready by the end of the first writer.
fn readers_between_writers(bound: usize, ends: [usize; 2]) {
    model(bound, Contract, move || {
        let world = World::new(1);
        let writer = world.op(&[(0, Write)]);
        let readers = [Read; 2].map(|mode| world.op(&[(0, mode)]));
        let last = world.op(&[(0, Write)]);
        let writer = world.push(writer).ready.expect("nothing is pending");
        let readers = readers.map(|reader| {
            let address = reader.as_ptr();
            assert!(world.push(reader).ready.is_none(), "a writer is pending");
            address
        });
        let mut ready = ReadyList::default();
        world.execute(&writer);
        world.complete(writer, &mut ready);
        let mut readers = readers.map(|reader| {
            let popped = ready.pop().expect("both readers are ready");
            assert_eq!(popped.as_ptr(), reader, "the readers are ready in the order of their pushes");
            Some(popped)
        });
        let threads = ends.map(|reader| {
            let (world, reader) = (Arc::clone(&world), readers[reader].take().unwrap());
            thread::spawn(move || world.run(reader))
        });
        world.push_and_run(last);
        for thread in threads {
            thread.join().unwrap();
        }
        world.end();
    });
}

#[test]
fn readers_that_end_from_the_front_let_the_writer_go() {
    readers_between_writers(4, [0, 1]);
}

#[test]
fn readers_that_end_from_the_back_let_the_writer_go() {
    readers_between_writers(4, [1, 0]);
}

/// A writer ends while two readers are pushed behind it. Neither reader ends before both could run.
fn readers_side_by_side(flavour: Flavour) {
    let readers_of = |world: &World| [Read; 2].map(|mode| world.op(&[(0, mode)]));
    model(if flavour == Contract { 5 } else { 3 }, flavour, move || {
        let world = World::new(1);
        let writer = world.op(&[(0, Write)]);
        let readers = readers_of(&world);
        let writer = world.push(writer).ready.expect("nothing is pending");
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            let mut ready = ReadyList::default();
            other.execute(&writer);
            other.complete(writer, &mut ready);
            ready
        });
        let mut found: Vec<_> = readers.into_iter().filter_map(|op| world.push(op).ready).collect();
        let mut ready = thread.join().unwrap();
        found.extend(std::iter::from_fn(|| ready.pop()));
        assert_eq!(found.len(), 2, "a reader waits for another reader");
        found.into_iter().for_each(|op| world.run(op));
        world.end();
    });
}

#[test]
fn readers_run_side_by_side() {
    readers_side_by_side(Contract);
}

#[test]
fn readers_run_side_by_side_on_crossbeam_epoch() {
    readers_side_by_side(Crossbeam);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn completing_for_one_reader_only() {
    without(Step::ReadersPassOn, || readers_side_by_side(Contract));
}

#[test]
fn unless_readers_pass_it_on_one_waits_for_the_other() {
    must_fail("completing_for_one_reader_only", "a reader waits for another reader");
}

/// An operation ends while two more are pushed behind it, by one thread each: what the first of them is entitled to, when it
/// gets its place, is what the second one goes by, however late the tail is moved.
fn three_in_a_row(bound: usize, modes: [Mode; 3]) {
    model(bound, Contract, move || {
        let world = World::new(1);
        let [first, second, third] = modes.map(|mode| world.op(&[(0, mode)]));
        let first = world.push(first).ready.expect("nothing is pending");
        let (completer, pusher) = (Arc::clone(&world), Arc::clone(&world));
        let threads = [thread::spawn(move || completer.run(first)), thread::spawn(move || pusher.push_and_run(third))];
        world.push_and_run(second);
        for thread in threads {
            thread.join().unwrap();
        }
        world.end();
    });
}

#[test]
fn a_writer_and_a_reader_are_pushed_behind_a_reader_that_ends() {
    three_in_a_row(2, [Read, Read, Write]);
}

#[test]
fn two_writers_are_pushed_behind_a_writer_that_ends() {
    three_in_a_row(2, [Write, Write, Write]);
}

#[test]
fn a_wait_and_a_reader_are_pushed_behind_a_reader_that_ends() {
    three_in_a_row(2, [Read, Await, Read]);
}

#[test]
fn two_readers_are_pushed_behind_a_reader_that_ends() {
    three_in_a_row(2, [Read, Read, Read]);
}

/// A reader whose pusher stands still is put into its queue by a helper while the reader before it ends. It may be the
/// completion that moves the tail to it; a reader behind it must not wait for it.
#[test]
fn a_reader_behind_a_helped_reader_does_not_wait_for_it() {
    model(2, Contract, || {
        let world = World::new(2);
        let first = world.op(&[(1, Read)]);
        let first = world.push(first).ready.expect("nothing is pending");
        let stalled = world.stall(world.op(&[(0, Write), (1, Read)]));
        let (helping, behind) = (world.op(&[(0, Write)]), world.op(&[(1, Read)]));
        let (completer, helper) = (Arc::clone(&world), Arc::clone(&world));
        let completer = thread::spawn(move || {
            let mut ready = ReadyList::default();
            completer.execute(&first);
            completer.complete(first, &mut ready);
            ready
        });
        let helper =
            thread::spawn(move || assert!(helper.push(helping).ready.is_none(), "the stalled operation is before it"));
        let at_once = world.push(behind).ready;
        helper.join().unwrap();
        let mut ready = completer.join().unwrap();
        let later = ready.pop();
        assert!(at_once.is_none() || later.is_none(), "an operation is ready twice");
        world.run(at_once.or(later).expect("a reader waits for another reader"));
        world.finish_push(stalled).into_iter().for_each(|op| world.run(op));
        assert!(ready.is_empty(), "an operation is ready twice");
        world.end();
    });
}

/// A completion walks down a queue, past a reader that another completion may make ready, to the reader behind it,
/// which may then run, end and be retired: what the walk is at must not be.
#[test]
fn an_access_is_kept_while_a_completion_walks_past_it() {
    model(3, Contract, || {
        let world = World::new(2);
        let firsts = [0, 1].map(|variable| world.op(&[(variable, Write)]));
        let behind = [world.op(&[(0, Read), (1, Read)]), world.op(&[(0, Read)]), world.op(&[(0, Write)])];
        let [one, two] = firsts.map(|op| world.push(op).ready.expect("nothing is pending"));
        for op in behind {
            assert!(world.push(op).ready.is_none(), "a writer is pending");
        }
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.run(one));
        world.run(two);
        thread.join().unwrap();
        world.end();
    });
}

/// A completion that finds a push half done moves the tail itself, and hands over the access that it moves it to.
#[test]
fn who_finds_an_access_where_a_completion_has_moved_the_tail_may_look_at_it() {
    model(2, Contract, || {
        let world = World::new(1);
        let first = world.op(&[(0, Write)]);
        let first = world.push(first).ready.expect("nothing is pending");
        let (completer, looker) = (Arc::clone(&world), Arc::clone(&world));
        let threads =
            [thread::spawn(move || completer.run(first)), thread::spawn(move || _ = looker.queue(0).is_idle(false))];
        world.push_and_run(world.op(&[(0, Write)]));
        for thread in threads {
            thread.join().unwrap();
        }
        world.end();
    });
}

/// Runs `op` alone; gives what becomes ready by it.
fn end(world: &World, op: OpRef<Task>) -> ReadyList<Task> {
    let mut ready = ReadyList::default();
    world.execute(&op);
    world.complete(op, &mut ready);
    ready
}

/// An operation ends while the next one is linked behind it, but no further, and a third comes behind that, which goes
/// by what the second was entitled to when it was linked: none of the readers waits for another.
#[test]
fn readers_do_not_wait_for_each_other_when_the_one_before_them_ends_while_they_are_linked() {
    model(2, Contract, || {
        let world = World::new(2);
        let first = world.op(&[(1, Read)]);
        let first = world.push(first).ready.expect("nothing is pending");
        let second = world.op(&[(0, Write), (1, Read)]);
        let stalled = world.stall(second);
        let third = world.op(&[(1, Read)]);
        let (completer, pusher) = (Arc::clone(&world), Arc::clone(&world));
        let completer = thread::spawn(move || end(&completer, first));
        let pusher = thread::spawn(move || pusher.push(third).ready);
        let mut found: Vec<_> = world.finish_push(stalled).into_iter().collect();
        found.extend(pusher.join().unwrap());
        let mut ready = completer.join().unwrap();
        found.extend(std::iter::from_fn(|| ready.pop()));
        assert_eq!(found.len(), 2, "a reader waits for another reader");
        found.into_iter().for_each(|op| world.run(op));
        world.end();
    });
}

/// A completion walks to an operation that is linked, but no further. Another push gets that done, and leaves it
/// nothing that the completion has still to bring, or it would be done and gone when that comes: the other push names both
/// of its variables, so that its record is given back.
#[test]
fn an_access_waits_for_the_completion_that_walks_to_it() {
    model(2, Contract, || {
        let world = World::new(2);
        let first = world.op(&[(1, Write)]);
        let first = world.push(first).ready.expect("nothing is pending");
        let stalled = world.stall_before_swing(world.op(&[(0, Write), (1, Write)]));
        let completer = Arc::clone(&world);
        let thread = thread::spawn(move || completer.run(first));
        let third = world.op(&[(0, Write), (1, Write)]);
        let at_once = world.push(third).ready;
        for op in [world.finish_push(stalled), at_once].into_iter().flatten() {
            world.run(op);
        }
        thread.join().unwrap();
        world.end();
    });
}

/// The same with an operation that a helper has linked, whose pusher takes over what was left there for it.
#[test]
fn an_access_that_a_helper_has_linked_waits_for_the_completion_that_walks_to_it() {
    model(2, Contract, || {
        let world = World::new(2);
        let first = world.op(&[(1, Write)]);
        let first = world.push(first).ready.expect("nothing is pending");
        let stalled = world.stall_beside_a_helper(world.op(&[(0, Write), (1, Write)]));
        let completer = Arc::clone(&world);
        let thread = thread::spawn(move || completer.run(first));
        let helped = world.finish_push(stalled);
        let third = world.op(&[(0, Write), (1, Write)]);
        let at_once = world.push(third).ready;
        for op in [helped, at_once].into_iter().flatten() {
            world.run(op);
        }
        thread.join().unwrap();
        world.end();
    });
}

/// What the pusher of an operation has seen is handed over to whoever makes the operation ready after it.
#[test]
fn a_pusher_hands_over_what_it_found_done() {
    model(COMPLETE, Contract, || {
        let world = World::new(2);
        let ops = [0, 1].map(|variable| world.op(&[(variable, Write)]));
        // Or their ends would pass the epoch, which might hide that something is not handed over.
        let holds = ops.each_ref().map(OpRef::hold);
        let [one, other] = ops.map(|op| world.push(op).ready.expect("nothing is pending"));
        let stalled = world.stall(world.op(&[(0, Read), (1, Read)]));
        let completer = Arc::clone(&world);
        let thread = thread::spawn(move || completer.run(one));
        world.run(other);
        world.finish_push(stalled).into_iter().for_each(|op| world.run(op));
        thread.join().unwrap();
        drop(holds);
        world.end();
    });
}

/// Whoever finds a variable idle may go on as if it had been handed the variable.
#[test]
fn who_finds_a_variable_idle_sees_what_was_done() {
    for for_reading in [false, true] {
        model(COMPLETE, Contract, move || {
            let world = World::new(1);
            let op = world.op(&[(0, Write)]);
            let op = world.push(op).ready.expect("nothing is pending");
            let other = Arc::clone(&world);
            let thread = thread::spawn(move || other.run(op));
            if world.queue(0).is_idle(for_reading) {
                world.look(0);
            }
            thread.join().unwrap();
            world.end();
        });
    }
}

/// Readers of an idle variable are ready at once, also if one of them is pushed over two variables and the other one
/// finds it half-way.
#[test]
fn readers_of_an_idle_variable_are_ready_at_once() {
    model(3, Contract, || {
        let world = World::new(2);
        let (both, one) = (world.op(&[(0, Write), (1, Read)]), world.op(&[(1, Read)]));
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push(one).ready);
        let at_once = world.push(both).ready;
        for op in [at_once, thread.join().unwrap()] {
            world.run(op.expect("a reader waits for another reader"));
        }
        world.end();
    });
}
