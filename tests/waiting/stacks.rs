//! Program code is nested on a stack only where as much is left as the engine promises to each function, so none
//! overflows: on a worker, on a small thread of the program, and in a recursion of any depth.
//!
//! An overflow ends the process, so each test runs in one of its own.

#![cfg(target_os = "linux")]

use raddle_testkit as common;

use std::{
    future::Future,
    hint::black_box,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use common::{KINDS, THREADED, child_succeeds};
use raddle::{
    Completion, Engine, EngineBuilder, EngineKind, OpBuilder, OpHandle, PushError, Var, WaitError, completion, cx,
    error::BuildError,
};

/// What each function is promised on the engines of these tests.
const RESERVE: usize = 384 << 10;
/// What the functions use, apart from the frames between them.
const USED: usize = 320 << 10;
/// The stack of a program's thread on which nothing may be nested.
const SMALL: usize = 192 << 10;

fn builder(kind: EngineKind) -> EngineBuilder {
    Engine::builder().kind(kind).workers(1).pin(false).stack_size(1 << 20).stack_reserve(RESERVE)
}

fn engine(kind: EngineKind) -> Engine {
    builder(kind).build().unwrap()
}

/// Uses `bytes` of the calling thread's stack.
#[inline(never)]
fn use_stack(bytes: usize) {
    const PAGE: usize = 4096;
    let mut page = [1_u8; PAGE];
    black_box(&mut page);
    if bytes > PAGE {
        use_stack(bytes - PAGE);
    }
    black_box(&mut page);
}

/// Runs `f` on a thread with a small stack.
fn on_small_thread(f: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let small = thread::Builder::new().stack_size(SMALL).spawn_scoped(scope, f).unwrap();
        small.join().unwrap();
    });
}

/// A waker that uses stack.
struct Hungry(AtomicUsize);

impl Wake for Hungry {
    fn wake(self: Arc<Self>) {
        use_stack(USED);
        self.0.fetch_add(1, SeqCst);
    }
}

/// A value whose drop uses stack.
struct HungryDrop(Arc<AtomicUsize>);

impl Drop for HungryDrop {
    fn drop(&mut self) {
        use_stack(USED);
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_recursion_of_waits_leaves_each_function_its_reserve() {
    child_succeeds("recursions_of_waits");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn recursions_of_waits() {
    fn level(engine: &Engine, depth: usize) -> Result<OpHandle<usize>, PushError> {
        let inside = engine.downgrade();
        engine.op("level").try_submit((), move |()| {
            if depth == 0 {
                use_stack(USED);
                return Ok(0);
            }
            let frame = [1_u8; 24 << 10];
            let below = level(&inside, depth - 1)?.wait()?;
            Ok(below + usize::from(black_box(&frame)[depth]))
        })
    }
    for kind in KINDS {
        let engine = engine(kind);
        for depth in 0..60 {
            assert_eq!(level(&engine, depth).unwrap().wait().unwrap(), depth, "{kind}");
        }
    }
}

#[test]
fn eager_operations_that_push_eager_operations_leave_each_function_its_reserve() {
    child_succeeds("recursions_of_eager_operations");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn recursions_of_eager_operations() {
    fn step(engine: &Engine, left: usize) {
        let frame = [1_u8; 48 << 10];
        use_stack(USED - (48 << 10));
        if left > 0 {
            engine.op("eager").eager().push(cx(), move |op| step(&op.engine(), left - 1)).unwrap();
        }
        black_box(&frame);
    }
    for kind in KINDS {
        let engine = engine(kind);
        engine.op("first").push(cx(), |op| step(&op.engine(), 200)).unwrap();
        engine.wait_for_all().unwrap();
        on_small_thread(|| {
            engine.op("eager").eager().push(cx(), |op| step(&op.engine(), 200)).unwrap();
            engine.wait_for_all().unwrap();
        });
    }
}

#[test]
fn a_small_thread_runs_nothing_while_its_push_is_held_back() {
    child_succeeds("held_back_on_a_small_thread");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn held_back_on_a_small_thread() {
    for kind in THREADED {
        let engine = builder(kind).max_pending(4).build().unwrap();
        on_small_thread(|| {
            let pusher = thread::current().id();
            for _ in 0..500 {
                let run = move |()| {
                    assert_ne!(thread::current().id(), pusher);
                    use_stack(USED);
                };
                engine.op("used").push((), run).unwrap();
            }
            engine.wait_for_all().unwrap();
        });
    }
}

#[test]
fn what_follows_a_completion_on_a_small_thread_has_its_reserve() {
    child_succeeds("completions_on_a_small_thread");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn completions_on_a_small_thread() {
    for kind in KINDS {
        let engine = engine(kind);
        let (variable, (tx, rx)) = (engine.token(), mpsc::channel());
        let (dropped, waker) = (Arc::new(AtomicUsize::new(0)), Arc::new(Hungry(AtomicUsize::new(0))));
        let value = HungryDrop(Arc::clone(&dropped));
        let held =
            engine.op("held").writes([&variable]).submit(completion(), move |done| tx.send(done).unwrap()).unwrap();
        // Its function is dropped without a call, since the operation is cancelled.
        let skipped = engine.op("skipped").writes([&variable]).submit((), move |()| drop(value)).unwrap();
        skipped.cancel();
        engine.op("eager").reads([&variable]).eager().push((), |()| use_stack(USED)).unwrap();
        {
            let (shared, mut all) = (Waker::from(Arc::clone(&waker)), pin!(engine.wait_for_all_async()));
            let mut cx = Context::from_waker(&shared);
            let mut handle = pin!(held.into_future());
            assert!(all.as_mut().poll(&mut cx).is_pending());
            assert!(handle.as_mut().poll(&mut cx).is_pending());
            let done = rx.recv().unwrap();
            on_small_thread(|| done.complete());
            common::eventually("both waits are over", || waker.0.load(SeqCst) == 2);
        }
        skipped.wait().unwrap_err();
        engine.wait_for_all().unwrap();
        assert_eq!(dropped.load(SeqCst), 1, "{kind}");
    }
}

#[test]
fn cancellations_on_a_small_thread_leave_drops_and_wakers_their_reserve() {
    child_succeeds("cancellations_on_a_small_thread");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn cancellations_on_a_small_thread() {
    for kind in KINDS {
        let engine = engine(kind);
        let (variable, (tx, rx)) = (engine.token(), mpsc::channel());
        let (dropped, waker) = (Arc::new(AtomicUsize::new(0)), Arc::new(Hungry(AtomicUsize::new(0))));
        engine.op("held").writes([&variable]).push(completion(), move |done| tx.send(done).unwrap()).unwrap();
        let value = HungryDrop(Arc::clone(&dropped));
        let skipped = engine.op("skipped").writes([&variable]).submit((), move |()| drop(value)).unwrap();
        let (shared, mut all) = (Waker::from(Arc::clone(&waker)), pin!(engine.wait_for_all_async()));
        let mut cx = Context::from_waker(&shared);
        assert!(all.as_mut().poll(&mut cx).is_pending());
        on_small_thread(|| assert!(skipped.cancel()));
        assert_eq!(dropped.load(SeqCst), 1, "{kind}: the cancellation has returned");
        // On an engine without workers, the wakers of those who wait for all run on this thread, too.
        let done = rx.recv().unwrap();
        on_small_thread(|| done.complete());
        common::eventually("the wait is over", || waker.0.load(SeqCst) == 1);
    }
}

/// Each function that is dropped cancels the next operation.
#[test]
fn a_long_chain_of_cancellations_ends() {
    child_succeeds("a_chain_of_cancellations");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn a_chain_of_cancellations() {
    struct Cancels(Option<OpHandle<()>>);
    impl Drop for Cancels {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(|next| _ = next.cancel());
        }
    }
    const LENGTH: usize = if cfg!(any(raddle_tsan, raddle_unpooled)) { 2_000 } else { 20_000 };
    for kind in KINDS {
        let engine = engine(kind);
        let (variable, (tx, rx)) = (engine.token(), mpsc::channel());
        engine.op("held").writes([&variable]).push(completion(), move |done| tx.send(done).unwrap()).unwrap();
        let mut next = None;
        for _ in 0..LENGTH {
            let cancels = Cancels(next.take());
            next = Some(engine.op("").writes([&variable]).submit((), move |()| drop(cancels)).unwrap());
        }
        on_small_thread(|| drop(Cancels(next)));
        rx.recv().unwrap().complete();
        let _ = engine.wait_for_all();
    }
}

/// A wait that gave up is passed over at its turn, on the thread that finds it ready.
#[test]
fn a_storm_of_waits_that_gave_up_ends() {
    child_succeeds("storms_of_waits_that_gave_up");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn storms_of_waits_that_gave_up() {
    const LENGTH: usize = if cfg!(any(raddle_tsan, raddle_unpooled)) { 5_000 } else { 100_000 };
    // Bits that select what may occur: everything, and the pairs that need no thread.
    let masks = [u32::MAX, 1 << 0 | 1 << 3, 1 << 0 | 1 << 4, 1 << 4 | 1 << 5, 1 << 0 | 1 << 1, 1 << 6 | 1 << 8];
    for kind in KINDS {
        for mask in masks {
            for ends_on in ["a worker", "a small thread", "this thread"] {
                println!("{kind}, {mask:b}, on {ends_on}");
                let engine = engine(kind);
                let (variable, (tx, rx)) = (engine.var(0_u64), mpsc::channel());
                let held = (variable.write(), completion());
                engine.op("hold").push(held, move |(_, done)| tx.send(done).unwrap()).unwrap();
                let is_whole = mask == u32::MAX && ends_on == "a worker";
                let length = if is_whole { LENGTH } else { LENGTH / 20 };
                storm(&engine, &variable, length, mask);
                let done: Completion = rx.recv().unwrap();
                match ends_on {
                    "a worker" => engine.op("end").push((), move |()| done.complete()).unwrap(),
                    "a small thread" => on_small_thread(|| done.complete()),
                    _ => done.complete(),
                }
                engine.wait_for_var(&variable).unwrap();
                // The groups and the deadlines fail some.
                let _ = engine.wait_for_all();
                engine.clear_errors();
            }
        }
    }
}

/// Pushes operations behind the holder of `variable` that all give up. `mask` selects their kinds.
fn storm(engine: &Engine, variable: &Var<u64>, length: usize, mask: u32) {
    fn poll_once(future: impl Future) {
        _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
    }
    let (group, mut random) = (engine.group(), 1_u64);
    let mut pushed = 0;
    while pushed < length {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let kind = (random >> 60) as u32;
        if mask & (1 << kind) == 0 {
            continue;
        }
        pushed += 1;
        match kind {
            0 => _ = engine.get_timeout(variable, Duration::ZERO),
            1 => _ = engine.wait_for_var_timeout(variable, Duration::ZERO),
            2 => _ = engine.wait_to_read_timeout(variable, Duration::ZERO),
            3 => engine.clear_error(variable).unwrap(),
            4 => poll_once(engine.acquire(variable.write())),
            5 => poll_once(engine.acquire(variable.read())),
            6 => poll_once(engine.get_async(variable)),
            7 => poll_once(engine.wait_for_var_async(variable)),
            8 => _ = engine.op("quiet").submit(variable.write(), |_| ()).unwrap().cancel_quietly(),
            9 => {
                let loud = engine.op("loud").submit(variable.overwrite(), |_| ()).unwrap();
                loud.cancel();
                loud.ignore();
            }
            10 => engine.op("late").deadline(Instant::now()).push(variable.overwrite(), |_| ()).unwrap(),
            11 => group.op("member").push(variable.read(), |_| ()).unwrap(),
            12 => {
                let other = engine.var(0_u64);
                poll_once(engine.acquire((variable.write(), other.write())));
            }
            13 => {
                _ = engine.op("future").submit_future(variable.write(), |value| async move { drop(value) }).unwrap();
            }
            14 => engine.op("eager").eager().push(variable.read(), |_| ()).unwrap(),
            _ => {
                let read = (variable.read(), completion());
                engine.op("completion").push(read, |(_, done)| done.complete()).unwrap();
            }
        }
    }
    group.cancel_quietly();
    engine.clear_error(variable).unwrap();
}

/// Whatever is left of a stack where nothing more is nested, the rest of a chain does not take another stack.
#[test]
fn a_chain_of_waits_that_gave_up_takes_one_stack() {
    child_succeeds("waits_that_gave_up_in_a_chain");
}

#[test]
#[ignore = "run by another test in a separate process"]
fn waits_that_gave_up_in_a_chain() {
    fn below(bytes: usize, f: impl FnOnce()) {
        let page = black_box([1_u8; 256]);
        if bytes == 0 {
            f();
        } else {
            below(bytes - 256, f);
        }
        black_box(&page);
    }
    const LENGTH: usize = if cfg!(any(raddle_tsan, raddle_unpooled)) { 1_000 } else { 10_000 };
    for at in 0..32_usize {
        let reserve = (128 << 10) + 512 * at;
        let builder = Engine::builder().kind(EngineKind::Naive).stack_size(512 << 10).stack_reserve(reserve);
        let engine = builder.build().unwrap();
        let (variable, (tx, rx)) = (engine.var(0), mpsc::channel());
        engine.op("hold").push((variable.write(), completion()), move |(_, done)| tx.send(done).unwrap()).unwrap();
        let pusher = thread::current().id();
        for _ in 0..LENGTH {
            // Gives up, so it is completed at its turn, by what it has left behind.
            engine.get_timeout(&variable, Duration::ZERO).unwrap_err();
            let count = move |count: &mut usize| *count += usize::from(thread::current().id() == pusher);
            engine.op("count").push(variable.write(), count).unwrap();
        }
        below((at % 4) * 1024, || rx.recv().unwrap().complete());
        assert_eq!(engine.get(&variable).unwrap(), LENGTH, "of the operations ran on this thread, {at}");
    }
}

#[test]
fn large_captures_take_little_stack() {
    child_succeeds("pushes_with_large_captures");
}

/// Without optimization, each function that receives a capture by value may copy it. The array here and the function
/// that captures it already take a megabyte of the two of this thread.
#[test]
#[ignore = "run by another test in a separate process"]
fn pushes_with_large_captures() {
    type Push = fn(OpBuilder<'_>, &Var<usize>) -> Result<(), PushError>;
    const SIZE: usize = 512 << 10;
    let pushes: [(&str, Push); 9] = [
        ("push", |op, sum| {
            let large = [1_u8; SIZE];
            op.push(sum.write(), move |sum| *sum += large.len())
        }),
        ("try_push", |op, sum| {
            let large = [1_u8; SIZE];
            op.try_push(sum.write(), move |sum| {
                *sum += large.len();
                Ok(())
            })
        }),
        ("submit", |op, sum| {
            let large = [1_u8; SIZE];
            op.submit(sum.write(), move |sum| *sum += large.len()).map(drop)
        }),
        ("try_submit", |op, sum| {
            let large = [1_u8; SIZE];
            op.try_submit(sum.write(), move |sum| {
                *sum += large.len();
                Ok(())
            })
            .map(drop)
        }),
        ("a completion", |op, sum| {
            let large = [1_u8; SIZE];
            op.push((sum.write(), completion()), move |(sum, done)| {
                *sum += large.len();
                done.complete();
            })
        }),
        ("push_future", |op, sum| {
            let large = [1_u8; SIZE];
            op.push_future(sum.write(), move |mut sum| async move { *sum += large.len() })
        }),
        ("with a deadline", |op, sum| {
            let large = [1_u8; SIZE];
            op.deadline(Instant::now() + common::PATIENCE).push(sum.write(), move |sum| *sum += large.len())
        }),
        ("eager", |op, sum| {
            let large = [1_u8; SIZE];
            op.eager().push(sum.write(), move |sum| *sum += large.len())
        }),
        ("operator", |op, sum| {
            let large = [1_u8; SIZE];
            op.operator(sum.write(), move |sum| *sum += large.len())?.push()
        }),
    ];
    for (name, push) in pushes {
        println!("{name}");
        let run = move || {
            let engine = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).build().unwrap();
            let sum = engine.var(0);
            push(engine.op(name), &sum).unwrap();
            assert_eq!(engine.get(&sum).unwrap(), SIZE, "{name}");
        };
        thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
    }
}

#[test]
fn large_values_take_little_stack() {
    child_succeeds("large_values_and_results");
}

/// A value that is made where it is used takes a stack frame there, and one where it is taken out of a result.
#[test]
#[ignore = "run by another test in a separate process"]
fn large_values_and_results() {
    type Use = fn(&Engine) -> Result<usize, WaitError>;
    /// Returns the length of a result without another copy.
    fn len<const N: usize>(value: &Result<[u8; N], WaitError>) -> Result<usize, WaitError> {
        value.as_ref().map(|value| value.len()).map_err(WaitError::clone)
    }
    #[inline(never)]
    fn var(engine: &Engine) -> Var<[u8; RESULT]> {
        engine.var([1; RESULT])
    }
    const VALUE: usize = 512 << 10;
    const RESULT: usize = 256 << 10;
    let uses: [(&str, usize, Use); 9] = [
        ("var", VALUE, |engine| {
            let var = engine.var([1_u8; VALUE]);
            engine.op("look").submit(var.read(), |value| value.len())?.wait()
        }),
        ("get", RESULT, |engine| len(&engine.get(&var(engine)))),
        ("get_timeout", RESULT, |engine| len(&engine.get_timeout(&var(engine), common::PATIENCE))),
        ("set", RESULT, |engine| {
            let var = var(engine);
            engine.set(&var, [2; RESULT])?;
            engine.with(&var, |value| value.iter().filter(|&&byte| byte == 2).count())
        }),
        ("replace", RESULT, |engine| len(&engine.replace(&var(engine), [2; RESULT]))),
        ("submit", RESULT, |engine| len(&engine.op("made").submit((), |()| [1_u8; RESULT])?.wait())),
        ("try_submit", RESULT, |engine| len(&engine.op("made").try_submit((), |()| Ok([1_u8; RESULT]))?.wait())),
        ("submit_future", RESULT, |engine| {
            len(&engine.op("made").submit_future((), |()| async { [1_u8; RESULT] })?.wait())
        }),
        ("a scope's submit", RESULT, |engine| {
            engine.try_scope(|s| Ok(len(&s.op("made").submit((), |()| [1_u8; RESULT])?.wait())))?
        }),
    ];
    for (name, size, use_value) in uses {
        println!("{name}");
        let run = move || {
            let builder = Engine::builder().kind(EngineKind::PerDevice).workers(1).pin(false).stack_size(2 << 20);
            assert_eq!(use_value(&builder.build().unwrap()).unwrap(), size, "{name}");
        };
        thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
    }
}

#[test]
fn sizes_of_stacks_that_do_not_fit_are_refused() {
    for kind in KINDS {
        for (size, reserve) in [(0, 0), (1 << 20, 1 << 20), (usize::MAX, 1 << 20), (4 << 20, usize::MAX)] {
            let refused = builder(kind).stack_size(size).stack_reserve(reserve).build();
            assert!(matches!(refused, Err(BuildError::Stack { .. })), "{kind}: {size}, {reserve}");
        }
        let refused = builder(kind).stack_size(isize::MAX as usize / 4).build();
        assert!(refused.is_ok() == (kind == EngineKind::Naive), "{kind}: {refused:?}");
    }
}
