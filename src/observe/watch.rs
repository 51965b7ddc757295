//! The thread of a watchdog.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    io,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use crate::{
    engine::core::Core,
    observe::snapshot::{self, Changes},
    sync::mpsc,
    system::panics,
    trace::{
        OpId,
        dump::{Dump, OpState, PendingOp, WaitKind},
        watchdog::{Problem, Watchdog, WatchdogReport},
    },
    values::device::Device,
    wait::WAIT,
};

/// Starts a watchdog for `core`. The watchdog runs until the returned sender is dropped. Its thread ends soon
/// afterwards or, if it is calling the function that receives the reports, once that function has returned.
pub(crate) fn begin(core: &Arc<Core>, watchdog: Watchdog) -> io::Result<mpsc::Sender<()>> {
    let (stop, stopped) = mpsc::channel();
    let core = Arc::downgrade(core);
    let watch = move || watch(&core, &watchdog, &stopped);
    thread::Builder::new().name("raddle-watchdog".to_owned()).spawn(watch)?;
    Ok(stop)
}

/// The share of a core that a watchdog takes at most: it sleeps this many times as long as it looks.
const SHARE: u32 = 10;

/// Watches the engine until the engine ends or the sender of `stopped` is dropped.
fn watch(core: &Weak<Core>, watchdog: &Watchdog, stopped: &mpsc::Receiver<()>) {
    let mut seen = Seen { looked: Some(Instant::now()), ..Seen::default() };
    // The time for which the process has been stopped.
    let mut away = Duration::ZERO;
    let mut pause = watchdog.interval();
    loop {
        let began = Instant::now();
        let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) else { return };
        let Some(engine) = core.upgrade() else { return };
        let woken = Instant::now();
        // A thread that sleeps for much longer than it asked for was stopped, as were the others.
        let slept = woken.duration_since(began);
        if slept > 2 * pause {
            away += slept - pause;
        }
        // Instants are compared with each other only after this has been subtracted from all of them.
        let Some(now) = woken.checked_sub(away) else { continue };
        let found = seen.look(watchdog, &engine, now);
        pause = watchdog.interval().max(SHARE * woken.elapsed());
        // The function that receives a report may take a long time, and must not keep the engine alive.
        drop(engine);
        let Some((dump, problems)) = found else { continue };
        for problem in problems {
            if !matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Empty)) {
                return;
            }
            let Some(engine) = core.upgrade() else { return };
            let is_there = seen.is_there(&engine, &problem, &dump);
            drop(engine);
            if is_there {
                report(watchdog, WatchdogReport { problem, dump: dump.clone() });
            }
        }
    }
}

/// Logs a report, and passes it to the program.
fn report(watchdog: &Watchdog, report: WatchdogReport) {
    panics::log!(Warn, "raddle: {report}");
    if let Err(payload) = panics::catch(|| watchdog.report.iter().for_each(|tell| tell(&report))) {
        panics::log!(Error, "raddle: the function that receives the reports of a watchdog panicked");
        panics::discard(payload);
    }
}

/// What was pending in the last dump, and what has been reported.
#[derive(Default)]
struct Seen {
    /// What the engine had done before the last dump.
    changes: Changes,
    /// When the engine was last looked at.
    looked: Option<Instant>,
    /// When a limit may pass if nothing changes.
    due: Option<Instant>,
    ops: HashMap<OpId, SeenOp>,
    /// The waits, by number.
    waits: HashMap<u64, SeenOp>,
    /// The causes of waits that were reported, with the kind of wait if a thread waits.
    told_causes: HashSet<(Option<WaitKind>, Option<OpId>)>,
    /// The device lanes with issued operations, each with the time of its last progress.
    devices: HashMap<String, SeenDevice>,
    /// The time at which an operation last changed its state or ended.
    progress: Option<Instant>,
    told_of_stall: bool,
    told_of_cycle: bool,
}

struct SeenDevice {
    issued: HashSet<OpId>,
    since: Instant,
    told: bool,
}

/// An operation or a wait.
#[derive(Clone, Copy)]
struct SeenOp {
    /// The state of the operation.
    state: OpState,
    since: Instant,
    told: bool,
}

/// What has taken too long for the same reason.
struct Late {
    /// The index of the one that has taken longest.
    index: usize,
    time: Duration,
    count: usize,
}

impl Late {
    /// Adds one to those with this key.
    fn add<K: Eq + Hash>(late: &mut HashMap<K, Self>, key: K, index: usize, time: Duration) {
        let first = late.entry(key).or_insert(Self { index, time, count: 0 });
        first.count += 1;
        if time > first.time {
            (first.index, first.time) = (index, time);
        }
    }
}

impl Seen {
    /// Looks at the engine, and compares what it finds with the last dump. Returns a new dump with the problems found,
    /// if something has changed, or a limit may have passed.
    fn look(&mut self, watchdog: &Watchdog, core: &Core, now: Instant) -> Option<(Dump, Vec<Problem>)> {
        let changes = snapshot::changes(core);
        let last = self.looked.replace(now).unwrap_or(now);
        if changes.pending == 0 && changes.waits.is_empty() {
            *self = Self { looked: Some(now), ..Self::default() };
            return None;
        }
        if changes == self.changes && self.due.is_none_or(|due| now < due) {
            return None;
        }
        self.changes = changes;
        let dump = snapshot::take(core);
        let problems = self.compare(watchdog, &dump, last, now);
        Some((dump, problems))
    }

    /// Notes that a limit may pass at `due`.
    fn expect(&mut self, due: Option<Instant>) {
        self.due = self.due.into_iter().chain(due).min();
    }

    /// Compares a dump with the last one and returns the problems found.
    fn compare(&mut self, watchdog: &Watchdog, dump: &Dump, last: Instant, now: Instant) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut before = std::mem::take(&mut self.ops);
        self.due = None;
        let mut has_moved = false;
        let awaited: HashSet<usize> = dump.waits().iter().flat_map(|wait| wait.waits_for.iter().copied()).collect();
        let (mut running, mut waiting) = (HashMap::new(), Vec::new());
        for (index, op) in dump.ops().iter().enumerate() {
            let Some(id) = op.id else { continue };
            let mut seen = match before.remove(&id) {
                Some(seen) if seen.state == op.state => seen,
                earlier => {
                    has_moved |= earlier.is_some();
                    SeenOp { state: op.state, since: now, told: false }
                }
            };
            let (limit, is_running) = match op.state {
                OpState::Running | OpState::Ending => {
                    let budget = watchdog.budgets.get(op.name.as_str()).copied();
                    (budget.or(watchdog.running), true)
                }
                OpState::Waiting | OpState::WaitingForUnits | OpState::Ready => (watchdog.waiting, false),
                // The operation's children, or the thread that waits inside the operation, are reported instead.
                OpState::WaitingInside | OpState::WaitingForChildren => (None, false),
            };
            // An async task that awaits a variable appears only as the internal operation of its wait.
            let counts = !op.internal || op.name.as_str() == WAIT && !awaited.contains(&index);
            if let Some(limit) = limit.filter(|_| counts && !seen.told) {
                let time = now.saturating_duration_since(seen.since);
                seen.told = time >= limit;
                match (seen.told, is_running) {
                    (false, _) => self.expect(seen.since.checked_add(limit)),
                    (true, true) => Late::add(&mut running, (op.name.as_str(), op.location), index, time),
                    (true, false) => waiting.push((index, time)),
                }
            }
            self.ops.insert(id, seen);
        }
        problems.extend(running.into_values().map(|Late { index: op, time, count }| Problem::Running {
            op,
            time,
            others: count - 1,
        }));
        self.look_at_waits(watchdog, dump, waiting, (last, now), &mut problems);
        self.look_at_devices(watchdog, dump, now, &mut problems);
        // The operations remaining in `before` have ended.
        if has_moved || !before.is_empty() || self.progress.is_none() {
            self.progress = Some(now);
            (self.told_of_stall, self.told_of_cycle) = (false, false);
        }
        if let (Some(progress), Some(limit), false) = (self.progress, watchdog.stalled, self.told_of_stall) {
            let time = now.saturating_duration_since(progress);
            self.told_of_stall = time >= limit && (!dump.ops().is_empty() || dump.unlisted() > 0);
            if self.told_of_stall {
                problems.push(Problem::Stalled { time });
            } else {
                self.expect(progress.checked_add(limit));
            }
        }
        // Reported only if no operation has changed between two dumps, since the cycle could otherwise combine states
        // from different moments.
        if let Some(ops) = dump.cycle().filter(|_| !self.told_of_cycle) {
            self.told_of_cycle = !has_moved && before.is_empty();
            if self.told_of_cycle {
                problems.push(Problem::Cycle { ops });
            } else {
                self.expect(Some(now));
            }
        }
        problems
    }

    /// Reports operations and threads that have waited for too long, once for each cause. The operations are those of
    /// `ops`, and the engine was looked at at the times `last` and `now`.
    fn look_at_waits(
        &mut self,
        watchdog: &Watchdog,
        dump: &Dump,
        ops: Vec<(usize, Duration)>,
        (last, now): (Instant, Instant),
        problems: &mut Vec<Problem>,
    ) {
        let mut before = std::mem::take(&mut self.waits);
        let mut threads = Vec::new();
        for (index, wait) in dump.waits().iter().enumerate() {
            let since = || now - wait.time.min(now.saturating_duration_since(last));
            let new = || SeenOp { state: OpState::Waiting, since: since(), told: false };
            let mut seen = before.remove(&wait.number).unwrap_or_else(new);
            if let Some(limit) = watchdog.waiting.filter(|_| !seen.told) {
                let time = now.saturating_duration_since(seen.since);
                seen.told = time >= limit;
                if seen.told {
                    threads.push((index, time));
                } else {
                    self.expect(seen.since.checked_add(limit));
                }
            }
            self.waits.insert(wait.number, seen);
        }
        if ops.is_empty() && threads.is_empty() {
            return;
        }
        let causes = dump.causes();
        let cause = |op: usize| causes[op].and_then(|cause| dump.ops()[cause].id);
        let of_wait = |wait: usize| {
            let wait = &dump.waits()[wait];
            (Some(wait.kind), wait.waits_for.first().and_then(|&op| cause(op)))
        };
        // A cause counts as reported as long as it, or the wait without one, is there.
        let there: HashSet<_> =
            (0..dump.ops().len()).map(|op| (None, cause(op))).chain((0..dump.waits().len()).map(of_wait)).collect();
        self.told_causes.retain(|told| there.contains(told));
        let (mut late_ops, mut late_threads) = (HashMap::new(), HashMap::new());
        ops.into_iter().for_each(|(op, time)| Late::add(&mut late_ops, (None, cause(op)), op, time));
        threads.into_iter().for_each(|(wait, time)| Late::add(&mut late_threads, of_wait(wait), wait, time));
        for (key, Late { index: op, time, count }) in late_ops {
            if self.told_causes.insert(key) {
                problems.push(Problem::Waiting { op, time, others: count - 1 });
            }
        }
        for (key, Late { index: wait, time, count }) in late_threads {
            if self.told_causes.insert(key) {
                problems.push(Problem::Wait { wait, time, others: count - 1 });
            }
        }
    }

    /// Whether a problem found in `dump` is still there.
    fn is_there(&self, core: &Core, problem: &Problem, dump: &Dump) -> bool {
        let has_started = |op: usize| {
            let mut found = None;
            snapshot::each_pending(core, |id, has_started| {
                if Some(id) == dump.ops()[op].id {
                    found = Some(has_started);
                }
            });
            found
        };
        match problem {
            Problem::Running { op, .. } => has_started(*op) == Some(true),
            Problem::Waiting { op, .. } => has_started(*op) == Some(false),
            Problem::Device { op, .. } => has_started(*op).is_some(),
            Problem::Cycle { ops } => ops.iter().all(|&op| has_started(op).is_some()),
            Problem::Wait { wait, .. } => snapshot::changes(core).waits.contains(&dump.waits()[*wait].number),
            Problem::Stalled { .. } => {
                let changes = snapshot::changes(core);
                (changes.ended, changes.starts) == (self.changes.ended, self.changes.starts)
            }
        }
    }

    /// Reports device lanes that have completed nothing for too long.
    fn look_at_devices(&mut self, watchdog: &Watchdog, dump: &Dump, now: Instant, problems: &mut Vec<Problem>) {
        let Some(limit) = watchdog.device else { return };
        // An issued operation has released its variables, so a dump shows it as ending. An issued operation without
        // variables is shown as running.
        let is_issued = |op: &&PendingOp| {
            op.device != Device::Cpu && !op.internal && matches!(op.state, OpState::Ending | OpState::Running)
        };
        let mut lanes: HashMap<&str, (HashSet<OpId>, usize)> = HashMap::new();
        for (index, op) in dump.ops().iter().enumerate().filter(|(_, op)| is_issued(op)) {
            let (issued, _) = lanes.entry(&op.lane).or_insert_with(|| (HashSet::new(), index));
            issued.extend(op.id);
        }
        self.devices.retain(|lane, _| lanes.contains_key(lane.as_str()));
        for (lane, (issued, op)) in lanes {
            let new = || SeenDevice { issued: HashSet::new(), since: now, told: false };
            let seen = self.devices.entry(lane.to_owned()).or_insert_with(new);
            if !seen.issued.is_subset(&issued) {
                (seen.since, seen.told) = (now, false);
            }
            seen.issued = issued;
            let time = now.saturating_duration_since(seen.since);
            if time >= limit && !std::mem::replace(&mut seen.told, true) {
                problems.push(Problem::Device { op, time });
            }
            let due = seen.since.checked_add(limit).filter(|_| !seen.told);
            self.due = self.due.into_iter().chain(due).min();
        }
    }
}
