//! A bug for each thing that a sanitizer is to find, in operations on an engine. `.ci/run sanitizers` runs each of them
//! in a process of its own, under the sanitizer for it, and fails unless that reports the bug by its name.
//!
//! They are ignored because they are undefined behaviour, or leak, and succeed without the sanitizer.

use std::{cell::UnsafeCell, hint::black_box, mem::MaybeUninit, ptr::NonNull, sync::Arc};

use raddle::{Engine, EngineKind};

fn engine() -> Engine {
    Engine::builder().kind(EngineKind::Pooled).workers(2).pin(false).build().expect("the engine is built")
}

/// A hole in the rules: a value that operations reach without naming it.
struct Hole(UnsafeCell<u64>);

// SAFETY: it is not, which is the bug that is planted.
unsafe impl Sync for Hole {}

impl Hole {
    fn add(&self, more: u64) {
        // SAFETY: the value lives, but nothing orders this with the other thread's.
        unsafe { *self.0.get() += black_box(more) };
    }
}

/// Two operations that name no variable in common write one value. They meet in the middle through accesses that order
/// nothing, so that both have started before either writes.
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
                // Relaxed: a meeting without an edge.
                hole.1.fetch_add(1, Relaxed);
                // Relaxed: as above.
                while hole.1.load(Relaxed) < 2 {
                    std::hint::spin_loop();
                }
                hole.0.add(1);
            })
            .expect("the engine is open");
    }
    engine.wait_for_all().expect("nothing fails");
}

/// The same two operations with the variable that they should have named: the engine orders them, and nothing is found.
#[test]
#[ignore = "the counterpart of `data_race`, in which nothing is to be found"]
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

/// Operations that end their captured values with `end`, and then others until the first ones' records are given back: as
/// long as those wait for the epoch, they still hold the addresses. The waits in between let the epoch move on, whoever
/// was stopped in the middle of a push or of a completion.
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

/// What operations have captured is neither used up nor dropped.
#[test]
#[ignore = "a leak, for LeakSanitizer"]
fn leak() {
    capture(std::mem::forget);
}

/// The same values, dropped.
#[test]
#[ignore = "the counterpart of `leak`, in which nothing is to be found"]
fn no_leak() {
    capture(drop);
}

/// An operation uses a value that an earlier one has freed.
#[test]
#[ignore = "a use after free, for AddressSanitizer"]
fn use_after_free() {
    struct Address(NonNull<u64>);
    // SAFETY: the operations are ordered; that the value is gone in the second is the bug that is planted.
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
    // SAFETY: it is freed, which is the bug that is planted.
    let read = engine.op("uses").submit(value.write(), |value| unsafe { value.0.read_volatile() });
    let read = read.expect("the engine is open").wait().expect("nothing fails");
    assert!(black_box(read) < u64::MAX);
}

/// An operation decides by a value that nobody has written.
#[test]
#[ignore = "an uninitialised read, for MemorySanitizer"]
fn uninitialised_read() {
    let engine = engine();
    let value = engine.var(MaybeUninit::<u64>::uninit());
    // SAFETY: it is not initialised, which is the bug that is planted.
    let read = engine.op("reads").submit(value.read(), |value| unsafe { black_box(value).assume_init() } > 7);
    let read = read.expect("the engine is open").wait().expect("nothing fails");
    assert!(black_box(read) || !read);
}

/// The same read of a value that an earlier operation has written: nothing is found.
#[test]
#[ignore = "the counterpart of `uninitialised_read`, in which nothing is to be found"]
fn no_uninitialised_read() {
    let engine = engine();
    let value = engine.var(MaybeUninit::<u64>::uninit());
    engine.op("writes").push(value.overwrite(), |value| _ = value.write(8)).expect("the engine is open");
    // SAFETY: the operation before has written it.
    let read = engine.op("reads").submit(value.read(), |value| unsafe { black_box(value).assume_init() } > 7);
    assert!(read.expect("the engine is open").wait().expect("nothing fails"));
}
