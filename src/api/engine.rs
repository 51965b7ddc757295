//! The engine's handle: everything a program asks of it.

use std::{
    fmt,
    future::Future,
    panic::Location,
    sync::{
        Arc,
        atomic::Ordering::{AcqRel, Relaxed},
    },
    time::{Duration, Instant},
};

use bytemuck::Pod;

use crate::{
    api::{
        accesses::{Accesses, sealed::List},
        handle::VarWait,
        op_context::OpContext,
        token::Token,
        var::{Read, Var},
    },
    device::{
        driver::Driver,
        memory::{DeviceVec, PinnedVec},
        stream::ImportedStream,
    },
    engine::{
        core::Core,
        frame::{self, Call},
        spec::{Entries, Spec},
        task::{ResultJob, flag},
        variable::VarCell,
        waits::WaitFor,
    },
    error::{
        build::ShutdownError,
        device::DeviceError,
        op::OpError,
        push::{FORKED, PushError},
        wait::WaitError,
    },
    notify::oneshot::Oneshot,
    values::{
        device::Device,
        kind::{EngineKind, Placement},
    },
};

/// How an engine is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// What was pushed runs to its end; operations may still push others.
    Drain,
    /// What has not started fails with [`Cause::Cancelled`](crate::Cause::Cancelled). Deletions still run.
    Cancel,
}

/// A dependency engine: operations that name what they read and what they mutate are pushed, conflicting ones run in push
/// order, all others in parallel.
///
/// Any number of threads may push at once, operations included, and each push is atomic over all its variables: there is
/// one order of all pushes that every variable agrees with, each thread's own order and real time included. Pushing never
/// waits for others, whatever is running. Only operations of a [`Naive`](EngineKind::Naive) engine, and
/// [eager](crate::OpBuilder::eager) ones that are ready, run inside a push.
///
/// Clones are handles of the same engine. Dropping the last one drains it: waits for what is pending and ends the threads.
/// Inside an operation, of whichever engine, and in other code that an engine calls, it does so in the background. Variables
/// may outlive their engine; they can still be read by
/// [`get`](Self::get) as long as somebody has a handle of it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().build()?;
/// let weights = engine.var(vec![1.0f32; 4]);
/// let gradient = engine.var(vec![0.0f32; 4]);
///
/// engine.op("backward").push((weights.read(), gradient.write()), |(w, g)| {
///     g.copy_from_slice(w);
/// })?;
/// engine.op("step").push((gradient.read(), weights.write()), |(g, w)| {
///     w.iter_mut().zip(g).for_each(|(w, g)| *w -= 0.5 * g);
/// })?;
/// assert_eq!(engine.get(&weights)?, [0.5; 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Forked processes
///
/// A child that was forked by `fork` has none of the threads of its parent's engines, and is not of use to them. On Linux,
/// every call on such an engine, or on what it gave, ends at once there, with [`PushError::Forked`] where it can give an
/// error: a wait with [`WaitError::Refused`], a shutdown with [`ShutdownError::Forked`], a future when it is polled. Nothing
/// that was pending runs there, and drops do nothing: variables and their values stay in memory. The parent notices nothing.
///
/// An engine that is built in the child works, as [`global`](Self::global) does, which is another one there. So does a child
/// that was forked inside an operation; if that was on a thread of the engine, the thread ends when the operation's function
/// has returned. GPUs of the parent are not for engines of the child: simulated ones are lost there, and CUDA cannot be used
/// in a child of a process that has used it.
///
/// Other systems, and `clone` without `fork`, are not noticed. The child must not use an engine there.
pub struct Engine {
    core: Arc<Core>,
    /// Whether this handle keeps the engine open.
    counted: bool,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("kind", &self.kind())
            .field("is_open", &self.core.is_open())
            .finish_non_exhaustive()
    }
}

impl Clone for Engine {
    fn clone(&self) -> Self {
        if self.counted {
            // Relaxed: the handle at hand keeps the count above zero.
            self.core.handles.fetch_add(1, Relaxed);
        }
        Self { core: Arc::clone(&self.core), counted: self.counted }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.core.is_forked() {
            return;
        }
        // AcqRel: what was done through the other handles comes before the shutdown.
        if self.counted && self.core.handles.fetch_sub(1, AcqRel) == 1 {
            self.core.begin_shutdown(false);
            self.core.finish_by_drop();
        }
    }
}

impl Engine {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, counted: true }
    }

    /// A handle that does not keep the engine open.
    pub(crate) fn uncounted(core: Arc<Core>) -> Self {
        Self { core, counted: false }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Returns a handle that pushes and waits, but does not keep the engine open: the engine drains when the last handle
    /// that does is dropped, and what is pushed afterwards is refused with [`PushError::ShutDown`].
    ///
    /// Operations of the engine may still push while it drains, and the drain waits for that work as well. So a downgraded
    /// handle is the one for a closure to capture: with a clone of the engine itself, the engine stays open until the
    /// closure is dropped, and nothing waits for its work when `main` returns.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(1).build()?;
    /// let inner = engine.downgrade();
    /// engine.op("outer").push((), move |()| {
    ///     inner.op("inner").push((), |()| println!("runs before `main` returns")).expect("operations may push");
    /// })?;
    /// drop(engine); // waits for both
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn downgrade(&self) -> Self {
        Self::uncounted(Arc::clone(&self.core))
    }

    /// Returns a handle of the engine whose operation runs on this thread, or `None` outside operations. As one from
    /// [`downgrade`](Self::downgrade), it does not keep the engine open.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::Engine;
    ///
    /// let engine = Engine::builder().workers(1).build()?;
    /// assert!(Engine::current().is_none());
    /// engine.op("outer").push((), |()| {
    ///     let engine = Engine::current().expect("this is an operation");
    ///     engine.op("inner").push((), |()| {}).expect("operations may push");
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn current() -> Option<Self> {
        frame::current_engine().map(Self::uncounted)
    }

    /// The engine's kind.
    #[must_use]
    pub fn kind(&self) -> EngineKind {
        self.core.kind()
    }

    /// Where each worker of the CPU's lane was put when the engine was built. Engines of one process are put on different
    /// cores while there are enough; [`EngineBuilder::pin`](crate::EngineBuilder::pin) says which.
    #[must_use]
    pub fn placements(&self) -> &[Placement] {
        self.core.placements.get().map_or(&[], |placements| placements)
    }

    // -------------------------------------------------------------------------------------------------- variables ----

    /// Makes a variable with a value.
    pub fn var<T: Send + 'static>(&self, value: T) -> Var<T> {
        Var::new(Token::typed(&self.core, value))
    }

    /// Makes a variable for `len` values in a device's memory, of unspecified content. The memory comes from a pool; the
    /// device's driver is asked on the calling thread if there is none.
    ///
    /// # Errors
    /// There is no such device, it has no memory left, or it is lost.
    pub fn device_var<T: Pod + Send + Sync>(&self, gpu: Device, len: usize) -> Result<Var<DeviceVec<T>>, DeviceError> {
        let memory = DeviceVec::<T>::new(&self.driver(gpu)?, len)?;
        Ok(Var::new(Token::placed(&self.core, memory, false)))
    }

    /// Makes a variable for `len` values in memory of the host that the device copies to and from by itself: page-locked,
    /// cacheable, at first zero. As for [`device_var`](Self::device_var), it comes from a pool.
    ///
    /// # Errors
    /// There is no such device, there is no memory left, or the device is lost.
    pub fn pinned_var<T: Pod + Send + Sync>(&self, gpu: Device, len: usize) -> Result<Var<PinnedVec<T>>, DeviceError> {
        let memory = PinnedVec::<T>::new(&self.driver(gpu)?, len)?;
        Ok(Var::new(Token::placed(&self.core, memory, true)))
    }

    /// Makes a variable for a stream of the program's own, for operations that issue work on it by
    /// [`GpuStream::include`](crate::GpuStream::include). An operation that mutates it has the stream to itself, and operations
    /// of its device that do come after one another as those on a value in the device's memory do: without a wait of the
    /// host.
    ///
    /// Name it with [`overwrite`](crate::Var::overwrite): then an operation that fails leaves the stream to the next. But the
    /// success of the next ends the failure for this variable, so let operations mutate what their work is about as well.
    pub fn stream_var(&self, stream: ImportedStream) -> Var<ImportedStream> {
        Var::new(Token::placed(&self.core, stream, false))
    }

    fn driver(&self, context: Device) -> Result<Arc<dyn Driver>, DeviceError> {
        if self.core.is_forked() {
            return Err(DeviceError::refused(-1, FORKED));
        }
        match self.core.gpus().gpu(context) {
            Some(gpu) => Ok(Arc::clone(&gpu.driver)),
            None => Err(DeviceError::refused(
                -1,
                format!("this engine has no device {context}; give it one with `EngineBuilder::gpu`"),
            )),
        }
    }

    /// Makes a variable without a value: it stands for something outside the engine.
    pub fn token(&self) -> Token {
        Token::typed(&self.core, ())
    }

    /// Deletes a variable: its value is dropped and then `f` runs, after every operation pushed on it before. Later pushes
    /// on it are refused; waits for it wait for the deletion. The deletion runs on the calling thread if nothing is
    /// pending on the variable, also on failed variables, and also when the engine is shut down.
    ///
    /// # Errors
    /// [`PushError::ForeignVariable`], or [`PushError::DeletedVariable`] if it was deleted before; `f` does not run then.
    #[track_caller]
    pub fn delete_variable(
        &self,
        variable: impl AsRef<Token>,
        f: impl FnOnce(&OpContext<'_>) + Send + 'static,
    ) -> Result<(), PushError> {
        self.core.delete_variable(variable.as_ref().var(), Location::caller(), |call| f(&OpContext::new(call)))
    }

    /// Ends the failure of a variable, in push order: operations pushed before are still skipped, those pushed after run.
    ///
    /// # Errors
    /// [`PushError::ForeignVariable`] or [`PushError::DeletedVariable`].
    #[track_caller]
    pub fn clear_error(&self, variable: impl AsRef<Token>) -> Result<(), PushError> {
        self.core.clear_error(variable.as_ref().var(), Location::caller())
    }

    /// Takes all failures that [`wait_for_all`](Self::wait_for_all) has yet to report; returns the earliest and how many
    /// there were. Failed variables stay failed. In a forked child there are none.
    pub fn clear_errors(&self) -> Option<(OpError, u64)> {
        if self.core.is_forked() {
            return None;
        }
        self.core.failures().clear()
    }

    // ------------------------------------------------------------------------------------------------------ waits ----

    /// Clones the value of a variable out, after every mutation pushed before. The clone is made on the calling thread if
    /// no mutation is pending, else on a worker; other readers go on meanwhile.
    ///
    /// # Errors
    /// [`WaitError::Failed`] if the variable has failed, [`WaitError::WouldDeadlock`] if the calling operation names it,
    /// [`WaitError::Refused`] if it is another engine's or deleted, [`WaitError::TooManyWaiting`].
    #[track_caller]
    pub fn get<T: Clone + Send + Sync + 'static>(&self, var: &Var<T>) -> Result<T, WaitError> {
        self.core.check_wait()?;
        if frame::holds(VarCell::queue_ptr(var.ptr())) {
            return Err(WaitError::WouldDeadlock);
        }
        let access = var.read();
        let mut entries = Entries::new();
        access.declare(&mut List(&mut entries));
        let kept = access.capture();
        let oneshot = Oneshot::new();
        let (mut spec, location) = (Spec::internal("get", 0, flag::EAGER), Location::caller());
        let f = move |call: &Call<'_>| {
            let cx = OpContext::new(call);
            // SAFETY: the operation declares `access` and runs once.
            Ok(unsafe { Read::<T>::refs(&kept, &cx) }.clone())
        };
        self.core.push(&mut spec, location, &mut entries, ResultJob::new(f, Arc::clone(&oneshot)))?;
        self.core.wait_for_result(&oneshot, None)
    }

    /// Waits for every operation on the variable pushed before the call.
    ///
    /// On any thread, workers included: an operation that waits gives its worker to another thread meanwhile.
    ///
    /// # Errors
    /// [`WaitError::Failed`] if the variable has failed, [`WaitError::WouldDeadlock`] if the calling operation names it,
    /// [`WaitError::TooManyWaiting`], or [`WaitError::Refused`] if it is another engine's. [`WaitError::OnDevice`] and
    /// [`WaitError::InDeletion`] where nobody can wait, also if nothing is pending.
    #[track_caller]
    pub fn wait_for_var(&self, variable: impl AsRef<Token>) -> Result<(), WaitError> {
        self.wait(variable.as_ref(), false, None)
    }

    /// As [`wait_for_var`](Self::wait_for_var), at most for `timeout`.
    ///
    /// # Errors
    /// As [`wait_for_var`](Self::wait_for_var), and [`WaitError::TimedOut`]; what is pending goes on then.
    #[track_caller]
    pub fn wait_for_var_timeout(&self, variable: impl AsRef<Token>, timeout: Duration) -> Result<(), WaitError> {
        self.wait(variable.as_ref(), false, Some(timeout))
    }

    /// As [`wait_for_var`](Self::wait_for_var), for a future to await.
    #[track_caller]
    pub fn wait_for_var_async(&self, variable: impl AsRef<Token>) -> VarWait {
        self.wait_async(variable.as_ref(), false)
    }

    /// Waits for every mutation of the variable pushed before the call, not for readers.
    ///
    /// # Errors
    /// As [`wait_for_var`](Self::wait_for_var).
    #[track_caller]
    pub fn wait_to_read(&self, variable: impl AsRef<Token>) -> Result<(), WaitError> {
        self.wait(variable.as_ref(), true, None)
    }

    /// As [`wait_to_read`](Self::wait_to_read), at most for `timeout`.
    ///
    /// # Errors
    /// As [`wait_for_var_timeout`](Self::wait_for_var_timeout).
    #[track_caller]
    pub fn wait_to_read_timeout(&self, variable: impl AsRef<Token>, timeout: Duration) -> Result<(), WaitError> {
        self.wait(variable.as_ref(), true, Some(timeout))
    }

    /// As [`wait_to_read`](Self::wait_to_read), for a future to await.
    #[track_caller]
    pub fn wait_to_read_async(&self, variable: impl AsRef<Token>) -> VarWait {
        self.wait_async(variable.as_ref(), true)
    }

    #[track_caller]
    fn wait(&self, token: &Token, for_reading: bool, timeout: Option<Duration>) -> Result<(), WaitError> {
        let kind = if for_reading { WaitFor::Writers } else { WaitFor::All };
        self.core.wait_for_var(token.var(), kind, deadline(timeout), Location::caller())
    }

    #[track_caller]
    fn wait_async(&self, token: &Token, for_reading: bool) -> VarWait {
        let kind = if for_reading { WaitFor::Writers } else { WaitFor::All };
        VarWait::new(self.core.begin_wait(token.var(), kind, Location::caller()))
    }

    /// Waits for every operation pushed before the call, by whatever thread. Pushes after the call do not prolong it.
    ///
    /// # Errors
    /// [`WaitError::Failed`] with the earliest failure that nobody has been told of, which is told with that: no wait and no
    /// handle has returned it, and it was not cleared on a variable that it had reached, by
    /// [`clear_error`](Self::clear_error) or by an operation that overwrites. Call again for the next one, or
    /// [`clear_errors`](Self::clear_errors) for all. The engine keeps 4,096 of them and counts those beyond; after the
    /// last that is kept, one failure says how many these are. [`WaitError::WouldDeadlock`] inside an operation of this
    /// engine, which is itself among what would have to end; [`WaitError::OnDevice`]; [`WaitError::InDeletion`].
    pub fn wait_for_all(&self) -> Result<(), WaitError> {
        self.core.wait_for_all(None)
    }

    /// As [`wait_for_all`](Self::wait_for_all), at most for `timeout`.
    ///
    /// # Errors
    /// As [`wait_for_all`](Self::wait_for_all), and [`WaitError::TimedOut`].
    pub fn wait_for_all_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        self.core.wait_for_all(deadline(Some(timeout)))
    }

    /// As [`wait_for_all`](Self::wait_for_all), for a future to await. It covers what was pushed before this call.
    pub fn wait_for_all_async(&self) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
        self.core.wait_for_all_async()
    }

    // --------------------------------------------------------------------------------------------------- shutdown ----

    /// Shuts the engine down: refuses further pushes, waits until nothing is pending, and ends the threads; all that at most for
    /// `timeout`, whatever the program's functions do. May be called again, on any handle.
    ///
    /// A thread has ended when the destructors of its thread-locals have run. A shutdown with a `timeout` starts a
    /// thread to wait for those; elsewhere than on Linux, it does not wait for them if none can be started.
    ///
    /// # Errors
    /// [`ShutdownError::TimedOut`]: operations were still pending; the shutdown has begun, and calling again waits again.
    /// [`ShutdownError::ThreadsLeft`]: nothing was pending, but these threads had not ended; calling again waits again.
    /// [`ShutdownError::InsideOperation`]: it cannot wait for the operation that calls, or there is no thread to take its worker
    /// over; it goes on in the background.
    pub fn shutdown(&self, how: Shutdown, timeout: Option<Duration>) -> Result<(), ShutdownError> {
        self.core.begin_shutdown(how == Shutdown::Cancel);
        self.core.finish_shutdown(deadline(timeout))
    }

    /// Begins [`Shutdown::Cancel`] without waiting for its end: from now on operations that have not started fail with
    /// [`Cause::Cancelled`](crate::Cause::Cancelled), and pushes are refused.
    pub fn notify_shutdown(&self) {
        self.core.begin_shutdown(true);
    }
}

/// The time `timeout` from now; `None` for ever, also if it is too far away to be told.
fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}
