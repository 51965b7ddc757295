//! Among equals none starves: what is pushed from outside starts within a bounded number of operations of the worker that
//! runs it, whatever goes on for ever beside it.

use raddle_testkit as common;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use common::shapes::*;
use common::{Gate, THREADED, eventually, lock, on_kinds};
use raddle::{Engine, OpContext, Token};

/// Operations of its own that a worker runs before it looks at the injector: the contract's number.
const RUN: usize = 32;

/// Operations that a worker begins between two looks at the injector at most: a run, and one that it takes from another
/// worker. One more is the one that the look is for.
const ROUND: usize = RUN + 2;

/// How often each worker comes by another worker's deque, in rounds.
const ROUNDS_PER_VISIT: usize = 8;

const WORKERS: [usize; 3] = [1, 2, 4];

/// How a chain goes on.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Each operation pushes the next one of its variable, which is ready when it ends.
    Successor,
    /// Each operation pushes the next one, which is ready at once.
    Inside,
    /// Each operation has two successors, of which one goes on and the other ends.
    TwoSuccessors,
}

const CHAINS: [Kind; 3] = [Kind::Successor, Kind::Inside, Kind::TwoSuccessors];

/// Chains that go on until they are stopped, and how many of their operations have started on each worker.
struct Chains {
    engine: Engine,
    kind: Kind,
    priority: i32,
    over: AtomicBool,
    started: Vec<AtomicUsize>,
}

impl Chains {
    /// Starts two chains per worker, so that each worker has something to run whoever steals what, and waits until they run.
    fn start(engine: &Engine, kind: Kind, priority: i32, workers: usize) -> Arc<Self> {
        let started = (0..workers).map(|_| AtomicUsize::new(0)).collect();
        let chains = Arc::new(Self { engine: engine.clone(), kind, priority, over: AtomicBool::new(false), started });
        for _ in 0..2 * workers {
            let vars = [(); 3].map(|()| engine.token());
            let (first, chains) = (vars[0].clone(), Arc::clone(&chains));
            let begin = move |ctx: &OpContext<'_>| chains.go_on(ctx, vars, 0);
            engine.op("first").priority(priority).writes([&first]).push_sync(begin).expect("the engine is open");
        }
        let before = chains.count();
        eventually("chains go on", || chains.count() > before + 10 * ROUND);
        chains
    }

    fn stop(&self) {
        self.over.store(true, SeqCst);
        self.engine.wait_for_all().expect("nothing fails");
    }

    fn count(&self) -> usize {
        self.snapshot().iter().sum()
    }

    fn snapshot(&self) -> Vec<usize> {
        self.started.iter().map(|count| count.load(SeqCst)).collect()
    }

    fn note_start(&self, ctx: &OpContext<'_>) {
        self.started[ctx.worker().expect("a worker runs it")].fetch_add(1, SeqCst);
    }

    /// What operation `number` of a chain does.
    fn go_on(self: &Arc<Self>, ctx: &OpContext<'_>, vars: [Token; 3], number: usize) {
        self.note_start(ctx);
        if self.over.load(SeqCst) {
            return;
        }
        let (chains, next_vars) = (Arc::clone(self), vars.clone());
        let next = move |ctx: &OpContext<'_>| chains.go_on(ctx, next_vars, number + 1);
        let op = self.engine.op("next").priority(self.priority);
        let pushed = match self.kind {
            Kind::Successor => op.writes([&vars[0]]).push_sync(next),
            Kind::Inside => op.push_sync(next),
            Kind::TwoSuccessors => {
                let chains = Arc::clone(self);
                let leaf = move |ctx: &OpContext<'_>| chains.note_start(ctx);
                let of = |number: usize| &vars[1 + number % 2];
                let op_leaf = self.engine.op("leaf").priority(self.priority).writes([of(number)]);
                op_leaf.push_sync(leaf).expect("the engine is open");
                op.writes([&vars[0], of(number + 1)]).push_sync(next)
            }
        };
        pushed.expect("the engine is open");
    }

    /// Pushes an operation from outside, with at most `others` before it in the injector. It must start within a round of
    /// the worker that runs it for each, or, if it lies in the deque of a worker that stands still, within the rounds
    /// between the visits of the others. Operations of the chains may be before it there.
    #[track_caller]
    fn assert_one_from_outside_starts(self: &Arc<Self>, engine: &Engine, others: usize) {
        let (ran, chains) = (Arc::new(Mutex::new(None)), Arc::clone(self));
        let told = Arc::clone(&ran);
        let outside = move |ctx: &OpContext<'_>| {
            let worker = ctx.worker().expect("a worker runs it");
            *lock(&told) = Some((worker, chains.started[worker].load(SeqCst)));
        };
        engine.op("outside").priority(self.priority).push_sync(outside).expect("the engine is open");
        let before = self.snapshot();
        eventually("what is pushed from outside runs", || lock(&ran).is_some());
        let (worker, count) = lock(&ran).take().expect("it ran");
        let begun = count.saturating_sub(before[worker]);
        let bound = (others + 1) * ROUND;
        // The operating system may keep a worker from going on, where there are more threads than cores.
        let stands_still = self.snapshot().iter().zip(&before).any(|(now, before)| now - before < bound);
        let workers = before.len();
        let of_visits = (others + 2 * workers + 1) * ROUND * ROUNDS_PER_VISIT * (workers - 1);
        assert!(
            begun < bound || stands_still && begun < of_visits,
            "{:?}, {workers} workers: {begun} operations of the chains went before",
            self.kind
        );
    }
}

fn what_is_pushed_from_outside_starts(priority: i32) {
    for workers in WORKERS {
        for kind in CHAINS {
            on_kinds(&THREADED, workers, move |engine| {
                let chains = Chains::start(&engine, kind, priority, workers);
                // In another band than the default one, what is next of the chains is in the injector as well.
                let others = if priority == 0 { 0 } else { 2 * workers };
                (0..50).for_each(|_| chains.assert_one_from_outside_starts(&engine, others));
                chains.stop();
            });
        }
    }
}

#[test]
fn what_is_pushed_from_outside_starts_beside_endless_chains() {
    what_is_pushed_from_outside_starts(0);
}

#[test]
fn what_is_pushed_from_outside_starts_beside_urgent_chains_of_its_priority() {
    what_is_pushed_from_outside_starts(5);
}

#[test]
fn what_is_pushed_from_outside_starts_beside_chains_of_its_priority_that_are_not_urgent() {
    what_is_pushed_from_outside_starts(-5);
}

/// Those that were pushed before it each take a turn.
#[test]
fn what_is_pushed_from_outside_starts_behind_others() {
    const OTHERS: usize = 20;
    for workers in WORKERS {
        on_kinds(&THREADED, workers, move |engine| {
            let chains = Chains::start(&engine, Kind::Successor, 0, workers);
            for _ in 0..5 {
                (0..OTHERS).for_each(|_| engine.op("other").push_sync(|_| ()).expect("the engine is open"));
                chains.assert_one_from_outside_starts(&engine, OTHERS);
            }
            chains.stop();
        });
    }
}

/// Neither the slot nor the injector is ever empty meanwhile.
#[test]
fn what_is_in_a_deque_starts_although_more_comes_from_outside_than_can_run() {
    on_kinds(&THREADED, 1, |engine| {
        let chains = Chains::start(&engine, Kind::Successor, 0, 1);
        for _ in 0..5 {
            let (outside, inside) = (Gate::new(), Gate::new());
            let (passed, opened) = (outside.clone(), inside.clone());
            let begun = Arc::new(AtomicUsize::new(usize::MAX));
            let (counts, told) = (Arc::clone(&chains), Arc::clone(&begun));
            let pushes = move |_: &OpContext<'_>| {
                passed.pass();
                let (engine, before) = (counts.engine.clone(), counts.count());
                let in_deque = move |_: &OpContext<'_>| {
                    told.store(counts.count() - before, SeqCst);
                    opened.open();
                };
                engine.op("in the deque").push_sync(in_deque).expect("the engine is open");
            };
            engine.op("pushes").push_sync(pushes).expect("the engine is open");
            for _ in 0..2000 {
                let chains = Arc::clone(&chains);
                engine.op("outside").push_sync(move |ctx| chains.note_start(ctx)).expect("the engine is open");
            }
            outside.open();
            inside.pass();
            // The chains may be before it in the deque.
            let begun = begun.load(SeqCst);
            assert!(begun < 3 * ROUND, "{begun} operations went before");
        }
        chains.stop();
    });
}

/// An operation that blocks keeps its worker, with what it has pushed in that worker's deque. The others have enough to do,
/// and take it all the same.
#[test]
fn what_a_blocked_operation_has_pushed_starts_on_another_worker() {
    for workers in [2, 4] {
        on_kinds(&THREADED, workers, move |engine| {
            let chains = Chains::start(&engine, Kind::Successor, 0, workers);
            let (ran, counts) = (Arc::new(Mutex::new(None)), Arc::clone(&chains));
            let told = Arc::clone(&ran);
            let blocks = move |ctx: &OpContext<'_>| {
                let (here, before, there) = (ctx.worker(), counts.snapshot(), Gate::new());
                let (engine, opened) = (counts.engine.clone(), there.clone());
                let pushed = move |ctx: &OpContext<'_>| {
                    let worker = ctx.worker().expect("a worker runs it");
                    *lock(&told) = Some((here, worker, counts.started[worker].load(SeqCst) - before[worker]));
                    opened.open();
                };
                engine.op("pushed").push_sync(pushed).expect("the engine is open");
                there.pass();
            };
            engine.op("blocks").push_sync(blocks).expect("the engine is open");
            eventually("what was pushed runs", || lock(&ran).is_some());
            let (here, worker, begun) = lock(&ran).take().expect("it ran");
            assert_ne!(here, Some(worker));
            // Chains may be before it in the deque.
            let bound = (2 * workers + 1) * (workers - 1) * ROUNDS_PER_VISIT * ROUND;
            assert!(begun < bound, "{workers} workers: {begun} operations of the chains went before");
            chains.stop();
        });
    }
}
