//! Error types: why a push, a wait, an operation, a build or a shutdown failed.
//!
//! | call | error |
//! |---|---|
//! | a push | [`PushError`]; its details are a [`NoAccess`] with a [`RefusedAccess`], or a [`Misfit`] |
//! | a wait | [`WaitError`]: the failure of an operation, or the reason for which the wait was refused, such as a [`Deadlock`] |
//! | [`EngineBuilder::build`](crate::EngineBuilder::build) | [`BuildError`] |
//! | [`Engine::shutdown`](crate::Engine::shutdown), [`Engine::stop`](crate::Engine::stop) | [`ShutdownError`] |
//! | a command for a device | [`DeviceError`] |
//! | an array's part, or its rows | [`NoPart`], [`RaggedRows`] |
//! | a use of a [`Guarded`](crate::Guarded) value | [`UseError`] |
//!
//! An operation that fails has an [`OpError`], whose [`Cause`] tells how it failed: for instance with a [`BoxError`]
//! that its function returned.

pub(crate) mod build;
pub(crate) mod deadlock;
pub(crate) mod device_error;
pub(crate) mod failures;
pub(crate) mod op;
pub(crate) mod part;
pub(crate) mod push_error;
pub(crate) mod use_error;
pub(crate) mod wait;

pub use build::{BuildError, ShutdownError};
pub use deadlock::Deadlock;
pub use device_error::DeviceError;
pub use op::{Cause, OpError};
pub use part::{NoPart, RaggedRows};
pub use push_error::{Misfit, NoAccess, PushError, RefusedAccess};
pub use use_error::{UseError, UseErrorKind};
pub use wait::WaitError;

/// The error type that operations return.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::error::BoxError;
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
