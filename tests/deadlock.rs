//! No set of pushes and no wait inside an operation hangs: what could deadlock in other engines.

#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use crossbeam_epoch as epoch;

use common::shapes::*;
use common::{
    AWHILE, Drops, Gate, KINDS, Meeting, SOON, THREADED, block_on, child_succeeds, engine, eventually, hold, is_child,
    lock, on_kinds, program::fewer, watched, watched_for,
};
use raddle::{Engine, EngineKind, OpContext, OpHandle, PushError, Shutdown, Token, WaitError};

// ---------------------------------------------------------------------------------------- pushes that cross ----

/// Eight threads push `pushes` operations in all, each over the variables that `pick` gives, mutating or reading them as it
/// says. Each mutation must be counted in the end.
fn cross(
    engine: &Engine,
    variables: usize,
    pushes: usize,
    pick: impl Fn(usize, usize) -> (Vec<usize>, Vec<usize>) + Sync,
) {
    const PUSHERS: usize = 8;
    let tokens: Vec<Token> = (0..variables).map(|_| engine.token()).collect();
    let (ran, mutations) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let barrier = Barrier::new(PUSHERS);
    thread::scope(|scope| {
        for pusher in 0..PUSHERS {
            let (tokens, pick, ran, barrier, mutations) = (&tokens, &pick, &ran, &barrier, &mutations);
            scope.spawn(move || {
                barrier.wait();
                for number in 0..pushes / PUSHERS {
                    let (reads, writes) = pick(pusher, number);
                    mutations.fetch_add(writes.len(), SeqCst);
                    let ran = Arc::clone(ran);
                    engine
                        .op("cross")
                        .reads(reads.iter().map(|&variable| &tokens[variable]))
                        .writes(writes.iter().map(|&variable| &tokens[variable]))
                        .push_sync(move |_| {
                            ran.fetch_add(1, SeqCst);
                        })
                        .expect("the engine is open");
                }
            });
        }
    });
    engine.wait_for_all().expect("nothing fails");
    assert_eq!(ran.load(SeqCst), pushes / PUSHERS * PUSHERS);
    let versions: u64 = tokens.iter().map(|token| token.version()).sum();
    assert_eq!(versions, mutations.load(SeqCst) as u64);
}

const PUSHES: usize = fewer(100_000);

/// `{a, b}` from one thread and `{b, a}` from the other.
#[test]
fn two_variables_in_opposite_orders() {
    on_kinds(&KINDS, 2, |engine| {
        cross(&engine, 2, PUSHES, |pusher, _| (vec![], if pusher % 2 == 0 { vec![0, 1] } else { vec![1, 0] }));
    });
}

/// `R(b) W(a)` against `R(a) W(b)`: the pair with which engines hang that lock one variable after the other.
#[test]
fn a_read_and_a_mutation_in_opposite_orders() {
    on_kinds(&KINDS, 2, |engine| {
        cross(&engine, 2, PUSHES, |pusher, _| if pusher % 2 == 0 { (vec![1], vec![0]) } else { (vec![0], vec![1]) });
    });
}

/// `{a, b}`, `{b, c}`, `{c, a}`, and longer rounds.
#[test]
fn rounds_of_three_to_six_variables() {
    on_kinds(&KINDS, 2, |engine| {
        for length in 3..=6 {
            cross(&engine, length, PUSHES / 4, |pusher, number| {
                let first = (pusher + number) % length;
                let next = (first + 1) % length;
                match number % 3 {
                    0 => (vec![], vec![first, next]),
                    1 => (vec![first], vec![next]),
                    _ => (vec![next], vec![first]),
                }
            });
        }
    });
}

/// All permutations of five variables, all mutated.
#[test]
fn many_variables_in_every_order() {
    on_kinds(&KINDS, 2, |engine| {
        cross(&engine, 5, PUSHES / 2, |pusher, number| {
            let mut variables: Vec<usize> = (0..5).collect();
            let mut state = pusher * 7919 + number;
            for last in (1..5).rev() {
                variables.swap(last, state % (last + 1));
                state /= last + 1;
            }
            (vec![], variables)
        });
    });
}

/// The pushes come from operations that hold variables of the same set themselves.
#[test]
fn operations_push_on_the_variables_that_they_hold() {
    on_kinds(&KINDS, 2, |engine| {
        let tokens: Arc<Vec<Token>> = Arc::new((0..3).map(|_| engine.token()).collect());
        let ran = Arc::new(AtomicUsize::new(0));
        for number in 0..2000 {
            let (inner_tokens, inner_ran) = (Arc::clone(&tokens), Arc::clone(&ran));
            let (a, b) = (number % 3, (number + 1) % 3);
            engine
                .push_sync(
                    move |cx| {
                        for (x, y) in [(a, b), (b, a), ((b + 1) % 3, a)] {
                            let ran = Arc::clone(&inner_ran);
                            let count = move |_: &OpContext<'_>| {
                                ran.fetch_add(1, SeqCst);
                            };
                            cx.engine().push_sync(count, [], [&inner_tokens[x], &inner_tokens[y]]).expect("it is open");
                        }
                    },
                    [],
                    [&tokens[a], &tokens[b]],
                )
                .expect("the engine is open");
        }
        eventually("all operations have run", || ran.load(SeqCst) == 6000);
        engine.wait_for_all().expect("nothing fails");
        assert_eq!(tokens.iter().map(|token| token.version()).sum::<u64>(), 2 * 8000);
    });
}

/// Operations that push and pushers beside the engine cross, with variables made and dropped all the time.
#[test]
fn variables_come_and_go_while_pushes_cross() {
    on_kinds(&KINDS, 2, |engine| {
        let drops = Drops::new();
        let shared = engine.var(drops.make());
        thread::scope(|scope| {
            for pusher in 0..8 {
                let (engine, drops, shared) = (&engine, &drops, &shared);
                scope.spawn(move || {
                    for number in 0..500 {
                        let own = engine.var(drops.make());
                        let captured = drops.make();
                        let touch = move |a: &mut common::Droppable, b: &mut common::Droppable| {
                            a.touch();
                            b.touch();
                            captured.touch();
                        };
                        if (pusher + number) % 2 == 0 {
                            engine.op("").push((shared.write(), own.write()), move |(a, b)| touch(a, b)).unwrap();
                        } else {
                            engine.op("").push((own.write(), shared.write()), move |(a, b)| touch(a, b)).unwrap();
                        }
                        if number % 5 == 0 {
                            engine.delete_variable(&own, |_| {}).unwrap();
                            let refused = engine.op("").push((shared.write(), own.write()), |_| {});
                            assert!(matches!(refused, Err(PushError::DeletedVariable(_))));
                        }
                    }
                });
            }
        });
        drop(shared);
        drop(engine);
        assert_eq!(drops.made(), 2 * 8 * 500 + 1);
        drops.assert_all_gone();
    });
}

// --------------------------------------------------------------------------------- waits inside operations ----

#[test]
fn an_operation_waits_for_the_one_it_pushed_on_a_single_worker() {
    on_kinds(&KINDS, 1, |engine| {
        let outer = engine
            .op("outer")
            .submit((), {
                let engine = engine.clone();
                move |()| {
                    let inner = engine.op("inner").submit((), |()| 7).expect("the engine is open");
                    inner.wait().expect("nothing fails")
                }
            })
            .expect("the engine is open");
        assert_eq!(outer.wait().expect("nothing fails"), 7);
    });
}

/// Pushes an operation that pushes one that ... and each waits for the next.
fn descend(engine: &Engine, depth: usize) -> OpHandle<usize> {
    let inner = engine.clone();
    engine
        .op("descend")
        .submit(
            (),
            move |()| if depth == 0 { 0 } else { 1 + descend(&inner, depth - 1).wait().expect("nothing fails") },
        )
        .expect("the engine is open")
}

#[test]
fn waits_nest_a_hundred_deep_on_a_single_worker() {
    on_kinds(&KINDS, 1, |engine| {
        assert_eq!(descend(&engine, 100).wait().expect("nothing fails"), 100);
    });
}

/// Deeper than an engine without threads may want to go on one stack.
#[test]
fn waits_nest_three_hundred_deep_on_a_single_worker() {
    on_kinds(&KINDS, 1, |engine| {
        // The naive engine nests the functions, which takes more stack than a test's thread has.
        let deep = thread::Builder::new().stack_size(64 << 20).spawn(move || {
            assert_eq!(descend(&engine, 300).wait().expect("nothing fails"), 300);
        });
        deep.expect("a thread starts").join().expect("nothing panics");
    });
}

/// The operations that an operation waits for were pushed by others inside it, which wait as well, for variables.
#[test]
fn waits_for_variables_nest_on_a_single_worker() {
    fn descend(engine: &Engine, depth: usize) -> usize {
        if depth == 0 {
            return 0;
        }
        let value = engine.var(0);
        let inner = engine.clone();
        engine.op("").push(value.write(), move |value| *value = 1 + descend(&inner, depth - 1)).expect("it is open");
        match depth % 3 {
            0 => engine.wait_for_var(&value).expect("nothing fails"),
            1 => engine.wait_to_read(&value).expect("nothing fails"),
            _ => {}
        }
        engine.get(&value).expect("nothing fails")
    }
    on_kinds(&KINDS, 1, |engine| {
        let deep = thread::Builder::new().stack_size(64 << 20).spawn(move || assert_eq!(descend(&engine, 200), 200));
        deep.expect("a thread starts").join().expect("nothing panics");
    });
}

/// Every form of wait, inside an operation, for operations that only the same worker can run.
#[test]
fn every_form_of_wait_works_inside_an_operation() {
    on_kinds(&KINDS, 1, |engine| {
        let inner = engine.clone();
        let outer = engine
            .op("outer")
            .submit((), move |()| {
                let variable = inner.var(0);
                let add = || inner.op("add").push(variable.write(), |value| *value += 1).expect("it is open");
                add();
                inner.wait_for_var(&variable).expect("nothing fails");
                add();
                inner.wait_to_read(&variable).expect("nothing fails");
                add();
                inner.wait_for_var(&variable).expect("nothing fails");
                add();
                inner.wait_for_var_timeout(&variable, Duration::MAX).expect("nothing fails");
                add();
                let value = inner.get(&variable).expect("nothing fails");
                let mut handle = inner.op("read").submit(variable.read(), |value| *value).expect("it is open");
                (value, handle.wait_timeout(Duration::MAX).expect("nothing fails"))
            })
            .expect("the engine is open");
        assert_eq!(outer.wait().expect("nothing fails"), (5, 5));
    });
}

/// Fifty operations wait at once for something that only a worker can bring about, and there is one worker.
#[test]
fn fifty_operations_wait_at_once_on_a_single_worker() {
    on_kinds(&THREADED, 1, |engine| {
        let (signal, waiting) = (engine.token(), Arc::new(AtomicUsize::new(0)));
        let gate = hold(&engine, &signal);
        let waiters: Vec<_> = (0..50)
            .map(|_| {
                let (engine, signal, waiting) = (engine.clone(), signal.clone(), Arc::clone(&waiting));
                let wait = move |()| {
                    waiting.fetch_add(1, SeqCst);
                    engine.wait_for_var(&signal)
                };
                (wait, ())
            })
            .map(|(wait, ())| engine.op("wait").submit((), wait).expect("the engine is open"))
            .collect();
        eventually("all fifty wait", || waiting.load(SeqCst) == 50);
        // The worker is free all the same.
        assert_eq!(engine.op("beside").submit((), |()| 1).expect("it is open").wait().expect("nothing fails"), 1);
        gate.open();
        for waiter in waiters {
            waiter.wait().expect("the operation does not fail").expect("nor does its wait");
        }
        engine.wait_for_all().expect("nothing fails");
    });
}

/// Operations wait in two lanes of two engines for each other's operations.
#[test]
fn operations_of_two_engines_wait_for_each_other() {
    for kinds in [[EngineKind::Pooled, EngineKind::PerDevice], [EngineKind::PerDevice, EngineKind::Naive]] {
        watched(move || {
            fn bounce(here: Engine, there: Engine, depth: usize) -> usize {
                if depth == 0 {
                    return 0;
                }
                let (next_here, next_there) = (there.clone(), here);
                let handle = there.op("bounce").submit((), move |()| bounce(next_here, next_there, depth - 1));
                1 + handle.expect("the engines are open").wait().expect("nothing fails")
            }
            let engines = kinds.map(|kind| engine(kind, 1));
            assert_eq!(bounce(engines[0].clone(), engines[1].clone(), 40), 40);
        });
    }
}

/// More operations than the engine has spare threads for wait at once: each gets what it waits for or an error, at once.
#[test]
#[cfg_attr(miri, ignore = "starts 1,024 threads")]
fn too_many_waits_at_once_are_an_error_and_no_hang() {
    watched(|| {
        let engine = engine(EngineKind::Pooled, 1);
        let signal = engine.token();
        let gate = hold(&engine, &signal);
        let (sender, receiver) = mpsc::channel();
        for _ in 0..1100 {
            let (waiting, signal, sender) = (engine.clone(), signal.clone(), sender.clone());
            engine
                .op("wait")
                .push((), move |()| {
                    let result = waiting.wait_for_var(&signal);
                    sender.send(result).expect("the test listens");
                })
                .expect("the engine is open");
        }
        drop(sender);
        let early = receiver.recv_timeout(common::PATIENCE).expect("one of them has no room to wait");
        assert!(matches!(early, Err(WaitError::TooManyWaiting)), "{early:?}");
        gate.open();
        let others: Vec<_> = receiver.iter().collect();
        assert_eq!(others.len(), 1099);
        assert!(others.iter().all(|result| matches!(result, Ok(()) | Err(WaitError::TooManyWaiting))));
        assert!(others.iter().filter(|result| result.is_ok()).count() >= 1000);
        engine.wait_for_all().expect("nothing fails");
    });
}

// ------------------------------------------------------------------------- waits that would never come to an end ----

/// Whether `wait` gives `WouldDeadlock` inside an operation, at once.
#[track_caller]
fn assert_would_deadlock<T: std::fmt::Debug>(result: Result<T, WaitError>) {
    assert!(matches!(result, Err(WaitError::WouldDeadlock)), "{result:?}");
}

#[test]
fn waiting_for_a_variable_that_the_operation_mutates_would_deadlock() {
    on_kinds(&KINDS, 1, |engine| {
        let variable = engine.var(0);
        let (inner, own) = (engine.clone(), variable.clone());
        let outer = engine.op("outer").submit(variable.write(), move |_| {
            let start = Instant::now();
            assert_would_deadlock(inner.wait_for_var(&own));
            assert_would_deadlock(inner.wait_for_var_timeout(&own, Duration::MAX));
            assert_would_deadlock(inner.wait_to_read(&own));
            assert_would_deadlock(inner.wait_for_var(&own));
            assert_would_deadlock(inner.get(&own));
            assert_would_deadlock(block_on(inner.wait_for_var_async(&own)));
            assert_would_deadlock(block_on(inner.wait_to_read_async(&own)));
            assert!(start.elapsed() < Duration::from_secs(5));
        });
        outer.expect("the engine is open").wait().expect("nothing fails");
    });
}

#[test]
fn waiting_for_a_variable_that_the_operation_reads_would_deadlock() {
    on_kinds(&KINDS, 1, |engine| {
        let variable = engine.var(0);
        let (inner, own) = (engine.clone(), variable.clone());
        let outer = engine.op("outer").submit(variable.read(), move |_| {
            assert_would_deadlock(inner.wait_for_var(&own));
            assert_would_deadlock(inner.wait_for_var(&own));
            assert_would_deadlock(inner.wait_to_read(&own));
        });
        outer.expect("the engine is open").wait().expect("nothing fails");
    });
}

/// A reader may get what it reads, unless a mutation already stands behind it: then the value cannot be had before the
/// operation itself ends.
#[test]
fn getting_a_variable_that_the_operation_reads_never_hangs() {
    on_kinds(&KINDS, 1, |engine| {
        let variable = engine.var(5);
        let (inner, own, pushed) = (engine.clone(), variable.clone(), Gate::new());
        let reader = engine
            .op("reader")
            .property(raddle::Property::CopyToGpu)
            .submit(variable.read(), {
                let pushed = pushed.clone();
                move |_| {
                    if inner.kind() == EngineKind::Naive {
                        // The naive engine runs this inside the push, so the mutation is pushed here.
                        inner.op("mutation").push(own.write(), |value| *value += 1).expect("it is open");
                    } else {
                        pushed.pass();
                    }
                    inner.get(&own)
                }
            })
            .expect("the engine is open");
        if engine.kind() != EngineKind::Naive {
            engine.op("mutation").push(variable.write(), |value| *value += 1).expect("the engine is open");
            pushed.open();
        }
        let got = reader.wait().expect("the operation does not fail");
        assert!(matches!(got, Ok(5) | Err(WaitError::WouldDeadlock)), "{got:?}");
        assert_eq!(engine.get(&variable).expect("nothing fails"), 6);
    });
}

#[test]
fn waiting_for_the_own_handle_would_deadlock() {
    on_kinds(&THREADED, 1, |engine| {
        let slot: Arc<Mutex<Option<OpHandle<()>>>> = Arc::default();
        let (stored, inner_slot, inner_stored) = (Gate::new(), Arc::clone(&slot), Gate::new());
        let answer = Arc::new(Mutex::new(None));
        let (passed, inner_answer) = (stored.clone(), Arc::clone(&answer));
        let handle = engine
            .op("own")
            .submit((), move |()| {
                passed.pass();
                let own: OpHandle<()> = lock(&inner_slot).take().expect("the handle was stored");
                *lock(&inner_answer) = Some(own.wait());
                inner_stored.open();
            })
            .expect("the engine is open");
        *lock(&slot) = Some(handle);
        stored.open();
        engine.wait_for_all().expect("nothing fails");
        let answer = lock(&answer).take().expect("the operation has run");
        assert_would_deadlock(answer);
    });
}

/// The wait sits in an operation that runs inside another one's push, which holds the variable.
#[test]
fn waiting_for_a_variable_of_an_outer_operation_would_deadlock() {
    on_kinds(&KINDS, 1, |engine| {
        let variable = engine.token();
        let (sender, receiver) = mpsc::channel();
        let own = variable.clone();
        engine
            .push_sync(
                move |cx| {
                    let (inner, own) = (cx.engine(), own.clone());
                    // Begun on this thread, inside this operation.
                    cx.engine()
                        .op("nested")
                        .eager()
                        .push_sync(move |_| sender.send(inner.wait_for_var(&own)).expect("the test listens"))
                        .expect("the engine is open");
                },
                [],
                [&variable],
            )
            .expect("the engine is open");
        assert_would_deadlock(receiver.recv_timeout(common::PATIENCE).expect("the wait ends"));
        engine.wait_for_all().expect("nothing fails");
    });
}

#[test]
fn waiting_for_all_inside_an_operation_would_deadlock() {
    on_kinds(&KINDS, 1, |engine| {
        let inner = engine.clone();
        let outer = engine.op("outer").submit((), move |()| {
            assert_would_deadlock(inner.wait_for_all());
            assert_would_deadlock(inner.wait_for_all_timeout(Duration::MAX));
            assert_would_deadlock(block_on(inner.wait_for_all_async()));
        });
        outer.expect("the engine is open").wait().expect("nothing fails");
        engine.wait_for_all().expect("nothing fails");
    });
}

/// All operations of *another* engine can be waited for.
#[test]
fn waiting_for_all_of_another_engine_inside_an_operation_works() {
    on_kinds(&KINDS, 1, |here| {
        let there = engine(EngineKind::PerDevice, 1);
        let count = Arc::new(AtomicUsize::new(0));
        let (inner, inner_count) = (there.clone(), Arc::clone(&count));
        let outer = here.op("outer").submit((), move |()| {
            for _ in 0..100 {
                let count = Arc::clone(&inner_count);
                inner.op("").push((), move |()| _ = count.fetch_add(1, SeqCst)).expect("it is open");
            }
            inner.wait_for_all().expect("nothing fails");
            inner_count.load(SeqCst)
        });
        assert_eq!(outer.expect("it is open").wait().expect("nothing fails"), 100);
    });
}

/// While an operation shuts another engine down, its worker must go on with others: the other engine may need them.
#[test]
fn an_operation_that_shuts_another_engine_down_does_not_keep_its_worker() {
    watched(|| {
        let (here, there) = (engine(EngineKind::Pooled, 1), engine(EngineKind::Pooled, 1));
        let (queued, begun) = (Gate::new(), Gate::new());
        // An operation there needs one here, which is queued behind the one that shuts down.
        let (inner_queued, inner_here) = (queued.clone(), here.clone());
        there
            .op("needs")
            .push((), move |()| {
                inner_queued.pass();
                inner_here.op("needed").submit((), |()| 1).expect("it is open").wait().expect("nothing fails");
            })
            .expect("the engine is open");
        let (passed, inner_there) = (begun.clone(), there.clone());
        let shutdown = here
            .op("shut down")
            .submit((), move |()| {
                passed.open();
                inner_there.shutdown(Shutdown::Drain, Some(Duration::from_secs(20)))
            })
            .expect("the engine is open");
        begun.pass();
        queued.open();
        assert_eq!(shutdown.wait().expect("nothing fails"), Ok(()));
    });
}

/// Threads that push and threads that wait, all at the same variables.
#[test]
fn pushes_and_all_kinds_of_waits_cross() {
    on_kinds(&KINDS, 2, |engine| {
        let variables: Vec<_> = (0..3).map(|_| engine.var(0_u64)).collect();
        thread::scope(|scope| {
            for pusher in 0..4 {
                let (engine, variables) = (&engine, &variables);
                scope.spawn(move || {
                    for number in 0..300 {
                        let (a, b) = (&variables[(pusher + number) % 3], &variables[(pusher + 2 * number + 1) % 3]);
                        if (pusher + number) % 3 == (pusher + 2 * number + 1) % 3 {
                            engine.op("").push(a.write(), |a| *a += 1).unwrap();
                        } else {
                            engine.op("").push((a.write(), b.read()), |(a, _)| *a += 1).unwrap();
                        }
                        match number % 6 {
                            0 => engine.wait_for_var(a).unwrap(),
                            1 => engine.wait_to_read(b).unwrap(),
                            2 => engine.wait_for_all().unwrap(),
                            3 => block_on(engine.wait_for_var_async(b)).unwrap(),
                            4 => block_on(engine.wait_for_all_async()).unwrap(),
                            _ => drop(engine.get(a).unwrap()),
                        }
                    }
                });
            }
        });
        let total: u64 = variables.iter().map(|variable| engine.get(variable).unwrap()).sum();
        assert_eq!(total, 1200);
    });
}

/// Every worker waits at a meeting that only a wait's spare thread can complete.
#[test]
fn workers_that_wait_are_replaced_while_others_meet() {
    on_kinds(&THREADED, 2, |engine| {
        let (signal, meeting) = (engine.token(), Meeting::new(2));
        let gate = hold(&engine, &signal);
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let (engine, signal) = (engine.clone(), signal.clone());
                (engine.clone(), move |()| engine.wait_for_var(&signal))
            })
            .map(|(engine, wait)| engine.op("wait").submit((), wait).expect("it is open"))
            .collect();
        let meet: Vec<_> = (0..2)
            .map(|_| {
                let meeting = meeting.clone();
                engine.op("meet").submit((), move |()| meeting.join_within(common::PATIENCE)).expect("it is open")
            })
            .collect();
        for handle in meet {
            assert!(handle.wait().expect("nothing fails"), "both workers are there although two operations wait");
        }
        gate.open();
        for waiter in waiters {
            waiter.wait().expect("nothing fails").expect("nor does the wait");
        }
    });
}

/// A waker is run by the worker that ends what is waited for. If it blocks, it keeps that worker, and nothing that the worker
/// was to run next.
#[test]
fn a_waker_that_blocks_keeps_nothing_from_the_other_worker() {
    struct Blocks {
        reached: Gate,
        released: Gate,
    }
    impl Wake for Blocks {
        fn wake(self: Arc<Self>) {
            self.reached.open();
            self.released.pass();
        }
    }
    on_kinds(&THREADED, 2, |engine| {
        let (one, other) = (engine.token(), engine.token());
        let (gate, blocks) = (Gate::new(), Blocks { reached: Gate::new(), released: Gate::new() });
        let (inside, released, reached) = (gate.clone(), blocks.released.clone(), blocks.reached.clone());
        engine.op("first").writes([&one, &other]).push_sync(move |_| inside.pass()).expect("the engine is open");
        let mut wait = pin!(engine.wait_for_var_async(&one));
        let waker = Waker::from(Arc::new(blocks));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "the first operation holds it");
        // What lets the waker go on becomes ready together with the wait.
        let next = engine.op("next").writes([&other]).push_sync(move |_| {
            reached.pass();
            released.open();
        });
        next.expect("the engine is open");
        gate.open();
        engine.wait_for_all().expect("nothing fails");
    });
}

/// An operation may wait, by means that the engine does not know, for what it has pushed: another worker takes that.
#[test]
fn what_an_operation_pushes_runs_beside_it() {
    on_kinds(&THREADED, 2, |engine| {
        let inside = engine.clone();
        let handle = engine.op("pushes").submit((), move |()| {
            let gate = Gate::new();
            let open = gate.clone();
            inside.push_sync(move |_| open.open(), [], []).expect("the engine is open");
            gate.pass_within(SOON)
        });
        assert!(handle.expect("it is open").wait().expect("nothing fails"), "what was pushed waits for its pusher");
    });
}

// ------------------------------------------------------------------------------- what other crates leave about ----

/// What other crates retire in crossbeam's default collector may run wherever somebody pins that, and so in a worker's
/// look into another's deque. It pushes and waits there.
#[test]
fn what_others_defer_may_push_and_wait_on_any_thread() {
    watched_for(AWHILE, || {
        let engine = engine(EngineKind::PerDevice, 2);
        let (ran, pushed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            for _ in 0..64 {
                let (engine, ran, pushed) = (engine.clone(), Arc::clone(&ran), Arc::clone(&pushed));
                epoch::pin().defer(move || {
                    let token = engine.token();
                    let pushed_one =
                        engine.op("deferred").writes([&token]).push_sync(move |_| _ = ran.fetch_add(1, SeqCst));
                    if pushed_one.is_ok() {
                        pushed.fetch_add(1, SeqCst);
                        match engine.wait_for_var(&token) {
                            Ok(()) | Err(WaitError::WouldDeadlock) => {}
                            other => panic!("{other:?}"),
                        }
                    }
                });
            }
            epoch::pin().flush();
            // Something to look for in vain, and something to steal.
            for _ in 0..16 {
                engine.push_sync(|_| std::hint::spin_loop(), [], []).expect("the engine is open");
            }
            thread::sleep(Duration::from_micros(300));
        }
        eventually("all that was pushed has run", || ran.load(SeqCst) == pushed.load(SeqCst));
        assert!(pushed.load(SeqCst) > 0, "nothing deferred has run");
        engine.wait_for_all().expect("nothing fails");
    });
}

/// The same inside a push by an operation, into a deque that has to grow for it.
#[test]
fn what_others_defer_may_push_while_a_workers_deque_grows() {
    const PUSHES: usize = 600;
    let pushes_into_it = |engine: Engine| {
        let (ran, deferred) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (inside, ran_inside, deferred_inside) = (engine.clone(), Arc::clone(&ran), Arc::clone(&deferred));
        let pushes = move |_: &OpContext<'_>| {
            let (outside, deferred) = (inside.clone(), Arc::clone(&deferred_inside));
            let guard = epoch::pin();
            guard.defer(move || {
                let pushed = outside.push_sync(move |_| _ = deferred.fetch_add(1, SeqCst), [], []);
                pushed.expect("the engine is open");
            });
            guard.flush();
            drop(guard);
            for _ in 0..PUSHES {
                let ran = Arc::clone(&ran_inside);
                inside.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], []).expect("the engine is open");
            }
        };
        engine.push_sync(pushes, [], []).expect("the engine is open");
        eventually("all that was pushed has run", || ran.load(SeqCst) == PUSHES);
        // Wherever it ran, or will: this thread may have to see to it.
        eventually("what was deferred has run", || {
            epoch::pin().flush();
            deferred.load(SeqCst) == 1
        });
        engine.wait_for_all().expect("nothing fails");
    };
    for kind in THREADED {
        watched_for(AWHILE, move || pushes_into_it(engine(kind, 1)));
    }
}

/// Whoever waited has gone, and the failure that it was to be told is cleared: the wait's operation is the last to know the
/// error, and the error's drop is code of the program inside an operation.
#[test]
fn the_drop_of_an_error_that_only_a_forgotten_wait_still_knows_cannot_wait_for_itself() {
    #[derive(Debug)]
    struct Waits(Engine, mpsc::Sender<Result<(), WaitError>>);
    impl std::fmt::Display for Waits {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("waits when it is dropped")
        }
    }
    impl std::error::Error for Waits {}
    impl Drop for Waits {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.wait_for_all());
        }
    }
    on_kinds(&THREADED, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let (variable, gate, inside) = (engine.token(), Gate::new(), engine.clone());
        let opened = gate.clone();
        let fails = move |_: &OpContext<'_>| {
            opened.pass();
            Err::<(), _>(Waits(inside, sender))
        };
        engine.push_sync(fails, [], [&variable]).expect("the engine is open");
        let waited = engine.wait_for_var_timeout(&variable, Duration::from_millis(1));
        assert!(matches!(waited, Err(WaitError::TimedOut)), "{waited:?}");
        engine.clear_error(&variable).expect("the engine is open");
        gate.open();
        let told = receiver.recv_timeout(SOON).expect("the error is dropped, and its drop ends");
        assert!(matches!(told, Err(WaitError::WouldDeadlock)), "{told:?}");
        engine.wait_for_all().expect("the failure is cleared");
    });
}

thread_local!(static KEPT: RefCell<Option<Engine>> = const { RefCell::new(None) });

/// The last handle that keeps an engine open ends with one of the engine's own threads, which somebody is waiting for.
#[test]
fn a_handle_in_a_workers_thread_local_does_not_keep_a_shutdown() {
    on_kinds(&THREADED, 1, |engine| {
        let (sender, receiver) = mpsc::channel();
        let own = engine.clone();
        let keep = move |cx: &OpContext<'_>| {
            KEPT.set(Some(own));
            sender.send(cx.engine()).expect("the test waits");
        };
        engine.push_sync(keep, [], []).expect("the engine is open");
        let uncounted = receiver.recv().expect("the operation runs");
        engine.wait_for_all().expect("nothing fails");
        drop(engine);
        uncounted.shutdown(Shutdown::Drain, None).expect("nobody waits for this thread");
    });
}

/// What others defer panics while an operation pushes more than a deque has room for: nothing that was pushed is lost.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn what_others_defer_may_panic_while_an_operation_pushes() {
    child_succeeds("in_a_child_what_others_defer_panics_while_an_operation_pushes");
}

#[test]
#[ignore = "run by another test in a process of its own, because operations of other tests that push or pin would panic"]
fn in_a_child_what_others_defer_panics_while_an_operation_pushes() {
    const PUSHES: usize = 3_000;
    if !is_child() {
        return;
    }
    let pushes_into_it = |engine: Engine| {
        let ran = Arc::new(AtomicUsize::new(0));
        let (inside, ran_inside) = (engine.clone(), Arc::clone(&ran));
        let pushes = move |_: &OpContext<'_>| {
            // By one pin, which is too soon to run any of it: that is left to pins of others.
            let guard = epoch::pin();
            for _ in 0..200 {
                guard.defer(|| {
                    if thread::current().name().is_some_and(|name| name.starts_with("raddle-")) {
                        panic!("deferred by another crate");
                    }
                });
            }
            drop(guard);
            for _ in 0..PUSHES {
                let ran = Arc::clone(&ran_inside);
                inside.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], []).expect("the engine is open");
            }
        };
        engine.push_sync(pushes, [], []).expect("the engine is open");
        eventually("all that was pushed has run", || ran.load(SeqCst) == PUSHES);
        engine.wait_for_all().expect("nothing fails");
    };
    for kind in THREADED {
        watched_for(AWHILE, move || pushes_into_it(engine(kind, 1)));
    }
}

/// What others defer may panic in a worker's look as well. That costs neither the worker nor its wake-ups.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn what_others_defer_may_panic_on_any_thread() {
    child_succeeds("in_a_child_what_others_defer_panics");
}

#[test]
#[ignore = "run by another test in a process of its own, because operations of other tests that push or pin would panic"]
fn in_a_child_what_others_defer_panics() {
    const PANICS: usize = 20;
    if !is_child() {
        return;
    }
    on_kinds(&THREADED, 2, |engine| {
        let (on_workers, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut pushed = 0;
        let end = Instant::now() + Duration::from_secs(20);
        while on_workers.load(SeqCst) < PANICS && Instant::now() < end {
            let on_workers = Arc::clone(&on_workers);
            // This thread must not be the one that runs it, so it does not pin again before the workers had their chance.
            epoch::pin().defer(move || {
                if thread::current().name().is_some_and(|name| name.starts_with("raddle-")) {
                    on_workers.fetch_add(1, SeqCst);
                    panic!("deferred by another crate");
                }
            });
            epoch::pin().flush();
            for _ in 0..400 {
                let ran = Arc::clone(&ran);
                engine.push_sync(move |_| _ = ran.fetch_add(1, SeqCst), [], []).expect("the engine is open");
                pushed += 1;
            }
            // Long enough for the workers to fall asleep now and then.
            thread::sleep(Duration::from_micros(200));
        }
        println!("{} panics", on_workers.load(SeqCst));
        for _ in 0..50 {
            let token = engine.token();
            engine.op("after").writes([&token]).push_sync(|_| {}).expect("the engine is open");
            engine.wait_for_var_timeout(&token, Duration::from_secs(10)).expect("a worker comes by");
        }
        engine.wait_for_all().expect("nothing fails");
        assert_eq!(ran.load(SeqCst), pushed);
    });
}

// ------------------------------------------------------------------------------------- what a thread has put off ----

type Deep = Arc<Mutex<Option<Box<dyn FnOnce(OpHandle<()>) + Send>>>>;

/// Calls `f` in an operation of a naive engine, so deep inside others that what that has pushed is left for later: `f` gets
/// its handle.
fn too_deep(engine: &Engine, f: impl FnOnce(OpHandle<()>) + Send + 'static) {
    fn descend(engine: &Engine, f: &Deep) {
        let (inside, inner, ran) = (engine.clone(), Arc::clone(f), Gate::new());
        let opens = ran.clone();
        let goes_down = move |()| {
            opens.open();
            if lock(&inner).is_some() {
                descend(&inside, &inner);
            }
        };
        let next = engine.op("deep").submit((), goes_down).unwrap();
        if !ran.is_open() {
            let f = lock(f).take();
            f.expect("it ends where it is too deep")(next);
        }
    }
    let f: Deep = Arc::new(Mutex::new(Some(Box::new(f))));
    descend(engine, &f);
    assert!(lock(&f).is_none(), "it is never too deep");
}

#[test]
#[cfg_attr(miri, ignore = "uses much of the stack")]
fn what_was_put_off_runs_when_its_future_is_polled() {
    watched(|| {
        let engine = engine(EngineKind::Naive, 1);
        too_deep(&engine, |next| block_on(next).unwrap());
        let (inside, var) = (engine.clone(), engine.token());
        too_deep(&engine, move |next| {
            inside.op("after").writes([&var]).push_sync(|_| ()).unwrap();
            block_on(inside.wait_for_var_async(&var)).unwrap();
            next.wait().unwrap();
        });
    });
}

#[test]
#[cfg_attr(miri, ignore = "uses much of the stack")]
fn what_was_put_off_runs_when_another_engine_is_shut_down_that_waits_for_it() {
    for drops in [false, true] {
        watched(move || {
            too_deep(&engine(EngineKind::Naive, 1), move |next| {
                let other = engine(EngineKind::PerDevice, 1);
                other.op("waits").push((), move |()| next.wait().unwrap()).unwrap();
                if !drops {
                    other.shutdown(Shutdown::Drain, None).unwrap();
                }
            });
        });
    }
}

/// Neither waits for the other: a drop inside an operation does not.
#[test]
fn operations_of_two_engines_may_drop_the_last_handles_of_each_other() {
    on_kinds(&THREADED, 1, |one| {
        let other = engine(one.kind(), 1);
        let (sender, observers) = mpsc::channel();
        let meeting = Arc::new(Barrier::new(2));
        let (drops, pushes) = (Mutex::new(Some(other.clone())), [one.clone(), other]);
        let drops = [drops, Mutex::new(Some(one))];
        for (engine, last) in pushes.into_iter().zip(drops) {
            let (meeting, sender) = (Arc::clone(&meeting), sender.clone());
            let f = move |cx: &OpContext<'_>| {
                sender.send(cx.engine()).unwrap();
                meeting.wait();
                // The program's own handles are gone by now.
                thread::sleep(common::MOMENT);
                drop(lock(&last).take());
            };
            engine.push_sync(f, [], []).unwrap();
        }
        for observer in observers.iter().take(2) {
            eventually("the engine ends", || observer.shutdown(Shutdown::Drain, Some(SOON)).is_ok());
        }
    });
}

/// A panic drops it, and the function catches that and goes on.
#[test]
fn a_lost_completion_is_known_where_another_engine_waits_for_its_operation() {
    type Wait = fn(&Engine, OpHandle<()>);
    let waits: [Wait; 3] = [
        |_, waits| waits.wait().unwrap(),
        |other, _| other.wait_for_all().unwrap(),
        |other, _| other.shutdown(Shutdown::Drain, None).unwrap(),
    ];
    for wait in waits {
        on_kinds(&KINDS, 1, move |own| {
            let (other, token, inside) = (engine(EngineKind::PerDevice, 1), own.token(), own.clone());
            let var = token.clone();
            let (sender, receiver) = mpsc::channel();
            let loses = move |_: &OpContext<'_>, done| {
                let lost = catch_unwind(AssertUnwindSafe(|| {
                    let _done: raddle::Completion = done;
                    resume_unwind(Box::new("lost"));
                }));
                assert!(lost.is_err());
                let (its, its_var) = (inside.clone(), var.clone());
                let waits = other.op("waits").submit((), move |()| assert!(its.wait_for_var(&its_var).is_err()));
                wait(&other, waits.unwrap());
                sender.send(()).unwrap();
            };
            own.op("loses").writes([&token]).push_async_any(raddle::cx(), loses).unwrap();
            receiver.recv_timeout(SOON).expect("it goes on");
        });
    }
}
