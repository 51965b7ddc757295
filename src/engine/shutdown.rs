//! How an engine ends.

use std::{
    sync::{Arc, Weak},
    task::{Wake, Waker},
    time::Instant,
};

use crate::{
    engine::{
        core::{Core, phase},
        drain, frame, wait,
    },
    error::{build::ShutdownError, op::OpError},
    notify::pending::Waited,
    sync::Ordering::Relaxed,
    system::panics,
    testing::weaken::{Step, removed},
};

impl Core {
    /// Refuses pushes from now on; with `cancel`, what has not started does not start any more.
    pub(crate) fn begin_shutdown(&self, cancel: bool) {
        let phase = if cancel { phase::CANCELLING } else { phase::DRAINING };
        // Relaxed: whoever enters the count behind the drain that follows has acquired it with the count (edge `open`).
        self.phase.fetch_max(phase, Relaxed);
    }

    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: a snapshot.
        self.phase.load(Relaxed) == phase::OPEN
    }

    /// Whether the threads may have ended. If they may not while an operation is counted in, they stay until it is counted
    /// out: a shutdown closes the engine first, waits once more, and only then lets the threads end.
    pub(super) fn is_closed(&self) -> bool {
        // Relaxed: as in `begin_shutdown`.
        self.phase.load(Relaxed) >= phase::CLOSED
    }

    /// Refuses the pushes of operations as well, since nothing was pending: code of the program's that the engine runs
    /// from now on, as in a deletion, would push for threads that are about to end.
    fn close(&self) {
        // Relaxed: as in `begin_shutdown`; the drain goes on.
        self.phase.fetch_max(phase::CLOSED, Relaxed);
    }

    /// Waits until nothing is pending and the threads have ended. The shutdown must have begun.
    pub(crate) fn finish_shutdown(self: &Arc<Self>, deadline: Option<Instant>) -> Result<(), ShutdownError> {
        self.drain(deadline)?;
        self.end(deadline);
        self.threads.join(deadline).map_err(ShutdownError::ThreadsLeft)
    }

    /// As [`finish_shutdown`](Self::finish_shutdown), for the last handle, which does not wait for threads that a shutdown
    /// has left behind. Nor does it wait inside the program's code that an engine runs, of whichever: operations of two
    /// engines may each drop the last handle of the other one.
    pub(crate) fn finish_by_drop(self: &Arc<Self>) {
        if frame::in_program() {
            self.end_in_background();
        } else if self.drain(None).is_ok() {
            self.end(None);
            if !self.threads.has_left_behind() {
                // There is no deadline.
                let _ = self.threads.join(None);
            }
        }
    }

    /// Waits until nothing is pending, or has the engine end by itself if the caller must not wait.
    fn drain(self: &Arc<Self>, deadline: Option<Instant>) -> Result<(), ShutdownError> {
        debug_assert!(!self.is_open());
        if self.is_forked() {
            return Err(ShutdownError::Forked);
        }
        // An operation of another engine gives its worker away meanwhile; it may be what this one needs.
        let may_not_wait = wait::admit_wait().is_err() || drain::works_for(self) || self.threads.owns_thread();
        if may_not_wait || self.make_way().is_err() {
            self.end_in_background();
            return Err(ShutdownError::InsideOperation);
        }
        loop {
            let closed = self.is_closed() || removed(Step::CloseAndWaitAgain);
            match self.pending.wait(deadline) {
                Waited::TimedOut => return Err(ShutdownError::TimedOut),
                Waited::Idle if closed => return Ok(()),
                Waited::Idle => self.close(),
                // Operations may have pushed others meanwhile, and may go on with that for ever.
                Waited::Over if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    return Err(ShutdownError::TimedOut);
                }
                Waited::Over => {}
            }
        }
    }

    /// Has the engine end when nothing is pending.
    fn end_in_background(self: &Arc<Self>) {
        if !self.is_forked() {
            Arc::new(End(Arc::downgrade(self))).wake();
        }
    }

    /// Lets the threads end, which nobody needs any more, and warns of a failure that nobody was told of.
    fn end(self: &Arc<Self>, deadline: Option<Instant>) {
        self.gpus.end();
        let failure = self.failures.to_warn_of();
        let failure = match (failure, deadline) {
            // The logger, and the error that it prints, may take longer than the caller has time.
            (Some(failure), Some(_)) => {
                let (core, for_thread) = (Arc::clone(self), failure.clone());
                let warned = self.threads.spawn_aside("raddle-shutdown".to_owned(), move || core.warn(for_thread));
                warned.is_err().then_some(failure)
            }
            (failure, _) => failure,
        };
        self.threads.end();
        if let Some(failure) = failure {
            self.warn(failure);
        }
    }

    /// Warns of `failure`. What the logger shuts down goes on by itself: it may be on a thread that is to end, or in a
    /// shutdown that has not come to its end.
    fn warn(self: &Arc<Self>, failure: OpError) {
        // The failure is dropped there as well.
        frame::enter_after(self, move || {
            panics::log!(Warn, "raddle: a failure that nobody was told of: {failure}");
        });
    }
}

/// Ends an engine without a thread that waits for it: whoever counts out the last operation does.
///
/// It need not keep the engine, since the threads that are to end do.
struct End(Weak<Core>);

impl Wake for End {
    fn wake(self: Arc<Self>) {
        let Some(core) = self.0.upgrade() else { return };
        let waker = Waker::from(self);
        loop {
            let closed = core.is_closed();
            if core.pending.poll_idle(&waker).is_pending() {
                return;
            }
            if closed {
                return core.end(None);
            }
            core.close();
        }
    }
}
