//! The engine's part of an operation's record: its function, name, flags and lane.
//!
//! # States
//!
//! 1. *Begun* ([`Task::begin`]): the ticket, the lane and the flags are set.
//! 2. *Filled* ([`Task::fill`], or [`Task::describe`] with [`Task::fill_job`] or [`Task::fill_erased`]): the name, the
//!    location and the function are set. The operation may be enqueued. If the engine records, the operation receives a
//!    number first ([`Task::set_recorded`]).
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
//!   end on another thread while its function runs; ending it does not touch the body. The job's table and what the job
//!   has [joined](Joined) are constant once the task is filled. Any pinned thread may read these parts until the record
//!   is reused, since a record's memory outlives its task.
//! * `waited`: the owner of the ready operation.
//! * `progress`: see [`AsyncState`].
//! * The other fields are constant once the operation is enqueued.
//!
//! This module has no edges of its own: the queues of the tracker and of the scheduler hand over the task with the
//! operation.

use std::{
    any::Any,
    hint,
    mem::{ManuallyDrop, MaybeUninit, needs_drop},
    panic::Location,
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{
    device::{gpus::MAX_GPUS, timeline::LANES_PER_GPU},
    engine::{
        cancellable::Place,
        frame::Call,
        group::{Joined, Membership},
    },
    error::{
        deadlock::Pushed,
        op::{Cause, OpError},
    },
    memory::epoch,
    notify::{async_state::AsyncState, oneshot::Oneshot, pending::Ticket, wakers::Wakers},
    sync::{Ordering::Relaxed, atomic::AtomicU8, cell::UnsafeCell},
    system::panics,
    trace::OpId,
    tracker::Op,
    values::Name,
};

/// Bits of [`Task::flags`]. Those tested by every run are in the low byte, where a test is one instruction.
pub(crate) mod flag {
    /// Runs immediately, on the thread that finds it ready.
    pub(crate) const INLINE: u16 = 1;
    /// Must be claimed before it starts: [`Job::CLAIMS`](super::Job::CLAIMS).
    pub(crate) const CLAIMS: u16 = 2;
    /// Runs on the pushing thread if it is ready when pushed, unless it is a child or is pushed inside a device
    /// operation's function.
    pub(crate) const EAGER: u16 = 4;
    /// Does not change its variables' versions or failures when it completes.
    pub(crate) const SILENT: u16 = 8;
    /// Completes when its completion is used, not when its function returns.
    pub(crate) const ASYNC: u16 = 16;
    /// Belongs to a device lane.
    pub(crate) const ON_DEVICE: u16 = 32;
    /// Reports its result: [`Job::REPORTS`](super::Job::REPORTS).
    pub(crate) const REPORTS: u16 = 64;
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

    /// Initialises the name, the location and the function of a task. `name` must agree with the flags: without
    /// [`flag::NAMED`] it is dropped, and without [`flag::OWNS_NAME`] the memory that it owns is never freed.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin), is valid for writes, and is not yet known to another thread.
    #[inline]
    pub(crate) unsafe fn fill<W: Job>(task: *mut Self, name: Name, location: &'static Location<'static>, work: W) {
        // SAFETY: (1).
        unsafe { Self::describe(task, name, location) };
        // SAFETY: (1).
        unsafe { Self::fill_with(task, work) };
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

    /// Moves a job of any type into a task. With [`describe`](Self::describe), this does what [`fill`](Self::fill)
    /// does.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin), is valid for writes, and is not yet known to another thread.
    pub(super) unsafe fn fill_erased(task: *mut Self, job: ErasedJob) {
        let mut job = ManuallyDrop::new(job);
        // SAFETY: (1): the job is borrowed exclusively.
        let place = unsafe { Body::new(&raw mut job.0) }.place_of_handle();
        Self::tell_place(task, place);
        let flags = job.0.vtable.flags;
        // SAFETY: the job is not used again.
        let body = unsafe { ptr::read(&raw const job.0) };
        set! { task, body: UnsafeCell::new(MaybeUninit::new(body)) }
        // SAFETY: (1).
        unsafe { Self::add_flags(task, flags) };
    }

    /// Moves the job at `job` into a task. With [`describe`](Self::describe), this does what [`fill`](Self::fill) does.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin), is valid for writes, and is not yet known to another thread.
    /// 2. `job` points to a `W`, which is not used afterwards.
    pub(crate) unsafe fn fill_job<W: Job>(task: *mut Self, job: *mut ()) {
        // SAFETY: (2).
        let work = unsafe { job.cast::<W>().read() };
        // SAFETY: (1).
        unsafe { Self::fill_with(task, work) };
    }

    /// Moves a job into a task, and sets the flags of the job.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin), is valid for writes, and is not yet known to another thread.
    #[inline(always)]
    unsafe fn fill_with<W: Job>(task: *mut Self, mut work: W) {
        if W::CLAIMS {
            Self::tell_place(task, work.place_of_handle());
        }
        set! { task, body: UnsafeCell::new(MaybeUninit::uninit()) }
        // SAFETY: (1): the body was written above, and no other thread uses it.
        unsafe { &(*task).body }.with_mut(|body| unsafe { InlineJob::init(body.cast(), work) });
        // SAFETY: (1).
        unsafe { Self::add_flags(task, const { flags_of::<W>() }) };
    }

    /// Tells the place of the operation's handle, if it has one, to which task it belongs.
    #[inline(always)]
    fn tell_place(task: *mut Self, place: Option<NonNull<Place>>) {
        if let (Some(place), Some(task)) = (place, NonNull::new(task.cast())) {
            // SAFETY: the place is valid until the operation has started.
            unsafe { place.as_ref() }.set_task(task);
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
        debug_assert!(flag::CLAIMS & flags & !of_job == 0, "the job must agree with the flags");
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
        self.body.with_mut(|body| unsafe { Body::new(body.cast()) }.drop_work());
        if self.has(flag::OWNS_NAME | flag::ASYNC) {
            self.drop_rest();
        }
    }
}

impl Task {
    /// Drops the name and the state of an asynchronous operation, if there are any.
    #[inline(never)]
    fn drop_rest(&mut self) {
        if self.has(flag::NAMED) {
            // SAFETY: with this flag, `describe` has initialised the name, and this is its only drop.
            let name = unsafe { self.name.assume_init_read() };
            // The name is retired, since a pinned thread that has found the operation may still read it.
            // SAFETY: a name is plain memory.
            unsafe { epoch::pin().retire(move || drop(name)) };
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
        unsafe { self.with_body(|body| body.claim(self.task())) }
    }

    /// Returns where waiters can find the operation while it is in a queue, if they may take it. The place is valid
    /// until the operation has started.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    pub(super) unsafe fn waiters_place(&self) -> Option<NonNull<Place>> {
        // SAFETY: (1) makes this thread the only user of the body.
        unsafe { self.with_body(Body::place) }
    }

    /// Calls `f` with the operation's membership in a group, if it has one.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    pub(super) unsafe fn with_membership<R>(&self, f: impl FnOnce(Option<&Membership>) -> R) -> R {
        // SAFETY: (1) makes this thread the only user of the body.
        unsafe { self.with_body(|body| f(body.membership())) }
    }

    /// Calls the function.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    /// 2. This is called once.
    pub(crate) unsafe fn start(&self, cx: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: (1) makes this thread the only user of the body.
        unsafe { self.with_body(|body| body.start(cx)) }
    }

    /// Takes the program code that remains to be run after the start of an asynchronous operation.
    ///
    /// # Safety
    /// 1. The operation is asynchronous, and this thread has started it.
    pub(crate) unsafe fn started(&self) -> Cleanup {
        // SAFETY: (1): ending an asynchronous operation that has started does not touch the body.
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

    /// Reports the result to the operation's handle and group, if it has them, or, if the operation is a wait, to those
    /// that wait. Returns the program code that remains to be run.
    ///
    /// # Safety
    /// 1. This thread ends the operation.
    pub(crate) unsafe fn report(&self, result: Result<(), &OpError>) -> Cleanup {
        // SAFETY: (1) makes this thread the only user of the body.
        unsafe { self.with_body(|body| body.report(result)) }
    }

    /// Calls `f` with the body.
    ///
    /// # Safety
    /// 1. This thread is the only user of the body.
    unsafe fn with_body<R>(&self, f: impl FnOnce(&Body) -> R) -> R {
        // SAFETY: (1), and the body was initialised when the task was filled.
        self.task().body.with_mut(|body| f(&unsafe { Body::new(body.cast()) }))
    }

    /// Returns what the operation has joined, if it can be a member of groups.
    ///
    /// # Safety
    /// 1. The task is filled, and the record is not reused while the result is used. The task may be dropped in the
    ///    meantime.
    pub(super) unsafe fn joined(&self) -> Option<&Joined> {
        let body = self.task().body.with(|body| body.cast::<InlineJob>());
        // SAFETY: (1): the field was written when the task was filled and has been constant since.
        let vtable = unsafe { (*body).vtable };
        // SAFETY: (1): only the address of the field is computed.
        let storage = unsafe { &raw const (*body).storage };
        let joined = storage.cast::<u64>().wrapping_add(MEMBER_WORDS).cast::<Joined>();
        // SAFETY: (1): a job whose table has `membership` is followed by a `Joined`, which is constant.
        vtable.membership.is_some().then(|| unsafe { &*joined })
    }
}

/// Program code that must run after an operation has completed: wakers to wake and values to drop. It may wait, push,
/// panic or take a long time, so it runs after newly ready operations have been dispatched.
#[derive(Default)]
#[must_use = "its wakers must be woken"]
pub(crate) struct Cleanup {
    wakers: Option<Wakers>,
    /// Values to drop, such as a result that no handle can return, or a cleared failure.
    unwanted: Option<Box<dyn Any + Send>>,
    /// Dropped last.
    pub(super) membership: Option<Box<Membership>>,
}

impl Cleanup {
    /// Creates the `Cleanup` of a `oneshot` that has been set, with the `wakers` found in it.
    pub(super) fn new<R: Send + 'static, T>(wakers: Option<Wakers>, oneshot: Arc<Oneshot<R, T>>) -> Self {
        let unwanted = Arc::into_inner(oneshot).and_then(Oneshot::into_result);
        // Dropping a result that needs no drop runs no program code.
        let unwanted = unwanted.filter(|result| result.is_err() || needs_drop::<R>());
        Self { wakers, unwanted: unwanted.map(|result| Box::new(result) as _), membership: None }
    }

    /// Creates a `Cleanup` that wakes `wakers`.
    pub(super) fn waking(wakers: Option<Wakers>) -> Self {
        Self { wakers, ..Self::default() }
    }

    /// Adds a value to drop.
    pub(super) fn and_drop(&mut self, unwanted: impl Send + 'static) {
        self.unwanted = Some(match self.unwanted.take() {
            None => Box::new(unwanted),
            before => Box::new((unwanted, before)),
        });
    }

    /// Creates a `Cleanup` that drops a cleared failure.
    pub(crate) fn of_failure(failure: Option<OpError>) -> Self {
        Self { unwanted: failure.map(|failure| Box::new(failure) as _), ..Self::default() }
    }

    /// Records the failure in the operation's group, if `result` is a failure. The operation is counted out of the
    /// group after everything else has run.
    pub(super) fn set_membership(&mut self, membership: Membership, result: Result<(), &OpError>) {
        if let Err(failure) = result {
            membership.fail(failure);
        }
        self.membership = Some(Box::new(membership));
    }

    pub(crate) fn is_none(&self) -> bool {
        self.wakers.is_none() && self.unwanted.is_none() && self.membership.is_none()
    }

    /// Wakes the wakers and drops the values.
    pub(crate) fn run(self) {
        if let Some(wakers) = self.wakers {
            wakers.wake();
        }
        drop(self.unwanted);
    }
}

// SAFETY: only one thread at a time uses the body: the thread that owns the ready operation, or the thread that ends
// it.
unsafe impl Sync for Task {}

/// The result of claiming an operation.
pub(crate) enum Claimed {
    /// The calling thread has claimed the operation.
    Run,
    /// The operation was cancelled and fails.
    Cancelled(OpError),
    /// The operation was cancelled and changes nothing.
    PassedOver,
}

/// What an operation does and how it reports its result.
pub(crate) trait Work: Send + 'static {
    /// Returns what the operation has joined, if it may be a member of groups.
    fn joined(&self) -> Joined {
        Joined::nothing()
    }
    /// Claims the operation for the calling thread, which is about to start or skip it. May be called repeatedly.
    fn claim(&mut self, _task: &Task) -> Claimed {
        Claimed::Run
    }
    /// Returns where waiters find the operation when it is in a queue, if they can take it. The place is valid until
    /// the operation has started.
    fn place(&mut self) -> Option<NonNull<Place>> {
        None
    }
    /// Returns the operation's membership in a group, if it has one. Called before the operation starts.
    fn membership(&self) -> Option<&Membership> {
        None
    }
    /// Calls the function. Called at most once.
    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause>;
    /// Returns the place of an operation with a handle, even if no waiter can take the operation.
    fn place_of_handle(&mut self) -> Option<NonNull<Place>> {
        self.place()
    }
    /// Returns the program code that remains to be run after the start of an asynchronous operation. Called by the
    /// thread that started the operation, if the job reports and its start succeeded. The operation may have ended by
    /// then.
    fn started(&mut self) -> Cleanup {
        Cleanup::default()
    }
    /// Drops the function if it was not called. Called after the variables were released.
    fn discard(&mut self);
    /// Records that the operation, whose turn has come, is ending. Returns whether its scope has already counted the
    /// operation out of its group.
    fn is_abandoned(&self) -> bool {
        false
    }
    /// Sets the result. Called after the variables were released. Must not run program code; instead, returns such code
    /// to the caller.
    fn report(&mut self, _result: Result<(), &OpError>) -> Cleanup {
        Cleanup::default()
    }
}

/// A type of work, and which of its methods do anything.
pub(crate) trait Job: Work {
    /// Whether `report` and `started` do anything. If not, only a [`LimitedJob`](super::limited_job::LimitedJob) calls
    /// them.
    const REPORTS: bool = false;
    /// Whether the operation can be cancelled. If so, `claim` must be called before `start`. If not, only a
    /// [`LimitedJob`](super::limited_job::LimitedJob) calls `claim`, `place`, `place_of_handle` and `is_abandoned`.
    const CLAIMS: bool = false;
    /// Whether the operation may be a member of groups. If not, `joined` and `membership` are never called. If so, the
    /// job is a box of a dynamically sized type.
    const JOINS: bool = false;
}

/// [`Task::fill_job`] for the jobs of some type.
pub(crate) type FillJob = unsafe fn(*mut Task, *mut ());

/// The number of words in a record for the operation's job. Larger jobs are boxed.
const WORDS: usize = 12;

/// The number of words of a job that [joins](Job::JOINS) groups.
const MEMBER_WORDS: usize = 2;

/// Whether a record holds a `W` without a separate allocation.
const fn fits<W>() -> bool {
    size_of::<W>() <= size_of::<[u64; WORDS]>() && align_of::<W>() <= align_of::<u64>()
}

/// A [`Job`] of any type, inline if it fits. If the job [joins](Job::JOINS) groups, it takes the first
/// [`MEMBER_WORDS`], and the other words hold what the job has joined.
#[repr(C)]
pub(crate) struct InlineJob {
    vtable: &'static VTable,
    storage: [MaybeUninit<u64>; WORDS],
}

/// The methods of a type of jobs. There are many such types, at least one for each function that a program pushes, so
/// the table leaves out methods that are never called through it, and they need not be compiled.
struct VTable {
    /// [`flags_of`] the type.
    flags: u16,
    start: unsafe fn(*mut (), &Call<'_>) -> Result<(), Cause>,
    discard: unsafe fn(*mut ()),
    /// `None` if the job needs no drop.
    drop: Option<unsafe fn(*mut ())>,
    /// `None` unless the job [claims](Job::CLAIMS).
    claiming: Option<Claiming>,
    /// `None` unless the job [reports](Job::REPORTS).
    reporting: Option<Reporting>,
    /// `None` unless the job [joins](Job::JOINS) groups and a [`Joined`] is behind it.
    membership: Option<for<'a> unsafe fn(*const (), &'a Body) -> Option<&'a Membership>>,
}

/// The methods of jobs that [claim](Job::CLAIMS).
struct Claiming {
    claim: unsafe fn(*mut (), &Task) -> Claimed,
    place: unsafe fn(*mut ()) -> Option<NonNull<Place>>,
    place_of_handle: unsafe fn(*mut ()) -> Option<NonNull<Place>>,
}

/// The methods of jobs that [report](Job::REPORTS).
struct Reporting {
    started: unsafe fn(*mut ()) -> Cleanup,
    report: unsafe fn(*mut (), Result<(), &OpError>) -> Cleanup,
}

/// Returns the flags of operations with such a job.
const fn flags_of<W: Job>() -> u16 {
    (if W::CLAIMS { flag::CLAIMS } else { 0 }) | if W::REPORTS { flag::REPORTS } else { 0 }
}

// SAFETY: the stored job is `Send`.
unsafe impl Send for InlineJob {}

impl InlineJob {
    /// Initialises a body in place.
    ///
    /// # Safety
    /// 1. `body` may be written.
    #[inline]
    unsafe fn init<W: Job>(body: *mut Self, work: W) {
        if W::JOINS {
            // SAFETY: (1).
            unsafe { Self::init_member(body, work) }
        } else if const { fits::<W>() } {
            // SAFETY: (1), and (2) was just checked.
            unsafe { Self::init_inline(body, work) }
        } else {
            // SAFETY: (1), and (2): a box is one word.
            unsafe { Self::init_inline(body, Box::new(work)) }
        }
    }

    /// Initialises a body in place with a member of groups and what it has joined.
    ///
    /// # Safety
    /// 1. `body` may be written.
    unsafe fn init_member<W: Job>(body: *mut Self, work: W) {
        const {
            assert!(!W::JOINS || size_of::<W>() == size_of::<[u64; MEMBER_WORDS]>() && fits::<W>());
            assert!(size_of::<Joined>() <= size_of::<[u64; WORDS - MEMBER_WORDS]>());
            assert!(align_of::<Joined>() <= align_of::<u64>());
        }
        let joined = work.joined();
        // SAFETY: (1), and (2) was asserted above.
        unsafe { Self::init_inline(body, work) };
        // SAFETY: (1): the pointer is to a field of the body.
        let vtable = unsafe { &raw mut (*body).vtable };
        // SAFETY: (1): the pointer is to a field of the body.
        let storage = unsafe { &raw mut (*body).storage };
        // SAFETY: (1): the field may be written.
        unsafe { vtable.write(const { &VTable::of_member::<W>() }) };
        let behind = storage.cast::<u64>().wrapping_add(MEMBER_WORDS).cast::<Joined>();
        // SAFETY: (1): there is room for a `Joined` after the job, as was asserted above.
        unsafe { behind.write(joined) };
    }

    /// Initialises a body in place with a job that fits.
    ///
    /// # Safety
    /// 1. `body` may be written.
    /// 2. A `W` [`fits`].
    #[inline]
    unsafe fn init_inline<W: Job>(body: *mut Self, work: W) {
        // SAFETY: (1): the pointer is to a field of the body.
        let vtable = unsafe { &raw mut (*body).vtable };
        // SAFETY: (1): the pointer is to a field of the body.
        let storage = unsafe { &raw mut (*body).storage };
        // SAFETY: (1): the field may be written.
        unsafe { vtable.write(const { &VTable::of::<W>() }) };
        // SAFETY: (1), and (2): `storage` is large enough for a `W` and aligned for it.
        unsafe { storage.cast::<W>().write(work) };
    }
}

impl VTable {
    const fn of<W: Job>() -> Self {
        Self {
            flags: flags_of::<W>(),
            start: __rust_begin_short_backtrace::<W>,
            // SAFETY: `work` points to the `W` that was stored with this table.
            discard: |work| unsafe { &mut *work.cast::<W>() }.discard(),
            drop: if needs_drop::<W>() {
                // SAFETY: `work` points to the `W` that was stored with this table.
                Some(|work| unsafe { work.cast::<W>().drop_in_place() })
            } else {
                None
            },
            claiming: if W::CLAIMS { Some(Claiming::of::<W>()) } else { None },
            reporting: if W::REPORTS { Some(Reporting::of::<W>()) } else { None },
            membership: None,
        }
    }

    /// Returns the table of a `W` with a [`Joined`] after it.
    const fn of_member<W: Job>() -> Self {
        Self {
            drop: Some(|work| {
                // SAFETY: `work` points to the words that `init_member` has stored with this table.
                let joined = unsafe { work.cast::<u64>().add(MEMBER_WORDS) }.cast::<Joined>();
                // Dropped at the end, even if program code panics in the call below.
                // SAFETY: the `Joined` behind the job is not used by this thread again.
                let _joined = unsafe { joined.read() };
                // SAFETY: `work` points to the `W` that `init_member` has stored with this table.
                unsafe { work.cast::<W>().drop_in_place() };
            }),
            // SAFETY: `work` points to the `W` that `init_member` has stored with this table.
            membership: Some(|work, _body| unsafe { &*work.cast::<W>() }.membership()),
            ..Self::of::<W>()
        }
    }
}

impl Claiming {
    const fn of<W: Job>() -> Self {
        Self {
            // SAFETY: the pointer is to the `W` that was stored with this table.
            claim: |work, task| unsafe { &mut *work.cast::<W>() }.claim(task),
            // SAFETY: the pointer is to the `W` that was stored with this table.
            place: |work| unsafe { &mut *work.cast::<W>() }.place(),
            // SAFETY: the pointer is to the `W` that was stored with this table.
            place_of_handle: |work| unsafe { &mut *work.cast::<W>() }.place_of_handle(),
        }
    }
}

impl Reporting {
    const fn of<W: Job>() -> Self {
        Self {
            // SAFETY: the pointer is to the `W` that was stored with this table.
            started: |work| unsafe { &mut *work.cast::<W>() }.started(),
            // SAFETY: the pointer is to the `W` that was stored with this table.
            report: |work, result| unsafe { &mut *work.cast::<W>() }.report(result),
        }
    }
}

/// Starts a job. The standard library recognises this function by name: the short backtraces printed by panics omit the
/// engine's frames that lead to it.
///
/// # Safety
/// 1. `work` points to a `W`, and this thread is its only user.
unsafe fn __rust_begin_short_backtrace<W: Job>(work: *mut (), cx: &Call<'_>) -> Result<(), Cause> {
    // SAFETY: (1).
    let result = unsafe { &mut *work.cast::<W>() }.start(cx);
    // Keeps the frame of this function on the stack during the call.
    hint::black_box(());
    result
}

/// A job of any type that is not in a task yet.
pub(crate) struct ErasedJob(InlineJob);

impl ErasedJob {
    pub(crate) fn new<W: Job>(work: W) -> Self {
        let mut job = MaybeUninit::uninit();
        // SAFETY: (1): the memory is on this stack.
        unsafe { InlineJob::init(job.as_mut_ptr(), work) };
        // SAFETY: `init` has initialised the table, and the storage is `MaybeUninit`.
        Self(unsafe { job.assume_init() })
    }
}

impl Drop for ErasedJob {
    fn drop(&mut self) {
        // SAFETY: (1): the job is borrowed exclusively.
        unsafe { Body::new(&raw mut self.0) }.drop_work();
    }
}

/// A body, for its only user. The body is not borrowed as a whole, since other threads may read what the job has
/// joined.
struct Body(*mut InlineJob);

impl Body {
    /// # Safety
    /// 1. `body` is initialised, and the calling thread is the only user of its job while this exists.
    unsafe fn new(body: *mut InlineJob) -> Self {
        Self(body)
    }

    fn vtable(&self) -> &'static VTable {
        // SAFETY: (1) of `new`: the field is initialised, and constant.
        unsafe { (*self.0).vtable }
    }

    fn work(&self) -> *mut () {
        // SAFETY: (1) of `new`: only the address of the field is computed.
        unsafe { &raw mut (*self.0).storage }.cast()
    }

    fn claim(&self, task: &Task) -> Claimed {
        // SAFETY: the storage holds the type that `vtable` was made for.
        self.vtable().claiming.as_ref().map_or(Claimed::Run, |table| unsafe { (table.claim)(self.work(), task) })
    }

    fn place(&self) -> Option<NonNull<Place>> {
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (self.vtable().claiming.as_ref()?.place)(self.work()) }
    }

    fn place_of_handle(&self) -> Option<NonNull<Place>> {
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (self.vtable().claiming.as_ref()?.place_of_handle)(self.work()) }
    }

    fn membership(&self) -> Option<&Membership> {
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { self.vtable().membership?(self.work(), self) }
    }

    fn start(&self, cx: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (self.vtable().start)(self.work(), cx) }
    }

    fn started(&self) -> Cleanup {
        let Some(table) = &self.vtable().reporting else { return Cleanup::default() };
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (table.started)(self.work()) }
    }

    fn discard(&self) {
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (self.vtable().discard)(self.work()) }
    }

    fn report(&self, result: Result<(), &OpError>) -> Cleanup {
        let Some(table) = &self.vtable().reporting else { return Cleanup::default() };
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (table.report)(self.work(), result) }
    }

    fn drop_work(&self) {
        if let Some(drop) = self.vtable().drop {
            // SAFETY: the storage holds the type that `vtable` was made for, and the body is dropped once.
            unsafe { drop(self.work()) }
        }
    }
}

impl<W: Job + ?Sized> Job for Box<W> {
    const REPORTS: bool = W::REPORTS;
    const CLAIMS: bool = W::CLAIMS;
    const JOINS: bool = W::JOINS;
}

impl<W: Work + ?Sized> Work for Box<W> {
    fn joined(&self) -> Joined {
        W::joined(self)
    }
    fn is_abandoned(&self) -> bool {
        W::is_abandoned(self)
    }

    fn claim(&mut self, task: &Task) -> Claimed {
        W::claim(self, task)
    }
    fn place(&mut self) -> Option<NonNull<Place>> {
        W::place(self)
    }
    fn place_of_handle(&mut self) -> Option<NonNull<Place>> {
        W::place_of_handle(self)
    }
    fn membership(&self) -> Option<&Membership> {
        W::membership(self)
    }
    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        W::start(self, cx)
    }
    fn started(&mut self) -> Cleanup {
        W::started(self)
    }
    fn discard(&mut self) {
        W::discard(self);
    }
    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        W::report(self, result)
    }
}

/// The job of an operation without a handle.
pub(crate) struct FnJob<F>(Option<F>);

impl<F> FnJob<F> {
    pub(crate) fn new(f: F) -> Self {
        Self(Some(f))
    }
}

impl<F> Job for FnJob<F> where F: FnOnce(&Call<'_>) -> Result<(), Cause> + Send + 'static {}

impl<F> Work for FnJob<F>
where
    F: FnOnce(&Call<'_>) -> Result<(), Cause> + Send + 'static,
{
    #[inline]
    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        match self.0.take() {
            Some(f) => f(cx),
            None => Ok(()),
        }
    }

    fn discard(&mut self) {
        self.0 = None;
    }
}
