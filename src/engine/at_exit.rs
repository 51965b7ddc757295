//! What the end of the process says: the failures that no wait has returned and no handle has taken, and the operations
//! that have not completed.
//!
//! An engine that ends before the process says so itself. The handler is for engines that are still there: the
//! [global](crate::Engine::global) one, those in statics, and all if the program calls `exit`. Other threads may still
//! run operations meanwhile, so a failure that occurs later is not said.

#[cfg(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri))))]
mod imp {
    use std::{
        ffi::c_void,
        mem::MaybeUninit,
        sync::{
            Arc, Mutex, Weak,
            atomic::{AtomicBool, Ordering::Relaxed},
            mpsc,
        },
        thread,
        time::Duration,
    };

    use raddle_trace::recording::Plain;

    use crate::{
        engine::core::Core,
        error::{deadlock::Pushed, op::OpError},
        observe::snapshot::incomplete_ops,
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

    /// How long the end of the process waits until all is said. Not tuned: a person may wait as long.
    const PATIENCE: Duration = Duration::from_secs(2);

    /// The time after which an operation that was completing is complete. Not tuned.
    const COMPLETING: Duration = Duration::from_millis(5);

    extern "C" fn at_exit() {
        stderr::begin_span();
        let engines: Vec<Arc<Core>> = lock(ENGINES.get(Mutex::default)).iter().filter_map(Weak::upgrade).collect();
        if engines.iter().any(|core| incomplete_ops(core).is_some()) {
            // A worker may be completing an operation for which the program has waited.
            thread::sleep(COMPLETING);
        }
        let mut last_words = Vec::new();
        for core in engines {
            last_words.extend(core.live().ok().and_then(|live| live.failures().to_warn_of()).map(LastWord::Failed));
            last_words.extend(incomplete_ops(&core).map(|(count, first)| LastWord::Incomplete(count, first)));
            // If this is the last reference by now, its drop would end the engine in the middle of the process's end.
            std::mem::forget(core);
        }
        if is_in_program() && !last_words.is_empty() {
            panics::contain(|| say_apart(last_words));
        } else {
            last_words.into_iter().for_each(LastWord::say);
        }
    }

    /// What is said of an engine.
    enum LastWord {
        Failed(OpError),
        /// The number of operations that have not completed, and one of them.
        Incomplete(usize, Pushed),
    }

    impl LastWord {
        fn say(self) {
            match self {
                Self::Failed(failure) => {
                    panics::log!(Warn, "raddle: the process ends with a failure that was never reported: {failure}");
                    // Its drop is program code, too.
                    std::mem::forget(failure);
                }
                Self::Incomplete(count, (name, location)) => panics::log!(
                    Warn,
                    "raddle: the process ends before {count} of its operations, one of them `{}` pushed at {location}",
                    Plain(name.as_str())
                ),
            }
        }
    }

    /// Whether this code is in the program, not in a library, for which the handler also runs when it is unloaded. A
    /// thread could then outlive its code.
    fn is_in_program() -> bool {
        let mut found = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: the call may write to `found`, and takes any address.
        if unsafe { libc::dladdr(at_exit as *const () as *const c_void, found.as_mut_ptr()) } == 0 {
            // There are no libraries in a static program.
            return true;
        }
        // SAFETY: the call has succeeded.
        let base = unsafe { found.assume_init() }.dli_fbase.addr();
        // SAFETY: the call has no preconditions.
        let headers = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
        // The program's headers lie behind the first one, at its base.
        headers.checked_sub(base).is_some_and(|behind| behind < 4096)
    }

    /// Says this on a thread of its own, or on this one if no thread can be started. The text of a failure and the
    /// logger are program code, which may call `exit`: a second call ends a thread that is ending the process by an
    /// abort, and blocks any other thread.
    fn say_apart(last_words: Vec<LastWord>) {
        let last_words = Arc::new(Mutex::new(last_words));
        let (to_say, (is_saying, has_said)) = (Arc::clone(&last_words), mpsc::channel::<()>());
        let say_all = move || {
            std::mem::take(&mut *lock(&to_say)).into_iter().for_each(LastWord::say);
            let _ = is_saying.send(());
        };
        match thread::Builder::new().name("raddle-exit".to_owned()).spawn(say_all.clone()) {
            Ok(_) => _ = has_said.recv_timeout(PATIENCE),
            Err(_) => say_all(),
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
