//! The engine to which handles refer. The other modules in this folder implement its pushes, runs, stops and shutdowns.
//!
//! # States
//!
//! An engine's [phase] never falls. A shutdown raises it from `OPEN`, `OBSERVED` or `BOUNDED` through `DRAINING` or
//! `CANCELLING`, or both, to `CLOSED`. In a forked child, an engine moves from any phase to `FORKED`.
//!
//! # Who may touch what
//!
//! * `phase`: raised by the threads that shut the engine down, and by the only thread of a forked child; read by any
//!   thread.
//! * `open_handles`: see [`keeps_open`](super::keeps_open).
//! * `stop`: under their locks, which a cancelling shutdown takes after it has raised `phase`.
//! * `placements`: set once, before the engine has a handle.
//! * The other fields are constant or have protocols of their own.

use std::{
    io, ptr,
    sync::{Arc, OnceLock},
};

use crossbeam_utils::CachePadded;

use crate::{
    context::bounds::Bounds,
    device::gpus::Gpus,
    error::{build::ShutdownError, failures::Failures, op::OpError, push_error::PushError, wait::WaitError},
    notify::{
        deadlines::Deadlines,
        pending::PendingOps,
        stop_signal::{StopSignal, StopSource},
    },
    observe::recording::Recording,
    op::{
        fault::FaultLock,
        frame,
        group_core::GroupCore,
        task::Task,
        units::{ResourceCore, Resources},
    },
    scheduler::activity::Count,
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicU8, AtomicU64},
        lock, thread,
    },
    system::{Placement, panics},
    threads::{
        shuffler::Shuffler,
        thread_pool::{BoxedWorker, ThreadPool},
    },
    values::kind::EngineKind,
    wait::spin::Spins,
};

/// The phases of an engine.
pub(crate) mod phase {
    /// Any thread may push.
    pub(crate) const OPEN: u8 = 0;
    /// Any thread may push, except inside an observer.
    pub(crate) const OBSERVED: u8 = 1;
    /// Any thread may push, except inside an observer. The engine has a limit on pending operations, and holds back
    /// pushes from outside while it is full. (Groups have limits in any phase.)
    pub(crate) const BOUNDED: u8 = 2;
    /// Only this engine's operations and the engine itself may push. Children may be pushed on any thread.
    pub(crate) const DRAINING: u8 = 3;
    /// Only the engine itself may push. Operations that have not started are cancelled, except clean-ups and the
    /// engine's own.
    pub(crate) const CANCELLING: u8 = 4;
    /// Only the engine itself may push. A wait in an earlier phase found no operation pending, and the threads may have
    /// ended.
    pub(crate) const CLOSED: u8 = 5;
    /// This process is a forked child, and the engine belongs to the parent process. Every call returns before taking a
    /// lock.
    pub(crate) const FORKED: u8 = 6;
}

/// Which bare operations go the [short way](crate::engine::push).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShortWay {
    /// None: the engine has a GPU, a limit or a bound of its own or an observer, or shuffles.
    None,
    /// All. They run on workers.
    ToWorkers,
    /// Those pushed outside the functions of device operations. The engine has no workers.
    Here,
}

/// Starts a thread to serve the engine's lane with this number, a GPU lane, with the lane's worker. If the thread
/// cannot be started, returns the error and, if it still exists, the worker.
pub(crate) type ServeLane = fn(&Arc<Core>, u8, BoxedWorker<Task>) -> Result<(), (io::Error, Option<BoxedWorker<Task>>)>;

/// The engine.
pub(crate) struct Core {
    pub(crate) kind: EngineKind,
    /// Whether the engine has a limit on pending operations.
    pub(super) is_bounded: bool,
    /// Whether bare operations may be pushed on the [short way](crate::engine::push), and where they run.
    pub(crate) short_way: ShortWay,
    /// Whether the engine records or logs, and does nothing else with operations that engines without a recording do
    /// not do: it has no observer and does not shuffle.
    pub(crate) only_records: bool,
    pub(crate) phase: CachePadded<AtomicU8>,
    next_id: AtomicU64,
    pub(crate) pending: PendingOps,
    /// Ask started operations to stop: as many as the count of pending operations has shards.
    stop: Box<[CachePadded<Mutex<StopSource>>]>,
    pub(super) deadlines: Arc<Deadlines>,
    /// The number of operations run by threads whose pushes were held back.
    pub(crate) helped: Count,
    /// The failures that the program does not know yet.
    failures: Arc<Failures>,
    pub(crate) threads: ThreadPool<Task>,
    pub(crate) spins: Spins,
    pub(crate) gpus: Gpus<Task>,
    /// The deletions of variables whose values are in devices' pools, if the engine has GPUs.
    freeing: Option<Arc<GroupCore>>,
    /// How the threads of GPU lanes are started.
    pub(crate) serve_lane: ServeLane,
    /// The state for limits on pending operations.
    pub(crate) bounds: Bounds,
    /// The bound on the operations that run at a time, if there is one.
    bound: Option<Arc<ResourceCore>>,
    /// The engine's resources, and those of its groups and families.
    resources: Resources,
    /// Held by a thread while it reads or changes the failure of a variable that several streams may be using.
    pub(super) fault_lock: FaultLock,
    /// Held by a thread while it changes the failure of a variable, or looks at one without an operation.
    pub(crate) looks: FaultLock,
    /// The engine's recorder and observers, if any.
    recording: Option<Box<Recording>>,
    /// The shuffler that draws ready operations, if the engine shuffles them.
    shuffler: Option<Arc<Shuffler<Task>>>,
    /// The placement of each worker of the first lane.
    pub(crate) placements: OnceLock<Box<[Placement]>>,
    /// The number of values that [keep the engine open](super::keeps_open). It has 64 bits on every platform, so it
    /// cannot wrap even if handles are leaked.
    pub(crate) open_handles: AtomicU64,
}

/// This process is a forked child of the one to which the engine belongs. None of the engine's locks may be taken,
/// since a thread of the parent process may have held them at the fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forked;

impl From<Forked> for PushError {
    fn from(Forked: Forked) -> Self {
        Self::Forked
    }
}

impl From<Forked> for WaitError {
    fn from(Forked: Forked) -> Self {
        PushError::Forked.into()
    }
}

impl From<Forked> for ShutdownError {
    fn from(Forked: Forked) -> Self {
        Self::Forked
    }
}

/// An engine that belongs to this process. The failures can be reached only through this value, and the recording and
/// the shuffler only if there is one, so code that uses their locks cannot forget to ask. Program code may fork, so a
/// caller that has run program code must ask again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live<'c>(&'c Core);

impl<'c> Live<'c> {
    pub(crate) fn failures(self) -> &'c Arc<Failures> {
        &self.0.failures
    }

    /// Returns the number of pending operations.
    pub(crate) fn pending(self) -> u64 {
        self.0.pending.count()
    }

    /// Returns the numbers of operations that have ended and that are pending.
    pub(crate) fn totals(self) -> (u64, u64) {
        self.0.pending.totals()
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("kind", &self.kind)
            // Relaxed: only a snapshot for a reader of the output.
            .field("phase", &self.phase.load(Relaxed))
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(
        kind: EngineKind,
        threads: ThreadPool<Task>,
        (gpus, serve_lane): (Gpus<Task>, ServeLane),
        shards: usize,
        (limit, bound): (Option<u64>, Option<Arc<ResourceCore>>),
        recording: Option<Box<Recording>>,
        shuffler: Option<Arc<Shuffler<Task>>>,
    ) -> Self {
        let phase = match (limit, &recording) {
            (Some(_), _) => phase::BOUNDED,
            (None, Some(recording)) if recording.is_observed() => phase::OBSERVED,
            (None, _) => phase::OPEN,
        };
        let only_records = recording.as_deref().is_some_and(Recording::only_records) && shuffler.is_none();
        let does_more =
            limit.is_some() || bound.is_some() || shuffler.is_some() || recording.is_some() && !only_records;
        let core = Self {
            kind,
            freeing: (!gpus.is_empty()).then(|| GroupCore::new(None)),
            short_way: match kind {
                _ if does_more || !gpus.is_empty() => ShortWay::None,
                EngineKind::Naive => ShortWay::Here,
                _ => ShortWay::ToWorkers,
            },
            only_records,
            is_bounded: limit.is_some(),
            phase: CachePadded::new(AtomicU8::new(phase)),
            next_id: AtomicU64::new(0),
            pending: PendingOps::new(shards),
            deadlines: Arc::default(),
            stop: (0..shards.max(1)).map(|_| CachePadded::default()).collect(),
            helped: Count::default(),
            failures: Arc::default(),
            threads,
            spins: Spins::default(),
            gpus,
            serve_lane,
            bounds: Bounds::default(),
            bound,
            resources: Resources::default(),
            fault_lock: FaultLock::default(),
            looks: FaultLock::default(),
            recording,
            shuffler,
            placements: OnceLock::new(),
            open_handles: AtomicU64::new(0),
        };
        if let Some(limit) = limit {
            core.limit(limit);
        }
        core.bound.iter().for_each(|bound| core.resources.add(bound));
        if core.shuffler.is_some() {
            // Shuffling uses the counts in `bounds` to detect that nothing is running.
            core.bounds.begin_use();
        }
        core
    }

    pub(crate) fn kind(&self) -> EngineKind {
        self.kind
    }

    /// Ends the engine in a forked child, on the child's only thread: pending operations stay pending, and calls return
    /// errors. If the thread belonged to the engine, its main loop ends.
    #[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
    pub(crate) fn end_in_child(&self) {
        // Relaxed: there is no other thread.
        self.phase.store(phase::FORKED, Relaxed);
        self.threads.end_in_child();
        self.gpus.end_in_child();
    }

    /// Returns the engine as one whose locks may be taken, unless this process is a [forked](Forked) child.
    #[inline]
    pub(crate) fn live(&self) -> Result<Live<'_>, Forked> {
        // Relaxed: `FORKED` is stored only where there is no other thread.
        if self.phase.load(Relaxed) == phase::FORKED { Err(Forked) } else { Ok(Live(self)) }
    }

    /// Whether the engine belongs to the parent process, which then completes, drops or frees what the caller would
    /// have.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.live().is_err()
    }

    /// Returns the recording, if the engine has one and is [live](Self::live).
    #[inline]
    pub(crate) fn recording(&self) -> Option<&Recording> {
        self.recording.as_deref().filter(|_| self.live().is_ok())
    }

    /// Whether the engine's operations receive numbers because they are recorded, observed, watched or shuffled.
    #[inline]
    pub(super) fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// Whether the engine has observers.
    pub(crate) fn is_observed(&self) -> bool {
        self.recording.as_deref().is_some_and(Recording::is_observed)
    }

    /// Returns the shuffler, if the engine has one and is [live](Self::live).
    #[inline]
    pub(crate) fn shuffler(&self) -> Option<&Arc<Shuffler<Task>>> {
        self.shuffler.as_ref().filter(|_| self.live().is_ok())
    }

    /// Whether the engine shuffles.
    #[inline]
    pub(crate) fn shuffles(&self) -> bool {
        self.shuffler.is_some()
    }

    /// Records a failure of which the program may learn nothing else, unless the engine belongs to the parent process.
    pub(crate) fn record_failure(&self, failure: &OpError) {
        if let Ok(live) = self.live() {
            failure.record(live.failures());
        }
    }

    pub(crate) fn threads(&self) -> &ThreadPool<Task> {
        &self.threads
    }

    pub(crate) fn gpus(&self) -> &Gpus<Task> {
        &self.gpus
    }

    /// Returns the group of the deletions that return memory to devices' pools, if the engine has GPUs.
    pub(crate) fn freeing(&self) -> Option<&Arc<GroupCore>> {
        self.freeing.as_ref()
    }

    /// Returns the bound on the operations that run at a time, if there is one.
    pub(crate) fn bound(&self) -> Option<&Arc<ResourceCore>> {
        self.bound.as_ref()
    }

    /// Returns the engine's resources, and those of its groups and families.
    pub(crate) fn resources(&self) -> &Resources {
        &self.resources
    }

    /// Returns the tag of this engine's variables: the engine's address, which no other engine can have while a
    /// variable keeps this one alive.
    pub(crate) fn tag(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Returns the [mark](crate::tracker::Op::mark) on the records of this engine's pending operations whose functions
    /// have not been called.
    #[inline]
    pub(crate) fn mark(&self) -> *mut () {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns the mark on the records of this engine's pending operations whose functions have been called. The mark
    /// is an address at which there is no record.
    #[inline]
    pub(crate) fn started_mark(&self) -> *mut () {
        self.mark().wrapping_byte_add(1)
    }

    /// Returns a number for a new variable.
    pub(crate) fn next_id(&self) -> u64 {
        // Relaxed: the numbers need only be distinct, and increasing within each thread.
        self.next_id.fetch_add(1, Relaxed)
    }

    /// Whether the engine has workers. If this returns `true` while an operation of the caller is counted as pending,
    /// the workers do not exit before that operation is counted out.
    #[inline]
    pub(crate) fn has_workers(&self) -> bool {
        self.kind != EngineKind::Naive && !self.is_closed()
    }

    /// Returns the seed, if this engine shuffles.
    pub(crate) fn shuffle_seed(&self) -> Option<u64> {
        self.shuffler().map(|shuffler| shuffler.seed())
    }

    /// Whether no shutdown has begun: the engine is `OPEN`, `OBSERVED` or `BOUNDED`.
    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: a snapshot.
        self.phase.load(Relaxed) <= phase::BOUNDED
    }

    /// Whether a shutdown is cancelling the operations that have not started.
    pub(crate) fn is_cancelling(&self) -> bool {
        // Relaxed: a snapshot.
        self.phase.load(Relaxed) == phase::CANCELLING
    }

    /// Returns a signal that a shutdown gives when it begins to cancel operations. There are several, so that threads
    /// whose operations listen do not contend.
    pub(crate) fn stop_signal(&self) -> Arc<StopSignal> {
        let source = &self.stop[thread::number() % self.stop.len()];
        lock(source).signal(|| self.is_cancelling())
    }

    /// Returns the deadlines of started operations, which a thread watches from the first call on.
    pub(crate) fn deadlines(self: &Arc<Self>) -> Arc<Deadlines> {
        if self.deadlines.begin() {
            let (deadlines, core) = (Arc::clone(&self.deadlines), Arc::downgrade(self));
            let run = move || {
                deadlines.run(|tell| match core.upgrade() {
                    Some(core) => frame::enter_after(&core, tell),
                    None => tell(),
                });
            };
            if let Err(error) = self.threads.spawn_aside("raddle-deadlines".to_owned(), run) {
                panics::log!(Error, "raddle: no thread watches the deadlines of started operations: {error}");
            }
        }
        Arc::clone(&self.deadlines)
    }

    /// Gives the signals of a shutdown that has begun to cancel operations.
    pub(super) fn give_stop_signals(&self) {
        for source in &self.stop {
            let signal = lock(source).made();
            signal.iter().for_each(|signal| signal.give());
        }
    }

    /// Whether the threads may have ended. If this returns `false` while the caller has an operation counted as
    /// pending, the threads do not end before that operation is counted out.
    pub(crate) fn is_closed(&self) -> bool {
        // Relaxed: an operation counted later has acquired the phase with the count (edge `open`).
        self.phase.load(Relaxed) >= phase::CLOSED
    }

    /// Whether a stop was requested and the engine has not been started since.
    pub(crate) fn is_stopped(&self) -> bool {
        !self.is_forked() && self.threads.aside().is_requested()
    }
}
