//! The model for stateright: the actions possible in a state, and the properties required in each state.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use stateright::{Model, Property};

use crate::{
    program::{OPS, Program, THREADS, VARIABLES},
    state::{Access, NONE, OpId, State, World, Wrong, access_of, op_of},
    step::Step,
    unlink::{UNLINKER, Unlinking},
    weaken::Rule,
};

/// The maximum number of steps that a thread takes alone before its push returns: about twenty for each access of its
/// own operation and of the operations that it helps.
const ALONE: usize = 300;
/// The maximum total number of steps until all threads come to rest.
const ALL: usize = 2000;

/// An atomic access by a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Action {
    who: Who,
    step: Step,
}

/// A thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// A pushing thread.
    Pusher(usize),
    /// The thread that runs and completes this operation.
    Runner(OpId),
    /// The unlinking thread.
    Unlinker,
    /// The unlinking thread, which begins at this access.
    Beginner(Access),
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.who {
            Who::Pusher(thread) => write!(f, "thread {thread}: {:?}", self.step),
            Who::Runner(op) => write!(f, "completion of {op}: {:?}", self.step),
            Who::Unlinker => write!(f, "unlinking: {:?}", self.step),
            Who::Beginner(from) => write!(f, "unlinking behind {from}: {:?}", self.step),
        }
    }
}

/// A model of the tracker that runs some programs.
#[derive(Debug, Default)]
pub struct Tracker {
    programs: Vec<Program>,
    without: Option<Rule>,
    is_unreduced: bool,
    is_thorough: bool,
    completes_last: bool,
    unlinks: u8,
    taken: AtomicU64,
    ends: Mutex<HashSet<State>>,
}

impl Tracker {
    /// Creates a model of `programs`.
    pub fn new(programs: Vec<Program>) -> Self {
        Self { programs, ..Self::default() }
    }

    /// Removes a rule.
    #[must_use]
    pub fn without(mut self, rule: Rule) -> Self {
        self.without = Some(rule);
        // The reduction relies on these rules.
        self.is_unreduced |=
            matches!(rule, Rule::PinPushes | Rule::PinUnlinking | Rule::ReclaimAfterEpoch | Rule::SwingByCas);
        self
    }

    /// Explores all orders of all steps, without the reduction.
    #[must_use]
    pub fn unreduced(mut self) -> Self {
        self.is_unreduced = true;
        self
    }

    /// Also records which pushes were over when another began, and checks the effects of stalled threads in each state.
    #[must_use]
    pub fn thorough(mut self) -> Self {
        self.is_thorough = true;
        self
    }

    /// Lets operations complete only once all pushes are over.
    #[must_use]
    pub fn completing_last(mut self) -> Self {
        self.completes_last = true;
        self
    }

    /// Lets a thread unlink accesses, which it may begin at any time, up to `times` times.
    #[must_use]
    pub fn unlinking(mut self, times: u8) -> Self {
        self.unlinks = times;
        self
    }

    /// Returns the steps that were never taken.
    pub fn missing_steps(&self) -> Vec<Step> {
        // Relaxed: the checker has joined its threads.
        let taken = self.taken.load(Relaxed);
        Step::ALL.into_iter().filter(|&step| taken & 1 << step as u32 == 0).collect()
    }

    /// Returns the final states, which have no next step.
    ///
    /// # Panics
    /// If a thread has panicked while holding the lock.
    pub fn ends(&self) -> HashSet<State> {
        self.ends.lock().expect("no thread should panic while it holds this lock").clone()
    }

    fn program(&self, state: &State) -> &Program {
        &self.programs[usize::from(state.program)]
    }

    /// Takes the next step of a thread.
    #[inline]
    fn step(&self, state: &mut State, who: Who) {
        let program = self.program(state);
        let world = |state, pinned_thread| World {
            state,
            program,
            without: self.without,
            remembers_times: self.is_thorough,
            pinned_thread,
        };
        match who {
            Who::Pusher(thread) => state.pushes[thread].step(thread, &mut world(state, Some(thread))),
            Who::Runner(op) => state.completions[usize::from(op)].step(op, &mut world(state, None)),
            Who::Unlinker => state.unlinking.step(&mut world(state, Some(UNLINKER))),
            Who::Beginner(from) => state.unlinking.begin(from, &mut world(state, Some(UNLINKER))),
        }
    }

    /// Returns a thread's next step, if any.
    #[inline(always)]
    fn next_step(state: &State, who: Who) -> Option<Step> {
        match who {
            Who::Pusher(thread) => state.pushes[thread].next_step(),
            Who::Runner(op) => state.completions[usize::from(op)].next_step(),
            Who::Unlinker => state.unlinking.next_step(),
            Who::Beginner(_) => Some(Step::BeginUnlinking),
        }
    }

    /// Returns all threads that may exist.
    fn all() -> impl Iterator<Item = Who> {
        (0..=OPS + THREADS).map(|number| match number.checked_sub(OPS) {
            None => Who::Runner(number as OpId),
            Some(THREADS) => Who::Unlinker,
            Some(thread) => Who::Pusher(thread),
        })
    }

    /// Returns a thread whose next step may be taken immediately, since the order of this step relative to other
    /// threads' steps is irrelevant.
    fn alone(&self, state: &State) -> Option<Who> {
        let program = self.program(state);
        let is_alone = |who: &Who| match *who {
            Who::Pusher(thread) => state.pushes[thread].is_alone(state, program),
            Who::Runner(op) => state.completions[usize::from(op)].is_alone(state, program),
            Who::Unlinker => state.unlinking.is_alone(state, program),
            Who::Beginner(_) => false,
        };
        if self.is_unreduced || state.wrong.is_some() { None } else { Self::all().find(is_alone) }
    }

    /// Records that a step was taken.
    fn note(&self, step: Step) {
        // Relaxed: `missing_steps` reads the value only after all threads have been joined. The load here only avoids
        // contention between the checker's threads.
        if self.taken.load(Relaxed) & 1 << step as u32 == 0 {
            self.taken.fetch_or(1 << step as u32, Relaxed);
        }
    }

    /// Returns whether all queues agree on one order of pushes that respects real time.
    fn agrees(&self, state: &State) -> bool {
        let before = state.order(|op| state.record(op).after);
        state.wrong != Some(Wrong::ReturnedTooEarly) && (0..OPS).all(|op| before[op] & 1 << op == 0)
    }

    /// Returns whether accesses are appended only behind operations that are in all their queues. If so, a push takes
    /// effect in all queues the moment its last access is linked.
    fn takes_effect_at_once(&self, state: &State) -> bool {
        let program = self.program(state);
        let is_in_all = |op: OpId| {
            (0..VARIABLES as u8).all(|variable| {
                program.ops[usize::from(op)].0[usize::from(variable)].is_none() || state.before(op, variable).is_some()
            })
        };
        let has_one_behind = |op| (0..VARIABLES as u8).any(|variable| state.word(access_of(op, variable)).next != NONE);
        (0..program.ops.len() as OpId).all(|op| !has_one_behind(op) || is_in_all(op))
    }

    /// Returns whether a thread not yet pinned could reach a retired record from a tail, or from an access that is not
    /// spent.
    fn reaches_retired(state: &State) -> bool {
        let is_retired = |access| op_of(access).is_some_and(|op| state.record(op).retired);
        let unspent = |variable| state.walk(variable).skip_while(|&access| state.word(access).is_spent());
        state.tail.iter().any(|&tail| state.walk(tail).any(is_retired))
            || (0..VARIABLES as Access).any(|variable| unspent(variable).any(is_retired))
    }

    /// Returns whether all operations are complete and their records retired, except records with accesses that are
    /// last in a queue. Only those accesses may still hold shares of such a record.
    fn is_complete(&self, state: &State) -> bool {
        let program = self.program(state);
        let is_complete = |op: OpId| {
            let last = state.tail.iter().filter(|&&tail| op_of(tail) == Some(op)).count() as u8;
            let record = state.record(op);
            // A record whose only share is held by its access no longer counts shares.
            let shares = if program.ops[usize::from(op)].arity() == 1 { 2 } else { last };
            state.completions[usize::from(op)].is_over()
                && record.retired == (last == 0)
                && (last == 0 || record.live == shares)
        };
        (0..program.ops.len() as OpId).all(is_complete)
    }

    /// Returns whether all threads are at rest although an operation whose turn has come is not ready.
    fn waits_without_need(&self, state: &State) -> bool {
        let program = self.program(state);
        let is_at_rest = !state.pushes.iter().any(|push| push.is_under_way())
            && !state.completions.iter().any(|completion| completion.is_under_way());
        let mode = |op: OpId, variable: u8| program.ops[usize::from(op)].0[usize::from(variable)];
        let ops = 0..program.ops.len() as OpId;
        is_at_rest
            && ops.clone().any(|op| {
                state.completions[usize::from(op)].is_waiting()
                    && (0..VARIABLES as u8).all(|variable| {
                        let Some(its_mode) = mode(op, variable) else { return true };
                        let Some(before) = state.before(op, variable) else { return false };
                        let holds_up = |other: OpId| {
                            let excludes = mode(other, variable).is_some_and(|before| its_mode.waits_for(before));
                            before & 1 << other != 0 && excludes && !state.is_done(other)
                        };
                        !ops.clone().any(holds_up)
                    })
            })
    }

    /// Returns whether each thread at the head of a loop, if run alone, changes shared memory or finishes.
    ///
    /// Shared memory never returns to an earlier value, so it is the same in all states of a cycle. In a cycle, each
    /// thread that takes steps reads the same values repeatedly, whatever the others do, so it would also loop forever
    /// if run alone. If no thread loops forever alone, no cycle exists, and every execution of a program ends.
    fn gets_on(&self, state: &State) -> bool {
        Self::all().all(|who| {
            let is_at_head = match who {
                Who::Pusher(thread) => state.pushes[thread].is_at_the_head_of_a_loop(),
                Who::Runner(op) => state.completions[usize::from(op)].is_at_the_head_of_a_loop(),
                Who::Unlinker => state.unlinking.is_at_the_head_of_a_loop(),
                Who::Beginner(_) => false,
            };
            if !is_at_head {
                return true;
            }
            let (mut alone, mut memory) = (state.clone(), state.clone());
            for _ in 0..ALONE {
                let Some(step) = Self::next_step(&alone, who) else { return true };
                self.step(&mut alone, who);
                if step == Step::StoreWord {
                    // No other thread can see this word.
                    memory.words = alone.words;
                } else if (&alone.tail, &alone.words, &alone.records) != (&memory.tail, &memory.words, &memory.records)
                {
                    return true;
                }
            }
            false
        })
    }

    /// Returns whether each thread's push ends if all other threads stall.
    fn returns_alone(&self, state: &State) -> bool {
        (0..state.pushes.len()).all(|thread| {
            let mut alone = state.clone();
            (0..ALONE).any(|_| {
                let is_over = !alone.pushes[thread].is_under_way();
                if !is_over {
                    self.step(&mut alone, Who::Pusher(thread));
                }
                is_over
            })
        })
    }

    /// Returns whether, if one thread stalls inside a push, all other threads come to rest and all operations complete
    /// except the one being pushed, those behind it, and later operations of the stalled thread.
    fn delays_only_followers(&self, state: &State) -> bool {
        (0..state.pushes.len()).all(|stopped| {
            if !state.pushes[stopped].is_under_way() {
                return true;
            }
            let mut state = state.clone();
            let others = || Self::all().filter(|&who| who != Who::Pusher(stopped));
            for _ in 0..ALL {
                if let Some(who) = others().find(|&who| Self::next_step(&state, who).is_some()) {
                    self.step(&mut state, who);
                    continue;
                }
                let stopped_op = state.pushes[stopped].own();
                let program = self.program(&state);
                let before = state.order(|_| 0);
                // The stalled thread has not pushed its later operations.
                let mut others =
                    (0..program.ops.len() as OpId).filter(|&op| op < stopped_op || op >= program.first[stopped + 1]);
                return others.all(|op| {
                    before[usize::from(op)] & 1 << stopped_op != 0 || state.completions[usize::from(op)].is_over()
                });
            }
            false
        })
    }
}

impl Model for Tracker {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        (0..)
            .zip(&self.programs)
            .map(|(number, program)| State::new(number, program, Unlinking::times(self.unlinks), self.without))
            .collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // Events after an error are irrelevant.
        if state.wrong.is_some() {
            return;
        }
        let completes = !self.completes_last || !state.is_pushing();
        let starts = state.unlinking.starts(state, self.program(state));
        actions.extend(starts.map(|from| Action { who: Who::Beginner(from), step: Step::BeginUnlinking }));
        actions.extend(Self::all().filter_map(|who| {
            let may = completes || matches!(who, Who::Pusher(_));
            Self::next_step(state, who).filter(|_| may).map(|step| Action { who, step })
        }));
        if actions.is_empty() {
            self.ends.lock().expect("no thread should panic while it holds this lock").insert(state.clone());
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        self.note(action.step);
        self.step(&mut state, action.who);
        while let Some(who) = self.alone(&state) {
            if let Some(step) = Self::next_step(&state, who) {
                self.note(step);
            }
            self.step(&mut state, who);
        }
        if !state.is_ahead_of(before) {
            state.goes_wrong(Wrong::MovedBack);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn property(name: &'static str, holds: fn(&Tracker, &State) -> bool) -> Property<Tracker> {
            Property::always(name, holds)
        }
        let mut properties = vec![
            property("all queues agree on one order of the pushes", Self::agrees),
            property("a push takes effect in all queues at once", Self::takes_effect_at_once),
            property("an operation runs once, when its turn has come", |_, state| {
                !matches!(state.wrong, Some(Wrong::ReadyTwice | Wrong::ReadyTooEarly | Wrong::Miscounted))
            }),
            property("nothing is retired while a thread can reach it", |_, state| {
                !matches!(state.wrong, Some(Wrong::UseAfterReclamation | Wrong::RetiredTwice))
                    && !Self::reaches_retired(state)
            }),
            property("no deadlock", |model, state| {
                state.wrong.is_some() || state.has_steps() || model.is_complete(state)
            }),
            property("no operation waits needlessly", |model, state| !model.waits_without_need(state)),
            property("shared memory only moves forward", |_, state| state.wrong != Some(Wrong::MovedBack)),
            property("no livelock", Self::gets_on),
        ];
        if self.is_thorough {
            properties.push(property("a push returns while other threads stall", Self::returns_alone));
            properties.push(property("a stalled push delays only its followers", Self::delays_only_followers));
        }
        properties
    }
}
