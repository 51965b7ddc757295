//! Matrix products and the rearrangements of a convolution: plain functions on slices. Each runs on one thread, so a
//! result's bits do not depend on the number of threads.

/// A matrix in row-major order, or its transpose.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Returns a matrix with this number of columns.
    pub fn new(values: &'a [f32], columns: usize) -> Self {
        let rows = values.len().checked_div(columns).unwrap_or(0);
        Self { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// Returns the transpose without moving any values.
    pub fn transposed(self) -> Self {
        let Self { values, rows, columns, row_stride, column_stride } = self;
        Self { values, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }
}

/// Computes `c = a b`, or `c += a b`.
///
/// # Panics
/// If the shapes do not match.
pub fn multiply(a: Matrix<'_>, b: Matrix<'_>, c: &mut [f32], add: bool) {
    assert_eq!(a.columns, b.rows, "the inner sizes of a product differ");
    assert_eq!(c.len(), a.rows * b.columns, "the product has the wrong size");
    assert!(a.rows * a.columns <= a.values.len() && b.rows * b.columns <= b.values.len(), "a matrix is incomplete");
    let stride = |stride: usize| stride as isize;
    // SAFETY: the sizes match the slices, as checked above. The strides belong to a matrix in row-major order or to its
    // transpose, so all of its elements lie within its slice. `c` is borrowed exclusively, and its elements are
    // distinct.
    unsafe {
        matrixmultiply::sgemm(
            a.rows,
            a.columns,
            b.columns,
            1.0,
            a.values.as_ptr(),
            stride(a.row_stride),
            stride(a.column_stride),
            b.values.as_ptr(),
            stride(b.row_stride),
            stride(b.column_stride),
            if add { 1.0 } else { 0.0 },
            c.as_mut_ptr(),
            stride(b.columns),
            1,
        );
    }
}

/// The sizes of a convolution of one image with stride 1.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Channels of the image.
    pub channels: usize,
    /// Rows of the image.
    pub height: usize,
    /// Columns of the image.
    pub width: usize,
    /// Rows and columns of the window.
    pub size: usize,
    /// The width of the border of zeros around the image.
    pub pad: usize,
}

impl Window {
    /// Returns the rows and columns of the result.
    pub fn output(&self) -> (usize, usize) {
        (self.height + 2 * self.pad + 1 - self.size, self.width + 2 * self.pad + 1 - self.size)
    }

    /// Returns the rows and columns of the matrix of windows.
    pub fn matrix(&self) -> (usize, usize) {
        let (height, width) = self.output();
        (self.channels * self.size * self.size, height * width)
    }

    /// Calls `f` for each run of pixels within one row of the image and one row of the matrix, with its index in the
    /// image, its index in the matrix, and its length.
    fn runs(&self, mut f: impl FnMut(usize, usize, usize)) {
        let (height, width) = self.output();
        let mut row_of_matrix = 0;
        for channel in 0..self.channels {
            for dy in 0..self.size {
                for dx in 0..self.size {
                    // The result's columns whose pixels lie within the image.
                    let from = self.pad.saturating_sub(dx);
                    let to = width.min((self.width + self.pad).saturating_sub(dx)).max(from);
                    for y in (0..height).filter(|y| (self.pad..self.pad + self.height).contains(&(y + dy))) {
                        let row = (channel * self.height + y + dy - self.pad) * self.width;
                        f(row + from + dx - self.pad, (row_of_matrix * height + y) * width + from, to - from);
                    }
                    row_of_matrix += 1;
                }
            }
        }
    }

    /// Writes the matrix of windows ("im2col"), with one column per pixel of the result.
    pub fn unfold(&self, image: &[f32], matrix: &mut [f32]) {
        matrix.fill(0.0);
        self.runs(|from, to, len| matrix[to..to + len].copy_from_slice(&image[from..from + len]));
    }

    /// Adds each element of a matrix of windows to its source pixel ("col2im").
    pub fn fold(&self, matrix: &[f32], image: &mut [f32]) {
        self.runs(|to, from, len| image[to..to + len].iter_mut().zip(&matrix[from..]).for_each(|(i, m)| *i += m));
    }
}
