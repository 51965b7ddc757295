//! Engines in a forked child.
//!
//! Only the thread that forked exists in the child, and another of the parent's threads may have held any lock at the
//! fork. So [`watch`] registers a handler that ends every live engine before the program continues in the child. Each
//! engine's phase becomes `FORKED`, in which every call returns before taking a lock ([`Core::live`]). The engines
//! are never dropped. The thread that forked may have belonged to an engine; in the child, it belongs to none. It
//! receives a new epoch collector, since threads that the child lacks may be pinned in the parent's collector forever.
//!
//! The handler takes no lock, allocates nothing and logs nothing, because another thread may have been doing any of
//! these things when the process forked. It runs after those that the program registered before it built an engine. If
//! one of those builds an engine in the child, [`begin`] does the handler's work first. The handlers in the parent only
//! count the forks in progress.
//!
//! # States of a slot
//!
//! | `object` | meaning | next |
//! |---|---|---|
//! | null | free | an engine, by a CAS in [`Slots::add`] |
//! | not null | a living engine | null, by the engine's drop in [`Slots::remove`] |
//!
//! Slots are never freed, and `next` is constant once a slot is in the list.
//!
//! # Edges
//!
//! [`slot`](crate::sync::edge::slot), [`handler`](crate::sync::edge::handler).
//!
//! A fork hands over to the child everything that was visible to the thread that forked.

use std::ptr::{NonNull, null_mut};

use crate::{
    engine::core::Core,
    sync::{
        Ordering::Relaxed,
        atomic::AtomicPtr,
        edge::{self, acquire, release},
    },
};

/// A list of live objects. It only grows; free slots are reused.
#[derive(Debug)]
pub struct Slots<T> {
    head: AtomicPtr<Slot<T>>,
}

#[derive(Debug)]
struct Slot<T> {
    /// The object, or null if the slot is free.
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
        let mut at = self.head.load(acquire(edge::slot::LIST));
        std::iter::from_fn(move || {
            // SAFETY: the pointer is null or points to a slot of the list, and slots are never freed.
            let slot = unsafe { at.as_ref() }?;
            at = slot.next;
            Some(slot)
        })
    }

    /// Adds `object`. The caller must [remove](Self::remove) the object before freeing it.
    pub fn add(&self, object: NonNull<T>) {
        let object = object.as_ptr();
        // Relaxed on failure: the slot is taken.
        let order = release(edge::slot::REUSED);
        let claim = |slot: &Slot<T>| slot.object.compare_exchange(null_mut(), object, order, Relaxed).is_ok();
        if self.slots().any(claim) {
            return;
        }
        // Relaxed: the CAS checks the value.
        let mut next = self.head.load(Relaxed);
        let slot = Box::into_raw(Box::new(Slot { object: AtomicPtr::new(object), next }));
        // Relaxed on failure: the next CAS checks the value. The slots behind the new one are handed over as well,
        // since every change to `head` is a read-modify-write.
        let order = release(edge::slot::NEW);
        while let Err(now) = self.head.compare_exchange_weak(next, slot, order, Relaxed) {
            next = now;
            // SAFETY: the slot is from a box, and no other thread knows it before it is in the list.
            unsafe { (*slot).next = next };
        }
    }

    /// Removes `object`, which must have been added.
    pub fn remove(&self, object: NonNull<T>) {
        // Relaxed: this thread stored the object, or is ordered after the thread that did.
        let slot = self.slots().find(|slot| slot.object.load(Relaxed) == object.as_ptr());
        if let Some(slot) = slot {
            // Relaxed: the next owner of the slot reads nothing of this object.
            slot.object.store(null_mut(), Relaxed);
        }
    }

    /// Calls `f` with every object in the list.
    pub fn each(&self, mut f: impl FnMut(NonNull<T>)) {
        for slot in self.slots() {
            if let Some(object) = NonNull::new(slot.object.load(acquire(edge::slot::EACH))) {
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

/// Prepares for a use of engines in this process. Must be called before an engine is built.
pub(crate) fn begin() {
    imp::begin();
}

/// Adds `core` to the engines to be ended in a forked child.
pub(crate) fn watch(core: &std::sync::Arc<Core>) {
    // The pointer comes from the `Arc`, since the handler uses it to increment the strong count.
    imp::watch(NonNull::new(std::sync::Arc::as_ptr(core).cast_mut()).expect("the pointer of an `Arc` is not null"));
}

/// Removes `core`, which is being dropped, from the engines to be ended in a forked child.
pub(crate) fn forget(core: &Core) {
    imp::forget(NonNull::from(core));
}

#[cfg(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri))))]
mod imp {
    use std::{
        ptr::{NonNull, null_mut},
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering::Relaxed},
        },
    };

    use super::Slots;
    use crate::{
        context::{ready_loop, worker_thread},
        device::running_kernel,
        engine::core::Core,
        memory::{epoch, records},
        op::frame,
        sync::{
            edge::{self, acquire, release},
            process,
        },
        system::{core_claims, panics},
    };

    /// The engines of the process.
    static ENGINES: Slots<Core> = Slots { head: AtomicPtr::new(null_mut()) };

    /// Whether the fork handlers are registered.
    static REGISTERED: AtomicBool = AtomicBool::new(false);

    /// The number of forks for which [`before_fork`] has run, but neither [`in_parent`] nor [`leave_parent`].
    static FORKING: AtomicUsize = AtomicUsize::new(0);

    /// The id of this process once it has begun to use engines or left those of its parent, or 0.
    static PROCESS: AtomicI32 = AtomicI32::new(0);

    pub(super) fn begin() {
        // Relaxed: in a child, this is the thread that forked, or one that it has started.
        if REGISTERED.load(acquire(edge::handler::FOUND)) && FORKING.load(Relaxed) == 0 {
            return;
        }
        // SAFETY: `getpid` has no preconditions.
        let own = unsafe { libc::getpid() };
        // Relaxed: if the process has changed, this is the child's only thread, in a handler of the program.
        match PROCESS.load(Relaxed) {
            // Relaxed: several threads may store the same number.
            0 => PROCESS.store(own, Relaxed),
            before if before != own => leave_parent(own),
            _ => {}
        }
    }

    pub(super) fn watch(core: NonNull<Core>) {
        register();
        ENGINES.add(core);
    }

    pub(super) fn forget(core: NonNull<Core>) {
        ENGINES.remove(core);
    }

    /// Registers the fork handlers. Takes no lock of its own, because another thread might hold that lock when the
    /// process forks. If two threads register the handlers at the same time, they are called twice, which is harmless.
    fn register() {
        if REGISTERED.load(acquire(edge::handler::FOUND)) {
            return;
        }
        epoch::make_default();
        // SAFETY: the handlers are functions that exist as long as the process does, and they take no lock.
        let result = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        if result == 0 {
            REGISTERED.store(true, release(edge::handler::REGISTERED));
        } else {
            let error = std::io::Error::from_raw_os_error(result);
            panics::log!(Warn, "raddle: pthread_atfork failed, so engines must not be used in a forked child: {error}");
        }
    }

    /// Runs on the thread that forks.
    extern "C" fn before_fork() {
        // Relaxed: the child has only this thread.
        FORKING.fetch_add(1, Relaxed);
    }

    /// Runs on the thread that has forked, or has failed to.
    extern "C" fn in_parent() {
        // Relaxed: only a count.
        FORKING.fetch_sub(1, Relaxed);
    }

    /// Runs on the child's only thread, before the program's code, except for that of handlers registered earlier.
    extern "C" fn in_child() {
        // Relaxed: there is no other thread, or one that this thread has started since it stored the value.
        if FORKING.load(Relaxed) > 0 {
            // SAFETY: `getpid` has no preconditions.
            leave_parent(unsafe { libc::getpid() });
        }
    }

    /// Ends the parent's engines in the forked child whose id is `own`.
    fn leave_parent(own: i32) {
        // Relaxed: there is no other thread.
        PROCESS.store(own, Relaxed);
        // Relaxed: as above. Other threads of the parent may have been forking, too.
        FORKING.store(0, Relaxed);
        process::begin_child();
        epoch::leave();
        records::leave();
        worker_thread::leave_engine();
        frame::leave_all();
        ready_loop::leave_all();
        running_kernel::leave_kernel();
        core_claims::locks::leave();
        ENGINES.each(|core| {
            // The engine is never dropped here: its drop may take locks, and would detach threads that do not exist in
            // the child and whose ids may be reused. SAFETY: the pointer is from an `Arc`, and the engine's drop
            // removes the pointer from the list. No thread in the child is about to drop the engine.
            unsafe { Arc::increment_strong_count(core.as_ptr()) };
            // SAFETY: the engine is alive: its count was incremented.
            unsafe { core.as_ref() }.end_in_child();
        });
    }
}

#[cfg(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))))]
mod imp {
    use std::ptr::NonNull;

    use crate::engine::core::Core;

    pub(super) fn begin() {}

    pub(super) fn watch(_core: NonNull<Core>) {}

    pub(super) fn forget(_core: NonNull<Core>) {}
}
