//! The accesses of an operation that has more of them than fit into its record.
//!
//! They lie apart from the record, in blocks of [`BLOCK`] accesses. An idle variable keeps its last access, and with it
//! a block and the record, but not the other accesses of that operation, of which there may be thousands.
//!
//! # States
//!
//! | value | meaning | changed by |
//! |---|---|---|
//! | `AccessBlock::shares` | one for each access in the block until it is spent or unlinked and the tail is past it, and one for all holders of the record | the thread that ends the share; the last one retires the block |
//! | `Apart::blocks` | the blocks that have not been retired, which have one share of the record together | the thread that retires a block; the last one ends the share |
//! | `Apart::is_left` | no holder of the record is left | the last holder, before it ends the holders' shares of the blocks |
//!
//! # Who may touch what
//!
//! * A block: threads that reach one of its accesses through a queue, by the rules for accesses; holders of the record;
//!   and threads that have been pinned since a moment when the record could be found, if `is_left` is not set.
//! * The table of blocks: holders, and threads pinned in the same way. The last holder retires it.
//!
//! A block is retired after `is_left` is set. A thread that is pinned after a block was retired has acquired what came
//! before (`memory::epoch`), so it finds `is_left` set. A block that is retired while the thread is pinned stays
//! readable.

use std::{
    alloc::{Layout, dealloc},
    mem::MaybeUninit,
    ptr::NonNull,
    slice,
};

use crate::{
    memory::epoch::{self, Guard, Stamp},
    sync::{
        Ordering::Relaxed,
        atomic::{AtomicBool, AtomicU32},
        cell::UnsafeCell,
        edge::{self, acquire_release, removed, step},
    },
};

/// The number of accesses in a block. In models, few, so that few accesses are needed for several blocks.
pub(super) const BLOCK: usize = if cfg!(any(raddle_loom, raddle_shuttle)) { 3 } else { 16 };

/// Consecutive accesses, of type `A`, of one operation.
#[repr(C)]
pub(super) struct AccessBlock<A> {
    /// The first field, so that the address of an access leads to its block. The last block of an operation may have
    /// fewer.
    accesses: [MaybeUninit<A>; BLOCK],
    shares: AtomicU32,
    /// Shows models the uses of the block, whose accesses are plain memory.
    contents: UnsafeCell<()>,
    pub(super) stamp: Stamp,
}

/// What the record stores of the accesses.
pub(super) struct Apart<A> {
    table: NonNull<NonNull<AccessBlock<A>>>,
    count: u32,
    blocks: AtomicU32,
    is_left: AtomicBool,
    /// The mark of the table.
    stamp: Stamp,
}

impl<A> Apart<A> {
    /// Allocates blocks for `count` accesses, which the caller writes to their [places](Self::place) before any other
    /// thread knows the record.
    pub(super) fn new(count: u32) -> Self {
        let (len, mut rest) = ((count as usize).div_ceil(BLOCK), count);
        let table = (0..len).map(|_| {
            let in_block = rest.min(BLOCK as u32);
            rest -= in_block;
            let accesses = [const { MaybeUninit::<A>::uninit() }; BLOCK];
            let (shares, contents, stamp) = (AtomicU32::new(in_block + 1), UnsafeCell::new(()), Stamp::new());
            let block = NonNull::from(Box::leak(Box::new(AccessBlock { accesses, shares, contents, stamp })));
            // `AccessBlock::of` finds the block by an address.
            block.as_ptr().expose_provenance();
            block
        });
        let table = NonNull::from(Box::leak(table.collect::<Box<[_]>>())).cast();
        Self { table, count, blocks: AtomicU32::new(len as u32), is_left: AtomicBool::new(false), stamp: Stamp::new() }
    }

    /// Returns the number of accesses, including those that are gone.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Returns the place of the access at `index`.
    ///
    /// # Safety
    /// 1. There are more accesses than `index`, and no other thread knows the record.
    pub(super) unsafe fn place(&self, index: u32) -> *mut A {
        // SAFETY: by (1) the table has this entry.
        let block = unsafe { self.table.add(index as usize / BLOCK).read() };
        // SAFETY: the field is in the block, which no other thread uses; by (1) the place is in the field.
        unsafe { (&raw mut (*block.as_ptr()).accesses).cast::<A>().add(index as usize % BLOCK) }
    }

    /// Returns the accesses from this index on that are in the same block. Behind the last access, there are none, nor
    /// if no holder of the record is left.
    ///
    /// # Safety
    /// 1. The caller is a holder of the record, or has been pinned since a moment when the record could be found, and
    ///    stays so while the result is used.
    pub(super) unsafe fn row(&self, index: usize) -> &[A] {
        // SAFETY: (1).
        let Some(&block) = unsafe { self.table() }.get(index / BLOCK) else { return &[] };
        let first = index / BLOCK * BLOCK;
        let len = (self.count as usize - first).min(BLOCK);
        // SAFETY: (1) covers the blocks in the table, too.
        let block = unsafe { block.as_ref() };
        block.contents.with(|_| ());
        // SAFETY: the creator of the record has initialised the accesses, of which only the last block has fewer. Other
        // threads only share them.
        unsafe { &slice::from_raw_parts(block.accesses.as_ptr().cast(), len)[index - first..] }
    }

    /// Returns the table of blocks, which is empty if no holder of the record is left.
    ///
    /// # Safety
    /// 1. As for [`row`](Self::row).
    unsafe fn table(&self) -> &[NonNull<AccessBlock<A>>] {
        // Relaxed: a thread that was pinned after a block was retired has acquired the flag (see the head of the
        // module).
        if self.is_left.load(Relaxed) {
            return &[];
        }
        self.stamp.check();
        // SAFETY: by (1) and the flag, the table has not been reclaimed; `new` has allocated it with this length.
        unsafe { slice::from_raw_parts(self.table.as_ptr(), (self.count as usize).div_ceil(BLOCK)) }
    }

    /// Ends the shares of the record's holders in all blocks, and calls `retired` for each block that this retires. The
    /// calling thread has acquired what the other holders did.
    ///
    /// # Safety
    /// 1. No holder is left, and this is called once.
    /// 2. `guard` is older than the end of the blocks' share of the record.
    pub(super) unsafe fn leave(&self, guard: &Guard, mut retired: impl FnMut()) {
        // SAFETY: (1): the thread is pinned, and the blocks have not been retired.
        let table = unsafe { self.table() };
        let (memory, layout) = (self.table.cast(), Layout::for_value(table));
        // SAFETY: (1): `new` has allocated the table, and no thread uses it once the epoch has passed.
        let free = self.stamp.killed_by(unsafe { freeing(memory, layout) });
        if !removed(step::LEFT_BEFORE_RETIRED) {
            // Relaxed: published by the retirement of a block.
            self.is_left.store(true, Relaxed);
        }
        for &block in table {
            // SAFETY: by (1) the holders' share ends once.
            if unsafe { AccessBlock::end_share(block) } {
                retired();
            }
        }
        // SAFETY: (1) and (2) of `retire`: from now on, the closure owns the table, which is plain memory.
        unsafe { guard.retire(free) };
        epoch::retired(layout.size());
    }

    /// Counts a retired block. Returns whether it was the last one; the caller then ends the blocks' share of the
    /// record.
    ///
    /// # Safety
    /// 1. The record is not reclaimed before the block is counted. It may be during the call.
    pub(super) unsafe fn count_retired(this: NonNull<Self>) -> bool {
        // SAFETY: (1). A reference to the atomic, unlike one to the whole, may outlive the record.
        let blocks = unsafe { &(*this.as_ptr()).blocks };
        blocks.fetch_sub(1, acquire_release(edge::blocks::NONE_LEFT, edge::blocks::RETIRED)) == 1
    }
}

impl<A> AccessBlock<A> {
    /// Returns the block of the access at this address and this index.
    ///
    /// # Safety
    /// 1. The access lies in a block.
    #[inline]
    pub(super) unsafe fn of(access: NonNull<A>, index: u32) -> NonNull<Self> {
        let first = access.addr().get() - index as usize % BLOCK * size_of::<A>();
        // SAFETY: by (1) the access is at its `Apart::place`, and a block is not at address zero. `Apart::new` has
        // exposed its address.
        unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(first)) }
    }

    /// Ends one share. If it is the last one, retires the block and returns `true`.
    ///
    /// # Safety
    /// 1. The share belongs to the caller, which does not use the block afterwards.
    pub(super) unsafe fn end_share(block: NonNull<Self>) -> bool {
        // SAFETY: by (1) the block is in use up to here.
        let Self { shares, contents, .. } = unsafe { block.as_ref() };
        contents.with(|_| ());
        if shares.fetch_sub(1, acquire_release(edge::blocks::LAST, edge::blocks::ENDED)) != 1 {
            return false;
        }
        let (free, memory) = (free_block::<A> as unsafe fn(_), block.cast());
        // SAFETY: (1) and (2) of `retire`: from now on, the closure owns the block, which is plain memory.
        unsafe { epoch::pin().retire(move || free(memory)) };
        epoch::retired(size_of::<Self>());
        true
    }
}

/// Frees a block.
///
/// # Safety
/// 1. The block at this address was retired, and no thread uses it any more.
unsafe fn free_block<A>(memory: NonNull<u8>) {
    // SAFETY: (1).
    let AccessBlock { contents, stamp, .. } = unsafe { memory.cast::<AccessBlock<A>>().as_ref() };
    contents.with_mut(|_| ());
    // SAFETY: (1): `Apart::new` has made a box of the block.
    stamp.killed_by(unsafe { freeing(memory, Layout::new::<AccessBlock<A>>()) })();
}

/// Returns a closure that frees `memory`.
///
/// # Safety
/// 1. The memory belongs to a box of this layout, whose contents need no drop, and is no longer used when the closure
///    runs.
unsafe fn freeing(memory: NonNull<u8>, layout: Layout) -> impl FnOnce() + 'static {
    // SAFETY: (1): the closure runs once.
    move || unsafe { dealloc(memory.as_ptr(), layout) }
}
