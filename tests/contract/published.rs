//! Variables that publish their values.

use raddle_testkit as common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use common::{Drops, Gate, KINDS, THREADED, block_on, engine, failure, on_kinds};
use raddle::completion;

/// A pair whose halves are equal unless a mutation is in progress.
type Pair = [u64; 2];

fn count(pair: &mut Pair) {
    pair[0] += 1;
    thread::yield_now();
    pair[1] += 1;
}

#[test]
fn a_snapshot_is_the_value_of_the_last_completed_mutation() {
    on_kinds(&THREADED, 2, |engine| {
        let pair = engine.published(Pair::default());
        let gate = Arc::new(Gate::new());
        engine.op("first").push(pair.write(), count).unwrap();
        engine.wait_for_var(&pair).unwrap();
        let passes = Arc::clone(&gate);
        let second = engine.op("second").submit(pair.write(), move |pair| {
            pair[0] += 1;
            passes.pass();
            pair[1] += 1;
        });
        assert_eq!(*pair.snapshot(), [1; 2], "a mutation that has not completed is seen");
        gate.open();
        second.unwrap().wait().unwrap();
        assert_eq!(*pair.snapshot(), [2; 2]);
        assert_eq!(pair.version(), 2);
    });
}

#[test]
fn an_operation_finds_the_mutations_before_it_in_a_snapshot() {
    on_kinds(&KINDS, 2, |engine| {
        let pair = engine.published(Pair::default());
        let mut found = Vec::new();
        for number in 0..200 {
            engine.op("count").push(pair.write(), count).unwrap();
            let handle = pair.clone();
            let finds = move |read: &Pair| (*read, *handle.snapshot());
            found.push((number + 1, engine.op("find").submit(pair.read(), finds).unwrap()));
        }
        for (number, found) in found {
            assert_eq!(found.wait().unwrap(), ([number; 2], [number; 2]));
        }
        let before = pair.clone();
        let own = engine.op("own").submit(pair.write(), move |pair| {
            count(pair);
            *before.snapshot()
        });
        assert_eq!(own.unwrap().wait().unwrap(), [200; 2], "an operation has found its own mutation");
    });
}

#[test]
fn snapshots_beside_mutations_are_whole_and_never_go_back() {
    on_kinds(&THREADED, 2, |engine| {
        let (pair, ends) = (engine.published(Pair::default()), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while !ends.load(Relaxed) {
                        let seen = *pair.snapshot();
                        assert_eq!(seen[0], seen[1]);
                        assert!(seen[0] >= last, "{} after {last}", seen[0]);
                        last = seen[0];
                    }
                });
            }
            for _ in 0..common::program::fewer(5_000) {
                engine.op("count").push(pair.write(), count).unwrap();
            }
            let last = engine.wait_for_all();
            ends.store(true, Relaxed);
            last.unwrap();
        });
        assert_eq!(pair.snapshot()[0], pair.version());
    });
}

#[test]
fn every_kind_of_mutation_is_published() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.published(0);
        engine.set(&value, 1).unwrap();
        engine.wait_for_var(&value).unwrap();
        assert_eq!(*value.snapshot(), 1);
        assert_eq!(engine.replace(&value, 2).unwrap(), 1);
        assert_eq!(*value.snapshot(), 2);
        engine
            .op("completes")
            .push((value.write(), completion()), |(value, done)| {
                *value = 3;
                done.complete();
            })
            .unwrap();
        engine.wait_for_var(&value).unwrap();
        assert_eq!(*value.snapshot(), 3);
        *block_on(engine.acquire(value.write())).unwrap() = 4;
        engine.wait_for_var(&value).unwrap();
        assert_eq!(*value.snapshot(), 4);
        let operator = engine.op("adds").operator(value.write(), |value| *value += 1).unwrap();
        operator.push().unwrap();
        engine.wait_for_var(&value).unwrap();
        assert_eq!(*value.snapshot(), 5);
    });
}

#[test]
fn a_failure_leaves_the_snapshot() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.published(1);
        let fails = engine.op("fails").try_submit(value.write(), |value| {
            *value = 2;
            Err("as planned".into())
        });
        let fails: Result<(), _> = fails.unwrap().wait();
        failure(fails);
        engine.op("skipped").push(value.write(), |value| *value = 3).unwrap();
        assert!(engine.wait_for_var(&value).is_err());
        assert_eq!(*value.snapshot(), 1);
        engine.op("resets").push(value.overwrite(), |value| *value = 4).unwrap();
        engine.wait_for_var(&value).unwrap();
        assert_eq!(*value.snapshot(), 4);
        let _ = engine.wait_for_all();
    });
}

#[test]
fn a_deletion_leaves_the_snapshot() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.published(vec![1]);
        engine.op("adds").push(value.write(), |value| value.push(2)).unwrap();
        engine.delete_variable(&value, |_| {}).unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!(*value.snapshot(), [1, 2]);
        let snapshot = value.snapshot();
        drop((value, engine));
        assert_eq!(*snapshot, [1, 2]);
    });
}

/// Panics when cloned if it is odd.
#[derive(Debug)]
struct PanicsIfOdd(u32);

impl Clone for PanicsIfOdd {
    fn clone(&self) -> Self {
        assert!(self.0 % 2 == 0, "as planned");
        Self(self.0)
    }
}

#[test]
fn a_clone_that_panics_fails_the_operation() {
    on_kinds(&KINDS, 1, |engine| {
        let value = engine.published(PanicsIfOdd(0));
        let adds = || engine.op("adds").submit(value.write(), |value| value.0 += 1).unwrap();
        let error = failure(adds().wait());
        assert!(error.to_string().contains("as planned"), "{error}");
        assert_eq!(value.snapshot().0, 0);
        engine.clear_error(&value).unwrap();
        let _ = engine.wait_for_all();
    });
}

#[test]
fn copies_of_the_value_are_dropped() {
    for kind in KINDS {
        let drops = Drops::new();
        let engine = engine(kind, 2);
        let value = engine.published(drops.make());
        for _ in 0..100 {
            engine.op("touch").push(value.write(), |value| value.touch()).unwrap();
        }
        engine.wait_for_all().unwrap();
        assert_eq!((drops.made(), drops.dropped()), (102, 100), "only the value and its last copy are alive");
        drop(value);
        engine.wait_for_all().unwrap();
        drops.assert_all_gone();
    }
}
