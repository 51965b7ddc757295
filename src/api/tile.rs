//! References to the elements of a tile: part of an array with two dimensions.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Index, IndexMut},
    ptr::NonNull,
    slice,
};

/// Where the elements of a part are: `rows` runs of `columns` elements, of which each begins `stride` elements after
/// the one before.
#[derive(Debug)]
pub struct Extent<T> {
    pub(super) first: NonNull<T>,
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl<T> Clone for Extent<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Extent<T> {}

impl<T> Extent<T> {
    /// Returns a pointer to the first element of a row.
    ///
    /// # Safety
    /// 1. There are elements there. `row` is less than `rows`.
    unsafe fn row(&self, row: usize) -> NonNull<T> {
        // SAFETY: (1): the row begins within the elements, or `columns` is 0 and `row` is within their bounds.
        unsafe { self.first.add(row * self.stride) }
    }

    /// Returns the elements of a row.
    ///
    /// # Safety
    /// 1. The elements are valid for reads during `'a`.
    ///
    /// # Panics
    /// If there is no such row.
    #[track_caller]
    unsafe fn shared<'a>(&self, row: usize) -> &'a [T] {
        assert!(row < self.rows, "row {row} of a tile with {} rows", self.rows);
        // SAFETY: (1); the row was checked.
        unsafe { slice::from_raw_parts(self.row(row).as_ptr(), self.columns) }
    }

    /// Returns the elements of a row.
    ///
    /// # Safety
    /// 1. Only the caller uses the elements of the row during `'a`.
    ///
    /// # Panics
    /// If there is no such row.
    #[track_caller]
    unsafe fn exclusive<'a>(&self, row: usize) -> &'a mut [T] {
        assert!(row < self.rows, "row {row} of a tile with {} rows", self.rows);
        // SAFETY: (1); the row was checked.
        unsafe { slice::from_raw_parts_mut(self.row(row).as_ptr(), self.columns) }
    }
}

/// The elements of a tile, for reading: what an operation receives for a [`read`](crate::Part::read) of
/// [`Tiles`](crate::Tiles).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let image = engine.tiles((0..12).collect(), 4, [3, 2])?; // three rows of four
/// let sum = engine.op("sum").submit(image.region(1..3, 1..3)?.read(), |tile| {
///     assert_eq!((tile.rows(), tile.columns()), (2, 2));
///     assert_eq!((tile[[0, 0]], tile.row(1)), (5, &[9, 10][..]));
///     tile.iter().flatten().sum::<i32>()
/// })?;
/// assert_eq!(sum.wait()?, 5 + 6 + 9 + 10);
/// # Ok(())
/// # }
/// ```
pub struct TileRef<'a, T> {
    extent: Extent<T>,
    elements: PhantomData<&'a [T]>,
}

// SAFETY: a `TileRef` is as good as a `&[T]`.
unsafe impl<T: Sync> Send for TileRef<'_, T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for TileRef<'_, T> {}

impl<T> Clone for TileRef<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for TileRef<'_, T> {}

impl<'a, T> TileRef<'a, T> {
    /// # Safety
    /// 1. The elements are valid for reads during `'a`.
    pub(super) unsafe fn new(extent: Extent<T>) -> Self {
        Self { extent, elements: PhantomData }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.extent.rows
    }

    /// Returns the number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.extent.columns
    }

    /// Returns a row of the tile.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    #[track_caller]
    pub fn row(&self, row: usize) -> &'a [T] {
        // SAFETY: (1) of `new`.
        unsafe { self.extent.shared(row) }
    }

    /// Returns the tile's rows, in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &'a [T]> + ExactSizeIterator + Clone + use<'a, T> {
        let tile = *self;
        (0..self.rows()).map(move |row| tile.row(row))
    }
}

/// The element in a row and a column of the tile.
impl<T> Index<[usize; 2]> for TileRef<'_, T> {
    type Output = T;

    #[track_caller]
    fn index(&self, [row, column]: [usize; 2]) -> &T {
        &self.row(row)[column]
    }
}

impl<T: fmt::Debug> fmt::Debug for TileRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The elements of a tile, for mutations: what an operation receives for a [`write`](crate::Part::write) of
/// [`Tiles`](crate::Tiles).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let image = engine.tiles(vec![0; 12], 4, [3, 2])?;
/// engine.op("draw").push(image.tile(0, 1)?.write(), |mut tile| {
///     tile.iter_mut().for_each(|row| row.fill(1));
///     tile[[2, 0]] = 5;
///     tile.row_mut(0).reverse();
/// })?;
/// let all = engine.op("copy").submit(image.all().read(), |all| all.iter().collect::<Vec<_>>().concat())?;
/// assert_eq!(all.wait()?, [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 5, 1]);
/// # Ok(())
/// # }
/// ```
pub struct TileMut<'a, T> {
    extent: Extent<T>,
    elements: PhantomData<&'a mut [T]>,
}

// SAFETY: a `TileMut` is as good as a `&mut [T]`.
unsafe impl<T: Send> Send for TileMut<'_, T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for TileMut<'_, T> {}

impl<T> TileMut<'_, T> {
    /// # Safety
    /// 1. Only the result uses the elements during its lifetime.
    pub(super) unsafe fn new(extent: Extent<T>) -> Self {
        Self { extent, elements: PhantomData }
    }

    /// Returns the tile for reading.
    #[must_use]
    pub fn view(&self) -> TileRef<'_, T> {
        // SAFETY: (1): by (1) of `new`, nothing mutates the elements while this is borrowed.
        unsafe { TileRef::new(self.extent) }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.view().rows()
    }

    /// Returns the number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.view().columns()
    }

    /// Returns a row of the tile for reading.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    #[track_caller]
    pub fn row(&self, row: usize) -> &[T] {
        self.view().row(row)
    }

    /// Returns a row of the tile.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    #[track_caller]
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        // SAFETY: (1): only the caller uses the elements while this is borrowed.
        unsafe { self.exclusive(row) }
    }

    /// Returns the tile's rows, in their order.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut [T]> + ExactSizeIterator {
        let tile = TileMut { extent: self.extent, elements: PhantomData };
        // SAFETY: (1): only the caller uses the elements while this is borrowed, and each row is returned once.
        (0..self.rows()).map(move |row| unsafe { tile.exclusive(row) })
    }

    /// # Safety
    /// 1. By (1) of `new`, only this tile's owner uses the elements. It does not use the row otherwise during `'a`.
    #[track_caller]
    unsafe fn exclusive<'a>(&self, row: usize) -> &'a mut [T] {
        // SAFETY: (1).
        unsafe { self.extent.exclusive(row) }
    }
}

/// The element in a row and a column of the tile.
impl<T> Index<[usize; 2]> for TileMut<'_, T> {
    type Output = T;

    #[track_caller]
    fn index(&self, [row, column]: [usize; 2]) -> &T {
        &self.row(row)[column]
    }
}

impl<T> IndexMut<[usize; 2]> for TileMut<'_, T> {
    #[track_caller]
    fn index_mut(&mut self, [row, column]: [usize; 2]) -> &mut T {
        &mut self.row_mut(row)[column]
    }
}

impl<T: fmt::Debug> fmt::Debug for TileMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}
