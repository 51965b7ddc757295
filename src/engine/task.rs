//! What an operation's record carries for the engine: its name, its lane and its function.

use std::{
    any::Any,
    mem::{MaybeUninit, needs_drop},
    panic::Location,
    sync::Arc,
};

use crate::{
    device::{gpus::MAX_GPUS, timeline::LANES_PER_GPU},
    engine::frame::Call,
    error::op::{Cause, OpError},
    notify::{async_state::AsyncState, oneshot::Oneshot, pending::Ticket, wakers::Wakers},
    sync::{Ordering::Relaxed, atomic::AtomicU8, cell::UnsafeCell},
    system::panics,
    tracker::Op,
    values::name::Name,
};

/// Bits of [`Task::flags`].
pub(crate) mod flag {
    /// Runs on the thread that finds it ready, at once.
    pub(crate) const INLINE: u16 = 1;
    /// Runs although a variable it names has failed.
    pub(crate) const NO_SKIP: u16 = 2;
    /// Belongs to the engine: shutdown neither refuses nor cancels it.
    pub(crate) const INTERNAL: u16 = 4;
    /// Leaves versions and failures of its variables alone.
    pub(crate) const SILENT: u16 = 8;
    /// Is done when its completion is used, not when its function returns.
    pub(crate) const ASYNC: u16 = 16;
    /// Starts on the pushing thread if it is ready then.
    pub(crate) const EAGER: u16 = 32;
    /// Has somebody to report to.
    pub(crate) const REPORTS: u16 = 64;
    /// It has a name.
    pub(crate) const NAMED: u16 = 128;
    /// Shutdown does not cancel it.
    pub(crate) const KEPT: u16 = 256;
    /// Issues work on a device's stream.
    pub(crate) const DEVICE: u16 = 512;
    /// Its function does not look at values in the host's memory, though it names them: it has the device copy them.
    pub(crate) const COPY: u16 = 1024;
    /// Closed variables let it in: it is a deletion, or the engine's wait for one.
    pub(crate) const PASSES_CLOSED: u16 = 2048;
    /// Its name owns memory.
    pub(crate) const OWNS_NAME: u16 = 4096;
    /// Has a lane of a device.
    pub(crate) const ON_DEVICE: u16 = 8192;
}

/// In [`Task::waited`]: every lane has been asked. It is more than there are lanes.
const NO_LANE_LEFT: u8 = u8::MAX;
const _: () = assert!(MAX_GPUS * LANES_PER_GPU < NO_LANE_LEFT as usize);

/// The engine's part of an operation's record. With one access it begins a cache line, which a small function shares. What
/// few operations need is not made for the others.
#[repr(C)]
pub(crate) struct Task {
    pub(crate) ticket: Ticket,
    pub(crate) lane: u8,
    /// Lanes of devices that the operation has waited for: those with a lower number. Used by whoever has the operation
    /// while it is ready.
    pub(crate) waited: AtomicU8,
    pub(crate) flags: u16,
    location: &'static Location<'static>,
    /// With [`flag::NAMED`].
    name: MaybeUninit<Name>,
    body: UnsafeCell<MaybeUninit<InlineJob>>,
    /// With [`flag::ASYNC`].
    progress: MaybeUninit<AsyncState<OpError>>,
}

#[cfg(not(any(raddle_loom, raddle_shuttle)))]
const _: () = assert!(
    size_of::<Task>() == 152 && (cfg!(raddle_unpooled) || crate::memory::pool::fits::<Op<Task>>()),
    "records are made for tasks"
);

/// Writes fields of a task, each by its own pointer.
macro_rules! set {
    ($task:ident, $($field:ident: $value:expr),* $(,)?) => {
        // SAFETY: the task may be written, by the contract of the function around this.
        $(unsafe { (&raw mut (*$task).$field).write($value) };)*
    };
}

impl Task {
    /// Makes a task where it will stay, but for what depends on its function.
    ///
    /// # Safety
    /// 1. `task` may be written, and is [filled](Self::fill) before anybody uses it.
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

    /// Makes the rest of a task. `name` is to be as its flags say: without [`flag::NAMED`] it is dropped, and without
    /// [`flag::OWNS_NAME`] beside that what memory it owns is never freed.
    ///
    /// # Safety
    /// 1. `task` was [begun](Self::begin), may be written, and nobody else knows it yet.
    #[inline]
    pub(crate) unsafe fn fill<W: Job>(task: *mut Self, name: Name, location: &'static Location<'static>, work: W) {
        set! {
            task,
            location: location,
            body: UnsafeCell::new(MaybeUninit::uninit()),
        }
        // SAFETY: (1).
        if unsafe { (*task).flags } & flag::NAMED != 0 {
            set! { task, name: MaybeUninit::new(name) }
        }
        // SAFETY: (1).
        unsafe { &(*task).body }.with_mut(|body| unsafe { InlineJob::init(body.cast(), work) });
        if W::REPORTS {
            // SAFETY: (1).
            unsafe { (*task).flags |= flag::REPORTS };
        }
    }

    /// Notes that an operation of the CPU has nothing to wait for on devices, when it is given to its lane.
    pub(crate) fn end_waiting_for_devices(&self) {
        // Relaxed: as for `waited`.
        let before = self.waited.swap(NO_LANE_LEFT, Relaxed);
        debug_assert!(before != NO_LANE_LEFT, "an operation came to a lane of the CPU for a second time");
    }

    pub(crate) fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    /// The operation's name; empty if it was given none.
    pub(crate) fn name(&self) -> &Name {
        static NONE: Name = Name::EMPTY;
        // SAFETY: with the flag, `fill` has made it.
        if self.has(flag::NAMED) { unsafe { self.name.assume_init_ref() } } else { &NONE }
    }

    /// How far the operation is, if it is asynchronous.
    pub(crate) fn async_state(&self) -> Option<&AsyncState<OpError>> {
        // SAFETY: with the flag, `begin` has made it.
        self.has(flag::ASYNC).then(|| unsafe { self.progress.assume_init_ref() })
    }

    /// That the operation has failed by `cause`.
    #[cold]
    pub(crate) fn failed_by(&self, cause: Cause) -> OpError {
        OpError::new(self.name(), self.location, cause, None)
    }

    /// That the operation has failed by a panic.
    #[cold]
    pub(crate) fn failed_by_panic(&self, payload: panics::Payload) -> OpError {
        let (message, payload) = panics::message(payload);
        OpError::new(self.name(), self.location, Cause::Panic(message), payload)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // SAFETY: `fill` has made it, and this is its only drop.
        self.body.with_mut(|body| unsafe { &mut *body.cast::<InlineJob>() }.drop_work());
        if self.has(flag::OWNS_NAME | flag::ASYNC) {
            if self.has(flag::NAMED) {
                // SAFETY: `fill` has made it, and this is its only drop.
                unsafe { self.name.assume_init_drop() };
            }
            if self.has(flag::ASYNC) {
                // SAFETY: `begin` has made it, and this is its only drop.
                unsafe { self.progress.assume_init_drop() };
            }
        }
    }
}

/// The engine's view of an operation. It comes to one by a right to it or a share of its record, which keep the task, or
/// by an access of an operation that it has.
impl Op<Task> {
    /// The task.
    #[inline]
    pub(crate) fn task(&self) -> &Task {
        // SAFETY: see above; what changes in a task is in cells.
        unsafe { &*self.task_ptr() }
    }

    /// Runs the function.
    ///
    /// # Safety
    /// 1. The operation is ready and this thread runs it.
    /// 2. This is called once.
    pub(crate) unsafe fn start(&self, cx: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: (1) makes this thread the only user of the body.
        unsafe { self.with_body(|body| body.start(cx)) }
    }

    /// Drops the function if it has not run.
    ///
    /// # Safety
    /// 1. This thread ends the operation.
    pub(crate) unsafe fn discard(&self) {
        // SAFETY: (1) makes this thread the only user of the body.
        unsafe { self.with_body(InlineJob::discard) }
    }

    /// Sets the result for whoever has the operation's handle; gives what is left to do then.
    ///
    /// # Safety
    /// 1. This thread ends the operation.
    pub(crate) unsafe fn report(&self, result: Result<(), &OpError>) -> Cleanup {
        // SAFETY: (1) makes this thread the only user of the body.
        unsafe { self.with_body(|body| body.report(result)) }
    }

    /// # Safety
    /// 1. This thread is the only user of the body.
    unsafe fn with_body<R>(&self, f: impl FnOnce(&mut InlineJob) -> R) -> R {
        // SAFETY: (1).
        self.task().body.with_mut(|body| f(unsafe { &mut *body.cast() }))
    }
}

/// What an operation leaves to the program's own code: somebody to be woken, something to be dropped. It may wait, push,
/// panic and take its time, so it comes when the operation's successors have been placed.
#[derive(Default)]
#[must_use = "somebody waits to be woken"]
pub(crate) struct Cleanup {
    wakers: Option<Wakers>,
    /// A result that nobody can ask for any more.
    unwanted: Option<Box<dyn Any + Send>>,
}

impl Cleanup {
    /// What is left when `oneshot` has been set, and `wakers` were found there.
    pub(super) fn new<R: Send + 'static>(wakers: Option<Wakers>, oneshot: Arc<Oneshot<R>>) -> Self {
        let unwanted = Arc::into_inner(oneshot).and_then(Oneshot::into_result);
        // What needs no drop is no code of the program's.
        let unwanted = unwanted.filter(|result| result.is_err() || needs_drop::<R>());
        Self { wakers, unwanted: unwanted.map(|result| Box::new(result) as _) }
    }

    /// What is left of a failure that was ended.
    pub(crate) fn of_failure(failure: Option<OpError>) -> Self {
        Self { wakers: None, unwanted: failure.map(|failure| Box::new(failure) as _) }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.wakers.is_none() && self.unwanted.is_none()
    }

    /// Wakes who waits, and drops what nobody wants.
    pub(crate) fn run(self) {
        if let Some(wakers) = self.wakers {
            wakers.wake();
        }
        drop(self.unwanted);
    }
}

// SAFETY: the body is used by one thread at a time, the one that runs or ends the operation.
unsafe impl Sync for Task {}

/// What an operation does, and whom it tells.
pub(crate) trait Job: Send + 'static {
    /// Whether `report` does anything.
    const REPORTS: bool = false;
    /// Runs the function, once.
    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause>;
    /// Drops the function if it has not run. Called after the variables were passed on.
    fn discard(&mut self);
    /// Tells whoever asked. Called after the variables were passed on. No code of the program's runs here: it is left to the
    /// caller.
    fn report(&mut self, _result: Result<(), &OpError>) -> Cleanup {
        Cleanup::default()
    }
}

/// Words of a record for what an operation does; larger ones are boxed.
const WORDS: usize = 12;

/// Whether a record holds a `W` without a separate allocation.
const fn fits<W>() -> bool {
    size_of::<W>() <= size_of::<[u64; WORDS]>() && align_of::<W>() <= align_of::<u64>()
}

/// A [`Job`] of any type, inline if it fits.
#[repr(C)]
pub(crate) struct InlineJob {
    calls: &'static VTable,
    storage: [MaybeUninit<u64>; WORDS],
}

struct VTable {
    start: unsafe fn(*mut (), &Call<'_>) -> Result<(), Cause>,
    discard: unsafe fn(*mut ()),
    report: unsafe fn(*mut (), Result<(), &OpError>) -> Cleanup,
    /// `None` if there is nothing to drop.
    drop: Option<unsafe fn(*mut ())>,
}

// SAFETY: the stored value is `Send`.
unsafe impl Send for InlineJob {}

impl InlineJob {
    /// Makes a body where it will stay.
    ///
    /// # Safety
    /// 1. `body` may be written.
    #[inline]
    unsafe fn init<W: Job>(body: *mut Self, work: W) {
        if fits::<W>() {
            // SAFETY: (1); just checked.
            unsafe { Self::init_inline(body, work) }
        } else {
            // SAFETY: (1); a box is one word.
            unsafe { Self::init_inline(body, Box::new(work)) }
        }
    }

    /// # Safety
    /// 1. `body` may be written.
    /// 2. A `W` [`fits`].
    #[inline]
    unsafe fn init_inline<W: Job>(body: *mut Self, work: W) {
        // SAFETY: (1).
        let calls = unsafe { &raw mut (*body).calls };
        // SAFETY: (1).
        let storage = unsafe { &raw mut (*body).storage };
        // SAFETY: (1).
        unsafe { calls.write(const { VTable::of::<W>() }) };
        // SAFETY: (1), and (2): `storage` is large enough for a `W` and aligned for it.
        unsafe { storage.cast::<W>().write(work) };
    }
}

impl VTable {
    const fn of<W: Job>() -> &'static Self {
        const {
            &Self {
                // SAFETY: in all four, the pointer is to the `W` that was stored here.
                start: |work, cx| unsafe { &mut *work.cast::<W>() }.start(cx),
                // SAFETY: as above.
                discard: |work| unsafe { &mut *work.cast::<W>() }.discard(),
                // SAFETY: as above.
                report: |work, result| unsafe { &mut *work.cast::<W>() }.report(result),
                // SAFETY: as above.
                drop: if needs_drop::<W>() {
                    // SAFETY: as above.
                    Some(|work| unsafe { work.cast::<W>().drop_in_place() })
                } else {
                    None
                },
            }
        }
    }
}

impl InlineJob {
    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        // SAFETY: the storage holds what `calls` is for, in this and the next functions.
        unsafe { (self.calls.start)(self.storage.as_mut_ptr().cast(), cx) }
    }

    fn discard(&mut self) {
        // SAFETY: as above.
        unsafe { (self.calls.discard)(self.storage.as_mut_ptr().cast()) }
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        // SAFETY: as above.
        unsafe { (self.calls.report)(self.storage.as_mut_ptr().cast(), result) }
    }
}

impl InlineJob {
    fn drop_work(&mut self) {
        if let Some(drop) = self.calls.drop {
            // SAFETY: as above; the body is dropped once.
            unsafe { drop(self.storage.as_mut_ptr().cast()) }
        }
    }
}

impl<W: Job> Job for Box<W> {
    const REPORTS: bool = W::REPORTS;

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        W::start(self, cx)
    }
    fn discard(&mut self) {
        W::discard(self);
    }
    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        W::report(self, result)
    }
}

/// A function that nobody has a handle of.
pub(crate) struct FnJob<F>(Option<F>);

impl<F> FnJob<F> {
    pub(crate) fn new(f: F) -> Self {
        Self(Some(f))
    }
}

impl<F> Job for FnJob<F>
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

/// A function whose result somebody has a handle of.
pub(crate) struct ResultJob<F, R> {
    f: Option<F>,
    value: Option<R>,
    /// Given up by `report`, so that a value nobody wants is dropped there.
    oneshot: Option<Arc<Oneshot<R>>>,
}

impl<F, R> ResultJob<F, R> {
    pub(crate) fn new(f: F, oneshot: Arc<Oneshot<R>>) -> Self {
        Self { f: Some(f), value: None, oneshot: Some(oneshot) }
    }
}

impl<F, R> Job for ResultJob<F, R>
where
    F: FnOnce(&Call<'_>) -> Result<R, Cause> + Send + 'static,
    R: Send + 'static,
{
    const REPORTS: bool = true;

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        if let Some(oneshot) = &self.oneshot {
            cx.set_outcome(Arc::as_ptr(oneshot).cast());
        }
        if let Some(f) = self.f.take() {
            self.value = Some(f(cx)?);
        }
        Ok(())
    }

    fn discard(&mut self) {
        self.f = None;
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        let value = self.value.take();
        let Some(oneshot) = self.oneshot.take() else { return Cleanup::default() };
        let (wakers, value) = match (result, value) {
            (Ok(()), Some(value)) => (oneshot.set(Ok(value)), None),
            (Ok(()), None) => (None, None),
            // What the function has returned may be there although a device has failed since.
            (Err(error), value) => (oneshot.set(Err(error.clone())), value),
        };
        let mut cleanup = Cleanup::new(wakers, oneshot);
        if needs_drop::<R>() && value.is_some() {
            cleanup.unwanted = Some(Box::new((value, cleanup.unwanted.take())));
        }
        cleanup
    }
}
