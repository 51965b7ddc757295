//! Where an operation runs, and what it sees of it.

use std::{
    cell::{Cell, RefCell},
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{
    core::Core,
    device::Context,
    gpu::GpuStream,
    progress::Progress,
    sync::thread_static,
    task::{Task, flag},
    threads,
    tracker::{OpRef, ReadyList},
    variable::VarCell,
};

/// An operation that runs on this thread, innermost first.
pub(crate) struct Frame {
    pub(crate) op: OpRef<Task>,
    core: *const Core,
    /// The outcome that the operation is going to set, if somebody has its handle.
    outcome: Cell<*const ()>,
    /// The operation's completion was dropped by its own function.
    pub(crate) lost: Cell<bool>,
    /// The operation has not passed its variables on.
    holding: bool,
    parent: *const Frame,
}

thread_static!(static FRAME: Cell<*const Frame> = Cell::new(ptr::null()));

/// The innermost frame of this thread.
#[inline]
fn innermost() -> *const Frame {
    FRAME.with(Cell::get)
}

/// Whether this thread is inside an operation of any engine.
#[inline]
pub(crate) fn in_operation() -> bool {
    !innermost().is_null()
}

/// Runs `f` as a part of `op`, which is `holding` its variables or has passed them on.
#[inline]
pub(crate) fn enter<R>(core: &Core, op: OpRef<Task>, holding: bool, f: impl FnOnce(&Frame) -> R) -> R {
    struct Leave<'c>(&'c Cell<*const Frame>, *const Frame);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    FRAME.with(|innermost| {
        let parent = innermost.get();
        let frame = Frame {
            op,
            core: ptr::from_ref(core),
            outcome: Cell::new(ptr::null()),
            lost: Cell::new(false),
            holding,
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
}

/// The frames of this thread, innermost first.
fn any_frame(mut wanted: impl FnMut(&Frame) -> bool) -> bool {
    let mut at = innermost();
    // SAFETY: a frame lives on this thread's stack until `enter` has taken it out of the list.
    while let Some(frame) = unsafe { at.as_ref() } {
        if wanted(frame) {
            return true;
        }
        at = frame.parent;
    }
    false
}

/// Drains inside each other before what becomes ready is left to the innermost: enough for programs that nest on purpose,
/// little enough for any stack. Picked.
const MAX_DRAINS: usize = 64;

/// A loop that runs ready operations on this thread, innermost first.
pub(crate) struct Drain {
    core: *const Core,
    deferred: RefCell<ReadyList<Task>>,
    depth: usize,
    parent: *const Drain,
}

thread_static!(static DRAIN: Cell<*const Drain> = Cell::new(ptr::null()));

impl Drain {
    /// Takes an operation that was left to this loop.
    pub(crate) fn pop(&self) -> Option<OpRef<Task>> {
        self.deferred.borrow_mut().pop()
    }

    /// Takes over what is ready, where `take_deferred` finds it.
    pub(crate) fn push_all(&self, ready: &mut ReadyList<Task>) {
        let mut deferred = self.deferred.borrow_mut();
        while let Some(op) = ready.pop() {
            deferred.push(op);
        }
    }
}

/// Runs `f` as a loop that runs ready operations.
pub(crate) fn drain<R>(core: &Core, f: impl FnOnce(&Drain) -> R) -> R {
    struct Leave(*const Drain);
    impl Drop for Leave {
        fn drop(&mut self) {
            DRAIN.with(|cell| cell.set(self.0));
        }
    }
    let parent = DRAIN.with(Cell::get);
    // SAFETY: a drain lives on this thread's stack until it has taken itself out of the list.
    let depth = unsafe { parent.as_ref() }.map_or(0, |drain| drain.depth + 1);
    let drain = Drain { core: ptr::from_ref(core), deferred: RefCell::default(), depth, parent };
    let _leave = Leave(parent);
    DRAIN.with(|cell| cell.set(&raw const drain));
    f(&drain)
}

/// The innermost drain of `core` on this thread.
fn drain_of(core: &Core) -> Option<&Drain> {
    let mut at = DRAIN.with(Cell::get);
    // SAFETY: as in `drain`; the callers do not keep the reference.
    while let Some(drain) = unsafe { at.as_ref() } {
        if ptr::eq(drain.core, core) {
            return Some(drain);
        }
        at = drain.parent;
    }
    None
}

/// Whether many drains are inside each other on this thread.
pub(crate) fn is_deep() -> bool {
    // SAFETY: as in `drain`.
    unsafe { DRAIN.with(Cell::get).as_ref() }.is_some_and(|drain| drain.depth >= MAX_DRAINS)
}

/// Leaves `ready` to a drain of this thread if so many are inside each other that another might be too much for the stack.
pub(crate) fn defer(core: &Core, ready: &mut ReadyList<Task>) -> bool {
    let drain = if is_deep() { drain_of(core) } else { None };
    if let Some(drain) = drain {
        drain.push_all(ready);
    }
    drain.is_some()
}

/// What is left to drains of `core` on this thread, for a caller that is about to wait and may wait for it.
pub(crate) fn take_deferred(core: &Core) -> ReadyList<Task> {
    let mut all = ReadyList::default();
    let mut at = DRAIN.with(Cell::get);
    // SAFETY: as in `drain`.
    while let Some(drain) = unsafe { at.as_ref() } {
        while let Some(op) = if ptr::eq(drain.core, core) { drain.pop() } else { None } {
            all.push(op);
        }
        at = drain.parent;
    }
    all
}

/// Leaves `ready` to the innermost drain of `core` on this thread, if there is one.
pub(crate) fn leave_to_drain(core: &Core, ready: &mut ReadyList<Task>) {
    if let Some(drain) = drain_of(core) {
        drain.push_all(ready);
    }
}

/// Operations of `core` on this thread whose functions have dropped their completions and are about to wait.
pub(crate) fn take_lost(core: &Core) -> Option<OpRef<Task>> {
    let mut lost = None;
    any_frame(|frame| {
        let found = ptr::eq(frame.core, core) && frame.lost.replace(false);
        if found {
            lost = Some(frame.op);
        }
        found
    });
    lost
}

/// Whether the function of a device operation, of any engine, runs on this thread.
pub(crate) fn in_device_function() -> bool {
    any_frame(|frame| frame.holding && frame.op.task().has(flag::DEVICE))
}

/// Whether something on this thread will run what is ready in `core`.
pub(crate) fn has_drain(core: &Core) -> bool {
    drain_of(core).is_some()
}

/// Whether the operation of `frame` is over though its function goes on: it is asynchronous, and its completion was used.
fn is_over(frame: &Frame) -> bool {
    frame.op.task().progress().is_some_and(Progress::is_resolved)
}

/// Whether this thread is inside an operation of `core`.
pub(crate) fn in_operation_of(core: &Core) -> bool {
    any_frame(|frame| ptr::eq(frame.core, core) && !is_over(frame))
}

/// Whether an operation that runs on this thread holds `cell`.
pub(crate) fn holds(cell: NonNull<VarCell>) -> bool {
    let queue = VarCell::queue_ptr(cell);
    any_frame(|frame| {
        frame.holding && !is_over(frame) && frame.op.op().accesses().iter().any(|access| access.queue_ptr() == queue)
    })
}

/// Whether an operation that runs on this thread is the one that will set `outcome`.
pub(crate) fn sets(outcome: *const ()) -> bool {
    any_frame(|frame| frame.outcome.get() == outcome)
}

/// Notes that the completion of `op` was dropped, if the function of `op` is what runs on this thread; `false` otherwise.
pub(crate) fn note_lost(op: OpRef<Task>) -> bool {
    // SAFETY: as in `any_frame`.
    let frame = unsafe { innermost().as_ref() };
    let own = frame.filter(|frame| frame.op.as_ptr() == op.as_ptr());
    if let Some(frame) = own {
        frame.lost.set(true);
    }
    own.is_some()
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
        self.frame.op.task().name().as_str()
    }

    /// The device the operation runs on.
    #[must_use]
    pub fn context(&self) -> Context {
        self.core.gpus().context_of(self.frame.op.task().lane)
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

    pub(crate) fn op(&self) -> OpRef<Task> {
        self.frame.op
    }

    pub(crate) fn core(&self) -> &'a Arc<Core> {
        self.core
    }

    pub(crate) fn set_outcome(&self, outcome: *const ()) {
        self.frame.outcome.set(outcome);
    }
}
