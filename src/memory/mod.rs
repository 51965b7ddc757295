//! Memory for operations: epochs, the pool of records with its caches and batches, and the registry of records.

pub(crate) mod epoch;
pub(crate) mod free_list;
pub(crate) mod pool;
pub(crate) mod records;
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) mod registry;

/// The registry in models: it finds no records, since these come from the heap.
#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) mod registry {
    use std::ptr::NonNull;

    use super::epoch;

    /// # Safety
    /// 1. The caller need not guarantee anything.
    pub(crate) unsafe fn mark(_record: NonNull<u8>, _mark: *mut ()) {}

    /// # Safety
    /// 1. The caller need not guarantee anything.
    pub(crate) unsafe fn marked_by(_record: NonNull<u8>) -> *mut () {
        std::ptr::null_mut()
    }

    pub(crate) fn each_marked(_pinned: &epoch::Guard, _marks: [*mut (); 2], _f: impl FnMut(NonNull<u8>, *mut ())) {}
}
