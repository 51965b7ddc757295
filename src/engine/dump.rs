//! What is pending, found while the engine goes on.
//!
//! A pending operation has a mark of its engine in the first word of its record, from its push to the drop of its function
//! ([`registry`](crate::memory::registry)). The thread that looks is pinned, so the records that it finds are not reused. The
//! function may be dropped meanwhile, but what is read here stays: the name, the location, the flags and the accesses.

use std::{
    collections::{HashMap, HashSet},
    ptr::NonNull,
};

use crate::{
    device::gpus::FIRST_LANE,
    engine::{
        core::Core,
        group::{Bond, groups_around},
        task::{Task, flag},
        variable::VarCell,
    },
    memory::epoch,
    notify::sleepers::{Awaits, Sleeper},
    trace::{
        dump::{Dump, OpState, PendingAccess, PendingOp, PendingVar, ThreadWait, WaitKind},
        event::{AccessMode, OpId},
        history::priority_of,
        recorder::Recorded,
    },
    tracker::{Mode, Op, Standing, each_marked, each_waiting},
    values::name::Name,
};

/// The most readers that are looked at between a reader and the next operation that mutates: of one that holds the variable, and
/// of one that waits. Picked: there may be a million. Those behind an operation that mutates wait for that alone, so all of
/// them are looked at.
const MAX_READERS: [usize; 2] = [1024, 64];

impl Core {
    /// Returns what is pending.
    pub(crate) fn dump(&self) -> Dump {
        let mut dump = Dump::default();
        if self.is_forked() {
            return dump;
        }
        let running = self.running_ops();
        let pinned = epoch::pin();
        // The places of operations by their records and by their tasks, by which waiters know them.
        let (mut by_record, mut by_task) = (HashMap::new(), HashMap::new());
        // Pairs of a record and one before it.
        let mut before = Vec::new();
        // The groups of the operations, and the places of variables by their queues.
        let (mut groups, mut variables) = (Vec::new(), HashMap::new());
        // Before the operations: what a thread waits for after this is found pending.
        let sleepers = self.sleepers.list();
        let marks = [self.mark(), self.started_mark()];
        let look = |op: &Op<Task>, mark: *mut ()| {
            let index = dump.ops.len();
            by_record.insert(NonNull::from(op).cast::<()>(), index);
            by_task.insert(op.shared_task_ptr().cast::<()>().cast_mut(), index);
            for access in op.accesses() {
                let waits = access.standing() == Standing::Waits;
                let max = if access.mode().is_write() { usize::MAX } else { MAX_READERS[usize::from(waits)] };
                each_waiting(access, &pinned, max, |later| {
                    before.push((NonNull::from(later).cast::<()>(), index));
                });
            }
            groups.push(op.task().group());
            let described = self.describe(op, mark == self.started_mark(), &running);
            note_accesses(op, index, &mut dump.variables, &mut variables);
            dump.ops.push(described);
        };
        // SAFETY: (1): only `enqueue` and those that start operations mark records with these, and their tasks are filled.
        unsafe { each_marked(&pinned, marks, look) };
        for (later, earlier) in before {
            if let Some(&later) = by_record.get(&later) {
                dump.ops[later].waits_for.push(earlier);
            }
        }
        // Those around each group that has members, and the members of all groups that threads wait for.
        let awaited: HashSet<u32> = sleepers.iter().filter_map(|sleeper| group_of(sleeper.awaits)).collect();
        let mut members: HashMap<u32, Vec<usize>> = HashMap::new();
        for (index, &group) in groups.iter().enumerate() {
            for (depth, (number, waiter)) in groups_around(group).enumerate() {
                if awaited.contains(&number) {
                    members.entry(number).or_default().push(index);
                }
                let Some((record, bond)) = waiter.filter(|_| depth == 0) else { continue };
                let Some(waiter) = by_record.get(&record).map(|&waiter| &mut dump.ops[waiter]) else { continue };
                waiter.waits_for.push(index);
                if bond == Bond::Children {
                    // Children are in their queues only when the function of their parent has returned.
                    waiter.state = OpState::WaitingForChildren;
                }
            }
        }
        for sleeper in sleepers {
            let targets = match sleeper.awaits {
                Awaits::Operation(task) => match by_task.get(&task.as_ptr()) {
                    Some(&target) => vec![target],
                    // The wait is over by now.
                    None => continue,
                },
                awaits => group_of(awaits).and_then(|group| members.get(&group)).cloned().unwrap_or_default(),
            };
            dump.add_sleeper(&sleeper, targets, |op| by_record.get(op).copied());
        }
        for op in &mut dump.ops {
            op.waits_for.sort_unstable();
            op.waits_for.dedup();
        }
        dump.unlisted = self.pending().saturating_sub(dump.ops.len() as u64);
        dump
    }

    fn describe(&self, op: &Op<Task>, has_started: bool, running: &HashMap<OpId, String>) -> PendingOp {
        let task = op.task();
        let standings: Vec<Standing> = op.accesses().iter().map(|access| access.standing()).collect();
        let state = if !standings.is_empty() && standings.iter().all(|&standing| standing == Standing::Done) {
            OpState::Ending
        } else if has_started {
            OpState::Running
        } else if standings.contains(&Standing::Waits) {
            OpState::Waiting
        } else {
            OpState::Ready
        };
        // A variable with which the operation was done may have been freed before this thread was pinned.
        let in_use = op.accesses().iter().zip(&standings).filter(|&(_, &standing)| standing != Standing::Done);
        let accesses = in_use.map(|(access, &standing)| PendingAccess {
            variable: name_of(VarCell::of(access)),
            mode: match access.mode() {
                Mode::Write => AccessMode::Write,
                Mode::Overwrite => AccessMode::Overwrite,
                Mode::Read | Mode::Await => AccessMode::Read,
            },
            waits: standing == Standing::Waits,
        });
        PendingOp {
            id: task.op_id(),
            name: task.name().clone(),
            location: task.location(),
            state,
            device: self.gpus.device_of(task.lane),
            lane: self.lane_name(task.lane),
            place: task.op_id().and_then(|id| running.get(&id)).cloned(),
            age: task.op_id().and_then(|id| self.age_of(id)),
            priority: priority_of(op.band),
            asynchronous: task.has(flag::ASYNC),
            internal: task.has(flag::INTERNAL),
            accesses: accesses.collect(),
            waits_for: Vec::new(),
        }
    }

    /// Returns how many operations are ready and have not started, in each lane of workers.
    pub(super) fn ready_ops(&self) -> Vec<usize> {
        let mut ready = vec![0; self.threads.lanes().len()];
        let pinned = epoch::pin();
        let look = |op: &Op<Task>, _: *mut ()| {
            let waits = op.accesses().iter().any(|access| access.standing() != Standing::Holds);
            if let Some(ready) = ready.get_mut(usize::from(op.task().lane)).filter(|_| !waits) {
                *ready += 1;
            }
        };
        // SAFETY: (1): only `enqueue` marks records with this, and their tasks are filled.
        unsafe { each_marked(&pinned, [self.mark(), self.mark()], look) };
        ready
    }

    fn lane_name(&self, lane: u8) -> String {
        match lane.checked_sub(FIRST_LANE).and_then(|lane| self.gpus.lanes().get(usize::from(lane))) {
            Some(lane) => format!("gpu({}) {}", lane.gpu, lane.lane.name()),
            None => self.threads.lanes().get(usize::from(lane)).map_or("none", |lane| lane.name()).to_owned(),
        }
    }
}

impl Recorded for Core {
    fn each_pending(&self, found: &mut dyn FnMut(OpId)) {
        if self.is_forked() {
            return;
        }
        let pinned = epoch::pin();
        let look = |op: &Op<Task>, _: *mut ()| op.task().op_id().into_iter().for_each(&mut *found);
        // SAFETY: (1): only `enqueue` and those that start operations mark records with these, and their tasks are filled.
        unsafe { each_marked(&pinned, [self.mark(), self.started_mark()], look) };
    }
}

/// The name of a variable, or its number if it has none.
fn name_of(cell: &VarCell) -> String {
    cell.name().map_or_else(|| format!("#{}", cell.queue().id()), Name::to_string)
}

/// Adds what the operation at `index` holds and waits for to the variables. `known` has their places, by their queues.
fn note_accesses(op: &Op<Task>, index: usize, variables: &mut Vec<PendingVar>, known: &mut HashMap<usize, usize>) {
    for access in op.accesses() {
        let standing = access.standing();
        // A variable with which the operation was done may have been freed before this thread was pinned.
        if standing == Standing::Done {
            continue;
        }
        let cell = VarCell::of(access);
        let place = *known.entry(std::ptr::from_ref(cell).addr()).or_insert_with(|| {
            variables.push(PendingVar { name: name_of(cell), held_by: Vec::new(), awaited_by: Vec::new() });
            variables.len() - 1
        });
        let PendingVar { held_by, awaited_by, .. } = &mut variables[place];
        if standing == Standing::Holds { held_by } else { awaited_by }.push(index);
    }
}

/// The group whose operations a thread waits for.
fn group_of(awaits: Awaits) -> Option<u32> {
    match awaits {
        Awaits::Group(number) | Awaits::Scope(number) => Some(number),
        _ => None,
    }
}

impl Dump {
    /// Adds a thread that waits for `targets`. `find` returns the place of an operation by its record.
    fn add_sleeper(&mut self, sleeper: &Sleeper, targets: Vec<usize>, find: impl Fn(&NonNull<()>) -> Option<usize>) {
        let mut inside: Vec<usize> = sleeper.ops.iter().filter_map(find).collect();
        inside.sort_unstable();
        inside.dedup();
        for &op in &inside {
            self.ops[op].waits_for.extend(targets.iter().filter(|&&target| target != op));
            self.ops[op].state = OpState::WaitingInside;
        }
        self.waits.push(ThreadWait {
            number: sleeper.number,
            thread: sleeper.thread.name().map_or_else(|| format!("{:?}", sleeper.thread.id()), str::to_owned),
            kind: match sleeper.awaits {
                Awaits::All => WaitKind::All,
                Awaits::Group(_) => WaitKind::Group,
                Awaits::Scope(_) => WaitKind::Scope,
                Awaits::Room => WaitKind::Room,
                Awaits::Operation(_) | Awaits::Other => WaitKind::Operation,
            },
            time: sleeper.time,
            inside,
            waits_for: targets,
        });
    }
}
