//! Ready loops, which run operations on a thread without a worker, inside another operation, or right after the
//! operation that made them ready.
//!
//! A loop lives on the stack of the thread that runs it and is linked into that thread's list, innermost first. It
//! ends, and leaves the list, once it has no operation or epilogue left to run. An [`Epilogue`] is what a
//! [run](crate::engine::run) leaves to be done after its successors have been dispatched.
//!
//! # Who may touch what
//!
//! * The list and the loops in it: only the thread to which they belong. [`on_another_stack`] lends them to another
//!   thread while their own is blocked.
//! * `deferred` and `epilogues`: the thread that runs the loop. No program code runs while either of them is borrowed.
//!
//! There are no edges between threads. In a forked child, loops of threads that did not survive the fork are never read
//! ([`frame::seen`]).

use std::{
    cell::{Cell, RefCell},
    collections::LinkedList,
    ptr,
    sync::Arc,
};

use smallvec::SmallVec;

use crate::{
    context::{running, worker_thread::yield_worker},
    engine::core::Core,
    error::op::OpError,
    notify::pending::Ticket,
    op::{
        frame::{self, seen},
        no_wait,
        task::{Remainder, Task},
    },
    sync::thread_static,
    system::stack,
    trace::Outcome,
    tracker::{Hold, OpRef, ReadyList},
};

/// The nesting depth at which no more operations are nested on a stack of unknown bounds. Not tuned: by default, three
/// operations fit into the stack of an engine's thread.
const MAX_DEPTH: usize = 3;

/// The maximum number of operations that a wait examines in one loop. Not tuned: examining one operation takes a few
/// microseconds.
const MAX_LOOKS: usize = 32;

/// The work left for a complete operation after its successors have been dispatched.
#[must_use = "the operation must still be counted out"]
pub(crate) enum Epilogue {
    /// The operation is not complete, or it is ended elsewhere.
    Nothing,
    /// The operation only has to be counted out.
    CountOut(Ticket),
    /// Program code must run before the operation is counted out: the function's drop, wakers, the drops of values. The
    /// result has been set.
    Completed(Completed),
    /// The operation is asynchronous and has started. Program code remains to be run here; the operation ends and is
    /// counted out elsewhere.
    Started(Hold<Task>, Remainder),
    /// Not an epilogue: runs another engine's ready operation, which must not run inside the function of a device
    /// operation and is left to a loop outside that function.
    Other(Box<dyn FnOnce() + Send>),
}

/// The epilogues of several operations, in order of completion.
pub(crate) type Epilogues = SmallVec<[Epilogue; 2]>;

/// Whether the function of an operation was called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FnState {
    Called,
    /// The operation is asynchronous: its function was called and may still be running, so ending the operation must
    /// not touch the function.
    MayRun,
    /// The function was not called and must be dropped in the epilogue.
    NotCalled,
}

impl FnState {
    /// Returns the outcome of an operation with this result.
    pub(crate) fn outcome(self, result: &Result<(), OpError>) -> Outcome {
        match result {
            Ok(()) => Outcome::Succeeded,
            Err(_) if self == Self::NotCalled => Outcome::Skipped,
            Err(_) => Outcome::Failed,
        }
    }
}

/// A complete operation whose result has been set, with the program code that must still run.
pub(crate) struct Completed {
    pub(crate) op: Hold<Task>,
    pub(crate) result: Result<(), OpError>,
    /// Failures that the operation has cleared or that other failures have replaced. They are dropped in the epilogue.
    pub(crate) ended: Vec<OpError>,
    pub(crate) function: FnState,
    pub(crate) remainder: Remainder,
}

/// A loop that runs ready operations on this thread.
pub(crate) struct ReadyLoop {
    core: *const Arc<Core>,
    /// The operations left to this loop.
    deferred: RefCell<ReadyList<Task>>,
    /// The epilogues left to this loop.
    epilogues: RefCell<LinkedList<Epilogue>>,
    depth: usize,
    /// Whether this loop runs inside the function of a device operation.
    on_device: bool,
    /// The loop around this one, or null.
    parent: *const ReadyLoop,
}

thread_static!(static INNERMOST: Cell<*const ReadyLoop> = Cell::new(ptr::null()));

impl ReadyLoop {
    fn engine(&self) -> &Arc<Core> {
        // SAFETY: the caller of `run` keeps the engine alive until the loop ends.
        unsafe { &*self.core }
    }

    fn is_of(&self, core: &Core) -> bool {
        ptr::eq(Arc::as_ptr(self.engine()), core)
    }

    /// Whether this loop has nothing left to run.
    pub(crate) fn is_empty(&self) -> bool {
        self.deferred.borrow().is_empty() && self.epilogues.borrow().is_empty()
    }

    /// Takes an operation left to this loop.
    pub(crate) fn pop(&self) -> Option<OpRef<Task>> {
        self.deferred.borrow_mut().pop()
    }

    /// Leaves a ready operation to this loop.
    pub(crate) fn push(&self, op: OpRef<Task>) {
        self.deferred.borrow_mut().push(op);
    }

    /// Takes the earliest epilogue.
    pub(crate) fn pop_epilogue(&self) -> Option<Epilogue> {
        self.epilogues.borrow_mut().pop_front()
    }

    /// Leaves an epilogue to this loop.
    pub(crate) fn push_epilogue(&self, epilogue: Epilogue) {
        self.epilogues.borrow_mut().push_back(epilogue);
    }
}

/// Runs `f` as a ready loop of `core`.
pub(crate) fn run<R>(core: &Arc<Core>, f: impl FnOnce(&ReadyLoop) -> R) -> R {
    struct LeaveLoop<'c>(&'c Cell<*const ReadyLoop>, *const ReadyLoop);
    impl Drop for LeaveLoop<'_> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    INNERMOST.with(|innermost| {
        let parent = innermost.get();
        // SAFETY: a loop lives until it has left the list, on the stack of this thread or of the blocked thread on
        // whose behalf this thread runs.
        let depth = unsafe { seen(parent).as_ref() }.map_or(0, |parent| parent.depth + 1);
        let (deferred, epilogues) = (RefCell::default(), RefCell::default());
        let on_device = no_wait::in_device_function();
        let ready_loop = ReadyLoop { core: ptr::from_ref(core), deferred, epilogues, depth, on_device, parent };
        let _leave = LeaveLoop(innermost, parent);
        innermost.set(&raw const ready_loop);
        f(&ready_loop)
    })
}

/// Calls `f` with each loop of this thread, innermost first, until `f` returns a value. Returns that value.
fn find_loop<R>(mut f: impl FnMut(&ReadyLoop) -> Option<R>) -> Option<R> {
    let mut at = seen(INNERMOST.with(Cell::get));
    // SAFETY: a loop lives until it has left the list, on the stack of this thread or of the blocked thread on whose
    // behalf this thread runs.
    while let Some(ready_loop) = unsafe { at.as_ref() } {
        if let Some(found) = f(ready_loop) {
            return Some(found);
        }
        at = ready_loop.parent;
    }
    None
}

/// Calls `f` with the innermost loop on this thread for which `wanted` returns `true`. Returns `None` if there is none.
fn with_innermost<R>(wanted: impl Fn(&ReadyLoop) -> bool, f: impl FnOnce(&ReadyLoop) -> R) -> Option<R> {
    let mut f = Some(f);
    find_loop(|ready_loop| f.take_if(|_| wanted(ready_loop)).map(|f| f(ready_loop)))
}

/// Calls `f` with the innermost loop of `core` on this thread. Returns `None` if there is no such loop.
pub(crate) fn with_loop<R>(core: &Core, f: impl FnOnce(&ReadyLoop) -> R) -> Option<R> {
    with_innermost(|ready_loop| ready_loop.is_of(core), f)
}

/// Calls `f` with the innermost loop of `core` on this thread that is not inside the function of a device operation,
/// and so runs its work after that function has returned. Returns `None` if there is no such loop.
pub(crate) fn with_outer_loop<R>(core: &Core, f: impl FnOnce(&ReadyLoop) -> R) -> Option<R> {
    with_innermost(|ready_loop| ready_loop.is_of(core) && !ready_loop.on_device, f)
}

/// Calls `f` with the innermost loop of any engine on this thread that is not inside the function of a device
/// operation. Returns `None` if there is no such loop.
pub(crate) fn with_any_outer_loop<R>(f: impl FnOnce(&ReadyLoop) -> R) -> Option<R> {
    with_innermost(|ready_loop| !ready_loop.on_device, f)
}

// The number of calls to `in_place` on this thread's stack.
thread_static!(static IN_PLACE: Cell<usize> = Cell::new(0));

/// Calls `f`, which runs an operation on the stack of a waiting thread, or ends a family inside a child's epilogue.
pub(crate) fn in_place<R>(f: impl FnOnce() -> R) -> R {
    struct LeavePlace;
    impl Drop for LeavePlace {
        fn drop(&mut self) {
            IN_PLACE.with(|depth| depth.set(depth.get() - 1));
        }
    }
    IN_PLACE.with(|depth| depth.set(depth.get() + 1));
    let _leave = LeavePlace;
    f()
}

/// Whether this thread's loops and calls to [`in_place`] are nested at least [`MAX_DEPTH`] deep.
fn is_deep() -> bool {
    // SAFETY: a loop lives until it has left the list, on the stack of this thread or of the blocked thread on whose
    // behalf this thread runs.
    let depth = unsafe { seen(INNERMOST.with(Cell::get)).as_ref() }.map_or(0, |innermost| innermost.depth);
    depth + IN_PLACE.with(Cell::get) >= MAX_DEPTH
}

/// Whether less is left of this thread's stack than the engine promises to each operation, so that none may be nested.
#[inline]
pub(crate) fn is_stack_short(core: &Core) -> bool {
    core.threads().stacks().is_short().unwrap_or_else(is_deep)
}

/// [`is_stack_short`] for what a loop begun now calls. So nothing that a loop calls finds the stack short, although the
/// loop did not: it would take another stack, and what it makes ready the next, without end.
#[inline]
pub(crate) fn is_stack_short_for_loop(core: &Core) -> bool {
    core.threads().stacks().is_short_for_loop().unwrap_or_else(is_deep)
}

/// Runs `f` on another stack, with the frames and loops of the calling thread. Returns `f` if the thread's worker
/// cannot be handed over or no other stack is available.
#[cfg(not(any(raddle_loom, raddle_shuttle)))]
pub(crate) fn on_another_stack(core: &Core, f: impl FnOnce()) -> Result<(), impl FnOnce()> {
    // `f` may wait for operations that need the worker.
    if yield_worker().is_err() {
        return Err(f);
    }
    // The engines that count this thread in `running` count the other thread instead.
    let runs = Cell::new(Some(running::take_runs()));
    let (frames, innermost) = (frame::current(), seen(INNERMOST.with(Cell::get)));
    let mut f = Some(f);
    let go_on = || {
        INNERMOST.with(|cell| cell.set(innermost));
        running::put_runs(runs.take().unwrap_or_default());
        frames.adopt(|| f.take().into_iter().for_each(|f| f()));
        runs.set(Some(running::take_runs()));
    };
    // SAFETY: the engine binds nothing but thread-locals to a thread. The other thread takes over the thread-locals
    // that point to the frames and loops, and the worker was given up above. The frames and loops belong to the other
    // thread until `go_on` has returned, and the calling thread is blocked until then.
    let done = unsafe { stack::on_another(core.threads().stacks().size(), go_on) };
    running::put_runs(runs.take().unwrap_or_default());
    match (done, f) {
        (Err(_), Some(f)) => Err(f),
        _ => Ok(()),
    }
}

/// Returns `f`: models need no other stacks, since their own are small but sufficient.
#[cfg(any(raddle_loom, raddle_shuttle))]
pub(crate) fn on_another_stack(core: &Core, f: impl FnOnce()) -> Result<(), impl FnOnce()> {
    let _ = (
        core.threads().stacks().size(),
        yield_worker as fn() -> _,
        frame::current as fn() -> _,
        frame::Frames::adopt as fn(_, fn()),
        stack::on_another::<()> as unsafe fn(usize, fn()) -> std::io::Result<()>,
        running::take_runs as fn() -> _,
        running::put_runs as fn(_),
    );
    Err(f)
}

/// Takes the operations and epilogues left to this thread's loops of `core`.
pub(crate) fn take_deferred(core: &Core) -> (ReadyList<Task>, Epilogues) {
    let (mut ready, mut epilogues) = (ReadyList::default(), Epilogues::new());
    find_loop(|ready_loop| {
        if ready_loop.is_of(core) {
            while let Some(op) = ready_loop.pop() {
                ready.push(op);
            }
            epilogues.extend(ready_loop.epilogues.take());
        }
        None::<()>
    });
    (ready, epilogues)
}

/// Takes the first `wanted` operation among those left to this thread's loops of `core`. Examines at most [`MAX_LOOKS`]
/// operations per loop.
pub(crate) fn take_deferred_if(core: &Core, wanted: impl Fn(&OpRef<Task>) -> bool) -> Option<OpRef<Task>> {
    find_loop(|ready_loop| {
        if !ready_loop.is_of(core) {
            return None;
        }
        let (mut found, mut looked_at, mut kept) = (None, 0, ReadyList::default());
        let mut deferred = ready_loop.deferred.borrow_mut();
        if deferred.is_empty() {
            return None;
        }
        while let Some(op) = deferred.pop() {
            looked_at += 1;
            if wanted(&op) {
                found = Some(op);
                break;
            }
            kept.push(op);
            if looked_at == MAX_LOOKS {
                break;
            }
        }
        kept.append(&mut deferred);
        *deferred = kept;
        found
    })
}

/// Returns the engine of this thread's innermost loop that has operations or epilogues left, if there is one.
pub(crate) fn engine_with_deferred() -> Option<Arc<Core>> {
    find_loop(|ready_loop| (!ready_loop.is_empty()).then(|| Arc::clone(ready_loop.engine())))
}

/// Whether this thread has a loop of `core`, which will run work left to the loop.
pub(crate) fn has_loop(core: &Core) -> bool {
    with_loop(core, |_| ()).is_some()
}

/// Whether this thread has a loop of any engine that is not inside the function of a device operation.
pub(crate) fn is_in_outer_loop() -> bool {
    with_any_outer_loop(|_| ()).is_some()
}

/// Whether this thread has a loop of `core` that is not inside the function of a device operation.
pub(crate) fn has_outer_loop(core: &Core) -> bool {
    with_outer_loop(core, |_| ()).is_some()
}

/// Whether this thread is inside an operation or a ready loop of `core`, or is running other program code for `core`.
/// If so, it may have operations that are not yet counted out.
pub(crate) fn works_for(core: &Core) -> bool {
    frame::any_frame(|frame| frame.is_of(core)) || has_loop(core)
}

/// In a forked child, forgets this thread's loops, which belong to the parent process.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn leave_all() {
    INNERMOST.with(|cell| cell.set(ptr::null()));
}
