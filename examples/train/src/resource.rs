//! Random generators and temporary space: what operations need besides arrays.
//!
//! Each of these resources is a variable that operations *mutate*. So two operations never use one concurrently, and
//! push order decides which numbers each operation draws: results do not depend on the number of workers. Several of
//! each kind are handed out in turn, so that operations need not wait for each other.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use raddle::{Device, Engine, Var};

use crate::{
    error::Error,
    storage::{Chunk, Pool},
};

/// The number of a runtime's generators, and of its temporary spaces. Not tuned.
const COPIES: usize = 4;

/// A random generator: `SplitMix64`, by Steele, Lea and Flood.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator for a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a new generator for one operation, whose GPU kernel may run after the next operation has begun.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// Returns a number in `0.0..1.0`.
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (((self.next() >> 32) * bound as u64) >> 32) as usize
    }

    /// Returns a normally distributed number, by the Box–Muller transform.
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.uniform()).cos()
    }
}

/// The resources of one runtime.
#[derive(Debug)]
pub struct Resources {
    generators: Vec<Var<Random>>,
    next_generator: AtomicUsize,
    temporary: Mutex<(usize, [Option<Arc<Chunk>>; COPIES])>,
}

impl Resources {
    /// Creates resources, with generators seeded from `seed`.
    pub fn new(engine: &Engine, seed: u64) -> Self {
        let mut seeds = Random::new(seed);
        let generators = (0..COPIES).map(|_| engine.var(seeds.fork()).named("random")).collect();
        Self { generators, next_generator: AtomicUsize::new(0), temporary: Mutex::default() }
    }

    /// Returns the next generator, for an operation to mutate.
    pub fn random(&self) -> Var<Random> {
        // Relaxed: the numbers only need to be distinct; a program pushing from one thread gets the same numbers in
        // every run.
        self.generators[self.next_generator.fetch_add(1, Relaxed) % COPIES].clone()
    }

    /// Returns temporary space for at least `len` values, for an operation to mutate.
    ///
    /// # Errors
    /// The GPU is out of memory.
    pub fn temporary(
        &self,
        engine: &Engine,
        device: Device,
        pool: &Arc<Pool>,
        len: usize,
    ) -> Result<Arc<Chunk>, Error> {
        let mut temporary = self.temporary.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, spaces) = &mut *temporary;
        *next = (*next + 1) % COPIES;
        match &spaces[*next] {
            Some(space) if space.len() >= len => Ok(Arc::clone(space)),
            // A smaller space is replaced and is deleted after the operations that use it.
            _ => Ok(Arc::clone(spaces[*next].insert(Arc::new(Chunk::new(engine, device, pool, len)?)))),
        }
    }
}
