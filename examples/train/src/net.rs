//! The net for handwritten digits, and its parameters' initial values.

use std::{collections::BTreeMap, sync::Arc};

use crate::operator::{Convolution, Dropout, FullyConnected, Pooling, PoolingKind, SoftmaxCrossEntropy};
use crate::{Array, Arrays, Error, Runtime, Shape, Symbol, simple, volume};

/// Returns the loss of a net with two convolutions and two fully connected layers. The graph's arguments are `data`,
/// `label` and the parameters; the loss operator's second output holds the probabilities. The loss is the sum over the
/// examples in `data`, divided by `batch`.
pub fn digits(classes: usize, batch: usize, dropout: f32) -> Symbol {
    let relu = |name: &str, x: &Symbol| Symbol::apply(simple::RELU.with(0.0), name, &[x]);
    let drop = |name: &str, x: &Symbol| Symbol::apply(Dropout { share: dropout }, name, &[x]);
    let data = Symbol::variable("data");
    let x = Symbol::apply(Convolution { filters: 16, size: 3, pad: 1 }, "conv1", &[&data]);
    let x = relu("relu1", &x);
    let x = Symbol::apply(Convolution { filters: 32, size: 3, pad: 1 }, "conv2", &[&x]);
    let x = relu("relu2", &x);
    let x = Symbol::apply(Pooling { size: 2, kind: PoolingKind::Max }, "pool", &[&x]);
    let x = if dropout > 0.0 { drop("dropout1", &x) } else { x };
    let x = Symbol::apply(FullyConnected { outputs: 64 }, "full1", &[&x]);
    let x = relu("relu3", &x);
    let x = if dropout > 0.0 { drop("dropout2", &x) } else { x };
    let x = Symbol::apply(FullyConnected { outputs: classes }, "full2", &[&x]);
    let scale = 1.0 / batch as f32;
    Symbol::apply(SoftmaxCrossEntropy { scale }, "loss", &[&x, &Symbol::variable("label")])
}

/// Returns the names of a net's parameters, from the first layer to the last.
pub fn parameters(net: &Symbol) -> Vec<String> {
    net.arguments().into_iter().filter(|name| name != "data" && name != "label").collect()
}

/// Returns arrays for the parameters of a net whose data have the shape `data`: normally distributed weights (He
/// initialization) and zero biases.
///
/// # Errors
/// The shapes do not match; the GPU is out of memory, or is a CUDA device; the engine refuses a push.
pub fn initial(net: &Symbol, runtime: &Arc<Runtime>, data: &[usize]) -> Result<Arrays, Error> {
    let shapes: BTreeMap<String, Shape> = net.infer_shapes(&[("data".into(), data.into())].into())?;
    let array = |name: String| {
        let shape = &shapes[&name];
        let array = if name.ends_with("_bias") {
            Array::full(runtime, shape, 0.0)?
        } else {
            Array::normal(runtime, shape, (2.0 / volume(&shape[1..]) as f32).sqrt())?
        };
        Ok((name, array))
    };
    parameters(net).into_iter().map(array).collect()
}
