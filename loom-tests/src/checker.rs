//! What the models of `tests/models` take from the model checker that runs them: loom or, under `--cfg raddle_shuttle`,
//! shuttle.

#[cfg(raddle_loom)]
pub use loom::{alloc, cell, sync, thread};

/// Threads.
#[cfg(raddle_shuttle)]
pub mod thread {
    pub use shuttle::thread::{Thread, current, park, yield_now};

    /// A value that is sent between the threads of a model.
    struct Sent<T>(T);

    // SAFETY: shuttle runs every thread of a model on one OS thread.
    unsafe impl<T> Send for Sent<T> {}

    impl<T> Sent<T> {
        fn take(self) -> T {
            self.0
        }
    }

    /// The handle of a thread.
    pub struct JoinHandle<T>(shuttle::thread::JoinHandle<Sent<T>>);

    impl<T> JoinHandle<T> {
        /// Waits until the thread ends, and returns its result.
        ///
        /// # Errors
        /// If the thread panicked.
        pub fn join(self) -> std::thread::Result<T> {
            self.0.join().map(Sent::take)
        }

        /// Returns the thread.
        pub fn thread(&self) -> &Thread {
            self.0.thread()
        }
    }

    impl<T> std::fmt::Debug for JoinHandle<T> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("JoinHandle").finish_non_exhaustive()
        }
    }

    /// Starts a thread. As in loom, neither the function nor its result need be `Send`.
    pub fn spawn<T: 'static>(f: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
        let f = Sent(f);
        JoinHandle(shuttle::thread::spawn(move || Sent(f.take()())))
    }
}

/// Locks and atomics.
#[cfg(raddle_shuttle)]
pub mod sync {
    pub use raddle::internals::announced as atomics;
    pub use shuttle::sync::{Mutex, MutexGuard};

    /// Atomics.
    pub mod atomic {
        pub use super::atomics::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
        pub use std::sync::atomic::Ordering;
    }
}

/// Cells.
#[cfg(raddle_shuttle)]
pub mod cell {
    use raddle::internals::announced::announce;

    /// A cell. The exhaustive scheduler fails the model if two threads can access it at the same time, at least one of
    /// them for writing.
    #[derive(Debug, Default)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// Creates a cell.
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer for shared access.
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            announce(self, false, true);
            f(self.0.get())
        }

        /// Calls `f` with a pointer for exclusive access.
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            announce(self, true, true);
            f(self.0.get())
        }
    }
}

/// Objects whose loss fails a model under loom. shuttle does not report them.
#[cfg(raddle_shuttle)]
pub mod alloc {
    /// An object.
    #[derive(Debug)]
    pub struct Track<T>(T);

    impl<T> Track<T> {
        /// Creates an object.
        pub const fn new(value: T) -> Self {
            Self(value)
        }

        /// Returns the value.
        pub const fn get_ref(&self) -> &T {
            &self.0
        }
    }
}
