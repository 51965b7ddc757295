//! Operators: operations made once and pushed often.

use std::{fmt, panic::Location, sync::Arc};

use crate::{
    completion::Completion,
    context::RunContext,
    core::{Core, Spec},
    error::{Cause, PushError},
    task::{Entry, Plain, Work, async_body},
    variable::Token,
};

type SyncFunction = dyn Fn(&RunContext<'_>) -> Result<(), Cause> + Send + Sync;
type AsyncFunction = dyn Fn(&RunContext<'_>, Completion) -> Result<(), Cause> + Send + Sync;

/// An operator's function.
pub(crate) enum Function {
    Sync(Box<SyncFunction>),
    Async(Box<AsyncFunction>),
}

struct Inner {
    core: Arc<Core>,
    spec: Spec,
    /// Sorted and distinct.
    entries: Box<[Entry]>,
    /// Keeps the variables of `entries`.
    tokens: Box<[Token]>,
    function: Function,
    /// The property decides the priority.
    fixed_priority: bool,
}

// SAFETY: the pointers in `entries` are to cells that `tokens` keeps, which are shared between threads anyway.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// An operation made once and pushed often, from [`OpBuilder::operator`](crate::OpBuilder::operator) and its siblings: its
/// variables are sorted and its function is stored once, so that a push is cheaper than that of a new operation.
///
/// Pushing it again while it is pending is allowed; the runs are ordered by its variables like those of any operations.
/// Clones are the same operator. It keeps its variables; when the last handle is dropped, what it owns is dropped after its
/// last run.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let counter = engine.var(0u32);
/// let increment = engine.op("increment").operator(counter.write(), |counter| *counter += 1)?;
/// for _ in 0..10 {
///     increment.push()?;
/// }
/// assert_eq!(engine.get(&counter)?, 10);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Operator(Arc<Inner>);

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator")
            .field("name", &self.0.spec.name)
            .field("variables", &self.0.entries.len())
            .finish_non_exhaustive()
    }
}

impl Operator {
    /// `entries` are sorted, distinct, and of variables of `core` that the caller has handles of.
    pub(crate) fn new(
        core: Arc<Core>,
        spec: Spec,
        entries: Box<[Entry]>,
        function: Function,
        fixed_priority: bool,
    ) -> Self {
        let tokens = entries
            .iter()
            // SAFETY: see above.
            .map(|entry| unsafe { Token::from_entry(entry) })
            .collect();
        Self(Arc::new(Inner { core, spec, entries, tokens, function, fixed_priority }))
    }

    /// Pushes a run of the operator.
    ///
    /// # Errors
    /// A deleted variable, or an engine that shuts down.
    #[track_caller]
    pub fn push(&self) -> Result<(), PushError> {
        self.push_with_priority(self.0.spec.priority)
    }

    /// Pushes a run of the operator with another priority than it was made with; properties that decide the priority still do.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    #[track_caller]
    pub fn push_with_priority(&self, priority: i32) -> Result<(), PushError> {
        let inner = &self.0;
        if inner.tokens.iter().any(|token| token.cell().queue().is_closed()) {
            return Err(PushError::DeletedVariable);
        }
        let priority = if inner.fixed_priority { inner.spec.priority } else { priority };
        let spec = Spec { location: Location::caller(), priority, ..inner.spec.clone() };
        let own = Arc::clone(inner);
        match inner.function {
            Function::Sync(_) => self.enqueue(
                spec,
                Plain::new(move |cx: &RunContext<'_>| match &own.function {
                    Function::Sync(f) => f(cx),
                    Function::Async(_) => Ok(()),
                }),
            ),
            Function::Async(_) => self.enqueue(
                spec,
                async_body(move |cx, done| match &own.function {
                    Function::Async(f) => f(cx, done),
                    Function::Sync(_) => Ok(()),
                }),
            ),
        }
    }

    fn enqueue(&self, spec: Spec, work: impl Work) -> Result<(), PushError> {
        self.0.core.push_normalised(spec, &self.0.entries, work, false)
    }
}
