//! Epoch-based reclamation: crossbeam-epoch, and under loom a choice of it or of its contract.
//!
//! The contract: what is [retired](Guard::retire) while any thread is pinned is reclaimed only after every guard that
//! existed at that moment is gone.

#[cfg(not(raddle_loom))]
pub(crate) use real::{Guard, Stamp, pin};

#[cfg(raddle_loom)]
pub use model::Flavour;
#[cfg(raddle_loom)]
pub(crate) use model::{Guard, Stamp, pin};

pub(crate) use crossbeam_epoch::{Atomic, Shared};

/// The guard for operations on atomics that dereference nothing.
#[inline(always)]
pub(crate) fn unprotected() -> &'static crossbeam_epoch::Guard {
    // SAFETY: the callers only exchange words through this guard; what they dereference is alive by the tracker's rules
    // on who holds an access, never by this guard.
    unsafe { crossbeam_epoch::unprotected() }
}

#[cfg(not(raddle_loom))]
mod real {
    /// Keeps what is reachable now from being reclaimed.
    #[derive(Debug)]
    pub(crate) struct Guard(crossbeam_epoch::Guard);

    /// Enters the current epoch.
    #[inline]
    pub(crate) fn pin() -> Guard {
        Guard(crossbeam_epoch::pin())
    }

    impl Guard {
        /// Runs `reclaim` once no guard that exists now is left.
        ///
        /// # Safety
        /// 1. `reclaim` may run on any thread.
        /// 2. It refers to nothing that can end before it runs.
        pub(crate) unsafe fn retire(&self, reclaim: impl FnOnce()) {
            // SAFETY: (1) and (2) are `defer_unchecked`'s own demands.
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

    /// Marks a record's death in models; nothing otherwise.
    #[derive(Debug)]
    pub(crate) struct Stamp;

    impl Stamp {
        #[inline(always)]
        pub(crate) fn new() -> Self {
            Self
        }

        /// Asserts in models that the record has not been reclaimed.
        #[inline(always)]
        pub(crate) fn check(&self) {}
    }
}

#[cfg(raddle_loom)]
mod model {
    use std::{
        cell::{Cell, RefCell},
        sync::{Mutex, atomic::AtomicBool as StdBool},
    };

    use loom::sync::atomic::AtomicUsize;

    use crate::sync::Ordering::Relaxed;

    /// Which reclamation a model runs on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Flavour {
        /// crossbeam-epoch itself, on loom's atomics: for models of two threads.
        Crossbeam,
        /// The contract alone: everything retired is reclaimed the moment no guard is left. It has one atomic instead of
        /// dozens, so three and four threads can be explored; it is stricter than crossbeam-epoch, which reclaims later.
        Contract,
    }

    std::thread_local! {
        static FLAVOUR: Cell<Flavour> = const { Cell::new(Flavour::Contract) };
        static GRAVEYARD: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
    }

    impl Flavour {
        /// Chooses the reclamation for the models that run on this OS thread, and gives the memory of the last
        /// interleaving's dead records back. To be called first in each interleaving.
        pub fn begin(self) {
            FLAVOUR.set(self);
            for free in GRAVEYARD.take() {
                free();
            }
        }
    }

    #[derive(Default)]
    struct Registry {
        pins: usize,
        limbo: Vec<Box<dyn FnOnce() + Send>>,
    }

    loom::lazy_static! {
        static ref REGISTRY: Mutex<Registry> = Mutex::new(Registry::default());
        // The one object that loom sees: a check loads it and a reclamation stores it, so loom takes them as dependent
        // and explores both orders. Relaxed: it must add no happens-before that the crate does not have.
        static ref TOUCH: AtomicUsize = AtomicUsize::new(0);
    }

    pub(crate) enum Guard {
        Crossbeam(crossbeam_epoch::Guard),
        Contract,
    }

    pub(crate) fn pin() -> Guard {
        match FLAVOUR.get() {
            Flavour::Crossbeam => Guard::Crossbeam(crossbeam_epoch::pin()),
            Flavour::Contract => {
                REGISTRY.lock().unwrap().pins += 1;
                Guard::Contract
            }
        }
    }

    struct SendBox<F>(F);
    // SAFETY: loom runs every thread of a model on one OS thread.
    unsafe impl<F> Send for SendBox<F> {}
    impl<F: FnOnce()> SendBox<F> {
        fn call(self) {
            (self.0)();
        }
    }

    impl Guard {
        /// # Safety
        /// As in the ordinary build.
        pub(crate) unsafe fn retire(&self, reclaim: impl FnOnce()) {
            match self {
                // SAFETY: the caller's contract is `defer_unchecked`'s.
                Guard::Crossbeam(guard) => unsafe { guard.defer_unchecked(reclaim) },
                Guard::Contract => {
                    let job = SendBox(reclaim);
                    let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || job.call());
                    // SAFETY: the caller promises that what `reclaim` refers to outlives it.
                    let job =
                        unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Box<dyn FnOnce() + Send>>(job) };
                    REGISTRY.lock().unwrap().limbo.push(job);
                }
            }
        }
    }

    impl std::ops::Deref for Guard {
        type Target = crossbeam_epoch::Guard;
        fn deref(&self) -> &Self::Target {
            match self {
                Guard::Crossbeam(guard) => guard,
                Guard::Contract => super::unprotected(),
            }
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            if let Guard::Contract = self {
                let reclaim = {
                    let mut registry = REGISTRY.lock().unwrap();
                    registry.pins -= 1;
                    if registry.pins == 0 { std::mem::take(&mut registry.limbo) } else { Vec::new() }
                };
                if std::thread::panicking() {
                    std::mem::forget(reclaim);
                } else {
                    reclaim.into_iter().for_each(|job| job());
                }
            }
        }
    }

    /// A record's sign of life. Dead records keep their memory until the interleaving ends, so that a use after
    /// reclamation is a failed assertion and not a crash.
    #[derive(Debug, Default)]
    pub(crate) struct Stamp(StdBool);

    impl Stamp {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn check(&self) {
            if FLAVOUR.get() == Flavour::Contract {
                TOUCH.load(Relaxed);
            }
            assert!(!self.0.load(Relaxed), "use after reclamation");
        }

        /// Declares the record dead and keeps `free` for the end of the interleaving.
        pub(crate) fn kill(&self, free: Box<dyn FnOnce()>) {
            if FLAVOUR.get() == Flavour::Contract {
                TOUCH.store(1, Relaxed);
            }
            assert!(!self.0.swap(true, Relaxed), "double reclamation");
            GRAVEYARD.with_borrow_mut(|graves| graves.push(free));
        }
    }
}
