//! What waits do.

use std::{
    future::Future,
    panic::Location,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use crate::{
    engine::{
        core::Core,
        drain,
        frame::{self, Call, NoWait},
        push::Rejected,
        spec::{Entry, Refs, Spec},
        task::{Aftermath, Job, flag},
        variable::{VarCell, VarRef},
        worker_thread,
    },
    error::{
        op::{Cause, OpError},
        push::PushError,
        wait::WaitError,
    },
    notify::{
        oneshot::Oneshot,
        pending::{PendingWait, Waited},
    },
    tracker::Mode,
};

impl Core {
    /// Waits for what is pending on `var`; for its writers only if `for_reading`.
    pub(crate) fn wait_for_var(
        self: &Arc<Self>,
        var: VarRef<'_>,
        for_reading: bool,
        deadline: Option<Instant>,
        location: &'static Location<'static>,
    ) -> Result<(), WaitError> {
        match self.begin_wait(var, for_reading, location)? {
            Some(oneshot) => self.wait_by(&oneshot, |oneshot| oneshot.wait_shared(deadline)),
            None => Ok(()),
        }
    }

    /// Joins the last wait for a variable, or pushes one; `None` if nothing is pending and nothing has failed.
    pub(crate) fn begin_wait(
        self: &Arc<Self>,
        var: VarRef<'_>,
        for_reading: bool,
        location: &'static Location<'static>,
    ) -> Result<Option<Arc<Oneshot<()>>>, WaitError> {
        // Also if nothing is pending.
        self.admit_wait()?;
        let cell = var.cell();
        if cell.queue().owner() != self.mark() {
            return Err(PushError::ForeignVariable.into());
        }
        if frame::holds(VarCell::queue_ptr(var.ptr())) {
            return Err(WaitError::WouldDeadlock);
        }
        if cell.queue().is_idle(for_reading) && !self.is_faulty(cell, for_reading) {
            return Ok(None);
        }
        let on_device = self.lane_before_wait(cell, for_reading).is_some();
        if let Some(oneshot) = cell.waits().join(for_reading, on_device) {
            return Ok(Some(oneshot));
        }
        let oneshot = Oneshot::new();
        // A wait goes behind a deletion as well: it is told when the deletion is done.
        let flags = flag::INLINE | flag::NO_SKIP | flag::SILENT | flag::PASSES_CLOSED;
        let spec = Spec::internal("wait", 0, flags);
        let mode = if for_reading { Mode::Read } else { Mode::Await };
        let entry = Entry { cell: var.ptr(), mode, refs: Refs::None };
        let op = self.make(&spec, 0, location, &[entry], WaitJob::new(Arc::clone(&oneshot)))?;
        // Before the push, since the operation may have begun, and be forgotten, before that returns.
        cell.waits().remember(for_reading, op.hold(), Arc::clone(&oneshot));
        self.enqueue(op).map_err(Rejected::into_error)?;
        Ok(Some(oneshot))
    }

    /// That the calling thread may wait for this engine, whatever for.
    pub(crate) fn admit_wait(&self) -> Result<(), WaitError> {
        if self.is_forked() {
            return Err(PushError::Forked.into());
        }
        admit_wait()
    }

    /// Whether `cell` has failed, or devices have something left to do with it.
    fn is_faulty(&self, cell: &VarCell, for_reading: bool) -> bool {
        cell.fault().is_unsettled(|| self.lane_before_wait(cell, for_reading).is_some())
    }

    /// A lane of a device that has not completed what a wait that is pushed now would come after.
    fn lane_before_wait(&self, cell: &VarCell, for_reading: bool) -> Option<usize> {
        self.lane_before(cell, for_reading, |_| true)
    }

    /// Waits for an oneshot and takes it. An operation that waits gives its worker to another thread meanwhile.
    pub(crate) fn wait_outcome<R>(
        self: &Arc<Self>,
        oneshot: &Arc<Oneshot<R>>,
        deadline: Option<Instant>,
    ) -> Result<R, WaitError> {
        self.wait_by(oneshot, |oneshot| oneshot.wait(deadline))
    }

    /// As [`wait_outcome`](Self::wait_outcome), where `wait` does the waiting.
    fn wait_by<R>(
        self: &Arc<Self>,
        oneshot: &Arc<Oneshot<R>>,
        wait: impl FnOnce(&Oneshot<R>) -> Result<R, WaitError>,
    ) -> Result<R, WaitError> {
        self.admit_wait()?;
        if !oneshot.is_done() {
            if frame::sets(Arc::as_ptr(oneshot).cast()) {
                return Err(WaitError::WouldDeadlock);
            }
            self.make_way()?;
        }
        wait(oneshot)
    }

    /// Does what the calling thread has put off, for any engine: a caller that waits, or asks whether something is over, may
    /// wait for it.
    pub(crate) fn catch_up() {
        // What the function of a device operation has in hand is not complete when it returns, so nothing of the program's
        // may run inside it.
        if frame::in_device_function() {
            return;
        }
        while let Some((core, lost)) = frame::take_lost() {
            core.resolve(lost, Err(Cause::LostCompletion));
        }
        while let Some(core) = drain::engine_with_deferred() {
            core.run_deferred();
        }
    }

    /// The calling thread is about to wait: [catches up](Self::catch_up), and gives its worker to another thread.
    pub(super) fn make_way(&self) -> Result<(), WaitError> {
        Self::catch_up();
        worker_thread::yield_worker()?;
        self.threads.wake_yielded();
        Ok(())
    }

    /// Waits for every operation pushed before.
    pub(crate) fn wait_for_all(&self, deadline: Option<Instant>) -> Result<(), WaitError> {
        self.admit_wait()?;
        if drain::works_for(self) {
            return Err(WaitError::WouldDeadlock);
        }
        self.make_way()?;
        match self.pending.wait(deadline) {
            Waited::Idle | Waited::Over => self.all_well(),
            Waited::TimedOut => Err(WaitError::TimedOut),
        }
    }

    /// As [`wait_for_all`](Self::wait_for_all), as a future that covers what was pushed before this call.
    pub(crate) fn wait_for_all_async(self: &Arc<Self>) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
        let refused = self.admit_wait().err().or_else(|| drain::works_for(self).then_some(WaitError::WouldDeadlock));
        let mark = match refused {
            Some(error) => Err(error),
            None => Ok(self.pending.begin()),
        };
        WaitForAll { core: Arc::clone(self), mark }
    }

    /// The earliest failure that nobody knows of.
    fn all_well(&self) -> Result<(), WaitError> {
        match self.failures.take() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }
}

/// A wait for everything that was pushed before it was made.
struct WaitForAll {
    core: Arc<Core>,
    /// An error where it was refused.
    mark: Result<PendingWait, WaitError>,
}

impl Future for WaitForAll {
    type Output = Result<(), WaitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { core, mark } = &mut *self;
        if core.is_forked() {
            return Poll::Ready(Err(PushError::Forked.into()));
        }
        let mark = match mark {
            Ok(mark) => mark,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        Core::catch_up();
        core.pending.poll(mark, cx.waker()).map(|()| core.all_well())
    }
}

impl Drop for WaitForAll {
    fn drop(&mut self) {
        if let Ok(mark) = &mut self.mark {
            self.core.pending.end(mark);
        }
    }
}

/// That the calling thread may wait, whatever for.
pub(crate) fn admit_wait() -> Result<(), WaitError> {
    if worker_thread::serves_device() || frame::in_device_function() {
        Err(WaitError::OnDevice)
    } else if frame::kept() == Some(NoWait::InDeletion) {
        Err(WaitError::InDeletion)
    } else {
        Ok(())
    }
}

/// A wait for a variable: reports its failure, if it has one at this place in the order.
pub(crate) struct WaitJob {
    failure: Option<OpError>,
    /// Given up by `report`: it may be what keeps the user's error, which is dropped there.
    oneshot: Option<Arc<Oneshot<()>>>,
}

impl WaitJob {
    pub(crate) fn new(oneshot: Arc<Oneshot<()>>) -> Self {
        Self { failure: None, oneshot: Some(oneshot) }
    }
}

impl Job for WaitJob {
    const REPORTS: bool = true;

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        for access in cx.op().accesses() {
            let cell = VarCell::of(access);
            // While the variable cannot be freed.
            cell.waits().forget(cx.op());
            // SAFETY: the operation runs, so it has the right to read what it names, and comes after what devices write there.
            self.failure = unsafe { cell.fault().failure() };
        }
        Ok(())
    }

    /// Never called: a wait is not refused, skipped or cancelled.
    fn discard(&mut self) {}

    /// Not before: whoever waited may look at once whether the variable is idle.
    fn report(&mut self, _result: Result<(), &OpError>) -> Aftermath {
        let Some(oneshot) = self.oneshot.take() else { return Aftermath::default() };
        let wakers = oneshot.set(self.failure.take().map_or(Ok(()), Err));
        Aftermath::new(wakers, oneshot)
    }
}
