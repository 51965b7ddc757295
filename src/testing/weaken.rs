//! Switches that remove one protocol step, so that a model can show that the step is necessary.
//!
//! A twin runs a model of `loom-tests` with one [`Step`] removed, and must fail. The switch is per OS thread. loom and
//! shuttle run all threads of a model on one OS thread, so tests do not affect each other. Outside models, [`removed`]
//! is `false` at compile time.

/// A protocol step that a twin may remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(any(raddle_loom, raddle_shuttle)), allow(dead_code))]
pub enum Step {
    /// `tracker::insert` appends an access behind another operation only once that operation is in all its queues.
    HelpBeforeAppend,
    /// `tracker::insert` reads `unregistered` again after it has read the tail and the word of the access there.
    RereadRegistered,
    /// A completion moves the tail past an access before the access is retired.
    TailPastRetired,
    /// A completion releases the operation's writes to its successors.
    CompletionReleases,
    /// A completion that grants `READ_OK` to a reader also grants it to the next reader.
    ReadersPassOn,
    /// A retired record is reclaimed only after the epoch has passed.
    ReclaimAfterEpoch,
    /// The record in which a list of retired records is begun is free (`records::put_on_next`).
    ListsAreFree,
    /// `Worker::search` searches once more after it has announced itself.
    SearchAgainBeforePark,
    /// `Sleep::notify` executes a fence after its caller has made work visible, and before it loads `searchers` and
    /// `sleepers`.
    NotifyFence,
    /// A GPU lane releases what it knows about its complete operations along with the number of the last of them
    /// (`Timeline::complete`).
    CompletionOfMarks,
    /// GPU lanes take turns reading and changing the failures of variables (`FaultLock`).
    LanesTakeTurns,
    /// Work issued on an included stream comes after work issued earlier on the lane's stream.
    IncludedComesAfter,
    /// Work issued on the lane's stream comes after work issued earlier on an included one.
    IncludedComesBefore,
    /// An operation enters a lane of several workers only once (asserted in `Lane::inject`).
    EntersOnce,
    /// A timed park ends without a wake-up.
    TimedParkEnds,
    /// `Sleep::retract` clears the bit that marks the worker's park as timed.
    RetractTimedPark,
    /// A dropped `Completion` completes its operation.
    DropCompletes,
    /// A `Completion` that has no gate and is dropped without a panic completes its operation immediately, even inside
    /// the operation's own function (`frame::leave_lost`).
    DropEndsAtOnce,
    /// A CPU operation waits for no device once it has entered its lane (`Core::schedule_beside_gpus`).
    EndWaitingForDevices,
    /// Operations that became ready are scheduled before the program is notified (`Core::defer_epilogue`,
    /// `workers::execute_otherwise`).
    ScheduleThenNotify,
    /// The thread of a GPU lane wakes futures itself once the engine is closed (`Core::wake`).
    WakeHereOnceClosed,
    /// A shutdown closes the engine when nothing is pending, and waits again (`Core::drain`).
    CloseAndWaitAgain,
    /// A spare thread that has timed out checks whether it has meanwhile been offered a worker.
    SparesCheckAgain,
    /// The background end of an engine checks again once the operations that were pending have been counted out
    /// (`PendingOps::poll_idle`).
    EndChecksAgain,
    /// A worker records that it is no longer idle before it looks for work again (`Sleep::note_busy`).
    NoteBusy,
    /// When the last operation of a closed generation leaves, the threads and futures whose waits are over are notified
    /// (`PendingOps::finish`).
    LeaveNotifies,
    /// A thread is pinned during a walk (`tracker::walk_blocked`).
    WalkPins,
    /// A function that waits while the engine stops takes the workers that are aside, so that they run again
    /// (`Aside::function_waits`).
    WaitsTakeUp,
    /// A function that borrows a place executes a fence before it looks for an idle worker (`Loans::borrow`).
    BorrowFence,
    /// The return of a lent place wakes the workers that stay idle for it (`Loans::give_back`).
    GiveBackNotifies,
    /// The end of a scope waits again if operations have entered meanwhile (`PendingOps::wait_until_idle`).
    IdleWaitsAgain,
    /// `Access::stands_for_the_next` checks whether an access is behind the wait that would be joined.
    JoinOnlyTheLast,
    /// `Access::stands_for_the_next` checks whether the wait that would be joined is in its queue.
    JoinWhatIsIn,
    /// `PollState::pause` sees the wakes that occurred during the poll.
    PauseSeesWakes,
    /// `PollState::wake` queues no poll while one is under way.
    OnePollAtATime,
    /// `Claim::cancel` does not cancel an operation that has started.
    ClaimOnce,
    /// The turn of a cancelled operation and the end of its scope agree on which of them counts it out
    /// (`Claim::settle`).
    SettleOnce,
    /// A waiter takes an operation only from an entry that no worker has popped (`OpRef::take`).
    TakeQueued,
    /// No waiter takes an operation from an entry while a worker inspects the operation (`OpRef::look_at_entry`).
    LookPops,
    /// A waiter is pinned from before it claims an operation until it has taken that operation (`OpRef::take`).
    PinBeforeTake,
    /// A parent's work holds a share of the family until the children have entered their queues (`FamilyCount::new`).
    WorkHasAShare,
    /// Children are released only when every part of their parent's work has ended (`FamilyCount::end_part`).
    EveryPartCounts,
    /// No child is pushed once its parent's work has ended (`FamilyCount::admit`).
    AdmitWhileWorking,
    /// A thread or future that waits for room watches the count before it counts again (`PendingOps::watch`).
    WatchForRoom,
    /// A wait for room that ends lets the next one check (`PendingOps::end_room`).
    PassRoomOn,
    /// A scope counts out a cancelled operation only once its function has been dropped (`Cancellable::abandon`).
    DropBeforeEnd,
    /// The pointer through which a waiter finds a queued operation hands over the operation (`Place::publish`).
    PublishReleases,
    /// The thread that drops an operation's last guard sees what the others have done (`Share::drop`).
    LastShareAcquires,
    /// An operation is counted in the groups around its own (`Group::enter`).
    CountInEveryGroup,
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

    /// Removes `step` from every model run on this OS thread from now on; `None` restores all steps.
    pub fn remove(step: Option<Step>) {
        REMOVED.set(step);
    }
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub use switch::remove;
#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) use switch::removed;
