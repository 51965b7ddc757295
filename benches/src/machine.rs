//! The conditions of a measurement: machine, time, rounds and selected rows.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use core_affinity::CoreId;

use crate::{
    state::{Flipped, State, Trip, Watch, take},
    stats::{median, quartiles},
};

/// Returns the number of cores available to this process.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns whether benchmarks should only check that they run: if `RADDLE_BENCH_QUICK` is set and neither empty nor
/// `0`, or if `--test` is among the arguments.
#[must_use]
pub fn quick() -> bool {
    env::var_os("RADDLE_BENCH_QUICK").is_some_and(|value| !value.is_empty() && value != "0")
        || env::args().any(|argument| argument == "--test")
}

/// Returns `full`, or `quick` in quick mode.
pub fn choose<T>(full: T, quick: T) -> T {
    if self::quick() { quick } else { full }
}

/// Returns how many interleaved rounds measure each figure: one in quick mode, otherwise `RADDLE_BENCH_ROUNDS`, by
/// default twelve.
#[must_use]
pub fn rounds() -> usize {
    let wanted = env::var("RADDLE_BENCH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    choose(wanted.unwrap_or(12), 1).max(1)
}

/// Returns the arguments that do not begin with a dash. If there are any, a benchmark with rows shows only rows whose
/// names contain one of these words.
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
    // The benchmarks may run on a machine other than the one that built them.
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

/// Returns the sources' commit, marked if the engine's or the benchmarks' sources differ from it. If `RADDLE_COMMIT` is
/// set, returns that instead, for machines without the sources.
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

/// Returns one line with the processor, cores, kernel, compiler, commit, date, and the machine's current load.
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
        // Without distribution suffixes.
        kernel = kernel.trim().split('-').next().unwrap_or_default(),
        version = env!("CARGO_PKG_VERSION"),
        commit = commit(),
        date = first_line("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default(),
        load = load.split(' ').next().unwrap_or("unknown"),
    )
}

/// Runs `f` on a thread pinned to the `n`th core, counted from the last if `n` is negative.
///
/// # Panics
/// If `f` panics, or if the thread cannot be pinned.
pub fn pinned<R: Send>(n: isize, f: impl FnOnce() -> R + Send) -> R {
    // The cores are queried once, by an unpinned thread: a pinned thread sees only its own core.
    static CORES: LazyLock<Vec<CoreId>> = LazyLock::new(|| core_affinity::get_core_ids().expect("the cores"));
    let core = CORES[n.rem_euclid(CORES.len() as isize) as usize];
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            assert!(core_affinity::set_for_current(core), "the thread could not be pinned to {core:?}");
            f()
        });
        thread.join().expect("the pinned thread should not panic")
    })
}

/// Gives the previous measurement's threads time to go to sleep.
pub fn settle() {
    std::thread::sleep(choose(Duration::from_millis(20), Duration::from_millis(1)));
}

/// Returns the process's resident memory without that of files, in bytes, or NaN if the system does not report it.
#[must_use]
pub fn resident() -> f64 {
    let kib = || fs::read_to_string("/proc/self/status").ok()?.lines().find_map(kib_resident);
    kib().map_or(f64::NAN, |kib| 1024.0 * kib)
}

fn kib_resident(line: &str) -> Option<f64> {
    line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?.parse().ok()
}

// --------------------------------------------------------------------------------------------- bracketed timings ----

/// The maximum number of attempts at a timing. If all of them fail, its round has no such timing.
pub const ATTEMPTS: usize = 10;

/// The outcomes of this process's timings.
#[derive(Debug, Default)]
struct Log {
    /// The round trips, in ns.
    trips: Vec<f64>,
    kept: usize,
    dropped: usize,
    given_up: usize,
}

static LOG: Mutex<Log> = Mutex::new(Log { trips: vec![], kept: 0, dropped: 0, given_up: 0 });

fn log() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a timing in one state of the machine: see [`state`](crate::state). Returns `None` if all attempts fail. In a
/// quick run, or if there is only one core, the state is not checked.
pub fn timed<T>(mut timing: impl FnMut() -> T) -> Option<(State, T)> {
    steady(|_| Ok(timing()))
}

/// Like [`timed`], for long timings that detect flips themselves.
pub fn steady<T>(timing: impl FnMut(&mut Watch<'_>) -> Result<T, Flipped>) -> Option<(State, T)> {
    let mut trip = || {
        let trip = round_trip();
        log().trips.push(trip);
        trip
    };
    let checked = cores() > 1 && !quick();
    if quick() && cores() > 1 {
        trip();
    }
    let taken = take(ATTEMPTS, settle, checked.then_some(&mut trip as Trip<'_>), timing);
    let mut log = log();
    log.dropped += taken.dropped;
    if taken.kept.is_some() {
        log.kept += 1;
    } else {
        log.given_up += 1;
    }
    taken.kept
}

/// Returns how many of this process's timings were kept, dropped and given up.
#[must_use]
pub fn counts() -> [usize; 3] {
    let log = log();
    [log.kept, log.dropped, log.given_up]
}

/// Adds another process's counts.
pub fn add_counts([kept, dropped, given_up]: [usize; 3]) {
    let mut log = log();
    log.kept += kept;
    log.dropped += dropped;
    log.given_up += given_up;
}

/// Measures how long a word takes from the first core to the last and back, in ns: the cost of a message and a reply
/// between two threads, which every threaded engine pays. Returns the median over several batches, so an interruption
/// in one of them does not matter.
fn round_trip() -> f64 {
    const BATCHES: usize = 15;
    const COUNT: u32 = 100;
    let word = AtomicU32::new(0);
    let until = |value| {
        // Relaxed: only the word itself is handed over.
        while word.load(Relaxed) != value {
            std::hint::spin_loop();
        }
    };
    let there_and_back = |trip| {
        word.store(2 * trip + 1, Relaxed); // Relaxed: only the word itself is handed over.
        until(2 * trip + 2);
    };
    let batches = std::thread::scope(|scope| {
        scope.spawn(|| {
            pinned(-1, || {
                for trip in 0..=COUNT * BATCHES as u32 {
                    until(2 * trip + 1);
                    word.store(2 * trip + 2, Relaxed); // Relaxed: only the word itself is handed over.
                }
            });
        });
        pinned(0, || {
            // The first exchange waits for the other thread to start.
            there_and_back(0);
            let batch = |batch: u32| {
                let begin = Instant::now();
                (batch * COUNT + 1..=(batch + 1) * COUNT).for_each(there_and_back);
                begin.elapsed().as_nanos() as f64 / f64::from(COUNT)
            };
            (0..BATCHES as u32).map(batch).collect::<Vec<_>>()
        })
    });
    median(&batches)
}

/// The conditions of a run: the outcomes of its timings, the round trips, and the time given to others by the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// The quartiles of the round trips, in ns; NaN if there are none.
    pub trips: [f64; 3],
    /// The number of timings kept.
    pub kept: f64,
    /// The number of timings dropped.
    pub dropped: f64,
    /// The number of timings given up.
    pub given_up: f64,
    /// The share of the cores' time given to others by the host, in %, or NaN if unknown.
    pub steal: f64,
}

impl Conditions {
    /// The columns of the row `run` in the table `machine`.
    pub const COLUMNS: [&'static str; 7] = [
        "round trip, lower quartile",
        "round trip, median",
        "round trip, upper quartile",
        "timings kept",
        "timings dropped",
        "timings given up",
        "steal, %",
    ];

    /// Returns the figures in the order of the columns.
    #[must_use]
    pub fn figures(&self) -> [f64; 7] {
        let [lower, median, upper] = self.trips;
        [lower, median, upper, self.kept, self.dropped, self.given_up, self.steal]
    }

    /// Returns the conditions of this process so far; the steal is that since `begin`.
    #[must_use]
    pub fn since(begin: Option<CpuTime>) -> Self {
        let log = log();
        let steal = begin.zip(CpuTime::now()).map_or(f64::NAN, |(begin, now)| now.steal_since(begin));
        let [kept, dropped, given_up] = [log.kept, log.dropped, log.given_up].map(|count| count as f64);
        Self { trips: quartiles(&log.trips), kept, dropped, given_up, steal }
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trips: [lower, median, upper], kept, dropped, given_up, steal } = self;
        let mut sentences = vec![];
        if !median.is_nan() {
            sentences
                .push(format!("A word took {median:.0} ns ({lower:.0}–{upper:.0}) from one core to another and back."));
        }
        if *kept > 0.0 {
            sentences.push(format!(
                "{kept} timings were kept; {dropped} across a change of the cores' distance were dropped and taken \
                 again."
            ));
        }
        if *given_up > 0.0 {
            sentences.push(format!("{given_up} are missing after {ATTEMPTS} attempts."));
        }
        if !steal.is_nan() {
            sentences.push(format!("The host gave {steal:.2} % of the cores' time to others (steal)."));
        }
        f.write_str(&sentences.join(" "))
    }
}

/// The total time of all cores since the machine started, in ticks, from `/proc/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    total: u64,
    steal: u64,
}

impl CpuTime {
    /// Returns the time until now, or `None` if the system does not report it.
    #[must_use]
    pub fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal; the guest times that follow are included in `user`.
        let ticks: Vec<u64> = line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { total: ticks.iter().sum(), steal: *ticks.get(7)? })
    }

    /// Returns the share of the time since `begin` given to others by the host, in %.
    #[must_use]
    pub fn steal_since(self, begin: Self) -> f64 {
        let total = self.total.saturating_sub(begin.total);
        if total == 0 { 0.0 } else { 100.0 * self.steal.saturating_sub(begin.steal) as f64 / total as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_a_part_of_the_time_of_all_cores() {
        let begin = CpuTime::parse("cpu  100 0 50 800 10 0 20 20 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n").expect("a line");
        let now = CpuTime::parse("cpu  150 0 60 930 10 0 20 30 5 0\n").expect("a line");
        assert_eq!(now.steal_since(begin), 5.0);
        assert_eq!(begin.steal_since(begin), 0.0);
        assert_eq!(CpuTime::parse("cpu 1 2 3\n"), None);
        assert_eq!(CpuTime::parse(""), None);
    }

    #[test]
    fn memory_is_resident_once_it_is_written() {
        assert_eq!(kib_resident("RssAnon:\t   2048 kB"), Some(2048.0));
        assert_eq!(kib_resident("RssFile:\t   2048 kB"), None);
        let before = resident();
        let memory = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(before.is_nan() || resident() - before > 32e6);
        drop(memory);
    }

    #[test]
    fn the_conditions_say_what_was_dropped() {
        let conditions = Conditions { trips: [60.0, 70.0, 90.0], kept: 100.0, dropped: 7.0, given_up: 2.0, steal: 0.5 };
        assert_eq!(conditions.figures(), [60.0, 70.0, 90.0, 100.0, 7.0, 2.0, 0.5]);
        let text = conditions.to_string();
        for part in ["70 ns (60–90)", "100 timings", "7 across", "2 are missing", "0.50 %"] {
            assert!(text.contains(part), "`{part}` in {text}");
        }
        let nothing = Conditions { trips: [f64::NAN; 3], kept: 0.0, dropped: 0.0, given_up: 0.0, steal: f64::NAN };
        assert_eq!(nothing.to_string(), "");
    }
}
