//! Operations with children. A parent is complete once its own work has ended, all its children are complete and, if it
//! is asynchronous, its completion has been used.
//!
//! Children take their parent's place in the order of operations. Each of the parent's variables that a child declares
//! is represented by a variable of the family, whose queue orders the children under the parent's access. The value
//! stays in the parent's variable. A family may also have variables with values of their own, which only its children
//! and their descendants can declare.
//!
//! # States
//!
//! 1. *Working*: the parent's own work continues: its function is running, its future or one of that future's guards
//!    exists, or a call that pushes a child or creates a variable has not returned. A pushed child is counted as
//!    pending and has a record, but is in no queue yet, so it shares no value with the parent's work.
//! 2. *Released* ([`Family::release`]): the work has ended. The children have entered the queues in push order. If the
//!    work has failed, the variables that the parent mutates have failed for the children as well, and so have the
//!    family's own variables. The value of each of the family's own variables is dropped after the children have used
//!    it, and this drop has a share, as does the completion of an asynchronous parent.
//! 3. *Over* ([`Family::end`]): the last share has been dropped, and the parent completes.
//!
//! [`FamilyCount`] decides which thread takes each of these steps.
//!
//! # Who may touch what
//!
//! * `plan` and `identity`: constant. The pointers in `identity` are only compared, except when the parent's work ends.
//! * `is_future`: set by the thread that starts the parent, before the future exists.
//! * `parent`: set by the thread that starts the parent or, if the parent is asynchronous, by the thread that uses its
//!   completion or ends its future; taken by the thread that drops the last share.
//! * `stand_ins`, `variables`, `children` and `own`: under their locks.
//! * In a forked child, no thread may touch anything, since the operations belong to the parent process.
//!
//! This module has no edges of its own: see [`FamilyCount`].

use std::{
    any::Any,
    collections::BTreeMap,
    iter, mem,
    panic::Location,
    ptr::NonNull,
    sync::{Arc, OnceLock, Weak},
    time::Instant,
};

use crate::{
    context::ready_loop::{self, Epilogue, FnState},
    engine::core::Core,
    error::{
        op::OpError,
        push_error::{Misfit, NoAccess, PushError},
    },
    group::room,
    notify::{
        family_count::FamilyCount,
        stock::{self, Need},
    },
    op::{
        cancellable::WaitersPlace,
        frame::Frame,
        group_core::GroupCore,
        kin::{Around, Kin, KinShare},
        limits::Limits,
        spec::{Entries, Entry, Spec, sort, sort_distinct},
        task::{ErasedJob, Task, flag},
        units::{Needs, ResourceCore, UnitsWaiter},
        variable::VarCell,
        variables::{self, OwnedVar},
    },
    sync::{Mutex, lock},
    tracker::{Mode, Op, OpRef, ReadyList},
    values::Name,
};

/// Units that a parent uses, with the resource that represents them among the children once one of them uses it.
type UnitsOfParent = (Need<UnitsWaiter>, OnceLock<Arc<ResourceCore>>);

/// The data from which an operation's children are created.
pub(crate) struct Plan {
    /// The variables that the operation declares, each once, in the order of their addresses, with their modes. If the
    /// operation is itself a child, these are the program's variables, not the family's.
    names: Box<[(NonNull<VarCell>, Mode)]>,
    /// The units of resources that the operation uses, in the same way.
    uses: Box<[UnitsOfParent]>,
    priority: i32,
    deadline: Option<Instant>,
    /// The children's group, inside the operation's own group if it has one.
    group: Arc<GroupCore>,
    /// The family to which the operation belongs, if it is itself a child. That family does not end before this one.
    within: Option<Weak<Family>>,
}

// SAFETY: the pointers are to variables that the operation holds or is about to hold, and a `VarCell` is `Send` and
// `Sync`.
unsafe impl Send for Plan {}
// SAFETY: as for `Send`.
unsafe impl Sync for Plan {}

impl Plan {
    /// Creates the plan of an operation with these entries, as declared by the program, for its limits.
    pub(crate) fn boxed(
        (entries, uses): (&[Entry], &[Need<UnitsWaiter>]),
        priority: i32,
        deadline: Option<Instant>,
        group: Option<&Arc<GroupCore>>,
        within: Option<&Family>,
    ) -> Box<dyn Any + Send> {
        let mut uses = Needs::from(uses);
        stock::merge(&mut uses);
        let mut entries = Entries::from(entries);
        // If accesses are aliased, the push is refused, and nothing uses the plan.
        let distinct = sort_distinct(&mut entries).unwrap_or(0);
        let mut names: Vec<_> = entries[..distinct].iter().map(|entry| (entry.cell, entry.mode)).collect();
        names.sort_unstable_by_key(|&(cell, _)| cell);
        Box::new(Self {
            names: names.into(),
            uses: uses.into_iter().map(|need| (need, OnceLock::new())).collect(),
            priority,
            deadline,
            group: GroupCore::of_children(group),
            within: within.map(|family| Weak::clone(&family.this)),
        })
    }
}

/// A pushed child that is not in a queue yet.
struct Child {
    op: OpRef<Task>,
    /// The place in the state that the operation shares with its handle, if it has one.
    place: Option<NonNull<WaitersPlace>>,
}

// SAFETY: the place is in the state that the operation shares with its handle, and contains only atomics.
unsafe impl Send for Child {}

/// The pointers to the parent.
struct Identity {
    op: NonNull<()>,
    /// The pointer that identifies the parent to waiters.
    task: NonNull<()>,
}

// SAFETY: the pointers are compared, or used while the parent is not complete.
unsafe impl Send for Identity {}
// SAFETY: as for `Send`.
unsafe impl Sync for Identity {}

/// The failures of the parent itself.
#[derive(Default)]
struct OwnFailures {
    /// The failure of its function or future.
    work: Option<OpError>,
    /// The failure reported by its completion.
    completion: Option<OpError>,
}

/// The family of an operation with children.
pub(crate) struct Family {
    this: Weak<Family>,
    core: Arc<Core>,
    identity: Identity,
    /// Whether the parent is a clean-up.
    is_kept: bool,
    is_future: OnceLock<()>,
    count: FamilyCount,
    plan: Box<Plan>,
    /// The right to complete the parent.
    parent: Mutex<Option<OpRef<Task>>>,
    own: Mutex<OwnFailures>,
    /// The family's variables that represent others, each with the index in the plan of the variable represented.
    stand_ins: Mutex<BTreeMap<usize, OwnedVar>>,
    /// The family's variables with values of their own.
    variables: Mutex<Vec<OwnedVar>>,
    /// The children that are not in a queue yet, or `None` once they have entered the queues.
    children: Mutex<Option<Vec<Child>>>,
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Family").finish_non_exhaustive()
    }
}

impl Family {
    /// Creates the family of `op`, which is about to start.
    ///
    /// # Safety
    /// 1. The operation is ready, this thread owns it, and it has a plan.
    unsafe fn new(core: &Arc<Core>, op: &Op<Task>, parent: Option<OpRef<Task>>) -> Arc<Self> {
        // SAFETY: (1).
        let plan = op.task().limits().and_then(|limits| unsafe { limits.take_plan() });
        let Some(Ok(plan)) = plan.map(|plan| plan.downcast::<Plan>()) else {
            unreachable!("an operation with children has a plan, and starts once")
        };
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            core: Arc::clone(core),
            identity: Identity { op: NonNull::from(op).cast(), task: NonNull::from(op.task()).cast() },
            is_kept: op.task().has(flag::KEPT),
            is_future: OnceLock::new(),
            count: FamilyCount::new(),
            plan,
            parent: Mutex::new(parent),
            own: Mutex::default(),
            stand_ins: Mutex::default(),
            variables: Mutex::default(),
            children: Mutex::new(Some(Vec::new())),
        })
    }

    /// Creates the family of an operation that is about to start and has no completion.
    ///
    /// # Safety
    /// 1. This thread owns the operation, which has a plan.
    pub(crate) unsafe fn of_sync(core: &Arc<Core>, op: OpRef<Task>) -> Arc<Self> {
        let hold = op.hold();
        // SAFETY: (1).
        unsafe { Self::new(core, &hold, Some(op)) }
    }

    /// Creates the family of an asynchronous operation that is about to start. The right to complete the operation has
    /// a share.
    ///
    /// # Safety
    /// 1. The operation is ready, this thread owns it, and it has a plan.
    pub(crate) unsafe fn of_async(core: &Arc<Core>, op: &Op<Task>) -> Arc<Self> {
        // SAFETY: (1).
        let family = unsafe { Self::new(core, op, None) };
        family.count.enter();
        family
    }

    /// Returns `kin` as a family, unless it is a scope.
    pub(crate) fn from_kin(kin: &Arc<dyn Kin>) -> Option<Arc<Self>> {
        kin.as_any().downcast_ref::<Self>()?.this.upgrade()
    }

    /// Returns the family of the operation whose function runs in `frame`, if the operation has children.
    pub(crate) fn of(frame: &Frame) -> Option<&Self> {
        frame.family()?.as_any().downcast_ref()
    }

    /// Whether the parent is a clean-up, in which case its children are clean-ups as well.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Returns the owner tag of the family's own variables, which replaces an engine's tag. No engine has it, since it
    /// is not a multiple of four. No other family has it while this one exists; after that, the variables are closed.
    fn owner(&self) -> usize {
        std::ptr::from_ref(self).addr() + 2
    }

    /// Returns the children's group.
    pub(crate) fn group(&self) -> &Arc<GroupCore> {
        &self.plan.group
    }

    /// Returns the priority of children that specify none.
    pub(crate) fn priority(&self) -> i32 {
        self.plan.priority
    }

    /// Returns the deadline of children that specify none.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.plan.deadline
    }

    /// Begins the push of a child or the creation of a variable. The parent's work does not end before the returned
    /// value is dropped.
    fn begin_part(&self) -> Result<FamilyPart<'_>, PushError> {
        self.core.live()?;
        if self.count.begin_part() { Ok(FamilyPart(self)) } else { Err(PushError::ParentEnded) }
    }

    /// Creates a variable of the family and returns a handle to it.
    ///
    /// # Errors
    /// Returns [`PushError::ParentEnded`] if the parent's work has ended, and [`PushError::Forked`] in a forked child.
    pub(crate) fn create_var<T: Send + 'static>(&self, value: T) -> Result<NonNull<VarCell>, PushError> {
        let part = match self.begin_part() {
            Ok(part) => part,
            Err(error) => {
                // `?` is not used, for the reason given in `Core::create`.
                drop(value);
                return Err(error);
            }
        };
        let cell = VarCell::of_family(&self.core, self.owner(), value);
        // SAFETY: the family takes the only handle; the caller receives a second one.
        let var = unsafe { OwnedVar::new(cell) };
        var.cell().add_handle();
        lock(&self.variables).push(var);
        drop(part);
        Ok(cell)
    }

    /// Whether the variable belongs to a family around this one.
    fn belongs_around(&self, cell: &VarCell) -> bool {
        let owner = cell.queue().owner();
        iter::successors(self.within(), |family| family.within()).any(|at| at.owner() == owner)
    }

    /// Returns the family to which the parent belongs, if it is itself a child.
    fn within(&self) -> Option<Arc<Self>> {
        self.plan.within.as_ref()?.upgrade()
    }

    /// Returns a child's `entries` with each variable replaced by the family's variable that represents it. The
    /// family's own variables are not replaced.
    ///
    /// # Errors
    /// Returns [`NoAccess::NotHeld`] if the parent does not declare one of the variables, or only reads one that the
    /// child mutates. For a variable of another engine or of an unrelated family, returns [`NoAccess::Foreign`] or
    /// [`NoAccess::OfFamily`] instead.
    fn stand_in(
        &self,
        entries: &[Entry],
        name: &Name,
        location: &'static Location<'static>,
    ) -> Result<Entries, PushError> {
        let held = &self.plan.names;
        let mut stand_ins = lock(&self.stand_ins);
        let mut replace = |entry: &Entry| {
            // SAFETY: the creator of the entry keeps a handle to the variable until the push returns.
            let named = unsafe { entry.cell.as_ref() };
            if named.queue().owner() == self.owner() && !named.queue().is_closed() {
                return Ok(*entry);
            }
            let found = held.binary_search_by_key(&entry.cell, |&(cell, _)| cell).ok();
            let Some(index) = found.filter(|&index| held[index].1.is_write() || !entry.mode.is_write()) else {
                let owner = named.queue().owner();
                // This family's variables are not closed yet. A closed variable with the same owner belongs to an
                // earlier family at the same address.
                let is_around = || owner != self.owner() && self.belongs_around(named);
                return Err(if owner == self.core.tag() || is_around() {
                    PushError::Variable(NoAccess::NotHeld, named.refused_access(name, location))
                } else {
                    self.core.not_owned(named, name, location)
                });
            };
            let stand_in = stand_ins.entry(index).or_insert_with(|| OwnedVar::standing_for(named));
            Ok(Entry { cell: stand_in.ptr(), ..*entry })
        };
        entries.iter().map(&mut replace).collect()
    }

    /// Returns what a child needs that uses these units: the same units of the resources that represent the parent's.
    ///
    /// # Errors
    /// Returns an error if the parent uses fewer units.
    pub(crate) fn units_for(&self, uses: &[Need<UnitsWaiter>]) -> Result<Needs, PushError> {
        self.core.live()?;
        let replace = |need: &Need<UnitsWaiter>| {
            let held = self.plan.uses.iter().find(|(held, _)| held.is_of(need));
            let (Need { resource, units }, part) = held.ok_or(PushError::Unfit(Misfit::UnitsNotHeld))?;
            let part = part.get_or_init(|| {
                let part = ResourceCore::new(resource.owner(), *units, false);
                resource.name().into_iter().for_each(|name| part.set_name(name.clone()));
                let part = Arc::new(part);
                self.core.resources().add(&part);
                part
            });
            Ok(Need { resource: Arc::clone(part), units: need.units })
        };
        uses.iter().filter(|need| need.units != 0).map(replace).collect()
    }

    /// Pushes a child.
    pub(crate) fn push(
        &self,
        spec: &Spec,
        location: &'static Location<'static>,
        entries: &mut [Entry],
        mut job: ErasedJob,
        mut limits: Box<Limits>,
    ) -> Result<(), PushError> {
        // SAFETY: the job keeps the state until the operation has started.
        let place = job.beside().map(|beside| NonNull::from(unsafe { beside.as_ref() }.place()));
        let mut replaced = || {
            let part = self.begin_part()?;
            // A variable that was deleted after the parent's push is not refused, since the deletion is queued behind
            // the parent.
            let sorted = sort(entries, &spec.name, location)?;
            Ok((self.stand_in(sorted, &spec.name, location)?, part))
        };
        let (mut entries, part) = match replaced() {
            Ok(replaced) => replaced,
            Err(error) => {
                // `?` is not used, for the reason given in `Core::create`.
                drop(job);
                return Err(error);
            }
        };
        let mutates = entries.iter().any(|entry| entry.mode.is_write());
        self.count.enter();
        let Some(share) = self.this.upgrade() else { unreachable!("the caller has a reference") };
        limits.join_kin(self.group(), share, Some(self.identity.op), mutates);
        job.limit(limits);
        let entries = sort(&mut entries, &spec.name, location)?;
        let op = self.core.create(spec, spec.priority, location, entries, job)?;
        if let Some(children) = &mut *lock(&self.children) {
            if let Some(place) = place {
                // SAFETY: the place is valid until the operation has started.
                unsafe { place.as_ref() }.keep_out(self.identity.task);
            }
            children.push(Child { op, place });
        } else {
            unreachable!("the parent's work has not ended");
        }
        drop(part);
        room::end_push(&self.core);
        Ok(())
    }

    /// Records that the parent's function has ended with `result`.
    pub(crate) fn end_function(&self, result: Result<(), OpError>) {
        if self.core.is_forked() {
            // The parent process completes the operation.
            return mem::forget(result);
        }
        self.end_work(result);
    }

    /// Ends part of the parent's work with `result`. Ending the last part releases the children.
    fn end_work(&self, result: Result<(), OpError>) {
        if let Err(failure) = result {
            let second = lock(&self.own).work.replace(failure);
            debug_assert!(second.is_none(), "a future that has begun has no other failure");
        }
        if self.count.end_part() {
            self.release();
        }
    }

    /// Records that the parent's completion was used or its future has ended, with `result`. `op` is the right to
    /// complete the parent.
    pub(crate) fn end_completion(&self, op: OpRef<Task>, result: Result<(), OpError>) {
        if let Some(limits) = op.task().limits() {
            // SAFETY: (1): this thread has the right to end the operation.
            unsafe { limits.set_parent_of(None) };
        }
        let before = lock(&self.parent).replace(op);
        debug_assert!(before.is_none(), "an operation is completed once");
        if self.is_future.get().is_some() {
            self.end_work(result);
        } else {
            lock(&self.own).completion = result.err();
        }
        self.leave();
    }

    /// Lets the children enter the queues after the parent's work has ended.
    #[cold]
    fn release(&self) {
        let failure = lock(&self.own).work.clone();
        let stand_ins = lock(&self.stand_ins).iter().map(|(index, var)| (*index, var.ptr())).collect::<Vec<_>>();
        let variables = lock(&self.variables).iter().map(OwnedVar::ptr).collect::<Vec<_>>();
        if let Some(failure) = failure {
            let names = &self.plan.names;
            let mutated = stand_ins.iter().filter(|(index, _)| names[*index].1.is_write()).map(|(_, cell)| cell);
            for cell in mutated.chain(&variables) {
                // SAFETY: the family has a handle to the variable until the family is over, which it is not yet.
                let cell = unsafe { cell.as_ref() };
                // SAFETY: no operation has entered the queue of this variable, and no other thread uses it.
                let none = unsafe { cell.set_failure(Some(failure.clone())) };
                debug_assert!(none.is_none(), "the variable is new");
            }
        }
        // SAFETY: the parent is not complete before the family is over, so its record exists.
        let parent = unsafe { self.identity.op.cast::<Op<Task>>().as_ref() };
        self.core.leave_bounds(parent);
        let children = lock(&self.children).take().unwrap_or_default();
        // All children are released before the first one may run, since that child may wait for another.
        for place in children.iter().filter_map(|child| child.place) {
            // SAFETY: the operation has not started, so the place is valid.
            unsafe { place.as_ref() }.let_go();
        }
        // Without workers, all children enter their queues before the first one runs. With workers, no child runs on
        // this thread, not even an eager one, since it could wait for a child that is not in a queue yet.
        let mut ready = ReadyList::default();
        let has_workers = self.core.has_workers();
        let mut dispatch = |op: OpRef<Task>| match has_workers {
            true if op.task().has(flag::EAGER) => self.core.record_and_schedule(op),
            true => self.core.dispatch(op),
            false => ready.push(op),
        };
        for Child { op, .. } in children {
            let pushed = self.core.enqueue_with(op, &mut dispatch);
            debug_assert!(pushed.is_ok(), "a variable of a family is never deleted");
        }
        for cell in variables {
            self.count.enter();
            let Some(this) = self.this.upgrade() else { unreachable!("the caller has a reference") };
            // SAFETY: (1): the family has a handle to the variable. (2): every child that declares the variable has
            // entered the variable's queue, and all other pushes are refused.
            unsafe { variables::empty_variable(&self.core, cell, KinShare::new(this), &mut dispatch) };
        }
        self.leave();
        // Operations that run inside the next call may wait for the parent, so this thread has already dropped its
        // share of the family.
        self.core.dispatch_ready(&mut ready, Epilogue::Nothing);
    }

    /// Returns a failure of a child that no later child has cleared. If there are several, returns the failure of the
    /// child pushed first.
    fn failure_of_children(&self) -> Option<OpError> {
        let (stand_ins, variables) = (lock(&self.stand_ins), lock(&self.variables));
        let failures = || {
            stand_ins.values().chain(&*variables).filter_map(|var| {
                // SAFETY: every operation on the variable has ended.
                unsafe { var.cell().failure() }
            })
        };
        let is_left = |failure: &OpError| failures().any(|left| left.ptr_eq(failure));
        self.plan.group.first_failure(is_left).map(|first| first.failed().clone()).or_else(|| failures().next())
    }

    /// Completes the parent.
    #[cold]
    fn end(&self) {
        let OwnFailures { work, completion } = mem::take(&mut *lock(&self.own));
        let (failure, second) = match (work, completion) {
            (Some(work), second) => (Some(work), second),
            (None, Some(failure)) => (Some(failure), None),
            (None, None) => (self.failure_of_children(), None),
        };
        // The second failure must not be lost.
        second.iter().for_each(|second| self.core.record_failure(second));
        let Some(op) = lock(&self.parent).take() else { return };
        // The family's variables are dropped before a wait for the parent can return.
        drop((mem::take(&mut *lock(&self.stand_ins)), mem::take(&mut *lock(&self.variables))));
        // Ending an asynchronous operation does not touch its job.
        let function = if op.task().has(flag::ASYNC) { FnState::MayRun } else { FnState::Called };
        let mut ready = ReadyList::default();
        let mut epilogue = self.core.complete(op, failure.map_or(Ok(()), Err), function, &mut ready);
        if let Epilogue::Completed(completed) = &mut epilogue {
            completed.ended.extend(second);
        }
        let epilogue = self.core.defer_epilogue(epilogue);
        self.core.dispatch_ready(&mut ready, epilogue);
    }
}

/// A part of the parent's work: the push of a child or the creation of a variable. It ends when this value is dropped.
struct FamilyPart<'f>(&'f Family);

impl Drop for FamilyPart<'_> {
    fn drop(&mut self) {
        if !self.0.core.is_forked() && self.0.count.end_part() {
            let _running = room::run_without_worker(&self.0.core);
            self.0.release();
        }
    }
}

impl Kin for Family {
    fn each_held_here(&self, look: &mut dyn FnMut(NonNull<()>), further: &mut dyn FnMut(Arc<dyn Kin>)) {
        self.plan.names.iter().for_each(|&(cell, _)| look(VarCell::queue_ptr(cell).cast()));
        self.within().into_iter().for_each(|family| further(family));
    }

    fn each_around(&self, look: &mut dyn FnMut(Around)) {
        if !self.count.is_over() {
            look((self.identity.op, self.within().map(|family| family as Arc<dyn Kin>)));
        }
    }

    fn known_from(&self) -> Option<*const ()> {
        None
    }

    fn keeps_out(&self, place: &WaitersPlace) -> bool {
        place.is_kept_out_by(self.identity.task)
    }

    fn begin_future(&self) {
        let _ = self.is_future.set(());
        let begun = self.count.begin_part();
        debug_assert!(begun, "the function of the parent runs");
    }

    fn leave(&self) {
        if self.core.is_forked() || !self.count.leave() {
            return;
        }
        match self.this.upgrade() {
            // Nested families, each with a single child, may end inside one another to a great depth.
            Some(this) if ready_loop::is_stack_short(&self.core) => self.core.hand_over(move |_| this.end()),
            _ => ready_loop::in_place(|| self.end()),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
