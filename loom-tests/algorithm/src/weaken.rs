//! The steps and rules of the tracker that can be removed from a model to show that the model then fails.

/// A rule or a step of the tracker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// `insert` helps a half-pushed operation at the tail before appending behind it.
    Help,
    /// A helper that finds another half-pushed operation in its way helps that operation first.
    HelpInDepth,
    /// `insert` rereads `registered` after reading the tail and the word of the access there.
    Reread,
    /// A helper counts an access only when the tail has reached it.
    RegisterAfterSwing,
    /// The pusher counts its accesses only once all of them are in their queues.
    RegisterWhenAllAreIn,
    /// A thread that finds an access linked behind the tail moves the tail instead of waiting for the linking thread to
    /// do so.
    SwingForOthers,
    /// A helper that finds the access to insert already at the tail counts it instead of waiting for the pusher to do
    /// so.
    CountWhatIsIn,
    /// The tail never moves back: it is moved by a CAS.
    SwingByCas,
    /// A thread that moves the tail for another thread first defers the flags grantable to the access that the tail
    /// then points to.
    Defer,
    /// A thread that moves the tail for another thread defers the flags that were grantable when the access was linked,
    /// not those grantable now.
    DeferWhatWasLinked,
    /// The pusher adopts the flags deferred by helpers.
    Adopt,
    /// Only the pusher or a completion sets flags; a helper defers them.
    HelpersOnlyDefer,
    /// `WRITE_OK` alone grants nothing to the next access: `DONE` must be set too.
    GrantWhenDone,
    /// A reader that is not done yet passes `READ_OK` on to the next reader.
    ReadersPassOn,
    /// `READ_OK` is not passed on between accesses that commute and those that do not.
    RunsEnd,
    /// A push over several variables adds one to `wait` until it is over.
    PushCountsItself,
    /// A completion moves the tail past each access that it retires.
    TailPastRetired,
    /// A completion that walks down a queue moves the tail past an access before retiring it, not afterwards.
    PassBeforeRetire,
    /// A completion moves the tail past its own access before setting flags behind it, not afterwards.
    PassBeforeHandOn,
    /// A completion satisfies an operation only after the next access has received its flags.
    PutOffSatisfy,
    /// A push pins its thread.
    PinPushes,
    /// A retired record is reclaimed only after the epoch has passed.
    ReclaimAfterEpoch,
    /// The unlinking thread moves the tail past each access that it unlinks.
    TailPastUnlinked,
    /// Nothing is unlinked behind a spent access.
    StopAtSpent,
    /// The CAS that unlinks an access fails if flags of the access before it have changed.
    CompareFlags,
    /// Only accesses that are done are unlinked.
    UnlinkWhenDone,
    /// Nothing is unlinked behind an access that is not done: a completion may be on its way from there.
    UnlinkBehindDone,
    /// The thread that unlinks is pinned.
    PinUnlinking,
    /// A record is retired only when its last share ends.
    CountShares,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 29] = [
        Self::Help,
        Self::HelpInDepth,
        Self::Reread,
        Self::RegisterAfterSwing,
        Self::RegisterWhenAllAreIn,
        Self::SwingForOthers,
        Self::CountWhatIsIn,
        Self::SwingByCas,
        Self::Defer,
        Self::DeferWhatWasLinked,
        Self::Adopt,
        Self::HelpersOnlyDefer,
        Self::GrantWhenDone,
        Self::ReadersPassOn,
        Self::RunsEnd,
        Self::PushCountsItself,
        Self::TailPastRetired,
        Self::PassBeforeRetire,
        Self::PassBeforeHandOn,
        Self::PutOffSatisfy,
        Self::PinPushes,
        Self::ReclaimAfterEpoch,
        Self::TailPastUnlinked,
        Self::StopAtSpent,
        Self::CompareFlags,
        Self::UnlinkWhenDone,
        Self::UnlinkBehindDone,
        Self::PinUnlinking,
        Self::CountShares,
    ];
}
