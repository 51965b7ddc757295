//! Operations that commute: their turns, against each other and against a reader.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        // Of `std`, so that they add no interleavings.
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
};

use raddle::internals::{
    Access, DEFAULT_BAND, Flavour,
    Mode::{self, Commute, Read},
    Op, OpRef, ReadyList, TakesTurns, VarQueue, VarTurn, end, leave_turns, push, take_turns,
};
use raddle_loom_tests::{
    checker::{cell::UnsafeCell, thread},
    kills, model,
};

#[repr(C)]
struct Variable {
    queue: VarQueue<Task>,
    turn: VarTurn<Task>,
    /// The number of operations that have mutated the variable. loom fails the model if two uses are unordered.
    data: UnsafeCell<usize>,
}

struct Task {
    lacks_turns: AtomicBool,
    given_way: AtomicU8,
}

impl TakesTurns for Task {
    fn turn(access: &Access<Self>) -> Option<&VarTurn<Self>> {
        // SAFETY: the queue is the first field of a variable, which outlives the operations.
        let variable = unsafe { access.queue_ptr().cast::<Variable>().as_ref() };
        (access.mode() == Commute).then_some(&variable.turn)
    }

    fn given_way(op: &Op<Self>) -> u8 {
        // SAFETY: the caller owns the operation, or has found it where it waits, and the state is an atomic.
        unsafe { (*op.shared_task_ptr()).given_way.load(Relaxed) }
    }

    fn set_given_way(op: &Op<Self>, times: u8) {
        // SAFETY: the caller owns the operation, and the state is an atomic.
        unsafe { (*op.shared_task_ptr()).given_way.store(times, Relaxed) };
    }

    fn note_turns(op: &Op<Self>) {
        // SAFETY: the caller owns the operation, and the state is an atomic.
        unsafe { (*op.shared_task_ptr()).lacks_turns.store(false, Relaxed) };
    }
}

struct World {
    variables: Box<[Variable]>,
    ran: AtomicUsize,
}

// SAFETY: the models exist to find uses of the data that are not ordered.
unsafe impl Sync for World {}
// SAFETY: as for `Sync`.
unsafe impl Send for World {}

impl World {
    fn new(variables: u64) -> Arc<Self> {
        let variables: Box<[_]> = (0..variables)
            .map(|id| Variable { queue: VarQueue::new(id), turn: VarTurn::default(), data: UnsafeCell::new(0) })
            .collect();
        for variable in &variables {
            // SAFETY: the box does not move until the world is dropped, and no other thread knows the queue yet.
            unsafe { VarQueue::init(NonNull::from(&variable.queue)) };
        }
        Arc::new(Self { variables, ran: AtomicUsize::new(0) })
    }

    /// Pushes an operation. Returns it if it is ready.
    fn push(&self, mode: Mode, variables: &[usize]) -> Option<OpRef<Task>> {
        let queue = |&at: &usize| {
            let variable = NonNull::from(&self.variables[at]);
            (variable.cast::<VarQueue<Task>>(), mode)
        };
        let task = Task { lacks_turns: AtomicBool::new(mode == Commute), given_way: AtomicU8::new(0) };
        // SAFETY: the variables live as long as the world, which the pushing thread keeps alive.
        push(unsafe { OpRef::new(task, DEFAULT_BAND, false, variables.iter().map(queue)) }).ready
    }

    /// Pushes an operation, and takes its turns. Returns it if it may run.
    fn begin(&self, variables: &[usize]) -> Option<OpRef<Task>> {
        let mut others = ReadyList::default();
        let op = take_turns(self.push(Commute, variables)?, &mut others);
        assert!(others.is_empty());
        op
    }

    /// Runs a ready operation, and what becomes ready with it.
    fn run(&self, op: Option<OpRef<Task>>) {
        let mut ready = ReadyList::default();
        op.into_iter().for_each(|op| ready.push(op));
        while let Some(op) = ready.pop() {
            // SAFETY: this thread owns the operation.
            let lacks_turns = unsafe { (*op.shared_task_ptr()).lacks_turns.load(Relaxed) };
            let Some(op) = (if lacks_turns { take_turns(op, &mut ready) } else { Some(op) }) else { continue };
            for access in op.accesses() {
                let data = &self.variables[access.queue().id() as usize].data;
                match access.mode() {
                    // SAFETY: the model's claim is that no other thread uses the data.
                    Commute => data.with_mut(|data| unsafe { *data += 1 }),
                    // SAFETY: the model's claim is that no other thread mutates the data.
                    _ => data.with(|data| _ = unsafe { *data }),
                }
            }
            self.ran.fetch_add(1, Relaxed);
            leave_turns(&op, &mut ready);
            end(op, &mut ready);
        }
    }

    fn check(&self, count: usize) {
        assert_eq!(self.ran.load(Relaxed), count, "an operation was lost");
    }
}

#[test]
fn operations_that_commute_exclude_each_other() {
    model(3, Flavour::Contract, || {
        let world = World::new(1);
        let its = Arc::clone(&world);
        let thread = thread::spawn(move || its.run(its.push(Commute, &[0])));
        world.run(world.push(Commute, &[0]));
        thread.join().unwrap();
        world.check(2);
    });
}

#[test]
fn an_operation_that_commutes_and_a_reader_are_ordered() {
    model(3, Flavour::Contract, || {
        let world = World::new(1);
        let its = Arc::clone(&world);
        let thread = thread::spawn(move || its.run(its.push(Read, &[0])));
        world.run(world.push(Commute, &[0]));
        thread.join().unwrap();
        world.check(2);
    });
}

/// One operation has the turn, another one waits for it, and a third one arrives while the first two leave.
#[test]
fn a_turn_that_is_left_reaches_whoever_arrives() {
    model(3, Flavour::Contract, || {
        let world = World::new(1);
        let first = world.begin(&[0]);
        assert!(first.is_some() && world.begin(&[0]).is_none());
        let its = Arc::clone(&world);
        let thread = thread::spawn(move || its.run(its.push(Commute, &[0])));
        world.run(first);
        thread.join().unwrap();
        world.check(3);
    });
}

/// An operation lacks the turn of the second variable, which is left. Meanwhile, another one wants both.
#[test]
fn operations_on_two_variables_do_not_wait_for_each_other() {
    model(3, Flavour::Contract, || {
        let world = World::new(2);
        let first = world.begin(&[1]);
        assert!(first.is_some() && world.begin(&[0, 1]).is_none());
        let its = Arc::clone(&world);
        let thread = thread::spawn(move || its.run(its.push(Commute, &[0, 1])));
        world.run(first);
        thread.join().unwrap();
        world.check(3);
    });
}

/// The second variable has no turn to give until the others have tried.
#[test]
fn an_operation_that_waits_for_a_turn_has_no_other() {
    model(2, Flavour::Contract, || {
        let world = World::new(2);
        let first = world.begin(&[1]);
        let its = Arc::clone(&world);
        let thread = thread::spawn(move || its.run(its.push(Commute, &[0])));
        world.run(world.push(Commute, &[0, 1]));
        thread.join().unwrap();
        assert_eq!(world.ran.load(Relaxed), 1, "an operation that waits has a turn");
        world.run(first);
        world.check(3);
    });
}

/// In models, an operation gives way twice.
#[test]
fn an_operation_that_has_given_way_keeps_what_it_has() {
    model(3, Flavour::Contract, || {
        let world = World::new(2);
        let right = world.begin(&[1]);
        assert!(world.begin(&[0, 1]).is_none());
        let left = world.begin(&[0]);
        assert!(right.is_some() && left.is_some());
        // It gets the right one, lacks the left one, and gives way again.
        world.run(right);
        let right = world.begin(&[1]).expect("an operation that waits has a turn");
        // It gets the left one, lacks the right one, and keeps.
        world.run(left);
        assert!(world.begin(&[0]).is_none(), "an operation has given way too often");
        let its = Arc::clone(&world);
        let thread = thread::spawn(move || its.run(its.push(Commute, &[0])));
        world.run(Some(right));
        thread.join().unwrap();
        world.check(6);
    });
}

/// A thread looks at those that wait for an operation's turn, while one arrives.
#[test]
fn whoever_looks_finds_operations_that_have_arrived() {
    model(3, Flavour::Contract, || {
        let world = World::new(1);
        let first = world.begin(&[0]).unwrap();
        let its = Arc::clone(&world);
        let thread = thread::spawn(move || its.run(its.push(Commute, &[0])));
        world.variables[0].turn.each_waiting_for(&first, 0, |_| panic!("more are looked at than permitted"));
        world.variables[0].turn.each_waiting_for(&first, usize::MAX, |op| {
            assert_eq!(op.accesses().count(), 1);
            assert_eq!(Task::given_way(op), 0);
        });
        thread.join().unwrap();
        world.run(Some(first));
        world.check(2);
    });
}

kills! {
    operations_that_commute_exclude_each_other {
        "turn::TAKEN": "Causality violation",
        "turn::LEFT": "Causality violation",
        "step::ARRIVES_AT_HELD": "an operation was lost",
    }
    an_operation_that_commutes_and_a_reader_are_ordered {
        "step::RUNS_END": "Causality violation" | "accessed concurrently",
    }
    a_turn_that_is_left_reaches_whoever_arrives {
        "turn::ARRIVED": "Causality violation",
        "turn::LISTED": "Causality violation",
        "step::LISTED_IS_NOTED": "an operation was lost",
    }
    an_operation_that_waits_for_a_turn_has_no_other {
        "step::WAITS_WITHOUT_TURNS": "an operation that waits has a turn",
    }
    whoever_looks_finds_operations_that_have_arrived {
        "turn::LOOKED_AT": "Causality violation",
    }
}
