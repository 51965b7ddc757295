//! Pending operations and their waiters, for the models of waits and of completions.

use std::{
    // These types are from `std`, so they add no interleavings. They are used on one thread, or are read after the
    // writing thread has been joined.
    panic::Location,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Wake,
};

use crate::{checker::thread, shapes::*};
use raddle::{
    Completion, Engine, EngineKind, Name, Token,
    internals::{Cancel, Cancellable, Claim, Function, Listening, PendingOps, Signals, StopListener, Ticket},
};

/// The place where an operation stores its completion when it starts.
pub type Place = Arc<Mutex<Option<Completion>>>;

/// Pushes an asynchronous operation that writes `token`. Returns the place where the operation stores its completion.
///
/// # Panics
/// If the engine has shut down.
pub fn push_async(engine: &Engine, token: &Token) -> Place {
    let place = Place::default();
    let inner = Arc::clone(&place);
    engine.push_async(move |_, done| *inner.lock().unwrap() = Some(done), [], [token]).unwrap();
    place
}

/// Returns a naive engine, a variable, and the completion of an asynchronous operation that writes the variable.
///
/// # Panics
/// If the operation did not start immediately.
pub fn pending() -> (Engine, Token, Completion) {
    let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
    let token = engine.token();
    let done = push_async(&engine, &token).lock().unwrap().take().unwrap();
    (engine, token, done)
}

/// Counts an operation out and wakes the futures whose waits this ends.
pub fn leave(pending: &PendingOps, ticket: Ticket) {
    if let Some(wakers) = pending.leave(ticket) {
        wakers.wake();
    }
}

/// Registers `listener` with a started operation, while a thread cancels that operation. Returns that thread, too.
///
/// # Panics
/// If the operation did not start.
pub fn listen_beside_cancellation<L: StopListener + 'static>(
    listener: &Arc<L>,
) -> (Option<Listening>, thread::JoinHandle<bool>) {
    let op: Arc<Cancellable<dyn Function>> =
        Arc::new(Cancellable::new(Claim::default(), Name::from("op"), Location::caller(), ()));
    op.claim().start().unwrap();
    let other = Arc::clone(&op);
    let canceller = thread::spawn(move || other.cancel(Cancel::Loudly, &Arc::default(), drop));
    let signals = Signals { signals: [op.stop_signal()].into_iter().collect(), ..Signals::default() };
    (Listening::begin(signals, listener), canceller)
}

/// A waker that counts its calls.
#[derive(Debug, Default)]
pub struct Count(AtomicUsize);

impl Count {
    /// Returns how many times the waker was called.
    pub fn get(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}
