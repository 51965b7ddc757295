//! Blocks of memory kept for reuse, by size class: asking a driver for memory can stop the whole device.
//!
//! There are four classes between one power of two and the next, so that a block is at most a quarter larger than what
//! was asked for, or 256 bytes.
//!
//! # Progress
//!
//! A lock per place is held for a push or a pop of a vector, and never while the driver is asked.

use std::fmt;

use crate::sync::{Mutex, lock};

use super::{Address, Block, DeviceError, Place};

/// The size of the smallest class in bytes. Drivers align what they give to at least this.
pub(super) const ALIGNMENT: usize = 256;

const SMALLEST: u32 = ALIGNMENT.trailing_zeros();

/// The free blocks of one device.
pub(super) struct Pool {
    device: Mutex<Vec<Vec<Address>>>,
    pinned: Mutex<Vec<Vec<Address>>>,
}

/// The class that holds `bytes`, which is not 0, and the size of its blocks. `None` if nothing can be as large.
fn class_of(bytes: usize) -> Option<(usize, usize)> {
    if bytes <= ALIGNMENT {
        return Some((0, ALIGNMENT));
    }
    // `2^power < bytes <= 2^(power + 1)`.
    let power = (bytes - 1).ilog2();
    let step = 1_usize << (power - 2);
    let steps = bytes.div_ceil(step);
    let size = steps.checked_mul(step).filter(|&size| isize::try_from(size).is_ok())?;
    Some(((power - SMALLEST) as usize * 4 + steps - 4, size))
}

impl Pool {
    pub(super) fn new() -> Self {
        Self { device: Mutex::new(Vec::new()), pinned: Mutex::new(Vec::new()) }
    }

    fn of(&self, place: Place) -> &Mutex<Vec<Vec<Address>>> {
        match place {
            Place::Device => &self.device,
            Place::Pinned => &self.pinned,
        }
    }

    /// A block of at least `bytes`: a free one, or one that `ask` makes of exactly the number of bytes it is given. If
    /// `ask` fails, what is free at that place goes to `release`, and `ask` is called once more.
    pub(super) fn allocate(
        &self,
        place: Place,
        bytes: usize,
        mut ask: impl FnMut(usize) -> Result<Address, DeviceError>,
        release: impl FnMut(Address, usize),
    ) -> Result<Block, DeviceError> {
        if bytes == 0 {
            return Ok(Block { address: Address::nowhere(place), bytes: 0 });
        }
        let Some((class, bytes)) = class_of(bytes) else {
            return Err(DeviceError::refused(-1, format!("{bytes} bytes are more than can be addressed")));
        };
        let free = lock(self.of(place)).get_mut(class).and_then(Vec::pop);
        let address = match free {
            Some(address) => address,
            None => match ask(bytes) {
                Ok(address) => address,
                Err(error) if error.is_lost() || !self.release(place, release) => return Err(error),
                Err(_) => ask(bytes)?,
            },
        };
        Ok(Block { address, bytes })
    }

    /// Takes a block back.
    pub(super) fn give_back(&self, block: Block) {
        let Some((class, size)) = (block.bytes != 0).then(|| class_of(block.bytes)).flatten() else { return };
        debug_assert_eq!(size, block.bytes, "the block is not of this pool");
        let mut classes = lock(self.of(block.address.place));
        if classes.len() <= class {
            classes.resize_with(class + 1, Vec::new);
        }
        classes[class].push(block.address);
    }

    /// Hands what is free at `place` to `release`, with sizes. Gives whether there was anything.
    pub(super) fn release(&self, place: Place, mut release: impl FnMut(Address, usize)) -> bool {
        let classes = std::mem::take(&mut *lock(self.of(place)));
        let mut any = false;
        for (class, free) in classes.into_iter().enumerate() {
            for address in free {
                release(address, size_of_class(class));
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

/// The size of the blocks of a class: the inverse of [`class_of`].
fn size_of_class(class: usize) -> usize {
    if class == 0 {
        return ALIGNMENT;
    }
    let (power, steps) = ((class - 1) / 4, (class - 1) % 4 + 5);
    (ALIGNMENT << power) / 4 * steps
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_what_was_asked_for_and_at_most_a_quarter_more() {
        let mut last = 0;
        for bytes in (1..70_000).chain([1 << 30, (1 << 30) + 1, 5_000_000_000, isize::MAX as usize / 2]) {
            let (class, size) = class_of(bytes).expect("it can be addressed");
            assert!(class >= last, "class {class} of {bytes} bytes is below that of fewer bytes");
            last = class;
            assert!(size >= bytes && (size - bytes <= bytes / 4 || size == ALIGNMENT), "{size} bytes for {bytes}");
            assert_eq!(size_of_class(class), size);
            assert_eq!(class_of(size), Some((class, size)));
        }
        assert_eq!(class_of(isize::MAX as usize), None);
        assert_eq!(class_of(usize::MAX), None);
    }

    fn asked(count: &mut usize) -> impl FnMut(usize) -> Result<Address, DeviceError> {
        |_| {
            *count += 1;
            Ok(Address::nowhere(Place::Device))
        }
    }

    #[test]
    fn a_block_given_back_is_used_again_at_its_place_and_size_only() {
        let (pool, mut count) = (Pool::new(), 0);
        let block = pool.allocate(Place::Device, 1000, asked(&mut count), |_, _| ()).expect("there is room");
        pool.give_back(block);
        for (place, bytes) in [(Place::Device, 1000), (Place::Device, 2000), (Place::Pinned, 1000)] {
            pool.allocate(place, bytes, asked(&mut count), |_, _| ()).expect("there is room");
        }
        assert_eq!(count, 3, "one of four was there");
    }

    #[test]
    fn what_is_free_is_released_before_an_allocation_fails() {
        let (pool, mut count, mut released) = (Pool::new(), 0, Vec::new());
        let block = pool.allocate(Place::Device, 1000, asked(&mut count), |_, _| ()).expect("there is room");
        let size = block.bytes;
        pool.give_back(block);
        let mut full = true;
        let again = pool.allocate(
            Place::Device,
            5000,
            |_| if std::mem::take(&mut full) { Err(DeviceError::refused(2, "full")) } else { asked(&mut count)(0) },
            |_, bytes| released.push(bytes),
        );
        assert!(again.is_ok());
        assert_eq!(released, [size]);
        let none =
            pool.allocate(Place::Device, 5000, |_| Err(DeviceError::refused(2, "full")), |_, _| panic!("nothing"));
        assert_eq!(none.expect_err("there is no room").code(), 2);
    }
}
