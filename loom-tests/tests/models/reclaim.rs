//! Records and variables are reclaimed exactly once, and never while a thread may still use them.
//!
//! An idle variable keeps its last access, and thus the record of the access's operation, until the next operation on
//! the variable is pushed. The access is then spent and retired, although helpers and threads that have read the tail
//! may still use it.
//!
//! The models run on `Flavour::Contract`, which reclaims a record as soon as epoch-based reclamation's contract allows.
//! crossbeam-epoch waits much longer than a model lasts, so no model that runs on it could show that a record is
//! reclaimed too early. One model runs on crossbeam-epoch, to cover the calls to it.

use std::sync::Arc;

use raddle::internals::{
    DEFAULT_BAND,
    Flavour::{self, Contract, Crossbeam},
    Mode::{self, Read, Write},
    OpRef, ReadyList,
};
use raddle_loom_tests::checker::thread;
use raddle_loom_tests::{COMPLETE, World, end_alone, kills, model};

/// One thread uses an idle variable again while another checks whether the variable is idle.
fn use_again_while_another_checks(bound: Option<usize>, flavour: Flavour, mode: Mode) {
    model(bound, flavour, move || {
        let world = World::new(1);
        world.push_and_run(world.op(&[(0, Write)]));
        let next = world.op(&[(0, Write)]);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push_and_run(next));
        let _ = world.queue(0).is_idle(mode);
        thread.join().unwrap();
        assert!(world.queue(0).is_idle(mode), "the variable is not idle although nothing is pending");
        world.end();
    });
}

#[test]
fn an_idle_variable_is_used_again_while_another_thread_checks_it() {
    use_again_while_another_checks(COMPLETE, Contract, Write);
    use_again_while_another_checks(COMPLETE, Contract, Read);
}

#[test]
fn an_idle_variable_is_used_again_while_another_thread_checks_it_on_crossbeam_epoch() {
    use_again_while_another_checks(Some(3), Crossbeam, Write);
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

/// One thread completes an operation while another appends a second one behind it. Then the first thread pushes a
/// third: the tail that it finds must not be an access that it has retired.
#[test]
fn the_tail_is_past_an_access_before_the_access_is_retired() {
    model(3, Contract, || {
        let world = World::new(1);
        let [first, second, third] = [(); 3].map(|()| world.op(&[(0, Write)]));
        let first = world.push(first).ready.expect("nothing should be pending");
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push_and_run(second));
        world.run(first);
        world.push_and_run(third);
        thread.join().unwrap();
        world.end();
    });
}

/// Like the model above, but the completing thread calls `is_idle` instead of pushing a third
/// operation. With two `accesses`, the other thread finishes a stalled push; with one, it makes a new push.
fn complete_and_check_while_another_appends(accesses: &'static [(usize, Mode)]) {
    model(3, Contract, move || {
        let world = World::new(2);
        let first = world.op(&[(1, Write)]);
        let first = world.push(first).ready.expect("nothing should be pending");
        let second = world.op(accesses);
        let second = if accesses.len() > 1 { Ok(world.stall(second)) } else { Err(second) };
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || {
            let mut ready = ReadyList::default();
            other.execute(&first);
            other.complete(first, &mut ready);
            let _ = other.queue(1).is_idle(Write);
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
fn the_tail_is_past_a_completed_operation_when_another_is_behind_it() {
    complete_and_check_while_another_appends(&[(1, Write)]);
}

#[test]
fn the_tail_is_past_a_completed_operation_when_another_of_two_variables_is_behind_it() {
    complete_and_check_while_another_appends(&[(0, Write), (1, Write)]);
}

/// The record of an operation with two accesses has three shares: one per access, and one for the completing thread.
/// Different threads may end these shares, and the thread that ends the last one retires the record. Through the task's
/// cell, loom checks that the other threads' uses of the record happen before its retirement.
#[test]
fn the_last_share_retires_the_record_after_all_uses() {
    model(3, Contract, || {
        let world = World::new(2);
        let first = world.op(&[(0, Write), (1, Write)]);
        let nexts = [0, 1].map(|variable| world.op(&[(variable, Write)]));
        let first = world.push(first).ready.expect("nothing should be pending");
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

/// A slow helper may still use a variable's queue after the operation that it helps, the last one there, is complete.
/// The thread that has pushed this operation disposes of the variable if it finds the variable idle.
#[test]
fn a_variable_is_freed_only_after_the_helpers() {
    model(2, Contract, || {
        let world = World::new(2);
        let [both, one] = [world.op(&[(0, Write), (1, Write)]), world.op(&[(0, Write)])];
        let helper = Arc::clone(&world);
        let thread = thread::spawn(move || helper.push_and_run(one));
        world.push_and_run(both);
        // No other operation uses the second variable.
        if world.queue(1).is_idle(Write) {
            world.dispose(1);
        }
        thread.join().unwrap();
        world.end();
    });
}

/// The thread that ends the last share of a record drops the task, after all uses by other threads.
#[test]
fn a_task_is_dropped_after_all_uses_by_other_holders() {
    model(COMPLETE, Contract, || {
        // SAFETY: the operation uses no variable.
        let op = unsafe { OpRef::new(0, DEFAULT_BAND, false, std::iter::empty()) };
        let hold = op.hold();
        let thread = thread::spawn(move || {
            // To loom, this is an exclusive use of the task.
            let _ = hold.task_ptr();
            drop(hold);
        });
        end_alone(op);
        thread.join().unwrap();
    });
}

/// A share that the owner adds while another thread ends one is counted, and hands on what that thread has done.
#[test]
fn a_share_is_added_while_another_ends() {
    model(COMPLETE, Contract, || {
        let task = Arc::new(());
        // SAFETY: the operation uses no variable.
        let op = unsafe { OpRef::new(Arc::clone(&task), DEFAULT_BAND, false, std::iter::empty()) };
        let hold = op.hold();
        let thread = thread::spawn(move || {
            // To loom, this is an exclusive use of the task.
            let _ = hold.task_ptr();
            drop(hold);
        });
        let hold = op.hold();
        end_alone(op);
        drop(hold);
        thread.join().unwrap();
        assert_eq!(Arc::strong_count(&task), 1, "the task was not dropped");
    });
}

/// When an operation with a single access ends, the access receives the only share of the record, unless another thread
/// still holds the operation.
#[test]
fn an_operation_that_another_thread_holds_keeps_its_record() {
    model(COMPLETE, Contract, || {
        let world = World::new(1);
        let op = world.op(&[(0, Write)]);
        let op = world.push(op).ready.expect("nothing should be pending");
        world.execute(&op);
        let hold = op.hold();
        let thread = thread::spawn(move || {
            // To loom, this is an exclusive use of the task.
            let _ = hold.task_ptr();
            drop(hold);
        });
        world.complete(op, &mut ReadyList::default());
        // This push spends the first operation's access.
        world.push_and_run(world.op(&[(0, Write)]));
        thread.join().unwrap();
        world.end();
    });
}

kills! {
    an_idle_variable_is_used_again_while_another_thread_checks_it {
        "step::RETIRE": "use after reclamation",
    }
    an_idle_variable_is_used_again_by_two_threads {
        "step::RETIRE": "use after reclamation",
    }
    the_tail_is_past_an_access_before_the_access_is_retired {
        "step::TAIL_PAST_RETIRED": "use after reclamation",
    }
    the_tail_is_past_a_completed_operation_when_another_is_behind_it {
        "register::SOLE": "use after reclamation",
        "register::PAST": "use after reclamation",
        "step::TAIL_PAST_RETIRED": "use after reclamation",
    }
    the_tail_is_past_a_completed_operation_when_another_of_two_variables_is_behind_it {
        "register::SEVERAL": "use after reclamation",
    }
    a_variable_is_freed_only_after_the_helpers {
        "step::RETIRE": "use after reclamation",
    }
    a_task_is_dropped_after_all_uses_by_other_holders {
        "retire::ENDED": "Causality violation",
        "retire::ALONE": "Causality violation",
        "retire::LAST": "Causality violation",
    }
    a_share_is_added_while_another_ends {
        "retire::HELD": "Causality violation",
        "step::ALONE_WHEN_SHARING": "use after reclamation" | "the task was not dropped",
    }
    an_operation_that_another_thread_holds_keeps_its_record {
        "retire::UNHELD": "Causality violation",
        "step::ALONE_WHEN_LEFT": "use after reclamation",
    }
}
