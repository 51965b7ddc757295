use super::*;

#[test]
fn a_naive_engine_runs_each_operation_inside_its_push() {
    watched(|| {
        let engine = engine(EngineKind::Naive, 1);
        assert_eq!(engine.kind(), EngineKind::Naive);
        assert!(engine.placements().is_empty());
        let journal = Journal::new();
        let (a, b) = (engine.token(), engine.token());
        for number in 0..100 {
            let (inner, token) = (journal.clone(), if number % 2 == 0 { &a } else { &b });
            let f = move |cx: &OpContext<'_>| {
                assert_eq!(cx.worker(), None);
                inner.add((number, thread::current().id()));
            };
            engine.op("").priority(-number).writes([token]).push_sync(f).unwrap();
            assert_eq!(journal.len(), number as usize + 1, "the push returned before the operation ran");
        }
        assert!(journal.take().into_iter().eq((0..100).map(|number| (number, thread::current().id()))));
    });
}

/// The pushed operation mutates a variable held by the running operation, so it cannot run inside its push.
#[test]
fn a_naive_engine_defers_operations_that_conflict_with_a_running_one() {
    watched(|| {
        let engine = engine(EngineKind::Naive, 1);
        let (token, journal) = (engine.token(), Journal::new());
        let (own, inner) = (token.clone(), journal.clone());
        engine
            .push_sync(
                move |cx| {
                    let later = inner.clone();
                    cx.engine().push_sync(move |_| later.add("inner"), [], [&own]).unwrap();
                    inner.add("outer");
                },
                [],
                [&token],
            )
            .unwrap();
        assert_eq!(journal.take(), ["outer", "inner"]);
    });
}

/// Completing one asynchronous operation readies a long queue of operations, which must not run recursively.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_long_queue_of_a_naive_engine_runs_without_recursion() {
    child_succeeds("in_a_child_a_long_queue_of_a_naive_engine");
}

#[test]
#[ignore = "run by another test in a separate process, because a failure may crash the process"]
fn in_a_child_a_long_queue_of_a_naive_engine() {
    if !is_child() {
        return;
    }
    let engine = engine(EngineKind::Naive, 1);
    let value = engine.var(0_usize);
    let gate = hold(&engine, value.token());
    for _ in 0..100_000 {
        engine.op("").push(value.write(), |value| *value += 1).unwrap();
    }
    gate.open();
    assert_eq!(engine.get(&value).unwrap(), 100_000);
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_long_asynchronous_queue_of_a_naive_engine_runs_without_recursion() {
    child_succeeds("in_a_child_a_long_asynchronous_queue_of_a_naive_engine");
}

#[test]
#[ignore = "run by another test in a separate process, because a failure may crash the process"]
fn in_a_child_a_long_asynchronous_queue_of_a_naive_engine() {
    if !is_child() {
        return;
    }
    let engine = engine(EngineKind::Naive, 1);
    let token = engine.token();
    let gate = hold(&engine, &token);
    for _ in 0..100_000 {
        engine.push_async(|_, done| done.complete(), [], [&token]).unwrap();
    }
    gate.open();
    engine.wait_for_var(&token).unwrap();
    assert_eq!(token.version(), 100_001);
}

/// Each operation starts on the pushing thread and pushes the next one. On a naive engine, every operation starts on
/// that thread; on other engines, only eager operations do.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn pushes_inside_pushes_do_not_overflow_the_stack() {
    for kinds in ["Naive Naive", "Pooled Pooled", "PerDevice PerDevice", "Naive Pooled"] {
        let variables = [("RADDLE_TEST_KIND", kinds)];
        let (success, text) = common::child("in_a_child_pushes_inside_pushes", &variables);
        assert!(success, "{kinds}: {text}");
    }
}

#[test]
#[ignore = "run by another test in a separate process, because a failure may crash the process"]
fn in_a_child_pushes_inside_pushes() {
    const DEPTH: usize = 20_000;
    fn descend(here: Engine, there: Engine, count: Arc<AtomicUsize>) {
        if count.fetch_add(1, SeqCst) + 1 < DEPTH {
            let (next_here, next_there) = (there.clone(), here);
            there.op("").eager().push((), move |()| descend(next_here, next_there, count)).unwrap();
        }
    }
    if !is_child() {
        return;
    }
    let kinds = std::env::var("RADDLE_TEST_KIND").unwrap();
    let mut kinds = kinds.split(' ').map(|kind| kind.parse().unwrap());
    let here = engine(kinds.next().unwrap(), 1);
    // The operations first run on one engine, then alternate between two.
    for there in [here.clone(), engine(kinds.next().unwrap(), 1)] {
        let count = Arc::new(AtomicUsize::new(0));
        descend(here.clone(), there, Arc::clone(&count));
        eventually("the deepest operation has run", || count.load(SeqCst) == DEPTH);
    }
}

/// At nesting depths reached by real programs, each operation has run by the time its push returns.
#[test]
fn a_naive_engine_runs_operations_inside_deeply_nested_pushes() {
    fn descend(engine: &Engine, depth: usize, ran: &Arc<AtomicUsize>) {
        let (inside, count) = (engine.clone(), Arc::clone(ran));
        let before = ran.load(SeqCst);
        let push = engine.op("").push((), move |()| {
            count.fetch_add(1, SeqCst);
            if depth > 0 {
                descend(&inside, depth - 1, &count);
            }
        });
        push.unwrap();
        assert_eq!(ran.load(SeqCst), before + depth + 1, "a push returned before its operation ran");
    }
    watched(|| {
        let run = || {
            let engine = engine(EngineKind::Naive, 1);
            descend(&engine, 200, &Arc::default());
            engine.wait_for_all().expect("no assertion inside an operation should fail");
        };
        // Unoptimized and instrumented calls take up much of a stack.
        let deep = thread::Builder::new().stack_size(16 << 20).spawn(run);
        deep.unwrap().join().unwrap_or_else(|payload| std::panic::resume_unwind(payload));
    });
}

/// Once the stack has no room for another nested operation, an operation runs when the program polls or waits for it.
#[test]
#[cfg_attr(miri, ignore = "uses much of the stack")]
fn a_naive_engine_runs_an_awaited_operation_at_any_depth() {
    fn descend(engine: &Engine, depth: usize, poll: bool) -> usize {
        let inside = engine.clone();
        let next = engine.op("").submit((), move |()| if depth == 0 { 0 } else { descend(&inside, depth - 1, poll) });
        let next = next.unwrap();
        while poll && !next.is_done() {
            thread::yield_now();
        }
        1 + next.wait().unwrap()
    }
    for poll in [false, true] {
        watched(move || assert_eq!(descend(&engine(EngineKind::Naive, 1), 20_000, poll), 20_001));
    }
}

/// Each value holds a handle to the next variable.
#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn a_long_chain_of_variables_is_dropped_without_recursion() {
    for kind in KINDS {
        let (success, text) =
            common::child("in_a_child_a_long_chain_of_variables", &[("RADDLE_TEST_KIND", &kind.to_string())]);
        assert!(success, "{kind}: {text}");
    }
}

#[test]
#[ignore = "run by another test in a separate process, because a failure may crash the process"]
fn in_a_child_a_long_chain_of_variables() {
    struct Link(#[expect(dead_code, reason = "held only to be dropped")] Option<Var<Link>>);
    if !is_child() {
        return;
    }
    let kind = std::env::var("RADDLE_TEST_KIND").unwrap().parse().unwrap();
    for shut_down in [false, true] {
        let engine = engine(kind, 1);
        let mut head = None;
        for _ in 0..20_000 {
            head = Some(engine.var(Link(head)));
        }
        if shut_down {
            engine.shutdown(Shutdown::Drain, None).unwrap();
        }
        // Some threads have small stacks. Sanitizers need more stack than the library itself.
        let size = if cfg!(raddle_sanitized) { 2 << 20 } else { 128 << 10 };
        let small = thread::Builder::new().stack_size(size).spawn(move || drop(head)).unwrap();
        small.join().unwrap();
        if !shut_down {
            engine.shutdown(Shutdown::Drain, None).unwrap();
        }
    }
}

#[test]
fn kinds_of_engines_convert_to_and_from_names() {
    for kind in KINDS {
        assert_eq!(kind.to_string().parse::<EngineKind>().unwrap(), kind);
        assert_eq!(kind.to_string().to_lowercase().parse::<EngineKind>().unwrap(), kind);
    }
    assert!("ThreadedEngine".parse::<EngineKind>().is_err());
    assert_eq!(EngineKind::default(), EngineKind::PerDevice);
}
