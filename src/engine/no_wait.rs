//! The reason why program code on this thread must not wait: the code belongs to a device operation's function, to a
//! deletion or to an observer.

use std::cell::Cell;

use crate::{device::callback::in_kernel, sync::thread_static};

/// Why the program code running on this thread must not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoWait {
    /// The function of a device operation of any engine is running. The work that it issues is not complete when it
    /// returns.
    DeviceFunction,
    /// The value of a variable of any engine is being dropped, or the function of a deletion is running.
    Deletion,
    /// An observer of any engine is running.
    Observer,
}

// The innermost reason on this thread. The reason is not stored in the frames, since there may be many of them and each
// push to a naive engine reads the reason.
thread_static!(static NO_WAIT: Cell<Option<NoWait>> = Cell::new(None));

/// Calls `f` with `why` as the reason why its program code must not wait.
pub(crate) fn without_waits<R>(why: NoWait, f: impl FnOnce() -> R) -> R {
    set_no_wait(Some(why), f)
}

/// Calls `f`, which runs operations. Operations that run inside a deletion are not part of the deletion and may wait.
pub(crate) fn outside_deletion<R>(f: impl FnOnce() -> R) -> R {
    match NO_WAIT.with(Cell::get) {
        Some(NoWait::Deletion) => set_no_wait(None, f),
        _ => f(),
    }
}

/// Calls `f` while `no_wait` is the reason, if any, why program code on this thread must not wait.
pub(crate) fn set_no_wait<R>(no_wait: Option<NoWait>, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<NoWait>);
    impl Drop for Restore {
        fn drop(&mut self) {
            NO_WAIT.with(|cell| cell.set(self.0));
        }
    }
    let _restore = Restore(NO_WAIT.with(|cell| cell.replace(no_wait)));
    f()
}

/// Returns the [`NoWait`] that applies to the program code on this thread, if any.
pub(crate) fn no_wait() -> Option<NoWait> {
    NO_WAIT.with(Cell::get)
}

/// Forgets the reason in a forked child.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn forget() {
    NO_WAIT.with(|cell| cell.set(None));
}

/// Whether this thread is running the function of a device operation of any engine, or program code called by a device.
pub(crate) fn in_device_function() -> bool {
    in_kernel() || NO_WAIT.with(Cell::get) == Some(NoWait::DeviceFunction)
}
