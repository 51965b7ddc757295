//! Readers that complete before an earlier one leave their queue, and nothing else changes: later writers run after
//! them, and no record is used once it is reclaimed.
//!
//! In each model, variable 0 has a first reader, which is not done when the others complete.

use std::sync::Arc;

use raddle::internals::{
    Flavour::Contract,
    Mode::{Read, Write},
    OpRef,
};
use raddle_loom_tests::checker::thread;
use raddle_loom_tests::{Task, World, kills, model};

/// Pushes `N` readers, which are ready.
fn readers<const N: usize>(world: &World) -> [OpRef<Task>; N] {
    [(); N].map(|()| reader(world))
}

fn reader(world: &World) -> OpRef<Task> {
    world.push(world.op(&[(0, Read)])).ready.expect("no writer should be pending")
}

/// Pushes a writer, which waits for the readers.
fn push_writer(world: &World) {
    assert!(world.push(world.op(&[(0, Write)])).ready.is_none(), "a reader should be pending");
}

/// Calls `other` on a second thread while this thread calls `own`.
fn at_once(world: &Arc<World>, other: impl FnOnce(&World) + Send + 'static, own: impl FnOnce()) {
    let shared = Arc::clone(world);
    let thread = thread::spawn(move || other(&shared));
    own();
    thread.join().unwrap();
}

/// `late` is unlinked, unless it completes too late. The writer must run after it in any case.
#[test]
fn a_writer_runs_after_an_unlinked_reader() {
    model(2, Contract, || {
        let world = World::new(1);
        let [first, front, late] = readers(&world);
        push_writer(&world);
        let run = |op: OpRef<Task>| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.run(op))
        };
        let threads = [run(late), run(first)];
        world.run_unlinking(front);
        for thread in threads {
            thread.join().unwrap();
        }
        world.end();
    });
}

/// A thread may unlink the access at the tail of its queue while another appends one behind it.
#[test]
fn the_tail_is_past_an_access_before_the_access_is_unlinked() {
    model(2, Contract, || {
        let world = World::new(1);
        let [first, other, front, last] = readers(&world);
        world.run_unlinking(front);
        world.run(last);
        let appends = |world: &World| world.push_and_run(world.op(&[(0, Read)]));
        at_once(&world, appends, || {
            world.run_unlinking(other);
            world.push_and_run(world.op(&[(0, Write)]));
            world.run(first);
        });
        world.end();
    });
}

/// A thread looks for readers to unlink behind one that another thread links and completes.
#[test]
fn an_access_is_linked_behind_the_front_while_readers_are_unlinked() {
    model(3, Contract, || {
        let world = World::new(1);
        let [first, other, front] = readers(&world);
        world.run_unlinking(front);
        at_once(&world, |world| world.run(reader(world)), || world.run_unlinking(other));
        push_writer(&world);
        world.run(first);
        world.end();
    });
}

/// A thread leaves the reader that it has pushed as the front, from which another thread begins.
#[test]
fn a_front_is_handed_over_with_its_access() {
    model(3, Contract, || {
        let world = World::new(1);
        let [first, other] = readers(&world);
        at_once(&world, |world| world.run_unlinking(reader(world)), || world.run_unlinking(other));
        push_writer(&world);
        world.run(first);
        world.end();
    });
}

/// What one thread begins from, the other unlinks.
#[test]
fn two_threads_do_not_unlink_at_once() {
    model(3, Contract, || {
        let world = World::new(1);
        let [first, front, one, done, two] = readers(&world);
        push_writer(&world);
        world.run_unlinking(front);
        world.run(done);
        at_once(&world, move |world| world.run_unlinking(two), || world.run_unlinking(one));
        world.run(first);
        world.end();
    });
}

/// The first reader ends, which spends the front, while another thread begins there. Then readers complete behind
/// another first reader.
#[test]
fn a_spent_access_is_no_longer_the_front() {
    model(3, Contract, || {
        let world = World::new(1);
        let [first, front, other, second, last] = readers(&world);
        world.run_unlinking(front);
        at_once(&world, move |world| world.run(first), || world.run_unlinking(other));
        world.run_unlinking(last);
        world.run(second);
        world.end();
    });
}

/// A reader becomes the front while it is spent.
#[test]
fn an_access_that_is_spent_does_not_become_the_front() {
    model(3, Contract, || {
        let world = World::new(1);
        let [first, front, second, last] = readers(&world);
        at_once(&world, move |world| world.run(first), || world.run_unlinking(front));
        world.run_unlinking(last);
        world.run(second);
        world.end();
    });
}

/// A helper has linked the access of an operation whose push is not over, so its flags are deferred. The completion of
/// the first reader sets them as well, and goes on to the reader behind it, which has received its flags when it was
/// linked, and may be done.
#[test]
fn a_reader_is_unlinked_behind_an_operation_with_deferred_flags_while_these_are_set() {
    model(3, Contract, || {
        let world = World::new(2);
        let push = |accesses: &[_]| world.push(world.op(accesses)).ready.expect("no writer should be pending");
        let [first, front] = [(); 2].map(|()| push(&[(1, Read)]));
        let stalled = world.stall(world.op(&[(0, Read), (1, Read)]));
        // Helps.
        world.run(push(&[(0, Read)]));
        let [done, other] = [(); 2].map(|()| push(&[(1, Read)]));
        world.run_unlinking(front);
        world.run(done);
        at_once(
            &world,
            move |world| world.run(first),
            || {
                world.run_unlinking(other);
                if let Some(op) = world.finish_push(stalled) {
                    world.run(op);
                }
            },
        );
        world.end();
    });
}

kills! {
    a_reader_is_unlinked_behind_an_operation_with_deferred_flags_while_these_are_set {
        "step::UNLINK_BEHIND_DONE": "use after reclamation",
    }
    a_writer_runs_after_an_unlinked_reader {
        "link::UNLINKED": "Causality violation",
        "complete::UNLINKING": "Causality violation",
    }
    the_tail_is_past_an_access_before_the_access_is_unlinked {
        only loom "step::TAIL_PAST_RETIRED": "use after reclamation",
    }
    an_access_is_linked_behind_the_front_while_readers_are_unlinked {
        only loom "link::UNLINKING": "Causality violation",
    }
    a_front_is_handed_over_with_its_access {
        only loom "front::GIVEN_BACK": "Causality violation",
        only loom "front::TAKEN": "Causality violation",
    }
    two_threads_do_not_unlink_at_once {
        "step::FRONT_HAS_ONE_USER": "use after reclamation",
    }
    an_access_that_is_spent_does_not_become_the_front {
        only loom "front::SET": "use after reclamation",
        "step::FRONT_IS_CHECKED": "use after reclamation",
    }
    a_spent_access_is_no_longer_the_front {
        "step::PIN": "use after reclamation",
        "step::FRONT_IS_LEFT": "use after reclamation",
    }
}
