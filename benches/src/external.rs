//! Non-Rust engines: Taskflow, in a process that answers requests, and others, run by an external command.
//!
//! `RADDLE_PEERS` is the command, with its arguments. It prints one line per engine and workload: the engine's name,
//! the workload's name as below, a number and `ns`. Other lines are kept as notes. The workloads must be those in
//! `workload`, timed from the first push to the end of the last operation; `METG50 stencil w16` is METG(50%) as in
//! `metg`.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use crate::{
    kernel::Kernel,
    machine,
    pattern::{Dependence, Pattern},
    runtime::BACKLOG,
    workload::{Run, Suite, Workload},
};

/// The name for METG(50%) in place of a workload's.
pub const METG: &str = "METG50 stencil w16";

/// The output of the command.
#[derive(Clone, Debug, Default)]
pub struct External {
    /// Engine, workload (`None`: METG), ns.
    pub figures: Vec<(String, Option<Workload>, f64)>,
    /// The lines without figures.
    pub notes: Vec<String>,
}

/// Returns a workload's name in requests and in the output of the command.
#[must_use]
pub fn name_of(workload: Workload) -> &'static str {
    match workload {
        Workload::Independent => "independent/4096v",
        Workload::Chain => "chain",
        Workload::Readers => "fanout 1w15r",
        Workload::Random => "random 2r1w/1024v",
        Workload::Stencil => "stencil w16 empty",
        Workload::Operator => "NewOperator+Push chain",
        Workload::Wide5 => "wide 4r1w/8192v",
        Workload::Wide6 => "wide 5r1w/8192v",
        Workload::Wide9 => "wide 8r1w/8192v",
        Workload::Wide16 => "wide 15r1w/8192v",
    }
}

fn parse(text: &str) -> External {
    let names = Workload::ALL.map(|workload| (name_of(workload), Some(workload)));
    let names: Vec<_> = names.into_iter().chain([(METG, None)]).collect();
    let mut external = External::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let figure = line.strip_suffix("ns").and_then(|line| {
            let (label, number) = line.trim_end().rsplit_once(' ')?;
            let (label, number) = (label.trim_end(), number.parse::<f64>().ok()?);
            // Some names end with others.
            let (name, workload) =
                names.iter().filter(|(name, _)| label.ends_with(name)).max_by_key(|(name, _)| name.len())?;
            Some((label.strip_suffix(name)?.trim_end().to_owned(), *workload, number))
        });
        match figure {
            // A negative number means that there is no figure.
            Some((engine, workload, number)) if number >= 0.0 => external.figures.push((engine, workload, number)),
            Some(_) => {}
            None => external.notes.push(line.to_owned()),
        }
    }
    external
}

/// Runs the command. If it fails, the lines printed so far still count. Returns `None` in quick mode, or if
/// `RADDLE_PEERS` is not set or blank.
///
/// # Panics
/// If the command cannot be started.
#[must_use]
pub fn run() -> Option<External> {
    let command = env::var("RADDLE_PEERS").ok().filter(|command| !command.trim().is_empty() && !machine::quick())?;
    let mut words = command.split_whitespace();
    let output = Command::new(words.next()?).args(words).output().unwrap_or_else(|error| {
        panic!("RADDLE_PEERS is `{command}`, which cannot be started: {error}");
    });
    let mut external = parse(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        external.notes.push(format!("the command ended with {}: {}", output.status, error.trim()));
    }
    Some(external)
}

/// Builds and starts Taskflow's program, but only starts it if its first argument is [`BACKLOG`].
const TASKFLOW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/taskflow");

/// Taskflow, in a process that measures one thing after the other on request, so that it takes turns with the engines
/// in this process. A request is a line with a count, a number of iterations and a name. The answer is a line with
/// figures, or an empty one if there are none.
#[derive(Debug)]
pub struct Taskflow {
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Taskflow {
    /// Builds and starts `peers/taskflow`. Returns `None` if `TASKFLOW`, the folder with its headers, is not set.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[must_use]
    // The process ends when its input is closed, mostly because this one ends.
    #[allow(clippy::zombie_processes)]
    pub fn start() -> Option<Self> {
        env::var_os("TASKFLOW").filter(|folder| !folder.is_empty())?;
        let mut command = Command::new(TASKFLOW);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("peers/taskflow");
        Some(Self { requests: child.stdin.take()?, answers: BufReader::new(child.stdout.take()?) })
    }

    fn ask(&mut self, count: usize, iterations: u32, name: &str) -> Vec<f64> {
        writeln!(self.requests, "{count} {iterations} {name}").expect("Taskflow's process should read requests");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("Taskflow's process should answer");
        assert!(answer.ends_with('\n'), "Taskflow's process has ended");
        answer.split_whitespace().map(|figure| figure.parse().expect("a figure")).collect()
    }
}

impl Suite for Taskflow {
    fn title(&self) -> String {
        "Taskflow, `dependent_async`".into()
    }

    fn is_serial(&self) -> bool {
        false
    }

    fn time(&mut self, workload: Workload, operations: usize) -> Option<f64> {
        self.ask(operations, 0, name_of(workload)).first().copied()
    }

    fn first_use(&mut self, operations: usize) -> Option<f64> {
        self.ask(operations, 0, "first use").first().copied()
    }

    fn pushers(&mut self, operations: usize) -> Option<f64> {
        self.ask(operations, 0, "pushers").first().copied()
    }

    fn backlog(&self) -> Option<Command> {
        let mut command = Command::new(TASKFLOW);
        command.arg(BACKLOG);
        Some(command)
    }

    /// Only Task Bench's stencil, 16 columns wide, with the compute-bound kernel.
    fn graph(&mut self, pattern: &Pattern, steps: usize, kernel: Kernel, iterations: u32) -> Run {
        assert_eq!((pattern.dependence, pattern.width, kernel), (Dependence::Stencil1d, 16, Kernel::Compute));
        let operations = steps * pattern.width;
        Run { ns: self.ask(operations, iterations, "stencil w16")[0] * operations as f64, operations }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_lines_of_a_peer_are_parsed() {
        let text = "mxnet PerDevice              chain                  1203 ns\n\
                    mxnet NewOperator+Push chain 800 ns\n\
                    oneTBB flow graph            METG50 stencil w16       1645 ns\n\
                    oneTBB flow graph            METG50 stencil w16         -1 ns\n\
                    openmp (libomp)              fanout 1w15r             350 ns\n\
                    starpu 1.3                   independent/4096v       2100 ns\n\
                    Taskflow dependent_async random 2r1w/1024v 250 ns\n\
                    Taskflow dependent_async stencil w16 empty 248 ns\n\
                    openmp (libgomp): stopped after 60 s\n";
        let external = parse(text);
        assert_eq!(
            external.figures,
            [
                ("mxnet PerDevice".to_owned(), Some(Workload::Chain), 1203.0),
                ("mxnet".to_owned(), Some(Workload::Operator), 800.0),
                ("oneTBB flow graph".to_owned(), None, 1645.0),
                ("openmp (libomp)".to_owned(), Some(Workload::Readers), 350.0),
                ("starpu 1.3".to_owned(), Some(Workload::Independent), 2100.0),
                ("Taskflow dependent_async".to_owned(), Some(Workload::Random), 250.0),
                ("Taskflow dependent_async".to_owned(), Some(Workload::Stencil), 248.0),
            ]
        );
        assert_eq!(external.notes, ["openmp (libgomp): stopped after 60 s"]);
    }
}
