//! A process in which no thread can be started. Not a part of `mod.rs`, since not everybody who uses that has the crate
//! `libc`.

use std::thread;

use crate::{Gate, mapped_bytes};

/// While this lives, no thread can be started: there is no room for its stack.
pub struct NoThreads {
    before: libc::rlimit,
    /// They have what stacks are left of threads that have ended.
    parked: Vec<thread::JoinHandle<()>>,
    over: Gate,
}

impl NoThreads {
    pub fn new() -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: there is a place to write to.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) }, 0);
        // Less than a stack, enough for what is allocated meanwhile.
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
        // SAFETY: there is a limit to read.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        Self::set(self.before);
        self.over.open();
        self.parked.drain(..).for_each(|thread| thread.join().expect("it only waits"));
    }
}
