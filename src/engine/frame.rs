//! What code of the program's runs on this thread, and for which operation.

use std::{
    cell::Cell,
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{
    device::{
        callback::{as_kernel, in_kernel},
        stream::GpuStream,
    },
    engine::{core::Core, task::Task},
    notify::async_state::AsyncState,
    sync::thread_static,
    testing::weaken::{Step, removed},
    tracker::{Op, OpRef, VarQueue},
};

/// The program's code that runs on this thread, innermost first: most often for an operation.
pub(crate) struct Frame {
    /// Whoever has entered the frame has the right to the operation, or a share of its record, until it leaves.
    op: Option<NonNull<Op<Task>>>,
    core: *const Arc<Core>,
    /// The oneshot that the operation is going to set, if somebody has its handle.
    oneshot: Cell<*const ()>,
    /// The right to the operation, for the completion that its function gets; and then again if a panic of the function has
    /// dropped that.
    right: Cell<Option<OpRef<Task>>>,
    /// The operation has not passed its variables on.
    holding: bool,
    parent: *const Frame,
}

impl Frame {
    fn op(&self) -> Option<&Op<Task>> {
        // SAFETY: whoever has entered the frame keeps the operation.
        self.op.map(|op| unsafe { op.as_ref() })
    }

    fn engine(&self) -> &Arc<Core> {
        // SAFETY: whoever has entered the frame has the engine until it leaves.
        unsafe { &*self.core }
    }

    pub(super) fn is_of(&self, core: &Core) -> bool {
        ptr::eq(Arc::as_ptr(self.engine()), core)
    }

    /// Whether the operation is over though its function goes on: it is asynchronous, and its completion was used.
    fn is_over(&self) -> bool {
        // Afterwards, what the operation leaves to the program is a part of it until it is counted out.
        self.holding && self.op().and_then(|op| op.task().async_state()).is_some_and(AsyncState::is_resolved)
    }

    /// The right that was left with the frame.
    pub(crate) fn take_right(&self) -> Option<OpRef<Task>> {
        self.right.take()
    }
}

thread_static!(static FRAME: Cell<*const Frame> = Cell::new(ptr::null()));

/// The innermost frame of this thread.
#[inline]
pub(super) fn innermost() -> *const Frame {
    FRAME.with(Cell::get)
}

/// The engine of the innermost operation that runs on this thread.
pub(crate) fn current_engine() -> Option<Arc<Core>> {
    let mut current = None;
    any_frame(|frame| {
        current = frame.op.map(|_| Arc::clone(frame.engine()));
        current.is_some()
    });
    current
}

/// Whether the program's code runs on this thread, for an operation of any engine or after one.
#[inline]
pub(crate) fn in_program() -> bool {
    !innermost().is_null()
}

/// What a frame's code has of its operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Has {
    /// The operation has not passed its variables on.
    Variables,
    /// It has.
    Nothing,
}

/// Runs `f` as a part of `op`.
#[inline]
pub(crate) fn enter<R>(core: &Arc<Core>, op: &Op<Task>, has: Has, f: impl FnOnce(&Frame) -> R) -> R {
    enter_with(core, Some(op), has, None, f)
}

/// Runs `f` as the function of the asynchronous operation `op`, whose completion takes `right` out of the frame.
pub(crate) fn enter_async<R>(core: &Arc<Core>, op: &Op<Task>, right: OpRef<Task>, f: impl FnOnce(&Frame) -> R) -> R {
    enter_with(core, Some(op), Has::Variables, Some(right), f)
}

/// Runs `f`, which is the program's, for `core`, but no part of an operation: that is counted out.
pub(crate) fn enter_after<R>(core: &Arc<Core>, f: impl FnOnce() -> R) -> R {
    enter_with(core, None, Has::Nothing, None, |_| f())
}

#[inline(always)]
fn enter_with<R>(
    core: &Arc<Core>,
    op: Option<&Op<Task>>,
    has: Has,
    right: Option<OpRef<Task>>,
    f: impl FnOnce(&Frame) -> R,
) -> R {
    struct Leave<'c>(&'c Cell<*const Frame>, *const Frame);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    FRAME.with(|innermost| {
        let parent = innermost.get();
        let frame = Frame {
            op: op.map(NonNull::from),
            core: ptr::from_ref(core),
            oneshot: Cell::new(ptr::null()),
            right: Cell::new(right),
            holding: has == Has::Variables,
            parent,
        };
        let _leave = Leave(innermost, parent);
        innermost.set(&raw const frame);
        f(&frame)
    })
}

/// Leaves the operations that run on this thread, which has just been forked: they are the parent's.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn leave_all() {
    FRAME.with(|cell| cell.set(ptr::null()));
    KEPT.with(|cell| cell.set(None));
    // The frames and drains of a thread that stood still for this one are on a stack that may be another one's soon, and come
    // back when those of this thread end.
    STACK.with(|cell| cell.set(if cell.get() == Stack::Own { Stack::Own } else { Stack::Lost }));
}

/// Whose frames and drains a thread has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stack {
    /// Its own.
    Own,
    /// Those of a thread that stands still as well. Models have no stacks.
    #[cfg_attr(any(raddle_loom, raddle_shuttle), allow(dead_code))]
    Another,
    /// This is a forked child, in which that thread is gone.
    Lost,
}

thread_static!(static STACK: Cell<Stack> = Cell::new(Stack::Own));

/// The innermost frame or drain by its thread-local, if it may be looked at.
pub(super) fn seen<T>(at: *const T) -> *const T {
    if !at.is_null() && STACK.with(Cell::get) == Stack::Lost { ptr::null() } else { at }
}

/// Whether one of the frames of this thread, innermost first, is `wanted`.
pub(super) fn any_frame(mut wanted: impl FnMut(&Frame) -> bool) -> bool {
    let mut at = seen(innermost());
    // SAFETY: a frame lives on this thread's stack, or on that of one that stands still for it, until `enter_with` has taken it
    // out of the list.
    while let Some(frame) = unsafe { at.as_ref() } {
        if wanted(frame) {
            return true;
        }
        at = frame.parent;
    }
    false
}

/// An operation on this thread whose completion a panic of its function has dropped, and its engine.
pub(crate) fn take_lost() -> Option<(Arc<Core>, OpRef<Task>)> {
    let mut lost = None;
    any_frame(|frame| {
        lost = frame.right.take().map(|op| (Arc::clone(frame.engine()), op));
        lost.is_some()
    });
    lost
}

/// Why the program's code that runs on this thread may not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoWait {
    /// The function of a device operation, of any engine: what it has in hand is not complete when it returns.
    InDeviceFunction,
    /// A deletion, of any engine.
    InDeletion,
}

// The innermost reason on this thread. Not looked for in the frames, which may be many, since each push of a naive engine asks.
thread_static!(static KEPT: Cell<Option<NoWait>> = Cell::new(None));

/// Runs `f`, code of the program's that may not wait.
pub(crate) fn without_waits<R>(why: NoWait, f: impl FnOnce() -> R) -> R {
    set_kept(Some(why), f)
}

/// Runs `f`, which runs operations: those inside a deletion are no part of it, and may wait.
pub(crate) fn outside_deletion<R>(f: impl FnOnce() -> R) -> R {
    match KEPT.with(Cell::get) {
        Some(NoWait::InDeletion) => set_kept(None, f),
        _ => f(),
    }
}

pub(super) fn set_kept<R>(kept: Option<NoWait>, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<NoWait>);
    impl Drop for Restore {
        fn drop(&mut self) {
            KEPT.with(|cell| cell.set(self.0));
        }
    }
    let _restore = Restore(KEPT.with(|cell| cell.replace(kept)));
    f()
}

/// Why the program's code that runs on this thread may not wait; `None` if it may.
pub(super) fn kept() -> Option<NoWait> {
    KEPT.with(Cell::get)
}

/// Whether the function of a device operation, of any engine, runs on this thread, or something that its device does.
pub(crate) fn in_device_function() -> bool {
    in_kernel() || KEPT.with(Cell::get) == Some(NoWait::InDeviceFunction)
}

/// Whether this thread is inside an operation of `core`.
pub(crate) fn in_operation_of(core: &Core) -> bool {
    any_frame(|frame| frame.is_of(core) && frame.op.is_some() && !frame.is_over())
}

/// Whether an operation that runs on this thread holds the variable with this queue.
pub(crate) fn holds(queue: NonNull<VarQueue<Task>>) -> bool {
    any_frame(|frame| {
        let names = || frame.op().is_some_and(|op| op.accesses().iter().any(|access| access.queue_ptr() == queue));
        frame.holding && !frame.is_over() && names()
    })
}

/// Whether an operation that runs on this thread is the one that will set `oneshot`.
pub(crate) fn sets(oneshot: *const ()) -> bool {
    any_frame(|frame| frame.oneshot.get() == oneshot)
}

/// Leaves the right to an operation with its frame, if a panic of its own function has dropped its completion; gives it back
/// otherwise.
pub(crate) fn leave_lost(op: OpRef<Task>) -> Option<OpRef<Task>> {
    // SAFETY: as in `any_frame`.
    let frame = unsafe { seen(innermost()).as_ref() };
    match frame {
        Some(frame)
            if frame.op.is_some_and(|own| own.as_ptr() == op.as_ptr())
                && (std::thread::panicking() || removed(Step::DropEndsAtOnce)) =>
        {
            frame.right.set(Some(op));
            None
        }
        _ => Some(op),
    }
}

/// The call of an operation's function: what the function may ask for.
pub(crate) struct Call<'a> {
    frame: &'a Frame,
    core: &'a Arc<Core>,
    stream: Cell<Option<&'a mut GpuStream>>,
}

impl<'a> Call<'a> {
    pub(super) fn new(frame: &'a Frame, core: &'a Arc<Core>, stream: Option<&'a mut GpuStream>) -> Self {
        Self { frame, core, stream: Cell::new(stream) }
    }

    /// The stream that the operation issues its work on, once; `None` on the CPU.
    pub(crate) fn take_stream(&self) -> Option<&'a mut GpuStream> {
        self.stream.take()
    }

    pub(crate) fn op(&self) -> &'a Op<Task> {
        let Some(op) = self.frame.op() else { unreachable!("functions run for operations") };
        op
    }

    /// The operation, without a check that there is one.
    #[inline]
    pub(crate) fn try_op(&self) -> Option<&'a Op<Task>> {
        self.frame.op()
    }

    /// The right to the operation, once, for the completion of an asynchronous one.
    pub(crate) fn take_right(&self) -> Option<OpRef<Task>> {
        self.frame.take_right()
    }

    /// Returns the right of an asynchronous operation whose completion was used, but whose function has failed: the
    /// operation fails with the function's failure.
    pub(crate) fn return_right(&self, op: OpRef<Task>) {
        self.frame.right.set(Some(op));
    }

    pub(crate) fn core(&self) -> &'a Arc<Core> {
        self.core
    }

    pub(crate) fn set_outcome(&self, oneshot: *const ()) {
        self.frame.oneshot.set(oneshot);
    }
}

/// What the program's code that runs on a thread is in the midst of.
pub(super) struct Frames {
    innermost: *const Frame,
    kept: Option<NoWait>,
    in_kernel: bool,
}

/// The frames of the calling thread.
pub(super) fn current() -> Frames {
    Frames { innermost: seen(innermost()), kept: KEPT.with(Cell::get), in_kernel: in_kernel() }
}

impl Frames {
    /// Runs `f` with these frames, those of a thread that stands still meanwhile, as the calling thread's own.
    pub(super) fn adopt(self, f: impl FnOnce()) {
        STACK.with(|cell| cell.set(Stack::Another));
        FRAME.with(|cell| cell.set(self.innermost));
        let run = || set_kept(self.kept, f);
        if self.in_kernel { as_kernel(run) } else { run() }
    }
}
