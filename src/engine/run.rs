//! What a run and its end do: whether the function is called, what becomes of its result, and whom it is told.

use std::{panic::Location, sync::Arc};

use crate::{
    device::{gpus::FIRST_LANE, stream::GpuStream},
    engine::{
        core::{Core, phase},
        ending::{Disposition, Rest, Rests, Told, Unplain},
        frame::{self, Call, Frame, Has, NoWait},
        spec::Spec,
        task::{FnJob, Task, flag},
        variable::VarCell,
        worker_thread,
    },
    error::{
        device::DeviceError,
        op::{Cause, OpError},
    },
    notify::{async_state::AsyncState, pending::Ticket, wakers::Wakers},
    sync::Ordering::Relaxed,
    system::panics,
    testing::{
        pause::{self, Point},
        weaken::{Step, removed},
    },
    tracker::{self, Hold, Mode, Op, OpRef, ReadyList},
    values::device::Device,
};

impl Core {
    /// Runs a ready operation on this thread and adds what becomes ready by it to `ready`, which the caller places before it
    /// [finishes](Self::finish) the rest.
    pub(crate) fn execute(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Rest {
        match self.execute_plainly(op, ready) {
            Ok(ticket) => Rest::Count(ticket),
            Err(unplain) => self.execute_otherwise(unplain, ready),
        }
    }

    /// As [`execute_here`](Self::execute_here), compiled once.
    #[inline(never)]
    pub(super) fn execute_plainly(
        self: &Arc<Self>,
        op: OpRef<Task>,
        ready: &mut ReadyList<Task>,
    ) -> Result<Ticket, Unplain> {
        self.execute_here(op, ready)
    }

    /// As [`execute`](Self::execute), if the operation is as plain as most are; then it has only to be counted out. A part of
    /// the loop of a worker's thread.
    #[inline(always)]
    pub(crate) fn execute_here(
        self: &Arc<Self>,
        op: OpRef<Task>,
        ready: &mut ReadyList<Task>,
    ) -> Result<Ticket, Unplain> {
        if op.task().has(flag::ON_DEVICE | flag::ASYNC) || removed(Step::PlaceBeforeTelling) || !self.is_sound(&op) {
            return Err(Unplain { op, called: None });
        }
        // Without a guard, so that no result is there that might have to be dropped.
        match self.call(&op) {
            Ok(()) => {}
            failed => return Err(Unplain { op, called: Some(failed) }),
        }
        if op.task().has(flag::SILENT | flag::REPORTS) {
            return Err(Unplain { op, called: Some(Ok(())) });
        }
        Ok(self.complete_plainly(op, ready))
    }

    /// The rest of [`execute`](Self::execute), for other operations.
    #[inline(never)]
    pub(crate) fn execute_otherwise(self: &Arc<Self>, unplain: Unplain, ready: &mut ReadyList<Task>) -> Rest {
        let Unplain { op, called } = unplain;
        if let Some(result) = called {
            return self.complete(op, result, false, ready);
        }
        match self.disposition_at(&op, Device::Cpu) {
            Disposition::Run if op.task().has(flag::DEVICE) => self.run_on_device(op, ready),
            Disposition::Run if op.task().has(flag::ASYNC) => self.start_async(op, ready),
            Disposition::Run => {
                let result = self.call(&op);
                self.complete(op, result, false, ready)
            }
            Disposition::Skip(failure) => self.skip(op, failure, ready),
            Disposition::Forward(lane) => {
                self.gpus.send(lane, op);
                Rest::Nothing
            }
            Disposition::Discard => self.drop_rejected(op, ready),
        }
    }

    /// Completes an operation that does not run because of `failure`.
    #[cold]
    pub(crate) fn skip(&self, op: OpRef<Task>, failure: OpError, ready: &mut ReadyList<Task>) -> Rest {
        self.complete(op, Err(failure), true, ready)
    }

    /// Completes an operation whose push was refused.
    #[cold]
    pub(crate) fn drop_rejected(&self, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Rest {
        if self.is_forked() {
            return Rest::Nothing;
        }
        Rest::Tell(Told::new(tracker::complete(op, ready), Ok(()), Vec::new(), true))
    }

    /// Whether nothing but its flags keeps a ready operation from being run here: its variables are as they should be, and it
    /// is neither rejected nor cancelled.
    #[inline]
    fn is_sound(&self, op: &Op<Task>) -> bool {
        let mut sound = true;
        op.each_access(|access| {
            access.prefetch_next();
            sound &= !VarCell::of(access).fault().is_any();
        });
        // Relaxed: an operation that starts while the cancellation begins may do either.
        sound && !op.is_rejected() && self.phase.load(Relaxed) < phase::CANCELLING
    }

    /// Whether a ready operation may be issued `at` a device, or run on the CPU. What a stream must wait for is not asked here.
    #[cold]
    pub(crate) fn disposition_at(&self, op: &Op<Task>, at: Device) -> Disposition {
        let task = op.task();
        if self.is_forked() || op.is_rejected() {
            return Disposition::Discard;
        }
        // First, since until then lanes may still change the failures.
        if let Some(lane) = self.pending_on_device(op, at) {
            return Disposition::Forward(lane);
        }
        // Relaxed: an operation that starts while the cancellation begins may do either.
        if self.phase.load(Relaxed) == phase::CANCELLING && !task.has(flag::INTERNAL | flag::KEPT) {
            return Disposition::Skip(task.failed_by(Cause::Cancelled));
        }
        let disposition = if at == Device::Cpu {
            self.failure_disposition(op)
        } else {
            self.fault_lock.take(|| self.failure_disposition(op))
        };
        match (disposition, self.gpus.lost(self.gpus.context_of(task.lane))) {
            // What has to run anyway finds a stream that refuses everything.
            (Disposition::Run, Some(error)) if !task.has(flag::NO_SKIP | flag::KEPT) => {
                Disposition::Skip(task.failed_by(Cause::Device(error.clone())))
            }
            (disposition, _) => disposition,
        }
    }

    /// Whether an operation is skipped because a variable that it names has failed.
    fn failure_disposition(&self, op: &Op<Task>) -> Disposition {
        if !op.task().has(flag::NO_SKIP) {
            for access in op.accesses() {
                let cell = VarCell::of(access);
                if cell.fault().has_failed() && access.mode() != Mode::Overwrite {
                    // SAFETY: the operation is ready, so it holds its variables; and what devices write there is complete, or the
                    // caller has taken its turn.
                    if let Some(failure) = unsafe { cell.fault().failure() } {
                        return Disposition::Skip(failure);
                    }
                }
            }
        }
        Disposition::Run
    }

    /// The lane of a device that still has to complete what `op` comes after, before it may run `at` another device's lane
    /// or on the CPU. The caller sends it there. Each lane is named once at most: what is issued there later, as readers
    /// beside a wait are, does not come before.
    pub(crate) fn pending_on_device(&self, op: &Op<Task>, at: Device) -> Option<usize> {
        let waited = &op.task().waited;
        // Relaxed: the caller's, like the operation.
        let from = usize::from(waited.load(Relaxed));
        let mut pending = None;
        for access in op.accesses() {
            let cell = VarCell::of(access);
            if !cell.fault().is_any() {
                continue;
            }
            // On its own device the order of streams is enough, but for what the host looks at.
            let on_stream = self.follows_on_device(op, cell, at);
            let counts =
                |lane: usize| lane >= from && !(on_stream && self.gpus.context_of(FIRST_LANE + lane as u8) == at);
            let lane = self.lane_before(cell, access.mode() == Mode::Read, counts);
            if lane.is_none() && !on_stream && access.mode().is_write() {
                // SAFETY: the operation is ready, so it holds the variable, and every lane was asked, here or before.
                unsafe { cell.fault().leave_device() };
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
            let last = cell.fault().last_on_device(lane, for_reading);
            last != 0 && !self.gpus.lanes()[lane].timeline.is_complete(last)
        };
        (0..self.gpus.lanes().len()).filter(|&lane| counts(lane)).find(is_pending)
    }

    /// Whether `op` comes after what lanes `at` a device do with `cell` by the order of their streams.
    pub(crate) fn follows_on_device(&self, op: &Op<Task>, cell: &VarCell, at: Device) -> bool {
        let task = op.task();
        let looks = cell.is_host_value() && !task.has(flag::COPY);
        task.has(flag::DEVICE) && self.gpus.context_of(task.lane) == at && !looks
    }

    /// Calls the function of `op`.
    #[inline]
    fn call(self: &Arc<Self>, op: &OpRef<Task>) -> Result<(), OpError> {
        let result = panics::catch(|| {
            frame::enter(self, op, Has::Variables, |frame| {
                // SAFETY: the operation is ready, was handed to this thread alone, and is started here only.
                unsafe { op.start(&Call::new(frame, self, None)) }
            })
        });
        self.result_of(op, result)
    }

    /// Calls the function of `op`, an operation of a device, which gets `stream`.
    pub(crate) fn call_on(self: &Arc<Self>, op: &OpRef<Task>, stream: &mut GpuStream) -> Result<(), OpError> {
        let result = panics::catch(|| {
            frame::without_waits(NoWait::InDeviceFunction, || {
                frame::enter(self, op, Has::Variables, |frame| {
                    // SAFETY: as in `call`.
                    unsafe { op.start(&Call::new(frame, self, Some(stream))) }
                })
            })
        });
        let result = self.result_of(op, result);
        if self.is_forked() {
            return result;
        }
        let left = stream.function_ended(result.is_err());
        result.and_then(|()| left.map_err(|error| op.task().failed_by(Cause::Device(error))))
    }

    /// What a function's call comes to.
    #[inline(always)]
    fn result_of(&self, op: &Op<Task>, result: Result<Result<(), Cause>, panics::Payload>) -> Result<(), OpError> {
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(cause)) => Err(op.task().failed_by(cause)),
            Err(payload) => Err(op.task().failed_by_panic(payload)),
        }
    }

    /// Calls the function of an asynchronous operation, which ends when its completion is used.
    fn start_async(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Rest {
        // The completion may end the operation while its function goes on.
        let hold = op.hold();
        let mut lost = None;
        let result = panics::catch(|| {
            frame::enter_async(self, &hold, op, |frame| {
                struct TakeRight<'a>(&'a Frame, &'a mut Option<OpRef<Task>>);
                impl Drop for TakeRight<'_> {
                    fn drop(&mut self) {
                        *self.1 = self.0.take_right();
                    }
                }
                let _take = TakeRight(frame, &mut lost);
                // SAFETY: the operation is ready, was handed to this thread alone, and is started here only.
                unsafe { hold.start(&Call::new(frame, self, None)) }
            })
        });
        let failure = match result {
            Ok(Ok(())) => None,
            Ok(Err(cause)) => Some(hold.task().failed_by(cause)),
            Err(payload) => Some(hold.task().failed_by_panic(payload)),
        };
        if self.is_forked() {
            // The operation is the parent's.
            std::mem::forget((hold, failure));
            return Rest::Nothing;
        }
        match (lost, failure) {
            (None, None) => Rest::Nothing,
            (None, Some(failure)) => {
                self.fail_late(&hold, failure);
                Rest::Nothing
            }
            // A panic has dropped the completion. If the function has caught it, that is all there is to tell.
            (Some(op), failure) => {
                let failure = failure.unwrap_or_else(|| hold.task().failed_by(Cause::LostCompletion));
                let _ = hold.task().async_state().map(AsyncState::resolve);
                self.complete(op, Err(failure), false, ready)
            }
        }
    }

    /// Notes the failure of an asynchronous function whose completion lives, or has been used.
    #[cold]
    fn fail_late(self: &Arc<Self>, op: &Op<Task>, failure: OpError) {
        let Some(progress) = op.task().async_state() else { unreachable!("the operation is asynchronous") };
        // SAFETY: once, by the thread that ran the function.
        if let Err(failure) = unsafe { progress.fail(failure) } {
            // The operation has ended; its function's failure must not hide.
            failure.keep(&self.failures);
            self.let_go(op, || drop(failure));
        }
    }

    /// Completes an operation that was successful and of which nobody has to be told, not even devices.
    #[inline(always)]
    fn complete_plainly(&self, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Ticket {
        op.each_access(|access| {
            if access.mode().is_write() {
                // SAFETY: the operation is not passed on yet, so it holds its variables.
                unsafe { VarCell::of(access).mutated() };
            }
        });
        let ticket = op.task().ticket;
        tracker::end(op, ready);
        pause::at(Point::Completed);
        ticket
    }

    /// Completes an operation with `result` and adds what becomes ready by it to `ready`. Its function is `unused` if it has
    /// not run.
    #[inline(never)]
    pub(crate) fn complete(
        &self,
        op: OpRef<Task>,
        mut result: Result<(), OpError>,
        unused: bool,
        ready: &mut ReadyList<Task>,
    ) -> Rest {
        if self.is_forked() {
            // The function, or a completion, of an operation of the parent's: what it did is done there.
            std::mem::forget(result);
            return Rest::Nothing;
        }
        let mut ended = Vec::new();
        if op.task().has(flag::SILENT | flag::DEVICE) {
            self.note_special(&op, &mut result, &mut ended);
        } else {
            match &result {
                Ok(()) => self.count_mutations(&op, &mut ended),
                Err(failure) => self.fail_variables(&op, failure),
            }
        }
        if unused || result.is_err() || !ended.is_empty() || op.task().has(flag::REPORTS) {
            let op = tracker::complete(op, ready);
            pause::at(Point::Completed);
            return Rest::Tell(Told::new(op, result, ended, unused));
        }
        let ticket = op.task().ticket;
        tracker::end(op, ready);
        pause::at(Point::Completed);
        Rest::Count(ticket)
    }

    /// What [`complete`](Self::complete) begins with, for an operation that leaves its variables' state alone or is a
    /// device's.
    fn note_special(&self, op: &Op<Task>, result: &mut Result<(), OpError>, ended: &mut Vec<OpError>) {
        match result {
            Ok(()) if op.task().has(flag::SILENT) => {}
            Err(failure) if op.task().has(flag::SILENT) => failure.keep(&self.failures),
            Ok(()) => {
                self.clear_overwritten(op, ended);
                self.count_on_device(op);
            }
            Err(failure) => {
                let own = failure.clone();
                *failure = self.fail_on_device(op, own.clone());
                ended.push(own);
            }
        }
    }

    /// What is left to do for an operation when its successors have been placed: all of it.
    pub(crate) fn to_tell(self: &Arc<Self>, rest: Rest) -> Rest {
        if !removed(Step::PlaceBeforeTelling) {
            return rest;
        }
        self.finish(rest);
        Rest::Nothing
    }

    /// Does what is left to do for an operation whose successors have been placed.
    pub(crate) fn finish(self: &Arc<Self>, rest: Rest) {
        match rest {
            Rest::Nothing => {}
            Rest::Count(ticket) => self.count_out(ticket),
            Rest::Tell(told) if told.is_for_program() && self.leaves_to_workers() => {
                self.hand_over(move |core| core.let_go_of(told));
            }
            Rest::Tell(told) => self.let_go_of(told),
        }
    }

    /// Whether this thread has workers run code of the program's that may wait: that of a device's lane must not stand still.
    fn leaves_to_workers(&self) -> bool {
        worker_thread::serves_device() && self.has_workers()
    }

    /// Has a worker run `f`, or runs it here if the engine is closed meanwhile.
    #[cold]
    pub(super) fn hand_over(self: &Arc<Self>, f: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let mut spec = Spec::internal("tell", i32::MAX, flag::NO_SKIP | flag::SILENT);
        let tell = move |cx: &Call<'_>| {
            f(cx.core());
            Ok(())
        };
        let pushed = self.push(&mut spec, Location::caller(), &mut [], FnJob::new(tell));
        debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
    }

    /// Ends an operation that was complete for the tracker before it was, which has given up `ended` failures.
    pub(crate) fn conclude(op: Hold<Task>, result: Result<(), OpError>, ended: Vec<OpError>) -> Rest {
        Rest::Tell(Told::new(op, result, ended, false))
    }

    /// Runs what an operation has left to the program's own code, and counts it out.
    fn let_go_of(self: &Arc<Self>, told: Told) {
        let Told { op, result, ended, unused, aftermath } = told;
        if unused {
            // SAFETY: this thread ends the operation.
            self.let_go(&op, || unsafe { op.discard() });
        }
        if !aftermath.is_none() {
            self.let_go(&op, || aftermath.run());
        }
        if result.is_err() || !ended.is_empty() {
            self.let_go(&op, || drop((result, ended)));
        }
        pause::at(Point::CompleteBeforeRetire);
        let ticket = op.task().ticket;
        drop(op);
        self.count_out(ticket);
    }

    /// Runs `f`, which is the program's own code, for an operation that has passed its variables on; a panic there becomes a
    /// failure that `wait_for_all` reports.
    fn let_go(self: &Arc<Self>, op: &Op<Task>, f: impl FnOnce()) {
        // It may take its time.
        worker_thread::share_slot();
        if let Err(payload) = panics::catch(|| frame::enter(self, op, Has::Nothing, |_| f()))
            && !self.is_forked()
        {
            op.task().failed_by_panic(payload).keep(&self.failures);
        }
    }

    /// Counts an operation out, and wakes the futures that have waited for that.
    #[inline(always)]
    pub(crate) fn count_out(self: &Arc<Self>, ticket: Ticket) {
        if let Some(wakers) = self.pending.leave(ticket) {
            self.wake(wakers);
        }
    }

    /// Wakes futures that wait for all.
    #[cold]
    fn wake(self: &Arc<Self>, wakers: Wakers) {
        // Not when the workers may have ended: the operation would run here, and when it is counted out it would wake whoever
        // is to end the engine, who finds the operation pending and asks to be woken again, and so on.
        if self.leaves_to_workers() || removed(Step::WakeHereOnceClosed) && worker_thread::serves_device() {
            return self.hand_over(|_| wakers.wake());
        }
        worker_thread::share_slot();
        frame::enter_after(self, || wakers.wake());
    }

    /// Runs an operation of a device on this thread, in the naive engine: to its end on the device.
    #[cold]
    fn run_on_device(self: &Arc<Self>, op: OpRef<Task>, ready: &mut ReadyList<Task>) -> Rest {
        let context = self.gpus.context_of(op.task().lane);
        let Some(gpu) = self.gpus.gpu(context) else { unreachable!("routes are to devices of the engine") };
        let mut stream = gpu.take_stream(context);
        let failure = match self.disposition_at(&op, context) {
            Disposition::Run => None,
            Disposition::Skip(failure) => Some(failure),
            Disposition::Forward(_) | Disposition::Discard => unreachable!("the operation was to run"),
        };
        if let Some(failure) = failure {
            gpu.put_back(stream);
            return self.skip(op, failure, ready);
        }
        let mut result = self.call_on(&op, &mut stream);
        if self.is_forked() {
            // Neither is the stream dropped, whose device may be locked.
            std::mem::forget((stream, result));
            return Rest::Nothing;
        }
        // What the device calls, and the logger that is told of its loss, are a part of the operation.
        let mut end = || stream.finish().map_err(|error| gpu.lose(&error));
        let ended =
            frame::without_waits(NoWait::InDeviceFunction, || frame::enter(self, &op, Has::Variables, |_| end()));
        if let Err(loss) = ended {
            let failure = op.task().failed_by(Cause::Device(loss));
            result = result.and(Err(failure));
        }
        gpu.put_back(stream);
        self.complete(op, result, false, ready)
    }

    fn count_mutations(&self, op: &Op<Task>, ended: &mut Vec<OpError>) {
        for access in op.accesses().iter().filter(|access| access.mode().is_write()) {
            let cell = VarCell::of(access);
            // SAFETY: the operation is not passed on yet, so it holds its variables.
            unsafe { cell.mutated() };
            if access.mode() == Mode::Overwrite && cell.fault().has_failed() {
                // SAFETY: as above, and as an operation of the CPU it comes after what is complete on devices.
                let failure = unsafe { cell.fault().set_failure(None) };
                ended.extend(failure.inspect(OpError::settle));
            }
        }
    }

    /// Clears what an operation of a device overwrites, when it was issued: operations that come after it on the device may
    /// run.
    pub(crate) fn clear_overwritten(&self, op: &Op<Task>, ended: &mut Vec<OpError>) {
        for access in op.accesses() {
            let cell = VarCell::of(access);
            if access.mode() == Mode::Overwrite && cell.fault().has_failed() {
                // SAFETY: the operation is not passed on yet, so it holds its variables; lanes take turns.
                let cleared = self.fault_lock.take(|| unsafe { cell.fault().set_failure(None) });
                ended.extend(cleared.inspect(OpError::settle));
            }
        }
    }

    /// Counts the mutations of an operation that the device has done.
    pub(crate) fn count_on_device(&self, op: &Op<Task>) {
        for access in op.accesses().iter().filter(|access| access.mode().is_write()) {
            VarCell::of(access).mutated_on_device();
        }
    }

    /// As [`fail_variables`](Self::fail_variables), for a device's operation, which may have passed its variables on. Gives
    /// the failure, which where the device is lost is that of another operation, if the loss has failed one of the variables
    /// already.
    pub(crate) fn fail_on_device(&self, op: &Op<Task>, failure: OpError) -> OpError {
        self.fault_lock.take(|| {
            // SAFETY: it is the lane's turn.
            let failure_of = |access| unsafe { VarCell::of(access).fault().failure() };
            let known = op.accesses().iter().filter_map(failure_of).find(|known| known.loss().is_some());
            let failure = known.filter(|_| failure.loss().is_some()).unwrap_or(failure);
            self.fail_variables(op, &failure);
            failure
        })
    }

    /// Fails a device's operation that was under way when the device was lost, by `error`; gives the failure.
    pub(crate) fn lose_on_device(&self, op: &Op<Task>, error: &DeviceError) -> OpError {
        self.fail_on_device(op, op.task().failed_by(Cause::Device(error.clone())))
    }

    /// Marks what an operation mutates failed, where it has not failed already.
    fn fail_variables(&self, op: &Op<Task>, failure: &OpError) {
        // Before anybody can see it on a variable.
        failure.keep(&self.failures);
        for access in op.accesses().iter().filter(|access| access.mode().is_write()) {
            let cell = VarCell::of(access);
            if !cell.fault().has_failed() {
                // SAFETY: the operation is not passed on yet, so it holds its variables; or a device's lane calls this, for
                // which nobody else looks before the lane's timeline says so but other lanes, and they take turns.
                let none = unsafe { cell.fault().set_failure(Some(failure.clone())) };
                debug_assert!(none.is_none(), "the variable had not failed");
            }
        }
    }

    /// Ends an asynchronous operation, by its completion.
    pub(crate) fn resolve(self: &Arc<Self>, op: OpRef<Task>, result: Result<(), Cause>) {
        if self.is_forked() {
            return std::mem::forget(result);
        }
        let early = op.task().async_state().and_then(AsyncState::resolve);
        let own = result.map_err(|cause| op.task().failed_by(cause));
        let (result, unused) = match early {
            Some(failure) => (Err(failure), own.err()),
            None => (own, None),
        };
        // It comes second, and must not hide either.
        unused.iter().for_each(|failure| failure.keep(&self.failures));
        let mut ready = ReadyList::default();
        let mut rest = self.complete(op, result, false, &mut ready);
        if let Rest::Tell(told) = &mut rest {
            told.ended.extend(unused);
        }
        let rest = self.to_tell(rest);
        self.dispatch_ready(&mut ready, Rests::from_iter([rest]));
    }
}
