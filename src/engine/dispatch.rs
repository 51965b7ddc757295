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
//! An operation that needs units comes here a second time once it has them ([`admission`]).
//!
//! # Operations inside operations
//!
//! An operation running on this thread may make others ready that must run here as well. These do not run inside each
//! other: the engine's innermost [ready loop](ReadyLoop) on this thread runs them one after another, in
//! [`run_loop`]. If a push inside an operation must run its own operation here, it starts another loop
//! ([`run_nested`]), unless loops are already nested too deeply. In that case, the push runs an
//! inline operation at once and leaves any other to the workers or, if the engine has none, to its innermost loop.

use std::{iter, panic::Location, sync::Arc};

use crate::{
    context::{
        ready_loop::{self, Epilogue, ReadyLoop},
        worker_thread,
    },
    device::gpus,
    engine::{admission, core::Core, on_device, run, shuffle},
    group::room,
    notify::pending::Ticket,
    observe::record::{self, NoRecording, RunRecording},
    op::{
        frame::Call,
        job::without_sink,
        no_wait,
        spec::Spec,
        task::{ErasedJob, Task, flag},
    },
    sync::edge::{engine_step, removed},
    system::panics,
    tracker::{OpRef, ReadyList},
    values::{device::Device, kind::EngineKind},
    wait::{self, in_place},
};

impl Core {
    // ------------------------------------------------------------------------------------------ after a push ----

    /// Runs or schedules an operation that is ready when it is pushed.
    #[inline]
    pub(crate) fn dispatch(self: &Arc<Self>, op: OpRef<Task>) {
        let flags = op.task().flags;
        let special = flag::INLINE | flag::EAGER | flag::REPORTS | flag::COMMUTES | flag::RECORDED;
        // A closed engine accepts only its own operations, and its threads may have ended.
        let closed = flags & flag::INTERNAL != 0 && self.is_closed();
        if flags & special != 0 || closed || self.kind == EngineKind::Naive {
            dispatch_specially(self, op);
        } else {
            self.schedule_with(op, |op| worker_thread::schedule(self, op));
        }
    }

    /// Schedules an operation that the shuffler has drawn or that is not shuffled.
    pub(super) fn schedule_drawn(self: &Arc<Self>, op: OpRef<Task>) {
        self.schedule_with(op, |op| worker_thread::schedule(self, op));
    }

    /// Records that an operation has become ready, if its events are recorded, and schedules it on its lane, unless it
    /// has to wait for units.
    #[inline(never)]
    pub(crate) fn record_and_schedule(self: &Arc<Self>, op: OpRef<Task>) {
        let Some(op) = self.admit(op) else { return };
        record::ready(self, &op);
        schedule(self, op);
    }

    /// [`admission::admit`] outside ready loops, or inside a function.
    #[inline]
    pub(crate) fn admit(self: &Arc<Self>, op: OpRef<Task>) -> Option<OpRef<Task>> {
        // Not left to a loop around the calling function, which may wait for something that depends on them.
        admission::admit(self, op, |others| self.dispatch_ready(others, Epilogue::Nothing))
    }

    // ------------------------------------------------------------------------------------ after a completion ----

    /// Dispatches the operations in `ready`, and then runs the epilogue of the operation that made them ready.
    pub(crate) fn dispatch_ready(self: &Arc<Self>, ready: &mut ReadyList<Task>, epilogue: Epilogue) {
        let here = if self.has_workers() {
            self.schedule_ready(ready, &NoRecording, |op| worker_thread::schedule(self, op))
        } else {
            std::mem::take(ready)
        };
        run_here(self, here, epilogue);
    }

    /// Schedules the operations in `ready` on an engine that has workers, and returns those that must [run
    /// here](run_here). Operations without these flags go through `schedule` on an engine without GPUs: a function that
    /// is equivalent to [`worker_thread::schedule`] on this thread.
    #[inline(always)]
    pub(super) fn schedule_ready(
        self: &Arc<Self>,
        ready: &mut ReadyList<Task>,
        recording: &impl RunRecording,
        schedule: impl Fn(OpRef<Task>),
    ) -> ReadyList<Task> {
        while let Some(op) = ready.pop() {
            if op.task().has(flag::INLINE | flag::REPORTS | flag::COMMUTES | recording.unrecorded()) {
                return schedule_rest(self, op, ready);
            }
            recording.ready(&op);
            self.schedule_with(op, &schedule);
        }
        ReadyList::default()
    }

    /// Sends a ready operation to its lane, through `schedule` if the engine has no GPUs.
    #[inline(always)]
    pub(super) fn schedule_with(self: &Arc<Self>, op: OpRef<Task>, schedule: impl Fn(OpRef<Task>)) {
        if self.gpus.is_empty() { schedule(op) } else { schedule_beside_gpus(self, op) }
    }

    /// Runs operations that must run on this thread, and counts out the operation that made them ready.
    #[cold]
    pub(super) fn run_here_after(self: &Arc<Self>, here: ReadyList<Task>, ticket: Ticket) {
        run_here(self, here, Epilogue::CountOut(ticket));
    }

    /// Leaves all epilogues to `ready_loop`, a loop already running on this thread. Runs the [inline](flag::INLINE)
    /// operations in `ready` and leaves the others to the workers or, if there are none, to the loop.
    #[cold]
    pub(crate) fn leave(
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
                execute_in(self, ready_loop, op, ready);
            } else {
                leave_operation(self, ready_loop, op);
            }
        }
    }

    /// Runs an operation that the calling thread, which has no worker, took from a lane.
    pub(crate) fn run_taken(self: &Arc<Self>, op: OpRef<Task>) {
        // If a waiter has taken the operation, its entry is stale.
        let op = if op.task().has(flag::REPORTS) { op.pop_entry() } else { Some(op) };
        if let Some(op) = op {
            run_loop(self, Some(op), &mut ReadyList::default(), &mut iter::empty());
        }
    }

    /// Pushes an operation that runs `f` on a worker. On a naive or a closed engine, `f` runs on this thread.
    #[cold]
    pub(crate) fn hand_over(self: &Arc<Self>, f: impl FnOnce(&Arc<Self>) + Send + 'static) {
        self.push_call("tell", (0, i32::MAX), f);
    }

    /// Pushes an operation of the engine's own that calls `f` on a worker of a lane, with a priority.
    #[track_caller]
    pub(crate) fn push_call(
        self: &Arc<Self>,
        name: &'static str,
        (lane, priority): (u8, i32),
        f: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let spec = Spec { lane, ..Spec::internal(name, priority, flag::NO_SKIP | flag::SILENT) };
        let job = move |call: &Call<'_>| {
            f(call.core());
            Ok(())
        };
        let pushed = self.push(&spec, Location::caller(), &mut [], ErasedJob::new(without_sink(job)));
        debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
    }

    /// Runs the operations left to this engine's loops on this thread, for [`catch_up`](crate::wait::catch_up). The
    /// epilogues left to these loops are run by workers or, if the engine has none, by this thread.
    pub(crate) fn run_deferred(self: &Arc<Self>) {
        let (mut ready, epilogues) = ready_loop::take_deferred(self);
        let mut epilogues = epilogues.into_iter();
        if self.has_workers() {
            // The caller may hold a lock that a waker also acquires, so workers run the epilogues.
            epilogues.by_ref().for_each(|epilogue| finish_on_worker(self, epilogue));
        }
        wait::on_enough_stack(self, || run_loop(self, None, &mut ready, &mut epilogues));
    }
}

/// Dispatches an operation that may have to run on this thread, must be claimed before it starts, or is recorded.
#[inline(never)]
fn dispatch_specially(core: &Arc<Core>, op: OpRef<Task>) {
    let Some(op) = core.admit(op) else { return };
    if op.task().has(flag::INLINE | flag::EAGER) || !core.has_workers() {
        run_now(core, op);
    } else {
        record::observe_ready(core, &op);
        schedule(core, op);
    }
}

/// Schedules a ready operation on its lane, where a waiter may take it if it has a handle, or passes it to the
/// shuffler.
fn schedule(core: &Arc<Core>, op: OpRef<Task>) {
    let Some(op) = shuffle::draw(core, op) else { return };
    if core.gpus.is_empty() {
        in_place::publish(&op);
    }
    core.schedule_drawn(op);
}

/// Sends a ready operation to its lane on an engine with GPUs, where a CPU operation may depend on commands that a
/// GPU has yet to complete.
///
/// A CPU operation enters its lane only once, when all its dependencies are complete; the lane's injector relies on
/// this. GPU commands issued later are not dependencies of the operation.
#[cold]
fn schedule_beside_gpus(core: &Arc<Core>, op: OpRef<Task>) {
    if let Some(gpu_lane) = gpus::gpu_lane(op.task().lane) {
        core.gpus.schedule(gpu_lane, op);
    } else if let Some(gpu_lane) = on_device::pending(core, &op, Device::Cpu) {
        on_device::send(core, gpu_lane, op);
    } else {
        if !removed(engine_step::END_WAITING_FOR_DEVICES) {
            op.task().end_waiting_for_devices();
        }
        in_place::publish(&op);
        worker_thread::schedule(core, op);
    }
}

/// Continues [`schedule_ready`](Core::schedule_ready) with the operation `first` and those in `ready`.
#[inline(never)]
fn schedule_rest(core: &Arc<Core>, first: OpRef<Task>, ready: &mut ReadyList<Task>) -> ReadyList<Task> {
    // Operations for other threads are scheduled first, since those that run here may take a long time.
    let (mut here, mut next) = (ReadyList::default(), Some(first));
    while let Some(op) = next {
        if !op.task().has(flag::INLINE | flag::REPORTS | flag::COMMUTES | flag::RECORDED) {
            core.schedule_with(op, |op| worker_thread::schedule(core, op));
        } else if op.task().has(flag::INLINE) {
            here.push(op);
        } else {
            core.record_and_schedule(op);
        }
        next = ready.pop();
    }
    here
}

/// Runs operations that must run on this thread, and the epilogue of the operation that made them ready.
#[inline(never)]
pub(super) fn run_here(core: &Arc<Core>, mut here: ReadyList<Task>, epilogue: Epilogue) {
    if core.is_forked() {
        return std::mem::forget(epilogue);
    }
    // An engine without workers leaves program code to a loop if the stack is short.
    if here.is_empty()
        && (core.has_workers() || !run::runs_program_code(&epilogue) || !ready_loop::is_stack_short_for_loop(core))
    {
        return run::finish(core, epilogue);
    }
    worker_thread::share_slot();
    let mut epilogues = iter::once(epilogue).filter(|epilogue| !matches!(epilogue, Epilogue::Nothing));
    run_nested(core, None, &mut here, &mut epilogues);
}

// ---------------------------------------------------------------------------------------- on this thread ----

/// Runs a ready operation on this thread, in a new ready loop. Short pushes call it on an engine without workers.
#[cold]
#[inline(never)]
pub(super) fn run_pushed(core: &Arc<Core>, op: OpRef<Task>) {
    run_nested(core, Some(op), &mut ReadyList::default(), &mut iter::empty());
}

/// Runs a ready operation on this thread, or leaves it to a worker or to a loop already running on this thread.
#[inline(never)]
fn run_now(core: &Arc<Core>, op: OpRef<Task>) {
    // Work issued by a device operation's function is not complete when the function returns, so no operation of
    // the program may run inside that function.
    let forbidden = !op.task().has(flag::INLINE) && no_wait::in_device_function();
    if forbidden && core.has_workers() {
        record::observe_ready(core, &op);
        return schedule(core, op);
    }
    // If no loop can run the operation later, it is one of the engine's own and may run here.
    if forbidden && ready_loop::has_outer_loop(core) {
        ready_loop::with_outer_loop(core, |ready_loop| ready_loop.push(op));
        return;
    }
    run_pushed(core, op);
}

/// Runs the work in a new ready loop on this thread's stack, or elsewhere if the stack is short.
fn run_nested(
    core: &Arc<Core>,
    first: Option<OpRef<Task>>,
    ready: &mut ReadyList<Task>,
    epilogues: &mut dyn Iterator<Item = Epilogue>,
) {
    if ready_loop::is_stack_short_for_loop(core) {
        first.into_iter().for_each(|op| ready.push(op));
        run_elsewhere(core, ready, epilogues);
    } else {
        run_loop(core, first, ready, epilogues);
    }
}

/// Runs the work on another stack, since this thread's is short. [Leaves](Core::leave) it to the workers or, without
/// workers, to this engine's innermost loop on this thread. If there is no loop either, the work runs on the stack of a
/// thread started for it while this one waits, and here only if no thread can be started.
#[cold]
fn run_elsewhere(core: &Arc<Core>, ready: &mut ReadyList<Task>, epilogues: &mut dyn Iterator<Item = Epilogue>) {
    if core.has_workers() {
        ready_loop::run(core, |passing| {
            core.leave(passing, ready, epilogues);
            while let Some(epilogue) = passing.pop_epilogue() {
                finish_on_worker(core, epilogue);
            }
        });
    } else if ready_loop::with_loop(core, |ready_loop| core.leave(ready_loop, ready, epilogues)).is_none() {
        // This thread no longer counts as pushing, since what runs may wait.
        room::end_push(core);
        wait::on_enough_stack(core, || run_loop(core, None, ready, epilogues));
    }
}

/// Runs an epilogue on a worker. If there is no program code to run, counts the operation out here.
fn finish_on_worker(core: &Arc<Core>, epilogue: Epilogue) {
    match epilogue {
        Epilogue::CountOut(ticket) => core.count_out(ticket),
        epilogue => core.hand_over(move |core| run::finish(core, epilogue)),
    }
}

/// Schedules an operation on the workers, or leaves it to `ready_loop` if the engine has no workers.
fn leave_operation(core: &Arc<Core>, ready_loop: &ReadyLoop, op: OpRef<Task>) {
    if core.has_workers() {
        return core.record_and_schedule(op);
    }
    let leave = |others: &mut ReadyList<_>| {
        while let Some(op) = others.pop() {
            leave_operation(core, ready_loop, op);
        }
    };
    let Some(op) = admission::admit(core, op, leave) else { return };
    if no_wait::in_device_function() {
        put_off(core, ready_loop, op);
    } else {
        ready_loop.push(op);
    }
}

/// Leaves an operation that became ready inside the function of a device operation to code outside that function: a
/// loop of this engine, or else a loop or a worker of another engine. A kernel called on another thread has none of
/// these, and leaves the operation to `ready_loop`, which runs inside the kernel.
#[cold]
fn put_off(core: &Arc<Core>, ready_loop: &ReadyLoop, op: OpRef<Task>) {
    let shared = Arc::clone(core);
    if ready_loop::has_outer_loop(core) {
        ready_loop::with_outer_loop(core, |outer| outer.push(op));
    } else if ready_loop::is_in_outer_loop() {
        ready_loop::with_any_outer_loop(|outer| {
            outer.push_epilogue(Epilogue::Other(Box::new(move || run_now(&shared, op))));
        });
    } else if let Some(other) = worker_thread::served_engine() {
        other.hand_over(move |_| run_now(&shared, op));
    } else {
        ready_loop.push(op);
    }
}

/// Runs a ready operation on this thread. Leaves its epilogue to `ready_loop`, which runs it after the operations
/// in `ready` have been dispatched. If `ready` is empty and the operation only has to be counted out, counts it out
/// here.
fn execute_in(core: &Arc<Core>, ready_loop: &ReadyLoop, op: OpRef<Task>, ready: &mut ReadyList<Task>) {
    match run::execute_plainly(core, op, ready) {
        Ok(ticket) if ready.is_empty() => core.count_out(ticket),
        Ok(ticket) => ready_loop.push_epilogue(Epilogue::CountOut(ticket)),
        Err(unfinished) => match run::execute_otherwise(core, unfinished, ready) {
            Epilogue::Nothing => {}
            Epilogue::CountOut(ticket) if ready.is_empty() => core.count_out(ticket),
            epilogue => ready_loop.push_epilogue(epilogue),
        },
    }
}

/// Runs a ready loop: `first`, then everything that becomes ready and must run here, and the epilogues.
///
/// [Inline](flag::INLINE) operations run first, since the program code in epilogues may take a long time. Then the
/// epilogues run, followed by the other operations, one at a time. Program code that waits inside the loop runs the
/// loop's remaining work ([`catch_up`](crate::wait::catch_up)).
fn run_loop(
    core: &Arc<Core>,
    first: Option<OpRef<Task>>,
    ready: &mut ReadyList<Task>,
    epilogues: &mut dyn Iterator<Item = Epilogue>,
) {
    let run = |ready_loop: &ReadyLoop| {
        epilogues.for_each(|epilogue| ready_loop.push_epilogue(epilogue));
        if let Some(op) = first {
            execute_in(core, ready_loop, op, ready);
        }
        while !ready.is_empty() || !ready_loop.is_empty() {
            run_next(core, ready_loop, ready);
        }
    };
    let _running = room::run_without_worker(core);
    panics::__rust_end_short_backtrace(|| no_wait::outside_deletion(|| ready_loop::run(core, run)));
}

/// Runs the inline operations in `ready`, and leaves the others to the workers or to `ready_loop`. If there are no
/// inline operations, runs one epilogue left to `ready_loop` or, if there is none, one operation left to it.
fn run_next(core: &Arc<Core>, ready_loop: &ReadyLoop, ready: &mut ReadyList<Task>) {
    let mut own = ReadyList::default();
    while let Some(op) = ready.pop() {
        if op.task().has(flag::INLINE) {
            own.push(op);
        } else {
            leave_operation(core, ready_loop, op);
        }
    }
    if !own.is_empty() {
        while let Some(op) = own.pop() {
            execute_in(core, ready_loop, op, ready);
        }
    } else if let Some(epilogue) = ready_loop.pop_epilogue() {
        run::finish(core, epilogue);
    } else if let Some(op) = ready_loop.pop() {
        execute_in(core, ready_loop, op, ready);
    }
}
