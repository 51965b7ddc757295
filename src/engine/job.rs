//! Jobs: what an operation calls, and where its result goes.
//!
//! There are two types of jobs. An [`FnJob`] has its function in the record, and a [`Sink`] for the result; a
//! [`HandleJob`] has both in the state that it shares with the operation's handle, since a cancellation drops the
//! function. A job that is not in a record yet is an [`ErasedJob`]. What can cancel the operation besides its handle, and
//! what counts it, is in its [`Limits`].
//!
//! # Who may touch what
//!
//! * A job: the thread that owns the ready operation, and then the thread that ends the operation. An asynchronous
//!   operation may end on another thread while [`start`](Job::start) runs. Ending it touches the job only if the job is
//!   [shared](Job::ENDS_EARLY) with its function.
//! * The table: constant.

use std::{
    any::Any,
    hint,
    mem::{ManuallyDrop, MaybeUninit, needs_drop},
    panic::Location,
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{
    engine::{
        cancellable::{Cancellable, Function},
        ending::FnState,
        frame::Call,
        limits::Limits,
        spec::Spec,
        task::flag,
    },
    error::op::{Cause, OpError},
    notify::{
        claim::{Cancel, Claim},
        oneshot::Oneshot,
        wakers::Wakers,
    },
    values::name::Name,
};

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
    /// Whether `report` may be called while `start` runs on another thread. If not, it is not called once `start` was
    /// called for an asynchronous operation.
    const ENDS_EARLY: bool = false;
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
    unsafe fn start(this: *mut Self, cx: &Call<'_>) -> Result<(), Cause>;
    /// Returns the program code that remains to be run after the start of an asynchronous operation. Called by the
    /// thread that started the operation, if the start succeeded. The operation may have ended by then.
    fn started(&mut self) -> Cleanup {
        Cleanup::default()
    }
    /// Drops the function if it was not called. Called after the variables were released.
    fn discard(&mut self);
    /// Sets the result. Called after the variables were released. Must not run program code; instead, returns such code
    /// to the caller.
    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup;
}

// ------------------------------------------------------------------------------------------------- a function ----

/// Where the result of a function in an operation's record goes.
pub(crate) trait Sink: Send + 'static {
    /// [`Job::REPORTS`].
    const REPORTS: bool = true;
    /// [`Job::claim`].
    fn claim(&self) -> Claimed {
        Claimed::Run
    }
    /// [`Job::started`].
    fn started(&mut self) -> Cleanup {
        Cleanup::default()
    }
    /// [`Job::report`].
    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup;
}

impl Sink for () {
    const REPORTS: bool = false;
    fn report(&mut self, _result: Result<(), &OpError>) -> Cleanup {
        Cleanup::default()
    }
}

/// What the function leaves in this sink is dropped in the epilogue, since its drop may run program code.
impl<T: Send + 'static> Sink for Option<T> {
    fn report(&mut self, _result: Result<(), &OpError>) -> Cleanup {
        let mut cleanup = Cleanup::default();
        self.take().into_iter().for_each(|left| cleanup.and_drop(left));
        cleanup
    }
}

/// The job of an operation without a handle.
pub(crate) struct FnJob<F, S = ()> {
    f: Option<F>,
    sink: S,
}

impl<F, S: Sink> FnJob<F, S>
where
    F: FnOnce(&Call<'_>, &mut S) -> Result<(), Cause> + Send + 'static,
{
    pub(crate) fn with(sink: S, f: F) -> Self {
        Self { f: Some(f), sink }
    }
}

/// Creates the job of an operation that reports its result to nobody.
#[inline(always)]
pub(crate) fn plain(f: impl FnOnce(&Call<'_>) -> Result<(), Cause> + Send + 'static) -> impl Job {
    FnJob::with((), move |cx: &Call<'_>, (): &mut ()| f(cx))
}

impl<F, S: Sink> Job for FnJob<F, S>
where
    F: FnOnce(&Call<'_>, &mut S) -> Result<(), Cause> + Send + 'static,
{
    const REPORTS: bool = S::REPORTS;

    fn claim(&self) -> Claimed {
        self.sink.claim()
    }

    #[inline]
    unsafe fn start(this: *mut Self, cx: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: (1): no other thread uses the job.
        let this = unsafe { &mut *this };
        match this.f.take() {
            Some(f) => f(cx, &mut this.sink),
            None => Ok(()),
        }
    }

    fn started(&mut self) -> Cleanup {
        self.sink.started()
    }

    fn discard(&mut self) {
        self.f = None;
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        self.sink.report(result)
    }
}

// --------------------------------------------------------------------------------------------------- a handle ----

/// Where the function of an operation with a handle stores the result's value.
pub(crate) struct Out<R>(NonNull<Option<R>>);

// SAFETY: `Out` is the only way to the value while the operation has not ended.
unsafe impl<R: Send> Send for Out<R> {}

impl<R> Out<R> {
    /// Stores the value.
    ///
    /// # Safety
    /// 1. The operation has started and has not ended.
    #[inline(always)]
    pub(crate) unsafe fn set(&mut self, value: R) {
        // SAFETY: (1): the job is in the operation's record, and only this `Out` uses its value before the operation
        // ends.
        unsafe { *self.0.as_mut() = Some(value) };
    }
}

/// The state that an operation shares with its handle.
pub(crate) type Shared<F, R> = Arc<Oneshot<R, Cancellable<Option<F>>>>;

/// Creates the state that an operation with these properties, pushed at `location`, shares with its handle. If the
/// operation is a [clean-up](crate::OpBuilder::cleanup), its claim is already started, so it cannot be cancelled.
pub(crate) fn shared<F, R>(spec: &Spec, location: &'static Location<'static>, f: F) -> Shared<F, R> {
    let claim = if spec.flags & flag::KEPT == 0 { Claim::default() } else { Claim::started() };
    Oneshot::with(Cancellable::new(claim, spec.name.clone(), location, f))
}

/// [`shared`] for an operation with no property except this name, which may be empty.
#[inline(always)]
pub(crate) fn shared_plainly<F, R>(name: &'static str, location: &'static Location<'static>, f: F) -> Shared<F, R> {
    Oneshot::with(Cancellable::new(Claim::default(), Name::from(name), location, f))
}

/// Returns the function of a [`HandleJob`] that stores what `f` returns.
#[inline(always)]
pub(crate) fn returning<R>(
    f: impl FnOnce(&Call<'_>) -> Result<R, Cause>,
) -> impl FnOnce(&Call<'_>, Out<R>) -> Result<(), Cause> {
    move |cx, mut out| {
        let value = f(cx)?;
        // SAFETY: (1): the operation ends when this function has returned.
        unsafe { out.set(value) };
        Ok(())
    }
}

/// Returns the function of a [`HandleJob`] whose operation ends with its completion.
pub(crate) fn completing(
    f: impl FnOnce(&Call<'_>) -> Result<(), Cause>,
) -> impl FnOnce(&Call<'_>, Out<()>) -> Result<(), Cause> {
    move |cx, mut out| {
        // SAFETY: (1): `f` has not received the completion yet.
        unsafe { out.set(()) };
        f(cx)
    }
}

/// The job of an operation with a handle to its result. The function is [beside](Cancellable) the oneshot for which the
/// handle waits. The job takes it when the operation starts, and sets the oneshot when the operation is complete.
pub(crate) struct HandleJob<F, R> {
    /// Used by the function's [`Out`], and then by the thread that ends the operation.
    value: Option<R>,
    /// Taken by `report`, so that a value without a handle is dropped in the epilogue.
    shared: Option<Shared<F, R>>,
}

impl<F, R> HandleJob<F, R> {
    pub(crate) fn new(shared: Shared<F, R>) -> Self {
        Self { value: None, shared: Some(shared) }
    }

    /// Takes the function if this thread has already won the claim or wins it now.
    fn take_function(shared: &Oneshot<R, Cancellable<Option<F>>>) -> Option<F> {
        shared.beside().claim().start().ok()?;
        // SAFETY: this thread has won the claim: only the owner of the operation calls `start`, which has succeeded.
        unsafe { shared.beside().take() }
    }
}

impl<F, R> Job for HandleJob<F, R>
where
    F: FnOnce(&Call<'_>, Out<R>) -> Result<(), Cause> + Send + 'static,
    R: Send + 'static,
{
    const REPORTS: bool = true;
    const ENDS_EARLY: bool = true;

    fn beside(&self) -> Option<&Beside> {
        self.shared.as_ref().map(|shared| shared.beside() as &Beside)
    }

    unsafe fn start(this: *mut Self, cx: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: (1): no thread has ended the operation yet.
        let Some(shared) = (unsafe { &(*this).shared }) else { return Ok(()) };
        // If another thread ends the operation during the call, it takes the job's reference.
        let _kept = cx.op().task().has(flag::ASYNC).then(|| Arc::clone(shared));
        let shared = &**shared;
        let Some(f) = Self::take_function(shared) else { return Ok(()) };
        // SAFETY: (1): only the address of the field is computed.
        let value = unsafe { &raw mut (*this).value };
        // SAFETY: the address of a field is not null.
        let out = Out(unsafe { NonNull::new_unchecked(value) });
        cx.frame().claimed_by(shared.beside().claim(), || f(cx, out))
    }

    fn discard(&mut self) {
        drop(self.shared.as_deref().and_then(Self::take_function));
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        let Some(shared) = self.shared.take() else { return Cleanup::default() };
        let (result, unwanted) = match (result, self.value.take()) {
            (Ok(()), Some(value)) => (Ok(value), None),
            (Ok(()), None) => (Err(shared.beside().failure()), None),
            // A value exists if a device failed after the function had returned it, or if dropping a future or one of
            // its guards panicked.
            (Err(failure), value) => (Err(failure.clone()), value),
        };
        // An uncalled function is dropped in the epilogue. There is none if the function has returned a value.
        let f = if result.is_err() { Self::take_function(&shared) } else { None };
        let mut cleanup = Cleanup::new(shared.set(result), shared);
        if let Some(f) = f {
            cleanup.and_drop(f);
        }
        if let Some(value) = unwanted.filter(|_| needs_drop::<R>()) {
            cleanup.and_drop(value);
        }
        cleanup
    }
}

// ---------------------------------------------------------------------------------------------- a job of any type ----

/// The number of words in a record for the operation's job. Larger jobs are boxed.
const WORDS: usize = 11;

/// Whether a record holds a `W` without a separate allocation.
const fn fits<W>() -> bool {
    size_of::<W>() <= size_of::<[u64; WORDS]>() && align_of::<W>() <= align_of::<u64>()
}

/// A [`Job`] of any type, inline if it fits, and otherwise boxed.
#[repr(C)]
pub(super) struct InlineJob {
    vtable: &'static VTable,
    storage: [MaybeUninit<u64>; WORDS],
}

/// The methods of a type of jobs. There are many such types, at least one for each function that a program pushes, so
/// the table leaves out methods that are never called through it, and they need not be compiled.
struct VTable {
    start: unsafe fn(*mut (), &Call<'_>) -> Result<(), Cause>,
    discard: unsafe fn(*mut ()),
    /// `None` if the job needs no drop.
    drop: Option<unsafe fn(*mut ())>,
    /// `None` unless the job [reports](Job::REPORTS).
    reporting: Option<Reporting>,
}

/// The methods of jobs that [report](Job::REPORTS).
struct Reporting {
    claim: unsafe fn(*mut ()) -> Claimed,
    beside: unsafe fn(*mut ()) -> Option<NonNull<Beside>>,
    started: unsafe fn(*mut ()) -> Cleanup,
    report: unsafe fn(*mut (), Result<(), &OpError>) -> Cleanup,
    /// [`Job::ENDS_EARLY`].
    ends_early: bool,
}

/// Returns the flags of operations with such a job.
pub(super) const fn flags_of<W: Job>() -> u16 {
    if W::REPORTS { flag::REPORTS } else { 0 }
}

// SAFETY: the stored job is `Send`.
unsafe impl Send for InlineJob {}

impl InlineJob {
    /// Initialises a body in place.
    ///
    /// # Safety
    /// 1. `body` may be written.
    #[inline(always)]
    pub(super) unsafe fn init<W: Job>(body: *mut Self, work: W) {
        // SAFETY: (1): the pointer is to a field of the body.
        let vtable = unsafe { &raw mut (*body).vtable };
        // SAFETY: (1): the pointer is to a field of the body.
        let storage = unsafe { &raw mut (*body).storage };
        // SAFETY: (1): the field may be written.
        unsafe { vtable.write(const { &VTable::of::<W>() }) };
        if const { fits::<W>() } {
            // SAFETY: (1): `storage` is large enough for a `W` and aligned for it.
            unsafe { storage.cast::<W>().write(work) };
        } else {
            // SAFETY: (1): a box is one word.
            unsafe { storage.cast::<Box<W>>().write(Box::new(work)) };
        }
    }
}

/// Returns the address of the job in `storage`.
///
/// # Safety
/// 1. `init` has stored a `W` there.
#[inline(always)]
unsafe fn job_at<W>(storage: *mut ()) -> *mut W {
    if const { fits::<W>() } {
        storage.cast()
    } else {
        // SAFETY: (1): `init` has stored a box, and a box is a pointer.
        unsafe { *storage.cast::<*mut W>() }
    }
}

impl VTable {
    const fn of<W: Job>() -> Self {
        Self {
            start: __rust_begin_short_backtrace::<W>,
            // SAFETY: (1): the table is that of the stored job.
            discard: |storage| unsafe { &mut *job_at::<W>(storage) }.discard(),
            drop: match (fits::<W>(), needs_drop::<W>()) {
                (true, false) => None,
                // SAFETY: the table is that of the stored job.
                (true, true) => Some(|storage| unsafe { storage.cast::<W>().drop_in_place() }),
                // SAFETY: the table is that of the stored job, which `init` has boxed.
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
/// 1. `init` has stored a `W` at `storage`, and the conditions of [`Job::start`] hold.
unsafe fn __rust_begin_short_backtrace<W: Job>(storage: *mut (), cx: &Call<'_>) -> Result<(), Cause> {
    // SAFETY: (1).
    let result = unsafe { W::start(job_at::<W>(storage), cx) };
    // Keeps the frame of this function on the stack during the call.
    hint::black_box(());
    result
}

/// A job of any type, with the operation's limits, if it has any. If the push is refused, the operation leaves its group
/// before what its function captures is dropped.
pub(crate) struct ErasedJob {
    limits: Option<Box<Limits>>,
    body: Unpushed,
    reports: bool,
}

/// A job that is not in a record yet.
struct Unpushed(InlineJob);

impl Drop for Unpushed {
    fn drop(&mut self) {
        // SAFETY: (1): the job is borrowed exclusively.
        unsafe { Body::new(&raw mut self.0) }.drop_job();
    }
}

impl ErasedJob {
    pub(crate) fn new<W: Job>(work: W) -> Self {
        let mut job = MaybeUninit::uninit();
        // SAFETY: (1): the memory is on this stack.
        unsafe { InlineJob::init(job.as_mut_ptr(), work) };
        // SAFETY: `init` has initialised the table, and the storage is `MaybeUninit`.
        Self { limits: None, body: Unpushed(unsafe { job.assume_init() }), reports: W::REPORTS }
    }

    /// Limits the operation.
    pub(crate) fn limit(&mut self, limits: Box<Limits>) {
        self.limits = Some(limits);
    }

    /// Returns the state beside the result, if the operation has a handle.
    pub(super) fn beside(&mut self) -> Option<NonNull<Beside>> {
        // SAFETY: (1): the job is borrowed exclusively.
        unsafe { Body::new(&raw mut self.body.0) }.beside()
    }

    /// Returns the job, the limits, and the flags of an operation with both.
    pub(super) fn into_parts(self) -> (InlineJob, Option<Box<Limits>>, u16) {
        let Self { limits, body, reports } = self;
        let flags = if limits.is_some() { flag::LIMITED | flag::REPORTS } else { 0 };
        let body = ManuallyDrop::new(body);
        // SAFETY: `body` is neither used again nor dropped.
        let job = unsafe { ptr::read(&raw const body.0) };
        (job, limits, if reports { flags | flag::REPORTS } else { flags })
    }
}

/// A job in place, for its user. The job is not borrowed as a whole, since another thread may end the operation while
/// this one starts it.
pub(super) struct Body(*mut InlineJob);

impl Body {
    /// # Safety
    /// 1. `body` is initialised, and what the caller does with the job is permitted by the head of this module.
    #[inline(always)]
    pub(super) unsafe fn new(body: *mut InlineJob) -> Self {
        Self(body)
    }

    #[inline(always)]
    fn vtable(&self) -> &'static VTable {
        // SAFETY: (1) of `new`: the field is initialised, and constant.
        unsafe { (*self.0).vtable }
    }

    #[inline(always)]
    fn storage(&self) -> *mut () {
        // SAFETY: (1) of `new`: only the address of the field is computed.
        unsafe { &raw mut (*self.0).storage }.cast()
    }

    pub(super) fn claim(&self) -> Claimed {
        // SAFETY: the storage holds the type that `vtable` was made for.
        self.vtable().reporting.as_ref().map_or(Claimed::Run, |table| unsafe { (table.claim)(self.storage()) })
    }

    pub(super) fn beside(&self) -> Option<NonNull<Beside>> {
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (self.vtable().reporting.as_ref()?.beside)(self.storage()) }
    }

    #[inline(always)]
    pub(super) fn start(&self, cx: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (self.vtable().start)(self.storage(), cx) }
    }

    pub(super) fn started(&self) -> Cleanup {
        let Some(table) = &self.vtable().reporting else { return Cleanup::default() };
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (table.started)(self.storage()) }
    }

    pub(super) fn discard(&self) {
        // SAFETY: the storage holds the type that `vtable` was made for.
        unsafe { (self.vtable().discard)(self.storage()) }
    }

    pub(super) fn report(&self, result: Result<(), &OpError>, function: FnState) -> Cleanup {
        match &self.vtable().reporting {
            Some(table) if function != FnState::MayRun || table.ends_early => {
                // SAFETY: the storage holds the type that `vtable` was made for.
                unsafe { (table.report)(self.storage(), result) }
            }
            _ => Cleanup::default(),
        }
    }

    #[inline(always)]
    pub(super) fn drop_job(&self) {
        if let Some(drop) = self.vtable().drop {
            // SAFETY: the storage holds the type that `vtable` was made for, and the body is dropped once.
            unsafe { drop(self.storage()) }
        }
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
}

impl Cleanup {
    /// Creates the `Cleanup` of a `oneshot` that has been set, with the `wakers` found in it.
    pub(super) fn new<R: Send + 'static, T>(wakers: Option<Wakers>, oneshot: Arc<Oneshot<R, T>>) -> Self {
        let unwanted = Arc::into_inner(oneshot).and_then(Oneshot::into_result);
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
