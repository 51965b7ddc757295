//! Runs the benchmarks one after the other and combines their main results. `cargo bench` at the root starts this
//! program.
//!
//! Words select benchmarks. A run that is not quick and that writes to `results` replaces the tables between the two
//! marks in the root's README with the main results.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, exit},
};

use raddle_benches::{
    machine,
    report::{self, Figures, Table, number},
    workload::Workload,
};

const BENCHES: [&str; 7] = ["counts", "micro", "push_run", "task_bench", "latency", "scaling", "gpu"];
const MARKS: [&str; 2] =
    ["<!-- The table up to the next mark is written by `cargo bench`. -->", "<!-- End of the table. -->"];

fn find(figures: &Figures, table: &str, row: &str, column: &str) -> f64 {
    let same = |figure: &&(String, String, String, f64)| figure.0 == table && figure.1 == row && figure.2 == column;
    figures.iter().find(same).map_or(f64::NAN, |figure| figure.3)
}

/// Returns the main results of the benchmarks as text, or `None` if `push_run` or `latency` has written no results.
fn headline(from: &Path) -> Option<String> {
    let (push_run, latency) = (report::read(from, "push_run")?, report::read(from, "latency")?);
    let trips = report::TRIPS.map(|column| find(&push_run, "machine", "round trip", column));
    let distance = machine::distance((!trips[0].is_nan()).then_some(trips));
    let mut text = format!("{}.{distance}\n\n", machine::provenance());

    let metg = "METG(50%), stencil";
    let mut columns = vec!["ns per operation, push and run"];
    columns.extend(Workload::ALL.map(Workload::name));
    columns.push(metg);
    let mut engines: Vec<&str> = vec![];
    for (table, row, _, _) in &push_run {
        if table == "ns" && !engines.contains(&row.as_str()) {
            engines.push(row);
        }
    }
    let mut table = Table::new("headline", "", "", &columns);
    for engine in engines {
        let columns = Workload::ALL.map(Workload::name).into_iter().chain([metg]);
        table.row(engine, columns.map(|column| number(find(&push_run, "ns", engine, column))));
    }
    text += &table.markdown();
    text.push('\n');

    let mut table = Table::new("latency", "", "", &["latency in ns, open loop", "p50", "p99"]);
    let rows = [
        ("push to start, worker spins, 100,000 a second", "idle", "push to start, worker spins", 1),
        ("push to start, worker parked, 1,000 a second", "idle", "push to start, worker parked", 0),
        ("the same by a raw futex wake", "floor", "raw futex wake", 0),
        ("end of an operation to its successor on the same worker", "successor", "on the same worker", 0),
        ("the same on another worker", "successor", "on another worker, both spin", 0),
        ("push to start at priority 7, all workers busy with operations of 10 µs", "saturated", "priority 7", 0),
    ];
    for (title, of, row, nth) in rows {
        // Rows with the same name are in the order of their rates.
        let nth = |column: &str| {
            let mut all = latency.iter().filter(|figure| figure.0 == of && figure.1 == row && figure.2 == column);
            number(all.nth(nth).map_or(f64::NAN, |figure| figure.3))
        };
        table.row(title, [nth("p50"), nth("p99")]);
    }
    text += &table.markdown();
    Some(text)
}

/// Puts the main results between the marks in the README.
fn renew(readme: &Path, headline: &str) -> Result<(), String> {
    let text = fs::read_to_string(readme).map_err(|error| error.to_string())?;
    let [begin, end] = MARKS.map(|mark| text.find(mark));
    let (Some(begin), Some(end)) = (begin, end) else { return Err("the README lacks the marks".into()) };
    let begin = begin + MARKS[0].len();
    let new = format!("{}\n\n{headline}\n{}", &text[..begin], &text[end..]);
    if new != text {
        fs::write(readme, new).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn main() {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let words = machine::words();
    if let Some(word) = words.iter().find(|word| !BENCHES.contains(&word.as_str())) {
        eprintln!("there is no benchmark `{word}`; the benchmarks are: {}", BENCHES.join(", "));
        exit(2);
    }
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&here).arg("bench");
    if cfg!(not(feature = "dagrs")) {
        cargo.arg("--no-default-features");
    }
    if cfg!(feature = "cuda") {
        cargo.args(["--features", "cuda"]);
    }
    // One after the other, in a fixed order, each as a separate program.
    for bench in BENCHES.iter().filter(|bench| words.is_empty() || words.iter().any(|word| word == *bench)) {
        let mut command = Command::new(cargo.get_program());
        command.args(cargo.get_args()).args(["--bench", bench]).current_dir(&here);
        if machine::quick() {
            command.env("RADDLE_BENCH_QUICK", "1");
        }
        // No words are passed on, so a selected benchmark runs in full and replaces its results.
        let status = command.status().expect("cargo can be started");
        if !status.success() {
            eprintln!("the benchmark `{bench}` failed");
            exit(1);
        }
    }
    let out = machine::folder(machine::quick());
    let Some(headline) = headline(&out) else { return };
    fs::write(out.join("headline.md"), &headline).expect("the headline can be written");
    println!("\n{headline}");
    if !machine::quick()
        && out == here.join("results")
        && let Err(error) = renew(&here.join("../README.md"), &headline)
    {
        eprintln!("the table in the README was not updated: {error}");
    }
}
