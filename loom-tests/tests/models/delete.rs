//! A deleted variable accepts no operation: a push precedes the deletion, or is rejected and reports the rejection.
//!
//! At the end of each model but the last, the world checks that each operation that ran after the deletion was
//! rejected, that each operation's push and run agree on whether it was rejected, and that each operation pushed after
//! the deletion's push returned was rejected.

use std::sync::Arc;

use raddle::{
    Engine, EngineKind,
    internals::{
        Flavour::{self, Contract, Crossbeam},
        Mode::{Read, Write},
    },
};
use raddle_loom_tests::checker::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};
use raddle_loom_tests::{World, kills, model, shapes::*};

fn delete_while_another_pushes(bound: Option<usize>, flavour: Flavour) {
    model(bound, flavour, || {
        let world = World::new(1);
        let op = world.op(&[(0, Write)]);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push_and_run(op));
        world.push_and_run(world.deletion(0));
        thread.join().unwrap();
        world.end();
    });
}

#[test]
fn a_push_comes_before_the_deletion_or_is_rejected() {
    delete_while_another_pushes(Some(4), Contract);
}

#[test]
fn a_push_comes_before_the_deletion_or_is_rejected_on_crossbeam_epoch() {
    delete_while_another_pushes(Some(2), Crossbeam);
}

/// The push is stalled before it reaches the deleted variable, so a helper may be the thread that finds the variable
/// closed. The last thread finishes the stalled push: in the first interleaving, the others have ended by then. Ready
/// operations run after the threads are joined.
#[test]
fn a_helped_push_comes_before_the_deletion_or_is_rejected() {
    model(1, Contract, || {
        let world = World::new(2);
        let stalled = world.stall(world.op(&[(0, Write), (1, Write)]));
        let behind = world.op(&[(0, Read)]);
        let (helper, pusher) = (Arc::clone(&world), Arc::clone(&world));
        let threads =
            [thread::spawn(move || helper.push(behind).ready), thread::spawn(move || pusher.finish_push(stalled))];
        let mut ready = vec![world.push(world.deletion(1)).ready];
        ready.extend(threads.map(|thread| thread.join().unwrap()));
        ready.into_iter().flatten().for_each(|op| world.run(op));
        world.end();
    });
}

/// A helper may reach the variable when it is closed but its deletion has not been pushed yet. The helper then rejects
/// the operation that it helps.
#[test]
fn a_helper_rejects_the_operation_before_the_deletion_is_pushed() {
    model(2, Contract, || {
        let world = World::new(2);
        let stalled = world.stall(world.op(&[(0, Write), (1, Write)]));
        let behind = world.op(&[(0, Write)]);
        let helper = Arc::clone(&world);
        let thread = thread::spawn(move || {
            let deletion = helper.deletion(1);
            helper.push_and_run(behind);
            helper.push_and_run(deletion);
        });
        world.finish_push(stalled).into_iter().for_each(|op| world.run(op));
        thread.join().unwrap();
        world.end();
    });
}

/// By the time a slow helper tries to reject the operation, the access to the deleted variable may already be linked,
/// and the push may be over.
#[test]
fn an_access_that_is_linked_is_not_rejected() {
    model(2, Contract, || {
        let world = World::new(2);
        let stalled = world.stall(world.op(&[(0, Write), (1, Write)]));
        let behind = world.op(&[(0, Write)]);
        let helper = Arc::clone(&world);
        let thread = thread::spawn(move || {
            let deletion = helper.deletion(1);
            assert!(helper.push(behind).ready.is_none(), "an operation is ready before the stalled one in front of it");
            deletion
        });
        // The ready operation runs only after the helper has been joined, so that its run sees the helper's effects.
        let ready = world.finish_push(stalled);
        let deletion = thread.join().unwrap();
        world.push_and_run(deletion);
        ready.into_iter().for_each(|op| world.run(op));
        world.end();
    });
}

/// A rejected operation takes its place in the other queues, where the operations behind it still become ready. Ready
/// operations run after the threads are joined, so the rejected one is pending while another is pushed behind it.
#[test]
fn a_rejected_operation_does_not_delay_others() {
    model(3, Contract, || {
        let world = World::new(2);
        let [both, one] = [world.op(&[(0, Write), (1, Write)]), world.op(&[(0, Write)])];
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || [both, one].map(|op| other.push(op).ready));
        let deletion = world.push(world.deletion(1)).ready;
        let ready = thread.join().unwrap();
        [deletion].into_iter().chain(ready).flatten().for_each(|op| world.run(op));
        world.end();
    });
}

/// Like `a_push_comes_before_the_deletion_or_is_rejected`, but with an engine, which closes the variable before pushing
/// the deletion.
#[test]
fn no_operation_of_an_engine_runs_behind_a_deletion() {
    model(2, Contract, || {
        let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
        let (token, is_deleted) = (engine.token(), Arc::new(AtomicBool::new(false)));
        let (its_engine, its_token, seen) = (engine.clone(), token.clone(), Arc::clone(&is_deleted));
        let thread = thread::spawn(move || {
            let run = move || assert!(!seen.load(Relaxed), "an operation runs behind the deletion");
            // Refused if the deletion came first.
            let _ = its_engine.push_sync(move |_| run(), [], [&its_token]);
        });
        engine.delete_variable(&token, move |_| is_deleted.store(true, Relaxed)).unwrap();
        thread.join().unwrap();
        engine.wait_for_all().expect("no operation has failed");
    });
}

kills! {
    a_push_comes_before_the_deletion_or_is_rejected {
        "step::CLOSED_CHECKED": "that operation 1 had deleted",
    }
}
