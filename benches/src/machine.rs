//! The conditions of a measurement: machine, time, rounds and selected rows.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use core_affinity::CoreId;

use crate::stats::median;

/// Returns the number of cores that this process may use.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns whether each benchmark should only check that it runs: if `RADDLE_BENCH_QUICK` is set and is neither empty
/// nor `0`, or if `--test` is among the arguments.
#[must_use]
pub fn quick() -> bool {
    env::var_os("RADDLE_BENCH_QUICK").is_some_and(|value| !value.is_empty() && value != "0")
        || env::args().any(|argument| argument == "--test")
}

/// Returns `full`, or `quick` in quick mode.
pub fn choose<T>(full: T, quick: T) -> T {
    if self::quick() { quick } else { full }
}

/// Returns the number of interleaved rounds in which each figure is measured.
#[must_use]
pub fn rounds(full: usize) -> usize {
    let wanted = env::var("RADDLE_BENCH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    choose(wanted.unwrap_or(full), 1).max(1)
}

/// Returns the arguments that do not begin with a dash. A benchmark with rows shows the rows whose names contain one of
/// these words.
#[must_use]
pub fn words() -> Vec<String> {
    env::args().skip(1).filter(|word| !word.starts_with('-')).collect()
}

/// Returns whether a row with this name is selected.
#[must_use]
pub fn wanted(name: &str) -> bool {
    let words = words();
    words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
}

/// Returns the folder for tables and plots: `RADDLE_BENCH_OUT` if it is set, `benches/results` for a full run of all
/// rows, and a folder that git ignores otherwise.
#[must_use]
pub fn out() -> PathBuf {
    folder(quick() || !words().is_empty())
}

/// Returns the folder for a partial run or for a full one.
#[must_use]
pub fn folder(partial: bool) -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    match env::var_os("RADDLE_BENCH_OUT") {
        Some(folder) => folder.into(),
        None if partial => here.join("results/partial"),
        None => here.join("results"),
    }
}

fn first_line(command: &str, arguments: &[&str]) -> Option<String> {
    // The benchmarks may run on a different machine from the one that built them.
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = if here.is_dir() { here } else { Path::new(".") };
    let output = Command::new(command).args(arguments).current_dir(here).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown")
    };
    format!("{}, family {} model {}", field("model name"), field("cpu family"), field("model\t"))
}

/// Returns the commit of the sources, with a mark if the sources of the engine or of the benchmarks differ from that
/// commit. If `RADDLE_COMMIT` is set, it is returned instead, for machines without the sources.
#[must_use]
pub fn commit() -> String {
    if let Ok(commit) = env::var("RADDLE_COMMIT") {
        return commit;
    }
    let Some(commit) = first_line("git", &["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let changed = first_line("git", &["status", "--porcelain", "--", "../src", "../Cargo.lock", "src", "benches"]);
    if changed.is_some() { format!("{commit} with changes") } else { commit }
}

/// The compiler that built the benchmarks.
pub const RUSTC: &str = env!("RADDLE_RUSTC");

/// Returns one line with the processor, cores, kernel, compiler, commit, date, and the current load of the machine.
#[must_use]
pub fn provenance() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| env::consts::OS.into());
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mode = choose("", "; **quick mode: these figures mean nothing**");
    format!(
        "{cpu}; {cores} cores; kernel {kernel}; {RUSTC}; raddle {version}, commit {commit}; {date}; load {load} when \
         this was written{mode}",
        cpu = cpu(),
        cores = cores(),
        // Without the suffixes of distributions.
        kernel = kernel.trim().split('-').next().unwrap_or_default(),
        version = env!("CARGO_PKG_VERSION"),
        commit = commit(),
        date = first_line("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default(),
        load = load.split(' ').next().unwrap_or("unknown"),
    )
}

/// Runs `f` on a thread that stays on the `n`th core, counted from the last if `n` is negative.
///
/// # Panics
/// If `f` panics, or if the thread cannot be pinned.
pub fn pinned<R: Send>(n: isize, f: impl FnOnce() -> R + Send) -> R {
    // The cores are queried once, by a thread that is not pinned yet: a pinned thread sees only its own core.
    static CORES: LazyLock<Vec<CoreId>> = LazyLock::new(|| core_affinity::get_core_ids().expect("the cores"));
    let core = CORES[n.rem_euclid(CORES.len() as isize) as usize];
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            assert!(core_affinity::set_for_current(core), "the thread could not be pinned to {core:?}");
            f()
        });
        thread.join().expect("the pinned thread")
    })
}

/// Records the round trip between the cores, then gives the threads of the previous measurement time to go to sleep.
pub fn settle() {
    if let Some(trip) = round_trip() {
        TRIPS.lock().unwrap_or_else(PoisonError::into_inner).push(trip);
    }
    std::thread::sleep(choose(Duration::from_millis(20), Duration::from_millis(1)));
}

/// The round trips recorded so far.
static TRIPS: Mutex<Vec<f64>> = Mutex::new(vec![]);

/// Measures how long a word takes from the first core to the last one and back, in ns: the cost of a message and an
/// answer between two threads, which every engine with threads pays. This time varies tenfold with the host's placement
/// of virtual cores. Returns `None` if there is only one core.
fn round_trip() -> Option<f64> {
    const COUNT: u32 = 1000;
    if cores() < 2 {
        return None;
    }
    let word = AtomicU32::new(0);
    let until = |value| {
        while word.load(Relaxed) != value {
            std::hint::spin_loop();
        }
    };
    let there_and_back = |trip| {
        word.store(2 * trip + 1, Relaxed);
        until(2 * trip + 2);
    };
    let ns = std::thread::scope(|scope| {
        scope.spawn(|| {
            pinned(-1, || {
                for trip in 0..=COUNT {
                    until(2 * trip + 1);
                    word.store(2 * trip + 2, Relaxed);
                }
            });
        });
        pinned(0, || {
            // The first exchange waits for the other thread to start.
            there_and_back(0);
            let begin = Instant::now();
            (1..=COUNT).for_each(there_and_back);
            begin.elapsed().as_nanos() as f64 / f64::from(COUNT)
        })
    });
    Some(ns)
}

/// Returns the median, the smallest and the largest of the recorded round trips, or `None` if there are none.
#[must_use]
pub fn round_trips() -> Option<[f64; 3]> {
    let trips = TRIPS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let least = trips.iter().copied().reduce(f64::min)?;
    let largest = trips.iter().copied().reduce(f64::max)?;
    Some([median(&trips), least, largest])
}

/// Describes the result of [`round_trips`] in a sentence. Returns an empty string if there are no round trips.
#[must_use]
pub fn distance(trips: Option<[f64; 3]>) -> String {
    trips.map_or_else(String::new, |[median, least, largest]| {
        format!(
            " During the run, a word took {median:.0} ns ({least:.0}–{largest:.0}) from one core to another and back."
        )
    })
}
