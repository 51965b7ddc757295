//! `Latest`: the last of a sequence of values. Any thread can have a share in it at any time.
//!
//! A value is dropped with its last share, by the thread that has this share.
//!
//! # Who may touch what
//!
//! * `value`: changed by [`replace`](Latest::replace); loaded by readers.
//! * `readers`: the number of threads between the load of the pointer and the share that they take. Such a thread is
//!   also pinned, and may look at the counts beside a value that has been replaced.
//! * The counts beside a replaced value are freed at once if no reader is counted after the replacement: a later reader
//!   loads the new pointer. Otherwise, a weak share, which keeps them but not the value, is retired.
//!
//! # Progress
//!
//! A replacement never repeats a step. A reader looks again only if the value that it has found was replaced and
//! dropped meanwhile.
//!
//! # Edges
//!
//! [`latest`](crate::sync::edge::latest).

use std::{fmt, mem::ManuallyDrop};

use crate::{
    memory::epoch,
    sync::{
        Ordering::Relaxed,
        atomic::{AtomicPtr, AtomicUsize},
        edge::{self, acquire, full_fence, release},
        shared::{Arc, Weak},
    },
};

/// The last of a sequence of values.
pub struct Latest<T> {
    /// Has a share in the value.
    value: AtomicPtr<T>,
    readers: AtomicUsize,
}

// SAFETY: the type behaves as a lock around an `Arc`: it hands out shares in its values, and drops others.
unsafe impl<T: Send + Sync> Send for Latest<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send + Sync> Sync for Latest<T> {}

impl<T> Latest<T> {
    /// Creates a sequence that begins with `value`.
    pub fn new(value: T) -> Self {
        Self { value: AtomicPtr::new(into_raw(value)), readers: AtomicUsize::new(0) }
    }

    /// Replaces the value, and drops the last one unless others have shares in it.
    pub fn replace(&self, value: T) {
        let old = self.value.swap(into_raw(value), release(edge::latest::STORED));
        // Also acquires the value before.
        full_fence(edge::latest::REPLACE);
        // SAFETY: the pointer comes from `into_raw`, and its share was that of `self`.
        let old = unsafe { Arc::from_raw(old) };
        if self.readers.load(acquire(edge::latest::NO_READER)) > 0 {
            // Before the share in the value ends: the value's drop may panic.
            let counts = Arc::downgrade(&old);
            // SAFETY: (1): the value is not used, and any thread may free the memory. (2): the share is moved.
            unsafe { epoch::pin().retire(move || drop(counts)) };
            epoch::retired(size_of::<T>());
        }
        drop(old);
    }

    /// Returns a share in the last value.
    pub fn load(&self) -> Arc<T> {
        let _pinned = epoch::pin();
        // Relaxed: the fence below orders the change before the load of the pointer.
        self.readers.fetch_add(1, Relaxed);
        let value = loop {
            // After a failed attempt, also acquires the replacement, which came before the end of the value's last share.
            full_fence(edge::latest::READ);
            let value = self.value.load(acquire(edge::latest::LOADED));
            // SAFETY: the pointer comes from `into_raw`. Either its share is still that of `self`, or the thread that
            // has replaced it counts this reader and retires a weak share; in both cases, the counts outlive the pin.
            // The weak share used here is not counted, and is not dropped.
            let counts = unsafe { ManuallyDrop::new(Weak::from_raw(value)) };
            if let Some(value) = counts.upgrade() {
                break value;
            }
        };
        self.readers.fetch_sub(1, release(edge::latest::SHARED));
        value
    }
}

fn into_raw<T>(value: T) -> *mut T {
    Arc::into_raw(Arc::new(value)).cast_mut()
}

impl<T> Drop for Latest<T> {
    fn drop(&mut self) {
        // Relaxed: this thread has taken over all of `self`.
        // SAFETY: the pointer comes from `into_raw`, and its share was that of `self`.
        drop(unsafe { Arc::from_raw(self.value.load(Relaxed)) });
    }
}

impl<T> fmt::Debug for Latest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latest").finish_non_exhaustive()
    }
}
