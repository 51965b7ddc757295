//! The workloads of the headline table, timed from the first push to the end of the last operation.
//!
//! The non-Rust peers (`external`) run the same workloads, with the same numbers of operations and variables.

use std::time::Instant;

use crate::{
    kernel::{Kernel, Work},
    pattern::Pattern,
    runtime::Runtime,
};

/// A pattern of dependences between empty operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Each operation mutates one of 4,096 variables, in turn.
    Independent,
    /// All operations mutate the same variable.
    Chain,
    /// One operation mutates the variable, and fifteen read it, repeatedly.
    Readers,
    /// Each operation reads two of 1,024 variables and mutates a third; all three are chosen at random.
    Random,
    /// Task Bench's stencil, 16 columns wide: each operation has three reads (two at the edges) and one mutation.
    Stencil,
    /// The chain, pushed through an operator created once. Few engines have operators.
    Operator,
    /// Each operation reads four of 8,192 variables and mutates a fifth; all are chosen at random.
    Wide5,
    /// The same with eight reads.
    Wide9,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 8] = [
        Self::Independent,
        Self::Chain,
        Self::Readers,
        Self::Random,
        Self::Stencil,
        Self::Operator,
        Self::Wide5,
        Self::Wide9,
    ];

    /// Returns the name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Independent => "independent, 4,096 variables",
            Self::Chain => "chain",
            Self::Readers => "1 writer + 15 readers",
            Self::Random => "2 reads + 1 write, 1,024 variables",
            Self::Stencil => "stencil, width 16",
            Self::Operator => "prebuilt operator, chain",
            Self::Wide5 => "4 reads + 1 write, 8,192 variables",
            Self::Wide9 => "8 reads + 1 write, 8,192 variables",
        }
    }
}

/// A workload ready to be pushed.
#[derive(Debug)]
pub struct Prepared {
    workload: Workload,
    operations: usize,
    /// The variables used by each operation, if they are chosen at random: those that it reads, and then the one that it
    /// mutates.
    picks: Vec<u32>,
}

const WIDTH: u32 = 16;

impl Workload {
    /// Returns how many variables each operation uses, if they are chosen at random.
    fn picks(self) -> Option<usize> {
        match self {
            Self::Random => Some(3),
            Self::Wide5 => Some(5),
            Self::Wide9 => Some(9),
            _ => None,
        }
    }

    /// Creates the variables and does all other untimed work. Returns `None` if the runtime does not support the
    /// workload.
    pub fn prepare<R: Runtime>(self, runtime: &mut R, operations: usize) -> Option<Prepared> {
        let variables = match self {
            Self::Independent => 4096,
            Self::Chain | Self::Readers | Self::Operator => 1,
            Self::Random => 1024,
            Self::Wide5 | Self::Wide9 => 8192,
            Self::Stencil => 2 * WIDTH,
        };
        runtime.make_variables(variables as usize);
        if self == Self::Operator && !runtime.describe_operator() {
            return None;
        }
        let mut picks = vec![];
        if let Some(count) = self.picks() {
            let mut state = 42u64;
            let mut random = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u32 % variables
            };
            while picks.len() < operations * count {
                let chosen: Vec<u32> = (0..count).map(|_| random()).collect();
                if (1..count).all(|at| !chosen[..at].contains(&chosen[at])) {
                    picks.extend(chosen);
                }
            }
        }
        Some(Prepared { workload: self, operations, picks })
    }
}

impl Prepared {
    /// Pushes all operations and returns their number.
    pub fn push<R: Runtime>(&self, runtime: &mut R) -> usize {
        match self.workload {
            Workload::Independent => {
                for i in 0..self.operations {
                    runtime.submit(Work::EMPTY, &[], Some((i % 4096) as u32));
                }
            }
            Workload::Chain => {
                for _ in 0..self.operations {
                    runtime.submit(Work::EMPTY, &[], Some(0));
                }
            }
            Workload::Readers => {
                for i in 0..self.operations {
                    if i % 16 == 0 {
                        runtime.submit(Work::EMPTY, &[], Some(0));
                    } else {
                        runtime.submit(Work::EMPTY, &[0], None);
                    }
                }
            }
            Workload::Random => {
                // The numbers of variables are constants for `submit`, as at a place in a program that pushes.
                for picks in self.picks.chunks_exact(3) {
                    let &[a, b, c] = picks else { continue };
                    runtime.submit(Work::EMPTY, &[a, b], Some(c));
                }
            }
            Workload::Wide5 => wide5(runtime, &self.picks),
            Workload::Wide9 => wide9(runtime, &self.picks),
            Workload::Stencil => return stencil(runtime, self.operations),
            Workload::Operator => {
                for _ in 0..self.operations {
                    runtime.push_operator();
                }
            }
        }
        self.operations
    }
}

// In functions of their own, since the compiler would otherwise treat the other workloads differently as well.

#[inline(never)]
fn wide5<R: Runtime>(runtime: &mut R, picks: &[u32]) {
    for picks in picks.chunks_exact(5) {
        let &[a, b, c, d, e] = picks else { continue };
        runtime.submit(Work::EMPTY, &[a, b, c, d], Some(e));
    }
}

#[inline(never)]
fn wide9<R: Runtime>(runtime: &mut R, picks: &[u32]) {
    for picks in picks.chunks_exact(9) {
        let &[a, b, c, d, e, f, g, h, i] = picks else { continue };
        runtime.submit(Work::EMPTY, &[a, b, c, d, e, f, g, h], Some(i));
    }
}

fn stencil<R: Runtime>(runtime: &mut R, operations: usize) -> usize {
    // 5,000 steps correspond to 100,000 operations in the other workloads.
    let steps = (operations as u32 * 4 / 5 / WIDTH).max(1);
    for step in 0..steps {
        let (current, previous) = ((step & 1) * WIDTH, ((step + 1) & 1) * WIDTH);
        for i in 0..WIDTH {
            let at = previous + i;
            let write = Some(current + i);
            if i == 0 {
                runtime.submit(Work::EMPTY, &[at, at + 1], write);
            } else if i == WIDTH - 1 {
                runtime.submit(Work::EMPTY, &[at - 1, at], write);
            } else {
                runtime.submit(Work::EMPTY, &[at - 1, at, at + 1], write);
            }
        }
    }
    (WIDTH * steps) as usize
}

/// The time and the size of a graph's run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// From the first push to the end of the last operation, in ns.
    pub ns: f64,
    /// The number of operations.
    pub operations: usize,
}

impl Run {
    /// Returns the time per operation, in ns.
    #[must_use]
    pub fn each(&self) -> f64 {
        self.ns / self.operations as f64
    }
}

/// A [`Runtime`] with the benchmarks' measurements.
pub trait Suite {
    /// Returns the runtime's name in tables.
    fn title(&self) -> String;

    /// Returns [`Runtime::is_serial`].
    fn is_serial(&self) -> bool;

    /// Measures ns per operation, including push and run. Returns `None` if the runtime does not support the workload.
    fn time(&mut self, workload: Workload, operations: usize) -> Option<f64>;

    /// Runs a Task Bench graph, with fewer steps if the runtime limits the number of operations.
    fn graph(&mut self, pattern: &Pattern, steps: usize, kernel: Kernel, iterations: u32) -> Run;
}

impl<R: Runtime> Suite for R {
    fn title(&self) -> String {
        self.name().into()
    }

    fn is_serial(&self) -> bool {
        Runtime::is_serial(self)
    }

    fn time(&mut self, workload: Workload, operations: usize) -> Option<f64> {
        let prepared = workload.prepare(self, self.at_most(operations))?;
        let start = Instant::now();
        let operations = prepared.push(self);
        self.wait();
        Some(start.elapsed().as_nanos() as f64 / operations as f64)
    }

    fn graph(&mut self, pattern: &Pattern, steps: usize, kernel: Kernel, iterations: u32) -> Run {
        let steps = (self.at_most(steps * pattern.width) / pattern.width).max(1);
        self.make_variables(pattern.variables());
        let mut operations = 0;
        let start = Instant::now();
        for step in 0..steps {
            for point in pattern.dependence.points(step, steps, pattern.width) {
                let work = Work { kernel, iterations, step: step as u32, column: point as u32 };
                self.submit(work, pattern.reads(step, point), pattern.write(step, point));
                operations += 1;
            }
        }
        self.wait();
        Run { ns: start.elapsed().as_nanos() as f64, operations }
    }
}
