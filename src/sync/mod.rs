//! The atomics, cells, locks and parking used in protocols: those of `std`, loom or shuttle. (Counters that order
//! nothing use `std` directly.)
//!
//! Modules with protocols import them from here, so that a cfg puts the whole crate under a model checker:
//! `raddle_loom` (with `crossbeam_loom`, for crossbeam's crates) or `raddle_shuttle`. `raddle_loom` has a name of its
//! own because plain `loom` also changes crates unrelated to the models.
//!
//! # What the models see
//!
//! | piece | ordinary build | under `raddle_loom` | under `raddle_shuttle` |
//! |---|---|---|---|
//! | atomics | `std` | loom | `std`'s, which announce each access (`announced`) |
//! | fences, mutexes, parking | `std` | loom | shuttle |
//! | cells, `OnceLock` | `std` | loom | `std` |
//! | [`Arc`](shared) of what is replaced while it is read | `std` | on loom's atomics | on `announced` ones |
//! | the threads of an engine | `std` | `std` | shuttle |
//! | [`epoch`](crate::memory::epoch) | crossbeam-epoch | crossbeam-epoch on loom's atomics, or its contract alone (`epoch::Flavour`) | its contract |
//! | [`deque`] | crossbeam-deque | a counted `VecDeque`: crossbeam-deque names `core`'s atomics, which loom cannot see | the same |
//! | [`edge`] | constants | looked up, so that a test can weaken one of them | the same |
//!
//! [`pause`](crate::testing::pause) is for tests on real threads and does nothing in either model build.
//!
//! # Limits
//!
//! loom explores at most five threads, does not explore load buffering, and treats `SeqCst` loads and stores as acquire
//! and release. Where two sides must not miss each other, raddle therefore uses `fence(SeqCst)`, which loom models. The
//! model of the deque checks the users of the deque, not crossbeam-deque itself.
//!
//! shuttle treats every access as `SeqCst`, so it says nothing about orderings. It tries random schedules of models too
//! large for loom, up to whole engines; of the models for loom that have two threads, it tries all schedules that can
//! differ, as far as they are not too many. For this, the atomics announce each access.
//!
//! # Under `ThreadSanitizer`
//!
//! `ThreadSanitizer` follows the edges created by ordered accesses, but not those created by fences. The cfg
//! `raddle_tsan`, which `cargo xtask ci sanitizers` sets, therefore replaces the one fence that hands over data, in
//! [`edge::acquire_all`]. The `SeqCst` fences order only words that are themselves atomics, and remain; no other module
//! may use a fence to hand over data. crossbeam's crates have their own switches.

#[cfg(raddle_shuttle)]
pub mod announced;
pub(crate) mod arrivals;
pub(crate) mod deque;
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) mod edge;
#[cfg(any(raddle_loom, raddle_shuttle))]
pub mod edge;
pub(crate) mod process;
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) mod shared;
#[cfg(any(raddle_loom, raddle_shuttle))]
pub mod shared;

/// Declares a thread-local of `std`, or of loom or shuttle, where each of a model's threads has its own instance.
macro_rules! thread_static {
    ($vis:vis static $name:ident: $ty:ty = $init:expr) => {
        #[cfg(not(any(raddle_loom, raddle_shuttle)))]
        ::std::thread_local!($vis static $name: $ty = const { $init });
        #[cfg(raddle_loom)]
        ::loom::thread_local!($vis static $name: $ty = $init);
        #[cfg(raddle_shuttle)]
        ::shuttle::thread_local!($vis static $name: $ty = $init);
    };
}
pub(crate) use thread_static;

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
mod imp {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, mpsc};
    pub(crate) mod atomic {
        pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};
    }
    pub(crate) mod thread {
        pub(crate) use std::thread::{Builder, JoinHandle, Thread, current, park, park_timeout, yield_now};

        /// Returns the core on which the calling thread is running, if the platform reports it. The thread may move as
        /// soon as this returns.
        #[inline]
        pub(crate) fn core() -> Option<usize> {
            #[cfg(all(target_os = "linux", not(miri)))]
            // SAFETY: the call has no preconditions.
            return usize::try_from(unsafe { libc::sched_getcpu() }).ok();
            #[cfg(not(all(target_os = "linux", not(miri))))]
            None
        }

        /// Sleeps for `time`. By default, Linux may prolong a sleep by the thread's timer slack of 50 µs, which is
        /// therefore reduced. A thread or process inherits the slack of the thread that starts it, so the reduction
        /// ends with the sleep.
        pub(crate) fn sleep_sharply(time: std::time::Duration) {
            #[cfg(all(target_os = "linux", not(miri)))]
            let set_slack = |nanos: libc::c_ulong| {
                // SAFETY: the call changes nothing but the timers of the calling thread.
                unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanos) };
            };
            #[cfg(not(all(target_os = "linux", not(miri))))]
            let set_slack = |_: u64| {};
            set_slack(1);
            std::thread::sleep(time);
            // Zero stands for the slack with which the thread started.
            set_slack(0);
        }

        /// Returns a number that identifies the calling thread.
        #[inline]
        pub(crate) fn number() -> usize {
            use std::{
                cell::Cell,
                sync::atomic::{AtomicUsize, Ordering::Relaxed},
            };
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            std::thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
            let mut number = NUMBER.get();
            if number == usize::MAX {
                // Relaxed: only distinct numbers are needed.
                number = NEXT.fetch_add(1, Relaxed);
                NUMBER.set(number);
            }
            number
        }
    }
    pub(crate) mod hint {
        pub(crate) use std::hint::spin_loop;

        /// Prefetches the cache line of `at`, which may be an address that is no longer mapped.
        #[inline(always)]
        pub(crate) fn prefetch<T>(at: *const T) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: a prefetch has no effect on memory, whatever the address; every x86-64 processor has SSE.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
            }
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            let _ = at;
        }

        /// Prefetches the cache line of `at` for an imminent write, where the processor supports this. `at` may be an
        /// address that is no longer mapped.
        ///
        /// The intrinsic `_mm_prefetch` would become `prefetcht0`, which fetches the line for reading, in builds for
        /// processors that may lack `prefetchw`. x86-64 processors that lack it treat it as a no-op, with the possible
        /// exception of the first 64-bit Pentium 4 of 2004.
        #[inline(always)]
        pub(crate) fn prefetch_write<T>(at: *const T) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: a prefetch has no effect on memory, whatever the address.
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) at.cast::<u8>(), options(readonly, nostack, preserves_flags));
            }
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            let _ = at;
        }
    }
    pub(crate) use super::plain_cell as cell;
}

/// Cells that no model checks.
#[cfg(not(raddle_loom))]
pub(crate) mod plain_cell {
    /// `std::cell::UnsafeCell` with loom's interface.
    #[derive(Debug, Default)]
    pub(crate) struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }
    }

    impl<T: ?Sized> UnsafeCell<T> {
        /// Calls `f` with a pointer for shared access.
        #[inline(always)]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer for exclusive access.
        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// Makes a cell whose value is not initialised, where it is.
    ///
    /// # Safety
    /// 1. The place has the layout of a cell, and is unused.
    pub(crate) unsafe fn begin_uninit<T>(_place: *mut UnsafeCell<std::mem::MaybeUninit<T>>) {}
}

#[cfg(raddle_loom)]
mod imp {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    // No loom model starts the threads of an engine.
    pub(crate) use std::sync::mpsc;

    /// A cell that is set once. Unlike `std`'s, it does not support a `get` concurrent with a `set`: one of raddle's
    /// own edges must order the two.
    #[derive(Debug)]
    pub(crate) struct OnceLock<T>(cell::UnsafeCell<Option<T>>);

    // SAFETY: as for `std`'s type; loom reports a `get` that races with a `set`.
    unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self(cell::UnsafeCell::new(None))
        }

        pub(crate) fn get(&self) -> Option<&T> {
            // SAFETY: a value that was set is never replaced, and loom reports a `set` that is not ordered before the
            // `get`.
            self.0.with(|value| unsafe { &*value }.as_ref())
        }

        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            if self.get().is_some() {
                return Err(value);
            }
            // SAFETY: loom reports any other access to the cell during this one.
            self.0.with_mut(|slot| unsafe { *slot = Some(value) });
            Ok(())
        }
    }

    pub(crate) mod atomic {
        use crate::sync::Ordering;
        pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

        loom::lazy_static! {
            // No thread ever waits on this condition variable.
            pub(crate) static ref FENCES: loom::sync::Condvar = loom::sync::Condvar::new();
        }

        /// Executes a fence. loom may switch threads before it if its ordering is `SeqCst`. loom's own fence is not a
        /// switch point, so loom would never explore another thread's steps between a store and a fence right after it.
        pub(crate) fn fence(order: Ordering) {
            if order == Ordering::SeqCst {
                FENCES.notify_one();
            }
            loom::sync::atomic::fence(order);
        }
    }
    pub(crate) mod thread {
        pub(crate) use loom::thread::{Thread, current, park, yield_now};
        pub(crate) use std::thread::{Builder, JoinHandle};

        /// Returns immediately, since models have no clock. Does not call loom's `yield_now`, which would let other
        /// threads run first.
        pub(crate) fn park_timeout(_: std::time::Duration) {}

        /// Returns `None`, since models have no cores.
        pub(crate) fn core() -> Option<usize> {
            None
        }

        /// Returns a number that identifies the calling thread.
        pub(crate) fn number() -> usize {
            // The number in the id's `Debug` output, for instance `ThreadId(0)`. It is the same in each interleaving,
            // whereas a number assigned in call order would not be.
            let id = format!("{:?}", current().id());
            id.bytes().filter(u8::is_ascii_digit).fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
        }
    }
    pub(crate) mod hint {
        pub(crate) use loom::hint::spin_loop;

        pub(crate) fn prefetch<T>(_at: *const T) {}
        pub(crate) fn prefetch_write<T>(_at: *const T) {}
    }
    pub(crate) mod cell {
        pub(crate) use loom::cell::UnsafeCell;

        /// Makes a cell whose value is not initialised, where it is.
        ///
        /// # Safety
        /// 1. The place has the layout of a cell, and is unused.
        pub(crate) unsafe fn begin_uninit<T>(place: *mut UnsafeCell<std::mem::MaybeUninit<T>>) {
            // SAFETY: (1).
            unsafe { place.write(UnsafeCell::new(std::mem::MaybeUninit::uninit())) };
        }
    }
}

#[cfg(raddle_shuttle)]
mod imp {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, mpsc};
    // shuttle has no `OnceLock`.
    pub(crate) use super::announced as atomic;
    pub(crate) use std::sync::OnceLock;
    pub(crate) mod thread {
        pub(crate) use shuttle::thread::{Builder, JoinHandle, Thread, current, park, yield_now};

        /// Lets other threads run and then returns, since models have no clock.
        pub(crate) fn park_timeout(_: std::time::Duration) {
            yield_now();
        }

        /// Returns `None`, since models have no cores.
        pub(crate) fn core() -> Option<usize> {
            None
        }

        /// Returns a number that identifies the calling thread.
        pub(crate) fn number() -> usize {
            current().id().into()
        }
    }
    pub(crate) mod hint {
        pub(crate) use shuttle::hint::spin_loop;

        pub(crate) fn prefetch<T>(_at: *const T) {}
        pub(crate) fn prefetch_write<T>(_at: *const T) {}
    }
    pub(crate) use super::plain_cell as cell;
}

pub(crate) use imp::{Condvar, Mutex, MutexGuard, OnceLock, atomic, cell, hint, mpsc, thread};
pub(crate) use std::sync::atomic::Ordering;

/// Locks `mutex`, ignoring poisoning: every critical section of this crate leaves its data valid at each step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks `mutex` if no thread has it, ignoring poisoning like [`lock`].
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// Waits on `condvar`, until `deadline` at the latest, and returns the guard. If the deadline has already passed,
/// releases the lock and returns `Err` instead. May return early, as condition variables do.
#[cfg_attr(any(raddle_loom, raddle_shuttle), allow(unused_variables, clippy::unnecessary_wraps))]
pub(crate) fn wait_until<'m, T>(
    condvar: &Condvar,
    guard: MutexGuard<'m, T>,
    deadline: Option<std::time::Instant>,
) -> Result<MutexGuard<'m, T>, TimeIsUp> {
    use std::sync::PoisonError;
    // Models have no clock, so they ignore deadlines.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    if let Some(deadline) = deadline {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Err(TimeIsUp);
        }
        return Ok(condvar.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0);
    }
    Ok(condvar.wait(guard).unwrap_or_else(PoisonError::into_inner))
}

/// The error of a wait that begins after its deadline.
#[derive(Debug)]
pub(crate) struct TimeIsUp;
