//! How long the operations of each name took.

use std::{collections::HashMap, fmt, panic::Location, time::Duration};

use hdrhistogram::Histogram;

use crate::{
    event::Outcome,
    history::TracedOp,
    name::{Name, Plain},
};

/// The precision of percentiles: two digits, at which a histogram takes a few kilobytes.
const DIGITS: u8 = 2;

/// The maximum number of names for which statistics are kept; operations with other names are counted together.
const MAX_NAMES: usize = 4096;

/// Statistics of the operations with one name, or of those without a name pushed at one source location.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpStats {
    /// The name of the operations, or the source location of their pushes.
    pub name: String,
    /// The number of operations that have ended.
    pub count: u64,
    /// The number of these that failed.
    pub failed: u64,
    /// The number of these that were skipped.
    pub skipped: u64,
    /// How long their functions ran.
    pub ran: Times,
    /// How long they were ready before they started: the times that they waited for a worker.
    pub queued: Times,
    /// The time from their pushes to their ends.
    pub took: Times,
}

/// A distribution of times. Percentiles are precise to two digits; all other values are exact.
#[derive(Clone, Debug)]
pub struct Times {
    total: Duration,
    min: Duration,
    max: Duration,
    histogram: Histogram<u32>,
}

impl Times {
    fn new() -> Self {
        // The histogram grows as times are added.
        let histogram = Histogram::new(DIGITS).expect("the precision is allowed");
        Self { total: Duration::ZERO, min: Duration::MAX, max: Duration::ZERO, histogram }
    }

    fn add(&mut self, time: Duration) {
        self.total += time;
        self.min = self.min.min(time);
        self.max = self.max.max(time);
        // The histogram accepts every time, since it grows.
        let _ = self.histogram.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the sum of all times.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Returns the shortest time, or zero if there is none.
    #[must_use]
    pub fn min(&self) -> Duration {
        if self.histogram.is_empty() { Duration::ZERO } else { self.min }
    }

    /// Returns the longest time.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.max
    }

    /// Returns the mean, or zero if there is no time.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let nanos = self.total.as_nanos().checked_div(u128::from(self.histogram.len())).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the time that `percent` percent of all times do not exceed. For the median, `percent` is 50.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        let found = Duration::from_nanos(self.histogram.value_at_percentile(percent));
        // The histogram rounds times, but no operation took less than the shortest or more than the longest one.
        found.clamp(self.min(), self.max)
    }
}

/// The key of operations counted together.
type OpKey = (Name, Option<&'static Location<'static>>);

/// Statistics of operations while they are being collected.
#[derive(Debug, Default)]
pub struct Collected(HashMap<OpKey, OpStats>);

impl Collected {
    /// Adds an operation that has ended.
    pub fn add(&mut self, op: &TracedOp) {
        if op.internal {
            return;
        }
        let key = (op.name.clone(), op.name.is_empty().then_some(op.location));
        let is_full = self.0.len() >= MAX_NAMES && !self.0.contains_key(&key);
        let (key, label) = if is_full {
            let others = Name::from("(others)");
            ((others.clone(), None), others.to_string())
        } else {
            (key, op.label())
        };
        let stats = self.0.entry(key).or_insert_with(|| OpStats {
            name: label,
            count: 0,
            failed: 0,
            skipped: 0,
            ran: Times::new(),
            queued: Times::new(),
            took: Times::new(),
        });
        stats.count += 1;
        match op.outcome {
            Some(Outcome::Failed) => stats.failed += 1,
            Some(Outcome::Skipped) => stats.skipped += 1,
            _ => {}
        }
        if op.started.is_some() {
            stats.ran.add(op.ran());
        }
        op.queued().into_iter().for_each(|time| stats.queued.add(time));
        op.took().into_iter().for_each(|time| stats.took.add(time));
    }

    /// Returns the statistics by name, sorted by total running time, longest first.
    pub fn sorted(&self) -> Vec<OpStats> {
        let mut stats: Vec<OpStats> = self.0.values().cloned().collect();
        stats.sort_by(|a, b| b.ran.total.cmp(&a.ran.total).then_with(|| a.name.cmp(&b.name)));
        stats
    }
}

/// A time, printed with three digits.
struct ThreeDigits(Duration);

impl fmt::Display for ThreeDigits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos() as f64;
        let (value, unit) = match nanos {
            nanos if nanos < 1e3 => (nanos, "ns"),
            nanos if nanos < 1e6 => (nanos / 1e3, "µs"),
            nanos if nanos < 1e9 => (nanos / 1e6, "ms"),
            nanos => (nanos / 1e9, "s"),
        };
        let digits = if value >= 100.0 || unit == "ns" {
            0
        } else if value >= 10.0 {
            1
        } else {
            2
        };
        f.pad(&format!("{value:.digits$} {unit}"))
    }
}

/// A table of operations, for [`Display`](fmt::Display).
#[derive(Debug)]
pub struct OpTable<'a>(pub &'a [OpStats]);

impl fmt::Display for OpTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|op| op.name.chars().count()).max().unwrap_or(0).clamp(9, 40);
        writeln!(
            f,
            "{:width$} {:>9} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>11}",
            "operation",
            "count",
            "failed",
            "skipped",
            "total",
            "min",
            "median",
            "99 %",
            "max",
            "queued 50 %",
            "queued 99 %"
        )?;
        for op in self.0 {
            writeln!(
                f,
                "{:width$} {:>9} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>11}",
                Plain(&op.name),
                op.count,
                op.failed,
                op.skipped,
                ThreeDigits(op.ran.total()),
                ThreeDigits(op.ran.min()),
                ThreeDigits(op.ran.percentile(50.0)),
                ThreeDigits(op.ran.percentile(99.0)),
                ThreeDigits(op.ran.max()),
                ThreeDigits(op.queued.percentile(50.0)),
                ThreeDigits(op.queued.percentile(99.0)),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{OpId, Place},
        history::Run,
    };

    const MS: Duration = Duration::from_millis(1);

    /// Returns an operation that was pushed, ready, started and ended at these times, in milliseconds.
    #[track_caller]
    fn op(name: &'static str, [pushed, ready, started, ended]: [u32; 4]) -> TracedOp {
        let place = Place::Thread(0);
        TracedOp {
            id: OpId(1),
            name: Name::from(name),
            location: Location::caller(),
            engine: 0,
            lane: 0,
            priority: 0,
            internal: false,
            accesses: Vec::new(),
            pushed_by: 0,
            parent: None,
            pushed: pushed * MS,
            ready: Some(ready * MS),
            started: Some(started * MS),
            returned: Some(ended * MS),
            ended: Some(ended * MS),
            outcome: Some(Outcome::Succeeded),
            is_over: true,
            runs: vec![Run { place, from: started * MS, to: ended * MS }],
            depends_on: Vec::new(),
        }
    }

    fn collected(ops: impl IntoIterator<Item = TracedOp>) -> Vec<OpStats> {
        let mut collected = Collected::default();
        ops.into_iter().for_each(|op| collected.add(&op));
        collected.sorted()
    }

    #[test]
    fn times_and_outcomes_are_counted_by_name() {
        let skipped = TracedOp { started: None, returned: None, runs: Vec::new(), ..op("a", [0, 9, 0, 10]) };
        let ops = [
            op("a", [0, 1, 3, 7]),
            op("b", [0, 0, 0, 100]),
            TracedOp { outcome: Some(Outcome::Failed), ..op("a", [5, 6, 10, 12]) },
            TracedOp { outcome: Some(Outcome::Skipped), ..skipped },
            TracedOp { internal: true, ..op("a", [0, 0, 0, 1000]) },
        ];
        let stats = collected(ops);
        let names: Vec<_> = stats.iter().map(|stats| stats.name.as_str()).collect();
        assert_eq!(names, ["b", "a"], "the longest do not come first");
        let a = &stats[1];
        assert_eq!((a.count, a.failed, a.skipped), (3, 1, 1));
        let summary = |times: &Times| [times.total(), times.min(), times.max(), times.mean()];
        assert_eq!(summary(&a.ran), [6, 2, 4, 3].map(|time| time * MS));
        assert_eq!(summary(&a.queued), [6, 2, 4, 3].map(|time| time * MS));
        assert_eq!(summary(&a.took), [24, 7, 10, 8].map(|time| time * MS));
        assert_eq!((a.took.percentile(0.0), a.took.percentile(100.0)), (7 * MS, 10 * MS));
        let median = a.took.percentile(50.0).as_secs_f64() * 1e3;
        assert!((median - 7.0).abs() < 0.1, "{median}");
        assert_eq!(summary(&Times::new()), [Duration::ZERO; 4]);
    }

    #[test]
    fn operations_without_a_name_are_counted_by_source_location() {
        let one = || op("", [0, 0, 0, 1]);
        let other = op("", [0, 0, 0, 5]);
        let stats = collected([one(), one(), other.clone(), op("named", [0, 0, 0, 9])]);
        let counts: Vec<_> = stats.iter().map(|stats| (stats.name.clone(), stats.count)).collect();
        let expected = [("named".to_owned(), 1), (other.label(), 1), (one().label(), 2)];
        assert_eq!(counts, expected);
    }

    #[test]
    fn names_beyond_the_maximum_are_counted_together() {
        let mut collected = Collected::default();
        for n in (0..MAX_NAMES + 10).chain([0]) {
            collected.add(&TracedOp { name: Name::from(n.to_string()), ..op("", [0, 0, 0, 1]) });
        }
        collected.add(&op("", [0, 0, 0, 1]));
        let count = |name: &str| collected.0.get(&(Name::from(name.to_owned()), None)).map(|stats| stats.count);
        assert_eq!((count("(others)"), count("0"), count(&MAX_NAMES.to_string())), (Some(11), Some(2), None));
        assert_eq!(collected.0.len(), MAX_NAMES + 1);
    }

    #[test]
    fn the_table_has_a_value_in_each_column() {
        let failed = TracedOp { outcome: Some(Outcome::Failed), ..op("row", [0, 1, 3, 7]) };
        let text = OpTable(&collected([failed, op("row", [0, 0, 20, 130])])).to_string();
        let line = text.lines().find(|line| line.starts_with("row")).expect("the operation should have a line");
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words, "row 2 1 0 114 ms 4.00 ms 4.01 ms 110 ms 110 ms 2.01 ms 20.0 ms");
    }

    #[test]
    fn a_name_in_the_table_neither_begins_a_line_nor_controls_a_terminal() {
        let text = OpTable(&collected([op("two\nlines \x1b[31m", [0, 1, 3, 7])])).to_string();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("two\\nlines \\u{1b}[31m ") && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn times_are_printed_with_three_digits() {
        for (nanos, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (9_990, "9.99 µs"),
            (12_340, "12.3 µs"),
            (123_400, "123 µs"),
            (1_000_000, "1.00 ms"),
            (99_900_000, "99.9 ms"),
            (999_000_000, "999 ms"),
            (1_000_000_000, "1.00 s"),
            (62_500_000_000, "62.5 s"),
            (3_600_000_000_000, "3600 s"),
        ] {
            assert_eq!(ThreeDigits(Duration::from_nanos(nanos)).to_string(), text);
        }
    }

    #[test]
    fn a_distribution_gives_the_sum_extremes_mean_and_percentiles_of_its_times() {
        let mut times = Times::new();
        (1..=100).for_each(|micros| times.add(Duration::from_micros(micros)));
        assert_eq!(times.total(), Duration::from_micros(5_050));
        assert_eq!((times.min(), times.max()), (Duration::from_micros(1), Duration::from_micros(100)));
        assert_eq!(times.mean(), Duration::from_nanos(50_500));
        for percent in [1.0, 50.0, 99.0] {
            let (found, exact) = (times.percentile(percent).as_secs_f64(), percent * 1e-6);
            assert!((found / exact - 1.0).abs() < 0.01, "{percent} %: {found} s");
        }
        // Rounding to two digits must not lead out of the range of the times.
        assert_eq!(times.percentile(100.0), times.max());
    }
}
