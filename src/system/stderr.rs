//! Lines on standard error, for what a program without a logger would not learn.

use std::{
    fmt,
    io::{self, Write},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

#[cfg(all(target_os = "linux", not(miri)))]
use super::signals::without_signals;

/// The number of lines written within a [`SPAN`] at most. Not tuned: a person reads no more.
const MOST: u32 = 20;
const SPAN: Duration = Duration::from_secs(1);

/// The number of engines that have turned the lines off. While it is above zero, no lines are written.
static TURNED_OFF: AtomicUsize = AtomicUsize::new(0);

/// The lines of the current span.
struct Written {
    since: Instant,
    lines: u32,
    left_out: u64,
}

static WRITTEN: Mutex<Option<Written>> = Mutex::new(None);

/// Turns the lines off for the rest of the process, or until [`turn_on`] is called.
pub(crate) fn turn_off() {
    // Relaxed: a line may be written late.
    TURNED_OFF.fetch_add(1, Relaxed);
}

/// Undoes one call of [`turn_off`].
pub(crate) fn turn_on() {
    // Relaxed: a line may be lost.
    TURNED_OFF.fetch_sub(1, Relaxed);
}

/// Returns whether a line may be written now, and how many were left out before it. Takes no lock that another thread
/// holds, since in a forked child that lock is never released.
fn may_write() -> Option<u64> {
    // Relaxed: see `turn_off`.
    if TURNED_OFF.load(Relaxed) > 0 {
        return None;
    }
    let Ok(mut written) = WRITTEN.try_lock() else { return Some(0) };
    let new = || Written { since: Instant::now(), lines: 0, left_out: 0 };
    let state = written.get_or_insert_with(new);
    let left_out = state.left_out;
    if state.since.elapsed() >= SPAN {
        *state = new();
    } else if state.lines == MOST {
        state.left_out += 1;
        return None;
    }
    state.lines += 1;
    state.left_out = 0;
    Some(left_out)
}

/// Writes a line, unless they are turned off or too many have been written within a second. A line says how many were
/// left out before it. What cannot be written is lost.
pub(crate) fn line(what: fmt::Arguments<'_>) {
    let Some(left_out) = may_write() else { return };
    let more = if left_out == 0 { String::new() } else { format!(" ({left_out} lines before this one were left out)") };
    let _ = write(&format!("{what}{more}\n"));
}

/// Begins a new span, so that the end of the process can say something after a flood of lines.
#[cfg(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri))))]
pub(crate) fn begin_span() {
    if let Some(written) = WRITTEN.try_lock().ok().as_mut().and_then(|written| written.as_mut()) {
        (written.since, written.lines) = (Instant::now(), 0);
    }
}

/// Writes without the lock of [`io::stderr`], which another thread may have held when the process was forked. Loses a
/// line that could not be written at once: to a pipe that is full, where a write would block, or that nobody reads.
#[cfg(all(target_os = "linux", not(miri)))]
fn write(line: &str) -> io::Result<()> {
    use std::{fs::File, mem::ManuallyDrop, os::fd::FromRawFd};

    /// The number of bytes that a pipe takes at once if it takes any.
    const AT_ONCE: usize = 4096;
    let mut ready = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: `ready` is one entry, which the call may write.
    unsafe { libc::poll(&raw mut ready, 1, 0) };
    if ready.revents != libc::POLLOUT {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    // SAFETY: the descriptor is only written to here, and it is not closed.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(libc::STDERR_FILENO) });
    let bytes = line.as_bytes();
    without_signals(|| file.write_all(if bytes.len() > AT_ONCE { &bytes[..AT_ONCE] } else { bytes }))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn write(line: &str) -> io::Result<()> {
    io::stderr().write_all(line.as_bytes())
}
