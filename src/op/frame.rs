//! Frames record the program code running on a thread, and the operation for which it runs.
//!
//! A thread has a list of frames, innermost first. [`enter`] adds a frame around a call into program code; the frame
//! leaves the list when the call returns or panics.
//!
//! # States
//!
//! | the frame | its operation |
//! |---|---|
//! | [`Holds::Variables`] | has not released its variables: its function runs, its future is polled or dropped, or this thread waits until a device has completed it |
//! | [`Holds::Variables`], and the task [is over](Task::is_over) | is complete although its function still runs |
//! | [`Holds::Nothing`] | has released its variables: its epilogue runs |
//! | [`Holds::AcquiredVariables`] | holds its variables for program code outside the program's operations |
//! | without an operation | was counted out, if there was one |
//!
//! # Who may touch what
//!
//! * The list and the frames in it: only the thread to which they belong. [`Frames::adopt`] lends them to another
//!   thread while their own is blocked.
//! * In a forked child: a blocked thread's frames are never read ([`seen`]), since that thread does not exist in the
//!   child, which may reuse its stack.
//!
//! There are no edges between threads: [`stack::on_another`](crate::system::stack::on_another) orders the two threads
//! that share frames.

use std::{
    cell::Cell,
    fmt,
    panic::Location,
    ptr::{self, NonNull},
    sync::Arc,
    time::Instant,
};

use crate::{
    device::{
        running_kernel::{as_kernel, in_kernel},
        stream::GpuStream,
    },
    engine::core::Core,
    error::{deadlock::Pushed, op::Cause},
    notify::{
        claim::Claim,
        stop_signal::Signals,
        waiters::{Inside, Nested, Ops},
    },
    op::{
        cancellable::{Cancellable, WaitersPlace},
        group_core::GroupCore,
        kin::Kin,
        limits::Limits,
        no_wait::{self, Reasons},
        task::{Beside, Task, flag},
    },
    sync::{
        edge::{removed, step},
        thread_static,
    },
    tracker::{Op, OpRef, VarQueue},
    values::Name,
};

/// Records that program code is running on this thread, usually for an operation.
pub(crate) struct Frame {
    /// The operation for which the code runs. The caller of `enter_with` owns the operation, or holds its record, until
    /// the frame ends.
    op: Option<NonNull<Op<Task>>>,
    core: *const Arc<Core>,
    /// The operation's families and what can cancel it, or null.
    ties: Cell<*const Ties>,
    /// The right to end an asynchronous operation, until the operation's completion takes it. The right is put back if
    /// a panic in the function drops the completion, or if the completion has been used or dropped before the operation
    /// may end. The code that enters a frame with a right takes the right out again.
    right: Cell<Option<OpRef<Task>>>,
    holds: Holds,
    /// The frame around this one, or null.
    parent: *const Frame,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("operation", &self.op().map(|op| op.task().name())).finish_non_exhaustive()
    }
}

impl Frame {
    #[inline]
    pub(crate) fn op(&self) -> Option<&Op<Task>> {
        // SAFETY: the caller of `enter_with` keeps the operation alive until the frame ends.
        self.op.map(|op| unsafe { op.as_ref() })
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Core> {
        // SAFETY: `core` points to the caller's `Arc`, which `enter_with` borrows until the frame ends.
        unsafe { &*self.core }
    }

    pub(crate) fn is_of(&self, core: &Core) -> bool {
        ptr::eq(Arc::as_ptr(self.engine()), core)
    }

    /// Whether the operation is complete although its function still runs: it is asynchronous, it cannot have children,
    /// and its completion was used.
    fn is_over(&self) -> bool {
        // Epilogues are excluded, since their program code is part of the operation.
        self.holds == Holds::Variables && self.op().is_some_and(|op| op.task().is_over())
    }

    /// Takes the frame's right to end the operation, if it has one.
    pub(crate) fn take_right(&self) -> Option<OpRef<Task>> {
        self.right.take()
    }

    fn put_right(&self, right: OpRef<Task>) {
        let replaced = self.right.replace(Some(right));
        debug_assert!(replaced.is_none(), "an operation has one right");
    }

    /// Returns the operation's families and what can cancel it.
    fn ties(&self) -> Ties {
        // SAFETY: the `Ties` are borrowed by a call to `tied_by`, which restores the previous pointer when it
        // ends.
        unsafe { self.ties.get().as_ref() }.copied().unwrap_or_default()
    }

    /// Calls `f` as code of an operation that can be cancelled through its handle, with which it shares `beside`.
    pub(crate) fn claimed_by<R>(&self, beside: &Beside, f: impl FnOnce() -> R) -> R {
        self.tied_by(&Ties { beside: Some(NonNull::from(beside)), ..self.ties() }, f)
    }

    /// Calls `f` as code of an operation that is in `group` and a child of `family`, where these are given.
    pub(crate) fn in_group<R>(
        &self,
        group: Option<&Arc<GroupCore>>,
        family: Option<&Arc<dyn Kin>>,
        f: impl FnOnce() -> R,
    ) -> R {
        let group = group.map(|group| NonNull::from(&**group));
        self.tied_by(&Ties { group, child_of: family.map(NonNull::from), ..self.ties() }, f)
    }

    /// Calls `f` as the function of the parent of `family`.
    pub(crate) fn in_family<R>(&self, family: &Arc<dyn Kin>, f: impl FnOnce() -> R) -> R {
        self.tied_by(&Ties { parent_of: Some(NonNull::from(family)), ..self.ties() }, f)
    }

    /// Returns the family of the operation, if the operation has children.
    pub(crate) fn family(&self) -> Option<&Arc<dyn Kin>> {
        // SAFETY: these `Ties` belong to an unfinished call to `in_family`, whose caller has borrowed the family.
        self.ties().parent_of.map(|family| unsafe { family.as_ref() })
    }

    /// Returns the frame in which this operation's scope was opened, if it was opened on this thread. The scope knows
    /// the variables and operations of that frame and of the frames around it.
    fn known_from(&self) -> Option<*const ()> {
        // SAFETY: these `Ties` belong to an unfinished call to `in_group`, whose caller has borrowed the family.
        self.ties().child_of.and_then(|kin| unsafe { kin.as_ref() }.known_from())
    }

    /// Calls `look` with the queue of each variable held by the operation, by its parents, or by the operations around
    /// its scope.
    fn each_held(&self, mut look: impl FnMut(NonNull<()>)) {
        if self.holds == Holds::Nothing || self.is_over() {
            return;
        }
        self.op().iter().flat_map(|op| op.accesses()).for_each(|access| look(access.queue_ptr().cast()));
        if let Some(family) = self.ties().child_of {
            // SAFETY: these `Ties` belong to an unfinished call to `in_group`, whose caller has borrowed the family.
            unsafe { family.as_ref() }.each_held(&mut look);
        }
    }

    fn tied_by<R>(&self, ties: &Ties, f: impl FnOnce() -> R) -> R {
        struct RestoreTies<'c>(&'c Cell<*const Ties>, *const Ties);
        impl Drop for RestoreTies<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }
        let _restore = RestoreTies(&self.ties, self.ties.replace(ties));
        f()
    }

    /// Whether the operation is a clean-up, which cannot be cancelled.
    pub(crate) fn is_kept(&self) -> bool {
        self.op().is_some_and(|op| op.task().has(flag::KEPT))
    }

    /// Returns why the running operation was asked to stop, if it was. Clean-ups are never asked to stop.
    pub(crate) fn stopped_by(&self) -> Option<Cause> {
        if self.is_kept() {
            return None;
        }
        let ties = self.ties();
        if ties.beside().is_some_and(|beside| beside.claim().is_stopping())
            || ties.group().is_some_and(|group| group.cancelled().is_some())
            || self.engine().is_cancelling()
        {
            return Some(Cause::Cancelled);
        }
        let deadline = self.op().and_then(|op| op.task().limits()?.deadline());
        deadline.is_some_and(|deadline| Instant::now() >= deadline).then_some(Cause::DeadlinePassed)
    }

    /// Returns the signals by which the running operation is asked to stop.
    pub(crate) fn stop_signals(&self) -> Signals {
        let ties = self.ties();
        self.op().map_or_else(Signals::default, |op| stop_signals(self.engine(), op, ties.beside(), ties.group()))
    }
}

/// Returns the signals by which `op`, which has not ended, is asked to stop. It shares `beside` with its handle and is
/// in `group`, where these are given.
pub(crate) fn stop_signals(
    core: &Arc<Core>,
    op: &Op<Task>,
    beside: Option<&Beside>,
    group: Option<&GroupCore>,
) -> Signals {
    if op.task().has(flag::KEPT) {
        return Signals::default();
    }
    let of_groups = group.into_iter().flat_map(GroupCore::stop_signals);
    let signals = beside.map(Cancellable::stop_signal).into_iter().chain(of_groups).chain([core.stop_signal()]);
    let deadline = op.task().limits().and_then(Limits::deadline);
    Signals { signals: signals.collect(), deadline: deadline.map(|deadline| (core.deadlines(), deadline)) }
}

/// What can cancel an operation, and the families in which it is a child or parent.
#[derive(Clone, Copy, Default)]
struct Ties {
    beside: Option<NonNull<Beside>>,
    group: Option<NonNull<GroupCore>>,
    child_of: Option<NonNull<Arc<dyn Kin>>>,
    parent_of: Option<NonNull<Arc<dyn Kin>>>,
}

impl Ties {
    /// Returns the state that the operation shares with its handle, if it has one.
    fn beside(&self) -> Option<&Beside> {
        // SAFETY: these `Ties` belong to an unfinished call to `claimed_by`, whose caller has borrowed the state.
        self.beside.map(|beside| unsafe { beside.as_ref() })
    }

    /// Returns the operation's group.
    fn group(&self) -> Option<&GroupCore> {
        // SAFETY: these `Ties` belong to an unfinished call to `in_group`, whose caller has borrowed the group.
        self.group.map(|group| unsafe { group.as_ref() })
    }
}

thread_static!(static FRAME: Cell<*const Frame> = Cell::new(ptr::null()));

/// Returns the innermost frame of this thread, or null.
#[inline]
pub(crate) fn innermost() -> *const Frame {
    FRAME.with(Cell::get)
}

/// Returns the engine of the innermost operation for which program code runs on this thread.
pub(crate) fn current_engine() -> Option<Arc<Core>> {
    let mut current = None;
    any_frame(|frame| {
        current = frame.op.map(|_| Arc::clone(frame.engine()));
        current.is_some()
    });
    current
}

/// Whether this thread is running program code for an engine.
#[inline]
pub(crate) fn in_program() -> bool {
    !innermost().is_null()
}

/// What a frame's operation holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    /// The operation has not released its variables.
    Variables,
    /// The operation has not released its variables, but the code running is not its function. Such code may push only
    /// while the engine is open.
    AcquiredVariables,
    /// The operation has released its variables.
    Nothing,
}

/// Calls `f` as part of `op`.
#[inline]
pub(crate) fn enter<R>(core: &Arc<Core>, op: &Op<Task>, holds: Holds, f: impl FnOnce(&Frame) -> R) -> R {
    enter_with(core, Some(op), holds, None, f)
}

/// Calls `f` as the function of the asynchronous operation `op`. The operation's completion takes `right` out of the
/// frame.
pub(crate) fn enter_async<R>(core: &Arc<Core>, op: &Op<Task>, right: OpRef<Task>, f: impl FnOnce(&Frame) -> R) -> R {
    enter_with(core, Some(op), Holds::Variables, Some(right), f)
}

/// Calls `f`, program code that `core` runs for no operation, or after the operation was counted out.
pub(crate) fn enter_after<R>(core: &Arc<Core>, f: impl FnOnce() -> R) -> R {
    enter_with(core, None, Holds::Nothing, None, |_| f())
}

#[inline(always)]
fn enter_with<R>(
    core: &Arc<Core>,
    op: Option<&Op<Task>>,
    holds: Holds,
    right: Option<OpRef<Task>>,
    f: impl FnOnce(&Frame) -> R,
) -> R {
    struct LeaveFrame<'c>(&'c Cell<*const Frame>, *const Frame);
    impl Drop for LeaveFrame<'_> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    FRAME.with(|innermost| {
        let parent = innermost.get();
        let frame = Frame {
            op: op.map(NonNull::from),
            core: ptr::from_ref(core),
            ties: Cell::new(ptr::null()),
            right: Cell::new(right),
            holds,
            parent,
        };
        let _leave = LeaveFrame(innermost, parent);
        innermost.set(&raw const frame);
        f(&frame)
    })
}

/// Forgets this thread's frames in a forked child, where their operations belong to the parent process.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn leave_all() {
    FRAME.with(|cell| cell.set(ptr::null()));
    no_wait::forget();
    // If this thread was running on behalf of a blocked thread, that thread's frames and loops are on a stack that may
    // soon be reused. They become the innermost again when this thread's own frames and loops end, so `seen` hides
    // them.
    STACK.with(|cell| cell.set(if cell.get() == Stack::Own { Stack::Own } else { Stack::Lost }));
}

/// The stacks that contain a thread's frames and loops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stack {
    /// The stack of this thread.
    Own,
    /// This thread's stack and that of a blocked thread. Models do not use other stacks.
    #[cfg_attr(any(raddle_loom, raddle_shuttle), allow(dead_code))]
    Another,
    /// This thread's stack and that of a thread that does not exist in this forked child.
    Lost,
}

thread_static!(static STACK: Cell<Stack> = Cell::new(Stack::Own));

/// Returns `at`, a pointer to one of this thread's frames or ready loops, or null if the memory there may have been
/// reused.
pub(crate) fn seen<T>(at: *const T) -> *const T {
    if !at.is_null() && STACK.with(Cell::get) == Stack::Lost { ptr::null() } else { at }
}

/// Whether `wanted` returns `true` for one of this thread's frames, which are tested innermost first.
pub(crate) fn any_frame(mut wanted: impl FnMut(&Frame) -> bool) -> bool {
    let mut at = seen(innermost());
    // SAFETY: a frame lives on the stack of this thread, or of the blocked thread for which this thread runs, until
    // `enter_with` has removed the frame from the list.
    while let Some(frame) = unsafe { at.as_ref() } {
        if wanted(frame) {
            return true;
        }
        at = frame.parent;
    }
    false
}

/// Calls `look` with each of this thread's frames, innermost first, until `look` returns `false`. Stops at the frame in
/// which the scope of an inner frame's operation was opened, since the scope knows that frame and those around it.
fn each_unknown(mut look: impl FnMut(&Frame) -> bool) {
    let mut known_from = None;
    any_frame(|frame| {
        if known_from == Some(ptr::from_ref(frame).cast()) {
            return true;
        }
        known_from = frame.known_from().or(known_from);
        !look(frame)
    });
}

/// Calls `look` with each operation on this thread that has limits and has not released its variables, and with its
/// engine.
pub(crate) fn each_limited(mut look: impl FnMut(&Arc<Core>, &Op<Task>)) {
    any_frame(|frame| {
        let op = frame.op().filter(|op| frame.holds == Holds::Variables && op.task().has(flag::LIMITED));
        op.into_iter().for_each(|op| look(frame.engine(), op));
        false
    });
}

/// If a panic in the function of an operation on this thread dropped the operation's completion, takes the right to end
/// the operation. Returns the right and the operation's engine.
pub(crate) fn take_lost() -> Option<(Arc<Core>, OpRef<Task>)> {
    let mut lost = None;
    any_frame(|frame| {
        lost = frame.take_right().map(|right| (Arc::clone(frame.engine()), right));
        lost.is_some()
    });
    lost
}

/// Whether this thread is inside an operation of `core`. Code that uses acquired variables does not count as part of an
/// operation.
pub(crate) fn in_operation_of(core: &Core) -> bool {
    let is_operation = |frame: &Frame| frame.op.is_some() && frame.holds != Holds::AcquiredVariables;
    any_frame(|frame| frame.is_of(core) && is_operation(frame) && !frame.is_over())
}

/// Whether an operation running on this thread, one of its parents, or an operation around its scope holds the variable
/// whose queue is `queue`.
pub(crate) fn holds(queue: NonNull<VarQueue<Task>>) -> bool {
    let mut names = false;
    let look = |frame: &Frame| {
        frame.each_held(|held| names |= held == queue.cast());
        !names
    };
    each_unknown(look);
    names
}

/// How an operation has declared a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeclaredAs {
    No,
    Read,
    /// The operation mutates the variable, or one of its parents or an operation around its scope has declared the
    /// variable in any way.
    Any,
}

/// Returns how `op` has declared the variable whose queue is `queue`.
pub(crate) fn declared_by(op: &Op<Task>, queue: NonNull<VarQueue<Task>>) -> DeclaredAs {
    match op.accesses().find(|access| access.queue_ptr() == queue) {
        Some(access) if access.mode().is_write() => DeclaredAs::Any,
        Some(_) => DeclaredAs::Read,
        None => DeclaredAs::No,
    }
}

/// Returns the innermost operation on this thread and how it has declared the variable whose queue is `queue`.
pub(crate) fn declared(queue: NonNull<VarQueue<Task>>) -> (Option<Pushed>, DeclaredAs) {
    let (mut user, mut declared) = (None, DeclaredAs::No);
    any_frame(|frame| {
        let Some(op) = frame.op() else { return false };
        user = Some((op.task().name().clone(), op.task().location()));
        if frame.holds != Holds::Nothing && !frame.is_over() {
            declared = declared_by(op, queue);
        }
        if declared == DeclaredAs::No {
            frame.each_held(|held| {
                if held == queue.cast() {
                    declared = DeclaredAs::Any;
                }
            });
        }
        true
    });
    (user, declared)
}

/// Returns the name of the innermost operation on this thread, where it was pushed, and its engine's seed if the engine
/// shuffles.
pub(crate) fn panicking_op() -> Option<(Name, &'static Location<'static>, Option<u64>)> {
    let mut found = None;
    any_frame(|frame| {
        found = frame.op().map(|op| (op.task().name().clone(), op.task().location(), frame.engine().shuffle_seed()));
        found.is_some()
    });
    found
}

/// What a frame's operation holds, as seen from a scope inside the frame.
pub(crate) struct HeldAround {
    pub(crate) op: NonNull<Op<Task>>,
    /// Whether the operation is asynchronous and so may end before its function returns.
    may_end: bool,
    /// The queues of its variables. The pointers are only compared.
    queues: Box<[NonNull<()>]>,
    /// The family or scope to which the operation belongs.
    pub(crate) kin: Option<Arc<dyn Kin>>,
}

impl HeldAround {
    /// Calls `look` with the queue of each variable held by the operation, and `further` with the family or scope to
    /// which the operation belongs.
    ///
    /// # Safety
    /// 1. The frame has not ended.
    pub(crate) unsafe fn each(&self, look: &mut dyn FnMut(NonNull<()>), further: &mut dyn FnMut(Arc<dyn Kin>)) {
        // SAFETY: (1): the operation of the frame is alive.
        if self.may_end && unsafe { self.op.as_ref() }.task().is_over() {
            return;
        }
        self.queues.iter().for_each(|queue| look(*queue));
        self.kin.iter().for_each(|kin| further(Arc::clone(kin)));
    }
}

/// Returns what each operation on this thread holds.
pub(crate) fn held_around() -> Box<[HeldAround]> {
    let mut held = Vec::new();
    let look = |frame: &Frame| {
        if let Some(op) = frame.op().filter(|_| frame.holds != Holds::Nothing && !frame.is_over()) {
            // SAFETY: these `Ties` belong to an unfinished call to `in_group`, whose caller has borrowed the family.
            let kin = frame.ties().child_of.map(|kin| Arc::clone(unsafe { kin.as_ref() }));
            let queues = op.accesses().map(|access| access.queue_ptr().cast()).collect();
            let may_end = frame.holds == Holds::Variables && op.task().has(flag::ASYNC);
            held.push(HeldAround { op: NonNull::from(op), may_end, queues, kin });
        }
        true
    };
    each_unknown(look);
    held.into()
}

/// Returns the operations of any engine that run on this thread and have not released their variables, along with their
/// parents and the operations around their scopes.
pub(crate) fn running_ops() -> Ops {
    let mut ops = Ops::new();
    let look = |frame: &Frame| {
        if frame.holds != Holds::Nothing && !frame.is_over() {
            ops.extend(frame.op.map(|op| Nested { op: op.cast(), depth: 0 }));
            if let Some(family) = frame.ties().child_of {
                // SAFETY: these `Ties` belong to an unfinished call to `in_group`, whose caller has borrowed the
                // family.
                unsafe { family.as_ref() }.each_parent(&mut |around| ops.push(around));
            }
        }
        true
    };
    each_unknown(look);
    ops
}

/// Returns what `find` finds in the innermost operation of this engine for which code runs on this thread, and for
/// which it finds something. Code that uses acquired variables does not count as part of an operation.
pub(crate) fn find_in_op_of<R>(core: &Core, mut find: impl FnMut(&Task) -> Option<R>) -> Option<R> {
    let mut found = None;
    any_frame(|frame| {
        let op = frame.op().filter(|_| frame.is_of(core) && frame.holds != Holds::AcquiredVariables);
        found = op.and_then(|op| find(op.task()));
        found.is_some()
    });
    found
}

/// Returns the innermost operation of this engine that runs on this thread and has not released its variables.
pub(crate) fn running_op_of(core: &Core) -> Option<NonNull<()>> {
    let mut running = None;
    any_frame(|frame| {
        let is_running = frame.is_of(core) && frame.holds != Holds::Nothing && !frame.is_over();
        running = frame.op.filter(|_| is_running).map(NonNull::cast);
        running.is_some()
    });
    running
}

/// Returns the operations and epilogues that this thread is inside of.
pub(crate) fn inside() -> Inside {
    let mut inside = Inside { ops: running_ops(), ..Inside::default() };
    any_frame(|frame| {
        if let (Some(op), Holds::Nothing) = (frame.op, frame.holds) {
            let in_group = frame.ties().group.is_some();
            // Starting an asynchronous operation may also leave an epilogue to run, but another thread may end the
            // operation before that epilogue has run. Such an epilogue has no group. SAFETY: the caller of `enter_with`
            // keeps the operation alive until the frame ends.
            if in_group || !unsafe { op.as_ref() }.task().has(flag::ASYNC) {
                inside.ended.push((op.cast(), in_group));
            }
        }
        false
    });
    inside
}

/// Returns the name of the innermost operation running on this thread, and where it was pushed.
pub(crate) fn running_op() -> Option<Pushed> {
    let mut running = None;
    any_frame(|frame| {
        running = frame.op().map(|op| op.task().pushed());
        running.is_some()
    });
    running
}

/// Whether an operation with this claim runs on this thread.
pub(crate) fn runs(claim: &Claim) -> bool {
    any_frame(|frame| frame.ties().beside().is_some_and(|beside| ptr::eq(beside.claim(), claim)))
}

/// Whether the operation with this place is a child that waits for work on this thread to end.
pub(crate) fn keeps_out(place: &WaitersPlace) -> bool {
    // Most operations are not held back, and the search grows with the frames.
    place.is_kept_out() && any_frame(|frame| frame.family().is_some_and(|family| family.keeps_out(place)))
}

/// Returns the name of an operation on this thread that belongs to `group` or to a group inside it, and where the
/// operation was pushed.
pub(crate) fn in_group(group: &GroupCore) -> Option<Pushed> {
    let mut member = None;
    any_frame(|frame| {
        if frame.ties().group().is_some_and(|own| own.is_within(group)) && !frame.is_over() {
            member = frame.op().map(|op| op.task().pushed());
        }
        member.is_some()
    });
    member
}

/// Puts `right`, the right to end an operation, back into the innermost frame, if that frame belongs to the operation
/// and a panic in its function is dropping the completion. Otherwise, returns the right.
pub(crate) fn leave_lost(right: OpRef<Task>) -> Option<OpRef<Task>> {
    // SAFETY: a frame lives on the stack of this thread, or of the blocked thread for which this thread runs, until
    // `enter_with` has removed the frame from the list.
    let frame = unsafe { seen(innermost()).as_ref() };
    match frame {
        Some(frame)
            if frame.op.is_some_and(|own| own.as_ptr() == right.as_ptr())
                && (std::thread::panicking() || removed(step::DROP_ENDS_AT_ONCE)) =>
        {
            frame.put_right(right);
            None
        }
        _ => Some(right),
    }
}

/// The call to an operation's function, and the objects that the function may take from it.
pub(crate) struct Call<'a> {
    frame: &'a Frame,
    stream: Cell<Option<&'a mut GpuStream>>,
}

impl<'a> Call<'a> {
    #[inline]
    pub(crate) fn new(frame: &'a Frame, stream: Option<&'a mut GpuStream>) -> Self {
        Self { frame, stream: Cell::new(stream) }
    }

    /// Takes the stream on which the operation issues its work. Returns `None` on the CPU and on a second call.
    #[inline]
    pub(crate) fn take_stream(&self) -> Option<&'a mut GpuStream> {
        self.stream.take()
    }

    #[inline]
    pub(crate) fn op(&self) -> &'a Op<Task> {
        let Some(op) = self.frame.op() else { unreachable!("a function runs in a frame with its operation") };
        op
    }

    /// Returns the frame of the call.
    #[inline]
    pub(crate) fn frame(&self) -> &'a Frame {
        self.frame
    }

    /// Takes the right to end an asynchronous operation, for the operation's completion. Returns `None` on a second
    /// call.
    pub(crate) fn take_right(&self) -> Option<OpRef<Task>> {
        self.frame.take_right()
    }

    /// Puts back the right to end an asynchronous operation whose completion was used, but which ends when its function
    /// returns. If the function fails, the operation fails with that; otherwise, it must have been resolved.
    pub(crate) fn return_right(&self, right: OpRef<Task>) {
        self.frame.put_right(right);
    }

    #[inline]
    pub(crate) fn core(&self) -> &'a Arc<Core> {
        self.frame.engine()
    }
}

/// The frames of a thread, and why its program code must not wait.
pub(crate) struct Frames {
    innermost: *const Frame,
    reasons: Reasons,
    in_kernel: bool,
}

/// Returns the frames of the calling thread.
pub(crate) fn current() -> Frames {
    Frames { innermost: seen(innermost()), reasons: no_wait::reasons(), in_kernel: in_kernel() }
}

impl Frames {
    /// Calls `f` on the calling thread with these frames. The thread that owns them must be blocked during the call.
    pub(crate) fn adopt(self, f: impl FnOnce()) {
        STACK.with(|cell| cell.set(Stack::Another));
        FRAME.with(|cell| cell.set(self.innermost));
        let run = || no_wait::with_reasons(self.reasons, f);
        if self.in_kernel { as_kernel(run) } else { run() }
    }
}
