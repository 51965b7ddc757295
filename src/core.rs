//! The engine behind its handles: what a push, a run, a wait and a shutdown do.

use std::{
    future::{Future, poll_fn},
    panic::{Location, resume_unwind},
    ptr::{self, NonNull},
    sync::{Arc, OnceLock},
    task::Poll,
    time::Instant,
};

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use crate::{
    context::{self, RunContext},
    error::{Cause, OpError, PushError, ShutdownError, WaitError},
    failures::Failures,
    kind::{EngineKind, Placement},
    name::Name,
    outcome::Outcome,
    panics,
    scheduler::{DEFAULT_BAND, band_of},
    sync::{
        Ordering::{AcqRel, Acquire, Relaxed},
        atomic::{AtomicU8, AtomicU64, AtomicUsize},
        pause::{self, Point},
        thread,
    },
    tally::Tally,
    task::{Await, Entry, Plain, Refs, Task, Work, flag},
    threads::{self, Crew},
    tracker::{self, INLINE_ACCESSES, Mode, OpRef, ReadyList},
    variable::{Free, Token, VarCell},
};

/// How far a shutdown is. Only rises.
mod phase {
    /// Everybody may push.
    pub(super) const OPEN: u8 = 0;
    /// Operations of this engine may push; so may the engine itself.
    pub(super) const DRAINING: u8 = 1;
    /// Only the engine itself may push; what has not started is cancelled.
    pub(super) const CANCELLING: u8 = 2;
}

/// The variables an operation names, in the making.
pub(crate) type Entries = SmallVec<[Entry; INLINE_ACCESSES]>;

/// What an operation is made with, beside its variables and its function.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) name: Name,
    pub(crate) location: &'static Location<'static>,
    pub(crate) priority: i32,
    pub(crate) lane: u8,
    pub(crate) flags: u16,
}

/// The engine.
pub(crate) struct Core {
    kind: EngineKind,
    phase: CachePadded<AtomicU8>,
    next_id: AtomicU64,
    tally: Tally,
    failures: Failures,
    crew: Crew,
    /// Where the workers of the first lane were put.
    pub(crate) placements: OnceLock<Box<[Placement]>>,
    /// Engine handles that keep it open.
    pub(crate) handles: AtomicUsize,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("kind", &self.kind)
            // Relaxed: a snapshot to look at.
            .field("phase", &self.phase.load(Relaxed))
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(kind: EngineKind, crew: Crew, shards: usize) -> Self {
        Self {
            kind,
            phase: CachePadded::new(AtomicU8::new(phase::OPEN)),
            next_id: AtomicU64::new(0),
            tally: Tally::new(shards),
            failures: Failures::default(),
            crew,
            placements: OnceLock::new(),
            handles: AtomicUsize::new(1),
        }
    }

    pub(crate) fn kind(&self) -> EngineKind {
        self.kind
    }

    pub(crate) fn crew(&self) -> &Crew {
        &self.crew
    }

    pub(crate) fn failures(&self) -> &Failures {
        &self.failures
    }

    /// What the variables of this engine are marked with: its address, which is its own while a variable keeps it.
    pub(crate) fn mark(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    pub(crate) fn next_id(&self) -> u64 {
        // Relaxed: only distinct numbers are needed; a thread's own rise.
        self.next_id.fetch_add(1, Relaxed)
    }

    // ------------------------------------------------------------------------------------------------------- push ----

    /// Pushes an operation.
    #[inline]
    pub(crate) fn push(self: &Arc<Self>, spec: Spec, entries: &mut Entries, work: impl Work) -> Result<(), PushError> {
        self.check_variables(entries)?;
        normalise(entries)?;
        self.push_normalised(spec, entries, work, false)
    }

    /// That the variables are this engine's, and not deleted as far as can be seen.
    #[inline]
    pub(crate) fn check_variables(&self, entries: &[Entry]) -> Result<(), PushError> {
        for entry in entries {
            // SAFETY: whoever made the entry keeps a handle until the push is over.
            let cell = unsafe { entry.cell.as_ref() };
            if cell.queue().owner() != self.mark() {
                return Err(PushError::ForeignVariable);
            }
            if cell.queue().is_closed() {
                return Err(PushError::DeletedVariable);
            }
        }
        Ok(())
    }

    /// Pushes an operation whose entries are sorted, distinct and this engine's.
    pub(crate) fn push_normalised<W: Work>(
        self: &Arc<Self>,
        spec: Spec,
        entries: &[Entry],
        work: W,
        passes_closed: bool,
    ) -> Result<(), PushError> {
        for entry in entries {
            // SAFETY: whoever made the entries keeps handles until the push is over.
            unsafe { entry.cell.as_ref() }.queue().prefetch();
        }
        let ticket = self.tally.enter();
        // Acquire: pairs with the exchange in `begin_shutdown`. The count was entered first: either the drain waits for
        // it, or it entered a generation opened after the phase was set, and sees that here.
        let phase = self.phase.load(Acquire);
        if phase != phase::OPEN && spec.flags & flag::INTERNAL == 0 {
            let allowed = phase == phase::DRAINING && context::in_operation_of(self);
            if !allowed {
                self.tally.leave(ticket);
                return Err(PushError::ShutDown);
            }
        }
        let band = if spec.priority == 0 { DEFAULT_BAND } else { band_of(spec.priority) };
        let flags = spec.flags;
        let accesses = entries.iter().map(|entry| (VarCell::queue_ptr(entry.cell), entry.mode));
        let init = |task: *mut Task| {
            // SAFETY: the place is for a task, and has none yet.
            unsafe { Task::init(task, spec.name, spec.location, ticket, spec.lane, flags, work) }
        };
        // SAFETY: whoever made the entries keeps handles until the push is over; `init` does what it is to do.
        let op = unsafe { OpRef::new_with(init, band, passes_closed, accesses) };
        let pushed = tracker::push(op);
        if pushed.ready {
            let at_once = flag::INLINE | flag::EAGER;
            // Once a shutdown has begun the workers may end at any time; what is still pushed is the engine's own and
            // small, and runs here.
            let closed = phase != phase::OPEN && flags & flag::INTERNAL != 0;
            if flags & at_once != 0 || closed || self.kind == EngineKind::Naive {
                self.run_at_once(op);
            } else {
                self.crew.schedule(op);
            }
        }
        if pushed.rejected {
            return Err(PushError::DeletedVariable);
        }
        Ok(())
    }

    /// Places operations that became ready on this thread.
    #[inline]
    pub(crate) fn place_all(self: &Arc<Self>, ready: &mut ReadyList<Task>) {
        let mut here = ReadyList::default();
        if self.kind != EngineKind::Naive && self.is_open() {
            // What is for others first, since what runs here may take its time.
            while let Some(op) = ready.pop() {
                if op.task().has(flag::INLINE) {
                    here.push(op);
                } else {
                    self.crew.schedule(op);
                }
            }
        } else {
            std::mem::swap(&mut here, ready);
        }
        if !here.is_empty() {
            threads::share_slot();
            if !self.defer(&mut here) {
                self.run_all(&mut here, false);
            }
        }
    }

    /// Runs a ready operation on this thread, or has it placed if too much runs inside each other here.
    fn run_at_once(self: &Arc<Self>, op: OpRef<Task>) {
        let mut ready = ReadyList::default();
        ready.push(op);
        if !self.defer(&mut ready) {
            self.run_all(&mut ready, true);
        }
    }

    /// Leaves `ready` to others if too much runs inside each other on this thread.
    fn defer(&self, ready: &mut ReadyList<Task>) -> bool {
        if self.kind == EngineKind::Naive || !self.is_open() {
            return context::defer(self, ready);
        }
        context::is_deep() && {
            let mut here = ReadyList::default();
            while let Some(op) = ready.pop() {
                if op.task().has(flag::INLINE) {
                    here.push(op);
                } else {
                    self.crew.schedule(op);
                }
            }
            *ready = here;
            ready.is_empty() || context::defer(self, ready)
        }
    }

    /// Runs or places what is ready, the first operation here if `at_once`. What has not had its turn lies where an operation
    /// that waits finds it.
    fn run_all(self: &Arc<Self>, ready: &mut ReadyList<Task>, mut at_once: bool) {
        context::drain(self, |drain| {
            loop {
                drain.push_all(ready);
                let Some(op) = drain.pop() else { break };
                self.place(op, ready, at_once);
                at_once = false;
            }
        });
    }

    /// Runs `op` here if it is to, adding what becomes ready to `ready`; otherwise gives it to a worker.
    fn place(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>, at_once: bool) {
        // After a shutdown nobody is left in the lanes. What can still become ready then is the engine's own, on a thread
        // of the program or in the rest of an asynchronous function.
        let deserted = || op.task().has(flag::INTERNAL) && !self.is_open() && !self.crew.is_served_here(op.task().lane);
        if at_once || self.kind == EngineKind::Naive || op.task().has(flag::INLINE) || deserted() {
            self.execute(op, ready);
        } else {
            self.crew.schedule(op);
        }
    }

    // -------------------------------------------------------------------------------------------------------- run ----

    /// Runs a ready operation on this thread and adds what becomes ready by it to `ready`.
    pub(crate) fn execute(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        tracker::prefetch(op);
        match self.verdict(op) {
            Verdict::Run if op.task().has(flag::ASYNC) => self.start_async(op, ready),
            Verdict::Run => {
                let result = self.call(op);
                self.settle(op, result, ready);
            }
            Verdict::Skip(failure) => {
                self.discard(op);
                self.settle(op, Err(failure), ready);
            }
            Verdict::Nothing => {
                self.discard(op);
                let spent = tracker::complete(op, ready);
                self.close(op, spent);
            }
        }
    }

    /// Whether a ready operation may run.
    fn verdict(&self, op: OpRef<Task>) -> Verdict {
        let task = op.task();
        if op.op().is_rejected() {
            return Verdict::Nothing;
        }
        // Relaxed: an operation that starts while the cancellation begins may do either.
        if self.phase.load(Relaxed) == phase::CANCELLING && !task.has(flag::INTERNAL | flag::KEPT) {
            return Verdict::Skip(OpError::new(&task.name, task.location, Cause::Cancelled));
        }
        if !task.has(flag::NO_SKIP) {
            for access in op.op().accesses() {
                let cell = VarCell::of(access);
                if cell.has_failed() && access.mode() != Mode::Overwrite {
                    // SAFETY: the operation is ready, so it holds its variables.
                    if let Some(failure) = unsafe { cell.failure() } {
                        return Verdict::Skip(failure);
                    }
                }
            }
        }
        Verdict::Run
    }

    /// Calls the function of `op`.
    fn call(self: &Arc<Self>, op: OpRef<Task>) -> Result<(), OpError> {
        let result = panics::catch(|| {
            context::enter(self, op, true, |frame| {
                // SAFETY: the operation is ready, was handed to this thread alone, and is started here only.
                unsafe { op.start(&RunContext::new(frame, self)) }
            })
        });
        let cause = match result {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(cause)) => cause,
            Err(payload) => Cause::panic(payload),
        };
        Err(OpError::new(&op.task().name, op.task().location, cause))
    }

    /// Calls the function of an asynchronous operation, which ends when its completion is used.
    fn start_async(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        // The completion may end the operation while its function goes on.
        op.hold();
        let mut lost = false;
        let result = panics::catch(|| {
            context::enter(self, op, true, |frame| {
                struct Note<'a>(&'a std::cell::Cell<bool>, &'a mut bool);
                impl Drop for Note<'_> {
                    fn drop(&mut self) {
                        *self.1 = self.0.get();
                    }
                }
                let _note = Note(&frame.lost, &mut lost);
                // SAFETY: the operation is ready, was handed to this thread alone, and is started here only.
                unsafe { op.start(&RunContext::new(frame, self)) }
            })
        });
        let cause = match result {
            Ok(Ok(())) => lost.then_some(Cause::LostCompletion),
            Ok(Err(cause)) => Some(cause),
            Err(payload) => Some(Cause::panic(payload)),
        };
        if let Some(cause) = cause {
            let failure = OpError::new(&op.task().name, op.task().location, cause);
            if lost {
                // The completion went down with the function; what is left to do for it is done here.
                let _ = op.task().progress.resolve();
                self.settle(op, Err(failure), ready);
            } else {
                // SAFETY: once, by the thread that ran the function.
                if let Err(failure) = unsafe { op.task().progress.fail(failure) } {
                    // The operation has already ended; its function's failure must not hide.
                    self.failures.add_loose(failure);
                }
            }
        }
        op.release(0);
    }

    /// Ends an operation with `result` and adds what becomes ready by it to `ready`.
    pub(crate) fn settle(self: &Arc<Self>, op: OpRef<Task>, result: Result<(), OpError>, ready: &mut ReadyList<Task>) {
        match &result {
            Ok(()) if op.task().has(flag::SILENT) => {}
            Ok(()) => self.count_mutations(op),
            Err(failure) if op.task().has(flag::SILENT) => self.failures.add_loose(failure.clone()),
            Err(failure) => self.fail_variables(op, failure),
        }
        let spent = tracker::complete(op, ready);
        pause::at(Point::Completed);
        if op.task().has(flag::REPORTS) {
            // Who is told may wait for what comes after.
            if self.kind == EngineKind::Naive {
                context::leave_to_drain(self, ready);
            } else {
                self.place_all(ready);
            }
            // SAFETY: this thread ends the operation.
            self.guarded(op, false, || unsafe { op.report(result.as_ref().map(|&()| ())) });
        }
        self.close(op, spent);
    }

    fn close(&self, op: OpRef<Task>, spent: u32) {
        let ticket = op.task().ticket;
        pause::at(Point::CompleteBeforeRetire);
        op.release(spent);
        self.tally.leave(ticket);
    }

    /// Drops the function of `op` if it has not run.
    fn discard(&self, op: OpRef<Task>) {
        // SAFETY: this thread ends the operation.
        self.guarded(op, true, || unsafe { op.discard() });
    }

    /// Runs `f`, which may drop the user's values, as a part of `op`; a panic there becomes a failure that `wait_for_all`
    /// reports.
    fn guarded(&self, op: OpRef<Task>, holding: bool, f: impl FnOnce()) {
        if let Err(payload) = panics::catch(|| context::enter(self, op, holding, |_| f())) {
            let task = op.task();
            let failure = OpError::new(&task.name, task.location, Cause::panic(payload));
            self.failures.add_loose(failure);
        }
    }

    fn count_mutations(&self, op: OpRef<Task>) {
        for access in op.op().accesses() {
            if !access.mode().is_write() {
                continue;
            }
            let cell = VarCell::of(access);
            // SAFETY: the operation is not passed on yet, so it holds its variables.
            unsafe { cell.mutated() };
            if access.mode() == Mode::Overwrite && cell.has_failed() {
                // SAFETY: as above.
                unsafe { cell.set_failure(None) };
                self.failures.clear_variable(cell.queue().id());
            }
        }
    }

    fn fail_variables(&self, op: OpRef<Task>, failure: &OpError) {
        let mut carried = false;
        for access in op.op().accesses() {
            let cell = VarCell::of(access);
            // SAFETY: the operation is not passed on yet, so it holds its variables.
            match unsafe { cell.failure() } {
                // Where the failure came from, or one that was there before and stays.
                Some(other) => carried |= other.is_same(failure),
                None if access.mode().is_write() => {
                    carried = true;
                    // SAFETY: as above.
                    unsafe { cell.set_failure(Some(failure.clone())) };
                    self.failures.add_variable(cell.queue().id(), failure.clone());
                }
                None => {}
            }
        }
        // A failure that no variable carries must not hide.
        if !carried {
            self.failures.add_loose(failure.clone());
        }
    }

    // ------------------------------------------------------------------------------------------------- completion ----

    /// Ends an asynchronous operation, by its completion.
    pub(crate) fn resolve(self: &Arc<Self>, op: OpRef<Task>, result: Result<(), Cause>) {
        let result = match op.task().progress.resolve() {
            Some(failure) => Err(failure),
            None => result.map_err(|cause| OpError::new(&op.task().name, op.task().location, cause)),
        };
        let mut ready = ReadyList::default();
        self.settle(op, result, &mut ready);
        self.place_all(&mut ready);
    }

    // ------------------------------------------------------------------------------------------------------- wait ----

    /// Waits for what is pending on `token`; for its writers only if `for_reading`.
    pub(crate) fn wait_for_var(
        self: &Arc<Self>,
        token: &Token,
        for_reading: bool,
        deadline: Option<Instant>,
        location: &'static Location<'static>,
    ) -> Result<(), WaitError> {
        match self.begin_wait(token, for_reading, location)? {
            Some(outcome) => self.wait_outcome(&outcome, deadline),
            None => Ok(()),
        }
    }

    /// Pushes the wait for a variable; `None` if nothing is pending and nothing has failed.
    pub(crate) fn begin_wait(
        self: &Arc<Self>,
        token: &Token,
        for_reading: bool,
        location: &'static Location<'static>,
    ) -> Result<Option<Arc<Outcome<()>>>, WaitError> {
        let cell = token.cell();
        if cell.queue().owner() != self.mark() {
            return Err(PushError::ForeignVariable.into());
        }
        if context::holds(token.ptr()) {
            return Err(WaitError::WouldDeadlock);
        }
        if cell.queue().is_idle(for_reading) && !cell.has_failed() {
            return Ok(None);
        }
        let outcome = Outcome::new();
        let spec = Spec {
            name: Name::from("wait"),
            location,
            priority: 0,
            lane: 0,
            flags: flag::INLINE | flag::NO_SKIP | flag::INTERNAL | flag::SILENT,
        };
        let mode = if for_reading { Mode::Read } else { Mode::Await };
        let entry = Entry { cell: token.ptr(), mode, refs: Refs::None };
        // A wait goes behind a deletion as well: it is told when the deletion is done.
        self.push_normalised(spec, &[entry], Await::new(Arc::clone(&outcome)), true)?;
        Ok(Some(outcome))
    }

    /// Waits for an outcome. An operation that waits gives its worker to another thread meanwhile.
    pub(crate) fn wait_outcome<R>(
        self: &Arc<Self>,
        outcome: &Arc<Outcome<R>>,
        deadline: Option<Instant>,
    ) -> Result<R, WaitError> {
        if !outcome.is_done() {
            if context::sets(Arc::as_ptr(outcome).cast()) {
                return Err(WaitError::WouldDeadlock);
            }
            // It may be what is to be waited for.
            while let Some(lost) = context::take_lost(self) {
                self.resolve(lost, Err(Cause::LostCompletion));
            }
            self.run_all(&mut context::take_deferred(self), false);
            threads::yield_worker()?;
        }
        outcome.wait(deadline)
    }

    /// Waits for every operation pushed before.
    pub(crate) fn wait_for_all(&self, deadline: Option<Instant>) -> Result<(), WaitError> {
        if context::in_operation_of(self) {
            return Err(WaitError::WouldDeadlock);
        }
        threads::yield_worker()?;
        match self.tally.wait(deadline) {
            Some(_) => self.all_well(),
            None => Err(WaitError::TimedOut),
        }
    }

    /// As [`wait_for_all`](Self::wait_for_all), as a future that covers what was pushed before this call.
    pub(crate) fn wait_for_all_async(self: &Arc<Self>) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
        let core = Arc::clone(self);
        let inside = context::in_operation_of(self);
        let mut mark = if inside { None } else { self.tally.begin() };
        poll_fn(move |cx| {
            if inside {
                Poll::Ready(Err(WaitError::WouldDeadlock))
            } else if core.tally.poll(&mut mark, cx.waker()) {
                Poll::Ready(core.all_well())
            } else {
                Poll::Pending
            }
        })
    }

    /// The earliest failure that was not cleared.
    fn all_well(&self) -> Result<(), WaitError> {
        match self.failures.first() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    // -------------------------------------------------------------------------------------------------- variables ----

    /// Clears the failure of a variable, in the order of pushes.
    pub(crate) fn clear_error(
        self: &Arc<Self>,
        token: &Token,
        location: &'static Location<'static>,
    ) -> Result<(), PushError> {
        let spec = Spec {
            name: Name::from("clear_error"),
            location,
            priority: 0,
            lane: 0,
            flags: flag::INLINE | flag::NO_SKIP | flag::INTERNAL | flag::SILENT,
        };
        let entry = Entry { cell: token.ptr(), mode: Mode::Write, refs: Refs::None };
        let clear = |cx: &RunContext<'_>| {
            for access in cx.op().op().accesses() {
                let cell = VarCell::of(access);
                // SAFETY: the operation runs and names the variable as written.
                if unsafe { cell.set_failure(None) }.is_some() {
                    cx.core().failures.clear_variable(cell.queue().id());
                }
            }
            Ok(())
        };
        self.push(spec, &mut SmallVec::from_slice(&[entry]), Plain::new(clear))
    }

    /// Deletes a variable after everything pending on it; then runs `f`.
    pub(crate) fn delete_variable(
        self: &Arc<Self>,
        token: &Token,
        location: &'static Location<'static>,
        f: impl FnOnce(&RunContext<'_>) + Send + 'static,
    ) -> Result<(), PushError> {
        let entry = Entry { cell: token.ptr(), mode: Mode::Overwrite, refs: Refs::None };
        self.check_variables(&[entry])?;
        if !token.cell().queue().close() {
            return Err(PushError::DeletedVariable);
        }
        let spec = Spec {
            name: Name::from("delete_variable"),
            location,
            // Before everything else: it gives memory back.
            priority: i32::MAX,
            lane: 0,
            flags: flag::EAGER | flag::NO_SKIP | flag::INTERNAL | flag::SILENT,
        };
        let delete = move |cx: &RunContext<'_>| {
            let empty = || {
                for access in cx.op().op().accesses() {
                    // SAFETY: the operation holds the variable for writing, and a closed variable takes no other operation.
                    unsafe { VarCell::of(access).empty() };
                }
            };
            // What the value's drop does must not keep the clean-up from running.
            let emptied = panics::catch(empty);
            f(cx);
            if let Err(payload) = emptied {
                resume_unwind(payload);
            }
            Ok(())
        };
        self.push_normalised(spec, &[entry], Plain::new(delete), true)
    }

    /// Frees a variable whose last handle is gone, after everything pending on it.
    pub(crate) fn free_variable(cell: NonNull<VarCell>, location: &'static Location<'static>) {
        // SAFETY: the cell lives until the operation pushed here has ended.
        let (core, queue, needs_drop) = unsafe {
            let cell = cell.as_ref();
            (Arc::clone(cell.core()), cell.queue(), cell.needs_drop())
        };
        queue.close();
        // The value is the user's, and its drop runs on a worker; otherwise there is nothing to run.
        let at_once = if needs_drop { 0 } else { flag::INLINE };
        let spec = Spec {
            name: Name::from("drop"),
            location,
            priority: i32::MAX,
            lane: 0,
            flags: at_once | flag::NO_SKIP | flag::INTERNAL | flag::SILENT,
        };
        let entry = Entry { cell, mode: Mode::Overwrite, refs: Refs::None };
        let pushed = core.push_normalised(spec, &[entry], Free(cell), true);
        debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
    }

    // --------------------------------------------------------------------------------------------------- shutdown ----

    /// Refuses pushes from now on; with `cancel`, what has not started does not start any more.
    pub(crate) fn begin_shutdown(&self, cancel: bool) {
        let phase = if cancel { phase::CANCELLING } else { phase::DRAINING };
        // AcqRel: pairs with the load in `push_normalised`.
        self.phase.fetch_max(phase, AcqRel);
    }

    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: a snapshot.
        self.phase.load(Relaxed) == phase::OPEN
    }

    /// Waits until nothing is pending and ends the threads. The shutdown must have begun.
    pub(crate) fn finish_shutdown(self: &Arc<Self>, deadline: Option<Instant>) -> Result<(), ShutdownError> {
        debug_assert!(!self.is_open());
        // An operation of another engine gives its worker away meanwhile; it may be what this one needs.
        if context::in_operation_of(self) || threads::belongs_to(self) || threads::yield_worker().is_err() {
            // Somebody must end the threads when this operation, too, is over.
            let core = Arc::clone(self);
            let finisher =
                thread::Builder::new().name("raddle-shutdown".to_owned()).spawn(move || core.finish_shutdown(None));
            if let Err(error) = finisher {
                log::error!("raddle: no thread to end the workers with: {error}; they stay asleep");
            }
            return Err(ShutdownError::InsideOperation);
        }
        loop {
            match self.tally.wait(deadline) {
                None => return Err(ShutdownError::TimedOut),
                Some(true) => break,
                // Operations may have pushed others meanwhile.
                Some(false) => {}
            }
        }
        if let Some(failure) = self.failures.unreported() {
            failure.mark_reported();
            // It prints the user's error, whose code may do anything.
            let warn = || log::warn!("raddle: a failure that nobody was told of: {failure}");
            if let Err(payload) = panics::catch(warn) {
                panics::discard(payload);
            }
        }
        self.crew.end();
        Ok(())
    }
}

enum Verdict {
    Run,
    Skip(OpError),
    Nothing,
}

/// Sorts entries by variable and makes them distinct: what is both read and mutated counts as mutated, and as overwritten
/// only if nothing else was said.
#[inline]
pub(crate) fn normalise(entries: &mut Entries) -> Result<(), PushError> {
    // SAFETY: whoever made the entries keeps handles.
    let id = |entry: &Entry| unsafe { entry.cell.as_ref() }.queue().id();
    if entries.is_sorted_by(|one, other| id(one) < id(other)) { Ok(()) } else { sort(entries) }
}

#[inline(never)]
fn sort(entries: &mut Entries) -> Result<(), PushError> {
    // SAFETY: whoever made the entries keeps handles.
    entries.sort_unstable_by_key(|entry| unsafe { entry.cell.as_ref() }.queue().id());
    let mut aliased = false;
    entries.dedup_by(|later, kept| {
        if later.cell != kept.cell {
            return false;
        }
        aliased |= later.refs.min(kept.refs) != Refs::None && later.refs.max(kept.refs) == Refs::Exclusive;
        if later.mode != kept.mode {
            kept.mode = Mode::Write;
        }
        kept.refs = kept.refs.max(later.refs);
        true
    });
    if aliased {
        return Err(PushError::AliasedVariable);
    }
    Ok(())
}
