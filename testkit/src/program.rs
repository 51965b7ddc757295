//! Random programs for the engine and exact checks of their results.
//!
//! A [`Program`] is a list of steps for each of its threads: pushes of operations over numbered variables, waits, and
//! clearings of failures. [`run`] runs a program on an engine and returns its [`History`]. Two checks rely only on the
//! engine's contract:
//!
//! * [`check_serial`], for one pushing thread: all results must agree with a serial run in push order. The operations
//!   of these programs may fail on purpose.
//! * [`check_some_order`], for any number of threads: each variable's log records the order of its accesses. Together,
//!   these orders, each thread's order, the order of non-overlapping pushes, and the order of each operation before its
//!   children must not form a cycle. The check then replays all operations in one common order, comparing every value
//!   seen by an operation and every final value.
//!
//! The arithmetic is not commutative, except that of operations that commute, so a different order yields different
//! values. Since this module needs no test
//! harness, and [`Program::generate`] accepts any [`Source`] of choices, a fuzzer can use it unchanged.

use crate::shapes::*;
use std::{
    collections::BTreeSet,
    panic::resume_unwind,
    sync::{
        Arc, Barrier, Mutex, PoisonError,
        atomic::{
            AtomicI64, AtomicU32, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc,
    },
    thread,
};

use raddle::{
    Completion, Engine, OpBuilder, Operator, PushError, Token, Var, WaitError,
    chosen::{self, On, With},
    completion,
};

use crate::block_on;

/// Returns `count` in ordinary builds, a hundredth of it under Miri, and half of it in instrumented builds. Used for
/// numbers that are large only to increase test coverage.
pub const fn fewer(count: usize) -> usize {
    if cfg!(miri) {
        count.div_ceil(100)
    } else if cfg!(raddle_sanitized) {
        count.div_ceil(2)
    } else {
        count
    }
}

/// The number of an operation in its program.
pub type Id = u32;

// ------------------------------------------------------------------------------------------------- programs ----

/// How an operation accesses a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    Overwrite,
    /// Only after [`Program::commuting`].
    Commute,
}

impl Access {
    /// Whether the operation uses the value that it finds.
    fn is_seen(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Returns the value after access `index` of the operation `id`, which has seen `seen` and found `old`.
    fn changes(self, id: Id, old: u64, seen: u64, index: usize) -> u64 {
        match self {
            Self::Read => old,
            Self::Write => written(seen, Some(old), index),
            Self::Overwrite => written(seen, None, index),
            Self::Commute => old.wrapping_add(u64::from(id).wrapping_mul(FACTOR)).wrapping_add(index as u64),
        }
    }
}

/// How an operation is pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `push_sync` over tokens.
    Sync,
    /// `push` over typed variables.
    Typed,
    /// `submit` over typed variables; the handle is dropped.
    Submit,
    /// `push_async` over tokens.
    Async(Finish),
    /// A run of the operator of this number.
    Operator(usize),
}

/// The place where an asynchronous operation is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Inside,
    Elsewhere,
}

/// How an operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    Well,
    /// With an `Err`, or with `Completion::fail`.
    Error,
    Panic,
    /// By dropping the completion. An operation without a completion ends as with `Error`.
    Lost,
}

#[derive(Clone, Debug)]
pub struct Operation {
    /// The accesses, each to a different variable.
    pub accesses: Vec<(usize, Access)>,
    /// Variables of `accesses` declared a second time, for reading.
    pub repeats: Vec<usize>,
    pub how: How,
    pub ends: Ends,
    pub priority: i32,
    pub property: Property,
    pub no_skip: bool,
    /// Operations pushed by this one.
    pub children: Vec<Id>,
}

/// What a push passes to an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    Nothing,
    /// The number of the operation.
    Argument,
    /// The first variable and the number of the operation. Asynchronous operators do not choose variables.
    Variable,
}

/// An operator and its runs, in the order in which one thread pushes them.
#[derive(Clone, Debug)]
pub struct OperatorPlan {
    pub like: Operation,
    pub how: How,
    pub passes: Passes,
    pub runs: Vec<Id>,
}

/// An operator, by what each push passes to it.
enum AnyOperator {
    Plain(Operator),
    With(Operator<With<Id>>),
    OnVar(Operator<On<chosen::ChosenWrite<u64>, Id>>),
    OnToken(Operator<On<chosen::ChosenToken, Id>>),
}

/// A step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Push(Id),
    Get(usize),
    WaitForVar(usize),
    WaitToRead(usize),
    WaitForAll,
    ClearError(usize),
}

#[derive(Clone, Debug)]
pub struct Program {
    pub variables: usize,
    pub operations: Vec<Operation>,
    pub operators: Vec<OperatorPlan>,
    pub threads: Vec<Vec<Step>>,
}

/// The shape of a random program.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub variables: usize,
    /// The total number of operations across all threads, including children. The last operation's children may raise
    /// the total above this number.
    pub operations: usize,
    pub threads: usize,
    /// The maximum number of variables per operation.
    pub accesses: usize,
    /// Whether operations may fail. This requires one thread and no children, and excludes operators.
    pub failures: bool,
    /// Whether operations may push operations.
    pub children: bool,
    /// Whether the threads wait between pushes.
    pub waits: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            variables: 100,
            operations: fewer(10_000),
            threads: 1,
            accesses: 8,
            failures: false,
            children: false,
            waits: true,
        }
    }
}

/// A source of choices.
pub trait Source {
    /// Returns a number below `bound`, which must not be zero.
    fn below(&mut self, bound: usize) -> usize;

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns whether the choices are exhausted. If so, all further numbers are 0, and the program ends even if its
    /// shape asks for more operations.
    fn is_exhausted(&self) -> bool {
        false
    }
}

/// A xorshift generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

impl Source for Random {
    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }
}

const PRIORITIES: [i32; 10] = [1, -1, 2, 5, -7, 8, 100, -100, i32::MAX, i32::MIN];

const PROPERTIES: [Property; 8] = [
    Property::Normal,
    Property::CopyFromGpu,
    Property::CopyToGpu,
    Property::CpuPrioritized,
    Property::GpuPrioritized,
    Property::Async,
    Property::DeleteVar,
    Property::NoSkip,
];

impl Program {
    /// Generates a program of the given shape.
    pub fn generate(shape: &Shape, source: &mut impl Source) -> Self {
        let mut program = Self {
            variables: shape.variables,
            operations: Vec::new(),
            operators: Vec::new(),
            threads: vec![Vec::new(); shape.threads],
        };
        // Each thread has its own few operators.
        let mut operators = vec![Vec::new(); shape.threads];
        if !shape.failures {
            for own in &mut operators {
                for _ in 0..4 {
                    own.push(program.operators.len());
                    program.operators.push(OperatorPlan::generate(shape, source));
                }
            }
        }
        while program.operations.len() < shape.operations && !source.is_exhausted() {
            let thread = source.below(shape.threads);
            let step = match source.below(64) {
                0 if shape.waits => Step::Get(source.below(shape.variables)),
                1 if shape.waits => Step::WaitForVar(source.below(shape.variables)),
                2 if shape.waits => Step::WaitToRead(source.below(shape.variables)),
                3 if shape.waits && source.one_in(8) => Step::WaitForAll,
                4..=7 if shape.failures => Step::ClearError(source.below(shape.variables)),
                _ => Step::Push(program.add(shape, &operators[thread], source)),
            };
            program.threads[thread].push(step);
        }
        program
    }

    /// Repeats every thread's steps `times` times, each time with new operations.
    pub fn repeated(mut self, times: usize) -> Self {
        let (once, count) = (self.clone(), self.operations.len() as Id);
        for round in 1..times as Id {
            let again = |id: &Id| id + round * count;
            self.operations.extend(once.operations.iter().map(|operation| Operation {
                children: operation.children.iter().map(again).collect(),
                ..operation.clone()
            }));
            for (plan, first) in self.operators.iter_mut().zip(&once.operators) {
                plan.runs.extend(first.runs.iter().map(again));
            }
            for (steps, first) in self.threads.iter_mut().zip(&once.threads) {
                steps.extend(first.iter().map(|step| match step {
                    Step::Push(id) => Step::Push(again(id)),
                    other => *other,
                }));
            }
        }
        self
    }

    /// Adds an operation and perhaps children for it to push.
    fn add(&mut self, shape: &Shape, operators: &[usize], source: &mut impl Source) -> Id {
        let id = self.operations.len() as Id;
        if !operators.is_empty() && source.one_in(5) {
            let number = operators[source.below(operators.len())];
            let plan = &mut self.operators[number];
            plan.runs.push(id);
            let (passes, mut run) = (plan.passes, plan.like.clone());
            if passes == Passes::Variable {
                let mut variable = source.below(shape.variables);
                while run.accesses[1..].iter().any(|&(other, _)| other == variable) {
                    variable = (variable + 1) % shape.variables;
                }
                run.accesses[0].0 = variable;
            }
            let priority = random_priority(source);
            self.operations.push(Operation { how: How::Operator(number), priority, ..run });
        } else {
            let operation = Operation::generate(shape, source);
            // A typed operation's function has no handle to the engine, so it cannot push.
            let may_push = matches!(operation.how, How::Sync | How::Async(_));
            self.operations.push(operation);
            if shape.children && may_push && !source.is_exhausted() && source.one_in(4) {
                for _ in 0..=source.below(3) {
                    // Children may have children.
                    let child = self.add(shape, &[], source);
                    self.operations[id as usize].children.push(child);
                }
            }
        }
        id
    }

    fn operation(&self, id: Id) -> &Operation {
        &self.operations[id as usize]
    }

    /// Makes operations commute on some of the variables that they mutate. The program must have no failures.
    pub fn commuting(&mut self) {
        for (id, operation) in self.operations.iter_mut().enumerate() {
            let own = match operation.how {
                // Runs are numbered by a mutation. Typed operators declare no such accesses.
                How::Operator(number) if self.operators[number].how == How::Typed => 0,
                How::Operator(_) => operation.accesses.len() - 1,
                _ => operation.accesses.len(),
            };
            let id = if matches!(operation.how, How::Operator(_)) { 0 } else { id };
            let first = operation.accesses.len() - own;
            Self::commute(id, &mut operation.accesses[first..]);
        }
        for plan in self.operators.iter_mut().filter(|plan| plan.how != How::Typed) {
            Self::commute(0, &mut plan.like.accesses[1..]);
        }
    }

    fn commute(id: usize, accesses: &mut [(usize, Access)]) {
        for (variable, access) in accesses {
            if *access == Access::Write && (id + *variable) % 4 != 0 {
                *access = Access::Commute;
            }
        }
    }

    /// Makes every asynchronous operation use its completion in its function.
    pub fn complete_inside(&mut self) {
        let operations = self.operations.iter_mut().map(|operation| &mut operation.how);
        for how in operations.chain(self.operators.iter_mut().map(|plan| &mut plan.how)) {
            if *how == How::Async(Finish::Elsewhere) {
                *how = How::Async(Finish::Inside);
            }
        }
    }

    /// Returns the maximum number of pending operations after a push on an engine with this limit. Returns `None` if
    /// that number is unbounded: pushes by operations are not held back, nor is any push while all pending operations
    /// wait for their completions to be used.
    fn most_pending(&self, limit: usize) -> Option<u64> {
        let is_elsewhere = |how: How| how == How::Async(Finish::Elsewhere);
        let is_exempt = |operation: &Operation| is_elsewhere(operation.how) || !operation.children.is_empty();
        if self.operations.iter().any(is_exempt) || self.operators.iter().any(|plan| is_elsewhere(plan.how)) {
            return None;
        }
        // A single thread does not exceed the limit; each of several threads may exceed a small limit by half of it
        // plus one. Each thread may also have a pending wait, which is never held back.
        let excess = if self.threads.len() > 1 { self.threads.len() * (2 + limit / 2) } else { 1 };
        Some((limit + excess) as u64)
    }
}

fn random_priority(source: &mut impl Source) -> i32 {
    if source.one_in(4) { PRIORITIES[source.below(PRIORITIES.len())] } else { 0 }
}

impl Operation {
    fn generate(shape: &Shape, source: &mut impl Source) -> Self {
        // Operations with few variables are more common than those with many.
        let most = shape.accesses.min(shape.variables);
        let bound = 1 + source.below(most);
        let count = 1 + source.below(bound);
        let mut accesses: Vec<(usize, Access)> = Vec::new();
        while accesses.len() < count {
            // Some variables are chosen more often than others.
            let bound = if source.one_in(3) { shape.variables.div_ceil(10) } else { shape.variables };
            let mut variable = source.below(bound);
            while accesses.iter().any(|&(other, _)| other == variable) {
                variable = (variable + 1) % shape.variables;
            }
            let access = match source.below(12) {
                0..=3 => Access::Write,
                4 => Access::Overwrite,
                _ => Access::Read,
            };
            accesses.push((variable, access));
        }
        let repeats = if source.one_in(8) { vec![accesses[source.below(count)].0] } else { Vec::new() };
        let how = match source.below(8) {
            0..=1 => How::Sync,
            2..=4 => How::Typed,
            5 => How::Submit,
            6 => How::Async(Finish::Inside),
            _ => How::Async(Finish::Elsewhere),
        };
        let ends = match source.below(40) {
            0 if shape.failures => Ends::Error,
            1 if shape.failures => Ends::Panic,
            2 if shape.failures => Ends::Lost,
            _ => Ends::Well,
        };
        Self {
            accesses,
            repeats,
            how,
            ends,
            priority: random_priority(source),
            property: if source.one_in(4) { PROPERTIES[source.below(PROPERTIES.len())] } else { Property::Normal },
            no_skip: source.one_in(16),
            children: Vec::new(),
        }
    }

    fn names(&self, access: Access) -> impl Iterator<Item = usize> + '_ {
        self.accesses.iter().filter(move |&&(_, own)| own == access).map(|&(variable, _)| variable)
    }

    fn is_never_skipped(&self) -> bool {
        self.no_skip || matches!(self.property, Property::NoSkip | Property::DeleteVar)
    }

    /// Returns whether the operation only overwrites the variable. `access` is the variable's access in `accesses`; the
    /// variable may also be among `repeats`.
    fn overwrites(&self, variable: usize, access: Access) -> bool {
        access == Access::Overwrite && !self.repeats.contains(&variable)
    }

    fn is_typed(&self, program: &Program) -> bool {
        match self.how {
            How::Operator(number) => program.operators[number].how == How::Typed,
            how => matches!(how, How::Typed | How::Submit),
        }
    }
}

impl OperatorPlan {
    fn generate(shape: &Shape, source: &mut impl Source) -> Self {
        let mut like = Operation::generate(shape, source);
        // Runs are numbered by counting them, which requires exclusive access and thus a mutation.
        like.accesses[0].1 = Access::Write;
        let choice = source.below(9);
        let how = match choice % 3 {
            0 => How::Sync,
            1 => How::Typed,
            _ => How::Async(if source.one_in(2) { Finish::Inside } else { Finish::Elsewhere }),
        };
        let passes = match (choice / 3, how) {
            (0, _) => Passes::Nothing,
            (1, How::Sync | How::Typed) => {
                let first = like.accesses[0].0;
                like.repeats.retain(|&variable| variable != first);
                Passes::Variable
            }
            _ => Passes::Argument,
        };
        Self { like, how, passes, runs: Vec::new() }
    }
}

// ----------------------------------------------------------------------------------------------- arithmetic ----

const FACTOR: u64 = 6_364_136_223_846_793_005;

/// Folds the values seen by an operation into one number.
fn seen(id: Id, values: impl Iterator<Item = u64>) -> u64 {
    values.fold(u64::from(id) + 1, |sum, value| sum.wrapping_mul(FACTOR).wrapping_add(value))
}

/// Returns the value written through access `index` by an operation that has seen `seen`. `old` is the previous value,
/// or `None` for an overwrite.
fn written(seen: u64, old: Option<u64>, index: usize) -> u64 {
    old.unwrap_or(7).wrapping_mul(FACTOR).wrapping_add(seen).wrapping_add(index as u64)
}

fn first_value(variable: usize) -> u64 {
    (variable as u64 + 1).wrapping_mul(FACTOR)
}

/// A mask that makes the values of typed variables differ from the values outside the engine.
const TYPED: u64 = 0x5555_5555;

// ------------------------------------------------------------------------------------------------- the model ----

/// The expected results of a serial run.
#[derive(Clone, Debug)]
pub struct Model {
    /// Values outside the engine, used by every operation.
    slots: Vec<u64>,
    /// Values of the typed variables, used only by typed operations.
    typed: Vec<u64>,
    versions: Vec<u64>,
    /// For each variable, the operations that may have caused its failure; empty if it has not failed.
    failed: Vec<Vec<Id>>,
    /// Operations whose failures certainly do not count as reported yet.
    unreported: BTreeSet<Id>,
    /// Operations whose failures may already count as reported, since a cleared variable may have had them.
    maybe_unreported: BTreeSet<Id>,
    /// For each operation that ran, the values that it saw, folded into one number.
    seen: Vec<Option<u64>>,
}

impl Model {
    pub fn new(program: &Program) -> Self {
        Self {
            slots: (0..program.variables).map(first_value).collect(),
            typed: (0..program.variables).map(first_value).collect(),
            versions: vec![0; program.variables],
            failed: vec![Vec::new(); program.variables],
            unreported: BTreeSet::new(),
            maybe_unreported: BTreeSet::new(),
            seen: vec![None; program.operations.len()],
        }
    }

    /// Runs an operation.
    pub fn run(&mut self, program: &Program, id: Id) {
        let operation = program.operation(id);
        if !operation.is_never_skipped() {
            let mut causes: Vec<Id> = Vec::new();
            for &(variable, access) in &operation.accesses {
                if !operation.overwrites(variable, access) {
                    causes.extend(&self.failed[variable]);
                }
            }
            if !causes.is_empty() {
                self.fail(operation, &causes);
                return;
            }
        }
        let typed = operation.is_typed(program);
        let seen = seen(
            id,
            operation.accesses.iter().filter(|(_, access)| access.is_seen()).map(|&(variable, _)| {
                self.slots[variable].wrapping_add(if typed { self.typed[variable].rotate_left(32) } else { 0 })
            }),
        );
        self.seen[id as usize] = Some(seen);
        for (index, &(variable, access)) in operation.accesses.iter().enumerate() {
            self.slots[variable] = access.changes(id, self.slots[variable], seen, index);
            if typed {
                self.typed[variable] = access.changes(id, self.typed[variable], seen ^ TYPED, index);
            }
        }
        if operation.ends == Ends::Well {
            for &(variable, access) in &operation.accesses {
                if access != Access::Read {
                    self.versions[variable] += 1;
                }
                if operation.overwrites(variable, access) {
                    self.clear(variable);
                }
            }
        } else {
            self.unreported.insert(id);
            self.fail(operation, &[id]);
        }
    }

    /// Clears a variable's failure, which then counts as reported, or as possibly reported if the variable may have one
    /// of several failures.
    fn clear(&mut self, variable: usize) {
        let cleared = std::mem::take(&mut self.failed[variable]);
        match cleared[..] {
            [failure] => self.mark_reported(failure),
            _ => self.maybe_unreported.extend(cleared.into_iter().filter(|failure| self.unreported.remove(failure))),
        }
    }

    /// Records that a wait returned a failure.
    fn mark_reported(&mut self, failure: Id) {
        self.unreported.remove(&failure);
        self.maybe_unreported.remove(&failure);
    }

    fn fail(&mut self, operation: &Operation, causes: &[Id]) {
        for &(variable, access) in &operation.accesses {
            if access != Access::Read {
                // An already failed variable may keep its failure or adopt the new one.
                let failed = &mut self.failed[variable];
                if operation.overwrites(variable, access) {
                    failed.clear();
                }
                failed.extend(causes);
                failed.sort_unstable();
                failed.dedup();
            }
        }
    }
}

// ----------------------------------------------------------------------------------------------- the history ----

/// Operations that accessed a variable: one that mutated it, or those that read it between two mutations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group {
    Readers(Vec<Id>),
    /// Those that commuted between two others.
    Commuters(Vec<Id>),
    Writer(Id),
}

impl Group {
    fn ids(&self) -> &[Id] {
        match self {
            Self::Readers(ids) | Self::Commuters(ids) => ids,
            Self::Writer(id) => std::slice::from_ref(id),
        }
    }

    /// Whether operations with this access belong into such a group.
    fn has(&self, access: Access) -> bool {
        match self {
            Self::Readers(_) => access == Access::Read,
            Self::Commuters(_) => access == Access::Commute,
            Self::Writer(_) => matches!(access, Access::Write | Access::Overwrite),
        }
    }
}

/// The result of a wait: the value, or the operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Value(u64),
    Done,
    Failed(Id),
    Other(String),
}

/// The results of a run of a program.
#[derive(Clone, Debug)]
pub struct History {
    /// Each variable's log, final values and final version.
    logs: Vec<Vec<Group>>,
    slots: Vec<u64>,
    typed: Vec<Answer>,
    versions: Vec<u64>,
    /// For each operation, the number of runs, the values seen, folded into one number, and the times at which its push
    /// began and ended.
    runs: Vec<u32>,
    seen: Vec<u64>,
    times: Vec<(u64, u64)>,
    /// For each thread and step, the result if the step waits.
    answers: Vec<Vec<Option<Answer>>>,
    last: Answer,
    /// Descriptions of what went wrong during the run, such as accesses that overlapped a conflicting access.
    violations: Vec<String>,
}

#[derive(Default)]
struct Slot {
    /// The number of readers, or -1 for a writer.
    holders: AtomicI64,
    /// Only loaded and stored, with relaxed ordering, since the engine must order the accesses.
    value: AtomicU64,
    log: Mutex<Vec<Group>>,
}

#[derive(Default)]
struct Record {
    runs: AtomicU32,
    seen: AtomicU64,
    began: AtomicU64,
    ended: AtomicU64,
}

type Job = Box<dyn FnOnce() + Send>;

/// The state shared by a run's operations.
struct World {
    program: Arc<Program>,
    slots: Vec<Slot>,
    records: Vec<Record>,
    /// The number of runs of each operator so far. It is only loaded and stored.
    operator_runs: Vec<AtomicU32>,
    clock: Option<AtomicU64>,
    logs: bool,
    /// The limit on pending operations, and the maximum number pending after a push, if known.
    limit: Option<(usize, Option<u64>)>,
    /// The number of pushes that have returned.
    pushed: AtomicUsize,
    /// The current step of each thread.
    at: Vec<AtomicUsize>,
    violations: Mutex<Vec<String>>,
    completer: Mutex<Option<mpsc::Sender<Job>>>,
    variables: Vec<Var<u64>>,
}

/// What a run records besides the values, and the engine's limit. Both the logs and the clock synchronize threads to
/// some extent, so runs without them find more bugs.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Whether to record the order in which operations access each variable.
    pub logs: bool,
    /// Whether to record the times at which each push begins and ends.
    pub clock: bool,
    /// The engine's limit on pending operations. If it is set, pushes use each of the calls that respect the limit, and
    /// the number of pending operations is checked if its maximum is known.
    pub limit: Option<usize>,
    /// Whether an operation that reads all variables ends only when all threads have pushed, so that every mutation
    /// waits. The program must not wait.
    pub backlog: bool,
}

impl Watch {
    pub const NOTHING: Self = Self { logs: false, clock: false, limit: None, backlog: false };
    pub const ORDER: Self = Self { logs: true, ..Self::NOTHING };
    pub const EVERYTHING: Self = Self { clock: true, ..Self::ORDER };
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a program on an otherwise idle engine.
pub fn run(program: &Arc<Program>, engine: &Engine, watch: Watch) -> History {
    run_observed(program, engine, watch, |_| ())
}

/// Like [`run`], but first passes `observer` a function that can describe the run's progress at any time.
pub fn run_observed(
    program: &Arc<Program>,
    engine: &Engine,
    watch: Watch,
    observer: impl FnOnce(Box<dyn Fn() -> String + Send>),
) -> History {
    let (sender, receiver) = mpsc::channel::<Job>();
    let world = Arc::new(World {
        program: Arc::clone(program),
        slots: (0..program.variables)
            .map(|variable| Slot { value: AtomicU64::new(first_value(variable)), ..Slot::default() })
            .collect(),
        records: program.operations.iter().map(|_| Record::default()).collect(),
        operator_runs: program.operators.iter().map(|_| AtomicU32::new(0)).collect(),
        clock: watch.clock.then(|| AtomicU64::new(1)),
        logs: watch.logs,
        limit: watch.limit.map(|limit| (limit, program.most_pending(limit))),
        pushed: AtomicUsize::new(0),
        at: program.threads.iter().map(|_| AtomicUsize::new(0)).collect(),
        violations: Mutex::default(),
        completer: Mutex::new(Some(sender)),
        variables: (0..program.variables).map(|variable| engine.var(first_value(variable))).collect(),
    });
    let observed = Arc::clone(&world);
    observer(Box::new(move || observed.position()));
    let receiver = Arc::new(Mutex::new(receiver));
    let completers: Vec<_> = (0..2)
        .map(|_| {
            let receiver = Arc::clone(&receiver);
            thread::spawn(move || {
                loop {
                    let job = lock(&receiver).recv();
                    match job {
                        Ok(job) => job(),
                        Err(_) => return,
                    }
                }
            })
        })
        .collect();

    let operators: Vec<_> = (0..program.operators.len()).map(|number| world.operator(engine, number)).collect();
    let gate = watch.backlog.then(|| {
        let (sender, receiver) = mpsc::channel();
        let gate = engine.op("gate").reads(&world.variables);
        gate.push(completion(), move |gate| _ = sender.send(gate)).expect("an open engine");
        receiver.recv().expect("the first operation should start")
    });
    let barrier = Barrier::new(program.threads.len());
    let answers = thread::scope(|scope| {
        let threads: Vec<_> = program
            .threads
            .iter()
            .zip(&world.at)
            .map(|(steps, at)| {
                let (world, operators, barrier) = (&world, &operators, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let step = |(index, &step)| {
                        at.store(index, Relaxed);
                        world.step(engine, operators, step)
                    };
                    let answers = steps.iter().enumerate().map(step).collect();
                    at.store(steps.len(), Relaxed);
                    answers
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|payload| resume_unwind(payload))).collect()
    });
    gate.into_iter().for_each(Completion::complete);
    let last = loop {
        // A wait does not cover operations pushed after it began.
        let pushed = world.pushed.load(SeqCst);
        let last = answer(engine.wait_for_all().map(|()| Answer::Done));
        if world.pushed.load(SeqCst) == pushed {
            break last;
        }
    };
    lock(&world.completer).take();
    for completer in completers {
        completer.join().unwrap_or_else(|payload| resume_unwind(payload));
    }
    History {
        logs: world.slots.iter().map(|slot| lock(&slot.log).clone()).collect(),
        slots: world.slots.iter().map(|slot| slot.value.load(Relaxed)).collect(),
        typed: world.variables.iter().map(|variable| answer(engine.get(variable).map(Answer::Value))).collect(),
        versions: world.variables.iter().map(|variable| variable.version()).collect(),
        runs: world.records.iter().map(|record| record.runs.load(Relaxed)).collect(),
        seen: world.records.iter().map(|record| record.seen.load(Relaxed)).collect(),
        times: world.records.iter().map(|record| (record.began.load(Relaxed), record.ended.load(Relaxed))).collect(),
        answers,
        last,
        violations: std::mem::take(&mut *lock(&world.violations)),
    }
}

fn answer(result: Result<Answer, WaitError>) -> Answer {
    match result {
        Ok(answer) => answer,
        Err(WaitError::Failed(error)) => match error.name().strip_prefix('#').map(str::parse) {
            Some(Ok(id)) => Answer::Failed(id),
            _ => Answer::Other(error.to_string()),
        },
        Err(error) => Answer::Other(error.to_string()),
    }
}

impl World {
    /// Describes the progress of the run, for messages.
    fn position(&self) -> String {
        let at: Vec<_> = self.at.iter().map(|at| at.load(Relaxed)).collect();
        let idle: Vec<_> = (0..self.records.len()).filter(|&id| self.records[id].runs.load(Relaxed) == 0).collect();
        let held: Vec<_> = (0..self.slots.len())
            .map(|variable| (variable, self.slots[variable].holders.load(Relaxed)))
            .filter(|&(_, holders)| holders != 0)
            .collect();
        format!(
            "the threads are at steps {at:?}, {} pushes have returned\noperations that have not run: {idle:?}\nvariables \
             in use, with their number of readers, or -1 for a writer: {held:?}",
            self.pushed.load(Relaxed)
        )
    }

    fn step(self: &Arc<Self>, engine: &Engine, operators: &[AnyOperator], step: Step) -> Option<Answer> {
        let done = |()| Answer::Done;
        match step {
            Step::Push(id) => {
                self.push(engine, operators, id, self.limit.is_some());
                if let Some((limit, Some(most))) = self.limit {
                    let pending = engine.pending();
                    if pending > most {
                        let what = format!("{pending} operations are pending after push {id}; the limit is {limit}");
                        lock(&self.violations).push(what);
                    }
                }
                None
            }
            Step::Get(variable) => Some(answer(engine.get(&self.variables[variable]).map(Answer::Value))),
            Step::WaitForVar(variable) => Some(answer(engine.wait_for_var(&self.variables[variable]).map(done))),
            Step::WaitToRead(variable) => Some(answer(engine.wait_to_read(&self.variables[variable]).map(done))),
            Step::WaitForAll => Some(answer(engine.wait_for_all().map(done))),
            Step::ClearError(variable) => {
                engine.clear_error(&self.variables[variable]).expect("the variable should belong to the engine");
                None
            }
        }
    }

    fn time(&self) -> u64 {
        self.clock.as_ref().map_or(0, |clock| clock.fetch_add(1, SeqCst))
    }

    fn token(&self, variable: usize) -> &Token {
        self.variables[variable].token()
    }

    fn tokens<'w>(&'w self, operation: &'w Operation, access: Access) -> impl Iterator<Item = &'w Token> {
        operation.names(access).map(|variable| self.token(variable))
    }

    /// Declares the part of an operation that all kinds share.
    fn describe<'e>(&'e self, engine: &'e Engine, name: String, operation: &'e Operation) -> OpBuilder<'e> {
        let builder = engine
            .op(name)
            .priority(operation.priority)
            .kind(operation.property)
            .reads(operation.repeats.iter().map(|&variable| self.token(variable)));
        if operation.no_skip { builder.run_always() } else { builder }
    }

    fn describe_untyped<'e>(&'e self, engine: &'e Engine, name: String, operation: &'e Operation) -> OpBuilder<'e> {
        let builder = self
            .describe(engine, name, operation)
            .reads(self.tokens(operation, Access::Read))
            .writes(self.tokens(operation, Access::Write))
            .overwrites(self.tokens(operation, Access::Overwrite));
        // Otherwise, the operation would not go the short way.
        if operation.names(Access::Commute).next().is_some() {
            return builder.commutes(self.tokens(operation, Access::Commute));
        }
        builder
    }

    /// Returns a builder from `describe`. If there is a limit, the builder of one operation in four has waited for
    /// room, and that of another one in four has found room, unless there was none.
    fn admitted<'e>(is_limited: bool, id: Id, describe: impl Fn() -> OpBuilder<'e>) -> OpBuilder<'e> {
        match id % 4 {
            2 if is_limited => match describe().if_room() {
                Err(PushError::Full) => describe(),
                admitted => admitted.expect("the engine should be open"),
            },
            3 if is_limited => block_on(describe().when_room()).expect("the engine should be open"),
            _ => describe(),
        }
    }

    fn push(self: &Arc<Self>, engine: &Engine, operators: &[AnyOperator], id: Id, is_limited: bool) {
        let operation = self.program.operation(id);
        let record = &self.records[id as usize];
        let (name, world) = (format!("#{id}"), Arc::clone(self));
        record.began.store(self.time(), Relaxed);
        macro_rules! typed {
            ($call:ident) => {{
                let reads: Vec<_> =
                    operation.names(Access::Read).map(|variable| self.variables[variable].read()).collect();
                let writes: Vec<_> =
                    operation.names(Access::Write).map(|variable| self.variables[variable].write()).collect();
                let overwrites: Vec<_> =
                    operation.names(Access::Overwrite).map(|variable| self.variables[variable].overwrite()).collect();
                let commutes: Vec<_> =
                    operation.names(Access::Commute).map(|variable| self.variables[variable].commute()).collect();
                let builder = Self::admitted(is_limited, id, || self.describe(engine, name.clone(), operation));
                if commutes.is_empty() {
                    builder.$call((reads, writes, overwrites), move |(reads, writes, overwrites)| {
                        world.body_typed(id, (reads, writes, overwrites, Vec::new()))
                    })
                } else {
                    builder.$call((reads, writes, overwrites, commutes), move |values| world.body_typed(id, values))
                }
            }};
        }
        let untyped = || self.describe_untyped(engine, name.clone(), operation);
        let pushed = match operation.how {
            How::Sync => Self::admitted(is_limited, id, untyped).push_sync(move |cx| world.body(id, &cx.engine())),
            How::Typed => typed!(push_any),
            How::Submit => typed!(submit_any).map(drop),
            How::Async(finish) => Self::admitted(is_limited, id, untyped)
                .push_async_any(raddle::cx(), move |cx, done| world.body_async(id, &cx.engine(), finish, done)),
            How::Operator(number) => {
                let (variable, priority) = (&self.variables[operation.accesses[0].0], operation.priority);
                macro_rules! run {
                    ($operator:expr, $call:ident($($passed:expr),*)) => {
                        match id % 4 {
                            2 if is_limited => match $operator.if_room() {
                                Err(PushError::Full) => $operator.$call($($passed,)* priority),
                                admitted => admitted.and_then(|admitted| admitted.$call($($passed,)* priority)),
                            },
                            3 if is_limited => block_on($operator.when_room())
                                .and_then(|admitted| admitted.$call($($passed,)* priority)),
                            _ => $operator.$call($($passed,)* priority),
                        }
                    };
                }
                match &operators[number] {
                    AnyOperator::Plain(operator) => run!(operator, push_with_priority()),
                    AnyOperator::With(operator) => run!(operator, push_with_priority(id)),
                    AnyOperator::OnVar(operator) => run!(operator, push_on_with_priority(variable, id)),
                    AnyOperator::OnToken(operator) => run!(operator, push_on_with_priority(variable.token(), id)),
                }
            }
        };
        record.ended.store(self.time(), Relaxed);
        self.pushed.fetch_add(1, SeqCst);
        pushed.expect("the program should declare variables of the engine without aliases");
    }

    fn operator(self: &Arc<Self>, engine: &Engine, number: usize) -> AnyOperator {
        let plan = &self.program.operators[number];
        let chooses = plan.passes == Passes::Variable;
        let mut own = plan.like.clone();
        if chooses {
            own.accesses.remove(0);
        }
        let (operation, name, world) = (&own, format!("operator {number}"), Arc::clone(self));
        let of = |access| operation.names(access).map(|variable| &self.variables[variable]);
        let typed = || {
            let (reads, writes) = (of(Access::Read).map(Var::read), of(Access::Write).map(Var::write));
            let overwrites = of(Access::Overwrite).map(Var::overwrite);
            (reads.collect::<Vec<_>>(), writes.collect::<Vec<_>>(), overwrites.collect::<Vec<_>>())
        };
        let operator = match (plan.how, plan.passes) {
            (How::Typed, Passes::Nothing) => self
                .describe(engine, name, operation)
                .try_operator(typed(), move |(reads, writes, overwrites)| {
                    Ok(world.body_typed(world.next_run(number), (reads, writes, overwrites, Vec::new()))?)
                })
                .map(AnyOperator::Plain),
            (How::Typed, Passes::Argument) => self
                .describe(engine, name, operation)
                .try_operator_with(typed(), move |(reads, writes, overwrites), id| {
                    Ok(world.body_typed(id, (reads, writes, overwrites, Vec::new()))?)
                })
                .map(AnyOperator::With),
            (How::Typed, Passes::Variable) => self
                .describe(engine, name, operation)
                .try_operator_on(chosen::write(), typed(), move |first, (reads, mut writes, overwrites), id| {
                    writes.insert(0, first);
                    Ok(world.body_typed(id, (reads, writes, overwrites, Vec::new()))?)
                })
                .map(AnyOperator::OnVar),
            (How::Async(finish), Passes::Nothing) => self
                .describe_untyped(engine, name, operation)
                .try_operator((raddle::cx(), completion()), move |(cx, done)| {
                    Ok(world.body_async(world.next_run(number), &cx.engine(), finish, done)?)
                })
                .map(AnyOperator::Plain),
            (How::Async(finish), _) => self
                .describe_untyped(engine, name, operation)
                .try_operator_with((raddle::cx(), completion()), move |(cx, done), id| {
                    Ok(world.body_async(id, &cx.engine(), finish, done)?)
                })
                .map(AnyOperator::With),
            (_, Passes::Nothing) => self
                .describe_untyped(engine, name, operation)
                .operator_sync(move |cx| world.body(world.next_run(number), &cx.engine()))
                .map(AnyOperator::Plain),
            (_, Passes::Argument) => self
                .describe_untyped(engine, name, operation)
                .try_operator_with(raddle::cx(), move |cx, id| Ok(world.body(id, &cx.engine())?))
                .map(AnyOperator::With),
            (_, Passes::Variable) => self
                .describe_untyped(engine, name, operation)
                .try_operator_on(chosen::writes(), raddle::cx(), move |(), cx, id| Ok(world.body(id, &cx.engine())?))
                .map(AnyOperator::OnToken),
        };
        operator.expect("the program should declare variables of the engine without aliases")
    }

    /// Returns the operation representing an operator's next run.
    fn next_run(&self, number: usize) -> Id {
        let count = &self.operator_runs[number];
        let run = count.load(Relaxed);
        count.store(run + 1, Relaxed);
        match self.program.operators[number].runs.get(run as usize) {
            Some(&id) => id,
            None => {
                lock(&self.violations).push(format!("operator {number} ran too often"));
                self.program.operators[number].runs[0]
            }
        }
    }

    // ------------------------------------------------------------------- what operations do ----

    /// Begins the operation's accesses and folds the values that it sees into one number. `typed`, if given, yields the
    /// values of its typed variables, except those that it overwrites.
    fn enter(&self, id: Id, mut typed: Option<impl Iterator<Item = u64>>) -> u64 {
        let operation = self.program.operation(id);
        for &(variable, access) in &operation.accesses {
            let slot = &self.slots[variable];
            let fine = if access == Access::Read {
                slot.holders.fetch_add(1, Relaxed) >= 0
            } else {
                slot.holders.swap(-1, Relaxed) == 0
            };
            if !fine {
                lock(&self.violations).push(format!("operation {id} shared variable {variable} ({access:?})"));
            }
            if !self.logs {
                continue;
            }
            let mut log = lock(&slot.log);
            match (access, log.last_mut()) {
                (Access::Read, Some(Group::Readers(readers))) => readers.push(id),
                (Access::Read, _) => log.push(Group::Readers(vec![id])),
                (Access::Commute, Some(Group::Commuters(commuters))) => commuters.push(id),
                (Access::Commute, _) => log.push(Group::Commuters(vec![id])),
                _ => log.push(Group::Writer(id)),
            }
        }
        let record = &self.records[id as usize];
        record.runs.fetch_add(1, Relaxed);
        let seen = seen(
            id,
            operation.accesses.iter().filter(|(_, access)| access.is_seen()).map(|&(variable, _)| {
                let typed = typed.as_mut().map_or(0, |typed| typed.next().unwrap_or(0).rotate_left(32));
                self.slots[variable].value.load(Relaxed).wrapping_add(typed)
            }),
        );
        record.seen.store(seen, Relaxed);
        seen
    }

    /// Writes the operation's values outside the engine and ends its accesses.
    fn leave(&self, id: Id, seen: u64) {
        for (index, &(variable, access)) in self.program.operation(id).accesses.iter().enumerate() {
            let slot = &self.slots[variable];
            if access == Access::Read {
                slot.holders.fetch_sub(1, Relaxed);
                continue;
            }
            slot.value.store(access.changes(id, slot.value.load(Relaxed), seen, index), Relaxed);
            slot.holders.store(0, Relaxed);
        }
    }

    fn end(&self, id: Id) -> Result<(), String> {
        match self.program.operation(id).ends {
            Ends::Well => Ok(()),
            Ends::Error | Ends::Lost => Err(format!("{id} fails on purpose")),
            // `resume_unwind` does not call the panic hook, so this panic is not reported.
            Ends::Panic => resume_unwind(Box::new(format!("{id} panics on purpose"))),
        }
    }

    fn push_children(self: &Arc<Self>, id: Id, engine: &Engine) {
        for &child in &self.program.operation(id).children {
            self.push(engine, &[], child, false);
        }
    }

    fn body(self: &Arc<Self>, id: Id, engine: &Engine) -> Result<(), String> {
        let seen = self.enter(id, None::<std::iter::Empty<u64>>);
        self.push_children(id, engine);
        self.leave(id, seen);
        self.end(id)
    }

    fn body_typed(
        self: &Arc<Self>,
        id: Id,
        (reads, writes, overwrites, commutes): (Vec<&u64>, Vec<&mut u64>, Vec<&mut u64>, Vec<&mut u64>),
    ) -> Result<(), String> {
        let operation = self.program.operation(id);
        let values: Vec<u64> = {
            let (mut reads, mut writes) = (reads.iter(), writes.iter());
            operation
                .accesses
                .iter()
                .filter_map(|(_, access)| match access {
                    Access::Read => reads.next().map(|value| **value),
                    Access::Write => writes.next().map(|value| **value),
                    Access::Overwrite | Access::Commute => None,
                })
                .collect()
        };
        let seen = self.enter(id, Some(values.into_iter()));
        let mut mutated = [writes, overwrites, commutes].map(Vec::into_iter);
        for (index, &(_, access)) in operation.accesses.iter().enumerate() {
            let value = match access {
                Access::Read => continue,
                Access::Write => mutated[0].next(),
                Access::Overwrite => mutated[1].next(),
                Access::Commute => mutated[2].next(),
            };
            if let Some(value) = value {
                *value = access.changes(id, *value, seen ^ TYPED, index);
            }
        }
        self.leave(id, seen);
        self.end(id)
    }

    fn body_async(self: &Arc<Self>, id: Id, engine: &Engine, finish: Finish, done: Completion) -> Result<(), String> {
        let seen = self.enter(id, None::<std::iter::Empty<u64>>);
        self.push_children(id, engine);
        let ends = self.program.operation(id).ends;
        if ends == Ends::Panic {
            self.leave(id, seen);
            return self.end(id);
        }
        let world = Arc::clone(self);
        let rest = move || {
            world.leave(id, seen);
            match world.end(id) {
                Ok(()) => done.complete(),
                Err(_) if ends == Ends::Lost => drop(done),
                Err(error) => done.fail(error),
            }
        };
        if let (Finish::Elsewhere, Some(completer)) = (finish, &*lock(&self.completer)) {
            completer.send(Box::new(rest)).map_err(|_| "no thread completes operations")?;
            return Ok(());
        }
        rest();
        Ok(())
    }
}

impl History {
    /// Returns the final values.
    pub fn end(&self) -> (Vec<u64>, Vec<Answer>, Vec<u64>) {
        (self.slots.clone(), self.typed.clone(), self.versions.clone())
    }

    /// Returns incorrect histories, each differing from this one in a single respect. This history must be correct and
    /// must contain logs.
    pub fn tampered(&self) -> Vec<(&'static str, Self)> {
        let mut all = Vec::new();
        let mut tamper = |what, f: &dyn Fn(&mut Self)| {
            let mut other = self.clone();
            f(&mut other);
            all.push((what, other));
        };
        tamper("a final value", &|history| history.slots[0] ^= 1);
        tamper("a final typed value", &|history| history.typed[0] = Answer::Value(0));
        tamper("a version", &|history| history.versions[0] += 1);
        tamper("a value that was seen", &|history| history.seen[7] ^= 1);
        tamper("an operation that did not run", &|history| history.runs[0] = 0);
        tamper("an operation that ran twice", &|history| history.runs[1] = 2);
        tamper("a violation", &|history| history.violations.push(String::new()));
        tamper("a failure", &|history| history.last = Answer::Failed(0));
        tamper("a lost access", &|history| drop(history.logs[0].pop()));
        tamper("a repeated access", &|history| {
            let first = history.logs[0][0].clone();
            history.logs[0].push(first);
        });
        tamper("two accesses in the wrong order", &|history| {
            let at = history.logs[0].len() / 2;
            history.logs[0].swap(at, at + 1);
        });
        all
    }

    /// Returns this history with a cycle: the logs of the first two variables disagree on the order of two operations
    /// that conflict on both. Returns `None` if there are no such operations.
    pub fn with_a_cycle(&self, program: &Program) -> Option<Self> {
        let on_second = |id: Id| program.operation(id).accesses.iter().find(|(variable, _)| *variable == 1);
        let at = self.logs[0].windows(2).position(|pair| match pair {
            [Group::Writer(a), Group::Writer(b)] => match (on_second(*a), on_second(*b)) {
                (Some((_, a)), Some((_, b))) => *a != Access::Read || *b != Access::Read,
                _ => false,
            },
            _ => false,
        })?;
        let mut other = self.clone();
        other.logs[0].swap(at, at + 1);
        other.times.fill((0, 0));
        Some(other)
    }
}

// -------------------------------------------------------------------------------------------------- the checks ----

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, index: usize, is: &T, should: &T) -> Result<(), String> {
    if is == should { Ok(()) } else { Err(format!("{what} {index} is {is:?}, expected {should:?}")) }
}

impl History {
    /// Compares all final values with the model.
    fn check_end(&self, program: &Program, model: &Model) -> Result<(), String> {
        if !self.violations.is_empty() {
            return Err(format!("{} violations: {:?}", self.violations.len(), self.violations.first()));
        }
        for id in 0..program.operations.len() {
            equal("the number of runs of operation", id, &self.runs[id], &u32::from(model.seen[id].is_some()))?;
            equal("the value seen by operation", id, &self.seen[id], &model.seen[id].unwrap_or(0))?;
        }
        for variable in 0..program.variables {
            equal("the outside value of variable", variable, &self.slots[variable], &model.slots[variable])?;
            equal("the version of variable", variable, &self.versions[variable], &model.versions[variable])?;
            self.typed[variable]
                .check(model.failed[variable].as_slice(), &Answer::Value(model.typed[variable]))
                .map_err(|error| format!("variable {variable}: {error}"))?;
        }
        self.last.check_all(model)
    }
}

impl Answer {
    fn check(&self, failed: &[Id], fine: &Answer) -> Result<(), String> {
        match self {
            Self::Failed(id) if failed.contains(id) => Ok(()),
            answer if failed.is_empty() && answer == fine => Ok(()),
            _ => Err(format!("a wait returned {self:?}, expected {fine:?} or the failure of one of {failed:?}")),
        }
    }

    fn check_all(&self, model: &Model) -> Result<(), String> {
        let (unreported, perhaps) = (&model.unreported, &model.maybe_unreported);
        match self {
            Self::Failed(id) if unreported.contains(id) || perhaps.contains(id) => Ok(()),
            Self::Done if unreported.is_empty() => Ok(()),
            _ => Err(format!(
                "a wait for all returned {self:?}; unreported failures are {unreported:?}, and perhaps {perhaps:?}"
            )),
        }
    }
}

/// Checks the history of a program with one thread and without children against its serial run.
pub fn check_serial(program: &Program, history: &History) -> Result<(), String> {
    let mut model = Model::new(program);
    for (index, step) in program.threads[0].iter().enumerate() {
        let answer = history.answers[0][index].as_ref();
        let check = match (*step, answer) {
            (Step::Push(id), _) => {
                model.run(program, id);
                Ok(())
            }
            (Step::ClearError(variable), _) => {
                model.clear(variable);
                Ok(())
            }
            (Step::Get(variable), Some(answer)) => {
                answer.check(&model.failed[variable], &Answer::Value(model.typed[variable]))
            }
            (Step::WaitForVar(variable) | Step::WaitToRead(variable), Some(answer)) => {
                answer.check(&model.failed[variable], &Answer::Done)
            }
            (Step::WaitForAll, Some(answer)) => answer.check_all(&model),
            (step, None) => Err(format!("{step:?} has no answer")),
        };
        check.map_err(|error| format!("step {index}, {step:?}: {error}"))?;
        if let Some(Answer::Failed(failure)) = answer {
            model.mark_reported(*failure);
        }
    }
    history.check_end(program, &model)
}

/// Checks a history with logs, of a program without failures, against a serial run in an order consistent with the
/// logs.
pub fn check_some_order(program: &Program, history: &History) -> Result<(), String> {
    check_logs(program, history)?;
    for answer in history.answers.iter().flatten().flatten() {
        if !matches!(answer, Answer::Done | Answer::Value(_)) {
            return Err(format!("no operation fails, but a wait returned {answer:?}"));
        }
    }
    let order = explain(program, history)?;
    let mut model = Model::new(program);
    for id in order {
        model.run(program, id);
    }
    history.check_end(program, &model)
}

/// Checks that every operation appears exactly once in the log of each of its variables, and in no other log.
fn check_logs(program: &Program, history: &History) -> Result<(), String> {
    let mut found = 0;
    for (variable, log) in history.logs.iter().enumerate() {
        let mut before = vec![false; program.operations.len()];
        for group in log {
            for &id in group.ids() {
                found += 1;
                let named =
                    program.operation(id).accesses.iter().any(|&(own, access)| own == variable && group.has(access));
                if !named || std::mem::replace(&mut before[id as usize], true) {
                    return Err(format!("operation {id} accessed variable {variable} unexpectedly"));
                }
            }
        }
    }
    let expected: usize = program.operations.iter().map(|operation| operation.accesses.len()).sum();
    equal("the number of accesses in log", 0, &found, &expected)
}

/// Returns an order of all operations that is consistent with every log, every thread, every parent and the clock.
pub fn explain(program: &Program, history: &History) -> Result<Vec<Id>, String> {
    let operations = program.operations.len();
    // The nodes are the operations, followed by the times at which pushes began or ended, in order.
    let mut moments: Vec<(u64, Id, bool)> = Vec::new();
    for (id, &(began, ended)) in history.times.iter().enumerate() {
        if began != 0 && ended != 0 {
            moments.push((began, id as Id, true));
            moments.push((ended, id as Id, false));
        }
    }
    moments.sort_unstable();
    let mut graph = Graph::new(operations + moments.len());
    for (index, &(_, id, begins)) in moments.iter().enumerate() {
        let node = operations + index;
        if index > 0 {
            graph.edge(node - 1, node);
        }
        if begins {
            graph.edge(node, id as usize);
        } else {
            graph.edge(id as usize, node);
        }
    }
    for log in &history.logs {
        for pair in log.windows(2) {
            if let [Group::Readers(_), Group::Readers(_)] | [Group::Commuters(_), Group::Commuters(_)] = pair {
                return Err("a log has two groups of one kind in a row".to_owned());
            }
            for a in pair[0].ids() {
                pair[1].ids().iter().for_each(|b| graph.edge(*a as usize, *b as usize));
            }
        }
    }
    for steps in &program.threads {
        let pushes: Vec<Id> =
            steps.iter().filter_map(|step| if let Step::Push(id) = step { Some(*id) } else { None }).collect();
        pushes.windows(2).for_each(|pair| graph.edge(pair[0] as usize, pair[1] as usize));
    }
    for (id, operation) in program.operations.iter().enumerate() {
        let mut before = id;
        for &child in &operation.children {
            graph.edge(before, child as usize);
            before = child as usize;
        }
    }
    let order = graph.order().map_err(|cycle| {
        let name = |node: &usize| match moments.get(node.wrapping_sub(operations)) {
            Some((time, ..)) => format!("time {time}"),
            None => format!("operation {node}: {:?}", program.operations[*node]),
        };
        format!("no order explains the logs: {:#?}", cycle.iter().map(name).collect::<Vec<_>>())
    })?;
    Ok(order.into_iter().filter(|&node| node < operations).map(|node| node as Id).collect())
}

struct Graph {
    successors: Vec<Vec<u32>>,
    predecessors: Vec<u32>,
}

impl Graph {
    fn new(nodes: usize) -> Self {
        Self { successors: vec![Vec::new(); nodes], predecessors: vec![0; nodes] }
    }

    fn edge(&mut self, from: usize, to: usize) {
        self.successors[from].push(to as u32);
        self.predecessors[to] += 1;
    }

    /// Returns all nodes, each after its predecessors, or the nodes of a cycle.
    fn order(mut self) -> Result<Vec<usize>, Vec<usize>> {
        let nodes = self.successors.len();
        let mut order: Vec<usize> = (0..nodes).filter(|&node| self.predecessors[node] == 0).collect();
        let mut next = 0;
        while let Some(&node) = order.get(next) {
            next += 1;
            for &after in &self.successors[node] {
                self.predecessors[after as usize] -= 1;
                if self.predecessors[after as usize] == 0 {
                    order.push(after as usize);
                }
            }
        }
        if order.len() == nodes {
            return Ok(order);
        }
        // Every remaining node has a remaining predecessor, so walking back from any of them leads to a cycle.
        let left = |node: usize| self.predecessors[node] > 0;
        let mut back = vec![usize::MAX; nodes];
        for node in (0..nodes).filter(|&node| left(node)) {
            for &after in self.successors[node].iter().filter(|&&after| left(after as usize)) {
                back[after as usize] = node;
            }
        }
        let mut at = (0..nodes).find(|&node| left(node)).unwrap_or(0);
        for _ in 0..nodes {
            at = back[at];
        }
        let mut cycle = vec![at];
        let mut before = back[at];
        while before != at {
            cycle.push(before);
            before = back[before];
        }
        cycle.reverse();
        Err(cycle)
    }
}
