//! The main function of the threads that run workers.
//!
//! A waiting function runs ready operations on which the wait depends ([`in_place`](crate::wait::in_place)). If it
//! finds none, if its stack is short, or if the wait has a time limit, it hands its worker over to another thread and
//! sleeps. When it wakes up, it borrows the place of an idle worker, or queues for a worker
//! ([`regain`](crate::wait::regain)). A wait thus neither occupies a worker nor delays an unrelated wait below it on
//! the stack, as would happen if waiting threads ran arbitrary operations.

use std::{io, sync::Arc};

use crate::{
    context::{
        ready_loop::Epilogue,
        worker_thread::{Duty, WorkerThread, share_slot},
    },
    engine::{core::Core, run::run_operations},
    error::build::BuildError,
    observe::record::{self, NoRecording},
    op::{frame, task::Task},
    sync::mpsc,
    system::{Placement, panics, topology},
    threads::thread_pool::{BoxedWorker, Ended},
    tracker::ReadyList,
};

/// A worker that has started: its lane, its number there, and where it runs.
type Started = (usize, usize, Placement);

/// Starts a thread for each worker and waits until these threads are running. Returns where the workers of the first
/// lane run.
pub(crate) fn start(core: &Arc<Core>, workers: Vec<BoxedWorker<Task>>) -> Result<Vec<Placement>, BuildError> {
    let (sender, receiver) = mpsc::channel();
    for worker in workers {
        let number = core.threads().next_number().expect("there are at least as many threads as workers");
        let (for_thread, started) = (Arc::clone(core), sender.clone());
        let main = move |worker| run_thread(for_thread, number, worker, Some(started));
        core.threads().spawn(number, worker, main).map_err(|(error, _)| BuildError::Thread(error))?;
    }
    drop(sender);
    let mut placements = Vec::new();
    for (lane, index, placement) in receiver {
        if lane != 0 {
            continue;
        }
        if placements.len() <= index {
            placements.resize(index + 1, Placement::Unpinned);
        }
        placements[index] = placement;
    }
    Ok(placements)
}

/// Starts a thread for a worker that has none. Returns the worker if that fails.
pub(crate) fn restart(
    core: &Arc<Core>,
    worker: BoxedWorker<Task>,
) -> Result<(), (io::Error, Option<BoxedWorker<Task>>)> {
    let Some(number) = core.threads().next_number() else {
        return Err((io::ErrorKind::QuotaExceeded.into(), Some(worker)));
    };
    let for_thread = Arc::clone(core);
    let started = core.threads().spawn(number, worker, move |worker| take_over(for_thread, number, worker));
    started.inspect_err(|_| core.threads().return_number(number))
}

/// The main function of a thread that takes over a worker from a waiting thread or after a stop.
fn take_over(core: Arc<Core>, number: usize, worker: BoxedWorker<Task>) -> Ended {
    run_thread(core, number, worker, None)
}

/// The main function of an engine's thread that runs workers.
fn run_thread(
    core: Arc<Core>,
    number: usize,
    worker: BoxedWorker<Task>,
    mut started: Option<mpsc::Sender<Started>>,
) -> Ended {
    let thread = WorkerThread::new(core, Duty::Workers(take_over));
    let threads = thread.core.threads();
    let _entered = thread.enter();
    let mut next = Some(worker);
    while let Some(worker) = next {
        let (index, lane_name) = (worker.index(), worker.lane().name());
        let (lane, placement) = thread.take_up(worker);
        let is_pinned = matches!(placement, Placement::Pinned(_));
        if let Some(started) = started.take() {
            // The receiver no longer exists if building the engine has failed.
            let _ = started.send((lane, index, placement));
        }
        if let Placement::Refused(core) = placement {
            frame::enter_after(&thread.core, || {
                panics::log!(
                    Warn,
                    "raddle: worker {index} of lane {lane_name} could not be pinned to core {core}; it runs unpinned"
                );
            });
        }
        run(&thread, number);
        let worker = thread.worker.take();
        thread.end_without_worker();
        if thread.core.is_forked() {
            // This is a forked child, and the worker belongs to the parent process.
            std::mem::forget(worker);
            return Ended::Over;
        }
        // If the worker's lane has ended, the worker is not kept while the thread waits, nor is its core.
        drop(worker);
        // On systems other than Linux, a pinned thread cannot run an unpinned worker.
        next = if !is_pinned || topology::CAN_WIDEN { threads.await_offer() } else { None };
    }
    if threads.has_ended() {
        return Ended::Over;
    }
    threads.return_number(number);
    Ended::Idle
}

/// Runs operations until the thread's worker is given away or the worker's lane ends.
fn run(thread: &WorkerThread, number: usize) {
    let mut ready = ReadyList::default();
    loop {
        // Panics in the program's functions are caught elsewhere. This catches panics from bugs in the engine and from
        // code deferred by other crates in crossbeam's default collector: such a panic must not cause the worker and
        // the operations queued here to be lost.
        let result = panics::catch(|| {
            thread.core.dispatch_ready(&mut ready, Epilogue::Nothing);
            match (record::of_loop(&thread.core, thread), record::log_of_loop(&thread.core)) {
                (Some(recording), _) => run_operations(thread, &mut ready, &recording),
                (None, Some(log)) => run_operations(thread, &mut ready, &log),
                (None, None) => run_operations(thread, &mut ready, &NoRecording),
            }
        });
        let Err(payload) = result else { return };
        // Other threads must find the operations left here, since the payload's drop and the logger may wait for them.
        let placed = panics::catch(|| {
            thread.core.dispatch_ready(&mut ready, Epilogue::Nothing);
            share_slot();
        });
        frame::enter_after(&thread.core, || {
            for payload in [Some(payload), placed.err()].into_iter().flatten() {
                panics::discard(payload);
            }
            panics::log!(Error, "raddle: thread {number} panicked outside an operation's function");
        });
    }
}

#[cfg(all(test, not(any(raddle_loom, raddle_shuttle))))]
mod tests {
    use std::time::{Duration, Instant};

    use crate::{Engine, EngineKind, threads::thread_pool::MANY_ENDED};

    /// Waits for an operation that nests `depth` further waits, during each of which another thread runs the worker.
    /// Returns the number of waits.
    fn nest(engine: &Engine, depth: usize) -> usize {
        let inner = engine.clone();
        let next = engine.op("nest").submit((), move |()| if depth == 0 { 0 } else { nest(&inner, depth - 1) });
        // The wait has a time limit, since the operation would otherwise run in place.
        1 + next.expect("the engine should be open").wait_timeout(Duration::from_secs(60)).expect("nothing should fail")
    }

    /// In these tests, a thread without a worker ends after one millisecond.
    #[test]
    #[cfg_attr(miri, ignore = "starts a thousand threads")]
    fn threads_that_come_and_go_leave_nothing_behind() {
        const DEPTH: usize = 40;
        let engine = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).build().expect("an engine");
        let threads = engine.core().threads();
        let (lives, known) = (|| threads.count().0, || threads.count().1);
        let before = known();
        while lives() < 10_000 {
            assert_eq!(nest(&engine, DEPTH), DEPTH + 1);
            let start = Instant::now();
            // A few ended threads may stay unjoined: they are joined when there are more of them.
            while known() > before + MANY_ENDED {
                assert!(start.elapsed() < Duration::from_secs(20), "{} threads, {before} before", known());
                std::thread::yield_now();
            }
            assert!(threads.numbers_given() < 3 * DEPTH, "thread numbers are not returned");
        }
    }

    #[test]
    fn no_two_engines_have_the_same_number() {
        let numbers = [(); 2].map(|()| {
            let engine = Engine::builder().kind(EngineKind::Naive).build().expect("an engine");
            engine.core().threads().engine()
        });
        assert!(numbers[0] != numbers[1] && !numbers.contains(&0));
    }

    /// The thread that shuffles is joined with the workers' threads.
    #[test]
    fn the_shuffling_thread_is_among_the_threads_to_join() {
        let engine = Engine::builder().kind(EngineKind::Pooled).workers(1).shuffle(1).pin(false).build().unwrap();
        let plain = Engine::builder().kind(EngineKind::Pooled).workers(1).pin(false).build().unwrap();
        let threads = |engine: &Engine| engine.core().threads().count().0;
        assert_eq!(threads(&engine), threads(&plain) + 1);
        engine.shutdown(crate::Shutdown::Drain, None).unwrap();
        assert_eq!(engine.core().threads().count().1, 0);
    }
}
