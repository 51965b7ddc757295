//! The target `waits`: operations wait for handles, variables, groups and scopes, even where these depend on operations
//! queued behind the waiting one. Every program must end, and a wait may be refused only if the waiting function is on
//! a cycle of waits that may occur.
//!
//! The program is known before it runs, and so are all waits that may occur: see [`Program::graph`].

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst},
    },
};

use raddle::{
    Engine, EngineKind, Group, OpBuilder, OpContext, OpHandle, PushError, Token, WaitError, completion, error::NoAccess,
};

use super::{Bytes, check_recorded, engine_plan, observe, watched};
use crate::{
    KINDS, lock,
    program::{Access, Source},
};

/// The number of an operation in its program.
type Id = usize;

#[derive(Clone, Debug)]
struct Operation {
    id: Id,
    accesses: Vec<(usize, Access)>,
    group: Option<usize>,
    steps: Vec<Step>,
}

/// A step of an operation's function.
#[derive(Clone, Debug)]
enum Step {
    /// Lets other threads run for a while.
    Pause(usize),
    WaitForVar(usize),
    WaitToRead(usize),
    /// Waits for an operation, unless its handle is not yet available or has already been taken.
    WaitFor(Id),
    WaitForGroup(usize),
    /// Pushes an operation, then waits for it or leaves its handle to other operations.
    Push(Operation, bool),
    /// Pushes a child and leaves its handle to other operations.
    Child(Operation),
    /// Opens a scope with these operations. Those that [count](Operation::counts) also mutate a number that the scope
    /// borrows and a variable of the scope, and the scope's function waits for their handles.
    Scope(Vec<Operation>),
}

impl Operation {
    /// Returns whether the operation, if in a scope, mutates the scope's number.
    fn counts(&self) -> bool {
        self.id % 3 != 0
    }
}

struct Program {
    variables: usize,
    groups: usize,
    /// Whether the program's own thread pushes all its operations before any of them starts.
    is_held: bool,
    operations: Vec<Operation>,
    /// The number of operations, including those pushed by operations.
    count: usize,
}

/// Once a program has this many operations, the steps generated next push no more.
const MOST: usize = 24;

impl Program {
    fn decode(bytes: &mut Bytes<'_>) -> Self {
        let mut program = Self {
            variables: 1 + bytes.below(4),
            groups: 1 + bytes.below(2),
            is_held: bytes.one_in(2),
            operations: Vec::new(),
            count: 0,
        };
        let planned = 2 + bytes.below(10);
        while program.operations.len() < planned && !bytes.is_exhausted() {
            let accesses = program.accesses(bytes);
            let operation = program.operation(accesses, 0, true, bytes);
            program.operations.push(operation);
        }
        program
    }

    fn accesses(&self, bytes: &mut Bytes<'_>) -> Vec<(usize, Access)> {
        let mut accesses = Vec::new();
        for variable in 0..self.variables {
            match bytes.below(4) {
                0 => accesses.push((variable, Access::Write)),
                1 => accesses.push((variable, Access::Read)),
                _ => {}
            }
        }
        accesses
    }

    fn operation(
        &mut self,
        accesses: Vec<(usize, Access)>,
        depth: usize,
        may_have_children: bool,
        bytes: &mut Bytes<'_>,
    ) -> Operation {
        let id = self.count;
        self.count += 1;
        let group = (may_have_children && bytes.one_in(3)).then(|| bytes.below(self.groups));
        let steps = (0..bytes.below(4)).map(|_| self.step(&accesses, depth, may_have_children, bytes)).collect();
        Operation { id, accesses, group, steps }
    }

    fn step(&mut self, held: &[(usize, Access)], depth: usize, may_have_children: bool, bytes: &mut Bytes<'_>) -> Step {
        let kinds = if depth == 2 || self.count >= MOST { 5 } else { 8 };
        match bytes.below(kinds) {
            0 => Step::Pause(bytes.below(200)),
            1 => Step::WaitForVar(bytes.below(self.variables)),
            2 => Step::WaitToRead(bytes.below(self.variables)),
            3 => Step::WaitFor(bytes.below(MOST)),
            4 => Step::WaitForGroup(bytes.below(self.groups)),
            5 if may_have_children => {
                let mut accesses = Vec::new();
                for &(variable, access) in held {
                    if bytes.one_in(2) {
                        accesses.push((variable, bytes.pick(&[access, Access::Read])));
                    }
                }
                let child = self.operation(accesses, depth + 1, true, bytes);
                // The child belongs to its parent's groups.
                Step::Child(Operation { group: None, ..child })
            }
            6 => {
                let count = 1 + bytes.below(3);
                let inside = (0..count).map(|_| {
                    let accesses = self.accesses(bytes);
                    self.operation(accesses, depth + 1, false, bytes)
                });
                Step::Scope(inside.collect())
            }
            _ => {
                let accesses = self.accesses(bytes);
                Step::Push(self.operation(accesses, depth + 1, true, bytes), bytes.one_in(2))
            }
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = if self.is_held { ", all pushed before the first starts" } else { "" };
        write!(f, "{} variables, {} groups{held}", self.variables, self.groups)?;
        self.operations.iter().try_for_each(|operation| write!(f, "\n{operation:?}"))
    }
}

// ---------------------------------------------------------------------------------------------- what may wait ----

/// How an operation was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// By the program's own thread.
    Program,
    /// By the function of this operation, on the engine or in a scope.
    Function(Id),
    /// As a child of this operation.
    Child(Id),
}

/// The waits that may occur. Each operation has two nodes: the return of its function, and its completion. For each
/// node, `after` lists the nodes for which it may have to wait.
struct Graph {
    after: Vec<Vec<usize>>,
}

fn function_of(id: Id) -> usize {
    2 * id
}

fn completion_of(id: Id) -> usize {
    2 * id + 1
}

impl Graph {
    fn add(&mut self, point: usize, after: usize) {
        self.after[point].push(after);
    }

    /// Returns whether an operation's function may wait for itself, directly or through other nodes.
    fn is_on_cycle(&self, id: Id) -> bool {
        let mut seen = vec![false; self.after.len()];
        let mut open = self.after[function_of(id)].clone();
        while let Some(point) = open.pop() {
            if !std::mem::replace(&mut seen[point], true) {
                open.extend(&self.after[point]);
            }
        }
        seen[function_of(id)]
    }
}

fn conflict(one: &Operation, other: &Operation) -> bool {
    let shared = |&(variable, access): &(usize, Access)| {
        let found = other.accesses.iter().find(|(candidate, _)| *candidate == variable);
        found.is_some_and(|(_, second)| access == Access::Write || *second == Access::Write)
    };
    one.accesses.iter().any(shared)
}

impl Program {
    /// Calls `visit` with each operation, in the order of their numbers.
    fn each<'p>(&'p self, visit: &mut dyn FnMut(&'p Operation, Origin)) {
        fn descend<'p>(operation: &'p Operation, origin: Origin, visit: &mut dyn FnMut(&'p Operation, Origin)) {
            visit(operation, origin);
            let id = operation.id;
            for step in &operation.steps {
                match step {
                    Step::Push(inner, _) => descend(inner, Origin::Function(id), visit),
                    Step::Child(child) => descend(child, Origin::Child(id), visit),
                    Step::Scope(inside) => inside.iter().for_each(|op| descend(op, Origin::Function(id), visit)),
                    _ => {}
                }
            }
        }
        self.operations.iter().for_each(|operation| descend(operation, Origin::Program, visit));
    }

    /// Returns all waits that may occur in any run. If the order of two pushes depends on the run, both orders are
    /// included. A naive engine completes a ready operation inside its push, so the pushing function may wait for the
    /// operation.
    fn graph(&self, is_naive: bool) -> Graph {
        let mut all: Vec<(&Operation, Origin)> = Vec::new();
        self.each(&mut |operation, origin| all.push((operation, origin)));
        let mut graph = Graph { after: vec![Vec::new(); 2 * self.count] };
        for &(operation, origin) in &all {
            let id = operation.id;
            graph.add(completion_of(id), function_of(id));
            if let (Origin::Function(pusher), true) = (origin, is_naive) {
                graph.add(function_of(pusher), completion_of(id));
            }
            if let Origin::Child(parent) = origin {
                graph.add(completion_of(parent), completion_of(id));
                graph.add(function_of(id), function_of(parent));
            }
            for step in &operation.steps {
                if let Step::Scope(inside) = step {
                    // The scope's number orders all of its counting operations.
                    let counting: Vec<_> = inside.iter().filter(|inner| inner.counts()).map(|inner| inner.id).collect();
                    counting.windows(2).for_each(|pair| graph.add(function_of(pair[1]), completion_of(pair[0])));
                }
                let mut awaits = |awaited: Id| graph.add(function_of(id), completion_of(awaited));
                match step {
                    Step::Pause(_) | Step::Child(_) | Step::Push(_, false) => {}
                    Step::WaitForVar(variable) | Step::WaitToRead(variable) => {
                        let names = |other: &Operation| other.accesses.iter().any(|(named, _)| named == variable);
                        all.iter().filter(|(other, _)| names(other)).for_each(|(other, _)| awaits(other.id));
                    }
                    Step::WaitFor(awaited) if *awaited < self.count => awaits(*awaited),
                    Step::WaitFor(_) => {}
                    Step::WaitForGroup(group) => {
                        all.iter()
                            .filter(|(other, _)| other.group == Some(*group))
                            .for_each(|(other, _)| awaits(other.id));
                    }
                    Step::Push(inner, true) => awaits(inner.id),
                    Step::Scope(inside) => inside.iter().for_each(|inner| awaits(inner.id)),
                }
            }
        }
        for &(late, origin) in &all {
            for &(early, other) in &all {
                if late.id != early.id
                    && conflict(late, early)
                    && self.may_stand_behind((late.id, origin), (early.id, other))
                {
                    graph.add(function_of(late.id), completion_of(early.id));
                }
            }
        }
        graph
    }

    /// Returns whether `late`, one of two conflicting operations, may be pushed after `early`, the other.
    fn may_stand_behind(&self, late: (Id, Origin), early: (Id, Origin)) -> bool {
        match (late.1, early.1) {
            // An operation's children have their own queues.
            (Origin::Child(parent), Origin::Child(same)) => parent == same && early.0 < late.0,
            (Origin::Child(_), _) | (_, Origin::Child(_)) => false,
            (Origin::Program, Origin::Program) => early.0 < late.0,
            (Origin::Function(one), Origin::Function(other)) if one == other => early.0 < late.0,
            // A function runs after its operation's push, and thus after all earlier pushes by the program's own
            // thread, or after all of that thread's pushes if the program is held.
            (Origin::Program, Origin::Function(_)) => !self.is_held && early.0 < late.0,
            (Origin::Function(_), Origin::Program | Origin::Function(_)) => true,
        }
    }
}

// --------------------------------------------------------------------------------------------------------- runs ----

struct World {
    variables: Vec<Variable>,
    /// A token read by all operations that the program's own thread pushes.
    gate: Token,
    groups: Vec<Group>,
    handles: Vec<Mutex<Option<OpHandle<()>>>>,
    runs: Vec<AtomicUsize>,
    /// The operations whose waits were refused, with the errors.
    refused: Mutex<Vec<(Id, WaitError)>>,
    violations: Mutex<Vec<String>>,
}

struct Variable {
    token: Token,
    /// The number of functions now reading the variable, or -1 while one mutates it.
    users: AtomicI64,
    /// The operations that have mutated the variable, in order.
    log: Mutex<Vec<Id>>,
}

impl World {
    fn violation(&self, what: String) {
        lock(&self.violations).push(what);
    }

    /// Returns the tokens that an operation accesses in the given way.
    fn tokens<'w>(&'w self, operation: &'w Operation, access: Access) -> impl Iterator<Item = &'w Token> {
        let in_this_way = operation.accesses.iter().filter(move |(_, its)| *its == access);
        in_this_way.map(|(variable, _)| &self.variables[*variable].token)
    }

    fn submit(
        self: &Arc<Self>,
        builder: OpBuilder<'_>,
        operation: &Operation,
        held: Option<&Token>,
    ) -> Result<OpHandle<()>, PushError> {
        // A refused scope cancels its operations, which fails their variables. Other operations must run all the same.
        let mut builder = builder.run_always();
        builder = builder.reads(self.tokens(operation, Access::Read)).writes(self.tokens(operation, Access::Write));
        if operation.steps.iter().any(|step| matches!(step, Step::Child(_))) {
            builder = builder.with_children();
        }
        let (world, run) = (Arc::clone(self), operation.clone());
        builder.reads(held).submit(raddle::cx(), move |cx| world.run(&run, &cx.engine(), Some(cx)))
    }

    fn keep(&self, operation: &Operation, pushed: Result<OpHandle<()>, PushError>) {
        match pushed {
            Ok(handle) => *lock(&self.handles[operation.id]) = Some(handle),
            Err(error) => self.violation(format!("the push of op {} was refused: {error}", operation.id)),
        }
    }

    fn push(
        self: &Arc<Self>,
        engine: &Engine,
        operation: &Operation,
        held: Option<&Token>,
    ) -> Result<OpHandle<()>, PushError> {
        let name = format!("op {}", operation.id);
        let builder = match operation.group {
            Some(group) => self.groups[group].op(name),
            None => engine.op(name),
        };
        self.submit(builder, operation, held)
    }

    /// An operation's function. Functions of scoped operations have no context.
    fn run(self: &Arc<Self>, operation: &Operation, engine: &Engine, cx: Option<&OpContext<'_>>) {
        let id = operation.id;
        self.runs[id].fetch_add(1, SeqCst);
        for &(variable, access) in &operation.accesses {
            let users = &self.variables[variable].users;
            let is_free = match access {
                Access::Write => users.compare_exchange(0, -1, SeqCst, SeqCst).is_ok(),
                _ => users.fetch_add(1, SeqCst) >= 0,
            };
            if !is_free {
                self.violation(format!("op {id} runs beside an operation that conflicts with it"));
            }
        }
        operation.steps.iter().for_each(|step| self.step(id, step, engine, cx));
        for &(variable, access) in &operation.accesses {
            let variable = &self.variables[variable];
            match access {
                Access::Write => {
                    lock(&variable.log).push(id);
                    variable.users.store(0, SeqCst);
                }
                _ => _ = variable.users.fetch_sub(1, SeqCst),
            }
        }
    }

    fn step(self: &Arc<Self>, id: Id, step: &Step, engine: &Engine, cx: Option<&OpContext<'_>>) {
        let result = match step {
            Step::Pause(turns) => {
                (0..*turns).for_each(|_| std::thread::yield_now());
                Ok(())
            }
            Step::WaitForVar(variable) => engine.wait_for_var(&self.variables[*variable].token),
            Step::WaitToRead(variable) => engine.wait_to_read(&self.variables[*variable].token),
            Step::WaitFor(awaited) => {
                let handle = self.handles.get(*awaited).and_then(|handle| lock(handle).take());
                handle.map_or(Ok(()), OpHandle::wait)
            }
            Step::WaitForGroup(group) => self.groups[*group].wait(),
            Step::Push(inner, is_awaited) => {
                let pushed = self.push(engine, inner, None);
                match (pushed, is_awaited) {
                    (Ok(handle), true) => handle.wait(),
                    (pushed, _) => {
                        self.keep(inner, pushed);
                        Ok(())
                    }
                }
            }
            Step::Child(child) => {
                let cx = cx.expect("operations of scopes should have no children");
                self.keep(child, self.submit(cx.child(format!("op {}", child.id)), child, None));
                Ok(())
            }
            Step::Scope(inside) => self.scope(id, inside, engine),
        };
        match result {
            // Operations fail only in a refused scope, which cancels them.
            Ok(()) | Err(WaitError::Failed(_)) => {}
            Err(error) => lock(&self.refused).push((id, error)),
        }
    }

    /// Opens a scope with the operations `inside`, in operation `id`'s function.
    fn scope(self: &Arc<Self>, id: Id, inside: &[Operation], engine: &Engine) -> Result<(), WaitError> {
        let mut count = 0;
        let result = engine.scope(|s| {
            let (count, own) = (s.lend(&mut count), s.var(0));
            let mut handles = Vec::new();
            for inner in inside {
                let builder = s.op(format!("op {}", inner.id)).run_always();
                let builder = builder.reads(self.tokens(inner, Access::Read));
                let builder = builder.writes(self.tokens(inner, Access::Write));
                let pushed = if inner.counts() {
                    let counting = move |(count, own): (&mut usize, &mut usize)| {
                        // An operation running concurrently would cause an increment to be lost.
                        let before = (*count, *own);
                        self.run(inner, engine, None);
                        (*count, *own) = (before.0 + 1, before.1 + 1);
                        (*count, *own, inner.id)
                    };
                    builder
                        .submit((count.write(), own.write()), counting)
                        .map(|handle| handles.push((inner.id, handle)))
                } else {
                    builder.push((), |()| self.run(inner, engine, None))
                };
                match pushed {
                    Ok(()) | Err(PushError::Variable(NoAccess::HeldAroundScope, _)) => {}
                    Err(error) => self.violation(format!("the push of op {} was refused: {error}", inner.id)),
                }
            }
            for (inner, handle) in handles {
                match handle.wait() {
                    Ok((count, own, own_id)) if own_id == inner && count == own => {}
                    Ok(other) => self.violation(format!("op {inner} of a scope returned {other:?}")),
                    // The operation was cancelled together with its scope or an enclosing one.
                    Err(WaitError::Failed(_)) => {}
                    Err(error) => lock(&self.refused).push((id, error)),
                }
            }
        });
        let ran = |inner: &&Operation| inner.counts() && self.runs[inner.id].load(SeqCst) == 1;
        let expected = inside.iter().filter(ran).count();
        if count != expected {
            self.violation(format!("{expected} operations of a scope of op {id} counted up to {count}"));
        }
        result
    }

    fn check(&self, program: &Program, is_naive: bool) -> Result<(), String> {
        if let Some(violation) = lock(&self.violations).first() {
            return Err(violation.clone());
        }
        let graph = program.graph(is_naive);
        for (id, error) in &*lock(&self.refused) {
            if !matches!(error, WaitError::WouldDeadlock(_)) {
                return Err(format!("a wait of op {id} failed: {error}"));
            }
            if !graph.is_on_cycle(*id) {
                return Err(format!("a wait of op {id}, which is on no cycle, was refused: {error}"));
            }
        }
        for operation in &program.operations {
            let runs = self.runs[operation.id].load(SeqCst);
            if runs != 1 {
                return Err(format!("op {} ran {runs} times", operation.id));
            }
        }
        if let Some(id) = self.runs.iter().position(|runs| runs.load(SeqCst) > 1) {
            return Err(format!("op {id} ran more than once"));
        }
        for (variable, Variable { log, .. }) in self.variables.iter().enumerate() {
            let own: Vec<_> =
                lock(log).iter().copied().filter(|id| program.operations.iter().any(|op| op.id == *id)).collect();
            if !own.is_sorted() {
                return Err(format!("operations mutated variable {variable} out of push order: {own:?}"));
            }
        }
        Ok(())
    }
}

pub fn waits(data: &[u8]) {
    watched("waits", data, |watchdog| {
        let mut bytes = Bytes::new(data);
        let (plan, recorder) = observe(engine_plan(&mut bytes, &KINDS), data);
        let program = Arc::new(Program::decode(&mut bytes));
        let description = format!("{plan:?}\n{program}");
        let shown = description.clone();
        watchdog.explain(move || shown.clone());
        let engine = plan.build().map_err(|error| error.to_string())?;
        let variable = || Variable { token: engine.token(), users: AtomicI64::new(0), log: Mutex::default() };
        let world = Arc::new(World {
            variables: (0..program.variables).map(|_| variable()).collect(),
            gate: engine.token(),
            groups: (0..program.groups).map(|_| engine.group()).collect(),
            handles: (0..program.count).map(|_| Mutex::default()).collect(),
            runs: (0..program.count).map(|_| AtomicUsize::new(0)).collect(),
            refused: Mutex::default(),
            violations: Mutex::default(),
        });
        let held = Arc::new(Mutex::new(None));
        if program.is_held {
            let held = Arc::clone(&held);
            let pushed =
                engine.op("gate").writes([&world.gate]).push(completion(), move |done| *lock(&held) = Some(done));
            pushed.map_err(|error| error.to_string())?;
        }
        for operation in &program.operations {
            world.keep(operation, world.push(&engine, operation, Some(&world.gate)));
        }
        if program.is_held {
            // The gate's function may not have run yet.
            let done = loop {
                match lock(&held).take() {
                    Some(done) => break done,
                    None => std::thread::yield_now(),
                }
            };
            done.complete();
        }
        // Failures come from refused scopes. Operations pushed by other operations may still be pending.
        while engine.wait_for_all().is_err() || engine.pending() != 0 {}
        let checked = world.check(&program, engine.kind() == EngineKind::Naive);
        drop((world, engine));
        checked.and_then(|()| check_recorded(recorder.as_ref())).map_err(|error| format!("{error}\n{description}"))
    });
}
