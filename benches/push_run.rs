//! What an operation costs from push to end, when it does nothing: ns per operation, median of several runs.
//!
//! Guards the engine's overhead on five shapes of dependence, with one pushing thread. It says nothing about latency.

use std::{hint::black_box, time::Instant};

use raddle::{Engine, EngineKind, Operator, Token};

const OPERATIONS: usize = 100_000;
const RUNS: usize = 5;

fn ns_per_op(start: Instant, operations: usize) -> f64 {
    start.elapsed().as_nanos() as f64 / operations as f64
}

fn variables(engine: &Engine, count: usize) -> Vec<Token> {
    (0..count).map(|_| engine.new_var()).collect()
}

fn independent(engine: &Engine, variables_count: usize) -> f64 {
    let variables = variables(engine, variables_count);
    let start = Instant::now();
    for i in 0..OPERATIONS {
        engine.push_sync(|_| {}, [], [&variables[i % variables_count]]).expect("push");
    }
    engine.wait_for_all().expect("wait");
    ns_per_op(start, OPERATIONS)
}

fn one_writer_15_readers(engine: &Engine) -> f64 {
    let variable = engine.new_var();
    let start = Instant::now();
    for i in 0..OPERATIONS {
        if i % 16 == 0 {
            engine.push_sync(|_| {}, [], [&variable]).expect("push");
        } else {
            engine.push_sync(|_| {}, [&variable], []).expect("push");
        }
    }
    engine.wait_for_all().expect("wait");
    ns_per_op(start, OPERATIONS)
}

fn two_reads_one_write(engine: &Engine) -> f64 {
    let count = 1024;
    let variables = variables(engine, count);
    let mut state = 42u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % count
    };
    let picks: Vec<[usize; 3]> = std::iter::repeat_with(|| [random(), random(), random()])
        .filter(|[a, b, c]| a != b && b != c && a != c)
        .take(OPERATIONS)
        .collect();
    let start = Instant::now();
    for [a, b, c] in picks {
        engine.push_sync(|_| {}, [&variables[a], &variables[b]], [&variables[c]]).expect("push");
    }
    engine.wait_for_all().expect("wait");
    ns_per_op(start, OPERATIONS)
}

fn stencil(engine: &Engine) -> f64 {
    let (width, steps) = (16, 5000);
    let variables = variables(engine, 2 * width);
    let start = Instant::now();
    for step in 0..steps {
        let (current, previous) = ((step & 1) * width, ((step + 1) & 1) * width);
        for i in 0..width {
            let write = [&variables[current + i]];
            let at = |i: usize| &variables[previous + i];
            let pushed = if i == 0 {
                engine.push_sync(|_| {}, [at(0), at(1)], write)
            } else if i == width - 1 {
                engine.push_sync(|_| {}, [at(i - 1), at(i)], write)
            } else {
                engine.push_sync(|_| {}, [at(i - 1), at(i), at(i + 1)], write)
            };
            pushed.expect("push");
        }
    }
    engine.wait_for_all().expect("wait");
    ns_per_op(start, width * steps)
}

fn operator_chain(engine: &Engine) -> f64 {
    let variable = engine.new_var();
    let operator: Operator =
        engine.op("chain").writes([&variable]).operator_sync(|cx| _ = black_box(cx)).expect("operator");
    let start = Instant::now();
    for _ in 0..OPERATIONS {
        operator.push().expect("push");
    }
    engine.wait_for_all().expect("wait");
    ns_per_op(start, OPERATIONS)
}

fn median(mut run: impl FnMut() -> f64) -> f64 {
    run();
    let mut figures: Vec<f64> = (0..RUNS).map(|_| run()).collect();
    figures.sort_by(f64::total_cmp);
    figures[RUNS / 2]
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("| ns per operation, push and run, median of {RUNS}, {cores} cores | {} |", env!("CARGO_PKG_VERSION"));
    println!("|---|---|");
    // As with `cargo test`: only rows that contain one of the words given.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for kind in [EngineKind::PerDevice, EngineKind::Naive] {
        let engine = Engine::builder().kind(kind).build().expect("an engine");
        let row = |name: &str, run: &dyn Fn() -> f64| {
            let name = format!("{kind}: {name}");
            if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
                println!("| {name} | {:.0} |", median(run));
            }
        };
        row("independent, 4,096 variables", &|| independent(&engine, 4096));
        row("chain on one variable", &|| independent(&engine, 1));
        row("1 writer + 15 readers", &|| one_writer_15_readers(&engine));
        row("2 reads + 1 write, 1,024 variables", &|| two_reads_one_write(&engine));
        row("stencil, width 16", &|| stencil(&engine));
        row("prebuilt operator, chain", &|| operator_chain(&engine));
    }
}
