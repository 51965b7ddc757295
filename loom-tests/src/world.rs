//! Variables with data, and operations that use it: what the models of the tracker look at.

use std::{
    ptr::NonNull,
    sync::{
        Arc, Mutex as StdMutex,
        atomic::{AtomicBool as StdBool, AtomicUsize as StdUsize, Ordering::Relaxed},
    },
};

use loom::{alloc::Track, cell::UnsafeCell};
use raddle::internals::{Mode, Op, OpRef, Pushed, ReadyList, Stalled, VarQueue, end, push};

/// What the models put into an operation's record.
pub struct Task {
    number: usize,
    diary: Arc<Diary>,
    /// Fails the model if the operation is never dropped.
    _life: Track<()>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.diary.entry(self.number, |entry| entry.dropped += 1);
    }
}

/// What happened to one operation, in ticks of the model's clock.
#[derive(Clone, Debug, Default)]
struct Entry {
    accesses: Vec<(usize, Mode)>,
    push_began: Option<usize>,
    push_ended: Option<usize>,
    ran: Vec<usize>,
    /// What the push said, and what the run found.
    rejected: [Option<bool>; 2],
    deletes: bool,
    dropped: usize,
}

impl Entry {
    fn is_rejected(&self) -> bool {
        self.rejected[1] == Some(true)
    }
}

/// What happened. In `std`'s types: it must add neither interleavings nor happens-before to what it watches.
#[derive(Debug, Default)]
struct Diary {
    clock: StdUsize,
    entries: StdMutex<Vec<Entry>>,
}

impl Diary {
    fn tick(&self) -> usize {
        self.clock.fetch_add(1, Relaxed)
    }

    fn entry<R>(&self, number: usize, f: impl FnOnce(&mut Entry) -> R) -> R {
        f(&mut self.entries.lock().expect("nobody panics here")[number])
    }
}

/// A push that stands still in the midst.
#[derive(Debug)]
pub struct StalledPush {
    number: usize,
    push: Stalled<Task>,
}

struct Variable {
    queue: VarQueue<Task>,
    /// The number of operations that wrote it. loom fails the model if two accesses to it are not ordered, unless both
    /// read.
    data: UnsafeCell<usize>,
    disposed: StdBool,
}

/// Variables `0..n` and the operations on them.
pub struct World {
    variables: Box<[Variable]>,
    diary: Arc<Diary>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("diary", &self.diary).finish_non_exhaustive()
    }
}

// SAFETY: an access to the data that the tracker has not ordered is what the models are to find; loom finds it first.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    /// A world of `variables` variables.
    pub fn new(variables: usize) -> Arc<Self> {
        let variables: Box<[_]> = (0..variables)
            .map(|id| Variable {
                queue: VarQueue::new(id as u64),
                data: UnsafeCell::new(0),
                disposed: StdBool::new(false),
            })
            .collect();
        for variable in &variables {
            // SAFETY: the box stays where it is until the world ends, and nobody else knows it.
            unsafe { VarQueue::init(NonNull::from(&variable.queue)) };
        }
        Arc::new(Self { variables, diary: Arc::default() })
    }

    /// The queue of a variable.
    pub fn queue(&self, variable: usize) -> &VarQueue<Task> {
        &self.variables[variable].queue
    }

    /// Makes an operation on `accesses`, which are sorted by variable.
    pub fn op(&self, accesses: &[(usize, Mode)]) -> OpRef<Task> {
        self.make(accesses, false)
    }

    fn make(&self, accesses: &[(usize, Mode)], passes_closed: bool) -> OpRef<Task> {
        assert!(accesses.is_sorted_by_key(|access| access.0));
        let number = {
            let mut entries = self.diary.entries.lock().expect("nobody panics here");
            entries.push(Entry { accesses: accesses.to_vec(), ..Entry::default() });
            entries.len() - 1
        };
        let task = Task { number, diary: Arc::clone(&self.diary), _life: Track::new(()) };
        let accesses = accesses.iter().map(|&(variable, mode)| (NonNull::from(self.queue(variable)), mode));
        // SAFETY: the variables live as long as the world, which the pushing thread has.
        unsafe { OpRef::new(task, raddle::internals::DEFAULT_BAND, passes_closed, accesses) }
    }

    /// Makes the operation that deletes `variable`, and closes the variable.
    pub fn deletion(&self, variable: usize) -> OpRef<Task> {
        let op = self.make(&[(variable, Mode::Overwrite)], true);
        self.diary.entry(Self::number(&op), |entry| entry.deletes = true);
        assert!(self.queue(variable).close(), "only one operation deletes a variable");
        op
    }

    fn number(op: &Op<Task>) -> usize {
        // SAFETY: the caller holds the operation; the number never changes.
        unsafe { (*op.task_ptr()).number }
    }

    /// Pushes `op` and leaves it to the caller to run it.
    pub fn push(&self, op: OpRef<Task>) -> Pushed<Task> {
        let number = self.note_push_begins(&op);
        let pushed = push(op);
        self.note_push_ends(number, pushed)
    }

    /// Begins to push `op` and stands still when its first access is in its queue, which is nobody else's so far.
    pub fn stall(&self, op: OpRef<Task>) -> StalledPush {
        StalledPush { number: self.note_push_begins(&op), push: Stalled::after(1, op) }
    }

    /// The same when all its accesses are in, and the last tail is not moved yet.
    pub fn stall_before_swing(&self, op: OpRef<Task>) -> StalledPush {
        StalledPush { number: self.note_push_begins(&op), push: Stalled::before_swing(op) }
    }

    /// The same when its last access is in by a helper, which stands still before it moves the tail, for good.
    pub fn stall_beside_a_helper(&self, op: OpRef<Task>) -> StalledPush {
        StalledPush { number: self.note_push_begins(&op), push: Stalled::beside_a_helper(op) }
    }

    /// Ends the push of an operation that stood still; gives the operation if it is ready.
    pub fn finish_push(&self, stalled: StalledPush) -> Option<OpRef<Task>> {
        let pushed = stalled.push.finish();
        self.note_push_ends(stalled.number, pushed).ready
    }

    fn note_push_begins(&self, op: &Op<Task>) -> usize {
        let number = Self::number(op);
        self.diary.entry(number, |entry| entry.push_began = Some(self.diary.tick()));
        number
    }

    /// Takes the number, since the operation may be gone.
    fn note_push_ends(&self, number: usize, pushed: Pushed<Task>) -> Pushed<Task> {
        self.diary.entry(number, |entry| {
            entry.push_ended = Some(self.diary.tick());
            entry.rejected[0] = Some(pushed.rejected);
        });
        pushed
    }

    /// Pushes `op`, and runs it and what becomes ready by it if it is ready.
    pub fn push_and_run(&self, op: OpRef<Task>) {
        if let Some(op) = self.push(op).ready {
            self.run(op);
        }
    }

    /// Runs `op`, which is ready, and what becomes ready by it.
    pub fn run(&self, op: OpRef<Task>) {
        let mut ready = ReadyList::default();
        ready.push(op);
        self.run_all(&mut ready);
    }

    /// Runs what is ready and what becomes ready by it.
    pub fn run_all(&self, ready: &mut ReadyList<Task>) {
        while let Some(op) = ready.pop() {
            self.execute(&op);
            self.complete(op, ready);
        }
    }

    /// Does what `op` is to do with the data of its variables.
    pub fn execute(&self, op: &Op<Task>) {
        let rejected = op.is_rejected();
        for access in op.accesses() {
            let data = &self.variables[access.queue().id() as usize].data;
            if rejected {
                continue;
            }
            if access.mode().is_write() {
                // SAFETY: loom checks that nobody uses the data meanwhile.
                data.with_mut(|data| unsafe { *data += 1 });
            } else {
                // SAFETY: loom checks that nobody writes the data meanwhile.
                data.with(|data| unsafe { data.read() });
            }
        }
        let tick = self.diary.tick();
        self.diary.entry(Self::number(op), |entry| {
            entry.ran.push(tick);
            entry.rejected[1] = Some(rejected);
        });
    }

    /// Marks `op` done and gives it up; adds what becomes ready by it to `ready`.
    pub fn complete(&self, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        end(op, ready);
    }

    /// Reads the data of a variable, outside any operation.
    pub fn look(&self, variable: usize) {
        // SAFETY: loom checks that nobody writes the data meanwhile.
        self.variables[variable].data.with(|data| unsafe { data.read() });
    }

    /// How often an operation ran.
    pub fn runs(&self, number: usize) -> usize {
        self.diary.entry(number, |entry| entry.ran.len())
    }

    /// Gives a variable back, after its last operation.
    pub fn dispose(self: &Arc<Self>, variable: usize) {
        let variable = &self.variables[variable];
        variable.disposed.store(true, Relaxed);
        let world = Arc::clone(self);
        // SAFETY: all operations on the variable are done, and no other will be pushed. The closure keeps the world, and
        // thereby the memory, until it has run.
        unsafe { VarQueue::dispose(NonNull::from(&variable.queue), move || drop(world)) };
    }

    /// Ends the world when all threads are joined: every operation was ready once, ran once and in an order that respects
    /// what was pushed one after the other; every variable was written as often as it should have been, and can be given
    /// back; then every record is given back once.
    ///
    /// Two queues that disagree about the order of two conflicting operations make both wait for each other for ever, so
    /// that every operation ran says that they agree.
    pub fn end(self: &Arc<Self>) {
        let entries = self.diary.entries.lock().expect("nobody panics here").clone();
        for (number, entry) in entries.iter().enumerate() {
            assert!(!entry.ran.is_empty(), "operation {number} never became ready");
            assert_eq!(entry.ran.len(), 1, "operation {number} was ready twice");
            assert_eq!(
                entry.rejected[0], entry.rejected[1],
                "push and run of operation {number} disagree on rejection"
            );
        }
        for (one, earlier) in entries.iter().enumerate() {
            for (other, later) in entries.iter().enumerate().filter(|&(_, later)| conflict(earlier, later)) {
                if earlier.push_ended < later.push_began {
                    assert!(earlier.ran < later.ran, "operation {other} overtook operation {one}");
                }
                if earlier.deletes && earlier.ran < later.ran {
                    assert!(later.is_rejected(), "operation {other} used what operation {one} had deleted");
                }
            }
        }
        for (index, variable) in self.variables.iter().enumerate() {
            let writes = |entry: &&Entry| {
                !entry.is_rejected() && entry.accesses.iter().any(|&(v, m)| v == index && m.is_write())
            };
            let expected = entries.iter().filter(writes).count();
            // SAFETY: all threads are joined.
            let found = variable.data.with(|data| unsafe { data.read() });
            assert_eq!(found, expected, "writes of variable {index} are lost");
            if !variable.disposed.load(Relaxed) {
                self.dispose(index);
            }
        }
        for number in 0..entries.len() {
            let dropped = self.diary.entry(number, |entry| entry.dropped);
            assert_eq!(dropped, 1, "the record of operation {number} was given back {dropped} times");
        }
    }
}

/// Whether two operations may not run side by side.
fn conflict(one: &Entry, other: &Entry) -> bool {
    one.accesses.iter().any(|&(variable, mode)| {
        other.accesses.iter().any(|&(also, its)| also == variable && (mode.is_write() || its.is_write()))
    })
}
