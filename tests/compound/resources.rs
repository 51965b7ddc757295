//! Operations that use units of resources, and the bounds of groups and engines.

use raddle_testkit as common;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use common::{AWHILE, Drops, Gate, Journal, KINDS, MOMENT, THREADED, eventually, failure, hold, on_kinds, watched};
use raddle::{
    Completion, Device, Engine, EngineKind, Group, OpHandle, PushError, Resource, Shutdown, WaitError, chosen,
    completion, cx,
    error::{Cause, Misfit},
    gpu::{SimulatedGpu, simulated::Clock},
    stream,
    trace::OpState,
};

/// Pushes an asynchronous operation that uses units, and returns its completion once it has started.
fn take(engine: &Engine, resource: &Resource, units: usize) -> Completion {
    let (sender, receiver) = mpsc::channel();
    engine.op("holder").uses(resource, units).push(completion(), move |done| sender.send(done).unwrap()).unwrap();
    receiver.recv_timeout(AWHILE).expect("the units should be free")
}

/// Counts the units that are held, and fails if they are too many.
#[derive(Clone)]
struct Account(Arc<AtomicU64>, u64);

impl Account {
    fn new(units: u64) -> Self {
        Self(Arc::default(), units)
    }

    fn take(&self, units: u64) {
        let before = self.0.fetch_add(units, SeqCst);
        assert!(before + units <= self.1, "{before} units of {} were taken, and {units} more are", self.1);
    }

    fn give_back(&self, units: u64) {
        self.0.fetch_sub(units, SeqCst);
    }

    fn held(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

// ------------------------------------------------------------------------------------------------- how many run ----

#[test]
fn as_many_operations_run_as_there_are_units() {
    on_kinds(&THREADED, 4, |engine| {
        let (pairs, account) = (engine.resource(2), Account::new(2));
        let most = Arc::new(AtomicU64::new(0));
        for _ in 0..40 {
            let (account, most) = (account.clone(), Arc::clone(&most));
            engine
                .op("")
                .uses(&pairs, 1)
                .push((), move |()| {
                    account.take(1);
                    most.fetch_max(account.held(), SeqCst);
                    thread::sleep(Duration::from_millis(1));
                    account.give_back(1);
                })
                .unwrap();
        }
        engine.wait_for_all().unwrap();
        assert_eq!(most.load(SeqCst), 2, "two operations can run at a time");
    });
}

#[test]
fn operations_hold_their_units_until_they_are_complete() {
    on_kinds(&KINDS, 2, |engine| {
        let one = engine.resource(1);
        let done = take(&engine, &one, 1);
        let journal = Journal::new();
        let inner = journal.clone();
        engine.op("").uses(&one, 1).push((), move |()| inner.add(1)).unwrap();
        thread::sleep(MOMENT);
        assert_eq!(journal.len(), 0, "an asynchronous operation has given its unit back early");
        done.complete();
        engine.wait_for_all().unwrap();
        assert_eq!(journal.take(), [1]);

        // A future that sleeps, and a guard that outlives it.
        let value = engine.var(0);
        let other = engine.var(0);
        let gate = hold(&engine, other.as_ref());
        let (inside, awaited) = (engine.clone(), other.clone());
        let (give, given) = mpsc::channel();
        let pushed = engine.op("future").uses(&one, 1).push_future(value.write(), |guard| async move {
            inside.get_async(&awaited).await.unwrap();
            give.send(guard).unwrap();
        });
        pushed.unwrap();
        let next = engine.op("").uses(&one, 1).submit((), |()| ()).unwrap();
        thread::sleep(MOMENT);
        assert!(!next.is_done(), "a future that sleeps holds its unit");
        gate.open();
        let guard = given.recv_timeout(AWHILE).unwrap();
        thread::sleep(MOMENT);
        assert!(!next.is_done(), "a guard holds the unit");
        drop(guard);
        next.wait().unwrap();
    });
}

#[test]
fn failures_and_panics_give_units_back() {
    on_kinds(&KINDS, 1, |engine| {
        let one = engine.resource(1);
        let failed = engine.op("").uses(&one, 1).try_submit((), |()| Err::<(), _>("as planned".into())).unwrap();
        let panicked = engine.op("").uses(&one, 1).submit((), |()| panic!("as planned")).unwrap();
        let _: &OpHandle<()> = &panicked;
        let lost = engine.op("").uses(&one, 1).push(completion(), drop);
        lost.unwrap();
        let last = engine.op("").uses(&one, 1).submit((), |()| 7).unwrap();
        assert_eq!(last.wait().unwrap(), 7);
        failure(failed.wait());
        failure(panicked.wait());
        failure(engine.wait_for_all());
    });
}

#[test]
fn unfit_units_are_refused() {
    on_kinds(&KINDS, 1, |engine| {
        let (two, foreign) = (engine.resource(2), common::engine(EngineKind::Naive, 1).resource(5));
        let refused = |result: Result<(), PushError>| match result {
            Err(PushError::Unfit(misfit)) => misfit,
            other => panic!("{other:?}"),
        };
        let drops = Drops::new();
        let captured = drops.make();
        let push = engine.op("").uses(&two, 3).push((), move |()| captured.touch());
        assert_eq!(refused(push), Misfit::TooManyUnits { needed: 3, units: 2 });
        drops.assert_all_gone();
        let sum = engine.op("").uses(&two, 1).uses(&two, 2).push((), |()| {});
        assert_eq!(refused(sum), Misfit::TooManyUnits { needed: 3, units: 2 });
        assert_eq!(refused(engine.op("").uses(&foreign, 1).push((), |()| {})), Misfit::ForeignResource);
        let operator = engine.op("").uses(&two, 3).operator((), |()| {});
        assert_eq!(refused(operator.map(drop)), Misfit::TooManyUnits { needed: 3, units: 2 });
        engine.op("").uses(&two, 0).uses(&engine.resource(0), 0).push((), |()| {}).unwrap();
        engine.wait_for_all().unwrap();
        assert_eq!((two.units(), engine.resource(0).units()), (2, 0));
    });
}

#[test]
fn resources_exist_as_long_as_they_are_used() {
    on_kinds(&KINDS, 1, |engine| {
        let done = {
            let one = engine.resource(1);
            let done = take(&engine, &one, 1);
            engine.op("").uses(&one, 1).push((), |()| {}).unwrap();
            done
        };
        done.complete();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn runs_of_operators_use_units() {
    on_kinds(&THREADED, 4, |engine| {
        let (one, account) = (engine.resource(1), Account::new(1));
        let inner = account.clone();
        let run = engine.op("run").uses(&one, 1).operator((), move |()| {
            inner.take(1);
            thread::yield_now();
            inner.give_back(1);
        });
        let run = run.unwrap();
        (0..50).for_each(|_| run.push().unwrap());
        run.submit().unwrap().wait().unwrap();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn operators_with_arguments_use_units() {
    on_kinds(&THREADED, 4, |engine| {
        let (one, account, sum) = (engine.resource(1), Account::new(1), engine.var(0));
        let during = move || {
            account.take(1);
            thread::yield_now();
            account.give_back(1);
        };
        let inner = during.clone();
        let add = engine.op("add").uses(&one, 1).operator_with(sum.write(), move |sum, more: u64| {
            inner();
            *sum += more;
        });
        let add_to =
            engine.op("add to").uses(&one, 1).operator_on(chosen::write(), (), move |to: &mut u64, (), more| {
                during();
                *to += more;
            });
        let (add, add_to, others) = (add.unwrap(), add_to.unwrap(), [engine.var(0), engine.var(0)]);
        for at in 0..30 {
            add.push(at).unwrap();
            add_to.push_on(&others[at as usize % 2], at).unwrap();
        }
        engine.wait_for_all().unwrap();
        let [even, odd] = others.map(|other| engine.get(&other).unwrap());
        assert_eq!((engine.get(&sum).unwrap(), even, odd), (435, 210, 225));
        let too_many = engine.op("").uses(&one, 2).operator_with((), |(), _: ()| {});
        assert_eq!(too_many.err(), Some(PushError::Unfit(Misfit::TooManyUnits { needed: 2, units: 1 })));
    });
}

/// The resources come to share their queues one by one.
#[test]
fn many_resources_may_be_used_together() {
    on_kinds(&[EngineKind::Naive], 1, |engine| {
        let resources: Vec<_> = (0..if cfg!(miri) { 50 } else { 50_000 }).map(|_| engine.resource(1)).collect();
        for pair in resources.windows(2).rev() {
            engine.op("").uses(&pair[0], 1).uses(&pair[1], 1).push((), |()| {}).unwrap();
        }
        engine.wait_for_all().unwrap();
        // The last one, in whose queues it all began, is dropped last.
        drop(resources);
    });
}

// ---------------------------------------------------------------------------------------------------- who is next ----

#[test]
fn higher_priorities_go_first_and_equals_in_order() {
    on_kinds(&KINDS, 1, |engine| {
        let one = engine.resource(1);
        let done = take(&engine, &one, 1);
        let journal = Journal::new();
        for (at, priority) in [0, 1, -1, 0, 7, 1].into_iter().enumerate() {
            let journal = journal.clone();
            engine.op("").priority(priority).uses(&one, 1).push((), move |()| journal.add(at)).unwrap();
        }
        done.complete();
        engine.wait_for_all().unwrap();
        assert_eq!(journal.take(), [4, 1, 5, 0, 3, 2]);
    });
}

#[test]
fn an_operation_is_overtaken_by_at_most_32_equals() {
    on_kinds(&KINDS, 1, |engine| {
        let two = engine.resource(2);
        let (first, second) = (take(&engine, &two, 1), take(&engine, &two, 1));
        let journal = Journal::new();
        let large = journal.clone();
        engine.op("large").uses(&two, 2).push((), move |()| large.add(usize::MAX)).unwrap();
        for at in 0..100 {
            let journal = journal.clone();
            engine.op("small").uses(&two, 1).push((), move |()| journal.add(at)).unwrap();
        }
        first.complete();
        eventually("small operations overtake", || journal.len() == 32);
        thread::sleep(MOMENT);
        assert_eq!(journal.len(), 32, "the free unit is not kept for the large operation");
        second.complete();
        engine.wait_for_all().unwrap();
        let order = journal.take();
        assert_eq!((order.len(), order[32]), (101, usize::MAX));
    });
}

#[test]
fn lower_priorities_take_only_what_a_higher_one_does_not_need() {
    on_kinds(&KINDS, 1, |engine| {
        let (links, cores) = (engine.resource(1), engine.resource(3));
        let done = take(&engine, &links, 1);
        let journal = Journal::new();
        let high = journal.clone();
        engine.op("link").priority(1).uses(&links, 1).uses(&cores, 2).push((), move |()| high.add("link")).unwrap();
        let wide = journal.clone();
        engine.op("wide").uses(&cores, 2).push((), move |()| wide.add("wide")).unwrap();
        let narrow = journal.clone();
        engine.op("narrow").uses(&cores, 1).push((), move |()| narrow.add("narrow")).unwrap();
        eventually("what is left is used", || journal.len() == 1);
        thread::sleep(MOMENT);
        done.complete();
        engine.wait_for_all().unwrap();
        let order = journal.take();
        assert_eq!(order[0], "narrow");
        assert_eq!(order.len(), 3);
    });
}

// ------------------------------------------------------------------------------------------ cancelled and skipped ----

#[test]
fn cancelled_operations_leave_without_units() {
    on_kinds(&KINDS, 1, |engine| {
        let one = engine.resource(1);
        let done = take(&engine, &one, 1);
        let (by_handle, by_group, quietly) = (engine.var(0), engine.var(0), engine.var(0));
        let never = |_: &mut i32| unreachable!("the operation was cancelled");
        let handle = engine.op("").uses(&one, 1).submit(by_handle.write(), never).unwrap();
        let (group, quiet) = (engine.group(), engine.group());
        group.op("").uses(&one, 1).push(by_group.write(), never).unwrap();
        quiet.group().op("").uses(&one, 1).push(quietly.write(), never).unwrap();
        assert!(handle.cancel());
        group.cancel();
        quiet.cancel_quietly();
        // Their turns come although the unit is not free.
        let is_cancelled = |result| matches!(failure(result).cause(), Cause::Cancelled);
        assert!(is_cancelled(engine.wait_for_var(&by_handle)));
        assert!(is_cancelled(engine.wait_for_var(&by_group)));
        engine.wait_for_var(&quietly).unwrap();
        let last = engine.op("").uses(&one, 1).submit((), |()| 1).unwrap();
        done.complete();
        assert_eq!(last.wait().unwrap(), 1);
    });
}

#[test]
fn skipped_operations_take_no_units() {
    on_kinds(&KINDS, 1, |engine| {
        let one = engine.resource(1);
        let done = take(&engine, &one, 1);
        let value = engine.var(0);
        engine.op("").try_push(value.write(), |_| Err("as planned".into())).unwrap();
        let skipped = engine.op("").uses(&one, 1).submit(value.read(), |_| ()).unwrap();
        failure(skipped.wait());
        done.complete();
    });
}

#[test]
fn a_deadline_holds_for_an_operation_that_waits_for_units() {
    on_kinds(&KINDS, 1, |engine| {
        let one = engine.resource(1);
        let done = take(&engine, &one, 1);
        let due = Instant::now() + Duration::from_millis(5);
        let late = engine.op("").deadline(due).uses(&one, 1).submit((), |()| ()).unwrap();
        thread::sleep(Duration::from_millis(10));
        done.complete();
        assert!(matches!(failure(late.wait()).cause(), Cause::DeadlinePassed));
        engine.op("").uses(&one, 1).submit((), |()| ()).unwrap().wait().unwrap();
    });
}

#[test]
fn shutdowns_drain_or_cancel_what_waits_for_units() {
    for cancels in [false, true] {
        on_kinds(&KINDS, 1, move |engine| {
            let one = engine.resource(1);
            let done = take(&engine, &one, 1);
            let handle = engine.op("").uses(&one, 1).submit((), |()| ()).unwrap();
            let shutdown = if cancels { Shutdown::Cancel } else { Shutdown::Drain };
            let ended = engine.shutdown(shutdown, Some(MOMENT));
            assert!(ended.is_err(), "the holder is not complete");
            assert_eq!(handle.is_done(), cancels);
            done.complete();
            engine.shutdown(shutdown, Some(AWHILE)).unwrap();
            assert_eq!(handle.wait().is_err(), cancels);
        });
    }
}

#[test]
fn a_stopped_engine_keeps_what_waits_for_units() {
    on_kinds(&THREADED, 1, |engine| {
        let one = engine.resource(1);
        let done = take(&engine, &one, 1);
        let handle = engine.op("").uses(&one, 1).submit((), |()| ()).unwrap();
        engine.stop(Some(AWHILE)).unwrap();
        done.complete();
        thread::sleep(MOMENT);
        assert!(!handle.is_done());
        engine.start().unwrap();
        handle.wait().unwrap();
    });
}

// ---------------------------------------------------------------------------------------------------------- waits ----

fn would_deadlock<T: std::fmt::Debug>(result: Result<T, WaitError>) -> bool {
    matches!(result, Err(WaitError::WouldDeadlock(_)))
}

#[test]
fn a_wait_for_units_that_only_waiting_operations_hold_would_deadlock() {
    on_kinds(&KINDS, 2, |engine| {
        let one = engine.resource(1);
        let (inside, resource) = (engine.clone(), one.clone());
        let outer = engine.op("outer").uses(&one, 1).submit((), move |()| {
            let inner = inside.op("inner").uses(&resource, 1).submit((), |()| 7).unwrap();
            (would_deadlock(inner.wait()), inside.op("next").uses(&resource, 1).submit((), |()| 8).unwrap())
        });
        let (is_refused, next) = outer.unwrap().wait().unwrap();
        assert!(is_refused, "the wait would never return");
        assert_eq!(next.wait().unwrap(), 8);
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn waits_that_together_hold_all_units_are_refused_one_by_one() {
    on_kinds(&THREADED, 4, |engine| {
        let two = engine.resource(2);
        let gate = Gate::new();
        let outer = || {
            let (inside, resource, gate) = (engine.clone(), two.clone(), gate.clone());
            let outer = engine.op("outer").uses(&two, 1).submit((), move |()| {
                gate.pass();
                let inner = inside.op("inner").uses(&resource, 1).submit((), |()| ()).unwrap();
                would_deadlock(inner.wait())
            });
            outer.unwrap()
        };
        let (one, other) = (outer(), outer());
        eventually("both run", || engine.dump().ops().iter().filter(|op| op.state == OpState::Running).count() == 2);
        gate.open();
        let refused = [one.wait().unwrap(), other.wait().unwrap()];
        assert_eq!(refused.into_iter().filter(|&is| is).count(), 1, "one of the two ends the deadlock");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_wait_is_not_refused_if_another_holder_can_end() {
    on_kinds(&THREADED, 4, |engine| {
        let (two, value) = (engine.resource(2), engine.var(0));
        let gate = hold(&engine, value.as_ref());
        let (inside, resource, awaited) = (engine.clone(), two.clone(), value.clone());
        let other = engine.op("other").uses(&two, 1).submit((), move |()| inside.get(&awaited).unwrap()).unwrap();
        let inside = engine.clone();
        let outer = engine
            .op("outer")
            .uses(&two, 1)
            .submit((), move |()| inside.op("inner").uses(&resource, 1).submit((), |()| 7).unwrap().wait().unwrap());
        let outer = outer.unwrap();
        thread::sleep(4 * MOMENT);
        assert!(!outer.is_done() && !other.is_done());
        gate.open();
        assert_eq!((outer.wait().unwrap(), other.wait().unwrap()), (7, 0));
    });
}

#[test]
fn a_scope_around_which_the_units_are_held_ends() {
    on_kinds(&KINDS, 2, |engine| {
        let one = engine.resource(1);
        let (inside, resource) = (engine.clone(), one.clone());
        let outer = engine.op("outer").uses(&one, 1).submit((), move |()| {
            let mut ran = 0;
            let ended = inside.scope(|scope| scope.op("inner").uses(&resource, 1).push((), |()| ran += 1));
            (ended.is_err(), ran)
        });
        assert_eq!(outer.unwrap().wait().unwrap(), (true, 0));
    });
}

#[test]
fn nothing_is_kept_while_a_holder_waits() {
    on_kinds(&THREADED, 2, |engine| {
        let two = engine.resource(2);
        let (inside, resource) = (engine.clone(), two.clone());
        let outer = engine.op("outer").uses(&two, 1).submit((), move |()| {
            let large = inside.op("large").priority(1).uses(&resource, 2).submit((), |()| ()).unwrap();
            let small = inside.op("small").uses(&resource, 1).submit((), |()| 7).unwrap();
            (small.wait().unwrap(), large)
        });
        let (small, large) = outer.unwrap().wait().unwrap();
        assert_eq!(small, 7);
        large.wait().unwrap();
    });
}

/// Inside an operation that has the unit of `held`, one waits that needs the unit of `free`. Before it comes another
/// that needs both.
#[test]
fn nothing_is_kept_for_who_lacks_what_a_waiting_holder_has() {
    on_kinds(&KINDS, 2, |engine| {
        let (held, free) = (engine.resource(1), engine.resource(1));
        let (inside, same, other) = (engine.clone(), held.clone(), free.clone());
        let outer = engine.op("outer").uses(&held, 1).submit((), move |()| {
            inside.op("both").priority(1).uses(&same, 1).uses(&other, 1).push((), |()| {}).unwrap();
            inside.op("inner").uses(&other, 1).submit((), |()| 7).unwrap().wait()
        });
        assert_eq!(outer.unwrap().wait().unwrap().unwrap(), 7);
        engine.wait_for_all().unwrap();
    });
}

/// An asynchronous operation ends while its function begins to wait.
#[test]
fn units_are_given_back_once_if_an_operation_ends_while_its_function_waits() {
    on_kinds(&THREADED, 2, |engine| {
        let one = engine.resource(1);
        for spins in 0..if cfg!(miri) { 5 } else { 2000 } {
            let value = engine.var(0);
            let guard = hold_outside(&engine, &value);
            let (inside, awaited, (send, receive)) = (engine.clone(), value.clone(), mpsc::channel());
            let pushed = engine.op("").uses(&one, 1).push(completion(), move |done| {
                send.send(done).unwrap();
                inside.wait_for_var(&awaited).unwrap();
            });
            pushed.unwrap();
            let done: Completion = receive.recv().unwrap();
            (0..spins % 200 * 20).for_each(|_| std::hint::spin_loop());
            done.complete();
            drop(guard);
        }
        engine.wait_for_all().unwrap();
        take(&engine, &one, 1).complete();
    });
}

/// Operations of a random tree use units of several resources and wait for those below them. Some of these waits are
/// refused, and everything ends.
#[test]
fn random_waits_of_those_that_hold_units_end() {
    for kind in THREADED {
        for seed in 0..if cfg!(miri) { 1 } else { 8 } {
            watched(move || {
                let engine = if seed % 2 == 0 { bounded(kind, 3, 2) } else { common::engine(kind, 3) };
                let resources = Arc::new([1, 2, 3].map(|units| engine.resource(units)));
                for at in 1..=8_u64 {
                    drop(level(&engine, &resources, (8 * seed + at).wrapping_mul(0x9E37_79B9_7F4A_7C15), 3));
                }
                // Operations may push others while it waits.
                engine.wait_for_all().unwrap();
                for resource in &*resources {
                    take(&engine, resource, resource.units()).complete();
                }
                engine.shutdown(Shutdown::Drain, None).unwrap();
            });
        }
    }

    fn level(engine: &Engine, resources: &Arc<[Resource; 3]>, seed: u64, depth: u32) -> OpHandle<()> {
        let bit = move |at: usize| seed >> at & 1 == 1;
        let mut op = engine.op("level").priority((seed >> 40) as i32 % 3);
        for (at, resource) in resources.iter().enumerate().filter(|(at, _)| bit(10 + at)) {
            op = op.uses(resource, 1 + (seed >> (20 + at)) as usize % resource.units());
        }
        let (inside, resources) = (engine.clone(), Arc::clone(resources));
        let handle = op.submit((), move |()| {
            let next = |at: u64| seed.wrapping_add(at).wrapping_mul(6_364_136_223_846_793_005);
            let below = |at| level(&inside, &resources, next(at), depth - 1);
            let below: Vec<_> = (1..=if depth > 0 { 2 } else { 0 }).map(below).collect();
            for (at, below) in below.into_iter().enumerate().filter(|&(at, _)| bit(50 + at)) {
                let ended = below.wait();
                assert!(ended.is_ok() || would_deadlock(ended), "{at}");
            }
        });
        handle.unwrap()
    }
}

// ------------------------------------------------------------------------------------------------------- children ----

#[test]
fn units_of_children_come_out_of_their_parents() {
    on_kinds(&THREADED, 4, |engine| {
        let (five, other) = (engine.resource(5), engine.resource(1));
        let account = Account::new(3);
        let (inner, resource, foreign) = (account.clone(), five.clone(), other.clone());
        let parent = engine.op("parent").uses(&five, 3).with_children().submit(cx(), move |cx| {
            for units in [1, 2, 3, 1, 1, 1, 2] {
                let account = inner.clone();
                let child = cx.child("child").uses(&resource, units).push((), move |()| {
                    account.take(units as u64);
                    thread::sleep(Duration::from_millis(1));
                    account.give_back(units as u64);
                });
                child.unwrap();
            }
            let resource = resource.clone();
            let inside = resource.clone();
            let nested = cx.child("nested").uses(&resource, 2).with_children().push(raddle::cx(), move |cx| {
                let too_many = cx.child("").uses(&inside, 3).push((), |()| {});
                assert_eq!(too_many, Err(PushError::Unfit(Misfit::TooManyUnits { needed: 3, units: 2 })));
                cx.child("").uses(&inside, 2).push((), |()| {}).unwrap();
            });
            nested.unwrap();
            cx.child("").uses(&foreign, 0).push((), |()| {}).unwrap();
            cx.child("").uses(&foreign, 1).push((), |()| {})
        });
        let parent = parent.unwrap();
        let done = take(&engine, &five, 2);
        assert_eq!(parent.wait().unwrap(), Err(PushError::Unfit(Misfit::UnitsNotHeld)));
        done.complete();
        engine.op("").uses(&five, 5).submit((), |()| ()).unwrap().wait().unwrap();
    });
}

/// Nothing is kept while a parent that holds units waits for its children: neither what a child waits for, nor the
/// child's place.
#[test]
fn nothing_is_kept_while_a_parent_waits_for_its_children() {
    on_kinds(&KINDS, 3, |engine| {
        let two = engine.resource(2);
        let (inside, same) = (engine.clone(), two.clone());
        let parent = engine.op("parent").uses(&two, 1).with_children().submit(cx(), move |cx| {
            let child = cx.child("child").push((), move |()| {
                inside.op("large").priority(1).uses(&same, 2).push((), |()| {}).unwrap();
                inside.op("small").uses(&same, 1).submit((), |()| ()).unwrap().wait().unwrap();
            });
            child.unwrap();
        });
        parent.unwrap().wait().unwrap();
        engine.wait_for_all().unwrap();
    });
    for kind in KINDS {
        watched(move || {
            let engine = bounded(kind, 3, 1);
            let one = engine.resource(1);
            let (inside, same) = (engine.clone(), one.clone());
            let parent = engine.op("parent").uses(&one, 1).with_children().submit(cx(), move |cx| {
                cx.child("child").push((), |()| {}).unwrap();
                inside.op("next").priority(1).uses(&same, 1).push((), |()| {}).unwrap();
            });
            parent.unwrap().wait().unwrap();
            engine.wait_for_all().unwrap();
        });
    }
}

// ----------------------------------------------------------------------------------------- bounds on running ones ----

/// Counts running functions, and the most at a time.
#[derive(Clone, Default)]
struct Running(Arc<(AtomicU64, AtomicU64)>);

impl Running {
    fn during<R>(&self, f: impl FnOnce() -> R) -> R {
        let Self(counts) = self;
        let running = counts.0.fetch_add(1, SeqCst) + 1;
        counts.1.fetch_max(running, SeqCst);
        let result = f();
        counts.0.fetch_sub(1, SeqCst);
        result
    }

    fn most(&self) -> u64 {
        self.0.1.load(SeqCst)
    }
}

/// Builds an engine of `kind` that runs `jobs` operations at a time.
fn bounded(kind: EngineKind, workers: usize, jobs: usize) -> Engine {
    Engine::builder().kind(kind).workers(workers).jobs(jobs).pin(false).build().unwrap()
}

#[test]
fn bounds_hold_for_functions_that_block() {
    for kind in THREADED {
        watched(move || {
            let engine = bounded(kind, 2, 3);
            let (running, in_group) = (Running::default(), Running::default());
            let (outer, inner) = (engine.group().jobs(2), Running::default());
            let nested = outer.group().jobs(1);
            let block = || raddle::blocking(|| thread::sleep(Duration::from_millis(2)));
            for at in 0..60 {
                let (running, in_group, inner) = (running.clone(), in_group.clone(), inner.clone());
                match at % 3 {
                    0 => engine.op("").push((), move |()| running.during(block)),
                    1 => outer.op("").push((), move |()| running.during(|| in_group.during(block))),
                    _ => nested.op("").push((), move |()| running.during(|| in_group.during(|| inner.during(block)))),
                }
                .unwrap();
            }
            engine.wait_for_all().unwrap();
            assert_eq!((running.most(), in_group.most(), inner.most()), (3, 2, 1), "{kind}");
        });
    }
}

/// Each operation waits for another one, some levels deep. With a bound of 1, this needs the places of those that wait.
#[test]
fn places_are_lent_during_waits() {
    fn descend(engine: &Engine, running: &Running, depth: usize) -> OpHandle<usize> {
        let (inside, counted) = (engine.clone(), running.clone());
        let handle = engine.op("level").submit((), move |()| {
            counted.during(|| ());
            if depth == 0 { 0 } else { 1 + descend(&inside, &counted, depth - 1).wait().unwrap() }
        });
        handle.unwrap()
    }
    for kind in KINDS {
        watched(move || {
            for jobs in [1, 2] {
                let engine = bounded(kind, 2, jobs);
                let running = Running::default();
                let handles: Vec<_> = (0..4).map(|_| descend(&engine, &running, 5)).collect();
                for handle in handles {
                    assert_eq!(handle.wait().unwrap(), 5, "{kind}");
                }
                assert!(running.most() <= jobs as u64, "{kind}: {}", running.most());
            }
        });
    }
}

/// A future that counts as running during its polls.
struct CountedPolls<F>(Running, Pin<Box<F>>);

impl<F: Future> Future for CountedPolls<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self(running, future) = &mut *self;
        running.during(|| future.as_mut().poll(cx))
    }
}

impl Running {
    fn polls<F: Future>(&self, future: F) -> CountedPolls<F> {
        CountedPolls(self.clone(), Box::pin(future))
    }
}

/// Each operation, every other one a future, awaits another one, some levels deep.
#[test]
fn futures_lend_their_places_while_they_sleep() {
    fn descend(engine: &Engine, group: &Group, running: &Running, depth: usize) -> OpHandle<usize> {
        let (inside, same, counted) = (engine.clone(), group.clone(), running.clone());
        let below = move || if depth == 0 { None } else { Some(descend(&inside, &same, &counted, depth - 1)) };
        let (op, counted) = (if depth % 3 == 0 { engine.op("level") } else { group.op("level") }, running.clone());
        let handle = if depth % 2 == 0 {
            op.submit_future((), move |()| {
                let future = async move {
                    match below() {
                        Some(below) => 1 + below.await.unwrap(),
                        None => 0,
                    }
                };
                counted.polls(future)
            })
        } else {
            op.submit((), move |()| counted.during(&below).map_or(0, |below| 1 + below.wait().unwrap()))
        };
        handle.unwrap()
    }
    for kind in KINDS {
        watched(move || {
            for jobs in [1, 2] {
                let engine = bounded(kind, 2, jobs);
                let (running, group) = (Running::default(), engine.group().jobs(1));
                let handles: Vec<_> = (0..4).map(|_| descend(&engine, &group, &running, 6)).collect();
                for handle in handles {
                    assert_eq!(handle.wait().unwrap(), 6, "{kind}");
                }
                // A push on a naive engine runs another operation in the middle of the one that has a place.
                assert!(kind == EngineKind::Naive || running.most() <= jobs as u64, "{kind}: {}", running.most());
            }
        });
    }
}

#[test]
fn bounds_hold_for_the_polls_of_futures() {
    for kind in THREADED {
        watched(move || {
            let engine = bounded(kind, 4, 3);
            let (group, running, in_group) = (engine.group().jobs(2), Running::default(), Running::default());
            let value = engine.var(0);
            let gate = hold_outside(&engine, &value);
            let arrived = Arc::new(AtomicU64::new(0));
            for at in 0..40 {
                let its_arrival = Arc::clone(&arrived);
                let (inside, awaited, work) = (engine.clone(), value.clone(), Duration::from_micros(200));
                let future = async move {
                    for _ in 0..3 {
                        raddle::blocking(|| thread::sleep(work));
                        common::yield_now().await;
                    }
                    its_arrival.fetch_add(1, SeqCst);
                    inside.get_async(&awaited).await.unwrap();
                    raddle::blocking(|| thread::sleep(work));
                };
                let (counted, its) = (running.polls(future), in_group.clone());
                if at % 2 == 0 {
                    engine.op("").push_future((), |()| counted).unwrap();
                } else {
                    group.op("").push_future((), move |()| its.polls(counted)).unwrap();
                }
                let running = running.clone();
                engine.op("").push((), move |()| running.during(|| thread::sleep(work))).unwrap();
            }
            eventually("all futures await the variable", || arrived.load(SeqCst) == 40);
            // All of them are woken at once.
            drop(gate);
            engine.wait_for_all().unwrap();
            assert_eq!((running.most(), in_group.most()), (3, 2), "{kind}");
        });
    }
}

/// A future that sleeps, or that was woken and waits for a place, is asked to stop while another operation has the only
/// place.
#[test]
fn cancelled_futures_wait_for_no_place() {
    for (kind, how, is_woken) in KINDS.iter().flat_map(|kind| (0..8).map(move |case| (*kind, case / 2, case % 2 == 0)))
    {
        watched(move || {
            let engine = bounded(kind, 2, 1);
            let (value, group, drops) = (engine.var(0), engine.group(), Drops::new());
            let gate = hold_outside(&engine, &value);
            let (inside, awaited, captured) = (engine.clone(), value.clone(), drops.make());
            let op = if how == 1 { group.op("sleeper") } else { engine.op("sleeper") };
            let op = if how == 2 { op.deadline(Instant::now() + 4 * MOMENT) } else { op };
            let sleeper = op.submit_future((), move |()| async move {
                captured.touch();
                inside.get_async(&awaited).await.unwrap();
                unreachable!("the future was cancelled");
            });
            let sleeper = sleeper.unwrap();
            let (send, receive) = mpsc::channel::<Completion>();
            engine.op("holder").push(completion(), move |done| send.send(done).unwrap()).unwrap();
            let done = receive.recv_timeout(AWHILE).expect("the sleeper has given its place back");
            let gate = if is_woken {
                drop(gate);
                None
            } else {
                Some(gate)
            };
            if is_woken && how != 2 {
                thread::sleep(MOMENT);
                assert!(!sleeper.is_done());
            }
            match how {
                0 => assert!(!sleeper.cancel(), "the future has started"),
                1 => group.cancel(),
                2 => {}
                _ => drop(engine.shutdown(Shutdown::Cancel, Some(MOMENT))),
            }
            let failure = failure(sleeper.wait());
            let expected = if how == 2 { Cause::DeadlinePassed } else { Cause::Cancelled };
            assert_eq!(failure.cause().to_string(), expected.to_string());
            drops.assert_all_gone();
            done.complete();
            drop(gate);
            engine.shutdown(Shutdown::Drain, None).unwrap();
        });
    }
}

#[test]
fn guards_that_outlive_their_future_keep_no_place() {
    for kind in KINDS {
        watched(move || {
            let engine = bounded(kind, 2, 1);
            let value = engine.var(0);
            let (give, given) = mpsc::channel();
            let keeper =
                engine.op("keeper").submit_future(value.write(), |guard| async move { give.send(guard).unwrap() });
            let keeper = keeper.unwrap();
            let user = engine.op("user").submit((), move |()| {
                let mut guard = given.recv().unwrap();
                *guard += 1;
            });
            user.unwrap().wait().unwrap();
            keeper.wait().unwrap();
            assert_eq!(engine.get(&value).unwrap(), 1);
        });
    }
}

/// A future that holds a unit awaits an operation that needs one, after another was pushed that needs both.
#[test]
fn nothing_is_kept_while_a_future_sleeps() {
    on_kinds(&KINDS, 2, |engine| {
        let two = engine.resource(2);
        let (inside, same) = (engine.clone(), two.clone());
        let outer = engine.op("outer").uses(&two, 1).submit_future((), move |()| async move {
            let large = inside.op("large").priority(1).uses(&same, 2).submit((), |()| ()).unwrap();
            (inside.op("small").uses(&same, 1).submit((), |()| 7).unwrap().await.unwrap(), large)
        });
        let (small, large) = outer.unwrap().wait().unwrap();
        assert_eq!(small, 7);
        large.wait().unwrap();
    });
}

/// Functions and futures of random trees wait for those below them and cancel some of them, under bounds of the engine
/// and of a group.
#[test]
fn random_trees_of_functions_and_futures_end_under_bounds() {
    #[derive(Clone)]
    struct Tree(Engine, Group, Running, Drops);

    impl Tree {
        fn grow(&self, seed: u64, depth: u64) -> OpHandle<()> {
            let random = move |at: u64, below: u64| (seed.rotate_left(at as u32 * 7).wrapping_mul(ODD) >> 33) % below;
            let Self(engine, group, running, drops) = self;
            let op = if random(0, 2) == 0 { engine.op("level") } else { group.op("level") };
            let op = op.priority(random(1, 3) as i32);
            let (tree, captured, counted) = (self.clone(), drops.make(), running.clone());
            let below = move || {
                captured.touch();
                let grow = |at| tree.grow(seed.wrapping_add(at).wrapping_mul(ODD), depth - 1);
                let below: Vec<_> = (1..=if depth > 0 { random(2, 4) } else { 0 }).map(grow).collect();
                let cancelled = below.iter().enumerate().filter(|&(at, _)| random(at as u64 + 3, 6) == 0);
                cancelled.for_each(|(_, below)| _ = below.cancel());
                below
            };
            let handle = if random(7, 3) == 0 {
                op.submit((), move |()| counted.during(below).into_iter().for_each(|below| drop(below.wait())))
            } else {
                op.submit_future((), move |()| {
                    counted.polls(async move {
                        for below in below() {
                            common::yield_now().await;
                            drop(below.await);
                        }
                    })
                })
            };
            handle.unwrap()
        }
    }

    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    for kind in KINDS {
        for seed in 0..if cfg!(miri) { 1 } else { 12 } {
            watched(move || {
                let jobs = 1 + seed % 3;
                let engine = bounded(kind, 3, jobs as usize);
                let tree = Tree(engine.clone(), engine.group().jobs(1), Running::default(), Drops::new());
                for at in 1..=6_u64 {
                    drop(tree.grow((6 * seed + at).wrapping_mul(ODD), 3));
                }
                let _ = engine.wait_for_all();
                let Tree(_, _, running, drops) = tree;
                drops.assert_all_gone();
                assert!(kind == EngineKind::Naive || running.most() <= jobs, "{kind}: {} of {jobs}", running.most());
                engine.shutdown(Shutdown::Drain, None).unwrap();
            });
        }
    }
}

/// What begins with a place that is lent may need one that an operation around the same wait lends.
#[test]
fn all_operations_around_a_wait_lend_their_places() {
    on_kinds(&KINDS, 4, |engine| {
        let [outer, inner] = [engine.group().jobs(1), engine.group().jobs(1)];
        let (around, inside) = (outer.clone(), inner.clone());
        let last = move || around.op("last").submit((), |()| 7).unwrap().wait().unwrap();
        let middle = move || {
            let next = inside.op("next").submit((), move |()| last()).unwrap();
            next.wait().unwrap()
        };
        let first =
            outer.op("first").submit((), move |()| inner.op("middle").submit((), |()| middle()).unwrap().wait());
        assert_eq!(first.unwrap().wait().unwrap().unwrap(), 7);
    });
}

#[test]
fn a_function_goes_on_once_there_is_a_place() {
    for kind in THREADED {
        watched(move || {
            let engine = bounded(kind, 4, 1);
            let value = engine.var(0);
            let gate = hold_outside(&engine, &value);
            let (running, inside, awaited) = (Running::default(), engine.clone(), value.clone());
            let counted = running.clone();
            let waiter = engine.op("waiter").submit((), move |()| {
                inside.wait_for_var(&awaited).unwrap();
                counted.during(|| thread::sleep(Duration::from_millis(5)));
            });
            let waiter = waiter.unwrap();
            for _ in 0..10 {
                let running = running.clone();
                engine
                    .op("other")
                    .push((), move |()| running.during(|| thread::sleep(Duration::from_millis(5))))
                    .unwrap();
            }
            drop(gate);
            waiter.wait().unwrap();
            engine.wait_for_all().unwrap();
            assert_eq!(running.most(), 1, "{kind}");
        });
    }
}

/// Holds a variable from outside until the guard is dropped.
fn hold_outside<T: Send + Sync + 'static>(engine: &Engine, value: &raddle::Var<T>) -> raddle::WriteGuard<T> {
    common::block_on(engine.acquire(value.write())).unwrap()
}

/// The only place is held by an operation that ends when the function goes on.
#[test]
fn a_function_goes_on_without_a_place_after_a_while() {
    for kind in THREADED {
        watched(move || {
            let engine = bounded(kind, 2, 1);
            let value = engine.var(0);
            let guard = hold_outside(&engine, &value);
            let (inside, awaited) = (engine.clone(), value.clone());
            let (send, receive) = mpsc::channel::<Completion>();
            let waiter = engine.op("waiter").submit((), move |()| {
                inside.op("holder").push(completion(), move |done| send.send(done).unwrap()).unwrap();
                inside.wait_for_var(&awaited).unwrap();
                receive.recv().unwrap().complete();
            });
            let waiter = waiter.unwrap();
            eventually("the holder has started", || {
                engine.dump().ops().iter().any(|op| op.name.as_str() == "holder" && op.state == OpState::Running)
            });
            drop(guard);
            waiter.wait().unwrap();
            engine.wait_for_all().unwrap();
        });
    }
}

#[test]
fn a_wait_with_a_time_limit_is_not_prolonged_by_a_bound() {
    for kind in KINDS {
        watched(move || {
            let engine = bounded(kind, 2, 1);
            let value = engine.var(0);
            let guard = hold_outside(&engine, &value);
            let (inside, awaited, (send, receive)) = (engine.clone(), value.clone(), mpsc::channel::<Completion>());
            let waiter = engine.op("waiter").submit((), move |()| {
                inside.op("holder").push(completion(), move |done| send.send(done).unwrap()).unwrap();
                let begun = Instant::now();
                inside.wait_for_var_timeout(&awaited, Duration::from_millis(5)).unwrap_err();
                let took = begun.elapsed();
                receive.recv().unwrap().complete();
                took
            });
            let took = waiter.unwrap().wait().unwrap();
            drop(guard);
            assert!(took < Duration::from_millis(90), "{kind}: {took:?}");
        });
    }
}

#[test]
fn children_run_in_the_places_of_their_group() {
    for kind in KINDS {
        watched(move || {
            let engine = common::engine(kind, 4);
            let group = engine.group().jobs(2);
            let running = Running::default();
            for asynchronous in [false, true] {
                let counted = running.clone();
                let children = move |cx: &raddle::OpContext<'_>| {
                    for _ in 0..10 {
                        let running = counted.clone();
                        let child =
                            cx.child("").push((), move |()| running.during(|| thread::sleep(Duration::from_millis(1))));
                        child.unwrap();
                    }
                };
                let parent = group.op("parent").with_children();
                if asynchronous {
                    let pushed = parent.push((cx(), completion()), move |(cx, done)| {
                        children(cx);
                        cx.child("last").push((), move |()| done.complete()).unwrap();
                    });
                    pushed.unwrap();
                } else {
                    parent.push(cx(), move |cx| children(cx)).unwrap();
                }
            }
            group.wait().unwrap();
            assert!(running.most() <= 2, "{kind}: {}", running.most());
        });
    }
}

#[test]
fn every_kind_of_operation_takes_a_place_of_a_bounded_engine() {
    for kind in KINDS {
        watched(move || {
            let engine = bounded(kind, 2, 1);
            let value = engine.var(0);
            let add = engine.op("").operator(value.write(), |value| *value += 1).unwrap();
            for _ in 0..20 {
                engine.op("").push(value.write(), |value| *value += 1).unwrap();
                engine.op("").eager().push(value.write(), |value| *value += 1).unwrap();
                engine.op("").cleanup().push(value.write(), |value| *value += 1).unwrap();
                engine.op("").push_future(value.write(), |mut value| async move { *value += 1 }).unwrap();
                add.push().unwrap();
                drop(add.submit().unwrap());
                let done = engine.op("").push((value.write(), completion()), |(value, done)| {
                    *value += 1;
                    done.complete();
                });
                done.unwrap();
            }
            assert_eq!(engine.get(&value).unwrap(), 140, "{kind}");
            engine.set(&value, 1).unwrap();
            drop(hold_outside(&engine, &value));
            engine.delete_variable(&value, |_| ()).unwrap();
            engine.wait_for_all().unwrap();
        });
    }
}

// --------------------------------------------------------------------------------------------- mixtures and dumps ----

/// A random mixture of operations of several kinds that use several resources, some of which fail or are cancelled:
/// never are more units used than there are, every operation ends, and all units come back.
#[test]
fn random_mixtures_use_no_more_units_than_there_are_and_end() {
    for kind in KINDS {
        for seed in 1..=if cfg!(miri) { 1 } else { 20 } {
            watched(move || mixture(kind, seed));
        }
    }
}

/// Units in accounts, until it is dropped.
struct Held(Vec<(Account, u64)>);

impl Held {
    fn take(units: Vec<(Account, u64)>) -> Self {
        units.iter().for_each(|(account, units)| account.take(*units));
        Self(units)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.iter().for_each(|(account, units)| account.give_back(*units));
    }
}

fn mixture(kind: EngineKind, seed: u64) {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let engine = if seed % 4 == 0 { bounded(kind, 3, 2) } else { common::engine(kind, 3) };
    let totals = [1, 3, 10];
    let resources = totals.map(|units| engine.resource(units as usize));
    let accounts = totals.map(Account::new);
    let variables: Vec<_> = (0..4).map(|_| engine.var(0u64)).collect();
    let groups = [engine.group(), engine.group().jobs(2)];
    let drops = Drops::new();
    let (later, done_later) = mpsc::channel::<(Completion, Held)>();
    let completer = thread::spawn(move || {
        for (done, held) in done_later {
            drop(held);
            done.complete();
        }
    });
    let mut handles = Vec::new();
    for _ in 0..150 {
        let mut uses: Vec<(usize, u64)> = (0..3).map(|at| (at, random(totals[at] + 1))).collect();
        uses.retain(|_| random(2) == 0);
        let held: Vec<_> = uses.iter().map(|&(at, units)| (accounts[at].clone(), units)).collect();
        let value = &variables[random(4) as usize];
        let mut op = match random(3) {
            0 => groups[random(2) as usize].op("grouped"),
            _ => engine.op("single"),
        };
        for &(at, units) in &uses {
            op = op.uses(&resources[at], units as usize);
        }
        op = op.priority(random(3) as i32);
        if random(2) == 0 {
            op = op.run_always();
        }
        let captured = drops.make();
        let take = move || {
            captured.touch();
            Held::take(held)
        };
        match random(5) {
            0 => {
                let later = later.clone();
                let pushed = op.push((value.write(), completion()), move |(value, done)| {
                    *value += 1;
                    later.send((done, take())).unwrap();
                });
                pushed.unwrap();
            }
            1 => {
                let pushed = op.push_future(value.write(), move |mut value| async move {
                    let _held = take();
                    common::yield_now().await;
                    *value += 1;
                });
                pushed.unwrap();
            }
            2 => {
                let fails = random(3) == 0;
                let pushed = op.try_push(value.write(), move |value| {
                    drop(take());
                    *value += 1;
                    if fails { Err("as planned".into()) } else { Ok(()) }
                });
                pushed.unwrap();
            }
            _ => handles.push(op.submit(value.read(), move |_| drop(take())).unwrap()),
        }
        if random(4) == 0 {
            if let Some(handle) = handles.pop() {
                _ = if random(2) == 0 { handle.cancel() } else { handle.cancel_quietly() };
            }
        }
        if random(100) == 0 {
            groups[0].cancel();
        }
    }
    let _ = engine.wait_for_all();
    for (resource, units) in resources.iter().zip(totals) {
        engine.op("last").uses(resource, units as usize).submit((), |()| ()).unwrap().wait().unwrap();
    }
    assert!(accounts.iter().all(|account| account.held() == 0));
    handles.clear();
    drop(later);
    completer.join().unwrap();
    drop(engine);
    drops.assert_all_gone();
}

#[test]
fn dumps_show_what_waits_for_units() {
    on_kinds(&KINDS, 1, |engine| {
        let (links, plain) = (engine.resource(2).named("links"), engine.resource(5));
        let done = take(&engine, &links, 2);
        let waiting = engine.op("link").uses(&links, 1).uses(&plain, 5).submit((), |()| ()).unwrap();
        let dump = engine.dump();
        let find = |name| dump.ops().iter().position(|op| op.name.as_str() == name).unwrap();
        let (link, holder) = (&dump.ops()[find("link")], find("holder"));
        assert_eq!((link.state, &link.waits_for), (OpState::WaitingForUnits, &vec![holder]));
        let mut units: Vec<_> = link.units.iter().map(|units| (&*units.resource, units.units, units.waits)).collect();
        units.sort_unstable();
        assert_eq!(units, [("", 5, true), ("links", 1, true)]);
        assert!(!dump.ops()[holder].units[0].waits);
        let text = dump.to_string();
        assert!(text.contains("waits for 1 unit of `links`") && text.contains("holds 2 units of `links`"), "{text}");
        assert!(dump.to_json().contains(r#"{"resource":"links","units":1,"waits":true}"#));
        done.complete();
        waiting.wait().unwrap();
    });
}

#[test]
fn device_operations_hold_units_until_the_device_has_done_their_work() {
    for kind in THREADED {
        watched(move || {
            let gpu = SimulatedGpu::builder()
                .launch_latency(Duration::ZERO)
                .kernel_time(Duration::from_millis(1))
                .clock(Clock::Manual)
                .build();
            let engine = Engine::builder().kind(kind).workers(2).pin(false).gpu(gpu.clone()).build().unwrap();
            let one = engine.resource(1);
            let launch = || {
                let launch = engine.op("kernel").on(Device::Gpu(0)).uses(&one, 1).submit(stream(), |stream| {
                    stream.simulated().unwrap().launch(Duration::ZERO, (), |()| {}).unwrap();
                });
                launch.unwrap()
            };
            let (first, second) = (launch(), launch());
            let after = engine.op("").uses(&one, 1).submit((), |()| ()).unwrap();
            eventually("a kernel is issued", || gpu.counts().launches == 1);
            thread::sleep(MOMENT);
            assert_eq!(gpu.counts().launches, 1, "both kernels hold the only unit");
            gpu.advance(Duration::from_millis(1));
            first.wait().unwrap();
            eventually("the other kernel is issued", || gpu.counts().launches == 2);
            assert!(!after.is_done());
            gpu.advance(Duration::from_millis(1));
            second.wait().unwrap();
            after.wait().unwrap();
        });
    }
}
