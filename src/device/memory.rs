//! Values in device memory, and values in host memory that devices access directly for copies.

use std::{
    fmt,
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    slice,
    sync::Arc,
};

use bytemuck::Pod;

use super::driver::{ALIGNMENT, Address, Block, Driver, MemoryKind, MemoryOwner};
use crate::error::device_error::DeviceError;

/// A block allocated by a driver. Dropping this returns the block to the driver.
struct OwnedBlock {
    driver: Arc<dyn Driver>,
    block: ManuallyDrop<Block>,
}

impl OwnedBlock {
    /// Allocates memory for `len` values of type `T`.
    fn new<T>(driver: &Arc<dyn Driver>, kind: MemoryKind, len: usize) -> Result<Self, DeviceError> {
        const { assert!(align_of::<T>() <= ALIGNMENT, "no device aligns its memory this strictly") };
        let Some(bytes) = len.checked_mul(size_of::<T>()) else {
            let each = size_of::<T>();
            return Err(DeviceError::refused(
                -1,
                format!("{len} values of {each} bytes are more than can be addressed; ask for fewer"),
            ));
        };
        let block = ManuallyDrop::new(driver.allocate(kind, bytes)?);
        Ok(Self { driver: Arc::clone(driver), block })
    }
}

impl Drop for OwnedBlock {
    fn drop(&mut self) {
        // SAFETY: nothing else takes the block, and the field is not used again after the drop.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        self.driver.free(block);
    }
}

/// A fixed number of values in a device's memory.
///
/// The host cannot access the values. Operations on the device use them, and copies transfer them from and to a
/// [`PinnedVec`] or another `DeviceVec`. A `DeviceVec` exists only as a variable's value. So only operations that
/// declare the variable can hold references to the vector, and the engine knows when the device has finished with it.
/// The contents of a new vector are unspecified.
///
/// Dropping the vector returns its memory to the device's pool.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Device, Engine, gpu::SimulatedGpu};
///
/// let gpu = Device::Gpu(0);
/// let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).build()?;
/// let (host, values) = (engine.pinned_var::<u32>(gpu, 4)?, engine.device_var::<u32>(gpu, 4)?);
/// engine.op("fill").push(host.write(), |host| host.fill(3))?;
/// engine.op("upload").on(gpu).copy_to_device(&host, &values)?;
/// let len = engine.op("length").submit(values.read(), |values| values.len())?;
/// assert_eq!(len.wait()?, 4);
/// # Ok(())
/// # }
/// ```
pub struct DeviceVec<T> {
    memory: OwnedBlock,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Pod + Send + Sync> DeviceVec<T> {
    pub(crate) fn new(driver: &Arc<dyn Driver>, len: usize) -> Result<Self, DeviceError> {
        Ok(Self { memory: OwnedBlock::new::<T>(driver, MemoryKind::Device, len)?, len, values: PhantomData })
    }
}

impl<T> DeviceVec<T> {
    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn address(&self) -> Address {
        self.memory.block.address
    }

    /// Returns the address on the device, for kernels launched through CUDA. Returns `None` if the memory does not
    /// belong to a CUDA device or has no bytes.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn cuda_ptr(&self) -> Option<cudarc::driver::sys::CUdeviceptr> {
        let address = self.address();
        matches!(address.owner, MemoryOwner::Cuda(_)).then(|| address.ptr() as cudarc::driver::sys::CUdeviceptr)
    }

    /// Returns whether the values are in the memory of `owner`. A vector of zero bytes is considered to be in every
    /// memory.
    pub(super) fn is_at(&self, owner: MemoryOwner) -> bool {
        self.memory.block.bytes == 0 || self.address().owner == owner
    }
}

impl<T> fmt::Debug for DeviceVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceVec").field("len", &self.len).field("device", &self.memory.driver).finish()
    }
}

/// A fixed number of values in page-locked host memory, which a device copies to and from directly while the host does
/// other work.
///
/// It derefs to a slice. Like a [`DeviceVec`], it exists only as a variable's value. So no reference to the values
/// exists while a copy writes them, and no mutable reference while a copy reads them. A new vector is filled with
/// zeros. The CPU caches the memory like any other host memory.
///
/// Dropping the vector returns its memory to the device's pool.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Device, Engine, gpu::SimulatedGpu};
///
/// let gpu = Device::Gpu(0);
/// let engine = Engine::builder().workers(1).gpu(SimulatedGpu::new()).build()?;
/// let host = engine.pinned_var::<f32>(gpu, 3)?;
/// let sum = engine.op("sum").submit(host.read(), |host| host.iter().sum::<f32>())?;
/// assert_eq!(sum.wait()?, 0.0);
/// # Ok(())
/// # }
/// ```
pub struct PinnedVec<T> {
    memory: OwnedBlock,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Pod + Send + Sync> PinnedVec<T> {
    pub(crate) fn new(driver: &Arc<dyn Driver>, len: usize) -> Result<Self, DeviceError> {
        let vec = Self { memory: OwnedBlock::new::<T>(driver, MemoryKind::Pinned, len)?, len, values: PhantomData };
        // SAFETY: the memory belongs to this vector alone, and has this size. The write does not read the old values,
        // which may be another vector's or uninitialised.
        unsafe { vec.as_mut_ptr().write_bytes(0, len) };
        Ok(vec)
    }
}

impl<T> PinnedVec<T> {
    /// Returns the number of values, without creating a reference to them.
    pub(crate) fn count(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self) -> Address {
        self.memory.block.address
    }

    /// Returns the address of the values. Invariant: it points to `len` values of type `T`, in initialised memory
    /// aligned to at least the alignment of `T` and owned by this vector alone. `T` is [`Pod`], since only `new`
    /// creates a vector.
    fn as_mut_ptr(&self) -> *mut T {
        self.address().ptr().cast()
    }
}

impl<T> Deref for PinnedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: by the invariant of `as_mut_ptr`, the values are there. `new` has initialised the memory, any bytes
        // are a valid `T`, and the engine lends no reference while the device writes.
        unsafe { slice::from_raw_parts(self.as_mut_ptr(), self.len) }
    }
}

impl<T> DerefMut for PinnedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; in addition, the engine lends no exclusive reference while the device reads.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}

impl<T: fmt::Debug> fmt::Debug for PinnedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
