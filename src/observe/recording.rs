//! `Recording`: the recorder, the observers, the profile and the watchdog of an engine.

use std::{
    cell::Cell,
    io,
    path::Path,
    sync::{Arc, OnceLock},
};

use crate::{
    error::build::ShutdownError,
    op::no_wait::{self, NoWait},
    sync::{Mutex, lock, mpsc, thread_static},
    trace::{
        log::Log,
        observer::{ObservedOp, Observer},
        profile::Profile,
        recorder::Recorder,
    },
};

/// The recorder, the observers, the profile and the watchdog of an engine.
pub(crate) struct Recording {
    pub(crate) recorder: Recorder,
    /// Whether events are recorded, for traces or for a profile.
    pub(crate) is_kept: bool,
    observers: Vec<Arc<dyn Observer>>,
    /// The profile, once it has begun.
    profile: OnceLock<Profile>,
    /// The log, in which this is the only engine.
    pub(crate) log: Option<Log>,
    /// Whether there is nothing but a log, for which operations need no times.
    pub(crate) only_logs: bool,
    /// The watchdog stops when this sender is dropped.
    watchdog: Mutex<Option<mpsc::Sender<()>>>,
    /// The number of the engine.
    pub(crate) engine: u16,
}

/// The size of each ring in bytes when only a profile is written. Not tuned: several times the amount that a thread
/// records between two reads.
const PROFILED_BYTES: usize = 8 << 20;

// Whether an observer is running on this thread.
thread_static!(static OBSERVING: Cell<bool> = Cell::new(false));

/// Whether an observer is running on this thread.
pub(crate) fn is_observing() -> bool {
    OBSERVING.with(Cell::get)
}

impl Recording {
    /// Returns the recording of an engine that has a `recorder`, `observers` or a log, that will
    /// [begin](Self::begin_profile) a profile, or whose operations need numbers for another purpose. Returns `None` for
    /// any other engine.
    pub(crate) fn new(
        recorder: Option<Recorder>,
        observers: Vec<Arc<dyn Observer>>,
        has_profile: bool,
        log: Option<Log>,
        needs_numbers: bool,
        engine: u64,
    ) -> Option<Box<Self>> {
        if recorder.is_none() && observers.is_empty() && !has_profile && log.is_none() && !needs_numbers {
            return None;
        }
        let is_kept = recorder.is_some() || has_profile;
        let only_logs = !is_kept && observers.is_empty() && !needs_numbers;
        recorder.iter().for_each(Recorder::keep);
        // Numbers repeat after 65,535 engines in a process. No recorder is expected to serve that many engines at a
        // time.
        let engine = (engine.saturating_sub(1) % u64::from(u16::MAX) + 1) as u16;
        // If the program has set no recorder, an internal one numbers the operations and, if there is a profile,
        // records their events.
        let recorder = recorder.unwrap_or_else(|| {
            if is_kept { Recorder::with_capacity(PROFILED_BYTES) } else { Recorder::with_capacity(0) }
        });
        Some(Box::new(Self {
            recorder,
            is_kept,
            observers,
            profile: OnceLock::new(),
            log,
            only_logs,
            watchdog: Mutex::new(None),
            engine,
        }))
    }

    /// Begins the profile, which is written to `path` and may overwrite a file that is not a profile if
    /// `may_overwrite`. Called before the first push, once nothing else can keep the engine from being built, so that
    /// no file is left then. `spawn` starts the profile's thread.
    pub(crate) fn begin_profile(
        &self,
        path: &Path,
        may_overwrite: bool,
        spawn: impl FnOnce(String, Box<dyn FnOnce() + Send>) -> io::Result<()>,
    ) -> io::Result<()> {
        let profile = Profile::begin(&self.recorder, path, may_overwrite, spawn)?;
        self.profile.get_or_init(|| profile);
        Ok(())
    }

    /// Keeps `stop`, whose drop stops the watchdog, until the engine ends.
    pub(super) fn watch_until_end(&self, stop: mpsc::Sender<()>) {
        *lock(&self.watchdog) = Some(stop);
    }

    /// Stops the watchdog and lets the threads of the profile and the log write the rest.
    pub(crate) fn end(&self) {
        drop(lock(&self.watchdog).take());
        self.log.iter().for_each(Log::end);
        self.profile.get().into_iter().for_each(Profile::end);
    }

    /// Returns why the log or the profile could not be written, if so.
    pub(crate) fn file_error(&self) -> Option<ShutdownError> {
        if let Some((path, error)) = self.log.as_ref().and_then(Log::error) {
            return Some(ShutdownError::Log(path.to_owned(), error.to_owned()));
        }
        let (path, error) = self.profile.get()?.error()?;
        Some(ShutdownError::Profile(path.to_owned(), error.to_owned()))
    }

    /// Whether events are recorded, or logged, and nothing else is done.
    pub(crate) fn only_records(&self) -> bool {
        self.only_logs || self.is_kept && !self.is_observed() && self.log.is_none()
    }

    pub(crate) fn is_observed(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Calls `tell` with each observer. Events caused by an observer on this thread are not reported.
    pub(crate) fn tell(&self, observed: &ObservedOp<'_>, tell: impl Fn(&dyn Observer, &ObservedOp<'_>)) {
        if !self.is_observed() || OBSERVING.with(|observing| observing.replace(true)) {
            return;
        }
        for observer in &self.observers {
            no_wait::contained(NoWait::Observer, "an observer", || tell(&**observer, observed));
        }
        OBSERVING.with(|observing| observing.set(false));
    }
}
