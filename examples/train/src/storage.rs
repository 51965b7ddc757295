//! Memory: one variable for each piece, and a pool behind it.
//!
//! | here | in the engine |
//! |---|---|
//! | [`Chunk`] | one variable, whose value is the memory |
//! | freeing | the last handle is dropped: the value's drop, after every operation on the variable, returns the memory |
//! | memory of a GPU | a variable with a [`DeviceVec`]; the engine's driver has the pool, and a deletion counts |
//!
//! Nothing waits: a program may drop an array right after it has pushed an operation on it.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use raddle::{Device, DeviceVec, Engine, Token, Var};

use crate::error::Error;

/// What a pool has done so far, in bytes and in numbers of pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes in use.
    pub live: usize,
    /// The most bytes that were in use at a time.
    pub peak: usize,
    /// Bytes that are kept for later.
    pub kept: usize,
    /// How many pieces of the host's memory were allocated. The driver of a GPU has counts of its own.
    pub allocated: u64,
    /// How many pieces of the host's memory were used again.
    pub reused: u64,
}

#[derive(Debug, Default)]
struct State {
    statistics: Statistics,
    free: BTreeMap<usize, Vec<Box<[f32]>>>,
}

/// The memory of one device.
#[derive(Debug, Default)]
pub struct Pool(Mutex<State>);

impl Pool {
    /// Returns what the pool has done so far.
    pub fn statistics(&self) -> Statistics {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).statistics
    }

    fn update<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count_use(&self, bytes: usize) {
        self.update(|State { statistics, .. }| {
            statistics.live += bytes;
            statistics.peak = statistics.peak.max(statistics.live);
        });
    }

    /// Takes a piece of at least `len` values. Its content is unspecified.
    fn take(&self, len: usize) -> Box<[f32]> {
        let size = len.next_power_of_two().max(64);
        self.count_use(4 * size);
        let kept = self.update(|State { statistics, free }| {
            let kept = free.get_mut(&size).and_then(Vec::pop);
            match kept {
                Some(_) => (statistics.reused, statistics.kept) = (statistics.reused + 1, statistics.kept - 4 * size),
                None => statistics.allocated += 1,
            }
            kept
        });
        kept.unwrap_or_else(|| vec![0.0; size].into())
    }

    fn give_back(&self, mut piece: Box<[f32]>) {
        if cfg!(debug_assertions) {
            // An operation that reads what it has not written is found in tests.
            piece.fill(f32::NAN);
        }
        self.update(|State { statistics, free }| {
            statistics.live -= 4 * piece.len();
            statistics.kept += 4 * piece.len();
            free.entry(piece.len()).or_default().push(piece);
        });
    }
}

/// Memory of the host: the value of a variable. It is taken from the pool by the first operation that mutates it, so a
/// program that is far ahead of its operations does not fill the memory.
pub struct Block {
    piece: Option<Box<[f32]>>,
    len: usize,
    pool: Arc<Pool>,
}

impl Block {
    /// Returns the values.
    ///
    /// # Errors
    /// No operation has mutated them so far.
    pub fn values(&self) -> Result<&[f32], String> {
        self.piece.as_ref().map(|piece| &piece[..self.len]).ok_or_else(|| "an array is read that has no values".into())
    }

    /// Returns the values. Their content is unspecified the first time.
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

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The variable of a piece of memory.
#[derive(Debug)]
pub enum Memory {
    /// Memory of the host.
    Host(Var<Block>),
    /// Memory of a GPU.
    Gpu(Var<DeviceVec<f32>>),
}

/// A piece of memory, which arrays share. All arrays in it are read and mutated in the order of its variable.
#[derive(Debug)]
pub struct Chunk {
    memory: Memory,
    len: usize,
    engine: Engine,
    pool: Arc<Pool>,
}

impl Chunk {
    /// Returns memory for `len` values.
    ///
    /// # Errors
    /// The GPU has no memory left.
    pub fn new(engine: &Engine, device: Device, pool: &Arc<Pool>, len: usize) -> Result<Self, Error> {
        let memory = match device {
            Device::Cpu => Memory::Host(engine.var(Block { piece: None, len, pool: Arc::clone(pool) })),
            gpu => {
                pool.count_use(4 * len);
                Memory::Gpu(engine.device_var(gpu, len)?)
            }
        };
        // The chunk must not keep the engine open.
        Ok(Self { memory, len, engine: engine.downgrade(), pool: Arc::clone(pool) })
    }

    /// Returns the variable and its kind.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the untyped handle of the variable.
    pub fn token(&self) -> &Token {
        match &self.memory {
            Memory::Host(block) => block.token(),
            Memory::Gpu(values) => values.token(),
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // Memory of the host returns by the drop of its `Block`. A `DeviceVec` returns to the pool of the engine's
        // driver, so the deletion counts. It comes after all operations on the variable, and nothing waits for it.
        if let Memory::Gpu(values) = &self.memory {
            let (pool, bytes) = (Arc::clone(&self.pool), 4 * self.len);
            let counted = move || pool.update(|State { statistics, .. }| statistics.live -= bytes);
            // An error means that the variable is gone already, or that this is a forked child.
            let _ = self.engine.delete_variable(values, move |_| counted());
        }
    }
}
