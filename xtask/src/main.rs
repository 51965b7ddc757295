//! raddle's checks, the library for C, and the folder of programs for a machine with a GPU.
//!
//! ```text
//! cargo xtask ci            all stages, cheapest first; CI runs this, as `.ci/run`
//! cargo xtask ci STAGE...   the named stages, in that order
//! cargo xtask ci --list     the stages and what they check
//! cargo xtask capi DIR [PROFILE]  puts the library for C and its headers into the folder DIR
//! cargo xtask gpu DIR       puts programs for a machine with a GPU, but without Rust, into the folder DIR
//! ```
//!
//! Only the Rust toolchain is required. What needs a missing tool is skipped and named in the summary. Nothing is
//! installed outside the folder `target`, with one exception: in a run of all stages, or if `RADDLE_INSTALL=1` or `CI`
//! is set, some stages may install Debian packages; `RADDLE_INSTALL=0` forbids this. `RADDLE_FUZZ_SECONDS` and
//! `RADDLE_SOAK_SECONDS` lengthen the stages `fuzz` and `soak`.
//!
//! A run of all stages runs each in a process of its own, with its output in `target/ci/STAGE.log`. It stops at the
//! first stage that fails, and prints the end of that file.

#![forbid(unsafe_code)]

mod capi;
mod gpu;
mod stages;
mod tools;

use std::{
    env, fs,
    os::unix::process::CommandExt,
    process::{Child, ExitCode, Stdio},
    time::Instant,
};

use stages::STAGES;
use tools::{Cmd, Result, target};

/// The variable set in the processes of a run of all stages: packages may be installed, unless `RADDLE_INSTALL` says
/// otherwise.
const ALL: &str = "RADDLE_ALL_STAGES";

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    env::set_current_dir(root).expect("the package should be in the repository");
    let result = match arguments[..] {
        ["ci"] => all(),
        ["ci", "--list" | "--help"] => {
            STAGES.iter().for_each(|stage| println!("{:<10} {}", stage.name, stage.about));
            Ok(())
        }
        ["ci", ref names @ ..] => names.iter().try_for_each(|name| one(name)),
        ["capi", folder] => capi::install(folder, "release"),
        ["capi", folder, profile] => capi::install(folder, profile),
        ["gpu", folder] => gpu::pack(folder),
        _ => {
            Err("usage: cargo xtask ci [--list | STAGE...], cargo xtask capi DIR [PROFILE], cargo xtask gpu DIR".into())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a stage in this process.
fn one(name: &str) -> Result {
    if name == "ahead" {
        return stages::build_ahead();
    }
    let stage = STAGES.iter().find(|stage| stage.name == name);
    let stage = stage.ok_or_else(|| format!("there is no stage `{name}`; see `cargo xtask ci --list`"))?;
    println!("==== {name}: {}", stage.about);
    (stage.run)().map_err(|error| format!("{name}: {error}"))
}

/// The builds for later stages, in a process group of their own. Ends what still runs when it is dropped.
struct Ahead(Child);

impl Drop for Ahead {
    fn drop(&mut self) {
        // The processes may have ended.
        let _ = Cmd::new("kill").args(["--", &format!("-{}", self.0.id())]).capture();
        let _ = self.0.wait();
    }
}

/// Runs all stages, and prints a summary with the sum of their tests' results.
fn all() -> Result {
    let logs = target("ci");
    fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let this = env::current_exe().map_err(|error| error.to_string())?;
    let (mut summary, mut skipped, mut tests) = (Vec::new(), Vec::new(), (0, 0));
    let (mut failed, mut ahead) = (None, None);
    for stage in STAGES.iter().filter(|stage| stage.name != "quick") {
        println!("==== {}: {}", stage.name, stage.about);
        if stage.name == "test" {
            // These builds have the lowest priority, since tests often wait, and some measure time.
            let log = fs::File::create(logs.join("ahead.log")).map_err(|error| error.to_string())?;
            let builds = Cmd::new("nice").args(["-n", "19"]).arg(&this).args(["ci", "ahead"]).env(ALL, "1");
            let builds = builds.with(|command| _ = command.process_group(0));
            ahead = Some(Ahead(builds.log_to(log)?.spawn()?));
        }
        let (start, log) = (Instant::now(), logs.join(format!("{}.log", stage.name)));
        let file = fs::File::create(&log).map_err(|error| error.to_string())?;
        let run = Cmd::new(&this).args(["ci", stage.name]).env(ALL, "1").log_to(file)?.run();
        let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
        let results = tools::results(&text);
        tests = (tests.0 + results.0, tests.1 + results.1);
        skipped.extend(
            text.lines().filter(|line| line.starts_with("skipped: ")).map(|line| format!("{}: {line}", stage.name)),
        );
        let verdict = if run.is_ok() { "passed" } else { "failed" };
        summary.push(format!("{:<10} {verdict} {:5} s", stage.name, start.elapsed().as_secs()));
        println!("---- {}", summary[summary.len() - 1]);
        if run.is_err() {
            let lines: Vec<_> = text.lines().collect();
            println!("the end of {}:\n{}", log.display(), lines[lines.len().saturating_sub(120)..].join("\n"));
            failed = Some(format!("the stage `{}` has failed", stage.name));
            break;
        }
    }
    drop(ahead);
    println!("\n==== summary\n{}\n{}", summary.join("\n"), skipped.join("\n"));
    println!("{} passed, {} failed", tests.0, tests.1);
    failed.map_or(Ok(()), Err)
}

impl Cmd {
    /// Writes what the command prints to `file`, and closes its input.
    fn log_to(self, file: fs::File) -> Result<Self> {
        let second = file.try_clone().map_err(|error| error.to_string())?;
        Ok(self.with(|command| {
            command.stdin(Stdio::null()).stdout(file).stderr(second);
        }))
    }
}
