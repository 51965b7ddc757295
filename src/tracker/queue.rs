//! One variable's queue of accesses.

use std::{mem::MaybeUninit, ptr::NonNull};

use super::{
    access::{Access, Mode},
    front::Front,
};
use crate::{
    memory::epoch::{self, Atomic, Shared, Stamp},
    sync::{
        Ordering::Relaxed,
        atomic::AtomicUsize,
        cell::UnsafeCell,
        edge::{self, acquire},
        hint,
    },
};

/// The tag of the owner of a closed variable.
const CLOSED: usize = 1;

/// One variable's queue of accesses, in push order. Must not move once [`init`](Self::init) has been called.
#[repr(C)]
pub struct VarQueue<T> {
    /// The last access, or an earlier one while a thread is appending. Never null.
    pub(super) tail: Atomic<Access<T>>,
    /// Where completed readers are unlinked.
    pub(super) front: Front<Access<T>>,
    /// The variable's id, which orders the accesses of an operation.
    id: u64,
    /// Identifies the variable's creator; tagged [`CLOSED`] before the variable's deletion is pushed.
    owner: AtomicUsize,
    pub(super) stamp: Stamp,
    /// The variable's initial access.
    first: UnsafeCell<MaybeUninit<Access<T>>>,
}

impl<T> std::fmt::Debug for VarQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VarQueue").field("id", &self.id).field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl<T> VarQueue<T> {
    /// Creates a queue without an owner, for models.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub fn new(id: u64) -> Self {
        Self::with_owner(id, 0)
    }

    /// Creates a queue that must be [initialised](Self::init) at its final address. Variables used together in an
    /// operation must have distinct ids. `owner`, an even number, identifies the variable's creator; it is kept here
    /// because a push reads this cache line anyway.
    pub fn with_owner(id: u64, owner: usize) -> Self {
        debug_assert!(owner & CLOSED == 0);
        let first = UnsafeCell::new(MaybeUninit::uninit());
        let (tail, front, owner) = (Atomic::null(), Front::new(), AtomicUsize::new(owner));
        Self { tail, front, id, owner, stamp: Stamp::new(), first }
    }

    /// Inserts the variable's initial access.
    ///
    /// # Safety
    /// 1. `this` is valid, and does not move until it is dropped.
    /// 2. No other thread uses it yet.
    pub unsafe fn init(this: NonNull<Self>) {
        // SAFETY: by (1) the queue is valid, and by (2) no other thread writes it.
        let queue = unsafe { this.as_ref() };
        queue.first.with_mut(|first| {
            // SAFETY: by (2) this thread is the only user of the cell.
            let first = unsafe { &mut *first };
            let first = first.write(Access::built_in(this));
            // Relaxed: by (2) no other thread uses it yet; the caller publishes the variable.
            queue.tail.store(Shared::from(std::ptr::from_ref(&*first)), Relaxed);
        });
    }

    /// Returns the variable's id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the `owner` passed when the queue was created.
    pub fn owner(&self) -> usize {
        // Relaxed: only the tag changes.
        self.owner.load(Relaxed) & !CLOSED
    }

    /// Returns whether the variable has this owner and is not closed.
    #[inline]
    pub fn is_open_to(&self, owner: usize) -> bool {
        // Relaxed: as in `is_closed`.
        self.owner.load(Relaxed) == owner
    }

    /// Closes the variable to all operations except deletions and the engine's waits for them. Returns `false` if it
    /// was already closed.
    pub fn close(&self) -> bool {
        // Relaxed: the deletion, which is pushed afterwards, hands the tag over (edge `link`).
        self.owner.fetch_or(CLOSED, Relaxed) & CLOSED == 0
    }

    /// Returns whether the variable is closed.
    #[inline]
    pub fn is_closed(&self) -> bool {
        // Relaxed: a thread that inserts behind the deletion has acquired the tail, which was moved after the tag was
        // set. Others only refuse early.
        self.owner.load(Relaxed) & CLOSED != 0
    }

    /// Prefetches the access at the tail, which the next push will write.
    ///
    /// The line is prefetched for reading, since an AMD EPYC 7003 waits at `prefetchw` for a line from another core,
    /// but not at `prefetcht0`. With `prefetchw`, pushes of independent operations took 10 to 14 % longer.
    #[inline]
    pub fn prefetch(&self) {
        // Relaxed: only the address is used.
        hint::prefetch(self.tail.load(Relaxed, epoch::unprotected()).as_raw());
    }

    /// Returns whether an access of `mode` would be satisfied if it were pushed now: a read if no mutation is pending
    /// on the variable, any other mode if no operation is pending on it at all. May also return `false` while a push on
    /// the variable is not over. If this returns `true`, the effects of completed operations on the variable are
    /// visible to the caller.
    pub fn is_idle(&self, mode: Mode) -> bool {
        let guard = epoch::pin();
        self.stamp.check();
        let tail = self.tail.load(acquire(edge::swing::IDLE), &guard);
        // SAFETY: the tail is never null, and the access there is not reclaimed while this thread is pinned.
        let tail = unsafe { tail.deref() };
        tail.check();
        tail.leaves_idle(mode)
    }

    /// Checks, in models, that the accesses of the last operation may be used, as they are by a dump that finds it.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub fn look_at_last(&self) {
        let guard = epoch::pin();
        let tail = self.tail.load(acquire(edge::swing::IDLE), &guard);
        // SAFETY: the tail is never null, and the access there is not reclaimed while this thread is pinned.
        let tail = unsafe { tail.deref() };
        tail.check();
        tail.op().into_iter().for_each(|op| op.each_access(Access::check));
    }

    /// Retires the last access, and runs `free` once no thread can still have a pointer to the queue.
    ///
    /// # Safety
    /// 1. The last operation pushed on the variable is done, as the caller knows from having completed it or from
    ///    [`is_idle`](Self::is_idle), and no more will be pushed.
    /// 2. This is called once, and `this` is valid until `free` runs.
    /// 3. `free` may run on any thread, later, or before this returns.
    pub unsafe fn dispose(this: NonNull<Self>, free: impl FnOnce() + 'static) {
        let guard = epoch::pin();
        // `this` is not a reference, which would have to stay valid until the call returns.
        // SAFETY: by (2) it is valid until `free` runs, which cannot happen while this thread is pinned.
        let queue = unsafe { this.as_ref() };
        // Relaxed: by (1) the tail was moved to the last access before this call, and the caller has already acquired
        // that access.
        let tail = queue.tail.load(Relaxed, &guard);
        // SAFETY: by (1) and (2) the access still has its share.
        let last = unsafe { tail.deref() };
        last.check();
        // SAFETY: by (1) no access will be linked behind it, and by (2) this happens once.
        unsafe { last.share().end() };
        let free = queue.stamp.killed_by(free);
        // SAFETY: (3) allows any thread; by (1) only threads pinned now can still have a pointer to the queue.
        unsafe { guard.retire(free) };
    }
}

// SAFETY: `tail` and `first` lead to records, which threads share according to the tracker's rules; the records' tasks
// are `Send`.
unsafe impl<T: Send> Send for VarQueue<T> {}
// SAFETY: the shared fields are atomic, and the cell is written once, before the queue is shared.
unsafe impl<T: Send> Sync for VarQueue<T> {}
