//! The handle of a pushed operation.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use crate::{
    engine::core::Core,
    error::{push::PushError, wait::WaitError},
    notify::oneshot::{Oneshot, Waiter},
    sync::fork::ProcessMark,
};

/// The handle of a pushed operation: its result can be waited for, awaited, or left alone.
///
/// Dropping the handle has no effect on the operation. When a wait has returned, everything the operation did is visible,
/// and its variables have been passed on.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let words = engine.var(vec!["warp", "weft"]);
/// let count = engine.op("count").submit(words.read(), |words| words.len())?;
/// assert_eq!(count.wait()?, 2);
/// # Ok(())
/// # }
/// ```
#[must_use = "the operation runs anyway; use `push` if its result is not wanted"]
pub struct OpHandle<R> {
    waiter: Waiter<R>,
    core: Arc<Core>,
}

impl<R> fmt::Debug for OpHandle<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpHandle").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<R> OpHandle<R> {
    pub(crate) fn new(oneshot: Arc<Oneshot<R>>, core: Arc<Core>) -> Self {
        Self { waiter: Waiter::new(oneshot), core }
    }

    /// Whether the operation is done. On a [`Naive`](crate::EngineKind::Naive) engine this runs it first if it was pushed
    /// too deep inside other operations to run in its push. In a forked child it is `true` for what was pushed before the
    /// fork: a wait does not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.core.is_forked() || is_done(&self.waiter)
    }

    /// Waits for the operation and takes its result. Inside an operation, the worker goes on with others meanwhile.
    ///
    /// # Errors
    /// [`WaitError::Failed`] if the operation failed or was skipped, [`WaitError::WouldDeadlock`] if it is the calling one,
    /// [`WaitError::TooManyWaiting`].
    pub fn wait(self) -> Result<R, WaitError> {
        self.core.wait_for_result(self.waiter.oneshot(), None)
    }

    /// Waits for the operation at most for `timeout` and takes its result. It can be called again after
    /// [`WaitError::TimedOut`].
    ///
    /// # Errors
    /// As [`wait`](Self::wait), [`WaitError::TimedOut`], and [`WaitError::ValueTaken`] if an earlier call took the result.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<R, WaitError> {
        self.core.wait_for_result(self.waiter.oneshot(), Instant::now().checked_add(timeout))
    }
}

/// Whether the oneshot is there. If it is not, what the calling thread has put off is done first, since it may lead to it.
fn is_done<R>(waiter: &Waiter<R>) -> bool {
    let is_done = || waiter.oneshot().is_done();
    is_done() || {
        Core::catch_up();
        is_done()
    }
}

impl<R> Future for OpHandle<R> {
    type Output = Result<R, WaitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.core.is_forked() {
            return Poll::Ready(Err(PushError::Forked.into()));
        }
        is_done(&self.waiter);
        self.waiter.poll(cx.waker())
    }
}

/// A wait for a variable, to be awaited; from [`Engine::wait_for_var_async`](crate::Engine::wait_for_var_async) and its
/// siblings.
#[must_use = "futures do nothing unless awaited"]
pub struct VarWait {
    waited: Waited,
    birth: ProcessMark,
}

enum Waited {
    For(Waiter<()>),
    /// Nothing was pending.
    Not,
    Refused(WaitError),
}

impl VarWait {
    pub(crate) fn new(begun: Result<Option<Arc<Oneshot<()>>>, WaitError>) -> Self {
        let waited = match begun {
            Ok(Some(oneshot)) => Waited::For(Waiter::new(oneshot)),
            Ok(None) => Waited::Not,
            Err(error) => Waited::Refused(error),
        };
        Self { waited, birth: ProcessMark::current() }
    }
}

impl fmt::Debug for VarWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VarWait").finish_non_exhaustive()
    }
}

impl Future for VarWait {
    type Output = Result<(), WaitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.birth.is_foreign() {
            return Poll::Ready(Err(PushError::Forked.into()));
        }
        match &mut self.waited {
            Waited::For(waiter) => {
                is_done(waiter);
                waiter.poll_shared(cx.waker())
            }
            Waited::Not => Poll::Ready(Ok(())),
            Waited::Refused(error) => Poll::Ready(Err(error.clone())),
        }
    }
}
