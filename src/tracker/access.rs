//! One operation's place in one variable's queue.

use std::ptr::NonNull;

use super::{
    apart::AccessBlock,
    op_record::{self, Op},
    queue::VarQueue,
};
use crate::{
    memory::{
        epoch::{Atomic, Pointer, Shared, Stamp, unprotected},
        pool::RecordSize,
    },
    sync::{
        Ordering::Relaxed,
        atomic::AtomicU8,
        edge::{self, acquire, removed, step},
        hint,
    },
};

/// Set once all earlier writers of the variable are done.
pub(super) const READ_OK: usize = 1;
/// Set once all earlier accesses of the variable are done.
pub(super) const WRITE_OK: usize = 2;
/// Set once the operation of the access is done.
pub(super) const DONE: usize = 4;
/// Set if `READ_OK` was grantable to the next access when that access was linked.
const LINKED_READ_OK: usize = 8;
/// Set if `WRITE_OK` was grantable to the next access when that access was linked.
const LINKED_WRITE_OK: usize = 16;
const _: () =
    assert!(LINKED_WRITE_OK < align_of::<Access<()>>(), "a pointer to an access must have room for the flags");

/// The flags that describe the next access.
pub(super) const LINKED: usize = LINKED_READ_OK | LINKED_WRITE_OK;
/// The flags of a spent access.
pub(super) const SPENT: usize = WRITE_OK | DONE;

/// In [`Access::duties`]: the record was left to the access, which then has the only share.
const RETIRES: u8 = 1;
/// In [`Access::duties`]: the access may be the front of its queue.
const MAY_BE_FRONT: u8 = 2;
/// In [`Access::duties`], from its creation on: the access is in a [block](AccessBlock) and not in the record.
const IN_BLOCK: u8 = 4;

/// Returns the tag that records that `flags` were grantable to the next access when it was linked.
#[inline]
pub(super) fn linked(flags: usize) -> usize {
    const { assert!(LINKED_READ_OK == READ_OK << 3 && LINKED_WRITE_OK == WRITE_OK << 3) };
    (flags & (READ_OK | WRITE_OK)) << 3
}

/// Returns the flags that were grantable to the next access when it was linked, given the tag of the linking word.
#[inline]
pub(super) fn grantable_at_link(tag: usize) -> usize {
    (tag & LINKED) >> 3
}

/// What an operation does to a variable. The discriminant contains the flag that [satisfies](Mode::satisfied_by) the
/// access, and [`WRITES`] for the modes that mutate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Reads the variable; consecutive readers run in parallel.
    Read = READ_OK as u8,
    /// Waits for all earlier accesses, like a writer, but only later writers and waits wait for it, as for a reader.
    /// Readers before and after it still run in parallel.
    Await = WRITE_OK as u8,
    /// Mutates the variable exclusively.
    Write = WRITES | WRITE_OK as u8,
    /// Mutates the variable exclusively and replaces its value, which makes an error of the old value irrelevant.
    Overwrite = 8 | WRITES | WRITE_OK as u8,
    /// Mutates the variable. To the tracker, consecutive accesses of this mode are as compatible as readers are: it is
    /// left to others that their operations [exclude each other](crate::notify::turn).
    Commute = COMMUTES | READ_OK as u8,
}

/// Set in the discriminants of the modes that mutate and exclude every other access.
const WRITES: u8 = 4;
/// Set in the discriminant of [`Mode::Commute`].
const COMMUTES: u8 = 16;

impl Mode {
    /// Returns whether the mode mutates the variable.
    #[inline]
    pub fn is_write(self) -> bool {
        self as u8 & (WRITES | COMMUTES) != 0
    }

    /// Returns whether the mode excludes every other access.
    #[inline]
    pub(super) fn is_exclusive(self) -> bool {
        self as u8 & WRITES != 0
    }

    /// Returns whether an access of this mode may be done before an earlier one of the same mode.
    #[inline]
    pub(super) fn is_shared(self) -> bool {
        self as u8 & READ_OK as u8 != 0
    }

    /// Returns whether an access of this mode and an adjacent one of mode `other` do not wait for each other, or only
    /// because one of them is a wait: both read or wait, or both commute.
    #[inline]
    pub(super) fn shares_with(self, other: Self) -> bool {
        !self.is_exclusive() && !other.is_exclusive() && self.passes_to(other)
    }

    /// Returns whether a non-exclusive access of this mode passes `READ_OK` on to the next one, of mode `next`. To an
    /// exclusive one, that flag means nothing.
    #[inline]
    pub(super) fn passes_to(self, next: Self) -> bool {
        (self as u8 ^ next as u8) & COMMUTES == 0 || removed(step::RUNS_END)
    }

    /// Returns the flag that an access of this mode waits for.
    #[inline]
    fn satisfied_by(self) -> usize {
        self as usize & (READ_OK | WRITE_OK)
    }

    /// Returns whether an access of this mode with `flags` is satisfied.
    #[inline]
    pub(super) fn is_satisfied_by(self, flags: usize) -> bool {
        flags & self.satisfied_by() != 0
    }

    /// Does the same as [`is_satisfied_by`](Self::is_satisfied_by), in fewer instructions, for `flags` that contain
    /// only `READ_OK` and `WRITE_OK`.
    #[inline]
    pub(super) fn is_granted_by(self, flags: usize) -> bool {
        debug_assert!(flags & !(READ_OK | WRITE_OK) == 0);
        flags & self as usize != 0
    }

    /// Returns the flags grantable to the next access when this one has `flags`. `COMMUTES` says whether the next one
    /// commutes; a push that knows that it does not needs no further instruction.
    #[inline]
    pub(super) fn grantable<const COMMUTES: bool>(self, flags: usize) -> usize {
        let ends_run = if removed(step::RUNS_END) {
            self.is_exclusive()
        } else if COMMUTES {
            self != Self::Commute
        } else {
            self.is_write()
        };
        if flags & SPENT == SPENT {
            READ_OK | WRITE_OK
        } else if ends_run {
            0
        } else {
            flags & READ_OK
        }
    }
}

/// Returns the flags that become grantable to the next access, to which this one [passes](Mode::passes_to) `READ_OK`,
/// when this one, which is not exclusive, with `flags` receives `new`, which never contains `DONE`. The result is
/// `new`, without `WRITE_OK` if the access is not done. That is exactly what `new` adds to [`Mode::grantable`], since
/// `WRITE_OK` never comes before `READ_OK`.
#[inline]
pub(super) fn newly_grantable(new: usize, flags: usize) -> usize {
    new & if flags & DONE == 0 { READ_OK } else { READ_OK | WRITE_OK }
}

/// Returns a pointer to `access` with a tag. Unlike `Shared::from`, this does not check that the pointer is aligned.
#[inline(always)]
pub(super) fn tagged<'g, T>(access: &Access<T>, tag: usize) -> Shared<'g, Access<T>> {
    debug_assert!(tag < align_of::<Access<T>>());
    let word = std::ptr::from_ref(access).expose_provenance() + tag;
    // SAFETY: a reference is aligned, so this is the word that `into_usize` returns for the pointer with the tag.
    unsafe { Pointer::from_usize(word) }
}

/// Whether an operation has exactly one access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arity {
    /// One access: once it is linked, the operation is in all its queues.
    One,
    /// Any other number.
    Several,
}

/// The arity of an operation, and the size of its record if the access is in the record.
#[derive(Clone, Copy)]
struct Shape(u8);

impl Shape {
    const SEVERAL: u8 = 1;
    /// The size is in the bits from this one on. So the index in an array whose elements have a size of a power of two
    /// is found without a shift.
    const SIZE: u32 = 6;

    #[inline]
    fn new(arity: Arity, size: RecordSize) -> Self {
        Self(if arity == Arity::One { 0 } else { Self::SEVERAL } | (size as u8) << Self::SIZE)
    }
}

/// One operation's place in one variable's queue. Aligned so that pointers to it have room for five tag bits.
#[repr(C, align(32))]
pub struct Access<T> {
    /// The next access of the variable, tagged with the flags of this access and, in `LINKED_…`, with those that were
    /// grantable to the next access when it was linked.
    pub(super) word: Atomic<Access<T>>,
    /// The operation, or null for a variable's initial access.
    op: *mut Op<T>,
    queue: NonNull<VarQueue<T>>,
    /// The access's position among those of its operation.
    pub(super) index: u32,
    mode: Mode,
    shape: Shape,
    /// What to do before the access's share ends, or instead of ending it. Set before `DONE`.
    duties: AtomicU8,
    /// Flags that were grantable to the access when it was linked, left by helpers and by threads that move the tail to
    /// it.
    deferred: AtomicU8,
}

impl<T> std::fmt::Debug for Access<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Relaxed: a snapshot for display.
        let word = self.word.load(Relaxed, unprotected());
        f.debug_struct("Access")
            .field("mode", &self.mode)
            .field("read_ok", &(word.tag() & READ_OK != 0))
            .field("write_ok", &(word.tag() & WRITE_OK != 0))
            .field("done", &(word.tag() & DONE != 0))
            .field("has_next", &!word.is_null())
            .finish_non_exhaustive()
    }
}

impl<T> Access<T> {
    /// Creates an access of an operation with this arity, whose record is at `op` and has this size.
    #[inline(always)]
    pub(super) fn new(
        op: *mut Op<T>,
        queue: NonNull<VarQueue<T>>,
        index: u32,
        mode: Mode,
        arity: Arity,
        size: RecordSize,
    ) -> Self {
        let (deferred, duties) = (AtomicU8::new(0), AtomicU8::new(0));
        Self { word: Atomic::null(), op, queue, index, mode, shape: Shape::new(arity, size), duties, deferred }
    }

    /// Notes that the access, which no other thread knows yet, is in a [block](AccessBlock).
    pub(super) fn in_block(self) -> Self {
        // Relaxed: published with the access.
        self.duties.store(IN_BLOCK, Relaxed);
        self
    }

    /// Creates a variable's initial access: done, with nothing before it.
    pub(super) fn built_in(queue: NonNull<VarQueue<T>>) -> Self {
        let access = Self::new(std::ptr::null_mut(), queue, 0, Mode::Read, Arity::One, RecordSize::Normal);
        // Relaxed: the variable is published by the caller.
        access.word.fetch_or(READ_OK | WRITE_OK | DONE, Relaxed, unprotected());
        access
    }

    /// Returns what the operation does to the variable.
    pub fn mode(&self) -> Mode {
        self.assert_alive();
        self.mode
    }

    /// Returns the variable's queue.
    pub fn queue(&self) -> &VarQueue<T> {
        self.assert_alive();
        // SAFETY: the queue never moves, and is freed only after its last access has been retired and the epoch has
        // passed.
        let queue = unsafe { self.queue.as_ref() };
        queue.stamp.check();
        queue
    }

    /// Returns the pointer to the variable's queue, as stored when the operation was created.
    pub fn queue_ptr(&self) -> NonNull<VarQueue<T>> {
        self.assert_alive();
        self.queue
    }

    /// Returns whether the operation has no other access, or whether this is a variable's initial access.
    #[inline]
    pub(super) fn is_sole(&self) -> bool {
        self.assert_alive();
        self.shape.0 & Shape::SEVERAL == 0
    }

    /// Returns the size of the operation's record. If it contains this access, it was stored here.
    #[inline]
    pub(super) fn record_size(&self) -> RecordSize {
        RecordSize::from_number(self.shape.0 >> Shape::SIZE)
    }

    pub(super) fn op(&self) -> Option<&Op<T>> {
        // SAFETY: the operation's record contains the access, or has a share for its block, so the record is alive as
        // long as the access.
        unsafe { self.op.as_ref() }
    }

    /// Returns the pointer to the operation, as stored when its record was created.
    #[inline]
    pub(super) fn op_ptr(&self) -> Option<NonNull<Op<T>>> {
        NonNull::new(self.op)
    }

    /// Returns the operation of an access that has one.
    ///
    /// # Safety
    /// 1. This is not a variable's initial access.
    #[inline]
    pub(super) unsafe fn own_op(&self) -> &Op<T> {
        self.assert_alive();
        // SAFETY: by (1) there is an operation. Its record contains the access, or has a share for its block, so the
        // record is alive as long as the access.
        unsafe { &*self.op }
    }

    /// Returns the pointer to the operation of an access that has one, as stored when its record was created.
    ///
    /// # Safety
    /// 1. This is not a variable's initial access.
    #[inline]
    pub(super) unsafe fn own_op_ptr(&self) -> NonNull<Op<T>> {
        self.assert_alive();
        // SAFETY: by (1) there is an operation.
        unsafe { NonNull::new_unchecked(self.op) }
    }

    /// Prefetches the next access, which is written when this access's operation completes.
    #[inline]
    pub fn prefetch_next(&self) {
        // Relaxed: only the address is used.
        hint::prefetch_write(self.word.load(Relaxed, unprotected()).as_raw());
    }

    /// Asserts, in models, that the record or block has not been reclaimed.
    #[inline(always)]
    pub(super) fn check(&self) {
        match self.op() {
            Some(op) => self.stamp_of(op).check(),
            // SAFETY: the access lies inside its queue, so the queue is alive.
            None => unsafe { self.queue.as_ref() }.stamp.check(),
        }
    }

    /// Returns the mark of the access's memory. `op` is its operation.
    #[inline(always)]
    fn stamp_of<'a>(&'a self, op: &'a Op<T>) -> &'a Stamp {
        if !op.is_apart() {
            return &op.stamp;
        }
        // SAFETY: (1): the access is not in the record.
        let block = unsafe { AccessBlock::of(NonNull::from(self), self.index) };
        // SAFETY: the block is alive as long as the access.
        unsafe { &(*block.as_ptr()).stamp }
    }

    /// Makes the same assertion as [`check`](Self::check) about an operation's record, but without a step that models
    /// explore, so every accessor can call it.
    #[inline(always)]
    fn assert_alive(&self) {
        if let Some(op) = self.op() {
            self.stamp_of(op).assert_alive();
        }
    }

    #[inline]
    fn is_satisfied_by(&self, flags: usize) -> bool {
        self.mode.is_satisfied_by(flags)
    }

    /// Returns the flags grantable to the next access when this one has `flags` in addition to its deferred flags.
    /// `commutes` says whether the next one commutes.
    #[inline(always)]
    pub(super) fn grantable(&self, flags: usize, commutes: bool) -> usize {
        self.assert_alive();
        // Relaxed: the caller has acquired the tail, and with it the deferred flags and the writes behind them (see
        // `defer_flags`). These flags do not change once the tail has reached this access.
        let flags = flags | usize::from(self.deferred.load(Relaxed));
        if commutes { self.mode.grantable::<true>(flags) } else { self.mode.grantable::<false>(flags) }
    }

    /// Leaves `flags` for the operation's pusher to [adopt](Self::adopt_deferred).
    #[inline]
    pub(super) fn defer_flags(&self, flags: usize) {
        self.assert_alive();
        if flags != 0 {
            // Relaxed: the caller has acquired the writes published with the flags through the predecessor's word, and
            // releases both with the tail (edge `swing`). If another thread moves the tail instead, it has deferred the
            // same flags, or is the pusher, which has set them. A thread that reads deferred flags has acquired the
            // tail, or the count that was released after it (edge `register`).
            self.deferred.fetch_or(flags as u8, Relaxed);
        }
    }

    /// Sets `flags` on behalf of the operation's pusher; returns 1 if that satisfied the access, otherwise 0.
    /// Propagates nothing: an access linked behind this one takes these flags into account when it is linked, as flags
    /// or as deferred flags.
    #[inline]
    pub(super) fn grant(&self, flags: usize) -> u32 {
        self.assert_alive();
        if flags == 0 {
            return 0;
        }
        // Relaxed: the pusher has acquired the writes published with the flags, through the predecessor's word or as
        // `adopt_deferred` says. So has every thread that reached this access by the link or the tail. The pusher
        // releases the writes with `wait` to the thread that runs the operation. A read-modify-write, so it continues
        // the release sequences of other flags.
        let was = self.word.fetch_or(flags, Relaxed, unprotected()).tag();
        u32::from(!self.is_satisfied_by(was) && self.is_satisfied_by(was | flags))
    }

    /// Returns the deferred flags.
    #[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
    pub(super) fn deferred(&self) -> usize {
        // Relaxed: used only in tests with one thread.
        usize::from(self.deferred.load(Relaxed))
    }

    /// Turns the deferred flags into flags, on behalf of the operation's pusher; returns 1 if that satisfied the
    /// access, otherwise 0.
    #[inline]
    pub(super) fn adopt_deferred(&self) -> u32 {
        self.assert_alive();
        // Relaxed: the pusher acquired the deferred flags, and the writes behind them, when it found the access linked:
        // with the tail or with `unregistered`. For an access that it linked itself, the pusher needs no such edge.
        self.grant(usize::from(self.deferred.load(Relaxed)))
    }

    /// Records that this access, which is not yet `DONE`, holds the only share of its record.
    #[inline]
    pub(super) fn take_last_share(&self) {
        self.assert_alive();
        // Relaxed: released by the step that sets `DONE` (edge `complete`).
        self.duties.store(RETIRES, Relaxed);
    }

    /// Records that this access, which is not yet `DONE` and is not responsible for its record, may become the front of
    /// its queue.
    pub(super) fn may_be_front(&self) {
        self.assert_alive();
        // Relaxed: only this thread changes them, and they are released by the step that sets `DONE` (edge `complete`).
        self.duties.store(self.duties.load(Relaxed) | MAY_BE_FRONT, Relaxed);
    }

    /// Returns the access's share of the record, which must be [ended](RecordShare::end) once the access is spent or
    /// unlinked and the tail is past it. The share does not borrow the access, which may be reclaimed with the record.
    #[inline]
    pub(super) fn share(&self) -> RecordShare<T> {
        self.assert_alive();
        // Relaxed: a thread that finds the access done has acquired `DONE` (edge `complete`).
        let duties = self.duties.load(Relaxed);
        if duties & MAY_BE_FRONT != 0 {
            self.queue().front.remove(self);
        }
        RecordShare { access: NonNull::from(self), duties }
    }

    /// Returns whether an access of the same mode, if pushed now, would wait for the same operations as this one. This
    /// is so if this access is in its queue and nothing is known to be linked behind it, except possibly `other`.
    /// Neither this access nor `other` may mutate, and the caller must keep both records alive. If this access is
    /// satisfied, returns `satisfied_as_well` instead of `true`.
    pub fn stands_for_the_next(&self, other: Option<&Self>, satisfied_as_well: bool) -> bool {
        // Relaxed, like the load below: if the caller knows of an access behind this one, it sees here that this one
        // has a next access (edges `link`, `swing`). The pointer is not dereferenced.
        let word = self.word.load(Relaxed, unprotected());
        let is_last = word.is_null()
            || other.is_some_and(|other| {
                // Relaxed: if the caller knows of an access behind `other`, it sees here that `other` is not the last
                // one.
                std::ptr::eq(word.as_raw(), other) && other.word.load(Relaxed, unprotected()).is_null()
            });
        // Once the operation is registered, anything that the caller pushes on the variable goes behind this access.
        (is_last || removed(step::JOIN_ONLY_THE_LAST))
            && (satisfied_as_well || !self.is_satisfied_by(word.tag()))
            && (removed(step::JOIN_WHAT_IS_IN) || self.op().is_some_and(Op::is_registered))
    }

    /// Returns whether the access is the last of its variable and an access of `mode` behind it would be satisfied.
    pub(super) fn leaves_idle(&self, mode: Mode) -> bool {
        let word = self.word.load(acquire(edge::complete::IDLE), unprotected());
        word.is_null() && self.mode.grantable::<false>(word.tag()) & mode.satisfied_by() != 0
    }
}

/// An access's share of its operation's record, or of its block.
pub(super) struct RecordShare<T> {
    access: NonNull<Access<T>>,
    /// The access's [duties](Access::duties), which do not change any more.
    duties: u8,
}

impl<T> RecordShare<T> {
    /// Ends the share, and retires the record or block if no share is left.
    ///
    /// # Safety
    /// 1. The access is spent or unlinked, the tail is past it, and this is called once.
    #[inline]
    pub(super) unsafe fn end(self) {
        // SAFETY: by (1) the access has its share up to here.
        if let Some(op) = unsafe { self.access.as_ref() }.op_ptr() {
            // SAFETY: (1): `end_of` has the same contract, which the caller upholds.
            unsafe { Self::end_of(op, self.access, self.duties) };
        }
    }

    /// Ends the share of an access of the operation `op`.
    ///
    /// # Safety
    /// 1. The access is spent or unlinked, the tail is past it, and this is called once.
    #[cold]
    #[inline(never)]
    unsafe fn end_of(op: NonNull<Op<T>>, access: NonNull<Access<T>>, duties: u8) {
        if duties == RETIRES {
            // SAFETY: by (1) the access, which has the only share of the record, ends it here.
            unsafe { op_record::retire_record(op) };
        } else if duties & IN_BLOCK == 0 {
            // SAFETY: by (1) this is the access's only share, which ends once.
            unsafe { op_record::end_shares(op, 1) };
        } else {
            // SAFETY: (1): the caller upholds it; (2): the access was created in a block of this record.
            unsafe { op_record::end_access_apart(access, op) };
        }
    }
}

// SAFETY: the pointers lead to records and to a queue, which threads share according to the tracker's rules; `T` itself
// is moved to and dropped on other threads, hence `T: Send`.
unsafe impl<T: Send> Send for Access<T> {}
// SAFETY: the pointers lead to records and to a queue, which threads share according to the tracker's rules, and every
// shared field is atomic or never changes.
unsafe impl<T: Send> Sync for Access<T> {}
