//! Arrays cut into parts, which operations use independently of each other, and as a whole.
//!
//! The elements are in one piece of memory. For each part there is a variable without elements, a *cell*. An access to
//! elements names the cells of all parts that contain some of them, so two accesses that share an element also share a
//! cell. This is all that orders accesses: to parts, to ranges that span parts, and to the whole.
//!
//! # Who may touch what
//!
//! * An element: operations that have named the cell of its part, as the cell's mode permits.
//! * The memory: each cell owns a share of it. It is freed with the last cell's value, which is dropped after the last
//!   operation on that cell. An access without elements names no cell and does not use the memory.

use std::{fmt, marker::PhantomData, ops::Range, ptr::NonNull, sync::Arc};

use super::{
    accesses::{AccessRefs, ScopedAccesses, sealed},
    engine::Engine,
    op_context::OpContext,
    tile::{Extent, TileMut, TileRef},
    token::Token,
    var::Var,
};
use crate::{
    error::{NoPart, RaggedRows},
    future::held::Share,
    op::spec::{Entry, RefKind},
    tracker::Mode,
};

/// An extent that any thread may know.
#[derive(Debug)]
pub struct KnownExtent<T>(Extent<T>);

// SAFETY: only operations that declare the elements use them through the extent. They require what `T` needs for that,
// and every array requires `T: Send`.
unsafe impl<T> Send for KnownExtent<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for KnownExtent<T> {}

/// The memory of the elements.
struct Memory<T>(NonNull<[T]>);

// SAFETY: the elements, which are `Send`, are used only by operations, as the cells permit, and by the drop, which
// comes after them.
unsafe impl<T: Send> Send for Memory<T> {}
// SAFETY: as for `Send`; a reference to this gives access to nothing.
unsafe impl<T: Send> Sync for Memory<T> {}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        // SAFETY: `cut` has made the pointer from a box. No operation uses the elements any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The value of a cell: a share of the memory.
struct ArrayPart<T> {
    _memory: Arc<Memory<T>>,
}

/// An array's cells.
struct Cells<T> {
    /// All elements.
    whole: KnownExtent<T>,
    /// The numbers of rows and columns of a part that is not at the end.
    part: [usize; 2],
    /// One for each part, row by row.
    cells: Box<[Var<ArrayPart<T>>]>,
}

impl<T: Send + 'static> Cells<T> {
    fn cut(engine: &Engine, elements: Vec<T>, columns: usize, part: [usize; 2]) -> Self {
        let rows = elements.len().checked_div(columns).unwrap_or(0);
        let elements = NonNull::from(Box::leak(elements.into_boxed_slice()));
        let memory = Arc::new(Memory(elements));
        let part = part.map(|length| length.max(1));
        let count = rows.div_ceil(part[0]) * columns.div_ceil(part[1]);
        // An array without elements has a cell, too, which owns the memory until the array is dropped.
        let cells = (0..count.max(1)).map(|_| engine.var(ArrayPart { _memory: Arc::clone(&memory) })).collect();
        let whole = KnownExtent(Extent { first: elements.cast(), stride: columns, rows, columns });
        Self { whole, part, cells }
    }
}

impl<T> Cells<T> {
    /// Returns the numbers of parts below and beside each other.
    fn parts(&self) -> [usize; 2] {
        [self.whole.0.rows.div_ceil(self.part[0]), self.whole.0.columns.div_ceil(self.part[1])]
    }

    /// Returns the elements of a part.
    fn part(&self, at: [usize; 2]) -> Area {
        let range = |at: usize, length: usize, all: usize| at * length..all.min((at + 1).saturating_mul(length));
        Area {
            rows: range(at[0], self.part[0], self.whole.0.rows),
            columns: range(at[1], self.part[1], self.whole.0.columns),
        }
    }
}

/// Elements of an array.
#[derive(Clone)]
struct Area {
    rows: Range<usize>,
    columns: Range<usize>,
}

mod shape {
    use super::{Extent, NonNull, TileMut, TileRef};

    /// What the functions of operations receive.
    pub trait ArrayShape: Sized + 'static {
        /// Whether there may be several rows.
        const HAS_ROWS: bool;
        type Ref<'a, T: 'a>;
        type Mut<'a, T: 'a>;

        /// # Safety
        /// 1. The elements are valid for reads during `'a`.
        unsafe fn shared<'a, T>(extent: Extent<T>) -> Self::Ref<'a, T>;

        /// # Safety
        /// 1. Only the caller uses the elements during `'a`.
        unsafe fn exclusive<'a, T>(extent: Extent<T>) -> Self::Mut<'a, T>;
    }

    impl ArrayShape for super::Line {
        const HAS_ROWS: bool = false;
        type Ref<'a, T: 'a> = &'a [T];
        type Mut<'a, T: 'a> = &'a mut [T];

        unsafe fn shared<'a, T>(extent: Extent<T>) -> &'a [T] {
            // SAFETY: (1): a line has one row, or none.
            unsafe { NonNull::slice_from_raw_parts(extent.first, extent.rows * extent.columns).as_ref() }
        }

        unsafe fn exclusive<'a, T>(extent: Extent<T>) -> &'a mut [T] {
            // SAFETY: (1): a line has one row, or none.
            unsafe { NonNull::slice_from_raw_parts(extent.first, extent.rows * extent.columns).as_mut() }
        }
    }

    impl ArrayShape for super::Plane {
        const HAS_ROWS: bool = true;
        type Ref<'a, T: 'a> = TileRef<'a, T>;
        type Mut<'a, T: 'a> = TileMut<'a, T>;

        unsafe fn shared<'a, T>(extent: Extent<T>) -> TileRef<'a, T> {
            // SAFETY: (1).
            unsafe { TileRef::new(extent) }
        }

        unsafe fn exclusive<'a, T>(extent: Extent<T>) -> TileMut<'a, T> {
            // SAFETY: (1).
            unsafe { TileMut::new(extent) }
        }
    }
}

use shape::ArrayShape;

/// The shape of an array with one dimension: operations receive `&[T]` and `&mut [T]`.
#[derive(Debug)]
pub enum Line {}

/// The shape of an array with two dimensions: operations receive [`TileRef`] and [`TileMut`].
#[derive(Debug)]
pub enum Plane {}

/// An array cut into ranges, or with the shape [`Plane`] into tiles: made by [`Engine::parts`] and [`Engine::tiles`].
/// Clones refer to the same array.
///
/// Operations that use different parts may run at the same time. Those that use the same part, a range that touches it,
/// or the whole, are ordered by the one rule: in push order if one of them mutates it. There are no phases.
///
/// Each part has a variable of its own, and an operation names those of all parts that it touches. So its cost grows
/// with their number, and two operations that use different elements of the same part are ordered as if they used the same
/// ones. An operation whose accesses touch a part twice and mutate it is refused with
/// [`NoAccess::Aliased`](crate::error::NoAccess::Aliased).
///
/// An access to no elements, such as an empty range, names nothing: it is neither ordered nor skipped.
///
/// The elements live until the last handle is dropped, and with it the operators that name them, and all operations on
/// them are complete.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(2).build()?;
/// let field = engine.parts(vec![1u64; 1000], 250);
/// for part in field.iter() {
///     engine.op("double").push(part.write(), |part| part.iter_mut().for_each(|n| *n *= 2))?; // in parallel
/// }
/// // After the first two of them.
/// let middle = engine.op("middle").submit(field.range(200..300)?.read(), |part| part.iter().sum::<u64>())?;
/// let sum = engine.op("sum").submit(field.all().read(), |all| all.iter().sum::<u64>())?;
/// assert_eq!((middle.wait()?, sum.wait()?), (200, 2000));
/// # Ok(())
/// # }
/// ```
pub struct Parts<T, S = Line> {
    cells: Arc<Cells<T>>,
    shape: PhantomData<fn() -> S>,
}

/// An array with two dimensions, cut into tiles.
pub type Tiles<T> = Parts<T, Plane>;

impl<T, S> Clone for Parts<T, S> {
    fn clone(&self) -> Self {
        Self { cells: Arc::clone(&self.cells), shape: PhantomData }
    }
}

impl<T, S> fmt::Debug for Parts<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Extent { rows, columns, .. } = self.cells.whole.0;
        f.debug_struct("Parts").field("elements", &[rows, columns]).field("parts", &self.cells.parts()).finish()
    }
}

impl Engine {
    /// Cuts an array into parts of `length` elements; 0 is treated as 1. The last part may be shorter. See [`Parts`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let words = engine.var(vec!["warp", "weft", "reed"]);
    /// let words = engine.parts(engine.take(&words)?, 2); // no longer a variable with one value
    /// let lengths = words.iter().map(|part| part.columns().len());
    /// assert_eq!(lengths.collect::<Vec<_>>(), [2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn parts<T: Send + 'static>(&self, elements: Vec<T>, length: usize) -> Parts<T> {
        let columns = elements.len();
        Parts { cells: Arc::new(Cells::cut(self, elements, columns, [1, length])), shape: PhantomData }
    }

    /// Cuts an array with two dimensions into tiles of `tile` rows and columns; 0 is treated as 1. The tiles at the
    /// ends may be smaller. The elements are given row by row, with `columns` in each.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = raddle::Engine::builder().workers(2).build()?;
    /// let old = engine.tiles(vec![1.0f32; 64 * 64], 64, [16, 16])?;
    /// let new = engine.tiles(vec![0.0; 64 * 64], 64, [16, 16])?;
    /// for tile in new.iter() {
    ///     // The tile and one row and column on each side, where there is one: up to nine tiles of `old`.
    ///     let halo = old.region(tile.rows(), tile.columns())?.grown([1, 1]);
    ///     engine.op("smooth").push((halo.read(), tile.write()), |(halo, mut tile)| {
    ///         tile[[0, 0]] = halo.iter().flatten().sum();
    ///     })?;
    /// }
    /// let corner = engine.op("look").submit(new.all().read(), |all| all[[0, 0]])?;
    /// assert_eq!(corner.wait()?, 17.0 * 17.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`RaggedRows`], with the elements, if their number is not a multiple of `columns`.
    pub fn tiles<T: Send + 'static>(
        &self,
        elements: Vec<T>,
        columns: usize,
        tile: [usize; 2],
    ) -> Result<Tiles<T>, RaggedRows<T>> {
        if elements.len().checked_rem(columns).unwrap_or(elements.len()) != 0 {
            return Err(RaggedRows { elements, columns });
        }
        Ok(Parts { cells: Arc::new(Cells::cut(self, elements, columns, tile)), shape: PhantomData })
    }
}

impl<T, S> Parts<T, S> {
    /// Returns the whole array.
    #[must_use]
    pub fn all(&self) -> Part<'_, T, S> {
        let Extent { rows, columns, .. } = self.cells.whole.0;
        self.area(Area { rows: 0..rows, columns: 0..columns })
    }

    /// Returns the parts; tiles row by row.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Part<'_, T, S>> {
        let [rows, columns] = self.cells.parts();
        (0..rows * columns).map(move |at| self.area(self.cells.part([at / columns, at % columns])))
    }

    /// Returns the numbers of parts below and beside each other. With one dimension, the first is 1, or 0 if there are
    /// no elements.
    #[must_use]
    pub fn grid(&self) -> [usize; 2] {
        self.cells.parts()
    }

    /// Names the variables of the parts: `name[3]`, or `name[1, 3]` for a tile. The names appear in errors, dumps and
    /// traces; see [`Token::named`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let field = engine.parts(vec![0; 100], 25).named("field");
    /// assert_eq!(field.part(3)?.tokens().next().and_then(|token| token.name()), Some("field[3]"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the handle is returned"]
    pub fn named(self, name: impl AsRef<str>) -> Self
    where
        S: ArrayShape,
    {
        let ([rows, columns], name) = (self.cells.parts(), name.as_ref());
        for (at, cell) in self.cells.cells.iter().enumerate().take(rows * columns) {
            let name = match S::HAS_ROWS {
                true => format!("{name}[{}, {}]", at / columns, at % columns),
                false => format!("{name}[{at}]"),
            };
            let _: Token = cell.token().clone().named(name);
        }
        self
    }

    fn area(&self, area: Area) -> Part<'_, T, S> {
        Part { cells: &self.cells, area, shape: PhantomData }
    }
}

impl<T> Parts<T> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.whole.0.columns
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns part `at`, counted from 0.
    ///
    /// # Errors
    /// Returns [`NoPart`] if there is no such part.
    pub fn part(&self, at: usize) -> Result<Part<'_, T>, NoPart> {
        let at = NoPart::check_one("part", at, self.cells.parts()[1])?;
        Ok(self.area(self.cells.part([0, at])))
    }

    /// Returns a range of elements, in any number of parts.
    ///
    /// # Errors
    /// Returns [`NoPart`] if not all of these elements exist.
    pub fn range(&self, elements: Range<usize>) -> Result<Part<'_, T>, NoPart> {
        let columns = NoPart::check("element", elements, self.len())?;
        Ok(self.area(Area { rows: 0..self.cells.whole.0.rows, columns }))
    }
}

impl<T> Tiles<T> {
    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.cells.whole.0.rows
    }

    /// Returns the number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.cells.whole.0.columns
    }

    /// Returns a tile by its row and column among the tiles, counted from 0.
    ///
    /// # Errors
    /// Returns [`NoPart`] if there is no such tile.
    pub fn tile(&self, row: usize, column: usize) -> Result<Part<'_, T, Plane>, NoPart> {
        let [rows, columns] = self.cells.parts();
        let at = [NoPart::check_one("tile row", row, rows)?, NoPart::check_one("tile column", column, columns)?];
        Ok(self.area(self.cells.part(at)))
    }

    /// Returns the elements in these rows and columns, in any number of tiles.
    ///
    /// # Errors
    /// Returns [`NoPart`] if not all of these rows and columns exist.
    pub fn region(&self, rows: Range<usize>, columns: Range<usize>) -> Result<Part<'_, T, Plane>, NoPart> {
        let rows = NoPart::check("row", rows, self.rows())?;
        let columns = NoPart::check("column", columns, self.columns())?;
        Ok(self.area(Area { rows, columns }))
    }
}

/// Elements of an array: one of its [`Parts`], a range or region that spans several, or the whole.
pub struct Part<'p, T, S = Line> {
    cells: &'p Cells<T>,
    area: Area,
    shape: PhantomData<fn() -> S>,
}

impl<T, S> Clone for Part<'_, T, S> {
    fn clone(&self) -> Self {
        Self { cells: self.cells, area: self.area.clone(), shape: PhantomData }
    }
}

impl<T, S> fmt::Debug for Part<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Area { rows, columns } = &self.area;
        f.debug_struct("Part").field("rows", rows).field("columns", columns).finish()
    }
}

impl<'p, T, S> Part<'p, T, S> {
    /// Returns the rows of the elements: `0..1` for an array with one dimension, unless it is empty.
    #[must_use]
    pub fn rows(&self) -> Range<usize> {
        self.area.rows.clone()
    }

    /// Returns the columns of the elements: their indices, for an array with one dimension.
    #[must_use]
    pub fn columns(&self) -> Range<usize> {
        self.area.columns.clone()
    }

    /// Returns the variables of the parts that are touched: to wait for them, for accesses without references, or to
    /// see their failures and versions. Once one of them is deleted, operations cannot name that part any more. Its
    /// elements are dropped with those of the last part.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = raddle::Engine::builder().workers(1).build()?;
    /// let field = engine.parts(vec![0; 100], 25);
    /// engine.op("fill").push(field.range(10..60)?.write(), |part| part.fill(1))?;
    /// for token in field.all().tokens() {
    ///     engine.wait_for_var(token)?;
    /// }
    /// let versions = field.all().tokens().map(|token| token.version());
    /// assert_eq!(versions.collect::<Vec<_>>(), [1, 1, 1, 0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn tokens(&self) -> impl Iterator<Item = &'p Token> + use<'p, T, S> {
        self.touched().map(Var::token)
    }

    fn grown_by(&self, [rows, columns]: [usize; 2]) -> Self {
        let grown = |range: &Range<usize>, by: usize, all: usize| {
            range.start.saturating_sub(by)..range.end.saturating_add(by).min(all)
        };
        let Extent { rows: height, columns: width, .. } = self.cells.whole.0;
        let area =
            Area { rows: grown(&self.area.rows, rows, height), columns: grown(&self.area.columns, columns, width) };
        Self { area, ..self.clone() }
    }

    fn is_empty(&self) -> bool {
        self.area.rows.is_empty() || self.area.columns.is_empty()
    }

    fn touched(&self) -> impl Iterator<Item = &'p Var<ArrayPart<T>>> + use<'p, T, S> {
        let (cells, [height, width]) = (self.cells, self.cells.part);
        let of = |range: &Range<usize>, length: usize| match self.is_empty() {
            true => 0..0,
            false => range.start / length..range.end.div_ceil(length),
        };
        let (rows, columns, beside) = (of(&self.area.rows, height), of(&self.area.columns, width), cells.parts()[1]);
        rows.flat_map(move |row| columns.clone().map(move |column| &cells.cells[row * beside + column]))
    }

    fn extent(&self) -> Extent<T> {
        let Area { rows, columns } = &self.area;
        if self.is_empty() {
            // Not in the memory, which may have been freed.
            return Extent { first: NonNull::dangling(), stride: 0, rows: rows.len(), columns: columns.len() };
        }
        let Extent { first, stride, .. } = self.cells.whole.0;
        // Computed without a claim that the memory still exists: a push is refused if a cell was deleted.
        let first = first.as_ptr().wrapping_add(rows.start * stride + columns.start);
        // SAFETY: the elements are in one allocation, which neither begins at null nor wraps.
        let first = unsafe { NonNull::new_unchecked(first) };
        Extent { first, stride, rows: rows.len(), columns: columns.len() }
    }
}

impl<T> Part<'_, T> {
    /// Returns these elements and `by` more on each side, as far as the array has them: a part with its halo.
    #[must_use]
    pub fn grown(&self, by: usize) -> Self {
        self.grown_by([0, by])
    }
}

impl<T> Part<'_, T, Plane> {
    /// Returns these elements and so many more rows and columns on each side, as far as the array has them: a tile with
    /// its halo.
    #[must_use]
    pub fn grown(&self, by: [usize; 2]) -> Self {
        self.grown_by(by)
    }
}

impl<'p, T: Send + 'static, S> Part<'p, T, S> {
    /// Declares that an operation reads the elements. Its function receives `&[T]`, or a [`TileRef`].
    pub fn read(&self) -> ReadPart<'p, T, S>
    where
        T: Sync,
    {
        ReadPart(self.clone())
    }

    /// Declares that an operation mutates the elements. Its function receives `&mut [T]`, or a [`TileMut`].
    pub fn write(&self) -> WritePart<'p, T, S> {
        WritePart { part: self.clone(), mode: Mode::Write }
    }

    /// Declares that an operation mutates the elements even if a touched part has failed, as
    /// [`Var::overwrite`] does. If the operation succeeds, it clears the failures of all parts that it touches, which
    /// is right only if it overwrites all that may be wrong in them, also outside this range.
    pub fn overwrite(&self) -> WritePart<'p, T, S> {
        WritePart { part: self.clone(), mode: Mode::Overwrite }
    }
}

/// As for variables: they are no declarations.
impl<'a, T, S> AccessRefs<'a, &'a Self> for Part<'_, T, S> {
    type Refs = &'a mut [T];
}

/// A declaration that an operation reads elements of an array, returned by [`Part::read`].
#[must_use = "a declaration does nothing unless it is passed to an operation or to `acquire`"]
pub struct ReadPart<'p, T, S = Line>(Part<'p, T, S>);

/// A declaration that an operation mutates elements of an array, returned by [`Part::write`] and [`Part::overwrite`].
#[must_use = "a declaration does nothing unless it is passed to an operation or to `acquire`"]
pub struct WritePart<'p, T, S = Line> {
    part: Part<'p, T, S>,
    mode: Mode,
}

impl<T, S> Clone for ReadPart<'_, T, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T, S> fmt::Debug for ReadPart<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadPart").field(&self.0).finish()
    }
}

impl<T, S> fmt::Debug for WritePart<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WritePart").field(&self.part).finish()
    }
}

fn declare<T, S>(part: &Part<'_, T, S>, mode: Mode, refs: RefKind, list: &mut sealed::List<'_>) {
    part.touched().for_each(|cell| list.0.push(Entry { cell: cell.ptr(), mode, refs }));
}

impl<T, S> sealed::Sealed for ReadPart<'_, T, S> {}
impl<'a, T: 'static, S: ArrayShape> AccessRefs<'a, &'a Self> for ReadPart<'_, T, S> {
    type Refs = S::Ref<'a, T>;
}
impl<T: Send + Sync + 'static, S: ArrayShape> ScopedAccesses for ReadPart<'_, T, S> {
    type Guards = ReadPartGuard<T, S>;
    type Captured = KnownExtent<T>;
    const REFERS: bool = true;

    fn declare(&self, list: &mut sealed::List<'_>) {
        declare(&self.0, Mode::Read, RefKind::Shared, list);
    }

    fn capture(&self) -> KnownExtent<T> {
        KnownExtent(self.0.extent())
    }

    unsafe fn refs<'a>(captured: &KnownExtent<T>, _: &'a OpContext<'a>) -> S::Ref<'a, T>
    where
        Self: 'a,
    {
        // SAFETY: (1): the operation holds the cells of all these elements for reading, so nothing mutates them during
        // `'a`, and the cells' values keep the memory.
        unsafe { S::shared(captured.0) }
    }

    unsafe fn guards(captured: &KnownExtent<T>, share: &Share) -> ReadPartGuard<T, S> {
        // SAFETY: (1): the operation holds the cells while it has shares.
        unsafe { ReadPartGuard::new(captured.0, share.another()) }
    }
}

impl<T, S> sealed::Sealed for WritePart<'_, T, S> {}
impl<'a, T: 'static, S: ArrayShape> AccessRefs<'a, &'a Self> for WritePart<'_, T, S> {
    type Refs = S::Mut<'a, T>;
}
impl<T: Send + 'static, S: ArrayShape> ScopedAccesses for WritePart<'_, T, S> {
    type Guards = WritePartGuard<T, S>;
    type Captured = KnownExtent<T>;
    const REFERS: bool = true;

    fn declare(&self, list: &mut sealed::List<'_>) {
        declare(&self.part, self.mode, RefKind::Exclusive, list);
    }

    fn capture(&self) -> KnownExtent<T> {
        KnownExtent(self.part.extent())
    }

    unsafe fn refs<'a>(captured: &KnownExtent<T>, _: &'a OpContext<'a>) -> S::Mut<'a, T>
    where
        Self: 'a,
    {
        // SAFETY: (1): the operation holds the cells of all these elements for writing, so no other operation uses them
        // during `'a`, and the cells' values keep the memory; (2): none of the operation's other references is to a
        // part with one of these cells, and this is called once.
        unsafe { S::exclusive(captured.0) }
    }

    unsafe fn guards(captured: &KnownExtent<T>, share: &Share) -> WritePartGuard<T, S> {
        // SAFETY: (1): the operation holds the cells while it has shares; (2): the operation has no other guard for
        // them.
        unsafe { WritePartGuard::new(captured.0, share.another()) }
    }
}

/// A guard for elements of an array that an operation reads; see [`ReadGuard`](crate::ReadGuard).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let field = engine.parts(vec![0; 100], 25);
/// let mut guard = pollster::block_on(engine.acquire(field.range(10..60)?.write()))?;
/// guard.get_mut().fill(1);
/// drop(guard);
/// let guard = pollster::block_on(engine.acquire(field.all().read()))?;
/// assert_eq!(guard.get().iter().sum::<i32>(), 50);
/// # Ok(())
/// # }
/// ```
#[must_use = "the elements are released when the guard is dropped"]
pub struct ReadPartGuard<T, S = Line> {
    extent: Extent<T>,
    /// Keeps the operation from completing, and so keeps the elements valid.
    _share: Share,
    shape: PhantomData<fn() -> S>,
}

// SAFETY: the guard is as good as a `&[T]`, which the operation keeps valid, with a share, which is `Send`.
unsafe impl<T: Sync, S> Send for ReadPartGuard<T, S> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync, S> Sync for ReadPartGuard<T, S> {}

impl<T, S> ReadPartGuard<T, S> {
    /// # Safety
    /// 1. The elements may be read while the operation of `share` holds its variables.
    unsafe fn new(extent: Extent<T>, share: Share) -> Self {
        Self { extent, _share: share, shape: PhantomData }
    }

    /// Returns the elements.
    #[must_use]
    pub fn get(&self) -> S::Ref<'_, T>
    where
        S: ArrayShape,
    {
        // SAFETY: (1): by (1) of `new`, while the share exists.
        unsafe { S::shared(self.extent) }
    }
}

impl<T, S> fmt::Debug for ReadPartGuard<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadPartGuard").finish_non_exhaustive()
    }
}

/// A guard for elements of an array that an operation mutates; see [`WriteGuard`](crate::WriteGuard) and
/// [`ReadPartGuard`].
#[must_use = "the elements are released when the guard is dropped"]
pub struct WritePartGuard<T, S = Line> {
    elements: ReadPartGuard<T, S>,
    /// Makes the guard invariant in `T`, as that for a variable.
    _invariant: PhantomData<fn(T) -> T>,
}

// SAFETY: the guard is as good as a `&mut [T]`, which the operation keeps valid, with a share, which is `Send`.
unsafe impl<T: Send, S> Send for WritePartGuard<T, S> {}
// SAFETY: as for `Send`; a shared guard acts as a `&[T]`.
unsafe impl<T: Sync, S> Sync for WritePartGuard<T, S> {}

impl<T, S> WritePartGuard<T, S> {
    /// # Safety
    /// 1. Only this guard uses the elements while the operation of `share` holds its variables.
    unsafe fn new(extent: Extent<T>, share: Share) -> Self {
        // SAFETY: (1): the elements may be read, too; they are not mutated while the inner guard is borrowed.
        Self { elements: unsafe { ReadPartGuard::new(extent, share) }, _invariant: PhantomData }
    }

    /// Returns the elements.
    #[must_use]
    pub fn get(&self) -> S::Ref<'_, T>
    where
        S: ArrayShape,
    {
        self.elements.get()
    }

    /// Returns the elements for mutations.
    #[must_use]
    pub fn get_mut(&mut self) -> S::Mut<'_, T>
    where
        S: ArrayShape,
    {
        // SAFETY: (1): by (1) of `new`, while the share exists; this is borrowed exclusively.
        unsafe { S::exclusive(self.elements.extent) }
    }
}

impl<T, S> fmt::Debug for WritePartGuard<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WritePartGuard").finish_non_exhaustive()
    }
}
