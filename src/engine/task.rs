//! The engine's part of an operation's record: its function, name, flags and lane.
//!
//! # States
//!
//! 1. *Begun* ([`Task::begin`]): the ticket, the lane and the flags are set.
//! 2. *Filled* ([`Task::describe`] with [`Task::fill`], [`Task::fill_job`] or [`Task::fill_erased`]): the name, the
//!    location, the job and the limits are set. The operation may be enqueued. If the engine records, the operation
//!    receives a number first ([`Task::set_recorded`]).
//! 3. *Started* ([`Op::start`]), at most once: the function has run or is running. If the function does not run, it is
//!    [discarded](Op::discard) in the epilogue instead.
//! 4. *Reported* ([`Op::report`]): the result is set, if the operation reports one.
//! 5. *Dropped*: by the last holder, or, if accesses still have shares of the record then, with the last share. If the
//!    record's only access keeps the record, the task is dropped before that access is marked done. The record is
//!    retired later.
//!
//! # Who may touch what
//!
//! * `body`: the thread that owns the ready operation, and then the thread that ends it. An asynchronous operation may
//!   end on another thread while its function runs; see [`job`](super::job).
//! * What `limits` points to: see [`Limits`]. The pointer is constant once the task is filled, and the limits outlive the
//!   task until the epoch has passed.
//! * `waited`: the owner of the ready operation.
//! * `progress`: see [`AsyncState`].
//! * The other fields are constant once the operation is enqueued.
//!
//! This module has no edges of its own: the queues of the tracker and of the scheduler hand over the task with the
//! operation.

use std::{mem::MaybeUninit, panic::Location, ptr::NonNull};

use crate::{
    device::{gpus::MAX_GPUS, timeline::LANES_PER_GPU},
    engine::{
        cancellable::Place,
        ending::FnState,
        frame::Call,
        job::{Beside, Body, Claimed, Cleanup, ErasedJob, InlineJob, Job, flags_of},
        limits::Limits,
    },
    error::{
        deadlock::Pushed,
        op::{Cause, OpError},
    },
    memory::epoch,
    notify::{async_state::AsyncState, pending::Ticket},
    sync::{Ordering::Relaxed, atomic::AtomicU8, cell::UnsafeCell},
    system::panics,
    trace::event::OpId,
    tracker::Op,
    values::name::Name,
};

/// Bits of [`Task::flags`]. Those tested by every run are in the low byte, where a test is one instruction.
pub(crate) mod flag {
    /// Runs immediately, on the thread that finds it ready.
    pub(crate) const INLINE: u16 = 1;
    /// Must be claimed before it starts, and reports its result: [`Job::REPORTS`](super::Job::REPORTS).
    pub(crate) const REPORTS: u16 = 2;
    /// Runs on the pushing thread if it is ready when pushed, unless it is a child or is pushed inside a device
    /// operation's function.
    pub(crate) const EAGER: u16 = 4;
    /// Does not change its variables' versions or failures when it completes.
    pub(crate) const SILENT: u16 = 8;
    /// Completes when its completion is used, not when its function returns.
    pub(crate) const ASYNC: u16 = 16;
    /// Belongs to a device lane.
    pub(crate) const ON_DEVICE: u16 = 32;
    /// Has [limits](super::Limits). Such an operation also has `REPORTS`.
    pub(crate) const LIMITED: u16 = 64;
    /// Has its events recorded.
    pub(crate) const RECORDED: u16 = 128;
    /// Runs even if one of its variables has failed.
    pub(crate) const NO_SKIP: u16 = 256;
    /// Has a name.
    pub(crate) const NAMED: u16 = 512;
    /// Is a clean-up: no shutdown, group, deadline or handle cancels it.
    pub(crate) const KEPT: u16 = 1024;
    /// Issues work on the stream of a device.
    pub(crate) const DEVICE: u16 = 2048;
    /// Causes the device to copy values in host memory that the function neither reads nor writes.
    pub(crate) const COPY: u16 = 4096;
    /// Belongs to the engine: a shutdown neither refuses nor cancels it.
    pub(crate) const INTERNAL: u16 = 8192;
    /// Has a name that owns memory.
    pub(crate) const OWNS_NAME: u16 = 16384;
    /// Has children and completes when they are complete.
    pub(crate) const PARENT: u16 = 32768;
}

/// The value of [`Task::waited`] once the operation no longer waits for any lane. An engine has fewer GPU lanes than
/// this.
const NO_LANE_LEFT: u8 = u8::MAX;
const _: () = assert!(MAX_GPUS * LANES_PER_GPU < NO_LANE_LEFT as usize);

/// [`Task::fill_job`] for the jobs of some type.
pub(crate) type FillJob = unsafe fn(*mut Task, *mut ());

/// The engine's part of an operation's record. If the operation has only one access, the task starts a cache line that
/// also has room for a small function. Fields needed by only some operations are not initialised in the others.
#[repr(C)]
pub(crate) struct Task {
    pub(crate) ticket: Ticket,
    pub(crate) lane: u8,
    /// The number of a GPU lane. The operation has waited for all lanes with lower numbers. Used only by the owner of
    /// the ready operation.
    pub(crate) waited: AtomicU8,
    pub(crate) flags: u16,
    location: &'static Location<'static>,
    /// Initialised if [`flag::NAMED`] is set.
    name: MaybeUninit<Name>,
    body: UnsafeCell<MaybeUninit<InlineJob>>,
    /// From a box. Initialised if [`flag::LIMITED`] is set.
    limits: MaybeUninit<NonNull<Limits>>,
    /// Initialised if [`flag::ASYNC`] is set.
    progress: MaybeUninit<AsyncState<OpError>>,
    /// The operation's number. Initialised if [`flag::RECORDED`] is set.
    op_id: MaybeUninit<OpId>,
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const _: () = assert!(
    size_of::<Task>() == 160 && (cfg!(raddle_unpooled) || crate::memory::pool::fits::<Op<Task>>()),
    "an operation with its task must fit into a record of the pool"
);

/// Writes fields of a task, each through a pointer to the field.
macro_rules! set {
    ($task:ident, $($field:ident: $value:expr),* $(,)?) => {
        // SAFETY: (1) of the enclosing function: the task may be written.
        $(unsafe { (&raw mut (*$task).$field).write($value) };)*
    };
}

impl Task {
    /// Initialises, in place, the fields of a task that neither [`fill`](Self::fill) nor
    /// [`set_recorded`](Self::set_recorded) initialises.
    ///
    /// # Safety
    /// 1. `task` may be written, and is [filled](Self::fill) before any other use.
    #[inline]
    pub(crate) unsafe fn begin(task: *mut Self, ticket: Ticket, lane: u8, flags: u16) {
        set! {
            task,
            ticket: ticket,
            lane: lane,
            flags: flags,
            waited: AtomicU8::new(0),
        }
        if flags & flag::ASYNC != 0 {
            set! { task, progress: MaybeUninit::new(AsyncState::default()) }
        }
    }

    /// Initialises the name and the location of a task. `name` must agree with the flags: without [`flag::NAMED`] it is
    /// dropped, and without [`flag::OWNS_NAME`] the memory that it owns is never freed.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin), is valid for writes, and is not yet known to another thread.
    #[inline]
    pub(crate) unsafe fn describe(task: *mut Self, name: Name, location: &'static Location<'static>) {
        set! { task, location: location }
        // SAFETY: (1): the flags were set by `begin`.
        if unsafe { (*task).flags } & flag::NAMED != 0 {
            set! { task, name: MaybeUninit::new(name) }
        }
    }

    /// Moves a job of any type and its limits into a task.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin), is valid for writes, and is not yet known to another thread.
    pub(super) unsafe fn fill_erased(task: *mut Self, mut job: ErasedJob) {
        Self::tell_place(task, job.beside());
        let (body, limits, flags) = job.into_parts();
        set! { task, body: UnsafeCell::new(MaybeUninit::new(body)) }
        if let Some(limits) = limits {
            set! { task, limits: MaybeUninit::new(NonNull::from(Box::leak(limits))) }
        }
        // SAFETY: (1).
        unsafe { Self::add_flags(task, flags) };
    }

    /// Moves the job at `job` into a task.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin), is valid for writes, and is not yet known to another thread.
    /// 2. `job` points to a `W`, which is not used afterwards.
    pub(crate) unsafe fn fill_job<W: Job>(task: *mut Self, job: *mut ()) {
        // SAFETY: (2).
        let work = unsafe { job.cast::<W>().read() };
        // SAFETY: (1).
        unsafe { Self::fill(task, work) };
    }

    /// Moves a job without limits into a task, and sets the flags of the job.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin), is valid for writes, and is not yet known to another thread.
    #[inline(always)]
    pub(crate) unsafe fn fill<W: Job>(task: *mut Self, work: W) {
        if W::REPORTS {
            Self::tell_place(task, work.beside().map(NonNull::from));
        }
        set! { task, body: UnsafeCell::new(MaybeUninit::uninit()) }
        // SAFETY: (1): the body was written above, and no other thread uses it.
        unsafe { &(*task).body }.with_mut(|body| unsafe { InlineJob::init(body.cast(), work) });
        // SAFETY: (1).
        unsafe { Self::add_flags(task, const { flags_of::<W>() }) };
    }

    /// Tells the place of the operation's handle, if it has one, to which task it belongs.
    #[inline(always)]
    fn tell_place(task: *mut Self, beside: Option<NonNull<Beside>>) {
        if let (Some(beside), Some(task)) = (beside, NonNull::new(task.cast())) {
            // SAFETY: the job keeps the state until the operation has ended.
            unsafe { beside.as_ref() }.place().set_task(task);
        }
    }

    /// Adds the flags of the job.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin), is valid for writes, and is not yet known to another thread.
    #[inline(always)]
    unsafe fn add_flags(task: *mut Self, of_job: u16) {
        // SAFETY: (1): the flags were set by `begin`.
        let flags = unsafe { (*task).flags };
        debug_assert!(flag::LIMITED & flags & !of_job == 0, "the limits must agree with the flags");
        if of_job != 0 {
            set! { task, flags: flags | of_job }
        }
    }

    /// Records that a CPU operation no longer depends on any device. Called when the operation enters its lane.
    pub(crate) fn end_waiting_for_devices(&self) {
        // Relaxed: only the owner of a ready operation uses this field.
        let before = self.waited.swap(NO_LANE_LEFT, Relaxed);
        debug_assert!(before != NO_LANE_LEFT, "a CPU operation entered its lane twice");
    }

    /// Whether the operation has any of these flags.
    pub(crate) fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    /// Returns the operation's name, which is empty if the operation has none.
    pub(crate) fn name(&self) -> &Name {
        static NONE: Name = Name::EMPTY;
        // SAFETY: with this flag, `describe` has initialised the name.
        if self.has(flag::NAMED) { unsafe { self.name.assume_init_ref() } } else { &NONE }
    }

    /// Returns where the operation was pushed.
    pub(crate) fn location(&self) -> &'static Location<'static> {
        self.location
    }

    /// Returns the operation's name and where it was pushed.
    pub(crate) fn pushed(&self) -> Pushed {
        (self.name().clone(), self.location)
    }

    /// Marks the operation as recorded and sets its number.
    ///
    /// # Safety
    /// 1. `task` is filled, and no other thread knows it yet.
    pub(super) unsafe fn set_recorded(task: *mut Self, id: OpId) {
        set! { task, op_id: MaybeUninit::new(id) }
        // SAFETY: (1): the flags were set by `begin`, and no other thread reads them.
        unsafe { (*task).flags |= flag::RECORDED };
    }

    /// Returns the operation's number, if its events are recorded.
    #[inline]
    pub(crate) fn op_id(&self) -> Option<OpId> {
        // SAFETY: with this flag, `set_recorded` has initialised the number.
        self.has(flag::RECORDED).then(|| unsafe { self.op_id.assume_init() })
    }

    /// Returns the operation's limits, if it has any. A pinned thread that has found the operation may use the constant
    /// part.
    #[inline]
    pub(crate) fn limits(&self) -> Option<&Limits> {
        // SAFETY: with this flag, `fill_erased` has initialised the pointer. The limits are freed after the task, once
        // the epoch has passed.
        self.has(flag::LIMITED).then(|| unsafe { self.limits.assume_init().as_ref() })
    }

    /// Returns the state of an asynchronous operation.
    pub(crate) fn async_state(&self) -> Option<&AsyncState<OpError>> {
        // SAFETY: with this flag, `begin` has initialised the state.
        self.has(flag::ASYNC).then(|| unsafe { self.progress.assume_init_ref() })
    }

    /// Whether the operation is complete although its function may still run: it is asynchronous, it cannot have
    /// children, and its completion was used.
    pub(super) fn is_over(&self) -> bool {
        !self.has(flag::PARENT) && self.async_state().is_some_and(AsyncState::is_resolved)
    }

    /// Returns the error of this operation, which failed because of `cause`.
    #[cold]
    pub(crate) fn failed_by(&self, cause: Cause) -> OpError {
        OpError::new(self.name(), self.location, cause, None)
    }

    /// Returns the error of this operation, whose function panicked.
    #[cold]
    pub(crate) fn failed_by_panic(&self, payload: panics::Payload) -> OpError {
        let (message, payload) = panics::message(payload);
        OpError::new(self.name(), self.location, Cause::Panic(message), payload)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // SAFETY: the body was initialised when the task was filled, and this is its only drop.
        self.body.with_mut(|body| unsafe { Body::new(body.cast()) }.drop_job());
        if self.has(flag::OWNS_NAME | flag::ASYNC | flag::LIMITED) {
            self.drop_rest();
        }
    }
}

impl Task {
    /// Drops the name, the limits and the state of an asynchronous operation, if there are any.
    #[inline(never)]
    fn drop_rest(&mut self) {
        if self.has(flag::OWNS_NAME) {
            // SAFETY: with this flag, `describe` has initialised the name, and this is its only drop.
            let name = unsafe { self.name.assume_init_read() };
            // The name is retired, since a pinned thread that has found the operation may still read it.
            // SAFETY: a name is plain memory.
            unsafe { epoch::pin().retire(move || drop(name)) };
        }
        if self.has(flag::LIMITED) {
            // SAFETY: with this flag, `fill_erased` has initialised the pointer, and this is its only drop.
            let limits = unsafe { self.limits.assume_init() };
            // SAFETY: the pointer is from a box. The operation has left its groups, so the limits are plain memory.
            unsafe { epoch::pin().retire(move || drop(Box::from_raw(limits.as_ptr()))) };
        }
        if self.has(flag::ASYNC) {
            // SAFETY: with this flag, `begin` has initialised the state, and this is its only drop.
            unsafe { self.progress.assume_init_drop() };
        }
    }
}

/// The engine's view of an operation. The engine reaches an `Op` through its [`OpRef`](crate::tracker::OpRef), a hold
/// of its record, or an access of such an operation. Each of these keeps the task alive. A pinned thread may also find
/// an `Op` for a dump or in a search for a deadlock. The task may then be dropped at any time, but what the thread
/// reads remains valid until the thread is unpinned.
impl Op<Task> {
    /// Returns the task.
    #[inline]
    pub(crate) fn task(&self) -> &Task {
        // SAFETY: every `Op` that the engine can reach holds its task, or held it at some moment since this thread was
        // pinned. The fields that change are in cells.
        unsafe { &*self.shared_task_ptr() }
    }

    /// Claims the operation for this thread, unless it was cancelled. May be called repeatedly.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    #[cold]
    pub(crate) unsafe fn claim(&self) -> Claimed {
        // SAFETY: (1) makes this thread the only user of the body.
        let claimed = unsafe { self.with_body(Body::claim) };
        match self.task().limits() {
            // SAFETY: (1).
            Some(limits) => unsafe { limits.claim(claimed, self.task()) },
            None => claimed,
        }
    }

    /// Returns the state beside the result of an operation with a handle.
    ///
    /// # Safety
    /// 1. This thread owns the ready operation, ends it, or has a share of the right to end it.
    pub(super) unsafe fn beside(&self) -> Option<&Beside> {
        // SAFETY: (1): the job keeps the state until the operation has ended.
        unsafe { self.with_body(Body::beside).map(|beside| beside.as_ref()) }
    }

    /// Returns where waiters can find the operation while it is in a queue, if they may take it. The place is valid
    /// until the operation has started.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    pub(super) unsafe fn waiters_place(&self) -> Option<NonNull<Place>> {
        // SAFETY: (1).
        unsafe { self.beside() }.map(|beside| NonNull::from(beside.place()))
    }

    /// Calls the function of an operation without limits.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    /// 2. This is called once.
    #[inline(always)]
    pub(crate) unsafe fn start(&self, cx: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: (1) makes this thread the only user of the body.
        unsafe { self.with_body(|body| body.start(cx)) }
    }

    /// Calls the function.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    /// 2. This is called once.
    pub(crate) unsafe fn start_in_limits(&self, cx: &Call<'_>) -> Result<(), Cause> {
        match self.task().limits() {
            // SAFETY: (1) and (2).
            Some(limits) => unsafe { limits.during(cx.frame(), || self.start(cx)) },
            // SAFETY: (1) and (2).
            None => unsafe { self.start(cx) },
        }
    }

    /// Takes the program code that remains to be run after the start of an asynchronous operation.
    ///
    /// # Safety
    /// 1. The operation is asynchronous, and this thread has started it.
    pub(crate) unsafe fn started(&self) -> Cleanup {
        // SAFETY: (1): ending an asynchronous operation touches only jobs for which this does nothing.
        unsafe { self.with_body(Body::started) }
    }

    /// Drops the function if it was not called.
    ///
    /// # Safety
    /// 1. This thread ends the operation.
    pub(crate) unsafe fn discard(&self) {
        // SAFETY: (1) makes this thread the only user of the body.
        unsafe { self.with_body(Body::discard) }
    }

    /// Reports the result to the operation's handle and groups, if it has them, or, if the operation is a wait, to those
    /// that wait. Returns the program code that remains to be run.
    ///
    /// # Safety
    /// 1. This thread ends the operation, whose function is in this state.
    #[inline]
    pub(crate) unsafe fn report(&self, result: Result<(), &OpError>, function: FnState) -> Cleanup {
        let Some(limits) = self.task().limits() else {
            // SAFETY: (1): if the function may run, only jobs that end early are touched.
            return unsafe { self.with_body(|body| body.report(result, function)) };
        };
        // SAFETY: (1).
        let is_abandoned = unsafe { self.beside() }.is_some_and(|beside| beside.claim().settle());
        // SAFETY: (1): as above.
        let cleanup = unsafe { self.with_body(|body| body.report(result, function)) };
        // SAFETY: (1).
        unsafe { limits.end(is_abandoned, result) };
        cleanup
    }

    /// Calls `f` with the body.
    ///
    /// # Safety
    /// 1. What `f` does with the job is permitted by the head of [`job`](super::job).
    #[inline(always)]
    unsafe fn with_body<R>(&self, f: impl FnOnce(&Body) -> R) -> R {
        // SAFETY: (1), and the body was initialised when the task was filled.
        self.task().body.with_mut(|body| f(&unsafe { Body::new(body.cast()) }))
    }
}

// SAFETY: only one thread at a time uses the body: the thread that owns the ready operation, or the thread that ends
// it.
unsafe impl Sync for Task {}
// SAFETY: the limits and all other fields are `Send`.
unsafe impl Send for Task {}
