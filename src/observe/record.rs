//! Reports the events of operations to the [recorder](crate::trace::recorder) and to observers.
//!
//! An engine with a [`Recording`] sets a flag on its operations. A run tests this flag together with the flags of
//! operations that are not plain, unless the worker's main loop records plain operations itself ([`RunRecording`]). On
//! an engine without a `Recording`, the cost is little more than one test per push.

use std::{collections::HashMap, io, panic::Location, sync::Arc, thread, time::Duration};

use raddle_trace::recording::{AccessWord, EngineInfo, PushHead, Short};

use crate::{
    context::{
        ready_loop::FnState,
        worker_thread::{self, Runner, WorkerThread},
    },
    device::gpus::FIRST_LANE,
    engine::core::{Core, Live},
    memory::epoch,
    observe::{recording::Recording, snapshot, watch},
    op::{
        frame,
        spec::{CLEAR_ERROR, Entry},
        task::{Task, flag},
        variable::VarCell,
    },
    scheduler::{DEFAULT_BAND, priority_of},
    trace::{
        AccessMode, OpId, Outcome, Place, VarId,
        log::{Log, LoggedPlace, StartHead},
        observer::{ObservedAccess, ObservedOp, Observer, OpDetails},
        recorder::Recorder,
        stats::{LaneStats, Stats, WorkerStats},
        watchdog::Watchdog,
    },
    tracker::{Access, Mode, Op, OpRef, Standing},
    values::Name,
};

impl Core {
    /// Records the name of a variable.
    pub(crate) fn record_name(&self, variable: u64, name: &Name) {
        if let Some(recording) = self.recording().filter(|recording| recording.is_kept) {
            recording.recorder.name_variable(VarId::new(recording.engine, variable), name.clone());
        }
    }

    /// Logs the name of a variable that the program has named.
    pub(crate) fn log_name(&self, variable: u64, name: &Name) {
        self.log().into_iter().for_each(|log| log.name_variable(variable, name));
    }

    /// Returns the engine's log, if it has one.
    pub(crate) fn log(&self) -> Option<&Log> {
        self.recording()?.log.as_ref()
    }

    /// Records that a variable with a name is freed.
    pub(crate) fn record_freed(&self, variable: u64) {
        if let Some(recording) = self.recording().filter(|recording| recording.is_kept) {
            recording.recorder.free_variable(VarId::new(recording.engine, variable));
        }
    }

    /// Records that the function on this thread is handing over its worker.
    pub(crate) fn record_wait(&self) {
        if let Some(recording) = self.recording().filter(|recording| recording.is_kept) {
            recording.recorder.note(OpId(0), Short::Waits);
        }
    }

    /// Records that the function on this thread, which has handed over its worker, continues.
    pub(crate) fn record_return_to_work(&self) {
        if let Some(recording) = self.recording().filter(|recording| recording.is_kept) {
            recording.recorder.note(OpId(0), Short::GoesOn(place(self, recording, 0)));
        }
    }
}

/// Adds this engine to its recorder, if events are recorded.
pub(crate) fn introduce(core: &Arc<Core>) {
    let Some(recording) = core.recording().filter(|recording| recording.is_kept) else { return };
    let gpu_lanes = core.gpus.lanes().iter().map(|lane| format!("gpu({}) {}", lane.gpu, lane.lane.name())).collect();
    let info = EngineInfo {
        number: recording.engine,
        lanes: core.threads.lanes().iter().map(|lane| lane.name()).collect(),
        gpu_lanes,
        first_gpu_lane: FIRST_LANE,
    };
    let this = Arc::downgrade(core);
    recording.recorder.add_engine(info, this);
}

/// Starts a watchdog for this engine.
pub(crate) fn watch(core: &Arc<Core>, watchdog: Watchdog) -> io::Result<()> {
    let stop = watch::begin(core, watchdog)?;
    core.recording().into_iter().for_each(|recording| recording.watch_until_end(stop.clone()));
    Ok(())
}

/// Returns the operations whose functions are running, each with the place where it runs. The map is empty if
/// events are not recorded or if this is a forked child.
pub(crate) fn running_ops(core: &Core) -> HashMap<OpId, String> {
    let recording = core.recording().filter(|recording| recording.is_kept);
    recording.map(|recording| recording.recorder.running()).unwrap_or_default()
}

/// Returns a number that changes whenever a function of the engine is called, except by chance.
pub(super) fn starts(core: &Core) -> u64 {
    core.recording().map_or(0, |recording| recording.recorder.starts())
}

/// Returns the time since an operation was pushed. Returns `None` if the engine has no [`Recording`] or only a log, or
/// if this is a forked child.
pub(super) fn age_of(core: &Core, op: OpId) -> Option<Duration> {
    core.recording().filter(|recording| !recording.only_logs).map(|recording| recording.recorder.age(op))
}

/// Returns the engine's statistics. In a forked child, returns only what can be read without a lock.
pub(crate) fn stats(core: &Core) -> Stats {
    let live = core.live();
    let ready = live.map_or_else(|_| vec![0; core.threads.lanes().len()], |_| snapshot::ready_ops(core));
    let lanes: Vec<LaneStats> = core
        .threads
        .lanes()
        .iter()
        .zip(ready)
        .map(|(lane, ready)| LaneStats {
            name: lane.name().to_owned(),
            ready,
            wakes: lane.sleep().wakes(),
            workers: lane
                .activities()
                .zip(lane.queued())
                .map(|(done, queued)| WorkerStats {
                    queued,
                    steals: done.steals.get(),
                    helped: done.helped.get(),
                    parks: done.parks.get(),
                })
                .collect(),
        })
        .collect();
    let recording = core.recording().filter(|recording| recording.is_kept);
    let operations = recording.map(|recording| recording.recorder.stats());
    let (operations, lost) = operations.unwrap_or_default();
    let (ended, pending) = live.map(Live::totals).unwrap_or_default();
    let helped = core.helped.get() + lanes.iter().flat_map(|lane| &lane.workers).map(|one| one.helped).sum::<u64>();
    Stats { pushed: ended + pending, ended, pending, helped, lanes, operations, lost }
}

/// [`push`] for an operation pushed on the [short way](crate::engine::push), on an engine that [only
/// records](Core::only_records).
#[inline(never)]
pub(crate) fn push_short<const N: usize>(
    core: &Core,
    op: &OpRef<Task>,
    name: &'static str,
    location: &'static Location<'static>,
    entries: &[Entry; N],
) {
    let Some(recording) = core.recording() else { return };
    let id = if recording.only_logs {
        recording.recorder.next_number()
    } else {
        let engine = recording.engine;
        let accesses = std::array::from_fn::<_, N, _>(|at| {
            // SAFETY: the creator of the entries keeps handles to their variables until the push returns.
            let queue = unsafe { entries[at].cell.as_ref() }.queue();
            AccessWord::new(VarId::new(engine, queue.id()), entries[at].mode.into())
        });
        let head = PushHead { location, priority: DEFAULT_BAND, engine, lane: 0, internal: false };
        recording.recorder.push_few(&head, name, accesses)
    };
    // SAFETY: (1): the caller has filled the task, and marks and pushes the operation only after this call. (2): an
    // engine records from its creation on, and all its records have this room.
    unsafe { Task::set_recorded(op.task_ptr(), id) };
    log_push(core, recording, op.task(), id);
}

/// Records that `op` is about to be pushed and assigns its number.
#[cold]
pub(crate) fn push(core: &Core, op: &OpRef<Task>) {
    let Some(recording) = core.recording() else { return };
    let task = op.task();
    let id = if recording.is_kept {
        let head = PushHead {
            location: task.location(),
            priority: op.band,
            engine: recording.engine,
            lane: task.lane,
            internal: task.has(flag::INTERNAL),
        };
        let accesses = op.accesses().map(|access| AccessWord::new(recording.id_of(access), access.mode().into()));
        recording.recorder.push(&head, task.name(), accesses)
    } else if recording.only_logs {
        recording.recorder.next_number()
    } else {
        recording.recorder.next_op()
    };
    // SAFETY: (1): the caller has filled the task, and marks and pushes the operation only after this call. (2): an
    // engine records from its creation on, and all its records have this room.
    unsafe { Task::set_recorded(op.task_ptr(), id) };
    log_push(core, recording, task, id);
    tell(core, recording, op, (id, false), |observer, op| observer.pushed(op));
}

/// Logs which operation is pushing the one with this task, if one is.
#[inline]
fn log_push(core: &Core, recording: &Recording, task: &Task, id: OpId) {
    let Some(log) = recording.log.as_ref().filter(|_| is_logged(task)) else { return };
    // A child enters its queues after its parent's function has returned.
    let parent = match parent_of(task) {
        Some(parent) => parent.op_id(),
        None => frame::find_in_op_of(core, |around| around.op_id().filter(|_| is_logged(around))),
    };
    if parent.is_some() || frame::in_operation_of(core) {
        log.push_inside(id, parent);
    }
}

/// Whether an operation belongs in a log: it is the program's, acquires variables, or clears a failure.
fn is_logged(task: &Task) -> bool {
    !task.has(flag::INTERNAL) || task.has(flag::ASYNC) || clears(task)
}

/// Whether an operation clears a failure.
fn clears(task: &Task) -> bool {
    task.has(flag::INTERNAL) && task.name().as_str() == CLEAR_ERROR
}

/// Returns the parent, if the operation is a child that is pending.
fn parent_of(task: &Task) -> Option<&Task> {
    let parent = task.limits()?.parent()?.cast::<Op<Task>>();
    // SAFETY: the record is the parent's as long as the child is pending.
    Some(unsafe { parent.as_ref() }.task())
}

/// Whether the accesses of an operation have places: the engine has a log, and the operation belongs there. A child
/// uses variables of its family, under its parent's places.
fn has_places(recording: &Recording, task: &Task) -> bool {
    recording.log.is_some() && is_logged(task) && parent_of(task).is_none()
}

/// Logs that `op` starts or is skipped, if its accesses have places.
#[inline]
fn log_start(recording: &Recording, op: &Op<Task>, id: OpId, is_skipped: bool) {
    let (task, Some(log)) = (op.task(), &recording.log) else { return };
    if !has_places(recording, task) {
        return;
    }
    let place = |access: &Access<Task>| {
        let (cell, mode) = (VarCell::of(access), AccessMode::from(access.mode()));
        // SAFETY: (1): the operation holds its variables, since it is about to start or to end without having started.
        let place = unsafe { cell.take_place(mode.is_write()) };
        LoggedPlace { variable: cell.queue().id(), mode, place }
    };
    let (name, location, clears) = (task.name(), task.location(), clears(task));
    log.start(&StartHead { id, name, location, clears, is_skipped }, op.accesses().map(place));
    if task.has(flag::REPORTS) && !is_skipped {
        // SAFETY: (1): the caller owns the ready operation.
        if let Some(beside) = unsafe { op.beside() } {
            beside.set_places(op.accesses().map(|access| describe(recording, access, true)).collect());
        }
    }
}

/// Records that the last event on this thread made `op` ready.
#[inline]
pub(crate) fn ready(core: &Core, op: &Op<Task>) {
    if let (Some(id), Some(recording)) = (op.task().op_id(), core.recording()) {
        if recording.is_kept {
            recording.recorder.note_with_last(id, Short::Ready);
        }
        tell(core, recording, op, (id, false), |observer, op| observer.ready(op));
    }
}

/// Notifies the observers that `op` was ready when it was pushed. A trace needs no such event: an operation without
/// a [`Short::Ready`] was ready when pushed.
#[inline(always)]
pub(crate) fn observe_ready(core: &Core, op: &Op<Task>) {
    if op.task().has(flag::RECORDED) {
        tell_ready(core, op);
    }
}

#[inline(never)]
fn tell_ready(core: &Core, op: &Op<Task>) {
    if let (Some(id), Some(recording)) = (op.task().op_id(), core.recording()) {
        tell(core, recording, op, (id, false), |observer, op| observer.ready(op));
    }
}

/// Records that the function of `op` is about to be called.
#[inline(always)]
pub(crate) fn start(core: &Core, op: &Op<Task>) {
    if op.task().has(flag::RECORDED) {
        tell_start(core, op);
    }
}

#[inline(never)]
fn tell_start(core: &Core, op: &Op<Task>) {
    if let (Some(id), Some(recording)) = (op.task().op_id(), core.recording()) {
        if recording.is_kept {
            recording.recorder.start(id, place(core, recording, op.task().lane).to_word());
        } else {
            recording.recorder.note_start(id);
        }
        log_start(recording, op, id, false);
        tell(core, recording, op, (id, true), |observer, op| observer.started(op));
    }
}

/// Records that the function of `op` has returned. Called only if the return does not end the operation.
#[inline]
pub(crate) fn returned(core: &Core, op: &Op<Task>) {
    if let (Some(id), Some(recording)) = (op.task().op_id(), core.recording()) {
        if recording.is_kept {
            recording.recorder.note(id, Short::Returned);
        }
        recording.log.iter().for_each(Log::flush);
        tell(core, recording, op, (id, true), |observer, op| observer.returned(op));
    }
}

/// Records that `op` is ending. Called before `op` is complete.
#[inline(always)]
pub(crate) fn end(core: &Core, op: &Op<Task>, outcome: Outcome, function: FnState) {
    if op.task().has(flag::RECORDED) {
        log_end(core, op, outcome, function);
        tell_end(core, op, outcome, function, true);
    }
}

/// [`end`] for an operation that is passed over: it leaves its variables as they are, so it has no places.
pub(crate) fn pass_over(core: &Core, op: &Op<Task>) {
    if op.task().has(flag::RECORDED) {
        tell_end(core, op, Outcome::Skipped, FnState::NotCalled, false);
    }
}

#[inline]
fn log_end(core: &Core, op: &Op<Task>, outcome: Outcome, function: FnState) {
    let (Some(id), Some(recording)) = (op.task().op_id(), core.recording()) else { return };
    let Some(log) = &recording.log else { return };
    match (outcome, function) {
        (Outcome::Succeeded, _) => {}
        (_, FnState::NotCalled) => log_start(recording, op, id, true),
        _ => log.fail(id),
    }
    log.flush();
}

#[inline(never)]
fn tell_end(core: &Core, op: &Op<Task>, outcome: Outcome, function: FnState, has_place: bool) {
    if let (Some(id), Some(recording)) = (op.task().op_id(), core.recording()) {
        if recording.is_kept {
            match function {
                FnState::MayRun => recording.recorder.end_early(id, outcome),
                FnState::Called | FnState::NotCalled => recording.recorder.end(id, outcome),
            }
        }
        tell(core, recording, op, (id, has_place), |observer, op| observer.ended(op, outcome));
    }
}

/// Reports an event of `op` to the observers. Its accesses have places if the engine has a log and if `has_place`.
#[inline]
fn tell(
    core: &Core,
    recording: &Recording,
    op: &Op<Task>,
    (id, has_place): (OpId, bool),
    tell: impl Fn(&dyn Observer, &ObservedOp<'_>),
) {
    if recording.is_observed() {
        let task = op.task();
        let observed = ObservedOp {
            id,
            name: task.name().as_str(),
            location: task.location(),
            internal: task.has(flag::INTERNAL),
            priority: priority_of(op.band),
            device: core.gpus.device_of(task.lane),
            recorder: &recording.recorder,
            details: &Observed { core, recording, op, has_place: has_place && has_places(recording, task) },
        };
        recording.tell(&observed, tell);
    }
}

/// Returns what the main loop of `thread`, which is this thread, records of plain operations, if it records them.
pub(crate) fn of_loop<'r>(core: &'r Core, thread: &'r WorkerThread) -> Option<PlainRecording<'r>> {
    let recording = core.recording().filter(|recording| core.only_records && !recording.only_logs)?;
    Some(PlainRecording { recorder: &recording.recorder, engine: recording.engine, thread })
}

/// Returns what a main loop logs of plain operations, if it does nothing else with them.
pub(crate) fn log_of_loop(core: &Core) -> Option<LogRecording<'_>> {
    let recording = core.recording().filter(|recording| core.only_records && recording.only_logs)?;
    Some(LogRecording { recording, log: recording.log.as_ref()? })
}

/// Returns the place where this thread runs operations of `lane`.
#[inline]
fn place(core: &Core, recording: &Recording, lane: u8) -> Place {
    match worker_thread::runner_of(core) {
        Runner::Worker(lane, worker) => Place::Worker { engine: recording.engine, lane, worker: worker as u16 },
        Runner::Device if lane >= FIRST_LANE => Place::Gpu { engine: recording.engine, lane },
        Runner::Device | Runner::Other => Place::Thread(recording.recorder.thread()),
    }
}

/// What is recorded of a plain operation while it runs.
pub(crate) trait RunRecording {
    /// Returns the flags of operations that this does not record although they are recorded.
    #[inline(always)]
    fn unrecorded(&self) -> u16 {
        0
    }
    /// Records that the function of `op` is about to be called.
    fn start(&self, op: &Op<Task>);
    /// Records that `op` has succeeded and is ending.
    fn end(&self, op: &Op<Task>);
    /// Records that the last event on this thread made `op` ready.
    #[inline(always)]
    fn ready(&self, _: &Op<Task>) {}
}

/// The [`RunRecording`] that records nothing.
pub(crate) struct NoRecording;

impl RunRecording for NoRecording {
    #[inline(always)]
    fn unrecorded(&self) -> u16 {
        flag::RECORDED
    }

    #[inline(always)]
    fn start(&self, _: &Op<Task>) {}

    #[inline(always)]
    fn end(&self, _: &Op<Task>) {}
}

/// The [`RunRecording`] of an engine that only records, on a thread that runs the engine's workers.
///
/// It does not ask whether this is a forked child, since it takes no lock: the thread has a ring from its first event
/// on, and records the start of an operation before a function can fork.
pub(crate) struct PlainRecording<'r> {
    recorder: &'r Recorder,
    engine: u16,
    thread: &'r WorkerThread,
}

impl RunRecording for PlainRecording<'_> {
    #[inline(always)]
    fn start(&self, op: &Op<Task>) {
        if let Some(id) = op.task().op_id() {
            // A function that has handed over its worker may have received another one.
            self.recorder.start(id, self.thread.place(self.engine).to_word());
        }
    }

    #[inline(always)]
    fn end(&self, op: &Op<Task>) {
        if let Some(id) = op.task().op_id() {
            self.recorder.end(id, Outcome::Succeeded);
        }
    }

    #[inline(always)]
    fn ready(&self, op: &Op<Task>) {
        if let Some(id) = op.task().op_id() {
            self.recorder.note_with_last(id, Short::Ready);
        }
    }
}

/// The [`RunRecording`] of an engine that only logs. A forked child does not come here: its main loops end.
pub(crate) struct LogRecording<'r> {
    recording: &'r Recording,
    log: &'r Log,
}

impl RunRecording for LogRecording<'_> {
    #[inline(always)]
    fn start(&self, op: &Op<Task>) {
        if let Some(id) = op.task().op_id() {
            log_start(self.recording, op, id, false);
        }
    }

    #[inline(always)]
    fn end(&self, _: &Op<Task>) {
        self.log.flush();
    }
}

/// The [`RunRecording`] of any engine with a recording, on any thread.
pub(crate) struct FullRecording<'c>(pub(crate) &'c Core);

impl RunRecording for FullRecording<'_> {
    fn start(&self, op: &Op<Task>) {
        start(self.0, op);
    }

    fn end(&self, op: &Op<Task>) {
        end(self.0, op, Outcome::Succeeded, FnState::Called);
    }

    fn ready(&self, op: &Op<Task>) {
        ready(self.0, op);
    }
}

impl Recording {
    /// Returns the identity of the variable of an unreleased access.
    fn id_of(&self, access: &Access<Task>) -> VarId {
        VarId::new(self.engine, VarCell::of(access).queue().id())
    }
}

impl From<Mode> for AccessMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Write => Self::Write,
            Mode::Overwrite => Self::Overwrite,
            Mode::Read | Mode::Await => Self::Read,
            Mode::Commute => Self::Commute,
        }
    }
}

/// Describes an access of an operation that has not released it. `has_place` is whether the operation has started on an
/// engine with a log.
fn describe(recording: &Recording, access: &Access<Task>, has_place: bool) -> ObservedAccess {
    let (cell, mode) = (VarCell::of(access), AccessMode::from(access.mode()));
    ObservedAccess {
        variable: recording.id_of(access),
        name: cell.name().cloned().unwrap_or(Name::EMPTY),
        mode,
        // The operation's own mutation was counted.
        place: has_place.then(|| cell.place() - u64::from(mode.is_write())),
    }
}

/// Returns the accesses of an operation whose function runs on this thread, if the engine has a log.
pub(crate) fn places_of(core: &Core, op: &Op<Task>) -> Vec<ObservedAccess> {
    let Some(recording) = core.recording().filter(|recording| recording.log.is_some()) else { return Vec::new() };
    op.accesses().map(|access| describe(recording, access, true)).collect()
}

/// An operation reported to observers.
struct Observed<'a> {
    core: &'a Core,
    recording: &'a Recording,
    op: &'a Op<Task>,
    /// Whether its accesses have places.
    has_place: bool,
}

impl OpDetails for Observed<'_> {
    fn lane(&self) -> String {
        snapshot::lane_name(self.core, self.op.task().lane)
    }

    fn place(&self) -> Place {
        place(self.core, self.recording, self.op.task().lane)
    }

    fn place_name(&self) -> String {
        match self.place() {
            Place::Worker { lane, worker, .. } => format!("{} {worker}", snapshot::lane_name(self.core, lane)),
            Place::Gpu { lane, .. } => snapshot::lane_name(self.core, lane),
            Place::Thread(_) => thread::current().name().unwrap_or_default().to_owned(),
        }
    }

    fn accesses(&self) -> Vec<ObservedAccess> {
        // Variables that the operation has already released may have been freed before this thread was pinned. Those
        // released from now on remain valid while the thread is pinned.
        let _pinned = epoch::pin();
        let held = self.op.accesses().filter(|access| access.standing() != Standing::Done);
        held.map(|access| describe(self.recording, access, self.has_place)).collect()
    }
}
