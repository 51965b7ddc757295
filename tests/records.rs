//! Operations' records are reused, a bounded number is kept for reuse, threads at rest keep few, and threads that end
//! keep none. Large variables and workers' handles to their threads are freed.
//!
//! This is a separate binary because the test counts the records and the handles of the whole process; it recognises
//! the handles by their layout.

use raddle_testkit::{Gate, alone, child_succeeds, eventually, hold, occupy, shapes};

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use raddle::{Engine, EngineKind, Group, Token, Var};
use shapes::*;

struct Counting;

/// The numbers of allocations so far and of those still alive.
struct Count(AtomicUsize, AtomicUsize);

/// The layout of a block of 16 accesses that are not in a record, and of their count.
const BLOCK: Layout = layout(17 * 32, 32);

/// The layout of a worker's handle to its thread, which other allocations may have as well.
const HANDLE: Layout = Layout::new::<thread::Thread>();

/// The size of a large variable's value, and the minimum size of large objects.
const LARGE: usize = 1 << 17;

static LARGE_OBJECTS: Count = Count(AtomicUsize::new(0), AtomicUsize::new(0));
static BLOCKS: Count = Count(AtomicUsize::new(0), AtomicUsize::new(0));
static HANDLES: Count = Count(AtomicUsize::new(0), AtomicUsize::new(0));

const fn layout(size: usize, align: usize) -> Layout {
    match Layout::from_size_align(size, align) {
        Ok(layout) => layout,
        Err(_) => panic!("the alignment is not a power of two"),
    }
}

impl Count {
    fn of(layout: Layout) -> Option<&'static Self> {
        match () {
            () if layout == BLOCK => Some(&BLOCKS),
            () if layout == HANDLE => Some(&HANDLES),
            () if layout.size() >= LARGE => Some(&LARGE_OBJECTS),
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
        // SAFETY: the caller fulfils the contract, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if let Some(count) = Count::of(layout) {
            count.1.fetch_sub(1, Relaxed);
        }
        // SAFETY: the caller fulfils the contract, which is that of the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of records in a batch of the pool, including the list's own record.
const BATCH: usize = 40;

/// The number of deferred functions that a thread collects before passing them on to all threads. A thread that ends
/// passes them on too.
const BAG: usize = 64;

/// The number of batches of records passed on together.
const BATCHES: usize = 32;

/// The number of threads at rest.
const RESTING: usize = 100;

/// The limit on records awaiting release by the epoch or cached by a thread.
const IN_TRANSIT: usize = 4 * BATCHES * BATCH;

/// Pushes an operation with a priority, so that its record has at least the normal size.
fn push(engine: &Engine, writes: &[&Token]) {
    let op = engine.op("").priority(1).writes(writes.iter().copied());
    op.push_sync(|_| {}).expect("the engine should be open");
}

/// Returns the number of records of normal size for which the process has memory.
fn records(engine: &Engine) -> usize {
    engine.dump().record_bytes() / 320
}

/// Keeps pushing until `count` returns at most `most`. Each push may advance the epoch.
#[track_caller]
fn assert_comes_down_to(most: usize, count: impl Fn() -> usize, engine: &Engine, what: &str) {
    let (start, token) = (Instant::now(), engine.token());
    while count() > most {
        (0..100).for_each(|_| push(engine, &[&token]));
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: {} are still allocated, more than {most}", count());
    }
}

/// Pushes operations when it is dropped.
struct PushesWhenDropped(Engine, Token);

impl Drop for PushesWhenDropped {
    fn drop(&mut self) {
        (0..20).for_each(|_| push(&self.0, &[&self.1]));
    }
}

// In whichever order destructors run: if the first of these is used before the engine and the other after it, one of
// them is dropped after what the engine keeps for the thread.
std::thread_local! {
    static FIRST: RefCell<Option<PushesWhenDropped>> = const { RefCell::new(None) };
    static LAST: RefCell<Option<PushesWhenDropped>> = const { RefCell::new(None) };
}

/// Starts and joins a thread that pushes an operation on `engine`, and whose thread-locals push operations on `late`
/// that mutate `held` when they are dropped.
fn push_at_the_end_of_a_thread(engine: &Engine, (late, held): (&Engine, &Token)) {
    let (engine, token, late, held) = (engine.clone(), engine.token(), late.clone(), held.clone());
    let pusher = move || {
        let pushes_late = || Some(PushesWhenDropped(late.clone(), held.clone()));
        FIRST.set(pushes_late());
        push(&engine, &[&token]);
        LAST.set(pushes_late());
    };
    thread::spawn(pusher).join().expect("the thread should not panic");
}

/// Pushes `reads` operations of a group, which read `long`.
type Push = fn(&Engine, &Group, long: &Var<u64>, reads: usize);

/// The ways in which readers may come and complete.
const READERS: [(&str, Push); 4] = [
    ("in push order", |_, group, long, reads| {
        (0..reads).for_each(|_| group.op("").push(long.read(), |_| ()).expect("the engine should be open"));
    }),
    ("with a second variable", |engine, group, long, reads| {
        let also = engine.var(0);
        let push = |_| group.op("").push((also.read(), long.read()), |(_, _)| ()).expect("the engine should be open");
        (0..reads).for_each(push);
    }),
    ("from a worker, the last first", |_, group, long, reads| {
        let (inner, long) = (group.clone(), long.clone());
        let pushes = move |()| (0..reads).for_each(|_| inner.op("").push(long.read(), |_| ()).expect("an open engine"));
        group.op("").push((), pushes).expect("the engine should be open");
    }),
    ("in random order", |engine, group, long, reads| {
        let gate = occupy(engine, 1);
        for read in 0..reads {
            let priority = (read * 7919 % 13) as i32 - 6;
            group.op("").priority(priority).push(long.read(), |_| ()).expect("the engine should be open");
        }
        gate.open();
    }),
];

/// Behind a reader that has not ended, other readers complete. Their records are reused.
#[test]
#[cfg_attr(miri, ignore = "needs many operations")]
fn a_long_reader_keeps_no_records_of_later_ones() {
    const READS: usize = 2_000;
    let _alone = alone();
    for (way, push) in READERS {
        let engine = Engine::builder().workers(2).pin(false).build().expect("an engine");
        let (long, gate, ran) = (engine.var(1), Gate::new(), Gate::new());
        let (passes, begins) = (gate.clone(), ran.clone());
        let reads = move |_: &u64| {
            begins.open();
            passes.pass();
        };
        engine.op("long").push(long.read(), reads).expect("the engine should be open");
        ran.pass();
        let (before, group) = (records(&engine), engine.group());
        for _ in 0..20 {
            push(&engine, &group, &long, READS);
            group.wait().expect("no operation should fail");
        }
        let more = records(&engine).saturating_sub(before);
        println!("{way}: {more} more records");
        assert!(more < READS + 2 * IN_TRANSIT, "{way}: {more} records were allocated for {READS} readers at a time");
        engine.op("").push(long.write(), |long| *long += 1).expect("the engine should be open");
        gate.open();
        assert_eq!(engine.get(&long).expect("no operation should fail"), 2);
    }
}

/// The same for operations that commute, behind one that still waits for another variable.
#[test]
#[cfg_attr(miri, ignore = "needs many operations")]
fn an_operation_that_commutes_keeps_no_records_of_later_ones() {
    const OPERATIONS: usize = 2_000;
    let _alone = alone();
    let engine = Engine::builder().workers(2).pin(false).build().expect("an engine");
    let (sum, other) = (engine.var(0), engine.token());
    let gate = hold(&engine, &other);
    engine.op("first").writes([&other]).push(sum.commute(), |sum| *sum += 1).expect("the engine should be open");
    let (before, group) = (records(&engine), engine.group());
    for _ in 0..20 {
        for _ in 0..OPERATIONS {
            group.op("").push(sum.commute(), |sum| *sum += 1).expect("the engine should be open");
        }
        group.wait().expect("no operation should fail");
    }
    let more = records(&engine).saturating_sub(before);
    assert!(more < OPERATIONS + 2 * IN_TRANSIT, "{more} records were allocated for {OPERATIONS} operations at a time");
    gate.open();
    assert_eq!(engine.get(&sum).expect("no operation should fail"), 20 * OPERATIONS + 1);
}

/// The memory of pending operations is that of their accesses and functions.
#[test]
#[cfg_attr(miri, ignore = "needs many operations")]
fn pending_operations_have_records_of_the_size_that_they_need() {
    const OPERATIONS: usize = 50_000;
    let _alone = alone();
    for (variables, most) in [(1, 128), (2, 192), (3, 192), (4, 320), (5, 704)] {
        // A new engine, since a slab may have spare records.
        let engine = Engine::builder().workers(1).pin(false).build().expect("an engine");
        let vars: Vec<_> = (0..variables).map(|_| engine.token()).collect();
        let gate = hold(&engine, &vars[0]);
        let before = engine.dump().record_bytes();
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..OPERATIONS {
            let ran = Arc::clone(&ran);
            engine.op("").writes(&vars).push((), move |()| _ = ran.fetch_add(1, Relaxed)).expect("an open engine");
        }
        // Of each slab, the head and less than a record are unused, and a list of records takes 8 bytes for each.
        let bytes = (engine.dump().record_bytes() - before) as f64 / OPERATIONS as f64;
        println!("{variables} variables: {bytes:.0} bytes");
        assert!(bytes < 1.02 * f64::from(most) + 10.0, "an operation on {variables} variables takes {bytes} bytes");
        gate.open();
        engine.wait_for_all().expect("no operation should fail");
        assert_eq!(ran.load(Relaxed), OPERATIONS);
    }
}

/// A built engine has memory for its first operations.
#[test]
#[cfg_attr(raddle_unpooled, ignore = "records are not pooled")]
fn the_first_operations_take_no_new_memory() {
    child_succeeds("in_a_child_first_operations_take_no_new_memory");
}

#[test]
#[ignore = "run in a child process by the test above"]
fn in_a_child_first_operations_take_no_new_memory() {
    let engine = Engine::builder().workers(1).pin(false).build().expect("an engine");
    let token = engine.token();
    let gate = hold(&engine, &token);
    let before = engine.dump().record_bytes();
    (0..900).for_each(|_| engine.op("").writes([&token]).push((), |()| {}).expect("an open engine"));
    assert_eq!(engine.dump().record_bytes(), before);
    gate.open();
    engine.wait_for_all().expect("no operation should fail");
}

/// Calls `f` on many threads, one after the other, and then `check` while all of them rest.
fn on_resting_threads(f: impl Fn() + Sync, check: impl FnOnce()) {
    thread::scope(|scope| {
        // Dropped at the end, or if the check fails; the threads then end.
        let mut ends = Vec::new();
        for _ in 0..RESTING {
            let ((rests, has_rested), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
            let f = &f;
            scope.spawn(move || {
                f();
                rests.send(()).expect("the test should wait");
                let _ = ended.recv();
            });
            has_rested.recv().expect("the thread should not panic");
            ends.push(end);
        }
        check();
    });
}

/// What other threads cannot reuse of a resting thread's records is on two lists of each size.
#[test]
#[cfg_attr(miri, ignore = "needs many operations")]
fn a_resting_thread_keeps_few_records() {
    const USES: usize = 500;
    let _alone = alone();
    let engine = Engine::builder().kind(EngineKind::Naive).build().expect("an engine");
    // Operations on this many variables have records of four sizes.
    let uses = || {
        for variables in [1, 3, 4, 5] {
            let own: Vec<_> = (0..variables).map(|_| engine.token()).collect();
            (0..USES).for_each(|_| push(&engine, &own.iter().collect::<Vec<_>>()));
        }
    };
    // A slab may have spare records.
    (0..2).for_each(|_| uses());
    let before = engine.dump().record_bytes();
    on_resting_threads(uses, || {
        let each = (engine.dump().record_bytes() - before) as f64 / RESTING as f64;
        let two_lists = 2 * [128, 192, 320, 704].map(|size| 320 + (BATCH - 1) * size).iter().sum::<usize>();
        println!("{each:.0} bytes a thread, at most {two_lists}");
        assert!(each < two_lists as f64, "a resting thread keeps {each} bytes, more than {two_lists}");
    });
}

/// What a thread has retired can be freed by others if it is large.
#[test]
fn a_resting_thread_keeps_no_large_variable() {
    let _alone = alone();
    let engine = Engine::builder().kind(EngineKind::Naive).build().expect("an engine");
    let before = LARGE_OBJECTS.alive();
    let make_and_drop = || (0..10).for_each(|_| drop(engine.var([0u8; LARGE])));
    on_resting_threads(make_and_drop, || {
        assert_comes_down_to(before, || LARGE_OBJECTS.alive(), &engine, "large variables");
    });
    assert!(LARGE_OBJECTS.allocated() >= 10 * RESTING);
}

/// An idle variable keeps its last access, but not the other accesses of that operation.
#[test]
fn a_kept_result_keeps_few_accesses_of_its_operation() {
    const INPUTS: usize = 1000;
    const RESULTS: usize = 100;
    let _alone = alone();
    let engine = Engine::builder().kind(EngineKind::Naive).build().expect("an engine");
    let inputs: Vec<_> = (0..INPUTS).map(|_| engine.token()).collect();
    let reduce = |result: &Token| {
        let reads = engine.op("reduce").reads(&inputs);
        reads.writes([result]).push((), |()| {}).expect("the engine should be open");
    };
    let results: Vec<_> = (0..RESULTS).map(|_| engine.token()).collect();
    let (before, blocks) = (BLOCKS.alive(), BLOCKS.allocated());
    results.iter().for_each(reduce);
    assert!(BLOCKS.allocated() - blocks >= RESULTS * INPUTS / 16);
    // The inputs keep the accesses of the last operation.
    let most = before + INPUTS / 16 + 1 + RESULTS + 4 * BAG;
    assert_comes_down_to(most, || BLOCKS.alive(), &engine, "blocks of complete operations");
    // The results can be used again.
    results.iter().for_each(|result| push(&engine, &[result]));
    engine.wait_for_all().expect("no operation should fail");
}

/// All cases share one test, since the counts cover the whole process.
#[test]
#[cfg_attr(miri, ignore = "needs many operations")]
fn records_are_reused_and_freed() {
    let _alone = alone();
    // The naive engine runs every operation on the pushing thread, so only one cache of records exists.
    let engine = Engine::builder().kind(EngineKind::Naive).build().expect("an engine");
    let tokens: Vec<_> = (0..17).map(|_| engine.token()).collect();
    let [one, four, five, most, too_many] = [1, 4, 5, 16, 17].map(|count| tokens[..count].iter().collect::<Vec<_>>());

    let kept = records(&engine);
    for _ in 0..40_000 {
        push(&engine, &one);
        push(&engine, &four);
    }
    let before = records(&engine);
    // One thread needs little more than the records that it passes on together.
    const STEADY: usize = 2 * BATCHES * BATCH;
    let more = before.saturating_sub(kept);
    assert!(more < STEADY, "{more} records were allocated for 80,000 operations, run one at a time");
    for _ in 0..20_000 {
        push(&engine, &one);
        push(&engine, &[]);
    }
    let more = records(&engine).saturating_sub(before);
    assert!(more < BATCHES * BATCH, "{more} more records were allocated for 40,000 more operations");

    // Operations on up to 16 variables have records of another size.
    let blocks = BLOCKS.allocated();
    for _ in 0..20_000 {
        push(&engine, &five);
        push(&engine, &most);
    }
    let more = records(&engine).saturating_sub(before);
    assert!(more < 4 * STEADY, "{more} more records were allocated for 40,000 wide operations");
    assert_eq!(BLOCKS.allocated(), blocks, "an operation on 16 variables has separate accesses");

    // The separate accesses are freed.
    let mut peak = 0;
    for _ in 0..100 * BAG {
        push(&engine, &too_many);
        peak = peak.max(BLOCKS.alive());
    }
    assert_eq!(BLOCKS.allocated() - blocks, 2 * 100 * BAG);
    // Other threads may read them until the epoch has passed.
    assert!(peak >= BAG / 2, "never more than {peak} blocks of complete operations were not freed");
    assert_comes_down_to(4 * BAG, || BLOCKS.alive(), &engine, "blocks of complete operations");

    // A thread that ends returns the rest of its lists.
    let before = records(&engine);
    for pushes in [8, 36, 37, 38, 39].into_iter().cycle().take(3000) {
        // These pushes make a batch available to the thread.
        (0..4 * BATCH).for_each(|_| push(&engine, &one));
        let (engine, token) = (engine.clone(), engine.token());
        let pusher = move || (0..pushes).for_each(|_| push(&engine, &[&token]));
        thread::spawn(pusher).join().expect("the thread should not panic");
    }
    assert_comes_down_to(before + IN_TRANSIT / 2, || records(&engine), &engine, "records of threads that have ended");

    // Operations may still be pushed on a thread that has returned its lists.
    let before = records(&engine);
    for _ in 0..1000 {
        push_at_the_end_of_a_thread(&engine, (&engine, &engine.token()));
    }
    assert_comes_down_to(
        before + IN_TRANSIT / 2,
        || records(&engine),
        &engine,
        "records of destructors of thread-locals",
    );

    // The record of such an operation is its own until the operation completes, even if it was on a list.
    let threaded = Engine::builder().kind(EngineKind::PerDevice).workers(1).build().expect("an engine");
    let (held, (sender, receiver)) = (threaded.token(), mpsc::channel::<()>());
    threaded.op("hold").writes([&held]).push_sync(move |_| _ = receiver.recv()).expect("the engine should be open");
    for _ in 0..10 {
        (0..4 * BATCH).for_each(|_| push(&engine, &one));
        push_at_the_end_of_a_thread(&engine, (&threaded, &held));
    }
    (0..8 * BATCHES * BATCH).for_each(|_| push(&engine, &one));
    let dump = threaded.dump();
    assert_eq!((dump.ops().len(), dump.unlisted()), (1 + 10 * 2 * 20, 0), "{dump}");
    drop(sender);
    drop((threaded, held));

    // Waiters leave stale entries in the queues, which the workers pop before they end.
    let before = records(&engine);
    for _ in 0..100 {
        let threaded = Engine::builder().kind(EngineKind::PerDevice).workers(1).build().expect("an engine");
        let inside = threaded.downgrade();
        let outer = threaded.op("").submit((), move |()| {
            let submit = |_| inside.op("").submit((), |()| ()).expect("operations should be allowed to push");
            (0..200)
                .map(submit)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .for_each(|inner| inner.wait().expect("the operation should run"));
        });
        outer.expect("the engine should be open").wait().expect("the operation should run");
    }
    assert_comes_down_to(before + IN_TRANSIT, || records(&engine), &engine, "operations taken by waiters");

    // A worker's handle to its thread is freed with its engine.
    let before = HANDLES.alive();
    for _ in 0..100 {
        let threaded = Engine::builder().kind(EngineKind::PerDevice).workers(4).build().expect("an engine");
        threaded.op("").push((), |()| ()).expect("the engine should be open");
    }
    assert_comes_down_to(
        before + 100,
        || HANDLES.alive(),
        &engine,
        "handles to the threads of engines that have ended",
    );

    // A handle is also freed after its worker has moved to another thread, as it does in a wait with a time limit.
    let before = HANDLES.alive();
    let threaded = Engine::builder().kind(EngineKind::PerDevice).workers(1).build().expect("an engine");
    for _ in 0..1000 {
        let inside = threaded.downgrade();
        let outer = threaded.op("").submit((), move |()| {
            let mut inner = inside.op("").submit((), |()| ()).expect("operations should be allowed to push");
            inner.wait_timeout(Duration::from_secs(20)).expect("the operation should run");
        });
        outer.expect("the engine should be open").wait().expect("the operation should run");
    }
    assert_comes_down_to(before + 500, || HANDLES.alive(), &engine, "handles to the threads that a worker has left");
    drop(threaded);

    // The number of records kept for reuse is bounded, and all others are freed. One record left of each batch would
    // show after a few rounds.
    const KEPT: usize = (1 << 15) / BATCH * BATCH;
    // A slab is not freed while one of its records is kept.
    const LEFT: usize = (KEPT + IN_TRANSIT) * 11 / 8;
    // Other tests may have left records of other sizes.
    let left = records(&engine) + LEFT;
    for round in 0..8 {
        let (sender, receiver) = mpsc::channel();
        engine
            .push_async(
                move |_, done| sender.send(done).expect("the test should receive the completion"),
                [],
                [&tokens[0]],
            )
            .expect("the engine should be open");
        for _ in 0..KEPT + 1000 * BATCH {
            push(&engine, &one);
        }
        assert!(records(&engine) > KEPT + 1000 * BATCH);
        receiver.recv().expect("the operation should have started").complete();
        engine.wait_for_all().expect("no operation should fail");
        assert_comes_down_to(left, || records(&engine), &engine, "records of concurrently pending operations");
        // The records that are kept are reused.
        if round == 0 {
            let before = records(&engine);
            (0..2 * KEPT).for_each(|_| push(&engine, &one));
            let more = records(&engine).saturating_sub(before);
            assert!(more < IN_TRANSIT, "{more} more records were allocated for {} operations after a burst", 2 * KEPT);
        }
    }
    // A worker that has slept for a while gives back what is kept.
    let threaded = Engine::builder().kind(EngineKind::PerDevice).workers(2).build().expect("an engine");
    let tokens: Vec<_> = (0..17).map(|_| threaded.token()).collect();
    for accesses in [17, 9, 1].repeat(10_000) {
        threaded.op("").writes(&tokens[..accesses]).push((), |()| ()).expect("the engine should be open");
    }
    threaded.wait_for_all().expect("no operation should fail");
    let before = records(&engine);
    assert!(before > 8 * IN_TRANSIT, "{before} records are no backlog");
    // A slab stays while one of its records is kept.
    eventually("free records are given back", || records(&engine) < 4 * IN_TRANSIT);
}
