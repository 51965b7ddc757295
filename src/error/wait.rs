//! Why a wait returned no result.

use std::{error::Error, fmt};

use super::{deadlock::Deadlock, op::OpError, push_error::PushError};

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
///     Err(WaitError::Failed(error)) => println!("{error}"), // names the operation and its push location
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
    /// The wait would never return. The caller may be an operation that holds the awaited variable or produces the
    /// awaited result. It may also be waiting for an operation that cannot start before the caller returns, or for
    /// several operations, one of which cannot. That operation is queued behind the caller: directly, through other
    /// operations, or through waiting operations of any engine. If several operations wait for each other, the last to
    /// begin waiting gets this error, normally within 100 ms. Waits with a time limit end anyway, so other waits ignore
    /// them; a wait with a time limit gets the error itself if no other wait in the cycle has a limit. The end of a
    /// scope gets the error only if all other waits in the cycle are also ends of scopes; it then cancels the
    /// operations that it waits for and that cannot start.
    ///
    /// An asynchronous operation's function gets this error if, before the completion is used, it waits for anything
    /// queued behind the operation, even if another thread is about to use the completion.
    ///
    /// The caller may also be code that another crate has deferred in crossbeam-epoch's default collector and that a
    /// worker runs while searching for work.
    WouldDeadlock(Deadlock),
    /// Too many operations are waiting inside their functions, so no thread could take over the worker. Instead of
    /// waiting, declare what an operation needs as accesses.
    TooManyWaiting,
    /// The caller is the function of a device operation, or other code on the thread of a device. This thread must not
    /// block, since it also issues the device's other operations. Declare what the operation needs as accesses.
    OnDevice,
    /// The caller is a deletion: the function of [`Engine::delete_variable`](crate::Engine::delete_variable), or the
    /// drop of a variable's value or an operator's function. Push an operation that waits, or wait elsewhere.
    InDeletion,
    /// The caller is an [`Observer`](crate::trace::Observer), which runs between the engine's steps, or a function for
    /// the [start](crate::EngineBuilder::on_thread_start) or end of a thread. Send to another thread what it has seen,
    /// and wait there.
    InObserver,
    /// The wait was refused for the same reason that a push would be.
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
            Self::InObserver => f.write_str(
                "an observer, or a function for the start or end of a thread, cannot wait; do it on another thread",
            ),
            Self::Refused(error) => error.fmt(f),
            Self::ValueTaken => f.write_str("an earlier wait on this handle has taken the value"),
        }
    }
}

impl Error for WaitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // The message is that of the inner error, so `source` returns the inner error's source.
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
