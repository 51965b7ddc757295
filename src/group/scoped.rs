//! Scopes: operations that may borrow data that outlives the call to [`Engine::scope`](crate::Engine::scope).
//!
//! # States
//!
//! 1. *Open*: the scope's function, which was passed to `Engine::scope`, and the scope's operations may push to the
//!    scope.
//! 2. *Closing*: the scope's function has returned or panicked. Only the scope's operations may still push to the
//!    scope. [`close`](Scoped::close) waits until none of them is pending.
//! 3. *Closed*: every operation has ended or been abandoned, and its captures have been dropped. The values of the
//!    scope's variables are dropped next ([`drop_values`](Scoped::drop_values)). These drops are program code, which
//!    may push to the scope and create variables. So if there were any values, the scope becomes *closing* again.
//! 4. *Over*: the scope is closed, and none of its variables has a value. The call to `Engine::scope` may return.
//!
//! # Who may touch what
//!
//! * `around`, `members` and `variables`: under their locks. The pointers in `around` may be dereferenced only while
//!   the operations around the scope run, by the scope's function and by operations of the scope that were not
//!   abandoned.
//!
//! This module has no edges of its own: the group's count hands over the effects of the operations.
//!
//! # Cycles of waits
//!
//! The wait at the end of a scope must not return early, since operations of the scope borrow from stack frames that
//! the wait keeps alive. A [cycle](crate::wait::cycles) through this wait is broken by another wait in the cycle, for
//! a handle, a variable or a group. But a cycle may have no such wait: two operations may each hold a variable declared
//! by an operation in the other's scope, or an operation of the scope may be queued, directly or through others, behind
//! the operation that opened the scope. In that case, the scope whose end began to wait last *abandons* those of its
//! operations that cannot start:
//!
//! * It cancels them, which drops their functions and thus ends their borrows. They stay in the queues until their turn
//!   comes and then fail the variables that they mutate. They keep nothing of the scope except the memory of its
//!   variables, without the values.
//! * It counts them out of the scope immediately. They are not counted out again when their turn comes
//!   ([`Claim::settle`](crate::notify::claim::Claim::settle)). Unless another operation of the scope has failed, the
//!   wait returns [`WaitError::WouldDeadlock`].
//!
//! Such a cycle cannot be foreseen when a scope is opened or when its operations are pushed, since operations may be
//! pushed to the other scope later. Operations pushed to the scope's group rather than to the scope are not abandoned.
//! If the scope cannot abandon any operation of the cycle, the cycle is logged.

use std::{
    any::Any,
    fmt,
    ptr::NonNull,
    sync::Arc,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use crate::{
    context::worker_thread,
    engine::core::Core,
    error::{
        deadlock::{Awaited, Deadlock},
        wait::WaitError,
    },
    notify::{
        pending::Ticket,
        waiters::{Awaits, Goal, OpenScope, waiters},
        wakers::Wakers,
    },
    op::{
        cancellable::{Handled, WaitersPlace},
        frame::{self, HeldAround},
        group_core::GroupCore,
        kin::{Around, Kin},
        variable::VarCell,
        variables::OwnedVar,
    },
    sync::{Mutex, lock},
    system::panics,
    tracker::Mode,
    wait::{
        self,
        cycles::{self, Cycle, Looks, blocked_members, find_cycle},
        in_place,
        regain::regain_worker,
    },
};

/// The interval at which a closing scope's thread retries handing over its worker. Not tuned: an attempt is cheap, and
/// a thread is available for the worker unless about a thousand operations are waiting.
const RETRY: Duration = Duration::from_millis(1);

/// The minimum length of a scope's list at which complete operations are removed. Not tuned: a list of this length is
/// small.
const MANY: usize = 1024;

/// Whether the operation of `handled` has ended or been abandoned. A cancelled operation ends when its turn comes.
fn is_gone(handled: &Handled<()>) -> bool {
    handled.is_done() && !handled.beside().claim().awaits_turn()
}

/// What is around a scope.
struct Surroundings {
    /// The operations on the scope's thread, which cannot complete before it ends, and what they hold. Empty once the
    /// scope is over, so that what is abandoned does not keep the scopes further out.
    held: Box<[HeldAround]>,
    /// Whether the scope has begun to abandon operations. The operations around the scope may end before these do.
    abandons: bool,
}

/// A scope that is not over.
pub(crate) struct Scoped {
    core: Arc<Core>,
    group: Arc<GroupCore>,
    around: Mutex<Surroundings>,
    /// The thread that opened the scope, and its innermost frame at the time, or null.
    thread: ThreadId,
    opened_in: *const (),
    /// The state that the scope's operations share with their handles, if the end of the scope runs ready operations in
    /// place.
    members: Option<Mutex<Vec<Arc<Handled<()>>>>>,
    variables: Mutex<Vec<OwnedVar>>,
    /// Whether dumps show the scope until it is over. They do if the scope was opened inside an operation of its
    /// engine.
    is_listed: bool,
}

impl fmt::Debug for Scoped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scoped").field("group", &self.group).finish_non_exhaustive()
    }
}

// SAFETY: `opened_in` is only compared. The pointers in `around` are used only while the operations around the scope
// run, by the scope's function and by those of its operations that are not abandoned.
unsafe impl Send for Scoped {}
// SAFETY: as for `Send`.
unsafe impl Sync for Scoped {}

impl Kin for Scoped {
    fn each_held_here(&self, look: &mut dyn FnMut(NonNull<()>), further: &mut dyn FnMut(Arc<dyn Kin>)) {
        // SAFETY: (1): only the scope's function and its operations call this method, and the frames around the scope
        // outlive them. An abandoned operation never calls it, since that operation's function was dropped.
        lock(&self.around).held.iter().for_each(|held| unsafe { held.each(look, further) });
    }

    fn each_around(&self, look: &mut dyn FnMut(Around)) {
        let around = lock(&self.around);
        if !around.abandons {
            around.held.iter().for_each(|held| look((held.op.cast(), held.kin.clone())));
        }
    }

    fn known_from(&self) -> Option<*const ()> {
        (self.thread == thread::current().id()).then_some(self.opened_in)
    }

    fn keeps_out(&self, _: &WaitersPlace) -> bool {
        false
    }

    fn begin_future(&self) {}

    fn leave(&self) {}

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Scoped {
    /// Opens a scope.
    ///
    /// # Errors
    /// Returns an error if the calling thread must not wait.
    pub(crate) fn open(core: &Arc<Core>) -> Result<Arc<Self>, WaitError> {
        wait::check(core)?;
        if worker_thread::uses_deque() {
            return Err(WaitError::WouldDeadlock(Deadlock::default()));
        }
        let (group, around) = (GroupCore::new(None), frame::running_op_of(core));
        // Models have no dumps.
        let around = around.filter(|_| !cfg!(any(raddle_loom, raddle_shuttle)));
        if let Some(op) = around {
            waiters().open_scope(OpenScope { engine: cycles::engine(core), op, count: NonNull::from(group.pending()) });
        }
        Ok(Arc::new(Self {
            core: Arc::clone(core),
            group,
            around: Mutex::new(Surroundings { held: frame::held_around(), abandons: false }),
            thread: thread::current().id(),
            opened_in: frame::innermost().cast(),
            members: (frame::in_program() || worker_thread::lane_of(core).is_some()).then(Mutex::default),
            variables: Mutex::default(),
            is_listed: around.is_some(),
        }))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Returns the group of the scope's operations.
    pub(crate) fn group(&self) -> &Arc<GroupCore> {
        &self.group
    }

    /// Whether an operation around the scope holds the variable. If so, an operation of the scope that declared the
    /// variable would wait for it forever.
    pub(crate) fn is_held_around(&self, cell: &VarCell) -> bool {
        let mut is_held = false;
        // Nothing holds most variables, and a search takes long in a scope that is deeply nested.
        if !cell.queue().is_idle(Mode::Write) {
            let queue = NonNull::from(cell.queue()).cast();
            (self as &dyn Kin).each_held(&mut |held| is_held |= held == queue);
        }
        is_held
    }

    /// Transfers a variable's only handle to the scope.
    ///
    /// # Safety
    /// 1. The caller has a handle to the variable and does not use that handle again.
    pub(crate) unsafe fn keep(&self, cell: NonNull<VarCell>) {
        // SAFETY: (1).
        lock(&self.variables).push(unsafe { OwnedVar::new(cell) });
    }

    /// Whether the end of the scope runs ready operations in place.
    pub(crate) fn runs_in_place(&self) -> bool {
        self.members.is_some()
    }

    /// Lets the end of the scope run an operation in place.
    pub(crate) fn add_member(&self, handled: &Arc<Handled<()>>) {
        if let Some(members) = &self.members {
            let mut members = lock(members);
            if members.len() == members.capacity() && members.len() >= MANY {
                members.retain(|handled| !is_gone(handled));
                // The next search for complete operations comes after as many pushes.
                let left = members.len();
                members.reserve(left);
            }
            members.push(Arc::clone(handled));
        }
    }

    /// Waits until every operation of the scope has ended or been abandoned. Returns the failure of the first
    /// operation, in push order, that has failed since the last wait for the scope's group. If there is none but
    /// operations were abandoned, returns [`WaitError::WouldDeadlock`]. In a forked child, returns an error
    /// immediately.
    pub(crate) fn close(&self) -> Result<(), WaitError> {
        struct AbortOnPanic;
        impl Drop for AbortOnPanic {
            fn drop(&mut self) {
                std::process::abort();
            }
        }
        // A panic, which only a bug in the engine could cause, would end stack frames from which the operations borrow.
        let must_return = AbortOnPanic;
        let result = self.wait();
        std::mem::forget(must_return);
        result
    }

    fn wait(&self) -> Result<(), WaitError> {
        // The operations belong to the parent process, and no thread runs them here.
        self.core.live()?;
        let mut left = Vec::new();
        let next = || self.members.as_ref().and_then(|members| lock(members).pop());
        while let Some(handled) = next() {
            in_place::run_handled(&self.core, &handled);
            if !is_gone(&handled) {
                left.push(handled);
            }
        }
        let pending = self.group.pending();
        let is_over = || pending.count() == 0;
        if self.core.has_workers() {
            wait::catch_up();
        } else {
            in_place::run_leading(&self.core, is_over, &Goal::Counted(pending, None))?;
        }
        // A scope must not end early, so its wait must not fail: if no thread can take over the worker, this thread
        // runs whatever operations it can and tries again.
        let make_way = || {
            (wait::make_way(&self.core).is_err() && !self.core.is_forked()).then(|| {
                left.iter().for_each(|handled| _ = in_place::run_handled(&self.core, handled));
                Instant::now() + RETRY
            })
        };
        let mut deadlock = None;
        self.core.live()?;
        if is_over() {
            // A wait would look through all frames on the thread, so the time of nested scopes would grow with the
            // square of their number.
            regain_worker(None);
            return self.group.take_failure();
        }
        let goal = Some(Goal::Counted(pending, None));
        wait::sleep(&self.core, None, Awaits::Scope, goal, &is_over, |waiter| {
            let Some(waiter) = waiter else { return pending.wait_until_idle(make_way) };
            let (mut looks, mut vain) = (Looks::new(), 0u32);
            if !self.core.has_workers() {
                // The first look takes place before this thread runs operations that the scope does not await.
                looks.look_now();
            }
            pending.wait_until_idle(|| {
                if let Some(cycle) = looks.look(waiter, || find_cycle(waiter, false)) {
                    let blocked = blocked_members(waiter, pending);
                    waiter.suspend(|| {
                        let described = self.describe(cycle);
                        if self.abandon(&blocked, &left) {
                            deadlock.get_or_insert(described);
                        } else {
                            vain += 1;
                            // Logged once, after the second attempt, since the first may have failed only because a
                            // push was in progress.
                            if vain == 2 {
                                self.report(&described);
                            }
                        }
                    });
                }
                let again = if is_over() { None } else { waiter.suspend(make_way) };
                Some(again.map_or(looks.next(), |again| again.min(looks.next())))
            });
        });
        self.core.live()?;
        self.group.take_failure()?;
        deadlock.map_or(Ok(()), |deadlock| Err(WaitError::WouldDeadlock(deadlock)))
    }

    /// Describes a cycle whose only waits are at the ends of scopes.
    fn describe(&self, cycle: Cycle) -> Deadlock {
        Deadlock::new(frame::running_op(), cycle.through.map_or(Awaited::All, Awaited::Member))
    }

    /// Cancels the scope's operations that cannot start and counts them out of the scope: their functions are dropped,
    /// so the operations no longer use what they borrowed. Returns whether any operation was abandoned.
    fn abandon(&self, blocked: &[(NonNull<()>, Ticket)], left: &[Arc<Handled<()>>]) -> bool {
        let (Ok(live), Some(members)) = (self.core.live(), &self.members) else { return false };
        let members: Vec<_> = lock(members).iter().chain(left).map(Arc::clone).collect();
        lock(&self.around).abandons = true;
        let mut has_any = false;
        for &(task, ticket) in blocked {
            // Several operations may have used this task's record in succession; those that have ended cannot be
            // abandoned.
            let of_task = members.iter().filter(|handled| handled.beside().place().task() == Some(task));
            let abandon = |handled: &&Arc<Handled<()>>| {
                let tell = |failure| handled.set(Err(failure)).into_iter().flatten().for_each(Wakers::wake);
                let mut abandoned = false;
                let run = || abandoned = handled.beside().abandon(live.failures(), tell);
                if let Err(payload) = panics::catch(|| frame::enter_after(&self.core, run)) {
                    panics::discard(payload);
                }
                abandoned
            };
            if of_task.into_iter().any(|handled| abandon(&handled)) {
                has_any = true;
                if let Some(wakers) = self.group.pending().leave(ticket) {
                    self.core.wake(wakers);
                }
            }
        }
        has_any
    }

    /// Logs a cycle that this scope cannot end.
    fn report(&self, deadlock: &Deadlock) {
        frame::enter_after(&self.core, || panics::log!(Error, "raddle: the end of a scope waits forever: {deadlock}"));
    }

    /// Removes the scope from dumps, and forgets what is around it. The scope must be over.
    pub(crate) fn end(&self) {
        if self.is_listed {
            waiters().close_scope(NonNull::from(self.group.pending()));
        }
        let held = std::mem::take(&mut lock(&self.around).held);
        drop(held);
    }

    /// Drops the values of the scope's variables, which operations can no longer declare. Returns whether there were
    /// any values: their drops may push to the scope, which must then be [closed](Self::close) again. Adds the
    /// variables to `emptied`, which the caller drops when the scope is over, since drops of other values may still try
    /// to declare them.
    ///
    /// # Errors
    /// Returns the payload of the first drop that panicked. The other values are still dropped.
    ///
    /// # Safety
    /// 1. [`close`](Self::close) has returned, and only operations of the scope and drops of its values have pushed to
    ///    it since that call began.
    pub(crate) unsafe fn drop_values(&self, emptied: &mut Vec<OwnedVar>) -> Result<bool, panics::Payload> {
        let variables = std::mem::take(&mut *lock(&self.variables));
        if self.core.is_forked() || variables.is_empty() {
            std::mem::forget(variables);
            return Ok(false);
        }
        variables.iter().for_each(|var| _ = var.cell().queue().close());
        let mut panicked = None;
        for var in &variables {
            // SAFETY: (1): only operations of the scope could declare the variable. All of them have ended or been
            // abandoned, and further ones are refused.
            match panics::catch(|| unsafe { var.cell().empty() }) {
                Ok(()) => {}
                Err(second) if panicked.is_some() => panics::discard(second),
                Err(first) => panicked = Some(first),
            }
        }
        emptied.extend(variables);
        panicked.map_or(Ok(true), Err)
    }
}
