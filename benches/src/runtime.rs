//! raddle and its alternatives for Rust programs, behind one interface.
//!
//! Only raddle infers dependencies from the variables that an operation reads and mutates. For the others, the pushing
//! thread tracks each variable's last writer and subsequent readers, the least that users of these runtimes would have
//! to write. The tracking is timed, as is the construction of graphs.

use std::{
    hint::black_box,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::shapes::*;
use raddle::{Accesses, Completion, Engine, EngineKind, OpContext, Operator, PushError, Token, Var, completion};
use tokio::sync::{mpsc, watch};

use crate::kernel::Work;

#[cfg(feature = "dagrs")]
mod dagrs_graph;
#[cfg(feature = "dagrs")]
pub use dagrs_graph::Dagrs;

/// The first argument of a program that measures a backlog: see [`Suite::backlog`](crate::workload::Suite::backlog).
pub const BACKLOG: &str = "--backlog";

/// A runtime for operations that read and mutate variables.
pub trait Runtime: Send + Sized {
    /// Returns the runtime's name in tables.
    fn name(&self) -> &str;

    /// Returns whether each operation runs inside its push.
    fn is_serial(&self) -> bool {
        false
    }

    /// Replaces the variables with `count` new ones. Not timed.
    fn make_variables(&mut self, count: usize);

    /// Pushes an operation.
    fn submit(&mut self, work: Work, reads: &[u32], write: Option<u32>);

    /// Waits for all operations, starting them first if the runtime needs the whole graph in advance.
    fn wait(&mut self);

    /// Returns how many of the requested operations to push in one run.
    fn at_most(&self, wanted: usize) -> usize {
        wanted
    }

    /// Creates an operator that mutates the first variable. Returns `false` if the runtime has no operators.
    fn describe_operator(&mut self) -> bool {
        false
    }

    /// Pushes a run of the operator.
    fn push_operator(&mut self) {}

    /// Returns a runtime with its own variables, on a new engine or on the same one. Returns `None` if there are no
    /// engines.
    fn another(&self, _new_engine: bool) -> Option<Self> {
        None
    }

    /// Returns [`Suite::backlog`](crate::workload::Suite::backlog).
    fn backlog(&self) -> Option<Command> {
        None
    }
}

// --------------------------------------------------------------------------------------------------------- raddle ----

/// raddle itself.
#[derive(Debug)]
pub struct Raddle {
    name: String,
    engine: Engine,
    variables: Vec<Token>,
    operator: Option<Operator>,
}

impl Raddle {
    /// Creates an engine of a kind, with default settings.
    ///
    /// # Panics
    /// If the engine cannot be created.
    #[must_use]
    pub fn new(kind: EngineKind) -> Self {
        Self::with(Engine::builder().kind(kind).build().expect("an engine"))
    }

    /// Wraps an existing engine.
    #[must_use]
    pub fn with(engine: Engine) -> Self {
        let kind = engine.kind();
        let name = if kind == EngineKind::default() { "raddle".into() } else { format!("raddle, `{kind}`") };
        Self { name, engine, variables: vec![], operator: None }
    }

    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Holds back all further operations on the variables until the returned completion is used.
    ///
    /// # Panics
    /// If the engine is shut down.
    pub fn hold(&self) -> Completion {
        let (send, begun) = std::sync::mpsc::channel();
        let gate = self.engine.op("gate").writes(&self.variables);
        gate.push(completion(), move |done| send.send(done).expect("the pushing thread should wait")).expect("push");
        begun.recv().expect("the gate should begin")
    }
}

/// The form in which an operation names four or more typed variables that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Shape {
    Tuple,
    Array,
    Vec,
}

/// raddle with typed variables instead of tokens.
#[derive(Debug)]
pub struct RaddleTyped {
    engine: Engine,
    variables: Vec<Var<u64>>,
    operator: Option<Operator>,
    shape: Shape,
}

impl RaddleTyped {
    /// Wraps an existing engine, to compare tokens and typed variables on the same workers.
    #[must_use]
    pub fn with(engine: Engine, shape: Shape) -> Self {
        Self { engine, variables: vec![], operator: None, shape }
    }

    // In functions of their own, as the compiler would otherwise also change the code of the other arms of `submit`.
    #[inline(never)]
    fn push<A: Accesses>(&self, work: Work, accesses: A) -> Result<(), PushError> {
        self.engine.op("").push(accesses, move |_| work.run())
    }

    #[inline(never)]
    fn push_many(&self, work: Work, reads: &[u32], write: Option<u32>) -> Result<(), PushError> {
        let read = |variable: u32| self.variables[variable as usize].read();
        let vec = || reads.iter().map(|&variable| read(variable)).collect::<Vec<_>>();
        let Some(write) = write else { return self.push(work, vec()) };
        let w = self.variables[write as usize].write();
        macro_rules! tuple {
            ($($read:ident)* $(, $write:ident)?) => { ($(read($read),)* $($write)?) };
        }
        match (self.shape, reads) {
            (Shape::Tuple, &[a, b, c, d]) => self.push(work, tuple!(a b c d, w)),
            (Shape::Tuple, &[a, b, c, d, e]) => self.push(work, tuple!(a b c d e, w)),
            (Shape::Tuple, &[a, b, c, d, e, f, g, h]) => self.push(work, tuple!(a b c d e f g h, w)),
            // A tuple has at most twelve fields.
            (Shape::Tuple, &[a, b, c, d, e, f, g, h, i, j, k, l, m, n, o]) => {
                self.push(work, (tuple!(a b c d e f g h), tuple!(i j k l m n o), w))
            }
            (Shape::Array, _) if reads.len() == 4 => self.push(work, (array::<4>(reads).map(read), w)),
            (Shape::Array, _) if reads.len() == 5 => self.push(work, (array::<5>(reads).map(read), w)),
            (Shape::Array, _) if reads.len() == 8 => self.push(work, (array::<8>(reads).map(read), w)),
            (Shape::Array, _) if reads.len() == 15 => self.push(work, (array::<15>(reads).map(read), w)),
            _ => self.push(work, (vec(), w)),
        }
    }
}

fn array<const COUNT: usize>(reads: &[u32]) -> [u32; COUNT] {
    reads.try_into().expect("the length")
}

impl Runtime for RaddleTyped {
    fn name(&self) -> &'static str {
        match self.shape {
            Shape::Tuple => "raddle, typed",
            Shape::Array => "raddle, typed, arrays",
            Shape::Vec => "raddle, typed, `Vec`s",
        }
    }

    fn make_variables(&mut self, count: usize) {
        self.operator = None;
        self.variables = (0..count).map(|_| self.engine.var(0)).collect();
    }

    // Inlined like that of `Raddle`, so that only the arm for the workload's accesses is left, as at a place in a
    // program that pushes.
    #[inline(always)]
    fn submit(&mut self, work: Work, reads: &[u32], write: Option<u32>) {
        let (engine, variables) = (&self.engine, &self.variables);
        let read = |variable: u32| variables[variable as usize].read();
        let mutate = |variable: u32| variables[variable as usize].write();
        let pushed = match (reads, write) {
            (&[], None) => engine.op("").push((), move |()| work.run()),
            (&[], Some(w)) => engine.op("").push(mutate(w), move |_| work.run()),
            (&[a], None) => engine.op("").push(read(a), move |_| work.run()),
            (&[a], Some(w)) => engine.op("").push((read(a), mutate(w)), move |_| work.run()),
            (&[a, b], Some(w)) => engine.op("").push((read(a), read(b), mutate(w)), move |_| work.run()),
            (&[a, b, c], Some(w)) => engine.op("").push((read(a), read(b), read(c), mutate(w)), move |_| work.run()),
            (reads, write) => self.push_many(work, reads, write),
        };
        pushed.expect("push");
    }

    fn wait(&mut self) {
        self.engine.wait_for_all().expect("wait");
    }

    fn describe_operator(&mut self) -> bool {
        let op = self.engine.op("chain");
        self.operator = Some(op.operator(self.variables[0].write(), |value| _ = black_box(value)).expect("operator"));
        true
    }

    #[inline]
    fn push_operator(&mut self) {
        self.operator.as_ref().expect("an operator").push().expect("push");
    }
}

/// Keeps an engine's only worker busy until the returned sender is dropped.
///
/// # Panics
/// If the engine is shut down.
#[must_use]
pub fn occupy(engine: &Engine) -> std::sync::mpsc::Sender<()> {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let (busy, is_busy) = std::sync::mpsc::channel();
    let f = move |_: &OpContext<'_>| {
        busy.send(()).expect("the pushing thread should wait");
        // Ends when the sender is dropped.
        _ = gone.recv();
    };
    engine.push_sync(f, [], []).expect("push");
    is_busy.recv().expect("the worker should run the operation");
    go
}

/// Sleeps until the engine has no pending operations. Uses none of the engine's waits, during which the end of each
/// operation takes a few more instructions.
#[inline(never)]
pub fn settle(engine: &Engine) {
    while engine.pending() > 0 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

impl Runtime for Raddle {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_serial(&self) -> bool {
        self.engine.kind() == EngineKind::Naive
    }

    fn make_variables(&mut self, count: usize) {
        self.operator = None;
        self.variables = (0..count).map(|_| self.engine.token()).collect();
    }

    #[inline]
    fn submit(&mut self, work: Work, reads: &[u32], write: Option<u32>) {
        let (engine, variables) = (&self.engine, &self.variables);
        let at = |variable: u32| &variables[variable as usize];
        let f = move |_: &OpContext<'_>| work.run();
        let pushed = match (reads, write) {
            (&[], None) => engine.push_sync(f, [], []),
            (&[], Some(w)) => engine.push_sync(f, [], [at(w)]),
            (&[a], None) => engine.push_sync(f, [at(a)], []),
            (&[a], Some(w)) => engine.push_sync(f, [at(a)], [at(w)]),
            (&[a, b], Some(w)) => engine.push_sync(f, [at(a), at(b)], [at(w)]),
            (&[a, b, c], Some(w)) => engine.push_sync(f, [at(a), at(b), at(c)], [at(w)]),
            _ => engine.op("").reads(reads.iter().map(|&v| at(v))).writes(write.map(at)).push_sync(f),
        };
        pushed.expect("push");
    }

    fn wait(&mut self) {
        self.engine.wait_for_all().expect("wait");
    }

    fn describe_operator(&mut self) -> bool {
        let op = self.engine.op("chain").writes([&self.variables[0]]);
        self.operator = Some(op.operator_sync(|cx| _ = black_box(cx)).expect("operator"));
        true
    }

    #[inline]
    fn push_operator(&mut self) {
        self.operator.as_ref().expect("an operator").push().expect("push");
    }

    fn another(&self, new_engine: bool) -> Option<Self> {
        Some(if new_engine { Self::new(self.engine.kind()) } else { Self::with(self.engine.clone()) })
    }

    fn backlog(&self) -> Option<Command> {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(BACKLOG);
        (self.engine.kind() == EngineKind::default()).then_some(command)
    }
}

// ---------------------------------------------------------------------------------------------------- bookkeeping ----

/// A variable's last writer and subsequent readers.
#[derive(Clone, Debug)]
struct History<T> {
    writer: Option<T>,
    readers: Vec<T>,
}

impl<T> Default for History<T> {
    fn default() -> Self {
        Self { writer: None, readers: Vec::new() }
    }
}

/// Calls `after` with each dependency of the new operation, and records the new operation.
fn track<T: Clone>(
    variables: &mut [History<T>],
    new: &T,
    reads: &[u32],
    write: Option<u32>,
    mut after: impl FnMut(&T),
) {
    for &read in reads {
        let history = &mut variables[read as usize];
        history.writer.iter().for_each(&mut after);
        history.readers.push(new.clone());
    }
    if let Some(write) = write {
        let history = &mut variables[write as usize];
        if history.readers.is_empty() {
            history.writer.iter().for_each(&mut after);
        }
        history.readers.drain(..).for_each(|reader| after(&reader));
        history.writer = Some(new.clone());
    }
}

// ---------------------------------------------------------------------------------------------------------- rayon ----

/// A node in a graph built while operations are pushed.
#[derive(Debug)]
struct Node {
    work: Work,
    pending: AtomicU32,
    successors: Vec<u32>,
}

/// [rayon](rayon), running a graph: each operation counts its pending dependencies, and the thread that completes the
/// last of them spawns the operation or runs it next. No operation runs before all are pushed.
#[derive(Debug)]
pub struct RayonGraph {
    pool: rayon::ThreadPool,
    nodes: Vec<Node>,
    variables: Vec<History<u32>>,
}

impl RayonGraph {
    /// Creates a pool with `threads` threads.
    ///
    /// # Panics
    /// If the pool cannot be created.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        Self { pool, nodes: vec![], variables: vec![] }
    }
}

fn run_node<'s>(nodes: &'s [Node], mut index: u32, scope: &rayon::Scope<'s>) {
    loop {
        let node = &nodes[index as usize];
        node.work.run();
        let mut next = None;
        for &successor in &node.successors {
            // AcqRel: all dependencies happen before the operation, whatever the order of the decrements.
            if nodes[successor as usize].pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                if next.is_none() {
                    next = Some(successor);
                } else {
                    scope.spawn(move |scope| run_node(nodes, successor, scope));
                }
            }
        }
        let Some(next) = next else { return };
        index = next;
    }
}

impl Runtime for RayonGraph {
    fn name(&self) -> &'static str {
        "rayon, graph by hand"
    }

    fn make_variables(&mut self, count: usize) {
        self.variables = vec![History::default(); count];
    }

    #[inline]
    fn submit(&mut self, work: Work, reads: &[u32], write: Option<u32>) {
        let new = self.nodes.len() as u32;
        let (nodes, mut pending) = (&mut self.nodes, 0);
        track(&mut self.variables, &new, reads, write, |&before| {
            // An operation that reads and mutates the same variable does not depend on itself.
            if before != new {
                nodes[before as usize].successors.push(new);
                pending += 1;
            }
        });
        nodes.push(Node { work, pending: pending.into(), successors: vec![] });
    }

    fn wait(&mut self) {
        let nodes = &self.nodes;
        // Relaxed: no operation runs yet.
        let root = |&node: &u32| nodes[node as usize].pending.load(Ordering::Relaxed) == 0;
        let roots: Vec<u32> = (0..nodes.len() as u32).filter(root).collect();
        self.pool.scope(|scope| {
            for root in roots {
                scope.spawn(move |scope| run_node(nodes, root, scope));
            }
        });
        self.nodes.clear();
        self.variables.iter_mut().for_each(|history| *history = History::default());
    }
}

// ---------------------------------------------------------------------------------------------------------- tokio ----

/// [tokio]: a task per operation, which first awaits its dependencies through channels that close when a task ends.
#[derive(Debug)]
pub struct TokioTasks {
    runtime: tokio::runtime::Runtime,
    variables: Vec<History<watch::Receiver<()>>>,
    /// Each task has a clone of the sender. After a wait has dropped the original, the channel closes when all tasks
    /// have ended.
    running: (mpsc::Sender<()>, mpsc::Receiver<()>),
}

impl TokioTasks {
    /// Creates a runtime with `threads` worker threads.
    ///
    /// # Panics
    /// If the runtime cannot be created.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().expect("a runtime");
        Self { runtime, variables: vec![], running: mpsc::channel(1) }
    }
}

impl Runtime for TokioTasks {
    fn name(&self) -> &'static str {
        "tokio, tasks and channels"
    }

    fn make_variables(&mut self, count: usize) {
        self.variables = vec![History::default(); count];
    }

    fn submit(&mut self, work: Work, reads: &[u32], write: Option<u32>) {
        let (ended, end) = watch::channel(());
        let mut before = Vec::new();
        track(&mut self.variables, &end, reads, write, |receiver| {
            if !receiver.same_channel(&end) {
                before.push(receiver.clone());
            }
        });
        let running = self.running.0.clone();
        self.runtime.spawn(async move {
            for mut receiver in before {
                // No value is ever sent: the call returns when the other task has dropped its sender.
                _ = receiver.changed().await;
            }
            work.run();
            drop((ended, running));
        });
    }

    fn wait(&mut self) {
        let (_, mut ended) = std::mem::replace(&mut self.running, mpsc::channel(1));
        self.runtime.block_on(ended.recv());
        self.variables.iter_mut().for_each(|history| *history = History::default());
    }
}
