//! Parts that an array does not have.

use std::{error::Error, fmt, ops::Range};

/// An array has no such part: what was asked for is not in it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let field = engine.parts(vec![0; 100], 25);
/// let error = field.part(4).unwrap_err();
/// assert_eq!(error.to_string(), "part 4 was asked for, but there are parts 0..4");
/// let error = field.range(90..110).unwrap_err();
/// assert_eq!(error.to_string(), "elements 90..110 were asked for, but there are elements 0..100");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoPart {
    /// What is counted: parts, elements, rows or columns.
    pub(crate) unit: &'static str,
    pub(crate) asked: Range<usize>,
    pub(crate) count: usize,
}

impl NoPart {
    /// Returns `asked`, or an error if it is not within the first `count` units.
    pub(crate) fn check(unit: &'static str, asked: Range<usize>, count: usize) -> Result<Range<usize>, Self> {
        if asked.start <= asked.end && asked.end <= count { Ok(asked) } else { Err(Self { unit, asked, count }) }
    }

    /// [`check`](Self::check) for one unit.
    pub(crate) fn check_one(unit: &'static str, asked: usize, count: usize) -> Result<usize, Self> {
        if asked < count { Ok(asked) } else { Err(Self { unit, asked: asked..asked.saturating_add(1), count }) }
    }
}

impl fmt::Display for NoPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, asked, count } = self;
        match asked.end == asked.start.saturating_add(1) {
            true => write!(f, "{unit} {} was asked for, ", asked.start)?,
            false => write!(f, "{unit}s {}..{} were asked for, ", asked.start, asked.end)?,
        }
        match asked.start > asked.end {
            true => f.write_str("which end before they begin"),
            false => write!(f, "but there are {unit}s 0..{count}"),
        }
    }
}

impl Error for NoPart {}

/// The elements given for an array with two dimensions do not fill its rows. Contains the elements.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// let error = engine.tiles(vec![0; 10], 4, [2, 2]).unwrap_err();
/// assert_eq!(error.to_string(), "10 elements do not fill rows of 4");
/// assert_eq!(error.into_elements(), [0; 10]);
/// # Ok(())
/// # }
/// ```
pub struct RaggedRows<T> {
    pub(crate) elements: Vec<T>,
    pub(crate) columns: usize,
}

impl<T> RaggedRows<T> {
    /// Returns the elements.
    #[must_use]
    pub fn into_elements(self) -> Vec<T> {
        self.elements
    }
}

impl<T> fmt::Debug for RaggedRows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (elements, columns) = (self.elements.len(), self.columns);
        f.debug_struct("RaggedRows").field("elements", &elements).field("columns", &columns).finish()
    }
}

impl<T> fmt::Display for RaggedRows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} elements do not fill rows of {}", self.elements.len(), self.columns)
    }
}

impl<T> Error for RaggedRows<T> {}
