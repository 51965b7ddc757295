//! Arrays. An array is a shape and a range of a chunk. A function on arrays pushes an operation, and returns the
//! resulting array without waiting for its values.
//!
//! | here | in the engine |
//! |---|---|
//! | an operation on arrays, except on a CUDA device | a [`Task`]: one push that declares the chunks' variables |
//! | a slice, a reshaped array | the same variable |
//! | [`Array::wait_to_read`] | `Engine::wait_to_read` of the variable |
//! | [`Array::to_vec`] | an operation that reads the variable, and a wait on its handle; an array on a GPU is copied to the host first |
//! | a copy between the host and a GPU | a copy in host memory, and a copy by the device |

use std::{fmt, ops::Range, sync::Arc};

use raddle::{Device, OpHandle, Token, error::BoxError};

use crate::kernels::{Matrix, multiply};
use crate::operator::{invoke, invoke_into};
use crate::simple::{self, Function};
use crate::storage::{Chunk, Memory};
#[cfg(feature = "cuda")]
use crate::task::check_device;
use crate::{Error, Mode, Operator, Runtime, Shape, Task, View, volume};

/// An array of `f32`. Clones are handles to the same array.
#[derive(Clone)]
pub struct Array {
    runtime: Arc<Runtime>,
    chunk: Arc<Chunk>,
    start: usize,
    shape: Shape,
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Array").field("shape", &self.shape).field("device", &self.runtime.device()).finish()
    }
}

impl Array {
    /// Returns an array without values. The first operation on it must write its values.
    ///
    /// # Errors
    /// The shape is too large for any memory; the GPU is out of memory.
    pub fn new(runtime: &Arc<Runtime>, shape: &[usize]) -> Result<Self, Error> {
        let chunk = runtime.allocate(volume(shape))?;
        Ok(Self { runtime: Arc::clone(runtime), chunk, start: 0, shape: shape.into() })
    }

    /// Returns an array with these values.
    ///
    /// # Errors
    /// The number of values does not match the shape; the GPU is out of memory; the engine refuses a push.
    #[track_caller]
    pub fn from_vec(runtime: &Arc<Runtime>, shape: &[usize], values: Vec<f32>) -> Result<Self, Error> {
        if values.len() != volume(shape) {
            return Err(Error::shape("from_vec", "values", format!("{shape:?}"), &[values.len()]));
        }
        let array = Self::new(&runtime.host(), shape)?;
        let op = runtime.engine().op("from_vec");
        op.push(array.chunk.host()?.overwrite(), move |block| block.values_mut().copy_from_slice(&values))?;
        if runtime.device() == Device::Cpu { Ok(array) } else { array.copy_to(runtime) }
    }

    /// Returns an array whose values are all `value`.
    ///
    /// # Errors
    /// The shape is too large for any memory; the GPU is out of memory, or is a CUDA device; the engine refuses the
    /// push.
    #[track_caller]
    pub fn full(runtime: &Arc<Runtime>, shape: &[usize], value: f32) -> Result<Self, Error> {
        let array = Self::new(runtime, shape)?;
        array.fill(value)?;
        Ok(array)
    }

    /// Returns an array of normally distributed numbers with mean 0 and the standard deviation `deviation`, drawn from
    /// the runtime's next generator.
    ///
    /// # Errors
    /// The shape is too large for any memory; the GPU is out of memory, or is a CUDA device; the engine refuses the
    /// push.
    #[track_caller]
    pub fn normal(runtime: &Arc<Runtime>, shape: &[usize], deviation: f32) -> Result<Self, Error> {
        let array = Self::new(runtime, shape)?;
        let task = Task { random: true, ..Task::new("normal", vec![]) }.out(&array, Mode::Write);
        task.push(runtime, move |mut views| {
            views.outs[0].values.iter_mut().for_each(|value| *value = deviation * views.random.normal());
        })?;
        Ok(array)
    }

    /// Returns the shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        volume(&self.shape)
    }

    /// Returns whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the runtime to which the array belongs.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Returns the memory shared by the array and its slices.
    pub fn chunk(&self) -> &Arc<Chunk> {
        &self.chunk
    }

    /// Returns the array's range within the chunk.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len()
    }

    /// Returns whether this array and another one are the same range of the same chunk.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.chunk, &other.chunk) && self.range() == other.range()
    }

    /// Returns whether the array covers its chunk.
    pub(crate) fn is_whole(&self) -> bool {
        self.len() == self.chunk.len()
    }

    /// Returns a slice along the first axis, which shares the array's memory and variable.
    ///
    /// # Errors
    /// The array has no axis; the range is not within the first axis, or ends before it starts.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, Error> {
        let &[count, ref rest @ ..] = &self.shape[..] else {
            return Err(Error::shape("slice", "array", "one with an axis", &self.shape));
        };
        if range.start > range.end {
            return Err(Error::Use(format!("`slice`: the range {range:?} ends before it starts")));
        }
        if range.end > count {
            return Err(Error::shape("slice", "array", format!("[{} or more, ..]", range.end), &self.shape));
        }
        let shape = [&[range.len()], rest].concat();
        Ok(Self { start: self.start + range.start * volume(rest), shape, ..self.clone() })
    }

    /// Returns the same values in another shape. The result shares the array's memory and variable.
    ///
    /// # Errors
    /// The shape has a different number of values.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, Error> {
        if volume(shape) != self.len() {
            return Err(Error::shape("reshape", "array", format!("one that fits into {shape:?}"), &self.shape));
        }
        Ok(Self { shape: shape.into(), ..self.clone() })
    }

    /// Returns the beginning of a chunk as an array of this shape.
    pub(crate) fn within(runtime: &Arc<Runtime>, chunk: &Arc<Chunk>, shape: &[usize]) -> Self {
        debug_assert!(volume(shape) <= chunk.len(), "the part is larger than the chunk");
        Self { runtime: Arc::clone(runtime), chunk: Arc::clone(chunk), start: 0, shape: shape.into() }
    }

    // ----------------------------------------------------------------------------------------------------- values ----

    /// Waits for all operations pushed so far that mutate the array's chunk.
    ///
    /// # Errors
    /// One of them has failed.
    pub fn wait_to_read(&self) -> Result<(), Error> {
        Ok(self.runtime.engine().wait_to_read(self.chunk.token())?)
    }

    /// Waits for the values and returns a copy.
    ///
    /// # Errors
    /// The errors of [`look`](Self::look); an earlier operation on the array has failed; the array is in host memory
    /// and has no values.
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<f32>, Error> {
        Ok(self.look("to_vec", [], |values| Ok(values.to_vec()))?.wait()?)
    }

    /// Pushes an operation that inspects the values on the host and mutates some tokens. Returns a handle to the result
    /// of `f`.
    ///
    /// # Errors
    /// The array is on a GPU, and the memory for the copy is exhausted; the engine refuses a push.
    #[track_caller]
    pub fn look<'t, R: Send + 'static>(
        &self,
        name: &'static str,
        tokens: impl IntoIterator<Item = &'t Token>,
        f: impl FnOnce(&[f32]) -> Result<R, BoxError> + Send + 'static,
    ) -> Result<OpHandle<R>, Error> {
        let engine = self.runtime.engine();
        let Memory::Host(block) = self.chunk.memory() else {
            return self.copy_to(&self.runtime.host())?.look(name, tokens, f);
        };
        let (range, tokens): (_, Vec<_>) = (self.range(), tokens.into_iter().collect());
        Ok(engine.op(name).writes(tokens).try_submit(block.read(), move |block| f(&block.values()?[range]))?)
    }

    /// Sets all values to `value`.
    ///
    /// # Errors
    /// The array is on a CUDA device; the engine refuses the push.
    #[track_caller]
    pub fn fill(&self, value: f32) -> Result<(), Error> {
        let task = Task::new("fill", vec![]).out(self, Mode::Write);
        task.push(&self.runtime, move |mut views| views.outs[0].values.fill(value))
    }

    /// Returns a copy of the array on a runtime's device.
    ///
    /// # Errors
    /// The array and the runtime are on two different GPUs; memory is exhausted; the engine refuses a push.
    #[track_caller]
    pub fn copy_to(&self, runtime: &Arc<Runtime>) -> Result<Self, Error> {
        let copy = Self::new(runtime, &self.shape)?;
        copy.copy_from(self)?;
        Ok(copy)
    }

    /// Copies the values of `source`. One of the two arrays may be on the host and the other on a GPU.
    ///
    /// # Errors
    /// The shapes differ; the arrays are on two different GPUs; memory is exhausted; the engine refuses a push.
    #[track_caller]
    pub fn copy_from(&self, source: &Self) -> Result<(), Error> {
        self.copy_after(source, &[])
    }

    /// Like [`copy_from`](Self::copy_from), but the copy also reads some tokens: if one has failed, the array is not
    /// written.
    #[track_caller]
    pub(crate) fn copy_after(&self, source: &Self, after: &[&Token]) -> Result<(), Error> {
        Error::check_shape("copy", "source", &self.shape, &source.shape)?;
        let engine = self.runtime.engine();
        match (source.chunk.memory(), self.chunk.memory()) {
            // A copy between the host and a GPU moves whole buffers of the GPU.
            (Memory::Gpu(_), Memory::Host(_)) if !source.is_whole() => {
                self.copy_after(&source.copy_to(&source.runtime)?, after)
            }
            (Memory::Host(_), Memory::Gpu(_)) if !self.is_whole() => {
                self.copy_after(&source.copy_to(&self.runtime)?, after)
            }
            (Memory::Gpu(from), Memory::Host(to)) => {
                let (gpu, range) = (source.runtime.device(), self.range());
                let stage = engine.pinned_var::<f32>(gpu, self.len())?;
                engine.op("copy from device").on(gpu).copy_from_device(from, &stage)?;
                let unstage = engine.op("unstage").reads(after.iter().copied());
                unstage.push((stage.read(), to.write()), |(from, to)| to.values_mut()[range].copy_from_slice(from))?;
                Ok(())
            }
            (Memory::Host(from), Memory::Gpu(to)) => {
                let (gpu, range) = (self.runtime.device(), source.range());
                let stage = engine.pinned_var::<f32>(gpu, self.len())?;
                let op = engine.op("stage").reads(after.iter().copied());
                op.try_push((from.read(), stage.write()), |(from, to)| {
                    to.copy_from_slice(&from.values()?[range]);
                    Ok(())
                })?;
                engine.op("copy to device").on(gpu).copy_to_device(&stage, to)?;
                Ok(())
            }
            #[cfg(feature = "cuda")]
            _ if self.runtime.is_cuda() => {
                check_device(&"copy".into(), source, &self.runtime)?;
                crate::cuda::copy(source, self, after)
            }
            _ => {
                let task = Task { after: after.to_vec(), ..Task::new("copy", vec![source]) };
                task.out(self, Mode::Write).push(&self.runtime, |mut views| {
                    views.outs[0].values.copy_from_slice(views.ins[0].values);
                })
            }
        }
    }

    // ------------------------------------------------------------------------------------------------- operations ----

    /// Applies a simple function of one value and `scalar`, such as `simple::SCALE`, to each value.
    ///
    /// # Errors
    /// The function has two arguments; the GPU is out of memory, or is a CUDA device; the engine refuses the push.
    #[track_caller]
    pub fn map(&self, function: &'static Function, scalar: f32) -> Result<Self, Error> {
        let operator: Arc<dyn Operator> = Arc::new(function.with(scalar));
        invoke(&operator, &[self], false).map(|mut outs| outs.swap_remove(0))
    }

    /// Applies a simple function of two values, such as `simple::ADD`, to the corresponding values of two arrays.
    ///
    /// # Errors
    /// The shapes or devices differ, or the function has one argument; the GPU is out of memory, or is a CUDA device;
    /// the engine refuses the push.
    #[track_caller]
    pub fn combine(&self, function: &'static Function, other: &Self) -> Result<Self, Error> {
        let operator: Arc<dyn Operator> = Arc::new(function.operator());
        invoke(&operator, &[self, other], false).map(|mut outs| outs.swap_remove(0))
    }

    /// Adds another array to this one in place.
    ///
    /// # Errors
    /// The shapes or devices differ; the arrays are on a CUDA device; the engine refuses the push.
    #[track_caller]
    pub fn add_assign(&self, other: &Self) -> Result<(), Error> {
        let operator: Arc<dyn Operator> = Arc::new(simple::ADD.operator());
        invoke_into(&operator, &[self, other], &[(Some(self), Mode::InPlace)], false)
    }

    /// Multiplies two matrices.
    ///
    /// # Errors
    /// The errors of [`matmul_transposed`](Self::matmul_transposed).
    #[track_caller]
    pub fn matmul(&self, other: &Self) -> Result<Self, Error> {
        self.matmul_transposed(other, [false, false])
    }

    /// Multiplies two matrices. Each matrix whose flag in `transposed` is set is transposed first, without moving any
    /// values.
    ///
    /// # Errors
    /// The shapes do not match, or the devices differ; the GPU is out of memory; on a CUDA device, cuBLAS is missing or
    /// cannot multiply matrices of these sizes; the engine refuses the push.
    #[track_caller]
    pub fn matmul_transposed(&self, other: &Self, transposed: [bool; 2]) -> Result<Self, Error> {
        let sizes = |argument, array: &Self, is_transposed| match array.shape[..] {
            [rows, columns] if is_transposed => Ok([columns, rows]),
            [rows, columns] => Ok([rows, columns]),
            _ => Err(Error::shape("matmul", argument, "that of a matrix", &array.shape)),
        };
        let [rows, inner] = sizes("left", self, transposed[0])?;
        let [other_inner, columns] = sizes("right", other, transposed[1])?;
        if inner != other_inner {
            let expected = if transposed[1] { format!("[_, {inner}]") } else { format!("[{inner}, _]") };
            return Err(Error::shape("matmul", "right", format!("{expected} for {:?}", self.shape), &other.shape));
        }
        let product = Self::new(&self.runtime, &[rows, columns])?;
        let task = Task::new("matmul", vec![self, other]).out(&product, Mode::Write);
        #[cfg(feature = "cuda")]
        if self.runtime.is_cuda() {
            check_device(&task.name, other, &self.runtime)?;
            crate::cuda::multiply(&product, [self, other], transposed, [rows, inner, columns])?;
            return Ok(product);
        }
        task.push(&self.runtime, move |mut views| {
            let matrix = |factor: usize| {
                let View { values, shape } = views.ins[factor];
                let matrix = Matrix::new(values, [shape[0], shape[1]]);
                if transposed[factor] { matrix.transposed() } else { matrix }
            };
            multiply(matrix(0), matrix(1), views.outs[0].values, false);
        })?;
        Ok(product)
    }

    /// Reduces the last axis with a function of its values.
    #[track_caller]
    fn reduce(&self, name: &'static str, f: impl Fn(&[f32]) -> f32 + Send + Sync + 'static) -> Result<Self, Error> {
        let Some((&count, rest)) = self.shape.split_last().filter(|(count, _)| **count > 0) else {
            return Err(Error::shape(name, "array", "one with a last axis that is not empty", &self.shape));
        };
        let result = Self::new(&self.runtime, rest)?;
        Task::new(name, vec![self]).out(&result, Mode::Write).push(&self.runtime, move |mut views| {
            let rows = views.ins[0].values.chunks_exact(count);
            views.outs[0].values.iter_mut().zip(rows).for_each(|(result, row)| *result = f(row));
        })?;
        Ok(result)
    }

    /// Sums the values along the last axis, in order.
    ///
    /// # Errors
    /// The last axis is missing or empty; the GPU is out of memory, or is a CUDA device; the engine refuses the push.
    #[track_caller]
    pub fn sum(&self) -> Result<Self, Error> {
        self.reduce("sum", |row| row.iter().sum())
    }

    /// Returns the largest values along the last axis.
    ///
    /// # Errors
    /// The last axis is missing or empty; the GPU is out of memory, or is a CUDA device; the engine refuses the push.
    #[track_caller]
    pub fn max(&self) -> Result<Self, Error> {
        self.reduce("max", |row| row.iter().copied().fold(f32::NEG_INFINITY, f32::max))
    }

    /// Returns the indices of the largest values along the last axis; for equal values, the first index.
    ///
    /// # Errors
    /// The last axis is missing or empty; the GPU is out of memory, or is a CUDA device; the engine refuses the push.
    #[track_caller]
    pub fn argmax(&self) -> Result<Self, Error> {
        self.reduce("argmax", |row| {
            row.iter().enumerate().fold(0, |best, (i, v)| if *v > row[best] { i } else { best }) as f32
        })
    }
}
