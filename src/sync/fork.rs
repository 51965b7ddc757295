//! Which process this is, as forks count: what a process made is not of use in a child that it forked.
//!
//! A forked child has one thread, the one that forked, and a copy of all memory as it was at that moment. Whatever other
//! threads held is held for ever there: locks, pins, operations. The state of what is lock-free is one that other threads
//! could have seen at that moment as well. So a child may look at atomics that its parent made, and must not take a lock.
//!
//! What is made with [`ProcessMark`] knows whether this process made it. What is in a [`PerProcess`] each process makes for
//! itself. A fork is noticed by [`begin`], which `crate::engine::fork` has called in the child before anything else; what comes of
//! `clone` or `vfork` without that is not noticed.

use std::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// Forks between the first process and this one.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Says that this process is new: a forked child. To be called there while it has one thread; more than once does no harm.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn begin() {
    // Relaxed: there is no other thread.
    FORKS.fetch_add(1, Relaxed);
}

/// The process that something was made in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessMark(usize);

impl ProcessMark {
    /// Now.
    pub(crate) fn current() -> Self {
        // Relaxed: it changes only where there is no other thread.
        Self(FORKS.load(Relaxed))
    }

    /// Whether that was in a process that has forked this one.
    #[inline]
    pub(crate) fn is_foreign(self) -> bool {
        // Relaxed: as above.
        self.0 != FORKS.load(Relaxed)
    }
}

/// A value that each process makes for itself, once. What the process that forked it has made is left as it is, for ever.
///
/// Lock-free, so that a fork never finds it half made.
pub(crate) struct PerProcess<T>(AtomicPtr<Made<T>>);

struct Made<T> {
    process: ProcessMark,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The value of this process, from `make` if there is none. Of several threads that make one at once, all get one of
    /// them.
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> &'static T {
        // Acquire: pairs with the exchange in `make`.
        let made = self.0.load(Acquire);
        // SAFETY: what is in there was leaked.
        match unsafe { made.as_ref() } {
            Some(made) if !made.process.is_foreign() => &made.value,
            _ => self.make(made, make()),
        }
    }

    #[cold]
    fn make(&self, before: *mut Made<T>, value: T) -> &'static T {
        let new = Box::into_raw(Box::new(Made { process: ProcessMark::current(), value }));
        // AcqRel: pairs with the load in `get`; the other thread's value if that was faster.
        let now = match self.0.compare_exchange(before, new, AcqRel, Acquire) {
            Ok(_) => new,
            Err(now) => {
                // SAFETY: it was boxed a moment ago, and nobody else knows it.
                drop(unsafe { Box::from_raw(new) });
                now
            }
        };
        // SAFETY: what is in there was leaked. It is of this process: of another one's, only `before` is left.
        &unsafe { &*now }.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No process of the tests' is forked here: `begin` would count for all that runs beside.
    #[test]
    fn a_value_is_made_once_and_again_where_the_last_one_is_foreign() {
        static VALUE: PerProcess<usize> = PerProcess::new();
        assert_eq!(*VALUE.get(|| 1), 1);
        assert_eq!(*VALUE.get(|| 2), 1);
        let foreign = Made { process: ProcessMark(FORKS.load(Relaxed).wrapping_sub(1)), value: 3 };
        assert!(foreign.process.is_foreign());
        // Relaxed: the test has one thread.
        let old = VALUE.0.swap(Box::leak(Box::new(foreign)), Relaxed);
        assert_eq!(*VALUE.get(|| 4), 4);
        // SAFETY: it was leaked, and nobody frees it.
        assert_eq!(unsafe { &*old }.value, 1, "the old one stays");
    }

    #[test]
    fn threads_that_make_a_value_at_once_get_the_same() {
        static VALUE: PerProcess<usize> = PerProcess::new();
        let values: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|number| scope.spawn(move || *VALUE.get(|| number))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(values.iter().all(|&value| value == values[0]), "{values:?}");
    }
}
