//! Rows measured in turn, round by round.

use crate::{
    machine,
    state::{Flipped, Samples, State, Watch},
};

/// The argument that makes a benchmark print a single round for [`against`](crate::against) instead of its report.
pub const ONE_ROUND: &str = "--one-round";

/// The first word of each line with a figure in the output of a single round.
const MARK: &str = "raddle-round";

/// The first word of the output's last line, which contains the numbers of timings.
const COUNTS: &str = "raddle-timings";

/// A function that takes a timing and returns its figures. It returns `None` if there are none, for instance because
/// the runtime lacks the workload.
type Timing<'a> = dyn FnMut(&mut Watch<'_>) -> Result<Option<Vec<f64>>, Flipped> + 'a;

/// A row of a benchmark.
#[allow(missing_debug_implementations)]
pub struct Row<'a> {
    /// The name, also used in the output of a single round.
    pub name: String,
    /// What follows the name in that output, for each figure.
    figures: &'static [&'static str],
    time: Box<Timing<'a>>,
}

impl<'a> Row<'a> {
    /// Creates a row whose timing returns ns.
    pub fn new(name: impl Into<String>, mut time: impl FnMut() -> f64 + 'a) -> Self {
        Self::steady(name, move |_| Ok(Some(time())))
    }

    /// Creates a row whose long timing detects flips itself.
    pub fn steady(
        name: impl Into<String>,
        mut time: impl FnMut(&mut Watch<'_>) -> Result<Option<f64>, Flipped> + 'a,
    ) -> Self {
        let time = move |watch: &mut Watch<'_>| Ok(time(watch)?.map(|figure| vec![figure]));
        Self { name: name.into(), figures: &[""], time: Box::new(time) }
    }

    /// Creates a row whose timing returns several figures.
    pub fn several(
        name: String,
        figures: &'static [&'static str],
        mut time: impl FnMut() -> Option<Vec<f64>> + 'a,
    ) -> Self {
        Self { name, figures, time: Box::new(move |_| Ok(time())) }
    }

    fn take(&mut self, samples: &mut [Samples]) {
        if let Some((state, Some(figures))) = machine::steady(&mut self.time) {
            samples.iter_mut().zip(figures).for_each(|(samples, figure)| samples.push(state, figure));
        }
    }

    /// Takes a timing in any state and discards it.
    fn warm_up(&mut self) {
        let mut unchecked = Watch::begin(None).expect("an unchecked state");
        _ = (self.time)(&mut unchecked);
    }
}

/// Measures the rows in turn for `rounds` rounds, after a discarded one, and returns each figure's samples. Calls
/// `between` with each round's number when the round is over.
pub fn measure(rows: &mut [Row<'_>], rounds: usize, mut between: impl FnMut(usize)) -> Vec<Samples> {
    rows.iter_mut().for_each(Row::warm_up);
    let mut samples: Vec<_> = rows.iter().map(|row| vec![Samples::new(); row.figures.len()]).collect();
    for round in 0..rounds {
        for (row, samples) in rows.iter_mut().zip(&mut samples) {
            row.take(samples);
        }
        between(round);
    }
    samples.concat()
}

/// Returns whether this program is to print a single round.
#[must_use]
pub fn is_one_round() -> bool {
    std::env::args().any(|argument| argument == ONE_ROUND)
}

/// Prints a single round of the rows, after a discarded one.
pub fn print(rows: &mut [Row<'_>]) {
    let samples = measure(rows, 1, |_| {});
    let names = rows.iter().flat_map(|row| row.figures.iter().map(|figure| format!("{}{figure}", row.name)));
    for (name, samples) in names.zip(&samples) {
        for state in State::ALL {
            for &figure in samples.of(state) {
                println!("{}", line(&name, state, figure));
            }
        }
    }
    println!("{}", counts_line(machine::counts()));
}

fn counts_line([kept, dropped, given_up]: [usize; 3]) -> String {
    format!("{COUNTS}\t{kept}\t{dropped}\t{given_up}")
}

fn line(name: &str, state: State, figure: f64) -> String {
    format!("{MARK}\t{name}\t{}\t{figure}", state.key())
}

/// Returns the row's name, the state and the figure from each line of [`print`]'s output that has them.
pub fn parse(output: &str) -> impl Iterator<Item = (&str, State, f64)> {
    output.lines().filter_map(|line| {
        let mut fields = line.strip_prefix(MARK)?.split('\t').skip(1);
        Some((fields.next()?, State::from_key(fields.next()?)?, fields.next()?.parse().ok()?))
    })
}

/// Returns how many of a round's timings were kept, dropped and given up, or `None` if the output lacks these numbers.
#[must_use]
pub fn parse_counts(output: &str) -> Option<[usize; 3]> {
    let line = output.lines().find_map(|line| line.strip_prefix(COUNTS))?;
    let counts: Vec<usize> = line.split('\t').skip(1).map(str::parse).collect::<Result<_, _>>().ok()?;
    counts.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_round_are_read_back() {
        let output = format!(
            "a note\n{}\n{}\n{MARK}\tbroken\n{}\n",
            line("raddle: independent, 4,096 variables", State::SameCore, 45.25),
            line("raddle: chain", State::Near, 37.0),
            counts_line([12, 3, 1]),
        );
        let expected =
            [("raddle: independent, 4,096 variables", State::SameCore, 45.25), ("raddle: chain", State::Near, 37.0)];
        assert_eq!(parse(&output).collect::<Vec<_>>(), expected);
        assert_eq!(parse_counts(&output), Some([12, 3, 1]));
        assert_eq!(parse_counts("a note"), None);
    }
}
