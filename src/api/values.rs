//! Engine methods that read and replace values, outside and inside operations.

use std::{
    borrow::BorrowMut,
    mem,
    panic::Location,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    api::{
        accesses::ScopedAccesses,
        engine::Engine,
        large::{LARGE, unboxed_if_large},
        op_context::OpContext,
        var::{Read, Var},
    },
    error::{push_error::PushError, wait::WaitError},
    future::acquiring::{self, Acquired},
    op::{
        frame::{self, Call},
        job::{self, HandleJob},
        spec::{Entry, RefKind, Spec},
        task::{ErasedJob, flag},
        variable::{self, VarCell},
    },
    tracker::Mode,
    wait,
};

impl Engine {
    /// Waits for every mutation of the variable pushed before the call, then returns a clone of the variable's value.
    /// The value is cloned on the calling thread if no mutation is pending, and otherwise normally on a worker. Other
    /// readers may run at the same time.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let words = engine.var(vec!["warp"]);
    /// engine.op("add").push(words.write(), |words| words.push("weft"))?;
    /// assert_eq!(engine.get(&words)?, ["warp", "weft"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// * [`WaitError::Failed`]: the variable has failed.
    /// * [`WaitError::WouldDeadlock`]: the wait would never return, for example because the calling operation names the
    ///   variable.
    /// * [`WaitError::TooManyWaiting`]: no thread could take over the worker.
    /// * [`WaitError::Refused`]: the variable belongs to another engine or to an operation's children, it was deleted,
    ///   or this is a forked child.
    /// * [`WaitError::OnDevice`], [`WaitError::InDeletion`] and [`WaitError::InObserver`]: waits are forbidden here.
    #[track_caller]
    pub fn get<T: Clone + Send + Sync + 'static>(&self, var: &Var<T>) -> Result<T, WaitError> {
        self.check_wait_for(var)?;
        let location = Location::caller();
        unboxed_if_large!(T, kept => self.get_by(var, location, move |value| kept(value.clone())))
    }

    /// Pushes an operation that calls `look` with the value, and waits for what it returns.
    fn get_by<T: Send + Sync + 'static, R: Send + 'static>(
        &self,
        var: &Var<T>,
        location: &'static Location<'static>,
        look: impl FnOnce(&T) -> R + Send + 'static,
    ) -> Result<R, WaitError> {
        let (entry, access) = declared(var);
        let kept = access.capture();
        let spec = Spec::internal("get", 0, flag::EAGER);
        let f = move |call: &Call<'_>| {
            let cx = OpContext::new(call);
            // SAFETY: (1): `kept` came from `access`, which the operation declares, so it holds the variable during
            // this call. (2): this is its only access, and it runs once.
            Ok(look(unsafe { Read::<T>::refs(&kept, &cx) }))
        };
        let oneshot = job::shared(&spec, location, job::returning(f));
        self.core().push(&spec, location, &mut [entry], ErasedJob::new(HandleJob::new(Arc::clone(&oneshot))))?;
        wait::for_result(self.core(), &oneshot, None)
    }

    /// Like [`get`](Self::get), but waits for at most `timeout` and always clones on the calling thread.
    ///
    /// A call that times out leaves an operation of a few hundred bytes in the variable's queue until its turn comes. A
    /// polling program should use [`wait_to_read_timeout`](Self::wait_to_read_timeout): however often it times out, it
    /// leaves at most one operation behind as long as no other operations on the variable are pushed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::WaitError;
    /// use std::time::Duration;
    ///
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let reply = engine.var(0);
    /// engine.op("ask").push(reply.write(), |reply| *reply = 42)?;
    /// match engine.get_timeout(&reply, Duration::from_secs(60)) {
    ///     Ok(reply) => println!("{reply}"),
    ///     Err(WaitError::TimedOut) => println!("no reply yet"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`get`](Self::get), and [`WaitError::TimedOut`]. After a timeout, pending operations
    /// continue.
    #[track_caller]
    pub fn get_timeout<T: Clone + Send + Sync + 'static>(
        &self,
        var: &Var<T>,
        timeout: Duration,
    ) -> Result<T, WaitError> {
        self.check_wait_for(var)?;
        let deadline = Instant::now().checked_add(timeout);
        let acquired = acquiring::acquire(self.core(), "get", Location::caller(), declared(var).0, deadline)?;
        // SAFETY: `acquired` holds the variable for reading.
        let value = || unsafe { value_of(&acquired, var) }.clone();
        unboxed_if_large!(T, kept => Ok(acquired.enter(|| kept(value()))))
    }

    /// Waits for every mutation of the variable pushed before the call, then calls `f` on the calling thread with a
    /// reference to the value, without cloning it. The variable is held for reading until `f` returns: other readers
    /// may run, but mutations wait.
    ///
    /// `f` may push while the engine is open, and may wait. A wait for the variable itself or for a later operation
    /// that mutates it returns [`WaitError::WouldDeadlock`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let image = engine.var(vec![0u8; 1 << 20]);
    /// engine.op("draw").push(image.write(), |image| image[7] = 1)?;
    /// let drawn = engine.with(&image, |image| image.iter().filter(|&&pixel| pixel != 0).count())?;
    /// assert_eq!(drawn, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`get`](Self::get). On error, `f` is not called.
    ///
    /// # Panics
    /// Panics if `f` panics. The variable is released and does not fail.
    #[track_caller]
    pub fn with<T: Send + Sync + 'static, R>(&self, var: &Var<T>, f: impl FnOnce(&T) -> R) -> Result<R, WaitError> {
        self.check_wait_for(var)?;
        let acquired = acquiring::acquire(self.core(), "with", Location::caller(), declared(var).0, None)?;
        // SAFETY: `acquired` holds the variable for reading.
        Ok(acquired.enter(|| f(unsafe { value_of(&acquired, var) })))
    }

    /// Pushes an operation that replaces the variable's value. Like every push, this may block if the engine has a
    /// [limit](crate::EngineBuilder::max_pending). The form that does not block is an ordinary push:
    /// `engine.op("set").when_room().await?.push(target.overwrite(), move |old| *old = value)`.
    ///
    /// The old value is dropped as part of the operation, normally on a worker; if this drop panics, the operation
    /// fails. Like every operation that [overwrites](Var::overwrite) a variable, it clears the variable's error if it
    /// succeeds.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let target = engine.var(0);
    /// engine.set(&target, 7)?; // does not wait for the operation
    /// assert_eq!(engine.get(&target)?, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PushError`]. If the push is refused, `value` is dropped.
    #[track_caller]
    pub fn set<T: Send + 'static>(&self, var: &Var<T>, value: T) -> Result<(), PushError> {
        if const { size_of::<T>() > LARGE } {
            let mut value = Box::new(value);
            self.op("set").push(var.overwrite(), move |old| mem::swap(old, &mut *value))
        } else {
            self.op("set").push(var.overwrite(), move |old| *old = value)
        }
    }

    /// Waits for every operation pushed on the variable before the call, then replaces the value and returns the old
    /// value.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let buffer = engine.var(vec![1, 2, 3]);
    /// assert_eq!(engine.replace(&buffer, vec![4])?, [1, 2, 3]);
    /// assert_eq!(engine.get(&buffer)?, [4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`get`](Self::get). On error, the variable keeps its value and `value` is dropped.
    ///
    /// # Panics
    /// Panics if the variable [publishes](crate::Published) its value and [`clone`](Clone::clone) panics.
    #[track_caller]
    pub fn replace<T: Send + 'static>(&self, var: &Var<T>, value: T) -> Result<T, WaitError> {
        let location = Location::caller();
        unboxed_if_large!(T, kept => {
            let mut value = kept(value);
            self.change("replace", location, var, |old| {
                mem::swap::<T>(old, value.borrow_mut());
                value
            })
        })
    }

    /// Waits for every operation pushed on the variable before the call, then takes the value, leaving the type's
    /// default in its place.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let lines = engine.var(vec!["warp"]);
    /// engine.op("add").push(lines.write(), |lines| lines.push("weft"))?;
    /// assert_eq!(engine.take(&lines)?, ["warp", "weft"]);
    /// assert!(engine.get(&lines)?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`replace`](Self::replace).
    #[track_caller]
    pub fn take<T: Default + Send + 'static>(&self, var: &Var<T>) -> Result<T, WaitError> {
        let location = Location::caller();
        unboxed_if_large!(T, kept => self.change("take", location, var, |value| kept(mem::take(value))))
    }

    /// Acquires the variable for writing and calls `f` with its value.
    fn change<T: Send + 'static, R>(
        &self,
        name: &'static str,
        location: &'static Location<'static>,
        var: &Var<T>,
        f: impl FnOnce(&mut T) -> R,
    ) -> Result<R, WaitError> {
        self.check_wait_for(var)?;
        let entry = Entry { cell: var.ptr(), mode: Mode::Write, refs: RefKind::Exclusive };
        let acquired = acquiring::acquire(self.core(), name, location, entry, None)?;
        // SAFETY: the variable was made with a value of this type, and `var` keeps it alive.
        let value = unsafe { variable::value_ptr::<T>(var.ptr()) };
        // SAFETY: `acquired` holds the variable for writing until it is dropped, after this call.
        let changed = acquired.enter(|| f(unsafe { &mut *value }));
        acquired.mutated();
        Ok(changed)
    }

    /// Returns an error if the calling thread must not wait, or if an operation running on it holds the variable.
    fn check_wait_for<T>(&self, var: &Var<T>) -> Result<(), WaitError> {
        wait::check(self.core())?;
        let is_held = frame::holds(VarCell::queue_ptr(var.ptr()));
        if is_held { Err(wait::would_deadlock(var.token().cell().awaited())) } else { Ok(()) }
    }
}

/// Returns the entry and the declaration for an operation that reads the variable.
fn declared<T: Send + Sync + 'static>(var: &Var<T>) -> (Entry, Read<'_, T>) {
    (Entry { cell: var.ptr(), mode: Mode::Read, refs: RefKind::Shared }, var.read())
}

/// Returns the value of an acquired variable.
///
/// # Safety
/// 1. `acquired` holds the variable for reading.
unsafe fn value_of<'a, T: Send + Sync + 'static>(_acquired: &'a Acquired, var: &'a Var<T>) -> &'a T {
    // SAFETY: the variable was made with a value of this type, and `var` keeps it alive.
    let value = unsafe { variable::value_ptr::<T>(var.ptr()) };
    // SAFETY: (1): nothing mutates the value until `acquired` is dropped. The variable's queue makes earlier writes
    // visible.
    unsafe { &*value }
}
