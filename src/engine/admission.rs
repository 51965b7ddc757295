//! Operations that commute on variables or need units: when they become ready, they take their [turns](turn), and then
//! all their units, or wait for them. They leave their turns when they complete, and then give their units back.
//!
//! An operation that waits for units may have turns, and none that waits for turns has units. So those that have units
//! run, whatever turns others wait for.
//!
//! [`admit`] is where ready operations are dispatched: it passes on an operation that needs no units, has them, or will
//! not run in any case. An operation that lacks a turn waits there until another one leaves it, and is then dispatched
//! again. It waits even if it is cancelled meanwhile. Any other operation waits in a [pool](crate::notify::stock) until
//! [`resume`] dispatches it again. An operation leaves its queue without units if it is cancelled: through its handle,
//! which calls what [`admit`] has registered there, or with its group or its engine, by [`Core::withdraw_cancelled`]. The poll of a
//! future that is asked to stop leaves in the same way, by [`Core::withdraw`]. If an operation's deadline passes, it
//! fails when it is admitted.
//!
//! The states of an operation's units are in [`op::units`](crate::op::units).

use std::{iter, ptr::NonNull, sync::Arc, time::Instant};

use smallvec::SmallVec;

use crate::{
    context::ready_loop::{self, Epilogue},
    engine::core::Core,
    error::push_error::PushError,
    memory::epoch,
    notify::{
        oneshot::Oneshot,
        stock::{Admission, LeftQueue, Need},
        turn,
    },
    op::{
        frame,
        group_core::GroupCore,
        limits::Limits,
        task::{ErasedJob, Task, flag},
        units::{Needs, ResourceCore, Resources, Units, UnitsState, UnitsWaiter},
        variable::failure_before,
    },
    scheduler::LONGEST_STAY,
    tracker::{Op, OpRef, ReadyList},
};

/// The band of functions that are to have back units of bounds: above all operations.
const RETURNING: u8 = u8::MAX;

/// Returns a ready operation that may be dispatched, or lets it wait for its turns and units. If it waits, and others
/// have all their turns as a consequence, calls `dispatch` with these.
#[inline]
pub(crate) fn admit(
    core: &Arc<Core>,
    op: OpRef<Task>,
    dispatch: impl FnOnce(&mut ReadyList<Task>),
) -> Option<OpRef<Task>> {
    if op.task().has(flag::LIMITED | flag::COMMUTES) { admit_specially(core, op, dispatch) } else { Some(op) }
}

#[inline(never)]
fn admit_specially(
    core: &Arc<Core>,
    op: OpRef<Task>,
    dispatch: impl FnOnce(&mut ReadyList<Task>),
) -> Option<OpRef<Task>> {
    let mut others = ReadyList::default();
    let takes_turns = op.task().lacks_turns() && !core.is_forked();
    let admitted = if takes_turns { turn::take_turns(op, &mut others) } else { Some(op) };
    debug_assert!(admitted.is_none() || others.is_empty(), "an operation has its turns, and has left some");
    if !others.is_empty() {
        dispatch(&mut others);
    }
    let op = admitted?;
    if op.task().has(flag::LIMITED) { admit_limited(core, op) } else { Some(op) }
}

/// Leaves the turns of an operation that is about to complete. Adds to `ready` the operations that have theirs now.
#[inline]
pub(super) fn leave_turns(op: &Op<Task>, ready: &mut ReadyList<Task>) {
    if op.task().commutes().is_some() {
        turn::leave_turns(op, ready);
    }
}

#[inline(never)]
fn admit_limited(core: &Arc<Core>, op: OpRef<Task>) -> Option<OpRef<Task>> {
    // The operation may end on another thread as soon as it waits.
    let _pinned = epoch::pin();
    let Some(units) = op.task().units().map(NonNull::from) else { return Some(op) };
    // SAFETY: limits are not freed while this thread is pinned.
    let units = unsafe { units.as_ref() };
    if units.state() != UnitsState::None || core.is_forked() || op.is_rejected() || will_be_skipped(core, &op) {
        return Some(op);
    }
    let (needs, band) = (units.needs(), op.band);
    // SAFETY: (1): this thread owns the ready operation.
    if let Some(beside) = unsafe { op.beside() } {
        let (core, needs, number) = (Arc::downgrade(core), needs.clone(), units.number().clone());
        beside.when_cancelled(move || {
            let Some(core) = core.upgrade().filter(|core| !core.is_forked()) else { return };
            resume(&core, ResourceCore::withdraw(band, &needs, || number.end()));
        });
    }
    let is_wanted = |waiter: &UnitsWaiter| !is_off(core, waiter);
    let note = |number_given: u64| {
        units.set(UnitsState::Waits);
        units.number().set(number_given);
    };
    let waiter = UnitsWaiter::Op(op.into_ptr().cast());
    let (waiter, state) = match ResourceCore::enter(band, needs, waiter, is_wanted, note) {
        Admission::Admitted(waiter) => (waiter, UnitsState::Held),
        Admission::Unwanted(waiter) => (waiter, UnitsState::None),
        Admission::Waits => return None,
    };
    let UnitsWaiter::Op(op) = waiter else { unreachable!("the waiter is an operation") };
    units.set(state);
    // SAFETY: (1): the pointer is that of the operation, which did not enter a queue.
    Some(unsafe { OpRef::from_ptr(op.cast()) })
}

/// Whether an operation will be skipped because a variable has failed. Always false on an engine with GPUs, which may
/// yet change failures.
fn will_be_skipped(core: &Core, op: &Op<Task>) -> bool {
    // SAFETY: (1): the operation is ready, so it holds its variables, and there are no GPUs.
    core.gpus().is_empty() && unsafe { failure_before(op) }.is_some()
}

/// Whether a waiting operation was cancelled, or polls a future that was asked to stop.
fn is_off(core: &Core, waiter: &UnitsWaiter) -> bool {
    let UnitsWaiter::Op(op) = waiter else { return false };
    let op: NonNull<Op<Task>> = op.cast();
    // SAFETY: the queue, or the caller, owns the ready operation.
    let op = unsafe { op.as_ref() };
    if op.task().has(flag::KEPT) {
        return false;
    }
    // SAFETY: (1): the caller has the lock of the queue that owns the ready operation, or owns it.
    let is_cancelled = unsafe { op.beside() }.is_some_and(|beside| beside.claim().is_cancelled());
    let needs_none =
        |limits: &Limits| limits.are_over() || limits.units().is_some_and(|units| units.number().is_ended());
    is_cancelled || core.is_cancelling() || op.task().limits().is_some_and(needs_none)
}

/// Dispatches operations that have left their queues, and lets functions go on.
fn resume(core: &Arc<Core>, left: Vec<LeftQueue<UnitsWaiter>>) {
    let mut ready = ReadyList::default();
    for LeftQueue { waiter, is_admitted } in left {
        match waiter {
            UnitsWaiter::Op(op) => {
                // SAFETY: (1): the pointer is that of the operation, and this thread has taken it from its queue.
                let op = unsafe { OpRef::from_ptr(op.cast()) };
                let state = if is_admitted { UnitsState::Held } else { UnitsState::None };
                if let Some(units) = op.task().units() {
                    units.set(state);
                }
                ready.push(op);
            }
            UnitsWaiter::Function(oneshot) => drop(oneshot.set(Ok(()))),
        }
    }
    if ready.is_empty() {
        return;
    }
    // Without workers, the operations are left to the loop around this call, so that they are not nested.
    let leave = |ready_loop: &_| core.leave(ready_loop, &mut ready, &mut iter::empty());
    if core.has_workers() || ready_loop::with_loop(core, leave).is_none() {
        core.dispatch_ready(&mut ready, Epilogue::Nothing);
    }
}

/// Gives back the units of a complete operation.
pub(super) fn give_back(core: &Arc<Core>, op: &Op<Task>) {
    let Some(units) = op.task().units() else { return };
    match units.set(UnitsState::Ended) {
        UnitsState::Held => resume(core, ResourceCore::give_back(units.needs())),
        UnitsState::Still => resume(core, ResourceCore::give_back(&units.part(false))),
        UnitsState::Named => {
            let named = units.part(false);
            resume(core, ResourceCore::hold_still(&named, false));
            resume(core, ResourceCore::give_back(&named));
        }
        UnitsState::None | UnitsState::Waits | UnitsState::Ended => {}
    }
}

/// Returns the units of an operation that is about to be pushed in `group`, if it needs any.
///
/// # Errors
/// Returns an error if a resource that it names belongs to another engine or has too few units.
pub(crate) fn of_push(
    core: &Core,
    group: Option<&Arc<GroupCore>>,
    named: &[Need<UnitsWaiter>],
) -> Result<Option<Box<Units>>, PushError> {
    core.live()?;
    let groups = || group.into_iter().flat_map(|group| group.path());
    let bounds = groups().filter_map(GroupCore::bound).chain(core.bound()).cloned();
    let units = Units::new(core.tag(), named, bounds).map_err(PushError::Unfit)?;
    if let Some(Need { resource, .. }) = units.as_ref().and_then(|units| units.needs().first()) {
        groups().for_each(|group| group.resources().add(resource));
    }
    Ok(units)
}

/// Adds the engine's bound to the limits of an operation that has no units.
pub(super) fn bind(core: &Core, job: &mut ErasedJob) {
    let limits = job.limits_mut();
    if limits.units().is_none() {
        // One unit of the bound is never too many.
        limits.set_units(Units::new(core.tag(), &[], core.bound().cloned().into_iter()).ok().flatten());
    }
}

impl Core {
    /// Withdraws the cancelled operations that wait for units of these resources.
    pub(crate) fn withdraw_cancelled(self: &Arc<Self>, resources: &Resources) {
        if !self.is_forked() {
            for resource in resources.all() {
                resume(self, resource.withdraw_if(|waiter| is_off(self, waiter)));
            }
        }
    }

    /// Withdraws an operation that waits for these units with a priority of `band`, and lets it not wait any more.
    pub(crate) fn withdraw(self: &Arc<Self>, band: u8, units: &Units) {
        resume(self, ResourceCore::withdraw(band, units.needs(), || units.number().end()));
    }

    /// Gives back the units of bounds that `op` holds: a parent whose own work has ended, so that it waits for its
    /// children, or an operation whose future does not run.
    pub(crate) fn leave_bounds(self: &Arc<Self>, op: &Op<Task>) {
        // In a forked child, the operation belongs to the parent process.
        let Some(units) = op.task().units().filter(|_| !self.is_forked()) else { return };
        if units.change(UnitsState::Held, UnitsState::Named) {
            resume(self, ResourceCore::hold_still(units.needs(), true));
        }
    }

    /// Calls `wait`, in which the calling thread sleeps until `deadline` at the latest. During the call, the operations
    /// on this thread that hold units [lend](ResourceCore::hold_still) those of bounds.
    pub(crate) fn while_units_are_still<R>(deadline: Option<Instant>, wait: impl FnOnce() -> R) -> R {
        let mut still = SmallVec::<[(Arc<Self>, NonNull<Op<Task>>); 1]>::new();
        frame::each_limited(|core, op| {
            // In a forked child, the operations around a new engine's belong to the parent process.
            let units = op.task().units().filter(|_| !core.is_forked());
            if units.is_some_and(|units| units.change(UnitsState::Held, UnitsState::Still)) {
                still.push((Arc::clone(core), NonNull::from(op)));
            }
        });
        let units_of = |op: NonNull<Op<Task>>| {
            // SAFETY: the operation's frame is around this call, and keeps the record alive.
            unsafe { op.as_ref() }.task().units()
        };
        for (core, op) in &still {
            units_of(*op).into_iter().for_each(|units| resume(core, ResourceCore::hold_still(units.needs(), true)));
        }
        // What has become ready without workers was left to loops around the wait. It may wait for any of these units.
        still.iter().filter(|(core, _)| !core.has_workers()).for_each(|(core, _)| core.run_deferred());
        let result = wait();
        for (core, op) in still {
            // In a forked child, the operation belongs to the parent process.
            let Some(units) = units_of(op).filter(|_| !core.is_forked()) else { continue };
            resume(&core, ResourceCore::hold_still(&units.part(false), false));
            let bounds = units.part(true);
            take_back(&bounds, deadline);
            if !units.change(UnitsState::Still, UnitsState::Held) {
                // The operation has ended meanwhile.
                resume(&core, ResourceCore::give_back(&bounds));
            }
        }
        result
    }
}

/// Takes units of bounds for a function that goes on after a wait. If they do not become free within [`LONGEST_STAY`],
/// nor before `deadline`, takes them all the same: those who hold them may depend on this function.
fn take_back(bounds: &Needs, deadline: Option<Instant>) {
    if bounds.is_empty() {
        return;
    }
    let (oneshot, mut number) = (Oneshot::new(), 0);
    let waiter = UnitsWaiter::Function(Arc::clone(&oneshot));
    if let Admission::Waits = ResourceCore::enter(RETURNING, bounds, waiter, |_| true, |given| number = given) {
        let longest = Instant::now() + LONGEST_STAY;
        let until = deadline.map_or(longest, |deadline| deadline.min(longest));
        if oneshot.wait(Some(until)).is_err() {
            ResourceCore::take_anyway(RETURNING, bounds, number);
        }
    }
}
