//! Signals by which started operations are asked to stop, and those that listen to them.
//!
//! # States
//!
//! A [`StopSignal`] is given at most once. Before, it has listeners, each until its [`Listening`] is dropped. The
//! thread that gives the signal takes the listeners and then [tells](StopListener::stop) each of them. A listener that
//! comes later is not registered, and learns that it is too late from the call that would have registered it.
//!
//! A [`StopSource`] has a signal once something listens to it. Whoever cancels the source records this *before* looking
//! for a signal, and a signal made after that begins as given.
//!
//! # Who may touch what
//!
//! * A source: under a lock of its owner. A signal: under its own lock. The locks are never held together, nor while a
//!   listener is told or dropped, which may run program code.
//! * In a forked child: nothing, since a thread of the parent process may have held the locks at the fork.
//!
//! There are no edges: a locked section comes either before the section of the thread that gives the signal, which then
//! finds the listener, or after it, and then finds the signal given.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Instant,
};

use smallvec::SmallVec;

use crate::{
    notify::{
        deadlines::{DeadlineKey, Deadlines},
        oneshot::Oneshot,
        wakers::Wakers,
    },
    sync::{
        Mutex,
        edge::{removed, step},
        lock,
        process::ProcessMark,
    },
};

/// What is told that an operation has been asked to stop.
pub trait StopListener: Send + Sync {
    /// Tells the listener. May run program code, and may be called once by each of several signals.
    fn stop(self: Arc<Self>);
}

/// A future's waker is woken, on the thread that gives the signal.
impl StopListener for Oneshot<()> {
    fn stop(self: Arc<Self>) {
        self.set(Ok(())).ok().flatten().into_iter().for_each(Wakers::wake);
    }
}

/// Asks those that listen to stop.
#[derive(Debug, Default)]
pub struct StopSignal(Mutex<SignalState>);

#[derive(Debug, Default)]
struct SignalState {
    is_given: bool,
    /// The listeners, by number.
    listeners: BTreeMap<u64, Weak<dyn StopListener>>,
    /// The last number used.
    last: u64,
}

impl StopSignal {
    /// Gives the signal. The caller holds no lock, and has recorded the cancellation that the signal is about.
    pub fn give(&self) {
        let mut state = lock(&self.0);
        state.is_given = !removed(step::SIGNAL_STAYS_GIVEN);
        let listeners = std::mem::take(&mut state.listeners);
        drop(state);
        listeners.into_values().filter_map(|listener| listener.upgrade()).for_each(StopListener::stop);
    }

    /// Registers a listener. Returns its number, or `None` if the signal was given before.
    fn listen(&self, listener: Weak<dyn StopListener>) -> Option<u64> {
        let mut state = lock(&self.0);
        if state.is_given {
            return None;
        }
        state.last += 1;
        let number = state.last;
        state.listeners.insert(number, listener);
        Some(number)
    }
}

/// The signal of what may be cancelled, once something has listened to it.
#[derive(Debug, Default)]
pub struct StopSource(Option<Arc<StopSignal>>);

impl StopSource {
    /// Returns the signal. `is_cancelled` says whether the source has been cancelled.
    pub fn signal(&mut self, is_cancelled: impl FnOnce() -> bool) -> Arc<StopSignal> {
        let make = || {
            let is_given = is_cancelled() && !removed(step::LATE_SIGNAL_IS_GIVEN);
            Arc::new(StopSignal(Mutex::new(SignalState { is_given, ..SignalState::default() })))
        };
        Arc::clone(self.0.get_or_insert_with(make))
    }

    /// Returns the signal if something has listened to it.
    pub fn made(&self) -> Option<Arc<StopSignal>> {
        self.0.clone()
    }
}

/// The signals by which an operation may be asked to stop.
#[derive(Debug, Default)]
pub struct Signals {
    /// Those of its handle, its groups and its engine.
    pub signals: SmallVec<[Arc<StopSignal>; 2]>,
    /// The operation's deadline, if it has one, and where it is watched.
    pub deadline: Option<(Arc<Deadlines>, Instant)>,
}

/// The registration of a listener with several signals, which the drop ends.
#[derive(Debug)]
pub struct Listening {
    places: SmallVec<[(Arc<StopSignal>, u64); 2]>,
    deadline: Option<(Arc<Deadlines>, DeadlineKey)>,
    process: ProcessMark,
}

impl Listening {
    /// Registers a listener, which this does not keep alive. Returns `None` if one of the signals was given before, in
    /// which case other signals may have told the listener.
    pub fn begin<L: StopListener + 'static>(signals: Signals, listener: &Arc<L>) -> Option<Self> {
        let listener: Weak<L> = Arc::downgrade(listener);
        let listener: Weak<dyn StopListener> = listener;
        let mut listening = Self { places: SmallVec::new(), deadline: None, process: ProcessMark::current() };
        for signal in signals.signals {
            let number = signal.listen(Weak::clone(&listener))?;
            listening.places.push((signal, number));
        }
        if let Some((deadlines, deadline)) = signals.deadline {
            let key = deadlines.listen(deadline, listener)?;
            listening.deadline = Some((deadlines, key));
        }
        Some(listening)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.process.is_foreign() {
            return;
        }
        for (signal, number) in &self.places {
            let listener = lock(&signal.0).listeners.remove(number);
            drop(listener);
        }
        if let Some((deadlines, key)) = &self.deadline {
            deadlines.leave(*key);
        }
    }
}
