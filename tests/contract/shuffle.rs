//! Engines that start ready operations in a random order.

#![forbid(unsafe_code)]

use raddle_testkit as common;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use common::{
    Gate, THREADED, child, eventually, hold, is_child,
    program::{Program, Random, Shape, Source, Watch, check_serial, fewer, run},
    watched,
};
use raddle::{Engine, EngineKind, Shutdown, error::BuildError};

/// Builds a shuffling engine.
fn shuffled(kind: EngineKind, workers: usize, seed: u64) -> Engine {
    Engine::builder().kind(kind).workers(workers).pin(false).shuffle(seed).build().expect("an engine")
}

/// Less than the time without a push after which a program seems to wait for something unknown to the engine.
const SOON: Duration = Duration::from_millis(40);

/// Measures the longest time between two steps of a program.
#[derive(Clone, Default)]
struct Pace(Arc<Mutex<(Option<Instant>, Duration)>>);

impl Pace {
    fn step(&self) {
        let (last, longest) = &mut *self.0.lock().unwrap();
        let now = Instant::now();
        *longest = last.replace(now).map_or(Duration::ZERO, |last| now - last).max(*longest);
    }

    fn longest(&self) -> Duration {
        self.0.lock().unwrap().1
    }
}

/// The names of operations in the order in which they ran.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>, Pace);

impl Log {
    fn add(&self, name: impl Into<String>) {
        self.1.step();
        self.0.lock().unwrap().push(name.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Pushes an operation that adds its name to the log.
    fn push(&self, engine: &Engine, name: &str) {
        let (log, text) = (self.clone(), name.to_owned());
        engine.op(name.to_owned()).push((), move |()| log.add(text)).unwrap();
    }
}

#[test]
fn every_order_of_independent_operations_occurs() {
    watched(|| {
        let orders: BTreeSet<_> = (0..100)
            .map(|seed| {
                let (engine, log) = (shuffled(EngineKind::Pooled, 1, seed), Log::default());
                ["a", "b", "c"].iter().for_each(|name| log.push(&engine, name));
                engine.wait_for_all().unwrap();
                log.take().concat()
            })
            .collect();
        assert_eq!(orders.len(), 6, "{orders:?}");
    });
}

/// Runs a program on one worker, in several bursts of operations on variables, operations that push others, and
/// operations with handles. Three kinds of wait separate the bursts. Returns the order in which the operations ran, or
/// `None` if a thread was interrupted for so long that the program seemed to wait.
fn bursts(kind: EngineKind, seed: u64) -> Option<Vec<String>> {
    let (engine, log) = (shuffled(kind, 1, seed), Log::default());
    let pace = log.1.clone();
    let vars: Vec<_> = (0..4).map(|_| engine.var(0)).collect();
    let mut random = Random::new(7);
    for burst in 0..6 {
        let mut handles = Vec::new();
        for number in 0..8 {
            let (log, name) = (log.clone(), format!("{burst}.{number}"));
            let (read, written) = (random.below(4), random.below(4));
            let op = engine.op(name.clone());
            pace.step();
            match random.below(3) {
                0 => op.push(vars[written].write(), move |value| {
                    *value += 1;
                    log.add(name);
                }),
                1 => op.push((raddle::cx(), vars[read].read()), move |(cx, _)| {
                    log.add(name.as_str());
                    for inner in 0..3 {
                        let (log, name) = (log.clone(), format!("{name}.{inner}"));
                        cx.engine().op(name.clone()).push((), move |()| log.add(name)).unwrap();
                    }
                }),
                _ => op.submit(vars[read].read(), move |_| log.add(name)).map(|handle| handles.push(handle)),
            }
            .unwrap();
        }
        match burst % 3 {
            0 => handles.into_iter().for_each(|handle| handle.wait().unwrap()),
            1 => engine.wait_to_read(&vars[0]).unwrap(),
            _ => engine.wait_for_all().unwrap(),
        }
        log.add(format!("burst {burst}"));
    }
    engine.wait_for_all().unwrap();
    (pace.longest() < SOON).then(|| log.take())
}

/// [`bursts`] in which no thread is interrupted for long.
fn calm_bursts(kind: EngineKind, seed: u64) -> Vec<String> {
    let mut order = None;
    eventually("no thread was interrupted for long", || {
        order = bursts(kind, seed);
        order.is_some()
    });
    order.expect("`eventually` ends when there is an order")
}

#[test]
fn on_one_worker_a_seed_always_produces_the_same_order() {
    watched(|| {
        for kind in THREADED {
            let mut orders = BTreeSet::new();
            for seed in 0..fewer(8) as u64 {
                let order = calm_bursts(kind, seed);
                for _ in 0..3 {
                    assert_eq!(calm_bursts(kind, seed), order, "{kind}, seed {seed}");
                }
                orders.insert(order);
            }
            assert_eq!(orders.len(), fewer(8), "two seeds produce the same order");
        }
    });
}

#[test]
fn on_one_worker_nothing_starts_soon_after_a_push_unless_the_program_waits() {
    watched(|| {
        eventually("the thread was not interrupted for long", || {
            let (engine, log) = (shuffled(EngineKind::Pooled, 1, 1), Log::default());
            let start = Instant::now();
            log.push(&engine, "op");
            thread::sleep(SOON / 4);
            let started = !log.take().is_empty();
            let is_soon = start.elapsed() < SOON;
            assert!(!(is_soon && started), "the operation has started");
            is_soon
        });
    });
}

#[test]
fn conflicting_operations_run_in_the_order_of_their_pushes() {
    watched(|| {
        for seed in 0..fewer(30) as u64 {
            let kind = THREADED[seed as usize % 2];
            let engine = shuffled(kind, [1, 2, 4][seed as usize % 3], seed);
            let variables = [2, 5, 30][seed as usize / 2 % 3];
            let shape = Shape { variables, operations: fewer(120), ..Shape::default() };
            let program = Arc::new(Program::generate(&shape, &mut Random::new(seed)));
            let history = run(&program, &engine, Watch::EVERYTHING);
            check_serial(&program, &history).unwrap_or_else(|error| panic!("{kind}, seed {seed}: {error}"));
        }
    });
}

/// Runs a program whose second operation reads a value written by the first one, without declaring the access. Returns
/// whether the second ran first.
fn reads_before_it_is_written(seed: u64) -> bool {
    let engine = shuffled(EngineKind::PerDevice, 1, seed);
    let file = Arc::new(Mutex::new(None));
    let (writer, reader) = (Arc::clone(&file), Arc::clone(&file));
    let (index, page) = (engine.token(), engine.token());
    engine.op("write").writes([&index]).push((), move |()| *writer.lock().unwrap() = Some(7)).unwrap();
    let read = engine.op("read").writes([&page]).submit((), move |()| *reader.lock().unwrap()).unwrap();
    read.wait().unwrap().is_none()
}

#[test]
fn some_seeds_repeatably_break_a_program_that_relies_on_an_undeclared_order() {
    watched(|| {
        let failing: Vec<_> = (0..40).filter(|&seed| reads_before_it_is_written(seed)).collect();
        assert!((5..=35).contains(&failing.len()), "{failing:?}");
        for &seed in &failing {
            assert!(reads_before_it_is_written(seed), "seed {seed} does not fail again");
        }
    });
}

#[test]
fn priorities_have_no_effect() {
    watched(|| {
        let first = |seed| {
            let (engine, log) = (shuffled(EngineKind::Pooled, 1, seed), Log::default());
            log.push(&engine, "low");
            let urgent = log.clone();
            engine.op("high").priority(100).push((), move |()| urgent.add("high")).unwrap();
            engine.wait_for_all().unwrap();
            log.take().remove(0)
        };
        let firsts: BTreeSet<_> = (0..20).map(first).collect();
        assert_eq!(firsts.len(), 2);
    });
}

#[test]
fn operations_on_several_workers_start_after_delays() {
    watched(|| {
        let recorder = raddle::trace::Recorder::new();
        let engine = Engine::builder().workers(2).pin(false).shuffle(1).recorder(&recorder).build().unwrap();
        for _ in 0..200 {
            engine.op("op").submit((), |()| {}).unwrap().wait().unwrap();
        }
        let mut waited: Vec<_> = recorder.take().ops().iter().filter_map(raddle::trace::TracedOp::queued).collect();
        waited.sort_unstable();
        // Half of the delays are longer than half of the longest one, which is 100 µs.
        assert!(waited[waited.len() / 2] >= Duration::from_micros(40), "operations start at once: {waited:?}");
    });
}

/// A worker that has ended an operation draws the next one itself, so that few draws take about 100 µs.
#[test]
fn a_chain_on_several_workers_does_not_wait_for_a_delay_each_time() {
    const OPS: u32 = 1000;
    watched(|| {
        eventually("an operation takes less than a delay", || {
            let engine = shuffled(EngineKind::Pooled, 2, 1);
            let sum = engine.var(0);
            let start = Instant::now();
            for _ in 0..OPS {
                engine.op("add").push(sum.write(), |sum| *sum += 1).unwrap();
            }
            assert_eq!(engine.get(&sum).unwrap(), OPS);
            start.elapsed() < OPS * Duration::from_micros(50)
        });
    });
}

/// Computes a Fibonacci number with waits inside operations.
fn fib(engine: &Engine, n: u64) -> u64 {
    if n < 2 {
        return n;
    }
    let (inner, other) = (engine.clone(), engine.clone());
    let first = engine.op("fib").submit((), move |()| fib(&inner, n - 1)).unwrap();
    let second = engine.op("fib").submit((), move |()| fib(&other, n - 2)).unwrap();
    first.wait().unwrap() + second.wait().unwrap()
}

#[test]
fn operations_wait_inside_operations() {
    watched(|| {
        for (workers, seed) in [(1, 3), (3, 4)] {
            let engine = shuffled(EngineKind::Pooled, workers, seed);
            assert_eq!(fib(&engine, 9), 34);
        }
    });
}

#[test]
fn a_program_that_waits_for_a_channel_continues() {
    watched(|| {
        for workers in [1, 2] {
            let engine = shuffled(EngineKind::Pooled, workers, 1);
            for number in 0..3 {
                let (sender, receiver) = mpsc::channel();
                engine.op("send").push((), move |()| sender.send(number).unwrap()).unwrap();
                assert_eq!(receiver.recv(), Ok(number));
            }
            let future = engine.op("async").submit((), |()| 5).unwrap();
            assert_eq!(pollster::block_on(future).unwrap(), 5);
        }
    });
}

#[test]
fn operations_that_wait_for_each_other_through_a_channel_continue() {
    watched(|| {
        // For some seeds, the receiving operation starts first.
        for seed in 0..8 {
            let engine = shuffled(EngineKind::Pooled, 1, seed);
            let (sender, receiver) = mpsc::channel();
            let received = engine.op("receive").submit((), move |()| raddle::blocking(|| receiver.recv())).unwrap();
            engine.op("send").push((), move |()| sender.send(7).unwrap()).unwrap();
            assert_eq!(received.wait().unwrap(), Ok(7));
        }
    });
}

#[test]
fn a_future_that_wakes_itself_lets_others_run() {
    watched(|| {
        let engine = shuffled(EngineKind::Pooled, 1, 1);
        let done = Arc::new(Mutex::new(false));
        let (stop, asked) = (Arc::clone(&done), Arc::clone(&done));
        let polls = engine
            .op("spin")
            .submit_future((), async move |()| {
                let mut polls = 0;
                std::future::poll_fn(|cx| {
                    polls += 1;
                    if *asked.lock().unwrap() {
                        return std::task::Poll::Ready(());
                    }
                    cx.waker().wake_by_ref();
                    std::task::Poll::Pending
                })
                .await;
                polls
            })
            .unwrap();
        engine.op("stop").push((), move |()| *stop.lock().unwrap() = true).unwrap();
        assert!(polls.wait().unwrap() > 0);
    });
}

#[test]
fn a_limit_holds_pushes_back() {
    watched(|| {
        for workers in [1, 2] {
            let engine = Engine::builder().workers(workers).pin(false).shuffle(9).max_pending(10).build().unwrap();
            let total = engine.var(0);
            for _ in 0..fewer(300) {
                engine.op("add").push(total.write(), |total| *total += 1).unwrap();
                assert!(engine.pending() <= 11, "{} are pending", engine.pending());
            }
            assert_eq!(engine.get(&total).unwrap(), fewer(300));
        }
    });
}

/// Nothing is ready or running, nor waits to be drawn.
#[test]
fn a_push_passes_a_limit_if_everything_waits_for_a_completion() {
    watched(|| {
        for workers in [1, 2] {
            let engine = Engine::builder().workers(workers).pin(false).shuffle(9).max_pending(2).build().unwrap();
            let token = engine.token();
            let gate = hold(&engine, &token);
            for _ in 0..5 {
                engine.op("behind").writes([&token]).push((), |()| {}).unwrap();
            }
            assert_eq!(engine.pending(), 6);
            gate.open();
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn groups_scopes_and_futures_end() {
    watched(|| {
        for (seed, workers) in [(1, 1), (2, 2)] {
            let engine = shuffled(EngineKind::PerDevice, workers, seed);
            let group = engine.group();
            for _ in 0..5 {
                group.op("member").push((), |()| {}).unwrap();
            }
            group.wait().unwrap();
            let words = ["warp", "weft"];
            let mut lengths = [0; 2];
            engine
                .scope(|scope| {
                    for (length, word) in lengths.iter_mut().zip(&words) {
                        scope.op("measure").push((), move |()| *length = word.len()).unwrap();
                    }
                })
                .unwrap();
            assert_eq!(lengths, [4, 4]);
            let sum = engine.var(0);
            let future = engine.op("future").submit_future(sum.write(), async |mut sum| {
                *sum += 1;
                *sum
            });
            assert_eq!(future.unwrap().wait().unwrap(), 1);
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn an_engine_can_shut_down_before_all_operations_are_drawn() {
    watched(|| {
        for workers in [1, 2] {
            for how in [Shutdown::Drain, Shutdown::Cancel] {
                let (engine, log) = (shuffled(EngineKind::Pooled, workers, 5), Log::default());
                (0..50).for_each(|_| log.push(&engine, "op"));
                engine.shutdown(how, None).unwrap();
                assert!(how == Shutdown::Cancel || log.take().len() == 50);
            }
            let (engine, log) = (shuffled(EngineKind::Pooled, workers, 5), Log::default());
            (0..50).for_each(|_| log.push(&engine, "op"));
            drop(engine);
            assert_eq!(log.take().len(), 50);
        }
    });
}

#[test]
fn a_stopped_engine_keeps_its_pending_operations() {
    watched(|| {
        for workers in [1, 2] {
            let (engine, log) = (shuffled(EngineKind::Pooled, workers, 5), Log::default());
            engine.stop(None).unwrap();
            (0..10).for_each(|_| log.push(&engine, "op"));
            assert_eq!(engine.pending(), 10);
            engine.start().unwrap();
            engine.wait_for_all().unwrap();
            assert_eq!(log.take().len(), 10);
        }
    });
}

#[test]
fn a_naive_engine_does_not_shuffle() {
    let (engine, log) = (shuffled(EngineKind::Naive, 1, 5), Log::default());
    (0..10).for_each(|number| log.push(&engine, &number.to_string()));
    assert_eq!(log.take().concat(), "0123456789");
}

#[test]
fn operations_of_a_gpu_complete() {
    watched(|| {
        let gpu = raddle::gpu::SimulatedGpu::new();
        let engine = Engine::builder().workers(1).pin(false).shuffle(3).gpu(gpu).build().unwrap();
        let device = raddle::Device::Gpu(0);
        let (from, to) = (engine.pinned_var::<f32>(device, 64).unwrap(), engine.pinned_var::<f32>(device, 64).unwrap());
        let there = engine.device_var::<f32>(device, 64).unwrap();
        engine.op("fill").push(from.write(), |values| values.fill(1.0)).unwrap();
        engine.op("load").on(device).copy_to_device(&from, &there).unwrap();
        engine.op("store").on(device).copy_from_device(&there, &to).unwrap();
        let sum = engine.op("sum").submit(to.read(), |values| values.iter().sum::<f32>()).unwrap();
        assert_eq!(sum.wait().unwrap(), 64.0);
        engine.shutdown(Shutdown::Drain, Some(Duration::from_secs(10))).unwrap();
    });
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_seed_is_that_of_the_environment() {
    if !is_child() {
        return;
    }
    match Engine::builder().workers(1).build() {
        Ok(engine) => {
            let log = Log::default();
            (0..20).for_each(|number| log.push(&engine, &format!("{number} ")));
            engine.wait_for_all().unwrap();
            println!("order: {}", log.take().concat());
        }
        Err(error) => {
            assert!(matches!(&error, BuildError::InvalidSeed(value) if value == "x"), "{error:?}");
            println!("error: {error}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn the_environment_sets_a_seed() {
    let run = |value| {
        let (success, text) = child(
            "in_a_child_the_seed_is_that_of_the_environment",
            &[("RADDLE_ENGINE", "Pooled"), ("RADDLE_SHUFFLE", value)],
        );
        assert!(success, "{text}");
        let line = text.lines().find(|line| line.contains("order: ") || line.contains("error: "));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let in_order: String = (0..20).map(|number| format!("{number} ")).collect();
    assert!(run("").contains(&in_order));
    assert!(!run("1").contains(&in_order));
    assert_eq!(run("1"), run(" 1"));
    assert_ne!(run("1"), run("2"));
    assert!(run("x").contains("RADDLE_SHUFFLE is `x`"));
}

// ------------------------------------------------------------------------------------------------ hostile programs
// ----

#[test]
fn any_seed_is_accepted() {
    watched(|| {
        for seed in [0, 1, u64::MAX / 2, u64::MAX] {
            let engine = shuffled(EngineKind::PerDevice, 1, seed);
            assert_eq!(engine.stats().pushed, 0);
            let sum = engine.var(0);
            for number in 0..20 {
                engine.op("add").push(sum.write(), move |sum| *sum += number).unwrap();
            }
            assert_eq!(engine.get(&sum).unwrap(), 190);
        }
    });
}

#[test]
fn operations_may_be_cancelled_before_they_are_drawn() {
    watched(|| {
        for workers in [1, 2] {
            let engine = shuffled(EngineKind::Pooled, workers, 3);
            let (group, ran) = (engine.group(), Log::default());
            let gate = Gate::new();
            let closed = gate.clone();
            engine.op("hold").push((), move |()| closed.pass()).unwrap();
            let handles: Vec<_> = (0..40)
                .map(|number| {
                    let ran = ran.clone();
                    let op = if number % 2 == 0 { group.op("member") } else { engine.op("single") };
                    op.submit((), move |()| ran.add("ran")).unwrap()
                })
                .collect();
            group.cancel();
            let cancelled = handles.iter().skip(1).step_by(2).filter(|handle| handle.cancel()).count();
            gate.open();
            let results: Vec<_> = handles.into_iter().map(raddle::OpHandle::wait).collect();
            let lost = results.iter().filter(|result| result.is_err()).count();
            assert!(lost >= cancelled, "{lost} of {cancelled}");
            assert_eq!(ran.take().len() + lost, 40);
            engine.clear_errors();
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn a_panic_in_a_drawn_operation_fails_it_alone() {
    watched(|| {
        for workers in [1, 2] {
            let engine = shuffled(EngineKind::Pooled, workers, 4);
            let handles: Vec<_> = (0..30)
                .map(|number| {
                    engine.op("op").submit((), move |()| assert!(number % 3 != 0, "on purpose: {number}")).unwrap()
                })
                .collect();
            for (number, handle) in handles.into_iter().enumerate() {
                assert_eq!(handle.wait().is_err(), number % 3 == 0, "{number}");
            }
            engine.wait_for_all().unwrap();
        }
    });
}

#[test]
fn many_threads_may_push_while_the_engine_is_shut_down() {
    watched(|| {
        for (round, how) in [Shutdown::Drain, Shutdown::Cancel].into_iter().cycle().take(10).enumerate() {
            let engine = shuffled(EngineKind::PerDevice, 1 + round % 2, round as u64);
            let handles: Vec<_> = thread::scope(|scope| {
                let push = || {
                    let mut handles = Vec::new();
                    while let Ok(handle) = engine.op("op").submit((), |()| ()) {
                        handles.push(handle);
                        thread::yield_now();
                    }
                    handles
                };
                let threads: Vec<_> = (0..3).map(|_| scope.spawn(push)).collect();
                thread::sleep(Duration::from_millis(5));
                engine.shutdown(how, None).unwrap();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            let failed = handles.into_iter().map(raddle::OpHandle::wait).filter(Result::is_err).count();
            assert!(failed == 0 || how == Shutdown::Cancel, "{failed}");
        }
    });
}

#[test]
fn the_last_handle_may_be_dropped_inside_a_drawn_operation() {
    watched(|| {
        for workers in [1, 2] {
            let engine = shuffled(EngineKind::Pooled, workers, 6);
            let (log, inside) = (Log::default(), engine.clone());
            (0..5).for_each(|_| log.push(&engine, "other"));
            let (sender, ended) = mpsc::channel::<()>();
            engine
                .op("last")
                .push((), move |()| {
                    drop(inside);
                    drop(sender);
                })
                .unwrap();
            drop(engine);
            let _ = ended.recv();
            eventually("all operations have run", || log.0.lock().unwrap().len() == 5);
        }
    });
}

#[test]
fn waits_may_nest_deeply() {
    fn nest(engine: &Engine, depth: u32) -> u32 {
        let inside = engine.clone();
        let inner = engine.op("nested").submit((), move |()| if depth == 0 { 0 } else { 1 + nest(&inside, depth - 1) });
        inner.unwrap().wait().unwrap()
    }
    watched(|| {
        for workers in [1, 2] {
            assert_eq!(nest(&shuffled(EngineKind::PerDevice, workers, 8), 60), 60);
        }
    });
}
