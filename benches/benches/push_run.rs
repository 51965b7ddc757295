//! The cost of an empty operation from push to completion, for raddle and the other runtimes.
//!
//! One thread pushes. Each figure is ns per operation: the time from the first push until all operations are complete,
//! divided by their number. The engines take turns, round by round, and the median over the rounds is reported
//! separately for each state of the machine. The benchmark guards against growth of the engine's overhead; it does not
//! measure latency.

use std::cell::RefCell;

use raddle::EngineKind;
use raddle_benches::{
    external,
    kernel::Kernel,
    machine,
    metg::metg,
    pattern::{Dependence, Pattern},
    report::{Report, Table, number, spread},
    rounds::{self, Row},
    runtime::{Raddle, RaddleTyped, RayonGraph, TokioTasks},
    state::{State, by_state, preferred},
    stats::median,
    svg::{Axis, Scale, bars},
    workload::{Suite, Workload},
};

/// The maximum intended difference between typed rows and token rows, in %.
const TYPED_GOAL: f64 = 5.0;

const METG: &str = "METG(50%), stencil";

/// A row for each workload.
fn workloads<'a>(suite: &'a RefCell<Box<dyn Suite>>, operations: usize) -> impl Iterator<Item = Row<'a>> {
    let title = suite.borrow().title();
    Workload::ALL.into_iter().map(move |workload| {
        let name = format!("{title}: {}", workload.name());
        Row::steady(name, move |_| Ok(suite.borrow_mut().time(workload, operations)))
    })
}

fn columns(first: &'static str) -> Vec<&'static str> {
    [first].into_iter().chain(Workload::ALL.map(Workload::name)).chain([METG]).collect()
}

fn main() {
    let cores = machine::cores();
    let operations = machine::choose(100_000, 1_600);
    let rounds = machine::rounds();
    let raddle = Raddle::new(EngineKind::PerDevice);
    let typed = RaddleTyped::with(raddle.engine().clone());
    let mut suites: Vec<Box<dyn Suite>> =
        vec![Box::new(raddle), Box::new(typed), Box::new(Raddle::new(EngineKind::Naive))];
    if rounds::is_one_round() {
        let suites: Vec<_> = suites.into_iter().map(RefCell::new).collect();
        let mut rows: Vec<Row<'_>> = suites.iter().flat_map(|suite| workloads(suite, operations)).collect();
        return rounds::print(&mut rows);
    }
    suites.extend([
        Box::new(RayonGraph::new(cores)) as Box<dyn Suite>,
        Box::new(TokioTasks::new(cores)),
        #[cfg(feature = "dagrs")]
        Box::new(raddle_benches::runtime::Dagrs::new(cores)),
    ]);
    suites.retain(|suite| machine::wanted(&suite.title()));
    let titles: Vec<String> = suites.iter().map(|suite| suite.title()).collect();
    let suites: Vec<_> = suites.into_iter().map(RefCell::new).collect();

    let mut report = Report::new(
        "push_run",
        "An operation that does nothing, from push to end",
        &format!(
            "ns per operation: from the first push until all are done, divided by their number ({operations}; for \
             dagrs at most 2,000). One thread pushes. Median of up to {rounds} rounds in which the engines take turns, \
             after one that is discarded, with the quartiles in brackets. Each state of the machine has a table of its \
             own.\n\n\
             `Naive` runs each operation inside its push, in order, and without an engine's threads. rayon, tokio, \
             dagrs, oneTBB and Taskflow do not derive dependencies from the order of pushes: for them, the pushing \
             thread tracks the last writer and the readers of each variable, and this is timed as well. The graphs of \
             rayon and dagrs run when they are complete, so no thread pushes meanwhile; Taskflow's runs as it grows. \
             With OpenMP, the thread that pushes is one of the two that run operations."
        ),
    );

    let mut peers = None;
    let mut rows: Vec<Row<'_>> = suites.iter().flat_map(|suite| workloads(suite, operations)).collect();
    let figures = rounds::measure(&mut rows, rounds, |round| {
        if round == rounds / 2 {
            peers = external::run();
        }
    });
    drop(rows);

    let pattern = Pattern::new(Dependence::Stencil1d, 16);
    let mut rows: Vec<Row<'_>> = suites
        .iter()
        .map(|suite| {
            let pattern = &pattern;
            Row::steady(METG, move |watch| {
                let mut suite = suite.borrow_mut();
                Ok(metg(suite.as_mut(), pattern, Kernel::Compute, cores, machine::quick(), watch)?.ns)
            })
        })
        .collect();
    let metgs = rounds::measure(&mut rows, rounds, |_| {});
    drop(rows);

    // For each engine, the workloads' rows and METG.
    let per_engine = Workload::ALL.len();
    let all: Vec<_> = figures
        .chunks(per_engine)
        .zip(metgs)
        .flat_map(|(figures, metg)| [figures.to_vec(), vec![metg]].concat())
        .collect();
    let shown = preferred(&all);
    for (state, figures) in by_state(&all) {
        // For each engine, the medians in column order.
        let medians: Vec<Vec<f64>> =
            figures.chunks(per_engine + 1).map(|row| row.iter().map(|figures| median(figures)).collect()).collect();
        let note = typed_note(&titles, &medians);
        let mut table = Table::of_state("ns", state, "ns per operation", &note, &columns("engine"));
        for (title, row) in titles.iter().zip(figures.chunks(per_engine + 1)) {
            table.row(title.as_str(), row.iter().map(|figures| spread(figures)));
        }
        report.add(&table);
        if titles.first().is_some_and(|title| title == "raddle") {
            let note = "Below one, raddle is slower. The figures are quotients of the medians above.";
            let title = "Time as a multiple of raddle's";
            let mut table = Table::of_state("ratio", state, title, note, &columns("engine"));
            for (title, row) in titles.iter().zip(&medians).skip(1) {
                table.row(title.as_str(), row.iter().zip(&medians[0]).map(|(theirs, ours)| number(theirs / ours)));
            }
            report.add(&table);
        }
        if Some(state) == shown {
            plot(&mut report, state, &titles, &medians);
        }
    }

    let peers = peers.unwrap_or_default();
    let mut names: Vec<&str> = vec![];
    for (engine, _, _) in &peers.figures {
        // A peer may print a shorter name for the engine in the row of operators.
        if !names.iter().any(|name| name.starts_with(engine.as_str())) {
            names.push(engine);
        }
    }
    let note = "The medians that the command `RADDLE_PEERS` has reported. It ran in the middle of the rounds, for too \
                long for the machine's state to be known.";
    let mut table = Table::new("peers", "Other engines, in an unknown state", note, &columns("engine"));
    for name in names {
        let find = |workload| {
            let figure =
                peers.figures.iter().find(|(engine, of, _)| *of == workload && name.starts_with(engine.as_str()));
            figure.map_or(f64::NAN, |figure| figure.2)
        };
        table.row(name, Workload::ALL.map(Some).into_iter().chain([None]).map(|workload| number(find(workload))));
    }
    report.add(&table);
    if !peers.notes.is_empty() {
        let mut table = Table::new("notes", "What else the peers printed", "", &["line"]);
        for note in &peers.notes {
            table.row(note, []);
        }
        report.add(&table);
    }
    report.save();
}

/// Returns a line with the largest difference between raddle's tokens and typed variables, or an empty string if either
/// was not measured.
fn typed_note(titles: &[String], medians: &[Vec<f64>]) -> String {
    let row = |title: &str| Some(&medians[titles.iter().position(|other| other == title)?]);
    let Some((tokens, typed)) = row("raddle").zip(row("raddle, typed")) else { return String::new() };
    // METG is not compared: it comes from a search with coarser steps.
    let differences = Workload::ALL
        .iter()
        .zip(tokens.iter().zip(typed))
        .map(|(workload, (tokens, typed))| (100.0 * (typed / tokens - 1.0), workload.name()));
    let largest = differences.filter(|(by, _)| by.is_finite()).max_by(|(a, _), (b, _)| a.abs().total_cmp(&b.abs()));
    largest.map_or_else(String::new, |(by, workload)| {
        let verdict = if by.abs() <= TYPED_GOAL { "met" } else { "not met" };
        format!(
            "The largest difference of typed variables from tokens: {by:+.1} % ({workload}). The goal, at most \
             {TYPED_GOAL:.0} %, is {verdict}."
        )
    })
}

fn plot(report: &mut Report, state: State, titles: &[String], medians: &[Vec<f64>]) {
    let groups = ["independent", "chain", "1w + 15r", "2r + 1w", "stencil", "operator", "4r + 1w", "8r + 1w", "METG"];
    let series: Vec<_> = titles
        .iter()
        .zip(medians)
        .map(|(name, all)| {
            let points = all.iter().enumerate().filter(|(_, figure)| figure.is_finite());
            (name.clone(), points.map(|(group, &figure)| (group as f64, figure)).collect())
        })
        .collect();
    let title = format!("ns per operation, push and run, {} (lower is better)", state.name());
    report.plot("ns", &title, &bars(&title, &groups, &Axis::new("ns, logarithmic", Scale::Log), &series));
}
