//! A push appends an operation's accesses to the queues of its variables.
//!
//! [`Core::push`] takes these steps:
//!
//! 1. [`check_and_sort`](Core::check_and_sort): the push is refused unless every variable belongs to this engine and is
//!    not deleted, or if the function would receive two references to a value, one of them mutable. The accesses are
//!    sorted by variable, and accesses to the same variable are merged.
//! 2. [`begin`](Core::begin): the operation is counted as pending and receives a record, if the engine
//!    accepts it.
//! 3. [`Task::fill_erased`]: the job, which contains the function, is moved into the record.
//! 4. [`enqueue`](Core::enqueue): the tracker appends the accesses to the queues of their variables. If the operation
//!    is ready, it is [dispatched](Core::dispatch).
//!
//! No step depends on the function's type, so all of them are compiled once. Operations with no property but a
//! name and perhaps a handle go a shorter way, for which the number of accesses is known at compile time: with one access
//! or none, a single function performs all steps ([`push_sole`](Core::push_sole), [`push_free`](Core::push_free)); with
//! two to four accesses, all steps but the third are in a function for that number ([`push_few`](Core::push_few)). These
//! functions leave everything unusual to [`push`](Core::push).

use std::{array, iter, mem::ManuallyDrop, ops::Deref, panic::Location, ptr::NonNull, slice, sync::Arc};

use crate::{
    engine::{
        core::{Core, phase},
        frame, no_wait, ready_loop,
        recording::is_observing,
        spec::{Entry, Refs, Spec},
        task::{ErasedJob, FillJob, Job, Task, flag},
        variable::VarCell,
        worker_thread,
    },
    error::push::PushError,
    notify::pending::Ticket,
    scheduler::{DEFAULT_BAND, band_of},
    sync::{
        Ordering::Relaxed,
        edge::{removed, step},
    },
    tracker::{self, INLINE_ACCESSES, Mode, OpRef},
    values::{Name, kind::EngineKind},
};

impl Core {
    /// Pushes an operation.
    pub(crate) fn push(
        self: &Arc<Self>,
        spec: &Spec,
        location: &'static Location<'static>,
        entries: &mut [Entry],
        job: ErasedJob,
    ) -> Result<(), PushError> {
        match self.check_and_sort(entries, &spec.name, location) {
            Ok(entries) => self.push_sorted(spec, spec.priority, location, entries, job),
            Err(error) => {
                // `?` is not used, for the reason given in `create`.
                drop(job);
                Err(error)
            }
        }
    }

    /// [`push`](Self::push) for an operation with up to [`INLINE_ACCESSES`] accesses, no properties except a name and no
    /// limits. Takes the way for the number of accesses. Inlined, since the caller may know
    /// this number; the entries are dropped before the push, so that they need not be in memory.
    #[inline(always)]
    pub(crate) fn push_plain<J: Job>(
        self: &Arc<Self>,
        name: &'static str,
        location: &'static Location<'static>,
        entries: impl Deref<Target = [Entry]>,
        job: J,
    ) -> Result<(), PushError> {
        debug_assert!(entries.len() <= INLINE_ACCESSES);
        match *entries {
            [a] => {
                drop(entries);
                self.push_sole(name, location, a, job)
            }
            [a, b] => {
                drop(entries);
                self.push_few(name, location, [a, b], job)
            }
            [a, b, c] => {
                drop(entries);
                self.push_few(name, location, [a, b, c], job)
            }
            [a, b, c, d] => {
                drop(entries);
                self.push_few(name, location, [a, b, c, d], job)
            }
            _ => self.push_free(name, location, job),
        }
    }

    /// [`push`](Self::push) for an operation with one access, no properties except a name, compiled as one function because such operations are the most frequent.
    #[inline(never)]
    pub(crate) fn push_sole<J: Job>(
        self: &Arc<Self>,
        name: &'static str,
        location: &'static Location<'static>,
        mut entry: Entry,
        job: J,
    ) -> Result<(), PushError> {
        // SAFETY: the creator of the entry keeps a handle to the variable until the push returns.
        let queue = unsafe { entry.cell.as_ref() }.queue();
        if !self.is_straight || queue.owner() != self.tag() || queue.is_closed() {
            return self.push_slowly(name, location, slice::from_mut(&mut entry), ErasedJob::new(job));
        }
        queue.prefetch();
        let Some(ticket) = self.enter_if_open() else {
            return self.push_slowly(name, location, slice::from_mut(&mut entry), ErasedJob::new(job));
        };
        let init = init_task(ticket, name, location, job);
        let access = iter::once((VarCell::queue_ptr(entry.cell), entry.mode));
        // SAFETY: the creator of the entry keeps a handle to the variable until the push returns. `init` begins and
        // fills the task. The iterator reports its exact length.
        let op = unsafe { OpRef::new_with(init, DEFAULT_BAND, false, access) };
        if self.only_records {
            self.record_plain_push(&op, name, location, &[entry]);
        }
        op.mark(self.mark());
        let pushed = tracker::push_sole(op);
        if let Some(op) = pushed.ready {
            self.schedule_pushed(op, J::REPORTS);
        }
        if pushed.rejected { Err(Rejected.into_error(&Name::from(name), location, &[entry])) } else { Ok(()) }
    }

    /// [`push`](Self::push) for an operation with `N` accesses, from two to [`INLINE_ACCESSES`], no properties except a
    /// name, and a job that is [straight](is_straight).
    #[inline]
    pub(crate) fn push_few<const N: usize, J: Job>(
        self: &Arc<Self>,
        name: &'static str,
        location: &'static Location<'static>,
        mut entries: [Entry; N],
        job: J,
    ) -> Result<(), PushError> {
        let mut job = ManuallyDrop::new(job);
        let erased = (Task::fill_job::<J> as FillJob, (&raw mut job).cast());
        // SAFETY: (1): the pointer is to the job, which is not used again unless the push is refused.
        match unsafe { self.push_erased(name, location, &entries, erased) } {
            FewPushed::Accepted => Ok(()),
            FewPushed::Rejected => Err(Rejected.into_error(&Name::from(name), location, &entries)),
            FewPushed::Refused => {
                self.push_slowly(name, location, &mut entries, ErasedJob::new(ManuallyDrop::into_inner(job)))
            }
        }
    }

    /// [`push`](Self::push) for an operation with no accesses, no properties except a name. The operation enters no queue, so it is ready.
    #[inline(never)]
    pub(crate) fn push_free<J: Job>(
        self: &Arc<Self>,
        name: &'static str,
        location: &'static Location<'static>,
        job: J,
    ) -> Result<(), PushError> {
        if !self.is_straight {
            return self.push_slowly(name, location, &mut [], ErasedJob::new(job));
        }
        let Some(ticket) = self.enter_if_open() else {
            return self.push_slowly(name, location, &mut [], ErasedJob::new(job));
        };
        let init = init_task(ticket, name, location, job);
        // SAFETY: there are no variables. `init` begins and fills the task. The iterator reports its exact length.
        let op = unsafe { OpRef::new_with(init, DEFAULT_BAND, false, iter::empty()) };
        if self.only_records {
            self.record_plain_push(&op, name, location, &[]);
        }
        op.mark(self.mark());
        self.schedule_pushed(op, J::REPORTS);
        Ok(())
    }

    /// [`push_few`](Self::push_few), for a job of any type. The job is a function that moves it into a task, and its
    /// address.
    ///
    /// # Safety
    /// 1. The function is [`Task::fill_job`] for the type of the job at the address. Unless this returns
    ///    [`FewPushed::Refused`], the job has been moved, and the caller does not use it again.
    #[inline(never)]
    unsafe fn push_erased<const N: usize>(
        self: &Arc<Self>,
        name: &'static str,
        location: &'static Location<'static>,
        entries: &[Entry; N],
        (fill_job, job): (FillJob, *mut ()),
    ) -> FewPushed {
        if !self.is_straight {
            return FewPushed::Refused;
        }
        let mut ids = [0; N];
        for (id, entry) in ids.iter_mut().zip(entries) {
            // SAFETY: the creator of the entry keeps a handle to the variable until the push returns.
            let queue = unsafe { entry.cell.as_ref() }.queue();
            if queue.owner() != self.tag() || queue.is_closed() {
                return FewPushed::Refused;
            }
            queue.prefetch();
            *id = queue.id();
        }
        let mut places = array::from_fn(|at| at as u32);
        if !ids.is_sorted_by(|before, id| before < id) {
            // An access's place is the number of smaller ids. For so few accesses, counting takes fewer steps than
            // sorting.
            places = [0; N];
            for later in 1..N {
                for earlier in 0..later {
                    if ids[earlier] == ids[later] {
                        return FewPushed::Refused;
                    }
                    let is_smaller = u32::from(ids[earlier] < ids[later]);
                    places[later] += is_smaller;
                    places[earlier] += 1 - is_smaller;
                }
            }
        }
        let Some(ticket) = self.enter_if_open() else { return FewPushed::Refused };
        let access = |at: usize| (places[at], VarCell::queue_ptr(entries[at].cell), entries[at].mode);
        // SAFETY: the creator of the entries keeps handles to their variables until the push returns. The task is
        // filled below. Since the ids are distinct, so are the places, which are below `N`.
        let (op, task) = unsafe { OpRef::new_few::<N>(DEFAULT_BAND, access) };
        let flags = if name.is_empty() { 0 } else { flag::NAMED };
        // SAFETY: `task` points to uninitialised memory for a task in the record, and is filled below.
        unsafe { Task::begin(task, ticket, 0, flags) };
        // SAFETY: the task was begun, and no other thread knows it yet.
        unsafe { Task::describe(task, Name::from(name), location) };
        // SAFETY: the task was begun, and no other thread knows it yet. By (1) there is such a job at the address.
        unsafe { fill_job(task, job) };
        if self.only_records {
            self.record_plain_push(&op, name, location, entries);
        }
        op.mark(self.mark());
        let pushed = tracker::push(op);
        if let Some(op) = pushed.ready {
            let claims = op.task().has(flag::REPORTS);
            self.schedule_pushed(op, claims);
        }
        if pushed.rejected { FewPushed::Rejected } else { FewPushed::Accepted }
    }

    /// Schedules on its lane an operation that was ready when a short way pushed it. `claims` is whether the operation
    /// has a handle.
    #[inline(always)]
    fn schedule_pushed(self: &Arc<Self>, op: OpRef<Task>, claims: bool) {
        if claims {
            self.publish_and_schedule(op);
        } else {
            worker_thread::schedule(self, op);
        }
    }

    /// Schedules a ready operation with a handle on its lane, where a waiter may take it.
    #[inline(never)]
    fn publish_and_schedule(self: &Arc<Self>, op: OpRef<Task>) {
        Self::publish(&op);
        worker_thread::schedule(self, op);
    }

    /// Counts an operation as pending if the engine is open. In any other phase, [`push`](Self::push) must decide.
    #[inline(always)]
    fn enter_if_open(self: &Arc<Self>) -> Option<Ticket> {
        let ticket = self.pending.enter();
        // Relaxed: as in `begin`.
        let phase = self.phase.load(Relaxed);
        if phase != phase::OPEN && !removed(step::PHASE_REFUSES) {
            if phase != phase::FORKED {
                // Not done in a forked child, since nothing there waits for the parent's count.
                self.count_out(ticket);
            }
            return None;
        }
        Some(ticket)
    }

    /// [`push`](Self::push) for an operation that a short way cannot push after all.
    #[cold]
    #[inline(never)]
    fn push_slowly(
        self: &Arc<Self>,
        name: &'static str,
        location: &'static Location<'static>,
        entries: &mut [Entry],
        job: ErasedJob,
    ) -> Result<(), PushError> {
        self.push(&Spec::new(Name::from(name)), location, entries, job)
    }

    /// Pushes an operation whose entries have passed [`check_and_sort`](Self::check_and_sort).
    pub(crate) fn push_sorted(
        self: &Arc<Self>,
        spec: &Spec,
        priority: i32,
        location: &'static Location<'static>,
        entries: &[Entry],
        job: ErasedJob,
    ) -> Result<(), PushError> {
        let op = self.create(spec, priority, location, entries, job)?;
        self.enqueue(op).map_err(|rejected| rejected.into_error(&spec.name, location, entries))
    }

    /// Creates an operation whose entries have passed [`check_and_sort`](Self::check_and_sort). The caller must
    /// [enqueue](Self::enqueue) it.
    pub(super) fn create(
        self: &Arc<Self>,
        spec: &Spec,
        priority: i32,
        location: &'static Location<'static>,
        entries: &[Entry],
        job: ErasedJob,
    ) -> Result<OpRef<Task>, PushError> {
        // SAFETY: the task is filled below, and the caller enqueues the operation.
        let op = match unsafe { self.begin(spec, priority, entries) } {
            Ok(op) => op,
            Err(error) => {
                // `?` is not used, since it would drop `job` as this function returns, and if that drop panicked, the
                // return value would leak.
                drop(job);
                return Err(error);
            }
        };
        // SAFETY: `begin` has begun the task, and no other thread knows it yet.
        unsafe { Task::describe(op.task_ptr(), spec.name.clone(), location) };
        // SAFETY: `begin` has begun the task, and no other thread knows it yet.
        unsafe { Task::fill_erased(op.task_ptr(), job) };
        Ok(op)
    }

    /// Returns an error if `cell`, a variable of the operation `name`, belongs to another engine or to an operation's
    /// children, or is known to have been deleted.
    #[inline]
    pub(crate) fn check_variable(
        &self,
        cell: &VarCell,
        name: &Name,
        location: &'static Location<'static>,
    ) -> Result<(), PushError> {
        if cell.queue().owner() != self.tag() {
            return Err(self.not_owned(cell, name, location));
        }
        if cell.queue().is_closed() {
            return Err(PushError::DeletedVariable(cell.refused_access(name, location)));
        }
        Ok(())
    }

    /// Returns the error for a variable that belongs to another engine or to an operation's children.
    #[cold]
    pub(super) fn not_owned(&self, cell: &VarCell, name: &Name, location: &'static Location<'static>) -> PushError {
        let access = cell.refused_access(name, location);
        if std::ptr::eq(&raw const **cell.core(), self) {
            PushError::FamilyVariable(access)
        } else {
            PushError::ForeignVariable(access)
        }
    }

    /// Checks every variable, sorts the entries by variable and merges entries for the same variable: a variable that
    /// is both read and mutated counts as mutated, and counts as overwritten only if every entry overwrites it. Returns
    /// the remaining entries. Errors identify the operation by `name` and `location`, where it was pushed.
    #[inline]
    pub(crate) fn check_and_sort<'e>(
        &self,
        entries: &'e mut [Entry],
        name: &Name,
        location: &'static Location<'static>,
    ) -> Result<&'e [Entry], PushError> {
        let check = |entry: &Entry| {
            // SAFETY: the creator of the entry keeps a handle to the variable until the push returns.
            let cell = unsafe { entry.cell.as_ref() };
            self.check_variable(cell, name, location)?;
            cell.queue().prefetch();
            Ok::<_, PushError>(cell.queue().id())
        };
        if let [first, others @ ..] = &*entries {
            let mut before = check(first)?;
            let mut sorted = true;
            for entry in others {
                let id = check(entry)?;
                sorted &= before < id;
                before = id;
            }
            if !sorted {
                return sort(entries, name, location);
            }
        }
        Ok(entries)
    }

    /// Counts an operation as pending and creates its record, if the engine accepts it. The entries must have passed
    /// [`check_and_sort`](Self::check_and_sort).
    ///
    /// # Safety
    /// 1. The caller [fills](Task::fill) the task, and then [enqueues](Self::enqueue) the operation.
    unsafe fn begin(self: &Arc<Self>, spec: &Spec, priority: i32, entries: &[Entry]) -> Result<OpRef<Task>, PushError> {
        let mut ticket = self.pending.enter();
        // Relaxed: the operation was counted first. Either the shutdown's wait covers it, or it entered a generation
        // that was opened after the phase was set; entering has acquired what preceded the opening (edge `open`), so
        // the phase is visible here.
        let phase = self.phase.load(Relaxed);
        if phase != phase::OPEN && !removed(step::PHASE_REFUSES) {
            ticket = self.check_phase(phase, spec, ticket)?;
        }
        if self.kind == EngineKind::Naive && !self.naive_engine_accepts(spec) {
            self.count_out(ticket);
            self.end_push();
            return Err(PushError::InDeviceFunction);
        }
        let band = if priority == 0 { DEFAULT_BAND } else { band_of(priority) };
        let accesses = entries.iter().map(|entry| (VarCell::queue_ptr(entry.cell), entry.mode));
        // SAFETY: `task` points to uninitialised memory for a task in the record, and the caller fills the task (1).
        let init = |task: *mut Task| unsafe { Task::begin(task, ticket, spec.lane, spec.flags) };
        // SAFETY: the creator of the entries keeps handles to their variables until the push returns. `init` begins the
        // task, and the caller fills it (1). The iterator over a slice reports its exact length.
        Ok(unsafe { OpRef::new_with(init, band, spec.passes_closed, accesses) })
    }

    /// Decides whether an engine that is shutting down, is observed, or has a limit accepts an operation. If it does
    /// not, the operation is counted out, except in a forked child. An operation that was held back is counted anew,
    /// with a new ticket.
    #[cold]
    #[inline(never)]
    fn check_phase(self: &Arc<Self>, phase: u8, spec: &Spec, ticket: Ticket) -> Result<Ticket, PushError> {
        if phase == phase::FORKED {
            // The operation is not counted out, since nothing in the child waits for the parent's count.
            return Err(PushError::Forked);
        }
        let is_accepted = || match phase {
            phase::OBSERVED => true,
            phase::BOUNDED if spec.is_admitted => {
                self.begin_push();
                true
            }
            phase::BOUNDED => self.may_push_counted(),
            phase::DRAINING => spec.is_child || frame::in_operation_of(self),
            _ => false,
        };
        if is_observing() && self.is_observed() && spec.flags & flag::INTERNAL == 0 {
            self.count_out(ticket);
            return Err(PushError::InObserver);
        }
        if spec.flags & flag::INTERNAL != 0 || is_accepted() {
            return Ok(ticket);
        }
        // The operation is not counted while it is held back, since other threads may be waiting until nothing is
        // pending.
        self.count_out(ticket);
        if phase != phase::BOUNDED {
            return Err(PushError::ShutDown);
        }
        self.hold_back(None)?;
        let ticket = self.pending.enter();
        // Relaxed: as in `begin`.
        match self.phase.load(Relaxed) {
            phase::BOUNDED => {
                self.begin_push();
                Ok(ticket)
            }
            phase::FORKED => Err(PushError::Forked),
            _ => {
                self.count_out(ticket);
                Err(PushError::ShutDown)
            }
        }
    }

    /// Whether the naive engine accepts an operation on this thread. The naive engine runs an operation inside its
    /// push, but no operation of the program may run inside the function of a device operation. There, it accepts only
    /// internal operations, unless a ready loop of this engine encloses the function and can run the operation later.
    #[cold]
    fn naive_engine_accepts(&self, spec: &Spec) -> bool {
        spec.flags & flag::INTERNAL != 0 || !no_wait::in_device_function() || ready_loop::has_outer_loop(self)
    }

    /// Appends an operation with a filled task to the queues of its variables, and dispatches the operation if it is
    /// ready.
    pub(super) fn enqueue(self: &Arc<Self>, op: OpRef<Task>) -> Result<(), Rejected> {
        self.enqueue_with(op, |op| self.dispatch(op))
    }

    /// Appends an operation with a filled task to the queues of its variables, and passes the operation to `dispatch`
    /// if it is ready.
    #[inline(always)]
    pub(super) fn enqueue_with(
        self: &Arc<Self>,
        op: OpRef<Task>,
        dispatch: impl FnOnce(OpRef<Task>),
    ) -> Result<(), Rejected> {
        if self.is_recorded() {
            self.record_push(&op);
            self.note_shuffled_push();
        }
        op.mark(self.mark());
        let pushed = tracker::push(op);
        if let Some(op) = pushed.ready {
            dispatch(op);
        }
        if self.is_bounded {
            self.end_push();
        }
        if pushed.rejected { Err(Rejected) } else { Ok(()) }
    }
}

/// Returns a function that initialises the task in the record of an operation with no property except a name.
#[inline(always)]
fn init_task(
    ticket: Ticket,
    name: &'static str,
    location: &'static Location<'static>,
    job: impl Job,
) -> impl FnOnce(*mut Task) {
    move |task| {
        let flags = if name.is_empty() { 0 } else { flag::NAMED };
        // SAFETY: the record's creation passes a pointer to uninitialised memory for a task, which is filled below.
        unsafe { Task::begin(task, ticket, 0, flags) };
        // SAFETY: the task was begun, and no other thread knows it yet.
        unsafe { Task::describe(task, Name::from(name), location) };
        // SAFETY: the task was begun, and no other thread knows it yet.
        unsafe { Task::fill(task, job) };
    }
}

/// The result of [`push_erased`](Core::push_erased).
enum FewPushed {
    Accepted,
    /// The operation was pushed, but a variable was deleted during the push.
    Rejected,
    /// Nothing was done: [`push`](Core::push) must decide.
    Refused,
}

/// The error of a push during which a variable was deleted. It has its own type because no other error can occur at
/// that stage.
pub(super) struct Rejected;

impl Rejected {
    /// Returns the error of the push of the operation `name` with these entries.
    #[cold]
    pub(super) fn into_error(self, name: &Name, location: &'static Location<'static>, entries: &[Entry]) -> PushError {
        // SAFETY: the creator of the entries keeps handles to their variables until the push returns.
        let mut cells = entries.iter().map(|entry| unsafe { entry.cell.as_ref() });
        let closed = cells.find(|cell| cell.queue().is_closed()).expect("closed variables stay closed");
        PushError::DeletedVariable(closed.refused_access(name, location))
    }
}

/// Sorts the entries by variable and merges entries for the same variable, as [`Core::check_and_sort`] does. Returns
/// the remaining entries.
pub(super) fn sort<'e>(
    entries: &'e mut [Entry],
    name: &Name,
    location: &'static Location<'static>,
) -> Result<&'e [Entry], PushError> {
    match sort_distinct(entries) {
        Ok(distinct) => Ok(&entries[..distinct]),
        Err(aliased) => {
            // SAFETY: the creator of the entry keeps a handle to the variable until the push returns.
            let cell = unsafe { aliased.0.as_ref() };
            Err(PushError::AliasedVariable(cell.refused_access(name, location)))
        }
    }
}

/// A variable to whose value an operation declares two references, at least one of which is mutable.
struct Aliased(NonNull<VarCell>);

/// Sorts entries by variable and merges entries for the same variable. Returns the number of remaining entries, which
/// are moved to the front.
#[inline(never)]
fn sort_distinct(entries: &mut [Entry]) -> Result<usize, Aliased> {
    // SAFETY: the creator of the entries keeps handles to their variables until the push returns.
    let id = |entry: &Entry| unsafe { entry.cell.as_ref() }.queue().id();
    if entries.len() <= INLINE_ACCESSES {
        // An insertion sort: setting up the general sort costs more than sorting so few entries.
        let mut equal = false;
        for end in 1..entries.len() {
            let entry = entries[end];
            let own = id(&entry);
            let mut place = end;
            while let Some(&before) = entries[..place].last() {
                let other = id(&before);
                equal |= other == own;
                if other <= own {
                    break;
                }
                entries[place] = before;
                place -= 1;
            }
            entries[place] = entry;
        }
        if !equal {
            return Ok(entries.len());
        }
    } else {
        entries.sort_unstable_by_key(id);
    }
    let (mut last, mut aliased) = (0, None);
    for at in 1..entries.len() {
        let later = entries[at];
        if later.cell != entries[last].cell {
            last += 1;
            entries[last] = later;
            continue;
        }
        let kept = &mut entries[last];
        if later.refs.min(kept.refs) != Refs::None && later.refs.max(kept.refs) == Refs::Exclusive {
            aliased = Some(Aliased(kept.cell));
        }
        if later.mode != kept.mode {
            kept.mode = Mode::Write;
        }
        kept.refs = kept.refs.max(later.refs);
    }
    aliased.map_or_else(|| Ok(entries.len().min(last + 1)), Err)
}
