//! A thread stopped at a step of a protocol delays only what the test of that step states: in most cases, only
//! dependent operations.
//!
//! Most tests use a [`Stop`] to stop a thread at one [`Point`] after another, let other threads continue, and compare
//! the operations that ran with those that may be delayed. After the thread is released, all operations must run, and
//! conflicting ones in push order. The tests exist only under `--cfg raddle_pause`; `cargo xtask ci faults` runs them.
#![cfg(raddle_pause)]
#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Instant,
};

use common::shapes::*;
use common::{Gate, Journal, MOMENT, Meeting, PATIENCE, SOON, block_on, eventually, lock, poll_once, watched};
use raddle::{
    Completion, Engine, EngineKind, IdlePolicy, OpContext, OpHandle, Token, WaitError, completion, cx,
    internals::{Point, Stop, passings},
    trace::{Dump, OpState},
};

/// The number of variables accessed by the operations of stopped threads. A push enters their queues in index order.
const VARIABLES: usize = 3;
/// A variable accessed only by other operations.
const OTHER: usize = 3;
/// A variable accessed only by a separate thread's operations.
const APART: usize = 4;
const TOKENS: usize = 5;

/// The generator `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) as usize % bound
    }
}

/// An operation's access to each variable: `None`, `Some(false)` for a read, or `Some(true)` for a mutation.
type Shape = [Option<bool>; TOKENS];

const fn writes(variable: usize) -> Shape {
    let mut shape = [None; TOKENS];
    shape[variable] = Some(true);
    shape
}

/// Returns one to three of the first four variables, each read or mutated.
fn any_shape(random: &mut Random) -> Shape {
    let mut shape = [None; TOKENS];
    for _ in 0..=random.below(3) {
        shape[random.below(OTHER + 1)] = Some(random.below(2) == 0);
    }
    shape
}

/// Returns all of the first three variables, each read or mutated.
fn full_shape(random: &mut Random) -> Shape {
    let mut shape = [None; TOKENS];
    shape[..VARIABLES].fill_with(|| Some(random.below(3) > 0));
    shape
}

fn conflict(one: &Shape, other: &Shape) -> bool {
    one.iter().zip(other).any(|pair| matches!(pair, (Some(one), Some(other)) if *one || *other))
}

/// An operation under test. Push order is the order of phases and, within a phase and a thread, of indices in
/// [`World::made`].
#[derive(Clone, Copy)]
struct Made {
    phase: u8,
    thread: u8,
    shape: Shape,
}

struct World {
    engine: Engine,
    tokens: Vec<Token>,
    made: Mutex<Vec<Made>>,
    /// The operations that began (`true`) or ended (`false`).
    journal: Journal<(usize, bool)>,
}

/// The phase before all actions of the stopped thread.
const EARLIER: u8 = 0;
/// The phase of operations that do not depend on a stopped push.
const BESIDE: u8 = 1;
/// The phase of a stopped push, between [`EARLIER`] and [`BEHIND`].
const STOPPED: u8 = 2;
const BEHIND: u8 = 3;

impl World {
    fn new(idle: IdlePolicy) -> Arc<Self> {
        let engine = Engine::builder().kind(EngineKind::Pooled).workers(2).pin(false).idle(idle).build();
        let engine = engine.expect("an engine");
        let tokens = (0..TOKENS).map(|_| engine.token()).collect();
        Arc::new(Self { engine, tokens, made: Mutex::default(), journal: Journal::new() })
    }

    fn names(&self, shape: &Shape, mutated: bool) -> Vec<&Token> {
        (0..TOKENS)
            .filter(|&variable| shape[variable] == Some(mutated))
            .map(|variable| &self.tokens[variable])
            .collect()
    }

    /// Pushes an operation that records its beginning and its end, and calls `f` in between.
    fn push(
        self: &Arc<Self>,
        phase: u8,
        thread: u8,
        shape: Shape,
        f: impl FnOnce(&Engine) + Send + 'static,
    ) -> OpHandle<()> {
        let number = {
            let mut made = lock(&self.made);
            made.push(Made { phase, thread, shape });
            made.len() - 1
        };
        let journal = self.journal.clone();
        let engine = Engine::clone(&self.engine);
        let description = self.engine.op("").reads(self.names(&shape, false)).writes(self.names(&shape, true));
        let pushed = description.submit((), move |()| {
            // If a stop is still armed here, it was meant for an earlier operation.
            Stop::disarm();
            journal.add((number, true));
            f(&engine);
            journal.add((number, false));
        });
        pushed.expect("the engine should be open")
    }

    /// Pushes an operation on the first three variables. It completes when the returned gate is opened, and needs no
    /// worker until then.
    fn hold(&self) -> Gate {
        let (gate, started) = (Gate::new(), Gate::new());
        let (inside, begun) = (gate.clone(), started.clone());
        let description = self.engine.op("hold").writes(&self.tokens[..VARIABLES]);
        let pushed = description.push_async_any(cx(), move |_, done| {
            begun.open();
            thread::spawn(move || {
                inside.pass();
                done.complete();
            });
        });
        pushed.expect("the engine should be open");
        started.pass();
        gate
    }

    /// Waits until all operations have ended. Asserts that every operation ran once, and that conflicting operations
    /// ran without overlap and, where push order is known, in push order.
    #[track_caller]
    fn end(self: &Arc<Self>) {
        self.engine.wait_for_all_timeout(PATIENCE).expect("everything should end, and nothing should fail");
        let (made, journal) = (lock(&self.made).clone(), self.journal.take());
        let when = |number, began| {
            let mut times =
                journal.iter().enumerate().filter(|&(_, &entry)| entry == (number, began)).map(|(at, _)| at);
            let first = times.next().unwrap_or_else(|| panic!("operation {number} did not run"));
            assert!(times.next().is_none(), "operation {number} ran twice");
            first
        };
        let times: Vec<_> = (0..made.len()).map(|number| (when(number, true), when(number, false))).collect();
        for (one, earlier) in made.iter().enumerate() {
            for (other, later) in made.iter().enumerate().skip(one + 1) {
                if !conflict(&earlier.shape, &later.shape) {
                    continue;
                }
                let (one_first, other_first) = (times[one].1 < times[other].0, times[other].1 < times[one].0);
                assert!(one_first || other_first, "operations {one} and {other} overlapped");
                let known = earlier.phase != later.phase || earlier.thread == later.thread;
                let in_order = if earlier.phase <= later.phase { one_first } else { other_first };
                assert!(!known || in_order, "operations {one} and {other} ran in the wrong order");
            }
        }
    }
}

#[track_caller]
fn ends(handle: &mut OpHandle<()>, what: &str) {
    handle.wait_timeout(PATIENCE).unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Predicts, from the order of the pushes, which operations depend on the operation that the stopped thread is pushing.
struct Oracle {
    stopped: Shape,
    /// The number of queues that contain the operation while no thread helps it.
    linked: usize,
    /// Whether another thread has helped insert the operation into all its queues.
    placed: bool,
    after: Vec<Shape>,
}

impl Oracle {
    fn new(stopped: Shape, linked: usize) -> Self {
        Self { stopped, linked, placed: false, after: Vec::new() }
    }

    /// Returns whether an operation with `shape`, pushed now, depends on the stopped thread's operation.
    fn comes_after(&mut self, shape: &Shape) -> bool {
        self.placed |= shape[..self.linked].iter().any(Option::is_some);
        let after =
            self.placed && conflict(shape, &self.stopped) || self.after.iter().any(|earlier| conflict(shape, earlier));
        if after {
            self.after.push(*shape);
        }
        after
    }
}

/// Waits until a thread has stopped or has passed the point. Returns whether it has stopped.
fn wait_until_stopped(stop: &Stop, is_past: impl Fn() -> bool) -> bool {
    eventually("the thread stops or passes the point", || stop.is_reached() || is_past());
    stop.is_reached()
}

/// A thread stopped in a push.
struct Stopped {
    stop: Stop,
    thread: thread::JoinHandle<OpHandle<()>>,
}

impl Stopped {
    /// Starts a thread that pushes an operation and stops when passing `point` for the `nth` time.
    fn push(world: &Arc<World>, phase: u8, shape: Shape, point: Point, nth: usize) -> Self {
        let (stop, world) = (Stop::new(point), Arc::clone(world));
        let armed = stop.clone();
        let thread = thread::spawn(move || {
            armed.arm(nth);
            let handle = world.push(phase, 0, shape, |_| {});
            Stop::disarm();
            handle
        });
        Self { stop, thread }
    }

    /// Like [`push`](Self::push), but the thread pushes operations until it reaches the point. Each push begins after
    /// the previous operation has ended.
    fn push_until(world: &Arc<World>, shape: Shape, point: Point, nth: usize) -> Self {
        let (stop, world) = (Stop::new(point), Arc::clone(world));
        let armed = stop.clone();
        let thread = thread::spawn(move || {
            armed.arm(nth);
            loop {
                let mut handle = world.push(STOPPED, 0, shape, |_| {});
                if armed.is_reached() {
                    return handle;
                }
                ends(&mut handle, "an operation should run after its push");
            }
        });
        Self { stop, thread }
    }

    /// Waits until the thread has stopped or has pushed without reaching the point. Returns whether it has stopped.
    fn wait_until_stopped(&self) -> bool {
        wait_until_stopped(&self.stop, || self.thread.is_finished())
    }

    #[track_caller]
    fn release(self) {
        self.stop.release();
        let mut handle = self.thread.join().expect("the push panicked");
        ends(&mut handle, "the operation should run after the release");
    }
}

/// Gates that open when a test ends, even if it panics.
struct Gates(Vec<Gate>);

impl Drop for Gates {
    fn drop(&mut self) {
        self.0.iter().for_each(Gate::open);
    }
}

/// Pushes operations on `APART` from a separate thread. All of them must run.
fn run_apart(world: &Arc<World>, phase: u8) {
    let world = Arc::clone(world);
    let pusher = thread::spawn(move || {
        for _ in 0..4 {
            ends(&mut world.push(phase, 2, writes(APART), |_| {}), "an operation on other variables should run");
        }
    });
    pusher.join().expect("an operation on other variables was delayed");
}

/// Whether there are earlier operations on the same variables, and when they complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Earlier {
    /// There is no earlier operation.
    Idle,
    /// While the thread is stopped, before others push.
    First,
    /// While the thread is stopped, after others have pushed.
    Last,
}

/// Which thread may run the operation of a thread stopped in a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The stopped thread holds the operation, and all dependent operations wait.
    Held,
    /// Another thread may find the operation.
    Findable,
    /// The operation no longer depends on the stopped thread.
    Free,
}

/// Returns the number of queues that contain a thread's operation when the thread passes `point` for the `nth` time, if
/// no other thread helps it.
fn linked(point: Point, nth: usize) -> usize {
    use Point::{
        PendingBeforeEnter, PendingEntered, PushBeforeLink, PushBeforeRetire, PushBeforeSwing, PushLinked, PushPinned,
        PushReadRegistered, PushReadTail, PushReadWord,
    };
    match point {
        PendingBeforeEnter | PendingEntered | PushPinned => 0,
        PushReadTail | PushReadWord | PushReadRegistered | PushBeforeLink => nth - 1,
        PushLinked | PushBeforeSwing | PushBeforeRetire => nth,
        _ => VARIABLES,
    }
}

/// Stops one push and checks which operations are delayed; see the tests below.
fn one_push_is_stopped(point: Point, nth: usize, earlier: Earlier, fate: Fate, seed: u64) {
    let random = &mut Random(seed);
    let world = World::new(IdlePolicy::default());
    let mut gates = Gates(Vec::new());
    let mut before = Vec::new();
    if earlier != Earlier::Idle {
        gates.0.push(world.hold());
        before.extend((0..VARIABLES).map(|variable| world.push(EARLIER, 0, writes(variable), |_| {})));
    }
    let stopped_shape = full_shape(random);
    let stopped = Stopped::push_until(&world, stopped_shape, point, nth);
    assert!(stopped.wait_until_stopped(), "the point was not reached");
    let mut oracle = Oracle::new(stopped_shape, linked(point, nth));

    if earlier == Earlier::First {
        gates.0[0].open();
        before.iter_mut().for_each(|handle| ends(handle, "an earlier operation should end"));
    }
    run_apart(&world, BESIDE);
    let pusher = thread::spawn({
        let (world, shapes) = (Arc::clone(&world), [(); 8].map(|()| any_shape(random)));
        move || {
            shapes.map(|shape| {
                let after = oracle.comes_after(&shape);
                (after, world.push(if after { BEHIND } else { BESIDE }, 1, shape, |_| {}))
            })
        }
    });
    // Pushes of dependent operations return as well.
    eventually("all pushes have returned", || pusher.is_finished());
    let mut pushed = pusher.join().expect("a push panicked");
    if earlier == Earlier::Last {
        gates.0[0].open();
        before.iter_mut().for_each(|handle| ends(handle, "an earlier operation should end"));
    }
    for (number, (after, handle)) in pushed.iter_mut().enumerate() {
        if !*after || fate == Fate::Free {
            ends(handle, &format!("operation {number} should not depend on the stopped one"));
        }
    }
    for (after, handle) in &pushed {
        let overtook = *after && fate == Fate::Held && handle.is_done();
        assert!(!overtook, "an operation overtook the stopped one");
    }
    run_apart(&world, BESIDE);

    stopped.release();
    world.end();
}

/// Operations that depend on a stopped push wait for it; all others run, and every push returns.
#[test]
fn a_thread_stopped_in_a_push_delays_only_dependent_operations() {
    for &point in Point::PUSH {
        let per_access = !matches!(
            point,
            Point::PushPinned
                | Point::PushBeforeRegistered
                | Point::PushBeforeHints
                | Point::PushBeforeDecrement
                | Point::PushOver
        );
        for nth in 1..=if per_access { VARIABLES } else { 1 } {
            for earlier in [Earlier::Idle, Earlier::First, Earlier::Last] {
                for seed in 0..SEEDS {
                    watched(move || {
                        println!("{point:?}, passing {nth}, {earlier:?}, seed {seed}");
                        // After the last decrement, the pusher owns the operation only if the decrement made it ready.
                        let free = point == Point::PushOver && earlier != Earlier::Idle;
                        let fate = if free { Fate::Free } else { Fate::Held };
                        one_push_is_stopped(point, nth, earlier, fate, seed);
                    });
                }
            }
        }
    }
}

/// The number of seeds, and thus of random shapes, per case.
const SEEDS: u64 = 6;

/// One thread is stopped in a push, and another while helping that push or making its own. Together, they delay only
/// operations on the variables of these pushes.
#[test]
fn a_thread_stopped_while_helping_delays_only_dependent_operations() {
    let mut reached = HashSet::new();
    let helped = [(Point::PushLinked, 1), (Point::PushBeforeSwing, 2), (Point::PushBeforeRetire, 1)];
    for (first_point, first_nth) in helped {
        for &point in Point::PUSH.iter().chain(Point::HELP) {
            for nth in 1..=2 * VARIABLES {
                let seed = (nth * 31) as u64;
                let (sender, receiver) = mpsc::channel();
                watched(move || {
                    println!("{first_point:?}, passing {first_nth}, helped by one at {point:?}, passing {nth}");
                    let random = &mut Random(seed);
                    let world = World::new(IdlePolicy::default());
                    let first = Stopped::push(&world, STOPPED, full_shape(random), first_point, first_nth);
                    assert!(first.wait_until_stopped(), "the point was not reached");
                    let second = Stopped::push(&world, BEHIND, full_shape(random), point, nth);
                    let stopped = second.wait_until_stopped();
                    run_apart(&world, BESIDE);
                    ends(
                        &mut world.push(BESIDE, 1, writes(OTHER), |_| {}),
                        "an operation on another variable should run",
                    );
                    let pushed = thread::spawn({
                        let (world, shapes) = (Arc::clone(&world), [(); 6].map(|()| full_shape(random)));
                        move || shapes.map(|shape| world.push(BEHIND, 1, shape, |_| {}))
                    });
                    eventually("all pushes have returned", || pushed.is_finished());
                    drop(pushed.join().expect("a push panicked"));
                    run_apart(&world, BESIDE);
                    if nth % 2 == 0 {
                        // The first thread does not depend on the second one, which stays stopped.
                        first.release();
                        run_apart(&world, BESIDE);
                        second.release();
                    } else {
                        second.stop.release();
                        run_apart(&world, BESIDE);
                        first.release();
                        second.release();
                    }
                    world.end();
                    sender.send(stopped).expect("the test should wait");
                });
                if receiver.recv().expect("the case should end") {
                    reached.insert(point);
                }
            }
        }
    }
    assert_all_reached(&reached, &[Point::PUSH, Point::HELP]);
}

/// Threads pushing crossing operations at full speed help each other, and no operation is lost.
#[test]
fn threads_that_push_concurrently_help_each_other() {
    const PUSHERS: usize = 4;
    const ROUND: u64 = 2_000;
    watched(|| {
        let world = World::new(IdlePolicy::default());
        let (end, mut helped, mut pushed) = (Instant::now() + PATIENCE / 2, 0, 0);
        while helped < 10 {
            assert!(Instant::now() < end, "{pushed} pushes, {helped} of which helped another");
            let threads: Vec<_> = (0..PUSHERS)
                .map(|number| {
                    let world = Arc::clone(&world);
                    thread::spawn(move || {
                        let random = &mut Random(number as u64);
                        let before = passings(Point::HelpEnds);
                        for _ in 0..ROUND {
                            let mutated = full_shape(random).map(|mode| mode.map(|_| true));
                            let description = world.engine.op("").writes(world.names(&mutated, true));
                            description.push_sync(|_| {}).expect("the engine should be open");
                        }
                        passings(Point::HelpEnds) - before
                    })
                })
                .collect();
            helped += threads.into_iter().map(|thread| thread.join().expect("a push panicked")).sum::<u64>();
            pushed += ROUND * PUSHERS as u64;
            world.engine.wait_for_all().expect("nothing should fail");
            for token in &world.tokens[..VARIABLES] {
                assert_eq!(token.version(), pushed, "a mutation is lost");
            }
        }
        println!("{pushed} pushes, {helped} of which helped another");
    });
}

#[track_caller]
fn assert_all_reached(reached: &HashSet<Point>, wanted: &[&[Point]]) {
    for point in wanted.iter().copied().flatten() {
        assert!(reached.contains(point), "{point:?} was never reached");
    }
}

// ------------------------------------------------------------------------------------------------- completion ----

/// Pushes eight random operations from another thread. Those that do not depend on the stopped operation must end.
/// Returns the handles of the others.
fn run_beside(world: &Arc<World>, mut oracle: Oracle, random: &mut Random) -> Vec<OpHandle<()>> {
    let pusher = thread::spawn({
        let (world, shapes) = (Arc::clone(world), [(); 8].map(|()| any_shape(random)));
        move || shapes.map(|shape| (oracle.comes_after(&shape), world.push(BEHIND, 1, shape, |_| {})))
    });
    eventually("all pushes have returned", || pusher.is_finished());
    let mut behind = Vec::new();
    for (number, (after, mut handle)) in pusher.join().expect("a push panicked").into_iter().enumerate() {
        if after {
            behind.push(handle);
        } else {
            ends(&mut handle, &format!("operation {number} should not depend on the one whose worker is stopped"));
        }
    }
    behind
}

/// Stops a worker while it completes an operation. Other operations are queued behind that one, or else a single
/// operation whose push is also stopped. Returns whether the worker reached the point.
fn one_completion_is_stopped(point: Point, nth: usize, half_pushed: bool, seed: u64) -> bool {
    let random = &mut Random(seed);
    let world = World::new(IdlePolicy::default());
    let shape = full_shape(random);
    let (stop, started, gate) = (Stop::new(point), Gate::new(), Gate::new());
    let gates = Gates(vec![gate.clone()]);
    let by_it = Arc::new(Mutex::new(None));
    let mut handle = world.push(EARLIER, 0, shape, {
        let (stop, started, gate, by_it, inside) =
            (stop.clone(), started.clone(), gate.clone(), Arc::clone(&by_it), Arc::clone(&world));
        move |_| {
            started.open();
            gate.pass();
            // An operation pushed inside another enters the worker's deque, from which other workers take it.
            *lock(&by_it) = Some(inside.push(EARLIER, 3, writes(APART), |_| {}));
            stop.arm(nth);
        }
    });
    started.pass();
    let mut oracle = Oracle::new(shape, VARIABLES);
    oracle.placed = true;
    let (mut behind, mut half) = (Vec::new(), None);
    if half_pushed {
        let shape = full_shape(random);
        let stopped = Stopped::push(&world, BEHIND, shape, Point::PushLinked, 1);
        assert!(stopped.wait_until_stopped(), "the point was not reached");
        // Operations that depend on this one may also be delayed.
        oracle.after.push(shape);
        half = Some(stopped);
    } else {
        // These successors include concurrent readers.
        for _ in 0..6 {
            let shape = full_shape(random);
            oracle.comes_after(&shape);
            behind.push(world.push(BESIDE, 4, shape, |_| {}));
        }
    }
    drop(gates);
    let stopped = wait_until_stopped(&stop, || handle.is_done());
    let mut by_it = lock(&by_it).take().expect("the operation should have run");
    ends(&mut by_it, "another worker should take the pushed operation");
    run_apart(&world, BESIDE);
    if stopped {
        behind.extend(run_beside(&world, oracle, random));
        run_apart(&world, BESIDE);
    }
    stop.release();
    ends(&mut handle, "the operation should end after the release");
    if let Some(stopped) = half {
        stopped.release();
    }
    behind.iter_mut().for_each(|handle| ends(handle, "dependent operations should end after the release"));
    world.end();
    stopped
}

/// A worker stopped while completing an operation may delay only operations that depend on the one being completed. All
/// others run, including readers next to a reader and operations in the worker's deque.
#[test]
fn a_worker_stopped_in_a_completion_delays_only_dependent_operations() {
    let mut reached = HashSet::new();
    for &point in Point::COMPLETE {
        for nth in 1..=3 * VARIABLES {
            for (half_pushed, seed) in (0..SEEDS).flat_map(|seed| [(false, seed), (true, seed)]) {
                let (sender, receiver) = mpsc::channel();
                watched(move || {
                    println!("{point:?}, passing {nth}, a half-done push behind: {half_pushed}, seed {seed}");
                    let stopped = one_completion_is_stopped(point, nth, half_pushed, seed);
                    sender.send(stopped).expect("the test should wait");
                });
                if receiver.recv().expect("the case should end") {
                    reached.insert(point);
                }
            }
        }
    }
    assert_all_reached(&reached, &[Point::COMPLETE]);
}

// -------------------------------------------------------------------------------- injector, count, wake-up ----

/// A thread is stopped between a push and the notification of a worker. Until the operation is in the injector,
/// dependent operations wait. Once it is there, it may run if a worker happens to find it.
#[test]
fn a_thread_stopped_while_injecting_delays_only_dependent_operations() {
    for &point in Point::INJECT.iter().chain(Point::WAKE) {
        let fate = if point == Point::InjectBeforeLink { Fate::Held } else { Fate::Findable };
        for seed in 0..SEEDS {
            watched(move || {
                println!("{point:?}, seed {seed}");
                one_push_is_stopped(point, 1, Earlier::Idle, fate, seed);
            });
        }
    }
}

/// Asserts that an operation is pending: a wait for all must time out.
#[track_caller]
fn assert_times_out(engine: &Engine) {
    let waited = engine.wait_for_all_timeout(MOMENT);
    assert!(matches!(waited, Err(WaitError::TimedOut)), "an operation is pending, but the wait returned {waited:?}");
}

/// A thread stopped while it counts an operation delays only waits for all, and does so only once the operation is
/// counted.
#[test]
fn a_thread_stopped_while_counting_in_delays_only_waits_for_all() {
    for point in [Point::PendingBeforeEnter, Point::PendingEntered] {
        for seed in 0..SEEDS {
            watched(move || one_push_is_stopped(point, 1, Earlier::Idle, Fate::Held, seed));
        }
        watched(move || {
            let world = World::new(IdlePolicy::default());
            let stopped = Stopped::push(&world, STOPPED, writes(0), point, 1);
            assert!(stopped.wait_until_stopped(), "the point was not reached");
            run_apart(&world, BESIDE);
            if point == Point::PendingBeforeEnter {
                world.engine.wait_for_all_timeout(PATIENCE).expect("nothing should be pending");
            } else {
                assert_times_out(&world.engine);
            }
            run_apart(&world, BESIDE);
            stopped.release();
            world.end();
        });
    }
}

/// Pushes an operation that arms `point` on its worker, and one that keeps the other worker busy until the gate opens.
fn arm_on_worker(world: &Arc<World>, point: Point, with_handle: bool) -> (Stop, Gate) {
    let (stop, gate, meeting) = (Stop::new(point), Gate::new(), Meeting::new(3));
    let (inside, pass, meet) = (stop.clone(), gate.clone(), meeting.clone());
    // These operations bypass `World::push`, since they are not part of the program under test.
    let arm = move || {
        meet.join();
        inside.arm(1);
    };
    if with_handle {
        drop(world.engine.op("arm").submit((), move |()| arm()).expect("the engine should be open"));
    } else {
        world.engine.op("arm").push((), move |()| arm()).expect("the engine should be open");
    }
    let meet = meeting.clone();
    let occupy = move |()| {
        meet.join();
        pass.pass();
    };
    world.engine.op("occupy").push((), occupy).expect("the engine should be open");
    meeting.join();
    (stop, gate)
}

#[test]
fn a_worker_stopped_while_counting_out_delays_only_waits_for_all() {
    for (point, closes_first, delays) in [
        (Point::PendingBeforeLeave, false, true),
        (Point::PendingBeforeLeave, true, true),
        // No wait has begun yet, and the count no longer includes the operation.
        (Point::PendingLeft, false, false),
        (Point::PendingLeft, true, true),
    ] {
        watched(move || {
            println!("{point:?}, a wait begins first: {closes_first}");
            let world = World::new(IdlePolicy::default());
            let (stop, gate) = (Stop::new(point), Gate::new());
            let gates = Gates(vec![gate.clone()]);
            let armed = stop.clone();
            let begins = move |()| {
                gate.pass();
                armed.arm(1);
            };
            world.engine.op("leaves").push((), begins).expect("the engine should be open");
            let mut wait = closes_first.then(|| Box::pin(world.engine.wait_for_all_async()));
            drop(gates);
            assert!(stop.is_reached_within(PATIENCE), "the point was not reached");
            run_apart(&world, BESIDE);
            ends(&mut world.push(BESIDE, 1, writes(0), |_| {}), "an operation should run");
            if delays {
                assert_times_out(&world.engine);
                assert!(
                    wait.as_mut().is_none_or(|wait| poll_once(wait).is_pending()),
                    "the wait ended although an operation was pending"
                );
            } else {
                world.engine.wait_for_all_timeout(PATIENCE).expect("nothing should be pending");
            }
            run_apart(&world, BESIDE);
            stop.release();
            if let Some(wait) = wait {
                block_on(wait).expect("nothing should fail");
            }
            world.end();
        });
    }
}

/// A stopped thread may hold a wait already completed by the tracker. Later waits do not join that wait.
#[test]
fn a_thread_stopped_with_a_completed_wait_delays_no_other_wait() {
    watched(|| {
        let engine = Engine::builder().kind(EngineKind::Pooled).workers(1).pin(false).build().expect("an engine");
        let (token, (sender, receiver)) = (engine.token(), mpsc::channel::<Completion>());
        let begin = move |_: &OpContext<'_>, done| sender.send(done).expect("the test should keep the receiver");
        engine.op("held").writes([&token]).push_async_any(cx(), begin).expect("the engine should be open");
        let done = receiver.recv().expect("the operation should start");
        drop(engine.wait_to_read_async(&token));
        let stop = Stop::new(Point::Completed);
        let armed = stop.clone();
        let thread = thread::spawn(move || {
            armed.arm(1);
            done.fail("as planned");
        });
        assert!(stop.is_reached_within(PATIENCE), "the point was not reached");
        let waited = engine.wait_to_read_timeout(&token, SOON);
        stop.release();
        thread.join().expect("nothing should panic");
        assert!(matches!(waited, Err(WaitError::Failed(_))), "{waited:?}");
    });
}

/// A thread stopped after choosing a worker to wake does not hide that worker from other notifiers.
#[test]
fn a_thread_stopped_before_a_wake_up_does_not_hide_the_worker() {
    watched(|| {
        let engine = Engine::builder()
            .kind(EngineKind::Pooled)
            .workers(1)
            .pin(false)
            .idle(IdlePolicy::Park)
            .build()
            .expect("an engine");
        let (stop, pusher) = (Stop::new(Point::WakeBeforeUnpark), engine.clone());
        let armed = stop.clone();
        let thread = thread::spawn(move || {
            armed.arm(1);
            // The loop ends once a push has found the worker asleep.
            while !armed.is_reached() {
                let mut handle = pusher.op("wakes").submit((), |()| ()).expect("the engine should be open");
                if !armed.is_reached() {
                    ends(&mut handle, "an operation should run after its push");
                }
            }
        });
        assert!(stop.is_reached_within(PATIENCE), "the point was not reached");
        let woken = engine.op("next").submit((), |()| ()).expect("the engine should be open").wait_timeout(SOON);
        stop.release();
        assert!(woken.is_ok(), "the worker sleeps although an operation is queued");
        thread.join().expect("nothing should panic");
        engine.wait_for_all().expect("nothing should fail");
    });
}

// ------------------------------------------------------------------------------------------ sleep and theft ----

/// A worker stopped while parking or waking holds no operations: the other worker, while it is awake, runs them all. If
/// both are asleep when an operation is pushed, the operation may be delayed but is not lost.
#[test]
fn a_worker_stopped_while_parking_or_waking_withholds_nothing() {
    for &point in Point::SLEEP {
        for seed in 0..SEEDS {
            watched(move || {
                println!("{point:?}, seed {seed}");
                let random = &mut Random(seed);
                let world = World::new(IdlePolicy::Park);
                let (stop, gate) = arm_on_worker(&world, point, seed % 2 == 0);
                let gates = Gates(vec![gate]);
                let mut pushed = Vec::new();
                if point == Point::SleepWoken {
                    // The worker must be woken first, and may run the operation for which it was woken before it parks
                    // again and stops.
                    eventually("the worker was woken", || {
                        pushed.push(world.engine.op("wake").submit((), |()| ()).expect("the engine should be open"));
                        stop.is_reached()
                    });
                }
                assert!(stop.is_reached_within(PATIENCE), "the point was not reached");
                pushed.extend((0..8).map(|_| world.push(BESIDE, 1, any_shape(random), |_| {})));
                drop(gates);
                pushed.iter_mut().for_each(|handle| ends(handle, "the awake worker should run all operations"));
                let mut late = world.push(BEHIND, 1, any_shape(random), |_| {});
                stop.release();
                ends(&mut late, "nothing should be lost");
                world.end();
            });
        }
    }
}

/// A worker stopped while stealing withholds at most the one operation returned by the steal. An awake worker runs the
/// rest of the batch.
#[test]
fn a_worker_stopped_while_stealing_withholds_at_most_one_operation() {
    const LOOT: usize = 16;
    for &point in Point::STEAL {
        for with_handle in [false, true] {
            watched(move || {
                println!("{point:?}");
                let world = World::new(IdlePolicy::default());
                let (stop, gate, meeting) = (Stop::new(point), Gate::new(), Meeting::new(2));
                let gates = Gates(vec![gate.clone()]);
                let handles = Arc::new(Mutex::new(Vec::new()));
                // One worker fills its deque and stays busy; the other steals.
                let (inside, filled, meet) = (Arc::clone(&world), Arc::clone(&handles), meeting.clone());
                let fill = move |()| {
                    // The other worker must not search before meeting this one.
                    meet.join();
                    let push = |_| inside.push(BESIDE, 1, [None; TOKENS], |_| {});
                    *lock(&filled) = (0..LOOT).map(push).collect();
                    gate.pass();
                };
                world.engine.op("fill").push((), fill).expect("the engine should be open");
                let (armed, meet) = (stop.clone(), meeting.clone());
                let arm = move |()| {
                    meet.join();
                    armed.arm(1);
                };
                if with_handle {
                    drop(world.engine.op("arm").submit((), arm).expect("the engine should be open"));
                } else {
                    world.engine.op("arm").push((), arm).expect("the engine should be open");
                }
                assert!(stop.is_reached_within(PATIENCE), "the point was not reached");
                let mut outside: Vec<_> = (0..8).map(|_| world.push(BESIDE, 2, writes(APART), |_| {})).collect();
                drop(gates);
                eventually("all but one have run", || {
                    let handles = lock(&handles);
                    handles.len() == LOOT && handles.iter().filter(|handle| !handle.is_done()).count() <= 1
                });
                outside
                    .iter_mut()
                    .for_each(|handle| ends(handle, "the awake worker should run operations from outside"));
                // The other worker may be asleep now: notifiers rely on the stopped worker, which still counts as
                // searching.
                let mut late = world.push(BEHIND, 2, writes(APART), |_| {});
                stop.release();
                ends(&mut late, "nothing should be lost");
                let mut handles = std::mem::take(&mut *lock(&handles));
                handles.iter_mut().for_each(|handle| ends(handle, "nothing should be lost"));
                world.end();
            });
        }
    }
}

// ---------------------------------------------------------------------------------------------------- units ----

/// A thread stopped under the lock of a resource's queues delays only operations that use the resource, and not one for
/// which such an operation waits.
#[test]
fn a_thread_stopped_while_taking_units_delays_only_users_of_the_resource() {
    for &point in Point::UNITS {
        watched(move || {
            let engine = Engine::builder().kind(EngineKind::Pooled).workers(2).pin(false).build().expect("an engine");
            let (two, other, group) = (engine.resource(2), engine.resource(1), engine.group().jobs(1));
            let (sender, receiver) = mpsc::channel::<Completion>();
            let begin = move |done| sender.send(done).expect("the test should keep the receiver");
            engine.op("holder").uses(&two, 1).push(completion(), begin).expect("the engine should be open");
            let done = receiver.recv().expect("the operation should start");
            let (held, value) = (engine.token(), engine.token());
            let gate = common::hold(&engine, &held);
            let (inside, before) = (engine.clone(), held.clone());
            let wait = move |()| inside.wait_for_var(&before).expect("nothing should fail");
            let mut awaited =
                engine.op("awaited").writes([&value]).submit((), wait).expect("the engine should be open");
            let (inside, before) = (engine.clone(), value.clone());
            let wait = move |()| inside.wait_for_var(&before).expect("nothing should fail");
            engine.op("user").uses(&two, 1).push((), wait).expect("the engine should be open");
            let waiting = |dump: &Dump| dump.ops().iter().filter(|op| op.state == OpState::WaitingInside).count();
            eventually("both wait", || waiting(&engine.dump()) == 2);

            let stop = Stop::new(point);
            let (armed, pusher, same) = (stop.clone(), engine.clone(), two.clone());
            let thread = thread::spawn(move || {
                armed.arm(1);
                pusher.op("next").uses(&same, 1).push((), |()| {}).expect("the engine should be open");
                done.complete();
            });
            assert!(stop.is_reached_within(PATIENCE), "the point was not reached");
            for builder in [engine.op("plain"), engine.op("uses").uses(&other, 1), group.op("in a group")] {
                let mut handle = builder.submit((), |()| ()).expect("the engine should be open");
                ends(&mut handle, "it does not use the resource");
            }
            assert!(!engine.dump().ops().is_empty());
            // By now, searches for deadlocks have found that a user of the resource waits for the other operation.
            thread::sleep(3 * MOMENT);
            gate.open();
            ends(&mut awaited, "it does not use the resource");
            let (pusher, same) = (engine.clone(), two.clone());
            let user = thread::spawn(move || pusher.op("user").uses(&same, 1).submit((), |()| ()));
            thread::sleep(MOMENT);
            stop.release();
            thread.join().expect("nothing should panic");
            user.join().expect("nothing should panic").expect("the engine should be open").wait().expect("it runs");
            engine.wait_for_all().expect("nothing should fail");
        });
    }
}

/// A thread stopped while it takes or leaves turns delays only operations that commute on the same variables, and no
/// push.
#[test]
fn a_thread_stopped_while_it_takes_turns_delays_only_who_commutes_there() {
    for &point in Point::TURNS {
        watched(move || {
            println!("{point:?}");
            let engine = Engine::builder().kind(EngineKind::Pooled).workers(2).pin(false).build().expect("an engine");
            let [left, right, other, plain] = [(); 4].map(|()| engine.token());
            let (sender, receiver) = mpsc::channel::<Completion>();
            let begin = move |done| sender.send(done).expect("the test should keep the receiver");
            engine.op("holder").commutes([&right]).push(completion(), begin).expect("the engine should be open");
            let done = receiver.recv().expect("the operation should start");

            let stop = Stop::new(point);
            let (armed, pusher, both) = (stop.clone(), engine.clone(), [left.clone(), right.clone()]);
            let thread = thread::spawn(move || {
                armed.arm(1);
                pusher.op("both").commutes(&both).push((), |()| {}).expect("the engine should be open");
                done.complete();
                Stop::disarm();
            });
            assert!(stop.is_reached_within(PATIENCE), "the point was not reached");
            let mut late: Vec<_> = [&left, &right]
                .map(|variable| engine.op("late").commutes([variable]).submit((), |()| ()))
                .map(|pushed| pushed.expect("the engine should be open"))
                .into();
            for builder in [engine.op("other").commutes([&other]), engine.op("plain").writes([&plain])] {
                let mut handle = builder.submit((), |()| ()).expect("the engine should be open");
                ends(&mut handle, "it does not commute there");
            }
            assert!(!engine.dump().ops().is_empty());
            stop.release();
            thread.join().expect("nothing should panic");
            late.iter_mut().for_each(|handle| ends(handle, "nothing should be lost"));
            engine.wait_for_all().expect("nothing should fail");
        });
    }
}

/// On a naive engine, an operation to which a push leaves a turn runs inside that push, since the function around the
/// push may wait for it.
#[test]
fn an_operation_to_which_a_push_leaves_a_turn_runs_at_once() {
    watched(|| {
        let engine = Engine::builder().kind(EngineKind::Naive).build().expect("an engine");
        let both = [engine.token(), engine.token()];
        let (sender, receiver) = mpsc::channel::<Completion>();
        let begin = move |done| sender.send(done).expect("the test should keep the receiver");
        engine.op("holder").commutes([&both[1]]).push(completion(), begin).expect("the engine should be open");
        let done = receiver.recv().expect("the operation should start");

        let (stop, gate) = (Stop::new(Point::TurnBeforeGivingWay), Gate::new());
        let (armed, pusher, gate_inside, left) = (stop.clone(), engine.clone(), gate.clone(), both[0].clone());
        let outer = move |cx: &OpContext<'_>| {
            armed.arm(1);
            cx.engine().op("both").commutes(&both).push((), |()| {}).expect("the engine should be open");
            Stop::disarm();
            gate_inside.pass();
        };
        let thread = thread::spawn(move || pusher.op("outer").push(cx(), outer).expect("the engine should be open"));
        assert!(stop.is_reached_within(PATIENCE), "the point was not reached");
        let late = engine.op("late").commutes([&left]).submit((), move |()| gate.open());
        stop.release();
        thread.join().expect("nothing should panic");
        done.complete();
        late.expect("the engine should be open").wait().expect("nothing should fail");
        engine.wait_for_all().expect("nothing should fail");
    });
}

/// A thread stopped in a push of a conflating operator delays neither the pushes of other threads nor any run but its
/// own. No argument is lost, and those of one thread are received in order.
#[test]
fn a_thread_stopped_in_a_conflating_push_delays_no_other_push() {
    const MOST: u64 = 2;
    for &point in Point::CONFLATE {
        watched(move || {
            println!("{point:?}");
            let world = World::new(IdlePolicy::default());
            let gates = Gates(vec![world.hold()]);
            let received = Arc::new(Mutex::new(Vec::new()));
            let adds = Arc::clone(&received);
            let description = world.engine.op("add").writes(&world.tokens[..VARIABLES]);
            let add =
                description.operator_newest(MOST as usize, (), move |(), value: (u8, u64)| lock(&adds).push(value));
            let add = add.expect("an operator");
            let push = |value| add.push(value).expect("the engine should be open");
            // Whether the push that is stopped replaces a value.
            let replaces = matches!(point, Point::ConflateLocked | Point::ConflateReplaced);
            let early = if replaces { MOST } else { 0 };
            (0..early).for_each(|number| _ = push((0, number)));

            let (stop, stopped) = (Stop::new(point), add.clone());
            let armed = stop.clone();
            let thread = thread::spawn(move || {
                armed.arm(1);
                let pushed = [1, 2].map(|number| stopped.push((1, number)));
                Stop::disarm();
                pushed.into_iter().for_each(|pushed| _ = pushed.expect("the engine should be open"));
            });
            assert!(stop.is_reached_within(PATIENCE), "the point was not reached");
            let late = early..early + 10;
            late.clone().for_each(|number| _ = push((0, number)));
            run_apart(&world, BESIDE);
            drop(gates);
            eventually("the last value is received", || lock(&received).contains(&(0, late.end - 1)));
            stop.release();
            thread.join().expect("the push panicked");
            world.end();
            let received = lock(&received);
            assert_eq!(received.len() as u64 + add.dropped(), late.end + 2);
            for thread in [0, 1] {
                let own: Vec<_> = received.iter().filter(|value| value.0 == thread).collect();
                assert!(own.is_sorted(), "the values were received in another order: {own:?}");
            }
        });
    }
}

/// Each point is in a list covered by the tests above, which fail if a point is not reached.
#[test]
fn every_point_belongs_to_a_test() {
    let lists = [
        Point::PUSH,
        Point::HELP,
        Point::COMPLETE,
        Point::INJECT,
        Point::PENDING,
        Point::SLEEP,
        Point::WAKE,
        Point::STEAL,
        Point::UNITS,
        Point::TURNS,
        Point::CONFLATE,
    ];
    let listed: HashSet<_> = lists.into_iter().flatten().collect();
    assert_eq!(listed.len(), Point::ALL.len());
    // No single test covers the whole list `PENDING`.
    assert_eq!(
        Point::PENDING,
        [Point::PendingBeforeEnter, Point::PendingEntered, Point::PendingBeforeLeave, Point::PendingLeft]
    );
}
