//! Variables whose last value can be read at any time.

use std::{fmt, ops::Deref, sync::Arc};

use super::{token::Token, var::Var};
use crate::{
    engine::core::Core, memory::latest::Latest, op::variable::VarCell, sync::shared::Arc as Shared, values::Name,
};

/// A handle to a variable that publishes its value, made with [`Engine::published`](crate::Engine::published).
///
/// Operations use it as they use a [`Var`], to which it dereferences. In addition, any code can read the value that the
/// last completed mutation has left, with [`snapshot`](Self::snapshot), without waiting for operations that are pending
/// or running. A display, a health check or a logger is a typical reader.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let position = engine.published((0.0, 0.0)).named("position");
/// engine.op("move").push(position.write(), |position| position.0 += 1.5)?;
/// // The operation may not have run yet.
/// let (x, _) = *position.snapshot();
/// assert!(x == 0.0 || x == 1.5);
/// engine.wait_for_all()?;
/// assert_eq!(*position.snapshot(), (1.5, 0.0));
/// # Ok(())
/// # }
/// ```
///
/// # The place of a snapshot in the order
///
/// A snapshot is read outside the order of pushes. The value is copied when an operation that mutates the variable has
/// succeeded, before any later operation on the variable starts. So an operation that declares the variable finds
/// exactly the mutations pushed before it in a snapshot, and a thread that has waited for a mutation finds that
/// mutation or a later one. Snapshots of two variables are independent: an operation that mutates both publishes one
/// after the other.
///
/// A mutation that fails or is skipped publishes nothing. If [`clone`](Clone::clone) panics, the operation fails. An
/// operation that issues work to a GPU publishes nothing either: the next mutation by the CPU does. A deletion leaves
/// the last snapshot.
///
/// # Cost
///
/// Each mutation clones the value, with an allocation, and takes the slower of the engine's two ways of running an
/// operation: about 60 ns more, besides the clone's own time. A snapshot costs a few changes of a shared count, about
/// 30 ns. Readers and operations never wait for each other.
pub struct Published<T> {
    var: Var<T>,
    snapshot: Arc<Latest<T>>,
}

impl<T: Clone + Send + Sync + 'static> Published<T> {
    pub(crate) fn new(core: &Arc<Core>, value: T) -> Self {
        let snapshot = Arc::new(Latest::new(value));
        Self { var: Var::new(Token::new(VarCell::published(core, Arc::clone(&snapshot)))), snapshot }
    }
}

impl<T> Published<T> {
    /// Returns the value that the last completed mutation of the variable has left, or the initial value. Never waits,
    /// and may be called anywhere, also inside operations and in a forked child.
    ///
    /// The value was published by the thread that completed the mutation; the call acquires what that thread did
    /// before.
    #[must_use]
    pub fn snapshot(&self) -> Shared<T> {
        self.snapshot.load()
    }

    /// Sets the variable's name; see [`Token::named`].
    #[must_use = "the handle is returned"]
    pub fn named(self, name: impl Into<Name>) -> Self {
        Self { var: self.var.named(name), ..self }
    }
}

impl<T> Deref for Published<T> {
    type Target = Var<T>;

    fn deref(&self) -> &Var<T> {
        &self.var
    }
}

impl<T> AsRef<Token> for Published<T> {
    fn as_ref(&self) -> &Token {
        self.var.as_ref()
    }
}

impl<T> Clone for Published<T> {
    fn clone(&self) -> Self {
        Self { var: self.var.clone(), snapshot: Arc::clone(&self.snapshot) }
    }
}

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("var", &self.var).finish_non_exhaustive()
    }
}
