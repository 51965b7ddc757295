//! The count of pending operations, and shutdowns that race with pushes.
//!
//! Threads choose a shard of the count by thread number, so the first two threads of a model use different shards if
//! the count has two shards.
use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use raddle::{
    Engine, EngineKind, PushError, Shutdown, WriteGuard, completion,
    internals::{Flavour, PendingOps, WaitEnd, WakerKey},
};
use raddle_loom_tests::checker::{cell::UnsafeCell, sync::atomic::AtomicUsize, thread};
use raddle_loom_tests::shapes::*;
use raddle_loom_tests::{COMPLETE, Count, Place, kills, leave, model};

struct Shared {
    pending: PendingOps,
    data: [UnsafeCell<usize>; 2],
}

// SAFETY: loom's cells report a race instead of allowing it.
unsafe impl Sync for Shared {}
// SAFETY: loom's cells report a race instead of allowing it.
unsafe impl Send for Shared {}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { pending: PendingOps::new(2), data: [UnsafeCell::new(0), UnsafeCell::new(0)] })
}

/// Two operations that entered before the wait leave on two threads; the wait ends after both and sees their effects.
/// If `watched`, a future waits for room meanwhile, so each operation, when it leaves, looks for futures to notify.
fn wait_for_two(watched: bool) {
    let shared = shared();
    let tickets = [0, 1].map(|index| (index, shared.pending.enter()));
    let mut key = WakerKey::default();
    if watched {
        let _ = shared.pending.set_limit(1);
        assert!(shared.pending.poll_room(&mut key, Waker::noop()).is_pending());
    }
    let threads = tickets.map(|(index, ticket)| {
        let other = Arc::clone(&shared);
        thread::spawn(move || {
            // SAFETY: the wait ends after this write; the model verifies this.
            other.data[index].with_mut(|data| unsafe { *data = 1 });
            leave(&other.pending, ticket);
        })
    });
    assert!(shared.pending.wait(None) != WaitEnd::TimedOut);
    for data in &shared.data {
        // SAFETY: both operations are complete.
        assert_eq!(data.with(|data| unsafe { *data }), 1);
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(shared.pending.end_room(&mut key).is_none(), "another future is still registered");
}

#[test]
fn a_wait_for_all_ends_after_earlier_operations_and_sees_their_effects() {
    model(2, Flavour::Contract, || wait_for_two(false));
}

#[test]
fn a_wait_for_all_sees_what_operations_did_that_looked_for_waiters_for_room() {
    model(2, Flavour::Contract, || wait_for_two(true));
}

/// A scope's first operation pushes a second one, which is counted before the first leaves. The scope ends after both,
/// and then has exclusive access to what they borrowed.
#[test]
fn a_scope_ends_after_operations_that_its_operations_push() {
    model(2, Flavour::Contract, || {
        let shared = shared();
        let (other, first) = (Arc::clone(&shared), shared.pending.enter());
        let thread = thread::spawn(move || {
            let second = other.pending.enter();
            let another = Arc::clone(&other);
            let thread = thread::spawn(move || {
                // SAFETY: the scope ends after this write; the model verifies this.
                another.data[1].with_mut(|data| unsafe { *data = 1 });
                leave(&another.pending, second);
            });
            // SAFETY: the scope ends after this write; the model verifies this.
            other.data[0].with_mut(|data| unsafe { *data = 1 });
            leave(&other.pending, first);
            thread
        });
        shared.pending.wait_until_idle(|| None);
        for data in &shared.data {
            // SAFETY: both operations are complete.
            assert_eq!(data.with_mut(|data| unsafe { data.replace(2) }), 1);
        }
        thread.join().unwrap().join().unwrap();
    });
}

/// An operation that enters after the wait has begun does not delay the wait even if it never leaves; one that races
/// with the wait is counted exactly once.
#[test]
fn a_wait_for_all_does_not_cover_later_entries() {
    model(2, Flavour::Contract, || {
        let (shared, waker) = (shared(), Waker::from(Arc::new(Count::default())));
        let before = shared.pending.enter();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || leave(&other.pending, before));
        let other = Arc::clone(&shared);
        let racing = thread::spawn(move || {
            let ticket = other.pending.enter();
            leave(&other.pending, ticket);
        });
        let mut wait = shared.pending.begin();
        let after = shared.pending.enter();
        thread.join().unwrap();
        racing.join().unwrap();
        assert!(shared.pending.poll(&mut wait, &waker).is_ready(), "the wait covers a later entry");
        leave(&shared.pending, after);
        assert_eq!(shared.pending.wait(None), WaitEnd::Idle, "an operation is still counted");
    });
}

/// All existing generations drain, so new ones must be created while operations enter.
#[test]
fn a_wait_for_all_does_not_cover_later_entries_while_many_generations_drain() {
    model(2, Flavour::Contract, || {
        let (shared, waker) = (shared(), Waker::noop());
        let first = shared.pending.enter();
        let mut one = shared.pending.begin();
        let second = shared.pending.enter();
        let other = Arc::clone(&shared);
        let racing = thread::spawn(move || {
            let ticket = other.pending.enter();
            // SAFETY: a wait after the join covers this operation; the model verifies this.
            other.data[0].with_mut(|data| unsafe { *data = 1 });
            leave(&other.pending, ticket);
        });
        let mut two = shared.pending.begin();
        let third = shared.pending.enter();
        let mut three = shared.pending.begin();
        let after = shared.pending.enter();
        leave(&shared.pending, third);
        for wait in [&mut one, &mut two, &mut three] {
            assert!(shared.pending.poll(wait, waker).is_pending(), "an earlier entry is pending");
        }
        leave(&shared.pending, second);
        assert!(shared.pending.poll(&mut two, waker).is_pending(), "an earlier entry is pending");
        leave(&shared.pending, first);
        assert!(shared.pending.poll(&mut one, waker).is_ready(), "the wait covers a later entry");
        racing.join().unwrap();
        for wait in [&mut two, &mut three] {
            assert!(shared.pending.poll(wait, waker).is_ready(), "the wait covers a later entry");
        }
        leave(&shared.pending, after);
        assert_eq!(shared.pending.wait(None), WaitEnd::Idle, "an operation is still counted");
        // SAFETY: the operation is complete; the model verifies this.
        assert_eq!(shared.data[0].with(|data| unsafe { *data }), 1);
    });
}

/// A thread may begin to enter a generation in one chunk, find it closed, and then enter the next one, in a newly
/// created chunk.
#[test]
fn an_entry_finds_the_chunk_of_a_generation_that_was_opened_meanwhile() {
    model(COMPLETE, Flavour::Contract, || {
        let pending = Arc::new(PendingOps::new(1));
        // The last generation that this opens is the last in its chunk.
        let entered = [(); 3].map(|()| {
            let ticket = pending.enter();
            pending.end(&mut pending.begin());
            ticket
        });
        let last = pending.enter();
        let other = Arc::clone(&pending);
        let thread = thread::spawn(move || {
            let ticket = other.enter();
            leave(&other, ticket);
        });
        pending.end(&mut pending.begin());
        entered.into_iter().chain([last]).for_each(|ticket| leave(&pending, ticket));
        thread.join().unwrap();
        assert_eq!(pending.wait(None), WaitEnd::Idle, "an operation is still counted");
    });
}

/// An operation enters and leaves while another is pending; no count omits the pending one.
#[test]
fn a_count_includes_every_operation_that_is_pending() {
    model(COMPLETE, Flavour::Contract, || {
        let shared = shared();
        let (other, first) = (Arc::clone(&shared), shared.pending.enter());
        let thread = thread::spawn(move || {
            let second = other.pending.enter();
            leave(&other.pending, second);
        });
        assert!(shared.pending.count() > 0, "the first operation is not counted");
        thread.join().unwrap();
        leave(&shared.pending, first);
        assert_eq!(shared.pending.count(), 0);
    });
}

#[test]
fn a_thread_that_finds_nothing_pending_sees_what_the_operations_did() {
    model(COMPLETE, Flavour::Contract, || {
        let shared = shared();
        let (other, ticket) = (Arc::clone(&shared), shared.pending.enter());
        let thread = thread::spawn(move || {
            // SAFETY: the operation is counted until after this write; the model verifies this.
            other.data[0].with_mut(|data| unsafe { *data = 1 });
            leave(&other.pending, ticket);
        });
        if shared.pending.count() == 0 {
            // SAFETY: the operation is no longer counted.
            assert_eq!(shared.data[0].with(|data| unsafe { *data }), 1);
        }
        thread.join().unwrap();
    });
}

#[test]
fn a_wait_for_all_that_is_polled_is_woken_when_it_is_over() {
    model(COMPLETE, Flavour::Contract, || {
        let shared = shared();
        let (other, ticket) = (Arc::clone(&shared), shared.pending.enter());
        let thread = thread::spawn(move || leave(&other.pending, ticket));
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut wait = shared.pending.begin();
        let polled = shared.pending.poll(&mut wait, &waker);
        thread.join().unwrap();
        if polled.is_pending() {
            assert_eq!(count.get(), 1, "the future was not woken");
            assert!(shared.pending.poll(&mut wait, &waker).is_ready(), "the future was woken too soon");
        }
    });
}

/// A future is dropped while the operation that it awaits leaves. The future may be woken before the drop; afterwards,
/// no waker is left.
#[test]
fn a_wait_for_all_that_is_dropped_leaves_no_waker() {
    model(COMPLETE, Flavour::Contract, || {
        let shared = shared();
        let (other, ticket) = (Arc::clone(&shared), shared.pending.enter());
        let dropped = Arc::new(AtomicBool::new(false));
        let is_dropped = Arc::clone(&dropped);
        let thread = thread::spawn(move || {
            let was_dropped = is_dropped.load(Relaxed);
            leave(&other.pending, ticket);
            was_dropped
        });
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut wait = shared.pending.begin();
        let _ = shared.pending.poll(&mut wait, &waker);
        shared.pending.end(&mut wait);
        dropped.store(true, Relaxed);
        if thread.join().unwrap() {
            assert_eq!(count.get(), 0, "a dropped future was woken");
        }
        drop(waker);
        assert_eq!(Arc::strong_count(&count), 1, "the waker is still registered");
    });
}

/// A future begins to wait for room while all operations leave one by one.
fn wait_for_room(operations: usize) {
    let shared = shared();
    let _ = shared.pending.set_limit(1);
    let (other, tickets) = (Arc::clone(&shared), (0..operations).map(|_| shared.pending.enter()).collect::<Vec<_>>());
    let thread = thread::spawn(move || tickets.into_iter().for_each(|ticket| leave(&other.pending, ticket)));
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut key = WakerKey::default();
    let polled = shared.pending.poll_room(&mut key, &waker);
    thread.join().unwrap();
    if polled.is_pending() {
        assert_eq!(count.get(), 1, "the future was not woken");
        assert!(shared.pending.poll_room(&mut key, &waker).is_ready(), "the future was woken too soon");
    }
    assert!(shared.pending.end_room(&mut key).is_none(), "another future is still registered");
}

#[test]
fn a_wait_for_room_is_woken_when_an_operation_leaves() {
    model(COMPLETE, Flavour::Contract, || wait_for_room(1));
}

/// Between the future's two checks for room, the first operation to leave may find no registered future and end the
/// watch.
#[test]
fn a_wait_for_room_misses_no_leave() {
    model(3, Flavour::Contract, || wait_for_room(3));
}

/// A generation is closed and another opened while a future begins to wait for room. An operation that leaves the new
/// generation after that must find the generation watched.
#[test]
fn a_wait_for_room_is_woken_by_operations_of_later_generations() {
    model(2, Flavour::Contract, || {
        let shared = shared();
        let _ = shared.pending.set_limit(2);
        let (other, first) = (Arc::clone(&shared), shared.pending.enter());
        let thread = thread::spawn(move || {
            // Closes the generation of the first operation.
            let mut wait = other.pending.begin();
            let second = other.pending.enter();
            other.pending.end(&mut wait);
            leave(&other.pending, second);
        });
        let third = shared.pending.enter();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut key = WakerKey::default();
        let polled = shared.pending.poll_room(&mut key, &waker);
        leave(&shared.pending, third);
        thread.join().unwrap();
        assert!(polled.is_ready() || count.get() >= 1, "the future was not woken");
        assert!(
            shared.pending.poll_room(&mut key, &waker).is_ready(),
            "a wait for room is pending although there is room"
        );
        leave(&shared.pending, first);
        assert!(shared.pending.end_room(&mut key).is_none(), "another future is still registered");
    });
}

/// A thread waits for room without a time limit while the only operation leaves.
#[test]
fn a_thread_that_waits_for_room_is_woken() {
    model(COMPLETE, Flavour::Contract, || {
        let shared = shared();
        let _ = shared.pending.set_limit(1);
        let (other, ticket) = (Arc::clone(&shared), shared.pending.enter());
        let thread = thread::spawn(move || leave(&other.pending, ticket));
        shared.pending.wait_for_room(None);
        assert!(shared.pending.has_room(0), "the wait returned too early");
        thread.join().unwrap();
    });
}

/// Two futures wait until there is room for one operation. The first future is dropped, so the second must be woken,
/// unless it has found room itself.
#[test]
fn a_future_that_is_dropped_passes_its_room_on() {
    model(2, Flavour::Contract, || {
        let shared = shared();
        let _ = shared.pending.set_limit(1);
        let (other, ticket) = (Arc::clone(&shared), shared.pending.enter());
        let thread = thread::spawn(move || leave(&other.pending, ticket));
        let counts = [(); 2].map(|()| Arc::new(Count::default()));
        let mut keys = [WakerKey::default(), WakerKey::default()];
        let mut polled = [false; 2];
        for ((key, count), polled) in keys.iter_mut().zip(&counts).zip(&mut polled) {
            *polled = shared.pending.poll_room(key, &Waker::from(Arc::clone(count))).is_ready();
        }
        if let Some(wakers) = shared.pending.end_room(&mut keys[0]) {
            wakers.wake();
        }
        thread.join().unwrap();
        assert!(polled[1] || counts[1].get() == 1, "the second future was not woken");
        let _ = shared.pending.end_room(&mut keys[1]);
    });
}

/// Generations are reused while an entering operation may still find one of them closed.
#[test]
fn entries_are_counted_once_while_generations_are_reused() {
    model(2, Flavour::Contract, || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let ticket = other.pending.enter();
            leave(&other.pending, ticket);
        });
        (0..3).for_each(|_| assert!(shared.pending.wait(None) != WaitEnd::TimedOut));
        thread.join().unwrap();
        assert!(shared.pending.wait(None) != WaitEnd::TimedOut);
        assert_eq!(shared.pending.wait(None), WaitEnd::Idle);
    });
}

/// Either a wait covers an operation, or the operation sees the writes before the wait, so a shutdown can refuse late
/// pushes. While the operation is about to enter a generation, that generation may be closed and reopened, so that its
/// word has its old value again.
#[test]
fn an_entry_that_a_wait_does_not_cover_sees_writes_from_before_the_wait() {
    model(COMPLETE, Flavour::Contract, || {
        let (pending, phase) = (Arc::new(PendingOps::new(1)), Arc::new(AtomicUsize::new(0)));
        let over = Arc::new(AtomicBool::new(false));
        let (other, its_phase, is_over) = (Arc::clone(&pending), Arc::clone(&phase), Arc::clone(&over));
        let thread = thread::spawn(move || {
            let ticket = other.enter();
            // Relaxed: entering acquires the write; the model verifies this.
            if its_phase.load(Relaxed) == 0 {
                assert!(!is_over.load(Relaxed), "what was done before the wait is not seen");
            }
            leave(&other, ticket);
        });
        assert!(pending.wait(None) != WaitEnd::TimedOut);
        phase.fetch_add(1, Relaxed);
        assert!(pending.wait(None) != WaitEnd::TimedOut);
        over.store(true, Relaxed);
        thread.join().unwrap();
    });
}

/// When an operation pushes another, the new one enters before the pushing one leaves. So a wait that finds nothing
/// pending covers both, and a shutdown may then end the threads.
#[test]
fn an_idle_count_covers_operations_pushed_by_operations() {
    model(2, Flavour::Contract, || {
        let (shared, over) = (shared(), Arc::new(AtomicBool::new(false)));
        let (first, other, is_over) = (shared.pending.enter(), Arc::clone(&shared), Arc::clone(&over));
        let thread = thread::spawn(move || {
            let second = other.pending.enter();
            leave(&other.pending, first);
            let third = other.pending.enter();
            leave(&other.pending, second);
            is_over.store(true, Relaxed);
            leave(&other.pending, third);
        });
        while shared.pending.wait(None) == WaitEnd::Over {}
        assert!(over.load(Relaxed), "the chain was still running");
        thread.join().unwrap();
    });
}

/// Either a push is refused, or its operation has run when the shutdown returns.
#[test]
fn a_push_that_races_with_a_shutdown_is_refused_or_runs() {
    model(2, Flavour::Contract, || {
        let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
        let token = engine.token();
        let ran = Arc::new(AtomicBool::new(false));
        let (other, other_token, runs) = (engine.clone(), token.clone(), Arc::clone(&ran));
        let thread = thread::spawn(move || other.push_sync(move |_| runs.store(true, Relaxed), [], [&other_token]));
        engine.shutdown(Shutdown::Drain, None).unwrap();
        let ran = ran.load(Relaxed);
        match thread.join().unwrap() {
            Ok(()) => assert!(ran, "the shutdown returned before an accepted operation ran"),
            Err(error) => {
                assert_eq!(error, PushError::ShutDown);
                assert!(!ran, "a refused operation ran");
            }
        }
    });
}

/// A value that keeps an engine open and whose drop does not wait.
enum Keeper {
    Guard(WriteGuard<()>),
    /// The first engine's handle, dropped inside an operation of the second.
    Handle(Engine, Engine),
}

impl Keeper {
    fn end(self) {
        match self {
            Self::Guard(guard) => drop(guard),
            Self::Handle(engine, other) => other.op("").push((), move |()| drop(engine)).unwrap(),
        }
    }
}

/// A thread limits a group, polls a future that waits for room, and drops one of the two values that keep the engine
/// open: a guard or a handle. The model's first thread drops the other. The later drop shuts the engine down, which
/// ends the wait for room.
fn a_future_waits_for_room_while_handles_are_dropped(other_has_the_guard: bool) {
    let naive = || Engine::builder().kind(EngineKind::Naive).build().unwrap();
    let engine = naive();
    let (group, var) = (engine.group(), engine.var(()));
    let guard = match pin!(engine.acquire(var.write())).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(guard) => guard.unwrap(),
        Poll::Pending => panic!("the variable is free, but acquiring it is pending"),
    };
    let mut keepers = [Keeper::Guard(guard), Keeper::Handle(engine, naive())];
    if other_has_the_guard {
        keepers.reverse();
    }
    let [mine, its] = keepers;
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let thread = thread::spawn(move || {
        let group = group.group().max_pending(1);
        let place = Place::default();
        let inner = Arc::clone(&place);
        group.op("").push(completion(), move |done| *inner.lock().unwrap() = Some(done)).unwrap();
        let mut room = Box::pin(async move { group.op("").when_room().await.map(drop) });
        assert!(room.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "the group has room");
        its.end();
        (room, place)
    });
    mine.end();
    let (mut room, place) = thread.join().unwrap();
    assert_eq!(count.get(), 1, "the shutdown has not woken the future");
    let polled = room.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Ready(Err(PushError::ShutDown)));
    drop(place.lock().unwrap().take());
}

#[test]
fn a_shutdown_by_the_last_guard_ends_waits_for_room_that_began_beside_a_handle() {
    model(2, Flavour::Contract, || a_future_waits_for_room_while_handles_are_dropped(false));
}

#[test]
fn a_shutdown_by_the_last_handle_ends_waits_for_room_that_began_beside_a_guard() {
    model(2, Flavour::Contract, || a_future_waits_for_room_while_handles_are_dropped(true));
}

/// While the engine begins to shut down, a thread limits a group for the first time, and a future begins to wait for
/// room there: either the future finds the shutdown, or the shutdown finds the future.
#[test]
fn a_future_that_begins_to_wait_for_room_during_a_shutdown_is_refused_or_woken() {
    model(2, Flavour::Contract, || {
        let engine = Engine::builder().kind(EngineKind::Naive).build().unwrap();
        let (group, place, count) = (engine.group(), Place::default(), Arc::new(Count::default()));
        let inner = Arc::clone(&place);
        group.op("").push(completion(), move |done| *inner.lock().unwrap() = Some(done)).unwrap();
        let waker = Waker::from(Arc::clone(&count));
        let thread = thread::spawn(move || {
            let group = group.max_pending(1);
            let mut room = Box::pin(async move { group.op("").when_room().await.map(drop) });
            let polled = room.as_mut().poll(&mut Context::from_waker(&waker));
            (room, polled)
        });
        engine.notify_shutdown();
        let (room, polled) = thread.join().unwrap();
        match polled {
            Poll::Ready(result) => assert_eq!(result, Err(PushError::ShutDown)),
            Poll::Pending => assert_eq!(count.get(), 1, "the shutdown has not woken the future"),
        }
        drop(room);
        drop(place.lock().unwrap().take());
    });
}

kills! {
    a_wait_for_all_ends_after_earlier_operations_and_sees_their_effects {
        "leave::LEFT": "Causality violation",
        "leave::REST": "Causality violation",
        "leave::ARMED": "Causality violation",
        "leave::COMPUTED": "Causality violation",
        "leave::LAST": "Causality violation",
        "step::LEAVE_NOTIFIES": "deadlock",
    }
    a_wait_for_all_sees_what_operations_did_that_looked_for_waiters_for_room {
        "leave::REST_WATCHED": "Causality violation",
        "leave::LAST_WATCHED": "Causality violation",
    }
    a_scope_ends_after_operations_that_its_operations_push {
        "step::IDLE_WAITS_AGAIN": "left: 0",
    }
    an_entry_finds_the_chunk_of_a_generation_that_was_opened_meanwhile {
        "open::ENTER_CHUNK": "Causality violation",
    }
    a_count_includes_every_operation_that_is_pending {
        "leave::COUNTED": "the first operation is not counted",
    }
    a_thread_that_finds_nothing_pending_sees_what_the_operations_did {
        "leave::COUNTED": "Causality violation",
    }
    a_wait_for_room_is_woken_when_an_operation_leaves {
        "step::WATCH_FOR_ROOM": "the future was not woken",
    }
    a_wait_for_room_misses_no_leave {
        "step::WATCH_LOOKS_AGAIN": "the future was not woken",
    }
    a_wait_for_room_is_woken_by_operations_of_later_generations {
        "step::NEXT_WATCHED": "the future was not woken",
    }
    a_future_that_is_dropped_passes_its_room_on {
        "step::PASS_ROOM_ON": "the second future was not woken",
    }
    entries_are_counted_once_while_generations_are_reused {
        "open::CURRENT": "exceeded maximum number of branches",
        "open::ENTER": "exceeded maximum number of branches",
        "close::CLOSED": "exceeded maximum number of branches",
        "close::FOUND": "exceeded maximum number of branches",
        "step::CLOSED_REFUSES": "deadlock",
    }
    an_entry_that_a_wait_does_not_cover_sees_writes_from_before_the_wait {
        "open::ENTERED": "is not seen",
        "open::COUNTED": "is not seen",
    }
    a_push_that_races_with_a_shutdown_is_refused_or_runs {
        "step::PHASE_REFUSES": "the shutdown returned before an accepted operation ran",
    }
    a_future_that_begins_to_wait_for_room_during_a_shutdown_is_refused_or_woken {
        "step::ROOM_LOOKS_FOR_SHUTDOWN": "the shutdown has not woken the future",
    }
}
