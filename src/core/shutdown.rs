//! How an engine ends.

use std::{sync::Arc, time::Instant};

use super::{Core, phase};
use crate::{
    context,
    error::ShutdownError,
    panics,
    sync::{Ordering::Relaxed, thread},
    threads,
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

    /// Waits until nothing is pending and ends the threads. The shutdown must have begun.
    pub(crate) fn finish_shutdown(self: &Arc<Self>, deadline: Option<Instant>) -> Result<(), ShutdownError> {
        debug_assert!(!self.is_open());
        if self.is_forked() {
            return Err(ShutdownError::Forked);
        }
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
        self.gpus.end();
        self.crew.end();
        Ok(())
    }
}
