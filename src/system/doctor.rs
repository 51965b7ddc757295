//! What a machine provides to a latency-sensitive program, as measured or as read from the system.

use std::{
    fmt, fs,
    thread::{self, Thread},
    time::{Duration, Instant},
};

use super::{clock, topology};

/// The result of [`doctor`]: what the machine provides, and what to change. [`Display`](fmt::Display) formats it for
/// people.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    findings: Vec<Finding>,
}

/// The result of one check.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// What was checked.
    pub about: &'static str,
    /// What a latency-sensitive program asks of the machine.
    pub asked: &'static str,
    /// What was found, or granted.
    pub found: String,
    /// What to do about the finding, if anything.
    pub advice: Option<String>,
}

impl Diagnosis {
    /// Returns what was found.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns whether no finding comes with advice.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.findings.iter().all(|finding| finding.advice.is_none())
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { about, asked, found, advice } in &self.findings {
            let mark = if advice.is_some() { "!" } else { " " };
            writeln!(f, "{mark} {about:<22} {found}")?;
            advice.iter().try_for_each(|advice| writeln!(f, "  {:22} asked for: {asked}; {advice}", ""))?;
        }
        Ok(())
    }
}

/// Checks what the machine provides to a latency-sensitive program: cores, pinning, the control group's quota, thread
/// priorities, the clock, timers, wake-ups, frequencies, huge pages, and GPUs. The checks take about 20 ms, change
/// nothing, and need no privileges. Checks that the system does not support are omitted; some work only on Linux.
///
/// `cargo run --release --example doctor` prints the diagnosis.
///
/// ```
/// let diagnosis = raddle::system::doctor();
/// for finding in diagnosis.findings().iter().filter(|finding| finding.advice.is_some()) {
///     eprintln!("{}: {}", finding.about, finding.found);
/// }
/// ```
#[must_use]
pub fn doctor() -> Diagnosis {
    let allowed = topology::allowed();
    let findings = [
        Some(cores(allowed.len(), read("/sys/devices/system/cpu/online").as_deref())),
        Some(quota(topology::parallelism(&allowed), allowed.len())),
        refused_cores(&allowed).map(|refused| pinning(&refused)),
        scheduling().map(|(policy, nice, most)| priority(policy, nice, most)),
        read_if_there("/sys/devices/system/cpu/isolated").map(|isolated| isolation(&isolated)),
        read("/sys/devices/system/cpu/smt/active").map(|active| siblings(&active)),
        read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").map(|name| frequency(&name)),
        Some(time_source(clock::kernel_source().as_deref().map(str::trim), measure_clock(), clock::reads_counter())),
        slack().map(timer_slack),
        measure_wake_ups().map(wake_up),
        Some(sleep(measure_sleeps())),
        read("/sys/kernel/mm/transparent_hugepage/enabled").map(|setting| huge_pages(&setting)),
        Some(gpus(driver().as_deref(), &models(), cfg!(feature = "cuda"))),
    ];
    Diagnosis { findings: findings.into_iter().flatten().collect() }
}

// ------------------------------------------------------------------------------------------------------- findings ----

// Each of these functions depends only on its arguments, so that tests reach all advice.

fn finding((about, asked): (&'static str, &'static str), found: impl Into<String>, advice: Option<&str>) -> Finding {
    Finding { about, asked, found: found.into(), advice: advice.map(str::to_owned) }
}

fn cores(allowed: usize, online: Option<&str>) -> Finding {
    let all = online.map_or(String::new(), |online| format!("; online: {online}"));
    let few = "with one core, operations run one after the other; allow more with `taskset`";
    finding(("cores", "several cores"), format!("{allowed} cores may be used{all}"), (allowed < 2).then_some(few))
}

fn quota(granted: usize, cores: usize) -> Finding {
    let about = ("quota", "the time of all cores that may be used");
    if granted >= cores {
        return finding(about, "no quota below the time of all cores was found", None);
    }
    let found = format!("the control group grants the time of {granted} of {cores} cores");
    finding(about, found, Some("beyond that, threads are suspended; raise `cpu.max`, or use fewer workers"))
}

fn pinning(refused: &[usize]) -> Finding {
    let about = ("pinning", "a thread on each core that may be used");
    if refused.is_empty() {
        return finding(about, "threads can be pinned to every core", None);
    }
    let found = format!("refused for the cores {refused:?}");
    finding(about, found, Some("workers run unpinned there; check the cpuset of the container"))
}

/// The highest real-time priority that the system allows.
#[derive(Clone, Copy)]
#[cfg_attr(not(all(target_os = "linux", not(miri))), allow(dead_code))]
enum Most {
    Unknown,
    Unlimited,
    Only(u64),
}

fn priority(policy: &str, nice: i32, most: Most) -> Finding {
    let allowed = match most {
        Most::Unknown => "the limit of real-time priorities is unknown".to_owned(),
        Most::Only(0) => "real-time priorities are allowed only with CAP_SYS_NICE".to_owned(),
        Most::Unlimited => "every real-time priority is allowed".to_owned(),
        Most::Only(most) => format!("real-time priorities above {most} are allowed only with CAP_SYS_NICE"),
    };
    let advice = if matches!(policy, "SCHED_BATCH" | "SCHED_IDLE") {
        Some("the kernel favours other programs; start this one with `chrt --other 0`")
    } else {
        (nice > 0).then_some("other programs take precedence; start this one with nice 0")
    };
    let found = format!("{policy}, nice {nice}, which threads of engines inherit; {allowed}");
    finding(("priority", "at least that of other programs"), found, advice)
}

fn isolation(isolated: &str) -> Finding {
    let none = "none: other programs and the kernel may interrupt every core";
    let found = if isolated.is_empty() { none } else { isolated };
    finding(("isolated cores", "cores that nothing interrupts"), found, None)
}

fn siblings(active: &str) -> Finding {
    let about = ("hyperthreads", "a physical core for each worker");
    match active {
        "0" => finding(about, "off, or hidden by a hypervisor", None),
        _ => finding(
            about,
            "on: two logical cores share one physical core",
            Some("for even latencies, use one worker for each physical core: `EngineBuilder::workers`"),
        ),
    }
}

fn frequency(governor: &str) -> Finding {
    let advice = "cores slow down when they are idle; set the governor with `cpupower frequency-set -g performance`";
    let advice = (governor != "performance").then_some(advice);
    finding(("frequency governor", "a constant, high frequency"), governor, advice)
}

fn time_source(source: Option<&str>, each: Duration, reads_counter: bool) -> Finding {
    let counter = if reads_counter { "traces read the time stamp counter" } else { "traces read `Instant`" };
    let source = source.map_or(String::new(), |source| format!("{source}, "));
    let advice = "each reading of the clock is a system call; boot with `tsc=reliable` if the hardware permits it";
    let found = format!("{source}read in {} ns; {counter}", each.as_nanos());
    finding(("clock", "a clock that is read without a system call"), found, (each > SLOW_CLOCK).then_some(advice))
}

fn timer_slack(nanos: i64) -> Finding {
    let found = format!("{nanos} ns on this thread; threads of GPUs sleep with 1 ns");
    finding(("timer slack", "sleeps that end on time"), found, None)
}

/// `times` are the round trips of a wake-up and an answer.
fn wake_up(mut times: Vec<Duration>) -> Finding {
    times.sort_unstable();
    let (median, most) = (times[times.len() / 2], times[times.len() * 9 / 10]);
    let found = format!("round trip in {median:.1?}; 90 % within {most:.1?}");
    let advice = "`IdlePolicy::Spin` keeps workers awake, at the price of their cores";
    finding(("waking a thread", "threads that wake quickly"), found, (median > SLOW_WAKE_UP).then_some(advice))
}

/// `late` says how late each of several sleeps ended.
fn sleep(mut late: Vec<Duration>) -> Finding {
    late.sort_unstable();
    let (median, most) = (late[late.len() / 2], late[late.len() - 1]);
    finding(("sleeping", "sleeps that end on time"), format!("ends {median:.1?} late; at most {most:.1?}"), None)
}

fn huge_pages(setting: &str) -> Finding {
    let chosen = setting.split_whitespace().find(|word| word.starts_with('[')).unwrap_or(setting);
    finding(("huge pages", "few page faults"), chosen.trim_matches(['[', ']']), None)
}

fn gpus(driver: Option<&str>, models: &[String], is_built: bool) -> Finding {
    let about = ("GPUs", "a driver, and a build that uses it");
    let found = driver.map(|driver| match models {
        [] => format!("none listed; {driver}"),
        models => format!("{}; {driver}", models.join(", ")),
    });
    match (found, is_built) {
        (Some(found), true) => finding(about, found, None),
        (Some(found), false) => {
            finding(about, found, Some("this build cannot use them; enable the feature `cuda` of raddle"))
        }
        (None, true) => finding(about, "no NVIDIA driver", Some("install the driver; see the guide on GPUs")),
        (None, false) => finding(about, "no NVIDIA driver, and built without the feature `cuda`", None),
    }
}

// --------------------------------------------------------------------------------------------------- measurements ----

/// A clock takes longer than this to read if each reading is a system call.
const SLOW_CLOCK: Duration = Duration::from_micros(1);

/// A parked thread that takes longer than this to answer was probably on a core that slept deeply, or waited for other
/// programs.
const SLOW_WAKE_UP: Duration = Duration::from_micros(100);

/// Returns the trimmed text of a system file, or `None` if there is no text.
fn read(path: &str) -> Option<String> {
    read_if_there(path).filter(|text| !text.is_empty())
}

/// Returns the trimmed text of a system file, which may be empty, or `None` if it cannot be read.
fn read_if_there(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Returns the cores to which a thread cannot be pinned.
fn refused_cores(cores: &[usize]) -> Option<Vec<usize>> {
    let cores = cores.to_vec();
    let refused = thread::spawn(move || cores.into_iter().filter(|&core| !topology::keep_to_one(core)).collect());
    refused.join().ok()
}

/// Returns the scheduling policy, the nice value, and the highest real-time priority.
#[cfg(all(target_os = "linux", not(miri)))]
fn scheduling() -> Option<(&'static str, i32, Most)> {
    // SAFETY: the call changes nothing.
    let policy = unsafe { libc::sched_getscheduler(0) };
    // SAFETY: as above.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call only writes to `limit`.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_RTPRIO, &raw mut limit) } == 0;
    let policy = match policy {
        libc::SCHED_OTHER => "SCHED_OTHER",
        libc::SCHED_FIFO => "SCHED_FIFO",
        libc::SCHED_RR => "SCHED_RR",
        libc::SCHED_BATCH => "SCHED_BATCH",
        libc::SCHED_IDLE => "SCHED_IDLE",
        _ => "an unknown policy",
    };
    let most = match limit.rlim_cur {
        _ if !is_known => Most::Unknown,
        libc::RLIM_INFINITY => Most::Unlimited,
        #[allow(clippy::useless_conversion, reason = "the limit has 32 bits where addresses do")]
        most => Most::Only(u64::from(most)),
    };
    Some((policy, nice, most))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn scheduling() -> Option<(&'static str, i32, Most)> {
    None
}

/// Returns how long a reading of the clock takes.
fn measure_clock() -> Duration {
    const READS: u32 = 1000;
    let start = Instant::now();
    (0..READS).for_each(|_| _ = std::hint::black_box(Instant::now()));
    start.elapsed() / READS
}

/// Returns the timer slack of this thread in nanoseconds.
#[cfg(all(target_os = "linux", not(miri)))]
fn slack() -> Option<i64> {
    // SAFETY: the call changes nothing.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    (slack >= 0).then(|| i64::from(slack))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn slack() -> Option<i64> {
    None
}

/// Measures how long a parked thread takes to answer.
fn measure_wake_ups() -> Option<Vec<Duration>> {
    const ROUNDS: usize = 50;
    let main = thread::current();
    let answer = move |main: &Thread| {
        for _ in 0..ROUNDS {
            thread::park();
            main.unpark();
        }
    };
    let other = thread::Builder::new().spawn(move || answer(&main)).ok()?;
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        thread::sleep(Duration::from_micros(100));
        let start = Instant::now();
        other.thread().unpark();
        // A spurious wake-up would only shorten one of the times.
        thread::park_timeout(Duration::from_millis(100));
        times.push(start.elapsed());
    }
    // The other thread may still be waiting for the last wake-up.
    other.thread().unpark();
    Some(times)
}

/// Measures how late sleeps end.
fn measure_sleeps() -> Vec<Duration> {
    const ASKED: Duration = Duration::from_micros(200);
    let late = |_| {
        let start = Instant::now();
        thread::sleep(ASKED);
        start.elapsed().saturating_sub(ASKED)
    };
    (0..20).map(late).collect()
}

/// Returns the first line of what NVIDIA's driver reports.
fn driver() -> Option<String> {
    read("/proc/driver/nvidia/version").and_then(|text| text.lines().next().map(str::to_owned))
}

/// Returns the models of the GPUs that the driver lists.
fn models() -> Vec<String> {
    let gpus = fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let model = |text: String| text.lines().find_map(|line| Some(line.strip_prefix("Model:")?.trim().to_owned()));
    let mut models: Vec<String> =
        gpus.filter_map(|gpu| fs::read_to_string(gpu.path().join("information")).ok().and_then(model)).collect();
    models.sort_unstable();
    models
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_gives_its_advice_when_it_should() {
        let (fast, slow) = (Duration::from_nanos(30), Duration::from_millis(1));
        let times = |slow_ones: usize| (0..50).map(|index| if index < slow_ones { slow } else { fast }).collect();
        let model = ["NVIDIA H100".to_owned()];
        let cases: [(Finding, &str, Option<&str>); 31] = [
            (cores(1, None), "1 cores may be used", Some("allow more")),
            (cores(2, Some("0-3")), "2 cores may be used; online: 0-3", None),
            (quota(1, 4), "the time of 1 of 4 cores", Some("raise `cpu.max`")),
            (quota(4, 4), "the time of all cores", None),
            (quota(5, 4), "the time of all cores", None),
            (pinning(&[]), "to every core", None),
            (pinning(&[3, 5]), "refused for the cores [3, 5]", Some("unpinned")),
            (priority("SCHED_OTHER", 0, Most::Unknown), "nice 0, which threads of engines inherit; the limit", None),
            (priority("SCHED_OTHER", -5, Most::Only(0)), "allowed only with CAP_SYS_NICE", None),
            (priority("SCHED_OTHER", 5, Most::Only(50)), "above 50 are allowed only", Some("with nice 0")),
            (priority("SCHED_FIFO", 0, Most::Unlimited), "SCHED_FIFO, nice 0", None),
            (priority("SCHED_BATCH", 0, Most::Unlimited), "every real-time priority", Some("chrt --other 0")),
            (priority("SCHED_IDLE", 5, Most::Unlimited), "SCHED_IDLE, nice 5", Some("chrt --other 0")),
            (isolation(""), "none: ", None),
            (isolation("2-3"), "2-3", None),
            (siblings("0"), "off", None),
            (siblings("1"), "on: ", Some("for each physical core")),
            (frequency("performance"), "performance", None),
            (frequency("powersave"), "powersave", Some("cpupower")),
            (time_source(Some("tsc"), fast, true), "tsc, read in 30 ns; traces read the time stamp", None),
            (time_source(None, SLOW_CLOCK, false), "read in 1000 ns; traces read `Instant`", None),
            (time_source(Some("xen"), slow, false), "xen, read in 1000000 ns", Some("tsc=reliable")),
            (timer_slack(50_000), "50000 ns", None),
            (wake_up([vec![slow; 10], vec![SLOW_WAKE_UP; 40]].concat()), "in 100.0µs; 90 % within 1.0ms", None),
            (wake_up(times(26)), "round trip in 1.0ms", Some("IdlePolicy::Spin")),
            (sleep(vec![2 * slow, fast, slow, fast]), "ends 1.0ms late; at most 2.0ms", None),
            (huge_pages("always [madvise] never"), "madvise", None),
            (gpus(Some("driver 1"), &model, true), "NVIDIA H100; driver 1", None),
            (gpus(Some("driver 1"), &[], false), "none listed; driver 1", Some("feature `cuda`")),
            (gpus(None, &[], true), "no NVIDIA driver", Some("install the driver")),
            (gpus(None, &[], false), "no NVIDIA driver, and built without", None),
        ];
        for (finding, found, advice) in cases {
            assert!(finding.found.contains(found), "{finding:?}");
            assert_eq!(finding.advice.is_some(), advice.is_some(), "{finding:?}");
            assert!(finding.advice.iter().all(|given| given.contains(advice.unwrap_or_default())), "{finding:?}");
            let (about, asked, diagnosis) = (finding.about, finding.asked, Diagnosis { findings: vec![finding] });
            let (text, is_sound) = (diagnosis.to_string(), diagnosis.is_sound());
            assert_eq!([text.starts_with(&format!("! {about}")), !is_sound], [advice.is_some(); 2], "{text}");
            assert_eq!(text.contains(&format!("asked for: {asked}; ")), advice.is_some(), "{text}");
        }
    }

    #[test]
    fn a_diagnosis_has_findings_and_prints_them() {
        let diagnosis = doctor();
        let about: Vec<_> = diagnosis.findings().iter().map(|finding| finding.about).collect();
        let expected = ["cores", "quota", "pinning", "clock", "waking a thread", "sleeping", "GPUs"];
        assert!(expected.iter().all(|expected| about.contains(expected)), "{about:?}");
        #[cfg(all(target_os = "linux", not(miri)))]
        for (expected, source) in [
            ("priority", "/proc/self/sched"),
            ("timer slack", "/proc/self/sched"),
            ("isolated cores", "/sys/devices/system/cpu/isolated"),
            ("hyperthreads", "/sys/devices/system/cpu/smt/active"),
            ("frequency governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            ("huge pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
        ] {
            assert_eq!(about.contains(&expected), fs::metadata(source).is_ok(), "{expected} in {about:?}");
        }
        #[cfg(all(target_os = "linux", not(miri)))]
        assert_eq!(refused_cores(&[1023]), Some(vec![1023]), "a core that does not exist was accepted");
        assert_ne!(diagnosis.to_string().lines().any(|line| line.starts_with('!')), diagnosis.is_sound(), "{about:?}");
    }
}
