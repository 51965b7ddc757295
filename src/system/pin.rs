//! How a worker keeps to its core, and an engine to the cores of its process.
//!
//! An engine may use the cores of the thread that built it. If the process is confined to other cores later, the kernel
//! moves its threads, and the engine must not move them back: a thread notices that its cores are no longer those that
//! it was given, and tells its engine if they are now those of the whole process.

use std::{
    cell::Cell,
    fs::File,
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{
    core_claims::CoreClaim,
    core_set::{CoreSet, WORDS},
    topology::{self, Placement},
};

/// The cores that the threads of an engine may use.
#[derive(Debug)]
pub(crate) struct EngineCores {
    /// The cores of the thread that built the engine.
    home: CoreSet,
    now: [AtomicUsize; WORDS],
}

impl EngineCores {
    pub(crate) fn new(cores: &[usize]) -> Self {
        let home = CoreSet::new(cores);
        Self { home, now: home.0.map(AtomicUsize::new) }
    }

    pub(crate) fn get(&self) -> CoreSet {
        // Relaxed: a thread that sees a part of a change sees the rest when it looks again.
        CoreSet(std::array::from_fn(|word| self.now[word].load(Relaxed)))
    }

    fn set(&self, cores: CoreSet) {
        // Relaxed: as in `get`.
        self.now.iter().zip(cores.0).for_each(|(now, word)| now.store(word, Relaxed));
    }

    /// If something other than the engine has moved the calling thread, returns `true`, and changes the engine's cores
    /// if the whole process was moved. A thread that was moved alone, by a function that it ran for instance, says
    /// nothing about the engine.
    pub(crate) fn follow(&self) -> bool {
        let Some(here) = CoreSet::moved_to() else { return false };
        let process = CoreSet::of_process().unwrap_or(here);
        let home = self.home.common(&process);
        if here == process {
            self.set(here);
        } else if here.common(&process) == here && !home.is_empty() {
            // The kernel has restored what it had taken from the thread.
            self.set(home);
        }
        true
    }

    /// Lets the calling thread use all cores of the engine. Returns `false` if the operating system refuses.
    pub(crate) fn widen(&self) -> bool {
        self.follow();
        let now = self.get();
        // The first cores are asked for again: if a cpuset has taken some away, the kernel grants the others, and these
        // too when the cpuset returns them.
        let is_within = || CoreSet::given().is_some_and(|given| given.common(&now) == given);
        self.home.keep_thread() && is_within() || now.keep_thread()
    }
}

/// The time between two looks at a worker's core. Not tuned: a look takes 5 µs.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// How long a worker runs unpinned once that has turned out to be better. Each time in a row is twice as long as the
/// one before, up to the maximum. Not tuned: trying the core again takes one look, a hundredth of the shortest time.
const APART: Duration = Duration::from_secs(10);
const LONGEST_APART: Duration = Duration::from_secs(300);

/// How long a worker stays pinned, although it waits for its core, once that has turned out to be no worse. Not tuned.
const TOGETHER: Duration = Duration::from_secs(1);

/// The share of its waits, in the time during which a thread runs or is ready to run, from which a worker tries whether
/// it waits less unpinned. Not tuned: a thread that computes beside another one waits for half of the time.
const LONG_WAITS: f64 = 0.15;

/// A worker that runs unpinned for a trial stays so if the share of its waits is at most this part of what it was. Not
/// tuned: with two workers and another busy thread on two cores, waits are a third instead of half.
const BETTER: f64 = 0.85;

/// A share is known once a thread has been given a core this often, or has waited this long. Not tuned.
const ENOUGH_RUNS: u64 = 16;
const ENOUGH_WAITS: Duration = Duration::from_millis(10);

/// The number of a worker's rounds between two readings of the clock, at most. A round is 32 operations or more.
const MOST_ROUNDS: u32 = 64;

/// A worker's claim to its core, and what its thread knows about that core.
#[derive(Debug)]
pub(crate) struct Pin {
    claim: CoreClaim,
    cores: Arc<EngineCores>,
    /// Whether the worker leaves its core while others compute there.
    gives_way: bool,
    state: Cell<PinState>,
    /// How long the worker will be apart from its core the next time.
    apart: Cell<Duration>,
    /// When the worker last looked at its core.
    looked: Cell<Option<Instant>>,
    /// What the kernel had counted for the thread when a share was last known.
    times: Cell<Option<ThreadTimes>>,
    /// The number of rounds between two readings of the clock, and how many are left until the next one.
    rounds: Cell<(u32, u32)>,
    /// When the clock was last read between rounds.
    read: Cell<Instant>,
    /// Whether the system has refused the core before.
    was_refused: Cell<bool>,
}

impl Pin {
    pub(crate) fn new(claim: CoreClaim, cores: Arc<EngineCores>, gives_way: bool) -> Self {
        let now = Instant::now();
        Self {
            claim,
            cores,
            gives_way,
            state: Cell::new(PinState::Pinned { until: now }),
            apart: Cell::new(APART),
            looked: Cell::new(None),
            times: Cell::new(None),
            rounds: Cell::new((1, 1)),
            read: Cell::new(now),
            was_refused: Cell::new(false),
        }
    }

    /// Pins the calling thread, which runs the worker, if the worker may be pinned now. A refusal is reported once.
    pub(crate) fn keep(&self) -> Placement {
        self.times.set(None);
        self.cores.follow();
        let core = self.claim.core;
        if matches!(self.state.get(), PinState::Pinned { .. }) && self.cores.get().contains(core) {
            if CoreSet::given() == Some(CoreSet::new(&[core])) || topology::keep_to_one(core) {
                return Placement::Pinned(core);
            }
            if !self.was_refused.replace(true) {
                self.cores.widen();
                return Placement::Refused(core);
            }
        }
        self.cores.widen();
        Placement::Unpinned
    }

    /// Looks at the worker's core if there has been no look for a while. Returns where the worker runs from now on if
    /// that changes.
    pub(crate) fn look(&self) -> Option<Placement> {
        self.look_at(Instant::now())
    }

    /// [`look`](Self::look), called once in each round, which reads the clock about once in a millisecond.
    #[inline]
    pub(crate) fn look_in_round(&self) -> Option<Placement> {
        let (rounds, left) = self.rounds.get();
        if left > 1 {
            self.rounds.set((rounds, left - 1));
            return None;
        }
        let now = Instant::now();
        let is_soon = now - self.read.replace(now) < Duration::from_millis(1);
        let rounds = if is_soon { (2 * rounds).min(MOST_ROUNDS) } else { 1 };
        self.rounds.set((rounds, rounds));
        self.look_at(now)
    }

    fn look_at(&self, now: Instant) -> Option<Placement> {
        if self.looked.get().is_some_and(|looked| now - looked < BETWEEN_LOOKS) {
            return None;
        }
        self.looked.set(Some(now));
        if self.cores.follow() {
            // A thread that was moved away from the core stays where it is, until the kernel gives the core back.
            let has_core = CoreSet::given().is_some_and(|given| given.contains(self.claim.core));
            return Some(if has_core { self.keep() } else { Placement::Unpinned });
        }
        if !self.gives_way {
            return None;
        }
        let state = match self.state.get() {
            PinState::Pinned { until } => {
                let waits = self.share_of_waits()?;
                if waits < LONG_WAITS {
                    self.apart.set(APART);
                }
                if waits < LONG_WAITS || now < until {
                    return None;
                }
                PinState::Trial { pinned: waits }
            }
            PinState::Trial { pinned } if self.share_of_waits()? <= BETTER * pinned => {
                self.state.set(PinState::Apart { until: now + self.apart.get() });
                self.apart.set((2 * self.apart.get()).min(LONGEST_APART));
                return None;
            }
            PinState::Trial { .. } => PinState::Pinned { until: now + TOGETHER },
            PinState::Apart { until } if now >= until => PinState::Pinned { until: now },
            PinState::Apart { .. } => return None,
        };
        self.state.set(state);
        let placement = self.keep();
        self.times.set(ThreadTimes::read());
        Some(placement)
    }

    /// Returns the share of its waits in the time during which the thread has run or was ready to run, since a share
    /// was last known. Returns `None` if too little has happened or Linux does not count it.
    fn share_of_waits(&self) -> Option<f64> {
        let now = ThreadTimes::read()?;
        let Some(before) = self.times.get() else {
            self.times.set(Some(now));
            return None;
        };
        let (ran, waited) = (now.ran.saturating_sub(before.ran), now.waited.saturating_sub(before.waited));
        if now.runs.saturating_sub(before.runs) < ENOUGH_RUNS && waited < ENOUGH_WAITS {
            return None;
        }
        self.times.set(Some(now));
        Some(waited.as_secs_f64() / (ran + waited).as_secs_f64())
    }
}

/// Whether a worker that gives way is pinned.
#[derive(Clone, Copy, Debug)]
enum PinState {
    /// The worker is pinned, and does not try anything else before `until`.
    Pinned { until: Instant },
    /// The worker is unpinned. While it was pinned, the share of its waits was `pinned`.
    Trial { pinned: f64 },
    /// The worker is unpinned until then, since it waits less.
    Apart { until: Instant },
}

/// What the kernel has counted for a thread.
#[derive(Clone, Copy, Debug)]
struct ThreadTimes {
    /// The time for which it ran.
    ran: Duration,
    /// The time for which it was ready to run, and waited for a core.
    waited: Duration,
    /// How often it was given a core.
    runs: u64,
}

impl ThreadTimes {
    /// Reads the counts of the calling thread, if Linux reports them.
    fn read() -> Option<Self> {
        let mut text = [0; 64];
        let length = File::open("/proc/thread-self/schedstat").ok()?.read(&mut text).ok()?;
        let mut fields = std::str::from_utf8(&text[..length]).ok()?.split_whitespace().map(str::parse);
        let mut next = || fields.next()?.ok();
        let [ran, waited] = [next()?, next()?].map(Duration::from_nanos);
        Some(Self { ran, waited, runs: next()? })
    }
}

#[cfg(all(test, target_os = "linux", not(any(raddle_loom, raddle_shuttle, miri))))]
mod tests {
    use super::*;
    use crate::system::core_claims::claim;

    #[test]
    fn a_refused_core_is_reported_once() {
        // The kernel has a bit for this core, but no machine that runs the tests has the core.
        let absent = [1023];
        let claim = claim(&absent, 1).pop().expect("a claim");
        let pin = Pin::new(claim, Arc::new(EngineCores::new(&absent)), false);
        let before = topology::allowed();
        assert_eq!(pin.keep(), Placement::Refused(1023));
        assert_eq!(pin.keep(), Placement::Unpinned);
        assert_eq!(topology::allowed(), before);
    }

    #[test]
    fn a_thread_that_moves_itself_does_not_change_the_cores_of_its_engine() {
        let all = topology::allowed();
        if all.len() < 2 {
            return eprintln!("skipped: there is only one core");
        }
        let moves = std::thread::spawn(move || {
            let cores = EngineCores::new(&all);
            assert!(cores.widen() && !cores.follow());
            assert!(core_affinity::set_for_current(core_affinity::CoreId { id: all[1] }));
            assert!(cores.follow() && !cores.follow());
            assert_eq!(*cores.get().list(), *all);
            assert!(cores.widen());
            assert_eq!(topology::allowed(), all);
        });
        moves.join().expect("the thread should not panic");
    }

    #[test]
    fn waits_are_counted() {
        let Some(before) = ThreadTimes::read() else { return eprintln!("skipped: the kernel does not count waits") };
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(5) {}
        std::thread::sleep(Duration::from_millis(1));
        let after = ThreadTimes::read().expect("the counts were read before");
        assert!(after.ran > before.ran && after.runs > before.runs, "{before:?} {after:?}");
        assert!(after.ran - before.ran + (after.waited - before.waited) <= start.elapsed(), "{before:?} {after:?}");
    }
}
