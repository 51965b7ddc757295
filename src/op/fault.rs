//! The fault of a variable: the state that an operation must check before it runs. It consists of the variable's
//! failure and the GPU operations that may still use the variable.
//!
//! # Who may touch what
//!
//! * `failure` and `FAILED`: read by operations that hold the variable and changed by those that hold it for writing.
//!   Any thread may [look](Fault::look) at them under a second [`FaultLock`], which each change takes as well.
//!   Lanes of the same GPU hold a variable one after another without waiting for each other's commands to complete.
//!   While such commands are in flight, only those lanes read and change the failure, under the [`FaultLock`]. A thread
//!   that begins a wait and finds the variable idle may also read `FAILED`.
//! * `ALWAYS`: set by the thread that creates the variable.
//! * `OF_RUN`: set by an operation that commutes and has the variable's turn, when it fails. Cleared by the next one on
//!   the variable that does not commute, before it starts or is skipped. So the bit says, to operations that commute,
//!   whether the failure is one of their own run, which they ignore.
//! * `uses` and `ON_DEVICE`: see [`DeviceUses`]. The bit is cleared by an operation that holds the variable for
//!   writing, once all operations recorded in the uses are complete.
//!
//! # Edges
//!
//! This module has no edges of its own. The variable's queue hands over the effects of earlier operations. A lane's
//! [`Timeline`](crate::device::timeline::Timeline) hands over everything that the lane recorded before completing an
//! operation. The [`FaultLock`] hands over the changes made by its previous holders. So an operation that depends on
//! GPU operations checks the timelines first and then the failure.

use crate::{
    device::timeline::DeviceUses,
    sync::{
        Mutex, OnceLock,
        Ordering::Relaxed,
        atomic::AtomicU8,
        cell::UnsafeCell,
        edge::{removed, step},
        lock,
    },
    tracker::Mode,
};

/// `failure` is set.
const FAILED: u8 = 1;
/// Operations on the variable may be in flight on GPUs; `uses` identifies them.
const ON_DEVICE: u8 = 2;
/// The variable publishes its value, so no operation that mutates it may take the fast path.
const ALWAYS: u8 = 4;
/// The failure is that of a run of operations that commute, behind which no other operation has started.
const OF_RUN: u8 = 8;

/// A variable's failure, an `E`, and the last GPU operations on the variable.
#[derive(Debug)]
pub struct Fault<E> {
    bits: AtomicU8,
    failure: UnsafeCell<Option<E>>,
    /// Each GPU lane's last operations on the variable. Created when the first of them is issued.
    uses: OnceLock<Box<DeviceUses>>,
}

// SAFETY: the functions that use `failure` are unsafe and require what the head of this module states. The other fields
// are atomic or set once.
unsafe impl<E: Send + Sync> Sync for Fault<E> {}

impl<E> Default for Fault<E> {
    fn default() -> Self {
        Self { bits: AtomicU8::new(0), failure: UnsafeCell::new(None), uses: OnceLock::new() }
    }
}

impl<E: Clone> Fault<E> {
    /// Whether an operation must check the failure and the uses before it runs.
    #[inline]
    pub fn needs_check(&self) -> bool {
        // Relaxed: an operation that holds the variable reads the exact value. A caller that does not hold it relies on
        // what the queue has handed over.
        self.bits.load(Relaxed) != 0
    }

    /// Has all operations check the variable.
    pub fn always_check(&self) {
        // Relaxed: called before another thread knows the variable.
        self.bits.fetch_or(ALWAYS, Relaxed);
    }

    /// Whether the variable has failed. The answer is exact for a caller that may read the failure.
    #[inline]
    pub fn has_failed(&self) -> bool {
        // Relaxed: an operation that holds the variable reads the exact value. A caller that does not hold it relies on
        // what the queue has handed over.
        self.bits.load(Relaxed) & FAILED != 0
    }

    /// Whether a wait must be pushed although no operation is pending in the queue: the variable has failed or GPUs
    /// have not completed their operations on it. `is_pending` checks the timelines for operations in flight.
    #[inline]
    pub fn needs_wait(&self, is_pending: impl FnOnce() -> bool) -> bool {
        // The timelines are checked first, since a lane records an operation's failure before completing the operation.
        self.needs_check() && (is_pending() || self.has_failed())
    }

    /// Whether the failure is that of the run to which an operation belongs that commutes on the variable and holds it.
    pub fn is_of_run(&self) -> bool {
        // Relaxed: an operation that holds the variable reads the exact value.
        self.bits.load(Relaxed) & OF_RUN != 0
    }

    /// Records that the failure, which was just set, is that of an operation that commutes.
    pub fn note_run(&self) {
        // Relaxed: the bit is handed over with the failure itself.
        self.bits.fetch_or(OF_RUN, Relaxed);
    }

    /// Records that the run whose failure the variable may have is over. Called before an operation starts, or is
    /// skipped, that holds the variable and does not commute there.
    pub fn end_run(&self) {
        if self.is_of_run() {
            // Relaxed: all that do so at the same time clear the bit, and the queue hands it over.
            self.bits.fetch_and(!OF_RUN, Relaxed);
        }
    }

    /// Returns the failure.
    ///
    /// # Safety
    /// 1. The caller holds the variable, and the writes of GPUs to it are complete; or the caller is a lane of a GPU
    ///    that writes to it, and holds the [`FaultLock`].
    pub unsafe fn failure(&self) -> Option<E> {
        if !self.has_failed() {
            return None;
        }
        // SAFETY: (1): no other thread changes the failure during the call.
        self.failure.with(|failure| unsafe { &*failure }.clone())
    }

    /// Returns the failure to any thread: as it is at some moment of the call.
    ///
    /// # Safety
    /// 1. `looks` is the lock that each [`set_failure`](Self::set_failure) of this variable takes.
    pub unsafe fn look(&self, looks: &FaultLock) -> Option<E> {
        // A variable that has not failed costs no lock.
        if !self.has_failed() {
            return None;
        }
        // SAFETY: (1): under the lock, no other thread changes the failure.
        looks.with(|| self.failure.with(|failure| unsafe { &*failure }.clone()))
    }

    /// Sets or clears the failure and returns the previous one. `looks` keeps away the threads that only
    /// [look](Self::look).
    ///
    /// # Safety
    /// 1. The caller holds the variable for writing, and the operations of GPUs on it are complete; or the caller is a
    ///    lane of a GPU whose operations use it, and holds the engine's other [`FaultLock`].
    /// 2. `looks` is the lock that each [`look`](Self::look) at this variable takes.
    pub unsafe fn set_failure(&self, failure: Option<E>, looks: &FaultLock) -> Option<E> {
        if failure.is_none() && !self.has_failed() {
            return None;
        }
        if failure.is_some() {
            // Relaxed: the bit is handed over with the failure itself.
            self.bits.fetch_or(FAILED, Relaxed);
        } else {
            // Relaxed: the bit is handed over with the failure itself.
            self.bits.fetch_and(!(FAILED | OF_RUN), Relaxed);
        }
        // SAFETY: (1): no operation uses the failure during the call. (2): nor does a thread that looks.
        looks.with(|| self.failure.with_mut(|slot| std::mem::replace(unsafe { &mut *slot }, failure)))
    }

    /// Records that `lane`, one of `lanes` GPU lanes, is issuing its operation number `seq`, which accesses the
    /// variable in `mode`.
    pub fn note_on_device(&self, lanes: usize, lane: usize, seq: u64, mode: Mode) {
        let uses = match self.uses.get() {
            Some(uses) => uses,
            None => {
                // The lane of another reader may have created the uses in the meantime.
                let _ = self.uses.set(Box::new(DeviceUses::new(lanes)));
                self.uses.get().expect("the uses have just been set")
            }
        };
        uses.note(lane, seq, mode);
        // Relaxed: the bit is handed over through the queue.
        self.bits.fetch_or(ON_DEVICE, Relaxed);
    }

    /// Returns the number of the last operation on the variable that `lane` has issued and that an access of `mode`
    /// must follow, or 0 if there is none.
    pub fn last_on_device(&self, lane: usize, mode: Mode) -> u64 {
        // Relaxed: an operation that holds the variable reads the exact value. A caller that does not hold it relies on
        // what the queue has handed over.
        if self.bits.load(Relaxed) & ON_DEVICE == 0 {
            return 0;
        }
        self.uses.get().map_or(0, |uses| uses.last(lane, mode))
    }

    /// Records that no GPU operation on the variable is in flight.
    ///
    /// # Safety
    /// 1. The caller holds the variable for writing, and the operations of GPUs on it are complete.
    pub unsafe fn leave_device(&self) {
        // Relaxed: (1); the bit is handed over through the queue.
        self.bits.fetch_and(!ON_DEVICE, Relaxed);
    }
}

/// A lock on the failures of all variables of an engine. There are two. Under the first, GPU lanes read and change
/// failures: several lanes may use the same variable's failure at the same time. The second is between threads that
/// look and those that change failures, and is taken last.
#[derive(Debug, Default)]
pub struct FaultLock(Mutex<()>);

impl FaultLock {
    /// Calls `f` under the lock.
    pub fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = (!removed(step::LANES_TAKE_TURNS)).then(|| lock(&self.0));
        f()
    }
}
