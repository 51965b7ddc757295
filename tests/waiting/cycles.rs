//! Cycles of waits that involve groups, the ends of scopes or several engines: one of the waits is refused.

#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::{
    fmt::Debug,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use common::{
    Gate, Journal, KINDS, MOMENT, Meeting, PATIENCE, THREADED, at_the_first_deferred_push, engine, eventually, hold,
    lock,
    logger::log_to,
    on_kinds,
    program::{Random, Source, fewer},
    watched,
};
use raddle::{
    Engine, EngineKind, Group, OpHandle, Var, WaitError, WeakEngine, completion,
    trace::{OpState, PendingOp},
};

/// The time within which a wait that would never return must be refused.
const FOUND: Duration = Duration::from_secs(if cfg!(raddle_tsan) { 20 } else { 5 });

/// Returns the names of the waiting and the awaited operation, taken from a refused wait's error.
#[track_caller]
fn deadlock<T: Debug>(result: Result<T, WaitError>) -> (String, String) {
    match result {
        Err(WaitError::WouldDeadlock(deadlock)) => {
            let text = deadlock.to_string();
            assert_eq!(text.matches("tests/waiting/cycles.rs").count(), 2, "{text}");
            (deadlock.waiting().unwrap().to_owned(), deadlock.awaited().unwrap().to_owned())
        }
        other => panic!("{other:?}"),
    }
}

fn names(waiting: &str, awaited: &str) -> (String, String) {
    (waiting.to_owned(), awaited.to_owned())
}

// ------------------------------------------------------------------------------------------------------- groups ----

#[test]
fn a_wait_for_a_group_with_a_member_behind_the_waiting_operation_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        for length in [1, 2, 50] {
            let variables: Vec<_> = (0..=length).map(|_| engine.var(0)).collect();
            let (group, inner, inside) = (engine.group(), engine.downgrade(), variables.clone());
            let outer = engine.op("outer").submit(variables[0].write(), move |_| {
                for pair in inside[..length].windows(2) {
                    inner.op("link").push((pair[0].read(), pair[1].write()), |_| ()).unwrap();
                }
                group.op("beside").push((), |()| ()).unwrap();
                group.op("member").push((inside[length - 1].read(), inside[length].write()), |_| ()).unwrap();
                let start = Instant::now();
                let refused = group.wait();
                let in_time = group.wait_timeout(PATIENCE);
                (refused, in_time, start.elapsed())
            });
            let (refused, in_time, took) = outer.unwrap().wait().unwrap();
            assert_eq!(deadlock(refused), names("outer", "member"));
            assert_eq!(deadlock(in_time), names("outer", "member"));
            assert!(took < FOUND, "{took:?}");
        }
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_wait_for_a_group_is_refused_because_of_members_of_groups_inside_it() {
    on_kinds(&KINDS, 2, |engine| {
        // The greatest depths need more groups than a record has room for.
        for depth in [1, 4, 5, 20] {
            let (value, outermost) = (engine.var(0), engine.group());
            let inner: Vec<_> =
                std::iter::successors(Some(outermost.group()), |group| Some(group.group())).take(depth).collect();
            let again = value.clone();
            let outer = engine.op("outer").submit(value.write(), move |_| {
                inner[depth - 1].op("member").push(again.read(), |_| ()).unwrap();
                let results: Vec<_> = inner.iter().chain([&outermost]).map(Group::wait).collect();
                results
            });
            for refused in outer.unwrap().wait().unwrap() {
                assert_eq!(deadlock(refused), names("outer", "member"));
            }
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn a_wait_of_a_member_for_its_own_group_is_refused_and_names_the_member() {
    on_kinds(&KINDS, 1, |engine| {
        let group = engine.group();
        let outer = group.group();
        let own = outer.clone();
        // A wait without time to search for a cycle is refused as well.
        let waits = move |()| [own.wait_timeout(Duration::ZERO), own.wait(), group.wait()];
        for refused in outer.op("member").submit((), waits).unwrap().wait().unwrap() {
            assert_eq!(deadlock(refused), names("member", "member"));
        }
    });
}

#[test]
fn a_wait_for_a_group_is_not_refused_because_of_members_that_it_does_not_cover() {
    on_kinds(&THREADED, 2, |engine| {
        let (value, group, inner) = (engine.var(0), engine.group(), engine.downgrade());
        let again = value.clone();
        let outer = engine.op("outer").submit(value.write(), move |_| {
            group.op("slow").push((), |()| thread::sleep(Duration::from_millis(250))).unwrap();
            let (beside, blocked) = (group.clone(), again.clone());
            inner
                .op("pushes")
                .push((), move |()| {
                    thread::sleep(Duration::from_millis(20));
                    // This member is queued behind the waiting operation but was pushed after the wait began.
                    beside.op("later").push(blocked.read(), |_| ()).unwrap();
                })
                .unwrap();
            group.wait()
        });
        outer.unwrap().wait().unwrap().expect("the wait ends before the later member");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_wait_for_a_group_whose_members_can_start_is_not_refused() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, group) = (engine.var(0), engine.group());
        let again = value.clone();
        for _ in 0..20 {
            group.op("before").push(value.write(), |value| *value += 1).unwrap();
        }
        let (waited, other) = (group.clone(), engine.var(0));
        let outer = engine.op("outer").submit(value.read(), move |_| {
            waited.op("slow").push(other.write(), |_| thread::sleep(Duration::from_millis(150))).unwrap();
            waited.op("reader").push(again.read(), |_| ()).unwrap();
            waited.wait()
        });
        outer.unwrap().wait().unwrap().unwrap();
    });
}

/// `waiter` waits for the group of `member`, and `member` waits for an operation queued behind `waiter`.
#[test]
fn a_cycle_through_a_member_that_runs_is_found_and_the_youngest_wait_is_refused() {
    on_kinds(&THREADED, 2, |engine| {
        for member_first in [false, true] {
            let (value, group, inner) = (engine.var(0), engine.group(), engine.downgrade());
            let meeting = Meeting::new(2);
            let pauses = |own_first: bool| Duration::from_millis(if own_first { 0 } else { 40 });
            let (again, there) = (value.clone(), meeting.clone());
            let member = group.op("member").submit((), move |()| {
                there.join();
                thread::sleep(pauses(member_first));
                inner.op("behind").submit(again.read(), |_| ()).unwrap().wait()
            });
            let waiter = engine.op("waiter").submit(value.write(), move |_| {
                meeting.join();
                thread::sleep(pauses(!member_first));
                group.wait()
            });
            let (member, waiter) = (member.unwrap().wait().unwrap(), waiter.unwrap().wait().unwrap());
            if member_first {
                assert_eq!(deadlock(waiter), names("waiter", "member"));
                member.unwrap();
            } else {
                assert_eq!(deadlock(member), names("member", "behind"));
                waiter.unwrap();
            }
            engine.wait_for_all().unwrap();
        }
    });
}

/// A value whose drop pushes an operation that reads `value`, and waits for that operation.
struct WaitsOnDrop {
    meeting: Meeting,
    engine: WeakEngine,
    value: Var<i32>,
    result: mpsc::Sender<Result<i32, WaitError>>,
}

impl Drop for WaitsOnDrop {
    fn drop(&mut self) {
        self.meeting.join();
        thread::sleep(MOMENT);
        let behind = self.engine.op("behind").submit(self.value.read(), |value| *value).unwrap();
        self.result.send(behind.wait()).unwrap();
    }
}

/// The member is complete, but the drop of its result waits. The same happens to an operation without a group.
#[test]
fn a_cycle_through_the_epilogue_of_a_member_is_found() {
    on_kinds(&THREADED, 2, |engine| {
        for (is_member, of_all) in [(true, false), (true, true), (false, true)] {
            // Inside an operation, a wait for all operations is allowed only on another engine.
            let other = common::engine(engine.kind(), 2);
            let (value, group, signal, meeting) = (engine.var(0), other.group(), other.token(), Meeting::new(2));
            let (sender, dropped) = mpsc::channel();
            let unused = WaitsOnDrop {
                meeting: meeting.clone(),
                engine: engine.downgrade(),
                value: value.clone(),
                result: sender,
            };
            let gate = hold(&other, &signal);
            let op = if is_member { group.op("complete") } else { other.op("complete") };
            drop(op.reads([&signal]).submit((), move |()| unused).unwrap());
            let waiter = engine.op("waiter").submit(value.write(), move |_| {
                meeting.join();
                if of_all { other.wait_for_all() } else { group.wait() }
            });
            gate.open();
            let refused = dropped.recv_timeout(PATIENCE).unwrap();
            assert_eq!(deadlock(refused), names("complete", "behind"));
            waiter.unwrap().wait().unwrap().unwrap();
        }
    });
}

/// When a future waits for a group, its waker is called after the member has left the group.
#[test]
fn a_waker_of_a_group_may_wait_for_an_operation_that_waits_for_the_group() {
    type Wait = (OpHandle<()>, mpsc::Sender<Result<(), WaitError>>);
    struct Waits(Mutex<Option<Wait>>);
    impl Wake for Waits {
        fn wake(self: Arc<Self>) {
            if let Some((handle, result)) = lock(&self.0).take() {
                result.send(handle.wait()).unwrap();
            }
        }
    }
    on_kinds(&THREADED, 2, |engine| {
        let (group, signal, later) = (engine.group(), engine.token(), engine.token());
        let (first, second) = (hold(&engine, &signal), hold(&engine, &later));
        group.op("member").reads([&signal]).push((), |()| ()).unwrap();
        let (sender, result) = mpsc::channel();
        let mut woken = pin!(group.wait_async());
        let slow = group.clone();
        slow.op("slow").reads([&later]).push((), |()| ()).unwrap();
        let waiter = engine.op("waiter").submit((), move |()| slow.wait().unwrap()).unwrap();
        let waker = Waker::from(Arc::new(Waits(Mutex::new(Some((waiter, sender))))));
        assert!(woken.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        thread::sleep(MOMENT);
        first.open();
        thread::sleep(4 * MOMENT);
        second.open();
        result.recv_timeout(PATIENCE).unwrap().unwrap();
    });
}

#[test]
fn a_function_may_wait_for_its_group_after_its_operation_is_complete() {
    on_kinds(&THREADED, 2, |engine| {
        let (group, (sender, result)) = (engine.group(), mpsc::channel());
        let own = group.clone();
        group
            .op("member")
            .push(completion(), move |done| {
                done.complete();
                sender.send(own.wait()).unwrap();
            })
            .unwrap();
        result.recv_timeout(PATIENCE).unwrap().unwrap();
    });
}

// ------------------------------------------------------------------------------------------------------ children ----

/// A child enters its queues only after the function of its parent returns. Here, the parent's function waits for the
/// operation that waits for the child.
#[test]
fn a_cycle_through_a_child_that_is_held_back_is_found() {
    on_kinds(&THREADED, 2, |engine| {
        let ((to_waiter, child), (to_parent, waiter)) = (mpsc::channel(), mpsc::channel::<OpHandle<_>>());
        let parent = engine.op("parent").with_children().submit(raddle::cx(), move |cx| {
            to_waiter.send(cx.child("child").submit((), |()| ()).unwrap()).unwrap();
            let waiter = raddle::blocking(|| waiter.recv()).unwrap();
            thread::sleep(MOMENT);
            waiter.wait()
        });
        let waits = engine.op("waiter").submit((), move |()| {
            let child: OpHandle<()> = raddle::blocking(|| child.recv()).unwrap();
            child.wait()
        });
        to_parent.send(waits.unwrap()).unwrap();
        let refused = parent.unwrap().wait().unwrap();
        assert_eq!(deadlock(refused), names("parent", "waiter"));
        engine.wait_for_all().unwrap();
    });
}

// -------------------------------------------------------------------------------------------------------- scopes ----

/// The wait at the end of a scope must not return early, so the other operation's wait is refused even if it began
/// first.
#[test]
fn a_cycle_through_the_end_of_a_scope_ends_because_the_other_wait_is_refused() {
    on_kinds(&THREADED, 2, |engine| {
        for older in [true, false] {
            let (value, meeting) = (engine.var(0), Meeting::new(2));
            let (inner, again, there) = (engine.downgrade(), value.clone(), meeting.clone());
            let scoped = engine.op("scoped").submit((), move |()| {
                let mut sum = 0;
                let result = inner.scope(|s| {
                    let sum = s.lend(&mut sum);
                    there.join();
                    thread::sleep(if older { 2 * MOMENT } else { Duration::ZERO });
                    s.op("inside").push((again.read(), sum.write()), |(value, sum)| *sum += *value)
                });
                result.unwrap().unwrap();
                sum
            });
            let scoped = Arc::new(Mutex::new(Some(scoped.unwrap())));
            let inside = Arc::clone(&scoped);
            let waiter = engine.op("waiter").submit(value.write(), move |value| {
                meeting.join();
                thread::sleep(if older { Duration::ZERO } else { 2 * MOMENT });
                *value = 7;
                let scoped = lock(&inside).take().unwrap();
                scoped.wait()
            });
            assert_eq!(deadlock(waiter.unwrap().wait().unwrap()), names("waiter", "scoped"));
            engine.wait_for_all().unwrap();
        }
    });
}

/// Increments the borrowed number when dropped.
struct Borrows<'b>(&'b Mutex<usize>);

impl Drop for Borrows<'_> {
    fn drop(&mut self) {
        *lock(self.0) += 1;
    }
}

/// The scope's operations are queued behind the operation that opened the scope, with a third operation in between.
#[test]
fn a_scope_whose_operations_stand_behind_its_opener_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        for (count, cancelled) in [(1, false), (1, true), (500, false)] {
            let (value, between, inner) = (engine.var(0), engine.var(0), engine.downgrade());
            let (again, linked) = (value.clone(), between.clone());
            let outer = engine.op("outer").submit(value.write(), move |_| {
                let dropped = Mutex::new(0);
                inner.op("link").push((again.read(), linked.write()), |(_, linked)| *linked = 7).unwrap();
                let start = Instant::now();
                let refused = inner.scope(|s| {
                    let own = s.var(Borrows(&dropped));
                    for _ in 0..count {
                        let captured = Borrows(&dropped);
                        let handle = s.op("inside").submit((linked.write(), own.write()), move |(linked, _)| {
                            let _captured = &captured;
                            *linked = 0;
                        });
                        assert!(!cancelled || handle.unwrap().cancel());
                    }
                    s.op("beside").push((), |()| thread::sleep(MOMENT)).unwrap();
                });
                let dropped = *lock(&dropped);
                (refused, dropped, start.elapsed())
            });
            let (refused, dropped, took) = outer.unwrap().wait().unwrap();
            assert_eq!((deadlock(refused), dropped), (names("outer", "inside"), count + 1));
            assert!(took < FOUND, "{took:?}");
            // The operations of the refused scope were cancelled, and fail when their turn comes.
            assert_eq!(common::failure(engine.get(&between)).name(), "inside");
            engine.clear_error(&between).unwrap();
            assert_eq!(engine.get(&between).unwrap(), 7);
            while engine.wait_for_all().is_err() {}
        }
    });
}

/// One of the scope's operations stands behind the scope's opener; the other stands behind an operation that waits for
/// another one behind the opener. That wait is refused, so the second operation of the scope can start.
#[test]
fn a_refused_scope_cancels_nothing_that_can_start_once_another_wait_is_refused() {
    on_kinds(&THREADED, 3, |engine| {
        let (value, linked, other, inner) = (engine.var(0), engine.var(0), engine.var(0), engine.downgrade());
        let again = value.clone();
        let outer = engine.op("outer").submit(value.write(), move |_| {
            inner.op("link").push((again.read(), linked.write()), |_| ()).unwrap();
            let behind = inner.op("behind").submit(again.read(), |_| ()).unwrap();
            let waiter = inner.op("waiter").submit(other.write(), move |_| behind.wait()).unwrap();
            let waits = |op: &PendingOp| op.label() == "waiter" && op.state == OpState::WaitingInside;
            eventually("the other wait has begun", || inner.dump().ops().iter().any(waits));
            let mut ran = false;
            let refused = inner.scope(|s| {
                let ran = s.lend(&mut ran);
                s.op("inside").push(linked.write(), |_| ()).unwrap();
                s.op("beside").push((other.read(), ran.write()), |(_, ran)| *ran = true).unwrap();
            });
            (refused, waiter.wait().unwrap(), ran)
        });
        let (refused, waited, ran) = outer.unwrap().wait().unwrap();
        assert_eq!(deadlock(refused), names("outer", "inside"));
        assert_eq!(deadlock(waited), names("waiter", "behind"));
        assert!(ran, "an operation of the scope was cancelled although it could start");
        while engine.wait_for_all().is_err() {}
    });
}

/// What has failed by itself says more than that the scope could not end.
#[test]
fn a_refused_scope_returns_the_first_failure_of_its_operations() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, between, inner) = (engine.var(0), engine.var(0), engine.downgrade());
        let (again, linked) = (value.clone(), between.clone());
        let outer = engine.op("outer").submit(value.write(), move |_| {
            inner.op("link").push((again.read(), linked.write()), |(_, linked)| *linked = 7).unwrap();
            inner.scope(|s| {
                s.op("inside").push(linked.write(), |linked| *linked = 0).unwrap();
                for name in ["first", "second"] {
                    s.op(name).try_push((), |()| Err("on purpose".into())).unwrap();
                }
            })
        });
        let failed = common::failure(outer.unwrap().wait().unwrap());
        assert_eq!(failed.name(), "first");
        // The operation that could not start was cancelled.
        assert_eq!(common::failure(engine.get(&between)).name(), "inside");
        engine.clear_error(&between).unwrap();
        assert_eq!(engine.get(&between).unwrap(), 7);
        engine.wait_for_all().expect("the scope and the variable have returned the failures");
    });
}

/// The refused scope counts its operation out. When the operation's turn comes, it is not counted out again.
#[test]
fn an_operation_of_a_refused_scope_leaves_the_group_of_the_scope_once() {
    on_kinds(&KINDS, 2, |engine| {
        let (value, between, inner) = (engine.var(0), engine.var(0), engine.downgrade());
        let (again, linked) = (value.clone(), between.clone());
        let outer = engine.op("outer").submit(value.write(), move |_| {
            inner.op("link").push((again.read(), linked.write()), |_| ()).unwrap();
            let mut group = None;
            let refused = inner.scope(|s| {
                group = Some(s.group());
                s.op("inside").push(linked.write(), |_| ()).unwrap();
            });
            (refused, group)
        });
        let (refused, group) = outer.unwrap().wait().unwrap();
        assert_eq!(deadlock(refused), names("outer", "inside"));
        while engine.wait_for_all().is_err() {}
        let (group, (sender, receiver)) = (group.unwrap(), mpsc::channel());
        assert_eq!(group.pending(), 0);
        group.op("later").push(completion(), move |done| sender.send(done).unwrap()).unwrap();
        let done = receiver.recv_timeout(PATIENCE).unwrap();
        assert_eq!(group.pending(), 1, "a member is not counted");
        done.complete();
        while engine.wait_for_all().is_err() {}
    });
}

/// Each of several operations holds a variable and opens a scope with an operation on the next one's variable.
#[test]
fn the_youngest_of_several_scopes_that_wait_for_each_other_is_refused() {
    on_kinds(&THREADED, 3, |engine| {
        for (length, round) in [(2, 0), (3, 0), (2, 1), (3, 1)] {
            let variables: Vec<_> = (0..length).map(|_| engine.var(0)).collect();
            let meeting = Meeting::new(length);
            let scopes: Vec<_> = (0..length)
                .map(|index| {
                    let (inner, meeting) = (engine.downgrade(), meeting.clone());
                    let other = variables[(index + 1) % length].clone();
                    let outer = move |_: &mut i32| {
                        let mut seen = -1;
                        meeting.join();
                        // The scopes open one after another in round 0, and all at once in other rounds.
                        thread::sleep(index as u32 * (1 - round) * MOMENT);
                        let result = inner.scope(|s| {
                            let seen = s.lend(&mut seen);
                            s.op("inside").push((other.write(), seen.write()), |(other, seen)| {
                                *other += 1;
                                *seen = *other;
                            })
                        });
                        result.map(|pushed| {
                            pushed.unwrap();
                            assert_eq!(seen, 1);
                        })
                    };
                    engine.op("outer").submit(variables[index].write(), outer).unwrap()
                })
                .collect();
            let results: Vec<_> = scopes.into_iter().map(|scope| scope.wait().unwrap()).collect();
            let refused: Vec<_> = (0..length).filter(|&index| results[index].is_err()).collect();
            assert!(round == 1 && refused.len() == 1 || refused == [length - 1], "{results:?}");
            let index = refused[0];
            let [result] = results.into_iter().filter(Result::is_err).collect::<Vec<_>>().try_into().unwrap();
            assert_eq!(deadlock(result), names("outer", "inside"));
            assert!(engine.get(&variables[(index + 1) % length]).is_err());
            while engine.wait_for_all().is_err() {}
        }
    });
}

/// The thread has left an operation for later, which the scope does not await.
#[test]
#[cfg_attr(miri, ignore = "uses much of the stack")]
fn a_scope_of_an_engine_without_workers_is_refused_before_other_operations_run() {
    watched(|| {
        let (engine, (sender, receiver)) = (engine(EngineKind::Naive, 1), mpsc::channel());
        let (value, linked, inner) = (engine.var(0), engine.var(0), engine.downgrade());
        let again = value.clone();
        let outer = engine.op("outer").submit(value.write(), move |_| {
            let inside = inner.clone();
            at_the_first_deferred_push(&inner, move |_deferred| {
                inside.op("link").push((again.read(), linked.write()), |_| ()).unwrap();
                let before = inside.pending();
                let refused = inside.scope(|s| s.op("inside").push(linked.write(), |_| ()).unwrap());
                sender.send((refused, before, inside.pending())).unwrap();
            });
        });
        outer.unwrap().wait().unwrap();
        let (refused, before, after) = receiver.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(refused, Err(WaitError::WouldDeadlock(_))), "{refused:?}");
        // The cancelled operation of the scope is still in its queue.
        assert_eq!(after, before + 1, "another operation has run");
        while engine.wait_for_all().is_err() {}
    });
}

/// An operation that was pushed to the group of a scope, and not to the scope, is not cancelled.
#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_scope_cannot_end() {
    if !common::is_child() {
        return;
    }
    on_kinds(&KINDS, 1, |engine| {
        let logged = Journal::new();
        let journal = logged.clone();
        log_to(move |text| journal.add(text.to_owned()));
        let (value, inner) = (engine.var(0), engine.clone());
        let again = value.clone();
        let outer = move |_: &mut i32| {
            inner.scope(|s| s.group().op("member").push(again.read(), |_| ()).unwrap()).unwrap();
        };
        // Without workers, the new thread runs the operation. Neither the operation nor the engine ever ends.
        thread::spawn(move || engine.op("outer").push(value.write(), outer));
        eventually("the cycle is logged", || logged.len() > 0);
        // In this time, the scope searches again.
        thread::sleep(2 * MOMENT);
        let logged = logged.take();
        assert_eq!(logged.len(), 1, "{logged:?}");
        for part in ["the end of a scope waits forever", "`outer`", "`member`"] {
            assert!(logged[0].contains(part), "{logged:?}");
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_cycle_that_a_scope_cannot_end_is_logged_once() {
    common::child_succeeds("in_a_child_a_scope_cannot_end");
}

// ------------------------------------------------------------------------------------------------ random programs ----

/// Operations push, and wait for handles, groups, variables and scopes at random. Whatever cycles arise, all waits
/// return.
#[test]
fn random_waits_of_all_kinds_return() {
    on_kinds(&THREADED, 2, |engine| {
        let (mut random, start, mut refused) = (Random::new(7), Instant::now(), 0);
        while start.elapsed() < Duration::from_millis(2500) {
            let other = common::engine(engine.kind(), 1);
            let engines = [engine.downgrade(), other.downgrade()];
            let variables: Vec<_> = (0..4).map(|index| engines[index % 2].var(0)).collect();
            let groups: Vec<_> = (0..4).map(|index| engines[index % 2].group()).collect();
            let mut handles: Vec<OpHandle<Result<(), WaitError>>> = Vec::new();
            let mut ends = Vec::new();
            for _ in 0..6 {
                let held = random.below(4);
                let (own, in_group) = (held % 2, random.below(3) == 0);
                let (inner, variable) = (engines[random.below(2)].clone(), random.below(4));
                let (there, wanted) = (engines[variable % 2].clone(), variables[variable].clone());
                let group = groups[random.below(4)].clone();
                let (pause, action) = (Duration::from_micros(random.below(3000) as u64), random.below(5));
                let earlier = if handles.is_empty() || action != 4 { None } else { handles.pop() };
                let body = move |_: &mut i32| {
                    thread::sleep(pause);
                    match action {
                        0 => there.op("behind").submit(wanted.write(), |value| *value += 1).unwrap().wait(),
                        1 => {
                            let _ = group.op("member").push((), |()| ());
                            group.wait()
                        }
                        2 => there.wait_for_var(&wanted),
                        3 => there.scope(|s| {
                            let _ = inner.op("link").push((), |()| ());
                            let _ = s.op("inside").push(wanted.write(), |value| *value += 1);
                        }),
                        _ => earlier.map_or(Ok(()), |earlier| earlier.wait().and_then(|result| result)),
                    }
                };
                let builder = if in_group { groups[2 * random.below(2) + own].op("op") } else { engines[own].op("op") };
                let handle = builder.run_always().submit(variables[held].write(), body).unwrap();
                if random.below(2) == 0 {
                    handles.push(handle);
                } else {
                    ends.push(handle);
                }
                if random.below(3) == 0 {
                    let member = groups[held % 2].op("member");
                    member.run_always().push(variables[held].write(), |value| *value += 1).unwrap();
                }
            }
            for handle in handles.into_iter().chain(ends) {
                refused += usize::from(matches!(handle.wait(), Ok(Err(WaitError::WouldDeadlock(_)))));
            }
            for engine in &engines {
                while engine.wait_for_all().is_err() {}
            }
        }
        assert!(refused > 0, "no program had a cycle");
    });
}

/// Operations wait only for groups pushed before them and for scopes whose operation is ready, so no wait can last
/// forever.
#[test]
fn random_waits_for_earlier_groups_and_scopes_are_never_refused() {
    on_kinds(&THREADED, 2, |engine| {
        let (mut random, start) = (Random::new(1), Instant::now());
        let variables: Vec<_> = (0..5).map(|_| engine.var(0u64)).collect();
        while start.elapsed() < Duration::from_millis(1500) {
            let mut groups: Vec<Group> = Vec::new();
            for _ in 0..10 {
                let group = engine.group();
                for _ in 0..3 {
                    let (x, y) = (random.below(5), random.below(4));
                    let y = if x == y { 4 } else { y };
                    let waited = (random.below(2) == 0).then(|| groups.get(random.below(10)).cloned()).flatten();
                    let (inner, pause) = (engine.downgrade(), if random.below(6) == 0 { 12 } else { 0 });
                    let member = group.op("member").push((variables[x].read(), variables[y].write()), move |(x, y)| {
                        thread::sleep(Duration::from_millis(pause));
                        waited.map_or(Ok(()), |waited| waited.wait()).expect("its members should stand before this");
                        let mut sum = 0;
                        inner
                            .scope(|s| {
                                let sum = s.lend(&mut sum);
                                s.op("inside").push(sum.write(), |sum| *sum += *x).unwrap();
                            })
                            .expect("its operation should be ready");
                        *y = y.wrapping_add(sum + 1);
                    });
                    member.unwrap();
                }
                groups.push(group);
            }
            groups.iter().for_each(|group| group.wait().unwrap());
        }
    });
}

// ---------------------------------------------------------------------------------------- thousands of operations ----

/// The number of operations pending behind each waiting operation, and of unrelated ones.
const CROWD: usize = fewer(5_000);

/// The documented time within which a cycle is found. Without optimization, and with sanitizers, searches are several
/// times slower.
const PROMISED: Duration = Duration::from_millis(if cfg!(raddle_tsan) {
    2_000
} else if cfg!(raddle_unpooled) {
    500
} else if cfg!(debug_assertions) {
    200
} else {
    100
});

/// Repeats `attempt`, which returns how long a cycle lasted, until three cycles were found within the promised time.
/// Fails after nine attempts; a busy machine may delay some of them.
#[track_caller]
fn in_time(what: &str, attempt: impl FnMut() -> Duration) {
    let mut times = Vec::new();
    for took in std::iter::repeat_with(attempt).take(9) {
        times.push(took);
        if times.iter().filter(|took| **took <= PROMISED).count() == 3 {
            println!("{what}: {times:?}");
            return;
        }
    }
    panic!("{what}: cycles were found only after {times:?}");
}

/// Opens a gate when dropped, so that a test that fails does not hang.
struct Opens(Gate);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Pushes unrelated operations, which are pending until the returned value is dropped.
fn push_crowd(engine: &Engine) -> Opens {
    let token = engine.token();
    let gate = Opens(hold(engine, &token));
    (0..CROWD).for_each(|_| engine.op("unrelated").writes([&token]).push((), |()| ()).unwrap());
    gate
}

/// How thousands of operations stand between a waiting operation and the one for which it waits.
#[derive(Clone, Copy, Debug)]
enum Between {
    Writers,
    Readers,
    /// Each names the variable of the one before it.
    Chain,
    /// The variable of the last one is named by the awaited operation.
    Fan,
}

/// Pushes operations that wait for the holder of `value`. Returns the handle of the last of them.
fn push_behind(engine: &Engine, value: &Var<i32>, between: Between) -> OpHandle<()> {
    let mut last = value.clone();
    for _ in 0..CROWD {
        match between {
            Between::Writers => engine.op("between").push(value.write(), |_| ()).unwrap(),
            Between::Readers => engine.op("between").push(value.read(), |_| ()).unwrap(),
            Between::Chain => {
                let next = engine.var(0);
                engine.op("between").push((last.read(), next.write()), |_| ()).unwrap();
                last = next;
            }
            Between::Fan => {
                last = engine.var(0);
                engine.op("between").push((value.read(), last.write()), |_| ()).unwrap();
            }
        }
    }
    engine.op("behind").submit(last.write(), |_| ()).unwrap()
}

#[test]
fn a_wait_behind_thousands_of_operations_is_refused_in_time() {
    let _alone = common::alone();
    for between in [Between::Writers, Between::Readers, Between::Chain, Between::Fan] {
        on_kinds(&KINDS, 2, move |engine| {
            let unrelated = push_crowd(&engine);
            in_time(&format!("{between:?}"), || {
                let (value, inner) = (engine.var(0), engine.downgrade());
                let again = value.clone();
                let outer = engine.op("outer").submit(value.write(), move |_| {
                    let behind = push_behind(&inner, &again, between);
                    let start = Instant::now();
                    (behind.wait(), start.elapsed())
                });
                let (refused, took) = outer.unwrap().wait().unwrap();
                assert_eq!(deadlock(refused), names("outer", "behind"));
                took
            });
            drop(unrelated);
            engine.wait_for_all().unwrap();
        });
    }
}

#[test]
fn waits_of_every_form_behind_thousands_of_operations_are_refused_in_time() {
    let _alone = common::alone();
    type Wait = fn(&Engine, &Group, &Var<i32>, OpHandle<()>) -> Result<(), WaitError>;
    let waits: [(&str, Wait); 5] = [
        ("a wait with a time limit", |_, _, _, mut behind| behind.wait_timeout(PATIENCE)),
        ("a wait for a variable", |engine, _, behind, _| engine.wait_for_var(behind)),
        ("a read of a value", |engine, _, behind, _| engine.get(behind).map(drop)),
        ("a wait for a group", |_, group, _, _| group.wait()),
        ("the end of a scope", |engine, _, behind, _| {
            let scoped = engine.scope(|s| s.op("inside").push(behind.read(), |_| ()));
            scoped.map(|pushed| pushed.unwrap())
        }),
    ];
    for (form, wait) in waits {
        on_kinds(&KINDS, 2, move |engine| {
            let unrelated = push_crowd(&engine);
            in_time(form, || {
                let (held, last, inner) = (engine.var(0), engine.var(0), engine.downgrade());
                let (again, behind, group) = (held.clone(), last.clone(), engine.group());
                let outer = engine.op("outer").submit(held.write(), move |_| {
                    let handle = push_behind(&inner, &again, Between::Writers);
                    (0..CROWD).for_each(|_| group.op("member").push(again.read(), |_| ()).unwrap());
                    inner.op("last").push((again.read(), behind.write()), |_| ()).unwrap();
                    let start = Instant::now();
                    (wait(&inner, &group, &behind, handle), start.elapsed())
                });
                let (refused, took) = outer.unwrap().wait().unwrap();
                assert!(matches!(refused, Err(WaitError::WouldDeadlock(_))), "{form}: {refused:?}");
                took
            });
            drop(unrelated);
            while engine.wait_for_all().is_err() {}
        });
    }
}

/// How one of two operations waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Untimed,
    Timed,
    Scope,
}

/// Two operations, each with thousands behind it, wait for each other. The older wait has begun so long before that its
/// thread searches rarely, but may be the one that must be refused. `beside` further operations wait as well.
fn crossing(older: How, younger: How, refused: &'static str, beside: usize) {
    on_kinds(&THREADED, 2, move |engine| {
        let unrelated = push_crowd(&engine);
        let signal = engine.token();
        let held = Opens(hold(&engine, &signal));
        for _ in 0..beside {
            let (inner, signal) = (engine.downgrade(), signal.clone());
            engine.op("beside").push((), move |()| inner.wait_for_var(&signal).unwrap()).unwrap();
        }
        in_time(&format!("{older:?} and {younger:?}, with {beside} more"), || {
            let (a, b, meeting) = (engine.var(0), engine.var(0), Meeting::new(2));
            let waits = |name: &'static str, own: &Var<i32>, other: &Var<i32>, how, pause| {
                let (inner, meeting) = (engine.downgrade(), meeting.clone());
                let (held, other) = (own.clone(), other.clone());
                let waits = move |_: &mut i32| {
                    drop(push_behind(&inner, &held, Between::Writers));
                    raddle::blocking(|| meeting.join());
                    raddle::blocking(|| thread::sleep(pause));
                    let start = Instant::now();
                    let result = if how == How::Scope {
                        let scoped = inner.scope(|s| s.op("behind").push(other.write(), |_| ()));
                        scoped.map(|pushed| pushed.unwrap())
                    } else {
                        let mut behind = inner.op("behind").submit(other.write(), |_| ()).unwrap();
                        if how == How::Timed { behind.wait_timeout(PATIENCE / 4) } else { behind.wait() }
                    };
                    (result, start, Instant::now())
                };
                engine.op(name).submit(own.write(), waits).unwrap()
            };
            let first = waits("older", &a, &b, older, Duration::ZERO);
            let second = waits("younger", &b, &a, younger, 8 * MOMENT);
            let (older, _, older_end) = first.wait().unwrap();
            let (younger, start, younger_end) = second.wait().unwrap();
            let (of_refused, of_other, end) =
                if refused == "older" { (older, younger, older_end) } else { (younger, older, younger_end) };
            assert_eq!(deadlock(of_refused), names(refused, "behind"));
            of_other.expect("the other wait should return");
            end - start
        });
        drop((held, unrelated));
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn the_younger_of_two_waits_with_thousands_behind_each_is_refused_in_time() {
    let _alone = common::alone();
    crossing(How::Untimed, How::Untimed, "younger", 0);
    crossing(How::Untimed, How::Timed, "younger", 0);
    crossing(How::Untimed, How::Untimed, "younger", 50);
}

/// The younger wait's thread finds the cycle, and asks the older wait's thread to end it.
#[test]
fn an_older_wait_that_must_end_a_cycle_is_refused_in_time() {
    let _alone = common::alone();
    crossing(How::Timed, How::Untimed, "older", 50);
    crossing(How::Timed, How::Scope, "older", 50);
    crossing(How::Untimed, How::Scope, "older", 50);
}

/// The thread of the last wait has searched before the push, which nothing tells it of. Fifty further operations wait.
#[test]
fn a_cycle_that_a_push_closes_soon_after_the_last_wait_has_begun_is_found_in_time() {
    let _alone = common::alone();
    on_kinds(&THREADED, 2, |engine| {
        let signal = engine.token();
        let held = Opens(hold(&engine, &signal));
        for _ in 0..50 {
            let (inner, signal) = (engine.downgrade(), signal.clone());
            engine.op("beside").push((), move |()| inner.wait_for_var(&signal).unwrap()).unwrap();
        }
        in_time("a push during the wait", || {
            let (value, linked, inner) = (engine.var(0), engine.var(0), engine.downgrade());
            let again = value.clone();
            let outer = engine.op("outer").submit(value.write(), move |_| {
                drop(push_behind(&inner, &again, Between::Writers));
                inner.op("link").push((again.read(), linked.write()), |_| ()).unwrap();
                let (started, pushed) = (Gate::new(), Mutex::new(None));
                let refused = inner.scope(|s| {
                    let (started, pushed, linked) = (&started, &pushed, &linked);
                    let pushes = move |()| {
                        started.open();
                        thread::sleep(Duration::from_millis(25));
                        *lock(pushed) = Some(Instant::now());
                        s.op("inside").push(linked.write(), |_| ()).unwrap();
                    };
                    s.op("pushes").push((), pushes).unwrap();
                    // The operation must not run in place.
                    started.pass();
                });
                let took = lock(&pushed).map(|pushed: Instant| pushed.elapsed());
                (refused, took.unwrap())
            });
            let (refused, took) = outer.unwrap().wait().unwrap();
            assert_eq!(deadlock(refused), names("outer", "inside"));
            took
        });
        drop(held);
        while engine.wait_for_all().is_err() {}
    });
}

/// A hundred operations wait, half of them with a time limit. Behind each of them, fifty are pending.
#[test]
#[cfg(target_os = "linux")]
#[ignore = "measures the CPU time of its process; run by another test in a separate process"]
fn in_a_child_many_waits_share_a_small_part_of_a_core() {
    for kind in THREADED {
        watched(move || {
            let engine = engine(kind, 2);
            let signal = engine.token();
            let gate = Opens(hold(&engine, &signal));
            let (value, started) = (engine.var(0), Meeting::new(101));
            for index in 0..100 {
                let (inner, value, started) = (engine.downgrade(), value.clone(), started.clone());
                let (own, signal) = (engine.var(0), signal.clone());
                let waits = move |_: &mut i32| {
                    raddle::blocking(|| started.join());
                    let mut last = inner.op("last").reads([&signal]).submit(value.read(), |_| ()).unwrap();
                    let waited = if index % 2 == 0 { last.wait() } else { last.wait_timeout(PATIENCE) };
                    waited.unwrap();
                };
                engine.op("waits").push(own.write(), waits).unwrap();
                (0..CROWD / 100).for_each(|_| engine.op("between").push(own.write(), |_| ()).unwrap());
            }
            started.join();
            // Each wait has walked once, and soon after.
            thread::sleep(Duration::from_secs(2));
            let share = (0..3).map(|_| common::share_of_a_core()).fold(f64::INFINITY, f64::min);
            println!("the {kind} engine uses {:.0} % of a core", 100.0 * share);
            assert!(share <= 0.3, "the waits use {:.0} % of a core", 100.0 * share);
            drop(gate);
            engine.wait_for_all().unwrap();
        });
    }
}

#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "starts a process")]
fn many_waits_share_a_small_part_of_a_core() {
    let _alone = common::alone();
    common::child_succeeds("in_a_child_many_waits_share_a_small_part_of_a_core");
}

// ------------------------------------------------------------------------------------------------------- engines ----

#[test]
fn operations_of_two_engines_that_wait_for_each_other_do_not_hang() {
    for kinds in [[EngineKind::Pooled, EngineKind::PerDevice], [EngineKind::PerDevice, EngineKind::Pooled]] {
        watched(move || {
            let [one, other] = kinds.map(|kind| engine(kind, 2));
            let (a, b, meeting) = (one.var(0), other.var(0), Meeting::new(2));
            let crossing =
                |own: &Engine, name: &'static str, value: &Var<i32>, other: &Engine, wanted: &Var<i32>, pause| {
                    let (other, wanted, meeting) = (other.downgrade(), wanted.clone(), meeting.clone());
                    own.op(name).submit(value.write(), move |_| {
                        meeting.join();
                        thread::sleep(pause);
                        let start = Instant::now();
                        let result = other.op("behind").submit(wanted.write(), |value| *value += 1).unwrap().wait();
                        (result, start.elapsed())
                    })
                };
            let first = crossing(&one, "first", &a, &other, &b, Duration::ZERO).unwrap();
            let second = crossing(&other, "second", &b, &one, &a, MOMENT).unwrap();
            let (second, took) = second.wait().unwrap();
            assert_eq!(deadlock(second), names("second", "behind"));
            assert!(took < FOUND, "{took:?}");
            first.wait().unwrap().0.unwrap();
        });
    }
}

#[test]
fn a_wait_for_another_engine_with_an_operation_that_waits_for_the_caller_is_refused() {
    on_kinds(&THREADED, 2, |one| {
        let other = engine(one.kind(), 2);
        let (value, inner, there) = (one.var(0), one.downgrade(), other.clone());
        let again = value.clone();
        let outer = one.op("outer").submit(value.write(), move |_| {
            let meeting = Meeting::new(2);
            let behind = (inner.clone(), again.clone(), meeting.clone());
            there
                .op("waits")
                .push((), move |()| {
                    let behind_outer = behind.0.op("behind").submit(behind.1.read(), |_| ()).unwrap();
                    behind.2.join();
                    behind_outer.wait().unwrap();
                })
                .unwrap();
            meeting.join();
            thread::sleep(MOMENT);
            there.wait_for_all()
        });
        assert_eq!(deadlock(outer.unwrap().wait().unwrap()), names("outer", "waits"));
        other.wait_for_all().unwrap();
    });
}

/// The outer operation waits for the other engine's operation, which in turn waits for an operation queued behind the
/// outer one.
#[test]
fn a_cycle_that_leaves_an_engine_and_comes_back_is_found() {
    on_kinds(&KINDS, 2, |one| {
        let other = engine(one.kind(), 2);
        let (value, inner) = (one.var(0), one.downgrade());
        let again = value.clone();
        let outer = one.op("outer").submit(value.write(), move |_| {
            let waits =
                other.op("there").submit((), move |()| inner.op("behind").submit(again.read(), |_| ()).unwrap().wait());
            waits.unwrap().wait()
        });
        match outer.unwrap().wait().unwrap() {
            Ok(refused) => assert_eq!(deadlock(refused), names("there", "behind")),
            // The outer operation was the last to begin waiting.
            refused => assert_eq!(deadlock(refused.map(drop)), names("outer", "there")),
        }
        one.wait_for_all().unwrap();
    });
}
