//! Throughput by number of workers and by number of pushing threads.
//!
//! The benchmark guards against state shared by all workers or all pushers. More pushers than cores cannot all run at
//! the same time.

use std::time::Instant;

use raddle::{Engine, Token};
use raddle_benches::shapes::*;
use raddle_benches::{
    kernel::Kernel,
    kernel::{compute, serial_ns},
    machine,
    report::{Report, Table, number, spread},
    rounds::{self, Row},
    state::{by_state, preferred},
    stats::median,
    svg::{Axis, Scale, Series, lines},
};

/// How the pushing threads share variables.
#[derive(Clone, Copy, PartialEq)]
enum Sharing {
    /// Each thread's operations mutate its own 256 variables in turn.
    Disjoint,
    /// All operations mutate the same variable.
    OneVariable,
    /// Each operation reads two of the same 1,024 variables and mutates one. All are chosen at random and may coincide.
    Random,
    /// All operations read the same variable.
    OneReadVariable,
}

impl Sharing {
    const ALL: [Self; 4] = [Self::Disjoint, Self::OneVariable, Self::Random, Self::OneReadVariable];

    fn name(self) -> &'static str {
        match self {
            Self::Disjoint => "disjoint variables",
            Self::OneVariable => "one variable, all mutate",
            Self::Random => "1,024 shared variables, 2 reads + 1 write",
            Self::OneReadVariable => "one variable, all read",
        }
    }
}

/// Measures ns per operation when `pushers` threads together push `operations` operations.
fn push(engine: &Engine, pushers: usize, operations: usize, sharing: Sharing) -> f64 {
    let each = operations / pushers;
    let count = if sharing == Sharing::Random { 1024 } else { 256 };
    let shared: Vec<Token> = (0..count).map(|_| engine.token()).collect();
    let ready = std::sync::Barrier::new(pushers + 1);
    let start = std::thread::scope(|scope| {
        for pusher in 0..pushers {
            let (ready, shared) = (&ready, &shared);
            scope.spawn(move || {
                let own: Vec<Token> = (0..256).map(|_| engine.token()).collect();
                let mut state = 42 + pusher as u64;
                let mut random = || {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as usize % 1024
                };
                ready.wait();
                for i in 0..each {
                    let pushed = match sharing {
                        Sharing::Disjoint => engine.push_sync(|_| {}, [], [&own[i % 256]]),
                        Sharing::OneVariable => engine.push_sync(|_| {}, [], [&shared[0]]),
                        Sharing::OneReadVariable => engine.push_sync(|_| {}, [&shared[0]], []),
                        Sharing::Random => {
                            let (a, b, c) = (random(), random(), random());
                            engine.push_sync(|_| {}, [&shared[a], &shared[b]], [&shared[c]])
                        }
                    };
                    pushed.expect("push");
                }
            });
        }
        ready.wait();
        Instant::now()
    });
    engine.wait_for_all().expect("wait");
    start.elapsed().as_nanos() as f64 / (each * pushers) as f64
}

/// Measures ns per operation for independent operations with `iterations` of the compute-bound kernel.
fn run(engine: &Engine, operations: usize, iterations: u32) -> f64 {
    let variables: Vec<Token> = (0..1024).map(|_| engine.token()).collect();
    let start = Instant::now();
    for i in 0..operations {
        engine.push_sync(move |_| compute(iterations), [], [&variables[i % 1024]]).expect("push");
    }
    engine.wait_for_all().expect("wait");
    start.elapsed().as_nanos() as f64 / operations as f64
}

fn main() {
    let cores = machine::cores();
    let rounds = machine::rounds();
    let operations = machine::choose(100_000, 2_000);
    // Powers of two up to `most`, and the number of cores.
    let counts = |most: usize| {
        let mut counts: Vec<usize> =
            std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|&n| n <= most).chain([cores]).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    };
    let engines: Vec<(usize, Engine)> = counts(cores)
        .into_iter()
        .map(|n| (n, Engine::builder().workers(n).pin(true).build().expect("an engine")))
        .collect();

    let mut report = Report::new(
        "scaling",
        "More workers, more pushing threads",
        &format!(
            "Medians of up to {rounds} interleaved rounds of {operations} operations, with the quartiles in \
             brackets. On {cores} cores, a pushing thread takes a core from the workers."
        ),
    );

    let sizes = [0, 300, 3_000];
    let mut names = vec!["workers".to_owned()];
    for size in sizes {
        let task = if size == 0 { 0.0 } else { serial_ns(Kernel::Compute, size) };
        names.push(format!("ns per operation of {task:.0} ns"));
        if size > 0 {
            names.push("speed-up over none".into());
        }
    }
    let columns: Vec<&str> = names.iter().map(String::as_str).collect();
    let note =
        "One thread pushes independent operations. The speed-up is over the same work in a loop without an engine.";
    let mut rows: Vec<Row<'_>> = vec![];
    for (workers, engine) in &engines {
        for size in sizes {
            let operations = if size > 1_000 { operations / 10 } else { operations };
            rows.push(Row::new(format!("{workers} workers, {size}"), move || run(engine, operations, size)));
        }
    }
    let samples = rounds::measure(&mut rows, rounds, |_| {});
    drop(rows);
    for (state, figures) in by_state(&samples) {
        let mut table = Table::of_state("workers", state, "By the number of workers", note, &columns);
        for ((workers, _), figures) in engines.iter().zip(figures.chunks(sizes.len())) {
            let mut cells = vec![];
            for (&size, figures) in sizes.iter().zip(figures) {
                cells.push(spread(figures));
                if size > 0 {
                    cells.push(number(serial_ns(Kernel::Compute, size) / median(figures)));
                }
            }
            table.row(workers.to_string(), cells);
        }
        report.add(&table);
    }

    let pushers = counts(cores.max(4));
    let titles: Vec<String> = pushers.iter().map(|n| format!("{n} pushing")).collect();
    let mut columns = vec!["operations"];
    columns.extend(titles.iter().map(String::as_str));
    let note = "ns per operation over all threads: the time from the start of the pushes until all operations are \
                done, divided by their number. With perfect scaling, twice the threads would halve it.";
    let (_, engine) = engines.last().expect("an engine");
    let mut rows: Vec<Row<'_>> = vec![];
    for sharing in Sharing::ALL {
        for &pushers in &pushers {
            let name = format!("{}, {pushers} pushing", sharing.name());
            rows.push(Row::new(name, move || push(engine, pushers, operations, sharing)));
        }
    }
    let samples = rounds::measure(&mut rows, rounds, |_| {});
    for (state, figures) in by_state(&samples) {
        let mut table = Table::of_state("pushers", state, "By the number of pushing threads", note, &columns);
        let mut curves: Vec<Series> = vec![];
        for (sharing, figures) in Sharing::ALL.iter().zip(figures.chunks(pushers.len())) {
            table.row(sharing.name(), figures.iter().map(|figures| spread(figures)));
            let points = pushers.iter().zip(figures).map(|(&n, figures)| (n as f64, 1e3 / median(figures)));
            curves.push((sharing.name().into(), points.filter(|point| point.1.is_finite()).collect()));
        }
        report.add(&table);
        if Some(state) == preferred(&samples) {
            let title = format!("Throughput by the number of pushing threads, {}", state.name());
            let ticks = pushers.iter().map(|&n| (n as f64, n.to_string())).collect();
            let x = Axis { label: "pushing threads", scale: Scale::Linear, ticks: Some(ticks) };
            let y = Axis::new("million operations per second", Scale::Linear);
            report.plot("pushers", &title, &lines(&title, &x, &y, &curves));
        }
    }
    report.save();
}
