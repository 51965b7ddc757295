//! A guard that keeps the process from starting threads.

use std::{fs, thread};

use crate::{Gate, eventually, mapped_bytes};

/// While this value is alive, no thread with a stack of the default size can start, since no address space is left for
/// the stack.
pub struct NoThreads {
    before: libc::rlimit,
    /// Threads occupying the cached stacks of ended threads, each until its gate is opened.
    parked: Vec<(Gate, thread::JoinHandle<()>)>,
}

impl NoThreads {
    /// Waits until the other threads sleep. Without this wait, a thread could start just before the limit applies and
    /// abort the process for lack of a signal stack, or end later and leave its stack to another.
    pub fn new() -> Self {
        // Three times in a row, since a thread that sleeps may be woken by one that is looked at later.
        let mut asleep = 0;
        eventually("the other threads sleep", || {
            asleep = if others_sleep() { asleep + 1 } else { 0 };
            asleep == 3
        });
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `before` is a live `rlimit` that the call may write.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) }, 0);
        // The limit leaves less address space than a stack needs, but enough for the allocations made while the limit
        // applies.
        Self::set(libc::rlimit { rlim_cur: mapped_bytes() as libc::rlim_t + (1 << 20), ..before });
        let park = || {
            let gate = Gate::new();
            let closed = gate.clone();
            let thread = thread::Builder::new().spawn(move || closed.pass()).ok()?;
            Some((gate, thread))
        };
        let parked = std::iter::from_fn(park).collect();
        Self { before, parked }
    }

    /// Lets one thread start, with the stack of a thread that had ended before this value was created. Panics if there
    /// was none.
    pub fn let_one_start(&mut self) {
        let (gate, thread) = self.parked.pop().expect("a thread should have ended before");
        gate.open();
        thread.join().expect("a parked thread should not panic");
    }

    fn set(limit: libc::rlimit) {
        // SAFETY: `limit` is a live `rlimit` that the call only reads.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    }
}

/// Whether all other threads of this process sleep.
fn others_sleep() -> bool {
    let own = fs::read_link("/proc/thread-self").expect("procfs");
    let others = fs::read_dir("/proc/self/task").expect("procfs").flatten();
    others.filter(|other| Some(&*other.file_name()) != own.file_name()).all(|other| {
        // The state follows the name, which is in parentheses.
        let stat = fs::read_to_string(other.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    })
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        Self::set(self.before);
        self.parked.iter().for_each(|(gate, _)| gate.open());
        self.parked.drain(..).for_each(|(_, thread)| thread.join().expect("a parked thread should not panic"));
    }
}
