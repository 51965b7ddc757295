//! Histories of operations, assembled from their events.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    panic::Location,
    sync::Arc,
    time::Duration,
};

use crate::{
    event::{AccessMode, Event, IdMap, IdSet, OpId, Outcome, Place, PushEvent, VarId, What},
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

    /// Returns the lane of the GPU on which the operation runs, if it does.
    pub(crate) fn gpu_lane(&self) -> Option<Place> {
        self.runs.first().map(|run| run.place).filter(|place| matches!(place, Place::Gpu { .. }))
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
    pub(super) threads: Arc<Vec<ThreadName>>,
    pub(super) engines: Arc<Vec<EngineInfo>>,
    pub(super) names: IdMap<VarId, Name>,
    pub(super) lost: u64,
}

/// A thread with a number in traces.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadName {
    name: String,
    /// How many threads have had the number before.
    pub(super) before: u32,
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
        self.threads.get(usize::from(thread)).map_or("", |thread| &thread.name)
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

    /// Returns a trace of `ops` by the same recorder.
    pub(crate) fn with_ops(&self, ops: Vec<TracedOp>) -> Self {
        let Self { threads, engines, names, lost, .. } = self;
        Self { ops, threads: Arc::clone(threads), engines: Arc::clone(engines), names: names.clone(), lost: *lost }
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

/// The names of a recorder's variables: of all that exist, and of some that are freed, whose operations may still be in
/// rings and histories.
#[derive(Debug, Default)]
pub struct VarNames {
    names: IdMap<VarId, Name>,
    /// The freed variables, in the order in which they were freed.
    freed: VecDeque<VarId>,
    /// The size of the names of freed variables.
    freed_bytes: usize,
}

/// The maximum size of the names of freed variables. Not tuned.
const MAX_FREED_BYTES: usize = 8 << 20;

impl VarNames {
    /// Records the name of a variable, unless it has one.
    pub fn add(&mut self, variable: VarId, name: Name) {
        self.names.entry(variable).or_insert(name);
    }

    /// Records that a variable was freed.
    pub fn free(&mut self, variable: VarId) {
        if let Some(name) = self.names.get(&variable) {
            self.freed_bytes += bytes_of(name);
            self.freed.push_back(variable);
        }
        while self.freed_bytes > MAX_FREED_BYTES {
            let Some(first) = self.freed.pop_front() else { return };
            self.freed_bytes -= self.names.remove(&first).as_ref().map_or(0, bytes_of);
        }
    }

    /// Adds to a trace the names of the variables of its operations.
    pub fn complete(&self, trace: &mut Trace) {
        let Trace { ops, names, .. } = trace;
        for (variable, _) in ops.iter().flat_map(|op| &op.accesses) {
            if let Some(name) = self.names.get(variable) {
                names.entry(*variable).or_insert_with(|| name.clone());
            }
        }
    }
}

/// Returns roughly how many bytes the name of a variable takes.
fn bytes_of(name: &Name) -> usize {
    let text = if name.is_shared() { name.as_str().len() } else { 0 };
    text + 2 * size_of::<(VarId, Name)>()
}

/// Histories not yet taken.
#[derive(Default)]
pub struct History {
    /// The threads that write to the rings, by the number of the ring.
    rings: Vec<Thread>,
    /// The threads by number. Shared with the traces that still exist, like the next field.
    threads: Arc<Vec<ThreadName>>,
    engines: Arc<Vec<EngineInfo>>,
    /// The numbers of ended threads, in the order in which they ended.
    ended_threads: VecDeque<u16>,
    /// The engines that were gone when this was last asked.
    gone_engines: Vec<u16>,
    /// The operations that are not over.
    open: IdMap<OpId, TracedOp>,
    /// Operations that are over, kept for the program.
    ended: KeptOps,
    /// Whether the program takes traces.
    pub is_kept: bool,
    /// What is kept for a profile.
    to_export: ToExport,
    /// The number of profiles being written.
    exports: usize,
    variables: IdMap<VarId, Variable>,
    /// The number of variables that were left when those without an operation were last forgotten.
    used_variables: usize,
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
            .field("ended", &self.ended.ops.len())
            .finish_non_exhaustive()
    }
}

/// Operations that are over.
#[derive(Default)]
struct KeptOps {
    ops: Vec<TracedOp>,
    bytes: usize,
}

/// The maximum size of the operations that are kept until the program takes them, or until a profile is written: some
/// 700,000. Not tuned.
const MAX_KEPT_BYTES: usize = 256 << 20;

impl KeptOps {
    /// Keeps an operation. Returns `false` if there is no room for it.
    fn keep(&mut self, op: TracedOp) -> bool {
        let bytes = self.bytes + op.bytes();
        let has_room = bytes <= MAX_KEPT_BYTES;
        if has_room {
            self.bytes = bytes;
            self.ops.push(op);
        }
        has_room
    }
}

/// What has changed since a profile was last written.
#[derive(Default)]
struct ToExport {
    over: KeptOps,
    /// Operations that have started.
    started: Vec<OpId>,
    /// Operations that have ended and are not over. Kept until they are.
    ended: IdSet<OpId>,
    /// Operations that were forgotten.
    forgotten: Vec<OpId>,
    /// Variables to whose operations something has happened.
    variables: IdSet<VarId>,
    /// For each variable, the operations that have not started, in the order of their pushes, and whether each mutates
    /// it. Kept until they start or end.
    waiting: IdMap<VarId, VecDeque<(OpId, bool)>>,
}

impl ToExport {
    fn pushed(&mut self, op: &TracedOp) {
        for &(variable, mode) in &op.accesses {
            let waiting = self.waiting.entry(variable).or_default();
            // Several threads may push at the same time.
            match waiting.binary_search_by_key(&op.id, |waiting| waiting.0) {
                Ok(at) => waiting[at].1 |= mode.is_write(),
                Err(at) => waiting.insert(at, (op.id, mode.is_write())),
            }
            self.variables.insert(variable);
        }
    }

    /// Records that an operation has started, or has ended without having started.
    fn no_longer_waits(&mut self, op: &TracedOp) {
        for (variable, _) in &op.accesses {
            if let Some(waiting) = self.waiting.get_mut(variable) {
                waiting.binary_search_by_key(&op.id, |waiting| waiting.0).ok().map(|at| waiting.remove(at));
            }
        }
    }

    fn ended(&mut self, op: &TracedOp) {
        if op.started.is_none() {
            self.no_longer_waits(op);
        }
        self.variables.extend(op.accesses.iter().map(|&(variable, _)| variable));
        self.ended.insert(op.id);
    }
}

/// What a profile has to write.
#[derive(Debug)]
pub struct Export {
    /// The operations that are over since the last time.
    pub trace: Trace,
    /// Operations that have ended and are not over.
    pub ended: Vec<OpId>,
    /// Operations that are not over, each with some that it had to follow, if it has started, or that it is expected to
    /// have to.
    pub depends_on: Vec<(OpId, Vec<OpId>)>,
    /// Operations that will not be written.
    pub forgotten: Vec<OpId>,
}

#[derive(Default)]
struct Thread {
    /// The number of the thread in traces.
    number: u16,
    /// The operations whose functions are running on the thread, innermost last.
    stack: Vec<OpId>,
    /// Whether the function on the thread is waiting without a worker.
    waits: bool,
}

/// The last operations to use a variable.
#[derive(Default)]
struct Variable {
    writer: Option<OpId>,
    /// The operations that have read the variable since its last mutation.
    readers: Vec<OpId>,
}

/// The maximum number of readers remembered per variable. It bounds the memory for a variable that is never mutated.
const MAX_READERS: usize = 1024;

/// The number of variables without an operation that are kept at most, beside as many as have one. Not tuned.
const MAX_UNUSED: usize = 1 << 10;

/// The number of engines up to which those that are gone are known if the program takes no traces. Not tuned.
const MAX_ENGINES: usize = 1 << 10;

/// The number of the first thread that does not have the number of its ring.
const FIRST_LATER: usize = 1 << 12;

impl History {
    /// Adds a thread, the first that writes to the ring with this number, or another one after the end of the last.
    /// The first one has the number of the ring, later ones have others.
    pub fn add_thread(&mut self, ring: u16, name: Option<&str>) {
        let at = usize::from(ring);
        if self.rings.len() <= at {
            self.rings.resize_with(at + 1, Thread::default);
        }
        let threads = Arc::make_mut(&mut self.threads);
        let is_first = threads.get(at).is_none_or(|thread| thread.name.is_empty());
        let number = if is_first {
            at
        } else if threads.len() < usize::from(u16::MAX) {
            threads.len().max(FIRST_LATER)
        } else {
            self.ended_threads.pop_front().map_or(at, usize::from)
        };
        if threads.len() <= number {
            threads.resize_with(number + 1, ThreadName::default);
        }
        let ThreadName { name: known, before } = &mut threads[number];
        *before += u32::from(!known.is_empty());
        let name = name.filter(|name| !name.is_empty());
        *known = name.map_or_else(|| format!("thread {number}"), str::to_owned);
        self.rings[at] = Thread { number: number as u16, ..Thread::default() };
    }

    /// Records that a thread has ended, and that all its events have been read.
    pub fn end_thread(&mut self, ring: u16) {
        self.ended_threads.extend(self.rings.get(usize::from(ring)).map(|thread| thread.number));
    }

    /// Adds an engine. `is_open` returns whether the engine with a number still exists.
    pub fn add_engine(&mut self, engine: EngineInfo, is_open: impl Fn(u16) -> bool) {
        let engines = Arc::make_mut(&mut self.engines);
        engines.retain(|known| known.number != engine.number);
        if engines.len() >= MAX_ENGINES {
            let first = engines.iter().position(|known| !is_open(known.number));
            first.map(|first| engines.remove(first));
        }
        engines.push(engine);
    }

    /// Forgets engines that are gone, and were gone when this was last called, so that all their events have been
    /// taken.
    fn forget_engines(&mut self, is_open: impl Fn(u16) -> bool) {
        let gone: Vec<u16> =
            self.engines.iter().map(|engine| engine.number).filter(|&number| !is_open(number)).collect();
        if gone.iter().any(|number| self.gone_engines.contains(number)) {
            Arc::make_mut(&mut self.engines).retain(|engine| !self.gone_engines.contains(&engine.number));
        }
        self.gone_engines = gone;
    }

    /// Adds an event from a ring. Events must be added in the order of their times, with one exception: if the start of
    /// a function was in no ring and was not found beside one, it may come with the next reading, after other events of
    /// its time, but before the events that the function caused.
    pub fn add(&mut self, ring: u16, time: Duration, event: Event) {
        self.last = self.last.max(time);
        if let What::Arrived(name) = event.what {
            self.end_thread(ring);
            return self.add_thread(ring, Some(name.as_str()));
        }
        let Some(on) = self.rings.get_mut(usize::from(ring)) else { return };
        // The ring knows its own number, not that of the thread.
        let on_thread = |place, number| if let Place::Thread(_) = place { Place::Thread(number) } else { place };
        match event.what {
            What::Pushed(pushed) => {
                let op = TracedOp::new(event.op, *pushed, (on.number, time), on.stack.last().copied());
                if self.exports > 0 {
                    self.to_export.pushed(&op);
                }
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
                let place = on_thread(place, on.number);
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
                op.run(on_thread(place, on.number), time);
                on.stack.push(event.op);
                for &(variable, mode) in &op.accesses {
                    self.variables.entry(variable).or_default().use_by(event.op, mode, &mut op.depends_on);
                }
                op.depends_on.sort_unstable();
                op.depends_on.dedup();
                if self.exports > 0 {
                    self.to_export.no_longer_waits(op);
                    self.to_export.started.push(op.id);
                }
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
                if self.exports > 0 {
                    self.to_export.ended(op);
                }
                self.close(event.op);
            }
            What::EndedEarly(outcome) => {
                (op.ended, op.outcome) = (Some(time), Some(outcome));
                if self.exports > 0 {
                    self.to_export.ended(op);
                }
                if op.returned.is_some() {
                    self.close(event.op);
                }
            }
            What::Ran { .. } => unreachable!("calls are divided into their starts and ends before"),
            What::Pushed(_) | What::Waits | What::GoesOn(_) | What::Arrived(_) => {
                unreachable!("pushes, waits and threads are handled before")
            }
        }
    }

    /// Closes the history of an operation that has ended and whose function has returned.
    fn close(&mut self, op: OpId) {
        let Some(mut op) = self.open.remove(&op) else { return };
        op.is_over = true;
        self.stats.add(&op);
        self.to_export.ended.remove(&op.id);
        let is_exported = self.exports > 0;
        let kept = (self.is_kept && is_exported).then(|| op.clone());
        let (to_take, to_export) =
            if is_exported { (kept, Some(op)) } else { (Some(op).filter(|_| self.is_kept), None) };
        self.lost += u64::from(to_take.is_some_and(|op| !self.ended.keep(op)));
        self.lost_to_export += u64::from(to_export.is_some_and(|op| !self.to_export.over.keep(op)));
    }

    /// Forgets the variables whose last operations are neither open nor kept nor among the `taken` ones, which no
    /// trace can show any more, once there are so many that their number is worth it.
    pub fn forget_variables(&mut self, taken: &[TracedOp]) {
        if self.variables.len().max(self.to_export.waiting.len()) <= 2 * self.used_variables + MAX_UNUSED {
            return;
        }
        self.to_export.waiting.retain(|_, waiting| !waiting.is_empty());
        let over = self.ended.ops.iter().chain(&self.to_export.over.ops).chain(taken);
        let over: IdSet<OpId> = over.map(|op| op.id).collect();
        let is_kept = |op: &OpId| self.open.contains_key(op) || over.contains(op);
        self.variables.retain(|_, variable| variable.readers.iter().chain(&variable.writer).any(is_kept));
        self.variables.shrink_to(2 * self.variables.len());
        self.used_variables = self.variables.len().max(self.to_export.waiting.len());
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
                    if let Some(op) = self.open.remove(op).filter(|_| self.exports > 0) {
                        self.to_export.no_longer_waits(&op);
                        self.to_export.forgotten.push(op.id);
                    }
                }
            }
        }
        for thread in &mut self.rings {
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

    /// Returns the operations that are over since the last call, and copies of those that are not over. The trace lacks
    /// the names of variables. `is_open` returns whether the engine with a number still exists.
    pub fn take(&mut self, is_open: impl Fn(u16) -> bool) -> Trace {
        let (ended, lost) = (std::mem::take(&mut self.ended), std::mem::take(&mut self.lost));
        self.forget_variables(&[]);
        let mut trace = self.trace(ended.ops.into_iter().chain(self.open.values().cloned()).collect(), lost);
        self.forget_engines(is_open);
        let known: HashSet<OpId> = trace.ops.iter().map(|op| op.id).collect();
        trace.ops.iter_mut().for_each(|op| op.depends_on.retain(|dependency| known.contains(dependency)));
        trace
    }

    /// Starts keeping operations that are over for a profile.
    pub fn begin_export(&mut self) {
        self.exports += 1;
        if self.exports == 1 {
            self.open.values().filter(|op| op.started.is_none()).for_each(|op| self.to_export.pushed(op));
            self.to_export.started.extend(self.open.values().filter(|op| op.started.is_some()).map(|op| op.id));
            self.to_export.ended.extend(self.open.values().filter(|op| op.ended.is_some()).map(|op| op.id));
        }
    }

    /// Ends a profile. After the last one, no operations are kept for [`export`](Self::export).
    pub fn end_export(&mut self) {
        self.exports -= 1;
        if self.exports == 0 {
            self.to_export = ToExport::default();
        }
    }

    /// Returns what has changed since the last call, for a profile. Its trace lacks the names of variables. `is_open`
    /// returns whether the engine with a number still exists.
    pub fn export(&mut self, is_open: impl Fn(u16) -> bool) -> Export {
        let changes = &mut self.to_export;
        let over = std::mem::take(&mut changes.over).ops;
        let (started, forgotten) = (std::mem::take(&mut changes.started), std::mem::take(&mut changes.forgotten));
        let ended = changes.ended.iter().copied().collect();
        let mut depends_on = self.expected();
        self.to_export.variables.clear();
        let open = started.iter().filter_map(|op| self.open.get(op)).map(|op| (op.id, op.depends_on.clone()));
        depends_on.extend(open);
        self.forget_variables(&over);
        let lost = std::mem::take(&mut self.lost_to_export);
        let trace = self.trace(over, lost);
        self.forget_engines(is_open);
        Export { trace, ended, depends_on, forgotten }
    }

    /// Returns the operations that are not over, for the end of a profile.
    pub fn unfinished(&self) -> Trace {
        self.trace(self.open.values().cloned().collect(), 0)
    }

    /// Returns the next operations to start on each variable that has changed, with those that have started and for
    /// which they will have to wait, provided that operations entered the queues in the order in which their pushes
    /// began.
    fn expected(&self) -> Vec<(OpId, Vec<OpId>)> {
        let mut expected = Vec::new();
        for variable in &self.to_export.variables {
            let Some(waiting) = self.to_export.waiting.get(variable) else { continue };
            let Some(last) = self.variables.get(variable) else { continue };
            let mut follows_readers = !last.readers.is_empty();
            for &(op, is_write) in waiting.iter().take(MAX_READERS) {
                if is_write {
                    let before = if follows_readers { last.readers.clone() } else { Vec::from_iter(last.writer) };
                    expected.push((op, before));
                    break;
                }
                expected.push((op, Vec::from_iter(last.writer)));
                follows_readers = true;
            }
        }
        expected
    }

    fn trace(&self, mut ops: Vec<TracedOp>, lost: u64) -> Trace {
        let last = self.last;
        // Functions that are still running have run at least until the last event.
        ops.iter_mut().flat_map(|op| &mut op.runs).filter(|run| run.to == Duration::MAX).for_each(|run| run.to = last);
        ops.sort_by_key(|op| (op.pushed, op.id));
        let (threads, engines) = (Arc::clone(&self.threads), Arc::clone(&self.engines));
        Trace { ops, threads, engines, names: IdMap::default(), lost }
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

    /// Returns roughly how many bytes the history takes.
    fn bytes(&self) -> usize {
        let name = if self.name.is_shared() { self.name.as_str().len() } else { 0 };
        let lists = size_of_val(&*self.accesses) + size_of_val(&*self.runs) + size_of_val(&*self.depends_on);
        size_of::<Self>() + name + lists
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
