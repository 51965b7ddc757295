//! The pool from which records are allocated and to which they are retired.
//!
//! Each thread keeps some free records and a batch of retired ones. A full batch waits for the epoch as a unit, and is
//! then pushed onto a stack from which all threads take batches. So a steady load of operations allocates no records,
//! even if one thread pushes and another retires. Records lie in slabs, from which they are taken if there is no batch,
//! and to which surplus ones are given back. `records.rs` contains the
//! caches and the batches; `free_list.rs`, the stack; `slabs.rs`, the slabs; and `marks.rs`, the way to find records in
//! use.
//!
//! A forked child begins without slabs and free records. The parent's free records are lost to the child, as are the
//! records that the parent's threads have cached or retired.
//!
//! In models, every operation's record is newly allocated, and is marked when it is reclaimed, so models detect any
//! later use. The reuse of records has models of its own. Under the cfg `raddle_unpooled`, each record is a slab of its
//! own and is not reused. Heap checkers then find uses of freed records, and leaks of objects to which the bytes of a
//! pooled record would still point.

use std::ptr::NonNull;
#[cfg(any(raddle_loom, raddle_shuttle, raddle_unpooled))]
use std::ptr::null_mut;

use super::epoch;
#[cfg(any(raddle_loom, raddle_shuttle))]
use super::epoch::Stamp;
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
use super::records;
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) use super::records::ACCESS_BYTES;
pub(crate) use super::records::{MORE_ACCESSES, RecordSize};

/// The head of the records of some type, which live in the pool.
///
/// # Safety
/// 1. Its first word is reserved for the pool.
pub(crate) unsafe trait Record: Sized {
    /// Returns the size with which the record was allocated. May be called on a retired record until the epoch has
    /// passed.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    fn record_size(&self) -> RecordSize;

    /// The layout of a record in models.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    const LAYOUT: std::alloc::Layout;

    /// Returns the mark with which models detect uses after reclamation.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    fn stamp(&self) -> &Stamp;
}

/// Allocates an uninitialised record of this size. Also returns the address of a record that this thread is likely to
/// allocate soon, or null. It may only be prefetched.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
#[inline(always)]
pub(crate) fn allocate<R: Record>(size: RecordSize) -> (NonNull<R>, *mut R) {
    #[cfg(not(raddle_unpooled))]
    let records::Taken { record, later } = records::take(size);
    #[cfg(raddle_unpooled)]
    let (record, later) = (records::slabs(size).add(1)[0], null_mut::<R>());
    (record.cast(), later.cast())
}

/// [`allocate`] for a caller that knows the size but rarely calls this.
#[cold]
#[inline(never)]
pub(crate) fn allocate_rarely<R: Record>(size: RecordSize) -> (NonNull<R>, *mut R) {
    allocate(size)
}

/// Reclaims `record` once no pinned thread can use it.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) fn retire<R: Record>(record: NonNull<R>) {
    // SAFETY: only pinned threads still use the record, and they change only the atomics in front of the task.
    let size = unsafe { record.as_ref() }.record_size();
    // SAFETY: (1): the caller retires the record, which has this size.
    unsafe { reuse(record, size) };
}

/// [Retires](retire) a record of this size.
///
/// # Safety
/// 1. The record was allocated with this size, and its last share has ended, on this thread.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
#[inline]
pub(crate) unsafe fn reuse<R: Record>(record: NonNull<R>, size: RecordSize) {
    if cfg!(raddle_unpooled) {
        let give_back = move || records::give_back(record.cast(), size);
        // SAFETY: (1) and (2) of `retire`: from now on, the closure owns the record, which is plain memory.
        unsafe { epoch::pin().retire(give_back) };
    } else {
        records::put_back(record.cast(), size);
    }
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) use records::{bytes, may_shrink, prepare, retired_batches, shrink};

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn allocate<R: Record>(_: RecordSize) -> (NonNull<R>, *mut R) {
    // SAFETY: the size of a record is above zero.
    let memory = unsafe { std::alloc::alloc(R::LAYOUT) };
    memory.expose_provenance();
    (NonNull::new(memory.cast()).expect("there should be memory"), null_mut())
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) unsafe fn reuse<R: Record>(record: NonNull<R>, _: RecordSize) {
    retire(record);
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn retire<R: Record>(record: NonNull<R>) {
    /// # Safety
    /// 1. `record` points to an `R` that is no longer used, and this function is called once for it.
    unsafe fn free<R: Record>(record: NonNull<u8>) {
        // SAFETY: (1); `allocate` allocated it with this layout.
        unsafe { std::alloc::dealloc(record.as_ptr(), R::LAYOUT) };
    }
    let reclaim = move || {
        let (free, memory) = (free::<R> as unsafe fn(_), record.cast());
        // SAFETY: the closure runs when the interleaving is over, so no thread uses the record any more.
        let free = Box::new(move || unsafe { free(memory) });
        // SAFETY: the record's memory is kept until the interleaving ends.
        unsafe { record.as_ref() }.stamp().kill(free);
    };
    // SAFETY: (1) and (2): from now on, the closure owns the record, which is plain memory.
    unsafe { epoch::pin().retire(reclaim) };
}

/// Does nothing: the records of models come from the heap.
#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn prepare() {}

/// Returns 0: the records of models come from the heap.
#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn bytes() -> usize {
    0
}

/// The first word of a record, which is reserved for the pool.
pub(crate) type PoolWord = std::sync::atomic::AtomicPtr<()>;
