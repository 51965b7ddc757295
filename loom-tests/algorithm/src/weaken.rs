//! The steps and rules of the tracker that a model can do without, to show that it then fails.

/// A rule of the tracker, or a step of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// `insert` helps the operation at the tail before it appends behind it.
    Help,
    /// A helper that finds another half-pushed operation in its way helps that one first.
    HelpInDepth,
    /// `insert` reads `registered` again after it has read the tail and its word.
    Reread,
    /// A helper counts an access only when the tail has reached it.
    RegisterAfterSwing,
    /// The pusher counts its accesses only when all of them are in.
    RegisterWhenAllAreIn,
    /// A thread that finds an access behind the tail moves the tail, instead of waiting for the thread that linked it.
    SwingForOthers,
    /// A helper that finds the access at the tail counts it, instead of waiting for the pusher.
    CountWhatIsIn,
    /// The tail never moves back: it is moved by a CAS.
    SwingByCas,
    /// A thread that moves the tail for another one leaves that one the flags that were grantable.
    Defer,
    /// A thread that moves the tail for another one leaves the flags that were grantable when the access was linked, not
    /// those that are grantable now.
    DeferWhatWasLinked,
    /// The pusher adopts the flags that helpers have deferred.
    Adopt,
    /// Only the pusher, or a completion, sets flags. A helper defers them.
    HelpersOnlyDefer,
    /// `WRITE_OK` alone grants nothing to a writer behind: `DONE` must come too.
    GrantWhenDone,
    /// A reader passes `READ_OK` on to the next reader before it is done.
    ReadersPassOn,
    /// A push over several variables counts as one in `wait` until it is over.
    PushCountsItself,
    /// A completion moves the tail past an access before it retires that.
    TailPastRetired,
    /// A completion that walks down a queue moves the tail past an access before it retires that, not afterwards.
    PassBeforeRetire,
    /// A completion moves the tail past its own access before it sets flags behind it, not afterwards.
    PassBeforeHandOn,
    /// A completion satisfies an operation only when the access behind it has its flags.
    PutOffSatisfy,
    /// A push is pinned.
    PinPushes,
    /// A retired record is reclaimed after the epoch.
    ReclaimAfterEpoch,
    /// A record is retired with its last share only.
    CountShares,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 22] = [
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
        Self::PushCountsItself,
        Self::TailPastRetired,
        Self::PassBeforeRetire,
        Self::PassBeforeHandOn,
        Self::PutOffSatisfy,
        Self::PinPushes,
        Self::ReclaimAfterEpoch,
        Self::CountShares,
    ];
}
