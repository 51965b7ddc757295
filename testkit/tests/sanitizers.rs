//! What `cargo xtask ci sanitizers` runs: the fuzz targets on their corpora, the soak test, what both leave out
//! (`besides`), a planted bug for each sanitizer in an engine's operations, and counterparts without the bugs.
//!
//! Each planted bug runs in a separate process. The stage fails unless the matching sanitizer reports each bug, and
//! reports nothing in the counterpart. These tests are ignored by default: without a sanitizer, those with a bug leak
//! or have undefined behaviour, yet pass.
//!
//! One program for all saves time: instrumented code takes minutes to compile. In an ordinary build, the corpora and
//! the soak test are among raddle's own tests.

#[cfg(raddle_sanitized)]
#[path = "../../tests/contract/corpus.rs"]
mod corpus;
#[cfg(raddle_sanitized)]
#[path = "../../tests/soak.rs"]
mod soak;

#[cfg(raddle_sanitized)]
#[path = "sanitizers/besides.rs"]
mod besides;

use std::{cell::UnsafeCell, hint::black_box, mem::MaybeUninit, ptr::NonNull, sync::Arc};

use raddle::{Engine, EngineKind};

fn engine() -> Engine {
    Engine::builder().kind(EngineKind::Pooled).workers(2).pin(false).build().expect("the engine is built")
}

/// A value that operations access without declaring it, which is unsound unless a variable that they declare orders
/// these accesses.
struct Hole(UnsafeCell<u64>);

// SAFETY: unsound, which is the planted bug.
unsafe impl Sync for Hole {}

impl Hole {
    fn add(&self, more: u64) {
        // SAFETY: the value is alive. In `data_race`, the accesses of the two threads are not ordered, which is the
        // planted bug.
        unsafe { *self.0.get() += black_box(more) };
    }
}

/// Two operations that share no variable write the same value. Each waits, through relaxed accesses, until both have
/// started, and only then writes.
#[test]
#[ignore = "a data race, for ThreadSanitizer"]
fn data_race() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    let engine = engine();
    let hole = Arc::new((Hole(UnsafeCell::new(0)), AtomicUsize::new(0)));
    for _ in 0..2 {
        let hole = Arc::clone(&hole);
        engine
            .op("races")
            .push((), move |()| {
                // Relaxed: meeting here must not order the writes.
                hole.1.fetch_add(1, Relaxed);
                // Relaxed: meeting here must not order the writes.
                while hole.1.load(Relaxed) < 2 {
                    std::hint::spin_loop();
                }
                hole.0.add(1);
            })
            .expect("the engine is open");
    }
    engine.wait_for_all().expect("nothing fails");
}

/// Two operations write the same value as in `data_race`, but share a variable: the engine orders them, and there is no
/// report.
#[test]
#[ignore = "the counterpart of `data_race`, in which a sanitizer must find nothing"]
fn no_data_race() {
    let engine = engine();
    let hole = Arc::new(Hole(UnsafeCell::new(0)));
    let token = engine.token();
    for _ in 0..2 {
        let hole = Arc::clone(&hole);
        engine.op("does not race").writes([&token]).push((), move |()| hole.add(1)).expect("the engine is open");
    }
    engine.wait_for_all().expect("nothing fails");
}

/// Pushes operations that pass their captured values to `end`, then enough others that the first operations' records
/// are freed. Until then, these records still hold the values' addresses. The waits in between let the epoch advance,
/// even if a thread was preempted in the middle of a push or of a completion.
fn capture(end: fn(Vec<u64>)) {
    let engine = engine();
    for _ in 0..100 {
        let captured = black_box(vec![7_u64; 1000]);
        engine.op("captures").push((), move |()| end(captured)).expect("the engine is open");
    }
    for _ in 0..100 {
        engine.wait_for_all().expect("nothing fails");
        for _ in 0..200 {
            engine.op("follows").push((), |()| {}).expect("the engine is open");
        }
    }
    engine.wait_for_all().expect("nothing fails");
}

/// Captured values are neither consumed nor dropped.
#[test]
#[ignore = "a leak, for LeakSanitizer"]
fn leak() {
    capture(std::mem::forget);
}

/// The captured values are dropped.
#[test]
#[ignore = "the counterpart of `leak`, in which a sanitizer must find nothing"]
fn no_leak() {
    capture(drop);
}

/// An operation uses a value freed by an earlier one.
#[test]
#[ignore = "a use after free, for AddressSanitizer"]
fn use_after_free() {
    struct Address(NonNull<u64>);
    // SAFETY: the operations are ordered. The second one uses the value that the first one has freed, which is the
    // planted bug.
    unsafe impl Send for Address {}

    let engine = engine();
    let value = engine.var(Address(NonNull::from(Box::leak(Box::new(7_u64)))));
    engine
        .op("frees")
        .push(value.write(), |value| {
            // SAFETY: the pointer came from a box.
            drop(unsafe { Box::from_raw(value.0.as_ptr()) });
        })
        .expect("the engine is open");
    // SAFETY: unsound: the value is freed, which is the planted bug.
    let read = engine.op("uses").submit(value.write(), |value| unsafe { value.0.read_volatile() });
    let read = read.expect("the engine is open").wait().expect("nothing fails");
    assert!(black_box(read) < u64::MAX);
}

/// An operation branches on a value that was never written.
#[test]
#[ignore = "an uninitialised read, for MemorySanitizer"]
fn uninitialised_read() {
    let engine = engine();
    let value = engine.var(MaybeUninit::<u64>::uninit());
    // SAFETY: unsound: the value is not initialised, which is the planted bug.
    let read = engine.op("reads").submit(value.read(), |value| unsafe { black_box(value).assume_init() } > 7);
    let read = read.expect("the engine is open").wait().expect("nothing fails");
    assert!(black_box(read) || !read);
}

/// An operation reads a value written by an earlier operation: there is no report.
#[test]
#[ignore = "the counterpart of `uninitialised_read`, in which a sanitizer must find nothing"]
fn no_uninitialised_read() {
    let engine = engine();
    let value = engine.var(MaybeUninit::<u64>::uninit());
    engine.op("writes").push(value.overwrite(), |value| _ = value.write(8)).expect("the engine is open");
    // SAFETY: the previous operation has initialised the value.
    let read = engine.op("reads").submit(value.read(), |value| unsafe { black_box(value).assume_init() } > 7);
    assert!(read.expect("the engine is open").wait().expect("nothing fails"));
}
