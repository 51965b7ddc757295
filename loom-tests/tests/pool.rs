//! The stack of batches that threads take free records from: each batch is one thread's at a time, with what is written
//! in it. What a thread does with the records of its batch is its own business, and not in the models.
#![cfg(raddle_loom)]

use std::{
    ptr::{NonNull, null_mut},
    sync::Arc,
};

use loom::{cell::UnsafeCell, sync::atomic::AtomicPtr, thread};
use raddle::internals::{Flavour, Node, Stack};
use raddle_loom_tests::model;

struct Batch {
    next: AtomicPtr<Batch>,
    number: usize,
    /// How often the batch was taken.
    names: UnsafeCell<usize>,
}

impl Node for Batch {
    unsafe fn next<'n>(batch: NonNull<Self>) -> &'n AtomicPtr<Self> {
        // SAFETY: the caller says that the batch is alive.
        &unsafe { batch.as_ref() }.next
    }
}

type Pool = Arc<Stack<Batch>>;

/// A batch that whoever has this uses alone.
struct Taken(NonNull<Batch>);

// SAFETY: loom reports a batch that two threads use.
unsafe impl Send for Taken {}

impl Taken {
    /// A new batch, which its maker has used.
    fn new(number: usize) -> Self {
        let batch = Batch { next: AtomicPtr::new(null_mut()), number, names: UnsafeCell::new(0) };
        let taken = Self(NonNull::from(Box::leak(Box::new(batch))));
        taken.write();
        taken
    }

    fn from(pool: &Pool) -> Option<Self> {
        let taken = Self(pool.pop()?);
        taken.write();
        Some(taken)
    }

    fn write(&self) {
        // SAFETY: batches live until `end`.
        let names = unsafe { &self.0.as_ref().names };
        // SAFETY: the batch is this thread's, which is what the models check.
        names.with_mut(|names| unsafe { *names += 1 });
    }

    fn give_back(self, pool: &Pool) {
        // SAFETY: the batch is this thread's, and lives until `end`.
        unsafe { pool.give_back(self.0) };
    }
}

/// When all threads are joined: what they have kept and what is in the pool are the batches below `count`, each once.
fn end(pool: &Pool, kept: impl IntoIterator<Item = Taken>, count: usize) {
    let mut all: Vec<Taken> = kept.into_iter().collect();
    // At most one more than there may be, should the stack have become a ring.
    while let Some(batch) = Taken::from(pool).filter(|_| all.len() <= count) {
        all.push(batch);
    }
    // SAFETY: no batch has been freed.
    let mut numbers: Vec<_> = all.iter().map(|batch| unsafe { batch.0.as_ref() }.number).collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(0..count), "the batches are now {numbers:?}");
    for batch in all {
        // SAFETY: it was leaked by `new`, and is in the list once.
        drop(unsafe { Box::from_raw(batch.0.as_ptr()) });
    }
}

/// One is in the pool, another comes on top.
#[test]
fn each_batch_that_is_given_back_is_taken_once_as_it_was_left() {
    model(3, Flavour::Contract, || {
        let (pool, other) = (Pool::default(), Taken::new(1));
        Taken::new(0).give_back(&pool);
        let its_pool = Arc::clone(&pool);
        let thread = thread::spawn(move || other.give_back(&its_pool));
        let kept: Vec<_> = (0..2).filter_map(|_| Taken::from(&pool)).collect();
        thread.join().unwrap();
        end(&pool, kept, 2);
    });
}

/// A thread is slow to take the first of two batches. Meanwhile both are taken, and the first one is given back.
#[test]
fn a_thread_that_is_slow_to_take_a_batch_does_not_bring_back_the_next_one() {
    model(3, Flavour::Contract, || {
        let pool = Pool::default();
        (0..2).for_each(|number| Taken::new(number).give_back(&pool));
        let its_pool = Arc::clone(&pool);
        let thread = thread::spawn(move || {
            let [first, second] = [(); 2].map(|()| Taken::from(&its_pool));
            if let Some(first) = first {
                first.give_back(&its_pool);
            }
            second
        });
        let kept = Taken::from(&pool);
        end(&pool, kept.into_iter().chain(thread.join().unwrap()), 2);
    });
}
