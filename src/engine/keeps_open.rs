//! What keeps an engine open: its handles, and the acquisitions of its variables.
//!
//! # States
//!
//! The engine counts the values that keep it open. All these values share one reference to the engine, so a clone
//! changes only the count. A value that raises the count from zero adds a reference. A value that lowers the count to
//! zero begins a shutdown, and then drops a reference. The count may rise from zero again: handles that do not keep a
//! draining engine open can still acquire variables. If it does so while the last value is being dropped, there may be
//! two references for a moment.
//!
//! # Who may touch what
//!
//! * The count: the owner of any reference to the engine.
//! * The shared reference: copied into each value, added once for each rise of the count from zero, and dropped once
//!   for each fall to zero.

use std::{mem::ManuallyDrop, ptr, sync::Arc};

use crate::{
    engine::{core::Core, shutdown},
    sync::{
        Ordering::Relaxed,
        edge::{self, acquire_release},
    },
};

/// Keeps an engine open. If nothing else does, dropping this value ends the engine. The drop waits for the end if
/// `WAITS` is true and the calling thread may wait; otherwise, the engine ends in the background.
pub(crate) struct KeepsOpen<const WAITS: bool>(ManuallyDrop<Arc<Core>>);

impl<const WAITS: bool> KeepsOpen<WAITS> {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        // Relaxed: the caller's reference keeps the engine alive, and the count hands over nothing when it rises.
        if core.open_handles.fetch_add(1, Relaxed) == 0 {
            // The shared reference. Until it has been added, the caller's reference keeps the engine alive for values
            // created on other threads, since the count, which includes the caller's value, cannot fall to zero.
            std::mem::forget(Arc::clone(core));
        }
        Self::sharing(core)
    }

    /// Creates a value if the engine is kept open.
    pub(crate) fn again(core: &Arc<Core>) -> Option<Self> {
        // Relaxed: as in `clone`, what has been counted keeps the count above zero.
        core.open_handles.fetch_update(Relaxed, Relaxed, |count| (count > 0).then(|| count + 1)).ok()?;
        Some(Self::sharing(core))
    }

    /// Creates a value that has been counted.
    fn sharing(core: &Arc<Core>) -> Self {
        // SAFETY: references to an engine are interchangeable. While the value is counted, either a shared reference
        // exists or a caller of `new` is about to add it and keeps the engine alive. Each reference is dropped once, by
        // a value that has lowered the count to zero.
        Self(ManuallyDrop::new(unsafe { ptr::read(core) }))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }
}

impl<const WAITS: bool> Clone for KeepsOpen<WAITS> {
    fn clone(&self) -> Self {
        // Relaxed: this value keeps the count above zero.
        self.0.open_handles.fetch_add(1, Relaxed);
        Self::sharing(&self.0)
    }
}

impl<const WAITS: bool> Drop for KeepsOpen<WAITS> {
    fn drop(&mut self) {
        // In a forked child, drops have no effect.
        if self.0.is_forked() {
            return;
        }
        let order = acquire_release(edge::open_handles::LAST, edge::open_handles::DROPPED);
        if self.0.open_handles.fetch_sub(1, order) == 1 {
            // SAFETY: no other value shares the reference, and this one is not used again.
            let core = unsafe { ManuallyDrop::take(&mut self.0) };
            shutdown::begin(&core, false);
            if WAITS { shutdown::finish_by_drop(&core) } else { shutdown::end_in_background(&core) }
        }
    }
}
