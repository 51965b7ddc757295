//! Why a device did not do what it was asked.

use std::{error::Error, fmt, sync::Arc};

use super::BoxError;

/// CUDA's number for calls that a stream does not take while it is captured into a graph.
pub(crate) const CAPTURING: i32 = 900;

#[derive(Debug)]
struct Details {
    code: i32,
    message: String,
    lost: bool,
}

/// Why a device did not do what it was asked. It is cheap to clone.
#[derive(Clone)]
pub struct DeviceError(Arc<Details>);

impl DeviceError {
    /// The device is all right; the call had no effect.
    pub(crate) fn refused(code: i32, message: impl Into<String>) -> Self {
        Self(Arc::new(Details { code, message: message.into(), lost: false }))
    }

    /// Nothing can be done with the device any more.
    pub(crate) fn lost(code: i32, message: impl Into<String>) -> Self {
        Self(Arc::new(Details { code, message: message.into(), lost: true }))
    }

    /// Whether there is no room: on the device, or for the operating system to pin memory (304). The simulated device
    /// has CUDA's number for that.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        !self.is_lost() && matches!(self.code(), 2 | 304)
    }

    /// The same, of a device that is given up for it.
    pub(crate) fn into_loss(self) -> Self {
        if self.is_lost() { self } else { Self::lost(self.code(), self.message()) }
    }

    /// The error of a device that `error` is, or a driver's that stands for one; else `error` itself.
    pub(crate) fn found_in(error: BoxError) -> Result<Self, BoxError> {
        #[cfg(feature = "cuda")]
        let error = match error.downcast::<cudarc::driver::DriverError>() {
            Ok(error) => return Ok((*error).into()),
            Err(error) => error,
        };
        error.downcast().map(|error| *error)
    }

    /// The driver's number for it: a `CUresult`, whose numbers the [simulated device](crate::simulated) uses as well.
    /// Negative where the driver was not reached or has none.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.0.code
    }

    /// What went wrong, in words.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether the whole device is lost to this process, and not only this call: a command has touched memory that is
    /// not its own, a kernel failed, the hardware is gone. Every later call gives the same error.
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
