//! Guards for acquired variables.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

use crate::engine::held::Share;

/// A guard for a variable that an operation reads; from [`Engine::acquire`](crate::Engine::acquire) and
/// [`OpBuilder::push_future`](crate::OpBuilder::push_future). While the guard exists, other readers may run, and
/// mutations wait.
///
/// The guards of one operation belong together. The operation is complete when the last of them has been dropped, on
/// any thread, and its future, if it is one, has ended. A guard that is leaked, for example by [`std::mem::forget`],
/// holds all variables of its operation forever, so later operations on these variables never start. A guard can be
/// sent to other threads and shared between them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::ReadGuard;
///
/// let words = engine.var(vec!["warp", "weft"]);
/// let guard: ReadGuard<Vec<&str>> = pollster::block_on(engine.acquire(words.read()))?;
/// assert_eq!(guard.len(), 2);
/// # Ok(())
/// # }
/// ```
#[must_use = "the variable is released when the guard is dropped"]
pub struct ReadGuard<T> {
    value: NonNull<T>,
    /// Keeps the operation from completing, and so keeps the value valid.
    _share: Share,
}

// SAFETY: the guard is a `&T`, which the operation keeps valid, and a share, which is `Send`.
unsafe impl<T: Sync> Send for ReadGuard<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for ReadGuard<T> {}

impl<T> ReadGuard<T> {
    /// Creates a guard for `value`.
    ///
    /// # Safety
    /// 1. `value` may be read while the operation of `share` holds its variables.
    pub(super) unsafe fn new(value: NonNull<T>, share: Share) -> Self {
        Self { value, _share: share }
    }
}

impl<T> Deref for ReadGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: (1) of `new`: the operation holds its variables while the share exists.
        unsafe { self.value.as_ref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for ReadGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Display> fmt::Display for ReadGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A guard for a variable that an operation mutates; from [`Engine::acquire`](crate::Engine::acquire) and
/// [`OpBuilder::push_future`](crate::OpBuilder::push_future). While the guard exists, no other operation uses the
/// variable.
///
/// The guards of one operation belong together; see [`ReadGuard`]. When the operation completes, a mutation is counted
/// for each variable that it mutates, whether or not the value was changed. If a panic drops one of the guards, these
/// variables fail with [`Cause::Panic`](crate::Cause::Panic) instead.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::WriteGuard;
///
/// let words = engine.var(vec!["warp"]);
/// let mut guard: WriteGuard<Vec<&str>> = pollster::block_on(engine.acquire(words.write()))?;
/// guard.push("weft");
/// drop(guard);
/// assert_eq!(engine.get(&words)?, ["warp", "weft"]);
/// # Ok(())
/// # }
/// ```
///
/// A guard can be sent to another thread, and shared between threads if the value is [`Sync`]:
///
/// ```compile_fail,E0277
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let cell = engine.var(std::cell::Cell::new(0u32));
/// let guard = pollster::block_on(engine.acquire(cell.write()))?;
/// std::thread::scope(|scope| _ = scope.spawn(|| guard.set(1))); // `Cell` is not `Sync`
/// # Ok(())
/// # }
/// ```
///
/// A reference that is stored in the value must live as long as the type of the value requires:
///
/// ```compile_fail,E0597
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::WriteGuard;
///
/// let word = engine.var("warp");
/// let text = String::from("weft");
/// let mut guard: WriteGuard<&str> = pollster::block_on(engine.acquire(word.write()))?;
/// *guard = &text; // it would outlive the text
/// # Ok(())
/// # }
/// ```
#[must_use = "the variable is released when the guard is dropped"]
pub struct WriteGuard<T> {
    value: NonNull<T>,
    /// Keeps the operation from completing, and so keeps the value valid.
    _share: Share,
    /// Makes the guard invariant in `T`: a guard for a `&'static U` must not become a guard for a `&'short U`, through
    /// which a short-lived reference could be stored.
    _invariant: PhantomData<fn(T) -> T>,
}

// SAFETY: the guard is a `&mut T`, which the operation keeps valid, and a share, which is `Send`.
unsafe impl<T: Send> Send for WriteGuard<T> {}
// SAFETY: as for `Send`; a shared guard is a `&T`.
unsafe impl<T: Sync> Sync for WriteGuard<T> {}

impl<T> WriteGuard<T> {
    /// Creates a guard for `value`.
    ///
    /// # Safety
    /// 1. Only this guard uses `value` while the operation of `share` holds its variables.
    pub(super) unsafe fn new(value: NonNull<T>, share: Share) -> Self {
        Self { value, _share: share, _invariant: PhantomData }
    }
}

impl<T> Deref for WriteGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: (1) of `new`: the operation holds its variables while the share exists.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for WriteGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: (1) of `new`: the operation holds its variables while the share exists.
        unsafe { self.value.as_mut() }
    }
}

impl<T: fmt::Debug> fmt::Debug for WriteGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Display> fmt::Display for WriteGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
