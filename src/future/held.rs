//! Shares of the right to end an operation. While shares exist, the operation holds its variables, for guards or for a
//! future.
//!
//! # States
//!
//! 1. *Held*: shares exist, each in a guard, with guards that have not been taken, or with the operation's future.
//! 2. *Ended*: the last share was dropped, and the operation is complete. If a share is leaked, the operation never
//!    ends, and its variables remain held forever.
//!
//! The [`Ending`] recorded before the last share is dropped determines how the operation ends:
//!
//! | recorded | outcome |
//! |---|---|
//! | nothing: the guards were not taken | the variables are unchanged |
//! | the guards were taken | the mutations are counted; or, if a panic dropped a guard, the mutated variables fail |
//! | the future has ended | its result applies; if it succeeded but a panic dropped a guard, the mutated variables fail |
//!
//! # Who may touch what
//!
//! * `right`: read by the owners of shares; taken by the thread that drops the last one. A [`HeldRef`] reads it only
//!   through a share that it takes while there are others.
//! * `ending`: under its lock.
//! * In a forked child, no thread may touch anything, since the operation belongs to the parent process.
//!
//! # Edges
//!
//! [`guards`](crate::sync::edge::guards).

use std::{fmt, mem::ManuallyDrop, sync::Arc, thread};

use crate::{
    engine::{core::Core, keeps_open::KeepsOpen, run_async},
    error::op::{Cause, OpError},
    notify::stop_signal::Signals,
    op::{
        frame,
        kin::Kin,
        limits::Limits,
        task::{Beside, Task},
    },
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicBool, AtomicU64},
        cell::UnsafeCell,
        edge::{self, acquire_all, release},
        lock,
    },
    tracker::{Op, OpRef},
};

/// How an operation that holds its variables ends.
enum Ending {
    /// The guards were not taken.
    Unused,
    /// The guards were taken. The engine stays open until the operation has ended.
    Taken(KeepsOpen<false>),
    /// The future has ended.
    Future(Result<(), OpError>),
}

/// An operation that holds its variables.
struct HeldOp {
    right: UnsafeCell<ManuallyDrop<OpRef<Task>>>,
    core: Arc<Core>,
    /// The number of shares. The counter has 64 bits on every platform, so it cannot wrap even if guards are leaked.
    shares: AtomicU64,
    /// Whether a panic dropped a guard.
    panicked: AtomicBool,
    ending: Mutex<Ending>,
}

// SAFETY: the right is read by the owners of shares, and taken by the thread that drops the last one. The other fields
// are `Sync`.
unsafe impl Sync for HeldOp {}

impl HeldOp {
    /// Ends the operation.
    ///
    /// # Safety
    /// 1. No share is left, this thread has acquired the effects of all owners of shares, and this function is called
    ///    only once.
    #[cold]
    unsafe fn end(&self) {
        // SAFETY: (1) makes this thread the only user of the field.
        let right = self.right.with_mut(|right| unsafe { &mut *right });
        // SAFETY: the field is taken only once (1).
        let right = unsafe { ManuallyDrop::take(right) };
        let ending = std::mem::replace(&mut *lock(&self.ending), Ending::Unused);
        let panicked = |right: &OpRef<Task>| {
            // Relaxed: this thread has acquired the store (1).
            let panicked = self.panicked.load(Relaxed) && right.accesses().any(|a| a.mode().is_write());
            let cause = || Cause::Panic(Some("a guard was dropped by a panic".to_owned()));
            if panicked { Err(right.task().failed_by(cause())) } else { Ok(()) }
        };
        match ending {
            Ending::Unused => run_async::release(&self.core, right),
            Ending::Taken(keeps_open) => {
                let result = panicked(&right);
                run_async::resolve_with(&self.core, right, result);
                drop(keeps_open);
            }
            Ending::Future(result) => {
                let result = result.and_then(|()| panicked(&right));
                run_async::resolve_with(&self.core, right, result);
            }
        }
    }
}

/// A share of the right to end an operation. The operation ends when its last share is dropped.
pub struct Share {
    held: Arc<HeldOp>,
    /// Whether the thread was already panicking when this share was created; such a panic is unrelated to the
    /// operation.
    panicking: bool,
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").field("operation", self.op().task().name()).finish_non_exhaustive()
    }
}

impl Share {
    /// Creates the first share.
    pub(crate) fn new(right: OpRef<Task>, core: &Arc<Core>) -> Self {
        let held = HeldOp {
            right: UnsafeCell::new(ManuallyDrop::new(right)),
            core: Arc::clone(core),
            shares: AtomicU64::new(1),
            panicked: AtomicBool::new(false),
            ending: Mutex::new(Ending::Unused),
        };
        Self { held: Arc::new(held), panicking: thread::panicking() }
    }

    /// Creates another share.
    pub(crate) fn another(&self) -> Self {
        // Relaxed: this share keeps the count above zero.
        self.held.shares.fetch_add(1, Relaxed);
        Self { held: Arc::clone(&self.held), panicking: thread::panicking() }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.held.core
    }

    fn right(&self) -> &OpRef<Task> {
        // SAFETY: the right is taken only when no share is left.
        self.held.right.with(|right| unsafe { &*right })
    }

    /// Returns the operation.
    pub(crate) fn op(&self) -> &Op<Task> {
        self.right()
    }

    /// Returns the operation's limits, if it has any.
    pub(crate) fn limits(&self) -> Option<&Limits> {
        self.op().task().limits()
    }

    /// Returns the state beside the operation's result, if it has a handle.
    pub(crate) fn beside(&self) -> Option<&Beside> {
        // SAFETY: (1): this is a share of the right to end the operation.
        unsafe { self.op().beside() }
    }

    /// Returns the family of the operation, if it has children.
    pub(crate) fn parent_of(&self) -> Option<&Arc<dyn Kin>> {
        self.limits()?.parent_of()
    }

    /// Records that the guards, which keep the engine open from now on, were taken.
    pub(crate) fn take(&self, keeps_open: KeepsOpen<false>) {
        *lock(&self.held.ending) = Ending::Taken(keeps_open);
    }

    /// Records how the operation's future ended, and drops the future's share.
    pub(crate) fn end(self, result: Result<(), OpError>) {
        *lock(&self.held.ending) = Ending::Future(result);
    }
}

/// A reference to an operation that does not keep it from ending.
#[derive(Clone)]
pub(crate) struct HeldRef(Arc<HeldOp>);

impl HeldRef {
    pub(crate) fn new(share: &Share) -> Self {
        Self(Arc::clone(&share.held))
    }

    /// Returns another share, unless none is left.
    fn share(&self) -> Option<Share> {
        // Relaxed: as in `another`, a share that exists is all that is needed: the right was there before this
        // reference was.
        self.0.shares.fetch_update(Relaxed, Relaxed, |shares| (shares > 0).then(|| shares + 1)).ok()?;
        Some(Share { held: Arc::clone(&self.0), panicking: thread::panicking() })
    }

    /// Returns the signals by which the operation is asked to stop: none if it has ended.
    pub(crate) fn stop_signals(&self) -> Signals {
        if self.0.core.is_forked() {
            return Signals::default();
        }
        self.share().map_or_else(Signals::default, |share| {
            let group = share.limits().and_then(Limits::group);
            frame::stop_signals(share.core(), share.op(), share.beside(), group.map(|group| &**group))
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.held.core.is_forked() {
            return;
        }
        if !self.panicking && thread::panicking() {
            // Relaxed: the decrement of `shares` below publishes this store.
            self.held.panicked.store(true, Relaxed);
        }
        if self.held.shares.fetch_sub(1, release(edge::guards::DROPPED)) == 1 {
            acquire_all(edge::guards::LAST, &self.held.shares);
            // SAFETY: (1): this was the last share.
            unsafe { self.held.end() };
        }
    }
}
