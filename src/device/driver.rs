//! The engine's interface to a device: a driver, its streams, and addresses in memory.

use std::{any::Any, fmt, sync::Arc};

use crate::error::device_error::DeviceError;

/// The size of the smallest block, in bytes. Drivers align every block to at least this many bytes.
pub(super) const ALIGNMENT: usize = 256;

/// A GPU for an engine, created from a [`SimulatedGpu`](super::simulated::SimulatedGpu), or from a `CudaGpu` in builds
/// with the feature `cuda`.
#[derive(Clone, Debug)]
pub struct GpuDriver(pub(crate) Arc<dyn Driver>);

/// The kind of commands for which a stream is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRole {
    CopyIn,
    CopyOut,
    Compute,
    /// Kernels that the device starts before others if it can.
    Urgent,
    /// All kinds of commands.
    All,
}

/// The kind of a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// The device's own memory, which only the device accesses.
    Device,
    /// Host memory that devices copy to and from directly.
    Pinned,
}

impl MemoryKind {
    pub(super) const ALL: [Self; 2] = [Self::Device, Self::Pinned];
}

/// The owner of the memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryOwner {
    /// The host: any device may use the memory.
    Host,
    /// The simulated device with this number.
    Simulated(u64),
    /// The device of this CUDA context.
    #[cfg(feature = "cuda")]
    Cuda(usize),
}

/// An address in memory. Only the device may dereference an address in its own memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) kind: MemoryKind,
    pub(super) owner: MemoryOwner,
    pub(super) ptr: *mut u8,
}

// SAFETY: sending or sharing the pointer is harmless; code that dereferences it must justify the access.
unsafe impl Send for Address {}
// SAFETY: as for `Send`.
unsafe impl Sync for Address {}

impl Address {
    /// Returns the address of an empty block, aligned to [`ALIGNMENT`] bytes.
    pub(super) fn nowhere(kind: MemoryKind) -> Self {
        Self { kind, owner: MemoryOwner::Host, ptr: std::ptr::without_provenance_mut(ALIGNMENT) }
    }

    pub(crate) fn ptr(self) -> *mut u8 {
        self.ptr
    }
}

/// A piece of memory from a [`Driver`]'s pool. Dropping a block does not free its memory: the block must be passed to
/// [`Driver::free`].
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: Address,
    /// The size in bytes, which may exceed the requested size.
    pub(crate) bytes: usize,
}

/// A point in a stream that other streams can wait for. Clones are cheap, and dropping the last one releases the event.
#[derive(Clone)]
pub struct DeviceEvent(Arc<dyn Any + Send + Sync>);

impl DeviceEvent {
    /// Wraps a driver's own representation of an event.
    pub(super) fn new(event: Arc<impl Any + Send + Sync>) -> Self {
        Self(event)
    }

    /// Returns the driver's own representation, or `None` if the event belongs to another kind of driver.
    pub(super) fn downcast<E: Any + Send + Sync>(&self) -> Option<Arc<E>> {
        Arc::clone(&self.0).downcast().ok()
    }
}

impl fmt::Debug for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceEvent").finish_non_exhaustive()
    }
}

/// A device, with its streams and its memory.
pub(crate) trait Driver: Send + Sync + fmt::Debug {
    /// Returns the name of the device, for messages.
    fn name(&self) -> String;

    /// Returns the cores near the device, or an empty list if these are unknown.
    fn cores_near(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Opens a stream.
    fn open(&self, role: StreamRole) -> Result<Box<dyn Stream>, DeviceError>;

    /// Takes a block of at least `bytes` bytes from the pool, or allocates one if the pool has none. The contents of
    /// the block are unspecified and may be uninitialised.
    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Block, DeviceError>;

    /// Returns one of this driver's blocks to the pool, and releases blocks that are then [too
    /// many](super::block_pool). The device must no longer use the block, unless the device has been given up.
    fn free(&self, block: Block);

    /// Sets the [limit of the pools](super::block_pool), in bytes of each kind of memory.
    fn limit_pools(&self, bytes: usize);

    /// Releases all free blocks. Returns how many bytes they have.
    fn trim_pools(&self) -> Result<usize, DeviceError>;

    /// Gives up the device. The engine does not use the device afterwards, but frees memory that commands in flight may
    /// still use. So once a call to this function has returned on any thread, either the device no longer touches the
    /// memory of any block, or the blocks that the device may still touch are never reused.
    fn abandon(&self, error: &DeviceError);
}

/// When the engine checks for a capture left open by a function: as soon as the function has ended, or later. The check
/// may cost a call to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureCheck {
    Now,
    Later,
}

/// What a function left on its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum LeftBehind {
    /// No capture was found.
    Nothing,
    /// A capture, which has been ended.
    Capture,
}

/// A queue of commands for a device, used by one thread at a time.
///
/// A call that returns an error other than a loss has issued nothing on the stream, although it may have ended a
/// capture.
pub(crate) trait Stream: Send {
    /// Returns the number of the stream's driver, or `None` for a stream without one. No other driver has the same
    /// number while a stream of this driver exists.
    fn driver(&self) -> Option<usize>;

    /// Prepares the calling thread for program functions that use the stream, which another thread may have opened.
    fn adopt(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Records an event at this point in the stream. The event happens when all commands before it are done.
    fn record(&mut self) -> Result<DeviceEvent, DeviceError>;

    /// Makes all later commands of the stream wait for `event`, on the device. The host does not wait.
    fn wait(&mut self, event: &DeviceEvent) -> Result<(), DeviceError>;

    /// Puts a mark behind all commands so far, a point whose passing the device reports to the host:
    /// [`passed`](Self::passed) returns at least `seq` once they are done. Each `seq` must be greater than the last.
    fn mark(&mut self, seq: u64) -> Result<(), DeviceError>;

    /// Returns the number of the last mark that the stream has passed, or 0 before the first. This call is cheap.
    ///
    /// Acquire (edge `mark`): the caller sees what the commands before that mark have written.
    fn passed(&mut self) -> Result<u64, DeviceError>;

    /// Checks whether the stream is sound. Must be called periodically while no mark passes, since
    /// [`passed`](Self::passed) does not detect every failure of the device.
    fn probe(&mut self) -> Result<(), DeviceError>;

    /// Makes the device copy `bytes` bytes from `from` to `to`.
    ///
    /// # Safety
    /// 1. `from` and `to` each point to `bytes` bytes, which stay allocated until the stream has passed a mark behind
    ///    this command, or the device is lost.
    /// 2. Until then, nothing else writes to either of them or reads from `to`, except commands that streams and events
    ///    order with this one.
    unsafe fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Must be called when a program function that may have used the stream has ended. If the function left the stream
    /// capturing and `check` is [`CaptureCheck::Now`], ends the capture without executing the captured work.
    ///
    /// # Errors
    /// The function left a failure for the driver's next caller, or the driver refuses a call needed to find or end the
    /// capture.
    fn function_ended(&mut self, check: CaptureCheck) -> Result<LeftBehind, DeviceError> {
        let _ = check;
        Ok(LeftBehind::Nothing)
    }

    /// Returns whether the running function is capturing the stream.
    fn is_captured(&mut self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Returns the stream as `Any`, to be downcast to the driver's own type.
    fn as_any(&mut self) -> &mut dyn Any;
}
