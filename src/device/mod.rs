//! The devices that operations run on, and what the engine asks of one.
//!
//! A device with memory of its own is behind a [`Driver`], and each of its lanes has one [`Stream`], a queue of
//! commands that the device works off by itself. There are two: [`simulated`], which needs no hardware, and `cuda`, in
//! builds with that feature.
//!
//! # Who may touch what
//!
//! | what | who |
//! |---|---|
//! | a driver | any thread, at any time |
//! | a stream | one thread at a time: that of its lane; in the naive engine, and for streams that a program has imported, whoever runs an operation that uses it |
//! | a block, and the memory in it | whoever has taken it from the pool, until it is given back; while commands on it are under way, the device |
//!
//! # Order
//!
//! Commands of one stream take effect in the order in which they were issued. Commands of two streams have an order
//! only where one waits for an event that the other has recorded. The host sees what commands have done once
//! [`Stream::passed`] has given the number of a mark made after them.
//!
//! # Edges
//!
//! | edge | release side | acquire side | hands over |
//! |---|---|---|---|
//! | `mark` | the device, when it gets to a mark | [`Stream::passed`] | what the commands before the mark have written |
//! | `event` | the device, when it gets to a recorded event | the device, in a stream that waits for it | the same, to commands behind the wait |
//!
//! # After a loss
//!
//! An error that [is one](DeviceError::is_lost) is given for good: from then on every call of every stream of the
//! device gives it, and allocations are refused. When [`Driver::abandon`] has returned, the device touches no memory any
//! more (see `cuda` for what is not known of hardware). Blocks can still be given back.

use std::{any::Any, cell::Cell, error::Error, fmt, sync::Arc};

use crate::{error::BoxError, sync::thread_static};

#[cfg(feature = "cuda")]
mod cuda;
mod memory;
mod pool;
pub mod simulated;

#[cfg(feature = "cuda")]
pub use cuda::CudaGpu;
#[cfg(feature = "cuda")]
pub(crate) use cuda::stream_of as cuda_stream;
pub use memory::{DeviceVec, PinnedVec};

// A device does the program's code on this thread.
thread_static!(static KERNEL: Cell<bool> = Cell::new(false));

/// Whether a device runs the program's code on this thread.
pub(crate) fn in_kernel() -> bool {
    KERNEL.with(Cell::get)
}

/// Forgets the kernel that runs on this thread, which has just been forked: it is the parent's.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn leave_kernel() {
    KERNEL.with(|kernel| kernel.set(false));
}

/// Runs `f`, code of the program's, as a device does.
pub(crate) fn as_kernel<R>(f: impl FnOnce() -> R) -> R {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            KERNEL.with(|kernel| kernel.set(self.0));
        }
    }
    let _leave = Leave(KERNEL.with(|kernel| kernel.replace(true)));
    f()
}

/// The device an operation runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Context {
    /// The processor's cores.
    #[default]
    Cpu,
    /// The GPU with this number.
    Gpu(u32),
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu(number) => write!(f, "gpu({number})"),
        }
    }
}

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

    /// Whether there is no room: on the device, or for the operating system to pin memory (304). The simulated device has
    /// CUDA's number for that.
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

    /// The driver's number for it: a `CUresult`, whose numbers the [simulated device](simulated) uses as well. Negative
    /// where the driver was not reached or has none.
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

/// A GPU for an engine: made from a [`SimulatedGpu`](simulated::SimulatedGpu), or from a `CudaGpu` in builds with
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
    home: Home,
    ptr: *mut u8,
}

// SAFETY: it gives no access by itself; what is done with the pointer is the doer's to justify.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// Where nothing is: the address of blocks without a byte, aligned for anything.
    fn nowhere(place: Place) -> Self {
        Self { place, home: Home::Host, ptr: std::ptr::without_provenance_mut(pool::ALIGNMENT) }
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
#[derive(Clone, Debug)]
pub struct Event(Recorded);

#[derive(Clone, Debug)]
enum Recorded {
    Simulated(Arc<simulated::Moment>),
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::CudaEvent>),
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
