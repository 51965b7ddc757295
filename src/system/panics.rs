//! Panics in program code: in functions, drops, wakers, loggers and errors.

use std::{
    any::Any,
    hint,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// The payload of a panic. Its drop is program code as well, so a payload that is not kept must be passed to
/// [`discard`].
pub(crate) type Payload = Box<dyn Any + Send>;

/// Runs `f` and catches a panic. The data that `f` uses must be valid at each point where `f` may panic.
pub(crate) fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Payload> {
    catch_unwind(AssertUnwindSafe(f))
}

/// Calls an engine function that may call the program. The standard library recognises this function by name: the short
/// backtraces printed by panics resume at its caller, where the program's frames begin.
#[inline(never)]
pub(crate) fn __rust_end_short_backtrace<R>(f: impl FnOnce() -> R) -> R {
    let result = f();
    // Keeps this function's frame on the stack during the call.
    hint::black_box(());
    result
}

/// Drops a payload. If the drop panics, the new payload is forgotten, since dropping it could panic again,
/// indefinitely.
pub(crate) fn discard(payload: Payload) {
    if let Err(another) = catch(|| drop(payload)) {
        std::mem::forget(another);
    }
}

/// Runs `f`, and discards its panic.
pub(crate) fn contain(f: impl FnOnce()) {
    if let Err(payload) = catch(f) {
        discard(payload);
    }
}

/// Returns the message of a panic if its payload is a string, or else the payload.
pub(crate) fn message(payload: Payload) -> (Option<String>, Option<Payload>) {
    match payload.downcast::<String>() {
        Ok(message) => (Some(*message), None),
        Err(payload) => match payload.downcast_ref::<&'static str>() {
            Some(message) => (Some((*message).to_owned()), None),
            None => (None, Some(payload)),
        },
    }
}

/// Logs at a level of [`log::Level`], or writes a line to standard error if logging is off, as it is without a logger.
/// The logger and the code that formats the values are program code, which may panic, push and wait. The caller must
/// therefore hold no lock, and no worker or operation that other threads cannot find.
macro_rules! log {
    ($level:ident, $($what:tt)+) => {
        $crate::system::panics::contain(|| match ::log::max_level() {
            ::log::LevelFilter::Off => $crate::system::stderr::line(format_args!($($what)+)),
            _ => ::log::log!(::log::Level::$level, $($what)+),
        })
    };
}
pub(crate) use log;
