//! What becomes of engines in a forked child.
//!
//! The child has none of the engines' threads, and any lock of theirs may be held there by a thread that is gone. So the
//! handler that [`watch`] registers ends every living engine there, before the program's own code goes on: the engine's
//! phase is `FORKED`, in which every call ends before it takes a lock ([`Core::is_forked`]). Its memory is left as it is.
//! The thread that forked, which may be one of the engine's, belongs to none any more, and gets a new place in a new epoch
//! collector: in the parent's, threads that are gone in the child may be pinned for ever.
//!
//! The handler takes no lock and no memory, and logs nothing: others may have done so at the moment of the fork. The parent
//! has nothing to do.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `slot` | CAS of `object`, or of `head` for a new slot, in `Slots::add` | loads in `Slots::each` | the object |
//!
//! In the child a fork itself hands over everything that was done before.

use std::ptr::{NonNull, null_mut};

use crate::{
    engine::core::Core,
    sync::{
        Ordering::{Acquire, Relaxed, Release},
        atomic::AtomicPtr,
    },
};

/// A list of what is alive, which only grows: a place that was given up is used again.
#[derive(Debug)]
pub struct Slots<T> {
    head: AtomicPtr<Slot<T>>,
}

#[derive(Debug)]
struct Slot<T> {
    /// Null: the slot is free.
    object: AtomicPtr<T>,
    /// Constant once the slot is in the list.
    next: *mut Slot<T>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { head: AtomicPtr::new(null_mut()) }
    }
}

impl<T> Slots<T> {
    fn slots(&self) -> impl Iterator<Item = &Slot<T>> {
        // Acquire (edge `slot`): the slots of the list.
        let mut at = self.head.load(Acquire);
        std::iter::from_fn(move || {
            // SAFETY: slots are leaked.
            let slot = unsafe { at.as_ref() }?;
            at = slot.next;
            Some(slot)
        })
    }

    /// Adds `object`, to be [removed](Self::remove) before it is freed.
    pub fn add(&self, object: NonNull<T>) {
        let object = object.as_ptr();
        // Release (edge `slot`). Relaxed on failure: the slot is another one's.
        let claim = |slot: &Slot<T>| slot.object.compare_exchange(null_mut(), object, Release, Relaxed).is_ok();
        if self.slots().any(claim) {
            return;
        }
        // Relaxed: a guess for the CAS.
        let mut next = self.head.load(Relaxed);
        let slot = Box::into_raw(Box::new(Slot { object: AtomicPtr::new(object), next }));
        // Release (edge `slot`). Relaxed on failure: only a new guess; what it points to goes on with the exchange, since all
        // changes of `head` are read-modify-writes.
        while let Err(now) = self.head.compare_exchange_weak(next, slot, Release, Relaxed) {
            next = now;
            // SAFETY: the slot is this thread's until it is in the list.
            unsafe { (*slot).next = next };
        }
    }

    /// Removes `object`, which was added.
    pub fn remove(&self, object: NonNull<T>) {
        // Relaxed: this thread, or one that it comes after, has stored it.
        let slot = self.slots().find(|slot| slot.object.load(Relaxed) == object.as_ptr());
        if let Some(slot) = slot {
            // Relaxed: whoever claims the slot takes nothing over.
            slot.object.store(null_mut(), Relaxed);
        }
    }

    /// Hands everything that is there to `f`.
    pub fn each(&self, mut f: impl FnMut(NonNull<T>)) {
        for slot in self.slots() {
            // Acquire (edge `slot`).
            if let Some(object) = NonNull::new(slot.object.load(Acquire)) {
                f(object);
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        forget(self);
    }
}

/// Has `core`, which is in an `Arc`, ended in forked children as long as it lives.
pub(crate) fn watch(core: &std::sync::Arc<Core>) {
    // By the pointer that the count can be reached by.
    imp::watch(NonNull::new(std::sync::Arc::as_ptr(core).cast_mut()).expect("an `Arc` points to something"));
}

/// As long as this lives, so does the engine: for its drop to call.
pub(crate) fn forget(core: &Core) {
    imp::forget(NonNull::from(core));
}

#[cfg(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri))))]
mod imp {
    use std::{
        ptr::{NonNull, null_mut},
        sync::{
            Arc,
            atomic::{
                AtomicBool, AtomicPtr,
                Ordering::{Acquire, Release},
            },
        },
    };

    use super::Slots;
    use crate::{
        device::callback,
        engine::{core::Core, frame, ready_loop, worker_thread},
        memory::epoch,
        sync::fork,
        system::panics,
    };

    /// The engines of the process.
    static ENGINES: Slots<Core> = Slots { head: AtomicPtr::new(null_mut()) };

    pub(super) fn watch(core: NonNull<Core>) {
        register();
        ENGINES.add(core);
    }

    pub(super) fn forget(core: NonNull<Core>) {
        ENGINES.remove(core);
    }

    /// Has children call [`in_child`]. Not by a lock, which a fork might catch: two threads at once register it twice, and
    /// then it is called twice.
    fn register() {
        static REGISTERED: AtomicBool = AtomicBool::new(false);
        // Acquire: whoever finds it registered can rely on that.
        if REGISTERED.load(Acquire) {
            return;
        }
        epoch::make_default();
        // SAFETY: the handler is a function, and takes no lock.
        let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if result == 0 {
            // Release: pairs with the load above.
            REGISTERED.store(true, Release);
        } else {
            let error = std::io::Error::from_raw_os_error(result);
            panics::log!(Warn, "raddle: engines would not know of a fork: {error}");
        }
    }

    /// What a forked child begins with, on the only thread that it has.
    extern "C" fn in_child() {
        fork::begin();
        epoch::leave();
        worker_thread::leave_engine();
        frame::leave_all();
        ready_loop::leave_all();
        callback::leave_kernel();
        ENGINES.each(|core| {
            // What it has stays, handles or not: its drop may take locks, and would detach threads that are gone, whose names
            // others may have soon.
            // SAFETY: it is from an `Arc`, and takes itself out of the list before it ends. A thread that was about to end it is
            // gone.
            unsafe { Arc::increment_strong_count(core.as_ptr()) };
            // SAFETY: as above.
            unsafe { core.as_ref() }.end_in_child();
        });
    }
}

#[cfg(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))))]
mod imp {
    use std::ptr::NonNull;

    use crate::engine::core::Core;

    pub(super) fn watch(_core: NonNull<Core>) {}

    pub(super) fn forget(_core: NonNull<Core>) {}
}
