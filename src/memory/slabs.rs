//! Slabs: blocks of consecutive records. Pushes add slabs without waiting for another thread; dumps find all records by
//! visiting all slabs; and the memory of a slab is given back once all its records are spare.
//!
//! # States of a record
//!
//! 1. *Spare*: never used, and behind those of its slab that have been used; or on the stack of its slab.
//! 2. *Taken*: from [`Slabs::take`] to [`Slabs::give_back`], by which the pool owns it.
//!
//! # States of a slab
//!
//! 1. *Listed*: from [`Slabs::add`] on.
//! 2. *Unlisted*: removed from the list, with all its records spare. Pinned threads may still visit it.
//! 3. *Freed*: once the epoch has passed.
//!
//! # Who may touch what
//!
//! * The list's head: any thread adds a slab. Only a thread that has the [`Hand`] removes one, but never the newest, so
//!   the head changes only by additions.
//! * A slab's stack: any thread puts a record on it. Only a thread that has the hand takes records off. So the stack
//!   only grows under that thread's eyes, and no record can leave and return unseen (the ABA problem).
//! * The number of records of a slab that have been used: the thread that adds the slab, then one that has the hand.
//! * The first word of a record, an atomic pointer: the owner of a taken record; then the stack, in which it links a
//!   spare record to the one below.
//! * The hand: the thread that has its lock. No thread ever waits for this lock: a thread that does not get it adds a
//!   slab, or leaves spare slabs to others. A thread that is stopped while it has the hand delays only the reuse and the
//!   freeing of spare records.
//!
//! A forked child begins with an empty list: the lock may have been taken at the fork.
//!
//! # Edges
//!
//! [`slab`](crate::sync::edge::slab), [`spare`](crate::sync::edge::spare).

use std::{
    alloc::Layout,
    fmt,
    ptr::{NonNull, null_mut},
};

use smallvec::SmallVec;

use super::{
    epoch,
    records::{self, Record},
};
use crate::{
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicPtr, AtomicUsize},
        cell::UnsafeCell,
        edge::{self, acquire, release},
        try_lock,
    },
    system::pages,
};

const MODEL: bool = cfg!(any(raddle_loom, raddle_shuttle));

/// The size of a slab, and its alignment, by which a record's slab is found. In builds with few records in a slab, slabs
/// are smaller.
const SIZE: usize = 1 << 16;

/// The number of records in a slab, or `None` if they fill it.
const RECORDS: Option<usize> = match () {
    () if MODEL => Some(2),
    () if cfg!(raddle_unpooled) => Some(1),
    () => None,
};

/// The number of slabs at which a thread that has the hand looks. If a push has to look further, it adds a slab.
const LOOKS: usize = match () {
    () if MODEL => 3,
    // Each slab is a record, and heap checkers notice the use of those that are freed.
    () if cfg!(raddle_unpooled) => 64,
    () => 8,
};

/// The maximum number of records taken together, which fit on a list and into the record that holds the list.
pub(super) const TOGETHER: usize = 36;
const _: () = assert!(MODEL || TOGETHER <= records::CAPACITY + 2);

/// Records taken together.
pub(super) type Records = SmallVec<[Record; TOGETHER]>;

/// The head of a slab. The records follow.
#[repr(C, align(64))]
struct Slab {
    /// The slab that was added before, or null.
    older: AtomicPtr<Slab>,
    /// The stack of spare records: a [`SpareStack`].
    stack: AtomicUsize,
    /// The number of records that have been used. Those behind them are spare as well.
    used: AtomicUsize,
    /// The list that the slab belongs to. Written before the slab is listed.
    owner: UnsafeCell<*const Slabs>,
}

/// The state of a slab's stack: the number of its records, and above these 16 bits, the index of the top record.
#[derive(Clone, Copy)]
struct SpareStack(usize);

impl SpareStack {
    fn len(self) -> usize {
        self.0 & 0xffff
    }

    fn new(top: usize, len: usize) -> Self {
        Self(top << 16 | len)
    }

    /// Returns the index of the top record. The stack must not be empty.
    fn top(self) -> usize {
        self.0 >> 16
    }
}

/// Where the search for spare records continues: the slab behind this one, or the newest if this is null.
struct Hand(*mut Slab);

// SAFETY: only a thread that has the hand removes slabs from the list, so the pointer stays valid until then.
unsafe impl Send for Hand {}

impl Hand {
    /// Moves on by one slab. Returns it and the one before it in the list, if it is not the newest; or `None` at the
    /// end of the list.
    fn advance(&mut self, slabs: &Slabs) -> Option<(Option<&Slab>, NonNull<Slab>)> {
        // SAFETY: slabs leave the list only by means of the hand, which is moved back from a slab that leaves.
        let before = unsafe { self.0.as_ref() };
        let slab = match before {
            // Relaxed: acquired with the newest slab.
            Some(before) => before.older.load(Relaxed),
            None => slabs.newest(),
        };
        self.0 = slab;
        Some((before, NonNull::new(slab)?))
    }
}

/// The list of a process's slabs with records of one size.
pub struct Slabs {
    newest: AtomicPtr<Slab>,
    /// The approximate number of spare records.
    spare: AtomicUsize,
    /// The number of slabs that are not freed.
    len: AtomicUsize,
    /// The size of a record.
    size: usize,
    /// The number of records in a slab.
    records: usize,
    /// The layout of a slab.
    layout: Layout,
    hand: Mutex<Hand>,
}

impl fmt::Debug for Slabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slabs").field("spare", &self.spare).finish_non_exhaustive()
    }
}

impl Slabs {
    /// Returns an empty list of slabs for records of `size` bytes.
    pub(super) fn new(size: usize) -> Self {
        let records = RECORDS.unwrap_or((SIZE - size_of::<Slab>()) / size);
        let len = (size_of::<Slab>() + records * size).next_power_of_two();
        Self {
            newest: AtomicPtr::default(),
            spare: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            size,
            records,
            layout: Layout::from_size_align(len, len).expect("the size of a slab should be valid"),
            hand: Mutex::new(Hand(null_mut())),
        }
    }

    /// Returns record `at` of a slab. Only an address is computed.
    fn record(&self, slab: NonNull<Slab>, at: usize) -> Record {
        debug_assert!(at < self.records);
        // SAFETY: a slab is followed by its records, and `at` is below their number.
        unsafe { slab.byte_add(size_of::<Slab>() + at * self.size) }.cast()
    }

    /// Returns the record at the top of the stack of `slab`, or null.
    fn top(&self, slab: NonNull<Slab>, stack: SpareStack) -> *mut records::RecordList {
        if stack.len() == 0 { null_mut() } else { self.record(slab, stack.top()).as_ptr() }
    }

    /// Returns the slab of a record and the record's index. Only addresses are computed.
    fn locate(&self, record: Record) -> (NonNull<Slab>, usize) {
        let address = record.addr().get() & !(self.layout.align() - 1);
        // `new_slab` has exposed the address of each slab.
        let slab = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: a slab is aligned to a power of two that is at least its size, so this is the slab's address.
        let slab = unsafe { NonNull::new_unchecked(slab) };
        (slab, (record.addr().get() - address - size_of::<Slab>()) / self.size)
    }

    /// Allocates a slab, of which the first `used` records are taken.
    fn new_slab(&self, used: usize) -> NonNull<Slab> {
        let slab = pages::allocate(self.layout).cast::<Slab>();
        slab.as_ptr().expose_provenance();
        let head = Slab {
            older: AtomicPtr::new(null_mut()),
            stack: AtomicUsize::new(0),
            used: AtomicUsize::new(used),
            owner: UnsafeCell::new(self),
        };
        // SAFETY: the memory is large and aligned enough, and no other thread knows it.
        unsafe { slab.write(head) };
        // The first words of the records are null pointers, since the memory is zeroed. Atomics of models are more.
        #[cfg(any(raddle_loom, raddle_shuttle))]
        // SAFETY: the records are in the slab, which no other thread knows.
        (0..self.records).for_each(|at| unsafe { records::begin(self.record(slab, at)) });
        slab
    }

    /// Takes up to `max` spare records of a slab.
    ///
    /// # Safety
    /// 1. The slab is listed, and the caller has the hand.
    unsafe fn take_from(&self, slab: NonNull<Slab>, max: usize) -> Records {
        let mut taken = Records::new();
        // SAFETY: by (1) the slab is not freed.
        let Slab { stack, used, .. } = unsafe { slab.as_ref() };
        loop {
            let before = SpareStack(stack.load(acquire(edge::spare::TAKEN)));
            let (mut next, mut top) = (self.top(slab, before), 0);
            while let Some(record) = NonNull::new(next).filter(|_| taken.len() < max) {
                taken.push(record);
                // SAFETY: by (1) no other thread takes the record off the stack.
                // Relaxed: acquired with the top of the stack.
                next = unsafe { records::word(record) }.load(Relaxed);
                top = NonNull::new(next).map_or(0, |next| self.locate(next).1);
            }
            let after = SpareStack::new(top, before.len() - taken.len());
            // Relaxed: hands nothing over, and continues what the records below were released by. If it fails, another
            // record has come to the top.
            if taken.is_empty() || stack.compare_exchange(before.0, after.0, Relaxed, Relaxed).is_ok() {
                break;
            }
            taken.clear();
        }
        // Relaxed: by (1) only this thread changes the number.
        let before = used.load(Relaxed);
        let after = (before + max - taken.len()).min(self.records);
        taken.extend((before..after).map(|at| self.record(slab, at)));
        // Relaxed: visitors may miss records that are marked meanwhile.
        used.store(after, Relaxed);
        taken
    }

    /// Frees a slab once no pinned thread can visit it.
    ///
    /// # Safety
    /// 1. The slab is no longer listed, all its records are spare, and this function is called once for it.
    unsafe fn retire(&self, slab: NonNull<Slab>, guard: &epoch::Guard) {
        #[cfg(any(raddle_loom, raddle_shuttle))]
        let free = {
            // A model's slabs may outlive their list, and are counted until they leave it.
            let (layout, records) = (self.layout, (0..self.records).map(|at| self.record(slab, at)).collect());
            // Relaxed: only a count.
            self.len.fetch_sub(1, Relaxed);
            // SAFETY: (1): the memory came from `new_slab`, and the interleaving is over.
            move || records::end_model(records, move || unsafe { pages::free(slab.cast(), layout) })
        };
        #[cfg(not(any(raddle_loom, raddle_shuttle)))]
        let free = move || {
            // SAFETY: the lists of slabs are never freed.
            let owner = unsafe { slab.as_ref().owner.with(|owner| (*owner).as_ref()) }.expect("a slab has an owner");
            // SAFETY: (1): the memory came from `new_slab`, and the epoch has passed, so no thread uses it.
            unsafe { pages::free(slab.cast(), owner.layout) };
            // Relaxed: only a count.
            owner.len.fetch_sub(1, Relaxed);
        };
        // SAFETY: all threads may use the memory of a slab, which by (1) the closure owns.
        unsafe { guard.retire(free) };
    }

    /// Returns the size of all slabs.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    pub(super) fn bytes(&self) -> usize {
        self.len() * self.layout.size()
    }

    /// Returns the number of slabs that are not freed.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    pub(super) fn len(&self) -> usize {
        // Relaxed: only a count.
        self.len.load(Relaxed)
    }

    /// Returns the approximate number of spare records.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    pub(super) fn spare(&self) -> usize {
        // Relaxed: only an approximate number.
        self.spare.load(Relaxed)
    }

    fn newest(&self) -> *mut Slab {
        self.newest.load(acquire(edge::slab::REACHED))
    }

    /// Takes `max` spare records, or fewer. Adds a slab if none are found quickly.
    pub(super) fn take(&self, max: usize) -> Records {
        let taken = self.take_spare(max);
        if taken.is_empty() { self.add(max) } else { taken }
    }

    /// Takes up to `max` spare records of the newest slab, of that at which the last search ended, or of one of the next
    /// slabs if there are many.
    fn take_spare(&self, max: usize) -> Records {
        let Some(mut hand) = try_lock(&self.hand) else { return Records::new() };
        let take = |slab| {
            // SAFETY: this thread has the hand, and the slab is listed.
            let taken = unsafe { self.take_from(slab, max) };
            // Relaxed: only an approximate number.
            self.spare.fetch_sub(taken.len(), Relaxed);
            taken
        };
        for slab in [self.newest(), hand.0] {
            let taken = NonNull::new(slab).map_or_else(Records::new, take);
            if !taken.is_empty() {
                return taken;
            }
        }
        // Relaxed: only says whether a search is worthwhile.
        if self.spare.load(Relaxed) < self.records {
            return Records::new();
        }
        for _ in 0..LOOKS {
            let taken = hand.advance(self).map_or_else(Records::new, |(_, slab)| take(slab));
            if !taken.is_empty() {
                return taken;
            }
        }
        Records::new()
    }

    /// Adds a slab, and takes `max` of its records, or all.
    pub(super) fn add(&self, max: usize) -> Records {
        // The newest slab, to which the new one will refer, must not be freed and its address be used for another one
        // before the exchange.
        let _guard = epoch::pin();
        let taken = max.min(self.records);
        let slab = self.new_slab(taken);
        // SAFETY: a slab that is not listed is not freed.
        let older = unsafe { &slab.as_ref().older };
        // Relaxed: only an approximate number.
        self.spare.fetch_add(self.records - taken, Relaxed);
        // Relaxed: only a count.
        self.len.fetch_add(1, Relaxed);
        // Relaxed: only the expected value of the exchange.
        let mut newest = self.newest.load(Relaxed);
        loop {
            // Relaxed: published by the exchange.
            older.store(newest, Relaxed);
            let listed = release(edge::slab::LISTED);
            // Relaxed on failure: only a new expected value.
            match self.newest.compare_exchange_weak(newest, slab.as_ptr(), listed, Relaxed) {
                Ok(_) => return (0..taken).map(|at| self.record(slab, at)).collect(),
                Err(now) => newest = now,
            }
        }
    }

    /// Makes `record` available to all threads.
    ///
    /// # Safety
    /// 1. The record came from a list of slabs, and the caller owns it; no other thread uses it, not even while pinned.
    pub(super) unsafe fn give_back(&self, record: Record) {
        let (slab, at) = self.locate(record);
        // SAFETY: by (1) the record is taken, so its slab is not freed before it is put on the stack.
        let Slab { stack, used, owner, .. } = unsafe { slab.as_ref() };
        // SAFETY: the owner does not change once the slab is listed.
        if owner.with(|owner| unsafe { *owner }) != std::ptr::from_ref(self) {
            // A forked child frees nothing of its parent's.
            return;
        }
        // Relaxed: only says whether it is worthwhile to look for spare slabs.
        let used = used.load(Relaxed);
        // Relaxed: only the expected value of the exchange.
        let mut before = SpareStack(stack.load(Relaxed));
        let after = loop {
            // SAFETY: (1).
            let word = unsafe { records::word(record) };
            // Relaxed: published by the exchange.
            word.store(self.top(slab, before), Relaxed);
            let after = SpareStack::new(at, before.len() + 1);
            let given = release(edge::spare::GIVEN);
            // Relaxed on failure: only a new expected value.
            match stack.compare_exchange_weak(before.0, after.0, given, Relaxed) {
                Ok(_) => break after,
                Err(now) => before = SpareStack(now),
            }
        };
        // Relaxed: only an approximate number. It may wrap, until this addition, if a thread that has already taken the
        // record was faster to subtract it; a search is then in vain.
        self.spare.fetch_add(1, Relaxed);
        if after.len() == used {
            self.free_spare_slabs();
        }
    }

    /// Frees those of the next slabs that have only spare records, except for the newest.
    fn free_spare_slabs(&self) {
        // Before the lock is taken, since a pin may run many closures.
        let guard = epoch::pin();
        let Some(mut hand) = try_lock(&self.hand) else { return };
        let freed = (0..LOOKS).filter(|_| self.free_if_spare(&mut hand, &guard)).count();
        drop(hand);
        epoch::retired(freed * self.layout.size());
    }

    /// Frees all slabs that have only spare records, except for the newest.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    pub(super) fn free_all_spare(&self) {
        // The hand passes each slab at least once, and the end of the list.
        for _ in 0..=self.len().div_ceil(LOOKS) {
            self.free_spare_slabs();
        }
    }

    /// Moves the hand on by one slab, and frees that if it has only spare records and is not the newest. Returns
    /// whether it has freed the slab.
    fn free_if_spare(&self, hand: &mut Hand, guard: &epoch::Guard) -> bool {
        let Some((Some(before), slab)) = hand.advance(self) else { return false };
        // SAFETY: this thread has the hand, so a listed slab is not freed.
        let Slab { older, stack, used, .. } = unsafe { slab.as_ref() };
        // Relaxed: once a slab is listed, only a thread that has the hand changes the number.
        let is_spare = SpareStack(stack.load(acquire(edge::spare::ALL))).len() == used.load(Relaxed);
        if is_spare {
            // Relaxed: the older slab was listed first, so a thread that reaches this one has acquired both.
            before.older.store(older.load(Relaxed), Relaxed);
            hand.0 = std::ptr::from_ref(before).cast_mut();
            // Relaxed: only an approximate number.
            self.spare.fetch_sub(self.records, Relaxed);
            // SAFETY: the slab has left the list; its spare records can be taken only by means of the hand, by way of
            // the list.
            unsafe { self.retire(slab, guard) };
        }
        is_spare
    }

    /// Calls `f` with each record marked with one of `marks`: see [`each_marked`](super::marks::each_marked).
    pub fn each_marked(&self, _pinned: &epoch::Guard, marks: [*mut (); 2], mut f: impl FnMut(NonNull<u8>, *mut ())) {
        let mut next = self.newest();
        while let Some(slab) = NonNull::new(next) {
            // SAFETY: the caller is pinned, so a slab that it has reached in the list is not freed.
            let Slab { older, used, .. } = unsafe { slab.as_ref() };
            // Relaxed: a record is used before it is marked, so a thread that knows of the mark sees the number.
            for at in 0..used.load(Relaxed) {
                let record = self.record(slab, at);
                // SAFETY: the record is in the slab, which is not freed.
                let mark = unsafe { records::word(record) }.load(acquire(edge::marked::FOUND)).cast();
                if marks.contains(&mark) {
                    f(record.cast(), mark);
                }
            }
            // Relaxed: acquired with the newest slab.
            next = older.load(Relaxed);
        }
    }
}

#[cfg(any(raddle_loom, raddle_shuttle))]
impl Default for Slabs {
    fn default() -> Self {
        Self::new(records::RecordSize::Normal.bytes())
    }
}

#[cfg(any(raddle_loom, raddle_shuttle))]
impl Slabs {
    /// Takes up to `max` records, as a thread without records does.
    pub fn take_records(&self, max: usize) -> Vec<records::PooledRecord> {
        self.take(max).into_iter().map(|record| records::PooledRecord(record, records::LISTS)).collect()
    }

    /// Takes up to `max` spare records of one of the next slabs.
    pub fn take_spare_records(&self, max: usize) -> Vec<records::PooledRecord> {
        self.take_spare(max).into_iter().map(|record| records::PooledRecord(record, records::LISTS)).collect()
    }

    /// Returns the numbers of spare records and of all records. They are exact while no other thread uses the slabs.
    pub fn count(&self) -> (usize, usize) {
        // Relaxed: the model has joined all other threads.
        (self.spare.load(Relaxed), self.len.load(Relaxed) * self.records)
    }

    /// Gives back a record, which no pinned thread uses.
    pub fn give_back_record(&self, record: records::PooledRecord) {
        // SAFETY: the models give back each record once.
        unsafe { self.give_back(record.0) };
    }
}
