//! A convolution of images, as a product with a matrix of windows ("im2col").

use crate::error::{known, settle};
use crate::kernels::{Matrix, Window, multiply};
use crate::{Misfit, Operator, Out, Shape, Signature, Views, volume};

/// A convolution with stride 1. The data have the shape `[examples, channels, rows, columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Convolution {
    /// The number of channels of the result.
    pub filters: usize,
    /// The number of rows of the window, which is square.
    pub size: usize,
    /// The width of the border of zeros around the image.
    pub pad: usize,
}

impl Convolution {
    fn window(&self, data: &[usize]) -> Window {
        Window { channels: data[1], height: data[2], width: data[3], size: self.size, pad: self.pad }
    }
}

impl Operator for Convolution {
    fn signature(&self) -> Signature {
        Signature::new("Convolution", &["data", "weight", "bias"], &[0, 1], &[])
    }

    fn infer(&self, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit> {
        let data = known(inputs, 0, "data")?;
        let &[count, channels, _, _] = &data[..] else {
            return Err(Misfit::new("data", "[examples, channels, rows, columns]", &data));
        };
        let [height, width] = self.window(&data).output();
        if height == 0 || width == 0 {
            let least = self.size.saturating_sub(self.pad.saturating_mul(2));
            return Err(Misfit::new("data", format!("[_, _, {least} or more, {least} or more]"), &data));
        }
        settle(&mut inputs[1], "weight", vec![self.filters, channels, self.size, self.size])?;
        settle(&mut inputs[2], "bias", vec![self.filters])?;
        Ok(vec![vec![count, self.filters, height, width]])
    }

    fn temporary(&self, inputs: &[Shape]) -> usize {
        volume(&self.window(&inputs[0]).matrix())
    }

    fn forward(&self, mut views: Views<'_>) {
        let ([data, weight, bias], out) = ([views.ins[0], views.ins[1], views.ins[2]], &mut views.outs[0]);
        let window = self.window(data.shape);
        let [rows, columns] = window.matrix();
        let [image, result] = [volume(&data.shape[1..]), volume(&out.shape[1..])];
        out.fill(|i| bias.values[i / columns % self.filters]);
        let weight = Matrix::new(weight.values, [self.filters, rows]);
        for (example, result) in out.values.chunks_exact_mut(result.max(1)).enumerate() {
            window.unfold(&data.values[example * image..][..image], views.temporary);
            multiply(weight, Matrix::new(views.temporary, [rows, columns]), result, true);
        }
    }

    fn backward(&self, mut views: Views<'_>) {
        let [gradient, data, weight] = [views.ins[0], views.ins[1], views.ins[2]];
        let window = self.window(data.shape);
        let [rows, columns] = window.matrix();
        let [image, result] = [volume(&data.shape[1..]), volume(&gradient.shape[1..])];
        let weight = Matrix::new(weight.values, [self.filters, rows]);
        let matrix = views.temporary;
        views.outs.iter_mut().for_each(Out::begin_sum);
        let [of_data, of_weight, of_bias] = &mut views.outs[..] else { return };
        // The contributions of the examples are added in order, so that sums have the same bits in every run.
        for (example, gradient) in gradient.values.chunks_exact(result.max(1)).enumerate() {
            let gradients = Matrix::new(gradient, [self.filters, columns]);
            if of_weight.is_needed() {
                window.unfold(&data.values[example * image..][..image], matrix);
                multiply(gradients, Matrix::new(matrix, [rows, columns]).transposed(), of_weight.values, true);
            }
            for (sum, row) in of_bias.values.iter_mut().zip(gradient.chunks_exact(columns)) {
                *sum += row.iter().sum::<f32>();
            }
            if of_data.is_needed() {
                multiply(weight.transposed(), gradients, matrix, false);
                window.fold(matrix, &mut of_data.values[example * image..][..image]);
            }
        }
    }
}
