//! How the function of an asynchronous operation and its completion agree on the result.
//!
//! # States
//!
//! | state | meaning | next |
//! |---|---|---|
//! | `OPEN` | neither has ended the operation | `FAILED` by the function's thread, `RESOLVED` by the completion |
//! | `FAILED` | the function failed and left its error; the completion, which is still about, will end the operation with it | `RESOLVED` |
//! | `RESOLVED` | the completion has ended the operation | – |
//!
//! A function that fails while its completion lives elsewhere does not end the operation: whoever has the completion may
//! still be using the variables.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `early` | exchange in [`fail`](AsyncState::fail) | swap in [`resolve`](AsyncState::resolve) | the function's error |

use crate::sync::{
    Ordering::{AcqRel, Acquire, Release},
    atomic::AtomicU8,
    cell::UnsafeCell,
};

const OPEN: u8 = 0;
const FAILED: u8 = 1;
const RESOLVED: u8 = 2;

/// How far an asynchronous operation is, with the early error `E` of its function.
#[derive(Debug)]
pub struct AsyncState<E> {
    state: AtomicU8,
    early: UnsafeCell<Option<E>>,
}

// SAFETY: `early` is written by the function's thread before `FAILED` is set, and taken by the one that sets `RESOLVED` after.
unsafe impl<E: Send> Sync for AsyncState<E> {}

impl<E> Default for AsyncState<E> {
    fn default() -> Self {
        Self { state: AtomicU8::new(OPEN), early: UnsafeCell::new(None) }
    }
}

impl<E> AsyncState<E> {
    /// Whether the completion has ended the operation.
    pub fn is_resolved(&self) -> bool {
        // Acquire: what the completion did before it is visible; nothing more hangs on it.
        self.state.load(Acquire) == RESOLVED
    }

    /// Ends the operation, by its completion; gives the function's error if that has failed.
    pub fn resolve(&self) -> Option<E> {
        // Acquire (edge `early`); Release for `is_resolved`.
        if self.state.swap(RESOLVED, AcqRel) == FAILED {
            // SAFETY: `FAILED` was set after the write, and only one thread sees it here.
            self.early.with_mut(|early| unsafe { &mut *early }.take())
        } else {
            None
        }
    }

    /// Leaves the error of the function for the completion; gives it back if the completion was first.
    ///
    /// # Safety
    /// 1. Called at most once, by the thread that ran the function.
    pub unsafe fn fail(&self, error: E) -> Result<(), E> {
        // SAFETY: (1), and nobody reads before `FAILED` is set.
        self.early.with_mut(|early| unsafe { &mut *early }.replace(error));
        // Release (edge `early`). Acquire on failure: the completion's thread is done with this.
        match self.state.compare_exchange(OPEN, FAILED, Release, Acquire) {
            Ok(_) => Ok(()),
            // SAFETY: `RESOLVED` came without `FAILED`, so nobody else reads the field any more.
            Err(_) => match self.early.with_mut(|early| unsafe { &mut *early }.take()) {
                Some(error) => Err(error),
                None => Ok(()),
            },
        }
    }
}
