//! One operation's record: its accesses, its counters and its task.

use std::{marker::PhantomData, mem::MaybeUninit, ops::Deref, ptr::NonNull, slice};

use super::{
    access::{Access, Arity, Mode},
    apart::{AccessBlock, Apart},
    queue::VarQueue,
    queued::Queued,
};
use crate::{
    memory::{
        epoch::{self, Stamp},
        marks,
        pool::{self, PoolWord, Record, RecordSize},
    },
    sync::{
        Ordering::Relaxed,
        atomic::{AtomicPtr, AtomicU32},
        cell::UnsafeCell,
        edge::{self, acquire, acquire_release, release, removed, step},
        hint,
    },
};

/// The number of accesses that a record of normal size holds.
pub const INLINE_ACCESSES: usize = 4;
/// The number of accesses that a wide record holds. In models, records come from the heap, and none is wide.
pub const WIDE_ACCESSES: usize =
    if cfg!(any(raddle_loom, raddle_shuttle)) { INLINE_ACCESSES } else { INLINE_ACCESSES + pool::MORE_ACCESSES };

/// Set in `unregistered` if one of the variables was found to be deleted.
const REJECTED: u32 = 1;
/// One access in `unregistered`.
pub(super) const ONE: u32 = 2;

/// The head of one operation's record. The record lives from its creation ([`OpRef::new_with`],
/// [`OpRef::new_several`]) until the shares of its holders and accesses have ended and the epoch has passed.
///
/// The head is followed directly by the accesses and then by the task, so an operation uses no more cache lines than it
/// needs. Most operations have one access, which shares a line with the head if the pool has aligned the record. The
/// task is changed by holders only. Until the epoch has passed, pinned threads may read the constant parts of the task
/// and everything in front of it, and may change the atomics in front of it.
#[repr(C, align(32))]
pub struct Op<T> {
    /// Reserved for the pool.
    _pool: MaybeUninit<PoolWord>,
    /// The number of accesses not yet counted as satisfied, plus one until a push of several accesses is over. A push
    /// that finds all accesses satisfied does not change it.
    pub(super) wait: AtomicU32,
    /// The number of accesses not known to be in their queues, times [`ONE`], and the flag `REJECTED`. The count falls,
    /// so one comparison shows whether the operation is registered.
    unregistered: AtomicU32,
    /// The number of shares of the record: one for each access in it until it is spent and the tail is past it, or one
    /// for all accesses [apart](Apart), and one for each [holder](OpRef::hold).
    live: AtomicU32,
    /// The number of accesses if they are in the record, or [`APART`].
    inline: u8,
    /// Where the task begins, in [steps](STEP) from the record's start. The value follows from `inline`, but computing
    /// it each time costs some 25 more instructions per run.
    task_at: u8,
    /// The operation's priority band, for the scheduler and for what traces and dumps report.
    pub band: u8,
    pub(super) queued: Queued,
    /// The next operation in the list that contains this one: a [`ReadyList`] or a scheduler queue. Before that:
    /// the record of an operation that the same thread is going to push soon, or null, for prefetches
    /// ([`later`](Self::later)).
    pub link: AtomicPtr<Op<T>>,
    pub(super) stamp: Stamp,
    /// Whether the operation has entered a lane with several workers. A `std` atomic, because it must not add any
    /// ordering to the models.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    entered: std::sync::atomic::AtomicBool,
    task: PhantomData<std::cell::UnsafeCell<T>>,
}

/// The value of [`Op::inline`] if the record has an [`Apart`].
const APART: u8 = u8::MAX;
/// The number of accesses in whose place the [`Apart`] is stored. In models, atomics are large.
const APART_PLACES: usize = if cfg!(any(raddle_loom, raddle_shuttle)) { INLINE_ACCESSES } else { 1 };

/// The unit of [`Op::task_at`], in bytes. An instruction can multiply an index by up to 8. In models, records are too
/// large for such a unit.
const STEP: usize = if cfg!(any(raddle_loom, raddle_shuttle)) { 32 } else { 8 };

/// Where the accesses begin, in bytes from the record's start.
const ACCESSES: usize = size_of::<Op<()>>();

/// The number of bytes for the task, and for what is stored behind it, in a record of normal size.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub const TASK_ROOM: usize = RecordSize::Normal.bytes() - ACCESSES - INLINE_ACCESSES * size_of::<Access<()>>();
#[cfg(any(raddle_loom, raddle_shuttle))]
pub const TASK_ROOM: usize = 1024;

/// The layout of the records of models.
#[cfg(any(raddle_loom, raddle_shuttle))]
#[repr(C)]
struct ModelRecord<T> {
    op: Op<T>,
    accesses: [Access<T>; INLINE_ACCESSES],
    task: [u8; TASK_ROOM],
}

/// The place of a task.
type TaskPlace<T> = UnsafeCell<MaybeUninit<T>>;

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const _: () = assert!(ACCESSES + size_of::<Access<()>>() == 64, "the head and one access must fill a cache line");
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const _: () = assert!(size_of::<Access<()>>() == pool::ACCESS_BYTES, "a wide record must have room for its accesses");

impl<T> std::fmt::Debug for Op<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Relaxed, like the other loads here: a snapshot for display.
        let unregistered = self.unregistered.load(Relaxed) / ONE;
        f.debug_struct("Op")
            .field("wait", &self.wait.load(Relaxed))
            .field("registered", &self.access_count().saturating_sub(unregistered))
            .field("live", &self.live.load(Relaxed))
            .field("accesses", &self.accesses().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// The result of [`Op::reject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Rejection {
    /// The operation is marked rejected, by this call or an earlier one.
    Rejected,
    /// The access is already in its queue; whether to reject the operation was decided before the access was linked.
    AlreadyLinked,
}

impl<T> Op<T> {
    /// Returns the address this many bytes behind the record's start. It may be used for the whole record, while a
    /// reference to an `Op` may be used only for the head.
    #[inline]
    fn address(&self, offset: usize) -> *mut () {
        // The pool has exposed the addresses of all records.
        std::ptr::with_exposed_provenance_mut(std::ptr::from_ref(self).addr() + offset)
    }

    /// Returns where the task begins behind `places` accesses, in bytes from the record's start.
    #[inline]
    fn task_behind(places: usize) -> usize {
        const {
            assert!(align_of::<TaskPlace<T>>() <= align_of::<Access<T>>() && size_of::<TaskPlace<T>>() <= TASK_ROOM);
            assert!(
                align_of::<Apart<Access<T>>>() <= align_of::<Access<T>>()
                    && size_of::<Apart<Access<T>>>() <= APART_PLACES * size_of::<Access<T>>()
            );
            let access = size_of::<Access<T>>();
            assert!(ACCESSES == size_of::<Self>() && ACCESSES.next_multiple_of(align_of::<Access<T>>()) == ACCESSES);
            assert!((ACCESSES + WIDE_ACCESSES * access) / STEP <= u8::MAX as usize);
            assert!(ACCESSES.next_multiple_of(STEP) == ACCESSES && access.next_multiple_of(STEP) == access);
        }
        ACCESSES + places * size_of::<Access<T>>()
    }

    /// Returns the link of the operation at `op`, for callers that know only the address. In models, asserts that the
    /// record has not been reclaimed.
    ///
    /// # Safety
    /// 1. The record is not reclaimed while the result is used.
    #[inline(always)]
    pub unsafe fn link_of<'a>(op: NonNull<Self>) -> &'a AtomicPtr<Self> {
        // SAFETY: (1): `alive` has the same contract, which the caller upholds.
        &unsafe { alive(op) }.link
    }

    /// Returns a pointer to the task, which is not dropped while the record has a holder. The caller decides which
    /// threads may use it.
    #[inline]
    pub fn task_ptr(&self) -> *mut T {
        self.place().with_mut(|task| task.cast())
    }

    /// Returns a pointer to the task, for shared use only.
    #[inline]
    pub fn shared_task_ptr(&self) -> *const T {
        self.place().with(|task| task.cast())
    }

    /// Marks the record so that [`each_marked`] finds it by `mark`, or removes the mark if `mark` is null. In models,
    /// records come from the heap and have no marks.
    #[inline]
    pub(crate) fn mark(&self, mark: *mut ()) {
        if !cfg!(any(raddle_loom, raddle_shuttle)) {
            // SAFETY: the record came from the pool, and is in use.
            unsafe { marks::mark(NonNull::from(self).cast(), mark) };
        }
    }

    /// Returns the record's mark, which is null in models.
    pub(crate) fn marked_by(&self) -> *mut () {
        if cfg!(any(raddle_loom, raddle_shuttle)) {
            return std::ptr::null_mut();
        }
        // SAFETY: the record came from the pool, and outlives the reference.
        unsafe { marks::marked_by(NonNull::from(self).cast()) }
    }

    #[inline]
    fn place(&self) -> &TaskPlace<T> {
        let place = self.address(usize::from(self.task_at) * STEP);
        // SAFETY: `finish_record` has initialised the cell there, and the record outlives the reference.
        unsafe { &*place.cast() }
    }

    /// Returns the place of the task of an operation with this many accesses in its record.
    ///
    /// # Safety
    /// 1. The operation has this many accesses in its record.
    #[inline]
    unsafe fn place_behind(&self, places: usize) -> &TaskPlace<T> {
        debug_assert!(usize::from(self.task_at) * STEP == Self::task_behind(places));
        let place = self.address(Self::task_behind(places));
        // SAFETY: by (1), `finish_record` has initialised the cell there, and the record outlives the reference.
        unsafe { &*place.cast() }
    }

    /// Returns whether the accesses are not in the record.
    #[inline]
    pub fn is_apart(&self) -> bool {
        self.inline == APART
    }

    /// Returns what the record stores of accesses that are not in it.
    #[inline]
    pub(super) fn apart(&self) -> Option<&Apart<Access<T>>> {
        // SAFETY: `write_apart` has initialised an `Apart` there if `inline` says so.
        self.is_apart().then(|| unsafe { &*self.address(ACCESSES).cast() })
    }

    /// Returns the number of shares that the accesses have at first.
    #[inline]
    fn shares_of_accesses(&self) -> u32 {
        if self.is_apart() { 1 } else { u32::from(self.inline) }
    }

    /// Returns the number of accesses.
    #[inline]
    pub fn access_count(&self) -> u32 {
        self.apart().map_or(u32::from(self.inline), Apart::count)
    }

    /// Returns the accesses, sorted by their variables' ids. If they are not in the record, and the record has no
    /// holder left, there are none. The caller is a holder, or has been pinned since a moment when the record could be
    /// found.
    #[inline]
    pub fn accesses(&self) -> OwnAccesses<'_, T> {
        self.accesses_from(0)
    }

    /// Returns the [accesses](Self::accesses) from this index on.
    #[inline]
    pub(super) fn accesses_from(&self, index: usize) -> OwnAccesses<'_, T> {
        let row = self.accesses_in_record().map_or_else(|| self.row_apart(index), |all| &all[index..]);
        OwnAccesses { op: self, row: row.iter(), next: index + row.len() }
    }

    /// Returns the accesses if they are in the record.
    #[inline]
    pub(super) fn accesses_in_record(&self) -> Option<&[Access<T>]> {
        let first = self.address(ACCESSES).cast();
        // SAFETY: the record was created with this many accesses there, which live as long as the record.
        (!self.is_apart()).then(|| unsafe { slice::from_raw_parts(first, usize::from(self.inline)) })
    }

    /// Returns the [accesses](Self::accesses) from this index on that are in the same block.
    #[cold]
    #[inline(never)]
    fn row_apart(&self, index: usize) -> &[Access<T>] {
        // SAFETY: (1): the caller is a holder, or has been pinned since a moment when the record could be found.
        self.apart().map_or(&[], |apart| unsafe { apart.row(index) })
    }

    /// Returns the address of the record of an operation that the same thread was going to push some operations after
    /// this one, or null. If the operation may be ready, returns any address. The address may only be prefetched.
    #[inline(always)]
    pub(super) fn later(&self) -> *const Self {
        if cfg!(any(raddle_loom, raddle_shuttle)) {
            // Models would explore a step that changes nothing.
            return std::ptr::null();
        }
        // Relaxed: only the address is used.
        self.link.load(Relaxed)
    }

    /// Returns the operation's access if it has exactly one.
    #[inline]
    pub(super) fn sole_access(&self) -> Option<&Access<T>> {
        // SAFETY: there is an access.
        (self.inline == 1).then(|| unsafe { self.first_access() })
    }

    /// Returns the first access.
    ///
    /// # Safety
    /// 1. The record has an access in it.
    #[inline]
    unsafe fn first_access(&self) -> &Access<T> {
        // SAFETY: by (1) the creator of the record has initialised an access there.
        unsafe { &*self.address(ACCESSES).cast() }
    }

    /// Calls `look` with each of the [`accesses`](Self::accesses). Avoids the loop in the most common case, an
    /// operation with one access.
    #[inline(always)]
    pub fn each_access(&self, mut look: impl FnMut(&Access<T>)) {
        match (self.sole_access(), self.accesses_in_record()) {
            (Some(access), _) => look(access),
            (None, Some(accesses)) => accesses.iter().for_each(look),
            (None, None) => self.each_access_apart(look),
        }
    }

    #[cold]
    #[inline(never)]
    fn each_access_apart(&self, look: impl FnMut(&Access<T>)) {
        self.accesses().for_each(look);
    }

    /// Returns the lowest-indexed access not known to be in its queue.
    #[inline]
    pub(super) fn next_unregistered(&self) -> Option<&Access<T>> {
        // Relaxed: only a starting point. `insert` checks again, with acquire loads, before it acts.
        let left = self.unregistered.load(Relaxed) / ONE;
        self.accesses_from((self.access_count() - left) as usize).next()
    }

    /// Returns the value that `unregistered` has, apart from its flag, while the access at `index` is the next to be
    /// counted.
    #[inline]
    pub(super) fn left_at(&self, index: u32) -> u32 {
        (self.access_count() - index) * ONE
    }

    /// Returns whether all accesses are known to be in their queues.
    #[inline]
    pub(super) fn is_registered(&self) -> bool {
        self.is_past(ONE)
    }

    /// Returns whether the access with this value of [`left_at`](Self::left_at) is known to be in its queue.
    #[inline]
    pub(super) fn is_past(&self, left: u32) -> bool {
        self.unregistered.load(acquire(edge::register::PAST)) < left
    }

    /// Records that the access with this value of [`left_at`](Self::left_at) is in its queue and that the tail has
    /// reached it. Does nothing unless this access is the next to be counted.
    #[inline]
    pub(super) fn register(&self, left: u32) {
        // Relaxed: only the expected value of the CAS.
        let mut seen = self.unregistered.load(Relaxed);
        while seen & !REJECTED == left {
            // A read-modify-write, so it continues the release sequences of other helpers.
            let order = release(edge::register::COUNTED);
            match self.unregistered.compare_exchange_weak(seen, seen - ONE, order, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Marks the operation rejected, unless the access with this value of [`left_at`](Self::left_at) is known to be in
    /// its queue.
    #[cold]
    pub(super) fn reject(&self, left: u32) -> Rejection {
        // Relaxed: only the expected value of the CAS.
        let mut seen = self.unregistered.load(Relaxed);
        loop {
            if seen < left {
                return Rejection::AlreadyLinked;
            }
            if seen & REJECTED != 0 {
                return Rejection::Rejected;
            }
            // Relaxed: the flag hands over nothing but itself, and a thread that finds the access linked has acquired
            // the flag with the link, the tail or the count (edges `link`, `swing`, `register`). A read-modify-write,
            // so it continues the release sequences of helpers that have counted accesses.
            match self.unregistered.compare_exchange_weak(seen, seen | REJECTED, Relaxed, Relaxed) {
                Ok(_) => return Rejection::Rejected,
                Err(now) => seen = now,
            }
        }
    }

    /// Records, on behalf of the pusher, that all accesses are in their queues. Returns whether the operation was
    /// rejected in the meantime.
    #[inline]
    pub(super) fn end_registration(&self, arity: Arity) -> bool {
        // Relaxed: everything released with this word was done by this thread, or was acquired when an access turned
        // out to be linked. A thread that sets `REJECTED` from now on links nothing, because the access is already in
        // its queue.
        let rejected = self.unregistered.load(Relaxed) & REJECTED;
        if arity == Arity::One {
            // A store suffices: no other thread counts the only access.
            self.unregistered.store(rejected, release(edge::register::SOLE));
        } else {
            // A read-modify-write, so it continues the release sequences of helpers.
            self.unregistered.swap(rejected, release(edge::register::SEVERAL));
        }
        rejected != 0
    }

    /// Returns whether one of the operation's variables was already deleted when the operation was pushed. The answer
    /// is final once the push is over.
    #[inline]
    pub fn is_rejected(&self) -> bool {
        // Relaxed: the flag was set, if at all, before the pusher linked the only access, or before its decrement of
        // `wait`. The caller has acquired that step (edges `link`, `ready`) or is the pusher.
        self.unregistered.load(Relaxed) & REJECTED != 0
    }
}

/// Ownership of an operation. It belongs to the pusher until the push is over, then to the thread that finds the
/// operation ready.
///
/// Each operation has at most one `OpRef`, apart from the entry that stays in a queue after a waiter has
/// [taken](Self::take) the operation. The `OpRef` is consumed by a [push](super::push()) that finds the operation not
/// ready, and by [`complete`](super::complete()) or [`end`](super::end). After completion, [`Hold`]s and the shares of
/// its accesses keep the record alive.
#[must_use = "a dropped operation never runs"]
pub struct OpRef<T>(pub(super) NonNull<Op<T>>);

impl<T> std::fmt::Debug for OpRef<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OpRef").field(&self.0).finish()
    }
}

impl<T> Deref for OpRef<T> {
    type Target = Op<T>;

    #[inline(always)]
    fn deref(&self) -> &Op<T> {
        // SAFETY: the owner has a share of the record, which keeps it alive.
        unsafe { alive(self.0) }
    }
}

// SAFETY: a record may be used and freed on any thread, and the task is `Send`.
unsafe impl<T: Send> Send for OpRef<T> {}
// SAFETY: a shared `OpRef` gives access only to a shared record, whose task only unsafe code can reach.
unsafe impl<T: Send> Sync for OpRef<T> {}

/// Shares of an operation's record, which keep the record and its task alive. Each share is counted when it is created,
/// and ends once.
pub struct Hold<T> {
    op: NonNull<Op<T>>,
    shares: u32,
}

impl<T> std::fmt::Debug for Hold<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hold").field("op", &self.op).field("shares", &self.shares).finish()
    }
}

impl<T> Deref for Hold<T> {
    type Target = Op<T>;

    #[inline(always)]
    fn deref(&self) -> &Op<T> {
        // SAFETY: the shares keep the record alive.
        unsafe { alive(self.op) }
    }
}

// SAFETY: a record may be used and freed on any thread, and the task is `Send`.
unsafe impl<T: Send> Send for Hold<T> {}
// SAFETY: a shared `Hold` gives access only to a shared record, whose task only unsafe code can reach.
unsafe impl<T: Send> Sync for Hold<T> {}

impl<T> Hold<T> {
    /// Takes over one share of the record at `op`.
    ///
    /// # Safety
    /// 1. The share was counted by [`OpRef::hold`], whose result was forgotten, and no other thread takes it over.
    pub(crate) unsafe fn from_ptr(op: NonNull<Op<T>>) -> Self {
        Self { op, shares: 1 }
    }
}

impl<T> Drop for Hold<T> {
    /// Ends the shares. Ending a record's last share drops the task and retires the record.
    #[inline]
    fn drop(&mut self) {
        if self.is_apart() {
            debug_assert_eq!(self.shares, 1, "the accesses end their own shares");
            // SAFETY: the share belongs to this `Hold`, which ends here.
            return unsafe { end_holder_apart(self.op) };
        }
        // SAFETY: the shares belong to this `Hold`, which ends here.
        unsafe { end_shares(self.op, self.shares) };
    }
}

/// Returns a reference to a record that is in use. In models, asserts that it has not been reclaimed.
///
/// # Safety
/// 1. The record is not reclaimed while the result is used: the caller owns the operation, holds a share of its record,
///    or has been pinned since a moment when the record could still be found.
#[inline(always)]
pub(super) unsafe fn alive<'a, T>(op: NonNull<Op<T>>) -> &'a Op<T> {
    // SAFETY: by (1) the record is not reclaimed.
    let op = unsafe { op.as_ref() };
    op.stamp.check();
    op
}

/// Ends `shares` shares of a record.
///
/// # Safety
/// 1. The shares belong to the caller, which does not use the record afterwards.
#[inline]
pub(super) unsafe fn end_shares<T>(record: NonNull<Op<T>>, shares: u32) {
    // SAFETY: by (1), the shares keep the record alive up to here.
    let op = unsafe { alive(record) };
    // No share can be added once only the caller's are left.
    let last = op.live.load(acquire(edge::retire::ALONE)) == shares || {
        op.live.fetch_sub(shares, release(edge::retire::ENDED)) == shares && {
            let _ = op.live.load(acquire(edge::retire::LAST));
            true
        }
    };
    if last {
        // SAFETY: no share of the record is left, and the count reaches zero once.
        unsafe { drop_task(op, op.place()) };
        pool::retire(record);
    }
}

/// Ends a holder's share of a record whose accesses are not in it. The last holder leaves the accesses.
///
/// # Safety
/// 1. The share belongs to the caller, which does not use the record afterwards.
/// 2. The accesses are not in the record.
#[cold]
#[inline(never)]
unsafe fn end_holder_apart<T>(record: NonNull<Op<T>>) {
    // SAFETY: by (1), the share keeps the record alive up to here.
    let op = unsafe { alive(record) };
    if op.live.fetch_sub(1, acquire_release(edge::retire::LEFT, edge::retire::HOLDER_ENDED)) == 2 {
        let guard = epoch::pin();
        let apart = op.apart().expect("by (2), the record has blocks");
        // SAFETY: (1): the share that is left is that of the blocks; (2): it has not ended yet.
        unsafe { apart.leave(&guard, || end_block(record)) };
    }
}

/// Ends the share of an access in a [block](AccessBlock) of the record.
///
/// # Safety
/// 1. The access is spent or unlinked, the tail is past it, and this is called once.
/// 2. The access lies in a block of this record.
pub(super) unsafe fn end_access_apart<T>(access: NonNull<Access<T>>, record: NonNull<Op<T>>) {
    // SAFETY: (1): the access has a share of its block; (2).
    let block = unsafe { AccessBlock::of(access, access.as_ref().index) };
    // SAFETY: (1): this is the access's share, which ends once.
    if unsafe { AccessBlock::end_share(block) } {
        // SAFETY: (1): the block was retired here.
        unsafe { end_block(record) };
    }
}

/// Counts a block of the record that the calling thread has retired. After the last block, ends the blocks' share.
///
/// # Safety
/// 1. This is called once for each block.
unsafe fn end_block<T>(record: NonNull<Op<T>>) {
    // SAFETY: by (1) the blocks' share keeps the record alive up to here.
    let op = unsafe { alive(record) };
    // To models, a use of the record's head. No holder is left, so no thread uses the task itself.
    let _ = op.shared_task_ptr();
    let apart = NonNull::from(op.apart().expect("the record has blocks"));
    // SAFETY: (1): the block is counted once.
    if unsafe { Apart::count_retired(apart) } {
        // SAFETY: (1): the blocks' share, which ends once.
        unsafe { end_shares(record, 1) };
    }
}

/// Drops the task at `place`, after removing the record's mark.
///
/// # Safety
/// 1. `place` is that of the task of `op`. The task is no longer used, except that pinned threads may read its constant
///    parts, and this is called once.
unsafe fn drop_task<T>(op: &Op<T>, place: &TaskPlace<T>) {
    op.mark(std::ptr::null_mut());
    place.with_mut(|task| {
        // SAFETY: by (1) no holder is left. Pinned threads may still read the constant parts of the task, which the
        // drop does not write to.
        let task = unsafe { &mut *task };
        // SAFETY: the task was initialised with the record (2 of `new_with`), and by (1) this is its only drop.
        unsafe { task.assume_init_drop() };
    });
}

impl<T> OpRef<T> {
    /// Creates an operation from an existing task; see [`new_with`](Self::new_with).
    ///
    /// # Safety
    /// 1. The variables stay valid until [`push`](super::push()) has returned.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub unsafe fn new(
        task: T,
        band: u8,
        passes_closed: bool,
        accesses: impl ExactSizeIterator<Item = (NonNull<VarQueue<T>>, Mode)>,
    ) -> Self {
        // SAFETY: the place is large enough for a task.
        let init = |place: *mut T| unsafe { place.write(task) };
        // SAFETY: (1): `new_with` has the same contract, which the caller upholds; (2) `init` initialises the task;
        // (3) the models' iterators return their exact length.
        unsafe { Self::new_with(init, Room::default(), band, passes_closed, accesses) }
    }

    /// Creates the record of an operation, with its task and with `accesses`, which must be sorted by id and without
    /// duplicates. The record has one holder.
    ///
    /// # Safety
    /// 1. The variables stay valid until [`push`](super::push()) has returned.
    /// 2. `init` initialises the task at the address passed to it, or the caller does so before any other thread knows
    ///    the operation. Neither panics.
    /// 3. `accesses` yields exactly as many items as its length states.
    /// 4. There is room for what is stored behind the task.
    #[inline(always)]
    pub unsafe fn new_with(
        init: impl FnOnce(*mut T),
        room: Room,
        band: u8,
        passes_closed: bool,
        mut accesses: impl ExactSizeIterator<Item = (NonNull<VarQueue<T>>, Mode)>,
    ) -> Self {
        let count = u32::try_from(accesses.len())
            .ok()
            .filter(|&count| count < u32::MAX / ONE)
            .expect("an operation must have fewer than 2^31 accesses");
        // Most operations have one access; for these, everything that depends on the number of accesses is a constant.
        let sole = if count == 1 { accesses.next() } else { None };
        if let Some((queue, mode)) = sole {
            let (record, later, size) = Self::allocate(1, room);
            let access = Access::new(record.as_ptr(), queue, 0, mode, Arity::One, size);
            // SAFETY: the record is allocated, aligned and unused, and has space for an access there.
            unsafe { record.byte_add(ACCESSES).cast().write(access) };
            // SAFETY: the record is allocated, aligned and unused, and its access was written above; (2).
            let (op, task) = unsafe { Self::finish_record(record, later, 1, 1, band, passes_closed) };
            init(task);
            op
        } else {
            let accesses = (0..count).zip(accesses).map(|(index, (queue, mode))| (index, queue, mode));
            // SAFETY: (1), (2), (4); by (3), the indexes are the numbers below `count`.
            let (op, task) = unsafe { Self::new_several(count, room, band, passes_closed, accesses) };
            init(task);
            op
        }
    }

    /// Creates the record of an operation with `count` accesses, but not with one; see [`new_with`](Self::new_with).
    /// `accesses` yields each access in any order, along with its place among the accesses, which must be sorted by id
    /// and without duplicates. Also returns the address of the task.
    ///
    /// # Safety
    /// 1. The variables stay valid until [`push`](super::push()) has returned.
    /// 2. The caller initialises the task before any other thread knows the operation, and does not panic before that.
    /// 3. The places are the numbers below `count`, each once.
    /// 4. There is room for what is stored behind the task.
    #[inline(always)]
    pub unsafe fn new_several(
        count: u32,
        room: Room,
        band: u8,
        passes_closed: bool,
        accesses: impl Iterator<Item = (u32, NonNull<VarQueue<T>>, Mode)>,
    ) -> (Self, *mut T) {
        let (record, later, size) = Self::allocate(count as usize, room);
        let inline = if count as usize > WIDE_ACCESSES {
            // SAFETY: the record is allocated, aligned and unused; (3).
            unsafe { write_apart(record, count, size, accesses) };
            APART
        } else {
            // SAFETY: the record is larger than its head.
            let first = unsafe { record.byte_add(ACCESSES) }.cast::<Access<T>>().as_ptr();
            for (index, queue, mode) in accesses {
                debug_assert!(index < count);
                // SAFETY: by (3) there is space for an access there.
                let slot = unsafe { first.add(index as usize) };
                // SAFETY: the slot is allocated, aligned and unused.
                unsafe { slot.write(Access::new(record.as_ptr(), queue, index, mode, Arity::Several, size)) };
            }
            count as u8
        };
        // SAFETY: the record is allocated, aligned and unused, and by (3) its accesses were written above; (2).
        unsafe { Self::finish_record(record, later, count, inline, band, passes_closed) }
    }

    /// Allocates a record.
    #[inline(always)]
    fn allocate(count: usize, room: Room) -> (NonNull<Op<T>>, *mut Op<T>, RecordSize) {
        if room.any {
            let size = size_for(count, size_of::<T>(), usize::MAX);
            let (record, later) = pool::allocate_rarely(size);
            return (record, later, size);
        }
        debug_assert!(size_of::<T>() + room.bytes <= TASK_ROOM, "the task does not fit into any record");
        let size = size_for(count, size_of::<T>(), room.bytes);
        let (record, later) = pool::allocate(size);
        (record, later, size)
    }

    /// Writes everything in a record but its accesses and its task. Also returns the address of the task.
    ///
    /// # Safety
    /// 1. The record is allocated, aligned and unused. Its `count` accesses have been written to the places that
    ///    `inline` states.
    /// 2. The caller initialises the task before any other thread knows the operation, and does not panic before that.
    #[inline(always)]
    unsafe fn finish_record(
        record: NonNull<Op<T>>,
        later: *mut Op<T>,
        count: u32,
        inline: u8,
        band: u8,
        passes_closed: bool,
    ) -> (Self, *mut T) {
        let op = record.as_ptr();
        macro_rules! set {
            ($($field:ident: $value:expr),* $(,)?) => {
                // SAFETY: by (1) the record may be written; each field is written once, before it is read.
                $(unsafe { (&raw mut (*op).$field).write($value) };)*
            };
        }
        let places = if inline == APART { APART_PLACES } else { usize::from(inline) };
        set! {
            wait: AtomicU32::new(if count == 1 { 1 } else { count + 1 }),
            unregistered: AtomicU32::new(count * ONE),
            live: AtomicU32::new(1 + if inline == APART { 1 } else { count }),
            inline: inline,
            link: AtomicPtr::new(later),
            band: band,
            queued: Queued::new(passes_closed),
            stamp: Stamp::new(),
            task: PhantomData,
        }
        #[cfg(any(raddle_loom, raddle_shuttle))]
        set! { entered: std::sync::atomic::AtomicBool::new(false) }
        let task_at = Op::<T>::task_behind(places);
        set! { task_at: (task_at / STEP) as u8 }
        let task = op.wrapping_byte_add(task_at).cast::<TaskPlace<T>>();
        // SAFETY: the place is in the record, behind the accesses.
        unsafe { task.write(UnsafeCell::new(MaybeUninit::uninit())) };
        // SAFETY: the cell has just been written, and no other thread knows the record.
        let task = unsafe { &*task }.with_mut(|task| task.cast());
        (Self(record), task)
    }

    /// Records that the operation enters a lane with several workers, and asserts that it has not done so before.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub fn enter_once(&self) {
        // Relaxed: all threads of a model run on one OS thread.
        let before = self.entered.swap(true, Relaxed);
        assert!(!before, "an operation enters a lane of several workers a second time");
    }

    /// Returns the record's address, which identifies the operation while it lives.
    pub fn as_ptr(&self) -> *mut Op<T> {
        self.0.as_ptr()
    }

    /// Converts the ownership into a pointer, for [`from_ptr`](Self::from_ptr).
    #[inline(always)]
    pub(crate) fn into_ptr(self) -> NonNull<Op<T>> {
        self.0
    }

    /// Takes ownership of the operation at `op`.
    ///
    /// # Safety
    /// 1. `op` came from [`into_ptr`](Self::into_ptr), and the caller has taken over its ownership; or the caller has
    ///    become the owner according to the tracker's rules.
    pub unsafe fn from_ptr(op: NonNull<Op<T>>) -> Self {
        Self(op)
    }

    /// Returns an additional share, which keeps the record and its task alive beyond the operation's completion.
    #[inline]
    pub fn hold(&self) -> Hold<T> {
        // The store below ends the release sequence of the shares that have ended.
        let shares = self.live.load(acquire(edge::retire::HELD));
        if shares == 1 + self.shares_of_accesses() || removed(step::ALONE_WHEN_SHARING) {
            // Relaxed: no other thread changes the count. Only the owner adds shares, the accesses' shares end only
            // after the operation is complete, and no other share is left.
            self.live.store(shares + 1, Relaxed);
        } else {
            // Relaxed: the owner's own share keeps the count above zero.
            self.live.fetch_add(1, Relaxed);
        }
        Hold { op: self.0, shares: 1 }
    }

    /// Converts the ownership of a completed operation into a hold on its record, with the owner's share and the shares
    /// of the `spent` accesses that the caller must end.
    #[inline]
    pub(super) fn completed(self, spent: u32) -> Hold<T> {
        Hold { op: self.0, shares: 1 + spent }
    }

    /// Subtracts a satisfied access from `wait`, and adds the operation to `ready` if this was the last access to be
    /// satisfied.
    ///
    /// # Safety
    /// 1. The caller has satisfied the access, and counts it once.
    #[inline]
    pub(super) unsafe fn satisfy(op: NonNull<Op<T>>, ready: &mut ReadyList<T>) {
        // SAFETY: by (1) the operation is not ready before this call counts the access, so its record is in use.
        let wait = &unsafe { alive(op) }.wait;
        // If 1 is left, that is this thread's decrement. Each decrement continues the release sequence.
        let order = acquire_release(edge::ready::LAST, edge::ready::SATISFIED);
        if wait.load(acquire(edge::ready::ALONE)) == 1 || wait.fetch_sub(1, order) == 1 {
            ready.push(Self(op));
        }
    }

    /// If the caller is the operation's only holder, drops the task and makes `access`, the operation's only access,
    /// responsible for the record. Returns the record. The caller must
    /// [complete](super::propagate::complete_access) the access next, and [retire](retire_record) the record if that
    /// spends the access. Otherwise returns the operation, unchanged, as the error.
    ///
    /// # Safety
    /// 1. `access` is the operation's [only access](Op::sole_access).
    #[inline]
    pub(super) unsafe fn leave_to_access(self, access: &Access<T>) -> Result<NonNull<Op<T>>, Self> {
        // No share can be added once only the caller's and the access's are left.
        if self.live.load(acquire(edge::retire::UNHELD)) != 2 && !removed(step::ALONE_WHEN_LEFT) {
            return Err(self);
        }
        // SAFETY: by (1) the operation has one access, in its record.
        let place = unsafe { self.place_behind(1) };
        // SAFETY: the caller is the last holder, and ends its share here.
        unsafe { drop_task(&self, place) };
        access.take_last_share();
        Ok(self.0)
    }
}

/// Retires the record of an operation whose only access, now spent, is responsible for it.
///
/// # Safety
/// 1. The record has no share left, and this is called once.
#[inline]
pub(super) unsafe fn retire_record<T>(record: NonNull<Op<T>>) {
    // SAFETY: by (1) the record has not been retired, and it has an access.
    let size = unsafe { alive(record).first_access() }.record_size();
    // SAFETY: (1).
    unsafe { pool::reuse(record, size) };
}

/// The room that a record must have behind its task.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    /// The number of bytes.
    pub bytes: usize,
    /// Whether any task must fit instead, which is rare. This is a flag so that the size is known otherwise when a push
    /// is compiled.
    pub any: bool,
}

/// Returns the size of a record with `count` accesses, a task of `task` bytes, and room for `behind` bytes behind it.
#[inline(always)]
pub(super) fn size_for(count: usize, task: usize, behind: usize) -> RecordSize {
    // Of this, the compiler knows all, so for some numbers of accesses it knows that the smaller records have no room.
    let before = ACCESSES + count * size_of::<Access<()>>() + task;
    let fits = |size: RecordSize| before <= size.bytes() && behind <= size.bytes() - before;
    match count {
        // Without an access in the record, the size is not stored.
        0 => RecordSize::Normal,
        _ if count > WIDE_ACCESSES || cfg!(any(raddle_loom, raddle_shuttle)) => RecordSize::Normal,
        _ if fits(RecordSize::Small) => RecordSize::Small,
        _ if fits(RecordSize::Medium) => RecordSize::Medium,
        _ if count > INLINE_ACCESSES => RecordSize::Wide,
        _ => RecordSize::Normal,
    }
}

/// Writes `count` accesses, more than fit into a record, to blocks, and what the record stores of them to the record.
///
/// # Safety
/// 1. The record is allocated, aligned and unused.
/// 2. `accesses` yields the numbers below `count`, each once.
#[cold]
#[inline(never)]
unsafe fn write_apart<T>(
    record: NonNull<Op<T>>,
    count: u32,
    size: RecordSize,
    accesses: impl Iterator<Item = (u32, NonNull<VarQueue<T>>, Mode)>,
) {
    let apart = Apart::<Access<T>>::new(count);
    for (index, queue, mode) in accesses {
        debug_assert!(index < count);
        // SAFETY: (1): by (2), the index is below the count, and no other thread knows the record.
        let place = unsafe { apart.place(index) };
        // SAFETY: the place is allocated, aligned and unused.
        unsafe { place.write(Access::new(record.as_ptr(), queue, index, mode, Arity::Several, size).in_block()) };
    }
    // SAFETY: by (1) the place is in an unused record, and it is large enough, as `task_behind` asserts.
    unsafe { record.byte_add(ACCESSES).cast().write(apart) };
}

/// The accesses of an operation, sorted by their variables' ids.
#[derive(Debug)]
pub struct OwnAccesses<'a, T> {
    op: &'a Op<T>,
    /// Those in the record, or the next ones of a block.
    row: slice::Iter<'a, Access<T>>,
    /// The index of the first access behind these.
    next: usize,
}

impl<'a, T> Iterator for OwnAccesses<'a, T> {
    type Item = &'a Access<T>;

    #[inline]
    fn next(&mut self) -> Option<&'a Access<T>> {
        match self.row.next() {
            None if self.op.is_apart() => {
                let row = self.op.row_apart(self.next);
                self.next += row.len();
                self.row = row.iter();
                self.row.next()
            }
            next => next,
        }
    }

    /// Exact unless the last holder ends its share in the meantime.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let behind = if self.op.is_apart() { self.op.access_count() as usize - self.next } else { 0 };
        (self.row.len() + behind, Some(self.row.len() + behind))
    }
}

/// A holder's iterator has an exact length.
impl<T> ExactSizeIterator for OwnAccesses<'_, T> {}

// SAFETY: (1): the first field is the pool's.
unsafe impl<T> Record for Op<T> {
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    #[inline]
    fn record_size(&self) -> RecordSize {
        match self.inline {
            APART | 0 => RecordSize::Normal,
            // SAFETY: there is an access.
            _ => unsafe { self.first_access() }.record_size(),
        }
    }

    #[cfg(any(raddle_loom, raddle_shuttle))]
    const LAYOUT: std::alloc::Layout = std::alloc::Layout::new::<ModelRecord<T>>();

    #[cfg(any(raddle_loom, raddle_shuttle))]
    fn stamp(&self) -> &Stamp {
        &self.stamp
    }
}

/// Calls `f` with each operation marked with one of `marks`, and with its mark. The thread is pinned, so each record
/// stays as it was when marked, except for its atomics and its task.
///
/// # Safety
/// 1. Every record with one of these marks is an `Op<T>`, whose task was initialised when it was marked.
pub unsafe fn each_marked<T>(pinned: &epoch::Guard, marks: [*mut (); 2], mut f: impl FnMut(&Op<T>, *mut ())) {
    // SAFETY: by (1) the record is an `Op<T>`, and it is not reused before the pin ends.
    marks::each_marked(pinned, marks, |record, mark| f(unsafe { record.cast().as_ref() }, mark));
}

/// A list of operations in the order in which they became ready, linked through their records.
#[derive(Debug)]
pub struct ReadyList<T> {
    head: Option<OpRef<T>>,
    /// The last operation in the list, behind which the next is linked.
    tail: Option<NonNull<Op<T>>>,
}

impl<T> Default for ReadyList<T> {
    fn default() -> Self {
        Self { head: None, tail: None }
    }
}

impl<T> ReadyList<T> {
    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Appends a ready operation.
    #[inline]
    pub fn push(&mut self, op: OpRef<T>) {
        // Relaxed: a ready operation has one owner, which also owns the list.
        op.link.store(std::ptr::null_mut(), Relaxed);
        let last = self.tail.replace(op.0);
        match last {
            Some(last) => {
                // SAFETY: the list owns the operation.
                let last = unsafe { alive(last) };
                // Relaxed: the list owns the operation.
                last.link.store(op.into_ptr().as_ptr(), Relaxed);
            }
            None => self.head = Some(op),
        }
    }

    /// Appends the operations that are linked from `last` on, the last one of them first.
    ///
    /// # Safety
    /// 1. The caller owns these operations.
    pub(crate) unsafe fn append_reversed(&mut self, last: *mut Op<T>) {
        let (mut reversed, mut at) = (Self::default(), NonNull::new(last));
        while let Some(op) = at {
            // SAFETY: (1).
            let link = &unsafe { alive(op) }.link;
            // Relaxed, like the store: the caller owns the operations.
            at = NonNull::new(link.load(Relaxed));
            link.store(reversed.head.as_ref().map_or(std::ptr::null_mut(), OpRef::as_ptr), Relaxed);
            reversed.tail.get_or_insert(op);
            reversed.head = Some(OpRef(op));
        }
        self.append(&mut reversed);
    }

    /// Prefetches the first operation: the head with its accesses, and what an operation with one access has behind it.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Some(op) = &self.head {
            hint::prefetch_write(op.as_ptr());
            hint::prefetch_write(op.as_ptr().wrapping_byte_add(64));
        }
    }

    /// Returns the operations in the list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Op<T>> {
        // SAFETY: (1): the list owns the operations.
        unsafe { Self::linked_from(self.head.as_ref().map_or(std::ptr::null_mut(), OpRef::as_ptr)) }
    }

    /// Returns the operations that are linked from `first` on.
    ///
    /// # Safety
    /// 1. The operations have owners, and stay linked while the result is used.
    pub(crate) unsafe fn linked_from<'a>(first: *mut Op<T>) -> impl Iterator<Item = &'a Op<T>>
    where
        T: 'a,
    {
        // SAFETY: (1).
        let op = |at: *mut Op<T>| NonNull::new(at).map(|op| unsafe { alive(op) });
        // Relaxed: by (1), the links do not change.
        std::iter::successors(op(first), move |at| op(at.link.load(Relaxed)))
    }

    /// Moves all operations of `other` to the end of this list.
    pub fn append(&mut self, other: &mut Self) {
        let Self { head: Some(first), tail } = std::mem::take(other) else { return };
        match self.tail {
            Some(last) => {
                // SAFETY: the list owns the operation.
                let last = unsafe { alive(last) };
                // Relaxed: the list owns the operation.
                last.link.store(first.into_ptr().as_ptr(), Relaxed);
            }
            None => self.head = Some(first),
        }
        self.tail = tail;
    }

    /// Removes and returns the first operation in the list.
    #[inline]
    pub fn pop(&mut self) -> Option<OpRef<T>> {
        let first = self.head.as_ref()?.0;
        // SAFETY: the list owns the operation.
        let op = unsafe { alive(first) };
        // Relaxed: the list owns the operation.
        let next = op.link.load(Relaxed);
        self.head = NonNull::new(next).map(OpRef);
        if self.head.is_none() {
            self.tail = None;
        }
        Some(OpRef(first))
    }
}
