//! Operations that commute on variables: they exclude each other there, in no promised order, and are ordered against
//! reads and writes.

use raddle_testkit as common;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc,
    },
    thread,
};

use common::{
    AWHILE, Gate, KINDS, MOMENT, THREADED, all_engines, block_on, engine, failure, hold, lock, on_kinds, poll_once,
    program::fewer, watched,
};
use raddle::{
    Completion, Device, Engine, EngineKind, OpHandle, PushError, Shutdown, Token, Var, WaitError, chosen, completion,
    cx,
    error::{Cause, Misfit},
    gpu::SimulatedGpu,
    replay::{Log, Replay},
    stream,
    trace::{AccessMode, OpState, Recorder},
};

/// A number generator: Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Pushes an operation that commutes on `variable` and ends when the gate is opened. It has started when this returns.
fn take<T: Send + 'static>(engine: &Engine, variable: &Var<T>) -> Gate {
    let (gate, started) = (Gate::new(), Gate::new());
    let (inside, starts) = (gate.clone(), started.clone());
    engine
        .op("holder")
        .commutes([variable])
        .push(completion(), move |done| {
            starts.open();
            thread::spawn(move || {
                inside.pass();
                done.complete();
            });
        })
        .unwrap();
    started.pass();
    gate
}

// ------------------------------------------------------------------------------------------------------ order ----

#[test]
fn operations_that_commute_exclude_each_other() {
    on_kinds(&KINDS, 4, |engine| {
        let (sum, inside) = (engine.var(0u64), Arc::new(AtomicBool::new(false)));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..fewer(2000) {
                        let inside = Arc::clone(&inside);
                        let add = move |sum: &mut u64| {
                            assert!(!inside.swap(true, SeqCst), "two operations use the variable");
                            *sum += 1;
                            inside.store(false, SeqCst);
                        };
                        engine.op("add").push(sum.commute(), add).unwrap();
                    }
                });
            }
        });
        assert_eq!(engine.get(&sum).unwrap(), 3 * fewer(2000) as u64);
        assert_eq!(sum.version(), 3 * fewer(2000) as u64);
    });
}

/// One of the operations of a random program.
#[derive(Clone, Debug)]
enum Step {
    /// Adds to each of the variables.
    Add(Vec<usize>, u64),
    /// Multiplies one variable and adds another one to it.
    Mix(usize, usize),
    /// Reads a variable, and adds it to another one on which it commutes.
    Move(usize, usize),
    Read(usize),
}

fn random_steps(seed: u64, variables: u64, count: usize) -> Vec<Step> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut step = || {
        let (one, other) = (random.below(variables), random.below(variables));
        match random.below(8) {
            0 => Step::Mix(one as usize, other as usize),
            1 => Step::Read(one as usize),
            2 if one != other => Step::Move(one as usize, other as usize),
            _ => {
                let chosen = (0..variables).filter(|_| random.below(3) == 0).map(|at| at as usize).collect();
                Step::Add(chosen, random.below(100))
            }
        }
    };
    (0..count).map(|_| step()).collect()
}

/// Returns the values read, and the values at the end.
fn run_serially(steps: &[Step], variables: usize) -> (Vec<u64>, Vec<u64>) {
    let (mut values, mut read) = (vec![0u64; variables], Vec::new());
    for step in steps {
        match step {
            Step::Add(chosen, by) => chosen.iter().for_each(|&at| values[at] += by),
            Step::Mix(to, from) => values[*to] = values[*to].wrapping_mul(3).wrapping_add(values[*from]) % 1_000_003,
            Step::Move(from, to) => values[*to] += values[*from],
            Step::Read(at) => read.push(values[*at]),
        }
    }
    (read, values)
}

fn run_on(engine: &Engine, steps: &[Step], variables: usize) -> (Vec<u64>, Vec<u64>) {
    let values: Vec<_> = (0..variables).map(|_| engine.var(0u64)).collect();
    let mut read = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        match *step {
            Step::Add(ref chosen, by) => {
                let accesses: Vec<_> = chosen.iter().map(|&at| values[at].commute()).collect();
                let add = move |sums: Vec<&mut u64>| sums.into_iter().for_each(|sum| *sum += by);
                match at % 3 {
                    0 => drop(engine.op("add").submit(accesses, add).unwrap()),
                    1 => engine
                        .op("add")
                        .push((accesses, completion()), move |(sums, done)| {
                            add(sums);
                            done.complete();
                        })
                        .unwrap(),
                    _ => engine.op("add").push(accesses, add).unwrap(),
                }
            }
            Step::Mix(to, from) if to == from => {
                let mix = |to: &mut u64| *to = to.wrapping_mul(3).wrapping_add(*to) % 1_000_003;
                engine.op("mix").push(values[to].write(), mix).unwrap();
            }
            Step::Mix(to, from) => {
                let mix = |(to, from): (&mut u64, &u64)| *to = to.wrapping_mul(3).wrapping_add(*from) % 1_000_003;
                engine.op("mix").push((values[to].write(), values[from].read()), mix).unwrap();
            }
            Step::Move(from, to) => {
                let accesses = (values[from].read(), values[to].commute());
                engine.op("move").push(accesses, |(from, to)| *to += from).unwrap();
            }
            Step::Read(at) => read.push(engine.op("read").submit(values[at].read(), |value| *value).unwrap()),
        }
    }
    let read = read.into_iter().map(|handle| handle.wait().unwrap()).collect();
    (read, values.iter().map(|value| engine.get(value).unwrap()).collect())
}

#[test]
fn random_programs_have_the_values_of_a_serial_run() {
    watched(|| {
        for (name, engine) in all_engines() {
            for seed in 0..fewer(30) as u64 {
                let variables = 2 + seed as usize % 7;
                let steps = random_steps(seed, variables as u64, 300);
                let expected = run_serially(&steps, variables);
                assert_eq!(run_on(&engine, &steps, variables), expected, "{name}, seed {seed}");
            }
        }
    });
}

#[test]
fn random_programs_keep_the_order_in_traces() {
    on_kinds(&THREADED, 3, |_| {
        let recorder = Recorder::new();
        let engine = Engine::builder().workers(3).pin(false).recorder(&recorder).build().unwrap();
        for seed in 0..fewer(10) as u64 {
            run_on(&engine, &random_steps(seed, 5, 300), 5);
        }
        engine.wait_for_all().unwrap();
        let trace = recorder.take();
        trace.check_order().unwrap();
        assert!(trace.ops.iter().any(|op| op.accesses.iter().any(|access| access.1 == AccessMode::Commute)));
    });
}

#[test]
fn an_operation_overtakes_one_that_still_waits_for_another_variable() {
    on_kinds(&THREADED, 2, |engine| {
        let (sum, other) = (engine.var(Vec::new()), engine.token());
        let gate = hold(&engine, &other);
        engine.op("first").writes([&other]).push(sum.commute(), |sum| sum.push(1)).unwrap();
        engine.op("second").submit(sum.commute(), |sum| sum.push(2)).unwrap().wait().unwrap();
        gate.open();
        assert_eq!(engine.get(&sum).unwrap(), [2, 1]);
    });
}

#[test]
fn an_operation_that_lacks_a_variable_holds_up_no_other() {
    on_kinds(&THREADED, 2, |engine| {
        let [left, right] = [(); 2].map(|()| engine.var(Vec::new()));
        let gate = take(&engine, &right);
        let both = (left.commute(), right.commute());
        engine.op("both").push(both, |(left, right)| [left, right].into_iter().for_each(|side| side.push(1))).unwrap();
        engine.op("left").submit(left.commute(), |left| left.push(2)).unwrap().wait().unwrap();
        gate.open();
        assert_eq!(engine.get(&left).unwrap(), [2, 1]);
        assert_eq!(engine.get(&right).unwrap(), [1]);
    });
}

#[test]
fn a_read_behind_a_run_sees_all_of_it_and_one_before_it_nothing() {
    on_kinds(&KINDS, 3, |engine| {
        for _ in 0..fewer(50) {
            let sum = engine.var(0);
            let read = || engine.op("read").submit(sum.read(), |sum| *sum).unwrap();
            let add = || engine.op("add").push(sum.commute(), |sum| *sum += 1).unwrap();
            let before = read();
            (0..10).for_each(|_| add());
            let between = read();
            (0..10).for_each(|_| add());
            assert_eq!([before, between, read()].map(|read| read.wait().unwrap()), [0, 10, 20]);
        }
    });
}

#[test]
fn many_threads_with_many_variables_do_not_deadlock() {
    on_kinds(&KINDS, 4, |engine| {
        let values: Vec<_> = (0..8).map(|_| engine.var(0u64)).collect();
        let expected = Arc::new([const { AtomicU64::new(0) }; 8]);
        thread::scope(|scope| {
            for thread in 1..=4 {
                let (engine, values, expected) = (&engine, &values, &expected);
                scope.spawn(move || {
                    let mut random = Random(thread);
                    for _ in 0..fewer(2000) {
                        let chosen: Vec<_> = (0..8).filter(|_| random.below(3) == 0).collect();
                        chosen.iter().for_each(|&at| _ = expected[at].fetch_add(1, Relaxed));
                        let accesses: Vec<_> = chosen.iter().map(|&at| values[at].commute()).collect();
                        let add = |sums: Vec<&mut u64>| sums.into_iter().for_each(|sum| *sum += 1);
                        engine.op("add").push(accesses, add).unwrap();
                    }
                });
            }
        });
        for (value, expected) in values.iter().zip(&*expected) {
            assert_eq!(engine.get(value).unwrap(), expected.load(Relaxed));
        }
    });
}

/// Pushes an operation that commutes on `variable`, and that pushes another one when it runs, until `stop` is set.
fn go_on(engine: &Engine, variable: &Var<u64>, stop: &Arc<AtomicBool>) {
    let (again, stopped) = (variable.clone(), Arc::clone(stop));
    let step = move |(cx, value): (&raddle::OpContext<'_>, &mut u64)| {
        *value += 1;
        if !stopped.load(SeqCst) {
            go_on_inside(cx, &again, &stopped);
        }
    };
    engine.op("one").push((cx(), variable.commute()), step).unwrap();
}

fn go_on_inside(context: &raddle::OpContext<'_>, variable: &Var<u64>, stop: &Arc<AtomicBool>) {
    let (again, stopped) = (variable.clone(), Arc::clone(stop));
    let step = move |(cx, value): (&raddle::OpContext<'_>, &mut u64)| {
        *value += 1;
        if !stopped.load(SeqCst) {
            go_on_inside(cx, &again, &stopped);
        }
    };
    context.engine().op("one").push((cx(), variable.commute()), step).unwrap();
}

#[test]
fn no_operation_is_overtaken_for_ever() {
    on_kinds(&THREADED, 2, |engine| {
        let values: Vec<_> = (0..4).map(|_| engine.var(0u64)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        values.iter().for_each(|value| (0..3).for_each(|_| go_on(&engine, value, &stop)));
        for _ in 0..fewer(100) {
            let all: Vec<_> = values.iter().map(|value| value.commute()).collect();
            let mut all =
                engine.op("all").submit(all, |values| values.iter().map(|value| **value).sum::<u64>()).unwrap();
            all.wait_timeout(AWHILE).unwrap();
        }
        stop.store(true, SeqCst);
        engine.wait_for_all().unwrap();
    });
}

// --------------------------------------------------------------------------------------------------- failures ----

#[test]
fn operations_of_a_run_ignore_each_others_failures() {
    on_kinds(&KINDS, 2, |engine| {
        let (sum, first) = (engine.var(0), engine.token());
        let threaded = engine.kind() != EngineKind::Naive;
        let gate = threaded.then(|| hold(&engine, &first));
        engine.op("first").writes([&first]).try_push(sum.commute(), |_| Err("first".into())).unwrap();
        let second =
            engine.op("second").try_submit(sum.commute(), |_| -> Result<(), _> { Err("second".into()) }).unwrap();
        assert_eq!(failure(second.wait()).name(), "second");
        engine.op("third").submit(sum.commute(), |sum| *sum += 1).unwrap().wait().unwrap();
        gate.iter().for_each(Gate::open);
        engine.op("fourth").submit(sum.commute(), |sum| *sum += 1).unwrap().wait().unwrap();
        let read = engine.op("read").submit(sum.read(), |sum| *sum).unwrap();
        let skipped = failure(read.wait());
        assert_eq!(skipped.root().name(), "first", "the failure is not that of the operation pushed first");
        // A run behind the read is another one.
        let later = engine.op("later").submit(sum.commute(), |sum| *sum += 1).unwrap();
        assert_eq!(failure(later.wait()).root().name(), "first");
        engine.op("reset").push(sum.overwrite(), |sum| *sum += 10).unwrap();
        assert_eq!(engine.get(&sum).unwrap(), 12);
        let _ = engine.wait_for_all();
    });
}

#[test]
fn a_wait_ends_a_run() {
    on_kinds(&KINDS, 2, |engine| {
        let sum = engine.var(0);
        engine.op("bad").try_push(sum.commute(), |_| Err("bad".into())).unwrap();
        assert_eq!(failure(engine.wait_for_var(&sum)).name(), "bad");
        let skipped = engine.op("skipped").submit(sum.commute(), |sum| *sum += 1).unwrap();
        assert_eq!(failure(skipped.wait()).root().name(), "bad");
        engine.clear_error(&sum).unwrap();
        engine.op("good").submit(sum.commute(), |sum| *sum += 1).unwrap().wait().unwrap();
        assert_eq!(engine.get(&sum).unwrap(), 1);
    });
}

#[test]
fn what_a_run_reads_may_fail_for_some_of_it() {
    on_kinds(&KINDS, 2, |engine| {
        let (sum, bad) = (engine.var(0), engine.var(1));
        engine.op("bad").try_push(bad.write(), |_| Err("bad".into())).unwrap();
        let skipped = engine.op("skipped").submit((bad.read(), sum.commute()), |(by, sum)| *sum += by).unwrap();
        assert_eq!(failure(skipped.wait()).root().name(), "bad");
        engine.op("good").submit(sum.commute(), |sum| *sum += 1).unwrap().wait().unwrap();
        assert_eq!(failure(engine.get(&sum)).root().name(), "bad");
        let _ = engine.wait_for_all();
    });
}

#[test]
fn every_failure_of_a_run_is_reported() {
    on_kinds(&KINDS, 2, |engine| {
        let sum = engine.var(0);
        for _ in 0..3 {
            engine.op("bad").try_push(sum.commute(), |_| Err("bad".into())).unwrap();
        }
        let mut reported = 0;
        while engine.wait_for_all().is_err() {
            reported += 1;
        }
        assert!(reported >= 1, "no failure was reported");
    });
}

// ------------------------------------------------------------------------------------- ends, waits, and groups ----

#[test]
fn an_operation_that_waits_for_its_turn_can_be_cancelled() {
    on_kinds(&THREADED, 2, |engine| {
        let sum = engine.var(0);
        let gate = take(&engine, &sum);
        let cancelled = engine.op("cancelled").submit(sum.commute(), |sum| *sum += 100).unwrap();
        let other = engine.op("other").submit(sum.commute(), |sum| *sum += 1).unwrap();
        assert!(cancelled.cancel());
        assert!(matches!(failure(cancelled.wait()).cause(), Cause::Cancelled));
        gate.open();
        other.wait().unwrap();
        assert!(matches!(failure(engine.get(&sum)).cause(), Cause::Cancelled));
    });
}

#[test]
fn a_cancelled_group_does_not_hold_up_others() {
    on_kinds(&THREADED, 2, |engine| {
        let sum = engine.var(0);
        let group = engine.group();
        let gate = take(&engine, &sum);
        for _ in 0..10 {
            group.op("member").push(sum.commute(), |sum| *sum += 100).unwrap();
        }
        let other = engine.op("other").submit(sum.commute(), |sum| *sum += 1).unwrap();
        group.cancel();
        gate.open();
        other.wait().unwrap();
        group.wait().unwrap_err();
        engine.clear_error(&sum).unwrap();
        assert_eq!(engine.get(&sum).unwrap(), 1);
    });
}

#[test]
fn a_shutdown_cancels_what_waits_for_a_turn() {
    on_kinds(&THREADED, 2, |engine| {
        let sum = engine.var(0);
        let gate = take(&engine, &sum);
        let waits: Vec<_> =
            (0..10).map(|_| engine.op("waits").submit(sum.commute(), |sum| *sum += 1).unwrap()).collect();
        let opener = thread::spawn(move || {
            thread::sleep(MOMENT);
            gate.open();
        });
        engine.shutdown(Shutdown::Cancel, Some(AWHILE)).unwrap();
        opener.join().unwrap();
        for wait in waits {
            assert!(matches!(failure(wait.wait()).cause(), Cause::Cancelled));
        }
    });
}

#[test]
fn variables_are_deleted_behind_their_runs() {
    on_kinds(&KINDS, 2, |engine| {
        let (ran, deleted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
        for by in 0..2 {
            ran.store(0, SeqCst);
            let (left, right) = (engine.var(0), engine.var(0));
            for _ in 0..fewer(200) {
                let ran = Arc::clone(&ran);
                let both = (left.commute(), right.commute());
                engine.op("both").push(both, move |_| _ = ran.fetch_add(1, SeqCst)).unwrap();
            }
            if by == 0 {
                let (ran, deleted) = (Arc::clone(&ran), Arc::clone(&deleted));
                engine.delete_variable(left.token(), move |_| deleted.store(ran.load(SeqCst), SeqCst)).unwrap();
                let refused = engine.op("late").push(left.commute(), |_| ());
                assert!(matches!(refused, Err(PushError::Variable(..))), "{refused:?}");
            }
            drop((left, right));
            engine.wait_for_all().unwrap();
            assert_eq!(ran.load(SeqCst), fewer(200));
        }
        assert_eq!(deleted.load(SeqCst), fewer(200));
    });
}

#[test]
fn a_wait_for_what_waits_for_ones_own_turn_is_refused() {
    on_kinds(&KINDS, 2, |engine| {
        let sum = engine.var(0);
        let inner = sum.clone();
        let outer = engine
            .op("outer")
            .submit((cx(), sum.commute()), move |(cx, _)| {
                let other = cx.engine().op("inner").submit(inner.commute(), |sum| *sum += 1).unwrap();
                matches!(other.wait(), Err(WaitError::WouldDeadlock(_)))
            })
            .unwrap();
        assert!(outer.wait().unwrap(), "the wait was not refused");
        assert_eq!(engine.get(&sum).unwrap(), 1);
    });
}

/// The operation waited for was pushed earlier, so it is before the waiting one in the queue.
#[test]
fn a_wait_for_an_earlier_operation_that_waits_for_ones_own_turn_is_refused() {
    on_kinds(&THREADED, 2, |engine| {
        let (sum, other) = (engine.var(0), engine.token());
        let held = hold(&engine, &other);
        let earlier = engine.op("earlier").writes([&other]).submit(sum.commute(), |sum| *sum += 1).unwrap();
        let (started, goes_on) = (Gate::new(), Gate::new());
        let (starts, goes) = (started.clone(), goes_on.clone());
        let later = engine
            .op("later")
            .submit(sum.commute(), move |_| {
                starts.open();
                goes.pass();
                matches!(earlier.wait(), Err(WaitError::WouldDeadlock(_)))
            })
            .unwrap();
        started.pass();
        held.open();
        thread::sleep(MOMENT);
        goes_on.open();
        assert!(later.wait().unwrap(), "the wait was not refused");
        assert_eq!(engine.get(&sum).unwrap(), 1);
    });
}

/// An operation that holds a variable in one mode pushes others in alternating ones, and waits for the last.
#[test]
fn a_wait_behind_any_number_of_runs_is_refused() {
    for kind in KINDS {
        for (commutes, runs) in [false, true].into_iter().flat_map(|commutes| (2..=8).map(move |runs| (commutes, runs)))
        {
            watched(move || {
                let engine = engine(kind, 2);
                let sum = engine.var(0);
                let inner = sum.clone();
                let body = move |engine: &Engine| {
                    let mut last = None;
                    for at in 0..runs {
                        last = Some(if (at % 2 == 0) == commutes {
                            engine.op("read").submit(inner.read(), |_| ()).unwrap()
                        } else {
                            engine.op("add").submit(inner.commute(), |sum| *sum += 1).unwrap()
                        });
                    }
                    matches!(last.unwrap().wait(), Err(WaitError::WouldDeadlock(_)))
                };
                let outer = if commutes {
                    engine.op("outer").submit((cx(), sum.commute()), move |(cx, _)| body(&cx.engine()))
                } else {
                    engine.op("outer").submit((cx(), sum.read()), move |(cx, _)| body(&cx.engine()))
                };
                assert!(outer.unwrap().wait().unwrap(), "{kind}: the wait behind {runs} runs was not refused");
                assert_eq!(engine.get(&sum).unwrap(), (runs + usize::from(!commutes)) / 2);
            });
        }
    }
}

/// Pushes four runs of two operations each, of which only the first runs. Each waits for the run before its own, and
/// for no other.
#[test]
fn a_dump_names_what_each_run_waits_for() {
    on_kinds(&THREADED, 2, |engine| {
        for first_commutes in [false, true] {
            let sum = engine.token();
            let gate = Gate::new();
            for at in 0..8 {
                let builder = engine.op(format!("{at}"));
                let builder =
                    if (at / 2 % 2 == 0) == first_commutes { builder.commutes([&sum]) } else { builder.reads([&sum]) };
                let inside = gate.clone();
                let end = move |done: Completion| {
                    thread::spawn(move || {
                        inside.pass();
                        done.complete();
                    });
                };
                builder.push(completion(), end).unwrap();
            }
            let dump = engine.dump();
            let at = |name: usize| dump.ops().iter().position(|op| op.name.as_str() == name.to_string()).unwrap();
            let run = |run: usize| BTreeSet::from([at(2 * run), at(2 * run + 1)]);
            let waits_for = |name| BTreeSet::from_iter(dump.ops()[at(name)].waits_for.iter().copied());
            for name in 2..8 {
                assert_eq!(waits_for(name), run(name / 2 - 1), "{name}: {dump}");
            }
            gate.open();
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn a_dump_shows_who_has_the_turn() {
    watched(|| {
        let engine = engine(EngineKind::PerDevice, 2);
        let sum = engine.var(0).named("sum");
        let gate = take(&engine, &sum);
        engine.op("waits").push(sum.commute(), |sum| *sum += 1).unwrap();
        let dump = engine.dump();
        let at = |name: &str| dump.ops().iter().position(|op| op.name.as_str() == name).unwrap();
        let (holder, waits) = (at("holder"), at("waits"));
        assert_eq!(dump.ops()[waits].state, OpState::Waiting, "{dump}");
        assert_eq!(dump.ops()[waits].waits_for, [holder], "{dump}");
        assert!(dump.to_string().contains("commutes on `sum`, and waits for it, held by `holder`"), "{dump}");
        gate.open();
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn an_unread_sum_is_not_idle_before_its_run_is_over() {
    on_kinds(&THREADED, 2, |engine| {
        let sum = engine.var(0);
        let gate = take(&engine, &sum);
        engine.op("add").push(sum.commute(), |sum| *sum += 1).unwrap();
        assert!(engine.wait_for_var_timeout(&sum, MOMENT).is_err());
        assert!(engine.wait_to_read_timeout(&sum, MOMENT).is_err());
        gate.open();
        engine.wait_to_read(&sum).unwrap();
        assert_eq!(sum.version(), 2);
    });
}

// ------------------------------------------------------------------------------------- other kinds of operation ----

#[test]
fn children_use_what_their_parent_commutes_on() {
    on_kinds(&KINDS, 3, |engine| {
        let sum = engine.var(0u64);
        for _ in 0..fewer(20) {
            let inner = sum.clone();
            let parent = move |(cx, sum): (&raddle::OpContext<'_>, &mut u64)| {
                *sum += 1;
                for _ in 0..3 {
                    cx.child("child").push(inner.commute(), |sum| *sum += 1).unwrap();
                }
                cx.child("double").push(inner.write(), |sum| *sum *= 1).unwrap();
            };
            engine.op("parent").with_children().push((cx(), sum.commute()), parent).unwrap();
        }
        assert_eq!(engine.get(&sum).unwrap(), 4 * fewer(20) as u64);
        assert_eq!(sum.version(), fewer(20) as u64);
    });
}

#[test]
fn guards_and_futures_commute() {
    on_kinds(&KINDS, 2, |engine| {
        let [left, right] = [(); 2].map(|()| engine.var(0));
        let (first, second) = (engine.acquire(left.commute()), engine.acquire((left.commute(), right.commute())));
        let mut guard = block_on(first).unwrap();
        *guard += 1;
        drop(guard);
        let (mut a, mut b) = block_on(second).unwrap();
        *a += 1;
        *b += 1;
        let future = engine.op("future").submit_future(left.commute(), |mut left| async move { *left += 1 }).unwrap();
        drop((a, b));
        future.wait().unwrap();
        assert_eq!((engine.get(&left).unwrap(), engine.get(&right).unwrap()), (3, 1));
    });
}

/// As long as guards exist, `commute` is `write`: those behind them wait, and those before them do not overtake.
#[test]
fn guards_keep_the_order() {
    on_kinds(&KINDS, 2, |engine| {
        let engine_of = || Engine::builder().kind(engine.kind()).workers(2).pin(false);
        let bounded = engine_of().jobs(1).build().unwrap();
        let sum = bounded.var(0);
        let guard = block_on(bounded.acquire(sum.commute())).unwrap();
        // A guard uses no unit of the bound.
        bounded.op("free").submit((), |()| ()).unwrap().wait().unwrap();
        drop(guard);
        // Nobody takes these guards, so the value is not mutated.
        drop(bounded.acquire(sum.commute()));
        bounded.wait_for_all().unwrap();
        assert_eq!(sum.version(), 1);

        let stopped = engine_of().build().unwrap();
        let sum = stopped.var(0);
        stopped.stop(None).unwrap();
        *block_on(stopped.acquire(sum.commute())).unwrap() += 1;
        stopped.start().unwrap();
        assert_eq!(stopped.get(&sum).unwrap(), 1);

        let (order, other) = (engine.var(Vec::new()), engine.token());
        let gate = (engine.kind() != EngineKind::Naive).then(|| hold(&engine, &other));
        engine.op("earlier").writes([&other]).push(order.commute(), |order| order.push(0)).unwrap();
        let mut acquiring = engine.acquire(order.commute());
        if let Some(gate) = gate {
            assert!(poll_once(&mut acquiring).is_pending(), "the guard has overtaken an operation");
            engine.op("later").push(order.commute(), |order| order.push(2)).unwrap();
            gate.open();
        }
        block_on(acquiring).unwrap().push(1);
        assert_eq!(engine.get(&order).unwrap()[..2], [0, 1]);
    });
}

#[test]
fn operations_of_scopes_commute() {
    on_kinds(&KINDS, 3, |engine| {
        let (mut lent, mut own) = (0, 0);
        engine
            .try_scope(|s| {
                let (total, local) = (s.lend(&mut lent), s.var(0));
                for by in 0..fewer(200) {
                    s.op("one").push(total.commute(), move |total| *total += by)?;
                    s.op("both").push((local.commute(), total.commute()), move |(local, total)| {
                        *local += by;
                        *total += by;
                    })?;
                }
                own = s.op("read").submit(local.read(), |local| *local)?.wait()?;
                Ok(())
            })
            .unwrap();
        let sum = (0..fewer(200)).sum::<usize>();
        assert_eq!((lent, own), (2 * sum, sum));
    });
}

#[test]
fn operators_commute_on_chosen_variables() {
    on_kinds(&KINDS, 3, |engine| {
        let (values, fixed, token) = ([0, 1, 2].map(|_| engine.var(0)), engine.var(0), engine.token());
        let ends = [chosen::commute(), chosen::commute()];
        let load = engine.op("load").operator_on(ends, fixed.write(), |ends: [&mut usize; 2], fixed, by: usize| {
            ends.into_iter().for_each(|end| *end += by);
            *fixed += by;
        });
        let one = engine.op("one").operator_on(chosen::commute(), (), |one: &mut usize, (), by: usize| *one += by);
        let log = engine.op("log").operator_on(chosen::commutes(), (), |(), (), ()| ());
        let (load, one, log) = (load.unwrap(), one.unwrap(), log.unwrap());
        thread::scope(|scope| {
            for thread in 0..3 {
                let (values, token) = (&values, &token);
                let (load, one, log) = (&load, &one, &log);
                scope.spawn(move || {
                    for by in 0..fewer(200) {
                        load.push_on([&values[thread], &values[(thread + 1) % 3]], by).unwrap();
                        one.push_on(&values[thread], by).unwrap();
                        log.push_on(token, ()).unwrap();
                    }
                });
            }
        });
        let sum = (0..fewer(200)).sum::<usize>();
        for value in &values {
            assert_eq!(engine.get(value).unwrap(), 3 * sum);
        }
        assert_eq!(engine.get(&fixed).unwrap(), 3 * sum);
        engine.wait_for_var(&token).unwrap();
        assert_eq!(token.version(), 3 * fewer(200) as u64);
    });
}

#[test]
fn operators_scopes_units_and_snapshots_go_with_it() {
    on_kinds(&KINDS, 2, |engine| {
        let sum = engine.published(0u64);
        let links = engine.resource(1);
        let add = engine.op("add").uses(&links, 1).operator_with(sum.commute(), |sum, by: u64| *sum += by).unwrap();
        let plain = engine.op("plain").operator(sum.commute(), |sum| *sum += 1).unwrap();
        for _ in 0..fewer(100) {
            add.push(2).unwrap();
            plain.push().unwrap();
            engine.op("uses").uses(&links, 1).push(sum.commute(), |sum| *sum += 1).unwrap();
        }
        engine.wait_for_all().unwrap();
        assert_eq!(engine.get(&sum).unwrap(), 4 * fewer(100) as u64);
    });
}

#[test]
fn the_modes_of_one_variable_are_merged() {
    on_kinds(&KINDS, 2, |engine| {
        let (token, other): (Token, Token) = (engine.token(), engine.token());
        engine.op("both").commutes([&token]).reads([&token]).commutes([&other, &other]).push((), |()| ()).unwrap();
        let sum = engine.var(0);
        let refused = engine.op("twice").push((sum.commute(), sum.commute()), |_| ());
        assert!(matches!(refused, Err(PushError::Variable(..))), "{refused:?}");
        engine.wait_for_all().unwrap();
        assert_eq!([token.version(), other.version()], [1, 1]);
    });
}

#[test]
fn device_operations_do_not_commute() {
    watched(|| {
        let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).build().unwrap();
        let sum = engine.var(0);
        let refused = engine.op("kernel").on(Device::Gpu(0)).push((stream(), sum.commute()), |_| ());
        assert!(matches!(refused, Err(PushError::Unfit(Misfit::CommutesOnDevice))), "{refused:?}");
        engine.wait_for_all().unwrap();
    });
}

#[test]
fn a_replay_repeats_the_order_of_a_run() {
    watched(|| {
        let world = |engine: &Engine| {
            let sum = engine.var(1.0f64).named("sum");
            let add = engine.op("add").operator_with(sum.commute(), |sum, by: f64| *sum = (*sum + by) / 3.0).unwrap();
            (sum, add.logged(|by, bytes| bytes.extend(by.to_le_bytes())))
        };
        let log = Log::new();
        let engine = Engine::builder().workers(3).pin(false).log(&log).build().unwrap();
        let (sum, add) = world(&engine);
        thread::scope(|scope| {
            for thread in 0..3 {
                let add = &add;
                scope.spawn(move || (0..30).for_each(|by| add.push(f64::from(100 * thread + by)).unwrap()));
            }
        });
        let expected = engine.get(&sum).unwrap();
        for kind in KINDS {
            let again = common::engine(kind, 3);
            let (sum, add) = world(&again);
            let mut replay = Replay::new(&again, log.entries().unwrap());
            replay.operator(&add, |bytes| Ok(f64::from_le_bytes(bytes.try_into()?)));
            assert_eq!(replay.run().unwrap(), 90);
            assert_eq!(again.get(&sum).unwrap().to_bits(), expected.to_bits(), "{kind}");
        }
    });
}

#[test]
fn handles_and_counts_agree_under_load() {
    on_kinds(&THREADED, 3, |engine| {
        let values: Vec<_> = (0..4).map(|_| engine.var(0u64)).collect();
        let (sender, receiver) = mpsc::channel::<OpHandle<u64>>();
        let results = Arc::new(Mutex::new(Vec::new()));
        let waiter = thread::spawn({
            let results = Arc::clone(&results);
            move || receiver.into_iter().for_each(|handle| lock(&results).push(handle.wait().unwrap()))
        });
        for at in 0..fewer(2000) {
            let accesses = (values[at % 4].commute(), values[(at / 4 + 1 + at) % 4].commute());
            let handle = if at % 4 == (at / 4 + 1 + at) % 4 {
                engine.op("one").submit(values[at % 4].commute(), |one| *one).unwrap()
            } else {
                engine.op("two").submit(accesses, |(one, other)| *one + *other).unwrap()
            };
            sender.send(handle).unwrap();
        }
        drop(sender);
        waiter.join().unwrap();
        assert_eq!(lock(&results).len(), fewer(2000));
    });
}
