//! Variables of a scope, and the declarations made from them.

use std::{fmt, marker::PhantomData, ptr::NonNull, sync::Arc};

use crate::{
    api::{
        accesses::{AccessRefs, Refs, ScopedAccesses, sealed},
        op_context::OpContext,
    },
    engine::core::Core,
    op::{
        spec::{self, Entry},
        variable::{self, ValueMemory, VarCell},
    },
    tracker::Mode,
    values::Name,
};

/// A variable that belongs to a scope, returned by [`Scope::var`](crate::Scope::var) and
/// [`Scope::lend`](crate::Scope::lend).
///
/// The handle is [`Copy`]. The variable ends with its scope. Only operations in the scope and its nested scopes can
/// name the variable.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().build()?;
/// let mut total = 0;
/// engine.try_scope(|s| {
///     let (total, step) = (s.lend(&mut total), s.var(2));
///     s.op("add").push((step.read(), total.write()), |(step, total)| *total += step)?;
///     Ok(())
/// })?;
/// assert_eq!(total, 2);
/// # Ok(())
/// # }
/// ```
///
/// An operation outside the scope cannot name the variable:
///
/// ```compile_fail,E0521
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().build()?;
/// let mut total = 0;
/// engine.try_scope(|s| {
///     let total = s.lend(&mut total);
///     engine.op("add").push(total.write(), |total| *total += 1)?;
///     Ok(())
/// })?;
/// # Ok(())
/// # }
/// ```
pub struct ScopedVar<'scope, T: ?Sized> {
    cell: NonNull<VarCell>,
    value: NonNull<T>,
    scope: PhantomData<&'scope ()>,
    invariant: PhantomData<*mut T>,
}

// SAFETY: a handle gives no access to the value. The constructors require `T: Send`, shared reads require `T: Sync`,
// and a `VarCell` is `Send` and `Sync`.
unsafe impl<T: ?Sized> Send for ScopedVar<'_, T> {}
// SAFETY: as for `Send`.
unsafe impl<T: ?Sized> Sync for ScopedVar<'_, T> {}

impl<T: ?Sized> Clone for ScopedVar<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: ?Sized> Copy for ScopedVar<'_, T> {}

impl<T: ?Sized> fmt::Debug for ScopedVar<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = self.cell();
        f.debug_struct("ScopedVar")
            .field("id", &cell.queue().id())
            .field("name", &cell.name().map_or("", Name::as_str))
            .finish_non_exhaustive()
    }
}

impl<T: Send> ScopedVar<'_, T> {
    /// Creates a variable with a value. The returned pointer represents the variable's only counted handle.
    ///
    /// # Safety
    /// 1. The value is valid until the scope has emptied the variable, at the end of the scope.
    pub(super) unsafe fn with_value(core: &Arc<Core>, value: T) -> (Self, NonNull<VarCell>) {
        // SAFETY: (1).
        let cell = unsafe { VarCell::with_borrowing_value(core, value, ValueMemory::of::<T>()) };
        // SAFETY: the cell was made with a value of this type.
        let value = unsafe { variable::value_ptr::<T>(cell) };
        // SAFETY: `value` points into a cell, so it is not null.
        let value = unsafe { NonNull::new_unchecked(value) };
        (Self { cell, value, scope: PhantomData, invariant: PhantomData }, cell)
    }
}

impl<'scope, T: Send + ?Sized> ScopedVar<'scope, T> {
    /// Creates a variable for a borrowed value. The returned pointer represents the variable's only counted handle.
    pub(super) fn lent(core: &Arc<Core>, value: &'scope mut T) -> (Self, NonNull<VarCell>) {
        let cell = VarCell::with_value(core, (), ValueMemory::Elsewhere);
        (Self { cell, value: NonNull::from(value), scope: PhantomData, invariant: PhantomData }, cell)
    }
}

impl<'scope, T: ?Sized> ScopedVar<'scope, T> {
    fn cell(&self) -> &VarCell {
        // SAFETY: the scope has a handle to the variable while `'scope` lasts.
        unsafe { self.cell.as_ref() }
    }

    /// Sets the variable's name, which appears in errors, dumps, traces and `Debug` output; see
    /// [`Token::named`](crate::Token::named).
    #[must_use = "the handle is returned"]
    pub fn named(self, name: impl Into<Name>) -> Self {
        self.cell().set_name(name.into());
        self
    }

    /// Declares that an operation reads the value; see [`Var::read`](crate::Var::read).
    pub fn read(&self) -> ScopedRead<'scope, T>
    where
        T: Sync,
    {
        ScopedRead(*self)
    }

    /// Declares that an operation mutates the value; see [`Var::write`](crate::Var::write).
    pub fn write(&self) -> ScopedWrite<'scope, T> {
        ScopedWrite { var: *self, mode: Mode::Write }
    }

    /// Declares that an operation mutates the value even if the variable has failed; see
    /// [`Var::overwrite`](crate::Var::overwrite).
    pub fn overwrite(&self) -> ScopedWrite<'scope, T> {
        ScopedWrite { var: *self, mode: Mode::Overwrite }
    }

    /// Declares that an operation mutates the value, in no particular order among its neighbours that declare the same;
    /// see [`Var::commute`](crate::Var::commute).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(2).build()?;
    /// let mut total = 0;
    /// engine.try_scope(|s| {
    ///     let total = s.lend(&mut total);
    ///     (1..=4).try_for_each(|by| s.op("add").push(total.commute(), move |total| *total += by))?;
    ///     Ok(())
    /// })?;
    /// assert_eq!(total, 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn commute(&self) -> ScopedWrite<'scope, T> {
        ScopedWrite { var: *self, mode: Mode::Commute }
    }
}

/// A declaration that an operation reads a scope's variable, returned by [`ScopedVar::read`].
#[derive(Debug)]
#[must_use = "a declaration does nothing unless it is passed to an operation"]
pub struct ScopedRead<'scope, T: ?Sized>(ScopedVar<'scope, T>);

impl<T: ?Sized> Clone for ScopedRead<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: ?Sized> Copy for ScopedRead<'_, T> {}

/// A declaration that an operation mutates a scope's variable, returned by [`ScopedVar::write`],
/// [`ScopedVar::overwrite`] and [`ScopedVar::commute`].
#[derive(Debug)]
#[must_use = "a declaration does nothing unless it is passed to an operation"]
pub struct ScopedWrite<'scope, T: ?Sized> {
    var: ScopedVar<'scope, T>,
    mode: Mode,
}

/// The [`ScopedAccesses::Guards`] type for a scope's variables. It is uninhabited, since guards could outlive the
/// scope.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub enum NoGuards {}

impl<T: ?Sized> sealed::Sealed for ScopedRead<'_, T> {}
impl<'a, T: ?Sized> AccessRefs<'a, &'a Self> for ScopedRead<'_, T> {
    type Refs = &'a T;
}
impl<'scope, T: Send + Sync + ?Sized> ScopedAccesses for ScopedRead<'scope, T> {
    type Guards = NoGuards;
    type Captured = ScopedVar<'scope, T>;
    const REFERS: bool = true;

    fn declare(&self, list: &mut sealed::List<'_>) {
        list.0.push(Entry { cell: self.0.cell, mode: Mode::Read, refs: spec::RefKind::Shared });
    }

    fn capture(&self) -> Self::Captured {
        self.0
    }

    unsafe fn refs<'a>(captured: &Self::Captured, _: &'a OpContext<'a>) -> Refs<'a, Self>
    where
        Self: 'a,
    {
        // SAFETY: (1): the operation holds the variable for reading, so nothing mutates the value during `'a`. The
        // value is valid while the scope lasts, and the scope lasts until the operation has ended.
        unsafe { captured.value.as_ref() }
    }

    unsafe fn guards(_: &Self::Captured, _: &sealed::Share) -> NoGuards {
        unreachable!("operations of a scope have no guards")
    }
}

impl<T: ?Sized> sealed::Sealed for ScopedWrite<'_, T> {}
impl<'a, T: ?Sized> AccessRefs<'a, &'a Self> for ScopedWrite<'_, T> {
    type Refs = &'a mut T;
}
impl<'scope, T: Send + ?Sized> ScopedAccesses for ScopedWrite<'scope, T> {
    type Guards = NoGuards;
    type Captured = ScopedVar<'scope, T>;
    const REFERS: bool = true;

    fn declare(&self, list: &mut sealed::List<'_>) {
        list.0.push(Entry { cell: self.var.cell, mode: self.mode, refs: spec::RefKind::Exclusive });
    }

    fn capture(&self) -> Self::Captured {
        self.var
    }

    unsafe fn refs<'a>(captured: &Self::Captured, _: &'a OpContext<'a>) -> Refs<'a, Self>
    where
        Self: 'a,
    {
        let mut value = captured.value;
        // SAFETY: (1): the operation holds the variable for writing, so no other operation uses the value; (2): this
        // operation uses the value once. The value is valid while the scope lasts, and the scope lasts until the
        // operation has ended.
        unsafe { value.as_mut() }
    }

    unsafe fn guards(_: &Self::Captured, _: &sealed::Share) -> NoGuards {
        unreachable!("operations of a scope have no guards")
    }
}
