//! A convolution of images, as a product with a matrix of windows ("im2col").

use super::{Operator, Signature};
use crate::{
    Shape,
    error::{Misfit, known, settle},
    kernels::{Matrix, Window, multiply},
    task::{Mode, Views},
};

/// A convolution with stride 1. The data have the shape `[examples, channels, rows, columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Convolution {
    /// The number of channels of the result.
    pub filters: usize,
    /// Rows and columns of the window.
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
        let least = self.size.saturating_sub(2 * self.pad).max(1);
        let &[count, channels, height, width] = &data[..] else {
            return Err(Misfit::new("data", "[examples, channels, rows, columns]", &data));
        };
        if height < least || width < least {
            return Err(Misfit::new("data", format!("[_, _, {least} or more, {least} or more]"), &data));
        }
        settle(&mut inputs[1], "weight", vec![self.filters, channels, self.size, self.size])?;
        settle(&mut inputs[2], "bias", vec![self.filters])?;
        let (height, width) = self.window(&data).output();
        Ok(vec![vec![count, self.filters, height, width]])
    }

    fn temporary(&self, inputs: &[Shape]) -> usize {
        let (rows, columns) = self.window(&inputs[0]).matrix();
        rows * columns
    }

    fn forward(&self, views: Views<'_>) {
        let ([data, weight, bias], mut outs) = ([views.ins[0], views.ins[1], views.ins[2]], views.outs);
        let window = self.window(data.shape);
        let (rows, columns) = window.matrix();
        let out = &mut outs[0];
        out.fill(|i| bias.values[i / columns % self.filters]);
        let images = data.values.chunks_exact(data.values.len() / data.shape[0]);
        for (image, out) in images.zip(out.values.chunks_exact_mut(self.filters * columns)) {
            window.unfold(image, views.temporary);
            multiply(Matrix::new(weight.values, rows), Matrix::new(views.temporary, columns), out, true);
        }
    }

    fn backward(&self, mut views: Views<'_>) {
        let [gradient, data, weight] = [views.ins[0], views.ins[1], views.ins[2]];
        let window = self.window(data.shape);
        let (rows, columns) = window.matrix();
        let matrix = views.temporary;
        let [of_data, of_weight, of_bias] = &mut views.outs[..] else { return };
        of_data.begin_sum();
        of_bias.begin_sum();
        let image_size = data.values.len() / data.shape[0];
        // Examples are added in order, so that sums have the same bits in every run.
        for (example, gradient) in gradient.values.chunks_exact(self.filters * columns).enumerate() {
            let gradients = Matrix::new(gradient, columns);
            let image = example * image_size..(example + 1) * image_size;
            if of_weight.is_needed() {
                window.unfold(&data.values[image.clone()], matrix);
                let add = example > 0 || of_weight.mode == Mode::Add;
                multiply(gradients, Matrix::new(matrix, columns).transposed(), of_weight.values, add);
            }
            for (sum, row) in of_bias.values.iter_mut().zip(gradient.chunks_exact(columns)) {
                *sum += row.iter().sum::<f32>();
            }
            if of_data.is_needed() {
                multiply(Matrix::new(weight.values, rows).transposed(), gradients, matrix, false);
                window.fold(matrix, &mut of_data.values[image]);
            }
        }
    }
}
