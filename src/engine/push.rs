//! What a push does, up to the moment when its operation waits for others, lies in a lane, or runs.

use std::{iter, panic::Location, sync::Arc};

use crate::{
    device::gpus::FIRST_LANE,
    engine::{
        core::{Core, phase},
        drain::{self, Drain},
        ending::{Rest, Rests},
        frame,
        spec::{Entry, Refs, Spec},
        task::{Job, Task, flag},
        variable::VarCell,
        worker_thread,
    },
    error::push::PushError,
    notify::pending::Ticket,
    scheduler::{DEFAULT_BAND, band_of},
    sync::Ordering::Relaxed,
    testing::weaken::{Step, removed},
    tracker::{self, INLINE_ACCESSES, Mode, OpRef, ReadyList, VarQueue},
    values::{device::Device, kind::EngineKind},
};

impl Core {
    /// Pushes an operation.
    ///
    /// Only what depends on the function's type is compiled for each: the rest is in [`describe`](Self::describe) and
    /// [`enqueue`](Self::enqueue). The name is taken out of `spec`.
    #[inline]
    pub(crate) fn push(
        self: &Arc<Self>,
        spec: &mut Spec,
        location: &'static Location<'static>,
        entries: &mut [Entry],
        work: impl Job,
    ) -> Result<(), PushError> {
        // SAFETY: the next lines do that.
        let op = unsafe { self.describe(spec, entries) }?;
        let name = spec.name.take();
        // SAFETY: the task was begun a moment ago.
        unsafe { Task::fill(op.task_ptr(), name, location, work) };
        self.enqueue(op).map_err(Rejected::into_error)
    }

    /// That a variable is this engine's, and not deleted as far as can be seen.
    #[inline]
    pub(super) fn admit(&self, queue: &VarQueue<Task>) -> Result<(), PushError> {
        if queue.owner() != self.mark() {
            return Err(PushError::ForeignVariable);
        }
        if queue.is_closed() {
            return Err(PushError::DeletedVariable);
        }
        Ok(())
    }

    /// [Admits](Self::admit) the variables. Sorts the entries by variable and makes them distinct: what is both read and
    /// mutated counts as mutated, and as overwritten only if nothing else was said. Gives those that are left.
    #[inline]
    pub(crate) fn normalise<'e>(&self, entries: &'e mut [Entry]) -> Result<&'e [Entry], PushError> {
        let admit = |entry: &Entry| {
            // SAFETY: whoever made the entry keeps a handle until the push is over.
            let queue = unsafe { entry.cell.as_ref() }.queue();
            self.admit(queue)?;
            queue.prefetch();
            Ok(queue.id())
        };
        if let [first, others @ ..] = &*entries {
            let mut before = admit(first)?;
            let mut sorted = true;
            for entry in others {
                let id = admit(entry)?;
                sorted &= before < id;
                before = id;
            }
            if !sorted {
                let distinct = sort(entries)?;
                return Ok(&entries[..distinct]);
            }
        }
        Ok(entries)
    }

    /// Pushes an operation whose entries are sorted, distinct and this engine's.
    #[inline]
    pub(crate) fn push_normalised(
        self: &Arc<Self>,
        spec: &Spec,
        priority: i32,
        location: &'static Location<'static>,
        entries: &[Entry],
        work: impl Job,
    ) -> Result<(), PushError> {
        let op = self.make(spec, priority, location, entries, work)?;
        self.enqueue(op).map_err(Rejected::into_error)
    }

    /// Makes an operation that is still to be [enqueued](Self::enqueue), and whose entries are sorted, distinct and this
    /// engine's.
    #[inline]
    pub(super) fn make(
        self: &Arc<Self>,
        spec: &Spec,
        priority: i32,
        location: &'static Location<'static>,
        entries: &[Entry],
        work: impl Job,
    ) -> Result<OpRef<Task>, PushError> {
        // SAFETY: the next lines fill the task, and the caller enqueues the operation.
        let op = unsafe { self.begin(spec, priority, entries) }?;
        // SAFETY: the task was begun a moment ago.
        unsafe { Task::fill(op.task_ptr(), spec.name.clone(), location, work) };
        Ok(op)
    }

    /// As [`begin_here`](Self::begin_here), for an operation that is pushed once.
    ///
    /// # Safety
    /// 1. As there.
    unsafe fn describe(self: &Arc<Self>, spec: &Spec, entries: &mut [Entry]) -> Result<OpRef<Task>, PushError> {
        let entries = self.normalise(entries)?;
        // SAFETY: (1).
        unsafe { self.begin_here(spec, spec.priority, entries) }
    }

    /// As [`begin_here`](Self::begin_here), compiled once.
    ///
    /// # Safety
    /// 1. As there.
    unsafe fn begin(self: &Arc<Self>, spec: &Spec, priority: i32, entries: &[Entry]) -> Result<OpRef<Task>, PushError> {
        // SAFETY: (1).
        unsafe { self.begin_here(spec, priority, entries) }
    }

    /// Counts an operation in, whose entries are sorted, distinct and this engine's, and makes its record, if it may be
    /// pushed.
    ///
    /// # Safety
    /// 1. The task is [filled](Task::fill), and then the operation [enqueued](Self::enqueue).
    #[inline(always)]
    unsafe fn begin_here(
        self: &Arc<Self>,
        spec: &Spec,
        priority: i32,
        entries: &[Entry],
    ) -> Result<OpRef<Task>, PushError> {
        let ticket = self.pending.enter();
        // Relaxed: the count was entered first. Either the drain waits for it, or it entered a generation that was
        // opened after the phase was set; entering has acquired that (edge `open`), and it is seen here.
        let phase = self.phase.load(Relaxed);
        if phase != phase::OPEN {
            self.admit_late(phase, spec, ticket)?;
        }
        if self.kind == EngineKind::Naive && !self.admits_naively(spec) {
            self.count_out(ticket);
            return Err(PushError::InDeviceFunction);
        }
        let band = if priority == 0 { DEFAULT_BAND } else { band_of(priority) };
        let passes_closed = spec.flags & flag::PASSES_CLOSED != 0;
        let accesses = entries.iter().map(|entry| (VarCell::queue_ptr(entry.cell), entry.mode));
        // SAFETY: the place is for a task, and has none yet; the rest is (1).
        let init = |task: *mut Task| unsafe { Task::begin(task, ticket, spec.lane, spec.flags) };
        // SAFETY: whoever made the entries keeps handles until the push is over. `init` begins the task, and (1) ends it. A
        // slice knows its length.
        Ok(unsafe { OpRef::new_with(init, band, passes_closed, accesses) })
    }

    /// Whether an operation may be pushed in a phase that is not `OPEN`. If not, it is counted out.
    #[cold]
    fn admit_late(self: &Arc<Self>, phase: u8, spec: &Spec, ticket: Ticket) -> Result<(), PushError> {
        if phase == phase::FORKED {
            // Nobody counts here, and to leave may take a lock.
            return Err(PushError::Forked);
        }
        let drained = || phase == phase::DRAINING && frame::in_operation_of(self);
        if spec.flags & flag::INTERNAL != 0 || drained() {
            return Ok(());
        }
        self.count_out(ticket);
        Err(PushError::ShutDown)
    }

    /// Puts an operation whose task is there into the queues of its variables, and where it is run if it is ready.
    pub(super) fn enqueue(self: &Arc<Self>, op: OpRef<Task>) -> Result<(), Rejected> {
        let pushed = tracker::push(op);
        if let Some(op) = pushed.ready {
            let flags = op.task().flags;
            let at_once = flag::INLINE | flag::EAGER;
            // What is still pushed then is the engine's own and small, and runs here.
            let closed = flags & flag::INTERNAL != 0 && self.is_closed();
            if flags & at_once != 0 || closed || self.kind == EngineKind::Naive {
                self.run_at_once(op);
            } else {
                self.schedule(op);
            }
        }
        if pushed.rejected { Err(Rejected) } else { Ok(()) }
    }

    /// Puts a ready operation where a worker of its lane takes it.
    #[inline]
    fn schedule(&self, op: OpRef<Task>) {
        self.schedule_by(op, |op| worker_thread::schedule(self, op));
    }

    /// As [`schedule`](Self::schedule), where `schedule` gives the operation to the crew.
    #[inline(always)]
    fn schedule_by(&self, op: OpRef<Task>, schedule: impl Fn(OpRef<Task>)) {
        if self.gpus.is_empty() { schedule(op) } else { self.schedule_beside_devices(op) }
    }

    /// As [`schedule`](Self::schedule), where operations of the CPU may have to wait for devices first.
    ///
    /// An operation of the CPU comes to its lane once, when it has nothing left to wait for: a popper of the lane's injector
    /// relies on its not coming back. What devices do with its variables later does not come before it.
    #[cold]
    fn schedule_beside_devices(&self, op: OpRef<Task>) {
        if op.task().lane >= FIRST_LANE {
            self.gpus.schedule(op.task().lane, op);
        } else if let Some(lane) = self.pending_on_device(&op, Device::Cpu) {
            self.gpus.send(lane, op);
        } else {
            if !removed(Step::EndWaitingForDevices) {
                op.task().end_waiting_for_devices();
            }
            worker_thread::schedule(self, op);
        }
    }

    /// Places operations that became ready on this thread, and then does the `rests` of what has made them ready.
    pub(crate) fn place_all(self: &Arc<Self>, ready: &mut ReadyList<Task>, rests: Rests) {
        let here = self.place_by(ready, |op| worker_thread::schedule(self, op));
        self.run_here(here, rests);
    }

    /// Gives operations that became ready to others, each by `schedule`; returns those that are to [run here](Self::run_here).
    #[inline(always)]
    pub(crate) fn place_by(&self, ready: &mut ReadyList<Task>, schedule: impl Fn(OpRef<Task>)) -> ReadyList<Task> {
        if ready.is_empty() {
            return ReadyList::default();
        }
        if !self.has_workers() {
            std::mem::take(ready)
        } else {
            // What is for others first, since what runs here may take its time.
            self.schedule_all(ready, schedule)
        }
    }

    /// Whether there are workers to give operations to. The caller has one that is not counted out, so they stay for it.
    #[inline]
    pub(super) fn has_workers(&self) -> bool {
        self.kind != EngineKind::Naive && !self.is_closed()
    }

    /// As [`run_here`](Self::run_here), after an operation that has only to be counted out.
    #[cold]
    pub(crate) fn run_here_after(self: &Arc<Self>, here: ReadyList<Task>, ticket: Ticket) {
        self.run_here(here, Rests::from_iter([Rest::Count(ticket)]));
    }

    /// Runs what is not for others, and does the `rests` of what came before.
    #[inline(never)]
    pub(crate) fn run_here(self: &Arc<Self>, mut here: ReadyList<Task>, rests: Rests) {
        if self.is_forked() {
            return std::mem::forget(rests);
        }
        if here.is_empty() {
            return rests.into_iter().for_each(|rest| self.finish(rest));
        }
        worker_thread::share_slot();
        self.run_inside(None, &mut here, &mut rests.into_iter());
    }

    /// Whether the naive engine may take an operation now: it would have to run it inside the push, or where the running
    /// operation of its own ends.
    #[cold]
    fn admits_naively(&self, spec: &Spec) -> bool {
        spec.flags & flag::INTERNAL != 0 || !frame::in_device_function() || drain::has_drain(self)
    }

    /// Runs a ready operation on this thread, or has it placed if too much runs inside each other here.
    #[inline(never)]
    fn run_at_once(self: &Arc<Self>, op: OpRef<Task>) {
        // What the function of a device operation has in hand is not complete when it returns, so nothing of the program's
        // may run inside it.
        let outside = !op.task().has(flag::INLINE) && frame::in_device_function();
        if outside && self.has_workers() {
            return self.schedule(op);
        }
        // What no drain can run afterwards is the engine's own, and is run all the same.
        if outside && drain::has_drain(self) {
            drain::with_drain(self, |drain| drain.push(op));
            return;
        }
        self.run_inside(Some(op), &mut ReadyList::default(), &mut iter::empty());
    }

    /// As [`run_all`](Self::run_all), however much runs inside each other on this thread already.
    fn run_inside(
        self: &Arc<Self>,
        first: Option<OpRef<Task>>,
        ready: &mut ReadyList<Task>,
        rests: &mut dyn Iterator<Item = Rest>,
    ) {
        let is_deep = || if self.has_workers() { drain::is_deep() } else { drain::is_stack_short() };
        // Where this engine has no drain on this thread, there is nobody to leave anything to.
        if drain::has_drain(self) && is_deep() {
            first.into_iter().for_each(|op| ready.push(op));
            drain::with_drain(self, |drain| self.leave(drain, ready, rests));
        } else {
            self.run_all(first, ready, rests);
        }
    }

    /// Runs the engine's own operations, and leaves the rest to `drain` or to workers.
    #[cold]
    fn leave(self: &Arc<Self>, drain: &Drain, ready: &mut ReadyList<Task>, rests: &mut dyn Iterator<Item = Rest>) {
        rests.for_each(|rest| drain.push_rest(rest));
        // Others may wait for the engine's own operations, which take no time; what the program does when it is told has to
        // wait.
        while let Some(op) = ready.pop() {
            if op.task().has(flag::INLINE) {
                self.execute_in(drain, op, ready);
            } else {
                self.leave_operation(drain, op);
            }
        }
    }

    /// Gives an operation of the program's to the workers. Where there are none, `drain` runs it later.
    fn leave_operation(&self, drain: &Drain, op: OpRef<Task>) {
        if self.has_workers() { self.schedule(op) } else { drain.push(op) }
    }

    /// Runs a ready operation on this thread. What is left to do for it comes when what became ready has been placed.
    fn execute_in(self: &Arc<Self>, drain: &Drain, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        match self.execute_plainly(op, ready) {
            Ok(ticket) if ready.is_empty() => self.count_out(ticket),
            Ok(ticket) => drain.push_rest(Rest::Count(ticket)),
            Err(unplain) => match self.execute_otherwise(unplain, ready) {
                Rest::Nothing => {}
                Rest::Count(ticket) if ready.is_empty() => self.count_out(ticket),
                rest => drain.push_rest(rest),
            },
        }
    }

    /// Does what was left to drains on this thread.
    pub(super) fn run_deferred(self: &Arc<Self>) {
        let (mut ready, rests) = drain::take_deferred(self);
        let mut rests = rests.into_iter();
        if self.has_workers() {
            // The calling code may hold a lock that a waker takes as well.
            for rest in rests.by_ref() {
                self.hand_over(move |core| core.finish(rest));
            }
        }
        let mut run = || self.run_all(None, &mut ready, &mut rests);
        // There may be no other stack to be had.
        if !drain::is_stack_short() || drain::on_another_stack(&mut run).is_err() {
            run();
        }
    }

    /// Gives to the workers all that need not run on this thread, and returns what does.
    #[inline(always)]
    fn schedule_all(&self, ready: &mut ReadyList<Task>, schedule: impl Fn(OpRef<Task>)) -> ReadyList<Task> {
        let mut here = ReadyList::default();
        while let Some(op) = ready.pop() {
            if op.task().has(flag::INLINE) {
                here.push(op);
            } else {
                self.schedule_by(op, &schedule);
            }
        }
        here
    }

    /// Runs `first`, runs or places what is ready, and does the `rests` of what came before.
    ///
    /// The engine's own operations come first, then what is left to the program's code of all that have ended, since it may
    /// take its time, and then the program's operations, one at a time. What has not had its turn lies where code of the
    /// program's that waits finds it ([`catch_up`](Self::catch_up)).
    fn run_all(
        self: &Arc<Self>,
        first: Option<OpRef<Task>>,
        ready: &mut ReadyList<Task>,
        rests: &mut dyn Iterator<Item = Rest>,
    ) {
        let run = |drain: &Drain| {
            rests.for_each(|rest| drain.push_rest(rest));
            if let Some(op) = first {
                self.execute_in(drain, op, ready);
            }
            while !ready.is_empty() || !drain.is_empty() {
                self.go_on(drain, ready);
            }
        };
        frame::outside_deletion(|| drain::drain(self, run));
    }

    /// Does what comes next of what is ready or lies in `drain`.
    fn go_on(self: &Arc<Self>, drain: &Drain, ready: &mut ReadyList<Task>) {
        let mut own = ReadyList::default();
        while let Some(op) = ready.pop() {
            if op.task().has(flag::INLINE) {
                own.push(op);
            } else {
                self.leave_operation(drain, op);
            }
        }
        if !own.is_empty() {
            while let Some(op) = own.pop() {
                self.execute_in(drain, op, ready);
            }
        } else if let Some(rest) = drain.pop_rest() {
            self.finish(rest);
        } else if let Some(op) = drain.pop() {
            self.execute_in(drain, op, ready);
        }
    }
}

/// A variable of a push was deleted meanwhile. Without the other errors, which would have to be told apart on the way.
pub(super) struct Rejected;

impl Rejected {
    pub(super) fn into_error(self) -> PushError {
        PushError::DeletedVariable
    }
}

/// Sorts entries by variable, and joins those of one variable; gives how many are left, which come first.
#[inline(never)]
fn sort(entries: &mut [Entry]) -> Result<usize, PushError> {
    // SAFETY: whoever made the entries keeps handles.
    let id = |entry: &Entry| unsafe { entry.cell.as_ref() }.queue().id();
    if entries.len() <= INLINE_ACCESSES {
        // By insertion: for so few, what prepares for many costs more than the sorting.
        let mut equal = false;
        for end in 1..entries.len() {
            let entry = entries[end];
            let own = id(&entry);
            let mut place = end;
            while let Some(&before) = entries[..place].last() {
                let other = id(&before);
                equal |= other == own;
                if other <= own {
                    break;
                }
                entries[place] = before;
                place -= 1;
            }
            entries[place] = entry;
        }
        if !equal {
            return Ok(entries.len());
        }
    } else {
        entries.sort_unstable_by_key(id);
    }
    let (mut last, mut aliased) = (0, false);
    for at in 1..entries.len() {
        let later = entries[at];
        if later.cell != entries[last].cell {
            last += 1;
            entries[last] = later;
            continue;
        }
        let kept = &mut entries[last];
        aliased |= later.refs.min(kept.refs) != Refs::None && later.refs.max(kept.refs) == Refs::Exclusive;
        if later.mode != kept.mode {
            kept.mode = Mode::Write;
        }
        kept.refs = kept.refs.max(later.refs);
    }
    if aliased { Err(PushError::AliasedVariable) } else { Ok(entries.len().min(last + 1)) }
}
