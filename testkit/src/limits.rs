//! Limits that the system sets to the process.

use std::fs;

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

/// Confines all threads of this process to `cores`, as `taskset --all-tasks --pid` does.
pub fn confine_process(cores: &[usize]) {
    // SAFETY: a mask is an array of bits, for which zero is valid.
    let mut mask: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores {
        // SAFETY: `CPU_SET` checks that the mask has a bit for the core.
        unsafe { libc::CPU_SET(core, &mut mask) };
    }
    for thread in fs::read_dir("/proc/self/task").expect("procfs").flatten() {
        let thread = thread.file_name().to_str().and_then(|thread| thread.parse().ok()).expect("a thread's number");
        // SAFETY: the mask is valid for its size. A thread that has ended is not found.
        unsafe { libc::sched_setaffinity(thread, size_of_val(&mask), &raw const mask) };
    }
}
