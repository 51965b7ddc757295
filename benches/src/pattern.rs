//! Task Bench's dependence types, as defined in E. Slaughter et al., *Task Bench: A Parameterized Benchmark for
//! Evaluating Parallel Runtime Performance*, SC 2020.
//!
//! A graph has `steps` steps of at most `width` points. A point depends on some points of the previous step. Each
//! column has two variables, one for even and one for odd steps; a point reads the variables of its dependences and
//! mutates its own.

/// The maximum number of dependences of a point, for the types with a radix.
const RADIX: usize = 5;
/// The period of `Spread` and `RandomNearest`, in steps.
const PERIOD: usize = 3;

/// A dependence type: which points of the previous step a point depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependence {
    /// No dependences, not even between a column's steps: operations declare no variables.
    Trivial,
    /// On the point's own column.
    NoComm,
    /// On the point's own column and its neighbours.
    Stencil1d,
    /// Like `Stencil1d`, but in a ring.
    Stencil1dPeriodic,
    /// On the point's own column and its left neighbour; as in a sweep, steps grow from one point and shrink at the
    /// end.
    Dom,
    /// On the parent in a binary tree, which grows by a level per step until it is as wide as the graph.
    Tree,
    /// On the point's own column and the two `2^k` columns away, where `k` changes from step to step.
    Fft,
    /// On all points.
    AllToAll,
    /// On the five nearest points, or fewer at the edges.
    Nearest,
    /// On the point's own column and up to four others, spread over the width, which change from step to step.
    Spread,
    /// On the point's own column and some of the five nearest, chosen at random.
    RandomNearest,
}

impl Dependence {
    /// All dependence types.
    pub const ALL: [Self; 11] = [
        Self::Trivial,
        Self::NoComm,
        Self::Stencil1d,
        Self::Stencil1dPeriodic,
        Self::Dom,
        Self::Tree,
        Self::Fft,
        Self::AllToAll,
        Self::Nearest,
        Self::Spread,
        Self::RandomNearest,
    ];

    /// Returns the name in Task Bench.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Trivial => "trivial",
            Self::NoComm => "no_comm",
            Self::Stencil1d => "stencil_1d",
            Self::Stencil1dPeriodic => "stencil_1d_periodic",
            Self::Dom => "dom",
            Self::Tree => "tree",
            Self::Fft => "fft",
            Self::AllToAll => "all_to_all",
            Self::Nearest => "nearest",
            Self::Spread => "spread",
            Self::RandomNearest => "random_nearest",
        }
    }

    /// Returns the period of the dependences, in steps.
    fn period(self, width: usize) -> usize {
        match self {
            Self::Fft => width.next_power_of_two().trailing_zeros().max(1) as usize,
            Self::Spread | Self::RandomNearest => PERIOD,
            _ => 1,
        }
    }

    /// Returns the points on which `point` depends in steps at position `phase` of the period.
    fn of(self, phase: usize, point: usize, width: usize) -> Vec<usize> {
        let around = |left: usize, right: usize| point.saturating_sub(left)..=(point + right).min(width - 1);
        match self {
            Self::Trivial => vec![],
            Self::NoComm => vec![point],
            Self::Stencil1d => around(1, 1).collect(),
            Self::Stencil1dPeriodic => vec![(point + width - 1) % width, point, (point + 1) % width],
            Self::Dom => around(1, 0).collect(),
            Self::Tree => vec![point / 2],
            Self::Fft => {
                let distance = 1 << phase;
                let all = [point.checked_sub(distance), Some(point), Some(point + distance)];
                all.into_iter().flatten().filter(|&other| other < width).collect()
            }
            Self::AllToAll => (0..width).collect(),
            Self::Nearest => around(RADIX / 2, (RADIX - 1) / 2).collect(),
            Self::Spread => {
                let mut all: Vec<_> =
                    (0..RADIX).map(|k| (point + k * width / RADIX + if k > 0 { phase } else { 0 }) % width).collect();
                all.sort_unstable();
                all.dedup();
                all
            }
            Self::RandomNearest => {
                let mut seed = 0x2545_f491_4f6c_dd1d ^ (phase << 16 | point) as u64;
                around(RADIX / 2, (RADIX - 1) / 2)
                    .filter(|&other| {
                        seed = (seed ^ (seed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(other as u64);
                        other == point || (seed >> 40) & 1 == 0
                    })
                    .collect()
            }
        }
    }

    /// Returns the points of a step.
    #[must_use]
    pub fn points(self, step: usize, steps: usize, width: usize) -> std::ops::Range<usize> {
        match self {
            Self::Dom => {
                let first = (step + width).saturating_sub(steps);
                first..first + width.min(step + 1).min(steps - step)
            }
            Self::Tree if step < width.ilog2() as usize => 0..1 << step,
            _ => 0..width,
        }
    }
}

/// A graph's dependences, computed in advance as variables to read.
#[derive(Debug)]
pub struct Pattern {
    /// The dependence type.
    pub dependence: Dependence,
    /// The number of columns.
    pub width: usize,
    /// The variables read by each point, indexed by the step's position in the period, the step's parity, and the
    /// point.
    reads: Vec<[Vec<Vec<u32>>; 2]>,
}

impl Pattern {
    /// Computes the dependences of a graph of this type.
    #[must_use]
    pub fn new(dependence: Dependence, width: usize) -> Self {
        let variables = |phase, first: usize| -> Vec<Vec<u32>> {
            (0..width)
                .map(|point| {
                    let points = dependence.of(phase, point, width).into_iter();
                    points.map(|point| (first + point) as u32).collect()
                })
                .collect()
        };
        // An even step writes the first half of the variables and reads the second.
        let reads = |phase| [variables(phase, width), variables(phase, 0)];
        Self { dependence, width, reads: (0..dependence.period(width)).map(reads).collect() }
    }

    /// Returns the graph's number of variables.
    #[must_use]
    pub fn variables(&self) -> usize {
        2 * self.width
    }

    /// Returns the variables read by a point.
    #[must_use]
    pub fn reads(&self, step: usize, point: usize) -> &[u32] {
        &self.reads[step % self.reads.len()][step % 2][point]
    }

    /// Returns the variable mutated by a point.
    #[must_use]
    pub fn write(&self, step: usize, point: usize) -> Option<u32> {
        (self.dependence != Dependence::Trivial).then_some(((step % 2) * self.width + point) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_depend_on_existing_points_and_on_none_twice() {
        for dependence in Dependence::ALL {
            for width in [1, 2, 5, 16] {
                let pattern = Pattern::new(dependence, width);
                for step in 0..40 {
                    for point in dependence.points(step, 40, width) {
                        let reads = pattern.reads(step, point);
                        let half = if step % 2 == 0 { width..2 * width } else { 0..width };
                        assert!(reads.iter().all(|&v| half.contains(&(v as usize))), "{dependence:?} {step} {point}");
                        let mut unique = reads.to_vec();
                        unique.sort_unstable();
                        unique.dedup();
                        let ring = dependence == Dependence::Stencil1dPeriodic && width < 3;
                        assert!(ring || unique.len() == reads.len(), "{dependence:?} {step} {point}: {reads:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_tree_and_a_sweep_grow_from_one_point() {
        assert_eq!(Dependence::Tree.points(0, 40, 16), 0..1);
        assert_eq!(Dependence::Tree.points(3, 40, 16), 0..8);
        assert_eq!(Dependence::Tree.points(4, 40, 16), 0..16);
        assert_eq!(Dependence::Dom.points(0, 40, 16), 0..1);
        assert_eq!(Dependence::Dom.points(20, 40, 16), 0..16);
        assert_eq!(Dependence::Dom.points(39, 40, 16), 15..16);
    }

    #[test]
    fn nearest_and_spread_read_five_points_and_fft_reads_two() {
        assert_eq!(Pattern::new(Dependence::Nearest, 16).reads(1, 8), [6, 7, 8, 9, 10]);
        assert_eq!(Pattern::new(Dependence::Spread, 16).reads(1, 0).len(), 5);
        assert_eq!(Pattern::new(Dependence::Fft, 16).reads(3, 5), [5, 13]);
    }
}
