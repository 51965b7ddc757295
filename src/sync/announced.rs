//! shuttle's atomics, which also announce each access before shuttle may switch threads.
//!
//! The exhaustive scheduler of `loom-tests` thereby knows what each thread is about to do, and need not try both orders
//! of two accesses that commute.

use std::{
    cell::Cell,
    ops::{Deref, DerefMut},
    sync::atomic::Ordering,
};

use shuttle::sync::atomic as inner;
pub use shuttle::sync::atomic::fence;

/// What a thread is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The address of an atomic or a cell.
    pub address: usize,
    /// Whether it may be changed.
    pub writes: bool,
    /// Whether it is a cell, on which two accesses must be ordered by others unless both only read.
    pub is_cell: bool,
}

std::thread_local!(static NEXT: Cell<Option<Announced>> = const { Cell::new(None) });

/// Announces what the calling thread of a model does after its next switch point.
pub fn announce<T>(object: *const T, writes: bool, is_cell: bool) {
    NEXT.set(Some(Announced { address: object as usize, writes, is_cell }));
}

/// Returns what was last announced since the last call.
pub fn take_announced() -> Option<Announced> {
    NEXT.take()
}

macro_rules! announced {
    ($($name:ident $value:ty;)+) => {$(
        /// shuttle's type of the same name.
        #[derive(Debug, Default)]
        pub struct $name(inner::$name);

        impl $name {
            /// Creates the atomic.
            pub const fn new(value: $value) -> Self {
                Self(inner::$name::new(value))
            }

            /// Loads the value.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                announce(self, false, false);
                self.0.load(order)
            }
        }

        /// Gives access to all other methods, each of which may change the value.
        impl Deref for $name {
            type Target = inner::$name;
            fn deref(&self) -> &Self::Target {
                announce(self, true, false);
                &self.0
            }
        }

        /// Gives access without a switch point.
        impl DerefMut for $name {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.0
            }
        }
    )+};
}

announced! {
    AtomicBool bool;
    AtomicU8 u8;
    AtomicU32 u32;
    AtomicU64 u64;
    AtomicUsize usize;
}

/// shuttle's type of the same name.
#[derive(Debug)]
pub struct AtomicPtr<T>(inner::AtomicPtr<T>);

impl<T> AtomicPtr<T> {
    /// Creates the atomic.
    pub const fn new(value: *mut T) -> Self {
        Self(inner::AtomicPtr::new(value))
    }

    /// Loads the value.
    #[track_caller]
    pub fn load(&self, order: Ordering) -> *mut T {
        announce(self, false, false);
        self.0.load(order)
    }
}

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        Self::new(std::ptr::null_mut())
    }
}

/// Gives access to all other methods, each of which may change the value.
impl<T> Deref for AtomicPtr<T> {
    type Target = inner::AtomicPtr<T>;
    fn deref(&self) -> &Self::Target {
        announce(self, true, false);
        &self.0
    }
}

/// Gives access without a switch point.
impl<T> DerefMut for AtomicPtr<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
