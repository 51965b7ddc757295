//! Where a ready operation runs: on a worker of its lane, or on the thread that found it ready.
//!
//! | the operation | runs |
//! |---|---|
//! | is [inline](flag::INLINE): it takes no time | on this thread, immediately |
//! | is [eager](flag::EAGER), is no child, and is ready when this thread pushes it | on this thread, immediately |
//! | belongs to a naive engine, which has no workers, or to a closed one, whose workers may have ended | on this thread |
//! | belongs to a GPU | on the thread of its lane on that GPU |
//! | is none of these | on a worker of its lane |
//!
//! The first row that applies decides. However, an operation of the program that is pushed inside the function of a
//! device operation does not run there: it is left to a worker or, on an engine without workers, to an enclosing ready
//! loop.
//!
//! # Operations inside operations
//!
//! An operation running on this thread may make others ready that must run here as well. These do not run inside each
//! other: the engine's innermost [ready loop](ReadyLoop) on this thread runs them one after another, in
//! [`run_loop`](Core::run_loop). If a push inside an operation must run its own operation here, it starts another loop
//! ([`run_nested`](Core::run_nested)), unless loops are already nested too deeply. In that case, the push runs an
//! inline operation at once and leaves any other to the workers or, if the engine has none, to its innermost loop.

use std::{iter, sync::Arc};

use crate::{
    device::gpus::FIRST_LANE,
    engine::{
        core::Core,
        ending::Epilogue,
        no_wait,
        ready_loop::{self, ReadyLoop},
        record::{NoRecording, RunRecording},
        task::{Task, flag},
        worker_thread,
    },
    notify::pending::Ticket,
    sync::edge::{engine_step, removed},
    system::panics,
    tracker::{OpRef, ReadyList},
    values::{device::Device, kind::EngineKind},
};

impl Core {
    // ------------------------------------------------------------------------------------------ after a push ----

    /// Runs or schedules an operation that is ready when it is pushed.
    #[inline]
    pub(super) fn dispatch(self: &Arc<Self>, op: OpRef<Task>) {
        let flags = op.task().flags;
        let special = flag::INLINE | flag::EAGER | flag::REPORTS | flag::RECORDED;
        // A closed engine accepts only its own operations, and its threads may have ended.
        let closed = flags & flag::INTERNAL != 0 && self.is_closed();
        if flags & special != 0 || closed || self.kind == EngineKind::Naive {
            self.dispatch_specially(op);
        } else {
            self.schedule_with(op, |op| worker_thread::schedule(self, op));
        }
    }

    /// Dispatches an operation that may have to run on this thread, must be claimed before it starts, or is recorded.
    #[inline(never)]
    fn dispatch_specially(self: &Arc<Self>, op: OpRef<Task>) {
        if op.task().has(flag::INLINE | flag::EAGER) || !self.has_workers() {
            self.run_now(op);
        } else {
            self.observe_ready(&op);
            self.schedule(op);
        }
    }

    /// Schedules a ready operation on its lane, where a waiter may take it if it has a handle, or passes it to the
    /// shuffler.
    fn schedule(self: &Arc<Self>, op: OpRef<Task>) {
        let Some(op) = self.shuffle(op) else { return };
        if self.gpus.is_empty() {
            Self::publish(&op);
        }
        self.schedule_drawn(op);
    }

    /// Schedules an operation that the shuffler has drawn or that is not shuffled.
    pub(super) fn schedule_drawn(self: &Arc<Self>, op: OpRef<Task>) {
        self.schedule_with(op, |op| worker_thread::schedule(self, op));
    }

    /// Records that an operation has become ready and schedules it on its lane.
    #[inline(never)]
    pub(super) fn schedule_recorded(self: &Arc<Self>, op: OpRef<Task>) {
        self.record_ready(&op);
        self.schedule(op);
    }

    /// Sends a ready operation to its lane, through `schedule` if the engine has no GPUs.
    #[inline(always)]
    fn schedule_with(self: &Arc<Self>, op: OpRef<Task>, schedule: impl Fn(OpRef<Task>)) {
        if self.gpus.is_empty() { schedule(op) } else { self.schedule_beside_gpus(op) }
    }

    /// Sends a ready operation to its lane on an engine with GPUs, where a CPU operation may depend on commands that a
    /// GPU has yet to complete.
    ///
    /// A CPU operation enters its lane only once, when all its dependencies are complete; the lane's injector relies on
    /// this. GPU commands issued later are not dependencies of the operation.
    #[cold]
    fn schedule_beside_gpus(self: &Arc<Self>, op: OpRef<Task>) {
        if op.task().lane >= FIRST_LANE {
            self.gpus.schedule(op.task().lane, op);
        } else if let Some(lane) = self.pending_on_device(&op, Device::Cpu) {
            self.send(lane, op);
        } else {
            if !removed(engine_step::END_WAITING_FOR_DEVICES) {
                op.task().end_waiting_for_devices();
            }
            Self::publish(&op);
            worker_thread::schedule(self, op);
        }
    }

    // ------------------------------------------------------------------------------------ after a completion ----

    /// Dispatches the operations in `ready`, and then runs the epilogue of the operation that made them ready.
    pub(crate) fn dispatch_ready(self: &Arc<Self>, ready: &mut ReadyList<Task>, epilogue: Epilogue) {
        let here = if self.has_workers() {
            self.schedule_ready(ready, &NoRecording, |op| worker_thread::schedule(self, op))
        } else {
            std::mem::take(ready)
        };
        self.run_here(here, epilogue);
    }

    /// Schedules the operations in `ready` on an engine that has workers, and returns those that must [run
    /// here](Self::run_here). Plain operations of an engine without GPUs go through `schedule`, a function that is
    /// equivalent to [`worker_thread::schedule`] on this thread.
    #[inline(always)]
    pub(super) fn schedule_ready(
        self: &Arc<Self>,
        ready: &mut ReadyList<Task>,
        recording: &impl RunRecording,
        schedule: impl Fn(OpRef<Task>),
    ) -> ReadyList<Task> {
        while let Some(op) = ready.pop() {
            if op.task().has(flag::INLINE | flag::REPORTS | recording.unrecorded()) {
                return self.schedule_rest(op, ready);
            }
            recording.ready(&op);
            self.schedule_with(op, &schedule);
        }
        ReadyList::default()
    }

    /// Continues [`schedule_ready`](Self::schedule_ready) with the operation `first` and those in `ready`.
    #[inline(never)]
    fn schedule_rest(self: &Arc<Self>, first: OpRef<Task>, ready: &mut ReadyList<Task>) -> ReadyList<Task> {
        // Operations for other threads are scheduled first, since those that run here may take a long time.
        let (mut here, mut next) = (ReadyList::default(), Some(first));
        while let Some(op) = next {
            if !op.task().has(flag::INLINE | flag::REPORTS | flag::RECORDED) {
                self.schedule_with(op, |op| worker_thread::schedule(self, op));
            } else if op.task().has(flag::INLINE) {
                here.push(op);
            } else {
                self.schedule_recorded(op);
            }
            next = ready.pop();
        }
        here
    }

    /// Whether the engine has workers. If this returns `true` while an operation of the caller is counted as pending,
    /// the workers do not exit before that operation is counted out.
    #[inline]
    pub(super) fn has_workers(&self) -> bool {
        self.kind != EngineKind::Naive && !self.is_closed()
    }

    /// Runs operations that must run on this thread, and counts out the operation that made them ready.
    #[cold]
    pub(super) fn run_here_after(self: &Arc<Self>, here: ReadyList<Task>, ticket: Ticket) {
        self.run_here(here, Epilogue::CountOut(ticket));
    }

    /// Runs operations that must run on this thread, and the epilogue of the operation that made them ready.
    #[inline(never)]
    pub(super) fn run_here(self: &Arc<Self>, mut here: ReadyList<Task>, epilogue: Epilogue) {
        if self.is_forked() {
            return std::mem::forget(epilogue);
        }
        if here.is_empty() {
            return self.finish(epilogue);
        }
        worker_thread::share_slot();
        let mut epilogues = iter::once(epilogue).filter(|epilogue| !matches!(epilogue, Epilogue::Nothing));
        self.run_nested(None, &mut here, &mut epilogues);
    }

    // ---------------------------------------------------------------------------------------- on this thread ----

    /// Runs a ready operation on this thread, or leaves it to a worker or to a loop already running on this thread.
    #[inline(never)]
    fn run_now(self: &Arc<Self>, op: OpRef<Task>) {
        // Work issued by a device operation's function is not complete when the function returns, so no operation of
        // the program may run inside that function.
        let forbidden = !op.task().has(flag::INLINE) && no_wait::in_device_function();
        if forbidden && self.has_workers() {
            self.observe_ready(&op);
            return self.schedule(op);
        }
        // If no loop can run the operation later, it is one of the engine's own and may run here.
        if forbidden && ready_loop::has_outer_loop(self) {
            ready_loop::with_outer_loop(self, |ready_loop| ready_loop.push(op));
            return;
        }
        self.run_nested(Some(op), &mut ReadyList::default(), &mut iter::empty());
    }

    /// Runs the work in a new ready loop inside those already running on this thread. If these are nested too deeply,
    /// [leaves](Self::leave) the work to this engine's innermost loop instead.
    fn run_nested(
        self: &Arc<Self>,
        first: Option<OpRef<Task>>,
        ready: &mut ReadyList<Task>,
        epilogues: &mut dyn Iterator<Item = Epilogue>,
    ) {
        let is_deep = || if self.has_workers() { ready_loop::is_deep() } else { ready_loop::is_stack_short() };
        // If this engine has no loop on this thread, nothing would run work left behind.
        if ready_loop::has_loop(self) && is_deep() {
            first.into_iter().for_each(|op| ready.push(op));
            ready_loop::with_loop(self, |ready_loop| self.leave(ready_loop, ready, epilogues));
        } else {
            self.run_loop(first, ready, epilogues);
        }
    }

    /// Leaves all epilogues to `ready_loop`, a loop already running on this thread. Runs the [inline](flag::INLINE)
    /// operations in `ready` and leaves the others to the workers or, if there are none, to the loop.
    #[cold]
    pub(super) fn leave(
        self: &Arc<Self>,
        ready_loop: &ReadyLoop,
        ready: &mut ReadyList<Task>,
        epilogues: &mut dyn Iterator<Item = Epilogue>,
    ) {
        epilogues.for_each(|epilogue| ready_loop.push_epilogue(epilogue));
        // Inline operations run here, since they take no time and threads may wait for them. The program code in their
        // epilogues is left to the loop.
        while let Some(op) = ready.pop() {
            if op.task().has(flag::INLINE) {
                self.execute_in(ready_loop, op, ready);
            } else {
                self.leave_operation(ready_loop, op);
            }
        }
    }

    /// Schedules an operation on the workers, or leaves it to `ready_loop` if the engine has no workers.
    fn leave_operation(self: &Arc<Self>, ready_loop: &ReadyLoop, op: OpRef<Task>) {
        if self.has_workers() {
            self.schedule_recorded(op);
        } else if no_wait::in_device_function() {
            self.put_off(ready_loop, op);
        } else {
            ready_loop.push(op);
        }
    }

    /// Leaves an operation that became ready inside the function of a device operation to code outside that function: a
    /// loop of this engine, or else a loop or a worker of another engine. A kernel called on another thread has none of
    /// these, and leaves the operation to `ready_loop`, which runs inside the kernel.
    #[cold]
    fn put_off(self: &Arc<Self>, ready_loop: &ReadyLoop, op: OpRef<Task>) {
        let core = Arc::clone(self);
        if ready_loop::has_outer_loop(self) {
            ready_loop::with_outer_loop(self, |outer| outer.push(op));
        } else if ready_loop::is_in_outer_loop() {
            ready_loop::with_any_outer_loop(|outer| {
                outer.push_epilogue(Epilogue::Other(Box::new(move || core.run_now(op))));
            });
        } else if let Some(other) = worker_thread::served_engine() {
            other.hand_over(move |_| core.run_now(op));
        } else {
            ready_loop.push(op);
        }
    }

    /// Runs a ready operation on this thread. Leaves its epilogue to `ready_loop`, which runs it after the operations
    /// in `ready` have been dispatched. If `ready` is empty and the operation only has to be counted out, counts it out
    /// here.
    fn execute_in(self: &Arc<Self>, ready_loop: &ReadyLoop, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
        match self.execute_plainly(op, ready) {
            Ok(ticket) if ready.is_empty() => self.count_out(ticket),
            Ok(ticket) => ready_loop.push_epilogue(Epilogue::CountOut(ticket)),
            Err(unfinished) => match self.execute_otherwise(unfinished, ready) {
                Epilogue::Nothing => {}
                Epilogue::CountOut(ticket) if ready.is_empty() => self.count_out(ticket),
                epilogue => ready_loop.push_epilogue(epilogue),
            },
        }
    }

    /// Runs an operation that the calling thread, which has no worker, took from a lane.
    pub(super) fn run_taken(self: &Arc<Self>, op: OpRef<Task>) {
        // If a waiter has taken the operation, its entry is stale.
        let op = if op.task().has(flag::REPORTS) { op.pop_entry() } else { Some(op) };
        if let Some(op) = op {
            self.run_loop(Some(op), &mut ReadyList::default(), &mut iter::empty());
        }
    }

    /// Runs the operations left to this engine's loops on this thread, for [`catch_up`](Self::catch_up). The epilogues
    /// left to these loops are run by workers or, if the engine has none, by this thread.
    pub(super) fn run_deferred(self: &Arc<Self>) {
        let (mut ready, epilogues) = ready_loop::take_deferred(self);
        let mut epilogues = epilogues.into_iter();
        if self.has_workers() {
            // The caller may hold a lock that a waker also acquires, so workers run the epilogues.
            for epilogue in epilogues.by_ref() {
                self.hand_over(move |core| core.finish(epilogue));
            }
        }
        let mut run = || self.run_loop(None, &mut ready, &mut epilogues);
        // If no other stack is available, the loop runs on this one.
        if !ready_loop::is_stack_short() || ready_loop::on_another_stack(&mut run).is_err() {
            run();
        }
    }

    /// Runs a ready loop: `first`, then everything that becomes ready and must run here, and the epilogues.
    ///
    /// [Inline](flag::INLINE) operations run first, since the program code in epilogues may take a long time. Then the
    /// epilogues run, followed by the other operations, one at a time. Program code that waits inside the loop runs the
    /// loop's remaining work ([`catch_up`](Self::catch_up)).
    fn run_loop(
        self: &Arc<Self>,
        first: Option<OpRef<Task>>,
        ready: &mut ReadyList<Task>,
        epilogues: &mut dyn Iterator<Item = Epilogue>,
    ) {
        let run = |ready_loop: &ReadyLoop| {
            epilogues.for_each(|epilogue| ready_loop.push_epilogue(epilogue));
            if let Some(op) = first {
                self.execute_in(ready_loop, op, ready);
            }
            while !ready.is_empty() || !ready_loop.is_empty() {
                self.run_next(ready_loop, ready);
            }
        };
        let _running = self.run_without_worker();
        panics::__rust_end_short_backtrace(|| no_wait::outside_deletion(|| ready_loop::run(self, run)));
    }

    /// Runs the inline operations in `ready`, and leaves the others to the workers or to `ready_loop`. If there are no
    /// inline operations, runs one epilogue left to `ready_loop` or, if there is none, one operation left to it.
    fn run_next(self: &Arc<Self>, ready_loop: &ReadyLoop, ready: &mut ReadyList<Task>) {
        let mut own = ReadyList::default();
        while let Some(op) = ready.pop() {
            if op.task().has(flag::INLINE) {
                own.push(op);
            } else {
                self.leave_operation(ready_loop, op);
            }
        }
        if !own.is_empty() {
            while let Some(op) = own.pop() {
                self.execute_in(ready_loop, op, ready);
            }
        } else if let Some(epilogue) = ready_loop.pop_epilogue() {
            self.finish(epilogue);
        } else if let Some(op) = ready_loop.pop() {
            self.execute_in(ready_loop, op, ready);
        }
    }
}
