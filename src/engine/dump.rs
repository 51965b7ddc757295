//! Dumps of what is pending, made while the engine runs.
//!
//! A pending operation has a mark of its engine in the first word of its record, from its push to the drop of its
//! function ([`registry`](crate::memory::registry)). The thread that looks is pinned, so the records that it finds are
//! not reused. The function may be dropped during the look, but what is read here stays valid: the name, the location,
//! the flags and the accesses.

use std::{collections::HashMap, ptr::NonNull};

use smallvec::SmallVec;

use crate::{
    device::gpus::FIRST_LANE,
    engine::{
        core::Core,
        deadlock::ticket_in,
        task::{Task, flag},
        variable::VarCell,
    },
    memory::epoch,
    notify::waiters::Goal,
    trace::{
        dump::{Dump, OpState, PendingAccess, PendingOp},
        event::{AccessMode, OpId},
        history::priority_of,
    },
    tracker::{Mode, Op, Standing, each_marked, each_waiting},
    values::name::Name,
};

/// The maximum number of readers that are visited between a reader and the next operation that mutates, if the reader
/// holds the variable, and if it waits. Not tuned: there may be a million readers. Those behind an operation that
/// mutates wait for that one alone, so all of them are visited.
const MAX_READERS: [usize; 2] = [4096, 64];

impl Core {
    /// Returns what is pending.
    pub(crate) fn dump(&self) -> Dump {
        let mut dump = Dump { ops: Vec::new(), unlisted: 0 };
        if self.is_forked() {
            return dump;
        }
        let running = self.running_ops();
        let pinned = epoch::pin();
        // The indices of operations, by their records and by their tasks, which are what waiters know.
        let (mut by_record, mut by_task) = (HashMap::new(), HashMap::new());
        // Pairs of a record and the index of an operation before it.
        let mut before = Vec::new();
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
            dump.ops.push(self.describe(op, mark == self.started_mark(), &running));
        };
        // SAFETY: (1): only `enqueue` and the functions that start operations set these marks, on records whose tasks
        // are filled.
        unsafe { each_marked(&pinned, marks, look) };
        for (later, earlier) in before {
            if let Some(&later) = by_record.get(&later) {
                dump.ops[later].waits_for.push(earlier);
            }
        }
        Self::each_waiter(|inside, goal| {
            let mut targets: SmallVec<[usize; 1]> = SmallVec::new();
            match goal {
                Goal::Op { task, .. } => targets.extend(by_task.get(&task.as_ptr()).copied()),
                Goal::Counted(..) => targets.extend(by_record.iter().filter_map(|(record, &index)| {
                    // SAFETY: it was found marked since this thread was pinned, so the record is not reused.
                    let op = unsafe { record.cast().as_ref() };
                    // SAFETY: (1): as above.
                    goal.covers(|pending| unsafe { ticket_in(op, pending) }).then_some(index)
                })),
            }
            if targets.is_empty() {
                return;
            }
            for op in &inside.ops {
                if let Some(&waiter) = by_record.get(op) {
                    dump.ops[waiter].waits_for.extend(targets.iter().copied().filter(|&target| target != waiter));
                    dump.ops[waiter].state = OpState::WaitingInside;
                }
            }
        });
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
        // A variable whose access is done may have been freed before this thread was pinned.
        let in_use = op.accesses().iter().zip(&standings).filter(|&(_, &standing)| standing != Standing::Done);
        let accesses = in_use.map(|(access, &standing)| {
            let cell = VarCell::of(access);
            PendingAccess {
                variable: cell.name().map_or_else(|| format!("#{}", cell.queue().id()), Name::to_string),
                mode: match access.mode() {
                    Mode::Write => AccessMode::Write,
                    Mode::Overwrite => AccessMode::Overwrite,
                    Mode::Read | Mode::Await => AccessMode::Read,
                },
                waits: standing == Standing::Waits,
            }
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

    fn lane_name(&self, lane: u8) -> String {
        match lane.checked_sub(FIRST_LANE).and_then(|lane| self.gpus.lanes().get(usize::from(lane))) {
            Some(lane) => format!("gpu({}) {}", lane.gpu, lane.lane.name()),
            None => self.threads.lanes().get(usize::from(lane)).map_or("none", |lane| lane.name()).to_owned(),
        }
    }
}
