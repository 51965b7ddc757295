//! A layer in which each output depends on each input.

use crate::error::{known, settle};
use crate::kernels::{Matrix, multiply};
use crate::{Misfit, Operator, Out, Shape, Signature, View, Views, volume};

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
        // The bias is stored first or, with `Mode::Add`, added to the old values. Then the product is added.
        out.fill(|i| bias.values[i % self.outputs]);
        let [data, weight] = [data, weight].map(matrix);
        multiply(data, weight.transposed(), out.values, true);
    }

    fn backward(&self, mut views: Views<'_>) {
        let [gradient, data, weight] = [views.ins[0], views.ins[1], views.ins[2]].map(matrix);
        views.outs.iter_mut().for_each(Out::begin_sum);
        let [of_data, of_weight, of_bias] = &mut views.outs[..] else { return };
        if of_data.is_needed() {
            multiply(gradient, weight, of_data.values, true);
        }
        if of_weight.is_needed() {
            multiply(gradient.transposed(), data, of_weight.values, true);
        }
        for row in views.ins[0].values.chunks_exact(self.outputs.max(1)) {
            of_bias.values.iter_mut().zip(row).for_each(|(sum, gradient)| *sum += gradient);
        }
    }
}

/// Returns an array as a matrix with one row for each index of the first axis.
fn matrix(view: View<'_>) -> Matrix<'_> {
    Matrix::new(view.values, [view.shape[0], volume(&view.shape[1..])])
}
