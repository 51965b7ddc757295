//! The file of a profile: which one it is, and whether it may be written.
//!
//! A file is known by its lock and its contents, not by its path, since several paths may lead to it. While a profile
//! is written, its file is locked. The beginning of the file names the process that has written it, so that no process
//! overwrites a profile of another one that is still there. Elsewhere than on Linux, files are not locked, and no
//! process is known to be there but the calling one.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::system::{panics, signals::without_signals};

/// The file.
#[derive(Debug)]
pub(super) struct ProfileFile {
    file: UnblockedFile,
    pub(super) path: PathBuf,
}

/// A process, as the beginning of its profiles names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessName {
    id: u32,
    /// When it was started, in a unit of the system; 0 if that is unknown.
    started: u64,
}

/// What precedes the numbers in a [`ProcessName`].
const MARK: &str = "raddle process ";

/// The length of the part of a file in which its mark is looked for.
const HEAD: u64 = 256;

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}{} {}.", self.id, self.started)
    }
}

impl ProcessName {
    /// Returns the name of this process.
    pub(super) fn current() -> Self {
        let id = std::process::id();
        Self { id, started: started(id).unwrap_or(0) }
    }

    /// Returns the process that a profile with these first bytes names. Returns `None` if it is no profile.
    fn found_in(head: &[u8]) -> Option<Self> {
        // The first bytes of Chrome's format, of Perfetto's, and of a report.
        if ![&b"[\n"[..], b"\n", b"<!-- "].iter().any(|first| head.starts_with(first)) {
            return None;
        }
        let text = String::from_utf8_lossy(head);
        let (numbers, _) = text.split_once(MARK)?.1.split_once('.')?;
        let (id, started) = numbers.split_once(' ')?;
        Some(Self { id: id.parse().ok()?, started: started.parse().ok()? })
    }

    fn is_there(self) -> bool {
        started(self.id).is_some_and(|started| started == self.started)
    }
}

/// Returns when the process with this number was started, if there is one and its system says so.
fn started(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name of the program, in parentheses, may contain anything. The time is the twentieth field after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// What was found at a path.
enum FoundFile {
    /// A file that may be written, and is empty now.
    Free(UnblockedFile),
    /// A profile of this process.
    Ours,
    /// A profile of another process that is still there.
    Theirs,
}

impl ProfileFile {
    /// Opens the file for a profile at `path`, or at a path with a number added if this process has written a profile
    /// there, or with the number of this process if another process that is still there has. An existing file that is
    /// not a profile is overwritten only if `may_overwrite`.
    pub(super) fn open(path: &Path, may_overwrite: bool) -> io::Result<Self> {
        let (added, first) = match FoundFile::at(path, may_overwrite)? {
            FoundFile::Free(file) => return Ok(Self { file, path: path.to_owned() }),
            FoundFile::Ours => (String::new(), 2),
            FoundFile::Theirs => (format!("-{}", std::process::id()), 1),
        };
        for number in numbers(first) {
            let number = if number == 1 { String::new() } else { format!("-{number}") };
            let mut name = path.file_stem().unwrap_or_default().to_owned();
            name.push(format!("{added}{number}"));
            if let Some(extension) = path.extension() {
                name.push(".");
                name.push(extension);
            }
            let derived = path.with_file_name(name);
            let file = match FoundFile::at(&derived, false) {
                Ok(FoundFile::Free(file)) => file,
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            // Relaxed: only whether this process has said it, which a forked child has not.
            static SAID_BY: AtomicU32 = AtomicU32::new(0);
            let me = std::process::id();
            if !added.is_empty() && SAID_BY.swap(me, Relaxed) != me {
                let (theirs, ours) = (path.display(), derived.display());
                panics::log!(Warn, "raddle: {theirs} is the profile of another process; this one writes {ours}");
            }
            return Ok(Self { file, path: derived });
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

/// Returns the numbers to add to a name, from `first` on. A process with thousands of profiles need not try them all.
fn numbers(first: u32) -> impl Iterator<Item = u32> {
    const IN_ORDER: u32 = 64;
    static NEXT: AtomicU32 = AtomicU32::new(IN_ORDER + 1);
    // Relaxed: the numbers need only be distinct.
    (first..=IN_ORDER).chain(std::iter::repeat_with(|| NEXT.fetch_add(1, Relaxed)))
}

impl FoundFile {
    fn at(path: &Path, may_overwrite: bool) -> io::Result<Self> {
        let is_special = fs::metadata(path).is_ok_and(|found| !found.is_file());
        let mut options = File::options();
        // A pipe that is also opened for reading would never be without a reader.
        options.read(!is_special).write(true).create(!is_special);
        let opened = UnblockedFile::open(&mut options, path)?;
        let mut file = &opened.0;
        if !file.metadata()?.is_file() {
            return Ok(Self::Free(opened));
        }
        let is_locked = imp::lock(file);
        let mut head = Vec::new();
        file.take(HEAD).read_to_end(&mut head)?;
        match ProcessName::found_in(&head) {
            Some(writer) if writer == ProcessName::current() => return Ok(Self::Ours),
            Some(writer) if !is_locked || writer.is_there() => return Ok(Self::Theirs),
            None if !is_locked => return Ok(Self::Theirs),
            None if !head.is_empty() && !may_overwrite => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists and is not a profile"));
            }
            _ => {}
        }
        file.set_len(0)?;
        file.rewind()?;
        Ok(Self::Free(opened))
    }
}

impl Write for ProfileFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A file that may be a pipe. Neither its opening nor a write to it waits for a reader for long, and no write ends the
/// process by a signal.
#[derive(Debug)]
pub(super) struct UnblockedFile(File);

impl UnblockedFile {
    /// Opens a file to be written, which becomes empty.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Self::open(File::options().write(true).create(true).truncate(true), path)
    }

    fn open(options: &mut OpenOptions, path: &Path) -> io::Result<Self> {
        imp::without_blocking(options).open(path).map(Self).map_err(imp::explain)
    }
}

impl Write for UnblockedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match without_signals(|| self.0.write(bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && imp::wait_until_writable(&self.0) => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod imp {
    use std::{
        fs::{File, OpenOptions},
        io,
        os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    };

    /// How long a pipe may be full, in milliseconds. Not tuned: a reader that is there reads within this time.
    const FULL_FOR: libc::c_int = 5_000;

    /// Makes neither the opening of a pipe nor a write to it block.
    pub(super) fn without_blocking(options: &mut OpenOptions) -> &mut OpenOptions {
        options.custom_flags(libc::O_NONBLOCK)
    }

    pub(super) fn explain(error: io::Error) -> io::Error {
        match error.raw_os_error() {
            Some(libc::ENXIO) => io::Error::new(error.kind(), "the pipe or socket has no reader"),
            _ => error,
        }
    }

    /// Locks a file until it is closed. Returns `false` if it is locked already, also by this process.
    pub(super) fn lock(file: &File) -> bool {
        // SAFETY: the call only uses an open descriptor.
        let refused = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0;
        // Not every file system has locks.
        !refused || io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock
    }

    /// Returns whether a pipe that was full can be written again, for which it may take some seconds.
    pub(super) fn wait_until_writable(file: &File) -> bool {
        let mut ready = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: `ready` is one entry, which the call may write.
        unsafe { libc::poll(&raw mut ready, 1, FULL_FOR) == 1 }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod imp {
    use std::{
        fs::{File, OpenOptions},
        io,
    };

    pub(super) fn without_blocking(options: &mut OpenOptions) -> &mut OpenOptions {
        options
    }

    pub(super) fn explain(error: io::Error) -> io::Error {
        error
    }

    pub(super) fn lock(_file: &File) -> bool {
        true
    }

    pub(super) fn wait_until_writable(_file: &File) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_in_the_head_of_its_profiles() {
        let process = ProcessName { id: 12, started: 345 };
        for before in ["[\n{\"name\":\"", "\n\x05", "<!-- "] {
            let found = |after: &str| ProcessName::found_in(format!("{before}{process}{after}").as_bytes());
            assert_eq!((found(""), found("\"}}")), (Some(process), Some(process)));
        }
        for other in ["", "[", "[\n", "\n", "raddle process 1 2.", "[\nraddle process 1", "\nraddle process a b."] {
            assert_eq!(ProcessName::found_in(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_process_is_there_while_it_has_its_number() {
        let me = ProcessName::current();
        assert!(me.is_there() && me.started > 0);
        assert!(!ProcessName { started: me.started + 1, ..me }.is_there());
        assert!(!ProcessName { id: u32::MAX, ..me }.is_there());
    }
}
