//! Atomics for models under shuttle, which announce each access before shuttle may switch threads.
//!
//! The exhaustive scheduler of `loom-tests` thereby knows what each thread is about to do, and need not try both orders
//! of two accesses that commute.
//!
//! shuttle runs all threads of a model on one OS thread and switches only where it is called, so the values are in
//! `std`'s atomics. A scheduler may let a thread make several accesses without a call ([`grant`]), which costs far less
//! than to choose the same thread each time.

use std::{
    cell::Cell,
    sync::atomic::{self as inner, Ordering},
};

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

std::thread_local! {
    static NEXT: Cell<Option<Announced>> = const { Cell::new(None) };
    /// How many accesses to atomics the running thread may make before shuttle may switch threads.
    static GRANTED: Cell<u32> = const { Cell::new(0) };
    /// An access to one of shuttle's atomics is a switch point.
    static POINT: shuttle::sync::atomic::AtomicBool = const { shuttle::sync::atomic::AtomicBool::new(false) };
}

/// Announces what the calling thread of a model is about to do, and lets shuttle switch threads before it.
#[track_caller]
pub fn announce<T>(object: *const T, writes: bool, is_cell: bool) {
    NEXT.set(Some(Announced { address: object.addr(), writes, is_cell }));
    // Relaxed: only the switch matters.
    POINT.with(|point| point.load(Ordering::Relaxed));
}

/// Returns what was last announced since the last call.
pub fn take_announced() -> Option<Announced> {
    NEXT.take()
}

/// Lets the running thread make this many accesses to atomics, unless it blocks, before shuttle may switch threads. The
/// scheduler that calls this must [take back](take_granted) the rest whenever it chooses a thread.
pub fn grant(accesses: u32) {
    GRANTED.set(accesses);
}

/// Returns how many of the granted accesses have not been made, and takes them back.
pub fn take_granted() -> u32 {
    GRANTED.take()
}

/// [Announces](announce) an access to an atomic, unless the access is granted.
#[track_caller]
fn announce_access<T>(atomic: *const T, writes: bool) {
    match GRANTED.get().checked_sub(1) {
        Some(left) => GRANTED.set(left),
        None => announce(atomic, writes, false),
    }
}

macro_rules! methods {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)+) => {$(
        /// Does what the method of the same name in `std` does.
        #[allow(clippy::missing_errors_doc)]
        #[track_caller]
        pub fn $name(&self, $($argument: $type),*) -> $result {
            announce_access(self, true);
            self.0.$name($($argument),*)
        }
    )+};
}

macro_rules! announced {
    ($($name:ident $(<$parameter:ident>)? of $value:ty { $($methods:tt)* })+) => {$(
        /// `std`'s type of the same name, with switch points.
        #[derive(Debug)]
        pub struct $name$(<$parameter>)?(inner::$name$(<$parameter>)?);

        impl$(<$parameter>)? $name$(<$parameter>)? {
            /// Creates the atomic.
            pub const fn new(value: $value) -> Self {
                Self(inner::$name::new(value))
            }

            /// Loads the value.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                announce_access(self, false);
                self.0.load(order)
            }

            /// Returns the value, without a switch point.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            methods! {
                store(value: $value, order: Ordering) -> ();
                swap(value: $value, order: Ordering) -> $value;
                compare_exchange(current: $value, new: $value, success: Ordering, failure: Ordering) ->
                    Result<$value, $value>;
                compare_exchange_weak(current: $value, new: $value, success: Ordering, failure: Ordering) ->
                    Result<$value, $value>;
                $($methods)*
            }
        }

        impl$(<$parameter>)? Default for $name$(<$parameter>)? {
            fn default() -> Self {
                Self(inner::$name::default())
            }
        }
    )+};
}

announced! {
    AtomicBool of bool {
        fetch_or(value: bool, order: Ordering) -> bool;
    }
    AtomicU8 of u8 {
        fetch_or(value: u8, order: Ordering) -> u8;
        fetch_and(value: u8, order: Ordering) -> u8;
        fetch_max(value: u8, order: Ordering) -> u8;
    }
    AtomicU32 of u32 {
        fetch_add(value: u32, order: Ordering) -> u32;
        fetch_sub(value: u32, order: Ordering) -> u32;
        fetch_or(value: u32, order: Ordering) -> u32;
    }
    AtomicU64 of u64 {
        fetch_update(set: Ordering, fetch: Ordering, f: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64>;
        fetch_add(value: u64, order: Ordering) -> u64;
        fetch_sub(value: u64, order: Ordering) -> u64;
        fetch_or(value: u64, order: Ordering) -> u64;
        fetch_and(value: u64, order: Ordering) -> u64;
        fetch_max(value: u64, order: Ordering) -> u64;
    }
    AtomicUsize of usize {
        fetch_update(set: Ordering, fetch: Ordering, f: impl FnMut(usize) -> Option<usize>) -> Result<usize, usize>;
        fetch_add(value: usize, order: Ordering) -> usize;
        fetch_sub(value: usize, order: Ordering) -> usize;
        fetch_or(value: usize, order: Ordering) -> usize;
        fetch_and(value: usize, order: Ordering) -> usize;
    }
    AtomicPtr<T> of *mut T {}
}
