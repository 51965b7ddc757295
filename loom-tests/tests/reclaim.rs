//! Records and variables are given back once, and not while anybody may still look at them.
//!
//! An idle variable keeps its last access, and with it that operation's record, until the next operation on it. Then the
//! access is spent and retired while other threads may have it in hand: they have read the tail, or help.
//!
//! The models run on the contract of epoch-based reclamation, which gives a record back at the first moment at which that
//! is allowed. crossbeam-epoch waits for much longer than a model lasts, so under it nothing would be reclaimed that a
//! model could still look at; one model runs on it for the sake of the calls.

#![cfg(raddle_loom)]

use std::sync::Arc;

use loom::thread;
use raddle::internals::{
    DEFAULT_BAND,
    Flavour::{self, Contract, Crossbeam},
    Mode::{self, Read, Write},
    OpRef, ReadyList, Step,
};
use raddle_loom_tests::{COMPLETE, World, end_alone, model, must_fail, without};

/// An idle variable is used again by one thread while another looks whether it is idle.
fn use_again_while_another_looks(bound: Option<usize>, flavour: Flavour, for_reading: bool) {
    model(bound, flavour, move || {
        let world = World::new(1);
        world.push_and_run(world.op(&[(0, Write)]));
        let next = world.op(&[(0, Write)]);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push_and_run(next));
        let _ = world.queue(0).is_idle(for_reading);
        thread.join().unwrap();
        assert!(world.queue(0).is_idle(for_reading), "nothing is pending");
        world.end();
    });
}

#[test]
fn an_idle_variable_is_used_again_while_another_thread_looks_at_it() {
    use_again_while_another_looks(COMPLETE, Contract, false);
    use_again_while_another_looks(COMPLETE, Contract, true);
}

#[test]
fn an_idle_variable_is_used_again_while_another_thread_looks_at_it_on_crossbeam_epoch() {
    use_again_while_another_looks(Some(3), Crossbeam, false);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn reclaiming_at_once() {
    without(Step::ReclaimAfterEpoch, || use_again_while_another_looks(COMPLETE, Contract, false));
}

#[test]
fn without_the_epoch_a_record_is_used_after_its_end() {
    must_fail("reclaiming_at_once", "use after reclamation");
}

#[test]
fn an_idle_variable_is_used_again_by_two_threads() {
    model(3, Contract, || {
        let world = World::new(1);
        world.push_and_run(world.op(&[(0, Write)]));
        let [one, two] = [Write, Read].map(|mode| world.op(&[(0, mode)]));
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push_and_run(one));
        world.push_and_run(two);
        thread.join().unwrap();
        world.end();
    });
}

/// One thread ends an operation, behind which another thread is just appending, and pushes the next: the access that it
/// gave up must not be the tail that it finds.
fn end_while_another_appends(bound: usize) {
    model(bound, Contract, || {
        let world = World::new(1);
        let [first, second, third] = [(); 3].map(|()| world.op(&[(0, Write)]));
        let first = world.push(first).ready.expect("nothing is pending");
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push_and_run(second));
        world.run(first);
        world.push_and_run(third);
        thread.join().unwrap();
        world.end();
    });
}

#[test]
fn the_tail_is_past_an_access_before_that_is_retired() {
    end_while_another_appends(3);
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn retiring_what_the_tail_is_at() {
    without(Step::TailPastRetired, || end_while_another_appends(3));
}

#[test]
fn unless_the_tail_is_past_it_a_record_is_used_after_its_end() {
    must_fail("retiring_what_the_tail_is_at", "use after reclamation");
}

/// The same with a look instead of the next push, and with the second half of a push of two variables or all of one.
fn end_and_look_while_another_appends(accesses: &'static [(usize, Mode)]) {
    model(3, Contract, move || {
        let world = World::new(2);
        let first = world.op(&[(1, Write)]);
        let first = world.push(first).ready.expect("nothing is pending");
        let second = world.op(accesses);
        let second = if accesses.len() > 1 { Ok(world.stall(second)) } else { Err(second) };
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            let mut ready = ReadyList::default();
            other.execute(&first);
            other.complete(first, &mut ready);
            let _ = other.queue(1).is_idle(false);
            ready
        });
        let mine = match second {
            Ok(stalled) => world.finish_push(stalled),
            Err(second) => world.push(second).ready,
        };
        let mut ready = thread.join().unwrap();
        mine.into_iter().for_each(|op| world.run(op));
        world.run_all(&mut ready);
        world.end();
    });
}

#[test]
fn who_ends_an_operation_does_not_find_it_at_the_tail_when_another_is_behind_it() {
    end_and_look_while_another_appends(&[(1, Write)]);
}

#[test]
fn who_ends_an_operation_does_not_find_it_at_the_tail_when_another_of_two_variables_is_behind_it() {
    end_and_look_while_another_appends(&[(0, Write), (1, Write)]);
}

/// A record is held by its operation's two accesses and by whoever ends the operation. Each is given up by another thread,
/// and the last one gives the record back; that every other thread's use of it comes before is what loom checks of the
/// task's cell.
#[test]
fn whoever_is_last_gives_a_record_back() {
    model(3, Contract, || {
        let world = World::new(2);
        let first = world.op(&[(0, Write), (1, Write)]);
        let nexts = [0, 1].map(|variable| world.op(&[(variable, Write)]));
        let first = world.push(first).ready.expect("nothing is pending");
        let threads = nexts.map(|op| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.push_and_run(op))
        });
        world.run(first);
        for thread in threads {
            thread.join().unwrap();
        }
        world.end();
    });
}

/// A helper that is late may still look at the queue of a variable whose last operation is done: the one that it wanted to
/// help used it, is done, and the variable is given back.
#[test]
fn a_variable_is_given_back_only_after_the_helpers() {
    model(2, Contract, || {
        let world = World::new(2);
        let [both, one] = [world.op(&[(0, Write), (1, Write)]), world.op(&[(0, Write)])];
        let helper = Arc::clone(&world);
        let thread = thread::spawn(move || helper.push_and_run(one));
        world.push_and_run(both);
        // Nobody else names the second variable.
        if world.queue(1).is_idle(false) {
            world.dispose(1);
        }
        thread.join().unwrap();
        world.end();
    });
}

/// Whoever gives up the last hold of a record drops the task, after all that others did with it.
#[test]
fn a_task_is_dropped_after_what_other_holders_did_with_it() {
    model(COMPLETE, Contract, || {
        // SAFETY: the operation names no variable.
        let op = unsafe { OpRef::new(0, DEFAULT_BAND, false, std::iter::empty()) };
        let hold = op.hold();
        let thread = thread::spawn(move || {
            // loom takes this for a use of the task by one thread alone.
            let _ = hold.task_ptr();
            drop(hold);
        });
        end_alone(op);
        thread.join().unwrap();
    });
}

/// The record of an operation with one access goes with that, unless another thread still holds the operation.
#[test]
fn an_operation_that_another_thread_holds_keeps_its_record() {
    model(COMPLETE, Contract, || {
        let world = World::new(1);
        let op = world.op(&[(0, Write)]);
        let op = world.push(op).ready.expect("nothing is before it");
        world.execute(&op);
        let hold = op.hold();
        let thread = thread::spawn(move || {
            // loom takes this for a use of the task by one thread alone.
            let _ = hold.task_ptr();
            drop(hold);
        });
        world.complete(op, &mut ReadyList::default());
        // Spends the access of the first.
        world.push_and_run(world.op(&[(0, Write)]));
        thread.join().unwrap();
        world.end();
    });
}
