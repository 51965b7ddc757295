//! Values that check whether an operation has declared its use of them.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    panic::Location,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError},
};

use super::{completion::Completion, token::Token};
use crate::{
    error::{
        deadlock::Pushed,
        use_error::{UseError, UseErrorKind},
    },
    op::{
        frame::{self, DeclaredAs},
        variable::VarCell,
    },
    sync::{Mutex, lock},
};

/// A value that is associated with a [`Token`] and can check whether the code using it has declared that token.
///
/// The engine does not know what a token represents, so it cannot check that operations use only what they have
/// declared. A guarded value can. In builds with debug assertions, [`read`](Self::read) and [`write`](Self::write)
/// return an error unless the caller is part of an operation that has declared the token (for `write`, as one that the
/// operation mutates). The error names the caller's operation and the last one that used the value. A test with debug
/// assertions therefore catches a missing declaration even if the operation happens to run at the right time. In every
/// build, both methods return an error if a conflicting use is in progress, so conflicting uses never overlap;
/// [shuffling](crate::EngineBuilder::shuffle) varies the times at which operations run.
///
/// A [`Var`](crate::Var) needs no such check, since its operations receive references. Prefer a `Var` if the value can
/// live in the engine.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::Guarded;
/// use std::sync::Arc;
///
/// let engine = raddle::Engine::builder().workers(2).build()?;
/// let bus = Arc::new(Guarded::new(engine.token().named("bus"), vec![0.0; 64]));
///
/// let (source, sink) = (Arc::clone(&bus), Arc::clone(&bus));
/// engine.op("fill").writes([bus.token()]).try_push((), move |()| Ok(source.write()?.fill(0.5)))?;
/// // This operation forgets to declare that it reads the bus.
/// let peak = engine.op("meter").try_submit((), move |()| Ok(sink.read()?.iter().copied().fold(0.0, f32::max)))?;
/// # if cfg!(debug_assertions) {
/// let error = peak.wait().unwrap_err().to_string();
/// assert!(error.contains("operation `meter`") && error.contains("has not declared it"));
/// # }
/// # engine.wait_for_all()?;
/// # Ok(())
/// # }
/// ```
///
/// # Code that is part of an operation
///
/// An operation consists of its function and the code that the function calls on its thread. A child may also use what
/// its parent has declared, and an operation in a scope may use what the operations around the scope have declared.
/// Code on another thread that holds the operation's [`Completion`] must call [`read_for`](Self::read_for) or
/// [`write_for`](Self::write_for).
pub struct Guarded<T> {
    token: Token,
    value: RwLock<T>,
    /// The last operation that used the value. Set only with debug assertions.
    last: Mutex<Option<Pushed>>,
}

/// How a guarded value is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

impl<T> Guarded<T> {
    /// Guards `value` with `token`.
    pub fn new(token: Token, value: T) -> Self {
        Self { token, value: RwLock::new(value), last: Mutex::new(None) }
    }

    /// Returns the token that operations must declare.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Returns a reference to the value. Never blocks.
    ///
    /// # Errors
    /// See [`UseErrorKind`].
    #[track_caller]
    pub fn read(&self) -> Result<GuardedRef<'_, T>, UseError> {
        self.read_as(Location::caller(), || frame::declared(VarCell::queue_ptr(self.token.ptr())))
    }

    /// Returns a mutable reference to the value. Never blocks.
    ///
    /// # Errors
    /// See [`UseErrorKind`].
    #[track_caller]
    pub fn write(&self) -> Result<GuardedMut<'_, T>, UseError> {
        self.write_as(Location::caller(), || frame::declared(VarCell::queue_ptr(self.token.ptr())))
    }

    /// Like [`read`](Self::read), but for code that runs on any thread as part of the operation that `done` completes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::Guarded;
    /// use std::sync::Arc;
    ///
    /// let disk = Arc::new(Guarded::new(engine.token(), String::from("warp")));
    /// let file = Arc::clone(&disk);
    /// engine.op("print").reads([disk.token()]).push(raddle::completion(), move |done| {
    ///     std::thread::spawn(move || match file.read_for(&done).map(|text| println!("{}", *text)) {
    ///         Ok(()) => done.complete(),
    ///         Err(error) => done.fail(error),
    ///     });
    /// })?;
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`UseErrorKind`].
    #[track_caller]
    pub fn read_for(&self, done: &Completion) -> Result<GuardedRef<'_, T>, UseError> {
        self.read_as(Location::caller(), || done.declared(VarCell::queue_ptr(self.token.ptr())))
    }

    /// Like [`write`](Self::write), but for code that runs on any thread as part of the operation that `done`
    /// completes.
    ///
    /// # Errors
    /// See [`UseErrorKind`].
    #[track_caller]
    pub fn write_for(&self, done: &Completion) -> Result<GuardedMut<'_, T>, UseError> {
        self.write_as(Location::caller(), || done.declared(VarCell::queue_ptr(self.token.ptr())))
    }

    /// Returns a mutable reference to the value. The caller has exclusive access to the `Guarded`, so no operation can
    /// use the value.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value and drops the token.
    pub fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_as(
        &self,
        location: &'static Location<'static>,
        declared: impl FnOnce() -> (Option<Pushed>, DeclaredAs),
    ) -> Result<GuardedRef<'_, T>, UseError> {
        let user = self.check(Use::Read, location, declared)?;
        let value = match self.value.try_read() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(self.refuse(UseErrorKind::InUse, location, user)),
        };
        self.note(user);
        Ok(GuardedRef(value))
    }

    fn write_as(
        &self,
        location: &'static Location<'static>,
        declared: impl FnOnce() -> (Option<Pushed>, DeclaredAs),
    ) -> Result<GuardedMut<'_, T>, UseError> {
        let user = self.check(Use::Write, location, declared)?;
        let value = match self.value.try_write() {
            Ok(value) => value,
            // The operation that panicked has failed, and the engine reports the failure.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(self.refuse(UseErrorKind::InUse, location, user)),
        };
        self.note(user);
        Ok(GuardedMut(value))
    }

    /// Checks that the caller has declared this use of the value. Returns the caller's operation.
    fn check(
        &self,
        how: Use,
        location: &'static Location<'static>,
        declared: impl FnOnce() -> (Option<Pushed>, DeclaredAs),
    ) -> Result<Option<Pushed>, UseError> {
        if !cfg!(debug_assertions) {
            return Ok(None);
        }
        match declared() {
            (user, DeclaredAs::No) => Err(self.refuse(UseErrorKind::Undeclared, location, user)),
            (user, DeclaredAs::Read) if how == Use::Write => Err(self.refuse(UseErrorKind::OnlyRead, location, user)),
            (user, _) => Ok(user),
        }
    }

    fn note(&self, user: Option<Pushed>) {
        if cfg!(debug_assertions) {
            *lock(&self.last) = user;
        }
    }

    #[cold]
    fn refuse(&self, kind: UseErrorKind, location: &'static Location<'static>, user: Option<Pushed>) -> UseError {
        let last = lock(&self.last).clone();
        UseError::new(kind, self.token.cell().name().cloned().unwrap_or_default(), location, user, last)
    }
}

impl<T> fmt::Debug for Guarded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("token", &self.token).finish_non_exhaustive()
    }
}

/// A reference to a [`Guarded`] value. It should be dropped before the operation ends. While it exists, attempts to
/// mutate the value return [`UseErrorKind::InUse`].
#[must_use = "the value is in use until this is dropped"]
pub struct GuardedRef<'g, T>(RwLockReadGuard<'g, T>);

impl<T> Deref for GuardedRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for GuardedRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A mutable reference to a [`Guarded`] value. It should be dropped before the operation ends. While it exists,
/// attempts to use the value return [`UseErrorKind::InUse`].
#[must_use = "the value is in use until this is dropped"]
pub struct GuardedMut<'g, T>(RwLockWriteGuard<'g, T>);

impl<T> Deref for GuardedMut<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for GuardedMut<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for GuardedMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
