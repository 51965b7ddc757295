//! Why a wait gave no result.

use std::{error::Error, fmt};

use super::{op::OpError, push::PushError};

/// Why a wait gave no result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// An operation failed.
    Failed(OpError),
    /// The time was up. What was waited for goes on.
    TimedOut,
    /// The calling operation itself would have to end first; or the caller is code that ran by chance on a worker that
    /// was looking for work, such as what another crate has deferred in crossbeam-epoch's default collector.
    WouldDeadlock,
    /// Too many operations wait inside their functions at once to give their worker's work to another thread; let
    /// operations name what they need as variables instead of waiting for it.
    TooManyWaiting,
    /// The caller is the function of a device operation, whose thread must not wait: it is what the device's other
    /// operations go on by. Let operations name what they need as variables.
    OnDevice,
    /// The caller is a deletion: the function of [`Engine::delete_variable`](crate::Engine::delete_variable), or the
    /// drop of what a variable or an operator owned. Push an operation that waits, or wait elsewhere.
    InDeletion,
    /// What was to be waited for could not be pushed.
    Refused(PushError),
    /// The value was taken by an earlier wait on the same handle.
    ValueTaken,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::TimedOut => f.write_str("the time to wait was up"),
            Self::WouldDeadlock => f.write_str("the wait needs the end of the operation that waits"),
            Self::TooManyWaiting => f.write_str("too many operations wait inside their functions at once"),
            Self::OnDevice => f.write_str("the function of a device operation cannot wait"),
            Self::InDeletion => f.write_str("a deletion cannot wait; push an operation that does"),
            Self::Refused(error) => error.fmt(f),
            Self::ValueTaken => f.write_str("the operation's value was already taken"),
        }
    }
}

impl Error for WaitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // The message is the error's own, and so is the source.
            Self::Failed(error) => error.source(),
            Self::Refused(error) => error.source(),
            _ => None,
        }
    }
}

impl From<OpError> for WaitError {
    fn from(error: OpError) -> Self {
        error.mark_reported();
        Self::Failed(error)
    }
}

impl From<PushError> for WaitError {
    fn from(error: PushError) -> Self {
        Self::Refused(error)
    }
}
