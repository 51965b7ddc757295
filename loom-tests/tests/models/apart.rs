//! Accesses that are not in their operation's record are retired block by block, and never while a thread may still use
//! them.
//!
//! In models, the accesses of an operation with five accesses are in two blocks, those of variables 0 to 2 and those of
//! variables 3 and 4.

use std::{ops::Range, sync::Arc};

use raddle::internals::{
    Flavour::{self, Contract, ContractForReaders},
    Mode::{self, Write},
    OpRef, ReadyList,
};
use raddle_loom_tests::checker::thread;
use raddle_loom_tests::{Task, World, kills, model};

/// Pushes an operation that mutates these variables, and runs its function. The caller must complete it.
fn executed(world: &World, variables: Range<usize>) -> OpRef<Task> {
    let op = world.push(writer(world, variables)).ready.expect("nothing should be pending");
    world.execute(&op);
    op
}

fn writer(world: &World, variables: Range<usize>) -> OpRef<Task> {
    let accesses: Vec<(usize, Mode)> = variables.map(|variable| (variable, Write)).collect();
    world.op(&accesses)
}

/// Completes an operation on all variables, with another one behind its accesses to the variables `behind`, while a
/// thread does what `beside` returns.
#[track_caller]
fn complete_beside<F: FnOnce() + 'static>(
    (bound, flavour): (usize, Flavour),
    behind: Range<usize>,
    beside: impl Fn(&Arc<World>, &OpRef<Task>) -> F + Send + Sync + 'static,
) {
    model(bound, flavour, move || {
        let world = World::new(5);
        let (first, mut ready) = (executed(&world, 0..5), ReadyList::default());
        assert!(world.push(writer(&world, behind.clone())).ready.is_none());
        let thread = thread::spawn(beside(&world, &first));
        world.complete(first, &mut ready);
        thread.join().unwrap();
        world.run_all(&mut ready);
        world.end();
    });
}

/// A thread completes an operation while another holder uses its accesses. Another operation is behind each access of
/// the first block, so the last holder retires that block.
#[test]
fn the_last_holder_retires_a_block_after_all_uses() {
    complete_beside((3, Contract), 0..3, |_, first| {
        let hold = first.hold();
        move || {
            hold.each_access(|_| ());
            drop(hold);
        }
    });
}

/// The last holder of an operation leaves its blocks while another thread spends the last access. One of the two
/// retires that block.
#[test]
fn a_block_is_retired_after_all_uses_by_holders() {
    complete_beside((3, Contract), 0..4, |world, _| {
        let (last, world) = (writer(world, 4..5), Arc::clone(world));
        move || world.push_and_run(last)
    });
}

/// Two threads spend the last accesses of two blocks. One of them retires the record.
#[test]
fn a_record_is_retired_after_all_uses_by_threads_that_retire_its_blocks() {
    model(3, Contract, || {
        let world = World::new(5);
        let (first, mut ready) = (executed(&world, 0..5), ReadyList::default());
        assert!(world.push(writer(&world, 1..4)).ready.is_none());
        world.complete(first, &mut ready);
        let threads = [0..1, 4..5].map(|variables| {
            let (last, other) = (writer(&world, variables), Arc::clone(&world));
            thread::spawn(move || other.push_and_run(last))
        });
        for thread in threads {
            thread.join().unwrap();
        }
        world.run_all(&mut ready);
        world.end();
    });
}

/// A variable keeps its last access, whose operation has no holder any more. A thread that finds the operation there
/// uses none of its accesses that have been retired.
#[test]
fn an_operation_without_holders_shows_no_retired_accesses() {
    complete_beside((2, ContractForReaders), 3..5, |world, _| {
        let world = Arc::clone(world);
        move || world.queue(0).look_at_last()
    });
}

kills! {
    a_record_is_retired_after_all_uses_by_threads_that_retire_its_blocks {
        "blocks::RETIRED": "Causality violation",
        "blocks::NONE_LEFT": "Causality violation",
    }
    the_last_holder_retires_a_block_after_all_uses {
        "retire::HOLDER_ENDED": "Causality violation",
        "retire::LEFT": "Causality violation",
    }
    a_block_is_retired_after_all_uses_by_holders {
        "blocks::ENDED": "Causality violation",
        "blocks::LAST": "Causality violation",
    }
    an_operation_without_holders_shows_no_retired_accesses {
        "step::LEFT_BEFORE_RETIRED": "use after reclamation",
    }
}
