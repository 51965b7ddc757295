//! A simulated device's commands, and the order in which it executes them.
//!
//! # States
//!
//! Of a stream's commands that are not done, the first is in one of these states; the others have only been issued.
//!
//! | state | what it waits for |
//! |---|---|
//! | blocked | the moment of a `Wait` |
//! | ready | for `Timed`, a free engine; otherwise nothing |
//! | started (`CommandQueue::started`) | the end of its time |
//! | executing (`CommandQueue::executing`) | the thread that executes its effect, without the lock |
//!
//! # Who may touch what
//!
//! One lock guards everything except the effects: copying bytes, and calling a kernel. The thread that set `executing`
//! runs an effect without the lock; until the effect ends, no other thread advances that stream. `running` counts the
//! threads running effects. [`work`] describes what happens if the device is lost during an effect.
//!
//! # Time
//!
//! Polls may be far apart, so a poll may find many commands whose times have passed. Each start and end is recorded
//! with the time at which it would have happened. A command starts at the latest of these times: its issue plus its
//! latency; the end of the preceding command in its stream; the event for which it waits; and, if it needs an engine,
//! the moment at which an engine becomes free and the end of the last stall.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::{
    device::{
        driver::{Address, MemoryKind},
        running_kernel::as_kernel,
    },
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::AtomicU64,
        edge::{self, acquire, release},
        lock, wait_until,
    },
    system::panics,
};

use super::{Clock, Counts, DeviceError, EngineUsage, StreamRole, Usage};

/// The time at which a recorded event happened, once it has happened.
pub(super) struct Moment {
    /// The time in nanoseconds, plus one; 0 before the event. The value changes once, under the lock of the device that
    /// recorded the event.
    at: AtomicU64,
}

impl Moment {
    pub(super) fn new() -> Self {
        Self { at: AtomicU64::new(0) }
    }

    fn happen(&self, at: Duration) {
        let nanos = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX - 1);
        // The threads that executed the effects before the event have since released the lock that this thread holds.
        self.at.store(nanos + 1, release(edge::event::REACHED));
    }

    fn at(&self) -> Option<Duration> {
        self.at.load(acquire(edge::event::SEEN)).checked_sub(1).map(Duration::from_nanos)
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Moment").field(&self.at()).finish()
    }
}

/// A kernel that has not run. Panics from dropping its captures are caught.
pub(super) struct Kernel(Option<Box<dyn FnOnce() + Send>>);

impl Kernel {
    pub(super) fn new(kernel: Box<dyn FnOnce() + Send>) -> Self {
        Self(Some(kernel))
    }

    fn run(mut self) -> Result<(), DeviceError> {
        let Some(kernel) = self.0.take() else { return Ok(()) };
        panics::catch(|| as_kernel(kernel)).map_err(|payload| {
            let text = payload.downcast_ref::<&'static str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            as_kernel(|| panics::discard(payload));
            let text = text.unwrap_or_else(|| "the payload is not a string".to_owned());
            DeviceError::lost(719, format!("a kernel panicked: {text}"))
        })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let Some(kernel) = self.0.take() else { return };
        if let Err(payload) = panics::catch(|| as_kernel(|| drop(kernel))) {
            panics::log!(Error, "raddle: the drop of a kernel that had not run panicked");
            as_kernel(|| panics::discard(payload));
        }
    }
}

/// Work executed by one of the device's engines.
pub(super) enum Work {
    Copy { from: Address, to: Address, bytes: usize, out: bool },
    Kernel(Kernel),
}

impl Work {
    fn execute(self) -> Result<(), DeviceError> {
        match self {
            Self::Copy { from, to, bytes, .. } => {
                // SAFETY: the caller that issued the copy promised that `from` and `to` have `bytes` bytes each, and
                // that nothing conflicts with the copy until a mark behind it has passed or the device is lost. No such
                // mark passes before this returns; after a loss, memory is freed only when `Driver::abandon`, which
                // waits for this copy, has returned. The ranges may overlap.
                unsafe { std::ptr::copy(from.ptr(), to.ptr(), bytes) };
                Ok(())
            }
            Self::Kernel(kernel) => kernel.run(),
        }
    }
}

/// A command of a stream.
pub(super) enum Command {
    Timed { work: Work, duration: Duration, latency: Duration },
    Record(Arc<Moment>),
    Wait(Arc<Moment>),
    Mark(u64),
}

/// The calls that can be refused.
#[derive(Clone, Copy, Debug)]
pub(super) enum DeviceCall {
    Allocate,
    Copy,
    Launch,
    Mark,
    Record,
    Wait,
}

struct Issued {
    command: Command,
    /// The command's number among all streams' commands.
    number: u64,
    /// The earliest time at which the command may start.
    earliest: Duration,
    /// Whether the command was selected to fail.
    fails: bool,
}

/// A command that keeps an engine busy.
struct StartedCommand {
    engine: usize,
    start: Duration,
    end: Duration,
}

/// One stream.
struct CommandQueue {
    role: StreamRole,
    commands: VecDeque<Issued>,
    started: Option<StartedCommand>,
    executing: bool,
    /// When the last completed command ended.
    until: Duration,
    /// The last mark passed.
    passed: u64,
    /// Whether the stream was dropped. If so, no more commands will be issued.
    closed: bool,
}

/// The engines: one copies in, one copies out, and the others compute.
const COPY_IN: usize = 0;
const COPY_OUT: usize = 1;
const COMPUTE: usize = 2;

#[derive(Clone, Copy, Default)]
struct DeviceEngine {
    free_at: Duration,
    usage: EngineUsage,
}

/// The state under the device's lock.
pub(super) struct DeviceState {
    clock: Clock,
    /// The time of a manual clock.
    manual: Duration,
    #[cfg(not(any(raddle_loom, raddle_shuttle)))]
    origin: std::time::Instant,
    /// The state of the random generator, if commands are picked at random.
    random: Option<u64>,
    timelines: Vec<CommandQueue>,
    engines: Vec<DeviceEngine>,
    issued: u64,
    /// The number of threads executing an effect.
    running: usize,
    /// How often a thread has waited for running effects.
    #[cfg(test)]
    pub(super) waiters: usize,
    stalled: bool,
    /// No copy or kernel starts before this time, the end of the last stall.
    not_before: Duration,
    lost: Option<DeviceError>,
    /// The number of bytes of device memory allocated.
    pub(super) allocated: usize,
    /// The number of bytes of pinned memory allocated.
    pub(super) pinned: usize,
    pub(super) fail_in: u64,
    refuse_in: u64,
    /// Whether all calls after the refused one are refused as well.
    refuses_on: bool,
    pub(super) counts: Counts,
}

/// A step that the device may take next.
#[derive(Clone, Copy)]
struct DeviceStep {
    /// The time of the step.
    at: Duration,
    /// The index of the step's stream.
    index: usize,
    /// Orders steps with the same time: the lowest comes first.
    rank: (bool, u64),
    /// The engine on which a command starts, if the step is a start.
    engine: Option<usize>,
}

/// A lost device's commands, which must be dropped outside the device's lock.
#[must_use]
pub(super) struct Leftovers(#[allow(dead_code, reason = "for its drop")] Vec<Issued>);

/// Counts down. Returns whether the count was 1, which selects this call or command.
fn is_it(countdown: &mut u64) -> bool {
    let it = *countdown == 1;
    *countdown = countdown.saturating_sub(1);
    it
}

impl DeviceState {
    pub(super) fn new(compute_engines: usize, clock: Clock, seed: Option<u64>) -> Self {
        Self {
            clock,
            manual: Duration::ZERO,
            #[cfg(not(any(raddle_loom, raddle_shuttle)))]
            origin: std::time::Instant::now(),
            random: seed,
            timelines: Vec::new(),
            engines: vec![DeviceEngine::default(); COMPUTE + compute_engines],
            issued: 0,
            running: 0,
            #[cfg(test)]
            waiters: 0,
            stalled: false,
            not_before: Duration::ZERO,
            lost: None,
            allocated: 0,
            pinned: 0,
            fail_in: 0,
            refuse_in: 0,
            refuses_on: false,
            counts: Counts::default(),
        }
    }

    fn now(&self) -> Duration {
        match self.clock {
            #[cfg(not(any(raddle_loom, raddle_shuttle)))]
            Clock::Real => self.origin.elapsed(),
            Clock::Manual => self.manual,
            _ => Duration::ZERO,
        }
    }

    pub(super) fn advance_clock(&mut self, by: Duration) {
        self.manual = self.manual.saturating_add(by);
    }

    /// Makes the device refuse the `n`-th call and, if `on` is set, all calls after it.
    pub(super) fn refuse(&mut self, n: u64, on: bool) {
        (self.refuse_in, self.refuses_on) = (n, on);
    }

    pub(super) fn stall(&mut self) {
        self.stalled = true;
    }

    pub(super) fn resume(&mut self) {
        self.stalled = false;
        self.not_before = self.now();
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            copy_in: self.engines[COPY_IN].usage,
            copy_out: self.engines[COPY_OUT].usage,
            compute: self.engines[COMPUTE..].iter().map(|engine| engine.usage).collect(),
        }
    }

    /// Returns the number of bytes allocated of a kind of memory.
    pub(super) fn held(&mut self, kind: MemoryKind) -> &mut usize {
        match kind {
            MemoryKind::Device => &mut self.allocated,
            MemoryKind::Pinned => &mut self.pinned,
        }
    }

    pub(super) fn check(&self) -> Result<(), DeviceError> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Opens a stream and returns its index.
    pub(super) fn open(&mut self, role: StreamRole) -> Result<usize, DeviceError> {
        self.check()?;
        self.counts.streams += 1;
        let timeline = CommandQueue {
            role,
            commands: VecDeque::new(),
            started: None,
            executing: false,
            until: Duration::ZERO,
            passed: 0,
            closed: false,
        };
        if let Some(index) =
            self.timelines.iter().position(|old| old.closed && old.commands.is_empty() && !old.executing)
        {
            self.timelines[index] = timeline;
            return Ok(index);
        }
        self.timelines.push(timeline);
        Ok(self.timelines.len() - 1)
    }

    /// Returns the number of the device's streams, including closed ones.
    #[cfg(test)]
    pub(super) fn streams(&self) -> usize {
        self.timelines.len()
    }

    /// Returns whether every command is done.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.running == 0 && self.timelines.iter().all(|timeline| timeline.commands.is_empty())
    }

    /// Records that no more commands will be issued on a stream. Commands already issued still run.
    pub(super) fn close(&mut self, index: usize) {
        self.timelines[index].closed = true;
    }

    /// Returns the number of commands that a stream holds. The command being executed does not count.
    pub(super) fn depth(&self, index: usize) -> usize {
        self.timelines[index].commands.len()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    pub(super) fn passed(&self, index: usize) -> u64 {
        self.timelines[index].passed
    }

    /// Counts a call, or returns why it is refused.
    pub(super) fn call(&mut self, call: DeviceCall) -> Result<(), DeviceError> {
        self.check()?;
        if is_it(&mut self.refuse_in) {
            self.refuse_in = u64::from(self.refuses_on);
            return Err(DeviceError::refused(801, format!("the simulated device refused a call ({call:?})")));
        }
        match call {
            DeviceCall::Allocate => {}
            DeviceCall::Copy => self.counts.copies += 1,
            DeviceCall::Launch => self.counts.launches += 1,
            DeviceCall::Mark => self.counts.marks += 1,
            DeviceCall::Record => self.counts.records += 1,
            DeviceCall::Wait => self.counts.waits += 1,
        }
        Ok(())
    }

    /// Appends a command to a stream.
    pub(super) fn issue(&mut self, index: usize, command: Command) {
        let (latency, fails) = match command {
            Command::Timed { latency, .. } => (latency, is_it(&mut self.fail_in)),
            _ => (Duration::ZERO, false),
        };
        let number = self.issued;
        self.issued += 1;
        let earliest = if self.clock == Clock::Instantly { Duration::ZERO } else { self.now().saturating_add(latency) };
        self.timelines[index].commands.push_back(Issued { command, number, earliest, fails });
    }

    /// Loses the device. Events that it has not reached count as having happened, so other devices do not wait for
    /// them.
    pub(super) fn lose(&mut self, error: DeviceError) -> Leftovers {
        self.lost.get_or_insert(error);
        let now = self.now();
        let mut leftovers = Vec::new();
        for timeline in &mut self.timelines {
            timeline.started = None;
            leftovers.extend(timeline.commands.drain(..));
        }
        for issued in &leftovers {
            if let Command::Record(moment) = &issued.command {
                moment.happen(now);
            }
        }
        Leftovers(leftovers)
    }

    /// Returns the generator's next number (splitmix64, <https://prng.di.unimi.it/splitmix64.c>), or `None` if commands
    /// are not picked at random.
    fn random(&mut self) -> Option<u64> {
        let state = self.random.as_mut()?;
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ (mixed >> 31))
    }

    /// Returns the next possible step of a stream.
    fn step_of(&self, index: usize, now: Duration) -> Option<DeviceStep> {
        let timeline = &self.timelines[index];
        if timeline.executing {
            return None;
        }
        let first = timeline.commands.front()?;
        let rank = (timeline.role != StreamRole::Urgent, first.number);
        if let Some(started) = &timeline.started {
            return Some(DeviceStep { at: started.end, index, rank, engine: None });
        }
        let at = timeline.until.max(first.earliest);
        match &first.command {
            // The clock of the device that recorded the event may be ahead, but an event that has happened cannot be
            // later than now.
            Command::Wait(moment) => Some(DeviceStep { at: at.max(moment.at()?.min(now)), index, rank, engine: None }),
            Command::Record(_) | Command::Mark(_) => Some(DeviceStep { at, index, rank, engine: None }),
            Command::Timed { work, .. } => {
                let engines = match work {
                    Work::Copy { out: false, .. } => COPY_IN..COPY_IN + 1,
                    Work::Copy { out: true, .. } => COPY_OUT..COPY_OUT + 1,
                    Work::Kernel(_) => COMPUTE..self.engines.len(),
                };
                let engine = engines.min_by_key(|&engine| self.engines[engine].free_at)?;
                let at = at.max(self.engines[engine].free_at).max(self.not_before);
                Some(DeviceStep { at, index, rank, engine: Some(engine) })
            }
        }
    }

    /// Returns the device's next step, among those possible by now.
    fn next_step(&mut self) -> Option<DeviceStep> {
        if self.stalled {
            return None;
        }
        let now = self.now();
        let steps = (0..self.timelines.len()).filter_map(|index| self.step_of(index, now));
        let steps: SmallVec<[DeviceStep; 8]> = steps.filter(|step| step.at <= now).collect();
        if steps.is_empty() {
            return None;
        }
        match self.random() {
            None => steps.into_iter().min_by_key(|step| (step.at, step.rank)),
            // One time in four, the remaining steps are left for another poll.
            Some(random) if random >> 62 == 0 => None,
            Some(random) => Some(steps[random as usize % steps.len()]),
        }
    }

    /// Takes a step. Returns the effect to execute without the lock, and whether it must fail.
    fn take(&mut self, step: DeviceStep) -> Option<(Work, bool)> {
        let timeline = &mut self.timelines[step.index];
        if let Some(engine) = step.engine {
            let Some(Command::Timed { duration, .. }) = timeline.commands.front().map(|first| &first.command) else {
                return None;
            };
            let duration = if self.clock == Clock::Instantly { Duration::ZERO } else { *duration };
            let end = step.at.saturating_add(duration);
            timeline.started = Some(StartedCommand { engine, start: step.at, end });
            self.engines[engine].free_at = end;
            return None;
        }
        let Issued { command, fails, .. } = timeline.commands.pop_front()?;
        timeline.until = step.at;
        match command {
            Command::Record(moment) => moment.happen(step.at),
            Command::Wait(_) => {}
            Command::Mark(seq) => timeline.passed = seq,
            Command::Timed { work, .. } => {
                timeline.executing = true;
                self.running += 1;
                return Some((work, fails));
            }
        }
        None
    }

    /// Records that the effect of the stream's started command was executed.
    fn executed(&mut self, index: usize, bytes: u64) {
        self.running -= 1;
        let timeline = &mut self.timelines[index];
        timeline.executing = false;
        // If the device has been lost in the meantime, the command does not count as done.
        if let Some(StartedCommand { engine, start, end }) = timeline.started.take() {
            self.counts.bytes_copied += bytes;
            let usage = &mut self.engines[engine].usage;
            usage.commands += 1;
            usage.busy = usage.busy.saturating_add(end - start);
            usage.first_start = Some(usage.first_start.map_or(start, |first| first.min(start)));
            usage.last_end = Some(usage.last_end.map_or(end, |last| last.max(end)));
        }
    }
}

/// Takes the steps possible by now, in all streams. If steps are picked at random, some may remain.
///
/// A lost device's error is returned only once no thread is executing an effect, since a caller that receives the error
/// may free memory used by effects.
pub(super) fn work<'m>(
    device: &'m Mutex<DeviceState>,
    mut state: MutexGuard<'m, DeviceState>,
    idle: &Condvar,
) -> Result<MutexGuard<'m, DeviceState>, DeviceError> {
    loop {
        if state.lost.is_some() {
            return quiet(state, idle);
        }
        let Some(step) = state.next_step() else { return Ok(state) };
        let Some((work, fails)) = state.take(step) else { continue };
        drop(state);
        let bytes = if let Work::Copy { bytes, .. } = work { bytes as u64 } else { 0 };
        let done = if fails {
            drop(work);
            Err(DeviceError::lost(700, "a command accessed an illegal address (it was made to fail)"))
        } else {
            work.execute()
        };
        state = lock(device);
        state.executed(step.index, bytes);
        let leftovers = done.err().map(|error| state.lose(error));
        if state.lost.is_some() {
            idle.notify_all();
        }
        if leftovers.is_some() {
            // Kernels own program values, whose drops must not run under a lock.
            drop(state);
            drop(leftovers);
            state = lock(device);
        }
    }
}

/// Waits until no thread is executing an effect. Returns the device's error if it is lost.
pub(super) fn quiet<'m>(
    mut state: MutexGuard<'m, DeviceState>,
    idle: &Condvar,
) -> Result<MutexGuard<'m, DeviceState>, DeviceError> {
    while state.running > 0 {
        #[cfg(test)]
        (state.waiters += 1);
        state = wait_until(idle, state, None).unwrap_or_else(|_| unreachable!("there is no deadline"));
    }
    state.check()?;
    Ok(state)
}
