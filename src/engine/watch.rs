//! The thread of a watchdog.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use crate::{
    engine::core::Core,
    sync::mpsc,
    system::panics,
    trace::{
        dump::{Dump, OpState},
        event::OpId,
        watchdog::{Problem, Watchdog, WatchdogReport},
    },
};

/// Starts a watchdog for `core`, which runs until the returned sender is dropped. Its thread ends soon after that, or
/// once the function that receives the reports has returned.
pub(super) fn begin(core: &Arc<Core>, watchdog: Watchdog) -> io::Result<mpsc::Sender<()>> {
    let (stop, stopped) = mpsc::channel();
    let core = Arc::downgrade(core);
    let watch = move || watch(&core, &watchdog, &stopped);
    thread::Builder::new().name("raddle-watchdog".to_owned()).spawn(watch)?;
    Ok(stop)
}

/// Looks at the engine until it ends.
fn watch(core: &Weak<Core>, watchdog: &Watchdog, stopped: &mpsc::Receiver<()>) {
    let mut seen = Seen::default();
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(watchdog.interval()) {
        let Some(core) = core.upgrade() else { return };
        if core.pending() == 0 {
            seen = Seen::default();
            continue;
        }
        let dump = core.dump();
        // The program may take long over a report.
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

/// What was pending at the last look.
#[derive(Default)]
struct Seen {
    ops: HashMap<OpId, SeenOp>,
    /// When something last started or ended.
    progress: Option<Instant>,
    told_of_stall: bool,
    told_of_cycle: bool,
}

struct SeenOp {
    state: OpState,
    since: Instant,
    told: bool,
}

impl Seen {
    /// Compares a dump with the last one, and returns what is wrong.
    fn look(&mut self, watchdog: &Watchdog, dump: &Dump, now: Instant) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut before = std::mem::take(&mut self.ops);
        let mut has_moved = false;
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
                OpState::Running | OpState::Ending => (watchdog.running, Problem::Running { op: index, time }),
                OpState::Waiting | OpState::Ready => (watchdog.waiting, Problem::Waiting { op: index, time }),
                OpState::WaitingInside => (None, Problem::Waiting { op: index, time }),
            };
            if !seen.told && !op.internal && limit.is_some_and(|limit| time >= limit) {
                seen.told = true;
                problems.push(problem);
            }
            self.ops.insert(id, seen);
        }
        // The operations that are left in `before` have ended.
        if has_moved || !before.is_empty() || self.progress.is_none() {
            self.progress = Some(now);
            (self.told_of_stall, self.told_of_cycle) = (false, false);
        }
        let time = self.progress.map_or(Duration::ZERO, |progress| now.duration_since(progress));
        if watchdog.stalled.is_some_and(|limit| time >= limit) && !std::mem::replace(&mut self.told_of_stall, true) {
            problems.push(Problem::Stalled { time });
        }
        // Nothing has moved between two dumps, so the cycle is not made up of states from different moments.
        if let Some(ops) = dump.cycle().filter(|_| !has_moved && before.is_empty()) {
            if !std::mem::replace(&mut self.told_of_cycle, true) {
                problems.push(Problem::Cycle { ops });
            }
        }
        problems
    }
}
