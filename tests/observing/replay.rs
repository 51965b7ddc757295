//! Logs and replays: the same values, to the bit, on every engine.

use raddle_testkit as common;

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
};

use common::{Gate, hold, lock, watched};
use raddle::{
    Conflated, Engine, EngineBuilder, EngineKind, Operator, Shutdown, Var,
    chosen::{self, ChosenRead, ChosenWrite, On, With},
    cx,
    error::{BoxError, BuildError, ShutdownError},
    replay::{Log, LogEntries, Replay, ReplayError},
    trace::{ObservedOp, Observer, Outcome},
};

/// A variable that is read and one that is mutated.
type Pair = (ChosenRead<f64>, ChosenWrite<f64>);

/// An engine with variables and operators, the same for the log and for its replays.
struct World {
    engine: Engine,
    cells: Vec<Var<f64>>,
    mix: Operator<With<f64>>,
    shift: Operator<On<Pair, f64>>,
    halve: Operator,
    risk: Operator<With<u64>>,
    reset: Operator<On<ChosenWrite<f64>, f64>>,
    grouped: Operator<With<f64>>,
    family: Operator<With<f64>>,
}

fn encode(number: &f64, bytes: &mut Vec<u8>) {
    bytes.extend(number.to_le_bytes());
}

fn decode(bytes: &[u8]) -> Result<f64, BoxError> {
    Ok(f64::from_le_bytes(bytes.try_into()?))
}

impl World {
    fn new(builder: EngineBuilder) -> Self {
        let engine = builder.build().unwrap();
        let cells: Vec<_> = (0..5).map(|cell| engine.var(f64::from(cell)).named(format!("cell {cell}"))).collect();
        let (a, b, c, d) = (&cells[0], &cells[1], &cells[2], &cells[3]);
        let mix = engine.op("mix").operator_with((a.write(), b.read()), |(a, b), by: f64| *a = (*a + *b * by) / 3.0);
        let pair = (chosen::read(), chosen::write());
        let shift = engine.op("shift").operator_on(pair, (), |(from, to): (&f64, &mut f64), (), by: f64| {
            *to = (*to - *from * by) / 7.0;
        });
        let halve = engine.op("halve").operator((b.write(), c.write()), |(b, c)| (*b, *c) = (*c / 3.0, *b + 0.1));
        let risk = engine.op("risk").try_operator_with(d.write(), |d, chance: u64| {
            *d = *d / 3.0 + chance as f64;
            if chance % 7 == 0 { Err("bad luck".into()) } else { Ok(()) }
        });
        let reset = engine.op("reset").operator_on(chosen::overwrite(), (), |cell: &mut f64, (), to: f64| *cell = to);
        let group = engine.group();
        let grouped = group.op("grouped").operator_with((c.write(), d.read()), |(c, d), by: f64| *c = (*c + *d) / by);
        let child = a.clone();
        let family = engine.op("family").with_children().operator_with((cx(), a.write()), move |(cx, a), by: f64| {
            *a += by;
            for step in 1..4 {
                let add = move |a: &mut f64| *a = (*a + by) / f64::from(step);
                cx.child("child").push(child.write(), add).unwrap();
            }
        });
        Self {
            mix: mix.unwrap().logged(encode),
            shift: shift.unwrap().logged(encode),
            halve: halve.unwrap().logged(|(), _| {}),
            risk: risk.unwrap().logged(|chance, bytes| bytes.extend(chance.to_le_bytes())),
            reset: reset.unwrap().logged(encode),
            grouped: grouped.unwrap().logged(encode),
            family: family.unwrap().logged(encode),
            cells,
            engine,
        }
    }

    /// Pushes `count` random operations, some of which fail, are cancelled, or are skipped.
    fn push(&self, mut seed: u64, count: usize) {
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for _ in 0..count {
            let (number, cell) = ((random() % 1000) as f64 / 7.0, (random() % 4) as usize);
            match random() % 16 {
                0..4 => self.mix.push(number).unwrap(),
                4..8 => self.shift.push_on((&self.cells[cell], &self.cells[cell + 1]), number).unwrap(),
                8..10 => self.halve.push().unwrap(),
                10 => self.risk.push(random()).unwrap(),
                11 => self.grouped.push(number + 2.0).unwrap(),
                12 => self.family.push(number).unwrap(),
                13 => {
                    let run = self.mix.submit(number).unwrap();
                    if random() % 2 == 0 {
                        _ = run.cancel();
                    } else {
                        _ = run.cancel_quietly();
                    }
                    run.ignore();
                }
                14 => self.engine.clear_error(&self.cells[cell]).unwrap(),
                _ => {
                    let local = self.engine.var(number);
                    self.engine.op("local").push(local.write(), |local| *local += 1.0).unwrap();
                    self.reset.push_on(&self.cells[cell], number).unwrap();
                }
            }
        }
    }

    /// Returns the bits of each value, and whether the variable has failed.
    fn values(&self) -> Vec<(u64, bool)> {
        let bits = |cell: &Var<f64>| {
            let look = self.engine.op("look").run_always().submit(cell.read(), |cell| cell.to_bits());
            (look.unwrap().wait().unwrap(), self.engine.wait_for_var(cell).is_err())
        };
        let values = self.cells.iter().map(bits).collect();
        self.engine.clear_errors();
        values
    }

    fn replay(&self, entries: LogEntries) -> Result<usize, ReplayError> {
        let mut replay = Replay::new(&self.engine, entries);
        self.cells.iter().for_each(|cell| _ = replay.variable(cell));
        replay.operator(&self.mix, decode).operator(&self.shift, decode).operator(&self.reset, decode);
        replay.operator(&self.grouped, decode).operator(&self.family, decode).operator(&self.halve, |_| Ok(()));
        replay.operator(&self.risk, |bytes| Ok(u64::from_le_bytes(bytes.try_into()?)));
        replay.run()
    }
}

fn kinds() -> Vec<EngineBuilder> {
    let builder = || Engine::builder().pin(false);
    vec![
        builder().kind(EngineKind::Naive),
        builder().workers(1),
        builder().workers(3),
        builder().kind(EngineKind::Pooled).workers(2),
        builder().workers(2).shuffle(7),
    ]
}

#[test]
fn a_replay_of_eight_threads_has_the_same_bits_on_every_engine() {
    watched(|| {
        let runs = if cfg!(debug_assertions) { 40 } else { 1000 };
        for run in 0..runs {
            let log = Log::new();
            let builder = [Engine::builder().workers(3), Engine::builder().kind(EngineKind::Pooled).workers(2)];
            let world = World::new(builder[run % 2].clone().pin(false).log(&log));
            thread::scope(|threads| {
                for thread in 1..=8 {
                    let world = &world;
                    threads.spawn(move || world.push((run * 8 + thread) as u64 * 0x9e37_79b9, 25));
                }
            });
            let values = world.values();
            let entries = log.entries().unwrap();
            assert!(entries.is_complete() && entries.left_out() == 0);
            let kinds = kinds();
            let tried = if run % 20 == 0 { &kinds[..] } else { &kinds[run % 4..][..1] };
            for kind in tried {
                let again = World::new(kind.clone());
                again.replay(entries.clone()).unwrap();
                assert_eq!(again.values(), values, "run {run}, {kind:?}");
            }
        }
    });
}

/// An engine on which an operation pushes another one, which races with pushes from outside.
struct Nested {
    engine: Engine,
    total: Var<f64>,
    outer: Operator<With<f64>>,
    direct: Operator<With<f64>>,
}

impl Nested {
    fn new(builder: EngineBuilder) -> Self {
        let engine = builder.build().unwrap();
        let (own, total) = (engine.var(0.0), engine.var(1.0));
        let add = |total: &mut f64, by: f64| *total = (*total + by) / 3.0;
        let inner = total.clone();
        let outer = engine.op("outer").operator_with((cx(), own.write()), move |(cx, own), by: f64| {
            *own += by;
            let (by, deeper, engine) = (*own, inner.clone(), cx.engine());
            let push = move |(cx, total): (&raddle::OpContext<'_>, &mut f64)| {
                add(total, by);
                cx.engine().op("deeper").push(deeper.write(), move |total| add(total, by + 1.0)).unwrap();
            };
            engine.op("inner").push((cx_access(), inner.write()), push).unwrap();
        });
        let direct = engine.op("direct").operator_with(total.write(), move |total, by: f64| add(total, by));
        Self { total, outer: outer.unwrap().logged(encode), direct: direct.unwrap().logged(encode), engine }
    }

    fn replay(&self, entries: LogEntries) -> Result<usize, ReplayError> {
        let mut replay = Replay::new(&self.engine, entries);
        replay.operator(&self.outer, decode).operator(&self.direct, decode).run()
    }
}

fn cx_access() -> raddle::access::Cx {
    cx()
}

/// Waits until nothing is pending, not even what operations have pushed.
fn settle(engine: &Engine) {
    while engine.pending() > 0 {
        engine.wait_for_all().unwrap();
    }
}

#[test]
fn what_operations_push_is_repeated_by_their_functions_in_the_same_order() {
    watched(|| {
        for run in 0..if cfg!(debug_assertions) { 100 } else { 1000 } {
            let log = Log::new();
            let world = Nested::new(Engine::builder().pin(false).workers(2).log(&log));
            let races = run % 2 == 0;
            let push = |operator: &Operator<With<f64>>| {
                (0..3).for_each(|step| {
                    operator.push(f64::from(step * run)).unwrap();
                    if !races {
                        settle(&world.engine);
                    }
                });
            };
            thread::scope(|threads| {
                threads.spawn(|| push(&world.direct));
                push(&world.outer);
                if !races {
                    push(&world.direct);
                }
            });
            settle(&world.engine);
            let total = world.engine.get(&world.total).unwrap().to_bits();
            let entries = log.entries().unwrap();
            assert_eq!(entries.iter().filter(|entry| entry.is_from_inside()).count(), 6);
            for kind in kinds() {
                let again = Nested::new(kind.clone());
                match again.replay(entries.clone()) {
                    // Operations from outside came between those that one operation has led to.
                    Err(ReplayError::Order(_)) => continue,
                    result => assert_eq!(result.unwrap(), if races { 6 } else { 9 }),
                }
                settle(&again.engine);
                assert_eq!(again.engine.get(&again.total).unwrap().to_bits(), total, "run {run}, {kind:?}");
            }
        }
    });
}

#[test]
fn a_replay_waits_for_what_operations_push() {
    watched(|| {
        let log = Log::new();
        let world = Nested::new(Engine::builder().pin(false).workers(2).log(&log));
        for step in 0..20 {
            world.outer.push(f64::from(step)).unwrap();
            settle(&world.engine);
            world.direct.push(f64::from(step)).unwrap();
        }
        settle(&world.engine);
        let total = world.engine.get(&world.total).unwrap().to_bits();
        for kind in kinds() {
            let again = Nested::new(kind);
            assert_eq!(again.replay(log.entries().unwrap()).unwrap(), 40);
            settle(&again.engine);
            assert_eq!(again.engine.get(&again.total).unwrap().to_bits(), total);
        }
    });
}

#[test]
fn mutations_that_are_no_runs_of_logged_operators_are_refused() {
    let refusal = |mutate: &dyn Fn(&Engine, &Var<f64>)| {
        let log = Log::new();
        let world = World::new(Engine::builder().pin(false).workers(1).log(&log));
        world.mix.push(1.0).unwrap();
        mutate(&world.engine, &world.cells[0]);
        world.engine.wait_for_all().unwrap();
        let error = World::new(Engine::builder().workers(1)).replay(log.entries().unwrap()).unwrap_err();
        assert!(matches!(error, ReplayError::Unlogged(_)), "{error}");
        error.to_string()
    };
    assert!(refusal(&|engine, cell| engine.set(cell, 2.0).unwrap()).starts_with("`set` from tests"));
    refusal(&|engine, cell| engine.op("odd").push(cell.write(), |cell| *cell += 1.0).unwrap());
    refusal(&|engine, cell| *common::block_on(engine.acquire(cell.write())).unwrap() += 1.0);
    // Reads change nothing, nor do variables that nothing logged uses.
    let log = Log::new();
    let world = World::new(Engine::builder().pin(false).workers(1).log(&log));
    world.mix.push(1.0).unwrap();
    world.engine.op("look").push(world.cells[0].read(), |_| {}).unwrap();
    world.engine.set(&world.engine.var(1.0), 2.0).unwrap();
    world.engine.wait_for_all().unwrap();
    assert_eq!(World::new(Engine::builder().workers(1)).replay(log.entries().unwrap()).unwrap(), 1);
}

#[test]
fn a_replay_says_what_it_lacks() {
    let log = Log::new();
    let world = World::new(Engine::builder().pin(false).workers(1).log(&log));
    world.mix.push(1.0).unwrap();
    world.shift.push_on((&world.cells[3], &world.cells[4]), 2.0).unwrap();
    world.engine.wait_for_all().unwrap();
    let entries = || log.entries().unwrap();

    let again = World::new(Engine::builder().pin(false).workers(1));
    let mut replay = Replay::new(&again.engine, entries());
    assert!(matches!(replay.run(), Err(ReplayError::Operator(name)) if name == "mix"));
    replay.operator(&again.mix, decode).operator(&again.shift, decode);
    assert!(matches!(replay.run(), Err(ReplayError::Variable(name)) if name == "cell 3"));
    again.cells.iter().for_each(|cell| _ = replay.variable(cell));
    assert_eq!(replay.run().unwrap(), 2);
    replay.operator(&again.mix, decode);
    assert!(matches!(replay.run(), Err(ReplayError::Operator(name)) if name == "mix"), "there are two");

    let other = again.engine.op("mix").operator_with((), |(), _: f64| {}).unwrap();
    let mut replay = Replay::new(&again.engine, entries());
    replay.operator(&other, decode).operator(&again.shift, decode);
    assert!(matches!(replay.run(), Err(ReplayError::Variables(name)) if name == "mix"));

    let [three, four] = [3, 4].map(|cell| again.engine.var(0.0f32).named(format!("cell {cell}")));
    let mut replay = Replay::new(&again.engine, entries());
    replay.operator(&again.mix, decode).operator(&again.shift, decode).variable(&three).variable(&four);
    assert!(matches!(replay.run(), Err(ReplayError::Chosen(_))));

    let mut replay = Replay::new(&again.engine, entries());
    replay.operator(&again.mix, |_| Err("odd".into())).operator(&again.shift, decode);
    again.cells.iter().for_each(|cell| _ = replay.variable(cell));
    assert!(matches!(replay.run(), Err(ReplayError::Argument(op, _)) if op.starts_with("`mix` from tests")));
}

#[test]
fn handles_contexts_and_observers_know_places() {
    /// The name of each operation that has started, and its first places.
    type Started = Vec<(String, Option<u64>, Option<u64>)>;
    struct Places(Arc<Mutex<Started>>);
    impl Observer for Places {
        fn started(&self, op: &ObservedOp<'_>) {
            let places = op.accesses();
            lock(&self.0).push((op.name.to_owned(), places[0].place, places.get(1).and_then(|place| place.place)));
        }
    }
    for kind in [EngineKind::Naive, EngineKind::PerDevice] {
        let seen = Arc::default();
        let builder = Engine::builder().kind(kind).workers(1).pin(false).observer(Places(Arc::clone(&seen)));
        let engine = builder.log(&Log::new()).build().unwrap();
        let (a, b) = (engine.var(0), engine.var(0));
        let mut places = Vec::new();
        for step in 0..3 {
            engine.op("both").push((a.write(), b.read()), |_| {}).unwrap();
            let gate = (kind != EngineKind::Naive).then(|| hold(&engine, a.as_ref()));
            let handle = engine.op("one").submit((cx(), a.write()), |(cx, _)| cx.places()[0].place).unwrap();
            assert_eq!(handle.places().is_none(), gate.is_some(), "not before the start");
            gate.iter().for_each(|gate| gate.open());
            engine.wait_for_all().unwrap();
            places.push(handle.places().unwrap()[0].place);
            assert_eq!(handle.wait().unwrap(), places[step]);
        }
        let places: Vec<_> = places.into_iter().map(Option::unwrap).collect();
        assert!(places.is_sorted_by(|one, next| one < next), "{places:?}");
        let seen = lock(&seen);
        let both: Vec<_> =
            seen.iter().filter(|(name, ..)| name == "both").map(|(_, a, b)| (a.unwrap(), b.unwrap())).collect();
        assert!(both.is_sorted_by(|one, next| one.0 < next.0 && next.1 == 0), "{both:?}");
        let unlogged = Engine::builder().kind(kind).workers(1).pin(false).build().unwrap();
        let handle = unlogged.op("one").submit((cx(), unlogged.var(0).write()), |(cx, _)| cx.places().len()).unwrap();
        unlogged.wait_for_all().unwrap();
        assert!(handle.places().is_none() && handle.wait().unwrap() == 0);
    }
}

/// The path of a file, which is removed when this value is dropped.
struct Path(PathBuf);

impl Path {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("raddle-log-{name}-{}", std::process::id())))
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_file_can_be_replayed_from_any_beginning_of_it() {
    watched(|| {
        let path = Path::new("beginnings");
        let world = World::new(Engine::builder().pin(false).workers(3).log(&Log::file(&path.0).unwrap()));
        thread::scope(|threads| {
            for thread in 1..=4 {
                let world = &world;
                threads.spawn(move || world.push(thread * 0x9e37_79b9, 60));
            }
        });
        let values = world.values();
        world.engine.shutdown(Shutdown::Drain, None).unwrap();
        let bytes = fs::read(&path.0).unwrap();
        let entries = LogEntries::read(&path.0).unwrap();
        assert!(entries.is_complete());
        let again = World::new(Engine::builder().pin(false).workers(2));
        let all = again.replay(entries).unwrap();
        assert_eq!(again.values(), values);

        let mut most = 0;
        for len in (0..bytes.len()).step_by(bytes.len() / 40) {
            fs::write(&path.0, &bytes[..len]).unwrap();
            let Ok(entries) = LogEntries::read(&path.0) else {
                assert!(len < 20, "the head is there");
                continue;
            };
            assert!(!entries.is_complete());
            let pushed = World::new(Engine::builder().kind(EngineKind::Naive)).replay(entries).unwrap();
            assert!(pushed <= all);
            most = most.max(pushed);
        }
        assert!(most > all / 2, "{most} of {all}");
    });
}

#[test]
fn damaged_files_are_read_without_a_panic() {
    watched(|| {
        let path = Path::new("damage");
        let log = Log::file(&path.0).unwrap();
        let world = World::new(Engine::builder().pin(false).workers(2).log(&log));
        world.push(77, 200);
        drop(world.values());
        assert!(matches!(Engine::builder().log(&log).build(), Err(BuildError::LogInUse)));
        world.engine.shutdown(Shutdown::Drain, None).unwrap();
        let bytes = fs::read(&path.0).unwrap();
        let mut seed = 1u64;
        let mut random = move |below: usize| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        let again = World::new(Engine::builder().kind(EngineKind::Naive));
        for _ in 0..if cfg!(debug_assertions) { 300 } else { 5000 } {
            let mut damaged = bytes.clone();
            for _ in 0..1 + random(4) {
                let at = random(damaged.len());
                match random(3) {
                    0 => damaged[at] = random(256) as u8,
                    1 => damaged.truncate(at.max(40)),
                    _ => drop(damaged.splice(at.., (0..random(60)).map(|_| random(256) as u8).collect::<Vec<_>>())),
                }
            }
            mend_check_sums(&mut damaged);
            fs::write(&path.0, &damaged).unwrap();
            if let Ok(entries) = LogEntries::read(&path.0) {
                let _ = again.replay(entries);
            }
        }
    });
}

/// Makes the check sums of all blocks right, so that damage in a block is not noticed by its sum.
fn mend_check_sums(bytes: &mut [u8]) {
    let mut at = b"raddle log 1\n".len();
    while at + 12 <= bytes.len() {
        let len = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
        let Some(block) = bytes.get(at + 12..).and_then(|rest| rest.get(..len)) else { return };
        let sum = block.iter().fold(0x811c_9dc5u32, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        bytes[at + 8..at + 12].copy_from_slice(&sum.to_le_bytes());
        at += 12 + len;
    }
}

#[test]
fn a_log_read_while_operations_run_is_a_beginning() {
    watched(|| {
        let log = Log::new();
        let world = World::new(Engine::builder().pin(false).workers(2).log(&log));
        let is_over = AtomicU32::new(0);
        thread::scope(|threads| {
            for thread in 1..=3 {
                let (world, is_over) = (&world, &is_over);
                threads.spawn(move || {
                    (0..20).for_each(|step| world.push(thread * 0x9e37_79b9 + step, 10));
                    is_over.fetch_add(1, Relaxed);
                });
            }
            while is_over.load(Relaxed) < 3 {
                let entries = log.entries().unwrap();
                assert!(entries.is_complete());
                World::new(Engine::builder().kind(EngineKind::Naive)).replay(entries).unwrap();
            }
        });
        world.engine.clear_errors();
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_ends_the_log_and_is_reported() {
    let log = Log::file("/dev/full").unwrap();
    let engine = Engine::builder().pin(false).workers(1).log(&log).build().unwrap();
    engine.op("one").push((), |()| {}).unwrap();
    let error = engine.shutdown(Shutdown::Drain, None).unwrap_err();
    assert!(matches!(&error, ShutdownError::Log(path, _) if path.ends_with("full")), "{error}");
}

#[test]
fn an_argument_that_cannot_be_encoded_fails_its_run() {
    let make = |builder: EngineBuilder| {
        let engine = builder.pin(false).workers(1).build().unwrap();
        let total = engine.var(0);
        let add = engine.op("add").operator_with(total.write(), |total, by: u32| *total += by).unwrap();
        let add = add.logged(|by, bytes| if *by == 3 { panic!("three") } else { bytes.extend(by.to_le_bytes()) });
        (engine, total, add)
    };
    let log = Log::new();
    let (engine, total, add) = make(Engine::builder().log(&log));
    (0..4).for_each(|by| add.push(by).unwrap());
    assert!(engine.wait_for_var(&total).is_err());
    engine.clear_errors();
    let entries = log.entries().unwrap();
    assert_eq!((entries.iter().count(), entries.left_out()), (4, 0));
    assert_eq!(entries.iter().last().map(|entry| entry.outcome()), Some(Outcome::Failed));
    let (again, _, add) = make(Engine::builder());
    let mut replay = Replay::new(&again, entries);
    replay.operator(&add, |bytes| Ok(u32::from_le_bytes(bytes.try_into()?)));
    assert!(matches!(replay.run(), Err(ReplayError::Unlogged(_))));
}

#[test]
fn a_log_keeps_outcomes() {
    let log = Log::new();
    let world = World::new(Engine::builder().pin(false).workers(1).log(&log));
    world.risk.push(7).unwrap();
    world.risk.push(1).unwrap();
    world.engine.clear_error(&world.cells[3]).unwrap();
    world.risk.push(1).unwrap();
    world.values();
    let entries = log.entries().unwrap();
    let risks: Vec<_> = entries.iter().filter(|entry| entry.name() == "risk" || entry.is_clear()).collect();
    let outcomes: Vec<_> = risks.iter().map(|entry| entry.outcome()).collect();
    assert_eq!(outcomes, [Outcome::Failed, Outcome::Skipped, Outcome::Succeeded, Outcome::Succeeded]);
    let places: Vec<_> = risks.iter().map(|entry| entry.accesses()[0].place).collect();
    assert_eq!(places, [0, 1, 2, 3]);
    assert_eq!(risks[0].argument(), 7u64.to_le_bytes());
    assert!(risks[0].location().starts_with("tests/observing/replay.rs:"));
}

#[test]
fn a_conflating_operator_receives_the_arguments_that_it_received() {
    watched(|| {
        let world = |builder: EngineBuilder| {
            let engine = builder.build().unwrap();
            let (seen, other) = (engine.var(Vec::<f64>::new()), engine.var(0.0));
            let show = engine.op("show").operator_newest(2, seen.write(), |seen, value: f64| seen.push(value));
            let step = engine.op("step").operator_with((seen.write(), other.write()), |(seen, other), by: f64| {
                *other = (*other + by + seen.len() as f64) / 3.0;
                seen.push(*other);
            });
            (engine, seen, show.unwrap().logged(encode), step.unwrap().logged(encode))
        };
        for runs in 1..20 {
            let log = Log::new();
            let (engine, seen, show, step) = world(Engine::builder().workers(2).pin(false).log(&log));
            let gate = Gate::new();
            let passes = gate.clone();
            engine.op("look").push(seen.read(), move |_| passes.pass()).unwrap();
            thread::scope(|threads| {
                for thread in 0..2 {
                    let (show, step) = (&show, &step);
                    threads.spawn(move || {
                        for value in 0..runs {
                            show.push(f64::from(10 * thread + value)).unwrap();
                            if value % 3 == thread {
                                step.push(f64::from(value)).unwrap();
                            }
                        }
                    });
                }
            });
            gate.open();
            let values = engine.get(&seen).unwrap();
            assert!(runs < 3 || show.dropped() > 0);
            let entries = log.entries().unwrap();
            for kind in kinds() {
                let (engine, seen, show, step) = world(kind);
                let mut replay = Replay::new(&engine, entries.clone());
                replay.operator(&show, decode).operator(&step, decode).run().unwrap();
                assert_eq!((engine.get(&seen).unwrap(), show.dropped()), (values.clone(), 0));
            }
        }
    });
}

#[test]
fn no_live_push_of_a_conflating_operator_overtakes_a_replayed_run() {
    watched(|| {
        let world = |builder: EngineBuilder| {
            let engine = builder.build().unwrap();
            let seen = engine.var(Vec::<f64>::new());
            let show = engine.op("show").operator_newest(1, seen.write(), |seen, value: f64| seen.push(value));
            (engine, seen, show.unwrap().logged(encode))
        };
        let log = Log::new();
        let (engine, _, show) = world(Engine::builder().workers(1).pin(false).log(&log));
        show.push(2.0).unwrap();
        engine.wait_for_all().unwrap();
        let entries = log.entries().unwrap();
        for kind in kinds() {
            let (engine, seen, show) = world(kind);
            let gate = hold(&engine, seen.token());
            show.push(1.0).unwrap();
            Replay::new(&engine, entries.clone()).operator(&show, decode).run().unwrap();
            assert_eq!([3.0, 4.0].map(|value| show.push(value).unwrap()), [Conflated::Pushed, Conflated::Replaced]);
            gate.open();
            assert_eq!(engine.get(&seen).unwrap(), [1.0, 2.0, 4.0]);
        }
    });
}

/// An encoding may use another engine, whose log then makes an end on this thread.
#[test]
#[cfg(target_os = "linux")]
fn an_encoding_may_log_elsewhere_after_its_own_log_has_ended() {
    watched(|| {
        let naive = |log: &Log| Engine::builder().kind(EngineKind::Naive).log(log).build().unwrap();
        let log = Log::file("/dev/full").unwrap();
        let engine = naive(&log);
        let value = engine.var(0.0);
        let add = engine.op("add").operator_with(value.write(), |value, by: f64| *value += by).unwrap();
        let add = add.logged(move |by, bytes| {
            let inner = Log::new();
            let other = naive(&inner);
            let total = other.var(0.0);
            let mix = other.op("mix").operator_with(total.write(), |total, by: f64| *total += by).unwrap();
            mix.logged(encode).push(*by).unwrap();
            assert_eq!(inner.entries().unwrap().iter().count(), 1);
            // As long as the rings that the log makes.
            bytes.resize(1 << 16, 7);
        });
        (0..50).for_each(|by| {
            add.push(f64::from(by)).unwrap();
            thread::sleep(std::time::Duration::from_millis(1));
        });
        assert_eq!(engine.get(&value).unwrap(), 1225.0);
        let error = engine.shutdown(Shutdown::Drain, None).unwrap_err();
        assert!(matches!(error, ShutdownError::Log(..)), "{error}");
    });
}

/// Nothing reads the pipe.
#[test]
#[cfg(target_os = "linux")]
fn a_pipe_without_a_reader_is_refused() {
    let path = std::env::temp_dir().join(format!("raddle-log-pipe-{}", std::process::id()));
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error = Log::file(&path).map(drop).unwrap_err();
    fs::remove_file(&path).unwrap();
    assert_eq!(error.to_string(), "the pipe or socket has no reader");
}
