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
//! * The job: the thread that owns the ready operation, and then the thread that ends it. An asynchronous operation may
//!   end on another thread while [`Job::start`] runs. Ending it touches the job only if the job
//!   [may end early](Job::ENDS_EARLY). The table is constant.
//! * What `limits` points to: see [`Limits`]. The pointer is constant once the task is filled, and the limits outlive
//!   the task until the epoch has passed.
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
    error::{
        deadlock::Pushed,
        op::{Cause, OpError},
    },
    memory::epoch,
    notify::{
        async_state::AsyncState,
        claim::Cancel,
        oneshot::{Oneshot, Set},
        pending::Ticket,
        wakers::Wakers,
    },
    op::{
        cancellable::{Cancellable, Function, WaitersPlace},
        commuting::Commutes,
        frame::Call,
        limits::Limits,
        units::Units,
    },
    sync::{Ordering::Relaxed, atomic::AtomicU8, cell::UnsafeCell},
    system::panics,
    trace::OpId,
    tracker::{Op, Room, TASK_ROOM},
    values::Name,
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
    /// Belongs to a GPU lane, whose thread runs it.
    pub(crate) const GPU_LANE: u16 = 32;
    /// Causes the device to copy values in host memory that the function neither reads nor writes. Only with `STREAM`.
    pub(crate) const COPY: u16 = 64;
    /// [Commutes](crate::tracker::Mode::Commute) on a variable. Such an operation never has `STREAM`, with which the
    /// bit has the meaning above.
    pub(crate) const COMMUTES: u16 = COPY;
    /// Has its events recorded.
    pub(crate) const RECORDED: u16 = 128;
    /// Runs even if one of its variables has failed.
    pub(crate) const NO_SKIP: u16 = 256;
    /// Has a name.
    pub(crate) const NAMED: u16 = 512;
    /// Is a clean-up: no shutdown, group, deadline or handle cancels it.
    pub(crate) const KEPT: u16 = 1024;
    /// Issues work on the lane's stream. An operation with `GPU_LANE` but without a stream runs like one of the CPU,
    /// once its dependencies are complete.
    pub(crate) const STREAM: u16 = 2048;
    /// Has [limits](super::Limits): a group, a deadline, units, a family or children. Such an operation also has
    /// `REPORTS`. Has nothing to do with a limit on pending operations, which the phase `BOUNDED` of an engine stands
    /// for.
    pub(crate) const LIMITED: u16 = 4096;
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
/// The value of [`Task::waited`] of an operation that commutes and has yet to take its turns.
const LACKS_TURNS: u8 = u8::MAX - 1;
const _: () = assert!(MAX_GPUS * LANES_PER_GPU < LACKS_TURNS as usize);

/// How a job of some type is moved into the task of a bare operation.
pub(crate) struct FillJob {
    /// [`Task::fill_job`].
    pub(crate) fill: unsafe fn(*mut Task, *mut ()),
    /// [`Task::bytes_for`] such a job.
    pub(crate) bytes: usize,
    /// [`flags_of`] such a job.
    pub(crate) flags: u16,
}

impl FillJob {
    pub(crate) const fn of<W: Job>() -> Self {
        Self { fill: Task::fill_job::<W>, bytes: Task::bytes_for::<W>(), flags: flags_of::<W>() }
    }
}

/// The engine's part of an operation's record. If the operation has only one access, the task starts a cache line that
/// also has room for a small function. Fields needed by only some operations are not initialised in the others.
///
/// Behind the task lies the job and, behind room for the largest job that a record holds, the [`TaskExtras`] of those
/// operations that need them. The record of any other operation may be too small for them: see [`Room`].
#[repr(C)]
pub(crate) struct Task {
    pub(crate) ticket: Ticket,
    pub(crate) lane: u8,
    /// The number of a GPU lane. The operation has waited for all lanes with lower numbers. If it commutes,
    /// [`LACKS_TURNS`] before that. Used only by the owner of the ready operation.
    pub(crate) waited: AtomicU8,
    pub(crate) flags: u16,
    location: &'static Location<'static>,
    /// Initialised if [`flag::NAMED`] is set.
    name: MaybeUninit<Name>,
    vtable: MaybeUninit<&'static VTable>,
    /// Shows models who uses the job.
    job: UnsafeCell<()>,
}

/// What only some operations need.
#[repr(C)]
struct TaskExtras {
    limits: MaybeUninit<LimitsPlace>,
    /// Initialised if [`flag::ASYNC`] is set.
    progress: MaybeUninit<AsyncState<OpError>>,
    /// The operation's number. Initialised if [`flag::RECORDED`] is set.
    op_id: MaybeUninit<OpId>,
}

/// Shared, since a record has no more room. With limits, these have what the operation needs because it commutes.
union LimitsPlace {
    /// From a box. Initialised if [`flag::LIMITED`] is set.
    limits: NonNull<Limits>,
    /// Initialised if [`flag::COMMUTES`] is set, without [`flag::LIMITED`] and [`flag::STREAM`].
    commutes: ManuallyDrop<Commutes>,
}

const _: () = assert!(EXTRAS + size_of::<TaskExtras>() <= TASK_ROOM, "any task must fit into a record of normal size");
const _: () = assert!(size_of::<Task>() % align_of::<u64>() == 0, "a job must be aligned");

/// Where the [`TaskExtras`] begin, in bytes from the task's start.
const EXTRAS: usize = (size_of::<Task>() + size_of::<[u64; WORDS]>()).next_multiple_of(align_of::<TaskExtras>());

/// Writes fields of a task or its extras, each through a pointer to the field.
macro_rules! set {
    ($task:expr, $($field:ident: $value:expr),* $(,)?) => {
        // SAFETY: (1) of the enclosing function: the task may be written.
        $(unsafe { (&raw mut (*$task).$field).write($value) };)*
    };
}

impl Task {
    /// The room behind any task.
    pub(crate) const ANY_ROOM: Room = Room { bytes: EXTRAS + size_of::<TaskExtras>() - size_of::<Self>(), any: false };

    /// Returns the number of bytes behind the task of a bare operation with the job `W` whose events are not recorded.
    pub(crate) const fn bytes_for<W: Job>() -> usize {
        if W::ASYNC {
            Self::ANY_ROOM.bytes
        } else if fits::<W>() {
            size_of::<W>()
        } else {
            size_of::<Box<W>>()
        }
    }

    /// Returns the address this many bytes behind the task's start. A reference to a task may be used only for the task
    /// itself.
    #[inline(always)]
    fn behind<P>(task: *const Self, offset: usize) -> *mut P {
        // The pool has exposed the addresses of all records.
        ptr::with_exposed_provenance_mut(task.addr() + offset)
    }

    /// Returns the extras of a task, if there are any. Only the address is computed.
    fn extras(task: *const Self) -> *mut TaskExtras {
        Self::behind(task, EXTRAS)
    }

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
            set! { Self::extras(task), progress: MaybeUninit::new(AsyncState::default()) }
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
    /// 2. The record has [the room behind any task](Self::ANY_ROOM).
    pub(crate) unsafe fn fill_erased(task: *mut Self, mut job: ErasedJob) {
        Self::tell_place(task, job.beside());
        let (vtable, storage, limits, flags) = job.into_parts();
        // SAFETY: (1): the flags were set by `begin`. Only the job says whether there are limits.
        unsafe { (*task).flags = (*task).flags & !flag::LIMITED | flags };
        set! { task, vtable: MaybeUninit::new(vtable), job: UnsafeCell::new(()) }
        // SAFETY: (1), (2): there is room for the largest job behind the task.
        unsafe { Self::behind::<Storage>(task, size_of::<Self>()).write(storage) };
        if let Some(mut limits) = limits {
            // SAFETY: (1): the flags were set, and no other thread knows the task.
            if unsafe { (*task).flags } & (flag::COMMUTES | flag::STREAM) == flag::COMMUTES {
                // SAFETY: `set_commutes` has initialised the value, which is moved from here.
                limits.set_commutes(ManuallyDrop::into_inner(unsafe {
                    (&raw const (*Self::extras(task)).limits).cast::<ManuallyDrop<Commutes>>().read()
                }));
            }
            let limits = LimitsPlace { limits: NonNull::from(Box::leak(limits)) };
            set! { Self::extras(task), limits: MaybeUninit::new(limits) }
        }
    }

    /// Moves the job at `job` into a task.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin) with [the flags of such a job](flags_of), is valid for writes, and is
    ///    not yet known to another thread.
    /// 2. `job` points to a `W`, which is not used afterwards.
    /// 3. The record has [room for the job](Self::bytes_for) behind the task.
    pub(crate) unsafe fn fill_job<W: Job>(task: *mut Self, job: *mut ()) {
        // SAFETY: (2).
        let work = unsafe { job.cast::<W>().read() };
        // SAFETY: (1), (3).
        unsafe { Self::fill(task, work) };
    }

    /// Moves a job without limits into a task.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin) with [the flags of such a job](flags_of), is valid for writes, and is
    ///    not yet known to another thread.
    /// 2. The record has [room for the job](Self::bytes_for) behind the task.
    #[inline(always)]
    pub(crate) unsafe fn fill<W: Job>(task: *mut Self, work: W) {
        if W::REPORTS {
            Self::tell_place(task, work.beside().map(NonNull::from));
        }
        set! { task, vtable: MaybeUninit::new(const { &VTable::of::<W>() }), job: UnsafeCell::new(()) }
        // SAFETY: (1), (2): the job's place is behind the task.
        unsafe { store(Self::behind(task, size_of::<Self>()), work) };
    }

    /// Tells the place of the operation's handle, if it has one, to which task it belongs.
    #[inline(always)]
    fn tell_place(task: *mut Self, beside: Option<NonNull<Beside>>) {
        if let (Some(beside), Some(task)) = (beside, NonNull::new(task.cast())) {
            // SAFETY: the job keeps the state until the operation has ended.
            unsafe { beside.as_ref() }.place().set_task(task);
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
    /// 2. The record has [the room behind any task](Self::ANY_ROOM).
    pub(crate) unsafe fn set_recorded(task: *mut Self, id: OpId) {
        set! { Self::extras(task), op_id: MaybeUninit::new(id) }
        // SAFETY: (1): the flags were set by `begin`, and no other thread reads them.
        unsafe { (*task).flags |= flag::RECORDED };
    }

    /// Returns the operation's number, if its events are recorded.
    #[inline]
    pub(crate) fn op_id(&self) -> Option<OpId> {
        // SAFETY: with this flag, `set_recorded` has initialised the number.
        self.has(flag::RECORDED).then(|| unsafe { (*Self::extras(self)).op_id.assume_init() })
    }

    /// Returns the operation's limits, if it has any. A pinned thread that has found the operation may use the constant
    /// part.
    #[inline]
    pub(crate) fn limits(&self) -> Option<&Limits> {
        // SAFETY: with this flag, `fill_erased` has initialised the pointer. The limits are freed after the task, once
        // the epoch has passed.
        self.has(flag::LIMITED).then(|| unsafe { (*Self::extras(self)).limits.assume_init_ref().limits.as_ref() })
    }

    /// Marks the operation as one that commutes, with this number of its push.
    ///
    /// # Safety
    /// 1. `task` has been [begun](Self::begin) without [`flag::STREAM`], has no limits yet, and no other thread knows
    ///    it.
    /// 2. The record has [the room behind any task](Self::ANY_ROOM).
    pub(crate) unsafe fn set_commutes(task: *mut Self, number: u64) {
        let commutes = LimitsPlace { commutes: ManuallyDrop::new(Commutes::new(number)) };
        set! { Self::extras(task), limits: MaybeUninit::new(commutes) }
        set! { task, waited: AtomicU8::new(LACKS_TURNS) }
        // SAFETY: (1): the flags were set by `begin`, and no other thread reads them.
        unsafe { (*task).flags |= flag::COMMUTES };
    }

    /// Whether the operation commutes and has yet to take its turns. Asked by the owner of the ready operation.
    pub(crate) fn lacks_turns(&self) -> bool {
        // Relaxed: only the owner of a ready operation uses this field.
        self.waited.load(Relaxed) == LACKS_TURNS
    }

    /// Records that the operation has taken its turns. Called by the owner of the ready operation.
    pub(crate) fn note_turns(&self) {
        // Relaxed: only the owner of a ready operation uses this field.
        self.waited.store(0, Relaxed);
    }

    /// Returns what the operation needs because it commutes, if it does.
    #[inline]
    pub(crate) fn commutes(&self) -> Option<&Commutes> {
        if self.flags & (flag::COMMUTES | flag::STREAM) != flag::COMMUTES {
            return None;
        }
        if let Some(limits) = self.limits() {
            return limits.commutes();
        }
        // SAFETY: without limits, `set_commutes` has initialised the value, which needs no drop.
        Some(unsafe { &*(&raw const (*Self::extras(self)).limits).cast() })
    }

    /// Returns the units that the operation needs, if it needs any.
    pub(crate) fn units(&self) -> Option<&Units> {
        self.limits()?.units()
    }

    /// Returns the state of an asynchronous operation.
    pub(crate) fn async_state(&self) -> Option<&AsyncState<OpError>> {
        // SAFETY: with this flag, `begin` has initialised the state.
        self.has(flag::ASYNC).then(|| unsafe { &*(&raw const (*Self::extras(self)).progress).cast() })
    }

    /// Whether the operation is complete although its function may still run: it is asynchronous, it cannot have
    /// children, and its completion was used.
    pub(crate) fn is_over(&self) -> bool {
        !self.has(flag::PARENT) && self.async_state().is_some_and(AsyncState::is_resolved)
    }

    /// Returns the error of this operation, which failed because of `cause`.
    #[cold]
    pub(crate) fn failed_by(&self, cause: Cause) -> OpError {
        OpError::new(self.name(), self.location, cause, None)
    }

    /// Returns the error of this operation, which is skipped because of `failure`. If nothing but variables receives
    /// it, it is that failure.
    #[cold]
    pub(crate) fn skipped_by(&self, failure: OpError) -> OpError {
        if self.has(flag::REPORTS) && !self.has(flag::INTERNAL) {
            return OpError::skipped(self.name(), self.location, &failure);
        }
        failure
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
        // SAFETY: the task was filled, and this is its only drop.
        unsafe { self.with_body(Body::drop_job) };
        if self.has(flag::OWNS_NAME | flag::ASYNC | flag::LIMITED) {
            self.drop_rest();
        }
    }
}

impl Task {
    /// Calls `f` with the body.
    ///
    /// # Safety
    /// 1. The task was filled, and what `f` does with the job is permitted by the head of this module.
    #[inline(always)]
    unsafe fn with_body<R>(&self, f: impl FnOnce(&Body) -> R) -> R {
        // SAFETY: by (1) the field was initialised.
        let vtable = unsafe { self.vtable.assume_init() };
        self.job.with_mut(|_| f(&Body { vtable, storage: Self::behind(self, size_of::<Self>()) }))
    }

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
            let limits = unsafe { (*Self::extras(self)).limits.assume_init_ref().limits };
            // SAFETY: the pointer is from a box. The operation has left its groups, so the limits are plain memory.
            unsafe { epoch::pin().retire(move || drop(Box::from_raw(limits.as_ptr()))) };
        }
        if self.has(flag::ASYNC) {
            // SAFETY: with this flag, `begin` has initialised the state, and this is its only drop.
            unsafe { (*Self::extras(self)).progress.assume_init_drop() };
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
        let task = self.task();
        // SAFETY: (1) makes this thread the only user of the body.
        let claimed = unsafe { self.with_body(Body::claim) };
        let Some(limits) = task.limits() else { return claimed };
        let claimed = match claimed {
            // SAFETY: (1).
            Claimed::Run if !task.has(flag::KEPT) => match unsafe { limits.claim() } {
                Ok(()) => Claimed::Run,
                Err(Some(cause)) => Claimed::Cancelled(task.failed_by(cause)),
                Err(None) => Claimed::PassedOver,
            },
            claimed => claimed,
        };
        if matches!(claimed, Claimed::Cancelled(_)) {
            // SAFETY: (1).
            unsafe { limits.will_fail_itself() };
        }
        claimed
    }

    /// Returns the state beside the result of an operation with a handle.
    ///
    /// # Safety
    /// 1. This thread owns the ready operation, ends it, or has a share of the right to end it.
    pub(crate) unsafe fn beside(&self) -> Option<&Beside> {
        // SAFETY: (1): the job keeps the state until the operation has ended.
        unsafe { self.with_body(Body::beside).map(|beside| beside.as_ref()) }
    }

    /// Returns where waiters can find the operation while it is in a queue, if they may take it. The place is valid
    /// until the operation has started.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    pub(crate) unsafe fn waiters_place(&self) -> Option<NonNull<WaitersPlace>> {
        // SAFETY: (1).
        unsafe { self.beside() }.map(|beside| NonNull::from(beside.place()))
    }

    /// Calls the function of an operation without limits.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    /// 2. This is called once.
    #[inline(always)]
    pub(crate) unsafe fn start(&self, call: &Call<'_>) -> Result<(), Cause> {
        // The cell is not borrowed during the call: the function looks at the handle, and another thread may end the
        // operation meanwhile.
        // SAFETY: (1) makes this thread the only user of the body, except of jobs that end early.
        let body = unsafe { self.with_body(|body| *body) };
        body.start(call)
    }

    /// Calls the function.
    ///
    /// # Safety
    /// 1. The operation is ready, and this thread owns it.
    /// 2. This is called once.
    pub(crate) unsafe fn start_in_limits(&self, call: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: (1) and (2).
        let start = || unsafe { self.start(call) };
        let Some(limits) = self.task().limits() else { return start() };
        // SAFETY: (1).
        unsafe { limits.will_fail_itself() };
        // Another thread may end an asynchronous operation during the call.
        let (group, kin) = (limits.group().cloned(), limits.kin().cloned());
        call.frame().in_group(group.as_ref(), kin.as_ref(), start)
    }

    /// Takes the program code that remains to be run after the start of an asynchronous operation.
    ///
    /// # Safety
    /// 1. The operation is asynchronous, and this thread has started it.
    pub(crate) unsafe fn started(&self) -> Remainder {
        // SAFETY: (1): ending an asynchronous operation touches only jobs that end early, which this does not touch.
        unsafe { self.with_body(Body::started) }
    }

    /// Tells the job that its function will not be called.
    ///
    /// # Safety
    /// 1. This thread ends the operation.
    pub(crate) unsafe fn forgo(&self) {
        // SAFETY: (1) makes this thread the only user of the body.
        unsafe { self.with_body(Body::forgo) }
    }

    /// Drops the function if it was not called.
    ///
    /// # Safety
    /// 1. This thread ends the operation.
    pub(crate) unsafe fn discard(&self) {
        // SAFETY: (1) makes this thread the only user of the body.
        unsafe { self.with_body(Body::discard) }
    }

    /// Reports the result to the operation's handle and groups, if it has them, or, if the operation is a wait, to
    /// those that wait. `may_run` says whether the function may still be running. Returns the program code that remains
    /// to be run.
    ///
    /// # Safety
    /// 1. This thread ends the operation.
    #[inline]
    pub(crate) unsafe fn report(&self, result: Result<(), &OpError>, may_run: bool) -> Remainder {
        let Some(limits) = self.task().limits() else {
            // SAFETY: (1): if the function may run, only jobs that end early are touched.
            return unsafe { self.with_body(|body| body.report(result, may_run)) };
        };
        // SAFETY: (1).
        let is_abandoned = unsafe { self.beside() }.is_some_and(|beside| beside.claim().settle());
        // SAFETY: (1): as above.
        let remainder = unsafe { self.with_body(|body| body.report(result, may_run)) };
        // SAFETY: (1).
        unsafe { limits.end(is_abandoned, result) };
        remainder
    }

    /// Calls `f` with the body.
    ///
    /// # Safety
    /// 1. What `f` does with the job is permitted by the head of this module.
    #[inline(always)]
    unsafe fn with_body<R>(&self, f: impl FnOnce(&Body) -> R) -> R {
        // SAFETY: (1).
        unsafe { self.task().with_body(f) }
    }
}

// SAFETY: only one thread at a time uses the body: the thread that owns the ready operation, or the thread that ends
// it.
unsafe impl Sync for Task {}
// SAFETY: the limits and all other fields are `Send`.
unsafe impl Send for Task {}

// -------------------------------------------------------------------------------------------------------- jobs ----

/// The state through which a handle can cancel its operation.
pub(crate) type Beside = Cancellable<dyn Function>;

/// The result of claiming an operation.
pub(crate) enum Claimed {
    /// The calling thread has claimed the operation.
    Run,
    /// The operation was cancelled and fails.
    Cancelled(OpError),
    /// The operation was cancelled and changes nothing.
    PassedOver,
}

/// What an operation calls, and where its result goes.
pub(crate) trait Job: Send + 'static {
    /// Whether the job reports the result, and must be claimed before it starts. If not, only `start` and `discard` are
    /// called.
    const REPORTS: bool;
    /// Whether the operation ends with its completion. If its job does not say so, the description must.
    const ASYNC: bool = false;
    /// Whether `report` may be called while `start` runs on another thread. If not, it is not called once `start` was
    /// called for an asynchronous operation.
    const ENDS_EARLY: bool = false;
    /// Whether [`forgo`](Self::forgo) does anything.
    const FORGOES: bool = false;
    /// Called once the function will not be called, before other threads or program code can see this. Must not run
    /// program code.
    fn forgo(&self) {}
    /// Claims the operation for the calling thread, which is about to start or skip it. May be called repeatedly.
    fn claim(&self) -> Claimed {
        match self.beside().map(|beside| (beside, beside.claim().start())) {
            None | Some((_, Ok(()))) => Claimed::Run,
            Some((beside, Err(Cancel::Loudly))) => Claimed::Cancelled(beside.failure()),
            Some((_, Err(Cancel::Quietly))) => Claimed::PassedOver,
        }
    }
    /// Returns the state beside the result of an operation with a handle, until the result has been set.
    fn beside(&self) -> Option<&Beside> {
        None
    }
    /// Calls the function. Called at most once.
    ///
    /// # Safety
    /// 1. `this` points to a job, which no other thread uses, except in `report` if the job
    ///    [may end early](Self::ENDS_EARLY).
    unsafe fn start(this: *mut Self, call: &Call<'_>) -> Result<(), Cause>;
    /// Returns the program code that remains to be run after the start of an asynchronous operation. Called by the
    /// thread that started the operation, if the start succeeded. The operation may have ended by then.
    fn started(&mut self) -> Remainder {
        Remainder::default()
    }
    /// Drops the function if it was not called. Called after the variables were released.
    fn discard(&mut self);
    /// Sets the result. Called after the variables were released. Must not run program code; instead, returns such code
    /// to the caller.
    fn report(&mut self, result: Result<(), &OpError>) -> Remainder;
}

/// The number of words in a record for the operation's job. Larger jobs are boxed.
const WORDS: usize = 11;

/// Whether a record holds a `W` without a separate allocation.
const fn fits<W>() -> bool {
    size_of::<W>() <= size_of::<[u64; WORDS]>() && align_of::<W>() <= align_of::<u64>()
}

/// The place of a job: large enough for the job if a record may hold it, and otherwise for a box.
type Storage = [MaybeUninit<u64>; WORDS];

/// The methods of a type of jobs. There are many such types, at least one for each function that a program pushes, so
/// the table leaves out methods that are never called through it, and they need not be compiled.
struct VTable {
    start: unsafe fn(*mut (), &Call<'_>) -> Result<(), Cause>,
    discard: unsafe fn(*mut ()),
    /// `None` if it [does nothing](Job::FORGOES).
    forgo: Option<unsafe fn(*mut ())>,
    /// `None` if the job needs no drop.
    drop: Option<unsafe fn(*mut ())>,
    /// `None` unless the job [reports](Job::REPORTS).
    reporting: Option<Reporting>,
}

/// The methods of jobs that [report](Job::REPORTS).
struct Reporting {
    claim: unsafe fn(*mut ()) -> Claimed,
    beside: unsafe fn(*mut ()) -> Option<NonNull<Beside>>,
    started: unsafe fn(*mut ()) -> Remainder,
    report: unsafe fn(*mut (), Result<(), &OpError>) -> Remainder,
    /// [`Job::ENDS_EARLY`].
    ends_early: bool,
}

/// Returns the flags of operations with such a job.
pub(crate) const fn flags_of<W: Job>() -> u16 {
    (if W::REPORTS { flag::REPORTS } else { 0 }) | (if W::ASYNC { flag::ASYNC } else { 0 })
}

/// Stores a job.
///
/// # Safety
/// 1. `storage` may be written, and there is room for a `W` or, if that does not [fit](fits), a box.
#[inline(always)]
unsafe fn store<W: Job>(storage: *mut (), work: W) {
    if const { fits::<W>() } {
        // SAFETY: (1).
        unsafe { storage.cast::<W>().write(work) };
    } else {
        // SAFETY: (1).
        unsafe { storage.cast::<Box<W>>().write(Box::new(work)) };
    }
}

/// Returns the address of the job in `storage`.
///
/// # Safety
/// 1. [`store`] has stored a `W` there.
#[inline(always)]
unsafe fn job_at<W>(storage: *mut ()) -> *mut W {
    if const { fits::<W>() } {
        storage.cast()
    } else {
        // SAFETY: (1): `store` has stored a box, and a box is a pointer.
        unsafe { *storage.cast::<*mut W>() }
    }
}

impl VTable {
    const fn of<W: Job>() -> Self {
        Self {
            start: __rust_begin_short_backtrace::<W>,
            // SAFETY: (1): the table is that of the stored job.
            discard: |storage| unsafe { &mut *job_at::<W>(storage) }.discard(),
            // SAFETY: (1): the table is that of the stored job.
            forgo: if W::FORGOES { Some(|storage| unsafe { &*job_at::<W>(storage) }.forgo()) } else { None },
            drop: match (fits::<W>(), needs_drop::<W>()) {
                (true, false) => None,
                // SAFETY: the table is that of the stored job.
                (true, true) => Some(|storage| unsafe { storage.cast::<W>().drop_in_place() }),
                // SAFETY: the table is that of the stored job, which `store` has boxed.
                (false, _) => Some(|storage| unsafe { storage.cast::<Box<W>>().drop_in_place() }),
            },
            reporting: if W::REPORTS { Some(Reporting::of::<W>()) } else { None },
        }
    }
}

impl Reporting {
    const fn of<W: Job>() -> Self {
        Self {
            // SAFETY: (1): the table is that of the stored job.
            claim: |storage| unsafe { &*job_at::<W>(storage) }.claim(),
            // SAFETY: (1): the table is that of the stored job.
            beside: |storage| unsafe { &*job_at::<W>(storage) }.beside().map(NonNull::from),
            // SAFETY: (1): the table is that of the stored job.
            started: |storage| unsafe { &mut *job_at::<W>(storage) }.started(),
            // SAFETY: (1): the table is that of the stored job.
            report: |storage, result| unsafe { &mut *job_at::<W>(storage) }.report(result),
            ends_early: W::ENDS_EARLY,
        }
    }
}

/// Starts a job. The standard library recognises this function by name: the short backtraces printed by panics omit the
/// engine's frames that lead to it.
///
/// # Safety
/// 1. [`store`] has stored a `W` at `storage`, and the conditions of [`Job::start`] hold.
unsafe fn __rust_begin_short_backtrace<W: Job>(storage: *mut (), call: &Call<'_>) -> Result<(), Cause> {
    // SAFETY: (1).
    let result = unsafe { W::start(job_at::<W>(storage), call) };
    // Keeps the frame of this function on the stack during the call.
    hint::black_box(());
    result
}

/// A job of any type, with the operation's limits, if it has any. If the push is refused, the operation leaves its
/// group before what its function captures is dropped.
pub(crate) struct ErasedJob {
    limits: Option<Box<Limits>>,
    job: Loose,
    /// [`flags_of`] the job.
    flags: u16,
}

/// A [`Job`] of any type that is not in a record yet.
struct Loose {
    vtable: &'static VTable,
    storage: Storage,
}

// SAFETY: the stored job is `Send`.
unsafe impl Send for Loose {}

impl Loose {
    /// Returns the job, which is borrowed exclusively.
    fn body(&mut self) -> Body {
        Body { vtable: self.vtable, storage: self.storage.as_mut_ptr().cast() }
    }
}

impl Drop for Loose {
    fn drop(&mut self) {
        self.body().drop_job();
    }
}

impl ErasedJob {
    pub(crate) fn new<W: Job>(work: W) -> Self {
        let mut storage = [MaybeUninit::uninit(); WORDS];
        // SAFETY: (1): this is the largest place for a job.
        unsafe { store(storage.as_mut_ptr().cast(), work) };
        Self { limits: None, job: Loose { vtable: const { &VTable::of::<W>() }, storage }, flags: flags_of::<W>() }
    }

    /// Limits the operation.
    pub(crate) fn limit(&mut self, limits: Box<Limits>) {
        self.limits = Some(limits);
    }

    /// Returns the operation's limits, which it has from now on.
    pub(crate) fn limits_mut(&mut self) -> &mut Limits {
        self.limits.get_or_insert_with(|| Limits::new(None, None, None))
    }

    /// Returns the state beside the result, if the operation has a handle.
    pub(crate) fn beside(&mut self) -> Option<NonNull<Beside>> {
        self.job.body().beside()
    }

    /// Returns the flags of operations with such a job.
    pub(crate) fn flags(&self) -> u16 {
        self.flags
    }

    /// Returns the job's table, the job, the limits, and the flags of an operation with both.
    fn into_parts(self) -> (&'static VTable, Storage, Option<Box<Limits>>, u16) {
        let Self { limits, job, flags } = self;
        let limited = if limits.is_some() { flag::LIMITED | flag::REPORTS } else { 0 };
        let job = ManuallyDrop::new(job);
        (job.vtable, job.storage, limits, flags | limited)
    }
}

/// A job in place, for its user. What the user does with the job is permitted by the head of this module.
#[derive(Clone, Copy)]
struct Body {
    vtable: &'static VTable,
    /// Where [`store`] has stored a job of the type that `vtable` was made for.
    storage: *mut (),
}

impl Body {
    pub(crate) fn claim(&self) -> Claimed {
        // SAFETY: the storage holds the type that `vtable` was made for.
        self.vtable.reporting.as_ref().map_or(Claimed::Run, |table| unsafe { (table.claim)(self.storage) })
    }

    pub(crate) fn beside(&self) -> Option<NonNull<Beside>> {
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (self.vtable.reporting.as_ref()?.beside)(self.storage) }
    }

    #[inline(always)]
    pub(crate) fn start(&self, call: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (self.vtable.start)(self.storage, call) }
    }

    pub(crate) fn started(&self) -> Remainder {
        // Another thread may be ending the operation, and then uses a job that ends early.
        let Some(table) = self.vtable.reporting.as_ref().filter(|table| !table.ends_early) else {
            return Remainder::default();
        };
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (table.started)(self.storage) }
    }

    pub(crate) fn discard(&self) {
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (self.vtable.discard)(self.storage) }
    }

    pub(crate) fn forgo(&self) {
        if let Some(forgo) = self.vtable.forgo {
            // SAFETY: the storage holds the type that `vtable` was made for.
            unsafe { forgo(self.storage) }
        }
    }

    /// Sets the result. `may_run` says whether the function may still be running.
    fn report(&self, result: Result<(), &OpError>, may_run: bool) -> Remainder {
        match &self.vtable.reporting {
            Some(table) if !may_run || table.ends_early => {
                // SAFETY: the storage holds the type that `vtable` was made for.
                unsafe { (table.report)(self.storage, result) }
            }
            _ => Remainder::default(),
        }
    }

    #[inline(always)]
    fn drop_job(&self) {
        if let Some(drop) = self.vtable.drop {
            // SAFETY: the storage holds the type that `vtable` was made for, and the body is dropped once.
            unsafe { drop(self.storage) }
        }
    }
}

/// The program code that remains to be run once an operation is complete: wakers to wake and values to drop. It may
/// wait, push, panic or take a long time, so it runs after newly ready operations have been dispatched.
#[derive(Default)]
#[must_use = "its wakers must be woken"]
pub(crate) struct Remainder {
    wakers: Option<Wakers>,
    /// Values to drop, such as a result that no handle can return, or a cleared failure.
    unwanted: Option<Box<dyn Any + Send>>,
}

impl Remainder {
    /// Creates the `Remainder` of a `oneshot` that was set, with what [`Oneshot::set`] returned.
    pub(crate) fn new<R: Send + 'static, T>(set: Set<R>, oneshot: Arc<Oneshot<R, T>>) -> Self {
        let (wakers, unwanted) = match set {
            Ok(wakers) => (wakers, Arc::into_inner(oneshot).and_then(Oneshot::into_result)),
            Err(result) => (None, Some(result)),
        };
        // Dropping a result that needs no drop runs no program code.
        let unwanted = unwanted.filter(|result| result.is_err() || needs_drop::<R>());
        Self { wakers, unwanted: unwanted.map(|result| Box::new(result) as _) }
    }

    /// Adds a value to drop.
    pub(super) fn and_drop(&mut self, unwanted: impl Send + 'static) {
        self.unwanted = Some(match self.unwanted.take() {
            None => Box::new(unwanted),
            before => Box::new((unwanted, before)),
        });
    }

    pub(crate) fn is_none(&self) -> bool {
        self.wakers.is_none() && self.unwanted.is_none()
    }

    /// Wakes the wakers and drops the values.
    pub(crate) fn run(self) {
        if let Some(wakers) = self.wakers {
            wakers.wake();
        }
        drop(self.unwanted);
    }
}
