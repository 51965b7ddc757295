//! What the words of a variable hand over: its version, and the count of its handles.
#![cfg(raddle_loom)]

use std::sync::Arc;

use loom::{cell::UnsafeCell, thread};
use raddle::{Engine, EngineKind, internals::Flavour::Contract};
use raddle_loom_tests::model;
use raddle_loom_tests::shapes::*;

struct Data(UnsafeCell<usize>);
// SAFETY: the cell is loom's, which reports a race instead of letting it happen.
unsafe impl Sync for Data {}
// SAFETY: as above.
unsafe impl Send for Data {}

/// A value that uses the data when it is dropped.
struct Value(Arc<Data>);

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: no handle is left whose user could use the data, which is what the model checks.
        self.0.0.with_mut(|data| unsafe { *data += 1 });
    }
}

#[test]
fn what_was_done_by_any_handle_comes_before_the_value_is_dropped() {
    model(2, Contract, || {
        let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
        let data = Arc::new(Data(UnsafeCell::new(0)));
        let var = engine.var(Value(Arc::clone(&data)));
        let (other, handle) = (Arc::clone(&data), var.clone());
        let thread = thread::spawn(move || {
            // SAFETY: as above.
            other.0.with_mut(|data| unsafe { *data += 1 });
            drop(handle);
        });
        drop(var);
        thread.join().unwrap();
        // SAFETY: the thread is joined, and the value is dropped.
        assert_eq!(data.0.with(|data| unsafe { *data }), 2);
    });
}

#[test]
fn who_sees_a_version_sees_what_the_mutations_did_that_it_counts() {
    model(2, Contract, || {
        let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
        let (token, data) = (engine.token(), Arc::new(Data(UnsafeCell::new(0))));
        // The mutation is on this thread because it loads the version before it stores it: loom would take that load
        // for the last one, and not see that another thread's may come after the store.
        let (its_token, its_data) = (token.clone(), Arc::clone(&data));
        let thread = thread::spawn(move || {
            if its_token.version() == 1 {
                // SAFETY: the mutation was counted, so it is over, which is what the model checks.
                assert_eq!(its_data.0.with(|data| unsafe { *data }), 1);
            }
        });
        // SAFETY: as above.
        let mutate = move || data.0.with_mut(|data| unsafe { *data += 1 });
        engine.push_sync(move |_| mutate(), [], [&token]).unwrap();
        thread.join().unwrap();
        assert_eq!(token.version(), 1);
    });
}
