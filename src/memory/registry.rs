//! The set of all allocated records, through which pending operations can be found.
//!
//! The user of a record *marks* it with a word of its choice while the record is in use; see [`mark`]. A pinned thread
//! finds the marked records with [`each_marked`].
//!
//! # Who may touch what
//!
//! * The set: threads that allocate, free or search for records, under the locks. The pool makes allocation and freeing
//!   rare.
//! * The mark, which is the first word of a record: the record's user while the record is in use, and the pool's stack
//!   while it is free. The stack stores pointers to other allocated records there. No mark is the address of an
//!   allocated record, so no such pointer equals a mark.
//!
//! # Edges
//!
//! [`marked`](crate::sync::edge::marked).
//!
//! [`each_marked`] reads the marks of all records, including free ones, while it holds the lock under which records
//! leave the set before they are freed. A record found marked was in use after the thread was pinned, so it is neither
//! freed nor reused before the pin ends.

use std::{
    collections::HashSet,
    hash::{BuildHasherDefault, Hasher},
    ptr::NonNull,
};

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
use crate::sync::process::PerProcess;
use crate::{
    memory::epoch,
    sync::{
        Mutex,
        Ordering::Relaxed,
        atomic::AtomicPtr,
        edge::{self, acquire, release},
        lock,
    },
};

/// The number of locks. Not tuned: many threads rarely allocate records at once. Each lock adds interleavings to
/// models.
const SHARDS: usize = if cfg!(any(raddle_loom, raddle_shuttle)) { 2 } else { 16 };

type Addresses = HashSet<usize, BuildHasherDefault<AddressHasher>>;

/// Hashes addresses in a few instructions. No attacker chooses the addresses.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_usize(usize::from(byte)));
    }

    fn write_usize(&mut self, address: usize) {
        // Knuth, The Art of Computer Programming, volume 3, section 6.4: the golden ratio spreads out nearby values.
        self.0 = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The table uses the lowest bits most, and the lowest bits of a product are the least mixed.
        self.0.rotate_left(32)
    }
}

/// A set of records.
#[derive(Default)]
pub struct Registry([Mutex<Addresses>; SHARDS]);

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

impl Registry {
    fn shard(&self, record: NonNull<u8>) -> &Mutex<Addresses> {
        // Records are at least 64 bytes apart.
        &self.0[record.as_ptr().addr() / 64 % SHARDS]
    }

    /// Adds a record whose first word is initialised.
    pub fn add(&self, record: NonNull<u8>) {
        lock(self.shard(record)).insert(record.as_ptr().expose_provenance());
    }

    /// Removes a record that is not in use and that the caller is about to free.
    pub fn remove(&self, record: NonNull<u8>) {
        lock(self.shard(record)).remove(&record.as_ptr().addr());
    }

    /// Does the same as [`each_marked`], for the records in this set.
    pub fn each_marked(&self, _pinned: &epoch::Guard, marks: [*mut (); 2], mut f: impl FnMut(NonNull<u8>, *mut ())) {
        let mut found = Vec::new();
        for shard in &self.0 {
            // A record leaves the set under this lock before it is freed, so the lock is held while the marks are read.
            for &address in &*lock(shard) {
                let Some(record) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) else { continue };
                // SAFETY: the record is in the set, and the lock is held.
                let mark = unsafe { mark_of(record) }.load(acquire(edge::marked::FOUND));
                if marks.contains(&mark) {
                    found.push((record, mark));
                }
            }
            // The records found were not retired before this thread was pinned, so they can be used without the lock.
            found.drain(..).for_each(|(record, mark)| f(record, mark));
        }
    }
}

/// The records that this process has allocated. A forked child forgets its parent's records, since a thread of the
/// parent may have held a lock.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
static RECORDS: PerProcess<Registry> = PerProcess::new();

/// [Adds](Registry::add) a record to this process's records.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(super) fn add(record: NonNull<u8>) {
    RECORDS.get(Default::default).add(record);
}

/// [Removes](Registry::remove) a record from this process's records.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(super) fn remove(record: NonNull<u8>) {
    RECORDS.get(Default::default).remove(record);
}

/// Calls `f` with each record marked with one of `marks`, and with the record's mark. Records marked during the call
/// may or may not be included. None of the records is reused before the caller's pin ends, even if the record's mark is
/// removed.
///
/// Finds no records in models, where operations' records come from the heap.
pub(crate) fn each_marked(pinned: &epoch::Guard, marks: [*mut (); 2], f: impl FnMut(NonNull<u8>, *mut ())) {
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    RECORDS.get(Default::default).each_marked(pinned, marks, f);
    #[cfg(any(raddle_loom, raddle_shuttle))]
    let _ = (pinned, marks, f);
}

/// Returns the mark of a record.
///
/// # Safety
/// 1. The record is not freed while the reference is used.
unsafe fn mark_of<'r>(record: NonNull<u8>) -> &'r AtomicPtr<()> {
    // SAFETY: the pool has initialised the first word of the record, and by (1) the record is not freed.
    unsafe { record.cast().as_ref() }
}

/// Marks a record with `mark`, or removes its mark if `mark` is null. A thread that finds the mark sees everything that
/// the caller wrote to the record beforehand.
///
/// # Safety
/// 1. The record came from the pool, and the caller is its user.
#[inline]
pub unsafe fn mark(record: NonNull<u8>, mark: *mut ()) {
    // SAFETY: (1): a record in use is not freed.
    unsafe { mark_of(record) }.store(mark, release(edge::marked::MARKED));
}

/// Returns the mark of a record.
///
/// # Safety
/// 1. The record came from the pool, and is not freed during the call.
pub(crate) unsafe fn marked_by(record: NonNull<u8>) -> *mut () {
    // Relaxed: the value is only compared.
    // SAFETY: by (1) the record is not freed during the call.
    unsafe { mark_of(record) }.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_record_is_found_until_it_is_removed() {
        let record = Box::leak(Box::new([const { AtomicPtr::<()>::new(std::ptr::null_mut()) }; 8]));
        let (address, own): (NonNull<u8>, *mut ()) =
            (NonNull::from(&*record).cast(), std::ptr::from_ref(&*record).cast_mut().cast());
        let found = || {
            let mut count = 0;
            each_marked(&epoch::pin(), [own, own], |found, _| count += usize::from(found == address));
            count
        };
        add(address);
        assert_eq!(found(), 0);
        // SAFETY: the word is initialised, and the record is never freed.
        unsafe { mark(address, own) };
        assert_eq!(found(), 1);
        remove(address);
        assert_eq!(found(), 0);
    }
}
