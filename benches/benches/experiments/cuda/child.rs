//! Parts of experiments, run in separate processes.

use std::{
    cell::RefCell,
    collections::HashMap,
    env,
    io::{BufRead, BufReader, Read, Write, stdout},
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// The first argument of a process that runs a part.
pub const PART: &str = "--part";

/// The prefix of a line with a figure.
const FIGURE: &str = "figure ";

/// The last figure printed by a part before the process ends.
const LEAVING: &str = "leaving";

static QUICK: AtomicBool = AtomicBool::new(false);

/// Records whether parts should be quick.
pub fn be_quick(quick: bool) {
    // Relaxed: the flag publishes no other data.
    QUICK.store(quick, Relaxed);
}

/// Prints a figure for the parent process.
pub fn figure(name: &str, value: f64) {
    let mut out = stdout().lock();
    writeln!(out, "{FIGURE}{name} {value}").expect("the parent process should read");
    // The part's next call to the driver may kill the process.
    out.flush().expect("the parent process should read");
}

/// Reports that the process is about to end.
pub fn leaving() {
    figure(LEAVING, 0.0);
}

/// Prints figures for samples: their number, median, 99th percentile, and maximum.
pub fn figures(name: &str, mut samples: Vec<f64>) {
    samples.sort_by(f64::total_cmp);
    let at = |part: f64| samples.get((samples.len().saturating_sub(1) as f64 * part).round() as usize).copied();
    figure(&format!("{name}.count"), samples.len() as f64);
    for (quantile, part) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        figure(&format!("{name}.{quantile}"), at(part).unwrap_or(f64::NAN));
    }
}

/// How a part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The part succeeded.
    Well,
    /// The part failed or was killed by a signal.
    Badly,
    /// The time limit expired.
    Never,
}

/// The results of a part.
#[derive(Debug)]
pub struct Part {
    name: String,
    figures: HashMap<String, f64>,
    pub end: End,
    /// The time from the figure `leaving`, if the part printed it, to the end of the process.
    pub exit: Duration,
    /// How the part ended, in words.
    status: String,
    /// The part's standard error, unless it succeeded.
    complaint: String,
    /// The requested figures that are missing.
    missing: RefCell<Vec<String>>,
}

impl Part {
    /// Returns a figure, or NaN if the part has none with this name.
    pub fn get(&self, name: &str) -> f64 {
        self.figures.get(name).copied().unwrap_or_else(|| {
            self.missing.borrow_mut().push(name.to_owned());
            f64::NAN
        })
    }

    /// Returns whether the part has this figure.
    pub fn has(&self, name: &str) -> bool {
        self.figures.contains_key(name)
    }

    /// Returns whether the part reported that it was about to end.
    pub fn has_left(&self) -> bool {
        self.has(LEAVING)
    }

    /// Returns how the part ended, in words.
    pub fn how(&self) -> String {
        let Self { status, complaint, .. } = self;
        if complaint.is_empty() { status.clone() } else { format!("{status}: {complaint}") }
    }

    /// Returns the part if it succeeded, else an error.
    pub fn well(self) -> Result<Self, String> {
        if self.end == End::Well { Ok(self) } else { Err(format!("{}: {}", self.name, self.how())) }
    }

    /// Returns an error if requested figures are missing.
    pub fn complete(&self) -> Result<(), String> {
        let missing = self.missing.borrow();
        if missing.is_empty() {
            return Ok(());
        }
        let (first, count) = (&missing[0], missing.len());
        Err(format!("{} did not print {count} figures, the first of which is {first}: {}", self.name, self.how()))
    }
}

/// Runs a part of an experiment with additional environment variables for at most `limit` seconds. Prints the part's
/// output, except its figures.
pub fn run(experiment: &str, arguments: &[&str], environment: &[(&str, &str)], limit: u64) -> Result<Part, String> {
    let this = env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(this);
    command.arg(PART).arg(experiment).args(arguments).envs(environment.iter().copied());
    command.env("RUST_BACKTRACE", "0");
    // Relaxed: the flag publishes no other data.
    if QUICK.load(Relaxed) {
        command.env("RADDLE_BENCH_QUICK", "1");
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|error| format!("a process could not be started: {error}"))?;
    let name = [&[experiment], arguments].concat().join(" ");
    watch(child, name, Duration::from_secs(limit))
}

/// Reads a part's output until the part ends or its time limit expires.
fn watch(mut child: Child, name: String, limit: Duration) -> Result<Part, String> {
    let deadline = Instant::now() + limit;
    let (send, lines) = mpsc::channel();
    let out = child.stdout.take().expect("the output should be piped");
    // Children of a hung process may keep its output open, so these threads are not joined.
    thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    let (complain, complaints) = mpsc::channel();
    let mut err = child.stderr.take().expect("the output should be piped");
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = err.read_to_end(&mut text);
        let _ = complain.send(String::from_utf8_lossy(&text).into_owned());
    });
    let (mut figures, mut left) = (HashMap::new(), Instant::now());
    let mut note = |line: String| {
        let figure = line.strip_prefix(FIGURE).and_then(|figure| figure.rsplit_once(' '));
        match figure.and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?))) {
            Some((name, value)) => {
                if name == LEAVING {
                    left = Instant::now();
                }
                figures.insert(name, value);
            }
            None => println!("  {line}"),
        }
    };
    let time_left = || deadline.saturating_duration_since(Instant::now());
    while let Ok(line) = lines.recv_timeout(time_left()) {
        note(line);
        if time_left().is_zero() {
            break;
        }
    }
    // The output may end before the process does.
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    let exit = left.elapsed();
    let (end, words) = match status {
        Some(status) if status.success() => (End::Well, "it succeeded".to_owned()),
        Some(status) => (End::Badly, format!("it ended with {status}")),
        None => {
            // An error means that the process has just ended.
            let _ = child.kill();
            // A process blocked in the driver may not end even then.
            let killed = Instant::now();
            while matches!(child.try_wait(), Ok(None)) && killed.elapsed() < Duration::from_secs(2) {
                thread::sleep(Duration::from_millis(1));
            }
            (End::Never, format!("it did not end within {} s", limit.as_secs()))
        }
    };
    let text = complaints.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    let complaint = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("note:"));
    let complaint = if end == End::Well { String::new() } else { complaint.collect::<Vec<_>>().join(" / ") };
    Ok(Part { name, figures, end, exit, status: words, complaint, missing: RefCell::default() })
}
