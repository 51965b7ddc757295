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

use std::{collections::HashMap, error::Error, fmt, time::Duration};

use super::{
    event::{Place, VarId},
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
    /// [recorder](crate::Recorder::with_capacity) more room.
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
struct Use<'t> {
    index: usize,
    op: &'t TracedOp,
    is_write: bool,
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
    /// let recorder = raddle::Recorder::new();
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
        let mut uses: HashMap<VarId, Vec<Use<'_>>> = HashMap::new();
        // For each operation, when the last of its dependencies ended.
        let mut held: Vec<Duration> = ops.iter().map(|op| op.pushed + PUSH).collect();
        // Pairs of readers of a variable whose second became ready when the first ended.
        let mut late = Vec::new();
        for (index, &op) in ops.iter().enumerate() {
            // A skipped operation counts as having started when it ended.
            let Some(from) = op.started.or(op.ended) else { continue };
            for &(variable, mode) in &op.accesses {
                uses.entry(variable).or_default().push(Use { index, op, is_write: mode.is_write(), from });
            }
        }
        for (variable, mut uses) in uses {
            uses.sort_by_key(|one| (one.from, one.op.ended));
            let (mut writer, mut readers): (Option<&Use<'_>>, Vec<&Use<'_>>) = (None, Vec::new());
            // The checked readers, keyed by the times at which they ended.
            let mut reader_ended: HashMap<Duration, usize> = HashMap::new();
            for one in &uses {
                let before: Vec<&Use<'_>> = if !one.is_write {
                    if let Some(last) = readers.last() {
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
                    readers.push(one);
                    writer.into_iter().collect()
                } else {
                    let before =
                        if readers.is_empty() { writer.into_iter().collect() } else { std::mem::take(&mut readers) };
                    writer = Some(one);
                    reader_ended.clear();
                    before
                };
                for earlier in before {
                    if released(earlier.op, one.op) > one.from {
                        return Err(OrderViolation::Overlap {
                            variable: self.variable(variable),
                            first: Box::new(earlier.op.clone()),
                            second: Box::new(one.op.clone()),
                        });
                    }
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

/// Tests of the checker, with traces that break the rule.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, OpId, Recorder};

    /// Returns a trace of two threads that push operations on the same two variables.
    fn trace() -> Trace {
        let recorder = Recorder::new();
        let engine = Engine::builder().workers(2).recorder(&recorder).build().expect("an engine");
        let (x, y) = (engine.var(0), engine.var(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        engine
                            .op("both")
                            .push((x.write(), y.write()), |(x, y)| *x += *y)
                            .expect("the engine should be open");
                        engine.op("read").push(x.read(), |_| {}).expect("the engine should be open");
                    }
                });
            }
        });
        engine.wait_for_all().expect("nothing should fail");
        recorder.take()
    }

    fn indices(trace: &Trace, name: &str) -> Vec<usize> {
        (0..trace.ops.len()).filter(|&index| trace.ops[index].name.as_str() == name).collect()
    }

    #[test]
    fn a_trace_of_an_engine_is_in_order() {
        let report = trace().check_order().expect("the trace should be in order");
        assert!(report.operations >= 200 && report.conflicts >= 200, "{report:?}");
    }

    #[test]
    fn an_overlap_is_found() {
        let mut trace = trace();
        let both = indices(&trace, "both");
        let late = trace.ops[*both.last().expect("there should be operations")].ended;
        trace.ops[both[3]].ended = late;
        let violation = trace.check_order().expect_err("the trace should be out of order");
        assert!(matches!(violation, OrderViolation::Overlap { .. }), "{violation}");
    }

    #[test]
    fn an_overlap_of_mutations_that_follow_a_reader_is_found() {
        let recorder = Recorder::new();
        let engine = Engine::builder().workers(1).recorder(&recorder).build().expect("an engine");
        let x = engine.var(0);
        engine.op("read").push(x.read(), |_| {}).expect("the engine should be open");
        for name in ["second", "third"] {
            engine.op(name).push(x.write(), |x| *x += 1).expect("the engine should be open");
        }
        engine.wait_for_all().expect("nothing should fail");
        let mut trace = recorder.take();
        trace.check_order().expect("the trace should be in order");
        let [second, third] = ["second", "third"].map(|name| indices(&trace, name)[0]);
        trace.ops[second].ended = trace.ops[third].ended;
        let violation = trace.check_order().expect_err("the trace should be out of order");
        assert!(matches!(violation, OrderViolation::Overlap { .. }), "{violation}");
    }

    /// Returns a trace of three readers waiting for an operation that mutates two variables: one that all of them read,
    /// and one that only the third reads.
    fn trace_of_readers() -> (Trace, [usize; 4]) {
        let recorder = Recorder::new();
        let engine = Engine::builder().workers(1).recorder(&recorder).build().expect("an engine");
        let (x, y) = (engine.var(0).named("x"), engine.var(0));
        let (go, gone) = std::sync::mpsc::channel::<()>();
        engine.op("write").push((x.write(), y.write()), move |_| _ = gone.recv()).expect("the engine should be open");
        engine.op("first").push(x.read(), |_| {}).expect("the engine should be open");
        engine.op("second").push(x.read(), |_| {}).expect("the engine should be open");
        engine.op("third").push((x.read(), y.read()), |_| {}).expect("the engine should be open");
        std::thread::sleep(2 * PUSH);
        drop(go);
        engine.wait_for_all().expect("nothing should fail");
        let trace = recorder.take();
        let places = ["write", "first", "second", "third"].map(|name| indices(&trace, name)[0]);
        (trace, places)
    }

    #[test]
    fn a_reader_that_waited_for_another_reader_is_found() {
        let (trace, [write, first, second, third]) = trace_of_readers();
        // A single worker runs the readers one after the other, but all of them were ready at the same time.
        let report = trace.check_order().expect("the trace should be in order");
        assert_eq!((report.separate_readers, report.overlapping_readers), (2, 0));
        assert!([first, second, third].iter().all(|&reader| trace.ops[reader].ready == trace.ops[write].ended));
        for late in [second, third] {
            let mut trace = trace.clone();
            trace.ops[late].ready = trace.ops[first].ended;
            let violation = trace.check_order().expect_err("a reader should be late");
            let text = violation.to_string();
            let OrderViolation::LateReader { variable, first: cause, second: found } = violation else {
                panic!("{text}")
            };
            assert_eq!((&*variable, cause.id, found.id), ("x", trace.ops[first].id, trace.ops[late].id), "{text}");
            assert!(text.contains("became ready only when `first` pushed at src/trace/order.rs:"), "{text}");
        }
    }

    #[test]
    fn a_reader_that_something_else_held_back_is_not_late() {
        let (trace, [_, first, second, third]) = trace_of_readers();
        // The first reader also mutates another variable, which the third reads.
        let mut other = trace.clone();
        let variable = VarId(u64::MAX >> 2);
        other.ops[first].accesses.push((variable, crate::AccessMode::Write));
        other.ops[third].accesses.push((variable, crate::AccessMode::Read));
        other.ops[third].ready = other.ops[first].ended;
        other.check_order().expect("the third reader should have waited for the other variable");
        // The second reader was pushed when the first one ended.
        let mut pushed = trace.clone();
        pushed.ops[second].pushed = pushed.ops[first].ended.expect("the operation should have ended");
        pushed.ops[second].ready = pushed.ops[first].ended;
        pushed.ops[third].pushed = pushed.ops[second].pushed;
        pushed.check_order().expect("the second reader should have been ready when it was pushed");
        // Waits for a variable are recorded as readers, but wait for readers.
        for internal in [first, second] {
            let mut wait = trace.clone();
            wait.ops[second].ready = wait.ops[first].ended;
            wait.ops[internal].internal = true;
            wait.check_order().expect("an internal operation should not be checked");
        }
    }

    #[test]
    fn a_reversed_pair_is_found() {
        let mut trace = trace();
        let both = indices(&trace, "both");
        let same = |index: &usize| trace.ops[*index].pushed_by == trace.ops[both[0]].pushed_by;
        let of_one: Vec<usize> = both.iter().copied().filter(same).collect();
        // Swaps the times of the first and the last operation.
        let (first, last) = (of_one[0], of_one[of_one.len() - 1]);
        let times = |op: &TracedOp| (op.started, op.ended, op.runs.clone());
        let (of_first, of_last) = (times(&trace.ops[first]), times(&trace.ops[last]));
        (trace.ops[first].started, trace.ops[first].ended, trace.ops[first].runs) = of_last;
        (trace.ops[last].started, trace.ops[last].ended, trace.ops[last].runs) = of_first;
        let violation = trace.check_order().expect_err("the trace should be out of order");
        assert!(matches!(violation, OrderViolation::Cycle(_)), "{violation}");
    }

    #[test]
    fn variables_that_disagree_about_the_order_are_found() {
        let mut trace = trace();
        let both = indices(&trace, "both");
        // Splits `b` into two operations, one for each variable.
        let (a, b) = (both[0], both[1]);
        let name = trace.ops[a].accesses[0].0;
        let mut late = trace.ops[b].clone();
        let last = trace.ops.iter().filter_map(|op| op.ended).max().expect("there should be operations");
        late.accesses.retain(|access| access.0 == name);
        trace.ops[b].accesses.retain(|access| access.0 != name);
        // On one variable, `late` comes before `a`; on the other, `b` comes after `a`. But `late` was pushed after `b`.
        late.started = trace.ops[a].pushed.checked_sub(Duration::from_nanos(2));
        late.ended = late.started;
        late.pushed_by = trace.ops[b].pushed_by;
        late.pushed = last;
        late.id = OpId(u64::MAX);
        trace.ops.push(late);
        let violation = trace.check_order().expect_err("the trace should be out of order");
        assert!(matches!(violation, OrderViolation::Cycle(_)), "{violation}");
    }

    #[test]
    fn a_trace_with_losses_is_not_checked() {
        let mut trace = trace();
        trace.lost = 1;
        assert!(matches!(trace.check_order(), Err(OrderViolation::Incomplete { lost: 1 })));
    }
}
