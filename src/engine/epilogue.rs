//! The epilogue of an operation: the program code that runs once the operation is complete, after which the operation
//! is counted out.

use std::{panic::Location, sync::Arc};

use crate::{
    context::worker_thread,
    engine::core::Core,
    error::op::OpError,
    notify::{pending::Ticket, wakers::Wakers},
    op::{
        ending::{Completed, Epilogue, FnState},
        frame::{self, Call, Frame, Holds},
        job::plain,
        limits::Limits,
        members::GroupCore,
        spec::Spec,
        task::{Cleanup, ErasedJob, Task, flag},
    },
    sync::edge::{engine_step, removed},
    system::panics,
    tracker::{Hold, Op},
    wait::regain::regain_worker,
};

impl Core {
    /// Returns the epilogue, which must run after the operations that became ready have been dispatched. In a model of
    /// the wrong order, runs it immediately.
    pub(crate) fn defer_epilogue(self: &Arc<Self>, epilogue: Epilogue) -> Epilogue {
        if !removed(engine_step::SCHEDULE_THEN_NOTIFY) {
            return epilogue;
        }
        finish(self, epilogue);
        Epilogue::Nothing
    }

    /// Pushes an operation that runs `f` on a worker. On a naive or a closed engine, `f` runs on this thread.
    #[cold]
    pub(crate) fn hand_over(self: &Arc<Self>, f: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let spec = Spec::internal("tell", i32::MAX, flag::NO_SKIP | flag::SILENT);
        let tell = move |cx: &Call<'_>| {
            f(cx.core());
            Ok(())
        };
        let pushed = self.push(&spec, Location::caller(), &mut [], ErasedJob::new(plain(tell)));
        debug_assert!(pushed.is_ok(), "internal operations are not refused: {pushed:?}");
    }

    /// Counts an operation out and wakes the futures whose waits, for all operations or for room, are over.
    #[inline(always)]
    pub(crate) fn count_out(self: &Arc<Self>, ticket: Ticket) {
        if let Some(wakers) = self.pending.leave(ticket) {
            self.wake(wakers);
        }
    }

    /// Wakes futures that wait for all operations or for room.
    #[cold]
    pub(crate) fn wake(self: &Arc<Self>, wakers: Wakers) {
        // A GPU lane's thread leaves the wakers to a worker, unless the workers may have ended. In that case, the
        // operation pushed for the wakers would run here. The waker that ends the engine would find that operation
        // pending and register again. Counting the operation out would then wake that waker in another such operation,
        // and so on, endlessly.
        if leaves_to_workers(self) || removed(engine_step::WAKE_HERE_ONCE_CLOSED) && worker_thread::serves_device() {
            return self.hand_over(|_| wakers.wake());
        }
        // This thread may have given up its worker, either to a function that had waited or to a stop.
        if worker_thread::begin_code() {
            regain_worker(None);
        }
        worker_thread::share_slot();
        frame::enter_after(self, || wakers.wake());
    }
}

/// Runs the epilogue of an operation. Called after the operations that it made ready have been dispatched.
pub(crate) fn finish(core: &Arc<Core>, epilogue: Epilogue) {
    match epilogue {
        Epilogue::Nothing => {}
        Epilogue::CountOut(ticket) => core.count_out(ticket),
        Epilogue::CleanUp(completed) if completed.runs_program_code() && leaves_to_workers(core) => {
            core.hand_over(move |core| finish_completed(core, completed));
        }
        Epilogue::CleanUp(completed) => finish_completed(core, completed),
        Epilogue::Started(op, cleanup) if leaves_to_workers(core) => {
            core.hand_over(move |core| run_program_code(core, &op, None, || cleanup.run()));
        }
        Epilogue::Started(op, cleanup) => run_program_code(core, &op, None, || cleanup.run()),
        Epilogue::Other(run) => run(),
    }
}

/// Whether program code that may wait must be left to a worker: the calling thread serves a GPU lane, so it must
/// not block, and the engine has workers.
fn leaves_to_workers(core: &Core) -> bool {
    worker_thread::serves_device() && core.has_workers()
}

/// Returns the epilogue of an operation whose variables were released when the operation was issued. `ended`
/// contains the failures that it cleared.
pub(crate) fn epilogue_of(op: Hold<Task>, result: Result<(), OpError>, ended: Vec<OpError>) -> Epilogue {
    Epilogue::CleanUp(Completed::new(op, result, ended, FnState::Called))
}

/// Runs the program code of an epilogue and counts the operation out.
fn finish_completed(core: &Arc<Core>, completed: Completed) {
    let Completed { op, result, ended, function, cleanup } = completed;
    let limits = op.task().limits();
    let run = |f: &mut dyn FnMut()| run_program_code(core, &op, limits.and_then(Limits::group), f);
    if function == FnState::NotCalled {
        // SAFETY: (1): this thread ends the operation.
        run(&mut || unsafe { op.discard() });
    }
    if !cleanup.is_none() {
        let mut cleanup = Some(cleanup);
        run(&mut || cleanup.take().into_iter().for_each(Cleanup::run));
    }
    if result.is_err() || !ended.is_empty() {
        let mut rest = Some((result, ended));
        run(&mut || drop(rest.take()));
    }
    if let Some(limits) = limits.filter(|limits| limits.must_leave()) {
        // SAFETY: (1): this thread has ended the operation.
        run_program_code(core, &op, None, || unsafe { limits.leave() });
    }
    core.count_out(Completed::release(op));
}

/// Runs `f`, program code from an operation's epilogue. If `group` is `Some`, the operation is still counted there. A
/// panic becomes a failure that `wait_for_all` returns.
pub(crate) fn run_program_code(core: &Arc<Core>, op: &Op<Task>, group: Option<&Arc<GroupCore>>, f: impl FnOnce()) {
    // The code may take a long time, so other workers must be able to steal the operation in the slot.
    worker_thread::share_slot();
    let run = |frame: &Frame| frame.in_group(group, None, f);
    let panicked = panics::catch(|| frame::enter(core, op, Holds::Nothing, run)).err();
    if let Some(payload) = panicked.filter(|_| !core.is_forked()) {
        core.record_failure(&op.task().failed_by_panic(payload));
    }
}
