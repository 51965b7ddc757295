//! A device with its memory and resources: where arrays live.

use std::sync::Arc;

use raddle::{Device, Engine};

use crate::{
    error::Error,
    resource::Resources,
    storage::{Chunk, Pool, Statistics},
};

/// An engine's device, with its memory, random generators and temporary space.
///
/// A device may have several runtimes, each with its own generators.
#[derive(Debug)]
pub struct Runtime {
    engine: Engine,
    device: Device,
    is_cuda: bool,
    pool: Arc<Pool>,
    resources: Resources,
    /// The host's runtime, through which values move to and from a GPU.
    host: Option<Arc<Self>>,
}

impl Runtime {
    /// Creates a runtime for one of the engine's devices. With the feature `cuda`, it waits for an operation that asks
    /// a GPU whether it is a CUDA device.
    pub fn new(engine: &Engine, device: Device, seed: u64) -> Arc<Self> {
        let resources = Resources::new(engine, seed);
        let host = (device != Device::Cpu).then(|| Self::new(engine, Device::Cpu, seed));
        #[cfg(feature = "cuda")]
        let is_cuda = crate::cuda::is_cuda(engine, device);
        #[cfg(not(feature = "cuda"))]
        let is_cuda = false;
        Arc::new(Self { engine: engine.clone(), device, is_cuda, pool: Arc::default(), resources, host })
    }

    /// Returns a runtime of the host: this runtime or the host runtime that it owns.
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

    /// Returns the generators and the temporary space.
    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// Returns the memory pool's statistics.
    pub fn statistics(&self) -> Statistics {
        self.pool.statistics()
    }

    /// Allocates memory for `len` values.
    ///
    /// # Errors
    /// The GPU is out of memory.
    pub fn allocate(&self, len: usize) -> Result<Arc<Chunk>, Error> {
        Ok(Arc::new(Chunk::new(&self.engine, self.device, &self.pool, len)?))
    }

    /// Returns temporary space for at least `len` values, for an operation to mutate.
    ///
    /// # Errors
    /// The GPU is out of memory.
    pub fn temporary(&self, len: usize) -> Result<Arc<Chunk>, Error> {
        self.resources.temporary(&self.engine, self.device, &self.pool, len)
    }
}
