//! Groups of operations.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use crate::{
    api::{
        engine::{Engine, deadline},
        op_builder::OpBuilder,
    },
    engine::{core::Core, group},
    error::wait::WaitError,
    notify::claim::Cancel,
    values::name::Name,
};

impl Engine {
    /// Creates a group of operations, which are waited for, counted and cancelled together.
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
        Group { core: Arc::clone(self.core()), shared: group::Group::new(None) }
    }
}

/// A group of operations that are waited for, counted and cancelled together; from [`Engine::group`].
///
/// Clones are handles to the same group. Groups form a tree: the operations of a [group inside](Self::group) a group
/// belong to both. Neither the drop of a handle nor a wait closes a group. A group does not order its operations, and
/// does not keep the engine open, so the function of an operation may capture a handle and push through it.
///
/// Operations of one group may be pushed by any number of threads. When a wait has returned, everything that the
/// awaited operations have done is visible.
///
/// A group takes about 3 KiB of memory, and an operation in it takes about 100 ns longer than others.
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
/// let error = request.wait().unwrap_err(); // the group's own error, and no other's
/// assert!(error.to_string().starts_with("operation `load`"));
/// engine.wait_for_all()?; // it was reported
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Group {
    core: Arc<Core>,
    shared: Arc<group::Group>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("is_cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

impl Group {
    /// Creates a handle to a group.
    pub(super) fn of(core: &Arc<Core>, shared: &Arc<group::Group>) -> Self {
        Self { core: Arc::clone(core), shared: Arc::clone(shared) }
    }

    /// Returns a builder for an operation of this group. See [`Engine::op`].
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
        OpBuilder::in_group(&self.core, name.into(), &self.shared)
    }

    /// Creates a group inside this one: its operations belong to both.
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
        Self { core: Arc::clone(&self.core), shared: group::Group::new(Some(Arc::clone(&self.shared))) }
    }

    /// Limits the number of pending operations of the group, including operations of groups inside it. The limit
    /// applies to all handles, and a further call changes it; 0 is treated as 1. If the group, or one around it, is
    /// full, a push from outside operations is held back as if the engine were full; see
    /// [`EngineBuilder::max_pending`](crate::EngineBuilder::max_pending). The limit may be exceeded by one operation
    /// for each other thread that pushes to the group at the same moment.
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
        self.core.limit_group(&self.shared, limit.max(1) as u64);
        self
    }

    /// Waits for every operation that any thread pushed to the group before the call. Inside an operation, a wait first
    /// runs ready operations that it depends on. If none is left and the wait is not over, the worker is handed over to
    /// another thread; see [`blocking`](crate::blocking).
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
    /// Returns [`WaitError::Failed`] with the failure of the operation that was pushed first among those that have
    /// failed since the last wait. A later wait for the group returns none of these failures, and
    /// [`Engine::wait_for_all`] returns neither the one returned here nor others that began in the group. A skipped
    /// operation counts as failed, with the failure that caused the skip.
    ///
    /// Returns [`WaitError::WouldDeadlock`] inside an operation of the group, or inside one that an operation of the
    /// group waits for, and [`WaitError::TooManyWaiting`] if no thread could take over the worker. Where waits are
    /// forbidden, returns [`WaitError::OnDevice`], [`WaitError::InDeletion`] or [`WaitError::InObserver`]. In a forked
    /// child, returns [`WaitError::Refused`].
    pub fn wait(&self) -> Result<(), WaitError> {
        self.core.wait_for_group(&self.shared, None)
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
    ///     frame.cancel(); // too late: operations that have not started are no longer needed
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`wait`](Self::wait), and [`WaitError::TimedOut`]. After a timeout the operations
    /// continue.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        self.core.wait_for_group(&self.shared, deadline(Some(timeout)))
    }

    /// Like [`wait`](Self::wait), but returns a future. It covers the operations that were pushed before this call.
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
        self.core.wait_for_group_async(&self.shared)
    }

    /// Returns the number of pending operations of the group: those that were pushed and are not complete. Operations
    /// that other threads push or complete during the call may or may not count. Always returns 0 in a forked child.
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
        if self.core.is_forked() { 0 } else { self.shared.pending.count() }
    }

    /// Cancels all operations of the group, and of the groups inside it, that have not started, including those that
    /// are pushed later. Each of them fails with [`Cause::Cancelled`](crate::Cause::Cancelled) when its turn comes, and
    /// its function is dropped then. Running operations can learn of the cancellation through
    /// [`OpContext::is_cancelled`](crate::OpContext::is_cancelled). [Clean-ups](OpBuilder::cleanup) still run.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let request = engine.group();
    /// request.cancel(); // the client has gone
    /// let page = engine.var(0);
    /// request.op("render").push(page.write(), |_| unreachable!("it was cancelled"))?;
    /// assert!(request.wait().is_err());
    /// assert!(engine.wait_for_var(&page).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel(&self) {
        self.shared.cancel(Cancel::Loudly);
    }

    /// Like [`cancel`](Self::cancel), but the cancelled operations change nothing: their variables do not fail, and
    /// later operations run as if the cancelled ones had never been pushed. The handles of the cancelled operations
    /// return [`Cause::Cancelled`](crate::Cause::Cancelled). If both methods are called, the first call decides.
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
        self.shared.cancel(Cancel::Quietly);
    }

    /// Returns whether this group, or one around it, was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled().is_some()
    }
}
