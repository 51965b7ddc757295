//! Switches that take one step out of a protocol, so that a model can show that the step is needed.
//!
//! A twin runs a model of `loom-tests` with one [`Step`] removed and must fail. The switch is
//! per OS thread, and loom runs all threads of a model on one, so tests do not see each other's. Outside the models
//! [`removed`] is `false` at compile time.

/// A protocol step that a twin may remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(any(raddle_loom, raddle_shuttle)), allow(dead_code))]
pub enum Step {
    /// `tracker::insert` helps the operation at the tail onto all its variables before it appends behind it.
    HelpBeforeAppend,
    /// `tracker::insert` reads `registered` again after it has read the tail and its word.
    RereadRegistered,
    /// A completion moves the tail past an access before it is retired.
    TailPastRetired,
    /// A completion carries the operation's writes to its successors (release).
    CompletionReleases,
    /// A completion hands a reader's own right to read on to the next reader.
    ReadersPassOn,
    /// A retired record is reclaimed after the epoch, not at once.
    ReclaimAfterEpoch,
    /// `Worker::search` looks for work once more after it has announced itself.
    LookAgainBeforePark,
    /// `Sleep::notify` orders the push before the look at the sleepers by a fence.
    NotifyFence,
    /// A lane of a device releases what it knows of its complete operations with their number.
    CompletionOfMarks,
    /// Lanes of devices take turns at the failures of their variables.
    LanesTakeTurns,
    /// What is issued on an included stream comes after what was issued on the lane's.
    IncludedComesAfter,
    /// What is issued on the lane's stream comes after what was issued on an included one.
    IncludedComesBefore,
    /// An operation enters a lane of several workers once (asserted in `Lane::inject`).
    EntersOnce,
    /// A nap ends by itself.
    NapEnds,
    /// `Sleep::retract` says that the worker does not nap any more.
    RetractNap,
    /// A dropped `Completion` completes its operation.
    DropCompletes,
    /// It does so at once, also inside the operation's own function (`frame::leave_lost`).
    DropEndsAtOnce,
    /// An operation of the CPU waits for devices no more once it has come to its lane (`Core::schedule_beside_devices`).
    EndWaitingForDevices,
    /// What became ready is placed before the program is told (`Core::defer_epilogue`, `threads::run`).
    PlaceBeforeTelling,
    /// The thread of a device's lane wakes futures itself once the engine is closed (`Core::wake`).
    WakeHereOnceClosed,
    /// A shutdown closes the engine when nothing is pending, and waits again (`Core::drain`).
    CloseAndWaitAgain,
    /// A spare thread whose time is up looks whether it has been offered a worker meanwhile.
    SparesLookAgain,
    /// Whoever ends an engine in the background looks again when what was pending is over.
    EndLooksAgain,
    /// `PendingOps::leave` tells those who wait for the count.
    LeaveNotifies,
    /// `Access::stands_for_the_next` looks whether something stands behind the wait that is to be joined.
    JoinOnlyTheLast,
    /// `Access::stands_for_the_next` looks whether that wait is in its queue.
    JoinWhatIsIn,
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
#[inline(always)]
pub(crate) const fn removed(_step: Step) -> bool {
    false
}

#[cfg(any(raddle_loom, raddle_shuttle))]
mod switch {
    use super::Step;
    use std::cell::Cell;

    std::thread_local!(static REMOVED: Cell<Option<Step>> = const { Cell::new(None) });

    pub(crate) fn removed(step: Step) -> bool {
        REMOVED.get() == Some(step)
    }

    /// Removes `step` from every model that runs on this OS thread from now on; `None` restores all.
    pub fn remove(step: Option<Step>) {
        REMOVED.set(step);
    }
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub use switch::remove;
#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) use switch::removed;
