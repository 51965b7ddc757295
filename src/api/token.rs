//! The untyped handle to a variable.

use std::{
    ffi::c_void,
    fmt,
    hash::{Hash, Hasher},
    iter,
    mem::ManuallyDrop,
    panic::Location,
    ptr::NonNull,
    sync::Arc,
};

use super::handle::VarWait;
use crate::{
    engine::core::Core,
    error::{
        op::OpError,
        push_error::{Misfit, PushError},
    },
    group::family::Family,
    op::{
        spec::Entry,
        variable::{ValueMemory, VarCell, VarRef},
        variables,
        waits::WaitFor,
    },
    values::Name,
    wait,
};

/// An untyped handle to a variable. The variable either represents something outside the engine or has a value and a
/// typed handle, [`Var`](crate::Var).
///
/// Clones are handles to the same variable, and handles are equal if they refer to the same variable. When the last
/// handle is dropped, the variable is deleted after every operation on it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let disk = engine.token();
/// engine.op("flush").writes([&disk]).push((), |()| { /* something outside the engine */ })?;
/// engine.wait_for_var(&disk)?;
/// assert!(disk == disk.clone() && disk != engine.token());
/// # Ok(())
/// # }
/// ```
///
/// A handle is the address of the variable, and may be stored as such, for instance in memory of C:
/// [`into_raw`](Self::into_raw).
#[repr(transparent)]
pub struct Token(NonNull<VarCell>);

// SAFETY: a handle uses the cell only through shared references, and a `VarCell` is `Send` and `Sync`.
unsafe impl Send for Token {}
// SAFETY: as for `Send`.
unsafe impl Sync for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = self.cell();
        f.debug_struct("Token")
            .field("id", &cell.queue().id())
            .field("name", &self.name().unwrap_or_default())
            .field("version", &cell.version())
            .finish_non_exhaustive()
    }
}

impl Token {
    /// Creates a handle for a new variable, whose only handle this is.
    pub(super) fn new(cell: NonNull<VarCell>) -> Self {
        Self(cell)
    }

    /// Converts the handle into an address, which owns it until [`from_raw`](Self::from_raw) restores it. A handle has
    /// the layout of this address, so a program may also read an array of addresses as handles.
    ///
    /// ```
    /// # let engine = raddle::Engine::builder().workers(1).build().unwrap();
    /// let disk = engine.token();
    /// let address = disk.clone().into_raw();
    /// // SAFETY: the address came from `into_raw`, and is used once.
    /// assert_eq!(unsafe { raddle::Token::from_raw(address) }, disk);
    /// ```
    #[must_use = "the address owns the handle"]
    pub fn into_raw(self) -> NonNull<c_void> {
        ManuallyDrop::new(self).0.cast()
    }

    /// Restores a handle from its address.
    ///
    /// # Safety
    /// 1. The address came from [`into_raw`](Self::into_raw), and no other handle was restored from it. One in a
    ///    [`ManuallyDrop`] may be, as long as the address or another handle owns the variable.
    pub unsafe fn from_raw(address: NonNull<c_void>) -> Self {
        Self(address.cast())
    }

    /// Creates a variable with a value.
    pub(crate) fn with_value<T: Send + 'static>(core: &Arc<Core>, value: T, memory: ValueMemory) -> Self {
        Self(VarCell::with_value(core, value, memory))
    }

    /// Creates a variable for the children in `family`. Returns [`Misfit::NotAParent`] if there is no family.
    pub(super) fn of_family<T: Send + 'static>(family: Option<&Family>, value: T) -> Result<Self, PushError> {
        match family {
            Some(family) => family.create_var(value).map(Self),
            None => Err(PushError::Unfit(Misfit::NotAParent)),
        }
    }

    /// Creates another handle to the variable of `entry`.
    ///
    /// # Safety
    /// 1. The variable has a handle throughout the call.
    pub(crate) unsafe fn from_entry(entry: &Entry) -> Self {
        let token = ManuallyDrop::new(Self(entry.cell));
        Self::clone(&token)
    }

    #[inline]
    pub(crate) fn ptr(&self) -> NonNull<VarCell> {
        self.0
    }

    /// Returns a reference to the variable that borrows this handle.
    pub(crate) fn var(&self) -> VarRef<'_> {
        // SAFETY: `self` is a handle to the variable, and outlives the reference.
        unsafe { VarRef::new(self.0) }
    }

    #[inline]
    pub(crate) fn cell(&self) -> &VarCell {
        // SAFETY: a handle keeps the cell alive.
        unsafe { self.0.as_ref() }
    }
}

/// The token alone, so that [`OpBuilder::reads`](crate::OpBuilder::reads) and the like take `&token` as well as
/// `[&token]`.
impl<'t> IntoIterator for &'t Token {
    type Item = &'t Token;
    type IntoIter = iter::Once<&'t Token>;

    fn into_iter(self) -> Self::IntoIter {
        iter::once(self)
    }
}

impl AsRef<Token> for Token {
    #[inline]
    fn as_ref(&self) -> &Token {
        self
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Token {}

impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Token {
    /// Sets the variable's name, which appears in errors, dumps, traces and `Debug` output and is visible through all
    /// handles. A variable keeps its first name; later calls have no effect.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let disk = engine.token().named("disk");
    /// assert_eq!(disk.clone().named("tape").name(), Some("disk"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the handle is returned"]
    pub fn named(self, name: impl Into<Name>) -> Self {
        let cell = self.cell();
        cell.set_name(name.into());
        cell.name().into_iter().for_each(|name| cell.core().log_name(cell.queue().id(), name));
        self
    }

    /// Returns the variable's name, if it has one.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// assert_eq!(engine.token().named("disk").name(), Some("disk"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.cell().name().map(Name::as_str)
    }

    /// Returns a future that waits for every mutation of the variable pushed before this call. This method is like
    /// [`Engine::wait_to_read_async`](crate::Engine::wait_to_read_async), but needs no handle to the engine.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let disk = engine.token();
    /// engine.op("flush").writes([&disk]).push((), |()| {})?;
    /// pollster::block_on(disk.ready())?;
    /// assert_eq!(disk.version(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn ready(&self) -> VarWait {
        VarWait::new(wait::begin(self.cell().core(), self.var(), WaitFor::Writers, Location::caller()))
    }

    /// Returns the number of successful mutations of the variable. Skipped, failed and cancelled mutations do not
    /// count. Other threads may increase the count at any time. The writes of all counted mutations are visible to the
    /// caller.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let disk = engine.token();
    /// engine.op("flush").writes([&disk]).push((), |()| {})?;
    /// engine.wait_for_var(&disk)?;
    /// assert_eq!(disk.version(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn version(&self) -> u64 {
        self.cell().version()
    }
}

impl Token {
    /// Returns the failure that the variable has now, without a wait. An operation that is pending may change it at any
    /// time, so this is for reports and for what is known to have ended; a [wait](crate::Engine::wait_for_var) returns
    /// the failure at its place in the order. The failure does not count as reported. In a forked child, returns
    /// `None`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let disk = engine.token();
    /// let flushed = engine.op("flush").writes([&disk]).try_submit((), |()| -> Result<(), _> { Err("it is full".into()) })?;
    /// assert!(flushed.wait().is_err());
    /// assert_eq!(disk.failure().expect("`flush` has failed").name(), "flush");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn failure(&self) -> Option<OpError> {
        self.cell().look_at_failure()
    }
}

impl Clone for Token {
    fn clone(&self) -> Self {
        self.cell().add_handle();
        Self(self.0)
    }
}

impl Drop for Token {
    #[track_caller]
    fn drop(&mut self) {
        if self.cell().remove_handle() {
            variables::free_variable(self.0, Location::caller());
        }
    }
}
