//! Epoch-based reclamation by crossbeam-epoch. Models under loom can use a model of its contract instead, and models
//! under shuttle always do (`Flavour`).
//!
//! The contract: a [retired](Guard::retire) object is reclaimed only after every guard that existed when the object was
//! retired has been dropped.

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) use real::{Guard, Stamp, leave, make_default, pin, retired};

#[cfg(any(raddle_loom, raddle_shuttle))]
pub use model::{Flavour, Guard, pin};
#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) use model::{Stamp, retired};

#[cfg(not(raddle_shuttle))]
pub(crate) use crossbeam_epoch::Atomic;
pub(crate) use crossbeam_epoch::{Pointer, Shared};
#[cfg(raddle_shuttle)]
pub(crate) use model::Atomic;

/// Returns a guard that protects nothing, for loads and changes of atomics.
#[inline(always)]
pub(crate) fn unprotected() -> &'static crossbeam_epoch::Guard {
    // SAFETY: callers only load and change words through this guard. Everything that they dereference is kept alive by
    // the tracker's rules, not by this guard.
    unsafe { crossbeam_epoch::unprotected() }
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
mod real {
    use std::{
        cell::{Cell, UnsafeCell},
        mem::ManuallyDrop,
    };

    use crossbeam_epoch::{Collector, LocalHandle};

    use crate::sync::process::PerProcess;

    /// raddle's own collector, so that raddle's pins run no closures retired by other users of crossbeam-epoch. A
    /// forked child has another one, in which none of the parent's threads is pinned.
    static COLLECTOR: PerProcess<Collector> = PerProcess::new();

    /// A thread's handle to the collector, from the thread's first pin on. This type has no drop glue, so an access to
    /// the thread-local reads only one word.
    struct LocalPlace(UnsafeCell<Option<ManuallyDrop<LocalHandle>>>);

    /// Drops the thread's handle when the thread ends.
    struct HandleOwner;

    /// The size of the memory that a thread has retired when it passes on what it has retired. Until then, no other
    /// thread can reclaim it, even if this one rests. Small objects are passed on when there are 64.
    const PASSED_ON: usize = 64 << 10;

    std::thread_local! {
        static PLACE: LocalPlace = const { LocalPlace(UnsafeCell::new(None)) };
        static OWNER: HandleOwner = const { HandleOwner };
        /// The size of the memory that the thread has retired and has not passed on.
        static RETIRED: Cell<usize> = const { Cell::new(0) };
        /// Whether the thread is reclaiming retired objects.
        static RECLAIMS: Cell<bool> = const { Cell::new(false) };
    }

    impl LocalPlace {
        fn replace(&self, handle: Option<LocalHandle>) -> Option<ManuallyDrop<LocalHandle>> {
            // SAFETY: only this thread uses the cell, and no reference into it is kept.
            let place = unsafe { &mut *self.0.get() };
            std::mem::replace(place, handle.map(ManuallyDrop::new))
        }
    }

    impl Drop for HandleOwner {
        fn drop(&mut self) {
            // The handle is moved out of the cell first, since its drop may run retired closures.
            let handle = PLACE.with(|place| place.replace(None));
            drop(handle.map(ManuallyDrop::into_inner));
        }
    }

    /// A guard. While it exists, no object reachable at its creation is reclaimed.
    #[derive(Debug)]
    pub(crate) struct Guard(crossbeam_epoch::Guard);

    /// Pins the calling thread to the current epoch until the guard is dropped.
    #[inline]
    pub(crate) fn pin() -> Guard {
        // The closure returns a pointer rather than a guard, which keeps the closure small enough to be inlined.
        let place = PLACE.with(|place| place.0.get());
        // SAFETY: only this thread uses the cell, which lives as long as the thread, and nothing that
        // `LocalHandle::pin` calls changes the cell.
        match unsafe { &*place } {
            Some(handle) => Guard(handle.pin()),
            None => pin_first(),
        }
    }

    /// Counts memory of this size that the calling thread has retired, and passes on what it has retired if that is
    /// much. Called for objects that may be large.
    pub(crate) fn retired(bytes: usize) {
        RETIRED.set(RETIRED.get().saturating_add(bytes));
        // To pass them on may reclaim other objects, and these calls must not be nested.
        if RETIRED.get() >= PASSED_ON && !RECLAIMS.get() {
            RETIRED.set(0);
            pin().flush();
        }
    }

    /// [Pins](pin) a thread that does not yet have a handle.
    #[cold]
    fn pin_first() -> Guard {
        let handle = COLLECTOR.get(Collector::new).register();
        // If the thread is ending and its `OWNER` is gone, the handle serves only this guard.
        if OWNER.try_with(|_| ()).is_err() {
            return Guard(handle.pin());
        }
        PLACE.with(|place| place.replace(Some(handle)));
        pin()
    }

    /// Abandons the parent process's collector in a forked child, with everything retired there: threads that exist
    /// only in the parent may be pinned in it. The calling thread's guards of that collector stay valid, and still
    /// protect the same objects.
    #[cfg_attr(not(all(target_os = "linux", not(miri))), allow(dead_code))]
    pub(crate) fn leave() {
        // The handle is not dropped: `replace` returns it in a `ManuallyDrop`.
        PLACE.with(|place| place.replace(None));
    }

    /// Creates crossbeam's default collector, used by crossbeam-deque, in advance, so that no fork can happen while
    /// another thread is creating it under a lock.
    #[cfg_attr(not(all(target_os = "linux", not(miri))), allow(dead_code))]
    pub(crate) fn make_default() {
        crossbeam_epoch::default_collector();
    }

    impl Guard {
        /// Runs `reclaim` at some time after all guards that exist now have been dropped. `reclaim` may run inside a
        /// push, so it must neither wait nor run program code.
        ///
        /// # Safety
        /// 1. `reclaim` may run on any thread.
        /// 2. Everything that `reclaim` refers to lives until it runs.
        pub(crate) unsafe fn retire(&self, reclaim: impl FnOnce()) {
            let reclaim = || {
                let reclaims = RECLAIMS.replace(true);
                reclaim();
                RECLAIMS.set(reclaims);
            };
            // SAFETY: (1) and (2) are the conditions of `defer_unchecked`.
            unsafe { self.0.defer_unchecked(reclaim) }
        }
    }

    impl std::ops::Deref for Guard {
        type Target = crossbeam_epoch::Guard;
        #[inline(always)]
        fn deref(&self) -> &Self::Target {
            &self.0
        }
    }

    /// The mark of reclaimed records. It does nothing outside models.
    #[derive(Debug)]
    pub(crate) struct Stamp;

    impl Stamp {
        #[inline(always)]
        pub(crate) fn new() -> Self {
            Self
        }

        /// Asserts, in models, that the record has not been reclaimed.
        #[inline(always)]
        pub(crate) fn check(&self) {}

        /// Makes the same assertion as [`check`](Self::check), without a step that models explore.
        #[inline(always)]
        pub(crate) fn assert_alive(&self) {}

        /// Returns `free`; in models, the result also marks the record as reclaimed.
        #[inline(always)]
        pub(crate) fn killed_by<F: FnOnce() + 'static>(&self, free: F) -> impl FnOnce() + use<F> {
            free
        }
    }
}

#[cfg(any(raddle_loom, raddle_shuttle))]
mod model {
    use std::{
        cell::{Cell, RefCell},
        sync::{Mutex, PoisonError},
    };

    use crate::sync::{
        Ordering::{Acquire, Relaxed, Release},
        atomic::AtomicUsize,
        edge::{removed, step},
    };

    /// The kind of reclamation that a model uses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Flavour {
        /// crossbeam-epoch itself, on loom's atomics: for models with two threads. Under shuttle, the same as
        /// `Contract`.
        Crossbeam,
        /// The contract only. A retired object is reclaimed as soon as the last of the guards that existed when it was
        /// retired is dropped, regardless of later pins. A thread that creates a guard after a `retire` sees what was
        /// done before the `retire`, so it cannot reach an object that the guard does not protect. The thread that
        /// reclaims an object sees what was done before the `retire`, and under the guards for which the object waited.
        /// No other happens-before edge is added, whereas crossbeam-epoch's fences could hide that an ordering is
        /// missing from raddle. This flavour has two atomics instead of dozens, so models with three or four threads
        /// can be explored. It is stricter than crossbeam-epoch, which reclaims later.
        Contract,
        /// Like `Contract`, for models whose pinned threads read plain memory: the thread that reclaims an object also
        /// sees what was done under guards dropped before the object was retired. crossbeam-epoch guarantees this,
        /// since each advance of the epoch acquires what the unpinning threads released (`Global::try_advance`).
        ContractForReaders,
    }

    std::thread_local! {
        static FLAVOUR: Cell<Flavour> = const { Cell::new(Flavour::Contract) };
        static GRAVEYARD: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
    }

    impl Flavour {
        /// Chooses the flavour for models running on this OS thread, and frees the reclaimed records of the last
        /// interleaving. Must be called first in each interleaving.
        pub fn begin(self) {
            FLAVOUR.set(self);
            for free in GRAVEYARD.take() {
                free();
            }
            // The first use of a lazy static happens before all later uses. These statics are first used here, where
            // this edge hides nothing.
            #[cfg(raddle_loom)]
            let _ = &*crate::sync::atomic::FENCES;
            super::super::records::begin_model();
            match self {
                #[cfg(raddle_loom)]
                Self::Crossbeam => _ = crossbeam_epoch::default_collector(),
                _ => {
                    // What a failed interleaving has left there is dropped after the lock is released.
                    let left = std::mem::take(&mut *epoch().registry.lock().unwrap_or_else(PoisonError::into_inner));
                    drop(left);
                }
            }
        }
    }

    /// Does nothing: the threads of models keep nothing that they have retired.
    pub(crate) fn retired(_: usize) {}

    type Reclaim = Box<dyn FnOnce() + Send>;

    #[derive(Default)]
    struct ModelRegistry {
        guards_so_far: u64,
        /// The numbers of the guards that exist.
        pinned: Vec<u64>,
        /// The retired objects, each with the guards that existed when it was retired and still exist.
        limbo: Vec<(Vec<u64>, Reclaim)>,
    }

    /// The registry, and the atomics that show its happens-before edges to the model checker.
    #[derive(Default)]
    struct Epoch {
        /// A `std` mutex, since the lock must not add happens-before edges that crossbeam-epoch does not have.
        registry: Mutex<ModelRegistry>,
        /// Released by threads that retire, acquired by threads that pin or reclaim.
        retired: AtomicUsize,
        /// Released by threads that drop a guard for which an object waits, acquired by threads that reclaim.
        unpinned: AtomicUsize,
    }

    /// Returns the last value of `word`. Uses a failing exchange, since a load may return an older value and a
    /// successful exchange would write.
    fn last(word: &AtomicUsize, order: crate::sync::Ordering) -> usize {
        // Under shuttle, every load returns the last value.
        if cfg!(raddle_shuttle) {
            return word.load(order);
        }
        word.compare_exchange(usize::MAX, usize::MAX, order, order).unwrap_or_else(|value| value)
    }

    #[cfg(raddle_loom)]
    loom::lazy_static! {
        static ref EPOCH: Epoch = Epoch::default();
    }

    /// Returns the epoch of this interleaving.
    #[cfg(raddle_loom)]
    fn epoch() -> &'static Epoch {
        &EPOCH
    }

    /// Returns the epoch of the models on this OS thread. shuttle's own lazy statics take far longer to find.
    #[cfg(raddle_shuttle)]
    fn epoch() -> &'static Epoch {
        std::thread_local!(static EPOCH: &'static Epoch = Box::leak(Box::default()));
        EPOCH.with(|epoch| *epoch)
    }

    /// A guard. Objects retired while it exists are not reclaimed before it is dropped.
    #[derive(Debug)]
    pub enum Guard {
        #[cfg(raddle_loom)]
        Crossbeam(crossbeam_epoch::Guard),
        Contract(u64),
    }

    /// Pins the calling thread until the guard is dropped.
    pub fn pin() -> Guard {
        match FLAVOUR.get() {
            #[cfg(raddle_loom)]
            Flavour::Crossbeam => Guard::Crossbeam(crossbeam_epoch::pin()),
            _ if removed(step::PIN) => Guard::Contract(0),
            _ => {
                // Acquire: what was done before each earlier `retire`. Objects retired later wait for this guard, since
                // loom and shuttle do not switch threads between this step and the entry into the registry.
                last(&epoch().retired, Acquire);
                let mut registry = epoch().registry.lock().unwrap();
                registry.guards_so_far += 1;
                let guard = registry.guards_so_far;
                registry.pinned.push(guard);
                Guard::Contract(guard)
            }
        }
    }

    struct SendBox<F>(F);
    // SAFETY: loom and shuttle run every thread of a model on one OS thread.
    unsafe impl<F> Send for SendBox<F> {}
    impl<F: FnOnce()> SendBox<F> {
        fn call(self) {
            (self.0)();
        }
    }

    impl Guard {
        /// Runs `reclaim` once all guards that exist now have been dropped.
        ///
        /// # Safety
        /// 1. `reclaim` may run on any thread.
        /// 2. Everything that `reclaim` refers to lives until it runs.
        pub(crate) unsafe fn retire(&self, reclaim: impl FnOnce()) {
            match self {
                _ if removed(step::RETIRE) => reclaim(),
                // SAFETY: (1) and (2) are the conditions of `defer_unchecked`.
                #[cfg(raddle_loom)]
                Guard::Crossbeam(guard) => unsafe { guard.defer_unchecked(reclaim) },
                Guard::Contract(_) => {
                    let job = SendBox(reclaim);
                    let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || job.call());
                    // SAFETY: by (2), everything that `reclaim` refers to lives until it has run.
                    let job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Reclaim>(job) };
                    // Release: pairs with `pin` and with the drop of a guard that reclaims. A read-modify-write, so
                    // each `retire` continues the release sequences of the others.
                    epoch().retired.fetch_add(0, Release);
                    let mut registry = epoch().registry.lock().unwrap();
                    let pinned = registry.pinned.clone();
                    registry.limbo.push((pinned, job));
                }
            }
        }
    }

    impl std::ops::Deref for Guard {
        type Target = crossbeam_epoch::Guard;
        fn deref(&self) -> &Self::Target {
            match self {
                #[cfg(raddle_loom)]
                Guard::Crossbeam(guard) => guard,
                Guard::Contract(_) => super::unprotected(),
            }
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            #[cfg_attr(raddle_shuttle, allow(irrefutable_let_patterns))]
            if let Guard::Contract(guard) = *self {
                if std::thread::panicking() {
                    return;
                }
                // A drop and a `retire` do not commute.
                #[cfg(raddle_shuttle)]
                last(&epoch().retired, Relaxed);
                let waited_for =
                    |registry: &ModelRegistry| registry.limbo.iter().any(|(guards, _)| guards.contains(&guard));
                let is_needed = FLAVOUR.get() == Flavour::ContractForReaders;
                if is_needed || waited_for(&epoch().registry.lock().unwrap()) {
                    // Release: pairs with the drop of the guard that reclaims.
                    epoch().unpinned.fetch_add(0, Release);
                }
                let mut reclaim = Vec::new();
                let mut registry = epoch().registry.lock().unwrap();
                registry.pinned.retain(|&other| other != guard);
                for (mut guards, job) in std::mem::take(&mut registry.limbo) {
                    guards.retain(|&other| other != guard);
                    if guards.is_empty() {
                        reclaim.push(job);
                    } else {
                        registry.limbo.push((guards, job));
                    }
                }
                drop(registry);
                if !reclaim.is_empty() {
                    // Acquire: pairs with `retire`.
                    last(&epoch().retired, Acquire);
                    // Acquire: pairs with the drops of the guards for which the objects waited.
                    last(&epoch().unpinned, Acquire);
                }
                reclaim.into_iter().for_each(|job| job());
            }
        }
    }

    /// A mark that shows whether a record has been reclaimed. The memory of reclaimed records is kept until the
    /// interleaving ends, so a use after reclamation fails an assertion instead of crashing. loom fails a model in
    /// which a thread uses an atomic whose creation it has not acquired, so the stamp also represents the record's
    /// plain fields, which loom cannot see.
    #[derive(Debug)]
    pub(crate) struct Stamp {
        reclaimed: AtomicUsize,
        /// The same as `reclaimed`, in a `std` type: every accessor reads it, and a model's atomic would add
        /// interleavings.
        is_dead: Cell<bool>,
    }

    // SAFETY: loom and shuttle run every thread of a model on one OS thread.
    unsafe impl Sync for Stamp {}

    impl Stamp {
        pub(crate) fn new() -> Self {
            Self { reclaimed: AtomicUsize::new(0), is_dead: Cell::new(false) }
        }

        pub(crate) fn check(&self) {
            // Relaxed: the check must order nothing. `last` is used because a load could return the value from before
            // the reclamation.
            assert_eq!(last(&self.reclaimed, Relaxed), 0, "use after reclamation");
        }

        /// Asserts that the record has not been reclaimed so far in this interleaving.
        pub(crate) fn assert_alive(&self) {
            assert!(!self.is_dead(), "use after reclamation");
        }

        /// Returns whether the record has been reclaimed so far in this interleaving.
        pub(crate) fn is_dead(&self) -> bool {
            self.is_dead.get()
        }

        /// Returns a closure that marks the record as reclaimed and keeps `free` for the end of the interleaving.
        pub(crate) fn killed_by<F: FnOnce() + 'static>(&self, free: F) -> impl FnOnce() + use<F> {
            let stamp = std::ptr::NonNull::from(self);
            // SAFETY: the record's memory is kept until the interleaving ends.
            move || unsafe { stamp.as_ref() }.kill(Box::new(free))
        }

        /// Marks the record as reclaimed and keeps `free` for the end of the interleaving.
        pub(crate) fn kill(&self, free: Box<dyn FnOnce()>) {
            // Relaxed: the mark must order nothing.
            assert_eq!(self.reclaimed.fetch_add(1, Relaxed), 0, "double reclamation");
            self.is_dead.set(true);
            GRAVEYARD.with_borrow_mut(|graves| graves.push(free));
        }
    }

    /// crossbeam-epoch's `Atomic`, built on one of shuttle's atomics.
    #[cfg(raddle_shuttle)]
    #[derive(Debug)]
    pub(crate) struct Atomic<T>(AtomicUsize, std::marker::PhantomData<*mut T>);

    #[cfg(raddle_shuttle)]
    impl<T> Atomic<T> {
        pub(crate) fn null() -> Self {
            Self(AtomicUsize::new(0), std::marker::PhantomData)
        }

        fn shared<'g>(word: usize) -> super::Shared<'g, T> {
            // SAFETY: every word comes from `into_usize`, possibly with further tag bits.
            unsafe { crossbeam_epoch::Pointer::from_usize(word) }
        }

        fn word(shared: super::Shared<'_, T>) -> usize {
            crossbeam_epoch::Pointer::into_usize(shared)
        }

        pub(crate) fn load<'g>(
            &self,
            order: crate::sync::Ordering,
            _: &'g crossbeam_epoch::Guard,
        ) -> super::Shared<'g, T> {
            Self::shared(self.0.load(order))
        }

        pub(crate) fn store(&self, new: super::Shared<'_, T>, order: crate::sync::Ordering) {
            self.0.store(Self::word(new), order);
        }

        pub(crate) fn compare_exchange<'g>(
            &self,
            current: super::Shared<'_, T>,
            new: super::Shared<'g, T>,
            success: crate::sync::Ordering,
            failure: crate::sync::Ordering,
            _: &'g crossbeam_epoch::Guard,
        ) -> Result<super::Shared<'g, T>, super::Shared<'g, T>> {
            let result = self.0.compare_exchange(Self::word(current), Self::word(new), success, failure);
            result.map(|_| new).map_err(Self::shared)
        }

        pub(crate) fn fetch_or<'g>(
            &self,
            tag: usize,
            order: crate::sync::Ordering,
            _: &'g crossbeam_epoch::Guard,
        ) -> super::Shared<'g, T> {
            Self::shared(self.0.fetch_or(tag, order))
        }
    }
}
