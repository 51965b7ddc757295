//! Operations of equal priority do not starve each other: even if some chains of operations never end, a worker runs
//! only a bounded number of operations before starting one pushed from outside.

use raddle_testkit as common;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use common::shapes::*;
use common::{Gate, THREADED, eventually, lock, on_kinds};
use raddle::{Engine, OpContext, Token};

/// The documented number of operations that a worker runs from its own queues before it checks the injector.
const RUN: usize = 32;

/// The maximum number of operations that a worker starts in one round: [`RUN`] from its own queues, one stolen from
/// another worker, and one from the injector.
const ROUND: usize = RUN + 2;

/// The number of a worker's rounds between two visits to another worker's deque.
const ROUNDS_PER_VISIT: usize = 8;

const WORKERS: [usize; 3] = [1, 2, 4];

/// How a chain continues.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Each operation pushes the next one on its own variable. The next operation becomes ready when the pushing one
    /// completes.
    Successor,
    /// Each operation pushes the next one, which is ready immediately.
    Inside,
    /// Each operation has two successors. One continues the chain; the other pushes nothing.
    TwoSuccessors,
}

const CHAINS: [Kind; 3] = [Kind::Successor, Kind::Inside, Kind::TwoSuccessors];

/// Chains that continue until stopped, with the number of operations that each worker has started.
struct Chains {
    engine: Engine,
    kind: Kind,
    priority: i32,
    over: AtomicBool,
    started: Vec<AtomicUsize>,
}

impl Chains {
    /// Starts two chains per worker, so that no worker runs out of operations while others steal. Waits until the
    /// chains run.
    fn start(engine: &Engine, kind: Kind, priority: i32, workers: usize) -> Arc<Self> {
        let started = (0..workers).map(|_| AtomicUsize::new(0)).collect();
        let chains = Arc::new(Self { engine: engine.clone(), kind, priority, over: AtomicBool::new(false), started });
        for _ in 0..2 * workers {
            let vars = [(); 3].map(|()| engine.token());
            let (first, chains) = (vars[0].clone(), Arc::clone(&chains));
            let begin = move |ctx: &OpContext<'_>| chains.run_operation(ctx, vars, 0);
            engine.op("first").priority(priority).writes([&first]).push_sync(begin).expect("the engine should be open");
        }
        let before = chains.count();
        eventually("the chains run", || chains.count() > before + 10 * ROUND);
        chains
    }

    fn stop(&self) {
        self.over.store(true, SeqCst);
        self.engine.wait_for_all().expect("no operation should fail");
    }

    fn count(&self) -> usize {
        self.snapshot().iter().sum()
    }

    fn snapshot(&self) -> Vec<usize> {
        self.started.iter().map(|count| count.load(SeqCst)).collect()
    }

    fn note_start(&self, ctx: &OpContext<'_>) {
        self.started[ctx.worker().expect("a worker should run the operation")].fetch_add(1, SeqCst);
    }

    /// The function of operation `number` of a chain.
    fn run_operation(self: &Arc<Self>, ctx: &OpContext<'_>, vars: [Token; 3], number: usize) {
        self.note_start(ctx);
        if self.over.load(SeqCst) {
            return;
        }
        let (chains, next_vars) = (Arc::clone(self), vars.clone());
        let next = move |ctx: &OpContext<'_>| chains.run_operation(ctx, next_vars, number + 1);
        let op = self.engine.op("next").priority(self.priority);
        let pushed = match self.kind {
            Kind::Successor => op.writes([&vars[0]]).push_sync(next),
            Kind::Inside => op.push_sync(next),
            Kind::TwoSuccessors => {
                let chains = Arc::clone(self);
                let leaf = move |ctx: &OpContext<'_>| chains.note_start(ctx);
                let of = |number: usize| &vars[1 + number % 2];
                let op_leaf = self.engine.op("leaf").priority(self.priority).writes([of(number)]);
                op_leaf.push_sync(leaf).expect("the engine should be open");
                op.writes([&vars[0], of(number + 1)]).push_sync(next)
            }
        };
        pushed.expect("the engine should be open");
    }

    /// Pushes an operation from outside, with at most `others` operations ahead of it in the injector, and asserts that
    /// few operations of the chains start before it. The worker that runs the operation may need one round for it and
    /// one for each operation ahead. If a preempted worker's deque holds the operation, another worker must steal it,
    /// possibly after stealing operations of the chains. A worker visits another deque only once in
    /// [`ROUNDS_PER_VISIT`] rounds.
    #[track_caller]
    fn assert_one_from_outside_starts(self: &Arc<Self>, engine: &Engine, others: usize) {
        let (ran, chains) = (Arc::new(Mutex::new(None)), Arc::clone(self));
        let noted = Arc::clone(&ran);
        let outside = move |ctx: &OpContext<'_>| {
            let worker = ctx.worker().expect("a worker should run the operation");
            *lock(&noted) = Some((worker, chains.started[worker].load(SeqCst)));
        };
        engine.op("outside").priority(self.priority).push_sync(outside).expect("the engine should be open");
        let before = self.snapshot();
        eventually("the operation pushed from outside runs", || lock(&ran).is_some());
        let (worker, count) = lock(&ran).take().expect("the operation should have run");
        let started_before = count.saturating_sub(before[worker]);
        let bound = (others + 1) * ROUND;
        // With more threads than cores, the operating system may preempt a worker for a long time.
        let workers = before.len();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let is_behind = |(now, before): (&usize, &usize)| now - before < bound;
        let preempted = workers > cores || self.snapshot().iter().zip(&before).any(is_behind);
        let visit_bound = (others + 2 * workers + 1) * ROUND * ROUNDS_PER_VISIT * (workers - 1);
        assert!(
            started_before < bound || preempted && started_before < visit_bound,
            "{:?}, {workers} workers: {started_before} chain operations started before the one from outside",
            self.kind
        );
    }
}

fn assert_outside_operations_start(priority: i32) {
    for workers in WORKERS {
        for kind in CHAINS {
            on_kinds(&THREADED, workers, move |engine| {
                let chains = Chains::start(&engine, kind, priority, workers);
                // In bands other than the default, the injector also holds the chains' next operations.
                let others = if priority == 0 { 0 } else { 2 * workers };
                (0..50).for_each(|_| chains.assert_one_from_outside_starts(&engine, others));
                chains.stop();
            });
        }
    }
}

#[test]
fn an_operation_pushed_from_outside_starts_despite_endless_chains() {
    assert_outside_operations_start(0);
}

#[test]
fn an_operation_pushed_from_outside_starts_despite_chains_of_the_same_high_priority() {
    assert_outside_operations_start(5);
}

#[test]
fn an_operation_pushed_from_outside_starts_despite_chains_of_the_same_low_priority() {
    assert_outside_operations_start(-5);
}

/// Each earlier operation from outside may delay the last one by one round.
#[test]
fn an_operation_pushed_from_outside_starts_after_a_bounded_wait_behind_others() {
    const OTHERS: usize = 20;
    for workers in WORKERS {
        on_kinds(&THREADED, workers, move |engine| {
            let chains = Chains::start(&engine, Kind::Successor, 0, workers);
            for _ in 0..5 {
                (0..OTHERS).for_each(|_| engine.op("other").push_sync(|_| ()).expect("the engine should be open"));
                chains.assert_one_from_outside_starts(&engine, OTHERS);
            }
            chains.stop();
        });
    }
}

/// The chains also keep the worker's slot full.
#[test]
fn an_operation_in_a_deque_starts_while_the_injector_is_never_empty() {
    on_kinds(&THREADED, 1, |engine| {
        let chains = Chains::start(&engine, Kind::Successor, 0, 1);
        for _ in 0..5 {
            let (outside, inside) = (Gate::new(), Gate::new());
            let (passed, opened) = (outside.clone(), inside.clone());
            let started_before = Arc::new(AtomicUsize::new(usize::MAX));
            let (counts, noted) = (Arc::clone(&chains), Arc::clone(&started_before));
            let pushes = move |_: &OpContext<'_>| {
                passed.pass();
                let (engine, before) = (counts.engine.clone(), counts.count());
                let in_deque = move |_: &OpContext<'_>| {
                    noted.store(counts.count() - before, SeqCst);
                    opened.open();
                };
                engine.op("in the deque").push_sync(in_deque).expect("the engine should be open");
            };
            engine.op("pushes").push_sync(pushes).expect("the engine should be open");
            for _ in 0..2000 {
                let chains = Arc::clone(&chains);
                engine.op("outside").push_sync(move |ctx| chains.note_start(ctx)).expect("the engine should be open");
            }
            outside.open();
            inside.pass();
            // In the deque, operations of the chains may be ahead of the pushed one.
            let started_before = started_before.load(SeqCst);
            assert!(started_before < 3 * ROUND, "{started_before} operations started before the one in the deque");
        }
        chains.stop();
    });
}

/// A blocked operation occupies its worker, whose deque holds the operation that the blocked one pushed. The other
/// workers never run out of operations, yet still steal the pushed one.
#[test]
fn an_operation_pushed_by_a_blocked_one_starts_on_another_worker() {
    for workers in [2, 4] {
        on_kinds(&THREADED, workers, move |engine| {
            let chains = Chains::start(&engine, Kind::Successor, 0, workers);
            let (ran, counts) = (Arc::new(Mutex::new(None)), Arc::clone(&chains));
            let noted = Arc::clone(&ran);
            let blocks = move |ctx: &OpContext<'_>| {
                let (here, before, there) = (ctx.worker(), counts.snapshot(), Gate::new());
                let (engine, opened) = (counts.engine.clone(), there.clone());
                let pushed = move |ctx: &OpContext<'_>| {
                    let worker = ctx.worker().expect("a worker should run the operation");
                    *lock(&noted) = Some((here, worker, counts.started[worker].load(SeqCst) - before[worker]));
                    opened.open();
                };
                engine.op("pushed").push_sync(pushed).expect("the engine should be open");
                there.pass();
            };
            engine.op("blocks").push_sync(blocks).expect("the engine should be open");
            eventually("the pushed operation runs", || lock(&ran).is_some());
            let (here, worker, started_before) = lock(&ran).take().expect("the operation should have run");
            assert_ne!(here, Some(worker));
            // In the deque, operations of the chains may be ahead of the pushed one.
            let bound = (2 * workers + 1) * (workers - 1) * ROUNDS_PER_VISIT * ROUND;
            assert!(
                started_before < bound,
                "{workers} workers: {started_before} operations of the chains started before the pushed one"
            );
            chains.stop();
        });
    }
}
