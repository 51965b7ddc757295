//! Operators: a layer's computation, and what the engine must know about it.
//!
//! An [`Operator`] has no variables. It specifies which shapes are valid, what its gradients depend on, which outputs
//! may replace an input, and which resources it uses. [`forward_task`] and [`backward_task`] describe operations on
//! arrays, each pushed once. The operations created by an [`Executor`](crate::Executor) are pushed many times.

use std::{fmt, sync::Arc};

use crate::{
    Shape,
    array::Array,
    error::{Error, Misfit},
    task::{Mode, Task, Views},
};

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

/// The resources used by an operation besides its arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The size of the temporary space, in values.
    pub temporary: usize,
    /// Whether it uses a random generator.
    pub random: bool,
}

/// The arrays read by an operator's backward pass besides the gradient of its first output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// The indices of inputs of the forward pass.
    pub inputs: &'static [usize],
    /// The indices of outputs of the forward pass.
    pub outputs: &'static [usize],
}

/// A differentiable function of arrays.
///
/// The first output is the result. Further outputs are kept for the backward pass.
pub trait Operator: fmt::Debug + Send + Sync + 'static {
    /// Returns the name of the operator.
    fn name(&self) -> &'static str;

    /// Returns the names of its inputs.
    fn arguments(&self) -> &'static [&'static str];

    /// Returns the number of inputs with gradients, which come first.
    fn differentiable(&self) -> usize {
        self.arguments().len()
    }

    /// Fills in input shapes that follow from those of other inputs, and returns the output shapes.
    ///
    /// # Errors
    /// The shapes do not match.
    fn infer(&self, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit>;

    /// Returns the resources needed by a pass for inputs of these shapes.
    fn request(&self, pass: Pass, inputs: &[Shape]) -> Request {
        let _ = (pass, inputs);
        Request::default()
    }

    /// Returns the arrays read by the backward pass.
    fn needs(&self) -> Needs;

    /// Returns pairs of values that may share memory: the index of a value read by the pass, and of a value written by
    /// it.
    fn in_place(&self, pass: Pass) -> &'static [(usize, usize)] {
        let _ = pass;
        &[]
    }

    /// Computes the outputs.
    fn forward(&self, views: Views<'_>);

    /// Computes the gradients of the differentiable inputs. This pass's inputs are the gradient of the first output,
    /// followed by the arrays that the operator [needs](Self::needs).
    fn backward(&self, views: Views<'_>);
}

/// Returns the shape of an input, which must be known.
pub fn known(inputs: &[Option<Shape>], index: usize, argument: &str) -> Result<Shape, Misfit> {
    let unknown = || Misfit { argument: argument.into(), expected: "known".into(), found: Shape::new() };
    inputs[index].clone().ok_or_else(unknown)
}

/// Returns the error for an argument with the wrong shape.
pub fn misfit(argument: &str, expected: impl Into<String>, found: &[usize]) -> Misfit {
    Misfit { argument: argument.into(), expected: expected.into(), found: found.into() }
}

/// Describes an operator's forward pass.
pub fn forward_task<'a>(
    name: impl Into<raddle::Name>,
    operator: &dyn Operator,
    ins: Vec<&'a Array>,
    outs: Vec<(Option<&'a Array>, Mode)>,
    training: bool,
) -> Task<'a> {
    let shapes: Vec<_> = ins.iter().map(|array| array.shape().to_vec()).collect();
    let Request { temporary, random } = operator.request(Pass::Forward, &shapes);
    Task { outs, temporary, random, training, ..Task::new(name, ins) }
}

/// Returns the inputs of an operator's backward pass: the gradient, and the inputs and outputs that it needs.
pub fn backward_reads<T: Copy>(operator: &dyn Operator, gradient: T, ins: &[T], outs: &[Option<T>]) -> Vec<T> {
    let Needs { inputs, outputs } = operator.needs();
    let inputs = inputs.iter().map(|&index| ins[index]);
    let outputs = outputs.iter().filter_map(|&index| outs[index]);
    [gradient].into_iter().chain(inputs).chain(outputs).collect()
}

/// Describes an operator's backward pass: `ins` and `outs` are the arrays of the forward pass, `gradient` is the
/// gradient of its first output, and `gradients` are those of the inputs.
pub fn backward_task<'a>(
    name: impl Into<raddle::Name>,
    operator: &dyn Operator,
    gradient: &'a Array,
    ins: &[&'a Array],
    outs: &[Option<&'a Array>],
    gradients: Vec<(Option<&'a Array>, Mode)>,
) -> Task<'a> {
    let shapes: Vec<_> = ins.iter().map(|array| array.shape().to_vec()).collect();
    let Request { temporary, random } = operator.request(Pass::Backward, &shapes);
    let reads = backward_reads(operator, gradient, ins, outs);
    Task { outs: gradients, temporary, random, training: true, ..Task::new(name, reads) }
}

/// Returns the output shapes of an operator applied to arrays.
fn infer(operator: &dyn Operator, ins: &[&Array]) -> Result<Vec<Shape>, Error> {
    let (count, name) = (operator.arguments().len(), operator.name());
    if ins.len() != count {
        return Err(Error::Use(format!("`{name}` takes {count} inputs, not {}", ins.len())));
    }
    let mut shapes: Vec<_> = ins.iter().map(|array| Some(array.shape().to_vec())).collect();
    operator.infer(&mut shapes).map_err(|misfit| Error::Shape { operator: name.into(), misfit })
}

/// Applies an operator to arrays and returns new arrays immediately.
///
/// # Errors
/// The shapes do not match; the engine refuses the push.
#[track_caller]
pub fn invoke(operator: &Arc<dyn Operator>, ins: &[&Array], training: bool) -> Result<Vec<Array>, Error> {
    let shapes = infer(&**operator, ins)?;
    let outs = shapes.iter().map(|shape| Array::new(ins[0].runtime(), shape)).collect::<Result<Vec<_>, _>>()?;
    let places: Vec<_> = outs.iter().map(|out| (Some(out), Mode::Write)).collect();
    invoke_into(operator, ins, &places, training)?;
    Ok(outs)
}

/// Applies an operator to arrays and writes the results to existing arrays. With [`Mode::InPlace`], an output must be
/// an input that the operator [may overwrite](Operator::in_place) with it.
///
/// # Errors
/// Returns an error if the shapes do not match, if an output with [`Mode::InPlace`] is not one of the inputs that it
/// may replace, or if the engine refuses the push.
#[track_caller]
pub fn invoke_into(
    operator: &Arc<dyn Operator>,
    ins: &[&Array],
    outs: &[(Option<&Array>, Mode)],
    training: bool,
) -> Result<(), Error> {
    for (shape, (array, _)) in infer(&**operator, ins)?.iter().zip(outs) {
        if let Some(array) = array.filter(|array| array.shape() != shape) {
            return Err(Error::shape(operator.name(), "output", format!("{shape:?}"), array.shape()));
        }
    }
    for (out, array) in outs.iter().enumerate().filter(|(_, (_, mode))| *mode == Mode::InPlace) {
        let is_input = |&&(input, place): &&(usize, usize)| {
            let same =
                |array: &Array| Arc::ptr_eq(array.chunk(), ins[input].chunk()) && array.range() == ins[input].range();
            place == out && array.0.is_some_and(same)
        };
        if !operator.in_place(Pass::Forward).iter().any(|pair| is_input(&pair)) {
            return Err(Error::Use(format!("`{}` cannot write output {out} in place of an input", operator.name())));
        }
    }
    let run = Arc::clone(operator);
    let task = forward_task(operator.name(), &**operator, ins.to_vec(), outs.to_vec(), training);
    task.push(ins[0].runtime(), move |views| run.forward(views))
}

/// Pushes the backward pass of an operator applied to arrays.
///
/// # Errors
/// The engine refuses the push.
#[track_caller]
pub fn invoke_backward(
    operator: &Arc<dyn Operator>,
    gradient: &Array,
    ins: &[&Array],
    outs: &[&Array],
    gradients: &[(Option<&Array>, Mode)],
) -> Result<(), Error> {
    let run = Arc::clone(operator);
    let outs: Vec<_> = outs.iter().copied().map(Some).collect();
    let name = format!("{} backward", operator.name());
    let task = backward_task(name, &**operator, gradient, ins, &outs, gradients.to_vec());
    task.push(gradient.runtime(), move |views| run.backward(views))
}
