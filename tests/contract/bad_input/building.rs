use super::*;

#[test]
fn zero_workers_are_refused() {
    watched(|| {
        for kind in KINDS {
            let built = Engine::builder().kind(kind).workers(0).build();
            assert!(matches!(built, Err(BuildError::NoWorkers)), "{built:?}");
            let built = Engine::builder().kind(kind).prioritized_workers(0).build();
            assert!(matches!(built, Err(BuildError::NoWorkers)), "{built:?}");
        }
    });
}

#[test]
fn an_engine_may_have_more_workers_than_cores() {
    watched(|| {
        let cores = thread::available_parallelism().unwrap().get();
        for kind in THREADED {
            let engine = Engine::builder().kind(kind).workers(10 * cores + 7).prioritized_workers(9).build().unwrap();
            let value = engine.var(0);
            for _ in 0..1000 {
                engine.op("").push(value.write(), |value| *value += 1).unwrap();
                engine.op("").kind(Property::CpuPrioritized).push((), |()| {}).unwrap();
            }
            assert_eq!(engine.get(&value).unwrap(), 1000);
        }
    });
}

#[test]
fn too_many_workers_are_refused() {
    watched(|| {
        for count in [1025, 100_000, usize::MAX] {
            let built = Engine::builder().kind(EngineKind::Pooled).workers(count).build();
            assert!(matches!(built, Err(BuildError::TooManyWorkers(1024))), "{built:?}");
            let built = Engine::builder().kind(EngineKind::PerDevice).prioritized_workers(count).build();
            assert!(matches!(built, Err(BuildError::TooManyWorkers(1024))), "{built:?}");
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "starts 1,024 threads")]
fn an_engine_may_have_the_maximum_number_of_workers() {
    watched(|| {
        let engine = Engine::builder().kind(EngineKind::Pooled).workers(1024).idle(IdlePolicy::Park).build().unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..5000 {
            let count = Arc::clone(&count);
            engine.push_sync(move |_| _ = count.fetch_add(1, SeqCst), [], []).unwrap();
        }
        drop(engine);
        assert_eq!(count.load(SeqCst), 5000);
    });
}

#[test]
fn any_spin_time_is_accepted() {
    watched(|| {
        for idle in
            [IdlePolicy::Spin, IdlePolicy::SpinThenPark(Duration::MAX), IdlePolicy::SpinThenPark(Duration::ZERO)]
        {
            let engine = Engine::builder().kind(EngineKind::Pooled).workers(1).idle(idle).pin(false).build().unwrap();
            assert_eq!(engine.op("").submit((), |()| 1).unwrap().wait().unwrap(), 1);
            engine.shutdown(Shutdown::Drain, Some(PATIENCE)).unwrap();
        }
    });
}

#[test]
fn every_build_error_has_a_message() {
    for error in [BuildError::NoWorkers, BuildError::TooManyWorkers(3), BuildError::UnknownEngine("x".to_owned())] {
        assert!(!error.to_string().is_empty());
    }
    assert!("x".parse::<EngineKind>().unwrap_err().to_string().contains("`x`"));
}
