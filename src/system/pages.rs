//! Memory in whole pages, which returns to the system as soon as it is freed.
//!
//! An allocator keeps much of what a program frees: blocks between others that are in use, and what it expects to be
//! needed again. So a program that once had a long backlog would occupy its memory forever.

use std::{alloc::Layout, ptr::NonNull};

#[cfg(all(target_os = "linux", not(any(miri, raddle_loom, raddle_shuttle, raddle_unpooled))))]
mod imp {
    use std::{alloc::Layout, ptr::null_mut};

    /// Maps at least `len` bytes.
    fn map(len: usize) -> *mut u8 {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the system chooses the place of the mapping, so it replaces no other one.
        let memory = unsafe { libc::mmap(null_mut(), len, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        if memory == libc::MAP_FAILED { null_mut() } else { memory.cast() }
    }

    /// # Safety
    /// 1. The pages were mapped by [`map`], and nothing uses them any more.
    unsafe fn unmap(memory: *mut u8, len: usize) {
        if len > 0 {
            // SAFETY: (1). If the process has too many mappings to split one, the pages stay mapped, but lose their
            // memory.
            unsafe {
                if libc::munmap(memory.cast(), len) != 0 {
                    libc::madvise(memory.cast(), len, libc::MADV_DONTNEED);
                }
            }
        }
    }

    /// Maps at least `len` bytes at a multiple of `align`.
    fn map_aligned(len: usize, align: usize) -> *mut u8 {
        // The system places mappings side by side, so this one is mostly aligned if the last one was.
        let memory = map(len);
        if memory.is_null() || memory.addr() % align == 0 {
            return memory;
        }
        // SAFETY: the mapping is new.
        unsafe { unmap(memory, len) };
        let memory = map(len + align);
        if memory.is_null() {
            return memory;
        }
        let before = memory.addr().next_multiple_of(align) - memory.addr();
        let aligned = memory.wrapping_add(before);
        // SAFETY: the mapping is new, and both parts are in it.
        unsafe { unmap(memory, before) };
        // SAFETY: the part behind the block is in the new mapping too.
        unsafe { unmap(aligned.wrapping_add(len), align - before) };
        aligned
    }

    pub(super) fn allocate(layout: Layout) -> *mut u8 {
        let memory = map_aligned(layout.size(), layout.align());
        if !memory.is_null() {
            // The pages are used soon, and a call for all of them takes less time than a fault for each. Systems
            // before Linux 5.14 do not know the call: there, the faults occur. Huge pages would take less time still,
            // but to find or make one stalls a push for milliseconds.
            // SAFETY: the mapping is new. The call changes no contents.
            unsafe { libc::madvise(memory.cast(), layout.size(), libc::MADV_POPULATE_WRITE) };
        }
        memory
    }

    /// # Safety
    /// 1. As for [`free`](super::free).
    pub(super) unsafe fn free(memory: *mut u8, layout: Layout) {
        // SAFETY: (1).
        unsafe { unmap(memory, layout.size()) }
    }

    /// # Safety
    /// 1. As for [`vacate`](super::vacate).
    pub(super) unsafe fn vacate(memory: *mut u8, len: usize) {
        // SAFETY: the call only reads a property of the system.
        let Ok(page) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return };
        let before = memory.addr().next_multiple_of(page) - memory.addr();
        let len = len.saturating_sub(before) / page * page;
        if len > 0 {
            // SAFETY: by (1) the pages are in the mapping, and nothing needs their contents. The call is only advice.
            unsafe { libc::madvise(memory.wrapping_add(before).cast(), len, libc::MADV_DONTNEED) };
        }
    }
}

#[cfg(not(all(target_os = "linux", not(any(miri, raddle_loom, raddle_shuttle, raddle_unpooled)))))]
mod imp {
    use std::alloc::Layout;

    pub(super) fn allocate(layout: Layout) -> *mut u8 {
        assert!(layout.size() > 0, "there is no memory of no size");
        // SAFETY: the size is above zero.
        unsafe { std::alloc::alloc_zeroed(layout) }
    }

    /// # Safety
    /// 1. As for [`free`](super::free).
    pub(super) unsafe fn free(memory: *mut u8, layout: Layout) {
        // SAFETY: (1).
        unsafe { std::alloc::dealloc(memory, layout) }
    }

    /// # Safety
    /// 1. As for [`vacate`](super::vacate).
    pub(super) unsafe fn vacate(_: *mut u8, _: usize) {}
}

/// Returns how much memory the machine has, in bytes, or `None` if that is unknown.
pub(crate) fn physical() -> Option<usize> {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let ask = |what| {
            // SAFETY: the call only reads a property of the system.
            usize::try_from(unsafe { libc::sysconf(what) }).ok().filter(|&number| number > 0)
        };
        ask(libc::_SC_PHYS_PAGES)?.checked_mul(ask(libc::_SC_PAGESIZE)?)
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    None
}

/// Allocates zeroed memory.
pub(crate) fn allocate(layout: Layout) -> NonNull<u8> {
    NonNull::new(imp::allocate(layout)).unwrap_or_else(|| std::alloc::handle_alloc_error(layout))
}

/// Frees memory.
///
/// # Safety
/// 1. The memory came from [`allocate`] with the same layout, and nothing uses it any more.
pub(crate) unsafe fn free(memory: NonNull<u8>, layout: Layout) {
    // SAFETY: (1).
    unsafe { imp::free(memory.as_ptr(), layout) }
}

/// Gives the whole pages in `len` bytes of memory back to the system, if it takes them. Afterwards, each byte has its
/// old value or is zero.
///
/// # Safety
/// 1. The bytes are part of memory from [`allocate`] that has not been freed, and nothing needs their contents.
pub(crate) unsafe fn vacate(memory: NonNull<u8>, len: usize) {
    // SAFETY: (1).
    unsafe { imp::vacate(memory.as_ptr(), len) }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_zeroed_and_can_be_written() {
        let layout = Layout::from_size_align(1 << 16, 1 << 16).expect("a layout");
        let blocks: Vec<_> = (0..20).map(|_| allocate(layout)).collect();
        for &block in &blocks {
            assert_eq!(block.addr().get() % layout.align(), 0);
            for at in (0..layout.size()).step_by(1000) {
                // SAFETY: the byte is in the block.
                let byte = unsafe { block.byte_add(at).as_mut() };
                assert_eq!(std::mem::replace(byte, 1), 0);
            }
        }
        for block in blocks {
            // SAFETY: the block is used no more.
            unsafe { free(block, layout) };
        }
    }
}
