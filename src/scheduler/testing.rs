//! What the unit tests of the scheduler share.

use std::{
    ops::Deref,
    ptr::NonNull,
    thread,
    time::{Duration, Instant},
};

use crate::tracker::{Op, OpRef, ReadyList, end};

/// An operation by its address. The test has the right to it as well, but while the scheduler has that.
#[derive(Clone, Copy)]
pub(super) struct Known(NonNull<Op<usize>>);

impl Known {
    pub(super) fn as_ptr(&self) -> *mut Op<usize> {
        self.0.as_ptr()
    }

    /// The right to the operation, which is not in the scheduler's hands: it never was, or the test has taken it out.
    pub(super) fn right(self) -> OpRef<usize> {
        // SAFETY: the test has the right, as it says by this.
        unsafe { OpRef::from_ptr(self.0) }
    }
}

/// Operations that are ready, numbered, and end with this.
pub(super) struct Ready(Vec<Known>);

impl Ready {
    pub(super) fn new(count: usize, band: u8) -> Self {
        let op = |number| {
            // SAFETY: the place is for a task.
            let init = move |place: *mut usize| unsafe { place.write(number) };
            // SAFETY: there are no variables, as the iterator says; `init` makes a task.
            Known(unsafe { OpRef::new_with(init, band, false, std::iter::empty()) }.into_ptr())
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

/// Asserts that somebody has woken the calling thread since the last call.
#[track_caller]
pub(super) fn assert_woken() {
    const PATIENCE: Duration = Duration::from_secs(20);
    assert!(parked_for(PATIENCE) < PATIENCE, "nobody has woken this thread");
}

/// Asserts that nobody has woken the calling thread since the last call.
#[track_caller]
pub(super) fn assert_not_woken() {
    const MOMENT: Duration = Duration::from_millis(50);
    assert!(parked_for(MOMENT) >= MOMENT, "somebody has woken this thread");
}

fn parked_for(limit: Duration) -> Duration {
    let start = Instant::now();
    thread::park_timeout(limit);
    start.elapsed()
}
