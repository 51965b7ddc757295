//! Explores a model's schedules under shuttle systematically.
//!
//! Every access counts as `SeqCst`. Two schedules that differ only in the order of steps that commute have the same
//! result, so that one of them suffices. A step is known by what its thread has announced: one access to an atomic or a
//! cell, with everything that the thread does up to its next switch point. Steps commute if they access different
//! objects, or if both only read. Steps of other
//! kinds, such as locks and parks, commute with these, but not with each other.
//!
//! The search is depth-first, with dynamic partial-order reduction (C. Flanagan and P. Godefroid, POPL 2005): where two
//! steps that do not commute could come in the opposite order, that order is explored later. Every earlier step is
//! compared, not only the last access to an object. The search also uses sleep sets: once all schedules that begin with
//! a thread's step have been explored, the thread sleeps in the schedules that begin with other steps, until one of
//! these does not commute with its own.
//!
//! Bookkeeping of the models in `std` types is no step of its own. Where it depends on the order of steps that commute,
//! one order is tried.
//!
//! After a yield, the thread continues only once another has taken a step, if another can.

use std::{cell::RefCell, collections::BTreeMap, env, panic::Location, rc::Rc, sync::Arc, time::Instant};

use raddle::internals::Flavour;
use shuttle::{
    Config, FailurePersistence, MaxSteps, Runner,
    scheduler::{Schedule, Scheduler, Task, TaskId},
};

use crate::steps::{Step, Steps};

/// The number of schedules after which a search is given up. `RADDLE_SHUTTLE_FACTOR` multiplies this number and the
/// next.
const MAX_SCHEDULES: usize = 20_000;

/// The number of steps, in all schedules, after which a search is given up.
const MAX_STEPS: usize = 1_200_000;

/// The number of steps after which a schedule counts as not terminating.
const MAX_LENGTH: usize = 5_000;

/// The maximum number of threads, including the main one.
const MAX_THREADS: usize = 6;

/// The number of preemptions in the schedules of a model with more than two threads, or with too many schedules.
const PREEMPTIONS: usize = 2;

/// The bound of models whose schedules are all explored; loom has further bounds.
pub const COMPLETE: Option<usize> = None;

/// A point of a schedule. Threads are bits.
#[derive(Debug)]
struct Node {
    /// The threads that could continue.
    choices: u64,
    /// The threads with which to continue.
    wanted: u64,
    /// The threads that need not continue here: those asleep, and those with which all schedules have been explored.
    done: u64,
    chosen: usize,
}

/// A step that has been taken.
#[derive(Debug)]
struct Event {
    step: Step,
    /// By thread, the number of its first events that come before this event in every order of the steps that commute.
    before: [usize; MAX_THREADS],
}

/// The search, which outlives its schedulers.
#[derive(Debug, Default)]
struct Search {
    path: Vec<Node>,
    events: Vec<Event>,
    /// By thread: the indices of its events.
    by_thread: [Vec<usize>; MAX_THREADS],
    /// The threads asleep.
    asleep: u64,
    next: Steps,
    /// By thread that has begun or could begin: what comes before its next step.
    before: BTreeMap<usize, [usize; MAX_THREADS]>,
    /// By thread: what came before its beginning.
    began: BTreeMap<usize, [usize; MAX_THREADS]>,
    /// Whether the rest of this schedule equals one already explored.
    repeats: bool,
    /// The maximum number of preemptions; all schedules with no more are explored.
    bound: Option<usize>,
    preemptions: usize,
    schedules: usize,
    repeated: usize,
    threads: usize,
    steps: usize,
    /// Multiplies the limits.
    factor: usize,
    is_over: bool,
}

impl Search {
    fn new(bound: Option<usize>, factor: usize) -> Self {
        Self { bound, factor, ..Self::default() }
    }

    /// Prepares the next schedule. Returns `false` if there is none, or the limit is reached.
    fn begin(&mut self) -> bool {
        if self.schedules + self.repeated > 0 && !self.backtrack() {
            self.is_over = true;
            return false;
        }
        let schedules = self.schedules + self.repeated;
        if schedules >= MAX_SCHEDULES * self.factor || self.steps >= MAX_STEPS * self.factor {
            return false;
        }
        // Only models with two threads are explored completely.
        if self.bound.is_none() && self.threads > 2 {
            return false;
        }
        (self.asleep, self.repeats, self.preemptions) = (0, false, 0);
        self.events.clear();
        self.by_thread.iter_mut().for_each(Vec::clear);
        self.next.begin();
        self.before.clear();
        self.began.clear();
        true
    }

    fn backtrack(&mut self) -> bool {
        while let Some(node) = self.path.last_mut() {
            node.done |= 1 << node.chosen;
            let left = node.wanted & !node.done;
            if left != 0 {
                node.chosen = left.trailing_zeros() as usize;
                return true;
            }
            self.path.pop();
        }
        false
    }

    fn end(&mut self) {
        if self.repeats { self.repeated += 1 } else { self.schedules += 1 }
    }

    /// Chooses the next of the threads `runnable`.
    fn choose(&mut self, runnable: &[usize], current: Option<usize>, yields: bool) -> usize {
        self.next.note(current, runnable.iter().copied());
        for &thread in runnable {
            assert!(thread < MAX_THREADS, "the model has more than {MAX_THREADS} threads");
            self.threads = self.threads.max(thread + 1);
            // A new thread begins after the last step of the thread that has started it.
            let mut begin = current.and_then(|current| self.before.get(&current)).copied().unwrap_or_default();
            begin[thread] = 0;
            self.before.entry(thread).or_insert(begin);
            self.began.entry(thread).or_insert(begin);
        }
        self.steps += 1;
        let mut choices = runnable.iter().fold(0_u64, |bits, thread| bits | 1 << thread);
        let goes_on = current.filter(|current| !yields && choices & 1 << current != 0);
        if let Some(current) = current.filter(|current| yields && choices != 1 << current) {
            choices &= !(1 << current);
        }
        if let (Some(current), Some(bound)) = (goes_on, self.bound) {
            if self.preemptions >= bound {
                choices = 1 << current;
            }
        }
        // The running thread goes on first, so that the first schedules have few switches.
        let first = |of: u64| {
            let goes_on = goes_on.filter(|current| of & 1 << current != 0);
            goes_on.unwrap_or(of.trailing_zeros() as usize)
        };
        if self.repeats {
            return first(choices);
        }
        let depth = self.events.len();
        if depth == self.path.len() {
            let left = choices & !self.asleep;
            if left == 0 {
                self.repeats = true;
                return first(choices);
            }
            let chosen = first(left);
            let wanted = if self.bound.is_some() { choices } else { 1 << chosen };
            self.path.push(Node { choices, wanted, done: self.asleep, chosen });
        }
        let node = &self.path[depth];
        assert_eq!(node.choices, choices, "the model depends on something other than its schedule");
        let (chosen, done) = (node.chosen, node.done);
        let step = self.next.of(chosen);
        if self.bound.is_none() {
            self.asleep = (0..MAX_THREADS)
                .filter(|thread| (done | self.asleep) & 1 << thread != 0 && *thread != chosen)
                .filter(|&thread| self.next.of(thread).commutes_with(step))
                .fold(0, |asleep, thread| asleep | 1 << thread);
        }
        self.take(chosen, step);
        if goes_on.is_some_and(|current| current != chosen) {
            self.preemptions += 1;
        }
        chosen
    }

    /// Records a step. For each earlier step of another thread that does not commute with this one, and after which
    /// this one need not come, the opposite order is explored as well.
    fn take(&mut self, thread: usize, step: Step) {
        let mut before = self.before[&thread];
        // A thread may have waited for a step after which its own step comes, such as the release of a lock. The
        // opposite order is then impossible, and it is the order of earlier steps that can be reversed.
        let may_have_waited = matches!(step, Step::Unknown);
        let after = if may_have_waited { self.began[&thread] } else { before };
        for (other, steps) in self.by_thread.iter().enumerate().filter(|&(other, _)| other != thread) {
            for number in (after[other]..steps.len()).rev() {
                let at = steps[number];
                let earlier = &self.events[at];
                let is_after = !may_have_waited && number < before[other];
                if is_after || earlier.step.commutes_with(step) {
                    continue;
                }
                assert!(
                    !(step.is_of_cell() && earlier.step.is_of_cell()),
                    "Causality violation: two threads access a cell at the same time"
                );
                for (before, earlier) in before.iter_mut().zip(earlier.before) {
                    *before = (*before).max(earlier);
                }
                before[other] = before[other].max(number + 1);
                let node = &mut self.path[at];
                node.wanted |= if node.choices & 1 << thread != 0 { 1 << thread } else { node.choices };
            }
        }
        self.by_thread[thread].push(self.events.len());
        self.events.push(Event { step, before });
        before[thread] += 1;
        self.before.insert(thread, before);
    }
}

#[derive(Debug)]
struct Exhaustive(Rc<RefCell<Search>>, bool);

impl Scheduler for Exhaustive {
    fn new_execution(&mut self) -> Option<Schedule> {
        let mut search = self.0.borrow_mut();
        if std::mem::replace(&mut self.1, true) {
            search.end();
        }
        search.begin().then(|| Schedule::new(0))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
        let threads: Vec<usize> = runnable.iter().map(|task| task.id().into()).collect();
        Some(self.0.borrow_mut().choose(&threads, current.map(usize::from), yields).into())
    }

    fn next_u64(&mut self) -> u64 {
        panic!("a model whose schedules are all explored draws no random numbers");
    }
}

fn search(bound: Option<usize>, factor: usize, f: &Arc<dyn Fn() + Send + Sync>) -> Rc<RefCell<Search>> {
    let search = Rc::new(RefCell::new(Search::new(bound, factor)));
    let mut config = Config::new();
    config.stack_size = 0x4_0000;
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    config.max_steps = MaxSteps::FailAfter(MAX_LENGTH);
    let f = Arc::clone(f);
    Runner::new(Exhaustive(Rc::clone(&search), false), config).run(move || f());
    search
}

/// Runs `f`, if it has two threads, in all schedules that can differ. If it has more threads, or if the schedules
/// exceed a limit ([`MAX_SCHEDULES`], [`MAX_STEPS`]), runs `f` in all schedules with at most [`PREEMPTIONS`]
/// preemptions, up to the same limit. loom's bound is ignored, and crossbeam-epoch is replaced by its contract. Prints
/// what was explored, and returns the number of schedules.
///
/// # Panics
/// If `f` fails in a schedule or has only one schedule.
#[track_caller]
pub fn model(_bound: impl Into<Option<usize>>, flavour: Flavour, f: impl Fn() + Send + Sync + 'static) -> usize {
    let (at, start) = (Location::caller(), Instant::now());
    let f: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
        flavour.begin();
        f();
    });
    let factor = env::var("RADDLE_SHUTTLE_FACTOR").map_or(1, |factor| factor.parse().expect("a number"));
    let all = search(None, factor, &f);
    let all = all.borrow();
    let mut schedules = all.schedules;
    let found = if all.is_over {
        "all".to_owned()
    } else {
        let bounded = search(Some(PREEMPTIONS), factor, &f);
        let bounded = bounded.borrow();
        schedules += bounded.schedules;
        let first = if bounded.is_over { "all" } else { "the first" };
        let of_all = if all.threads > 2 { String::new() } else { format!("the first {}, and ", all.schedules) };
        format!("{of_all}{first} with {PREEMPTIONS} preemptions, {}", bounded.schedules)
    };
    let (file, seconds) = (at.file().rsplit('/').next().unwrap_or_default(), start.elapsed().as_secs_f64());
    println!(
        "{file}:{}: {schedules} schedules of {} threads: {found}; {} repeated, {seconds:.2} s",
        at.line(),
        all.threads,
        all.repeated
    );
    assert!(schedules > 1, "the model has only one schedule, so nothing is explored");
    schedules
}
