//! The engine's targets, and how far the last full run was from them.

use std::path::Path;

use crate::{
    report::{Figures, Table, grouped, key, number},
    state::State,
};

/// A figure that the engine should achieve with the cores near each other.
struct Target {
    name: &'static str,
    /// In ns, except for the ratio.
    target: f64,
    /// The benchmark, table, row and column of the figure.
    source: [&'static str; 4],
    /// In ns, except for the ratio.
    floor: &'static str,
    distance: &'static str,
}

const SPINS: &str = "push to start, worker spins, 100,000 a second";

/// The targets, in table order.
const TARGETS: [Target; 9] = [
    Target {
        name: "independent, 4,096 variables",
        target: 60.0,
        source: ["push_run", "ns", "raddle", "independent, 4,096 variables"],
        floor: "24 / 41 / 58 (2 lines)",
        distance: "The pushing thread needs all of this time: for about 320 instructions, among them 6 that lock \
                   memory, and for lines that come from the worker's core, namely that of the variable's last \
                   operation and those of the new operation's record. Without one of the 6, pushes took as long.",
    },
    Target {
        name: "chain",
        target: 35.0,
        source: ["push_run", "ns", "raddle", "chain"],
        floor: "24 / 41 / 58 (2 lines); 9 / 29 / 39 (1 line)",
        distance: "The instructions of the push and of the run, about 225 and 250, and the lines on their way back to \
                   the pushing thread. Where the worker is behind, it prefetches records ahead; where it has caught \
                   up, it waits for the line that the pushing thread is writing. Below 41, a record of one line is \
                   needed.",
    },
    Target {
        name: "1 writer + 15 readers",
        target: 40.0,
        source: ["push_run", "ns", "raddle", "1 writer + 15 readers"],
        floor: "24 / 41 / 58 (2 lines)",
        distance: "The worker needs this time: of the 393 instructions of a run, 144 more than the chain's, 53 pass \
                   the flags from reader to reader, and 46 move the readers into its deque and out of it, so that \
                   others can steal them. One count for the whole group of readers would save the first, about a \
                   third of the difference. The push alone, about 230 instructions, takes 66 ns.",
    },
    Target {
        name: "2 reads + 1 write, 1,024 variables",
        target: 120.0,
        source: ["push_run", "ns", "raddle", "2 reads + 1 write, 1,024 variables"],
        floor: "24–45 / 41–50 / 58–72 (3 lines)",
        distance: "The pushing thread needs all of this time: for about 540 instructions, among them 11 that lock \
                   memory, and for lines that come from the worker's core: three or four of the variables' last \
                   operations and three of the record. These lines are prefetched, but too late to hide the whole wait.",
    },
    Target {
        name: "stencil, width 16",
        target: 120.0,
        source: ["push_run", "ns", "raddle", "stencil, width 16"],
        floor: "45 / 50 / 72 (4 lines)",
        distance: "A push over four variables makes 11 to 16 atomic updates, and a run up to 15.",
    },
    Target {
        name: "prebuilt operator, chain",
        target: 30.0,
        source: ["push_run", "ns", "raddle", "prebuilt operator, chain"],
        floor: "24 / 41 / 58 (2 lines); 9 / 29 / 39 (1 line)",
        distance: "As for the chain. The operator's accesses are known in advance, yet each push writes them into the \
                   record.",
    },
    Target {
        name: "METG(50%), stencil",
        target: 250.0,
        source: ["push_run", "ns", "raddle", "METG(50%), stencil"],
        floor: "the stencil's row",
        distance: "At 50 % efficiency of two cores, the time per operation equals the kernel's, so METG cannot be \
                   below the cost of an empty operation. The pushing thread takes one of the cores from the workers.",
    },
    Target {
        name: "push to start, p50, worker spins",
        target: 250.0,
        source: ["latency", "idle", SPINS, "p50"],
        floor: "30–45 for the hand-over, and a reading of the clock",
        distance: "The push itself, the injector's line, which moves to the worker, and the record's lines, which \
                   follow one after the other.",
    },
    Target {
        name: "push to start, p99 by the empty loop's p99",
        target: 1.5,
        source: ["latency", "disturbance", SPINS, "p99 by the empty loop's p99"],
        floor: "1.00",
        distance: "A disturbance of the worker's core delays an operation as much as a disturbance of the pushing core \
                   does, but only the latter affects the empty loop.",
    },
];

/// Returns the table of targets. The measured figures are those written to `results` by the last full runs.
#[must_use]
pub fn table(results: &Path) -> String {
    render(|bench| Figures::read(results, bench).unwrap_or_default())
}

fn render(figures: impl Fn(&str) -> Figures) -> String {
    let columns = ["row", "target, ns", "measured near, median, ns", "floor, ns", "what the distance consists of"];
    let mut table = Table::new("targets", "", "", &columns);
    for target in &TARGETS {
        let [bench, of, row, column] = target.source;
        let measured = figures(bench).find(&key(of, State::Near), row, column);
        let wanted = grouped(target.target, if target.target.fract() == 0.0 { 0 } else { 1 });
        table.row(target.name, [wanted.into(), number(measured), target.floor.into(), target.distance.into()]);
    }
    table.markdown()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Figure;

    #[test]
    fn the_table_has_the_figures_of_the_near_state_and_a_dash_for_others() {
        let figures = |bench: &str| {
            let figure = |table: &str, column: &str, value| Figure {
                table: table.into(),
                row: "raddle".into(),
                column: column.into(),
                value,
                samples: 12,
            };
            match bench {
                "push_run" => Figures {
                    all: vec![figure("ns_near", "chain", 37.0), figure("ns_far", "stencil, width 16", 365.0)],
                    ..Figures::default()
                },
                _ => Figures::default(),
            }
        };
        let table = render(figures);
        assert!(table.contains("| chain | 35 | 37 |"), "{table}");
        assert!(table.contains("| stencil, width 16 | 120 | – |"), "{table}");
        assert!(table.contains("p99 by the empty loop's p99 | 1.5 | – |"), "{table}");
    }
}
