//! Writes that do not end the process by a signal.

#[cfg(all(target_os = "linux", not(miri)))]
use std::{mem::MaybeUninit, ptr};

use std::io;

/// Calls `write`, which writes to one file, and returns its error where the system would also send a signal to the
/// calling thread: if nobody reads the pipe (`SIGPIPE`), or if the file would become larger than the process may make
/// files (`SIGXFSZ`). Either ends a process that neither ignores nor handles it.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn without_signals<R>(write: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    let signals = set(&[libc::SIGPIPE, libc::SIGXFSZ]);
    let (mut before, mut pending) = (set(&[]), set(&[]));
    // SAFETY: the calls read and write the given sets.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, &raw mut before);
        libc::sigpending(&raw mut pending);
    }
    let written = write();
    let sent = match written.as_ref().err().and_then(io::Error::raw_os_error) {
        Some(libc::EPIPE) => Some(libc::SIGPIPE),
        Some(libc::EFBIG) => Some(libc::SIGXFSZ),
        _ => None,
    };
    // SAFETY: the call reads the set. A signal that was pending before is not the write's.
    if let Some(sent) = sent.filter(|&sent| unsafe { libc::sigismember(&raw const pending, sent) } == 0) {
        let sent = set(&[sent]);
        let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call reads the set and the time. Takes nothing if the process ignores the signal.
        unsafe { libc::sigtimedwait(&raw const sent, ptr::null_mut(), &raw const no_time) };
    }
    // SAFETY: the call reads the set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    written
}

/// Returns the set of these signals.
#[cfg(all(target_os = "linux", not(miri)))]
fn set(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call initialises the set, to which the others add.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        signals.iter().for_each(|&signal| _ = libc::sigaddset(set.as_mut_ptr(), signal));
        set.assume_init()
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn without_signals<R>(write: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    write()
}
