//! Neither a push nor a completion allocates, however many tokens the operation names, up to 16. A build with debug
//! assertions lists its handles, which allocates.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each call keeps the contract of its function")]
#![cfg(not(debug_assertions))]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ffi::c_void,
    mem::zeroed,
    ptr::null_mut,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use raddle_capi::*;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed: only a count.
        ALLOCATIONS.fetch_add(1, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

unsafe extern "C" fn nothing(_: *mut c_void, _: *mut raddle_context) -> i32 {
    0
}

unsafe extern "C" fn complete(_: *mut c_void, context: *mut raddle_context) -> i32 {
    unsafe { raddle_completion_complete(raddle_context_completion(context)) as i32 }
}

#[test]
fn pushes_runs_and_completions_allocate_nothing() {
    const ROUND: usize = 10_000;
    let mut engine = unsafe { zeroed() };
    let options = raddle_options { size: size_of::<raddle_options>(), workers: 1, ..unsafe { zeroed() } };
    assert_eq!(unsafe { raddle_engine_new(&raw const options, &raw mut engine) }, raddle_status::Ok);
    let mut tokens = [unsafe { zeroed() }; 16];
    for token in &mut tokens {
        assert_eq!(unsafe { raddle_token_new(engine, zeroed(), token) }, raddle_status::Ok);
    }
    let sync = Some(nothing as unsafe extern "C" fn(*mut c_void, *mut raddle_context) -> i32);
    for (what, function, flags, write_count) in [
        ("a push without tokens", sync, 0, 0),
        ("a push with one token", sync, 0, 1),
        ("a push with sixteen tokens", sync, 0, 16),
        ("a push with a completion", Some(complete as _), raddle_flags::Async as u32, 2),
    ] {
        let writes = tokens.as_ptr();
        let op =
            raddle_op { size: size_of::<raddle_op>(), function, flags, writes, write_count, ..unsafe { zeroed() } };
        let round = || {
            let before = ALLOCATIONS.load(Relaxed);
            for i in 0..ROUND {
                assert_eq!(unsafe { raddle_push(engine, &raw const op) }, raddle_status::Ok);
                if i % 500 == 0 {
                    assert_eq!(unsafe { raddle_wait_all(engine, -1, null_mut()) }, raddle_status::Ok);
                }
            }
            ALLOCATIONS.load(Relaxed) - before
        };
        // The first rounds fill the pools. Waits allocate.
        let least = (0..20).map(|_| round()).min().expect("there are rounds");
        assert!(least < ROUND / 50, "{what}: {least} allocations for {ROUND} operations");
    }
    assert_eq!(unsafe { raddle_engine_free(&raw mut engine) }, raddle_status::Ok);
}
