//! The pool that records are allocated from and retired to.
//!
//! Each thread keeps some free records and a batch of retired ones. A full batch waits for the epoch as a unit and then
//! goes to a stack from which all threads take batches, so that a steady load allocates no records even if one thread
//! pushes and another retires.
//!
//! A record that is reused is usually in the cache of another core. So a batch is not a list through all its records,
//! which would cost one cache miss after another. It consists of groups. The first record of each group has references
//! to the others, and a thread prefetches the next records before it needs them.
//!
//! A forked child continues with the free records of its parent: the stack is consistent at every moment. The records
//! in the caches of threads that do not exist in the child, a few hundred each, are lost, and so are those that were
//! retired but not yet free.
//!
//! The stack of batches is in `free_list.rs`, and is checked by models. In a steady load, this stack and a count of its
//! batches are the only parts of the pool that threads share. The first record of a batch is the batch's node. The node
//! is pushed again only after the epoch has passed, because the batch's records have been used and retired in between.
//!
//! Under loom and shuttle every record is newly allocated, and is marked when it is reclaimed, so that models find each
//! later use. Under the cfg `raddle_unpooled` each record is allocated on the heap and freed, so that heap checkers
//! find uses of freed records, and leaks of objects to which the bytes of a pooled record would still point.

use std::ptr::NonNull;

use super::epoch;
#[cfg(any(raddle_loom, raddle_shuttle))]
use super::epoch::Stamp;
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
use super::registry;

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
    /// 1. The record is not used any more, and this is called once.
    unsafe fn free_owned(record: NonNull<Self>);

    /// Returns the mark by which models find uses after reclamation.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    fn stamp(&self) -> &Stamp;
}

/// Allocates an uninitialised record.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
#[inline]
pub(crate) fn allocate<R: Record>() -> NonNull<R> {
    if fits::<R>() {
        records::take().cast()
    } else {
        // SAFETY: the size of a record is above zero.
        let record = unsafe { raw(std::alloc::Layout::new::<R>()) };
        // SAFETY: the record begins with the word of the pool, and no other thread knows it.
        unsafe { record.cast().write(PoolWord::default()) };
        registry::add(record);
        record.cast()
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

/// [Retires](retire) a record that owns no further allocation, without reading it.
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
        // SAFETY: the epoch has passed, so the record is not used any more.
        unsafe { R::free_owned(record) };
        if fits::<R>() {
            records::free(record.cast());
        } else {
            registry::remove(record.cast());
            // SAFETY: `allocate` allocated it with this layout.
            unsafe { std::alloc::dealloc(record.as_ptr().cast(), std::alloc::Layout::new::<R>()) };
        }
    };
    // SAFETY: from now on the closure owns the record, which is plain memory.
    unsafe { guard.retire(reclaim) };
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn allocate<R: Record>() -> NonNull<R> {
    // SAFETY: the size of a record is above zero.
    unsafe { raw(std::alloc::Layout::new::<R>()) }.cast()
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) use retire as retire_inline;

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn retire<R: Record>(record: NonNull<R>) {
    use crate::testing::weaken::{Step, removed};
    /// # Safety
    /// 1. `record` points to an `R` that is not used any more.
    unsafe fn free<R: Record>(record: NonNull<u8>) {
        // SAFETY: by (1) the record is not used any more, and this function is called once for it.
        unsafe { R::free_owned(record.cast()) };
        // SAFETY: `allocate` allocated it with this layout.
        unsafe { std::alloc::dealloc(record.as_ptr(), std::alloc::Layout::new::<R>()) };
    }
    let reclaim = move || {
        let (free, memory) = (free::<R> as unsafe fn(_), record.cast());
        // SAFETY: the closure runs when the interleaving is over, and no thread uses the record then.
        let free = Box::new(move || unsafe { free(memory) });
        // SAFETY: the record's memory is kept until the interleaving ends.
        unsafe { record.as_ref() }.stamp().kill(free);
    };
    if removed(Step::ReclaimAfterEpoch) {
        reclaim();
    } else {
        // SAFETY: from now on the closure owns the record, which is plain memory.
        unsafe { epoch::pin().retire(reclaim) };
    }
}

/// Allocates memory on the heap.
///
/// # Safety
/// 1. The size of `layout` is above zero.
unsafe fn raw(layout: std::alloc::Layout) -> NonNull<u8> {
    // SAFETY: (1): `alloc` requires a size above zero.
    let memory = unsafe { std::alloc::alloc(layout) };
    NonNull::new(memory).unwrap_or_else(|| std::alloc::handle_alloc_error(layout))
}

/// The first word of a record, which is reserved for the pool.
pub(crate) type PoolWord = std::sync::atomic::AtomicPtr<()>;

/// Returns whether records of this type are pooled.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) const fn fits<R: Record>() -> bool {
    !cfg!(raddle_unpooled) && size_of::<R>() <= records::REFERENCES.start && align_of::<R>() <= records::ALIGN
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
mod records {
    use std::{alloc::Layout, cell::RefCell, mem::offset_of, ops::Range, ptr::NonNull};

    use crate::{
        memory::{
            epoch,
            free_list::{Node, Stack},
            registry,
        },
        sync::{
            Ordering::Relaxed,
            atomic::{AtomicPtr, AtomicUsize},
            hint,
        },
    };

    /// The size of a record in bytes: the head, the accesses and the task, and a line that belongs to the pool. An
    /// operation with a small function uses two of the first five cache lines if it has one access, and four if it has
    /// four.
    pub(super) const SIZE: usize = 384;
    pub(super) const ALIGN: usize = 64;

    /// The number of records in a group: the number of words in a cache line.
    const GROUP: usize = 8;

    /// The number of records in a batch. Picked.
    const BATCH: usize = 8 * GROUP;

    /// The number of batches that a thread retires before it flushes its bag to crossbeam-epoch's queue, where the bag
    /// ages. Each flush allocates, so there is one allocation in 1,280 operations. The bag could hold three times as
    /// many, but then records that wait in it would be out of the cache when they are used again. Measured: 8 batches
    /// gain as much as 16, and 32 gain two thirds as much.
    const BATCHES_PER_BAG: usize = 20;
    const _: () =
        assert!(BATCHES_PER_BAG * BATCH > 1000, "there must be at most one allocation in a thousand operations");

    /// The maximum number of batches kept for reuse; further ones are freed. Picked: this is 64 Ki records, or 24 MiB.
    const KEEP: usize = 1024;

    /// Offsets of the cache lines of a record that a push with a small function may write.
    const LINES: [usize; 4] = [0, 64, 128, 192];

    type Record = NonNull<u8>;

    /// The first record of a group of free or retired records.
    #[repr(C)]
    struct Leader {
        /// In the first record of a batch on the stack: the next batch. In a record in use: the [mark](registry::mark).
        /// The word is an atomic pointer at all times, because a slow pop may still read it when the record holds an
        /// operation again.
        next_batch: AtomicPtr<Leader>,
        /// Pinned threads may still read and change this part while the record waits for the epoch.
        _head: [u64; 39],
        /// The other records of the group, on a cache line that no operation uses: dumps and searches for cycles of waits
        /// read the task of an operation that has ended until the epoch has passed.
        references: [Record; GROUP - 1],
        /// The next group of the batch.
        next: Option<NonNull<Leader>>,
    }

    impl Leader {
        /// Returns pointers to the fields that belong to the owner of the group.
        fn fields(leader: NonNull<Self>) -> (*mut [Record; GROUP - 1], *mut Option<NonNull<Self>>) {
            let leader = leader.as_ptr();
            // SAFETY: a record is at least as large as a `Leader`; only an address is computed.
            let references = unsafe { &raw mut (*leader).references };
            // SAFETY: a record is at least as large as a `Leader`; only an address is computed.
            (references, unsafe { &raw mut (*leader).next })
        }
    }

    /// The bytes of a record that hold references to others.
    pub(super) const REFERENCES: Range<usize> = offset_of!(Leader, references)..size_of::<Leader>();
    const _: () =
        assert!(REFERENCES.start % 64 == 0 && REFERENCES.end == REFERENCES.start + 64 && REFERENCES.end <= SIZE);

    impl Node for Leader {
        unsafe fn next<'n>(leader: NonNull<Self>) -> &'n AtomicPtr<Self> {
            // SAFETY: the first word of a record is initialised by `new` and used only as this atomic.
            let word = unsafe { &raw const (*leader.as_ptr()).next_batch };
            // SAFETY: the word is initialised, and by (1) it is not freed while the reference is used.
            unsafe { &*word }
        }
    }

    /// Groups of free records, which belong to the batch.
    #[derive(Default)]
    struct Batch(Option<NonNull<Leader>>);

    // SAFETY: a batch owns its records, which are plain memory.
    unsafe impl Send for Batch {}

    impl Batch {
        /// Makes a batch of `records`: the first record of each group receives references to the others.
        fn of(records: &[Record; BATCH]) -> Self {
            let mut next = None;
            for group in records.chunks_exact(GROUP).rev() {
                let leader = group[0].cast::<Leader>();
                let mut references = [leader.cast(); GROUP - 1];
                references.copy_from_slice(&group[1..]);
                let fields = Leader::fields(leader);
                // SAFETY: by `fits` only holders of the record used this part of it, and no holder is left.
                unsafe { fields.0.write(references) };
                // SAFETY: by `fits` only holders of the record used this part of it, and no holder is left.
                unsafe { fields.1.write(next) };
                next = Some(leader);
            }
            Self(next)
        }

        /// Removes and returns a group.
        fn pop(&mut self) -> Option<Group> {
            let leader = self.0?;
            let fields = Leader::fields(leader);
            // SAFETY: `of` has written the field, and the batch owns the record.
            let references = unsafe { fields.0.read() };
            // SAFETY: `of` has written the field, and the batch owns the record.
            self.0 = unsafe { fields.1.read() };
            if let Some(next) = self.0 {
                // SAFETY: a record is longer than this offset.
                hint::prefetch_write(unsafe { next.byte_add(REFERENCES.start) }.as_ptr());
            }
            let mut records = [leader.cast(); GROUP];
            records[1..].copy_from_slice(&references);
            prefetch(records[GROUP - 1]);
            Some(Group { records, len: GROUP })
        }

        fn free_all(&mut self) {
            while let Some(mut group) = self.pop() {
                group.free_all();
            }
        }
    }

    /// Free records that are ready for use.
    struct Group {
        records: [Record; GROUP],
        len: usize,
    }

    impl Group {
        const EMPTY: Self = Self { records: [NonNull::dangling(); GROUP], len: 0 };

        #[inline]
        fn pop(&mut self) -> Option<Record> {
            self.len = self.len.checked_sub(1)?;
            if self.len > 0 {
                prefetch(self.records[(self.len - 1) % GROUP]);
            }
            Some(self.records[self.len % GROUP])
        }

        fn free_all(&mut self) {
            while let Some(record) = self.pop() {
                free(record);
            }
        }
    }

    /// Prefetches a record that will be written soon.
    #[inline]
    fn prefetch(record: Record) {
        for line in LINES {
            // SAFETY: a record is longer than this offset.
            hint::prefetch_write(unsafe { record.byte_add(line) }.as_ptr());
        }
    }

    /// A thread's cache of records: free ones, and retired ones that it has not yet handed to the epoch.
    struct Cache {
        free: Group,
        more: Batch,
        retired: [Record; BATCH],
        retired_len: usize,
        /// The number of batches in the thread's crossbeam-epoch bag.
        bag_len: usize,
    }

    impl Cache {
        #[inline]
        fn take(&mut self) -> Option<Record> {
            if self.free.len == 0 && !self.open_next() {
                return None;
            }
            self.free.pop()
        }

        /// Opens the next group; returns `false` if there is none.
        #[inline(never)]
        fn open_next(&mut self) -> bool {
            let group = self.more.pop();
            group.map(|group| self.free = group).is_some()
        }
    }

    impl Drop for Cache {
        fn drop(&mut self) {
            free_later(std::mem::replace(&mut self.free, Group::EMPTY), std::mem::take(&mut self.more));
            for &record in &self.retired[..self.retired_len] {
                // SAFETY: the closure owns the record, which is plain memory.
                unsafe { epoch::pin().retire(move || free(record)) };
            }
        }
    }

    thread_local! {
        static CACHE: RefCell<Cache> = const {
            RefCell::new(Cache {
                free: Group::EMPTY,
                more: Batch(None),
                retired: [NonNull::dangling(); BATCH],
                retired_len: 0,
                bag_len: 0,
            })
        };
    }

    static BATCHES: Stack<Leader> = Stack { head: AtomicPtr::new(std::ptr::null_mut()) };
    /// The approximate number of batches on the stack.
    static KEPT: AtomicUsize = AtomicUsize::new(0);

    const LAYOUT: Layout = match Layout::from_size_align(SIZE, ALIGN) {
        Ok(layout) => layout,
        Err(_) => panic!("the layout of a record must be valid"),
    };

    /// Allocates a record on the heap.
    fn new() -> Record {
        // SAFETY: the size is above zero.
        let record = unsafe { super::raw(LAYOUT) };
        // SAFETY: the record is large and aligned enough for the word, and no other thread knows it.
        unsafe { record.cast::<AtomicPtr<Leader>>().write(AtomicPtr::new(std::ptr::null_mut())) };
        registry::add(record);
        record
    }

    /// Frees a record.
    pub(super) fn free(record: Record) {
        registry::remove(record);
        // SAFETY: every record came from `new`.
        unsafe { std::alloc::dealloc(record.as_ptr(), LAYOUT) };
    }

    /// Takes a free record from the thread's cache, from the stack of batches, or from the heap.
    #[inline]
    pub(super) fn take() -> Record {
        // The cache is gone if the thread is ending.
        match CACHE.try_with(|cache| cache.borrow_mut().take()) {
            Ok(Some(record)) => record,
            _ => refill(),
        }
    }

    #[cold]
    fn refill() -> Record {
        // The cache must not be borrowed here, since pinning may run retired closures.
        let mut more = pop_batch();
        let Some(mut group) = more.pop() else {
            return new();
        };
        let record = group.pop().unwrap_or_else(new);
        let kept = CACHE.try_with(|cache| {
            let mut cache = cache.borrow_mut();
            // Closures that ran in `pop_batch` may have filled the cache.
            if cache.free.len == 0 && cache.more.0.is_none() {
                cache.free = std::mem::replace(&mut group, Group::EMPTY);
                cache.more = std::mem::take(&mut more);
            }
        });
        // An error means that the thread is ending; the records are freed below.
        let _ = kept;
        free_later(group, more);
        record
    }

    /// Frees records that came from the stack, once the epoch has passed: a slow pop may still read a batch's word.
    fn free_later(mut group: Group, mut more: Batch) {
        if group.len > 0 || more.0.is_some() {
            let free = move || {
                group.free_all();
                more.free_all();
            };
            // SAFETY: the closure owns the records, which are plain memory.
            unsafe { epoch::pin().retire(free) };
        }
    }

    /// Makes `record` available for reuse once no pinned thread can use it.
    #[inline]
    pub(super) fn put_back(record: Record) {
        let full = CACHE.try_with(|cache| {
            let mut cache = cache.borrow_mut();
            let len = cache.retired_len;
            cache.retired[len % BATCH] = record;
            cache.retired_len = (len + 1) % BATCH;
            len + 1 == BATCH
        });
        match full {
            Ok(false) => {}
            Ok(true) => retire_batch(),
            Err(_) => retire_late(record),
        }
    }

    /// Retires a record on a thread that is ending and has no cache any more.
    #[cold]
    fn retire_late(record: Record) {
        // SAFETY: the closure owns the record, which is plain memory.
        unsafe { epoch::pin().retire(move || free(record)) };
    }

    /// Retires the full batch that the thread has collected.
    #[cold]
    fn retire_batch() {
        let (batch, bag_len) = CACHE.with(|cache| {
            let mut cache = cache.borrow_mut();
            cache.bag_len = (cache.bag_len + 1) % BATCHES_PER_BAG;
            (Batch::of(&cache.retired), cache.bag_len)
        });
        let guard = epoch::pin();
        // SAFETY: the closure owns the batch, whose records are plain memory.
        unsafe { guard.retire(move || push_batch(batch)) };
        if bag_len == 0 {
            guard.flush();
        }
    }

    fn push_batch(mut batch: Batch) {
        // Relaxed: only an approximate bound on memory.
        if KEPT.fetch_add(1, Relaxed) >= KEEP {
            KEPT.fetch_sub(1, Relaxed);
            batch.free_all();
            return;
        }
        if let Some(first) = batch.0.take() {
            // SAFETY: the function owns the batch and runs after the epoch has passed; records are not freed while they
            // are on the stack.
            unsafe { BATCHES.push(first) };
        }
    }

    fn pop_batch() -> Batch {
        let first = BATCHES.pop();
        if first.is_some() {
            // Relaxed: only an approximate bound on memory.
            KEPT.fetch_sub(1, Relaxed);
        }
        Batch(first)
    }
}
