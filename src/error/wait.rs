//! Why a wait returned no result.

use std::{error::Error, fmt};

use super::{deadlock::Deadlock, op::OpError, push::PushError};

/// Why a wait returned no result.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::WaitError;
///
/// let reply = engine.op("ask").try_submit((), |()| -> Result<u32, _> { Err("no answer".into()) })?;
/// match reply.wait() {
///     Ok(reply) => println!("{reply}"),
///     Err(WaitError::Failed(error)) => println!("{error}"), // names the operation and the location of its push
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// An operation failed.
    Failed(OpError),
    /// The wait timed out. The operations continue.
    TimedOut,
    /// The wait would never return. The caller may be an operation that holds the variable or sets the result. Or it
    /// waits for an operation that cannot start before the caller returns, or for a group with such an operation. Such
    /// an operation is queued behind the caller: directly, through other operations, or through waiting operations of
    /// any engine. If several operations wait for each other, the one that began to wait last gets this error, within
    /// 100 ms. Waits with a time limit end anyway, so the other waits ignore them; a wait with a time limit gets the
    /// error itself if no other wait in the cycle has a limit. The end of a scope gets the error only if all other
    /// waits in the cycle are at the ends of scopes as well; it then cancels what it waits for.
    ///
    /// The function of an asynchronous operation gets this error if it waits for anything that is queued behind that
    /// operation while the completion has not been used, even if another thread is about to use it.
    ///
    /// The caller may also be code that another crate has deferred in crossbeam-epoch's default collector, and that a
    /// worker runs while it looks for work.
    WouldDeadlock(Deadlock),
    /// Too many operations wait inside their functions, so no thread could take over the worker. Declare what an
    /// operation needs as accesses instead of waiting for it.
    TooManyWaiting,
    /// The caller is the function of a device operation. The function's thread issues the other operations of the
    /// device as well, and must not block. Declare what the operation needs as accesses.
    OnDevice,
    /// The caller is a deletion: the function of [`Engine::delete_variable`](crate::Engine::delete_variable), or the
    /// drop of a variable's value or of an operator's function. Push an operation that waits, or wait elsewhere.
    InDeletion,
    /// The caller is an [`Observer`](crate::Observer), which runs between the steps of the engine. Send what it has
    /// seen to another thread, and wait there.
    InObserver,
    /// The wait was refused, as a push would be.
    Refused(PushError),
    /// An earlier wait on the same handle has taken the value.
    ValueTaken,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::TimedOut => f.write_str("the wait timed out; the operations continue"),
            Self::WouldDeadlock(deadlock) => deadlock.fmt(f),
            Self::TooManyWaiting => {
                f.write_str("too many operations wait inside their functions; declare what they need as accesses")
            }
            Self::OnDevice => {
                f.write_str("the function of a device operation cannot wait; declare what it needs as accesses")
            }
            Self::InDeletion => f.write_str("a deletion cannot wait; push an operation that waits"),
            Self::InObserver => f.write_str("an observer cannot wait; send what it has seen to another thread"),
            Self::Refused(error) => error.fmt(f),
            Self::ValueTaken => f.write_str("an earlier wait on this handle has taken the value"),
        }
    }
}

impl Error for WaitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // The message is the inner error's, so `source` returns the source of the inner error.
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
