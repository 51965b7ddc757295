//! Device errors.

use std::{error::Error, fmt, sync::Arc};

use super::BoxError;

/// CUDA's error number for a call refused because its stream is being captured into a graph.
pub(crate) const CAPTURING: i32 = 900;

/// CUDA's error number for a device without enough memory.
pub(crate) const OUT_OF_MEMORY: i32 = 2;

#[derive(Debug)]
struct Details {
    code: i32,
    message: String,
    lost: bool,
}

/// Why a device refused a command or failed to execute it. Clones are cheap.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Device, Engine, gpu::SimulatedGpu};
///
/// let gpu = SimulatedGpu::builder().memory(1024).build();
/// let engine = Engine::builder().workers(1).gpu(gpu).build()?;
/// let error = engine.device_var::<u8>(Device::Gpu(0), 4096).map(drop).unwrap_err();
/// assert_eq!((error.code(), error.is_lost()), (2, false)); // CUDA_ERROR_OUT_OF_MEMORY
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DeviceError(Arc<Details>);

impl DeviceError {
    /// Creates the error for a call that had no effect. The device is still usable.
    pub(crate) fn refused(code: i32, message: impl Into<String>) -> Self {
        Self(Arc::new(Details { code, message: message.into(), lost: false }))
    }

    /// Creates the error for a lost device.
    pub(crate) fn lost(code: i32, message: impl Into<String>) -> Self {
        Self(Arc::new(Details { code, message: message.into(), lost: true }))
    }

    /// Returns whether the error says that the device is out of memory (2), or that the operating system could not pin
    /// more memory (304). The simulated device uses CUDA's numbers.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        !self.is_lost() && matches!(self.code(), OUT_OF_MEMORY | 304)
    }

    /// Converts the error into a loss of its device, for an engine that abandons the device because of the error.
    pub(crate) fn into_loss(self) -> Self {
        if self.is_lost() { self } else { Self::lost(self.code(), self.message()) }
    }

    /// Returns `error` as a [`DeviceError`] if it is one, or if it is a driver's error, which is converted. Otherwise,
    /// returns `error` unchanged, as the `Err`.
    pub(crate) fn found_in(error: BoxError) -> Result<Self, BoxError> {
        #[cfg(feature = "cuda")]
        let error = match error.downcast::<cudarc::driver::DriverError>() {
            Ok(error) => return Ok((*error).into()),
            Err(error) => error,
        };
        error.downcast().map(|error| *error)
    }

    /// Returns the driver's error number: a `CUresult`, whose numbers the [simulated device](crate::gpu::simulated)
    /// also uses. The number is negative if the driver was not reached or has no number for the error.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.0.code
    }

    /// Returns the error's description.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns whether the whole device is lost to this process, for example because a command accessed invalid memory,
    /// a kernel failed, or the hardware is gone. Later calls to a lost device also return a loss.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.lost
    }
}

impl fmt::Debug for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceError")
            .field("code", &self.0.code)
            .field("message", &self.0.message)
            .field("lost", &self.0.lost)
            .finish()
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { code, message, lost } = &*self.0;
        write!(f, "{message} (error {code}{})", if *lost { ", the device is lost" } else { "" })
    }
}

impl Error for DeviceError {}
