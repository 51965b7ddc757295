//! A description of a wait that would never return: what would wait, and for what.

use std::{fmt, panic::Location, sync::Arc};

use raddle_trace::recording::Plain;

use crate::values::Name;

/// An operation's name and push location.
pub(crate) type Pushed = (Name, &'static Location<'static>);

/// A description of a wait that would never return, from [`WaitError::WouldDeadlock`](crate::WaitError::WouldDeadlock).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Engine, WaitError};
///
/// let engine = Engine::builder().workers(1).build()?;
/// let (total, inner) = (engine.var(0), engine.downgrade());
/// let again = total.clone();
/// let waits = engine.op("outer").submit(total.write(), move |_| {
///     // `inner` is queued behind `outer`, which waits for it here.
///     inner.op("inner").submit(again.read(), |total| *total)?.wait()
/// })?;
/// let Err(WaitError::WouldDeadlock(deadlock)) = waits.wait()? else { panic!("the wait would never return") };
/// assert_eq!((deadlock.waiting(), deadlock.awaited()), (Some("outer"), Some("inner")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Deadlock(Option<Arc<DeadlockDetails>>);

struct DeadlockDetails {
    waiting: Option<Pushed>,
    awaited: Awaited,
}

/// The target of a wait that would never return.
pub(crate) enum Awaited {
    Operation(Pushed),
    Variable(Name),
    /// Several operations: those of a group or a scope, or all those of an engine. Holds one of them that cannot end
    /// before the waiting operation does.
    Member(Pushed),
    /// All operations of the engine.
    All,
}

impl Deadlock {
    pub(crate) fn new(waiting: Option<Pushed>, awaited: Awaited) -> Self {
        Self(Some(Arc::new(DeadlockDetails { waiting, awaited })))
    }

    /// Returns the name of the operation that would wait, if known.
    #[must_use]
    pub fn waiting(&self) -> Option<&str> {
        self.0.as_ref()?.waiting.as_ref().map(|(name, _)| name.as_str())
    }

    /// Returns the name of the awaited operation or variable, if known. If several operations are awaited, such as
    /// those of a group, returns the name of one that cannot end before the waiting operation does.
    #[must_use]
    pub fn awaited(&self) -> Option<&str> {
        match &self.0.as_ref()?.awaited {
            Awaited::Operation((name, _)) | Awaited::Variable(name) | Awaited::Member((name, _)) => Some(name.as_str()),
            Awaited::All => None,
        }
    }
}

impl fmt::Debug for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadlock").field("waiting", &self.waiting()).field("awaited", &self.awaited()).finish()
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ADVICE: &str = "declare what it needs as accesses";
        let Some(parts) = &self.0 else {
            return write!(f, "the operation would wait for itself; {ADVICE}");
        };
        match &parts.waiting {
            Some((name, location)) => {
                let name = Plain(name.as_str());
                write!(f, "operation `{name}` pushed at {location} would wait for ")?;
            }
            None => f.write_str("the caller would wait for ")?,
        }
        match &parts.awaited {
            Awaited::Operation((name, location)) => {
                let name = Plain(name.as_str());
                write!(
                    f,
                    "operation `{name}` pushed at {location}, which cannot start until the waiting code returns; {ADVICE}"
                )
            }
            Awaited::Variable(name) => {
                let name = Plain(name.as_str());
                write!(f, "variable `{name}`, which is not released until the waiting code returns; {ADVICE}")
            }
            Awaited::Member((name, location)) => write!(
                f,
                "several operations, one of which, `{}` pushed at {location}, cannot end until the waiting code returns; {ADVICE}",
                Plain(name.as_str())
            ),
            Awaited::All => write!(f, "all operations of its engine; {ADVICE}"),
        }
    }
}
