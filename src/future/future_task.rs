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
//! 4. *Stopped* instead: the operation was cancelled through its handle, with its group, by its deadline, or by a
//!    shutdown. The next poll drops the future, and the operation fails. A future that a poll has left pending
//!    [listens](Listening) to these, and is woken for that poll.
//! 5. *Lost* instead: the last waker was dropped between two polls, so nothing can wake the future. The future is
//!    dropped, on a worker if the engine has any, and the operation fails.
//!
//! [`PollState`] decides which thread polls. On a naive engine, the thread that wakes the future polls it.
//!
//! Polling and dropping the future are calls into program code, each in a frame of the operation.
//!
//! # Places
//!
//! Under a bound on running operations, the operation has a place during the first poll. It gives the place back if
//! that poll leaves the future pending, and otherwise when the future has ended. Each later poll has a place of its
//! own, for which the internal operation waits ([`admission`](crate::engine::admission)). A future that was asked to
//! stop or is lost needs none, since it is only dropped.
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
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use crate::{
    engine::{core::Core, run},
    error::op::{Cause, OpError},
    future::held::Share,
    notify::{
        poll_state::PollState,
        stop_signal::{Listening, Signals, StopListener},
    },
    op::{
        frame::{self, Call, Frame, Holds},
        job::{Out, without_sink},
        limits::Limits,
        spec::{POLL, Spec},
        task::{ErasedJob, flag},
        units::Units,
    },
    scheduler::band_of,
    sync::cell::UnsafeCell,
    system::panics,
    values::kind::EngineKind,
};

/// An operation's future, and where its value goes.
trait Polled: Send {
    /// Polls the future, in a frame of the operation, which has not ended.
    fn poll(self: Pin<&mut Self>, frame: &Frame, cx: &mut Context<'_>) -> Poll<Result<(), Cause>>;
    /// Drops the future, in a frame of the operation.
    fn clear(self: Pin<&mut Self>);
}

struct RunningFuture<F, R> {
    /// The pinned future, or `None` once it has been dropped.
    future: Option<F>,
    /// Where the value goes, if the operation has a handle.
    out: Option<Out<R>>,
}

impl<F, R> RunningFuture<F, R> {
    fn fields(self: Pin<&mut Self>) -> (Pin<&mut Option<F>>, &mut Option<Out<R>>) {
        // SAFETY: nothing is moved out of the future, which is returned pinned, and `RunningFuture` has no `Drop`.
        let this = unsafe { self.get_unchecked_mut() };
        // SAFETY: the field is used only here, and `self` was pinned.
        (unsafe { Pin::new_unchecked(&mut this.future) }, &mut this.out)
    }
}

impl<F, R> Polled for RunningFuture<F, R>
where
    F: Future<Output = Result<R, Cause>> + Send,
    R: Send + 'static,
{
    fn poll(self: Pin<&mut Self>, frame: &Frame, cx: &mut Context<'_>) -> Poll<Result<(), Cause>> {
        let (future, out) = self.fields();
        let Some(future) = future.as_pin_mut() else { unreachable!("a future is not polled again") };
        let polled = frame.stopped_by().map_or_else(|| future.poll(cx), |cause| Poll::Ready(Err(cause)));
        polled.map_ok(|value| {
            if let Some(out) = out {
                // SAFETY: (1): the future's share keeps the operation from ending.
                unsafe { out.set(value) };
            }
        })
    }

    fn clear(self: Pin<&mut Self>) {
        self.fields().0.set(None);
    }
}

/// A future that has not ended, with its share of the right to end the operation.
struct StartedFuture {
    future: Pin<Box<dyn Polled>>,
    share: Share,
    /// Set by the first poll that leaves the future pending.
    listening: Option<Listening>,
}

impl StartedFuture {
    /// Calls `f`, which runs program code, as part of the operation.
    fn enter<R>(
        &mut self,
        core: &Arc<Core>,
        f: impl FnOnce(Pin<&mut dyn Polled>, &Frame) -> R,
    ) -> Result<R, panics::Payload> {
        let Self { future, share, .. } = self;
        let run = |frame: &Frame| {
            let f = || f(future.as_mut(), frame);
            let f = || match share.beside() {
                Some(beside) => frame.claimed_by(beside, f),
                None => f(),
            };
            let Some(limits) = share.limits() else { return f() };
            frame.in_group(limits.group(), limits.kin(), || match limits.parent_of() {
                Some(family) => frame.in_family(family, f),
                None => f(),
            })
        };
        panics::catch(|| frame::enter(core, share.op(), Holds::Variables, run))
    }

    /// Drops the future and its share of the right to end the operation. The future has ended with `result`.
    fn end(mut self, core: &Arc<Core>, result: Result<(), OpError>) {
        let cleared = self.enter(core, |future, _| future.clear());
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
            run::run_program_code(core, self.share.op(), None, || drop(second));
        }
        // Guards may outlive the future.
        core.leave_bounds(self.share.op());
        self.share.end(result);
    }
}

/// An operation's future, shared by wakers.
struct FutureTask {
    state: PollState,
    core: Arc<Core>,
    priority: i32,
    lane: u8,
    /// The flags of the operations that poll the future.
    flags: u16,
    /// The units that each poll but the first needs, if the operation has bounds.
    units: Option<Box<Units>>,
    /// The future, or `None` once it has ended.
    started: UnsafeCell<Option<StartedFuture>>,
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
            let listens = started.listening.is_some();
            let polled = started.enter(&self.core, |future, frame| {
                let polled = future.poll(frame, &mut Context::from_waker(&waker));
                let must_listen = polled.is_pending() && !listens && !self.core.is_forked();
                (polled, must_listen.then(|| frame.stop_signals()))
            });
            Some(match polled {
                Ok((polled, signals)) => {
                    signals.into_iter().for_each(|signals| self.listen(started, signals));
                    polled.map_err(|cause| started.share.op().task().failed_by(cause))
                }
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
            Some(Poll::Pending) => {
                self.started.with(|started| {
                    // SAFETY: this thread polls, so it is the only user of the field.
                    let started = unsafe { &*started };
                    started.iter().for_each(|started| self.core.leave_bounds(started.share.op()));
                });
                if !self.state.pause() {
                    return false;
                }
                if self.core.kind() == EngineKind::Naive && self.units.is_none() {
                    // Polls are not nested, since a future may wake itself often.
                    self.state.begin();
                    return true;
                }
                self.queue();
                false
            }
            None => false,
        }
    }

    /// Lets the signals wake the future. Called by the thread that polls.
    fn listen(self: &Arc<Self>, started: &mut StartedFuture, signals: Signals) {
        // A future to which only the signals refer is lost.
        started.listening = Listening::begin(signals, self);
        if started.listening.is_none() {
            self.need_no_place();
            let must_queue = self.state.wake();
            debug_assert!(!must_queue, "this thread polls");
        }
    }

    /// Lets the polls wait for no place from now on.
    fn need_no_place(self: &Arc<Self>) {
        self.units.iter().for_each(|units| self.core.withdraw(band_of(self.priority), units));
    }

    /// Pushes an operation that polls the future.
    fn queue(self: &Arc<Self>) {
        let task = Arc::clone(self);
        let poll = move |_: &Call<'_>| {
            task.state.begin();
            task.run();
            Ok(())
        };
        let spec = Spec { lane: self.lane, ..Spec::internal(POLL, self.priority, self.flags) };
        let mut job = ErasedJob::new(without_sink(poll));
        self.units.iter().for_each(|units| job.limits_mut().set_units(units.of_polls()));
        let pushed = self.core.push(&spec, Location::caller(), &mut [], job);
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

impl StopListener for FutureTask {
    fn stop(self: Arc<Self>) {
        if !self.core.is_forked() {
            self.need_no_place();
        }
        self.wake_by_ref();
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
/// end the operation. The first poll takes place here; later polls are pushed with `priority`. If the operation has a
/// handle, the future's value goes to `out`.
pub(crate) fn start<F, R>(
    call: &Call<'_>,
    priority: i32,
    out: Option<Out<R>>,
    make: impl FnOnce(&Share) -> F,
) -> Result<(), Cause>
where
    F: Future<Output = Result<R, Cause>> + Send + 'static,
    R: Send + 'static,
{
    let Some(right) = call.take_right() else { return Ok(()) };
    let core = call.core();
    let limits = right.task().limits();
    limits.and_then(Limits::parent_of).iter().for_each(|family| family.begin_future());
    let units = limits.and_then(Limits::units).and_then(Units::of_polls);
    let share = Share::new(right, core);
    let future = Box::pin(RunningFuture { future: Some(make(&share)), out });
    let task = FutureTask {
        state: PollState::running(),
        core: Arc::clone(core),
        priority,
        lane: call.op().task().lane,
        flags: flag::NO_SKIP | flag::SILENT | call.op().task().flags & flag::KEPT,
        units,
        started: UnsafeCell::new(Some(StartedFuture { future, share, listening: None })),
    };
    Arc::new(task).run();
    Ok(())
}
