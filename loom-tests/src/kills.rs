//! The sides of edges and the steps that the models need: without one of them, a model must fail.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    process::{Command, ExitStatus},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use raddle::internals::edge::{self, Declaration};

/// The time after which a model counts as not failing.
const LIMIT: Duration = Duration::from_secs(120);

/// The factor of the number of schedules of weakened models of [`explore`](crate::explore). For some models, schedules
/// that fail are rare; the first one ends the model.
const FACTOR: &str = "100";

/// A model that fails without one side of an edge, or without one step.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    /// The path of the model's test, which begins with the name of its crate.
    pub test: &'static str,
    /// The name of the side or the step.
    pub weakened: &'static str,
    /// Words of the failure, one of which must be found.
    pub words: &'static [&'static str],
    /// Whether the model fails only under loom.
    pub only_loom: bool,
}

/// Declares, as the constant `KILLS`, without which sides and steps the tests of the calling module fail, and with
/// which words; ` | ` separates alternatives. `only loom` marks a step without which the model fails only under loom:
/// shuttle ignores the test, takes the accesses that the step orders for ordered, or does not see the race. Sides are
/// weakened only under loom.
#[macro_export]
macro_rules! kills {
    ($($test:ident {
        $($(only $checker:ident)? $weakened:literal: $($words:literal)|+),+ $(,)?
    })+) => {
        /// The sides and steps without which the models of this module fail.
        pub const KILLS: &[$crate::Kill] = &[$($($crate::Kill {
            test: {
                let _: fn() = $test;
                concat!(module_path!(), "::", stringify!($test))
            },
            weakened: $weakened,
            words: &[$($words),+],
            only_loom: $crate::kills!(@only $($checker)?),
        }),+),+];
    };
    (@only) => { false };
    (@only loom) => { true };
}

/// Asserts that the ignored test `$test` of the calling module, which runs in a separate process, fails with `$words`.
/// A failed model often aborts, because loom's objects cannot be dropped during unwinding.
///
/// # Panics
/// If the test passes, or fails without the words.
#[macro_export]
macro_rules! must_fail {
    ($test:ident, $words:literal) => {{
        $crate::kills! { $test { "": $words } }
        KILLS[0].verify().unwrap();
    }};
}

/// Verifies all `kills` of this test program, and that each declaration that `is_mine` has one, unless it is declared
/// as not modelled.
///
/// # Panics
/// If a model does not fail as declared, or a declaration lacks a model.
pub fn check(kills: &[&[Kill]], is_mine: fn(&Declaration) -> bool) {
    let kills = kills.concat();
    let failures = Mutex::new(unneeded(&kills, is_mine));
    let to_run: Vec<_> = kills.iter().filter(|kill| kill.fails_here()).collect();
    let (next, start) = (AtomicUsize::new(0), Instant::now());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(kill) = to_run.get(next.fetch_add(1, Relaxed)) {
                    match kill.verify() {
                        Ok(time) => println!("{}: {}, {:.1} s", kill.weakened, kill.path(), time.as_secs_f64()),
                        Err(failure) => failures.lock().unwrap().push(failure),
                    }
                }
            });
        }
    });
    println!("{} weakened models, {:.0} s", to_run.len(), start.elapsed().as_secs_f64());
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Returns what is wrong with the names of the sides and steps.
fn unneeded(kills: &[Kill], is_mine: fn(&Declaration) -> bool) -> Vec<String> {
    let declared: BTreeMap<_, _> = edge::ALL.iter().map(|declared| (declared.name, declared)).collect();
    let mut failures = Vec::new();
    for kill in kills {
        match declared.get(kill.weakened) {
            None => failures.push(format!("`{}`, of {}, is not declared", kill.weakened, kill.path())),
            Some(Declaration { unmodelled: Some(_), .. }) => {
                failures.push(format!(
                    "{} is declared as not modelled, but {} is its model",
                    kill.weakened,
                    kill.path()
                ));
            }
            _ => {}
        }
    }
    for declared in edge::ALL.iter().filter(|declared| is_mine(declared) && declared.unmodelled.is_none()) {
        if !kills.iter().any(|kill| kill.weakened == declared.name) {
            failures.push(format!("no model needs {}", declared.name));
        }
    }
    failures
}

impl Kill {
    /// Returns whether the model can fail under this checker.
    fn fails_here(&self) -> bool {
        let is_step = || edge::ALL.iter().any(|declared| declared.name == self.weakened && declared.is_step);
        cfg!(raddle_loom) || !self.only_loom && is_step()
    }

    /// Returns the name by which the test program knows the model's test.
    fn path(&self) -> &'static str {
        self.test.split_once("::").map_or(self.test, |(_, path)| path)
    }

    /// Returns whether the model is one of those for loom, which are the only ones in modules.
    fn is_of_loom(&self) -> bool {
        self.path().contains("::")
    }

    /// Runs the weakened model in a separate process. Returns how long it took, or why it counts as not failing.
    #[doc(hidden)]
    pub fn verify(&self) -> Result<Duration, String> {
        let program = std::env::current_exe().expect("the path of this test program should be known");
        let mut command = Command::new(program);
        command
            .args(["--exact", self.path(), "--include-ignored", "--nocapture", "--test-threads", "1"])
            .env("RADDLE_WEAKENED", self.weakened)
            .env("RUST_BACKTRACE", "0");
        if !self.is_of_loom() {
            command.env("RADDLE_SHUTTLE_FACTOR", FACTOR);
        }
        let start = Instant::now();
        let (status, text) = run(command).expect("the process of the model should run");
        // shuttle may find another consequence first than loom.
        let words = if cfg!(raddle_shuttle) && self.is_of_loom() { &["panicked at"] } else { self.words };
        let what = match status {
            _ if !text.contains("running 1 test") => "is no test",
            None => "does not fail in time",
            Some(status) if status.success() => "passes",
            Some(_) if words.iter().any(|words| text.contains(words)) => return Ok(start.elapsed()),
            Some(_) => "fails in another way",
        };
        let (weakened, test, words) = (self.weakened, self.path(), words.join("` or `"));
        Err(format!("without `{weakened}`, {test} must fail with `{words}`, but {what}:\n{text}"))
    }
}

/// Runs `command`. Returns its status, or `None` if it has taken too long and was killed, and its output.
fn run(mut command: Command) -> io::Result<(Option<ExitStatus>, String)> {
    let (mut output, input) = io::pipe()?;
    let mut child = command.stdout(input.try_clone()?).stderr(input).spawn()?;
    // The pipe ends with the process.
    drop(command);
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        output.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
    });
    let start = Instant::now();
    let status = loop {
        let status = child.try_wait()?;
        if status.is_some() {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            break None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = reader.join().expect("the reader should not panic")?;
    Ok((status, text))
}
