//! Stacks: their sizes, whether too little of the calling thread's stack is left, and calls on another stack.

use std::{env, io, panic::resume_unwind, thread};

/// The default size of the stack of an engine's thread, in bytes. A quarter of it fits into the two mebibytes of a
/// thread that the program starts, so operations may be nested there, too.
const DEFAULT_SIZE: usize = 4 << 20;

/// The number of bytes that the engine itself needs on top of what a program function is promised. It was measured to
/// use 34 KiB when reclaiming what other operations have retired.
const OWN: usize = 64 << 10;

/// The number of bytes that a ready loop takes before it calls a program function. It was measured to take 3 KiB
/// without optimization.
const LOOP: usize = 8 << 10;

/// The smallest number of bytes that a program function can be promised.
const LEAST: usize = 64 << 10;

/// The largest size of a stack. Larger ones overflow when they are rounded to pages.
const MOST: usize = isize::MAX as usize / 2;

/// The least size of the other stack, in bytes. The stack is only mapped; unused pages take no memory.
const ANOTHER: usize = 64 << 20;

/// The sizes of the stacks of an engine's threads, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackSizes {
    size: usize,
    /// What each program function is promised.
    reserve: usize,
}

impl StackSizes {
    /// Returns the given sizes, or the default where none is given. If they do not fit, returns them as an error.
    pub(crate) fn new(size: Option<usize>, reserve: Option<usize>) -> Result<Self, (usize, usize)> {
        let from_environment = || env::var("RUST_MIN_STACK").ok()?.parse().ok();
        let default = || from_environment().unwrap_or(0).max(DEFAULT_SIZE).max(reserve.unwrap_or(0).saturating_mul(4));
        let size = size.unwrap_or_else(default);
        let reserve = reserve.unwrap_or(size / 4);
        let fits = (LEAST..MOST).contains(&reserve) && (reserve.saturating_add(2 * OWN)..MOST).contains(&size);
        if fits { Ok(Self { size, reserve }) } else { Err((size, reserve)) }
    }

    /// Returns the size of the stack of an engine's thread.
    pub(crate) fn size(self) -> usize {
        self.size
    }

    /// Whether too little stack is left for the calling thread to call a program function on top of its current frames.
    /// Returns `None` if unknown.
    #[inline]
    pub(crate) fn is_short(self) -> Option<bool> {
        self.is_short_behind(0)
    }

    /// [`is_short`](Self::is_short) for a function called in a ready loop, on top of the loop's frames.
    #[inline]
    pub(crate) fn is_short_for_loop(self) -> Option<bool> {
        self.is_short_behind(LOOP)
    }

    /// [`is_short`](Self::is_short) behind frames of this many bytes.
    #[inline(always)]
    fn is_short_behind(self, frames: usize) -> Option<bool> {
        let StackBounds { lowest, end } = imp::bounds()?;
        let here = pointer();
        // The bounds of a stack created by the program are unknown.
        (lowest <= here && here <= end).then(|| here - lowest < self.reserve + OWN + frames)
    }
}

/// The bounds of a thread's stack, which grows downwards.
#[derive(Clone, Copy)]
struct StackBounds {
    lowest: usize,
    end: usize,
}

/// Returns the stack pointer.
#[inline(always)]
fn pointer() -> usize {
    // The address of a local would be wrong under AddressSanitizer, which may keep locals on the heap.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let pointer;
        // SAFETY: the instruction copies one register to another.
        unsafe { std::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
        pointer
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let pointer;
        // SAFETY: the instruction copies one register to another.
        unsafe { std::arch::asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
        pointer
    }
    #[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
    {
        let here = 0_u8;
        (&raw const here).addr()
    }
}

/// Runs `f` on the stack of a new thread, of at least `size` bytes, and waits until `f` returns.
///
/// # Errors
/// Returns the operating system's error if it refuses to start a thread; `f` has then not run.
///
/// # Safety
/// 1. Another thread may use what `f` captures and calls while the calling thread is blocked.
pub(crate) unsafe fn on_another<R>(size: usize, f: impl FnOnce() -> R) -> io::Result<R> {
    struct Lent<T>(T);
    // SAFETY: (1): the thread that lends the value is blocked until it has the value back.
    unsafe impl<T> Send for Lent<T> {}
    impl<T> Lent<T> {
        fn get(self) -> T {
            self.0
        }
    }

    let f = Lent(f);
    let name = thread::current().name().unwrap_or("raddle").to_owned();
    thread::scope(|scope| {
        let another = thread::Builder::new().name(name).stack_size(size.max(ANOTHER));
        let running = another.spawn_scoped(scope, move || Lent(f.get()()))?;
        running.join().map(Lent::get).or_else(|payload| resume_unwind(payload))
    })
}

#[cfg(all(target_os = "linux", not(miri)))]
mod imp {
    use std::{cell::Cell, mem::MaybeUninit, ptr};

    use super::StackBounds;

    thread_local! {
        static BOUNDS: Cell<Option<StackBounds>> = const { Cell::new(None) };
    }

    /// Returns the bounds of the calling thread's stack.
    #[inline]
    pub(super) fn bounds() -> Option<StackBounds> {
        BOUNDS.get().or_else(query)
    }

    #[cold]
    fn query() -> Option<StackBounds> {
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        // SAFETY: the call has no preconditions.
        let this = unsafe { libc::pthread_self() };
        // SAFETY: the thread is alive, and the attributes may be written.
        if unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) } != 0 {
            return None;
        }
        let (mut lowest, mut size) = (ptr::null_mut(), 0);
        // SAFETY: the previous call has initialised the attributes, and both variables may be written.
        let found = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size) };
        // SAFETY: the attributes are initialised, and are not used after this call.
        unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
        let bounds = (found == 0).then(|| StackBounds { lowest: lowest.addr(), end: lowest.addr() + size });
        BOUNDS.set(bounds);
        bounds
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod imp {
    use super::StackBounds;

    pub(super) fn bounds() -> Option<StackBounds> {
        None
    }
}

#[cfg(all(test, target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri))))]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_short_when_less_than_the_reserve_is_left_of_it() {
        const PAGE: usize = 4096;
        /// Recurses, `PAGE` bytes at a time, until the stack is short.
        fn descend(sizes: StackSizes, depth: usize) -> usize {
            let page = std::hint::black_box([0_u8; PAGE]);
            let depth = if sizes.is_short() == Some(false) { descend(sizes, depth + 1) } else { depth };
            depth + usize::from(page[depth % PAGE])
        }
        for (size, reserve) in [(512 << 10, LEAST), (4 << 20, 1 << 20), (8 << 20, 1 << 20)] {
            let sizes = StackSizes::new(Some(size), Some(reserve)).expect("the sizes fit");
            let thread = thread::Builder::new().stack_size(size).spawn(move || descend(sizes, 0)).expect("a thread");
            let pages = thread.join().expect("the stack should be large enough");
            assert!(pages * PAGE > (size - reserve) / 4, "{pages} of {size}");
            assert!(pages * PAGE < size - reserve, "{pages} of {size}");
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        for (size, reserve) in [
            (Some(0), None),
            (Some(256 << 10), Some(200 << 10)),
            (None, Some(0)),
            (None, Some(usize::MAX)),
            (Some(usize::MAX), None),
            (Some(usize::MAX), Some(1 << 20)),
        ] {
            assert!(StackSizes::new(size, reserve).is_err(), "{size:?}, {reserve:?}");
        }
        assert_eq!(StackSizes::new(Some(8 << 20), None).map(|sizes| sizes.reserve), Ok(2 << 20));
    }

    #[test]
    fn a_function_on_another_stack_has_room_and_returns_its_value() {
        let sizes = StackSizes::new(None, None).expect("the defaults fit");
        let mut local = 1;
        // SAFETY: any thread may use all that the closure captures.
        let value = unsafe {
            on_another(0, || {
                local += 1;
                (sizes.is_short(), thread::current().name().map(str::to_owned))
            })
        };
        let (short, name) = value.expect("a thread should start");
        assert_eq!((local, short), (2, Some(false)));
        assert_eq!(name.as_deref(), thread::current().name());
    }

    #[test]
    #[should_panic(expected = "on another stack")]
    fn a_panic_on_another_stack_is_resumed_in_the_caller() {
        // SAFETY: the closure captures nothing.
        let _ = unsafe { on_another::<()>(0, || panic!("on another stack")) };
    }
}
