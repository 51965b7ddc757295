//! Turns an operation's declarations into the references that its function receives.

use std::{cell::Cell, marker::PhantomData, ptr::NonNull};

use super::{
    future_context::FutureContext,
    guards::{ReadGuard, WriteGuard},
    op_context::OpContext,
    token::Token,
    var::{Commute, Read, Var, Write},
};
use crate::{
    device::stream::GpuStream,
    op::{
        spec::{self, Entries, Entry},
        variable::{self, VarCell},
    },
    tracker::Mode,
};

/// The accesses that an operation declares in its push method: [`Read`], [`Write`], [`Commute`],
/// [`ReadPart`](crate::ReadPart), [`WritePart`](crate::WritePart), [`Cx`], [`OnStream`],
/// [`Completes`](crate::access::Completes), tuples of up to twelve of them, arrays, `Vec`s, slices (`&[_]`) and
/// `Option`s of them, and any nesting of these. The operation's function receives references in the same shape: an
/// array for an array, and a `Vec` for a `Vec` or a slice. For a `None`, the operation names no variable and the
/// function receives `None`. An operation without typed accesses declares `()`.
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
/// With the feature `derive`, a struct of accesses can derive this trait; the function then receives a struct of
/// references:
///
/// ```
/// # #[cfg(feature = "derive")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Accesses, Read, Write};
///
/// #[derive(Accesses)]
/// struct Step<'v> {
///     weights: Write<'v, Vec<f32>>,
///     gradient: Read<'v, Vec<f32>>,
/// }
///
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let (weights, gradient) = (engine.var(vec![1.0f32]), engine.var(vec![0.25f32]));
/// let step = Step { weights: weights.write(), gradient: gradient.read() };
/// engine.op("step").push(step, |step| step.weights[0] -= step.gradient[0])?;
/// assert_eq!(engine.get(&weights)?, [0.75]);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "derive"))]
/// # fn main() {}
/// ```
///
/// The trait is sealed: only the types above implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not declare what an operation reads and mutates",
    label = "not a declaration: of a variable, pass `.read()`, `.write()`, `.overwrite()` or `.commute()`",
    note = "declare a variable: `.read()`, `.write()`, `.overwrite()` or `.commute()`; declare the operation's context: `raddle::cx()`",
    note = "declare a part of an array: `.read()`, `.write()` or `.overwrite()`",
    note = "declare what else the function receives: `raddle::stream()`, `raddle::completion()`",
    note = "a tuple has at most twelve elements: nest tuples beyond twelve",
    note = "pass an iterator of declarations through `raddle::each`",
    note = "a field of `#[derive(Accesses)]` is a `Read`, a `Write`, a `Commute`, a `ReadPart`, a `WritePart`, a `Cx`, an `OnStream`, a `Completes`, or a tuple, an array, an `Option` or a struct of those"
)]
pub trait Accesses: ScopedAccesses<Captured: 'static> {}

#[diagnostic::do_not_recommend]
impl<A: ScopedAccesses<Captured: 'static>> Accesses for A {}

/// The accesses that an operation in a [scope](crate::Engine::scope) declares: those listed under [`Accesses`], plus
/// [`ScopedRead`](crate::ScopedRead) and [`ScopedWrite`](crate::ScopedWrite) for the scope's own variables.
///
/// The trait is sealed, and its items are private to this crate.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not declare what an operation reads and mutates",
    label = "not a declaration: of a variable, pass `.read()`, `.write()`, `.overwrite()` or `.commute()`",
    note = "declare a variable: `.read()`, `.write()`, `.overwrite()` or `.commute()`; declare the operation's context: `raddle::cx()`",
    note = "declare a part of an array: `.read()`, `.write()` or `.overwrite()`",
    note = "declare what else the function receives: `raddle::stream()`, `raddle::completion()`",
    note = "a tuple has at most twelve elements: nest tuples beyond twelve",
    note = "pass an iterator of declarations through `raddle::each`",
    note = "a field of `#[derive(Accesses)]` is a `Read`, a `Write`, a `Commute`, a `ReadPart`, a `WritePart`, a `Cx`, an `OnStream`, a `Completes`, or a tuple, an array, an `Option` or a struct of those"
)]
pub trait ScopedAccesses: sealed::Sealed + for<'a> AccessRefs<'a> {
    /// The guards that [`Engine::acquire`](crate::Engine::acquire) resolves to and that functions passed to
    /// [`OpBuilder::push_future`](crate::OpBuilder::push_future) receive: a [`ReadGuard`] for a [`Read`], a
    /// [`WriteGuard`] for a [`Write`] or [`Commute`], and a [`FutureContext`] for a [`Cx`].
    type Guards: Send + 'static;
    /// The pointers that the operation stores until it runs.
    #[doc(hidden)]
    type Captured: Send + Sync;
    /// Whether the function receives references to values, which must not outlive the operation.
    #[doc(hidden)]
    const REFERS: bool;

    /// Whether the operation may commute on a variable, so that its push takes additional steps.
    #[doc(hidden)]
    const COMMUTES: bool = false;

    /// The kind of operation that declares these accesses.
    #[doc(hidden)]
    const KIND: sealed::Kind = sealed::Kind::Function;

    /// The number of accesses, if the type determines it and each can be asked for with [`at`](Self::at).
    #[doc(hidden)]
    const COUNT: Option<usize> = None;

    #[doc(hidden)]
    fn declare(&self, list: &mut sealed::List<'_>);

    /// Returns access `at`, counted from 0 in the order in which `declare` adds them. A push that knows the number of
    /// accesses calls this instead of `declare`: the compiler cannot always keep a list out of memory.
    #[doc(hidden)]
    fn at(&self, at: usize) -> Option<sealed::Declared> {
        let _ = at;
        None
    }

    #[doc(hidden)]
    fn capture(&self) -> Self::Captured;

    /// Returns the references to the values.
    ///
    /// # Safety
    /// 1. `captured` came from [`capture`](Self::capture), and an operation that declared the same accesses holds its
    ///    variables for `'a`.
    /// 2. No variable is named twice where one of the references is exclusive, and this is called once per run.
    #[doc(hidden)]
    unsafe fn refs<'a>(captured: &Self::Captured, cx: &'a OpContext<'a>) -> Refs<'a, Self>
    where
        Self: 'a;

    /// Returns the guards for the values.
    ///
    /// # Safety
    /// 1. `captured` came from [`capture`](Self::capture), and the operation of `share` declares the same accesses and
    ///    holds its variables while it has shares.
    /// 2. No variable is named twice where one of the guards is exclusive, and this is called once per run, instead of
    ///    `refs`.
    #[doc(hidden)]
    unsafe fn guards(captured: &Self::Captured, share: &sealed::Share) -> Self::Guards;
}

/// The references that an operation's function receives for the accesses `A`, valid for the lifetime `'a` of the call.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Accesses, Engine, PushError, access::Refs};
///
/// /// Pushes an operation, and counts it.
/// fn push_counted<A, F>(engine: &Engine, count: &mut usize, accesses: A, f: F) -> Result<(), PushError>
/// where
///     A: Accesses,
///     F: for<'a> FnOnce(Refs<'a, A>) + Send + 'static,
/// {
///     *count += 1;
///     engine.op("counted").push(accesses, f)
/// }
///
/// let engine = Engine::builder().workers(1).build()?;
/// let (total, mut count) = (engine.var(0), 0);
/// push_counted(&engine, &mut count, total.write(), |total| *total += 2)?;
/// assert_eq!((engine.get(&total)?, count), (2, 1));
/// # Ok(())
/// # }
/// ```
pub type Refs<'a, A> = <A as AccessRefs<'a>>::Refs;

/// The references with lifetime `'a` that accesses yield while an operation runs. Programs refer to them as [`Refs`].
///
/// `Outlives` is always `&'a Self`. It tells the compiler that the variables' values live for `'a`, so a value may
/// borrow data that lives only as long as a [scope](crate::Engine::scope).
pub trait AccessRefs<'a, Outlives = &'a Self> {
    /// The references that the function receives.
    type Refs;
}

pub(crate) mod sealed {
    use super::{Entries, Entry};
    pub use crate::future::held::Share;

    #[diagnostic::on_unimplemented(
        message = "`{Self}` does not declare what an operation reads and mutates",
        label = "not a declaration of accesses"
    )]
    pub trait Sealed {}

    /// A marker trait that `#[derive(Accesses)]` implements alongside [`ScopedAccesses`](super::ScopedAccesses).
    ///
    /// # Safety
    /// 1. `declare` and `capture` call the same-named function of every field, both in the same order, and do nothing
    ///    else.
    /// 2. `COUNT` and `at` have their defaults.
    /// 3. `refs` and `guards` call the same-named function of every field once, with the pointers captured by that
    ///    field.
    pub unsafe trait Derived {}

    #[diagnostic::do_not_recommend]
    impl<A: Derived> Sealed for A {}

    /// What the accesses make of an operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        /// It runs on a worker and ends with its function.
        Function,
        /// It issues work on a stream.
        Stream,
        /// It ends with its completion.
        Completion,
        /// Nothing, since it declares more than one stream or completion, or may declare none.
        Mixed,
    }

    impl Kind {
        /// Returns the kind of an operation that declares accesses of both kinds.
        #[must_use]
        pub const fn and(self, other: Self) -> Self {
            match (self, other) {
                (Self::Function, kind) | (kind, Self::Function) => kind,
                _ => Self::Mixed,
            }
        }

        /// Returns the kind of an operation that declares any number of accesses of this kind, perhaps none.
        #[must_use]
        pub const fn repeated(self) -> Self {
            self.and(self)
        }

        pub(crate) const fn is(self, other: Self) -> bool {
            self as u8 == other as u8
        }
    }

    /// The list to which accesses add their declarations.
    #[derive(Debug)]
    pub struct List<'l>(pub(crate) &'l mut Entries);

    /// The declaration of one access.
    #[derive(Debug)]
    pub struct Declared(pub(crate) Entry);
}

/// A pointer to a variable with a value of type `T`, captured for an operation that declares the variable.
#[derive(Debug)]
#[doc(hidden)]
pub struct Captured<T>(NonNull<VarCell>, PhantomData<fn(T) -> T>);

// SAFETY: only the operation uses the pointer, and the tracker orders all conflicting uses of the value. `Var::read`
// requires `T: Sync`, and every variable requires `T: Send`.
unsafe impl<T> Send for Captured<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Captured<T> {}

impl<T> Read<'_, T> {
    #[inline(always)]
    fn entry(&self) -> Entry {
        Entry { cell: self.0.ptr(), mode: Mode::Read, refs: spec::RefKind::Shared }
    }
}

impl<T> sealed::Sealed for Read<'_, T> {}
impl<'a, T> AccessRefs<'a, &'a Self> for Read<'_, T> {
    type Refs = &'a T;
}
impl<T: Send + Sync + 'static> ScopedAccesses for Read<'_, T> {
    type Guards = ReadGuard<T>;
    type Captured = Captured<T>;
    const REFERS: bool = true;

    const COUNT: Option<usize> = Some(1);

    #[inline(always)]
    fn declare(&self, list: &mut sealed::List<'_>) {
        list.0.push(self.entry());
    }

    #[inline(always)]
    fn at(&self, _: usize) -> Option<sealed::Declared> {
        Some(sealed::Declared(self.entry()))
    }

    fn capture(&self) -> Captured<T> {
        Captured(self.0.ptr(), PhantomData)
    }

    unsafe fn refs<'a>(captured: &Captured<T>, _: &'a OpContext<'a>) -> &'a T
    where
        Self: 'a,
    {
        // SAFETY: (1): the operation holds the variable for reading, so nothing mutates the value during `'a`. The
        // value has the type `T`, and its drop follows this operation in the queue.
        let value = unsafe { variable::value_ptr::<T>(captured.0) };
        // SAFETY: (1): the operation holds the variable.
        unsafe { &*value }
    }

    unsafe fn guards(captured: &Captured<T>, share: &sealed::Share) -> ReadGuard<T> {
        // SAFETY: (1): the operation declares the variable, whose value has this type.
        let value = unsafe { variable::value_ptr::<T>(captured.0) };
        // SAFETY: `value` points into a cell, so it is not null.
        let value = unsafe { NonNull::new_unchecked(value) };
        // SAFETY: (1): the operation holds the variable for reading, so nothing mutates the value while the guard has
        // its share.
        unsafe { ReadGuard::new(value, share.another()) }
    }
}

impl<T> Write<'_, T> {
    #[inline(always)]
    fn entry(&self) -> Entry {
        Entry { cell: self.var.ptr(), mode: self.mode, refs: spec::RefKind::Exclusive }
    }
}

impl<T> sealed::Sealed for Write<'_, T> {}
impl<'a, T> AccessRefs<'a, &'a Self> for Write<'_, T> {
    type Refs = &'a mut T;
}
impl<T: Send + 'static> ScopedAccesses for Write<'_, T> {
    type Guards = WriteGuard<T>;
    type Captured = Captured<T>;
    const REFERS: bool = true;

    const COUNT: Option<usize> = Some(1);

    #[inline(always)]
    fn declare(&self, list: &mut sealed::List<'_>) {
        list.0.push(self.entry());
    }

    #[inline(always)]
    fn at(&self, _: usize) -> Option<sealed::Declared> {
        Some(sealed::Declared(self.entry()))
    }

    fn capture(&self) -> Captured<T> {
        Captured(self.var.ptr(), PhantomData)
    }

    unsafe fn refs<'a>(captured: &Captured<T>, _: &'a OpContext<'a>) -> &'a mut T
    where
        Self: 'a,
    {
        // SAFETY: (1): the operation holds the variable for writing, so no other operation uses the value; (2): this
        // operation uses the value once.
        let value = unsafe { variable::value_ptr::<T>(captured.0) };
        // SAFETY: (1): the operation holds the variable for writing; (2): it uses the value once.
        unsafe { &mut *value }
    }

    unsafe fn guards(captured: &Captured<T>, share: &sealed::Share) -> WriteGuard<T> {
        // SAFETY: (1): the operation declares the variable, whose value has this type.
        let value = unsafe { variable::value_ptr::<T>(captured.0) };
        // SAFETY: `value` points into a cell, so it is not null.
        let value = unsafe { NonNull::new_unchecked(value) };
        // SAFETY: (1): the operation holds the variable for writing, so no other operation uses the value; (2): the
        // operation has no other guard for the variable.
        unsafe { WriteGuard::new(value, share.another()) }
    }
}

impl<T> Commute<'_, T> {
    #[inline(always)]
    fn entry(&self) -> Entry {
        Entry { cell: self.0.ptr(), mode: Mode::Commute, refs: spec::RefKind::Exclusive }
    }
}

impl<T> sealed::Sealed for Commute<'_, T> {}
impl<'a, T> AccessRefs<'a, &'a Self> for Commute<'_, T> {
    type Refs = &'a mut T;
}
impl<T: Send + 'static> ScopedAccesses for Commute<'_, T> {
    type Guards = WriteGuard<T>;
    type Captured = Captured<T>;
    const REFERS: bool = true;
    const COMMUTES: bool = true;
    const COUNT: Option<usize> = Some(1);

    #[inline(always)]
    fn declare(&self, list: &mut sealed::List<'_>) {
        list.0.push(self.entry());
    }

    #[inline(always)]
    fn at(&self, _: usize) -> Option<sealed::Declared> {
        Some(sealed::Declared(self.entry()))
    }

    fn capture(&self) -> Captured<T> {
        Captured(self.0.ptr(), PhantomData)
    }

    unsafe fn refs<'a>(captured: &Captured<T>, cx: &'a OpContext<'a>) -> &'a mut T
    where
        Self: 'a,
    {
        // SAFETY: (1): the operation holds the variable, and has its turn, so no other operation uses the value; (2).
        unsafe { Write::<T>::refs(captured, cx) }
    }

    unsafe fn guards(captured: &Captured<T>, share: &sealed::Share) -> WriteGuard<T> {
        // SAFETY: (1): the operation holds the variable, and has its turn, so no other operation uses the value; (2).
        unsafe { Write::<T>::guards(captured, share) }
    }
}

impl<A: ScopedAccesses> sealed::Sealed for Vec<A> {}
impl<'a, A: AccessRefs<'a>> AccessRefs<'a, &'a Self> for Vec<A> {
    type Refs = Vec<A::Refs>;
}
impl<A: ScopedAccesses> ScopedAccesses for Vec<A> {
    type Guards = Vec<A::Guards>;
    type Captured = Box<[A::Captured]>;
    const REFERS: bool = A::REFERS;
    const COMMUTES: bool = A::COMMUTES;
    const KIND: sealed::Kind = A::KIND.repeated();

    #[inline]
    fn declare(&self, list: &mut sealed::List<'_>) {
        self.as_slice().declare(list);
    }

    fn capture(&self) -> Self::Captured {
        self.as_slice().capture()
    }

    unsafe fn refs<'a>(captured: &Self::Captured, cx: &'a OpContext<'a>) -> Refs<'a, Self>
    where
        Self: 'a,
    {
        // SAFETY: the caller's contract: a slice captures the same pointers, and its `refs` has the same contract.
        unsafe { <&[A]>::refs(captured, cx) }
    }

    unsafe fn guards(captured: &Self::Captured, share: &sealed::Share) -> Self::Guards {
        // SAFETY: the caller's contract: a slice captures the same pointers, and its `guards` has the same contract.
        unsafe { <&[A]>::guards(captured, share) }
    }
}

/// Declares every access that an iterator yields. The operation's function receives a `Vec` of the references, in the
/// same order.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::each;
///
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let cells: Vec<_> = (0..10).map(|n| engine.var(n)).collect();
/// engine.op("reset the even ones").push(each(cells.iter().step_by(2).map(|cell| cell.write())), |cells| {
///     cells.into_iter().for_each(|cell| *cell = 0);
/// })?;
/// assert_eq!((engine.get(&cells[4])?, engine.get(&cells[5])?), (0, 5));
/// # Ok(())
/// # }
/// ```
#[must_use = "a declaration does nothing unless it is passed to an operation or to `acquire`"]
pub fn each<I: IntoIterator<Item: ScopedAccesses>>(declarations: I) -> Vec<I::Item> {
    declarations.into_iter().collect()
}

impl<A: ScopedAccesses> sealed::Sealed for &[A] {}
impl<'a, A: AccessRefs<'a>> AccessRefs<'a, &'a Self> for &[A] {
    type Refs = Vec<A::Refs>;
}
impl<A: ScopedAccesses> ScopedAccesses for &[A] {
    type Guards = Vec<A::Guards>;
    type Captured = Box<[A::Captured]>;
    const REFERS: bool = A::REFERS;
    const COMMUTES: bool = A::COMMUTES;
    const KIND: sealed::Kind = A::KIND.repeated();

    #[inline]
    fn declare(&self, list: &mut sealed::List<'_>) {
        self.iter().for_each(|access| access.declare(list));
    }

    fn capture(&self) -> Self::Captured {
        self.iter().map(A::capture).collect()
    }

    unsafe fn refs<'a>(captured: &Self::Captured, cx: &'a OpContext<'a>) -> Refs<'a, Self>
    where
        Self: 'a,
    {
        // SAFETY: the caller's contract holds for each part.
        captured.iter().map(|captured| unsafe { A::refs(captured, cx) }).collect()
    }

    unsafe fn guards(captured: &Self::Captured, share: &sealed::Share) -> Self::Guards {
        // SAFETY: the caller's contract holds for each part.
        captured.iter().map(|captured| unsafe { A::guards(captured, share) }).collect()
    }
}

impl<A: ScopedAccesses, const N: usize> sealed::Sealed for [A; N] {}
impl<'a, A: AccessRefs<'a>, const N: usize> AccessRefs<'a, &'a Self> for [A; N] {
    type Refs = [A::Refs; N];
}
impl<A: ScopedAccesses, const N: usize> ScopedAccesses for [A; N] {
    type Guards = [A::Guards; N];
    type Captured = [A::Captured; N];
    const REFERS: bool = A::REFERS;
    const COMMUTES: bool = A::COMMUTES;
    const KIND: sealed::Kind = A::KIND.repeated();
    const COUNT: Option<usize> = match A::COUNT {
        Some(count) => Some(count * N),
        None => None,
    };

    #[inline]
    fn declare(&self, list: &mut sealed::List<'_>) {
        self.iter().for_each(|access| access.declare(list));
    }

    #[inline(always)]
    fn at(&self, at: usize) -> Option<sealed::Declared> {
        let count = A::COUNT?;
        self.get(at.checked_div(count)?)?.at(at % count)
    }

    fn capture(&self) -> Self::Captured {
        self.each_ref().map(A::capture)
    }

    unsafe fn refs<'a>(captured: &Self::Captured, cx: &'a OpContext<'a>) -> Refs<'a, Self>
    where
        Self: 'a,
    {
        // SAFETY: the caller's contract holds for each part.
        captured.each_ref().map(|captured| unsafe { A::refs(captured, cx) })
    }

    unsafe fn guards(captured: &Self::Captured, share: &sealed::Share) -> Self::Guards {
        // SAFETY: the caller's contract holds for each part.
        captured.each_ref().map(|captured| unsafe { A::guards(captured, share) })
    }
}

impl<A: ScopedAccesses> sealed::Sealed for Option<A> {}
impl<'a, A: AccessRefs<'a>> AccessRefs<'a, &'a Self> for Option<A> {
    type Refs = Option<A::Refs>;
}
impl<A: ScopedAccesses> ScopedAccesses for Option<A> {
    type Guards = Option<A::Guards>;
    type Captured = Option<A::Captured>;
    const REFERS: bool = A::REFERS;
    const COMMUTES: bool = A::COMMUTES;
    const KIND: sealed::Kind = A::KIND.repeated();

    #[inline]
    fn declare(&self, list: &mut sealed::List<'_>) {
        self.iter().for_each(|access| access.declare(list));
    }

    fn capture(&self) -> Self::Captured {
        self.as_ref().map(A::capture)
    }

    unsafe fn refs<'a>(captured: &Self::Captured, cx: &'a OpContext<'a>) -> Refs<'a, Self>
    where
        Self: 'a,
    {
        // SAFETY: the caller's contract holds for the part, if there is one.
        captured.as_ref().map(|captured| unsafe { A::refs(captured, cx) })
    }

    unsafe fn guards(captured: &Self::Captured, share: &sealed::Share) -> Self::Guards {
        // SAFETY: the caller's contract holds for the part, if there is one.
        captured.as_ref().map(|captured| unsafe { A::guards(captured, share) })
    }
}

/// Variables are no declarations. With these, the compiler says only that, and nothing about the function beside them.
macro_rules! not_declared {
    ($($variable:ty),*) => {
        $(impl<'a, T> AccessRefs<'a, &'a Self> for $variable {
            type Refs = &'a mut T;
        })*
    };
}

not_declared!(Var<T>, &Var<T>);

impl<'a> AccessRefs<'a, &'a Self> for &Token {
    type Refs = ();
}

impl sealed::Sealed for () {}
impl<'a> AccessRefs<'a, &'a Self> for () {
    type Refs = ();
}
impl ScopedAccesses for () {
    type Guards = ();
    type Captured = ();
    const REFERS: bool = false;
    const COUNT: Option<usize> = Some(0);

    fn declare(&self, _: &mut sealed::List<'_>) {}

    fn capture(&self) {}

    unsafe fn refs<'a>((): &(), _: &'a OpContext<'a>)
    where
        Self: 'a,
    {
    }

    unsafe fn guards((): &(), _: &sealed::Share) {}
}

/// A declaration, returned by [`cx`], that an operation's function receives the operation's context: an [`OpContext`]
/// or, if the accesses yield guards, a [`FutureContext`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::cx;
///
/// let worker = engine.op("where").submit(cx(), |cx| cx.worker())?.wait()?;
/// println!("ran on worker {worker:?}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a declaration does nothing unless it is passed to an operation or to `acquire`"]
pub struct Cx(());

/// Declares that an operation's function receives the operation's context, at the position of this declaration among
/// the accesses. The context is a [`&OpContext<'_>`](OpContext) or, if the accesses yield guards, as for futures and
/// [`acquire`](crate::Engine::acquire), an owned [`FutureContext`].
///
/// A closure's parameter named `cx` hides this function. The examples in the guide call the parameter `op`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::cx;
///
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let log = engine.var(Vec::new());
/// engine.op("note").push((cx(), log.write()), |(op, log)| log.push(op.name().to_owned()))?;
/// assert_eq!(engine.get(&log)?, ["note"]);
///
/// // An operation over untyped variables can declare just the context.
/// let disk = engine.token();
/// engine.op("flush").writes([&disk]).push(cx(), |op| assert_eq!(op.name(), "flush"))?;
/// engine.wait_for_var(&disk)?;
/// # Ok(())
/// # }
/// ```
pub fn cx() -> Cx {
    Cx(())
}

impl sealed::Sealed for Cx {}
impl<'a> AccessRefs<'a, &'a Self> for Cx {
    type Refs = &'a OpContext<'a>;
}
impl ScopedAccesses for Cx {
    type Guards = FutureContext;
    type Captured = ();
    const REFERS: bool = false;
    const COUNT: Option<usize> = Some(0);

    #[inline]
    fn declare(&self, _: &mut sealed::List<'_>) {}

    fn capture(&self) {}

    unsafe fn refs<'a>((): &(), cx: &'a OpContext<'a>) -> Refs<'a, Self>
    where
        Self: 'a,
    {
        cx
    }

    /// Returns a context that futures and guard owners can use after the call's [`OpContext`] is gone.
    unsafe fn guards((): &(), share: &sealed::Share) -> FutureContext {
        FutureContext::new(share)
    }
}

/// A declaration, returned by [`stream`], that an operation issues work on a device: its function receives a
/// [`GpuStream`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a declaration does nothing unless it is passed to an operation"]
pub struct OnStream(());

/// Declares that an operation issues work on a stream of its [device](crate::OpBuilder::on), which its function
/// receives as `&mut` [`GpuStream`] at the position of this declaration among the accesses.
///
/// The function is called once the operation's dependencies on the same device have been issued and all others are
/// complete. If the function receives a reference to a value in host memory, all earlier device work on that value is
/// also complete. The function should only issue work and return, since the lane's other operations wait for it. The
/// operation is complete when the device has done the work.
///
/// An operation declares at most one stream, and not a [`completion()`](crate::completion) besides. Futures, scopes and
/// [`acquire`](crate::Engine::acquire) do not accept this declaration; such a program does not compile.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Device, Engine, stream, gpu::SimulatedGpu};
///
/// let engine = Engine::builder().gpu(SimulatedGpu::default()).build()?;
/// let gpu = Device::Gpu(0);
/// let device = engine.device_var::<f32>(gpu, 4)?;
/// engine.op("look").on(gpu).push((device.read(), stream()), |(device, stream)| {
///     assert!(stream.simulated().is_some() && device.len() == 4);
/// })?;
/// engine.wait_for_all()?;
/// # Ok(())
/// # }
/// ```
pub fn stream() -> OnStream {
    OnStream(())
}

impl sealed::Sealed for OnStream {}
impl<'a> AccessRefs<'a, &'a Self> for OnStream {
    type Refs = &'a mut GpuStream;
}
impl ScopedAccesses for OnStream {
    type Guards = ();
    type Captured = ();
    const REFERS: bool = false;
    const KIND: sealed::Kind = sealed::Kind::Stream;
    const COUNT: Option<usize> = Some(0);

    fn declare(&self, _: &mut sealed::List<'_>) {}

    fn capture(&self) {}

    unsafe fn refs<'a>((): &(), cx: &'a OpContext<'a>) -> Refs<'a, Self>
    where
        Self: 'a,
    {
        let Some(mut stream) = cx.extra::<LentStream>().and_then(Cell::take) else {
            unreachable!("an operation with a stream receives one, and asks for it once")
        };
        // SAFETY: (1): the caller lends the stream to this call, and the cell gave it away once.
        unsafe { stream.as_mut() }
    }

    unsafe fn guards((): &(), _: &sealed::Share) {}
}

/// The stream of a call, until the function receives it.
pub(super) type LentStream = Cell<Option<NonNull<GpuStream>>>;

/// Returns the sum of the counts, if all are known.
const fn sum(counts: &[Option<usize>]) -> Option<usize> {
    let (mut sum, mut at) = (0, 0);
    while at < counts.len() {
        match counts[at] {
            Some(count) => sum += count,
            None => return None,
        }
        at += 1;
    }
    Some(sum)
}

/// Expands `$tuples` for each number of elements that a tuple may have, with the names of their types and their places.
macro_rules! each_tuple {
    ($tuples:ident) => {
        $tuples!(A 0);
        $tuples!(A 0, B 1);
        $tuples!(A 0, B 1, C 2);
        $tuples!(A 0, B 1, C 2, D 3);
        $tuples!(A 0, B 1, C 2, D 3, E 4);
        $tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
        $tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
        $tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
        $tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
        $tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
        $tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
        $tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);
    };
}

pub(super) use each_tuple;

macro_rules! tuples {
    ($($name:ident $index:tt),*) => {
        impl<$($name: ScopedAccesses),*> sealed::Sealed for ($($name,)*) {}
        impl<'a, $($name: AccessRefs<'a>),*> AccessRefs<'a, &'a Self> for ($($name,)*) {
            type Refs = ($($name::Refs,)*);
        }
        impl<$($name: ScopedAccesses),*> ScopedAccesses for ($($name,)*) {
            type Guards = ($($name::Guards,)*);
            type Captured = ($($name::Captured,)*);
            const REFERS: bool = $($name::REFERS)||*;
            const COMMUTES: bool = $($name::COMMUTES)||*;
            const KIND: sealed::Kind = sealed::Kind::Function$(.and($name::KIND))*;
            const COUNT: Option<usize> = sum(&[$($name::COUNT),*]);

            #[inline]
            fn declare(&self, list: &mut sealed::List<'_>) {
                $(self.$index.declare(list);)*
            }

            #[inline(always)]
            fn at(&self, mut at: usize) -> Option<sealed::Declared> {
                $(
                    let count = $name::COUNT?;
                    if at < count {
                        return self.$index.at(at);
                    }
                    at -= count;
                )*
                let _ = at;
                None
            }

            fn capture(&self) -> Self::Captured {
                ($(self.$index.capture(),)*)
            }

            unsafe fn refs<'a>(captured: &Self::Captured, cx: &'a OpContext<'a>) -> Refs<'a, Self>
    where
        Self: 'a,
    {
                // SAFETY: the caller's contract holds for each part.
                ($(unsafe { $name::refs(&captured.$index, cx) },)*)
            }

            unsafe fn guards(captured: &Self::Captured, share: &sealed::Share) -> Self::Guards {
                // SAFETY: the caller's contract holds for each part.
                ($(unsafe { $name::guards(&captured.$index, share) },)*)
            }
        }
    };
}

each_tuple!(tuples);
