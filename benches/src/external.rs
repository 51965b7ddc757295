//! Non-Rust engines, run by an external command.
//!
//! `RADDLE_PEERS` is that command, with its arguments. It prints one line per engine and workload: the engine's name,
//! the workload's name as below, a number and `ns`. Other lines are kept as notes. The workloads must be those in
//! `workload`, timed from the first push to the end of the last operation; `METG50 stencil w16` is METG(50%) as in
//! `metg`.

use std::{env, process::Command};

use crate::{machine, workload::Workload};

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

fn parse(text: &str) -> External {
    let names = [
        ("independent/4096v", Some(Workload::Independent)),
        ("fanout 1w15r", Some(Workload::Readers)),
        ("random 2r1w/1024v", Some(Workload::Random)),
        ("stencil w16 empty", Some(Workload::Stencil)),
        ("NewOperator+Push chain", Some(Workload::Operator)),
        ("wide 4r1w/8192v", Some(Workload::Wide5)),
        ("wide 8r1w/8192v", Some(Workload::Wide9)),
        (METG, None),
        ("chain", Some(Workload::Chain)),
    ];
    let mut external = External::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let figure = line.strip_suffix("ns").and_then(|line| {
            let (label, number) = line.trim_end().rsplit_once(' ')?;
            let (label, number) = (label.trim_end(), number.parse::<f64>().ok()?);
            let (name, workload) = names.iter().find(|(name, _)| label.ends_with(name))?;
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
