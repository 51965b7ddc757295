//! A fuzz target whose bytes are a small program and its schedule.
//!
//! The first bytes are a program: up to four threads push, complete, wait and delete, on the tracker alone or on a
//! whole engine. The other bytes say which thread goes on, and for how many steps. A step ends where shuttle may switch
//! threads: before each access to an atomic, a lock and so on. When the bytes are exhausted, the threads take turns,
//! each of them running until it blocks or yields.
//!
//! A program fails if it hangs, or if the oracle at its end finds a violation: the tracker's is [`World::end`], the
//! engine's is [`Table::check`].

use std::{
    cell::{OnceCell, RefCell},
    panic::Location,
    rc::Rc,
    sync::{
        Arc, Mutex as StdMutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize as StdUsize, Ordering::Relaxed},
    },
};

use raddle::{
    Completion, Engine, EngineKind, IdlePolicy, OpContext, OpHandle, PushError, Shutdown, Token, WaitError,
    error::NoAccess,
    internals::{
        Flavour, Mode, OpRef,
        announced::{grant, take_granted},
    },
};
use shuttle::{
    Config, FailurePersistence, MaxSteps,
    scheduler::{Schedule, Scheduler, Task, TaskId},
};
use shuttle_engine::runtime::{
    execution::Execution,
    thread::continuation::{CONTINUATION_POOL, ContinuationPool},
};

use crate::{
    World,
    checker::{cell::UnsafeCell, thread},
    shapes::*,
    steps::Steps,
};

const VARIABLES: usize = 3;
const MAX_THREADS: usize = 4;
const MAX_ACTIONS: usize = 4;

/// The number of switch points after which a program counts as not terminating. Granted steps are not counted.
const MAX_STEPS: usize = 50_000;

/// The number of steps granted at a time to a thread that runs until it blocks, or that no other thread can run beside.
const STEPS_IN_TURN: u32 = 100;

// ------------------------------------------------------------------------------------------------ programs ----

/// The bytes that are not yet used; missing bytes are zero.
#[derive(Debug)]
struct Bytes<'d>(&'d [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
}

/// The variables that an operation uses, as bits.
#[derive(Clone, Copy, Debug)]
struct Uses {
    reads: u8,
    writes: u8,
}

impl Uses {
    fn draw(bytes: &mut Bytes<'_>) -> Self {
        let byte = bytes.next();
        let mut uses = Self { reads: 0, writes: 0 };
        for variable in 0..VARIABLES {
            match byte >> (2 * variable) & 3 {
                1 => uses.reads |= 1 << variable,
                2 | 3 => uses.writes |= 1 << variable,
                _ => {}
            }
        }
        uses
    }

    fn all(self) -> u8 {
        self.reads | self.writes
    }

    fn conflicts_with(self, other: Self) -> bool {
        self.writes & other.all() != 0 || other.writes & self.all() != 0
    }
}

#[derive(Clone, Debug)]
enum Action {
    /// Pushes an operation, which pushes another one if there is one here.
    Push(Uses, Option<Uses>),
    /// Pushes an operation and waits for it.
    Await(Uses),
    /// Pushes an operation that completes when its thread uses its completion.
    Begin(Uses),
    /// Completes the operations that the thread has begun.
    Complete,
    WaitForVar(usize),
    WaitForAll,
    Delete(usize),
}

/// Where a program runs.
#[derive(Clone, Copy, Debug)]
enum On {
    /// The tracker alone. Waits are looks at whether a variable is idle.
    Tracker,
    /// An engine with this number of workers; with none, a naive one.
    Engine(usize),
}

#[derive(Clone, Debug)]
struct Program {
    on: On,
    threads: Vec<Vec<Action>>,
}

impl Program {
    fn draw(bytes: &mut Bytes<'_>) -> Self {
        let first = bytes.next();
        let on = match first >> 2 & 7 {
            0..=3 => On::Tracker,
            4..=5 => On::Engine(0),
            6 => On::Engine(1),
            _ => On::Engine(2),
        };
        let mut deleted = 0_u8;
        let threads = (0..2 + usize::from(first & 3).min(MAX_THREADS - 2))
            .map(|_| {
                let mut actions = Vec::new();
                for number in 0..MAX_ACTIONS {
                    let byte = bytes.next();
                    let variable = usize::from(byte >> 4) % VARIABLES;
                    actions.push(match byte & 15 {
                        0 if number > 0 => break,
                        0..=5 => Action::Push(Uses::draw(bytes), None),
                        6 => Action::Push(Uses::draw(bytes), Some(Uses::draw(bytes))),
                        7..=8 => Action::Await(Uses::draw(bytes)),
                        9..=10 => Action::Begin(Uses::draw(bytes)),
                        11 => Action::Complete,
                        12 => Action::WaitForVar(variable),
                        13 => Action::WaitForAll,
                        _ if deleted & 1 << variable == 0 => {
                            deleted |= 1 << variable;
                            Action::Delete(variable)
                        }
                        _ => break,
                    });
                }
                actions
            })
            .collect();
        Self { on, threads }
    }
}

// ------------------------------------------------------------------------------------------------- tracker ----

fn run_on_tracker(threads: &[Vec<Action>]) {
    let world = World::new(VARIABLES);
    let act = |world: &Arc<World>, actions: &[Action]| {
        let op = |uses: Uses| {
            let modes = (0..VARIABLES).filter(|variable| uses.all() & 1 << variable != 0);
            let mode = |variable: usize| if uses.writes & 1 << variable != 0 { Mode::Write } else { Mode::Read };
            world.op(&modes.map(|variable| (variable, mode(variable))).collect::<Vec<_>>())
        };
        let mut begun: Vec<OpRef<crate::Task>> = Vec::new();
        for action in actions {
            match *action {
                Action::Push(uses, None) | Action::Await(uses) => world.push_and_run(op(uses)),
                Action::Push(uses, Some(nested)) => {
                    let ready = world.push(op(uses)).ready;
                    world.push_and_run(op(nested));
                    ready.into_iter().for_each(|op| world.run(op));
                }
                Action::Begin(uses) => begun.extend(world.push(op(uses)).ready),
                Action::Complete | Action::WaitForAll => begun.drain(..).for_each(|op| world.run(op)),
                Action::WaitForVar(variable) => _ = world.queue(variable).is_idle(Mode::Write),
                Action::Delete(variable) => world.push_and_run(world.deletion(variable)),
            }
        }
        begun.into_iter().for_each(|op| world.run(op));
    };
    let others: Vec<_> = threads[1..]
        .iter()
        .map(|actions| {
            let (world, actions) = (Arc::clone(&world), actions.clone());
            thread::spawn(move || act(&world, &actions))
        })
        .collect();
    act(&world, &threads[0]);
    for thread in others {
        thread.join().unwrap();
    }
    world.end();
}

// -------------------------------------------------------------------------------------------------- engine ----

/// An operation's history. Times are ticks.
#[derive(Debug)]
struct Made {
    uses: Uses,
    /// When the push began and ended.
    push: [usize; 2],
    accepted: bool,
    /// When the function began and the operation ended.
    run: [Option<usize>; 2],
    dropped: usize,
}

/// The history of a program. These types are from `std`, so they add no steps.
#[derive(Debug, Default)]
struct Table {
    clock: StdUsize,
    made: StdMutex<Vec<Made>>,
    /// By variable: when its deletion's push began and ended.
    deletions: StdMutex<[Option<[usize; 2]>; VARIABLES]>,
    deleted: StdUsize,
}

/// Locks a mutex that is never held across a switch.
fn lock<T>(mutex: &StdMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    fn tick(&self) -> usize {
        1 + self.clock.fetch_add(1, Relaxed)
    }

    fn made<R>(&self, number: usize, f: impl FnOnce(&mut Made) -> R) -> R {
        f(&mut lock(&self.made)[number])
    }

    fn add(self: &Arc<Self>, uses: Uses) -> Life {
        let mut made = lock(&self.made);
        made.push(Made { uses, push: [self.tick(), 0], accepted: false, run: [None; 2], dropped: 0 });
        Life { number: made.len() - 1, table: Arc::clone(self) }
    }

    /// Notes the end of a push. `error` is that of a push that was refused.
    fn pushed(&self, number: usize, error: Option<&PushError>) {
        assert!(
            matches!(error, None | Some(PushError::Variable(NoAccess::Deleted, _))),
            "a push is refused: {error:?}"
        );
        let tick = self.tick();
        self.made(number, |made| {
            made.push[1] = tick;
            made.accepted = error.is_none();
        });
    }

    fn note(&self, number: usize, which: usize) {
        let tick = self.tick();
        let before = self.made(number, |made| made.run[which].replace(tick));
        assert!(before.is_none(), "operation {number} ran twice");
    }

    /// Checks that all operations whose pushes had ended by `since`, and that `concern` the caller, have ended.
    fn have_ended(&self, since: usize, concern: impl Fn(Uses) -> bool) {
        for (number, made) in lock(&self.made).iter().enumerate() {
            let is_earlier = made.accepted && made.push[1] != 0 && made.push[1] < since;
            assert!(
                !is_earlier || !concern(made.uses) || made.run[1].is_some(),
                "a wait has ended before operation {number}"
            );
        }
    }

    fn writes(&self, variable: usize) -> usize {
        let is_write = |made: &&Made| made.accepted && made.uses.writes & 1 << variable != 0;
        lock(&self.made).iter().filter(is_write).count()
    }

    /// Checks the history of a program that has ended: each accepted operation ran once and no other ran, conflicting
    /// operations did not overlap and came in the order of their pushes, only pushes behind deletions were refused, and
    /// each function was dropped once.
    fn check(&self) {
        let made = lock(&self.made);
        let deletions = *lock(&self.deletions);
        for (number, op) in made.iter().enumerate() {
            assert_eq!(op.dropped, 1, "drops of the function of operation {number}");
            assert_eq!(op.run.map(|time| time.is_some()), [op.accepted; 2], "runs of operation {number}");
            let used = |variable: &usize| op.uses.all() & 1 << variable != 0;
            let deleted = (0..VARIABLES).filter(used).filter_map(|variable| deletions[variable]);
            let (mut may_be_refused, mut must_be_refused) = (false, false);
            for [began, ended] in deleted {
                may_be_refused |= began < op.push[1];
                must_be_refused |= ended < op.push[0];
            }
            assert!(op.accepted || may_be_refused, "operation {number} was refused for no reason");
            assert!(!op.accepted || !must_be_refused, "operation {number} uses a deleted variable");
        }
        for (one, earlier) in made.iter().enumerate() {
            for (other, later) in made.iter().enumerate() {
                if one == other || !earlier.accepted || !later.accepted || !earlier.uses.conflicts_with(later.uses) {
                    continue;
                }
                let is_first = earlier.run[1] < later.run[0];
                assert!(is_first || later.run[1] < earlier.run[0], "operations {one} and {other} overlap");
                assert!(
                    is_first || earlier.push[1] > later.push[0],
                    "operation {other} overtook operation {one}, pushed before it"
                );
            }
        }
        assert_eq!(self.deleted.load(Relaxed), deletions.iter().flatten().count(), "deletions that ran, and all");
    }
}

/// An operation's function owns one of these.
#[derive(Debug)]
struct Life {
    number: usize,
    table: Arc<Table>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.table.made(self.number, |made| made.dropped += 1);
    }
}

/// The completions of the operations begun by a thread. While the desk is closed, they complete as they begin, so that
/// the thread may wait.
#[derive(Debug, Default)]
struct Desk {
    is_closed: bool,
    held: Vec<(usize, Completion)>,
}

struct Site {
    engine: Engine,
    tokens: [Token; VARIABLES],
    data: [UnsafeCell<usize>; VARIABLES],
    table: Arc<Table>,
}

// SAFETY: shuttle runs every thread of a program on one OS thread.
unsafe impl Send for Site {}
// SAFETY: shuttle runs every thread of a program on one OS thread.
unsafe impl Sync for Site {}

impl Site {
    /// Runs the function of operation `number`.
    fn execute(&self, number: usize, uses: Uses) {
        self.table.note(number, 0);
        for (variable, data) in self.data.iter().enumerate() {
            if uses.writes & 1 << variable != 0 {
                // SAFETY: the scheduler fails the program if another thread can use the data at the same time.
                data.with_mut(|data| unsafe { *data += 1 });
            } else if uses.reads & 1 << variable != 0 {
                // SAFETY: the scheduler fails the program if another thread can write the data at the same time.
                data.with(|data| unsafe { data.read() });
            }
        }
    }

    fn variables(&self, uses: u8) -> impl Iterator<Item = &Token> {
        self.tokens.iter().enumerate().filter(move |(at, _)| uses & 1 << at != 0).map(|(_, token)| token)
    }

    fn push(self: &Arc<Self>, uses: Uses, nested: Option<Uses>) {
        let life = self.table.add(uses);
        let (number, site) = (life.number, Arc::clone(self));
        let function = move |()| {
            site.execute(life.number, uses);
            if let Some(nested) = nested {
                site.push(nested, None);
            }
            site.table.note(life.number, 1);
        };
        let op = self.engine.op("").reads(self.variables(uses.reads)).writes(self.variables(uses.writes));
        self.table.pushed(number, op.push((), function).err().as_ref());
    }

    fn submit(self: &Arc<Self>, uses: Uses) -> Option<(usize, OpHandle<usize>)> {
        let life = self.table.add(uses);
        let (number, site) = (life.number, Arc::clone(self));
        let function = move |()| {
            site.execute(life.number, uses);
            site.table.note(life.number, 1);
            life.number
        };
        let op = self.engine.op("").reads(self.variables(uses.reads)).writes(self.variables(uses.writes));
        let pushed = op.submit((), function);
        self.table.pushed(number, pushed.as_ref().err());
        pushed.ok().map(|handle| (number, handle))
    }

    fn begin(self: &Arc<Self>, uses: Uses, desk: &Arc<StdMutex<Desk>>) {
        let life = self.table.add(uses);
        let (number, site, desk) = (life.number, Arc::clone(self), Arc::clone(desk));
        let function = move |_: &OpContext<'_>, done: Completion| {
            site.execute(life.number, uses);
            let done = {
                let mut desk = lock(&desk);
                if desk.is_closed {
                    done
                } else {
                    desk.held.push((life.number, done));
                    return;
                }
            };
            site.table.note(life.number, 1);
            done.complete();
        };
        let op = self.engine.op("").reads(self.variables(uses.reads)).writes(self.variables(uses.writes));
        self.table.pushed(number, op.push_async_any(raddle::cx(), function).err().as_ref());
    }

    fn complete(&self, desk: &StdMutex<Desk>, close: bool) {
        let held = {
            let mut desk = lock(desk);
            desk.is_closed = close;
            std::mem::take(&mut desk.held)
        };
        for (number, done) in held {
            self.table.note(number, 1);
            done.complete();
        }
    }

    fn act(self: &Arc<Self>, actions: &[Action]) {
        let desk = Arc::<StdMutex<Desk>>::default();
        for action in actions {
            match *action {
                Action::Push(uses, nested) => self.push(uses, nested),
                Action::Await(uses) => {
                    if let Some((number, handle)) = self.submit(uses) {
                        self.complete(&desk, true);
                        assert_eq!(handle.wait().ok(), Some(number), "the result of operation {number}");
                        self.table.made(number, |made| assert!(made.run[1].is_some(), "a wait has ended too early"));
                    }
                }
                Action::Begin(uses) => {
                    lock(&desk).is_closed = false;
                    self.begin(uses, &desk);
                }
                Action::Complete => self.complete(&desk, false),
                Action::WaitForVar(variable) => {
                    self.complete(&desk, true);
                    let since = self.table.tick();
                    let waited = self.engine.wait_for_var(&self.tokens[variable]);
                    assert!(matches!(waited, Ok(())), "a wait fails: {waited:?}");
                    self.table.have_ended(since, |uses| uses.writes & 1 << variable != 0);
                }
                Action::WaitForAll => {
                    self.complete(&desk, true);
                    let since = self.table.tick();
                    let waited: Result<(), WaitError> = self.engine.wait_for_all();
                    assert!(matches!(waited, Ok(())), "a wait fails: {waited:?}");
                    self.table.have_ended(since, |_| true);
                }
                Action::Delete(variable) => {
                    let began = self.table.tick();
                    let table = Arc::clone(&self.table);
                    let deleted = move |_: &OpContext<'_>| _ = table.deleted.fetch_add(1, Relaxed);
                    self.engine.delete_variable(&self.tokens[variable], deleted).expect("it is deleted once");
                    lock(&self.table.deletions)[variable] = Some([began, self.table.tick()]);
                }
            }
        }
        self.complete(&desk, true);
    }
}

fn run_on_engine(workers: usize, threads: &[Vec<Action>]) {
    let kind = if workers == 0 { EngineKind::Naive } else { EngineKind::Pooled };
    let builder = Engine::builder().kind(kind).workers(workers.max(1)).pin(false).idle(IdlePolicy::Park);
    let engine = builder.build().unwrap();
    let site = Arc::new(Site {
        tokens: std::array::from_fn(|_| engine.token()),
        engine,
        data: std::array::from_fn(|_| UnsafeCell::new(0)),
        table: Arc::default(),
    });
    let others: Vec<_> = threads[1..]
        .iter()
        .map(|actions| {
            let (site, actions) = (Arc::clone(&site), actions.clone());
            thread::spawn(move || site.act(&actions))
        })
        .collect();
    site.act(&threads[0]);
    for thread in others {
        thread.join().unwrap();
    }
    // The second wait covers what was pushed by the operations covered by the first.
    for _ in 0..2 {
        site.engine.wait_for_all().expect("nothing fails");
    }
    let deletions = *lock(&site.table.deletions);
    for (variable, deletion) in deletions.into_iter().enumerate() {
        let writes = site.table.writes(variable);
        // SAFETY: all threads are joined, and all operations have ended.
        let value = site.data[variable].with(|data| unsafe { data.read() });
        assert_eq!(value, writes, "the value of variable {variable}, and its writes");
        if deletion.is_none() {
            assert_eq!(site.tokens[variable].version(), writes as u64, "the version of variable {variable}");
        }
    }
    let (engine, table) = (site.engine.clone(), Arc::clone(&site.table));
    drop(site);
    engine.shutdown(Shutdown::Drain, None).expect("no limit, and outside operations");
    table.check();
}

// ------------------------------------------------------------------------------------------------ schedules ----

/// Chooses threads by bytes.
#[derive(Debug, Default)]
struct ByBytes {
    bytes: Vec<u8>,
    used: usize,
    /// Whether only one thread could run when the scheduler last chose one.
    is_alone: bool,
    steps: Steps,
}

impl Scheduler for ByBytes {
    fn new_execution(&mut self) -> Option<Schedule> {
        unreachable!("the target begins each schedule itself")
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
        self.steps.note(current.map(usize::from), runnable.iter().map(|task| task.id().into()));
        let goes_on = current.filter(|&current| !yields && runnable.iter().any(|task| task.id() == current));
        // How many more steps the running thread may take before the next byte is used.
        let left = take_granted();
        let was_alone = std::mem::replace(&mut self.is_alone, runnable.len() == 1);
        if goes_on.is_some() && left > 0 && !was_alone {
            grant(left - 1);
            return goes_on;
        }
        let is_free = |task: &TaskId| !yields || self.is_alone || Some(*task) != current;
        let mut others = runnable.iter().map(|task| task.id()).filter(is_free);
        if self.is_alone {
            grant(STEPS_IN_TURN);
            return others.next();
        }
        let Some(&byte) = self.bytes.get(self.used) else {
            // After the last byte, the next thread in turn runs until it blocks or yields.
            let number = |task: TaskId| usize::from(task);
            let after = |task: &TaskId| current.is_some_and(|current| number(*task) > number(current));
            grant(STEPS_IN_TURN);
            return goes_on.or_else(|| others.clone().find(after)).or_else(|| others.next());
        };
        self.used += 1;
        grant(u32::from(byte / 4));
        others.clone().nth(usize::from(byte % 4) % others.count())
    }

    fn next_u64(&mut self) -> u64 {
        unreachable!("programs draw no random numbers")
    }
}

std::thread_local! {
    /// The stacks of threads, which all inputs share.
    static STACKS: OnceCell<&'static ContinuationPool> = const { OnceCell::new() };
}

/// Runs the program and the schedule in `data`.
///
/// # Panics
/// If the program hangs or the oracle finds a violation. The message contains the program.
pub fn schedule(data: &[u8]) {
    let mut bytes = Bytes(data);
    let program = Program::draw(&mut bytes);
    let mut scheduler = ByBytes { bytes: bytes.0.to_vec(), ..ByBytes::default() };
    scheduler.steps.begin();
    take_granted();
    let mut config = Config::new();
    config.stack_size = 0x4_0000;
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    config.max_steps = MaxSteps::FailAfter(MAX_STEPS);
    let described = program.clone();
    let _describe = Describe(&described, data);
    let stacks = STACKS.with(|stacks| *stacks.get_or_init(|| Box::leak(Box::new(ContinuationPool::new()))));
    CONTINUATION_POOL.set(stacks, || {
        let run = move || {
            Flavour::Contract.begin();
            match program.on {
                On::Tracker => run_on_tracker(&program.threads),
                On::Engine(workers) => run_on_engine(workers, &program.threads),
            }
        };
        let scheduler: Rc<RefCell<dyn Scheduler>> = Rc::new(RefCell::new(scheduler));
        Execution::new(scheduler, Schedule::new(0)).run(&config, run, Location::caller());
    });
}

/// Prints the program if it fails.
struct Describe<'p>(&'p Program, &'p [u8]);

impl Drop for Describe<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("schedule: the program was {:#?}\nthe input was {:?}", self.0, self.1);
        }
    }
}
