//! The only place that names loom and shuttle, and the atomics, cells, locks and parking of `std` that take part in a
//! protocol. (Counters that number things use `std` where they are.)
//!
//! Every other module imports from here, so one cfg, `raddle_loom`, puts the whole crate under the model checker. The
//! cfg has a name of its own because plain `loom` also changes crates that have nothing to do with the models.
//!
//! # What the models see
//!
//! | piece | ordinary build | under `raddle_loom` | under `raddle_shuttle` |
//! |---|---|---|---|
//! | atomics, fences, mutexes, parking | `std` | loom | shuttle |
//! | cells, `OnceLock` | `std` | loom | `std` |
//! | the threads of an engine | `std` | `std` | shuttle |
//! | [`epoch`](crate::memory::epoch) | crossbeam-epoch | crossbeam-epoch on loom's atomics, or its contract alone (`epoch::Flavour`) | its contract |
//! | [`deque`] | crossbeam-deque | a counted `VecDeque`: crossbeam-deque names `core`'s atomics, which loom cannot see | the same |
//! | [`weaken`](crate::testing::weaken) | nothing, always off | switches that remove one protocol step, for the twins that must fail | the same |
//!
//! [`pause`](crate::testing::pause) is for tests on real threads, and nothing in either of these builds.
//!
//! # Limits
//!
//! loom explores at most five threads, does not explore load buffering, and takes `SeqCst` loads and stores as
//! acquire and release; where two sides must not miss each other, the crate therefore uses `fence(SeqCst)`, which loom
//! models. The model deque checks the users of the deque, not crossbeam-deque itself.
//!
//! shuttle takes every access as `SeqCst`, and tries schedules at random instead of all of them: it is for models that are
//! too large for loom, up to whole engines, and says nothing about orderings.
//!
//! # Under `ThreadSanitizer`
//!
//! `ThreadSanitizer` follows what the orderings of accesses hand over, and nothing that a fence does: the fence takes
//! place, but is not taken for an edge. The cfg `raddle_tsan`, which `.ci/run sanitizers` sets, therefore replaces the
//! one fence that is an edge, in [`acquire`]. The `SeqCst` fences hand over nothing but words that are atomics
//! themselves, and stay as they are; no other module may use a fence to hand over data. crossbeam's crates have switches of their
//! own.

pub(crate) mod deque;
pub(crate) mod fork;

/// A thread-local of `std`, or of loom, where each thread of a model has its own.
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

        /// The core that the calling thread runs on, if that can be had; it may be another one as soon as this returns.
        #[inline]
        pub(crate) fn core() -> Option<usize> {
            #[cfg(all(target_os = "linux", not(miri)))]
            // SAFETY: the call has no conditions.
            return usize::try_from(unsafe { libc::sched_getcpu() }).ok();
            #[cfg(not(all(target_os = "linux", not(miri))))]
            None
        }

        /// Has the calling thread's sleeps end when their time is up. Linux may put that off for 50 µs otherwise.
        pub(crate) fn sleep_sharply() {
            #[cfg(all(target_os = "linux", not(miri)))]
            // SAFETY: the call changes nothing but the timers of the calling thread and of those that it starts.
            unsafe {
                libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
            }
        }

        /// A number for the calling thread.
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

        /// Asks for the cache line of `at`, which is going to be written soon, where the processor can be asked.
        #[inline(always)]
        pub(crate) fn prefetch_write<T>(at: *const T) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch changes nothing, whatever the address.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_ET0>(at.cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = at;
        }
    }
    pub(crate) use super::plain_cell as cell;
}

/// Cells that no model looks at.
#[cfg(not(raddle_loom))]
pub(crate) mod plain_cell {
    /// `std::cell::UnsafeCell` with loom's interface.
    #[derive(Debug, Default)]
    pub(crate) struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Hands a pointer for shared access to `f`.
        #[inline(always)]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Hands a pointer for exclusive access to `f`.
        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(raddle_loom)]
mod imp {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    // No model under loom starts the threads of an engine.
    pub(crate) use std::sync::mpsc;

    /// A cell that is set once. What `std`'s promises to whoever looks while it is set is not looked for here: a look
    /// must come after, by an edge of the crate's own, or not at all.
    #[derive(Debug)]
    pub(crate) struct OnceLock<T>(cell::UnsafeCell<Option<T>>);

    // SAFETY: as for `std`'s; a look that races is reported by loom.
    unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self(cell::UnsafeCell::new(None))
        }

        pub(crate) fn get(&self) -> Option<&T> {
            // SAFETY: what is set stays, and loom reports a `set` that does not come before.
            self.0.with(|value| unsafe { &*value }.as_ref())
        }

        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            if self.get().is_some() {
                return Err(value);
            }
            // SAFETY: loom reports whoever else uses the cell meanwhile.
            self.0.with_mut(|slot| unsafe { *slot = Some(value) });
            Ok(())
        }
    }

    pub(crate) mod atomic {
        use crate::sync::Ordering;
        pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

        loom::lazy_static! {
            // Nobody ever waits for it.
            pub(crate) static ref FENCES: loom::sync::Condvar = loom::sync::Condvar::new();
        }

        /// A fence before which loom may switch threads. It would not do so by itself, and so would never see what
        /// another thread does between a store and a fence right after it.
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

        /// Models have no clock: the time is up at once. Not loom's `yield_now`, after which others run first.
        pub(crate) fn park_timeout(_: std::time::Duration) {}

        /// Models have no cores.
        pub(crate) fn core() -> Option<usize> {
            None
        }

        /// A number for the calling thread.
        pub(crate) fn number() -> usize {
            // `ThreadId(0)`, and so on: the same in each interleaving, which a count of the threads that asked would not be.
            let id = format!("{:?}", current().id());
            id.bytes().filter(u8::is_ascii_digit).fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
        }
    }
    pub(crate) mod hint {
        pub(crate) use loom::hint::spin_loop;

        pub(crate) fn prefetch_write<T>(_at: *const T) {}
    }
    pub(crate) mod cell {
        pub(crate) use loom::cell::UnsafeCell;
    }
}

#[cfg(raddle_shuttle)]
mod imp {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, mpsc};
    // shuttle has none.
    pub(crate) use std::sync::OnceLock;
    pub(crate) mod atomic {
        pub(crate) use shuttle::sync::atomic::{
            AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence,
        };
    }
    pub(crate) mod thread {
        pub(crate) use shuttle::thread::{Builder, JoinHandle, Thread, current, park, yield_now};

        /// Models have no clock: the time is up as soon as others have had a turn.
        pub(crate) fn park_timeout(_: std::time::Duration) {
            yield_now();
        }

        /// Models have no cores.
        pub(crate) fn core() -> Option<usize> {
            None
        }

        /// A number for the calling thread.
        pub(crate) fn number() -> usize {
            current().id().into()
        }
    }
    pub(crate) mod hint {
        pub(crate) use shuttle::hint::spin_loop;

        pub(crate) fn prefetch_write<T>(_at: *const T) {}
    }
    pub(crate) use super::plain_cell as cell;
}

pub(crate) use imp::{Condvar, Mutex, MutexGuard, OnceLock, atomic, cell, hint, mpsc, thread};
pub(crate) use std::sync::atomic::Ordering;

/// Makes the caller see what was done before each release in `counter`'s last changes, one of which it has just made or
/// seen. A fence, so that only the one who needs it pays for it.
#[inline(always)]
pub(crate) fn acquire(counter: &atomic::AtomicU64) {
    #[cfg(not(raddle_tsan))]
    {
        let _ = counter;
        // Acquire: pairs with the releases.
        atomic::fence(Ordering::Acquire);
    }
    // Acquire: the same releases, since every change of the counter is a read-modify-write and carries them on.
    #[cfg(raddle_tsan)]
    counter.load(Ordering::Acquire);
}

/// Locks `mutex`. A panic of another holder does not matter: every critical section of this crate leaves its data whole
/// at each step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits on `condvar`, at most until `deadline`; `Err` gives the lock up because the time is up.
#[cfg_attr(any(raddle_loom, raddle_shuttle), allow(unused_variables, clippy::unnecessary_wraps))]
pub(crate) fn wait_until<'m, T>(
    condvar: &Condvar,
    guard: MutexGuard<'m, T>,
    deadline: Option<std::time::Instant>,
) -> Result<MutexGuard<'m, T>, TimeIsUp> {
    use std::sync::PoisonError;
    // Models have no clock: there a wait with a deadline waits.
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

/// The deadline of a wait has passed.
#[derive(Debug)]
pub(crate) struct TimeIsUp;
