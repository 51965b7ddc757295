//! Forks: determines whether a value was made by this process or by an ancestor, whose values may be used only with
//! restrictions.
//!
//! A forked child has only the thread that forked, and a copy of all memory as it was at the fork. Whatever other
//! threads held at the fork (locks, pins, operations) stays held in the child forever. Lock-free data is in a state
//! that other threads could also have seen at the fork. A child may therefore read atomics made by its parent, but must
//! not take its parent's locks.
//!
//! A [`ProcessMark`] records which process made a value. A [`PerProcess`] holds a value that each process makes for
//! itself. A fork is detected because `crate::engine::fork` arranges for the child to call [`begin_child`] before
//! anything else; a `clone` or `vfork` that skips this call is not detected.

use crate::sync::edge::{self, acquire, release};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

/// The number of forks between the first process and this one.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Records that this process is a forked child. Must be called once in the child, while it has one thread.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn begin_child() {
    // Relaxed: there is no other thread.
    FORKS.fetch_add(1, Relaxed);
}

/// Identifies the process that made a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessMark(usize);

impl ProcessMark {
    /// Returns the mark of this process.
    pub(crate) fn current() -> Self {
        // Relaxed: the number changes only while there is no other thread.
        Self(FORKS.load(Relaxed))
    }

    /// Whether the mark is that of an ancestor of this process.
    #[inline]
    pub(crate) fn is_foreign(self) -> bool {
        // Relaxed: the number changes only while there is no other thread.
        self.0 != FORKS.load(Relaxed)
    }
}

/// A value that each process makes for itself, once. A forked child never frees its parent's value.
///
/// Lock-free, so that a fork never finds it half-made.
pub(crate) struct PerProcess<T>(AtomicPtr<Made<T>>);

struct Made<T> {
    process: ProcessMark,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns this process's value, calling `make` if there is none yet. If several threads make values concurrently,
    /// all receive the same one.
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> &'static T {
        let made = self.0.load(acquire(edge::made::GOT));
        // SAFETY: every value that the pointer has ever referred to was leaked.
        match unsafe { made.as_ref() } {
            Some(made) if !made.process.is_foreign() => &made.value,
            _ => self.make(made, make()),
        }
    }

    #[cold]
    fn make(&self, before: *mut Made<T>, value: T) -> &'static T {
        let new = Box::into_raw(Box::new(Made { process: ProcessMark::current(), value }));
        let now = match self.0.compare_exchange(before, new, release(edge::made::MADE), acquire(edge::made::LOST)) {
            Ok(_) => new,
            Err(now) => {
                // SAFETY: `new` was boxed above, and no other thread has a pointer to it.
                drop(unsafe { Box::from_raw(new) });
                now
            }
        };
        // SAFETY: every value that the pointer has ever referred to was leaked. `now` was made by this process: the
        // only value of another process to which the pointer could still refer is `before`.
        &unsafe { &*now }.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test neither forks nor calls `begin`, which would affect all tests running alongside it.
    #[test]
    fn a_value_is_made_once_and_again_after_a_fork() {
        static VALUE: PerProcess<usize> = PerProcess::new();
        assert_eq!(*VALUE.get(|| 1), 1);
        assert_eq!(*VALUE.get(|| 2), 1);
        let foreign = Made { process: ProcessMark(FORKS.load(Relaxed).wrapping_sub(1)), value: 3 };
        assert!(foreign.process.is_foreign());
        // Relaxed: the test has one thread.
        let old = VALUE.0.swap(Box::leak(Box::new(foreign)), Relaxed);
        assert_eq!(*VALUE.get(|| 4), 4);
        // SAFETY: the value was leaked and is never freed.
        assert_eq!(unsafe { &*old }.value, 1, "the old value was changed");
    }

    #[test]
    fn threads_that_make_a_value_concurrently_get_the_same_one() {
        static VALUE: PerProcess<usize> = PerProcess::new();
        let both_make = std::sync::Barrier::new(2);
        let get = |number| {
            VALUE.get(|| {
                both_make.wait();
                number
            })
        };
        let [one, two] = std::thread::scope(|scope| {
            [1, 2].map(|number| scope.spawn(move || get(number))).map(|thread| thread.join().expect("no panic"))
        });
        assert!(std::ptr::eq(one, two), "{one} and {two}");
        assert!(std::ptr::eq(one, VALUE.get(|| 3)));
    }
}
