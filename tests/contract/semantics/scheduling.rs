use super::*;

/// The first successor goes directly into the worker's slot, where no other worker can steal it.
#[test]
fn a_short_chain_stays_on_its_worker() {
    on_kinds(&THREADED, 4, |engine| {
        let (chain, journal, gate, started) = (engine.token(), Journal::new(), Gate::new(), Gate::new());
        let (inner_gate, inner_started, inner) = (gate.clone(), started.clone(), journal.clone());
        engine
            .push_sync(
                move |_| {
                    inner_started.open();
                    inner_gate.pass();
                    inner.add(thread::current().id());
                },
                [],
                [&chain],
            )
            .unwrap();
        started.pass();
        for _ in 0..20 {
            let journal = journal.clone();
            engine.push_sync(move |_| journal.add(thread::current().id()), [], [&chain]).unwrap();
        }
        gate.open();
        engine.wait_for_all().unwrap();
        let threads = journal.take();
        assert!(threads.iter().all(|id| *id == threads[0]), "a chain of 20 moved to another worker");
    });
}

#[test]
fn an_idle_worker_takes_an_operation_pushed_by_a_busy_one() {
    on_kinds(&THREADED, 2, |engine| {
        let handle = engine
            .op("")
            .submit((), {
                let engine = engine.clone();
                move |()| {
                    let taken = Gate::new();
                    let inner = taken.clone();
                    engine.push_sync(move |_| inner.open(), [], []).unwrap();
                    // This worker is busy until another worker has taken the operation.
                    taken.pass_within(PATIENCE)
                }
            })
            .unwrap();
        assert!(handle.wait().unwrap(), "no other worker took the operation");
    });
}

#[test]
fn every_worker_runs_operations() {
    on_kinds(&THREADED, 4, |engine| {
        let meeting = Meeting::new(4);
        let handles = [(); 4].map(|()| {
            let meeting = meeting.clone();
            engine.op("").submit((), move |()| meeting.join_within(PATIENCE)).unwrap()
        });
        handles.into_iter().for_each(|handle| assert!(handle.wait().unwrap()));
        let (workers, meeting) = (Journal::new(), Meeting::new(4));
        for _ in 0..4 {
            let (workers, meeting) = (workers.clone(), meeting.clone());
            let f = move |cx: &OpContext<'_>| {
                workers.add(cx.worker());
                meeting.join();
            };
            engine.push_sync(f, [], []).unwrap();
        }
        engine.wait_for_all().unwrap();
        let mut workers = workers.take();
        workers.sort_unstable();
        assert_eq!(workers, [Some(0), Some(1), Some(2), Some(3)]);
    });
}

#[test]
fn an_engine_has_one_worker_for_each_core_that_the_process_may_use() {
    watched(|| {
        for kind in THREADED {
            let engine = Engine::builder().kind(kind).build().unwrap();
            assert_eq!(engine.placements().len(), thread::available_parallelism().unwrap().get());
        }
    });
}

#[cfg(target_os = "linux")]
mod on_linux {
    use super::*;

    /// Returns the cores available to each of `count` workers, in worker order.
    fn cores_of_workers(engine: &Engine, count: usize) -> Vec<String> {
        let (meeting, found) = (Meeting::new(count + 1), Journal::new());
        for _ in 0..count {
            let (meeting, found) = (meeting.clone(), found.clone());
            let f = move |cx: &OpContext<'_>| {
                found.add((cx.worker(), common::allowed_cores()));
                meeting.join();
            };
            engine.push_sync(f, [], []).unwrap();
        }
        meeting.join();
        let mut found = found.take();
        found.sort();
        assert!(found.iter().map(|(worker, _)| *worker).eq((0..count).map(Some)));
        found.into_iter().map(|(_, cores)| cores).collect()
    }

    /// Parses a list of cores in the kernel's format.
    fn parse_cores(cores: &str) -> Vec<usize> {
        cores
            .split(',')
            .flat_map(|part| {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                first.parse::<usize>().unwrap()..=last.parse().unwrap()
            })
            .collect()
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc and pins threads")]
    fn each_worker_is_pinned_to_its_core() {
        watched(|| {
            let cores = parse_cores(&common::allowed_cores());
            for kind in THREADED {
                let engine = Engine::builder().kind(kind).workers(cores.len()).pin(true).build().unwrap();
                let found = cores_of_workers(&engine, cores.len());
                for (index, core) in cores.iter().enumerate() {
                    assert_eq!(engine.placements()[index], Placement::Pinned(*core));
                    assert_eq!(found[index], core.to_string(), "worker {index} of {kind}");
                }
            }
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn unpinned_workers_may_use_every_core() {
        watched(|| {
            let all = common::allowed_cores();
            for kind in THREADED {
                let engine = engine(kind, 2);
                assert!(engine.placements().iter().all(|placement| *placement == Placement::Unpinned));
                assert!(cores_of_workers(&engine, 2).iter().all(|cores| *cores == all));
            }
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc and pins threads")]
    fn workers_beyond_the_number_of_cores_are_not_pinned() {
        watched(|| {
            let (all, cores) = (common::allowed_cores(), parse_cores(&common::allowed_cores()));
            let count = cores.len() + 2;
            let engine = Engine::builder().kind(EngineKind::PerDevice).workers(count).pin(true).build().unwrap();
            let found = cores_of_workers(&engine, count);
            for (index, found) in found.iter().enumerate() {
                let pinned = cores.get(index);
                let placement = pinned.map_or(Placement::Unpinned, |core| Placement::Pinned(*core));
                assert_eq!(engine.placements()[index], placement);
                assert_eq!(*found, pinned.map_or(all.clone(), ToString::to_string));
            }
        });
    }

    /// Another thread takes over the worker while an operation waits.
    #[test]
    #[cfg_attr(miri, ignore = "reads /proc and pins threads")]
    fn a_worker_taken_over_by_another_thread_keeps_its_core() {
        watched(|| {
            let engine = Engine::builder().kind(EngineKind::Pooled).workers(1).build().unwrap();
            let before = cores_of_workers(&engine, 1);
            let token = engine.token();
            let gate = hold(&engine, &token);
            let waiting = {
                let (inner, token) = (engine.clone(), token.clone());
                engine.op("").submit((), move |()| inner.wait_for_var(&token)).unwrap()
            };
            assert_eq!(cores_of_workers(&engine, 1), before);
            gate.open();
            waiting.wait().unwrap().unwrap();
            assert_eq!(cores_of_workers(&engine, 1), before);
        });
    }

    /// The thread that takes over the worker has run a pinned worker before.
    #[test]
    #[cfg_attr(miri, ignore = "reads /proc and pins threads")]
    fn an_unpinned_worker_taken_over_by_another_thread_stays_unpinned() {
        watched(|| {
            let all = common::allowed_cores();
            let engine = Engine::builder().kind(EngineKind::PerDevice).workers(1).build().unwrap();
            let wait_in = |property, token: &Token| {
                let (inner, token) = (engine.clone(), token.clone());
                engine.op("").kind(property).submit((), move |()| inner.wait_for_var(&token)).unwrap()
            };
            let cores = || {
                let handle = engine.op("").kind(Property::CpuPrioritized);
                handle.submit((), |()| common::allowed_cores()).unwrap().wait().unwrap()
            };
            assert_eq!(cores(), all);
            // The pinned worker's thread becomes a spare thread: it hands over its worker while the operation waits,
            // and the function ends in the place of that worker, which is idle by then.
            let token = engine.token();
            let gate = hold(&engine, &token);
            let waiting = wait_in(Property::Normal, &token);
            thread::sleep(MOMENT);
            gate.open();
            waiting.wait().unwrap().unwrap();
            thread::sleep(MOMENT);
            // A prioritised operation waits, and the spare thread takes over the worker.
            let gate = hold(&engine, &token);
            let waiting = wait_in(Property::CpuPrioritized, &token);
            let found = cores();
            gate.open();
            waiting.wait().unwrap().unwrap();
            assert_eq!(found, all, "a prioritised operation ran on a pinned thread");
        });
    }
}
