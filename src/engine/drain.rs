//! The loops that run ready operations on this thread.

use std::{
    cell::{Cell, RefCell},
    collections::LinkedList,
    ptr,
    sync::Arc,
};

use crate::{
    engine::{
        core::Core,
        ending::{Rest, Rests},
        frame::{self, seen},
        task::Task,
        worker_thread::yield_worker,
    },
    sync::thread_static,
    system::stack,
    tracker::{OpRef, ReadyList},
};

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
    if yield_worker().is_err() {
        return Err(f);
    }
    let (frames, drain) = (frame::current(), seen(DRAIN.with(Cell::get)));
    let mut f = Some(f);
    let go_on = || {
        DRAIN.with(|cell| cell.set(drain));
        frames.adopt(|| f.take().into_iter().for_each(|f| f()));
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
    let _ = (
        yield_worker as fn() -> _,
        frame::current as fn() -> _,
        frame::Frames::adopt as fn(_, fn()),
        stack::on_another::<()> as unsafe fn(fn()) -> std::io::Result<()>,
    );
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

/// Whether something on this thread will run what is ready in `core`.
pub(crate) fn has_drain(core: &Core) -> bool {
    with_drain(core, |_| ()).is_some()
}

/// Whether this thread is inside an operation of `core`, or runs the program's code for it otherwise: it may have
/// operations in hand that have yet to be counted out.
pub(crate) fn works_for(core: &Core) -> bool {
    frame::any_frame(|frame| frame.is_of(core)) || has_drain(core)
}

/// Leaves the drains of this thread, which has just been forked: they are the parent's.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(super) fn leave_all() {
    DRAIN.with(|cell| cell.set(ptr::null()));
}
