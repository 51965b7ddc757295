//! A device with its memory, random generators and temporary space: where arrays live, and what operations need besides
//! arrays.
//!
//! Generators and temporary space are variables that operations *mutate*. So two operations never use the same one
//! concurrently, and push order decides which numbers each operation draws: results do not depend on the number of
//! workers. A runtime has several generators and several temporary spaces, and hands them out in turn, so that
//! successive operations can run at the same time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use raddle::{Device, Engine, Var};

use crate::storage::{Chunk, Pool, Statistics};
use crate::{Error, random::Random};

/// The number of a runtime's generators, and of its temporary spaces. Not tuned.
const COPIES: usize = 4;

/// The pools of an engine's devices.
type Pools = Arc<Mutex<HashMap<Device, Arc<Pool>>>>;

/// An engine's device, with its memory, random generators and temporary space.
///
/// A device may have several runtimes, each with its own generators and temporary space. A runtime and those created
/// [beside](Self::beside) it use the same memory pool for each device.
#[derive(Debug)]
pub struct Runtime {
    engine: Engine,
    device: Device,
    is_cuda: bool,
    pool: Arc<Pool>,
    pools: Pools,
    generators: Vec<Var<Random>>,
    next_generator: AtomicUsize,
    temporary: Mutex<(usize, [Option<Arc<Chunk>>; COPIES])>,
    /// For a GPU, a runtime of the host, through which values move to and from the GPU.
    host: Option<Arc<Self>>,
}

impl Runtime {
    /// Creates a runtime for one of the engine's devices, with generators seeded from `seed`. For a GPU, and with the
    /// feature `cuda`, this call waits for an operation that determines whether the GPU is a CUDA device.
    pub fn new(engine: &Engine, device: Device, seed: u64) -> Arc<Self> {
        Self::with_pools(engine, device, seed, &Pools::default())
    }

    /// Creates another runtime for one of the engine's devices. It uses the same memory pools as this runtime.
    pub fn beside(&self, device: Device, seed: u64) -> Arc<Self> {
        Self::with_pools(&self.engine, device, seed, &self.pools)
    }

    fn with_pools(engine: &Engine, device: Device, seed: u64, pools: &Pools) -> Arc<Self> {
        #[cfg(feature = "cuda")]
        let is_cuda = crate::cuda::is_cuda(engine, device);
        #[cfg(not(feature = "cuda"))]
        let is_cuda = false;
        let pool = Arc::clone(pools.lock().unwrap_or_else(PoisonError::into_inner).entry(device).or_default());
        let mut seeds = Random::new(seed);
        Arc::new(Self {
            engine: engine.clone(),
            device,
            is_cuda,
            pool,
            pools: Arc::clone(pools),
            generators: (0..COPIES).map(|_| engine.var(seeds.fork()).named("random")).collect(),
            next_generator: AtomicUsize::new(0),
            temporary: Mutex::default(),
            host: (device != Device::Cpu).then(|| Self::with_pools(engine, Device::Cpu, seed, pools)),
        })
    }

    /// Returns a runtime of the host: this runtime if its device is the host, and otherwise the one that it owns.
    pub fn host(self: &Arc<Self>) -> Arc<Self> {
        Arc::clone(self.host.as_ref().unwrap_or(self))
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns whether the device is a CUDA device. Arrays there can be created from values on the host, copied and
    /// multiplied; other operations are [unavailable](Error::Unavailable).
    pub fn is_cuda(&self) -> bool {
        self.is_cuda
    }

    /// Returns the memory pool's statistics.
    pub fn statistics(&self) -> Statistics {
        self.pool.statistics()
    }

    /// Allocates memory for `len` values.
    ///
    /// # Errors
    /// There are too many values for any memory; the GPU is out of memory.
    pub fn allocate(&self, len: usize) -> Result<Arc<Chunk>, Error> {
        Ok(Arc::new(Chunk::new(&self.engine, self.device, &self.pool, len)?))
    }

    /// Returns the next generator, for an operation to mutate.
    pub fn random(&self) -> Var<Random> {
        // Relaxed: calls need only get different values of the counter. A program that calls this function from one
        // thread gets the same generators in every run.
        self.generators[self.next_generator.fetch_add(1, Relaxed) % COPIES].clone()
    }

    /// Returns temporary space for at least `len` values, for an operation to mutate.
    ///
    /// # Errors
    /// There are too many values for any memory; the GPU is out of memory.
    pub fn temporary(&self, len: usize) -> Result<Arc<Chunk>, Error> {
        let mut temporary = self.temporary.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, spaces) = &mut *temporary;
        *next = (*next + 1) % COPIES;
        match &spaces[*next] {
            Some(space) if space.len() >= len => Ok(Arc::clone(space)),
            // A space that is too small is replaced, and is deleted after the operations that use it.
            _ => Ok(Arc::clone(spaces[*next].insert(self.allocate(len)?))),
        }
    }
}
