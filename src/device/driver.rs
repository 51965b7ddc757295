//! What the engine asks of a device: a driver, its streams, and addresses in its memory.

use std::{any::Any, fmt, sync::Arc};

use crate::error::device::DeviceError;

/// The size of the smallest block in bytes. Drivers align what they give to at least this.
pub(super) const ALIGNMENT: usize = 256;

/// A GPU for an engine: made from a [`SimulatedGpu`](super::simulated::SimulatedGpu), or from a `CudaGpu` in builds with
/// the feature `cuda`.
#[derive(Clone, Debug)]
pub struct GpuDriver(pub(crate) Arc<dyn Driver>);

/// What the commands on a stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    CopyIn,
    CopyOut,
    Compute,
    /// Kernels that the device starts before others, where it can.
    Urgent,
    /// All of these: the only stream of an engine that has one.
    All,
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The device's own memory, which the host has no access to.
    Device,
    /// Memory of the host that devices copy from and to by themselves.
    Pinned,
}

/// Whose memory an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// The host's: any device may use it.
    Host,
    /// The simulated device with this number.
    Simulated(u64),
    /// The device of this CUDA context.
    #[cfg(feature = "cuda")]
    Cuda(usize),
}

/// A place in memory. No more than a number to whoever is not the device, where `place` says that it is the device's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) place: Place,
    pub(super) home: Home,
    pub(super) ptr: *mut u8,
}

// SAFETY: it gives no access by itself; what is done with the pointer is the doer's to justify.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// Where nothing is: the address of blocks without a byte, aligned for anything.
    pub(super) fn nowhere(place: Place) -> Self {
        Self { place, home: Home::Host, ptr: std::ptr::without_provenance_mut(ALIGNMENT) }
    }

    pub(crate) fn ptr(self) -> *mut u8 {
        self.ptr
    }
}

/// A piece of memory from a [`Driver`]'s pool. A handle without a drop: whoever has it gives it back.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: Address,
    /// What it holds, which may be more than was asked for.
    pub(crate) bytes: usize,
}

/// A point in a stream that other streams can wait for. Cheap to clone; what it takes is given back with the last
/// clone.
#[derive(Clone)]
pub struct Event(Arc<dyn Any + Send + Sync>);

impl Event {
    /// The event that a driver knows as `event`.
    pub(super) fn new(event: Arc<impl Any + Send + Sync>) -> Self {
        Self(event)
    }

    /// What the event is to its driver; `None` if it is another driver's.
    pub(super) fn as_a<E: Any + Send + Sync>(&self) -> Option<Arc<E>> {
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
    /// What it is, for people.
    fn name(&self) -> String;

    /// The cores that are near the device; none where that is not known.
    fn cores_near(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Makes a stream.
    fn open(&self, role: Role) -> Result<Box<dyn Stream>, DeviceError>;

    /// Takes a block of at least `bytes` from the pool. The device is asked only if there is none. What it holds is
    /// unspecified, and may be uninitialised.
    fn allocate(&self, place: Place, bytes: usize) -> Result<Block, DeviceError>;

    /// Puts a block of this driver back into the pool. No call of the device, and no wait beyond that for a short lock.
    /// The device must not be using the block any more.
    fn give_back(&self, block: Block);

    /// Loses the device: the engine does not use it any more, and gives back what commands under way may still use. When
    /// this has returned, to whoever has called it, the device touches no memory of a block, or no such block comes into use
    /// again.
    fn abandon(&self, error: &DeviceError);
}

/// A queue of commands of a device. One thread at a time calls it.
///
/// An error that is not a loss means that the call had no effect, and leaves the stream as it was.
pub(crate) trait Stream: Send {
    /// A number that streams of one driver share, and no others while there is one of them; `None` where there is no driver.
    fn driver(&self) -> Option<usize>;

    /// Makes an event of this point: it happens when all that was issued before is done.
    fn record(&mut self) -> Result<Event, DeviceError>;

    /// Has all that is issued from now on wait for `event`, on the device. The host does not wait.
    fn wait(&mut self, event: &Event) -> Result<(), DeviceError>;

    /// Has [`passed`](Self::passed) give at least `seq` when all that was issued before is done. Numbers rise.
    fn mark(&mut self, seq: u64) -> Result<(), DeviceError>;

    /// The number of the last mark passed, 0 before the first. Cheap.
    ///
    /// Acquire (edge `mark`): whoever gets a number sees what the commands before that mark have written.
    fn passed(&mut self) -> Result<u64, DeviceError>;

    /// Asks the driver whether the stream is sound. To be called now and then while nothing passes: a driver may find
    /// faults here only.
    fn probe(&mut self) -> Result<(), DeviceError>;

    /// Has the device copy `bytes`.
    ///
    /// # Safety
    ///
    /// 1. Both places hold `bytes`, and stay allocated until a mark that is made after this has passed, or the device
    ///    is lost.
    /// 2. Until then nobody else writes either place, or reads the target, but commands that are ordered with this one
    ///    by streams and events.
    unsafe fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Notes that a function of the program's, which may have used the stream, has returned. With `look`, gives whether it has
    /// left the stream in a capture, which is ended, so that nothing of it is ever done.
    ///
    /// # Errors
    ///
    /// What the function has left for whoever calls next; or the capture cannot be ended.
    fn function_ended(&mut self, look: bool) -> Result<bool, DeviceError> {
        let _ = look;
        Ok(false)
    }

    /// Whether the running function captures what is issued on the stream.
    fn is_captured(&mut self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// For the handles that give a program the driver's own stream.
    fn as_any(&mut self) -> &mut dyn Any;
}
