//! The records of operations: they are reused, what is kept is bounded, and threads that end leave none behind.
//!
//! This is a binary of its own because it counts, by their sizes, the records of the whole process.

use raddle_testkit::shapes;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use raddle::{Engine, EngineKind, Token};
use shapes::*;

struct Counting;

/// How many there have been, and how many there are.
struct Count(AtomicUsize, AtomicUsize);

/// Records, and what operations of five variables have beside them.
const RECORD: Layout = layout(320, 64);
const FIVE_ACCESSES: Layout = layout(5 * 32, 32);

static RECORDS: Count = Count(AtomicUsize::new(0), AtomicUsize::new(0));
static ACCESSES: Count = Count(AtomicUsize::new(0), AtomicUsize::new(0));

const fn layout(size: usize, align: usize) -> Layout {
    match Layout::from_size_align(size, align) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    }
}

impl Count {
    fn of(layout: Layout) -> Option<&'static Self> {
        match () {
            () if layout == RECORD => Some(&RECORDS),
            () if layout == FIVE_ACCESSES => Some(&ACCESSES),
            () => None,
        }
    }

    fn allocated(&self) -> usize {
        self.0.load(Relaxed)
    }

    fn alive(&self) -> usize {
        self.1.load(Relaxed)
    }
}

// SAFETY: everything is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(count) = Count::of(layout) {
            count.0.fetch_add(1, Relaxed);
            count.1.fetch_add(1, Relaxed);
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if let Some(count) = Count::of(layout) {
            count.1.fetch_sub(1, Relaxed);
        }
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Batches of the pool have so many records.
const BATCH: usize = 64;

/// What the epoch holds back goes on after so many functions, or when its thread ends.
const BAG: usize = 64;

/// Batches of records go on together, so many.
const BATCHES: usize = 20;

/// Records that are on their way through the epoch, or in a thread's hands.
const ON_THE_WAY: usize = 4 * BATCHES * BATCH;

fn push(engine: &Engine, writes: &[&Token]) {
    engine.op("").writes(writes.iter().copied()).push_sync(|_| {}).expect("the engine is open");
}

/// Pushes until `count` has at most `most` alive, since each push may take the epoch further.
#[track_caller]
fn comes_down_to(most: usize, count: &Count, engine: &Engine, what: &str) {
    let (start, token) = (Instant::now(), engine.token());
    while count.alive() > most {
        push(engine, &[&token]);
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: {} are left, not {most}", count.alive());
    }
}

/// One test, since all of the process is counted.
#[test]
#[cfg_attr(miri, ignore = "needs many operations")]
fn records_are_reused_and_freed() {
    // It runs everything on the pushing thread, so that there is one cache of records.
    let engine = Engine::builder().kind(EngineKind::Naive).build().expect("the engine is built");
    let tokens: Vec<_> = (0..5).map(|_| engine.token()).collect();
    let [one, four, five] = [1, 4, 5].map(|count| tokens[..count].iter().collect::<Vec<_>>());

    for _ in 0..40_000 {
        push(&engine, &one);
        push(&engine, &four);
    }
    let before = RECORDS.allocated();
    assert!(before < ON_THE_WAY, "{before} records for 80,000 operations, one at a time");
    for _ in 0..20_000 {
        push(&engine, &one);
        push(&engine, &[]);
    }
    let more = RECORDS.allocated() - before;
    assert!(more < BATCHES * BATCH, "{more} more records for 40,000 more operations");
    assert_eq!(ACCESSES.allocated(), 0, "four accesses are in the record");

    // What is beside a record goes with it.
    for _ in 0..100 * BAG {
        push(&engine, &five);
    }
    assert_eq!(ACCESSES.allocated(), 100 * BAG);
    comes_down_to(4 * BAG, &ACCESSES, &engine, "accesses of operations that are over");

    // A thread that ends leaves nothing of the batch that it has taken: neither whole groups of eight nor parts of one.
    let before = RECORDS.alive();
    // The deletion of its variable is one operation more.
    for pushes in [7, 56, 56, 56].into_iter().cycle().take(3000) {
        // So that there is a batch to take.
        (0..4 * BATCH).for_each(|_| push(&engine, &one));
        let (engine, token) = (engine.clone(), engine.token());
        let pusher = move || (0..pushes).for_each(|_| push(&engine, &[&token]));
        thread::spawn(pusher).join().expect("it does not panic");
    }
    comes_down_to(before + ON_THE_WAY / 2, &RECORDS, &engine, "records of threads that have ended");

    // What is kept for reuse is bounded.
    const KEPT: usize = 1024 * BATCH;
    let (sender, receiver) = mpsc::channel();
    engine.push_async(move |_, done| sender.send(done).expect("the test waits"), [], [&tokens[0]]).expect("it is open");
    for _ in 0..KEPT + 1000 * BATCH {
        push(&engine, &one);
    }
    assert!(RECORDS.alive() > KEPT + 1000 * BATCH);
    receiver.recv().expect("the operation has begun").complete();
    engine.wait_for_all().expect("nothing fails");
    comes_down_to(KEPT + ON_THE_WAY, &RECORDS, &engine, "records of operations that were pending at once");
}
