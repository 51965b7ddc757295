//! Operations that are futures: which thread polls them, and how they end.
//!
//! # States
//!
//! 1. *Started*: the operation's job has created a [`FutureTask`] and polls it on the thread running the job.
//! 2. *Between two polls*: only wakers refer to the task. The first wake pushes an internal operation, which has no
//!    variables and polls the future. So the operation's own record enters its lane only once, and a poll does not have
//!    to wait in the variables' queues.
//! 3. *Ended*: the future has returned a result or panicked, and has been dropped. The operation ends once its guards
//!    have been dropped as well.
//! 4. *Stopped* instead: the operation was cancelled through its handle or with its group. The next poll drops the
//!    future, and the operation fails. Cancelling through the handle wakes the future for that poll; cancelling the
//!    group does not.
//! 5. *Lost* instead: the last waker was dropped between two polls, so nothing can wake the future. The future is
//!    dropped, on a worker if the engine has any, and the operation fails.
//!
//! [`PollState`] decides which thread polls. On a naive engine, the thread that wakes the future polls it.
//!
//! Polling and dropping the future are calls into program code, each in a frame of the operation.
//!
//! # Who may touch what
//!
//! * `started`: the thread that polls ([`PollState`]), or the owner of the last waker.
//! * The other fields are constant.
//! * In a forked child, no thread may touch anything, since the operation belongs to the parent process.
//!
//! This module has no edges of its own: see [`PollState`].

use std::{
    future::Future,
    panic::Location,
    pin::Pin,
    ptr::NonNull,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use crate::{
    engine::{
        cancellable::{Cancellable, Handled, Place},
        core::Core,
        frame::{self, Call, Frame, Holds},
        held::Share,
        result_job::Shared,
        right::{Deliver, Delivered},
        spec::Spec,
        task::{Claimed, Cleanup, ErasedJob, FnJob, Job, Task, Work, flag},
    },
    error::op::{Cause, OpError},
    notify::{oneshot::Oneshot, poll_state::PollState},
    sync::cell::UnsafeCell,
    system::panics,
    values::kind::EngineKind,
};

/// The name of the internal operations that poll futures.
pub(super) const POLL: &str = "poll";

/// An operation's future, and the recipient of its value.
trait Polled: Send {
    /// Polls the future, in a frame of the operation.
    fn poll(self: Pin<&mut Self>, frame: &Frame, cx: &mut Context<'_>) -> Poll<Result<(), Cause>>;
    /// Drops the future, in a frame of the operation.
    fn clear(self: Pin<&mut Self>, frame: &Frame);
    /// Takes the [`Deliver`] that passes the result to the operation's handle, if there is one.
    fn deliver(self: Pin<&mut Self>) -> Option<Box<dyn Deliver>>;
}

struct Running<F, R> {
    /// The pinned future, or `None` once it has been dropped.
    future: Option<F>,
    delivery: Option<Delivery<R>>,
}

impl<F, R> Running<F, R> {
    fn fields(self: Pin<&mut Self>) -> (Pin<&mut Option<F>>, &mut Option<Delivery<R>>) {
        // SAFETY: nothing is moved out of the future, which is returned pinned, and `Running` has no `Drop`.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: the field is used only here, and `self` was pinned.
        (unsafe { Pin::new_unchecked(&mut this.future) }, &mut this.delivery)
    }
}

/// Calls `f`, program code of an operation. If the operation has a handle, `delivery` is `Some`, and the frame refers
/// to the operation's claim during the call.
fn claimed<R, T>(delivery: Option<&Delivery<R>>, frame: &Frame, f: impl FnOnce() -> T) -> T {
    match delivery {
        Some(delivery) => frame.claimed_by(delivery.handle.beside().claim(), f),
        None => f(),
    }
}

impl<F, R> Polled for Running<F, R>
where
    F: Future<Output = Result<R, Cause>> + Send,
    R: Send + 'static,
{
    fn poll(self: Pin<&mut Self>, frame: &Frame, cx: &mut Context<'_>) -> Poll<Result<(), Cause>> {
        let (future, delivery) = self.fields();
        let Some(future) = future.as_pin_mut() else { unreachable!("a future is not polled again") };
        let poll = || if frame.is_stopping() { Poll::Ready(Err(Cause::Cancelled)) } else { future.poll(cx) };
        claimed(delivery.as_ref(), frame, poll).map_ok(|value| {
            if let Some(delivery) = delivery {
                delivery.value = Some(value);
            }
        })
    }

    fn clear(self: Pin<&mut Self>, frame: &Frame) {
        let (mut future, delivery) = self.fields();
        claimed(delivery.as_ref(), frame, || future.set(None));
    }

    fn deliver(self: Pin<&mut Self>) -> Option<Box<dyn Deliver>> {
        self.fields().1.take().map(|delivery| Box::new(delivery) as _)
    }
}

/// A future's value, and its operation's handle.
struct Delivery<R> {
    handle: Arc<Handled<R>>,
    value: Option<R>,
}

impl<R: Send + 'static> Deliver for Delivery<R> {
    fn deliver(self: Box<Self>, result: Result<(), OpError>) -> Delivered {
        let Self { handle, value } = *self;
        let (result, unwanted) = match (result, value) {
            (Ok(()), Some(value)) => (Ok(value), None),
            (Ok(()), None) => (Err(handle.beside().failure()), None),
            // A value exists if dropping the future panicked, or if a panic dropped a guard that the future had given
            // away.
            (Err(failure), value) => (Err(failure), value),
        };
        let wakers = handle.set(result);
        // The `handle` is returned as well: if the program has dropped the operation's handle, this is the last
        // reference, and dropping it drops the result.
        Delivered { wakers, unwanted: Box::new((unwanted, handle)) }
    }
}

/// A future that has not ended, with its share of the right to end the operation.
struct Started {
    future: Pin<Box<dyn Polled>>,
    share: Share,
}

impl Started {
    /// Calls `f`, which runs program code, as part of the operation.
    fn enter<R>(
        &mut self,
        core: &Arc<Core>,
        f: impl FnOnce(Pin<&mut dyn Polled>, &Frame) -> R,
    ) -> Result<R, panics::Payload> {
        let Self { future, share } = self;
        let run = |frame: &Frame| {
            let f = || f(future.as_mut(), frame);
            frame.in_group(share.group(), share.family(), || match share.parent_of() {
                Some(family) => frame.in_family(family, f),
                None => f(),
            })
        };
        panics::catch(|| frame::enter(core, share.op(), Holds::Variables, run))
    }

    /// Drops the future and its share of the right to end the operation. The future has ended with `result`.
    fn end(mut self, core: &Arc<Core>, result: Result<(), OpError>) {
        let cleared = self.enter(core, |future, frame| future.clear(frame));
        if core.is_forked() {
            return std::mem::forget((self, result));
        }
        let panicked = cleared.err().map(|payload| self.share.op().task().failed_by_panic(payload));
        let (result, second) = match (result, panicked) {
            (Ok(()), Some(failure)) => (Err(failure), None),
            (result, second) => (result, second),
        };
        if let Some(second) = second {
            // The operation's second failure is recorded, since it would otherwise be lost.
            core.record_failure(&second);
            core.run_program_code(self.share.op(), None, || drop(second));
        }
        let Self { mut future, share } = self;
        share.end(result, future.as_mut().deliver());
    }
}

/// An operation's future, shared by wakers.
struct FutureTask {
    state: PollState,
    core: Arc<Core>,
    priority: i32,
    lane: u8,
    /// The future, or `None` once it has ended.
    started: UnsafeCell<Option<Started>>,
}

// SAFETY: `started` is `Send`, and is used by one thread at a time: the polling thread, or the owner of the last waker.
unsafe impl Sync for FutureTask {}
// SAFETY: as for `Sync`.
unsafe impl Send for FutureTask {}

impl FutureTask {
    /// Polls the future until it has ended or must be woken to continue. Called only by the thread that polls
    /// ([`PollState`]).
    fn run(self: &Arc<Self>) {
        // SAFETY: this thread polls, so it is the only user of the field.
        while self.started.with_mut(|started| unsafe { &mut *started }.is_some()) {
            if !self.poll_once() {
                return;
            }
        }
    }

    /// Polls the future once. Returns whether this thread must poll again.
    fn poll_once(self: &Arc<Self>) -> bool {
        let waker = Waker::from(Arc::clone(self));
        let polled = self.started.with_mut(|started| {
            // SAFETY: the caller polls, so it is the only user of the field.
            let Some(started) = (unsafe { &mut *started }) else { return None };
            let polled =
                started.enter(&self.core, |future, frame| future.poll(frame, &mut Context::from_waker(&waker)));
            Some(match polled {
                Ok(polled) => polled.map_err(|cause| started.share.op().task().failed_by(cause)),
                Err(payload) => Poll::Ready(Err(started.share.op().task().failed_by_panic(payload))),
            })
        });
        if self.core.is_forked() {
            std::mem::forget((waker, polled));
            return false;
        }
        match polled {
            Some(Poll::Ready(result)) => {
                // SAFETY: this thread polls, so it is the only user of the field.
                let started = self.started.with_mut(|started| unsafe { &mut *started }.take());
                self.state.finish();
                started.into_iter().for_each(|started| started.end(&self.core, result.clone()));
                false
            }
            Some(Poll::Pending) if self.state.pause() => {
                if self.core.kind() == EngineKind::Naive {
                    // Polls are not nested, since a future may wake itself often.
                    self.state.begin();
                    return true;
                }
                self.queue();
                false
            }
            Some(Poll::Pending) | None => false,
        }
    }

    /// Pushes an operation that polls the future.
    fn queue(self: &Arc<Self>) {
        let task = Arc::clone(self);
        let poll = move |_: &Call<'_>| {
            task.state.begin();
            task.run();
            Ok(())
        };
        let spec = Spec { lane: self.lane, ..Spec::internal(POLL, self.priority, flag::NO_SKIP | flag::SILENT) };
        let pushed = self.core.push(&spec, Location::caller(), &mut [], ErasedJob::new(FnJob::new(poll)));
        debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
    }
}

impl Wake for FutureTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.core.is_forked() && self.state.wake() {
            self.queue();
        }
    }
}

impl Drop for FutureTask {
    fn drop(&mut self) {
        if self.core.is_forked() {
            // SAFETY: this is the last reference to the task.
            std::mem::forget(self.started.with_mut(|started| unsafe { &mut *started }.take()));
            return;
        }
        self.state.look();
        // SAFETY: this is the last reference to the task.
        let Some(started) = self.started.with_mut(|started| unsafe { &mut *started }.take()) else { return };
        // The thread dropping the last waker may hold a lock that is also taken when the future is dropped.
        self.core.hand_over(move |core| {
            let lost = started.share.op().task().failed_by(Cause::LostFuture);
            started.end(core, Err(lost));
        });
    }
}

/// Starts the asynchronous operation of `call`. `make` creates its future, with guards that hold shares of the right to
/// end the operation. The first poll takes place here; later polls are pushed with `priority`. The future's value is
/// delivered to `handle`.
pub(crate) fn start<F, R>(
    call: &Call<'_>,
    priority: i32,
    handle: Option<Arc<Handled<R>>>,
    make: impl FnOnce(&Share) -> F,
) -> Result<(), Cause>
where
    F: Future<Output = Result<R, Cause>> + Send + 'static,
    R: Send + 'static,
{
    let Some(right) = call.take_right() else { return Ok(()) };
    let core = call.core();
    right.parent_of().iter().for_each(|family| family.begin_future());
    let share = Share::new(right, core);
    let delivery = handle.clone().map(|handle| Delivery { handle, value: None });
    let future = Box::pin(Running { future: Some(make(&share)), delivery });
    let task = FutureTask {
        state: PollState::running(),
        core: Arc::clone(core),
        priority,
        lane: call.op().task().lane,
        started: UnsafeCell::new(Some(Started { future, share })),
    };
    let task = Arc::new(task);
    if let Some(handle) = handle {
        // The reference is weak, so a future to which only its handle refers is lost.
        let to_stop = Arc::downgrade(&task);
        handle.beside().when_stopping(move || to_stop.upgrade().iter().for_each(Wake::wake_by_ref));
    }
    task.run();
    Ok(())
}

/// The job of an operation that is a future and has a handle. The delivery of the future's value reports the result to
/// the handle. If the operation never starts, this job reports the failure instead.
pub(crate) struct FutureJob<F, R>(Shared<F, R>);

impl<F, R> FutureJob<F, R> {
    pub(crate) fn new(oneshot: Arc<Oneshot<R, Cancellable<Option<F>>>>) -> Self {
        Self(Shared(Some(oneshot)))
    }
}

impl<F, R> Job for FutureJob<F, R>
where
    F: FnOnce(&Call<'_>, Arc<Handled<R>>) -> Result<(), Cause> + Send + 'static,
    R: Send + 'static,
{
    const REPORTS: bool = true;
    const CLAIMS: bool = true;
}

impl<F, R> Work for FutureJob<F, R>
where
    F: FnOnce(&Call<'_>, Arc<Handled<R>>) -> Result<(), Cause> + Send + 'static,
    R: Send + 'static,
{
    fn claim(&mut self, _: &Task) -> Claimed {
        self.0.claim()
    }

    fn place_of_handle(&mut self) -> Option<NonNull<Place>> {
        self.0.place()
    }

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        let Some(f) = self.0.take_function() else { return Ok(()) };
        match self.0.0.take() {
            Some(oneshot) => f(cx, oneshot),
            None => Ok(()),
        }
    }

    fn discard(&mut self) {
        drop(self.0.take_function());
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        let failure = result.map_or_else(Clone::clone, |()| self.0.failure());
        self.0.set(Err(failure))
    }
}
