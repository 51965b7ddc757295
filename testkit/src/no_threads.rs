//! A guard that keeps the process from starting threads.

use std::thread;

use crate::{Gate, mapped_bytes};

/// While this value is alive, no thread with a stack of the default size can start, since no address space is left for
/// the stack.
pub struct NoThreads {
    before: libc::rlimit,
    /// Threads occupying the cached stacks of ended threads.
    parked: Vec<thread::JoinHandle<()>>,
    over: Gate,
}

impl NoThreads {
    pub fn new() -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `before` is a live `rlimit` that the call may write.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) }, 0);
        // The limit leaves less address space than a stack needs, but enough for the allocations made while the limit
        // applies.
        Self::set(libc::rlimit { rlim_cur: mapped_bytes() as u64 + (1 << 20), ..before });
        let over = Gate::new();
        let park = || {
            let over = over.clone();
            thread::Builder::new().spawn(move || over.pass()).ok()
        };
        let parked = std::iter::from_fn(park).collect();
        Self { before, parked, over }
    }

    fn set(limit: libc::rlimit) {
        // SAFETY: `limit` is a live `rlimit` that the call only reads.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        Self::set(self.before);
        self.over.open();
        self.parked.drain(..).for_each(|thread| thread.join().expect("a parked thread should not panic"));
    }
}
