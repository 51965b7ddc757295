//! The state through which the function of an asynchronous operation and its completion agree on the result.
//!
//! # States
//!
//! | state | meaning | next |
//! |---|---|---|
//! | `OPEN` | neither has completed the operation | `FAILED` by the function's thread, `RESOLVED` by the completion |
//! | `FAILED` | the function failed and left its error; the completion, which still exists, will complete the operation with it | `RESOLVED` |
//! | `RESOLVED` | the completion has completed the operation | – |
//!
//! A function that fails while its completion exists elsewhere does not complete the operation: the holder of the
//! completion may still be using the variables.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `early` | exchange in [`fail`](AsyncState::fail) | swap in [`resolve`](AsyncState::resolve) | the function's error |

use std::mem::MaybeUninit;

use crate::sync::{
    Ordering::{AcqRel, Acquire, Release},
    atomic::AtomicU8,
    cell::UnsafeCell,
};

const OPEN: u8 = 0;
const FAILED: u8 = 1;
const RESOLVED: u8 = 2;

/// The state of an asynchronous operation, with the early error `E` of its function.
#[derive(Debug)]
#[repr(C)]
pub struct AsyncState<E> {
    early: UnsafeCell<Option<E>>,
    state: AtomicU8,
    /// Of the user of the state, which may initialise it alone. It takes no room beside `state`.
    pub note: MaybeUninit<u32>,
}

// SAFETY: `early` is written by the function's thread before it sets `FAILED`, and taken by the thread that sets
// `RESOLVED` after that.
unsafe impl<E: Send> Sync for AsyncState<E> {}

impl<E> Default for AsyncState<E> {
    fn default() -> Self {
        Self { early: UnsafeCell::new(None), state: AtomicU8::new(OPEN), note: MaybeUninit::uninit() }
    }
}

impl<E> AsyncState<E> {
    /// Whether the completion has completed the operation.
    pub fn is_resolved(&self) -> bool {
        // Acquire: makes visible the writes before the completion was used. Nothing else depends on it.
        self.state.load(Acquire) == RESOLVED
    }

    /// Resolves the operation when its completion is used. Returns the function's error if the function has failed.
    pub fn resolve(&self) -> Option<E> {
        // Acquire (edge `early`); Release for `is_resolved`.
        if self.state.swap(RESOLVED, AcqRel) == FAILED {
            // SAFETY: `FAILED` was set after the write of the function's thread, and the swap returns `FAILED` to only
            // one thread.
            self.early.with_mut(|early| unsafe { &mut *early }.take())
        } else {
            None
        }
    }

    /// Stores the error of the function for the completion.
    ///
    /// # Errors
    /// Returns the error if the completion was used first.
    ///
    /// # Safety
    /// 1. Called at most once, by the thread that ran the function.
    pub unsafe fn fail(&self, error: E) -> Result<(), E> {
        // SAFETY: (1), and no other thread reads the field before `FAILED` is set.
        self.early.with_mut(|early| unsafe { &mut *early }.replace(error));
        // Release (edge `early`). Acquire on failure: the completion's thread does not use the field any more.
        match self.state.compare_exchange(OPEN, FAILED, Release, Acquire) {
            Ok(_) => Ok(()),
            // SAFETY: `RESOLVED` was set when `FAILED` was not, so no other thread reads the field.
            Err(_) => match self.early.with_mut(|early| unsafe { &mut *early }.take()) {
                Some(error) => Err(error),
                None => Ok(()),
            },
        }
    }
}
