//! Dumps of pending work, taken while the engine runs.
//!
//! From an operation's push until shortly before the operation is counted out, the first word of its record contains a
//! mark of its engine ([`marks`](crate::memory::marks)). The thread taking the dump is pinned, so the records
//! that it finds are not reused. An operation's task may be dropped in the meantime, but the parts of the record read
//! here, such as the name and the accesses, remain valid.

use std::{
    collections::HashMap,
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{
    device::gpus::FIRST_LANE,
    engine::core::{Core, Live},
    error::deadlock::Pushed,
    memory::{epoch, pool},
    notify::{
        pending::{PendingOps, Ticket},
        stock::Need,
        turn::TakesTurns,
        waiters::{Awaits, Goal, OpenScope, WaitingThread, waiters},
    },
    observe::record,
    op::{
        task::{Task, flag},
        units::{Units, UnitsState},
        variable::{VarCell, standing},
        variables::DROP,
    },
    scheduler::priority_of,
    trace::{
        OpId,
        dump::{Dump, OpState, PendingAccess, PendingOp, PendingUnits, PendingVar, Role, ThreadWait, WaitKind},
        recorder::RecordedEngine,
    },
    tracker::{Op, Standing, Successors, each_marked},
    values::Name,
    wait::cycles::{self, keep_incomplete, ticket_in},
};

/// The maximum number of holders of a resource for which an operation is shown to wait. Not tuned.
const MAX_HOLDERS: usize = 32;

/// Returns a dump of what is pending.
pub(crate) fn take(core: &Core) -> Dump {
    let mut dump = Dump::default();
    let Ok(live) = core.live() else { return dump };
    let running = record::running_ops(core);
    let pinned = epoch::pin();
    // The indices of operations, by record and by task; the task identifies an operation to waiters.
    let (mut by_record, mut by_task) = (HashMap::new(), HashMap::new());
    // Pairs of an operation's record and the index of an operation for which this operation waits.
    let mut before = Vec::new();
    // The records of the operations, and the indices of the variables by address.
    let (mut records, mut variables) = (Vec::new(), HashMap::new());
    // The sleeping threads are listed before the operations. Any operation that one of these threads still awaits
    // afterwards is therefore found to be pending.
    let (mut threads, mut scopes) = (waiters().of_engine(cycles::engine(core)), waiters().scopes(cycles::engine(core)));
    // SAFETY: (1): this thread is pinned. (2): the functions of these operations had not returned when they were
    // listed, so no record is reused before this thread is unpinned.
    threads.iter_mut().for_each(|thread| unsafe { keep_incomplete(&mut thread.ops) });
    // SAFETY: as for (2) above.
    scopes.retain(|scope| !unsafe { scope.op.cast::<Op<Task>>().as_ref() }.task().is_over());
    let mut successors = Successors::new(&pinned);
    each_op(core, &pinned, |op, has_started| {
        let index = dump.ops.len();
        by_record.insert(NonNull::from(op).cast::<()>(), index);
        by_task.insert(op.shared_task_ptr().cast::<()>().cast_mut(), index);
        for access in op.accesses() {
            successors.each(access, |later| before.push((NonNull::from(later).cast::<()>(), index)));
        }
        records.push(NonNull::from(op));
        let described = describe(core, op, has_started, &running);
        note_accesses(op, index, &mut dump.variables, &mut variables);
        dump.ops.push(described);
    });
    for (later, earlier) in before {
        if let Some(&later) = by_record.get(&later) {
            dump.ops[later].waits_for.push(earlier);
        }
    }
    let members = FoundOps::of(records);
    members.each_lack_of_turns(|waiting, holder| dump.ops[waiting].waits_for.push(holder));
    members.each_lack_of_units(|waiting, holder| dump.ops[waiting].waits_for.push(holder));
    for (child, parent) in members.parents() {
        if let Some(parent) = by_record.get(&parent).map(|&parent| &mut dump.ops[parent]) {
            parent.waits_for.push(child);
            // A child is marked when it enters its queues, which it does only after its parent's work has ended.
            parent.state = OpState::WaitingForChildren;
        }
    }
    for OpenScope { op, count, .. } in scopes {
        if let Some(&op) = by_record.get(&op) {
            let inside = members.in_count(count.as_ptr()).filter(|member| member.is_innermost);
            dump.ops[op].waits_for.extend(inside.map(|member| member.index));
        }
    }
    let mut targets = HashMap::new();
    waiters().each_goal(cycles::engine(core), |number, is_inside, goal| {
        let covered = |index: &usize| goal.covers(|pending| members.ticket_in(*index, pending));
        let found: Vec<usize> = match goal {
            Goal::Op { task, .. } => by_task.get(&task.as_ptr()).copied().into_iter().collect(),
            // A thread outside operations delays no operation.
            Goal::Counted(pending, _) if ptr::eq(*pending, &raw const core.pending) => {
                (0..members.records.len()).filter(|_| is_inside).filter(covered).collect()
            }
            Goal::Counted(pending, _) => {
                members.in_count(*pending).map(|member| member.index).filter(covered).collect()
            }
        };
        if !found.is_empty() || !matches!(goal, Goal::Op { .. }) {
            targets.insert(number, found);
        }
    });
    for thread in threads {
        match targets.remove(&thread.number) {
            // The wait is over by now.
            None if thread.has_goal => {}
            targets => dump.add_waiting(&thread, targets.unwrap_or_default(), |op| by_record.get(op).copied()),
        }
    }
    for op in &mut dump.ops {
        op.waits_for.sort_unstable();
        op.waits_for.dedup();
    }
    dump.record_bytes = pool::bytes();
    dump.unlisted = live.pending().saturating_sub(dump.ops.len() as u64);
    dump
}

fn describe(core: &Core, op: &Op<Task>, has_started: bool, running: &HashMap<OpId, String>) -> PendingOp {
    let task = op.task();
    let standings: Vec<Standing> = op.accesses().map(|access| standing(op, access)).collect();
    let units = task.units();
    let waits_for_units = units.is_some_and(|units| units.state() == UnitsState::Waits);
    let lacks = units.filter(|_| waits_for_units).into_iter().flat_map(Units::needs);
    let uses = lacks.chain(units.into_iter().flat_map(Units::held));
    let units = uses.map(|Need { resource, units }| PendingUnits {
        resource: resource.name().map(Name::to_string).unwrap_or_default(),
        units: *units,
        waits: waits_for_units,
    });
    // The accesses of an operation that has ended may be gone.
    let are_gone = standings.len() < op.access_count() as usize;
    let state = if are_gone || !standings.is_empty() && standings.iter().all(|&standing| standing == Standing::Done) {
        OpState::Ending
    } else if has_started {
        OpState::Running
    } else if standings.contains(&Standing::Waits) {
        OpState::Waiting
    } else if waits_for_units {
        OpState::WaitingForUnits
    } else {
        OpState::Ready
    };
    // A variable that the operation has released may have been freed before this thread was pinned.
    let in_use = op.accesses().zip(&standings).filter(|&(_, &standing)| standing != Standing::Done);
    let accesses = in_use.map(|(access, &standing)| PendingAccess {
        variable: name_of(VarCell::of(access)),
        mode: access.mode().into(),
        waits: standing == Standing::Waits,
    });
    PendingOp {
        id: task.op_id(),
        name: task.name().clone(),
        location: task.location(),
        state,
        device: core.gpus.device_of(task.lane),
        lane: lane_name(core, task.lane),
        place: task.op_id().and_then(|id| running.get(&id)).cloned(),
        age: task.op_id().and_then(|id| record::age_of(core, id)),
        priority: priority_of(op.band),
        asynchronous: task.has(flag::ASYNC),
        internal: task.has(flag::INTERNAL),
        accesses: accesses.collect(),
        units: units.collect(),
        waits_for: Vec::new(),
        role: if task.has(flag::INTERNAL) && (op.access_count() == 0 || task.name().as_str() == DROP) {
            Role::OfEngine
        } else if task.has(flag::INLINE) && task.has(flag::ASYNC) {
            Role::Guards
        } else {
            Role::OfProgram
        },
    }
}

/// Returns how many of the program's operations have not completed, and the name of one of them with its push location.
#[cfg_attr(not(all(target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri)))), allow(dead_code))]
pub(crate) fn incomplete_ops(core: &Core) -> Option<(usize, Pushed)> {
    if core.is_forked() {
        return None;
    }
    let (mut count, mut first) = (0, None);
    each_op(core, &epoch::pin(), |op, has_started| {
        let task = op.task();
        let uses_variables = op.access_count() > 0;
        let is_incomplete = if uses_variables {
            op.accesses().any(|access| access.standing() != Standing::Done)
        } else {
            // One that has started may have completed.
            !has_started
        };
        if is_incomplete && !task.has(flag::INTERNAL) && !task.is_over() {
            count += 1;
            first.get_or_insert_with(|| (task.name().clone(), task.location()));
        }
    });
    Some((count, first?))
}

/// Calls `look` with each pending operation, and with whether its function was called.
fn each_op(core: &Core, pinned: &epoch::Guard, mut look: impl FnMut(&Op<Task>, bool)) {
    let started = core.started_mark();
    let look = |op: &Op<Task>, mark: *mut ()| look(op, mark == started);
    // SAFETY: (1): only pushes and the functions that start operations set these marks, on records whose tasks are
    // filled.
    unsafe { each_marked(pinned, [core.mark(), started], look) };
}

/// Returns, for each lane of workers, the number of ready operations that have not started.
pub(super) fn ready_ops(core: &Core) -> Vec<usize> {
    let mut ready = vec![0; core.threads.lanes().len()];
    let pinned = epoch::pin();
    let look = |op: &Op<Task>, _: *mut ()| {
        let holding = op.accesses().filter(|access| standing(op, access) == Standing::Holds).count();
        let units = op.task().units();
        let has_units = units.is_none_or(|units| units.state() != UnitsState::Waits);
        let is_ready = has_units && holding == op.access_count() as usize;
        if let Some(ready) = ready.get_mut(usize::from(op.task().lane)).filter(|_| is_ready) {
            *ready += 1;
        }
    };
    // SAFETY: (1): only pushes set this mark, on records whose tasks are filled.
    unsafe { each_marked(&pinned, [core.mark(), core.mark()], look) };
    ready
}

/// Returns the name of a lane.
pub(crate) fn lane_name(core: &Core, lane: u8) -> String {
    match lane.checked_sub(FIRST_LANE).and_then(|lane| core.gpus.lanes().get(usize::from(lane))) {
        Some(lane) => format!("gpu({}) {}", lane.gpu, lane.lane.name()),
        None => core.threads.lanes().get(usize::from(lane)).map_or("none", |lane| lane.name()).to_owned(),
    }
}

impl RecordedEngine for Core {
    fn each_pending(&self, found: &mut dyn FnMut(OpId)) {
        each_pending(self, |op, _| found(op));
    }
}

/// Calls `found` with each pending operation that has a number, and with whether its function was called.
pub(super) fn each_pending(core: &Core, mut found: impl FnMut(OpId, bool)) {
    if core.is_forked() {
        return;
    }
    each_op(core, &epoch::pin(), |op, has_started| op.task().op_id().into_iter().for_each(|id| found(id, has_started)));
}

/// What changes when an operation is pushed, starts or ends, or a thread begins or ends a wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) ended: u64,
    pub(super) pending: u64,
    pub(super) starts: u64,
    /// The numbers of the waits.
    pub(super) waits: Vec<u64>,
}

/// Returns the present [`Changes`], at a cost that does not depend on how many operations are pending.
pub(super) fn changes(core: &Core) -> Changes {
    let (ended, pending) = core.live().map(Live::totals).unwrap_or_default();
    let waits = waiters().of_engine(cycles::engine(core)).iter().map(|thread| thread.number).collect();
    Changes { ended, pending, starts: record::starts(core), waits }
}

/// Returns the name of a variable, or its number if it has none.
fn name_of(cell: &VarCell) -> String {
    cell.name().map_or_else(|| format!("#{}", cell.queue().id()), Name::to_string)
}

/// Adds the operation at `index` to the holders or the waiters of each of its variables. `known` maps the addresses of
/// variables to their indices.
fn note_accesses(op: &Op<Task>, index: usize, variables: &mut Vec<PendingVar>, known: &mut HashMap<usize, usize>) {
    for access in op.accesses() {
        let standing = standing(op, access);
        // A variable that the operation has released may have been freed before this thread was pinned.
        if standing == Standing::Done {
            continue;
        }
        let cell = VarCell::of(access);
        let place = *known.entry(ptr::from_ref(cell).addr()).or_insert_with(|| {
            variables.push(PendingVar { name: name_of(cell), held_by: Vec::new(), awaited_by: Vec::new() });
            variables.len() - 1
        });
        let PendingVar { held_by, awaited_by, .. } = &mut variables[place];
        if standing == Standing::Holds { held_by } else { awaited_by }.push(index);
    }
}

/// The operations found, and their groups.
struct FoundOps {
    records: Vec<NonNull<Op<Task>>>,
    by_count: HashMap<*const PendingOps, Vec<Member>>,
}

/// A member of a group.
#[derive(Clone, Copy)]
struct Member {
    /// The index of the member in the dump.
    index: usize,
    /// Whether the member belongs to the group itself rather than to a group inside it.
    is_innermost: bool,
}

impl FoundOps {
    /// Looks up the groups of the operations in `records`, whose marks were found after this thread was pinned. The
    /// result must not be used after the thread is unpinned.
    fn of(records: Vec<NonNull<Op<Task>>>) -> Self {
        let mut members = Self { records, by_count: HashMap::new() };
        for (index, record) in members.records.iter().enumerate() {
            // SAFETY: the record was found marked after this thread was pinned, so it is not reused.
            let op = unsafe { record.as_ref() };
            // SAFETY: (1): the operation was pending when it was found marked.
            let Some(limits) = op.task().limits() else { continue };
            for (depth, count) in limits.counts().enumerate() {
                let is_innermost = depth == 0 && limits.parent().is_none();
                members.by_count.entry(count).or_default().push(Member { index, is_innermost });
            }
        }
        members
    }

    /// Returns the children among the operations, each with its parent's record.
    fn parents(&self) -> impl Iterator<Item = (usize, NonNull<()>)> {
        self.records.iter().enumerate().filter_map(|(index, record)| {
            // SAFETY: see `of`: the record is not reused.
            let op = unsafe { record.as_ref() };
            // SAFETY: (1): the operation was pending when it was found marked.
            Some((index, op.task().limits()?.parent()?))
        })
    }

    /// Calls `found` with each operation that waits for the turn of a variable on which it commutes, and with the one
    /// that has the turn.
    fn each_lack_of_turns(&self, mut found: impl FnMut(usize, usize)) {
        let (mut holders, mut waiting) = (HashMap::new(), Vec::new());
        for (index, record) in self.records.iter().enumerate() {
            // SAFETY: see `of`: the record is not reused.
            let op = unsafe { record.as_ref() };
            if op.task().commutes().is_none() {
                continue;
            }
            let held = op.accesses().filter(|access| access.standing() == Standing::Holds);
            for turn in held.filter_map(Task::turn) {
                if turn.is_held_by(op) {
                    holders.insert(ptr::from_ref(turn), index);
                } else {
                    waiting.push((index, ptr::from_ref(turn)));
                }
            }
        }
        for (index, turn) in waiting {
            holders.get(&turn).into_iter().for_each(|&holder| found(index, holder));
        }
    }

    /// Calls `found` with each operation that waits for units and with those that hold units of the same resources: for
    /// each resource, at most [`MAX_HOLDERS`].
    fn each_lack_of_units(&self, mut found: impl FnMut(usize, usize)) {
        let (mut holders, mut waiting) = (HashMap::<_, Vec<usize>>::new(), Vec::new());
        for (index, record) in self.records.iter().enumerate() {
            // SAFETY: see `of`: the record is not reused.
            let op = unsafe { record.as_ref() };
            let Some(units) = op.task().units() else { continue };
            if units.state() == UnitsState::Waits {
                waiting.push((index, units));
            }
            for need in units.held() {
                holders.entry(Arc::as_ptr(&need.resource)).or_default().push(index);
            }
        }
        for (index, units) in waiting {
            for need in units.needs() {
                let held_by = holders.get(&Arc::as_ptr(&need.resource)).into_iter().flatten();
                held_by.take(MAX_HOLDERS).for_each(|holder| found(index, *holder));
            }
        }
    }

    /// Returns the members of the group with this count and of the groups inside it.
    fn in_count(&self, count: *const PendingOps) -> impl Iterator<Item = Member> {
        self.by_count.get(&count).into_iter().flatten().copied()
    }

    /// Returns the ticket in `pending` of the operation at `index`.
    fn ticket_in(&self, index: usize, pending: &PendingOps) -> Option<Ticket> {
        // SAFETY: see `of`: the record is not reused.
        let op = unsafe { self.records[index].as_ref() };
        // SAFETY: (1): the operation was pending when it was found marked.
        unsafe { ticket_in(op, pending) }
    }
}

impl Dump {
    /// Adds a thread that waits for `targets`. `find` maps an operation's record to its index.
    fn add_waiting(
        &mut self,
        waiting: &WaitingThread,
        targets: Vec<usize>,
        find: impl Fn(&NonNull<()>) -> Option<usize>,
    ) {
        let mut inside: Vec<usize> = waiting.ops.iter().map(|around| &around.op).filter_map(find).collect();
        inside.sort_unstable();
        inside.dedup();
        for &op in &inside {
            self.ops[op].waits_for.extend(targets.iter().filter(|&&target| target != op));
            self.ops[op].state = OpState::WaitingInside;
        }
        self.waits.push(ThreadWait {
            number: waiting.number,
            thread: waiting.thread.name().map_or_else(|| format!("{:?}", waiting.thread.id()), str::to_owned),
            kind: match waiting.awaits {
                Awaits::All => WaitKind::All,
                Awaits::Group => WaitKind::Group,
                Awaits::Scope => WaitKind::Scope,
                Awaits::Room => WaitKind::Room,
                Awaits::Operation => WaitKind::Operation,
            },
            time: waiting.time,
            inside,
            waits_for: targets,
        });
    }
}
