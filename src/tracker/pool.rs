//! Where records come from and go to.
//!
//! Each thread keeps a list of free records and a batch of retired ones. A full batch waits for the epoch as one and
//! then goes to a stack that all threads take batches from, so that steady work allocates nothing although the thread
//! that pushes and the thread that retires differ.
//!
//! # The stack of batches
//!
//! A Treiber stack (IBM RJ 5118, 1986). A batch that was popped is not pushed again before its records have been used,
//! retired and the epoch has passed, so while a popping thread is pinned, the head it read cannot come back: the usual
//! ABA problem does not arise.
//!
//! Under loom every record is allocated anew and declared dead when reclaimed, so that models see each use after that.

use std::ptr::NonNull;

use super::op::{Op, free_accesses};
use crate::sync::epoch;

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(super) fn allocate<T>() -> NonNull<Op<T>> {
    if fits::<Op<T>>() {
        records::take().cast()
    } else {
        // SAFETY: an `Op` has a size.
        unsafe { raw(std::alloc::Layout::new::<Op<T>>()) }.cast()
    }
}

/// Reclaims `op` once no helper can see it.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(super) fn retire<T>(op: NonNull<Op<T>>) {
    // SAFETY: nobody but pinned helpers uses the record, and they only read.
    let has_boxed_accesses = unsafe { op.as_ref() }.has_boxed_accesses();
    if fits::<Op<T>>() && !has_boxed_accesses {
        records::put_back(op.cast());
        return;
    }
    let guard = epoch::pin();
    let reclaim = move || {
        // SAFETY: the epoch has passed, so nobody uses the record.
        unsafe { free_accesses(op) };
        if fits::<Op<T>>() {
            records::free(op.cast());
        } else {
            // SAFETY: `allocate` took it from the heap with this layout.
            unsafe { std::alloc::dealloc(op.as_ptr().cast(), std::alloc::Layout::new::<Op<T>>()) };
        }
    };
    // SAFETY: the record is this closure's alone from now on, and plain memory.
    unsafe { guard.retire(reclaim) };
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(super) fn allocate<T>() -> NonNull<Op<T>> {
    // SAFETY: an `Op` has a size.
    unsafe { raw(std::alloc::Layout::new::<Op<T>>()) }.cast()
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(super) fn retire<T>(op: NonNull<Op<T>>) {
    use crate::sync::weaken::{Step, removed};
    /// # Safety
    /// 1. `op` points to an `Op<T>` that nobody uses any more.
    unsafe fn free<T>(op: NonNull<u8>) {
        // SAFETY: (1).
        unsafe { free_accesses(op.cast::<Op<T>>()) };
        // SAFETY: `allocate` took it from the heap with this layout.
        unsafe { std::alloc::dealloc(op.as_ptr(), std::alloc::Layout::new::<Op<T>>()) };
    }
    let reclaim = move || {
        let (free, record) = (free::<T> as unsafe fn(_), op.cast());
        // SAFETY: the interleaving is over when it runs.
        let free = Box::new(move || unsafe { free(record) });
        // SAFETY: the record's memory stays until the interleaving ends.
        unsafe { op.as_ref() }.stamp.kill(free);
    };
    if removed(Step::ReclaimAfterEpoch) {
        reclaim();
    } else {
        // SAFETY: as in the ordinary build.
        unsafe { epoch::pin().retire(reclaim) };
    }
}

/// # Safety
/// 1. `layout` has a size above zero.
unsafe fn raw(layout: std::alloc::Layout) -> NonNull<u8> {
    // SAFETY: (1).
    let memory = unsafe { std::alloc::alloc(layout) };
    NonNull::new(memory).unwrap_or_else(|| std::alloc::handle_alloc_error(layout))
}

/// The first word of a record, which belongs to the pool.
pub(super) type PoolWord = std::sync::atomic::AtomicPtr<()>;

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const fn fits<R>() -> bool {
    size_of::<R>() <= records::SIZE && align_of::<R>() <= records::ALIGN
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
mod records {
    use std::{
        alloc::Layout,
        cell::RefCell,
        ptr::NonNull,
        sync::atomic::{AtomicPtr, AtomicUsize, Ordering},
    };

    use crate::sync::epoch;

    /// Bytes of a record: the head, the inline accesses and the task. Seven cache lines, an odd number, so that the
    /// heads of many records spread over all sets of a cache.
    pub(super) const SIZE: usize = 448;
    pub(super) const ALIGN: usize = 64;

    /// Records per batch. Picked: at 64, the bags of crossbeam-epoch, which hold 64 deferred functions, are allocated
    /// once per 4,096 operations.
    const BATCH: usize = 64;

    /// Batches kept for reuse; what is above goes back to the heap. Picked: 64 Ki records, 28 MiB.
    const KEEP: usize = 1024;

    /// A record that was given back.
    #[repr(C)]
    pub(super) struct Free {
        /// In the first record of a batch: the next batch of the stack. The word belongs to the stack for good, operations
        /// leave it alone: a thread that is slow to pop may still read it when the record is an operation again.
        next_batch: AtomicPtr<Free>,
        /// What pinned helpers may still read while the record waits for the epoch.
        _head: [u64; 5],
        /// The next record of the list, where the task was, which only holders of the operation ever read.
        next: Option<NonNull<Free>>,
    }

    const _: () = assert!(std::mem::offset_of!(Free, next) == super::super::op::HEAD);

    fn next_batch<'a>(record: NonNull<Free>) -> &'a AtomicPtr<Free> {
        // SAFETY: the first word of a record is initialised by `new` and only ever used as this atomic.
        let word = unsafe { &raw const (*record.as_ptr()).next_batch };
        // SAFETY: as above. The callers do not keep the reference longer than they keep the record from being freed.
        unsafe { &*word }
    }

    #[derive(Default)]
    struct List {
        head: Option<NonNull<Free>>,
        len: usize,
    }

    impl List {
        fn push(&mut self, record: NonNull<u8>) {
            let record = record.cast::<Free>();
            // SAFETY: nobody uses this part of the record, which is larger and better aligned than a `Free`.
            let next = unsafe { &raw mut (*record.as_ptr()).next };
            // SAFETY: as above.
            unsafe { next.write(self.head) };
            self.head = Some(record);
            self.len += 1;
        }

        fn pop(&mut self) -> Option<NonNull<u8>> {
            let record = self.head?;
            // SAFETY: `push` has written the field, and nobody else uses it.
            let next = unsafe { &raw const (*record.as_ptr()).next };
            // SAFETY: as above.
            self.head = unsafe { next.read() };
            self.len -= 1;
            Some(record.cast())
        }

        fn free_all(&mut self) {
            while let Some(record) = self.pop() {
                free(record);
            }
        }
    }

    // SAFETY: the records of a list belong to it alone.
    unsafe impl Send for List {}

    struct Cache {
        free: List,
        retired: List,
    }

    impl Drop for Cache {
        fn drop(&mut self) {
            self.free.free_all();
            let mut retired = std::mem::take(&mut self.retired);
            // SAFETY: the closure owns what it frees.
            unsafe { epoch::pin().retire(move || retired.free_all()) };
        }
    }

    thread_local! {
        static CACHE: RefCell<Cache> = const {
            RefCell::new(Cache {
                free: List { head: None, len: 0 },
                retired: List { head: None, len: 0 },
            })
        };
    }

    static BATCHES: AtomicPtr<Free> = AtomicPtr::new(std::ptr::null_mut());
    /// How many batches the stack holds, roughly.
    static KEPT: AtomicUsize = AtomicUsize::new(0);

    const LAYOUT: Layout = match Layout::from_size_align(SIZE, ALIGN) {
        Ok(layout) => layout,
        Err(_) => panic!("the record's layout is valid"),
    };

    fn new() -> NonNull<u8> {
        // SAFETY: the size is above zero.
        let record = unsafe { super::raw(LAYOUT) };
        // SAFETY: nobody else knows the record.
        unsafe { record.cast::<AtomicPtr<Free>>().write(AtomicPtr::new(std::ptr::null_mut())) };
        record
    }

    pub(super) fn free(record: NonNull<u8>) {
        // SAFETY: every record came from `new`.
        unsafe { std::alloc::dealloc(record.as_ptr(), LAYOUT) };
    }

    /// A record for the caller alone.
    pub(super) fn take() -> NonNull<u8> {
        // The thread may be ending, with its cache gone.
        if let Ok(Some(record)) = CACHE.try_with(|cache| cache.borrow_mut().free.pop()) {
            return record;
        }
        // Not while the cache is borrowed: pinning may run what others have retired.
        let Some(mut batch) = pop_batch() else {
            return new();
        };
        let record = batch.pop();
        let _ = CACHE.try_with(|cache| {
            let mut cache = cache.borrow_mut();
            while let Some(record) = batch.pop() {
                cache.free.push(record);
            }
        });
        batch.free_all();
        record.unwrap_or_else(new)
    }

    /// Gives `record` back once no helper can see it.
    pub(super) fn put_back(record: NonNull<u8>) {
        let full = CACHE.try_with(|cache| {
            let mut cache = cache.borrow_mut();
            cache.retired.push(record);
            (cache.retired.len >= BATCH).then(|| std::mem::take(&mut cache.retired))
        });
        match full {
            Ok(None) => {}
            Ok(Some(batch)) => {
                // SAFETY: the closure owns the batch.
                unsafe { epoch::pin().retire(move || push_batch(batch)) };
            }
            // The thread is ending.
            // SAFETY: the closure owns the record.
            Err(_) => unsafe { epoch::pin().retire(move || free(record)) },
        }
    }

    fn push_batch(mut batch: List) {
        // Relaxed: a bound on memory, not a decision that anything else hangs on.
        if KEPT.fetch_add(1, Ordering::Relaxed) >= KEEP {
            KEPT.fetch_sub(1, Ordering::Relaxed);
            batch.free_all();
            return;
        }
        let Some(first) = batch.head.take() else {
            return;
        };
        let next_batch = next_batch(first);
        let mut head = BATCHES.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the CAS.
            next_batch.store(head, Ordering::Relaxed);
            // Release: the links of the batch; pairs with `pop_batch`. Relaxed on failure: only a new guess.
            match BATCHES.compare_exchange_weak(head, first.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn pop_batch() -> Option<List> {
        // Pinned: see the module's head on why the head cannot come back meanwhile.
        let _guard = epoch::pin();
        // Acquire: the links of the batch; pairs with `push_batch`.
        let mut head = BATCHES.load(Ordering::Acquire);
        loop {
            let first = NonNull::new(head)?;
            // Relaxed: acquired with the head. The batch is not freed while this thread is pinned; if it was taken
            // meanwhile, the CAS fails.
            let next = next_batch(first).load(Ordering::Relaxed);
            // Acquire, as above.
            match BATCHES.compare_exchange_weak(head, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    KEPT.fetch_sub(1, Ordering::Relaxed);
                    return Some(List { head: Some(first), len: BATCH });
                }
                Err(now) => head = now,
            }
        }
    }
}
