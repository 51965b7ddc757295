//! Memory: one variable for each piece, backed by a pool.
//!
//! | here | in the engine |
//! |---|---|
//! | [`Chunk`] | one variable, whose value is the memory |
//! | freeing | once the last handle has been dropped and every operation on the variable is complete, the value is dropped, which returns the memory to the pool |
//! | GPU memory | a variable with a [`DeviceVec`]; the pool belongs to the engine's driver, and the deletion of the variable updates the statistics |
//!
//! The drop of an array does not wait: a program may drop an array right after pushing an operation on it.

use std::sync::{Arc, Mutex, PoisonError};
use std::{collections::BTreeMap, fmt};

use raddle::{Device, Engine, OpContext, Token, Var, WeakEngine, gpu::DeviceVec};

use crate::Error;

/// The largest number of values in a piece of memory: the number of bytes, rounded up to a power of two, must fit in an
/// `isize`.
const MOST: usize = isize::MAX as usize / 16;

/// Statistics of a pool, in bytes and in numbers of pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes in use.
    pub live: usize,
    /// The maximum number of bytes that were in use at the same time.
    pub peak: usize,
    /// Bytes kept for reuse.
    pub kept: usize,
    /// The number of pieces of host memory allocated. For a GPU, whose driver has its own pool and counts, this number,
    /// `kept` and `reused` are 0.
    pub allocated: u64,
    /// The number of times that a kept piece of host memory was used again.
    pub reused: u64,
}

impl Statistics {
    fn count_use(&mut self, bytes: usize) {
        self.live += bytes;
        self.peak = self.peak.max(self.live);
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [live, peak, kept] = [self.live, self.peak, self.kept].map(|bytes| bytes >> 10);
        write!(f, "{live} KiB in use, at most {peak} KiB, {kept} KiB kept; ")?;
        write!(f, "{} pieces allocated, {} reused", self.allocated, self.reused)
    }
}

#[derive(Debug, Default)]
struct State {
    statistics: Statistics,
    free: BTreeMap<usize, Vec<Box<[f32]>>>,
}

/// A device's memory pool.
#[derive(Debug, Default)]
pub struct Pool(Mutex<State>);

impl Pool {
    /// Returns the statistics of the pool.
    pub fn statistics(&self) -> Statistics {
        self.update(|state| state.statistics)
    }

    fn update<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a piece of at least `len` values. Its contents are unspecified.
    fn take(&self, len: usize) -> Box<[f32]> {
        let size = len.next_power_of_two().max(64);
        let kept = self.update(|State { statistics, free }| {
            statistics.count_use(4 * size);
            let kept = free.get_mut(&size).and_then(Vec::pop);
            if kept.is_some() {
                statistics.reused += 1;
                statistics.kept -= 4 * size;
            } else {
                statistics.allocated += 1;
            }
            kept
        });
        kept.unwrap_or_else(|| vec![0.0; size].into())
    }

    fn give_back(&self, mut piece: Box<[f32]>) {
        if cfg!(debug_assertions) {
            // Makes reads of values that no operation has written visible in tests.
            piece.fill(f32::NAN);
        }
        self.update(|State { statistics, free }| {
            statistics.live -= 4 * piece.len();
            statistics.kept += 4 * piece.len();
            free.entry(piece.len()).or_default().push(piece);
        });
    }
}

/// Host memory, as the value of a variable. The first operation that mutates the block takes the memory from the pool,
/// so a program can push operations far ahead of their execution without exhausting memory.
#[derive(Debug)]
pub struct Block {
    piece: Option<Box<[f32]>>,
    len: usize,
    pool: Arc<Pool>,
}

impl Block {
    /// Returns the values.
    ///
    /// # Errors
    /// No operation has yet mutated the values.
    pub fn values(&self) -> Result<&[f32], String> {
        self.piece.as_ref().map(|piece| &piece[..self.len]).ok_or_else(|| "an array without values is read".into())
    }

    /// Returns the values, which are initially unspecified.
    pub fn values_mut(&mut self) -> &mut [f32] {
        let Self { piece, len, pool } = self;
        &mut piece.get_or_insert_with(|| pool.take(*len))[..*len]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            self.pool.give_back(piece);
        }
    }
}

/// The variable holding a piece of memory.
#[derive(Debug)]
pub enum Memory {
    /// Host memory.
    Host(Var<Block>),
    /// GPU memory.
    Gpu(Var<DeviceVec<f32>>),
}

/// A piece of memory, which arrays may share. Its variable orders the operations on all of these arrays.
#[derive(Debug)]
pub struct Chunk {
    memory: Memory,
    len: usize,
    engine: WeakEngine,
    pool: Arc<Pool>,
}

impl Chunk {
    /// Allocates memory for `len` values.
    ///
    /// # Errors
    /// There are too many values for any memory; the GPU is out of memory.
    pub fn new(engine: &Engine, device: Device, pool: &Arc<Pool>, len: usize) -> Result<Self, Error> {
        if len > MOST {
            return Err(Error::Use(format!("an array cannot have more than {MOST} values")));
        }
        let memory = match device {
            Device::Cpu => Memory::Host(engine.var(Block { piece: None, len, pool: Arc::clone(pool) })),
            gpu => {
                let values = engine.device_var(gpu, len)?;
                pool.update(|state| state.statistics.count_use(4 * len));
                Memory::Gpu(values)
            }
        };
        // The chunk must not keep the engine open.
        Ok(Self { memory, len, engine: engine.downgrade(), pool: Arc::clone(pool) })
    }

    /// Returns the variable holding the memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the variable, which must hold host memory.
    ///
    /// # Errors
    /// It holds GPU memory.
    pub fn host(&self) -> Result<&Var<Block>, Error> {
        let Memory::Host(block) = &self.memory else {
            return Err(Error::Use("an array is in GPU memory instead of host memory".into()));
        };
        Ok(block)
    }

    /// Returns the variable, which must hold GPU memory.
    ///
    /// # Errors
    /// It holds host memory.
    pub fn gpu(&self) -> Result<&Var<DeviceVec<f32>>, Error> {
        let Memory::Gpu(values) = &self.memory else {
            return Err(Error::Use("an array is in host memory instead of GPU memory".into()));
        };
        Ok(values)
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the untyped handle to the variable.
    pub fn token(&self) -> &Token {
        match &self.memory {
            Memory::Host(block) => block.token(),
            Memory::Gpu(values) => values.token(),
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // The drop of a `Block` returns host memory and updates the statistics. A `DeviceVec` returns to the pool of
        // the engine's driver, which does not know these statistics, so the deletion of its variable updates them. The
        // deletion runs after all operations on the variable, and nothing waits for it.
        if let Memory::Gpu(values) = &self.memory {
            let (pool, bytes) = (Arc::clone(&self.pool), 4 * self.len);
            let count = move |_: &OpContext<'_>| pool.update(|state| state.statistics.live -= bytes);
            // An error means that the variable is already deleted, or that this is a forked child.
            let _ = self.engine.delete_variable(values, count);
        }
    }
}
