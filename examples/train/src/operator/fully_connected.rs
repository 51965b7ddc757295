//! A layer in which each output depends on each input.

use super::{Operator, Signature};
use crate::{
    Shape,
    error::{Misfit, known, settle},
    kernels::{Matrix, multiply},
    task::{Mode, Views},
    volume,
};

/// `result = data weightᵀ + bias`. All axes of the data except the first are treated as one.
#[derive(Clone, Copy, Debug)]
pub struct FullyConnected {
    /// The number of values per example in the result.
    pub outputs: usize,
}

impl Operator for FullyConnected {
    fn signature(&self) -> Signature {
        Signature::new("FullyConnected", &["data", "weight", "bias"], &[0, 1], &[])
    }

    fn infer(&self, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit> {
        let data = known(inputs, 0, "data")?;
        let Some((&count, rest)) = data.split_first() else {
            return Err(Misfit::new("data", "[examples, ..]", &data));
        };
        settle(&mut inputs[1], "weight", vec![self.outputs, volume(rest)])?;
        settle(&mut inputs[2], "bias", vec![self.outputs])?;
        Ok(vec![vec![count, self.outputs]])
    }

    fn forward(&self, mut views: Views<'_>) {
        let ([data, weight, bias], out) = ([views.ins[0], views.ins[1], views.ins[2]], &mut views.outs[0]);
        // The output starts as the bias, to which the product is added.
        out.fill(|i| bias.values[i % self.outputs]);
        let width = data.values.len() / data.shape[0];
        multiply(Matrix::new(data.values, width), Matrix::new(weight.values, width).transposed(), out.values, true);
    }

    fn backward(&self, mut views: Views<'_>) {
        let [gradient, data, weight] = [views.ins[0], views.ins[1], views.ins[2]];
        let width = data.values.len() / data.shape[0];
        let gradients = Matrix::new(gradient.values, self.outputs);
        let [of_data, of_weight, of_bias] = &mut views.outs[..] else { return };
        if of_data.is_needed() {
            multiply(gradients, Matrix::new(weight.values, width), of_data.values, of_data.mode == Mode::Add);
        }
        if of_weight.is_needed() {
            let data = Matrix::new(data.values, width);
            multiply(gradients.transposed(), data, of_weight.values, of_weight.mode == Mode::Add);
        }
        if of_bias.is_needed() {
            of_bias.begin_sum();
            for row in gradient.values.chunks_exact(self.outputs) {
                of_bias.values.iter_mut().zip(row).for_each(|(sum, gradient)| *sum += gradient);
            }
        }
    }
}
