//! `Arc` and `Weak`: those of `std` or, in models, ones on the model's atomics, where a use of freed memory fails.

#[cfg(any(raddle_loom, raddle_shuttle))]
pub use model::Arc;
#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) use model::Weak;
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) use std::sync::{Arc, Weak};

#[cfg(any(raddle_loom, raddle_shuttle))]
mod model {
    use std::{mem::ManuallyDrop, ops::Deref, ptr::NonNull};

    use crate::sync::{
        Ordering::{AcqRel, Acquire, Relaxed},
        atomic::AtomicUsize,
        cell::UnsafeCell,
    };

    /// A value and its counts. The memory is never given back.
    #[derive(Debug)]
    #[repr(C)]
    struct Shared<T> {
        value: ManuallyDrop<T>,
        shares: AtomicUsize,
        /// The number of weak shares. All shares have one together.
        weak: AtomicUsize,
        /// Whether the memory counts as freed.
        freed: UnsafeCell<bool>,
    }

    /// A share in a value.
    #[derive(Debug)]
    pub struct Arc<T>(NonNull<Shared<T>>);

    /// A share in the memory of a value and its counts.
    #[derive(Debug)]
    pub(crate) struct Weak<T>(NonNull<Shared<T>>);

    impl<T> Shared<T> {
        /// Returns the memory, which must not have been freed.
        fn of(shared: &NonNull<Self>) -> &Self {
            // SAFETY: the memory is never given back.
            let shared = unsafe { shared.as_ref() };
            // SAFETY: the model fails if another thread changes the cell meanwhile.
            assert!(!shared.freed.with(|freed| unsafe { *freed }), "use after reclamation");
            shared
        }
    }

    impl<T> Arc<T> {
        pub(crate) fn new(value: T) -> Self {
            let [shares, weak] = [1, 1].map(AtomicUsize::new);
            let shared = Shared { value: ManuallyDrop::new(value), shares, weak, freed: UnsafeCell::new(false) };
            Self(NonNull::from(Box::leak(Box::new(shared))))
        }

        pub(crate) fn into_raw(this: Self) -> *const T {
            ManuallyDrop::new(this).0.as_ptr().cast()
        }

        /// # Safety
        /// 1. The pointer comes from [`into_raw`](Self::into_raw), and its share is still there.
        pub(crate) unsafe fn from_raw(value: *const T) -> Self {
            // SAFETY: (1).
            Self(unsafe { NonNull::new_unchecked(value.cast_mut().cast()) })
        }

        pub(crate) fn downgrade(this: &Self) -> Weak<T> {
            // Relaxed: this share keeps the memory.
            Shared::of(&this.0).weak.fetch_add(1, Relaxed);
            Weak(this.0)
        }
    }

    impl<T> Weak<T> {
        /// # Safety
        /// 1. The pointer comes from [`Arc::into_raw`].
        pub(crate) unsafe fn from_raw(value: *const T) -> Self {
            // SAFETY: (1).
            Self(unsafe { NonNull::new_unchecked(value.cast_mut().cast()) })
        }

        pub(crate) fn upgrade(&self) -> Option<Arc<T>> {
            let more = |shares| (shares > 0).then_some(shares + 1);
            // Acquire: as `std` does. Relaxed: nothing is used then.
            Shared::of(&self.0).shares.fetch_update(Acquire, Relaxed, more).ok().map(|_| Arc(self.0))
        }
    }

    impl<T> Deref for Arc<T> {
        type Target = T;

        fn deref(&self) -> &T {
            &Shared::of(&self.0).value
        }
    }

    impl<T> Drop for Arc<T> {
        fn drop(&mut self) {
            // Each share hands over its uses of the value; the last one takes them over.
            if Shared::of(&self.0).shares.fetch_sub(1, AcqRel) == 1 {
                // SAFETY: this was the last share, and no share is added to none.
                unsafe { ManuallyDrop::drop(&mut self.0.as_mut().value) };
                drop(Weak(self.0));
            }
        }
    }

    impl<T> Drop for Weak<T> {
        fn drop(&mut self) {
            let shared = Shared::of(&self.0);
            // Each share hands over its uses of the memory; the last one takes them over.
            if shared.weak.fetch_sub(1, AcqRel) == 1 {
                // SAFETY: the model fails if another thread uses the cell meanwhile, or later.
                shared.freed.with_mut(|freed| unsafe { *freed = true });
            }
        }
    }
}
