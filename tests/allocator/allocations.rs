//! In steady state, an operation allocates nothing: its record, its accesses and its function come from the pool. What
//! a builder owns, it frees.
//!
//! The epoch allocates bags for retired objects, one per 1,250 operations; the test allows only slightly more.

use raddle_testkit::{alone, shapes};

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use raddle::{
    Device, Engine, EngineKind, Token, Var, chosen,
    gpu::{DeviceVec, PinnedVec, SimulatedGpu, simulated::Clock},
    trace::Recorder,
};
use shapes::*;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    /// The number of allocations made by this thread, minus the number of those that it has freed.
    static KEPT: Cell<isize> = const { Cell::new(0) };
}

pub fn allocated() {
    ALLOCATIONS.fetch_add(1, Relaxed);
    KEPT.set(KEPT.get() + 1);
}

pub fn freed() {
    KEPT.set(KEPT.get() - 1);
}

/// The number of operations per round: `MANY` for the common ways to push, `SOME` for the others.
const MANY: usize = 20_000;
const SOME: usize = 10_000;

/// The limit on pending operations, which bounds the number of records in use at any time.
const BURST: usize = 500;

/// Repeats rounds of `OPERATIONS` pushes until two consecutive rounds each make at most one allocation per thousand
/// operations. Each operation mutates one of `variables`. Progress is read from their versions, since a wait may
/// allocate.
fn assert_allocates_nothing<const OPERATIONS: usize>(what: &str, variables: &[&Token], push: impl Fn(usize)) {
    let done = || variables.iter().map(|variable| variable.version()).sum::<u64>();
    let run = || {
        let before = done();
        for i in 0..OPERATIONS {
            push(i);
            if i % BURST == 0 {
                while done() - before <= i as u64 {
                    thread::yield_now();
                }
            }
        }
        while done() - before < OPERATIONS as u64 {
            thread::yield_now();
        }
    };
    let mut history = Vec::new();
    // The pool grows until it holds as many records as are ever in use at once. Two rounds without growth show that it
    // has stopped growing.
    while history.len() < 20 {
        let before = ALLOCATIONS.load(Relaxed);
        run();
        history.push(ALLOCATIONS.load(Relaxed) - before);
        if let [.., a, b] = history[..]
            && a.max(b) <= OPERATIONS / 1000
        {
            println!("{what}: {b} allocations in {OPERATIONS} operations, after {} rounds", history.len());
            return;
        }
    }
    panic!("{what}: rounds of {OPERATIONS} operations keep allocating: {history:?}");
}

/// A builder owns memory if the name was made at run time, or if there are many variables.
#[test]
fn a_builder_frees_what_it_owns() {
    let _alone = alone();
    let engine = Engine::builder().kind(EngineKind::Naive).build().expect("an engine");
    let tokens: Vec<_> = (0..20).map(|_| engine.token()).collect();
    let assert_keeps_nothing = |what: &str, describe: &dyn Fn()| {
        let before = KEPT.get();
        describe();
        assert_eq!(KEPT.get(), before, "{what} is not freed");
    };
    assert_keeps_nothing("a name", &|| drop(engine.op(format!("operation {}", 1))));
    assert_keeps_nothing("a list of variables", &|| drop(engine.op("").reads(&tokens)));
    assert_keeps_nothing("a name or a list", &|| drop(engine.op(format!("operation {}", 2)).writes(&tokens)));
}

/// Panics when dropped.
struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        resume_unwind(Box::new(()));
    }
}

/// A refused push drops the function on the pushing thread. If that drop panics, the error reaches nobody.
#[test]
fn a_refused_push_frees_its_error_even_if_the_drop_of_the_function_panics() {
    let _alone = alone();
    let engine = Engine::builder().kind(EngineKind::Naive).build().expect("an engine");
    let (gone, other) = (engine.var(0).named("gone"), engine.var(0));
    engine.delete_variable(&gone, |_| ()).expect("the engine should be open");
    let op = || engine.op("late");
    let assert_keeps_nothing = |what: &str, push: &dyn Fn(Panics)| {
        // The first call may make lasting allocations.
        let kept = [(); 2].map(|()| {
            let before = KEPT.get();
            let pushed = catch_unwind(AssertUnwindSafe(|| push(Panics)));
            assert!(pushed.is_err(), "{what} does not drop its function");
            drop(pushed);
            KEPT.get() - before
        });
        assert_eq!(kept[1], 0, "{what} keeps its error");
    };
    let (one, two, list) = (|| gone.write(), || (gone.write(), other.write()), || vec![gone.write()]);
    assert_keeps_nothing("a push of one access", &|function| _ = op().push(one(), move |_| _ = &function));
    assert_keeps_nothing("a push of two accesses", &|function| _ = op().push(two(), move |_| _ = &function));
    assert_keeps_nothing("a push of a list", &|function| _ = op().push(list(), move |_| _ = &function));
    assert_keeps_nothing("a submit of one access", &|function| _ = op().submit(one(), move |_| _ = &function));
    assert_keeps_nothing("a submit of two accesses", &|function| _ = op().submit(two(), move |_| _ = &function));
    assert_keeps_nothing("a submit of a list", &|function| _ = op().submit(list(), move |_| _ = &function));
    assert_keeps_nothing("a submit with a priority", &|function| {
        _ = op().priority(1).submit(one(), move |_| _ = &function);
    });
    assert_keeps_nothing("a submit of a future", &|function| {
        _ = op().submit_future(one(), move |_| async move { _ = &function });
    });
    assert_keeps_nothing("a push to a scope", &|function| {
        _ = engine.scope(|s| _ = s.op("late").push(one(), move |_| _ = &function));
    });
    assert_keeps_nothing("a submit to a scope", &|function| {
        _ = engine.scope(|s| _ = s.op("late").submit(one(), move |_| _ = &function));
    });
}

/// A variable is one block of memory. When it is freed, a pinned thread may still read it, which costs a share of a
/// bag.
#[test]
fn a_variable_is_one_allocation() {
    const VARIABLES: usize = 10_000;
    let _alone = alone();
    let engine = Engine::builder().workers(1).pin(false).build().expect("an engine");
    let cases: [(&str, &dyn Fn()); 3] = [
        ("a token", &|| drop(engine.token())),
        ("a typed variable", &|| drop(engine.var(0u64))),
        ("a named variable", &|| drop(engine.var(0u64).named("named"))),
    ];
    for (what, make_and_drop) in cases {
        let before = ALLOCATIONS.load(Relaxed);
        (0..VARIABLES).for_each(|_| make_and_drop());
        let each = (ALLOCATIONS.load(Relaxed) - before) as f64 / VARIABLES as f64;
        assert!(each < 1.1, "{what} takes {each} allocations");
    }
}

/// All cases share one test, since the counts cover the whole process.
#[test]
#[cfg_attr(miri, ignore = "a steady state takes too many operations")]
fn operations_in_steady_state_allocate_nothing() {
    let _alone = alone();
    for kind in [EngineKind::Naive, EngineKind::Pooled, EngineKind::PerDevice] {
        let engine = Engine::builder().kind(kind).workers(2).pin(false).build().expect("an engine");
        let tokens: Vec<_> = (0..16).map(|_| engine.token()).collect();
        let all: Vec<&Token> = tokens.iter().collect();
        assert_allocates_nothing::<MANY>(&format!("{kind}: tokens"), &all, |i| {
            let (a, b, c) = (&tokens[i % 16], &tokens[(i + 5) % 16], &tokens[(i + 9) % 16]);
            engine
                .push_sync(move |_| _ = std::hint::black_box([i; 4]), [a, b], [c])
                .expect("the engine should be open");
        });
        let vars: Vec<Var<[u64; 4]>> = (0..16).map(|_| engine.var([0; 4])).collect();
        let all: Vec<&Token> = vars.iter().map(|var| var.token()).collect();
        assert_allocates_nothing::<MANY>(&format!("{kind}: typed variables"), &all, |i| {
            let (a, b) = (vars[i % 16].read(), vars[(i + 7) % 16].write());
            engine.op("add").push((a, b), |(a, b)| b[0] = b[0].wrapping_add(a[1])).expect("the engine should be open");
        });
        let counter = engine.var(0u64);
        let operator =
            engine.op("count").operator(counter.write(), |counter| *counter += 1).expect("the engine should be open");
        assert_allocates_nothing::<MANY>(&format!("{kind}: an operator"), &[counter.token()], |_| {
            operator.push().expect("the engine should be open");
        });
        let with = engine.op("with").operator_with(counter.write(), |counter, by: [u64; 10]| *counter += by[9]);
        let with = with.expect("the engine should be open");
        assert_allocates_nothing::<MANY>(&format!("{kind}: an operator with an argument"), &[counter.token()], |i| {
            with.push([i as u64; 10]).expect("the engine should be open");
        });
        let on =
            engine.op("on").operator_on(chosen::write(), (), |var: &mut [u64; 4], (), by: [u64; 9]| var[0] = by[8]);
        let on = on.expect("the engine should be open");
        assert_allocates_nothing::<MANY>(&format!("{kind}: an operator on chosen variables"), &all, |i| {
            on.push_on(&vars[i % 16], [i as u64; 9]).expect("the engine should be open");
        });
        let own = engine.op("own").operator_on(chosen::read(), counter.write(), |var: &[u64; 4], counter, by: u64| {
            *counter = var[1] + by;
        });
        let own = own.expect("the engine should be open");
        assert_allocates_nothing::<MANY>(&format!("{kind}: chosen and own variables"), &[counter.token()], |i| {
            own.push_on_with_priority(&vars[i % 16], i as u64, i as i32 % 3).expect("the engine should be open");
        });
        assert_allocates_nothing::<SOME>(&format!("{kind}: completions"), &[&tokens[0]], |_| {
            engine
                .push_async(|_, done| done.complete(), [&tokens[1]], [&tokens[0]])
                .expect("the engine should be open");
        });
        // Each priority and each lane has its own queues.
        let properties = [Property::Normal, Property::CopyToGpu, Property::CpuPrioritized, Property::Async];
        assert_allocates_nothing::<SOME>(&format!("{kind}: priorities and properties"), &[&tokens[0]], |i| {
            let operation = engine.op("").priority(i as i32 % 20 - 10).kind(properties[i % 4]);
            operation.reads([&tokens[2]]).writes([&tokens[0]]).push_sync(|_| {}).expect("the engine should be open");
        });
        devices(kind);
        recorded(kind);
    }
}

/// Pushes operations on an engine whose recorder has room for all of their events.
fn recorded(kind: EngineKind) {
    let recorder = Recorder::with_capacity(256 << 20);
    let builder = Engine::builder().kind(kind).workers(2).pin(false).recorder(&recorder);
    let engine = builder.build().expect("an engine");
    let tokens: Vec<_> = (0..16).map(|number| engine.token().named(format!("token {number}"))).collect();
    let all: Vec<&Token> = tokens.iter().collect();
    assert_allocates_nothing::<SOME>(&format!("{kind}: recorded"), &all, |i| {
        let (a, b, c) = (&tokens[i % 16], &tokens[(i + 5) % 16], &tokens[(i + 9) % 16]);
        engine.op("recorded").reads([a, b]).writes([c]).push((), |()| {}).expect("the engine should be open");
    });
    assert_eq!(recorder.take().lost(), 0, "events were lost, and lost events allocate nothing");
}

/// Pushes device operations, and CPU operations that depend on them. The simulated device boxes kernels and events, but
/// not copies.
fn devices(kind: EngineKind) {
    let gpu = Device::Gpu(0);
    let device = SimulatedGpu::builder().clock(Clock::Instantly).build();
    let engine = Engine::builder().kind(kind).workers(2).pin(false).gpu(device).build().expect("an engine");
    let launched: Vec<Var<DeviceVec<u64>>> =
        (0..8).map(|_| engine.device_var(gpu, 4).expect("the device should have memory")).collect();
    let all: Vec<&Token> = launched.iter().map(|var| var.token()).collect();
    assert_allocates_nothing::<SOME>(&format!("{kind}: device operations"), &all, |i| {
        let launch = engine.op("launch").on(gpu).priority(i as i32 % 3);
        let (a, b) = (launched[i % 8].read(), launched[(i + 3) % 8].write());
        launch.launch_any((a, b), |_, (a, b)| assert_eq!(a.len(), b.len())).expect("the engine should be open");
    });
    let hosts: Vec<Var<PinnedVec<u64>>> =
        (0..4).map(|_| engine.pinned_var(gpu, 4).expect("the device should have memory")).collect();
    let devices: Vec<Var<DeviceVec<u64>>> =
        (0..4).map(|_| engine.device_var(gpu, 4).expect("the device should have memory")).collect();
    let all: Vec<&Token> = hosts.iter().map(|var| var.token()).chain(devices.iter().map(|var| var.token())).collect();
    assert_allocates_nothing::<SOME>(&format!("{kind}: copies before and after operations of the CPU"), &all, |i| {
        let (host, device) = (&hosts[i / 2 % 4], &devices[i / 2 % 4]);
        if i % 2 == 0 {
            engine.op("fill").push(host.write(), move |host| host[0] = i as u64).expect("the engine should be open");
        } else {
            engine.op("copy").on(gpu).copy_to_device(host, device).expect("the engine should be open");
        }
    });
}
