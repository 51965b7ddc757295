//! What a run and its end do: whether the function is called, what becomes of its result, and whom it is told.

use std::sync::Arc;

use super::{Core, phase};
use crate::{
    context::{self, RunContext},
    device::{Context, DeviceError},
    error::{Cause, OpError},
    gpu::{FIRST_LANE, GpuStream},
    kind::EngineKind,
    panics,
    progress::Progress,
    sync::{
        Ordering::Relaxed,
        pause::{self, Point},
    },
    task::{Task, flag},
    tracker::{self, Mode, OpRef, ReadyList},
    variable::VarCell,
};

impl Core {
    /// Runs a ready operation on this thread and adds what becomes ready by it to `ready`.
    pub(crate) fn execute(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        self.execute_here(op, ready);
    }

    /// As [`execute`](Self::execute), as a part of the loop of a worker's thread.
    #[inline(always)]
    pub(crate) fn execute_here(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        match self.verdict(op) {
            Verdict::Run if op.task().has(flag::DEVICE | flag::ASYNC) => {
                if op.task().has(flag::DEVICE) {
                    self.run_on_device(op, ready);
                } else {
                    self.start_async(op, ready);
                }
            }
            Verdict::Run => match self.call(op, None) {
                Ok(()) if !op.task().has(flag::SILENT | flag::REPORTS) => self.settle_well(op, ready),
                result => self.settle(op, result, ready),
            },
            Verdict::Skip(failure) => self.skip(op, failure, ready),
            Verdict::Elsewhere(lane) => self.gpus.send(lane, op),
            Verdict::Nothing => self.drop_rejected(op, ready),
        }
    }

    /// Ends an operation that does not run because of `failure`.
    #[cold]
    pub(crate) fn skip(self: &Arc<Self>, op: OpRef<Task>, failure: OpError, ready: &mut ReadyList<Task>) {
        self.discard(op);
        self.settle(op, Err(failure), ready);
    }

    /// Ends an operation whose push was refused.
    #[cold]
    pub(crate) fn drop_rejected(&self, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        if self.is_forked() {
            return;
        }
        self.discard(op);
        let ticket = op.task().ticket;
        tracker::end(op, ready);
        self.tally.leave(ticket);
    }

    /// Whether a ready operation may run.
    #[inline]
    fn verdict(&self, op: OpRef<Task>) -> Verdict {
        let mut troubled = op.task().lane >= FIRST_LANE;
        op.op().each_access(|access| {
            access.prefetch_next();
            troubled |= VarCell::of(access).trouble().is_any();
        });
        // Relaxed: an operation that starts while the cancellation begins may do either.
        if troubled || op.op().is_rejected() || self.phase.load(Relaxed) >= phase::CANCELLING {
            self.verdict_at(op, Context::Cpu)
        } else {
            Verdict::Run
        }
    }

    /// As [`verdict`](Self::verdict), for an operation that is about to be issued `at` a device or to run on the CPU. What a
    /// stream must wait for is not asked here.
    #[cold]
    pub(crate) fn verdict_at(&self, op: OpRef<Task>, at: Context) -> Verdict {
        let task = op.task();
        if self.is_forked() {
            return Verdict::Nothing;
        }
        if op.op().is_rejected() {
            return Verdict::Nothing;
        }
        // First, since until then lanes may still change the failures.
        if let Some(lane) = self.pending_on_device(op, at) {
            return Verdict::Elsewhere(lane);
        }
        // Relaxed: an operation that starts while the cancellation begins may do either.
        if self.phase.load(Relaxed) == phase::CANCELLING && !task.has(flag::INTERNAL | flag::KEPT) {
            return Verdict::Skip(task.failed_by(Cause::Cancelled));
        }
        let verdict = if at == Context::Cpu {
            self.failure_verdict(op)
        } else {
            self.gpus.turns().take(|| self.failure_verdict(op))
        };
        match (verdict, self.gpus.lost(self.gpus.context_of(task.lane))) {
            // What has to run anyway finds a stream that refuses everything.
            (Verdict::Run, Some(error)) if !task.has(flag::NO_SKIP | flag::KEPT) => {
                Verdict::Skip(task.failed_by(Cause::Device(error.clone())))
            }
            (verdict, _) => verdict,
        }
    }

    /// Whether an operation is skipped because a variable that it names has failed.
    fn failure_verdict(&self, op: OpRef<Task>) -> Verdict {
        if !op.task().has(flag::NO_SKIP) {
            for access in op.op().accesses() {
                let cell = VarCell::of(access);
                if cell.trouble().has_failed() && access.mode() != Mode::Overwrite {
                    // SAFETY: the operation is ready, so it holds its variables; and what devices write there is complete, or the
                    // caller has taken its turn.
                    if let Some(failure) = unsafe { cell.trouble().failure() } {
                        return Verdict::Skip(failure);
                    }
                }
            }
        }
        Verdict::Run
    }

    /// The lane of a device that still has to complete what `op` comes after, before it may run `at` another device's lane
    /// or on the CPU. The caller sends it there. Each lane is named once at most: what is issued there later, as readers
    /// beside a wait are, does not come before.
    pub(crate) fn pending_on_device(&self, op: OpRef<Task>, at: Context) -> Option<usize> {
        let waited = &op.task().waited;
        // Relaxed: the caller's, like the operation.
        let from = usize::from(waited.load(Relaxed));
        let mut pending = None;
        for access in op.op().accesses() {
            let cell = VarCell::of(access);
            if !cell.trouble().is_any() {
                continue;
            }
            // On its own device the order of streams is enough, but for what the host looks at.
            let on_stream = self.follows_on_device(op, cell, at);
            let counts =
                |lane: usize| lane >= from && !(on_stream && self.gpus.context_of(FIRST_LANE + lane as u8) == at);
            let lane = self.lane_before(cell, access.mode() == Mode::Read, counts);
            if lane.is_none() && !on_stream && access.mode().is_write() {
                // SAFETY: the operation is ready, so it holds the variable, and every lane was asked, here or before.
                unsafe { cell.trouble().leave_device() };
            }
            pending = pending.into_iter().chain(lane).min();
        }
        if let Some(lane) = pending {
            // Relaxed: as above. It fits: an engine has fewer lanes than a byte has values.
            waited.store(lane as u8 + 1, Relaxed);
        }
        pending
    }

    /// The first lane of a device, of those that `counts`, that has not completed what comes before the next operation on
    /// `cell`, or before the next reader.
    pub(super) fn lane_before(
        &self,
        cell: &VarCell,
        for_reading: bool,
        counts: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let is_pending = |&lane: &usize| {
            let last = cell.trouble().last_on_device(lane, for_reading);
            last != 0 && !self.gpus.lanes()[lane].timeline.is_complete(last)
        };
        (0..self.gpus.lanes().len()).filter(|&lane| counts(lane)).find(is_pending)
    }

    /// Whether `op` comes after what lanes `at` a device do with `cell` by the order of their streams.
    pub(crate) fn follows_on_device(&self, op: OpRef<Task>, cell: &VarCell, at: Context) -> bool {
        let task = op.task();
        let looks = cell.is_host_value() && !task.has(flag::COPY);
        task.has(flag::DEVICE) && self.gpus.context_of(task.lane) == at && !looks
    }

    /// Calls the function of `op`.
    #[inline]
    pub(crate) fn call(self: &Arc<Self>, op: OpRef<Task>, stream: Option<&mut GpuStream>) -> Result<(), OpError> {
        let result = panics::catch(|| {
            context::enter(self, op, true, |frame| {
                // SAFETY: the operation is ready, was handed to this thread alone, and is started here only.
                unsafe { op.start(&RunContext::new(frame, self, stream)) }
            })
        });
        result.unwrap_or_else(|payload| Err(Cause::panic(payload))).map_err(|cause| op.task().failed_by(cause))
    }

    /// Calls the function of an asynchronous operation, which ends when its completion is used.
    fn start_async(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        let Some(progress) = op.task().progress() else { unreachable!("the operation is asynchronous") };
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
                unsafe { op.start(&RunContext::new(frame, self, None)) }
            })
        });
        let cause = match result {
            Ok(Ok(())) => lost.then_some(Cause::LostCompletion),
            Ok(Err(cause)) => Some(cause),
            Err(payload) => Some(Cause::panic(payload)),
        };
        if let Some(cause) = cause {
            if self.is_forked() {
                return;
            }
            let failure = op.task().failed_by(cause);
            if lost {
                // The completion went down with the function; what is left to do for it is done here.
                let _ = progress.resolve();
                self.settle(op, Err(failure), ready);
            } else {
                // SAFETY: once, by the thread that ran the function.
                if let Err(failure) = unsafe { progress.fail(failure) } {
                    // The operation has already ended; its function's failure must not hide.
                    self.failures.add_loose(failure);
                }
            }
        }
        op.release(0);
    }

    /// As [`settle`](Self::settle), for an operation that was successful and of which nobody has to be told, not even devices.
    #[inline(always)]
    fn settle_well(&self, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        self.count_mutations(op);
        let ticket = op.task().ticket;
        tracker::end(op, ready);
        pause::at(Point::Completed);
        self.tally.leave(ticket);
    }

    /// Ends an operation with `result` and adds what becomes ready by it to `ready`.
    #[inline(never)]
    pub(crate) fn settle(
        self: &Arc<Self>,
        op: OpRef<Task>,
        mut result: Result<(), OpError>,
        ready: &mut ReadyList<Task>,
    ) {
        if self.is_forked() {
            // The function, or a completion, of an operation of the parent's: what it did is done there.
            return;
        }
        if op.task().has(flag::SILENT | flag::DEVICE) {
            self.note_special(op, &mut result);
        } else {
            match &result {
                Ok(()) => self.count_mutations(op),
                Err(failure) => self.fail_variables(op, failure),
            }
        }
        let ticket = op.task().ticket;
        if op.task().has(flag::REPORTS) {
            let spent = tracker::complete(op, ready);
            pause::at(Point::Completed);
            // Who is told may wait for what comes after.
            if self.kind == EngineKind::Naive {
                context::leave_to_drain(self, ready);
            } else {
                self.place_all(ready);
            }
            self.report(op, &result);
            pause::at(Point::CompleteBeforeRetire);
            op.release(spent);
        } else {
            tracker::end(op, ready);
            pause::at(Point::Completed);
        }
        self.tally.leave(ticket);
    }

    /// What [`settle`](Self::settle) begins with, for an operation that leaves its variables' state alone or is a
    /// device's.
    fn note_special(&self, op: OpRef<Task>, result: &mut Result<(), OpError>) {
        match result {
            Ok(()) if op.task().has(flag::SILENT) => {}
            Err(failure) if op.task().has(flag::SILENT) => self.failures.add_loose(failure.clone()),
            Ok(()) => {
                self.clear_overwritten(op);
                self.count_on_device(op);
            }
            Err(failure) => *failure = self.fail_on_device(op, failure.clone()),
        }
    }

    /// Ends an operation that has passed its variables on, and given up `spent` of them, before it was complete.
    pub(crate) fn conclude(self: &Arc<Self>, op: OpRef<Task>, spent: u32, result: &Result<(), OpError>) {
        let ticket = op.task().ticket;
        if op.task().has(flag::REPORTS) {
            self.report(op, result);
        }
        op.release(spent);
        self.tally.leave(ticket);
    }

    /// Tells whoever has the operation's handle.
    fn report(&self, op: OpRef<Task>, result: &Result<(), OpError>) {
        // SAFETY: this thread ends the operation.
        self.guarded(op, false, || unsafe { op.report(result.as_ref().map(|&()| ())) });
    }

    /// Runs an operation of a device on this thread, in the naive engine: to its end on the device.
    #[cold]
    fn run_on_device(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        let context = self.gpus.context_of(op.task().lane);
        let Some(gpu) = self.gpus.gpu(context) else { unreachable!("routes are to devices of the engine") };
        let mut stream = gpu.take_stream(context);
        let failure = match self.verdict_at(op, context) {
            Verdict::Run => None,
            Verdict::Skip(failure) => Some(failure),
            Verdict::Elsewhere(_) | Verdict::Nothing => unreachable!("`verdict` has said that it runs"),
        };
        if let Some(failure) = failure {
            return self.skip(op, failure, ready);
        }
        let mut result = self.call(op, Some(&mut stream));
        if self.is_forked() {
            // Neither is the stream dropped, whose device may be locked.
            std::mem::forget(stream);
            return;
        }
        if let Err(error) = stream.finish() {
            let failure = op.task().failed_by(Cause::Device(gpu.lose(&error)));
            result = result.and(Err(failure));
        }
        self.settle(op, result, ready);
        gpu.put_back(stream);
    }

    /// Drops the function of `op` if it has not run.
    fn discard(&self, op: OpRef<Task>) {
        // SAFETY: this thread ends the operation.
        self.guarded(op, true, || unsafe { op.discard() });
    }

    /// Runs `f`, which may drop the user's values, as a part of `op`; a panic there becomes a failure that `wait_for_all`
    /// reports.
    fn guarded(&self, op: OpRef<Task>, holding: bool, f: impl FnOnce()) {
        if let Err(payload) = panics::catch(|| context::enter(self, op, holding, |_| f()))
            && !self.is_forked()
        {
            self.failures.add_loose(op.task().failed_by(Cause::panic(payload)));
        }
    }

    #[inline]
    fn count_mutations(&self, op: OpRef<Task>) {
        op.op().each_access(|access| {
            if !access.mode().is_write() {
                return;
            }
            let cell = VarCell::of(access);
            // SAFETY: the operation is not passed on yet, so it holds its variables.
            unsafe { cell.mutated() };
            if access.mode() == Mode::Overwrite && cell.trouble().has_failed() {
                // SAFETY: as above, and as an operation of the CPU it comes after what is complete on devices.
                unsafe { cell.trouble().set_failure(None) };
                self.failures.clear_variable(cell.queue().id());
            }
        });
    }

    /// As the first half of [`count_mutations`](Self::count_mutations), for an operation that was issued: operations that
    /// come after it on the device may run.
    pub(crate) fn clear_overwritten(&self, op: OpRef<Task>) {
        for access in op.op().accesses() {
            let cell = VarCell::of(access);
            if access.mode() == Mode::Overwrite && cell.trouble().has_failed() {
                // SAFETY: the operation is not passed on yet, so it holds its variables; lanes take turns.
                let clear = || unsafe { cell.trouble().set_failure(None) };
                // Dropped after the turn: it may hold the user's error.
                let cleared = self.gpus.turns().take(|| {
                    let cleared = clear();
                    self.failures.clear_variable(cell.queue().id());
                    cleared
                });
                drop(cleared);
            }
        }
    }

    /// Counts the mutations of an operation that the device has done.
    pub(crate) fn count_on_device(&self, op: OpRef<Task>) {
        for access in op.op().accesses().iter().filter(|access| access.mode().is_write()) {
            VarCell::of(access).mutated_on_device();
        }
    }

    /// As [`fail_variables`](Self::fail_variables), for a device's operation, which may have passed its variables on. Gives
    /// the failure, which where the device is lost is that of another operation, if the loss has failed one of the variables
    /// already.
    pub(crate) fn fail_on_device(&self, op: OpRef<Task>, failure: OpError) -> OpError {
        self.gpus.turns().take(|| {
            // SAFETY: it is the lane's turn.
            let failure_of = |access| unsafe { VarCell::of(access).trouble().failure() };
            let known = op.op().accesses().iter().filter_map(failure_of).find(|known| known.loss().is_some());
            let failure = known.filter(|_| failure.loss().is_some()).unwrap_or(failure);
            self.fail_variables(op, &failure);
            failure
        })
    }

    /// Fails a device's operation that was under way when the device was lost, by `error`; gives the failure.
    pub(crate) fn lose_on_device(&self, op: OpRef<Task>, error: &DeviceError) -> OpError {
        self.fail_on_device(op, op.task().failed_by(Cause::Device(error.clone())))
    }

    fn fail_variables(&self, op: OpRef<Task>, failure: &OpError) {
        let mut carried = false;
        for access in op.op().accesses() {
            let cell = VarCell::of(access);
            // SAFETY: the operation is not passed on yet, so it holds its variables; or a device's lane calls this, for
            // which nobody else looks before the lane's timeline says so but other lanes, and they take turns.
            match unsafe { cell.trouble().failure() } {
                // Where the failure came from, or one that was there before and stays.
                Some(other) => carried |= other.is_same(failure),
                None if access.mode().is_write() => {
                    carried = true;
                    // SAFETY: as above.
                    unsafe { cell.trouble().set_failure(Some(failure.clone())) };
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

    /// Ends an asynchronous operation, by its completion.
    pub(crate) fn resolve(self: &Arc<Self>, op: OpRef<Task>, result: Result<(), Cause>) {
        if self.is_forked() {
            return;
        }
        let result = match op.task().progress().and_then(Progress::resolve) {
            Some(failure) => Err(failure),
            None => result.map_err(|cause| op.task().failed_by(cause)),
        };
        let mut ready = ReadyList::default();
        self.settle(op, result, &mut ready);
        self.place_all(&mut ready);
    }
}

pub(crate) enum Verdict {
    Run,
    Skip(OpError),
    /// What it comes after is not complete on that lane of a device.
    Elsewhere(usize),
    /// Its push was refused; or this is a forked child, where the parent's operations are left alone.
    Nothing,
}
