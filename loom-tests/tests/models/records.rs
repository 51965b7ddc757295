//! The pool of records: a record has one user at a time and is neither reused nor freed while a pinned thread may read
//! it. Here, a list holds two records, and a batch comprises three records, one of which holds the list.
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use raddle::internals::{Flavour::ContractForReaders, PooledRecord};
use raddle_loom_tests::checker::{
    sync::atomic::{
        AtomicPtr,
        Ordering::{Acquire, Release},
    },
    thread,
};
use raddle_loom_tests::{kills, model};

/// The contents that a pinned thread must find if it reads the record.
const OLD: usize = 0;

/// Takes `count` records, checks that they are distinct, and writes `user` to them.
fn take(count: usize, user: usize) -> Vec<PooledRecord> {
    take_with(PooledRecord::take, count, user)
}

/// [`take`], with a function that takes one record.
fn take_with(take: fn() -> PooledRecord, count: usize, user: usize) -> Vec<PooledRecord> {
    let mut taken: Vec<PooledRecord> = Vec::new();
    for _ in 0..count {
        let record = take();
        assert!(!taken.contains(&record), "a record was taken twice");
        record.write(user);
        taken.push(record);
    }
    taken
}

/// Checks that the records have had no other user since `user` took them, and puts them back.
fn put_back(records: &[PooledRecord], user: usize) {
    for record in records {
        assert_eq!(record.read(), user, "a record has two users");
        record.put_back();
    }
}

/// A thread may find and read a record while another unlinks the record, puts it back, and calls `reuse`.
fn read_while(bound: Option<usize>, reuse: impl Fn(PooledRecord) + Sync + Send + 'static) {
    model(bound, ContractForReaders, move || {
        let record = PooledRecord::take();
        record.write(OLD);
        let place = Arc::new(AtomicPtr::new(record.as_ptr()));
        let same = Arc::clone(&place);
        let reader = thread::spawn(move || {
            // Acquire: the contents of the record, which the start of this thread hands over as well.
            let read = PooledRecord::read_pinned(|| same.load(Acquire));
            assert!(read.is_none_or(|contents| contents == OLD), "the record has another user");
        });
        place.store(std::ptr::null_mut(), Release);
        record.put_back();
        reuse(record);
        PooledRecord::end_thread();
        reader.join().unwrap();
    });
}

/// The record is taken again as soon as the pool permits.
#[test]
fn a_record_is_not_reused_while_a_pinned_thread_reads_it() {
    static REUSED: AtomicBool = AtomicBool::new(false);
    read_while(Some(3), |record| {
        // The second record put back fills the list, and the third retires the batch.
        put_back(&take(2, 1), 1);
        let taken = take(4, 2);
        if taken.contains(&record) {
            REUSED.store(true, Relaxed);
        }
        put_back(&taken, 2);
    });
    assert!(REUSED.load(Relaxed), "the record is never reused, so the model shows nothing");
}

#[test]
fn a_record_of_a_thread_that_ends_is_not_freed_while_a_pinned_thread_reads_it() {
    read_while(Some(3), |_| ());
}

/// Two threads take records and put them back. Each may take batches that the other has filled.
#[test]
fn a_record_has_one_user_at_a_time() {
    static PASSED_ON: AtomicBool = AtomicBool::new(false);
    model(2, ContractForReaders, || {
        let run = |users: [usize; 2]| {
            put_back(&take(3, users[0]), users[0]);
            let mine = take(3, users[1]);
            put_back(&mine, users[1]);
            PooledRecord::end_thread();
            mine
        };
        let other = thread::spawn(move || run([1, 2]));
        let mine = run([3, 4]);
        if other.join().unwrap().iter().any(|record| mine.contains(record)) {
            PASSED_ON.store(true, Relaxed);
        }
    });
    assert!(PASSED_ON.load(Relaxed), "no record passes from one thread to the other, so the model shows nothing");
}

/// A batch is on the stack. The spawned thread takes a record and ends. If the record is from that batch, the end of
/// the thread frees the rest of the batch. Meanwhile, this thread also takes records, and may read the word of the list
/// that the spawned thread has popped.
#[test]
fn a_list_is_not_freed_while_a_slow_pop_reads_its_word() {
    static POPPED: AtomicBool = AtomicBool::new(false);
    model(3, ContractForReaders, || {
        // The third record put back retires the batch of the first two.
        let before = take(4, 1);
        put_back(&before, 1);
        let other = thread::spawn(|| {
            let taken = take(1, 2);
            PooledRecord::end_thread();
            taken
        });
        // If this thread pops the batch, the third record that it takes is the one that held the list.
        let taken = take(3, 3);
        if other.join().unwrap().iter().any(|record| before.contains(record)) {
            POPPED.store(true, Relaxed);
        }
        put_back(&taken, 3);
        PooledRecord::end_thread();
    });
    assert!(POPPED.load(Relaxed), "the other thread never takes a record of the batch, so the model shows nothing");
}

/// A batch of records is on the stack whose list is stored in a record of another size. The spawned thread takes one
/// more record than the batch has, which ends the list. Meanwhile, this thread also takes a record, and may read the
/// word of the list that the spawned thread has popped.
#[test]
fn a_list_in_a_record_of_another_size_is_not_freed_while_a_slow_pop_reads_its_word() {
    static ENDED: AtomicBool = AtomicBool::new(false);
    model(3, ContractForReaders, || {
        // The third record put back retires the batch of the first two.
        let before = take_with(PooledRecord::take_small, 3, 1);
        put_back(&before, 1);
        let other = thread::spawn(|| {
            let taken = take_with(PooledRecord::take_small, 3, 2);
            PooledRecord::end_thread();
            taken
        });
        let taken = take_with(PooledRecord::take_small, 1, 3);
        if other.join().unwrap().iter().filter(|record| before.contains(record)).count() == 2 {
            ENDED.store(true, Relaxed);
        }
        put_back(&taken, 3);
        PooledRecord::end_thread();
    });
    assert!(ENDED.load(Relaxed), "the other thread never ends the list, so the model shows nothing");
}

kills! {
    a_record_is_not_reused_while_a_pinned_thread_reads_it {
        only loom "step::RETIRE": "Causality violation",
        only loom "step::LISTS_ARE_FREE": "Causality violation",
    }
    a_record_of_a_thread_that_ends_is_not_freed_while_a_pinned_thread_reads_it {
        "step::RETIRE": "use after reclamation",
    }
    a_list_is_not_freed_while_a_slow_pop_reads_its_word {
        only loom "step::RETIRE": "use after reclamation",
    }
    a_list_in_a_record_of_another_size_is_not_freed_while_a_slow_pop_reads_its_word {
        only loom "step::LISTS_ARE_RETIRED": "use after reclamation",
    }
}
