//! Typed handles of variables, and the declarations made from them.

use std::{fmt, marker::PhantomData, ops::Deref};

use super::token::Token;
use crate::tracker::Mode;

/// A handle of a variable with a value.
///
/// Clones are the same variable. It derefs to [`Token`], so it can stand wherever an untyped variable can. The value is only
/// reached by operations, through [`read`](Self::read), [`write`](Self::write) and [`overwrite`](Self::overwrite), or cloned
/// out by [`Engine::get`](crate::Engine::get). When the last handle is dropped, the value is dropped on a worker after
/// every operation on it.
///
/// An operation gets what it declared and no more:
///
/// ```compile_fail,E0594
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let total = engine.var(0u32);
/// engine.op("add").push(total.read(), |total| *total += 1)?; // declared as read
/// # Ok(())
/// # }
/// ```
///
/// and cannot keep it:
///
/// ```compile_fail
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let total = engine.var(0u32);
/// let mut kept: &u32 = &0;
/// engine.op("keep").push(total.read(), move |total| kept = total)?;
/// # Ok(())
/// # }
/// ```
///
/// Values that several readers may share must be [`Sync`]:
///
/// ```compile_fail,E0277
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let cell = engine.var(std::cell::Cell::new(0u32));
/// engine.op("look").push(cell.read(), |cell| assert_eq!(cell.get(), 0))?;
/// # Ok(())
/// # }
/// ```
///
/// and all values, and what the function captures, [`Send`]:
///
/// ```compile_fail,E0277
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let shared = engine.var(std::rc::Rc::new(0u32));
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0277
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let (total, local) = (engine.var(0u32), std::rc::Rc::new(1));
/// engine.op("add").push(total.write(), move |total| *total += *local)?;
/// # Ok(())
/// # }
/// ```
///
/// A function may not borrow from the pushing function's stack, which it can outlive:
///
/// ```compile_fail,E0373
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let (total, step) = (engine.var(0u32), 3);
/// engine.op("add").push(total.write(), |total| *total += step)?;
/// # Ok(())
/// # }
/// ```
pub struct Var<T> {
    token: Token,
    value: PhantomData<fn(T) -> T>,
}

impl<T> Clone for Var<T> {
    fn clone(&self) -> Self {
        Self { token: self.token.clone(), value: PhantomData }
    }
}

impl<T> fmt::Debug for Var<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Var").field("token", &self.token).finish()
    }
}

impl<T> Deref for Var<T> {
    type Target = Token;

    fn deref(&self) -> &Token {
        &self.token
    }
}

impl<T: Send + 'static> Var<T> {
    /// `token` was made with a value of type `T`.
    pub(crate) fn new(token: Token) -> Self {
        Self { token, value: PhantomData }
    }

    /// Declares that an operation reads the value: it gets `&T`. Consecutive readers run side by side.
    pub fn read(&self) -> Read<'_, T>
    where
        T: Sync,
    {
        Read(self)
    }

    /// Declares that an operation mutates the value: it gets `&mut T`, alone.
    pub fn write(&self) -> Write<'_, T> {
        Write { var: self, mode: Mode::Write }
    }

    /// Declares that an operation mutates the value whatever it was: it gets `&mut T`, alone, it is not skipped because the
    /// variable has failed, and its success ends the failure.
    pub fn overwrite(&self) -> Write<'_, T> {
        Write { var: self, mode: Mode::Overwrite }
    }
}

/// The declaration that an operation reads a variable; from [`Var::read`].
#[derive(Debug)]
#[must_use = "a declaration does nothing until it is pushed"]
pub struct Read<'v, T>(pub(super) &'v Var<T>);

impl<T> Clone for Read<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Read<'_, T> {}

/// The declaration that an operation mutates a variable; from [`Var::write`] and [`Var::overwrite`].
#[derive(Debug)]
#[must_use = "a declaration does nothing until it is pushed"]
pub struct Write<'v, T> {
    pub(super) var: &'v Var<T>,
    pub(super) mode: Mode,
}
