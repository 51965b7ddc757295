//! One variable's queue of accesses.

use std::{mem::MaybeUninit, ptr::NonNull};

use super::access::Access;
use crate::{
    memory::epoch::{self, Atomic, Shared, Stamp},
    sync::{
        Ordering::{Acquire, Relaxed},
        atomic::AtomicBool,
        cell::UnsafeCell,
        hint,
    },
};

/// One variable's queue of accesses, in push order. It must not move once [`init`](Self::init) was called.
#[repr(C)]
pub struct VarQueue<T> {
    /// The last access, or one before it while somebody appends. Never null.
    pub(super) tail: Atomic<Access<T>>,
    /// Set before the deletion is pushed.
    pub(super) closed: AtomicBool,
    /// Orders the accesses of an operation.
    id: u64,
    /// Whoever made the variable.
    owner: usize,
    pub(super) stamp: Stamp,
    /// The access the variable starts with.
    first: UnsafeCell<MaybeUninit<Access<T>>>,
}

impl<T> std::fmt::Debug for VarQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VarQueue")
            .field("id", &self.id)
            // Relaxed: a snapshot to look at.
            .field("closed", &self.closed.load(Relaxed))
            .finish_non_exhaustive()
    }
}

impl<T> VarQueue<T> {
    /// A queue without an owner, for models.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub fn new(id: u64) -> Self {
        Self::with_owner(id, 0)
    }

    /// A queue that still has to be [initialised](Self::init) where it will stay. Ids must be distinct among the variables that
    /// operations name together. `owner` marks whoever makes the variable; it lies with what a push needs anyway.
    pub fn with_owner(id: u64, owner: usize) -> Self {
        let first = UnsafeCell::new(MaybeUninit::uninit());
        Self { tail: Atomic::null(), closed: AtomicBool::new(false), id, owner, stamp: Stamp::new(), first }
    }

    /// Puts the first access in.
    ///
    /// # Safety
    /// 1. `this` is valid, and stays where it is until it is dropped.
    /// 2. Nobody else uses it yet.
    pub unsafe fn init(this: NonNull<Self>) {
        // SAFETY: (1) and (2).
        let queue = unsafe { this.as_ref() };
        queue.first.with_mut(|first| {
            // SAFETY: (2) makes this thread the only user of the cell.
            let first = unsafe { &mut *first };
            let first = first.write(Access::built_in(this));
            // Relaxed: (2); the variable is published by the caller.
            queue.tail.store(Shared::from(std::ptr::from_ref(&*first)), Relaxed);
        });
    }

    /// The variable's id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whoever made the variable.
    pub fn owner(&self) -> usize {
        self.owner
    }

    /// Closes the variable for operations other than deletions. `false` if it was closed already.
    pub fn close(&self) -> bool {
        // Relaxed: the deletion pushed after it carries it (edge `link`).
        !self.closed.swap(true, Relaxed)
    }

    /// Whether the variable is closed.
    pub fn is_closed(&self) -> bool {
        // Relaxed: early refusal only; `insert` decides.
        self.closed.load(Relaxed)
    }

    /// Asks for what a push is going to write, as far as it is known already.
    #[inline]
    pub fn prefetch(&self) {
        // Relaxed: the address is all that is wanted.
        hint::prefetch_write(self.tail.load(Relaxed, epoch::unprotected()).as_raw());
    }

    /// Whether nothing is pending on the variable: no mutation if `for_reading`, no operation at all otherwise. What was
    /// done before is visible to the caller then.
    pub fn is_idle(&self, for_reading: bool) -> bool {
        let guard = epoch::pin();
        self.stamp.check();
        // Acquire (edge `swing`): the access at the tail.
        let tail = self.tail.load(Acquire, &guard);
        // SAFETY: the tail is never null, and is not reclaimed while this thread is pinned.
        let tail = unsafe { tail.deref() };
        tail.check();
        tail.leaves_idle(for_reading)
    }

    /// Gives up the last access and then runs `free`, once nobody can hold a pointer to the queue any more.
    ///
    /// # Safety
    /// 1. The last operation pushed on the variable is done, which the caller knows from having ended it or from
    ///    [`is_idle`](Self::is_idle), and no other will ever be pushed.
    /// 2. This is called once, and `this` is valid until `free` runs.
    /// 3. `free` may run on any thread, later, or before this returns.
    pub unsafe fn dispose(this: NonNull<Self>, free: impl FnOnce() + 'static) {
        let guard = epoch::pin();
        // Not kept as a reference: it would have to stay valid to the end of this call.
        // SAFETY: (2), and this thread is pinned.
        let queue = unsafe { this.as_ref() };
        // Relaxed: by (1) the tail was moved to the last access before this, and the access is nothing new to the
        // caller.
        let tail = queue.tail.load(Relaxed, &guard);
        // SAFETY: by (1) and (2) it has not been retired.
        let last = unsafe { tail.deref() };
        last.check();
        // SAFETY: by (1) nothing will be linked behind it, and by (2) this happens once.
        unsafe { last.share().retire() };
        let free = queue.stamp.killed_by(free);
        // SAFETY: (3); by (1) only threads that are pinned now can still know the queue.
        unsafe { guard.retire(free) };
    }
}

// SAFETY: see `Access`; the cell is written once, before the queue is shared.
unsafe impl<T: Send> Send for VarQueue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for VarQueue<T> {}
