//! Runs the benchmarks one after the other and combines their main results. `cargo bench` at the root starts this
//! program.
//!
//! - words select benchmarks;
//! - `--against REV` compares the library with that of another revision: see `against`;
//! - `--targets` runs nothing, and only renews the tables named below from earlier results.
//!
//! A run that is not quick and writes to `results` also replaces the marked tables in two files: the main results in
//! the root's README, and the targets with their measurements in this package's `README.md`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, exit},
};

use raddle_benches::{
    against, machine,
    report::{Figures, Table, key, number},
    targets,
    workload::Workload,
};

const BENCHES: [&str; 8] = ["counts", "micro", "push_run", "task_bench", "latency", "scaling", "when_not", "gpu"];
const MARKS: [&str; 2] =
    ["<!-- The table up to the next mark is written by `cargo bench`. -->", "<!-- End of the table. -->"];

/// The engines in the table of main results: the table in the results, the row there, and the name.
const ENGINES: [(&str, &str, &str); 5] = [
    ("ns", "raddle, typed", "raddle"),
    ("ns", "rayon, graph by hand", "rayon, graph by hand"),
    ("ns", "tokio, tasks and channels", "tokio, tasks and channels"),
    ("ns", "Taskflow, dependent_async", "Taskflow, `dependent_async`"),
    ("peers", "mxnet PerDevice", "MXNet, `PerDevice`"),
];

/// Returns the main results of the benchmarks as text, or `None` if `push_run` has no results by state.
fn headline(from: &Path) -> Option<String> {
    let push_run = Figures::read(from, "push_run")?;
    let state = push_run.preferred("ns")?;
    let metg = "METG(50%), stencil";
    let first = format!("ns per operation; {}", state.name());
    let measured = [Workload::Independent, Workload::Chain, Workload::Readers, Workload::Random, Workload::Stencil];
    let measured: Vec<&str> = measured.map(Workload::name).into_iter().chain([metg]).collect();
    let mut columns = vec![first.as_str()];
    columns.extend(&measured);
    let mut table = Table::new("headline", "", "", &columns);
    for (of, row, name) in ENGINES {
        let of = if of == "ns" { key(of, state) } else { of.to_owned() };
        table.row(name, measured.iter().map(|column| number(push_run.find(&of, row, column))));
    }
    Some(format!("{}.\n\n{}", push_run.provenance, table.markdown()))
}

/// Replaces the text between the marks in a file.
fn renew(file: &Path, between: &str) {
    let renewed = fs::read_to_string(file).map_err(|error| error.to_string()).and_then(|text| {
        let new = replaced(&text, between).ok_or("the marks are missing")?;
        if new == text { Ok(()) } else { fs::write(file, new).map_err(|error| error.to_string()) }
    });
    if let Err(error) = renewed {
        eprintln!("the table in {} was not renewed: {error}", file.display());
    }
}

/// Returns the text with the part between the marks replaced, or `None` if the marks are missing.
fn replaced(text: &str, between: &str) -> Option<String> {
    let begin = text.find(MARKS[0])? + MARKS[0].len();
    let end = begin + text[begin..].find(MARKS[1])?;
    Some(format!("{}\n\n{between}\n{}", &text[..begin], &text[end..]))
}

/// The parsed command line.
#[derive(Debug, Default)]
struct Wanted {
    against: Option<String>,
    targets: bool,
    benches: Vec<String>,
}

fn wanted(arguments: impl IntoIterator<Item = String>) -> Result<Wanted, String> {
    let mut arguments = arguments.into_iter();
    let mut wanted = Wanted::default();
    while let Some(argument) = arguments.next() {
        if argument == "--against" {
            let rev = arguments.next().filter(|rev| !rev.starts_with('-'));
            wanted.against = Some(rev.ok_or("`--against` needs a revision of git, such as `HEAD~1`")?);
        } else if argument == "--targets" {
            wanted.targets = true;
        } else if argument.starts_with('-') {
            if !["--bench", "--test"].contains(&argument.as_str()) {
                return Err(format!("there is no option `{argument}`; the options are: --against REV, --targets"));
            }
        } else {
            wanted.benches.push(argument);
        }
    }
    let known: &[&str] = if wanted.against.is_some() { &against::BENCHES } else { &BENCHES };
    if let Some(word) = wanted.benches.iter().find(|word| !known.contains(&word.as_str())) {
        let which = if wanted.against.is_some() { " that can be compared" } else { "" };
        return Err(format!("there is no benchmark `{word}`{which}; the benchmarks are: {}", known.join(", ")));
    }
    Ok(wanted)
}

/// Runs the benchmarks one after the other, in a fixed order, each as a separate program.
fn run(here: &Path, words: &[String]) -> Result<(), String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(here).arg("bench");
    if cfg!(not(feature = "dagrs")) {
        cargo.arg("--no-default-features");
    }
    if cfg!(feature = "cuda") {
        cargo.args(["--features", "cuda"]);
    }
    for bench in BENCHES.iter().filter(|bench| words.is_empty() || words.iter().any(|word| word == *bench)) {
        let mut command = Command::new(cargo.get_program());
        command.args(cargo.get_args()).args(["--bench", bench]).current_dir(here);
        if machine::quick() {
            command.env("RADDLE_BENCH_QUICK", "1");
        }
        // The words are not passed on, so a selected benchmark runs in full and replaces its results.
        let status = command.status().map_err(|error| format!("cargo cannot be started: {error}"))?;
        if !status.success() {
            return Err(format!("the benchmark `{bench}` failed"));
        }
    }
    Ok(())
}

fn main() {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let wanted = wanted(env::args().skip(1)).unwrap_or_else(|error| {
        eprintln!("{error}");
        exit(2);
    });
    let done = match &wanted.against {
        Some(rev) => {
            let benches: Vec<&str> = wanted.benches.iter().map(String::as_str).collect();
            against::compare(rev, if benches.is_empty() { &against::BENCHES[..1] } else { &benches })
        }
        None if wanted.targets => Ok(()),
        None => run(&here, &wanted.benches),
    };
    if let Err(error) = done {
        eprintln!("{error}");
        exit(1);
    }
    if wanted.against.is_some() {
        return;
    }
    let out = machine::folder(machine::quick());
    let full = !machine::quick() && out == here.join("results");
    if full {
        renew(&here.join("README.md"), &targets::table(&out));
    }
    let Some(headline) = headline(&out) else { return };
    fs::write(out.join("headline.md"), &headline).expect("the headline should be written");
    println!("\n{headline}");
    if full {
        renew(&here.join("../README.md"), &headline);
    }
}
