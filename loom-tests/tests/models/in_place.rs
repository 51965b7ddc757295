//! Waits in place: a waiter takes a ready operation from its queue while a worker pops or inspects it, or while another
//! thread cancels it.
use std::{panic::Location, ptr::NonNull, sync::Arc};

use raddle::{
    Name,
    internals::{Cancel, Cancellable, DEFAULT_BAND, Flavour, OpRef},
};
use raddle_loom_tests::checker::{cell::UnsafeCell, sync::Mutex, thread};
use raddle_loom_tests::{end_alone, kills, model};

#[derive(Default)]
struct Runs(UnsafeCell<usize>);
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Sync for Runs {}
// SAFETY: loom's cell reports a race instead of allowing it.
unsafe impl Send for Runs {}

impl Runs {
    fn add(&self) {
        // SAFETY: the operation has one owner at a time; the models verify this.
        self.0.with_mut(|runs| unsafe { *runs += 1 });
    }

    fn get(&self) -> usize {
        // SAFETY: the caller owns the operation, `look_at_entry` has lent it to the caller, or all other threads have
        // ended.
        self.0.with(|runs| unsafe { *runs })
    }
}

/// An operation's task: the number of the operation's runs, in a cell without a lock.
type Task = Arc<Runs>;
type Shared = Arc<Cancellable<Option<()>>>;

/// Runs an operation and ends it.
fn run(op: OpRef<Task>) {
    // SAFETY: this thread owns the operation.
    unsafe { &*op.task_ptr() }.add();
    end_alone(op);
}

/// Pops the entry, if there is one, and runs its operation unless the operation was already taken or cancelled.
fn work(queue: &Mutex<Option<OpRef<Task>>>, shared: &Shared) {
    let Some(entry) = queue.lock().unwrap().take() else { return };
    let Some(op) = entry.pop_entry() else { return };
    match shared.claim().start() {
        Ok(()) => run(op),
        Err(_) => end_alone(op),
    }
}

fn wait_in_place(shared: &Shared) {
    // SAFETY: (1): `claim_ready` returns only the published pointer, and only if the operation has neither started nor
    // been cancelled.
    if let Some(op) = unsafe { OpRef::take(|| shared.claim_ready(0).map(NonNull::cast)) } {
        run(op);
    }
}

fn one_thread_runs_it(cancels: bool) {
    model(2, Flavour::Contract, move || {
        let runs = Arc::<Runs>::default();
        let shared = Arc::new(Cancellable::new(Default::default(), Name::from("op"), Location::caller(), ()));
        let queue = Arc::new(Mutex::new(None));
        let waiter = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || wait_in_place(&shared))
        };
        let canceller = cancels.then(|| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.claim().cancel(Cancel::Loudly))
        });
        // SAFETY: the operation uses no variable.
        let op = unsafe { OpRef::new(Arc::clone(&runs), DEFAULT_BAND, false, std::iter::empty()) };
        // This write precedes the publication of the operation, so the operation's run must see the write.
        runs.add();
        let place = NonNull::new(op.as_ptr()).unwrap().cast();
        op.publish(|| {
            shared.place().publish(place, 0);
            true
        });
        *queue.lock().unwrap() = Some(op);
        work(&queue, &shared);
        waiter.join().unwrap();
        let cancelled = canceller.is_some_and(|canceller| canceller.join().unwrap());
        assert_eq!(runs.get(), 1 + usize::from(!cancelled));
    });
}

#[test]
fn an_operation_in_a_queue_is_run_by_its_waiter_or_by_a_worker() {
    one_thread_runs_it(false);
}

#[test]
fn a_cancelled_operation_in_a_queue_is_not_run() {
    one_thread_runs_it(true);
}

/// A worker inspects an entry's operation and puts the entry back into the queue while a waiter tries to take the
/// operation.
#[test]
fn a_waiter_takes_no_operation_that_a_worker_looks_at() {
    model(2, Flavour::Contract, || {
        let runs = Arc::<Runs>::default();
        let shared = Arc::new(Cancellable::new(Default::default(), Name::from("op"), Location::caller(), ()));
        let queue = Arc::new(Mutex::new(None));
        // SAFETY: the operation uses no variable.
        let op = unsafe { OpRef::new(Arc::clone(&runs), DEFAULT_BAND, false, std::iter::empty()) };
        let place = NonNull::new(op.as_ptr()).unwrap().cast();
        op.publish(|| {
            shared.place().publish(place, 0);
            true
        });
        let waiter = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || wait_in_place(&shared))
        };
        // SAFETY: `look_at_entry` lends the operation while no other thread owns it.
        let look = |op: &OpRef<Task>| unsafe { &*op.task_ptr() }.get();
        if let Some((entry, runs)) = op.look_at_entry(look) {
            assert_eq!(runs, 0, "the operation has run");
            *queue.lock().unwrap() = Some(entry);
        }
        work(&queue, &shared);
        waiter.join().unwrap();
        assert_eq!(runs.get(), 1);
    });
}

kills! {
    an_operation_in_a_queue_is_run_by_its_waiter_or_by_a_worker {
        "publish::PUBLISHED": "Causality violation",
        "publish::CLAIMED": "Causality violation",
        "step::TAKE_QUEUED": "use after reclamation",
        "step::PIN": "use after reclamation",
    }
    a_cancelled_operation_in_a_queue_is_not_run {
        "step::TAKE_CLAIMS": "use after reclamation",
    }
    a_waiter_takes_no_operation_that_a_worker_looks_at {
        "look::PUT_BACK": "Causality violation",
        "look::TAKEN": "Causality violation",
        "step::LOOK_POPS": "Causality violation",
    }
}
