//! Conflating operators, of whose values only the newest are kept.

use raddle_testkit as common;

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, OnceLock},
    task::{Context, Wake, Waker},
    thread,
    time::Instant,
};

use common::{
    Drops, Gate, KINDS, MOMENT, Meeting, PanicsOnDrop, THREADED, block_on, eventually, failure, hold, lock, occupy,
    on_kinds, poll_once,
    program::{Random, Source, fewer},
};
use raddle::{
    Conflated::{Pushed, Replaced},
    Device, Engine, OpHandle, Operator, PushError, Shutdown, Var,
    chosen::Newest,
    error::{Misfit, NoAccess},
    gpu::SimulatedGpu,
    stream,
};

/// A variable, and an operator that adds the newest `most` values to it.
fn list<T: Send + Sync + 'static>(engine: &Engine, most: usize) -> (Var<Vec<T>>, Operator<Newest<T>>) {
    let list = engine.var(Vec::new());
    let add = engine.op("add").operator_newest(most, list.write(), |list: &mut Vec<T>, value| list.push(value));
    (list, add.unwrap())
}

#[test]
fn while_runs_wait_the_newest_values_are_kept_in_order() {
    on_kinds(&KINDS, 2, |engine| {
        for most in 1..5 {
            let (list, add) = list(&engine, most);
            let (mut expected, mut dropped) = (Vec::new(), 0);
            for count in [0, 1, most - 1, most, most + 1, 3 * most, 100] {
                let gate = hold(&engine, list.token());
                for number in 0..count {
                    let expected = if number < most { Pushed } else { Replaced };
                    assert_eq!(add.clone().push((count, number)).unwrap(), expected);
                }
                expected.extend((count.saturating_sub(most)..count).map(|number| (count, number)));
                dropped += count.saturating_sub(most);
                assert_eq!(add.dropped(), dropped as u64);
                gate.open();
                assert_eq!(engine.get(&list).unwrap(), expected);
            }
        }
    });
}

#[test]
fn a_value_has_the_place_of_the_run_that_receives_it() {
    on_kinds(&KINDS, 2, |engine| {
        let (list, add) = list(&engine, 1);
        let between = |number| engine.op("between").push(list.write(), move |list| list.push(number)).unwrap();
        let gate = hold(&engine, list.token());
        add.push(1).unwrap();
        between(20);
        assert_eq!(add.push(3).unwrap(), Replaced);
        gate.open();
        assert_eq!(engine.get(&list).unwrap(), [3, 20]);
        // Nothing waits, so the next push has its own place.
        let gate = hold(&engine, list.token());
        between(40);
        assert_eq!(add.push(5).unwrap(), Pushed);
        gate.open();
        assert_eq!(engine.get(&list).unwrap(), [3, 20, 40, 5]);
    });
}

#[test]
fn a_run_that_has_started_keeps_its_value() {
    on_kinds(&THREADED, 2, |engine| {
        let (list, started, gate) = (engine.var(Vec::new()), Meeting::new(2), Gate::new());
        let (starts, passes) = (started.clone(), gate.clone());
        let add = engine.op("add").operator_newest(1, list.write(), move |list: &mut Vec<_>, value| {
            if list.is_empty() {
                starts.join();
                passes.pass();
            }
            list.push(value);
        });
        let add = add.unwrap();
        add.push(1).unwrap();
        started.join();
        assert_eq!([2, 3].map(|value| add.push(value).unwrap()), [Pushed, Replaced]);
        gate.open();
        assert_eq!(engine.get(&list).unwrap(), [1, 3]);
    });
}

#[test]
fn a_function_may_push_its_own_operator() {
    on_kinds(&KINDS, 2, |engine| {
        let list = engine.var(Vec::new());
        let own = Arc::new(Mutex::new(None::<Operator<Newest<u32>>>));
        let inside = Arc::clone(&own);
        let add = engine.op("add").operator_newest(2, list.write(), move |list: &mut Vec<_>, value| {
            list.push(value);
            if value < 100 && value % 10 == 0 {
                let operator = lock(&inside).clone().unwrap();
                (1..=10).for_each(|more| _ = operator.push(value + more).unwrap());
            }
        });
        let add = add.unwrap();
        *lock(&own) = Some(add.clone());
        add.push(0).unwrap();
        eventually("no run pushes another", || engine.pending() == 0);
        *lock(&own) = None;
        // On the naive engine, too, the runs come after the function that pushes them.
        let expected: Vec<u32> = (1..=10).flat_map(|ten| [10 * ten - 1, 10 * ten]).collect();
        assert_eq!(engine.get(&list).unwrap()[1..], expected);
        assert_eq!(add.dropped(), 80);
    });
}

/// Several threads push, with delays, while runs start: each value is received or counted, in the order of its thread.
#[test]
fn each_value_is_received_once_or_counted_in_the_order_of_its_thread() {
    for seed in 0..fewer(40) as u64 {
        on_kinds(&KINDS, 2, move |engine| {
            let random = &mut Random::new(seed);
            let (threads, pushes) = (1 + random.below(4), 1 + random.below(fewer(400)));
            let (most, pause) = (1 + random.below(3), random.below(2_000));
            let drops = Drops::new();
            let list = engine.var(Vec::new());
            let add = engine.op("add");
            let add = if random.one_in(4) { add.eager() } else { add };
            let add = add.operator_newest(
                most,
                list.write(),
                move |list: &mut Vec<_>, (thread, number, value): (usize, usize, common::Droppable)| {
                    value.touch();
                    (0..pause).for_each(|_| std::hint::spin_loop());
                    list.push((thread, number));
                },
            );
            let (add, meeting) = (add.unwrap(), Meeting::new(threads));
            let replaced: u64 = thread::scope(|scope| {
                let pushers: Vec<_> = (0..threads)
                    .map(|thread| {
                        let (add, meeting, drops, mut random) = (&add, &meeting, &drops, Random::new(random.next()));
                        scope.spawn(move || {
                            meeting.join();
                            let push = |number| {
                                if random.one_in(30) {
                                    thread::yield_now();
                                }
                                let value = (thread, number, drops.make());
                                match random.below(3) {
                                    0 => add.submit(value).unwrap().map_or(Replaced, |_| Pushed),
                                    1 => add.if_room().unwrap().push(value).unwrap(),
                                    _ => add.push(value).unwrap(),
                                }
                            };
                            (0..pushes).map(push).filter(|pushed| *pushed == Replaced).count() as u64
                        })
                    })
                    .collect();
                pushers.into_iter().map(|pusher| pusher.join().unwrap()).sum()
            });
            let received = engine.get(&list).unwrap();
            engine.wait_for_all().unwrap();
            drops.assert_all_gone();
            assert_eq!(add.dropped(), replaced);
            assert_eq!(received.len() as u64 + replaced, (threads * pushes) as u64);
            for thread in 0..threads {
                let own: Vec<_> = received.iter().filter(|value| value.0 == thread).collect();
                assert!(own.is_sorted_by(|one, next| one.1 < next.1), "thread {thread}: {own:?}");
            }
            assert_eq!(received.last().unwrap().1, pushes - 1, "the last value is not that of a thread's last push");
        });
    }
}

/// Whatever another thread pushes, a value pushed later than it is received later, or replaces it.
#[test]
fn the_last_value_pushed_is_the_last_one_received() {
    on_kinds(&THREADED, 2, |engine| {
        let (list, add) = list(&engine, 1);
        for round in 0..fewer(300) as u64 {
            let gate = hold(&engine, list.token());
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| (0..20).for_each(|number| _ = add.push((round, number)).unwrap()));
                }
            });
            add.push((round, 100)).unwrap();
            gate.open();
            assert_eq!(engine.get(&list).unwrap().last(), Some(&(round, 100)));
        }
    });
}

/// Threads that push at the same time do not enter runs without end.
#[test]
fn pushes_that_race_are_conflated() {
    on_kinds(&THREADED, 2, |engine| {
        let (list, add) = list(&engine, 1);
        let gate = hold(&engine, list.token());
        let pushes = fewer(20_000);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..pushes).for_each(|number| _ = add.push(number).unwrap()));
            }
        });
        gate.open();
        let runs = engine.get(&list).unwrap().len();
        println!("{runs} runs of {} pushes", 4 * pushes);
        assert!(runs < pushes, "{runs} of {} pushes entered runs", 4 * pushes);
    });
}

// ---------------------------------------------------------------------------------------- runs that do not start ----

#[test]
fn a_cancelled_run_takes_its_newest_value_with_it() {
    on_kinds(&KINDS, 2, |engine| {
        let (list, add) = list(&engine, 1);
        let drops = Drops::new();
        let gate = hold(&engine, list.token());
        let first = add.submit(drops.make()).unwrap().unwrap();
        assert!(add.submit(drops.make()).unwrap().is_none());
        assert_eq!((drops.dropped(), add.dropped()), (1, 1));
        assert!(first.cancel_quietly());
        assert_eq!((drops.dropped(), add.dropped()), (2, 1));
        // The cancelled run is not found.
        assert_eq!(add.push(drops.make()).unwrap(), Pushed);
        gate.open();
        engine.wait_for_all().unwrap();
        assert_eq!((drops.dropped(), add.dropped()), (2, 1));
        assert_eq!(engine.take(&list).unwrap().len(), 1);
    });
}

/// Calls its function when it wakes.
struct Calls<F>(F);

impl<F: Fn() + Send + Sync> Wake for Calls<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// Makes a run with this handle call `f` when its handle is woken.
fn when_woken(run: &mut OpHandle<()>, f: impl Fn() + Send + Sync + 'static) {
    let waker = Waker::from(Arc::new(Calls(f)));
    assert!(Pin::new(run).poll(&mut Context::from_waker(&waker)).is_pending());
}

#[test]
fn a_push_inside_a_cancellation_has_a_run_of_its_own() {
    on_kinds(&KINDS, 2, |engine| {
        let (list, add) = list(&engine, 1);
        let gate = hold(&engine, list.token());
        let mut first = add.submit(1).unwrap().unwrap();
        let (pushed, pushing) = (Arc::new(OnceLock::new()), add.clone());
        let result = Arc::clone(&pushed);
        when_woken(&mut first, move || result.set(pushing.push(2).unwrap()).unwrap());
        assert!(first.cancel_quietly());
        assert_eq!(pushed.get(), Some(&Pushed));
        gate.open();
        assert_eq!(engine.get(&list).unwrap(), [2]);
    });
}

#[test]
fn a_push_after_a_cancellation_of_another_thread_has_a_run_of_its_own() {
    on_kinds(&THREADED, 2, |engine| {
        let (list, add) = list(&engine, 1);
        for round in 0..fewer(2_000) {
            let gate = hold(&engine, list.token());
            let first = add.submit(usize::MAX).unwrap().unwrap();
            thread::scope(|scope| {
                scope.spawn(|| assert!(first.cancel_quietly()));
                while !first.is_done() {
                    std::hint::spin_loop();
                }
                assert_eq!(add.push(round).unwrap(), Pushed);
            });
            gate.open();
        }
        assert_eq!(engine.get(&list).unwrap(), (0..fewer(2_000)).collect::<Vec<_>>());
    });
}

#[test]
fn a_push_that_learns_of_a_skip_has_a_run_of_its_own() {
    on_kinds(&KINDS, 2, |engine| {
        let (list, add) = list(&engine, 1);
        let gate = hold(&engine, list.token());
        engine.op("fails").try_push(list.write(), |_| Err("failed".into())).unwrap();
        let mut first = add.submit(1).unwrap().unwrap();
        let (pushed, pushing, inside) = (Arc::new(OnceLock::new()), add.clone(), engine.clone());
        let (result, cleared) = (Arc::clone(&pushed), list.clone());
        when_woken(&mut first, move || {
            inside.op("clear").push(cleared.overwrite(), Vec::clear).unwrap();
            result.set(pushing.push(2).unwrap()).unwrap();
        });
        gate.open();
        let _ = engine.wait_for_all();
        assert_eq!(pushed.get(), Some(&Pushed));
        assert_eq!(engine.get(&list).unwrap(), [2]);
    });
}

/// The lane of a GPU leaves the drop of a skipped run's value to a worker, which is busy.
#[test]
fn a_push_after_a_skipped_run_whose_value_is_not_dropped_yet_has_a_run_of_its_own() {
    common::watched(|| {
        let engine = Engine::builder().workers(1).pin(false).gpu(SimulatedGpu::new()).build().unwrap();
        let value = engine.var(0);
        let set = engine.op("set").on(Device::Gpu(0));
        let set = set.operator_newest(1, (value.write(), stream()), |(value, _), new| *value = new).unwrap();
        engine.op("fails").try_push(value.write(), |_| Err("failed".into())).unwrap();
        let _ = engine.wait_for_all();
        let gate = occupy(&engine, 1);
        set.push(1).unwrap();
        let clear = engine.op("clear").on(Device::Gpu(0));
        clear.submit((value.overwrite(), stream()), |(value, _)| *value = 5).unwrap().wait().unwrap();
        assert_eq!(set.push(2).unwrap(), Pushed);
        gate.open();
        let _ = engine.wait_for_all();
        assert_eq!(engine.get(&value).unwrap(), 2);
    });
}

#[test]
fn pushes_inside_a_run_that_its_push_runs_are_conflated() {
    for kind in THREADED {
        common::watched(move || {
            let engine = Engine::builder().kind(kind).workers(1).pin(false).build().unwrap();
            let (list, own) = (engine.var(Vec::new()), Arc::new(OnceLock::<Operator<Newest<i32>>>::new()));
            let (inside, gate) = (Arc::clone(&own), occupy(&engine, 1));
            let add = engine.op("add").eager().operator_newest(1, list.write(), move |list: &mut Vec<_>, value| {
                list.push(value);
                if value == 0 {
                    assert_eq!(inside.get().unwrap().push(1).unwrap(), Pushed);
                }
            });
            let add = add.unwrap();
            assert!(own.set(add.clone()).is_ok());
            assert_eq!([0, 2, 3].map(|value| add.push(value).unwrap()), [Pushed, Replaced, Replaced]);
            gate.open();
            assert_eq!(engine.get(&list).unwrap(), [0, 3]);
        });
    }
}

#[test]
fn the_values_of_skipped_and_cancelled_runs_are_dropped_once() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, drops, group) = (engine.var(0), Drops::new(), engine.group());
        let touch = |_: &mut i32, value: common::Droppable| value.touch();
        let single = engine.op("skipped").operator_newest(2, value.write(), touch).unwrap();
        let grouped = group.op("cancelled").operator_newest(2, value.write(), touch).unwrap();
        let gate = hold(&engine, value.token());
        engine.op("fails").try_push(value.write(), |_| Err("failed".into())).unwrap();
        for add in [&single, &grouped] {
            assert_eq!([(); 3].map(|()| add.push(drops.make()).unwrap()), [Pushed, Pushed, Replaced]);
        }
        group.cancel();
        gate.open();
        let _ = engine.wait_for_all();
        drops.assert_all_gone();
        assert_eq!([&single, &grouped].map(|add| add.dropped()), [1, 1]);
    });
}

#[test]
fn a_refused_push_replaces_nothing() {
    on_kinds(&KINDS, 2, |engine| {
        let drops = Drops::new();
        let (other, add) = list(&engine, 1);
        let gate = hold(&engine, other.token());
        add.push(drops.make()).unwrap();
        engine.delete_variable(&other, |_| {}).unwrap();
        assert!(matches!(add.push(drops.make()), Err(PushError::Variable(NoAccess::Deleted, _))));
        assert_eq!((drops.dropped(), add.dropped()), (1, 0));
        gate.open();
        engine.wait_for_all().unwrap();

        let (var, add) = list(&engine, 1);
        let gate = hold(&engine, var.token());
        add.push(drops.make()).unwrap();
        engine.notify_shutdown();
        assert_eq!(add.push(drops.make()).map(drop), Err(PushError::ShutDown));
        assert_eq!(add.submit(drops.make()).map(drop), Err(PushError::ShutDown));
        assert_eq!(add.if_room().map(drop), Err(PushError::ShutDown));
        gate.open();
        drop((other, var));
        engine.shutdown(Shutdown::Drain, None).unwrap();
        drop(add);
        drops.assert_all_gone();
    });
}

#[test]
fn an_operator_that_keeps_nothing_is_refused() {
    on_kinds(&KINDS, 1, |engine| {
        let refused = engine.op("none").operator_newest(0, (), |(), _: i32| {});
        assert_eq!(refused.map(drop), Err(PushError::Unfit(Misfit::NewestOfNone)));
        // And one that keeps all is not.
        let (list, add) = list(&engine, usize::MAX);
        let gate = hold(&engine, list.token());
        (0..100).for_each(|number| assert_eq!(add.push(number).unwrap(), Pushed));
        gate.open();
        assert_eq!(engine.get(&list).unwrap(), (0..100).collect::<Vec<_>>());
    });
}

// ------------------------------------------------------------------------------------------------- program code ----

#[test]
fn the_drop_of_a_replaced_value_may_push_the_same_operator() {
    type Push = OnceLock<Box<dyn Fn(u32) + Send + Sync>>;
    /// Pushes a smaller number when it is dropped, unless it is zero.
    struct Pushes(u32, Arc<Push>);
    impl Drop for Pushes {
        fn drop(&mut self) {
            if self.0 > 0 {
                self.1.get().unwrap()(self.0 - 1);
            }
        }
    }
    on_kinds(&KINDS, 2, |engine| {
        let received = engine.var(Vec::new());
        let add = engine.op("add").operator_newest(2, received.write(), |received: &mut Vec<_>, mut value: Pushes| {
            received.push(std::mem::take(&mut value.0));
        });
        let (add, push) = (add.unwrap(), Arc::new(Push::new()));
        let (gate, inside) = (hold(&engine, received.token()), Arc::downgrade(&push));
        let pushing = add.clone();
        let _ = push.set(Box::new(move |number| {
            let value = Pushes(number, inside.upgrade().unwrap());
            assert_eq!(pushing.push(value).unwrap(), Replaced);
        }));
        for number in [0, 3, 0, 0] {
            add.push(Pushes(number, Arc::clone(&push))).unwrap();
        }
        // The fourth push has dropped 3, which has pushed 2. That has dropped 0. The others are 0, 2.
        assert_eq!(add.dropped(), 3);
        gate.open();
        assert_eq!(engine.get(&received).unwrap(), [0, 2]);
    });
}

#[test]
fn a_panic_in_the_drop_of_a_replaced_value_leaves_the_newer_ones() {
    on_kinds(&KINDS, 2, |engine| {
        let received = engine.var(Vec::new());
        let forget = |received: &mut Vec<_>, (number, panics): (u32, PanicsOnDrop)| {
            std::mem::forget(panics);
            received.push(number);
        };
        let add = engine.op("add").operator_newest(2, received.write(), forget).unwrap();
        let gate = hold(&engine, received.token());
        for number in 0..6 {
            let pushed = catch_unwind(AssertUnwindSafe(|| add.push((number, PanicsOnDrop("dropped")))));
            assert_eq!(pushed.is_err(), number >= 2);
        }
        assert_eq!(add.dropped(), 4);
        gate.open();
        assert_eq!(engine.get(&received).unwrap(), [4, 5]);
    });
}

#[test]
fn a_function_that_fails_is_skipped_over_as_any_other() {
    on_kinds(&KINDS, 2, |engine| {
        let value = engine.var(0);
        let set = engine.op("set").try_operator_newest(1, value.overwrite(), |value, text: &'static str| {
            *value = text.parse()?;
            Ok(())
        });
        let set = set.unwrap();
        set.push("x").unwrap();
        assert_eq!(failure(engine.get(&value)).name(), "set");
        set.push("7").unwrap();
        assert_eq!(engine.get(&value).unwrap(), 7);
    });
}

#[test]
fn values_may_be_of_any_size_and_alignment() {
    #[derive(Clone)]
    #[repr(align(64))]
    struct Aligned(u8);

    fn check<T: Clone + Send + Sync + 'static>(engine: &Engine, make: impl Fn(u8) -> T, number: fn(&T) -> u8) {
        let numbers = engine.var(Vec::new());
        let add = engine
            .op("add")
            .operator_newest(2, numbers.write(), move |numbers: &mut Vec<u8>, it: T| numbers.push(number(&it)))
            .unwrap();
        let gate = hold(engine, numbers.token());
        (0..5).for_each(|number| _ = add.push(make(number)).unwrap());
        gate.open();
        assert_eq!(engine.get(&numbers).unwrap(), [3, 4]);
    }

    on_kinds(&KINDS, 2, |engine| {
        check(&engine, |number| number, |number| *number);
        check(&engine, Aligned, |aligned| {
            assert_eq!(std::ptr::from_ref(aligned).addr() % 64, 0);
            aligned.0
        });
        check(&engine, |number| [number; 100_000], |numbers| numbers[99_999]);
        check(&engine, Box::new, |number| **number);
    });
}

// ------------------------------------------------------------------------------------------------------- limits ----

#[test]
fn a_push_that_replaces_needs_no_room() {
    for kind in THREADED {
        common::watched(move || {
            let engine = Engine::builder().kind(kind).workers(1).pin(false).max_pending(2).build().unwrap();
            let (list, add) = list(&engine, 1);
            let gate = hold(&engine, list.token());
            assert_eq!(add.push(1).unwrap(), Pushed);
            // The engine is full now.
            assert_eq!(engine.op("other").if_room().map(drop), Err(PushError::Full));
            let start = Instant::now();
            assert_eq!(add.push(2).unwrap(), Replaced);
            assert_eq!(add.if_room().unwrap().push(3).unwrap(), Replaced);
            assert!(add.if_room().unwrap().submit(4).unwrap().is_none());
            assert_eq!(block_on(add.when_room()).unwrap().push(5).unwrap(), Replaced);
            assert!(start.elapsed() < MOMENT, "a push that replaces is held back");
            // An operator without runs needs room.
            let (_, other) = self::list::<u32>(&engine, 1);
            assert_eq!(other.if_room().map(drop), Err(PushError::Full));
            assert!(poll_once(&mut Box::pin(other.when_room())).is_pending());
            gate.open();
            assert_eq!(engine.get(&list).unwrap(), [5]);
        });
    }
}
