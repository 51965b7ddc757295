//! Refused uses of a guarded value.

use std::{error::Error, fmt, panic::Location};

use raddle_trace::recording::Plain;

use super::deadlock::Pushed;
use crate::values::Name;

/// A refused use of a [`Guarded`](crate::Guarded) value.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::{Guarded, error::UseErrorKind};
///
/// let frame = Guarded::new(engine.token().named("frame"), 0);
/// let error = frame.read().unwrap_err(); // outside operations
/// assert_eq!((error.kind(), error.variable()), (UseErrorKind::Undeclared, "frame"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct UseError(Box<UseDetails>);

#[derive(Clone)]
struct UseDetails {
    kind: UseErrorKind,
    variable: Name,
    location: &'static Location<'static>,
    user: Option<Pushed>,
    other: Option<Pushed>,
}

/// Why a use of a [`Guarded`](crate::Guarded) value was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UseErrorKind {
    /// The code is not part of an operation that has declared the variable. Detected only in builds with debug
    /// assertions.
    Undeclared,
    /// An operation that has declared only a read of the variable requested a mutable reference. Detected only in
    /// builds with debug assertions.
    OnlyRead,
    /// Another thread, or the caller itself, is using the value in a conflicting way. Detected in every build.
    InUse,
}

impl UseError {
    #[cold]
    pub(crate) fn new(
        kind: UseErrorKind,
        variable: Name,
        location: &'static Location<'static>,
        user: Option<Pushed>,
        other: Option<Pushed>,
    ) -> Self {
        Self(Box::new(UseDetails { kind, variable, location, user, other }))
    }

    /// Returns why the use was refused.
    #[must_use]
    pub fn kind(&self) -> UseErrorKind {
        self.0.kind
    }

    /// Returns the variable's name, or an empty string if it has none.
    #[must_use]
    pub fn variable(&self) -> &str {
        self.0.variable.as_str()
    }

    /// Returns the source location of the refused use.
    #[must_use]
    pub fn location(&self) -> &'static Location<'static> {
        self.0.location
    }

    /// Returns the name and push location of the operation whose use was refused. Returns `None` outside operations and
    /// in builds without debug assertions.
    #[must_use]
    pub fn user(&self) -> Option<(&str, &'static Location<'static>)> {
        self.0.user.as_ref().map(|(name, location)| (name.as_str(), *location))
    }

    /// Returns the name and push location of the operation that last used the value. Returns `None` if there is no such
    /// operation, and in builds without debug assertions.
    #[must_use]
    pub fn last_user(&self) -> Option<(&str, &'static Location<'static>)> {
        self.0.other.as_ref().map(|(name, location)| (name.as_str(), *location))
    }
}

impl fmt::Debug for UseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UseError")
            .field("kind", &self.kind())
            .field("variable", &self.variable())
            .field("location", &self.location())
            .field("user", &self.user())
            .field("last_user", &self.last_user())
            .finish()
    }
}

impl fmt::Display for UseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UseDetails { kind, variable, location, user, other } = &*self.0;
        match user {
            Some((name, pushed)) => write!(f, "operation `{}` pushed at {pushed}", Plain(name.as_str()))?,
            None if cfg!(debug_assertions) => f.write_str("code outside operations")?,
            None => f.write_str("code")?,
        }
        let variable = Plain(variable.as_str());
        write!(f, " uses the value guarded by variable `{variable}` at {location}, ")?;
        match kind {
            UseErrorKind::Undeclared if user.is_some() => {
                f.write_str("and has not declared it; name the variable in its push")?;
            }
            UseErrorKind::Undeclared => {
                f.write_str("and nothing orders this use; push an operation that names the variable")?;
            }
            UseErrorKind::OnlyRead => f.write_str("changes it, but declares only a read; declare a write")?,
            UseErrorKind::InUse => f.write_str("but it is already in use; name the variable in both pushes")?,
        }
        match other {
            Some((name, pushed)) => {
                write!(f, "; it was last used by operation `{}` pushed at {pushed}", Plain(name.as_str()))
            }
            None => Ok(()),
        }
    }
}

impl Error for UseError {}
