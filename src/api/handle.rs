//! The handle to a pushed operation.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use crate::{
    context::core_ref::CoreRef,
    engine::core::Core,
    error::{push_error::PushError, wait::WaitError},
    notify::{claim::Cancel, oneshot::Waiter, wakers::Wakers},
    op::{
        cancellable::{Cancellable, Function, Handled},
        waits::Begun,
    },
    sync::process::ProcessMark,
    trace::observer::ObservedAccess,
    wait,
};

/// A handle to a pushed operation. Threads can block on the operation's result, and async code can `.await` the handle.
///
/// Dropping the handle has no effect on the operation. Once a wait has returned the result, all effects of the
/// operation are visible, and later operations may use its variables.
///
/// An `.await` consumes the handle. To keep the handle, for instance to [cancel](Self::cancel) the operation after a
/// timeout, await `&mut handle`. A handle can be sent to other threads and captured by functions, but not cloned.
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
    waiter: HandleWaiter<R>,
    core: CoreRef,
}

/// The wait of a handle, for a result or for a box with one that is [large](super::large).
enum HandleWaiter<R> {
    Inline(Waiter<R, Cancellable<dyn Function>>),
    Boxed(Waiter<Box<R>, Cancellable<dyn Function>>),
}

/// Evaluates an expression on the waiter of a handle, whatever its result is.
macro_rules! on_waiter {
    ($of:expr, $waiter:ident => $expression:expr) => {
        match $of {
            HandleWaiter::Inline($waiter) => $expression,
            HandleWaiter::Boxed($waiter) => $expression,
        }
    };
}

impl<R> fmt::Debug for OpHandle<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpHandle").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<R> OpHandle<R> {
    pub(crate) fn new(oneshot: Arc<Handled<R>>, core: &Arc<Core>) -> Self {
        Self { waiter: HandleWaiter::Inline(Waiter::new(oneshot)), core: CoreRef::new(core) }
    }

    /// Creates a handle that takes the result out of the box.
    pub(super) fn of_boxed(oneshot: Arc<Handled<Box<R>>>, core: &Arc<Core>) -> Self {
        Self { waiter: HandleWaiter::Boxed(Waiter::new(oneshot)), core: CoreRef::new(core) }
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Result<R, WaitError> {
        match &mut self.waiter {
            HandleWaiter::Inline(waiter) => wait::for_handle(&self.core, waiter.oneshot_mut(), deadline),
            HandleWaiter::Boxed(waiter) => match wait::for_handle(&self.core, waiter.oneshot_mut(), deadline) {
                Ok(result) => Ok(*result),
                Err(error) => Err(error),
            },
        }
    }

    /// Returns whether the operation is complete or was cancelled. On a [`Naive`](crate::EngineKind::Naive) engine,
    /// this call runs the operation if its push was nested too deeply inside other operations to do so. In a forked
    /// child, it returns `true` for the parent's operations, since waits for them return immediately.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let handle = engine.op("nothing").submit((), |()| ())?;
    /// while !handle.is_done() {
    ///     std::hint::spin_loop();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.core.is_forked() || on_waiter!(&self.waiter, waiter => is_done(waiter))
    }

    /// Waits for the operation and takes its result.
    ///
    /// Inside an operation, a wait without a time limit first runs ready operations on which it depends, while the
    /// stack has room. If the wait is not over then, another thread takes over the worker; see
    /// [`blocking`](crate::blocking).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let answer = engine.op("answer").submit((), |()| 6 * 7)?;
    /// assert_eq!(answer.wait()?, 42);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`WaitError::Failed`] if the operation failed or was skipped or cancelled, [`WaitError::ValueTaken`] if
    /// an earlier call took the result, [`WaitError::WouldDeadlock`] if the wait would never return, or
    /// [`WaitError::TooManyWaiting`] if no thread could take over the worker. Where waits are forbidden, returns
    /// [`WaitError::OnDevice`], [`WaitError::InDeletion`] or [`WaitError::InObserver`]. In a forked child, returns
    /// [`WaitError::Refused`].
    pub fn wait(mut self) -> Result<R, WaitError> {
        self.wait_until(None)
    }

    /// Like [`wait`](Self::wait), but waits for at most `timeout`. The call can be repeated after
    /// [`WaitError::TimedOut`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::WaitError;
    /// use std::time::Duration;
    ///
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let mut handle = engine.op("receive").submit((), move |()| receiver.recv().unwrap_or(0))?;
    /// let timed_out = handle.wait_timeout(Duration::from_millis(1));
    /// assert!(matches!(timed_out, Err(WaitError::TimedOut)));
    /// sender.send(7)?;
    /// assert_eq!(handle.wait_timeout(Duration::from_secs(60))?, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`wait`](Self::wait), and [`WaitError::TimedOut`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<R, WaitError> {
        self.wait_until(Instant::now().checked_add(timeout))
    }
}

impl<R> OpHandle<R> {
    /// Drops the handle. Any failure that the handle would have returned counts as reported, so
    /// [`Engine::wait_for_all`](crate::Engine::wait_for_all) does not return it. The operation still runs, and any
    /// variables that fail because of it stay failed.
    ///
    /// If the handle is dropped without this call, `wait_for_all` returns any such failure.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let reply = engine.op("reply").try_submit((), |()| -> Result<u32, _> { Err("no such page".into()) })?;
    /// reply.ignore(); // the client has gone
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ignore(self) {
        if self.core.is_forked() {
            // Another thread of the parent process may have held the oneshot's lock at the fork.
            return;
        }
        on_waiter!(&self.waiter, waiter => {
            if let Some(Err(failure)) = waiter.oneshot().give_up(true) {
                failure.mark_reported();
            }
        });
    }
}

impl<R> OpHandle<R> {
    /// Returns the operation's accesses with their [places](ObservedAccess::place) in the one order of pushes, once the
    /// operation has started. Returns `None` before, if the operation does not start because it is skipped or
    /// cancelled, if it has no accesses, and if the engine has no [log](crate::EngineBuilder::log).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{Engine, replay::Log};
    ///
    /// let engine = Engine::builder().workers(1).log(&Log::new()).build()?;
    /// let total = engine.var(0);
    /// engine.op("first").push(total.write(), |total| *total += 1)?;
    /// let mut second = engine.op("second").submit(total.write(), |total| *total += 1)?;
    /// engine.wait_for_all()?;
    /// assert_eq!(second.places().map(|places| places[0].place), Some(Some(1)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn places(&self) -> Option<Vec<ObservedAccess>> {
        self.core.live().ok()?;
        on_waiter!(&self.waiter, waiter => waiter.oneshot().beside().places())
    }

    /// Cancels the operation if it has not started. Returns whether this call cancelled it. At most one call returns
    /// `true`.
    ///
    /// A cancelled operation never runs. Its function is dropped before this call returns, and waits on the handle
    /// return [`Cause::Cancelled`](crate::error::Cause::Cancelled) from then on. The operation's variables are
    /// unaffected until its turn comes. Those that it mutates then fail with the same error, and later operations that
    /// name them are by default skipped. If nothing else returns the error,
    /// [`Engine::wait_for_all`](crate::Engine::wait_for_all) does.
    ///
    /// The function of an operation that has started runs to completion, but can [check
    /// for](crate::OpContext::is_cancelled) or [await](crate::OpContext::cancelled) the cancellation to stop early. If
    /// the operation is a [future](crate::OpBuilder::submit_future) that has started, this call wakes the future; the
    /// next poll drops it, and the operation fails. A [clean-up](crate::OpBuilder::cleanup) cannot be cancelled.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::{WaitError, error::Cause};
    ///
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (sender, receiver) = std::sync::mpsc::channel::<()>();
    /// let frame = engine.var(0);
    /// engine.op("capture").push(frame.write(), move |_| _ = receiver.recv())?;
    /// let filter = engine.op("filter").submit(frame.write(), |frame| *frame += 1)?;
    /// assert!(filter.cancel(), "`filter` is queued behind the capture");
    /// let Err(WaitError::Failed(error)) = filter.wait() else { panic!("`filter` was cancelled") };
    /// assert!(matches!(error.cause(), Cause::Cancelled));
    /// drop(sender);
    /// assert!(engine.wait_for_var(&frame).is_err()); // the frame was not filtered
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel(&self) -> bool {
        self.cancel_by(Cancel::Loudly)
    }

    /// Like [`cancel`](Self::cancel), but the operation has no effect when its turn comes: its variables do not fail,
    /// later operations run as if it had never been pushed, and [`Engine::wait_for_all`](crate::Engine::wait_for_all)
    /// returns no error for it. If the operation has started, the two methods do the same.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (sender, receiver) = std::sync::mpsc::channel::<()>();
    /// let frame = engine.var(0);
    /// engine.op("capture").push(frame.write(), move |_| _ = receiver.recv())?;
    /// let preview = engine.op("preview").submit(frame.write(), |frame| *frame += 1)?;
    /// assert!(preview.cancel_quietly());
    /// drop((sender, preview));
    /// assert_eq!(engine.get(&frame)?, 0);
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel_quietly(&self) -> bool {
        self.cancel_by(Cancel::Quietly)
    }

    fn cancel_by(&self, how: Cancel) -> bool {
        let Ok(live) = self.core.live() else { return false };
        on_waiter!(&self.waiter, waiter => {
            let handled = waiter.oneshot();
            // Wakers and the drop of the function run here.
            wait::on_enough_stack(&self.core, || {
                handled.beside().cancel(how, live.failures(), |failure| {
                    handled.set(Err(failure)).into_iter().flatten().for_each(Wakers::wake);
                })
            })
        })
    }
}

impl<R> Drop for OpHandle<R> {
    /// Records that nobody will take the result, so that the operation drops its value before it is counted out. That
    /// cannot be left to the last reference, which the function of an operation that has ended may still have.
    fn drop(&mut self) {
        on_waiter!(&self.waiter, waiter => {
            let oneshot = waiter.oneshot();
            // In a forked child, another thread of the parent process may have held the oneshot's lock at the fork.
            if Arc::strong_count(oneshot) > 1 && !self.core.is_forked() {
                drop(oneshot.give_up(false));
            }
        });
    }
}

/// Returns whether the result is set. If it is not, runs the calling thread's deferred work, which may set it, and
/// checks again.
pub(super) fn is_done<R, T: ?Sized>(waiter: &Waiter<R, T>) -> bool {
    let is_done = || waiter.oneshot().is_done();
    is_done() || {
        wait::catch_up_and_go_on();
        is_done()
    }
}

impl<R> Future for OpHandle<R> {
    type Output = Result<R, WaitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.core.live()?;
        on_waiter!(&self.waiter, waiter => {
            if !is_done(waiter) {
                if let Err(error) = wait::check_kept_out(waiter.oneshot()) {
                    return Poll::Ready(Err(error));
                }
            }
        });
        match &mut self.waiter {
            HandleWaiter::Inline(waiter) => waiter.poll(cx.waker()),
            HandleWaiter::Boxed(waiter) => match ready!(waiter.poll(cx.waker())) {
                Ok(result) => Poll::Ready(Ok(*result)),
                Err(error) => Poll::Ready(Err(error)),
            },
        }
    }
}

/// A future that waits for a variable, returned by [`Engine::wait_for_var_async`](crate::Engine::wait_for_var_async),
/// [`Engine::wait_to_read_async`](crate::Engine::wait_to_read_async) and [`Var::ready`](crate::Var::ready).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let (camera, lidar) = (engine.var(0), engine.var(0));
/// engine.op("see").push(camera.write(), |camera| *camera += 1)?;
/// engine.op("scan").push(lidar.write(), |lidar| *lidar += 1)?;
/// let (seen, scanned) = (engine.wait_to_read_async(&camera), engine.wait_to_read_async(&lidar));
/// let both = async {
///     seen.await?;
///     scanned.await
/// };
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(both)?;
/// # Ok(())
/// # }
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct VarWait {
    waited: Waited,
    process: ProcessMark,
}

enum Waited {
    For(Waiter<()>),
    /// There was nothing to wait for.
    Not,
    Refused(WaitError),
}

impl VarWait {
    pub(crate) fn new(begun: Result<Option<Begun>, WaitError>) -> Self {
        let waited = match begun {
            Ok(Some(begun)) => Waited::For(Waiter::new(begun.oneshot)),
            Ok(None) => Waited::Not,
            Err(error) => Waited::Refused(error),
        };
        Self { waited, process: ProcessMark::current() }
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
        if self.process.is_foreign() {
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
