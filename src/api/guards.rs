//! Guards for acquired variables.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

use crate::future::held::Share;

/// A guard for a variable that an operation reads, obtained through [`Engine::acquire`](crate::Engine::acquire) or
/// [`OpBuilder::push_future`](crate::OpBuilder::push_future). While the guard exists, other readers may run, but
/// mutations wait.
///
/// The operation is complete when the last of its guards has been dropped, on any thread, and its future, if any, has
/// ended. If a guard is leaked, for example by [`std::mem::forget`], all of its operation's variables are held forever,
/// so later conflicting operations never start. A guard can be sent to other threads and shared between them.
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

// SAFETY: the guard consists of a `&T`, which the operation keeps valid, and a share, which is `Send`.
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

/// A guard for a variable that an operation mutates, obtained through [`Engine::acquire`](crate::Engine::acquire) or
/// [`OpBuilder::push_future`](crate::OpBuilder::push_future). While the guard exists, no other operation uses the
/// variable.
///
/// An operation is complete only when all of its guards have been dropped; see [`ReadGuard`]. If the operation
/// succeeds, one mutation is counted for each variable that it mutates, even if the value was not changed. If a panic
/// drops a guard, these variables fail with [`Cause::Panic`](crate::error::Cause::Panic) instead.
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
/// A reference stored in the value must live as long as the value's type requires:
///
/// ```compile_fail,E0597
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::WriteGuard;
///
/// let word = engine.var("warp");
/// let text = String::from("weft");
/// let mut guard: WriteGuard<&str> = pollster::block_on(engine.acquire(word.write()))?;
/// *guard = &text; // the reference would outlive `text`
/// # Ok(())
/// # }
/// ```
#[must_use = "the variable is released when the guard is dropped"]
pub struct WriteGuard<T> {
    value: NonNull<T>,
    /// Keeps the operation from completing, and so keeps the value valid.
    _share: Share,
    /// Makes the guard invariant in `T`: a guard for a `&'static U` must not coerce to a guard for a `&'short U`,
    /// through which a short-lived reference could be stored.
    _invariant: PhantomData<fn(T) -> T>,
}

// SAFETY: the guard consists of a `&mut T`, which the operation keeps valid, and a share, which is `Send`.
unsafe impl<T: Send> Send for WriteGuard<T> {}
// SAFETY: as for `Send`; a shared guard acts as a `&T`.
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
