//! A push appends an operation's accesses to the queues of its variables.
//!
//! [`Core::push`] takes these steps:
//!
//! 1. [`check_and_sort`]: the push is refused unless every variable belongs to this engine and is not deleted. The
//!    accesses are sorted by variable, and accesses to the same variable are merged. The push is refused if the
//!    function would then receive two references to a value, one of them mutable.
//! 2. [`begin`]: the operation is counted as pending and receives a record, if the engine accepts it.
//! 3. [`Task::fill_erased`]: the job, which contains the function, is moved into the record.
//! 4. [`enqueue`](Core::enqueue): the tracker appends the accesses to the queues of their variables. If the operation
//!    is ready, it is [dispatched](Core::dispatch).
//!
//! No step depends on the function's type, so all of them are compiled once.
//!
//! # The short way
//!
//! A [bare](Spec::is_bare) operation, with or without a handle, goes a shorter way if it has at most [`MOST_SHORT`]
//! accesses and the engine [has this way](ShortWay): [`push_short`], or one of the functions behind it if the type of
//! the accesses determines their number. With one access or none, a single function, compiled for the job's type, takes
//! all steps ([`push_sole`], [`push_free`]). Among operations that commute, only those with one access, of a type that
//! says so, go this way. With more, [`push_several`] leaves all steps to a function that moves jobs of any type
//! ([`push_several_untyped`]). It is compiled for each of the most frequent numbers of accesses, and once for the
//! others ([`Several`]). A ready operation is not dispatched but scheduled or, on an engine without workers, run
//! ([`schedule_pushed`]), since neither it nor the engine is special. These functions leave everything unusual,
//! including two accesses to one variable, to [`push`](Core::push).

use std::{array, iter, mem::ManuallyDrop, ops::Deref, panic::Location, sync::Arc};

use crate::{
    context::{ready_loop, worker_thread},
    engine::{
        admission,
        core::{Core, ShortWay, phase},
        dispatch, shuffle,
    },
    error::push_error::{Misfit, NoAccess, PushError},
    group::room,
    notify::{pending::Ticket, turn},
    observe::{record, recording::is_observing},
    op::{
        frame, no_wait,
        spec::{Entries, Entry, MOST_SHORT, Spec, sort},
        task::{ErasedJob, FillJob, Job, Task, flag, flags_of},
        variable::{Commuting, VarCell},
    },
    scheduler::{DEFAULT_BAND, band_of},
    sync::{
        Ordering::Relaxed,
        edge::{removed, step},
    },
    tracker::{self, Mode, OpRef, Room},
    values::{Name, kind::EngineKind},
    wait::in_place,
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
        match check_and_sort(self, entries, &spec.name, location) {
            Ok(entries) => self.push_sorted(spec, spec.priority, location, entries, job),
            Err(error) => {
                // `?` is not used, for the reason given in `create`.
                drop(job);
                Err(error)
            }
        }
    }

    /// Pushes an operation whose entries have passed [`check_and_sort`].
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

    /// Creates an operation whose entries have passed [`check_and_sort`]. The caller must
    /// [enqueue](Self::enqueue) it.
    pub(crate) fn create(
        self: &Arc<Self>,
        spec: &Spec,
        priority: i32,
        location: &'static Location<'static>,
        entries: &[Entry],
        mut job: ErasedJob,
    ) -> Result<OpRef<Task>, PushError> {
        if self.bound().is_some() && spec.flags & (flag::INTERNAL | flag::INLINE) == 0 {
            admission::bind(self, &mut job);
        }
        // SAFETY: the task is filled below, and the caller enqueues the operation.
        let op = match unsafe { begin(self, spec, priority, entries) } {
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
        // SAFETY: `begin` has begun the task, and no other thread knows it yet. The record has room for any task.
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
            return Err(PushError::Variable(NoAccess::Deleted, cell.refused_access(name, location)));
        }
        Ok(())
    }

    /// Returns the error for a variable that belongs to another engine or to an operation's children.
    #[cold]
    pub(crate) fn not_owned(&self, cell: &VarCell, name: &Name, location: &'static Location<'static>) -> PushError {
        let access = cell.refused_access(name, location);
        if std::ptr::eq(&raw const **cell.core(), self) {
            PushError::Variable(NoAccess::OfFamily, access)
        } else {
            PushError::Variable(NoAccess::Foreign, access)
        }
    }

    /// Appends an operation with a filled task to the queues of its variables, and dispatches the operation if it is
    /// ready.
    pub(crate) fn enqueue(self: &Arc<Self>, op: OpRef<Task>) -> Result<(), Rejected> {
        self.enqueue_with(op, |op| self.dispatch(op))
    }

    /// Appends an operation with a filled task to the queues of its variables, and passes the operation to `dispatch`
    /// if it is ready.
    #[inline(always)]
    pub(crate) fn enqueue_with(
        self: &Arc<Self>,
        op: OpRef<Task>,
        dispatch: impl FnOnce(OpRef<Task>),
    ) -> Result<(), Rejected> {
        if self.is_recorded() {
            record::push(self, &op);
            shuffle::note_push(self);
        }
        op.mark(self.mark());
        let pushed = tracker::push(op);
        if let Some(op) = pushed.ready {
            dispatch(op);
        }
        if self.is_bounded {
            room::end_push(self);
        }
        if pushed.rejected { Err(Rejected) } else { Ok(()) }
    }
}

/// [`push`](Core::push) for a bare operation with up to [`INLINE_ACCESSES`](tracker::INLINE_ACCESSES) accesses, or with
/// between one and [`MOST_SHORT`] if `MANY`. Takes the way for their number. Inlined, since the caller may know this
/// number; a few entries are dropped before the push, so that they need not be in memory. Without `MANY`, the caller
/// contains less code.
#[inline(always)]
pub(crate) fn push_short<const MANY: bool, J: Job>(
    core: &Arc<Core>,
    name: &'static str,
    location: &'static Location<'static>,
    entries: impl Deref<Target = [Entry]>,
    job: J,
) -> Result<(), PushError> {
    debug_assert!(entries.len() <= if MANY { MOST_SHORT } else { tracker::INLINE_ACCESSES });
    match *entries {
        [a] => {
            drop(entries);
            push_sole::<false, _>(core, name, location, a, job)
        }
        [a, b] => {
            drop(entries);
            push_several(core, name, location, &[a, b], job)
        }
        [a, b, c] => {
            drop(entries);
            push_several(core, name, location, &[a, b, c], job)
        }
        [a, b, c, d] => {
            drop(entries);
            push_several(core, name, location, &[a, b, c, d], job)
        }
        _ if const { MANY } => push_several(core, name, location, &*entries, job),
        _ => push_free(core, name, location, job),
    }
}

/// [`push`](Core::push) for a bare operation with one access, compiled as one function because such operations are the
/// most frequent. `COMMUTES` says whether it commutes.
#[inline(never)]
pub(crate) fn push_sole<const COMMUTES: bool, J: Job>(
    core: &Arc<Core>,
    name: &'static str,
    location: &'static Location<'static>,
    entry: Entry,
    job: J,
) -> Result<(), PushError> {
    debug_assert!((entry.mode == Mode::Commute) == COMMUTES);
    // SAFETY: the creator of the entry keeps a handle to the variable until the push returns.
    let cell = unsafe { entry.cell.as_ref() };
    let queue = cell.queue();
    if !has_short_way(core) || !queue.is_open_to(core.tag()) {
        return push_slowly(core, name, location, &[entry], ErasedJob::new(job));
    }
    queue.prefetch();
    let Some(ticket) = enter_if_unrestricted(core) else {
        return push_slowly(core, name, location, &[entry], ErasedJob::new(job));
    };
    let room = if COMMUTES { Task::ANY_ROOM } else { room(core, Task::bytes_for::<J>()) };
    let fill = init_task(ticket, name, location, job);
    let init = |task| {
        fill(task);
        if COMMUTES {
            // SAFETY: no other thread knows the task, which is bare. There is room for any task.
            unsafe { Task::set_commutes(task, cell.commuting().next_number()) };
        }
    };
    let access = iter::once((VarCell::queue_ptr(entry.cell), entry.mode));
    // SAFETY: the creator of the entry keeps a handle to the variable until the push returns. `init` begins and
    // fills the task, for which there is room. The iterator reports its exact length.
    let op = unsafe { OpRef::new_with(init, room, DEFAULT_BAND, false, access) };
    if core.only_records {
        record::push_short(core, &op, name, location, &[entry]);
    }
    op.mark(core.mark());
    let mut pushed = tracker::push_sole::<COMMUTES, _>(op);
    if COMMUTES {
        pushed.ready = pushed.ready.and_then(turn::take_sole_turn);
    }
    if let Some(op) = pushed.ready {
        schedule_pushed(core, op, J::REPORTS);
    }
    if pushed.rejected { Err(Rejected.into_error(&Name::from(name), location, &[entry])) } else { Ok(()) }
}

/// [`push`](Core::push) for a bare operation with two to [`MOST_SHORT`] accesses.
#[inline]
pub(crate) fn push_several<J: Job>(
    core: &Arc<Core>,
    name: &'static str,
    location: &'static Location<'static>,
    entries: &(impl Several + ?Sized),
    job: J,
) -> Result<(), PushError> {
    let mut job = ManuallyDrop::new(job);
    let erased = (const { &FillJob::of::<J>() }, (&raw mut job).cast());
    // SAFETY: (1): the pointer is to the job, which is not used again unless nothing was pushed.
    match unsafe { push_several_untyped(core, name, location, entries, erased) } {
        SeveralPushed::Accepted => Ok(()),
        SeveralPushed::Rejected => Err(Rejected.into_error(&Name::from(name), location, entries.as_ref())),
        SeveralPushed::NotPushed => {
            push_slowly(core, name, location, entries.as_ref(), ErasedJob::new(ManuallyDrop::into_inner(job)))
        }
    }
}

/// [`push`](Core::push) for a bare operation without accesses. It waits for no variable, so it is ready.
#[inline(never)]
pub(crate) fn push_free<J: Job>(
    core: &Arc<Core>,
    name: &'static str,
    location: &'static Location<'static>,
    job: J,
) -> Result<(), PushError> {
    if !has_short_way(core) {
        return push_slowly(core, name, location, &[], ErasedJob::new(job));
    }
    let Some(ticket) = enter_if_unrestricted(core) else {
        return push_slowly(core, name, location, &[], ErasedJob::new(job));
    };
    let init = init_task(ticket, name, location, job);
    // SAFETY: there are no variables. `init` begins and fills the task, for which there is room. The iterator reports
    // its exact length.
    let op = unsafe { OpRef::new_with(init, Task::ANY_ROOM, DEFAULT_BAND, false, iter::empty()) };
    if core.only_records {
        record::push_short(core, &op, name, location, &[]);
    }
    op.mark(core.mark());
    schedule_pushed(core, op, J::REPORTS);
    Ok(())
}

/// [`push_several`], compiled once for all types of jobs. The job is passed as its address, with the way to move it
/// into a task.
///
/// # Safety
/// 1. The [`FillJob`] is that of the type of the job at the address. Unless this returns
///    [`SeveralPushed::NotPushed`], the job has been moved, and the caller does not use it again.
#[inline(never)]
unsafe fn push_several_untyped<E: Several + ?Sized>(
    core: &Arc<Core>,
    name: &'static str,
    location: &'static Location<'static>,
    entries: &E,
    (fill_job, job): (&'static FillJob, *mut ()),
) -> SeveralPushed {
    let entries = entries.as_ref();
    let count = entries.len();
    debug_assert!(count > 1 && entries.iter().all(|entry| entry.mode != Mode::Commute));
    if !has_short_way(core) || count > MOST_SHORT {
        return SeveralPushed::NotPushed;
    }
    // In the ids of a slice, the lowest digit is the place of the id's entry, and the ids are sorted by insertion.
    const RADIX: u64 = MOST_SHORT as u64;
    let mut ids = [0; MOST_SHORT];
    for (at, entry) in entries.iter().enumerate() {
        // SAFETY: the creator of the entry keeps a handle to the variable until the push returns.
        let queue = unsafe { entry.cell.as_ref() }.queue();
        if !queue.is_open_to(core.tag()) {
            return SeveralPushed::NotPushed;
        }
        queue.prefetch();
        let (mut place, mut id) = (at, queue.id());
        if !E::FEW {
            id = id * RADIX + at as u64;
            while let Some(&before) = ids[..place].last() {
                if before < id {
                    if before / RADIX == id / RADIX {
                        return SeveralPushed::NotPushed;
                    }
                    break;
                }
                ids[place] = before;
                place -= 1;
            }
        }
        ids[place] = id;
    }
    let mut places: [u32; MOST_SHORT] = array::from_fn(|at| at as u32);
    if E::FEW && !ids[..count].is_sorted_by(|before, id| before < id) {
        // An access's place is the number of smaller ids. For so few accesses, counting takes fewer steps than
        // sorting.
        places = [0; MOST_SHORT];
        for later in 1..count {
            for earlier in 0..later {
                if ids[earlier] == ids[later] {
                    return SeveralPushed::NotPushed;
                }
                let is_smaller = u32::from(ids[earlier] < ids[later]);
                places[later] += is_smaller;
                places[earlier] += 1 - is_smaller;
            }
        }
    }
    let Some(ticket) = enter_if_unrestricted(core) else { return SeveralPushed::NotPushed };
    let access = |at: usize| {
        let (place, entry) =
            if E::FEW { (places[at], &entries[at]) } else { (at as u32, &entries[(ids[at] % RADIX) as usize]) };
        (place, VarCell::queue_ptr(entry.cell), entry.mode)
    };
    let room = room(core, fill_job.bytes);
    // SAFETY: the creator of the entries keeps handles to their variables until the push returns. The task is
    // filled below, and there is room for it. Since the ids are distinct, so are the places, which are below `count`.
    let (op, task) = unsafe { OpRef::new_several(count as u32, room, DEFAULT_BAND, false, (0..count).map(access)) };
    let flags = fill_job.flags | if name.is_empty() { 0 } else { flag::NAMED };
    // SAFETY: `task` points to uninitialised memory for a task in the record, and is filled below.
    unsafe { Task::begin(task, ticket, 0, flags) };
    // SAFETY: the task was begun, and no other thread knows it yet.
    unsafe { Task::describe(task, Name::from(name), location) };
    // SAFETY: the task was begun, and no other thread knows it yet. By (1) there is such a job at the address, and the
    // record has room for it.
    unsafe { (fill_job.fill)(task, job) };
    if core.only_records {
        match *entries {
            [a, b] => record::push_short(core, &op, name, location, &[a, b]),
            [a, b, c] => record::push_short(core, &op, name, location, &[a, b, c]),
            [a, b, c, d] => record::push_short(core, &op, name, location, &[a, b, c, d]),
            _ => record::push(core, &op),
        }
    }
    op.mark(core.mark());
    let pushed = tracker::push_ordered(op);
    if let Some(op) = pushed.ready {
        let claims = op.task().has(flag::REPORTS);
        schedule_pushed(core, op, claims);
    }
    if pushed.rejected { SeveralPushed::Rejected } else { SeveralPushed::Accepted }
}

/// Whether a short way may push an operation on this thread.
#[inline(always)]
fn has_short_way(core: &Core) -> bool {
    core.short_way == ShortWay::ToWorkers || has_short_way_here(core)
}

/// The rest of [`has_short_way`], for engines without workers.
#[cold]
#[inline(never)]
fn has_short_way_here(core: &Core) -> bool {
    core.short_way == ShortWay::Here && !no_wait::in_device_function()
}

/// Schedules on its lane an operation that was ready when a short way pushed it, or runs it if the engine has no
/// workers. `claims` is whether the operation has a handle.
#[inline(always)]
fn schedule_pushed(core: &Arc<Core>, op: OpRef<Task>, claims: bool) {
    if core.short_way == ShortWay::Here {
        dispatch::run_pushed(core, op);
    } else if claims {
        publish_and_schedule(core, op);
    } else {
        worker_thread::schedule(core, op);
    }
}

/// Schedules a ready operation with a handle on its lane, where a waiter may take it.
#[inline(never)]
fn publish_and_schedule(core: &Arc<Core>, op: OpRef<Task>) {
    in_place::publish(&op);
    worker_thread::schedule(core, op);
}

/// Counts an operation as pending if the engine is in its phase `OPEN`, in which any thread may push. In any other
/// phase, [`push`](Core::push) must decide.
#[inline(always)]
fn enter_if_unrestricted(core: &Arc<Core>) -> Option<Ticket> {
    let ticket = core.pending.enter();
    // Relaxed: as in `begin`.
    let phase = core.phase.load(Relaxed);
    if phase != phase::OPEN && !removed(step::PHASE_REFUSES) {
        if phase != phase::FORKED {
            // Not done in a forked child, since nothing there waits for the parent's count.
            core.count_out(ticket);
        }
        return None;
    }
    Some(ticket)
}

/// [`push`](Core::push) for an operation that a short way cannot push after all.
#[cold]
#[inline(never)]
fn push_slowly(
    core: &Arc<Core>,
    name: &'static str,
    location: &'static Location<'static>,
    entries: &[Entry],
    job: ErasedJob,
) -> Result<(), PushError> {
    let mut spec = Spec::new(Name::from(name));
    spec.flags |= job.flags();
    core.push(&spec, location, &mut Entries::from_slice(entries), job)
}

/// Checks every variable, sorts the entries by variable and merges entries for the same variable: a variable that
/// is both read and mutated counts as mutated, and counts as overwritten only if every entry overwrites it. Returns
/// the remaining entries. Errors identify the operation by `name` and `location`, where it was pushed.
#[inline]
pub(crate) fn check_and_sort<'e>(
    core: &Core,
    entries: &'e mut [Entry],
    name: &Name,
    location: &'static Location<'static>,
) -> Result<&'e [Entry], PushError> {
    let check = |entry: &Entry| {
        // SAFETY: the creator of the entry keeps a handle to the variable until the push returns.
        let cell = unsafe { entry.cell.as_ref() };
        core.check_variable(cell, name, location)?;
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
/// [`check_and_sort`].
///
/// # Safety
/// 1. The caller [fills](Task::fill) the task, and then [enqueues](Core::enqueue) the operation.
unsafe fn begin(core: &Arc<Core>, spec: &Spec, priority: i32, entries: &[Entry]) -> Result<OpRef<Task>, PushError> {
    let mut ticket = core.pending.enter();
    // Relaxed: the operation was counted first. Either the shutdown's wait covers it, or it entered a generation
    // that was opened after the phase was set; entering has acquired what preceded the opening (edge `open`), so
    // the phase is visible here.
    let phase = core.phase.load(Relaxed);
    if phase != phase::OPEN && !removed(step::PHASE_REFUSES) {
        ticket = check_phase(core, phase, spec, ticket)?;
    }
    let commutes = entries.iter().any(|entry| entry.mode == Mode::Commute);
    let is_misfit = commutes && spec.flags & flag::STREAM != 0;
    if is_misfit || core.kind == EngineKind::Naive && !naive_engine_accepts(core, spec) {
        core.count_out(ticket);
        room::end_push(core);
        return Err(if is_misfit { PushError::Unfit(Misfit::CommutesOnDevice) } else { PushError::InDeviceFunction });
    }
    let band = if priority == 0 { DEFAULT_BAND } else { band_of(priority) };
    let accesses = entries.iter().map(|entry| (VarCell::queue_ptr(entry.cell), entry.mode));
    let init = |task: *mut Task| {
        let flags = if spec.flags & flag::STREAM == 0 { spec.flags & !flag::COPY } else { spec.flags };
        // SAFETY: `task` points to uninitialised memory for a task in the record, and the caller fills the task (1).
        unsafe { Task::begin(task, ticket, spec.lane, flags) };
        if commutes {
            // SAFETY: the task was begun, and does not need a stream. There is room for any task.
            unsafe { Task::set_commutes(task, begin_commuting(entries)) };
        }
    };
    // SAFETY: the creator of the entries keeps handles to their variables until the push returns. `init` begins the
    // task, and the caller fills it (1). There is room for any task. The iterator over a slice reports its exact
    // length.
    Ok(unsafe { OpRef::new_with(init, Task::ANY_ROOM, band, spec.passes_closed, accesses) })
}

/// Returns the number of a push of an operation that commutes, for whose variables there are turns from now on. On
/// each of them, it is larger than those of the pushes that have returned before.
#[cold]
fn begin_commuting(entries: &[Entry]) -> u64 {
    let entries = entries.iter().filter(|entry| entry.mode == Mode::Commute);
    // SAFETY: the creator of the entries keeps handles to the variables until the push returns.
    let all = || entries.clone().map(|entry| unsafe { entry.cell.as_ref() }.commuting());
    let number = all().map(Commuting::next_number).max().unwrap_or_default();
    all().for_each(|commuting| commuting.note_number(number));
    number
}

/// Decides whether an engine that is shutting down, is observed, or has a limit accepts an operation. If it does
/// not, the operation is counted out, except in a forked child. An operation that was held back is counted anew,
/// with a new ticket.
#[cold]
#[inline(never)]
fn check_phase(core: &Arc<Core>, phase: u8, spec: &Spec, ticket: Ticket) -> Result<Ticket, PushError> {
    if phase == phase::FORKED {
        // The operation is not counted out, since nothing in the child waits for the parent's count.
        return Err(PushError::Forked);
    }
    if spec.flags & flag::INTERNAL != 0 {
        return Ok(ticket);
    }
    if let Err(refusal) = check_open(core, phase, spec.is_child) {
        core.count_out(ticket);
        return Err(refusal);
    }
    let has_room = match phase {
        phase::BOUNDED if spec.is_admitted => {
            room::begin_push(core);
            true
        }
        phase::BOUNDED => room::may_push_counted(core),
        _ => true,
    };
    if has_room {
        return Ok(ticket);
    }
    // The operation is not counted while it is held back, since other threads may be waiting until nothing is
    // pending.
    core.count_out(ticket);
    room::hold_back(core, None)?;
    let ticket = core.pending.enter();
    // Relaxed: as in `begin`.
    match core.phase.load(Relaxed) {
        phase::BOUNDED => {
            room::begin_push(core);
            Ok(ticket)
        }
        phase::FORKED => Err(PushError::Forked),
        _ => {
            core.count_out(ticket);
            Err(PushError::ShutDown)
        }
    }
}

/// Returns an error if an engine in `phase`, which is not that of a forked child, refuses the pushes of this thread.
fn check_open(core: &Core, phase: u8, is_child: bool) -> Result<(), PushError> {
    if is_observing() && core.is_observed() {
        return Err(PushError::InObserver);
    }
    match phase {
        phase::OPEN | phase::OBSERVED | phase::BOUNDED => Ok(()),
        phase::DRAINING if is_child || frame::in_operation_of(core) => Ok(()),
        _ => Err(PushError::ShutDown),
    }
}

/// Returns an error if the engine refuses the pushes of this thread, also those for which it needs no room.
pub(crate) fn check_accepts(core: &Core) -> Result<(), PushError> {
    core.live()?;
    // Relaxed: a shutdown that has begun before the push is seen.
    check_open(core, core.phase.load(Relaxed), false)
}

/// Whether the naive engine accepts an operation on this thread. The naive engine runs an operation inside its
/// push, but no operation of the program may run inside the function of a device operation. There, it accepts only
/// internal operations, unless a ready loop of this engine encloses the function and can run the operation later.
#[cold]
fn naive_engine_accepts(core: &Core, spec: &Spec) -> bool {
    spec.flags & flag::INTERNAL != 0 || !no_wait::in_device_function() || ready_loop::has_outer_loop(core)
}

/// Returns the room behind the task of a bare operation, whose job takes `bytes` there.
#[inline(always)]
fn room(core: &Core, bytes: usize) -> Room {
    Room { bytes, any: core.only_records }
}

/// Returns a function that initialises the task in the record of a bare operation.
#[inline(always)]
fn init_task<J: Job>(
    ticket: Ticket,
    name: &'static str,
    location: &'static Location<'static>,
    job: J,
) -> impl FnOnce(*mut Task) {
    move |task| {
        let flags = const { flags_of::<J>() } | if name.is_empty() { 0 } else { flag::NAMED };
        // SAFETY: the record's creation passes a pointer to uninitialised memory for a task, which is filled below.
        unsafe { Task::begin(task, ticket, 0, flags) };
        // SAFETY: the task was begun, and no other thread knows it yet.
        unsafe { Task::describe(task, Name::from(name), location) };
        // SAFETY: the task was begun, and no other thread knows it yet. The callers have chosen the record's size by
        // the job's.
        unsafe { Task::fill(task, job) };
    }
}

/// The entries of a push: a few in an array, for whose number the push is compiled, or a slice of any number.
pub(crate) trait Several: AsRef<[Entry]> {
    /// Whether this is an array.
    const FEW: bool;
}

impl<const N: usize> Several for [Entry; N] {
    const FEW: bool = true;
}

impl Several for [Entry] {
    const FEW: bool = false;
}

/// What [`push_several_untyped`] has done.
enum SeveralPushed {
    Accepted,
    /// The operation was pushed, but a variable was deleted during the push.
    Rejected,
    /// Nothing was done: [`push`](Core::push) must decide.
    NotPushed,
}

/// The error of a push during which a variable was deleted. It has its own type because no other error can occur at
/// that stage.
pub(crate) struct Rejected;

impl Rejected {
    /// Returns the error of the push of the operation `name` with these entries.
    #[cold]
    pub(crate) fn into_error(self, name: &Name, location: &'static Location<'static>, entries: &[Entry]) -> PushError {
        // SAFETY: the creator of the entries keeps handles to their variables until the push returns.
        let mut cells = entries.iter().map(|entry| unsafe { entry.cell.as_ref() });
        let closed = cells.find(|cell| cell.queue().is_closed()).expect("closed variables stay closed");
        PushError::Variable(NoAccess::Deleted, closed.refused_access(name, location))
    }
}
