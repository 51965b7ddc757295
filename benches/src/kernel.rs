//! The operations' work: Task Bench's kernels, on one core and without output.

use std::{
    hint::black_box,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// The number of 64-byte lines of scratch memory per column: 4 MiB, so that sixteen columns exceed the caches.
const LINES: usize = 1 << 16;
const COLUMNS: usize = 16;
const WORDS_PER_LINE: usize = 8;

static SCRATCH: LazyLock<Box<[AtomicU64]>> =
    LazyLock::new(|| (0..LINES * COLUMNS * WORDS_PER_LINE).map(|word| AtomicU64::new(word as u64)).collect());

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// No work.
    Empty,
    /// One floating-point multiplication and one addition per iteration, each dependent on the previous one.
    Compute,
    /// One 64-byte line read and written per iteration, in memory outside the caches.
    Memory,
    /// Like `Compute`, but with between zero and twice the given iterations, uniformly distributed by a hash of step
    /// and column.
    Imbalanced,
}

impl Kernel {
    /// Returns the name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Compute => "compute-bound",
            Self::Memory => "memory-bound",
            Self::Imbalanced => "load-imbalanced",
        }
    }
}

/// One operation's work.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The kind of work.
    pub kernel: Kernel,
    /// The number of iterations.
    pub iterations: u32,
    /// The operation's step.
    pub step: u32,
    /// The operation's column.
    pub column: u32,
}

impl Work {
    /// No work.
    pub const EMPTY: Self = Self { kernel: Kernel::Empty, iterations: 0, step: 0, column: 0 };

    /// Does the work.
    #[inline]
    pub fn run(self) {
        match self.kernel {
            Kernel::Empty => {}
            Kernel::Compute => compute(self.iterations),
            Kernel::Memory => self.stream(),
            Kernel::Imbalanced => {
                // The finalizer of Splitmix64: any good hash would do.
                let mut x = (u64::from(self.step) << 32 | u64::from(self.column)).wrapping_add(0x9e37_79b9_7f4a_7c15);
                x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                let part = (x ^ (x >> 31)) >> 32; // of 2^32
                compute(((u64::from(self.iterations) * 2 * part) >> 32) as u32);
            }
        }
    }

    #[inline(never)]
    fn stream(self) {
        let column = self.column as usize % COLUMNS;
        let start = self.step as usize * self.iterations as usize;
        for line in start..start + self.iterations as usize {
            let word = &SCRATCH[(column * LINES + line % LINES) * WORDS_PER_LINE];
            // Relaxed: the value is never used; the access only generates memory traffic.
            let value = word.load(Ordering::Relaxed);
            word.store(value ^ 1, Ordering::Relaxed); // Relaxed: the value is never used.
        }
    }
}

/// Runs the loop of the compute-bound kernel, which the non-Rust peers also run.
#[inline(never)]
pub fn compute(iterations: u32) {
    let mut x = 1.0 + 1e-9 * f64::from(iterations & 7);
    for _ in 0..iterations {
        x = x * 0.999_999_999 + 1e-9;
    }
    black_box(x);
}

/// Returns the time of one operation's kernel, in ns: the mean of many runs on this thread.
#[must_use]
pub fn serial_ns(kernel: Kernel, iterations: u32) -> f64 {
    let steps = (2_000_000 / (u64::from(iterations) + 1) / COLUMNS as u64).max(20) as u32;
    if kernel == Kernel::Memory {
        LazyLock::force(&SCRATCH);
    }
    let start = Instant::now();
    for step in 0..steps {
        for column in 0..COLUMNS as u32 {
            Work { kernel, iterations, step, column }.run();
        }
    }
    start.elapsed().as_nanos() as f64 / (f64::from(steps) * COLUMNS as f64)
}
