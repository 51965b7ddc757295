//! The dependence types and kernels of Task Bench, with METG(50%): see `pattern`, `kernel` and `metg`.
//!
//! One thread pushes all operations of a graph of 16 columns in order, and waits. The benchmark guards against growth
//! of the engine's overhead, on graphs of every density, and of the smallest useful size of an operation. It does not
//! measure latency.

use raddle::EngineKind;
use raddle_benches::{
    kernel::{Kernel, serial_ns},
    machine,
    metg::metg,
    pattern::{Dependence, Pattern},
    report::{Report, Table, number, spread},
    runtime::{Raddle, RayonGraph, TokioTasks},
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
    let rounds = machine::rounds(5);
    let metg_rounds = rounds.min(3);
    let steps = machine::choose(3_000, 20);

    let mut report = Report::new(
        "task_bench",
        "Task Bench",
        &format!(
            "Graphs of Task Bench (SC 2020), {WIDTH} columns wide, pushed by one thread while {cores} workers run \
             them. Efficiency is the time that the operations take one after the other without an engine, divided by \
             the number of cores and by the time that they take here. METG(50%) is the size, as the kernel's own time, \
             of the smallest operation from which efficiency stays at 50 % or more. The paper gives the cores' time \
             per operation instead, which includes the overhead: at 50 % that is twice the figure here. Medians of \
             {rounds} rounds ({metg_rounds} for METG), with the smallest and the largest; the engines take turns."
        ),
    );

    let mut raddle = Raddle::new(EngineKind::PerDevice);
    let mut naive = Raddle::new(EngineKind::Naive);
    let mut rayon = RayonGraph::new(cores);
    let mut tokio = TokioTasks::new(cores);
    #[cfg(feature = "dagrs")]
    let mut dagrs = raddle_benches::runtime::Dagrs::new(cores);

    // The cost of an operation.
    let mut suites: [&mut dyn Suite; 4] = [&mut raddle, &mut naive, &mut rayon, &mut tokio];
    let titles: Vec<String> = suites.iter().map(|suite| suite.title()).collect();
    let mut columns = vec!["dependence", "reads per operation"];
    columns.extend(titles.iter().map(String::as_str));
    let mut table = Table::new("empty", "Empty operations, ns each, push and run", "", &columns);
    for dependence in Dependence::ALL.into_iter().filter(|dependence| machine::wanted(dependence.name())) {
        let pattern = Pattern::new(dependence, WIDTH);
        let mut figures = vec![vec![]; suites.len()];
        for round in 0..=rounds {
            for (suite, figures) in suites.iter_mut().zip(&mut figures) {
                machine::settle();
                let steps = if dependence == Dependence::AllToAll { steps / 3 } else { steps };
                let run = suite.graph(&pattern, steps.max(10), Kernel::Empty, 0);
                if round > 0 {
                    figures.push(run.each());
                }
            }
        }
        let points = || (0..60).flat_map(|step| (0..WIDTH).map(move |point| (step, point)));
        let reads = points().map(|(step, point)| pattern.reads(step, point).len()).sum::<usize>();
        let reads = number(reads as f64 / points().count() as f64);
        table.row(dependence.name(), [reads].into_iter().chain(figures.iter().map(|figures| spread(figures))));
    }
    report.add(&table);

    // METG for every dependence type and kernel.
    let mut columns = vec!["dependence"];
    columns.extend(SIZED.map(Kernel::name));
    let note = "For raddle. The memory-bound kernel reads and writes one line of 64 bytes per iteration in memory that \
                no cache holds; where the memory bandwidth does not grow with the number of cores, its efficiency has \
                a ceiling.";
    let mut table = Table::new("metg", "METG(50%), ns", note, &columns);
    for dependence in Dependence::ALL.into_iter().filter(|dependence| machine::wanted(dependence.name())) {
        let pattern = Pattern::new(dependence, WIDTH);
        let cells = SIZED.map(|kernel| {
            let figures: Vec<f64> = (0..metg_rounds)
                .filter_map(|_| {
                    machine::settle();
                    metg(&mut raddle, &pattern, kernel, cores, quick).ns
                })
                .collect();
            spread(&figures)
        });
        table.row(dependence.name(), cells);
    }
    report.add(&table);

    // The stencil, compared with the other runtimes.
    let mut suites: Vec<&mut dyn Suite> = vec![
        &mut raddle,
        &mut rayon,
        &mut tokio,
        #[cfg(feature = "dagrs")]
        &mut dagrs,
    ];
    let pattern = Pattern::new(Dependence::Stencil1d, WIDTH);
    let mut found: Vec<Vec<f64>> = vec![vec![]; suites.len()];
    let mut curves: Vec<Series> = vec![];
    for round in 0..metg_rounds {
        for (suite, found) in suites.iter_mut().zip(&mut found) {
            machine::settle();
            let metg = metg(*suite, &pattern, Kernel::Compute, cores, quick);
            found.extend(metg.ns);
            if round == 0 {
                let points = metg.curve.into_iter().map(|(task, efficiency)| (task, efficiency * 100.0)).collect();
                curves.push((suite.title(), points));
            }
        }
    }
    let note = "The rows of engines that are not written in Rust are in [push_run.md](push_run.md). dagrs runs graphs \
                of at most 2,000 operations.";
    let columns = ["engine", "METG(50%), ns", "times raddle's", "the paper's way, ns"];
    let mut table = Table::new("stencil", "METG(50%) of the compute-bound stencil, width 16", note, &columns);
    let own = median(&found[0]);
    for (suite, found) in suites.iter().zip(&found) {
        let middle = median(found);
        table.row(suite.title(), [spread(found), number(middle / own), number(middle * 2.0)]);
    }
    report.add(&table);
    let title = "Efficiency of the stencil by the operations' own time, first round";
    let (x, y) = (Axis::new("operation, ns", Scale::Log), Axis::new("efficiency, %", Scale::Linear));
    report.plot("efficiency", title, &lines(title, &x, &y, &curves));

    // The cost of the kernels, on which METG is based.
    let mut table = Table::new("kernel", "The kernels by themselves", "", &["kernel", "ns per iteration, one core"]);
    for kernel in SIZED {
        table.row(kernel.name(), [number(serial_ns(kernel, 1000) / 1000.0)]);
    }
    report.add(&table);
    report.save();
}
