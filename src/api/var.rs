//! Typed handles to variables, and the declarations made from them.

use std::{
    fmt,
    hash::{Hash, Hasher},
    iter,
    marker::PhantomData,
    ptr::NonNull,
};

use super::{handle::VarWait, token::Token};
use crate::{error::op::OpError, op::variable::VarCell, tracker::Mode, values::Name};

/// A handle to a variable with a value.
///
/// Clones are handles to the same variable, and handles are equal if they refer to the same variable. Every method that
/// takes an `impl AsRef<Token>` accepts a `Var` as well as a [`Token`]. Operations use the value through
/// [`read`](Self::read), [`write`](Self::write) and [`overwrite`](Self::overwrite). Other code uses it through engine
/// methods such as [`Engine::get`](crate::Engine::get), which returns a clone. When the last handle is dropped, the
/// value is dropped after all operations on the variable, normally on a worker.
///
/// An operation's function can use a value only as declared by the operation:
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
/// The function cannot keep a reference to the value:
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
/// Values read by operations must be [`Sync`], since readers may run concurrently:
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
/// All values and everything captured by a function must be [`Send`]:
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
/// An operation's function cannot borrow from the stack of the pushing function, since it may outlive that function:
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

/// The variable alone, as for [`Token`].
impl<'v, T> IntoIterator for &'v Var<T> {
    type Item = &'v Var<T>;
    type IntoIter = iter::Once<&'v Var<T>>;

    fn into_iter(self) -> Self::IntoIter {
        iter::once(self)
    }
}

impl<T> AsRef<Token> for Var<T> {
    #[inline]
    fn as_ref(&self) -> &Token {
        &self.token
    }
}

impl<T> PartialEq for Var<T> {
    fn eq(&self, other: &Self) -> bool {
        self.token == other.token
    }
}

impl<T> Eq for Var<T> {}

impl<T> Hash for Var<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.token.hash(state);
    }
}

impl<T> Var<T> {
    /// Returns the variable's untyped handle.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let (disk, total) = (engine.token(), engine.var(0));
    /// engine.op("save").writes([&disk, total.token()]).push((), |()| {})?;
    /// engine.wait_for_all()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[inline]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Sets the variable's name, which appears in errors, dumps, traces and `Debug` output; see [`Token::named`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let frame = engine.var(vec![0u8; 1024]).named("frame");
    /// assert_eq!(frame.name(), Some("frame"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the handle is returned"]
    pub fn named(self, name: impl Into<Name>) -> Self {
        Self { token: self.token.named(name), ..self }
    }

    /// Returns the variable's name, if it has one.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// assert_eq!(engine.var(0).name(), None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.token.name()
    }

    /// Returns a future that waits for every mutation of the variable pushed before this call; see [`Token::ready`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let frame = engine.var(vec![0u8; 1024]);
    /// engine.op("draw").push(frame.write(), |frame| frame.fill(255))?;
    /// pollster::block_on(frame.ready())?;
    /// assert_eq!(frame.version(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn ready(&self) -> VarWait {
        self.token.ready()
    }

    /// Returns the failure that the variable has now, without a wait; see [`Token::failure`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let total = engine.var(0);
    /// assert!(total.failure().is_none());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn failure(&self) -> Option<OpError> {
        self.token.failure()
    }

    /// Returns the number of successful mutations of the variable; see [`Token::version`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let total = engine.var(0);
    /// engine.op("add").push(total.write(), |total| *total += 1)?;
    /// engine.wait_for_var(&total)?;
    /// assert_eq!(total.version(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn version(&self) -> u64 {
        self.token.version()
    }

    #[inline]
    pub(crate) fn ptr(&self) -> NonNull<VarCell> {
        self.token.ptr()
    }
}

impl<T: Send + 'static> Var<T> {
    /// Creates a handle from `token`, which was made with a value of type `T`.
    pub(crate) fn new(token: Token) -> Self {
        Self { token, value: PhantomData }
    }

    /// Declares that an operation reads the value. Its function receives `&T`. Consecutive readers may run
    /// concurrently.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let words = engine.var(vec!["warp", "weft"]);
    /// let count = engine.op("count").submit(words.read(), |words| words.len())?;
    /// assert_eq!(count.wait()?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&self) -> Read<'_, T>
    where
        T: Sync,
    {
        Read(self)
    }

    /// Declares that an operation mutates the value. Its function receives `&mut T`, and no other operation uses the
    /// value while this one runs.
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
    pub fn write(&self) -> Write<'_, T> {
        Write { var: self, mode: Mode::Write }
    }

    /// Declares that an operation mutates the value even if the variable has failed. As with [`write`](Self::write),
    /// the operation's function receives `&mut T`. If the operation succeeds, it clears the variable's error. If it
    /// fails, its own error replaces the old one.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let cache = engine.var(0);
    /// engine.op("load").try_push(cache.write(), |_| Err("no such file".into()))?;
    /// engine.op("reset").push(cache.overwrite(), |cache| *cache = 7)?;
    /// assert_eq!(engine.get(&cache)?, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn overwrite(&self) -> Write<'_, T> {
        Write { var: self, mode: Mode::Overwrite }
    }

    /// Declares that an operation mutates the value, and that it does not matter in which order it and its neighbours
    /// that declare the same do so. As with [`write`](Self::write), the operation's function receives `&mut T`, and no
    /// other operation uses the value while this one runs.
    ///
    /// Consecutive operations that commute on a variable run in any order, each as soon as all its variables are free.
    /// Before and after them, reads and writes are in push order, as around a single mutation. See the
    /// [guide](crate::guide::commuting).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(2).build()?;
    /// let (left, right) = (engine.var(0), engine.var(0));
    /// for by in 1..=4 {
    ///     engine.op("left").push(left.commute(), move |left| *left += by)?;
    ///     engine.op("both").push((left.commute(), right.commute()), move |(left, right)| {
    ///         *left += by;
    ///         *right += by;
    ///     })?;
    /// }
    /// assert_eq!((engine.get(&left)?, engine.get(&right)?), (20, 10));
    /// # Ok(())
    /// # }
    /// ```
    pub fn commute(&self) -> Commute<'_, T> {
        Commute(self)
    }
}

/// A declaration that an operation reads a variable, returned by [`Var::read`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let (step, total) = (engine.var(2), engine.var(0));
/// let read = step.read(); // one declaration for two operations
/// engine.op("add").push((read, total.write()), |(step, total)| *total += step)?;
/// engine.op("multiply").push((read, total.write()), |(step, total)| *total *= step)?;
/// assert_eq!(engine.get(&total)?, 4);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a declaration does nothing unless it is passed to an operation or to `acquire`"]
pub struct Read<'v, T>(pub(super) &'v Var<T>);

impl<T> Clone for Read<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Read<'_, T> {}

/// A declaration that an operation commutes on a variable, returned by [`Var::commute`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let sums: Vec<_> = (0..4).map(|_| engine.var(0)).collect();
/// let sums_of_all: Vec<_> = sums.iter().map(|sum| sum.commute()).collect(); // any number of them
/// engine.op("add").push(sums_of_all, |sums| sums.into_iter().for_each(|sum| *sum += 2))?;
/// assert_eq!(engine.get(&sums[3])?, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a declaration does nothing unless it is passed to an operation or to `acquire`"]
pub struct Commute<'v, T>(pub(super) &'v Var<T>);

/// A declaration that an operation mutates a variable, returned by [`Var::write`] and [`Var::overwrite`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let rows: Vec<_> = (0..4).map(|row| engine.var(row)).collect();
/// let writes: Vec<_> = rows.iter().map(|row| row.write()).collect(); // any number of them
/// engine.op("double").push(writes, |rows| rows.into_iter().for_each(|row| *row *= 2))?;
/// assert_eq!(engine.get(&rows[3])?, 6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a declaration does nothing unless it is passed to an operation or to `acquire`"]
pub struct Write<'v, T> {
    pub(super) var: &'v Var<T>,
    pub(super) mode: Mode,
}
