//! Error types.

pub(crate) mod build;
pub(crate) mod deadlock;
pub(crate) mod device;
pub(crate) mod failures;
pub(crate) mod guarded;
pub(crate) mod op;
pub(crate) mod push;
pub(crate) mod wait;

/// The error type that operations return.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::BoxError;
///
/// fn parse(line: &str) -> Result<u32, BoxError> {
///     Ok(line.trim().parse()?)
/// }
///
/// let parsed = engine.op("parse").try_submit((), |()| parse(" 12 "))?;
/// assert_eq!(parsed.wait()?, 12);
/// # Ok(())
/// # }
/// ```
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
