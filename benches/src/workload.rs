//! The workloads of the headline table, timed from the first push to the end of the last operation.
//!
//! The non-Rust peers (`external`) run the same workloads, with the same numbers of operations and variables.

use std::{process::Command, time::Instant};

use crate::{
    kernel::{Kernel, Work},
    machine,
    pattern::Pattern,
    runtime::{Raddle, Runtime},
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
    /// The same with five reads.
    Wide6,
    /// The same with eight reads.
    Wide9,
    /// The same with fifteen reads.
    Wide16,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 10] = [
        Self::Independent,
        Self::Chain,
        Self::Readers,
        Self::Random,
        Self::Stencil,
        Self::Operator,
        Self::Wide5,
        Self::Wide6,
        Self::Wide9,
        Self::Wide16,
    ];

    /// Those in which an operation has at most four accesses.
    pub const NARROW: &[Self] = Self::ALL.split_at(6).0;

    /// The others.
    pub const WIDE: &[Self] = Self::ALL.split_at(6).1;

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
            Self::Wide6 => "5 reads + 1 write, 8,192 variables",
            Self::Wide9 => "8 reads + 1 write, 8,192 variables",
            Self::Wide16 => "15 reads + 1 write, 8,192 variables",
        }
    }
}

/// A workload ready to be pushed.
#[derive(Debug)]
pub struct Prepared {
    workload: Workload,
    operations: usize,
    /// The variables used by each operation, if they are chosen at random: those that it reads, and then the one that
    /// it mutates.
    picks: Vec<u32>,
}

const WIDTH: u32 = 16;

/// The number of threads in [`Suite::pushers`], and of each thread's variables.
const PUSHERS: usize = 8;
const OWN: usize = 512;

/// The figures of a backlog, each per operation: the time of the pushes and that of the runs, both of them once more in
/// the same engine, and the resident memory that the first pushes added.
pub const BACKLOG: [&str; 5] = ["push, ns", "drain, ns", "push again, ns", "drain again, ns", "bytes"];

/// Measures [`BACKLOG`] in a new process, in which the engine has pushed nothing yet.
pub fn backlog(raddle: &mut Raddle, workload: Workload, operations: usize) -> Option<[f64; 5]> {
    let each = |start: Instant| start.elapsed().as_nanos() as f64 / operations as f64;
    let mut turn = || {
        let prepared = workload.prepare(raddle, operations)?;
        let gate = raddle.hold();
        let before = machine::resident();
        let start = Instant::now();
        prepared.push(raddle);
        let push = each(start);
        let bytes = (machine::resident() - before) / operations as f64;
        let start = Instant::now();
        gate.complete();
        raddle.wait();
        Some([push, each(start), bytes])
    };
    let ([push, drain, bytes], [push_again, drain_again, _]) = (turn()?, turn()?);
    Some([push, drain, push_again, drain_again, bytes])
}

impl Workload {
    /// Returns how many variables each operation uses, if they are chosen at random.
    fn picks(self) -> Option<usize> {
        match self {
            Self::Random => Some(3),
            Self::Wide5 => Some(5),
            Self::Wide6 => Some(6),
            Self::Wide9 => Some(9),
            Self::Wide16 => Some(16),
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
            Self::Wide5 | Self::Wide6 | Self::Wide9 | Self::Wide16 => 8192,
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
            Workload::Wide5 => wide::<_, 5>(runtime, &self.picks),
            Workload::Wide6 => wide::<_, 6>(runtime, &self.picks),
            Workload::Wide9 => wide::<_, 9>(runtime, &self.picks),
            Workload::Wide16 => wide::<_, 16>(runtime, &self.picks),
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
fn wide<R: Runtime, const COUNT: usize>(runtime: &mut R, picks: &[u32]) {
    for picks in picks.as_chunks::<COUNT>().0 {
        let Some((&write, reads)) = picks.split_last() else { continue };
        runtime.submit(Work::EMPTY, reads, Some(write));
    }
}

/// Pushes one of the threads' operations in [`Suite::pushers`].
#[inline(never)]
fn own<R: Runtime>(runtime: &mut R, operations: usize) {
    for i in 0..operations {
        runtime.submit(Work::EMPTY, &[], Some((i % OWN) as u32));
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

    /// Measures ns per operation for the first `operations` independent operations of a new engine. Returns `None` if
    /// the runtime has no engines.
    fn first_use(&mut self, operations: usize) -> Option<f64>;

    /// Measures ns per operation when eight threads push to 512 variables each. The threads' start is included. Returns
    /// `None` if threads cannot share the runtime.
    fn pushers(&mut self, operations: usize) -> Option<f64>;

    /// Returns a program that prints [`BACKLOG`], if its arguments are a number of operations and
    /// [`name_of`](crate::external::name_of) the workload. Returns `None` if the runtime has none.
    fn backlog(&self) -> Option<Command>;

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

    fn first_use(&mut self, operations: usize) -> Option<f64> {
        self.another(true)?.time(Workload::Independent, operations)
    }

    fn pushers(&mut self, operations: usize) -> Option<f64> {
        let mut all = (0..PUSHERS).map(|_| self.another(false)).collect::<Option<Vec<R>>>()?;
        all.iter_mut().for_each(|one| one.make_variables(OWN));
        let start = Instant::now();
        std::thread::scope(|scope| {
            for one in &mut all {
                scope.spawn(move || own(one, operations / PUSHERS));
            }
        });
        self.wait();
        Some(start.elapsed().as_nanos() as f64 / (operations / PUSHERS * PUSHERS) as f64)
    }

    fn backlog(&self) -> Option<Command> {
        Runtime::backlog(self)
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
