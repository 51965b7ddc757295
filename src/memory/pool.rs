//! The pool from which records are allocated and to which they are retired.
//!
//! Each thread keeps some free records and a batch of retired ones. A full batch waits for the epoch as a unit, and is
//! then pushed onto a stack from which all threads take batches. A record that owns a further allocation is freed
//! instead of reused. So a steady load of operations whose records own none allocates no records, even if one thread
//! pushes and another retires. `records.rs` contains the caches and the batches; `free_list.rs` contains the stack.
//! A forked child begins without free records: its registry does not contain its parent's records, so operations in
//! them could not be found. The parent's free records are lost to the child, as are the records that the parent's
//! threads have cached or retired.
//!
//! In models, every operation's record is newly allocated, and is marked when it is reclaimed, so models detect any
//! later use. The reuse of records has models of its own. Under the cfg `raddle_unpooled`, each record is allocated on
//! the heap and freed. Heap checkers then find uses of freed records, and leaks of objects to which the bytes of a
//! pooled record would still point.

use std::ptr::{NonNull, null_mut};

use super::epoch;
#[cfg(any(raddle_loom, raddle_shuttle))]
use super::epoch::Stamp;
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
use super::{records, registry};

/// A type whose values live in the pool.
///
/// # Safety
/// 1. Its first word is reserved for the pool.
pub(crate) unsafe trait Record: Sized {
    /// Returns whether the record owns a further allocation. May be called on a retired record until the epoch has
    /// passed.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    fn owns_memory(&self) -> bool;

    /// Frees the record's further allocation, if it has one.
    ///
    /// # Safety
    /// 1. The record is no longer used, and this function is called once for it.
    unsafe fn free_owned(record: NonNull<Self>);

    /// Returns the mark with which models detect uses after reclamation.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    fn stamp(&self) -> &Stamp;
}

/// Allocates an uninitialised record. Also returns the address of a record that this thread is likely to allocate
/// soon, or null. It may only be prefetched.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
#[inline(always)]
pub(crate) fn allocate<R: Record>() -> (NonNull<R>, *mut R) {
    if fits::<R>() {
        let records::Taken { record, later } = records::take();
        (record.cast(), later.cast())
    } else {
        // SAFETY: the size of a record is above zero.
        let record = unsafe { raw(std::alloc::Layout::new::<R>()) };
        // SAFETY: the record begins with the pool's word, and no other thread knows the record.
        unsafe { record.cast().write(PoolWord::default()) };
        registry::add(record);
        (record.cast(), null_mut())
    }
}

/// Reclaims `record` once no pinned thread can use it.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) fn retire<R: Record>(record: NonNull<R>) {
    // SAFETY: only pinned threads still use the record, and they change only the atomics in front of the task.
    if unsafe { record.as_ref() }.owns_memory() {
        retire_to_heap(record);
    } else {
        retire_inline(record);
    }
}

/// [Retires](retire) a record that owns no further allocation, without reading the record.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
#[inline]
pub(crate) fn retire_inline<R: Record>(record: NonNull<R>) {
    if fits::<R>() {
        records::put_back(record.cast());
    } else {
        retire_to_heap(record);
    }
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
fn retire_to_heap<R: Record>(record: NonNull<R>) {
    let guard = epoch::pin();
    let reclaim = move || {
        // SAFETY: the epoch has passed, so the record is no longer used.
        unsafe { R::free_owned(record) };
        if fits::<R>() {
            records::free(record.cast());
        } else {
            registry::remove(record.cast());
            // SAFETY: `allocate` allocated it with this layout.
            unsafe { std::alloc::dealloc(record.as_ptr().cast(), std::alloc::Layout::new::<R>()) };
        }
    };
    // SAFETY: (1) and (2): from now on, the closure owns the record, which is plain memory.
    unsafe { guard.retire(reclaim) };
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn allocate<R: Record>() -> (NonNull<R>, *mut R) {
    // SAFETY: the size of a record is above zero.
    (unsafe { raw(std::alloc::Layout::new::<R>()) }.cast(), null_mut())
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) use retire as retire_inline;

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn retire<R: Record>(record: NonNull<R>) {
    /// # Safety
    /// 1. `record` points to an `R` that is no longer used, and this function is called once for it.
    unsafe fn free<R: Record>(record: NonNull<u8>) {
        // SAFETY: (1) includes the condition of `free_owned`.
        unsafe { R::free_owned(record.cast()) };
        // SAFETY: `allocate` allocated it with this layout.
        unsafe { std::alloc::dealloc(record.as_ptr(), std::alloc::Layout::new::<R>()) };
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

/// Allocates memory on the heap.
///
/// # Safety
/// 1. The size of `layout` is above zero.
pub(super) unsafe fn raw(layout: std::alloc::Layout) -> NonNull<u8> {
    // SAFETY: (1): `alloc` requires a size above zero.
    let memory = unsafe { std::alloc::alloc(layout) };
    NonNull::new(memory).unwrap_or_else(|| std::alloc::handle_alloc_error(layout))
}

/// The first word of a record, which is reserved for the pool.
pub(crate) type PoolWord = std::sync::atomic::AtomicPtr<()>;

/// Returns whether records of this type are pooled.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) const fn fits<R: Record>() -> bool {
    !cfg!(raddle_unpooled) && size_of::<R>() <= records::SIZE && align_of::<R>() <= records::ALIGN
}
