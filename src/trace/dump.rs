//! Dumps: what is pending in an engine, and why.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    fmt::{self, Write as _},
    panic::Location,
    time::Duration,
};

use raddle_trace::{
    AccessMode, OpId,
    recording::{Json, Plain, nearest, short_cycle},
};

use crate::values::{Name, device::Device};

/// A list of what is pending in an engine, from [`Engine::dump`](crate::Engine::dump). [`Display`](fmt::Display) prints
/// it as text: after the number of operations comes a cycle of waits, if there is one, or else the operation that holds
/// up the most others; then the waiting threads, and then up to a hundred entries of operations. Those that run come
/// first, and then those that hold up most. Operations whose entries would be equal share one. The last line counts the
/// engine's own operations that do not run, such as the drops of variables' values.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    pub(crate) ops: Vec<PendingOp>,
    pub(crate) variables: Vec<PendingVar>,
    pub(crate) waits: Vec<ThreadWait>,
    pub(crate) unlisted: u64,
    pub(crate) record_bytes: usize,
}

/// A variable that pending operations declare.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingVar {
    /// The variable's name, or its number if it has no name. A variable that replaces another for an operation's
    /// children has the name of the replaced variable.
    pub name: String,
    /// The operations that hold the variable, as indices into [`Dump::ops`]: one that mutates it, or any number that
    /// read it.
    pub held_by: Vec<usize>,
    /// The operations that wait for the variable, as indices into [`Dump::ops`].
    pub awaited_by: Vec<usize>,
}

/// A thread waiting in a call to the engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ThreadWait {
    /// The number of the wait. Later waits have higher numbers.
    pub(crate) number: u64,
    /// The name of the thread, or its ID if it has no name.
    pub thread: String,
    /// What the thread waits for.
    pub kind: WaitKind,
    /// How long the thread has been waiting.
    pub time: Duration,
    /// The operations whose functions are running on the thread, as indices into [`Dump::ops`]. Empty for a thread
    /// outside operations.
    pub inside: Vec<usize>,
    /// The operations that the thread waits for, as indices into [`Dump::ops`]. Empty if it waits for room, or if it is
    /// outside operations and waits for all.
    pub waits_for: Vec<usize>,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitKind {
    /// All operations of the engine.
    All,
    /// The operations of a group.
    Group,
    /// The end of a scope.
    Scope,
    /// Room for an operation: the engine or a group is full.
    Room,
    /// An operation with a handle, or the internal operation of a wait for a variable.
    Operation,
}

impl fmt::Display for WaitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::All => "all operations",
            Self::Group => "a group",
            Self::Scope => "the end of a scope",
            Self::Room => "room",
            Self::Operation => "an operation",
        })
    }
}

/// A pending operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingOp {
    /// Identifies the operation in traces. Known for the same engines as `age`.
    pub id: Option<OpId>,
    /// The operation's name, which is empty if it has none.
    pub name: Name,
    /// Where the operation was pushed.
    pub location: &'static Location<'static>,
    /// How far the operation has progressed.
    pub state: OpState,
    /// The device on which the operation runs.
    pub device: Device,
    /// The name of the operation's lane.
    pub lane: String,
    /// Where the operation runs. Known only for engines with a [recorder](crate::EngineBuilder::recorder) or a
    /// [profile](crate::EngineBuilder::profile).
    pub place: Option<String>,
    /// The time since the operation's push. Known for the same engines as `place`, and for those that have an
    /// [observer](crate::EngineBuilder::observer) or a [watchdog](crate::EngineBuilder::watchdog), or that
    /// [shuffle](crate::EngineBuilder::shuffle).
    pub age: Option<Duration>,
    /// The priority closest to 0 among those that the engine treats as equal to the operation's.
    pub priority: i32,
    /// Whether the operation ends when its completion is used rather than when its function returns.
    pub asynchronous: bool,
    /// Whether the operation is one of the engine's own, such as a wait, a deletion, or the poll of a future.
    pub internal: bool,
    /// The variables that the operation declares, except those that it has released.
    pub accesses: Vec<PendingAccess>,
    /// The units of resources that the operation uses, and of bounds on the operations that run at a time.
    pub units: Vec<PendingUnits>,
    /// The operations for which this one waits directly, as indices into [`Dump::ops`]: those before it in a variable's
    /// queue, those that commute there and run before it, those that hold units for which it waits, those that its
    /// function waits for, and its children. An operation that only reads a variable is listed for at most 32 waits
    /// behind it.
    pub waits_for: Vec<usize>,
    /// What the operation does, apart from calling a function of the program.
    pub(crate) role: Role,
}

/// What a pending operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// What the program has called for: a function, a future, or a call such as a wait.
    OfProgram,
    /// It holds its variables for guards, or for a thread that has called [`with`](crate::Engine::with).
    Guards,
    /// Something that the engine does of its own accord: it drops a value, polls a future, or calls a waker.
    OfEngine,
}

/// A variable that a pending operation declares.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingAccess {
    /// The name of the variable, or its number if it has no name.
    pub variable: String,
    /// How the operation uses it.
    pub mode: AccessMode,
    /// Whether the operation waits for others that use the variable.
    pub waits: bool,
}

/// Units of a resource that a pending operation uses.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingUnits {
    /// The name of the [resource](crate::Resource), which is empty if it has none, or `jobs` for the bound of a group
    /// or an engine.
    pub resource: String,
    /// The number of units.
    pub units: u64,
    /// Whether the operation waits for units.
    pub waits: bool,
}

/// How far a pending operation has progressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpState {
    /// The operation waits for earlier operations on its variables, or for one that commutes there.
    Waiting,
    /// The operation's variables are free, and it waits for units of [resources](crate::Resource).
    WaitingForUnits,
    /// The operation is ready and waiting for a worker.
    Ready,
    /// The operation's function has been called and has not returned. An asynchronous operation stays in this state
    /// until its completion is used.
    Running,
    /// The operation's function is waiting for another operation, a group, or the end of a scope.
    WaitingInside,
    /// The operation's function has returned, and the operation is waiting for its children.
    WaitingForChildren,
    /// The operation has released its variables. Program code that is part of its completion is running or about to
    /// run, or a GPU has yet to complete it.
    Ending,
}

impl fmt::Display for OpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Waiting => "waiting",
            Self::WaitingForUnits => "needs units",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::WaitingInside => "waiting inside",
            Self::WaitingForChildren => "has children",
            Self::Ending => "ending",
        })
    }
}

/// What the text of a dump says of an operation's state.
struct StateText<'o>(&'o PendingOp);

impl fmt::Display for StateText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.role, self.0.state) {
            (Role::Guards, OpState::Running) => f.pad("held by guards"),
            (_, state) => state.fmt(f),
        }
    }
}

impl PendingOp {
    /// Whether the operation's function has been called.
    fn has_started(&self) -> bool {
        !matches!(self.state, OpState::Waiting | OpState::Ready)
    }

    /// Returns the operation's name, or where it was pushed if it has none.
    #[must_use]
    pub fn label(&self) -> String {
        if self.name.is_empty() {
            format!("{}:{}", self.location.file(), self.location.line())
        } else {
            self.name.to_string()
        }
    }
}

impl Dump {
    /// Returns the pending operations.
    #[must_use]
    pub fn ops(&self) -> &[PendingOp] {
        &self.ops
    }

    /// Returns the variables that pending operations declare, along with the operations that hold or await them.
    #[must_use]
    pub fn variables(&self) -> &[PendingVar] {
        &self.variables
    }

    /// Returns the threads waiting in calls to the engine, roughly in the order in which they began to wait.
    /// Asynchronous tasks are not listed here; what they await is among the [operations](Self::ops).
    #[must_use]
    pub fn waits(&self) -> &[ThreadWait] {
        &self.waits
    }

    /// Returns how many operations are pending but not listed, usually because they were pushed or ended during the
    /// call.
    #[must_use]
    pub fn unlisted(&self) -> u64 {
        self.unlisted
    }

    /// Returns how many bytes this process has allocated for the records of operations, pending ones of all engines and
    /// free ones kept for reuse. An engine that has been idle for some seconds keeps few.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Returns a cycle of operations, as indices into [`ops`](Self::ops): each waits for the next, and the last for the
    /// first. Operations can form a cycle only if functions wait. One that waits for units waits for each operation
    /// that holds some, although it may need only some of these to end.
    ///
    /// The cycle is a shortest one unless there are many: the search starts from at most 64 operations and follows each
    /// wait at most once from each of them.
    #[must_use]
    pub fn cycle(&self) -> Option<Vec<usize>> {
        short_cycle(self.ops.len(), |op| self.ops[op].waits_for.as_slice(), MAX_STARTS)
    }

    /// Returns a shortest chain of operations, as indices, from `op` to an operation that waits for none. Each waits
    /// for the next.
    #[must_use]
    pub fn chain(&self, op: usize) -> Option<Vec<usize>> {
        let waits_for = |op: usize| self.ops[op].waits_for.as_slice();
        nearest(self.ops.len(), &[op], waits_for, |op| waits_for(op).is_empty())
    }

    /// Returns, for each operation, one that waits for nothing and for which it waits, directly or through others, if
    /// there is one: the nearest, or the operation itself.
    pub(crate) fn causes(&self) -> Vec<Option<usize>> {
        let behind = self.behind();
        let mut causes = vec![None; self.ops.len()];
        let mut found: Vec<usize> = (0..self.ops.len()).filter(|&op| self.ops[op].waits_for.is_empty()).collect();
        found.iter().for_each(|&op| causes[op] = Some(op));
        let mut next = 0;
        while let Some(&at) = found.get(next) {
            for &later in &behind[at] {
                if causes[later].is_none() {
                    causes[later] = causes[at];
                    found.push(later);
                }
            }
            next += 1;
        }
        causes
    }

    /// Returns how many operations wait for `op`, directly or through others.
    #[must_use]
    pub fn held_up_by(&self, op: usize) -> usize {
        held_up(&self.behind(), op).len() - 1
    }

    /// Returns, for each operation, those that wait for it directly.
    fn behind(&self) -> Vec<Vec<usize>> {
        let mut behind = vec![Vec::new(); self.ops.len()];
        for (later, op) in self.ops.iter().enumerate() {
            op.waits_for.iter().for_each(|&earlier| behind[earlier].push(later));
        }
        behind
    }

    /// Prints the operation that holds up the most others and a chain of waits leading to it. Considers only operations
    /// that wait for nothing, and of these, the ones for which the most operations wait directly.
    fn print_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let behind = self.behind();
        let mut heads: Vec<usize> = (0..self.ops.len()).filter(|&op| self.ops[op].waits_for.is_empty()).collect();
        heads.sort_by_key(|&op| std::cmp::Reverse(behind[op].len()));
        let most = heads.iter().take(MAX_STARTS).map(|&head| (held_up(&behind, head), head));
        let Some((held, head)) = most.max_by_key(|(held, _)| held.len()).filter(|(held, _)| held.len() > 1) else {
            return Ok(());
        };
        let op = &self.ops[head];
        let (label, count) = (op.label(), held.len() - 1);
        let others = if count == 1 { "other" } else { "others" };
        let state = StateText(op);
        writeln!(f, "\n`{}` pushed at {} is {state} and holds up {count} {others}:", Plain(&label), op.location)?;
        // The chain begins with a call of the program that waits, or else with the farthest operation, of the program's
        // if there are any.
        let is_program = |op: usize| self.ops[op].role != Role::OfEngine;
        let waits = |&&op: &&usize| self.ops[op].internal && is_program(op) && op != head;
        let farthest = held[1..].iter().rfind(|&&op| is_program(op)).or(held.last());
        let from = held.iter().find(waits).or(farthest).copied();
        let waits_for = |op: usize| self.ops[op].waits_for.as_slice();
        let chain = from.and_then(|from| nearest(self.ops.len(), &[from], waits_for, |op| op == head));
        self.print_chain(f, &chain.unwrap_or_default())
    }

    /// Returns a graph of the operations and what they wait for, in DOT, the language of Graphviz.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// std::fs::write(std::env::temp_dir().join("pending.dot"), engine.dump().to_dot())?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph pending {\n  node [shape=box];\n");
        for (index, op) in self.ops.iter().enumerate() {
            let (label, state) = (Quoted(&op.label()).to_string(), op.state);
            let _ = writeln!(dot, "  n{index} [label=\"{label}\\n{state}\"];");
        }
        let outside = self.waits.iter().filter(|wait| wait.inside.is_empty());
        for (index, wait) in outside.enumerate() {
            let label = Quoted(&wait.thread).to_string();
            let _ = writeln!(dot, "  t{index} [shape=ellipse, label=\"{label}\\nwaits for {}\"];", wait.kind);
            for target in &wait.waits_for {
                let _ = writeln!(dot, "  t{index} -> n{target};");
            }
        }
        for (index, op) in self.ops.iter().enumerate() {
            for before in &op.waits_for {
                let _ = writeln!(dot, "  n{index} -> n{before};");
            }
        }
        dot.push_str("}\n");
        dot
    }

    /// Returns the dump as JSON: an object with the fields `operations`, `variables`, `waits` and `unlisted`. The first
    /// three are lists. Their elements have the fields of [`PendingOp`] (except `id`), [`PendingVar`] and
    /// [`ThreadWait`], respectively. Times are in nanoseconds.
    #[must_use]
    pub fn to_json(&self) -> String {
        let optional = |text: Option<String>| text.unwrap_or_else(|| "null".to_owned());
        let list = |items: Vec<String>| format!("[{}]", items.join(","));
        let ops = self.ops.iter().map(|op| {
            let access = |access: &PendingAccess| {
                format!(
                    r#"{{"variable":{},"mode":"{:?}","waits":{}}}"#,
                    Json(&access.variable),
                    access.mode,
                    access.waits
                )
            };
            let units = |units: &PendingUnits| {
                let PendingUnits { resource, units, waits } = units;
                format!(r#"{{"resource":{},"units":{units},"waits":{waits}}}"#, Json(resource))
            };
            format!(
                r#"{{"name":{},"location":{},"state":"{:?}","device":{},"lane":{},"place":{},"age":{},"priority":{},"asynchronous":{},"internal":{},"accesses":{},"units":{},"waits_for":{}}}"#,
                Json(op.name.as_str()),
                Json(&op.location.to_string()),
                op.state,
                Json(&op.device.to_string()),
                Json(&op.lane),
                optional(op.place.as_ref().map(|place| Json(place).to_string())),
                optional(op.age.map(|age| age.as_nanos().to_string())),
                op.priority,
                op.asynchronous,
                op.internal,
                list(op.accesses.iter().map(access).collect()),
                list(op.units.iter().map(units).collect()),
                list(op.waits_for.iter().map(usize::to_string).collect()),
            )
        });
        let places = |places: &[usize]| list(places.iter().map(usize::to_string).collect());
        let variables = self.variables.iter().map(|variable| {
            let PendingVar { name, held_by, awaited_by } = variable;
            let (held_by, awaited_by) = (places(held_by), places(awaited_by));
            format!(r#"{{"name":{},"held_by":{held_by},"awaited_by":{awaited_by}}}"#, Json(name))
        });
        let waits = self.waits.iter().map(|wait| {
            format!(
                r#"{{"thread":{},"kind":"{:?}","time":{},"inside":{},"waits_for":{}}}"#,
                Json(&wait.thread),
                wait.kind,
                wait.time.as_nanos(),
                places(&wait.inside),
                places(&wait.waits_for),
            )
        });
        format!(
            r#"{{"operations":{},"variables":{},"waits":{},"unlisted":{}}}"#,
            list(ops.collect()),
            list(variables.collect()),
            list(waits.collect()),
            self.unlisted
        )
    }

    /// Prints the waiting threads.
    fn print_waits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for wait in self.waits.iter().take(MAX_PRINTED) {
            write!(f, "\nthread `{}` has been waiting for {} for {:.1?}", Plain(&wait.thread), wait.kind, wait.time)?;
            for &op in wait.inside.iter().take(3) {
                write!(f, ", inside `{}`", Plain(&self.ops[op].label()))?;
            }
            for &op in wait.waits_for.iter().take(8) {
                let op = &self.ops[op];
                write!(
                    f,
                    "\n{:15}waits for `{}` pushed at {}: {}",
                    "",
                    Plain(&op.label()),
                    op.location,
                    StateText(op)
                )?;
            }
            if wait.waits_for.len() > 8 {
                write!(f, "\n{:15}and for {} others", "", wait.waits_for.len() - 8)?;
            }
        }
        match self.waits.len().checked_sub(MAX_PRINTED) {
            Some(more) if more > 0 => writeln!(f, "\n… and {more} more threads"),
            _ if self.waits.is_empty() => Ok(()),
            _ => writeln!(f),
        }
    }

    /// Prints the first operations and the last operation of a chain in which each waits for the next.
    fn print_chain(&self, f: &mut fmt::Formatter<'_>, chain: &[usize]) -> fmt::Result {
        for (step, &index) in chain.iter().enumerate() {
            if step > MAX_STEPS && step + 1 < chain.len() {
                continue;
            }
            if step > MAX_STEPS && chain.len() > MAX_STEPS + 2 {
                writeln!(f, "  … and {} more, the last of which", chain.len() - MAX_STEPS - 2)?;
            }
            let op = &self.ops[index];
            let waits = if step == 0 { "" } else { "waits for " };
            writeln!(f, "  {waits}`{}` pushed at {}: {}", Plain(&op.label()), op.location, StateText(op))?;
        }
        Ok(())
    }

    /// Returns the operations in the order in which the text lists them, without those that it counts in its last line.
    fn in_order(&self) -> Vec<usize> {
        // For each operation, on how many ways others wait for it: this grows along each wait, as does the number of
        // operations that wait, and is found in one pass. Those on a cycle of waits keep what was found so far.
        let mut ways = vec![0.0_f64; self.ops.len()];
        let mut left: Vec<usize> = self.behind().iter().map(Vec::len).collect();
        let mut known: Vec<usize> = (0..left.len()).filter(|&op| left[op] == 0).collect();
        while let Some(op) = known.pop() {
            for &before in &self.ops[op].waits_for {
                ways[before] += 1.0 + ways[op];
                left[before] -= 1;
                if left[before] == 0 {
                    known.push(before);
                }
            }
        }
        let listed = |&op: &usize| self.ops[op].role != Role::OfEngine || self.ops[op].has_started();
        let mut order: Vec<usize> = (0..self.ops.len()).filter(listed).collect();
        order.sort_by(|&one, &other| {
            let runs = |op: usize| self.ops[op].has_started();
            runs(other).cmp(&runs(one)).then(ways[other].total_cmp(&ways[one]))
        });
        order
    }

    /// Returns what the text says of an operation after its name. `awaited` are the variables for which it waits.
    fn details(&self, op: &PendingOp, awaited: &[&PendingVar]) -> String {
        let mut text = format!(", lane {}", op.lane);
        // Writing to a string cannot fail.
        let mut print = |part: fmt::Arguments<'_>| _ = text.write_fmt(part);
        op.place.iter().for_each(|place| print(format_args!(", on {place}")));
        if op.priority != 0 {
            print(format_args!(", priority {}", op.priority));
        }
        if op.asynchronous && op.state == OpState::Running && op.role != Role::Guards {
            print(format_args!(", its completion, its future or a guard has not ended it yet"));
        }
        for access in &op.accesses {
            let mode = match access.mode {
                AccessMode::Read => "reads",
                AccessMode::Commute => "commutes on",
                AccessMode::Write | AccessMode::Overwrite => "mutates",
            };
            let waits = if access.waits { ", and waits for it" } else { "" };
            print(format_args!("\n{:15}{mode} `{}`{waits}", "", Plain(&access.variable)));
            let holds = |variable: &&&PendingVar| access.waits && variable.name == access.variable;
            let Some(holders) = awaited.iter().find(holds).map(|variable| &variable.held_by) else {
                continue;
            };
            for &holder in holders.iter().take(3) {
                print(format_args!(", held by `{}`", Plain(&self.ops[holder].label())));
            }
            if holders.len() > 3 {
                print(format_args!(" and {} others", holders.len() - 3));
            }
        }
        for PendingUnits { resource, units, waits } in &op.units {
            let (uses, s) = (if *waits { "waits for" } else { "holds" }, if *units == 1 { "" } else { "s" });
            print(format_args!("\n{:15}{uses} {units} unit{s} of `{}`", "", Plain(resource)));
        }
        for &before in op.waits_for.iter().take(8) {
            print(format_args!("\n{:15}waits for `{}`", "", Plain(&self.ops[before].label())));
        }
        if op.waits_for.len() > 8 {
            print(format_args!("\n{:15}and for {} others", "", op.waits_for.len() - 8));
        }
        text
    }

    /// Prints the operations, and returns how many of those that it was to list it has left out.
    fn print_ops(&self, f: &mut fmt::Formatter<'_>) -> Result<usize, fmt::Error> {
        let order = self.in_order();
        let considered = &order[..order.len().min(MAX_CONSIDERED)];
        let mut awaited: HashMap<usize, Vec<&PendingVar>> = considered.iter().map(|&op| (op, Vec::new())).collect();
        for variable in &self.variables {
            for waiter in &variable.awaited_by {
                awaited.get_mut(waiter).into_iter().for_each(|awaited| awaited.push(variable));
            }
        }
        // The operations of each entry, and what distinguishes it from others.
        let (mut entries, mut known): (Vec<(Vec<&PendingOp>, String)>, _) = (Vec::new(), HashMap::new());
        for index in considered {
            let op = &self.ops[*index];
            let details = self.details(op, &awaited[index]);
            match known.entry((op.label(), op.location, op.state, details.clone())) {
                Entry::Occupied(entry) => {
                    let entry: &usize = entry.get();
                    entries[*entry].0.push(op);
                }
                Entry::Vacant(entry) if entries.len() < MAX_PRINTED => {
                    entry.insert(entries.len());
                    entries.push((vec![op], details));
                }
                Entry::Vacant(_) => {}
            }
        }
        for (ops, details) in &entries {
            let op = ops[0];
            let times = if ops.len() > 1 { format!("{} × ", ops.len()) } else { String::new() };
            write!(f, "\n{:<14} {times}`{}` pushed at {}", StateText(op), Plain(&op.label()), op.location)?;
            let ages = || ops.iter().filter_map(|op| op.age);
            match (ages().min(), ages().max()) {
                (Some(least), Some(most)) if least != most => write!(f, ", {least:.1?} to {most:.1?} ago")?,
                (Some(age), _) => write!(f, ", {age:.1?} ago")?,
                _ => {}
            }
            f.write_str(details)?;
        }
        Ok(order.len() - entries.iter().map(|(ops, _)| ops.len()).sum::<usize>())
    }

    /// Prints how many operations of the engine's own are pending that do not run.
    fn print_own(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut own = BTreeMap::new();
        for op in self.ops.iter().filter(|op| op.role == Role::OfEngine && !op.has_started()) {
            *own.entry((op.name.as_str(), op.state.to_string())).or_insert(0) += 1;
        }
        let mut before = "\nthe engine's own: ";
        for ((name, state), count) in own {
            write!(f, "{before}{count} × `{name}` {state}")?;
            before = ", ";
        }
        Ok(())
    }
}

/// A text, escaped for a quoted string in DOT.
struct Quoted<'t>(&'t str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '"' | '\\' => write!(f, "\\{char}"),
            '\n' => f.write_str("\\n"),
            // Graphviz would copy the character into SVG, which forbids it.
            char if char.is_control() => write!(f, "{}", char::REPLACEMENT_CHARACTER),
            char => write!(f, "{char}"),
        })
    }
}

/// Returns `op`, followed by the operations that wait for it, directly or through others, nearest first.
fn held_up(behind: &[Vec<usize>], op: usize) -> Vec<usize> {
    let (mut seen, mut found, mut next) = (HashSet::from([op]), vec![op], 0);
    while let Some(&at) = found.get(next) {
        found.extend(behind[at].iter().copied().filter(|&later| seen.insert(later)));
        next += 1;
    }
    found
}

/// The maximum number of operations from which searches start. It bounds the time taken to print a large dump.
const MAX_STARTS: usize = 64;

/// The maximum number of steps printed between the first and the last step of a chain.
pub(super) const MAX_STEPS: usize = 10;

/// The maximum number of entries of operations or threads printed; what is left out is only counted.
const MAX_PRINTED: usize = 100;

/// The maximum number of operations of which it is seen whether their entries are equal. It bounds the time taken to
/// print a large dump.
const MAX_CONSIDERED: usize = 10_000;

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = self.ops.len() as u64 + self.unlisted;
        let are = if pending == 1 { "operation is" } else { "operations are" };
        writeln!(f, "{pending} {are} pending.")?;
        if let Some(cycle) = self.cycle() {
            writeln!(f, "\nThese wait for each other, the last one for the first:")?;
            self.print_chain(f, &cycle)?;
        } else {
            self.print_head(f)?;
        }
        self.print_waits(f)?;
        let left_out = self.print_ops(f)?;
        self.print_own(f)?;
        let more = left_out as u64 + self.unlisted;
        if more > 0 {
            write!(f, "\n… and {more} more")?;
        }
        writeln!(f)
    }
}
