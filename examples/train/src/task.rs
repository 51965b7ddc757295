//! Turns arrays into an operation of the engine: the variables that it declares, and the slices that its function
//! receives.
//!
//! Arrays may share a chunk, and thus a variable. A [`Task`] declares each variable once: as mutated if an output lies
//! in it, and otherwise as read. The function receives one slice per array, even if arrays share a chunk.
//!
//! | array | the variable is declared by | the function receives |
//! |---|---|---|
//! | input | `read()` | `&[f32]` |
//! | output | `write()`; `overwrite()` if the old contents of the whole chunk are not needed | `&mut [f32]` |
//! | input and output, [`Mode::InPlace`] | `write()` | `&mut [f32]`, which holds the input |
//! | input in the same chunk as an output | `write()` | `&[f32]`: a copy, made when the operation runs |
//! | temporary space, random generator | `overwrite()` | `&mut [f32]`, [`Random`] |
//!
//! The same function runs on host memory, and as a kernel of the simulated GPU.

use std::{mem, ops::Range, sync::Arc, time::Duration};

use raddle::{
    Device, Name, Read, Token, Var, Write,
    error::BoxError,
    gpu::{DeviceVec, GpuStream},
    stream,
};

use crate::storage::{Block, Chunk};
use crate::{Array, Error, Runtime, Shape, random::Random};

/// How an operation writes an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The output is neither needed nor written.
    Null,
    /// The result replaces the old values.
    Write,
    /// The output's memory holds an input, or old values that the operation reads; the result replaces these values.
    InPlace,
    /// The result is added to the old values.
    Add,
}

/// An input, as received by an operation's function.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The values; empty if an output with [`Mode::InPlace`] holds them.
    pub values: &'a [f32],
    /// The shape.
    pub shape: &'a [usize],
}

/// An output, as received by an operation's function.
#[derive(Debug)]
pub struct Out<'a> {
    /// The values; empty with [`Mode::Null`].
    pub values: &'a mut [f32],
    /// The shape.
    pub shape: &'a [usize],
    /// How to store the result.
    pub mode: Mode,
}

impl Out<'_> {
    fn store(&mut self, results: impl Iterator<Item = f32>) {
        let places = self.values.iter_mut().zip(results);
        match self.mode {
            Mode::Null => {}
            Mode::Write | Mode::InPlace => places.for_each(|(y, result)| *y = result),
            Mode::Add => places.for_each(|(y, result)| *y += result),
        }
    }

    /// Stores the result of `f` for each index.
    pub fn fill(&mut self, f: impl Fn(usize) -> f32) {
        self.store((0..).map(f));
    }

    /// Stores `f` of each value of `x`. With [`Mode::InPlace`], this output holds the values of `x`.
    pub fn map(&mut self, x: View<'_>, mut f: impl FnMut(f32) -> f32) {
        match self.mode {
            Mode::InPlace => self.values.iter_mut().for_each(|y| *y = f(*y)),
            _ => self.store(x.values.iter().map(|&x| f(x))),
        }
    }

    /// Stores `f` of each value of `a` and the corresponding value of `b`. With [`Mode::InPlace`], this output holds
    /// the values of `a`.
    pub fn map2(&mut self, a: View<'_>, b: View<'_>, f: impl Fn(f32, f32) -> f32) {
        match self.mode {
            Mode::InPlace => self.values.iter_mut().zip(b.values).for_each(|(y, &b)| *y = f(*y, b)),
            _ => self.store(a.values.iter().zip(b.values).map(|(&a, &b)| f(a, b))),
        }
    }

    /// Prepares the values for a sum: with [`Mode::Write`], sets them to zero, so that results can be added as with
    /// [`Mode::Add`].
    pub fn begin_sum(&mut self) {
        if self.mode == Mode::Write {
            self.values.fill(0.0);
        }
    }

    /// Returns whether the output is needed.
    pub fn is_needed(&self) -> bool {
        self.mode != Mode::Null
    }
}

/// The arguments of an operation's function.
#[derive(Debug)]
pub struct Views<'a> {
    /// The inputs.
    pub ins: Vec<View<'a>>,
    /// The outputs.
    pub outs: Vec<Out<'a>>,
    /// Temporary space, with unspecified contents.
    pub temporary: &'a mut [f32],
    /// A generator for this run. Its seed is fixed unless the operation has requested a generator.
    pub random: Random,
    /// Whether the operation is part of training.
    pub training: bool,
}

/// An operation on arrays.
#[derive(Debug)]
pub struct Task<'a> {
    /// The operation's name, for traces and errors.
    pub name: Name,
    /// The arrays that it reads.
    pub ins: Vec<&'a Array>,
    /// The arrays that it writes, and how. A missing array is treated as [`Mode::Null`].
    pub outs: Vec<(Option<&'a Array>, Mode)>,
    /// The size of the temporary space that it needs, in values.
    pub temporary: usize,
    /// Whether it needs a random generator.
    pub random: bool,
    /// Whether it is part of training.
    pub training: bool,
    /// The operation's priority in the engine.
    pub priority: i32,
    /// Tokens that it reads: earlier operations that mutate them run first. If a token has failed, the operation does
    /// not run.
    pub after: Vec<&'a Token>,
}

/// The place of an input's values.
#[derive(Clone, Copy, Debug)]
enum Place {
    Read(usize),
    Written(usize),
    /// In an output with [`Mode::InPlace`].
    Held,
}

/// The positions of an operation's slices in its chunks.
#[derive(Debug, Default)]
struct Layout {
    ins: Vec<(Place, Range<usize>, Shape)>,
    outs: Vec<(Mode, Shape)>,
    /// For each mutated chunk, its outputs in the order of their positions. The index after that of the last output
    /// denotes the temporary space.
    cuts: Vec<Vec<(usize, Range<usize>)>>,
    training: bool,
}

impl Layout {
    /// Calls `f` with an operation's slices of the chunks that it reads and mutates.
    fn call(&self, reads: &[&[f32]], writes: Vec<&mut [f32]>, random: Random, f: &impl Fn(Views<'_>)) {
        let copies: Vec<Vec<f32>> = (self.ins.iter())
            .map(|(place, range, _)| match *place {
                Place::Written(chunk) => writes[chunk][range.clone()].to_vec(),
                Place::Read(_) | Place::Held => Vec::new(),
            })
            .collect();
        let ins = self.ins.iter().zip(&copies).map(|((place, range, shape), copy)| match *place {
            Place::Read(chunk) => View { values: &reads[chunk][range.clone()], shape },
            Place::Written(_) | Place::Held => View { values: copy, shape },
        });
        let mut slices: Vec<&mut [f32]> = (0..=self.outs.len()).map(|_| Default::default()).collect();
        for (mut rest, cuts) in writes.into_iter().zip(&self.cuts) {
            let mut at = 0;
            for (out, range) in cuts {
                let (slice, behind) = rest[range.start - at..].split_at_mut(range.len());
                (slices[*out], rest, at) = (slice, behind, range.end);
            }
        }
        let temporary = slices.pop().unwrap_or_default();
        let outs = slices.into_iter().zip(&self.outs).map(|(values, (mode, shape))| Out { values, shape, mode: *mode });
        f(Views { ins: ins.collect(), outs: outs.collect(), temporary, random, training: self.training });
    }

    /// Runs [`call`](Self::call) on host memory.
    fn on_host(
        &self,
        reads: Vec<&Block>,
        writes: Vec<&mut Block>,
        random: Vec<&mut Random>,
        f: &impl Fn(Views<'_>),
    ) -> Result<(), BoxError> {
        let reads = reads.into_iter().map(Block::values).collect::<Result<Vec<_>, _>>()?;
        let writes = writes.into_iter().map(Block::values_mut).collect();
        self.call(&reads, writes, fork(random), f);
        Ok(())
    }
}

/// Returns a generator for one run of an operation.
fn fork(random: Vec<&mut Random>) -> Random {
    random.into_iter().next().map_or_else(|| Random::new(0), Random::fork)
}

/// Runs [`Layout::call`] as a kernel of the simulated GPU.
fn on_gpu<F: Fn(Views<'_>) + Send + Sync + 'static>(
    work: &Arc<(Layout, F)>,
    stream: &mut GpuStream,
    reads: Vec<&DeviceVec<f32>>,
    writes: Vec<&mut DeviceVec<f32>>,
    random: Vec<&mut Random>,
) -> Result<(), BoxError> {
    let mut gpu = stream.simulated().ok_or("arrays have kernels only for the simulated GPU")?;
    let (work, random) = (Arc::clone(work), fork(random));
    gpu.launch(Duration::ZERO, (reads, writes), move |(reads, writes)| work.0.call(&reads, writes, random, &work.1))?;
    Ok(())
}

/// An operation's distinct variables, and its layout in them.
struct Plan {
    layout: Layout,
    reads: Vec<Arc<Chunk>>,
    writes: Vec<Arc<Chunk>>,
    /// For each mutated chunk, whether the operation needs none of its old contents.
    is_overwritten: Vec<bool>,
    random: Option<Var<Random>>,
}

/// Returns the index of a chunk, which is added if it is missing.
fn index_of(chunks: &mut Vec<Arc<Chunk>>, chunk: &Arc<Chunk>) -> usize {
    chunks.iter().position(|other| Arc::ptr_eq(other, chunk)).unwrap_or_else(|| {
        chunks.push(Arc::clone(chunk));
        chunks.len() - 1
    })
}

impl<'a> Task<'a> {
    /// Returns an operation with a name and inputs.
    pub fn new(name: impl Into<Name>, ins: Vec<&'a Array>) -> Self {
        let (outs, after) = (Vec::new(), Vec::new());
        Self { name: name.into(), ins, outs, temporary: 0, random: false, training: false, priority: 0, after }
    }

    /// Adds an output.
    pub fn out(mut self, array: &'a Array, mode: Mode) -> Self {
        self.outs.push((Some(array), mode));
        self
    }

    fn plan(&self, runtime: &Runtime) -> Result<Plan, Error> {
        let (name, device) = (&self.name, runtime.device());
        if runtime.is_cuda() {
            return Err(Error::Unavailable(format!(
                "`{name}` is not available on {device}, a CUDA device: copy the arrays to the host first"
            )));
        }
        let outs = self.outs.iter().filter_map(|(array, _)| *array);
        self.ins.iter().copied().chain(outs).try_for_each(|array| check_device(name, array, runtime))?;
        let mut layout = Layout { training: self.training, ..Layout::default() };
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let mut cut = |out: usize, chunk: &Arc<Chunk>, range: Range<usize>| {
            let index = index_of(&mut writes, chunk);
            layout.cuts.resize_with(writes.len(), Vec::new);
            layout.cuts[index].push((out, range));
        };
        for (out, &(array, mode)) in self.outs.iter().enumerate() {
            match array.filter(|_| mode != Mode::Null) {
                Some(array) => {
                    cut(out, array.chunk(), array.range());
                    layout.outs.push((mode, array.shape().into()));
                }
                None => layout.outs.push((Mode::Null, Shape::new())),
            }
        }
        let temporary = self.outs.len();
        if self.temporary > 0 {
            cut(temporary, &runtime.temporary(self.temporary)?, 0..self.temporary);
        }
        for cuts in &mut layout.cuts {
            cuts.sort_by_key(|(_, range)| range.start);
            if cuts.windows(2).any(|pair| pair[0].1.end > pair[1].1.start) {
                return Err(Error::Use(format!("`{name}`: two outputs share memory")));
            }
        }
        for (place, array) in self.ins.iter().enumerate() {
            let is_held = |(out, range): &(usize, Range<usize>)| {
                *out < temporary && layout.outs[*out].0 == Mode::InPlace && *range == array.range()
            };
            let place = match writes.iter().position(|chunk| Arc::ptr_eq(chunk, array.chunk())) {
                None => Place::Read(index_of(&mut reads, array.chunk())),
                // If an input occurs twice, an output can hold only the first occurrence; the other is copied.
                Some(index) if self.ins[..place].iter().any(|other| other.is_same(array)) => Place::Written(index),
                Some(index) if layout.cuts[index].iter().any(is_held) => Place::Held,
                Some(index) => Place::Written(index),
            };
            layout.ins.push((place, array.range(), array.shape().into()));
        }
        let is_overwritten = |(index, chunk): (usize, &Arc<Chunk>)| {
            let cuts = &layout.cuts[index];
            let is_read = layout.ins.iter().any(|(place, ..)| matches!(place, Place::Written(at) if *at == index));
            let is_new = |(out, _): &(usize, _)| *out == temporary || layout.outs[*out].0 == Mode::Write;
            let covered: usize = cuts.iter().map(|(_, range)| range.len()).sum();
            let is_whole = covered == chunk.len() || cuts.iter().any(|(out, _)| *out == temporary);
            !is_read && is_whole && cuts.iter().all(is_new)
        };
        let is_overwritten = writes.iter().enumerate().map(is_overwritten).collect();
        Ok(Plan { layout, reads, writes, is_overwritten, random: self.random.then(|| runtime.random()) })
    }
}

/// Returns an error unless an array is on a runtime's device.
pub(crate) fn check_device(name: &Name, array: &Array, runtime: &Runtime) -> Result<(), Error> {
    let (expected, found) = (runtime.device(), array.runtime().device());
    if expected == found {
        return Ok(());
    }
    Err(Error::Use(format!("`{name}` runs on {expected}, but an array is on {found}: copy it first")))
}

type Accesses<'p, T> = (Vec<Read<'p, T>>, Vec<Write<'p, T>>, Vec<Write<'p, Random>>);

impl Plan {
    /// Declares the variables that the operation reads and mutates. `of` is [`Chunk::host`] or [`Chunk::gpu`].
    fn accesses<T: Send + Sync + 'static>(
        &self,
        of: fn(&Chunk) -> Result<&Var<T>, Error>,
    ) -> Result<Accesses<'_, T>, Error> {
        let reads = self.reads.iter().map(|chunk| Ok(of(chunk)?.read()));
        let writes = self.writes.iter().zip(&self.is_overwritten).map(|(chunk, is_overwritten)| {
            of(chunk).map(|variable| if *is_overwritten { variable.overwrite() } else { variable.write() })
        });
        let random = self.random.iter().map(Var::overwrite).collect();
        Ok((reads.collect::<Result<_, Error>>()?, writes.collect::<Result<_, Error>>()?, random))
    }
}

/// Pushes an operation, or creates an operator of the engine from the same description.
macro_rules! describe {
    ($task:ident, $plan:ident, $runtime:ident, $f:ident, $push:ident) => {{
        let layout = mem::take(&mut $plan.layout);
        let op = $runtime.engine().op($task.name).priority($task.priority).reads($task.after);
        if let Device::Cpu = $runtime.device() {
            op.$push($plan.accesses(Chunk::host)?, move |(reads, writes, random)| {
                layout.on_host(reads, writes, random, &$f)
            })?
        } else {
            let work = Arc::new((layout, $f));
            op.on($runtime.device())
                .$push(($plan.accesses(Chunk::gpu)?, stream()), move |((reads, writes, random), stream)| {
                    on_gpu(&work, stream, reads, writes, random)
                })?
        }
    }};
}

impl Task<'_> {
    /// Pushes the operation.
    ///
    /// # Errors
    /// The device is a CUDA device; an array is on another device, or outputs share memory; there is not enough memory
    /// for the temporary space; the engine refuses the push.
    #[track_caller]
    pub fn push(self, runtime: &Runtime, f: impl Fn(Views<'_>) + Send + Sync + 'static) -> Result<(), Error> {
        let mut plan = self.plan(runtime)?;
        describe!(self, plan, runtime, f, try_push);
        Ok(())
    }

    /// Creates an operator of the engine, which can be pushed often.
    ///
    /// # Errors
    /// The device is a CUDA device; an array is on another device, or outputs share memory; there is not enough memory
    /// for the temporary space; the engine refuses the variables.
    pub fn operator(self, runtime: &Runtime, f: impl Fn(Views<'_>) + Send + Sync + 'static) -> Result<Prepared, Error> {
        let mut plan = self.plan(runtime)?;
        let operator = describe!(self, plan, runtime, f, try_operator);
        Ok(Prepared { operator, _chunks: [plan.reads, plan.writes].concat() })
    }
}

/// An operation on arrays that can be pushed often.
#[derive(Debug)]
pub struct Prepared {
    operator: raddle::Operator,
    /// Keeps the chunks alive: an operator of the engine keeps its variables alive, but the drop of a [`Chunk`] in GPU
    /// memory deletes the chunk's variable.
    _chunks: Vec<Arc<Chunk>>,
}

impl Prepared {
    /// Pushes the operation once.
    ///
    /// # Errors
    /// The engine refuses the push.
    #[track_caller]
    pub fn push(&self) -> Result<(), Error> {
        Ok(self.operator.push()?)
    }
}
