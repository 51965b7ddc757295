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
    struct ValueAndCounts<T> {
        value: ManuallyDrop<T>,
        shares: AtomicUsize,
        /// The number of weak shares. All shares have one together.
        weak: AtomicUsize,
        /// Whether the memory counts as freed.
        freed: UnsafeCell<bool>,
    }

    /// A share in a value.
    #[derive(Debug)]
    pub struct Arc<T>(NonNull<ValueAndCounts<T>>);

    /// A share in the memory of a value and its counts.
    #[derive(Debug)]
    pub(crate) struct Weak<T>(NonNull<ValueAndCounts<T>>);

    impl<T> ValueAndCounts<T> {
        /// Returns the memory, which must not have been freed.
        fn of(memory: &NonNull<Self>) -> &Self {
            // SAFETY: the memory is never given back.
            let memory = unsafe { memory.as_ref() };
            // SAFETY: the model fails if another thread changes the cell meanwhile.
            assert!(!memory.freed.with(|freed| unsafe { *freed }), "use after reclamation");
            memory
        }
    }

    impl<T> Arc<T> {
        pub(crate) fn new(value: T) -> Self {
            let [shares, weak] = [1, 1].map(AtomicUsize::new);
            let memory =
                ValueAndCounts { value: ManuallyDrop::new(value), shares, weak, freed: UnsafeCell::new(false) };
            Self(NonNull::from(Box::leak(Box::new(memory))))
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
            ValueAndCounts::of(&this.0).weak.fetch_add(1, Relaxed);
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
            let before = ValueAndCounts::of(&self.0).shares.fetch_update(Acquire, Relaxed, more);
            // Another thread may have freed the memory before the change.
            ValueAndCounts::of(&self.0);
            before.ok().map(|_| Arc(self.0))
        }
    }

    impl<T> Deref for Arc<T> {
        type Target = T;

        fn deref(&self) -> &T {
            &ValueAndCounts::of(&self.0).value
        }
    }

    impl<T> Drop for Arc<T> {
        fn drop(&mut self) {
            // Each share hands over its uses of the value; the last one takes them over.
            if ValueAndCounts::of(&self.0).shares.fetch_sub(1, AcqRel) == 1 {
                // SAFETY: this was the last share, and no share is added to none.
                unsafe { ManuallyDrop::drop(&mut self.0.as_mut().value) };
                drop(Weak(self.0));
            }
        }
    }

    impl<T> Drop for Weak<T> {
        fn drop(&mut self) {
            let memory = ValueAndCounts::of(&self.0);
            // Each share hands over its uses of the memory; the last one takes them over.
            if memory.weak.fetch_sub(1, AcqRel) == 1 {
                // SAFETY: the model fails if another thread uses the cell meanwhile, or later.
                memory.freed.with_mut(|freed| unsafe { *freed = true });
            }
        }
    }
}
