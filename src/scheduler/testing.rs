//! What the unit tests of the scheduler share.

use std::{
    ops::Deref,
    thread,
    time::{Duration, Instant},
};

use crate::tracker::OpRef;

/// Operations that are ready, numbered, and end with this.
pub(super) struct Ready(Vec<OpRef<usize>>);

impl Ready {
    pub(super) fn new(count: usize, band: u8) -> Self {
        let op = |number| {
            // SAFETY: the place is for a task.
            let init = move |place: *mut usize| unsafe { place.write(number) };
            // SAFETY: there are no variables; `init` makes a task.
            unsafe { OpRef::new_with(init, band, false, std::iter::empty()) }
        };
        Self((0..count).map(op).collect())
    }
}

impl Deref for Ready {
    type Target = [OpRef<usize>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.0.iter().for_each(|op| op.release(0));
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
