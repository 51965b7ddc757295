//! Where records come from and go to.
//!
//! Each thread keeps some free records and a batch of retired ones. A full batch waits for the epoch as one and then goes
//! to a stack that all threads take batches from, so that steady work allocates nothing although the thread that pushes
//! and the thread that retires differ.
//!
//! Records come back in the cache of another core. So a batch is not a list through all its records, each of which would
//! be waited for in turn: it is made of groups, whose first record names the others, and a thread asks for the next
//! records before it needs them.
//!
//! A forked child goes on with the free records that it finds: the stack is whole at every moment, and what threads had that
//! are gone is lost, a few hundred records each, with all that was retired and not yet free.
//!
//! The stack of batches, which is all that threads share, is in `free_list.rs`, and in the models. The first record of a
//! batch is its node. It is pushed again only after the epoch: its records have been used and retired since.
//!
//! Under loom every record is allocated anew and declared dead when reclaimed, so that models see each use after that.
//! Under the cfg `raddle_unpooled` every record is allocated and given back as well, so that tools that watch the heap
//! see uses of dead records, and leaks that a dead record's bytes would still point to.

use std::ptr::NonNull;

use super::epoch;
#[cfg(any(raddle_loom, raddle_shuttle))]
use super::epoch::Stamp;

/// What the pool's memory is used for.
///
/// # Safety
/// 1. Its first word is left to the pool.
/// 2. From [`PRIVATE_FROM`](Self::PRIVATE_FROM) on, nobody but its holders reads or writes it.
pub(crate) unsafe trait Record: Sized {
    /// Bytes at its start that pinned threads may use until the epoch has passed.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    const PRIVATE_FROM: usize;

    /// Whether it owns memory beside its own. May be asked of a retired record until the epoch has passed.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    fn owns_memory(&self) -> bool;

    /// Frees the memory that it owns beside its own.
    ///
    /// # Safety
    /// 1. Nobody uses the record, and this is called once.
    unsafe fn free_owned(record: NonNull<Self>);

    /// What tells models that it is dead.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    fn stamp(&self) -> &Stamp;
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
#[inline]
pub(crate) fn allocate<R: Record>() -> NonNull<R> {
    if fits::<R>() {
        records::take().cast()
    } else {
        // SAFETY: a record has a size.
        unsafe { raw(std::alloc::Layout::new::<R>()) }.cast()
    }
}

/// Reclaims `record` once no helper can see it.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) fn retire<R: Record>(record: NonNull<R>) {
    // SAFETY: nobody but pinned threads uses the record, and they change nothing but the atomics in front of the task.
    if unsafe { record.as_ref() }.owns_memory() {
        retire_to_heap(record);
    } else {
        retire_inline(record);
    }
}

/// As [`retire`], for a record that owns no other memory. Does not touch it.
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
        // SAFETY: the epoch has passed, so nobody uses the record.
        unsafe { R::free_owned(record) };
        if fits::<R>() {
            records::free(record.cast());
        } else {
            // SAFETY: `allocate` took it from the heap with this layout.
            unsafe { std::alloc::dealloc(record.as_ptr().cast(), std::alloc::Layout::new::<R>()) };
        }
    };
    // SAFETY: the record is this closure's alone from now on, and plain memory.
    unsafe { guard.retire(reclaim) };
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn allocate<R: Record>() -> NonNull<R> {
    // SAFETY: a record has a size.
    unsafe { raw(std::alloc::Layout::new::<R>()) }.cast()
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) use retire as retire_inline;

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn retire<R: Record>(record: NonNull<R>) {
    use crate::testing::weaken::{Step, removed};
    /// # Safety
    /// 1. `record` points to an `R` that nobody uses any more.
    unsafe fn free<R: Record>(record: NonNull<u8>) {
        // SAFETY: (1).
        unsafe { R::free_owned(record.cast()) };
        // SAFETY: `allocate` took it from the heap with this layout.
        unsafe { std::alloc::dealloc(record.as_ptr(), std::alloc::Layout::new::<R>()) };
    }
    let reclaim = move || {
        let (free, memory) = (free::<R> as unsafe fn(_), record.cast());
        // SAFETY: the interleaving is over when it runs.
        let free = Box::new(move || unsafe { free(memory) });
        // SAFETY: the record's memory stays until the interleaving ends.
        unsafe { record.as_ref() }.stamp().kill(free);
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
pub(crate) type PoolWord = std::sync::atomic::AtomicPtr<()>;

/// Whether such records are reused.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) const fn fits<R: Record>() -> bool {
    !cfg!(raddle_unpooled)
        && size_of::<R>() <= records::SIZE
        && align_of::<R>() <= records::ALIGN
        && R::PRIVATE_FROM <= records::NAMES.start
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
mod records {
    use std::{alloc::Layout, cell::RefCell, mem::offset_of, ops::Range, ptr::NonNull};

    use crate::{
        memory::{
            epoch,
            free_list::{Node, Stack},
        },
        sync::{
            Ordering::Relaxed,
            atomic::{AtomicPtr, AtomicUsize},
            hint,
        },
    };

    /// Bytes of a record: the head, the accesses and the task. Five cache lines, of which an operation with a small
    /// function uses two if it has one access, and four if it has four.
    pub(super) const SIZE: usize = 320;
    pub(super) const ALIGN: usize = 64;

    /// Records per group, as many as the words of a cache line.
    const GROUP: usize = 8;

    /// Records per batch. Picked.
    const BATCH: usize = 8 * GROUP;

    /// Batches that a thread retires before it has crossbeam-epoch put its bag where it ages: one allocation in 1,280
    /// operations. The bag would hold three times as many, but then records that wait in it are out of the cache when
    /// they are used again. Measured: with 8 the same is gained as with 16, with 32 two thirds of it.
    const BATCHES_PER_BAG: usize = 20;
    const _: () = assert!(BATCHES_PER_BAG * BATCH > 1000, "at most one allocation in a thousand operations");

    /// Batches kept for reuse; what is above goes back to the heap. Picked: 64 Ki records, 20 MiB.
    const KEEP: usize = 1024;

    /// Lines of a record that a push with a small function may write.
    const LINES: [usize; 4] = [0, 64, 128, 192];

    type Record = NonNull<u8>;

    /// The first record of a group that was given back.
    #[repr(C)]
    struct Leader {
        /// In the first record of a batch: the next batch of the stack. The word belongs to the stack for good, operations
        /// leave it alone: a thread that is slow to pop may still read it when the record is an operation again.
        next_batch: AtomicPtr<Leader>,
        /// What pinned threads may still look at and change while the record waits for the epoch.
        _head: [u64; 23],
        /// The other records of the group, on a line of their own behind all accesses. What was there only holders of
        /// the operation ever read.
        names: [Record; GROUP - 1],
        /// The next group of the batch.
        next: Option<NonNull<Leader>>,
    }

    impl Leader {
        /// Where the fields are that belong to whoever has the group.
        fn fields(leader: NonNull<Self>) -> (*mut [Record; GROUP - 1], *mut Option<NonNull<Self>>) {
            let leader = leader.as_ptr();
            // SAFETY: a record is as large; nothing is read.
            let names = unsafe { &raw mut (*leader).names };
            // SAFETY: as above.
            (names, unsafe { &raw mut (*leader).next })
        }
    }

    /// Where a record holds the names of others.
    pub(super) const NAMES: Range<usize> = offset_of!(Leader, names)..size_of::<Leader>();
    const _: () = assert!(NAMES.start.is_multiple_of(64) && NAMES.end == NAMES.start + 64 && NAMES.end <= SIZE);

    impl Node for Leader {
        unsafe fn next<'n>(leader: NonNull<Self>) -> &'n AtomicPtr<Self> {
            // SAFETY: the first word of a record is initialised by `new` and only ever used as this atomic.
            let word = unsafe { &raw const (*leader.as_ptr()).next_batch };
            // SAFETY: as above, and (1).
            unsafe { &*word }
        }
    }

    /// Groups of free records that belong to whoever has this.
    #[derive(Default)]
    struct Batch(Option<NonNull<Leader>>);

    // SAFETY: the records belong to it alone.
    unsafe impl Send for Batch {}

    impl Batch {
        /// Writes the names of `records` into some of them.
        fn of(records: &[Record; BATCH]) -> Self {
            let mut next = None;
            for group in records.chunks_exact(GROUP).rev() {
                let leader = group[0].cast::<Leader>();
                let mut names = [leader.cast(); GROUP - 1];
                names.copy_from_slice(&group[1..]);
                let fields = Leader::fields(leader);
                // SAFETY: this part of the record is nobody else's, by `fits`.
                unsafe { fields.0.write(names) };
                // SAFETY: as above.
                unsafe { fields.1.write(next) };
                next = Some(leader);
            }
            Self(next)
        }

        /// Takes a group.
        fn pop(&mut self) -> Option<Group> {
            let leader = self.0?;
            let fields = Leader::fields(leader);
            // SAFETY: `of` has written both fields, and the record is this batch's.
            let names = unsafe { fields.0.read() };
            // SAFETY: as above.
            self.0 = unsafe { fields.1.read() };
            if let Some(next) = self.0 {
                // SAFETY: the record is at least as long.
                hint::prefetch_write(unsafe { next.byte_add(NAMES.start) }.as_ptr());
            }
            let mut records = [leader.cast(); GROUP];
            records[1..].copy_from_slice(&names);
            prefetch(records[GROUP - 1]);
            Some(Group { records, len: GROUP })
        }

        fn free_all(&mut self) {
            while let Some(mut group) = self.pop() {
                group.free_all();
            }
        }
    }

    /// Some free records.
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

    /// Asks for a record that is going to be written soon.
    #[inline]
    fn prefetch(record: Record) {
        for line in LINES {
            // SAFETY: a record is as long.
            hint::prefetch_write(unsafe { record.byte_add(line) }.as_ptr());
        }
    }

    /// What a thread keeps.
    struct Cache {
        free: Group,
        more: Batch,
        retired: [Record; BATCH],
        retired_len: usize,
        /// Batches in the thread's bag.
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

        /// Goes on with the next group, if there is one.
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
                // SAFETY: the closure owns the record.
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
    /// How many batches the stack holds, roughly.
    static KEPT: AtomicUsize = AtomicUsize::new(0);

    const LAYOUT: Layout = match Layout::from_size_align(SIZE, ALIGN) {
        Ok(layout) => layout,
        Err(_) => panic!("the record's layout is valid"),
    };

    fn new() -> Record {
        // SAFETY: the size is above zero.
        let record = unsafe { super::raw(LAYOUT) };
        // SAFETY: nobody else knows the record.
        unsafe { record.cast::<AtomicPtr<Leader>>().write(AtomicPtr::new(std::ptr::null_mut())) };
        record
    }

    pub(super) fn free(record: Record) {
        // SAFETY: every record came from `new`.
        unsafe { std::alloc::dealloc(record.as_ptr(), LAYOUT) };
    }

    /// A record for the caller alone.
    #[inline]
    pub(super) fn take() -> Record {
        // The thread may be ending, with its cache gone.
        match CACHE.try_with(|cache| cache.borrow_mut().take()) {
            Ok(Some(record)) => record,
            _ => refill(),
        }
    }

    #[cold]
    fn refill() -> Record {
        // Not while the cache is borrowed: pinning may run what others have retired.
        let mut more = pop_batch();
        let Some(mut group) = more.pop() else {
            return new();
        };
        let record = group.pop().unwrap_or_else(new);
        let kept = CACHE.try_with(|cache| {
            let mut cache = cache.borrow_mut();
            // Code that ran meanwhile may have filled it.
            if cache.free.len == 0 && cache.more.0.is_none() {
                cache.free = std::mem::replace(&mut group, Group::EMPTY);
                cache.more = std::mem::take(&mut more);
            }
        });
        // By the cache's owner, or because the thread is ending.
        let _ = kept;
        free_later(group, more);
        record
    }

    /// Frees records that came from the stack. Not at once: a thread that is slow to pop may still read a batch's word.
    fn free_later(mut group: Group, mut more: Batch) {
        if group.len > 0 || more.0.is_some() {
            let free = move || {
                group.free_all();
                more.free_all();
            };
            // SAFETY: the closure owns the records.
            unsafe { epoch::pin().retire(free) };
        }
    }

    /// Gives `record` back once no helper can see it.
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

    /// As [`put_back`], by a thread that is ending.
    #[cold]
    fn retire_late(record: Record) {
        // SAFETY: the closure owns the record.
        unsafe { epoch::pin().retire(move || free(record)) };
    }

    /// Retires what the thread has collected, which is a batch.
    #[cold]
    fn retire_batch() {
        let (batch, bag_len) = CACHE.with(|cache| {
            let mut cache = cache.borrow_mut();
            cache.bag_len = (cache.bag_len + 1) % BATCHES_PER_BAG;
            (Batch::of(&cache.retired), cache.bag_len)
        });
        let guard = epoch::pin();
        // SAFETY: the closure owns the batch.
        unsafe { guard.retire(move || push_batch(batch)) };
        if bag_len == 0 {
            guard.flush();
        }
    }

    fn push_batch(mut batch: Batch) {
        // Relaxed: a bound on memory, not a decision that anything else hangs on.
        if KEPT.fetch_add(1, Relaxed) >= KEEP {
            KEPT.fetch_sub(1, Relaxed);
            batch.free_all();
            return;
        }
        if let Some(first) = batch.0.take() {
            // SAFETY: the batch is this function's, which runs after the epoch; what is in the stack is never freed.
            unsafe { BATCHES.push(first) };
        }
    }

    fn pop_batch() -> Batch {
        let first = BATCHES.pop();
        if first.is_some() {
            // Relaxed: as above.
            KEPT.fetch_sub(1, Relaxed);
        }
        Batch(first)
    }
}
