//! The cost of single steps, measured with criterion: pushes without runs, runs without pushes, waits, variables.
//!
//! The engine has one worker. For the cost of a push, the worker is blocked in an operation, so that the push alone is
//! timed; for the cost of a run, all operations are pushed first, and the worker itself measures the time from the
//! first operation to the last.

use std::{
    hint::black_box,
    sync::mpsc,
    time::{Duration, Instant},
};

use criterion::Criterion;
use raddle::{Engine, Recorder, Token};
use raddle_benches::shapes::*;
use raddle_benches::{
    machine,
    report::{Report, Table, number},
    runtime::occupy,
};

/// The groups of steps, in the order of the table.
const GROUPS: [&str; 4] = ["push", "run", "recorded", "other"];

/// The number of operations that are pending at a time: enough to make the ends of a batch negligible.
const BATCH: u64 = 4_096;

/// Measures `count` calls to `push`, without the runs of the pushed operations.
fn pushes(engine: &Engine, count: u64, mut push: impl FnMut(u64)) -> Duration {
    let mut time = Duration::ZERO;
    let mut left = count;
    while left > 0 {
        let batch = left.min(BATCH);
        let go = occupy(engine);
        let start = Instant::now();
        (0..batch).for_each(&mut push);
        time += start.elapsed();
        drop(go);
        engine.wait_for_all().expect("wait");
        left -= batch;
    }
    time
}

/// Measures the worker's time for `count` operations that `push` has pushed in advance.
fn runs(engine: &Engine, count: u64, mut push: impl FnMut(u64)) -> Duration {
    let mut time = Duration::ZERO;
    let mut left = count;
    while left > 0 {
        let batch = left.min(BATCH);
        let (send, receive) = mpsc::channel();
        let go = occupy(engine);
        let sender = send.clone();
        // Their priorities make these two the first and the last of the ready operations.
        engine.op("first").priority(1).push_sync(move |_| _ = sender.send(Instant::now())).expect("push");
        (0..batch).for_each(&mut push);
        engine.op("last").priority(-1).push_sync(move |_| _ = send.send(Instant::now())).expect("push");
        drop(go);
        let first: Instant = receive.recv().expect("the operation runs");
        let last: Instant = receive.recv().expect("the operation runs");
        time += last - first;
        engine.wait_for_all().expect("wait");
        left -= batch;
    }
    time
}

fn benches(criterion: &mut Criterion) {
    let engine = Engine::builder().workers(1).build().expect("an engine");
    let tokens: Vec<Token> = (0..64).map(|_| engine.token()).collect();
    let at = |i: u64| &tokens[i as usize % 64];
    let typed: Vec<_> = (0..64).map(|_| engine.var(0u64)).collect();
    let var = |i: u64| &typed[i as usize % 64];

    let mut group = criterion.benchmark_group("push");
    let mut push = |name: &str, push: &dyn Fn(u64)| {
        group.bench_function(name, |b| b.iter_custom(|count| pushes(&engine, count, push)));
    };
    push("no variable", &|_| engine.push_sync(|_| {}, [], []).expect("push"));
    push("1 write", &|i| engine.push_sync(|_| {}, [], [at(i)]).expect("push"));
    push("1 write, one variable", &|_| engine.push_sync(|_| {}, [], [at(0)]).expect("push"));
    push("1 read, one variable", &|_| engine.push_sync(|_| {}, [at(0)], []).expect("push"));
    push("2 reads + 1 write", &|i| engine.push_sync(|_| {}, [at(i), at(i + 7)], [at(i + 13)]).expect("push"));
    push("3 reads + 1 write", &|i| {
        engine.push_sync(|_| {}, [at(i), at(i + 7), at(i + 9)], [at(i + 13)]).expect("push");
    });
    push("7 reads + 1 write", &|i| {
        engine.op("").reads((0..7).map(|k| at(i + 3 * k))).writes([at(i + 32)]).push_sync(|_| {}).expect("push");
    });
    let small = [0u8; 80];
    push("1 write, 80 bytes captured", &|i| {
        engine.push_sync(move |_| _ = black_box(small), [], [at(i)]).expect("push");
    });
    let large = [0u8; 160];
    push("1 write, 160 bytes captured", &|i| {
        engine.push_sync(move |_| _ = black_box(large), [], [at(i)]).expect("push");
    });
    push("typed, 1 read + 1 write", &|i| {
        engine.op("add").push((var(i).read(), var(i + 1).write()), |(a, b)| *b += *a).expect("push");
    });
    push("typed, 1 read, with a handle", &|i| {
        drop(engine.op("get").submit(var(i).read(), |a| *a).expect("push"));
    });
    push("asynchronous, 1 write", &|i| {
        engine.push_async(|_, done| done.complete(), [], [at(i)]).expect("push");
    });
    let operator = engine.op("again").writes([at(0)]).operator_sync(|_| {}).expect("operator");
    push("operator, 1 write, one variable", &|_| operator.push().expect("push"));
    group.finish();

    let mut group = criterion.benchmark_group("run");
    let mut run = |name: &str, push: &dyn Fn(u64)| {
        group.bench_function(name, |b| b.iter_custom(|count| runs(&engine, count, push)));
    };
    run("no variable", &|_| engine.push_sync(|_| {}, [], []).expect("push"));
    run("1 write", &|i| engine.push_sync(|_| {}, [], [at(i)]).expect("push"));
    run("1 write, one variable", &|_| engine.push_sync(|_| {}, [], [at(0)]).expect("push"));
    run("1 read, one variable", &|_| engine.push_sync(|_| {}, [at(0)], []).expect("push"));
    run("3 reads + 1 write", &|i| engine.push_sync(|_| {}, [at(i), at(i + 7), at(i + 9)], [at(i + 13)]).expect("push"));
    run("operator, 1 write, one variable", &|_| operator.push().expect("push"));
    group.finish();

    // The same steps with a recorder. Its rings are emptied between the batches, since recording into a full ring costs
    // less.
    let recorder = Recorder::new();
    let recorded = Engine::builder().workers(1).recorder(&recorder).build().expect("an engine");
    let inside: Vec<Token> = (0..64).map(|_| recorded.token()).collect();
    let emptied = |count: u64, time: &dyn Fn(u64) -> Duration| {
        let batches = (0..count).step_by(BATCH as usize).map(|begun| {
            let time = time(BATCH.min(count - begun));
            assert_eq!(recorder.take().lost(), 0, "a ring was full");
            time
        });
        batches.sum()
    };
    let push_one = |_| recorded.push_sync(|_| {}, [], [&inside[0]]).expect("push");
    let push_any = |i: u64| recorded.push_sync(|_| {}, [], [&inside[i as usize % 64]]).expect("push");
    let mut group = criterion.benchmark_group("recorded");
    let mut record = |name: &str, time: &dyn Fn(u64) -> Duration| {
        group.bench_function(name, |b| b.iter_custom(|count| emptied(count, time)));
    };
    record("push, 1 write", &|count| pushes(&recorded, count, push_any));
    record("push, 1 write, one variable", &|count| pushes(&recorded, count, push_one));
    record("run, 1 write", &|count| runs(&recorded, count, push_any));
    record("run, 1 write, one variable", &|count| runs(&recorded, count, push_one));
    group.finish();

    let mut group = criterion.benchmark_group("other");
    group.bench_function("a variable made and dropped", |b| b.iter(|| drop(engine.token())));
    group.bench_function("wait for a variable, nothing pending", |b| b.iter(|| engine.wait_for_var(at(0))));
    group.bench_function("wait for all, nothing pending", |b| b.iter(|| engine.wait_for_all()));
    group.bench_function("get a typed value, nothing pending", |b| b.iter(|| engine.get(var(0))));
    group.bench_function("push, and wait for its handle", |b| {
        b.iter(|| engine.op("get").submit(var(0).read(), |a| *a).expect("push").wait());
    });
    let naive = Engine::builder().kind(raddle::EngineKind::Naive).build().expect("an engine");
    let token = naive.token();
    group.bench_function("push and run on `Naive`, 1 write", |b| b.iter(|| naive.push_sync(|_| {}, [], [&token])));
    group.finish();
}

/// Returns the number after `"key":{…"point_estimate":` in criterion's output.
fn estimate(json: &str, key: &str) -> Option<f64> {
    let (_, rest) = json.split_once(&format!("\"{key}\":"))?;
    let (_, rest) = rest.split_once("\"point_estimate\":")?;
    rest[..rest.find([',', '}'])?].trim().parse().ok()
}

fn main() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("criterion");
    // Remove the figures of an earlier run, which would look like results of this one.
    _ = std::fs::remove_dir_all(&folder);
    let time = machine::choose(Duration::from_millis(800), Duration::from_millis(10));
    let mut criterion = Criterion::default()
        .output_directory(&folder)
        .without_plots()
        .sample_size(machine::choose(20, 10))
        .warm_up_time(time / 4)
        .measurement_time(time)
        .configure_from_args();
    benches(&mut criterion);
    criterion.final_summary();

    let mut report = Report::new(
        "micro",
        "Single steps",
        "Measured with criterion, 20 samples: ns per step, on an engine with one worker. *push*: the call alone, while \
         the worker is kept busy by something else. *run*: the worker's time per operation, from taking it until its \
         successors have been notified, when all operations are pushed beforehand. *recorded*: the same steps on an \
         engine that records them.",
    );
    let mut table = Table::new("micro", "Steps", "", &["step", "median, ns", "mean, ns", "standard deviation, ns"]);
    let mut found = vec![];
    for group in GROUPS {
        let Ok(entries) = std::fs::read_dir(folder.join(group)) else { continue };
        for entry in entries.flatten() {
            let read = |file: &str| std::fs::read_to_string(entry.path().join("new").join(file)).ok();
            let (Some(estimates), Some(id)) = (read("estimates.json"), read("benchmark.json")) else { continue };
            let title = id.split_once("\"title\":\"").and_then(|(_, rest)| rest.split_once('"')).map_or("", |(t, _)| t);
            let cells = ["median", "mean", "std_dev"].map(|key| number(estimate(&estimates, key).unwrap_or(f64::NAN)));
            let order = GROUPS.iter().position(|&name| name == group);
            found.push(((order, title.to_owned()), cells));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    for ((_, title), cells) in found {
        table.row(title, cells);
    }
    report.add(&table);
    report.save();
}
