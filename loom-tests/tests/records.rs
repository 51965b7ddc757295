//! The pool of records: a record has one user at a time, and is neither reused nor freed while a pinned thread may read
//! it. Lists hold two records here, and a batch is three records with its list.
#![cfg(raddle_loom)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use loom::{
    sync::atomic::{AtomicPtr, Ordering::Release},
    thread,
};
use raddle::internals::{Flavour::ContractForReaders, PooledRecord, Step};
use raddle_loom_tests::{model, must_fail, without};

/// What a pinned thread may read in a record, and what the next user writes.
const OLD: usize = 1;
const NEW: usize = 2;

/// Takes `count` records and writes to them. They must be distinct.
fn take(count: usize) -> Vec<PooledRecord> {
    let mut taken: Vec<PooledRecord> = Vec::new();
    for _ in 0..count {
        let record = PooledRecord::take();
        assert!(!taken.contains(&record), "a record was taken twice");
        record.write(NEW);
        taken.push(record);
    }
    taken
}

/// A thread finds a record, and reads it, while another thread unlinks the record, puts it back, and calls `reuse`.
fn read_while(bound: Option<usize>, reuse: impl Fn(PooledRecord) + Sync + Send + 'static) {
    model(bound, ContractForReaders, move || {
        let record = PooledRecord::take();
        record.write(OLD);
        let place = Arc::new(AtomicPtr::new(record.as_ptr()));
        let same = Arc::clone(&place);
        let reader = thread::spawn(move || {
            let read = PooledRecord::read_at(&same);
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
fn reuse_while_another_thread_reads() {
    static REUSED: AtomicBool = AtomicBool::new(false);
    read_while(Some(3), |record| {
        // The second one fills the list, and the third retires the batch.
        take(2).into_iter().for_each(PooledRecord::put_back);
        let taken = take(4);
        if taken.contains(&record) {
            REUSED.store(true, Relaxed);
        }
        taken.into_iter().for_each(PooledRecord::put_back);
    });
    assert!(REUSED.load(Relaxed), "the record is never reused, so the model shows nothing");
}

#[test]
fn a_record_is_not_reused_while_a_pinned_thread_reads_it() {
    reuse_while_another_thread_reads();
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn reusing_immediately() {
    without(Step::ReclaimAfterEpoch, reuse_while_another_thread_reads);
}

#[test]
fn without_the_epoch_a_record_is_reused_while_a_pinned_thread_reads_it() {
    must_fail("reusing_immediately", "Causality violation");
}

#[test]
#[ignore = "fails by design; run by the test below"]
fn lists_in_retired_records() {
    without(Step::ListsAreFree, reuse_while_another_thread_reads);
}

#[test]
fn a_list_in_a_retired_record_is_written_while_a_pinned_thread_reads_it() {
    must_fail("lists_in_retired_records", "Causality violation");
}

#[test]
fn a_record_of_a_thread_that_ends_is_not_freed_while_a_pinned_thread_reads_it() {
    read_while(Some(3), |_| ());
}

/// Two threads take records and put them back. Each of them takes batches that the other one has filled.
#[test]
fn a_record_has_one_user_at_a_time() {
    static PASSED_ON: AtomicBool = AtomicBool::new(false);
    model(2, ContractForReaders, || {
        let run = || {
            let mut mine = take(3);
            mine.drain(..).for_each(PooledRecord::put_back);
            mine = take(3);
            assert!(mine.iter().all(|record| record.read() == NEW));
            mine.iter().for_each(|record| record.put_back());
            PooledRecord::end_thread();
            mine
        };
        let other = thread::spawn(run);
        let mine = run();
        if other.join().unwrap().iter().any(|record| mine.contains(record)) {
            PASSED_ON.store(true, Relaxed);
        }
    });
    assert!(PASSED_ON.load(Relaxed), "no record passes from one thread to the other, so the model shows nothing");
}
