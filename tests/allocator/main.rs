//! The tests that count the allocations of their process. Each runs `alone`.

use std::alloc::{GlobalAlloc, Layout, System};

mod allocations;
mod nesting;
mod waits;

/// The system's allocator, with each test's counts.
struct Counting;

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocations::allocated();
        waits::allocated(layout);
        // SAFETY: the caller fulfils the contract, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        allocations::freed();
        waits::freed(layout);
        // SAFETY: the caller fulfils the contract, which is that of the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
