//! A completion and a push never miss each other: the later of the two returns the pushed operation as ready, exactly
//! once. An operation's writes are visible to the operations that it makes ready.
//!
//! The variables' data are in loom's cells, so an operation that runs too early, or without having acquired its
//! predecessors' writes, causes a race that loom finds.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use raddle::internals::{
    Flavour::{self, Contract, Crossbeam},
    Mode::{self, Await, Overwrite, Read, Write},
    Op, OpRef, ReadyList, Successors, followers, pin, walk_blocked,
};
use raddle_loom_tests::checker::thread;
use raddle_loom_tests::{COMPLETE, Task, World, kills, model};

/// An operation runs and completes on one thread while another thread creates and pushes the next one.
fn hand_over(before: Mode, after: Mode) {
    let world = World::new(1);
    let first = world.op(&[(0, before)]);
    let first = world.push(first).ready.expect("nothing should be pending");
    let other = Arc::clone(&world);
    let thread = thread::spawn(move || other.run(first));
    world.push_and_run(world.op(&[(0, after)]));
    thread.join().unwrap();
    world.end();
}

/// Runs `hand_over` with the flavours `Contract` and `Crossbeam`, each with a suitable bound.
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

/// The successor's push is stalled after its first access, so a third thread may insert the second access while the
/// predecessor on that variable completes. The pusher may then find deferred flags or the flags themselves, and must
/// count each access once.
fn meet_helped(bound: usize, before: Mode, after: Mode) {
    model(bound, Contract, move || {
        let world = World::new(2);
        let first = world.op(&[(1, before)]);
        let first = world.push(first).ready.expect("nothing should be pending");
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

/// Like `meet_helped`, but with two threads: the thread that completes the predecessor also helps the successor.
fn end_and_help(before: Mode, after: Mode) {
    model(2, Contract, move || {
        let world = World::new(2);
        let first = world.op(&[(1, before)]);
        let first = world.push(first).ready.expect("nothing should be pending");
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
fn a_writer_hands_over_to_a_reader_helped_by_its_thread() {
    end_and_help(Write, Read);
}

#[test]
fn a_reader_hands_over_to_a_writer_helped_by_its_thread() {
    end_and_help(Read, Write);
}

/// Two predecessors on different variables complete concurrently; exactly one of them makes the successor ready.
#[test]
fn the_last_of_two_predecessors_makes_the_successor_ready() {
    model(COMPLETE, Contract, || {
        let world = World::new(2);
        let firsts = [0, 1].map(|variable| world.op(&[(variable, Write)]));
        // Without holds, the operations' records would be retired, which adds happens-before edges that could hide a
        // missing one.
        let holds = firsts.each_ref().map(OpRef::hold);
        let [one, two] = firsts.map(|op| world.push(op).ready.expect("nothing should be pending"));
        assert!(
            world.push(world.op(&[(0, Write), (1, Read)])).ready.is_none(),
            "an operation is ready while two predecessors are pending"
        );
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.run(one));
        world.run(two);
        thread.join().unwrap();
        drop(holds);
        world.end();
    });
}

/// One thread completes both predecessors while another pushes the successor.
#[test]
fn two_predecessors_complete_while_the_successor_is_pushed() {
    model(4, Contract, || {
        let world = World::new(2);
        let firsts = [0, 1].map(|variable| world.op(&[(variable, Write)]));
        // Without holds, the operations' records would be retired, which adds happens-before edges that could hide a
        // missing one.
        let holds = firsts.each_ref().map(OpRef::hold);
        let firsts = firsts.map(|op| world.push(op).ready.expect("nothing should be pending"));
        let successor = world.op(&[(0, Read), (1, Write)]);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || firsts.into_iter().for_each(|op| other.run(op)));
        world.push_and_run(successor);
        thread.join().unwrap();
        drop(holds);
        world.end();
    });
}

/// The completion of a writer has made two readers ready. Separate threads complete the readers, in any order, while a
/// second writer is pushed behind them.
#[test]
fn readers_that_complete_in_any_order_make_the_writer_ready() {
    model(4, Contract, || {
        let world = World::new(1);
        let writer = world.op(&[(0, Write)]);
        let readers = [Read; 2].map(|mode| world.op(&[(0, mode)]));
        let last = world.op(&[(0, Write)]);
        let writer = world.push(writer).ready.expect("nothing should be pending");
        let readers = readers.map(|reader| {
            let address = reader.as_ptr();
            assert!(world.push(reader).ready.is_none(), "an operation is ready while a writer is pending");
            address
        });
        let mut ready = ReadyList::default();
        world.execute(&writer);
        world.complete(writer, &mut ready);
        let readers = readers.map(|reader| {
            let popped = ready.pop().expect("a reader is not ready");
            assert_eq!(popped.as_ptr(), reader, "the readers are not ready in the order of their pushes");
            popped
        });
        let threads = readers.map(|reader| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.run(reader))
        });
        world.push_and_run(last);
        for thread in threads {
            thread.join().unwrap();
        }
        world.end();
    });
}

/// A writer completes while two readers are pushed behind it. Neither reader completes before both are ready.
fn readers_side_by_side(flavour: Flavour) {
    let readers_of = |world: &World| [Read; 2].map(|mode| world.op(&[(0, mode)]));
    model(if flavour == Contract { 5 } else { 3 }, flavour, move || {
        let world = World::new(1);
        let writer = world.op(&[(0, Write)]);
        let readers = readers_of(&world);
        let writer = world.push(writer).ready.expect("nothing should be pending");
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

/// An operation completes while two more are pushed behind it, each by its own thread. Flags that are grantable to the
/// earlier of the two when it is linked also count for the later one, however late the tail is moved.
fn three_in_a_row(bound: usize, modes: [Mode; 3]) {
    model(bound, Contract, move || {
        let world = World::new(1);
        let [first, second, third] = modes.map(|mode| world.op(&[(0, mode)]));
        let first = world.push(first).ready.expect("nothing should be pending");
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
fn a_reader_and_a_writer_are_pushed_behind_a_reader_that_completes() {
    three_in_a_row(2, [Read, Read, Write]);
}

#[test]
fn two_writers_are_pushed_behind_a_writer_that_completes() {
    three_in_a_row(2, [Write, Write, Write]);
}

#[test]
fn a_wait_and_a_reader_are_pushed_behind_a_reader_that_completes() {
    three_in_a_row(2, [Read, Await, Read]);
}

#[test]
fn two_readers_are_pushed_behind_a_reader_that_completes() {
    three_in_a_row(2, [Read, Read, Read]);
}

/// A helper may insert a reader whose push is stalled while the reader in front of it completes. The completion may
/// then move the tail to the inserted reader. A third reader, pushed behind that one, must not wait for it.
#[test]
fn a_reader_behind_a_helped_reader_does_not_wait_for_it() {
    model(2, Contract, || {
        let world = World::new(2);
        let first = world.op(&[(1, Read)]);
        let first = world.push(first).ready.expect("nothing should be pending");
        let stalled = world.stall(world.op(&[(0, Write), (1, Read)]));
        let (helping, behind) = (world.op(&[(0, Write)]), world.op(&[(1, Read)]));
        let (completer, helper) = (Arc::clone(&world), Arc::clone(&world));
        let completer = thread::spawn(move || {
            let mut ready = ReadyList::default();
            completer.execute(&first);
            completer.complete(first, &mut ready);
            ready
        });
        let helper = thread::spawn(move || {
            assert!(
                helper.push(helping).ready.is_none(),
                "an operation is ready before the stalled one in front of it"
            );
        });
        let immediately = world.push(behind).ready;
        helper.join().unwrap();
        let mut ready = completer.join().unwrap();
        let later = ready.pop();
        assert!(immediately.is_none() || later.is_none(), "an operation is ready twice");
        world.run(immediately.or(later).expect("a reader waits for another reader"));
        world.finish_push(stalled).into_iter().for_each(|op| world.run(op));
        assert!(ready.is_empty(), "an operation is ready twice");
        world.end();
    });
}

/// A completion walks down a queue, past a reader that another completion may make ready, to the reader behind that
/// one. If the first reader could complete before the walk has reached the second, the second could run, complete and
/// be retired by then.
#[test]
fn an_access_is_not_retired_while_a_completion_walks_past_it() {
    model(3, Contract, || {
        let world = World::new(2);
        let firsts = [0, 1].map(|variable| world.op(&[(variable, Write)]));
        let behind = [world.op(&[(0, Read), (1, Read)]), world.op(&[(0, Read)]), world.op(&[(0, Write)])];
        let [one, two] = firsts.map(|op| world.push(op).ready.expect("nothing should be pending"));
        for op in behind {
            assert!(world.push(op).ready.is_none(), "an operation is ready while a writer is pending");
        }
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.run(one));
        world.run(two);
        thread.join().unwrap();
        world.end();
    });
}

/// If a completion finds the tail behind, it moves the tail forward and hands over the access to which it moves the
/// tail.
#[test]
fn a_tail_moved_by_a_completion_hands_over_the_access() {
    model(2, Contract, || {
        let world = World::new(1);
        let first = world.op(&[(0, Write)]);
        let first = world.push(first).ready.expect("nothing should be pending");
        let (completer, looker) = (Arc::clone(&world), Arc::clone(&world));
        let threads =
            [thread::spawn(move || completer.run(first)), thread::spawn(move || _ = looker.queue(0).is_idle(Write))];
        world.push_and_run(world.op(&[(0, Write)]));
        for thread in threads {
            thread.join().unwrap();
        }
        world.end();
    });
}

/// Runs and completes `op`; returns the newly ready operations.
fn end(world: &World, op: OpRef<Task>) -> ReadyList<Task> {
    let mut ready = ReadyList::default();
    world.execute(&op);
    world.complete(op, &mut ready);
    ready
}

/// An operation completes while a second one is linked behind it. A third may be pushed behind the second before the
/// tail has been moved to the second. The flags that were grantable to the second when it was linked also count for the
/// third, so no reader waits for another.
#[test]
fn readers_do_not_wait_for_each_other_if_the_one_before_them_completes_while_they_are_linked() {
    model(2, Contract, || {
        let world = World::new(2);
        let first = world.op(&[(1, Read)]);
        let first = world.push(first).ready.expect("nothing should be pending");
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

/// A completion walks to a linked operation whose push has not moved the tail. Another push moves the tail and must not
/// grant the flags that the completion has yet to set: if it did, the operation could complete and be reclaimed before
/// the completion reaches it. The other push uses both of that operation's variables, so that both accesses are spent
/// and the operation's record is retired.
#[test]
fn an_access_is_not_retired_before_the_completion_that_walks_to_it() {
    model(2, Contract, || {
        let world = World::new(2);
        let first = world.op(&[(1, Write)]);
        let first = world.push(first).ready.expect("nothing should be pending");
        let stalled = world.stall_before_swing(world.op(&[(0, Write), (1, Write)]));
        let completer = Arc::clone(&world);
        let thread = thread::spawn(move || completer.run(first));
        let third = world.op(&[(0, Write), (1, Write)]);
        let immediately = world.push(third).ready;
        for op in [world.finish_push(stalled), immediately].into_iter().flatten() {
            world.run(op);
        }
        thread.join().unwrap();
        world.end();
    });
}

/// Like the model above, but a helper has linked the access, and the operation's pusher adopts the deferred flags.
#[test]
fn an_access_linked_by_a_helper_is_not_retired_before_the_completion_that_walks_to_it() {
    model(2, Contract, || {
        let world = World::new(2);
        let first = world.op(&[(1, Write)]);
        let first = world.push(first).ready.expect("nothing should be pending");
        let stalled = world.stall_beside_a_helper(world.op(&[(0, Write), (1, Write)]));
        let completer = Arc::clone(&world);
        let thread = thread::spawn(move || completer.run(first));
        let helped = world.finish_push(stalled);
        let third = world.op(&[(0, Write), (1, Write)]);
        let immediately = world.push(third).ready;
        for op in [helped, immediately].into_iter().flatten() {
            world.run(op);
        }
        thread.join().unwrap();
        world.end();
    });
}

/// Writes acquired by an operation's pusher are handed over to the thread that makes the operation ready.
#[test]
fn a_pusher_hands_over_the_writes_that_it_has_acquired() {
    model(COMPLETE, Contract, || {
        let world = World::new(2);
        let ops = [0, 1].map(|variable| world.op(&[(variable, Write)]));
        // Without holds, the operations' records would be retired, which adds happens-before edges that could hide a
        // missing one.
        let holds = ops.each_ref().map(OpRef::hold);
        let [one, other] = ops.map(|op| world.push(op).ready.expect("nothing should be pending"));
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

/// A thread that finds a variable idle for a mode may use the variable's data as if it had pushed an operation with
/// that mode at that moment.
#[test]
fn a_thread_that_finds_a_variable_idle_sees_the_writes_to_it() {
    for mode in [Write, Read] {
        model(COMPLETE, Contract, move || {
            let world = World::new(1);
            let op = world.op(&[(0, Write)]);
            let op = world.push(op).ready.expect("nothing should be pending");
            let other = Arc::clone(&world);
            let thread = thread::spawn(move || other.run(op));
            if world.queue(0).is_idle(mode) {
                world.look(0);
            }
            thread.join().unwrap();
            world.end();
        });
    }
}

/// Two readers of an idle variable are ready immediately, even if one of them uses two variables and is only half
/// pushed when the other finds it.
#[test]
fn readers_of_an_idle_variable_are_ready_immediately() {
    model(3, Contract, || {
        let world = World::new(2);
        let (both, one) = (world.op(&[(0, Write), (1, Read)]), world.op(&[(1, Read)]));
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.push(one).ready);
        let immediately = world.push(both).ready;
        for op in [immediately, thread.join().unwrap()] {
            world.run(op.expect("a reader waits for another reader"));
        }
        world.end();
    });
}

/// A waiter walks forward from its own operation and, unless another waiter has left the list of waiters, from that
/// waiter's operation. Meanwhile, the other operation and those behind it complete. The walk sees at least the waiter's
/// own operation and the one behind it, and reads no reclaimed record.
#[test]
fn a_walk_during_completions_reads_no_reclaimed_record() {
    model(2, Contract, || {
        let world = World::new(2);
        let own = world.push(world.op(&[(0, Write)])).ready.expect("nothing should be pending");
        let other = world.push(world.op(&[(1, Write)])).ready.expect("nothing should be pending");
        assert!(world.push(world.op(&[(0, Read)])).ready.is_none());
        assert!(world.push(world.op(&[(1, Write)])).ready.is_none());
        assert!(world.push(world.op(&[(1, Write)])).ready.is_none());
        let (ended, at_other) = (Arc::new(AtomicBool::new(false)), NonNull::from(&*other));
        let (completer, ends) = (Arc::clone(&world), Arc::clone(&ended));
        let thread = thread::spawn(move || {
            // The other waiter leaves the list of waiters before its operation completes.
            ends.store(true, Relaxed);
            completer.run(other);
        });
        let mut seen = 0;
        let look = |_: &Op<Task>, _, ahead: &mut Vec<_>| {
            seen += 1;
            if seen == 1 && !ended.load(Relaxed) {
                ahead.push((at_other, 0));
            }
            false
        };
        // SAFETY: (1): this waiter's operation completes below, and the other one only after `ended` is set.
        unsafe { walk_blocked(vec![(NonNull::from(&*own), 0)], usize::MAX, look) };
        assert!((2..=5).contains(&seen), "the walk saw {seen} operations instead of 2 to 5");
        world.run(own);
        thread.join().unwrap();
        world.end();
    });
}

/// Calls `look` with an incomplete operation while another thread pushes two operations that wait for it. `look`
/// returns the numbers of the waiting operations that it has seen.
fn look_during_pushes(look: impl Fn(&OpRef<Task>) -> Vec<usize> + Send + Sync + 'static) {
    model(2, Contract, move || {
        let world = World::new(1);
        let own = world.push(world.op(&[(0, Write)])).ready.expect("nothing should be pending");
        let pusher = Arc::clone(&world);
        let thread = thread::spawn(move || {
            for mode in [Read, Write] {
                assert!(pusher.push(pusher.op(&[(0, mode)])).ready.is_none());
            }
        });
        let seen = look(&own);
        assert!([1, 2].starts_with(&seen), "the waiting operations are {seen:?}");
        thread.join().unwrap();
        world.run(own);
        world.end();
    });
}

/// A thread inspects the followers of the operation that it owns while another thread pushes them.
#[test]
fn an_operation_sees_its_followers_as_they_were_pushed() {
    look_during_pushes(|own| {
        let mut seen = Vec::new();
        followers(own, |op, _| seen.push(World::number_seen(op)));
        seen
    });
}

/// A thread inspects the operations waiting for an operation, as dumps do, while another thread pushes them.
#[test]
fn a_look_at_waiting_operations_sees_them_as_they_were_pushed() {
    look_during_pushes(|own| {
        let mut seen = Vec::new();
        Successors::new(&pin()).each(own.accesses().next().expect("an access"), |op| seen.push(World::number_seen(op)));
        seen
    });
}

kills! {
    a_writer_hands_over_to_a_reader {
        "complete::FLAGGED": "Causality violation",
    }
    a_writer_hands_over_to_a_writer {
        "link::LINKED": "Causality violation",
        "link::FLAGGED": "Causality violation",
    }
    a_reader_hands_over_to_a_writer {
        "link::LINKED": "Causality violation",
    }
    a_writer_hands_over_to_a_reader_helped_by_its_thread {
        "register::COUNTED": "never became ready",
    }
    a_reader_hands_over_to_a_writer_helped_by_its_thread {
        "link::LINKED": "Causality violation",
    }
    the_last_of_two_predecessors_makes_the_successor_ready {
        "ready::SATISFIED": "Causality violation",
        "ready::ALONE": "Causality violation",
        "ready::LAST": "Causality violation",
    }
    two_predecessors_complete_while_the_successor_is_pushed {
        "ready::LAST_IN_PUSH": "Causality violation",
    }
    readers_run_side_by_side {
        "step::READERS_PASS_ON": "a reader waits for another reader",
    }
    an_access_is_not_retired_while_a_completion_walks_past_it {
        "step::SATISFIED_LATE": "use after reclamation",
    }
    a_tail_moved_by_a_completion_hands_over_the_access {
        "swing::PASSED": "Causality violation",
    }
    readers_do_not_wait_for_each_other_if_the_one_before_them_completes_while_they_are_linked {
        "step::COMPLETION_DEFERS": "a reader waits for another reader",
    }
    a_pusher_hands_over_the_writes_that_it_has_acquired {
        "ready::PUSHED": "Causality violation",
    }
    a_thread_that_finds_a_variable_idle_sees_the_writes_to_it {
        "complete::IDLE": "Causality violation",
    }
    readers_of_an_idle_variable_are_ready_immediately {
        "step::SWING_DEFERS": "a reader waits for another reader",
    }
    a_walk_during_completions_reads_no_reclaimed_record {
        "step::PIN": "use after reclamation",
    }
    an_operation_sees_its_followers_as_they_were_pushed {
        "link::FOLLOWERS": "Causality violation",
    }
    a_look_at_waiting_operations_sees_them_as_they_were_pushed {
        "link::LOOKED_AT": "Causality violation",
    }
}
