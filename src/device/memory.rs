//! Values in a device's memory, and values in memory of the host that devices copy from and to.

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
use crate::error::device::DeviceError;

/// A block of a driver that goes back when this is dropped.
struct Owned {
    driver: Arc<dyn Driver>,
    block: ManuallyDrop<Block>,
}

impl Owned {
    /// Memory for `len` values of type `T`.
    fn new<T>(driver: &Arc<dyn Driver>, kind: MemoryKind, len: usize) -> Result<Self, DeviceError> {
        const { assert!(align_of::<T>() <= ALIGNMENT, "no device aligns its memory so far") };
        let Some(bytes) = len.checked_mul(size_of::<T>()) else {
            let each = size_of::<T>();
            return Err(DeviceError::refused(
                -1,
                format!("{len} values of {each} bytes are more than can be addressed"),
            ));
        };
        let block = ManuallyDrop::new(driver.allocate(kind, bytes)?);
        Ok(Self { driver: Arc::clone(driver), block })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: taken here only, and the field is not used again.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        self.driver.free(block);
    }
}

/// A fixed number of values in a device's memory.
///
/// The host cannot look at them: operations on the device use them, and copies bring them from and to a [`PinnedVec`].
/// It exists only as the value of a variable, so that references to it are had by operations that have declared it, and
/// the engine knows when the device has finished with it. What a new one holds is unspecified.
///
/// Dropped, its memory goes back to the device's pool.
pub struct DeviceVec<T> {
    memory: Owned,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Pod + Send + Sync> DeviceVec<T> {
    pub(crate) fn new(driver: &Arc<dyn Driver>, len: usize) -> Result<Self, DeviceError> {
        Ok(Self { memory: Owned::new::<T>(driver, MemoryKind::Device, len)?, len, values: PhantomData })
    }
}

impl<T> DeviceVec<T> {
    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn address(&self) -> Address {
        self.memory.block.address
    }

    /// The address on the device, for kernels launched through CUDA. `None` if it is not in a CUDA device's memory, or
    /// holds not a single byte.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn cuda_ptr(&self) -> Option<cudarc::driver::sys::CUdeviceptr> {
        let address = self.address();
        matches!(address.owner, MemoryOwner::Cuda(_)).then(|| address.ptr() as cudarc::driver::sys::CUdeviceptr)
    }

    /// Whether it is in the memory of the device `owner`; what has no bytes is everywhere.
    pub(super) fn is_at(&self, owner: MemoryOwner) -> bool {
        self.memory.block.bytes == 0 || self.address().owner == owner
    }
}

impl<T> fmt::Debug for DeviceVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceVec").field("len", &self.len).field("device", &self.memory.driver).finish()
    }
}

/// A fixed number of values in memory of the host that a device copies from and to by itself, while the host does
/// something else ("page-locked" memory).
///
/// It derefs to a slice. Like a [`DeviceVec`] it exists only as the value of a variable, so nobody looks while a copy
/// is under way. A new one holds zeros. The processor's caches work on it as on other memory.
///
/// Dropped, its memory goes back to the device's pool.
pub struct PinnedVec<T> {
    memory: Owned,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Pod + Send + Sync> PinnedVec<T> {
    pub(crate) fn new(driver: &Arc<dyn Driver>, len: usize) -> Result<Self, DeviceError> {
        let vec = Self { memory: Owned::new::<T>(driver, MemoryKind::Pinned, len)?, len, values: PhantomData };
        // SAFETY: the memory is this vector's alone, and as large. Nothing is in it yet, or what another one has left.
        unsafe { vec.as_mut_ptr().write_bytes(0, len) };
        Ok(vec)
    }
}

impl<T> PinnedVec<T> {
    /// The number of values, for who must not look at them.
    pub(crate) fn count(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self) -> Address {
        self.memory.block.address
    }

    /// Invariant: `len` values of type `T`, which is [`Pod`] since only `new` makes one, are at this address, in memory
    /// that is initialised, aligned to more than any `T` needs, and this vector's alone.
    fn as_mut_ptr(&self) -> *mut T {
        self.address().ptr().cast()
    }
}

impl<T> Deref for PinnedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: see the invariant of `as_mut_ptr`. `new` has initialised it, any bytes are a `T`, and the
        // engine gives no reference out while the device writes.
        unsafe { slice::from_raw_parts(self.as_mut_ptr(), self.len) }
    }
}

impl<T> DerefMut for PinnedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; and the engine gives no exclusive reference out while the device reads.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}

impl<T: fmt::Debug> fmt::Debug for PinnedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
