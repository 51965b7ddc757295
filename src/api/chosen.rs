//! The variables that a program chooses at each push of an operator.

use std::{any::Any, convert::Infallible, fmt, marker::PhantomData};

use crate::{
    api::{
        accesses::{self, AccessRefs, Accesses, Refs, ScopedAccesses, each_tuple, sealed},
        op_context::OpContext,
        token::Token,
        var::{self, Var},
    },
    op::spec::{Entry, RefKind},
    tracker::Mode,
};

/// How an operator uses the variables that are chosen at each of its pushes: [`read`], [`write()`], [`overwrite`] and
/// [`commute`] for a variable with a value, [`reads`], [`writes`], [`overwrites`] and [`commutes`] for a token, and
/// tuples of up to twelve and arrays of these.
///
/// The trait is sealed: only the types above implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not declare how chosen variables are used",
    label = "not a declaration of chosen variables",
    note = "use `raddle::chosen::read()`, `write()`, `overwrite()` and `commute()` for variables with values",
    note = "use `raddle::chosen::reads()`, `writes()`, `overwrites()` and `commutes()` for tokens",
    note = "variables that are the same at each push belong to the accesses, behind the choice"
)]
pub trait Chosen: private::SealedChosen {
    /// What a push names: a `&`[`Var`] or a `&`[`Token`], or a tuple or an array of them.
    type Variables<'v>;
    /// The accesses of a run to the variables that its push has named. The function receives their [`Refs`].
    type Accesses<'v>: Accesses + ScopedAccesses<Captured = Self::Captured>;
    /// The pointers that a run stores.
    #[doc(hidden)]
    type Captured: Send + Sync + 'static;
    #[doc(hidden)]
    fn accesses<'v>(&self, variables: Self::Variables<'v>) -> Self::Accesses<'v>;
    /// Whether a run commutes on one of the variables.
    #[doc(hidden)]
    fn commutes(&self) -> bool;
    /// Returns what a push names, made of the next variables that `next` returns, each a [`Var`] or a [`Token`].
    /// Returns `None` if their types do not fit or if there are too few.
    #[doc(hidden)]
    fn find<'v>(next: &mut dyn FnMut() -> Option<&'v dyn Any>) -> Option<Self::Variables<'v>>;
}

mod private {
    pub trait SealedChosen: Send + Sync + 'static {}
}

/// The declaration of a variable that an operator reads, returned by [`read`].
pub struct ChosenRead<T>(PhantomData<fn(T) -> T>);

/// The declaration of a variable that an operator mutates, returned by [`write()`], [`overwrite`] and [`commute`].
pub struct ChosenWrite<T>(Mode, PhantomData<fn(T) -> T>);

/// The declaration of a token, returned by [`reads`], [`writes`], [`overwrites`] and [`commutes`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a declaration does nothing unless it is passed to an operator"]
pub struct ChosenToken(Mode);

/// Declares a variable, chosen at each push, whose value an operator reads. The operator's function receives `&T`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::chosen;
///
/// let (parts, total) = ([2, 3, 5].map(|part| engine.var(part)), engine.var(0));
/// let add = engine.op("add").operator_on(chosen::read(), total.write(), |part, total, factor: i32| {
///     *total += part * factor;
/// })?;
/// add.push_on(&parts[1], 2)?;
/// add.push_on(&parts[2], 10)?;
/// assert_eq!(engine.get(&total)?, 56);
/// # Ok(())
/// # }
/// ```
#[must_use = "a declaration does nothing unless it is passed to an operator"]
pub fn read<T: Send + Sync + 'static>() -> ChosenRead<T> {
    ChosenRead(PhantomData)
}

/// Declares a variable, chosen at each push, whose value an operator mutates. The operator's function receives
/// `&mut T`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::chosen;
///
/// let counters = [0, 0, 0].map(|count| engine.var(count));
/// let add = engine.op("add").operator_on(chosen::write::<u64>(), (), |counter, (), by: u64| *counter += by)?;
/// add.push_on(&counters[2], 7)?;
/// assert_eq!(engine.get(&counters[2])?, 7);
/// # Ok(())
/// # }
/// ```
#[must_use = "a declaration does nothing unless it is passed to an operator"]
pub fn write<T: Send + 'static>() -> ChosenWrite<T> {
    ChosenWrite(Mode::Write, PhantomData)
}

/// Declares a variable, chosen at each push, whose value an operator mutates even if the variable has failed, as with
/// [`Var::overwrite`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::chosen;
///
/// let caches = [engine.var(0), engine.var(0)];
/// engine.op("load").try_push(caches[0].write(), |_| Err("no such file".into()))?;
/// let reset = engine.op("reset").operator_on(chosen::overwrite(), (), |cache, (), to: i32| *cache = to)?;
/// reset.push_on(&caches[0], 7)?;
/// assert_eq!(engine.get(&caches[0])?, 7);
/// # Ok(())
/// # }
/// ```
#[must_use = "a declaration does nothing unless it is passed to an operator"]
pub fn overwrite<T: Send + 'static>() -> ChosenWrite<T> {
    ChosenWrite(Mode::Overwrite, PhantomData)
}

/// Declares a variable, chosen at each push, whose value an operator mutates in no particular order among its
/// neighbours that declare the same, as with [`Var::commute`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(2).build()?;
/// use raddle::chosen;
///
/// let nodes = [0, 0, 0].map(|load| engine.var(load));
/// let ends = (chosen::commute::<u64>(), chosen::commute::<u64>());
/// let load = engine.op("load").operator_on(ends, (), |(from, to), (), by: u64| {
///     *from += by;
///     *to += by;
/// })?;
/// load.push_on((&nodes[0], &nodes[1]), 3)?;
/// load.push_on((&nodes[1], &nodes[2]), 5)?;
/// assert_eq!(engine.get(&nodes[1])?, 8);
/// # Ok(())
/// # }
/// ```
#[must_use = "a declaration does nothing unless it is passed to an operator"]
pub fn commute<T: Send + 'static>() -> ChosenWrite<T> {
    ChosenWrite(Mode::Commute, PhantomData)
}

/// Declares a token, chosen at each push, that an operator reads. The operator's function receives `()` for it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::chosen;
///
/// let (disks, log) = ([engine.token(), engine.token()], engine.var(0));
/// let look = engine.op("look").operator_on(chosen::reads(), log.write(), |(), log, block: u64| *log = block)?;
/// look.push_on(&disks[1], 512)?;
/// assert_eq!(engine.get(&log)?, 512);
/// # Ok(())
/// # }
/// ```
pub fn reads() -> ChosenToken {
    ChosenToken(Mode::Read)
}

/// Declares a token, chosen at each push, that an operator mutates. The operator's function receives `()` for it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::{chosen, completion};
///
/// let disks = [engine.token(), engine.token()];
/// let flush = engine.op("flush").operator_on(chosen::writes(), completion(), |(), done, wait: bool| {
///     if wait {
///         std::thread::spawn(move || done.complete());
///     } else {
///         done.complete();
///     }
/// })?;
/// flush.push_on(&disks[0], true)?;
/// engine.wait_for_var(&disks[0])?;
/// assert_eq!(disks[0].version(), 1);
/// # Ok(())
/// # }
/// ```
pub fn writes() -> ChosenToken {
    ChosenToken(Mode::Write)
}

/// Declares a token, chosen at each push, that an operator mutates even if the token has failed, as with
/// [`OpBuilder::overwrites`](crate::OpBuilder::overwrites).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::chosen;
///
/// let disk = engine.token();
/// engine.op("write").writes([&disk]).try_push((), |()| Err("the disk is full".into()))?;
/// let format = engine.op("format").operator_on(chosen::overwrites(), (), |(), (), ()| {})?;
/// format.push_on(&disk, ())?;
/// engine.wait_for_var(&disk)?;
/// # Ok(())
/// # }
/// ```
pub fn overwrites() -> ChosenToken {
    ChosenToken(Mode::Overwrite)
}

/// Declares a token, chosen at each push, that an operator mutates in no particular order among its neighbours that
/// declare the same, as with [`OpBuilder::commutes`](crate::OpBuilder::commutes).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(2).build()?;
/// use raddle::chosen;
///
/// let disk = engine.token();
/// let append = engine.op("append").operator_on(chosen::commutes(), (), |(), (), line: &str| println!("{line}"))?;
/// append.push_on(&disk, "one")?;
/// append.push_on(&disk, "two")?;
/// engine.wait_for_var(&disk)?;
/// assert_eq!(disk.version(), 2);
/// # Ok(())
/// # }
/// ```
pub fn commutes() -> ChosenToken {
    ChosenToken(Mode::Commute)
}

impl<T> Clone for ChosenRead<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for ChosenRead<T> {}

impl<T> fmt::Debug for ChosenRead<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChosenRead").finish()
    }
}

impl<T> Clone for ChosenWrite<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for ChosenWrite<T> {}

impl<T> fmt::Debug for ChosenWrite<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChosenWrite").field(&self.0).finish()
    }
}

impl<T: Send + Sync + 'static> private::SealedChosen for ChosenRead<T> {}
impl<T: Send + Sync + 'static> Chosen for ChosenRead<T> {
    type Variables<'v> = &'v Var<T>;
    type Accesses<'v> = var::Read<'v, T>;
    type Captured = accesses::Captured<T>;

    fn find<'v>(next: &mut dyn FnMut() -> Option<&'v dyn Any>) -> Option<&'v Var<T>> {
        next()?.downcast_ref()
    }

    #[inline(always)]
    fn accesses<'v>(&self, variable: Self::Variables<'v>) -> Self::Accesses<'v> {
        variable.read()
    }

    fn commutes(&self) -> bool {
        false
    }
}

impl<T: Send + 'static> private::SealedChosen for ChosenWrite<T> {}
impl<T: Send + 'static> Chosen for ChosenWrite<T> {
    type Variables<'v> = &'v Var<T>;
    type Accesses<'v> = var::Write<'v, T>;
    type Captured = accesses::Captured<T>;

    fn find<'v>(next: &mut dyn FnMut() -> Option<&'v dyn Any>) -> Option<&'v Var<T>> {
        next()?.downcast_ref()
    }

    #[inline(always)]
    fn accesses<'v>(&self, variable: Self::Variables<'v>) -> Self::Accesses<'v> {
        var::Write { var: variable, mode: self.0 }
    }

    fn commutes(&self) -> bool {
        self.0 == Mode::Commute
    }
}

impl private::SealedChosen for ChosenToken {}
impl Chosen for ChosenToken {
    type Variables<'v> = &'v Token;
    type Accesses<'v> = TokenAccess<'v>;
    type Captured = ();

    fn find<'v>(next: &mut dyn FnMut() -> Option<&'v dyn Any>) -> Option<&'v Token> {
        next()?.downcast_ref()
    }

    #[inline(always)]
    fn accesses<'v>(&self, token: Self::Variables<'v>) -> Self::Accesses<'v> {
        TokenAccess(token, self.0)
    }

    fn commutes(&self) -> bool {
        self.0 == Mode::Commute
    }
}

impl<C: Chosen, const N: usize> private::SealedChosen for [C; N] {}
impl<C: Chosen, const N: usize> Chosen for [C; N] {
    type Variables<'v> = [C::Variables<'v>; N];
    type Accesses<'v> = [C::Accesses<'v>; N];
    type Captured = [C::Captured; N];

    fn find<'v>(next: &mut dyn FnMut() -> Option<&'v dyn Any>) -> Option<Self::Variables<'v>> {
        let found: Option<Vec<_>> = (0..N).map(|_| C::find(next)).collect();
        found?.try_into().ok()
    }

    #[inline(always)]
    fn accesses<'v>(&self, variables: Self::Variables<'v>) -> Self::Accesses<'v> {
        let mut choices = self.iter();
        variables.map(|variable| {
            let Some(choice) = choices.next() else { unreachable!("there are as many choices as variables") };
            choice.accesses(variable)
        })
    }

    fn commutes(&self) -> bool {
        self.iter().any(C::commutes)
    }
}

macro_rules! tuples {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Chosen),*> private::SealedChosen for ($($name,)*) {}
        impl<$($name: Chosen),*> Chosen for ($($name,)*) {
            type Variables<'v> = ($($name::Variables<'v>,)*);
            type Accesses<'v> = ($($name::Accesses<'v>,)*);
            type Captured = ($($name::Captured,)*);

            fn find<'v>(next: &mut dyn FnMut() -> Option<&'v dyn Any>) -> Option<Self::Variables<'v>> {
                Some(($($name::find(next)?,)*))
            }

            #[inline(always)]
            fn accesses<'v>(&self, variables: Self::Variables<'v>) -> Self::Accesses<'v> {
                ($(self.$index.accesses(variables.$index),)*)
            }

            fn commutes(&self) -> bool {
                $(self.$index.commutes())||*
            }
        }
    };
}

each_tuple!(tuples);

/// The access of a run to a chosen token.
#[derive(Debug)]
#[doc(hidden)]
pub struct TokenAccess<'v>(&'v Token, Mode);

impl TokenAccess<'_> {
    #[inline(always)]
    fn entry(&self) -> Entry {
        Entry { cell: self.0.ptr(), mode: self.1, refs: RefKind::None }
    }
}

impl sealed::Sealed for TokenAccess<'_> {}
impl<'a> AccessRefs<'a, &'a Self> for TokenAccess<'_> {
    type Refs = ();
}
impl ScopedAccesses for TokenAccess<'_> {
    type Guards = ();
    type Captured = ();
    const REFERS: bool = false;
    const COUNT: Option<usize> = Some(1);

    #[inline(always)]
    fn declare(&self, list: &mut sealed::List<'_>) {
        list.0.push(self.entry());
    }

    #[inline(always)]
    fn at(&self, _: usize) -> Option<sealed::Declared> {
        Some(sealed::Declared(self.entry()))
    }

    fn capture(&self) {}

    unsafe fn refs<'a>((): &(), _: &'a OpContext<'a>)
    where
        Self: 'a,
    {
    }

    unsafe fn guards((): &(), _: &sealed::Share) {}
}

/// What a run uses: the variables chosen at its push, by the accesses `C`, and those of the operator, by the accesses
/// `A`. The operator keeps the pointers of the latter for `'o`. There are no values of this type, since each part has
/// been declared on its own.
pub(super) struct Both<'o, C, A>(Infallible, PhantomData<(C, &'o A)>);

impl<C: ScopedAccesses, A: ScopedAccesses> sealed::Sealed for Both<'_, C, A> {}
impl<'a, C: AccessRefs<'a>, A: AccessRefs<'a>> AccessRefs<'a, &'a Self> for Both<'_, C, A> {
    type Refs = (C::Refs, A::Refs);
}
impl<'o, C: ScopedAccesses, A: ScopedAccesses> ScopedAccesses for Both<'o, C, A>
where
    A::Captured: 'o,
{
    type Guards = ();
    type Captured = (C::Captured, &'o A::Captured);
    const REFERS: bool = C::REFERS || A::REFERS;
    const KIND: sealed::Kind = C::KIND.and(A::KIND);

    fn declare(&self, _: &mut sealed::List<'_>) {
        match self.0 {}
    }

    fn capture(&self) -> Self::Captured {
        match self.0 {}
    }

    unsafe fn refs<'a>((chosen, own): &Self::Captured, cx: &'a OpContext<'a>) -> Refs<'a, Self>
    where
        Self: 'a,
    {
        // SAFETY: the caller's contract holds for each part.
        (unsafe { C::refs(chosen, cx) }, unsafe { A::refs(own, cx) })
    }

    unsafe fn guards(_: &Self::Captured, _: &sealed::Share) {}
}
