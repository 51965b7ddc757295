//! Groups of operations.

use std::{fmt, future::Future, ops::Deref, sync::Arc, time::Duration};

use crate::{
    api::{
        engine::{Engine, WeakEngine, deadline},
        op_builder::OpBuilder,
    },
    engine::core::Core,
    error::wait::WaitError,
    group::room,
    notify::claim::Cancel,
    op::group_core::GroupCore,
    values::Name,
    wait,
};

impl Engine {
    /// Creates a group of operations that can be waited for, counted and cancelled together.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let total = engine.var(0);
    /// let request = engine.group();
    /// for part in 1..=3 {
    ///     request.op("add").push(total.write(), move |total| *total += part)?;
    /// }
    /// request.wait()?;
    /// assert_eq!(engine.get(&total)?, 6);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn group(&self) -> Group {
        Group { core: Arc::clone(self.core()), shared: GroupCore::new(None) }
    }
}

/// A group of operations that can be waited for, counted and cancelled together, returned by [`Engine::group`].
///
/// Clones are handles to the same group. Groups form a tree: the operations of a [nested group](Self::group) also
/// belong to the groups around it. Neither dropping a handle nor waiting closes a group. A group imposes no order on
/// its operations. It does not keep the engine open, so an operation's function may capture a handle to the group and
/// push through it.
///
/// Any number of threads may push operations to a group. Once a wait for the group has returned `Ok` or
/// [`WaitError::Failed`], all effects of the awaited operations are visible.
///
/// A group takes about 400 bytes of memory and adds about 100 ns to each of its operations.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let (page, image) = (engine.var(String::new()), engine.var(Vec::new()));
/// let request = engine.group();
/// request.op("render").push(page.write(), |page| page.push_str("<h1>Looms</h1>"))?;
/// request.op("load").try_push(image.write(), |image| {
///     *image = std::fs::read("no such image")?;
///     Ok(())
/// })?;
/// let error = request.wait().unwrap_err(); // only the group's own error
/// assert!(error.to_string().starts_with("operation `load`"));
/// engine.wait_for_all()?; // the error was already reported
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Group {
    core: Arc<Core>,
    shared: Arc<GroupCore>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("is_cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

impl Group {
    /// Creates a handle to a group.
    pub(super) fn of(core: &Arc<Core>, shared: &Arc<GroupCore>) -> Self {
        Self { core: Arc::clone(core), shared: Arc::clone(shared) }
    }

    /// Returns a builder for an operation in this group. See [`Engine::op`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let request = engine.group();
    /// request.op("log").push((), |()| println!("a request"))?;
    /// request.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn op(&self, name: impl Into<Name>) -> OpBuilder<'_> {
        OpBuilder::in_group(&self.core, name.into(), &self.shared, ())
    }

    /// Returns a handle to the group's engine. The handle does not [keep the engine open](WeakEngine).
    #[must_use]
    pub fn engine(&self) -> WeakEngine {
        WeakEngine::new(&self.core)
    }

    /// Creates a group nested in this one. Its operations belong to both.
    ///
    /// An operation is counted, and its failure kept, in each group around it, so the time for this grows with the
    /// depth: a thousand groups deep, a push takes some 20 µs, and the end of an operation that fails some 150 µs.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let request = engine.group();
    /// let thumbnails = request.group();
    /// thumbnails.op("scale").push((), |()| {})?;
    /// request.wait()?; // also for the thumbnails
    /// thumbnails.cancel(); // but not the rest of the request
    /// assert!(!request.is_cancelled());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn group(&self) -> Self {
        Self { core: Arc::clone(&self.core), shared: GroupCore::new(Some(Arc::clone(&self.shared))) }
    }

    /// Limits the number of pending operations in the group, including those in nested groups. The limit belongs to the
    /// group, whichever handle sets it, and a later call replaces it; 0 is treated as 1. If the group or an enclosing
    /// group is full, a push to the group from outside operations is held back as if the engine were full; see
    /// [`EngineBuilder::max_pending`](crate::EngineBuilder::max_pending). For each additional thread that pushes to the
    /// group at the same moment, the limit may be exceeded by one operation.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let uploads = engine.group().max_pending(8);
    /// for part in 0..100 {
    ///     uploads.op("upload").push((), move |()| println!("part {part}"))?; // waits while 8 parts are pending
    /// }
    /// uploads.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "it returns the group"]
    pub fn max_pending(self, limit: usize) -> Self {
        room::limit_group(&self.core, &self.shared, limit.max(1) as u64);
        self
    }

    /// Lets at most this many of the group's operations run at a time, including those in nested groups: of the
    /// operations pushed through any handle from now on, as many as `jobs` may be between their start and their end,
    /// besides those whose places are lent.
    /// Only the first call for a group has an effect; 0 is treated as 1. See the [guide](crate::guide::resources).
    ///
    /// While a function waits, for a variable, a result, a group or the end of a scope, its place is lent to another
    /// operation. When the wait is over, the function goes on as soon as there is a place, but after 100 ms at the
    /// latest. A function in [`blocking`](crate::blocking) keeps its place. A future has a place only while it is
    /// polled: once it is woken, its next poll waits for a place like an operation that becomes ready, but a future
    /// that is asked to stop is dropped without one. A parent gives its place up when its own work has ended; each
    /// child takes one.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(4).build()?;
    /// let downloads = engine.group().jobs(2);
    /// for part in 0..10 {
    ///     downloads.op("download").push((), move |()| {
    ///         raddle::blocking(|| std::thread::sleep(std::time::Duration::from_millis(part))); // two at a time
    ///     })?;
    /// }
    /// downloads.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "it returns the group"]
    pub fn jobs(self, jobs: usize) -> Self {
        if self.core.live().is_ok() {
            self.core.resources().add(self.shared.set_bound(jobs));
        }
        self
    }

    /// Waits for every operation pushed to the group by any thread before the call. Inside an operation, a wait without
    /// a time limit first runs ready operations on which it depends, while the stack has room. If the wait is not over
    /// then, another thread takes over the worker; see [`blocking`](crate::blocking).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let frame = engine.group();
    /// frame.op("draw").push((), |()| {})?;
    /// frame.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`WaitError::Failed`] with the failure of the earliest-pushed operation among those that have failed
    /// since the last wait for the group. A later wait for the group returns none of these failures, and
    /// [`Engine::wait_for_all`] returns neither the failure returned here nor the others that originated in the group.
    /// A group keeps the failures of 1,024 operations, those pushed earliest. A skipped operation counts as failed,
    /// with the failure that caused the skip.
    ///
    /// Returns [`WaitError::WouldDeadlock`] if the wait would never return, for example inside an operation of the
    /// group or one on which an operation of the group depends, and [`WaitError::TooManyWaiting`] if no thread could
    /// take over the worker. Where waits are forbidden, returns [`WaitError::OnDevice`], [`WaitError::InDeletion`] or
    /// [`WaitError::InObserver`]. In a forked child, returns [`WaitError::Refused`].
    pub fn wait(&self) -> Result<(), WaitError> {
        wait::for_group(&self.core, &self.shared, None)
    }

    /// Like [`wait`](Self::wait), but waits for at most `timeout`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use std::time::Duration;
    ///
    /// let frame = engine.group();
    /// frame.op("draw").push((), |()| {})?;
    /// if frame.wait_timeout(Duration::from_millis(16)).is_err() {
    ///     frame.cancel(); // too late: cancel what has not started
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`wait`](Self::wait), and [`WaitError::TimedOut`]. After a timeout, the operations
    /// continue.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        wait::for_group(&self.core, &self.shared, deadline(Some(timeout)))
    }

    /// Like [`wait`](Self::wait), but returns a future, which covers the operations pushed before this call.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let request = engine.group();
    /// request.op("render").push((), |()| {})?;
    /// let rendered = async {
    ///     request.wait_async().await
    /// };
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(rendered)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_async(&self) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
        wait::for_group_async(&self.core, &self.shared)
    }

    /// Returns the number of pending operations in the group, including those in nested groups. An operation is pending
    /// from its push until it is complete and its wakers and drops have run. Operations that other threads push or
    /// complete during the call may or may not be counted. Always returns 0 in a forked child.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let frame = engine.group();
    /// frame.op("draw").push((), |()| {})?;
    /// frame.wait()?;
    /// assert_eq!(frame.pending(), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.core.live().map_or(0, |_| self.shared.pending().count())
    }

    /// Cancels all operations in the group and its nested groups that have not started, including those pushed later.
    /// Each fails with [`Cause::Cancelled`](crate::error::Cause::Cancelled) when its turn comes, and its function is
    /// then dropped. Operations that are [futures](OpBuilder::push_future) and have started are woken; their next poll
    /// drops them, and they fail. Other running operations can
    /// [check for](crate::OpContext::is_cancelled) or [await](crate::OpContext::cancelled) the cancellation.
    /// [Clean-ups](OpBuilder::cleanup) still run.
    ///
    /// Wakers of those who await the cancellation run inside this call.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let request = engine.group();
    /// request.cancel(); // the client has gone
    /// let page = engine.var(0);
    /// request.op("render").push(page.write(), |_| unreachable!("the operation was cancelled"))?;
    /// assert!(request.wait().is_err());
    /// assert!(engine.wait_for_var(&page).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel(&self) {
        self.cancel_by(Cancel::Loudly);
    }

    /// Like [`cancel`](Self::cancel), but the cancelled operations have no effect: their variables do not fail, and
    /// later operations run as if the cancelled ones had never been pushed. The handles of the cancelled operations
    /// return [`Cause::Cancelled`](crate::error::Cause::Cancelled). Futures that have started fail loudly even so;
    /// [`cancel_on_drop`](Self::cancel_on_drop) ignores these failures, too. If both methods are called, the first call
    /// takes effect.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let preview = engine.group();
    /// preview.cancel_quietly();
    /// let frame = engine.var(1);
    /// preview.op("shrink").push(frame.write(), |frame| *frame /= 2)?;
    /// preview.wait()?;
    /// assert_eq!(engine.get(&frame)?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel_quietly(&self) {
        self.cancel_by(Cancel::Quietly);
    }

    /// Returns a guard whose drop cancels the group [quietly](Self::cancel_quietly) and ignores its failures. Keep it
    /// in the future that answers a request: if the client leaves, the runtime drops the future, and what the request
    /// has pushed ends with it. The guard dereferences to the group.
    ///
    /// From the drop on, the failures that originate in the group or in a nested one count as reported, and so do those
    /// from before: [`Engine::wait_for_all`] and waits for enclosing groups do not return them. Waits for the group
    /// itself still do, and variables fail as they would without the guard. What must run or must not fail unnoticed
    /// once the request has been answered does not belong in the group.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::{WaitError, WeakEngine};
    /// use tokio::sync::oneshot;
    ///
    /// async fn answer(engine: WeakEngine, row: oneshot::Receiver<String>) -> Result<usize, WaitError> {
    ///     let request = engine.group().cancel_on_drop();
    ///     let page = engine.var(String::new());
    ///     request.op("fetch").try_push_future(page.write(), async move |mut page| {
    ///         *page = row.await?;
    ///         Ok(())
    ///     })?;
    ///     request.op("measure").submit(page.read(), |page| page.len())?.await
    /// }
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// let (_database, row) = oneshot::channel(); // the database does not answer
    /// runtime.block_on(async {
    ///     let client = tokio::spawn(answer(engine.downgrade(), row));
    ///     tokio::task::yield_now().await;
    ///     client.abort(); // the client leaves
    /// });
    /// # drop(runtime);
    /// engine.wait_for_all()?; // nothing is pending, and no failure is left
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the group is cancelled when the guard is dropped"]
    pub fn cancel_on_drop(self) -> CancelOnDrop {
        CancelOnDrop(self)
    }

    fn cancel_by(&self, how: Cancel) {
        if self.core.live().is_ok() {
            // Wakers of those that wait for the cancellation run here.
            wait::on_enough_stack(&self.core, || {
                self.shared.cancel(how);
                self.core.withdraw_cancelled(self.shared.resources());
            });
        }
    }

    /// Returns whether this group or an enclosing group was cancelled, by [`cancel`](Self::cancel) or
    /// [`cancel_quietly`](Self::cancel_quietly).
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled().is_some()
    }
}

/// A group that is cancelled, and whose failures are ignored, when this guard is dropped. Returned by
/// [`Group::cancel_on_drop`].
///
/// Other handles to the group do not delay the cancellation. In a forked child, the drop does nothing.
#[derive(Debug)]
#[must_use = "the group is cancelled when the guard is dropped"]
pub struct CancelOnDrop(Group);

impl Deref for CancelOnDrop {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.0
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if self.0.core.live().is_ok() {
            self.0.shared.ignore_failures();
            self.0.cancel_quietly();
        }
    }
}
