//! The names of the actions, one for each atomic access that the model covers. Each doc comment gives the function that
//! makes the access and, if the access is one side of an edge listed in `src/tracker/mod.rs`, that edge.

/// An atomic access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Edge `swing`: `push` pins the thread, and `insert` loads the tail for the first time.
    Pin,
    /// Edge `swing`: `insert` loads the tail, except for the first time in a push.
    LoadTail,
    /// Edges `link` and `complete`: `insert` loads the word of the access at the tail.
    LoadWord,
    /// `swing` defers flags of the access linked behind the tail.
    DeferForAnother,
    /// Edge `swing`: the CAS of the tail in `swing`.
    SwingForAnother,
    /// Edge `register`: `insert` loads `registered` of the operation at the tail.
    LoadTheirRegistered,
    /// Edge `register`: `insert` loads `registered` of the operation whose access is inserted.
    RereadRegistered,
    /// `insert` loads the deferred flags of the access at the tail.
    LoadDeferred,
    /// `insert` stores the word of the first access, which no other thread can see yet.
    StoreWord,
    /// Edge `link`: the CAS in `insert`.
    Link,
    /// `insert` sets the flags of an access linked by its pusher.
    Grant,
    /// `insert` defers the flags of an access linked by a helper.
    Defer,
    /// Edge `swing`: the CAS of the tail in `insert`.
    Swing,
    /// `register` loads `registered`.
    LoadRegistered,
    /// Edge `register`: the CAS in `register`.
    Register,
    /// `help` loads `registered`, to find the next access.
    HelpNext,
    /// Edge `register`: the store or swap in `end_registration`.
    EndRegistration,
    /// `adopt_deferred` loads the deferred flags.
    LoadAdopted,
    /// `adopt_deferred` sets the deferred flags.
    Adopt,
    /// Edge `ready`: the pusher subtracts its part from `wait`.
    Decrement,
    /// `push` unpins the thread and returns.
    Unpin,
    /// Edge `retire`: `leave_to_access` loads `live`. The operation's function runs until this step.
    LoadLive,
    /// `leave_to_access` records that the access holds the only share of the record.
    LeaveToAccess,
    /// Edges `complete` and `link`: `complete_access` sets `DONE`. If the operation has several accesses, its function
    /// runs until the first of these steps.
    Done,
    /// Edge `register`: `advance_tail` loads `registered` of the next operation.
    LoadNextRegistered,
    /// `advance_tail` defers the flags of the next access.
    DeferForNext,
    /// Edge `swing`: the CAS of the tail in `advance_tail`.
    Pass,
    /// `complete_unlinking` pins the thread, and `unlink_behind` loads the word of the first access.
    BeginUnlinking,
    /// Edge `link`: `unlink_behind` loads the word of `at`, except for the first time.
    LoadAt,
    /// Edge `complete`: `unlink_behind` loads the word of the access behind `at`.
    LoadBehind,
    /// Edge `link`: the CAS in `unlink_behind`.
    Unlink,
    /// Edges `complete` and `link`: `propagate` sets flags of the next access.
    Propagate,
    /// Edge `ready`: `satisfy` loads `wait`.
    LoadWait,
    /// Edge `ready`: `satisfy` subtracts an access from `wait`.
    Satisfy,
    /// `share` loads whether the access holds the only share of the record.
    LoadLastShare,
    /// Edge `retire`: `end_shares` loads `live`.
    LoadShares,
    /// Edge `retire`: `end_shares` subtracts shares from `live`.
    EndShares,
    /// The record is retired.
    Retire,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 38] = [
        Self::Pin,
        Self::LoadTail,
        Self::LoadWord,
        Self::DeferForAnother,
        Self::SwingForAnother,
        Self::LoadTheirRegistered,
        Self::RereadRegistered,
        Self::LoadDeferred,
        Self::StoreWord,
        Self::Link,
        Self::Grant,
        Self::Defer,
        Self::Swing,
        Self::LoadRegistered,
        Self::Register,
        Self::HelpNext,
        Self::EndRegistration,
        Self::LoadAdopted,
        Self::Adopt,
        Self::Decrement,
        Self::Unpin,
        Self::LoadLive,
        Self::LeaveToAccess,
        Self::Done,
        Self::LoadNextRegistered,
        Self::DeferForNext,
        Self::Pass,
        Self::BeginUnlinking,
        Self::LoadAt,
        Self::LoadBehind,
        Self::Unlink,
        Self::Propagate,
        Self::LoadWait,
        Self::Satisfy,
        Self::LoadLastShare,
        Self::LoadShares,
        Self::EndShares,
        Self::Retire,
    ];
}
