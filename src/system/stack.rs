//! Stacks: whether too little of the calling thread's stack is left, and calls on another stack.

use std::{io, panic::resume_unwind, thread};

/// The number of bytes of stack that must be left for a program function, on a stack of at least four times this size.
/// Not tuned: functions that are written for two-mebibyte stacks and keep their buffers on the heap need less.
const RESERVE: usize = 256 << 10;

/// The number of bytes of stack that must always be left, however small the stack. The engine itself was measured to
/// use 34 KiB when reclaiming what other operations have retired.
const LEAST: usize = 96 << 10;

/// The size of the other stack, in bytes. The stack is only mapped; unused pages take no memory.
const ANOTHER: usize = 64 << 20;

/// Whether too little stack is left for the calling thread to call a program function on top of its current frames.
/// Returns `None` if unknown.
#[inline]
pub(crate) fn is_short() -> Option<bool> {
    let StackBounds { lowest, enough, end } = imp::bounds()?;
    let here = pointer();
    // The bounds of a stack created by the program are unknown.
    (lowest <= here && here <= end).then_some(here < enough)
}

/// The bounds of a thread's stack, which grows downwards.
#[derive(Clone, Copy)]
struct StackBounds {
    lowest: usize,
    /// The lowest address at which the stack is not short.
    enough: usize,
    end: usize,
}

impl StackBounds {
    /// Returns the bounds of a stack of `size` bytes.
    #[cfg_attr(not(all(target_os = "linux", not(miri))), allow(dead_code))]
    fn new(lowest: usize, size: usize) -> Self {
        Self { lowest, enough: lowest + (size / 4).clamp(LEAST, RESERVE), end: lowest + size }
    }
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

/// Runs `f` on the stack of a new thread and waits until `f` returns.
///
/// # Errors
/// Returns the operating system's error if it refuses to start a thread; `f` has then not run.
///
/// # Safety
/// 1. Another thread may use what `f` captures and calls while the calling thread is blocked.
pub(crate) unsafe fn on_another<R>(f: impl FnOnce() -> R) -> io::Result<R> {
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
        let another = thread::Builder::new().name(name).stack_size(ANOTHER);
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
        let bounds = (found == 0).then(|| StackBounds::new(lowest.addr(), size));
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
    fn a_stack_is_short_when_little_is_left_of_it() {
        /// Recurses, `PAGE` bytes at a time, until the stack is short.
        fn descend(depth: usize) -> usize {
            const PAGE: usize = 4096;
            let page = std::hint::black_box([0_u8; PAGE]);
            let depth = if is_short() == Some(false) { descend(depth + 1) } else { depth };
            depth + usize::from(page[depth % PAGE])
        }
        for size in [1 << 20, 8 << 20] {
            let thread = thread::Builder::new().stack_size(size).spawn(|| descend(0)).expect("a thread should start");
            let pages = thread.join().expect("the stack should be large enough");
            assert!(pages * 4096 > size / 4, "{pages} of {size}");
        }
    }

    #[test]
    fn a_function_on_another_stack_has_room_and_returns_its_value() {
        let mut local = 1;
        // SAFETY: any thread may use all that the closure captures.
        let value = unsafe {
            on_another(|| {
                local += 1;
                (is_short(), thread::current().name().map(str::to_owned))
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
        let _ = unsafe { on_another::<()>(|| panic!("on another stack")) };
    }
}
