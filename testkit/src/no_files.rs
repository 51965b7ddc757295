//! A guard that keeps the process from opening files.

/// While this value is alive, the process can open no further file.
pub struct NoFiles(libc::rlimit);

impl NoFiles {
    pub fn new() -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `before` is a live `rlimit` that the call may write.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) }, 0);
        Self::set(libc::rlimit { rlim_cur: 0, ..before });
        Self(before)
    }

    fn set(limit: libc::rlimit) {
        // SAFETY: `limit` is a live `rlimit` that the call only reads.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    }
}

impl Drop for NoFiles {
    fn drop(&mut self) {
        Self::set(self.0);
    }
}
