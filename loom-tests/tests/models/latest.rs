//! The last value of a sequence: readers take shares in it while it is replaced. Each value is dropped once, by the
//! thread that has its last share, and its memory is freed only when no reader may look at it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use raddle::internals::{Flavour::ContractForReaders, Latest};
use raddle_loom_tests::checker::{cell::UnsafeCell, thread};
use raddle_loom_tests::{COMPLETE, kills, model};

/// A value whose contents loom watches.
struct Value(UnsafeCell<u8>, Arc<AtomicUsize>);

// SAFETY: loom would report a race.
unsafe impl Send for Value {}
// SAFETY: as for `Send`.
unsafe impl Sync for Value {}

impl Value {
    fn new(number: u8, dropped: &Arc<AtomicUsize>) -> Self {
        let value = Self(UnsafeCell::new(0), Arc::clone(dropped));
        // SAFETY: no other thread has the value.
        value.0.with_mut(|contents| unsafe { *contents = number });
        value
    }

    fn number(&self) -> u8 {
        // SAFETY: the caller has a share in the value; the model verifies this.
        self.0.with(|contents| unsafe { *contents })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: no other thread has a share; the model verifies this.
        let number = self.0.with_mut(|contents| unsafe { std::mem::replace(&mut *contents, u8::MAX) });
        assert_ne!(number, u8::MAX, "a value is dropped twice");
        self.1.fetch_add(1, Relaxed);
    }
}

#[test]
fn readers_beside_replacements_have_whole_values() {
    static NEW: AtomicBool = AtomicBool::new(false);
    model(3, ContractForReaders, || {
        let dropped = Arc::new(AtomicUsize::new(0));
        let latest = Arc::new(Latest::new(Value::new(1, &dropped)));
        let read = Arc::clone(&latest);
        let reader = thread::spawn(move || {
            let first = read.load();
            let second = read.load().number();
            assert!(first.number() <= second, "a reader goes back");
            NEW.fetch_or(second == 3, Relaxed);
        });
        latest.replace(Value::new(2, &dropped));
        latest.replace(Value::new(3, &dropped));
        reader.join().unwrap();
        assert_eq!(dropped.load(Relaxed), 2);
        assert_eq!(latest.load().number(), 3);
        drop(latest);
        assert_eq!(dropped.load(Relaxed), 3);
    });
    assert!(NEW.load(Relaxed), "no reader finds a new value, so the model shows nothing");
}

#[test]
fn two_threads_replace_a_value() {
    model(COMPLETE, ContractForReaders, || {
        let dropped = Arc::new(AtomicUsize::new(0));
        let latest = Arc::new(Latest::new(Value::new(1, &dropped)));
        let (other, theirs) = (Arc::clone(&latest), Arc::clone(&dropped));
        let thread = thread::spawn(move || other.replace(Value::new(2, &theirs)));
        latest.replace(Value::new(3, &dropped));
        thread.join().unwrap();
        assert_eq!(dropped.load(Relaxed), 2);
        drop(latest);
        assert_eq!(dropped.load(Relaxed), 3);
    });
}

kills! {
    readers_beside_replacements_have_whole_values {
        "latest::STORED": "Causality violation",
        "latest::LOADED": "Causality violation",
        "latest::READ": "use after reclamation" | "Causality violation",
        "latest::REPLACE": "use after reclamation" | "Causality violation",
        "step::PIN": "use after reclamation" | "Causality violation",
        "step::RETIRE": "use after reclamation" | "Causality violation",
    }
    two_threads_replace_a_value {
        "latest::REPLACE": "Causality violation",
    }
}
