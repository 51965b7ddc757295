//! In steady state an operation allocates nothing: its record, its accesses and its function come from the pool.
//!
//! The epoch keeps what is retired in bags of its own, one for thousands of operations, which is all that is allowed here.
//! This is a binary of its own because it counts every allocation of the process.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use raddle::{Engine, EngineKind, Var};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const OPERATIONS: usize = 200_000;
/// Operations between two waits, which bound how many records are in use at once.
const BURST: usize = 500;

/// Runs `push` for `OPERATIONS` operations after as many to warm up; at most one allocation in a thousand of them.
fn assert_allocates_nothing(what: &str, engine: &Engine, push: impl Fn(usize)) {
    let run = || {
        for i in 0..OPERATIONS {
            push(i);
            if i % BURST == 0 {
                engine.wait_for_all().expect("nothing fails");
            }
        }
        engine.wait_for_all().expect("nothing fails");
    };
    run();
    // The least of three: the pool grows now and then until it has seen how far the workers can lag behind.
    let counted = (0..3).map(|_| {
        let before = ALLOCATIONS.load(Relaxed);
        run();
        ALLOCATIONS.load(Relaxed) - before
    });
    let allocations = counted.min().expect("there were three");
    // A wait for all notes what it waits for in a `Vec`.
    let by_waits = OPERATIONS / BURST + 1;
    println!("{what}: {allocations} allocations in {OPERATIONS} operations and {by_waits} waits");
    assert!(allocations <= OPERATIONS / 1000 + 2 * by_waits, "{what}: {allocations} allocations");
}

/// One test, since all of the process is counted.
#[test]
fn operations_in_steady_state_allocate_nothing() {
    for kind in [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice] {
        let engine = Engine::builder().kind(kind).workers(2).pin(false).build().expect("the engine is built");
        let tokens: Vec<_> = (0..16).map(|_| engine.new_var()).collect();
        assert_allocates_nothing(&format!("{kind}: tokens"), &engine, |i| {
            let (a, b, c) = (&tokens[i % 16], &tokens[(i + 5) % 16], &tokens[(i + 9) % 16]);
            engine.push_sync(move |_| _ = std::hint::black_box([i; 4]), [a, b], [c]).expect("the engine is open");
        });
        let vars: Vec<Var<[u64; 4]>> = (0..16).map(|_| engine.var([0; 4])).collect();
        assert_allocates_nothing(&format!("{kind}: typed variables"), &engine, |i| {
            let (a, b) = (vars[i % 16].read(), vars[(i + 7) % 16].write());
            engine.op("add").push((a, b), |(a, b)| b[0] = b[0].wrapping_add(a[1])).expect("the engine is open");
        });
        let counter = engine.var(0u64);
        let operator = engine.op("count").operator(counter.write(), |counter| *counter += 1).expect("it is open");
        assert_allocates_nothing(&format!("{kind}: an operator"), &engine, |_| {
            operator.push().expect("the engine is open");
        });
    }
}
