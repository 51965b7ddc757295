//! Marks, by which records in use can be found.
//!
//! The user of a record [marks](mark) it with a word of its choice, in the record's first word. A pinned thread finds
//! the marked records with [`each_marked`].
//!
//! While a record is not in use, the first word belongs to the pool, which stores null or the address of another record
//! of the same process there. No mark is such an address.
//!
//! # Edges
//!
//! [`marked`](crate::sync::edge::marked).
//!
//! A record found marked was in use after the thread was pinned, so it is neither freed nor reused before the pin ends.

use std::ptr::NonNull;

use crate::{
    memory::epoch,
    sync::{
        Ordering::Relaxed,
        atomic::AtomicPtr,
        edge::{self, release},
    },
};

/// Returns the first word of a record.
///
/// # Safety
/// 1. The record is not freed while the reference is used.
pub(super) unsafe fn word<'r, T>(record: NonNull<T>) -> &'r AtomicPtr<T> {
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
    unsafe { word(record.cast()) }.store(mark, release(edge::marked::MARKED));
}

/// Returns the mark of a record.
///
/// # Safety
/// 1. The record came from the pool, and is not freed during the call.
pub(crate) unsafe fn marked_by(record: NonNull<u8>) -> *mut () {
    // Relaxed: the value is only compared.
    // SAFETY: by (1) the record is not freed during the call.
    unsafe { word(record.cast()) }.load(Relaxed)
}

/// Calls `f` with each record marked with one of `marks`, and with the record's mark. Records marked during the call
/// may or may not be included. None of the records is reused before the caller's pin ends, even if the record's mark is
/// removed.
///
/// Finds no records in models, where operations' records come from the heap.
pub(crate) fn each_marked(pinned: &epoch::Guard, marks: [*mut (); 2], mut f: impl FnMut(NonNull<u8>, *mut ())) {
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    for size in super::records::RecordSize::ALL {
        super::records::slabs(size).each_marked(pinned, marks, &mut f);
    }
    #[cfg(any(raddle_loom, raddle_shuttle))]
    let _ = (pinned, marks, &mut f);
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests {
    use super::*;
    use crate::memory::records::{self, RecordSize};

    #[test]
    fn a_marked_record_is_found_until_its_mark_is_removed() {
        let record: NonNull<u8> = records::take(RecordSize::Normal).record.cast();
        let own: *mut () = std::ptr::from_ref(&record).cast_mut().cast();
        let found = || {
            let mut count = 0;
            each_marked(&epoch::pin(), [own, own], |found, _| count += usize::from(found == record));
            count
        };
        assert_eq!(found(), 0);
        // SAFETY: the record is this test's.
        unsafe { mark(record, own) };
        assert_eq!(found(), 1);
        // SAFETY: the record is this test's.
        unsafe { mark(record, std::ptr::null_mut()) };
        assert_eq!(found(), 0);
        records::put_back(record.cast(), RecordSize::Normal);
    }
}
