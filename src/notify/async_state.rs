//! The state through which an asynchronous operation's function and completion agree on the result. Guards and futures
//! that share the right to end the operation use the state in place of a completion.
//!
//! # States
//!
//! | state | meaning | next |
//! |---|---|---|
//! | `OPEN` | the function has not failed, and the completion has not been used | `FAILED` by the function's thread, `RESOLVED` by the completion |
//! | `FAILED` | the function failed and left its error for the completion, which has not been used; when it is, the operation fails with this error | `RESOLVED` by the completion |
//! | `RESOLVED` | the completion has been used; the operation is complete or about to be, or waits only for its children | – |
//!
//! A failure of the function while the completion still exists elsewhere does not end the operation, because the holder
//! of the completion may still be using the variables.
//!
//! # Edges
//!
//! [`resolve`](crate::sync::edge::resolve).

use crate::sync::{
    atomic::AtomicU8,
    cell::UnsafeCell,
    edge::{self, acquire, acquire_release, release},
};

const OPEN: u8 = 0;
const FAILED: u8 = 1;
const RESOLVED: u8 = 2;

/// The state of an asynchronous operation, with the error `E` of a function that fails before the completion is used.
#[derive(Debug)]
pub struct AsyncState<E> {
    state: AtomicU8,
    early: UnsafeCell<Option<E>>,
}

// SAFETY: the function's thread writes `early` before it tries to set `FAILED`. If the attempt succeeds, the thread
// that sets `RESOLVED` afterwards takes the error. Otherwise, the function's thread takes the error back, and no other
// thread uses the field.
unsafe impl<E: Send> Sync for AsyncState<E> {}

impl<E> Default for AsyncState<E> {
    fn default() -> Self {
        Self { state: AtomicU8::new(OPEN), early: UnsafeCell::new(None) }
    }
}

impl<E> AsyncState<E> {
    /// Whether the completion has been used.
    pub fn is_resolved(&self) -> bool {
        self.state.load(acquire(edge::resolve::SEEN)) == RESOLVED
    }

    /// Records that the completion is used. Returns the function's error if the function has failed before.
    pub fn resolve(&self) -> Option<E> {
        let order = acquire_release(edge::resolve::FAILURE, edge::resolve::RESOLVED);
        if self.state.swap(RESOLVED, order) == FAILED {
            // SAFETY: `FAILED` was set after the function's thread had written the error, and the swap returns `FAILED`
            // to only one thread.
            self.early.with_mut(|early| unsafe { &mut *early }.take())
        } else {
            None
        }
    }

    /// Stores the function's error for the completion.
    ///
    /// # Errors
    /// Returns the error to the caller if the completion was used first.
    ///
    /// # Safety
    /// 1. This is called at most once, by the thread that ran the function.
    pub unsafe fn fail(&self, error: E) -> Result<(), E> {
        // SAFETY: by (1) no other thread writes the field, and none reads it before `FAILED` is set.
        self.early.with_mut(|early| unsafe { &mut *early }.replace(error));
        let (failed, resolved) = (release(edge::resolve::FAILED), acquire(edge::resolve::RESOLUTION));
        match self.state.compare_exchange(OPEN, FAILED, failed, resolved) {
            Ok(_) => Ok(()),
            // SAFETY: `RESOLVED` was set and `FAILED` was not, so no other thread reads the field.
            Err(_) => match self.early.with_mut(|early| unsafe { &mut *early }.take()) {
                Some(error) => Err(error),
                None => Ok(()),
            },
        }
    }
}
