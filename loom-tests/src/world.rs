//! Variables with data, and operations on these variables, for the tracker's models.

use std::{
    ptr::NonNull,
    sync::{
        Arc, Mutex as StdMutex,
        atomic::{AtomicBool as StdBool, AtomicUsize as StdUsize, Ordering::Relaxed},
    },
};

use crate::checker::{alloc::Track, cell::UnsafeCell};
use raddle::internals::{Mode, Op, OpRef, PushResult, ReadyList, Stalled, VarQueue, complete_unlinking, end, push};

/// The task that the models store in an operation's record.
pub struct Task {
    number: usize,
    diary: Arc<Diary>,
    /// Fails the model if the task is never dropped.
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

/// The history of one operation. Times are ticks of the diary's clock.
#[derive(Clone, Debug, Default)]
struct Entry {
    accesses: Vec<(usize, Mode)>,
    push_began: Option<usize>,
    push_ended: Option<usize>,
    ran: Vec<usize>,
    /// Whether the operation was rejected, as reported by its push and as found by its run.
    rejected: [Option<bool>; 2],
    deletes: bool,
    dropped: usize,
}

impl Entry {
    fn is_rejected(&self) -> bool {
        self.rejected[1] == Some(true)
    }
}

/// The histories of all operations, in `std` types: recording must add neither interleavings nor happens-before edges
/// to a model.
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
        f(&mut self.entries.lock().expect("no thread should panic under this lock")[number])
    }
}

/// A push that was stopped before its end.
#[derive(Debug)]
pub struct StalledPush {
    number: usize,
    push: Stalled<Task>,
}

struct Variable {
    queue: VarQueue<Task>,
    /// The number of operations that wrote the variable. loom fails the model if two accesses to this cell, at least
    /// one of them a write, are unordered.
    data: UnsafeCell<usize>,
    disposed: StdBool,
}

/// Variables `0..n` and their operations.
pub struct World {
    variables: Box<[Variable]>,
    diary: Arc<Diary>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("diary", &self.diary).finish_non_exhaustive()
    }
}

// SAFETY: the models exist to find accesses to the data that the tracker has not ordered; loom reports each such access
// before it happens.
unsafe impl Sync for World {}
// SAFETY: the models exist to find accesses to the data that the tracker has not ordered; loom reports each such access
// before it happens.
unsafe impl Send for World {}

impl World {
    /// Creates a world with `variables` variables.
    pub fn new(variables: usize) -> Arc<Self> {
        let variables: Box<[_]> = (0..variables)
            .map(|id| Variable {
                queue: VarQueue::new(id as u64),
                data: UnsafeCell::new(0),
                disposed: StdBool::new(false),
            })
            .collect();
        for variable in &variables {
            // SAFETY: the box does not move until the world is dropped, and no other thread knows the queue yet.
            unsafe { VarQueue::init(NonNull::from(&variable.queue)) };
        }
        Arc::new(Self { variables, diary: Arc::default() })
    }

    /// Returns the queue of a variable.
    pub fn queue(&self, variable: usize) -> &VarQueue<Task> {
        &self.variables[variable].queue
    }

    /// Creates an operation with `accesses`, which must be sorted by variable.
    pub fn op(&self, accesses: &[(usize, Mode)]) -> OpRef<Task> {
        self.make(accesses, false)
    }

    fn make(&self, accesses: &[(usize, Mode)], passes_closed: bool) -> OpRef<Task> {
        assert!(accesses.is_sorted_by_key(|access| access.0));
        let number = {
            let mut entries = self.diary.entries.lock().expect("no thread should panic under this lock");
            entries.push(Entry { accesses: accesses.to_vec(), ..Entry::default() });
            entries.len() - 1
        };
        let task = Task { number, diary: Arc::clone(&self.diary), _life: Track::new(()) };
        let accesses = accesses.iter().map(|&(variable, mode)| (NonNull::from(self.queue(variable)), mode));
        // SAFETY: the variables live as long as the world, which the pushing thread keeps alive.
        unsafe { OpRef::new(task, raddle::internals::DEFAULT_BAND, passes_closed, accesses) }
    }

    /// Creates the operation that deletes `variable`. Also closes the variable.
    pub fn deletion(&self, variable: usize) -> OpRef<Task> {
        let op = self.make(&[(variable, Mode::Overwrite)], true);
        self.diary.entry(Self::number(&op), |entry| entry.deletes = true);
        assert!(self.queue(variable).close(), "a variable is deleted twice");
        op
    }

    fn number(op: &Op<Task>) -> usize {
        // SAFETY: the caller keeps the operation alive, and the number never changes.
        unsafe { (*op.task_ptr()).number }
    }

    /// Returns the number of an operation that the calling thread does not own.
    pub fn number_seen(op: &Op<Task>) -> usize {
        // SAFETY: the caller keeps the operation alive, and no thread uses the task before the operation runs; loom
        // checks that the task was initialised before this read.
        unsafe { (*op.shared_task_ptr()).number }
    }

    /// Pushes `op`. If the result says that `op` is ready, the caller must run it.
    pub fn push(&self, op: OpRef<Task>) -> PushResult<Task> {
        let number = self.note_push_begins(&op);
        let pushed = push(op);
        self.note_push_ends(number, pushed)
    }

    /// Begins to push `op`, and stops when the first access is in its queue. No other thread may use the queues during
    /// the call.
    pub fn stall(&self, op: OpRef<Task>) -> StalledPush {
        StalledPush { number: self.note_push_begins(&op), push: Stalled::after(1, op) }
    }

    /// Begins to push `op`, and stops when all accesses are linked, before the last queue's tail is moved. No other
    /// thread may use the queues during the call, and another operation must be pending on the last variable.
    pub fn stall_before_swing(&self, op: OpRef<Task>) -> StalledPush {
        StalledPush { number: self.note_push_begins(&op), push: Stalled::before_swing(op) }
    }

    /// Begins to push `op`, and stops before its last access is linked. A helper, also run by this call, then links
    /// that access and stops without moving the tail. No other thread may use the queues during the call, and another
    /// operation must be pending on the last variable.
    pub fn stall_beside_a_helper(&self, op: OpRef<Task>) -> StalledPush {
        StalledPush { number: self.note_push_begins(&op), push: Stalled::beside_a_helper(op) }
    }

    /// Finishes a stalled push. Returns the operation if it is ready.
    pub fn finish_push(&self, stalled: StalledPush) -> Option<OpRef<Task>> {
        let pushed = stalled.push.finish();
        self.note_push_ends(stalled.number, pushed).ready
    }

    fn note_push_begins(&self, op: &Op<Task>) -> usize {
        let number = Self::number(op);
        self.diary.entry(number, |entry| entry.push_began = Some(self.diary.tick()));
        number
    }

    /// Records the end of a push. Takes the operation's number, because the operation may have been reclaimed.
    fn note_push_ends(&self, number: usize, pushed: PushResult<Task>) -> PushResult<Task> {
        self.diary.entry(number, |entry| {
            entry.push_ended = Some(self.diary.tick());
            entry.rejected[0] = Some(pushed.rejected);
        });
        pushed
    }

    /// Pushes `op`; if it is ready, runs it and all operations that become ready.
    pub fn push_and_run(&self, op: OpRef<Task>) {
        if let Some(op) = self.push(op).ready {
            self.run(op);
        }
    }

    /// Runs `op`, which is ready, and all operations that become ready.
    pub fn run(&self, op: OpRef<Task>) {
        let mut ready = ReadyList::default();
        ready.push(op);
        self.run_all(&mut ready);
    }

    /// Runs the operations in `ready`, and all operations that become ready.
    pub fn run_all(&self, ready: &mut ReadyList<Task>) {
        while let Some(op) = ready.pop() {
            self.execute(&op);
            self.complete(op, ready);
        }
    }

    /// Reads or writes the data of `op`'s variables, unless `op` was rejected, and records the run.
    pub fn execute(&self, op: &Op<Task>) {
        let rejected = op.is_rejected();
        for access in op.accesses() {
            let data = &self.variables[access.queue().id() as usize].data;
            if rejected {
                continue;
            }
            if access.mode().is_write() {
                // SAFETY: loom checks that no other thread uses the data at the same time.
                data.with_mut(|data| unsafe { *data += 1 });
            } else {
                // SAFETY: loom checks that no other thread writes the data at the same time.
                data.with(|data| unsafe { data.read() });
            }
        }
        let tick = self.diary.tick();
        self.diary.entry(Self::number(op), |entry| {
            entry.ran.push(tick);
            entry.rejected[1] = Some(rejected);
        });
    }

    /// Completes and drops `op`. Adds newly ready operations to `ready`.
    pub fn complete(&self, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        end(op, ready);
    }

    /// Runs `op`, which is ready, unlinks completed readers as it completes, and runs all operations that become ready.
    pub fn run_unlinking(&self, op: OpRef<Task>) {
        let mut ready = ReadyList::default();
        self.execute(&op);
        drop(complete_unlinking(op, &mut ready));
        self.run_all(&mut ready);
    }

    /// Reads the data of a variable, outside any operation.
    pub fn look(&self, variable: usize) {
        // SAFETY: loom checks that no other thread writes the data at the same time.
        self.variables[variable].data.with(|data| unsafe { data.read() });
    }

    /// Returns how often an operation ran.
    pub fn runs(&self, number: usize) -> usize {
        self.diary.entry(number, |entry| entry.ran.len())
    }

    /// Disposes of a variable whose last operation is complete. May be called only once for each variable.
    pub fn dispose(self: &Arc<Self>, variable: usize) {
        let variable = &self.variables[variable];
        variable.disposed.store(true, Relaxed);
        let world = Arc::clone(self);
        // SAFETY: all operations on the variable are done, no other will be pushed, and the variable is disposed of
        // once. The closure keeps the world, and with it the memory, until it has run.
        unsafe { VarQueue::dispose(NonNull::from(&variable.queue), move || drop(world)) };
    }

    /// Checks the history after all threads have been joined: every operation became ready once and ran once, its push
    /// and its run agree on whether it was rejected, conflicting operations pushed one after the other ran in that
    /// order, no operation used a variable after the variable's deletion, and every variable was written as often as
    /// expected. Also disposes of the variables, unless a model has done so, and then checks that every task was
    /// dropped once.
    ///
    /// If two queues disagreed about the order of two conflicting operations, these would wait for each other forever.
    /// So if every operation ran, the queues agree.
    ///
    /// # Panics
    /// If one of these checks fails.
    pub fn end(self: &Arc<Self>) {
        let entries = self.diary.entries.lock().expect("no thread should panic under this lock").clone();
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
                    assert!(later.is_rejected(), "operation {other} used a variable that operation {one} had deleted");
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
            assert_eq!(found, expected, "writes to variable {index} are lost");
            if !variable.disposed.load(Relaxed) {
                self.dispose(index);
            }
        }
        for number in 0..entries.len() {
            let dropped = self.diary.entry(number, |entry| entry.dropped);
            assert_eq!(dropped, 1, "the task of operation {number} was dropped {dropped} times");
        }
    }
}

/// Returns whether two operations must not overlap.
fn conflict(one: &Entry, other: &Entry) -> bool {
    one.accesses.iter().any(|&(variable, mode)| {
        other.accesses.iter().any(|&(also, its)| also == variable && (mode.is_write() || its.is_write()))
    })
}
