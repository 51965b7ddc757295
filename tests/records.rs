//! The records of operations are reused, the number kept is bounded, and threads that end leave none behind.
//!
//! A separate binary because it counts, by their sizes, the records of the whole process.

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

/// The numbers of allocations so far and of those still alive.
struct Count(AtomicUsize, AtomicUsize);

/// The layouts of records, and of the separate accesses of an operation on five variables.
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

// SAFETY: every call is forwarded to the system's allocator.
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

/// Records in a batch of the pool.
const BATCH: usize = 64;

/// Deferred functions that the epoch collects before it passes them on; a thread that ends passes them on as well.
const BAG: usize = 64;

/// Batches of records that are passed on together.
const BATCHES: usize = 20;

/// The limit on records that the epoch holds back or that a thread has cached.
const ON_THE_WAY: usize = 4 * BATCHES * BATCH;

fn push(engine: &Engine, writes: &[&Token]) {
    engine.op("").writes(writes.iter().copied()).push_sync(|_| {}).expect("the engine is open");
}

/// Pushes until at most `most` of `count` are alive, since each push may advance the epoch.
#[track_caller]
fn comes_down_to(most: usize, count: &Count, engine: &Engine, what: &str) {
    let (start, token) = (Instant::now(), engine.token());
    while count.alive() > most {
        push(engine, &[&token]);
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: {} are alive, more than {most}", count.alive());
    }
}

/// A single test, since the counts are of the whole process.
#[test]
#[cfg_attr(miri, ignore = "needs many operations")]
fn records_are_reused_and_freed() {
    // The naive engine runs everything on the pushing thread, so that there is one cache of records.
    let engine = Engine::builder().kind(EngineKind::Naive).build().expect("the engine is built");
    let tokens: Vec<_> = (0..5).map(|_| engine.token()).collect();
    let [one, four, five] = [1, 4, 5].map(|count| tokens[..count].iter().collect::<Vec<_>>());

    for _ in 0..40_000 {
        push(&engine, &one);
        push(&engine, &four);
    }
    let before = RECORDS.allocated();
    assert!(before < ON_THE_WAY, "{before} records were allocated for 80,000 operations, run one at a time");
    for _ in 0..20_000 {
        push(&engine, &one);
        push(&engine, &[]);
    }
    let more = RECORDS.allocated() - before;
    assert!(more < BATCHES * BATCH, "{more} more records were allocated for 40,000 more operations");
    assert_eq!(ACCESSES.allocated(), 0, "four accesses are in the record");

    // The separate accesses are freed with their record.
    for _ in 0..100 * BAG {
        push(&engine, &five);
    }
    assert_eq!(ACCESSES.allocated(), 100 * BAG);
    comes_down_to(4 * BAG, &ACCESSES, &engine, "accesses of complete operations");

    // A thread that ends returns the rest of its batch: whole groups of eight as well as parts of one.
    let before = RECORDS.alive();
    // The deletion of the thread's variable is one more operation.
    for pushes in [7, 56, 56, 56].into_iter().cycle().take(3000) {
        // These pushes make a batch available to the thread.
        (0..4 * BATCH).for_each(|_| push(&engine, &one));
        let (engine, token) = (engine.clone(), engine.token());
        let pusher = move || (0..pushes).for_each(|_| push(&engine, &[&token]));
        thread::spawn(pusher).join().expect("it does not panic");
    }
    comes_down_to(before + ON_THE_WAY / 2, &RECORDS, &engine, "records of threads that have ended");

    // The number of records kept for reuse is bounded.
    const KEPT: usize = 1024 * BATCH;
    let (sender, receiver) = mpsc::channel();
    engine.push_async(move |_, done| sender.send(done).expect("the test waits"), [], [&tokens[0]]).expect("it is open");
    for _ in 0..KEPT + 1000 * BATCH {
        push(&engine, &one);
    }
    assert!(RECORDS.alive() > KEPT + 1000 * BATCH);
    receiver.recv().expect("the operation has begun").complete();
    engine.wait_for_all().expect("nothing fails");
    comes_down_to(KEPT + ON_THE_WAY, &RECORDS, &engine, "records of operations that were pending at the same time");
}
