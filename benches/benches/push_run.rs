//! The cost of an empty operation from push to completion, for raddle and for the other runtimes.
//!
//! One thread pushes. Each figure is ns per operation: the time from the first push until all operations are complete,
//! divided by their number. The engines take turns, round by round, and the median of the rounds is reported. The
//! benchmark guards against growth of the engine's overhead; it does not measure latency.

use std::collections::BTreeMap;

use raddle::EngineKind;
use raddle_benches::{
    external,
    kernel::Kernel,
    machine,
    metg::metg,
    pattern::{Dependence, Pattern},
    report::{Report, Table, number, spread},
    runtime::{Raddle, RayonGraph, TokioTasks},
    stats::median,
    svg::{Axis, Scale, bars},
    workload::{Suite, Workload},
};

fn main() {
    let cores = machine::cores();
    let operations = machine::choose(100_000, 1_600);
    let rounds = machine::rounds(7);
    let mut suites: Vec<Box<dyn Suite>> = vec![
        Box::new(Raddle::new(EngineKind::PerDevice)),
        Box::new(Raddle::new(EngineKind::Naive)),
        Box::new(RayonGraph::new(cores)),
        Box::new(TokioTasks::new(cores)),
        #[cfg(feature = "dagrs")]
        Box::new(raddle_benches::runtime::Dagrs::new(cores)),
    ];
    suites.retain(|suite| machine::wanted(&suite.title()));

    let mut report = Report::new(
        "push_run",
        "An operation that does nothing, from push to end",
        &format!(
            "ns per operation: from the first push until all are done, divided by their number ({operations}; for \
             dagrs at most 2,000). One thread pushes. Median of {rounds} rounds in which the engines take turns, after \
             one that is discarded; smallest and largest in brackets. Engines that `RADDLE_PEERS` runs report their \
             own medians.\n\n\
             `Naive` runs each operation inside its push, in order, and without an engine's threads. rayon, dagrs, \
             oneTBB and Taskflow do not derive dependencies from the order of pushes: for them the pushing thread \
             tracks the last writer and the readers of each variable and builds a graph, which is timed as well. \
             rayon's graph runs when it is complete, so no thread pushes while it runs; Taskflow's runs as it grows. \
             With OpenMP, the thread that pushes is one of the two that run operations."
        ),
    );

    // The figures, by engine and workload.
    let mut figures: Vec<BTreeMap<usize, Vec<f64>>> = suites.iter().map(|_| BTreeMap::new()).collect();
    let mut peers = None;
    for round in 0..=rounds {
        for (index, workload) in Workload::ALL.into_iter().enumerate() {
            for (suite, figures) in suites.iter_mut().zip(&mut figures) {
                machine::settle();
                if let Some(figure) = suite.time(workload, operations)
                    && round > 0
                {
                    figures.entry(index).or_default().push(figure);
                }
            }
        }
        if round == rounds / 2 {
            peers = external::run();
        }
    }

    let pattern = Pattern::new(Dependence::Stencil1d, 16);
    let mut metgs: Vec<Vec<f64>> = suites.iter().map(|_| vec![]).collect();
    for _ in 0..rounds.min(3) {
        for (suite, metgs) in suites.iter_mut().zip(&mut metgs) {
            machine::settle();
            metgs.extend(metg(suite.as_mut(), &pattern, Kernel::Compute, cores, machine::quick()).ns);
        }
    }

    let mut columns = vec!["engine"];
    columns.extend(Workload::ALL.map(Workload::name));
    columns.push("METG(50%), stencil");
    let mut table = Table::new("ns", "ns per operation", "", &columns);
    let mut ratios = Table::new(
        "ratio",
        "Time as a multiple of raddle's",
        "Below one, raddle is slower. The figures are quotients of the medians above.",
        &columns,
    );
    // By engine: the medians in the order of the columns.
    let mut medians: Vec<(String, Vec<f64>)> = vec![];
    for ((suite, figures), metgs) in suites.iter().zip(&figures).zip(&metgs) {
        let empty = vec![];
        let mut all: Vec<&Vec<f64>> =
            (0..Workload::ALL.len()).map(|index| figures.get(&index).unwrap_or(&empty)).collect();
        all.push(metgs);
        table.row(suite.title(), all.iter().map(|figures| spread(figures)));
        medians.push((suite.title(), all.iter().map(|figures| median(figures)).collect()));
    }
    let peers = peers.unwrap_or_default();
    let mut names: Vec<&str> = vec![];
    for (engine, _, _) in &peers.figures {
        // An engine's operators may be printed under a shorter name.
        if !names.iter().any(|name| name.starts_with(engine.as_str())) {
            names.push(engine);
        }
    }
    for name in names {
        let find = |workload| {
            let figure =
                peers.figures.iter().find(|(engine, of, _)| *of == workload && name.starts_with(engine.as_str()));
            figure.map_or(f64::NAN, |figure| figure.2)
        };
        let mut all: Vec<f64> = Workload::ALL.map(|workload| find(Some(workload))).into();
        all.push(find(None));
        table.row(name, all.iter().map(|&figure| number(figure)));
        medians.push((name.into(), all));
    }
    report.add(&table);
    if let Some((first, own)) = medians.first().filter(|(name, _)| name == "raddle") {
        for (name, all) in medians.iter().filter(|(name, _)| name != first) {
            ratios.row(name, all.iter().zip(own).map(|(theirs, ours)| number(theirs / ours)));
        }
        report.add(&ratios);
    }
    if !peers.notes.is_empty() {
        let mut table = Table::new("notes", "What else the peers printed", "", &["line"]);
        for note in &peers.notes {
            table.row(note, []);
        }
        report.add(&table);
    }
    let groups = ["independent", "chain", "1w + 15r", "2r + 1w", "stencil", "operator", "METG"];
    let series: Vec<_> = medians
        .iter()
        .map(|(name, all)| {
            let points = all.iter().enumerate().filter(|(_, figure)| figure.is_finite());
            (name.clone(), points.map(|(group, &figure)| (group as f64, figure)).collect())
        })
        .collect();
    let title = "ns per operation, push and run (lower is better)";
    report.plot("ns", title, &bars(title, &groups, &Axis::new("ns, logarithmic", Scale::Log), &series));
    report.save();
}
