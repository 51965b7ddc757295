//! The targets `push` and `typed`: they run one thread's program on the naive engine and on a threaded engine, and
//! compare the results with a model.
//!
//! With one pushing thread, the program determines the values that each operation sees, every final value and version,
//! every failure with its cause, and every refusal. One fact is taken from the run: whether a handle cancels its
//! operation before the operation starts. Two rules are not promised but hold on all engines, so the model includes
//! them. An operation that is skipped because several variables have failed propagates the failure of the oldest of
//! them. A variable that has failed keeps its failure until the failure is cleared or an operation overwrites the
//! variable. In `push`, most operations use only tokens, and they complete in all ways that the engine offers. In
//! `typed`, most operations use typed variables, in many shapes, and some operations are refused since they alias a
//! variable. In a third of the programs, the engine and the program's group limit pending operations; the limits change
//! no result.
//!
//! A cancellation has a determined outcome if the cancelled function is known to be running, or if the cancelled
//! operations cannot start before the cancellation because they read a variable that is held until then.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use raddle::{
    Completion, Deferral, Device, Engine, EngineBuilder, EngineKind, Group, OpBuilder, OpContext, OpError, OpHandle,
    Operator, PushError, Scope, Shutdown, Token, Var, WaitError, WriteGuard, completion, deferral,
    error::{BoxError, Misfit, NoAccess},
    gpu::{DeviceVec, GpuStream, SimulatedGpu, simulated::Clock},
};

use super::{
    Bytes, PLANNED, Planned, PlannedTwice, Watch, check_recorded, elsewhere, engine_plan, eventually_ok, observe,
    shapes::{self, Acquired, Content, DEFAULT, GUARDED, Narrow, OLDEST_SHAPES, Ref, SHAPES, Submitted, Wide},
    watched,
};
use crate::shapes::*;
use crate::{
    Droppable, Drops, THREADED, block_on, lock, poll_once,
    program::{Access, Finish, Source},
    yield_now,
};

// ------------------------------------------------------------------------------------------------- programs ----

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Bare,
    Narrow,
    Wide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sync,
    Async(Finish),
    /// A future that may yield while it holds its variables.
    Future,
    /// This and the following kinds use typed variables.
    Push,
    Submit,
    TrySubmit,
    /// This and the following kinds are futures that may yield while they hold guards of typed variables.
    PushFuture,
    SubmitFuture,
    TrySubmitFuture,
}

impl Kind {
    fn is_guarded(self) -> bool {
        matches!(self, Self::PushFuture | Self::SubmitFuture | Self::TrySubmitFuture)
    }

    fn is_typed(self) -> bool {
        matches!(self, Self::Push | Self::Submit | Self::TrySubmit) || self.is_guarded()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Well,
    /// With an `Err` from the function, or with a panic if the function cannot return one.
    Error,
    PanicStr,
    PanicString,
    /// With a non-string payload.
    PanicAny,
    /// With a payload whose drop panics.
    PanicPanics,
    /// With `Completion::fail`.
    Fail,
    /// By dropping the completion.
    Lost,
    /// With a panic that drops the guards of acquired variables.
    Guard,
}

/// What an operation belongs to, or what may cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    None,
    /// A deadline that does not expire.
    InTime,
    /// An expired deadline.
    Late,
    /// The program's group.
    Group,
    /// A cancelled group.
    Cancelled,
    /// A quietly cancelled group.
    PassedOver,
    /// Its own scope, which waits for it. The scope has a variable and borrows a number. The operation uses both,
    /// between an operation that writes the variable and one that reads the number.
    Scope,
    /// Its own parent, which declares the same variables and pushes the operation as its child. Usually the parent
    /// first pushes another child, which fills a variable of the family.
    Parent,
    /// The operation's handle, loudly or quietly. Sometimes the operation is held up until it is cancelled; otherwise,
    /// it may start before the cancellation.
    Handle(Cancel),
    /// A group containing only the operations of the same step. The group is cancelled while all of them are pending
    /// or, without a [`Cancel`], after they have ended.
    Together(Option<Cancel>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancel {
    Loudly,
    Quietly,
}

/// What asks a running function to stop.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// Its own group, which the function cancels.
    Itself,
    Group(Cancel),
    Handle(Cancel),
}

/// The planned outcome of acquiring variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acquire {
    /// The guards are used.
    Used,
    /// The future is dropped while it is pending.
    Dropped,
    /// A panic drops the guards.
    Panics,
}

#[derive(Clone, Debug)]
struct Operation {
    untyped: Vec<(usize, Access)>,
    /// The variable for each place of the shape, in order.
    typed: Vec<usize>,
    shape: usize,
    kind: Kind,
    ends: Ends,
    priority: i32,
    property: Property,
    no_skip: bool,
    /// The number of the GPU on which the operation should run, if any. The engine has only GPU 0.
    gpu: Option<u32>,
    foreign: bool,
    yields: usize,
    bound: Bound,
}

#[derive(Clone, Copy, Debug)]
enum Wait {
    ForVar(usize),
    ToRead(usize),
    ToWrite(usize),
    Get(usize),
    ForAll,
    Handle(usize),
    /// For the variable's `ready` future.
    Ready(usize),
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    None,
    Micros(u64),
    /// As an awaited future.
    Future,
    /// As a future polled once; for [`Wait::Get`], with [`Engine::with`].
    Poll,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    NewVariable,
    Push(usize),
    MakeOperator(usize),
    RunOperator(usize, Option<i32>),
    DropOperator(usize),
    Delete {
        variable: usize,
        panics: bool,
    },
    DropVariable(usize),
    Wait(Wait, Limit),
    ClearError(usize),
    /// Clears the failures remaining after a wait for all.
    ClearErrors,
    /// Pushes the replacement of a value.
    Set(usize, u64),
    /// Waits for the program's group.
    WaitForGroup,
    /// Replaces a value, returning the old one.
    Replace(usize, u64),
    DropHandle(usize),
    IgnoreHandle(usize),
    /// Returns the value, leaving the default in its place.
    Take(usize),
    /// Pushes a run of an operator, then waits for it with this limit or ignores its handle.
    SubmitOperator(usize, Option<Limit>),
    /// Begins to acquire this operation's variables. The acquisition stays pending until
    /// [`EndAcquire`](Self::EndAcquire).
    BeginAcquire(usize, Acquire),
    EndAcquire,
    /// Pushes `count` operations, beginning with `first`, as a group, then cancels and awaits the group.
    Together {
        first: usize,
        count: usize,
        cancel: Option<Cancel>,
    },
    /// Pushes an operation whose function runs until asked to stop, and waits for the operation.
    Stop(usize, Stop),
}

#[derive(Debug, Default)]
struct Program {
    variables: Vec<Class>,
    operations: Vec<Operation>,
    steps: Vec<Step>,
    /// Whether the engine is dropped without a shutdown.
    drops_engine: bool,
}

const PRIORITIES: [i32; 8] = [0, 0, 1, -1, 6, -100, i32::MAX, i32::MIN];

const PROPERTIES: [Property; 9] = [
    Property::Normal,
    Property::Normal,
    Property::CopyFromGpu,
    Property::CopyToGpu,
    Property::CpuPrioritized,
    Property::GpuPrioritized,
    Property::Async,
    Property::DeleteVar,
    Property::NoSkip,
];

const MOST_VARIABLES: usize = 12;
const MOST_STEPS: usize = 120;

impl Program {
    fn decode(bytes: &mut Bytes<'_>, is_typed: bool, is_limited: bool) -> Self {
        let mut program = Self { drops_engine: bytes.one_in(2), ..Self::default() };
        // The live variables, the operators and the handles.
        let (mut live, mut operators, mut handles) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..1 + bytes.below(6) {
            program.add_variable(&mut live, is_typed, bytes);
        }
        while !bytes.is_exhausted() && program.steps.len() < MOST_STEPS {
            if live.is_empty() {
                program.add_variable(&mut live, is_typed, bytes);
            }
            let variable = bytes.pick(&live);
            let step = match bytes.below_or(24, 20) {
                0 if program.variables.len() < MOST_VARIABLES => {
                    program.add_variable(&mut live, is_typed, bytes);
                    continue;
                }
                1 if bytes.one_in(2) => Step::Delete { variable, panics: bytes.one_in(4) },
                1 => {
                    live.retain(|&other| other != variable);
                    Step::DropVariable(variable)
                }
                2 if bytes.one_in(3) => Step::WaitForGroup,
                2 => Step::ClearError(variable),
                3 if program.variables[variable] == Class::Bare || bytes.one_in(3) => Step::ClearErrors,
                3 if bytes.one_in(2) => Step::Set(variable, bytes.below(100) as u64),
                3 => Step::Replace(variable, bytes.below(100) as u64),
                4..=5 => {
                    let limit = match bytes.below(6) {
                        0..=2 => Limit::None,
                        3 => Limit::Micros(bytes.below(100) as u64),
                        4 => Limit::Future,
                        _ => Limit::Poll,
                    };
                    let wait = match bytes.below(6) {
                        0 => Wait::ForVar(variable),
                        1 => Wait::ToRead(variable),
                        2 => Wait::ToWrite(variable),
                        3 if program.variables[variable] != Class::Bare => Wait::Get(variable),
                        4 => Wait::ForAll,
                        _ => match take_one(&mut handles, bytes) {
                            Some(handle) => Wait::Handle(handle),
                            None => Wait::ForVar(variable),
                        },
                    };
                    Step::Wait(wait, limit)
                }
                6 => match take_one(&mut handles, bytes) {
                    Some(handle) => Step::DropHandle(handle),
                    None => continue,
                },
                7 => program.add_operator(&live, &mut operators, is_typed, bytes),
                8..=10 if !operators.is_empty() => {
                    let priority = if bytes.one_in(2) { Some(bytes.pick(&PRIORITIES)) } else { None };
                    Step::RunOperator(bytes.pick(&operators), priority)
                }
                11 if bytes.one_in(4) => match take_one(&mut operators, bytes) {
                    Some(operator) => Step::DropOperator(operator),
                    None => continue,
                },
                24..=26 => {
                    program.add_acquire(&live, &mut handles, is_typed, bytes);
                    continue;
                }
                27..=28 if program.variables[variable] != Class::Bare => Step::Take(variable),
                27..=29 => {
                    let limit = bytes.pick(&[Limit::None, Limit::Micros(20), Limit::Future, Limit::Poll]);
                    Step::Wait(Wait::Ready(variable), limit)
                }
                30..=33 if operators.is_empty() => program.add_operator(&live, &mut operators, is_typed, bytes),
                30..=33 => {
                    let limits = [Limit::None, Limit::Micros(50), Limit::Future, Limit::Poll].map(Some);
                    let limit = if bytes.one_in(3) { None } else { bytes.pick(&limits) };
                    Step::SubmitOperator(bytes.pick(&operators), limit)
                }
                34..=35 if !handles.is_empty() => Step::IgnoreHandle(handles.swap_remove(bytes.below(handles.len()))),
                34..=37 => {
                    let id = program.add_operation(&live, is_typed, bytes);
                    program.operations[id].wrap();
                    program.operations[id].bound = Bound::Scope;
                    Step::Push(id)
                }
                38..=40 => {
                    let cancel = bytes.pick(&[Cancel::Loudly, Cancel::Quietly]);
                    // If the engine has a limit, no operation is held up, since a push might wait for that operation's
                    // end.
                    let cancel = (!is_limited).then_some(cancel);
                    let (first, count) = (program.operations.len(), 1 + bytes.below(4));
                    for _ in 0..count {
                        let id = program.add_operation(&live, is_typed, bytes);
                        program.operations[id].bound = Bound::Together(cancel);
                        handles.extend(program.operations[id].returns_a_handle().then_some(id));
                    }
                    Step::Together { first, count, cancel }
                }
                41.. => {
                    let id = program.add_operation(&live, is_typed, bytes);
                    program.operations[id].wrap();
                    let [by_group, by_handle] =
                        [Stop::Group, Stop::Handle].map(|by| [Cancel::Loudly, Cancel::Quietly].map(by));
                    let all = [by_group[0], by_group[1], by_handle[0], by_handle[1], Stop::Itself];
                    Step::Stop(id, bytes.pick(&all))
                }
                _ => {
                    let id = program.add_operation(&live, is_typed, bytes);
                    if program.operations[id].returns_a_handle() {
                        handles.push(id);
                    }
                    Step::Push(id)
                }
            };
            program.steps.push(step);
        }
        program
    }

    fn add_variable(&mut self, live: &mut Vec<usize>, is_typed: bool, bytes: &mut Bytes<'_>) {
        let class = match bytes.below(8) {
            0..=3 if is_typed => Class::Narrow,
            0..=4 => Class::Bare,
            5..=6 => Class::Narrow,
            _ => Class::Wide,
        };
        live.push(self.variables.len());
        self.variables.push(class);
        self.steps.push(Step::NewVariable);
    }

    fn add_operation(&mut self, live: &[usize], is_typed: bool, bytes: &mut Bytes<'_>) -> usize {
        let finish = if bytes.one_in(2) { Finish::Inside } else { Finish::Elsewhere };
        let kind = match (bytes.below_or(8, 3), is_typed) {
            (8, _) => Kind::PushFuture,
            (9, _) => Kind::SubmitFuture,
            (10, _) => Kind::TrySubmitFuture,
            (0, _) | (1..=2, false) => Kind::Sync,
            (1, _) | (3..=4, false) => Kind::Async(finish),
            (5, false) => Kind::Future,
            (2..=3, true) => Kind::Push,
            (4..=5, true) | (6, false) => Kind::Submit,
            _ => Kind::TrySubmit,
        };
        let ends = match bytes.below(24) {
            0 => Ends::Error,
            1 => Ends::PanicStr,
            2 => Ends::PanicString,
            3 => Ends::PanicAny,
            4 => Ends::PanicPanics,
            5 => Ends::Fail,
            6 => Ends::Lost,
            _ => Ends::Well,
        };
        let ends = match (ends, kind) {
            (Ends::Fail | Ends::Lost, kind) if !matches!(kind, Kind::Async(_)) => Ends::Error,
            (ends, _) => ends,
        };
        let count = bytes.below(if is_typed { 3 } else { 6 });
        let untyped =
            (0..count).map(|_| (bytes.pick(live), bytes.pick(&[Access::Read, Access::Write, Access::Overwrite])));
        let untyped = untyped.collect();
        let (mut shape, mut typed) = (0, Vec::new());
        if kind.is_typed() {
            (shape, typed) = self.choose_typed(live, kind.is_guarded(), bytes);
        }
        let mut operation = Operation {
            untyped,
            typed,
            shape,
            kind,
            ends,
            priority: bytes.pick(&PRIORITIES),
            property: bytes.pick(&PROPERTIES),
            no_skip: bytes.one_in(12),
            gpu: match bytes.below(64) {
                _ if kind == Kind::Future || kind.is_guarded() => None,
                63 => Some(1),
                32.. => Some(0),
                _ => None,
            },
            foreign: bytes.below(64) == 63,
            yields: bytes.below(16).saturating_sub(11),
            bound: match bytes.below(24) {
                0 => Bound::InTime,
                1 => Bound::Late,
                2..=5 => Bound::Group,
                6 => Bound::Cancelled,
                7 => Bound::PassedOver,
                8 => Bound::Scope,
                9 => Bound::Parent,
                10..=11 => Bound::Handle(Cancel::Loudly),
                12 => Bound::Handle(Cancel::Quietly),
                _ => Bound::None,
            },
        };
        let fits = match operation.bound {
            Bound::Scope | Bound::Parent => operation.can_be_wrapped(),
            // Whether a started future ends or is stopped depends on the run.
            Bound::Handle(_) => operation.returns_a_handle() && !kind.is_guarded(),
            _ => true,
        };
        if !fits {
            operation.bound = Bound::None;
        }
        self.operations.push(operation);
        self.operations.len() - 1
    }

    fn add_operator(
        &mut self,
        live: &[usize],
        operators: &mut Vec<usize>,
        is_typed: bool,
        bytes: &mut Bytes<'_>,
    ) -> Step {
        let id = self.add_operation(live, is_typed, bytes);
        // The operators in these programs return no values, are not futures, and have no scopes, parents or handles in
        // their `bound`.
        let operation = &mut self.operations[id];
        if operation.returns_a_handle() || operation.kind.is_guarded() {
            operation.kind = Kind::Push;
        }
        if operation.kind == Kind::Future {
            operation.kind = Kind::Sync;
        }
        if matches!(operation.bound, Bound::Scope | Bound::Parent | Bound::Handle(_)) {
            operation.bound = Bound::None;
        }
        operators.push(id);
        Step::MakeOperator(id)
    }

    /// Chooses a shape and a variable for each of its places, or the empty shape if no variable fits one of the places.
    fn choose_typed(&self, live: &[usize], is_guarded: bool, bytes: &mut Bytes<'_>) -> (usize, Vec<usize>) {
        let shape =
            if is_guarded { bytes.pick(&GUARDED) } else { bytes.below_or(OLDEST_SHAPES, SHAPES.len() - OLDEST_SHAPES) };
        let mut typed = Vec::new();
        let may_alias = bytes.one_in(4);
        for &(wide, access) in SHAPES[shape] {
            let class = if wide { Class::Wide } else { Class::Narrow };
            let fits = |&variable: &usize| {
                let is_shared = access == Access::Read && !may_alias;
                self.variables[variable] == class
                    && (may_alias
                        || !typed.contains(&variable)
                        // A variable that is only read may be declared again.
                        || is_shared && typed.iter().zip(SHAPES[shape]).all(|(&own, &(_, access))| {
                            own != variable || access == Access::Read
                        }))
            };
            let candidates: Vec<usize> = live.iter().copied().filter(fits).collect();
            if candidates.is_empty() {
                return (0, Vec::new());
            }
            typed.push(bytes.pick(&candidates));
        }
        (shape, typed)
    }

    /// Adds the steps that begin and end an acquisition of variables, in some cases with a push between them.
    fn add_acquire(&mut self, live: &[usize], handles: &mut Vec<usize>, is_typed: bool, bytes: &mut Bytes<'_>) {
        let how = bytes.pick(&[Acquire::Used, Acquire::Used, Acquire::Dropped, Acquire::Panics]);
        let (shape, typed) = self.choose_typed(live, true, bytes);
        let id = self.operations.len();
        self.operations.push(Operation {
            untyped: Vec::new(),
            typed,
            shape,
            kind: Kind::Push,
            ends: if how == Acquire::Panics { Ends::Guard } else { Ends::Well },
            priority: 0,
            property: Property::Normal,
            no_skip: false,
            gpu: None,
            foreign: false,
            yields: bytes.below(4),
            bound: Bound::None,
        });
        self.steps.push(Step::BeginAcquire(id, how));
        if bytes.one_in(2) {
            let behind = self.add_operation(live, is_typed, bytes);
            let operation = &mut self.operations[behind];
            if operation.bound == Bound::Scope {
                // The scope could wait for the guards, which are dropped only after it.
                operation.bound = Bound::None;
            }
            handles.extend(operation.returns_a_handle().then_some(behind));
            self.steps.push(Step::Push(behind));
        }
        self.steps.push(Step::EndAcquire);
    }
}

fn take_one(all: &mut Vec<usize>, bytes: &mut Bytes<'_>) -> Option<usize> {
    if all.is_empty() { None } else { Some(all.swap_remove(bytes.below(all.len()))) }
}

impl Operation {
    fn typed_accesses(&self) -> impl Iterator<Item = (usize, Access)> + '_ {
        self.typed.iter().zip(SHAPES[self.shape]).map(|(&variable, &(_, access))| (variable, access))
    }

    /// Returns the operation's access to each of its variables, oldest variable first.
    fn effective(&self) -> BTreeMap<usize, Access> {
        let mut all = BTreeMap::new();
        for (variable, access) in self.untyped.iter().copied().chain(self.typed_accesses()) {
            let known = all.entry(variable).or_insert(access);
            if *known != access {
                *known = Access::Write;
            }
        }
        all
    }

    fn is_aliased(&self) -> bool {
        let all: Vec<_> = self.typed_accesses().collect();
        all.iter().enumerate().any(|(index, &(variable, access))| {
            all[..index]
                .iter()
                .any(|&(other, before)| other == variable && (access != Access::Read || before != Access::Read))
        })
    }

    /// Returns whether the operation, if a device is set for it, runs there. A device operation's function is called as
    /// soon as its dependencies have been issued, so only the kernel may use values outside the variables. The function
    /// may use typed variables' values, which are on the host.
    fn is_for_device(&self) -> bool {
        match self.kind {
            Kind::Sync => true,
            Kind::Async(_) | Kind::Future | Kind::PushFuture | Kind::SubmitFuture | Kind::TrySubmitFuture => false,
            Kind::Push | Kind::Submit | Kind::TrySubmit => self.untyped.is_empty(),
        }
    }

    fn returns_a_handle(&self) -> bool {
        matches!(self.kind, Kind::Submit | Kind::TrySubmit | Kind::SubmitFuture | Kind::TrySubmitFuture)
    }

    /// Returns whether the operation can be pushed in a scope or as a child.
    fn can_be_wrapped(&self) -> bool {
        let is_plain = matches!(self.property, Property::Normal | Property::CpuPrioritized);
        self.kind == Kind::Sync && self.gpu.is_none() && is_plain
    }

    /// Changes the operation so that it can be pushed in a scope.
    fn wrap(&mut self) {
        let is_plain = matches!(self.property, Property::Normal | Property::CpuPrioritized);
        *self = Self {
            untyped: std::mem::take(&mut self.untyped),
            typed: Vec::new(),
            shape: 0,
            kind: Kind::Sync,
            ends: if matches!(self.ends, Ends::Fail | Ends::Lost) { Ends::Error } else { self.ends },
            property: if is_plain { self.property } else { Property::Normal },
            gpu: None,
            bound: Bound::None,
            ..*self
        };
    }

    fn is_clean_up(&self) -> bool {
        self.property == Property::DeleteVar
    }

    fn is_never_skipped(&self) -> bool {
        self.no_skip || self.property == Property::NoSkip || self.is_clean_up()
    }

    /// Returns the cause of the operation's failure if the operation is cancelled. `by_handle` says whether the
    /// operation's handle cancelled it.
    fn cancelled(&self, by_handle: bool) -> Option<&'static str> {
        const BEFORE: &str = "it was cancelled";
        match self.bound {
            _ if self.is_clean_up() => None,
            Bound::Late => Some("its deadline passed"),
            Bound::Cancelled | Bound::PassedOver => Some(BEFORE),
            Bound::Handle(_) => by_handle.then_some(BEFORE),
            Bound::Together(cancel) => cancel.map(|_| BEFORE),
            Bound::None | Bound::InTime | Bound::Group | Bound::Scope | Bound::Parent => None,
        }
    }

    /// Returns whether the operation, if cancelled, leaves its variables as they are.
    fn is_passed_over(&self) -> bool {
        let quietly = Cancel::Quietly;
        self.bound == Bound::PassedOver
            || self.bound == Bound::Handle(quietly)
            || self.bound == Bound::Together(Some(quietly))
    }

    /// Returns the operation's failure text.
    fn failure(&self, id: usize) -> String {
        let cause = match self.ends {
            Ends::Well => "it did not fail".to_owned(),
            Ends::Error if matches!(self.kind, Kind::Submit | Kind::SubmitFuture) => {
                format!("it panicked: {PLANNED}{id}")
            }
            Ends::Error | Ends::Fail => format!("{PLANNED}{id}"),
            Ends::PanicStr => "it panicked: as planned: a literal".to_owned(),
            Ends::PanicString => format!("it panicked: {PLANNED}{id}"),
            Ends::PanicAny | Ends::PanicPanics => "it panicked with a payload that is not a string".to_owned(),
            Ends::Lost => "its completion was dropped unused".to_owned(),
            Ends::Guard => return GUARD_DROPPED.to_owned(),
        };
        format!("#{id}: {cause}")
    }
}

const GUARD_DROPPED: &str = "acquire: it panicked: a guard was dropped by a panic";

const DELETION_FAILED: &str = "delete_variable: it panicked: as planned: a deletion";

// ----------------------------------------------------------------------------------------------- arithmetic ----

const FACTOR: u64 = 6_364_136_223_846_793_005;

fn first_value(variable: usize) -> u64 {
    (variable as u64 + 1).wrapping_mul(FACTOR)
}

fn fold(seen: u64, value: u64) -> u64 {
    seen.wrapping_mul(FACTOR).wrapping_add(value)
}

fn written(seen: u64, old: u64, access: Access, index: usize) -> u64 {
    let old = if access == Access::Write { old } else { 7 };
    old.wrapping_mul(FACTOR).wrapping_add(seen).wrapping_add(index as u64)
}

/// The number borrowed by a scope, before or after the scope's operation has run.
fn lent(id: usize, has_run: bool) -> u64 {
    if has_run { fold(first_value(id), of_scope(id)) } else { first_value(id) }
}

/// The value of a scope's variable.
fn of_scope(id: usize) -> u64 {
    first_value(id).wrapping_mul(3)
}

// ------------------------------------------------------------------------------------------------ the model ----

/// The reason why a push was refused. The variables' names in the error are not compared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    Foreign,
    Deleted,
    Aliased,
    Other(PushError),
}

impl From<PushError> for Refusal {
    fn from(error: PushError) -> Self {
        match error {
            PushError::Variable(NoAccess::Foreign, _) => Self::Foreign,
            PushError::Variable(NoAccess::Deleted, _) => Self::Deleted,
            PushError::Variable(NoAccess::Aliased, _) => Self::Aliased,
            error => Self::Other(error),
        }
    }
}

/// A step's result.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Nothing,
    Value(u64),
    Failed(String),
    Refused(Refusal),
    Cleared(usize),
    InTime,
    Other(String),
    /// The results of several calls.
    All(Vec<Answer>),
}

/// A step's expected result.
#[derive(Clone, Debug)]
enum Expected {
    Exactly(Answer),
    /// One of these failures, or no failure if the list is empty.
    OneOf(Vec<String>),
}

impl Expected {
    fn admits(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (Self::Exactly(expected), answer) => expected == answer,
            (Self::OneOf(failures), Answer::Failed(failure)) => failures.contains(failure),
            (Self::OneOf(failures), Answer::Nothing) => failures.is_empty(),
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Live,
    Deleted,
    /// The program's handle has been dropped; operators may keep the variable alive.
    Dropped,
}

#[derive(Debug, Default)]
struct Model {
    standings: Vec<Standing>,
    slots: Vec<u64>,
    values: Vec<u64>,
    versions: Vec<u64>,
    /// Each variable's failure, as an index into `failures`.
    failed: Vec<Option<usize>>,
    /// The text of each failure. Failures with the same text are still distinct.
    failures: Vec<String>,
    /// Failures not yet returned by a wait.
    unreported: BTreeSet<usize>,
    runs: Vec<u32>,
    seen: Vec<u64>,
    results: HashMap<usize, Result<u64, usize>>,
    operators: Vec<usize>,
    /// For each deleted variable, the outside value seen by the deletion's function.
    deletions: BTreeMap<usize, u64>,
    /// The failures of the operations of the program's group since the last wait for the group, and whether each
    /// failure originated in the group.
    of_group: Vec<(usize, bool)>,
    /// The operations cancelled through their handles, as observed in the run.
    withdrawn: BTreeSet<usize>,
    /// The operation that represents the latest acquisition, the acquisition's planned outcome, and whether the
    /// operation was skipped.
    acquiring: Option<(usize, Acquire, bool)>,
}

impl Model {
    fn step(&mut self, program: &Program, step: Step) -> Expected {
        let mut answer = Answer::Nothing;
        match step {
            Step::NewVariable => {
                let variable = self.standings.len();
                self.standings.push(Standing::Live);
                self.slots.push(first_value(variable));
                self.values.push(first_value(variable));
                self.versions.push(0);
                self.failed.push(None);
            }
            Step::Push(id) => match self.refusal(program, id) {
                Some(refusal) => answer = Answer::Refused(refusal),
                None => {
                    self.run(program, id);
                    if program.operations[id].bound == Bound::Scope {
                        answer = match self.result(id) {
                            Answer::Value(seen) => Answer::Value(fold(lent(id, true), seen)),
                            failed => failed,
                        };
                    }
                }
            },
            Step::MakeOperator(id) => match self.refusal(program, id) {
                Some(refusal) => answer = Answer::Refused(refusal),
                None => self.operators.push(id),
            },
            Step::RunOperator(id, _) | Step::SubmitOperator(id, _) => {
                if !self.operators.contains(&id) {
                    answer = Answer::Other("no such operator".to_owned());
                } else if self.names_deleted(program, id) {
                    answer = Answer::Refused(Refusal::Deleted);
                } else {
                    self.run(program, id);
                    match (step, self.result(id)) {
                        (Step::SubmitOperator(_, None), _) => self.ignore(id),
                        (Step::SubmitOperator(..), Answer::Failed(failure)) => answer = Answer::Failed(failure),
                        _ => {}
                    }
                }
            }
            Step::DropOperator(_) | Step::DropHandle(_) => {}
            Step::IgnoreHandle(id) => self.ignore(id),
            Step::BeginAcquire(id, how) => match self.refusal(program, id) {
                Some(refusal) => {
                    self.acquiring = None;
                    answer = Answer::Refused(refusal);
                }
                None => {
                    let before = self.failures.len();
                    if how != Acquire::Dropped {
                        self.run(program, id);
                    }
                    let is_skipped = matches!(self.results.get(&id), Some(Err(failure)) if *failure < before);
                    self.acquiring = Some((id, how, is_skipped));
                    answer = Answer::InTime;
                }
            },
            Step::EndAcquire => {
                answer = match self.acquiring {
                    Some((id, Acquire::Used, _) | (id, Acquire::Panics, true)) => self.result(id),
                    None | Some((_, Acquire::Dropped | Acquire::Panics, _)) => Answer::Nothing,
                };
            }
            Step::Together { first, count, .. } => answer = self.together(program, first..first + count),
            Step::Stop(id, _) => match self.refusal(program, id) {
                Some(refusal) => answer = Answer::Refused(refusal),
                None => {
                    self.run(program, id);
                    answer = self.result(id);
                }
            },
            Step::Delete { variable, .. } | Step::ClearError(variable)
                if self.standings[variable] == Standing::Deleted =>
            {
                answer = Answer::Refused(Refusal::Deleted);
            }
            Step::Delete { variable, panics } => {
                self.standings[variable] = Standing::Deleted;
                self.deletions.insert(variable, self.slots[variable]);
                if panics {
                    self.fails(DELETION_FAILED.to_owned());
                }
            }
            Step::DropVariable(variable) => {
                self.standings[variable] = Standing::Dropped;
            }
            Step::ClearError(variable) => self.clear(variable),
            Step::Set(variable, value) => match self.standings[variable] {
                Standing::Live => {
                    self.clear(variable);
                    self.change(variable, value);
                }
                _ => answer = Answer::Refused(Refusal::Deleted),
            },
            Step::WaitForGroup => {
                let failures = std::mem::take(&mut self.of_group);
                answer = self.wait_for_group(&failures);
            }
            Step::Replace(variable, _) | Step::Take(variable) => {
                answer = self.get(variable);
                if matches!(answer, Answer::Value(_)) {
                    self.change(variable, if let Step::Replace(_, value) = step { value } else { DEFAULT });
                }
            }
            Step::ClearErrors => {
                // The wait for all has returned one of the failures.
                answer = Answer::Cleared(self.unreported.len().saturating_sub(1));
                self.unreported.clear();
            }
            Step::Wait(Wait::ForAll, _) => return self.all(),
            Step::Wait(Wait::Handle(id), _) => answer = self.result(id),
            Step::Wait(Wait::Get(variable), _) => answer = self.get(variable),
            Step::Wait(
                Wait::ForVar(variable) | Wait::ToRead(variable) | Wait::ToWrite(variable) | Wait::Ready(variable),
                _,
            ) => {
                answer = self.wait(variable);
            }
        }
        Expected::Exactly(answer)
    }

    /// Returns the result of an operation.
    fn result(&self, id: usize) -> Answer {
        match self.results.get(&id) {
            Some(&Ok(seen)) => Answer::Value(seen),
            Some(&Err(failure)) => self.failed_by(failure),
            None => Answer::Other("no such handle".to_owned()),
        }
    }

    /// Records that a handle was ignored.
    fn ignore(&mut self, id: usize) {
        if let Some(Err(failure)) = self.results.get(&id) {
            self.unreported.remove(failure);
        }
    }

    /// Runs a group's operations and waits for the group.
    fn together(&mut self, program: &Program, ids: std::ops::Range<usize>) -> Answer {
        let (mut answers, mut of_group) = (Vec::new(), Vec::new());
        for id in ids {
            if let Some(refusal) = self.refusal(program, id) {
                answers.push(Answer::Refused(refusal));
                continue;
            }
            let before = self.failures.len();
            self.run(program, id);
            answers.push(Answer::Nothing);
            let is_passed_over =
                program.operations[id].is_passed_over() && program.operations[id].cancelled(false).is_some();
            if let (Some(&Err(failure)), false) = (self.results.get(&id), is_passed_over) {
                of_group.push((failure, failure >= before));
            }
        }
        answers.push(self.wait_for_group(&of_group));
        Answer::All(answers)
    }

    /// Returns the result of waiting for a group with these failures, and records which of them the wait reports.
    fn wait_for_group(&mut self, failures: &[(usize, bool)]) -> Answer {
        for (index, (failure, is_own)) in failures.iter().enumerate() {
            if index == 0 || *is_own {
                self.unreported.remove(failure);
            }
        }
        failures.first().map_or(Answer::Nothing, |&(first, _)| self.failed_by(first))
    }

    fn change(&mut self, variable: usize, value: u64) {
        self.values[variable] = value;
        self.versions[variable] += 1;
    }

    fn get(&self, variable: usize) -> Answer {
        match (self.standings[variable], self.failed[variable]) {
            (Standing::Live, None) => Answer::Value(self.values[variable]),
            (Standing::Live, Some(failure)) => self.failed_by(failure),
            _ => Answer::Refused(Refusal::Deleted),
        }
    }

    fn wait(&self, variable: usize) -> Answer {
        self.failed[variable].map_or(Answer::Nothing, |failure| self.failed_by(failure))
    }

    fn failed_by(&self, failure: usize) -> Answer {
        Answer::Failed(self.failures[failure].clone())
    }

    fn all(&self) -> Expected {
        Expected::OneOf(self.unreported.iter().map(|&failure| self.failures[failure].clone()).collect())
    }

    /// Records a failure not yet returned by a wait.
    fn fails(&mut self, shown: String) -> usize {
        let failure = self.failures.len();
        self.failures.push(shown);
        self.unreported.insert(failure);
        failure
    }

    /// Records the failure that a step has returned.
    fn record_report(&mut self, step: Step, answer: &Answer) {
        let Answer::Failed(shown) = answer else { return };
        let failure = match step {
            Step::Wait(Wait::Handle(id), _) | Step::SubmitOperator(id, _) | Step::Stop(id, _) => {
                self.results.get(&id).and_then(|result| result.err())
            }
            Step::EndAcquire => {
                self.acquiring.and_then(|(id, ..)| self.results.get(&id)).and_then(|result| result.err())
            }
            Step::Wait(
                Wait::Get(variable)
                | Wait::ForVar(variable)
                | Wait::ToRead(variable)
                | Wait::ToWrite(variable)
                | Wait::Ready(variable),
                _,
            )
            | Step::Replace(variable, _)
            | Step::Take(variable) => self.failed[variable],
            // The model has already recorded the report.
            Step::WaitForGroup | Step::Push(_) => None,
            // Among failures with the same text, any may be chosen.
            _ => self.unreported.iter().copied().find(|&failure| self.failures[failure] == *shown),
        };
        failure.iter().for_each(|failure| _ = self.unreported.remove(failure));
    }

    fn clear(&mut self, variable: usize) {
        if let Some(failure) = self.failed[variable].take() {
            self.unreported.remove(&failure);
        }
    }

    fn names_deleted(&self, program: &Program, id: usize) -> bool {
        program.operations[id].effective().keys().any(|variable| self.deletions.contains_key(variable))
    }

    fn refusal(&self, program: &Program, id: usize) -> Option<Refusal> {
        let operation = &program.operations[id];
        if operation.gpu == Some(1) {
            Some(Refusal::Other(PushError::NoSuchDevice(Device::Gpu(1))))
        } else if operation.gpu == Some(0)
            && operation.is_for_device()
            && operation.property == Property::CpuPrioritized
        {
            Some(Refusal::Other(PushError::Unfit(Misfit::NotOfDevice(raddle::Property::CpuPrioritized))))
        } else if operation.gpu == Some(0) && operation.is_for_device() && operation.property == Property::Async {
            Some(Refusal::Other(PushError::Unfit(Misfit::EagerOnDevice)))
        } else if operation.foreign {
            Some(Refusal::Foreign)
        } else if self.names_deleted(program, id) {
            Some(Refusal::Deleted)
        } else if operation.is_aliased() {
            Some(Refusal::Aliased)
        } else {
            None
        }
    }

    fn run(&mut self, program: &Program, id: usize) {
        self.run_unreported(program, id);
        if let (Bound::Scope, Some(Err(failure))) = (program.operations[id].bound, self.results.get(&id)) {
            // The scope has returned the failure.
            self.unreported.remove(failure);
        }
    }

    fn run_unreported(&mut self, program: &Program, id: usize) {
        let operation = &program.operations[id];
        let effective = operation.effective();
        if let Some(cause) = operation.cancelled(self.withdrawn.contains(&id)) {
            let failure = self.fails(format!("#{id}: {cause}"));
            if operation.is_passed_over() {
                self.unreported.remove(&failure);
            } else {
                self.fail(&effective, failure);
            }
            self.results.insert(id, Err(failure));
            return;
        }
        let in_group = operation.bound == Bound::Group;
        let cause = effective
            .iter()
            .filter(|&(_, access)| *access != Access::Overwrite)
            .find_map(|(&variable, _)| self.failed[variable]);
        if let (Some(failure), false) = (cause, operation.is_never_skipped()) {
            self.fail(&effective, failure);
            self.of_group.extend(in_group.then_some((failure, false)));
            self.results.insert(id, Err(failure));
            return;
        }
        if operation.ends == Ends::Guard {
            // A panic drops the guards unused. This fails the operation only if the operation mutates a variable.
            if effective.values().any(|access| *access != Access::Read) {
                let failure = self.fails(operation.failure(id));
                self.fail(&effective, failure);
                self.results.insert(id, Err(failure));
            }
            return;
        }
        let mut seen = id as u64 + 1;
        for &(variable, _) in operation.untyped.iter().filter(|(_, access)| *access != Access::Overwrite) {
            seen = fold(seen, self.slots[variable]);
        }
        for (variable, _) in operation.typed_accesses().filter(|(_, access)| *access != Access::Overwrite) {
            seen = fold(seen, self.values[variable]);
        }
        for (index, &(variable, access)) in operation.untyped.iter().enumerate() {
            if access != Access::Read {
                self.slots[variable] = written(seen, self.slots[variable], access, index);
            }
        }
        for (index, (variable, access)) in operation.typed_accesses().enumerate() {
            if access != Access::Read {
                self.values[variable] = written(seen, self.values[variable], access, index);
            }
        }
        self.runs[id] += 1;
        self.seen[id] = self.seen[id].wrapping_add(seen);
        if operation.ends != Ends::Well {
            let failure = self.fails(operation.failure(id));
            self.fail(&effective, failure);
            self.of_group.extend(in_group.then_some((failure, true)));
            self.results.insert(id, Err(failure));
            return;
        }
        self.results.insert(id, Ok(seen));
        for (&variable, &access) in effective.iter().filter(|&(_, access)| *access != Access::Read) {
            self.versions[variable] += 1;
            if access == Access::Overwrite {
                self.clear(variable);
            }
        }
    }

    fn fail(&mut self, effective: &BTreeMap<usize, Access>, failure: usize) {
        for (&variable, &access) in effective.iter().filter(|&(_, access)| *access != Access::Read) {
            if access == Access::Overwrite {
                self.failed[variable] = Some(failure);
            } else {
                self.failed[variable].get_or_insert(failure);
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------- the run ----

/// A variable's handle.
pub enum Handle {
    Bare(Token),
    Narrow(Var<Narrow>),
    Wide(Var<Wide>),
    Gone,
}

impl Handle {
    fn token(&self) -> &Token {
        match self {
            Self::Bare(token) => token,
            Self::Narrow(variable) => variable.token(),
            Self::Wide(variable) => variable.token(),
            Self::Gone => unreachable!("programs should not use variables that they have dropped"),
        }
    }

    pub fn narrow(&self) -> &Var<Narrow> {
        match self {
            Self::Narrow(variable) => variable,
            _ => unreachable!("each place of a shape should have a variable of its class"),
        }
    }

    pub fn wide(&self) -> &Var<Wide> {
        match self {
            Self::Wide(variable) => variable,
            _ => unreachable!("each place of a shape should have a variable of its class"),
        }
    }
}

struct World {
    program: Arc<Program>,
    /// Values outside the variables. They are only loaded and stored, with relaxed ordering, since the engine must
    /// order the accesses.
    slots: Vec<AtomicU64>,
    /// The number of each variable's readers, or -1 for a writer.
    holders: Vec<AtomicI64>,
    runs: Vec<AtomicU32>,
    /// For each operation, the sum of the values seen by its runs.
    seen: Vec<AtomicU64>,
    deletions: Mutex<BTreeMap<usize, u64>>,
    violations: Mutex<Vec<String>>,
    at: AtomicUsize,
    drops: Drops,
}

/// What an operation's function captures.
#[derive(Clone)]
pub struct Run {
    world: Arc<World>,
    id: usize,
    drop: Droppable,
}

impl Run {
    fn operation(&self) -> &Operation {
        &self.world.program.operations[self.id]
    }

    fn violation(&self, what: &str) {
        lock(&self.world.violations).push(format!("operation {} {what}", self.id));
    }

    /// Begins the accesses to the variables and folds the outside values seen by the operation into one number.
    fn enter(&self) -> u64 {
        self.drop.touch();
        for (variable, access) in self.operation().effective() {
            let holders = &self.world.holders[variable];
            // Relaxed: the engine must order the accesses.
            let fine = match access {
                Access::Read => holders.fetch_add(1, Relaxed) >= 0,
                _ => holders.swap(-1, Relaxed) == 0,
            };
            if !fine {
                self.violation(&format!("shared variable {variable}"));
            }
        }
        for _ in 0..self.operation().yields {
            thread::yield_now();
        }
        let entries = self.operation().untyped.iter().filter(|(_, access)| *access != Access::Overwrite);
        // Relaxed: the engine must order the accesses.
        entries.fold(self.id as u64 + 1, |seen, &(variable, _)| fold(seen, self.world.slots[variable].load(Relaxed)))
    }

    /// Writes the outside values and ends the accesses to the variables.
    fn leave(&self, seen: u64) {
        let (world, id) = (&self.world, self.id);
        for (index, &(variable, access)) in self.operation().untyped.iter().enumerate() {
            if access != Access::Read {
                let slot = &world.slots[variable];
                // Relaxed: the engine must order the accesses.
                slot.store(written(seen, slot.load(Relaxed), access, index), Relaxed);
            }
        }
        // Relaxed: the value is read after a wait.
        world.runs[id].fetch_add(1, Relaxed);
        // Relaxed: the value is read after a wait.
        world.seen[id].fetch_add(seen, Relaxed);
        for (variable, access) in self.operation().effective() {
            let holders = &world.holders[variable];
            // Relaxed: the engine must order the accesses.
            match access {
                Access::Read => drop(holders.fetch_sub(1, Relaxed)),
                _ => holders.store(0, Relaxed),
            }
        }
    }

    fn end(&self) -> Result<(), String> {
        match self.operation().ends {
            Ends::Well => Ok(()),
            Ends::Error | Ends::Fail | Ends::Lost => Err(format!("{PLANNED}{}", self.id)),
            Ends::PanicStr => panic!("as planned: a literal"),
            Ends::PanicString => panic!("{PLANNED}{}", self.id),
            Ends::PanicAny => panic_any(Planned),
            Ends::PanicPanics => panic_any(PlannedTwice),
            Ends::Guard => unreachable!("acquired variables should have no function"),
        }
    }

    pub fn ends_well(&self) -> bool {
        self.operation().ends == Ends::Well
    }

    /// Returns whether the operation, a future that ends well, hands its guards to another thread.
    pub fn hands_over(&self) -> bool {
        (self.id + self.operation().yields) % 2 == 1
    }

    /// Yields as a future, as many times as the operation specifies.
    pub async fn yields(&self) {
        for _ in 0..self.operation().yields {
            yield_now().await;
        }
    }

    /// The counterpart of [`untyped`](Self::untyped) on a device: launches a kernel.
    fn on_device(self: Arc<Self>, stream: &mut GpuStream, scratch: &DeviceVec<u64>) -> Result<(), String> {
        let in_kernel = Arc::clone(&self);
        let Some(mut stream) = stream.simulated() else {
            return Err("the stream does not belong to the simulated device".to_owned());
        };
        let kernel = move |_: &[u64]| {
            let seen = in_kernel.enter();
            in_kernel.leave(seen);
        };
        stream.launch(Duration::ZERO, scratch, kernel).map_err(|error| error.to_string())?;
        self.end()
    }

    fn untyped(&self) -> Result<(), String> {
        let seen = self.enter();
        self.leave(seen);
        self.end()
    }

    /// Like [`untyped`](Self::untyped), but reports a violation if the function is asked to stop.
    fn undisturbed(&self, cx: &OpContext<'_>) -> Result<(), String> {
        if cx.is_cancelled() {
            self.violation("was asked to stop without a cause");
        }
        self.untyped()
    }

    /// Calls `ask`, then runs until the context reports that the function should stop.
    fn until_cancelled(self, cx: &OpContext<'_>, ask: impl FnOnce()) -> Result<(u64, Droppable), String> {
        if cx.is_cancelled() {
            self.violation("was asked to stop too early");
        }
        let seen = self.enter();
        ask();
        while !cx.is_cancelled() {
            thread::yield_now();
        }
        self.leave(seen);
        self.end().map(|()| (seen, self.drop.clone()))
    }

    async fn future(self) -> Result<(), BoxError> {
        let seen = self.enter();
        self.yields().await;
        self.leave(seen);
        Ok(self.end()?)
    }

    /// Some operations that may defer their ends do not.
    fn deferrable(self: Arc<Self>, end: Deferral<'_>, finish: Finish) -> Result<(), String> {
        if self.id % 4 == 0 && self.operation().ends == Ends::Well {
            let seen = self.enter();
            self.leave(seen);
            return self.end();
        }
        self.asynchronous(|| end.defer(), finish)
    }

    fn asynchronous(self: Arc<Self>, done: impl FnOnce() -> Completion, finish: Finish) -> Result<(), String> {
        let seen = self.enter();
        let ends = self.operation().ends;
        // A result returned after the completion has been used may be ignored, so no operation relies on it. A panic
        // ends the operation without its completion.
        if !matches!(ends, Ends::Well | Ends::Error | Ends::Fail | Ends::Lost) {
            self.leave(seen);
            return self.end();
        }
        let done = done();
        let rest = move || {
            self.leave(seen);
            let id = self.id;
            // The run is dropped first, as the program may end as soon as the completion is used.
            drop(self);
            match ends {
                Ends::Well => done.complete(),
                Ends::Lost => drop(done),
                _ => done.fail(format!("{PLANNED}{id}")),
            }
        };
        match finish {
            Finish::Inside => rest(),
            Finish::Elsewhere => elsewhere(rest),
        }
        Ok(())
    }

    pub fn typed(&self, refs: Vec<Ref<'_>>) -> Result<(), String> {
        self.with_refs(refs).1
    }

    pub fn typed_value(self, refs: Vec<Ref<'_>>) -> Result<(u64, Droppable), String> {
        let (seen, result) = self.with_refs(refs);
        result.map(|()| (seen, self.drop.clone()))
    }

    fn with_refs(&self, refs: Vec<Ref<'_>>) -> (u64, Result<(), String>) {
        let mut seen = self.enter();
        let accesses: Vec<_> = self.operation().typed_accesses().collect();
        if accesses.len() != refs.len() {
            self.violation("received the wrong number of references");
        }
        for ((_, access), value) in accesses.iter().zip(&refs) {
            let (Ref::Shared(value) | Ref::Exclusive(value, _)) = value;
            let Some(value) = value else {
                self.violation("received a torn value");
                continue;
            };
            if *access != Access::Overwrite {
                seen = fold(seen, *value);
            }
        }
        for (index, ((_, access), value)) in accesses.iter().zip(refs).enumerate() {
            match value {
                Ref::Exclusive(old, mut set) if *access != Access::Read => {
                    set(written(seen, old.unwrap_or(0), *access, index));
                }
                Ref::Shared(_) if *access == Access::Read => {}
                _ => self.violation("received the wrong kind of reference"),
            }
        }
        self.leave(seen);
        (seen, self.end())
    }
}

/// The child that runs an operation's function. Its parent declares the same variables.
struct Child {
    tokens: Vec<(Token, Access)>,
    no_skip: bool,
    run: Run,
    drops: Drops,
}

/// The value of a family's variable: whether a child has filled the variable, and a value whose drop is counted.
type Filled = (bool, Droppable);

impl Child {
    /// Pushes the parent with `builder`. `kind` selects one of the kinds of operation that can have children.
    fn push_with_parent(self, builder: OpBuilder<'_>, kind: usize) -> Result<(), PushError> {
        let builder = builder.with_children();
        match kind % 6 {
            0 => builder.try_push(raddle::cx(), move |cx| self.push_by_cx(cx, false)),
            1 => builder.try_push(raddle::cx(), move |cx| self.push_by_cx(cx, true)),
            2 => builder.try_push((raddle::cx(), completion()), move |(cx, done)| {
                done.complete();
                self.push_by_cx(cx, true)
            }),
            3 => builder.try_push((raddle::cx(), deferral()), move |(cx, end)| {
                if self.run.id % 4 != 0 {
                    let done = end.defer();
                    elsewhere(move || done.complete());
                }
                self.push_by_cx(cx, true)
            }),
            4 => builder.try_push_future(raddle::cx(), move |cx| async move {
                let own = cx.child_var((false, self.drops.make()))?;
                yield_now().await;
                self.push(cx.child("fill"), cx.child(format!("#{}", self.run.id)), Some(&own))
            }),
            _ => builder.try_operator(raddle::cx(), move |cx| self.push_by_cx(cx, true))?.push(),
        }
    }

    fn push_by_cx(&self, cx: &OpContext<'_>, with_variable: bool) -> Result<(), BoxError> {
        let own = if with_variable { Some(cx.child_var((false, self.drops.make()))?) } else { None };
        self.push(cx.child("fill"), cx.child(cx.name().to_owned()), own.as_ref())
    }

    /// Pushes the child with the builder `child`. If `own` is given, first pushes another child, which fills this
    /// variable, with the builder `fill`; the child pushed with `child` then reads the variable.
    fn push<'c>(
        &'c self,
        fill: OpBuilder<'c>,
        mut child: OpBuilder<'c>,
        own: Option<&'c Var<Filled>>,
    ) -> Result<(), BoxError> {
        if self.no_skip {
            child = child.run_always();
        }
        for (token, access) in &self.tokens {
            child = match access {
                Access::Read => child.reads([token]),
                Access::Write => child.writes([token]),
                Access::Overwrite => child.overwrites([token]),
                Access::Commute => child.commutes([token]),
            };
        }
        let run = self.run.clone();
        match own {
            Some(own) => {
                fill.push(own.write(), |(is_filled, _)| *is_filled = true)?;
                child.try_push(own.read(), move |(is_filled, drop)| {
                    drop.touch();
                    if !is_filled {
                        run.violation("ran before the child that fills its variable");
                    }
                    Ok(run.untyped()?)
                })?;
            }
            None => child.push_sync(move |_| run.untyped())?,
        }
        Ok(())
    }
}

/// Variables being acquired.
struct Acquiring {
    id: usize,
    how: Acquire,
    /// Keeps the acquisition pending.
    gate: WriteGuard<()>,
    guards: Pin<Box<dyn Future<Output = Result<Acquired, WaitError>>>>,
}

/// The state of the thread running a program.
struct Runner {
    world: Arc<World>,
    engine: Engine,
    foreign: Token,
    /// The variable passed to kernel launches; the kernels do not use it.
    scratch: Var<DeviceVec<u64>>,
    variables: Vec<Handle>,
    operators: HashMap<usize, Operator>,
    handles: HashMap<usize, Submitted>,
    group: Group,
    /// A cancelled group, and a quietly cancelled one.
    cancelled: [Group; 2],
    /// While a [`Step::Together`] or [`Step::Stop`] pushes, its group and a variable that the group's operations read.
    together: Option<(Group, Var<()>)>,
    /// A variable that operations read but never mutate.
    nothing: Var<()>,
    acquiring: Option<Acquiring>,
    /// The operations cancelled through their handles.
    withdrawn: BTreeSet<usize>,
    /// Whether the engine limits pending operations. If so, no operation is held up, since a push might wait for that
    /// operation's end.
    is_limited: bool,
}

fn show(failure: &OpError) -> String {
    format!("{}: {}", failure.name(), failure.cause())
}

fn answer<T>(result: Result<T, WaitError>, value: impl FnOnce(T) -> Answer) -> Answer {
    match result {
        Ok(given) => value(given),
        Err(WaitError::Failed(failure)) => Answer::Failed(show(&failure)),
        Err(WaitError::TimedOut) => Answer::InTime,
        Err(WaitError::Refused(error)) => Answer::Refused(error.into()),
        Err(error) => Answer::Other(error.to_string()),
    }
}

/// Waits for a handle with the call selected by `limit`.
fn wait_for_handle<T>(mut handle: OpHandle<T>, limit: Limit, value: impl FnOnce(T) -> Answer) -> Answer {
    match limit {
        Limit::None => answer(handle.wait(), value),
        Limit::Micros(limit) => answer(handle.wait_timeout(Duration::from_micros(limit)), value),
        Limit::Future => answer(block_on(handle), value),
        Limit::Poll => match poll_once(&mut handle) {
            Poll::Ready(result) => answer(result, value),
            Poll::Pending => Answer::InTime,
        },
    }
}

fn seen<T: Content>(value: T) -> Answer {
    value.get().map_or(Answer::Other("a torn value".to_owned()), Answer::Value)
}

/// Reads a value with the call selected by `limit`.
fn get<T: Content>(engine: &Engine, variable: &Var<T>, limit: Limit) -> Answer {
    match limit {
        Limit::None => answer(engine.get(variable), seen),
        Limit::Micros(limit) => answer(engine.get_timeout(variable, Duration::from_micros(limit)), seen),
        Limit::Future => answer(block_on(engine.get_async(variable)), seen),
        Limit::Poll => answer(engine.with(variable, T::clone), seen),
    }
}

fn refused(result: Result<(), PushError>) -> Answer {
    result.map_or_else(|error| Answer::Refused(error.into()), |()| Answer::Nothing)
}

/// Completes the description of `$operation` with what both types of builder accept: whether the operation always runs,
/// and its untyped variables. This is a macro because the builders of engines and of scopes have different types.
macro_rules! describe_untyped {
    ($self:ident, $operation:ident, $builder:ident) => {{
        if $operation.no_skip {
            $builder = $builder.run_always();
        }
        if $operation.foreign {
            $builder = $builder.reads([&$self.foreign]);
        }
        for &(variable, access) in &$operation.untyped {
            let token = [$self.variables[variable].token()];
            $builder = match access {
                Access::Read => $builder.reads(token),
                Access::Write => $builder.writes(token),
                Access::Overwrite => $builder.overwrites(token),
                Access::Commute => $builder.commutes(token),
            };
        }
        $builder
    }};
}

impl Runner {
    fn new(program: &Arc<Program>, engine: Engine, foreign: Token) -> Self {
        let (variables, operations) = (program.variables.len(), program.operations.len());
        let world = Arc::new(World {
            program: Arc::clone(program),
            slots: (0..variables).map(|variable| AtomicU64::new(first_value(variable))).collect(),
            holders: (0..variables).map(|_| AtomicI64::new(0)).collect(),
            runs: (0..operations).map(|_| AtomicU32::new(0)).collect(),
            seen: (0..operations).map(|_| AtomicU64::new(0)).collect(),
            deletions: Mutex::default(),
            violations: Mutex::default(),
            at: AtomicUsize::new(0),
            drops: Drops::new(),
        });
        let (operators, handles) = (HashMap::new(), HashMap::new());
        let scratch = engine.device_var(Device::Gpu(0), 1).expect("the device should have memory");
        // Cancelling a group cancels the groups inside it.
        let [outer, cancelled] = [engine.group(), engine.group()];
        let cancelled = [cancelled, outer.group()];
        cancelled[0].cancel();
        outer.cancel_quietly();
        let group = engine.group().group();
        let nothing = engine.var(());
        Self {
            world,
            engine,
            foreign,
            scratch,
            variables: Vec::new(),
            operators,
            handles,
            group,
            cancelled,
            together: None,
            nothing,
            acquiring: None,
            withdrawn: BTreeSet::new(),
            is_limited: false,
        }
    }

    fn run_of(&self, id: usize) -> Run {
        Run { world: Arc::clone(&self.world), id, drop: self.world.drops.make() }
    }

    fn describe<'r>(&'r self, id: usize, operation: &Operation) -> OpBuilder<'r> {
        let name = format!("#{id}");
        if let Some((group, gate)) = &self.together {
            return self.describe_further(operation, group.op(name).reads([gate.token()]));
        }
        let builder = match operation.bound {
            Bound::None | Bound::Scope | Bound::Parent | Bound::Handle(_) | Bound::Together(_) => self.engine.op(name),
            Bound::InTime => self.engine.op(name).deadline(Instant::now() + Duration::from_secs(3600)),
            Bound::Late => self.engine.op(name).deadline(Instant::now()),
            Bound::Group => self.group.op(name),
            Bound::Cancelled => self.cancelled[0].op(name),
            Bound::PassedOver => self.cancelled[1].op(name),
        };
        self.describe_further(operation, builder)
    }

    fn describe_further<'r>(&'r self, operation: &Operation, builder: OpBuilder<'r>) -> OpBuilder<'r> {
        let mut builder = builder.priority(operation.priority).kind(operation.property);
        match operation.gpu {
            Some(0) if !operation.is_for_device() => {}
            Some(gpu) => builder = builder.on(Device::Gpu(gpu)),
            None => {}
        }
        describe_untyped!(self, operation, builder)
    }

    fn push(&mut self, id: usize) -> Result<(), PushError> {
        let program = Arc::clone(&self.world.program);
        let operation = &program.operations[id];
        // The push of an operation that a deadline or a group has cancelled is held back like any other push.
        let builder = match id % 3 {
            // There might be no room until the program drops its guards.
            _ if self.acquiring.is_some() => self.describe(id, operation),
            0 => self.describe(id, operation),
            1 => match self.describe(id, operation).if_room() {
                Err(PushError::Full) => self.describe(id, operation),
                found => found?,
            },
            _ => block_on(self.describe(id, operation).when_room())?,
        };
        let gate = self.engine.var(());
        let may_be_held_up = operation.gpu.is_none() && operation.yields % 2 == 0 && !self.is_limited;
        let is_held_up = matches!(operation.bound, Bound::Handle(_)) && may_be_held_up;
        let held_up =
            is_held_up.then(|| block_on(self.engine.acquire(gate.write())).expect("nothing should fail the gate"));
        let builder = if is_held_up { builder.reads([gate.token()]) } else { builder };
        let run = self.run_of(id);
        let handle = match operation.kind {
            Kind::Sync if operation.gpu == Some(0) => {
                return builder
                    .launch_any(self.scratch.read(), move |stream, scratch| Arc::new(run).on_device(stream, scratch));
            }
            Kind::Sync if operation.bound == Bound::Parent => {
                let untyped = operation.untyped.iter();
                let tokens = untyped.map(|&(at, access)| (self.variables[at].token().clone(), access)).collect();
                let child = Child { tokens, no_skip: operation.no_skip, run, drops: self.world.drops.clone() };
                return child.push_with_parent(builder, id + operation.yields);
            }
            Kind::Sync => return builder.push_sync(move |cx| run.undisturbed(cx)),
            Kind::Future => return builder.try_push_future((), move |()| run.future()),
            Kind::Async(finish) if id % 2 == 0 => {
                return builder.try_push(deferral(), move |end| Ok(Arc::new(run).deferrable(end, finish)?));
            }
            Kind::Async(finish) => {
                return builder.push_async_any((), move |(), done| Arc::new(run).asynchronous(|| done, finish));
            }
            Kind::Push => return shapes::push(builder, operation.shape, &operation.typed, &self.variables, run),
            Kind::Submit => shapes::submit(builder, operation.shape, &operation.typed, &self.variables, run),
            Kind::TrySubmit => shapes::try_submit(builder, operation.shape, &operation.typed, &self.variables, run),
            Kind::PushFuture => {
                return shapes::push_future(
                    builder,
                    operation.shape,
                    &operation.typed,
                    &self.variables,
                    &self.nothing,
                    run,
                );
            }
            Kind::SubmitFuture => {
                shapes::submit_future(builder, operation.shape, &operation.typed, &self.variables, &self.nothing, run)
            }
            Kind::TrySubmitFuture => shapes::try_submit_future(
                builder,
                operation.shape,
                &operation.typed,
                &self.variables,
                &self.nothing,
                run,
            ),
        };
        let handle = handle?;
        if let Bound::Handle(how) = operation.bound {
            let is_withdrawn = match how {
                Cancel::Loudly => handle.cancel(),
                Cancel::Quietly => handle.cancel_quietly(),
            };
            if is_withdrawn == operation.is_clean_up() && (is_held_up || is_withdrawn) {
                lock(&self.world.violations).push(format!("operation {id}: the cancellation returned {is_withdrawn}"));
            }
            self.withdrawn.extend(is_withdrawn.then_some(id));
        }
        drop(held_up);
        self.handles.insert(id, handle);
        Ok(())
    }

    /// Pushes an operation in a scope, between two others, and waits for all of them. If nothing fails, returns a
    /// single number that combines the lent number after the scope with the value seen by the operation.
    fn push_in_scope(&self, id: usize) -> Answer {
        let run = self.run_of(id);
        let (mut number, of_scope_dropped) = (lent(id, false), Drops::new());
        let result = self.engine.scope(|scope| {
            let (number, own) = (scope.lend(&mut number), scope.var(Narrow::new(0, of_scope_dropped.make())));
            scope.op("fill").push(own.write(), |own| own.set(of_scope(id)))?;
            let run = &run;
            let body = move |own: &Narrow, number: &mut u64| {
                let seen = run.enter();
                *number = fold(*number, own.get().unwrap_or(0));
                run.leave(seen);
                run.end().map(|()| seen)
            };
            let (op, accesses) = (self.describe_scoped(scope, id), (own.read(), number.write()));
            let handle = if matches!(run.operation().ends, Ends::Error) {
                op.try_submit(accesses, move |(own, number)| Ok(body(own, number)?))
            } else {
                op.submit(accesses, move |(own, number)| {
                    body(own, number).unwrap_or_else(|error| unreachable!("no operation should return {error} here"))
                })
            };
            let handle = handle?;
            scope.op("look").push(number.read(), move |number| {
                if *number != lent(id, true) {
                    run.violation("left the wrong number behind");
                }
            })?;
            Ok::<_, PushError>(handle.wait())
        });
        // Relaxed: the scope has ended.
        let has_run = self.world.runs[id].load(Relaxed) > 0;
        if number != lent(id, has_run) {
            run.violation(&format!("has left {number} in the lent number"));
        }
        if let Err(error) = of_scope_dropped.check() {
            run.violation(&format!("has a scope whose variable outlives it: {error}"));
        }
        match result {
            Ok(Ok(waited)) => answer(waited, |seen| Answer::Value(fold(number, seen))),
            Ok(Err(error)) => Answer::Refused(error.into()),
            Err(error) => answer(Err::<(), _>(error), |()| Answer::Nothing),
        }
    }

    fn describe_scoped<'scope, 'env>(
        &'scope self,
        scope: &'scope Scope<'scope, 'env>,
        id: usize,
    ) -> OpBuilder<'scope, &'scope Scope<'scope, 'env>> {
        let operation = &self.world.program.operations[id];
        let mut op = scope.op(format!("#{id}")).priority(operation.priority);
        if operation.property == Property::CpuPrioritized {
            op = op.property(raddle::Property::CpuPrioritized);
        }
        describe_untyped!(self, operation, op)
    }

    /// Begins to acquire variables; the acquisition cannot succeed before [`Step::EndAcquire`].
    fn begin_acquire(&mut self, id: usize, how: Acquire) -> Answer {
        let operation = &self.world.program.operations[id];
        let own = self.engine.var(());
        let gate = block_on(self.engine.acquire(own.write())).expect("nothing should fail the gate");
        let mut guards = shapes::acquire(&self.engine, operation.shape, &operation.typed, &self.variables, &own);
        match poll_once(&mut guards) {
            Poll::Ready(result) => answer(result, |_| Answer::Other("acquired too early".to_owned())),
            Poll::Pending => {
                self.acquiring = Some(Acquiring { id, how, gate, guards });
                Answer::InTime
            }
        }
    }

    fn end_acquire(&mut self) -> Answer {
        let Some(Acquiring { id, how, gate, guards }) = self.acquiring.take() else { return Answer::Nothing };
        if how == Acquire::Dropped {
            drop(guards);
            drop(gate);
            return Answer::Nothing;
        }
        drop(gate);
        let run = self.run_of(id);
        answer(block_on(guards), |(refs, own)| {
            if how == Acquire::Used {
                let (seen, _) = run.with_refs(refs);
                drop(own);
                return Answer::Value(seen);
            }
            let panics = move || {
                let _guards = (refs, own);
                panic!("as planned: a guard");
            };
            // The panic is planned.
            let _ = catch_unwind(AssertUnwindSafe(panics));
            Answer::Nothing
        })
    }

    /// Pushes the operations of one group, cancels the group either while all of them are pending or after they have
    /// ended, and waits for the group.
    fn push_together(&mut self, ids: std::ops::Range<usize>, cancel: Option<Cancel>) -> Answer {
        let (outer, gate) = (self.engine.group(), self.engine.var(()));
        let group = outer.group();
        let held_up =
            cancel.map(|_| block_on(self.engine.acquire(gate.write())).expect("nothing should fail the gate"));
        self.together = Some((group.clone(), gate));
        // If the first operation's number is odd, the enclosing group is cancelled instead.
        let to_cancel = if ids.start % 2 == 0 { &group } else { &outer };
        let mut answers: Vec<_> = ids.map(|id| refused(self.push(id))).collect();
        self.together = None;
        match cancel {
            Some(Cancel::Loudly) => to_cancel.cancel(),
            Some(Cancel::Quietly) => to_cancel.cancel_quietly(),
            None => {
                while group.pending() > 0 {
                    thread::yield_now();
                }
                to_cancel.cancel();
            }
        }
        drop(held_up);
        answers.push(answer(group.wait(), |()| Answer::Nothing));
        Answer::All(answers)
    }

    /// Pushes an operation whose function runs until asked to stop, asks it to stop, and waits for the operation.
    fn push_and_stop(&mut self, id: usize, by: Stop) -> Answer {
        let operation = &self.world.program.operations[id];
        let (group, run, has_started) = (self.engine.group(), self.run_of(id), Arc::new(AtomicBool::new(false)));
        self.together = Some((group.clone(), self.nothing.clone()));
        // A naive engine calls the function inside the push.
        let by = if self.engine.kind() == EngineKind::Naive { Stop::Itself } else { by };
        let (starting, of_function) = (Arc::clone(&has_started), group.clone());
        let ask = move || match by {
            Stop::Itself => of_function.cancel(),
            // Relaxed: the cancelling thread needs nothing but the flag.
            Stop::Group(_) | Stop::Handle(_) => starting.store(true, Relaxed),
        };
        let builder = self.describe(id, operation);
        let pushed = builder.submit_any(raddle::cx(), move |cx| run.until_cancelled(cx, ask));
        self.together = None;
        let handle = match pushed {
            Ok(handle) => handle,
            Err(error) => return Answer::Refused(error.into()),
        };
        // Relaxed: as above.
        while !has_started.load(Relaxed) && !handle.is_done() {
            thread::yield_now();
        }
        let was_withdrawn = match by {
            Stop::Itself => false,
            Stop::Group(Cancel::Loudly) => {
                group.cancel();
                false
            }
            Stop::Group(Cancel::Quietly) => {
                group.cancel_quietly();
                false
            }
            Stop::Handle(Cancel::Loudly) => handle.cancel(),
            Stop::Handle(Cancel::Quietly) => handle.cancel_quietly(),
        };
        if was_withdrawn {
            return Answer::Other("an operation that had started was cancelled".to_owned());
        }
        answer(handle.wait(), |(seen, _)| Answer::Value(seen))
    }

    /// Pushes a run of an operator, then waits for it or ignores its handle.
    fn submit_operator(&self, id: usize, limit: Option<Limit>) -> Answer {
        let Some(operator) = self.operators.get(&id) else { return Answer::Other("no such operator".to_owned()) };
        let pushed = match id % 3 {
            0 => operator.submit(),
            1 => match operator.if_room() {
                Err(PushError::Full) => operator.submit(),
                admitted => admitted.and_then(|admitted| admitted.submit()),
            },
            _ => block_on(operator.when_room()).and_then(|admitted| admitted.submit()),
        };
        match (pushed, limit) {
            (Err(error), _) => Answer::Refused(error.into()),
            (Ok(handle), Some(limit)) => wait_for_handle(handle, limit, |()| Answer::Nothing),
            (Ok(handle), None) => {
                handle.ignore();
                Answer::Nothing
            }
        }
    }

    fn make_operator(&mut self, id: usize) -> Result<(), PushError> {
        let operation = &self.world.program.operations[id];
        let (builder, run) = (self.describe(id, operation), self.run_of(id));
        let operator = match operation.kind {
            Kind::Sync if operation.gpu == Some(0) => {
                let run = Arc::new(run);
                builder.launch_operator_any(self.scratch.read(), move |stream, scratch| {
                    Arc::clone(&run).on_device(stream, scratch)
                })
            }
            Kind::Sync => builder.operator_sync(move |cx| run.undisturbed(cx)),
            Kind::Async(finish) => {
                let (world, drops) = (Arc::clone(&self.world), self.world.drops.clone());
                builder.try_operator((raddle::cx(), deferral()), move |(_, end)| {
                    run.drop.touch();
                    let run = Run { world: Arc::clone(&world), id, drop: drops.make() };
                    Arc::new(run).deferrable(end, finish).map_err(Into::into)
                })
            }
            _ => shapes::operator(builder, operation.shape, &operation.typed, &self.variables, run),
        };
        self.operators.insert(id, operator?);
        Ok(())
    }

    fn step(&mut self, step: Step) -> Answer {
        let engine = &self.engine;
        match step {
            Step::NewVariable => {
                let variable = self.variables.len();
                let (value, drop) = (first_value(variable), self.world.drops.make());
                self.variables.push(match self.world.program.variables[variable] {
                    Class::Bare => Handle::Bare(engine.token()),
                    Class::Narrow => Handle::Narrow(engine.var(Narrow::new(value, drop))),
                    Class::Wide => Handle::Wide(engine.var(Wide::new(value, drop))),
                });
                Answer::Nothing
            }
            Step::Push(id) if self.world.program.operations[id].bound == Bound::Scope => self.push_in_scope(id),
            Step::Push(id) => refused(self.push(id)),
            Step::MakeOperator(id) => refused(self.make_operator(id)),
            Step::RunOperator(id, priority) => match (self.operators.get(&id), priority) {
                (None, _) => Answer::Other("no such operator".to_owned()),
                (Some(operator), None) => refused(operator.push()),
                (Some(operator), Some(priority)) => refused(operator.push_with_priority(priority)),
            },
            Step::DropOperator(id) => {
                if let Some(operator) = self.operators.remove(&id) {
                    drop(operator);
                }
                Answer::Nothing
            }
            Step::Delete { variable, panics } => {
                let (world, drop) = (Arc::clone(&self.world), self.world.drops.make());
                refused(engine.delete_variable(self.variables[variable].token(), move |_| {
                    drop.touch();
                    // Relaxed: the engine must order the accesses.
                    let seen = world.slots[variable].load(Relaxed);
                    if lock(&world.deletions).insert(variable, seen).is_some() {
                        lock(&world.violations).push(format!("variable {variable} was deleted twice"));
                    }
                    assert!(!panics, "as planned: a deletion");
                }))
            }
            Step::DropVariable(variable) => {
                self.variables[variable] = Handle::Gone;
                Answer::Nothing
            }
            Step::ClearError(variable) => refused(engine.clear_error(self.variables[variable].token())),
            Step::ClearErrors => {
                // Other steps check the result.
                let _ = engine.wait_for_all();
                Answer::Cleared(engine.clear_errors().map_or(0, |(_, count)| count as usize))
            }
            Step::Set(variable, value) => {
                let drop = self.world.drops.make();
                match &self.variables[variable] {
                    Handle::Narrow(variable) => refused(engine.set(variable, Narrow::new(value, drop))),
                    Handle::Wide(variable) => refused(engine.set(variable, Wide::new(value, drop))),
                    _ => Answer::Other("no value".to_owned()),
                }
            }
            Step::Replace(variable, value) => {
                let drop = self.world.drops.make();
                match &self.variables[variable] {
                    Handle::Narrow(variable) => answer(engine.replace(variable, Narrow::new(value, drop)), seen),
                    Handle::Wide(variable) => answer(engine.replace(variable, Wide::new(value, drop)), seen),
                    _ => Answer::Other("no value".to_owned()),
                }
            }
            Step::WaitForGroup => answer(self.group.wait(), |()| Answer::Nothing),
            Step::Take(variable) => match &self.variables[variable] {
                Handle::Narrow(variable) => answer(engine.take(variable), seen),
                Handle::Wide(variable) => answer(engine.take(variable), seen),
                _ => Answer::Other("no value".to_owned()),
            },
            Step::DropHandle(id) => {
                drop(self.handles.remove(&id));
                Answer::Nothing
            }
            Step::IgnoreHandle(id) => {
                if let Some(handle) = self.handles.remove(&id) {
                    handle.ignore();
                }
                Answer::Nothing
            }
            Step::SubmitOperator(id, limit) => self.submit_operator(id, limit),
            Step::BeginAcquire(id, how) => self.begin_acquire(id, how),
            Step::EndAcquire => self.end_acquire(),
            Step::Together { first, count, cancel } => self.push_together(first..first + count, cancel),
            Step::Stop(id, by) => self.push_and_stop(id, by),
            Step::Wait(wait, limit) => self.wait(wait, limit),
        }
    }

    fn wait(&mut self, wait: Wait, limit: Limit) -> Answer {
        let engine = &self.engine;
        let nothing = |()| Answer::Nothing;
        macro_rules! wait {
            ($variable:expr, $wait:ident, $timeout:ident, $future:ident) => {{
                let token = self.variables[$variable].token();
                match limit {
                    Limit::None => answer(engine.$wait(token), nothing),
                    Limit::Micros(limit) => answer(engine.$timeout(token, Duration::from_micros(limit)), nothing),
                    Limit::Future => answer(block_on(engine.$future(token)), nothing),
                    Limit::Poll => match poll_once(&mut engine.$future(token)) {
                        Poll::Ready(result) => answer(result, nothing),
                        Poll::Pending => Answer::InTime,
                    },
                }
            }};
        }
        match wait {
            Wait::ForVar(variable) => wait!(variable, wait_for_var, wait_for_var_timeout, wait_for_var_async),
            Wait::ToRead(variable) => wait!(variable, wait_to_read, wait_to_read_timeout, wait_to_read_async),
            Wait::ToWrite(variable) => wait!(variable, wait_for_var, wait_for_var_timeout, wait_for_var_async),
            Wait::Get(variable) => match &self.variables[variable] {
                Handle::Narrow(variable) => get(engine, variable, limit),
                Handle::Wide(variable) => get(engine, variable, limit),
                _ => Answer::Other("no value".to_owned()),
            },
            Wait::ForAll => match limit {
                Limit::None => answer(engine.wait_for_all(), nothing),
                Limit::Micros(limit) => answer(engine.wait_for_all_timeout(Duration::from_micros(limit)), nothing),
                Limit::Future => answer(block_on(engine.wait_for_all_async()), nothing),
                Limit::Poll => match poll_once(&mut Box::pin(engine.wait_for_all_async())) {
                    Poll::Ready(result) => answer(result, nothing),
                    Poll::Pending => Answer::InTime,
                },
            },
            Wait::Handle(id) => {
                let Some(handle) = self.handles.remove(&id) else {
                    return Answer::Other("no such handle".to_owned());
                };
                wait_for_handle(handle, limit, |(seen, drop): (u64, Droppable)| {
                    drop.touch();
                    Answer::Value(seen)
                })
            }
            Wait::Ready(variable) => {
                let mut ready = match &self.variables[variable] {
                    Handle::Narrow(variable) => variable.ready(),
                    Handle::Wide(variable) => variable.ready(),
                    handle => handle.token().ready(),
                };
                match limit {
                    Limit::None | Limit::Future => answer(block_on(ready), nothing),
                    Limit::Micros(_) | Limit::Poll => match poll_once(&mut ready) {
                        Poll::Ready(result) => answer(result, nothing),
                        Poll::Pending => Answer::InTime,
                    },
                }
            }
        }
    }

    /// Compares all final values with the model.
    fn check_end(&mut self, model: &Model) -> Result<(), String> {
        expect("the last wait", &model.all(), &self.wait(Wait::ForAll, Limit::None))?;
        for (variable, &standing) in model.standings.iter().enumerate() {
            let what = |what: &str| format!("{what} of variable {variable}");
            // Relaxed: the wait is over.
            equal(&what("the outside value"), self.world.slots[variable].load(Relaxed), model.slots[variable])?;
            if standing == Standing::Dropped {
                continue;
            }
            let version = self.variables[variable].token().version();
            equal(&what("the version"), version, model.versions[variable])?;
            let waited = self.wait(Wait::ForVar(variable), Limit::None);
            expect(&what("a wait"), &Expected::Exactly(model.wait(variable)), &waited)?;
            if !matches!(self.variables[variable], Handle::Bare(_)) {
                let value = self.wait(Wait::Get(variable), Limit::None);
                expect(&what("the value"), &Expected::Exactly(model.get(variable)), &value)?;
            }
        }
        for (id, (&runs, &seen)) in model.runs.iter().zip(&model.seen).enumerate() {
            // Relaxed: the wait is over.
            equal(&format!("the number of runs of operation {id}"), self.world.runs[id].load(Relaxed), runs)?;
            // Relaxed: the wait is over.
            equal(&format!("the value seen by operation {id}"), self.world.seen[id].load(Relaxed), seen)?;
        }
        equal("the values that deletions saw", lock(&self.world.deletions).clone(), model.deletions.clone())?;
        equal("violations", lock(&self.world.violations).clone(), Vec::new())
    }
}

fn expect(what: &str, expected: &Expected, answer: &Answer) -> Result<(), String> {
    if expected.admits(answer) { Ok(()) } else { Err(format!("{what} returned {answer:?}, expected {expected:?}")) }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, is: T, should: T) -> Result<(), String> {
    if is == should { Ok(()) } else { Err(format!("{what} is {is:?}, expected {should:?}")) }
}

/// Runs a program on one engine and compares the results with the model's.
fn run(program: &Arc<Program>, plan: &EngineBuilder, limit: Option<usize>, watch: &Watch) -> Result<(), String> {
    let build = |plan: EngineBuilder| plan.build().map_err(|error: raddle::error::BuildError| error.to_string());
    let gpu = SimulatedGpu::builder().clock(Clock::Instantly).seed(program.steps.len() as u64).build();
    let engine = build(plan.clone().gpu(gpu))?;
    let abroad = build(Engine::builder().kind(EngineKind::Naive))?;
    let foreign = abroad.token();
    let mut runner = Runner::new(program, engine, foreign);
    if let Some(limit) = limit {
        runner.is_limited = true;
        runner.group = runner.group.max_pending(1 + limit / 2);
    }
    let (world, shown_plan) = (Arc::clone(&runner.world), plan.clone());
    watch.explain(move || {
        // Relaxed: the value is used only in messages.
        let runs: Vec<_> = world.runs.iter().map(|runs| runs.load(Relaxed)).collect();
        let held: Vec<_> = world.holders.iter().map(|holders| holders.load(Relaxed)).collect();
        format!(
            "{shown_plan:?}\nat step {}; runs by operation: {runs:?}; holders by variable: {held:?}\n{:#?}",
            world.at.load(Relaxed),
            world.program
        )
    });
    let count = program.operations.len();
    let mut model = Model { runs: vec![0; count], seen: vec![0; count], ..Model::default() };
    for (index, &step) in program.steps.iter().enumerate() {
        // Relaxed: the value is used only in messages.
        runner.world.at.store(index, Relaxed);
        let answer = runner.step(step);
        model.withdrawn.clone_from(&runner.withdrawn);
        let expected = model.step(program, step);
        let brief = matches!(
            step,
            Step::Wait(_, Limit::Micros(_) | Limit::Poll)
                | Step::SubmitOperator(_, Some(Limit::Micros(_) | Limit::Poll))
        );
        if answer == Answer::InTime && brief {
            continue;
        }
        expect(&format!("step {index}, {step:?},"), &expected, &answer)?;
        model.record_report(step, &answer);
    }
    // Relaxed: the value is used only in messages.
    runner.world.at.store(program.steps.len(), Relaxed);
    runner.check_end(&model)?;
    let Runner { world, engine, variables, operators, handles, scratch, .. } = runner;
    drop((variables, operators, handles, scratch));
    if !program.drops_engine {
        let ended = if program.steps.len() % 2 == 0 {
            engine.shutdown(Shutdown::Drain, None)
        } else {
            block_on(engine.shutdown_async(Shutdown::Drain))
        };
        ended.map_err(|error| error.to_string())?;
    }
    drop(engine);
    // An asynchronous operator's function may still be running after its completion has been used. The function keeps
    // the operator alive until it returns.
    eventually_ok(|| world.drops.check())
}

fn compare(target: &'static str, data: &[u8], is_typed: bool) {
    watched(target, data, |watch| {
        let mut bytes = Bytes::new(data);
        let threaded = engine_plan(&mut bytes, &THREADED);
        // The input's length determines the limit, so that inputs that predate limits keep their meaning.
        let limit = (data.len() % 3 == 0).then_some(1 + data.len() / 3 % 7);
        let program = Arc::new(Program::decode(&mut bytes, is_typed, limit.is_some()));
        for plan in [Engine::builder().kind(EngineKind::Naive), threaded] {
            let plan = limit.into_iter().fold(plan, EngineBuilder::max_pending);
            let (plan, recorder) = observe(plan, data);
            let result = run(&program, &plan, limit, watch).and_then(|()| check_recorded(recorder.as_ref()));
            result.map_err(|error| format!("{error}\n{plan:?}\n{program:#?}"))?;
        }
        Ok(())
    });
}

pub fn push(data: &[u8]) {
    compare("push", data, false);
}

pub fn typed(data: &[u8]) {
    compare("typed", data, true);
}
