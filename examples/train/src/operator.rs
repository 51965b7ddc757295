//! Operators: a layer's computation, and what the library must know about it.
//!
//! An [`Operator`] has no variables. It specifies which shapes are valid, what its gradients depend on, whether its
//! result may replace an input, and which resources it uses. [`invoke`] and [`invoke_backward`] push an operation on
//! arrays once. The operations created by an [`Executor`](crate::Executor) can be pushed many times.

use std::{fmt, sync::Arc};

use crate::{Array, Error, Misfit, Mode, Shape, Task, Views};

mod convolution;
mod dropout;
mod fully_connected;
mod pooling;
mod softmax;

pub use convolution::Convolution;
pub use dropout::Dropout;
pub use fully_connected::FullyConnected;
pub use pooling::{Pooling, PoolingKind};
pub use softmax::SoftmaxCrossEntropy;

/// One of the two functions of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// From inputs to outputs.
    Forward,
    /// From the gradient of the first output to the gradients of the inputs.
    Backward,
}

/// What the library must know about an operator, whatever the shapes of its inputs.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// The name of the operator.
    pub name: &'static str,
    /// The names of the inputs.
    pub arguments: &'static [&'static str],
    /// The number of inputs with gradients. These inputs come first.
    pub differentiable: usize,
    /// The inputs of the forward pass, by index, that the backward pass reads.
    pub inputs: &'static [usize],
    /// The outputs of the forward pass, by index, that the backward pass reads.
    pub outputs: &'static [usize],
    /// For the forward and the backward pass, whether the first array that the pass writes may replace the first array
    /// that it reads.
    pub in_place: [bool; 2],
    /// For the forward and the backward pass, whether the pass draws random numbers.
    pub random: [bool; 2],
}

impl Signature {
    /// Returns the signature of an operator that writes nothing in place and draws no numbers. All its inputs have
    /// gradients. To compute them, the backward pass reads the given inputs and outputs.
    pub fn new(
        name: &'static str,
        arguments: &'static [&'static str],
        inputs: &'static [usize],
        outputs: &'static [usize],
    ) -> Self {
        let differentiable = arguments.len();
        Self { name, arguments, differentiable, inputs, outputs, in_place: [false; 2], random: [false; 2] }
    }

    /// Returns what the backward pass reads: the gradient of the first output, then the inputs and the outputs that the
    /// signature names.
    pub fn backward_reads<T: Copy>(&self, gradient: T, ins: &[T], outs: &[T]) -> Vec<T> {
        let (inputs, outputs) = (self.inputs.iter().map(|&i| ins[i]), self.outputs.iter().map(|&i| outs[i]));
        [gradient].into_iter().chain(inputs).chain(outputs).collect()
    }
}

/// A differentiable function of arrays.
///
/// The first output is the result. Further outputs are values that the backward pass or the program may need.
///
/// # Panics
/// The functions that apply an operator check the arrays, but rely on the operator: they panic if an index in its
/// signature does not exist. In turn, the operators of this library rely on their callers: their methods may panic if
/// the number of inputs or outputs is not the operator's, or if the shapes of these arrays do not match.
pub trait Operator: fmt::Debug + Send + Sync + 'static {
    /// Returns the properties of the operator that do not depend on its inputs.
    fn signature(&self) -> Signature;

    /// Fills in input shapes that follow from those of other inputs, and returns the output shapes.
    ///
    /// # Errors
    /// The shapes do not match, or a shape that must be known is unknown.
    fn infer(&self, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit>;

    /// Returns the size of the temporary space, in values, that each pass needs for inputs of these shapes.
    fn temporary(&self, inputs: &[Shape]) -> usize {
        let _ = inputs;
        0
    }

    /// Computes the outputs.
    fn forward(&self, views: Views<'_>);

    /// Computes the gradients of the differentiable inputs. This pass's inputs are the gradient of the first output,
    /// followed by the arrays that the operator [reads](Signature::backward_reads).
    fn backward(&self, views: Views<'_>);

    /// Computes a pass.
    fn run(&self, pass: Pass, views: Views<'_>) {
        match pass {
            Pass::Forward => self.forward(views),
            Pass::Backward => self.backward(views),
        }
    }
}

/// Fills in unknown input shapes of an operator, and returns its output shapes. Errors refer to the operator as `name`.
pub(crate) fn infer(operator: &dyn Operator, name: &str, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Error> {
    let count = operator.signature().arguments.len();
    if inputs.len() != count {
        return Err(Error::Use(format!("`{name}` takes {count} inputs, not {}", inputs.len())));
    }
    let outputs = operator.infer(inputs).map_err(|misfit| misfit.of(name))?;
    if inputs.is_empty() || outputs.is_empty() {
        return Err(Error::Use(format!("`{name}` has no inputs or no outputs")));
    }
    Ok(outputs)
}

/// Returns the output shapes of an operator applied to arrays.
fn infer_outputs(operator: &dyn Operator, ins: &[&Array]) -> Result<Vec<Shape>, Error> {
    let mut shapes: Vec<_> = ins.iter().map(|array| Some(array.shape().to_vec())).collect();
    infer(operator, operator.signature().name, &mut shapes)
}

/// Pushes a pass of an operator applied to `ins`. The pass writes arrays of the shapes `written`. `task` lacks the
/// temporary space and the generator, which this function adds.
#[track_caller]
fn push(
    operator: &Arc<dyn Operator>,
    pass: Pass,
    ins: &[&Array],
    written: &[Shape],
    task: Task<'_>,
) -> Result<(), Error> {
    let (name, signature) = (task.name.to_string(), operator.signature());
    if task.outs.len() != written.len() {
        return Err(Error::Use(format!("`{name}` writes {} arrays, not {}", written.len(), task.outs.len())));
    }
    for (place, (shape, &(array, mode))) in written.iter().zip(&task.outs).enumerate() {
        let Some(array) = array else { continue };
        Error::check_shape(&name, &format!("output {place}"), shape, array.shape())?;
        let may_replace = signature.in_place[pass as usize] && place == 0 && array.is_same(task.ins[0]);
        if mode == Mode::InPlace && !may_replace {
            return Err(Error::Use(format!("`{name}` cannot write output {place} in place of an input")));
        }
    }
    let shapes: Vec<_> = ins.iter().map(|array| array.shape().to_vec()).collect();
    let (temporary, random) = (operator.temporary(&shapes), signature.random[pass as usize]);
    let run = Arc::clone(operator);
    Task { temporary, random, ..task }.push(ins[0].runtime(), move |views| run.run(pass, views))
}

/// Applies an operator to arrays. Returns new arrays for its outputs without waiting for their values.
///
/// # Errors
/// The number of inputs is wrong, or their shapes or devices do not match; the GPU is out of memory, or is a CUDA
/// device; the engine refuses the push.
#[track_caller]
pub fn invoke(operator: &Arc<dyn Operator>, ins: &[&Array], training: bool) -> Result<Vec<Array>, Error> {
    let shapes = infer_outputs(&**operator, ins)?;
    let outs = shapes.iter().map(|shape| Array::new(ins[0].runtime(), shape)).collect::<Result<Vec<_>, _>>()?;
    let places: Vec<_> = outs.iter().map(|out| (Some(out), Mode::Write)).collect();
    invoke_into(operator, ins, &places, training)?;
    Ok(outs)
}

/// Applies an operator to arrays and writes the results to existing arrays. Only the first output can have
/// [`Mode::InPlace`]. This output must then be the first input, and the operator's [signature](Signature::in_place)
/// must permit the replacement.
///
/// # Errors
/// The number of inputs or outputs is wrong, or their shapes or devices do not match; an output with [`Mode::InPlace`]
/// may not replace an input; memory is exhausted, or the device is a CUDA device; the engine refuses the push.
#[track_caller]
pub fn invoke_into(
    operator: &Arc<dyn Operator>,
    ins: &[&Array],
    outs: &[(Option<&Array>, Mode)],
    training: bool,
) -> Result<(), Error> {
    let written = infer_outputs(&**operator, ins)?;
    let task = Task { outs: outs.to_vec(), training, ..Task::new(operator.signature().name, ins.to_vec()) };
    push(operator, Pass::Forward, ins, &written, task)
}

/// Pushes the backward pass of an operator applied to arrays: from the gradient of the first output to the gradients of
/// the inputs.
///
/// # Errors
/// The number of arrays is wrong, or their shapes or devices do not match; a gradient with [`Mode::InPlace`] is not an
/// array that it may replace; memory is exhausted, or the device is a CUDA device; the engine refuses the push.
#[track_caller]
pub fn invoke_backward(
    operator: &Arc<dyn Operator>,
    gradient: &Array,
    ins: &[&Array],
    outs: &[&Array],
    gradients: &[(Option<&Array>, Mode)],
) -> Result<(), Error> {
    let signature = operator.signature();
    let name = format!("{} backward", signature.name);
    let expected = infer_outputs(&**operator, ins)?;
    if outs.len() != expected.len() {
        return Err(Error::Use(format!("`{name}` reads {} outputs, not {}", expected.len(), outs.len())));
    }
    Error::check_shape(&name, "gradient", &expected[0], gradient.shape())?;
    for (out, shape) in outs.iter().zip(&expected) {
        Error::check_shape(&name, "output", shape, out.shape())?;
    }
    let written: Vec<_> = ins.iter().map(|array| array.shape().to_vec()).collect();
    let task = Task::new(name, signature.backward_reads(gradient, ins, outs));
    push(operator, Pass::Backward, ins, &written, Task { outs: gradients.to_vec(), training: true, ..task })
}
