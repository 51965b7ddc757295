//! Points at which a test can stop one thread in the middle of a protocol, to see what the stop delays.
//!
//! [`at`] is called before or after each step of the protocols below that is visible to other threads. In an ordinary
//! build, it does nothing. Under the cfg `raddle_pause`, with which `testkit/tests/faults.rs` is built, it checks
//! whether the calling thread has armed a `Stop` for this pass of the point, and if so, stops the thread until the
//! `Stop` is released.

macro_rules! points {
    ($($(#[doc = $group_doc:literal])+ $group:ident { $($(#[doc = $doc:literal])+ $point:ident,)+ })+) => {
        /// A point between two steps of a protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Point {
            $($($(#[doc = $doc])+ $point,)+)+
        }

        #[cfg(raddle_pause)]
        impl Point {
            /// Every point.
            pub const ALL: &[Self] = &[$($(Self::$point,)+)+];
            $($(#[doc = $group_doc])+ pub const $group: &[Self] = &[$(Self::$point),+];)+
        }
    };
}

points! {
    /// Inside `tracker::push`, for the thread's own operation or for one that it helps.
    PUSH {
        /// `push`, `push_sole`: the thread is pinned.
        PushPinned,
        /// `insert`: the tail is read.
        PushReadTail,
        /// `insert`: the word of the access at the tail is read; no access is linked behind it.
        PushReadWord,
        /// `insert`: no operation is in the way; `unregistered` and `closed` are read.
        PushReadRegistered,
        /// `insert`: before the CAS that links the access.
        PushBeforeLink,
        /// `insert`: the access is linked; its flags may be neither set nor deferred yet.
        PushLinked,
        /// `insert`: before the CAS of the tail.
        PushBeforeSwing,
        /// `insert`: before the predecessor is retired, if this link has spent it.
        PushBeforeRetire,
        /// `end_push`, `finish_sole_push`: all accesses are in their queues; `unregistered` may not reflect this yet.
        PushBeforeRegistered,
        /// `end_push`: all accesses are registered; deferred flags are not adopted yet.
        PushBeforeHints,
        /// `end_push`, `finish_sole_push`: before the last decrement of `wait`, if there is one.
        PushBeforeDecrement,
        /// `finish_push`, `push_sole`: after the last decrement. The pusher owns the operation if the operation is
        /// ready.
        PushOver,
    }
    /// Inside `tracker::push`, when it finds that another push is not over.
    HELP {
        /// `append`: an operation is in the way and will be helped.
        HelpBegins,
        /// `swing`: the next access is known; its flags may not be deferred yet.
        HelpBeforeHints,
        /// `swing`: the flags are deferred; before the CAS of the tail.
        HelpBeforeSwing,
        /// `insert`: an access of another thread's operation is in its queue, but may not be counted as registered.
        HelpBeforeAdvance,
        /// `append`: the other operation, or one in its way, is registered.
        HelpEnds,
    }
    /// Inside `tracker::complete` and `tracker::end`, and just after them.
    COMPLETE {
        /// `complete`, `end`: before an access is marked done.
        CompleteBeforeAccess,
        /// `add_flags`: before the flags are set.
        CompleteBeforeFlags,
        /// `add_flags`: the flags are set.
        CompleteFlagged,
        /// `propagate`, `propagate_from_reader`: before an access is subtracted from what its operation waits for.
        CompleteBeforeSatisfy,
        /// `propagate_from_reader`, `end`, `end_several`, `finish_completed`: before a share of a record is given up,
        /// or the record is retired.
        CompleteBeforeRetire,
        /// `advance_tail`: the push of the next access's operation may not be over; before the tail is moved to that
        /// access.
        CompleteBeforePass,
        /// `Core::complete`, `complete_plainly`: all accesses are done; the operations that became ready are in this
        /// thread's list.
        Completed,
    }
    /// On the path of a ready operation into an injector.
    INJECT {
        /// `Injector::push`: the CAS on the inbox comes next.
        InjectBeforeLink,
        /// `Injector::push`: the operation is in the inbox; its band is not marked.
        InjectBeforeMark,
        /// `Lane::inject`, `Lane::inject_first`: the operation can be found; no worker is notified.
        InjectBeforeNotify,
    }
    /// In the count of pending operations.
    PENDING {
        /// `PendingOps::enter`: the generation and its word are read.
        PendingBeforeEnter,
        /// `PendingOps::enter`: the operation is counted.
        PendingEntered,
        /// `PendingOps::leave`: the operation is not counted out yet.
        PendingBeforeLeave,
        /// `PendingOps::leave`: the operation is counted out, but not in `rest`.
        PendingLeft,
    }
    /// Where a worker falls asleep.
    SLEEP {
        /// `Worker::search`: the worker counts as a searcher, unless enough others do.
        SleepSearching,
        /// `Worker::search`: the worker is announced and has not searched again.
        SleepAnnounced,
        /// `Worker::search`: the last search found nothing.
        SleepBeforePark,
        /// `Sleep::park`, `Sleep::park_timed`: the worker is awake, but still announced.
        SleepWoken,
    }
    /// Where a thread wakes a worker.
    WAKE {
        /// `Sleep::notify`: before the fence.
        WakeBeforeFence,
        /// `Sleep::notify`: after the fence.
        WakeFenced,
        /// `Sleep::wake`: a worker was chosen.
        WakeBeforeUnpark,
    }
    /// Where a worker steals from another.
    STEAL {
        /// `Worker::steal`: before the worker accesses another worker's deque.
        StealBegins,
        /// `Worker::steal`: the batch is in this worker's deque, except for the operation that it returns; no worker is
        /// notified.
        StealTaken,
    }
    /// Under the lock of a resource's queues.
    UNITS {
        /// `Stock::enter`: before the units are taken, or the waiter enters its queue.
        UnitsBeforeTake,
        /// `Stock::give_back`, `Stock::hold_still`: no waiter is admitted yet.
        UnitsBeforeAdmit,
    }
    /// Where an operation that commutes takes its turns, or leaves them.
    TURNS {
        /// `VarTurn::arrive`: before the operation waits.
        TurnBeforeArrival,
        /// `turn::seek`: the operation lacks a turn, and has not given back those that it has taken.
        TurnBeforeGivingWay,
        /// `VarTurn::leave`: under the lock, before those that have arrived are listed.
        TurnBeforeListing,
    }
    /// Where a push of a conflating operator replaces a value or enters a run.
    CONFLATE {
        /// `Conflation::replace`: the thread has the lock, and a value to exchange.
        ConflateLocked,
        /// `Conflation::replace`: the thread has the lock, and the value that no run receives.
        ConflateReplaced,
        /// `Conflation::offer`: the push has begun to enter a run, which has no place.
        ConflateBegun,
        /// `Entering::landed`: the run has a place, and is not counted.
        ConflateLanded,
        /// `Entering::landed`: the run is counted, and not listed. The thread has the lock, if it got it.
        ConflateCounted,
    }
}

/// A point at which a test may stop the calling thread.
#[cfg(not(raddle_pause))]
#[inline(always)]
pub(crate) const fn at(_point: Point) {}

#[cfg(raddle_pause)]
pub(crate) use stop::at;
#[cfg(raddle_pause)]
pub use stop::{Stop, passings};

#[cfg(raddle_pause)]
mod stop {
    use std::{
        cell::{Cell, RefCell},
        sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
        time::Duration,
    };

    use super::Point;

    #[derive(Debug, Default)]
    struct StopState {
        stopped: bool,
        released: bool,
    }

    #[derive(Debug)]
    struct StopShared {
        point: Point,
        state: Mutex<StopState>,
        changed: Condvar,
    }

    impl StopShared {
        fn state(&self) -> MutexGuard<'_, StopState> {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A stop of one thread at one point. Clones refer to the same stop.
    #[derive(Clone, Debug)]
    pub struct Stop(Arc<StopShared>);

    std::thread_local! {
        /// The stop that this thread has armed, and the number of passes that it has yet to ignore.
        static ARMED: RefCell<Option<(Stop, usize)>> = const { RefCell::new(None) };
        /// How often this thread has passed each point.
        static PASSINGS: [Cell<u64>; Point::ALL.len()] = const { [const { Cell::new(0) }; Point::ALL.len()] };
    }

    /// Returns how often the calling thread has passed `point`.
    #[must_use]
    pub fn passings(point: Point) -> u64 {
        PASSINGS.with(|passings| passings[point as usize].get())
    }

    impl Stop {
        /// Creates a stop at `point`. It has no effect until a thread arms it.
        pub fn new(point: Point) -> Self {
            Self(Arc::new(StopShared { point, state: Mutex::default(), changed: Condvar::new() }))
        }

        /// Makes the calling thread stop the `nth` time that it passes the point, counted from 1. Replaces any stop
        /// that the thread had armed.
        pub fn arm(&self, nth: usize) {
            ARMED.set(Some((self.clone(), nth - 1)));
        }

        /// Lets the calling thread pass all points from now on.
        pub fn disarm() {
            ARMED.set(None);
        }

        /// Waits until a thread has stopped here. Returns `false` if none has within `limit`.
        pub fn is_reached_within(&self, limit: Duration) -> bool {
            let state = self.0.state();
            let waited = self.0.changed.wait_timeout_while(state, limit, |state| !state.stopped);
            waited.unwrap_or_else(PoisonError::into_inner).0.stopped
        }

        /// Whether a thread has stopped here, even if it has since continued.
        pub fn is_reached(&self) -> bool {
            self.0.state().stopped
        }

        /// Releases the thread that has stopped here. A thread that arrives later does not wait.
        pub fn release(&self) {
            self.0.state().released = true;
            self.0.changed.notify_all();
        }

        fn wait_for_release(&self) {
            let mut state = self.0.state();
            state.stopped = true;
            self.0.changed.notify_all();
            drop(self.0.changed.wait_while(state, |state| !state.released));
        }
    }

    /// Stops the calling thread if it has armed a stop for this pass of `point`.
    pub(crate) fn at(point: Point) {
        // The passings of a thread that is ending are not counted.
        let _ = PASSINGS.try_with(|passings| passings[point as usize].update(|count| count + 1));
        let stop = ARMED.try_with(|armed| {
            let mut armed = armed.borrow_mut();
            let (stop, pass) = armed.as_mut()?;
            if stop.0.point != point {
                return None;
            }
            if *pass > 0 {
                *pass -= 1;
                return None;
            }
            armed.take().map(|(stop, _)| stop)
        });
        // A thread that is ending has no stop.
        if let Ok(Some(stop)) = stop {
            stop.wait_for_release();
        }
    }
}
