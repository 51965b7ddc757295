//! Compares the working tree's library with another revision's.
//!
//! The working tree's benchmarks measure both. For the other revision, they are built in a git worktree in which
//! `benches` and `testkit/src/shapes.rs` have been replaced, so the two programs differ only in the library and its
//! dependencies. The programs take turns, each process running a single round, and alternate in going first.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    machine,
    report::{Cell, Report, Table, number, spread},
    rounds,
    state::{Samples, states},
    stats::{median, overlap, quartiles},
};

/// The benchmarks that can print a single round.
pub const BENCHES: [&str; 2] = ["push_run", "micro"];

/// The minimum number of rounds of each build for comparing quartiles.
const ENOUGH: usize = 4;

/// Both builds' figures for each row, the working tree's first. `order` lists the rows in order of arrival.
#[derive(Debug, Default)]
struct Both {
    order: Vec<String>,
    rows: BTreeMap<String, [Samples; 2]>,
}

impl Both {
    /// Adds the output of a single round from the build with this index.
    fn add(&mut self, build: usize, output: &str) {
        for (name, state, figure) in rounds::parse(output) {
            if !self.rows.contains_key(name) {
                self.order.push(name.into());
            }
            self.rows.entry(name.into()).or_default()[build].push(state, figure);
        }
    }

    /// Returns a table for each state in which either build has figures.
    fn tables(&self, rev: &str) -> Vec<Table> {
        let all: Vec<Samples> = self.rows.values().flatten().cloned().collect();
        let columns =
            ["row", "working tree", rev, "working tree / other", "quartiles", "rounds", "rounds of the other"];
        let note = "Medians in ns, with the quartiles in brackets. If the quartiles overlap, the rounds do not tell \
                    the two libraries apart.";
        let tables = states(&all).into_iter().map(|state| {
            let title = format!("The working tree against {rev}");
            let mut table = Table::of_state("against", state, &title, note, &columns);
            for name in &self.order {
                let [ours, theirs] = self.rows[name].each_ref().map(|samples| samples.of(state));
                let verdict = match ours.len().min(theirs.len()) {
                    0 if ours.is_empty() && theirs.is_empty() => continue,
                    fewer if fewer < ENOUGH => "too few rounds",
                    _ if overlap(quartiles(ours), quartiles(theirs)) => "overlap",
                    _ => "apart",
                };
                let count = |figures: &[f64]| Cell::from(figures.len().to_string());
                let ratio = number(median(ours) / median(theirs));
                table.row(
                    name.as_str(),
                    [spread(ours), spread(theirs), ratio, verdict.into(), count(ours), count(theirs)],
                );
            }
            table
        });
        tables.collect()
    }
}

/// A git worktree, removed on drop.
struct Worktree {
    root: PathBuf,
    path: PathBuf,
}

impl Worktree {
    fn add(root: &Path, path: PathBuf, commit: &str) -> Result<Self, String> {
        // An interrupted run may have left the worktree behind.
        remove(root, &path);
        // Forced, since git may still list a worktree whose folder no longer exists.
        git(root, &["worktree", "add", "--force", "--detach", "--quiet", &path.to_string_lossy(), commit])?;
        Ok(Self { root: root.into(), path })
    }
}

impl Drop for Worktree {
    fn drop(&mut self) {
        remove(&self.root, &self.path);
    }
}

/// Removes a worktree, if it exists.
fn remove(root: &Path, path: &Path) {
    _ = git(root, &["worktree", "remove", "--force", &path.to_string_lossy()]);
    // The folder remains if git did not know it as a worktree.
    _ = fs::remove_dir_all(path);
}

/// Runs git in a folder. Returns the trimmed output, or the command with its error output.
fn git(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output();
    let output = output.map_err(|error| format!("git cannot be started: {error}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`git {}` failed: {}", arguments.join(" "), complaint.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Copies a folder recursively.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Builds a benchmark and returns the path of its program. The compiler's warnings and errors go to standard error.
fn build(root: &Path, target: Option<&Path>, bench: &str) -> Result<PathBuf, String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["bench", "--package", "raddle-benches", "--no-default-features", "--no-run"]);
    cargo.args(["--message-format", "json-render-diagnostics", "--bench", bench]).stderr(Stdio::inherit());
    if let Some(target) = target {
        cargo.env("CARGO_TARGET_DIR", target);
    }
    let output = cargo.output().map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo ended with {}", output.status));
    }
    program(&String::from_utf8_lossy(&output.stdout), bench).ok_or_else(|| "cargo has named no program".into())
}

/// Returns the path of a benchmark's program from cargo's messages.
fn program(messages: &str, bench: &str) -> Option<PathBuf> {
    let target = format!("\"kind\":[\"bench\"],\"crate_types\":[\"bin\"],\"name\":\"{bench}\"");
    let message = messages.lines().rfind(|line| line.contains(&target))?;
    let (_, rest) = message.split_once("\"executable\":\"")?;
    Some(rest[..rest.find('"')?].into())
}

/// Runs one round of a program and returns its output.
fn round(program: &Path) -> Result<String, String> {
    // cargo also passes `--bench`.
    let output = Command::new(program).args([rounds::ONE_ROUND, "--bench"]).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
    if !output.status.success() {
        return Err(format!("{} ended with {}", program.display(), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Builds the library at git revision `rev`, measures it alternately with the working tree's, and prints and writes the
/// comparison.
///
/// # Errors
/// If `rev` is not a commit, if its files cannot be checked out or replaced, if either library does not build, or if a
/// program fails.
pub fn compare(rev: &str, benches: &[&str]) -> Result<(), String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().expect("the package should be in the workspace");
    let commit = git(root, &["rev-parse", "--verify", "--end-of-options", &format!("{rev}^{{commit}}")])
        .map_err(|error| format!("`{rev}` is not a commit: {error}"))?;
    let short = git(root, &["rev-parse", "--short=12", &commit])?;
    let folder = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder));
    let folder = folder.join("against");

    let worktree = Worktree::add(root, folder.join(&short), &commit)?;
    let replace = || {
        let benches = worktree.path.join("benches");
        fs::remove_dir_all(&benches)?;
        copy(here, &benches)?;
        let shapes = Path::new("testkit/src/shapes.rs");
        fs::create_dir_all(worktree.path.join("testkit/src"))?;
        fs::copy(root.join(shapes), worktree.path.join(shapes)).map(|_| ())
    };
    replace().map_err(|error| format!("the benchmarks cannot be copied to {}: {error}", worktree.path.display()))?;

    let title = format!("The working tree against {rev}");
    let note = format!(
        "{rev} is commit {short}. Each figure is in ns; processes of the two builds take turns, with one round each."
    );
    let mut report = Report::new("against", &title, &note);
    for &bench in benches {
        let ours = build(root, None, bench).map_err(|error| format!("`{bench}` of the working tree: {error}"))?;
        let theirs = build(&worktree.path, Some(&folder.join("build")), bench).map_err(|error| {
            format!(
                "today's benchmark `{bench}` does not build with the library of {rev} ({short}): {error}. The \
                 compiler's messages are above. If that library lacks a call that the benchmark uses, choose a later \
                 revision"
            )
        })?;
        let programs = [ours, theirs];
        let mut both = Both::default();
        for number in 0..machine::rounds() {
            for build in [number % 2, 1 - number % 2] {
                let output = round(&programs[build])?;
                both.add(build, &output);
                machine::add_counts(rounds::parse_counts(&output).unwrap_or_default());
            }
        }
        both.tables(rev).iter().for_each(|table| report.add(table));
    }
    report.save();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_within_one_state() {
        let mut both = Both::default();
        for (ours, theirs) in [(40, 50), (41, 51), (41, 51), (42, 52)] {
            both.add(0, &format!("raddle-round\tchain\tnear\t{ours}\nraddle-round\tstencil\tnear\t100\n"));
            both.add(1, &format!("raddle-round\tchain\tnear\t{theirs}\nraddle-round\tchain\tfar\t500\n"));
        }
        let tables = both.tables("HEAD~1");
        assert_eq!(tables.len(), 2);
        let (near, far) = (tables[0].markdown(), tables[1].markdown());
        assert!(near.contains("| chain | 41 (41–41) | 51 (51–51) | 0.80 | apart | 4 | 4 |"), "{near}");
        assert!(near.contains("| stencil | 100 (100–100) | – | – | too few rounds | 4 | 0 |"), "{near}");
        assert!(far.contains("| chain | – | 500 (500–500) | – | too few rounds | 0 | 4 |"), "{far}");
        assert!(!far.contains("stencil"), "{far}");
    }

    #[test]
    fn overlapping_rounds_are_reported_as_overlapping() {
        let mut both = Both::default();
        for (ours, theirs) in [(40, 42), (45, 44), (45, 44), (50, 60)] {
            both.add(0, &format!("raddle-round\tchain\tnear\t{ours}\n"));
            both.add(1, &format!("raddle-round\tchain\tnear\t{theirs}\n"));
        }
        let table = both.tables("v1")[0].markdown();
        assert!(table.contains("| overlap | 4 | 4 |"), "{table}");
    }

    #[test]
    fn the_program_is_found_among_the_messages_of_cargo() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"kind":["bench"],"crate_types":["bin"],"name":"micro"},"executable":"/m"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"crate_types":["lib"],"name":"push_run"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["bench"],"crate_types":["bin"],"name":"push_run"},"executable":"/t/push_run-1"}"#,
        );
        assert_eq!(program(messages, "push_run"), Some("/t/push_run-1".into()));
        assert_eq!(program(messages, "latency"), None);
    }

    #[test]
    fn a_revision_that_does_not_exist_is_named() {
        let error = compare("no-such-revision", &["push_run"]).expect_err("there should be no such revision");
        assert!(error.contains("`no-such-revision` is not a commit"), "{error}");
    }
}
