//! Where an operation runs, and what it sees of it.

use std::{
    cell::{Cell, RefCell},
    collections::LinkedList,
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{
    core::{Core, Rest, Rests},
    device::{Context, as_kernel, in_kernel},
    error::WaitError,
    gpu::GpuStream,
    progress::Progress,
    stack,
    sync::{
        thread_static,
        weaken::{Step, removed},
    },
    task::Task,
    threads,
    tracker::{Op, OpRef, ReadyList},
    variable::VarCell,
};

/// The program's code that runs on this thread, innermost first: most often for an operation.
pub(crate) struct Frame {
    /// Whoever has entered the frame has the right to the operation, or a share of its record, until it leaves.
    op: Option<NonNull<Op<Task>>>,
    core: *const Arc<Core>,
    /// The outcome that the operation is going to set, if somebody has its handle.
    outcome: Cell<*const ()>,
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

    fn is_of(&self, core: &Core) -> bool {
        ptr::eq(Arc::as_ptr(self.engine()), core)
    }

    /// Whether the operation is over though its function goes on: it is asynchronous, and its completion was used.
    fn is_over(&self) -> bool {
        // Afterwards, what the operation leaves to the program is a part of it until it is counted out.
        self.holding && self.op().and_then(|op| op.task().progress()).is_some_and(Progress::is_resolved)
    }

    /// The right that was left with the frame.
    pub(crate) fn take_right(&self) -> Option<OpRef<Task>> {
        self.right.take()
    }
}

thread_static!(static FRAME: Cell<*const Frame> = Cell::new(ptr::null()));

/// The innermost frame of this thread.
#[inline]
fn innermost() -> *const Frame {
    FRAME.with(Cell::get)
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
            outcome: Cell::new(ptr::null()),
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
    DRAIN.with(|cell| cell.set(ptr::null()));
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
fn seen<T>(at: *const T) -> *const T {
    if !at.is_null() && STACK.with(Cell::get) == Stack::Lost { ptr::null() } else { at }
}

/// Whether one of the frames of this thread, innermost first, is `wanted`.
fn any_frame(mut wanted: impl FnMut(&Frame) -> bool) -> bool {
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

/// Drains inside each other before what becomes ready is left to others: enough for programs that nest on purpose, little
/// enough for any stack. Picked.
const MAX_DRAINS: usize = 64;

/// A loop that runs ready operations on this thread, innermost first.
pub(crate) struct Drain {
    core: *const Arc<Core>,
    /// What has to run here.
    deferred: RefCell<ReadyList<Task>>,
    /// What is left to do for operations that have ended here.
    rests: RefCell<LinkedList<Rest>>,
    depth: usize,
    parent: *const Drain,
}

thread_static!(static DRAIN: Cell<*const Drain> = Cell::new(ptr::null()));

impl Drain {
    fn engine(&self) -> &Arc<Core> {
        // SAFETY: whoever made the drain has the engine until that ends.
        unsafe { &*self.core }
    }

    fn is_of(&self, core: &Core) -> bool {
        ptr::eq(Arc::as_ptr(self.engine()), core)
    }

    /// Whether nothing is left to this loop.
    pub(crate) fn is_empty(&self) -> bool {
        self.deferred.borrow().is_empty() && self.rests.borrow().is_empty()
    }

    /// Takes an operation that was left to this loop.
    pub(crate) fn pop(&self) -> Option<OpRef<Task>> {
        self.deferred.borrow_mut().pop()
    }

    /// Takes over an operation that is ready.
    pub(crate) fn push(&self, op: OpRef<Task>) {
        self.deferred.borrow_mut().push(op);
    }

    /// Takes what is left to do for the operation that has ended first.
    pub(crate) fn pop_rest(&self) -> Option<Rest> {
        self.rests.borrow_mut().pop_front()
    }

    /// Takes over what is left to do for an operation that has ended.
    pub(crate) fn push_rest(&self, rest: Rest) {
        self.rests.borrow_mut().push_back(rest);
    }
}

/// Runs `f` as a loop that runs ready operations.
pub(crate) fn drain<R>(core: &Arc<Core>, f: impl FnOnce(&Drain) -> R) -> R {
    struct Leave<'c>(&'c Cell<*const Drain>, *const Drain);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    DRAIN.with(|innermost| {
        let parent = innermost.get();
        // SAFETY: a drain lives on this thread's stack, or on that of one that stands still for it, until it has taken itself
        // out of the list.
        let depth = unsafe { seen(parent).as_ref() }.map_or(0, |drain| drain.depth + 1);
        let (deferred, rests) = (RefCell::default(), RefCell::default());
        let drain = Drain { core: ptr::from_ref(core), deferred, rests, depth, parent };
        let _leave = Leave(innermost, parent);
        innermost.set(&raw const drain);
        f(&drain)
    })
}

/// Calls `wanted` with the drains of this thread, innermost first, until it gives something.
fn find_drain<R>(mut wanted: impl FnMut(&Drain) -> Option<R>) -> Option<R> {
    let mut at = seen(DRAIN.with(Cell::get));
    // SAFETY: as in `drain`.
    while let Some(drain) = unsafe { at.as_ref() } {
        if let Some(found) = wanted(drain) {
            return Some(found);
        }
        at = drain.parent;
    }
    None
}

/// Calls `f` with the innermost drain of `core` on this thread, if there is one.
pub(crate) fn with_drain<R>(core: &Core, f: impl FnOnce(&Drain) -> R) -> Option<R> {
    let mut f = Some(f);
    find_drain(|drain| f.take_if(|_| drain.is_of(core)).map(|f| f(drain)))
}

/// Whether many drains are inside each other on this thread.
pub(crate) fn is_deep() -> bool {
    // SAFETY: as in `drain`.
    unsafe { seen(DRAIN.with(Cell::get)).as_ref() }.is_some_and(|drain| drain.depth >= MAX_DRAINS)
}

/// Whether the stack of this thread had better not be used for another operation inside the ones that run.
pub(crate) fn is_stack_short() -> bool {
    stack::is_short().unwrap_or_else(is_deep)
}

/// Runs `f` on another stack, as the calling thread would; gives it back where there is none to be had.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) fn on_another_stack(f: impl FnOnce()) -> Result<(), impl FnOnce()> {
    // What it waits for may need the worker.
    if threads::yield_worker().is_err() {
        return Err(f);
    }
    let (frame, drain) = (seen(innermost()), seen(DRAIN.with(Cell::get)));
    let (kept, kernel) = (KEPT.with(Cell::get), in_kernel());
    let mut f = Some(f);
    let go_on = || {
        STACK.with(|cell| cell.set(Stack::Another));
        FRAME.with(|cell| cell.set(frame));
        DRAIN.with(|cell| cell.set(drain));
        let mut run = || set_kept(kept, || f.take().into_iter().for_each(|f| f()));
        if kernel { as_kernel(run) } else { run() }
    };
    // SAFETY: nothing of the engine is bound to a thread but what is in thread-locals. Those that say what the thread is in
    // the midst of are taken over; the worker was given away, so that nothing is missed there. The frames and drains of the
    // calling thread, which stands still, are the other one's meanwhile.
    let done = unsafe { stack::on_another(go_on) };
    match (done, f) {
        (Err(_), Some(f)) => Err(f),
        _ => Ok(()),
    }
}

/// Models have small stacks, which are enough for them.
#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn on_another_stack(f: impl FnOnce()) -> Result<(), impl FnOnce()> {
    let _ = (as_kernel::<()> as fn(fn()), stack::on_another::<()> as unsafe fn(fn()) -> std::io::Result<()>);
    Err(f)
}

/// Takes what is left to drains of `core` on this thread: operations that are ready, and what is left to do for others.
pub(crate) fn take_deferred(core: &Core) -> (ReadyList<Task>, Rests) {
    let (mut ready, mut rests) = (ReadyList::default(), Rests::new());
    find_drain(|drain| {
        if drain.is_of(core) {
            while let Some(op) = drain.pop() {
                ready.push(op);
            }
            rests.extend(drain.rests.take());
        }
        None::<()>
    });
    (ready, rests)
}

/// An engine of which something is left to drains on this thread.
pub(crate) fn engine_with_deferred() -> Option<Arc<Core>> {
    find_drain(|drain| (!drain.is_empty()).then(|| Arc::clone(drain.engine())))
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
pub(crate) enum Kept {
    /// The function of a device operation, of any engine: what it has in hand is not complete when it returns.
    InDeviceFunction,
    /// A deletion, of any engine.
    InDeletion,
}

// The innermost reason on this thread. Not looked for in the frames, which may be many, since each push of a naive engine asks.
thread_static!(static KEPT: Cell<Option<Kept>> = Cell::new(None));

/// Runs `f`, code of the program's that may not wait.
pub(crate) fn keep<R>(why: Kept, f: impl FnOnce() -> R) -> R {
    set_kept(Some(why), f)
}

/// Runs `f`, which runs operations: those inside a deletion are no part of it, and may wait.
pub(crate) fn outside_deletion<R>(f: impl FnOnce() -> R) -> R {
    match KEPT.with(Cell::get) {
        Some(Kept::InDeletion) => set_kept(None, f),
        _ => f(),
    }
}

fn set_kept<R>(kept: Option<Kept>, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Kept>);
    impl Drop for Restore {
        fn drop(&mut self) {
            KEPT.with(|cell| cell.set(self.0));
        }
    }
    let _restore = Restore(KEPT.with(|cell| cell.replace(kept)));
    f()
}

/// Whether the function of a device operation, of any engine, runs on this thread, or something that its device does.
pub(crate) fn in_device_function() -> bool {
    in_kernel() || KEPT.with(Cell::get) == Some(Kept::InDeviceFunction)
}

/// That the calling thread may wait, whatever for.
pub(crate) fn admit_wait() -> Result<(), WaitError> {
    if threads::serves_device() || in_device_function() {
        Err(WaitError::OnDevice)
    } else if KEPT.with(Cell::get) == Some(Kept::InDeletion) {
        Err(WaitError::InDeletion)
    } else {
        Ok(())
    }
}

/// Whether something on this thread will run what is ready in `core`.
pub(crate) fn has_drain(core: &Core) -> bool {
    with_drain(core, |_| ()).is_some()
}

/// Whether this thread is inside an operation of `core`.
pub(crate) fn in_operation_of(core: &Core) -> bool {
    any_frame(|frame| frame.is_of(core) && frame.op.is_some() && !frame.is_over())
}

/// Whether this thread is inside an operation of `core`, or runs the program's code for it otherwise: it may have
/// operations in hand that have yet to be counted out.
pub(crate) fn works_for(core: &Core) -> bool {
    any_frame(|frame| frame.is_of(core)) || has_drain(core)
}

/// Whether an operation that runs on this thread holds `cell`.
pub(crate) fn holds(cell: NonNull<VarCell>) -> bool {
    let queue = VarCell::queue_ptr(cell);
    any_frame(|frame| {
        let names = || frame.op().is_some_and(|op| op.accesses().iter().any(|access| access.queue_ptr() == queue));
        frame.holding && !frame.is_over() && names()
    })
}

/// Whether an operation that runs on this thread is the one that will set `outcome`.
pub(crate) fn sets(outcome: *const ()) -> bool {
    any_frame(|frame| frame.outcome.get() == outcome)
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

/// What an operation's function is told about its run.
pub struct RunContext<'a> {
    frame: &'a Frame,
    core: &'a Arc<Core>,
    stream: Cell<Option<&'a mut GpuStream>>,
}

impl fmt::Debug for RunContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunContext")
            .field("name", &self.name())
            .field("context", &self.context())
            .field("worker", &self.worker())
            .finish_non_exhaustive()
    }
}

impl<'a> RunContext<'a> {
    pub(crate) fn new(frame: &'a Frame, core: &'a Arc<Core>, stream: Option<&'a mut GpuStream>) -> Self {
        Self { frame, core, stream: Cell::new(stream) }
    }

    /// The operation's name; empty if it was given none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.op().task().name().as_str()
    }

    /// The device the operation runs on.
    #[must_use]
    pub fn context(&self) -> Context {
        self.core.gpus().context_of(self.op().task().lane)
    }

    /// The stream that the operation issues its work on, once; `None` on the CPU.
    pub(crate) fn take_stream(&self) -> Option<&'a mut GpuStream> {
        self.stream.take()
    }

    /// The number of the worker in its lane; `None` on a thread that is no worker, such as a pusher that runs the
    /// operation itself.
    #[must_use]
    pub fn worker(&self) -> Option<usize> {
        threads::worker_index()
    }

    pub(crate) fn op(&self) -> &Op<Task> {
        let Some(op) = self.frame.op() else { unreachable!("functions run for operations") };
        op
    }

    /// The right to the operation, once, for the completion of an asynchronous one.
    pub(crate) fn take_right(&self) -> Option<OpRef<Task>> {
        self.frame.take_right()
    }

    pub(crate) fn core(&self) -> &'a Arc<Core> {
        self.core
    }

    pub(crate) fn set_outcome(&self, outcome: *const ()) {
        self.frame.outcome.set(outcome);
    }
}
