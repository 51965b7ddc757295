//! Matrix products and the rearrangements of a convolution: plain functions on slices. Each function runs on one
//! thread, so a result's bits do not depend on the number of threads.

use crate::volume;

/// A matrix in row-major order, or its transpose.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    values: &'a [f32],
    /// The numbers of rows and columns.
    size: [usize; 2],
    /// The distances in `values` from an element to the next one in its column, and to the next one in its row.
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// Returns a matrix. `size` holds the numbers of its rows and columns.
    ///
    /// # Panics
    /// If the number of values does not match the size.
    pub fn new(values: &'a [f32], size: [usize; 2]) -> Self {
        assert_eq!(values.len(), volume(&size), "a matrix of {size:?} has the wrong number of values");
        Self { values, size, strides: [size[1], 1] }
    }

    /// Returns the transpose without moving any values.
    pub fn transposed(self) -> Self {
        let Self { values, size: [rows, columns], strides: [row, column] } = self;
        Self { values, size: [columns, rows], strides: [column, row] }
    }
}

/// Computes `c = a b`, or `c += a b` if `add` is `true`.
///
/// # Panics
/// If the shapes do not match.
pub fn multiply(a: Matrix<'_>, b: Matrix<'_>, c: &mut [f32], add: bool) {
    let ([rows, inner], [other_inner, columns]) = (a.size, b.size);
    assert_eq!(inner, other_inner, "the inner sizes of a product differ");
    assert_eq!(c.len(), volume(&[rows, columns]), "the product has the wrong size");
    let [a_strides, b_strides] = [a, b].map(|matrix| matrix.strides.map(|stride| stride as isize));
    // SAFETY: the slices have as many values as the matrices have elements, as checked above and by `Matrix::new`. The
    // strides belong to a matrix in row-major order or to its transpose, so all of its elements lie within its slice.
    // `c` is borrowed exclusively, and its elements are distinct.
    unsafe {
        matrixmultiply::sgemm(
            rows,
            inner,
            columns,
            1.0,
            a.values.as_ptr(),
            a_strides[0],
            a_strides[1],
            b.values.as_ptr(),
            b_strides[0],
            b_strides[1],
            if add { 1.0 } else { 0.0 },
            c.as_mut_ptr(),
            columns as isize,
            1,
        );
    }
}

/// The sizes of a convolution of one image with stride 1.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The number of channels of the image.
    pub channels: usize,
    /// The number of rows of the image.
    pub height: usize,
    /// The number of columns of the image.
    pub width: usize,
    /// The number of rows of the window, which is square.
    pub size: usize,
    /// The width of the border of zeros around the image.
    pub pad: usize,
}

impl Window {
    /// Returns the numbers of rows and columns of the result. A number is 0 if, in its direction, the window is larger
    /// than the image with its border.
    pub fn output(&self) -> [usize; 2] {
        let border = self.pad.saturating_mul(2).saturating_add(1);
        [self.height, self.width].map(|length| length.saturating_add(border).saturating_sub(self.size))
    }

    /// Returns the numbers of rows and columns of the matrix of windows.
    pub fn matrix(&self) -> [usize; 2] {
        [volume(&[self.channels, self.size, self.size]), volume(&self.output())]
    }

    /// Calls `f` for each run of pixels that lies in one row of the image and in one row of the matrix. The arguments
    /// are the run's index in the image, its index in the matrix, and its length.
    fn runs(&self, mut f: impl FnMut(usize, usize, usize)) {
        let [height, width] = self.output();
        let mut row_of_matrix = 0;
        for channel in 0..self.channels {
            for dy in 0..self.size {
                for dx in 0..self.size {
                    // The columns of the result for which column `dx` of the window lies within the image.
                    let from = self.pad.saturating_sub(dx);
                    let to = width.min((self.width + self.pad).saturating_sub(dx));
                    let is_within = |y: &usize| from < to && (self.pad..self.pad + self.height).contains(&(y + dy));
                    for y in (0..height).filter(is_within) {
                        let row = (channel * self.height + y + dy - self.pad) * self.width;
                        f(row + from + dx - self.pad, (row_of_matrix * height + y) * width + from, to - from);
                    }
                    row_of_matrix += 1;
                }
            }
        }
    }

    /// Writes the matrix of windows ("im2col"), with one column per pixel of the result.
    ///
    /// # Panics
    /// The function may panic if the image or the matrix is too small.
    pub fn unfold(&self, image: &[f32], matrix: &mut [f32]) {
        matrix.fill(0.0);
        self.runs(|from, to, len| matrix[to..to + len].copy_from_slice(&image[from..from + len]));
    }

    /// Adds each element of a matrix of windows to its source pixel ("col2im").
    ///
    /// # Panics
    /// The function may panic if the image or the matrix is too small.
    pub fn fold(&self, matrix: &[f32], image: &mut [f32]) {
        self.runs(|to, from, len| image[to..to + len].iter_mut().zip(&matrix[from..]).for_each(|(i, m)| *i += m));
    }
}
