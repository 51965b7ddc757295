//! All records of the pool that are allocated, so that pending operations can be found.
//!
//! A record is *marked* by its user with a word of the user's choice while it is in use; see [`mark`]. A thread that is
//! pinned finds the marked records by [`each_marked`].
//!
//! # Who may touch what
//!
//! * The set: under the locks, by threads that allocate or free a record, which the pool makes rare.
//! * The mark, the first word of a record: its user while the record is in use; the pool's stack while it is free, which
//!   stores pointers to other records there, never a mark.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `mark` | store in [`mark`] | load in [`each_marked`] | the record, as it was before it was marked |
//!
//! A thread that looks reads the marks of all records, including free ones. It holds the lock meanwhile, under which records
//! leave the set before they are freed. A record that it finds marked was in use after it was pinned, so it is neither freed nor
//! reused before the pin ends.

use std::{
    collections::HashSet,
    hash::{BuildHasherDefault, Hasher},
    ptr::NonNull,
};

use crate::{
    memory::epoch,
    sync::{
        Mutex,
        Ordering::{Acquire, Relaxed, Release},
        atomic::AtomicPtr,
        fork::PerProcess,
        lock,
    },
};

/// The number of locks. Picked: records are rarely allocated by many threads at once.
const SHARDS: usize = 16;

type Addresses = HashSet<usize, BuildHasherDefault<AddressHasher>>;

/// Hashes addresses, which no attacker chooses, in a few instructions.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_usize(usize::from(byte)));
    }

    fn write_usize(&mut self, address: usize) {
        // Knuth, The Art of Computer Programming, volume 3, section 6.4: the golden ratio spreads what is near.
        self.0 = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The table uses the lowest bits most, and those of a product are its worst.
        self.0.rotate_left(32)
    }
}

/// Those that this process has allocated. A forked child forgets its parent's, since a thread of the parent may have held a
/// lock.
static RECORDS: PerProcess<[Mutex<Addresses>; SHARDS]> = PerProcess::new();

fn shard(record: NonNull<u8>) -> &'static Mutex<Addresses> {
    let address = record.as_ptr().addr();
    // Records are at least 64 bytes apart.
    &RECORDS.get(Default::default)[address / 64 % SHARDS]
}

/// Adds a record whose first word is initialised.
pub(super) fn add(record: NonNull<u8>) {
    lock(shard(record)).insert(record.as_ptr().expose_provenance());
}

/// Removes a record, which the caller frees next. It is not in use.
pub(super) fn remove(record: NonNull<u8>) {
    lock(shard(record)).remove(&record.as_ptr().addr());
}

/// Returns the mark of a record.
///
/// # Safety
/// 1. The record is not freed while the reference is used.
unsafe fn mark_of<'r>(record: NonNull<u8>) -> &'r AtomicPtr<()> {
    // SAFETY: the pool has initialised the first word of the record, and (1).
    unsafe { record.cast().as_ref() }
}

/// Marks a record: all that the caller has written there before is seen by those who find the mark. Null ends the mark.
///
/// # Safety
/// 1. The record came from the pool, and the caller uses it.
#[inline]
pub(crate) unsafe fn mark(record: NonNull<u8>, mark: *mut ()) {
    // Release (edge `mark`): the record, as it is now.
    // SAFETY: (1): a record in use is not freed.
    unsafe { mark_of(record) }.store(mark, Release);
}

/// Returns the mark of a record.
///
/// # Safety
/// 1. The record came from the pool, and is not freed meanwhile.
pub(crate) unsafe fn marked_by(record: NonNull<u8>) -> *mut () {
    // Relaxed: compared only.
    // SAFETY: (1).
    unsafe { mark_of(record) }.load(Relaxed)
}

/// Calls `f` with each record that is marked with one of `marks`, and with the mark. Records that are marked meanwhile may
/// or may not be among them. The record is not reused before the caller's pin ends, even if the mark ends.
pub(crate) fn each_marked(_pinned: &epoch::Guard, marks: [*mut (); 2], mut f: impl FnMut(NonNull<u8>, *mut ())) {
    let mut found = Vec::new();
    for shard in RECORDS.get(Default::default) {
        // Records that are not in use are freed under this lock only, so it is held while their marks are read.
        for &address in &*lock(shard) {
            let Some(record) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) else { continue };
            // SAFETY: it is in the set, and the lock is held.
            // Acquire (edge `mark`): the record, as it was before it was marked.
            let mark = unsafe { mark_of(record) }.load(Acquire);
            if marks.contains(&mark) {
                found.push((record, mark));
            }
        }
        // Those in use were not retired before this thread was pinned.
        found.drain(..).for_each(|(record, mark)| f(record, mark));
    }
}
