//! Operations that are futures, and operations that guards end: which thread polls a future, which thread ends an
//! operation, and which writes are handed over.
use std::{
    // These types are from `std`, so they add no interleavings.
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize as Counter, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use raddle::{
    Engine, EngineKind, WaitError,
    error::Cause,
    internals::{Flavour, PollState, StopListener},
};
use raddle_loom_tests::checker::{
    cell::UnsafeCell,
    sync::{Mutex, atomic::AtomicUsize},
    thread,
};
use raddle_loom_tests::{COMPLETE, Count, kills, listen_beside_cancellation, model, pending};

/// A value whose cell reports races.
struct Data(UnsafeCell<usize>);
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Sync for Data {}
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Send for Data {}

impl Data {
    fn new() -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new(0)))
    }

    fn get(&self) -> usize {
        // SAFETY: the guards or the poll states order the accesses; the models verify this.
        self.0.with(|data| unsafe { *data })
    }

    fn add(&self) {
        // SAFETY: the guards or the poll states order the accesses; the models verify this.
        self.0.with_mut(|data| unsafe { *data += 1 });
    }
}

// --------------------------------------------------------------------------------------------- the state of polls ----

/// A future that is ready once it has received `wanted` signals. A thread that would have to queue a poll polls the
/// future itself instead.
struct Model {
    state: PollState,
    /// Represents the future's state, which every poll mutates.
    polls: Arc<Data>,
    signals: AtomicUsize,
    wanted: usize,
    is_done: Arc<AtomicBool>,
}

impl Model {
    fn new(wanted: usize) -> (Arc<Self>, Arc<AtomicBool>) {
        let is_done = Arc::<AtomicBool>::default();
        let (polls, signals, done) = (Data::new(), AtomicUsize::new(0), Arc::clone(&is_done));
        (Arc::new(Self { state: PollState::running(), polls, signals, wanted, is_done: done }), is_done)
    }

    fn run(&self) {
        loop {
            self.polls.add();
            if self.signals.load(Relaxed) == self.wanted {
                self.is_done.store(true, Relaxed);
                return self.state.finish();
            }
            if !self.state.pause() {
                return;
            }
            self.state.begin();
        }
    }

    fn signal(&self) {
        self.signals.fetch_add(1, Relaxed);
        if self.state.wake() {
            self.state.begin();
            self.run();
        }
    }
}

/// The owner of the last waker has exclusive access to the future.
impl Drop for Model {
    fn drop(&mut self) {
        self.state.look();
        self.polls.add();
    }
}

#[test]
fn a_wake_up_during_a_poll_is_not_lost() {
    model(COMPLETE, Flavour::Contract, || {
        let (future, is_done) = Model::new(1);
        let other = Arc::clone(&future);
        let thread = thread::spawn(move || other.signal());
        future.run();
        drop(future);
        thread.join().unwrap();
        assert!(is_done.load(Relaxed), "a wake-up was lost");
    });
}

/// When the second wake comes, the poll caused by the first one may be queued, under way or over.
#[test]
fn each_of_two_wakes_is_seen_by_a_poll() {
    model(3, Flavour::Contract, || {
        let (future, is_done) = Model::new(2);
        let threads = [(); 2].map(|()| {
            let other = Arc::clone(&future);
            thread::spawn(move || other.signal())
        });
        future.run();
        drop(future);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(is_done.load(Relaxed), "a wake-up was lost");
    });
}

impl StopListener for Model {
    fn stop(self: Arc<Self>) {
        self.signal();
    }
}

/// Another thread cancels the future's operation before, while or after the future, which a poll has left pending,
/// begins to listen.
#[test]
fn a_future_that_begins_to_sleep_while_it_is_cancelled_is_polled_again() {
    model(COMPLETE, Flavour::Contract, || {
        let (future, is_done) = Model::new(1);
        future.polls.add();
        let (listening, canceller) = listen_beside_cancellation(&future);
        if listening.is_none() {
            future.signals.fetch_add(1, Relaxed);
            assert!(!future.state.wake(), "this thread polls");
        }
        if future.state.pause() {
            future.state.begin();
            future.run();
        }
        canceller.join().unwrap();
        assert!(is_done.load(Relaxed), "a wake-up was lost");
    });
}

/// The spawned thread drops its waker before, during or after the only poll, so either thread may own the last waker.
#[test]
#[cfg_attr(
    raddle_shuttle,
    ignore = "the threads share only an `Arc` of `std`, in which shuttle does not switch threads"
)]
fn the_owner_of_the_last_waker_has_the_future_to_itself() {
    model(COMPLETE, Flavour::Contract, || {
        let (future, is_done) = Model::new(1);
        let other = Arc::clone(&future);
        let thread = thread::spawn(move || drop(other));
        future.run();
        drop(future);
        thread.join().unwrap();
        assert!(!is_done.load(Relaxed));
    });
}

// -------------------------------------------------------------------------------------------------------- guards ----

fn engine() -> Engine {
    Engine::builder().kind(EngineKind::Naive).build().unwrap()
}

/// Polls a future that must be ready.
fn ready<F: Future + Unpin>(mut future: F) -> F::Output {
    match std::pin::pin!(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is pending"),
    }
}

/// The operation ends on the thread that drops the last guard, and hands over the writes made through both guards.
#[test]
fn the_last_guard_hands_over_what_all_guards_have_done() {
    model(2, Flavour::Contract, || {
        let engine = engine();
        let (one, other) = (engine.var(Data::new()), engine.var(Data::new()));
        let (first, second) = ready(engine.acquire((one.write(), other.write()))).unwrap();
        let thread = thread::spawn(move || {
            second.add();
            drop(second);
        });
        first.add();
        drop(first);
        let seen = engine.op("").submit((one.read(), other.write()), |(one, other)| {
            other.add();
            (one.get(), other.get())
        });
        assert_eq!(seen.unwrap().wait().unwrap(), (1, 2));
        assert_eq!((one.version(), other.version()), (1, 2));
        thread.join().unwrap();
    });
}

#[test]
fn an_acquisition_sees_what_came_before_and_wakes_its_task() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let data = Data::new();
        let value = engine.var(Arc::clone(&data));
        engine.op("").reads([&token]).push(value.overwrite(), |_| {}).unwrap();
        let mut acquire = engine.acquire(value.write());
        let thread = thread::spawn(move || {
            data.add();
            done.complete();
        });
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let first = std::pin::pin!(&mut acquire).poll(&mut Context::from_waker(&waker));
        let guard = match first {
            Poll::Ready(guard) => guard.unwrap(),
            Poll::Pending => {
                thread.join().unwrap();
                assert_eq!(count.get(), 1, "the task was not woken");
                let guard = ready(acquire).unwrap();
                assert_eq!(guard.get(), 1);
                return;
            }
        };
        assert_eq!(guard.get(), 1);
        drop(guard);
        thread.join().unwrap();
        assert_eq!(value.version(), 2);
    });
}

/// The future is dropped before its operation's turn comes, or afterwards but before its guard is taken.
#[test]
#[cfg_attr(
    raddle_shuttle,
    ignore = "blocks in a `OnceLock` of `std`, while shuttle's thread that initialises it waits"
)]
fn a_dropped_acquisition_releases_the_variable_and_is_not_counted() {
    model(2, Flavour::Contract, || {
        let (engine, token, done) = pending();
        let value = engine.var(Data::new());
        engine.op("").reads([&token]).push(value.write(), |data| data.add()).unwrap();
        let acquire = engine.acquire(value.write());
        let thread = thread::spawn(move || done.complete());
        drop(acquire);
        engine.wait_for_var(&value).unwrap();
        assert_eq!((engine.with(&value, |data| data.get()).unwrap(), value.version()), (1, 1));
        thread.join().unwrap();
    });
}

// ------------------------------------------------------------------------------------ operations that are futures ----

/// A future that ends once another thread has set the signal.
#[derive(Clone, Default)]
struct Signal(Arc<Mutex<(bool, Option<Waker>)>>);

impl Signal {
    fn set(&self) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.0 = true;
            state.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Drops the waker, if any.
    fn forget(&self) {
        let waker = self.0.lock().unwrap().1.take();
        drop(waker);
    }
}

impl Future for Signal {
    type Output = ();

    fn poll(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut state = self.0.lock().unwrap();
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(waker);
        Poll::Pending
    }
}

#[test]
fn a_future_that_another_thread_wakes_completes() {
    model(2, Flavour::Contract, || {
        let (engine, signal) = (engine(), Signal::default());
        let value = engine.var(Data::new());
        let awaited = signal.clone();
        let thread = thread::spawn(move || signal.set());
        engine
            .op("")
            .push_future(value.write(), |guard| async move {
                guard.add();
                awaited.await;
                guard.add();
            })
            .unwrap();
        engine.wait_for_var(&value).expect("the future was lost");
        assert_eq!((engine.with(&value, |data| data.get()).unwrap(), value.version()), (2, 1));
        thread.join().unwrap();
    });
}

/// The other thread drops the registered waker while the future is being polled or once it is waiting. If that thread
/// acts before the waker is registered, it drops nothing, and this thread drops the waker afterwards.
#[test]
fn a_future_whose_last_waker_is_dropped_fails_once() {
    model(2, Flavour::Contract, || {
        let (engine, signal) = (engine(), Signal::default());
        let value = engine.var(Data::new());
        let dropped = Arc::new(Counter::new(0));
        struct Dropped(Arc<Counter>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.fetch_add(1, Relaxed);
            }
        }
        let (awaited, captured) = (signal.clone(), Dropped(Arc::clone(&dropped)));
        let (polled, mut result) = (signal.clone(), None);
        let thread = thread::spawn(move || signal.forget());
        engine
            .op("")
            .push_future(value.write(), |guard| async move {
                let _captured = captured;
                guard.add();
                awaited.await;
            })
            .unwrap();
        thread.join().unwrap();
        // If the thread acted before the future registered its waker, the future is still waiting.
        if dropped.load(Relaxed) == 0 {
            polled.forget();
        }
        if let Err(WaitError::Failed(error)) = engine.wait_for_var(&value) {
            result = Some(matches!(error.cause(), Cause::LostFuture));
        }
        assert_eq!((result, dropped.load(Relaxed), value.version()), (Some(true), 1, 0));
    });
}

kills! {
    a_wake_up_during_a_poll_is_not_lost {
        "poll::WAKE": "a wake-up was lost",
        "poll::PAUSE": "Causality violation",
        "poll::END": "Causality violation",
        "poll::BEGIN": "Causality violation",
        "step::PAUSE_SEES_WAKES": "a wake-up was lost",
        "step::ONE_POLL_AT_A_TIME": "Causality violation",
    }
    each_of_two_wakes_is_seen_by_a_poll {
        "poll::WAKE": "a wake-up was lost",
    }
    a_future_that_begins_to_sleep_while_it_is_cancelled_is_polled_again {
        "step::SIGNAL_STAYS_GIVEN": "a wake-up was lost",
        "step::LATE_SIGNAL_IS_GIVEN": "a wake-up was lost",
        "step::PAUSE_SEES_WAKES": "a wake-up was lost",
    }
    the_owner_of_the_last_waker_has_the_future_to_itself {
        "poll::LOOK": "Causality violation",
    }
    the_last_guard_hands_over_what_all_guards_have_done {
        "guards::DROPPED": "Causality violation",
        "guards::LAST": "Causality violation",
    }
    a_future_that_another_thread_wakes_completes {
        only loom "step::PAUSE_SEES_WAKES": "the future was lost",
    }
}
