//! The device on which an operation runs.

use std::fmt;

/// The device on which an operation runs.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = raddle::Engine::builder().workers(1).build()?;
/// use raddle::{Device, cx};
///
/// let device = engine.op("where").submit(cx(), |cx| cx.device())?.wait()?;
/// assert_eq!(device, Device::Cpu);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The processor's cores.
    #[default]
    Cpu,
    /// The GPU with this number.
    Gpu(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu(number) => write!(f, "gpu({number})"),
        }
    }
}
