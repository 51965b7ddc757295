//! Pending operations and their waiters, for the models of waits and of completions.

use std::{
    // From `std`, so that they add no interleavings. They are used on one thread, or read after the thread that wrote
    // them was joined.
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Wake,
};

use crate::shapes::*;
use raddle::{
    Completion, Engine, EngineKind, Token,
    internals::{PendingOps, Ticket},
};

/// Holds the completion of an operation once the operation has started.
pub type Place = Arc<Mutex<Option<Completion>>>;

/// Pushes an asynchronous operation that writes `token`.
///
/// # Panics
/// If the engine has shut down.
pub fn push_async(engine: &Engine, token: &Token) -> Place {
    let place = Place::default();
    let inner = Arc::clone(&place);
    engine.push_async(move |_, done| *inner.lock().unwrap() = Some(done), [], [token]).unwrap();
    place
}

/// Returns a naive engine, a variable, and the completion of an asynchronous operation that writes it.
///
/// # Panics
/// If the operation has not started immediately, as it should.
pub fn pending() -> (Engine, Token, Completion) {
    let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
    let token = engine.token();
    let done = push_async(&engine, &token).lock().unwrap().take().unwrap();
    (engine, token, done)
}

/// Counts an operation out and wakes the waiters.
pub fn leave(pending: &PendingOps, ticket: Ticket) {
    if let Some(wakers) = pending.leave(ticket) {
        wakers.wake();
    }
}

/// A waker that counts how often it is woken.
#[derive(Debug, Default)]
pub struct Count(AtomicUsize);

impl Count {
    /// Returns how often it was woken.
    pub fn get(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}
