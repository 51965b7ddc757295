//! What waits do.

use std::{
    future::{Future, poll_fn},
    panic::Location,
    sync::Arc,
    task::Poll,
    time::Instant,
};

use super::{Core, Spec};
use crate::{
    context,
    error::{Cause, PushError, WaitError},
    outcome::Outcome,
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
        if self.is_forked() {
            return Err(PushError::Forked.into());
        }
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
        let outcome = Outcome::new();
        // A wait goes behind a deletion as well: it is told when the deletion is done.
        let flags = flag::INLINE | flag::NO_SKIP | flag::SILENT | flag::PASSES_CLOSED;
        let spec = Spec::internal("wait", 0, flags);
        let mode = if for_reading { Mode::Read } else { Mode::Await };
        let entry = Entry { cell: token.ptr(), mode, refs: Refs::None };
        self.push_normalised(&spec, 0, location, &[entry], Await::new(Arc::clone(&outcome)))?;
        Ok(Some(outcome))
    }

    /// Whether `cell` has failed, or devices have something left to do with it.
    fn is_troubled(&self, cell: &VarCell, for_reading: bool) -> bool {
        cell.trouble().is_unsettled(|| self.lane_before(cell, for_reading, |_| true).is_some())
    }

    /// Waits for an outcome. An operation that waits gives its worker to another thread meanwhile.
    pub(crate) fn wait_outcome<R>(
        self: &Arc<Self>,
        outcome: &Arc<Outcome<R>>,
        deadline: Option<Instant>,
    ) -> Result<R, WaitError> {
        if self.is_forked() {
            return Err(PushError::Forked.into());
        }
        if !outcome.is_done() {
            if context::sets(Arc::as_ptr(outcome).cast()) {
                return Err(WaitError::WouldDeadlock);
            }
            if context::in_device_function() {
                return Err(WaitError::OnDevice);
            }
            // It may be what is to be waited for.
            while let Some(lost) = context::take_lost(self) {
                self.resolve(lost, Err(Cause::LostCompletion));
            }
            self.run_all(&mut context::take_deferred(self), false);
            threads::yield_worker()?;
            self.crew.rouse();
        }
        outcome.wait(deadline)
    }

    /// Waits for every operation pushed before.
    pub(crate) fn wait_for_all(&self, deadline: Option<Instant>) -> Result<(), WaitError> {
        if self.is_forked() {
            return Err(PushError::Forked.into());
        }
        if context::in_operation_of(self) {
            return Err(WaitError::WouldDeadlock);
        }
        threads::yield_worker()?;
        self.crew.rouse();
        match self.tally.wait(deadline) {
            Some(_) => self.all_well(),
            None => Err(WaitError::TimedOut),
        }
    }

    /// As [`wait_for_all`](Self::wait_for_all), as a future that covers what was pushed before this call.
    pub(crate) fn wait_for_all_async(self: &Arc<Self>) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
        let core = Arc::clone(self);
        let inside = context::in_operation_of(self);
        let mut mark = if inside || self.is_forked() { None } else { self.tally.begin() };
        poll_fn(move |cx| {
            if core.is_forked() {
                Poll::Ready(Err(PushError::Forked.into()))
            } else if inside {
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
}
