//! The loss function of a classification.

use crate::error::{known, settle};
use crate::{Misfit, Operator, Shape, Signature, Views};

/// The sum over all examples of `-ln(probability of the label)`, times a scale. The data have the shape
/// `[examples, classes]`.
///
/// The second output holds the probabilities ("softmax"). If a label is not less than the number of classes, the sum is
/// NaN.
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxCrossEntropy {
    /// The factor of the sum. For a mean, it is the reciprocal of the number of examples in a batch, even if this
    /// operator sees only part of the batch.
    pub scale: f32,
}

impl Operator for SoftmaxCrossEntropy {
    fn signature(&self) -> Signature {
        Signature { differentiable: 1, ..Signature::new("SoftmaxCrossEntropy", &["data", "label"], &[1], &[1]) }
    }

    fn infer(&self, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit> {
        let data = known(inputs, 0, "data")?;
        let &[count, _] = &data[..] else { return Err(Misfit::new("data", "[examples, classes]", &data)) };
        settle(&mut inputs[1], "label", vec![count])?;
        Ok(vec![vec![1], data])
    }

    fn forward(&self, mut views: Views<'_>) {
        let [data, label] = [views.ins[0], views.ins[1]];
        let [loss, probabilities] = &mut views.outs[..] else { return };
        let classes = data.shape[1];
        let mut sum = 0.0;
        for (example, row) in data.values.chunks_exact(classes.max(1)).enumerate() {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f32 = row.iter().map(|value| (value - largest).exp()).sum();
            let value = row.get(label.values[example] as usize).unwrap_or(&f32::NAN);
            sum -= value - largest - total.ln();
            if probabilities.is_needed() {
                let out = probabilities.values[example * classes..].iter_mut();
                out.zip(row).for_each(|(out, value)| *out = (value - largest).exp() / total);
            }
        }
        loss.fill(|_| sum * self.scale);
    }

    fn backward(&self, mut views: Views<'_>) {
        let [gradient, label, probabilities] = [views.ins[0], views.ins[1], views.ins[2]];
        let (classes, scale) = (probabilities.shape[1], gradient.values[0] * self.scale);
        views.outs[0].fill(|i| {
            let is_label = label.values[i / classes] as usize == i % classes;
            scale * (probabilities.values[i] - if is_label { 1.0 } else { 0.0 })
        });
    }
}
