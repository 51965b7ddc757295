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
    /// What was found.
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
        for Finding { about, found, advice } in &self.findings {
            let mark = if advice.is_some() { "!" } else { " " };
            writeln!(f, "{mark} {about:<22} {found}")?;
            advice.iter().try_for_each(|advice| writeln!(f, "  {:22} {advice}", ""))?;
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
/// let diagnosis = raddle::doctor();
/// for finding in diagnosis.findings().iter().filter(|finding| finding.advice.is_some()) {
///     eprintln!("{}: {}", finding.about, finding.found);
/// }
/// ```
#[must_use]
pub fn doctor() -> Diagnosis {
    let looks: [fn() -> Option<Finding>; 13] = [
        cores,
        quota,
        pinning,
        priority,
        isolation,
        siblings,
        frequency,
        time_source,
        timer_slack,
        wake_up,
        sleep,
        huge_pages,
        gpus,
    ];
    Diagnosis { findings: looks.into_iter().filter_map(|look| look()).collect() }
}

fn finding(about: &'static str, found: impl Into<String>, advice: Option<&str>) -> Option<Finding> {
    Some(Finding { about, found: found.into(), advice: advice.map(str::to_owned) })
}

/// Returns the trimmed text of a system file, or `None` if there is no text.
fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn cores() -> Option<Finding> {
    let (allowed, online) = (topology::allowed(), thread::available_parallelism().ok());
    let all = read("/sys/devices/system/cpu/online").map_or(String::new(), |online| format!("; online: {online}"));
    let found = format!("{} cores may be used{all}", allowed.len());
    let few =
        (allowed.len() < 2).then_some("with one core, operations run one after the other; allow more with `taskset`");
    online.and_then(|_| finding("cores", found, few))
}

fn quota() -> Option<Finding> {
    let cores = topology::allowed().len();
    let granted = topology::parallelism(&topology::allowed());
    if granted >= cores {
        return finding("quota", "the control group grants the time of all cores", None);
    }
    let found = format!("the control group grants the time of {granted} of {cores} cores");
    finding("quota", found, Some("beyond that, threads are suspended; raise `cpu.max`, or use fewer workers"))
}

fn pinning() -> Option<Finding> {
    let allowed = topology::allowed();
    let refused = thread::spawn(move || allowed.iter().copied().filter(|&core| !topology::keep_to_one(core)).collect());
    let refused: Vec<usize> = refused.join().ok()?;
    if refused.is_empty() {
        return finding("pinning", "threads can be pinned to every core", None);
    }
    let found = format!("refused for the cores {refused:?}");
    finding("pinning", found, Some("workers run unpinned there; check the cpuset of the container"))
}

#[cfg(all(target_os = "linux", not(miri)))]
fn priority() -> Option<Finding> {
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
    let allowed = match limit.rlim_cur {
        _ if !is_known => "the limit of real-time priorities is unknown".to_owned(),
        0 => "real-time priorities are allowed only with CAP_SYS_NICE".to_owned(),
        libc::RLIM_INFINITY => "every real-time priority is allowed".to_owned(),
        most => format!("real-time priorities above {most} are allowed only with CAP_SYS_NICE"),
    };
    let advice = if matches!(policy, "SCHED_BATCH" | "SCHED_IDLE") {
        Some("the kernel favours other programs; start this one with `chrt --other 0`")
    } else {
        (nice > 0).then_some("other programs take precedence; start this one with nice 0")
    };
    finding("priority", format!("{policy}, nice {nice}, which threads of engines inherit; {allowed}"), advice)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn priority() -> Option<Finding> {
    None
}

fn isolation() -> Option<Finding> {
    let isolated = read("/sys/devices/system/cpu/isolated");
    match isolated {
        Some(isolated) => finding("isolated cores", isolated, None),
        None if fs::metadata("/sys/devices/system/cpu/isolated").is_ok() => {
            finding("isolated cores", "none: other programs and the kernel may interrupt every core", None)
        }
        None => None,
    }
}

fn siblings() -> Option<Finding> {
    match read("/sys/devices/system/cpu/smt/active")?.as_str() {
        "0" => finding("hyperthreads", "off, or hidden by a hypervisor", None),
        _ => finding(
            "hyperthreads",
            "on: two logical cores share one physical core",
            Some("for even latencies, use one worker for each physical core: `EngineBuilder::workers`"),
        ),
    }
}

fn frequency() -> Option<Finding> {
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")?;
    let advice = "cores slow down when they are idle; set the governor with `cpupower frequency-set -g performance`";
    let advice = (governor != "performance").then_some(advice);
    finding("frequency governor", governor, advice)
}

fn time_source() -> Option<Finding> {
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let counter = if clock::reads_counter() { "traces read the time stamp counter" } else { "traces read `Instant`" };
    let start = Instant::now();
    const READS: u32 = 1000;
    (0..READS).for_each(|_| _ = std::hint::black_box(Instant::now()));
    let each = start.elapsed() / READS;
    let slow = each > Duration::from_micros(1);
    let source = source.map_or(String::new(), |source| format!("{source}, "));
    let advice = "each reading of the clock is a system call; boot with `tsc=reliable` if the hardware permits it";
    finding("clock", format!("{source}read in {} ns; {counter}", each.as_nanos()), slow.then_some(advice))
}

#[cfg(all(target_os = "linux", not(miri)))]
fn timer_slack() -> Option<Finding> {
    // SAFETY: the call changes nothing.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    let found = format!("{slack} ns on this thread; workers that sleep for a set time use a slack of 1 ns");
    (slack >= 0).then(|| finding("timer slack", found, None)).flatten()
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn timer_slack() -> Option<Finding> {
    None
}

/// Measures how long a parked thread takes to answer.
fn wake_up() -> Option<Finding> {
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
    times.sort_unstable();
    let (median, most) = (times[ROUNDS / 2], times[ROUNDS * 9 / 10]);
    let found = format!("round trip in {median:.1?}; 90 % within {most:.1?}");
    let advice = "`IdlePolicy::Spin` keeps workers awake, but idle workers then occupy their cores";
    finding("waking a thread", found, (median > Duration::from_micros(100)).then_some(advice))
}

fn sleep() -> Option<Finding> {
    const ASKED: Duration = Duration::from_micros(200);
    let late = (0..20).map(|_| {
        let start = Instant::now();
        thread::sleep(ASKED);
        start.elapsed().saturating_sub(ASKED)
    });
    let mut late: Vec<Duration> = late.collect();
    late.sort_unstable();
    finding("sleeping", format!("ends {:.1?} late; at most {:.1?}", late[10], late[19]), None)
}

fn huge_pages() -> Option<Finding> {
    let setting = read("/sys/kernel/mm/transparent_hugepage/enabled")?;
    let chosen = setting.split_whitespace().find(|word| word.starts_with('[')).unwrap_or(&setting);
    finding("huge pages", chosen.trim_matches(['[', ']']).to_owned(), None)
}

fn gpus() -> Option<Finding> {
    let driver = read("/proc/driver/nvidia/version").and_then(|text| text.lines().next().map(str::to_owned));
    let driver = driver.map(|driver| match models() {
        models if models.is_empty() => format!("none listed; {driver}"),
        models => format!("{}; {driver}", models.join(", ")),
    });
    let built = cfg!(feature = "cuda");
    match (driver, built) {
        (Some(driver), true) => finding("GPUs", driver, None),
        (Some(driver), false) => {
            finding("GPUs", driver, Some("this build cannot use them; enable the feature `cuda` of raddle"))
        }
        (None, true) => finding("GPUs", "no NVIDIA driver", Some("install the driver; see the guide on GPUs")),
        (None, false) => finding("GPUs", "no NVIDIA driver, and built without the feature `cuda`", None),
    }
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
    fn a_diagnosis_has_findings_and_prints_them() {
        let diagnosis = doctor();
        let about: Vec<_> = diagnosis.findings().iter().map(|finding| finding.about).collect();
        for expected in ["cores", "quota", "pinning", "clock", "waking a thread", "sleeping", "GPUs"] {
            assert!(about.contains(&expected), "{expected} is not in {about:?}");
        }
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
        let text = diagnosis.to_string();
        assert_eq!(text.lines().filter(|line| line.starts_with('!')).count() == 0, diagnosis.is_sound(), "{text}");
    }
}
