//! The dependence types and kernels of Task Bench, with METG(50%): see `pattern`, `kernel` and `metg`.
//!
//! One thread pushes all operations of a 16-column graph in order, then waits. The benchmark guards against growth of
//! the engine's overhead on graphs of every density, and of the smallest useful operation size. It does not measure
//! latency.

use std::{cell::RefCell, collections::BTreeMap};

use raddle::EngineKind;
use raddle_benches::{
    kernel::{Kernel, serial_ns},
    machine,
    metg::metg,
    pattern::{Dependence, Pattern},
    report::{Report, Table, number, spread},
    rounds::{self, Row},
    runtime::{Raddle, RayonGraph, TokioTasks},
    state::{State, by_state, preferred},
    stats::median,
    svg::{Axis, Scale, Series, lines},
    workload::Suite,
};

const WIDTH: usize = 16;
/// The kernels that have a size.
const SIZED: [Kernel; 3] = [Kernel::Compute, Kernel::Memory, Kernel::Imbalanced];

fn main() {
    let cores = machine::cores();
    let quick = machine::quick();
    let rounds = machine::rounds();
    let steps = machine::choose(3_000, 20);

    let mut report = Report::new(
        "task_bench",
        "Task Bench",
        &format!(
            "Graphs of Task Bench (SC 2020), {WIDTH} columns wide, pushed by one thread while {cores} workers run \
             them. Efficiency is the time that the operations take one after the other without an engine, divided by \
             the number of cores and by the time that they take here. METG(50%) is the size, as the kernel's own time, \
             of the smallest operation from which efficiency stays at 50 % or more. The paper gives the cores' time \
             per operation instead, which includes the overhead: at 50 % that is twice the figure here. Medians of up \
             to {rounds} rounds, with the quartiles in brackets; the engines take turns."
        ),
    );

    let suites: Vec<RefCell<Box<dyn Suite>>> = vec![
        RefCell::new(Box::new(Raddle::new(EngineKind::PerDevice))),
        RefCell::new(Box::new(Raddle::new(EngineKind::Naive))),
        RefCell::new(Box::new(RayonGraph::new(cores))),
        RefCell::new(Box::new(TokioTasks::new(cores))),
        #[cfg(feature = "dagrs")]
        RefCell::new(Box::new(raddle_benches::runtime::Dagrs::new(cores))),
    ];
    let raddle = &suites[0];
    let dependences: Vec<Dependence> =
        Dependence::ALL.into_iter().filter(|dependence| machine::wanted(dependence.name())).collect();
    let patterns: Vec<Pattern> = dependences.iter().map(|&dependence| Pattern::new(dependence, WIDTH)).collect();

    // The cost of an operation. dagrs is excluded, since its cost per operation grows with the number of operations.
    let titles: Vec<String> = suites[..4].iter().map(|suite| suite.borrow().title()).collect();
    let mut columns = vec!["dependence", "reads per operation"];
    columns.extend(titles.iter().map(String::as_str));
    let mut rows: Vec<Row<'_>> = vec![];
    for pattern in &patterns {
        for suite in &suites[..4] {
            let steps = if pattern.dependence == Dependence::AllToAll { steps / 3 } else { steps };
            let time = move || suite.borrow_mut().graph(pattern, steps.max(10), Kernel::Empty, 0).each();
            rows.push(Row::new(pattern.dependence.name(), time));
        }
    }
    let samples = rounds::measure(&mut rows, rounds, |_| {});
    drop(rows);
    for (state, figures) in by_state(&samples) {
        let mut table = Table::of_state("empty", state, "Empty operations, ns each, push and run", "", &columns);
        for (pattern, figures) in patterns.iter().zip(figures.chunks(titles.len())) {
            let points = || (0..60).flat_map(|step| (0..WIDTH).map(move |point| (step, point)));
            let reads = points().map(|(step, point)| pattern.reads(step, point).len()).sum::<usize>();
            let reads = number(reads as f64 / points().count() as f64);
            let cells = [reads].into_iter().chain(figures.iter().map(|figures| spread(figures)));
            table.row(pattern.dependence.name(), cells);
        }
        report.add(&table);
    }

    // METG for every dependence type and kernel.
    let mut columns = vec!["dependence"];
    columns.extend(SIZED.map(Kernel::name));
    let note = "For raddle. The memory-bound kernel reads and writes one line of 64 bytes per iteration in memory that \
                no cache holds; where the memory bandwidth does not grow with the number of cores, its efficiency has \
                a ceiling.";
    let mut rows: Vec<Row<'_>> = vec![];
    for pattern in &patterns {
        for kernel in SIZED {
            rows.push(Row::steady(pattern.dependence.name(), move |watch| {
                Ok(metg(raddle.borrow_mut().as_mut(), pattern, kernel, cores, quick, watch)?.ns)
            }));
        }
    }
    let samples = rounds::measure(&mut rows, rounds, |_| {});
    drop(rows);
    for (state, figures) in by_state(&samples) {
        let mut table = Table::of_state("metg", state, "METG(50%), ns", note, &columns);
        for (pattern, figures) in patterns.iter().zip(figures.chunks(SIZED.len())) {
            table.row(pattern.dependence.name(), figures.iter().map(|figures| spread(figures)));
        }
        report.add(&table);
    }

    // METG of the stencil, compared with the other runtimes.
    let compared: Vec<&RefCell<Box<dyn Suite>>> = suites.iter().filter(|suite| !suite.borrow().is_serial()).collect();
    let pattern = Pattern::new(Dependence::Stencil1d, WIDTH);
    // Each engine's last search in each state.
    let curves: RefCell<BTreeMap<(State, usize), Series>> = RefCell::default();
    let mut rows: Vec<Row<'_>> = vec![];
    for (index, suite) in compared.iter().enumerate() {
        let (pattern, curves) = (&pattern, &curves);
        rows.push(Row::steady("stencil", move |watch| {
            let found = metg(suite.borrow_mut().as_mut(), pattern, Kernel::Compute, cores, quick, watch)?;
            let points = found.curve.into_iter().map(|(task, efficiency)| (task, efficiency * 100.0)).collect();
            curves.borrow_mut().insert((watch.state(), index), (suite.borrow().title(), points));
            Ok(found.ns)
        }));
    }
    let samples = rounds::measure(&mut rows, rounds, |_| {});
    drop(rows);
    let note = "The rows of engines that are not written in Rust are in [push_run.md](push_run.md). dagrs runs graphs \
                of at most 2,000 operations.";
    let columns = ["engine", "METG(50%), ns", "times raddle's", "the paper's way, ns"];
    for (state, found) in by_state(&samples) {
        let title = "METG(50%) of the compute-bound stencil, width 16";
        let mut table = Table::of_state("stencil", state, title, note, &columns);
        let own = median(&found[0]);
        for (suite, found) in compared.iter().zip(&found) {
            let middle = median(found);
            table.row(suite.borrow().title(), [spread(found), number(middle / own), number(middle * 2.0)]);
        }
        report.add(&table);
        if Some(state) == preferred(&samples) {
            let title = format!("Efficiency of the stencil by the operations' own time, last round, {}", state.name());
            let (x, y) = (Axis::new("operation, ns", Scale::Log), Axis::new("efficiency, %", Scale::Linear));
            let curves: Vec<Series> =
                curves.borrow().iter().filter(|((of, _), _)| *of == state).map(|(_, curve)| curve.clone()).collect();
            report.plot("efficiency", &title, &lines(&title, &x, &y, &curves));
        }
    }

    // The kernels' cost, on which METG is based.
    let mut table = Table::new("kernel", "The kernels by themselves", "", &["kernel", "ns per iteration, one core"]);
    for kernel in SIZED {
        table.row(kernel.name(), [number(serial_ns(kernel, 1000) / 1000.0)]);
    }
    report.add(&table);
    report.save();
}
