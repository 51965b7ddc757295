//! Conflation: a run receives its newest value whole, and values are received in the order of each thread's pushes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use raddle::internals::{Conflation, Flavour::Contract, Offered, RunValue};
use raddle_loom_tests::checker::{alloc::Track, cell::UnsafeCell, sync::Mutex, thread};
use raddle_loom_tests::{COMPLETE, kills, model};

/// A value whose contents the checker watches.
struct Value(u8, UnsafeCell<u8>);

// SAFETY: the contents are accessed by the value's owner only; the model verifies this.
unsafe impl Send for Value {}
// SAFETY: as for `Send`.
unsafe impl Sync for Value {}

impl Value {
    fn new(number: u8) -> Self {
        let value = Self(number, UnsafeCell::new(0));
        // SAFETY: no other thread has the value.
        value.1.with_mut(|contents| unsafe { *contents = number });
        value
    }

    fn number(&self) -> u8 {
        // SAFETY: the value is this thread's; the model verifies this.
        assert_eq!(self.1.with(|contents| unsafe { *contents }), self.0);
        self.0
    }
}

/// The places of runs, in their order.
type Places<T> = Mutex<Vec<RunValue<T>>>;

/// Pushes `value`. Returns the value that was replaced.
fn push<T>(conflation: &Conflation<T>, places: &Places<T>, value: T) -> Option<T> {
    match conflation.offer(value) {
        Offered::Replaced(oldest) => Some(oldest),
        Offered::Enters(entering, value) => {
            places.lock().unwrap().push(value);
            entering.landed();
            None
        }
    }
}

/// Two runs start while a push replaces a value of theirs: it either comes too late for the first one, or both receive
/// newer values.
#[test]
fn a_run_receives_a_whole_value_and_the_next_one_a_newer_one() {
    static OUTCOMES: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
    model(COMPLETE, Contract, || {
        let (conflation, places) = (Arc::new(Conflation::new(2)), Arc::new(Places::default()));
        for number in [1, 2] {
            assert!(push(&conflation, &places, Value::new(number)).is_none());
        }
        let pusher = {
            let (conflation, places) = (Arc::clone(&conflation), Arc::clone(&places));
            thread::spawn(move || push(&conflation, &places, Value::new(3)).map(|oldest| oldest.number()))
        };
        let start = |places: &Places<Value>| {
            let run = places.lock().unwrap().remove(0);
            run.take().number()
        };
        let mut received = vec![start(&places), start(&places)];
        let replaced = pusher.join().unwrap();
        received.extend(places.lock().unwrap().drain(..).map(|run| run.take().number()));
        OUTCOMES[usize::from(replaced.is_some())].store(true, Relaxed);
        assert!(received.is_sorted(), "{received:?} were received");
        assert_eq!(conflation.replaced(), u64::from(replaced.is_some()));
        received.extend(replaced);
        received.sort_unstable();
        assert_eq!(received, [1, 2, 3]);
    });
    assert!(OUTCOMES.iter().all(|outcome| outcome.load(Relaxed)), "the push always does the same");
}

/// A value with a thread and a number, which is higher for each push of this thread.
type Numbered = (u8, u8, Track<()>);

/// Pushes `count` values of `thread`. Returns how many values these pushes replaced.
fn push_all(conflation: &Conflation<Numbered>, places: &Places<Numbered>, thread: u8, count: u8) -> u64 {
    (0..count).filter_map(|number| push(conflation, places, (thread, number, Track::new(())))).map(|_| 1).sum()
}

/// Two threads push, `pushes` times each, on an operator that keeps `most` values. Then one of them starts a run.
fn in_order(bound: impl Into<Option<usize>>, most: usize, pushes: u8) {
    model(bound, Contract, move || {
        let (conflation, places) = (Arc::new(Conflation::new(most)), Arc::new(Places::default()));
        let other = {
            let (conflation, places) = (Arc::clone(&conflation), Arc::clone(&places));
            thread::spawn(move || push_all(&conflation, &places, 1, pushes))
        };
        let mut replaced = push_all(&conflation, &places, 0, pushes);
        let first = places.lock().unwrap().remove(0).take();
        replaced += other.join().unwrap();
        assert_eq!(conflation.replaced(), replaced);
        let rest = places.lock().unwrap().drain(..).map(RunValue::take).collect::<Vec<_>>();
        let received: Vec<_> = [first].iter().chain(&rest).map(|(thread, number, _)| (*thread, *number)).collect();
        assert_eq!(received.len() as u64 + replaced, 2 * u64::from(pushes));
        for thread in 0..2 {
            let own = received.iter().filter(|value| value.0 == thread).map(|value| value.1);
            assert!(own.is_sorted(), "a value overtakes an earlier one: {received:?}");
        }
        assert_eq!(received.last().unwrap().1, pushes - 1, "the last value is not received last: {received:?}");
    });
}

#[test]
fn no_value_overtakes_an_earlier_one_of_its_thread() {
    in_order(4, 1, 2);
}

#[test]
fn no_value_overtakes_an_earlier_one_in_several_runs() {
    in_order(3, 2, 3);
}

/// A push runs its own run, whose function pushes again, while another thread pushes. A run that has started voids no
/// list, and no value overtakes an earlier one.
#[test]
fn no_value_overtakes_an_earlier_one_inside_a_push() {
    model(3, Contract, || {
        let (conflation, places) = (Arc::new(Conflation::new(1)), Arc::new(Places::default()));
        let other = {
            let (conflation, places) = (Arc::clone(&conflation), Arc::clone(&places));
            thread::spawn(move || push_all(&conflation, &places, 1, 2))
        };
        let mut received = Vec::new();
        let value = |number| (0, number, Track::new(()));
        if let Offered::Enters(entering, run) = conflation.offer(value(0)) {
            let mut locked = places.lock().unwrap();
            let runs = locked.is_empty();
            if runs {
                // It lies before all others, so it has started before any of them.
                received.push(run.take());
                drop(locked);
                push(&conflation, &places, value(1));
            } else {
                locked.push(run);
                drop(locked);
            }
            entering.landed();
        }
        push(&conflation, &places, value(2));
        other.join().unwrap();
        received.extend(places.lock().unwrap().drain(..).map(RunValue::take));
        let received: Vec<_> = received.iter().map(|(thread, number, _)| (*thread, *number)).collect();
        for thread in 0..2 {
            let own = received.iter().filter(|value| value.0 == thread).map(|value| value.1);
            assert!(own.is_sorted(), "a value overtakes an earlier one: {received:?}");
        }
        assert!(
            [(0, 2), (1, 1)].contains(received.last().unwrap()),
            "the last value is not received last: {received:?}"
        );
    });
}

/// A push that counts another run as entered comes after whatever gave that run its place.
#[test]
fn a_run_that_has_entered_has_its_place() {
    static AFTER: AtomicBool = AtomicBool::new(false);
    model(COMPLETE, Contract, || {
        let conflation = Arc::new(Conflation::new(1));
        let place = Arc::new(Value::new(7));
        let other = {
            let (conflation, place) = (Arc::clone(&conflation), Arc::clone(&place));
            thread::spawn(move || {
                let Offered::Enters(entering, _value) = conflation.offer(1) else { panic!("no run is listed") };
                // SAFETY: the other thread reads it only if it comes after the end of this push; the model verifies
                // this.
                place.1.with_mut(|place| unsafe { *place = 7 });
                // Counts the run, without the lock.
                drop(entering);
            })
        };
        let Offered::Enters(entering, _value) = conflation.offer(2) else { panic!("no run is listed") };
        if entering.since() == 1 {
            AFTER.store(true, Relaxed);
            place.number();
        }
        drop(entering);
        other.join().unwrap();
    });
    assert!(AFTER.load(Relaxed), "no push begins after another one, so the model shows nothing");
}

kills! {
    a_run_receives_a_whole_value_and_the_next_one_a_newer_one {
        "newest::REPLACED": "Causality violation",
        "newest::TAKEN": "Causality violation",
    }
    no_value_overtakes_an_earlier_one_of_its_thread {
        "step::LATER_RUNS_VOID": "a value overtakes an earlier one" | "the last value is not received last",
    }
    no_value_overtakes_an_earlier_one_in_several_runs {
        "step::LATER_RUNS_VOID": "a value overtakes an earlier one" | "the last value is not received last",
    }
    no_value_overtakes_an_earlier_one_inside_a_push {
        "step::LATER_RUNS_VOID": "a value overtakes an earlier one" | "the last value is not received last",
    }
    a_run_that_has_entered_has_its_place {
        "entered::ENDED": "Causality violation",
        "entered::BEGUN": "Causality violation",
    }
}
