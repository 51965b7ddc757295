//! Which thread polls an operation's future, and whether the future must be polled again.
//!
//! # States
//!
//! | state | bits | meaning | next |
//! |---|---|---|---|
//! | idle | – | no thread is polling, and the future has not been woken since the last poll | queued, by [`wake`](PollState::wake); done, by [`look`](PollState::look) |
//! | queued | `WOKEN` | a poll is queued and has not begun | running, by [`begin`](PollState::begin) |
//! | running | `RUNNING` | one thread is polling | idle, by [`pause`](PollState::pause); notified, by `wake`; done, by [`finish`](PollState::finish) |
//! | notified | `RUNNING`, `WOKEN` | the future was woken while being polled | queued, by `pause`; done, by `finish` |
//! | done | `DONE` | the future has ended, or can no longer be woken | – |
//!
//! The thread that ends the idle state by `wake`, or the notified state by `pause`, queues the next poll or, on a naive
//! engine, may begin it at once. So at most one poll is queued or running at any time.
//!
//! # Who may touch what
//!
//! * The state: any thread may call `wake`, the owner of the last waker may call `look`, and only the thread that polls
//!   makes the other calls.
//! * The future: the thread that polls, and the owner of the last waker once no thread polls.
//!
//! # Edges
//!
//! [`poll`](crate::sync::edge::poll).
//!
//! Waking a queued or notified future does not change the state, but must still hand over what the waking thread did
//! before. So a wake is a read-modify-write in every state: the swap that follows reads the value that the wake wrote,
//! or a later one in the same release sequence. In the same way, a wake continues the release sequence of the `pause`
//! before it.

use crate::sync::{
    atomic::AtomicU8,
    edge::{self, acquire, release, removed, step},
};

const RUNNING: u8 = 1;
const WOKEN: u8 = 2;
const DONE: u8 = 4;

/// Which thread polls a future, and whether the future must be polled again.
#[derive(Debug)]
pub struct PollState(AtomicU8);

impl PollState {
    /// Creates the state of a future that the calling thread polls.
    #[must_use]
    pub fn running() -> Self {
        Self(AtomicU8::new(RUNNING))
    }

    /// Records that the future was woken. Returns whether the caller must queue a poll.
    #[must_use = "the future must be polled"]
    pub fn wake(&self) -> bool {
        let before = self.0.fetch_or(WOKEN, release(edge::poll::WAKE));
        before == 0 || removed(step::ONE_POLL_AT_A_TIME) && before == RUNNING
    }

    /// Begins a queued poll.
    pub fn begin(&self) {
        let before = self.0.swap(RUNNING, acquire(edge::poll::BEGIN));
        debug_assert!(before == WOKEN || removed(step::ONE_POLL_AT_A_TIME), "a poll was not queued: {before}");
    }

    /// Ends a poll that did not finish the future. Returns whether the future was woken during the poll. If so, the
    /// caller must queue the next poll.
    #[must_use = "the future may have to be polled"]
    pub fn pause(&self) -> bool {
        if removed(step::PAUSE_SEES_WAKES) {
            self.0.swap(0, release(edge::poll::PAUSE));
            return false;
        }
        self.0.fetch_and(!RUNNING, release(edge::poll::PAUSE)) & WOKEN != 0
    }

    /// Ends the last poll.
    pub fn finish(&self) {
        // A wake during the last poll no longer has any effect.
        self.0.swap(DONE, release(edge::poll::END));
    }

    /// Acquires the future for the owner of the last waker. Must be called only when no other thread can poll or wake
    /// the future any more.
    pub fn look(&self) {
        let state = self.0.swap(DONE, acquire(edge::poll::LOOK));
        debug_assert!(state & RUNNING == 0, "no thread may poll without a waker");
    }
}
