//! Whether a simulated device is running program code on this thread: a kernel, or the drop of one.

use std::cell::Cell;

use crate::sync::thread_static;

// Whether a simulated device is running program code on this thread.
thread_static!(static KERNEL: Cell<bool> = Cell::new(false));

/// Returns whether a simulated device is running program code on this thread.
#[inline]
pub(crate) fn in_kernel() -> bool {
    KERNEL.with(Cell::get)
}

/// Records, in a child process forked by a kernel, that no kernel is running on this thread: the kernel runs in the
/// parent process.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn leave_kernel() {
    KERNEL.with(|kernel| kernel.set(false));
}

/// Runs `f`, which is program code, as a kernel. While `f` runs, [`in_kernel`] returns `true`.
pub(crate) fn as_kernel<R>(f: impl FnOnce() -> R) -> R {
    struct LeaveKernel(bool);
    impl Drop for LeaveKernel {
        fn drop(&mut self) {
            KERNEL.with(|kernel| kernel.set(self.0));
        }
    }
    let _leave = LeaveKernel(KERNEL.with(|kernel| kernel.replace(true)));
    f()
}
