//! Slabs of records: a thread that visits all records sees the marked ones as they were marked, spare records get one
//! user at a time, and a slab with only spare records is freed when no pinned thread can visit it. Here, a slab has two
//! records.
use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use raddle::internals::{Flavour::ContractForReaders, PooledRecord, Slabs, mark, pin};
use raddle_loom_tests::checker::thread;
use raddle_loom_tests::{COMPLETE, kills, model};

/// The mark of a model's records.
const OWN: *mut () = NonNull::dangling().as_ptr();

/// Writes `user` to a record and marks it.
fn fill(record: PooledRecord, user: usize) {
    record.write(user);
    // SAFETY: the record is in use by this thread.
    unsafe { mark(NonNull::new(record.as_ptr()).unwrap().cast(), OWN) };
}

/// Removes the mark of a record and gives it back. No pinned thread may use it.
fn give_back(slabs: &Slabs, record: PooledRecord) {
    // SAFETY: the record is in use by this thread.
    unsafe { mark(NonNull::new(record.as_ptr()).unwrap().cast(), std::ptr::null_mut()) };
    slabs.give_back_record(record);
}

/// Takes the two records of a slab.
fn take(slabs: &Slabs) -> [PooledRecord; 2] {
    slabs.take_records(2).try_into().unwrap()
}

/// Returns the contents of the marked records.
fn marked(slabs: &Slabs) -> Vec<usize> {
    let mut found = Vec::new();
    let guard = pin();
    slabs.each_marked(&guard, [OWN; 2], |record, _| {
        found.push(PooledRecord::from_ptr(record.as_ptr().cast()).read());
    });
    found
}

/// A thread looks for marked records, as dumps do during pushes, while another thread adds a slab, and fills and marks
/// one of its records.
#[test]
fn a_thread_that_finds_a_marked_record_sees_it_as_it_was_marked() {
    static FOUND: AtomicBool = AtomicBool::new(false);
    model(COMPLETE, ContractForReaders, || {
        let slabs = Arc::new(Slabs::default());
        let looks = Arc::clone(&slabs);
        let thread = thread::spawn(move || {
            let found = marked(&looks);
            assert!(found.is_empty() || found == [1], "{found:?}");
            if found == [1] {
                FOUND.store(true, Relaxed);
            }
        });
        fill(take(&slabs)[0], 1);
        thread.join().unwrap();
        assert_eq!(marked(&slabs), [1]);
    });
    assert!(FOUND.load(Relaxed), "the record is never found, so the model shows nothing");
}

/// Two threads add slabs at the same time. Both are listed.
#[test]
fn slabs_added_at_the_same_time_are_both_found() {
    model(COMPLETE, ContractForReaders, || {
        let slabs = Arc::new(Slabs::default());
        let adds = Arc::clone(&slabs);
        let thread = thread::spawn(move || fill(take(&adds)[0], 1));
        fill(take(&slabs)[1], 2);
        thread.join().unwrap();
        let mut found = marked(&slabs);
        found.sort_unstable();
        assert_eq!(found, [1, 2]);
    });
}

/// The records of one slab are given back by two threads, while a third takes records.
#[test]
fn a_spare_record_is_taken_once_and_after_its_last_use() {
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    model(3, ContractForReaders, || {
        let slabs = Arc::new(Slabs::default());
        let [one, two] = take(&slabs);
        let uses = |slabs: &Slabs, record: PooledRecord, user| {
            record.write(user);
            slabs.give_back_record(record);
        };
        let (gives, takes) = (Arc::clone(&slabs), Arc::clone(&slabs));
        let giver = thread::spawn(move || uses(&gives, two, 2));
        let taker = thread::spawn(move || {
            let taken = takes.take_records(2);
            taken.iter().for_each(|record| record.write(3));
            taken
        });
        uses(&slabs, one, 1);
        giver.join().unwrap();
        let mut taken = taker.join().unwrap();
        TAKEN.fetch_max(taken.iter().filter(|record| [one, two].contains(record)).count(), Relaxed);
        for record in (0..4).flat_map(|_| slabs.take_spare_records(1)) {
            assert!(!taken.contains(&record), "a record was taken twice");
            record.write(4);
            taken.push(record);
        }
        let (spare, all) = slabs.count();
        assert_eq!(taken.len() + spare, all, "a spare record was lost");
    });
    assert_eq!(TAKEN.load(Relaxed), 2, "spare records are never taken together, so the model shows nothing");
}

/// Two threads give back the records of a slab between two others, so one of them frees it. Meanwhile, a third visits
/// all records.
#[test]
fn a_slab_is_freed_once_all_its_records_are_spare_and_no_thread_visits_it() {
    model(2, ContractForReaders, || {
        let slabs = Arc::new(Slabs::default());
        let oldest = take(&slabs);
        fill(oldest[1], 1);
        let [one, two] = take(&slabs);
        let _newest = take(&slabs);
        let (gives, looks) = (Arc::clone(&slabs), Arc::clone(&slabs));
        let visitor = thread::spawn(move || assert_eq!(marked(&looks), [1]));
        let giver = thread::spawn(move || {
            two.write(2);
            give_back(&gives, two);
        });
        one.write(1);
        give_back(&slabs, one);
        giver.join().unwrap();
        visitor.join().unwrap();
        assert_eq!(marked(&slabs), [1]);
        assert!(one.is_freed() && two.is_freed(), "the slab is still listed");
    });
}

/// A thread gives a record back, while another gives the pages of spare records back to the system.
#[test]
fn the_pages_of_a_record_are_given_back_after_its_last_use() {
    model(COMPLETE, ContractForReaders, || {
        let slabs = Arc::new(Slabs::default());
        let [one, _kept] = take(&slabs);
        let _newest = take(&slabs);
        let gives = Arc::clone(&slabs);
        let giver = thread::spawn(move || {
            fill(one, 1);
            give_back(&gives, one);
        });
        slabs.free_all_spare();
        giver.join().unwrap();
    });
}

kills! {
    a_thread_that_finds_a_marked_record_sees_it_as_it_was_marked {
        "marked::MARKED": "Causality violation",
        "marked::FOUND": "Causality violation",
        "slab::LISTED": "Causality violation",
        "slab::REACHED": "Causality violation",
    }
    a_spare_record_is_taken_once_and_after_its_last_use {
        "spare::GIVEN": "Causality violation" | "maximum number of branches",
        "spare::TAKEN": "Causality violation" | "maximum number of branches",
    }
    a_slab_is_freed_once_all_its_records_are_spare_and_no_thread_visits_it {
        "spare::ALL": "Causality violation",
        "step::RETIRE": "use after reclamation",
    }
    the_pages_of_a_record_are_given_back_after_its_last_use {
        "spare::VACATED": "Causality violation",
    }
}
