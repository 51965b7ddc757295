//! The order checker: proves from a trace that an engine ran conflicting operations one after the other, in push order,
//! and did not hold readers back for other readers.
//!
//! The checker does not examine queues. It asks whether the times at which functions ran can be explained by an order
//! of all pushes, consistent with each thread's own order and with real time, in which each operation ran after all
//! earlier ones with which it conflicts. Such an order exists if no two conflicting operations overlapped and the
//! orders of the pushes and the runs together contain no cycle.
//!
//! # Readers
//!
//! Consecutive readers of a variable need not overlap: there may be too few workers, for instance. But none of them may
//! have to wait for another to end before becoming ready. Readiness is recorded with the time of the event that caused
//! it. A reader is therefore late if it became ready at the very time at which an earlier reader ended, and nothing
//! that it had to wait for, on any of its variables, ended at that time or later. Its subsequent wait for a worker does
//! not matter.
//!
//! Some operations are not checked in this way, since the recorded cause of their readiness need not be the true one:
//! the engine's own operations, which include waits behind readers, and GPU operations, several of which may end in one
//! step. Among earlier readers, only those that end with their functions count: between the completion of an operation
//! and the readiness that it causes, a thread may end another operation. The naive engine does not record when an
//! operation becomes ready.
//!
//! # Operations that commute
//!
//! Consecutive operations that commute on a variable must not overlap, but may run in another order than that of their
//! pushes. Otherwise, they count as mutations.

use std::{collections::HashMap, error::Error, fmt, time::Duration};

use crate::{
    event::{AccessMode, Place, VarId},
    graph::find_cycle,
    history::{Trace, TracedOp},
};

/// What [`Trace::check_order`] has checked and found in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OrderReport {
    /// The number of operations that were checked: those that have ended.
    pub operations: usize,
    /// The number of pairs of conflicting operations, consecutive on a variable, that were found in order.
    pub conflicts: usize,
    /// The number of pairs of readers, consecutive on a variable, that overlapped: the second started before the first
    /// had ended.
    pub overlapping_readers: usize,
    /// The number of pairs of readers, consecutive on a variable, that ran one after the other.
    pub separate_readers: usize,
}

/// How a trace breaks the rule that conflicting operations run one after the other, in push order, while consecutive
/// readers of a variable may overlap.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OrderViolation {
    /// Two operations that conflict on a variable ran at the same time.
    Overlap {
        /// The variable.
        variable: String,
        /// The operation that started first.
        first: Box<TracedOp>,
        /// The operation that started second.
        second: Box<TracedOp>,
    },
    /// An operation that reads a variable became ready only when an earlier reader of the variable ended, although
    /// nothing else held it back: the engine kept apart readers that could have overlapped. GPU operations and the
    /// engine's own operations are not checked for this.
    LateReader {
        /// The variable.
        variable: String,
        /// The reader that ended.
        first: Box<TracedOp>,
        /// The reader that became ready at that time.
        second: Box<TracedOp>,
    },
    /// No order of pushes explains the order in which operations ran: each of these operations came before the next,
    /// and the last before the first.
    Cycle(Vec<TracedOp>),
    /// Events were lost, so the order cannot be checked. Take the trace more often, or give the
    /// recorder more room.
    Incomplete {
        /// The number of lost events.
        lost: u64,
    },
}

impl fmt::Display for OrderViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = |op: &TracedOp| format!("`{}` pushed at {} ({})", op.label(), op.location, op.id);
        match self {
            Self::Overlap { variable, first, second } => {
                write!(f, "{} and {} conflict on `{variable}` and ran at the same time", op(first), op(second))
            }
            Self::LateReader { variable, first, second } => {
                write!(f, "{} became ready only when {} ended, ", op(second), op(first))?;
                write!(f, "although both read `{variable}` and nothing else held it back")
            }
            Self::Cycle(ops) => {
                f.write_str("no order of the pushes explains the order of the runs: each of these came before the next one, and the last one before the first:")?;
                ops.iter().try_for_each(|one| write!(f, " {};", op(one)))
            }
            Self::Incomplete { lost } => {
                write!(f, "{lost} events were lost, so the order cannot be checked; give the recorder more room")
            }
        }
    }
}

impl Error for OrderViolation {}

/// The longest time after its push at which an operation may count as ready because of the push alone. The recorder
/// rounds push times by less than a tenth of this.
const PUSH: Duration = Duration::from_micros(1);

/// An operation's use of a variable.
struct VariableUse<'t> {
    index: usize,
    op: &'t TracedOp,
    mode: AccessMode,
    from: Duration,
}

impl Trace {
    /// Checks that the engine has kept its rule: operations that conflict on a variable run one after the other, in
    /// push order. The check does not examine the engine's queues: it asks whether a single order of all pushes
    /// explains the recorded times of pushes and runs. It also checks that no reader of a variable waited for another
    /// reader. Operations that have not ended are not checked.
    ///
    /// A program's tests can end with this check, as many of raddle's own do.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let recorder = raddle::trace::Recorder::new();
    /// let engine = raddle::Engine::builder().workers(2).recorder(&recorder).build()?;
    /// let x = engine.var(0);
    /// for _ in 0..100 {
    ///     engine.op("add").push(x.write(), |x| *x += 1)?;
    /// }
    /// engine.wait_for_all()?;
    /// let report = recorder.take().check_order()?;
    /// assert_eq!(report.conflicts, 99);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`OrderViolation`]. A trace from which events were [lost](Self::lost) cannot be checked.
    pub fn check_order(&self) -> Result<OrderReport, OrderViolation> {
        if self.lost > 0 {
            return Err(OrderViolation::Incomplete { lost: self.lost });
        }
        let ops: Vec<&TracedOp> = self.ops.iter().filter(|op| op.ended.is_some()).collect();
        let mut report = OrderReport { operations: ops.len(), ..OrderReport::default() };
        // Edges from each operation to others that follow it.
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); ops.len()];
        self.order_by_runs(&ops, &mut after, &mut report)?;
        order_by_pushes(&ops, &mut after);
        match find_cycle(after.len(), |index| &after[index]) {
            None => Ok(report),
            Some(cycle) => Err(OrderViolation::Cycle(cycle.into_iter().map(|index| ops[index].clone()).collect())),
        }
    }

    /// Adds an edge for each pair of conflicting operations that are consecutive on a variable.
    fn order_by_runs(
        &self,
        ops: &[&TracedOp],
        after: &mut [Vec<usize>],
        report: &mut OrderReport,
    ) -> Result<(), OrderViolation> {
        let mut uses: HashMap<VarId, Vec<VariableUse<'_>>> = HashMap::new();
        // For each operation, when the last of its dependencies ended.
        let mut held: Vec<Duration> = ops.iter().map(|op| op.pushed + PUSH).collect();
        // Pairs of readers of a variable whose second became ready when the first ended.
        let mut late = Vec::new();
        for (index, &op) in ops.iter().enumerate() {
            // A skipped operation counts as having started when it ended.
            let Some(from) = op.started.or(op.ended) else { continue };
            for &(variable, mode) in &op.accesses {
                uses.entry(variable).or_default().push(VariableUse { index, op, mode, from });
            }
        }
        for (variable, mut uses) in uses {
            uses.sort_by_key(|one| (one.from, one.op.ended));
            // The last operations that may share the variable, or a single one that may not, and those before them.
            let (mut last, mut before): (Vec<&VariableUse<'_>>, Vec<&VariableUse<'_>>) = Default::default();
            // The checked readers, keyed by the times at which they ended.
            let mut reader_ended: HashMap<Duration, usize> = HashMap::new();
            for one in &uses {
                let is_shared = matches!(one.mode, AccessMode::Read | AccessMode::Commute);
                if !(is_shared && last.last().is_some_and(|last| last.mode == one.mode)) {
                    before = std::mem::take(&mut last);
                    reader_ended.clear();
                }
                if one.mode == AccessMode::Read {
                    if let Some(last) = last.last() {
                        let overlap = last.op.ended.is_some_and(|ended| ended > one.from);
                        *if overlap { &mut report.overlapping_readers } else { &mut report.separate_readers } += 1;
                    }
                    if self.has_exact_times(one.op) {
                        let cause = one.op.ready.and_then(|ready| reader_ended.get(&ready));
                        late.extend(cause.map(|&first| (variable, first, one.index)));
                        if one.op.started.is_some() && one.op.returned == one.op.ended {
                            reader_ended.extend(one.op.ended.map(|ended| (ended, one.index)));
                        }
                    }
                } else if let Some(earlier) = last.last() {
                    // They commute, and may have been pushed in any order.
                    self.check_apart(variable, earlier, one)?;
                    held[one.index] = held[one.index].max(earlier.op.ended.unwrap_or(Duration::MAX));
                }
                last.push(one);
                for earlier in &before {
                    self.check_apart(variable, earlier, one)?;
                    report.conflicts += 1;
                    after[earlier.index].push(one.index);
                    held[one.index] = held[one.index].max(earlier.op.ended.unwrap_or(Duration::MAX));
                }
            }
        }
        let is_late = |&&(_, _, second): &&(_, _, usize)| ops[second].ready.is_some_and(|ready| held[second] < ready);
        match late.iter().find(is_late) {
            None => Ok(()),
            Some(&(variable, first, second)) => Err(OrderViolation::LateReader {
                variable: self.variable(variable),
                first: Box::new(ops[first].clone()),
                second: Box::new(ops[second].clone()),
            }),
        }
    }

    /// Checks that two operations that conflict on a variable did not run at the same time.
    fn check_apart(
        &self,
        variable: VarId,
        first: &VariableUse<'_>,
        second: &VariableUse<'_>,
    ) -> Result<(), OrderViolation> {
        if released(first.op, second.op) <= second.from {
            return Ok(());
        }
        let (first, second) = (Box::new(first.op.clone()), Box::new(second.op.clone()));
        Err(OrderViolation::Overlap { variable: self.variable(variable), first, second })
    }

    /// Whether the time at which `op` became ready is that of the event that caused it, and the time at which it ended
    /// is that at which it made others ready: see the head of this module.
    fn has_exact_times(&self, op: &TracedOp) -> bool {
        let engine = self.engines.iter().find(|engine| engine.number == op.engine);
        !op.internal && engine.is_some_and(|engine| op.lane < engine.first_gpu_lane)
    }
}

/// Returns the time from which `earlier` allowed `later` to start: when `earlier` was issued, if both run on GPUs of
/// one engine, and otherwise when it ended.
fn released(earlier: &TracedOp, later: &TracedOp) -> Duration {
    let gpu = |op: &TracedOp| op.runs.first().is_some_and(|run| matches!(run.place, Place::Gpu { .. }));
    let ended = earlier.ended.unwrap_or(Duration::MAX);
    if gpu(earlier) && gpu(later) && earlier.engine == later.engine {
        earlier.returned.unwrap_or(ended).min(ended)
    } else {
        ended
    }
}

/// Adds an edge from each push to the same thread's next push, and from each started operation to the next push of each
/// other thread: that push began after the operation's own push was over.
fn order_by_pushes(ops: &[&TracedOp], after: &mut [Vec<usize>]) {
    // A trace's operations are in push order.
    let mut last: HashMap<u16, usize> = HashMap::new();
    let mut of_thread: HashMap<u16, Vec<usize>> = HashMap::new();
    for (index, op) in ops.iter().enumerate() {
        if let Some(before) = last.insert(op.pushed_by, index) {
            after[before].push(index);
        }
        of_thread.entry(op.pushed_by).or_default().push(index);
    }
    for (index, op) in ops.iter().enumerate() {
        let Some(started) = op.started else { continue };
        for pushes in of_thread.iter().filter(|(thread, _)| **thread != op.pushed_by).map(|(_, pushes)| pushes) {
            let next = pushes.partition_point(|&push| ops[push].pushed <= started);
            after[index].extend(pushes.get(next));
        }
    }
}
