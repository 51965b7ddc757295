//! The declaration that an operation may end later than its function.

use std::fmt;

use super::{
    accesses::{AccessRefs, ScopedAccesses, sealed},
    completion::Completion,
    op_context::OpContext,
};

/// What a function needs to [defer](Self::defer) the end of its operation.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::deferral;
///
/// let cache = engine.var(None);
/// for _ in 0..2 {
///     engine.op("look up").push((cache.write(), deferral()), |(cache, end)| {
///         if cache.is_none() {
///             *cache = Some(42);
///             let done = end.defer();
///             std::thread::spawn(move || done.complete()); // as a device would, once it has the answer
///         } // otherwise, the operation ends here
///     })?;
/// }
/// assert_eq!(engine.get(&cache)?, Some(42));
/// # Ok(())
/// # }
/// ```
#[must_use = "without a use, the operation ends with its function"]
pub struct Deferral<'a> {
    cx: &'a OpContext<'a>,
}

impl fmt::Debug for Deferral<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferral").finish_non_exhaustive()
    }
}

impl Deferral<'_> {
    /// Defers the end of the operation until the returned completion is used, as if the operation had declared
    /// [`completion()`](crate::completion()).
    pub fn defer(self) -> Completion {
        self.cx.later().completion(self.cx.frame())
    }
}

/// A declaration, returned by [`deferral`], that a function may defer the end of its operation.
#[derive(Clone, Copy, Debug)]
#[must_use = "a declaration does nothing unless it is passed to an operation"]
pub struct Defers(());

/// Declares that a function may defer the end of its operation: it receives a [`Deferral`] at the position of this
/// declaration among the accesses. If the function uses the deferral, the operation ends as if it had declared
/// [`completion()`](crate::completion()). Otherwise, it ends when its function returns, with the failure of the
/// function, if any. This costs less than a completion that is used within the function.
///
/// An operation declares at most one deferral, and neither a [`stream()`](crate::stream) nor a completion besides.
/// Futures, scopes and [`acquire`](crate::Engine::acquire) do not accept this declaration; such a program does not
/// compile.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let disk = engine.token();
/// for is_cached in [true, false] {
///     engine.op("read").writes([&disk]).push(raddle::deferral(), move |end| {
///         if !is_cached {
///             let done = end.defer();
///             std::thread::spawn(move || done.complete());
///         }
///     })?;
/// }
/// engine.wait_for_var(&disk)?;
/// # Ok(())
/// # }
/// ```
pub fn deferral() -> Defers {
    Defers(())
}

impl sealed::Sealed for Defers {}
impl<'a> AccessRefs<'a, &'a Self> for Defers {
    type Refs = Deferral<'a>;
}
impl ScopedAccesses for Defers {
    type Guards = ();
    type Captured = ();
    const REFERS: bool = false;
    const KIND: sealed::Kind = sealed::Kind::Completion;
    const COUNT: Option<usize> = Some(0);

    fn declare(&self, _: &mut sealed::List<'_>) {}

    fn capture(&self) {}

    unsafe fn refs<'a>((): &(), cx: &'a OpContext<'a>) -> Deferral<'a>
    where
        Self: 'a,
    {
        Deferral { cx }
    }

    unsafe fn guards((): &(), _: &sealed::Share) {}
}
