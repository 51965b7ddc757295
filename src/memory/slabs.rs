//! Slabs: blocks of consecutive records. Pushes add slabs without waiting for another thread; dumps find all records by
//! visiting all slabs; and the memory of a slab is given back once all its records are spare.
//!
//! # States of a record
//!
//! 1. *Spare*: its bit in the head of its slab is set. Nothing refers to the record, and its contents are of no use.
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
//! * The bits of spare records: any thread sets the bit of a record that it owns. Only a thread that has the hand
//!   clears bits. So what that thread has seen to be spare stays spare until it takes it.
//! * The memory of a record: the owner of a taken record; of a spare one, the thread that has the hand, which may give
//!   the pages under spare records back to the system. Threads that visit records may read the first word at any time.
//! * The hand: the thread that has its lock. No thread ever waits for this lock: a thread that does not get it adds a
//!   slab, or leaves spare slabs to others. A thread that is stopped while it has the hand delays only the reuse and
//!   the freeing of spare records.
//!
//! The first word of a spare record is null, as that of any record that is neither marked nor on a stack.
//!
//! Records that threads at rest have cached lie in many slabs, none of which can be freed. So an idle process gives
//! back the pages between them.
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
    records::{self, Record, RecordSize},
};
use crate::{
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize},
        cell::UnsafeCell,
        edge::{self, acquire, release},
        try_lock,
    },
    system::pages,
};

const MODEL: bool = cfg!(any(raddle_loom, raddle_shuttle));

/// The size of a slab, and its alignment, by which a record's slab is found. In builds with few records in a slab,
/// slabs are smaller.
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

/// The number of records with bits in one word.
const BITS: usize = usize::BITS as usize;

/// The number of words with the bits of a slab's records.
const WORDS: usize = match RECORDS {
    Some(records) => records.div_ceil(BITS),
    None => (SIZE / RecordSize::Small.bytes()).div_ceil(BITS),
};

/// The head of a slab. The records follow.
#[repr(C, align(64))]
struct Slab {
    /// The slab that was added before, or null.
    older: AtomicPtr<Slab>,
    /// The list that the slab belongs to. Written before the slab is listed.
    owner: UnsafeCell<*const Slabs>,
    /// The number of spare records when their pages were last given back, or 0 if records have been taken since then.
    /// Belongs to the thread that has the hand.
    vacated: UnsafeCell<usize>,
    /// The bits of the spare records.
    spare: [AtomicUsize; WORDS],
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
    /// Whether records have been taken whose pages had been given back.
    is_reused: AtomicBool,
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
            is_reused: AtomicBool::new(false),
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

    /// Returns the bits of a word of [`Slab::spare`] that stand for records.
    fn all(&self, word: usize) -> usize {
        match self.records.saturating_sub(word * BITS) {
            records @ 0..BITS => (1 << records) - 1,
            _ => usize::MAX,
        }
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
        let spare = |word: usize| match used.saturating_sub(word * BITS) {
            used @ 0..BITS => self.all(word) >> used << used,
            _ => 0,
        };
        let head = Slab {
            older: AtomicPtr::new(null_mut()),
            owner: UnsafeCell::new(self),
            vacated: UnsafeCell::new(0),
            spare: std::array::from_fn(|word| AtomicUsize::new(spare(word))),
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
        let head = unsafe { slab.as_ref() };
        for (word, spare) in head.spare.iter().enumerate() {
            let bits = spare.load(acquire(edge::spare::TAKEN));
            let mut kept = bits;
            while kept != 0 && taken.len() < max {
                taken.push(self.record(slab, word * BITS + kept.trailing_zeros() as usize));
                // Clears the lowest bit.
                kept &= kept - 1;
            }
            if kept != bits {
                // Relaxed: hands nothing over. By (1) no other thread clears bits, so these are still set.
                spare.fetch_and(!(bits ^ kept), Relaxed);
            }
            if taken.len() == max {
                break;
            }
        }
        if !taken.is_empty() {
            // SAFETY: (1).
            let vacated = head.vacated.with_mut(|vacated| unsafe { std::mem::take(&mut *vacated) });
            if vacated > 0 {
                // Relaxed: a hint.
                self.is_reused.store(true, Relaxed);
            }
        }
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
    pub(super) fn len(&self) -> usize {
        // Relaxed: only a count.
        self.len.load(Relaxed)
    }

    /// Returns whether records have been taken whose pages [`free_all_spare`](Self::free_all_spare) had given back.
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    pub(super) fn is_reused(&self) -> bool {
        // Relaxed: a hint.
        self.is_reused.load(Relaxed)
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

    /// Takes up to `max` spare records of the newest slab, of that at which the last search ended, or of one of the
    /// next slabs if there are many.
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
    /// 2. The caller is pinned, or owns another record of the same slab.
    pub(super) unsafe fn give_back(&self, record: Record) {
        let (slab, at) = self.locate(record);
        // SAFETY: by (1) the record is taken, so its slab is not freed before the record is spare, and by (2) not
        // before the end of this call either.
        let Slab { spare, owner, .. } = unsafe { slab.as_ref() };
        // SAFETY: the owner does not change once the slab is listed.
        if owner.with(|owner| unsafe { *owner }) != std::ptr::from_ref(self) {
            // A forked child frees nothing of its parent's.
            return;
        }
        // SAFETY: (1).
        // Relaxed: the value is only compared.
        debug_assert!(unsafe { records::word(record) }.load(Relaxed).is_null(), "the record is marked or on a stack");
        let (word, bit) = (at / BITS, 1 << (at % BITS));
        let before = spare[word].fetch_or(bit, release(edge::spare::GIVEN));
        debug_assert_eq!(before & bit, 0, "a spare record is given back");
        // Relaxed: only an approximate number. It may wrap, until this addition, if a thread that has already taken the
        // record was faster to subtract it; a search is then in vain.
        self.spare.fetch_add(1, Relaxed);
        // Relaxed: only says whether it is worthwhile to look for spare slabs.
        let is_spare = |word: usize| spare[word].load(Relaxed) == self.all(word);
        if before | bit == self.all(word) && (0..WORDS).all(is_spare) {
            self.free_spare_slabs(|_| ());
        }
    }

    /// Frees those of the next slabs that have only spare records, and calls `keep` with the others. Does not touch the
    /// newest.
    fn free_spare_slabs(&self, keep: impl Fn(NonNull<Slab>)) {
        // Before the lock is taken, since a pin may run many closures.
        let guard = epoch::pin();
        let Some(mut hand) = try_lock(&self.hand) else { return };
        let freed = (0..LOOKS).filter(|_| self.free_if_spare(&mut hand, &guard, &keep)).count();
        drop(hand);
        epoch::retired(freed * self.layout.size());
    }

    /// Frees all slabs that have only spare records, and the pages of the others that belong to spare records, while
    /// `goes_on` returns `true`. Does not touch the newest slab.
    pub fn free_all_spare(&self, goes_on: impl Fn() -> bool) {
        // Relaxed: a hint.
        self.is_reused.store(false, Relaxed);
        // The hand passes each slab at least once, and the end of the list.
        for _ in 0..=self.len().div_ceil(LOOKS) {
            if !goes_on() {
                return;
            }
            // SAFETY: the slab is listed, and the caller of the closure has the hand.
            self.free_spare_slabs(|slab| unsafe {
                self.vacate(slab);
            });
        }
    }

    /// Gives the pages of spare records back to the system.
    ///
    /// # Safety
    /// 1. The slab is listed, and the caller has the hand.
    unsafe fn vacate(&self, slab: NonNull<Slab>) {
        // SAFETY: by (1) the slab is not freed.
        let Slab { spare, vacated, .. } = unsafe { slab.as_ref() };
        let spare: [usize; WORDS] = std::array::from_fn(|word| spare[word].load(acquire(edge::spare::VACATED)));
        let count = spare.iter().map(|bits| bits.count_ones() as usize).sum();
        // SAFETY: (1).
        if vacated.with_mut(|vacated| unsafe { std::mem::replace(&mut *vacated, count) }) == count {
            return;
        }
        let is_spare = |&at: &usize| spare[at / BITS] >> (at % BITS) & 1 == 1;
        let mut at = 0;
        while at < self.records {
            let run = (at..self.records).take_while(is_spare).count();
            if run > 0 {
                // SAFETY: the records are in the slab. By (1) none of them is taken meanwhile, so nothing needs their
                // contents.
                unsafe { pages::vacate(self.record(slab, at).cast(), run * self.size) };
                #[cfg(any(raddle_loom, raddle_shuttle))]
                (at..at + run).for_each(|at| records::vacate(self.record(slab, at)));
            }
            at += run + 1;
        }
    }

    /// Moves the hand on by one slab. If that is not the newest, frees it if it has only spare records, or calls `keep`
    /// with it. Returns whether it has freed the slab.
    fn free_if_spare(&self, hand: &mut Hand, guard: &epoch::Guard, keep: impl Fn(NonNull<Slab>)) -> bool {
        let Some((Some(before), slab)) = hand.advance(self) else { return false };
        // SAFETY: this thread has the hand, so a listed slab is not freed.
        let Slab { older, spare, .. } = unsafe { slab.as_ref() };
        let is_spare = |word: usize| spare[word].load(acquire(edge::spare::ALL)) == self.all(word);
        if !(0..WORDS).all(is_spare) {
            keep(slab);
            return false;
        }
        // Relaxed: the older slab was listed first, so a thread that reaches this one has acquired both.
        before.older.store(older.load(Relaxed), Relaxed);
        hand.0 = std::ptr::from_ref(before).cast_mut();
        // Relaxed: only an approximate number.
        self.spare.fetch_sub(self.records, Relaxed);
        // SAFETY: the slab has left the list; its spare records can be taken only by means of the hand, by way of the
        // list.
        unsafe { self.retire(slab, guard) };
        true
    }

    /// Calls `f` with each record marked with one of `marks`: see [`each_marked`](super::marks::each_marked).
    pub fn each_marked(&self, _pinned: &epoch::Guard, marks: [*mut (); 2], mut f: impl FnMut(NonNull<u8>, *mut ())) {
        let mut next = self.newest();
        while let Some(slab) = NonNull::new(next) {
            // SAFETY: the caller is pinned, so a slab that it has reached in the list is not freed.
            let Slab { older, spare, .. } = unsafe { slab.as_ref() };
            for at in 0..self.records {
                // Relaxed: a record is taken before it is marked, so a thread that knows of the mark sees it taken.
                if spare[at / BITS].load(Relaxed) >> (at % BITS) & 1 == 1 {
                    continue;
                }
                let record = self.record(slab, at);
                // SAFETY: the record is in the slab, which is not freed.
                let mark = unsafe { records::word(record) }.load(acquire(edge::marked::FOUND)).cast();
                if marks.contains(&mark) {
                    f(record.cast(), mark);
                }
            }
            // Relaxed: acquired with the newest slab.
            next = older.load(Relaxed);
            // In models, the stamp of the first record stands for the head, too, which has just been read.
            #[cfg(any(raddle_loom, raddle_shuttle))]
            // SAFETY: as above.
            let _ = unsafe { records::word(self.record(slab, 0)) };
        }
    }
}

#[cfg(any(raddle_loom, raddle_shuttle))]
impl Default for Slabs {
    fn default() -> Self {
        Self::new(RecordSize::Normal.bytes())
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
        // SAFETY: (1): the models give back each record once. In place of (2), a slab's memory is kept until the
        // interleaving ends.
        unsafe { self.give_back(record.0) };
    }
}

#[cfg(all(test, target_os = "linux", not(any(raddle_loom, raddle_shuttle, raddle_unpooled, miri))))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Returns how much memory a slab has, in bytes.
    fn resident(slabs: &Slabs, slab: NonNull<Slab>) -> usize {
        // SAFETY: the call only reads a property of the system.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("the size of a page");
        let mut pages = [0; SIZE / 4096];
        // SAFETY: there is room for a byte for each page of the slab.
        let result = unsafe { libc::mincore(slab.as_ptr().cast(), slabs.layout.size(), pages.as_mut_ptr()) };
        assert_eq!(result, 0);
        page * pages.into_iter().filter(|page| page & 1 == 1).count()
    }

    #[test]
    fn pages_of_spare_records_return_to_the_system_and_are_used_again() {
        let slabs = Box::leak(Box::new(Slabs::new(RecordSize::Small.bytes())));
        let (mut taken, mut kept) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            taken.extend(slabs.add(usize::MAX));
        }
        let mut of_slab = HashSet::new();
        for &record in &taken {
            // SAFETY: this test owns the record.
            unsafe { record.cast().write((0_usize, [0xff_u8; 120])) };
            if of_slab.insert(slabs.locate(record).0) {
                kept.push(record);
            } else {
                // SAFETY: this test owns the record.
                unsafe { slabs.give_back(record) };
            }
        }
        let all: Vec<_> = of_slab.iter().map(|&slab| resident(slabs, slab)).collect();
        assert_eq!(all, [SIZE; 20]);
        slabs.free_all_spare(|| true);
        // All that is left are the newest slab, and a page with the head and the kept record of each other one.
        let left: Vec<_> =
            of_slab.iter().map(|&slab| resident(slabs, slab)).filter(|&bytes| bytes < SIZE / 2).collect();
        assert_eq!((slabs.len(), left.len()), (20, 19), "{left:?}");
        let mut again: HashSet<_> = kept.iter().copied().collect();
        while slabs.spare() >= slabs.records {
            let more = slabs.take(TOGETHER);
            assert!(more.iter().all(|&record| again.insert(record)), "a record is taken twice");
        }
        assert_eq!(slabs.len(), 20, "a slab is added");
        let all: HashSet<_> = taken.into_iter().collect();
        assert!(again.len() > all.len() - slabs.records && again.is_subset(&all));
        for record in kept {
            // SAFETY: this test owns the record.
            assert_eq!(unsafe { record.cast::<(usize, [u8; 120])>().read() }, (0_usize, [0xff_u8; 120]));
        }
    }
}
