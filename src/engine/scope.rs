//! Scopes: operations that may borrow from the stack frame that opens the scope.
//!
//! # States
//!
//! 1. *Open*: operations are pushed to the scope, by the function that opened it and by operations of the scope.
//! 2. *Closing*: that function has returned or panicked. Only operations of the scope push to it now.
//!    [`close`](Scoped::close) waits until none is pending.
//! 3. *Closed*: every operation has ended, and what it captured is dropped. The values of the scope's variables are
//!    dropped then ([`drop_values`](Scoped::drop_values)). Their drops are code of the program, which may push to the scope
//!    and create variables; if there were any values, the scope is closing again.
//! 4. *Over*: the scope is closed and has no variables. The frame may end.
//!
//! # Who may touch what
//!
//! * `held`: constant. The pointers are compared, and never read.
//! * `members`, `variables` and `emptied`: under their locks.
//!
//! There are no edges here: the count of the group hands over what the operations did.

use std::{
    any::Any,
    ptr::NonNull,
    sync::Arc,
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use crate::{
    engine::{
        cancellable::{Handled, Place},
        core::Core,
        frame::{self, HeldQueues},
        group::{Bond, Group},
        kin::Kin,
        variable::VarCell,
        variables::OwnedVar,
        worker_thread,
    },
    error::{deadlock::Deadlock, push::PushError, wait::WaitError},
    notify::{sleepers::Awaits, waiters::Ops},
    sync::{Mutex, lock},
    system::panics,
};

/// How long a closing scope waits before it tries again to hand its worker over. Picked: a try is cheap, and there is a
/// thread for the worker unless thousands of operations wait.
const RETRY: Duration = Duration::from_millis(1);

/// The fewest operations in the list of a scope at which those that are complete are removed. Picked: a list of this length
/// is small.
const MANY: usize = 1024;

/// The operations of a scope that may be run in place.
#[derive(Debug, Default)]
struct Members {
    list: Vec<Arc<Handled<()>>>,
    /// How many were left when those that were complete were removed last.
    left: usize,
}

/// An open scope.
#[derive(Debug)]
pub(crate) struct Scoped {
    core: Arc<Core>,
    group: Arc<Group>,
    /// The operations around the scope, which cannot complete before it ends, and the variables that they hold.
    around: Ops,
    held: HeldQueues,
    /// The thread that has opened the scope, and its innermost frame at that time, or null.
    thread: ThreadId,
    opened_in: *const (),
    /// What the operations of the scope share with their handles, if the scope was opened on a worker: its end runs those
    /// that are ready in place.
    members: Option<Mutex<Members>>,
    variables: Mutex<Vec<OwnedVar>>,
    /// Variables without a value, which are freed with the scope.
    emptied: Mutex<Vec<OwnedVar>>,
}

// SAFETY: `opened_in` and the pointers in `held` are compared, and never read. Those in `around` are given only to operations of the scope,
// while the operations around it run.
unsafe impl Send for Scoped {}
// SAFETY: as for `Send`.
unsafe impl Sync for Scoped {}

impl Kin for Scoped {
    fn each_held(&self, look: &mut dyn FnMut(NonNull<()>)) {
        self.held.iter().for_each(|queue| look(*queue));
    }

    fn each_parent(&self, look: &mut dyn FnMut(NonNull<()>)) {
        self.around.iter().for_each(|op| look(*op));
    }

    fn known_from(&self) -> Option<*const ()> {
        (self.thread == thread::current().id()).then_some(self.opened_in)
    }

    fn holds_back(&self, _: &Place) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Scoped {
    /// Opens a scope.
    ///
    /// # Errors
    /// The calling thread must not wait.
    pub(crate) fn open(core: &Arc<Core>) -> Result<Arc<Self>, WaitError> {
        core.check_wait()?;
        if worker_thread::uses_deque() {
            return Err(WaitError::WouldDeadlock(Deadlock::default()));
        }
        let (group, around) = (Group::new(None), frame::running_ops(core));
        around.first().into_iter().for_each(|op| group.belongs_to(*op, Bond::Scope));
        Ok(Arc::new(Self {
            core: Arc::clone(core),
            group,
            around,
            held: frame::held_queues(),
            thread: thread::current().id(),
            opened_in: frame::innermost().cast(),
            members: worker_thread::lane_of(core).map(|_| Mutex::default()),
            variables: Mutex::default(),
            emptied: Mutex::default(),
        }))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The group of the scope's operations.
    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Whether an operation around the scope holds the variable, so that an operation of the scope would wait for it
    /// for ever.
    pub(crate) fn is_held_around(&self, cell: NonNull<VarCell>) -> bool {
        self.held.contains(&VarCell::queue_ptr(cell).cast())
    }

    /// Makes the scope the owner of a variable's only handle.
    ///
    /// # Safety
    /// 1. The variable has a handle, which the caller does not use any more.
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
            if members.list.len() >= MANY.max(2 * members.left) {
                members.list.retain(|handled| !handled.is_done());
                members.left = members.list.len();
            }
            members.list.push(Arc::clone(handled));
        }
    }

    /// Waits until every operation of the scope has ended. Returns the failure of the one that was pushed first among
    /// those that have failed, unless a wait has returned it.
    pub(crate) fn close(&self) -> Result<(), WaitError> {
        struct AbortOnPanic;
        impl Drop for AbortOnPanic {
            fn drop(&mut self) {
                std::process::abort();
            }
        }
        // A panic, which only a defect of the engine could cause, would end the frame that the operations borrow from.
        let must_return = AbortOnPanic;
        let result = self.wait();
        std::mem::forget(must_return);
        result
    }

    fn wait(&self) -> Result<(), WaitError> {
        if self.core.is_forked() {
            // The operations belong to the parent process, and nothing runs them here.
            return Err(PushError::Forked.into());
        }
        let mut left = Vec::new();
        let next = || self.members.as_ref().and_then(|members| lock(members).list.pop());
        while let Some(handled) = next() {
            self.core.run_in_place(&handled);
            if !handled.is_done() {
                left.push(handled);
            }
        }
        Core::catch_up();
        // A scope must not end early, so its wait does not fail: if no thread can take over the worker, this one runs what
        // it can, and tries again.
        let before_sleep = || {
            self.core.make_way().is_err().then(|| {
                left.iter().for_each(|handled| self.core.run_in_place(handled));
                Instant::now() + RETRY
            })
        };
        let is_over = || self.group.pending.count() == 0;
        self.core.sleep(None, Awaits::Scope(self.group.number()), &is_over, || {
            self.group.pending.wait_until_idle(before_sleep);
        });
        if self.core.is_forked() {
            return Err(PushError::Forked.into());
        }
        self.group.take_failure()
    }

    /// Frees the variables whose values were dropped. The scope must be over.
    pub(crate) fn free_variables(&self) {
        let emptied = std::mem::take(&mut *lock(&self.emptied));
        drop(emptied);
    }

    /// Drops the values of the scope's variables, which no operation can name from now on. Their drops may push to the scope,
    /// so it must be [closed](Self::close) again unless this returns `false`: there was no variable.
    ///
    /// # Errors
    /// The payload of a drop that has panicked. The other values are dropped as well.
    ///
    /// # Safety
    /// 1. [`close`](Self::close) has returned, and only operations of the scope and drops of its values have pushed to it
    ///    since it was called.
    pub(crate) unsafe fn drop_values(&self) -> Result<bool, panics::Payload> {
        let variables = std::mem::take(&mut *lock(&self.variables));
        if self.core.is_forked() || variables.is_empty() {
            std::mem::forget(variables);
            return Ok(false);
        }
        variables.iter().for_each(|var| _ = var.cell().queue().close());
        let mut panicked = None;
        for var in &variables {
            // SAFETY: (1): only operations of the scope could name the variable. All of them have ended, and further ones
            // are refused.
            let result = panics::catch(|| unsafe { var.cell().empty() });
            if let Some(second) = result.err().and_then(|payload| panicked.replace(payload)) {
                panics::discard(second);
            }
        }
        // Drops of other values may still try to name the variables.
        lock(&self.emptied).extend(variables);
        panicked.map_or(Ok(true), Err)
    }
}
