//! An operator that downsamples images.

use crate::{Misfit, Operator, Shape, Signature, Views, error::known};

/// How the pixels of a square are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingKind {
    /// The largest value; of equal values, the first.
    Max,
    /// The mean.
    Mean,
}

/// An operator that replaces each square of `size` by `size` pixels with one pixel. The data have the shape
/// `[examples, channels, rows, columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Pooling {
    /// The number of rows of a square.
    pub size: usize,
    /// How the pixels of a square are combined.
    pub kind: PoolingKind,
}

impl Pooling {
    /// Returns the indices, in data of this shape, of the pixels in the square for index `place` of the result.
    fn square(&self, data: &[usize], place: usize) -> impl Iterator<Item = usize> + use<> {
        let (size, width) = (self.size, data[3]);
        let columns = width / size;
        // The rows of all images can be treated as one sequence, since no square extends past the end of an image.
        let corner = place / columns * size * width + place % columns * size;
        (0..size * size).map(move |i| corner + i / size * width + i % size)
    }

    /// Returns the index of the largest value in a square, or of the first one among equal values.
    fn largest(&self, values: &[f32], data: &[usize], place: usize) -> usize {
        let square = self.square(data, place);
        square.reduce(|best, i| if values[i] > values[best] { i } else { best }).unwrap_or_default()
    }
}

impl Operator for Pooling {
    fn signature(&self) -> Signature {
        Signature::new("Pooling", &["data"], &[0], &[])
    }

    fn infer(&self, inputs: &mut [Option<Shape>]) -> Result<Vec<Shape>, Misfit> {
        let data = known(inputs, 0, "data")?;
        match data[..] {
            [count, channels, height, width] if [height, width].map(|n| n.checked_rem(self.size)) == [Some(0); 2] => {
                Ok(vec![vec![count, channels, height / self.size, width / self.size]])
            }
            _ => Err(Misfit::new("data", format!("[_, _, a multiple of {0}, a multiple of {0}]", self.size), &data)),
        }
    }

    fn forward(&self, mut views: Views<'_>) {
        let (data, out) = (views.ins[0], &mut views.outs[0]);
        match self.kind {
            PoolingKind::Max => out.fill(|place| data.values[self.largest(data.values, data.shape, place)]),
            PoolingKind::Mean => {
                let share = 1.0 / (self.size * self.size) as f32;
                out.fill(|place| self.square(data.shape, place).map(|i| data.values[i]).sum::<f32>() * share);
            }
        }
    }

    fn backward(&self, mut views: Views<'_>) {
        let ([gradient, data], out) = ([views.ins[0], views.ins[1]], &mut views.outs[0]);
        if !out.is_needed() {
            return;
        }
        out.begin_sum();
        for (place, gradient) in gradient.values.iter().enumerate() {
            match self.kind {
                PoolingKind::Max => out.values[self.largest(data.values, data.shape, place)] += gradient,
                PoolingKind::Mean => {
                    let share = gradient / (self.size * self.size) as f32;
                    self.square(data.shape, place).for_each(|i| out.values[i] += share);
                }
            }
        }
    }
}
