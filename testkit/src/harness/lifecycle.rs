//! The target `lifecycle`: engines that end while they are in use.
//!
//! A few threads push to a few engines and shut them down, drop their handles, delete variables and use completions
//! left by operations, in no particular order. Whatever the order:
//!
//! * every captured value, variable's value and result is dropped exactly once;
//! * a function never runs more often than its pushes were accepted, and runs exactly that often unless its engine is
//!   cancelled or one of the engine's operations fails;
//! * every handle returns the result of its operation, even after the end of the engine;
//! * acquiring variables succeeds, or the future returns the reason why not; a function is asked to stop only if its
//!   engine is cancelled or its deadline has passed;
//! * a push is refused only for a valid reason, and a push outside operations is always refused after a shutdown of its
//!   engine begun by the same thread. Some engines have a limit, and refuse pushes for lack of room only if they are
//!   also stopped;
//! * an operation fails because of its deadline only after the deadline, which some operations of some programs have;
//! * every operation completes, and every wait and shutdown returns;
//! * where an engine has a recorder, the trace proves that conflicting operations did not overlap.

use crate::shapes::*;
use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{
            AtomicBool, AtomicU32, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use raddle::{
    Completion, Device, Engine, EngineBuilder, OpContext, OpHandle, Operator, PushError, Shutdown, Var, WaitError,
    error::{Cause, NoAccess, ShutdownError},
    gpu::{SimulatedGpu, simulated::Clock},
    trace::Recorder,
};

use super::{Bytes, PLANNED, check_recorded, elsewhere, engine_plan, eventually_ok, observe, watched};
use crate::{Droppable, Drops, KINDS, block_on, lock, poll_once, program::Source};

// ------------------------------------------------------------------------------------------------- programs ----

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sync,
    Submit,
    /// The function uses its completion, then continues.
    Early,
    Elsewhere,
    /// The completion is left for the program's threads to use.
    Pocket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Well,
    Error,
    Panic,
    Lost,
}

#[derive(Clone, Copy, Debug)]
enum Inner {
    /// Pushes the operation of this number.
    Push(usize),
    Shutdown(Shutdown),
    Notify,
    Wait(usize, u64),
    Yield,
}

#[derive(Clone, Debug)]
struct Operation {
    engine: usize,
    reads: usize,
    writes: usize,
    kind: Kind,
    ends: Ends,
    property: Property,
    /// Whether the function owns a handle to its engine.
    keeps_engine: bool,
    inner: Vec<Inner>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(usize),
    RunOperator(usize),
    Shutdown(usize, Shutdown, Option<u64>),
    Notify(usize),
    /// Stops an engine within a time limit, then starts it again.
    StopAndStart(usize, u64),
    DropEngine(usize),
    DropVariable(usize),
    Delete(usize, usize),
    WaitForVar(usize, u64),
    WaitForAll(usize, u64),
    PollAll(usize),
    Get(usize),
    WaitForHandle(u64),
    DropHandle,
    UsePocket,
    /// Begins a shutdown with a future, then awaits the future or drops it after one poll.
    ShutdownAsync(usize, Shutdown, bool),
    /// Begins to acquire a variable, then awaits the future or drops it after one poll.
    Acquire(usize, bool),
}

#[derive(Clone, Copy, Debug)]
enum End {
    Shutdown(Shutdown),
    /// With a shutdown that does not wait, then by dropping the handle.
    Impatient(Shutdown),
    Drop,
    /// By awaiting a future.
    Async(Shutdown),
}

#[derive(Debug)]
struct Program {
    engines: Vec<(EngineBuilder, End)>,
    /// The engine of each variable.
    variables: Vec<usize>,
    operations: Vec<Operation>,
    threads: Vec<Vec<Step>>,
    /// Whether the main thread's handles to the engines are dropped while the program's threads run.
    lets_go: bool,
    /// Whether the operations' handles left over by the threads are waited for before the engines end.
    waits_first: bool,
    /// Whether the engines have limits.
    has_limits: bool,
    /// Whether some operations have deadlines.
    has_deadlines: bool,
}

impl Program {
    fn decode(bytes: &mut Bytes<'_>) -> Self {
        let engines = (0..1 + bytes.below(3)).map(|_| {
            let how = if bytes.one_in(2) { Shutdown::Drain } else { Shutdown::Cancel };
            let plan = engine_plan(bytes, &KINDS);
            let ends = [End::Shutdown(how), End::Drop, End::Impatient(how), End::Async(how)];
            (plan, ends[bytes.below_or(3, 1)])
        });
        let engines: Vec<_> = engines.collect();
        // Each engine has at least two variables.
        let count = 2 * engines.len() + bytes.below(3);
        let mut program = Self {
            variables: (0..count).map(|variable| variable % engines.len()).collect(),
            engines,
            operations: Vec::new(),
            threads: vec![Vec::new(); 1 + bytes.below(3)],
            lets_go: bytes.one_in(2),
            waits_first: bytes.one_in(2),
            has_limits: false,
            has_deadlines: false,
        };
        let (fails, mut steps) = (bytes.one_in(2), 0);
        while !bytes.is_exhausted() && steps < 100 {
            steps += 1;
            let step = program.step(bytes, fails);
            let thread = bytes.below(program.threads.len());
            program.threads[thread].push(step);
        }
        program
    }

    fn step(&mut self, bytes: &mut Bytes<'_>, fails: bool) -> Step {
        let engine = bytes.below(self.engines.len());
        let variable = bytes.below(self.variables.len());
        let how = if bytes.one_in(2) { Shutdown::Drain } else { Shutdown::Cancel };
        let micros = 20 * bytes.below(16) as u64;
        match bytes.below_or(48, 8) {
            0 => Step::Shutdown(engine, how, if bytes.one_in(4) { None } else { Some(micros) }),
            1 => Step::Notify(engine),
            2..=3 => Step::DropEngine(engine),
            4 => Step::DropVariable(variable),
            5 => Step::Delete(engine, variable),
            6 => Step::Delete(self.variables[variable], variable),
            7..=8 => Step::WaitForVar(variable, micros),
            9 => Step::WaitForAll(engine, micros),
            10 => Step::PollAll(engine),
            11 => Step::Get(variable),
            12..=13 => Step::WaitForHandle(micros),
            14 => Step::DropHandle,
            15..=18 => Step::UsePocket,
            19 => Step::StopAndStart(engine, micros),
            20..=23 => Step::RunOperator(engine),
            48..=49 => Step::ShutdownAsync(engine, how, bytes.one_in(2)),
            50..=53 => Step::Acquire(variable, bytes.one_in(2)),
            _ => Step::Push(self.operation(None, bytes, fails, 0)),
        }
    }

    /// Returns a variable of `engine`.
    fn variable(&self, engine: usize, bytes: &mut Bytes<'_>) -> usize {
        let own: Vec<_> = (0..self.variables.len()).filter(|&variable| self.variables[variable] == engine).collect();
        bytes.pick(&own)
    }

    /// Returns whether a thread stops `engine`.
    fn stops(&self, engine: usize) -> bool {
        let mut steps = self.threads.iter().flatten();
        steps.any(|step| matches!(step, Step::StopAndStart(number, _) if *number == engine))
    }

    fn operation(&mut self, engine: Option<usize>, bytes: &mut Bytes<'_>, fails: bool, depth: usize) -> usize {
        let is_inner = engine.is_some();
        let engine = engine.unwrap_or_else(|| bytes.below(self.engines.len()));
        let (reads, writes) = (self.variable(engine, bytes), self.variable(engine, bytes));
        // A few operations may read another engine's variable.
        let reads = if !is_inner && bytes.below(32) == 31 { bytes.below(self.variables.len()) } else { reads };
        let kind = bytes.pick(&[
            Kind::Sync,
            Kind::Sync,
            Kind::Submit,
            Kind::Submit,
            Kind::Early,
            Kind::Elsewhere,
            Kind::Pocket,
        ]);
        let ends = match bytes.below(16) {
            0 if fails => Ends::Error,
            1 if fails => Ends::Panic,
            2 if fails => Ends::Lost,
            _ => Ends::Well,
        };
        let property = bytes.pick(&[
            Property::Normal,
            Property::Normal,
            Property::CopyToGpu,
            Property::CpuPrioritized,
            Property::Async,
            Property::DeleteVar,
        ]);
        // Other kinds of operation may drop the handle outside the operation, where dropping the engine's last handle
        // may wait for other threads.
        let keeps_engine = matches!(kind, Kind::Sync | Kind::Submit) && bytes.one_in(6);
        let id = self.operations.len();
        let inner = Vec::new();
        self.operations.push(Operation { engine, reads, writes, kind, ends, property, keeps_engine, inner });
        let count = if kind == Kind::Submit || depth > 2 || bytes.is_exhausted() { 0 } else { bytes.below(3) };
        for _ in 0..count {
            let inner = match bytes.below(16) {
                0 => Inner::Shutdown(if bytes.one_in(2) { Shutdown::Drain } else { Shutdown::Cancel }),
                1 => Inner::Notify,
                2..=4 => Inner::Wait(self.variable(engine, bytes), 20 * bytes.below(16) as u64),
                5..=7 => Inner::Yield,
                _ => Inner::Push(self.operation(Some(engine), bytes, fails, depth + 1)),
            };
            self.operations[id].inner.push(inner);
        }
        id
    }
}

// ---------------------------------------------------------------------------------------------------- the run ----

#[derive(Default)]
struct Record {
    accepted: AtomicU32,
    runs: AtomicU32,
    reported: AtomicU32,
    /// Set before the push.
    deadline: OnceLock<Instant>,
}

/// The time between an operation's push and its deadline: none, some of the time for which the operations before it
/// run, or far more.
fn time_to_deadline(id: usize) -> Option<Duration> {
    let micros = [None, Some(0), Some(50), Some(400), Some(10_000_000)];
    micros[id % micros.len()].map(Duration::from_micros)
}

#[derive(Default)]
struct State {
    /// Whether a thread has begun or is about to begin a shutdown.
    begun: AtomicBool,
    /// Whether a shutdown that has begun or is about to begin cancels the pending operations.
    cancelled: AtomicBool,
    operator_accepted: AtomicU32,
    operator_runs: AtomicU32,
}

struct World {
    program: Program,
    records: Vec<Record>,
    engines: Vec<State>,
    /// For each variable, whether a thread has deleted it or is about to delete it.
    deleted: Vec<AtomicBool>,
    /// For each variable, the number of deletion functions accepted, and the number of those that ran.
    deletions: Vec<(AtomicU32, AtomicU32)>,
    left_completions: Mutex<Vec<(Completion, Ends)>>,
    violations: Mutex<Vec<String>>,
    drops: Drops,
    at: Vec<AtomicUsize>,
    phase: Mutex<String>,
    /// The recorder of each engine.
    recorders: Vec<Option<Recorder>>,
}

/// The handles held by a thread. An [`Engine`] is a handle too.
#[derive(Clone)]
struct Hands {
    engines: Vec<Option<Engine>>,
    variables: Vec<Option<Var<Droppable>>>,
    operators: Vec<Operator>,
}

type Submitted = (usize, OpHandle<Droppable>);

fn use_completion(done: Completion, ends: Ends) {
    match ends {
        Ends::Well | Ends::Panic => done.complete(),
        Ends::Error => done.fail(PLANNED),
        Ends::Lost => drop(done),
    }
}

impl World {
    fn violation(&self, what: String) {
        lock(&self.violations).push(what);
    }

    fn notes_shutdown(&self, engine: usize, how: Shutdown) {
        if how == Shutdown::Cancel {
            self.engines[engine].cancelled.store(true, SeqCst);
        }
        self.engines[engine].begun.store(true, SeqCst);
    }

    /// Runs the part of an operation's function common to all kinds.
    fn body(self: &Arc<Self>, id: usize, cx: Option<(&OpContext<'_>, &Hands)>) {
        let operation = &self.program.operations[id];
        self.records[id].runs.fetch_add(1, SeqCst);
        let Some((cx, hands)) = cx else { return };
        // `cancelled` is set before a cancellation begins.
        let may_stop = || {
            let deadline = self.records[id].deadline.get();
            self.engines[operation.engine].cancelled.load(SeqCst)
                || deadline.is_some_and(|time| *time <= Instant::now())
        };
        if cx.is_cancelled() && !may_stop() {
            self.violation(format!("operation {id} was asked to stop, but its engine cancels nothing"));
        }
        let engine = cx.engine();
        for &inner in &operation.inner {
            match inner {
                Inner::Yield => thread::yield_now(),
                Inner::Notify => {
                    self.notes_shutdown(operation.engine, Shutdown::Cancel);
                    engine.notify_shutdown();
                    // Functions whose completions have been used are no longer asked to stop; those of clean-ups never
                    // are.
                    let may_go_on = operation.kind == Kind::Early || operation.property == Property::DeleteVar;
                    if !may_go_on && !cx.is_cancelled() {
                        self.violation(format!("operation {id} was not asked to stop"));
                    }
                }
                Inner::Shutdown(how) => {
                    self.notes_shutdown(operation.engine, how);
                    let result = engine.shutdown(how, Some(Duration::ZERO));
                    // Once its completion has been used, an operation is complete and any result is possible.
                    let fine = operation.kind != Kind::Sync || result == Err(ShutdownError::InsideOperation);
                    if !fine {
                        self.violation(format!("a shutdown inside operation {id} returned {result:?}"));
                    }
                }
                Inner::Wait(variable, micros) => {
                    if let Some(variable) = &hands.variables[variable] {
                        let limit = Duration::from_micros(micros);
                        // Any result is possible, but it must be returned within a bounded time.
                        let _ = engine.wait_for_var_timeout(variable, limit);
                    }
                }
                Inner::Push(child) => {
                    let result = self.push(child, &engine, hands);
                    let state = &self.engines[operation.engine];
                    // Once the operation's completion has been used, its function is no longer inside an operation.
                    let is_over = operation.kind == Kind::Early && state.begun.load(SeqCst);
                    let excuse = state.cancelled.load(SeqCst) || is_over;
                    if result.is_err_and(|refusal| refusal == PushError::ShutDown) && !excuse {
                        self.violation(format!("a push by operation {id} was refused"));
                    }
                }
            }
        }
    }

    fn end(&self, id: usize) -> Result<(), String> {
        match self.program.operations[id].ends {
            Ends::Well => Ok(()),
            Ends::Error | Ends::Lost => Err(PLANNED.to_owned()),
            Ends::Panic => panic!("as planned: in an operation"),
        }
    }

    fn push(self: &Arc<Self>, id: usize, engine: &Engine, hands: &Hands) -> Result<Option<Submitted>, PushError> {
        let operation = &self.program.operations[id];
        let (Some(reads), Some(writes)) = (&hands.variables[operation.reads], &hands.variables[operation.writes])
        else {
            return Ok(None);
        };
        let (world, drop_once) = (Arc::clone(self), self.drops.make());
        // The function captures no engine handle other than `kept`.
        let mut inside = hands.clone();
        inside.engines.clear();
        let kept = operation.keeps_engine.then(|| hands.engines.get(operation.engine).cloned()).flatten();
        let builder = engine.op("").kind(operation.property);
        // Copies are operations of the device: a threaded engine runs them on the thread of one of the device's lanes.
        let builder = if operation.property == Property::CopyToGpu { builder.on(Device::Gpu(0)) } else { builder };
        let builder = match time_to_deadline(id).filter(|_| self.program.has_deadlines) {
            Some(time) => builder.deadline(*self.records[id].deadline.get_or_init(|| Instant::now() + time)),
            None => builder,
        };
        let result = match operation.kind {
            Kind::Submit => {
                let body = move |drop_once: Droppable| {
                    world.body(id, None);
                    drop(kept);
                    drop_once.touch();
                    world.end(id).map(|()| drop_once)
                };
                let handle = if operation.reads == operation.writes {
                    builder.submit_any(writes.write(), move |value| {
                        value.touch();
                        body(drop_once)
                    })
                } else {
                    builder.submit_any((reads.read(), writes.write()), move |(from, to)| {
                        *to = from.clone();
                        body(drop_once)
                    })
                };
                handle.map(|handle| Some((id, handle)))
            }
            Kind::Sync => {
                let pushed = builder.reads([reads.token()]).writes([writes.token()]).push_sync(move |cx| {
                    drop_once.touch();
                    world.body(id, Some((cx, &inside)));
                    drop(kept);
                    world.end(id)
                });
                pushed.map(|()| None)
            }
            Kind::Early | Kind::Elsewhere | Kind::Pocket => {
                let pushed = builder.reads([reads.token()]).writes([writes.token()]).push_async_any(
                    raddle::cx(),
                    move |cx, done| {
                        let operation = &world.program.operations[id];
                        let (ends, kind) = (operation.ends, operation.kind);
                        drop_once.touch();
                        if ends == Ends::Panic {
                            world.body(id, None);
                            return world.end(id);
                        }
                        if kind == Kind::Early {
                            use_completion(done, ends);
                            world.body(id, Some((cx, &inside)));
                            return Ok(());
                        }
                        world.body(id, Some((cx, &inside)));
                        // `drop_once` is dropped first, as the program may end as soon as the completion is used.
                        drop(drop_once);
                        if kind == Kind::Elsewhere {
                            elsewhere(move || use_completion(done, ends));
                        } else {
                            lock(&world.left_completions).push((done, ends));
                        }
                        Ok(())
                    },
                );
                pushed.map(|()| None)
            }
        };
        if result.is_ok() {
            self.records[id].accepted.fetch_add(1, SeqCst);
        }
        let deleted = |variable: usize| self.deleted[variable].load(SeqCst);
        let fine = match &result {
            Err(PushError::Variable(NoAccess::Deleted, _)) => deleted(operation.reads) || deleted(operation.writes),
            Err(PushError::Variable(NoAccess::Foreign, _)) => {
                self.program.variables[operation.reads] != operation.engine
            }
            Err(PushError::ShutDown) => self.engines[operation.engine].begun.load(SeqCst),
            Err(PushError::Full) => self.program.has_limits && self.program.stops(operation.engine),
            Err(_) => false,
            Ok(_) => self.program.variables[operation.reads] == operation.engine,
        };
        if !fine {
            self.violation(format!("the push of operation {id} returned {:?}", result.as_ref().map(drop)));
        }
        result
    }
}

/// The state of one of a program's threads.
struct Actor {
    world: Arc<World>,
    number: usize,
    hands: Hands,
    handles: Vec<Submitted>,
    /// For each engine, whether this thread has begun a shutdown.
    has_shut: Vec<bool>,
}

impl Actor {
    fn run(mut self) -> Vec<Submitted> {
        let world = Arc::clone(&self.world);
        for (index, &step) in world.program.threads[self.number].iter().enumerate() {
            // Relaxed: the value is used only in messages.
            world.at[self.number].store(index, Relaxed);
            self.step(step);
        }
        // Relaxed: the value is used only in messages.
        world.at[self.number].store(usize::MAX, Relaxed);
        self.handles
    }

    fn step(&mut self, step: Step) {
        let world = Arc::clone(&self.world);
        let micros = Duration::from_micros;
        match step {
            Step::Push(id) => {
                let number = world.program.operations[id].engine;
                let Some(engine) = self.hands.engines[number].clone() else { return };
                if let Ok(handle) = world.push(id, &engine, &self.hands) {
                    // If the thread has dropped its handles to the variables, nothing was pushed.
                    if world.records[id].accepted.load(SeqCst) > 0 && self.has_shut[number] {
                        world.violation(format!("operation {id} was accepted after a shutdown"));
                    }
                    self.handles.extend(handle);
                }
            }
            Step::RunOperator(engine) => {
                let state = &world.engines[engine];
                match self.hands.operators[engine].push() {
                    Ok(()) if self.has_shut[engine] => {
                        world.violation("an operator was pushed after a shutdown".to_owned());
                    }
                    Ok(()) => drop(state.operator_accepted.fetch_add(1, SeqCst)),
                    Err(_) => {}
                }
            }
            Step::Shutdown(number, how, limit) => {
                if let Some(engine) = &self.hands.engines[number] {
                    world.notes_shutdown(number, how);
                    let result = engine.shutdown(how, limit.map(micros));
                    self.has_shut[number] = true;
                    let late = Err(ShutdownError::TimedOut);
                    let left = matches!(result, Err(ShutdownError::ThreadsLeft(_)));
                    if result.is_err() && (limit.is_none() || result != late && !left) {
                        world.violation(format!("a shutdown of engine {number} returned {result:?}"));
                    }
                }
            }
            Step::ShutdownAsync(number, how, is_awaited) => {
                if let Some(engine) = &self.hands.engines[number] {
                    let variable = world.program.variables.iter().position(|engine| *engine == number);
                    let variable = variable.and_then(|variable| self.hands.variables[variable].as_ref());
                    let last = engine.op("last").writes(variable.map(Var::token)).submit((), |()| ());
                    world.notes_shutdown(number, how);
                    let mut ending = Box::pin(engine.shutdown_async(how));
                    self.has_shut[number] = true;
                    let result = if is_awaited { Poll::Ready(block_on(ending)) } else { poll_once(&mut ending) };
                    match result {
                        Poll::Ready(Ok(())) if last.is_ok_and(|last| !last.is_done()) => {
                            world.violation(format!("an asynchronous shutdown of engine {number} ended early"));
                        }
                        Poll::Ready(Err(error)) => {
                            world.violation(format!("an asynchronous shutdown of engine {number} returned {error:?}"));
                        }
                        _ => {}
                    }
                }
            }
            Step::Acquire(variable, is_awaited) => {
                let number = world.program.variables[variable];
                if let (Some(engine), Some(token)) = (&self.hands.engines[number], &self.hands.variables[variable]) {
                    let mut acquire = engine.acquire(token.write());
                    let result = if is_awaited { Poll::Ready(block_on(acquire)) } else { poll_once(&mut acquire) };
                    match result {
                        Poll::Ready(Ok(_)) | Poll::Pending if self.has_shut[number] => {
                            world.violation(format!("variable {variable} was acquired after a shutdown"));
                        }
                        Poll::Ready(Ok(value)) => value.touch(),
                        Poll::Pending => {}
                        Poll::Ready(Err(WaitError::Refused(PushError::ShutDown)))
                            if world.engines[number].begun.load(SeqCst) => {}
                        Poll::Ready(Err(WaitError::Refused(PushError::Variable(NoAccess::Deleted, _))))
                            if world.deleted[variable].load(SeqCst) => {}
                        Poll::Ready(Err(error)) => self.check_wait(number, Err(error)),
                    }
                }
            }
            Step::Notify(number) => {
                if let Some(engine) = &self.hands.engines[number] {
                    world.notes_shutdown(number, Shutdown::Cancel);
                    engine.notify_shutdown();
                    self.has_shut[number] = true;
                }
            }
            Step::StopAndStart(number, limit) => {
                if let Some(engine) = &self.hands.engines[number] {
                    match engine.stop(Some(micros(limit))) {
                        Ok(()) | Err(ShutdownError::TimedOut | ShutdownError::ThreadsLeft(_)) => {}
                        Err(error) => world.violation(format!("a stop of engine {number} returned {error:?}")),
                    }
                    if let Err(error) = engine.start() {
                        world.violation(format!("a start of engine {number} returned {error:?}"));
                    }
                }
            }
            Step::DropEngine(number) => {
                // If this is the engine's last handle, dropping it begins a shutdown.
                world.engines[number].begun.store(true, SeqCst);
                self.hands.engines[number] = None;
            }
            Step::DropVariable(variable) => self.hands.variables[variable] = None,
            Step::Delete(number, variable) => {
                if let (Some(engine), Some(token)) = (&self.hands.engines[number], &self.hands.variables[variable]) {
                    world.deleted[variable].store(true, SeqCst);
                    let (own, drop_once) = (Arc::clone(&world), world.drops.make());
                    let result = engine.delete_variable(token, move |_| {
                        drop_once.touch();
                        own.deletions[variable].1.fetch_add(1, SeqCst);
                    });
                    let is_own = world.program.variables[variable] == number;
                    match result {
                        Ok(()) if is_own => drop(world.deletions[variable].0.fetch_add(1, SeqCst)),
                        Err(PushError::Variable(NoAccess::Foreign, _)) if !is_own => {}
                        Err(PushError::Variable(NoAccess::Deleted, _)) if is_own => {}
                        other => world.violation(format!("a deletion of variable {variable} returned {other:?}")),
                    }
                }
            }
            Step::WaitForVar(variable, limit) => {
                let number = world.program.variables[variable];
                if let (Some(engine), Some(token)) = (&self.hands.engines[number], &self.hands.variables[variable]) {
                    self.check_wait(number, engine.wait_for_var_timeout(token, micros(limit)));
                }
            }
            Step::WaitForAll(number, limit) => {
                if let Some(engine) = &self.hands.engines[number] {
                    self.check_wait(number, engine.wait_for_all_timeout(micros(limit)));
                }
            }
            Step::PollAll(number) => {
                if let Some(engine) = &self.hands.engines[number] {
                    // The future is dropped immediately, whatever its state.
                    let _ = poll_once(&mut Box::pin(engine.wait_for_all_async()));
                }
            }
            Step::Get(variable) => {
                let number = world.program.variables[variable];
                if let (Some(engine), Some(token)) = (&self.hands.engines[number], &self.hands.variables[variable]) {
                    let result = engine.get(token).map(|value| value.touch());
                    match result {
                        Err(WaitError::Refused(PushError::Variable(NoAccess::Deleted, _)))
                            if world.deleted[variable].load(SeqCst) => {}
                        result => self.check_wait(number, result),
                    }
                }
            }
            Step::WaitForHandle(limit) => {
                if let Some((id, mut handle)) = self.handles.pop() {
                    match handle.wait_timeout(micros(limit)) {
                        Err(WaitError::TimedOut) => self.handles.push((id, handle)),
                        result => world.tell(id, result),
                    }
                }
            }
            Step::DropHandle => drop(self.handles.pop()),
            Step::UsePocket => {
                let taken = lock(&world.left_completions).pop();
                if let Some((done, ends)) = taken {
                    use_completion(done, ends);
                }
            }
        }
    }

    fn check_wait(&self, engine: usize, result: Result<(), WaitError>) {
        match result {
            Ok(()) | Err(WaitError::TimedOut) => {}
            Err(WaitError::Failed(failure)) => self.world.check_cause(engine, failure.cause()),
            Err(error) => self.world.violation(format!("a wait on engine {engine} returned: {error}")),
        }
    }
}

impl World {
    /// Returns whether an engine's operations fail on purpose.
    fn fails(&self, engine: usize) -> bool {
        self.program.operations.iter().any(|operation| operation.engine == engine && operation.ends != Ends::Well)
    }

    /// Returns whether the deadline of one of an engine's operations has passed.
    fn is_late(&self, engine: usize) -> bool {
        let records = self.records.iter().zip(&self.program.operations);
        let mut deadlines =
            records.filter(|(_, operation)| operation.engine == engine).filter_map(|(record, _)| record.deadline.get());
        deadlines.any(|deadline| *deadline <= Instant::now())
    }

    fn check_cause(&self, engine: usize, cause: &Cause) {
        let fine = match cause {
            Cause::Cancelled => self.engines[engine].cancelled.load(SeqCst),
            Cause::Error(error) => self.fails(engine) && error.to_string() == PLANNED,
            Cause::Panic(Some(message)) => self.fails(engine) && message.starts_with(PLANNED),
            Cause::LostCompletion => self.fails(engine),
            Cause::DeadlinePassed => self.is_late(engine),
            _ => false,
        };
        if !fine {
            self.violation(format!("an operation of engine {engine} failed: {cause}"));
        }
    }

    /// Checks a result returned by a handle.
    fn tell(&self, id: usize, result: Result<Droppable, WaitError>) {
        let operation = &self.program.operations[id];
        let ran = self.records[id].runs.load(SeqCst) == 1 && operation.ends == Ends::Well;
        match result {
            Ok(value) if ran => value.touch(),
            Err(WaitError::Failed(failure)) if !ran => self.check_cause(operation.engine, failure.cause()),
            other => {
                let other = other.map(drop);
                self.violation(format!("operation {id} succeeded: {ran}, but its handle returned {other:?}"));
            }
        }
        self.records[id].reported.fetch_add(1, SeqCst);
    }

    fn enter(&self, phase: &str) {
        phase.clone_into(&mut lock(&self.phase));
    }

    fn position(&self) -> String {
        let records = self.records.iter().map(|record| {
            let load = |count: &AtomicU32| count.load(SeqCst);
            (load(&record.accepted), load(&record.runs), load(&record.reported))
        });
        let engines = self.engines.iter().map(|state| (state.begun.load(SeqCst), state.cancelled.load(SeqCst)));
        format!(
            "the main thread: {}\nthe others are at steps {:?}\noperations (accepted, run, reported): {:?}\nengines \
             (shutting down, cancelled): {:?}\nvalues: {} created, {} dropped\n{:#?}",
            *lock(&self.phase),
            self.at,
            records.collect::<Vec<_>>(),
            engines.collect::<Vec<_>>(),
            self.drops.made(),
            self.drops.dropped(),
            self.program
        )
    }

    /// Uses one of the completions left by operations, if any, then sleeps for a moment.
    fn use_one_completion(&self) {
        let taken = lock(&self.left_completions).pop();
        if let Some((done, ends)) = taken {
            use_completion(done, ends);
        }
        thread::sleep(Duration::from_micros(100));
    }

    /// Checks the final state, after all operations have ended.
    fn check(&self) -> Result<(), String> {
        for (id, record) in self.records.iter().enumerate() {
            let (accepted, runs) = (record.accepted.load(SeqCst), record.runs.load(SeqCst));
            let engine = self.program.operations[id].engine;
            let all_run = !self.engines[engine].cancelled.load(SeqCst) && !self.fails(engine) && !self.is_late(engine);
            if runs > accepted || all_run && runs < accepted {
                return Err(format!("operation {id} was accepted {accepted} times and ran {runs} times"));
            }
        }
        for (engine, state) in self.engines.iter().enumerate() {
            let (accepted, runs) = (state.operator_accepted.load(SeqCst), state.operator_runs.load(SeqCst));
            let all_run = !state.cancelled.load(SeqCst) && !self.fails(engine) && !self.is_late(engine);
            if runs > accepted || all_run && runs < accepted {
                return Err(format!("operator {engine} was accepted {accepted} times and ran {runs} times"));
            }
        }
        for (variable, (accepted, runs)) in self.deletions.iter().enumerate() {
            let (accepted, runs) = (accepted.load(SeqCst), runs.load(SeqCst));
            if accepted != runs || accepted > 1 {
                return Err(format!("deletion of variable {variable}: accepted {accepted} times, ran {runs} times"));
            }
        }
        self.drops.check()
    }
}

fn make(world: &Arc<World>) -> Result<Hands, String> {
    let mut hands = Hands { engines: Vec::new(), variables: Vec::new(), operators: Vec::new() };
    let mut engines = Vec::new();
    for (plan, _) in &world.program.engines {
        let gpu = SimulatedGpu::builder().clock(Clock::Instantly).seed(world.program.operations.len() as u64).build();
        engines.push(plan.clone().gpu(gpu).build().map_err(|error| error.to_string())?);
    }
    for &engine in &world.program.variables {
        hands.variables.push(Some(engines[engine].var(world.drops.make())));
    }
    for (number, engine) in engines.iter().enumerate() {
        let (own, drop_once) = (Arc::clone(world), world.drops.make());
        // The operator uses the engine's first two variables.
        let all = world.program.variables.iter().zip(&hands.variables);
        let of_engine: Vec<_> = all.filter(|(own, _)| **own == number).filter_map(|(_, var)| var.as_ref()).collect();
        let operator =
            engine.op("operator").operator((of_engine[0].read(), of_engine[1].write()), move |(from, to)| {
                drop_once.touch();
                own.engines[number].operator_runs.fetch_add(1, SeqCst);
                *to = from.clone();
            });
        hands.operators.push(operator.map_err(|error| error.to_string())?);
    }
    hands.engines = engines.into_iter().map(Some).collect();
    Ok(hands)
}

fn end_engines(world: &Arc<World>, engines: Vec<Option<Engine>>) {
    for (number, (engine, (_, end))) in engines.into_iter().zip(&world.program.engines).enumerate() {
        let Some(engine) = engine else { continue };
        world.enter(&format!("ends engine {number}, {end:?}"));
        match *end {
            End::Shutdown(how) => {
                world.notes_shutdown(number, how);
                if let Err(error) = engine.shutdown(how, None) {
                    world.violation(format!("the last shutdown of engine {number} returned: {error}"));
                }
            }
            End::Impatient(how) => {
                world.notes_shutdown(number, how);
                // This shutdown does not wait; the drop of the last handle does.
                let _ = engine.shutdown(how, Some(Duration::ZERO));
            }
            End::Drop => world.engines[number].begun.store(true, SeqCst),
            End::Async(how) => {
                world.notes_shutdown(number, how);
                if let Err(error) = block_on(engine.shutdown_async(how)) {
                    world.violation(format!("the last shutdown of engine {number} returned: {error}"));
                }
            }
        }
        drop(engine);
    }
}

pub fn lifecycle(data: &[u8]) {
    watched("lifecycle", data, |watch| {
        let mut program = Program::decode(&mut Bytes::new(data));
        // The input's length chooses limits and deadlines, so that inputs that predate them keep their meaning.
        program.has_limits = data.len() % 3 == 1;
        program.has_deadlines = data.len() % 5 == 3;
        if program.has_limits {
            let limit = 1 + data.len() / 3 % 5;
            program.engines.iter_mut().for_each(|(plan, _)| *plan = plan.clone().max_pending(limit));
        }
        let observed = program.engines.iter_mut().map(|(plan, _)| {
            let (observed, recorder) = observe(plan.clone(), data);
            *plan = observed;
            recorder
        });
        let recorders = observed.collect();
        let world = Arc::new(World {
            records: program.operations.iter().map(|_| Record::default()).collect(),
            engines: program.engines.iter().map(|_| State::default()).collect(),
            deleted: program.variables.iter().map(|_| AtomicBool::new(false)).collect(),
            deletions: program.variables.iter().map(|_| Default::default()).collect(),
            left_completions: Mutex::default(),
            violations: Mutex::default(),
            drops: Drops::new(),
            at: program.threads.iter().map(|_| AtomicUsize::new(0)).collect(),
            phase: Mutex::default(),
            recorders,
            program,
        });
        let shown = Arc::clone(&world);
        watch.explain(move || shown.position());
        run(&world).map_err(|error| format!("{error}\n{}", world.position()))
    });
}

fn run(world: &Arc<World>) -> Result<(), String> {
    let mut hands = make(world)?;
    let threads: Vec<_> = (0..world.program.threads.len())
        .map(|number| {
            let (world, hands) = (Arc::clone(world), hands.clone());
            let has_shut = vec![false; hands.engines.len()];
            thread::spawn(move || Actor { world, number, hands, handles: Vec::new(), has_shut }.run())
        })
        .collect();
    let engines = if world.program.lets_go { std::mem::take(&mut hands.engines) } else { Vec::new() };
    if world.program.lets_go {
        // From here on, each engine ends when its last handle is dropped, possibly inside an operation.
        world.engines.iter().for_each(|state| state.begun.store(true, SeqCst));
    }
    // Another thread drops the handles: the drop may wait for operations whose completions this thread has yet to use.
    let letting_go = thread::spawn(move || drop(engines));
    world.enter("waits for the threads");
    while !letting_go.is_finished() || !threads.iter().all(thread::JoinHandle::is_finished) {
        world.use_one_completion();
    }
    letting_go.join().map_err(|_| "the drop of an engine panicked")?;
    let mut handles: Vec<Submitted> = Vec::new();
    for thread in threads {
        handles.extend(thread.join().map_err(|_| "a thread of the program panicked")?);
    }
    let Hands { engines, variables, operators } = hands;
    // The engines end on another thread while this thread uses the completions left by operations.
    let own = Arc::clone(world);
    let waits_first = world.program.waits_first;
    let ending = thread::spawn(move || {
        let tell = |handles: &mut Vec<Submitted>| {
            own.enter("waits for handles");
            for (id, handle) in handles.drain(..) {
                own.tell(id, handle.wait());
            }
        };
        if waits_first {
            tell(&mut handles);
        }
        end_engines(&own, engines);
        tell(&mut handles);
    });
    while !ending.is_finished() || !lock(&world.left_completions).is_empty() {
        world.use_one_completion();
    }
    ending.join().map_err(|_| "the thread that ends the engines panicked")?;

    world.enter("uses what outlives the engines");
    for (number, (operator, (_, end))) in operators.iter().zip(&world.program.engines).enumerate() {
        // An operation that owns a handle to its engine keeps the engine open unless the engine was shut down.
        let is_shut = !world.program.lets_go && !matches!(end, End::Drop);
        match operator.push() {
            Ok(()) if is_shut => world.violation(format!("operator {number} was pushed after the end of its engine")),
            Ok(()) => drop(world.engines[number].operator_accepted.fetch_add(1, SeqCst)),
            Err(_) => {}
        }
    }
    drop((operators, variables));
    world.enter("waits until everything is dropped");
    // If the last handle was dropped inside an operation, the engine ends in the background.
    eventually_ok(|| world.check().inspect_err(|_| world.use_one_completion()))?;
    world.recorders.iter().try_for_each(|recorder| check_recorded(recorder.as_ref()))?;
    match lock(&world.violations).first() {
        None => Ok(()),
        Some(violation) => Err(violation.clone()),
    }
}
