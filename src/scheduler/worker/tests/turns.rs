//! Tests of turns: how many operations of its own a worker runs before others get their turn.

use super::*;
use crate::tracker::Op;

const RUN: usize = MAX_RUN as usize;

/// How an endless chain of operations creates the next operation.
#[derive(Clone, Copy, Debug)]
enum Chain {
    /// As a successor, which goes into the slot.
    Slot,
    /// By a push from inside an operation, into the deque or the injector.
    Inside,
    /// As the second of two successors, the first of which has no successor.
    Second,
}

const CHAINS: [Chain; 3] = [Chain::Slot, Chain::Inside, Chain::Second];

/// A worker with an endless chain.
struct Endless<'w> {
    worker: &'w Worker<usize>,
    chain: Chain,
    /// The first of the two successors in `Chain::Second`.
    leaf: Known,
    /// Operations without successors.
    ends: Vec<*mut Op<usize>>,
}

impl Endless<'_> {
    /// Runs `count` operations and returns them in the order in which they ran.
    fn run(&self, count: usize) -> Vec<*mut Op<usize>> {
        (0..count).map(|_| self.step()).collect()
    }

    fn step(&self) -> *mut Op<usize> {
        let op = self.worker.find().expect("a chain goes on forever");
        let found = op.as_ptr();
        if found != self.leaf.as_ptr() && !self.ends.contains(&found) {
            match self.chain {
                Chain::Slot => self.worker.push_next(op),
                Chain::Inside => self.worker.push_local(op),
                Chain::Second => {
                    self.worker.push_next(self.leaf.right());
                    self.worker.push_next(op);
                }
            }
        }
        found
    }

    /// Removes the remaining operations from the worker and its lane.
    fn end(&self) {
        while self.worker.find().is_some() {}
    }

    /// Runs `limit` operations, and returns how many of them start before each of `ops`.
    #[track_caller]
    fn starts(&self, ops: &[Known], limit: usize) -> Vec<usize> {
        let order = self.run(limit);
        let place = |op: &Known| order.iter().position(|&other| other == op.as_ptr());
        ops.iter().map(|op| place(op).expect("the operation starts within the limit")).collect()
    }
}

fn ends(ops: &[Known]) -> Vec<*mut Op<usize>> {
    ops.iter().map(|op| op.as_ptr()).collect()
}

#[test]
fn after_a_run_of_its_own_a_worker_takes_from_the_injector() {
    for chain in CHAINS {
        let (lane, workers) = lane(1, IdlePolicy::Park);
        let (ops, waits) = (Ready::new(2, DEFAULT_BAND), Ready::new(3, DEFAULT_BAND));
        let endless = Endless { worker: &workers[0], chain, leaf: ops[1], ends: ends(&waits) };
        workers[0].push_next(ops[0].right());
        waits.iter().for_each(|op| lane.injector().push(op.right()));
        let starts = endless.starts(&waits, 4 * (RUN + 1));
        assert_eq!(starts, [RUN, 2 * RUN + 1, 3 * RUN + 2], "{chain:?}");
        // The bound is the same at any later point of a round.
        for before in 1..2 * RUN {
            endless.run(before);
            lane.injector().push(waits[0].right());
            let start = endless.starts(&waits[..1], RUN + 1)[0];
            assert!(start <= RUN, "{chain:?}: after {start} operations");
        }
        endless.end();
    }
}

/// The successor of an operation from the injector goes into the slot, so the slot and the injector could alternate
/// forever.
#[test]
fn the_deque_is_not_starved_by_slot_and_injector() {
    let (lane, workers) = lane(1, IdlePolicy::Park);
    let (chains, waits) = (Ready::new(9, DEFAULT_BAND), Ready::new(3, DEFAULT_BAND));
    let endless = Endless { worker: &workers[0], chain: Chain::Slot, leaf: waits[0], ends: ends(&waits) };
    workers[0].push_next(chains[0].right());
    chains[1..].iter().for_each(|op| lane.injector().push(op.right()));
    waits.iter().for_each(|op| workers[0].push_local(op.right()));
    // The `waits` start after `RUN` operations from the slot and one from the injector. They have no successors, so the
    // slot stays empty between them.
    assert_eq!(endless.starts(&waits, 3 * (RUN + 2)), [RUN + 1, RUN + 2, RUN + 3]);
    // All chains continue.
    let order = endless.run(9 * 9 * (RUN + 2));
    assert!(chains.iter().all(|op| order.contains(&op.as_ptr())));
    endless.end();
}

#[test]
fn every_operation_of_a_full_deque_starts_within_as_many_rounds() {
    let (lane, workers) = lane(1, IdlePolicy::Park);
    let (chains, waits) = (Ready::new(DEQUE_CAPACITY + 1, DEFAULT_BAND), Ready::new(1, DEFAULT_BAND));
    let endless = Endless { worker: &workers[0], chain: Chain::Slot, leaf: waits[0], ends: ends(&waits) };
    workers[0].push_next(chains[0].right());
    chains[1..].iter().for_each(|op| workers[0].push_local(op.right()));
    assert_eq!(workers[0].deque.len(), DEQUE_CAPACITY);
    lane.injector().push(waits[0].right());
    assert_eq!(endless.starts(&waits, RUN + 1), [RUN]);
    let order = endless.run((DEQUE_CAPACITY + 1) * (RUN + 2));
    assert!(chains.iter().all(|op| order.contains(&op.as_ptr())));
    endless.end();
}

#[test]
fn a_batch_is_taken_from_the_injector_only_when_the_deque_is_empty() {
    let (lane, workers) = lane(1, IdlePolicy::Park);
    let (chain, waits) = (Ready::new(1, DEFAULT_BAND), Ready::new(4, DEFAULT_BAND));
    let endless = Endless { worker: &workers[0], chain: Chain::Slot, leaf: waits[0], ends: ends(&waits) };
    workers[0].push_next(chain[0].right());
    waits.iter().for_each(|op| lane.injector().push(op.right()));
    for left in [3, 2] {
        endless.run(RUN + 1);
        assert!(workers[0].deque.len() <= 1, "at most the chain is in the deque");
        assert!(!lane.injector().is_default_empty(), "{left} operations must be left");
    }
    while workers[0].deque.pop().is_some() {}
    workers[0].slot.set(None);
    assert_eq!(find_ptr(&workers[0]), Some(waits[2].as_ptr()));
    assert!(lane.injector().is_default_empty(), "the pop took the whole rest");
    endless.end();
}

#[test]
fn equals_in_the_injector_wait_for_at_most_a_run_each_in_every_band() {
    for band in [LOW, DEFAULT_BAND, HIGH] {
        for chain in [Chain::Slot, Chain::Inside] {
            let (lane, workers) = lane(1, IdlePolicy::Park);
            let (ops, waits) = (Ready::new(1, band), Ready::new(3, band));
            let endless = Endless { worker: &workers[0], chain, leaf: waits[0], ends: ends(&waits) };
            workers[0].push_next(ops[0].right());
            for before in 0..3 * RUN {
                waits.iter().for_each(|op| lane.injector().push(op.right()));
                let starts = endless.starts(&waits, 3 * (RUN + 1));
                assert!(starts.is_sorted(), "first in, first out");
                let bound = |&(others, &start): &(usize, &usize)| start < (others + 1) * (RUN + 1);
                assert!(starts.iter().enumerate().all(|start| bound(&start)), "{band} {chain:?}: {starts:?}");
                endless.run(before);
            }
            endless.end();
        }
    }
}

/// The injector's default band gets its turn even though urgent operations are pushed repeatedly and their non-urgent
/// successors take the slot.
#[test]
fn urgent_operations_do_not_lengthen_a_run_of_others() {
    let (lane, workers) = lane(1, IdlePolicy::Park);
    let (ops, urgent) = (Ready::new(3, DEFAULT_BAND), Ready::new(1, HIGH));
    let (worker, [chain, waits, successor]) = (&workers[0], [ops[0], ops[1], ops[2]].map(|op| op.as_ptr()));
    for every in 1..RUN {
        worker.push_next(ops[0].right());
        lane.injector().push(ops[1].right());
        let (mut own, mut is_successor_there) = (0, false);
        for step in 0.. {
            if step % every == 0 && lane.injector().highest().is_none() {
                lane.injector().push(urgent[0].right());
            }
            let op = find_ptr(worker).expect("the chain goes on forever");
            if op == waits {
                break;
            }
            if op == urgent[0].as_ptr() {
                if !std::mem::replace(&mut is_successor_there, true) {
                    worker.push_next(ops[2].right());
                }
                continue;
            }
            own += 1;
            assert!(own <= RUN, "with an urgent operation every {every} operations");
            if op == chain {
                worker.push_next(ops[0].right());
            } else {
                assert_eq!(op, successor);
                is_successor_there = false;
            }
        }
        while worker.find().is_some() {}
    }
}

/// Urgent operations keep the slot although the turn of less urgent ones is due.
#[test]
fn urgent_chains_take_equal_runs_while_less_urgent_operations_wait() {
    let (lane, workers) = lane(1, IdlePolicy::Park);
    let (chains, waits) = (Ready::new(2, HIGH), Ready::new(1, DEFAULT_BAND));
    let endless = Endless { worker: &workers[0], chain: Chain::Slot, leaf: waits[0], ends: ends(&waits) };
    lane.injector().push(waits[0].right());
    workers[0].push_next(chains[0].right());
    // Without an equal in the injector, the chain continues.
    assert!(endless.run(5 * RUN).iter().all(|&op| op == chains[0].as_ptr()));
    lane.injector().push(chains[1].right());
    let order = endless.run(9 * RUN);
    assert!(!order.contains(&waits[0].as_ptr()), "the less urgent operation must wait for urgent ones");
    let mut runs = order.chunk_by(|one, other| one == other).map(<[_]>::len).skip(1).collect::<Vec<_>>();
    runs.pop();
    assert!(!runs.is_empty() && runs.iter().all(|&run| run == RUN + 1), "{runs:?}");
    endless.end();
}

/// The rest of the run that an earlier urgent operation left does not lengthen a later run.
#[test]
fn an_equal_of_an_urgent_chain_waits_for_at_most_a_run_after_earlier_urgent_operations() {
    let (lane, workers) = lane(1, IdlePolicy::Park);
    let (ops, urgent) = (Ready::new(1, DEFAULT_BAND), Ready::new(3, HIGH));
    let worker = &workers[0];
    let run_others = |count: usize| {
        for _ in 0..count {
            assert_eq!(find_ptr(worker), Some(ops[0].as_ptr()));
            worker.push_next(ops[0].right());
        }
    };
    for before in 0..=RUN {
        for between in [0, 1, RUN - 1, RUN, RUN + 1, 3 * RUN] {
            worker.push_next(ops[0].right());
            run_others(before);
            lane.injector().push(urgent[0].right());
            assert_eq!(find_ptr(worker), Some(urgent[0].as_ptr()));
            run_others(between);
            // The chain's first operation becomes ready at the end of an ordinary operation.
            assert_eq!(find_ptr(worker), Some(ops[0].as_ptr()));
            worker.push_next(urgent[1].right());
            lane.injector().push(urgent[2].right());
            let mut others = 0;
            while find_ptr(worker) == Some(urgent[1].as_ptr()) {
                worker.push_next(urgent[1].right());
                others += 1;
            }
            assert!(others <= RUN + 1, "{before} operations before, {between} between: {others}");
            while worker.find().is_some() {}
        }
    }
}

/// The other workers do not return to their deques, and no worker is idle.
#[test]
fn operations_in_a_deque_are_taken_by_visiting_workers() {
    // The visits must not depend on whether the number of other workers divides that of rounds between visits.
    let cases = [2, 3, 4, 5, 9].into_iter().flat_map(|count| (0..count).map(move |own| (count, own)));
    for (count, own) in cases {
        let within = (count - 1) * (ROUNDS_PER_VISIT as usize) * (RUN + 2);
        for chain in CHAINS {
            let (_, workers) = lane(count, IdlePolicy::Park);
            let (ops, waits) = (Ready::new(2, DEFAULT_BAND), Ready::new(2 * count, DEFAULT_BAND));
            let endless = Endless { worker: &workers[own], chain, leaf: ops[1], ends: ends(&waits) };
            workers[own].push_next(ops[0].right());
            let others: Vec<_> = (0..count).filter(|&other| other != own).collect();
            for (index, op) in waits.iter().enumerate() {
                workers[others[index % others.len()]].push_local(op.right());
            }
            let each = waits.len().div_ceil(others.len());
            let _ = endless.starts(&waits, each * within);
            endless.end();
        }
    }
}

#[test]
fn a_chain_stays_in_the_slot_while_no_other_operation_waits() {
    for band in [LOW, DEFAULT_BAND, HIGH] {
        let ((_, workers), ops) = (lane(2, IdlePolicy::Park), Ready::new(1, band));
        asleep(&workers[1]);
        workers[0].push_next(ops[0].right());
        for _ in 0..5 * ROUNDS_PER_VISIT * MAX_RUN {
            assert_eq!(find_ptr(&workers[0]), Some(ops[0].as_ptr()));
            workers[0].push_next(ops[0].right());
            assert!(in_slot(&workers[0]).is_some());
        }
        assert_not_woken();
        workers[0].slot.set(None);
        assert!(workers[0].find().is_none());
    }
}
