//! Waits: for one variable, for a result, for a group, and for all operations.
//!
//! A wait for a variable is itself an operation, which sets a [`Oneshot`] when its turn comes. A wait
//! for all operations, or for a group, closes the current generation of the [pending count](crate::notify::pending).

use std::{
    future::Future,
    panic::Location,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use crate::{
    context::{ready_loop, running, worker_thread},
    engine::core::Core,
    error::{
        deadlock::{Awaited, Deadlock},
        op::{Cause, OpError},
        wait::WaitError,
    },
    notify::{
        oneshot::Oneshot,
        pending::{PendingOps, PendingWait, WaitEnd},
        waiters::{Awaits, BlockingWait, Goal, IsOver, ListedWaiter, WaiterKind, waiters},
    },
    op::{
        cancellable::{Cancellable, Handled},
        frame::{self, Call},
        group_core::GroupCore,
        job::{FnJob, Sink},
        no_wait::{self, NoWait},
        spec::{Entry, RefKind, Spec},
        task::{ErasedJob, Remainder, flag},
        variable::{VarCell, VarRef},
        waits::{Begun, WaitFor},
    },
    system::panics,
    values::Name,
    wait::{
        cycles::{self, Target, is_done},
        in_place,
        regain::{self, regain_worker},
    },
};

/// The name of the operation that waits for a variable.
pub(crate) const WAIT: &str = "wait";

/// Waits for the pending operations on `var` that `kind` covers.
pub(crate) fn for_var(
    core: &Arc<Core>,
    var: VarRef<'_>,
    kind: WaitFor,
    deadline: Option<Instant>,
    location: &'static Location<'static>,
) -> Result<(), WaitError> {
    match begin(core, var, kind, location)? {
        Some(Begun { oneshot, task }) => {
            let target = Target { task, kept_out_by: None, describe: &|| var.cell().awaited() };
            wait_by(core, &oneshot, Some(target), deadline, Oneshot::wait_shared)
        }
        None => Ok(()),
    }
}

/// Joins the last wait for a variable or pushes a new one. Returns `None` if there is nothing to wait for and the
/// variable has not failed.
pub(crate) fn begin(
    core: &Arc<Core>,
    var: VarRef<'_>,
    kind: WaitFor,
    location: &'static Location<'static>,
) -> Result<Option<Begun>, WaitError> {
    // Checked before the variable is examined, because a forbidden wait is an error even if no operation is
    // pending.
    check(core)?;
    let cell = var.cell();
    if cell.queue().owner() != core.tag() {
        return Err(core.not_owned(cell, &Name::from(WAIT), location).into());
    }
    if frame::holds(VarCell::queue_ptr(var.ptr())) {
        return Err(would_deadlock(cell.awaited()));
    }
    if cell.queue().is_idle(kind.mode()) && !is_faulty(core, cell, kind) {
        return Ok(None);
    }
    let on_device = lane_before_wait(core, cell, kind).is_some();
    if let Some(begun) = cell.waits().join(kind, on_device) {
        return Ok(Some(begun));
    }
    let oneshot = Oneshot::new();
    // A wait may be pushed behind a deletion, in which case it ends once the deletion is complete.
    let flags = flag::INLINE | flag::NO_SKIP | flag::SILENT;
    let spec = Spec::internal(WAIT, 0, flags).passing_closed();
    let entry = Entry { cell: var.ptr(), mode: kind.mode(), refs: RefKind::None };
    let entries = [entry];
    let look = |call: &Call<'_>, found: &mut Found| {
        for access in call.op().accesses() {
            let cell = VarCell::of(access);
            // The variable cannot be freed before this operation completes.
            cell.waits().forget(call.op());
            // SAFETY: the operation is running, so it holds the variable, and GPU writes before it are complete.
            found.failure = unsafe { cell.failure() };
        }
        Ok(())
    };
    let job = FnJob::with(Found { failure: None, oneshot: Some(Arc::clone(&oneshot)) }, look);
    let op = core.create(&spec, 0, location, &entries, ErasedJob::new(job))?;
    // Remembered before the push, since by the time the push returns, the wait may already have started and been
    // forgotten.
    cell.waits().remember(kind, op.hold(), Arc::clone(&oneshot));
    let begun = Begun::new(&op, oneshot);
    core.enqueue(op).map_err(|rejected| rejected.into_error(&spec.name, location, &entries))?;
    Ok(Some(begun))
}

/// Returns an error if the calling thread must not wait for this engine.
#[inline]
pub(crate) fn check(core: &Core) -> Result<(), WaitError> {
    core.live()?;
    check_thread()
}

/// Whether `cell` has failed, or GPUs have yet to complete operations on it that the wait covers.
fn is_faulty(core: &Core, cell: &VarCell, kind: WaitFor) -> bool {
    cell.fault().needs_wait(|| lane_before_wait(core, cell, kind).is_some())
}

/// Returns a GPU lane that has not completed the dependencies of a wait pushed now.
fn lane_before_wait(core: &Core, cell: &VarCell, kind: WaitFor) -> Option<usize> {
    core.lane_before(cell, kind.mode(), |_| true)
}

/// Returns the error of a wait that would never return.
pub(crate) fn would_deadlock(awaited: Awaited) -> WaitError {
    WaitError::WouldDeadlock(Deadlock::new(frame::running_op(), awaited))
}

/// Waits for the result of an operation with a handle, and takes the result. If called inside an operation and
/// without a time limit, first runs operations on which the wait depends, if it finds any. If the wait is not over
/// then, hands the worker over to another thread.
pub(crate) fn for_result<R, F: ?Sized>(
    core: &Arc<Core>,
    handled: &Arc<Oneshot<R, Cancellable<F>>>,
    deadline: Option<Instant>,
) -> Result<R, WaitError> {
    let beside = handled.beside();
    let describe = || Awaited::Operation(beside.pushed());
    let place = beside.place();
    let kept_out_by = Some(place.kept_out_by());
    let target = place.task().map(|task| Target { task, kept_out_by, describe: &describe });
    wait_by(core, handled, target, deadline, Oneshot::wait)
}

/// [`for_result`] for a handle. Returns an error if the calling operation would wait
/// for itself, or for a child that waits for work on this thread to end.
pub(crate) fn for_handle<R>(
    core: &Arc<Core>,
    handled: &mut Arc<Handled<R>>,
    deadline: Option<Instant>,
) -> Result<R, WaitError> {
    check(core)?;
    // An operation that is not claimed has no result. The answer may be out of date, and is then corrected below.
    let is_claimed = handled.beside().claim().is_claimed();
    if is_claimed {
        if let Some(result) = Oneshot::take_from(handled) {
            return result;
        }
        let beside = handled.beside();
        // Checked last, since the search grows with the frames.
        if frame::runs(beside.claim()) {
            return Err(would_deadlock(Awaited::Operation(beside.pushed())));
        }
    }
    check_kept_out(handled)?;
    if !is_claimed && deadline.is_none() && in_place::run_handled(core, handled) {
        // The operation may have forked the process.
        core.live()?;
        if let Some(result) = Oneshot::take_from(handled) {
            return result;
        }
    }
    for_result(core, handled, deadline)
}

/// Returns an error if the handle's operation is a child that waits for work on this thread to end.
pub(crate) fn check_kept_out<R>(handled: &Handled<R>) -> Result<(), WaitError> {
    let beside = handled.beside();
    if frame::keeps_out(beside.place()) && !handled.is_done() {
        return Err(would_deadlock(Awaited::Operation(beside.pushed())));
    }
    Ok(())
}

/// Waits for `oneshot` by calling `wait`, which blocks until the oneshot is set or the deadline given to `wait` has
/// passed. `target` is the operation that sets the oneshot, if known.
pub(crate) fn wait_by<R, T: ?Sized>(
    core: &Arc<Core>,
    oneshot: &Arc<Oneshot<R, T>>,
    target: Option<Target<'_>>,
    deadline: Option<Instant>,
    wait: impl Fn(&Oneshot<R, T>, Option<Instant>) -> Result<R, WaitError>,
) -> Result<R, WaitError> {
    check(core)?;
    if let (None, Some(target)) = (deadline, &target) {
        in_place::run_leading(core, || oneshot.is_done(), &target.goal())?;
    }
    if oneshot.is_done() {
        return wait(oneshot, deadline);
    }
    let is_over = is_done(oneshot);
    if let (None, Some(target)) = (deadline, &target) {
        check_before_others(core, target.goal(), Some(target.describe), &is_over)?;
    }
    make_way(core)?;
    let goal = target.as_ref().map(Target::goal);
    let describe = target.as_ref().map(|target| target.describe);
    sleep(core, deadline, Awaits::Operation, goal, &is_over, |waiter| {
        cycles::watching(core, waiter, describe, deadline, |until| wait(oneshot, until))
    })
}

/// Calls `wait` as [`sleep_listed`] does. The calling thread sleeps in that call until
/// `is_over` returns `true` or `deadline` passes. Then, if the thread has [handed over its
/// worker](make_way), [waits for another](regain_worker).
pub(crate) fn sleep<R>(
    core: &Core,
    deadline: Option<Instant>,
    awaits: Awaits,
    goal: Option<Goal<'_>>,
    is_over: &IsOver<'_>,
    wait: impl FnOnce(Option<&ListedWaiter<'_>>) -> R,
) -> R {
    let kind = match deadline {
        _ if awaits == Awaits::Scope => WaiterKind::Closing,
        Some(_) => WaiterKind::Timed,
        None => WaiterKind::Refusable,
    };
    if let Some(lane) = core.threads.lanes().first().filter(|_| !frame::in_program()) {
        core.spins.spin(lane.idle(), deadline, is_over);
    }
    let waits = running::stop_running();
    let sleep = || sleep_listed(core, kind, awaits, goal, Instant::now(), is_over, wait);
    let result = Core::while_units_are_still(deadline, sleep);
    drop(waits);
    regain_worker(deadline);
    result
}

/// Calls `wait`, in which the calling thread sleeps, and which receives the thread's entry among the [`waiters`] if
/// the wait could be part of a cycle. During the call, dumps show the thread as asleep since `since`.
pub(crate) fn sleep_listed<R>(
    core: &Core,
    kind: WaiterKind,
    awaits: Awaits,
    goal: Option<Goal<'_>>,
    since: Instant,
    is_over: &IsOver<'_>,
    wait: impl FnOnce(Option<&ListedWaiter<'_>>) -> R,
) -> R {
    if cfg!(any(raddle_loom, raddle_shuttle)) {
        // Models have neither dumps nor a clock.
        return wait(None);
    }
    let (engine, inside) = (cycles::engine(core), &frame::inside());
    // A push that is held back is not a wait of the program.
    let is_outside = awaits != Awaits::Room && !frame::in_program();
    waiters().during(BlockingWait { engine, inside, is_outside, kind, awaits, goal, since, is_over }, |waiter| {
        let result = wait(Some(waiter).filter(|waiter| waiter.is_watched()));
        // Noted while the thread is listed, so that the program never seems still in between.
        if is_outside {
            core.note_outside_activity();
        }
        result
    })
}

/// Runs the calling thread's deferred work, for every engine. A caller that waits or checks whether an operation is
/// complete may depend on that work.
pub(crate) fn catch_up() {
    // Work issued by a device operation's function is not complete when the function returns, so no program
    // operation may run inside the function.
    if no_wait::in_device_function() {
        return;
    }
    while let Some((core, lost)) = frame::take_lost() {
        core.resolve(lost, Err(Cause::LostCompletion));
    }
    while let Some(core) = ready_loop::engine_with_deferred() {
        core.run_deferred();
    }
}

/// [Catches up](catch_up) for a caller that does not wait afterwards: if an operation run here has handed
/// over the worker, the thread [waits for another](regain_worker).
pub(crate) fn catch_up_and_go_on() {
    let was_without = worker_thread::is_without_worker();
    catch_up();
    if !was_without {
        regain_worker(None);
    }
}

/// Returns an error if the engine has no workers, the calling thread is about to run operations that it does not
/// wait for, and the thread would wait for `goal` forever.
fn check_before_others(
    core: &Core,
    goal: Goal<'_>,
    describe: Option<&dyn Fn() -> Awaited>,
    is_over: &IsOver<'_>,
) -> Result<(), WaitError> {
    if core.has_workers() || ready_loop::engine_with_deferred().is_none() {
        return Ok(());
    }
    cycles::refuse_cycle(core, goal, describe, is_over)
}

/// Prepares the calling thread for a wait: [catches up](catch_up) and hands over its worker to another
/// thread. Returns an error if that is impossible, or if a deferred operation run here has forked the process.
pub(crate) fn make_way(core: &Core) -> Result<(), WaitError> {
    catch_up();
    core.live()?;
    worker_thread::yield_worker()?;
    core.threads.begin_wait();
    Ok(())
}

/// Waits for every operation pushed before this call. Returns a failure that was not reported.
pub(crate) fn for_all(core: &Core, deadline: Option<Instant>) -> Result<(), WaitError> {
    for_all_to_end(core, deadline)?;
    first_unreported(core)
}

/// Waits until no operation is pending, not even one that was pushed meanwhile. Returns a failure that was not
/// reported.
pub(crate) fn until_idle(core: &Core, deadline: Option<Instant>) -> Result<(), WaitError> {
    until_idle_or_failed(core, deadline)?;
    first_unreported(core)
}

/// [`until_idle`], whether or not the operations fail.
pub(crate) fn until_idle_or_failed(core: &Core, deadline: Option<Instant>) -> Result<(), WaitError> {
    loop {
        for_all_to_end(core, deadline)?;
        if core.live()?.pending() == 0 {
            return Ok(());
        }
    }
}

/// [`until_idle`] as a future.
pub(crate) fn until_idle_async(core: &Arc<Core>) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
    let first = CountedWait::new(Arc::clone(core), why_not_for_all(core), EarlierOps);
    let core = Arc::clone(core);
    async move {
        first.await?;
        while core.live()?.pending() > 0 {
            for_earlier(&core).await?;
        }
        first_unreported(&core)
    }
}

/// [`for_all`], whether or not the operations fail.
fn for_all_to_end(core: &Core, deadline: Option<Instant>) -> Result<(), WaitError> {
    why_not_for_all(core).map_or(Ok(()), Err)?;
    make_way(core)?;
    let covered = core.pending.begin();
    wait_counted(core, Awaits::All, &core.pending, &covered, deadline)
}

/// Waits until the operations that `covered` covers have been counted out.
fn wait_counted(
    core: &Core,
    awaits: Awaits,
    pending: &PendingOps,
    covered: &PendingWait,
    deadline: Option<Instant>,
) -> Result<(), WaitError> {
    let is_over = || pending.is_over(covered);
    let wait = |until| match pending.wait_for(covered, until) {
        WaitEnd::Idle | WaitEnd::Over => Ok(()),
        WaitEnd::TimedOut => Err(WaitError::TimedOut),
    };
    let goal = Goal::Counted(pending, Some(covered));
    sleep(core, deadline, awaits, Some(goal), &is_over, |waiter| cycles::watching(core, waiter, None, deadline, wait))
}

/// [`for_all`] as a future. It covers the operations pushed before this call.
pub(crate) fn for_all_async(core: &Arc<Core>) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
    CountedWait::new(Arc::clone(core), why_not_for_all(core), AllOps)
}

/// Returns the error of a wait for all operations of the engine, if the calling thread must not wait for them.
fn why_not_for_all(core: &Core) -> Option<WaitError> {
    let would_deadlock = || would_deadlock(Awaited::All);
    check(core).err().or_else(|| ready_loop::works_for(core).then(would_deadlock))
}

/// Returns a future that waits for the operations pushed before this call and reports none of their failures. It may
/// be awaited wherever the engine's own code runs.
pub(crate) fn for_earlier(core: &Arc<Core>) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
    CountedWait::new(Arc::clone(core), None, EarlierOps)
}

/// Waits for the operations of a group that were pushed before this call. Returns the failure of one of them.
pub(crate) fn for_group(core: &Arc<Core>, group: &GroupCore, deadline: Option<Instant>) -> Result<(), WaitError> {
    for_members(core, group, deadline)?;
    group.take_failure()
}

/// [`for_group`], whether or not the operations fail.
pub(crate) fn for_members(core: &Arc<Core>, group: &GroupCore, deadline: Option<Instant>) -> Result<(), WaitError> {
    check_group_wait(core, group)?;
    let covered = group.pending().begin();
    let is_over = || group.pending().is_over(&covered);
    let goal = Goal::Counted(group.pending(), Some(&covered));
    if deadline.is_none() {
        in_place::run_leading(core, is_over, &goal)?;
    }
    if !is_over() {
        if deadline.is_none() {
            check_before_others(core, goal, None, &is_over)?;
        }
        make_way(core)?;
    }
    wait_counted(core, Awaits::Group, group.pending(), &covered, deadline)
}

/// [`for_group`] as a future. It covers the operations pushed before this call.
pub(crate) fn for_group_async(
    core: &Arc<Core>,
    group: &Arc<GroupCore>,
) -> impl Future<Output = Result<(), WaitError>> + Send + use<> {
    let refused = check_group_wait(core, group).err();
    CountedWait::new(Arc::clone(core), refused, Arc::clone(group))
}

/// Returns an error if the calling thread must not wait for the group, for instance because it is running one of
/// the group's operations.
fn check_group_wait(core: &Core, group: &GroupCore) -> Result<(), WaitError> {
    check(core)?;
    frame::in_group(group).map_or(Ok(()), |member| Err(would_deadlock(Awaited::Member(member))))
}

/// Returns the earliest unreported failure as an error, and counts it as reported from then on.
fn first_unreported(core: &Core) -> Result<(), WaitError> {
    core.live()?.failures().take().map_or(Ok(()), |failure| Err(failure.into()))
}

/// Operations counted together.
trait Counted: Unpin {
    /// Returns the count of these operations.
    fn pending<'a>(&'a self, core: &'a Core) -> &'a PendingOps;
    /// Returns the result of a wait for these operations.
    fn result(&self, core: &Core) -> Result<(), WaitError>;
}

/// All operations of an engine.
struct AllOps;

impl Counted for AllOps {
    fn pending<'a>(&'a self, core: &'a Core) -> &'a PendingOps {
        &core.pending
    }

    fn result(&self, core: &Core) -> Result<(), WaitError> {
        first_unreported(core)
    }
}

/// All operations of an engine, whose failures are not asked for.
struct EarlierOps;

impl Counted for EarlierOps {
    fn pending<'a>(&'a self, core: &'a Core) -> &'a PendingOps {
        &core.pending
    }

    fn result(&self, _: &Core) -> Result<(), WaitError> {
        Ok(())
    }
}

impl Counted for Arc<GroupCore> {
    fn pending<'a>(&'a self, _: &'a Core) -> &'a PendingOps {
        GroupCore::pending(self)
    }

    fn result(&self, _: &Core) -> Result<(), WaitError> {
        self.take_failure()
    }
}

/// A wait for the operations counted before its creation.
struct CountedWait<C: Counted> {
    core: Arc<Core>,
    /// The generation to wait for, or the reason why the wait is forbidden.
    mark: Result<PendingWait, WaitError>,
    counted: C,
}

impl<C: Counted> CountedWait<C> {
    fn new(core: Arc<Core>, refused: Option<WaitError>, counted: C) -> Self {
        let mark = match refused {
            Some(error) => Err(error),
            None => Ok(counted.pending(&core).begin()),
        };
        Self { core, mark, counted }
    }
}

impl<C: Counted> Future for CountedWait<C> {
    type Output = Result<(), WaitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { core, mark, counted } = &mut *self;
        core.live()?;
        let mark = match mark {
            Ok(mark) => mark,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        catch_up_and_go_on();
        // A deferred operation run on this thread may have forked the process.
        core.live()?;
        counted.pending(core).poll(mark, cx.waker()).map(|()| counted.result(core))
    }
}

impl<C: Counted> Drop for CountedWait<C> {
    fn drop(&mut self) {
        if let Ok(mark) = &mut self.mark {
            self.counted.pending(&self.core).end(mark);
        }
    }
}

/// Returns an error if the calling thread must not wait for any engine.
#[inline]
pub(crate) fn check_thread() -> Result<(), WaitError> {
    if no_wait::may_wait() && !worker_thread::serves_device() { Ok(()) } else { why_not_wait() }
}

/// Returns why the calling thread must not wait for any engine, if it must not.
#[cold]
fn why_not_wait() -> Result<(), WaitError> {
    if worker_thread::serves_device() || no_wait::in_device_function() {
        return Err(WaitError::OnDevice);
    }
    match no_wait::no_wait() {
        Some(NoWait::Deletion) => Err(WaitError::InDeletion),
        Some(NoWait::Observer) => Err(WaitError::InObserver),
        Some(NoWait::DeviceFunction) | None => Ok(()),
    }
}

/// Calls `f`, which blocks the calling thread, for instance by reading a file, locking a mutex or waiting for another
/// program. Inside an operation, another thread runs the worker during the call, so other operations are not delayed.
///
/// When `f` returns, the operation's function continues at once in the place of a worker. If no worker is idle, the
/// next one to end an operation stays idle until the function waits again or returns, but for 100 ms at most. So up to
/// twice as many functions compute as the engine has workers. If twice as many do already, the function queues for a
/// worker; if it receives none within 100 ms, or before the time limit of the wait, it continues all the same. All this
/// applies after each of the engine's waits inside an operation.
///
/// So the number of workers does not bound how many functions are in `blocking` at a time. [`Group::jobs`] and
/// [`EngineBuilder::jobs`] do, and so do [resources](crate::Resource): operations keep their places and units during
/// the call.
///
/// The worker is blocked along with the calling thread if no other thread can take over the worker: if the system
/// refuses to start one, or 2,048 threads already wait inside operations. The first time, this is logged. It is also
/// blocked in device operations' functions, deletions and observers, which must not wait. Outside operations,
/// `blocking` simply calls `f`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = raddle::Engine::builder().workers(1).build()?;
/// let (sender, receiver) = std::sync::mpsc::channel();
/// let received = engine.op("receive").submit((), move |()| raddle::blocking(|| receiver.recv()))?;
/// engine.op("send").push((), move |()| sender.send(7).expect("the receiver waits"))?; // the only worker is free
/// assert_eq!(received.wait()?, Ok(7));
/// # Ok(())
/// # }
/// ```
///
/// [`EngineBuilder::jobs`]: crate::EngineBuilder::jobs
/// [`Group::jobs`]: crate::Group::jobs
pub fn blocking<R>(f: impl FnOnce() -> R) -> R {
    if let Some(core) = frame::current_engine().filter(|core| check(core).is_ok()) {
        if let Err(WaitError::TooManyWaiting) = make_way(&core) {
            warn_of_blocked_worker(&core);
        }
    }
    regain::without_regaining(f)
}

/// Says, once for each engine, that [`blocking`] blocks a worker because no thread can be had.
#[cold]
fn warn_of_blocked_worker(core: &Arc<Core>) {
    if core.threads.is_first_blocked() {
        let (name, location) = frame::running_op().unwrap_or((Name::EMPTY, Location::caller()));
        panics::log!(
            Warn,
            "raddle: operation `{name}` pushed at {location} blocks its worker inside `blocking`, since no thread can be \
             had to run the worker; operations that need this worker may never start"
        );
    }
}

/// The failure of a variable, as found by the operation of a wait, and the oneshot that reports it.
struct Found {
    failure: Option<OpError>,
    /// Taken by `report`, because this reference to the oneshot may be the last one. The [`Remainder`] then drops the
    /// program's error.
    oneshot: Option<Arc<Oneshot<()>>>,
}

impl Sink for Found {
    /// Sets the result here rather than at the start, because the waiting thread may immediately check whether the
    /// variable is idle.
    fn report(&mut self, _result: Result<(), &OpError>) -> Remainder {
        let Some(oneshot) = self.oneshot.take() else { return Remainder::default() };
        let set = oneshot.set(self.failure.take().map_or(Ok(()), Err));
        Remainder::new(set, oneshot)
    }
}
