//! The threads' caches of records, and the batches that they exchange. Records of each size have caches and batches of
//! their own.
//!
//! # States of a record
//!
//! 1. *In use*, from [`take`] to [`put_back`].
//! 2. *Retired*: on a list of retired records. Pinned threads may still use the record until the epoch has passed. A
//!    list is begun by a thread; once it is full, it *waits* on a stack of all threads, until some thread takes all
//!    that wait and passes them to the epoch together.
//! 3. *Free*: on a list whose epoch has passed, or itself the memory of a list.
//! 4. *Spare*: in its slab (`slabs.rs`), from which records are taken if no batch is left, and to which those beyond a
//!    number of batches are given back.
//!
//! A batch is a full list of records. The list itself is stored in a record of [normal size](LISTS) that was free when
//! the list was begun, so batches need no other memory, and no retired record is written to. (Bonwick and Adams call
//! such lists *magazines*: "Magazines and Vmem", USENIX 2001.)
//!
//! # Who may touch what
//!
//! * The slots of a list: the thread that fills it, then the closure that owns the retired list, then the thread that
//!   empties it.
//! * The first word of a record: see `marks.rs`. In a list on a stack, it belongs to the stack, and then to the thread
//!   or closure that has taken all lists of the stack; in a popped list, it is null. It is an atomic pointer at all
//!   times, because a slow pop may still read it when the record is in use again, even as a list that waits: the stack
//!   from which it pops has another head by then.
//! * A [`Cache`]: its thread. Other threads never get the lists in it, of which there are up to two for each size. So a
//!   thread at rest keeps up to 29 kB if its operations have at most four accesses and all of one size, as is usual, or
//!   107 kB if it uses all sizes.
//!
//! The only edges are those of the stacks (`free_list.rs`) and of the epoch. Threads share only the stacks and counts
//! of their batches. A pinned thread may use the records of a list that waits, so the thread that retires the list must
//! know that they were unlinked: it acquires that with the list (edge `batch`).
//!
//! A reused record is usually in another core's cache, so a thread prefetches the lines of a list that it takes from
//! the stack, and each record shortly before using it.

use std::{
    cell::Cell,
    mem::MaybeUninit,
    ptr::{NonNull, null_mut},
};

#[cfg(any(raddle_loom, raddle_shuttle))]
use super::epoch::Stamp;
use super::{
    epoch,
    free_list::{BatchStack, Node},
    slabs::Records,
};
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
use super::{keeper::Keeper, slabs::Slabs};
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
use crate::sync::process::PerProcess;
use crate::sync::{
    Ordering::Relaxed,
    atomic::{AtomicPtr, AtomicUsize},
    cell::UnsafeCell,
    edge::{removed, step},
    hint, thread_static,
};

/// The size of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[cfg_attr(any(raddle_loom, raddle_shuttle), allow(dead_code))]
pub(crate) enum RecordSize {
    /// Two cache lines: room for one access and a bare task with a small function.
    Small,
    /// Three cache lines: room for up to three accesses and a bare task with a small function.
    Medium,
    /// Room for four accesses and any task.
    Normal,
    /// Room for [`MORE_ACCESSES`] more.
    Wide,
}

impl RecordSize {
    pub(super) const ALL: [Self; SIZES] = [Self::Small, Self::Medium, Self::Normal, Self::Wide];

    /// Returns the size with this discriminant.
    #[inline]
    pub(crate) const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Small,
            1 => Self::Medium,
            2 => Self::Normal,
            _ => Self::Wide,
        }
    }

    /// Returns the size in bytes.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            _ if MODEL => size_of::<RecordList>(),
            Self::Small => 128,
            Self::Medium => 192,
            Self::Normal => NORMAL,
            Self::Wide => NORMAL + MORE_ACCESSES * ACCESS_BYTES,
        }
    }
}

/// The number of sizes.
const SIZES: usize = 4;

/// The size of the records that store lists, of records of any size.
pub(super) const LISTS: RecordSize = RecordSize::Normal;

/// The size of a record of normal size, in bytes.
const NORMAL: usize = 320;
/// The number of accesses for which a wide record has more room than one of normal size.
pub(crate) const MORE_ACCESSES: usize = 12;
/// The size of an access.
pub(crate) const ACCESS_BYTES: usize = 32;

pub(super) const ALIGN: usize = 64;

const MODEL: bool = cfg!(any(raddle_loom, raddle_shuttle));

/// The number of records on a full list.
pub(super) const CAPACITY: usize = if MODEL { 2 } else { NORMAL / size_of::<usize>() - 1 };

/// The number of full lists of a size that are retired together. crossbeam-epoch then allocates, so there is one
/// allocation per 1,248 operations. Records on more lists would have left the processor's cache by the time they are
/// reused.
const LISTS_TOGETHER: usize = 32;
const _: () =
    assert!(MODEL || LISTS_TOGETHER * CAPACITY > 1000, "there must be at most one allocation in a thousand operations");

/// The maximum number of batches kept for reuse; the records of further ones are given back to their slabs. Not tuned:
/// 6 to 10 MiB of records of each size.
const fn most_kept(size: RecordSize) -> usize {
    let records = match size {
        RecordSize::Small => 1 << 16,
        RecordSize::Medium | RecordSize::Normal => 1 << 15,
        RecordSize::Wide => 1 << 13,
    };
    records / (CAPACITY + 1)
}

/// How many records ahead a thread prefetches those that it will use: enough for lines that come from another core.
/// Measured with pushes while the cores were far from each other.
const AHEAD: usize = 4;

/// A record, as the pool sees it.
pub(super) type Record = NonNull<RecordList>;

type RecordSlot = UnsafeCell<MaybeUninit<Record>>;

/// A list of records, stored in a free record.
#[repr(C)]
pub struct RecordList {
    /// The next list on the stack.
    next: AtomicPtr<RecordList>,
    slots: [RecordSlot; CAPACITY],
    /// Written by the record's user.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    contents: UnsafeCell<usize>,
    #[cfg(any(raddle_loom, raddle_shuttle))]
    stamp: Stamp,
}

const _: () = assert!(size_of::<RecordList>() <= LISTS.bytes() && align_of::<RecordList>() <= ALIGN);

impl RecordList {
    /// Returns slot `at` of `list`.
    ///
    /// # Safety
    /// 1. The record is not freed while the reference is used.
    /// 2. `at` is below [`CAPACITY`].
    #[inline]
    unsafe fn slot<'l>(list: NonNull<Self>, at: usize) -> &'l RecordSlot {
        debug_assert!(at < CAPACITY);
        // SAFETY: by (1) the field is in bounds; only its address is computed.
        let slots = unsafe { &raw const (*list.as_ptr()).slots };
        // SAFETY: (2).
        let slot = unsafe { slots.cast::<RecordSlot>().add(at) };
        // SAFETY: (1). A slot may hold any bytes.
        unsafe { &*slot }
    }

    /// Returns record `at` of `list`.
    ///
    /// # Safety
    /// 1. The caller owns the list.
    /// 2. Slot `at` has been set since the list was begun.
    #[inline]
    unsafe fn get(list: NonNull<Self>, at: usize) -> Record {
        // SAFETY: by (1) the record is not freed, and by (2) `at` is below `CAPACITY`.
        let slot = unsafe { Self::slot(list, at) };
        // SAFETY: by (1) no other thread uses the slot.
        let record = slot.with(|slot| unsafe { slot.read() });
        // SAFETY: (2).
        unsafe { record.assume_init() }
    }

    /// Sets slot `at` of `list` to `record`.
    ///
    /// # Safety
    /// 1. The caller owns the list.
    /// 2. `at` is below [`CAPACITY`].
    #[inline]
    unsafe fn set(list: NonNull<Self>, at: usize, record: Record) {
        // SAFETY: by (1) the record is not freed; (2).
        let slot = unsafe { Self::slot(list, at) };
        // SAFETY: by (1) no other thread uses the slot.
        slot.with_mut(|slot| unsafe { slot.write(MaybeUninit::new(record)) });
    }
}

impl Node for RecordList {
    unsafe fn next<'n>(list: NonNull<Self>) -> &'n AtomicPtr<Self> {
        // SAFETY: (1).
        unsafe { word(list) }
    }
}

/// A thread's cache of records. This type has no drop glue, so an access to the thread-local needs no check. Its size
/// is a power of two, which makes an index cheap.
#[repr(align(64))]
struct Cache {
    /// The list from which records are taken, or null.
    free: Cell<*mut RecordList>,
    /// The number of records left on `free`, not counting the one that holds the list. Zero if there is no list.
    free_len: Cell<usize>,
    /// The list of the thread's retired records, or null.
    retired: Cell<*mut RecordList>,
    /// The number of records on `retired`, or `CAPACITY` if there is no list.
    retired_len: Cell<usize>,
}

impl Cache {
    const fn new() -> Self {
        Self {
            free: Cell::new(null_mut()),
            free_len: Cell::new(0),
            retired: Cell::new(null_mut()),
            retired_len: Cell::new(CAPACITY),
        }
    }

    /// Takes a record of this size, which is that of the cache.
    #[inline]
    fn take(&self, size: RecordSize) -> Option<Taken> {
        let Some(len) = self.free_len.get().checked_sub(1) else { return self.take_list(size) };
        // SAFETY: the list is not null, since `free_len` is above zero.
        let list = unsafe { NonNull::new_unchecked(self.free.get()) };
        self.free_len.set(len);
        let mut later = null_mut();
        if len >= AHEAD {
            // SAFETY: the thread owns the list, whose first `free_len` slots are set.
            let ahead = unsafe { RecordList::get(list, len - AHEAD) };
            prefetch(ahead, size);
            later = ahead.as_ptr();
        }
        // SAFETY: the thread owns the list, whose first `free_len` slots are set.
        Some(Taken { record: unsafe { RecordList::get(list, len) }, later })
    }

    /// Takes the record that stores the empty list, if there is one. If it is not of the size that was asked for, it is
    /// put back: it may neither be given to its slab nor be pushed again before the epoch has passed, since a slow pop
    /// may read the list's first word.
    #[cold]
    fn take_list(&self, size: RecordSize) -> Option<Taken> {
        let list = NonNull::new(self.free.get())?;
        self.free.set(null_mut());
        if size != LISTS {
            if removed(step::LISTS_ARE_RETIRED) {
                give_back(list, LISTS);
            } else {
                put_back(list, LISTS);
            }
            return None;
        }
        Some(Taken { record: list, later: null_mut() })
    }

    /// Makes `list`, which has `len` records, the list from which records are taken. The cache must not already have
    /// one.
    fn open(&self, list: Record, len: usize) {
        debug_assert!(self.free.get().is_null(), "a retired closure has filled the cache");
        self.free.set(list.as_ptr());
        self.free_len.set(len);
    }

    /// Adds `record` to the list of retired records. Returns `false` if the list is full or there is none.
    #[inline]
    fn put_back(&self, record: Record) -> bool {
        let len = self.retired_len.get();
        if len == CAPACITY {
            return false;
        }
        // SAFETY: the list is not null, since `retired_len` is below `CAPACITY`.
        let list = unsafe { NonNull::new_unchecked(self.retired.get()) };
        // SAFETY: the thread owns the list, and `len` is below `CAPACITY`.
        unsafe { RecordList::set(list, len, record) };
        self.retired_len.set(len + 1);
        true
    }

    /// Begins a list of retired records in `list`, which is free. Returns the list before, which is full, if there was
    /// one.
    fn begin(&self, list: Record) -> Option<Record> {
        debug_assert!(self.retired_len.get() == CAPACITY, "a retired closure has begun a list");
        self.retired_len.set(0);
        NonNull::new(self.retired.replace(list.as_ptr()))
    }

    /// Empties the cache. Returns its lists, and how many records they have.
    fn clear(&self) -> [(*mut RecordList, usize); 2] {
        [
            (self.free.replace(null_mut()), self.free_len.replace(0)),
            (self.retired.replace(null_mut()), self.retired_len.replace(CAPACITY)),
        ]
    }

    /// Gives back all records in the cache of a thread that is ending, once the epoch has passed.
    fn end(&self, size: RecordSize) {
        for (list, len) in self.clear() {
            if let Some(list) = NonNull::new(list) {
                give_back_later(list, len, size);
            }
        }
    }
}

/// A record taken from a cache.
pub(super) struct Taken {
    pub(super) record: Record,
    /// The record that the thread is going to take [`AHEAD`] records later, or null if that is not known. It may only
    /// be prefetched.
    #[cfg_attr(any(raddle_loom, raddle_shuttle, raddle_unpooled), allow(dead_code))]
    pub(super) later: *mut RecordList,
}

thread_static! {
    static CACHES: [Cache; SIZES] = [const { Cache::new() }; SIZES]
}

/// Calls `f` with the thread's cache of records of this size.
#[inline(always)]
fn with_cache<R>(size: RecordSize, f: impl FnOnce(&Cache) -> R) -> R {
    CACHES.with(|caches| f(&caches[size as usize]))
}

/// Ends the thread's caches.
fn end_caches() {
    RecordSize::ALL.into_iter().for_each(|size| with_cache(size, |cache| cache.end(size)));
}

/// Empties the thread's caches when the thread ends.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
struct CacheOwner;

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
impl Drop for CacheOwner {
    fn drop(&mut self) {
        end_caches();
    }
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
std::thread_local!(static OWNER: CacheOwner = const { CacheOwner });

/// Returns whether the thread may keep lists in its cache, which is so until the thread is ending.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
fn may_keep() -> bool {
    OWNER.try_with(|_| ()).is_ok()
}

/// Returns `true`: the threads of models end with [`PooledRecord::end_thread`].
#[cfg(any(raddle_loom, raddle_shuttle))]
fn may_keep() -> bool {
    true
}

/// The batches of one size, shared by all threads.
#[cfg_attr(any(raddle_loom, raddle_shuttle), derive(Default))]
struct Depot {
    batches: BatchStack<RecordList>,
    /// The approximate number of batches on the stack.
    kept: AtomicUsize,
    /// The full lists of retired records that wait.
    waiting: BatchStack<RecordList>,
    /// The number of lists that have ever been added to those that wait. Models do not count them.
    retired: AtomicUsize,
    /// The number of slabs left by the thread that has last given records back while idle.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    slabs_left: AtomicUsize,
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
static DEPOTS: [Depot; SIZES] = [const {
    Depot {
        batches: BatchStack { head: AtomicPtr::new(null_mut()) },
        kept: AtomicUsize::new(0),
        waiting: BatchStack { head: AtomicPtr::new(null_mut()) },
        retired: AtomicUsize::new(0),
        slabs_left: AtomicUsize::new(1),
    }
}; SIZES];
#[cfg(raddle_loom)]
loom::lazy_static! {
    static ref DEPOTS: [Depot; SIZES] = Default::default();
}
#[cfg(raddle_shuttle)]
shuttle::lazy_static! {
    static ref DEPOTS: [Depot; SIZES] = Default::default();
}

impl Depot {
    /// Pops a batch.
    fn pop(&self) -> Option<Record> {
        let list = self.batches.pop()?;
        // Relaxed: only an approximate bound on memory.
        self.kept.fetch_sub(1, Relaxed);
        Some(list)
    }
}

fn depot(size: RecordSize) -> &'static Depot {
    &DEPOTS[size as usize]
}

/// Prefetches the cache lines of a record of this size that a push with a small function may write.
#[inline(always)]
fn prefetch(record: Record, size: RecordSize) {
    let line = |number: usize| hint::prefetch_write(record.as_ptr().wrapping_byte_add(64 * number));
    line(0);
    line(1);
    if size != RecordSize::Small {
        line(2);
    }
    if size as u8 > RecordSize::Medium as u8 {
        line(3);
    }
}

/// The slabs that this process has allocated. A forked child begins without slabs: its parent's threads may have been
/// changing the list of slabs.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
static SLABS: [PerProcess<Slabs>; SIZES] = [const { PerProcess::new() }; SIZES];

/// Returns this process's slabs of records of this size.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(super) fn slabs(size: RecordSize) -> &'static Slabs {
    SLABS[size as usize].get(|| Slabs::new(size.bytes()))
}

/// Returns the first word of a record.
///
/// # Safety
/// 1. The record is not freed while the reference is used.
pub(super) unsafe fn word<'r>(record: Record) -> &'r AtomicPtr<RecordList> {
    #[cfg(any(raddle_loom, raddle_shuttle))]
    // SAFETY: the memory of a record is kept until the interleaving ends.
    unsafe { record.as_ref() }.stamp.assert_alive();
    // SAFETY: (1).
    unsafe { super::marks::word(record) }
}

/// Takes records that no thread has.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
fn take_records(size: RecordSize) -> Records {
    slabs(size).take(super::slabs::TOGETHER)
}

/// Makes sure that there are spare records for about a thousand operations, so that the first do not take longer than
/// the next.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) fn prepare() {
    if cfg!(raddle_unpooled) {
        return;
    }
    for (size, operations) in [(RecordSize::Small, 1000), (RecordSize::Medium, 1), (LISTS, 1)] {
        let slabs = slabs(size);
        while slabs.spare() < operations {
            slabs.add(0);
        }
    }
}

/// Gives back a record, which the caller owns and no pinned thread uses.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(super) fn give_back(record: Record, size: RecordSize) {
    // SAFETY: the record came from the slabs of this process or of an ancestor, and the caller owns it.
    unsafe { slabs(size).give_back(record) };
}

/// Takes a free record from the thread's cache, from the stack of batches, or from a slab.
#[inline(always)]
pub(super) fn take(size: RecordSize) -> Taken {
    with_cache(size, |cache| cache.take(size)).unwrap_or_else(|| refill(size))
}

#[cold]
fn refill(size: RecordSize) -> Taken {
    // The pop pins the thread, and a pin may run retired closures. No such closure adds to the cache, so the cache is
    // still empty afterwards.
    let Some(list) = depot(size).pop() else {
        return take_from_slab(size);
    };
    // The first line is already in the processor's cache, since the pop read the word in it.
    for line in 1..LISTS.bytes().div_ceil(64) {
        hint::prefetch_write(list.as_ptr().wrapping_byte_add(64 * line));
    }
    // SAFETY: a list on the stack is full, and this thread owns it now.
    let record = unsafe { RecordList::get(list, CAPACITY - 1) };
    let left = CAPACITY - 1;
    for at in (0..left).rev().take(AHEAD) {
        // SAFETY: a list on the stack is full, and this thread owns it now.
        prefetch(unsafe { RecordList::get(list, at) }, size);
    }
    if may_keep() {
        with_cache(size, |cache| cache.open(list, left));
    } else {
        give_back_later(list, left, size);
    }
    Taken { record, later: null_mut() }
}

/// Takes records of a slab. Returns the first, and puts the others on a list.
fn take_from_slab(size: RecordSize) -> Taken {
    let taken = take_records(size);
    let (&record, rest) = taken.split_first().expect("a slab has records");
    let (list, rest) = match rest {
        _ if !may_keep() => (None, rest),
        [list, rest @ ..] if size == LISTS => (Some(*list), rest),
        [] => (None, rest),
        _ => (Some(take(LISTS).record), rest),
    };
    if let Some(list) = list {
        for (at, &record) in rest.iter().rev().enumerate() {
            // SAFETY: the thread owns the list, and `at` is below `CAPACITY`.
            unsafe { RecordList::set(list, at, record) };
        }
        with_cache(size, |cache| cache.open(list, rest.len()));
    } else {
        rest.iter().for_each(|&record| give_back(record, size));
    }
    Taken { record, later: null_mut() }
}

/// Makes `record`, owned by the caller, available for reuse once no pinned thread can use it.
#[inline]
pub(super) fn put_back(record: Record, size: RecordSize) {
    if !with_cache(size, |cache| cache.put_back(record)) {
        put_on_next(record, size);
    }
}

/// Begins another list, puts `record` on it, and passes on the full list, if there is one.
#[cold]
fn put_on_next(record: Record, size: RecordSize) {
    if !may_keep() {
        return retire_late(record, size);
    }
    // Taken before the list is begun: see `refill`.
    let (list, record) =
        if removed(step::LISTS_ARE_FREE) { (record, take(LISTS).record) } else { (take(LISTS).record, record) };
    let full = with_cache(size, |cache| {
        let full = cache.begin(list);
        let put = cache.put_back(record);
        debug_assert!(put, "a list has no room although it was begun");
        full
    });
    if let Some(full) = full {
        let depot = depot(size);
        // SAFETY: this thread owns the list, which is not freed while it waits; nothing is popped from this stack.
        unsafe { depot.waiting.push(full) };
        // Relaxed: says only that operations end, and roughly how many lists wait.
        if MODEL || depot.retired.fetch_add(1, Relaxed) % LISTS_TOGETHER == LISTS_TOGETHER - 1 {
            retire_waiting(size);
            #[cfg(not(any(raddle_loom, raddle_shuttle)))]
            Keeper::wake();
        }
        // The reclaiming of other objects may have retired slabs.
        epoch::retired(0);
    }
}

/// Makes the records of all lists that wait available to all threads once the epoch has passed.
fn retire_waiting(size: RecordSize) {
    // SAFETY: a function that owns the list and its records, which are plain memory.
    unsafe { depot(size).waiting.retire_all(move |list| keep(list, size)) };
}

/// Retires a record on a thread that is ending.
#[cold]
fn retire_late(record: Record, size: RecordSize) {
    // SAFETY: the closure owns the record, which is plain memory.
    unsafe { epoch::pin().retire(move || give_back(record, size)) };
}

/// Pushes a full list onto the stack, or gives its records back if the stack has enough lists. The caller owns the
/// list, whose epoch has passed.
fn keep(full: Record, size: RecordSize) {
    // Relaxed: only an approximate bound on memory.
    if depot(size).kept.fetch_add(1, Relaxed) >= most_kept(size) {
        depot(size).kept.fetch_sub(1, Relaxed);
        return give_back_all(full, CAPACITY, size);
    }
    // SAFETY: the caller owns the list, whose epoch has passed, and records are not freed while they are on the stack.
    unsafe { depot(size).batches.push(full) };
}

/// The number of steps in vain after which [`shrink`] ends: more than the epochs that a batch has to wait for. While
/// another thread is pinned, the epoch does not pass, and what waits for it is left.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const STEPS_IN_VAIN: u32 = 8;

/// Returns how many lists have ever been filled with retired records.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) fn retired_batches() -> usize {
    // Relaxed: only a sign that operations end.
    RecordSize::ALL.into_iter().map(|size| depot(size).retired.load(Relaxed)).fold(0, usize::wrapping_add)
}

/// Returns whether an idle thread should call [`shrink`]: there are batches or lists that wait, there are more slabs
/// than the last call has left, or pages that it has given back have been used again.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) fn may_shrink() -> bool {
    RecordSize::ALL.into_iter().any(|size| {
        let depot = depot(size);
        // Relaxed: only approximate numbers.
        depot.kept.load(Relaxed) > 0
            || !depot.waiting.head.load(Relaxed).is_null()
            || slabs(size).len() > depot.slabs_left.load(Relaxed)
            || slabs(size).is_reused()
    })
}

/// Retires the lists that wait. Then gives free records back, and frees slabs, while `goes_on` returns `true` and no
/// list is filled after [`retired_batches`] has returned `retired`. Calls `rest` after a step in vain. The caller is
/// the keeper, so no other thread does the same.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) fn shrink(_: &Keeper, retired: usize, goes_on: impl Fn() -> bool, rest: impl Fn()) {
    RecordSize::ALL.into_iter().for_each(retire_waiting);
    epoch::pin().flush();
    let goes_on = || goes_on() && retired_batches() == retired;
    // The steps in a row that found no batch, and left as many spare records and slabs as there were, and the sum of
    // these numbers.
    let (mut in_vain, mut sum) = (0, 0usize);
    while in_vain < STEPS_IN_VAIN {
        if !goes_on() {
            return;
        }
        // Makes batches available whose epoch has passed.
        epoch::pin().flush();
        let (mut found, before) = (false, std::mem::take(&mut sum));
        for size in RecordSize::ALL {
            if let Some(list) = depot(size).pop() {
                // A slow pop may read the list's first word.
                give_back_later(list, CAPACITY, size);
                found = true;
            }
            sum = sum.wrapping_add(slabs(size).spare()).wrapping_add(slabs(size).len());
        }
        in_vain = if found || sum != before { 0 } else { in_vain + 1 };
        if in_vain == STEPS_IN_VAIN / 2 {
            RecordSize::ALL.into_iter().for_each(|size| slabs(size).free_all_spare(goes_on));
        }
        if (1..STEPS_IN_VAIN).contains(&in_vain) {
            rest();
        }
    }
    // Relaxed: only an approximate number. A slab is left in any case.
    RecordSize::ALL.into_iter().for_each(|size| depot(size).slabs_left.store(slabs(size).len().max(1), Relaxed));
}

/// Returns the number of bytes that the process has allocated for records.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) fn bytes() -> usize {
    RecordSize::ALL.into_iter().map(|size| slabs(size).bytes()).sum()
}

/// Gives back `list`, which the caller owns, and its first `len` records once the epoch has passed. Until then, pinned
/// threads may still use the records, and a slow pop may read the list's first word.
fn give_back_later(list: Record, len: usize, size: RecordSize) {
    // SAFETY: the closure owns the list and its records, which are plain memory.
    unsafe { epoch::pin().retire(move || give_back_all(list, len, size)) };
}

/// Gives back `list`, which the caller owns, and its first `len` records.
fn give_back_all(list: Record, len: usize, size: RecordSize) {
    for at in 0..len {
        // SAFETY: the caller owns the list, whose first `len` slots are set.
        give_back(unsafe { RecordList::get(list, at) }, size);
    }
    give_back(list, LISTS);
}

/// Forgets, in a forked child, the parent's free and retired records, which are not in the child's [`slabs`]. The
/// parent's threads cannot have left a stack half changed, since every change of a stack is a single step.
#[cfg_attr(not(all(target_os = "linux", not(miri))), allow(dead_code))]
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) fn leave() {
    for size in RecordSize::ALL {
        let _ = with_cache(size, Cache::clear);
        // Relaxed: the child has one thread.
        depot(size).batches.head.store(null_mut(), Relaxed);
        depot(size).waiting.head.store(null_mut(), Relaxed);
        depot(size).kept.store(0, Relaxed);
        depot(size).slabs_left.store(1, Relaxed);
    }
}

#[cfg(any(raddle_loom, raddle_shuttle))]
pub use model::PooledRecord;

#[cfg(any(raddle_loom, raddle_shuttle))]
pub(super) use model::{begin, end_model, vacate};

/// Uses the depot for the first time before a model's threads run: see `Flavour::begin`.
#[cfg(any(raddle_loom, raddle_shuttle))]
pub(super) fn begin_model() {
    let _ = &*DEPOTS;
}

/// Records in models, where operations' records do not come from the pool: see `pool.rs`.
#[cfg(any(raddle_loom, raddle_shuttle))]
mod model {
    use super::*;

    fn new() -> RecordList {
        RecordList {
            next: AtomicPtr::new(null_mut()),
            slots: std::array::from_fn(|_| UnsafeCell::new(MaybeUninit::uninit())),
            contents: UnsafeCell::new(0),
            stamp: Stamp::new(),
        }
    }

    /// Initialises a record of a new slab.
    ///
    /// # Safety
    /// 1. The memory is that of a record, and no other thread knows it.
    pub(in crate::memory) unsafe fn begin(record: Record) {
        // SAFETY: (1).
        unsafe { record.write(new()) };
    }

    /// Uses the contents of a spare record, as a thread does that gives its pages back to the system.
    pub(in crate::memory) fn vacate(record: Record) {
        // SAFETY: the memory of a record is kept until the interleaving ends.
        unsafe { record.as_ref() }.contents.with_mut(|_| ());
    }

    /// Marks the records of a slab as freed, but calls `free` only when the interleaving ends.
    pub(in crate::memory) fn end_model(records: Vec<Record>, free: impl FnOnce() + 'static) {
        let mut free: Option<Box<dyn FnOnce()>> = Some(Box::new(free));
        for record in records {
            // SAFETY: the memory of a record is kept until the interleaving ends.
            let record = unsafe { record.as_ref() };
            // Nothing may use the record's contents any more.
            record.contents.with_mut(|_| ());
            record.stamp.kill(free.take().unwrap_or_else(|| Box::new(|| ())));
        }
    }

    /// Takes a record from the heap instead of a slab: slabs have models of their own.
    pub(super) fn take_records(_: RecordSize) -> Records {
        Records::from_iter([NonNull::from(Box::leak(Box::new(new())))])
    }

    /// Marks a record as freed, but keeps its memory until the interleaving ends.
    pub(super) fn give_back(record: Record, _: RecordSize) {
        // SAFETY: the closure runs when the interleaving is over, so no thread uses the record any more.
        let dealloc = move || drop(unsafe { Box::from_raw(record.as_ptr()) });
        // SAFETY: the record's memory is kept until the interleaving is over.
        unsafe { record.as_ref() }.stamp.kill(Box::new(dealloc));
    }

    /// A record in use.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PooledRecord(pub(in crate::memory) Record, pub(in crate::memory) RecordSize);

    // SAFETY: loom and shuttle run every thread of a model on one OS thread.
    unsafe impl Send for PooledRecord {}

    impl PooledRecord {
        /// Takes a record, as a push does.
        pub fn take() -> Self {
            Self(take(LISTS).record, LISTS)
        }

        /// Takes a record whose size is not that of the records that store lists.
        pub fn take_small() -> Self {
            Self(take(RecordSize::Small).record, RecordSize::Small)
        }

        /// Writes to the whole record, as its user does.
        pub fn write(self, value: usize) {
            // SAFETY: the memory of a record is kept until the interleaving ends.
            let record = unsafe { self.0.as_ref() };
            record.stamp.check();
            // SAFETY: the record is in use by this thread; loom reports any other access.
            record.contents.with_mut(|contents| unsafe { *contents = value });
            record.slots.iter().for_each(|slot| slot.with_mut(|_| ()));
        }

        /// Reads the whole record.
        pub fn read(self) -> usize {
            // SAFETY: the memory of a record is kept until the interleaving ends.
            let record = unsafe { self.0.as_ref() };
            record.stamp.check();
            record.slots.iter().for_each(|slot| slot.with(|_| ()));
            // SAFETY: no thread writes while pinned threads may read; loom reports a write.
            record.contents.with(|contents| unsafe { *contents })
        }

        /// Puts the record back, as the end of an operation does.
        pub fn put_back(self) {
            put_back(self.0, self.1);
        }

        /// Calls `find`, which may return a pointer to a record, and reads that record. The thread is pinned meanwhile.
        pub fn read_pinned(find: impl FnOnce() -> *mut ()) -> Option<usize> {
            let _guard = epoch::pin();
            NonNull::new(find().cast()).map(|record| Self(record, LISTS).read())
        }

        /// Returns a pointer for [`read_pinned`](Self::read_pinned).
        pub fn as_ptr(self) -> *mut () {
            self.0.as_ptr().cast()
        }

        /// Returns the record at `pointer`.
        ///
        /// # Panics
        /// If the pointer is null.
        pub fn from_ptr(pointer: *mut ()) -> Self {
            Self(NonNull::new(pointer.cast()).expect("the address of a record is not null"), LISTS)
        }

        /// Returns whether the record has been freed.
        pub fn is_freed(self) -> bool {
            // SAFETY: the memory of a record is kept until the interleaving ends.
            unsafe { self.0.as_ref() }.stamp.is_dead()
        }

        /// Ends the thread's cache, as the end of the thread does.
        pub fn end_thread() {
            end_caches();
        }
    }
}
#[cfg(any(raddle_loom, raddle_shuttle))]
use model::{give_back, take_records};
