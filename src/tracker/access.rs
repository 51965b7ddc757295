//! One operation's place in one variable's queue.

use std::ptr::NonNull;

use super::{
    op::{self, Op},
    queue::VarQueue,
};
use crate::{
    memory::epoch::{Atomic, unprotected},
    sync::{
        Ordering::{Acquire, Relaxed},
        atomic::{AtomicBool, AtomicU8},
        hint,
    },
    testing::weaken::{Step, removed},
};

/// Every earlier writer of the variable is done.
pub(super) const READ_OK: usize = 1;
/// Every earlier access of the variable is done.
pub(super) const WRITE_OK: usize = 2;
/// The operation of the access is done.
pub(super) const DONE: usize = 4;
/// The next access was entitled to `READ_OK` when it was linked.
const LINKED_READ_OK: usize = 8;
/// The next access was entitled to `WRITE_OK` when it was linked.
const LINKED_WRITE_OK: usize = 16;
const _: () = assert!(LINKED_WRITE_OK < align_of::<Access<()>>(), "a pointer to an access has room for the flags");

/// The tag that a word gets by the link of an access entitled to `flags`.
#[inline]
pub(super) fn linked(flags: usize) -> usize {
    const { assert!(LINKED_READ_OK == READ_OK << 3 && LINKED_WRITE_OK == WRITE_OK << 3) };
    (flags & (READ_OK | WRITE_OK)) << 3
}

/// What the next access was entitled to when it was linked, by the word it was linked in.
#[inline]
pub(super) fn entitled_at_link(tag: usize) -> usize {
    (tag & (LINKED_READ_OK | LINKED_WRITE_OK)) >> 3
}

/// What an operation does to a variable. The numbers hold the flag that [satisfies](Mode::satisfied_by) the access, and
/// [`WRITES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mode {
    /// Reads it; consecutive readers run side by side.
    Read = READ_OK as u8,
    /// Waits for all earlier accesses, like a mutation, and keeps later ones waiting like a reader: readers on both sides of
    /// it still run side by side.
    Await = WRITE_OK as u8,
    /// Mutates it, alone.
    Write = WRITES | WRITE_OK as u8,
    /// Mutates it, alone, whatever it held before: the old value, or its failure, does not matter.
    Overwrite = 8 | WRITES | WRITE_OK as u8,
}

/// In the numbers of the modes that mutate.
const WRITES: u8 = 4;

impl Mode {
    /// Whether the mode excludes every other access.
    #[inline]
    pub fn is_write(self) -> bool {
        self as u8 & WRITES != 0
    }
}

impl Mode {
    /// The flag that lets the operation go as far as this variable is concerned.
    #[inline]
    fn satisfied_by(self) -> usize {
        self as usize & (READ_OK | WRITE_OK)
    }

    /// Whether `flags` let the operation go as far as this variable is concerned.
    #[inline]
    pub(super) fn is_satisfied_by(self, flags: usize) -> bool {
        flags & self.satisfied_by() != 0
    }

    /// The flags that the next access may have when this one has `flags`.
    #[inline]
    pub(super) fn entitlement(self, flags: usize) -> usize {
        const SPENT: usize = WRITE_OK | DONE;
        if flags & SPENT == SPENT {
            READ_OK | WRITE_OK
        } else if self.is_write() {
            0
        } else {
            flags & READ_OK
        }
    }
}

/// What the next access may have now that one which does not exclude it, and had `flags`, has just got `new`, which is
/// never `DONE`: all of that, but `WRITE_OK` only if the access is done. That is the difference that `new` makes to its
/// [entitlement](Mode::entitlement), since `WRITE_OK` comes with `READ_OK`, or after it.
#[inline]
pub(super) fn passed_on(new: usize, flags: usize) -> usize {
    new & if flags & DONE == 0 { READ_OK } else { READ_OK | WRITE_OK }
}

/// One operation's place in one variable's queue. Aligned so that its address leaves five tag bits.
#[repr(C, align(32))]
pub struct Access<T> {
    /// The next access of the variable, tagged with this one's flags and, in `LINKED_…`, with what the next one got by being
    /// linked.
    pub(super) word: Atomic<Access<T>>,
    /// Null for the access that a variable starts with.
    op: *mut Op<T>,
    queue: NonNull<VarQueue<T>>,
    /// The position among the operation's accesses.
    pub(super) index: u32,
    mode: Mode,
    /// The operation has no other access, and so is in all its queues once this one is in.
    pub(super) sole: bool,
    /// Nobody else has a share of the record, so that it is given back when this access is spent. Set before `DONE`.
    last_share: AtomicBool,
    /// Flags the access was entitled to when it was linked, left by whoever moved the tail to it.
    hints: AtomicU8,
}

impl<T> std::fmt::Debug for Access<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Relaxed: a snapshot to look at.
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
    pub(super) fn new(op: *mut Op<T>, queue: NonNull<VarQueue<T>>, index: u32, mode: Mode, sole: bool) -> Self {
        let (hints, last_share) = (AtomicU8::new(0), AtomicBool::new(false));
        Self { word: Atomic::null(), op, queue, index, mode, sole, last_share, hints }
    }

    /// The access that a new variable has: done, with nothing before it.
    pub(super) fn built_in(queue: NonNull<VarQueue<T>>) -> Self {
        let access = Self::new(std::ptr::null_mut(), queue, 0, Mode::Read, true);
        // Relaxed: the variable is published by the caller.
        access.word.fetch_or(READ_OK | WRITE_OK | DONE, Relaxed, unprotected());
        access
    }

    /// What the operation does to the variable.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The variable's queue. It outlives the access: a variable is freed after its last access, and after the epoch.
    pub fn queue(&self) -> &VarQueue<T> {
        // SAFETY: see above; the queue never moves.
        let queue = unsafe { self.queue.as_ref() };
        queue.stamp.check();
        queue
    }

    /// The variable's queue, by the pointer that the operation was made with.
    pub fn queue_ptr(&self) -> NonNull<VarQueue<T>> {
        self.queue
    }

    pub(super) fn op(&self) -> Option<&Op<T>> {
        // SAFETY: an operation's record holds its accesses, or lives until after they are retired.
        unsafe { self.op.as_ref() }
    }

    /// The operation, by the pointer that its record was made with.
    #[inline]
    pub(super) fn op_ptr(&self) -> Option<NonNull<Op<T>>> {
        NonNull::new(self.op)
    }

    /// Asks for the next access, which is going to be written when this one's operation is completed.
    #[inline]
    pub fn prefetch_next(&self) {
        // Relaxed: the address is all that is wanted.
        hint::prefetch_write(self.word.load(Relaxed, unprotected()).as_raw());
    }

    /// Asserts in models that the record was not reclaimed.
    #[inline(always)]
    pub(super) fn check(&self) {
        match self.op() {
            Some(op) => op.stamp.check(),
            // SAFETY: the access lies in its queue.
            None => unsafe { self.queue.as_ref() }.stamp.check(),
        }
    }

    #[inline]
    fn is_satisfied_by(&self, flags: usize) -> bool {
        self.mode.is_satisfied_by(flags)
    }

    /// The flags that the next access may have when this one has `flags`, hints included.
    #[inline]
    pub(super) fn entitlement(&self, flags: usize) -> usize {
        // Relaxed: the caller has acquired the tail, and with it the hints that were left before the tail came here,
        // which do not change any more, and the writes behind them (see `leave_hints`).
        self.mode.entitlement(flags | usize::from(self.hints.load(Relaxed)))
    }

    /// Leaves `flags` for the operation's pusher.
    #[inline]
    pub(super) fn leave_hints(&self, flags: usize) {
        if flags != 0 {
            // Relaxed: who leaves hints has acquired the writes behind them with the predecessor's word, and hands both
            // on with the tail (edge `swing`). Who moves the tail in its stead has left the same, or is the pusher, who
            // has set the flags before. Whoever needs hints has acquired the tail, or what was counted after it (edge
            // `register`).
            self.hints.fetch_or(flags as u8, Relaxed);
        }
    }

    /// Sets `flags`, by the operation's pusher; 1 if that satisfied the access. Nothing is handed on: whoever stands
    /// behind this access has been left the same as hints.
    #[inline]
    pub(super) fn grant(&self, flags: usize) -> u32 {
        if flags == 0 {
            return 0;
        }
        // Relaxed: the pusher has acquired the writes behind the flags, with the predecessor's word or as `adopt_hints`
        // says, and so has everybody who has come to this access by the link or the tail; it releases them with `wait`
        // to whoever runs the operation. Being a read-modify-write, it carries on what was released with other flags.
        let was = self.word.fetch_or(flags, Relaxed, unprotected()).tag();
        u32::from(!self.is_satisfied_by(was) && self.is_satisfied_by(was | flags))
    }

    /// Turns the hints into flags, by the operation's pusher; 1 if that satisfied the access.
    #[inline]
    pub(super) fn adopt_hints(&self) -> u32 {
        // Relaxed: the pusher has acquired the hints, and the writes behind them, when it found the access in: with the
        // tail or with `registered`. Where it has linked the access itself, it has no need of hints.
        self.grant(usize::from(self.hints.load(Relaxed)))
    }

    /// Says that the record is to be given back with this access, which is not `DONE` yet.
    #[inline]
    pub(super) fn take_last_share(&self) {
        // Relaxed: the step that sets `DONE` releases it (edge `complete`).
        self.last_share.store(true, Relaxed);
    }

    /// The access's share of the record, to be given up when it is spent and the tail is past it. By value, since the access
    /// may end with it.
    #[inline]
    pub(super) fn share(&self) -> Share<T> {
        // Relaxed: who finds the access spent has acquired `DONE` (edge `complete`).
        Share { op: self.op_ptr(), last: self.last_share.load(Relaxed) }
    }

    /// Whether an access of the same mode that is pushed now would wait for the same as this one, for whoever keeps both
    /// records: this one is in its queue, and nothing is known to stand behind it but possibly `other`. Neither mutates. Not
    /// if this access waits for nothing any more, unless that is to count as well.
    pub fn stands_for_the_next(&self, other: Option<&Self>, satisfied_as_well: bool) -> bool {
        // Relaxed, like the next load: what the caller has seen pushed behind this access was linked after the next one
        // was, which the caller therefore sees (edges `link`, `swing`). Nothing is read by the pointer.
        let word = self.word.load(Relaxed, unprotected());
        let is_last = word.is_null()
            || other.is_some_and(|other| {
                // Relaxed: as above.
                std::ptr::eq(word.as_raw(), other) && other.word.load(Relaxed, unprotected()).is_null()
            });
        // Registered: what the caller pushes from now on comes behind this access.
        (is_last || removed(Step::JoinOnlyTheLast))
            && (satisfied_as_well || !self.is_satisfied_by(word.tag()))
            && (removed(Step::JoinWhatIsIn) || self.op().is_some_and(Op::is_registered))
    }

    /// Whether the access, seen as the last of its variable, has nothing pending before the next one: for a reader's
    /// view only writers count.
    pub(super) fn leaves_idle(&self, for_reading: bool) -> bool {
        // Acquire (edge `complete`): the caller goes on as if it had been handed the variable.
        let word = self.word.load(Acquire, unprotected());
        let wanted = if for_reading { READ_OK } else { WRITE_OK };
        word.is_null() && self.mode.entitlement(word.tag()) & wanted != 0
    }
}

/// What an access has of its operation's record.
pub(super) struct Share<T> {
    op: Option<NonNull<Op<T>>>,
    /// Nobody else has a share.
    last: bool,
}

impl<T> Share<T> {
    /// Gives it up, and the record back if it is the last.
    ///
    /// # Safety
    /// 1. The access is spent, the tail is past it, and this is called once.
    #[inline]
    pub(super) unsafe fn retire(self) {
        if let Some(op) = self.op {
            // SAFETY: (1).
            unsafe { Self::retire_of(op, self.last) };
        }
    }

    /// # Safety
    /// 1. As for [`retire`](Self::retire).
    #[inline(never)]
    unsafe fn retire_of(op: NonNull<Op<T>>, last: bool) {
        if last {
            op::give_back(op);
        } else {
            // SAFETY: (1): an access has one share.
            unsafe { op::end_shares(op, 1) };
        }
    }
}

// SAFETY: the pointers refer to records shared between threads by the tracker's rules; `T` itself is moved to and dropped
// on other threads, hence `T: Send`.
unsafe impl<T: Send> Send for Access<T> {}
// SAFETY: as above; every shared field is atomic or never changes.
unsafe impl<T: Send> Sync for Access<T> {}
