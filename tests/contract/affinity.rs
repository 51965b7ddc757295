//! Core affinity: the cores of an engine's threads, and the cores available to threads started by operations.

#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
#![cfg_attr(miri, allow(unused))]

use raddle_testkit as common;

use std::{
    cell::RefCell,
    collections::HashSet,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use common::shapes::*;
use common::{
    Gate, Journal, Meeting, PATIENCE, THREADED, allowed_cores, child, child_succeeds, is_child,
    limits::{NoFiles, confine_process},
    lock, watched,
};
use core_affinity::CoreId;
use raddle::{Device, Engine, EngineKind, gpu::SimulatedGpu, system::Placement, unpinned};

/// Parses a list of cores in the kernel's format.
fn parse_cores(cores: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse().expect("a number")..=last.parse::<usize>().expect("a number")
    };
    cores.split(',').flat_map(range).collect()
}

/// Returns the cores that the calling thread may use.
fn cores() -> Vec<usize> {
    parse_cores(&allowed_cores())
}

fn core_of(placement: &Placement) -> usize {
    match placement {
        Placement::Pinned(core) => *core,
        other => panic!("the worker is not pinned: {other:?}"),
    }
}

/// Returns the cores that a thread started by the calling thread may use.
fn cores_of_a_thread() -> String {
    thread::spawn(allowed_cores).join().expect("the thread should not panic")
}

/// The first push to a lane of a device starts the lane's thread. Here, that push is made by an operation on a pinned
/// worker.
#[test]
#[cfg_attr(miri, ignore = "pins threads")]
fn a_lane_thread_started_by_an_operation_may_use_all_cores() {
    for kind in THREADED {
        watched(move || {
            let engine =
                Engine::builder().kind(kind).workers(1).pin(true).gpu(SimulatedGpu::new()).build().expect("an engine");
            let gpu = Device::Gpu(0);
            let memory = engine.device_var::<u32>(gpu, 4).expect("the device should have memory");
            let (inside, found) = (engine.clone(), Journal::new());
            let journal = found.clone();
            let push = engine.op("push").submit((), move |()| {
                let launch = inside.op("report").on(gpu);
                launch
                    .launch_any(memory.write(), move |_, _| journal.add(allowed_cores()))
                    .expect("the engine should be open");
                allowed_cores()
            });
            let worker = push.expect("the engine should be open").wait().expect("no operation should fail");
            engine.wait_for_all().expect("no operation should fail");
            assert_eq!(parse_cores(&worker), [core_of(&engine.placements()[0])], "the worker is not pinned");
            assert_eq!(found.take(), [allowed_cores()], "the lane's thread on the {kind} engine may not use all cores");
        });
    }
}

/// A thread hands its worker to another thread when an operation waits. Afterwards, each thread runs on its worker's
/// core, if the worker is pinned.
#[test]
#[cfg_attr(miri, ignore = "pins threads")]
fn a_thread_moves_to_the_core_of_the_worker_that_it_runs() {
    watched(|| {
        let (all, cores) = (allowed_cores(), cores());
        let count = cores.len() + 1;
        let engine = Engine::builder().workers(count).pin(true).build().expect("an engine");
        for round in 0..20 {
            // Each worker runs an operation that records its cores and then waits, handing over the worker.
            let (meeting, found) = (Meeting::new(count), Arc::new(Mutex::new(Vec::new())));
            let token = engine.token();
            let gate = common::hold(&engine, &token);
            let inside: Vec<_> = (0..count)
                .map(|_| {
                    let (inner, meeting) = (engine.clone(), meeting.clone());
                    let (found, token) = (Arc::clone(&found), token.clone());
                    let waits = move |cx: &raddle::OpContext<'_>| {
                        meeting.join();
                        lock(&found).push((cx.worker().expect("a worker"), allowed_cores()));
                        inner.wait_for_var(&token).expect("no operation should fail");
                    };
                    engine.op("waits").push_sync(waits)
                })
                .collect();
            assert!(inside.iter().all(Result::is_ok));
            common::eventually("every operation has recorded its cores", || lock(&found).len() == count);
            gate.open();
            engine.wait_for_all().expect("no operation should fail");
            for (worker, at) in lock(&found).iter() {
                match engine.placements()[*worker] {
                    Placement::Pinned(core) => assert_eq!(parse_cores(at), [core], "worker {worker} in round {round}"),
                    _ => assert_eq!(*at, all, "unpinned worker {worker} in round {round}"),
                }
            }
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "pins threads")]
fn an_engine_built_inside_an_operation_may_use_the_same_cores_as_one_built_outside() {
    watched(|| {
        let engine = Engine::builder().workers(1).pin(true).build().expect("an engine");
        let build = || {
            let built = Engine::builder().build().expect("an engine");
            let report = built.op("report").priority(1).property(raddle::Property::CpuPrioritized);
            let at = report
                .submit((), |()| allowed_cores())
                .expect("the engine should be open")
                .wait()
                .expect("no operation should fail");
            (built.placements().len(), at)
        };
        let (outside, inside) = (build(), engine.op("build").submit((), move |()| build()));
        assert_eq!(inside.expect("the engine should be open").wait().expect("no operation should fail"), outside);
        assert_eq!(outside, (thread::available_parallelism().expect("Linux should report it").get(), allowed_cores()));
    });
}

/// All threads of an engine, including those that other threads start later, stay on the cores of the thread that built
/// the engine.
#[test]
#[cfg_attr(miri, ignore = "pins threads")]
fn an_engine_stays_on_the_cores_of_the_thread_that_built_it() {
    watched(|| {
        let last = *cores().last().expect("there should be at least one core");
        let engine = thread::spawn(move || {
            assert!(core_affinity::set_for_current(CoreId { id: last }));
            Engine::builder().pin(true).gpu(SimulatedGpu::new()).build().expect("an engine")
        });
        let engine = engine.join().expect("an engine");
        assert_eq!(engine.placements(), [Placement::Pinned(last)]);
        let gpu = Device::Gpu(0);
        let memory = engine.device_var::<u32>(gpu, 4).expect("the device should have memory");
        let found = Journal::new();
        let journal = found.clone();
        engine
            .op("")
            .on(gpu)
            .launch_any(memory.write(), move |_, _| journal.add(allowed_cores()))
            .expect("the engine should be open");
        let journal = found.clone();
        let copy = engine.op("").property(raddle::Property::CopyFromGpu);
        copy.push((), move |()| journal.add(allowed_cores())).expect("the engine should be open");
        engine.wait_for_all().expect("no operation should fail");
        assert_eq!(found.take(), [last.to_string(), last.to_string()]);
    });
}

/// A destructor may start threads, for instance.
#[test]
#[cfg_attr(miri, ignore = "pins threads")]
fn destructors_of_thread_locals_on_a_worker_may_use_all_cores() {
    struct Reports(Journal<String>);
    impl Drop for Reports {
        fn drop(&mut self) {
            self.0.add(allowed_cores());
        }
    }
    thread_local!(static LAST: RefCell<Option<Reports>> = const { RefCell::new(None) });
    watched(|| {
        let (engine, found) = (Engine::builder().workers(1).pin(true).build().expect("an engine"), Journal::new());
        let reports = Reports(found.clone());
        let sets = move |()| {
            LAST.set(Some(reports));
            allowed_cores()
        };
        let worker = engine.op("sets").submit((), sets).expect("the engine should be open").wait();
        let pinned = core_of(&engine.placements()[0]).to_string();
        assert_eq!(worker.expect("no operation should fail"), pinned, "the worker is not pinned");
        engine.shutdown(raddle::Shutdown::Drain, None).expect("the shutdown should end");
        assert_eq!(found.take(), [allowed_cores()]);
    });
}

// --------------------------------------------------------------------------------------------- several engines ----

/// A process that can open no files cannot know what others claim, so the cores of its engines are known.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn two_engines_share_no_core_while_others_are_free() {
    child_succeeds("in_a_child_two_engines_share_no_core_while_others_are_free");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_two_engines_share_no_core_while_others_are_free() {
    if !is_child() {
        return;
    }
    watched(|| {
        let cores = cores();
        let _none = NoFiles::new();
        let build = |workers| Engine::builder().workers(workers).pin(true).build().expect("an engine");
        let places = |engine: &Engine| engine.placements().iter().map(core_of).collect::<Vec<_>>();
        let mut engines: Vec<_> = cores.iter().map(|_| build(1)).collect();
        assert_eq!(
            engines.iter().flat_map(&places).collect::<Vec<_>>(),
            cores,
            "the engines did not take the cores in order"
        );
        // Every core is taken, so the next engine starts again with the first core.
        let again = build(1);
        assert_eq!(places(&again), cores[..1]);
        drop(again);
        // An ended engine has released its cores even if handles to it exist.
        let kept = engines.pop().expect("there should be at least one core");
        kept.shutdown(raddle::Shutdown::Drain, None).expect("the shutdown should end");
        assert_eq!(places(&build(1)), cores[cores.len() - 1..]);
        // An engine with one worker per core uses each core once.
        assert_eq!(places(&build(cores.len())), cores);
    });
}

/// An engine is pinned by default only if it has the cores to itself.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn by_default_only_an_engine_with_all_cores_to_itself_is_pinned() {
    child_succeeds("in_a_child_engines_are_pinned_by_default");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_engines_are_pinned_by_default() {
    if !is_child() {
        return;
    }
    let whole_cores = cores().len();
    // Without files, no claims of other processes are known, nor a quota.
    let _none = NoFiles::new();
    let count = thread::available_parallelism().expect("a number of cores").get();
    let is_pinned = |engine: &Engine| matches!(engine.placements()[0], Placement::Pinned(_));
    let build = |workers| Engine::builder().kind(EngineKind::PerDevice).workers(workers).build().expect("an engine");
    let whole = count == whole_cores;
    if count > 1 {
        assert!(!is_pinned(&build(count - 1)), "another process could use the same cores");
    }
    let all = build(count);
    assert_eq!(is_pinned(&all), whole);
    assert!(!is_pinned(&build(count)), "another engine has these cores");
    drop(all);
    assert_eq!(is_pinned(&build(count)), whole, "the other engine is gone");
}

/// Builds an engine with one pinned worker, says in a file which core it has, and keeps it until there are two files.
#[test]
#[ignore = "run by another test in separate processes"]
fn in_a_child_an_engine_says_which_core_it_has() {
    let Some(folder) = env::var_os("RADDLE_TEST_CORES").map(PathBuf::from).filter(|_| is_child()) else { return };
    let all_have_said = || fs::read_dir(&folder).expect("a folder").count() >= 2;
    let engine = Engine::builder().workers(1).pin(true).build().expect("an engine");
    let said = folder.join(std::process::id().to_string());
    fs::write(said, core_of(&engine.placements()[0]).to_string()).expect("a file");
    common::eventually("the other process has built its engine", all_have_said);
}

/// Other programs may have engines of their own while the test runs, so one success suffices.
#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn engines_of_two_processes_share_no_core_while_others_are_free() {
    if cores().len() < 2 {
        return eprintln!("skipped: there is only one core");
    }
    let folder = env::temp_dir().join(format!("raddle-test-cores-{}", std::process::id()));
    let are_apart = || {
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.to_str().expect("a name in UTF-8");
        let run = || child("in_a_child_an_engine_says_which_core_it_has", &[("RADDLE_TEST_CORES", path)]);
        let ends = thread::scope(|scope| [scope.spawn(run), scope.spawn(run)].map(|end| end.join().expect("no panic")));
        ends.iter().for_each(|(success, text)| assert!(success, "{text}"));
        let said =
            fs::read_dir(&folder).expect("a folder").map(|file| fs::read_to_string(file.expect("a file").path()));
        let said: HashSet<_> = said.map(|core| core.expect("a core")).collect();
        fs::remove_dir_all(&folder).expect("the folder can be removed");
        said.len() == 2
    };
    assert!((0..10).any(|_| are_apart()), "both processes compute on one core");
}

// --------------------------------------------------------------------------------------------- changes of cores ----

/// Returns the cores that each worker of an idle engine may use, in the order of the workers.
fn cores_of_workers(engine: &Engine) -> Vec<Vec<usize>> {
    let count = engine.placements().len();
    let (meeting, found) = (Meeting::new(count), Journal::new());
    for _ in 0..count {
        let (meeting, found) = (meeting.clone(), found.clone());
        let report = move |cx: &raddle::OpContext<'_>| {
            meeting.join();
            found.add((cx.worker(), cores()));
        };
        engine.op("report").push_sync(report).expect("the engine should be open");
    }
    engine.wait_for_all().expect("no operation should fail");
    let mut found = found.take();
    found.sort();
    found.into_iter().map(|(_, cores)| cores).collect()
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn threads_follow_the_cores_of_the_process() {
    child_succeeds("in_a_child_the_process_is_confined");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_the_process_is_confined() {
    if !is_child() {
        return;
    }
    let all = cores();
    let last = [all[all.len() - 1]];
    watched(move || {
        let engine = Engine::builder().workers(all.len()).pin(true).build().expect("an engine");
        let pinned: Vec<_> = engine.placements().iter().map(|placement| vec![core_of(placement)]).collect();
        assert_eq!(cores_of_workers(&engine), pinned);
        for _ in 0..3 {
            confine_process(&last);
            assert!(cores_of_workers(&engine).iter().all(|cores| *cores == last));
            // Each wait hands the worker to another thread, which must not leave the cores of the process.
            let waits = |_| {
                let inside = engine.clone();
                let waits = move |()| {
                    let other = inside.op("other").submit((), |()| cores());
                    let other = other.expect("the engine should be open").wait_timeout(PATIENCE);
                    (other.expect("no operation should fail"), cores())
                };
                engine.op("waits").submit((), waits).expect("the engine should be open")
            };
            for waits in (0..3 * all.len()).map(waits).collect::<Vec<_>>() {
                assert_eq!(waits.wait().expect("no operation should fail"), (last.to_vec(), last.to_vec()));
            }
            confine_process(&all);
            common::eventually("the workers are pinned again", || cores_of_workers(&engine) == pinned);
        }
        // A worker that always has work notices as well.
        confine_process(&last);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let push = || {
            let seen = Arc::clone(&seen);
            let report = engine.op("report").push((), move |()| {
                *lock(&seen) = cores();
                thread::sleep(Duration::from_micros(50));
            });
            report.expect("the engine should be open");
        };
        let mut count = 0;
        let mut is_seen = |what, wanted: &dyn Fn(&[usize]) -> bool| {
            common::eventually(what, || {
                // There are always some hundred operations.
                (0..if count == 0 { 1000 } else { 100 }).for_each(|_| push());
                count += 1;
                wanted(&lock(&seen))
            });
        };
        is_seen("the operations run where the process may", &|cores| cores == last);
        confine_process(&all);
        is_seen("the workers are pinned again", &|cores| cores.len() == 1 && cores != last || all.len() == 1);
        engine.wait_for_all().expect("no operation should fail");
    });
}

/// Without a neighbour, and with `pin(true)`, workers stay pinned.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn by_default_a_worker_leaves_a_core_on_which_others_compute() {
    child_succeeds("in_a_child_a_thread_computes_on_the_core_of_a_worker");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn in_a_child_a_thread_computes_on_the_core_of_a_worker() {
    if !is_child() {
        return;
    }
    let all = cores();
    if all.len() < 2 {
        return eprintln!("skipped: there is only one core");
    }
    if fs::metadata("/proc/thread-self/schedstat").is_err() {
        return eprintln!("skipped: the kernel does not count waits");
    }
    watched(move || {
        let build = |pin: Option<bool>| {
            // No quota and no other process is seen.
            let _none = NoFiles::new();
            let builder = Engine::builder().workers(all.len());
            pin.into_iter().fold(builder, |builder, pin| builder.pin(pin)).build().expect("an engine")
        };
        let neighbour = all[0];
        thread::spawn(move || {
            assert!(core_affinity::set_for_current(CoreId { id: neighbour }));
            loop {
                std::hint::spin_loop();
            }
        });
        // Returns whether an operation has run unpinned.
        let leaves = |engine: &Engine| {
            let work = |_| {
                let work = engine.op("work").submit((), |()| {
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_millis(1) {}
                    cores()
                });
                work.expect("the engine should be open")
            };
            let work: Vec<_> = (0..20 * all.len()).map(work).collect();
            work.into_iter().any(|work| work.wait().expect("no operation should fail").len() > 1)
        };
        let engine = build(Some(true));
        assert!((0..20).all(|_| !leaves(&engine)), "a worker has left its core in spite of `pin(true)`");
        drop(engine);
        let engine = build(None);
        assert_eq!(engine.placements()[0], Placement::Pinned(neighbour));
        common::eventually("a worker has left its core", || leaves(&engine));
    });
}

// ---------------------------------------------------------------------------------------------------- unpinned ----

#[test]
#[cfg_attr(miri, ignore = "pins threads")]
fn threads_started_inside_unpinned_may_use_all_cores() {
    watched(|| {
        let engine = Engine::builder().workers(1).pin(true).build().expect("an engine");
        let inside = engine.op("start").submit((), |()| {
            let before = allowed_cores();
            let found = (cores_of_a_thread(), unpinned(cores_of_a_thread));
            assert_eq!(allowed_cores(), before, "the worker is not back on its core");
            let panicked = catch_unwind(AssertUnwindSafe(|| unpinned(|| std::panic::resume_unwind(Box::new(())))));
            assert!(panicked.is_err());
            assert_eq!(allowed_cores(), before, "the worker is not back on its core after a panic");
            // Calls may be nested.
            assert_eq!(unpinned(|| (unpinned(allowed_cores), allowed_cores())), (found.1.clone(), found.1.clone()));
            assert_eq!(allowed_cores(), before);
            found
        });
        let pinned = core_of(&engine.placements()[0]).to_string();
        assert_eq!(
            inside.expect("the engine should be open").wait().expect("no operation should fail"),
            (pinned, allowed_cores())
        );
    });
}

#[test]
#[cfg_attr(miri, ignore = "pins threads")]
fn unpinned_changes_nothing_outside_an_engine() {
    watched(|| {
        let last = *cores().last().expect("there should be at least one core");
        assert!(core_affinity::set_for_current(CoreId { id: last }));
        assert_eq!(unpinned(allowed_cores), last.to_string());
        let naive = common::engine(EngineKind::Naive, 1);
        let inside = naive.op("").submit((), |()| unpinned(allowed_cores)).expect("the engine should be open");
        assert_eq!(inside.wait().expect("no operation should fail"), last.to_string());
    });
}

/// A wait inside `unpinned` hands the worker to another thread. Afterwards, both threads run on their own cores.
#[test]
#[cfg_attr(miri, ignore = "pins threads")]
fn a_wait_inside_unpinned_leaves_every_thread_on_its_own_cores() {
    watched(|| {
        let engine = Engine::builder().workers(1).pin(true).build().expect("an engine");
        let pinned = core_of(&engine.placements()[0]).to_string();
        for _ in 0..10 {
            let (inside, gate) = (engine.clone(), Gate::new());
            let open = gate.clone();
            let waits = engine.op("waits").submit((), move |()| {
                unpinned(|| {
                    let mut other =
                        inside.op("other").submit((), |()| allowed_cores()).expect("the engine should be open");
                    // When the wait ends, `busy` occupies the worker, so the function queues for it.
                    let busy = inside.op("busy").push((), |()| thread::sleep(Duration::from_millis(2)));
                    busy.expect("the engine should be open");
                    open.open();
                    // This wait has a time limit, since it could otherwise run the operation in place.
                    (other.wait_timeout(PATIENCE).expect("no operation should fail"), allowed_cores())
                })
            });
            assert!(gate.pass_within(PATIENCE));
            let found = waits.expect("the engine should be open").wait().expect("no operation should fail");
            assert_eq!(found, (pinned.clone(), allowed_cores()));
            let next = engine.op("next").submit((), |()| allowed_cores()).expect("the engine should be open");
            assert_eq!(next.wait().expect("no operation should fail"), pinned);
        }
    });
}
