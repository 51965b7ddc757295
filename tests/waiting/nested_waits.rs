//! Waits inside waits: what a waiter runs in place, when a function regains a worker, and which waits are refused.

#![forbid(unsafe_code)]
use raddle_testkit as common;

use std::{
    panic,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use common::{Gate, Meeting, PATIENCE, THREADED, engine, hold, watched_for};
use raddle::{Engine, EngineKind, OpHandle, Var, WaitError, WeakEngine, blocking, completion, cx};

const LIMIT: Duration = Duration::from_secs(8);
fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
/// Runs `f` under the watchdog on an engine of each threaded kind, with `workers` workers.
#[track_caller]
fn on_each(workers: usize, f: impl Fn(Engine) + Clone + Send + 'static) {
    for kind in THREADED {
        let f = f.clone();
        watched_for(LIMIT, move || {
            println!("on the {kind} engine with {workers} workers");
            f(engine(kind, workers));
        });
    }
}

/// A member pushed after the wait began must not run in place, since the wait would be buried under it.
#[test]
fn a_wait_for_a_group_is_not_buried_under_a_later_member() {
    on_each(1, |engine| {
        let inside = engine.downgrade();
        let took = engine.op("F").submit((), move |()| {
            let group = Arc::new(inside.group());
            let (tx, rx) = mpsc::channel::<()>();
            // The wait covers this member, which completes after 300 ms.
            group
                .op("covered async")
                .push(completion(), |done| {
                    thread::spawn(move || {
                        thread::sleep(ms(300));
                        done.complete();
                    });
                })
                .unwrap();
            let same = Arc::clone(&group);
            // The wait covers this member, but not the member that it pushes.
            group
                .op("covered")
                .push((), move |()| {
                    same.op("later").push((), move |()| _ = blocking(|| rx.recv())).unwrap();
                })
                .unwrap();
            let start = Instant::now();
            group.wait().unwrap(); // must end after 300 ms: `later` was pushed after the wait began
            let took = start.elapsed();
            tx.send(()).unwrap();
            took
        });
        let took = took.unwrap().wait().unwrap();
        assert!(took < ms(2000), "{took:?}");
    });
}

/// A wait must not run in place an operation that its dependency awaits *with a time limit*: the dependency may give up
/// first, and the wait would remain buried under the operation.
#[test]
fn a_wait_is_not_buried_under_what_a_waiter_with_a_time_limit_awaits() {
    on_each(2, |engine| {
        let inside = engine.downgrade();
        let v = engine.token();
        let outer = engine.op("F").submit((), move |()| {
            let (handle_tx, handle_rx) = mpsc::channel::<OpHandle<()>>();
            let (tx, rx) = mpsc::channel::<()>();
            let waits = Gate::new();
            let (g_started, h_started, release) = (Gate::new(), Gate::new(), Gate::new());
            let (g_s, g_w) = (g_started.clone(), waits.clone());
            inside
                .op("G")
                .writes([&v])
                .push((), move |()| {
                    g_s.open();
                    let mut t = blocking(|| handle_rx.recv()).unwrap();
                    g_w.open();
                    let _ = t.wait_timeout(ms(600));
                })
                .unwrap();
            g_started.pass();
            let (h_s, rel) = (h_started.clone(), release.clone());
            inside
                .op("H")
                .push((), move |()| {
                    h_s.open();
                    rel.pass_within(ms(5000));
                })
                .unwrap();
            h_started.pass(); // both workers are busy, with F and H
            let t = inside.op("T").submit((), move |()| _ = blocking(|| rx.recv())).unwrap();
            handle_tx.send(t).unwrap();
            waits.pass();
            thread::sleep(ms(100)); // G waits for T
            let start = Instant::now();
            inside.wait_for_var(&v).unwrap(); // ends when G has given up
            let took = start.elapsed();
            tx.send(()).unwrap();
            release.open();
            took
        });
        let took = outer.unwrap().wait().unwrap();
        assert!(took < ms(2500), "{took:?}");
    });
}

/// After a nested `blocking`, the outer call must not block a worker.
#[test]
fn blocking_inside_blocking_leaves_the_worker_free() {
    on_each(1, |engine| {
        let inside = engine.downgrade();
        let (tx, rx) = mpsc::channel::<()>();
        let ops = engine.op("F").submit((), move |()| {
            let start = Instant::now();
            let (started, ends) = (Gate::new(), Gate::new());
            let (s, e) = (started.clone(), ends.clone());
            blocking(|| {
                // The worker is busy for a moment, so the function cannot borrow its place and would queue for it.
                inside
                    .op("busy")
                    .push((), move |()| {
                        s.open();
                        e.pass();
                        thread::sleep(ms(20));
                    })
                    .unwrap();
                blocking(|| {
                    started.pass();
                    ends.open();
                });
                inside.op("sends").push((), move |()| tx.send(()).unwrap()).unwrap();
                rx.recv_timeout(ms(4000)).expect("`sends` runs while F is blocked");
            });
            start.elapsed()
        });
        let took = ops.unwrap().wait().unwrap();
        assert!(took < ms(2000), "{took:?}");
    });
}

/// After a wait inside `blocking`, the call to `blocking` must not block a worker.
#[test]
fn a_wait_inside_blocking_leaves_the_worker_free() {
    on_each(1, |engine| {
        let inside = engine.downgrade();
        let (tx, rx) = mpsc::channel::<()>();
        let ops = engine.op("F").submit((), move |()| {
            blocking(|| {
                let mut h = inside.op("inner").submit((), move |()| ()).unwrap();
                inside.op("busy").push((), move |()| thread::sleep(ms(20))).unwrap();
                h.wait_timeout(ms(3000)).unwrap();
                inside.op("sends").push((), move |()| tx.send(()).unwrap()).unwrap();
                rx.recv_timeout(ms(4000)).expect("`sends` runs while F is blocked");
            });
        });
        ops.unwrap().wait().unwrap();
    });
}

/// Two threads push to an engine without workers. Each runs its operation, which waits for one behind the other's.
#[test]
fn one_of_two_operations_that_wait_for_each_other_on_threads_of_a_naive_engine_is_refused() {
    watched_for(LIMIT, || {
        for (timed, refused) in [([false, false], 1), ([true, false], 0), ([false, true], 1)] {
            let engine = engine(EngineKind::Naive, 1);
            let variables = [engine.var(0), engine.var(0)];
            let meeting = Meeting::new(2);
            let wait = |index: usize| {
                let (inner, meeting, other) = (engine.downgrade(), meeting.clone(), variables[1 - index].clone());
                let waits = engine.op(["first", "second"][index]).submit(variables[index].write(), move |own| {
                    *own += 1;
                    meeting.join();
                    thread::sleep(ms(60 * index as u64));
                    let mut behind = inner.op("behind").submit(other.write(), |value| *value += 10).unwrap();
                    if timed[index] { behind.wait_timeout(PATIENCE) } else { behind.wait() }
                });
                waits.unwrap().wait().unwrap()
            };
            let results = thread::scope(|scope| {
                let wait = &wait;
                [0, 1].map(|index| scope.spawn(move || wait(index))).map(|thread| thread.join().unwrap())
            });
            let is_refused = [0, 1].map(|index| {
                matches!(&results[index], Err(WaitError::WouldDeadlock(deadlock))
                if deadlock.waiting() == Some(["first", "second"][index]) && deadlock.awaited() == Some("behind"))
            });
            assert!(is_refused[refused] && results[1 - refused].is_ok(), "{results:?}");
            let values = variables.each_ref().map(|value: &Var<i32>| engine.get(value).unwrap());
            assert_eq!(values, [11, 11]);
            engine.wait_for_all().unwrap();
        }
    });
}

/// If the function did not take the worker's place, the worker would begin another operation beside it.
#[test]
fn a_function_that_catches_a_panic_from_blocking_takes_a_workers_place() {
    on_each(1, |engine| {
        let (now, too_many) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let compute = move |time: Duration| {
            if now.fetch_add(1, SeqCst) > 0 {
                too_many.fetch_add(1, SeqCst);
            }
            let start = Instant::now();
            while start.elapsed() < time {
                std::hint::spin_loop();
            }
            now.fetch_sub(1, SeqCst);
            too_many.load(SeqCst)
        };
        let mut overlaps = 0;
        for round in 0..20 {
            let (inside, c) = (engine.downgrade(), compute.clone());
            let handle = engine.op("F").submit((), move |()| {
                for _ in 0..2 {
                    let c2 = c.clone();
                    inside.op("other").push((), move |()| _ = c2(ms(10))).unwrap();
                }
                let _ = panic::catch_unwind(|| {
                    blocking(|| {
                        thread::sleep(ms(2));
                        if round < 20 {
                            panic::resume_unwind(Box::new(1));
                        }
                    });
                });
                c(ms(15))
            });
            overlaps = handle.unwrap().wait().unwrap();
        }
        engine.wait_for_all().unwrap();
        // The function begins while the first one computes.
        assert!(overlaps <= 24, "{overlaps} in 20 rounds");
    });
}

/// Two operations wait for each other's handles.
#[test]
fn one_of_two_operations_that_wait_for_each_others_handles_is_refused() {
    on_each(2, |engine| {
        let (results, ends) = mpsc::channel();
        let [(first, to_first), (second, to_second)] = ["first", "second"].map(|name| {
            let (sender, receiver) = mpsc::channel::<OpHandle<()>>();
            let results = results.clone();
            let op = engine.op(name).submit((), move |()| {
                let other = blocking(|| receiver.recv()).unwrap();
                results.send(matches!(other.wait(), Err(WaitError::WouldDeadlock(_)))).unwrap();
            });
            (op.unwrap(), sender)
        });
        to_first.send(second).unwrap();
        to_second.send(first).unwrap();
        engine.wait_for_all().unwrap();
        assert_ne!(ends.recv().unwrap(), ends.recv().unwrap());
    });
}

/// A scope's operation waits for a variable held by an operation outside the scope. If `in_place`, the scope's
/// operation runs on top of the outside operation, on the same stack.
fn scoped_on_top(in_place: bool) {
    on_each(1, move |engine| {
        let inside = engine.downgrade();
        let (v, x) = (engine.token(), engine.token());
        let outer = engine.op("F").submit((), move |()| {
            let found = Mutex::new(None);
            let (inside, v, x, found) = (&inside, &v, &x, &found);
            inside
                .scope(|s| {
                    s.op("O")
                        .writes([x])
                        .push((), move |()| {
                            *found.lock().unwrap() = Some(inside.wait_for_var(v));
                        })
                        .unwrap();
                    let (deep, x2) = (inside.clone(), x.clone());
                    let p = inside.op("P").writes([v]).submit((), move |()| {
                        if in_place { deep.wait_for_var(&x2) } else { deep.wait_for_var_timeout(&x2, ms(60_000)) }
                    });
                    let waited = p.unwrap().wait().unwrap();
                    assert_eq!(matches!(waited, Err(WaitError::WouldDeadlock(_))), !in_place, "{waited:?}");
                })
                .unwrap();
            let waited = found.lock().unwrap().take().unwrap();
            assert_eq!(matches!(waited, Err(WaitError::WouldDeadlock(_))), in_place, "{waited:?}");
        });
        outer.unwrap().wait().unwrap();
    });
}

#[test]
fn a_wait_in_a_scope_on_top_of_a_holder_is_refused() {
    scoped_on_top(true);
}

#[test]
fn a_wait_in_a_scope_on_a_thread_other_than_that_of_a_holder_is_allowed() {
    scoped_on_top(false);
}

/// An asynchronous operation completes while a scope is open in its function, and its record is reused. The search for
/// deadlocks must not follow a stale pointer to the record.
#[test]
fn a_wait_in_the_function_of_a_complete_operation_is_not_refused() {
    for kind in THREADED {
        watched_for(Duration::from_secs(60), move || {
            let mut refused = 0;
            for round in 0..10 {
                let engine = engine(kind, 1 + round % 2);
                let (v, u) = (engine.token(), engine.token());
                let gate = hold(&engine, &u);
                let inside = engine.downgrade();
                let (tx, rx) = mpsc::channel();
                let v2 = v.clone();
                engine
                    .op("F")
                    .writes([&v2])
                    .push(completion(), move |done| {
                        let inside = &inside;
                        let tx = Mutex::new(tx);
                        let tx = &tx;
                        let u = &u;
                        inside
                            .scope(|s| {
                                inside.op("N").writes([&v]).push((), |()| ()).unwrap();
                                inside.op("N2").writes([&v]).push((), |()| ()).unwrap();
                                let n = inside.op("N3").writes([&v]).submit((), |()| ()).unwrap();
                                done.complete();
                                n.wait().unwrap();
                                for _ in 0..5000 {
                                    inside.op("churn").submit((), |()| ()).unwrap().wait().unwrap();
                                }
                                for _ in 0..3000 {
                                    inside.op("Z").writes([u]).push((), |()| ()).unwrap();
                                }
                                let x = inside.op("X").writes([u]).submit((), |()| ()).unwrap();
                                s.op("S").push((), move |()| tx.lock().unwrap().send(x.wait()).unwrap()).unwrap();
                            })
                            .unwrap();
                    })
                    .unwrap();
                let opener = thread::spawn(move || {
                    thread::sleep(ms(700));
                    gate.open();
                });
                let waited = rx.recv().unwrap();
                refused += usize::from(waited.is_err());
                opener.join().unwrap();
                engine.wait_for_all().unwrap();
            }
            assert_eq!(refused, 0, "waits that would have ended were refused");
        });
    }
}

/// The same happens to the record of the parent of an asynchronous child, with which it completes.
#[test]
fn a_wait_in_the_function_of_a_complete_child_is_not_refused() {
    on_each(2, |engine| {
        let (signal, group, (sender, completions)) = (engine.token(), engine.group(), mpsc::channel());
        let (gate, pushed) = (hold(&engine, &signal), Gate::new());
        let (members, ready) = (group.clone(), pushed.clone());
        let waiter = engine.op("waiter").submit((), move |()| {
            blocking(|| ready.pass());
            members.wait()
        });
        let (waiter, (results, waited)) = (waiter.unwrap(), mpsc::channel());
        let parent = engine.op("parent").with_children().push(cx(), move |cx| {
            let child = cx.child("child").push(completion(), move |done| {
                sender.send(done).unwrap();
                results.send(waiter.wait()).unwrap();
            });
            child.unwrap();
        });
        parent.unwrap();
        let done = completions.recv().unwrap();
        // The child is complete after its wait has begun.
        thread::sleep(ms(50));
        done.complete();
        let (sender, completions) = mpsc::channel();
        for _ in 0..1000 {
            let sender = sender.clone();
            engine.op("churn").push(completion(), move |done| sender.send(done).unwrap()).unwrap();
            completions.recv().unwrap().complete();
        }
        for _ in 0..3000 {
            group.op("member").reads([&signal]).push((), |()| ()).unwrap();
        }
        pushed.open();
        thread::sleep(ms(300));
        gate.open();
        waited.recv().unwrap().unwrap().unwrap();
    });
}

/// A cycle through a wait with a time limit is broken by that wait, so the other wait in it is not refused.
#[test]
fn the_other_wait_in_a_cycle_with_a_time_limit_is_not_refused() {
    on_each(2, |engine| {
        let (a, b) = (engine.token(), engine.token());
        let (ia, ib) = (engine.downgrade(), engine.downgrade());
        let meeting = Meeting::new(2);
        let (ma, mb) = (meeting.clone(), meeting);
        let (a2, b2) = (a.clone(), b.clone());
        let first = engine.op("timed").writes([&a]).submit((), move |()| {
            ma.join();
            let mut behind = ia.op("behind b").writes([&b2]).submit((), |()| ()).unwrap();
            format!("{:?}", behind.wait_timeout(ms(400)).is_ok())
        });
        let second = engine.op("untimed").writes([&b]).submit((), move |()| {
            mb.join();
            thread::sleep(ms(60));
            let behind = ib.op("behind a").writes([&a2]).submit((), |()| ()).unwrap();
            format!("{:?}", behind.wait())
        });
        let (first, second) = (first.unwrap().wait().unwrap(), second.unwrap().wait().unwrap());
        assert_eq!(first, "false");
        assert_eq!(second, "Ok(())");
    });
}

/// The last clone of an error is in a stale entry of a worker's deque. Its drop may do anything, as the table of
/// program code in ARCHITECTURE.md states.
#[test]
fn the_drop_of_an_error_in_a_stale_entry_may_wait() {
    #[derive(Debug)]
    struct Waits(WeakEngine, mpsc::Sender<String>);
    impl std::fmt::Display for Waits {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("waits")
        }
    }
    impl std::error::Error for Waits {}
    impl Drop for Waits {
        fn drop(&mut self) {
            let waited = self.0.op("in drop").submit((), |()| ()).map(|handle| format!("{:?}", handle.wait()));
            self.1.send(format!("{waited:?}")).unwrap();
        }
    }
    on_each(1, |engine| {
        let inside = engine.downgrade();
        let v = engine.token();
        let (tx, rx) = mpsc::channel();
        let outer = engine.op("F").submit((), move |()| {
            let group = inside.group();
            inside.op("chain").writes([&v]).push((), |()| ()).unwrap();
            let (deep, tx) = (inside.clone(), Mutex::new(Some(tx)));
            let x = group.op("X").try_submit((), move |()| {
                let tx = tx.lock().unwrap().take().unwrap();
                Err::<(), _>(Waits(deep, tx).into())
            });
            let failed = x.unwrap().wait();
            drop(group);
            drop(failed);
            inside.wait_for_var(&v).unwrap();
        });
        outer.unwrap().wait().unwrap();
        let waited = rx.recv_timeout(ms(3000)).unwrap();
        assert_eq!(waited, "Ok(\"Ok(())\")");
    });
}
