//! Slabs: blocks of consecutive records. Pushes add slabs without waiting for another thread; dumps find all records by
//! visiting all slabs; and the memory of a slab is given back once all its records are spare.
//!
//! # States of a record
//!
//! 1. *Taken*: from [`Slabs::take`] to [`Slabs::give_back`], by which the pool owns it.
//! 2. *Spare*: on the stack of its slab.
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
//! * A slab's stack: any thread puts a record on it. Only a thread that has the hand takes records off, all at once, so
//!   a put cannot confuse a record that has left and returned with one that has stayed (the ABA problem).
//! * The first word of a record, an atomic pointer: whoever has taken the record, then the stack, for which it links
//!   the spare records below.
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

use super::{epoch, records::Record};
use crate::{
    memory::records,
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicPtr, AtomicUsize},
        cell::UnsafeCell,
        edge::{self, acquire, release},
    },
};

const MODEL: bool = cfg!(any(raddle_loom, raddle_shuttle));

/// The number of records in a slab, for which a slab is slightly smaller than 16 KiB: an allocator can place the next
/// one behind it without a gap.
const RECORDS: usize = match () {
    () if MODEL => 2,
    () if cfg!(raddle_unpooled) => 1,
    () => 50,
};

/// The number of slabs at which a thread that has the hand looks. If a push has to look further, it adds a slab.
const LOOKS: usize = if MODEL { 3 } else { 8 };

const LAYOUT: Layout = {
    let size = size_of::<Slab>() + RECORDS * records::SIZE;
    match Layout::from_size_align(size, size.next_power_of_two()) {
        Ok(layout) => layout,
        Err(_) => panic!("the layout of a slab must be valid"),
    }
};

/// The head of a slab. The records follow.
#[repr(C, align(64))]
struct Slab {
    /// The slab that was added before, or null.
    older: AtomicPtr<Slab>,
    /// The stack of spare records: a [`Spare`].
    spare: AtomicUsize,
    /// The list that the slab belongs to. Written before the slab is listed.
    owner: UnsafeCell<*const Slabs>,
}

/// The state of a slab's stack: the number of its records, and above these 16 bits, the index of the top record.
#[derive(Clone, Copy)]
struct Spare(usize);

impl Spare {
    const EMPTY: Self = Self(0);

    fn len(self) -> usize {
        self.0 & 0xffff
    }

    fn with(self, top: usize) -> Self {
        Self(top << 16 | (self.len() + 1))
    }

    /// Returns the record at the top of the stack of `slab`, or null.
    fn top(self, slab: NonNull<Slab>) -> *mut records::RecordList {
        if self.len() == 0 { null_mut() } else { Slab::record(slab, self.0 >> 16).as_ptr() }
    }
}

impl Slab {
    /// Returns record `at` of a slab. Only an address is computed.
    fn record(slab: NonNull<Self>, at: usize) -> Record {
        debug_assert!(at < RECORDS);
        // SAFETY: a slab is followed by `RECORDS` records, and `at` is below that.
        unsafe { slab.byte_add(size_of::<Self>() + at * records::SIZE) }.cast()
    }

    /// Returns the slab of a record and the record's index. Only addresses are computed.
    fn of(record: Record) -> (NonNull<Self>, usize) {
        let address = record.addr().get() & !(LAYOUT.align() - 1);
        // `new` has exposed the address of each slab.
        let slab = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: a slab is aligned to a power of two that is at least its size, so this is the slab's address.
        let slab = unsafe { NonNull::new_unchecked(slab) };
        (slab, (record.addr().get() - address - size_of::<Self>()) / records::SIZE)
    }

    /// Allocates a slab, whose records form a chain.
    fn new(owner: &Slabs) -> NonNull<Self> {
        // SAFETY: the size is above zero.
        let memory = unsafe { std::alloc::alloc(LAYOUT) };
        let Some(slab) = NonNull::new(memory.cast::<Self>()) else { std::alloc::handle_alloc_error(LAYOUT) };
        slab.expose_provenance();
        let head = Self {
            older: AtomicPtr::new(null_mut()),
            spare: AtomicUsize::new(Spare::EMPTY.0),
            owner: UnsafeCell::new(owner),
        };
        // SAFETY: the memory is large and aligned enough, and no other thread knows it.
        unsafe { slab.write(head) };
        let mut next = null_mut();
        for at in (0..RECORDS).rev() {
            let record = Self::record(slab, at);
            // SAFETY: the record is in the slab, which no other thread knows.
            unsafe { records::begin(record, next) };
            next = record.as_ptr();
        }
        slab
    }

    /// Frees a slab once no pinned thread can visit it.
    ///
    /// # Safety
    /// 1. The slab is no longer listed, all its records are spare, and this function is called once for it.
    unsafe fn retire(slab: NonNull<Self>, guard: &epoch::Guard) {
        let free = move || {
            // SAFETY: (1): the memory came from `new`, and the epoch has passed, so no thread uses it.
            unsafe { std::alloc::dealloc(slab.as_ptr().cast(), LAYOUT) }
        };
        #[cfg(any(raddle_loom, raddle_shuttle))]
        let free = move || records::end_model((0..RECORDS).map(|at| Self::record(slab, at)), free);
        // SAFETY: all threads may use the memory of a slab, which by (1) the closure owns.
        unsafe { guard.retire(free) };
    }
}

/// Taken records, linked by their first words, and owned by the thread that has the chain.
#[derive(Debug)]
pub(super) struct Chain(Record);

impl Chain {
    /// Returns the chain that begins with `first`.
    ///
    /// # Safety
    /// 1. The chain is owned by the caller.
    pub(super) unsafe fn from_first(first: Record) -> Self {
        Self(first)
    }

    /// Returns the first record, and the chain of the others.
    pub(super) fn split(self) -> (Record, Option<Self>) {
        // SAFETY: the chain owns the record, so it is not freed.
        let word = unsafe { records::word(self.0) };
        // Relaxed: this thread has written the word, or has acquired it along with the chain.
        (self.0, NonNull::new(word.load(Relaxed)).map(Self))
    }

    /// Returns the first record, from which [`from_first`](Self::from_first) makes the chain again.
    pub(super) fn into_first(self) -> Record {
        self.0
    }
}

/// Where the search for spare records continues: the slab behind this one, or the newest if this is null.
#[derive(Default)]
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

/// The list of a process's slabs.
#[derive(Default)]
pub struct Slabs {
    newest: AtomicPtr<Slab>,
    /// The approximate number of spare records.
    spare: AtomicUsize,
    hand: Mutex<Hand>,
}

impl fmt::Debug for Slabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slabs").field("spare", &self.spare).finish_non_exhaustive()
    }
}

impl Slabs {
    fn newest(&self) -> *mut Slab {
        self.newest.load(acquire(edge::slab::REACHED))
    }

    /// Takes spare records, or those of a new slab.
    pub(super) fn take(&self) -> Chain {
        // Relaxed: only says whether a search is worthwhile.
        let are_spare = self.spare.load(Relaxed) >= RECORDS;
        are_spare.then(|| self.take_spare()).flatten().unwrap_or_else(|| self.add())
    }

    /// Takes the spare records of one of the next slabs.
    fn take_spare(&self) -> Option<Chain> {
        let mut hand = self.hand.try_lock().ok()?;
        for _ in 0..LOOKS {
            let Some((_, slab)) = hand.advance(self) else { continue };
            // SAFETY: this thread has the hand, so a listed slab is not freed.
            let spare = unsafe { &slab.as_ref().spare };
            // Relaxed: only says whether there is something to take.
            if Spare(spare.load(Relaxed)).len() > 0 {
                let taken = Spare(spare.swap(Spare::EMPTY.0, acquire(edge::spare::TAKEN)));
                // Relaxed: only an approximate number.
                self.spare.fetch_sub(taken.len(), Relaxed);
                return NonNull::new(taken.top(slab)).map(Chain);
            }
        }
        None
    }

    /// Adds a slab, and takes its records.
    pub(super) fn add(&self) -> Chain {
        let slab = Slab::new(self);
        // SAFETY: a slab with taken records is not freed.
        let older = unsafe { &slab.as_ref().older };
        // Relaxed: only the expected value of the exchange.
        let mut newest = self.newest.load(Relaxed);
        loop {
            // Relaxed: published by the exchange.
            older.store(newest, Relaxed);
            let listed = release(edge::slab::LISTED);
            // Relaxed on failure: only a new expected value.
            match self.newest.compare_exchange_weak(newest, slab.as_ptr(), listed, Relaxed) {
                Ok(_) => return Chain(Slab::record(slab, 0)),
                Err(now) => newest = now,
            }
        }
    }

    /// Makes `record` available to all threads.
    ///
    /// # Safety
    /// 1. The record came from a list of slabs, and the caller owns it; no other thread uses it, not even while pinned.
    pub(super) unsafe fn give_back(&self, record: Record) {
        let (slab, at) = Slab::of(record);
        // SAFETY: by (1) the record is taken, so its slab is not freed before it is put on the stack.
        let Slab { spare, owner, .. } = unsafe { slab.as_ref() };
        // SAFETY: the owner does not change once the slab is listed.
        if owner.with(|owner| unsafe { *owner }) != std::ptr::from_ref(self) {
            // A forked child frees nothing of its parent's.
            return;
        }
        // Relaxed: only the expected value of the exchange.
        let mut before = Spare(spare.load(Relaxed));
        loop {
            // SAFETY: (1).
            let word = unsafe { records::word(record) };
            // Relaxed: published by the exchange.
            word.store(before.top(slab), Relaxed);
            let given = release(edge::spare::GIVEN);
            // Relaxed on failure: only a new expected value.
            match spare.compare_exchange_weak(before.0, before.with(at).0, given, Relaxed) {
                Ok(_) => break,
                Err(now) => before = Spare(now),
            }
        }
        // Relaxed: only an approximate number. It wraps for a moment if a thread that has already taken the record was
        // faster to subtract it; a search is then in vain.
        self.spare.fetch_add(1, Relaxed);
        if before.len() + 1 == RECORDS {
            self.free_spare_slabs();
        }
    }

    /// Frees those of the next slabs that have only spare records, except for the newest.
    fn free_spare_slabs(&self) {
        let Ok(mut hand) = self.hand.try_lock() else { return };
        let guard = epoch::pin();
        for _ in 0..LOOKS {
            self.free_if_spare(&mut hand, &guard);
        }
    }

    /// Frees all slabs that have only spare records, except for the newest.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    pub(super) fn free_all_spare(&self) {
        let Ok(mut hand) = self.hand.try_lock() else { return };
        *hand = Hand::default();
        loop {
            // Each pin permits the epoch to pass, and so the memory of earlier slabs to be freed.
            self.free_if_spare(&mut hand, &epoch::pin());
            if hand.0.is_null() {
                return;
            }
        }
    }

    /// Moves the hand on by one slab, and frees that if it has only spare records and is not the newest.
    fn free_if_spare(&self, hand: &mut Hand, guard: &epoch::Guard) {
        let Some((Some(before), slab)) = hand.advance(self) else { return };
        // SAFETY: this thread has the hand, so a listed slab is not freed.
        let Slab { older, spare, .. } = unsafe { slab.as_ref() };
        if Spare(spare.load(acquire(edge::spare::ALL))).len() == RECORDS {
            // Relaxed: the older slab was listed before this one, and whoever reaches this one has acquired both.
            before.older.store(older.load(Relaxed), Relaxed);
            hand.0 = std::ptr::from_ref(before).cast_mut();
            // Relaxed: only an approximate number.
            self.spare.fetch_sub(RECORDS, Relaxed);
            // SAFETY: the slab has left the list; its spare records can be taken only by means of the hand, by way of
            // the list.
            unsafe { Slab::retire(slab, guard) };
        }
    }

    /// Calls `f` with each record marked with one of `marks`: see [`each_marked`](super::marks::each_marked).
    pub fn each_marked(&self, _pinned: &epoch::Guard, marks: [*mut (); 2], mut f: impl FnMut(NonNull<u8>, *mut ())) {
        let mut next = self.newest();
        while let Some(slab) = NonNull::new(next) {
            for at in 0..RECORDS {
                let record = Slab::record(slab, at);
                // SAFETY: the caller is pinned, so a slab that it has reached in the list is not freed.
                let mark = unsafe { records::word(record) }.load(acquire(edge::marked::FOUND)).cast();
                if marks.contains(&mark) {
                    f(record.cast(), mark);
                }
            }
            // SAFETY: as above.
            // Relaxed: acquired with the newest slab.
            next = unsafe { slab.as_ref() }.older.load(Relaxed);
        }
    }
}

#[cfg(any(raddle_loom, raddle_shuttle))]
impl Slabs {
    /// Takes the records of a slab, as a thread without records does.
    pub fn take_records(&self) -> Vec<records::PooledRecord> {
        records_of(self.take())
    }

    /// Takes the spare records of a slab, if one of the next slabs has some.
    pub fn take_spare_records(&self) -> Option<Vec<records::PooledRecord>> {
        self.take_spare().map(records_of)
    }

    /// Gives back a record, which no pinned thread uses.
    pub fn give_back_record(&self, record: records::PooledRecord) {
        // SAFETY: the models give back each record once.
        unsafe { self.give_back(record.0) };
    }
}

/// Returns the records of a chain.
#[cfg(any(raddle_loom, raddle_shuttle))]
fn records_of(chain: Chain) -> Vec<records::PooledRecord> {
    let mut chain = Some(chain);
    let next = || {
        let (record, rest) = chain.take()?.split();
        chain = rest;
        Some(records::PooledRecord(record))
    };
    std::iter::from_fn(next).collect()
}
