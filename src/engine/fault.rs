//! What an operation must look at before it runs: whether its variable has failed, and what devices still do with it.
//!
//! # Who may touch what
//!
//! * `failure`, and the bit that says that there is one: read by whoever holds the variable, changed by whoever holds it
//!   for writing. While operations on it are on their way through streams, that is left to lanes of one device, which
//!   hold it one after the other without waiting for one another's ends: they take [`FaultLock`].
//! * `marks`, and the bit that says that they matter: as [`Marks`] says; the bit is cleared by an operation that holds
//!   the variable for writing, when all that the marks name is complete.
//!
//! Nothing here has an edge of its own: the queue hands over what its operations did, a lane's
//! [`Timeline`](crate::device::timeline::Timeline) what it noted before it said that they are complete, and a turn what the one
//! before it did. So whoever comes after operations of a device looks at its timelines first, and at the failure then.

use crate::{
    device::timeline::Marks,
    sync::{Mutex, OnceLock, Ordering::Relaxed, atomic::AtomicU8, cell::UnsafeCell, lock},
    testing::weaken::{Step, removed},
};

/// `failure` is set.
const FAILED: u8 = 1;
/// Operations on the variable may be on their way through streams, as `marks` says.
const ON_DEVICE: u8 = 2;

/// Whether a variable has failed, with an `E`, and what devices still do with it.
#[derive(Debug)]
pub struct Fault<E> {
    bits: AtomicU8,
    failure: UnsafeCell<Option<E>>,
    /// What devices have been given to do with the variable, once one was.
    marks: OnceLock<Marks>,
}

// SAFETY: `failure` is used by the rules above, which its functions demand; the rest is atomic or set once.
unsafe impl<E: Send + Sync> Sync for Fault<E> {}

impl<E> Default for Fault<E> {
    fn default() -> Self {
        Self { bits: AtomicU8::new(0), failure: UnsafeCell::new(None), marks: OnceLock::new() }
    }
}

impl<E: Clone> Fault<E> {
    /// Whether an operation has to look any closer.
    #[inline]
    pub fn is_any(&self) -> bool {
        // Relaxed: exact for whoever holds the variable; others go by the queue.
        self.bits.load(Relaxed) != 0
    }

    /// Whether the variable has failed, as far as the caller can know.
    #[inline]
    pub fn has_failed(&self) -> bool {
        // Relaxed: as in `is_any`.
        self.bits.load(Relaxed) & FAILED != 0
    }

    /// Whether the variable has failed, or devices have yet to complete something, as `is_pending` says by their timelines.
    #[inline]
    pub fn is_unsettled(&self, is_pending: impl FnOnce() -> bool) -> bool {
        // In this order: what a lane has noted before it says that an operation is complete, is seen after that.
        self.is_any() && (is_pending() || self.has_failed())
    }

    /// The failure.
    ///
    /// # Safety
    /// 1. The caller holds the variable, and what devices write there is complete; or it is a lane of theirs and has its
    ///    turn.
    pub unsafe fn failure(&self) -> Option<E> {
        if !self.has_failed() {
            return None;
        }
        // SAFETY: (1): nobody writes meanwhile.
        self.failure.with(|failure| unsafe { &*failure }.clone())
    }

    /// Sets or clears the failure; gives the one before.
    ///
    /// # Safety
    /// 1. The caller holds the variable for writing, and what devices do with it is complete; or it is a lane of theirs and
    ///    has its turn.
    pub unsafe fn set_failure(&self, failure: Option<E>) -> Option<E> {
        // Relaxed: handed on with the failure itself.
        if failure.is_some() {
            self.bits.fetch_or(FAILED, Relaxed);
        } else {
            // Relaxed: as above.
            self.bits.fetch_and(!FAILED, Relaxed);
        }
        // SAFETY: (1).
        self.failure.with_mut(|slot| std::mem::replace(unsafe { &mut *slot }, failure))
    }

    /// Notes that lane `lane`, of `lanes` for devices, issues its operation `seq`, which holds the variable.
    pub fn note_on_device(&self, lanes: usize, lane: usize, seq: u64, writes: bool) {
        let marks = match self.marks.get() {
            Some(marks) => marks,
            None => {
                // Another reader's lane may be first.
                let _ = self.marks.set(Marks::new(lanes));
                self.marks.get().expect("they have just been set")
            }
        };
        marks.note(lane, seq, writes);
        // Relaxed: handed on through the queue.
        self.bits.fetch_or(ON_DEVICE, Relaxed);
    }

    /// The last operation that lane `lane` has issued on the variable; of its writers only if `for_reading`. 0 if there is
    /// none.
    pub fn last_on_device(&self, lane: usize, for_reading: bool) -> u64 {
        // Relaxed: as in `is_any`.
        if self.bits.load(Relaxed) & ON_DEVICE == 0 {
            return 0;
        }
        self.marks.get().map_or(0, |marks| marks.last(lane, for_reading))
    }

    /// Notes that no device has anything left to do with the variable.
    ///
    /// # Safety
    /// 1. The caller holds the variable for writing, and that is so.
    pub unsafe fn leave_device(&self) {
        // Relaxed: (1), handed on through the queue.
        self.bits.fetch_and(!ON_DEVICE, Relaxed);
    }
}

/// The turns that lanes of devices take where several may read and change the failures of the same variables.
#[derive(Debug, Default)]
pub struct FaultLock(Mutex<()>);

impl FaultLock {
    /// Runs `f` while nobody else does.
    pub fn take<R>(&self, f: impl FnOnce() -> R) -> R {
        let _turn = (!removed(Step::LanesTakeTurns)).then(|| lock(&self.0));
        f()
    }
}
