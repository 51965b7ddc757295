//! How much is left of the calling thread's stack, and another one to go on with where that is too little.

use std::{io, panic::resume_unwind, thread};

/// What has to be left for a function of the program's, in bytes, if the stack is large enough for that. Picked: more than
/// functions need that are written with stacks of two mebibytes in mind and keep their buffers elsewhere.
const RESERVE: usize = 256 << 10;

/// What has to be left however small the stack is, in bytes. Measured: to reclaim what other operations have retired takes
/// the engine itself 34 KiB.
const LEAST: usize = 96 << 10;

/// The size of another stack. It is only mapped; what is not used takes no memory.
const ANOTHER: usize = 64 << 20;

/// Whether the calling thread had better not call a function of the program's in the midst of what it does now; `None` where
/// that cannot be found out.
pub(crate) fn is_short() -> Option<bool> {
    let (lowest, size) = imp::bounds()?;
    let here = 0_u8;
    // On a stack that the program has made itself, nothing is known.
    let left = (&raw const here).addr().checked_sub(lowest).filter(|&left| left <= size)?;
    Some(left < (size / 4).clamp(LEAST, RESERVE))
}

/// Runs `f` on another stack, which is that of a thread made for it, and waits for its end.
///
/// # Errors
/// There is no thread to be had; `f` has not run.
///
/// # Safety
/// 1. What `f` captures and calls may be used by another thread while the calling one stands still.
pub(crate) unsafe fn on_another<R>(f: impl FnOnce() -> R) -> io::Result<R> {
    struct Lent<T>(T);
    // SAFETY: (1): the thread that lends it stands still until it has it back.
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

    thread_local! {
        static BOUNDS: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    }

    /// The lowest address of the calling thread's stack, and its size.
    pub(super) fn bounds() -> Option<(usize, usize)> {
        BOUNDS.get().or_else(|| {
            let bounds = look();
            BOUNDS.set(bounds);
            bounds
        })
    }

    fn look() -> Option<(usize, usize)> {
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        // SAFETY: the call has no conditions.
        let this = unsafe { libc::pthread_self() };
        // SAFETY: the thread lives, and the place may be written.
        if unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) } != 0 {
            return None;
        }
        let (mut lowest, mut size) = (ptr::null_mut(), 0);
        // SAFETY: the attributes were made by the call before, and both places may be written.
        let found = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size) };
        // SAFETY: as above; they are not used after this.
        unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
        (found == 0).then(|| (lowest.addr(), size))
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod imp {
    pub(super) fn bounds() -> Option<(usize, usize)> {
        None
    }
}

#[cfg(all(test, target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri))))]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_short_when_little_is_left_of_it() {
        /// Goes down, `PAGE` bytes at a time, until it is short.
        fn descend(depth: usize) -> usize {
            const PAGE: usize = 4096;
            let page = std::hint::black_box([0_u8; PAGE]);
            let depth = if is_short() == Some(false) { descend(depth + 1) } else { depth };
            depth + usize::from(page[depth % PAGE])
        }
        for size in [1 << 20, 8 << 20] {
            let thread = thread::Builder::new().stack_size(size).spawn(|| descend(0)).expect("a thread starts");
            let pages = thread.join().expect("the stack is large enough");
            assert!(pages * 4096 > size / 4, "{pages} of {size}");
        }
    }

    #[test]
    fn what_runs_on_another_stack_has_more_of_it_and_gives_its_value_back() {
        let mut local = 1;
        // SAFETY: all of it may be used by any thread.
        let value = unsafe {
            on_another(|| {
                local += 1;
                (is_short(), thread::current().name().map(str::to_owned))
            })
        };
        let (short, name) = value.expect("a thread starts");
        assert_eq!((local, short), (2, Some(false)));
        assert_eq!(name.as_deref(), thread::current().name());
    }

    #[test]
    #[should_panic(expected = "over there")]
    fn a_panic_on_another_stack_goes_on_here() {
        // SAFETY: as above.
        let _ = unsafe { on_another::<()>(|| panic!("over there")) };
    }
}
