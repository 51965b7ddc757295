//! The reasons why program code on this thread must not wait: the code belongs to a device operation's function, to a
//! deletion or to an observer, or is called inside one of them.

use std::cell::Cell;

use crate::{device::running_kernel::in_kernel, sync::thread_static, system::panics};

/// Why the program code running on this thread must not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoWait {
    /// The function of a device operation of any engine is running. The work that it issues is not complete when it
    /// returns.
    DeviceFunction,
    /// The value of a variable of any engine is being dropped, or the function of a deletion is running.
    Deletion,
    /// An observer of any engine is running, or a program's function for the start or end of a thread.
    Observer,
}

/// Why the program code running on this thread must not wait, or that it may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reasons {
    /// The innermost reason.
    innermost: Option<NoWait>,
    /// Whether the code runs inside the function of a device operation. A deletion or an observer called there is the
    /// innermost reason.
    on_device: bool,
}

const NONE: Reasons = Reasons { innermost: None, on_device: false };

// The reasons on this thread. They are not stored in the frames, since there may be many of them and each push to a
// naive engine reads the reasons.
thread_static!(static REASONS: Cell<Reasons> = Cell::new(NONE));

/// Calls `f` with `why` as the reason why its program code must not wait.
pub(crate) fn without_waits<R>(why: NoWait, f: impl FnOnce() -> R) -> R {
    let on_device = reasons().on_device || why == NoWait::DeviceFunction;
    with_reasons(Reasons { innermost: Some(why), on_device }, f)
}

/// Calls `f`, program code that must not wait. If it panics, logs that as one of `what`; the logger must not wait
/// either.
pub(crate) fn contained(why: NoWait, what: &str, f: impl FnOnce()) {
    let Err(payload) = panics::catch(|| without_waits(why, f)) else { return };
    let (message, payload) = panics::message(payload);
    let message = message.as_deref().unwrap_or("its payload is not a string");
    let log = || panics::log!(Error, "raddle: {what} panicked: {message}");
    let logged = panics::catch(|| without_waits(why, log)).err();
    payload.into_iter().chain(logged).for_each(panics::discard);
}

/// Calls `f`, which runs operations. Operations that run inside a deletion are not part of the deletion and may wait,
/// unless the deletion runs inside the function of a device operation.
pub(crate) fn outside_deletion<R>(f: impl FnOnce() -> R) -> R {
    match reasons() {
        Reasons { innermost: Some(NoWait::Deletion), on_device } => {
            with_reasons(Reasons { innermost: None, on_device }, f)
        }
        _ => f(),
    }
}

/// Calls `f` with these reasons why program code on this thread must not wait.
pub(crate) fn with_reasons<R>(reasons: Reasons, f: impl FnOnce() -> R) -> R {
    struct RestoreReasons(Reasons);
    impl Drop for RestoreReasons {
        fn drop(&mut self) {
            REASONS.with(|cell| cell.set(self.0));
        }
    }
    let _restore = RestoreReasons(REASONS.with(|cell| cell.replace(reasons)));
    f()
}

/// Returns the reasons why program code on this thread must not wait.
#[inline]
pub(crate) fn reasons() -> Reasons {
    REASONS.with(Cell::get)
}

/// Whether there is no reason why program code on this thread must not wait.
#[inline]
pub(crate) fn may_wait() -> bool {
    no_wait().is_none() && !in_device_function()
}

/// Returns the innermost [`NoWait`] that applies to the program code on this thread, if any.
#[inline]
pub(crate) fn no_wait() -> Option<NoWait> {
    reasons().innermost
}

/// Forgets the reasons in a forked child.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn forget() {
    REASONS.with(|cell| cell.set(NONE));
}

/// Whether this thread is running the function of a device operation of any engine, something called there, or program
/// code called by a device.
#[inline]
pub(crate) fn in_device_function() -> bool {
    in_kernel() || reasons().on_device
}
