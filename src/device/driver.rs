//! What the engine asks of a device: a driver, its streams, and addresses in its memory.

use std::{any::Any, fmt, sync::Arc};

use crate::error::device::DeviceError;

/// The size of the smallest block, in bytes. Drivers align blocks to at least this.
pub(super) const ALIGNMENT: usize = 256;

/// A GPU for an engine: made from a [`SimulatedGpu`](super::simulated::SimulatedGpu), or from a `CudaGpu` in builds
/// with the feature `cuda`.
#[derive(Clone, Debug)]
pub struct GpuDriver(pub(crate) Arc<dyn Driver>);

/// Which commands a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRole {
    CopyIn,
    CopyOut,
    Compute,
    /// Kernels that the device starts before others, if it can.
    Urgent,
    /// All commands: the only stream of an engine that has one stream for each GPU.
    All,
}

/// The kind of a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// The device's own memory, which the host cannot access.
    Device,
    /// Memory of the host that devices copy from and to directly.
    Pinned,
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

/// An address in memory. If it is of the device's own memory, it is only a number to the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) kind: MemoryKind,
    pub(super) owner: MemoryOwner,
    pub(super) ptr: *mut u8,
}

// SAFETY: an address gives no access by itself; each use of the pointer needs its own justification.
unsafe impl Send for Address {}
// SAFETY: as for `Send`.
unsafe impl Sync for Address {}

impl Address {
    /// Returns the address of blocks without bytes, aligned for every type.
    pub(super) fn nowhere(kind: MemoryKind) -> Self {
        Self { kind, owner: MemoryOwner::Host, ptr: std::ptr::without_provenance_mut(ALIGNMENT) }
    }

    pub(crate) fn ptr(self) -> *mut u8 {
        self.ptr
    }
}

/// A piece of memory from the pool of a [`Driver`]. It has no drop: its owner must return it to the driver.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: Address,
    /// The size, which may be larger than the size that was asked for.
    pub(crate) bytes: usize,
}

/// A point in a stream that other streams can wait for. Clones are cheap, and the last one releases the event.
#[derive(Clone)]
pub struct Event(Arc<dyn Any + Send + Sync>);

impl Event {
    /// Wraps the event that a driver knows as `event`.
    pub(super) fn new(event: Arc<impl Any + Send + Sync>) -> Self {
        Self(event)
    }

    /// Returns the driver's own event, or `None` if it belongs to another kind of driver.
    pub(super) fn downcast<E: Any + Send + Sync>(&self) -> Option<Arc<E>> {
        Arc::clone(&self.0).downcast().ok()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").finish_non_exhaustive()
    }
}

/// A device.
pub(crate) trait Driver: Send + Sync + fmt::Debug {
    /// Returns the name of the device, for messages.
    fn name(&self) -> String;

    /// Returns the cores near the device, or none if they are not known.
    fn cores_near(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Opens a stream.
    fn open(&self, role: StreamRole) -> Result<Box<dyn Stream>, DeviceError>;

    /// Takes a block of at least `bytes` from the pool. The device is asked only if the pool has none. The content of
    /// the block is unspecified and may be uninitialised.
    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Block, DeviceError>;

    /// Returns a block of this driver to the pool. This calls no function of the device, and waits for nothing but a
    /// short lock. The device must no longer use the block.
    fn free(&self, block: Block);

    /// Gives up the device: the engine does not use it any more, and frees memory that commands in flight may still
    /// use. After this call, the device touches no memory of any block, or no such block is used again. This holds for
    /// every thread that has called it.
    fn abandon(&self, error: &DeviceError);
}

/// Whether the end of a function looks for a capture that the function has left open, which may take a call of the
/// driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureCheck {
    Now,
    Later,
}

/// What a function has left on its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum LeftBehind {
    /// Nothing that was found.
    Nothing,
    /// A capture, which has been ended.
    Capture,
}

/// A queue of commands of a device. One thread at a time calls it.
///
/// An error that is not a loss means that the call had no effect on the stream.
pub(crate) trait Stream: Send {
    /// Returns a number that the streams of one driver share, and that no other driver has while one of them exists.
    /// Returns `None` for a stream without a driver.
    fn driver(&self) -> Option<usize>;

    /// Records an event at this point of the stream. It happens when all commands before it are done.
    fn record(&mut self) -> Result<Event, DeviceError>;

    /// Makes all later commands of the stream wait for `event`, on the device. The host does not wait.
    fn wait(&mut self, event: &Event) -> Result<(), DeviceError>;

    /// Puts a mark behind all commands so far: [`passed`](Self::passed) returns at least `seq` once they are done. The
    /// numbers rise.
    fn mark(&mut self, seq: u64) -> Result<(), DeviceError>;

    /// Returns the number of the last mark that the stream has passed, 0 before the first. Cheap.
    ///
    /// Acquire (edge `mark`): a caller that gets a number sees what the commands before that mark have written.
    fn passed(&mut self) -> Result<u64, DeviceError>;

    /// Asks the driver whether the stream is sound. Must be called now and then while no mark is passed: a driver may
    /// find faults only here.
    fn probe(&mut self) -> Result<(), DeviceError>;

    /// Makes the device copy `bytes`.
    ///
    /// # Safety
    /// 1. Both places hold `bytes`, and stay allocated until the stream has passed a mark behind this command, or the
    ///    device is lost.
    /// 2. Until then, nothing else writes to either place or reads the target, except commands that streams and events
    ///    order with this one.
    unsafe fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Notes that a function of the program, which may have used the stream, has returned. If it has left the stream
    /// in a capture, and this looks for one, the capture is ended, so that nothing of it is ever done.
    ///
    /// # Errors
    /// A failure that the function has left for the next caller; or the capture cannot be ended.
    fn function_ended(&mut self, check: CaptureCheck) -> Result<LeftBehind, DeviceError> {
        let _ = check;
        Ok(LeftBehind::Nothing)
    }

    /// Returns whether the running function captures the commands of the stream.
    fn is_captured(&mut self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Returns the stream for a downcast to the driver's own type.
    fn as_any(&mut self) -> &mut dyn Any;
}
