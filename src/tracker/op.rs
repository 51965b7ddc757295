//! One operation's record: its accesses, its counters and its task.

use std::{
    mem::{MaybeUninit, offset_of},
    ops::Deref,
    ptr::NonNull,
};

use super::{
    access::{Access, Mode},
    queue::VarQueue,
};
use crate::{
    memory::{
        epoch::Stamp,
        pool::{self, PoolWord, Record},
    },
    sync::{
        Ordering::{AcqRel, Acquire, Relaxed, Release},
        atomic::{AtomicPtr, AtomicU32},
        cell::UnsafeCell,
    },
};

/// Accesses that a record holds without a separate allocation.
pub const INLINE_ACCESSES: usize = 4;

/// Set in `registered` when a variable turned out to be deleted.
const REJECTED: u32 = 1 << 31;

/// One operation's record. It lives from [`OpRef::new_with`] until its last holder and all its accesses have given it up and
/// the epoch has passed.
///
/// The accesses stand behind the head, as many as there are, and the task behind them: an operation has no more cache
/// lines than it needs. Most have one access, which shares a line with the head where the pool has aligned the record.
#[repr(C)]
pub struct Op<T> {
    /// The pool's own word of the record; not the operation's.
    _pool: MaybeUninit<PoolWord>,
    /// Accesses not satisfied yet, plus one while a push of several goes on.
    pub(super) wait: AtomicU32,
    /// The accesses known to be in their queues, and `REJECTED`.
    registered: AtomicU32,
    /// Accesses not retired yet, plus one per [holder](OpRef::hold).
    live: AtomicU32,
    /// The number of accesses if they are in the record, or [`BOXED`].
    inline: u8,
    /// Where the task begins, in [steps](STEP) from the record's start. It follows from `inline`; to find it anew each time
    /// takes some 25 instructions more in a run.
    task_at: u8,
    /// The scheduler's: how urgent the operation is.
    pub band: u8,
    /// Closed variables let the operation in: it is a deletion, or the engine's wait for one.
    pub(super) passes_closed: bool,
    /// The next operation of the list that this one is in: a [`ReadyList`], or a queue of the scheduler.
    pub link: AtomicPtr<Op<T>>,
    pub(super) stamp: Stamp,
    /// Whether it has entered a lane of several workers. No model looks at the flag: it must order nothing.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    entered: std::sync::atomic::AtomicBool,
    room: std::cell::UnsafeCell<MaybeUninit<Room<T>>>,
}

/// In [`Op::inline`]: there is a [`Boxed`].
const BOXED: u8 = u8::MAX;

/// The unit of [`Op::task_at`], in bytes. In models records are too large for a smaller one.
const STEP: usize = if cfg!(any(raddle_loom, raddle_shuttle)) { 32 } else { 1 };

/// What a record has room for behind its head. The places of the accesses are where this says, the task begins where the
/// last of them ends.
#[repr(C)]
struct Room<T> {
    accesses: [MaybeUninit<Access<T>>; INLINE_ACCESSES],
    /// Nothing of this, but everything before it, is what pinned threads may look at and change until the epoch has passed.
    task: Place<T>,
}

/// Where a task is.
type Place<T> = UnsafeCell<MaybeUninit<T>>;

/// In the place of the first access, where there are more than the record has room for.
struct Boxed<T> {
    accesses: NonNull<Access<T>>,
    count: u32,
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const _: () = assert!(offset_of!(Op<()>, room) + size_of::<Access<()>>() == 64, "the head and an access fill a line");

impl<T> std::fmt::Debug for Op<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Relaxed: a snapshot to look at.
        f.debug_struct("Op")
            .field("wait", &self.wait.load(Relaxed))
            .field("registered", &(self.registered.load(Relaxed) & !REJECTED))
            .field("live", &self.live.load(Relaxed))
            .field("accesses", &self.accesses())
            .finish_non_exhaustive()
    }
}

impl<T> Op<T> {
    /// Where the accesses begin, or the `Boxed` is.
    #[inline]
    fn first_place(this: *const Self) -> *mut Access<T> {
        // SAFETY: the callers have a record; nothing is read.
        unsafe { &raw const (*this).room }.cast_mut().cast()
    }

    /// Where the task begins behind so many places for accesses, in bytes from the record's start.
    #[inline]
    fn task_behind(places: usize) -> usize {
        const {
            // Outside of the cell a reference to the record would forbid the pool to use what is behind the accesses.
            assert!(offset_of!(Self, room) + size_of::<Room<T>>() == size_of::<Self>());
            assert!(align_of::<Place<T>>() <= align_of::<Access<T>>());
            assert!(
                align_of::<Boxed<T>>() <= align_of::<Access<T>>() && size_of::<Boxed<T>>() <= size_of::<Access<T>>()
            );
            assert!((offset_of!(Self, room) + offset_of!(Room<T>, task)) / STEP <= u8::MAX as usize);
            assert!(offset_of!(Self, room).is_multiple_of(STEP) && size_of::<Access<T>>().is_multiple_of(STEP));
        }
        offset_of!(Self, room) + places * size_of::<Access<T>>()
    }

    /// The link of an operation that the caller knows by its address only. Models see it if the record is reclaimed.
    ///
    /// # Safety
    /// 1. The record is not reclaimed as long as the result is used.
    #[inline(always)]
    pub unsafe fn link_of<'a>(op: NonNull<Self>) -> &'a AtomicPtr<Self> {
        // SAFETY: (1).
        &unsafe { alive(op) }.link
    }

    /// The task. It is dropped after the last holder is gone; who may use it how is its owner's to say.
    #[inline]
    pub fn task_ptr(&self) -> *mut T {
        self.place().with_mut(|task| task.cast())
    }

    #[inline]
    fn place(&self) -> &Place<T> {
        let place = std::ptr::from_ref(self).wrapping_byte_add(usize::from(self.task_at) * STEP);
        // SAFETY: `new_with` has made it there.
        unsafe { &*place.cast() }
    }

    #[inline]
    fn boxed(&self) -> Option<&Boxed<T>> {
        // SAFETY: then `new_with` has made it there.
        (self.inline == BOXED).then(|| unsafe { &*Self::first_place(self).cast() })
    }

    /// The accesses, sorted by their variables' ids.
    #[inline]
    pub fn accesses(&self) -> &[Access<T>] {
        let (first, count) = match self.boxed() {
            None => (Self::first_place(self), u32::from(self.inline)),
            Some(boxed) => (boxed.accesses.as_ptr(), boxed.count),
        };
        // SAFETY: `new_with` has initialised `count` accesses there, and nothing ever takes them away.
        unsafe { std::slice::from_raw_parts(first, count as usize) }
    }

    /// The access of an operation that has only one.
    #[inline]
    pub(super) fn sole_access(&self) -> Option<&Access<T>> {
        // SAFETY: then `new_with` has made it there.
        (self.inline == 1).then(|| unsafe { &*Self::first_place(self) })
    }

    /// Shows each access to `look`. As a loop over [`accesses`](Self::accesses), which most operations need not go through.
    #[inline(always)]
    pub fn each_access(&self, mut look: impl FnMut(&Access<T>)) {
        match self.sole_access() {
            Some(access) => look(access),
            None => self.accesses().iter().for_each(look),
        }
    }

    /// The access with the lowest index that is not known to be in its queue.
    #[inline]
    pub(super) fn next_unregistered(&self) -> Option<&Access<T>> {
        // Relaxed: only where to begin. `insert` looks again, and acquires, before it does anything.
        let index = self.registered.load(Relaxed) & !REJECTED;
        self.accesses().get(index as usize)
    }

    #[inline]
    pub(super) fn is_registered(&self) -> bool {
        self.has_registered(self.accesses().len() as u32)
    }

    /// Whether the access at `index` is known to be in its queue.
    #[inline]
    pub(super) fn is_past(&self, index: u32) -> bool {
        self.has_registered(index + 1)
    }

    /// Whether the first `count` accesses are known to be in their queues.
    #[inline]
    fn has_registered(&self, count: u32) -> bool {
        // Acquire (edge `register`).
        self.registered.load(Acquire) & !REJECTED >= count
    }

    /// Notes that the access at `index` is in its queue and that the tail has come to it.
    #[inline]
    pub(super) fn advance(&self, index: u32) {
        // Relaxed: only a guess for the CAS.
        let mut seen = self.registered.load(Relaxed);
        while seen & !REJECTED == index {
            // Release (edge `register`). What other helpers released goes on with it, since it is a read-modify-write.
            match self.registered.compare_exchange_weak(seen, seen + 1, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Marks the operation rejected while its access at `index` is not in; `false` if it is.
    #[cold]
    pub(super) fn reject(&self, index: u32) -> bool {
        // Relaxed: only a guess for the CAS.
        let mut seen = self.registered.load(Relaxed);
        loop {
            // The pusher itself may be further than `registered`.
            if seen & !REJECTED > index {
                return false;
            }
            if seen & REJECTED != 0 {
                return true;
            }
            // Relaxed: it hands nothing over but itself, which whoever finds the access in has acquired with the link,
            // the tail or the count (edges `link`, `swing`, `register`). A read-modify-write, so that what helpers
            // released with the count goes on.
            match self.registered.compare_exchange_weak(seen, seen | REJECTED, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Notes that all `count` accesses are in, by the pusher; whether the operation was rejected on the way.
    #[inline]
    pub(super) fn end_registration(&self, count: u32) -> bool {
        // Relaxed: what was released with it is either this thread's doing, or was acquired when an access turned out to be
        // in. Who sets `REJECTED` from now on has linked nothing by it: the access was in before.
        let rejected = self.registered.load(Relaxed) & REJECTED;
        if count == 1 {
            // Release (edge `register`). A store will do: nobody else counts the only access.
            self.registered.store(1 | rejected, Release);
        } else {
            // Release (edge `register`). A read-modify-write, so that what helpers released up to here goes on.
            self.registered.swap(count | rejected, Release);
        }
        rejected != 0
    }

    /// Whether a variable of the operation was already deleted when it was pushed. Final once the push is over.
    #[inline]
    pub fn is_rejected(&self) -> bool {
        // Relaxed: it was settled before the pusher linked the only access, or before its last decrement (edges `link`,
        // `ready`), and so before the caller's turn.
        self.registered.load(Relaxed) & REJECTED != 0
    }
}

/// The right to an operation: its pusher's until the push is over, then that of whoever was told that it is ready.
///
/// There is one at most for each operation, and what ends it takes it: a [push](super::push) that finds the operation not
/// ready, and [`complete`](super::complete) or [`end`](super::end). The rest of a record's life is counted in [`Hold`]s.
#[must_use = "nobody else runs the operation"]
pub struct OpRef<T>(NonNull<Op<T>>);

impl<T> std::fmt::Debug for OpRef<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OpRef").field(&self.0).finish()
    }
}

impl<T> Deref for OpRef<T> {
    type Target = Op<T>;

    #[inline(always)]
    fn deref(&self) -> &Op<T> {
        // SAFETY: the right keeps the record alive.
        unsafe { alive(self.0) }
    }
}

// SAFETY: an `OpRef` is a right to a record that moves between threads; its task is `Send`.
unsafe impl<T: Send> Send for OpRef<T> {}
// SAFETY: a shared `OpRef` gives nothing but a shared record, whose task only its owner's unsafe code reaches.
unsafe impl<T: Send> Sync for OpRef<T> {}

/// Shares of an operation's record, which keep it and its task. Each was counted when it was made, and is given up once.
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

// SAFETY: as for `OpRef`.
unsafe impl<T: Send> Send for Hold<T> {}
// SAFETY: as for `OpRef`.
unsafe impl<T: Send> Sync for Hold<T> {}

impl<T> Drop for Hold<T> {
    /// Gives the shares up. The last of a record drops the task and gives the record back after the epoch.
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the shares are this one's, which ends here.
        unsafe { end_shares(self.op, self.shares) };
    }
}

/// A record that is in use.
///
/// # Safety
/// 1. The record is not reclaimed as long as the result is used: the caller has the right to the operation or a share of its
///    record, or is pinned since it could be found.
#[inline(always)]
unsafe fn alive<'a, T>(op: NonNull<Op<T>>) -> &'a Op<T> {
    // SAFETY: (1).
    let op = unsafe { op.as_ref() };
    op.stamp.check();
    op
}

/// Ends `shares` of a record.
///
/// # Safety
/// 1. The shares are the caller's to end, and it does not use the record afterwards.
#[inline]
pub(super) unsafe fn end_shares<T>(record: NonNull<Op<T>>, shares: u32) {
    // SAFETY: (1): the shares keep the record up to here.
    let op = unsafe { alive(record) };
    // Acquire (edge `retire`): joins what those did who ended their shares. No share can come up beside the last ones.
    let last = op.live.load(Acquire) == shares || {
        // Release (edge `retire`): what this thread did with the record comes before its end.
        op.live.fetch_sub(shares, Release) == shares && {
            // Acquire (edge `retire`), as above.
            let _ = op.live.load(Acquire);
            true
        }
    };
    if last {
        // SAFETY: nobody holds the task any more, and the count reaches zero once.
        unsafe { drop_task(op) };
        pool::retire(record);
    }
}

/// # Safety
/// 1. Nobody uses the task any more, and this is called once.
unsafe fn drop_task<T>(op: &Op<T>) {
    op.place().with_mut(|task| {
        // SAFETY: (1); helpers never touch it.
        let task = unsafe { &mut *task };
        // SAFETY: the task was made with the record (2 of `new_with`), and by (1) this is its only drop.
        unsafe { task.assume_init_drop() };
    });
}

impl<T> OpRef<T> {
    /// As [`new_with`](Self::new_with), with a task that exists already.
    ///
    /// # Safety
    /// 1. The variables stay valid until [`push`](super::push) has returned.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub unsafe fn new(
        task: T,
        band: u8,
        passes_closed: bool,
        accesses: impl ExactSizeIterator<Item = (NonNull<VarQueue<T>>, Mode)>,
    ) -> Self {
        // SAFETY: the place is for a task.
        let init = |place: *mut T| unsafe { place.write(task) };
        // SAFETY: (1), and `init` makes the task.
        unsafe { Self::new_with(init, band, passes_closed, accesses) }
    }

    /// Makes the record of an operation that names `accesses`, which must be sorted by id, without duplicates, and the task
    /// in it. It has one holder.
    ///
    /// # Safety
    /// 1. The variables stay valid until [`push`](super::push) has returned.
    /// 2. `init`, or the caller before anybody else knows the operation, makes a task at the place that `init` is given.
    ///    Neither panics.
    /// 3. `accesses` gives as many as it says.
    #[inline(always)]
    pub unsafe fn new_with(
        init: impl FnOnce(*mut T),
        band: u8,
        passes_closed: bool,
        mut accesses: impl ExactSizeIterator<Item = (NonNull<VarQueue<T>>, Mode)>,
    ) -> Self {
        let count = u32::try_from(accesses.len())
            .ok()
            .filter(|&count| count < REJECTED - 1)
            .expect("an operation has fewer than 2^31 accesses");
        let record: NonNull<Op<T>> = pool::allocate();
        let op = record.as_ptr();
        macro_rules! set {
            ($($field:ident: $value:expr),* $(,)?) => {
                // SAFETY: the record is allocated, aligned and unused; each field is written once, before anybody reads it.
                $(unsafe { (&raw mut (*op).$field).write($value) };)*
            };
        }
        let first = Op::first_place(op);
        let places;
        // Most operations have one access: all that depends on the number is a constant for them.
        if count == 1
            && let Some((queue, mode)) = accesses.next()
        {
            // SAFETY: as above.
            unsafe { first.write(Access::new(op, queue, 0, mode, true)) };
            places = 1;
            set! {
                wait: AtomicU32::new(1),
                registered: AtomicU32::new(0),
                live: AtomicU32::new(2),
                inline: 1,
            }
        } else {
            let (first, inline) = if count as usize <= INLINE_ACCESSES {
                places = count as usize;
                (first, count as u8)
            } else {
                places = 1;
                (boxed_place(first, count), BOXED)
            };
            for (index, (queue, mode)) in (0..count).zip(accesses) {
                // SAFETY: there is room for `count` accesses.
                let slot = unsafe { first.add(index as usize) };
                // SAFETY: as above, and nobody else knows it.
                unsafe { slot.write(Access::new(op, queue, index, mode, false)) };
            }
            set! {
                wait: AtomicU32::new(count + 1),
                registered: AtomicU32::new(0),
                live: AtomicU32::new(count + 1),
                inline: inline,
            }
        }
        set! {
            link: AtomicPtr::new(std::ptr::null_mut()),
            band: band,
            passes_closed: passes_closed,
            stamp: Stamp::new(),
        }
        #[cfg(any(raddle_loom, raddle_shuttle))]
        set! { entered: std::sync::atomic::AtomicBool::new(false) }
        let task_at = Op::<T>::task_behind(places);
        set! { task_at: (task_at / STEP) as u8 }
        let task = op.wrapping_byte_add(task_at).cast::<Place<T>>();
        // SAFETY: the place is in the record, behind the accesses.
        unsafe { task.write(UnsafeCell::new(MaybeUninit::uninit())) };
        // SAFETY: as above.
        unsafe { &*task }.with_mut(|task| init(task.cast()));
        Self(record)
    }

    /// Notes that the operation enters a lane of several workers, and asserts that it has not done so before.
    #[cfg(any(raddle_loom, raddle_shuttle))]
    pub fn enter_once(&self) {
        // Relaxed: models run on one thread of the system.
        let before = self.entered.swap(true, Relaxed);
        assert!(!before, "an operation enters a lane of several workers a second time");
    }

    /// The record's address, as the identity of the operation while it lives.
    pub fn as_ptr(&self) -> *mut Op<T> {
        self.0.as_ptr()
    }

    /// The right as a pointer, for [`from_ptr`](Self::from_ptr).
    #[inline(always)]
    pub(crate) fn into_ptr(self) -> NonNull<Op<T>> {
        self.0
    }

    /// # Safety
    /// 1. `op` came from [`into_ptr`](Self::into_ptr), and the caller has taken over the right that went with it; or the
    ///    operation has given the caller that right by the tracker's rules.
    pub unsafe fn from_ptr(op: NonNull<Op<T>>) -> Self {
        Self(op)
    }

    /// One more share of the record, which keeps it and its task beyond the operation's end.
    #[inline]
    pub fn hold(&self) -> Hold<T> {
        // Relaxed: the right's own share keeps the count above zero.
        self.live.fetch_add(1, Relaxed);
        Hold { op: self.0, shares: 1 }
    }

    /// What is left of the right when the operation is complete and `spent` of its accesses are the caller's to end.
    #[inline]
    pub(super) fn completed(self, spent: u32) -> Hold<T> {
        Hold { op: self.0, shares: 1 + spent }
    }

    /// Takes a satisfied access off what the operation waits for.
    ///
    /// # Safety
    /// 1. The access is the caller's to count, once.
    #[inline]
    pub(super) unsafe fn satisfy(op: NonNull<Op<T>>, ready: &mut ReadyList<T>) {
        // SAFETY: the operation is not ready before this, so it is not over.
        let wait = &unsafe { alive(op) }.wait;
        // Acquire (edge `ready`): of what is left to take off, everything is this thread's.
        // AcqRel (edge `ready`): each decrement continues the release sequence, the last one acquires all.
        if wait.load(Acquire) == 1 || wait.fetch_sub(1, AcqRel) == 1 {
            ready.push(Self(op));
        }
    }

    /// Drops the task and leaves the record to its only access, unless there are more accesses, or holders beside the
    /// caller. Gives the access, which is to be [finished](super::finish) next, and the record to be
    /// [given back](give_back) if it is spent by that.
    #[inline]
    pub(super) fn leave_to_access<'a>(self) -> Result<(&'a Access<T>, NonNull<Op<T>>), Self> {
        // SAFETY: the record stays until the access is spent, which it is not before it is finished.
        let op = unsafe { alive(self.0) };
        // Acquire (edge `retire`): joins what other holders did who are gone. No share can come up beside the last ones.
        let Some(access) = op.sole_access().filter(|_| op.live.load(Acquire) == 2) else {
            return Err(self);
        };
        // SAFETY: the caller was the last holder, and ends that here.
        unsafe { drop_task(op) };
        access.take_last_share();
        Ok((access, self.0))
    }
}

/// Gives back a record that was left to its only access, which is spent.
#[inline]
pub(super) fn give_back<T>(record: NonNull<Op<T>>) {
    pool::retire_inline(record);
}

/// Room for accesses that a record does not hold itself, which is noted in the record's `first` place.
#[cold]
fn boxed_place<T>(first: *mut Access<T>, count: u32) -> *mut Access<T> {
    let mut boxed = Vec::<Access<T>>::with_capacity(count as usize);
    let place = NonNull::new(boxed.as_mut_ptr()).expect("a Vec's pointer is not null");
    std::mem::forget(boxed);
    // SAFETY: the place is an unused record's, and large enough, as `task_behind` asserts.
    unsafe { first.cast::<Boxed<T>>().write(Boxed { accesses: place, count }) };
    place.as_ptr()
}

// SAFETY: the first field is the pool's (1), and pinned threads use the accesses and what is before them (2).
unsafe impl<T> Record for Op<T> {
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    const PRIVATE_FROM: usize = offset_of!(Op<T>, room) + offset_of!(Room<T>, task);

    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    fn owns_memory(&self) -> bool {
        self.inline == BOXED
    }

    unsafe fn free_owned(record: NonNull<Self>) {
        // SAFETY: (1); the fields were initialised by `new_with`.
        let op = unsafe { record.as_ref() };
        if let Some(boxed) = op.boxed() {
            // SAFETY: `boxed_place` forgot a `Vec` of exactly this pointer and capacity; accesses need no drop.
            drop(unsafe { Vec::from_raw_parts(boxed.accesses.as_ptr(), 0, boxed.count as usize) });
        }
    }

    #[cfg(any(raddle_loom, raddle_shuttle))]
    fn stamp(&self) -> &Stamp {
        &self.stamp
    }
}

/// Operations that became ready, in the order they did; linked through the records themselves.
#[derive(Debug)]
pub struct ReadyList<T> {
    head: Option<OpRef<T>>,
    /// The last one of the list, to which the next is linked.
    tail: Option<NonNull<Op<T>>>,
}

impl<T> Default for ReadyList<T> {
    fn default() -> Self {
        Self { head: None, tail: None }
    }
}

impl<T> ReadyList<T> {
    /// Whether no operation is in it.
    pub fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Adds a ready operation at the end.
    #[inline]
    pub fn push(&mut self, op: OpRef<T>) {
        // Relaxed: a ready operation has one owner, and the list is on its stack.
        op.link.store(std::ptr::null_mut(), Relaxed);
        let last = self.tail.replace(op.0);
        match last {
            Some(last) => {
                // SAFETY: the list has the right to it.
                let last = unsafe { alive(last) };
                // Relaxed: as above.
                last.link.store(op.into_ptr().as_ptr(), Relaxed);
            }
            None => self.head = Some(op),
        }
    }

    /// Takes the operation that became ready first.
    #[inline]
    pub fn pop(&mut self) -> Option<OpRef<T>> {
        let op = self.head.take()?;
        // Relaxed: as in `push`.
        let next = op.link.load(Relaxed);
        self.head = NonNull::new(next).map(OpRef);
        if self.head.is_none() {
            self.tail = None;
        }
        Some(op)
    }
}
