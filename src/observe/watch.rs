//! The thread of a watchdog.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use crate::{
    engine::core::Core,
    observe::snapshot,
    sync::mpsc,
    system::panics,
    trace::{
        OpId,
        dump::{Dump, OpState, PendingOp},
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

/// Watches the engine until the engine ends or the sender of `stopped` is dropped.
fn watch(core: &Weak<Core>, watchdog: &Watchdog, stopped: &mpsc::Receiver<()>) {
    let mut seen = Seen::default();
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(watchdog.interval()) {
        let Some(core) = core.upgrade() else { return };
        let dump = snapshot::take(&core);
        if dump.ops().is_empty() && dump.unlisted() == 0 && dump.waits().is_empty() {
            seen = Seen::default();
            continue;
        }
        // The function that receives a report may take a long time, and must not keep the engine alive.
        drop(core);
        for problem in seen.look(watchdog, &dump, Instant::now()) {
            let report = WatchdogReport { problem, dump: dump.clone() };
            panics::log!(Warn, "raddle: {report}");
            let told = panics::catch(|| watchdog.report.iter().for_each(|tell| tell(&report)));
            if let Err(payload) = told {
                panics::log!(Error, "raddle: the function that receives the reports of a watchdog panicked");
                panics::discard(payload);
            }
        }
    }
}

/// What was pending in the last dump, and what has been reported.
#[derive(Default)]
struct Seen {
    ops: HashMap<OpId, SeenOp>,
    /// The numbers of the reported waits.
    told_waits: HashSet<u64>,
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

struct SeenOp {
    state: OpState,
    since: Instant,
    told: bool,
}

impl Seen {
    /// Compares a dump with the last one and returns the problems found.
    fn look(&mut self, watchdog: &Watchdog, dump: &Dump, now: Instant) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut before = std::mem::take(&mut self.ops);
        let mut has_moved = false;
        let awaited: HashSet<usize> = dump.waits().iter().flat_map(|wait| wait.waits_for.iter().copied()).collect();
        for (index, op) in dump.ops().iter().enumerate() {
            let Some(id) = op.id else { continue };
            let mut seen = match before.remove(&id) {
                Some(seen) if seen.state == op.state => seen,
                earlier => {
                    has_moved |= earlier.is_some();
                    SeenOp { state: op.state, since: now, told: false }
                }
            };
            let time = now.duration_since(seen.since);
            let (limit, problem) = match op.state {
                OpState::Running | OpState::Ending => {
                    let budget = watchdog.budgets.get(op.name.as_str()).copied();
                    (budget.or(watchdog.running), Problem::Running { op: index, time })
                }
                OpState::Waiting | OpState::Ready => (watchdog.waiting, Problem::Waiting { op: index, time }),
                // The operation's children, or the thread that waits inside the operation, are reported instead.
                OpState::WaitingInside | OpState::WaitingForChildren => (None, Problem::Waiting { op: index, time }),
            };
            // An async task that awaits a variable appears only as the internal operation of its wait.
            let counts = !op.internal || op.name.as_str() == WAIT && !awaited.contains(&index);
            if !seen.told && counts && limit.is_some_and(|limit| time >= limit) {
                seen.told = true;
                problems.push(problem);
            }
            self.ops.insert(id, seen);
        }
        self.look_at_waits(watchdog, dump, &mut problems);
        self.look_at_devices(watchdog, dump, now, &mut problems);
        // The operations remaining in `before` have ended.
        if has_moved || !before.is_empty() || self.progress.is_none() {
            self.progress = Some(now);
            (self.told_of_stall, self.told_of_cycle) = (false, false);
        }
        let time = self.progress.map_or(Duration::ZERO, |progress| now.duration_since(progress));
        let is_pending = !dump.ops().is_empty() || dump.unlisted() > 0;
        if is_pending
            && watchdog.stalled.is_some_and(|limit| time >= limit)
            && !std::mem::replace(&mut self.told_of_stall, true)
        {
            problems.push(Problem::Stalled { time });
        }
        // Reported only if no operation has changed between two dumps, since the cycle could otherwise combine states
        // from different moments.
        if let Some(ops) = dump.cycle().filter(|_| !has_moved && before.is_empty()) {
            if !std::mem::replace(&mut self.told_of_cycle, true) {
                problems.push(Problem::Cycle { ops });
            }
        }
        problems
    }

    /// Reports threads that have waited for too long.
    fn look_at_waits(&mut self, watchdog: &Watchdog, dump: &Dump, problems: &mut Vec<Problem>) {
        let numbers: HashSet<u64> = dump.waits().iter().map(|wait| wait.number).collect();
        self.told_waits.retain(|number| numbers.contains(number));
        for (index, wait) in dump.waits().iter().enumerate() {
            let is_over = watchdog.waiting.is_some_and(|limit| wait.time >= limit);
            if is_over && self.told_waits.insert(wait.number) {
                problems.push(Problem::Wait { wait: index, time: wait.time });
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
            let time = now.duration_since(seen.since);
            if time >= limit && !std::mem::replace(&mut seen.told, true) {
                problems.push(Problem::Device { op, time });
            }
        }
    }
}
