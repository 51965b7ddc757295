//! The context for an operation that is a future.

use std::{fmt, ops::Deref, sync::Arc};

use super::{
    cancelled::Cancelled,
    engine::{Engine, WeakEngine},
    token::Token,
    var::Var,
};
use crate::{
    error::push_error::PushError,
    future::held::{HeldRef, Share},
    group::family::Family,
};

/// The context of an operation that is a [future](crate::OpBuilder::push_future), or of acquired variables: a handle to
/// the engine, plus what the operation needs to push children.
///
/// If [`cx()`](crate::cx) is declared among the accesses, the context is provided along with the guards. It
/// dereferences to a handle that does not [keep the engine open](crate::WeakEngine). The context may outlive the
/// operation.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::cx;
///
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let total = engine.var(1);
/// let inside = total.clone();
/// engine.op("outer").push_future((cx(), total.read()), |(cx, guard)| async move {
///     let step = *guard;
///     cx.op("inner").push(inside.write(), move |total| *total += step).expect("operations may push");
/// })?;
/// # engine.wait_for_all()?;
/// assert_eq!(engine.get(&total)?, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FutureContext {
    engine: WeakEngine,
    op: HeldRef,
    family: Option<Arc<Family>>,
}

impl fmt::Debug for FutureContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FutureContext").field("has_children", &self.family.is_some()).finish_non_exhaustive()
    }
}

impl Deref for FutureContext {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl FutureContext {
    /// Creates the context for the operation of `share`.
    pub(super) fn new(share: &Share) -> Self {
        let engine = WeakEngine::new(share.core());
        Self { engine, op: HeldRef::new(share), family: share.parent_of().and_then(Family::from_kin) }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn family(&self) -> Option<&Family> {
        self.family.as_deref()
    }

    /// Returns a future that resolves when the operation is cancelled, for what works for the operation elsewhere, such
    /// as a task that it has spawned. The operation's own future need not await it: when the operation is cancelled,
    /// the engine drops that future. See [`OpContext::cancelled`](crate::OpContext::cancelled).
    ///
    /// If the operation has ended, the future never resolves.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use raddle::cx;
    ///
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let request = engine.group();
    /// let (sender, page) = tokio::sync::oneshot::channel::<String>();
    /// request.op("fetch").try_push_future(cx(), |cx| async move {
    ///     let cancelled = cx.cancelled();
    ///     std::thread::spawn(move || {
    ///         pollster::block_on(cancelled); // and for the page at the same time
    ///         drop(sender);
    ///     });
    ///     println!("{}", page.await?);
    ///     Ok(())
    /// })?;
    /// request.cancel();
    /// assert!(request.wait().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancelled(&self) -> Cancelled {
        Cancelled::new(self.op.stop_signals())
    }

    /// Creates a variable for this operation's children; see [`OpContext::child_var`](crate::OpContext::child_var).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// use raddle::cx;
    ///
    /// let sum = engine.var(0);
    /// let inside = sum.clone();
    /// engine.op("sum").with_children().try_push_future((cx(), sum.write()), |(cx, _sum)| async move {
    ///     let parts = cx.child_var(vec![1, 2, 3])?;
    ///     cx.child("add").push((parts.read(), inside.write()), |(parts, sum)| *sum = parts.iter().sum())?;
    ///     Ok(())
    /// })?;
    /// assert_eq!(engine.get(&sum)?, 6);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`OpContext::child_var`](crate::OpContext::child_var), and [`PushError::ParentEnded`]
    /// after the future has ended and its guards have been dropped.
    pub fn child_var<T: Send + 'static>(&self, value: T) -> Result<Var<T>, PushError> {
        Token::of_family(self.family.as_deref(), value).map(Var::new)
    }

    /// Creates a variable without a value for this operation's children; see [`child_var`](Self::child_var).
    ///
    /// # Errors
    /// Returns the errors of [`child_var`](Self::child_var).
    pub fn child_token(&self) -> Result<Token, PushError> {
        Token::of_family(self.family.as_deref(), ())
    }
}
