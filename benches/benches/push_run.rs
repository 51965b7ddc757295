//! The cost of an empty operation from push to completion, for raddle and the other runtimes.
//!
//! One thread pushes. Each figure is ns per operation: the time from the first push until all operations are complete,
//! divided by their number. The engines take turns, round by round, and the median over the rounds is reported
//! separately for each state of the machine. Further tables are for operations with many accesses, for a new engine,
//! for eight pushing threads, and for backlogs, whose pushes and runs are timed separately. The benchmark guards
//! against growth of the engine's overhead; it does not measure latency.

use std::cell::RefCell;

use raddle::EngineKind;
use raddle_benches::{
    external,
    kernel::Kernel,
    machine,
    metg::metg,
    pattern::{Dependence, Pattern},
    report::{Report, Table, grouped, number, spread},
    rounds::{self, Row},
    runtime::{self, Raddle, RaddleTyped, RayonGraph, Shape, TokioTasks},
    state::{Samples, State, by_state, preferred},
    stats::median,
    svg::{Axis, Scale, bars},
    workload::{BACKLOG, Suite, Workload, backlog},
};

/// The maximum intended difference between typed rows and token rows, in %.
const TYPED_GOAL: f64 = 5.0;

const METG: &str = "METG(50%), stencil";

/// The columns of the table of special cases.
const SPECIAL: [&str; 2] = ["first 1,000 operations of a new engine", "8 pushing threads, 512 variables each"];

/// The workloads and sizes of backlogs.
const HELD: [Workload; 3] = [Workload::Independent, Workload::Chain, Workload::Readers];
const PENDING: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];

type Suites = [RefCell<Box<dyn Suite>>];

/// A row for each engine and workload.
fn workloads<'a>(suites: &'a Suites, workloads: &'a [Workload], operations: usize) -> impl Iterator<Item = Row<'a>> {
    suites.iter().flat_map(move |suite| {
        workloads.iter().map(move |&workload| {
            let name = format!("{}: {}", suite.borrow().title(), workload.name());
            Row::steady(name, move |_| Ok(suite.borrow_mut().time(workload, operations)))
        })
    })
}

/// A row for each engine and column of [`SPECIAL`].
fn special(suites: &Suites, operations: usize) -> impl Iterator<Item = Row<'_>> {
    suites.iter().flat_map(move |suite| {
        let [first, pushers] = SPECIAL.map(|column| format!("{}: {column}", suite.borrow().title()));
        [
            Row::steady(first, |_| Ok(suite.borrow_mut().first_use(1_000))),
            Row::steady(pushers, move |_| Ok(suite.borrow_mut().pushers(operations))),
        ]
    })
}

/// A row for each engine, workload and size of a backlog. Each figure comes from a process of its own, since the
/// engines of a process share memory.
fn backlogs<'a>(suites: &'a Suites, sizes: &'a [usize]) -> impl Iterator<Item = Row<'a>> {
    let held = HELD.iter().flat_map(|&workload| sizes.iter().map(move |&pending| (workload, pending)));
    suites.iter().flat_map(move |suite| {
        held.clone().map(move |(workload, pending)| {
            let size = grouped(pending as f64, 0);
            let name = format!("{}: {}, {size} pending: ", suite.borrow().title(), workload.name());
            Row::several(name, &BACKLOG, move || {
                let mut program = suite.borrow().backlog()?;
                let output = program.args([&pending.to_string(), external::name_of(workload)]).output();
                let output = String::from_utf8(output.expect("a backlog's program").stdout).expect("figures");
                Some(output.split_whitespace().map(|figure| figure.parse().expect("a figure")).collect())
            })
        })
    })
}

/// Prints a backlog's figures, if the arguments ask for them.
fn backlog_asked() -> Option<()> {
    let mut arguments = std::env::args().skip_while(|argument| argument != runtime::BACKLOG).skip(1);
    let (pending, name) = (arguments.next()?.parse().ok()?, arguments.next()?);
    let workload = Workload::ALL.into_iter().find(|&workload| external::name_of(workload) == name)?;
    let figures = backlog(&mut Raddle::new(EngineKind::PerDevice), workload, pending)?;
    println!("{}", figures.map(|figure| figure.to_string()).join(" "));
    Some(())
}

fn with_metg(workloads: &[Workload]) -> Vec<&'static str> {
    ["engine"].into_iter().chain(workloads.iter().map(|workload| workload.name())).chain([METG]).collect()
}

/// Adds a table for each state, with a row for each name that has figures.
fn add(report: &mut Report, key: &str, title: &str, note: &str, columns: &[&str], names: &[String], all: &[Samples]) {
    for (state, figures) in by_state(all) {
        let mut table = Table::of_state(key, state, title, note, columns);
        for (name, row) in names.iter().zip(figures.chunks(columns.len() - 1)) {
            if row.iter().any(|figures| !figures.is_empty()) {
                table.row(name.as_str(), row.iter().map(|figures| spread(figures)));
            }
        }
        report.add(&table);
    }
}

fn main() {
    if backlog_asked().is_some() {
        return;
    }
    let cores = machine::cores();
    let operations = machine::choose(100_000, 1_600);
    let rounds = machine::rounds();
    let raddle = Raddle::new(EngineKind::PerDevice);
    let engine = raddle.engine().clone();
    let typed = |shape| -> Box<dyn Suite> { Box::new(RaddleTyped::with(engine.clone(), shape)) };
    let mut shapes = vec![typed(Shape::Array), typed(Shape::Vec)];
    let mut suites: Vec<Box<dyn Suite>> =
        vec![Box::new(raddle), typed(Shape::Tuple), Box::new(Raddle::new(EngineKind::Naive))];
    let cells = |suites: Vec<Box<dyn Suite>>| suites.into_iter().map(RefCell::new).collect::<Vec<_>>();
    if rounds::is_one_round() {
        let (suites, shapes) = (cells(suites), cells(shapes));
        let rows = workloads(&suites, &Workload::ALL, operations).chain(workloads(&shapes, Workload::WIDE, operations));
        let rows = rows.chain(special(&suites[..1], operations)).chain(backlogs(&suites[..1], &PENDING[..3]));
        return rounds::print(&mut rows.collect::<Vec<_>>());
    }
    if let Some(taskflow) = external::Taskflow::start() {
        suites.push(Box::new(taskflow));
    }
    suites.extend([
        Box::new(RayonGraph::new(cores)) as Box<dyn Suite>,
        Box::new(TokioTasks::new(cores)),
        #[cfg(feature = "dagrs")]
        Box::new(runtime::Dagrs::new(cores)),
    ]);
    let titles_of = |suites: &mut Vec<Box<dyn Suite>>| {
        suites.retain(|suite| machine::wanted(&suite.title()));
        suites.iter().map(|suite| suite.title()).collect()
    };
    let titles: Vec<String> = titles_of(&mut suites);
    let shape_titles: Vec<String> = titles_of(&mut shapes);
    let (suites, shapes) = (cells(suites), cells(shapes));

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
    let mut rows: Vec<Row<'_>> = workloads(&suites, Workload::NARROW, operations).collect();
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
    let per_engine = Workload::NARROW.len();
    let all: Vec<_> = figures
        .chunks(per_engine)
        .zip(metgs)
        .flat_map(|(figures, metg)| [figures.to_vec(), vec![metg]].concat())
        .collect();
    let shown = preferred(&all);
    let columns = with_metg(Workload::NARROW);
    for (state, figures) in by_state(&all) {
        // For each engine, the medians in column order.
        let medians: Vec<Vec<f64>> =
            figures.chunks(per_engine + 1).map(|row| row.iter().map(|figures| median(figures)).collect()).collect();
        let note = typed_note(&titles, &medians);
        let mut table = Table::of_state("ns", state, "ns per operation", &note, &columns);
        for (title, row) in titles.iter().zip(figures.chunks(per_engine + 1)) {
            table.row(title.as_str(), row.iter().map(|figures| spread(figures)));
        }
        report.add(&table);
        if titles.first().is_some_and(|title| title == "raddle") {
            let note = "Below one, raddle is slower. The figures are quotients of the medians above.";
            let title = "Time as a multiple of raddle's";
            let mut table = Table::of_state("ratio", state, title, note, &columns);
            for (title, row) in titles.iter().zip(&medians).skip(1) {
                table.row(title.as_str(), row.iter().zip(&medians[0]).map(|(theirs, ours)| number(theirs / ours)));
            }
            report.add(&table);
        }
        if Some(state) == shown {
            plot(&mut report, state, &titles, &medians);
        }
    }

    let rows = workloads(&suites, Workload::WIDE, operations).chain(workloads(&shapes, Workload::WIDE, operations));
    let figures = rounds::measure(&mut rows.collect::<Vec<_>>(), rounds, |_| {});
    let names = [titles.clone(), shape_titles].concat();
    let columns: Vec<&str> = ["engine"].into_iter().chain(Workload::WIDE.iter().map(|w| w.name())).collect();
    let note = "`raddle, typed` passes accesses as tuples.";
    add(&mut report, "wide", "ns per operation with many accesses", note, &columns, &names, &figures);

    let figures = rounds::measure(&mut special(&suites, operations).collect::<Vec<_>>(), rounds, |_| {});
    let columns = ["engine", SPECIAL[0], SPECIAL[1]];
    add(&mut report, "special", "ns per operation in special cases", "", &columns, &titles, &figures);

    let sizes = machine::choose(&PENDING[..], &PENDING[..1]);
    let mut rows: Vec<Row<'_>> = backlogs(&suites, sizes).collect();
    let figures = rounds::measure(&mut rows, rounds, |_| {});
    let names: Vec<_> = rows.iter().map(|row| row.name.trim_end_matches(": ").to_owned()).collect();
    let columns: Vec<&str> = ["engine and operations"].into_iter().chain(BACKLOG).collect();
    let note = "All operations are pushed while an earlier one that mutates all variables has not ended. Then it ends, \
                and they run. Each backlog is the first in its process, and then the second.";
    add(&mut report, "backlog", "Backlogs", note, &columns, &names, &figures);

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
    let columns = with_metg(&Workload::ALL);
    let mut table = Table::new("peers", "Other engines, in an unknown state", note, &columns);
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
    let differences = Workload::NARROW
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
    let groups = ["independent", "chain", "1w + 15r", "2r + 1w", "stencil", "operator", "METG"];
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
