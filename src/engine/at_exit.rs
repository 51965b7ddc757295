//! What the end of the process says: the failures that no wait has returned and no handle has taken.
//!
//! An engine that ends before the process says so itself. The handler is for engines that are still there: the
//! [global](crate::Engine::global) one, those in statics, and all if the program calls `exit`. Other threads may still
//! run operations meanwhile, so a failure that occurs later is not said.

#[cfg(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri))))]
mod imp {
    use std::{
        sync::{
            Arc, Mutex, Weak,
            atomic::{AtomicBool, Ordering::Relaxed},
            mpsc,
        },
        thread,
        time::Duration,
    };

    use crate::{
        engine::core::Core,
        error::op::OpError,
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

    /// How long the end of the process waits until the failures are said. Not tuned: a person may wait as long.
    const PATIENCE: Duration = Duration::from_secs(2);

    extern "C" fn at_exit() {
        stderr::begin_span();
        let engines: Vec<Arc<Core>> = lock(ENGINES.get(Mutex::default)).iter().filter_map(Weak::upgrade).collect();
        let mut failures = Vec::new();
        for core in engines {
            failures.extend(core.live().ok().and_then(|live| live.failures().to_warn_of()));
            // If this is the last reference by now, its drop would end the engine in the middle of the process's end.
            std::mem::forget(core);
        }
        if !failures.is_empty() {
            panics::contain(|| say_apart(failures));
        }
    }

    /// Says the failures on a thread of its own, or on this one if no thread can be started. The text of a failure and
    /// the logger are program code, which may call `exit`: a second call ends a thread that is ending the process by an
    /// abort, and blocks any other thread.
    fn say_apart(failures: Vec<OpError>) {
        let failures = Arc::new(Mutex::new(failures));
        let (to_say, (is_saying, has_said)) = (Arc::clone(&failures), mpsc::channel::<()>());
        let say = move || {
            for failure in std::mem::take(&mut *lock(&to_say)) {
                panics::log!(Warn, "raddle: the process ends with a failure that was never reported: {failure}");
                std::mem::forget(failure);
            }
            let _ = is_saying.send(());
        };
        match thread::Builder::new().name("raddle-exit".to_owned()).spawn(say.clone()) {
            Ok(_) => _ = has_said.recv_timeout(PATIENCE),
            Err(_) => say(),
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
