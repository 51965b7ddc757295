//! What waits do.

use std::{
    future::Future,
    panic::Location,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use super::{Core, Spec, push::Rejected};
use crate::{
    context,
    error::{Cause, PushError, WaitError},
    outcome::Outcome,
    tally::{Mark, Waited},
    task::{Await, Entry, Refs, flag},
    threads,
    tracker::Mode,
    variable::{Token, VarCell},
};

impl Core {
    /// Waits for what is pending on `token`; for its writers only if `for_reading`.
    pub(crate) fn wait_for_var(
        self: &Arc<Self>,
        token: &Token,
        for_reading: bool,
        deadline: Option<Instant>,
        location: &'static Location<'static>,
    ) -> Result<(), WaitError> {
        match self.begin_wait(token, for_reading, location)? {
            Some(outcome) => self.wait_by(&outcome, |outcome| outcome.wait_shared(deadline)),
            None => Ok(()),
        }
    }

    /// Joins the last wait for a variable, or pushes one; `None` if nothing is pending and nothing has failed.
    pub(crate) fn begin_wait(
        self: &Arc<Self>,
        token: &Token,
        for_reading: bool,
        location: &'static Location<'static>,
    ) -> Result<Option<Arc<Outcome<()>>>, WaitError> {
        // Also if nothing is pending.
        self.admit_wait()?;
        let cell = token.cell();
        if cell.queue().owner() != self.mark() {
            return Err(PushError::ForeignVariable.into());
        }
        if context::holds(token.ptr()) {
            return Err(WaitError::WouldDeadlock);
        }
        if cell.queue().is_idle(for_reading) && !self.is_troubled(cell, for_reading) {
            return Ok(None);
        }
        let on_device = self.lane_before_wait(cell, for_reading).is_some();
        if let Some(outcome) = cell.waits().join(for_reading, on_device) {
            return Ok(Some(outcome));
        }
        let outcome = Outcome::new();
        // A wait goes behind a deletion as well: it is told when the deletion is done.
        let flags = flag::INLINE | flag::NO_SKIP | flag::SILENT | flag::PASSES_CLOSED;
        let spec = Spec::internal("wait", 0, flags);
        let mode = if for_reading { Mode::Read } else { Mode::Await };
        let entry = Entry { cell: token.ptr(), mode, refs: Refs::None };
        let op = self.make(&spec, 0, location, &[entry], Await::new(Arc::clone(&outcome)))?;
        // Before the push, since the operation may have begun, and be forgotten, before that returns.
        cell.waits().remember(for_reading, op.hold(), Arc::clone(&outcome));
        self.enqueue(op).map_err(Rejected::into_error)?;
        Ok(Some(outcome))
    }

    /// That the calling thread may wait for this engine, whatever for.
    pub(crate) fn admit_wait(&self) -> Result<(), WaitError> {
        if self.is_forked() {
            return Err(PushError::Forked.into());
        }
        context::admit_wait()
    }

    /// Whether `cell` has failed, or devices have something left to do with it.
    fn is_troubled(&self, cell: &VarCell, for_reading: bool) -> bool {
        cell.trouble().is_unsettled(|| self.lane_before_wait(cell, for_reading).is_some())
    }

    /// A lane of a device that has not completed what a wait that is pushed now would come after.
    fn lane_before_wait(&self, cell: &VarCell, for_reading: bool) -> Option<usize> {
        self.lane_before(cell, for_reading, |_| true)
    }

    /// Waits for an outcome and takes it. An operation that waits gives its worker to another thread meanwhile.
    pub(crate) fn wait_outcome<R>(
        self: &Arc<Self>,
        outcome: &Arc<Outcome<R>>,
        deadline: Option<Instant>,
    ) -> Result<R, WaitError> {
        self.wait_by(outcome, |outcome| outcome.wait(deadline))
    }

    /// As [`wait_outcome`](Self::wait_outcome), where `wait` does the waiting.
    fn wait_by<R>(
        self: &Arc<Self>,
        outcome: &Arc<Outcome<R>>,
        wait: impl FnOnce(&Outcome<R>) -> Result<R, WaitError>,
    ) -> Result<R, WaitError> {
        self.admit_wait()?;
        if !outcome.is_done() {
            if context::sets(Arc::as_ptr(outcome).cast()) {
                return Err(WaitError::WouldDeadlock);
            }
            self.make_way()?;
        }
        wait(outcome)
    }

    /// Does what the calling thread has put off, for any engine: a caller that waits, or asks whether something is over, may
    /// wait for it.
    pub(crate) fn catch_up() {
        // What the function of a device operation has in hand is not complete when it returns, so nothing of the program's
        // may run inside it.
        if context::in_device_function() {
            return;
        }
        while let Some((core, lost)) = context::take_lost() {
            core.resolve(lost, Err(Cause::LostCompletion));
        }
        while let Some(core) = context::engine_with_deferred() {
            core.run_deferred();
        }
    }

    /// The calling thread is about to wait: [catches up](Self::catch_up), and gives its worker to another thread.
    pub(super) fn make_way(&self) -> Result<(), WaitError> {
        Self::catch_up();
        threads::yield_worker()?;
        self.crew.rouse();
        Ok(())
    }

    /// Waits for every operation pushed before.
    pub(crate) fn wait_for_all(&self, deadline: Option<Instant>) -> Result<(), WaitError> {
        self.admit_wait()?;
        if context::works_for(self) {
            return Err(WaitError::WouldDeadlock);
        }
        self.make_way()?;
        match self.tally.wait(deadline) {
            Waited::Idle | Waited::Over => self.all_well(),
            Waited::TimedOut => Err(WaitError::TimedOut),
        }
    }

    /// As [`wait_for_all`](Self::wait_for_all), as a future that covers what was pushed before this call.
    pub(crate) fn wait_for_all_async(self: &Arc<Self>) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
        let refused = self.admit_wait().err().or_else(|| context::works_for(self).then_some(WaitError::WouldDeadlock));
        let mark = match refused {
            Some(error) => Err(error),
            None => Ok(self.tally.begin()),
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
    mark: Result<Mark, WaitError>,
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
        if core.tally.poll(mark, cx.waker()) { Poll::Ready(core.all_well()) } else { Poll::Pending }
    }
}

impl Drop for WaitForAll {
    fn drop(&mut self) {
        if let Ok(mark) = &mut self.mark {
            self.core.tally.end(mark);
        }
    }
}
