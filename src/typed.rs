//! Typed variables: operations get references to values, and the compiler checks how they use them.

use std::{fmt, marker::PhantomData, ops::Deref, ptr::NonNull};

use crate::{
    core::Entries,
    task::{Entry, Refs},
    tracker::Mode,
    variable::{self, Token, VarCell},
};

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
pub struct Read<'v, T>(&'v Var<T>);

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
    var: &'v Var<T>,
    mode: Mode,
}

/// The variables that a typed operation declares: [`Read`], [`Write`], tuples of up to twelve of them, arrays, `Vec`s and
/// slices (`&[_]`) of them, and any nesting of these. The operation's function gets the same shape of references; for
/// arrays an array, for `Vec`s and slices a `Vec`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(2).build()?;
/// let parts: Vec<_> = (1..=4).map(|n| engine.var(n)).collect();
/// let total = engine.var(0);
/// let reads: Vec<_> = parts.iter().map(|part| part.read()).collect();
/// engine.op("sum").push((reads, total.write()), |(parts, total)| {
///     *total = parts.into_iter().sum();
/// })?;
/// assert_eq!(engine.get(&total)?, 10);
/// # Ok(())
/// # }
/// ```
///
/// The trait is sealed: its methods are not for use outside this crate.
pub trait Accesses: sealed::Sealed {
    /// What the function gets.
    type Refs<'a>;
    /// What the operation keeps until it runs.
    #[doc(hidden)]
    type Kept: Send + Sync + 'static;

    #[doc(hidden)]
    fn declare(&self, list: &mut sealed::List<'_>);

    #[doc(hidden)]
    fn keep(&self) -> Self::Kept;

    /// # Safety
    /// 1. `kept` came from [`keep`](Self::keep), and an operation that declared the same holds its variables for `'a`.
    /// 2. No variable is named twice where one of the references is exclusive, and this is called once per run.
    #[doc(hidden)]
    unsafe fn refs<'a>(kept: &Self::Kept) -> Self::Refs<'a>;
}

pub(crate) mod sealed {
    use super::Entries;

    pub trait Sealed {}

    /// Where accesses declare themselves.
    #[derive(Debug)]
    pub struct List<'l>(pub(crate) &'l mut Entries);
}

/// A pointer to a value, kept by an operation that has declared its variable.
#[derive(Debug)]
#[doc(hidden)]
pub struct Kept<T>(NonNull<VarCell>, PhantomData<fn(T) -> T>);

// SAFETY: the pointer is only used by the operation, under the tracker's order; `Var::read` demands `T: Sync` and every
// variable `T: Send`.
unsafe impl<T> Send for Kept<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Kept<T> {}

impl<T> sealed::Sealed for Read<'_, T> {}
impl<T: Send + Sync + 'static> Accesses for Read<'_, T> {
    type Refs<'a> = &'a T;
    type Kept = Kept<T>;

    #[inline]
    fn declare(&self, list: &mut sealed::List<'_>) {
        list.0.push(Entry { cell: self.0.ptr(), mode: Mode::Read, refs: Refs::Shared });
    }

    fn keep(&self) -> Kept<T> {
        Kept(self.0.ptr(), PhantomData)
    }

    unsafe fn refs<'a>(kept: &Kept<T>) -> &'a T {
        // SAFETY: (1): the operation holds the variable for reading, so nobody mutates the value; it is the value's type,
        // and what drops the value comes after this operation in the variable's order.
        let value = unsafe { variable::value_ptr::<T>(kept.0) };
        // SAFETY: as above.
        unsafe { &*value }
    }
}

impl<T> sealed::Sealed for Write<'_, T> {}
impl<T: Send + 'static> Accesses for Write<'_, T> {
    type Refs<'a> = &'a mut T;
    type Kept = Kept<T>;

    #[inline]
    fn declare(&self, list: &mut sealed::List<'_>) {
        list.0.push(Entry { cell: self.var.ptr(), mode: self.mode, refs: Refs::Exclusive });
    }

    fn keep(&self) -> Kept<T> {
        Kept(self.var.ptr(), PhantomData)
    }

    unsafe fn refs<'a>(kept: &Kept<T>) -> &'a mut T {
        // SAFETY: (1): the operation holds the variable for writing, so nobody else uses the value; (2): nor does this
        // operation a second time.
        let value = unsafe { variable::value_ptr::<T>(kept.0) };
        // SAFETY: as above.
        unsafe { &mut *value }
    }
}

impl<A: Accesses> sealed::Sealed for Vec<A> {}
impl<A: Accesses> Accesses for Vec<A> {
    type Refs<'a> = Vec<A::Refs<'a>>;
    type Kept = Box<[A::Kept]>;

    #[inline]
    fn declare(&self, list: &mut sealed::List<'_>) {
        self.iter().for_each(|access| access.declare(list));
    }

    fn keep(&self) -> Self::Kept {
        self.iter().map(A::keep).collect()
    }

    unsafe fn refs<'a>(kept: &Self::Kept) -> Self::Refs<'a> {
        // SAFETY: the caller's contract, for each.
        kept.iter().map(|kept| unsafe { A::refs(kept) }).collect()
    }
}

impl<A: Accesses> sealed::Sealed for &[A] {}
impl<A: Accesses> Accesses for &[A] {
    type Refs<'a> = Vec<A::Refs<'a>>;
    type Kept = Box<[A::Kept]>;

    #[inline]
    fn declare(&self, list: &mut sealed::List<'_>) {
        self.iter().for_each(|access| access.declare(list));
    }

    fn keep(&self) -> Self::Kept {
        self.iter().map(A::keep).collect()
    }

    unsafe fn refs<'a>(kept: &Self::Kept) -> Self::Refs<'a> {
        // SAFETY: the caller's contract, for each.
        kept.iter().map(|kept| unsafe { A::refs(kept) }).collect()
    }
}

impl<A: Accesses, const N: usize> sealed::Sealed for [A; N] {}
impl<A: Accesses, const N: usize> Accesses for [A; N] {
    type Refs<'a> = [A::Refs<'a>; N];
    type Kept = [A::Kept; N];

    #[inline]
    fn declare(&self, list: &mut sealed::List<'_>) {
        self.iter().for_each(|access| access.declare(list));
    }

    fn keep(&self) -> Self::Kept {
        self.each_ref().map(A::keep)
    }

    unsafe fn refs<'a>(kept: &Self::Kept) -> Self::Refs<'a> {
        // SAFETY: the caller's contract, for each.
        kept.each_ref().map(|kept| unsafe { A::refs(kept) })
    }
}

impl sealed::Sealed for () {}
impl Accesses for () {
    type Refs<'a> = ();
    type Kept = ();

    fn declare(&self, _: &mut sealed::List<'_>) {}

    fn keep(&self) {}

    unsafe fn refs<'a>((): &()) -> Self::Refs<'a> {}
}

macro_rules! tuples {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Accesses),*> sealed::Sealed for ($($name,)*) {}
        impl<$($name: Accesses),*> Accesses for ($($name,)*) {
            type Refs<'a> = ($($name::Refs<'a>,)*);
            type Kept = ($($name::Kept,)*);

            #[inline]
    fn declare(&self, list: &mut sealed::List<'_>) {
                $(self.$index.declare(list);)*
            }

            fn keep(&self) -> Self::Kept {
                ($(self.$index.keep(),)*)
            }

            unsafe fn refs<'a>(kept: &Self::Kept) -> Self::Refs<'a> {
                // SAFETY: the caller's contract, for each.
                ($(unsafe { $name::refs(&kept.$index) },)*)
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);
