//! What a watchdog looks for and what it reports.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use raddle_trace::recording::Plain;

use super::dump::{Dump, MAX_STEPS, PendingOp};

/// Watches an engine and reports what takes too long. See [`EngineBuilder::watchdog`](crate::EngineBuilder::watchdog).
///
/// While operations are pending, a separate thread looks at the engine several times within the shortest of the limits:
/// it [dumps](crate::Engine::dump) the engine if something has changed or a limit may have passed. If many operations
/// are pending, it looks less often, and may report later, so that it takes no more than a tenth of a core. Each report
/// is logged as a warning and passed to the program's [function](Self::report_to), if there is one.
///
/// There is one report for all operations, or threads, that wait for the same operation at the end of their chains, and
/// for all operations of a name that are found running for too long at the same time. A problem is not reported again
/// unless there has been progress since, and not if it is over before its report. The time for which the process was
/// stopped, for instance by `SIGSTOP`, does not count. A limit of less than a millisecond is treated as a millisecond.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use raddle::{Engine, trace::Watchdog};
/// use std::{sync::mpsc, time::Duration};
///
/// let (reports, reported) = mpsc::channel();
/// let watchdog = Watchdog::new()
///     .running(Duration::from_millis(20))
///     .report_to(move |report| _ = reports.send(report.to_string()));
/// let engine = Engine::builder().workers(1).watchdog(watchdog).build()?;
///
/// let (sender, receiver) = mpsc::channel::<()>();
/// engine.op("stuck").push((), move |()| _ = receiver.recv())?;
/// let report = reported.recv()?;
/// assert!(report.contains("`stuck`") && report.contains("has been running"), "{report}");
/// # drop(sender);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "a watchdog does nothing until it is passed to an engine"]
pub struct Watchdog {
    pub(crate) running: Option<Duration>,
    pub(crate) waiting: Option<Duration>,
    pub(crate) stalled: Option<Duration>,
    pub(crate) device: Option<Duration>,
    pub(crate) budgets: HashMap<String, Duration>,
    pub(crate) report: Option<Report>,
}

/// The least limit, and the least time between two looks. Not tuned: no person asks for less.
const LEAST: Duration = Duration::from_millis(1);

/// A function that receives reports.
pub(crate) type Report = Arc<dyn Fn(&WatchdogReport) + Send + Sync>;

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog")
            .field("running", &self.running)
            .field("waiting", &self.waiting)
            .field("stalled", &self.stalled)
            .field("device", &self.device)
            .field("budgets", &self.budgets)
            .finish_non_exhaustive()
    }
}

impl Watchdog {
    /// Returns a watchdog that reports nothing but cycles of waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reports operations that run for longer than `limit`. GPU operations count as running from when they are issued,
    /// and asynchronous operations until their completion is used.
    pub fn running(mut self, limit: Duration) -> Self {
        self.running = Some(limit.max(LEAST));
        self
    }

    /// Reports operations of this name that run for longer than `limit`. For them, `limit` replaces the limit for [all
    /// operations](Self::running).
    ///
    /// ```
    /// use raddle::trace::Watchdog;
    /// use std::time::Duration;
    ///
    /// let watchdog = Watchdog::new().running(Duration::from_secs(1)).budget("decode", Duration::from_millis(5));
    /// # drop(watchdog);
    /// ```
    pub fn budget(mut self, name: impl Into<String>, limit: Duration) -> Self {
        self.budgets.insert(name.into(), limit.max(LEAST));
        self
    }

    /// Reports operations that wait longer than `limit` for others or for a worker, and threads that wait longer in
    /// calls to the engine: for an operation, a variable, a group, the end of a scope, all operations, or room.
    pub fn waiting(mut self, limit: Duration) -> Self {
        self.waiting = Some(limit.max(LEAST));
        self
    }

    /// Reports when operations are pending but none has started or ended for `limit`.
    pub fn stalled(mut self, limit: Duration) -> Self {
        self.stalled = Some(limit.max(LEAST));
        self
    }

    /// Reports GPU lanes that have operations in flight but have completed none for `limit`, as far as the engine
    /// knows: it may learn of completions late, and of several at once.
    pub fn device(mut self, limit: Duration) -> Self {
        self.device = Some(limit.max(LEAST));
        self
    }

    /// Calls `f` with each report, on the watchdog's thread. `f` may do anything that code outside operations may do.
    /// Further reports wait until `f` returns. A panic in `f` is logged.
    pub fn report_to(mut self, f: impl Fn(&WatchdogReport) + Send + Sync + 'static) -> Self {
        self.report = Some(Arc::new(f));
        self
    }

    /// Returns the time between two dumps.
    pub(crate) fn interval(&self) -> Duration {
        let limits = [self.running, self.waiting, self.stalled, self.device];
        let budgets = self.budgets.values().copied();
        let shortest = limits.into_iter().flatten().chain(budgets).min().unwrap_or(Duration::from_secs(1));
        (shortest / 4).clamp(LEAST, Duration::from_secs(1))
    }
}

/// What a [`Watchdog`] has found. [`Display`](fmt::Display) explains the problem and the operations involved.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WatchdogReport {
    /// The problem.
    pub problem: Problem,
    /// What was pending when the problem was found.
    pub dump: Dump,
}

/// A problem that a [`Watchdog`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// An operation has been running for too long.
    Running {
        /// The operation's index in the dump.
        op: usize,
        /// How long the operation has been seen running.
        time: Duration,
        /// How many other operations of its name, pushed at the same place, have been running for too long.
        others: usize,
    },
    /// An operation has been waiting for too long.
    Waiting {
        /// The operation's index in the dump.
        op: usize,
        /// How long the operation has been seen waiting.
        time: Duration,
        /// How many other operations have been waiting for too long for the operation at the end of its chain.
        others: usize,
    },
    /// A thread has been waiting for too long in a call to the engine.
    Wait {
        /// The index of the thread's wait in [`Dump::waits`].
        wait: usize,
        /// How long the thread has been waiting.
        time: Duration,
        /// How many other threads have been waiting in such a call for too long for the operation at the end of its
        /// chain.
        others: usize,
    },
    /// A device lane has completed nothing for too long.
    Device {
        /// The index in the dump of an operation issued to the lane.
        op: usize,
        /// How long the lane has completed nothing.
        time: Duration,
    },
    /// No operation has started or ended for too long.
    Stalled {
        /// How long this has been the case.
        time: Duration,
    },
    /// Operations wait for each other in a cycle.
    Cycle {
        /// The operations' indices in the dump.
        ops: Vec<usize>,
    },
}

impl fmt::Display for WatchdogReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let describe = |op: &PendingOp| format!("`{}` pushed at {}", Plain(&op.label()), op.location);
        let ops = self.dump.ops();
        let also = |f: &mut fmt::Formatter<'_>, others: usize, what: &str| match others {
            0 => Ok(()),
            1 => write!(f, "; 1 other is {what}"),
            _ => write!(f, "; {others} others are {what}"),
        };
        let chain_of = |f: &mut fmt::Formatter<'_>, chain: &[usize]| {
            for (step, &op) in chain.iter().enumerate().skip(1) {
                let left_out = chain.len().saturating_sub(MAX_STEPS + 2);
                if step <= MAX_STEPS || step + 1 == chain.len() {
                    write!(f, ", which waits for {} ({})", describe(&ops[op]), ops[op].state)?;
                } else if step == MAX_STEPS + 1 {
                    write!(f, ", and so on through {left_out} more")?;
                }
            }
            Ok(())
        };
        match &self.problem {
            Problem::Running { op, time, others } => {
                write!(f, "{} has been running for {time:.1?}", describe(&ops[*op]))?;
                match self.dump.held_up_by(*op) {
                    0 => {}
                    1 => f.write_str(", and holds up 1 other")?,
                    count => write!(f, ", and holds up {count} others")?,
                }
                also(f, *others, "running too long")
            }
            Problem::Wait { wait, time, others } => {
                let wait = &self.dump.waits()[*wait];
                write!(f, "thread `{}` has been waiting for {} for {time:.1?}", Plain(&wait.thread), wait.kind)?;
                for &op in &wait.inside {
                    write!(f, ", inside {}", describe(&ops[op]))?;
                }
                // The first operation explains the wait as well as any.
                if let Some(&first) = wait.waits_for.first() {
                    write!(f, ", and waits for {} ({})", describe(&ops[first]), ops[first].state)?;
                    chain_of(f, &self.dump.chain(first).unwrap_or_default())?;
                }
                also(f, *others, "waiting too long for the same")
            }
            Problem::Device { op, time } => {
                let op = &ops[*op];
                write!(f, "lane {} has completed nothing for {time:.1?}, although ", op.lane)?;
                write!(f, "{} was issued there", describe(op))
            }
            Problem::Waiting { op, time, others } => {
                write!(f, "{} has been waiting for {time:.1?}", describe(&ops[*op]))?;
                chain_of(f, &self.dump.chain(*op).unwrap_or_default())?;
                also(f, *others, "waiting too long for the same")
            }
            Problem::Stalled { time } => {
                write!(f, "no operation has started or ended for {time:.1?}. {}", self.dump)
            }
            Problem::Cycle { ops: cycle } => {
                write!(
                    f,
                    "operations wait for each other: {}",
                    cycle.first().map_or(String::new(), |&op| describe(&ops[op]))
                )?;
                chain_of(f, cycle)?;
                f.write_str(", which waits for the first one")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_dumped_several_times_within_each_limit() {
        let ms = Duration::from_millis;
        let all = || Watchdog::new().running(ms(80)).waiting(ms(80)).stalled(ms(80)).device(ms(80)).budget("b", ms(80));
        assert_eq!(all().interval(), ms(20));
        for shorter in [
            all().running(ms(40)),
            all().waiting(ms(40)),
            all().stalled(ms(40)),
            all().device(ms(40)),
            all().budget("b", ms(40)),
            all().budget("another", ms(40)),
        ] {
            assert_eq!(shorter.interval(), ms(10), "{shorter:?}");
        }
        assert_eq!(all().running(Duration::ZERO).interval(), ms(1));
        assert_eq!(Watchdog::new().running(ms(60_000)).interval(), ms(1_000));
        assert_eq!(Watchdog::new().interval(), ms(250));
    }
}
