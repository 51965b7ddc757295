//! The shutdown of an engine.
//!
//! | phase | pushes that are accepted | next |
//! |---|---|---|
//! | open, observed, bounded | all, except those of observers; an engine with a limit holds some back ([`room`]) | draining or cancelling, by [`begin`] |
//! | draining | those made by the engine's operations, those of children, and the engine's own | cancelling, closed |
//! | cancelling | the engine's own; operations that have not started fail, and those that have are asked to stop, except clean-ups | closed |
//! | closed | the engine's own; such operations run on the pushing thread | - |
//!
//! A shutdown waits until no operation is pending, closes the engine, and waits again, since an operation counted
//! before the engine was closed still needs the engine's workers. Then the threads end.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

use crate::{
    context::ready_loop,
    engine::{
        core::{Core, phase},
        shuffle, stop,
    },
    error::{build::ShutdownError, op::OpError},
    group::room,
    notify::{
        oneshot::{Oneshot, Waiter},
        pending::WaitEnd,
        wakers::Wakers,
    },
    op::frame,
    sync::{
        Ordering::Relaxed,
        edge::{engine_step, removed},
    },
    system::panics,
    wait::{self, regain::regain_worker},
};

/// Starts refusing pushes. If `cancel` is `true`, operations that have not started fail, and those that have are asked
/// to stop, except clean-ups.
pub(crate) fn begin(core: &Arc<Core>, cancel: bool) {
    let phase = if cancel { phase::CANCELLING } else { phase::DRAINING };
    // Relaxed: an operation counted after the wait that follows this call has acquired the phase with the count
    // (edge `open`).
    core.phase.fetch_max(phase, Relaxed);
    if !core.is_forked() {
        room::end_waits_for_room(core);
        if cancel {
            wait::on_enough_stack(core, || {
                core.give_stop_signals();
                core.withdraw_cancelled(core.resources());
            });
        }
    }
}

/// Makes the engine refuse all pushes but its own. Called when no operation is pending. Without this, program code
/// that the engine still runs, such as the function of a deletion, could push to threads that are about to end.
fn close(core: &Core) {
    // Relaxed: an operation counted later has acquired the phase with the count (edge `open`).
    core.phase.fetch_max(phase::CLOSED, Relaxed);
}

/// Waits until no operation is pending and the threads have ended, or until `deadline`. The shutdown must have
/// begun.
pub(crate) fn finish(core: &Arc<Core>, deadline: Option<Instant>) -> Result<(), ShutdownError> {
    let ended = drain(core, deadline).and_then(|()| {
        end(core, deadline);
        core.threads.join(deadline).map_err(ShutdownError::ThreadsLeft)?;
        core.recording().and_then(|recording| recording.file_error()).map_or(Ok(()), Err)
    });
    regain_worker(deadline);
    ended
}

/// Finishes a shutdown as [`finish`] does, for the drop of the last handle. Does
/// not wait for threads left behind by an earlier shutdown, nor does it wait inside program code run by any engine,
/// since operations of two engines may each drop the last handle to the other engine.
pub(crate) fn finish_by_drop(core: &Arc<Core>) {
    if frame::in_program() {
        end_in_background(core);
    } else if drain(core, None).is_ok() {
        end(core, None);
        if !core.threads.has_left_behind() {
            // The join cannot time out, since there is no deadline.
            let _ = core.threads.join(None);
        }
    }
}

/// Prepares the calling thread to wait for all of the engine's functions. Returns an error if the thread works for
/// the engine or was started for it, must not wait, or cannot hand over its worker.
pub(super) fn make_way_outside(core: &Core) -> Result<(), ShutdownError> {
    // An operation of another engine hands over its worker before waiting, since this engine may depend on that
    // worker. After the wait, the operation receives a worker again.
    let may_not_wait = wait::check_thread().is_err() || ready_loop::works_for(core) || core.threads.owns_thread();
    if !may_not_wait && wait::make_way(core).is_ok() {
        return Ok(());
    }
    core.live()?;
    Err(ShutdownError::InsideOperation)
}

/// Waits until no operation is pending, and closes the engine. If the caller must not wait, returns an error, and
/// the engine ends in the background.
fn drain(core: &Arc<Core>, deadline: Option<Instant>) -> Result<(), ShutdownError> {
    debug_assert!(!core.is_open());
    core.live()?;
    if let Err(error) = make_way_outside(core) {
        end_in_background(core);
        return Err(error);
    }
    stop::run_again(core);
    loop {
        let closed = core.is_closed() || removed(engine_step::CLOSE_AND_WAIT_AGAIN);
        match core.pending.wait(deadline) {
            WaitEnd::TimedOut => return Err(ShutdownError::TimedOut),
            WaitEnd::Idle if closed => return Ok(()),
            WaitEnd::Idle => close(core),
            // Operations may keep pushing others indefinitely, so the deadline is checked here as well.
            WaitEnd::Over if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                return Err(ShutdownError::TimedOut);
            }
            WaitEnd::Over => {}
        }
    }
}

/// Lets the engine end once no operation is pending.
pub(super) fn end_in_background(core: &Arc<Core>) {
    if !core.is_forked() {
        stop::run_again(core);
        Arc::new(End { core: Arc::downgrade(core), told: None }).wake();
    }
}

/// Lets the engine end once no operation is pending, and returns a future that resolves when the engine's threads
/// have been told to end. The shutdown must have begun.
pub(crate) fn finish_async(core: &Arc<Core>) -> impl Future<Output = Result<(), ShutdownError>> + Send + use<> {
    let told = if let Err(forked) = core.live() {
        Err(forked.into())
    } else if ready_loop::works_for(core) {
        end_in_background(core);
        Err(ShutdownError::InsideOperation)
    } else {
        stop::run_again(core);
        let told = Oneshot::new();
        Arc::new(End { core: Arc::downgrade(core), told: Some(Arc::clone(&told)) }).wake();
        Ok(Waiter::new(told))
    };
    AsyncShutdown { core: Arc::clone(core), told }
}

/// Tells the threads to end, and logs a warning if a failure was never reported.
fn end(core: &Arc<Core>, deadline: Option<Instant>) {
    // Shuffling ends before the lanes do, since no entry may enter a lane that has ended.
    shuffle::end(core);
    core.deadlines.end();
    // A stop concurrent with the shutdown may have recalled workers or laid them aside. No threads are started for
    // those workers.
    core.threads.cancel_stop(|| core.gpus.end());
    drop(core.threads.aside().take());
    let failure = core.live().ok().and_then(|live| live.failures().to_warn_of());
    let failure = match (failure, deadline) {
        // Running the logger, or formatting the error that it prints, may take longer than the deadline allows.
        (Some(failure), Some(_)) => {
            let (shared, for_thread) = (Arc::clone(core), failure.clone());
            let warned = core.threads.spawn_aside("raddle-shutdown".to_owned(), move || warn(&shared, for_thread));
            warned.is_err().then_some(failure)
        }
        (failure, _) => failure,
    };
    core.threads.end();
    if let Some(failure) = failure {
        warn(core, failure);
    }
    core.recording().into_iter().for_each(|recording| recording.end());
}

/// Ends the threads of an engine whose workers could not all be started.
pub(crate) fn end_unstarted(core: &Core) {
    core.recording().into_iter().for_each(|recording| recording.end());
    core.threads.end();
    // The join cannot time out, since there is no deadline.
    let _ = core.threads.join(None);
}

/// Logs a warning about `failure`. An engine shut down by the logger ends in the background, since the logger may
/// run on one of that engine's threads or inside its shutdown.
fn warn(core: &Arc<Core>, failure: OpError) {
    // The closure drops the failure as well.
    frame::enter_after(core, move || {
        panics::log!(Warn, "raddle: the engine was shut down with a failure that was never reported: {failure}");
    });
}

/// A waker that ends an engine for whose end no thread waits: the thread that counts out the last operation wakes it.
///
/// A weak reference suffices, since the engine is kept alive by its threads, and by completions and guards.
struct End {
    core: Weak<Core>,
    /// Set when the threads have been told to end.
    told: Option<Arc<Oneshot<()>>>,
}

impl Wake for End {
    fn wake(self: Arc<Self>) {
        let Some(core) = self.core.upgrade() else { return };
        let told = self.told.clone();
        let waker = Waker::from(self);
        loop {
            let closed = core.is_closed();
            if core.pending.poll_idle(&waker).is_pending() {
                return;
            }
            if closed {
                end(&core, None);
                return told.and_then(|told| told.set(Ok(())).ok().flatten()).into_iter().for_each(Wakers::wake);
            }
            close(&core);
        }
    }
}

/// A shutdown that proceeds in the background, whether or not it is awaited.
struct AsyncShutdown {
    core: Arc<Core>,
    /// `Ok`: resolves when the threads have been told to end. `Err`: why the shutdown cannot be awaited.
    told: Result<Waiter<()>, ShutdownError>,
}

impl Future for AsyncShutdown {
    type Output = Result<(), ShutdownError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.told.is_ok() {
            wait::catch_up();
        }
        // Checked last, since a deferred operation run on this thread may have forked the process.
        self.core.live()?;
        match &mut self.told {
            Ok(waiter) => {
                // The shutdown has no failure of its own.
                waiter.poll_shared(cx.waker()).map(|_| Ok(()))
            }
            Err(error) => Poll::Ready(Err(error.clone())),
        }
    }
}
