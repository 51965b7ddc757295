//! What the end of the process says: the failures that no wait has returned and no handle has taken.
//!
//! An engine that ends before the process says so itself. The handler is for engines that are still there: the
//! [global](crate::Engine::global) one, those in statics, and all if the program calls `exit`. Other threads may still
//! run operations meanwhile, so a failure that occurs later is not said.

#[cfg(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri))))]
mod imp {
    use std::sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    };

    use crate::{
        engine::core::Core,
        sync::{lock, process::PerProcess},
        system::{panics, stderr},
    };

    /// The engines of the process, and some that have ended.
    static ENGINES: PerProcess<Mutex<Vec<Weak<Core>>>> = PerProcess::new();

    pub(crate) fn watch(core: &Arc<Core>) {
        // Not a `Once`, which would never be complete in a child forked meanwhile.
        static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
        // Relaxed: only the number of registrations matters.
        if !IS_REGISTERED.swap(true, Relaxed) {
            // SAFETY: the handler is a function that exists as long as the process does, or as this library is loaded.
            let refused = unsafe { libc::atexit(at_exit) } != 0;
            if refused {
                panics::log!(Warn, "raddle: atexit failed, so failures are not reported when the process ends");
            }
        }
        let mut engines = lock(ENGINES.get(Mutex::default));
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(Arc::downgrade(core));
    }

    extern "C" fn at_exit() {
        stderr::begin_span();
        let engines: Vec<Arc<Core>> = lock(ENGINES.get(Mutex::default)).iter().filter_map(Weak::upgrade).collect();
        for core in engines {
            let failure = core.live().ok().and_then(|live| live.failures().to_warn_of());
            if let Some(failure) = failure {
                panics::log!(Warn, "raddle: the process ends with a failure that was never reported: {failure}");
            }
            // If this is the last reference by now, its drop would end the engine in the middle of the process's end.
            std::mem::forget(core);
        }
    }
}

#[cfg(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))))]
mod imp {
    use std::sync::Arc;

    use crate::engine::core::Core;

    pub(crate) fn watch(_core: &Arc<Core>) {}
}

pub(crate) use imp::watch;
