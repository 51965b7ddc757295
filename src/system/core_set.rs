//! Sets of cores, and how a thread is restricted to one.

use std::{cell::Cell, fmt};

/// The number of cores for which Linux's mask has a bit.
pub(super) const MAX_CORES: usize = 1024;

pub(super) const WORDS: usize = MAX_CORES / usize::BITS as usize;

/// A set of cores, in the kernel's format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CoreSet(pub(super) [usize; WORDS]);

thread_local! {
    /// The cores that the thread had when it was last restricted, or was last found to have been moved.
    static GIVEN: Cell<Option<CoreSet>> = const { Cell::new(None) };
}

impl CoreSet {
    /// Returns the set of those of `cores` for which it has a bit.
    pub(crate) fn new(cores: &[usize]) -> Self {
        let mut set = Self([0; WORDS]);
        for &core in cores.iter().filter(|&&core| core < MAX_CORES) {
            set.0[core / usize::BITS as usize] |= 1 << (core % usize::BITS as usize);
        }
        set
    }

    pub(crate) fn contains(&self, core: usize) -> bool {
        self.0.get(core / usize::BITS as usize).is_some_and(|word| word >> (core % usize::BITS as usize) & 1 == 1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self([0; WORDS])
    }

    /// Returns the cores in ascending order.
    pub(crate) fn list(&self) -> Box<[usize]> {
        (0..MAX_CORES).filter(|&core| self.contains(core)).collect()
    }

    /// Returns what is in both sets.
    pub(crate) fn common(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Restricts the calling thread to these cores. Returns `false` if there are none or the operating system refuses.
    pub(crate) fn keep_thread(&self) -> bool {
        let keeps = !self.is_empty() && self.set();
        if keeps {
            // The system grants those that are in the process's cpuset.
            GIVEN.set(Some(Self::of(0).unwrap_or(*self)));
        }
        keeps
    }

    /// Returns the cores that the calling thread had when it was last [restricted](Self::keep_thread) or found to have
    /// been [moved](Self::moved_to).
    pub(super) fn given() -> Option<Self> {
        GIVEN.get()
    }

    /// Returns the cores of the calling thread if these are not those to which it was last
    /// [restricted](Self::keep_thread), so something else has moved it. Returns `None` if it was never restricted.
    pub(super) fn moved_to() -> Option<Self> {
        let given = GIVEN.get()?;
        let now = Self::of(0).filter(|now| *now != given)?;
        GIVEN.set(Some(now));
        Some(now)
    }

    /// Returns the cores of the process's first thread.
    pub(super) fn of_process() -> Option<Self> {
        Self::of(std::process::id())
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn of(thread: u32) -> Option<Self> {
        let mut set = Self([0; WORDS]);
        // SAFETY: the kernel writes no more than the size, and any value is valid for the words.
        let result =
            unsafe { libc::sched_getaffinity(thread as libc::pid_t, size_of_val(&set), (&raw mut set.0).cast()) };
        (result == 0).then_some(set)
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn set(&self) -> bool {
        // SAFETY: the words are valid for their size, and 0 is the calling thread.
        unsafe { libc::sched_setaffinity(0, size_of_val(self), (&raw const self.0).cast()) == 0 }
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn of(_thread: u32) -> Option<Self> {
        None
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn set(&self) -> bool {
        false
    }
}

impl fmt::Debug for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.list()).finish()
    }
}
