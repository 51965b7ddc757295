//! A cache of free blocks, by size, needed because the driver may stall the whole device to allocate memory.
//!
//! A pool's blocks, free or not, have no more bytes than were once in use at the same time, or than its limit more than
//! are in use. The most bytes in use are counted anew each time that none is, so an idle pool keeps its limit at most.
//! If there are more, the blocks that have been free for longest are released.
//!
//! Up to [`LARGE`], there are four sizes for each power of two. Above it, sizes are multiples of [`PAGE`], so that one
//! block can take most of a device's memory. A new block is at most a quarter larger than the requested size, except
//! that the smallest block has 256 bytes.
//!
//! # Progress
//!
//! Each kind of memory has a lock, which is held only while a list of free blocks is searched or changed, never during
//! a call to the driver.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
};

use smallvec::SmallVec;

use crate::{
    error::device_error::DeviceError,
    sync::{Mutex, Ordering::Relaxed, atomic::AtomicUsize, lock},
};

use super::driver::{ALIGNMENT, Address, Block, MemoryKind};

/// Up to this size, there are four block sizes for each power of two. The value is not tuned.
const LARGE: usize = 64 << 20;

/// The unit in which the CUDA driver allocates large blocks.
const PAGE: usize = 2 << 20;

/// The default [limit](Pool::set_limit), in bytes. Not tuned: small beside the memory of a device and its host, and
/// larger than most vectors.
const LIMIT: usize = 256 << 20;

/// The blocks of one kind.
#[derive(Default)]
struct Blocks {
    /// The free blocks, by size: each with the number of blocks returned before it, those returned first in front.
    free: BTreeMap<usize, VecDeque<(u64, Address)>>,
    free_bytes: usize,
    used_bytes: usize,
    /// The most bytes in use since none was.
    most_used: usize,
    /// The number of blocks returned so far.
    returned: u64,
}

/// The blocks of one device.
pub(super) struct Pool {
    device: Mutex<Blocks>,
    pinned: Mutex<Blocks>,
    limit: AtomicUsize,
}

/// Free blocks taken from a pool to be released, each with its size.
type Surplus = SmallVec<[(Address, usize); 4]>;

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

impl Blocks {
    /// Takes a free block of at least `size` bytes, and returns it with its size. A large block may be up to a quarter
    /// larger than `size`.
    fn take(&mut self, size: usize) -> Option<(Address, usize)> {
        let most = if size > LARGE { size.saturating_add(size / 4) } else { size };
        let (&size, blocks) = self.free.range_mut(size..=most).next()?;
        let (_, address) = blocks.pop_back()?;
        self.removed(size);
        Some((address, size))
    }

    /// Takes the block that has been free for longest.
    fn take_oldest(&mut self) -> Option<(Address, usize)> {
        let first = |(&size, blocks): (&usize, &VecDeque<(u64, Address)>)| blocks.front().map(|&(at, _)| (at, size));
        let (_, size) = self.free.iter().filter_map(first).min()?;
        let (_, address) = self.free.get_mut(&size)?.pop_front()?;
        self.removed(size);
        Some((address, size))
    }

    /// Notes that a free block of this size was taken.
    fn removed(&mut self, size: usize) {
        self.free_bytes -= size;
        if self.free.get(&size).is_some_and(VecDeque::is_empty) {
            self.free.remove(&size);
        }
    }

    /// Takes the free blocks that are too many for a pool with this limit once `more` bytes more are in use.
    fn surplus(&mut self, limit: usize, more: usize) -> Surplus {
        let used = self.used_bytes.saturating_add(more);
        self.surplus_over(limit.max(self.most_used.saturating_sub(used)))
    }

    /// Takes free blocks until they have at most `most` bytes.
    fn surplus_over(&mut self, most: usize) -> Surplus {
        let mut surplus = Surplus::new();
        while self.free_bytes > most {
            let Some(block) = self.take_oldest() else { break };
            surplus.push(block);
        }
        surplus
    }

    fn use_bytes(&mut self, bytes: usize) {
        self.used_bytes += bytes;
        self.most_used = self.most_used.max(self.used_bytes);
    }
}

impl Pool {
    pub(super) fn new() -> Self {
        Self { device: Mutex::default(), pinned: Mutex::default(), limit: AtomicUsize::new(LIMIT) }
    }

    fn of(&self, kind: MemoryKind) -> &Mutex<Blocks> {
        match kind {
            MemoryKind::Device => &self.device,
            MemoryKind::Pinned => &self.pinned,
        }
    }

    /// Sets how many bytes of each kind of memory may be free at any time, whatever was in use before.
    pub(super) fn set_limit(&self, bytes: usize) {
        // Relaxed: only a number.
        self.limit.store(bytes, Relaxed);
    }

    /// Takes a block of at least `bytes` bytes: a free block, or a new block from `ask`, which must allocate exactly
    /// the requested size. If `ask` runs out of memory and there are free blocks of that kind, passes these to
    /// `release` and calls `ask` once more.
    pub(super) fn allocate(
        &self,
        kind: MemoryKind,
        bytes: usize,
        mut ask: impl FnMut(usize) -> Result<Address, DeviceError>,
        mut release: impl FnMut(Address, usize),
    ) -> Result<Block, DeviceError> {
        if bytes == 0 {
            return Ok(Block { address: Address::nowhere(kind), bytes: 0 });
        }
        let Some(size) = size_for(bytes) else {
            return Err(DeviceError::refused(-1, format!("{bytes} bytes are more than can be addressed")));
        };
        let free = {
            let mut blocks = lock(self.of(kind));
            let free = blocks.take(size);
            free.iter().for_each(|&(_, size)| blocks.use_bytes(size));
            free
        };
        let (address, bytes) = match free {
            Some(block) => block,
            None => {
                self.release_surplus(kind, size, &mut release);
                let address = match ask(size) {
                    Err(error) if error.is_out_of_memory() && self.release(kind, release) > 0 => ask(size)?,
                    asked => asked?,
                };
                lock(self.of(kind)).use_bytes(size);
                (address, size)
            }
        };
        Ok(Block { address, bytes })
    }

    /// Returns a block to the pool.
    pub(super) fn free(&self, block: Block) {
        if block.bytes != 0 {
            debug_assert_eq!(size_for(block.bytes), Some(block.bytes), "the block does not come from a pool");
            let mut blocks = lock(self.of(block.address.kind));
            let at = blocks.returned;
            blocks.returned += 1;
            blocks.free.entry(block.bytes).or_default().push_back((at, block.address));
            blocks.free_bytes += block.bytes;
            blocks.used_bytes -= block.bytes;
            if blocks.used_bytes == 0 {
                blocks.most_used = 0;
            }
        }
    }

    /// Passes the free blocks of a kind that are too many once `more` bytes more are in use, with their sizes, to
    /// `release`.
    pub(super) fn release_surplus(&self, kind: MemoryKind, more: usize, mut release: impl FnMut(Address, usize)) {
        // Relaxed: only a number.
        let limit = self.limit.load(Relaxed);
        let surplus = lock(self.of(kind)).surplus(limit, more);
        surplus.into_iter().for_each(|(address, size)| release(address, size));
    }

    /// Passes all free blocks, with their sizes, to `release`. Returns how many bytes they have.
    pub(super) fn release_all(&self, mut release: impl FnMut(Address, usize)) -> usize {
        MemoryKind::ALL.into_iter().map(|kind| self.release(kind, &mut release)).sum()
    }

    /// Passes all free blocks of a kind, with their sizes, to `release`. Returns how many bytes they have.
    pub(super) fn release(&self, kind: MemoryKind, mut release: impl FnMut(Address, usize)) -> usize {
        let surplus = lock(self.of(kind)).surplus_over(0);
        surplus.into_iter().fold(0, |sum, (address, size)| {
            release(address, size);
            sum + size
        })
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
        for bytes in (1..70_000).chain([LARGE - 1, LARGE, LARGE + 1, isize::MAX as usize / 5, isize::MAX as usize / 2])
        {
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
    #[cfg(target_pointer_width = "64")]
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

    /// A pool with blocks of a mebibyte, each marked by its address.
    #[test]
    fn a_pool_keeps_as_much_as_was_in_use_and_its_limit_once_nothing_is() {
        const MIB: usize = 1 << 20;
        let (pool, mut count) = (Pool::new(), 0);
        pool.set_limit(2 * MIB);
        let mut take = || {
            count += 1;
            let at = |_| {
                Ok(Address { ptr: std::ptr::without_provenance_mut(count), ..Address::nowhere(MemoryKind::Device) })
            };
            pool.allocate(MemoryKind::Device, MIB, at, |_, _| ()).expect("there should be room")
        };
        let free = |block| {
            let mut released = Vec::new();
            pool.free(block);
            pool.release_surplus(MemoryKind::Device, 0, |address, _| released.push(address.ptr.addr()));
            released
        };
        let (first, blocks) = (take(), [take(), take(), take(), take()]);
        for block in blocks {
            assert_eq!(free(block), [], "five were in use");
        }
        assert_eq!(free(first), [2, 3, 4], "none is in use, and those returned first are released");
        assert_eq!(pool.release(MemoryKind::Device, |_, _| ()), 2 * MIB);
        assert_eq!(pool.release(MemoryKind::Device, |_, _| ()), 0);
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
