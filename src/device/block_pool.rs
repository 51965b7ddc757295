//! A cache of free blocks, by size, needed because the driver may stall the whole device to allocate memory.
//!
//! Up to [`LARGE`], there are four sizes for each power of two. Above it, sizes are multiples of [`PAGE`], so that one
//! block can take most of a device's memory. A new block is at most a quarter larger than the requested size, except
//! that the smallest block has 256 bytes.
//!
//! # Progress
//!
//! Each kind of memory has a lock, which is held only while a list of free blocks is searched or changed, never during
//! a call to the driver.

use std::{collections::BTreeMap, fmt};

use crate::{
    error::device_error::DeviceError,
    sync::{Mutex, lock},
};

use super::driver::{ALIGNMENT, Address, Block, MemoryKind};

/// Up to this size, there are four block sizes for each power of two. The value is not tuned.
const LARGE: usize = 64 << 20;

/// The unit in which the CUDA driver allocates large blocks.
const PAGE: usize = 2 << 20;

/// Free blocks, by size.
type Free = BTreeMap<usize, Vec<Address>>;

/// The free blocks of one device.
pub(super) struct Pool {
    device: Mutex<Free>,
    pinned: Mutex<Free>,
}

/// Returns the size of a block for `bytes` bytes, or `None` if no block can be that large. `bytes` must not be 0.
fn size_for(bytes: usize) -> Option<usize> {
    if bytes <= ALIGNMENT {
        return Some(ALIGNMENT);
    }
    // `2^power < bytes <= 2^(power + 1)`.
    let power = (bytes - 1).ilog2();
    let step = if bytes > LARGE { PAGE } else { 1 << (power - 2) };
    bytes.checked_next_multiple_of(step).filter(|&size| isize::try_from(size).is_ok())
}

/// Takes a free block of at least `size` bytes, and returns it with its size. A large block may be up to a quarter
/// larger than `size`.
fn take(free: &mut Free, size: usize) -> Option<(Address, usize)> {
    let most = if size > LARGE { size + size / 4 } else { size };
    free.range_mut(size..=most).find_map(|(&size, blocks)| blocks.pop().map(|address| (address, size)))
}

impl Pool {
    pub(super) fn new() -> Self {
        Self { device: Mutex::new(Free::new()), pinned: Mutex::new(Free::new()) }
    }

    fn of(&self, kind: MemoryKind) -> &Mutex<Free> {
        match kind {
            MemoryKind::Device => &self.device,
            MemoryKind::Pinned => &self.pinned,
        }
    }

    /// Takes a block of at least `bytes` bytes: a free block, or a new block from `ask`, which must allocate exactly
    /// the requested size. If `ask` runs out of memory and there are free blocks of that kind, passes these to
    /// `release` and calls `ask` once more.
    pub(super) fn allocate(
        &self,
        kind: MemoryKind,
        bytes: usize,
        mut ask: impl FnMut(usize) -> Result<Address, DeviceError>,
        release: impl FnMut(Address, usize),
    ) -> Result<Block, DeviceError> {
        if bytes == 0 {
            return Ok(Block { address: Address::nowhere(kind), bytes: 0 });
        }
        let Some(size) = size_for(bytes) else {
            return Err(DeviceError::refused(-1, format!("{bytes} bytes are more than can be addressed")));
        };
        let free = take(&mut lock(self.of(kind)), size);
        let (address, bytes) = match free {
            Some(block) => block,
            None => match ask(size) {
                Err(error) if error.is_out_of_memory() && self.release(kind, release) => (ask(size)?, size),
                asked => (asked?, size),
            },
        };
        Ok(Block { address, bytes })
    }

    /// Returns a block to the pool.
    pub(super) fn free(&self, block: Block) {
        if block.bytes != 0 {
            debug_assert_eq!(size_for(block.bytes), Some(block.bytes), "the block does not come from a pool");
            lock(self.of(block.address.kind)).entry(block.bytes).or_default().push(block.address);
        }
    }

    /// Passes all free blocks of a kind, with their sizes, to `release`. Returns whether there were any.
    pub(super) fn release(&self, kind: MemoryKind, mut release: impl FnMut(Address, usize)) -> bool {
        let free = std::mem::take(&mut *lock(self.of(kind)));
        let mut any = false;
        for (size, blocks) in free {
            for address in blocks {
                release(address, size);
                any = true;
            }
        }
        any
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_requested_size_or_at_most_a_quarter_more() {
        let mut last = 0;
        for bytes in (1..70_000).chain([LARGE - 1, LARGE, LARGE + 1, 5_000_000_000, isize::MAX as usize / 2]) {
            let size = size_for(bytes).expect("the block should be addressable");
            assert!(size >= last, "the block for {bytes} bytes is smaller than the one for fewer bytes");
            last = size;
            assert!(size >= bytes && (size - bytes <= bytes / 4 || size == ALIGNMENT), "{size} bytes for {bytes}");
            assert_eq!(size_for(size), Some(size));
        }
        assert_eq!(size_for(isize::MAX as usize), None);
        assert_eq!(size_for(usize::MAX), None);
    }

    /// Uses the figures of a device with 141 GB.
    #[test]
    fn one_block_can_take_most_of_a_device() {
        const GIB: usize = 1 << 30;
        assert_eq!(size_for(129 * GIB), Some(129 * GIB));
        assert_eq!(size_for(66 * GIB), Some(66 * GIB));
        assert_eq!(size_for(66 * GIB + 1), Some(66 * GIB + PAGE));
    }

    #[test]
    fn a_large_block_is_reused_for_a_little_less_but_not_for_much_less() {
        let (pool, mut count) = (Pool::new(), 0);
        let block =
            pool.allocate(MemoryKind::Device, 2 * LARGE, asked(&mut count), |_, _| ()).expect("there should be room");
        pool.free(block);
        let less =
            pool.allocate(MemoryKind::Device, LARGE + 1, asked(&mut count), |_, _| ()).expect("there should be room");
        assert_eq!(less.bytes, LARGE + PAGE);
        let again = pool.allocate(MemoryKind::Device, 2 * LARGE - PAGE, asked(&mut count), |_, _| ());
        assert_eq!(again.expect("there should be room").bytes, 2 * LARGE);
        assert_eq!(count, 2, "not exactly one of the three blocks came from the pool");
    }

    fn asked(count: &mut usize) -> impl FnMut(usize) -> Result<Address, DeviceError> {
        |_| {
            *count += 1;
            Ok(Address::nowhere(MemoryKind::Device))
        }
    }

    #[test]
    fn a_returned_block_is_reused_for_its_kind_and_size_only() {
        let (pool, mut count) = (Pool::new(), 0);
        let block =
            pool.allocate(MemoryKind::Device, 1000, asked(&mut count), |_, _| ()).expect("there should be room");
        pool.free(block);
        for (kind, bytes) in [(MemoryKind::Device, 1000), (MemoryKind::Device, 2000), (MemoryKind::Pinned, 1000)] {
            pool.allocate(kind, bytes, asked(&mut count), |_, _| ()).expect("there should be room");
        }
        assert_eq!(count, 3, "not exactly one of the four blocks came from the pool");
    }

    #[test]
    fn free_blocks_are_released_before_an_allocation_fails() {
        // 2: the device is out of memory; 304: no more memory can be pinned.
        for code in [2, 304] {
            releases_if_refused_with(code);
        }
    }

    fn releases_if_refused_with(code: i32) {
        let (pool, mut count, mut released) = (Pool::new(), 0, Vec::new());
        let block =
            pool.allocate(MemoryKind::Device, 1000, asked(&mut count), |_, _| ()).expect("there should be room");
        let size = block.bytes;
        pool.free(block);
        let mut full = true;
        let again = pool.allocate(
            MemoryKind::Device,
            5000,
            |_| if std::mem::take(&mut full) { Err(DeviceError::refused(code, "full")) } else { asked(&mut count)(0) },
            |_, bytes| released.push(bytes),
        );
        assert!(again.is_ok());
        assert_eq!(released, [size]);
        let none = pool.allocate(
            MemoryKind::Device,
            5000,
            |_| Err(DeviceError::refused(code, "full")),
            |_, _| panic!("a block was released although none was free"),
        );
        assert_eq!(none.expect_err("there should be no room").code(), code);
    }

    /// The error is that of a call refused because another thread of the process is capturing a graph.
    #[test]
    fn free_blocks_stay_if_an_allocation_fails_for_a_reason_other_than_lack_of_memory() {
        let (pool, mut count) = (Pool::new(), 0);
        let block =
            pool.allocate(MemoryKind::Device, 1000, asked(&mut count), |_, _| ()).expect("there should be room");
        pool.free(block);
        let refused = || DeviceError::refused(900, "not now");
        let mut asked = 0;
        let ask = |_| {
            asked += 1;
            Err(refused())
        };
        let error =
            pool.allocate(MemoryKind::Device, 5000, ask, |_, _| panic!("a block was released")).expect_err("a refusal");
        assert_eq!((error.code(), asked), (900, 1));
    }
}
