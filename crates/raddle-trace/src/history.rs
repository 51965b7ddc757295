//! Histories of operations, assembled from their events.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    panic::Location,
    sync::Arc,
    time::Duration,
};

use crate::{
    event::{AccessMode, Event, OpId, Outcome, Place, PushEvent, VarId, What},
    name::Name,
    op_stats::Collected,
};

/// The history of one operation. Times count from the recorder's creation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TracedOp {
    /// Identifies the operation in the traces of its recorder.
    pub id: OpId,
    /// The operation's name, which is empty if it has none.
    pub name: Name,
    /// Where the operation was pushed.
    pub location: &'static Location<'static>,
    /// The number of the operation's engine in the trace.
    pub engine: u16,
    /// The number of the operation's lane: see [`Trace::lane`].
    pub lane: u8,
    /// The priority closest to 0 among those that the engine treats as equal to the operation's.
    pub priority: i32,
    /// Whether the operation is one of the engine's own, such as a wait, a deletion, or the poll of a future.
    pub internal: bool,
    /// The variables that the operation declares.
    pub accesses: Vec<(VarId, AccessMode)>,
    /// The number of the thread that pushed the operation.
    pub pushed_by: u16,
    /// The operation whose function pushed this one. `None` for children, which are pushed after their parent's
    /// function has returned.
    pub parent: Option<OpId>,
    /// When the operation was pushed.
    pub pushed: Duration,
    /// When the operation became ready.
    pub ready: Option<Duration>,
    /// When the operation's function was called. `None` if it never was, or if the trace ends earlier.
    pub started: Option<Duration>,
    /// When the operation's function returned. A GPU operation has been issued by then.
    pub returned: Option<Duration>,
    /// When the operation ended: from then on, operations behind it could run. A GPU operation ends when the GPU
    /// completes it.
    pub ended: Option<Duration>,
    /// How the operation ended.
    pub outcome: Option<Outcome>,
    pub(super) is_over: bool,
    /// Where and when the operation's function ran. There may be several runs if the function waited.
    pub runs: Vec<Run>,
    /// The operations in the trace that this one had to follow because of its variables: for each variable, the last
    /// operation that mutated it, or, if this one mutates it and others have read it since, these readers. Some may
    /// have ended before this operation was pushed. Empty until the operation starts. If more than 1024 operations in a
    /// row read a variable, the next operation to mutate it depends on all of them, but only the last 1024 are listed.
    pub depends_on: Vec<OpId>,
}

/// A period in which a function ran on one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// Where the function ran.
    pub place: Place,
    /// When the period began.
    pub from: Duration,
    /// When the period ended, or the end of the trace if the function was still running.
    pub to: Duration,
}

impl TracedOp {
    /// Returns whether the history is complete: the operation has ended, and its function does not run any more. The
    /// function of an asynchronous operation may return long after the operation has ended. Later traces do not contain
    /// an operation that is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns how long the function ran, excluding the time it spent waiting for other operations.
    #[must_use]
    pub fn ran(&self) -> Duration {
        self.runs.iter().map(|run| run.to.saturating_sub(run.from)).sum()
    }

    /// Returns the time between the push and the call to the function.
    #[must_use]
    pub fn waited(&self) -> Option<Duration> {
        self.started.map(|started| started.saturating_sub(self.pushed))
    }

    /// Returns how long the operation was ready before its function was called: its wait for a worker.
    #[must_use]
    pub fn queued(&self) -> Option<Duration> {
        Some(self.started?.saturating_sub(self.ready?))
    }

    /// Returns the time between the push and the end.
    #[must_use]
    pub fn took(&self) -> Option<Duration> {
        self.ended.map(|ended| ended.saturating_sub(self.pushed))
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

/// What a recorder has recorded.
#[derive(Clone, Debug)]
pub struct Trace {
    #[doc(hidden)]
    pub ops: Vec<TracedOp>,
    pub(super) threads: Vec<String>,
    pub(super) engines: Vec<EngineInfo>,
    pub(super) names: Arc<Names>,
    pub(super) lost: u64,
}

impl Trace {
    /// Returns the operations in push order.
    #[must_use]
    pub fn ops(&self) -> &[TracedOp] {
        &self.ops
    }

    /// Returns the number of events that were lost, usually because a ring was full. Operations whose push was lost are
    /// not in the trace; others may be incomplete.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the name of the thread with this number, or `thread N` if the thread has no name.
    #[must_use]
    pub fn thread(&self, thread: u16) -> &str {
        self.threads.get(usize::from(thread)).map_or("", String::as_str)
    }

    /// Returns the name of a variable, or its number if it has no name.
    #[must_use]
    pub fn variable(&self, variable: VarId) -> String {
        self.names.get(&variable).map_or_else(|| variable.to_string(), Name::to_string)
    }

    /// Returns the name of a lane, such as `cpu` or `copy`.
    #[must_use]
    pub fn lane(&self, engine: u16, lane: u8) -> &str {
        lane_name(&self.engines, engine, lane)
    }

    /// Returns a name for a place, such as `cpu 0`.
    #[must_use]
    pub fn place(&self, place: Place) -> String {
        place_name(&self.engines, |thread| self.thread(thread), place)
    }

    /// Returns the times of the trace's first push and last event.
    #[must_use]
    pub fn range(&self) -> (Duration, Duration) {
        let start = self.ops.iter().map(|op| op.pushed).min().unwrap_or_default();
        let ends = self.ops.iter().map(|op| {
            let end = op.ended.into_iter().chain(op.started).chain(op.ready).max().unwrap_or(op.pushed);
            op.runs.iter().map(|run| run.to).fold(end, Duration::max)
        });
        (start, ends.max().unwrap_or_default())
    }
}

/// Returns the name of a place, given the engines and threads.
fn place_name<'t>(engines: &[EngineInfo], thread_name: impl Fn(u16) -> &'t str, place: Place) -> String {
    let several = engines.len() > 1;
    let prefix = |engine: u16| if several { format!("engine {engine}: ") } else { String::new() };
    match place {
        Place::Worker { engine, lane, worker } => {
            format!("{}{} {worker}", prefix(engine), lane_name(engines, engine, lane))
        }
        Place::Gpu { engine, lane } => format!("{}{}", prefix(engine), lane_name(engines, engine, lane)),
        Place::Thread(thread) => thread_name(thread).to_owned(),
    }
}

fn lane_name(engines: &[EngineInfo], engine: u16, lane: u8) -> &str {
    engines.iter().find(|info| info.number == engine).map_or("", |info| info.lane(lane))
}

impl EngineInfo {
    fn lane(&self, lane: u8) -> &str {
        let gpu = lane.checked_sub(self.first_gpu_lane).and_then(|lane| self.gpu_lanes.get(usize::from(lane)));
        gpu.map(String::as_str).or_else(|| self.lanes.get(usize::from(lane)).copied()).unwrap_or("")
    }
}

/// A description of an engine in a trace.
#[derive(Clone, Debug)]
pub struct EngineInfo {
    /// The number of the engine in the trace.
    pub number: u16,
    /// The names of the worker lanes.
    pub lanes: Vec<&'static str>,
    /// The names of the GPU lanes.
    pub gpu_lanes: Vec<String>,
    /// The number of the first GPU lane.
    pub first_gpu_lane: u8,
}

/// The names of variables.
pub(crate) type Names = HashMap<VarId, Name>;

/// Histories not yet taken.
#[derive(Default)]
pub struct History {
    threads: Vec<Thread>,
    /// The numbers of ended threads, in the order in which they ended.
    ended_threads: VecDeque<u16>,
    engines: Vec<EngineInfo>,
    /// Shared with the traces that still exist.
    names: Arc<Names>,
    /// The operations that are not over.
    open: HashMap<OpId, TracedOp>,
    /// Operations that are over, kept for the program.
    ended: Vec<TracedOp>,
    /// Whether the program takes traces.
    pub is_kept: bool,
    /// Operations that are over, kept for a profile.
    to_export: Vec<TracedOp>,
    /// The number of profiles being written.
    exports: usize,
    variables: HashMap<VarId, Variable>,
    /// Freed variables whose names may still be needed.
    freed: VecDeque<VarId>,
    /// The number of events that were lost or that belong to operations whose pushes were lost.
    lost: u64,
    lost_to_export: u64,
    /// The number of events lost since the recorder's creation.
    pub all_lost: u64,
    /// Whether events were lost. If so, operations that have ended may still be in `open`.
    pub has_losses: bool,
    /// Open operations that the last search did not find pending.
    missing: HashSet<OpId>,
    last: Duration,
    /// The times of the operations that are over, by name.
    pub stats: Collected,
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History")
            .field("open", &self.open.len())
            .field("ended", &self.ended.len())
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Thread {
    name: String,
    /// The operations whose functions are running on the thread, innermost last.
    stack: Vec<OpId>,
    /// Whether the function on the thread is waiting without a worker.
    waits: bool,
}

/// The last operations to use a variable.
#[derive(Clone, Default)]
struct Variable {
    writer: Option<OpId>,
    /// The operations that have read the variable since its last mutation.
    readers: Vec<OpId>,
}

/// The maximum number of readers remembered per variable. It bounds the memory for a variable that is never mutated.
const MAX_READERS: usize = 1024;

/// The maximum number of ended operations kept until the program takes them. They occupy some 300 MB. Not tuned.
const MAX_ENDED: usize = 1 << 20;

/// The maximum number of freed variables whose names are kept.
const MAX_FREED: usize = 1 << 16;

impl History {
    /// Adds a thread. Its number must be new, or that of an ended thread ([`reuse_thread`](Self::reuse_thread)).
    pub fn add_thread(&mut self, number: u16, name: Option<&str>) {
        let at = usize::from(number);
        if self.threads.len() <= at {
            self.threads.resize_with(at + 1, Thread::default);
        }
        let name = name.map_or_else(|| format!("thread {number}"), str::to_owned);
        self.threads[at] = Thread { name, ..Thread::default() };
    }

    /// Returns the number of the thread that ended first, for another thread.
    pub fn reuse_thread(&mut self) -> Option<u16> {
        self.ended_threads.pop_front()
    }

    /// Records that a thread has ended and that all its events have been read.
    pub fn end_thread(&mut self, number: u16) {
        self.ended_threads.push_back(number);
    }

    /// Adds an engine.
    pub fn add_engine(&mut self, engine: EngineInfo) {
        self.engines.push(engine);
    }

    /// Records the name of a variable, unless it has one.
    pub fn name_variable(&mut self, variable: VarId, name: Name) {
        Arc::make_mut(&mut self.names).entry(variable).or_insert(name);
    }

    /// Adds an event of `thread`. Events must be added in the order of their times, with one exception: if the start of
    /// a function was in no ring and was not found beside one, it may come with the next reading, after other events of
    /// its time, but before the events that the function caused.
    pub fn add(&mut self, thread: u16, time: Duration, event: Event) {
        self.last = self.last.max(time);
        let Some(on) = self.threads.get_mut(usize::from(thread)) else { return };
        match event.what {
            What::Pushed(pushed) => {
                let op = TracedOp::new(event.op, *pushed, (thread, time), on.stack.last().copied());
                self.open.insert(event.op, op);
                return;
            }
            What::Waits => {
                on.waits = true;
                for op in &on.stack {
                    self.open.get_mut(op).into_iter().for_each(|op| op.leave(time));
                }
                return;
            }
            What::GoesOn(place) => {
                if std::mem::take(&mut on.waits) {
                    for op in &on.stack {
                        self.open.get_mut(op).into_iter().for_each(|op| op.run(place, time));
                    }
                }
                return;
            }
            _ => {}
        }
        let Some(op) = self.open.get_mut(&event.op) else {
            // An operation that was found running and is unknown has ended since, or its push was lost. In the second
            // case, its other events are counted as lost.
            if !matches!(event.what, What::Runs(_)) {
                self.lose(1);
            }
            return;
        };
        match event.what {
            What::Ready => op.ready = Some(time.max(op.pushed)),
            // The function was found running before the event of its start was read.
            What::Started(_) | What::Runs(_) if op.started.is_some() => {}
            What::Started(place) | What::Runs(place) => {
                op.started = Some(time);
                // Operations that were ready when pushed have no `Ready` event.
                op.ready.get_or_insert(op.pushed);
                op.run(place, time);
                on.stack.push(event.op);
                for &(variable, mode) in &op.accesses {
                    self.variables.entry(variable).or_default().use_by(event.op, mode, &mut op.depends_on);
                }
                op.depends_on.sort_unstable();
                op.depends_on.dedup();
            }
            What::Returned => {
                on.leave(op, time);
                if op.ended.is_some() {
                    self.close(event.op);
                }
            }
            What::Ended(outcome) => {
                if on.stack.contains(&event.op) {
                    on.leave(op, time);
                }
                (op.ended, op.outcome) = (Some(time), Some(outcome));
                self.close(event.op);
            }
            What::EndedEarly(outcome) => {
                (op.ended, op.outcome) = (Some(time), Some(outcome));
                if op.returned.is_some() {
                    self.close(event.op);
                }
            }
            What::Ran { .. } => unreachable!("calls are divided into their starts and ends before"),
            What::Pushed(_) | What::Waits | What::GoesOn(_) => unreachable!("pushes and waits are handled before"),
        }
    }

    /// Closes the history of an operation that has ended and whose function has returned.
    fn close(&mut self, op: OpId) {
        let mut op = self.open.remove(&op);
        op.iter_mut().for_each(|op| op.is_over = true);
        self.free_variables(op.as_ref());
        op.iter().for_each(|op| self.stats.add(op));
        if self.exports > 0 {
            self.to_export.extend(op.clone());
        }
        if self.is_kept && self.ended.len() == MAX_ENDED {
            self.lost += 1;
        } else if self.is_kept {
            self.ended.extend(op);
        }
    }

    /// Forgets variables that an operation has deleted.
    fn free_variables(&mut self, op: Option<&TracedOp>) {
        for op in op.into_iter().filter(|op| op.internal) {
            // An internal operation that overwrites a variable is the last to use it.
            for (variable, _) in op.accesses.iter().filter(|(_, mode)| *mode == AccessMode::Overwrite) {
                self.variables.remove(variable);
                self.freed.push_back(*variable);
            }
        }
        if self.freed.len() > MAX_FREED {
            self.freed.pop_front().and_then(|variable| Arc::make_mut(&mut self.names).remove(&variable));
        }
    }

    /// Forgets open operations whose ends were lost: those pushed before a search but not among the `pending`
    /// operations that it found. An operation must be missing from two searches, since a search does not find an
    /// operation that is still being pushed.
    pub fn forget_others(&mut self, pending: &HashSet<OpId>, searched: Duration) {
        let is_missing = |op: &&TracedOp| op.pushed < searched && !pending.contains(&op.id);
        let missing: HashSet<OpId> = self.open.values().filter(is_missing).map(|op| op.id).collect();
        let before = std::mem::take(&mut self.missing);
        for op in missing.intersection(&before) {
            match self.open.get(op) {
                // Only the event of its function's return was lost.
                Some(open) if open.ended.is_some() => self.close(*op),
                _ => {
                    let op = self.open.remove(op);
                    self.free_variables(op.as_ref());
                }
            }
        }
        for thread in &mut self.threads {
            thread.stack.retain(|op| self.open.contains_key(op));
        }
        self.has_losses = !missing.is_empty();
        self.missing = missing.difference(&before).copied().collect();
    }

    /// Counts events that were lost.
    pub fn lose(&mut self, events: u64) {
        self.lost += events;
        self.lost_to_export += events;
        self.all_lost += events;
        self.has_losses = true;
    }

    /// Returns the operations whose functions are running, and where.
    pub fn running(&self) -> HashMap<OpId, String> {
        let place = |op: &TracedOp| {
            let run = op.runs.last().filter(|run| run.to == Duration::MAX)?;
            Some((op.id, place_name(&self.engines, |thread| self.thread_name(thread), run.place)))
        };
        self.open.values().filter_map(place).collect()
    }

    fn thread_name(&self, thread: u16) -> &str {
        self.threads.get(usize::from(thread)).map_or("", |thread| &thread.name)
    }

    /// Returns the operations that are over since the last call, and copies of those that are not over.
    pub fn take(&mut self) -> Trace {
        let (ended, lost) = (std::mem::take(&mut self.ended), std::mem::take(&mut self.lost));
        let mut trace = self.trace(ended, lost);
        let known: HashSet<OpId> = trace.ops.iter().map(|op| op.id).collect();
        trace.ops.iter_mut().for_each(|op| op.depends_on.retain(|dependency| known.contains(dependency)));
        trace
    }

    /// Starts keeping operations that are over for a profile.
    pub fn begin_export(&mut self) {
        self.exports += 1;
    }

    /// Ends a profile. After the last one, no operations are kept for [`export`](Self::export).
    pub fn end_export(&mut self) {
        self.exports -= 1;
        if self.exports == 0 {
            self.to_export = Vec::new();
        }
    }

    /// Returns the same as [`take`](Self::take), for a profile. Operations may depend on operations in earlier traces,
    /// and those that have not started have the dependencies that they are expected to have.
    pub fn export(&mut self) -> Trace {
        let (ended, lost) = (std::mem::take(&mut self.to_export), std::mem::take(&mut self.lost_to_export));
        let mut trace = self.trace(ended, lost);
        self.expect(&mut trace.ops);
        trace
    }

    /// Adds to operations that have not started those for which they will have to wait, provided that operations
    /// entered the queues in the order of `ops`, in which their pushes began.
    fn expect(&self, ops: &mut [TracedOp]) {
        let mut variables: HashMap<VarId, Variable> = HashMap::new();
        for op in ops.iter_mut().filter(|op| op.started.is_none() && op.ended.is_none()) {
            for &(variable, mode) in &op.accesses {
                let now = || self.variables.get(&variable).cloned().unwrap_or_default();
                variables.entry(variable).or_insert_with(now).use_by(op.id, mode, &mut op.depends_on);
            }
        }
    }

    fn trace(&self, mut ops: Vec<TracedOp>, lost: u64) -> Trace {
        ops.extend(self.open.values().cloned());
        let last = self.last;
        // Functions that are still running have run at least until the last event.
        ops.iter_mut().flat_map(|op| &mut op.runs).filter(|run| run.to == Duration::MAX).for_each(|run| run.to = last);
        ops.sort_by_key(|op| (op.pushed, op.id));
        Trace {
            ops,
            threads: self.threads.iter().map(|thread| thread.name.clone()).collect(),
            engines: self.engines.clone(),
            names: Arc::clone(&self.names),
            lost,
        }
    }
}

impl Thread {
    /// Records that the function of `op` has returned.
    fn leave(&mut self, op: &mut TracedOp, time: Duration) {
        op.leave(time);
        op.returned = Some(time);
        self.stack.retain(|&running| running != op.id);
    }
}

impl TracedOp {
    fn new(id: OpId, pushed: PushEvent, (thread, time): (u16, Duration), parent: Option<OpId>) -> Self {
        Self {
            id,
            name: pushed.name,
            location: pushed.location,
            engine: pushed.engine,
            lane: pushed.lane,
            priority: pushed.priority,
            internal: pushed.internal,
            accesses: pushed.accesses,
            pushed_by: thread,
            parent,
            pushed: time,
            ready: None,
            started: None,
            returned: None,
            ended: None,
            outcome: None,
            is_over: false,
            runs: Vec::new(),
            depends_on: Vec::new(),
        }
    }

    fn run(&mut self, place: Place, from: Duration) {
        self.runs.push(Run { place, from, to: Duration::MAX });
    }

    fn leave(&mut self, time: Duration) {
        self.runs.last_mut().filter(|run| run.to == Duration::MAX).into_iter().for_each(|run| run.to = time);
    }
}

impl Variable {
    /// Records that `op` now uses the variable, and adds to `before` the operations that it had to follow.
    fn use_by(&mut self, op: OpId, mode: AccessMode, before: &mut Vec<OpId>) {
        if !mode.is_write() {
            before.extend(self.writer);
            if self.readers.len() == MAX_READERS {
                self.readers.remove(0);
            }
            self.readers.push(op);
        } else if self.readers.is_empty() {
            before.extend(self.writer.replace(op));
        } else {
            before.append(&mut self.readers);
            self.writer = Some(op);
        }
    }
}

#[cfg(test)]
mod tests;
