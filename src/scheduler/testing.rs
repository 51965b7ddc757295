//! Helpers for the scheduler's unit tests.

use std::{
    ops::Deref,
    ptr::NonNull,
    thread,
    time::{Duration, Instant},
};

use crate::tracker::{Op, OpRef, ReadyList, Room, end};

/// The address of an operation. The test owns the operation whenever the scheduler does not.
#[derive(Clone, Copy)]
pub(super) struct Known(NonNull<Op<usize>>);

impl Known {
    pub(super) fn as_ptr(&self) -> *mut Op<usize> {
        self.0.as_ptr()
    }

    /// Takes ownership of the operation. The scheduler must not own it: either it never did, or the test has taken
    /// ownership back.
    pub(super) fn right(self) -> OpRef<usize> {
        // SAFETY: the caller asserts that the test owns the operation.
        unsafe { OpRef::from_ptr(self.0) }
    }
}

/// Numbered ready operations, which are completed when this is dropped.
pub(super) struct Ready(Vec<Known>);

impl Ready {
    pub(super) fn new(count: usize, band: u8) -> Self {
        let op = |number| {
            // SAFETY: `new_with` passes a pointer to room for a task.
            let init = move |place: *mut usize| unsafe { place.write(number) };
            // SAFETY: the iterator yields no variables, and `init` initialises the task.
            Known(unsafe { OpRef::new_with(init, Room::default(), band, false, std::iter::empty()) }.into_ptr())
        };
        Self((0..count).map(op).collect())
    }
}

impl Deref for Ready {
    type Target = [Known];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.0.iter().for_each(|op| end(op.right(), &mut ReadyList::default()));
        }
    }
}

/// Asserts that the calling thread has been unparked since it last made one of these two assertions.
#[track_caller]
pub(super) fn assert_woken() {
    const PATIENCE: Duration = Duration::from_secs(20);
    assert!(parked_for(PATIENCE) < PATIENCE, "this thread was not woken");
}

/// Asserts that the calling thread has not been unparked since it last made one of these two assertions.
#[track_caller]
pub(super) fn assert_not_woken() {
    const MOMENT: Duration = Duration::from_millis(50);
    assert!(parked_for(MOMENT) >= MOMENT, "this thread was woken");
}

fn parked_for(limit: Duration) -> Duration {
    let start = Instant::now();
    thread::park_timeout(limit);
    start.elapsed()
}
