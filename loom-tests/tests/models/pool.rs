//! The stacks of batches of free records, and of lists of retired ones: each batch and its contents have one owning
//! thread at a time, which no pinned thread can notice. The models leave out the records inside a batch.
use std::{
    ptr::{NonNull, null_mut},
    sync::{Arc, atomic::AtomicBool},
};

use raddle::internals::{BatchStack, Flavour, Node, pin};
use raddle_loom_tests::checker::{
    cell::UnsafeCell,
    sync::atomic::{
        AtomicPtr,
        Ordering::{Acquire, Relaxed, Release},
    },
    thread,
};
use raddle_loom_tests::{kills, model};

struct Batch {
    next: AtomicPtr<Batch>,
    number: usize,
    /// One more than the number of times that the batch was taken.
    uses: UnsafeCell<usize>,
}

impl Node for Batch {
    unsafe fn next<'n>(batch: NonNull<Self>) -> &'n AtomicPtr<Self> {
        // SAFETY: the caller guarantees that the batch is not freed.
        &unsafe { batch.as_ref() }.next
    }
}

type Pool = Arc<BatchStack<Batch>>;

/// A batch that belongs to the thread holding this value.
struct Taken(NonNull<Batch>);

// SAFETY: only the thread holding this value uses the batch. If the stack broke that rule, loom would report a race.
unsafe impl Send for Taken {}

impl Taken {
    /// Creates a batch and uses it.
    fn new(number: usize) -> Self {
        let batch = Batch { next: AtomicPtr::new(null_mut()), number, uses: UnsafeCell::new(0) };
        let taken = Self(NonNull::from(Box::leak(Box::new(batch))));
        taken.write();
        taken
    }

    fn from(pool: &Pool) -> Option<Self> {
        let taken = Self(pool.pop()?);
        // SAFETY: batches live until `end`.
        let next = unsafe { Batch::next(taken.0) };
        assert!(next.load(Relaxed).is_null(), "the word of a popped node may point to a node that is freed");
        taken.write();
        Some(taken)
    }

    fn write(&self) {
        // SAFETY: batches live until `end`.
        let uses = unsafe { &self.0.as_ref().uses };
        // SAFETY: the batch belongs to this thread; the models verify this.
        uses.with_mut(|uses| unsafe { *uses += 1 });
    }

    fn put_back(self, pool: &Pool) {
        // SAFETY: the batch belongs to this thread, and lives until `end`.
        unsafe { pool.push_after_epoch(self.0) };
    }

    fn leave(self, waiting: &Pool) {
        // SAFETY: the batch belongs to this thread, and lives until `end`. Nothing is popped from this stack.
        unsafe { waiting.push(self.0) };
    }

    /// Uses all batches that wait once the epoch has passed, and puts them into the pool.
    fn retire_all(waiting: &Pool, pool: &Pool) {
        let pool = Arc::clone(pool);
        let reclaim = move |batch| {
            let batch = Self(batch);
            batch.write();
            // SAFETY: the batch belongs to this thread, was never popped, and lives until `end`.
            unsafe { pool.push(batch.0) };
        };
        // SAFETY: all threads of a model run on one OS thread, the closure owns what it uses, and batches live until
        // `end`.
        unsafe { waiting.retire_all(reclaim) };
    }
}

/// Checks, after all threads have been joined, that `kept` and the pool together hold each batch numbered below `count`
/// once. Frees the batches.
fn end(pool: &Pool, kept: impl IntoIterator<Item = Taken>, count: usize) {
    let mut all: Vec<Taken> = kept.into_iter().collect();
    // Collects at most one batch more than expected, in case the stack has become cyclic.
    while let Some(batch) = Taken::from(pool).filter(|_| all.len() <= count) {
        all.push(batch);
    }
    // SAFETY: no batch has been freed.
    let mut numbers: Vec<_> = all.iter().map(|batch| unsafe { batch.0.as_ref() }.number).collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(0..count), "the batches must be 0..{count}, each once, but are {numbers:?}");
    for batch in all {
        // SAFETY: `new` leaked the batch, which is in the list only once.
        drop(unsafe { Box::from_raw(batch.0.as_ptr()) });
    }
}

/// One batch is in the pool. One thread puts a second one into the pool while another takes batches.
#[test]
fn each_batch_is_taken_once_and_with_its_contents() {
    model(3, Flavour::Contract, || {
        let (pool, other) = (Pool::default(), Taken::new(1));
        Taken::new(0).put_back(&pool);
        let its_pool = Arc::clone(&pool);
        let thread = thread::spawn(move || other.put_back(&its_pool));
        let kept: Vec<_> = (0..2).filter_map(|_| Taken::from(&pool)).collect();
        thread.join().unwrap();
        end(&pool, kept, 2);
    });
}

/// A thread may be slow to take the first of two batches. Meanwhile, another thread may take both and put the first
/// back.
#[test]
fn a_slow_pop_does_not_restore_a_batch_that_was_taken() {
    model(3, Flavour::Contract, || {
        let pool = Pool::default();
        (0..2).for_each(|number| Taken::new(number).put_back(&pool));
        let its_pool = Arc::clone(&pool);
        let thread = thread::spawn(move || {
            let [first, second] = [(); 2].map(|()| Taken::from(&its_pool));
            if let Some(first) = first {
                first.put_back(&its_pool);
            }
            second
        });
        let kept = Taken::from(&pool);
        end(&pool, kept.into_iter().chain(thread.join().unwrap()), 2);
    });
}

/// Two batches are left by two threads, and both retire what they find.
#[test]
fn each_batch_that_waits_is_retired_once_and_with_its_contents() {
    model(3, Flavour::Contract, || {
        let (waiting, pool) = (Pool::default(), Pool::default());
        let (its_waiting, its_pool) = (Arc::clone(&waiting), Arc::clone(&pool));
        let thread = thread::spawn(move || {
            Taken::new(1).leave(&its_waiting);
            Taken::retire_all(&its_waiting, &its_pool);
        });
        Taken::new(0).leave(&waiting);
        Taken::retire_all(&waiting, &pool);
        thread.join().unwrap();
        end(&pool, [], 2);
    });
}

/// A pinned thread may find a batch and read it, while another one unlinks the batch and leaves it to whoever retires
/// all. A third thread does so.
#[test]
fn a_batch_that_another_thread_retires_is_not_used_while_a_pinned_thread_reads_it() {
    static READ: AtomicBool = AtomicBool::new(false);
    model(3, Flavour::ContractForReaders, || {
        let (waiting, pool, batch) = (Pool::default(), Pool::default(), Taken::new(0));
        let place = Arc::new(AtomicPtr::new(batch.0.as_ptr()));
        let its_place = Arc::clone(&place);
        let (its_waiting, its_pool) = (Arc::clone(&waiting), Arc::clone(&pool));
        let retirer = thread::spawn(move || Taken::retire_all(&its_waiting, &its_pool));
        let reader = thread::spawn(move || {
            let _guard = pin();
            // Acquire: the contents, which the start of this thread hands over as well.
            let Some(batch) = NonNull::new(its_place.load(Acquire)) else { return };
            READ.store(true, Relaxed);
            // SAFETY: batches live until `end`.
            let uses = unsafe { &batch.as_ref().uses };
            // SAFETY: no thread uses the batch while this one is pinned; the model verifies this.
            let uses = uses.with(|uses| unsafe { *uses });
            assert_eq!(uses, 1, "the batch is used although this thread is pinned");
        });
        place.store(null_mut(), Release);
        batch.leave(&waiting);
        retirer.join().unwrap();
        reader.join().unwrap();
        Taken::retire_all(&waiting, &pool);
        end(&pool, [], 1);
    });
    assert!(READ.load(Relaxed), "no thread reads the batch, so the model shows nothing");
}

kills! {
    each_batch_is_taken_once_and_with_its_contents {
        "batch::PUSH": "the word of a popped node may point to a node that is freed",
        "batch::POP": "the word of a popped node may point to a node that is freed",
        "batch::RETRY": "the word of a popped node may point to a node that is freed",
    }
    a_slow_pop_does_not_restore_a_batch_that_was_taken {
        "step::PIN": "Causality violation",
    }
    each_batch_that_waits_is_retired_once_and_with_its_contents {
        "batch::ALL": "Causality violation",
    }
    a_batch_that_another_thread_retires_is_not_used_while_a_pinned_thread_reads_it {
        "batch::ALL": "Causality violation",
        "batch::PUSH": "Causality violation",
        "step::RETIRE": "Causality violation" | "the batch is used although this thread is pinned",
    }
}
