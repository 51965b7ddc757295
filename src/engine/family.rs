//! Operations with children: such a parent is complete when its function has returned and all its children are
//! complete.
//!
//! Children take the place of their parent in the order of operations. Each variable of the parent that a child names
//! is represented by a variable of the family, whose queue orders the children among themselves, under the parent's
//! access. The value stays in the parent's variable.
//!
//! # States
//!
//! 1. *Open*: the function of the parent runs. A child is counted as pending and has a record, but is not in a queue
//!    yet, so it shares no value with that function.
//! 2. *Released* ([`Family::release`]): the function has returned or failed. The children have entered the queues, in
//!    the order in which they were pushed. If the function has failed, the variables that the parent mutates have
//!    failed for the children as well.
//! 3. *Over*: the last child has ended, and the parent completes.
//!
//! # Who may touch what
//!
//! * `plan`: set by the thread that starts the parent, before its function is called; then constant.
//! * `stand_ins` and `children`: under their locks.
//! * `op` and `own`: set before the function returns; taken by the thread that drops the last share of the family. The
//!   function has one share, and each child has one.
//! * In a forked child: nothing. The operations belong to the parent process.
//!
//! There are no edges here: the shares are those of an [`Arc`].

use std::{
    any::Any,
    mem,
    panic::Location,
    ptr::NonNull,
    sync::{Arc, OnceLock, Weak},
    time::Instant,
};

use crate::{
    engine::{
        cancellable::Place,
        core::Core,
        ending::{Epilogues, FnState},
        frame::{Call, Frame},
        group::Group,
        kin::Kin,
        limited_job::LimitedJob,
        push,
        spec::{Entries, Entry, Spec},
        task::{Claimed, Cleanup, Job, Task},
        variable::VarCell,
        variables::OwnedVar,
    },
    error::{
        op::{Cause, OpError},
        push::PushError,
    },
    sync::{Mutex, lock},
    tracker::{Mode, OpRef, ReadyList},
};

/// What is needed to create the children of an operation.
pub(crate) struct Plan {
    /// The variables that the operation names, with their modes. If the operation is itself a child, these are the
    /// variables of the program, not those of its family.
    names: Box<[(NonNull<VarCell>, Mode)]>,
    priority: i32,
    deadline: Option<Instant>,
    /// The group of the children, inside the group of the operation if it has one.
    group: Arc<Group>,
    /// The family that the operation belongs to, if it is itself a child.
    within: Option<Arc<Family>>,
}

// SAFETY: the pointers are to variables that the operation holds, or is about to hold, and a `VarCell` is `Send` and
// `Sync`.
unsafe impl Send for Plan {}
// SAFETY: as for `Send`.
unsafe impl Sync for Plan {}

impl Plan {
    /// Creates the plan of an operation with these entries, as the program has declared them.
    pub(crate) fn new(
        entries: &[Entry],
        priority: i32,
        deadline: Option<Instant>,
        group: Option<&Arc<Group>>,
        within: Option<&Family>,
    ) -> Box<Self> {
        let names = entries.iter().map(|entry| (entry.cell, entry.mode)).collect();
        Box::new(Self {
            names,
            priority,
            deadline,
            group: Group::new(group.cloned()),
            within: within.and_then(|family| family.this.upgrade()),
        })
    }
}

/// A child that was pushed and is not in a queue yet.
struct Child {
    op: OpRef<Task>,
    /// Where the handle finds the operation.
    place: Option<NonNull<Place>>,
}

// SAFETY: the place is in what the operation shares with its handle, and has only atomics.
unsafe impl Send for Child {}

/// An operation with children.
pub(crate) struct Family {
    this: Weak<Family>,
    core: Arc<Core>,
    op: Mutex<Option<OpRef<Task>>>,
    plan: OnceLock<Box<Plan>>,
    /// The failure of the parent's function.
    own: Mutex<Option<OpError>>,
    /// The variables of the family, each with the index in the plan of the variable that it stands for.
    stand_ins: Mutex<Vec<(usize, OwnedVar)>>,
    /// `None` when the children have entered the queues.
    children: Mutex<Option<Vec<Child>>>,
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Family").finish_non_exhaustive()
    }
}

impl Family {
    /// Creates the family of an operation that is about to start. The returned share is that of the operation's
    /// function.
    pub(super) fn new(core: &Arc<Core>, op: OpRef<Task>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            core: Arc::clone(core),
            op: Mutex::new(Some(op)),
            plan: OnceLock::new(),
            own: Mutex::new(None),
            stand_ins: Mutex::default(),
            children: Mutex::new(Some(Vec::new())),
        })
    }

    /// Returns the family of the operation whose function runs in `frame`, if the operation has children.
    pub(crate) fn of(frame: &Frame) -> Option<&Self> {
        frame.family()?.as_any().downcast_ref()
    }

    fn plan(&self) -> &Plan {
        let Some(plan) = self.plan.get() else { unreachable!("the plan is set before the function is called") };
        plan
    }

    /// Returns the group that the children belong to.
    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.plan().group
    }

    /// Returns the priority of children without one of their own.
    pub(crate) fn priority(&self) -> i32 {
        self.plan().priority
    }

    /// Returns the deadline of children without one of their own.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.plan().deadline
    }

    /// Returns the entries of a child, with the variables of the family that stand for those in `entries`.
    ///
    /// # Errors
    /// [`PushError::NotHeld`] if the parent does not name a variable, or only reads one that the child mutates.
    fn stand_in(
        &self,
        entries: &[Entry],
        spec: &Spec,
        location: &'static Location<'static>,
    ) -> Result<Entries, PushError> {
        let held = &self.plan().names;
        let mut stand_ins = lock(&self.stand_ins);
        let mut replace = |entry: &Entry| {
            let fits = |&(cell, mode): &(_, Mode)| cell == entry.cell && (mode.is_write() || !entry.mode.is_write());
            let Some(index) = held.iter().position(fits) else {
                // SAFETY: the creator of the entry keeps a handle to the variable until the push returns.
                let cell = unsafe { entry.cell.as_ref() };
                return Err(PushError::NotHeld(cell.refused_access(&spec.name, location)));
            };
            let known = stand_ins.iter().find(|(of, _)| *of == index).map(|(_, var)| var.ptr());
            let cell = known.unwrap_or_else(|| {
                // SAFETY: the parent holds the variable.
                let var = OwnedVar::standing_for(unsafe { entry.cell.as_ref() });
                let cell = var.ptr();
                stand_ins.push((index, var));
                cell
            });
            Ok(Entry { cell, ..*entry })
        };
        entries.iter().map(&mut replace).collect()
    }

    /// Pushes a child.
    pub(crate) fn push(
        &self,
        spec: &Spec,
        location: &'static Location<'static>,
        entries: &mut [Entry],
        deadline: Option<Instant>,
        mut job: impl Job,
    ) -> Result<(), PushError> {
        let place = job.place();
        // A variable that was deleted since the push of the parent is accepted: the deletion is behind the parent.
        let sorted = push::sort(entries, &spec.name, location);
        let mut entries = match sorted.and_then(|entries| self.stand_in(entries, spec, location)) {
            Ok(entries) => entries,
            Err(error) => {
                // `?` is not used, for the reason given in `Core::push`.
                drop(job);
                return Err(error);
            }
        };
        let mutates = entries.iter().any(|entry| entry.mode.is_write());
        let Some(share) = self.this.upgrade() else { unreachable!("the function of the parent has a share") };
        let job = LimitedJob::with_kin(job, self.group(), share, deadline, mutates);
        let entries = self.core.check_and_sort(&mut entries, &spec.name, location)?;
        let op = self.core.create(spec, spec.priority, location, entries, job)?;
        let mut children = lock(&self.children);
        match &mut *children {
            Some(children) => {
                if let Some(place) = place {
                    // SAFETY: the place is valid until the operation has started.
                    unsafe { place.as_ref() }.hold_back(NonNull::from(self).cast());
                }
                children.push(Child { op, place });
                Ok(())
            }
            None => unreachable!("only the function of the parent pushes children"),
        }
    }

    /// Lets the children enter the queues, after the function of the parent has ended with `result`.
    pub(super) fn release(self: Arc<Self>, result: Result<(), OpError>) {
        if self.core.is_forked() {
            // The parent process completes the operation.
            return mem::forget((self, result));
        }
        if let Err(failure) = result {
            let names = &self.plan().names;
            for (index, var) in &*lock(&self.stand_ins) {
                if names[*index].1.is_write() {
                    // SAFETY: no operation has entered the queue of this variable, and no other thread uses it.
                    let none = unsafe { var.cell().fault().set_failure(Some(failure.clone())) };
                    debug_assert!(none.is_none(), "the variable is new");
                }
            }
            *lock(&self.own) = Some(failure);
        }
        let children = lock(&self.children).take();
        for Child { op, place } in children.into_iter().flatten() {
            if let Some(place) = place {
                // SAFETY: the operation has not started, so the place is valid.
                unsafe { place.as_ref() }.let_go();
            }
            let pushed = self.core.enqueue(op);
            debug_assert!(pushed.is_ok(), "a variable of a family is never deleted");
        }
    }

    /// Returns the failure of the parent: that of its function, or else that of the child that was pushed first among
    /// those that have failed, unless a later child has cleared it.
    fn failure(&mut self) -> Option<OpError> {
        if let Some(own) = lock(&self.own).take() {
            return Some(own);
        }
        let stand_ins = lock(&self.stand_ins);
        let failures = || {
            stand_ins.iter().filter_map(|(_, var)| {
                // SAFETY: every operation on the variable has ended.
                unsafe { var.cell().fault().failure() }
            })
        };
        let plan = self.plan.get()?;
        let is_left = |failure: &OpError| failures().any(|left| left.ptr_eq(failure));
        plan.group.first_failure(is_left).or_else(|| failures().next())
    }
}

impl Kin for Family {
    fn each_held(&self, look: &mut dyn FnMut(NonNull<()>)) {
        let Some(plan) = self.plan.get() else { return };
        plan.names.iter().for_each(|&(cell, _)| look(VarCell::queue_ptr(cell).cast()));
        plan.within.iter().for_each(|family| family.each_held(look));
    }

    fn each_parent(&self, look: &mut dyn FnMut(NonNull<()>)) {
        lock(&self.op).iter().for_each(|op| look(NonNull::from(&**op).cast()));
        self.plan.get().and_then(|plan| plan.within.as_ref()).iter().for_each(|family| family.each_parent(look));
    }

    fn known_from(&self) -> Option<*const ()> {
        None
    }

    fn holds_back(&self, place: &Place) -> bool {
        place.is_held_back_by(NonNull::from(self).cast())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if self.core.is_forked() {
            // The parent process completes the operation.
            return;
        }
        let failure = self.failure();
        let Some(op) = lock(&self.op).take() else { return };
        // The variables of the family are dropped before a wait for the parent can return.
        let stand_ins = mem::take(&mut *lock(&self.stand_ins));
        drop(stand_ins);
        let mut ready = ReadyList::default();
        let epilogue = self.core.complete(op, failure.map_or(Ok(()), Err), FnState::Called, &mut ready);
        let epilogue = self.core.defer_epilogue(epilogue);
        self.core.dispatch_ready(&mut ready, Epilogues::from_iter([epilogue]));
    }
}

/// The job of an operation with children, around the job that calls its function.
pub(crate) struct ParentJob<W> {
    job: W,
    plan: Option<Box<Plan>>,
}

impl<W> ParentJob<W> {
    pub(crate) fn new(job: W, plan: Box<Plan>) -> Self {
        Self { job, plan: Some(plan) }
    }
}

impl<W: Job> Job for ParentJob<W> {
    const REPORTS: bool = W::REPORTS;
    const CLAIMS: bool = true;

    fn claim(&mut self, task: &Task) -> Claimed {
        self.job.claim(task)
    }

    fn place(&mut self) -> Option<NonNull<Place>> {
        self.job.place()
    }

    fn start(&mut self, cx: &Call<'_>) -> Result<(), Cause> {
        if let (Some(plan), Some(family)) = (self.plan.take(), Family::of(cx.frame())) {
            plan.group.set_parent(NonNull::from(cx.op()).cast());
            let set = family.plan.set(plan);
            debug_assert!(set.is_ok(), "an operation starts once");
        }
        self.job.start(cx)
    }

    fn discard(&mut self) {
        self.job.discard();
    }

    fn report(&mut self, result: Result<(), &OpError>) -> Cleanup {
        self.job.report(result)
    }
}
