//! Points at which a test makes one thread stand still in the midst of a protocol, to see what that delays.
//!
//! [`at`] is called before or after each step of the protocols below that other threads can see. In an ordinary build it is nothing; under the
//! cfg `raddle_pause`, which `tests/faults.rs` is built with, it looks whether the calling thread has armed a `Stop`
//! there, and stands still until that is released. A thread that has armed none passes.

macro_rules! points {
    ($($(#[doc = $group_doc:literal])+ $group:ident { $($(#[doc = $doc:literal])+ $point:ident,)+ })+) => {
        /// A place between two steps of a protocol.
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
    /// Inside `tracker::push`, of the own operation or of one that is helped.
    PUSH {
        /// `push`: the epoch is pinned.
        PushPinned,
        /// `insert`: the tail is read.
        PushReadTail,
        /// `insert`: the word of the access at the tail is read, nothing is linked there.
        PushReadWord,
        /// `insert`: nothing is in the way; `registered` and `closed` are read.
        PushReadRegistered,
        /// `insert`: before the CAS that links the access.
        PushBeforeLink,
        /// `insert`: the access is linked, and has neither flags nor hints.
        PushLinked,
        /// `insert`: before the CAS of the tail.
        PushBeforeSwing,
        /// `insert`: before the predecessor is retired, if this link was what it waited for.
        PushBeforeRetire,
        /// `push`: all accesses are in, which `registered` does not say yet.
        PushBeforeRegistered,
        /// `push`: all accesses are registered, hints are not flags yet.
        PushBeforeHints,
        /// `push`: before the last decrement of `wait`, if there is one.
        PushBeforeDecrement,
        /// `push`: after it. Whoever pushes holds the operation if it is ready.
        PushOver,
    }
    /// Inside `tracker::push`, where it finds that another push is not over.
    HELP {
        /// `push`: an operation stands in the way and will be helped.
        HelpBegins,
        /// `swing`: the next access is known, and has no hints.
        HelpBeforeHints,
        /// `swing`: the hints are left, before the CAS of the tail.
        HelpBeforeSwing,
        /// `insert`: an access of another's operation is in, and not counted as registered.
        HelpBeforeAdvance,
        /// `push`: the other operation is out of the way.
        HelpEnds,
    }
    /// Inside `tracker::complete` and what leads there and away.
    COMPLETE {
        /// `complete`: between two accesses.
        CompleteBeforeAccess,
        /// `add_flags`: before the flags are set.
        CompleteBeforeFlags,
        /// `add_flags`: the flags are set.
        CompleteFlagged,
        /// `hand_on`: before an access is taken off what its operation waits for.
        CompleteBeforeSatisfy,
        /// `hand_on`, `end`, `Core::finish_completed`: before an access is retired.
        CompleteBeforeRetire,
        /// `pass`: the next access's operation may still be pushed; before the tail is moved on to it.
        CompleteBeforePass,
        /// `Core::complete`: all accesses are done; what became ready is in this thread's list.
        Completed,
    }
    /// On the way of a ready operation into an injector.
    INJECT {
        /// `Injector::push`: the CAS on the inbox comes next.
        InjectBeforeLink,
        /// `Injector::push`: the operation is in, its band is not marked.
        InjectBeforeMark,
        /// `Lane::inject`: the operation can be found, nobody is notified.
        InjectBeforeNotify,
    }
    /// In the count of pending operations.
    TALLY {
        /// `PendingOps::enter`: the generation and its word are read.
        TallyBeforeEnter,
        /// `PendingOps::enter`: counted.
        TallyEntered,
        /// `PendingOps::leave`: not counted out yet.
        TallyBeforeLeave,
        /// `PendingOps::leave`: counted out, but `rest` does not know it.
        TallyLeft,
    }
    /// Where a worker falls asleep.
    SLEEP {
        /// `Worker::search`: the worker counts as a searcher.
        SleepSearching,
        /// `Worker::search`: the worker is announced and has not looked again.
        SleepAnnounced,
        /// `Worker::search`: the last look found nothing.
        SleepBeforePark,
        /// `Sleep::park`: awake, still announced.
        SleepWoken,
    }
    /// Where somebody wakes a worker.
    WAKE {
        /// `Sleep::notify`: before the fence.
        WakeBeforeFence,
        /// `Sleep::notify`: after the fence.
        WakeFenced,
        /// `Sleep::wake`: a worker was chosen.
        WakeBeforeUnpark,
    }
    /// Where a worker takes what another has.
    STEAL {
        /// `Worker::steal`: before a look into another worker's deque.
        StealBegins,
        /// `Worker::steal`: the loot is in this worker's deque, one operation of it in its hands; nobody is notified.
        StealTaken,
    }
}

/// A place where a test may have the calling thread stand still.
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
    struct State {
        standing: bool,
        released: bool,
    }

    #[derive(Debug)]
    struct Inner {
        point: Point,
        state: Mutex<State>,
        changed: Condvar,
    }

    impl Inner {
        fn state(&self) -> MutexGuard<'_, State> {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A stop of one thread at one point. Clones are the same stop.
    #[derive(Clone, Debug)]
    pub struct Stop(Arc<Inner>);

    std::thread_local! {
        /// The stop of this thread, and how many passings it lets pass.
        static ARMED: RefCell<Option<(Stop, usize)>> = const { RefCell::new(None) };
        /// How often this thread has passed each point.
        static PASSINGS: [Cell<u64>; Point::ALL.len()] = const { [const { Cell::new(0) }; Point::ALL.len()] };
    }

    /// How often the calling thread has passed `point`.
    #[must_use]
    pub fn passings(point: Point) -> u64 {
        PASSINGS.with(|passings| passings[point as usize].get())
    }

    impl Stop {
        /// A stop at `point`, which a thread still has to arm.
        pub fn new(point: Point) -> Self {
            Self(Arc::new(Inner { point, state: Mutex::default(), changed: Condvar::new() }))
        }

        /// Has the calling thread stand still when it passes the point for the `nth` time from now on, counted from 1.
        /// Replaces what the thread had armed.
        pub fn arm(&self, nth: usize) {
            ARMED.set(Some((self.clone(), nth - 1)));
        }

        /// Lets the calling thread pass everywhere from now on.
        pub fn disarm() {
            ARMED.set(None);
        }

        /// Waits until a thread stands still here; `false` if none does within `limit`.
        pub fn is_reached_within(&self, limit: Duration) -> bool {
            let state = self.0.state();
            let waited = self.0.changed.wait_timeout_while(state, limit, |state| !state.standing);
            waited.unwrap_or_else(PoisonError::into_inner).0.standing
        }

        /// Whether a thread has come here, which may have gone on since.
        pub fn is_reached(&self) -> bool {
            self.0.state().standing
        }

        /// Lets the thread go on, also if it has not come yet.
        pub fn release(&self) {
            self.0.state().released = true;
            self.0.changed.notify_all();
        }

        fn stand_still(&self) {
            let mut state = self.0.state();
            state.standing = true;
            self.0.changed.notify_all();
            drop(self.0.changed.wait_while(state, |state| !state.released));
        }
    }

    /// Stands still if the calling thread has armed a stop for this passing of `point`.
    pub(crate) fn at(point: Point) {
        // A thread that is ending counts nothing.
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
            stop.stand_still();
        }
    }
}
