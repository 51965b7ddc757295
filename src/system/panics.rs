//! Panics of code that is not this crate's: functions, drops, wakers, loggers and errors of the program's.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// What a panic carried. Its drop is the program's code as well: it goes to [`discard`].
pub(crate) type Payload = Box<dyn Any + Send>;

/// Runs `f` behind a barrier. What it touches must be whole at each point where it may panic.
pub(crate) fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Payload> {
    catch_unwind(AssertUnwindSafe(f))
}

/// Drops a payload. What that may panic with in turn is forgotten, since nothing says that it would ever end.
pub(crate) fn discard(payload: Payload) {
    if let Err(another) = catch(|| drop(payload)) {
        std::mem::forget(another);
    }
}

/// The message of a panic, where its payload is a string; other payloads are given back.
pub(crate) fn message(payload: Payload) -> (Option<String>, Option<Payload>) {
    match payload.downcast::<String>() {
        Ok(message) => (Some(*message), None),
        Err(payload) => match payload.downcast_ref::<&'static str>() {
            Some(message) => (Some((*message).to_owned()), None),
            None => (None, Some(payload)),
        },
    }
}

/// Logs at a level of [`log::Level`]. The logger is the program's code, which may panic, push and wait, and so may what it
/// prints: no lock is held here, and no worker or operation is in the caller's hands.
macro_rules! log {
    ($level:ident, $($what:tt)+) => {
        if let Err(payload) = $crate::system::panics::catch(|| ::log::log!(::log::Level::$level, $($what)+)) {
            $crate::system::panics::discard(payload);
        }
    };
}
pub(crate) use log;
